"""The in-process replay: what it needs, and what it must not load."""

import subprocess
import sys
from pathlib import Path

import pytest

from streaming.log.files import write_log
from tests.spark.helpers import traffic

CODE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pandas", "pyspark", "great_expectations"):
            tried.add(name)
            raise ModuleNotFoundError(name)

tried = set()
sys.meta_path.insert(0, Absent())
from streaming.replay import replay_in_process
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
