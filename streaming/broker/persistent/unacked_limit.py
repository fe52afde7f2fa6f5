"""maxUnackedMessagesPerBroker: subscriptions with the most unacked messages get no new ones (mirrors the unacked
messages monitor of `BrokerService`; rules: docs/rules/subscriptions.md §7).

Here a broker is an ingress partition, which counts only its own topics. Pulsar's monitor runs concurrently with dispatch.
This one runs after every command, timer and check, so what one of them sends may exceed the limit.
"""

from collections.abc import Callable, Iterable

import msgspec

from streaming.broker.context import Context
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic

Load = Callable[[str], PersistentTopic]


class UnackedMessages(msgspec.Struct, array_like=True):
    """The unacked messages of the partition's Shared and Key_Shared subscriptions: `messages` per topic (if not 0), and
    `total`.

    `blocked`: the total reached the limit and has not been below half of it since; `waiting` = topics with subscriptions
    that get no new entries for that reason.
    """

    total: int = 0
    messages: dict[str, int] = {}
    blocked: bool = False
    waiting: dict[str, None] = {}


def check(ctx: Context, state: UnackedMessages, topic: PersistentTopic, load: Load) -> None:
    """Recount a topic after an event on it, and block or release subscriptions, also on other topics."""
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
            if not state.blocked:  # subscriptions released before may have reached the limit again
                _release(ctx, state, load(name), load, below=0)
        return
    _block(state, topic, share)
    _release(ctx, state, topic, load, below=share // 2)


def configured(ctx: Context, state: UnackedMessages, topics: Iterable[PersistentTopic], load: Load) -> None:
    """Block or release subscriptions after a change of the broker's configuration."""
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


def forget(state: UnackedMessages, topic: str) -> None:
    """A topic is out of the count."""
    state.total -= state.messages.pop(topic, 0)
    state.waiting.pop(topic, None)


def _share(ctx: Context) -> int:
    """How many unacked messages a subscription may have while the broker is blocked."""
    config = ctx.config
    return int(config.maxUnackedMessagesPerBroker * config.maxUnackedMessagesPerSubscriptionOnBrokerBlocked)


def _owed(subscription: PersistentSubscription) -> int:
    """A subscription's unacked messages, or 0 if no limit applies to them."""
    dispatcher = subscription.dispatcher
    return dispatcher.unacked_messages if subscription.durable and dispatcher is not None else 0


def _count(state: UnackedMessages, topic: PersistentTopic) -> None:
    messages = sum(_owed(subscription) for subscription in topic.subscriptions.values())
    state.total += messages - state.messages.pop(topic.name, 0)
    if messages:
        state.messages[topic.name] = messages


def _block_all(state: UnackedMessages, share: int, load: Load) -> None:
    for name in sorted(name for name, messages in state.messages.items() if messages > share):
        _block(state, load(name), share)


def _block(state: UnackedMessages, topic: PersistentTopic, share: int) -> None:
    for subscription in topic.subscriptions.values():
        if _owed(subscription) > share:
            subscription.broker_blocked = True
            state.waiting[topic.name] = None


def _release(ctx: Context, state: UnackedMessages, topic: PersistentTopic, load: Load, *, below: int) -> None:
    """Release a topic's subscriptions with fewer than `below` unacked messages, or all if the broker isn't blocked."""
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
