"""Cursor positions that the mark-delete rate limiter held back are written (docs/rules/cursors.md §11)."""

from streaming.broker.context import NEVER, Context
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.persistent.cleanup import trimming
from streaming.broker.persistent.topic import PersistentTopic


def check(ctx: Context, topic: PersistentTopic) -> None:
    """The periodic check of a topic."""
    for cursor in topic.cursors.values():
        if cursor.persisted is not None:
            _flush(ctx, topic, cursor)


def next_effect(ctx: Context, topic: PersistentTopic) -> int:
    """At once if a position is held back."""
    return ctx.clock if holds_back(topic) else NEVER


def holds_back(topic: PersistentTopic) -> bool:
    """Whether a cursor of the topic has changes that are not written."""
    return any(cursor.persisted is not None for cursor in topic.cursors.values())


def _flush(ctx: Context, topic: PersistentTopic, cursor: ManagedCursor) -> None:
    former = cursor.key
    cursor.persisted = None
    cursor.next_ledger = 0
    trimming.free_ledgers(ctx, topic, cursor, former if former.ledger != cursor.mark_delete.ledger else None)
