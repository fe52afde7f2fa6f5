"""Why a subscription delivers nothing: what each decider of a dispatcher says."""

from typing import Literal, NamedTuple

from schemas.printable import counted
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.context import SubscriptionContext

Scope = Literal["everything", "new", "consumer"]
"""What a verdict holds back: all entries, entries that were not read before, or what one consumer would get."""


class Verdict(NamedTuple):
    """What a decider says. `decider`: the name of the setting or policy if there is one; `consumer`: the name of the
    consumer that the verdict is about, or None; `until`: when the decider changes its mind by itself (ms), or None. `sure`: false
    if a cluster's stats don't show whether it blocks."""

    decider: str
    blocks: bool
    text: str
    scope: Scope = "everything"
    consumer: str | None = None
    until: int | None = None
    sure: bool = True


class Whereabouts(NamedTuple):
    """Where an unacknowledged entry is. `consumer`: who has it, or who will get it; `until`: how long it waits (ms), if
    for a time."""

    state: Literal["in flight", "delayed", "rescheduled", "to redeliver", "unread", "read"]
    text: str
    consumer: str | None = None
    until: int | None = None


def permits_of(consumer: Consumer) -> Verdict:
    """Whether the consumer asked for more messages."""
    return permits(consumer.name, consumer.permits, consumer.permits_while_blocked)


def permits(name: str, count: int, while_blocked: int = 0) -> Verdict:
    """Whether a consumer with so many permits asked for more messages. `while_blocked`: what it asked for while it was blocked."""
    text = f"{count} permits"
    if while_blocked:
        text += f", and {while_blocked} more once it is unblocked"
    if count <= 0:
        text += ": its client must send FLOW, as it does when the application receives messages"
    return Verdict("permits", count <= 0, text, "consumer", name)


def unacked_of(sub: SubscriptionContext, consumer: Consumer, *, strict: bool) -> Verdict:
    """Whether the consumer has too many unacknowledged messages. Without `strict`, a limit that was lowered to what it has blocks it only
    from its next flow on; with it, there is no room before, either."""
    limit = sub.consumer_limit
    found = unacked_of_consumer(consumer.name, consumer.unacked, limit, blocked=consumer.blocked)
    if not strict or found.blocks or not 0 < limit <= consumer.unacked:
        return found
    return found._replace(blocks=True, text=f"{found.text}; there is room after an ack that leaves fewer")


def unacked_of_consumer(name: str, unacked: int, limit: int | None, *, blocked: bool) -> Verdict:
    """Whether a consumer has too many unacknowledged messages. `limit`: 0 for none, None if it is not known."""
    text = f"{unacked} unacked messages, {_limited(limit)}"
    if blocked and limit is not None:
        text += (
            f"; unblocked by an ack that leaves {limit // 2} or fewer"
            if limit
            else "; unblocked by its next ack"
        )
    return Verdict("maxUnackedMessagesPerConsumer", blocked, text, "consumer", name)


def unacked_of_subscription(unacked: int, limit: int | None, *, blocked: bool) -> Verdict:
    """Whether a subscription has too many unacknowledged messages. `limit`: 0 or negative for none, None if it is not known."""
    text = f"{unacked} unacked messages, {_limited(limit)}"
    if blocked and limit is not None:
        text += f"; {_released_below(limit)}"
    return Verdict("maxUnackedMessagesPerSubscription", blocked, text, "new")


def unacked_of_broker(limit: int | None) -> Verdict:
    """The broker has too many unacknowledged messages. `limit`: None if it is not known."""
    text = f"the broker has reached its limit of {'' if limit is None else f'{limit} '}unacked messages"
    if limit is not None and limit // 2 == 0:
        text += f"; {_released_below(limit)}"
    return Verdict("maxUnackedMessagesPerBroker", True, text, "new")


def _limited(limit: int | None) -> str:
    if limit is None:
        return "the limit is not known"
    return f"the limit is {limit}" if limit > 0 else "no limit"


def _released_below(limit: int) -> str:
    """When new entries are sent again: below half of the limit."""
    if limit > 0 and limit // 2 == 0:
        return f"a limit of {limit} never unblocks, for that takes fewer unacked messages than half of it, rounded down to 0"
    return f"new entries wait until there are fewer than {limit // 2}"


def delayed_entries(entries: int, first: int | None, *, pauses: bool = False) -> Verdict:
    """Entries wait for their delivery time, the first one until `first` (ms). `pauses`: nothing else is read before."""
    text = f"{counted(entries, 'entry', 'wait')} for {'its' if entries == 1 else 'their'} delivery time"
    if pauses:
        text += "; they all have one delay, so nothing else is read before"
    return Verdict("delayedDelivery", pauses, text, until=first)


def not_active(name: str, active: str | None) -> Verdict:
    """A consumer that is not the active one."""
    text = "not the active consumer" + ("" if active is None else f", which is {active}")
    return Verdict("active consumer", True, text, "consumer", name)


def draining_hash(
    name: str, hashes: int, hash_: int, owner: str, unacked: str, waiting: int | None
) -> Verdict:
    """Key hashes of a consumer wait for the acks of their former owners, such as `hash_` for those of `owner`. `waiting`: how many
    entries wait, None if it is not known."""
    entries = "" if waiting is None else f", for which {counted(waiting, 'entry', 'wait')}"
    text = f"{hashes} of its key hashes still {'drains' if hashes == 1 else 'drain'}{entries}: hash {hash_} until {owner} has acked {unacked}"
    return Verdict("draining hash", waiting is None or waiting > 0, text, "consumer", name)


def recently_joined(name: str, before: str) -> Verdict:
    """A consumer that waits for what was read before it joined."""
    text = f"joined recently: it gets nothing from {before} on until everything before that is acked"
    return Verdict("recently joined", True, text, "consumer", name)


LEFT_BY_READER = "reader"
"""The decider of `left_by_reader`."""


def left_by_reader() -> Verdict:
    """A seek closes the consumer of a reader, and its cursor stays."""
    return Verdict(
        LEFT_BY_READER,
        True,
        "a seek closed its reader, and keeps the cursor for it: for admin calls, there is no such subscription",
    )


def no_consumers() -> Verdict:
    """Nobody is there to receive."""
    return Verdict("consumers", True, "no consumer is connected")


def no_backlog() -> Verdict:
    """Nothing is there to send."""
    return Verdict("backlog", True, "its backlog is empty")


def ack_holes(ranges: int, mark_delete: str, first: str | None) -> Verdict:
    """Messages are acked out of order. `first`: the first entry that is not acked."""
    waits = "an entry before it" if first is None else first
    text = f"{counted(ranges, 'range')} of entries {'is' if ranges == 1 else 'are'} acked above the mark-delete position {mark_delete}, which stays there until {waits} is acked"
    return Verdict("ack holes", False, text)


def terminated(last: str, *, at_end: bool) -> Verdict:
    """The topic takes no more messages. `at_end`: the subscription has consumed it."""
    return Verdict("terminated", at_end, f"the topic is terminated: no message comes after {last}")


ChunksCome = Literal["rejoin", "unload", "never"]
"""When chunks come again that nobody can take: when all consumers have left and one joins, or not before the topic is unloaded."""

_CHUNKS: dict[ChunksCome, str] = {
    "rejoin": "chunk owner",
    "unload": "chunk owner left",
    "never": "first chunk",
}
"""The deciders."""


def lost_entries(what: str) -> Verdict:
    """Entries were read, are unacked, and nobody has them, although they are no chunks. `what`: how many."""
    text = f"{what} read, unacked, and with no consumer: sent again when all consumers of the subscription have left and one joins"
    return Verdict("read position", True, text)


def lost_chunks(what: str, comes: ChunksCome | None) -> Verdict:
    """Entries of chunked messages were dealt to a consumer that had left. `what`: how many entries or messages. `comes`: None: it is not
    known whether the first chunk is acked."""
    again = {
        None: "sent again when all consumers of the subscription have left and one joins, if the first chunk is unacked, too",
        "rejoin": "sent again when all consumers of the subscription have left and one joins",
        "unload": "sent again only when the topic was unloaded, for the message is still that consumer's",
        "never": "never sent again, for the first chunk is acked or deleted, and without that one nobody gets the others",
    }[comes]
    text = f"{what} dealt to a consumer that has left, as the one that got the first chunk of a message: unacked, and {again}"
    return Verdict(_CHUNKS[comes or "rejoin"], True, text)


def stuck_chunks(what: str, comes: ChunksCome) -> Verdict:
    """Chunks wait to be sent again, and nobody can take them. While they do, no new entries are read."""
    why = {
        "rejoin": "no consumer has got the first chunk, as far as the dispatcher knows; sent, and new entries with them, when that is sent again, as when "
        "all consumers of the subscription have left and one joins",
        "unload": "the consumer that got the first chunk has left, and has no permits; sent, and new entries with them, when the topic was unloaded",
        "never": "the first chunk of the message is acked or deleted, so nobody gets the others, and no new entries as long as these are unacked",
    }[comes]
    return Verdict(_CHUNKS[comes], True, f"{what} chunks that wait in the replay queue: {why}", "new")


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
