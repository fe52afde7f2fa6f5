"""A compaction that is killed anywhere: the table's rows are whole and the same, and the next compaction completes."""

import ctypes
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.table import TableOptimizer

from sinks import delta_log
from sinks.delta_log import Compacted
from sinks.tables import DeltaSink, read_table
from tests.sinks.test_delta import compact, expected, parquet_files, run
from tests.steps import counted, nth

pytestmark = pytest.mark.feature("J2", "J5")

OLD, NEW = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 8, tzinfo=UTC)
_ANY = (
    0x00000002 | 0x00000008 | 0x00000100 | 0x00000200 | 0x00000080
)  # modified, closed, created, deleted, moved
_context = multiprocessing.get_context("forkserver")  # deltalake's threads survive no fork
_context.set_forkserver_preload([__name__])


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _at_change(number: int, folder: Path) -> None:
    """Die when files in a folder have changed so many times, whoever changes them."""
    libc = ctypes.CDLL(None, use_errno=True)
    changes = libc.inotify_init()
    for each in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        assert libc.inotify_add_watch(changes, bytes(each), _ANY) > 0

    def watch() -> None:
        left = number
        while True:
            data = os.read(changes, 1 << 16)
            while data:
                left -= 1
                if left == 0:
                    _die()
                data = data[16 + int.from_bytes(data[12:16], "little") :]

    threading.Thread(target=watch, daemon=True).start()


def _compact(folder: Path) -> Compacted:
    with patch.object(delta_log, "today", return_value=NEW.date()):
        return compact(str(folder), timedelta(days=3))


def _compacting(folder: Path, dies: Callable[[int, Path], None], number: int) -> None:
    dies(number, folder)
    _compact(folder)
    os._exit(0)


def _at_call(number: int, _: Path) -> None:
    """Die before or after a call of deltalake's, which no audit sees."""
    step = nth(number, _die)
    for name in ("delete", "vacuum", "create_write_transaction"):
        counted(DeltaTable, name, step)
    counted(TableOptimizer, "compact", step)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table, pa.Table]:
    """A table with a micro-batch of a day that goes, and one of a day that stays. All rows, and those that stay."""
    folder = tmp_path_factory.mktemp("table")
    with patch.object(delta_log, "datetime", wraps=datetime) as clock:
        for number, day in enumerate((OLD, NEW)):
            clock.now.side_effect = lambda zone, day=day: day.astimezone(zone)
            sink = DeltaSink(str(folder / "table"))
            run(sink, number)
            sink.close()
    return folder / "table", expected(folder / "all", range(2)), expected(folder / "left", range(1, 2))


@pytest.mark.parametrize(
    ("dies", "stride", "least"), [(_at_call, 1, 8), (_at_change, 3, 20)], ids=["calls", "changes"]
)
def test_a_compaction_killed_anywhere(
    dies: Callable[[int, Path], None],
    stride: int,
    least: int,
    table: tuple[Path, pa.Table, pa.Table],
    tmp_path: Path,
) -> None:
    before, rows, left = table
    for number in range(1, 2000, stride):
        folder = tmp_path / str(number)
        shutil.copytree(before, folder)
        process = _context.Process(target=_compacting, args=(folder, dies, number))
        process.start()
        process.join(120)
        assert process.exitcode in (0, -signal.SIGKILL)
        found = read_table(str(folder))
        assert found.equals(rows) or found.equals(left), number
        done = _compact(folder)
        assert read_table(str(folder)).equals(left), number
        assert done.after == parquet_files(str(folder)), number
        if process.exitcode == 0:
            assert number > least, "the compaction is not seen"
            return
    raise AssertionError("there are more changes")
