"""The sequence ids that a topic has seen, and the verdict on a new one (mirrors `MessageDeduplication`;
docs/rules/deduplication.md §1, §4, §9, §13).

There are two marks per producer name: *pushed*, the highest id accepted for writing, and *persisted*, the highest id
whose write was confirmed. They differ only while a write is unconfirmed, so `ahead` keeps the pushed ids of just those
names where the marks differ. Rolling back clears it.
"""

from itertools import islice
from typing import Literal

import msgspec

from schemas.commands import MessageMetadata

Status = Literal["Initialized", "Disabled", "Recovering", "Enabled", "Removing", "Failed"]
MessageDupStatus = Literal["NotDup", "Dup", "Unknown"]


class MessageDeduplication(msgspec.Struct, array_like=True):
    """`inactive`: producer name → when it disconnected (ms). `snapshot_counter`: entries since the last snapshot by count.
    `last_snapshot` in ms. `every_chunk`: the setting deduplicationChecksLastChunkOnly is off. `inactive_short_form`: the same as
    `inactive` for producers of the short form. Pulsar has none. They stay inactive when the topic is loaded again, since they have no
    connection that could be lost. Others whose ids were recovered are not inactive until they connect and disconnect (§13, a quirk).
    """

    status: Status = "Initialized"
    persisted: dict[str, int] = {}
    ahead: dict[str, int] = {}
    inactive: dict[str, int] = {}
    snapshot_counter: int = 0
    last_snapshot: int = 0
    every_chunk: bool = False
    inactive_short_form: dict[str, int] = {}

    def pushed(self, name: str) -> int | None:
        """highestSequencedPushed of a producer name."""
        if self.ahead and (mark := self.ahead.get(name)) is not None:
            return mark
        return self.persisted.get(name)

    def last_sequence_id(self, name: str) -> int:
        """The last sequence id in PRODUCER_SUCCESS: pushed, or −1 (docs/rules/deduplication.md §8)."""
        mark = self.pushed(name)
        return -1 if mark is None else mark

    def check(self, name: str, lowest: int, highest: int, metadata: MessageMetadata) -> MessageDupStatus:
        """Judge a message by its lowest id. If it is new, its highest id becomes pushed (§4)."""
        if self.status != "Enabled" or metadata.marker_type is not None:
            return "NotDup"
        if not (self.every_chunk or is_last_chunk(metadata)):
            return "NotDup"
        pushed = self.pushed(name)
        if pushed is None or lowest > pushed:
            self.ahead[name] = highest
            return "NotDup"
        persisted = self.persisted.get(name)
        return "Dup" if persisted is not None and lowest <= persisted else "Unknown"

    def record_persisted(self, name: str, highest: int, metadata: MessageMetadata) -> None:
        """A write was confirmed (§9) while deduplication is enabled. This assigns the id, even a lower one."""
        if metadata.marker_type is not None:
            return
        if self.every_chunk or is_last_chunk(metadata):
            pushed = self.pushed(name)
            self.persisted[name] = highest
            if pushed == highest:
                self.ahead.pop(name, None)
            elif pushed is not None:
                self.ahead[name] = pushed
        self.snapshot_counter += 1  # for every chunk

    def roll_back(self) -> None:
        """After a failed write, once no write is pending: pushed := persisted (§10)."""
        self.ahead.clear()

    def clear(self) -> None:
        """Forget all sequence ids."""
        self.persisted.clear()
        self.ahead.clear()

    # -- recovery (§12) -------------------------------------------------------------------------------------------

    def recover_entry(self, metadata: MessageMetadata) -> None:
        """Apply one entry after the snapshot. Entries come in log order, and every chunk counts."""
        self.persisted[metadata.producer_name] = max(metadata.highest_sequence_id or 0, metadata.sequence_id)
        self.snapshot_counter += 1

    def snapshot(self, limit: int) -> dict[str, int]:
        """The persisted ids of up to `limit` names, for the cursor. Pulsar does not specify which; here, the first ones."""
        return dict(islice(self.persisted.items(), limit))

    # -- bookkeeping (§13) ----------------------------------------------------------------------------------------

    def producer_added(self, name: str) -> None:
        """A producer connected."""
        if self.status == "Enabled":
            self.inactive.pop(name, None)
            self.inactive_short_form.pop(name, None)

    def producer_removed(self, name: str, now: int, *, short_form: bool) -> None:
        """A producer disconnected at `now` (ms)."""
        if self.status == "Enabled":
            (self.inactive_short_form if short_form else self.inactive)[name] = now

    def inactive_since(self) -> int | None:
        """When the first of the inactive ones disconnected (ms). The dicts have them in that order."""
        first = [next(iter(each.values())) for each in (self.inactive, self.inactive_short_form) if each]
        return min(first, default=None)

    def purge_inactive(self, before: int) -> bool:
        """Forget the producers that disconnected before `before` (ms), but not those of the short form. True: a snapshot is due."""
        if self.status != "Enabled":
            self.inactive.clear()
            return False
        gone = self._purge(self.inactive, before)
        self.inactive = {name: since for name, since in self.inactive.items() if name not in gone}
        return bool(gone)

    def purge_short_form(self, before: int) -> bool:
        """The same for producers of the short form. They stay inactive until a snapshot keeps them from being recovered."""
        if self.status != "Enabled":
            self.inactive_short_form.clear()
            return False
        return bool(self._purge(self.inactive_short_form, before))

    def short_form_purged(self, before: int) -> None:
        """There is such a snapshot."""
        left = self.inactive_short_form
        self.inactive_short_form = {name: since for name, since in left.items() if since >= before}

    def _purge(self, inactive: dict[str, int], before: int) -> set[str]:
        gone = {name for name, since in inactive.items() if since < before}
        for name in gone:
            self.persisted.pop(name, None)
            self.ahead.pop(name, None)
        return gone


def is_last_chunk(metadata: MessageMetadata) -> bool:
    """Is this a whole message or its last chunk? Other chunks are neither judged nor recorded."""
    chunk = metadata.chunk_id
    return (
        chunk is None
        or chunk == -1
        or metadata.num_chunks_from_msg is None
        or chunk == metadata.num_chunks_from_msg - 1
    )
