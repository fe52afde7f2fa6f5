"""Cursor changes that must be written. The cursor's rate limiter may delay the write (docs/rules/cursors.md §11)."""

from collections.abc import Callable
from typing import ParamSpec

from streaming.broker.context import Context
from streaming.broker.ledger.managed_cursor import ManagedCursor, Persisted
from streaming.broker.policies.hierarchy import HierarchyTopicPolicies
from streaming.broker.position import Position

P = ParamSpec("P")

CursorWrite = tuple[float, Persisted | None, Position]
"""The permits for writes, the state that stays the written one if there are none, and the cursor's key, before a change."""


def change_cursor(
    ctx: Context,
    policies: HierarchyTopicPolicies,
    cursor: ManagedCursor,
    operation: Callable[P, object],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Position | None:
    """Apply `operation` to a cursor and account for the write. `policies`: those of its topic.

    Returns the former key if the key moved to another ledger, else None (see `trimming.free_ledgers`). Exceptions of
    `operation` propagate: then nothing has changed and nothing is written.
    """
    if not cursor.durable:
        operation(*args, **kwargs)
        return None
    write, before = begin_write(ctx, policies, cursor), (cursor.mark_delete, cursor.consumed)
    operation(*args, **kwargs)
    if not cursor.acked.ledgers and not cursor.batches and (cursor.mark_delete, cursor.consumed) == before:
        return None
    return end_write(ctx, cursor, write)


def begin_write(ctx: Context, policies: HierarchyTopicPolicies, cursor: ManagedCursor) -> CursorWrite:
    """What is to be known of a durable cursor before it changes."""
    permits = cursor.permits_at(ctx.clock, policies.persistence.managedLedgerMaxMarkDeleteRate)
    saved = cursor.snapshot() if permits < 1 and cursor.persisted is None else cursor.persisted
    return permits, saved, cursor.key


def end_write(ctx: Context, cursor: ManagedCursor, write: CursorWrite) -> Position | None:
    """Account for the write of a cursor that has changed. Returns what `change_cursor` does."""
    permits, saved, key = write
    if permits < 1:
        cursor.persisted = saved
        return None
    cursor.written(ctx.clock, permits)
    return key if cursor.mark_delete.ledger != key.ledger else None
