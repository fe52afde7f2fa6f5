"""Runs of plain publishes are only faster: rows and state are those of the scalar step, for any log and any cuts."""

from collections.abc import Iterable
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.commands import (
    Admin,
    BrokerConfig,
    Fault,
    MessageMetadata,
    Producer,
    Publish,
    Send,
    Tick,
    decode,
    to_binary,
)
from schemas.effects import Row
from schemas.entries import Entry
from sinks.rows import to_tables
from streaming.broker.broker import Broker
from streaming.broker.context import ROWS
from streaming.broker.entries import Entries
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position
from streaming.broker.producer.message_size import HEADER, plain_metadata_size
from streaming.broker.topics import PersistentTopics
from streaming.fold import publishes as publish_columns
from streaming.fold.columns import PartitionFold
from streaming.fold.records import Records, StateRow
from streaming.quality.gate import decode_only
from tests.broker.kit import START, Stored, feed
from tests.broker.test_cut_invariance import TOPICS, Record, prelude, record, settings_of_a_broker
from tests.examples import examples

QUIET_TOPICS = [f"persistent://public/default/quiet-{n}" for n in range(3)]


def bursts() -> st.SearchStrategy[list[Record]]:
    """Publishes one after the other, nearly all on topics without consumers."""
    publish = st.builds(
        Publish, producer=st.sampled_from(["p", "r", "é" * 70]), sequence_id=st.integers(0, 40), key=st.sampled_from([None, None, "kö"]),
        payload=st.sampled_from(["", "payload", "x" * 300]), publish_time=st.sampled_from([None, None, START - 1, START + 10**9]),
        properties=st.sampled_from([*[{}] * 9, {"a": "b"}]), rest=st.sampled_from([*[False] * 9, True]),
    )  # fmt: skip
    jumps = st.sampled_from([*[0] * 20, 1, 1, 7, -3, 1_000, 61_000])
    return st.lists(
        st.tuples(jumps, st.sampled_from([*QUIET_TOPICS * 4, *TOPICS]), publish), min_size=5, max_size=60
    )


def plain_bursts() -> st.SearchStrategy[list[Record]]:
    """The same with nothing but a payload in bytes, which are read by column. Without any, a value has another layout."""
    publish = st.builds(
        Publish, producer=st.sampled_from(["p", "r", "é" * 70]), sequence_id=st.integers(-1, 300),
        payload_bytes=st.sampled_from([*[b"x"] * 9, b"", b"\xff" * 300]),
    )  # fmt: skip
    jumps = st.sampled_from([*[0] * 20, 1, 1, 7, -3, 1_000, 61_000])
    topics = st.sampled_from([*QUIET_TOPICS * 4, *TOPICS])
    return st.lists(st.tuples(jumps, topics, publish), min_size=20, max_size=60)


def changes() -> st.SearchStrategy[list[Record]]:
    """Commands on the topics without consumers, and longer times."""

    def admin(method: Any, call: str, body: Any = None) -> st.SearchStrategy[Record]:
        return st.sampled_from(QUIET_TOPICS).map(
            lambda topic: (
                0,
                topic,
                Admin(method=method, path=f"/{topic.replace('://', '/')}/{call}", body=body),
            )
        )

    faults = st.builds(
        Fault, fault=st.sampled_from(["DelayWrites", "CompleteWrites", "FailWrites"]), count=st.sampled_from([0, 1, 30])
    )  # fmt: skip
    one = st.one_of(
        st.tuples(st.just(0), st.sampled_from(QUIET_TOPICS), faults),
        st.tuples(st.sampled_from([400_000, 3_600_000, 14_000_000]), st.none(), st.just(Tick())),
        admin("POST", "terminate"),
        admin("POST", "deduplicationSnapshotInterval", 30),
        admin("PUT", "subscription/s"),
        admin("PUT", "unload"),
    )
    return st.lists(one, min_size=1, max_size=3)


def held_back() -> st.SearchStrategy[list[Record]]:
    """Publishes whose writes one command completes."""

    def log(topic: str, first: int) -> list[Record]:
        publishes = [Publish(producer="p", sequence_id=first + number) for number in range(25)]
        all_: list[Any] = [
            Fault(fault="DelayWrites", count=25),
            *publishes,
            Fault(fault="CompleteWrites"),
            *publishes[:4],
        ]
        return [(0, topic, each) for each in all_]

    return st.builds(log, st.sampled_from(QUIET_TOPICS), st.sampled_from([0, 50, 1_000]))


def more_settings() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "maxMessageSize": st.just(299),
            "brokerEntryMetadataInterceptors": st.just(
                "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"
            ),
            "maxUnackedMessagesPerBroker": st.just(2),
            "managedLedgerMaxSizePerLedgerMbytes": st.just(0),
            "maxProducersPerTopic": st.just(2),
            "statsUpdateFrequencyInSecs": st.just(1),
            "brokerDeduplicationSnapshotIntervalSeconds": st.sampled_from([1, 100]),
            "brokerDeduplicationSnapshotFrequencyInSeconds": st.sampled_from([0, 7, 60]),
            "managedLedgerDefaultMarkDeleteRateLimit": st.sampled_from([0.005, 5]),
            "brokerDeduplicationProducerInactivityTimeoutMinutes": st.sampled_from([0, 1]),
        },
    )


def records_of(log: list[Record]) -> Records:
    offsets, times, topics, values, now = [], [], [], [], START
    for offset, (jump, topic, command) in enumerate(log):
        now += jump
        offsets.append(offset)
        times.append(now)
        topics.append(topic)
        values.append(to_binary(command))
    return Records(offsets, times, topics, values)


def scalar(records: Records, cuts: Iterable[int]) -> tuple[list[list[Row]], bytes]:
    """The rows of each micro-batch and the last state, by `Broker.apply` alone."""
    store, rows = Stored(), []
    broker = Broker(0, store)
    for start, stop in zip([0, *cuts], [*cuts, len(records.offsets)], strict=True):
        for at in range(start, stop):
            feed(broker, *(column[at] for column in records))  # type: ignore[arg-type]
        rows.append(broker.take())
        store.add([row.effect for row in rows[-1]])
        broker = Broker.decode(broker.encode(), store)
    return rows, broker.encode()


class Store:
    def __init__(self) -> None:
        self.stored = Stored()

    def reader(self, partition: int) -> Stored:
        return self.stored


def same(log: list[Record], cuts: list[int], shortest: int) -> None:
    records, store = records_of(log), Store()
    expected, state = scalar(records, cuts)
    before: StateRow | None = None
    with mock.patch.object(publish_columns, "_SHORTEST", shortest):
        for rows, start, stop in zip(expected, [0, *cuts], [*cuts, len(log)], strict=True):
            own = PartitionFold(0, store, before, judge=decode_only)
            own.apply(records.piece(start, stop))
            assert {kind: table.to_pylist() for kind, table in own.rows().items()} == {
                kind: table.to_pylist() for kind, table in to_tables(0, rows).items()
            }
            before = own.state()
            store.stored.add([row.effect for row in rows])
    assert before is not None
    assert before.broker == state


@pytest.mark.feature("J4")
@given(
    settings_of_a_broker(),
    more_settings(),
    st.one_of(
        st.lists(
            st.one_of(bursts(), bursts(), changes(), held_back(), st.lists(record(), max_size=10)),
            min_size=1,
            max_size=6,
        ),
        st.lists(
            st.one_of(plain_bursts(), changes(), held_back(), st.lists(record(), max_size=4)),
            min_size=2,
            max_size=6,
        ),
    ),
    st.sets(st.integers(1, 60), max_size=3),
    st.booleans(),
    st.sampled_from([ROWS, ROWS, 1, 30]),
)
@settings(
    max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_a_run_is_only_faster(
    configuration: Record,
    more: dict[str, Any],
    parts: list[list[Record]],
    cuts: set[int],
    consumers: bool,
    rows: int,
) -> None:
    config = configuration[2]
    assert isinstance(config, BrokerConfig)
    config.settings |= more
    log = [configuration, *(prelude() if consumers else []), *(each for part in parts for each in part)]
    with mock.patch("streaming.broker.context.ROWS", rows):
        same(log, sorted(cut for cut in cuts if cut < len(log)), shortest=1)


PLAIN: list[Record] = [(0, QUIET_TOPICS[n % 3], Publish(producer=f"p{n % 7}", sequence_id=n, payload="x")) for n in range(300)]  # fmt: skip


def steps_of(log: list[Record]) -> int:
    """How many records took the scalar step."""
    steps = 0

    class Counting(Broker):
        def apply(self, *args: Any) -> None:
            nonlocal steps
            steps += 1
            super().apply(*args)

    PartitionFold(0, Store(), None, broker=Counting).apply(records_of(log))
    return steps


def test_plain_publishes_take_the_run() -> None:
    # The first publish of a producer on a topic takes the scalar step: there are 21 such pairs.
    assert steps_of(PLAIN) == 21
    # So does the entry at which a snapshot is due, once in 1,000 entries of a topic.
    assert steps_of([(0, QUIET_TOPICS[0], Publish(producer="p", sequence_id=n)) for n in range(5_000)]) == 1
    deduplicated: Record = (0, None, BrokerConfig(settings={"brokerDeduplicationEnabled": True}))
    ones: list[Record] = [(0, QUIET_TOPICS[0], Publish(producer="p", sequence_id=n)) for n in range(5_000)]
    assert steps_of([deduplicated, *ones]) == 1 + 1 + 5
    assert steps_of([deduplicated, *ones[:900], *ones[:900]]) == 1 + 1  # duplicates, too


def test_only_publishes_that_take_the_scalar_step_are_decoded() -> None:
    plain: list[Record] = [
        (0, topic, Publish(producer=publish.producer, sequence_id=publish.sequence_id, payload_bytes=b"\xff"))
        for _, topic, publish in PLAIN
        if isinstance(publish, Publish)
    ]
    with mock.patch("streaming.fold.record_fold.decode", wraps=decode) as decoding:
        assert steps_of(plain) == 21
        assert decoding.call_count == 21
        # One name that is not UTF-8, one that is too long: each value is decoded and judged by itself.
        for name in (b"\xff", b"x" * 1025):
            records = records_of(
                [*plain, (0, QUIET_TOPICS[0], Publish(producer="long", sequence_id=0, payload_bytes=b"x"))]
            )
            records.values[-1] = records.values[-1].replace(
                b"\xa4long", b"\xda" + len(name).to_bytes(2) + name
            )
            fold = PartitionFold(0, Store(), None)
            fold.apply(records)
            assert len(fold.rows()["QUARANTINED"]) == 1
        assert decoding.call_count == 21


@pytest.mark.parametrize("cuts", [[], [150, 151, 400]])
def test_a_run_goes_on_when_an_interval_of_the_rates_ends(cuts: list[int]) -> None:
    # An interval each second, a round of checks each minute. Topics and producers take turns of different lengths, so that
    # the first publish after an end comes now from one that the run knows, now from one that it doesn't.
    every_second: Record = (
        0, None, BrokerConfig(settings={"statsUpdateFrequencyInSecs": 1, "brokerDeduplicationEnabled": True})
    )  # fmt: skip
    log: list[Record] = [
        (
            n % 17 * 50,
            QUIET_TOPICS[n * n % 3],
            Publish(producer=f"p{n % 5}", sequence_id=n // 2, payload="x" * n),
        )
        for n in range(500)
    ]
    assert sum(jump for jump, _, _ in log) > 180_000
    same([every_second, *log], cuts, shortest=1)
    assert steps_of([every_second, *log]) < 40  # each producer's first on a topic, and one a round


DEDUPLICATED: dict[str, Any] = {"brokerDeduplicationEnabled": True}


@pytest.mark.parametrize("cuts", [[], [150, 151, 400]])
@pytest.mark.parametrize("longest", [3_000, 20_000, 400_000])
@pytest.mark.parametrize(
    "broker",
    [
        {},
        DEDUPLICATED,
        DEDUPLICATED | {"brokerDeduplicationSnapshotFrequencyInSeconds": 0},
        DEDUPLICATED | {"brokerDeduplicationSnapshotIntervalSeconds": 0},
        DEDUPLICATED | {"managedLedgerDefaultMarkDeleteRateLimit": 0.005},
        DEDUPLICATED | {"managedLedgerMaxLedgerRolloverTimeMinutes": 30, "managedLedgerMinLedgerRolloverTimeMinutes": 0},
        {"managedLedgerInactiveLedgerRolloverTimeSeconds": 100},
        {"backlogQuotaDefaultLimitBytes": 2_000},
        {"brokerDeduplicationProducerInactivityTimeoutMinutes": 1},
        {"brokerDeduplicationProducerInactivityTimeoutMinutes": 0},
        DEDUPLICATED | {"brokerDeduplicationProducerInactivityTimeoutMinutes": 1},
    ],
)  # fmt: skip
def test_a_run_goes_on_over_rounds_of_checks(broker: dict[str, Any], longest: int, cuts: list[int]) -> None:
    # Topics and producers take turns of different lengths, a third topic comes late, and there are duplicates. With the longest
    # jumps, several rounds pass between two publishes on a topic, snapshots are due, and ledgers get too old.
    log: list[Record] = [
        (
            n * n % 11 * longest // 10,
            QUIET_TOPICS[n * n % (2 + (n > 300))],
            Publish(producer=f"p{n % 5}", sequence_id=n // 2 - n % 7 // 6 * 9, payload="x" * n),
        )
        for n in range(500)
    ]
    same([(0, None, BrokerConfig(settings=broker)), *log], cuts, shortest=1)


def sends(*numbers: tuple[str, int, int]) -> list[Record]:
    """SENDs on one connection: topic, producer id, sequence id. Producer 1 is p, 2 is q."""
    return [
        (0, topic, Send(connection="x", producer_id=id_, sequence_id=number, metadata=MessageMetadata("pq"[id_ - 1], number, START)))
        for topic, id_, number in numbers
    ]  # fmt: skip


@pytest.mark.parametrize("late", [0, 200_000])
def test_a_send_that_closes_its_connection_ends_the_run_of_every_topic(late: int) -> None:
    # The third SEND is of a producer that the connection has not created. Then none of the connection's producers is left.
    here, there = QUIET_TOPICS[:2]
    producers: list[Record] = [
        (0, topic, Producer(connection="x", producer_id=1, request_id=1, producer_name="p")) for topic in (here, there)
    ]  # fmt: skip
    log = sends((here, 1, 0), (here, 1, 1), (there, 2, 0), (here, 1, 2), (there, 1, 0))
    log[2] = (late, *log[2][1:])
    same([(0, None, BrokerConfig(settings=DEDUPLICATED)), *producers, *log], [], shortest=1)


def test_the_short_form_by_the_name_of_a_connected_producer() -> None:
    # Its receipt is that producer's, and names the connection.
    here = QUIET_TOPICS[0]
    log = [
        (0, here, Producer(connection="x", producer_id=1, request_id=1, producer_name="p")),
        *sends((here, 1, 0)),
        (0, here, Publish(producer="p", sequence_id=1)),
        (0, here, Publish(producer="p", sequence_id=2)),
    ]
    same(log, [], shortest=1)


def test_receipts_of_one_record_keep_their_order() -> None:
    # One record completes 30 writes, and runs before and after it give receipts of their own.
    here = QUIET_TOPICS[0]
    delayed = [
        (0, here, Fault(fault="DelayWrites", count=30)),
        *PLAIN[:99:3],
        (0, here, Fault(fault="CompleteWrites")),
    ]
    same([*PLAIN[:60], *delayed, *PLAIN[100:]], [], shortest=1)


def test_a_snapshot_that_is_promised_is_not_put_off() -> None:
    # A terminated topic that nobody uses is deleted, and then there is a new one of its name. When the former one's ledger would have
    # got too old, the new one has a row that its run may still take, before which a snapshot is due.
    here, there = QUIET_TOPICS[:2]
    minutes = 60_000
    log: list[Record] = [
        (0, None, BrokerConfig(settings=DEDUPLICATED)),
        (0, here, Producer(connection="x", producer_id=1, request_id=1, producer_name="q")),
        (0, here, Admin(method="POST", path=f"/{here.replace('://', '/')}/terminate")),
        (0, here, Publish(producer="p", sequence_id=0)),
        (68 * minutes, here, Publish(producer="p", sequence_id=0)),
        (0, there, Publish(producer="p", sequence_id=0)),
        (0, here, Publish(producer="r", sequence_id=0)),
        (0, there, Publish(producer="p", sequence_id=1)),
        (0, here, Publish(producer="r", sequence_id=1)),
        (144 * minutes, here, Publish(producer="p", sequence_id=0)),
        (60 * minutes, there, Publish(producer="p", sequence_id=2)),
    ]
    same(log, [], shortest=1)


@pytest.mark.parametrize(
    "timeouts",
    [
        {"brokerDeduplicationProducerInactivityTimeoutMinutes": 3},
        {"managedLedgerMaxLedgerRolloverTimeMinutes": 5, "managedLedgerMinLedgerRolloverTimeMinutes": 5},
    ],
)
@pytest.mark.parametrize("shortest", [1, 8])
def test_no_run_goes_on_past_the_end_of_a_topic_whose_rounds_are_put_off(
    timeouts: dict[str, Any], shortest: int
) -> None:
    # One topic is quiet until it is deleted, which is made up for once it ends. The other one stays busy.
    quiet, busy = QUIET_TOPICS[:2]
    settings = DEDUPLICATED | timeouts | {"brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": 10}
    log: list[Record] = [
        (0, None, BrokerConfig(settings=settings)),
        (0, quiet, Publish(producer="a", sequence_id=0)),
        (0, busy, Publish(producer="b", sequence_id=0)),
        (1_000, quiet, Publish(producer="a", sequence_id=1)),
        (130_000, busy, Publish(producer="b", sequence_id=1)),
        (0, busy, Publish(producer="c", sequence_id=1)),
    ]
    log += [(5_000, busy, Publish(producer="b", sequence_id=2 + number)) for number in range(150)]
    same(log, [], shortest)


def test_rounds_of_checks_do_not_end_a_run() -> None:
    # 3,000 publishes in 50 minutes: but for each topic's first, only that with which a round comes on which a topic was not in the run.
    log: list[Record] = [
        (1_000, QUIET_TOPICS[n % 3], Publish(producer="p", sequence_id=n)) for n in range(3_000)
    ]
    assert steps_of([(0, None, BrokerConfig(settings=DEDUPLICATED)), *log]) < 10
    opened: list[str | None] = []
    touch = PersistentTopics.touch_without_effects

    def counted(self: PersistentTopics, name: str | None) -> PersistentTopic | None:
        opened.append(name)
        return touch(self, name)

    with mock.patch.object(PersistentTopics, "touch_without_effects", counted):
        steps_of([(0, None, BrokerConfig(settings=DEDUPLICATED)), *log])
    assert len(opened) < 10


@pytest.mark.parametrize("rate", [0, 0.1, 1, 5])
def test_snapshots_that_are_replaced_cost_the_cursor_the_same_permits(rate: float) -> None:
    # The first write of a cursor finds one permit, however many the rate allows.
    broker = DEDUPLICATED | {"managedLedgerDefaultMarkDeleteRateLimit": rate}
    publishes = [(10_000, QUIET_TOPICS[n % 2], Publish(producer="p", sequence_id=n)) for n in range(80)]
    for count in range(20, 80, 3):
        same([(0, None, BrokerConfig(settings=broker)), *publishes[:count]], [], shortest=1)


def test_few_publishes_in_a_row_do_not() -> None:
    tick: Record = (0, None, BrokerConfig())
    assert steps_of([each for publish in PLAIN for each in (publish, tick)]) == 600


@pytest.mark.parametrize("shortest", [1, 8])
def test_a_subscription_in_the_same_batch_reads_what_a_run_wrote(shortest: int) -> None:
    consumers = [(jump, QUIET_TOPICS[0], command) for jump, _, command in prelude()[1:4]]
    same([*PLAIN[:100], *consumers, *PLAIN[100:]], [], shortest)
    same([*PLAIN[:100], *consumers, *PLAIN[100:]], [40, 120, 121], shortest)


def test_a_subscription_in_the_same_batch_reads_what_a_run_of_sends_wrote() -> None:
    here, (_, *consumers) = QUIET_TOPICS[0], prelude()[:4]
    log: list[Record] = [
        (0, here, Producer(connection="x", producer_id=1, request_id=1, producer_name="p")),
        *sends(*((here, 1, number) for number in range(3))),
        *((jump, here, command) for jump, _, command in consumers),
    ]
    same(log, [], shortest=1)


@given(
    st.text(max_size=200),
    st.sampled_from([-1, 0, 127, 128, 2**31, 2**62]),
    st.integers(0, 10**14),
    st.none() | st.text(),
)
def test_sizes_are_those_of_the_definition(producer: str, id_: int, time: int, key: str | None) -> None:
    publish = Publish(producer=producer, sequence_id=id_, publish_time=time, key=key, payload="é")
    with mock.patch.object(publish_columns, "_SHORTEST", 1):
        columns = publish_columns.publish_columns([0], [START], ["t"], [publish], START)
    assert columns is not None
    assert columns.rows.sizes == [HEADER + plain_metadata_size(producer, id_, time, key) + 2]
    metadata = MessageMetadata(producer, id_, time, partition_key=key)
    assert columns.rows.entry(0).metadata == metadata


def test_entries_of_a_run_are_made_when_they_are_read() -> None:
    made: list[int] = []

    def make(row: int) -> Entry:
        made.append(row)
        return Entry(MessageMetadata("p", row, START), 10)

    entries = Entries(Stored())
    entries.add_all("t", 1, 5, make, [10, 11, 12])
    assert made == []
    assert entries.get("t", Position(1, 6)).metadata.sequence_id == 11
    found = entries.get_all("t", [Position(1, 5), Position(1, 7)])
    assert [entry.metadata.sequence_id for entry in found] == [10, 12]
    assert made == [11, 10, 12]
