"""What a query folds, as it folds it: the records of each ingress partition and micro-batch, why some were quarantined unread, and the tick
after them. Whoever folds these files comes to the states of the query. They are deleted once they have been folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.commands import Refused
from schemas.records import RECORD
from sinks import batch_files
from sinks.storage import Storage

FOLDER = "folded"

_BEFORE = b"before"
"""In the metadata of a file: `FoldedBefore`, in JSON."""

_ROW = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("topic", pa.string()),
        ("value", pa.binary()),
        ("rule", pa.string()),
        ("cause", pa.string()),
    ]
)
"""A record, or (without an offset) the tick after the records, at its `timestamp` (ms). `rule` and `cause`: why it was quarantined unread."""


class FoldedBefore(NamedTuple):
    """Where an ingress partition was before a micro-batch: its clock (ms), and the offset of its last record; None: it had none."""

    clock: int
    offset: int | None


class Visit(NamedTuple):
    """What was folded of an ingress partition in a micro-batch: where it was `before`, records (columns `RECORD`), by offset why some were
    quarantined unread, and the time of the tick after them (ms); None: there was none."""

    before: FoldedBefore
    records: pa.Table
    aside: Mapping[int, Refused]
    tick: int | None


class FoldedFile(NamedTuple):
    """A file: what was folded of an ingress partition in a micro-batch, in so many bytes."""

    batch: int
    partition: int
    size: int


_LAST = 1 << 62


class FoldedFiles:
    """The files below a storage. Pickles to that."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def write(
        self,
        batch: int,
        partition: int,
        before: FoldedBefore,
        records: Sequence[Sequence[object]],
        aside: Mapping[int, Refused],
        tick: int | None,
    ) -> None:
        """Write what was folded. `records`: the columns offset, timestamp, topic and value. A repeated micro-batch replaces the file.
        Raises `NotStored`."""
        whys = [aside.get(offset) for offset in records[0]]  # type: ignore[call-overload]
        columns = [
            *map(list, records),
            [each and each.rule for each in whys],
            [each and each.cause for each in whys],
        ]
        if tick is not None:
            for column, value in zip(columns, (None, tick, None, None, None, None), strict=True):
                column.append(value)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _ROW, strict=True)]
        table = pa.Table.from_arrays(
            arrays, schema=_ROW.with_metadata({_BEFORE: msgspec.json.encode(before)})
        )
        self._storage.publish(
            batch_files.path(FOLDER, batch, partition, "parquet"),
            lambda stream: pq.write_table(
                table, stream, compression="zstd", use_dictionary=["topic"], write_page_checksum=True
            ),
        )

    def waiting(self, upto: int) -> list[FoldedFile]:
        """What has been folded, and not deleted, up to a micro-batch: the oldest first."""
        found = [
            FoldedFile(*written, info.size)
            for info in self._storage.files(FOLDER, named=batch_files.NAME)
            if (written := batch_files.of(info.base_name)) is not None and written.batch <= upto
        ]
        return sorted(found)

    def read(self, batch: int, partition: int) -> Visit:
        """What was folded. Raises `FileNotFoundError`."""
        with self._storage.open(batch_files.path(FOLDER, batch, partition, "parquet")) as file:
            table = pq.read_table(file, page_checksum_verification=True)
        before = msgspec.json.decode((table.schema.metadata or {})[_BEFORE], type=FoldedBefore)
        is_record = table["offset"].is_valid()
        ticks = table.filter(pc.invert(is_record))["timestamp"].to_pylist()
        own = table.filter(is_record)
        late = own.filter(own["rule"].is_valid())
        aside = {
            offset: Refused(rule, cause)
            for offset, rule, cause in zip(
                *(late[name].to_pylist() for name in ("offset", "rule", "cause")), strict=True
            )
        }
        columns = {name: own[name] for name in ("offset", "timestamp", "topic", "value")}
        columns["partition"] = pa.chunked_array([pa.nulls(len(own), pa.int32()).fill_null(partition)])
        records = pa.Table.from_arrays([columns[name] for name in RECORD.names], schema=RECORD)
        return Visit(before, records, aside, ticks[0] if ticks else None)

    def delete(self, *, upto: int | None = None, after: int | None = None) -> None:
        """Delete what was folded up to a micro-batch, or after one."""
        for each in self.waiting(_LAST):
            if (upto is not None and each.batch <= upto) or (after is not None and each.batch > after):
                self._storage.delete(batch_files.path(FOLDER, each.batch, each.partition, "parquet"))
