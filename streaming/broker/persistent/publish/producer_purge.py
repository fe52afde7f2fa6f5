"""Deduplication forgets producers that are inactive for too long (mirrors `MessageDeduplication.purgeInactiveProducers`;
docs/rules/deduplication.md §13), see `streaming.broker.topic.inactive_producers`."""

from streaming.broker.context import NEVER, Context
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.persistent.publish.deduplication_snapshots import purge_short_form, take_snapshot
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.topic import registration
from streaming.broker.topic.inactive_producers import goes_at, inactive_before


def check(ctx: Context, topic: PersistentTopic) -> None:
    """The periodic check of a topic: forget the producers that were inactive for longer than the timeout, and store that in a
    snapshot.

    Those of the short form leave: they were inactive since they published last. The snapshot without them is at the last entry, so
    that none of theirs is recovered.
    """
    dedup, before = topic.dedup, inactive_before(ctx)
    for name, since in registration.leave_silent(ctx, topic, before).items():
        if name not in topic.producers:  # one that waited for access may have had the same name
            dedup.producer_removed(name, since, short_form=True)
    purged = dedup.purge_inactive(before)
    if not purge_short_form(ctx, topic) and purged:
        take_snapshot(ctx, topic, topic.cursors[DEDUP_CURSOR].mark_delete)


def next_effect(ctx: Context, topic: PersistentTopic) -> int:
    """When the first inactive producer is forgotten, or the first one of the short form leaves."""
    inactive, silent = topic.dedup.inactive_since(), topic.silent_since()
    if inactive is not None and topic.dedup.status != "Enabled":
        return ctx.clock
    times = [goes_at(ctx, since) for since in (inactive, silent) if since is not None]
    return min(times, default=NEVER)
