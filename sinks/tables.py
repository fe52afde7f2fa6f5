"""Output tables in Parquet: one folder per kind, one file per micro-batch and partition.

``<url>/kind=SEND_RECEIPT/<batch>-<partition>.parquet``: the Hive layout, in which readers find the column ``kind``. A
file has the identity, the clock, and the columns of its kind, so a reader of all kinds must match columns by name.

A live query adds a log, which makes one Delta Lake table of the files, see `sinks.delta_log`.
"""

import logging
import re
import threading
from collections.abc import Iterable, Mapping
from datetime import date, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from schemas import effects
from schemas.outputs import IDENTITY, OUTPUT, SCHEMAS, Rows
from sinks import batch_files
from sinks.base import ForeignFiles
from sinks.delta_log import BATCH, DeltaLog, File, is_of_log, is_own, today
from sinks.parquet import fragment, options
from sinks.storage import BadUrl, NotStored, Storage, plain

_GROUP_ROWS = 1 << 20
_GROUP_BYTES = 128 << 20

# Entries are in the ledger store. A table of receipts, or of what compaction kept, with payloads would store them twice.
_LEFT_OUT = {
    effects.KINDS[kind]: {"metadata", "payload"} for kind in (effects.SendReceipt, effects.CompactedEntry)
}


TABLES = {
    kind: pa.schema([field for field in schema if field.name not in _LEFT_OUT.get(kind, ())])
    for kind, schema in SCHEMAS.items()
}
"""The schema of each kind's table, without ``kind``, which is the folder."""

COMPACT_EVERY = 64
"""The micro-batches between compactions of a live query's table."""

_ALL = pa.schema(
    [f for f in OUTPUT if f.name != "kind" and any(f.name in each.names for each in TABLES.values())]
)

_DAY = timedelta(days=1)

_TABLE = "tables"

_NOT_DELTAS = re.compile(r"[%\\\x00-\x1f\x7f]")
"""What Delta Lake's library can't have in the name of a folder, whatever link leads there: it follows that."""

_NAMES = {"%": "a percent sign", "\\": "a backslash", "\n": "a line break"}

_NAMED = 5
"""Foreign files that an error names at most."""

_logger = logging.getLogger(__name__)


class TableSink:
    """Writes every row to the table of its kind."""

    def __init__(self, url: str, filesystem: fs.FileSystem | None = None) -> None:
        """`url`: a local folder or any URI that pyarrow can open, or, with a `filesystem`, a path on it."""
        self._storage = Storage(url, filesystem)
        self._checked = False

    def begin(self, batch_id: int) -> None:
        """Clear what killed writes left, at the first call. Raises `ForeignFiles`."""
        if not self._checked:
            batch_files.prepare(self._storage, map(_folder, TABLES), batch_id)
            self._checked = True

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        """Write one file per kind. Raises `KeyError` for a kind that `schemas.effects` doesn't have."""
        for kind, table in rows.items():
            self._publish(self._path(kind, batch_id, partition), self._columns(batch_id, kind, table))

    def _path(self, kind: str, batch_id: int, partition: int) -> str:
        return path_of(kind, batch_id, partition)

    def _columns(self, batch_id: int, kind: str, table: pa.Table) -> pa.Table:
        return table.select(TABLES[kind].names)

    def _publish(self, path: str, table: pa.Table) -> None:
        # A row group is encoded in memory.
        rows_per_group = max(1, min(_GROUP_ROWS, _GROUP_BYTES * len(table) // max(table.nbytes, 1)))

        def write(stream: pa.NativeFile) -> None:
            with pq.ParquetWriter(stream, table.schema, **options(table.schema, "zstd")) as writer:
                writer.write_table(table, row_group_size=rows_per_group)

        self._storage.publish(path, write)


class DeltaSink(TableSink):
    """Writes every row to the Delta table of a live query, and commits each micro-batch once.

    Every `COMPACT_EVERY` commits, a thread compacts the table and removes rows that are too old, see `DeltaLog.compact`. The table
    knows when it was compacted last, so it does not matter how many processes made these commits. If that fails, it warns and tries again
    later: the table is only larger than it should be.
    """

    def __init__(self, url: str, keep: timedelta | None = None) -> None:
        """`url`: a local folder or a URI that both pyarrow and Delta's library can open. `keep`: rows older than this are removed.

        Raises `BadUrl` for a local folder with a character in its name that this library decodes, replaces or refuses.
        """
        super().__init__(url)
        if self._storage.folder is not None and (found := _NOT_DELTAS.search(self._storage.url)):
            what = _NAMES.get(found[0], "a control character")
            raise BadUrl(
                f"{url!r}: Delta Lake's library can't use a folder with {what} in its name; use another one, or no tables"
            )
        self._keep = keep
        self._log = DeltaLog(self._storage)
        self._last: int | None = None
        """The last micro-batch that the table had when the query began, −1: none, None: not known. Only that one may be repeated."""
        self._open = False
        self._since_try = COMPACT_EVERY
        """The commits since the last compaction began, if this process began one."""
        self._counted = False
        self.files = 0
        """How many files the table has, after a commit."""
        self._upkeep: threading.Thread | None = None

    def __getstate__(self) -> tuple[str, int | None]:
        return self._storage.url, self._last  # what the tasks need

    def __setstate__(self, state: tuple[str, int | None]) -> None:
        DeltaSink.__init__(self, state[0])
        self._last = state[1]

    def begin(self, batch_id: int) -> None:
        """Check the table and clear what killed writes left, at the first call. Raises `ForeignFiles`."""
        if self._checked:
            return
        if self._log.exists:
            self._log.check_own()
            last = self._log.last_batch()
            if last is not None and last > batch_id:
                raise ForeignFiles.found(self._storage.url, batch_id, last)
            self._last = -1 if last is None else last
            self._storage.sweep()
        else:
            self._check_new()
            batch_files.prepare(self._storage, map(_folder, TABLES), batch_id)
            self._last = -1
        self._checked = True

    def _check_new(self) -> None:
        """A table begins in a folder of its own: to those who read it by its files, all of them are its rows."""
        paths = [*map(self._storage.relative, self._storage.files("", recursive=True))]
        if foreign := [path for path in paths if not (is_own(path) or is_of_log(path))]:
            named = ", ".join(foreign[:_NAMED])
            raise ForeignFiles(
                f"{self._storage.url} contains files that no query wrote ({named}): move that away, or give this query a new folder"
            )

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        """Write one file per kind, unless the table has it: the log knows its size, so it is never replaced.

        Raises `KeyError` for a kind that `schemas.effects` doesn't have, and `ForeignFiles` if the table has other rows of this
        micro-batch.
        """
        if self._last is not None and self._last < batch_id:  # it saves S3 a request for each file
            super().write(batch_id, partition, rows)
            return
        there = self._files_of(batch_id, [(partition, kind) for kind in rows])
        if there and self.has_committed(batch_id):
            for (_, kind), (path, _) in there.items():
                self._check_same(path, self._columns(batch_id, kind, rows[kind]))
            left = {kind: rows[kind] for kind in rows if (partition, kind) not in there}
        else:
            left = dict(rows)
        super().write(batch_id, partition, left)

    def has_committed(self, batch_id: int) -> bool:
        """Whether the table has the rows of a micro-batch. Raises `Damaged`."""
        log = DeltaLog(self._storage)
        last = log.last_batch() if log.exists else None
        return last is not None and last >= batch_id

    def _check_same(self, path: str, table: pa.Table) -> None:
        with fragment(self._storage, path) as file:
            there = file.to_table()
        # An earlier version may have had fewer columns.
        names = [name for name in there.column_names if name in table.column_names]
        if not there.select(names).equals(table.select(names).cast(there.select(names).schema)):
            raise self._other(path)

    def _other(self, path: str) -> ForeignFiles:
        return ForeignFiles(
            f"{self._storage.url}/{path} has other rows than the query would write: it began this micro-batch with another --quarantine or "
            "--quarantine-topic, which then must stay as it was until the micro-batch is done, or its checkpoint is an older copy. Then restore "
            "checkpoint and store of the same time together, or give this query a new checkpoint and a new store"
        )

    def _path(self, kind: str, batch_id: int, partition: int) -> str:
        return batch_files.path(_of_day(kind, today()), batch_id, partition, "parquet")

    def _columns(self, batch_id: int, kind: str, table: pa.Table) -> pa.Table:
        columns = super()._columns(batch_id, kind, table)
        return columns.append_column(BATCH, pa.repeat(pa.scalar(batch_id, BATCH.type), len(table)))

    def commit(self, batch_id: int, rows: Mapping[tuple[int, str], int]) -> None:
        """Make the rows of a micro-batch part of the table, unless they are. Raises `NotStored`, and `ForeignFiles` if others are."""
        if self._last is None or self._last >= batch_id:
            self._check_committed(batch_id, rows)
        if not self._open:
            if self._log.exists:
                self._log.add_columns(_ALL)
            else:  # the files that are there were written by a query of version 0.1
                found = (
                    (kind, info)
                    for kind in TABLES
                    for info in self._storage.files(_folder(kind), named=batch_files.NAME)
                )
                files = {
                    self._storage.relative(info): File(kind, today(), info.size, None) for kind, info in found
                }
                self._log.create(_ALL, files)
            self._open = True
        added = self._log.commit(batch_id, self._written(batch_id, rows))
        uncompacted = self._log.uncompacted() + bool(added)
        if self._counted:
            self.files += added
        else:  # as the compaction left it
            self._counted, self.files = True, self._log.count()
        self._since_try += bool(added)
        due = min(self._since_try, uncompacted) >= COMPACT_EVERY
        if due and (self._upkeep is None or not self._upkeep.is_alive()):
            self._since_try = 0
            self._upkeep = threading.Thread(target=self._compact, name="compaction", daemon=True)
            self._upkeep.start()

    def _check_committed(self, batch_id: int, rows: Mapping[tuple[int, str], int]) -> None:
        """`write` has compared the files that are there. Here are those that only one of two attempts has."""
        if not self.has_committed(batch_id):
            return
        own = {
            (of.partition, path.partition("/")[0].removeprefix("kind=")): path
            for path in self._log.paths()
            if (of := batch_files.of(path)) and of.batch == batch_id
        }
        differ = own.keys() - rows.keys()
        if self._log.uncompacted():  # otherwise, some of its files may be part of larger ones
            differ |= rows.keys() - own.keys()
        if differ:
            partition, kind = first = min(differ)
            raise self._other(own.get(first) or self._path(kind, batch_id, partition))

    def _written(self, batch_id: int, rows: Mapping[tuple[int, str], int]) -> dict[str, File]:
        """The files of a micro-batch. Raises `NotStored`."""
        found = self._files_of(batch_id, rows)
        for partition, kind in rows:
            if (partition, kind) not in found:
                raise NotStored(
                    f"{self._storage.url}: the rows of micro-batch {batch_id}, partition {partition} and kind {kind} are missing"
                )
        return {
            path: File(kind, day, size, rows[partition, kind])
            for (partition, kind), (path, (day, size)) in found.items()
        }

    def _files_of(
        self, batch_id: int, wanted: Iterable[tuple[int, str]]
    ) -> dict[tuple[int, str], tuple[str, tuple[date, int]]]:
        """Those of the files of a micro-batch, by partition and kind, that are there: the path of each, its day, which is that of the machine
        that wrote it, perhaps before midnight, and its size."""
        now = today()
        found: dict[tuple[int, str], tuple[str, tuple[date, int]]] = {}
        left = [*wanted]
        for day in (now, now - _DAY, now + _DAY):
            paths = {
                batch_files.path(_of_day(kind, day), batch_id, partition, "parquet"): (partition, kind)
                for partition, kind in left
            }
            for path, info in self._storage.infos(paths).items():
                found[paths[path]] = path, (day, info.size)
            left = [each for each in left if each not in found]
            if not left:
                break
        return found

    def clear(self, batch_id: int) -> None:
        """See `StoringSink`: files that no commit names are no part of the table."""

    def places(self, rows: Mapping[tuple[int, str], int]) -> set[str]:
        """See `StoringSink`: the table."""
        return {_TABLE} if rows else set()

    def missing(self, wrote: Mapping[str, int], committed: int) -> dict[str, int]:
        """See `StoringSink`. A folder without anything in it was moved away: then a new table begins."""
        if (batch := wrote.get(_TABLE)) is None:
            return {}
        if not self._log.exists:
            self._check_new()
            return {f"{_TABLE}/_delta_log": batch} if self._storage.has_folders() else {}
        last = self._log.last_batch()
        if last is None or last < batch:
            return {f"the newest commit of {_TABLE}/_delta_log": batch}
        own = {path for path in self._log.paths() if (of := batch_files.of(path)) and of.batch == batch}
        return {f"{_TABLE}/{path}": batch for path in sorted(own - self._storage.infos(own).keys())}

    def _compact(self) -> None:
        try:
            DeltaLog(self._storage).compact(self._keep)
        except Exception as error:
            _logger.warning("The output table was not compacted: %s", plain(error))
        self._counted = False

    def close(self) -> None:
        """Wait until the compaction at hand is done."""
        if self._upkeep is not None:
            self._upkeep.join()


def table_files(storage: Storage, kind: str) -> list[str]:
    """The paths of a kind's files in the storage, in no order."""
    log = DeltaLog(storage)
    if log.exists:
        return log.files(kind)
    return [storage.relative(info) for info in storage.files(_folder(kind), named=batch_files.NAME)]


def path_of(kind: str, batch_id: int, partition: int) -> str:
    """The path of the rows of a kind that `TableSink` writes for a micro-batch of an ingress partition."""
    return batch_files.path(_folder(kind), batch_id, partition, "parquet")


def first_batch(storage: Storage) -> int | None:
    """The first micro-batch of which there are rows, or None if there are none."""
    log = DeltaLog(storage)
    found = [batch_files.of(path) for kind in TABLES for path in table_files(storage, kind)]
    named = [each.batch for each in found if each is not None]
    compacted = log.first_batch() if None in found else None
    return min(named if compacted is None else [*named, compacted], default=None)


def columns_of(kind: str | None) -> pa.Schema:
    """The columns of the rows of a kind, and ``kind``; of all kinds together: `OUTPUT`."""
    return OUTPUT if kind is None else pa.schema([*TABLES[kind], OUTPUT.field("kind")])


def read_table(url: str, kind: str | None = None) -> pa.Table:
    """The rows of a kind, or of all kinds (columns `OUTPUT`), sorted by identity, without repeats."""
    storage = Storage(url)
    schema = columns_of(kind)
    tables = [schema.empty_table()]
    for each in TABLES if kind is None else [kind]:
        for path in table_files(storage, each):
            with fragment(storage, path) as file:
                tables.append(filled(file.to_table(), each, schema))
    rows = pa.concat_tables(tables)
    rows = rows.take(pc.sort_indices(rows, [(name, "ascending") for name in IDENTITY]))
    repeat = np.ones(max(len(rows) - 1, 0), bool)
    for name in IDENTITY:
        column = rows[name].to_numpy()
        repeat &= column[1:] == column[:-1]
    return rows.filter(np.concatenate((np.ones(min(len(rows), 1), bool), ~repeat)))


def _of_day(kind: str, day: date) -> str:
    # Some readers take the values of a partition from the path, so every path has them.
    return f"{_folder(kind)}/date={day.isoformat()}"


def _folder(kind: str) -> str:
    return f"kind={kind}"  # one of `TABLES`


def filled(table: pa.Table, kind: str, schema: pa.Schema) -> pa.Table:
    """`table` with the columns of `schema`: adds its kind, and nulls for missing columns."""
    rows = len(table)
    known = {name: table[name] for name in table.column_names} | {"kind": pa.repeat(kind, rows)}
    return pa.table([known.get(f.name, pa.nulls(rows, f.type)) for f in schema], schema=schema)
