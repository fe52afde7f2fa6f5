"""Stored entries: what the broker reads back from a store. The columns that a store keeps: `schemas.outputs.ENTRY`."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from schemas.commands import MessageMetadata
from schemas.effects import CompactedEntry, SendReceipt
from schemas.errors import MagnetarError


class Entry(msgspec.Struct, frozen=True, gc=False):
    """What the broker knows of a stored entry: its metadata and its stored size in bytes. The payload is opaque, but to compaction; None: it
    was not read."""

    metadata: MessageMetadata
    size: int
    broker_timestamp: int | None = None
    payload: bytes | None = None

    @property
    def timestamp(self) -> int:
        """The entry's time (ms): the broker's if it was configured to note one, else the client's (docs/rules/ttl.md §2)."""
        return self.metadata.publish_time if self.broker_timestamp is None else self.broker_timestamp

    @property
    def messages(self) -> int:
        """Messages in it, at least 1 (docs/rules/batching.md §1)."""
        messages = self.metadata.num_messages_in_batch
        return 1 if messages is None or messages < 1 else messages


def metadata_of(receipt: SendReceipt | CompactedEntry) -> MessageMetadata:
    """The metadata of the entry that a receipt confirms, or that compaction kept. In the short form of publishing, it has no other than these."""
    if isinstance(receipt, CompactedEntry):
        return receipt.metadata
    return receipt.metadata or MessageMetadata(
        receipt.producer_name,
        receipt.sequence_id,
        receipt.publish_time or 0,
        partition_key=receipt.partition_key,
    )


class EntryNotFound(MagnetarError, LookupError):
    """The store doesn't hold an entry that the broker's state says it wrote: store and checkpoint are from different points in time."""


class EntryReader(Protocol):
    """Reads entries of committed micro-batches."""

    def read(self, topic: str, ledger_id: int, first: int, last: int) -> Sequence[Entry]:
        """Entries `first`..`last`, both included, in order. Raises `EntryNotFound` if one is missing."""
        ...


@runtime_checkable
class PayloadReader(Protocol):
    """An `EntryReader` that has payloads, too, as the compaction of topics needs them."""

    def payloads(self, topic: str, ledger_id: int, first: int, last: int) -> Sequence[bytes]:
        """Payloads of the entries `first`..`last`, both included, in order. Raises `EntryNotFound` if one is missing."""
        ...
