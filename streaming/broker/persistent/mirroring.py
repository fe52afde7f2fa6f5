"""MIRROR: a shadow topic takes over what the cluster shows of its source (docs/rules/ledgers.md §16).

The problem
    A cluster does not say which commands its clients send. It shows what they led to: positions, counters, who is connected. And
    what moved a subscription may have been a client, or a rule of the cluster such as TTL.

The idea
    A MIRROR says how things are, not what changed. The differences to how they are here become commands of clients, in the order in
    which they have effects: ACK, CLOSE_CONSUMER, SUBSCRIBE, FLOW, PRODUCER. So a record that is lost costs time, never truth.

    * What the source has acknowledged is acknowledged here, but not what its TTL or quota passed (`expired_to`): that is left to the
      topic's own rules, so that under another policy it stays.
    * Permits are counted from when a consumer connected. A consumer that was sent 100 messages and has permits for 10 asked for 110;
      what is missing to that comes as a FLOW, and the dispatcher sends as the source's did.
    * What the topic has passed and the source has not is left alone: its own quotas may have acted a little earlier. Who reset a
      subscription shows by a position that went back on the source, and the record says so (`reset`).

    What differs afterwards is the drift. A row tells of it, and of what explains it, when it changes. A record that says so (`resync`)
    puts right what differs for long: so the log shows where the twin did not find out by itself.
"""

from collections.abc import Callable, Iterator

import msgspec

from schemas import commands as c
from schemas.effect_fields import MirrorDriftFields
from schemas.effects import CursorMoved, MirrorDrift, Unsupported
from streaming.broker.context import Context
from streaming.broker.errors import BrokerError
from streaming.broker.ledger.ack_holes import AckHoles
from streaming.broker.ledger.cursor_writes import change_cursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.persistent import leaving, seeking, subscribing
from streaming.broker.persistent.cleanup import backlog_quota, message_expiry
from streaming.broker.persistent.cleanup.trimming import free_ledgers, trim_after_source
from streaming.broker.persistent.publish import shadow
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import Drift, Mirrored, MirroredCursor, PersistentTopic, Reason
from streaming.broker.position import EARLIEST, Position
from streaming.broker.subscription.consumer import MAX_PERMITS
from streaming.broker.topic.topic_commands import TopicCommand

SEEN_FIRST = "created on the source"
"""The cause of a new subscription's first move: to where it was when it was seen first."""
_RESET, _RESYNCHRONIZED = "reset on the source", "resynchronized with the source"

Carry = Callable[[Context, PersistentTopic, TopicCommand], None]


def handle_mirror(ctx: Context, topic: PersistentTopic, command: c.Mirror, carry_out: Carry) -> None:
    """Take over what a record shows. `carry_out`: what the topic does with a client's command."""
    if not topic.is_shadow:
        ctx.emit(Unsupported(topic.name, command.connection, "MIRROR of a topic that is not a shadow topic"))
        return
    shadow.follow(ctx, topic, min(command.ledger_id, shadow.LARGEST_LEDGER))
    # First the new subscriptions, then what may delete ledgers: until it knew them, the topic kept what they may need.
    new = list(_create(ctx, topic, command))
    before, topic.mirrored.seen = topic.mirrored.seen, max(topic.mirrored.seen, ctx.recorded)
    if not before:
        topic.last_active = ctx.clock  # who used it before is not known
    for subscription in [each for each in topic.subscriptions.values() if each.durable]:
        if subscription.name not in command.subscriptions:
            leaving.delete(ctx, topic, subscription, "deleted on the source")
    for name, seen in command.subscriptions.items():
        if name in topic.subscriptions:
            _take_over(ctx, topic, name, seen, carry_out, None if name in new else _RESET)
    _take_over_producers(ctx, topic, command.producers, carry_out)
    _forget(topic, command)
    trim_after_source(ctx, topic, min(command.first_ledger, topic.ledger.current), before)
    _compare(ctx, topic, command, carry_out)


def _forget(topic: PersistentTopic, command: c.Mirror) -> None:
    """Keep nothing of subscriptions and consumers that are gone, whatever made them go."""
    mirrored = topic.mirrored
    there = {each.connection for seen in command.subscriptions.values() for each in seen.consumers}
    for connection in mirrored.bases.keys() - there:
        del mirrored.bases[connection]
    for name in mirrored.subscriptions.keys() - topic.subscriptions.keys():
        del mirrored.subscriptions[name]


# -- subscriptions ------------------------------------------------------------------------------------------------


def _create(ctx: Context, topic: PersistentTopic, command: c.Mirror) -> Iterator[str]:
    """Create the subscriptions that are not here yet, each where it is on the source. Gives their names."""
    for name in [each for each in command.subscriptions if each not in topic.subscriptions]:
        try:
            subscription = subscribing.create(ctx, topic, name, earliest=True)
        except BrokerError as error:
            ctx.emit(Unsupported(topic.name, command.connection, f"subscription {name!r}: {error.cause}"))
            continue
        topic.mirrored.subscriptions.pop(name, None)  # of an earlier one
        target = Position(*command.subscriptions[name].mark_delete)
        if topic.ledger.next_valid(target) != topic.ledger.next_valid(topic.cursors[name].mark_delete):
            seeking.reset(ctx, topic, subscription, target.next(), SEEN_FIRST)
        yield name


def _take_over(
    ctx: Context,
    topic: PersistentTopic,
    name: str,
    seen: c.MirroredSubscription,
    carry_out: Carry,
    why: str | None,
) -> None:
    """`why` it is reset, if it is. None: it is where it is there."""
    subscription = topic.subscriptions[name]
    mirrored = topic.mirrored.subscriptions.setdefault(name, MirroredCursor())
    if seen.reset and why is not None:
        seeking.reset(ctx, topic, subscription, Position(*seen.mark_delete).next(), why)
        mirrored.expired_to = EARLIEST
    if seen.expired_to is not None:
        mirrored.expired_to = to = max(mirrored.expired_to, Position(*seen.expired_to))
        if topic.follows_source(ctx):  # or else its own rules act when they are due
            message_expiry.check_after_source(ctx, topic, name, to)
            if topic.cursors[name].mark_delete < to:
                backlog_quota.check(ctx, topic)
            if topic.cursors[name].mark_delete < (to := min(to, topic.ledger.last_confirmed)):
                message_expiry.expire_to_position(
                    ctx, topic, [name], to, Reason(CursorMoved, "passed on the source")
                )
    there = {each.connection for each in seen.consumers}
    for consumer in [each for each in subscription.consumers if each.connection not in there]:
        leaving.detach(ctx, topic, subscription, consumer)
    acked = list(_acknowledged(topic, subscription, seen, mirrored.expired_to))
    if acked:
        _acknowledge(ctx, topic, subscription, acked, carry_out)
    for each in seen.consumers:
        _take_over_consumer(ctx, topic, subscription, seen, each, carry_out)


def _acknowledged(
    topic: PersistentTopic,
    subscription: PersistentSubscription,
    seen: c.MirroredSubscription,
    expired_to: Position,
) -> Iterator[Position]:
    """The entries that the source has acknowledged and the topic has not, ascending."""
    ledger, cursor = topic.ledger, topic.cursors[subscription.name]
    start = cursor.mark_delete if expired_to <= cursor.mark_delete else expired_to
    ranges = [(EARLIEST, Position(*seen.mark_delete))]
    ranges += [(Position(low, first), Position(high, last)) for low, first, high, last in seen.acknowledged]
    bits: dict[int, int] = {}
    for low, high in _apart(ranges):
        for id_, first, end in _within(ledger, max(low, start), high):
            bits[id_] = bits.get(id_, 0) | (1 << end) - (1 << first)
    for id_, found in bits.items():
        bits[id_] = found & ~cursor.acked.ledgers.get(id_, 0)
    holes = AckHoles({id_: found for id_, found in bits.items() if found})
    for low, high in holes.runs():
        for entry in range(low.entry + 1, high.entry + 1):
            yield Position(low.ledger, entry)


def _apart(ranges: list[tuple[Position, Position]]) -> Iterator[tuple[Position, Position]]:
    """The same ranges, but so that no two have an entry in common. So each ledger is looked at as often as it has ranges."""
    end = EARLIEST
    for low, high in sorted(ranges):
        if high > end:
            yield max(low, end), high
            end = high


def _within(ledger: ManagedLedger, low: Position, high: Position) -> Iterator[tuple[int, int, int]]:
    """The stored entries after `low` up to `high`: of each ledger its id, the first entry, and the one after the last."""
    last = ledger.last_confirmed
    id_: int | None = low.ledger if low.ledger in ledger.ledgers else ledger.next_ledger(low.ledger)
    while id_ is not None and id_ <= min(high.ledger, last.ledger):
        first = low.entry + 1 if id_ == low.ledger else 0
        end = last.entry + 1 if id_ == last.ledger else ledger.ledgers[id_].entries
        if id_ == high.ledger:
            end = min(end, high.entry + 1)
        if first < end:
            yield id_, first, end
        id_ = ledger.next_ledger(id_)


def _acknowledge(
    ctx: Context,
    topic: PersistentTopic,
    subscription: PersistentSubscription,
    acked: list[Position],
    carry_out: Carry,
) -> None:
    if subscription.consumers:
        consumer = subscription.consumers[0]
        ids = [c.MessageIdData(*position) for position in acked]
        carry_out(ctx, topic, c.Ack(connection=consumer.connection, consumer_id=consumer.consumer_id, ack_type="Individual", message_id=ids))  # fmt: skip
        return
    # Its consumers came and went since the record before.
    cursor, ledger = topic.cursors[subscription.name], topic.ledger
    mark_delete, consumed = cursor.mark_delete, cursor.consumed
    backlog = 0 if ctx.acks is None else cursor.backlog(ledger, precise=True)
    former = change_cursor(ctx, ctx.policies_of(topic), cursor, cursor.acknowledge_all, ledger, acked)
    subscription.acked += cursor.consumed - consumed
    if ctx.acks is not None:
        ctx.observe_ack(topic.name, subscription.name, acked, mark_delete, cursor.mark_delete, backlog)
    if cursor.mark_delete != mark_delete:
        subscription.last_mark_delete_advanced = ctx.clock
        subscription.mark_delete_moved(topic.context_of(ctx, subscription))
    free_ledgers(ctx, topic, cursor, former)


def _take_over_consumer(
    ctx: Context,
    topic: PersistentTopic,
    subscription: PersistentSubscription,
    of: c.MirroredSubscription,
    seen: c.MirroredConsumer,
    carry_out: Carry,
) -> None:
    """Connect a consumer, and let it ask for what it has asked the source for."""
    bases = topic.mirrored.bases
    if topic.consumer_handles.get(seen.connection, 0) != subscription.name:
        if of.type is None:
            return
        meta = c.KeySharedMeta(keySharedMode="AUTO_SPLIT", allowOutOfOrderDelivery=of.out_of_order)
        carry_out(
            ctx,
            topic,
            c.Subscribe(
                connection=seen.connection, subscription=subscription.name, subType=of.type, consumer_id=0, request_id=0,
                consumer_name=seen.name or None, keySharedMeta=meta if of.type == "Key_Shared" else None,
            ),
        )  # fmt: skip
        if topic.consumer_handles.get(seen.connection, 0) != subscription.name:
            return  # refused, as a row says
        bases[seen.connection] = seen.sent - seen.held
    consumer = subscription.consumer(seen.connection, 0)
    had = consumer.messages_out + consumer.permits + consumer.permits_while_blocked
    missing = seen.sent + seen.permits - bases.get(seen.connection, 0) - had
    missing = min(missing, MAX_PERMITS - max(consumer.permits, 0) - consumer.permits_while_blocked)
    if missing > 0:
        carry_out(ctx, topic, c.Flow(connection=seen.connection, consumer_id=0, messagePermits=missing))


def _take_over_producers(
    ctx: Context, topic: PersistentTopic, seen: list[c.MirroredProducer], carry_out: Carry
) -> None:
    """Let in who produces on the source, which closes those that don't encrypt where they must: its stats don't say who does."""
    there = {each.connection for each in seen}
    for producer in list(topic.producers.values()):
        if producer.producer_id is not None and producer.connection not in there:
            carry_out(ctx, topic, c.CloseProducer(connection=producer.connection, producer_id=producer.producer_id, request_id=0))  # fmt: skip
    for each in seen:
        if topic.producer_handles.get(each.connection, 0) is None:
            carry_out(
                ctx,
                topic,
                c.Producer(
                    connection=each.connection, producer_id=0, request_id=0, producer_name=each.name,
                    user_provided_producer_name=True, producer_access_mode=each.access_mode, encrypted=True,
                ),
            )  # fmt: skip


# -- comparison ---------------------------------------------------------------------------------------------------


_PATIENCE = 120_000
"""How long a subscription may differ from that on the source (ms), twice the interval at which brokers check quotas by default, before a
MIRROR that resynchronizes puts it where it is there."""

EQUAL = "equal to the source"
_MISSED, _RACE, _RULE, _UNKNOWN = "missed interval", "race", "rule unknown", "unknown"
"""What the causes of a drift begin with."""


def _compare(ctx: Context, topic: PersistentTopic, command: c.Mirror, carry_out: Carry) -> None:
    ledger, mirrored = topic.ledger, topic.mirrored
    last = Position(*command.last_confirmed)
    awaited = last.entry >= 0 and last.ledger >= command.first_ledger and ledger.last_confirmed < last
    if awaited or command.ledger_id < 0:
        return  # entries are on their way, or it is unknown which there are
    stored = Drift(ledger.number_of_entries - command.entries, 0, ledger.total_size - command.size)
    _note(ctx, topic, None, mirrored, stored, command)
    for name, seen in command.subscriptions.items():
        if name not in topic.subscriptions:
            continue
        state, now = mirrored.subscriptions[name], _drift_of(topic, name, seen)
        if _is_elsewhere(now):
            state.since = state.since or ctx.recorded
            lasts = ctx.recorded - state.since >= _PATIENCE
            if command.resync and lasts and topic.follows_source(ctx):
                _resynchronize(ctx, topic, name, seen, carry_out)
                now = _drift_of(topic, name, seen)
        if not _is_elsewhere(now):
            state.since = 0
        _note(ctx, topic, name, state, now, command)


def _is_elsewhere(drift: Drift) -> bool:
    """Whether a subscription is not where it is on the source."""
    return bool(drift.entries or drift.size)


def _drift_of(topic: PersistentTopic, name: str, seen: c.MirroredSubscription) -> Drift:
    ledger, cursor = topic.ledger, topic.cursors[name]
    backlog = cursor.backlog(ledger, precise=True)
    unacked = sum(consumer.unacked for consumer in topic.subscriptions[name].consumers)
    here, there, last = cursor.mark_delete, Position(*seen.mark_delete), ledger.last_confirmed
    behind = ledger.stored(here, min(there, last)) - ledger.stored(there, min(here, last))
    return Drift(backlog - seen.backlog, unacked - seen.unacked, behind)


def _note(
    ctx: Context,
    topic: PersistentTopic,
    name: str | None,
    state: Mirrored | MirroredCursor,
    now: Drift,
    command: c.Mirror,
) -> None:
    """Note the drift of a subscription, or of the topic (None), and tell of it if it is new."""
    if now == state.drift:
        return
    cause = _why(ctx, topic, name, now, command)
    state.drift, state.cause = now, "" if now == Drift() else cause
    size, fields = (now.size, None) if name is None else (0, MirrorDriftFields(mark_delete=now.size))
    ctx.emit(MirrorDrift(topic.name, name, now.entries, now.messages, size, cause, fields))


def _why(ctx: Context, topic: PersistentTopic, name: str | None, drift: Drift, command: c.Mirror) -> str:
    """What explains a drift of a subscription, or of the topic (None): what shows it, the surest first, or else what differs."""
    if drift == Drift():
        return EQUAL
    if (rule := _other_rule(ctx, topic, name, drift)) is not None:
        return f"{_RULE}: {rule}"
    if command.late:
        gap = f" {(ctx.recorded - command.since) // 1000} s before" if command.since else ""
        return f"{_MISSED}: the source was last seen{gap}, {command.late // 1000} s longer ago than planned"
    if not command.resync and (command.moving or (name is not None and command.subscriptions[name].moving)):
        return f"{_RACE}: the source moved while it was looked at"
    if name is not None and drift.entries < 0 and topic.subscriptions[name].evicted:
        return f"{_RACE}: a backlog quota acted here that has yet to act on the source"
    if command.unknown:
        return f"{_RULE}: the mirror could not read {', '.join(command.unknown)}"
    return f"{_UNKNOWN}: {_what(name, drift)}"


def _other_rule(ctx: Context, topic: PersistentTopic, name: str | None, drift: Drift) -> str | None:
    """What shows that a rule made the difference which the topic does not have, or that the source does not have."""
    if (
        name is not None
        and (to := topic.mirrored.subscriptions[name].expired_to) > topic.cursors[name].mark_delete
    ):
        return f"one of the source passed entries up to {to}, and none here did"
    if (name is None or _is_elsewhere(drift)) and not topic.follows_source(ctx):
        return "the topic has rules of its own here (shadowTopicFollowsSource)"
    return None


def _what(name: str | None, drift: Drift) -> str:
    """What differs, in words."""
    if name is None and not drift.entries:
        return "as many entries are stored as on the source, with another size"
    if name is None:
        return (
            "more is stored than on the source" if drift.entries > 0 else "less is stored than on the source"
        )
    if drift.entries > 0:
        return "the source has passed entries that are unacknowledged here"
    if drift.entries < 0:
        return "entries were passed here that the source still has"
    if drift.size:
        return "other entries were passed than on the source"
    return "consumers hold other messages: redeliveries on the source can't be seen"


def _resynchronize(
    ctx: Context, topic: PersistentTopic, name: str, seen: c.MirroredSubscription, carry_out: Carry
) -> None:
    """Put the subscription where it is on the source."""
    topic.mirrored.subscriptions[name].expired_to = EARLIEST
    shown = msgspec.structs.replace(seen, reset=True, expired_to=None)
    _take_over(ctx, topic, name, shown, carry_out, _RESYNCHRONIZED)
