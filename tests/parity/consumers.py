"""Consumers of one or several subscriptions that join, receive, ack, nack, seek and leave at random, and readers."""

import random
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.parity.publisher import Publisher
from tests.parity.recorder import Record, Recorder

TYPES = {"exclusive": "Exclusive", "failover": "Failover", "shared": "Shared", "key_shared": "Key_Shared"}

_MOST = 4
"""The maximum number of consumers of a subscription at a time."""
_FAILOVER_SECONDS = 1.3
"""The broker's delay before another consumer becomes active, plus a margin."""

_ENDS = {"earliest": 2**64 - 1, "latest": 2**63 - 1}
"""The ledger and entry ids of a topic's ends. The former is −1 as an unsigned number."""


class Message(NamedTuple):
    """An entry that was delivered, with the ledger's id as recorded."""

    topic: str
    ledger: int
    entry: int

    @property
    def id(self) -> Record:
        """As in a command."""
        return {"ledgerId": self.ledger, "entryId": self.entry}


@dataclass(slots=True, eq=False)
class Consumer:
    """`connection` is None while it is gone, before it reconnects. `pending`: what it received but has not acked.

    `fields`: what its SUBSCRIBE has besides.
    """

    connection: int | None
    id: int
    topic: str
    subscription: str
    fields: Record
    pending: list[Message] = field(default_factory=list)


class Consumers:
    """Consumers of a topic. Each operation of a plan is a method, which returns whether there was anything to do.

    `types`: the type of each subscription by its name. `delivered`: every message so far, once. `txn`: the transaction in which
    they ack, if any. `compacted`: the share of those that ask for compacted data, which the broker refuses to some types.
    """

    def __init__(
        self,
        recorder: Recorder,
        publisher: Publisher,
        types: dict[str, str],
        priorities: list[int],
        compacted: float = 0,
    ) -> None:
        self._recorder, self._publisher = recorder, publisher
        self._types, self._priorities, self._compacted = types, priorities, compacted
        self.names = [*types]
        self.delivered: list[Message] = []
        self._here: list[Consumer] = []
        self._gone: list[Consumer] = []
        self._sizes: dict[Message, int] = {}  # messages in each entry that was delivered
        self._unacked: dict[tuple[str, Message], int] = {}  # for a batch, the bits of the unacked messages
        self._readers = 0
        self.txn: Record = {}
        recorder.listeners.append(self._hear)

    # -- joining and leaving ----------------------------------------------------------------------------------------

    def join(self, dice: random.Random) -> bool:
        name = dice.choice(self.names)
        if sum(each.subscription == name for each in self._here) >= _MOST:
            return False
        type_ = self._types[name]
        if len(self.names) > 1 and dice.random() < 0.1:  # which it may refuse
            type_ = dice.choice([*TYPES.values()])
        # Two consumers may have the same name.
        fields = {"subType": type_, "consumer_name": dice.choice("abcd"), "priority_level": dice.choice(self._priorities),
                  "durable": True, "initialPosition": dice.choice(["Earliest", "Earliest", "Latest"])}  # fmt: skip
        if type_ == "Key_Shared":
            fields["keySharedMeta"] = _key_shared(dice)
        self._join(dice, name, fields)
        return True

    def read(self, dice: random.Random) -> bool:
        """A reader: a subscription that is not durable, from either end or from a message."""
        topic = dice.choice(self._recorder.topics)
        known = [each.id for each in self.delivered if each.topic == topic]
        start = dice.choice([*({"ledgerId": end, "entryId": end} for end in _ENDS.values()), *known[-6:]])
        self._readers += 1
        fields = {"subType": dice.choice(["Exclusive", "Exclusive", "Shared"]), "consumer_name": dice.choice("abcd"),
                  "priority_level": 0, "durable": False, "start_message_id": start,
                  "initialPosition": dice.choice(["Earliest", "Latest"])}  # fmt: skip
        if dice.random() < 0.15:
            fields["start_message_rollback_duration_sec"] = dice.choice([2, 30, 1000])
        self._join(dice, f"r{self._readers}", fields, topic)
        return True

    def _join(self, dice: random.Random, subscription: str, fields: Record, topic: str | None = None) -> None:
        others = [each for each in self._recorder.connections if each != self._publisher.connection]
        connection = dice.choice(others) if others and dice.random() < 0.4 else self._recorder.open()
        taken = {each.id for each in (*self._here, *self._gone) if each.connection == connection}
        id_ = next(id_ for id_ in range(99) if id_ not in taken)
        topic = dice.choice(self._recorder.topics) if topic is None else topic
        single = fields["subType"] in ("Exclusive", "Failover")
        compacted = self._compacted > 0 and dice.random() < (self._compacted if single else 0.05)
        fields["read_compacted"] = compacted
        self._subscribe(dice, Consumer(connection, id_, topic, subscription, fields))

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
        consumer.pending = []
        self._here.append(consumer)  # before the response, which messages may accompany
        said = self._recorder.ask(
            consumer.connection, "SUBSCRIBE", topic=consumer.topic, subscription=consumer.subscription,
            consumer_id=consumer.id, **consumer.fields,
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
        self._recorder.cut(self._of(self._one(dice)))
        self._settle()
        return True

    def unsubscribe(self, dice: random.Random) -> bool:
        if not self._here:
            return False
        consumer = self._one(dice)
        said = self._recorder.ask(self._of(consumer), "UNSUBSCRIBE", consumer_id=consumer.id)
        if said.get("cmd") == "SUCCESS" and consumer in self._here:
            self._leave(consumer)
        self._settle()
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
        self._ack(dice, consumer, *(each.id for each in some))
        return True

    def ack_any(self, dice: random.Random) -> bool:
        """Ack any message, whichever consumer has it, even if it is acked."""
        if not self._here:
            return False
        consumer = self._one(dice)
        if (message := self._any(dice, consumer)) is None:
            return False
        consumer.pending = [each for each in consumer.pending if each != message]
        self._ack(dice, consumer, message.id)
        return True

    def ack_part(self, dice: random.Random) -> bool:
        """Ack one message of a batch."""
        if (consumer := self._holder(dice, batches=True)) is None:
            return False
        message = dice.choice([each for each in consumer.pending if self._sizes[each] > 1])
        size = self._sizes[message]
        key = (consumer.subscription, message)
        bits = self._unacked.get(key, 2**size - 1) & ~(1 << dice.randrange(size))
        self._unacked[key] = bits
        if not bits:
            consumer.pending.remove(message)
        self._ack(dice, consumer, message.id | ({"ack_set": [bits], "batch_size": size} if bits else {}))
        return True

    def ack_cumulative(self, dice: random.Random) -> bool:
        if (consumer := self._holder(dice)) is None:
            return False
        last = dice.choice(consumer.pending)
        size = self._sizes[last]
        if size > 1 and dice.random() < 0.4:
            bits = 2**size - 2 ** dice.randrange(1, size)
            self._ack(dice, consumer, last.id | {"ack_set": [bits], "batch_size": size}, type_="Cumulative")
        else:
            consumer.pending = [each for each in consumer.pending if each > last]
            self._ack(dice, consumer, last.id, type_="Cumulative")
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
        """Seek to a message, to an end of the topic, or to a time."""
        if not self._here:
            return False
        consumer, where = self._one(dice), dice.random()
        message = self._any(dice, consumer)
        if where < 0.2:
            there: Record = {
                "message_publish_time": int((time.time() - dice.choice([0, 2, 10, 60, 10000])) * 1000)
            }
        elif where < 0.4 or message is None:
            end = dice.choice([*_ENDS.values()])
            there = {"message_id": {"ledgerId": end, "entryId": end}}
        else:
            there = {"message_id": message.id}
        self._recorder.ask(self._of(consumer), "SEEK", consumer_id=consumer.id, **there)
        self._settle()
        return True

    def last_message_id(self, dice: random.Random) -> bool:
        if not self._here:
            return False
        consumer = self._one(dice)
        self._recorder.ask(self._of(consumer), "GET_LAST_MESSAGE_ID", consumer_id=consumer.id)
        return True

    # -- commands ---------------------------------------------------------------------------------------------------

    def _flow(self, consumer: Consumer, permits: int) -> None:
        if consumer in self._here:
            self._recorder.tell(self._of(consumer), "FLOW", consumer_id=consumer.id, messagePermits=permits)

    def _ack(self, dice: random.Random, consumer: Consumer, *ids: Record, type_: str = "Individual") -> None:
        speak = self._recorder.ask if dice.random() < 0.2 or self.txn else self._recorder.tell
        speak(
            self._of(consumer), "ACK", consumer_id=consumer.id, ack_type=type_, message_id=[*ids], **self.txn
        )

    def _nack(self, consumer: Consumer, messages: list[Message]) -> None:
        self._recorder.tell(
            self._of(consumer), "REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=consumer.id,
            message_ids=[each.id for each in messages],
        )  # fmt: skip

    def _settle(self) -> None:
        if any(each.fields["subType"] == "Failover" for each in (*self._here, *self._gone)):
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

    def _any(self, dice: random.Random, consumer: Consumer) -> Message | None:
        """A message that was delivered from the consumer's topic, or None."""
        known = [each for each in self.delivered if each.topic == consumer.topic]
        return dice.choice(known) if known else None

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
            for consumer in mine:
                position = fields["message_id"]
                message = Message(consumer.topic, position["ledgerId"], position["entryId"])
                if message not in self._sizes:
                    self.delivered.append(message)
                self._sizes[message] = record["metadata"].get("num_messages_in_batch", 1)
                consumer.pending = [*(each for each in consumer.pending if each != message), message]


def _key_shared(dice: random.Random) -> Record:
    """Mostly the same policy, since a consumer with another one is refused."""
    meta: Record = {"keySharedMode": "AUTO_SPLIT", "allowOutOfOrderDelivery": False}
    if dice.random() < 0.05:
        meta["allowOutOfOrderDelivery"] = True
    elif dice.random() < 0.05:
        meta |= {"keySharedMode": "STICKY", "hashRanges": [{"start": 0, "end": 65535}]}
    return meta
