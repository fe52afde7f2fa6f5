"""Rate limits in virtual time (AsyncTokenBucket, DispatchRateLimiter and SubscribeRateLimiter of 4.0.7).

Seconds are from the dispatcher's creation, which fills its buckets, unless a test says otherwise."""

from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import AnyCommand, BrokerConfig, Flow, SubType, Tick, to_json
from schemas.effects import AdminResponse, Effect, Error, Message, PublishThrottled, SendReceipt, Success
from streaming.broker.broker import Broker
from streaming.broker.config import CLASSIC_RATE_LIMITER
from streaming.broker.policies.admin_calls import policy_of
from streaming.broker.rates.dispatch_rate_limiter import DispatchRateLimiter
from streaming.broker.rates.token_bucket import TokenBucket
from tests.broker.kit import QUIET, TOPIC, Run, Stored, feed, of, one, response, sent

pytestmark = pytest.mark.feature("I3")

CLASSIC: dict[str, Any] = {"dispatchRateLimiterFactoryClassName": CLASSIC_RATE_LIMITER}
OTHER = "persistent://public/default/other"
TYPES: list[SubType] = ["Exclusive", "Failover", "Shared", "Key_Shared"]


def rate(messages: int = -1, size: int = -1, seconds: int = 1, *, relative: bool = False) -> dict[str, Any]:
    """The body of a dispatch rate."""
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": size,
        "ratePeriodInSecond": seconds,
        "relativeToPublishRate": relative,
    }


def backlog_of(count: int, **settings: Any) -> Run:
    """A topic with entries of 100 bytes, before any subscription."""
    run = Run(activeConsumerFailoverDelayTimeMillis=0, **settings)
    run.admin("PUT", "/subscription/s", {"ledgerId": -1, "entryId": -1})
    run.fill(count, 100)
    return run


def by_second(run: Run, seconds: int, step: float = 1) -> list[int]:
    """How many messages come in each step."""
    return [len(sent(run.wait(step))) for _ in range(int(seconds / step))]


# -- dispatch rates -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", TYPES)
def test_all_permits_of_a_period_come_at_once_and_what_is_left_of_them_is_lost(type_: SubType) -> None:
    run = backlog_of(7)
    run.namespace("POST", "subscriptionDispatchRate", rate(2, seconds=3))
    assert sent(run.subscribe("s", type_, permits=1000)) == [0, 1]
    assert by_second(run, 10) == [0, 0, 2, 0, 0, 2, 0, 0, 1, 0]
    run.wait(100)
    assert len(sent([effect for n in range(5) for effect in run.publish(100 + n)])) == 2


def test_a_dispatcher_looks_for_permits_every_second_from_when_it_found_none() -> None:
    run = backlog_of(7)
    run.namespace("POST", "subscriptionDispatchRate", rate(2, seconds=3))
    run.subscribe("s", "Shared")
    run.wait(0.4)
    assert sent(run.flow("s", 1000)) == [0, 1]  # looks at 1.4, 2.4, 3.4
    assert by_second(run, 7, 0.2).index(2) == 14
    assert sent(run.flow("s", 1)) == []


def test_other_events_look_too() -> None:
    run = backlog_of(7)
    run.namespace("POST", "subscriptionDispatchRate", rate(2, seconds=1))
    run.subscribe("s", "Shared")
    run.wait(0.4)
    run.flow("s", 1000)
    run.wait(0.7)
    assert sent(run.flow("s", 1)) == [2, 3]  # at 1.1, not at 1.4
    assert sent(run.wait(0.5)) == []  # the next permits come at 2.1 …
    assert sent(run.wait(0.7)) == []
    assert sent(run.wait(0.1)) == [4, 5]  # … and are found at 2.4


@pytest.mark.parametrize("interval", [0, 10])
def test_acks_that_unblock_hashes_do_not_look(interval: int) -> None:
    """Recorded by parity: kind rates, seed 23."""
    run = backlog_of(7, keySharedUnblockingIntervalMs=interval)
    run.namespace("POST", "subscriptionDispatchRate", rate(2, seconds=3600))
    assert sent(run.subscribe("s", "Key_Shared", permits=1000)) == [0, 1]
    run.wait(0.4)
    assert sent(run.namespace("POST", "maxConsumersPerTopic", 7)) == []  # all permits
    assert sent(run.ack("s", (1, 0))) == []
    assert sent(run.wait(0.599)) == []
    assert sent(run.wait(0.001)) == [2, 3]


def test_entries_that_nobody_waits_for_start_no_read() -> None:
    run = backlog_of(2)
    run.namespace("POST", "subscriptionDispatchRate", rate(2, seconds=3))
    run.subscribe("s", "Shared")
    run.wait(0.4)
    run.flow("s", 1000)
    run.wait(2.7)
    assert sent(run.publish(100)) == []  # there are permits since 3.0, but nobody looks before 3.4
    assert sent(run.wait(0.3)) == [2]
    assert sent(run.publish(101)) == [3]


def test_what_is_used_too_much_must_be_made_up_for() -> None:
    run = Run()
    run.namespace("POST", "subscriptionDispatchRate", rate(2, seconds=3))
    run.create_producer()
    run.subscribe("s", "Shared", permits=1000)
    assert sent(run.send(0, 4)) == [0]  # five messages: three too many
    run.send(5, 5)
    assert by_second(run, 9) == [0] * 5 + [1] + [0] * 3


def test_a_batch_may_count_as_one() -> None:
    run = Run(dispatchThrottlingOnBatchMessageEnabled=True)
    run.namespace("POST", "subscriptionDispatchRate", rate(2, seconds=3))
    run.create_producer()
    run.subscribe("s", "Shared", permits=1000)
    assert sent(run.send(0, 4)) == [0]
    assert sent(run.send(5, 9)) == [1]
    assert sent(run.send(10, 14)) == []


@pytest.mark.parametrize("type_", TYPES)
def test_bytes_limit_a_read_by_the_average_entry(type_: SubType) -> None:
    run = backlog_of(20)
    run.namespace("POST", "dispatchRate", rate(size=500, seconds=2))
    # 500 // (100 + 64) = 3 entries use 300 bytes, 200 // 164 = 1 and 100 // 164, but at least 1, use the others
    assert sent(run.subscribe("s", type_, permits=1000)) == [0, 1, 2, 3, 4]
    assert by_second(run, 4) == [0, 5, 0, 5]


def test_messages_and_bytes_must_both_be_left() -> None:
    run = backlog_of(20)
    run.namespace("POST", "dispatchRate", rate(3, 150, seconds=2))
    assert sent(run.subscribe("s", "Shared", permits=1000)) == [0, 1]  # 50 bytes too many
    assert by_second(run, 4) == [0, 1, 0, 2]


def test_one_rate_for_all_subscriptions_of_a_topic() -> None:
    run = backlog_of(6)
    run.admin("POST", "/dispatchRate", rate(4, seconds=2))
    assert sent(run.subscribe("s", "Shared", permits=1000)) == [0, 1, 2, 3]
    assert sent(run.subscribe("r", "Shared", permits=1000)) == []
    found = run.wait(2)
    assert [m.subscription for m in of(found, Message)] == ["s", "s", "r", "r"]


def test_one_rate_for_the_partition() -> None:
    run = backlog_of(6, dispatchThrottlingRateInMsg=4)
    assert sent(run.subscribe("s", "Shared", permits=1000)) == [0, 1, 2, 3]
    for n in range(3):
        run.publish(n, topic=OTHER)
    assert sent(run.subscribe("s", "Shared", topic=OTHER, connection="o", permits=1000)) == []
    assert [m.topic for m in of(run.wait(1), Message)] == [
        TOPIC,
        TOPIC,
        OTHER,
        OTHER,
    ]  # as they began to wait
    assert [m.topic for m in of(run.wait(1), Message)] == [OTHER]


def test_the_most_specific_rate_that_limits_holds() -> None:
    run = backlog_of(20, dispatchThrottlingRatePerSubscriptionInMsg=5)
    assert len(sent(run.subscribe("s", "Shared", permits=1000))) == 5
    run.namespace("POST", "subscriptionDispatchRate", rate(4))
    assert by_second(run, 1) == [4]
    run.admin("POST", "/subscriptionDispatchRate", rate(3))
    assert by_second(run, 1) == [3]
    run.admin("POST", "/s/dispatchRate", rate(2))
    assert by_second(run, 1) == [2]
    run.admin("POST", "/s/dispatchRate", rate(0))  # ignored
    assert by_second(run, 1) == [2]
    run.admin("DELETE", "/s/dispatchRate")
    run.admin("POST", "/subscriptionDispatchRate", rate(-1))  # as if not set
    assert by_second(run, 1) == [4]


def test_a_change_of_any_policy_gives_all_permits() -> None:
    run = backlog_of(20)
    run.namespace("POST", "dispatchRate", rate(2, seconds=60))
    run.subscribe("s", "Shared", permits=1000)
    run.wait(5.5)
    run.namespace("POST", "maxConsumersPerTopic", 7)
    assert by_second(run, 2, 0.5) == [2, 0, 0, 0]  # found at 6.0
    run.namespace("DELETE", "dispatchRate")
    assert by_second(run, 2) == [16, 0]


@pytest.mark.parametrize(("classic", "second"), [(False, 3), (True, 2)])
def test_windows_of_the_classic_limiter_begin_whether_or_not_anybody_looks(
    classic: bool, second: int
) -> None:
    run = backlog_of(20, **CLASSIC if classic else {})
    run.namespace("POST", "subscriptionDispatchRate", rate(2, seconds=3))
    run.wait(1)
    assert sent(run.subscribe("s", "Shared", permits=2)) == [0, 1]  # the first window begins
    run.wait(4.5)
    assert sent(run.flow("s", 1000)) == [2, 3]  # looks at 5.5, 6.5, 7.5
    assert by_second(run, 3).index(2) + 1 == second


def test_with_the_classic_limiter_a_change_of_any_policy_begins_a_window() -> None:
    """Recorded from 3.0.7 and 2.10.5."""
    run = backlog_of(20, **CLASSIC)
    run.namespace("POST", "dispatchRate", rate(2, seconds=3))
    assert sent(run.subscribe("s", "Shared", permits=1000)) == [0, 1]
    run.wait(1.5)
    run.namespace("POST", "maxConsumersPerTopic", 7)  # the next window begins at 4.5
    assert by_second(run, 5, 0.5) == [0, 0, 0, 0, 0, 0, 2, 0, 0, 0]  # found at 5.0
    run.namespace("POST", "dispatchRate", rate(5, seconds=60))  # 2 of them are used
    assert by_second(run, 2, 0.5) == [3, 0, 0, 0]
    run.unload()
    assert len(sent(run.subscribe("s", "Shared", permits=1000))) == 5


def test_a_classic_rate_that_is_relative_to_the_publish_rate_changes_with_the_next_window() -> None:
    run = Run(statsUpdateFrequencyInSecs=10, activeConsumerFailoverDelayTimeMillis=0, **CLASSIC)
    run.namespace("POST", "dispatchRate", rate(1, seconds=10, relative=True))
    run.fill(40, 100)
    run.subscribe("s", "Shared", permits=1)
    run.wait(11)  # 4 messages a second were published, so that the window at 10 has 5 permits
    assert len(sent(run.flow("s", 1000))) == 1
    assert by_second(run, 10)[-2:] == [5, 0]


def test_a_rate_of_a_subscription_that_limits_nothing_changes_no_policy() -> None:
    """Recorded by parity: kind rates, seed 13."""
    run = backlog_of(20)
    run.admin("POST", "/dispatchRate", rate(2, seconds=60))
    assert len(sent(run.subscribe("s", "Shared", permits=1000))) == 2
    run.admin("POST", "/s/dispatchRate", rate(0))
    assert by_second(run, 2) == [0, 0]
    run.admin("DELETE", "/s/dispatchRate")
    assert by_second(run, 2) == [2, 0]


def test_a_configuration_changes_only_its_own_rates() -> None:
    run = backlog_of(20, dispatchThrottlingRatePerTopicInMsg=2)
    run.namespace("POST", "subscriptionDispatchRate", rate(3, seconds=60))
    assert len(sent(run.subscribe("s", "Shared", permits=1000))) == 2
    run.do(BrokerConfig(settings={**QUIET, "dispatchThrottlingRatePerTopicInMsg": 9}), None)
    assert by_second(run, 5) == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("type_", TYPES)
def test_a_dispatcher_of_another_type_starts_anew_and_an_unload_too(type_: SubType) -> None:
    run = backlog_of(20)
    run.namespace("POST", "dispatchRate", rate(2, seconds=60))
    run.namespace("POST", "subscriptionDispatchRate", rate(1, seconds=60))
    other: SubType = "Shared" if type_ != "Shared" else "Exclusive"
    assert len(sent(run.subscribe("s", other, permits=1000))) == 1
    run.close_consumer("s")
    assert len(sent(run.subscribe("s", type_, permits=1000))) == 1
    run.close_consumer("s")
    assert len(sent(run.subscribe("s", other, permits=1000))) == 0  # the topic's are used up
    run.unload()
    assert len(sent(run.subscribe("s", type_, permits=1000))) == 1


@pytest.mark.parametrize("body", [rate(1, seconds=1), rate(size=1, seconds=1), rate(1, 1, seconds=7)])
def test_a_silence_costs_what_happens_in_it(body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    run.namespace("POST", "dispatchRate", body)
    run.create_producer()
    run.subscribe("s", "Shared", permits=1_000_000)
    run.send(0, 9_999)
    run.send(10_000, 10_001)
    looks: list[int] = []
    renew = TokenBucket.renew_each_period

    def counted(bucket: TokenBucket, now: int, tick: int | None, interval: int) -> int:
        looks.append(now)
        return renew(bucket, now, tick, interval)

    monkeypatch.setattr(TokenBucket, "renew_each_period", counted)
    assert sent(run.wait(10 * 366 * 86_400)) == [1]
    assert len(looks) < 20


@given(
    rate_=st.integers(1, 2000), seconds=st.integers(1, 9), tokens=st.integers(-3000, 2000),
    remainder=st.integers(0, 400_000), first=st.integers(0, 999), looks=st.integers(1, 40), until=st.integers(0, 999),
)  # fmt: skip
def test_looks_that_were_left_out_are_made_up_for(
    rate_: int, seconds: int, tokens: int, remainder: int, first: int, looks: int, until: int
) -> None:
    def bucket() -> TokenBucket:
        return TokenBucket(rate_, seconds * 1000, 5000, min(tokens, rate_), remainder)

    ticks = [5000 + first + 1000 * n for n in range(looks + 1)]
    now = ticks[-1] + until
    each, at_once = bucket(), bucket()
    found = [tick for tick in ticks if each.renew(tick, seconds * 1000) > 0]
    each.renew(now, seconds * 1000)
    if at_once.tokens <= 0:
        due = at_once.due_each_period(ticks[0], 1000)
        assert due == found[0] if found else due > ticks[-1]
    at_once.renew_each_period(now, ticks[0], 1000)
    assert (at_once.tokens, at_once.last) == (each.tokens, each.last)
    assert abs(at_once.remainder - each.remainder) <= looks  # ns, from rounding


class Windows:
    """What the classic limiter has of one kind, with a timer for each window."""

    def __init__(self, rate: int, period: int) -> None:
        self.rate, self.period = rate, period
        self.used = self.now = 0
        self.next_one: int | None = None

    def renew(self, now: int, period: int) -> int:
        while self.next_one is not None and self.next_one <= now:
            self.used = max(self.used - self.rate, 0)
            self.next_one += period
        self.now = now
        return self.rate - self.used

    def use(self, tokens: int) -> None:
        self.used += tokens
        self.next_one = self.next_one or self.now + self.period


class Everyone:
    """Dispatchers that look for permits of one rate themselves, each of them every second, as those of Pulsar do."""

    def __init__(self, messages: int, size: int, seconds: int, now: int, *, classic: bool) -> None:
        self.period, self.rates = seconds * 1000, (messages, size)
        self.buckets: list[TokenBucket | Windows | None] = [
            (Windows(each, self.period) if classic else TokenBucket.full(each, self.period, now))
            if each > 0
            else None
            for each in self.rates
        ]
        self.looks: list[tuple[int, int, tuple[str, str]]] = []
        self.waiting: set[tuple[str, str]] = set()
        self.left: dict[tuple[str, str], int] = {}
        self.sent: list[tuple[int, str, str]] = []

    def until(self, now: int) -> None:
        while self.looks and self.looks[0][0] <= now:
            at, _, dispatcher = heappop(self.looks)
            self.waiting.remove(dispatcher)
            self.look(at, dispatcher)

    def look(self, now: int, dispatcher: tuple[str, str]) -> None:
        while True:
            tokens = [
                100 * 100 if bucket is None else bucket.renew(now, self.period) for bucket in self.buckets
            ]
            if min(tokens) <= 0:
                if dispatcher not in self.waiting:  # isRescheduleReadInProgress
                    self.waiting.add(dispatcher)
                    heappush(self.looks, (now + 1000, next(NUMBERS), dispatcher))
                return
            read = min(self.left[dispatcher], tokens[0], max(tokens[1] // 100, 1))
            if read == 0:
                return
            self.left[dispatcher] -= read
            self.sent += [(now, *dispatcher)] * read
            for bucket, used in zip(self.buckets, (read, 100 * read), strict=True):
                if bucket is not None:
                    bucket.use(used)


NUMBERS = count()


@given(
    level=st.sampled_from(["topic", "broker"]), messages=st.integers(0, 5), size=st.integers(-1, 600), seconds=st.integers(1, 3),
    backlog=st.integers(1, 12), cut=st.booleans(), classic=st.booleans(),
    joins=st.lists(st.tuples(st.sampled_from([0, 1, 300, 999, 1000, 1700]), st.integers(0, 5), st.integers(1, 7)), min_size=1, max_size=9),
)  # fmt: skip
def test_dispatchers_that_share_a_rate_find_permits_as_if_all_of_them_looked(
    level: str, messages: int, size: int, seconds: int, backlog: int, cut: bool, classic: bool,
    joins: list[tuple[int, int, int]],
) -> None:  # fmt: skip
    """Whose turn it is to look is computed. A dispatcher that gets permits from its consumer looks as well."""
    stored, settings = Stored(), (CLASSIC if classic else {})
    run = Run(reader=stored, **settings)
    topics = [TOPIC, OTHER] if level == "broker" else [TOPIC]
    for topic in topics:
        for number in range(3):
            run.admin("PUT", f"/subscription/s{number}", {"ledgerId": -1, "entryId": -1}, topic=topic)
        stored.add(run.fill(backlog, 100, topic=topic))
        for number in range(3):
            run.subscribe(f"s{number}", "Shared", topic=topic, connection=f"{topic}{number}")
    if level == "topic":
        run.admin("POST", "/dispatchRate", rate(messages, size, seconds))
    else:
        seconds = 1
        run.configure(dispatchThrottlingRateInMsg=messages, dispatchThrottlingRateInByte=size, **settings)
    everyone = Everyone(messages, size, seconds, run.now, classic=classic)
    everyone.left = {(topic, f"s{number}"): backlog for topic in topics for number in range(3)}
    got: list[tuple[int, str, str]] = []

    def do(command: AnyCommand, topic: str | None) -> None:
        everyone.until(run.now)
        feed(run.broker, run.broker.offset + 1, run.now, topic, to_json(command))
        got.extend(
            (row.clock, row.effect.topic, row.effect.subscription)
            for row in run.broker.take()
            if isinstance(row.effect, Message)
        )
        if cut:
            run.broker = Broker.decode(run.broker.encode(), stored)

    for wait, number, turns in joins:
        run.now += wait
        topic, name = topics[number % len(topics)], f"s{number // 2}"
        do(
            Flow(connection=f"{topic}{number // 2}", consumer_id=1, messagePermits=1000 * turns),
            topic,
        )
        everyone.look(run.now, (topic, name))
    run.now += 100_000
    do(Tick(), None)
    assert got == everyone.sent


@pytest.mark.parametrize("level", ["topic", "broker"])
def test_those_that_wait_for_a_shared_rate_cost_nothing(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The looks are as many as the messages, however many dispatchers wait."""
    run = Run()
    topics = [f"{TOPIC}-{number}" for number in range(60 if level == "broker" else 1)]
    names = [f"s{number}" for number in range(1 if level == "broker" else 60)]
    if level == "broker":
        run.configure(dispatchThrottlingRateInMsg=1)
    else:
        run.admin("POST", "/dispatchRate", rate(1), topic=topics[0])
    for topic in topics:
        for name in names:
            run.subscribe(name, "Shared", topic=topic, connection=topic + name, permits=1000)
            run.now += 13
        for number in range(5):
            run.publish(number, topic=topic)
    looks: list[int] = []
    renew = DispatchRateLimiter.renew

    def counted(limiter: DispatchRateLimiter, now: int, tick: int | None) -> None:
        looks.append(now)
        renew(limiter, now, tick)

    monkeypatch.setattr(DispatchRateLimiter, "renew", counted)
    found = of(run.wait(10_000), Message)
    assert len(found) >= 4 * 60
    assert len(looks) < 3 * len(found)


@pytest.mark.parametrize("cut", [False, True])
def test_a_cut_changes_nothing(cut: bool) -> None:
    run, stored = backlog_of(30), Stored()
    run = Run(activeConsumerFailoverDelayTimeMillis=0, reader=stored, dispatchThrottlingRateInMsg=50)
    got: list[Effect] = []

    def step(effects: list[Effect]) -> None:
        got.extend(effects)
        stored.add(effects)
        if cut:
            run.broker = Broker.decode(run.broker.encode(), stored)

    step(run.namespace("POST", "dispatchRate", rate(5, seconds=4)))
    step(run.admin("POST", "/a/dispatchRate", rate(3, 1000, seconds=3)))
    for n in range(30):
        step(run.publish(n, payload="x" * (n * 7 % 90)))
    for name in "ab":
        step(run.subscribe(name, "Shared", permits=20))
        step(run.wait(0.7))
    for n in range(60):
        step(run.wait(0.9))
        step(run.publish(100 + n))
    assert len(of(got, Message)) == 40
    assert [m.entry_id for m in of(got, Message) if m.subscription == "a"] == list(range(20))
    assert run.topic.subscriptions["a"].throttle.retry_at == -1  # type: ignore[union-attr]


# -- subscriptions that have caught up ----------------------------------------------------------------------------


RATES = pytest.mark.parametrize("rates", ["/subscriptionDispatchRate", "/dispatchRate"])


def lagging(count: int, threshold: int = 5, rates: str = "/subscriptionDispatchRate") -> Run:
    """A rate of one message per hour for subscriptions with a backlog only, in an interval of stats that begins now."""
    run = Run(
        now=60_000_000, activeConsumerFailoverDelayTimeMillis=0, dispatchThrottlingOnNonBacklogConsumerEnabled=False,
        managedLedgerCursorBackloggedThreshold=threshold,
    )  # fmt: skip
    run.admin("PUT", "/subscription/s", {"ledgerId": -1, "entryId": -1})
    run.fill(count, 100)
    run.admin("POST", rates, rate(1, seconds=3600))
    return run


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize(("count", "received"), [(4, 4), (5, 1)])
def test_rates_may_spare_subscriptions_that_have_caught_up(type_: SubType, count: int, received: int) -> None:
    run = lagging(count)
    assert len(sent(run.subscribe("s", type_, permits=1000))) == received
    assert len(sent([effect for n in range(100, 107) for effect in run.publish(n)])) == (
        7 if received == 4 else 0
    )


@RATES
def test_what_has_caught_up_is_found_out_when_an_interval_of_stats_ends(rates: str) -> None:
    run = lagging(6, rates=rates)
    assert sent(run.subscribe("s", "Shared", permits=2)) == [0]
    run.wait(0.4)
    run.admin("POST", "/subscription/s/skip/3")
    assert sent(run.flow("s", 100)) == []
    assert sent(run.wait(59.599)) == []  # the dispatcher looks every second, from when it found nothing first
    assert sent(run.wait(0.001)) == [3, 4, 5]
    assert len(sent([effect for n in range(100, 107) for effect in run.publish(n)])) == 7


@RATES
def test_who_falls_behind_is_limited_from_the_next_interval_of_stats(rates: str) -> None:
    run = lagging(0, rates=rates)
    run.subscribe("s", "Shared")
    for n in range(7):
        run.publish(n)
    assert len(sent(run.flow("s", 1))) == 1
    run.wait(60)
    assert len(sent(run.flow("s", 100))) == 1
    run.close_consumer("s")
    assert len(sent(run.subscribe("s", "Shared", permits=100))) == 0
    run.unload()
    run.admin("POST", "/subscription/s/skip_all")
    run.subscribe("s", "Shared", permits=100)
    assert len(sent([effect for n in range(100, 107) for effect in run.publish(n)])) == 7


def test_a_configuration_may_spare_subscriptions_that_have_caught_up() -> None:
    run = backlog_of(7)
    run.namespace("POST", "dispatchRate", rate(2, seconds=3600))
    assert len(sent(run.subscribe("s", "Shared", permits=1000))) == 2
    run.do(BrokerConfig(settings={**QUIET, "dispatchThrottlingOnNonBacklogConsumerEnabled": False}), None)
    assert len(sent(run.publish(100))) == 0  # a read waits for permits
    assert len(sent(run.flow("s", 1))) == 6
    run.do(BrokerConfig(settings=QUIET), None)
    assert len(sent(run.publish(101))) == 0


# -- the size of reads --------------------------------------------------------------------------------------------


@pytest.mark.feature("E1")
@pytest.mark.parametrize("type_", TYPES)
def test_a_read_has_so_many_bytes_at_most(type_: SubType) -> None:
    run = backlog_of(20, dispatcherMaxReadSizeBytes=500)
    assert len(sent(run.subscribe("s", type_, permits=1000))) == 20  # several reads
    assert run.topic.ledger.entries_within(500, run.topic.ledger.first_position().next(), 100) == 3


# -- publish rates ------------------------------------------------------------------------------------------------


def paused(run: Run) -> int:
    """How often a real broker would have stopped reading, in the present interval of stats."""
    count: int = response(run.admin("GET", "/stats"))["publishRateLimitedTimes"]
    return count


@pytest.mark.parametrize(
    ("settings", "call_"),
    [
        ({}, "publishRate"),
        ({"maxPublishRatePerTopicInMessages": 3}, ""),
        ({"brokerPublisherThrottlingMaxMessageRate": 3}, ""),
    ],
)
def test_a_publish_rate_counts_when_it_is_exceeded_and_delays_nothing(
    settings: dict[str, Any], call_: str
) -> None:
    run = Run(now=60_000_000, **settings)
    if call_:
        run.namespace("POST", call_, {"publishThrottlingRateInMsg": 3})
    for id_, connection in enumerate("ab"):
        run.create_producer(connection, id_, connection)
    for n, limited in enumerate([0, 0, 1, 1]):
        assert len(of(run.send(n, name="a", id_=0, connection="a"), SendReceipt)) == 1
        assert paused(run) == limited
    run.send(0, name="b", id_=1, connection="b")
    assert paused(run) == 2  # a connection is counted when it is paused, until it is read again
    run.wait(0.9)
    run.send(1, name="b", id_=1, connection="b")
    assert paused(run) == 2  # two messages too many, and one permit: 1 s
    run.wait(5)
    run.send(2, name="b", id_=1, connection="b")
    assert paused(run) == 2
    run.send(3, 9, name="b", id_=1, connection="b")
    assert paused(run) == 3
    run.wait(60)
    assert paused(run) == 0


def test_a_message_that_exceeds_a_publish_rate_has_a_row() -> None:
    """Once for a connection, until it would be read again."""
    run = Run(now=60_000_000, brokerPublisherThrottlingMaxMessageRate=4)
    run.namespace("POST", "publishRate", {"publishThrottlingRateInMsg": 2})
    run.create_producer("p", 1, "a")

    def throttled(number: int) -> list[tuple[str, int]]:
        effects = of(run.send(number, name="p", id_=1, connection="a"), PublishThrottled)
        return [(each.cause, each.fields.until - run.now) for each in effects]

    topic, broker = "the publish rate of the topic", "the publish rate of the broker"
    assert [throttled(n) for n in range(4)] == [[], [(topic, 500)], [], []]
    run.wait(2)
    assert [throttled(n) for n in range(4, 6)] == [[], [(topic, 500)]]
    run.admin("POST", "/publishRate", {"publishThrottlingRateInMsg": 100})
    assert [throttled(n) for n in range(6, 9)] == [[], [(broker, 250)], []]


def test_a_server_is_told_whom_not_to_read() -> None:
    """What it asks later changes nothing."""
    run = Run(now=60_000_000)
    run.admin("POST", "/publishRate", {"publishThrottlingRateInMsg": 2})
    throttled = run.broker.watch_throttled()
    for id_, connection in enumerate("ab"):
        run.create_producer(connection, id_, connection)
        run.send(id_, name=connection, id_=id_, connection=connection)
    assert throttled == [(TOPIC, "b", run.now + 500)]
    assert run.broker.throttled_until(TOPIC, "a", run.now) == 0
    assert run.broker.throttled_until(TOPIC, "b", run.now + 499) == run.now + 500
    run.send(1, name="a", id_=0, connection="a")
    before = run.broker.encode()
    assert run.broker.throttled_until(TOPIC, "b", run.now + 500) == run.now + 1000
    assert run.broker.throttled_until(TOPIC, "b", run.now + 1000) == 0
    assert run.broker.throttled_until("persistent://public/default/none", "b", run.now) == 0
    assert run.broker.encode() == before


def test_a_publish_rate_in_bytes() -> None:
    run = Run(now=60_000_000)
    run.admin("POST", "/publishRate", {"publishThrottlingRateInByte": 250})
    run.fill(2, 100)
    assert paused(run) == 0
    run.fill(1, 100, first=2)
    assert paused(run) == 1
    run.admin("POST", "/maxConsumers", 3)  # all permits again
    run.fill(2, 100, first=3)
    assert paused(run) == 1
    run.admin("DELETE", "/publishRate")
    run.fill(20, 100, first=5)
    assert paused(run) == 1


def throttled(effects: list[Effect]) -> list[int]:
    """Until when connections are not read."""
    return [each.fields.until for each in of(effects, PublishThrottled)]


def test_before_4_0_a_publish_rate_is_noticed_at_a_look_and_ends_with_its_second() -> None:
    run = Run(now=60_000_000, profile="3.0")
    run.namespace("POST", "publishRate", {"publishThrottlingRateInMsg": 3})
    begun = run.now
    run.create_producer()
    assert (
        throttled([effect for n in range(5) for effect in run.send(n)]) == []
    )  # too many, and nobody has looked
    run.wait(0.01)
    assert throttled(run.send(5)) == [begun + 1000]
    assert run.broker.throttled_until(TOPIC, "client", run.now) == begun + 1000
    assert throttled(run.send(6)) == []  # it is paused already
    run.wait(0.99)
    assert run.broker.throttled_until(TOPIC, "client", run.now) == 0
    assert throttled([effect for n in range(7, 10) for effect in run.send(n)]) == []
    run.wait(0.5)
    assert throttled(run.send(10)) == []  # the fourth of its second: noticed behind it
    run.wait(0.1)
    assert throttled(run.send(11)) == [begun + 2000]
    run.wait(5.2)
    assert throttled([effect for n in range(12, 16) for effect in run.send(n)]) == []
    run.wait(0.3)
    assert throttled(run.send(16)) == []  # another second


def test_before_4_0_a_publish_rate_in_bytes_and_one_of_the_broker() -> None:
    run = Run(now=60_000_000, profile="3.0", brokerPublisherThrottlingMaxByteRate=250)
    run.create_producer()
    assert throttled(run.fill(3, 100)) == []
    run.wait(0.049)
    assert throttled(run.fill(1, 100, first=3)) == []
    run.wait(0.001)
    assert throttled(run.fill(1, 100, first=4)) == [60_001_000]


def test_a_precise_publish_rate_is_noticed_at_once_and_lasts_for_what_was_too_much() -> None:
    run = Run(now=60_000_000, profile="3.0", preciseTopicPublishRateLimiterEnable=True)
    run.namespace("POST", "publishRate", {"publishThrottlingRateInMsg": 3})
    run.create_producer()
    run.wait(0.2)
    begun = run.now  # its seconds begin with the first message
    assert throttled([effect for n in range(2) for effect in run.send(n)]) == []
    assert throttled(run.send(2)) == [begun + 1000]
    run.wait(1)
    assert run.broker.throttled_until(TOPIC, "client", run.now) == 0
    run.wait(0.5)
    assert throttled(run.send(3, 9)) == [begun + 3000]  # 7 of 3: two seconds
    run.wait(1.5)
    assert throttled(run.send(10)) == []
    assert throttled(run.send(11)) == [begun + 4000]  # with the one that was too much


# -- the rates in stats -------------------------------------------------------------------------------------------


def stats(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = response(run.admin("GET", "/stats"))
    return found


def rates_of(found: dict[str, Any], direction: str) -> tuple[float, float]:
    return found[f"msgRate{direction}"], found[f"msgThroughput{direction}"]


@pytest.mark.feature("I2")
def test_rates_are_those_of_the_last_interval() -> None:
    run = Run(now=60_000_000)
    run.create_producer()
    run.subscribe("s", "Shared", permits=100)
    for n in range(6):
        run.send(n)
    size = run.topic.ledger.total_size
    run.wait(59.999)
    assert rates_of(stats(run), "In") == (0, 0)
    run.wait(0.001)
    for _ in range(2):
        found = stats(run)
        assert rates_of(found, "In") == rates_of(found, "Out") == (0.1, size / 60)
        assert rates_of(found["publishers"][0], "In") == (0.1, size / 60)
        assert found["averageMsgSize"] == found["publishers"][0]["averageMsgSize"] == pytest.approx(size / 6)
        shown = found["subscriptions"]["s"]
        assert rates_of(shown, "Out") == rates_of(shown["consumers"][0], "Out") == (0.1, size / 60)
        run.wait(59.9)
    run.wait(60)
    assert rates_of(stats(run), "In") == rates_of(stats(run), "Out") == (0, 0)


@pytest.mark.feature("I2")
def test_the_first_interval_of_a_client_begins_with_it_and_rates_leave_with_it() -> None:
    run = Run(now=60_000_000)
    run.publish(0)
    run.wait(50)
    run.create_producer("q")
    run.subscribe("s", "Shared", permits=100)
    for n in range(5):
        run.send(n, name="q")
    run.wait(10)
    by_name = {shown["producerName"]: shown["msgRateIn"] for shown in stats(run)["publishers"]}
    assert by_name == {"p": 1 / 60, "q": 0.5}
    assert stats(run)["msgRateOut"] == 0.6  # with what was there before
    run.close_producer()
    run.close_consumer("s")
    assert (stats(run)["msgRateIn"], stats(run)["msgRateOut"]) == (1 / 60, 0)


@pytest.mark.feature("I2")
@pytest.mark.parametrize("silence", [60, 61, 125, 366 * 86_400])
def test_a_silence_ends_rates(silence: int) -> None:
    run = Run(now=60_000_000)
    for n in range(60):
        run.publish(n)
    run.wait(silence)
    assert stats(run)["msgRateIn"] == (1 if silence < 120 else 0)


@pytest.mark.feature("I2")
def test_the_interval_is_a_setting() -> None:
    run = Run(now=60_000_000, statsUpdateFrequencyInSecs=10)
    for n in range(60):
        run.publish(n)
    run.wait(10)
    assert stats(run)["msgRateIn"] == 6


def test_a_rate_may_be_relative_to_the_publish_rate() -> None:
    run = Run(now=60_000_000)
    run.namespace("POST", "dispatchRate", rate(2, relative=True))
    for n in range(600):
        run.publish(n)
    assert len(sent(run.subscribe("s", "Shared", permits=10_000))) == 2
    run.wait(60)  # 10 messages per second were published
    before = run.topic.subscriptions["s"].messages_out
    run.wait(10)
    assert run.topic.subscriptions["s"].messages_out == before + 120
    run.wait(50)  # none were: half of 10
    before = run.topic.subscriptions["s"].messages_out
    assert run.topic.publish_rates[0] == 5
    run.wait(1)
    assert run.topic.subscriptions["s"].messages_out - before <= 7


OUT = ("msgRateOut", "messageAckRate", "msgRateRedeliver", "chunkedMessageRate")


def counted(run: Run, *names: str, subscription: str = "s") -> list[float]:
    """Let the interval of 60 s end. The counts of the only consumer in it, and those of its subscription are the same."""
    run.wait(60)
    shown = stats(run)["subscriptions"][subscription]
    (consumer,) = shown["consumers"]
    assert [shown[name] for name in names] == [consumer[name] for name in names]
    return [round(shown[name] * 60, 9) for name in names]


def with_batches(type_: SubType, *sizes: int, **settings: Any) -> Run:
    """A consumer with a batch of each size, or a message (1), of ledger 1, in an interval that begins now."""
    run = Run(now=60_000_000, activeConsumerFailoverDelayTimeMillis=0, **settings)
    run.create_producer()
    run.subscribe("s", type_, permits=1000)
    first = 0
    for size in sizes:
        run.send(first, first + size - 1 if size > 1 else None)
        first += size
    return run


@pytest.mark.feature("I2")
@pytest.mark.parametrize(("type_", "acked", "redelivered"), [("Shared", 7, 9), ("Key_Shared", 7, 9), ("Exclusive", 3, 0), ("Failover", 3, 0)])  # fmt: skip
def test_ack_rates_count_messages_where_the_broker_knows_how_many_were_sent(
    type_: SubType, acked: int, redelivered: int
) -> None:
    run = with_batches(type_, 5, 1, 4, 5)
    run.ack("s", (1, 0), (1, 1))
    run.ack("s", (1, 1))  # not pending: counts as one
    run.redeliver("s")
    assert counted(run, *OUT[1:3]) == [acked, redelivered]
    assert counted(run, *OUT) == [0, 0, 0, 0]


@pytest.mark.feature("I2")
def test_a_cumulative_ack_counts_as_one() -> None:
    run = with_batches("Exclusive", 5, 1, 4, 5)
    run.ack("s", (1, 2), cumulative=True)
    assert counted(run, *OUT) == [15, 1, 0, 0]
    run = with_batches("Shared", 5, 1)
    run.ack("s", (1, 1), cumulative=True)  # ignored
    assert counted(run, *OUT) == [6, 0, 0, 0]


@pytest.mark.feature("I2")
@pytest.mark.parametrize(("type_", "index_acks", "rates"), [
    ("Shared", True, [10, 5, 3, 0]), ("Shared", False, [15, 5, 5, 0]), ("Exclusive", True, [5, 1, 0, 0]),
])  # fmt: skip
def test_parts_of_a_batch_count_in_ack_rates(type_: SubType, index_acks: bool, rates: list[float]) -> None:
    run = with_batches(type_, 5, acknowledgmentAtBatchIndexLevelEnabled=index_acks)
    run.ack("s", (1, 0), left=[0b11100], size=5)
    if type_ == "Shared":
        run.redeliver("s", (1, 0))  # with index acks, 3 are left
    run.ack("s", (1, 0))
    if type_ == "Shared" and not index_acks:
        rates = [10, 5, 5, 0]
    assert counted(run, *OUT) == rates


@pytest.mark.feature("I2", "A6")
def test_chunks_have_a_rate() -> None:
    run = with_batches("Shared", 1)
    for index in range(2):
        run.send(7, uuid="u", num_chunks_from_msg=2, chunk_id=index, total_chunk_msg_size=2)
    assert counted(run, *OUT) == [3, 0, 0, 2]
    (publisher,) = stats(run)["publishers"]
    assert round(publisher["chunkedMessageRate"] * 60, 9) == 2
    assert counted(run, *OUT) == [0, 0, 0, 0]


# -- the subscribe rate -------------------------------------------------------------------------------------------


def refused(effects: list[Effect]) -> bool:
    error = of(effects, Error)
    assert not error or (error[0].error, error[0].cause) == (
        "NotAllowedError",
        "Subscribe limited by subscribe rate limit per consumer.",
    )
    return bool(error)


def again(run: Run, name: str = "c", id_: int = 1) -> bool:
    """A consumer that comes and goes. Was it refused?"""
    effects = run.subscribe("s", "Shared", id_=id_, consumer_name=name)
    if not refused(effects):
        one(effects, Success)
        run.close_consumer("s", id_=id_)
        return False
    return True


def test_a_consumer_may_subscribe_so_often() -> None:
    run = Run()
    run.namespace(
        "POST", "subscribeRate", {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 10}
    )
    assert [again(run) for _ in range(3)] == [False, False, True]
    assert [again(run, "d"), again(run, id_=2)] == [False, False]
    run.wait(4.999)
    assert again(run)
    run.wait(0.001)
    assert [again(run), again(run)] == [False, True]
    run.wait(100)
    assert [again(run) for _ in range(3)] == [False, False, True]


def test_a_new_subscribe_rate_gives_all_permits() -> None:
    run = Run(subscribeThrottlingRatePerConsumer=1)
    assert [again(run), again(run)] == [False, True]
    run.namespace("POST", "maxConsumersPerTopic", 7)
    assert again(run)
    run.admin("POST", "/subscribeRate", {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 31})
    assert [again(run), again(run)] == [False, True]
    run.unload()
    assert not again(run)
    run.admin("DELETE", "/subscribeRate")
    run.do(BrokerConfig(settings=QUIET), None)
    assert [again(run), again(run)] == [False, False]


def test_consumers_that_have_all_permits_are_forgotten() -> None:
    run = Run(subscribeThrottlingRatePerConsumer=2, subscribeRatePeriodPerConsumerInSecond=10)
    for n in range(30):
        again(run, f"c{n}")
        run.wait(1)
    assert len(run.topic.subscribe_buckets) <= 7


# -- calls --------------------------------------------------------------------------------------------------------

BODIES: dict[str, dict[str, Any]] = {
    "dispatchRate": rate(3, 4, seconds=5, relative=True),
    "subscriptionDispatchRate": rate(3),
    "publishRate": {"publishThrottlingRateInMsg": 3, "publishThrottlingRateInByte": -1},
    "subscribeRate": {"subscribeThrottlingRatePerConsumer": 3, "ratePeriodInSecond": 30},
}


def call(run: Run, level: str, method: str, name: str, body: Any = None) -> AdminResponse:
    effects = (
        run.namespace(method, name, body) if level == "namespace" else run.admin(method, f"/{name}", body)
    )
    return one(effects, AdminResponse)


@pytest.mark.parametrize("level", ["namespace", "topic"])
@pytest.mark.parametrize("name", sorted(BODIES))
def test_rates_are_set_shown_and_removed(name: str, level: str) -> None:
    run = backlog_of(0)
    unset = call(run, level, "GET", name).fields
    assert call(run, level, "POST", name, BODIES[name]).fields.status == 204
    found = call(run, level, "GET", name).fields
    assert (found.status, found.response) == (200, BODIES[name])
    assert call(run, level, "DELETE", name).fields.status == 204
    assert call(run, level, "GET", name).fields == unset


def test_rates_of_a_subscription() -> None:
    run = backlog_of(0)
    unset = call(run, "topic", "GET", "a%2Fb/dispatchRate").fields
    assert call(run, "topic", "POST", "a%2Fb/dispatchRate", rate(3)).fields.status == 204
    assert response(run.admin("GET", "/a%2Fb/dispatchRate")) == rate(3)
    assert call(run, "topic", "GET", "c/dispatchRate").fields == unset
    assert call(run, "topic", "DELETE", "a%2Fb/dispatchRate").fields.status == 204
    assert call(run, "topic", "GET", "a%2Fb/dispatchRate").fields == unset
    assert call(run, "namespace", "POST", "a/dispatchRate", rate(3)).fields.status == 404


@pytest.mark.parametrize("level", ["namespace", "topic"])
@pytest.mark.parametrize(
    "body", [[], 3, {"dispatchThrottlingRateInMsg": "x"}, {"dispatchThrottlingRateInMsg": 2**31}]
)
def test_what_is_not_a_rate_is_refused(body: Any, level: str) -> None:
    run = backlog_of(0)
    assert call(run, level, "POST", "dispatchRate", body).fields.status == 400


def test_absent_fields_have_pulsars_defaults() -> None:
    run = backlog_of(0)
    for name in BODIES:
        call(run, "topic", "POST", name, {})
    assert response(run.admin("GET", "/dispatchRate")) == rate(0, 0, seconds=0)
    assert response(run.admin("GET", "/publishRate")) == {
        "publishThrottlingRateInMsg": -1,
        "publishThrottlingRateInByte": -1,
    }
    assert response(run.admin("GET", "/subscribeRate")) == {
        "subscribeThrottlingRatePerConsumer": -1,
        "ratePeriodInSecond": 30,
    }


def test_the_dispatch_rates_of_two_subscriptions_are_policies_of_their_own() -> None:
    first, second = (policy_of(f"{name}/dispatchRate", "") for name in ("a", "b"))
    assert None not in (first, second)
    assert first != second == policy_of("b/dispatchRate", "")
