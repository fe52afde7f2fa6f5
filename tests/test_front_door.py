"""`import magnetar`: what is public, that it is light, and that each function takes what a user has."""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import magnetar
from schemas.outputs import IDENTITY
from schemas.records import RECORD
from streaming.jobs.replay import replay_log
from streaming.log.files import write_log
from streaming.log.partition import partition_log
from streaming.log.table import LOGICAL
from streaming.state.seed import Seed, SeedWriter
from tests.e2e.processes import wait_until
from tests.spark.helpers import traffic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).parent.parent
TOPIC = "persistent://shop/day/orders"
HEAVY = ("pyspark", "pandas", "pyarrow", "numpy", "great_expectations", "kafka")
ORDERS = [
    {"topic": TOPIC, "timestamp": 1767225600000, "command": "SUBSCRIBE", "connection": "c1", "consumer_id": 0, "request_id": 1,
     "subscription": "billing", "subType": "Shared"},
    {"topic": TOPIC, "command": "FLOW", "connection": "c1", "consumer_id": 0, "messagePermits": 1},
    {"topic": TOPIC, "timestamp": 1767225601000, "producer": "web-1", "sequence_id": 0, "payload": "a book"},
    {"topic": TOPIC, "timestamp": 1767225602000, "producer": "web-1", "sequence_id": 1, "payload": "a lamp"},
    {"command": "ADMIN", "method": "POST", "path": "/namespaces/shop/day/messageTTL", "body": 60},
    {"timestamp": 1767226200000, "command": "TICK"},
]  # fmt: skip


# -- names


def imported() -> dict[str, tuple[str, str]]:
    """What the module imports for type checkers: the module and the name there, by the name here."""
    found = {}
    for node in ast.walk(ast.parse(Path(magnetar.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "importlib", "typing"):
            for each in node.names:
                found[each.asname or each.name] = (str(node.module), each.name)
    return found


def test_what_is_public_is_what_type_checkers_see_and_what_is_loaded() -> None:
    assert sorted(imported()) == sorted(magnetar.__all__) == dir(magnetar)
    assert {name: home for name, home in imported().items() if name != "__version__"} == magnetar._HOME
    assert magnetar.__all__ == sorted(magnetar.__all__, key=lambda name: (not name[0].isupper(), name))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        magnetar.nonsense  # noqa: B018


def test_the_guide_names_all() -> None:
    guide = (ROOT / "docs" / "reference" / "python.md").read_text()
    assert {name for name in magnetar.__all__ if f"`{name}`" not in guide} == set()


@pytest.mark.parametrize("name", sorted({*magnetar.__all__} - {"__version__"}))
def test_each_name_is_documented_and_typed(name: str) -> None:
    found = getattr(magnetar, name)
    assert inspect.getdoc(found), name
    if inspect.isfunction(found):
        signature = inspect.signature(found)
        assert signature.return_annotation is not inspect.Signature.empty
        for each in signature.parameters.values():
            assert each.annotation is not inspect.Parameter.empty, each
    else:
        assert inspect.isclass(found)


@pytest.mark.parametrize("name", sorted({*magnetar.__all__} - {"__version__"}))
def test_documentation_names_nothing_private(name: str) -> None:
    """Neither modules nor errors that a user could not import from here."""
    found = getattr(magnetar, name)
    documented = {name: found} | {
        f"{name}.{each}": value
        for each, value in (vars(found) if inspect.isclass(found) else {}).items()
        if not each.startswith("_") and callable(getattr(value, "__func__", value))
    }
    for each, value in documented.items():
        text = inspect.getdoc(value) or ""
        assert re.findall(r"(?:streaming|sinks|schemas)\.\w+", text) == [], each
        _, _, section = text.partition("Raises:")
        raised = {
            one for line in re.findall(r"(?m)^ +(\w+(?:, \w+)*): ", section) for one in line.split(", ")
        }
        raised |= {
            one
            for line in re.findall(r"Raises ((?:[^.]|\.\S)*)", text)
            for one in re.findall(r"`([A-Z]\w+)`", line)
        }
        assert {one for one in raised if not (one in magnetar.__all__ or hasattr(builtins, one))} == set(), (
            each
        )


def test_the_example_in_the_docstring_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example = str(magnetar.__doc__).partition("::\n")[2].partition("\n**")[0]
    exec(textwrap.dedent(example), {})
    assert capsys.readouterr().out == "[0]\nstored at 1:0\n"


def test_the_import_is_light() -> None:
    code = f"import sys, magnetar; magnetar.__version__; print([each for each in {HEAVY} if each in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_all_without_spark() -> None:
    """Only what is about DataFrames imports pyspark."""
    with_spark = {"BadCommands", "Written", "fold"}
    names = sorted({*magnetar.__all__} - with_spark)
    code = f"import sys, magnetar; [getattr(magnetar, each) for each in {names}]; print('pyspark' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_errors_have_one_base() -> None:
    errors = [getattr(magnetar, name) for name in magnetar.__all__]
    errors = [each for each in errors if isinstance(each, type) and issubclass(each, Exception)]
    assert len(errors) > 8
    assert all(issubclass(each, magnetar.MagnetarError) for each in errors)


# -- what a user has: paths and texts


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "orders.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in ORDERS))
    return path


def test_a_replay_and_its_rows(log: Path, tmp_path: Path) -> None:
    found = magnetar.replay(log, tmp_path / "out")
    assert found.rows["EXPIRED"] == 1
    (expired,) = magnetar.read_rows(tmp_path / "out", "EXPIRED").to_pylist()
    assert (expired["subscription"], expired["entries"]) == ("billing", 2)
    assert len(magnetar.read_rows(tmp_path / "out")) == sum(found.rows.values())
    assert magnetar.read_entries(str(tmp_path / "out"), TOPIC)["payload"].to_pylist() == [
        b"a book",
        b"a lamp",
    ]
    with pytest.raises(magnetar.NotFound, match="no kind EXPIRD: there are EXPIRED"):
        magnetar.read_rows(tmp_path / "out", "EXPIRD")
    assert len(magnetar.read_entries(tmp_path / "out", "shop/day/orders")) == 2
    with pytest.raises(magnetar.NotFound, match="there is no topic shop/day/order: there is"):
        magnetar.read_entries(tmp_path / "out", "shop/day/order")
    with pytest.raises(magnetar.NotFound, match="nowhere: no such folder"):
        magnetar.read_entries(tmp_path / "nowhere")
    with pytest.raises(magnetar.InTheWay, match="isn't empty"):
        magnetar.replay(log, tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        magnetar.replay(tmp_path / "nowhere.jsonl", tmp_path / "new")
    assert magnetar.replay(magnetar.read_log(log), tmp_path / "out", overwrite=True).rows == found.rows


def test_the_life_of_a_message(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    magnetar.replay(log, tmp_path / "out")
    (life,) = magnetar.explain(tmp_path / "out", "shop/day/orders", position=(1, 1))
    assert (life.fate, life.producer, life.sequence_id) == ("stored", "web-1", 1)
    assert [each.outcome for each in life.subscriptions] == ["expired"]
    assert magnetar.explain(str(tmp_path / "out"), TOPIC, producer="web-1", sequence_id=1) == [life]
    (of_log,) = magnetar.explain(log, TOPIC, position=(1, 1))
    assert of_log.subscriptions == life.subscriptions
    (before,) = magnetar.explain(log, TOPIC, position=(1, 1), at=4)
    assert [each.outcome for each in before.subscriptions] == ["waiting"]
    (same,) = magnetar.explain(
        log, TOPIC, position=(1, 1), at="2026-01-01T00:00:03", snapshots=tmp_path / "own"
    )
    assert [each.outcome for each in same.subscriptions] == ["waiting"]
    assert (tmp_path / "own" / "snapshots").is_dir()
    with pytest.raises(magnetar.NotFound, match="only a log has moments"):
        magnetar.explain(tmp_path / "out", TOPIC, position=(1, 1), at=3)
    with pytest.raises(magnetar.NotFound, match="no topic x"):
        magnetar.explain(tmp_path / "out", "x", position=(1, 1))


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"producer": "web-1"},
        {"sequence_id": 1},
        {"position": (1, 1), "producer": "web-1", "sequence_id": 1},
        {"position": (1, 1), "sequence_id": 1},
    ],
)
def test_a_message_is_named_in_one_way(named: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="name a message by position, or by producer and sequence_id"):
        magnetar.explain("out", TOPIC, **named)


def test_other_policies(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "week.jsonl"
    other.write_text(json.dumps({**ORDERS[4], "body": 604_800}) + "\n")
    found = magnetar.whatif(log, other, partitions=1, processes=1)
    assert [(each.policies, each.expired) for each in found.totals] == [("baseline", 2), ("week", 0)]
    assert [each.policies for each in magnetar.whatif(log, profile="2.x", partitions=1).totals] == [
        "baseline",
        "profile 2.x",
    ]
    magnetar.replay(log, tmp_path / "before")
    magnetar.replay(log, tmp_path / "after", policies=other)
    assert [each.expired for each in magnetar.diff(tmp_path / "before", tmp_path / "after").totals] == [2, 0]
    needs = magnetar.advise(log, partitions=1, processes=1).needs
    assert "messageTTL" in {each.policy for each in needs}


def test_a_scenario_in_a_file(tmp_path: Path) -> None:
    found = magnetar.check(ROOT / "docs" / "scenarios" / "key_shared.yaml")
    assert [each.violation.invariant for each in found.counterexamples] == ["starved"]
    (tmp_path / "bad.yaml").write_text("clints: {}\n")
    with pytest.raises(magnetar.ScenarioError, match="clints"):
        magnetar.check(str(tmp_path / "bad.yaml"))


def test_the_smallest_log(log: Path) -> None:
    waiting = magnetar.read_log(log).slice(0, 4)
    stuck = magnetar.minimize(waiting, f"stuck({TOPIC}, billing)", most=1)
    assert stuck.keep == f"stuck({TOPIC}, billing)"
    lost = magnetar.minimize(log, f"lost({TOPIC}, 1:1)")
    assert lost.after < lost.before == len(ORDERS)

    def two_receipts(folded: Any) -> bool:
        return sum(type(each).__name__ == "SendReceipt" for each in folded.effects) == 2

    assert [json.loads(line)["sequence_id"] for line in magnetar.minimize(log, two_receipts).lines] == [0, 1]
    with pytest.raises(magnetar.KeepError, match="expected stuck"):
        magnetar.minimize(log, "nonsense")


def test_moments_of_a_log(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    timeline = magnetar.Timeline(log)
    assert len(timeline) == len(ORDERS)
    backlogs = [magnetar.views(timeline.states(at))["topics"]["backlog"].to_pylist() for at in (1, 3, 4)]
    assert backlogs == [[0], [1], [2]]
    assert any((tmp_path / "cache").rglob("snapshots"))


def test_the_core_alone() -> None:
    broker = magnetar.Broker()
    value = json.dumps({"producer": "web-1", "sequence_id": 0, "payload": "a book"}).encode()
    broker.apply(0, 1767225600000, TOPIC, magnetar.decode(value), value)
    broker.apply(1, 1767225600000, TOPIC, magnetar.decode(b"{}"), b"{}")
    assert [type(row.effect).__name__ for row in broker.take()] == [
        "TopicEvent",
        "SendReceipt",
        "Quarantined",
    ]
    assert magnetar.Broker.decode.__doc__


# -- DataFrames


SCHEMA = "partition int, offset bigint, timestamp bigint, topic string, value binary"


def same(rows: pa.Table, others: pa.Table) -> bool:
    """Whether two tables of output rows have the same rows."""
    names = sorted(rows.column_names)
    ours, theirs = (
        each.select(names).sort_by([(name, "ascending") for name in IDENTITY]).to_pylist()
        for each in (rows, others)
    )
    return bool(ours == theirs)


def files(folder: Path, records: pa.Table, count: int, first: int = 0) -> None:
    """Records in Parquet files, each of which is a micro-batch."""
    folder.mkdir(exist_ok=True)
    cuts = [len(records) * number // count for number in range(count + 1)]
    for number in range(count):
        path = folder / f"{first + number:04d}.parquet"
        pq.write_table(records.slice(cuts[number], cuts[number + 1] - cuts[number]), path)
        os.utime(path, (1_700_000_000 + first + number,) * 2)


def stream(spark: SparkSession, folder: Path, schema: str = SCHEMA) -> DataFrame:
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def batch(spark: SparkSession, log: pa.Table, folder: Path) -> DataFrame:
    files(folder, log, 1)
    return spark.read.parquet(str(folder))


def in_order(log: pa.Table) -> pa.Table:
    """A log without partitions, with the offsets that a user's own DataFrame has."""
    return log.append_column(RECORD.field("offset"), pa.array(range(10, 10 + len(log)), pa.int64()))


@pytest.mark.spark
def test_a_fold_gives_the_rows_of_a_replay(spark: SparkSession, tmp_path: Path) -> None:
    log = traffic()
    replay_log(log, tmp_path / "out", spark=spark)
    commands = batch(spark, log, tmp_path / "in")
    assert same(magnetar.fold(commands).toArrow(), magnetar.read_rows(tmp_path / "out"))
    expired = magnetar.fold(commands, "EXPIRED").toArrow()
    assert len(expired)
    assert same(expired, magnetar.read_rows(tmp_path / "out", "EXPIRED"))
    assert (
        magnetar.replay(log, tmp_path / "again", spark=spark).rows
        == magnetar.replay(log, tmp_path / "here").rows
    )


@pytest.mark.spark
def test_a_fold_without_partitions_puts_commands_where_a_log_does(
    spark: SparkSession, tmp_path: Path, log: Path
) -> None:
    plain = magnetar.read_log(log)
    commands = batch(spark, in_order(plain), tmp_path / "in")
    rows = magnetar.fold(commands, partitions=3).toArrow()
    magnetar.replay(plain, tmp_path / "out", partitions=3)
    expected = magnetar.read_rows(tmp_path / "out")
    assert len(rows) == len(expected)
    for name in ("partition", "kind", "clock", "topic"):
        order = [("partition", "ascending"), ("clock", "ascending"), ("kind", "ascending")]
        assert rows.sort_by(order)[name].to_pylist() == expected.sort_by(order)[name].to_pylist()


@pytest.mark.spark
def test_a_negative_offset_stops_a_query_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It goes on when the row is left out."""
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import functions as F

    files(tmp_path / "in", traffic().slice(0, 20), 1)

    def run(least: int) -> None:
        commands = stream(spark, tmp_path / "in").withColumn("offset", F.expr("offset - 1"))
        magnetar.start(
            commands.where(f"offset >= {least}"), checkpoint=tmp_path / "ckpt", store=tmp_path / "store", clock="log", quality=False,
            trigger="availableNow",
        ).awaitTermination()  # fmt: skip

    for _ in range(2):
        with pytest.raises(
            StreamingQueryException, match="BadCommands: a command has the offset -1, and"
        ) as failed:
            run(least=-1)
        assert "--quarantine" not in str(failed.value)
        assert not list((tmp_path / "store").rglob("*.parquet"))
    run(least=0)
    assert min(magnetar.read_rows(tmp_path / "store")["offset"].to_pylist()) == 0


def crash(*, at: int) -> Callable[[magnetar.Written], None]:
    def on_batch(written: magnetar.Written) -> None:
        if written.batch_id == at:
            raise ZeroDivisionError("as if the machine had gone down")

    return on_batch


@pytest.mark.spark
def test_a_restarted_query_gives_the_rows_of_one_run(spark: SparkSession, tmp_path: Path) -> None:
    """After a failure between the writes of a micro-batch and Spark's commit, after a stop, and with files that came meanwhile."""
    from pyspark.errors import StreamingQueryException

    log, seen = traffic(), list[int]()
    tasks = spark.conf.get("spark.sql.shuffle.partitions")
    magnetar.replay(log, tmp_path / "out")
    files(tmp_path / "in", log.slice(0, 800), 4)

    def start(**given: Any) -> StreamingQuery:
        return magnetar.start(
            stream(spark, tmp_path / "in"), checkpoint=tmp_path / "ckpt", store=tmp_path / "store", clock="log", quality=False,
            **({"trigger": "availableNow"} | given),
        )  # fmt: skip

    with pytest.raises(StreamingQueryException, match="as if the machine had gone down"):
        start(on_batch=crash(at=2)).awaitTermination()
    running = start(trigger="100ms", on_batch=lambda written: seen.append(written.batch_id))
    with pytest.raises(magnetar.InUse, match="in use by magnetar.start"):
        start()
    running.processAllAvailable()
    running.stop()
    assert seen[:2] == [2, 3]
    files(tmp_path / "in", log.slice(800), 3, first=4)
    start().awaitTermination()
    assert same(magnetar.read_rows(tmp_path / "store"), magnetar.read_rows(tmp_path / "out"))
    assert magnetar.read_entries(tmp_path / "store").equals(magnetar.read_entries(tmp_path / "out"))
    (life, *_) = magnetar.explain(
        tmp_path / "store", "t0", position=(1, 0), checkpoint=tmp_path / "ckpt"
    )  # fmt: skip
    assert life.fate == "stored"
    assert spark.conf.get("spark.sql.shuffle.partitions") == tasks


@pytest.mark.spark
def test_what_is_available_now_by_the_clock_of_the_trigger(spark: SparkSession, tmp_path: Path) -> None:
    """It ends, and each start with records looks at the time."""
    names = "spark.sql.streaming.noDataMicroBatches.enabled", "spark.sql.shuffle.partitions"
    before = [spark.conf.get(name) for name in names]
    log = traffic()
    log, last = log.slice(0, len(log) - 1), log.slice(len(log) - 1)
    files(tmp_path / "in", log, 3)
    begun = time.time_ns() // 1_000_000
    seen: list[int] = []

    def clocks() -> dict[int, int]:
        running = magnetar.start(
            stream(spark, tmp_path / "in"), checkpoint=tmp_path / "ckpt", store=tmp_path / "store", quality=False, trigger="availableNow",
            on_batch=lambda written: seen.append(written.batch_id),
        )  # fmt: skip
        assert running.awaitTermination(300), "it goes on for ever"
        return {each.partition: each.clock for each in magnetar.states_at(spark, tmp_path / "ckpt")}

    first = clocks()
    assert seen == [0, 1, 2]
    assert min(first.values()) >= begun
    assert clocks() == first
    files(tmp_path / "in", last, 1, first=3)
    second = clocks()
    assert seen == [0, 1, 2, 3]
    (partition,) = last["partition"].to_pylist()
    assert second[partition] > first[partition]
    assert [spark.conf.get(name) for name in names] == before


@pytest.mark.spark
@pytest.mark.parametrize("crash_at", ["table", "on_batch"])
@pytest.mark.parametrize("options", [(None, 3_600_000), (3_600_000, None)])
def test_a_repeated_micro_batch_is_decided_by_the_options_of_its_first_attempt(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: str, options: tuple[int | None, int | None],
) -> None:  # fmt: skip
    """A record two hours ahead, whether the crash comes before or after the commit of the table. New options count from the next one on."""
    from pyspark.errors import StreamingQueryException

    from sinks.quarantine import read_quarantine
    from sinks.tables import DeltaSink

    def send(offset: int) -> None:
        now = time.time_ns() // 1_000_000
        value = json.dumps({"producer": "w", "sequence_id": offset, "payload": f"m{offset}"}).encode()
        rows = [{"offset": offset, "timestamp": now + 7_200_000, "topic": TOPIC, "value": value}]
        files(tmp_path / "in", pa.Table.from_pylist(rows), 1, first=offset)

    def fold(max_ahead_ms: int | None, **given: Any) -> None:
        commands = stream(
            spark, tmp_path / "in", "offset bigint, timestamp bigint, topic string, value binary"
        )
        magnetar.start(
            commands, checkpoint=tmp_path / "ckpt", store=tmp_path / "store", partitions=1, quality=False, trigger="availableNow",
            max_ahead_ms=max_ahead_ms, **given,
        ).awaitTermination()  # fmt: skip

    send(0)
    with monkeypatch.context() as patch:
        if crash_at == "table":
            patch.setattr(DeltaSink, "commit", lambda *_: 1 // 0)
        with pytest.raises(StreamingQueryException):
            fold(options[0], on_batch=crash(at=0))
    fold(options[1])
    send(1)
    fold(options[1])
    folded = [offset for offset in (0, 1) if options[offset] is None]
    rows = magnetar.read_rows(tmp_path / "store", "SEND_RECEIPT")
    assert rows["offset"].to_pylist() == folded
    assert magnetar.read_entries(tmp_path / "store")["payload"].to_pylist() == [
        f"m{offset}".encode() for offset in folded
    ]
    aside = read_quarantine(str(tmp_path / "store"))["offset"].to_pylist()
    assert aside == [offset for offset in (0, 1) if offset not in folded]


ODD_NAMES = ["sp ace", "~ a#b?c[x]{y,z}*\"o'te^`|<>a:b,ünï☃;$HOME&b=c+d ", "%20cent\\slash\nline\t\x7f"]
REFUSED_IN_A_TABLE = ODD_NAMES[-1]


@pytest.mark.spark
@pytest.mark.parametrize("name", ODD_NAMES)
def test_folders_with_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """A query, and a replay with Spark. What can't be in a name is refused before anything is there."""
    from streaming.spark.state import committed_states

    log, folder = traffic().slice(0, 60), tmp_path / name
    files(tmp_path / "in", log, 2)
    store = folder / "store"

    def start(store: Path) -> None:
        magnetar.start(
            stream(spark, tmp_path / "in"), checkpoint=folder / "ckpt", store=store, clock="log", quality=False, trigger="availableNow",
        ).awaitTermination()  # fmt: skip

    if name == REFUSED_IN_A_TABLE:
        with pytest.raises(magnetar.MagnetarError, match=" in its name; use another one, or no tables"):
            start(store)
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and "in" not in path.parts]
        store = tmp_path / "store"
    assert committed_states(spark, folder / "ckpt") == []
    start(store)
    files(tmp_path / "in", traffic().slice(60, 60), 1, first=2)
    start(store)
    magnetar.replay(traffic().slice(0, 120), folder / "out", spark=spark)
    assert same(magnetar.read_rows(store), magnetar.read_rows(folder / "out"))
    found = magnetar.states_at(spark, folder / "ckpt")
    assert found
    assert found == committed_states(spark, folder / "ckpt")
    (life, *_) = magnetar.explain(store, "t0", position=(1, 0), checkpoint=folder / "ckpt")
    assert life.fate == "stored"


@pytest.mark.spark
def test_a_checkpoint_with_commits_has_states_or_says_why(spark: SparkSession, tmp_path: Path) -> None:
    from streaming.spark.checkpoint import BadCheckpoint
    from streaming.spark.state import committed_states

    folder = tmp_path / "sp ace"
    (folder / "commits").mkdir(parents=True)
    (folder / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    with pytest.raises(Exception, match="STDS_"):
        committed_states(spark, folder)
    with pytest.raises(BadCheckpoint, match="' ' in its URL"):
        committed_states(spark, f"file://{folder}")


KILLED = """
import os, signal, sys
import magnetar

def on_batch(written):
    if str(written.batch_id) == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

spark = magnetar.spark_session(shuffle_partitions=2)
commands = spark.readStream.schema(sys.argv[2]).option("maxFilesPerTrigger", 1).parquet(f"{sys.argv[1]}/in")
magnetar.start(
    commands, checkpoint=f"{sys.argv[1]}/ckpt", store=f"{sys.argv[1]}/store", clock="log", trigger="availableNow", on_batch=on_batch,
).awaitTermination()
"""


@pytest.mark.spark
def test_killed_and_started_again(tmp_path: Path) -> None:
    magnetar.replay(traffic(), tmp_path / "out")
    files(tmp_path / "in", traffic(), 4)
    for batch_id, code in (("1", -signal.SIGKILL), ("none", 0)):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path), SCHEMA, batch_id], capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
    assert same(magnetar.read_rows(tmp_path / "store"), magnetar.read_rows(tmp_path / "out"))


@pytest.mark.spark
def test_time_goes_on_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    """By the clock of the trigger, without any command."""
    commands = partition_log(
        pa.Table.from_pylist(
            [
                {"timestamp": 1767225600000, "topic": None, "value": json.dumps(ORDERS[4]).encode()},
                *({"timestamp": 1767225600000, "topic": TOPIC, "value": json.dumps(
                    {name: value for name, value in each.items() if name not in ("topic", "timestamp")}).encode()}
                  for each in ORDERS[:2]),
            ],
            LOGICAL,
        ),
        2,
    )  # fmt: skip
    files(tmp_path / "in", commands, 1)

    def start() -> StreamingQuery:
        return magnetar.start(
            stream(spark, tmp_path / "in"), checkpoint=tmp_path / "ckpt", store=tmp_path / "store", trigger="100ms", partitions=2,
            quality=False, name="orders",
        )  # fmt: skip

    rows = []
    for _ in range(2):
        running = start()
        assert running.name == "orders"
        try:
            wait_until(lambda: len(running.recentProgress) > 2, "time goes on")  # noqa: B023 (it is called at once)
            rows.append(sum(each["numInputRows"] for each in running.recentProgress))
        finally:
            running.stop()
    assert rows[0] > 0
    assert rows[1] == 0, "micro-batches without commands"
    with pytest.raises(magnetar.MagnetarError, match="began with 2 ingress partitions, not 3"):
        magnetar.start(
            stream(spark, tmp_path / "in"),
            checkpoint=tmp_path / "ckpt",
            store=tmp_path / "store",
            partitions=3,
        )


@pytest.mark.spark
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["offset", "timestamp", "topic"], "no column value: expected offset"),
        (["timestamp"], "no column offset and no column topic and no column value"),
        (["offset", "timestamp", "topic", "value", "topic AS key"], "a column key that no command has"),
        (
            ["offset", "timestamp", "topic", "value", "value AS value"],
            "has several columns value: select one",
        ),
        (["offset", "timestamp", "topic", "true AS value"], "the column value has the type boolean"),
        (
            ["offset", "CAST(timestamp AS string)", "topic", "value"],
            "the column timestamp has the type string",
        ),
        (
            ["CAST(partition AS double)", "offset", "timestamp", "topic", "value"],
            "the column partition has the type double",
        ),
    ],
)
def test_wrong_columns(spark: SparkSession, tmp_path: Path, columns: list[str], message: str) -> None:
    files(tmp_path / "in", traffic().slice(0, 10), 1)
    with pytest.raises(magnetar.BadCommands, match=message):
        magnetar.start(
            stream(spark, tmp_path / "in").selectExpr(*columns),
            checkpoint=tmp_path / "ckpt",
            store=tmp_path / "store",
        )
    with pytest.raises(magnetar.BadCommands, match=message):
        magnetar.fold(spark.read.parquet(str(tmp_path / "in")).selectExpr(*columns))
    assert {each.name for each in tmp_path.iterdir()} == {"in"}


@pytest.mark.spark
def test_other_mistakes(spark: SparkSession, tmp_path: Path) -> None:
    files(tmp_path / "in", traffic().slice(0, 10), 1)
    good, at_rest = stream(spark, tmp_path / "in"), spark.read.parquet(str(tmp_path / "in"))
    places: dict[str, Any] = {"checkpoint": tmp_path / "ckpt", "store": tmp_path / "store"}
    with pytest.raises(magnetar.BadCommands, match="is a batch"):
        magnetar.start(at_rest, **places)
    with pytest.raises(magnetar.BadCommands, match="is a stream"):
        magnetar.fold(good)
    with pytest.raises(magnetar.BadCommands, match="no kind EXPIRD"):
        magnetar.fold(at_rest, "EXPIRD")
    with pytest.raises(ValueError, match="partitions is 0"):
        magnetar.fold(at_rest, partitions=0)
    with pytest.raises(magnetar.BadCommands, match="1000000 partitions: expected 1 to"):
        magnetar.fold(at_rest, partitions=1_000_000)
    with pytest.raises(ValueError, match="keep_outputs has no effect without tables"):
        magnetar.start(good, **places, tables=False, keep_outputs=timedelta(30))
    with pytest.raises(ValueError, match="max_ahead_ms has no effect with the clock log"):
        magnetar.start(good, **places, clock="log", max_ahead_ms=5)
    with pytest.raises(magnetar.MagnetarError, match="expected a number and a unit"):
        magnetar.start(good, **places, trigger="often")
    assert {each.name for each in tmp_path.iterdir()} == {"in"}
    from pyspark.errors import PythonException

    with pytest.raises(PythonException, match="a command has no offset"):
        magnetar.fold(
            at_rest.selectExpr("CAST(NULL AS bigint) AS offset", "timestamp", "topic", "value")
        ).count()
    for offset in (-1, 10**18):
        with pytest.raises(PythonException, match=f"has the offset {offset}, and offsets are from 0 to"):
            magnetar.fold(at_rest.selectExpr(f"{offset} AS offset", "timestamp", "topic", "value")).count()
    with pytest.raises(PythonException, match="there are 1, numbered from 0"):
        magnetar.fold(
            at_rest.selectExpr("3 AS partition", "offset", "timestamp", "topic", "value"), partitions=1
        ).count()
    times = at_rest.selectExpr(
        "partition",
        "offset",
        "timestamp_millis(timestamp) AS timestamp",
        "topic",
        "CAST(value AS string) AS value",
    )
    assert same(magnetar.fold(times).toArrow(), magnetar.fold(at_rest).toArrow())
    write_log(tmp_path / "log.jsonl", traffic())
    magnetar.replay(tmp_path / "log.jsonl", tmp_path / "out")
    with pytest.raises(magnetar.MagnetarError, match="is the result of a replay"):
        magnetar.start(good, checkpoint=tmp_path / "ckpt", store=tmp_path / "out")
    assert not (tmp_path / "out" / "ingress.json").exists()
    SeedWriter(str(tmp_path / "seeded")).finish(Seed(partitions=1))
    with pytest.raises(magnetar.MagnetarError, match="has the states of a magnetar run"):
        magnetar.start(good, checkpoint=tmp_path / "new", store=tmp_path / "seeded")


def test_the_types_are_those_of_the_functions() -> None:
    """A type checker follows the imports of the module, which is part of a typed package."""
    assert (ROOT / "magnetar" / "py.typed").exists()
    assert (
        get_type_hints(magnetar.explain, vars(sys.modules["streaming.answers.explain.life"]))["return"]
        == list[magnetar.Life]
    )
