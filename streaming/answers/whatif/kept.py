"""What the folds of a what-if have between two pieces of a log, as bytes: others go on from there, and come to the same."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from streaming.answers.whatif.observed import (
    ByNumber,
    Column,
    KeptPublishes,
    ObservedRun,
    Observer,
    OpenLoop,
    TopicPublishes,
)
from streaming.answers.whatif.series import TimeSeries
from streaming.fold.records import StateRow
from streaming.log.positions import WrittenEntries


class KeptRun(NamedTuple):
    """A run: the state of its broker, what was observed of it, where its topics became open-loop, and how many commands named nothing."""

    state: StateRow
    observed: ObservedRun
    open_loop: dict[str, OpenLoop]
    unmatched: int


class KeptRuns(NamedTuple):
    """All runs of an ingress partition, the messages that they share, and the time (ms) of the first record; None: none came."""

    messages: dict[str, TopicPublishes]
    first: int | None
    runs: list[KeptRun]


def encode(
    messages: Mapping[str, TopicPublishes],
    first: int | None,
    runs: Sequence[tuple[StateRow, Observer, dict[str, OpenLoop], int]],
) -> bytes:
    """See `KeptRuns`."""
    names = {id(each): name for name, each in messages.items()}

    def hook(value: Any) -> Any:
        return names[id(value)] if isinstance(value, TopicPublishes) else _simple(value)

    kept = [
        KeptRun(state, observer.observed(), open_loop, unmatched)
        for state, observer, open_loop, unmatched in runs
    ]
    columns = {name: each.kept() for name, each in messages.items()}
    return msgspec.msgpack.encode([_encoded(columns), first, msgspec.msgpack.encode(kept, enc_hook=hook)])


def decode(data: bytes) -> KeptRuns:
    """What `encode` encoded."""
    columns, first, runs = msgspec.msgpack.decode(data, type=tuple[bytes, int | None, bytes])
    found = msgspec.msgpack.decode(columns, type=dict[str, KeptPublishes], dec_hook=_restored)
    messages = {name: TopicPublishes(each) for name, each in found.items()}

    def hook(kind: type, value: Any) -> Any:
        return messages[value] if kind is TopicPublishes else _restored(kind, value)

    return KeptRuns(messages, first, msgspec.msgpack.decode(runs, type=list[KeptRun], dec_hook=hook))


def rearranged(data: bytes, runs: Sequence[int]) -> bytes:
    """What `encode` encoded, with these runs, by their numbers."""
    columns, first, encoded = msgspec.msgpack.decode(data, type=tuple[bytes, int | None, bytes])
    kept = msgspec.msgpack.decode(encoded, type=list[msgspec.Raw])
    return msgspec.msgpack.encode([columns, first, msgspec.msgpack.encode([kept[each] for each in runs])])


def _encoded(value: object) -> bytes:
    return msgspec.msgpack.encode(value, enc_hook=_simple)


def _simple(value: Any) -> Any:
    match value:
        case Column():
            return value.kept()
        case ByNumber():
            return [value.first, value.values.tobytes()]
        case TimeSeries():
            return [value.clocks.tobytes(), value.values.tobytes(), value.peak]
        case WrittenEntries():
            return value.encode()
        case array():
            return value.tobytes()
    raise NotImplementedError(type(value).__name__)


def _restored(kind: type, value: Any) -> Any:
    if kind is Column:
        first, stop, dtype, values = value
        return Column.of(first, stop, np.frombuffer(values, dtype).copy())
    if kind is ByNumber:
        return ByNumber(value[0], array("q", value[1]))
    if kind is TimeSeries:
        return TimeSeries(array("q", value[0]), array("q", value[1]), value[2])
    if kind is WrittenEntries:
        return WrittenEntries.decode(value)
    if kind is array:
        return array("q", value)
    raise NotImplementedError(kind.__name__)
