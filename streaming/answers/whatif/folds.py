"""The folds of an ingress partition beside each other, and their comparison, as one thing that can be kept as bytes after any record, and gone on
with by another process. What came of them can be kept as bytes, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import pyarrow as pa

from schemas.commands import Refused
from streaming.answers.quarantined import QuarantineKey
from streaming.answers.whatif import kept as kept_runs
from streaming.answers.whatif.answer import CompactedTopic
from streaming.answers.whatif.difference_table import PartitionDifferences, Texts
from streaming.answers.whatif.differences import Comparison, PartitionCompared, compared
from streaming.answers.whatif.differences import rearranged as kept_comparison
from streaming.answers.whatif.projection import Start
from streaming.answers.whatif.side_by_side import Name, SideBySide
from streaming.fold.records import StateRow
from streaming.log.pins import PartitionPins

_ZSTD = pa.Codec("zstd", 1)


class Folds:
    """The folds of an ingress partition in pieces of `size`, as it is and under the policies of each set, and their comparison.

    See `SideBySide` for `pins`, `start` and `baseline`; `names` are those of the policy sets. `kept`: those before kept it (`keep`).
    `settled`: how many differences there were so far.
    """

    def __init__(
        self,
        partition: int,
        names: Sequence[str],
        pins: Sequence[PartitionPins],
        start: Start | None,
        baseline: PartitionPins | None,
        size: int,
        kept: bytes | None = None,
    ) -> None:
        folds, comparison, self.settled = (None, None, 0) if kept is None else _decoded(kept)
        self._names, self._size = names, size
        self._folds = SideBySide(partition, pins, start, baseline, folds)
        self._comparison = Comparison(names, kept=comparison)

    def begin(self, timestamp: int) -> None:
        """See `SideBySide.begin`."""
        self._folds.begin(timestamp)

    def pin(self, baseline: PartitionPins, pins: Sequence[PartitionPins]) -> None:
        """See `SideBySide.pin`."""
        self._folds.pin(baseline, pins)

    def fold(self, records: pa.Table, aside: Mapping[int, Refused] = MappingProxyType({})) -> None:
        """Fold whole pieces, or the last records. `aside`: see `SideBySide.fold`."""
        self._folds.fold_all(records, self._size, self._comparison.settle, aside=aside)

    def tick(self, timestamp: int) -> None:
        """See `SideBySide.tick`."""
        self._folds.tick(timestamp, self._comparison.settle)

    def gone(self, names: Iterable[Name]) -> list[Name]:
        """See `SideBySide.gone`."""
        return self._folds.gone(names)

    def forget(self, gone: Iterable[Name]) -> None:
        """Nobody asks about these any more."""
        for topic, subscription in gone:
            self._comparison.forget(self._folds.runs, topic, subscription)

    def take(self) -> pa.Table:
        """The rows of what is settled since the last call (columns `difference_table.CODED`). Call it once."""
        return self._noted(self._comparison.differences())

    def _noted(self, found: PartitionDifferences) -> pa.Table:
        assert found.rows is not None
        self.settled += len(found.rows)
        return found.rows

    @property
    def place(self) -> tuple[int, int | None]:
        """See `SideBySide.place`."""
        return self._folds.place

    @property
    def recorded(self) -> StateRow:
        """See `SideBySide.recorded`."""
        return self._folds.recorded

    @property
    def states(self) -> list[StateRow]:
        """The states of the baseline, and under each policy set."""
        return self._folds.states

    def keep(self) -> bytes:
        """What is needed to go on."""
        return _encoded(self._folds.keep(), self._comparison.keep(), self.settled)

    def end(self) -> tuple[PartitionCompared, pa.Table]:
        """No more records come. Returns the rows of the rest, too."""
        found = compared(self._folds.end(), self._names, self._comparison)
        rows = self._noted(found.differences)
        return found._replace(differences=found.differences._replace(rows=None, places={})), rows


def rearranged(kept: bytes, sets: Sequence[int], *, beside: bool, recorded: bool) -> bytes:
    """What folds kept, for others: their policy sets are those of these numbers, from 1, and 0 is one that begins as the baseline is. `beside`:
    the log by itself is folded beside the baseline (see `Start`). `recorded`: for the others, it is; as the baseline is, if it was not yet."""
    folds, comparison, settled = _decoded(kept)
    compared = [0, *sets]
    runs = [0] * recorded + [each + beside for each in compared]
    return _encoded(kept_runs.rearranged(folds, runs), kept_comparison(comparison, compared), settled)


def _encoded(folds: bytes, comparison: bytes, settled: int) -> bytes:
    body = msgspec.msgpack.encode((folds, comparison, settled))
    return msgspec.msgpack.encode((len(body), _ZSTD.compress(body, asbytes=True)))


def _decoded(kept: bytes) -> tuple[bytes, bytes, int]:
    size, packed = msgspec.msgpack.decode(kept, type=tuple[int, bytes])
    body = _ZSTD.decompress(packed, size, asbytes=True)
    return msgspec.msgpack.decode(body, type=tuple[bytes, bytes, int])


class _Answer(NamedTuple):
    """`PartitionCompared` without rows of differences, and of clients as recorded."""

    summary: bytes
    series: bytes
    texts: Texts
    opened: dict[str, list[str]]
    unmatched: list[int]
    begin: int
    end: int
    sampled: list[str]
    quarantined: list[tuple[QuarantineKey, int]]
    compacted: list[CompactedTopic]


def to_bytes(found: PartitionCompared) -> bytes:
    """What came of an ingress partition, without the rows of differences."""
    answer = _Answer(
        _table_bytes(found.summary),
        _table_bytes(found.series),
        found.differences.texts,
        found.differences.opened,
        found.unmatched,
        found.begin,
        found.end,
        found.sampled,
        [*found.quarantined.items()],
        [*found.compacted],
    )
    return msgspec.msgpack.encode(answer)


def from_bytes(data: bytes) -> PartitionCompared:
    """What `to_bytes` made."""
    found = msgspec.msgpack.decode(data, type=_Answer)
    return PartitionCompared(
        _table(found.summary),
        PartitionDifferences(None, found.texts, {}, found.opened),
        _table(found.series),
        found.unmatched,
        found.begin,
        found.end,
        found.sampled,
        dict(found.quarantined),
        (),
        found.compacted,
    )


def _table_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.unify_dictionaries())
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _table(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
