"""Tables that may be larger than memory: a log is read, given ingress partitions and taken apart in pieces, which are put here.

A small table stays in memory. A larger one is a file of Arrow batches, mapped into memory: the system reads what is looked at, and lets go
of it again. The file has no name, so it is gone with its table, even after kill −9. It is where Python makes temporary files: ``TMPDIR``
names another folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import Any

import pyarrow as pa

from sinks.outputs import name_full

IN_MEMORY = 256 << 20
"""A table of so many bytes is kept in memory."""

ROWS = 1 << 16
"""A large table is read and made in pieces of so many rows, at most."""

BYTES = 32 << 20
"""A piece is complete when its values have so many bytes."""


def pieces(table: pa.Table) -> Iterator[pa.Table]:
    """The rows of a table in order, some at a time."""
    for batch in table.to_batches(ROWS):
        yield pa.Table.from_batches([batch])


@contextmanager
def _full_disk_named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name_full(error, Path(gettempdir()))
        raise


def mapped(file: Any) -> pa.Table:
    """The table in an Arrow file, mapped into memory. The file need not stay open."""
    return pa.ipc.open_file(pa.py_buffer(mmap(file.fileno(), 0, access=ACCESS_READ))).read_all()


class Spool:
    """Takes the pieces of a table with the columns of `schema`, and gives the table. `file`: where a large one goes; None: to one without
    a name."""

    def __init__(self, schema: pa.Schema, file: Any = None) -> None:
        self._schema = schema
        self._pieces = [schema.empty_table()]
        self._size = 0
        self._file, self._owns_file = file, file is None
        self._writer: pa.RecordBatchFileWriter | None = None

    @property
    def is_large(self) -> bool:
        """Whether the table is a file."""
        return self._writer is not None

    def add(self, piece: pa.Table) -> None:
        """Add rows at the end. Raises `OSError` if the disk is full."""
        if not len(piece):
            return
        self._pieces.append(piece)
        self._size += piece.nbytes
        if self._size > IN_MEMORY:
            with _full_disk_named():
                self._write()

    def _write(self) -> None:
        if self._writer is None:
            self._file = self._file or TemporaryFile()  # noqa: SIM115 - it is closed in `table`
            self._writer = pa.ipc.new_file(self._file, self._schema)
        for piece in self._pieces:
            self._writer.write_table(piece, ROWS)
        self._pieces.clear()

    def table(self) -> pa.Table:
        """The table. Nothing can be added any more. Raises `OSError` if the disk is full."""
        if self._writer is None:
            return pa.concat_tables(self._pieces)
        with _full_disk_named():
            self._writer.close()
            self._file.flush()
        found = mapped(self._file)
        if self._owns_file:
            self._file.close()
        return found
