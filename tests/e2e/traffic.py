"""A synthetic command log with many events in few records: the traffic of the crash tests."""

import random
from collections import defaultdict
from typing import Any

import msgspec
import pyarrow as pa

from schemas.effects import CloseConsumer, CloseProducer, Message
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.log.table import LOGICAL
from streaming.protocol.codec import batch
from tests.broker.kit import feed

TOPICS = [
    f"persistent://public/{name}"
    for name in ("other/carts", "other/prices", "default/users", "other/orders", "default/mails", "default/orders",
                 "default/clicks", "default/logs")
]  # fmt: skip
"""Topics that are spread evenly over three ingress partitions."""

MALFORMED = [
    b"\xff\x00 rubbish",
    b'{"command":"NOPE"}',
    b'{"producer":"p"}',
    b"",
    b'{"producer":1,"sequence_id":1}',
]

SETTINGS: dict[str, Any] = {
    "managedLedgerMaxEntriesPerLedger": 4,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "brokerDeduplicationEnabled": True,
    "brokerDeduplicationEntriesInterval": 5,
    "brokerDeduplicationProducerInactivityTimeoutMinutes": 5,
    "ttlDurationDefaultInSeconds": 90,
    "messageExpiryCheckIntervalInMinutes": 0.5,
    "backlogQuotaCheckIntervalInSeconds": 20,
    "retentionCheckIntervalInSeconds": 30,
    "maxUnackedMessagesPerConsumer": 12,
    "delayedDeliveryTickTimeMillis": 1000,
}  # fmt: skip
HURRIED: dict[str, Any] = {
    "ttlDurationDefaultInSeconds": 3,
    "messageExpiryCheckIntervalInMinutes": 0.02,
    "backlogQuotaCheckIntervalInSeconds": 1,
    "retentionCheckIntervalInSeconds": 1,
}  # fmt: skip
"""Overrides of `SETTINGS` for real time."""

POLICIES: list[tuple[str, Any]] = [
    ("/namespaces/public/other/messageTTL", 40),
    ("/namespaces/public/other/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}),
    (
        "/namespaces/public/default/backlogQuota?backlogQuotaType=destination_storage",
        {"limitSize": 1500, "policy": "consumer_backlog_eviction"},
    ),
]
SUBSCRIPTIONS = {
    1: ("exclusive", "Exclusive"),
    2: ("shared", "Shared"),
    3: ("shared", "Shared"),
    4: ("slow", "Exclusive"),
}
"""Consumer id → its subscription and type. Consumer 4 takes a few messages and acks none."""


class Traffic:
    """Writes the log. Folds it at the same time, because acks need the ids of messages."""

    def __init__(
        self,
        seed: int,
        start: int,
        *,
        step: int = 1500,
        settings: dict[str, Any] | None = None,
        compacts: bool = False,
    ) -> None:
        """`start`: the first timestamp (ms); `step`: the maximum ms between records; `settings` override `SETTINGS`; `compacts`: topics are
        compacted, and readers get compacted data."""
        self._compacts, self._readers = compacts, 0
        self._dice = random.Random(seed)
        self._now, self._step = start, step
        self._broker = Broker(0, NoEntries())
        self._records: list[dict[str, Any]] = []
        self._received: dict[tuple[str, int], list[Message]] = defaultdict(list)
        self._closed: list[tuple[str, int]] = []
        self._sequence: dict[tuple[str, str], int] = defaultdict(int)
        self.say(
            None, {"command": "BROKER_CONFIG", "profile": "4.x", "settings": SETTINGS | (settings or {})}
        )
        for path, body in POLICIES:
            self.say(None, {"command": "ADMIN", "method": "POST", "path": path, "body": body})
        for topic in TOPICS:
            self._connect_producer(topic)
            for consumer in SUBSCRIPTIONS:
                self._subscribe(topic, consumer)

    def write(self, records: int) -> pa.Table:
        """The log (columns `LOGICAL`) once it has at least `records` records."""
        choices = {
            self._publish: 40, self._send: 10, self._ack: 26, self._again: 3, self._malformed: 2, self._redeliver: 2,
            self._seek: 2, self._fault: 3, self._lose: 1, self._check: 3, self._admin: 3, self._wait: 1,
        }  # fmt: skip
        if self._compacts:
            choices |= {self._compact: 6, self._read_compacted: 4}
        while len(self._records) < records:
            self._now += self._dice.randint(0, self._step)
            (action,) = self._dice.choices([*choices], [*choices.values()])
            action(self._dice.choice(TOPICS))
            closed, self._closed = self._closed, []
            for topic, consumer in closed:
                if consumer:
                    self._subscribe(topic, consumer)
                else:
                    self._connect_producer(topic)
        return pa.Table.from_pylist(self._records, LOGICAL)

    def say(self, topic: str | None, value: dict[str, Any] | bytes) -> None:
        encoded = value if isinstance(value, bytes) else msgspec.json.encode(value)
        feed(self._broker, len(self._records), self._now, topic, encoded)
        self._records.append({"timestamp": self._now, "topic": topic, "value": encoded})
        for row in self._broker.take():
            match row.effect:
                case Message() as message:
                    self._received[message.topic, message.consumer_id].append(message)
                case CloseProducer(connection="p") as closed:
                    self._closed.append((closed.topic, 0))
                case CloseConsumer() as closed:
                    self._closed.append((closed.topic, closed.consumer_id))

    def _connection(self, topic: str, consumer: int) -> str:
        return f"c{consumer}-{TOPICS.index(topic)}"

    def _of_consumer(self, topic: str, consumer: int, command: str, **fields: Any) -> None:
        connection = self._connection(topic, consumer)
        self.say(topic, {"command": command, "connection": connection, "consumer_id": consumer, **fields})

    def _subscribe(self, topic: str, consumer: int) -> None:
        self._received.pop((topic, consumer), None)
        name, type_ = SUBSCRIPTIONS[consumer]
        self._of_consumer(
            topic, consumer, "SUBSCRIBE", subscription=name, subType=type_, request_id=len(self._records),
            consumer_name=f"consumer-{consumer}", initialPosition="Earliest",
        )  # fmt: skip
        self._flow(topic, consumer, 3 if consumer == 4 else 10)

    def _flow(self, topic: str, consumer: int, permits: int) -> None:
        self._of_consumer(topic, consumer, "FLOW", messagePermits=permits)

    def _connect_producer(self, topic: str) -> None:
        self.say(topic, {"command": "PRODUCER", "connection": "p", "producer_id": TOPICS.index(topic), "producer_name": "q",
                         "request_id": len(self._records)})  # fmt: skip

    def _publish(self, topic: str, again: int = 0) -> None:
        producer = self._dice.choice(["a", "b"])
        number = self._sequence[topic, producer] = self._sequence[topic, producer] + 1
        value: dict[str, Any] = {
            "producer": producer,
            "sequence_id": max(0, number - again),
            "payload": f"{producer} {number} of {topic} ".ljust(self._dice.randint(40, 200), "."),
        }
        if self._dice.random() < 0.3:
            value["key"] = f"k{number % 3}"
        if self._dice.random() < 0.05:
            value["deliver_at_time"] = self._now + 5000
        self.say(topic, value)

    def _again(self, topic: str) -> None:
        self._publish(topic, again=self._dice.randint(1, 3))

    def _send(self, topic: str) -> None:
        number = self._sequence[topic, "q"] = self._sequence[topic, "q"] + 3
        metadata = {"producer_name": "q", "sequence_id": number - 2, "highest_sequence_id": number,
                    "num_messages_in_batch": 3, "publish_time": self._now}  # fmt: skip
        payload = f"three of {topic} up to {number}"
        if self._compacts:  # which looks into batches
            keys = [{"partition_key": f"k{self._dice.randrange(3)}"} for _ in range(3)]
            payload = batch(keys, [b"one", b"two", b"three"]).decode("ascii")
        self.say(topic, {"command": "SEND", "connection": "p", "producer_id": TOPICS.index(topic), "metadata": metadata,
                         "sequence_id": number - 2, "highest_sequence_id": number, "num_messages": 3,
                         "payload": payload})  # fmt: skip

    def _compact(self, topic: str) -> None:
        path = f"/{topic.replace('://', '/')}/compaction"
        self.say(topic, {"command": "ADMIN", "method": "PUT", "path": path, "connection": "admin"})

    def _read_compacted(self, topic: str) -> None:
        """A reader from the earliest message on, which leaves again."""
        self._readers += 1
        end = 2**64 - 1
        of = {"connection": f"r{self._readers}", "consumer_id": 9}
        self.say(topic, {"command": "SUBSCRIBE", **of, "subscription": f"reader-{self._readers}", "subType": "Exclusive", "request_id": 1,
                         "durable": False, "read_compacted": True, "start_message_id": {"ledgerId": end, "entryId": end}})  # fmt: skip
        self.say(topic, {"command": "FLOW", **of, "messagePermits": self._dice.choice([1, 5, 1000])})
        if self._dice.random() < 0.7:
            self.say(None, {"command": "CONNECTION_LOST", "connection": of["connection"]})

    def _ack(self, topic: str) -> None:
        consumer = self._dice.choice([1, 2, 3])
        messages = self._received[topic, consumer]
        if not messages:
            return self._publish(topic)
        if consumer == 1:
            acked, ids, kind = len(messages), messages[-1:], "Cumulative"
        else:
            self._dice.shuffle(messages)
            acked = self._dice.randint(1, len(messages))
            ids, kind = messages[:acked], "Individual"
        self._received[topic, consumer] = messages[acked:]
        self._of_consumer(topic, consumer, "ACK", ack_type=kind, message_id=[_id(message) for message in ids])
        return self._flow(topic, consumer, acked)

    def _redeliver(self, topic: str) -> None:
        self._received.pop((topic, 2), None)
        self._of_consumer(topic, 2, "REDELIVER_UNACKNOWLEDGED_MESSAGES")

    def _seek(self, topic: str) -> None:
        consumer = self._dice.choice([1, 4])
        to: dict[str, Any] = {"message_publish_time": self._now - 30_000}
        if (messages := self._received[topic, consumer]) and self._dice.random() < 0.5:
            to = {"message_id": _id(messages[0])}
        self._of_consumer(topic, consumer, "SEEK", request_id=len(self._records), **to)

    def _fault(self, topic: str) -> None:
        fault = self._dice.choice(["FailWrites", "DelayWrites", "LoseWrites", "CompleteWrites"])
        self.say(topic, {"command": "FAULT", "fault": fault, "count": self._dice.randint(1, 2)})
        if fault == "DelayWrites":
            for _ in range(3):
                self._publish(topic)
            lost = self._dice.random() < 0.5
            self.say(topic, {"command": "FAULT", "fault": "LoseWrites" if lost else "CompleteWrites"})

    def _lose(self, topic: str) -> None:
        consumer = self._dice.choice([2, 3])
        self.say(None, {"command": "CONNECTION_LOST", "connection": self._connection(topic, consumer)})
        self._closed.append((topic, consumer))

    def _check(self, topic: str) -> None:
        names = ["backlogQuota", "messageExpiry", "consumedLedgers", "deduplicationSnapshot", "cursorFlush"]
        self.say(None, {"command": "RUN_CHECK", "check": self._dice.choice(names)})

    def _admin(self, topic: str) -> None:
        method, rest = self._dice.choice(
            [("PUT", "/unload"), ("POST", "/trim"), ("POST", "/subscription/slow/skip/2"), ("GET", "/stats"),
             ("POST", "/subscription/slow/expireMessages/20"), ("POST", "/subscription/shared/skip/1")]
        )  # fmt: skip
        self.say(
            topic,
            {
                "command": "ADMIN",
                "method": method,
                "path": f"/{topic.replace('://', '/')}{rest}",
                "connection": "admin",
            },
        )

    def _malformed(self, topic: str) -> None:
        self.say(topic, self._dice.choice(MALFORMED))

    def _wait(self, topic: str) -> None:
        """Let time pass."""
        self._now += 20 * self._step
        self.say(None, {"command": "TICK"})


def _id(message: Message) -> dict[str, Any]:
    return {"ledgerId": message.ledger_id, "entryId": message.entry_id}
