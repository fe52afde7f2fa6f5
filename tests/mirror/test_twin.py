"""The judges of `make twin` see what they must see."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.effects import KINDS, MirrorDrift, SendReceipt, SubscriptionEvent
from schemas.records import RECORD
from sinks.base import Sink
from sinks.ledger_store import LedgerStore
from sinks.quarantine import QuarantineSink
from sinks.tables import TABLES, TableSink
from streaming.fold.columns import Fold
from streaming.fold.records import StateRow
from tests.mirror.judge import Log, drift_of, of_entries, of_rows
from tests.mirror.traffic import At
from tests.mirror.twin import at_rest
from tests.mirror.watch import CHECK_SECONDS, Sample, Shown, Watch

pytestmark = pytest.mark.feature("K4")

T = "persistent://public/default/t"
WHOLE: list[At] = [(1, 0), (1, 1), (2, 0)]


@pytest.mark.parametrize(
    ("sends", "wrong"),
    [
        (WHOLE, []),
        ([(1, 0), (1, 1), (1, 1), (2, 0)], ["1 entries are repeated, the first: (1, 1)"]),
        ([(1, 1), (1, 0), (2, 0)], ["1 entries come after later ones, the first: (1, 0)"]),
        ([(1, 0), (1, 1)], ["1 entries with a receipt are missing, the first: (2, 0)", "1 ledgers had more entries, the first: 2"]),
        ([(1, 1), (2, 0)], ["1 ledgers have gaps, the first: 1", "1 ledgers had more entries, the first: 1",
                            "1 ledgers ended with another number of entries, the first: 1"]),
        ([(1, 0), (1, 1), (1, 2), (2, 0)], ["1 ledgers ended with another number of entries, the first: 1"]),
        ([(1, 0), (1, 1), (2, 0), (2, 1)], []),
    ],
)  # fmt: skip
def test_entries_that_are_not_the_brokers(sends: list[At], wrong: list[str]) -> None:
    found = of_entries({T: sends}, {T: [(2, 0)]}, {T: {1: 2, 2: 1}}, {T: {1: 2}}, {})
    assert [*found] == [f"{T}: {each}" for each in wrong]


def test_a_topic_that_the_log_lacks() -> None:
    assert [*of_entries({}, {T: [(1, 0)]}, {}, {}, {})] == [
        f"{T}: 1 entries with a receipt are missing, the first: (1, 0)"
    ]
    assert [*of_entries({}, {}, {T: {1: 1, 2: 0}}, {}, {})] == [
        f"{T}: 1 ledgers had more entries, the first: 1"
    ]


@pytest.mark.parametrize(
    ("backlog", "ahead", "explained"),
    [
        (10, False, True),
        (4, False, True),  # as a look ago
        (12, False, True),  # with the entries that came
        (13, False, False),
        (1, False, False),
        (2, False, True),
        (0, True, True),  # as after the broker's check that comes later
    ],
)
def test_a_backlog_that_the_interval_explains(backlog: int, ahead: bool, explained: bool) -> None:
    watch = Watch(SimpleNamespace(admin_url="http://127.0.0.1:1"), 1)  # type: ignore[arg-type]
    watch.written[T] = [
        Sample(0, 40),
        Sample(93, 50),
        Sample(98, 51),
        Sample(100, 52),
        Sample(101, 52),
        Sample(200, 52),
    ]
    watch.backlogs[T, "s"] = [Sample(0, 50), Sample(93, 4), Sample(98, 4), Sample(100, 10)]
    if ahead:
        watch.backlogs[T, "s"].append(Sample(100 + CHECK_SECONDS - 1, 0))
    watch.shown = [Shown(100.5, 98, T, "s", backlog), Shown(100.5, 98, T, "gone", 7)]
    found = watch.judged({})
    assert (found.compared, found.ahead, not found.beyond) == (1, ahead, explained)
    assert (found.largest, found.lags) == (abs(10 - backlog), [2.5])


@pytest.mark.parametrize(
    ("backlog", "sought", "explained"),
    [
        (21, (93.5, 93.6), True),  # all that is stored, with the entry that came
        (22, (98.5, 98.6), False),
        (21, (50.0, 60.0), False),  # a broker's sample would have shown it
        (21, (101.0, 102.0), False),
    ],
)
def test_a_backlog_of_a_seek_between_two_samples(
    backlog: int, sought: tuple[float, float], explained: bool
) -> None:
    watch = Watch(SimpleNamespace(admin_url="http://127.0.0.1:1"), 1)  # type: ignore[arg-type]
    watch.written[T] = [Sample(92, 51), Sample(97, 51), Sample(98, 51), Sample(100, 52)]
    watch.stored[T] = [
        Sample(0, 40),
        Sample(92, 20),
        Sample(97, 20),
        Sample(98, 20),
        Sample(100, 20),
        Sample(200, 40),
    ]
    watch.backlogs[T, "s"] = [Sample(0, 50), Sample(92, 4), Sample(97, 4), Sample(98, 4), Sample(100, 4)]
    watch.shown = [Shown(100.5, 98, T, "s", backlog)]
    found = watch.judged({(T, "s"): [sought], (T, "other"): [(99, 99)]})
    assert (not found.beyond) == explained


def test_how_long_a_drift_stays(tmp_path: Path) -> None:
    schema = TABLES[KINDS[MirrorDrift]]
    rows = [
        ("s", 1000, 0),
        ("s", 2000, -3),
        ("s", 5000, 2),
        ("other", 5500, 1),
        ("s", 6500, 0),
        ("s", 9000, 1),
        (None, 9500, 9),
        *[("another", 10_000, 0)] * 5,
        ("s", 99_000, 0),  # it was created again
    ]
    table = pa.Table.from_pylist(
        [
            {"partition": 0, "offset": number, "ordinal": 0, "clock": clock, "topic": T, "subscription": name,
             "entries": entries, "messages": 0, "size": 0, "cause": "because"}
            for number, (name, clock, entries) in enumerate(rows)
        ],
        schema,
    )  # fmt: skip
    sink = TableSink(str(tmp_path / "tables"))
    sink.begin(0)
    gone = {
        "partition": 0,
        "offset": 10,
        "ordinal": 0,
        "clock": 10_000,
        "topic": T,
        "subscription": "s",
        "cause": "deleted: by a client",
    }
    ends = pa.Table.from_pylist([gone], TABLES[KINDS[SubscriptionEvent]])
    sink.write(0, 0, {KINDS[MirrorDrift]: table, KINDS[SubscriptionEvent]: ends})
    found = drift_of(tmp_path)
    assert (found.rows, found.entries, found.seconds, found.where) == (12, 3, 4.5, f"{T}, s: because")


def ran(folder: Path) -> tuple[list[StateRow], Log]:
    """A query's store after a log in two micro-batches."""
    commands: list[dict[str, Any]] = [
        {"command": "SUBSCRIBE", "connection": "c", "consumer_id": 0, "request_id": 1, "subscription": "s", "subType": "Shared"},
        *({"producer": "p", "sequence_id": number, "payload": "x"} for number in range(4)),
    ]  # fmt: skip
    records = pa.table(
        {
            "partition": [0] * 5, "offset": [*range(5)], "timestamp": [1000 + number for number in range(5)], "topic": [T] * 5,
            "value": [json.dumps(each).encode() for each in commands],
        },
        RECORD,
    )  # fmt: skip
    store = LedgerStore(str(folder))
    sinks: list[Sink] = [store, QuarantineSink(str(folder)), TableSink(str(folder / "tables"))]
    fold = Fold(store)
    for batch in range(2):
        for sink in sinks:
            sink.begin(batch)
        for partition, rows in fold.apply(records.slice(batch * 3, 3)):
            for sink in sinks:
                sink.write(batch, partition, rows)
    return fold.states(), Log(records, {})


def test_rows_of_an_undisturbed_query(tmp_path: Path) -> None:
    states, log = ran(tmp_path / "run")
    count, wrong = of_rows(states, tmp_path / "run", log, tmp_path / "expected")
    assert wrong == []
    assert count > 5  # receipts, and what became of the subscription


def lost(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)


def repeated(path: Path) -> None:
    path.with_name("000000009-00000.parquet").write_bytes(path.read_bytes())


def changed(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(
        table.set_column(
            table.schema.get_field_index("clock"), "clock", pa.array([7] * len(table), pa.int64())
        ),
        path,
    )


@pytest.mark.parametrize("disturb", [lost, repeated, changed])
def test_rows_of_a_disturbed_query(tmp_path: Path, disturb: Callable[[Path], None]) -> None:
    states, log = ran(tmp_path / "run")
    first = sorted((tmp_path / "run" / "tables" / f"kind={KINDS[SendReceipt]}").iterdir())[0]
    disturb(first)
    _, wrong = of_rows(states, tmp_path / "run", log, tmp_path / "expected")
    assert len(wrong) == 1
    assert KINDS[SendReceipt] in wrong[0]


def test_a_state_that_is_not_the_logs(tmp_path: Path) -> None:
    states, log = ran(tmp_path / "run")
    _, wrong = of_rows(
        [each._replace(clock=1) for each in states], tmp_path / "run", log, tmp_path / "expected"
    )
    assert wrong == ["states: not those of a fold of the log"]


def test_each_topic_is_at_rest_once() -> None:
    looks: list[dict[str, Any]] = [
        {"the twin": "has not begun"},
        {"a": 1, "b": 1},
        {"b": 2, "c": 1},
        {"a": 3, "c": 1},
    ]
    assert at_rest(iter(looks).__next__, 60, 0) == {}


def test_a_topic_that_is_never_at_rest() -> None:
    number = iter(range(10**9))
    assert at_rest(lambda: {"a": 1, f"b{next(number)}": 2}, 0.01, 0) == {"a": 1}


def test_a_ledger_that_soon_went_may_be_missing_as_a_whole() -> None:
    watch = Watch(SimpleNamespace(admin_url="http://127.0.0.1:1"), 1)  # type: ignore[arg-type]
    watch.gone[T] = {1: 50.0, 2: 200.0}
    short = watch.short_lived({T: {(1, 0): 5.0, (1, 1): 10.0, (2, 0): 20.0}})
    assert short == {T: {1}}
    both, half = {T: {1: 2, 2: 1}}, {T: [(1, 0), (2, 0)]}
    assert [*of_entries({T: [(2, 0)]}, {T: [(1, 0), (1, 1), (2, 0)]}, both, both, short)] == []
    assert len([*of_entries(half, {T: [(1, 0), (1, 1)]}, both, both, short)]) == 3
    assert len([*of_entries({T: [(1, 0), (1, 1)]}, {}, both, both, short)]) == 2
