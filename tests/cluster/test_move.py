"""A query with checkpoint and store on S3: looking at it, its states as text, and the query that goes on over more ingress partitions."""

import json
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from sinks.ledger_store import read_entries
from sinks.quarantine import read_quarantine
from sinks.tables import TABLES, read_table
from streaming.answers.history.inspection import topic_stats, views
from streaming.cli.app import app
from streaming.kafka.client import administration
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.kafka.topics import topic_offsets
from streaming.kafka.url import KafkaUrl
from streaming.spark.state import partition_states
from streaming.state.dump import read_dump
from tests.cluster.outage import S3Query
from tests.cluster.s3 import BUCKET, LocalS3, away
from tests.e2e.live import MAGNETAR
from tests.e2e.outcome import Outcome
from tests.e2e.processes import kill_session, wait_until
from tests.e2e.traffic import TOPICS
from tests.kafka.test_move import AFTER, BEFORE, undisturbed
from tests.state.by_topic import by_topic

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]

UNFOLDED = 40


class OnS3:
    """The query of a topic with checkpoint and store on S3, and the commands about it."""

    def __init__(self, s3: LocalS3, kafka: LocalKafka, folder: Path, name: str) -> None:
        folder.mkdir(exist_ok=True)
        options = (
            "--clock",
            "log",
            "--trigger",
            "0ms",
            "--max-offsets",
            "150",
            "--no-quality",
            "--max-ahead",
            "off",
        )
        self.query = S3Query(s3, kafka, folder, name, "both", *options)
        self.ingress = self.query.ingress
        self.checkpoint, self.store = f"s3a://{BUCKET}/{name}/checkpoint", f"s3://{BUCKET}/{name}/store"

    def fold(self) -> None:
        """Run until all records of the topic are folded."""
        url = KafkaUrl.parse(self.ingress)
        with administration(url) as admin:
            records = {partition: end for partition, (_, end) in topic_offsets(admin, url.topic).items()}
        try:
            self.query.start()
            self.query.wait(lambda: self.query.consumed() == records, "all records")
            assert self.query.process is not None
            self.query.process.terminate()
            assert self.query.end() == 0
        finally:
            self.query.close()

    def outcome(self, spark: SparkSession) -> Outcome:
        store = str(self.query.store)
        tables = {kind: read_table(f"{store}/tables", kind) for kind in TABLES}
        states = partition_states(spark, self.query.checkpoint)
        return Outcome(tables, read_entries(store), read_quarantine(store), {}, states)


def begin(s3: LocalS3, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with (folder / "said.txt").open("wb") as said:
        return subprocess.Popen(
            [MAGNETAR, *arguments], stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=folder,
            env=os.environ | s3.environment, start_new_session=True,
        )  # fmt: skip


def magnetar(s3: LocalS3, *arguments: str) -> str:
    ran = subprocess.run(
        [MAGNETAR, *arguments], capture_output=True, text=True, check=False, env=os.environ | s3.environment
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_query_on_s3_is_looked_at_and_moved(
    s3_server: LocalS3, kafka: LocalKafka, spark: SparkSession, tmp_path: Path
) -> None:
    old = OnS3(s3_server, kafka, tmp_path / "old", "old-on-s3")
    produce_log(BEFORE, old.ingress, partitions=2)
    old.fold()

    states = partition_states(spark, old.query.checkpoint)
    seen = json.loads(magnetar(s3_server, "inspect", old.checkpoint, "--json"))
    assert seen == {name: table.to_pylist() for name, table in views(states).items()}
    topic = next(each for each in TOPICS if topic_stats(states, each)["stats"]["subscriptions"])
    subscription = next(iter(topic_stats(states, topic)["stats"]["subscriptions"]))
    of_query = ["--checkpoint", old.checkpoint, "--subscription", subscription, "--json"]
    of_folders = ["--checkpoint", str(old.query.checkpoint), *of_query[2:]]
    (explained,) = json.loads(magnetar(s3_server, "explain", old.store, topic, *of_query))
    here = CliRunner().invoke(app, ["explain", str(old.query.store), topic, *of_folders])
    assert [explained] == json.loads(here.stdout)
    dump = tmp_path / "states.jsonl"
    magnetar(s3_server, "state", "export", old.checkpoint, "--out", str(dump))
    with dump.open("rb") as file:
        assert list(read_dump(file)) == [each.broker for each in states]

    produce_log(AFTER.slice(0, UNFOLDED), old.ingress)
    new = OnS3(s3_server, kafka, tmp_path / "new", "new-on-s3")
    move = [
        "state", "move", old.checkpoint, "--ingress", old.ingress, "--store", old.store, "--to-ingress", new.ingress,
        "--to-store", new.store, "--partitions", "8",
    ]  # fmt: skip
    seed = new.query.store / "seed"
    # It is killed before Spark has read a state, then S3 when the last one was read and no new one is whole.
    killed = begin(s3_server, tmp_path, *move)
    try:
        wait_until((seed / "begun.json").exists, "a move", killed)
    finally:
        kill_session(killed)
    failed = begin(s3_server, tmp_path, *move)
    try:
        wait_until(lambda: any((seed / "pieces").glob("*/00001")), "the last state", failed)
        with away(s3_server):
            wait_until(lambda: failed.poll() is not None, "the end of the move")
    finally:
        kill_session(failed)
    last = (tmp_path / "said.txt").read_text().strip().splitlines()[-1]
    assert failed.returncode == 1, last
    assert "S3 did not answer (" in last
    assert last.startswith("magnetar: ")
    assert "try again" in last.lower()
    assert not (seed / "whole.json").exists()
    said = magnetar(s3_server, *move)
    assert f"{len(TOPICS)} topics moved, and " in said

    produce_log(AFTER.slice(UNFOLDED), new.ingress)
    new.fold()
    first, second = old.outcome(spark), new.outcome(spark)
    tables = {kind: pa.concat_tables([first.tables[kind], second.tables[kind]]) for kind in TABLES}
    quarantine = pa.concat_tables([first.quarantine, second.quarantine])
    found = {**by_topic(Outcome(tables, second.entries, quarantine, {}, second.states))}
    assert found == undisturbed(8, tmp_path / "whole")

    # The dump, with the entries of the old query, becomes a third one's store, over as many partitions as the new one has.
    third = OnS3(s3_server, kafka, tmp_path / "third", "third-on-s3")
    said = magnetar(
        s3_server, "state", "import", str(dump), "--ingress", third.ingress, "--entries", old.store, "--store",
        third.store, "--partitions", "3",
    )  # fmt: skip
    assert f"{len(TOPICS)} topics moved" in said
    third.fold()
    assert read_entries(str(third.query.store)).num_rows == read_entries(str(old.query.store)).num_rows
