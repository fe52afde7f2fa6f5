"""maxUnackedMessagesPerBroker: nothing new for the subscriptions that owe most acks (mirrors the unacked messages
monitor of `BrokerService`; rules: subscriptions.md §5).

The broker is the ingress partition: each counts its own topics. Pulsar's monitor runs beside the dispatch, this one
after every command, timer and check, so what one of them sends may pass the limit.
"""

from collections.abc import Callable, Iterable

import msgspec

from streaming.broker.context import Context
from streaming.broker.subscription.persistent import PersistentSubscription
from streaming.broker.topic import Topic

Load = Callable[[str], Topic]


class UnackedMessages(msgspec.Struct, array_like=True):
    """What the partition's Shared and Key_Shared subscriptions owe: `messages` by topic, where there are any, and in
    `total`.

    `blocked`: the limit was reached, and it hasn't been less than half of it since; `waiting` = topics with
    subscriptions that get nothing new for that reason.
    """

    total: int = 0
    messages: dict[str, int] = {}
    blocked: bool = False
    waiting: dict[str, None] = {}


def check(ctx: Context, state: UnackedMessages, topic: Topic, load: Load) -> None:
    """Something happened on a topic: count it again; block or release subscriptions, on other topics too."""
    limit = ctx.config.maxUnackedMessagesPerBroker
    if limit <= 0:
        return
    _count(state, topic)
    share = _share(ctx)
    if not state.blocked:
        if state.total >= limit:
            state.blocked = True
            _block_all(state, share, load)
        return
    if state.total < limit // 2:
        state.blocked = False
        for name in sorted(state.waiting):
            if not state.blocked:  # those released first may have reached the limit again
                _release(ctx, state, load(name), load, below=0)
        return
    _block(state, topic, share)
    _release(ctx, state, topic, load, below=share // 2)


def configured(ctx: Context, state: UnackedMessages, topics: Iterable[Topic], load: Load) -> None:
    """The broker's configuration changed: block whom the new limits block, release the others."""
    waiting = [load(name) for name in sorted(state.waiting)]
    state.total, state.blocked = 0, False
    state.messages.clear()
    limit = ctx.config.maxUnackedMessagesPerBroker
    if limit > 0:
        for topic in topics:
            _count(state, topic)
        state.blocked = state.total >= limit
    share = _share(ctx)
    if state.blocked:
        _block_all(state, share, load)
    for topic in waiting:
        _release(ctx, state, topic, load, below=share + 1)


def _share(ctx: Context) -> int:
    """What a single subscription may owe while the broker is blocked."""
    config = ctx.config
    return int(config.maxUnackedMessagesPerBroker * config.maxUnackedMessagesPerSubscriptionOnBrokerBlocked)


def _owed(subscription: PersistentSubscription) -> int:
    """Its unacked messages, if limits apply to them."""
    dispatcher = subscription.dispatcher
    return dispatcher.unacked_messages if subscription.durable and dispatcher is not None else 0


def _count(state: UnackedMessages, topic: Topic) -> None:
    messages = sum(_owed(subscription) for subscription in topic.subscriptions.values())
    state.total += messages - state.messages.pop(topic.name, 0)
    if messages:
        state.messages[topic.name] = messages


def _block_all(state: UnackedMessages, share: int, load: Load) -> None:
    for name in sorted(name for name, messages in state.messages.items() if messages > share):
        _block(state, load(name), share)


def _block(state: UnackedMessages, topic: Topic, share: int) -> None:
    for subscription in topic.subscriptions.values():
        if _owed(subscription) > share:
            subscription.broker_blocked = True
            state.waiting[topic.name] = None


def _release(ctx: Context, state: UnackedMessages, topic: Topic, load: Load, *, below: int) -> None:
    """Let those of a topic go on that owe fewer than `below` messages."""
    released = [
        subscription
        for subscription in topic.subscriptions.values()
        if subscription.broker_blocked and (not state.blocked or _owed(subscription) < below)
    ]
    for subscription in released:
        subscription.broker_blocked = False
    if not any(subscription.broker_blocked for subscription in topic.subscriptions.values()):
        state.waiting.pop(topic.name, None)
    for subscription in released:
        if subscription.dispatcher is not None:
            subscription.dispatcher.dispatch(topic.context_of(ctx, subscription))
    if released:
        check(ctx, state, topic, load)
