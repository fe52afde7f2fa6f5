"""Command logs as files: what `magnetar replay` and `magnetar produce` read.

The name and the columns of a file tell which of three forms it has:

* **JSON Lines** (``.jsonl``, ``.jsonl.gz``): one object per line, with a command's fields and its coordinates
  ``partition``, ``offset``, ``timestamp`` (ms) and ``topic``. The record's value is the object without those four. A line
  that is not a JSON object becomes a value as it stands, so that it ends in quarantine with a reason and is not lost.
* **Parquet** (a file or a folder): the columns of `schemas.records.RECORD`; ``partition`` and ``offset`` are optional.
* **Parquet, short**: columns ``topic``, ``producer``, ``sequence_id``, ``payload`` (text or binary) and optionally
  ``timestamp``, ``key``, ``properties`` (a map), ``publish_time``, ``event_time``, ``deliver_at_time``: plain publishing.
"""

import gzip
import os
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.arguments import checked
from schemas.commands import MalformedCommand, Publish, decode, to_json
from schemas.commands.nesting import is_deep
from schemas.keys import topic_of
from schemas.lines import JSON_LINES, LOGS, LONGEST_LINE
from schemas.records import OFFSETS, PARTITIONS, RECORD
from schemas.undecodable import UNDECODABLE
from sinks.base import STATE
from sinks.lock import hold
from sinks.outputs import new_file, new_lines
from streaming.log import spool
from streaming.log.spool import Spool
from streaming.log.table import (
    LOGICAL,
    LogError,
    OffsetCounter,
    check_coordinates,
    log_table,
    ordered,
    out_of_range,
)

_SHORT = ("topic", "producer", "sequence_id", "payload")
_SHORT_OPTIONAL = ("publish_time", "event_time", "deliver_at_time")
_INT64 = range(-(2**63), 2**63)
_CHUNK = 1 << 16
MOST_BYTES = 2 << 30
MOST_TIMES = 100
"""A log may take so many bytes in memory, and so many more for each byte of its files."""
_RECORD = 200
"""The bytes that a record takes besides its value."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode
_encode_json = msgspec.json.Encoder().encode
_encode = msgspec.msgpack.Encoder().encode


def check_log(path: str | Path) -> None:
    """Whether there is a log whose name tells its form, without reading it. Raises `LogError`, `FileNotFoundError`."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such log")
    if not path.is_dir():
        check_log_name(path)


def is_data_folder(folder: Path) -> bool:
    """Whether a folder is the --data of a server: it has a log, and what is made of it for the next start."""
    return not (folder / "segments").is_dir() and any((folder / "commands").glob("*.jsonl"))


def replay_first(folder: Path) -> str:
    """What to do with the --data of a server where the results of a replay or query are expected."""
    return (
        f"{folder} is the --data of `magnetar serve`, which keeps its log and no output: replay that, and name the folder it writes: "
        f"magnetar replay {folder / 'commands'} --out OUT"
    )


def check_log_name(path: str | Path) -> None:
    """Whether `write_log` and `read_log` accept the name of a file. Raises `LogError`."""
    if not str(path).endswith(LOGS):
        raise LogError(f"{path}: expected a name ending in .jsonl, .jsonl.gz or .parquet")


@checked
def read_log(path: str | Path) -> pa.Table:
    """The log in `path`: columns `RECORD` if it has partitions, else `LOGICAL`.

    A missing timestamp is that of the previous record (0 for the first). A missing offset, in a log with partitions, is the
    previous one in the partition plus one. Raises `LogError`, `FileNotFoundError`.
    """
    path = Path(path)
    check_log(path)
    if parts := _parts(path):
        if others := sorted(path.glob("*.parquet")):
            raise LogError(
                f"{path} has logs of two kinds, such as {parts[0].name} and {others[0].name}: name one of them, or keep those that "
                "belong together in a folder of their own"
            )
        return read_lines(_lines_of(parts, _Room(path, parts)), str(path))
    if path.is_dir() and not any(path.rglob("*.parquet")):
        raise LogError(
            f"{path} has no file of a log in it (.jsonl, .jsonl.gz or .parquet): name another folder"
        )
    if path.is_dir() or path.suffix == ".parquet":
        return _read_parquet(path)
    return _read_lines(path)


def has_lines(folder: Path) -> bool:
    """Whether a folder has files with lines of a log."""
    return bool(_parts(folder))


def _parts(path: Path) -> list[Path]:
    """The files with lines in a folder, in order."""
    return sorted(each for each in path.glob("[!.]*.jsonl*") if each.name.endswith(JSON_LINES))


def _lines_of(parts: Iterable[Path], room: "_Room") -> Iterator[bytes]:
    """The lines of the files in a folder. A server may be writing the last one: it is not a line before it ends."""
    last = None
    for part in parts:
        for line in _lines_in(part, room):
            if last is not None:
                yield last
            last = line
    if last is None:
        return
    if last.endswith(b"\n") or _object(last.strip()) is not None:
        yield last


def line_numbers(path: str | Path) -> list[int] | None:
    """The line, from 1, of each record that `read_log` returns. None: the log is Parquet, which has no lines."""
    path = Path(path)
    if not path.name.endswith(JSON_LINES):
        return None
    return [number for number, line in enumerate(_lines_in(path), 1) if line.strip()]


def write_log(path: str | Path, records: pa.Table, *, replace: bool = True) -> None:
    """Writes records (columns `RECORD` or `LOGICAL`) so that `read_log` returns them. Without `replace`, raises `InTheWay` if there is a
    file.

    JSON Lines are for people: values in MessagePack become JSON, and a value that is not an object is written as it
    stands, without its coordinates. Parquet keeps every byte. Raises `LogError` if a value does not fit the format.
    """
    path = Path(path)
    check_log_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        with new_file(path, replace=replace) as file:
            pq.write_table(records, file, compression="zstd", row_group_size=_CHUNK, write_page_checksum=True)
    else:
        with new_lines(path, replace=replace) as lines:
            lines.writelines(_lines(records))


@contextmanager
def appending(path: str | Path) -> Iterator[Callable[[pa.Table], None]]:
    """Gives what adds records (columns `LOGICAL`) at the end of a file of JSON Lines, which need not exist. Other processes that would
    append to it wait until the context ends, so what was read in it is what the records follow. Raises `LogError`."""
    path = Path(path)
    if path.suffix != ".jsonl":
        raise LogError(f"{path}: only a file whose name ends in .jsonl can be appended to")
    path = path.resolve()  # a link to a file that is not there yet
    file, created = _locked(path)
    try:

        def append(records: pa.Table) -> None:
            lines = b"".join(_lines(records))
            if (size := os.fstat(file).st_size) and os.pread(file, 1, size - 1) != b"\n":
                lines = b"\n" + lines
            try:
                while lines:  # once, unless the disk is full: who reads meanwhile gets whole lines
                    lines = lines[os.write(file, lines) :]
            except OSError as error:
                os.ftruncate(file, size)
                error.filename = str(path)
                raise

        yield append
    finally:
        if created and not os.fstat(file).st_size:
            path.unlink(missing_ok=True)
        os.close(file)


def _locked(path: Path) -> tuple[int, bool]:
    """An open file with its lock, for which it waits, and whether the file is new."""
    while True:
        created = not path.exists()
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if created else 0)
        with suppress(FileExistsError if created else FileNotFoundError):
            file = os.open(path, flags, 0o666)
            if hold(file, path, LOCK_EX):
                return file, created
            os.close(file)


# ---- JSON Lines


def _read_lines(path: Path) -> pa.Table:
    return read_lines(_lines_in(path), str(path))


def read_lines(lines: Iterable[bytes], path: str) -> pa.Table:
    """The log in `lines`, as `read_log` returns it; `path` is for errors. Raises `LogError`.

    Partitions are kept if any line has one; a line without one belongs to the partition of the line before it.
    """
    found = Spool(RECORD)
    rows: list[tuple[int, int, int, str | None, bytes]] = []
    size = 0
    partitioned, partition, timestamp = False, 0, 0
    last: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line:
            continue
        fields = _object(line)
        if fields is None:
            value = line
            given_partition = offset = given_timestamp = topic = None
        else:
            # A coordinate of the wrong type stays in the object, so that quarantine can name it.
            given_partition = _take_int(fields, "partition")
            offset = _take_int(fields, "offset")
            given_timestamp = _take_int(fields, "timestamp", _INT64)
            topic = _take_text(fields, "topic")
            fields.pop("crc32", None)  # of the log of a server, see `streaming.server.data_folder`
            value = _encode_json(fields)
        if given_partition is not None:
            if given_partition not in PARTITIONS:
                raise out_of_range("partition", given_partition, f"{path}, line {number}")
            partitioned, partition = True, given_partition
        if given_timestamp is not None:
            timestamp = given_timestamp
        before = last.get(partition)
        if offset is None:
            offset = 0 if before is None else before + 1
        elif before is not None and offset <= before:
            raise LogError(
                f"{path}, line {number}: offset {offset} of partition {partition} follows {before}; offsets must "
                "rise in each partition. Sort the lines, or omit the offsets to have them counted"
            )
        if offset not in OFFSETS:
            raise out_of_range("offset", offset, f"{path}, line {number}")
        last[partition] = offset
        rows.append((partition, offset, timestamp, topic, value))
        size += len(value)
        if len(rows) >= spool.ROWS or size > spool.BYTES:
            found.add(_records(rows))
            rows, size = [], 0
    found.add(_records(rows))
    return found.table() if partitioned else found.table().select(LOGICAL.names)


def _records(rows: list[tuple[int, int, int, str | None, bytes]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(RECORD)
    return log_table(RECORD, **dict(zip(RECORD.names, columns, strict=True)))


class _Room:
    """What a log may take in memory: in proportion to its files, as a small one may hold very much."""

    def __init__(self, path: Path, files: Iterable[Path]) -> None:
        self._path = path
        self._most = self._left = MOST_BYTES + MOST_TIMES * sum(file.stat().st_size for file in files)

    def take(self, size: int, records: int) -> None:
        """Read values of so many bytes. Raises `LogError` if there is no room for them."""
        self._left -= size + _RECORD * records
        if self._left < 0:
            raise LogError(
                f"{self._path} takes more than {self._most / (1 << 30):.1f} GiB in memory, which is very much for its size: if you trust it, "
                "unpack it (.jsonl.gz) or write it as JSON Lines (.parquet), and name that file"
            )


def _lines_in(path: Path, room: _Room | None = None) -> Iterator[bytes]:
    """The lines of a file, each of a length that a command may have, and together no more than fit. Raises `LogError`."""
    number, room = 0, room or _Room(path, [path])
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if number == 1:
                    line = line.removeprefix(BOM_UTF8)  # Windows' editors begin files with it
                    for begin, why in _NO_LINES.items():
                        if line.startswith(begin):
                            raise LogError(f"{path} {why}")
                if len(line) > LONGEST_LINE:
                    raise LogError(
                        f"{path}, line {number} has more than {LONGEST_LINE >> 20} MiB: no command is that long"
                    )
                room.take(len(line), bool(line.strip()))
                yield line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        if number == 0 and isinstance(error, gzip.BadGzipFile):
            raise LogError(
                f"{path} is not gzip, or damaged: give it a name that ends in .jsonl, or restore it from a backup"
            ) from error
        raise LogError(
            f"{path} is damaged after line {number} ({error}): restore it from a backup"
        ) from error


_NO_LINES = {
    b"\x1f\x8b": "is gzip: give it a name that ends in .jsonl.gz",
    b"PAR1": "is Parquet: give it a name that ends in .parquet",
    BOM_UTF16_LE: "is UTF-16: save it as UTF-8",
    BOM_UTF16_BE: "is UTF-16: save it as UTF-8",
}
"""What files begin with that are no lines of JSON, and what to do about it."""


def _object(text: bytes) -> dict[str, msgspec.Raw] | None:
    """The fields of a JSON object. None for anything else, and for values that nest too deep for every stack."""
    if is_deep(text):
        return None
    try:
        return _fields(text)
    except UNDECODABLE:
        return None


def _take_int(fields: dict[str, msgspec.Raw], name: str, within: range | None = None) -> int | None:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        number = int(bytes(raw))
    except ValueError:
        if bytes(raw) == b"null":
            del fields[name]
        return None
    if within is not None and number not in within:
        return None
    del fields[name]
    return number


def _take_text(fields: dict[str, msgspec.Raw], name: str) -> str | None:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        text = _text(raw)
    except UNDECODABLE:
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
            fields = _object(value if value[:1] == b"{" else to_json(decode(value)))
        except MalformedCommand:
            fields = None
        if fields is None:
            if b"\n" in value or not value.strip():
                raise LogError(f"{value[:60]!r} does not fit on a line: write Parquet") from None
            yield value + b"\n"
            continue
        if both := coordinates.keys() & fields.keys():
            raise LogError(
                f"a value has a field with the name of a coordinate ({', '.join(sorted(both))}): write "
                "Parquet"
            )
        yield _encode_json({**coordinates, **fields}) + b"\n"


# ---- Parquet


def _read_parquet(path: Path) -> pa.Table:
    if not path.is_dir() and not path.is_file():
        raise LogError(f"{path} is neither a file nor a folder, so it can't be Parquet: name another log")
    if (path / STATE).is_dir():
        raise LogError(
            f"{path} is the --out of a replay, or the --checkpoint of a query, not a log: name the log itself"
        )
    try:
        return _table(path)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise LogError(f"{path} is damaged, or not Parquet ({' '.join(str(error).split())})") from error


def _table(path: Path) -> pa.Table:
    names = pq.ParquetDataset(path).schema.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise LogError(f"{path}: column {twice[0]} occurs twice: remove one of them")
    if "value" not in names and not set(_SHORT) <= set(names):
        raise LogError(
            f"{path}: columns {', '.join(names)}. Expected those of a record ({', '.join(RECORD.names)}) or of plain "
            f"publishing ({', '.join(_SHORT)})"
        )
    own = () if "value" in names else (*_SHORT, *_SHORT_OPTIONAL, "key", "properties")
    read = [name for name in names if name in (*RECORD.names, *own)]
    _check_room(path, read)
    schema = RECORD if "partition" in names else LOGICAL
    found, offsets, count, timestamp = Spool(schema), OffsetCounter(), 0, 0
    for log in _pieces(path, read):
        topic: Any = pa.nulls(len(log), pa.string())
        if "topic" in names:
            with _column(path, log, "topic", "text"):
                topic = _topics(log["topic"])
        topic = pc.if_else(pc.equal(topic, ""), pa.scalar(None, pa.string()), topic)
        with _column(path, log, "timestamp", "an integer (ms since the epoch) or a timestamp"):
            timestamps = _timestamps(log, timestamp)
        columns = {"timestamp": timestamps, "topic": topic, "value": _values(path, log)}
        if schema is RECORD:
            for name in [each for each in ("partition", "offset") if each in names]:
                with _column(path, log, name, "an integer"):
                    columns[name] = _integers(log[name])
            columns["partition"] = partition = pc.fill_null(columns["partition"], 0)
            check_coordinates(pa.table(columns), str(path), count)
            if "offset" not in names:
                columns["offset"] = offsets.of(partition.to_numpy())
        found.add(log_table(schema, **columns))
        count += len(log)
        timestamp = timestamps[-1].as_py() if len(log) else timestamp
    return ordered(found.table(), str(path)) if schema is RECORD else found.table()


def _pieces(path: Path, columns: list[str]) -> Iterator[pa.Table]:
    """The rows, some at a time. The first piece is empty: it has the types."""
    import pyarrow.dataset as ds  # slow to import

    format_ = ds.ParquetFileFormat(page_checksum_verification=True)
    partitioning = ds.HivePartitioning.discover(infer_dictionary=True)
    dataset = ds.dataset(path, format=format_, partitioning=partitioning)
    yield pa.schema([dataset.schema.field(name) for name in columns]).empty_table()
    batches = dataset.to_batches(
        columns=columns, batch_size=spool.ROWS, batch_readahead=1, fragment_readahead=1, use_threads=False
    )
    for batch in batches:
        yield pa.Table.from_batches([batch])


def _values(path: Path, log: pa.Table) -> Any:
    """The value of each record."""
    if "value" not in log.column_names:
        return pa.chunked_array([pa.array(each, pa.binary()) for each in _publishes(path, log)], pa.binary())
    with _column(path, log, "value", "text or binary"):
        value: Any = pc.fill_null(log["value"].cast(pa.binary()), b"")
    if (pc.max(pc.binary_length(value)).as_py() or 0) > LONGEST_LINE:
        raise LogError(f"{path} has a value of more than {LONGEST_LINE >> 20} MiB: no command is that long")
    return value


def _check_room(path: Path, names: list[str]) -> None:
    """Raises `LogError` if the columns of files take too much. A page of a few bytes may stand for a million long values."""
    files = pq.ParquetDataset(path).files
    room = _Room(path, map(Path, files))
    for file in files:
        plain = pq.ParquetFile(file, page_checksum_verification=True)
        metadata, schema = plain.metadata, plain.schema
        room.take(0, metadata.num_rows)
        leaves = [
            (at, leaf)
            for at in range(len(schema))
            if (leaf := schema.column(at)).path.partition(".")[0] in names
        ]
        texts = [leaf.path for _, leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        packed = pq.ParquetFile(
            file, metadata=metadata, read_dictionary=texts, page_checksum_verification=True
        )
        read = list({name.partition(".")[0] for name in texts})
        for group in range(metadata.num_row_groups):
            for at, leaf in leaves:
                if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY":
                    room.take(metadata.row_group(group).column(at).num_values * leaf.length, 0)
            try:
                for batch in packed.iter_batches(_CHUNK, [group], read):
                    room.take(sum(map(_unpacked, batch.columns)), 0)
            except pa.ArrowCapacityError:  # more different values than a dictionary holds
                for batch in plain.iter_batches(16, [group], read):
                    room.take(sum(map(_unpacked, batch.columns)), 0)


def _unpacked(values: pa.Array) -> int:
    """The bytes of values, each of which counts where it occurs."""
    if pa.types.is_dictionary(values.type):
        lengths: Any = pc.binary_length(values.dictionary)
        return int(pc.sum(lengths.take(values.indices)).as_py() or 0)
    if pa.types.is_map(values.type):
        return _unpacked(values.keys) + _unpacked(values.items)
    if pa.types.is_nested(values.type):
        inner = values.flatten()
        return sum(map(_unpacked, inner if isinstance(inner, list) else [inner]))
    return int(values.nbytes)


@contextmanager
def _column(path: Path, log: pa.Table, name: str, wanted: str) -> Iterator[None]:
    """A column is cast in here. Raises `LogError` if it is of a type that has no such values."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise LogError(
            f"{path}: column {name} is of type {log.schema.field(name).type}, but must be {wanted} ({why})"
        ) from error


def _integers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_boolean(column.type):
        raise pa.ArrowInvalid("a number has no truth value")
    return column if pa.types.is_integer(column.type) else column.cast(pa.int64())


def _topics(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        column = column.cast(pa.string())
        with suppress(pa.ArrowInvalid):
            column.validate(full=True)
            return column
        column = column.cast(pa.binary())  # a text in it is not UTF-8
    return pa.chunked_array(
        [pa.array(map(topic_of, part.to_pylist()), pa.string()) for part in column.chunks], pa.string()
    )


def _timestamps(log: pa.Table, before: int) -> Any:
    """The timestamp of each record. One that lacks its own has that of the record before it."""
    if "timestamp" not in log.column_names:
        return pa.array(np.zeros(len(log), np.int64))
    column = log["timestamp"]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    return pc.fill_null(pc.fill_null_forward(column.cast(pa.int64()).combine_chunks()), before)


def _publishes(path: Path, log: pa.Table) -> Iterator[list[bytes]]:
    """Values in MessagePack, one chunk at a time: the objects of a million rows would take 1 GB."""
    content = log.schema.field("payload").type
    is_text = pa.types.is_string(content) or pa.types.is_large_string(content)
    is_large = pa.types.is_large_binary(content)
    types = (
        ("producer", "text", pa.string()),
        ("sequence_id", "an integer", pa.int64()),
        ("payload", "text or binary", pa.string() if is_text else content if is_large else pa.binary()),
        *((name, "an integer", pa.int64()) for name in _SHORT_OPTIONAL),
        ("key", "text", pa.string()),
        ("properties", "a map of text to text", _PROPERTIES),
    )
    fields, columns = list[str](), list[pa.ChunkedArray]()
    for name, wanted, type_ in types:
        if name in log.column_names:
            fields.append("payload_bytes" if name == "payload" and not is_text else name)
            with _column(path, log, name, wanted):
                columns.append(log[name].cast(type_))
    plain = fields == ["producer", "sequence_id", "payload_bytes"]
    for start in range(0, len(log), _CHUNK):
        part = [_objects(column.slice(start, _CHUNK)) for column in columns]
        if plain and None not in part[2]:
            yield [
                _encode(Publish(producer=producer, sequence_id=sequence_id, payload_bytes=data))
                for producer, sequence_id, data in zip(*part, strict=True)
            ]
            continue
        rows = (dict(zip(fields, row, strict=True)) for row in zip(*part, strict=True))
        # Null means absent. A null where none is allowed makes a record for quarantine.
        yield [
            _encode({k: dict(v) if k == "properties" else v for k, v in row.items() if v is not None})
            for row in rows
        ]


_PROPERTIES = pa.map_(pa.string(), pa.string())
_AS_BYTES = {pa.string(): pa.binary(), _PROPERTIES: pa.map_(pa.binary(), pa.binary())}


def _objects(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column. A text that is not UTF-8 is bytes, which makes a record for quarantine."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        return [_decoded(value) for value in column.cast(_AS_BYTES[column.type]).to_pylist()]


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    if isinstance(value, list):
        return [(_decoded(name), _decoded(each)) for name, each in value]
    return value
