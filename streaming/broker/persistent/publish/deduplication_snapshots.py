"""Deduplication of a topic: switching it on and off, and the snapshots with which it recovers (mirrors
`MessageDeduplication.checkStatus`, `takeSnapshot` and `recoverSequenceIdsMap`; docs/rules/deduplication.md §2, §11–§13); and when the next
one is taken, and what a load would not recover.

A snapshot is the properties of the cursor ``pulsar.dedup``: the persisted sequence ids as of its mark-delete position.
"""

from typing import Literal

import msgspec

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

SnapshotState = Literal["off", "by count", "nothing new", "not yet", "not checked yet"]
"""Whether time brings a snapshot. ``by count``: it brings none, only entries do. ``not yet``: the interval has not passed."""


class RecoveredId(msgspec.Struct, frozen=True):
    """A producer whose sequence id a load changes. `before`: the highest one that deduplication knows now, `after`: the one that it recovers;
    None: it knows none."""

    producer: str
    before: int | None
    after: int | None


class DeduplicationSnapshots(msgspec.Struct):
    """The snapshots of a topic's sequence ids, at `clock` (ms).

    `status`: deduplicationStatus. `wanted`: what the policies say, set at `level`; the next load, or change of a policy, does that.
    `position`: the entry up to which the last snapshot goes, `producers`: how many names it
    has, `taken`: when (ms), None: before the topic was loaded, or never. `written`: whether it is stored; if the cursor's write rate holds it
    back, a crash brings an older one back. `entries`: how many entries came since then, which a load reads.
    `interval`: deduplicationSnapshotInterval in seconds, set at `interval_level`. `due`: time brings no snapshot before (ms), None: it brings
    none. `snapshot_at`: the check that takes it (ms). `entries_left`: so many entries bring one at once.
    `unload`, `crash`: the ids that deduplication has afterwards, where they are others; names that are not there, it recovers as they are. A
    crash also loses what is not stored yet. `next_check`, `unchecked`, `sampled`: see `trimming.Retention`.
    """

    topic: str
    clock: int
    status: str
    wanted: bool
    level: str
    state: SnapshotState
    text: str
    position: str | None
    producers: int
    taken: int | None
    written: bool
    entries: int
    interval: int
    interval_level: str
    due: int | None
    entries_left: int
    next_check: int | None
    unchecked: str | None
    unload: list[RecoveredId]
    crash: list[RecoveredId]
    snapshot_at: int | None = None
    sampled: bool = False


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
    dedup, cursor = topic.dedup, topic.cursors.get(DEDUP_CURSOR)
    if cursor is None:
        cursor = topic.cursors[DEDUP_CURSOR] = ManagedCursor.create(
            DEDUP_CURSOR, topic.ledger, earliest=False
        )
    last = _recover_ids(ctx, topic, dedup, cursor)
    if inactive_producers.timeout(ctx.config):
        purge_short_form(ctx, topic)  # no rounds ran while the topic was closed
    if last is not None and dedup.snapshot_counter >= ctx.config.brokerDeduplicationEntriesInterval:
        take_snapshot(
            ctx, topic, last
        )  # quirk: the counter is not reset, so the next entry takes another snapshot


def _recover_ids(
    ctx: Context, topic: PersistentTopic, dedup: MessageDeduplication, cursor: ManagedCursor
) -> Position | None:
    """Give `dedup` what the cursor's snapshot and the entries after it tell. Returns the last of these entries."""
    dedup.clear()
    dedup.inactive.clear()
    dedup.snapshot_counter = 0
    dedup.persisted.update(cursor.properties)
    cursor.rewind(topic.ledger)
    last = None
    while positions := cursor.read(topic.ledger, 100):
        for entry in ctx.entries.get_all(topic.name, positions):
            dedup.recover_entry(entry.metadata)
        last = positions[-1]
    if not ctx.config.deduplicationReplayCounts:
        dedup.snapshot_counter = 0
    dedup.status = "Enabled"
    left = dedup.inactive_short_form
    dedup.inactive_short_form = {name: since for name, since in left.items() if name in dedup.persisted}
    return last


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


# -- what snapshots keep ------------------------------------------------------------------------------------------------


def explain(ctx: Context, topic: PersistentTopic) -> DeduplicationSnapshots:
    """When the next snapshot is taken, and what a load would change. `next_check` and `snapshot_at` are left to the caller.

    Reads the entries after the last snapshot.
    """
    dedup, policies, cursor = topic.dedup, ctx.policies_of(topic), topic.cursors.get(DEDUP_CURSOR)
    found = DeduplicationSnapshots(
        topic=topic.name,
        clock=ctx.clock,
        status=dedup.status,
        wanted=policies.deduplication,
        level=ctx.level_of(topic, "deduplication"),
        state="off",
        text="deduplication is off",
        position=None,
        producers=0,
        taken=dedup.last_snapshot or None,
        written=True,
        entries=0,
        interval=policies.deduplicationSnapshotInterval,
        interval_level=ctx.level_of(topic, "deduplicationSnapshotInterval"),
        due=None,
        entries_left=max(ctx.config.brokerDeduplicationEntriesInterval - dedup.snapshot_counter, 1),
        next_check=None,
        unchecked=None,
        unload=[],
        crash=[],
        sampled=topic.is_sampled,
    )
    if dedup.status != "Enabled" or cursor is None:
        found.unchecked = found.text
        return found
    due = next_effect(ctx, topic)
    found.due = None if due >= NEVER else max(due, ctx.clock)
    found.state, found.text = _when(ctx, topic, due)
    found.position, found.producers, found.written = (
        str(cursor.mark_delete), len(cursor.properties), cursor.persisted is None
    )  # fmt: skip
    found.entries = cursor.live(topic.ledger, cursor.mark_delete, topic.ledger.last_confirmed)
    found.unload = found.crash = _changed_by_load(ctx, topic, cursor.mark_delete, cursor.properties)
    if (saved := cursor.persisted) is not None:
        found.crash = _changed_by_load(ctx, topic, saved.mark_delete, saved.properties)
    return found


def _when(ctx: Context, topic: PersistentTopic, due: int) -> tuple[SnapshotState, str]:
    if due <= ctx.clock:
        return "not checked yet", "the next check takes one"
    if snapshot_due(ctx, topic) >= NEVER:
        return "by count", "deduplicationSnapshotInterval is 0: time brings none"
    if due >= NEVER:
        return "nothing new", "no entry came since the last one"
    return "not yet", "deduplicationSnapshotInterval has not passed since the last one"


def _changed_by_load(
    ctx: Context, topic: PersistentTopic, position: Position, properties: dict[str, int]
) -> list[RecoveredId]:
    """The ids that a load changes, if it begins at a snapshot at `position`."""
    now = topic.dedup
    again = MessageDeduplication(inactive_short_form=dict(now.inactive_short_form))
    if ctx.policies_of(topic).deduplication:
        cursor = ManagedCursor(DEDUP_CURSOR, True, position, position, 0, properties=dict(properties))
        cursor.recover(topic.ledger, leaves_gone=ctx.config.trimMovesToNextLedger)
        _recover_ids(ctx, topic, again, cursor)
        if inactive_producers.timeout(ctx.config):
            again.purge_short_form(inactive_producers.inactive_before(ctx))
    names = dict.fromkeys((*now.persisted, *now.ahead, *again.persisted))
    changes = (RecoveredId(name, now.pushed(name), again.pushed(name)) for name in names)
    return [each for each in changes if each.before != each.after]
