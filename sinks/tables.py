"""Output tables in Parquet: one folder per kind, one file per micro-batch and partition.

``<url>/kind=SEND_RECEIPT/<batch>-<partition>.parquet``: the Hive layout, in which readers find the column ``kind``. A
file has the identity, the clock, and the columns of its kind, so a reader of all kinds must match columns by name.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from schemas import effects
from schemas.outputs import IDENTITY, OUTPUT, SCHEMAS, Rows
from sinks import batch_files
from sinks.parquet import options
from sinks.storage import Storage

_GROUP_ROWS = 1 << 20
_GROUP_BYTES = 128 << 20

# Entries are in the ledger store. A table of receipts with payloads would store them twice.
_LEFT_OUT = {effects.KINDS[effects.SendReceipt]: {"metadata", "payload"}}


TABLES = {
    kind: pa.schema([field for field in schema if field.name not in _LEFT_OUT.get(kind, ())])
    for kind, schema in SCHEMAS.items()
}
"""The schema of each kind's table, without ``kind``, which is the folder."""


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
            path = batch_files.path(_folder(kind), batch_id, partition, "parquet")
            self._publish(path, table.select(TABLES[kind].names))

    def _publish(self, path: str, table: pa.Table) -> None:
        # A row group is encoded in memory.
        rows_per_group = max(1, min(_GROUP_ROWS, _GROUP_BYTES * len(table) // max(table.nbytes, 1)))

        def write(stream: pa.NativeFile) -> None:
            with pq.ParquetWriter(stream, table.schema, **options(table.schema, "zstd")) as writer:
                writer.write_table(table, row_group_size=rows_per_group)

        self._storage.publish(path, write)


def read_table(url: str, kind: str | None = None, filesystem: fs.FileSystem | None = None) -> pa.Table:
    """The rows of a kind, or of all kinds (columns `OUTPUT`), sorted by identity, without repeats."""
    storage = Storage(url, filesystem)
    schema = OUTPUT if kind is None else pa.schema([*TABLES[kind], OUTPUT.field("kind")])
    tables = [schema.empty_table()]
    for each in TABLES if kind is None else [kind]:
        for info in storage.files(_folder(each)):
            with storage.open(storage.relative(info)) as file:
                tables.append(_fill(pq.read_table(file), each, schema))
    rows = pa.concat_tables(tables)
    rows = rows.take(pc.sort_indices(rows, [(name, "ascending") for name in IDENTITY]))
    repeat = np.ones(max(len(rows) - 1, 0), bool)
    for name in IDENTITY:
        column = rows[name].to_numpy()
        repeat &= column[1:] == column[:-1]
    return rows.filter(np.concatenate((np.ones(min(len(rows), 1), bool), ~repeat)))


def _folder(kind: str) -> str:
    return f"kind={kind}"  # one of `TABLES`


def _fill(table: pa.Table, kind: str, schema: pa.Schema) -> pa.Table:
    """`table` with the columns of `schema`: adds its kind, and nulls for missing columns."""
    rows = len(table)
    known = {name: table[name] for name in table.column_names} | {"kind": pa.repeat(kind, rows)}
    return pa.table([known.get(f.name, pa.nulls(rows, f.type)) for f in schema], schema=schema)
