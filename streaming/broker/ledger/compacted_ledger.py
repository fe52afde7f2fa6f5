"""The compacted ledger of a topic: which entries compaction kept (mirrors `CompactedTopicImpl`; docs/rules/compaction.md §5)."""

from bisect import bisect_left

import msgspec

from streaming.broker.position import Position


class CompactedLedger(msgspec.Struct, array_like=True):
    """`id` is the ledger in which the store has copies of the kept entries, from entry 0 on. `horizon`: up to this position of the topic,
    compaction has read. `kept`: by ledger of the topic, the `entries` that it kept, ascending; so this is linear in live keys. `size`: the
    bytes of the ledger, as BookKeeper has it. `last_batch_index`: of the last message that is left in the last entry; −1: it is no batch.
    """

    id: int
    horizon: Position
    kept: dict[int, list[int]] = {}
    size: int = 0
    last_batch_index: int = -1
    entries: int = 0

    def add(self, position: Position, size: int) -> None:
        """Keep one more entry, behind all others. `size`: its bytes."""
        self.kept.setdefault(position.ledger, []).append(position.entry)
        self.size += size
        self.entries += 1

    @property
    def last(self) -> Position | None:
        """The position in the topic of the last entry. None: it has none."""
        ledger = next(reversed(self.kept), None)
        return None if ledger is None else Position(ledger, self.kept[ledger][-1])

    def find(self, start: Position, count: int) -> tuple[int, list[Position]]:
        """Up to `count` of the kept entries from the position `start` on: the number of the first in this ledger, and where they are in the
        topic."""
        before, found, first = 0, list[Position](), 0
        for ledger, entries in self.kept.items():
            if ledger >= start.ledger and len(found) < count:
                at = bisect_left(entries, start.entry) if ledger == start.ledger else 0
                if not found:
                    first = before + at
                found += [Position(ledger, entry) for entry in entries[at : at + count - len(found)]]
            before += len(entries)
        return first, found
