"""Logs of findings as files that `magnetar replay` reads."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from streaming.log.files import read_log, write_log
from streaming.log.table import LOGICAL, LogError, log_table
from tests.fuzz.cases import Log, Sent


def write(path: Path, log: Log, holds: Callable[[Log], bool]) -> Path:
    """Writes a log: as JSON Lines if what is read back `holds` what was found, otherwise as Parquet, which keeps every
    byte."""
    lines, parquet = path.with_suffix(".jsonl"), path.with_suffix(".parquet")
    table = log_table(LOGICAL, timestamp=[each.timestamp for each in log], topic=[each.topic for each in log],
                      value=[each.value for each in log])  # fmt: skip
    with suppress(LogError):
        write_log(lines, table)
        back = read(lines)
        if back == log or holds(back):
            return lines
    lines.unlink(missing_ok=True)
    write_log(parquet, table)
    return parquet


def read(path: Path) -> Log:
    table: pa.Table = read_log(path)
    return [Sent(*row.values()) for row in table.select(LOGICAL.names).to_pylist()]
