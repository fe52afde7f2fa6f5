"""Producers of all access modes that connect, send and close at random, and a consumer of what they send."""

import random
from typing import Any, NamedTuple

from streaming.protocol.codec import batch
from tests.parity.recorder import Record, Recorder

_MODES = ["Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing"]


class Producer(NamedTuple):
    connection: int
    id: int
    name: str


class Producers:
    """Each operation of a plan is a method, which returns whether there was anything to do."""

    def __init__(self, recorder: Recorder, dice: random.Random, *, deduplicates: bool) -> None:
        self._recorder = recorder
        self._deduplicates = deduplicates
        # A single mode shows more: in a mix, nearly every producer is refused.
        self._modes = dice.choice(
            [["Shared"], _MODES] if self._deduplicates else [_MODES, ["Shared", *_MODES[2:]]]
        )
        self._here: list[Producer] = []
        self._epochs: dict[str, int] = {}
        self._sequences: dict[str, int] = {}
        recorder.listeners.append(self._hear)
        if self._deduplicates:
            self._recorder.call("POST", f"/namespaces/{recorder.namespace}/deduplication", True)
        # On a separate connection, because the broker closes that of a fenced producer that goes on sending.
        self._consumer = recorder.open()
        self._consume()

    @property
    def description(self) -> str:
        return f"{', '.join(self._modes)}{', deduplicated' if self._deduplicates else ''}"

    def produce(self, dice: random.Random) -> bool:
        open_ = [each for each in self._recorder.connections if each != self._consumer]
        connection = dice.choice(open_) if open_ and dice.random() < 0.6 else self._recorder.open()
        taken = {each.id for each in self._here if each.connection == connection}
        self._produce(dice, connection, next(id_ for id_ in range(99) if id_ not in taken))
        return True

    def produce_again(self, dice: random.Random) -> bool:
        """Create a producer with an id that is in use."""
        if not self._here:
            return False
        known = dice.choice(self._here)
        self._produce(dice, known.connection, known.id)
        return True

    def _produce(self, dice: random.Random, connection: int, id_: int) -> None:
        name, mode = dice.choice("pqr"), dice.choice(self._modes)
        comes_back = name in self._epochs and mode != "Shared" and dice.random() < 0.4
        more = {"topic_epoch": self._epochs[name]} if comes_back else {}
        said = self._recorder.ask(
            connection, "PRODUCER", topic=self._recorder.topic, producer_id=id_, producer_name=name,
            user_provided_producer_name=True, producer_access_mode=mode, epoch=dice.choice([0, 0, 1]), **more,
        )  # fmt: skip
        if said.get("cmd") == "PRODUCER_SUCCESS":
            self._here = [each for each in self._here if each[:2] != (connection, id_)]
            self._here.append(Producer(connection, id_, name))

    def send(self, dice: random.Random) -> bool:
        return self._send(dice, back=0, size=None)

    def send_again(self, dice: random.Random) -> bool:
        """Send with a sequence id that was used before."""
        return self._send(dice, back=dice.choice([1, 2, 3]), size=None)

    def send_batch(self, dice: random.Random) -> bool:
        return self._send(dice, back=0, size=dice.choice([2, 3]))

    def _send(self, dice: random.Random, *, back: int, size: int | None) -> bool:
        if not self._here:
            return False
        producer = dice.choice(self._here)
        last = self._sequences.get(producer.name, -1)
        sequence = max(0, last + dice.choice([1, 1, 1, 2]) - back)
        self._sequences[producer.name] = max(last, sequence + (size or 1) - 1)
        fields: dict[str, Any] = {"producer_id": producer.id, "sequence_id": sequence}
        metadata: dict[str, Any] = {"producer_name": producer.name, "sequence_id": sequence}
        payload = None
        if size is not None:
            payload = batch([{}] * size, [b"m%d" % (sequence + index) for index in range(size)])
            fields["num_messages"] = metadata["num_messages_in_batch"] = size
            if dice.random() < 0.6:  # as the Java client does and the C++ client does not
                fields["highest_sequence_id"] = metadata["highest_sequence_id"] = sequence + size - 1
        self._recorder.publish(producer.connection, metadata, payload, **fields)
        return True

    def close(self, dice: random.Random) -> bool:
        if not self._here:
            return False
        producer = self._here.pop(dice.randrange(len(self._here)))
        self._recorder.ask(producer.connection, "CLOSE_PRODUCER", producer_id=producer.id)
        return True

    def cut(self, dice: random.Random) -> bool:
        if not self._here:
            return False
        self._recorder.cut(dice.choice(self._here).connection)
        return True

    def deduplicate(self, dice: random.Random) -> bool:
        """Switch deduplication on or off, possibly without a change."""
        path = f"/namespaces/{self._recorder.namespace}/deduplication"
        self._recorder.call("POST", path, dice.random() < 0.5)
        return True

    def reopen(self) -> None:
        """Bring back the consumer, as its client does after an unload or a restart."""
        if self._consumer not in self._recorder.connections:
            self._consumer = self._recorder.open()
        self._consume()

    def _consume(self) -> None:
        # As clients do, and so that the broker owns the topic's bundle.
        self._recorder.ask(self._consumer, "LOOKUP", topic=self._recorder.topic, authoritative=False)
        self._recorder.ask(
            self._consumer, "SUBSCRIBE", topic=self._recorder.topic, subscription="s", subType="Exclusive",
            consumer_id=0, consumer_name="c", priority_level=0, durable=True, read_compacted=False,
            initialPosition="Earliest",
        )  # fmt: skip
        self._recorder.tell(self._consumer, "FLOW", consumer_id=0, messagePermits=1000)

    def _lose(self, connection: int) -> None:
        self._here = [each for each in self._here if each.connection != connection]

    def _hear(self, record: Record) -> None:
        fields = record["fields"]
        if record["cmd"] == "_TCP_CLOSE":
            self._lose(record["conn"])
        elif record["cmd"] == "CLOSE_PRODUCER":
            gone = (record["conn"], fields["producer_id"])
            self._here = [each for each in self._here if each[:2] != gone]
        elif record["cmd"] == "PRODUCER_SUCCESS" and "topic_epoch" in fields:
            self._epochs[fields["producer_name"]] = fields["topic_epoch"]
