"""The entries of an engine: those since the last checkpoint in memory, older ones in the ledger store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from schemas.effects import CompactedEntry, LedgerDeleted, Row, SendReceipt
from schemas.entries import Entry, EntryNotFound, metadata_of
from streaming.server.engine import StoredEntry

if TYPE_CHECKING:
    from sinks.ledger_reader import LedgerReader

Mark = Mapping[tuple[str, int], int]
"""By topic and ledger, the entry after the last one."""


class RecentEntries:
    """Entries by position. `older` has what was dropped from memory; None: nothing was."""

    def __init__(self, older: LedgerReader | None = None) -> None:
        self._older = older
        self._ledgers: dict[tuple[str, int], tuple[int, list[StoredEntry]]] = {}
        self._ahead: tuple[str, int, int, list[StoredEntry]] = "", 0, 0, []
        """Entries that were read from `older` with the last one that was wanted: topic, ledger, the first entry's id."""
        self._read: Counter[str] = Counter()

    def add(self, rows: Sequence[Row]) -> dict[str, int]:
        """Keep the entries that `rows` stored. Returns their number, by topic."""
        counts: dict[str, int] = {}
        for row in rows:
            effect = row.effect
            if (type(effect) is SendReceipt and effect.ledger_id > 0) or type(effect) is CompactedEntry:
                metadata = metadata_of(effect)
                stored = StoredEntry(
                    metadata, effect.payload or b"", effect.size or 0, effect.broker_timestamp
                )
                topic = effect.topic
                counts[topic] = counts.get(topic, 0) + 1
                ledger = self._ledgers.get((topic, effect.ledger_id))
                if ledger is None:
                    self._ledgers[topic, effect.ledger_id] = effect.entry_id, [stored]
                else:
                    ledger[1].append(stored)
        return counts

    def take_read(self) -> Mapping[str, int]:
        """How many entries the broker wanted since the last call that were read from `older`, by topic."""
        taken, self._read = self._read, Counter()
        return taken

    def delete(self, rows: Sequence[Row]) -> None:
        """Forget the ledgers that `rows` deleted."""
        for row in rows:
            if type(row.effect) is LedgerDeleted:
                self._ahead = "", 0, 0, []
                self._ledgers.pop((row.effect.topic, row.effect.ledger_id), None)

    def mark(self) -> Mark:
        """The entries until now, to `forget`."""
        return {ledger: first + len(stored) for ledger, (first, stored) in self._ledgers.items()}

    def forget(self, mark: Mark, older: LedgerReader) -> None:
        """Forget the entries before a mark: `older` has them now."""
        self._older = older
        for ledger, end in mark.items():
            if (known := self._ledgers.pop(ledger, None)) is not None:
                first, stored = known
                if later := stored[end - first :]:
                    self._ledgers[ledger] = end, later

    def copy(self) -> RecentEntries:
        """The same entries, to go back to."""
        copied = RecentEntries(self._older)
        copied._ledgers = {ledger: (first, list(stored)) for ledger, (first, stored) in self._ledgers.items()}
        return copied

    def reader(self, partition: int) -> RecentEntries:
        """The entries of the only partition."""
        return self

    def read(self, topic: str, ledger_id: int, first: int, last: int) -> Sequence[Entry]:
        """What the broker knows of entries `first`..`last`, both included. Raises `EntryNotFound`."""
        begin, recent = self._ledgers.get((topic, ledger_id), (last + 1, []))
        found: list[Entry] = []
        if first < begin:
            if self._older is None:
                raise EntryNotFound(f"{topic} {ledger_id}:{first}..{last}: not in memory")
            found += self._older.read(topic, ledger_id, first, min(last, begin - 1))
            self._read[topic] += len(found)
        wanted = recent[max(first - begin, 0) : last + 1 - begin] if last >= begin else []
        found += (Entry(each.metadata, each.size, each.broker_timestamp) for each in wanted)
        if len(found) != last + 1 - first:
            raise EntryNotFound(f"{topic} {ledger_id}:{first}..{last}: there are {len(found)} of them")
        return found

    def payloads(self, topic: str, ledger_id: int, first: int, last: int) -> Sequence[bytes]:
        """The payloads of entries that `read` has just read."""
        return [self.get(topic, ledger_id, entry).payload for entry in range(first, last + 1)]

    def get(self, topic: str, ledger_id: int, entry_id: int) -> StoredEntry:
        """An entry with its payload. Raises `EntryNotFound`."""
        begin, recent = self._ledgers.get((topic, ledger_id), (entry_id + 1, []))
        if 0 <= entry_id - begin < len(recent):
            return recent[entry_id - begin]
        if self._older is None or entry_id >= begin:
            raise EntryNotFound(f"{topic} {ledger_id}:{entry_id}: no such entry")
        *ledger, first, ahead = self._ahead
        if ledger != [topic, ledger_id] or not first <= entry_id < first + len(ahead):
            first, read = entry_id, self._older.ahead(topic, ledger_id, entry_id)
            ahead = [
                StoredEntry(each.metadata, payload, each.size, each.broker_timestamp)
                for each, payload in read
            ]
            self._ahead = topic, ledger_id, first, ahead
        return ahead[entry_id - first]
