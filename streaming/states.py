"""What a replay leaves beside its rows: the brokers' states at the end, and what was replayed. Read without Spark."""

from pathlib import Path
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sinks.outputs import new_file
from sinks.storage import Damaged
from sinks.sums import is_whole, sealed
from streaming.fold import StateRow

STATE, FILE, REPLAYED = "state", "states.parquet", "replay.json"
_OF_ROWS = ("tables", "quarantine")
_CHECKSUM = b"magnetar.crc32"


class Replayed(msgspec.Struct, kw_only=True):
    """What a folder is a replay of. `log`: the digest of the log's records, before other policies, of which there were `records`;
    `shift`, `unmatched` and `rows` (output rows by kind) as in `streaming.replay.ReplayResult`. `files`: how many files of rows there are
    below folders; those of earlier versions do not say."""

    log: str
    records: int
    shift: int
    unmatched: int
    rows: dict[str, int]
    files: dict[str, int] = {}


def write_replayed(folder: Path, replayed: Replayed) -> None:
    """Write what was replayed below a folder. It is the last file of a replay: with it, all is there."""
    with new_file(folder / REPLAYED, replace=True) as file:
        file.write(sealed(msgspec.json.encode(replayed)) + b"\n")


def read_replayed(folder: Path) -> Replayed | None:
    """What `write_replayed` wrote, or None if there is nothing. Raises `Damaged`."""
    path = folder / REPLAYED
    if not path.is_file():
        return None
    data = path.read_bytes()
    try:
        if is_whole(data):
            return msgspec.json.decode(data, type=Replayed)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    raise _damaged(path)


def count_files(out: Path) -> dict[str, int]:
    """How many files of rows a replay has written into the folders of its folder."""
    return {name: sum(1 for _ in (out / name).rglob("*.parquet")) for name in _OF_ROWS}


def check_whole(out: Path) -> None:
    """Whether the folder of a replay has all that it wrote, as far as a look at its files tells. Raises `Damaged`. Passes any other
    folder."""
    if not (out / STATE).is_dir():
        return
    if not (out / STATE / FILE).is_file():
        raise Damaged(
            f"{out} is not whole: its replay did not finish, or {STATE}/{FILE} was removed. Replay the log once more, with --overwrite"
        )
    replayed, found = read_replayed(out / STATE), count_files(out)
    for name, count in {} if replayed is None else replayed.files.items():
        if found.get(name, 0) < count:
            raise Damaged(
                f"{out} is not whole: {name} has {found.get(name, 0):,} files of the {count:,} that the replay wrote. Replay the log once "
                "more, with --overwrite"
            )


def write_states(folder: Path, states: list[StateRow]) -> None:
    """Write the states below a folder, one row per ingress partition, in the columns of `StateRow`."""
    folder.mkdir(parents=True, exist_ok=True)
    types = (pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.large_binary())
    schema = pa.schema(list(zip(StateRow._fields, types, strict=True)), {_CHECKSUM: _sum(states)})
    table = pa.Table.from_pylist([each._asdict() for each in states], schema)
    with new_file(folder / FILE, replace=True) as file:
        pq.write_table(table, file, compression="zstd", row_group_size=1)


def read_states(folder: Path) -> list[StateRow] | None:
    """The states that `write_states` wrote, or None if there are none. Raises `Damaged`."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        # Not a file of Python: Arrow's threads would hold its bytes, and abort the process if it ends before they let them go.
        with pa.OSFile(str(path)) as file:
            table = pq.read_table(file)
        found = [StateRow(**row) for row in table.to_pylist()]
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:
        raise _damaged(path) from error
    checksum = (table.schema.metadata or {}).get(_CHECKSUM)
    if checksum is not None and checksum != _sum(found):
        raise _damaged(path)
    return found


def _sum(states: list[StateRow]) -> bytes:
    return b"%08x" % crc32(msgspec.msgpack.encode(states))


def _damaged(path: Path) -> Damaged:
    return Damaged(f"{path} is damaged: make it again, with a replay of the same log into a new folder")
