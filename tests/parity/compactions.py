"""Messages that compaction deletes or passes over, compactions at random, and readers of compacted data."""

import random

from streaming.protocol.codec import batch
from tests.parity.consumers import Consumers
from tests.parity.publisher import Publisher
from tests.parity.recorder import Recorder

_LOOKS = 350
"""How often to ask, at most, whether a compaction has ended. Some that fail take 30 s."""
_LOOK_SECONDS = 0.1


class Compactions:
    """Each operation of a plan is a method, which returns whether there was anything to do."""

    def __init__(self, recorder: Recorder, publisher: Publisher, consumers: Consumers) -> None:
        self._recorder, self._publisher, self._consumers = recorder, publisher, consumers

    def compact(self, dice: random.Random) -> bool:
        """Ask for a compaction and wait for its end. Only the last look is recorded."""
        for topic in self._recorder.topics:
            path = f"/{topic.replace('://', '/')}/compaction"
            self._recorder.call("PUT", path)
            self._recorder.call_until(
                "GET", path, lambda said: said.get("status") != "RUNNING", most=_LOOKS, pause=_LOOK_SECONDS
            )
        return True

    def compaction_status(self, dice: random.Random) -> bool:
        """Ask how the last compaction ended."""
        self._recorder.call("GET", f"{self._recorder.path}/compaction")
        return True

    def publish_empty(self, dice: random.Random) -> bool:
        """A message that deletes its key, or, without a size of its own, does not."""
        size = {"uncompressed_size": 0} if dice.random() < 0.8 else {}
        return self._publisher.publish_one(
            dice, {"partition_key": _key(dice), "null_value": True, **size}, b""
        )

    def publish_sized(self, dice: random.Random) -> bool:
        """A message as official clients send it, which tells the size of its payload."""
        payload = b"x" * dice.choice([1, 10, 100])
        metadata = {"partition_key": _key(dice), "uncompressed_size": len(payload)}
        return self._publisher.publish_one(dice, metadata, payload)

    def publish_keyless(self, dice: random.Random) -> bool:
        """A message that compaction passes over, unless topicCompactionRetainNullKey is true."""
        return self._publisher.publish_one(dice, {}, b"x")

    def batch_of_keys(self, dice: random.Random) -> bool:
        """A batch of values, empty values and messages without a key."""
        singles, payloads = list[dict[str, object]](), list[bytes]()
        for number in range(dice.choice([1, 2, 3, 5])):
            what = dice.random()
            singles.append({} if what < 0.15 else {"partition_key": _key(dice)})
            payloads.append(b"" if 0.15 <= what < 0.35 else b"m%d" % number)
        payload = batch(singles, payloads)
        metadata: dict[str, object] = {
            "num_messages_in_batch": len(singles),
            "uncompressed_size": len(payload),
        }
        if "partition_key" in singles[0]:
            metadata["partition_key"] = singles[0]["partition_key"]
        return self._publisher.publish_one(dice, metadata, payload, messages=len(singles))

    def set_compaction_threshold(self, dice: random.Random) -> bool:
        """Of the topic. It creates the subscription; the check comes when no scenario lasts any more."""
        path = f"{self._recorder.path}/compactionThreshold"
        if dice.random() < 0.3:
            self._recorder.call("DELETE", path, seconds=_APPLIED)
        else:
            self._recorder.call("POST", path, dice.choice([0, 1000, 100_000]), seconds=_APPLIED)
        return True

    def delete_compaction_subscription(self, dice: random.Random) -> bool:
        """What was compacted goes with it."""
        self._recorder.call("DELETE", f"{self._recorder.path}/subscription/__compaction")
        return True

    def reset_compaction_subscription(self, dice: random.Random) -> bool:
        """It loses the property that names the compacted ledger."""
        path = f"{self._recorder.path}/subscription/__compaction"
        self._recorder.call("POST", f"{path}/{dice.choice(['skip_all', 'skip/1', 'skip/3'])}")
        return True

    def message_id_by_time(self, dice: random.Random) -> bool:
        """The first message that was published at a time or later."""
        known = self._publisher.times
        if not known:
            return False
        then = dice.choice(known) + dice.choice([-1, 0, 0, 1])
        self._recorder.call("GET", f"{self._recorder.path}/messageid/{then}")
        return True


_APPLIED = 0.4
"""Seconds until a policy of a topic holds."""


def _key(dice: random.Random) -> str:
    return f"k{dice.randrange(5)}"
