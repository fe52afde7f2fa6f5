"""What a fold takes and gives: records, states, the store with earlier entries, and its errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple, Protocol

from schemas.commands import Refused
from schemas.coordinates import Coordinates, TopicAside
from schemas.effects import SET_ASIDE
from schemas.entries import EntryReader
from schemas.errors import MagnetarError
from schemas.metrics import PartitionMetrics
from streaming.broker.broker import Broker, topic_set_aside
from streaming.broker.entries import NoEntries

SetAside = Mapping[Coordinates, Refused] | Mapping[Coordinates | TopicAside, Refused]
"""Records that go to quarantine without being decoded, and topics whose state is not decoded either, and why.

Of a topic, all records go to quarantine from then on, in later runs, too: the state says so.
"""


class Store(Protocol):
    """Where the broker finds the entries of earlier micro-batches. Pickled and shipped to Spark's workers."""

    def reader(self, partition: int) -> EntryReader:
        """The entries of committed micro-batches of an ingress partition."""
        ...


class BrokerType(Protocol):
    """How to get a broker: `streaming.broker.broker.Broker`, or in a test one that fails on purpose."""

    def __call__(self, partition: int, entries: EntryReader) -> Broker:
        """A new broker for an ingress partition."""
        ...

    def decode(self, state: bytes, entries: EntryReader) -> Broker:
        """The broker of an encoded state. Raises what the broker raises for a state that it can't decode."""
        ...


class OffsetError(MagnetarError, RuntimeError):
    """An ingress partition's records don't continue what its state has seen."""


class FoldError(MagnetarError, RuntimeError):
    """Magnetar failed while it folded a partition. This is a bug, since bad records are quarantined.

    The text names the partition, the record, and what was being done with it, and says what to do.
    """


class NoSuchRecord(MagnetarError, ValueError):
    """A record that should be set aside isn't there, or was folded before. The text names it."""


class StateRow(NamedTuple):
    """The state of an ingress partition between two micro-batches: columns for people, and the broker.

    `clock` in ms since the epoch, `backlog` in entries, `storage` in bytes; `offset` is that of the last record (None:
    there was none); `broker` is the broker in its own versioned encoding.
    """

    partition: int
    clock: int
    topics: int
    backlog: int
    storage: int
    offset: int | None
    broker: bytes


class Records(NamedTuple):
    """Records of one ingress partition, by rising offset. Timestamps in ms since the epoch."""

    offsets: list[int]
    timestamps: list[int]
    topics: list[str | None]
    values: list[bytes]

    def piece(self, start: int, stop: int) -> Records:
        """Those from number `start` to before `stop`."""
        return Records(*(column[start:stop] for column in self))  # type: ignore[arg-type]

    def where(self, mask: Sequence[bool]) -> Records:
        """Those where `mask` is true."""
        return Records(*(list(compress(column, mask)) for column in self))  # type: ignore[arg-type]


def set_aside_by_name(
    records: Iterable[Coordinates], topics: Iterable[TopicAside] = ()
) -> dict[Coordinates | TopicAside, Refused]:
    """The `SetAside` of records and topics that an operator names."""
    found: dict[Coordinates | TopicAside, Refused] = {at: topic_set_aside(at.topic) for at in topics}
    for at in records:
        found[at] = Refused(SET_ASIDE, f"an operator set the record aside: --quarantine {at}")
    return found


def stats(states: Iterable[StateRow], *, broker: BrokerType = Broker) -> list[dict[str, Any]]:
    """`Broker.stats` of all partitions, sorted by topic, with the ingress partition added to each row."""
    rows = [
        {"partition": each.partition} | row
        for each in states
        for row in broker.decode(each.broker, NoEntries()).stats()
    ]
    return sorted(rows, key=lambda row: str(row["topic"]))


def partition_metrics(
    states: Iterable[StateRow], *, broker: BrokerType = Broker
) -> Iterator[PartitionMetrics]:
    """`Broker.metrics` of everything in each partition."""
    for each in states:
        found = broker.decode(each.broker, NoEntries()).metrics(everything=True)
        found.state_bytes = len(each.broker)
        yield found
