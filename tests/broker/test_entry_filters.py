"""What is left out before an entry is sent (docs/rules/shared.md §11): entry filters, and markers for brokers only."""

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from schemas.commands import BrokerConfig, KeyValue, MessageMetadata
from schemas.effects import Message, Quarantined, ReachedEndOfTopic
from streaming.broker import entry_filters
from streaming.broker.broker import Broker
from streaming.broker.entry_filters import FilterResult
from tests.broker.kit import Run, Stored, of, one, sent

pytestmark = pytest.mark.feature("E7")

Type = Literal["Exclusive", "Shared"]


def by_key(metadata: MessageMetadata, properties: Mapping[str, str]) -> FilterResult:
    """A message's key says what becomes of it."""
    match metadata.partition_key:
        case "reject":
            return "REJECT"
        case "later":
            return "RESCHEDULE"
    return "ACCEPT"


def nothing(metadata: MessageMetadata, properties: Mapping[str, str]) -> FilterResult:
    return "REJECT"


entry_filters.register("ByKey", by_key)
entry_filters.register("Nothing", nothing)


def with_consumer(type_: Type = "Shared", names: str = "ByKey", **settings: Any) -> Run:
    """A broker with a consumer and these filters."""
    run = Run(entryFilterNames=names, **settings)
    run.subscribe("s", type_, permits=100)
    return run


def unacked(run: Run) -> int:
    return sum(consumer.unacked for consumer in run.topic.subscriptions["s"].consumers)


def permits(run: Run) -> int:
    (consumer,) = run.topic.subscriptions["s"].consumers
    return consumer.permits


# -- REJECT -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
def test_what_is_rejected_is_acked(type_: Type) -> None:
    run = with_consumer(type_)
    assert sent(run.publish(0)) == [0]
    assert sent(run.publish(1, key="reject")) == []
    assert sent(run.publish(2)) == [2]
    assert run.backlog("s") == 2
    assert run.topic.subscriptions["s"].acked == 1
    assert permits(run) == 98
    assert unacked(run) == (2 if type_ == "Shared" else 0)
    run.ack("s", (1, 0), (1, 2))
    assert run.mark_delete("s") == (1, 2)


@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
def test_a_terminated_topic_ends_when_the_rest_is_rejected(type_: Type) -> None:
    run = with_consumer(type_)
    run.close_consumer("s")
    run.publish(0, key="reject")
    run.admin("POST", "/terminate")
    ends = of(run.subscribe("s", type_, permits=10), ReachedEndOfTopic)
    assert [end.consumer_id for end in ends] == [1, 1], (
        "with the broker's own ack, and when nothing more can be read"
    )


def test_ledgers_of_rejected_entries_are_trimmed() -> None:
    run = with_consumer(managedLedgerMaxEntriesPerLedger=1)
    for sequence_id in range(3):
        run.publish(sequence_id, key="reject")
    run.check("consumedLedgers")
    assert list(run.topic.ledger.ledgers) == [4]


def test_a_rejection_is_no_write_above_the_limiters_rate() -> None:
    run = with_consumer(managedLedgerDefaultMarkDeleteRateLimit=1)
    run.publish(0, key="reject")
    run.publish(1, key="reject")
    assert run.mark_delete("s") == (1, 1)
    assert run.cursor("s").key == (1, 0)


# -- RESCHEDULE ---------------------------------------------------------------------------------------------------


def test_what_is_rescheduled_comes_a_second_later_with_a_higher_count() -> None:
    run = with_consumer()
    assert sent(run.publish(0, key="later")) == []
    assert sent(run.publish(1)) == [1]
    assert run.backlog("s") == 2
    assert permits(run) == 99
    run.wait(0.999)
    run.configure()
    message = one(run.wait(0.001), Message)
    assert (message.entry_id, message.redelivery_count) == (0, 1)


def test_each_round_raises_the_count() -> None:
    run = with_consumer()
    run.publish(0, key="later")
    assert sent(run.wait(2.5)) == []
    run.configure()
    assert one(run.wait(0.5), Message).redelivery_count == 3


def test_how_much_later_is_a_setting() -> None:
    run = with_consumer(dispatcherEntryFilterRescheduledMessageDelay=50)
    run.publish(0, key="later")
    run.configure()
    assert sent(run.wait(0.049)) == []
    assert sent(run.wait(0.001)) == [0]


@pytest.mark.parametrize(
    "type_",
    [
        "Exclusive",
        "Shared",
    ],
)
def test_time_goes_on_without_a_delay(type_: Type) -> None:
    run = with_consumer(type_, dispatcherEntryFilterRescheduledMessageDelay=0)
    run.publish(0, key="later")
    assert run.topic.subscriptions["s"].dispatcher.due() > run.now  # type: ignore[union-attr]


def test_on_exclusive_everything_unacked_comes_again() -> None:
    run = with_consumer("Exclusive")
    for sequence_id, key in enumerate((None, "later", None)):
        run.publish(sequence_id, key=key)
    run.ack("s", (1, 0))
    again = of(run.wait(1), Message)
    assert [message.entry_id for message in again] == [2]
    run.configure()
    again = of(run.wait(1), Message)
    assert [(message.entry_id, message.redelivery_count) for message in again] == [(1, 0), (2, 0)]
    assert run.wait(10) == []


def test_on_exclusive_each_is_put_off_on_its_own() -> None:
    run = with_consumer("Exclusive")
    run.publish(0, key="later")
    run.wait(0.6)
    run.publish(1, key="later")
    run.configure()
    assert sent(run.wait(0.4)) == [0, 1]
    run.ack("s", (1, 0))
    assert sent(run.wait(0.6)) == [1], "the second's own time"
    assert run.wait(10) == []


def test_on_exclusive_the_next_consumer_starts_afresh() -> None:
    run = with_consumer("Exclusive")
    run.publish(0, key="later")
    run.close_consumer("s")
    run.configure()
    assert sent(run.subscribe("s", permits=10)) == [0]
    assert run.wait(10) == []


# -- which filters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "entries"),
    [("ByKey,Nothing", []), ("Nothing,ByKey", []), ("PropertyFilter", [0, 1]), ("", [0, 1])],
)
def test_the_first_that_does_not_accept_decides(names: str, entries: list[int]) -> None:
    run = with_consumer(names=names)
    run.publish(0, key="later")
    run.publish(1)
    assert run.backlog("s") == {"ByKey,Nothing": 1, "Nothing,ByKey": 0}.get(names, 2)
    assert sorted(run.topic.subscriptions["s"].consumers[0].pending) == [(1, entry) for entry in entries]


def test_a_subscriptions_properties_choose_its_messages() -> None:
    run = Run(entryFilterNames="PropertyFilter")
    run.subscribe("eu", permits=10, subscription_properties=[KeyValue("filter.region", "eu")])
    run.subscribe("all", permits=10, subscription_properties=[KeyValue("region", "eu")])
    got: dict[str, list[int]] = {}
    for sequence_id, region in enumerate(("eu", "us", None)):
        properties = {} if region is None else {"region": region}
        for message in of(run.publish(sequence_id, properties=properties), Message):
            got.setdefault(message.subscription, []).append(message.entry_id)
    assert got == {"eu": [0], "all": [0, 1, 2]}


def test_an_unknown_filter_is_refused_and_the_old_ones_stay() -> None:
    run = with_consumer()
    settings: dict[str, Any] = {"entryFilterNames": "ByKey,ByChance"}
    refused = one(run.do(BrokerConfig(settings=settings), None), Quarantined)
    assert (refused.rule, refused.cause) == ("broker_config", "unknown entry filters: ByChance")
    assert sent(run.publish(0, key="reject")) == []


def test_a_name_is_taken_once() -> None:
    entry_filters.register("ByKey", by_key)
    with pytest.raises(ValueError, match="ByKey is registered already"):
        entry_filters.register("ByKey", nothing)


def test_the_count_of_what_is_rejected_is_forgotten() -> None:
    run = with_consumer()
    run.publish(0, key="later")
    run.configure(entryFilterNames="Nothing")
    run.wait(1)
    assert run.backlog("s") == 0
    assert run.topic.subscriptions["s"].dispatcher.counts == {}  # type: ignore[union-attr]


# -- markers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
@pytest.mark.parametrize(
    ("marker", "reaches"), [(9, True), (10, False), (13, False), (21, False), (22, True)]
)
def test_markers_for_brokers_reach_nobody(type_: Type, marker: int, reaches: bool) -> None:
    run = with_consumer(type_, names="")
    run.create_producer()
    assert sent(run.send(0, marker_type=marker)) == ([0] if reaches else [])
    assert run.backlog("s") == reaches
    assert permits(run) == 100 - reaches
    assert sent(run.send(1)) == [1]


def test_a_filter_may_reject_a_marker_first() -> None:
    run = with_consumer(names="ByKey")
    run.create_producer()
    run.send(0, marker_type=10, partition_key="later")
    assert run.backlog("s") == 1
    run.configure()
    assert sent(run.wait(1)) == []
    assert run.backlog("s") == 0


@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
def test_a_restart_between_changes_nothing(type_: Type) -> None:
    store = Stored()
    run = with_consumer(type_)
    for sequence_id, key in enumerate(("later", "reject", None)):
        store.add(run.publish(sequence_id, key=key))
    run.broker = Broker.decode(run.broker.encode(), store)
    assert sent(run.wait(0.999)) == []
    run.configure()
    assert sent(run.wait(0.001)) == ([0, 2] if type_ == "Exclusive" else [0])


# -- counts -------------------------------------------------------------------------------------------------------


def counts(run: Run) -> tuple[int, ...]:
    found = run.topic.subscriptions["s"].filtered
    return found.processed, found.accepted, found.rejected, found.rescheduled


@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
def test_what_filters_decide_is_counted_in_messages(type_: Type) -> None:
    run = with_consumer(type_)
    run.create_producer()
    run.send(0, 2, partition_key="reject")
    run.send(3, 4, partition_key="a")
    assert counts(run) == (5, 2, 3, 0)
    assert run.topic.subscriptions["s"].last_mark_delete_advanced == run.now


@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
def test_what_is_rescheduled_is_counted_at_each_retry_although_none_is_made(type_: Type) -> None:
    """The dispatcher judges it once, again after a second, and then sleeps until something happens."""
    run = with_consumer(type_)
    run.create_producer()
    run.send(0, 1, partition_key="later")
    assert counts(run) == (2, 0, 0, 2)
    run.wait(3600.5)
    run.flow("s", 1)
    assert counts(run) == (2 * 3601, 0, 0, 2 * 3601)


def test_what_is_delayed_was_processed_and_not_accepted_yet() -> None:
    run = with_consumer("Shared")
    run.publish(0, key="a", deliver_at_time=run.now + 60_000)
    assert counts(run) == (1, 0, 0, 0)
    run.wait(120)
    assert counts(run) == (2, 1, 0, 0)


def test_another_dispatcher_counts_from_0() -> None:
    run = with_consumer("Shared")
    run.publish(0, key="a")
    run.ack("s", (1, 0))
    run.close_consumer("s")
    run.subscribe("s", "Exclusive", permits=1)
    assert counts(run) == (0, 0, 0, 0)
    run.publish(1, key="a")
    assert counts(run) == (1, 1, 0, 0)
    run.unload()
    assert counts(run) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("key", "expected"), [("a", (1, 1, 0, 0)), ("reject", (1, 0, 1, 0)), ("later", (1, 0, 0, 1))]
)
def test_filters_of_non_persistent_topics_count(key: str, expected: tuple[int, ...]) -> None:
    topic = "non-persistent://public/default/t"
    run = Run(entryFilterNames="ByKey")
    run.subscribe("s", "Shared", permits=10, topic=topic)
    run.publish(0, key=key, topic=topic)
    found = run.broker.non_persistent_topic(topic).subscriptions["s"].filtered
    assert (found.processed, found.accepted, found.rejected, found.rescheduled) == expected
