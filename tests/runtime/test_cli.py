from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from streaming import __version__
from streaming.cli.app import app


def magnetar(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def test_version() -> None:
    assert magnetar("--version") == (0, f"magnetar {__version__}\n")


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from streaming.cli.app import app;"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0;"
        "print([name for name in ('pyspark', 'pandas', 'pyarrow', 'numpy', 'kafka', 'great_expectations') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_kafka_that_is_not_up(tmp_path: Path) -> None:
    assert magnetar("kafka", "status", "--dir", str(tmp_path)) == (1, f"Kafka is not up in {tmp_path}\n")
    assert magnetar("kafka", "down", "--dir", str(tmp_path)) == (0, f"Kafka was not up in {tmp_path}\n")
