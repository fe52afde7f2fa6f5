"""The fold, and the replay in this process: what they need, how much waits in memory, what they do about failures."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import typer
from typer.testing import CliRunner, Result

from schemas.commands import Decoded, Refused
from schemas.effects import AdminResponse, Expired, Row
from schemas.entries import EntryNotFound
from schemas.records import Coordinates
from sinks.quarantine import QuarantineSink, read_set_aside
from sinks.storage import Damaged
from sinks.tables import read_table
from streaming.broker.broker import Broker
from streaming.broker.context import ROW_BYTES
from streaming.broker.errors import StateVersionError
from streaming.cli.app import app
from streaming.cli.options import milliseconds
from streaming.fold.columns import Fold, PartitionFold
from streaming.fold.records import FoldError, NoSuchRecord, Records, set_aside_by_name
from streaming.jobs.replay import replay_in_process
from streaming.log.files import write_log
from streaming.log.partition import partition_log
from streaming.quality.gate import decode_only
from tests.spark.helpers import START, Nowhere, log_of, traffic

T = "persistent://a/b/t"

CODE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pandas", "pyspark", "great_expectations"):
            tried.add(name)
            raise ModuleNotFoundError(name)

tried = set()
sys.meta_path.insert(0, Absent())
from streaming.jobs.replay import replay_in_process
result = replay_in_process(sys.argv[1], sys.argv[2])
print(result.records, sorted(result.rows.items()))
print(sorted(tried), sorted({"pandas", "pyspark", "great_expectations", "kafka"} & sys.modules.keys()))
"""


@pytest.mark.feature("J1")
def test_a_replay_needs_neither_spark_nor_pandas(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    write_log(log, traffic(messages=10))
    command = [sys.executable, "-c", CODE, str(log), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    rows, imports = done.stdout.splitlines()
    assert "('SEND_RECEIPT', 10)" in rows
    # pyarrow asks for pandas itself, whenever it is installed, when it first makes an array of Python values.
    assert imports == "['pandas'] []"


def test_a_fold_is_freed_without_the_garbage_collector() -> None:
    # Spark's workers live long. A cycle would keep every partition's broker and rows until the next collection.
    gc.disable()
    try:
        fold = PartitionFold(0, Nowhere(), None)
        fold.apply(Records([0], [1], [T], [b'{"producer": "p", "sequence_id": 0, "payload": "x"}']))
        fold.tick(2)
        fold.rows()
        fold.state()
        broker = weakref.ref(fold._records.broker)
        del fold
        assert broker() is None
    finally:
        gc.enable()


# -- output of any size ------------------------------------------------------------------------------------------


class Watched(Broker):
    """A broker that notes how many effects, and how many bytes of payloads, ever waited."""

    most_rows = 0
    most_bytes = 0

    def take(self) -> list[Row]:
        rows = super().take()
        Watched.most_rows = max(Watched.most_rows, len(rows))
        carried = sum(map(size_of, rows))
        Watched.most_bytes = max(Watched.most_bytes, carried)
        return rows


def size_of(row: Row) -> int:
    if isinstance(row.effect, AdminResponse):
        return len(msgspec.json.encode(row.effect.fields))
    return len(getattr(row.effect, "payload", None) or b"")


def backlog(entries: int = 300) -> list[object]:
    return [{"producer": "p", "sequence_id": number, "payload": "x"} for number in range(entries)]


def subscribed(name: str, id_: int, type_: str) -> object:
    fields = {"consumer_id": id_, "request_id": id_, "subscription": name, "subType": type_}
    return {"command": "SUBSCRIBE", "connection": f"c{id_}", "initialPosition": "Earliest", **fields}


def flow(id_: int, permits: int) -> object:
    return {"command": "FLOW", "connection": f"c{id_}", "consumer_id": id_, "messagePermits": permits}


def of(command: str, **fields: object) -> object:
    return {"command": command, "connection": "c1", "consumer_id": 1, **fields}


ONE_RECORD: dict[str, tuple[list[object], object]] = {
    "FLOW": ([*backlog(), subscribed("s", 1, "Exclusive")], flow(1, 1000)),
    "FLOW, Shared": ([*backlog(), subscribed("s", 1, "Shared")], flow(1, 1000)),
    "takeover": (
        [*backlog(), *(subscribed("s", id_, "Failover") for id_ in (1, 2)), flow(1, 1), flow(2, 1000)],
        of("CLOSE_CONSUMER", request_id=9),
    ),
    "redelivery": (
        [*backlog(), subscribed("s", 1, "Shared"), flow(1, 300), flow(1, 300)],
        of("REDELIVER_UNACKNOWLEDGED_MESSAGES", message_ids=[]),
    ),
    "fan-out": (
        [each for id_ in range(200) for each in (subscribed(f"s{id_}", id_, "Shared"), flow(id_, 5))],
        {"producer": "p", "sequence_id": 1, "payload": "x"},
    ),
    "a TICK after a silence": (
        [
            {"command": "ADMIN", "method": "POST", "path": "/persistent/a/b/t/messageTTL", "body": 60},
            *backlog(1),
            *(subscribed(f"s{id_}", id_, "Shared") for id_ in range(200)),
        ],
        {"command": "TICK"},
    ),
}


@pytest.mark.feature("J5")
@pytest.mark.parametrize("case", ONE_RECORD)
def test_a_record_puts_out_any_number_of_rows_and_few_wait(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, record = ONE_RECORD[case]
    commands = [*before, record]
    tick = record == {"command": "TICK"}
    rows = [
        (START + n if n < len(before) else START + 86_400_000, None if tick and n == len(before) else T, each)
        for n, each in enumerate(commands)
    ]
    log = partition_log(log_of(*rows), 1)
    whole = [own for _, own in Fold(Nowhere()).apply(log)]
    monkeypatch.setattr("streaming.broker.context.ROWS", 16)
    monkeypatch.setattr("sinks.rows.SPOOL_BYTES", 1 << 12)
    Watched.most_rows = 0
    pieces = [own for _, own in Fold(Nowhere(), broker=Watched).apply(log)]
    assert pieces == whole
    caused = sum(pc.sum(pc.equal(table["offset"], len(before))).as_py() for table in whole[0].values())
    assert caused >= 200
    assert Watched.most_rows == 16


@pytest.mark.feature("J5")
def test_payloads_count_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = "non-persistent://a/b/t"
    consumers = [each for id_ in range(100) for each in (subscribed(f"s{id_}", id_, "Shared"), flow(id_, 5))]
    commands = [*consumers, {"producer": "p", "sequence_id": 1, "payload": "x" * 100_000}]
    log = partition_log(log_of(*((START, topic, each) for each in commands)), 1)
    whole = [own for _, own in Fold(Nowhere()).apply(log)]
    assert len(whole[0]["MESSAGE"]) == 100
    monkeypatch.setattr("streaming.broker.context.ROWS", 256)
    Watched.most_bytes = 0
    assert [own for _, own in Fold(Nowhere(), broker=Watched).apply(log)] == whole
    assert Watched.most_bytes <= 256 * ROW_BYTES + 100_000


@pytest.mark.feature("J5")
def test_bodies_count_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    consumers = [subscribed(f"s{id_}", id_, "Shared") for id_ in range(100)]
    stats = {"command": "ADMIN", "connection": "c1", "method": "GET", "path": "/persistent/a/b/t/stats"}
    log = partition_log(log_of(*((START, T, each) for each in [*backlog(1), *consumers, *[stats] * 50])), 1)
    whole = [own for _, own in Fold(Nowhere()).apply(log)]
    monkeypatch.setattr("streaming.broker.context.ROWS", 256)
    Watched.most_bytes = 0
    assert [own for _, own in Fold(Nowhere(), broker=Watched).apply(log)] == whole
    sizes = [len(text) for text in whole[0]["ADMIN_RESPONSE"]["fields"].to_pylist()]
    assert max(sizes) <= Watched.most_bytes <= 256 * ROW_BYTES // 8 + max(sizes) < sum(sizes)


# -- failures ----------------------------------------------------------------------------------------------------


def failing(where: str, error: Exception) -> type[Broker]:
    """A broker that fails at offset 7, or in one of its other methods."""

    class Failing(Broker):
        def apply(
            self, offset: int, timestamp: int, topic: str | None, command: Decoded, value: bytes
        ) -> None:
            super().apply(offset, timestamp, topic, command, value)
            if value != POISON or isinstance(command, Refused):
                return
            if where == "apply":
                raise error
            if where == "rows":
                self._ctx.emit(Expired(str(topic), "s", 2**80, 0, 0, 0, 0, "ttl", "messageTTL 1 s"))

        def encode(self) -> bytes:
            if where == "encode":
                raise error
            return super().encode()

        def tick(self, timestamp: int) -> None:
            raise error

    return Failing


POISON = b'{"command":"TICK"}'
BUG = ZeroDivisionError("boom\n at a place")
LOG = partition_log(log_of(*((START + n, T, POISON if n == 7 else c) for n, c in enumerate(backlog(10)))), 1)
RECORD_7 = "partition 0, offset 7, topic 'persistent://a/b/t', "
ADVICE = "is a bug in Magnetar: please report it. Started again, .* start with --quarantine 0:7, or .*. Its value begins b'{"


@pytest.mark.feature("J6")
@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("apply", f"{RECORD_7}carrying out the command: ZeroDivisionError: boom at a place; this {ADVICE}"),
        ("rows", f"{RECORD_7}converting a row EXPIRED: .*; this is a bug .* start with --quarantine 0:7"),
        (
            "encode",
            "partition 0, after offset 9, encoding the state: ZeroDivisionError: .*No single record is to blame",
        ),
    ],
)
def test_a_failure_names_the_record_and_says_what_to_do(where: str, text: str) -> None:
    with pytest.raises(FoldError, match=text) as raised:
        list(Fold(Nowhere(), broker=failing(where, BUG), set_aside={}).apply(LOG))
    assert "\n" not in str(raised.value)  # Spark's messages are read line by line
    with pytest.raises(FoldError) as raised:
        list(Fold(Nowhere(), broker=failing(where, BUG)).apply(LOG))
    assert "--" not in str(raised.value)  # as of `magnetar.start`, which has no options
    assert ("to go on without it, leave it out" in str(raised.value)) == (where != "encode")


@pytest.mark.feature("J6")
def test_a_failure_of_the_gate_names_the_record() -> None:
    def judging(topics: Sequence[str | None], values: Sequence[bytes]) -> Iterator[Decoded]:
        if POISON in values:
            raise RecursionError("too deep")
        return decode_only(topics, values)

    with pytest.raises(
        FoldError, match=f"{RECORD_7}decoding and checking it: RecursionError: too deep; this {ADVICE}"
    ):
        list(Fold(Nowhere(), judge=judging, set_aside={}).apply(LOG))
    (rows,) = (
        rows for _, rows in Fold(Nowhere(), judge=judging, set_aside=set_aside_by_name([AT])).apply(LOG)
    )
    assert rows["QUARANTINED"]["payload"].to_pylist() == [POISON]


@pytest.mark.feature("J6")
@pytest.mark.parametrize(
    "error", [EntryNotFound("entry 1:0 is gone"), Damaged("f is damaged"), OSError("full")]
)
def test_a_failure_of_the_store_keeps_its_advice_and_gets_a_place(error: Exception) -> None:
    with pytest.raises(type(error), match=f"^{RECORD_7}carrying out the command: {error}$"):
        list(Fold(Nowhere(), broker=failing("apply", error)).apply(LOG))


@pytest.mark.feature("J6")
def test_a_state_that_can_not_be_decoded() -> None:
    (state,) = folded(LOG).states()
    bad = state._replace(broker=state.broker[:20])
    with pytest.raises(
        FoldError, match="partition 0, after offset 9, decoding the state: .*Restore checkpoint"
    ):
        PartitionFold(0, Nowhere(), bad)
    with pytest.raises(StateVersionError, match="run the version that wrote it"):
        PartitionFold(0, Nowhere(), state._replace(broker=b"\xff"))


@pytest.mark.feature("J6")
def test_a_tick_that_fails_blames_no_record() -> None:
    fold = PartitionFold(0, Nowhere(), folded(LOG).states()[0], broker=failing("tick", BUG))
    with pytest.raises(
        FoldError, match="partition 0, after offset 9, advancing the clock to 5: ZeroDiv"
    ) as raised:
        fold.tick(5)
    assert "--quarantine" not in str(raised.value)


# -- records set aside -------------------------------------------------------------------------------------------

AT = Coordinates(0, 7)


def folded(log: pa.Table, **options: Any) -> Fold:
    fold = Fold(Nowhere(), **options)
    list(fold.apply(log))
    return fold


@pytest.mark.feature("J6")
def test_a_record_set_aside_leaves_a_row_and_nothing_else() -> None:
    aside = set_aside_by_name([AT, Coordinates(1, 3)])
    times = pa.array([START + (10**9 if n == 7 else n) for n in range(10)])  # its time does not count either
    log = LOG.set_column(2, LOG.schema.field("timestamp"), times)
    fold = Fold(Nowhere(), broker=failing("apply", BUG), set_aside=aside)
    ((_, rows),) = fold.apply(log)
    (bad,) = rows["QUARANTINED"].to_pylist()
    assert (bad["offset"], bad["rule"], bad["payload"]) == (7, "set_aside", POISON)
    assert bad["cause"] == "an operator set the record aside: --quarantine 0:7"
    without = Fold(Nowhere())
    ((_, others),) = without.apply(log.filter(pc.not_equal(log["offset"], 7)))
    assert {kind: table for kind, table in rows.items() if kind != "QUARANTINED"} == others
    assert fold.states() == without.states()


@pytest.mark.feature("J6")
def test_a_replay_sets_the_same_records_aside(tmp_path: Path) -> None:
    first = replay_in_process(LOG, tmp_path / "a", set_aside=[AT])
    assert first.rows["QUARANTINED"] == 1
    again = replay_in_process(LOG, tmp_path / "b", quarantined=str(tmp_path / "a"), batches=3)
    assert read_table(str(tmp_path / "a/tables")) == read_table(str(tmp_path / "b/tables"))
    assert (first.rows, first.stats) == (again.rows, again.stats)


@pytest.mark.feature("J6")
def test_a_name_that_nothing_has_is_an_error(tmp_path: Path) -> None:
    for at in (Coordinates(0, 10), Coordinates(1, 7)):
        with pytest.raises(NoSuchRecord, match=f"the log has no record {at} to set aside"):
            replay_in_process(LOG, tmp_path / "a", set_aside=[at])
    with pytest.raises(NoSuchRecord, match="no such folder"):
        replay_in_process(LOG, tmp_path / "a", quarantined=str(tmp_path / "absent"))
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    with pytest.raises(NoSuchRecord, match="is not the store of a query: give the --store"):
        replay_in_process(LOG, tmp_path / "a", quarantined=str(tmp_path / "checkpoint"))


@pytest.mark.feature("J6")
def test_the_command_line_sets_records_aside(tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    write_log(log, LOG)

    def replay(*options: str) -> Result:
        return CliRunner().invoke(app, ["replay", str(log), "--no-spark", "--overwrite", *options])

    first = replay("--out", str(tmp_path / "a"), "--quarantine", "0:7", "--quarantine", "0:8", "--json")
    assert msgspec.json.decode(first.stdout)["rows"]["QUARANTINED"] == 2
    again = replay("--out", str(tmp_path / "b"), "--quarantined", str(tmp_path / "a"), "--json")
    assert msgspec.json.decode(again.stdout)["rows"] == msgspec.json.decode(first.stdout)["rows"]
    unused = replay("--out", str(tmp_path / "c"), "--quarantine", "0:99")
    assert (unused.exit_code, unused.output.count("\n")) == (2, 1)
    assert "the log has no record 0:99 to set aside" in unused.output
    assert replay("--out", str(tmp_path / "c"), "--quarantine", "7").exit_code == 2


@pytest.mark.feature("J6")
def test_a_failure_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(replay_in_process.__kwdefaults__ or {}, "broker", failing("apply", BUG))
    log = tmp_path / "log.parquet"
    write_log(log, LOG)
    result = CliRunner().invoke(app, ["replay", str(log), "--no-spark", "--out", str(tmp_path / "a")])
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith(f"magnetar: {RECORD_7}carrying out")


@pytest.mark.parametrize(
    ("text", "expected"), [("500ms", 500), ("90s", 90_000), ("30m", 1_800_000), ("1h", 3_600_000)]
)
def test_durations(text: str, expected: int) -> None:
    assert milliseconds(text) == expected


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "1.5h", "1hm", "²s", "99999999999s"])
def test_texts_that_are_not_durations(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected a number and a unit"):
        milliseconds(text)


# -- records ahead of time ---------------------------------------------------------------------------------------


@pytest.mark.feature("J4")
def test_records_ahead_of_time_do_not_take_the_clock_along(tmp_path: Path) -> None:
    times = [START + n + {3: 5000, 4: 5001, 5: 10**15}.get(n, 0) for n in range(10)]
    log = LOG.set_column(2, LOG.schema.field("timestamp"), pa.array(times))
    fold = PartitionFold(0, Nowhere(), None, latest=START + 5003)
    fold.apply(Records(*(log[name].to_pylist() for name in RECORDS)))
    rows = fold.rows()
    bad = rows["QUARANTINED"].to_pylist()
    assert [(row["offset"], row["rule"]) for row in bad] == [(4, "timestamp_ahead"), (5, "timestamp")]
    assert (
        bad[0]["cause"]
        == f"timestamp {START + 5005} is after {START + 5003}, the latest that the query accepts now"
    )
    assert fold.clock == START + 5003
    QuarantineSink(str(tmp_path)).write(0, 0, rows)
    again = Fold(Nowhere(), set_aside=read_set_aside(str(tmp_path)))
    ((_, same),) = again.apply(log)
    assert same == rows
    assert again.states() == [fold.state()]


RECORDS = ("offset", "timestamp", "topic", "value")
