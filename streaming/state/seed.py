"""What a query begins with that does not begin at the first record of its log: states, in its store, see `streaming.state.move`.

::

    <store>/seed/begun.json    whose states these are; written first
    <store>/seed/<partition>.state    a broker as `Broker.encode` left it, and a checksum
    <store>/seed/whole.json    the number of partitions, which of them have states, and the offsets from which to read; written last

`applyInPandasWithState` takes no initial state. So the operator takes it from here when it first visits a partition, that is,
as long as Spark has no state of it. The files never change. So a repeated micro-batch takes the same state, and a query
whose first micro-batch is not committed begins again.

A query that did not find its states would begin with nothing, and give new messages positions that are taken. So a missing file is an
error as long as it is needed, that is, until the checkpoint has the state of its partition. ``whole.json`` tells of the states, and the
segments tell of both: a partition with entries from before the first micro-batch began from a state (`segments.moved`). So a seed
that is gone is missed, too.

Every attempt takes everything anew. An earlier one may have failed because it had other sources, and nothing of it may stay. What it
sent to the topic does stay there, so another move needs another topic (`SeedWriter.begin`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
import pyarrow as pa

from schemas.errors import MagnetarError
from schemas.units import LATEST_TIME
from sinks import segments
from sinks.base import BEGUN, INGRESS, SEED
from sinks.ledger_store import LedgerStore
from sinks.outputs import is_checkpoint, local_path
from sinks.storage import Damaged, Storage
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.fold.records import StateRow

_STATES = "states for a new query"

_ENTRIES = "segments", "ledgers"
_BEGUN, _WHOLE = f"{SEED}/{BEGUN}", f"{SEED}/whole.json"
_SUM_BYTES = 4
_TO_DO = "Restore it from a backup, or move or import the states again, into a new store"


class NotWhole(MagnetarError, RuntimeError):
    """States were not moved into a store to their end, or others than these. The text says what to do."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Whose states go into a store, and where its query reads: what must be the same if a move is started again.

    `ingress`, `topic_id`, `partitions`: the new query's topic, and the id that Kafka gave it. `ends`: where the partitions of the
    old query's topic ended. `latest`: the latest time (ms) of a record that counts; that of the first attempt holds.
    """

    states: str
    ingress: str
    topic_id: str | None
    partitions: int
    ends: list[int]
    latest: int = LATEST_TIME


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """The states in a store.

    `offsets`: where the query begins to read, by partition of its topic; empty: at the beginning. `states`: the partitions that begin with
    a state, and its checksum (None: not known). The writer fills them in. None: an earlier version wrote the file.
    """

    partitions: int
    offsets: dict[str, int] = {}
    states: dict[str, int | None] | None = None


class SeedReader:
    """Reads the states in a store. Pickled and shipped to Spark's workers."""

    def __init__(self, storage: Storage, seed: Seed, *, is_whole: bool = True) -> None:
        """`is_whole`: whether the file with the `seed` is there. If not, only the segments tell of it, and no state can be read."""
        self._storage, self.seed, self._is_whole = storage, seed, is_whole
        self._sums = {int(partition): sum_ for partition, sum_ in (seed.states or {}).items()}

    def check(self, folded: Mapping[int, int]) -> None:
        """Before the query starts: what it needs of what was moved into its store is there. `folded`: by partition of its topic, the first
        offset that no committed micro-batch has; empty: there is none.

        Raises `Damaged`.
        """
        for partition in self._sums:
            first = self.seed.offsets.get(str(partition), 0)
            # A move gives every partition with a state a record at its time, so the query has visited those that it has read of.
            if folded.get(partition, first) <= first:
                self._find(partition)
        if lacking := sorted(self._sums.keys() - segments.moved(self._storage)):
            path = segments.path(lacking[0], 0, segments.MOVED, segments.MOVED)
            raise self._lacks(path, f"the entries with which ingress partition {lacking[0]} began")
        if not folded:
            places = {segments.folder(partition): segments.MOVED for partition in self._sums}
            for path in LedgerStore(self._storage.url).missing(places, segments.MOVED):
                raise self._lacks(path, "entries with which the query began")

    def _find(self, partition: int) -> str:
        """The file with a state. Raises `Damaged` if it is not there."""
        path = _path(partition) if self._is_whole else _WHOLE
        if not self._is_whole or self._storage.info(path) is None:
            raise self._lacks(path, f"the state with which ingress partition {partition} begins")
        return path

    def _lacks(self, path: str, what: str) -> Damaged:
        return Damaged(f"{self._storage.url} lacks {path}, {what}: a copy is not complete. {_TO_DO}")

    def state(self, partition: int) -> StateRow | None:
        """The state with which an ingress partition begins, None: with nothing. Raises `Damaged`, `StateVersionError`."""
        if partition not in self._sums:
            return None
        path = self._find(partition)
        encoded = _read(
            self._storage, path, f"the state of ingress partition {partition}", self._sums[partition]
        )
        broker = Broker.decode(encoded, NoEntries())
        offset = broker.offset
        return StateRow(partition, *broker.summary(), None if offset < 0 else offset, encoded)

    def states(self) -> list[StateRow]:
        """All states, by partition."""
        found = map(self.state, range(self.seed.partitions))
        return [each for each in found if each is not None]


def with_seed(
    found: Iterable[StateRow], seed: SeedReader | None, partition: int | None = None
) -> Iterator[StateRow]:
    """The states of a query, by partition: those `found` in its checkpoint, in that order, and those with which it begins of the partitions
    that it has not visited yet. One is in memory at a time.

    `partition`: the only one that is asked for. Raises what `SeedReader.state` does.
    """
    if seed is None:
        yield from found
        return
    wanted = range(seed.seed.partitions) if partition is None else range(partition, partition + 1)
    at = wanted.start

    def unvisited(end: int) -> Iterator[StateRow]:
        rows = map(seed.state, range(at, min(end, wanted.stop)))
        return (row for row in rows if row is not None)

    for row in found:
        yield from unvisited(row.partition)
        yield row
        at = row.partition + 1
    yield from unvisited(wanted.stop)


def read_seed(store: str) -> SeedReader | None:
    """What a query with this store begins with, None: with nothing. Raises `NotWhole`, `Damaged`."""
    storage = Storage(store)
    seed = storage.read_json(_WHOLE, Seed, _STATES, _TO_DO)
    if seed is not None and seed.states is not None:
        return SeedReader(storage, seed)
    if seed is None and not _is_used(storage):
        origin = storage.read_json(_BEGUN, Origin, _STATES, _TO_DO)
        if origin is not None:
            raise NotWhole(
                f"{storage.url} has only part of the states of {origin.states}: run the same magnetar state "
                "command again, or use another store"
            )
    moved = segments.moved(storage)
    states = dict[str, int | None].fromkeys(map(str, sorted(moved)))
    if seed is not None:
        return SeedReader(storage, msgspec.structs.replace(seed, states=states))
    return (
        SeedReader(storage, Seed(partitions=max(moved) + 1, states=states), is_whole=False) if moved else None
    )


def _is_used(storage: Storage) -> bool:
    """Whether a query has begun a micro-batch with this store. One of an earlier version left no note."""
    found = segments.everywhere(storage)
    return storage.info(BEGUN) is not None or any(each.last > segments.MOVED for each in found)


class SeedWriter:
    """Puts states into a store: `begin`, `write` of each partition, then `finish`. A repeated attempt begins anew."""

    def __init__(self, store: str) -> None:
        self._storage = Storage(store)
        self._sums: dict[str, int | None] = {}
        self.is_repeat = False
        """Whether an earlier attempt at the same move may have sent records, since `begin`."""

    def check_new(self, states: str) -> None:
        """Raises `NotWhole` if a query has used the store, or if it has other states than these, or something else, or is a checkpoint."""
        if (local := local_path(self._storage.url)) is not None and is_checkpoint(local):
            raise NotWhole(f"{self._storage.url} is the checkpoint of a query: use a new folder")
        if self._storage.info(_WHOLE) is not None:
            before = self._before()
            if before is not None and before.states != states:
                raise self._others(before, f"not those of {states}")
            return  # `begin` knows whether they are the same
        begun = self._storage.info(_BEGUN) is not None
        used = _is_used(self._storage) if begun else self._storage.info(INGRESS) is not None
        if used or (not begun and self._taken()):
            raise NotWhole(f"{self._storage.url} is the store of a query: use a new one")

    def _taken(self) -> list[str]:
        """The files that an attempt may have left."""
        folders = (SEED, *_ENTRIES)
        found = (info for folder in folders for info in self._storage.files(folder, recursive=True))
        return [path for path in map(self._storage.relative, found) if path != _BEGUN]

    def begin(self, origin: Origin, has_records: Callable[[], bool] = lambda: False) -> Origin:
        """Note whose states come. Returns what the first attempt noted, if this is the same move. What an attempt took is deleted.

        `has_records`: whether the topic has some. Then it must be the same move that sent them. Raises `NotWhole` if not, and what
        `check_new` does.
        """
        self.check_new(origin.states)
        before = self._before()
        same = before is not None and before == msgspec.structs.replace(origin, latest=before.latest)
        if self._storage.info(_WHOLE) is not None:
            if before is None or same:
                raise NotWhole(f"{self._storage.url} has its states: start the query with this store")
            raise self._others(
                before, f"for topic {before.ingress}, and it or the old topic has changed since"
            )
        if before is not None and same:
            origin, self.is_repeat = before, True
        elif has_records():
            other = (
                ""
                if before is None
                else f", and {self._storage.url} has a part of a move of {before.states} to topic {before.ingress} with {before.partitions} "
                "partitions. This is a different one, or the query or its topic has changed since"
            )
            raise NotWhole(f"topic {origin.ingress} has records already{other}: choose another topic")
        self._storage.sweep()
        for path in (*self._taken(), INGRESS):
            self._storage.delete(path)
        self._storage.write_json(_BEGUN, origin)
        return origin

    def _before(self) -> Origin | None:
        return self._storage.read_json(_BEGUN, Origin, _STATES, "Use another store and another topic")

    def _others(self, before: Origin, but: str) -> NotWhole:
        return NotWhole(
            f"{self._storage.url} has the states of {before.states}, {but}: use another store and another topic"
        )

    def write(self, partition: int, state: bytes) -> None:
        """Put the state of an ingress partition there."""
        _publish(self._storage, _path(partition), state)
        self._sums[str(partition)] = zlib.crc32(state)

    def write_piece(self, old: int, new: int, state: bytes) -> None:
        """Keep a part of a state until the others that belong to it are there."""
        _publish(self._storage, _piece(old, new), state)

    def take_pieces(self, new: int) -> list[bytes]:
        """The parts that were kept of a state, by old partition."""
        return [
            _read(self._storage, self._storage.relative(info), f"a part of the state of partition {new}")
            for info in self._storage.files(f"{SEED}/pieces/{new:05d}")
        ]

    def finish(self, seed: Seed) -> None:
        """All states are there, those of this attempt."""
        for info in self._storage.files(f"{SEED}/pieces", recursive=True):
            self._storage.delete(self._storage.relative(info))
        self._storage.write_json(_WHOLE, msgspec.structs.replace(seed, states=self._sums))


def _path(partition: int) -> str:
    return f"{SEED}/{partition:05d}.state"


def _piece(old: int, new: int) -> str:
    return f"{SEED}/pieces/{new:05d}/{old:05d}"


def _sum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_SUM_BYTES, "big")


def _read(storage: Storage, path: str, what: str, expected: int | None = None) -> bytes:
    """What `_publish` wrote. `expected`: its checksum, if that is known. Raises `Damaged`."""
    with storage.open(path) as file:
        data = bytes(file.read())
    state, found = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if _sum(state) != found or expected not in (None, zlib.crc32(state)):
        raise Damaged(f"{storage.url}/{path} ({what}) is damaged. {_TO_DO}")
    return state


def _publish(storage: Storage, path: str, data: bytes) -> None:
    def write(stream: pa.NativeFile) -> None:
        stream.write(data + _sum(data))

    storage.publish(path, write)
