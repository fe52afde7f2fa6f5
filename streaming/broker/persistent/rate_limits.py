"""The rate limits of a topic: they begin, they change, and subscriptions wait for them (mirrors what `PersistentTopic` does
with its `DispatchRateLimiter` and `SubscribeRateLimiter`).

quirk: each change of any policy gives all permits at once, even if no rate changed.
"""

from schemas.commands import Subscribe
from streaming.broker.context import Context
from streaming.broker.dispatch_rate_limiter import DispatchRateLimiter, ReadThrottle
from streaming.broker.errors import BrokerError
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.policies.hierarchy import DispatchRate, broker_dispatch_rate, broker_publish_rate
from streaming.broker.publish_rate_limiter import PublishRateLimiter
from streaming.broker.token_bucket import TokenBucket


def configure_broker(ctx: Context) -> None:
    """The configuration is new. The limiters of the broker whose rates changed start with all permits."""
    publish = broker_publish_rate(ctx.config)
    if ctx.limits.publish is None or ctx.limits.publish.rate != publish:
        ctx.limits.publish = None if publish is None else PublishRateLimiter.of(publish, ctx.clock)
    ctx.limits.dispatch = _configured(ctx, ctx.limits.dispatch, broker_dispatch_rate(ctx.config))


def _configured(
    ctx: Context, limiter: DispatchRateLimiter | None, rate: DispatchRate | None
) -> DispatchRateLimiter | None:
    if limiter is not None and limiter.rate == rate:
        return limiter
    return _limiter(ctx, rate)


def _limiter(
    ctx: Context, rate: DispatchRate | None, published: tuple[float, float] = (0.0, 0.0)
) -> DispatchRateLimiter | None:
    if rate is None:
        return None
    return DispatchRateLimiter.of(rate, ctx.clock, (int(published[0]), int(published[1])))


def configured(ctx: Context, topic: PersistentTopic) -> None:
    """The configuration is new. Limiters whose rates changed start with all permits."""
    policies = ctx.policies_of(topic)
    topic.check_backlogged(ctx)
    topic.dispatch_limiter = _configured(ctx, topic.dispatch_limiter, policies.dispatchRate)
    for subscription in topic.subscriptions.values():
        former = None if subscription.throttle is None else subscription.throttle.limiter
        rate = policies.dispatch_rate_of(subscription.name)
        _set_limiter(ctx, topic, subscription, _configured(ctx, former, rate))
    if topic.publish_limiter.rate != policies.publishRate:
        topic.publish_limiter = PublishRateLimiter.of(policies.publishRate, ctx.clock)
    _check_subscribe_rate(ctx, topic)


def apply(ctx: Context, topic: PersistentTopic) -> None:
    """The topic was loaded, or a policy changed: every limiter starts with all permits."""
    policies = ctx.policies_of(topic)
    topic.dispatch_limiter = _limiter(ctx, policies.dispatchRate, topic.publish_rates)
    topic.publish_limiter = PublishRateLimiter.of(policies.publishRate, ctx.clock)
    for subscription in topic.subscriptions.values():
        limiter = _limiter(ctx, policies.dispatch_rate_of(subscription.name), topic.publish_rates)
        _set_limiter(ctx, topic, subscription, limiter)
    _check_subscribe_rate(ctx, topic)


def start(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> None:
    """The subscription has a new dispatcher: its limiter starts with all permits."""
    limiter = _limiter(ctx, ctx.policies_of(topic).dispatch_rate_of(subscription.name), topic.publish_rates)
    subscription.throttle = None if limiter is None else ReadThrottle(limiter)


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
    if throttle.retry_at >= 0:
        ctx.wake(topic.name, throttle.retry_at)


def retry(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> bool:
    """Read again, if the subscription's dispatcher waits for permits and it is time. Returns whether it was."""
    dispatcher, throttle = subscription.dispatcher, subscription.throttle
    if dispatcher is None or throttle is None or not 0 <= throttle.retry_at <= ctx.clock:
        return False
    dispatcher.retry(topic.context_of(ctx, subscription))
    if throttle.retry_at <= ctx.clock:  # nobody can receive
        throttle.retry_at = -1
    return True


def published(ctx: Context, topic: PersistentTopic, connection: str, messages: int, size: int) -> None:
    """A message was published. If it exceeds a publish rate, a real broker reads no more from its connection for a while.

    That is counted once for a connection, whichever rate is exceeded. Pulsar counts it for every topic to which the connection
    publishes.
    """
    limiters = [topic.publish_limiter]
    if ctx.limits.publish is not None:
        limiters.append(ctx.limits.publish)
    exceeded = [limiter for limiter in limiters if limiter.exceeded(messages, size, ctx.clock)]
    if exceeded and not any(connection in limiter.paused for limiter in limiters):
        topic.publish_limited.record(1, ctx.clock, ctx.config)
    for limiter in exceeded:
        limiter.pause(connection, ctx.clock)


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
