"""Consumers of one subscription that join, receive, ack, nack and leave at random, and a producer for them."""

import random
from dataclasses import dataclass, field

from tests.parity.publisher import Publisher
from tests.parity.recorder import Record, Recorder

TYPES = {"exclusive": "Exclusive", "failover": "Failover", "shared": "Shared", "key_shared": "Key_Shared"}

_MOST = 4
"""The maximum number of consumers at a time."""
_FAILOVER_SECONDS = 1.3
"""The broker's delay before another consumer becomes active, plus a margin."""

Message = tuple[int, int]
"""(ledger id, entry id), as recorded."""


@dataclass(slots=True, eq=False)
class Consumer:
    """`connection` is None while it is gone, before it reconnects. `pending`: what it received but has not acked."""

    connection: int | None
    id: int
    name: str
    priority: int
    pending: list[Message] = field(default_factory=list)


class Consumers:
    """A scenario. Each operation of the plan is a method, which returns whether there was anything to do."""

    def __init__(self, recorder: Recorder, kind: str, seed: int) -> None:
        dice = random.Random(f"{kind} {seed} settings")
        self._recorder = recorder
        self._type = TYPES[kind] if kind in TYPES else dice.choice([*TYPES.values()])
        self._priorities = dice.choice([[0], [0, 0, 1]])
        self._here: list[Consumer] = []
        self._gone: list[Consumer] = []
        self._sizes: dict[Message, int] = {}  # messages in each entry that was delivered
        self._unacked: dict[Message, int] = {}  # for a batch, the bits of the unacked messages
        recorder.hear = self._hear
        self._publisher = Publisher(recorder)

    @property
    def description(self) -> str:
        return f"{self._type}, priorities {self._priorities}"

    def publish(self, dice: random.Random) -> bool:
        self._publisher.publish(dice, None)
        return True

    def batch(self, dice: random.Random) -> bool:
        self._publisher.publish(dice, dice.choice([2, 3, 5]))
        return True

    # -- joining and leaving ----------------------------------------------------------------------------------------

    def join(self, dice: random.Random) -> bool:
        if len(self._here) >= _MOST:
            return False
        others = [each for each in self._recorder.connections if each != self._publisher.connection]
        connection = dice.choice(others) if others and dice.random() < 0.4 else self._recorder.open()
        taken = {each.id for each in (*self._here, *self._gone) if each.connection == connection}
        id_ = next(id_ for id_ in range(99) if id_ not in taken)
        # Two consumers may have the same name.
        self._subscribe(dice, Consumer(connection, id_, dice.choice("abcd"), dice.choice(self._priorities)))
        return True

    def rejoin(self, dice: random.Random) -> bool:
        if not self._gone:
            return False
        consumer = self._gone.pop(dice.randrange(len(self._gone)))
        if consumer.connection is None:
            consumer.connection, consumer.id = self._recorder.open(), 0
        self._subscribe(dice, consumer)
        return True

    def _subscribe(self, dice: random.Random, consumer: Consumer) -> None:
        assert consumer.connection is not None
        keys = {"keySharedMeta": {"keySharedMode": "AUTO_SPLIT", "allowOutOfOrderDelivery": False}}
        consumer.pending = []
        self._here.append(consumer)  # before the response, which messages may accompany
        said = self._recorder.ask(
            consumer.connection, "SUBSCRIBE", topic=self._recorder.topic, subscription="s", subType=self._type,
            consumer_id=consumer.id, consumer_name=consumer.name, priority_level=consumer.priority, durable=True,
            read_compacted=False, initialPosition="Earliest", **(keys if self._type == "Key_Shared" else {}),
        )  # fmt: skip
        if said.get("cmd") != "SUCCESS" and consumer in self._here:
            self._here.remove(consumer)
        self._settle()
        if dice.random() < 0.8:
            self._flow(consumer, dice.choice([1, 2, 3, 5, 10, 1000]))

    def close(self, dice: random.Random) -> bool:
        if not self._here:
            return False
        consumer = self._one(dice)
        self._leave(consumer)
        self._recorder.ask(self._of(consumer), "CLOSE_CONSUMER", consumer_id=consumer.id)
        self._settle()
        return True

    def cut(self, dice: random.Random) -> bool:
        if not self._here:
            return False
        connection = self._of(self._one(dice))
        self._lose(connection)
        self._recorder.cut(connection)
        self._settle()
        return True

    def unload(self, dice: random.Random) -> bool:
        self._recorder.call("PUT", f"{self._recorder.path}/unload")
        self._publisher.create()
        return True

    # -- operations -------------------------------------------------------------------------------------------------

    def flow(self, dice: random.Random) -> bool:
        if not self._here:
            return False
        self._flow(self._one(dice), dice.choice([1, 2, 3, 5, 10]))
        return True

    def ack(self, dice: random.Random) -> bool:
        return self._ack_some(dice, 1)

    def ack_some(self, dice: random.Random) -> bool:
        return self._ack_some(dice, 3)

    def _ack_some(self, dice: random.Random, most: int) -> bool:
        if (consumer := self._holder(dice)) is None:
            return False
        some = dice.sample(consumer.pending, min(most, len(consumer.pending)))
        consumer.pending = [each for each in consumer.pending if each not in some]
        self._ack(dice, consumer, *map(_id, some))
        return True

    def ack_any(self, dice: random.Random) -> bool:
        """Ack any message, whichever consumer has it, even if it is acked."""
        if not self._here or not self._sizes:
            return False
        consumer, message = self._one(dice), dice.choice([*self._sizes])
        consumer.pending = [each for each in consumer.pending if each != message]
        self._ack(dice, consumer, _id(message))
        return True

    def ack_part(self, dice: random.Random) -> bool:
        """Ack one message of a batch."""
        if (consumer := self._holder(dice, batches=True)) is None:
            return False
        message = dice.choice([each for each in consumer.pending if self._sizes[each] > 1])
        size = self._sizes[message]
        bits = self._unacked.get(message, 2**size - 1) & ~(1 << dice.randrange(size))
        self._unacked[message] = bits
        if not bits:
            consumer.pending.remove(message)
        self._ack(dice, consumer, _id(message) | ({"ack_set": [bits], "batch_size": size} if bits else {}))
        return True

    def ack_cumulative(self, dice: random.Random) -> bool:
        if (consumer := self._holder(dice)) is None:
            return False
        last = dice.choice(consumer.pending)
        size = self._sizes[last]
        if size > 1 and dice.random() < 0.4:
            bits = 2**size - 2 ** dice.randrange(1, size)
            self._ack(dice, consumer, _id(last) | {"ack_set": [bits], "batch_size": size}, type_="Cumulative")
        else:
            consumer.pending = [each for each in consumer.pending if each > last]
            self._ack(dice, consumer, _id(last), type_="Cumulative")
        return True

    def nack(self, dice: random.Random) -> bool:
        if (consumer := self._holder(dice)) is None:
            return False
        some = dice.sample(consumer.pending, min(dice.choice([1, 1, 2, 3]), len(consumer.pending)))
        consumer.pending = [each for each in consumer.pending if each not in some]
        self._nack(consumer, some)
        return True

    def nack_all(self, dice: random.Random) -> bool:
        if not self._here:
            return False
        consumer = self._one(dice)
        consumer.pending = []
        self._nack(consumer, [])
        return True

    def seek(self, dice: random.Random) -> bool:
        if not self._here or not self._sizes:
            return False
        consumer = self._one(dice)
        message = _id(dice.choice([*self._sizes]))
        self._recorder.ask(self._of(consumer), "SEEK", consumer_id=consumer.id, message_id=message)
        self._settle()
        return True

    def snapshot(self, dice: random.Random) -> bool:
        self._recorder.snapshot()
        return True

    # -- commands ---------------------------------------------------------------------------------------------------

    def _flow(self, consumer: Consumer, permits: int) -> None:
        if consumer in self._here:
            self._recorder.tell(self._of(consumer), "FLOW", consumer_id=consumer.id, messagePermits=permits)

    def _ack(self, dice: random.Random, consumer: Consumer, *ids: Record, type_: str = "Individual") -> None:
        speak = self._recorder.ask if dice.random() < 0.2 else self._recorder.tell
        speak(self._of(consumer), "ACK", consumer_id=consumer.id, ack_type=type_, message_id=[*ids])

    def _nack(self, consumer: Consumer, messages: list[Message]) -> None:
        self._recorder.tell(
            self._of(consumer), "REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=consumer.id,
            message_ids=[*map(_id, messages)],
        )  # fmt: skip

    def _settle(self) -> None:
        if self._type == "Failover":
            self._recorder.wait(_FAILOVER_SECONDS)

    # -- state ------------------------------------------------------------------------------------------------------

    def _one(self, dice: random.Random) -> Consumer:
        return dice.choice(self._here)

    def _holder(self, dice: random.Random, *, batches: bool = False) -> Consumer | None:
        """A consumer with something to ack, or None."""
        holders = [
            each for each in self._here if any(self._sizes[one] > 1 or not batches for one in each.pending)
        ]
        return dice.choice(holders) if holders else None

    def _of(self, consumer: Consumer) -> int:
        assert consumer.connection is not None
        return consumer.connection

    def _leave(self, consumer: Consumer) -> None:
        self._here.remove(consumer)
        consumer.pending = []
        self._gone.append(consumer)

    def _lose(self, connection: int) -> None:
        for consumer in [each for each in self._here if each.connection == connection]:
            self._leave(consumer)
        for consumer in self._gone:
            if consumer.connection == connection:
                consumer.connection = None

    def _hear(self, record: Record) -> None:
        if record["cmd"] == "_TCP_CLOSE":
            self._lose(record["conn"])
        fields = record["fields"]
        mine = [each for each in self._here
                if (each.connection, each.id) == (record["conn"], fields.get("consumer_id"))]  # fmt: skip
        if record["cmd"] == "CLOSE_CONSUMER":
            for consumer in mine:
                self._leave(consumer)
        elif record["cmd"] == "MESSAGE":
            message = (fields["message_id"]["ledgerId"], fields["message_id"]["entryId"])
            self._sizes[message] = record["metadata"].get("num_messages_in_batch", 1)
            for consumer in mine:
                consumer.pending = [*(each for each in consumer.pending if each != message), message]


def _id(message: Message) -> Record:
    return {"ledgerId": message[0], "entryId": message[1]}
