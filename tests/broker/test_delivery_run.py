"""Delivery runs are only faster: rows and state are those of the scalar step, for any log and any cuts."""

from collections.abc import Iterator, Sequence
from itertools import chain
from random import Random
from typing import Any, get_args
from unittest import mock

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import logs
from schemas.commands import (
    Ack,
    Admin,
    BrokerConfig,
    CloseConsumer,
    Flow,
    KeyValue,
    MessageIdData,
    MessageMetadata,
    Producer,
    Publish,
    RedeliverUnacknowledgedMessages,
    Seek,
    Send,
    Subscribe,
    SubType,
    Unsubscribe,
    to_binary,
)
from sinks.rows import to_tables
from streaming.broker.broker import Broker
from streaming.broker.context import ROWS
from streaming.broker.dispatch.dispatcher import Dispatcher
from streaming.broker.persistent import delivery_run
from streaming.broker.persistent.delivery_run import DeliveryRun, Stretch
from streaming.fold import columns, plain_layout
from streaming.fold import publishes as publish_columns
from streaming.fold.columns import PartitionFold
from streaming.fold.records import FoldError, Records
from streaming.quality.gate import decode_only
from tests.broker.kit import START, TOPIC, Stored, feed
from tests.broker.random_lives import live
from tests.broker.recorded_lives import NAMES
from tests.broker.test_publish_run import Store, records_of
from tests.broker.test_steady import Traffic, stepwise
from tests.examples import examples

pytestmark = pytest.mark.feature("J3")


def scalar(records: Records, cuts: Sequence[int]) -> tuple[list[Any], list[bytes]]:
    """The rows and the state of each micro-batch, without runs or steady steps."""
    store, rows, states = Stored(), [], []
    broker = stepwise(Broker(0, store))
    with mock.patch.object(Dispatcher, "sends_at_once", False):
        for start, stop in zip([0, *cuts], [*cuts, len(records.offsets)], strict=True):
            for at in range(start, stop):
                feed(broker, *(column[at] for column in records))  # type: ignore[arg-type]
            rows.append(broker.take())
            store.add([row.effect for row in rows[-1]])
            states.append(broker.encode())
            broker = stepwise(Broker.decode(states[-1], store))
    return rows, states


def same(records: Records, cuts: Sequence[int]) -> int:
    """Holds a fold equal to the scalar step. Returns how many records its delivery runs took."""
    rows, states = scalar(records, cuts)
    store, before, steps, taken = Store(), None, 0, 0
    fold = DeliveryRun.fold

    def counted(run: DeliveryRun, around: Any, stretch: Stretch, step: Any) -> None:
        nonlocal taken

        def one(record: int) -> None:
            nonlocal steps
            steps += 1
            step(record)

        fold(run, around, stretch, one)
        taken += stretch.stop - stretch.start

    with mock.patch.object(DeliveryRun, "fold", counted):
        for expected, state, start, stop in zip(
            rows, states, [0, *cuts], [*cuts, len(records.offsets)], strict=True
        ):
            own = PartitionFold(0, store, before, judge=decode_only)
            own.apply(records.piece(start, stop))
            found = {kind: table.to_pylist() for kind, table in own.rows().items()}
            wanted = {kind: table.to_pylist() for kind, table in to_tables(0, expected).items()}
            assert found == wanted, (start, stop)
            before = own.state()
            assert before.broker == state, (start, stop)
            store.stored.add([row.effect for row in expected])
    return taken - steps


class PlainTraffic(Traffic):
    """Traffic of which much is plain: all publishes are in one form, most have nothing but a key, and most acks name one entry that was
    delivered."""

    def __init__(self, seed: int, odd: float) -> None:
        super().__init__(seed, odd)
        self.form = self.one.choice(["short", "SEND"])
        self.unusual = self.one.choice([0, 0, 0.15])
        self.strange = self.one.choice([0, 0.02])
        self.rich = self.one.choice([1, 100])  # in permits
        self.batches = self.one.choice([0, 0.5])
        self.lists = self.one.choice([0, 0.3])

    def flow(self, connection: str, consumer: int, permits: int) -> Flow:
        return super().flow(connection, consumer, permits * self.rich)

    def permit(self) -> tuple[str | None, Any]:
        return self.publish() if self.rich > 1 and self.one.random() < 0.9 else super().permit()

    def publish(self) -> tuple[str, Any]:
        if self.form == "SEND" or self.one.random() < self.strange:
            return super().publish() if self.form == "short" else self.plain_send()
        self.id += self.one.choice([1] * 30 + [0])
        return self.topic(), Publish(
            producer=self.one.choice(["short", "form"]), sequence_id=self.id, payload_bytes=self.one.choice([b"x", b"x" * 50]),
            key=self.one.choice([None, "", "ö", *map(str, range(5))]) if self.id % 2 else None,
        )  # fmt: skip

    def send(self) -> tuple[str, Any]:
        return super().send() if self.one.random() < self.strange else self.publish()

    def plain_send(self) -> tuple[str, Send]:
        self.id += self.one.choice([1] * 30 + [0])
        metadata = MessageMetadata(
            "sender", self.id, self.now, partition_key=self.one.choice([None, "k", "l", "m"])
        )
        send = Send(
            connection="p", producer_id=1, sequence_id=self.id, metadata=metadata, payload_bytes=b"yyy"
        )
        if self.one.random() < self.batches:
            send.num_messages = metadata.num_messages_in_batch = self.one.choice([1, 2, 3])
            send.highest_sequence_id = self.one.choice([None, self.id + send.num_messages - 1, self.id - 1])
            metadata.highest_sequence_id = send.highest_sequence_id
            self.id += send.num_messages - 1
            match self.one.randrange(6):
                case 0:
                    metadata.ordering_key = self.one.choice([b"k", b"o"])
                case 1:
                    metadata.partition_key_b64_encoded = True
                case 2:
                    metadata.properties, metadata.event_time = [KeyValue("ö", "1")], 7
                case 3:
                    metadata.compression, metadata.uncompressed_size = self.one.choice(["LZ4", "NONE"]), 2
                case 4:
                    metadata.uncompressed_size = self.one.choice([3, 300])
                case 5:
                    send.num_messages += self.one.choice([0, 0, 0, 1])
        return self.topic(), send

    def ack(self) -> tuple[str | None, Any]:
        if not self.got or self.one.random() < self.strange:
            return super().ack()
        topic, connection, consumer, position = self.got.pop(
            self.one.choice([0, 0, 0, self.one.randrange(len(self.got))])
        )
        kind: Any = "Cumulative" if self.one.random() < 0.1 else "Individual"
        ids = [MessageIdData(ledgerId=position.ledger, entryId=position.entry)]
        if self.one.random() < self.lists:
            ids[0].ack_set = self.one.choice([[], [0], [0, 2], [1], [5], [-1]])
            if ids[0].ack_set:  # the rest of it follows, mostly
                self.got.append((topic, connection, consumer, position))
            known = 3 if self.one.random() < 0.9 else 1
            same = [each for each in self.got if each[:known] == (topic, connection, consumer)[:known]]
            for each in same[: self.one.randrange(3)]:
                ids.append(MessageIdData(ledgerId=each[3].ledger, entryId=each[3].entry))
                ids[-1].ack_set = self.one.choice([[], [], [3]])
                if not ids[-1].ack_set:
                    self.got.remove(each)
            self.one.shuffle(ids)
        return topic, Ack(connection=connection, consumer_id=consumer, ack_type=kind, message_id=ids)


class EdgeTraffic(PlainTraffic):
    """Up to five topics with up to nine subscriptions of up to ten consumers, and now and then something at the edge of a decision: ids of 64
    bits, permits that are too many, a consumer of another topic, epochs, a clock that jumps, whatever ends a subscription or a topic."""

    INTEGERS = (0, 1, 2**31 - 1, 2**31, 2**53, 2**63 - 1)

    def __init__(self, seed: int, odd: float) -> None:
        super().__init__(seed, odd)
        self.topics = [f"{TOPIC}-{number}" for number in range(self.one.choice([1, 2, 5]))]
        self.subscriptions, self.most = self.one.choice([0, 1, 1, 2, 8, 9]), self.one.choice([1, 2, 10])
        self.wild, self.jumps = self.one.choice([0, 0.02, 0.2]), self.one.choice([0, 0.01])

    def topic(self) -> str:
        return self.one.choice(self.topics)

    def beginning(self) -> Iterator[tuple[str | None, Any]]:
        yield None, self.settings()
        for topic in self.topics:
            yield topic, Producer(connection="p", producer_id=1, request_id=1, producer_name="sender")
            for number in range(self.subscriptions):
                type_ = self.one.choice(get_args(SubType))
                for each in range(1 if type_ == "Exclusive" else self.one.randint(1, self.most)):
                    yield topic, self.subscribe(topic, f"s{number}", type_, each)
        for topic, connection, consumer in list(self.consumers):
            yield topic, self.flow(connection, consumer, self.one.choice([1, 3, 1000]))

    def subscribe(self, topic: str, name: str, type_: Any, number: int) -> Subscribe:
        found = super().subscribe(topic, name, type_, number)
        if type_ in ("Exclusive", "Failover") and self.one.random() < 0.2:
            found.consumer_epoch = self.one.choice([0, 5, 2**63 - 1])
        return found

    def records(self, count: int) -> Iterator[tuple[str | None, Any]]:
        for each in super().records(count):
            if self.one.random() < self.jumps:
                self.now = max(0, self.now + self.one.choice([-(10**9), -1, 10**7, 10**9]))
            if self.one.random() < self.wild:
                yield self.at_an_edge()
            yield each

    def at_an_edge(self) -> tuple[str | None, Any]:
        draw, other = self.one, self.topic()
        topic, connection, consumer = draw.choice(self.consumers or [(other, "c0", 3)])
        of: Any = {"connection": connection, "consumer_id": consumer}
        id_ = MessageIdData(
            draw.choice([1, 2, 2, 3, *self.INTEGERS]), draw.choice([*range(40), *self.INTEGERS])
        )
        kind: Any = draw.choice(["Individual", "Cumulative"])
        permits = draw.choice([0, -1, 500_000, 1_000_000, 2**31 - 1])
        epoch = draw.choice([None, 0, 2**63 - 1])
        sequence_id, name = draw.choice([-(2**63), -1, *self.INTEGERS]), draw.choice(["short", "new"])
        metadata = MessageMetadata(
            "sender", 1, draw.choice([0, self.now, 2**53]), partition_key=draw.choice([None, "q"])
        )
        if draw.random() < 0.5:
            return topic, Ack(ack_type=kind, message_id=[id_], **of)
        return draw.choice([
            (draw.choice([topic, other]), Ack(ack_type=kind, message_id=[id_] * draw.choice([0, 1, 2]), **of)),
            (topic, Flow(messagePermits=permits, **of)),
            (topic, RedeliverUnacknowledgedMessages(message_ids=[id_] * draw.choice([0, 1]), consumer_epoch=epoch, **of)),
            (topic, Seek(request_id=5, message_id=MessageIdData(1, 2), **of)),
            (topic, Unsubscribe(request_id=5, force=True, **of)),
            (topic, CloseConsumer(request_id=5, **of)),
            (other, Publish(producer=name, sequence_id=sequence_id, payload="z", publish_time=draw.choice([None, 0, 2**53]))),
            (other, Send(connection="p", producer_id=1, sequence_id=sequence_id, metadata=metadata, payload="p")),
            (None, Admin(method="DELETE", path=f"/{other.replace('://', '/')}?force=true")),
            (None, Admin(method="POST", path="/namespaces/public/default/retention", body={"retentionTimeInMinutes": 1, "retentionSizeInMB": 1})),
        ])  # fmt: skip


def traffic(drawn: Traffic, count: int, **settings: Any) -> Records:
    """The log of clients that mostly publish and acknowledge, with other `settings` of the broker. See `Traffic`."""
    broker, log = Broker(0, store := Stored()), []
    now = START
    first = [(None, BrokerConfig(settings=settings))] if settings else []
    for offset, (topic, command) in enumerate(chain(first, drawn.records(count))):
        log.append((drawn.now - now, topic, command))
        now = drawn.now
        feed(broker, offset, now, topic, to_binary(command))
        rows = broker.take()
        store.add([row.effect for row in rows])
        drawn.rows(rows)
    return records_of(log)


def cuts_of(seed: int, size: int) -> list[int]:
    dice = Random(seed)
    return sorted({dice.randrange(1, size) for _ in range(dice.choice([0, 1, 3]))})


@given(
    kind=st.sampled_from([PlainTraffic, PlainTraffic, PlainTraffic, Traffic]),
    seed=st.integers(0, 2**32 - 1),
    odd=st.sampled_from([0, 0.005, 0.02, 0.1]),
    most=st.sampled_from([ROWS, ROWS, 1, 30]),
    shortest=st.sampled_from([1, 8]),
    others=st.sampled_from([0.2, 1]),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_delivery_run_is_only_faster(
    kind: type[Traffic], seed: int, odd: float, most: int, shortest: int, others: float
) -> None:
    records = traffic(kind(seed, odd), 200)
    with (
        mock.patch.object(plain_layout, "_FEWEST", 1),
        mock.patch.object(plain_layout, "_OTHERS", others),
        mock.patch("streaming.broker.context.ROWS", most),
        mock.patch.object(publish_columns, "_SHORTEST", shortest),
        mock.patch("streaming.broker.persistent.delivery_run._FEW", 2),
    ):
        same(records, cuts_of(seed, len(records.offsets)))


@given(
    seed=st.integers(0, 2**32 - 1),
    odd=st.sampled_from([0, 0, 0.01, 0.05]),
    shortest=st.sampled_from([1, 8]),
    piece=st.sampled_from([1 << 16, 50, 7]),
)
@settings(max_examples=examples(40), deadline=None)
def test_at_the_edges_of_decisions(seed: int, odd: float, shortest: int, piece: int) -> None:
    """At any cut, too, and where a run ends because a piece of the micro-batch does."""
    records = traffic(EdgeTraffic(seed, odd), 150)
    with (
        mock.patch.object(publish_columns, "_SHORTEST", shortest),
        mock.patch.object(columns, "CHUNK_RECORDS", piece),
        mock.patch("streaming.broker.persistent.delivery_run._FEW", 2),
    ):
        same(records, cuts_of(seed, len(records.offsets)))


@pytest.mark.parametrize(("theme", "seed"), NAMES[1::6])
def test_in_random_lives(theme: str, seed: int) -> None:
    log = live(theme, seed)[0]
    values = [(offset, now, topic, value) for offset, (now, topic, value) in enumerate(log)]
    records = Records(*map(list, zip(*values, strict=True)))
    with mock.patch.object(publish_columns, "_SHORTEST", 1):
        same(records, cuts_of(seed, len(log)))


@pytest.mark.parametrize(
    ("type_", "more"),
    [
        ("Exclusive", {}),
        ("Failover", {"cumulative": True}),
        ("Shared", {"consumers": 8, "holes": 0.2, "nacked": 0.02}),
        ("Key_Shared", {"consumers": 8, "keys": 50}),
        ("Shared", {"consumers": 8, "messages": 100}),
        ("Exclusive", {"consumers": 2, "keys": 9, "others": ["Failover", "Shared", "Key_Shared"]}),
    ],
)
def test_most_of_the_traffic_of_simulated_clients_is_in_runs(type_: SubType, more: dict[str, Any]) -> None:
    records = simulated(3_000, type_, **more)
    assert same(records, [300]) > 0.6 * len(records.offsets)


def simulated(count: int, type_: SubType, **more: Any) -> Records:
    """The log of an ingress partition with one topic."""
    log = logs.delivered(count, type_, topics=2, **more)
    own = log.filter(pc.equal(log["partition"], 1))
    return Records(*(own[name].to_pylist() for name in ("offset", "timestamp", "topic", "value")))


def test_runs_leave_out_topics_with_more_subscriptions_than_are_bounded_and_topics_with_few_records() -> None:
    records = simulated(200, "Exclusive", others=["Shared"])
    assert same(records, []) > 0
    with mock.patch("streaming.broker.persistent.delivery_run._MOST_SUBSCRIPTIONS", 1):
        assert same(records, []) == 0
    with mock.patch("streaming.broker.persistent.delivery_run._FEW", len(records.offsets) + 1):
        assert same(records, []) == 0


def test_a_failure_names_the_topic_at_whose_record_it_was() -> None:
    records = simulated(200, "Exclusive")
    fold = PartitionFold(0, Store(), None, judge=decode_only)
    with (
        mock.patch.object(delivery_run._TopicOfRun, "publish", side_effect=KeyError("bug")),
        pytest.raises(FoldError, match="bug"),
    ):
        fold.apply(records)
    assert fold._records.broker.at_work == records.topics[-1]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("rich", "settings"),
    [
        (1, {}),
        (100, {"maxUnackedMessagesPerConsumer": 2}),
        (100, {"maxUnackedMessagesPerSubscription": 3}),
        (100, {"acknowledgmentAtBatchIndexLevelEnabled": True}),
        (100, {"maxMessagesPerBatch": 2}),
    ],
)
def test_consumers_with_few_permits_or_a_limit(seed: int, rich: int, settings: dict[str, int]) -> None:
    """Turns pass over some, and decisions are many. Half of the SENDs are batches."""
    drawn = PlainTraffic(seed, 0)
    drawn.rich, drawn.batches, drawn.form = rich, 0.5, ("short", "SEND")[seed > 2]
    with (
        mock.patch.object(publish_columns, "_SHORTEST", 1),
        mock.patch("streaming.broker.persistent.delivery_run._FEW", 2),
    ):
        same(traffic(drawn, 200, **settings), cuts_of(seed, 200))


def batches(*acks: tuple[int, list[tuple[int, list[int]]] | None], **settings: Any) -> Records:
    """The log of a Shared subscription with two consumers, who get five entries each in turns, and then send ACKs: each a time (ms after the one before)
    and ids, as entry and ack set, of the first consumer; None: it asks for all of its entries again."""
    log: list[tuple[int, str | None, Any]] = [
        (0, None, BrokerConfig(settings=settings)),
        (0, TOPIC, Producer(connection="p", producer_id=1, request_id=1, producer_name="sender")),
    ]
    for consumer in (1, 2):
        log.append((0, TOPIC, Subscribe(connection="c", consumer_id=consumer, request_id=1, subscription="s", subType="Shared")))  # fmt: skip
        log.append((0, TOPIC, Flow(connection="c", consumer_id=consumer, messagePermits=100)))
    for id_ in range(0, 30, 3):
        metadata = MessageMetadata("sender", id_, START, num_messages_in_batch=3)
        log.append((1, TOPIC, Send(connection="p", producer_id=1, sequence_id=id_, highest_sequence_id=id_ + 2, num_messages=3, metadata=metadata, payload_bytes=b"yyy")))  # fmt: skip
    for time, ids in acks:
        if ids is None:
            log.append((time, TOPIC, RedeliverUnacknowledgedMessages(connection="c", consumer_id=1)))
            continue
        named = [MessageIdData(ledgerId=1, entryId=entry, ack_set=left) for entry, left in ids]
        log.append((time, TOPIC, Ack(connection="c", consumer_id=1, ack_type="Individual", message_id=named)))
    return records_of(log)


@pytest.mark.parametrize(
    ("acks", "scalar_steps"),
    [
        ([(1, [(0, [])]), (1, [(2, []), (4, [])])], 0),
        ([(1, [(4, [])]), (2_000, [(0, [1])]), (1, [(2, [1]), (8, [])])], 0),
        ([(1, [(0, [1])]), (1, [(0, [1])]), (1, [(0, [0])])], 0),
        ([(1, None), (1, [(0, [1]), (2, [1])])], 1),
        ([(1, [(2, []), (2, [])])], 1),
        ([(1, [(2, []), (1, [])])], 1),
        ([(1, [(2, []), (30, [])])], 1),
        ([(1, []), (1, [(2, [])])], 1),
    ],
)
def test_acks_of_several_entries_and_of_parts(acks: Any, scalar_steps: int) -> None:
    records = batches(*acks)
    with (
        mock.patch.object(publish_columns, "_SHORTEST", 1),
        mock.patch("streaming.broker.persistent.delivery_run._FEW", 2),
        mock.patch.object(plain_layout, "_FEWEST", 1),
    ):
        alone = same(batches(), [])
        assert same(records, []) == alone + len(acks) - scalar_steps
        for cut in range(len(records.offsets) - len(acks), len(records.offsets)):
            same(records, [cut])


@pytest.mark.parametrize(
    "settings", [{"brokerDeduplicationEnabled": True}, {"maxUnackedMessagesPerSubscription": 11}]
)
def test_what_the_messages_of_a_batch_count_for(settings: dict[str, int]) -> None:
    """Deduplication goes on from the last one, and each counts as unacknowledged."""
    records = batches(**settings)
    with (
        mock.patch.object(publish_columns, "_SHORTEST", 1),
        mock.patch("streaming.broker.persistent.delivery_run._FEW", 2),
    ):
        assert same(records, []) >= 2


@pytest.mark.parametrize("type_", get_args(SubType))
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"delayedDeliveryEnabled": False},
        {"maxUnackedMessagesPerSubscription": 6},
        {"maxUnackedMessagesPerConsumer": 4},
        {"preciseDispatcherFlowControl": True},
    ],
)
@pytest.mark.parametrize("permits", [1, 5, 100])
def test_acks_of_what_was_sent_and_of_what_was_not(
    type_: SubType, settings: dict[str, Any], permits: int
) -> None:
    log: list[tuple[int, str | None, Any]] = [
        (0, None, BrokerConfig(settings=settings)),
        (0, TOPIC, Subscribe(connection="c", consumer_id=1, request_id=1, subscription="s", subType=type_)),
        (0, TOPIC, Flow(connection="c", consumer_id=1, messagePermits=permits)),
    ]
    for number in range(24):
        log.append((1, TOPIC, Publish(producer="p", sequence_id=number, key=f"k{number % 5}")))
        if number % 3:
            entry = number // 2 + 5 * (number % 2)
            named = [MessageIdData(ledgerId=1, entryId=entry, ack_set=[1] if number % 7 == 6 else [])]
            log.append(
                (1, TOPIC, Ack(connection="c", consumer_id=1, ack_type="Individual", message_id=named))
            )
        if number % 10 == 9:
            log.append((1, TOPIC, Flow(connection="c", consumer_id=1, messagePermits=permits)))
    with (
        mock.patch.object(publish_columns, "_SHORTEST", 1),
        mock.patch.object(plain_layout, "_FEWEST", 1),
        mock.patch("streaming.broker.persistent.delivery_run._FEW", 2),
    ):
        same(records_of(log), [])
        same(records_of(log), [20, 40])
