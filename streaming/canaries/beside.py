"""The canaries of a running query, beside it.

The idea
    The query notes what it folds: the records and the tick of each micro-batch (`sinks.folded`). Now and then, canaries fold that again: as the
    query did, and under other policies, each ingress partition by itself (`partition`). How the fates of messages differ is what `whatif` would
    say of the traffic since the canaries began.

Why not in the query
    A micro-batch waits for nothing of theirs. What they keep is written once per look, not once per micro-batch. They can come, go, lag and fail,
    and neither the query's state nor a byte of its output is another one.

Whether they go on
    Canaries that were started again go on if what they folded is what the query has: their own fold's state must be the query's, byte for byte.
    If the query ran without them meanwhile, or they are those of another version, they begin anew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import msgspec

from schemas.errors import MagnetarError
from schemas.printable import one_line
from schemas.records import RECORD
from sinks.folded import FoldedFile, FoldedFiles, Visit
from sinks.ledger_store import LedgerStore
from sinks.small_files import read_small
from sinks.storage import Damaged
from streaming import __version__
from streaming.answers.whatif.answer import BASELINE, WhatIf
from streaming.answers.whatif.difference_table import decoded
from streaming.answers.whatif.folds import to_bytes
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries, NoPayloads
from streaming.canaries.files import CanaryFiles, Marker, Settled
from streaming.canaries.partition import Canary, CanaryPolicy, Kept, Place, begun, changed, looked
from streaming.fold.record_fold import described
from streaming.fold.records import StateRow
from streaming.log.policies import read_policies
from streaming.log.policy_sources import policy_sources
from streaming.log.table import log_table
from streaming.quality.gate import judge

if TYPE_CHECKING:
    from streaming.spark.session import SparkSession

log = logging.getLogger(__name__)

EVERY_SECONDS = 60.0
"""How often canaries look at what the query folded, unless told otherwise."""

MOST_BYTES = 8 << 30
"""What the query may have folded and they have not, as files, before they give up."""

TRIES = 3
"""A look that fails is tried so often: a store may be away for a moment."""

_LOOK_BYTES = 64 << 20
"""What they fold in a look, about, before they note how far they came."""

_JOIN_SECONDS = 30.0


class CanaryError(MagnetarError, ValueError):
    """There can be no such canary. The text says why."""


class CanariesBehind(MagnetarError, RuntimeError):
    """They can't keep up with the query. The text says what to do."""


class CanariesGone(MagnetarError, RuntimeError):
    """Somebody has deleted their files. The text says where."""


class CanariesStopped(MagnetarError, RuntimeError):
    """They can't judge what the query has folded, and another look would not help. The text says why."""


class LookFailed(MagnetarError, RuntimeError):
    """A look failed for a reason that may pass, as of the store. The text says why."""


class CanarySource(NamedTuple):
    """Policies under a name: files, see `streaming.log.policy_sources`."""

    name: str
    source: str

    @classmethod
    def parse(cls, text: str) -> CanarySource:
        """``NAME=FILES``. Raises `CanaryError`."""
        name, sign, source = text.partition("=")
        if not name or not sign or not source:
            raise CanaryError(f"--canary {text}: expected NAME=FILE, a name and a file of policies")
        if name == BASELINE:
            raise CanaryError(
                f"--canary {text}: {BASELINE} is the name of what the query does: choose another one"
            )
        return cls(name, source)

    def digest(self) -> str:
        """Of the files. Raises `LogError` and `FileNotFoundError`."""
        found = blake2b(digest_size=16)
        for about, path in policy_sources(self.source):
            found.update(msgspec.msgpack.encode((about, read_small(Path(path)))))
        return found.hexdigest()


class _Work(NamedTuple):
    """An ingress partition to look at: what it keeps is of look `kept` (None: there is nothing), its files of differences that are `settled`,
    and the micro-batches to fold."""

    files: CanaryFiles
    place: Place
    canaries: Sequence[Canary]
    kept: int | None
    settled: Sequence[Settled]
    batches: Sequence[int]
    look: int


class _Found(NamedTuple):
    """What a look at an ingress partition came to. `state`: a digest of the query's state there."""

    partition: int
    records: int
    state: str
    settled: Sequence[Settled]


class _NotLooked(NamedTuple):
    """Why an ingress partition can't be looked at. `is_final`: not next time, either.

    A task returns it, since Spark logs a traceback for each try of one that fails."""

    why: str
    is_final: bool


_FINAL = (CanariesBehind, CanariesGone, CanariesStopped)


class Canaries:
    """The canaries of a query. `begin` before the query starts, `start` when it has, `committed` after each micro-batch, and `close`."""

    def __init__(
        self,
        store: str,
        canaries: Sequence[CanarySource],
        *,
        every: float = EVERY_SECONDS,
        on_look: Callable[[WhatIf, Mapping[str, int]], None] = lambda *_: None,
        on_note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`every`: so often (s) they look. `on_look` gets what they found, without single messages, and from
        which time on (ms) each is judged, `on_note` sentences about what they do.

        Raises `CanaryError`, `PolicyError`, `LogError` and `FileNotFoundError` for policies that can't be read.
        """
        names = [each.name for each in canaries]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise CanaryError(f"--canary {twice[0]}: the name is there twice")
        self._files, self._store = CanaryFiles(store), store
        self._sources, self._every = list(canaries), every
        self._on_look, self._on_note = on_look, on_note
        self._committed, self._failed, self._failures = -1, False, 0
        self._ended = threading.Event()
        self._group = f"canaries-{uuid4()}"
        self._thread: threading.Thread | None = None
        for each in canaries:
            read_policies(each.source, _topics((), 1), judge, grows=True)

    @property
    def folded(self) -> FoldedFiles:
        """Where the query notes what it folds."""
        return self._files.folded

    # ---- before the query starts

    def begin(
        self,
        states: Iterable[StateRow],
        batch: int,
        partitions: int,
        ledgers: LedgerStore,
        spark: SparkSession | None,
    ) -> None:
        """Go on where earlier canaries were, or begin with the query as it is.

        `states`: all of its states, as of the micro-batch `batch` (−1: none), over so many ingress `partitions`. `ledgers`: its entries.
        """
        self._committed, self._spark = batch, spark
        try:
            self._begin({each.partition: each for each in states}, batch, partitions, ledgers)
        except LookFailed as error:
            self._fail(error)
        except MagnetarError:
            raise
        except Exception as error:
            self._fail(error)

    def _begin(self, found: dict[int, StateRow], batch: int, partitions: int, ledgers: LedgerStore) -> None:
        self._files.storage.sweep()
        self._files.folded.delete(after=batch)
        asked = [*self._asked(found, partitions)]
        marker = self._earlier(found, batch, partitions, asked)
        if marker is None:
            self._files.sweep(None)
            marker = Marker(__version__, partitions, asked, batch, look=1)
            for partition, state in sorted(found.items()):
                self._keep(marker, partition, begun(Place(partition, partitions), state, ledgers, asked))
        if marker.kept:
            self._fold(marker, batch, (), everything=True)
        else:
            self._files.commit(marker)
            self._files.folded.delete(upto=batch)
        self._tell()

    def _keep(self, marker: Marker, partition: int, kept: Kept) -> None:
        self._files.write_kept(marker.look, partition, kept)
        marker.kept[partition] = marker.look

    def _asked(self, states: dict[int, StateRow], partitions: int) -> Iterator[Canary]:
        topics = [
            (each.partition, name)
            for each in states.values()
            for name in Broker.decode(each.broker, NoEntries()).topic_names()
        ]
        records = _topics(topics, partitions)
        since = max((each.clock for each in states.values()), default=0)
        for each in self._sources:
            policies = read_policies(each.source, records, judge, grows=True)
            yield Canary(each.name, each.digest(), since, [CanaryPolicy.of(policy) for policy in policies])

    def _earlier(
        self, states: dict[int, StateRow], batch: int, partitions: int, asked: Sequence[Canary]
    ) -> Marker | None:
        """What earlier canaries came to, for those that are `asked` for now, if they can go on."""
        try:
            marker = self._files.marker()
        except Damaged as error:
            self._on_note(f"the canaries begin anew: {error}")
            return None
        if marker is None:
            return None
        why = None
        if marker.version != __version__:
            why = f"those of Magnetar {marker.version} can't go on with {__version__}"
        elif marker.partitions != partitions or marker.batch > batch:
            why = "those that were here are of another query"
        else:
            self._files.sweep(marker)
            try:
                found = self._catch_up(everything=True)
            except Exception as error:
                why = _described(error)
            else:
                if found != {each.partition: _digest(each) for each in states.values()}:
                    why = "the query ran without them"
        if why is None and (caught_up := self._files.marker()) is not None:
            try:
                return self._changed(caught_up, asked)
            except (Damaged, FileNotFoundError) as error:
                why = _described(error)
        self._on_note(f"the canaries begin anew: {why}")
        return None

    def _changed(self, marker: Marker, asked: Sequence[Canary]) -> Marker:
        """With other canaries than before: those that stay go on."""
        before = {(each.name, each.digest): each for each in marker.canaries}
        after = [before.get((each.name, each.digest), each) for each in asked]
        if after == marker.canaries:
            return marker
        other = msgspec.structs.replace(marker, canaries=after, look=marker.look + 1, kept={}, settled={})
        stay = [each.name for each in after if each in marker.canaries]
        for partition, look in marker.kept.items():
            settled = marker.settled.get(partition, [])
            other.settled[partition] = self._files.only(other.look, partition, stay, settled)
            kept = self._files.kept(look, partition)
            self._keep(
                other, partition, changed(Place(partition, marker.partitions), kept, marker.canaries, after)
            )
        return other

    # ---- while it runs

    def start(self) -> None:
        """Look from time to time, in a thread of their own."""
        self._thread = threading.Thread(target=self._run, name="canaries", daemon=True)
        self._thread.start()

    def committed(self, batch: int) -> None:
        """The query has committed a micro-batch."""
        self._committed = batch

    def close(self) -> None:
        """End. What they have not folded yet they fold after the next start."""
        self._ended.set()
        if self._thread is not None:
            if self._spark is not None:
                self._spark.sparkContext.cancelJobGroup(self._group)
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            self._try()

    def _try(self) -> None:
        try:
            if not self._failed:
                self._look()
                self._failures = 0
        except Exception as error:
            self._failures += 1
            if self._failures == TRIES or isinstance(error, _FINAL):
                self._fail(error)
            else:
                _log("a look of the canaries failed, and is tried again", error)
        if self._failed:
            with suppress(OSError):
                self._files.folded.delete(upto=self._committed)

    def _fail(self, error: Exception) -> None:
        """They are no part of the query, which goes on."""
        if not self._ended.is_set():
            self._failed = True
            if not isinstance(error, _EXPECTED):
                _log("the canaries failed", error)
            self._on_note(f"the canaries stop until the query is started again: {_described(error)[:500]}")

    def _look(self) -> None:
        """Fold what the query has committed since the last look, and say how the canaries compare."""
        self._catch_up()
        self._tell()

    def _tell(self) -> None:
        marker, found = self._files.marker(), self._files.answer(most=0)
        if marker is not None and found is not None:
            self._on_look(found, {each.name: each.since for each in marker.canaries})

    def _catch_up(self, *, everything: bool = False) -> dict[int, str]:
        """Fold what the query has committed, some of it at a time. Returns digests of the query's states in the ingress partitions that it
        came to last, or (`everything`) in all."""
        while not self._ended.is_set():
            marker, last = self._files.marker(), self._committed
            if marker is None:
                raise CanariesGone(f"their files in {self._files.storage.url} are gone")
            waiting = [each for each in self._files.folded.waiting(last) if each.batch > marker.batch]
            if (behind := sum(each.size for each in waiting)) > MOST_BYTES:
                raise CanariesBehind(
                    f"they have {behind >> 20:,} MiB to fold, as they are slower than the query: give it more --cores, or fewer canaries"
                )
            upto = _upto(waiting, last)
            found = self._fold(marker, upto, waiting, everything=everything and upto == last)
            if upto == last:
                return {each.partition: each.state for each in found}
        return {}

    def _fold(
        self, marker: Marker, upto: int, waiting: Sequence[FoldedFile], *, everything: bool
    ) -> list[_Found]:
        batches: dict[int, list[int]] = {partition: [] for partition in marker.kept if everything}
        for each in waiting:
            if each.batch <= upto:
                batches.setdefault(each.partition, []).append(each.batch)
        if not batches:
            return []
        look = marker.look + 1
        work = [
            _Work(
                self._files,
                Place(partition, marker.partitions),
                marker.canaries,
                marker.kept.get(partition),
                marker.settled.get(partition, ()),
                own,
                look,
            )
            for partition, own in sorted(batches.items())
        ]
        found: list[_Found] = []
        missed: list[_NotLooked] = []
        for looked_at in self._map(work):
            if isinstance(looked_at, _NotLooked):
                missed.append(looked_at)
            elif looked_at is not None:
                found.append(looked_at)
        if missed:
            why, is_final = max(missed, key=lambda one: one.is_final)
            raise CanariesStopped(why) if is_final else LookFailed(why)
        after = msgspec.structs.replace(
            marker,
            batch=max(upto, marker.batch),
            look=look,
            records=marker.records + sum(each.records for each in found),
            kept=marker.kept | {each.partition: look for each in found},
            settled=marker.settled | {each.partition: [*each.settled] for each in found},
        )
        self._files.commit(after)
        self._files.folded.delete(upto=upto)
        return found

    def _map(self, work: Sequence[_Work]) -> list[_Found | _NotLooked | None]:
        if self._spark is None:
            return [_look_at(each) for each in work]
        context = self._spark.sparkContext
        context.setJobGroup(self._group, "canaries")
        slots = max(1, context.defaultParallelism - 1)  # the query keeps a core
        return context.parallelize(work, min(slots, len(work))).map(_look_at).collect()


def _look_at(work: _Work) -> _Found | _NotLooked | None:
    """Look at an ingress partition, in a task."""
    try:
        return _looked_at(work)
    except _EXPECTED as error:
        return _NotLooked(_described(error), isinstance(error, NoPayloads))


def _looked_at(work: _Work) -> _Found | None:
    files, partition = work.files, work.place.partition
    kept = None if work.kept is None else files.kept(work.kept, partition)
    records = 0

    def visits() -> Iterator[Visit]:
        nonlocal records
        for batch in work.batches:
            visit = files.folded.read(batch, partition)
            records += len(visit.records)
            yield visit

    found = looked(work.place, kept, work.canaries, visits())
    if found is None:
        return None
    texts = found.compared.differences.texts
    files.write_kept(work.look, partition, found.kept)
    files.write_answer(work.look, partition, to_bytes(found.compared))
    files.write_open(work.look, partition, decoded(found.open, texts))
    settled = files.write_settled(work.look, partition, decoded(found.settled, texts), work.settled)
    return _Found(partition, records, _digest(found.state), settled)


def _upto(waiting: Sequence[FoldedFile], last: int) -> int:
    """Up to which micro-batch to fold at once."""
    size = 0
    for before, each in pairwise(waiting):
        size += before.size
        if size > _LOOK_BYTES and each.batch > before.batch:
            return before.batch
    return last


_EXPECTED = (MagnetarError, OSError)
"""What is no bug."""


def _log(what: str, error: Exception) -> None:
    """Log that something failed. The traceback of a bug follows."""
    if isinstance(error, _EXPECTED):
        log.warning("%s: %s", what, _described(error))
    else:
        log.warning("%s", what, exc_info=error)


def _described(error: Exception) -> str:
    """An error in one line. That of a task comes in Spark's words, with a traceback."""
    if isinstance(error, _EXPECTED):
        return one_line(str(error))
    if type(error).__module__.partition(".")[0] in ("pyspark", "py4j"):
        from streaming.spark.failure import cause

        return one_line(cause(str(error)))
    return described(error)


def _digest(state: StateRow) -> str:
    return blake2b(
        msgspec.msgpack.encode((state.clock, state.offset, state.broker)), digest_size=16
    ).hexdigest()


def _topics(topics: Sequence[tuple[int, str]], partitions: int) -> object:
    """A log that has these topics, by ingress partition."""
    rows = [*((partition, None) for partition in range(partitions)), *topics]
    return log_table(
        RECORD,
        partition=[partition for partition, _ in rows],
        offset=range(len(rows)),
        timestamp=[0] * len(rows),
        topic=[topic for _, topic in rows],
        value=[_TICK] * len(rows),
    )


_TICK = b'{"command":"TICK"}'
