"""The transaction log of a live query's output table, in the format of Delta Lake.

The tasks of the query write Parquet files. Its driver adds those of a micro-batch to the log in one commit, which names the
micro-batch as Delta's application transaction, so a repeated micro-batch is committed once. A table is partitioned by `kind` and by
`date`, the day (UTC) on which its rows were written: so that compaction rewrites the files of a day, and retention removes days.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sinks.base import ForeignFiles
from sinks.links import Link
from sinks.s3 import S3Url, failed
from sinks.storage import Damaged, NotStored, Storage, plain

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

BATCH = pa.field("batch", pa.int64(), metadata={"doc": "The micro-batch that wrote the row."})
DATE = pa.field("date", pa.date32(), metadata={"doc": "The day (UTC) on which it was written."})

READABLE_HOURS = 1
"""How long files that compaction or retention replaced stay for readers that opened the table before."""

_LOG = "_delta_log"
_ACTIONS = frozenset({"add", "remove", "txn", "commitInfo", "metaData", "protocol", "cdc", "domainMetadata"})
"""What the lines of a commit are, by Delta's protocol."""
_COMMIT = re.compile(r"\d+\.json")
_TO_DO = (
    "Restore it from a backup, or move the folder of the table away: the query then starts a new one, "
    "without the rows so far"
)

_OWN = re.compile(
    r"""
    kind=[A-Z_]+/ (date=\d{4}-\d\d-\d\d/)? \d{9,}-\d{5,}\.parquet  # a micro-batch; version 0.1 had no days
    | kind=[A-Z_]+/ date=\d{4}-\d\d-\d\d/ part-\d{5}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-c\d{3}(\.\w+)?\.parquet
    | _temporary/ [0-9a-f]{32}
    """,
    re.VERBOSE,
)

_DELETIONS_AT_ONCE = 8

_APPLICATION = "magnetar"
_COMPACTION = "magnetar.compaction"
"""The application transaction whose version is that of the table after its last compaction."""
_PARTITIONS = ["kind", "date"]
_TARGET_BYTES = 64 << 20
_PROPERTIES: dict[str, str | None] = {
    # A commit reads the commits since the last checkpoint: about 0.3 ms each.
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": f"interval {READABLE_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {READABLE_HOURS} hours",
    "delta.dataSkippingStatsColumns": "partition,offset,clock,topic,batch",
}


def is_own(path: str) -> bool:
    """Whether a file below the folder of a table has a name that a query or a compaction gives. All others are somebody else's."""
    return _OWN.fullmatch(path) is not None


def is_of_log(path: str) -> bool:
    """Whether it is in the folder of the log, where a crash may leave more than commits."""
    return path.startswith(f"{_LOG}/")


class NotATable(RuntimeError):
    """A folder has no output table of a live query."""


class File(NamedTuple):
    """A file to add to a table. `size`: in bytes. `rows`: their number, if it is known."""

    kind: str
    day: date
    size: int
    rows: int | None


class Conflict(RuntimeError):
    """Another process changed the same files of a table. The text says what to do."""


class Compacted(NamedTuple):
    """The files of a table before and after `DeltaLog.compact`."""

    before: int
    after: int


class DeltaLog:
    """The log of the table in a folder. Use one per thread."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @cached_property
    def _uri(self) -> str:
        if (s3 := S3Url.parse(self._storage.url)) is not None:
            return f"s3://{s3.path}"
        if (folder := self._storage.folder) is None:
            return self._storage.url
        self._link = Link(folder)  # the library panics at brackets in the names of folders
        if self._link.path == folder:
            return self._storage.url
        folder.mkdir(parents=True, exist_ok=True)
        return self._link.path.as_uri()  # it would resolve the link in a path

    @cached_property
    def _options(self) -> dict[str, str]:
        s3 = S3Url.parse(self._storage.url)
        return {} if s3 is None else s3.delta()

    @property
    def exists(self) -> bool:
        """Whether the folder has a log. Raises `Damaged` if it lacks the first commit."""
        names = ("_last_checkpoint", "00000000000000000000.json")
        if any(self._storage.info(f"{_LOG}/{name}") is not None for name in names):
            return True
        if self._storage.files(_LOG, named=_COMMIT):
            raise Damaged(f"{self._storage.url}/{_LOG} lacks its first commit. {_TO_DO}")
        return False

    def create(self, schema: pa.Schema, files: Mapping[str, File]) -> None:
        """Start the log, with the files that are there by path, in one commit. `schema`: all columns but `batch` and the
        partitions'."""
        from deltalake import Schema
        from deltalake.transaction import create_table_with_add_actions

        fields = [*schema, BATCH, pa.field("kind", pa.string()), DATE]
        create_table_with_add_actions(
            self._uri,
            Schema.from_arrow(pa.schema([pa.field(f.name, f.type) for f in fields])),
            list(self._additions(files)),
            partition_by=_PARTITIONS,
            configuration=_PROPERTIES,
            storage_options=self._options,
        )

    def check_own(self) -> None:
        """Raises `ForeignFiles` if the log is that of another table."""
        table = self._current()
        with self._damage():
            partitions = table.metadata().partition_columns
        if partitions != _PARTITIONS:
            raise ForeignFiles(
                f"{self._storage.url} holds a Delta table that no query wrote: move it away, or give this query a new folder"
            )

    def last_batch(self) -> int | None:
        """The last micro-batch that was committed. Raises `Damaged`, as all that reads the log."""
        return self._current().transaction_version(_APPLICATION)

    def commit(self, batch_id: int, files: Mapping[str, File]) -> int:
        """Add the files of a micro-batch by path, unless it is committed. Gives the number of those added. Raises `NotStored`."""
        from deltalake.exceptions import DeltaError

        try:
            last = self.last_batch()
            if files and (last is None or last < batch_id):
                self._write(files, _APPLICATION, batch_id)
                return len(files)
            return 0
        except Damaged:
            raise
        except (DeltaError, OSError) as error:
            raise NotStored(f"{self._storage.url} could not be changed: {plain(error)}") from error

    def _write(self, files: Mapping[str, File], application: str, version: int) -> None:
        from deltalake import CommitProperties, Transaction

        self._table.create_write_transaction(
            list(self._additions(files)),
            "append",
            self._table.schema(),
            _PARTITIONS,
            commit_properties=CommitProperties(app_transactions=[Transaction(application, version)]),
        )

    def uncompacted(self) -> int:
        """The number of commits since the last compaction, or since the table began, when the log was read last: before the latest `commit`."""
        return self._table.version() - (self._table.transaction_version(_COMPACTION) or 0)

    def _additions(self, files: Mapping[str, File]) -> Iterable["AddAction"]:
        from deltalake.transaction import AddAction

        now = int(datetime.now(UTC).timestamp() * 1000)
        for path, file in files.items():
            yield AddAction(
                path=path,
                size=file.size,
                partition_values={"kind": file.kind, "date": file.day.isoformat()},
                modification_time=now,
                data_change=True,
                stats=json.dumps({} if file.rows is None else {"numRecords": file.rows}),
            )

    def add_columns(self, schema: pa.Schema) -> None:
        """Give the table columns of `schema` that it does not have: those that a newer Magnetar writes."""
        from deltalake import Schema

        known = {field.name for field in self._table.schema().fields}
        new = [pa.field(f.name, f.type) for f in schema if f.name not in known]
        if new:
            self._table.alter.add_columns(list(Schema.from_arrow(pa.schema(new)).fields))

    def count(self) -> int:
        """The number of the table's files, of all kinds."""
        return len(self._files())

    def files(self, kind: str) -> list[str]:
        """The paths of a kind's files in the storage, in no order."""
        return [path for path in self.paths() if path.startswith(f"{_PARTITIONS[0]}={kind}/")]

    def paths(self) -> list[str]:
        """The paths of all files in the storage, in no order."""
        # Every file is in the folder of its kind. What comes before is the table's address, in a form of the library's own.
        return [uri[uri.rindex(f"{_PARTITIONS[0]}=") :] for uri in self._files()]

    def _files(self) -> list[str]:
        table = self._current()
        with self._damage():
            return table.file_uris()

    def first_batch(self) -> int | None:
        """The first micro-batch in compacted files, or None if there are none."""
        table = self._current()
        with self._damage():
            files = pa.table(table.get_add_actions(flatten=True))
        name = f"min.{BATCH.name}"
        return pc.min(files[name]).as_py() if name in files.column_names else None

    def compact(self, keep: timedelta | None = None) -> Compacted:
        """Rewrite small files of a day and kind into large ones, remove the days that are older than `keep`, rounded up to whole
        days, and delete the files that nobody reads any more. The query may commit meanwhile.

        Raises `Conflict` if another compaction does the same, `NotATable`, `Damaged` and `NotStored`.
        """
        from deltalake import WriterProperties
        from deltalake.exceptions import CommitFailedError

        table = self._current()
        with self._damage("or one of its files"):
            before = len(table.file_uris())
            try:
                if keep is not None:
                    days = keep.days + (keep > timedelta(keep.days))
                    oldest = date.fromordinal(max(1, today().toordinal() - days))
                    if any(date.fromisoformat(each["date"]) < oldest for each in table.partitions()):
                        table.delete(f"date < DATE '{oldest.isoformat()}'")
                table.optimize.compact(
                    target_size=_TARGET_BYTES,
                    max_concurrent_tasks=1,
                    writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
                )
            except CommitFailedError as error:
                raise Conflict(
                    f"{self._storage.url}: another compaction is under way ({plain(error)}); try again"
                ) from error
            # `full` also finds the files of micro-batches that were repeated after their compaction. Files that a micro-batch has
            # written and not committed are younger; if one should take longer, it fails in `commit` and is repeated.
            # It finds whatever else is in the folder, too, so it only lists.
            unread = table.vacuum(READABLE_HOURS, dry_run=True, enforce_retention_duration=False, full=True)
            with ThreadPoolExecutor(_DELETIONS_AT_ONCE) as pool:
                list(pool.map(self._storage.delete, filter(is_own, unread)))
            # At last, so that one which did not come so far is repeated.
            self._write({}, _COMPACTION, table.version() + 1)
            return Compacted(before, len(table.file_uris()))

    def _current(self) -> "DeltaTable":
        """The table as it is now."""
        with self._damage():
            self._table.update_incremental()
            return self._table

    @cached_property
    def _table(self) -> "DeltaTable":
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with self._damage():
            found = {info.base_name: info.size for info in self._storage.files(_LOG)}
            checkpoint = max((name for name in found if ".checkpoint." in name), default="")
            for name, size in found.items():
                # A power failure may leave an empty file. The library takes it for a commit that changed nothing.
                if _COMMIT.fullmatch(name) and name > checkpoint and not size:
                    raise Damaged(f"{self._storage.url}/{_LOG}/{name} is empty. {_TO_DO}")
            for name in sorted(filter(_COMMIT.fullmatch, found))[-1:]:
                self._check(f"{_LOG}/{name}")
            try:
                return DeltaTable(self._uri, storage_options=self._options)
            except TableNotFoundError as error:
                raise NotATable(f"{self._storage.url} has no output table of a live query") from error

    def _check(self, name: str) -> None:
        """The library passes over what is no action, and so over the rows of a commit that is none."""
        try:
            with self._storage.open(name) as file:
                lines = bytes(file.read()).splitlines()
            known = all(_ACTIONS.issuperset(json.loads(line)) for line in lines)
        except (FileNotFoundError, ValueError, TypeError):
            return  # the library says what is wrong
        if not known:
            raise Damaged(f"{self._storage.url}/{name} is not a commit. {_TO_DO}")

    @contextmanager
    def _damage(self, others: str = "") -> Iterator[None]:
        """Turns what the library says of a log that it can't read into a sentence. `others`: what else it may be about."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except DeltaError as error:
            if failed(str(error)) is not None:  # S3 is away, and its files may be whole
                raise OSError(str(error)) from error
            if "No space left" in str(error):
                raise NotStored(f"{self._storage.url} could not be changed: {plain(error)}") from error
            what = f"{self._storage.url}/{_LOG} {others}".strip()
            raise Damaged(f"{what} is damaged: {plain(error)}. {_TO_DO}") from error


def today() -> date:
    """The day that files which are written now belong to."""
    return datetime.now(UTC).date()
