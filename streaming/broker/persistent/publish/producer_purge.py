"""Deduplication forgets producers that are inactive for too long (mirrors `MessageDeduplication.purgeInactiveProducers`;
docs/rules/deduplication.md §13), see `streaming.broker.topic.inactive_producers`; and when it forgets which."""

from typing import Literal

import msgspec

from streaming.broker.context import NEVER, Context
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.persistent.publish.deduplication_snapshots import purge_short_form, take_snapshot
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.topic import registration
from streaming.broker.topic.inactive_producers import goes_at, inactive_before, timeout

AbsentState = Literal["inactive", "silent", "kept"]
"""Why a producer may be forgotten: it has left (``inactive``), or it is one of the short form that publishes nothing (``silent``). ``kept``: it
is neither connected nor has it left since the topic was loaded, so nothing forgets it."""


class AbsentProducer(msgspec.Struct):
    """A producer that is forgotten if it stays away. `sequence_id`: the last one that deduplication has persisted, None: none. `since`: when it
    left or published last (ms), None: not known. `due`: until when it may stay away (ms), `forgotten_at`: the check that forgets it then, if
    no command comes and the topic is still there (ms); None: none does."""

    producer: str
    state: AbsentState
    sequence_id: int | None
    since: int | None
    due: int | None
    forgotten_at: int | None = None


class AbsentProducers(msgspec.Struct):
    """Which producers of a topic are forgotten, and when, at `clock` (ms); the first one first. `minutes`:
    brokerDeduplicationProducerInactivityTimeoutMinutes; 0: off. `next_check`, `unchecked`, `sampled`: see `trimming.Retention`."""

    topic: str
    clock: int
    minutes: int
    next_check: int | None
    unchecked: str | None
    producers: list[AbsentProducer]
    sampled: bool = False


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


# -- which producers are forgotten --------------------------------------------------------------------------------------


def explain(ctx: Context, topic: PersistentTopic) -> AbsentProducers:
    """Which producers are forgotten, and when. `next_check` and `forgotten_at` are left to the caller."""
    dedup, off = topic.dedup, not timeout(ctx.config)
    since: dict[str, tuple[AbsentState, int]] = {}
    if dedup.status == "Enabled":
        for inactive in (dedup.inactive_short_form, dedup.inactive):
            since |= {
                name: ("inactive", at)
                for name, at in inactive.items()
                if name not in since or at < since[name][1]
            }
    silent = {} if topic.pending else topic.short_form.since()
    since |= {name: ("silent", at) for name, at in silent.items()}
    found = [
        AbsentProducer(
            name, state, dedup.persisted.get(name), at, None if off else max(goes_at(ctx, at), ctx.clock)
        )
        for name, (state, at) in sorted(since.items(), key=lambda each: each[1][1])
    ]
    if dedup.status == "Enabled":
        kept = [name for name in dedup.persisted if name not in since and name not in topic.producers]
        found += [AbsentProducer(name, "kept", dedup.persisted[name], None, None) for name in kept]
    return AbsentProducers(
        topic=topic.name,
        clock=ctx.clock,
        minutes=ctx.config.brokerDeduplicationProducerInactivityTimeoutMinutes,
        next_check=None,
        unchecked="brokerDeduplicationProducerInactivityTimeoutMinutes is 0" if off else None,
        producers=found,
        sampled=topic.is_sampled,
    )
