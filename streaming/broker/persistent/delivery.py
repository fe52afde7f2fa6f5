"""What a subscription's entries wait for. The dispatchers say what decides, and dispatching itself says what would be sent."""

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Any, Literal

import msgspec

from schemas.effects import Message
from schemas.printable import counted
from streaming.broker.context import Context
from streaming.broker.dispatch.verdict import (
    Verdict,
    Whereabouts,
    ack_holes,
    left_by_reader,
    no_backlog,
    no_consumers,
    terminated,
)
from streaming.broker.ledger.ack_set import to_bits
from streaming.broker.persistent.cleanup.backlog_analysis import analyze, unacked_positions
from streaming.broker.persistent.lost_chunks import of_chunks
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position
from streaming.broker.subscription.context import SubscriptionContext
from streaming.broker.transactions.transaction_buffer import TransactionBuffer

State = Literal[
    "caught up",
    "no consumers",
    "in flight",
    "waiting for a time",
    "held back",
    "lost",
    "receiving",
    "not triggered",
    "deleted",
]
"""``deleted``: all that its backlog counts. ``lost``: nobody gets some chunks, see `streaming.broker.persistent.lost_chunks`, and the other entries are in flight or wait for a time. ``receiving``: by its
rates, of a cluster's stats only. ``not triggered``: nothing holds the entries back, but Pulsar dispatches only with the next event,
such as a message."""

OPEN_TRANSACTION = "open transaction"
"""Decides how far consumers may read."""

Show = Literal["backlog", "inflight", "delayed", "holes"]


class EntryState(msgspec.Struct):
    """Where an entry is, for one subscription. `messages_acked`: of a batch of which not all are. `until`: how long it
    waits (ms), if for a time."""

    position: str
    state: str
    text: str
    consumer: str | None = None
    messages_acked: int | None = None
    until: int | None = None


class ConsumerDetails(msgspec.Struct):
    """A consumer of a cluster: where it is, what its client is, since when it is connected (ISO 8601), and when it acked last (ms, None:
    never, or not known)."""

    name: str
    address: str
    client: str
    since: str | None
    last_acked: int | None


class Delivery(msgspec.Struct):
    """Why a subscription gets what it gets, at `clock` (ms). Counts are in entries. Of a cluster's stats, None is what they don't
    show.

    `delayed`: those that wait for a delivery time, or that an entry filter rescheduled. `lost`: those that no consumer has and that
    wait for nothing that comes by itself: chunks that nobody can take. `sends`: how many entries dispatching again would send. `first`: the first entry that is unacknowledged, and
    the first one that waits to be sent. `analysis`: what analyzeBacklog of the admin API answers. `gone`: those that the backlog counts,
    although their ledgers were deleted before the subscription began (docs/rules/cursors.md §2).

    Of a cluster's stats only: `oldest`, the publish time of the first unacknowledged message (ms); `rate_out` and `ack_rate`,
    messages per second in the last interval; `members`, the consumers; `unknown`: what can't be concluded, and why. `to_do`: what to do about it. `sampled`: see
    `PersistentTopic.is_sampled`.
    """

    topic: str
    subscription: str
    type: str
    clock: int
    state: State
    consumers: int
    mark_delete: str | None
    read_position: str | None
    last_confirmed: str | None
    backlog: int
    in_flight: int | None
    delayed: int | None
    to_redeliver: int | None
    unread: int | None
    sends: int | None
    verdicts: list[Verdict]
    first: list[EntryState]
    analysis: dict[str, Any] | None
    lost: int | None = 0
    oldest: int | None = None
    rate_out: float | None = None
    ack_rate: float | None = None
    members: list[ConsumerDetails] = []
    unknown: list[str] = []
    to_do: list[str] = []
    sampled: bool = False
    gone: int | None = 0


def explain_delivery(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> Delivery:
    """What holds a subscription's entries back. It dispatches to find out, so give it a copy of the state.

    Reads as many entries as dispatching does, and subscriptionBacklogScanMaxEntries for the analysis.
    """
    cursor, ledger, dispatcher = topic.cursors[subscription.name], topic.ledger, subscription.dispatcher
    sub = topic.context_of(ctx, subscription)
    analysis = analyze(ctx, topic, subscription, None)
    backlog, unread = cursor.backlog(ledger, precise=True), cursor.entries_to_read(ledger)
    if (
        cursor.reads_compacted
    ):  # which may have acknowledged entries of deleted ledgers: these count for the others then
        backlog = max(backlog, analysis["entries"])
    in_flight = {
        position
        for consumer in subscription.consumers
        for position in consumer.pending
        if position > cursor.mark_delete and position not in cursor.acked
    }
    delayed = 0 if dispatcher is None else dispatcher.waiting_for_time(cursor)
    to_redeliver = 0 if dispatcher is None else dispatcher.entries_to_redeliver
    lost = _lost(sub)
    stuck = [] if dispatcher is None or not sub.consumers else dispatcher.stuck_chunks(sub)
    verdicts = [*_of_topic(topic, sub), *of_chunks(sub, lost, stuck)]
    put_off = subscription.throttle
    if sub.throttle is None and put_off is not None and put_off.waits(ctx.clock):
        text = f"the last command had {ctx.config.maxEffectsPerCommand} effects: what follows is read when the clock has passed it"
        verdicts.append(Verdict("maxEffectsPerCommand", True, text, "new", until=put_off.retry_at))
    if dispatcher is not None:
        verdicts += dispatcher.verdicts(sub)
    gone = 0 if analysis["aborted"] else max(backlog - analysis["entries"], 0)
    found = Delivery(
        topic=topic.name,
        sampled=topic.is_sampled,
        subscription=subscription.name,
        type=subscription.type or "None",
        clock=ctx.clock,
        state="held back",
        consumers=len(subscription.consumers),
        mark_delete=str(cursor.mark_delete),
        read_position=str(cursor.read_position),
        last_confirmed=str(ledger.last_confirmed),
        backlog=backlog,
        in_flight=len(in_flight)
        or max(backlog - gone - unread - delayed - to_redeliver - len(lost), 0)
        * bool(subscription.consumers),
        delayed=delayed,
        to_redeliver=to_redeliver - len(stuck),
        unread=unread,
        sends=0,
        verdicts=verdicts,
        first=_first(sub),
        analysis=analysis,
        lost=len(lost) + len(stuck),
        gone=gone,
    )
    before = cursor.read_position
    found.sends = _sends(ctx, sub)
    found.state = _state(found, reads=cursor.read_position > before)
    return found


def _of_topic(topic: PersistentTopic, sub: SubscriptionContext) -> Iterator[Verdict]:
    """What concerns all subscriptions of a topic, and the cursor."""
    if topic.fenced:
        yield Verdict(
            "fenced",
            False,
            "the topic is fenced after a failed write: it takes no messages, but delivers those it has",
        )
    if topic.pending:
        text = f"{counted(len(topic.pending), 'message')} received: not delivered before their writes are confirmed"
        yield Verdict("unconfirmed writes", True, text, "new")
    if topic.transactions is not None and topic.transactions.ongoing:
        yield _open_transactions(topic.transactions, sub)
    pending = sub.subscription.pending_acks
    if pending is not None and (acked := pending.held):
        text = f"{counted(acked, 'entry')} acked in open transactions: not sent again before these end"
        yield Verdict("pending acks", False, text)
    if not sub.consumers:
        yield no_consumers() if sub.cursor.durable else left_by_reader()
    caught_up = sub.cursor.backlog(sub.ledger, precise=True) == 0
    if caught_up:
        yield no_backlog()
    if sub.ledger.terminated:
        yield terminated(str(sub.ledger.last_confirmed), at_end=caught_up)
    first = next(unacked_positions(sub.ledger, sub.cursor), None)
    if first is not None and (ranges := sub.cursor.acked.count_runs()):
        yield ack_holes(ranges, str(sub.cursor.mark_delete), str(first[0]))
    if first is not None and (stored := sub.cursor.batches.get(first[0])) is not None:
        left = to_bits(stored).bit_count()
        text = f"{counted(left, 'message')} of the batch {first[0]} {'is' if left == 1 else 'are'} not acked, so the mark-delete position stays before it"
        yield Verdict("batch", False, text)


def _open_transactions(transactions: TransactionBuffer, sub: SubscriptionContext) -> Verdict:
    """What the transaction that has been open for longest holds back."""
    txn, first = next(iter(transactions.ongoing.items()))
    behind = sub.ledger.count(first, sub.ledger.last_confirmed, include_start=True, include_end=True)
    text = f"transaction {txn} is open since {first}: {counted(behind, 'entry')} from there on are not read before it ends"
    if (others := len(transactions.ongoing) - 1) > 0:
        text += f", or before {counted(others, 'other')} that began behind it"
    return Verdict(OPEN_TRANSACTION, True, text, "new")


def _lost(sub: SubscriptionContext) -> list[Position]:
    """The entries that were read, that no consumer has, and that wait for nothing. Looks at so many entries at
    most as an analysis of the backlog does."""
    dispatcher = sub.subscription.dispatcher if isinstance(sub.subscription, PersistentSubscription) else None
    known = None if dispatcher is None or not sub.consumers else dispatcher.accounted_for(sub)
    if known is None:
        return []
    read = takewhile(
        lambda position: position < sub.cursor.read_position,
        (position for position, _ in unacked_positions(sub.ledger, sub.cursor)),
    )
    most, pending = sub.ctx.config.subscriptionBacklogScanMaxEntries, sub.subscription.pending_acks
    return [
        position
        for position in islice(read, most)
        if position not in known and (pending is None or pending.left_to_send(sub.cursor, position) is None)
    ]


def _sends(ctx: Context, sub: SubscriptionContext) -> int:
    """How many entries would be sent if the dispatcher looked again now."""
    dispatcher = sub.subscription.dispatcher if isinstance(sub.subscription, PersistentSubscription) else None
    if dispatcher is None:
        return 0
    ctx.take()
    dispatcher.retry(sub)
    return sum(isinstance(row.effect, Message) for row in ctx.take())


def _state(found: Delivery, *, reads: bool) -> State:
    """`reads`: the dispatcher would read on, though perhaps only what waits for its delivery time."""
    if found.backlog == 0:
        return "caught up"
    if found.gone == found.backlog:
        return "deleted"
    if found.consumers == 0:
        return "no consumers"
    if found.sends or reads:
        return "not triggered"
    if found.unread or found.to_redeliver:
        return "held back"
    if found.lost:
        return "lost"
    return "waiting for a time" if found.delayed else "in flight"


def _first(sub: SubscriptionContext) -> list[EntryState]:
    """The first unacknowledged entry, and the first of those after it that no consumer has. Looks at so many entries at most
    as an analysis of the backlog does."""
    found: list[EntryState] = []
    most = sub.ctx.config.subscriptionBacklogScanMaxEntries
    for position, _ in islice(unacked_positions(sub.ledger, sub.cursor), most):
        each = entry_state(sub, position)
        if not found or each.state != "in flight":
            found.append(each)
        if each.state != "in flight":
            break
    return found


def entry_state(sub: SubscriptionContext, position: Position) -> EntryState:
    """Where an entry is for a subscription, also if it is acknowledged, deleted, or was never written."""
    cursor, ledger = sub.cursor, sub.ledger
    if position > ledger.last_confirmed:
        return EntryState(
            str(position), "not written", f"the last confirmed entry is {ledger.last_confirmed}"
        )
    if position <= cursor.mark_delete:
        return EntryState(
            str(position), "passed", f"at or before the mark-delete position {cursor.mark_delete}"
        )
    if position in cursor.acked:
        text = f"acked out of order: above the mark-delete position {cursor.mark_delete}"
        return EntryState(str(position), "acked", text)
    if not ledger.valid(position):
        if position.ledger not in ledger.ledgers:
            return EntryState(str(position), "deleted", "its ledger was deleted")
        return EntryState(str(position), "not written", f"ledger {position.ledger} was closed before it")
    pending = sub.subscription.pending_acks
    if pending is not None and pending.left_to_send(cursor, position) == 0:
        text = "acked in a transaction that is open: not sent again before it ends"
        return EntryState(str(position), "pending ack", text)
    if ledger.max_read is not None and position > ledger.max_read and position >= cursor.read_position:
        return EntryState(
            str(position), "unread", f"behind an open transaction: nothing behind {ledger.max_read} is read"
        )
    found = (
        sub.subscription.dispatcher.whereabouts(sub, position)
        if isinstance(sub.subscription, PersistentSubscription) and sub.subscription.dispatcher is not None
        else Whereabouts("unread", "not read yet")
    )
    stored, acked = cursor.batches.get(position), None
    if stored is not None:
        messages = sub.ctx.entries.get(sub.topic, position).messages
        acked = messages - to_bits(stored).bit_count()
    return EntryState(str(position), found.state, found.text, found.consumer, acked, found.until)


def entries(sub: SubscriptionContext, show: Show, most: int) -> list[EntryState]:
    """The first entries of a subscription's backlog, those that consumers have, those that wait for a time, or the acked ones
    above the mark-delete position. For `inflight` and `delayed`, it looks at the whole backlog."""
    cursor, ledger = sub.cursor, sub.ledger
    if show == "holes":
        acked = (
            Position(low.ledger, entry)
            for low, high in cursor.acked.runs()
            for entry in range(low.entry + 1, high.entry + 1)
        )
        return [entry_state(sub, position) for position in islice(acked, most)]
    found = (entry_state(sub, position) for position, _ in unacked_positions(ledger, cursor))
    if show != "backlog":
        wanted = ("in flight",) if show == "inflight" else ("delayed", "rescheduled")
        found = (each for each in found if each.state in wanted)
    return list(islice(found, most))
