"""A producer that publishes for the consumers: plain messages, batches, chunks, delayed messages, odd clocks."""

import random
import time

from streaming.protocol.codec import batch
from tests.parity.recorder import Record, Recorder

_LARGE = 200_000
"""Bytes of a large message: five are about 1 MB, the unit of a retention by size."""


class Publisher:
    """A producer for each topic on a connection of its own, the first of the recording. `txn`: the transaction in which it
    publishes, if any. `times`: the publish times (ms) of what `publish_one` sent.

    Each operation of a plan is a method, which returns whether there was anything to do.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sequence = 0
        self._here: set[int] = set()
        self.txn: Record = {}
        self.times: list[int] = []
        self.connection = recorder.open()
        recorder.listeners.append(self._hear)
        self.reopen()

    def reopen(self) -> None:
        """Create the producers that are gone, as a client does after an unload or a restart."""
        if self.connection not in self._recorder.connections:
            self.connection = self._recorder.open()
            self._here.clear()
        for id_, topic in enumerate(self._recorder.topics):
            if id_ not in self._here:
                # As clients do, and so that the broker owns the topic's bundle.
                self._recorder.ask(self.connection, "LOOKUP", topic=topic, authoritative=False)
                said = self._recorder.ask(
                    self.connection, "PRODUCER", topic=topic, producer_id=id_, producer_name="p",
                    user_provided_producer_name=True, producer_access_mode="Shared", epoch=0,
                )  # fmt: skip
                if said.get("cmd") == "PRODUCER_SUCCESS":
                    self._here.add(id_)

    def publish(self, dice: random.Random) -> bool:
        return self._some(dice, {})

    def publish_delayed(self, dice: random.Random) -> bool:
        """With a time of delivery that is past, less than a tick ahead, or seconds ahead."""
        seconds = dice.choice([-5, 0.4, 2, 4, 30])
        return self._some(dice, {"deliver_at_time": _now(seconds)})

    def publish_old(self, dice: random.Random) -> bool:
        """By a clock that is slow."""
        return self._some(dice, {"publish_time": _now(-dice.choice([20, 50, 100, 5000]))})

    def publish_ahead(self, dice: random.Random) -> bool:
        """By a clock that is fast."""
        return self._some(dice, {"publish_time": _now(dice.choice([3, 60, 5000]))})

    def publish_large(self, dice: random.Random) -> bool:
        return self._some(dice, {}, b"x" * _LARGE)

    def batch(self, dice: random.Random) -> bool:
        size = dice.choice([2, 3, 5])
        for _ in range(dice.choice([1, 1, 2, 4])):
            payload = batch(
                [{"partition_key": f"k{dice.randrange(8)}"} for _ in range(size)],
                [f"m{self._sequence + index}".encode() for index in range(size)],
            )
            metadata = {"num_messages_in_batch": size, "partition_key": f"k{dice.randrange(8)}"}
            self._publish(dice, metadata, payload, num_messages=size)
            self._sequence += size
        return True

    def chunks(self, dice: random.Random) -> bool:
        """One message in two or three chunks. Its last chunk may be missing."""
        parts = dice.choice([2, 2, 3])
        sent = parts if dice.random() < 0.8 else parts - 1
        id_, topic = f"p-{self._sequence}", dice.randrange(len(self._recorder.topics))
        for index in range(sent):
            metadata = {"uuid": id_, "num_chunks_from_msg": parts, "chunk_id": index,
                        "total_chunk_msg_size": 2 * parts, "partition_key": "k0"}  # fmt: skip
            self._publish(dice, metadata, b"c%d" % index, topic=topic, is_chunk=True)
        self._sequence += 1
        return True

    def publish_one(
        self, dice: random.Random, metadata: Record, payload: bytes, *, messages: int = 1
    ) -> bool:
        """A message or, with several `messages`, a batch."""
        self.times.append(_now(0))
        batched = {"num_messages": messages} if "num_messages_in_batch" in metadata else {}
        self._publish(dice, {"publish_time": self.times[-1], **metadata}, payload, **batched)
        self._sequence += messages
        return True

    def _some(self, dice: random.Random, metadata: Record, payload: bytes | None = None) -> bool:
        for _ in range(dice.choice([1, 1, 2, 4])):
            self._publish(dice, {**metadata, "partition_key": f"k{dice.randrange(8)}"}, payload)
            self._sequence += 1
        return True

    def _publish(self, dice: random.Random, metadata: Record, payload: bytes | None, topic: int | None = None,
                 **fields: object) -> None:  # fmt: skip
        id_ = dice.randrange(len(self._recorder.topics)) if topic is None else topic
        if id_ not in self._here:
            self.reopen()
        if id_ in self._here:
            known = {"producer_name": "p", "sequence_id": self._sequence, **self.txn}
            self._recorder.publish(
                self.connection, known | metadata, payload,
                producer_id=id_, sequence_id=self._sequence, **self.txn, **fields,
            )  # fmt: skip

    def _hear(self, record: Record) -> None:
        if record["conn"] != self.connection:
            return
        fields = record["fields"]
        if record["cmd"] == "_TCP_CLOSE":
            self._here.clear()
        elif record["cmd"] == "CLOSE_PRODUCER":
            self._here.discard(fields["producer_id"])


def _now(seconds: float) -> int:
    """The time in ms, `seconds` from now."""
    return int((time.time() + seconds) * 1000)
