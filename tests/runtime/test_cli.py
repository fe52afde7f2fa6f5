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


def test_nothing_is_logged_after_the_reason_of_a_failure() -> None:
    """Threads of py4j notice later that Spark's process is gone."""
    program = (
        "import logging, typer\n"
        "from streaming.cli.errors import expected_errors\n"
        "try:\n"
        "  with expected_errors(failed=(RuntimeError,)): raise RuntimeError('it is gone')\n"
        "except typer.Exit: logging.getLogger('py4j').error('late')\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stderr == "magnetar: it is gone\n"
