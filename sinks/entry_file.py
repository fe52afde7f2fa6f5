"""A Parquet file of entries, sorted by (topic, ledger_id, entry_id): a segment or a sealed ledger.

Any Parquet reader can read one (columns: `schemas.outputs.ENTRY`). For the broker's point reads the footer also holds,
under ``magnetar``, an index in JSON: where each run of consecutive entries of a ledger begins. So finding an entry costs
no data page, and a reader of metadata touches no payload byte (payload is the last column of each row group).
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from schemas.outputs import ENTRY
from sinks.cache import FOOTERS, ROWS
from sinks.parquet import Compression, options
from sinks.storage import Storage

Ledger = tuple[str, int]
"""Topic and ledger id."""

_KEY = b"magnetar"
_PAYLOAD = ENTRY.get_field_index("payload")
# Offsets of 64 bits, so that no row group is too large to be built; the file is the same.
SCHEMA = pa.schema([f.remove_metadata() for f in ENTRY]).set(_PAYLOAD, pa.field("payload", pa.large_binary()))

METADATA = ("producer_name", "sequence_id", "publish_time", "partition_key", "metadata", "size")
"""What an `Entry` is made of."""

_GROUP_ROWS = 8192  # 0.4 ms to decode the metadata of; see tests/sinks/measure.py
_GROUP_BYTES = 16 << 20


class Run(NamedTuple):
    """Consecutive entries of one ledger in a file: entry `first` is in row `row`, entry `last` at the run's end."""

    first: int
    last: int
    row: int

    @property
    def stop(self) -> int:
        """The row after the run."""
        return self.row + self.last - self.first + 1


class Index(msgspec.Struct, frozen=True, gc=False):
    """`runs` are (topic, ledger, first entry, last entry), in the file's order. `closed` and `deleted` are ledgers of
    which no entry is to be looked for in this segment or an older one: they are in a sealed file, or nowhere."""

    runs: list[tuple[str, int, int, int]] = []
    closed: list[Ledger] = []
    deleted: list[Ledger] = []


def group_rows(rows: int, size: int) -> int:
    """Rows of a row group, for a file of so many rows and bytes."""
    return max(1, min(_GROUP_ROWS, _GROUP_BYTES * max(rows, 1) // max(size, 1)))


def sort_entries(entries: pa.Table) -> pa.Table:
    """Entries (columns of `ENTRY`) as files hold them: in order, in `SCHEMA`."""
    entries = entries.cast(SCHEMA)
    topic = entries["topic"].combine_chunks().dictionary_encode()
    topics = (
        pc.rank(topic.dictionary).to_numpy()[topic.indices.to_numpy()] if len(topic) else np.empty(0, int)
    )
    order = np.lexsort((entries["entry_id"].to_numpy(), entries["ledger_id"].to_numpy(), topics))
    if (order[1:] > order[:-1]).all():  # as a rule true with one topic
        return entries
    return entries.take(pa.array(order))


def runs_of(entries: pa.Table) -> list[tuple[str, int, int, int]]:
    """The runs of sorted entries. Costs Python time by the run, not by the entry."""
    if not entries.num_rows:
        return []
    topic = entries["topic"].combine_chunks()
    ledger, entry = entries["ledger_id"].to_numpy(), entries["entry_id"].to_numpy()
    other_topic = pc.not_equal(topic[1:], topic[:-1]).to_numpy(zero_copy_only=False)
    breaks = other_topic | (ledger[1:] != ledger[:-1]) | (entry[1:] != entry[:-1] + 1)
    starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    stops = np.concatenate((starts[1:], [len(entry)])) - 1
    topics = topic.take(pa.array(starts)).to_pylist()
    return list(
        zip(topics, ledger[starts].tolist(), entry[starts].tolist(), entry[stops].tolist(), strict=True)
    )


def by_ledger(runs: list[tuple[str, int, int, int]]) -> tuple[dict[Ledger, list[Run]], int]:
    """Runs with their rows, by ledger, and the number of rows."""
    found: dict[Ledger, list[Run]] = {}
    row = 0
    for topic, ledger_id, first, last in runs:
        run = Run(first, last, row)
        found.setdefault((topic, ledger_id), []).append(run)
        row = run.stop
    return found, row


def write_entries(
    stream: pa.NativeFile,
    tables: Iterable[pa.Table],
    *,
    rows_a_group: int,
    compression: Compression,
    closed: Iterable[Ledger] = (),
    deleted: Iterable[Ledger] = (),
) -> int:
    """Write a file from consecutive pieces of sorted entries; gives the number of entries.

    The bytes depend on the entries, not on how they come in pieces: readers may hold the footer of an equal file.
    """
    runs: list[tuple[str, int, int, int]] = []
    written = 0
    with pq.ParquetWriter(stream, SCHEMA, **options(SCHEMA, compression)) as writer:
        waiting = SCHEMA.empty_table()
        for table in tables:
            for run in runs_of(table):
                if runs and runs[-1][:2] == run[:2] and runs[-1][3] + 1 == run[2]:
                    run = (*runs.pop()[:3], run[3])
                runs.append(run)
            written += table.num_rows
            waiting = pa.concat_tables([waiting, table]) if waiting.num_rows else table
            whole = waiting.num_rows - waiting.num_rows % rows_a_group
            if whole:
                writer.write_table(waiting.slice(0, whole), row_group_size=rows_a_group)
                waiting = waiting.slice(whole)
        if waiting.num_rows:
            writer.write_table(waiting)
        index = Index(runs, sorted(set(closed)), sorted(set(deleted)))
        writer.add_key_value_metadata({_KEY: msgspec.json.encode(index)})
    return written


class FileChanged(OSError):
    """Another file is under this name now: look again."""


class EntryFile:
    """A file's footer and index; its rows are read when asked for, and kept in the process's cache."""

    def __init__(self, storage: Storage, info: fs.FileInfo) -> None:
        """Raises `FileNotFoundError`, or `ValueError` if it is no entry file."""
        self._storage = storage
        self.path = storage.relative(info)
        self.size = info.size
        self._identity = (storage.url, self.path, info.size, info.mtime_ns)
        with self._parquet(None) as parquet:
            self._footer = parquet.metadata
        index = (self._footer.metadata or {}).get(_KEY)
        if index is None:
            raise ValueError(
                f"{storage.url}/{self.path} has no index: it was not written by Magnetar, or rewritten"
            )
        self._index_size = len(index)
        self.index = msgspec.json.decode(index, type=Index)
        self.runs, self.num_rows = by_ledger(self.index.runs)
        sizes = (self._footer.row_group(i).num_rows for i in range(self._footer.num_row_groups))
        self._starts = np.cumsum([0, *sizes]).tolist()

    @classmethod
    def open(cls, storage: Storage, info: fs.FileInfo) -> "EntryFile":
        """The file that `Storage.files` or `Storage.info` found, from the cache if it was open before."""

        def load() -> tuple[EntryFile, int]:
            file = cls(storage, info)
            return file, 4096 + 2 * file._footer.serialized_size + 8 * file._index_size

        return FOOTERS.get((storage.url, info.path, info.size, info.mtime_ns), load)

    def _parquet(self, metadata: pq.FileMetaData | None) -> pq.ParquetFile:
        handle = self._storage.open(self.path)
        if handle.size() != self.size:
            handle.close()
            raise FileChanged(f"{self._storage.url}/{self.path} was replaced by another file")
        return pq.ParquetFile(handle, metadata=metadata)

    def _group(self, group: int, columns: tuple[str, ...]) -> tuple[pa.Table, int]:
        with self._parquet(self._footer) as parquet:
            table = parquet.read_row_group(group, columns=list(columns), use_threads=False)
        return table.combine_chunks(), table.nbytes

    def rows(self, start: int, stop: int, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        """Some columns of the rows from `start` to before `stop`, piece by piece, through the cache."""
        group = bisect_right(self._starts, start) - 1
        while start < stop:
            begin, end = self._starts[group], min(self._starts[group + 1], stop)
            table = ROWS.get((self._identity, group, columns), partial(self._group, group, columns))
            yield table.slice(start - begin, end - start)
            start, group = end, group + 1

    def entries_without(self, ledgers: set[Ledger]) -> Iterator[pa.Table]:
        """All columns of the entries of other ledgers, in `SCHEMA` and in order, not through the cache; row groups
        that hold none of them are not read."""
        wanted = np.ones(self.num_rows, bool)
        for ledger in ledgers & self.runs.keys():
            for run in self.runs[ledger]:
                wanted[run.row : run.stop] = False
        for group, (begin, end) in enumerate(pairwise(self._starts)):
            mask = wanted[begin:end]
            if mask.any():
                table = self._group(group, tuple(SCHEMA.names))[0].cast(SCHEMA)
                yield table if mask.all() else table.filter(pa.array(mask))
