"""The commands as a user runs them: their output, their files, and their errors."""

import json
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from sinks.quarantine import read_quarantine
from sinks.tables import read_table
from streaming.cli.app import app
from streaming.kafka.local import LocalKafka
from streaming.traces import RECORDED
from tests.e2e.live import MAGNETAR

MESSAGE = (
    '{"timestamp":1700000000000,"topic":"persistent://public/default/t","producer":"p","sequence_id":%d}\n'
)


class Done(NamedTuple):
    code: int
    out: str
    err: str
    seconds: float

    @property
    def complaint(self) -> str:
        """The error of a failed command: one line, and nothing on standard output."""
        assert self.code == 2, self
        assert self.out == ""
        (last,) = self.err.splitlines()
        assert last.startswith("magnetar: ")
        return last.removeprefix("magnetar: ")


def magnetar(*arguments: object, cwd: Path | None = None) -> Done:
    begun = time.monotonic()
    done = subprocess.run(
        [MAGNETAR, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=120, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - begun)


def in_process(*arguments: object) -> Done:
    """As `magnetar`, without the time that a process takes to start."""
    begun = time.monotonic()
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    return Done(done.exit_code, done.stdout, done.stderr, time.monotonic() - begun)


@pytest.mark.feature("J1")
@pytest.mark.spark
def test_traces_replayed_with_spark_and_without(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    traces = [
        RECORDED / f"{name}.jsonl" for name in ("ack_holes", "dedup_reconnect_resend", "ledger_rollover")
    ]
    imported = magnetar("import", *traces, "--out", log)
    assert imported.code == 0
    assert imported.out.startswith("3 traces, ")

    results = []
    for name, options in (("spark", ["--batches", 7]), ("alone", ["--no-spark"])):
        done = magnetar(
            "replay", log, "--out", tmp_path / name, "--partitions", 3, "--json", *options, cwd=tmp_path
        )
        assert done.code == 0, done.err
        assert done.err == ""
        results.append(json.loads(done.out))
    spark, alone = results
    assert (spark["batches"], alone["batches"]) == (7, 1)
    for key in ("records", "rows", "stats"):
        assert spark[key] == alone[key]
    assert spark["rows"]["SEND_RECEIPT"] > 10
    tables = read_table(str(tmp_path / "spark" / "tables"))
    assert tables.equals(read_table(str(tmp_path / "alone" / "tables")))
    assert len(tables) == sum(spark["rows"].values())
    # Nothing is created in the working directory.
    assert {file.name for file in tmp_path.iterdir()} == {"log.jsonl", "spark", "alone"}


@pytest.mark.feature("J6")
def test_a_bad_line_harms_no_other(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    bad = ['{"command":"NOPE"}\n', "not json\n", '{"producer":"p"}\n', "\xff\x00\n"]
    log.write_text("".join(MESSAGE % n + bad[n] for n in range(4)), encoding="latin-1")
    done = magnetar("replay", log, "--out", tmp_path / "out", "--no-spark")
    assert done.code == 0
    assert "4 in quarantine" in done.out
    assert read_table(str(tmp_path / "out" / "tables"), "SEND_RECEIPT")["sequence_id"].to_pylist() == [
        0,
        1,
        2,
        3,
    ]
    assert len(read_quarantine(str(tmp_path / "out"))) == 4


def test_paths_that_are_wrong(tmp_path: Path) -> None:
    log, full = tmp_path / "log.jsonl", tmp_path / "full"
    log.write_text(MESSAGE % 1)
    full.mkdir()
    (full / "thesis.txt").touch()
    nowhere = tmp_path / "nowhere.jsonl"
    assert in_process("replay", nowhere, "--out", tmp_path / "a").complaint == f"{nowhere}: no such log"
    assert "isn't empty" in in_process("replay", log, "--out", full).complaint
    assert "thesis.txt" in in_process("replay", log, "--out", full, "--overwrite").complaint
    assert (
        f"{nowhere}: no trace found" in in_process("import", nowhere, "--out", tmp_path / "b.jsonl").complaint
    )
    assert f"{log}: not a trace" in in_process("import", log, "--out", tmp_path / "b.jsonl").complaint
    assert (
        in_process("produce", nowhere, "--ingress", "kafka://127.0.0.1:9/t").complaint
        == f"{nowhere}: no such log"
    )
    text = tmp_path / "log.txt"
    text.touch()
    assert "expected a name ending in .jsonl" in in_process("replay", text, "--out", tmp_path / "a").complaint
    assert not (tmp_path / "a").exists()
    assert (full / "thesis.txt").exists()


def test_addresses_that_are_wrong(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(MESSAGE % 1)
    assert "expected kafka://HOST:PORT/TOPIC" in run(tmp_path, "http://127.0.0.1:1/t").complaint
    done = run(tmp_path, "kafka://127.0.0.1:1/t")
    assert done.complaint.startswith("no Kafka answered at 127.0.0.1:1 within 2 s (connection refused)")
    assert done.seconds < 30  # before Spark starts; a quiet machine needs 3
    assert (
        "expected a number and a unit"
        in run(tmp_path, "kafka://127.0.0.1:1/t", "--trigger", "soon").complaint
    )
    assert "topic's name" in in_process("produce", log, "--ingress", "kafka://127.0.0.1:1/a%20b").complaint
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log.jsonl"]


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # the command uses the existing session
def test_a_store_of_another_query(tmp_path: Path, kafka: LocalKafka) -> None:
    """An error that first occurs in a micro-batch is also reported in a sentence."""
    ingress = f"kafka://{kafka.bootstrap}/foreign"
    log = tmp_path / "log.jsonl"
    log.write_text(MESSAGE % 1)
    assert magnetar("produce", log, "--ingress", ingress).code == 0
    segments = tmp_path / "store" / "segments" / "00000"
    segments.mkdir(parents=True)
    (segments / "0-000000007-000000007-0.parquet").touch()
    done = CliRunner().invoke(app, ["run", *arguments(tmp_path, ingress)])
    assert done.exit_code == 1
    (last,) = done.output.splitlines()
    assert last.startswith(f"magnetar: {tmp_path / 'store'} holds output of micro-batch 7")
    assert "Traceback" not in done.output


def run(folder: Path, ingress: str, *options: str) -> Done:
    return in_process("run", *arguments(folder, ingress), *options)


def arguments(folder: Path, ingress: str) -> list[str]:
    return [
        "--ingress",
        ingress,
        "--checkpoint",
        str(folder / "checkpoint"),
        "--store",
        str(folder / "store"),
    ]
