"""What the folder of a replay says of itself: what was replayed, and whether all of it is there."""

from pathlib import Path

import msgspec

from schemas.errors import MagnetarError
from schemas.undecodable import UNDECODABLE
from sinks.base import STATE
from sinks.outputs import is_checkpoint, new_file
from sinks.storage import Damaged
from sinks.sums import is_whole, sealed

FILE, REPLAYED = "states.parquet", "replay.json"
"""The files of the folder of the states."""

ROWS_AND_ENTRIES = r"""
    tables/kind=[A-Z_]+/[\d-]+\.parquet
    | store/(segments/\d+|ledgers/[^/]+)/[\d-]+\.parquet | store/deletions/[\d-]+\.json
    | (.+/)?_temporary/[0-9a-f]{32}
"""
"""A pattern (`re.VERBOSE`) of the paths of files below a folder into which a log was folded: those of `TableSink` and `LedgerStore`."""

_OF_ROWS = ("tables", "quarantine")


class StoreAsked(MagnetarError, ValueError):
    """A folder is a query's checkpoint, and its store was asked for."""


class Replayed(msgspec.Struct, kw_only=True):
    """What a folder is a replay of. `log`: the digest of the log's records, before other policies, of which there were `records`;
    `shift`, `unmatched` and `rows` (output rows by kind) as in `streaming.jobs.replay.ReplayResult`. `files`: how many files of rows there are
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
    except UNDECODABLE:
        pass
    raise damaged(path)


def count_files(out: Path) -> dict[str, int]:
    """How many files of rows a replay has written into the folders of its folder."""
    return {name: sum(1 for _ in (out / name).rglob("*.parquet")) for name in _OF_ROWS}


def check_whole(out: Path) -> None:
    """Whether the folder of a replay has all that it wrote, as far as a look at its files tells. Passes any other folder. Raises
    `Damaged`, and `StoreAsked` for a query's checkpoint, which has states, too."""
    if not (out / STATE).is_dir():
        return
    if is_checkpoint(out):
        raise StoreAsked(f"{out} is the checkpoint of a query: name its store (--store) instead")
    if not (out / STATE / FILE).is_file():
        raise Damaged(
            f"{out} is incomplete: its replay did not finish, or {STATE}/{FILE} was removed. Replay the "
            "log again, with --overwrite"
        )
    replayed, found = read_replayed(out / STATE), count_files(out)
    for name, count in {} if replayed is None else replayed.files.items():
        if found.get(name, 0) < count:
            raise Damaged(
                f"{out} is incomplete: {name} has {found.get(name, 0):,} files of the {count:,} that the "
                "replay wrote. Replay the log again, with --overwrite"
            )


REPLAY = "Make it again, with a replay of the same log into a new folder"


def damaged(path: Path, restore: str = REPLAY) -> Damaged:
    """The error for a file of a replay that is not what was written. `restore`: what to do about it."""
    return Damaged(f"{path} is damaged. {restore}")
