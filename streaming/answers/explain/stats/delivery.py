"""Why a subscription of a cluster gets what it gets, as far as stats show it."""

from __future__ import annotations

import re
from typing import NamedTuple

from schemas.printable import counted
from streaming.answers.explain import advice
from streaming.answers.explain.stats.observed import Observed, ShownFields
from streaming.broker.dispatch.verdict import (
    Verdict,
    ack_holes,
    delayed_entries,
    draining_hash,
    lost_chunks,
    no_backlog,
    no_consumers,
    not_active,
    permits,
    recently_joined,
    terminated,
    unacked_of_broker,
    unacked_of_consumer,
    unacked_of_subscription,
)
from streaming.broker.ledger.ack_holes import runs_of
from streaming.broker.persistent.delivery import ConsumerDetails, Delivery, EntryState, State
from streaming.broker.policies.hierarchy import DispatchRate
from streaming.broker.position import Position

SINGLE_ACTIVE = ("Exclusive", "Failover")

_HASH_RANGE = re.compile(r"\[?\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*\]?")
_THROTTLED = (
    ("subscriptionDispatchRate", "Subscription"),
    ("dispatchRate", "Topic"),
)
"""The policies of rates, and whose throttled attempts the stats count (4.0)."""


class ShownConsumer(NamedTuple):
    """A connected consumer. What is not known is None."""

    name: str
    permits: int | None
    unacked: int | None
    blocked: bool
    active: bool
    fields: ShownFields
    perhaps: bool = False
    """Whether it may be another one of the same name that is active."""

    @property
    def can_receive(self) -> bool:
        """Whether it could get an entry now."""
        return self.active and not self.blocked and (self.permits is None or self.permits > 0)


def explain_delivery(observed: Observed, name: str) -> Delivery:
    """Why a subscription gets what it gets. Raises `KeyError`."""
    sub, cursor = observed.subscriptions[name], observed.cursor(name)
    type_ = sub.text("type") or "None"
    consumers = _consumers(sub, type_)
    unacked = sub.number("unackedMessages")
    owned = sum(each.unacked or 0 for each in consumers)
    found = Delivery(
        topic=observed.topic,
        subscription=name,
        type=type_,
        clock=observed.clock,
        state="held back",
        consumers=len(consumers),
        mark_delete=None if cursor is None else cursor.position_text("markDeletePosition"),
        read_position=None if cursor is None else cursor.position_text("readPosition"),
        last_confirmed=None
        if observed.internal is None
        else observed.internal.position_text("lastConfirmedEntry"),
        backlog=max(sub.number("msgBacklog") or 0, 0),
        in_flight=None,
        delayed=sub.number("msgDelayed"),
        to_redeliver=sub.number("msgInReplay"),
        unread=observed.unread(cursor),
        sends=None,
        verdicts=[],
        first=_first(observed, cursor) if sub.number("msgBacklog") else [],
        analysis=None,
        lost=None,
        oldest=_time(sub.number("earliestMsgPublishTimeInBacklog")),
        rate_out=sub.rate("msgRateOut"),
        ack_rate=sub.rate("messageAckRate"),
        members=[_member(each) for each in consumers],
    )
    found.gone = found.backlog * _nothing_left(observed, cursor)
    _count(found, consumers, unacked)
    found.verdicts = [*_of_topic(observed, found, cursor), *_of_subscription(observed, found, sub, consumers)]
    found.state = _state(found, consumers, owned)
    reads_on = found.unread != 0 and not (found.type == "Key_Shared" and _any_blocks(found))
    if found.state == "not triggered" and found.rate_out and reads_on:
        found.state = "receiving"
    found.unknown = _unknown(observed, found, sub)
    found.to_do = advice.of_delivery(found)
    return found


def _consumers(sub: ShownFields, type_: str) -> list[ShownConsumer]:
    shown = [*sub.each("consumers")]
    active, one = sub.text("activeConsumerName"), len(shown) == 1
    named = [each.text("consumerName") == active for each in shown]
    single = type_ in SINGLE_ACTIVE
    return [
        ShownConsumer(
            each.text("consumerName") or "",
            each.number("availablePermits"),
            each.number("unackedMessages"),
            each.flag("blockedConsumerOnUnackedMsgs"),
            not single or (one and active is None) or is_active,
            each,
            single and sum(named) > 1,
        )
        for each, is_active in zip(shown, named, strict=True)
    ]


def _member(consumer: ShownConsumer) -> ConsumerDetails:
    fields = consumer.fields
    return ConsumerDetails(
        consumer.name,
        (fields.text("address") or "").lstrip("/"),
        fields.text("clientVersion") or "",
        fields.text("connectedSince"),
        _time(fields.number("lastAckedTimestamp")),
    )


def _count(found: Delivery, consumers: list[ShownConsumer], unacked: int | None) -> None:
    """How many entries consumers have, and how many nobody has. Consumers have no more entries than messages, for an entry has one at
    least; so what was read beyond these, and does not wait here, is lost, if the subscription counts more messages than they do."""
    owned = max(sum(each.unacked or 0 for each in consumers), 0)
    if found.unread is None:
        return
    read = max(found.backlog - found.unread - (found.delayed or 0) - (found.to_redeliver or 0), 0)
    if found.type in SINGLE_ACTIVE:
        found.in_flight, found.lost = read * bool(consumers), 0
        return
    found.in_flight = min(read, owned)
    if found.to_redeliver is not None and not found.rate_out:  # else the two responses may not fit together
        found.lost = read - found.in_flight if consumers and unacked is not None and unacked > owned else 0


def _first(observed: Observed, cursor: ShownFields | None) -> list[EntryState]:
    """The first entry that is not acked, as far as it can be told."""
    mark = None if cursor is None else cursor.position("markDeletePosition")
    ledgers, last = observed.ledgers, observed.last_confirmed()
    if mark is None or ledgers is None or last is None or mark >= last:
        return []
    following = Position(mark.ledger, mark.entry + 1)
    later = [ledger for ledger, (entries, _) in ledgers.items() if ledger > mark.ledger and entries]
    if following.entry >= ledgers.get(mark.ledger, (0, 0))[0]:
        if not later:
            return []
        following = Position(later[0], 0)
    if following > last:
        return []
    return [EntryState(str(following), "unacked", "the stats don't show which consumer has it")]


def _nothing_left(observed: Observed, cursor: ShownFields | None) -> bool:
    """Whether the cursor is before the last entry, but no ledger has any entry after it: they were deleted."""
    mark = None if cursor is None else cursor.position("markDeletePosition")
    last = observed.last_confirmed()
    if mark is None or last is None or observed.ledgers is None:
        return False
    return mark < last and not _first(observed, cursor)


def _of_topic(observed: Observed, found: Delivery, cursor: ShownFields | None) -> list[Verdict]:
    verdicts = []
    internal = observed.internal
    if found.consumers == 0:
        verdicts.append(no_consumers())
    if found.backlog == 0:
        verdicts.append(no_backlog())
    if internal is not None and internal.text("state") == "Terminated":
        verdicts.append(terminated(found.last_confirmed or "the last entry", at_end=found.backlog == 0))
    holes = 0 if cursor is None else len([*runs_of(cursor.text("individuallyDeletedMessages") or "")])
    if cursor is not None and holes and found.backlog and found.mark_delete is not None:
        holes = max(holes, cursor.number("totalNonContiguousDeletedMessagesRange") or 0)
        verdicts.append(ack_holes(holes, found.mark_delete, found.first[0].position if found.first else None))
    if cursor is not None and found.unread:
        reads = cursor.flag("waitingReadOp") or cursor.flag("subscriptionHavePendingRead")
        reads |= cursor.flag("subscriptionHavePendingReplayRead") or bool(cursor.number("pendingReadOps"))
        text = "a read is under way" if reads else "no read is under way"
        verdicts.append(Verdict("cursor", False, text))
    return verdicts


def _of_subscription(
    observed: Observed, found: Delivery, sub: ShownFields, consumers: list[ShownConsumer]
) -> list[Verdict]:
    verdicts = []
    if found.lost:
        verdicts.append(lost_chunks(counted(found.lost, "entry"), None))
    if found.type not in SINGLE_ACTIVE and found.consumers:
        verdicts += _unacked(observed, sub)
    if found.delayed:
        verdicts.append(delayed_entries(found.delayed, None))
    if found.to_redeliver and (replay := _replay_queue(observed, found)) is not None:
        verdicts.append(replay)
    active = next((each.name for each in consumers if each.active), None)
    if found.type in SINGLE_ACTIVE and consumers and active is None:
        verdicts.append(Verdict("active consumer", True, "no consumer is active"))
    per_consumer = observed.policy("maxUnackedMessagesPerConsumer")
    for each in consumers:
        if not each.active:
            verdicts.append(not_active(each.name, active))
            continue
        if each.permits is not None:
            one = permits(each.name, each.permits)
            unsure = each.perhaps and one.blocks and any(other.can_receive for other in consumers)
            verdicts.append(one._replace(blocks=False, sure=False) if unsure else one)
        if found.type not in SINGLE_ACTIVE and each.unacked is not None:
            limit = None if per_consumer is None else per_consumer.value
            verdicts.append(unacked_of_consumer(each.name, each.unacked, limit, blocked=each.blocked))
    verdicts += _draining(consumers)
    after = sub.positions("consumersAfterMarkDeletePosition")
    verdicts += [recently_joined(name, str(before)) for name, before in after.items()]
    if found.unread and any(each.can_receive for each in consumers):
        verdicts += _rates(observed, found, sub)
    return verdicts


def _unacked(observed: Observed, sub: ShownFields) -> list[Verdict]:
    """The limits of the subscription and of the broker: stats show one of them as the other."""
    blocked, total = sub.flag("blockedSubscriptionOnUnackedMsgs"), sub.number("unackedMessages") or 0
    policy = observed.policy("maxUnackedMessagesPerSubscription")
    limit = None if policy is None else policy.value
    of_broker = None if observed.config is None else observed.config.maxUnackedMessagesPerBroker
    on_broker = of_broker is None or of_broker > 0
    if not blocked:
        return [unacked_of_subscription(total, limit, blocked=False)]
    if not on_broker or (limit is not None and 0 < limit <= total):
        return [unacked_of_subscription(total, limit, blocked=True)]
    if limit is not None and (limit <= 0 or total < limit // 2):
        return [unacked_of_subscription(total, limit, blocked=False), unacked_of_broker(of_broker)]
    text = "the subscription or the broker has too many unacked messages, which the stats don't tell apart"
    return [
        Verdict("blockedSubscriptionOnUnackedMsgs", True, text, "new"),
        unacked_of_subscription(total, limit, blocked=True)._replace(blocks=False, sure=False),
        unacked_of_broker(of_broker)._replace(
            text=f"the broker's limit is {'not known' if of_broker is None else of_broker}",
            blocks=False,
            sure=False,
        ),
    ]


def _replay_queue(observed: Observed, found: Delivery) -> Verdict | None:
    """Whether what waits to be sent again keeps new entries from being read."""
    count = found.to_redeliver or 0
    text = f"{counted(count, 'entry')} to redeliver {'goes' if count == 1 else 'go'} first"
    if found.type != "Key_Shared":
        return Verdict("replay queue", True, text, "new")
    waiting = f"{counted(count, 'entry', 'wait')} for the consumer of {'its' if count == 1 else 'their'} key"
    classic = (
        observed.config is None or observed.config.subscriptionKeySharedUseClassicPersistentImplementation
    )
    if observed.config is None or classic:
        return Verdict("replay queue", False, waiting)
    limits = (
        observed.config.keySharedLookAheadMsgInReplayThresholdPerConsumer * found.consumers,
        observed.config.keySharedLookAheadMsgInReplayThresholdPerSubscription,
    )
    most = min((limit for limit in limits if limit > 0), default=0)
    if most and count >= most and found.unread:
        return Verdict("replay queue", True, f"{waiting}: so many that no new ones are read", "new")
    return Verdict("replay queue", False, waiting, sure=found.unread != 0)


def _draining(consumers: list[ShownConsumer]) -> list[Verdict]:
    """Key hashes that wait for the acks of the consumer that had them before (4.0)."""
    drains: dict[str, list[tuple[int, str, int, int]]] = {}
    for owner in consumers:
        for each in owner.fields.each("drainingHashes"):
            hash_, unacked = each.number("hash"), each.number("unackMsgs")
            for other in consumers if hash_ is not None else ():
                if other is not owner and hash_ is not None and _has(other.fields, hash_):
                    drain = hash_, owner.name, unacked or 0, each.number("blockedAttempts") or 0
                    drains.setdefault(other.name, []).append(drain)
    verdicts = []
    for name, found in drains.items():
        hash_, holder, unacked, attempts = max(found, key=lambda drain: drain[3])
        one = draining_hash(name, len(found), hash_, holder, counted(unacked, "message"), None)
        verdicts.append(one._replace(blocks=attempts > 0))
    return verdicts


def _has(consumer: ShownFields, hash_: int) -> bool:
    """Whether a consumer has a key hash."""
    ranges = [*consumer.list("keyHashRangeArrays")]
    texts = (each for each in consumer.list("keyHashRanges") if isinstance(each, str))
    ranges += [[int(found[1]), int(found[2])] for each in texts if (found := _HASH_RANGE.fullmatch(each))]
    return any(
        isinstance(each, list)
        and len(each) == 2
        and all(isinstance(bound, int) for bound in each)
        and each[0] <= hash_ <= each[1]
        for each in ranges
    )


def _rates(observed: Observed, found: Delivery, sub: ShownFields) -> list[Verdict]:
    """Dispatch rates that may be used up. Stats show how often they were, not what is left."""
    verdicts = []
    for name, whose in _THROTTLED:
        policy = observed.policy(name)
        own = None if observed.own is None else observed.own.subscriptionDispatchRates.get(found.subscription)
        rate: DispatchRate | None = (
            own if own is not None and whose == "Subscription" else policy and policy.value
        )
        counts = [sub.number(f"dispatchThrottled{unit}EventsBy{whose}Limit") for unit in ("Msg", "Bytes")]
        events = sum(each or 0 for each in counts)
        if (rate is None or not rate.limits) and not events:
            continue
        level = "" if policy is None or own is not None else f", {policy.level}"
        limit = "a limit that is not known" if rate is None else _shown(rate) + level
        often = f"; it was used up {events} times" if events else ""
        text = f"{limit} ({name}){often}: the stats don't show whether permits of it are left"
        verdicts.append(Verdict("dispatchRate", False, text, sure=False))
    return verdicts


def _shown(rate: DispatchRate) -> str:
    limits = [
        f"{limit} {unit}"
        for limit, unit in (
            (rate.dispatchThrottlingRateInMsg, "messages"),
            (rate.dispatchThrottlingRateInByte, "bytes"),
        )
        if limit > 0
    ]
    return f"{' and '.join(limits)} in {max(rate.ratePeriodInSecond, 1)} s"


def _state(found: Delivery, consumers: list[ShownConsumer], owned: int) -> State:
    if found.backlog == 0:
        return "caught up"
    if found.gone:
        return "deleted"
    if not consumers:
        return "no consumers"
    delayed, again = found.delayed or 0, found.to_redeliver or 0
    waiting = again > 0 or (found.unread or 0) > 0
    if found.unread is None or (found.to_redeliver is None and found.type not in SINGLE_ACTIVE):
        # An entry has a message at least, so consumers have no more entries than messages.
        waiting |= max(owned, 0) < found.backlog - delayed
    if not waiting:
        return "lost" if found.lost else "waiting for a time" if delayed else "in flight"
    blocking = [each for each in found.verdicts if each.blocks and each.decider != "chunk owner"]
    if any(each.scope == "everything" for each in blocking):
        return "held back"
    if any(each.scope == "new" and each.decider != "replay queue" for each in blocking) and not again:
        return "held back"
    if again and found.unread == 0 and any(each.decider in _OF_KEYS for each in blocking):
        return "held back"
    # What waits to be sent again may be from before a consumer joined.
    joined = (
        {each.consumer for each in blocking if each.decider == "recently joined"}
        if found.to_redeliver == 0
        else set()
    )
    if all(not each.can_receive or each.name in joined for each in consumers):
        return "held back"
    return "not triggered"


_OF_KEYS = ("draining hash", "recently joined")
"""The deciders that hold back the entries of some keys."""


def _any_blocks(found: Delivery) -> bool:
    """Whether anybody is blocked, for whose keys entries may wait."""
    return any(each.blocks for each in found.verdicts)


def _unknown(observed: Observed, found: Delivery, sub: ShownFields) -> list[str]:
    unknown = []
    if found.rate_out and observed.internal is not None and found.backlog:
        unknown.append(
            "what happened between the stats and the internal stats: it is busy, so counts may be off by that"
        )
    if sum(each.text("consumerName") == sub.text("activeConsumerName") for each in sub.each("consumers")) > 1:
        unknown.append(
            "which of the consumers of the active one's name is active: the stats show its name alone"
        )
    if found.backlog and found.consumers and found.unread is None:
        unknown.append(
            "which entries were read, and so whether entries wait to be sent: that takes the internal stats"
        )
    if found.state in ("held back", "not triggered", "receiving", "in flight") and found.type == "Key_Shared":
        of_old = bool(sub.positions("consumersAfterMarkDeletePosition"))
        if not any("drainingHashesCount" in each for each in sub.each("consumers")) and not of_old:
            unknown.append(
                "which key hashes wait for acks of another consumer: the stats of this version don't show it"
            )
    if found.state in ("held back", "not triggered", "receiving", "in flight") and (
        found.type not in SINGLE_ACTIVE and found.to_redeliver is None
    ):
        unknown.append("how many entries wait to be redelivered: the stats of this version don't show it")
    if found.state in ("held back", "not triggered", "receiving"):
        unknown.append(
            "priority levels of consumers, entry filters, and reads that failed: the stats don't show them"
        )
    return unknown


def _time(value: int | None) -> int | None:
    return value if value is not None and value > 0 else None
