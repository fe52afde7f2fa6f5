"""What a replay leaves beside its rows: the brokers' states at the end, and what was replayed. Read without Spark."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from streaming.fold import StateRow

FILE, REPLAYED = "states.parquet", "replay.json"


class Replayed(msgspec.Struct, kw_only=True):
    """What a folder is a replay of. `log`: the digest of the log's records, before other policies, of which there were `records`;
    `shift`, `unmatched` and `rows` (output rows by kind) as in `streaming.replay.ReplayResult`."""

    log: str
    records: int
    shift: int
    unmatched: int
    rows: dict[str, int]


def write_replayed(folder: Path, replayed: Replayed) -> None:
    """Write what was replayed below a folder."""
    (folder / REPLAYED).write_bytes(msgspec.json.encode(replayed) + b"\n")


def read_replayed(folder: Path) -> Replayed | None:
    """What `write_replayed` wrote, or None if there is nothing."""
    if not (folder / REPLAYED).is_file():
        return None
    return msgspec.json.decode((folder / REPLAYED).read_bytes(), type=Replayed)


def write_states(folder: Path, states: list[StateRow]) -> None:
    """Write the states below a folder, one row per ingress partition, in the columns of `StateRow`."""
    folder.mkdir(parents=True, exist_ok=True)
    types = (pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.large_binary())
    schema = pa.schema(list(zip(StateRow._fields, types, strict=True)))
    table = pa.Table.from_pylist([each._asdict() for each in states], schema)
    pq.write_table(table, folder / FILE, compression="zstd", row_group_size=1)


def read_states(folder: Path) -> list[StateRow] | None:
    """The states that `write_states` wrote, or None if there are none."""
    if not (folder / FILE).is_file():
        return None
    return [StateRow(**row) for row in pq.read_table(folder / FILE).to_pylist()]
