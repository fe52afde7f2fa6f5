"""The rate limits of a topic: they begin, they change, and subscriptions wait for them (mirrors what `PersistentTopic` does
with its `DispatchRateLimiter` and `SubscribeRateLimiter`).

quirk: each change of any policy gives all permits at once, even if no rate changed. Before 4.0, it begins a new window instead
(dispatchRateLimiterFactoryClassName).
"""

from schemas.commands import Subscribe
from schemas.effect_fields import PublishThrottledFields
from schemas.effects import PublishThrottled
from streaming.broker.config import CLASSIC_RATE_LIMITER
from streaming.broker.context import Context, Throttled
from streaming.broker.errors import BrokerError
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.policies.hierarchy import (
    DispatchRate,
    PublishRate,
    broker_dispatch_rate,
    broker_publish_rate,
)
from streaming.broker.producer.producer import Producer
from streaming.broker.rates.dispatch_rate_limiter import BACKOFF, DispatchRateLimiter, ReadThrottle
from streaming.broker.rates.publish_rate_limiter import PublishRateLimiter
from streaming.broker.rates.token_bucket import TokenBucket

_TOPIC_TICK, _BROKER_TICK = 10, 50
"""How often a broker before 4.0 looks whether a publish rate was exceeded (ms)."""


def configure_broker(ctx: Context) -> None:
    """The configuration is new. The limiters of the broker whose rates changed start with all permits."""
    publish = broker_publish_rate(ctx.config)
    if publish is None:
        ctx.limits.publish = None
    elif ctx.limits.publish is None or _differs(ctx, ctx.limits.publish, publish):
        tick = _BROKER_TICK if ctx.config.publishRatesInWindows else None
        ctx.limits.publish = PublishRateLimiter.of(publish, ctx.clock, tick)
    ctx.limits.dispatch = _configured(ctx, ctx.limits.dispatch, broker_dispatch_rate(ctx.config))


def _configured(
    ctx: Context, limiter: DispatchRateLimiter | None, rate: DispatchRate | None
) -> DispatchRateLimiter | None:
    windows = _has_windows(ctx)
    if limiter is not None and (limiter.rate, limiter.windows) == (rate, windows):
        return limiter
    return _changed(ctx, limiter, rate)


def _has_windows(ctx: Context) -> bool:
    return ctx.config.dispatchRateLimiterFactoryClassName == CLASSIC_RATE_LIMITER


def _changed(
    ctx: Context,
    limiter: DispatchRateLimiter | None,
    rate: DispatchRate | None,
    published: tuple[float, float] = (0.0, 0.0),
) -> DispatchRateLimiter | None:
    """What a change of a policy makes of a limiter."""
    if limiter is None or rate is None or not (limiter.windows and _has_windows(ctx)):
        return _limiter(ctx, rate, published)
    limiter.change(rate, ctx.clock)
    return limiter


def _limiter(
    ctx: Context, rate: DispatchRate | None, published: tuple[float, float] = (0.0, 0.0)
) -> DispatchRateLimiter | None:
    if rate is None:
        return None
    rates = int(published[0]), int(published[1])
    return DispatchRateLimiter.of(rate, ctx.clock, rates, windows=_has_windows(ctx))


def _publish_limiter(ctx: Context, rate: PublishRate | None) -> PublishRateLimiter:
    tick = 0 if ctx.config.preciseTopicPublishRateLimiterEnable else _TOPIC_TICK
    return PublishRateLimiter.of(rate, ctx.clock, tick if ctx.config.publishRatesInWindows else None)


def _differs(ctx: Context, limiter: PublishRateLimiter, rate: PublishRate | None) -> bool:
    has_window = rate is not None and ctx.config.publishRatesInWindows
    return (limiter.rate, limiter.window is not None) != (rate, has_window)


def configured(ctx: Context, topic: PersistentTopic) -> None:
    """The configuration is new. Limiters whose rates changed start with all permits."""
    policies = ctx.policies_of(topic)
    topic.check_backlogged(ctx)
    topic.dispatch_limiter = _configured(ctx, topic.dispatch_limiter, policies.dispatchRate)
    for subscription in topic.subscriptions.values():
        former = None if subscription.throttle is None else subscription.throttle.limiter
        rate = policies.dispatch_rate_of(subscription.name)
        _set_limiter(ctx, topic, subscription, _configured(ctx, former, rate))
    if _differs(ctx, topic.publish_limiter, policies.publishRate):
        topic.publish_limiter = _publish_limiter(ctx, policies.publishRate)
    _check_subscribe_rate(ctx, topic)


def apply(ctx: Context, topic: PersistentTopic) -> None:
    """The topic was loaded, or a policy changed: every limiter starts with all permits, or with a new window."""
    policies = ctx.policies_of(topic)
    topic.dispatch_limiter = _changed(ctx, topic.dispatch_limiter, policies.dispatchRate, topic.publish_rates)
    topic.publish_limiter = _publish_limiter(ctx, policies.publishRate)
    for subscription in topic.subscriptions.values():
        former = None if subscription.throttle is None else subscription.throttle.limiter
        rate = policies.dispatch_rate_of(subscription.name)
        _set_limiter(ctx, topic, subscription, _changed(ctx, former, rate, topic.publish_rates))
    _check_subscribe_rate(ctx, topic)


def start(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> None:
    """The subscription has a new dispatcher: its limiter starts with all permits."""
    stop(ctx, topic, subscription)
    limiter = _limiter(ctx, ctx.policies_of(topic).dispatch_rate_of(subscription.name), topic.publish_rates)
    subscription.throttle = None if limiter is None else ReadThrottle(limiter)


def stop(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> None:
    """The subscription's dispatcher is gone."""
    if (throttle := subscription.throttle) is not None:
        _leave(ctx, topic, subscription, throttle.retry_at)
        subscription.throttle = None


def _shared(ctx: Context, topic: PersistentTopic) -> list[DispatchRateLimiter]:
    """The limiters of the broker and of the topic."""
    return [limiter for limiter in (ctx.limits.dispatch, topic.dispatch_limiter) if limiter is not None]


def _leave(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, tick: int) -> None:
    """The dispatcher waits no longer for its turn, so that of another may come sooner."""
    for limiter in _shared(ctx, topic):
        limiter.leave((topic.name, subscription.name), tick)
        ctx.wake_waiting(limiter)


def _set_limiter(
    ctx: Context,
    topic: PersistentTopic,
    subscription: PersistentSubscription,
    limiter: DispatchRateLimiter | None,
) -> None:
    if subscription.dispatcher is None:
        return
    throttle = subscription.throttle
    if throttle is None:
        subscription.throttle = None if limiter is None else ReadThrottle(limiter)
        return
    throttle.limiter = limiter
    throttle.next_tick(ctx.clock)
    if throttle.queued:
        _leave(ctx, topic, subscription, throttle.retry_at)
        throttle.queued, throttle.caught_up_at = False, -1
    if throttle.retry_at >= 0:
        topic.context_of(ctx, subscription).wake(throttle.retry_at)


def next_look(ctx: Context, topic: PersistentTopic) -> int:
    """When it is the turn of a dispatcher of the topic to look for permits that it shares with others (ms), or −1."""
    looks = [first for limiter in _shared(ctx, topic) if (first := limiter.first_look()) is not None]
    return min((at for at, (name, _) in looks if name == topic.name), default=-1)


def retry_in_turn(ctx: Context, topic: PersistentTopic) -> bool:
    """Read again where it is a dispatcher's turn to find shared permits. Returns whether it was anybody's."""
    happened = False
    for limiter in _shared(ctx, topic):
        while (first := limiter.first_look()) is not None:
            due, (name, subscription) = first
            if due > ctx.clock or name != topic.name:
                break
            happened = True
            _look(ctx, topic, topic.subscriptions[subscription], due)
        ctx.wake_waiting(limiter)
    return happened


def retry(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> bool:
    """Read again, if the subscription's dispatcher waits for permits and it is time. Returns whether it was."""
    throttle = subscription.throttle
    if throttle is None or not 0 <= throttle.due <= ctx.clock:
        return False
    _look(ctx, topic, subscription, throttle.due)
    return True


def _look(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription, look: int) -> None:
    """The dispatcher's `look` (ms) has come. If it waits again, it keeps its place among those that look with it."""
    dispatcher, throttle = subscription.dispatcher, subscription.throttle
    assert dispatcher is not None
    assert throttle is not None
    throttle.retry_at, throttle.queued, throttle.caught_up_at = look, False, -1
    dispatcher.retry(topic.context_of(ctx, subscription))
    if throttle.retry_at <= ctx.clock:  # it found permits, or nobody can receive
        throttle.retry_at = -1
    if not throttle.queued or (throttle.retry_at - look) % BACKOFF:
        _leave(ctx, topic, subscription, look)


def published(ctx: Context, topic: PersistentTopic, producer: Producer, messages: int, size: int) -> None:
    """A message was published. If it exceeds a publish rate, a broker reads no more from its connection for a while.

    That is counted once for a connection, whichever rate is exceeded. Pulsar counts it for every topic to which the connection
    publishes.
    """
    limiters, connection = _publish_limiters(ctx, topic), producer.connection
    exceeded = [limiter for limiter in limiters.values() if limiter.exceeded(messages, size, ctx.clock)]
    is_paused = any(connection in limiter.paused for limiter in limiters.values())
    for limiter in exceeded:
        limiter.pause(connection, ctx.clock)
    if exceeded and not is_paused:
        topic.publish_limited.record(1, ctx.clock, ctx.config)
        until = throttled_until(ctx, topic, connection, ctx.clock)
        cause = ", ".join(name for name, limiter in limiters.items() if limiter in exceeded)
        fields = PublishThrottledFields(until=until)
        ctx.emit(PublishThrottled(topic.name, connection, producer.name, cause, fields))
        if ctx.throttled is not None:
            ctx.throttled.append(Throttled(topic.name, connection, until))


def throttled_until(ctx: Context, topic: PersistentTopic, connection: str, now: int) -> int:
    """Until when (ms) a connection is not read because of what it published to a topic, as it looks at `now`. 0: it is read."""
    limiters = _publish_limiters(ctx, topic).values()
    return max(limiter.paused_until(connection, now) for limiter in limiters)


def _publish_limiters(ctx: Context, topic: PersistentTopic) -> dict[str, PublishRateLimiter]:
    """The limiters of a topic's producers, by whose rate it is."""
    limiters = {"the publish rate of the topic": topic.publish_limiter}
    if ctx.limits.publish is not None:
        limiters["the publish rate of the broker"] = ctx.limits.publish
    return limiters


# -- the subscribe rate -------------------------------------------------------------------------------------------


def check_subscribe(ctx: Context, topic: PersistentTopic, command: Subscribe) -> None:
    """Raise `BrokerError` if the consumer subscribed too often.

    Pulsar knows a consumer by its host, name and id. A log has no hosts, so the name and the id must do.
    """
    rate = ctx.policies_of(topic).subscribeRate
    if rate is None:
        return
    buckets, now = topic.subscribe_buckets, ctx.clock
    consumer = command.consumer_name or "", command.consumer_id
    bucket = buckets.pop(consumer, None)
    if bucket is None:
        count, period = rate.subscribeThrottlingRatePerConsumer, rate.ratePeriodInSecond * 1000
        bucket = TokenBucket.full(count, period, now)
    buckets[consumer] = bucket  # the one who came last is last
    refused = bucket.renew(now) <= 0
    if not refused:
        bucket.use(1)
    while (oldest := buckets[first := next(iter(buckets))]).renew(now) >= oldest.rate:
        del buckets[first]  # as if it had never subscribed
    if refused:
        raise BrokerError("NotAllowedError", "Subscribe limited by subscribe rate limit per consumer.")


def _check_subscribe_rate(ctx: Context, topic: PersistentTopic) -> None:
    """Forget who subscribed how often, if the rate changed."""
    rate, known = ctx.policies_of(topic).subscribeRate, next(iter(topic.subscribe_buckets.values()), None)
    if known is None:
        return
    if rate is None or (known.rate, known.period) != (
        rate.subscribeThrottlingRatePerConsumer,
        rate.ratePeriodInSecond * 1000,
    ):
        topic.subscribe_buckets.clear()
