"""Quarantine: the refused records, unchanged, with the rule that each broke.

``<url>/quarantine/<batch>-<partition>.parquet``, columns `QUARANTINE`.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.commands import Refused
from schemas.effects import KINDS, RULES_OF_A_RUN, TOPIC_SET_ASIDE, Quarantined
from schemas.outputs import IDENTITY, OUTPUT, Rows
from schemas.records import Coordinates, TopicAside, column
from sinks import batch_files
from sinks.parquet import options, rows_of
from sinks.storage import Storage

_FOLDER = "quarantine"

QUARANTINE = pa.schema(
    [
        OUTPUT.field("partition"),
        OUTPUT.field("offset"),
        OUTPUT.field("ordinal"),
        column(
            "timestamp", pa.timestamp("ms", tz="UTC"), "the partition's clock when the record was refused"
        ),
        column("topic", pa.string(), "the record's topic; null: it named none"),
        column("rule", pa.string(), "the rule that was broken"),
        column("cause", pa.string(), "what is wrong, in words"),
        column("value", pa.binary(), "the record's value, as it came"),
    ]
)


class QuarantineSink:
    """Stores QUARANTINED rows."""

    def __init__(self, url: str) -> None:
        """`url`: a local folder or any URI that pyarrow can open."""
        self._storage = Storage(url)
        self._checked = False

    def begin(self, batch_id: int) -> None:
        """Clear what killed writes left, at the first call. Raises `ForeignFiles`."""
        if not self._checked:
            batch_files.prepare(self._storage, [_FOLDER], batch_id)
            self._checked = True

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        """Write the quarantined records, in columns `QUARANTINE`, to one file. No file without such records."""
        bad = rows.get(KINDS[Quarantined])
        if bad is None:
            return
        names = ["partition", "offset", "ordinal", "clock", "topic", "rule", "cause", "payload"]
        table = bad.select(names).rename_columns(QUARANTINE.names).cast(QUARANTINE)

        def write(stream: pa.NativeFile) -> None:
            with pq.ParquetWriter(stream, QUARANTINE, **options(QUARANTINE, "zstd")) as writer:
                writer.write_table(table)

        self._storage.publish(batch_files.path(_FOLDER, batch_id, partition, "parquet"), write)

    def clear(self, batch_id: int) -> None:
        """See `StoringSink`."""
        batch_files.clear(self._storage, [_FOLDER], batch_id)

    def places(self, rows: Mapping[tuple[int, str], int]) -> set[str]:
        """See `StoringSink`: one place for each partition."""
        return {f"{_FOLDER}/{partition:05d}" for partition, kind in rows if kind == KINDS[Quarantined]}

    def missing(self, wrote: Mapping[str, int], committed: int) -> dict[str, int]:
        """See `StoringSink`. Looks for files of the last micro-batch alone: somebody may have removed older ones, which are done."""
        paths = {
            batch_files.path(folder, batch, int(partition), "parquet")
            for folder, _, partition, batch in (
                (*place.partition("/"), batch) for place, batch in wrote.items()
            )
            if folder == _FOLDER and batch == committed
        }
        return dict.fromkeys(sorted(paths - self._storage.infos(paths).keys()), committed)


def read_set_aside(url: str) -> dict[Coordinates, Refused]:
    """The quarantined records that the run chose, not their contents (`RULES_OF_A_RUN`), and why."""
    rows = read_quarantine(
        url,
        columns=[*IDENTITY, "rule", "cause"],
        where=pc.field("rule").isin(RULES_OF_A_RUN),
    )
    return {
        Coordinates(row["partition"], row["offset"]): Refused(row["rule"], row["cause"])
        for row in rows.to_pylist()
    }


def read_topics_set_aside(url: str) -> list[TopicAside]:
    """The topics that the run set aside, each after the record that was the last one then."""
    where = pc.field("rule") == TOPIC_SET_ASIDE
    rows = read_quarantine(url, columns=[*IDENTITY, "topic"], where=where)
    return [TopicAside(row["topic"], row["partition"], row["offset"]) for row in rows.to_pylist()]


def read_quarantine(
    url: str,
    *,
    columns: Sequence[str] = QUARANTINE.names,
    where: pc.Expression | None = None,
) -> pa.Table:
    """The quarantined records that match `where` (None: all), sorted by (partition, offset, ordinal).

    `columns` are some of `QUARANTINE` and must include these three. Without ``value`` the read is fast even for large
    records.
    """
    storage = Storage(url)
    schema = pa.schema([QUARANTINE.field(name) for name in columns])
    tables = [schema.empty_table()]
    for info in storage.files(_FOLDER, named=batch_files.NAME):
        with rows_of(str(info.path)), storage.open(storage.relative(info)) as file:
            found = pq.read_table(file, columns=schema.names, filters=where, page_checksum_verification=True)
            tables.append(found.cast(schema))
    return pa.concat_tables(tables).sort_by([(name, "ascending") for name in IDENTITY])
