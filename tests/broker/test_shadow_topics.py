"""Shadow topics: the entries of a source at their positions there (docs/rules/ledgers.md §15)."""

from itertools import chain
from typing import Any

import msgspec
import pytest

from schemas.commands import Admin, MessageIdData, MessageMetadata, Mirror, MirroredSubscription, Send
from schemas.effects import (
    AdminResponse,
    CloseConnection,
    Effect,
    LedgerClosed,
    LedgerDeleted,
    MirrorDrift,
    SendError,
    SendReceipt,
    Unsupported,
)
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.persistent.cleanup.trimming import SINCE_THE_LOOK
from streaming.broker.persistent.publish.shadow import LARGEST_LEDGER
from streaming.broker.persistent.topic import SHADOW_SOURCE
from streaming.broker.position import Position
from tests.broker.kit import TOPIC, Run, of, one


def shadow(**settings: object) -> Run:
    """A shadow topic without entries."""
    run = Run(**settings)  # type: ignore[arg-type]
    assert one(run.admin("PUT", "", {SHADOW_SOURCE: TOPIC}), AdminResponse).fields.status == 204
    return run


def store(
    run: Run,
    ledger: int,
    entry: int,
    producer: str = "p",
    *,
    sequence_id: int = 0,
    payload: str = "",
    publish_time: int | None = None,
    **metadata: object,
) -> list[Effect]:
    """An entry of the source."""
    return run.do(
        Send(
            connection="mirror", producer_id=0, sequence_id=sequence_id, message_id=MessageIdData(ledger, entry), payload=payload,
            num_messages=metadata.get("num_messages_in_batch", 1),  # type: ignore[arg-type]
            metadata=MessageMetadata(producer, sequence_id, run.now if publish_time is None else publish_time, **metadata),  # type: ignore[arg-type]
        )
    )  # fmt: skip


def position(effects: list[Effect]) -> tuple[int, int]:
    receipt = one(effects, SendReceipt)
    return receipt.ledger_id, receipt.entry_id


@pytest.mark.feature("B2")
def test_entries_keep_the_positions_of_the_source() -> None:
    run = shadow(managedLedgerMaxEntriesPerLedger=2)
    positions = [(7, 0), (7, 1), (7, 2), (7, 3), (19, 0), (20, 0), (LARGEST_LEDGER, 0), (LARGEST_LEDGER, 1)]
    effects = [store(run, *each) for each in positions]
    assert [position(each) for each in effects] == positions
    closed = [(each.ledger_id, each.entries) for each in of(chain(*effects), LedgerClosed)]
    assert closed == [
        (7, 4),
        (19, 1),
        (20, 1),
    ]  # where the source went on, though a ledger here has two entries


def test_what_the_source_accepted_is_not_judged_again() -> None:
    run = shadow(
        brokerDeduplicationEnabled=True, maxMessageSize=10, maxProducersPerTopic=1, backlogQuotaDefaultLimitBytes=1,
        backlogQuotaDefaultRetentionPolicy="producer_exception", encryptionRequireOnProducer=True,
        backlogQuotaCheckIntervalInSeconds=1,
    )  # fmt: skip
    run.subscribe("s")
    for entry in range(5):
        run.wait(2)
        assert position(store(run, 3, entry, f"p{entry % 2}")) == (3, entry)
    assert run.topic.dedup.last_sequence_id("p1") == 0
    assert not run.topic.producers


@pytest.mark.parametrize("wrong", [(7, 1), (7, 3), (6, 9), (8, 1), (LARGEST_LEDGER + 1, 0), (-1, -1), (7, 2**64 - 1)])  # fmt: skip
def test_an_entry_out_of_place_is_refused(wrong: tuple[int, int]) -> None:
    run = shadow()
    store(run, 7, 0)
    store(run, 7, 1)
    error = one(store(run, *wrong), SendError)
    assert error.error == "NotAllowedError"
    assert "can't follow 7:1" in error.cause
    assert position(store(run, 7, 2)) == (7, 2)


def test_a_batch_of_more_messages_than_bytes_is_refused() -> None:
    run = shadow()
    effects = run.do(
        Send(
            connection="m", producer_id=0, sequence_id=0, message_id=MessageIdData(1, 0), payload="x",
            metadata=MessageMetadata("p", 0, run.now, num_messages_in_batch=1000),
        )
    )  # fmt: skip
    assert "a batch of 1000 messages" in one(effects, SendError).cause


def test_nobody_else_publishes_there() -> None:
    run = shadow()
    run.create_producer()
    assert one(run.send(0), SendError).cause == "Cannot send messages to a shadow topic"
    assert one(run.publish(0, "q"), SendError).cause == "Cannot send messages to a shadow topic"
    for fault in ("FailWrites", "DelayWrites"):
        assert "shadow topic" in one(run.fault(fault, 1), Unsupported).cause
    assert position(store(run, 1, 0)) == (1, 0)
    other = Run()
    assert of(store(other, 1, 0), CloseConnection)  # no shadow topic, and no producer
    other.create_producer(connection="mirror", id_=0)
    assert "Only shadow topic" in one(store(other, 1, 0), SendError).cause


def test_a_topic_is_a_shadow_topic_from_the_beginning_and_for_good() -> None:
    run, other = shadow(), Run()
    other.publish(0)
    for each, method, call, body in (
        (run, "DELETE", f"/properties?key={SHADOW_SOURCE}", None),
        (run, "PUT", "/properties", {SHADOW_SOURCE: "persistent://a/b/c"}),
        (other, "PUT", "/properties", {SHADOW_SOURCE: TOPIC}),
    ):
        assert one(each.admin(method, call, body), AdminResponse).fields.status == 412
    assert run.topic.is_shadow
    assert not other.topic.is_shadow


@pytest.mark.parametrize("source", [True, False])
def test_policies_may_come_before_a_shadow_topic(source: bool) -> None:
    """What-if sets policies at the beginning, before the log creates the topic."""
    run = Run()
    run.admin("POST", "/messageTTL", 9)
    body = {SHADOW_SOURCE: TOPIC} if source else {}
    assert one(run.admin("PUT", "", body), AdminResponse).fields.status == (204 if source else 409)
    assert run.topic.is_shadow == source
    assert one(run.admin("PUT", "", body), AdminResponse).fields.status == 409


def test_its_ledger_stays_open_until_the_source_goes_on() -> None:
    run = shadow(
        managedLedgerMaxLedgerRolloverTimeMinutes=1, managedLedgerInactiveLedgerRolloverTimeSeconds=1,
        retentionCheckIntervalInSeconds=1,
    )  # fmt: skip
    run.subscribe("s")
    effects = store(run, 5, 0) + run.wait(600) + run.unload() + run.wait(600) + store(run, 5, 1)
    assert not of(effects, LedgerClosed)
    assert of(run.ack("s", (5, 1), cumulative=True) + run.wait(600), LedgerDeleted) == []
    run.subscribe("s")
    run.ack("s", (5, 1), cumulative=True)
    assert not of(
        store(run, 9, 0) + run.wait(600), LedgerDeleted
    )  # before MIRROR, another subscription may need it
    kept = {"s": MirroredSubscription((5, 1))}
    assert not of(run.do(Mirror(ledger_id=9, first_ledger=5, subscriptions=kept)), LedgerDeleted)
    deleted = run.do(Mirror(ledger_id=9, first_ledger=9, subscriptions=kept))
    assert [(each.ledger_id, each.entries) for each in of(deleted, LedgerDeleted)] == [(5, 2)]
    assert run.topic.ledger.last_confirmed == Position(9, 0)


def test_a_terminated_topic_takes_no_more() -> None:
    run = shadow()
    store(run, 5, 0)
    run.admin("POST", "/terminate")
    assert of(store(run, 5, 1), SendError)


def test_the_partitions_of_a_shadow_topic_are_shadow_topics() -> None:
    """Each is created by its first entry, or by what the cluster shows of it. An empty partition of another topic is not."""
    run = Run(allowAutoTopicCreation=False)
    whole: Any = {"partitions": 2, "properties": {SHADOW_SOURCE: TOPIC}}
    run.do(Admin(method="PUT", path=f"/{TOPIC.replace('://', '/')}/partitions", body=whole), None)
    parts = [f"{TOPIC}-partition-{index}" for index in range(3)]
    entry = Send(
        connection="mirror", producer_id=0, sequence_id=0, metadata=MessageMetadata("p", 0, 1), message_id=MessageIdData(5, 0)
    )  # fmt: skip
    assert position(run.do(entry, parts[0])) == (5, 0)
    run.do(Mirror(ledger_id=7, subscriptions={"s": MirroredSubscription((7, -1))}), parts[1])
    assert not of(run.do(entry, parts[2]), SendReceipt)
    assert {*run.broker.topic_names()} == {*parts[:2]}
    run.do(Admin(method="DELETE", path=f"/{parts[0].replace('://', '/')}"), parts[0])
    later = msgspec.structs.replace(entry, message_id=MessageIdData(9, 0))
    assert position(run.do(later, parts[0])) == (9, 0)
    for part in parts[:2]:
        found = run.broker.topic_stats(part)
        assert found is not None
        assert found["internal"]["ledgers"][-1]["ledgerId"] == (9 if part == parts[0] else 7)


@pytest.mark.parametrize("follows", [True, False])
def test_the_source_decides_what_is_inactive(follows: bool) -> None:
    run = shadow(
        shadowTopicFollowsSource=follows, brokerDeleteInactiveTopicsEnabled=True, brokerDeleteInactiveTopicsMode="delete_when_subscriptions_caught_up",
        subscriptionExpirationTimeMinutes=1,
    )  # fmt: skip
    run.do(Mirror(ledger_id=1, subscriptions={"s": MirroredSubscription((1, -1))}))
    run.wait(1000)
    assert bool(run.broker.topic_names()) == follows


def test_a_topic_is_not_deleted_before_it_knows_who_uses_it() -> None:
    """It has entries from before the first look at the source, between which any time may pass. An entry is a sign of use."""
    run = shadow(shadowTopicFollowsSource=False, brokerDeleteInactiveTopicsEnabled=True)
    store(run, 10, 0)
    run.wait(3600)
    store(run, 10, 1)
    run.wait(3600)
    run.do(Mirror(ledger_id=10, subscriptions={"billing": MirroredSubscription((10, -1), backlog=2)}))
    assert run.topic.ledger.number_of_entries == 2
    run.do(Mirror(ledger_id=10))
    for entry in range(2, 6):
        run.wait(45)
        store(run, 10, entry)
    run.wait(45)
    assert run.topic.ledger.number_of_entries == 6
    run.wait(120)
    assert not run.broker.topic_names()


def test_a_ledger_is_kept_until_the_next_look_tells_who_needs_it() -> None:
    """Whatever trims: the end of a ledger, and the periodic check, which would delete it at once."""
    run = shadow(shadowTopicFollowsSource=False, defaultRetentionTimeInMinutes=1)
    store(run, 10, 0)
    run.do(Mirror(ledger_id=10))
    run.wait(1)
    for ledger in (11, 12):
        store(run, ledger, 0)
    run.wait(600)
    run.check("consumedLedgers")
    assert [each.ledger for each in run.broker.retention(TOPIC).ledgers] == [10, 11, 12]
    assert run.broker.retention(TOPIC).ledgers[0].text == SINCE_THE_LOOK
    run.do(Mirror(ledger_id=12, subscriptions={"new": MirroredSubscription((11, -1), backlog=2)}))
    assert [each.ledger for each in run.broker.retention(TOPIC).ledgers] == [11, 12]
    assert run.backlog("new") == 2
    run.do(Mirror(ledger_id=12))
    assert [each.ledger for each in run.broker.retention(TOPIC).ledgers] == [12]


def test_a_topic_that_nobody_uses_is_kept_for_its_time_from_the_first_look() -> None:
    run = shadow(shadowTopicFollowsSource=False, brokerDeleteInactiveTopicsEnabled=True)
    store(run, 10, 0)
    run.wait(3600)
    run.do(Mirror(ledger_id=10))
    run.wait(45)
    assert run.broker.topic_names()
    run.wait(120)
    assert not run.broker.topic_names()


def test_a_subscription_that_there_can_not_be_is_not_compared() -> None:
    """The others are mirrored as if it were not there."""
    run = shadow(brokerDeduplicationEnabled=True)
    store(run, 5, 0)
    seen = dict.fromkeys(["a", DEDUP_CURSOR], MirroredSubscription(mark_delete=(5, -1), backlog=3))
    effects = run.do(Mirror(ledger_id=5, last_confirmed=(5, 0), entries=1, subscriptions=seen))
    assert [*run.topic.subscriptions] == ["a"]
    assert [(each.subscription, each.entries) for each in of(effects, MirrorDrift) if each.entries] == [
        ("a", -2)
    ]


def test_the_answer_is_for_who_sends_the_entry() -> None:
    """Not for the producer that published it to the source, which may be connected here, too."""
    run = shadow()
    run.create_producer("victim")
    for number, entry in enumerate([0, 9]):
        send = Send(
            connection="other", producer_id=7, sequence_id=5, metadata=MessageMetadata("victim", 5, 1),
            message_id=MessageIdData(1, entry),
        )  # fmt: skip
        effects = run.do(send)
        answer = one(effects, SendError) if number else one(effects, SendReceipt)
        assert (answer.connection, answer.producer_id) == ("other", 7)


def test_a_partitioned_topic_is_a_shadow_topic_from_the_beginning_and_for_good() -> None:
    run = Run()
    path = f"/{TOPIC.replace('://', '/')}"

    def call(method: Any, call: str, body: Any = None) -> int:
        effects = run.do(Admin(method=method, path=f"{path}{call}", body=body), None)
        return one(effects, AdminResponse).fields.status

    shadow_source: Any = {SHADOW_SOURCE: TOPIC}
    assert call("PUT", "/partitions", 2) == 204
    assert call("PUT", "/properties", shadow_source) == 412
    assert call("POST", "/partitions", {"partitions": 3, "properties": shadow_source}) == 412
    assert call("DELETE", "/partitions") == 204
    assert call("PUT", "/partitions", {"partitions": 2, "properties": shadow_source}) == 204
    assert call("DELETE", f"/properties?key={SHADOW_SOURCE}") == 412
    assert call("PUT", "/properties", shadow_source | {"a": "b"}) == 204
    assert call("POST", "/partitions", 3) == 204
    run.do(Mirror(ledger_id=7), f"{TOPIC}-partition-2")
    assert run.broker.topic_names() == [f"{TOPIC}-partition-2"]


@pytest.mark.feature("K4")
def test_a_topic_that_is_made_again_goes_on_after_its_ledgers() -> None:
    run = shadow()
    assert run.broker.former_ledger(TOPIC) == 0
    store(run, 10, 0)
    run.admin("DELETE", "?force=true")
    assert run.broker.former_ledger(TOPIC) == 10
    run.admin("PUT", "", {SHADOW_SOURCE: TOPIC})
    assert run.topic.ledger.current == 11


def test_a_subscription_that_is_made_again_has_not_expired_what_the_former_one_had() -> None:
    """Between two looks, an operator deletes it and makes it anew at the first message."""
    run = shadow(shadowTopicFollowsSource=False)
    for entry in range(3):
        store(run, 7, entry, sequence_id=entry)
    seen = {"ledger_id": 7, "first_ledger": 7, "last_confirmed": (7, 2), "entries": 3}
    former = MirroredSubscription(mark_delete=(7, -1), expired_to=(7, 1))
    run.do(Mirror(connection="mirror", subscriptions={"s": former}, **seen))  # type: ignore[arg-type]
    assert one(run.admin("DELETE", "/subscription/s"), AdminResponse).fields.status == 204
    latter = MirroredSubscription(mark_delete=(7, -1), acknowledged=[(7, -1, 7, 0)])
    run.do(Mirror(connection="mirror", subscriptions={"s": latter}, **seen))  # type: ignore[arg-type]
    assert run.topic.cursors["s"].mark_delete == Position(7, 0)
