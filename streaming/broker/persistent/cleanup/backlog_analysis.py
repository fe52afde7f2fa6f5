"""The admin call analyzeBacklog (mirrors `PersistentSubscription.analyzeBacklog` and `OpScan`)."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from streaming.broker import entry_filters
from streaming.broker.context import Context
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position

_AT_ONCE = 500
_NAMES = {"REJECT": "Rejected", "ACCEPT": "Accepted", "RESCHEDULE": "Rescheduled"}


def analyze(
    ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, start: Position | None
) -> dict[str, Any]:
    """Count the unacknowledged entries and messages of a subscription by what the entry filters make of them.

    `start`: the first position to count, even if the subscription has passed it; None: after the mark-delete position.
    After subscriptionBacklogScanMaxEntries, the analysis is aborted.
    """
    positions, aborted = _positions(ctx, topic, topic.cursors[subscription.name], start)
    entries, messages = Counter[str](), Counter[str]()
    for at in range(0, len(positions), _AT_ONCE):
        for entry in ctx.entries.get_all(topic.name, positions[at : at + _AT_ONCE]):
            result = entry_filters.judge(ctx.config.entryFilterNames, entry.metadata, subscription.properties)
            entries[result] += 1
            messages[result] += entry.messages
    found: dict[str, Any] = {"entries": entries.total(), "messages": messages.total()}
    found |= {f"filter{name}Entries": entries[result] for result, name in _NAMES.items()}
    found |= {f"filter{name}Messages": messages[result] for result, name in _NAMES.items()}
    found["aborted"] = aborted
    if positions:
        found |= {"firstMessageId": str(positions[0]), "lastMessageId": str(positions[-1])}
    return found


def _positions(
    ctx: Context, topic: PersistentTopic, cursor: ManagedCursor, start: Position | None
) -> tuple[list[Position], bool]:
    """The unacknowledged positions to count, and whether there are more. Acknowledged ones count as looked at."""
    left = ctx.config.subscriptionBacklogScanMaxEntries
    found: list[Position] = []
    for position, seen in unacked_positions(topic.ledger, cursor, start):
        left -= seen
        if left <= 0:
            return found, True
        found.append(position)
    return found, False


def unacked_positions(
    ledger: ManagedLedger, cursor: ManagedCursor, start: Position | None = None
) -> Iterator[tuple[Position, int]]:
    """The unacknowledged positions in order, from `start` on (None: after the mark-delete position). With each, how many
    positions were looked at since the last one, itself and individually acknowledged ones."""
    position, seen = ledger.next_valid(cursor.mark_delete) if start is None else start, 0
    while True:
        if position.entry < 0 or not ledger.valid(position):
            position = ledger.next_valid(Position(position.ledger, position.entry - 1))
        if position > ledger.last_confirmed:
            return
        if position in cursor.acked:
            end = cursor.acked.run_end(position)
            seen += ledger.count(position, end, include_start=True, include_end=True)
            position = end.next()
            continue
        yield position, seen + 1
        position, seen = position.next(), 0
