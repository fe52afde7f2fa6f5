"""Commands in a DataFrame of a user's own: packed for the query, and folded at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame as DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from schemas.arguments import checked
from schemas.entries import EntryReader
from schemas.errors import MagnetarError
from schemas.records import OFFSETS, RECORD
from schemas.records import PARTITIONS as POSSIBLE
from sinks.tables import TABLES, columns_of, filled
from streaming.broker.entries import NoEntries
from streaming.fold.columns import PartitionFold
from streaming.log.partition import PARTITIONS, spread
from streaming.spark.packing import PACKED, pack, unpack

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_TYPES: Mapping[str, tuple[str, ...]] = {
    "partition": _INTEGERS,
    "offset": _INTEGERS,
    "timestamp": (*_INTEGERS, "timestamp"),
    "topic": ("string",),
    "value": ("binary", "string"),
}
_EXPECTED = (
    "expected offset (bigint), timestamp (bigint, in ms, or timestamp), topic (string, null for a command to the whole broker), "
    "value (string or binary), and perhaps partition (int)"
)


class BadCommands(MagnetarError, ValueError):
    """A DataFrame is not one of commands. The text names what is wrong, and what is expected."""


def packed(commands: DataFrame, partitions: int, *, streaming: bool) -> DataFrame:
    """Commands as the query takes them (`packing.PACKED`), see `streaming.jobs.start.start`.

    Raises `BadCommands` now for columns. For a row without an offset or a timestamp, with an offset outside of `OFFSETS`, or with a
    partition that there isn't, the task does, before anything is folded.
    """
    if commands.isStreaming != streaming:
        raise BadCommands(
            "the DataFrame is a batch: read it with spark.readStream, or give it to fold"
            if streaming
            else "the DataFrame is a stream: read it with spark.read, or give it to start"
        )
    if partitions not in range(1, len(POSSIBLE) + 1):
        raise BadCommands(f"{partitions} partitions: expected 1 to {len(POSSIBLE):,}")
    types = dict(commands.dtypes)
    if missing := [name for name in _TYPES if name not in types and name != "partition"]:
        raise BadCommands(f"the DataFrame has no column {' and no column '.join(missing)}: {_EXPECTED}")
    if twice := [name for name in _TYPES if commands.columns.count(name) > 1]:
        raise BadCommands(f"the DataFrame has several columns {twice[0]}: select one of them; {_EXPECTED}")
    if others := [name for name in commands.columns if name not in _TYPES]:
        raise BadCommands(
            f"the DataFrame has a column {others[0]} that no command has: select what is; {_EXPECTED}"
        )
    for name, type_ in types.items():
        if type_ not in _TYPES[name]:
            raise BadCommands(f"the column {name} has the type {type_}: {_EXPECTED}")

    def records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in filter(len, batches):
            for part in _records(batch, partitions).to_batches():
                yield from pack([part])

    milliseconds = F.unix_millis("timestamp") if types["timestamp"] == "timestamp" else F.col("timestamp")
    columns = {
        "offset": F.col("offset").cast("bigint"),
        "timestamp": milliseconds.cast("bigint"),
        "topic": F.col("topic"),
        "value": F.col("value").cast("binary"),
    }
    if "partition" in types:
        columns["partition"] = F.col("partition").cast("bigint")
    return commands.select(*(column.alias(name) for name, column in columns.items())).mapInArrow(
        records, PACKED
    )


def _records(batch: pa.RecordBatch, partitions: int) -> pa.Table:
    """Commands as columns `RECORD`."""
    given = pa.Table.from_batches([batch])
    values = given["value"].fill_null(b"")  # goes to quarantine
    given = given.set_column(given.schema.get_field_index("value"), "value", values)
    for name in ("partition", "offset", "timestamp"):
        if name in given.column_names and given[name].null_count:
            raise BadCommands(f"a command has no {name} (it is null): fill it in, or leave such rows out")
    for offset in pc.min_max(given["offset"]).values():
        if offset.as_py() not in OFFSETS:
            raise BadCommands(
                f"a command has the offset {offset}, and offsets are from 0 to {OFFSETS[-1]:,}: number the rows from 0, or leave "
                "this one out (where). Nothing of its micro-batch was folded"
            )
    if "partition" not in given.column_names:
        return spread(given, partitions)
    least, most = pc.min_max(given["partition"]).values()
    for each in (least.as_py(), most.as_py()):
        if each not in range(partitions):
            raise BadCommands(
                f"a command is in partition {each}, and there are {partitions}, numbered from 0: say how many there are"
            )
    return given.select(RECORD.names).cast(pa.schema([field.remove_metadata() for field in RECORD]))


class _NoStore:
    """For a fold of all records at once, which has every entry in memory."""

    def reader(self, partition: int) -> EntryReader:
        return NoEntries()


@checked
def fold(commands: DataFrame, kind: str | None = None, *, partitions: int = PARTITIONS) -> DataFrame:
    """The output rows of a batch of commands, of a kind such as ``EXPIRED`` or of all: what `read_rows` would read after a replay.

    Each ingress partition is folded by one task, from nothing, and its entries are in the memory of that task. Spark folds again
    for every action on the result, unless you cache it. Nothing is stored.

    Args:
        commands: columns as of `start`. Their order does not matter: offsets have it.
        kind: with it, the result has the columns of this kind alone, and ``kind``.
        partitions: how many ingress partitions there are.

    Raises `BadCommands`. A task that fails raises ``pyspark.errors.PythonException`` when Spark folds.
    """
    if kind is not None and kind not in TABLES:
        raise BadCommands(f"there is no kind {kind} of output rows: expected {', '.join(TABLES)}")
    schema = columns_of(kind)

    def folded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        frames = [batch.to_pandas() for batch in batches]
        own = PartitionFold(int(frames[0]["partition"][0]), _NoStore(), None)
        own.apply(unpack(frames))
        for rows in own.chunks():
            for each, table in rows.items():
                if kind in (None, each):
                    yield from filled(table.select(TABLES[each].names), each, schema).to_batches()

    # A number that is asked for is one that Spark keeps: how long a fold takes, it can't know from the bytes.
    keys = packed(commands, partitions, streaming=False).repartition(partitions, "partition", "slot")
    spark_schema: Any = from_arrow_schema(schema)
    return keys.groupBy("partition", "slot").applyInArrow(folded, spark_schema)
