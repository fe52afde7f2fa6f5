"""Deduplication of a topic: switching it on and off, and the snapshots with which it recovers (mirrors
`MessageDeduplication.checkStatus`, `takeSnapshot` and `recoverSequenceIdsMap`; docs/rules/deduplication.md §2, §11–§13).

A snapshot is the properties of the cursor ``pulsar.dedup``: the persisted sequence ids as of its mark-delete position.
"""

from streaming.broker.context import NEVER, Context
from streaming.broker.errors import CursorError
from streaming.broker.ledger.cursor_writes import change_cursor
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.persistent import leaving
from streaming.broker.persistent.cleanup.trimming import free_ledgers, trim
from streaming.broker.persistent.publish.message_deduplication import MessageDeduplication
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position
from streaming.broker.topic import inactive_producers


def check_status(ctx: Context, topic: PersistentTopic) -> None:
    """Switch deduplication on or off as the policies say: at topic load and on every policy change (§2)."""
    wanted = ctx.policies_of(topic).deduplication
    if (misnamed := topic.subscriptions.get(DEDUP_CURSOR)) is not None:
        # A state has it that was written before the gate for names held everywhere. Its cursor is not one of deduplication.
        leaving.delete(ctx, topic, misnamed, "its name is reserved")
    if topic.dedup.status == "Initialized":
        # Else, only the cursor survives a load.
        topic.dedup = MessageDeduplication(inactive_short_form=topic.dedup.inactive_short_form)
    dedup = topic.dedup
    dedup.every_chunk = not ctx.config.deduplicationChecksLastChunkOnly
    if not wanted and dedup.status != "Disabled":
        dedup.status = "Disabled"
        dedup.clear()
        dedup.inactive_short_form.clear()
        if topic.cursors.pop(DEDUP_CURSOR, None) is not None:
            trim(ctx, topic)
    elif wanted and dedup.status != "Enabled":
        _recover(ctx, topic)


def _recover(ctx: Context, topic: PersistentTopic) -> None:
    """Open the cursor (a new one at Latest), load its snapshot, recover the entries after it (§12)."""
    dedup, ledger = topic.dedup, topic.ledger
    cursor = topic.cursors.get(DEDUP_CURSOR)
    if cursor is None:
        cursor = topic.cursors[DEDUP_CURSOR] = ManagedCursor.create(DEDUP_CURSOR, ledger, earliest=False)
    dedup.clear()
    dedup.inactive.clear()
    dedup.snapshot_counter = 0
    dedup.persisted.update(cursor.properties)
    cursor.rewind(ledger)
    last = None
    while positions := cursor.read(ledger, 100):
        for entry in ctx.entries.get_all(topic.name, positions):
            dedup.recover_entry(entry.metadata)
        last = positions[-1]
    if not ctx.config.deduplicationReplayCounts:
        dedup.snapshot_counter = 0
    dedup.status = "Enabled"
    left = dedup.inactive_short_form
    dedup.inactive_short_form = {name: since for name, since in left.items() if name in dedup.persisted}
    if inactive_producers.timeout(ctx.config):
        purge_short_form(ctx, topic)  # no rounds ran while the topic was closed
    if last is not None and dedup.snapshot_counter >= ctx.config.brokerDeduplicationEntriesInterval:
        take_snapshot(
            ctx, topic, last
        )  # quirk: the counter is not reset, so the next entry takes another snapshot


def take_snapshot(ctx: Context, topic: PersistentTopic, position: Position) -> bool:
    """Store the persisted sequence ids as properties of the cursor, and mark-delete it at `position`.

    A cursor that moved to a ledger which was then dropped empty refuses this until an entry comes: there is no snapshot
    then. Returns whether a snapshot was written.
    """
    cursor = topic.cursors[DEDUP_CURSOR]
    marks = topic.dedup.snapshot(ctx.config.brokerDeduplicationMaxNumberOfProducers)
    try:
        former = change_cursor(
            ctx, ctx.policies_of(topic), cursor, cursor.move, topic.ledger, position, marks
        )
    except CursorError:
        return False
    topic.dedup.last_snapshot = ctx.clock
    free_ledgers(ctx, topic, cursor, former)
    return cursor.persisted is None


def check(ctx: Context, topic: PersistentTopic) -> None:
    """The periodic check of a topic: a snapshot at the last confirmed entry, if deduplicationSnapshotInterval has passed (§11)."""
    if snapshot_due(ctx, topic) <= ctx.clock and _has_new_ids(topic):
        take_snapshot(ctx, topic, topic.ledger.last_confirmed)


def next_effect(ctx: Context, topic: PersistentTopic) -> int:
    """When the next snapshot is due."""
    due = snapshot_due(ctx, topic)
    return due if due < NEVER and _has_new_ids(topic) else NEVER


def snapshot_due(ctx: Context, topic: PersistentTopic) -> int:
    """When the next snapshot of a topic's sequence ids is due (ms), if there are new ones. `NEVER`: none is."""
    interval = ctx.policies_of(topic).deduplicationSnapshotInterval
    if topic.dedup.status != "Enabled" or interval <= 0:
        return NEVER
    return topic.dedup.last_snapshot + interval * 1000


def _has_new_ids(topic: PersistentTopic) -> bool:
    return topic.ledger.last_confirmed > topic.cursors[DEDUP_CURSOR].mark_delete


def purge_short_form(ctx: Context, topic: PersistentTopic) -> bool:
    """Forget producers of the short form that are inactive for longer than the timeout (§13). Returns whether a snapshot was
    due, with which they stay forgotten."""
    dedup, before = topic.dedup, inactive_producers.inactive_before(ctx)
    if not dedup.purge_short_form(before):
        return False
    end = max(topic.ledger.last_confirmed, topic.cursors[DEDUP_CURSOR].mark_delete)
    if take_snapshot(ctx, topic, end):
        dedup.short_form_purged(before)
    return True
