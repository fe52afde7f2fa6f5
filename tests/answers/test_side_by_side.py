"""Folding several policies side by side: what an observer gets of runs of plain publishes."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import Ack, BrokerConfig, Flow, MessageIdData, Publish, Subscribe, SubType, to_binary
from schemas.records import RECORD
from streaming.answers.whatif import side_by_side
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.answers.whatif.observed import Observer, TopicPublishes
from streaming.answers.whatif.side_by_side import ObservedBroker, Runs, SideBySide, fold_side_by_side
from streaming.broker import context
from streaming.broker.persistent.delivery_run import Took
from streaming.fold import publishes as publish_columns
from streaming.fold.records import Records
from streaming.log.pins import PartitionPins, pins
from streaming.log.policies import read_policies
from streaming.quality.gate import judge
from tests.answers.test_reactive import as_table
from tests.answers.test_settled import rows
from tests.answers.test_whatif import broker
from tests.broker.random_lives import live
from tests.broker.recorded_lives import WITHOUT_PAYLOADS
from tests.broker.test_delivery_run import PlainTraffic, cuts_of, simulated, traffic
from tests.broker.test_steady import Traffic
from tests.examples import examples

START = 1_700_000_000_000
TOPICS = ["persistent://public/default/a", "persistent://public/default/b"]


def table(log: Sequence[tuple[int, str | None, Any]]) -> pa.Table:
    """A log of (seconds, topic, command)."""
    return pa.Table.from_pylist(
        [
            {"partition": 0, "offset": offset, "timestamp": START + seconds * 1000, "topic": topic, "value": to_binary(command)}
            for offset, (seconds, topic, command) in enumerate(log)
        ],
        RECORD,
    )  # fmt: skip


def test_effects_that_leave_in_the_middle_of_a_run_come_in_order() -> None:
    # New producers take the scalar step, after which the effects leave. Known producers' publishes, some of them duplicates, don't.
    config: dict[str, Any] = {
        "brokerDeduplicationEnabled": True,
        "managedLedgerMaxEntriesPerLedger": 5,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    }
    publishes = [Publish(producer=f"p{number // 9}", sequence_id=number * 7 % 11) for number in range(60)]
    log: list[tuple[str | None, Any]] = [
        (None, BrokerConfig(settings=config)),
        *((TOPICS[n % 7 % 2], each) for n, each in enumerate(publishes)),
    ]
    records = table([(0, topic, command) for topic, command in log])
    found = []
    for shortest, most in ((1_000, 1_000), (1, 1)):
        with (
            mock.patch.object(publish_columns, "_SHORTEST", shortest),
            mock.patch.object(context, "ROWS", most),
            mock.patch("streaming.answers.whatif.side_by_side.PIECES", 1),
        ):
            (observer,) = fold_side_by_side(records, 0, []).observers
        found.append(
            [
                (of.written.encode(), of.answer.up_to(len(of.messages)).tolist(), of.peak_storage)
                for of in map(observer.topics.__getitem__, TOPICS)
            ]
        )
    assert found[0] == found[1]


POLICIES = [
    PolicySet("ttl", broker(ttlDurationDefaultInSeconds=70)),
    PolicySet("hold", broker(backlogQuotaDefaultLimitBytes=600, backlogQuotaDefaultRetentionPolicy="producer_request_hold")),
    PolicySet("evict", broker(backlogQuotaDefaultLimitBytes=600, backlogQuotaDefaultRetentionPolicy="consumer_backlog_eviction")),
    PolicySet("duplicates", broker(brokerDeduplicationEnabled=True)),
]  # fmt: skip


def answers(log: pa.Table) -> list[Any]:
    """What-if's answer if each publish is observed by itself, and if all are in runs that can be."""
    found = []
    for shortest in (1 << 30, 1):
        with (
            mock.patch.object(publish_columns, "_SHORTEST", shortest),
            mock.patch("streaming.answers.whatif.side_by_side.PIECES", 2),
        ):
            found.append(rows(whatif(log, POLICIES, partitions=1, processes=1)))
    return found


BURSTS = st.tuples(st.sampled_from(TOPICS), st.integers(1, 12), st.integers(0, 3), st.integers(0, 9))
"""Publishes in a row: the topic, how many, the producer, and the first sequence id."""


@given(
    st.lists(
        BURSTS | st.tuples(st.just("flow"), st.integers(1, 9)) | st.tuples(st.just("wait"), st.integers(1, 90)), min_size=2, max_size=30
    ),
    st.booleans(),
)  # fmt: skip
def test_runs_of_publishes_are_observed_as_each_publish_is(actions: list[Any], connected: bool) -> None:
    config: dict[str, Any] = {
        "managedLedgerMaxEntriesPerLedger": 4,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
        "retentionCheckIntervalInSeconds": 30,
    }
    now, log = 0, list[tuple[int, str | None, Any]]()
    log.append((0, None, BrokerConfig(settings=config)))
    for topic in TOPICS[: 1 + connected]:
        subscribe = Subscribe(connection="c", consumer_id=TOPICS.index(topic), request_id=1, subscription="s", subType="Exclusive")  # fmt: skip
        log.append((0, topic, subscribe))
    for action in actions:
        match action:
            case ("wait", seconds):
                now += seconds  # without a record, so that checks fall into a run
            case ("flow", permits):
                log.append((now, TOPICS[0], Flow(connection="c", consumer_id=0, messagePermits=permits)))
                last = [MessageIdData(ledgerId=1 + permits % 3, entryId=permits % 4)]
                ack = Ack(connection="c", consumer_id=0, ack_type="Cumulative", message_id=last)
                log.append((now, TOPICS[0], ack))
            case (topic, count, producer, first):
                for number in range(count):
                    sent = Publish(producer=f"p{producer}", sequence_id=first + number, payload="x" * 40)
                    log.append((now, topic if number % 5 < 4 else TOPICS[producer % 2], sent))
    one_by_one, in_runs = answers(table(log))
    assert in_runs == one_by_one


@pytest.mark.parametrize(("theme", "seed"), WITHOUT_PAYLOADS)
def test_the_publishes_of_a_life_are_observed_alike(theme: str, seed: int) -> None:
    one_by_one, in_runs = answers(as_table(live(theme, seed).log))
    assert in_runs == one_by_one


def of_a_run(observer: Observer) -> list[Any]:
    """All that was observed, in a form that doesn't tell how."""
    observer.settle()
    return [
        (
            name, of.written.encode(), [each.up_to(len(of.messages)).tolist() for each in (of.answer, of.reason)], of.stamped,
            of.storage, of.peak_storage, of.trimmed, of.held, of.closed_producers, list(of.storages.values),
            [
                (
                    name, each.start, each.created, each.gone, each.peak_backlog, each.moved, each.oldest.peak, list(each.backlogs.values),
                    [column.up_to(len(of.messages)).tolist() for column in each._columns],
                )
                for name, each in of.subscriptions.items()
            ],
        )
        for name, of in observer.topics.items()
    ]  # fmt: skip


def observed(log: pa.Table, cuts: Sequence[int], *, shortest: int) -> list[Any]:
    """What is known after each piece: the state and the observations of each run, and where it became open-loop."""
    policies = [read_policies(each.source, log, judge) for each in POLICIES]
    folds = SideBySide(0, [pins(log, each).get(0, PartitionPins()) for each in policies])
    found: list[Any] = []

    def noted(_: Runs) -> None:
        for run in folds._all:
            messages = {
                name: [*each.kept().producers, [list(column) for column in each.kept().columns]]
                for name, each in folds.runs.messages.items()
            }
            seen = {name: [*side_by_side._each(of.seen)] for name, of in run.observer.topics.items()}
            known = run.fold.state(), run.broker.unmatched, of_a_run(run.observer), seen, messages
            found.append((*known, run.observer.rules, dict(run.open_loop)))

    with mock.patch.object(publish_columns, "_SHORTEST", shortest):
        for start, stop in zip([0, *cuts], [*cuts, len(log)], strict=True):
            while start < stop:
                start += folds.fold(log.slice(start, stop - start), noted)
    return found


def same(log: pa.Table, cuts: Sequence[int]) -> int:
    """Holds stretches that are observed by column equal to records that are observed one by one. Returns how many records were taken by
    column, in all runs."""
    taken = 0
    took = ObservedBroker.took

    def counted(broker: ObservedBroker, each: Took) -> None:
        nonlocal taken
        taken += len(each.rows) + sum(len(of.acks) // 4 for of in each.followed)
        took(broker, each)

    one_by_one = observed(log, cuts, shortest=1 << 30)
    with (
        mock.patch.object(ObservedBroker, "took", counted),
        mock.patch("streaming.broker.persistent.delivery_run._FEW", 2),
    ):
        in_runs = observed(log, cuts, shortest=1)
    for number, (expected, found) in enumerate(zip(one_by_one, in_runs, strict=True)):
        assert found == expected, (
            f"run {number % (1 + len(POLICIES))} after piece {number // (1 + len(POLICIES))}"
        )
    return taken


def as_log(records: Records) -> pa.Table:
    columns = zip(*records, strict=True)
    names = "offset", "timestamp", "topic", "value"
    return pa.Table.from_pylist(
        [{"partition": 0, **dict(zip(names, each, strict=True))} for each in columns], RECORD
    )


@given(
    kind=st.sampled_from([PlainTraffic, PlainTraffic, PlainTraffic, Traffic]),
    seed=st.integers(0, 2**32 - 1),
    odd=st.sampled_from([0, 0.005, 0.02, 0.1]),
    most=st.sampled_from([context.ROWS, 1, 30]),
)
@settings(max_examples=examples(40), deadline=None)
def test_stretches_are_observed_as_each_record_is(
    kind: type[Traffic], seed: int, odd: float, most: int
) -> None:
    log = as_log(traffic(kind(seed, odd), 150))
    with mock.patch.object(context, "ROWS", most):
        same(log, cuts_of(seed, len(log)))


@pytest.mark.parametrize(("theme", "seed"), WITHOUT_PAYLOADS[::9])
def test_the_stretches_of_a_life_are_observed_alike(theme: str, seed: int) -> None:
    log = as_table(live(theme, seed).log)
    same(log, cuts_of(seed, len(log)))


@pytest.mark.parametrize(
    ("type_", "more"),
    [
        ("Exclusive", {}),
        ("Failover", {"cumulative": True}),
        ("Shared", {"consumers": 8, "holes": 0.2, "nacked": 0.02}),
        ("Key_Shared", {"consumers": 8, "keys": 50}),
        ("Exclusive", {"consumers": 2, "keys": 9, "others": ["Failover", "Shared", "Key_Shared"]}),
        ("Shared", {"messages": 4}),
    ],
)
def test_the_traffic_of_simulated_clients_is_observed_by_column(type_: SubType, more: dict[str, Any]) -> None:
    records = simulated(3_000 if "cumulative" in more else 1_000, type_, **more)
    taken = same(as_log(records), [300, 301])
    assert taken > 2 * len(records.offsets) or "messages" in more


def test_a_canary_that_wrote_other_entries_translates_what_acks_name() -> None:
    """Under deduplication, one publish is none: from there on, positions are others."""
    subscribe = Subscribe(connection="c", consumer_id=1, request_id=1, subscription="s", subType="Shared")
    log: list[tuple[int, str | None, Any]] = [(0, TOPICS[0], subscribe)]
    log.append((0, TOPICS[0], Flow(connection="c", consumer_id=1, messagePermits=1000)))
    for number in range(60):
        log.append((1, TOPICS[0], Publish(producer="p", sequence_id=number - (number == 20), payload="x")))
        if number % 3 == 2:
            last = [MessageIdData(ledgerId=1, entryId=number - 1)]
            log.append(
                (1, TOPICS[0], Ack(connection="c", consumer_id=1, ack_type="Individual", message_id=last))
            )
    assert same(table(log), [30, 50]) > 0


@pytest.mark.parametrize("between", [0, 1])
@pytest.mark.parametrize("count", [1, 7])
def test_publishes_that_are_too_few_for_a_run_are_observed(count: int, between: int) -> None:
    log: list[tuple[int, str | None, Any]] = []
    for number in range(3):
        log += [
            (0, TOPICS[0], Publish(producer="p", sequence_id=10 * number + each, payload_bytes=b"x")) for each in range(count)
        ]  # fmt: skip
        log += [(0, TOPICS[1], Flow(connection="c", consumer_id=1, messagePermits=1))] * between
    folds = SideBySide(0, [])
    for row in range(0, len(log), len(log) // 3):
        folds.fold(table(log).slice(row, len(log) // 3))
    found = folds.end()
    assert (
        len(found.messages[TOPICS[0]]) == found.observers[0].topics[TOPICS[0]].written.publishes == 3 * count
    )


def test_what_runs_share_of_entries_is_bounded_and_lasts_for_a_piece() -> None:
    messages = TopicPublishes()
    messages.add([0, 1, 2], [5] * 3, [5] * 3, [0, 1, 2], ["p"] * 3, [None] * 3, [None] * 3)
    with mock.patch("streaming.answers.whatif.observed._ENTRIES", 2):
        found = [messages.entry(number) for number in range(3)]
        assert [messages.entry(number) is found[number] for number in range(3)] == [True, True, False]
        assert messages.entry(2) == found[2]
        messages.end_piece()
        assert messages.entry(0) is not found[0]
