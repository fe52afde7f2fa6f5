"""Command logs as files: what `magnetar replay` and `magnetar produce` read.

Three forms, told apart by the file's name and columns:

* **JSON Lines** (``.jsonl``, ``.jsonl.gz``): one object a line, a command's fields and its coordinates ``partition``,
  ``offset``, ``timestamp`` (ms) and ``topic``. The value handed on is the object without those four. A line that is no
  JSON object is handed on as it stands, so that it ends in quarantine with a reason and isn't lost.
* **Parquet** (a file or a folder): the columns of `schemas.records.RECORD`; ``partition`` and ``offset`` optional.
* **Parquet, short**: columns ``topic``, ``producer``, ``sequence_id``, ``payload`` (text or binary) and optionally
  ``timestamp``, ``key``, ``properties`` (a map), ``publish_time``, ``event_time``, ``deliver_at_time``: plain publishing.

A log without partitions is *logical*: one order of records, columns `LOGICAL`. `partition_log` makes ingress
partitions of it, as `magnetar produce` does on its way to Kafka: partition = crc32(UTF-8 of the topic) mod N, offsets
0, 1, 2, … in log order. A record without a topic speaks to whole partitions and is copied to each.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.commands import MalformedCommand, Publish, decode, to_json
from schemas.records import RECORD

LOGICAL = pa.schema([RECORD.field(name) for name in ("timestamp", "topic", "value")])
"""A log that no ingress partitions were made of yet."""

_SHORT = ("topic", "producer", "sequence_id", "payload")
_SHORT_OPTIONAL = ("publish_time", "event_time", "deliver_at_time")
_INT64 = range(-(2**63), 2**63)
_CHUNK = 1 << 16

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode
_encode_json = msgspec.json.Encoder().encode
_encode = msgspec.msgpack.Encoder().encode


class LogError(ValueError):
    """A file is no command log, or its coordinates contradict each other. The text names file, line and remedy."""


def read_log(path: str | Path) -> pa.Table:
    """The log in `path`: columns `RECORD` if it has partitions, else `LOGICAL`.

    A missing timestamp is the previous record's (0 at first). Offsets missing from a log with partitions count on
    from the partition's record before. Raises `LogError`, `FileNotFoundError`.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such log")
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return _read_lines(path)
    if path.is_dir() or path.suffix == ".parquet":
        return _read_parquet(path)
    raise LogError(f"{path}: expected a name ending in .jsonl, .jsonl.gz or .parquet")


def ingress_partition(topic: str, partitions: int) -> int:
    """The ingress partition (0 … `partitions` − 1) of a topic, for every producer of commands alike."""
    return zlib.crc32(topic.encode()) % partitions


def partition_log(log: pa.Table, partitions: int) -> pa.Table:
    """Ingress partitions of a log: columns `RECORD`, in log order. `partitions` ≥ 1.

    A log that has partitions already is merged into one order first (see `streaming.log.merge`). A record without a topic
    goes to every partition, unless it is no command for a partition: then to partition 0, to be quarantined once.

    Raises `LogError`.
    """
    from streaming.log.merge import for_partition, merge  # which import this module

    if partitions < 1:
        raise LogError(f"{partitions} partitions: expected 1 or more")
    if "partition" in log.column_names:
        log = merge(log).log
    topics = log["topic"].combine_chunks().dictionary_encode()
    of_topic = [ingress_partition(topic, partitions) for topic in topics.dictionary.to_pylist()]
    index = topics.indices.fill_null(len(of_topic)).to_numpy(zero_copy_only=False)
    partition = np.array([*of_topic, -1], np.int32)[index]

    alone = np.flatnonzero(partition < 0)
    values = log["value"]
    everywhere = np.array([row for row in alone if for_partition(values[int(row)].as_py())], np.int64)
    partition[alone] = 0
    copies = np.ones(len(partition), np.int64)
    copies[everywhere] = partitions
    rows = np.repeat(np.arange(len(partition)), copies)
    partition = np.repeat(partition, copies)
    first = (np.cumsum(copies) - copies)[everywhere]
    partition[first[:, None] + np.arange(partitions)] = np.arange(partitions, dtype=np.int32)

    if len(rows) > len(log):
        log = log.take(pa.array(rows))
    offset = _rank(partition)
    return _table(RECORD, partition=partition, offset=offset, timestamp=log["timestamp"], topic=log["topic"],
                  value=log["value"])  # fmt: skip


def write_log(path: str | Path, records: pa.Table) -> None:
    """Writes records (columns `RECORD` or `LOGICAL`) so that `read_log` gives them back.

    JSON Lines are for people: values in MessagePack become JSON, and a value that is no object is written as it
    stands, without its coordinates. Parquet keeps every byte.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(records, path, compression="zstd", row_group_size=_CHUNK)
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
            file.writelines(_lines(records))
    else:
        raise LogError(f"{path}: expected a name ending in .jsonl, .jsonl.gz or .parquet")


# ---- JSON Lines


def _read_lines(path: Path) -> pa.Table:
    """Partitions are kept if any line names one; a line that names none belongs to that of the line before."""
    timestamps: list[int] = []
    topics: list[str | None] = []
    values: list[bytes] = []
    partitions: list[int] = []
    offsets: list[int] = []
    partitioned, partition, timestamp = False, 0, 0
    last: dict[int, int] = {}
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line:
                continue
            try:
                fields = _fields(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                fields, value = {}, line
                given_partition = offset = given_timestamp = topic = None
            else:
                # A coordinate of a wrong type stays in the object: quarantine will name it.
                given_partition = _take_int(fields, "partition")
                offset = _take_int(fields, "offset")
                given_timestamp = _take_int(fields, "timestamp")
                topic = _take_text(fields, "topic")
                value = _encode_json(fields)
            if given_partition is not None:
                partitioned, partition = True, given_partition
            if given_timestamp is not None:
                timestamp = given_timestamp
            before = last.get(partition)
            if offset is None:
                offset = 0 if before is None else before + 1
            elif before is not None and offset <= before:
                raise LogError(
                    f"{path}, line {number}: offset {offset} of partition {partition} follows {before}; offsets rise "
                    "in each partition. Sort the lines, or leave offsets out to have them counted"
                )
            last[partition] = offset
            partitions.append(partition)
            offsets.append(offset)
            timestamps.append(timestamp)
            topics.append(topic)
            values.append(value)
    if not partitioned:
        return _table(LOGICAL, timestamp=timestamps, topic=topics, value=values)
    return _table(
        RECORD, partition=partitions, offset=offsets, timestamp=timestamps, topic=topics, value=values
    )


def _take_int(fields: dict[str, msgspec.Raw], name: str) -> int | None:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        number = int(bytes(raw))
    except ValueError:
        if bytes(raw) == b"null":
            del fields[name]
        return None
    if number not in _INT64:
        return None
    del fields[name]
    return number


def _take_text(fields: dict[str, msgspec.Raw], name: str) -> str | None:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        text = _text(raw)
    except msgspec.MsgspecError:
        if bytes(raw) == b"null":
            del fields[name]
        return None
    del fields[name]
    return text or None


def _lines(records: pa.Table) -> Iterator[bytes]:
    for row in records.to_pylist():
        value = row.pop("value")
        coordinates = {name: field for name, field in row.items() if field is not None}
        try:
            fields = _fields(value) if value[:1] == b"{" else _fields(to_json(decode(value)))
        except (msgspec.MsgspecError, UnicodeDecodeError, MalformedCommand):
            if b"\n" in value or not value.strip():
                raise LogError(f"{value[:60]!r} can't stand on a line of its own: write Parquet") from None
            yield value + b"\n"
            continue
        if both := coordinates.keys() & fields.keys():
            raise LogError(
                f"a value has a field named as a coordinate ({', '.join(sorted(both))}): write Parquet"
            )
        yield _encode_json({**coordinates, **fields}) + b"\n"


# ---- Parquet


def _read_parquet(path: Path) -> pa.Table:
    names = pq.ParquetDataset(path).schema.names
    if "value" in names:
        log = pq.read_table(path, columns=[name for name in RECORD.names if name in names])
        value: Any = pc.fill_null(log["value"].cast(pa.binary()), b"")
    elif set(_SHORT) <= set(names):
        log = pq.read_table(path)
        value = pa.chunked_array([pa.array(chunk, pa.binary()) for chunk in _publishes(log)], pa.binary())
    else:
        raise LogError(
            f"{path}: columns {', '.join(names)}. Expected those of a record ({', '.join(RECORD.names)}) or of plain "
            f"publishing ({', '.join(_SHORT)})"
        )
    topic = log["topic"].cast(pa.string()) if "topic" in names else pa.nulls(len(log), pa.string())
    topic = pc.if_else(pc.equal(topic, ""), pa.scalar(None, pa.string()), topic)
    columns = {"timestamp": _timestamps(log), "topic": topic, "value": value}
    if "partition" not in names:
        return _table(LOGICAL, **columns)
    partition = pc.fill_null(log["partition"], 0)
    offset = log["offset"] if "offset" in names else _rank(partition.to_numpy())
    return ordered(_table(RECORD, partition=partition, offset=offset, **columns), str(path))


def _timestamps(log: pa.Table) -> Any:
    if "timestamp" not in log.column_names:
        return np.zeros(len(log), np.int64)
    column = log["timestamp"]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    return pc.fill_null(pc.fill_null_forward(column.cast(pa.int64()).combine_chunks()), 0)


def _publishes(log: pa.Table) -> Iterator[list[bytes]]:
    """Values in MessagePack, a chunk at a time: objects of a million rows at once would cost 1 GB."""
    payload = "payload" if pa.types.is_string(log["payload"].type) else "payload_bytes"
    names = [name for name in _SHORT_OPTIONAL if name in log.column_names]
    fields = ["producer", "sequence_id", payload, *names]
    columns = [log["producer"].cast(pa.string()), log["sequence_id"].cast(pa.int64()), log["payload"],
               *(log[name].cast(pa.int64()) for name in names)]  # fmt: skip
    for name, type_ in (("key", pa.string()), ("properties", pa.map_(pa.string(), pa.string()))):
        if name in log.column_names:
            fields.append(name)
            columns.append(log[name].cast(type_))
    plain = fields == ["producer", "sequence_id", "payload_bytes"]
    for start in range(0, len(log), _CHUNK):
        part = [column.slice(start, _CHUNK).to_pylist() for column in columns]
        if plain and None not in part[2]:
            yield [
                _encode(Publish(producer=producer, sequence_id=sequence_id, payload_bytes=data))
                for producer, sequence_id, data in zip(*part, strict=True)
            ]
            continue
        rows = (dict(zip(fields, row, strict=True)) for row in zip(*part, strict=True))
        # Absent is what null means; and a null where none may be makes a record for quarantine.
        yield [
            _encode({k: dict(v) if k == "properties" else v for k, v in row.items() if v is not None})
            for row in rows
        ]


# ---- coordinates


def ordered(records: pa.Table, name: str = "the log") -> pa.Table:
    """`records` (columns `RECORD`) with offsets rising in each partition: as it is, or sorted if it must be.

    Raises `LogError` if an offset occurs twice.
    """
    partition, offset = records["partition"].to_numpy(), records["offset"].to_numpy()
    order = np.argsort(partition, kind="stable")
    if _rises(partition[order], offset[order]):
        return records
    records = records.sort_by([("partition", "ascending"), ("offset", "ascending")])
    if not _rises(records["partition"].to_numpy(), records["offset"].to_numpy()):
        raise LogError(f"{name}: an offset occurs twice in a partition")
    return records


def slices(records: pa.Table, batches: int) -> Iterator[pa.Table]:
    """`records` in `batches` contiguous slices, or one a record if there are fewer; at least one."""
    batches = max(1, min(batches, len(records)))
    for start, end in pairwise(np.linspace(0, len(records), batches + 1).astype(int).tolist()):
        yield records.slice(start, end - start)


def _rises(partition: np.ndarray[Any, Any], offset: np.ndarray[Any, Any]) -> bool:
    return bool(np.all((np.diff(offset) > 0) | (np.diff(partition) != 0)))


def _rank(partition: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """For each record, how many of its partition come before it."""
    order = np.argsort(partition, kind="stable")
    starts = np.flatnonzero(np.diff(partition[order], prepend=-1))
    lengths = np.diff(starts, append=len(partition))
    rank = np.empty(len(partition), np.int64)
    rank[order] = np.arange(len(partition)) - np.repeat(starts, lengths)
    return rank


def _table(schema: pa.Schema, **columns: Iterable[Any]) -> pa.Table:
    def typed(field: pa.Field) -> Any:
        column = columns[field.name]
        return (
            column.cast(field.type)
            if isinstance(column, pa.Array | pa.ChunkedArray)
            else pa.array(column, field.type)
        )

    return pa.Table.from_arrays([typed(field) for field in schema], schema=schema)
