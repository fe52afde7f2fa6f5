"""Why a subscription delivers nothing: what each decider of a dispatcher says."""

from typing import Literal, NamedTuple

from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.context import SubscriptionContext

Scope = Literal["everything", "new", "consumer"]
"""What a verdict holds back: all entries, entries that were not read before, or what one consumer would get."""


class Verdict(NamedTuple):
    """What a decider says. `decider`: the name of the setting or policy if there is one; `consumer`: the name of the
    consumer that the verdict is about, or None; `until`: when the decider changes its mind by itself (ms), or None."""

    decider: str
    blocks: bool
    text: str
    scope: Scope = "everything"
    consumer: str | None = None
    until: int | None = None


class Whereabouts(NamedTuple):
    """Where an unacknowledged entry is. `consumer`: who has it, or who will get it; `until`: how long it waits (ms), if
    for a time."""

    state: Literal["in flight", "delayed", "rescheduled", "to redeliver", "unread", "read"]
    text: str
    consumer: str | None = None
    until: int | None = None


def permits_of(consumer: Consumer) -> Verdict:
    """Whether the consumer asked for more messages."""
    text = f"{consumer.permits} permits"
    if consumer.permits_while_blocked:
        text += f", and {consumer.permits_while_blocked} more once it is unblocked"
    if consumer.permits <= 0:
        text += ": its client must send FLOW, as it does when the application receives messages"
    return Verdict("permits", consumer.permits <= 0, text, "consumer", consumer.name)


def unacked_of(sub: SubscriptionContext, consumer: Consumer) -> Verdict:
    """Whether the consumer has too many unacknowledged messages."""
    limit = sub.consumer_limit
    text = f"{consumer.unacked} unacked messages, {f'the limit is {limit}' if limit else 'no limit'}"
    if consumer.blocked:
        text += (
            f"; unblocked by an ack that leaves {limit // 2} or fewer"
            if limit
            else "; unblocked by its next ack"
        )
    return Verdict("maxUnackedMessagesPerConsumer", consumer.blocked, text, "consumer", consumer.name)


def rate_of(sub: SubscriptionContext) -> list[Verdict]:
    """Whether a dispatch rate is used up. Looks for permits as a dispatcher does."""
    throttle = sub.throttle
    if throttle is None:
        return []
    waits, looks = throttle.waits(sub.ctx.clock), throttle.due
    if sub.readable(1) == 0:
        return [Verdict("dispatchRate", True, "no permits of the rate are left", until=throttle.retry_at)]
    if waits:
        text = "has permits again, for which the dispatcher looks later"
        return [Verdict("dispatchRate", False, text, until=looks if looks >= 0 else throttle.retry_at)]
    return [Verdict("dispatchRate", False, "has permits")]
