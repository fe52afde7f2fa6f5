"""What-if on a cluster, one of whose workers is killed: the rows are those of a fold in this process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streaming.answers.whatif.answer import to_json
from streaming.answers.whatif.compare import whatif
from streaming.kafka.local import HOST
from tests.answers.test_whatif_query import SETS, log
from tests.cluster.standalone import EXECUTOR, Standalone

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from unittest import mock
from streaming.answers.whatif import query
from streaming.answers.whatif.answer import to_json
from streaming.answers.whatif.compare import whatif
from streaming.kafka.local import HOST
from streaming.spark.session import spark_session
from tests.answers.test_whatif_query import SETS, log

master, checkpoint, conf = sys.argv[1:]
with mock.patch.object(query, "micro_batches", return_value=6):
    spark = spark_session("what-if", master=master, conf=json.loads(conf))
    found = whatif(
        log(), SETS, partitions=3, spark=spark, checkpoint=checkpoint, progress=lambda done, _: print(done, flush=True)
    )
print(to_json(found))
"""


@pytest.mark.parametrize("victim", ["worker", "executor"])
def test_a_worker_is_killed(tmp_path: Path, victim: str) -> None:
    environment = os.environ | {"SPARK_LOCAL_IP": HOST}
    with Standalone(tmp_path / "spark", environment) as cluster:
        program = [sys.executable, "-c", PROGRAM, cluster.url, str(tmp_path / "kept"), json.dumps(EXECUTOR)]
        with subprocess.Popen(
            program, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        ) as running:
            assert running.stdout is not None
            assert int(running.stdout.readline()) > 0  # a micro-batch is done
            if victim == "worker":
                cluster.kill_worker(0)
            else:
                assert cluster.kill_executor(0)
            said = running.stdout.read()
        assert running.returncode == 0
    assert said[said.index("{") :] == to_json(whatif(log(), SETS, partitions=3)) + "\n"
