"""A Parquet file of entries, sorted by (topic, ledger_id, entry_id): a segment or a sealed ledger.

Any Parquet reader can read it (columns: `schemas.outputs.ENTRY`). For the broker's point reads, the footer also has an
index in JSON, under ``magnetar``: where each run of consecutive entries of a ledger starts. So finding an entry reads no
data page, and reading metadata reads no payload (the last column of each row group).

A reader gets what was written, or `Damaged`. Pages have Parquet's checksums, the index has a checksum (under
``magnetar.crc32``), and the row counts of index, footer and pages must agree.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from urllib.parse import unquote
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from schemas.outputs import ENTRY
from schemas.undecodable import UNDECODABLE
from sinks.cache import INDEXES, ROWS
from sinks.parquet import Compression, options
from sinks.runs import Ledger, RawRun, RunIndex, Unsealed, runs_of
from sinks.storage import RESTORE, Damaged, Storage, plain

_KEY = b"magnetar"
_CHECKSUM = b"magnetar.crc32"
_PAYLOAD = ENTRY.get_field_index("payload")
# 64-bit offsets, so that a row group of any size can be built. The file is the same.
SCHEMA = pa.schema([f.remove_metadata() for f in ENTRY]).set(_PAYLOAD, pa.field("payload", pa.large_binary()))
_READ = SCHEMA.set(_PAYLOAD, pa.field("payload", pa.binary()))

METADATA = (
    "producer_name",
    "sequence_id",
    "publish_time",
    "partition_key",
    "metadata",
    "size",
    "broker_timestamp",
)
"""The columns that an `Entry` consists of."""

_GROUP_ROWS = 8192  # decoding their metadata takes 0.4 ms
_GROUP_BYTES = 16 << 20


class Index(msgspec.Struct, frozen=True, gc=False):
    """`runs` are (topic, ledger, first entry, last entry), in the file's order.

    Entries of the ledgers in `closed` are in sealed files, and those of the ledgers in `deleted` are gone. Do not look for
    either in this segment or an older one. The ledgers in `unsealed` are closed, and a later batch seals them.
    """

    runs: list[RawRun] = []
    closed: list[Ledger] = []
    deleted: list[Ledger] = []
    unsealed: list[Unsealed] = []


def group_rows(rows: int, size: int) -> int:
    """The number of rows per row group, for a file with `rows` rows and `size` bytes."""
    return max(1, min(_GROUP_ROWS, _GROUP_BYTES * max(rows, 1) // max(size, 1)))


def sort_entries(entries: pa.Table) -> pa.Table:
    """Sort entries (columns `ENTRY`) and cast them to `SCHEMA`, as in files."""
    entries = entries.cast(SCHEMA)
    topic = entries["topic"].combine_chunks().dictionary_encode()
    topics = (
        pc.rank(topic.dictionary).to_numpy()[topic.indices.to_numpy()] if len(topic) else np.empty(0, int)
    )
    order = np.lexsort((entries["entry_id"].to_numpy(), entries["ledger_id"].to_numpy(), topics))
    if (order[1:] > order[:-1]).all():  # usually true with one topic
        return entries
    return entries.take(pa.array(order))


def write_entries(
    stream: pa.NativeFile,
    tables: Iterable[pa.Table],
    *,
    rows_per_group: int,
    compression: Compression,
    closed: Iterable[Ledger] = (),
    deleted: Iterable[Ledger] = (),
    unsealed: Iterable[Unsealed] = (),
) -> None:
    """Write a file from consecutive pieces of sorted entries.

    The bytes don't depend on how the entries are cut into pieces, because readers may hold the footer of an equal file.
    """
    runs: list[RawRun] = []
    with pq.ParquetWriter(stream, SCHEMA, **options(SCHEMA, compression)) as writer:
        waiting = SCHEMA.empty_table()
        for table in tables:
            for run in runs_of(table):
                if runs and runs[-1][:2] == run[:2] and runs[-1][3] + 1 == run[2]:
                    run = (*runs.pop()[:3], run[3])
                runs.append(run)
            waiting = pa.concat_tables([waiting, table]) if waiting.num_rows else table
            whole = waiting.num_rows - waiting.num_rows % rows_per_group
            if whole:
                writer.write_table(waiting.slice(0, whole), row_group_size=rows_per_group)
                waiting = waiting.slice(whole)
        if waiting.num_rows:
            writer.write_table(waiting)
        index = Index(runs, sorted(set(closed)), sorted(set(deleted)), sorted(set(unsealed)))
        encoded = msgspec.json.encode(index)
        writer.add_key_value_metadata({_KEY: encoded, _CHECKSUM: b"%d" % crc32(encoded)})


class FileChanged(FileNotFoundError):
    """Another file has this name now. List the files again."""


_NUMBERS = 4
_CHUNK_BYTES = 2048
"""Memory of a decoded footer per column and row group: ten times its serialized size (measured, pyarrow 25)."""


class EntryFile:
    """A file's footer and index. Reads rows on demand, through the process's cache."""

    def __init__(self, storage: Storage, info: fs.FileInfo) -> None:
        """Raises `FileNotFoundError` and `Damaged`."""
        self._storage = storage
        self.path = storage.relative(info)
        self.size = info.size
        self._identity = (storage.url, info.path, info.size, info.mtime_ns)
        self._footer: pq.FileMetaData | None = None
        with self._checked(), self._open() as parquet:
            self._footer = footer = parquet.metadata
            index = _index(footer.metadata or {})
            self.closed, self.deleted, self.unsealed = index.closed, index.deleted, index.unsealed
            self.runs = RunIndex(index.runs)
            sizes = (footer.row_group(i).num_rows for i in range(footer.num_row_groups))
            self._starts = np.cumsum([0, *sizes]).tolist()
            # Nothing else protects the types in the footer: a flipped bit may turn bytes into text.
            if parquet.schema_arrow != _READ:
                raise ValueError("its columns aren't those of entries")
            if self._starts[-1] != self.runs.num_rows:
                raise ValueError(f"it has {self._starts[-1]:,} rows, its index {self.runs.num_rows:,}")
        # Kept, because on an object store each row group would need another request for it.
        chunks = footer.num_row_groups * footer.num_columns
        notes = len(self.closed) + len(self.deleted) + len(self.unsealed)
        self._nbytes = _CHUNK_BYTES * chunks + self.runs.nbytes + 200 * notes

    @classmethod
    def open(cls, storage: Storage, info: fs.FileInfo) -> "EntryFile":
        """Open a file found by `Storage.files` or `Storage.info`, from the cache if possible."""

        def load() -> tuple[EntryFile, int]:
            file = cls(storage, info)
            return file, file._nbytes

        return INDEXES.get((storage.url, info.path, info.size, info.mtime_ns), load)

    @property
    def num_rows(self) -> int:
        """How many entries the file holds."""
        return self.runs.num_rows

    def _open(self) -> pq.ParquetFile:
        handle = self._storage.open(self.path)
        if handle.size() != self.size:
            handle.close()
            raise FileChanged(f"{self._storage.url}/{self.path} was replaced by another file")
        return pq.ParquetFile(handle, metadata=self._footer, page_checksum_verification=True)

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """Turn errors of Arrow and the index about the file's bytes into `Damaged`."""
        try:
            yield
        except (FileNotFoundError, Damaged):
            raise
        except (OSError, pa.ArrowException, *UNDECODABLE, ValueError, LookupError) as error:
            raise Damaged(
                f"{self._storage.url}/{self.path} ({self.size:,} bytes, {self._holds()}) is damaged: {plain(error)}. "
                f"{self._storage.restore or RESTORE}"
            ) from error

    def _holds(self) -> str:
        """Describe the file's entries by its name."""
        folder, name = self.path.split("/")[-2:]
        numbers = name.partition(".")[0].split("-")
        if len(numbers) == 1:
            return f"ledger {int(numbers[0])} of {unquote(folder)}"
        if len(numbers) > _NUMBERS:  # a minus sign
            return f"entries of ingress partition {int(folder)}, from another store"
        return f"entries of ingress partition {int(folder)}, micro-batches {int(numbers[1])} to {int(numbers[2])}"

    def _read(self, parquet: pq.ParquetFile, group: int, columns: Iterable[str]) -> pa.Table:
        table = parquet.read_row_group(group, columns=list(columns), use_threads=False)
        rows = self._starts[group + 1] - self._starts[group]
        if (table.num_rows, table.num_columns) != (rows, len(set(columns))):
            raise ValueError(f"row group {group} lacks rows or columns")
        return table

    def _group(self, group: int, columns: tuple[str, ...]) -> tuple[pa.Table, int]:
        with self._checked(), self._open() as parquet:
            table = self._read(parquet, group, columns).combine_chunks()
        return table, table.nbytes

    def rows(self, start: int, stop: int, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        """Some columns of the rows from `start` to before `stop`, in pieces, through the cache."""
        group = bisect_right(self._starts, start) - 1
        while start < stop:
            begin, end = self._starts[group], min(self._starts[group + 1], stop)
            table = ROWS.get((self._identity, group, columns), partial(self._group, group, columns))
            yield table.slice(start - begin, end - start)
            start, group = end, group + 1

    def entries_without(self, ledgers: Iterable[Ledger]) -> Iterator[pa.Table]:
        """All columns of the entries of other ledgers, in order and as `SCHEMA`, past the cache.

        Skips row groups without such entries.
        """
        wanted = self.runs.rows_outside(ledgers)
        with self._open() as parquet:
            for group, (begin, end) in enumerate(pairwise(self._starts)):
                mask = wanted[begin:end]
                if mask.any():
                    with self._checked():
                        table = self._read(parquet, group, SCHEMA.names).cast(SCHEMA)
                    yield table if mask.all() else table.filter(pa.array(mask))


def _index(stored: dict[bytes, bytes]) -> Index:
    """Raises `ValueError` and `msgspec.MsgspecError`."""
    if _KEY not in stored:
        raise ValueError("it has no index: it was not written by Magnetar, or rewritten")
    encoded = stored[_KEY]
    # Files of early stores have none.
    if _CHECKSUM in stored and stored[_CHECKSUM] != b"%d" % crc32(encoded):
        raise ValueError("its index has another checksum")
    return msgspec.json.decode(encoded, type=Index)
