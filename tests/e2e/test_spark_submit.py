"""deploy/spark_submit.py under a real spark-submit: its session is used, and the options of `magnetar run` work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from typer.testing import CliRunner

from streaming.cli.app import app
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.runtime.jars import spark_kafka_jars
from streaming.runtime.java import spark_java_home
from tests.e2e.live import last_begun, last_committed
from tests.e2e.processes import arguments, kill_session, wait_until

ROOT = Path(__file__).parents[2]
SUBMIT = Path(str(pyspark.__path__[0])) / "bin" / "spark-submit"


class Submitted:
    """A query that spark-submit runs, in a session of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._said = folder / "said"
        environment = {
            **os.environ,
            "JAVA_HOME": str(spark_java_home()),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        words = [SUBMIT, "--master", "local[2]", "--name", "theirs", "--jars", ",".join(map(str, spark_kafka_jars())),
                 "--conf", "spark.ui.enabled=false", ROOT / "deploy" / "spark_submit.py", *options]  # fmt: skip
        with self._said.open("wb") as output:
            # What the script writes to the standard error comes out of spark-submit's standard output.
            self.process = subprocess.Popen(
                [*map(str, words)],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )

    def lines(self, event: str) -> list[dict[str, Any]]:
        """What the query has said about an event, among Spark's own lines."""
        found = []
        for line in self._said.read_text().splitlines():
            with suppress(json.JSONDecodeError):
                said = json.loads(line)
                found += [said] if isinstance(said, dict) and said.get("event") == event else []
        return found

    def wait(self, event: str) -> dict[str, Any]:
        """The first thing it says about an event."""
        wait_until(lambda: bool(self.lines(event)), event, self.process)
        return self.lines(event)[0]

    def python(self) -> psutil.Process:
        """The process of the script."""
        (found,) = (
            each
            for each in psutil.Process(self.process.pid).children(recursive=True)
            if str(ROOT / "deploy" / "spark_submit.py") in (said := arguments(each))
            and Path(said[0]).name != "java"
        )
        return found


@pytest.fixture
def query(kafka: LocalKafka, tmp_path: Path) -> Iterator[Submitted]:
    url = f"kafka://{kafka.bootstrap}/submitted"
    produce_log(ROOT / "docs" / "example.jsonl", url, partitions=2)
    made = Submitted(tmp_path, "--ingress", url, "--responses", f"{url}-responses", "--checkpoint", "ckpt", "--store", "store",
                     "--ui", "0", "--log-format", "json")  # fmt: skip
    yield made
    kill_session(made.process)


@pytest.mark.kafka
@pytest.mark.spark
def test_it_is_the_query_on_the_session_of_spark_submit(query: Submitted, tmp_path: Path) -> None:
    page = query.wait("serving")
    assert page["what"] == "page"
    query.wait("batch")
    with urllib.request.urlopen(f"{page['url']}/readyz", timeout=60) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"{page['url']}/api/overview", timeout=60) as answer:
        assert json.load(answer)["totals"]["topics"] > 0
    checkpoint = tmp_path / "ckpt"
    at_hand = last_begun(checkpoint)
    query.python().send_signal(signal.SIGTERM)
    assert query.process.wait(120) == 0
    assert query.lines("stopped")
    # The micro-batch at hand was finished. The next one may have begun before the query stopped.
    assert at_hand <= last_committed(checkpoint) <= last_begun(checkpoint) <= last_committed(checkpoint) + 1


@pytest.mark.parametrize(
    "given", [["--master", "spark://other:7077"], ["--conf", "spark.executor.memory=2g"]]
)
def test_what_spark_submit_decides_is_not_given_twice(
    given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    options = ["--ingress", "kafka://127.0.0.1:1/a", "--checkpoint", "c", "--store", "s"]
    done = CliRunner().invoke(app, ["run", *options, *given])
    assert done.exit_code == 2
    assert "spark-submit decides what runs where" in " ".join(done.output.split())
