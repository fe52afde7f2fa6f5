"""A persistent topic is loaded, terminated, unloaded; its policies change; a client loses its connection (mirrors
`BrokerService` and `PersistentTopic`).
"""

from schemas.effects import TOPIC_CREATED, LedgerClosed, LedgerDeleted, SubscriptionEvent, TopicEvent
from streaming.broker.context import Context
from streaming.broker.dispatch.dispatcher import retry_delay
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.names import COMPACTION_CURSOR, base_of, is_partition
from streaming.broker.persistent import leaving, rate_limits
from streaming.broker.persistent.cleanup import message_expiry
from streaming.broker.persistent.cleanup.ledger_rollover import (
    advance_cursors,
    check_rollover,
    pass_consumed_ledgers,
    rollover_due,
)
from streaming.broker.persistent.cleanup.trimming import delete_compacted, trim
from streaming.broker.persistent.compaction.compactor import LEDGER_PROPERTY, create_subscription_if_needed
from streaming.broker.persistent.publish import deduplication_snapshots
from streaming.broker.persistent.topic import SHADOW_SOURCE, Compaction, PersistentTopic
from streaming.broker.policies.hierarchy import NO_POLICIES, Policies, overlay
from streaming.broker.position import Position
from streaming.broker.rates.rate import end_of_interval
from streaming.broker.schema import schema_registry
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.topic import registration

_HASH_MIXER = 0xC6A4A7935BD1E995
_BUCKETS = 16  # up to ten consumers of a connection


def create(ctx: Context, name: str, former: int) -> PersistentTopic:
    """Create a topic. `former`: the last ledger id of the deleted topic of that name."""
    topic = empty(ctx, name, former)
    if (source := shadow_source(ctx, name)) is not None:
        topic.properties = {SHADOW_SOURCE: source}
    ctx.wake(name, rollover_due(ctx, topic))
    ctx.emit(TopicEvent(name, TOPIC_CREATED))
    topic.rates_until = end_of_interval(ctx.clock, ctx.config)
    rate_limits.apply(ctx, topic)
    deduplication_snapshots.check_status(ctx, topic)
    create_subscription_if_needed(ctx, topic)
    return topic


def empty(ctx: Context, name: str, former: int) -> PersistentTopic:
    """A topic without messages, see `create`."""
    return PersistentTopic(
        name,
        ledger=ManagedLedger.create(ctx.clock, former),
        last_active=ctx.clock,
        policies=overlay(Policies(), ctx.lasting.get(name)),
    )


def shadow_source(ctx: Context, name: str) -> str | None:
    """The source of a partition whose partitioned topic is a shadow topic: the source's partition (mirrors
    `BrokerService.fetchTopicPropertiesAsync`)."""
    if not is_partition(name, ctx.partitioned):
        return None
    whole = ctx.partitioned_topics.get(base_of(name))
    source = None if whole is None else whole.properties.get(SHADOW_SOURCE)
    return None if source is None else source + name.removeprefix(base_of(name))


def next_due(ctx: Context, topic: PersistentTopic) -> int:
    """When the first of the topic's own timers fires (ms), −1: none."""
    due = [] if topic.ledger.rollover_checked else [rollover_due(ctx, topic)]
    if topic.subscriptions:
        due += [topic.timers.first(), rate_limits.next_look(ctx, topic)]
    return min([at for at in due if at >= 0], default=-1)


def run_timers(ctx: Context, topic: PersistentTopic) -> bool:
    """Run the timers that are due, and wake the topic again for the next one. Returns False if nothing came of them."""
    happened = False
    if not topic.ledger.rollover_checked and rollover_due(ctx, topic) <= ctx.clock:
        happened = check_rollover(ctx, topic)
    for subscription in topic.timers.take(ctx.clock):
        dispatcher = subscription.dispatcher
        if dispatcher is not None and 0 <= dispatcher.due() <= ctx.clock:
            happened |= dispatcher.timer(topic.context_of(ctx, subscription))
        happened |= rate_limits.retry(ctx, topic, subscription)
        topic.timers.add(subscription)
    happened |= rate_limits.retry_in_turn(ctx, topic)
    _wake_for_next(ctx, topic)
    return happened


def resume_retries(ctx: Context, topic: PersistentTopic) -> None:
    """Something happens on the topic: entries that filters rescheduled are judged again when they are due next."""
    if topic.subscriptions and (asleep := topic.timers.take_asleep()):
        for subscription in asleep:
            assert subscription.dispatcher is not None
            subscription.dispatcher.resume_retries(subscription, ctx.clock, retry_delay(ctx.config))
            topic.timers.add(subscription)
        _wake_for_next(ctx, topic)


def _wake_for_next(ctx: Context, topic: PersistentTopic) -> None:
    if (due := next_due(ctx, topic)) >= 0:
        ctx.wake(topic.name, due)


def policies_changed(ctx: Context, topic: PersistentTopic) -> None:
    """A policy change disconnects producers that don't encrypt if it requires that (docs/rules/producers.md §18), switches
    deduplication on or off, triggers an expiry check (docs/rules/deduplication.md §2, docs/rules/ttl.md §1), and renews all permits
    of rate limits.
    """
    registration.check_encryption(ctx, topic)
    rate_limits.apply(ctx, topic)
    deduplication_snapshots.check_status(ctx, topic)
    _expire_on_update(ctx, topic)
    create_subscription_if_needed(ctx, topic)


def _expire_on_update(ctx: Context, topic: PersistentTopic) -> None:
    if not ctx.config.messageExpiryOnEachPolicyUpdate:
        before, topic.updated_ttl = topic.updated_ttl, ctx.policies_of(topic).messageTTL.value
        if topic.updated_ttl == before:
            return
    message_expiry.check(ctx, topic)


def connection_lost(ctx: Context, topic: PersistentTopic, connection: str) -> None:
    """Close everything that a connection had on the topic, producers first."""
    registration.connection_lost(ctx, topic, connection)
    lost: dict[str, list[Consumer]] = {}
    for id_, name in topic.consumer_handles.of(connection).items():
        lost.setdefault(name, []).append(topic.subscriptions[name].consumer(connection, id_))
    for name, consumers in lost.items():  # together, so that none of them gets the entries of another
        consumers.sort(key=lambda consumer: _bucket(consumer.consumer_id))
        leaving.detach(ctx, topic, topic.subscriptions[name], *consumers)


def _bucket(id_: int) -> int:
    """Where 4.0's map of a connection's consumers keeps an id. They are closed in this order."""
    mixed = id_ * _HASH_MIXER % 2**64
    return (mixed ^ mixed >> 47) * _HASH_MIXER % _BUCKETS


def terminate(ctx: Context, topic: PersistentTopic) -> None:
    """The topic accepts no more messages: close its producers, and notify the consumers that have read everything."""
    ledger = topic.ledger
    if not ledger.terminated and ledger.last_confirmed.ledger != ledger.current:
        # quirk: the end is in the open ledger, even if that is empty
        ledger.last_confirmed = Position(ledger.current, -1)
    ledger.terminated = True
    ctx.emit(TopicEvent(topic.name, "terminated"))
    for producer in list(topic.producers.values()):
        registration.disconnect(ctx, topic, producer, "topic terminated")
    _abandon_writes(topic)
    topic.fenced = False
    for subscription in topic.subscriptions.values():
        topic.context_of(ctx, subscription).check_end_of_topic()


def _abandon_writes(topic: PersistentTopic) -> None:
    """Writes under way end with their ledger, unconfirmed. Their producers are gone, so nobody is left to answer."""
    if topic.pending:
        topic.take_pending()
        topic.dedup.roll_back()
        topic.ledger.drop_unconfirmed()


def delete(ctx: Context, topic: PersistentTopic, cause: str) -> int:
    """Disconnect the topic's clients, and delete its subscriptions, its ledgers and its schema."""
    ctx.emit(TopicEvent(topic.name, f"deleted {cause}"))
    topic.fenced = True
    for subscription in topic.subscriptions.values():
        leaving.disconnect_all(ctx, topic, subscription, "topic deleted")
        leaving.part_remembered(ctx, topic, subscription)
        rate_limits.stop(ctx, topic, subscription)
        ctx.emit(SubscriptionEvent(topic.name, subscription.name, "deleted: topic deleted"))
    topic.subscriptions.clear()
    topic.cursors.clear()
    if (compacted := topic.compaction.ledger) is not None:
        delete_compacted(ctx, topic, compacted, "topic deleted")
    registration.disconnect_all(ctx, topic, "topic deleted")
    ledger = topic.ledger
    _abandon_writes(topic)
    for id_, info in ledger.ledgers.items():
        entries, size = info.entries, info.size
        if id_ == ledger.current and not entries:
            entries, size = ledger.current_entries, ledger.current_size
        ctx.entries.forget(topic.name, id_)
        if entries:
            ctx.emit(LedgerDeleted(topic.name, id_, entries, size, "topic deleted"))
    schema_registry.forget(ctx, topic.name)
    ctx.permissions.pop(topic.name, None)
    return ledger.last_id


def unload(ctx: Context, topic: PersistentTopic) -> None:
    """Close the topic cleanly: its clients are disconnected, and its cursors are written (docs/rules/cursors.md
    §11). It is loaded again when something uses it."""
    ctx.unloaded = topic.name
    ctx.emit(TopicEvent(topic.name, "unloaded"))
    topic.fenced = True
    registration.disconnect_all(ctx, topic, "topic unloaded")
    for subscription in list(topic.subscriptions.values()):
        if subscription.durable:
            leaving.disconnect_all(ctx, topic, subscription, "topic unloaded")
        else:
            leaving.delete(ctx, topic, subscription, "topic unloaded")
    for cursor in topic.cursors.values():
        cursor.persisted = None  # a clean close writes every cursor
        cursor.batches.clear()  # quirk: the metadata store does not keep partly acked batches
    ledger = topic.ledger
    _abandon_writes(topic)
    topic.fenced = False
    if ledger.current_entries and not (ledger.closed or topic.is_shadow):
        ctx.emit(
            LedgerClosed(topic.name, ledger.current, ledger.current_entries, ledger.current_size, "unload")
        )
    topic.oldest = None
    topic.updated_ttl = 0
    topic.compaction = Compaction(topic.compaction.ledger)
    counters = topic.counters
    counters.messages_in = counters.bytes_in = counters.messages_out_gone = counters.bytes_out_gone = 0
    for subscription in topic.subscriptions.values():
        rate_limits.stop(ctx, topic, subscription)
        leaving.part_remembered(ctx, topic, subscription)
        subscription.type = subscription.dispatcher = None
        subscription.end_reached = False
        subscription.messages_out = subscription.bytes_out = subscription.last_expire = 0
        subscription.last_flow = subscription.last_mark_delete_advanced = 0
        subscription.forget_dispatcher()
        subscription.expired_before_load = subscription.expired


def reopen(ctx: Context, topic: PersistentTopic) -> None:
    """Load a topic that was closed: a new ledger opens, and cursors go back to what was written
    (docs/rules/ledgers.md §3, docs/rules/cursors.md §3, docs/rules/retention.md §4)."""
    ledger = topic.ledger
    topic.last_active = ctx.clock
    if topic.is_shadow:
        ledger.reopen_source(ctx.clock)
    else:
        ledger.reopen(ctx.clock, opens_last=ctx.config.opensLedgerOfTerminated)
    ledger.configure(ctx.config)
    ctx.wake(topic.name, rollover_due(ctx, topic))
    for cursor in topic.cursors.values():
        mark_delete = cursor.mark_delete
        cursor.recover(
            ledger,
            ctx.config.managedLedgerMaxUnackedRangesToPersist,
            leaves_gone=ctx.config.trimMovesToNextLedger,
        )
        if ctx.acks is not None:
            acked = [
                Position(low.ledger, entry)
                for low, high in cursor.acked.runs()
                for entry in range(low.entry + 1, high.entry + 1)
            ]
            backlog = cursor.backlog(ledger, precise=True)
            ctx.observe_ack(
                topic.name, cursor.name, acked, mark_delete, cursor.mark_delete, backlog, recovered=True
            )
    for subscription in topic.subscriptions.values():
        if subscription.pending_acks is not None:
            subscription.pending_acks.reopen(topic.cursors[subscription.name])
    topic.subscribe_buckets.clear()
    topic.publish_rates = 0.0, 0.0
    topic.dispatch_limiter = None
    rate_limits.apply(ctx, topic)
    topic.dedup.status = "Initialized"
    deduplication_snapshots.check_status(ctx, topic)
    create_subscription_if_needed(ctx, topic)
    keys = [cursor.key for cursor in topic.cursors.values()]
    advance_cursors(ctx, topic)
    pass_consumed_ledgers(ctx, topic)
    _reopen_compacted(ctx, topic)
    # quirk: loading trims ledgers only if the slowest cursor had consumed one to its end, in 2.x if there is a cursor
    if keys and (
        not ctx.config.trimLedgerAckedToItsEnd
        or min(keys) < min(cursor.key for cursor in topic.cursors.values())
    ):
        trim(ctx, topic)
    if topic.transactions is not None:  # which are found in what is left
        topic.transactions.reopen(ledger)


def _reopen_compacted(ctx: Context, topic: PersistentTopic) -> None:
    """quirk: only a property of the compaction cursor tells which ledger has compacted data. Whatever else moved the cursor has cleared it, and
    then that data is lost."""
    compacted, cursor = topic.compaction.ledger, topic.cursors.get(COMPACTION_CURSOR)
    if compacted is None:
        return
    if cursor is None or cursor.properties.get(LEDGER_PROPERTY) != compacted.id:
        topic.compaction.ledger = None
        delete_compacted(ctx, topic, compacted, "no cursor knows it")
    else:
        compacted.horizon = cursor.mark_delete


def expire_when_loaded(ctx: Context, topic: PersistentTopic) -> None:
    """Loading a topic applies its own policies as a change of them does, so it expires messages (docs/rules/ttl.md §1)."""
    if ctx.own_policies_of(topic) != NO_POLICIES:
        _expire_on_update(ctx, topic)
