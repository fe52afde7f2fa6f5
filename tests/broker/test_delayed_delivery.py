"""Delayed delivery on Shared subscriptions (docs/rules/shared.md §9, §10), through the whole broker.

Times are ms after `BASE`, at which the clock starts."""

from typing import Any, Literal

import pytest

from schemas.effects import Effect, Message, SendError
from schemas.units import LATEST_TIME
from streaming.broker.broker import Broker
from tests.broker.kit import TOPIC, Run, Stored, of, one, sent

pytestmark = pytest.mark.feature("E6")

ROUNDED: dict[str, Any] = {"delayedDeliveryRoundsTimes": True}
"""The rule of versions after 4.0."""

BASE = 2**40
"""A multiple of every bucket's width."""


def with_consumer(
    type_: Literal["Exclusive", "Shared", "Failover", "Key_Shared"] = "Shared",
    *,
    permits: int = 1000,
    **settings: Any,
) -> Run:
    """A broker with one consumer."""
    run = Run(now=BASE, activeConsumerFailoverDelayTimeMillis=0, **settings)
    run.subscribe("s", type_, permits=permits)
    return run


def delayed(run: Run, *times: int, first: int = 0) -> list[int]:
    """Publish an entry for each of these delivery times; what was delivered at once."""
    entries = []
    for sequence_id, time in enumerate(times, first):
        entries += sent(run.publish(sequence_id, deliver_at_time=BASE + time))
    return entries


def at(run: Run, time: int) -> list[int]:
    """What is delivered when the clock goes on to this time."""
    return sent(run.wait((BASE + time - run.now) / 1000))


# -- what is delayed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strict", "time", "at_once"),
    [
        (False, 10, True),
        (False, 99, True),
        (False, 100, True),
        (False, 101, False),
        (False, 200, False),
        (True, 0, True),
        (True, 1, False),
        (True, 100, False),
    ],
)
def test_what_is_nearly_due_is_delivered_at_once(strict: bool, time: int, at_once: bool) -> None:
    run = with_consumer(delayedDeliveryTickTimeMillis=100, isDelayedDeliveryDeliverAtTimeStrict=strict)
    assert delayed(run, time) == ([0] if at_once else [])


@pytest.mark.parametrize("type_", ["Exclusive", "Failover"])
def test_one_active_consumer_gets_everything_at_once(type_: Any) -> None:
    run = with_consumer(type_)
    assert delayed(run, 60_000) == [0]


def test_key_shared_delays_too() -> None:
    run = with_consumer("Key_Shared")
    assert delayed(run, 60_000) == []
    assert at(run, 60_000) == [0]


@pytest.mark.parametrize("time", [LATEST_TIME - 1, LATEST_TIME, 2**53, 2**63 - 1])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("rounds", [False, True])
def test_what_is_due_after_all_time_waits_for_ever(time: int, strict: bool, rounds: bool) -> None:
    """As with a real 4.0.7, which takes every delivery time."""
    run = with_consumer(isDelayedDeliveryDeliverAtTimeStrict=strict, delayedDeliveryRoundsTimes=rounds)
    assert sent(run.publish(0, deliver_at_time=time)) == []
    assert delayed(run, 2000, first=1) == []
    Broker.decode(run.broker.encode(), Stored())
    assert at(run, 10**10) == [1]
    assert run.broker.delivery(TOPIC, "s").state == "waiting for a time"


def test_it_can_be_turned_off() -> None:
    run = with_consumer(delayedDeliveryEnabled=False)
    assert delayed(run, 60_000) == [0]


@pytest.mark.feature("B3")
def test_a_longer_delay_than_allowed_is_refused() -> None:
    run = with_consumer(delayedDeliveryMaxDelayInMillis=5000)
    run.now = BASE + 1000
    refused = one(run.publish(0, deliver_at_time=BASE + 6001), SendError)
    assert refused.error == "NotAllowedError"
    assert refused.cause == "Exceeds max allowed delivery delay of 5000 milliseconds"
    assert of(run.publish(1, deliver_at_time=BASE + 6000), SendError) == []
    assert of(run.publish(2, deliver_at_time=BASE + 7000, publish_time=BASE + 2000), SendError) == []
    assert run.topic.ledger.number_of_entries == 2


@pytest.mark.feature("B3", "I2")
@pytest.mark.parametrize(("profile", "refused"), [("2.10", 0), ("3.0", 0), ("4.0", 1)])
def test_before_4_0_no_delay_is_too_long(profile: Any, refused: int) -> None:
    run = with_consumer(profile=profile, delayedDeliveryMaxDelayInMillis=5000)
    assert len(of(run.publish(0, deliver_at_time=BASE + 60_000), SendError)) == refused


# -- when it is delivered -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strict", "time"), [(False, 59_904), (True, 60_416)])
def test_the_timer_fires_at_the_buckets_time(strict: bool, time: int) -> None:
    run = with_consumer(isDelayedDeliveryDeliverAtTimeStrict=strict, **ROUNDED)
    delayed(run, 60_400)
    assert at(run, time - 1) == []
    assert at(run, time) == [0]


@pytest.mark.parametrize(
    ("strict", "deliver_at", "time"),
    [(False, 60_400, 59_415), (True, 60_400, 60_416), (True, 61_000, 61_440)],
)
def test_another_trigger_may_find_it_due_earlier(strict: bool, deliver_at: int, time: int) -> None:
    run = with_consumer(isDelayedDeliveryDeliverAtTimeStrict=strict, **ROUNDED)
    delayed(run, deliver_at)
    run.now = BASE + time - 1
    assert sent(run.flow("s", 1)) == []
    run.now = BASE + time
    assert sent(run.flow("s", 1)) == [0]


@pytest.mark.parametrize("strict", [False, True])
def test_the_timer_rests_for_a_tick(strict: bool) -> None:
    run = with_consumer(isDelayedDeliveryDeliverAtTimeStrict=strict, **ROUNDED)
    delayed(run, 59_904, 60_416)
    assert at(run, 59_904) == [0]
    assert at(run, 60_903) == []
    assert at(run, 60_904) == [1]


def test_by_time_then_by_position() -> None:
    run = with_consumer(delayedDeliveryTickTimeMillis=1)
    assert delayed(run, 20, 10, 30, 50, 40) == []
    assert at(run, 15) == [1]
    assert at(run, 60) == [0, 2, 4, 3]
    run = with_consumer(**ROUNDED)
    delayed(run, 60_400, 59_910)
    assert at(run, 60_000) == [0, 1], "one bucket"


@pytest.mark.parametrize(("strict", "time"), [(False, 60_400), (True, 60_400)])
def test_times_are_kept_as_they_are(strict: bool, time: int) -> None:
    """4.0.7; the recorded delayed_order shows it: a message due 99 ms after a bucket's time missed that tick."""
    run = with_consumer(isDelayedDeliveryDeliverAtTimeStrict=strict)
    delayed(run, 60_400)
    assert at(run, time - 1) == []
    assert at(run, time) == [0]


@pytest.mark.parametrize(("strict", "time"), [(False, 59_400), (True, 60_400)])
def test_another_trigger_may_find_it_due_a_tick_earlier(strict: bool, time: int) -> None:
    run = with_consumer(isDelayedDeliveryDeliverAtTimeStrict=strict)
    delayed(run, 60_400)
    run.now = BASE + time - 1
    assert sent(run.flow("s", 1)) == []
    run.now = BASE + time
    assert sent(run.flow("s", 1)) == [0]


def test_what_is_due_within_a_tick_goes_by_position() -> None:
    run = with_consumer()
    delayed(run, 6000, 5500, 5000, 6001)
    assert at(run, 5000) == [0, 1, 2]
    assert at(run, 6000) == []
    assert at(run, 6001) == [3]


def test_what_is_not_delayed_overtakes() -> None:
    run = with_consumer()
    delayed(run, 60_000)
    assert sent(run.publish(1)) == [1]
    assert at(run, 60_000) == [0]


def test_a_message_whose_time_has_come_is_redelivered_at_once() -> None:
    run = with_consumer()
    delayed(run, 60_000)
    at(run, 60_000)
    assert one(run.redeliver("s", (1, 0)), Message).redelivery_count == 1


def test_one_that_is_taken_too_early_goes_back() -> None:
    run = with_consumer()
    delayed(run, 60_400)
    run.configure(delayedDeliveryTickTimeMillis=1)
    assert at(run, 60_399) == []
    assert at(run, 60_400) == [0]


# -- what it costs ------------------------------------------------------------------------------------------------


def test_who_waits_uses_no_permits_and_is_nobodys() -> None:
    run = with_consumer(permits=3)
    delayed(run, *[60_000] * 5)
    (consumer,) = run.topic.subscriptions["s"].consumers
    assert (consumer.permits, consumer.unacked, consumer.pending) == (3, 0, {})
    stats = run.broker.topic_stats(run.topic.name)["stats"]["subscriptions"]["s"]
    assert (stats["msgBacklog"], stats["msgDelayed"], stats["msgBacklogNoDelayed"]) == (5, 5, 0)
    assert at(run, 60_000) == [0, 1, 2]
    assert sent(run.flow("s", 5)) == [3, 4]


def test_what_was_skipped_does_not_come() -> None:
    run = with_consumer()
    delayed(run, 60_000)
    run.admin("POST", "/subscription/s/skip_all")
    stats = run.broker.topic_stats(run.topic.name)["stats"]["subscriptions"]["s"]
    assert (stats["msgBacklog"], stats["msgDelayed"], stats["msgBacklogNoDelayed"]) == (0, 0, 0)
    assert at(run, 70_000) == []
    assert sent(run.publish(1)) == [1]


# -- fixed delays -------------------------------------------------------------------------------------------------


def test_with_enough_of_one_delay_nothing_more_is_read() -> None:
    run = with_consumer(delayedDeliveryFixedDelayDetectionLookahead=3)
    delayed(run, 5000, 5000, 5001)
    read = run.cursor("s").read_position
    assert sent(run.publish(3)) == []
    assert sent(run.flow("s", 1)) == []
    assert run.cursor("s").read_position == read == (1, 3)
    assert at(run, 5000) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("times", "lookahead"),
    [((5000, 5000), 3), ((9000, 5000, 9000), 3), ((5000, 900, 5000, 5000), 3), ((5000, 5000, 5000), 0)],
)
def test_with_others_it_goes_on(times: tuple[int, ...], lookahead: int) -> None:
    run = with_consumer(delayedDeliveryFixedDelayDetectionLookahead=lookahead)
    delayed(run, *times)
    assert sent(run.publish(9)) == [len(times)]


def test_that_delays_differ_is_remembered_when_the_consumers_change() -> None:
    run = with_consumer(delayedDeliveryFixedDelayDetectionLookahead=2)
    run.publish(0)
    delayed(run, 5000, 5000, first=1)
    run.ack("s", (1, 0))
    run.close_consumer("s")
    run.subscribe("s", "Shared", permits=10)
    assert sent(run.publish(3)) == [3]


# -- consumers go, the topic goes, the broker goes ----------------------------------------------------------------


def test_when_all_consumers_went_the_next_one_reads_them_again() -> None:
    run = with_consumer()
    delayed(run, 60_000)
    run.close_consumer("s")
    assert at(run, 30_000) == []
    assert sent(run.subscribe("s", "Shared", permits=10)) == []
    assert at(run, 60_000) == [0]


def test_without_consumers_the_time_passes_unnoticed() -> None:
    run = with_consumer()
    delayed(run, 60_000)
    run.close_consumer("s")
    assert at(run, 90_000) == []
    assert sent(run.subscribe("s", "Shared", permits=10)) == [0]


def test_after_an_unload_they_are_read_again() -> None:
    run = with_consumer()
    delayed(run, 60_000)
    run.unload()
    assert sent(run.subscribe("s", "Shared", permits=10)) == []
    assert at(run, 59_000) == []
    assert at(run, 60_000) == [0]


def test_a_restart_between_changes_nothing() -> None:
    store = Stored()
    run = with_consumer()
    effects: list[Effect] = run.publish(0, deliver_at_time=BASE + 60_000)
    store.add(effects)
    run.broker = Broker.decode(run.broker.encode(), store)
    assert at(run, 59_999) == []
    assert at(run, 60_000) == [0]


@pytest.mark.parametrize("classic", [False, True])
def test_delayed_messages_on_key_shared(classic: bool) -> None:
    run = Run(subscriptionKeySharedUseClassicPersistentImplementation=classic)
    run.subscribe("s", "Key_Shared", permits=5)
    assert sent(run.publish(0, key="k", deliver_at_time=run.now + 5000)) == []
    assert sent(run.publish(1, key="l")) == [1]
    assert sent(run.wait(6)) == [0]
