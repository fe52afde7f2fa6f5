"""Steady steps, and new entries that go out without a search, are only faster: rows and state are those of `commands`."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import (
    Ack,
    Admin,
    AnyCommand,
    BrokerConfig,
    CloseConsumer,
    CloseProducer,
    ConnectionLost,
    Fault,
    Flow,
    MessageIdData,
    MessageMetadata,
    Producer,
    Publish,
    RedeliverUnacknowledgedMessages,
    Restart,
    Send,
    Subscribe,
    Tick,
    to_json,
)
from schemas.effects import Message, Row
from streaming.broker.broker import Broker
from streaming.broker.dispatch.dispatcher import Dispatcher
from streaming.broker.entries import NoEntries
from streaming.broker.persistent.steady import SteadyTopic
from streaming.broker.position import Position
from tests.broker.kit import QUIET, START, TOPIC, Stored, feed
from tests.broker.random_lives import live
from tests.broker.recorded_lives import NAMES
from tests.examples import examples

pytestmark = pytest.mark.feature("J3")

Log = Sequence[tuple[int, str | None, bytes]]
OTHER = f"{TOPIC}-2"


def stepwise(broker: Broker) -> Broker:
    """A broker without steady steps."""
    broker._persistent.take_steady_step = lambda name, command: False  # type: ignore[method-assign]
    return broker


class Both:
    """A broker with steady steps, and one without. `watched`: somebody watches the acks."""

    def __init__(self, *, watched: bool = False) -> None:
        self.offset = -1
        self.store = Stored()
        self.quick, self.full = Broker(0, self.store), stepwise(Broker(0, self.store))
        self.watched = watched
        self.watch()

    def watch(self) -> None:
        for broker in (self.quick, self.full):
            if self.watched:
                broker.watch_acks()

    def feed(self, *record: Any) -> list[Row]:
        """The rows of a record, which are the same from both."""
        self.offset += 1
        feed(self.quick, self.offset, *record)
        with mock.patch.object(Dispatcher, "sends_at_once", False):  # it searches for each new entry
            feed(self.full, self.offset, *record)
        assert self.quick.take_acks() == self.full.take_acks(), f"record {self.offset}"
        rows = self.quick.take()
        assert rows == self.full.take(), f"record {self.offset}"
        self.store.add([row.effect for row in rows])
        return rows

    def cut(self) -> None:
        """The states are equal, and both go on from theirs."""
        state = self.quick.encode()
        assert state == self.full.encode(), f"after record {self.offset}"
        self.quick, self.full = Broker.decode(state, self.store), stepwise(Broker.decode(state, self.store))
        self.watch()


@pytest.mark.parametrize(("theme", "seed"), NAMES[2::4])
def test_in_random_lives(theme: str, seed: int) -> None:
    log, expected, *_ = live(theme, seed)
    both = Both()
    for record, rows in zip(log, expected, strict=True):
        assert both.feed(*record) == rows
    both.cut()


# -- traffic: clients that mostly publish and acknowledge ---------------------------------------------------------------

SETTINGS: dict[str, list[Any]] = {
    "managedLedgerMaxEntriesPerLedger": [3, 7, 50_000],
    "brokerDeduplicationEnabled": [True, False],
    "brokerDeduplicationEntriesInterval": [2, 5, 1000],
    "maxUnackedMessagesPerConsumer": [0, 2, 5, 50_000],
    "maxUnackedMessagesPerSubscription": [0, 4, 200_000],
    "maxUnackedMessagesPerBroker": [0, 0, 6],
    "managedLedgerDefaultMarkDeleteRateLimit": [0, 0.5, 1],
    "managedLedgerMaxLedgerRolloverTimeMinutes": [1, 240],
    "managedLedgerMinLedgerRolloverTimeMinutes": [0, 10],
    "statsUpdateFrequencyInSecs": [1, 60],
    "retentionCheckIntervalInSeconds": [0, 5],
    "ttlDurationDefaultInSeconds": [0, 3],
    "acknowledgmentAtBatchIndexLevelEnabled": [True, False],
    "dispatcherMaxReadBatchSize": [1, 2, 100],
    "preciseDispatcherFlowControl": [True, False],
    "maxEffectsPerCommand": [0, 2, 3, 20],
    "maxMessageSize": [60, 5_242_880],
    "maxMessagesPerBatch": [2, 1000],
    "subscriptionKeySharedUseClassicPersistentImplementation": [False, False, True],
    "dispatchThrottlingRatePerTopicInMsg": [0, 0, 0, 3],
    "brokerEntryMetadataInterceptors": ["", "", "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"],
    "delayedDeliveryEnabled": [True, True, False],
}  # fmt: skip


POLICIES: list[tuple[str, Any]] = [
    ("deduplication", True), ("deduplication", False), ("messageTTL", 2), ("maxUnackedMessagesPerConsumer", 1),
    ("dispatchRate", {"dispatchThrottlingRateInMsg": 2, "ratePeriodInSecond": 1}), ("encryptionRequired", True),
    ("encryptionRequired", False), ("publishRate", {"publishThrottlingRateInMsg": 1}),
]  # fmt: skip


class Traffic:
    """Two topics with clients that do what clients do, drawn from a seed. `odd`: the share of other commands."""

    def __init__(self, seed: int, odd: float) -> None:
        self.one, self.odd = Random(seed), odd
        self.unrest = self.one.choice([0.02, 0.3])  # how often time goes on
        self.unusual = self.one.choice([0, 0.1, 0.4])  # the share of settings that are drawn
        self.now, self.id = START, 0
        self.got: list[tuple[str, str, int, Position]] = []  # topic, connection, consumer, position
        self.consumers: list[tuple[str, str, int]] = []

    def settings(self) -> BrokerConfig:
        drawn = {
            name: self.one.choice(values)
            for name, values in SETTINGS.items()
            if self.one.random() < self.unusual
        }
        profile = self.one.choice(["4.x", "4.x", "4.x", "2.10", "5.0"])
        return BrokerConfig(profile=profile, settings={**(QUIET if self.one.random() < 0.5 else {}), **drawn})  # type: ignore[arg-type]

    def beginning(self) -> Iterator[tuple[str | None, AnyCommand | Publish]]:
        yield None, self.settings()
        for topic in (TOPIC, OTHER):
            yield topic, Producer(connection="p", producer_id=1, request_id=1, producer_name="sender")
            for number in range(self.one.choice([0, 1, 1, 2, 3])):
                type_ = self.one.choice(["Exclusive", "Failover", "Shared", "Key_Shared"])
                for each in range(1 if type_ == "Exclusive" else self.one.randint(1, 3)):
                    yield topic, self.subscribe(topic, f"s{number}", type_, each)
        for topic, connection, consumer in list(self.consumers):
            yield topic, self.flow(connection, consumer, self.one.choice([1, 3, 1000]))

    def subscribe(self, topic: str, name: str, type_: Any, number: int) -> Subscribe:
        consumer = topic, f"c{number}", self.id
        self.consumers.append(consumer)
        self.id += 1
        return Subscribe(
            connection=consumer[1], consumer_id=consumer[2], request_id=1, subscription=name, subType=type_,
            initialPosition=self.one.choice(["Earliest", "Latest"]), consumer_name=f"n{number}",
            durable=self.one.random() < 0.9, priority_level=self.one.choice([0, 0, 0, 1]),
        )  # fmt: skip

    def flow(self, connection: str, consumer: int, permits: int) -> Flow:
        return Flow(connection=connection, consumer_id=consumer, messagePermits=permits)

    def records(self, count: int) -> Iterator[tuple[str | None, AnyCommand | Publish]]:
        yield from self.beginning()
        usual: list[Callable[[], tuple[str | None, AnyCommand | Publish]]] = [
            self.publish,
            self.send,
            self.ack,
            self.ack,
            self.permit,
        ]
        others = [
            self.leave,
            self.join,
            self.again,
            self.close,
            self.lose,
            self.fault,
            self.policy,
            self.restart,
            self.tick,
            self.unload,
        ]
        for _ in range(count):
            if self.one.random() < self.unrest:
                self.now += self.one.choice([1, 10, 400, 5_000, 70_000])
            chosen = self.one.choice(others if self.one.random() < self.odd else usual)
            yield chosen()

    def rows(self, rows: list[Row]) -> None:
        """Note what was delivered."""
        for row in rows:
            if isinstance(effect := row.effect, Message):
                at = Position(effect.ledger_id, effect.entry_id)
                self.got.append((effect.topic, effect.connection, effect.consumer_id, at))

    def rarely(self, chance: float, *fields: dict[str, Any]) -> dict[str, Any]:
        """Some of the fields of a command that is not plain."""
        return self.one.choice(fields) if self.one.random() < chance else {}

    def topic(self) -> str:
        return self.one.choice([TOPIC, TOPIC, OTHER])

    def publish(self) -> tuple[str, Publish]:
        self.id += self.one.choice([1, 1, 1, 0])
        return self.topic(), Publish(
            producer=self.one.choice(["short", "form", "sender"]), sequence_id=self.id, payload=self.one.choice(["", "x" * 70]),
            key=self.one.choice([None, "", "ö", *map(str, range(5))]), publish_time=self.one.choice([None, None, 5]),
            **self.rarely(0.05, {"event_time": 1}, {"properties": {"a": "b"}}, {"deliver_at_time": self.now + 3_000}),
        )  # fmt: skip

    def send(self) -> tuple[str, Send]:
        self.id += self.one.choice([1, 1, 1, 0])
        messages = self.one.choice([1, 1, 3])
        more: dict[str, Any] = {"num_messages_in_batch": messages} if messages > 1 else {}
        more |= self.rarely(
            0.1, {"deliver_at_time": self.now + 2_000}, {"marker_type": 10}, {"compression": "LZ4", "uncompressed_size": 1},
            {"uuid": "u", "chunk_id": 0, "num_chunks_from_msg": 1, "total_chunk_msg_size": 1}, {"ordering_key": b"k"},
        )  # fmt: skip
        metadata = MessageMetadata(
            "sender", self.id, self.now, partition_key=self.one.choice([None, "k", "l", "m"]), **more
        )
        return self.topic(), Send(
            connection="p", producer_id=self.one.choice([1] * 20 + [2]), sequence_id=self.id, num_messages=messages, metadata=metadata,
            highest_sequence_id=self.one.choice([None, None, self.id, self.id + 2, self.id - 1]), payload=self.one.choice(["yyy", ""]),
            **self.rarely(0.02, {"fails": True}, {"txnid_least_bits": 1}),
        )  # fmt: skip

    def ack(self) -> tuple[str | None, AnyCommand | Publish]:
        if not self.got:
            return self.publish()
        place = self.one.choice([0, 0, self.one.randrange(len(self.got))])
        take = self.got.pop if self.one.random() < 0.95 else self.got.__getitem__
        topic, connection, consumer, position = take(place)
        positions = [position]
        if self.one.random() < 0.1:
            positions.append(Position(position.ledger, position.entry + self.one.choice([-1, 1, 100])))
        ack_set = [self.one.choice([0, 1, 6])] if self.one.random() < 0.1 else []
        ids = [
            MessageIdData(ledgerId=at.ledger, entryId=at.entry, ack_set=ack_set)
            for at in positions
            if at.entry >= 0
        ]
        kind: Any = "Cumulative" if self.one.random() < 0.15 else "Individual"
        if kind == "Cumulative":
            ids = ids[:1]
        request = self.one.choice([None, None, 7])
        return topic, Ack(
            connection=connection, consumer_id=consumer, ack_type=kind, message_id=ids, request_id=request
        )

    def permit(self) -> tuple[str | None, AnyCommand | Publish]:
        if not self.consumers:
            return self.publish()
        topic, connection, consumer = self.one.choice(self.consumers)
        return topic, self.flow(connection, consumer, self.one.choice([1, 2, 50]))

    def leave(self) -> tuple[str | None, AnyCommand | Publish]:
        if not self.consumers:
            return self.join()
        topic, connection, consumer = self.consumers.pop(self.one.randrange(len(self.consumers)))
        return topic, CloseConsumer(connection=connection, consumer_id=consumer, request_id=2)

    def join(self) -> tuple[str, Subscribe]:
        topic = self.topic()
        return topic, self.subscribe(
            topic, f"s{self.one.randrange(3)}", self.one.choice(["Exclusive", "Shared", "Key_Shared"]), 9
        )

    def again(self) -> tuple[str | None, AnyCommand | Publish]:
        if not self.consumers:
            return self.join()
        topic, connection, consumer = self.one.choice(self.consumers)
        return topic, RedeliverUnacknowledgedMessages(connection=connection, consumer_id=consumer)

    def close(self) -> tuple[str, AnyCommand]:
        if self.one.random() < 0.5:
            return self.topic(), CloseProducer(connection="p", producer_id=1, request_id=3)
        return self.topic(), Producer(connection="p", producer_id=1, request_id=4, producer_name="sender")

    def lose(self) -> tuple[None, ConnectionLost]:
        connection = self.one.choice(["c0", "c1", "c9", "p"])
        self.consumers = [each for each in self.consumers if each[1] != connection]
        return None, ConnectionLost(connection=connection)

    def fault(self) -> tuple[str, Fault]:
        kind: Any = self.one.choice(
            ["FailWrites", "DelayWrites", "CompleteWrites", "CompleteWrites", "LoseWrites"]
        )
        return self.topic(), Fault(fault=kind, count=1)

    def policy(self) -> tuple[None, Admin]:
        name, body = self.one.choice(POLICIES)
        return None, Admin(method="POST", path=f"/namespaces/public/default/{name}", body=body)

    def restart(self) -> tuple[None, Restart]:
        self.consumers = []
        return None, Restart()

    def tick(self) -> tuple[None, Tick]:
        return None, Tick()

    def unload(self) -> tuple[None, Admin]:
        return None, Admin(method="PUT", path="/" + self.topic().replace("://", "/") + "/unload")


def carried_out(seed: int, odd: float, count: int, *, watched: bool) -> int:
    """Traffic on both brokers. Returns how many steady steps there were."""
    steps = 0

    def counted(original: Any) -> Any:
        def step(*arguments: Any) -> Any:
            nonlocal steps
            taken = original(*arguments)
            steps += taken
            return taken

        return step

    both, traffic = Both(watched=watched), Traffic(seed, odd)
    with mock.patch.multiple(
        SteadyTopic, publish=counted(SteadyTopic.publish), send=counted(SteadyTopic.send),
        acknowledge=counted(SteadyTopic.acknowledge),
    ):  # fmt: skip
        for topic, command in traffic.records(count):
            traffic.rows(both.feed(traffic.now, topic, to_json(command)))
            if traffic.one.random() < 0.02:
                both.cut()
    both.cut()
    return steps


@given(seed=st.integers(0, 2**32 - 1), odd=st.sampled_from([0, 0.02, 0.1]), watched=st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_a_steady_step_is_only_faster(seed: int, odd: float, watched: bool) -> None:
    carried_out(seed, odd, 150, watched=watched)


def test_the_topic_of_a_steady_step_is_at_work() -> None:
    """So that a failure names it, and not the topic of the record before."""
    broker = Broker(0, NoEntries())
    for number, topic in enumerate([TOPIC] * 3 + [OTHER, TOPIC]):
        feed(broker, number, START, topic, to_json(Publish(producer="p", sequence_id=number)))
        assert broker.at_work == topic


def test_much_of_what_happens_is_a_steady_step() -> None:
    steps = [carried_out(seed, 0.02, 300, watched=False) for seed in range(20)]
    assert sum(steps) > 0.15 * 300 * len(steps), steps
