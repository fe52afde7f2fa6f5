"""What a query begins with that does not begin at the first record of its log: states, in its store, see `streaming.state.move`.

::

    <store>/seed/begun.json    whose states these are; written first
    <store>/seed/<partition>.state    a broker as `Broker.encode` left it, and a checksum
    <store>/seed/whole.json    the number of partitions, and the offsets from which to read; written last

`applyInPandasWithState` takes no initial state. So the operator takes it from here when it first visits a partition, that is,
as long as Spark has no state of it. The files never change. So a repeated micro-batch takes the same state, and a query
whose first micro-batch is not committed begins again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from schemas.errors import MagnetarError
from schemas.units import LATEST_TIME
from sinks.base import BEGUN, INGRESS, SEED
from sinks.storage import RESTORE, Damaged, Storage
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.fold.records import StateRow

_STATES = "states for a new query"

_BEGUN, _WHOLE = f"{SEED}/{BEGUN}", f"{SEED}/whole.json"
_SUM_BYTES = 4


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
    """The states in a store. `offsets`: where the query begins to read, by partition of its topic; empty: at the beginning."""

    partitions: int
    offsets: dict[str, int] = {}


class SeedReader:
    """Reads the states in a store. Pickled and shipped to Spark's workers."""

    def __init__(self, storage: Storage, seed: Seed) -> None:
        self._storage, self.seed = storage, seed

    def state(self, partition: int) -> StateRow | None:
        """The state with which an ingress partition begins, None: with nothing. Raises `Damaged`, `StateVersionError`."""
        path = _path(partition)
        if self._storage.info(path) is None:
            return None
        encoded = _read(self._storage, path, f"the state of ingress partition {partition}")
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
    if (seed := storage.read_json(_WHOLE, Seed, _STATES)) is not None:
        return SeedReader(storage, seed)
    if (origin := storage.read_json(_BEGUN, Origin, _STATES)) is not None:
        raise NotWhole(
            f"{storage.url} has only part of the states of {origin.states}: run the same magnetar state "
            "command again, which resumes where it stopped, or use another store"
        )
    return None


class SeedWriter:
    """Puts states into a store: `begin`, `write` of each partition, then `finish`. A repeated attempt writes the same again."""

    def __init__(self, store: str) -> None:
        self._storage = Storage(store)

    @property
    def is_begun(self) -> bool:
        """Whether an attempt began, or ended."""
        return self._storage.info(_BEGUN) is not None

    def check_new(self) -> None:
        """Raises `NotWhole` if a query has used the store, and no move began there."""
        if self.is_begun:
            return
        used = self._storage.info(INGRESS) is not None
        if used or any(self._storage.files(name, recursive=True) for name in ("segments", "ledgers")):
            raise NotWhole(f"{self._storage.url} is the store of a query: use a new one")

    def begin(self, origin: Origin) -> Origin:
        """Note whose states come, or what an earlier attempt noted. Raises `NotWhole` if others came before, or these are whole."""
        before = self._storage.read_json(_BEGUN, Origin, _STATES)
        if before is not None:
            origin = msgspec.structs.replace(origin, latest=before.latest)
        if before is not None and before != origin:
            raise NotWhole(
                f"{self._storage.url} has a part of a move of {before.states} to topic {before.ingress} "
                f"with {before.partitions} partitions, and this is a different one, or the query or its "
                "topic has changed since: use another store and another topic"
            )
        if self._storage.info(_WHOLE) is not None:
            raise NotWhole(f"{self._storage.url} has its states: start the query with this store")
        self._storage.sweep()  # the remains of an attempt that was killed
        self._storage.write_json(_BEGUN, origin)
        return origin

    def write(self, partition: int, state: bytes) -> None:
        """Put the state of an ingress partition there."""
        _publish(self._storage, _path(partition), state)

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
        """All states are there."""
        for info in self._storage.files(f"{SEED}/pieces", recursive=True):
            self._storage.delete(self._storage.relative(info))
        self._storage.write_json(_WHOLE, seed)


def _path(partition: int) -> str:
    return f"{SEED}/{partition:05d}.state"


def _piece(old: int, new: int) -> str:
    return f"{SEED}/pieces/{new:05d}/{old:05d}"


def _sum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_SUM_BYTES, "big")


def _read(storage: Storage, path: str, what: str) -> bytes:
    """What `_publish` wrote. Raises `Damaged`."""
    with storage.open(path) as file:
        data = bytes(file.read())
    state, found = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if _sum(state) != found:
        raise Damaged(f"{storage.url}/{path} ({what}) is damaged. {RESTORE}")
    return state


def _publish(storage: Storage, path: str, data: bytes) -> None:
    def write(stream: pa.NativeFile) -> None:
        stream.write(data + _sum(data))

    storage.publish(path, write)
