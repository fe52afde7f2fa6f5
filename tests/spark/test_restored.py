"""A checkpoint that was restored from a copy, and is older than the store: the query is refused, and the store stays as it is."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import magnetar
from streaming.cli.app import app
from streaming.jobs.run import run_query
from streaming.kafka.produce import produce_log
from streaming.spark.checkpoint import BadCheckpoint, committed
from streaming.state.dump import read_dump, read_header
from tests.spark.helpers import traffic
from tests.test_front_door import SCHEMA, crash, files, same

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streaming.kafka.local import LocalKafka

pytestmark = [pytest.mark.feature("J2"), pytest.mark.spark]


def tree(folder: Path) -> dict[str, str]:
    """A digest of each file, by its path below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in found}


class Life:
    """A query over files. `run` folds those that are there, `at_once` in a micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        log = traffic()
        self.log = log.slice(0, 1200)
        files(folder / "in", self.log, 6)
        self.later = folder / "later"
        self.later.mkdir()
        for path in sorted((folder / "in").iterdir())[2:]:
            path.rename(self.later / path.name)

    def come(self, count: int) -> None:
        for path in sorted(self.later.iterdir())[:count]:
            path.rename(self.folder / "in" / path.name)

    def run(self, *, at_once: int = 1, checkpoint: str = "ckpt", store: str = "store", **given: Any) -> None:
        commands = (
            self.spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", at_once)
            .parquet(str(self.folder / "in"))
        )
        magnetar.start(
            commands, checkpoint=self.folder / checkpoint, store=self.folder / store, clock="log", quality=False, trigger="availableNow",
            **given,
        ).awaitTermination()  # fmt: skip

    def copy(self, name: str) -> None:
        shutil.copytree(self.folder / name, self.folder / f"{name}-old")


@pytest.fixture
def life(spark: SparkSession, tmp_path: Path) -> Life:
    """Two micro-batches, a copy of the checkpoint, and a third one."""
    life = Life(spark, tmp_path)
    life.run()
    life.copy("ckpt")
    life.copy("store")
    life.come(1)
    life.run()
    life.come(1)
    return life


def test_one_micro_batch_older(life: Life) -> None:
    before = tree(life.folder / "store")
    with pytest.raises(
        magnetar.MagnetarError, match="holds output of micro-batch 2, but the query is at micro-batch 1: "
    ):
        life.run(at_once=2, checkpoint="ckpt-old")
    assert tree(life.folder / "store") == before
    life.run()  # with the checkpoint that goes with the store
    assert magnetar.read_rows(life.folder / "store").num_rows > 0


def one_older(life: Life) -> None:
    shutil.rmtree(life.folder / "store")
    (life.folder / "store-old").rename(life.folder / "store")


def missing(life: Life) -> None:
    shutil.rmtree(life.folder / "store")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            one_older,
            "holds output of micro-batches up to 1, but the query is at micro-batch 2: the store is older",
        ),
        (missing, "holds nothing, but the query is at micro-batch 2: the store is older"),
    ],
)
def test_a_store_that_is_older_than_its_checkpoint(
    life: Life, change: Callable[[Life], None], said: str
) -> None:
    change(life)
    before = tree(life.folder / "store")
    with pytest.raises(Exception, match=said):
        life.run()
    assert tree(life.folder / "store") == before


def test_a_copy_that_went_on_and_committed(life: Life) -> None:
    """The copies of checkpoint and store folded a micro-batch 2 of their own. The store has another one."""
    life.run(at_once=2, checkpoint="ckpt-old", store="store-old")
    life.come(1)
    before = tree(life.folder / "store")
    with pytest.raises(
        Exception, match="holds output of another micro-batch 2 than the one that the query has"
    ):
        life.run(checkpoint="ckpt-old")
    assert tree(life.folder / "store") == before


def test_a_store_that_lost_its_newest_files(life: Life) -> None:
    """The query repeats the micro-batch, if its commit is deleted as the message says."""
    store = life.folder / "store"
    for pattern in ("segments/00000/*", "tables/_delta_log/*.json"):
        max(store.glob(pattern)).unlink()
    before = tree(store)
    with pytest.raises(
        magnetar.MagnetarError,
        match=r"lacks segments/00000/0-000000002-000000002-0.parquet \(the first of 2 missing files\), which",
    ):
        life.run()
    assert tree(store) == before
    (life.folder / "ckpt" / "commits" / "2").unlink()
    life.come(2)
    life.run()
    magnetar.replay(life.log, life.folder / "out")
    assert same(magnetar.read_rows(store), magnetar.read_rows(life.folder / "out"))
    assert magnetar.read_entries(store).equals(magnetar.read_entries(life.folder / "out"))


def no_note(store: Path) -> None:
    """As a store of the previous release is."""
    (store / "begun.json").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda store: None, "output of another micro-batch 2 than"),
        (no_note, "has other rows than the query would write"),
    ],
)
def test_planned_anew_beside_the_store(life: Life, change: Callable[[Path], object], said: str) -> None:
    """The restored checkpoint went on with another store, so it has planned a micro-batch 2 of its own."""
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException, match="as if the machine had gone down"):
        life.run(at_once=2, checkpoint="ckpt-old", store="store-old", on_batch=crash(at=2))
    change(life.folder / "store")
    before = tree(life.folder / "store")
    with pytest.raises(StreamingQueryException, match=said):
        life.run(at_once=2, checkpoint="ckpt-old")
    after = tree(life.folder / "store")
    tables = {path for path in before if path.startswith("tables")}
    assert {path: after[path] for path in tables} == {path: before[path] for path in tables}
    if change is not no_note:
        assert after == before
    life.run(at_once=2, checkpoint="ckpt-old", store="store-old")  # where it was planned, it is a repeat


def test_a_repeat_that_the_previous_release_planned(life: Life) -> None:
    """It wrote everything, and no note."""
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException, match="as if the machine had gone down"):
        life.run(on_batch=crash(at=3))
    no_note(life.folder / "store")
    life.come(2)
    life.run()
    magnetar.replay(life.log, life.folder / "out")
    assert same(magnetar.read_rows(life.folder / "store"), magnetar.read_rows(life.folder / "out"))
    assert magnetar.read_entries(life.folder / "store").equals(magnetar.read_entries(life.folder / "out"))


@pytest.mark.parametrize(("checkpoint", "store"), [("x", "x"), ("x/tables/ckpt", "x"), ("x", "x/store")])
def test_checkpoint_and_store_are_apart(life: Life, checkpoint: str, store: str) -> None:
    with pytest.raises(
        magnetar.MagnetarError, match="are one folder, or one is in the other: give the query"
    ):
        life.run(checkpoint=checkpoint, store=store)
    assert not (life.folder / "x").exists()


@pytest.mark.kafka
def test_a_query_over_kafka(spark: SparkSession, kafka: LocalKafka, tmp_path: Path) -> None:
    """After a start, it plans an empty micro-batch, which would have the number of one that the store has."""
    ingress, (old, checkpoint, store) = (
        f"kafka://{kafka.bootstrap}/restored-checkpoint",
        (tmp_path / name for name in ("old", "ckpt", "store")),
    )
    produce_log(traffic().drop_columns(["partition", "offset"]).slice(0, 600), ingress, partitions=4)
    stop, seen = threading.Event(), list[int]()

    def done(written: magnetar.Written) -> None:
        seen.append(written.batch_id)
        if len(seen) == 2:
            shutil.copytree(checkpoint, old)
            (old / "offsets" / str(written.batch_id)).unlink()  # as if copied before it was planned
        if len(seen) > 1:
            stop.set()

    def run() -> None:
        run_query(
            ingress, checkpoint, str(store), spark=spark, on_batch=done, stop=stop, quality=False, max_ahead_ms=None,
            records_per_batch=400,
        )  # fmt: skip

    run()
    shutil.rmtree(checkpoint)
    old.rename(checkpoint)
    before = tree(store)
    stop.clear()
    with pytest.raises(
        magnetar.MagnetarError,
        match=rf"holds output of micro-batch \d+, but the query is at micro-batch {seen[0]}: ",
    ):
        run()
    assert tree(store) == before


@pytest.mark.parametrize(("clock", "other"), [("log", "trigger"), ("trigger", "log")])
def test_another_clock(spark: SparkSession, tmp_path: Path, clock: Any, other: Any) -> None:
    files(tmp_path / "in", traffic().slice(0, 20), 1)

    def start(clock: Any) -> None:
        commands = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
        done = threading.Event()
        query = magnetar.start(
            commands, checkpoint=tmp_path / "ckpt", store=tmp_path / "store", clock=clock, quality=False, max_ahead_ms=None,
            trigger="100ms", on_batch=lambda _: done.set(),
        )  # fmt: skip
        assert done.wait(60)
        query.stop()

    start(clock)
    with pytest.raises(
        magnetar.MagnetarError, match=f"with the clock '{clock}', not '{other}': start it with"
    ):
        start(other)


def test_the_states_of_a_query_over_files_as_text(life: Life) -> None:
    """It has no topic, so the dump says as little of one as that of a replay."""
    checkpoint, dump = life.folder / "ckpt", life.folder / "states.jsonl"
    ran = CliRunner().invoke(app, ["state", "export", str(checkpoint), "--out", str(dump)])
    assert (ran.exit_code, ran.stderr) == (0, "")
    with dump.open("rb") as file:
        assert list(read_dump(file)) == [each.broker for each in magnetar.states_at(life.spark, checkpoint)]
    with dump.open("rb") as file:
        header = read_header(file)
    assert (header.ingress, header.partitions, header.offsets) == (None, 0, {})
    with pytest.raises(BadCheckpoint, match=r"reads no topic in Kafka, such as one of magnetar\.start: give"):
        committed(checkpoint)


def test_states_are_not_read_beside_another_store(life: Life) -> None:
    life.run()  # so that both have as many micro-batches
    life.run(checkpoint="other-ckpt", store="other", at_once=6)
    checkpoint = life.folder / "ckpt"
    assert magnetar.states_at(life.spark, checkpoint, store=life.folder / "store")
    with pytest.raises(magnetar.MagnetarError, match=r"holds output|the store is older"):
        magnetar.states_at(life.spark, checkpoint, store=life.folder / "other")
