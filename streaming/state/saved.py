"""The brokers' states at the end of a replay. Read without Spark."""

from pathlib import Path
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sinks.outputs import new_file
from sinks.replayed import FILE, REPLAY, damaged
from streaming.fold.records import StateRow

_CHECKSUM = b"magnetar.crc32"


def write_states(folder: Path, states: list[StateRow]) -> None:
    """Write the states below a folder, one row per ingress partition, in the columns of `StateRow`."""
    folder.mkdir(parents=True, exist_ok=True)
    types = (pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.large_binary())
    schema = pa.schema(list(zip(StateRow._fields, types, strict=True)), {_CHECKSUM: _sum(states)})
    table = pa.Table.from_pylist([each._asdict() for each in states], schema)
    with new_file(folder / FILE, replace=True) as file:
        pq.write_table(table, file, compression="zstd", row_group_size=1)


def read_states(folder: Path, *, restore: str = REPLAY) -> list[StateRow] | None:
    """The states that `write_states` wrote, or None if there are none. Raises `Damaged`; `restore`: what to do about it."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        # Not a file of Python: Arrow's threads would hold its bytes, and abort the process if it ends before they let them go.
        with pa.OSFile(str(path)) as file:
            table = pq.read_table(file)
        found = [StateRow(**row) for row in table.to_pylist()]
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:
        raise damaged(path, restore) from error
    checksum = (table.schema.metadata or {}).get(_CHECKSUM)
    if checksum is not None and checksum != _sum(found):
        raise damaged(path, restore)
    return found


def _sum(states: list[StateRow]) -> bytes:
    return b"%08x" % crc32(msgspec.msgpack.encode(states))
