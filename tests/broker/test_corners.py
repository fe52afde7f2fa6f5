"""Rules that no worked case of the spec covers: rare states, and refusals at the limits of mechanisms."""

from collections.abc import Collection, Mapping
from itertools import chain, combinations
from typing import Any

import pytest

from schemas.commands import Admin, ConnectionLost, Fault, MessageIdData, MessageMetadata
from schemas.effects import (
    AdminResponse,
    CloseConnection,
    CloseProducer,
    CursorMoved,
    Error,
    Evicted,
    Expired,
    LedgerClosed,
    Message,
    ProducerSuccess,
    Quarantined,
    SendError,
    SendReceipt,
    Success,
    Tick,
    Unsupported,
)
from schemas.entries import EntryNotFound
from streaming.broker import entry_filters
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.entry_filters import FilterResult
from streaming.broker.errors import LogOrderError, StateVersionError
from streaming.broker.ledger.ack_holes import AckHoles
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.position import Position
from streaming.broker.state.codec import VERSION
from tests.broker.kit import START, TOPIC, Run, feed, of, one, response, sent

TWO_PER_LEDGER: dict[str, Any] = {"managedLedgerMaxEntriesPerLedger": 2}


def positions(effects: list[Any]) -> list[tuple[int, int]]:
    return [(receipt.ledger_id, receipt.entry_id) for receipt in of(effects, SendReceipt)]


def status(effects: list[Any]) -> int:
    code: int = one(effects, AdminResponse).fields.status
    return code


# -- writes under way (docs/rules/ledgers.md §4, docs/rules/deduplication.md §10) ---------------------------------


def test_writes_behind_a_full_ledger_wait_for_the_next_one() -> None:
    run = Run(**TWO_PER_LEDGER)
    run.fault("DelayWrites", 5)
    for sequence_id in range(5):
        assert run.publish(sequence_id) == []
    effects = run.fault("CompleteWrites", 2)
    assert positions(effects) == [(1, 0), (1, 1)]
    assert one(effects, LedgerClosed).ledger_id == 1
    assert positions(run.fault("CompleteWrites")) == [(2, 0), (2, 1), (3, 0)]


def test_an_unload_drops_writes_under_way_and_takes_their_ids_back() -> None:
    run = Run(brokerDeduplicationEnabled=True)
    run.publish(0)
    run.fault("DelayWrites", 1)
    assert run.publish(1) == []
    effects = run.unload()
    assert not of(effects, SendReceipt)
    assert not of(effects, SendError)
    assert one(effects, LedgerClosed).entries == 1
    assert run.topic.pending == []
    assert run.topic.dedup.pushed("p") == 0
    assert positions(run.publish(1)) == [(2, 0)]


def test_a_write_accepted_before_deduplication_is_recorded_when_it_is_done() -> None:
    run = Run()
    run.fault("DelayWrites", 1)
    assert run.publish(5) == []
    run.admin("POST", "/deduplication", True)
    assert positions(run.fault("CompleteWrites")) == [(1, 0)]
    assert positions(run.publish(5)) == [(-1, -1)]


def test_a_marker_is_neither_judged_nor_recorded() -> None:
    run = Run(brokerDeduplicationEnabled=True, brokerDeduplicationEntriesInterval=2)
    run.create_producer()
    for _ in range(2):
        assert positions(run.send(3, marker_type=10)) != [(-1, -1)]
    assert run.topic.dedup.persisted == {}
    assert run.topic.dedup.snapshot_counter == 0


def test_a_snapshot_does_not_go_back_behind_a_truncation() -> None:
    """What moved its cursor is where the next one goes on."""
    run = Run(brokerDeduplicationEnabled=True, brokerDeduplicationEntriesInterval=3, **TWO_PER_LEDGER)
    for sequence_id in range(2):
        run.publish(sequence_id)
    run.admin("DELETE", "/truncate")
    assert run.mark_delete(DEDUP_CURSOR) == (1, 1)
    run.publish(2)
    assert run.mark_delete(DEDUP_CURSOR) == (2, 0)
    assert run.cursor(DEDUP_CURSOR).properties == {"p": 2}


# -- who may produce and consume (docs/rules/producers.md §3, §11, docs/rules/subscriptions.md §1) ----------------


def test_a_generated_name_is_one_that_nobody_has() -> None:
    run = Run()
    first = one(run.create_producer(None, 1), ProducerSuccess).producer_name
    stem, _, count = first.rpartition("-")
    run.create_producer(f"{stem}-{int(count) + 1}", 2)
    assert one(run.create_producer(None, 3), ProducerSuccess).producer_name == f"{stem}-{int(count) + 2}"


def test_closed_producers_are_remembered_for_a_keep_alive_interval() -> None:
    """What they had under way is ignored so long; then a SEND breaks the protocol."""
    run = Run(keepAliveIntervalSeconds=30)
    for id_ in (1, 2):
        run.create_producer(f"p{id_}", id_)
        run.fault("FailWrites", 1)
        run.send(0, name=f"p{id_}", id_=id_)
        run.wait(20)
    assert run.send(1, name="p2", id_=2) == []
    assert one(run.send(1, name="p1", id_=1), CloseConnection).connection == "client"
    run.create_producer("p3", 3)
    run.fault("FailWrites", 1)
    run.send(0, name="p3", id_=3)
    run.broker = Broker.decode(run.broker.encode(), NoEntries())
    assert run.send(1, name="p3", id_=3) == []
    run.wait(31)
    run.broker.encode()
    assert run.broker._state.closed_producers == {}


@pytest.mark.parametrize("connections", [("a", "a"), ("a", "b")])
def test_the_order_of_closed_producers_does_not_depend_on_cuts(connections: tuple[str, str]) -> None:
    """Those whose time is over are forgotten where a micro-batch ends. A chaos test found that the ones that were closed again then
    had other places."""

    def state(cuts: Collection[int]) -> bytes:
        run = Run(keepAliveIntervalSeconds=30)
        for step, which in enumerate((0, 1, 0, 1)):
            run.wait(20 if step else 0)
            if step in cuts:
                run.broker = Broker.decode(run.broker.encode(), NoEntries())
            run.create_producer("p", which, connections[which])
            run.admin("PUT", "/unload")
        return run.broker.encode()

    every = chain.from_iterable(combinations(range(4), count) for count in range(5))
    assert len({state(cuts) for cuts in every}) == 1


def test_closed_producers_are_those_of_a_connection() -> None:
    run = Run()
    run.create_producer("p", 1)
    run.subscribe("s", connection="client")
    run.admin("PUT", "/unload")
    assert run.send(0) == []
    run.subscribe("s", connection="client")
    run.lose("client")
    assert one(run.send(0), CloseConnection).connection == "client"
    run.create_producer("p", 1)
    run.admin("PUT", "/unload")
    run.do(ConnectionLost(connection="", prefix="cl"), None)
    assert one(run.send(0), CloseConnection).connection == "client"


def test_the_short_form_is_never_encrypted() -> None:
    run = Run()
    run.namespace("POST", "encryptionRequired", True)
    refused = one(run.publish(0), SendError)
    assert (refused.error, refused.cause) == ("MetadataError", "Messages must be encrypted")
    assert run.topic.producers == {}


def test_nobody_subscribes_to_a_fenced_topic() -> None:
    run = Run()
    run.publish(0)
    run.fault("DelayWrites", 1)
    run.publish(1)
    run.fault("FailWrites", 1)
    assert one(run.publish(2), SendError).error == "PersistenceError"
    assert run.topic.fenced
    assert one(run.subscribe("s"), Error).error == "ServiceNotReady"
    assert one(run.publish(3), SendError).error == "ServiceNotReady"
    run.fault("CompleteWrites")
    assert of(run.subscribe("s"), Error) == []


def test_a_topic_that_was_never_compacted_is_read_as_a_whole() -> None:
    run = Run()
    run.publish(1)
    run.publish(2)
    subscribed = run.subscribe("s", read_compacted=True)
    assert of(subscribed, Error) == []
    assert len(of(run.flow("s", 10), Message)) == 2
    assert one(run.subscribe("t", "Shared", read_compacted=True), Error).error == "NotAllowedError"


def test_closing_a_consumer_that_is_not_there_succeeds() -> None:
    for topic in (TOPIC, "non-persistent://public/default/n"):
        run = Run()
        run.subscribe("s", topic=topic)
        assert one(run.close_consumer("s", id_=7, topic=topic), Success).request_id == run.requests


# -- single active consumers (docs/rules/subscriptions.md §14) ----------------------------------------------------


def test_a_single_active_consumer_is_read_for_in_entries_of_its_average() -> None:
    """preciseDispatcherFlowControl: with 5 messages an entry on average, 10 permits are 2 entries."""
    for precise, entries in ((False, [1, 2, 3, 4]), (True, [1, 2])):
        run = Run(preciseDispatcherFlowControl=precise)
        run.create_producer()
        run.send(0, 4)
        run.subscribe("s", permits=1)
        for first in (10, 20, 30, 40):
            run.send(first, first + 4)
        assert sent(run.flow("s", 14)) == entries


def later(metadata: MessageMetadata, properties: Mapping[str, str]) -> FilterResult:
    """Everything with a key is put off."""
    return "RESCHEDULE" if metadata.partition_key else "ACCEPT"


entry_filters.register("Later", later)


def test_what_is_put_off_at_one_time_is_read_again_once() -> None:
    run = Run(entryFilterNames="Later", dispatcherEntryFilterRescheduledMessageDelay=1_000)
    run.subscribe("s", permits=9)
    run.publish(0, key="k")
    run.publish(1, key="k")
    assert sent(run.publish(2)) == [2]
    run.wait(0.5)
    assert sent(run.publish(3)) == [3]
    assert sent(run.wait(0.5)) == [2, 3]
    assert sent(run.wait(0.5)) == []
    assert sent(run.wait(0.5)) == [2, 3]


def test_who_takes_over_is_not_read_for_before() -> None:
    """What a filter put off for the consumer before comes with the takeover, not at its own time."""
    run = Run(
        entryFilterNames="Later",
        dispatcherEntryFilterRescheduledMessageDelay=1_000,
        activeConsumerFailoverDelayTimeMillis=2_000,
    )
    run.subscribe("s", "Failover", permits=9, priority_level=1)
    run.wait(3)
    run.publish(0, key="k")
    assert sent(run.publish(1)) == [1]
    run.subscribe("s", "Failover", id_=2, permits=9)
    assert sent(run.wait(1)) == []
    assert sent(run.wait(1), 2) == [1]


# -- Shared dispatch (docs/rules/shared.md §3–§12) ----------------------------------------------------------------


def test_a_consumer_of_a_higher_priority_that_comes_later_is_served_first() -> None:
    run = Run()
    run.subscribe("s", "Shared", priority_level=1, permits=1)
    run.subscribe("s", "Shared", id_=2, priority_level=0, permits=1)
    assert sent(run.publish(0), 2) == [0]
    assert sent(run.publish(1), 1) == [1]


def test_from_level_0_on_no_higher_level_is_looked_for() -> None:
    """A quirk of Pulsar: an entry waits although a consumer of a negative level, thus a higher one, has permits."""
    run = Run()
    run.subscribe("s", "Shared", priority_level=-1, permits=2)
    run.subscribe("s", "Shared", id_=2, priority_level=0)
    assert sent(run.publish(0), 1) == [0]
    assert of(run.publish(1), Message) == []
    assert sent(run.flow("s", 1, id_=2), 2) == [1]


def test_an_id_listed_twice_is_redelivered_once() -> None:
    run = Run()
    run.subscribe("s", "Shared", permits=9)
    run.publish(0)
    (again,) = of(run.redeliver("s", (1, 0), (1, 0)), Message)
    assert again.redelivery_count == 1


def test_acking_a_part_of_a_batch_that_nobody_holds_credits_nobody() -> None:
    run = Run(acknowledgmentAtBatchIndexLevelEnabled=True)
    run.create_producer()
    run.subscribe("s", "Shared")
    run.send(0, 2)
    run.ack("s", (1, 0), left=[6], size=3)
    (consumer,) = run.topic.subscriptions["s"].consumers
    assert consumer.unacked == 0
    assert run.cursor("s").batches == {Position(1, 0): b"\x06"}


def test_a_redelivered_entry_that_expires_is_forgotten_by_its_count() -> None:
    """With removePendingAcksOnMarkDeleteMove nothing of it is left."""
    run = Run(removePendingAcksOnMarkDeleteMove=True, ttlDurationDefaultInSeconds=10)
    run.subscribe("s", "Shared", permits=9)
    run.publish(0)
    run.redeliver("s", (1, 0))
    (consumer,) = run.topic.subscriptions["s"].consumers
    assert consumer.pending
    run.now += 11_000
    assert of(run.check("messageExpiry"), Expired)
    assert not consumer.pending
    assert not run.topic.subscriptions["s"].dispatcher.counts  # type: ignore[union-attr]


def test_a_batch_that_is_acked_in_part_expires_with_what_is_left_of_it() -> None:
    """With removePendingAcksOnMarkDeleteMove the messages that were acked before are not uncounted twice."""
    run = Run(
        removePendingAcksOnMarkDeleteMove=True,
        acknowledgmentAtBatchIndexLevelEnabled=True,
        ttlDurationDefaultInSeconds=10,
    )
    run.create_producer()
    run.subscribe("s", "Shared", permits=9)
    run.send(0, 2)
    (consumer,) = run.topic.subscriptions["s"].consumers
    run.ack("s", (1, 0), left=[6], size=3)
    assert (consumer.pending, consumer.unacked) == ({(1, 0): 2}, 2)
    run.now += 11_000
    assert of(run.check("messageExpiry"), Expired)
    assert (consumer.pending, consumer.unacked) == ({}, 0)


def test_a_skip_that_moves_nothing_leaves_what_is_pending() -> None:
    run = Run(removePendingAcksOnMarkDeleteMove=True)
    run.subscribe("s", "Shared", permits=9)
    run.publish(0)
    (consumer,) = run.topic.subscriptions["s"].consumers
    assert status(run.admin("POST", "/subscription/s/skip/0")) == 204
    assert (run.mark_delete("s"), consumer.pending, consumer.unacked) == ((1, -1), {(1, 0): 1}, 1)
    assert status(run.admin("POST", "/subscription/s/skip_all")) == 204
    assert (run.mark_delete("s"), consumer.pending, consumer.unacked) == ((1, 0), {}, 0)
    assert status(run.admin("POST", "/subscription/s/skip_all")) == 204
    assert sent(run.publish(1)) == [1]


def test_a_chunk_for_a_consumer_that_left_is_lost_only_when_no_filter_puts_it_off() -> None:
    run = Run(entryFilterNames="Later", dispatcherEntryFilterRescheduledMessageDelay=1_000)
    run.create_producer()
    run.subscribe("s", "Shared", permits=9)
    assert sent(run.send(0, uuid="u", chunk_id=0, num_chunks_from_msg=3)) == [0]
    run.lose("s")
    run.subscribe("s", "Shared", connection="t", id_=2, permits=9)
    found: Any = run.topic.subscriptions["s"].dispatcher
    unacked = found.total_unacked
    assert sent(run.send(1, uuid="u", chunk_id=1, num_chunks_from_msg=3, partition_key="k")) == []
    assert (found.rescheduled, found.total_unacked) == ({run.now + 1_000: [(1, 1)]}, unacked)
    run.send(2, uuid="u", chunk_id=2, num_chunks_from_msg=3)
    assert (found.waiting_for_time(run.cursor("s")), found.total_unacked) == (1, unacked + 1)


def test_what_is_acked_while_it_waits_to_be_replayed_is_not_sent_again() -> None:
    run = Run()
    run.subscribe("s", "Shared", permits=2)
    run.publish(0)
    run.publish(1)
    run.redeliver("s", (1, 0), (1, 1))
    run.ack("s", (1, 1))
    assert sent(run.flow("s", 9)) == [0]


def test_a_shared_subscription_is_read_for_in_entries_of_its_average() -> None:
    """preciseDispatcherFlowControl: with 5 messages an entry on average, 10 permits are 2 entries of a read."""
    for precise, entries in ((False, 10), (True, 2)):
        run = Run(preciseDispatcherFlowControl=precise)
        run.create_producer()
        run.send(0, 4)
        run.subscribe("s", "Shared", permits=1)
        run.flow("s", 14)
        assert run.topic.subscriptions["s"].dispatcher.pending_read == entries  # type: ignore[union-attr]


def test_a_delayed_entry_sent_again_before_its_time_is_kept_once() -> None:
    run = Run()
    run.subscribe("s", "Shared", permits=9)
    run.publish(0, deliver_at_time=START + 60_000)
    run.close_consumer("s")
    run.subscribe("s", "Shared", permits=9)
    run.publish(1, deliver_at_time=START + 60_000)
    assert sent(run.wait(61)) == [0, 1]


# -- Key_Shared (docs/rules/key-shared.md §9) ---------------------------------------------------------------------


@pytest.mark.parametrize("hashing", [False, True])
def test_keys_are_divided_anew_among_those_who_come_back_after_a_seek(hashing: bool) -> None:
    run = Run(subscriptionKeySharedUseConsistentHashing=hashing, acknowledgmentAtBatchIndexLevelEnabled=True)
    run.create_producer()
    run.subscribe("s", "Key_Shared", permits=9)
    run.send(0, 2, partition_key="a")
    run.ack("s", (1, 0), left=[6], size=3)
    (consumer,) = run.topic.subscriptions["s"].consumers
    assert consumer.unacked == 2
    run.seek("s", (1, 0))
    assert run.topic.subscriptions["s"].consumers == []
    assert sent(run.subscribe("s", "Key_Shared", permits=9)) == [0]


def test_acking_what_waits_to_be_replayed_makes_room_to_read_on() -> None:
    run = Run()
    run.subscribe("s", "Key_Shared", permits=1)
    run.publish(0, key="a")
    run.publish(1, key="a")
    run.redeliver("s", (1, 0))
    run.ack("s", (1, 0))
    assert sent(run.flow("s", 1)) == [1]


def test_what_is_acked_while_it_waits_to_be_replayed_is_not_sent_to_its_key_again() -> None:
    run = Run()
    run.subscribe("s", "Key_Shared", permits=2)
    run.publish(0, key="a")
    run.publish(1, key="a")
    run.redeliver("s", (1, 1))
    run.ack("s", (1, 1))
    assert sent(run.flow("s", 2)) == []
    assert sent(run.publish(2, key="a")) == [2]


def test_a_namespace_has_only_so_many_topics() -> None:
    """maxTopicsPerNamespace: what would make another is refused, what is there goes on, other namespaces too."""
    run = Run(maxTopicsPerNamespace=2)
    first, second, third = (f"{TOPIC}{number}" for number in range(3))
    run.publish(0, topic=first)
    assert one(run.subscribe("s", topic=second), Success)
    refused = one(run.publish(0, topic=third), SendError)
    assert (refused.error, refused.cause) == (
        "NotAllowedError",
        "Exceed maximum number of topics in namespace.",
    )
    assert one(run.subscribe("s", topic=third), Error).error == "NotAllowedError"
    assert one(run.create_producer(topic=third), Error).error == "NotAllowedError"
    assert status(run.admin("PUT", "/subscription/s", topic=third)) == 409
    assert one(run.do(Fault(fault="FailWrites", count=1), third), Quarantined).rule == "too_many_topics"
    assert run.broker.topic_names() == [first, second]
    assert positions(run.publish(1, topic=first)) == [(1, 1)]
    assert positions(run.publish(0, topic="persistent://public/other/t")) == [(1, 0)]
    run.namespace("POST", "maxTopicsPerNamespace", 3)
    assert positions(run.publish(0, topic=third)) == [(1, 0)]
    assert one(run.publish(0, topic=f"{TOPIC}3"), SendError)
    run.namespace("POST", "maxTopicsPerNamespace", 0)
    assert positions(run.publish(0, topic=f"{TOPIC}3")) == [(1, 0)]


# -- SUBSCRIBE, GET_LAST_MESSAGE_ID -------------------------------------------------------------------------------


@pytest.mark.parametrize("replicated", [False, True])
def test_a_replicated_subscription_does_not_expire(replicated: bool) -> None:
    run = Run(subscriptionExpirationTimeMinutes=5)
    effects = run.subscribe("s", replicate_subscription_state=replicated)
    assert one(effects, Success)
    run.close_consumer("s")
    run.wait(3600)
    assert ("s" in run.topic.subscriptions) is replicated


# -- acks (docs/rules/cursors.md §3, §5) ------------------------------------------------------------------------------


def test_ids_before_a_bad_one_stay_acked() -> None:
    """quirk: the call fails at the position past the end."""
    run = Run()
    run.subscribe("s", "Shared", permits=9)
    run.fill(4)
    run.ack("s", (1, 2), (1, 9), (1, 0))
    assert run.backlog("s") == 3
    assert run.mark_delete("s") == (1, -1)
    run.ack("s", (1, 9), (1, 0))
    assert run.backlog("s") == 3


def test_a_bound_on_holes_that_falls_between_ledgers() -> None:
    holes = AckHoles({1: 0b1010, 2: 0b1001, 3: 0b1})
    holes.keep_first(2)
    assert str(holes) == "[(1:0..1:1],(1:2..1:3]]"


# -- chunks (docs/rules/shared.md §12) ----------------------------------------------------------------------------


def test_a_chunk_that_nobody_can_take_now_comes_later() -> None:
    run = Run()
    run.create_producer()
    run.subscribe("s", "Shared", permits=2)
    assert sent(run.send(0)) == [0]  # one permit is left, and a read waits
    assert sent(run.redeliver("s")) == [0]  # it takes the last permit; the read still waits
    assert sent(run.send(1, uuid="u", chunk_id=0, num_chunks_from_msg=2)) == []
    assert sent(run.flow("s", 1)) == [1]


# -- backlog quotas (docs/rules/quotas.md §1–§5) ------------------------------------------------------------------


def limited_age(run: Run, policy: str = "producer_exception", seconds: int = 10) -> None:
    run.namespace(
        "POST",
        "backlogQuota?backlogQuotaType=message_age",
        {"limitTime": seconds, "policy": policy, "limitSize": -1},
    )


def test_a_reader_alone_makes_no_backlog_old() -> None:
    run = Run(preciseTimeBasedBacklogQuotaCheck=True)
    limited_age(run)
    run.subscribe("r", durable=False)
    run.publish(0)
    run.wait(100)
    assert run.check("backlogQuota") == []
    assert run.topic.oldest is None


@pytest.mark.parametrize("kept", [True, False])
def test_the_age_of_what_is_in_the_open_ledger_is_unknown(kept: bool) -> None:
    """keepOldestPositionWhenUnknown: the last one that was known holds."""
    run = Run(keepOldestPositionWhenUnknown=kept, **TWO_PER_LEDGER)
    limited_age(run)
    run.subscribe("s")
    for sequence_id in range(3):
        run.publish(sequence_id)
    run.check("backlogQuota")
    assert run.topic.oldest is not None  # since the first ledger closed
    run.ack("s", (1, 1), cumulative=True)
    run.ack("s", (2, -1), cumulative=True)
    run.check("backlogQuota")
    assert (run.topic.oldest is not None) == kept


def test_a_round_that_acts_on_the_size_does_not_look_at_the_age() -> None:
    """Not even if there is nothing to evict. A producer that connects is refused because of the age all the same."""
    run = Run(preciseTimeBasedBacklogQuotaCheck=True)
    limited_age(run)
    run.admin("POST", "/backlogQuota", {"limitSize": 10, "policy": "consumer_backlog_eviction"})
    run.subscribe("s")
    run.publish(0)
    run.wait(100)
    assert run.check("backlogQuota") == []
    assert one(run.create_producer("q"), Error).error == "ProducerBlockedQuotaExceededException"
    run.admin("DELETE", "/backlogQuota?backlogQuotaType=destination_storage")
    assert [closed.producer_name for closed in of(run.check("backlogQuota"), CloseProducer)] == ["p"]


def test_the_last_ledger_of_a_terminated_topic_is_not_evicted_by_age() -> None:
    """There is no later ledger for a cursor to move to."""
    run = Run(**TWO_PER_LEDGER)
    limited_age(run, "consumer_backlog_eviction")
    run.subscribe("s")
    for sequence_id in range(3):
        run.publish(sequence_id)
    run.admin("POST", "/terminate")
    run.unload()
    run.wait(100)
    assert [evicted.entries for evicted in of(run.check("backlogQuota"), Evicted)] == [2]
    run.wait(100)
    assert run.check("backlogQuota") == []
    assert run.backlog("s") == 1


def test_an_eviction_that_moves_nothing_says_nothing() -> None:
    """quirk (profile 2.x): the remainder of a ledger's average stays in the size, though all is acked."""
    settings: dict[str, Any] = {"backlogSizeWholeLedgers": False, "trimAtRolloverSparesClosedLedger": False}
    run = Run(**settings, **TWO_PER_LEDGER)
    for sequence_id in range(2):
        run.publish(sequence_id)
    run.subscribe("s")  # at the earliest, before entries that are gone, which its counter takes for a backlog
    run.configure(**settings)
    for sequence_id, payload in enumerate(("x", "xx"), start=2):
        run.publish(sequence_id, payload=payload)
    run.ack("s", run.topic.ledger.last_confirmed, cumulative=True)
    run.namespace(
        "POST", "backlogQuota", {"limitSize": 0, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    )
    assert run.topic.backlog_size() > 0
    assert run.backlog("s") > 0
    assert of(run.check("backlogQuota"), Evicted) == []


# -- policies (docs/rules/retention.md §7, §8, docs/rules/quotas.md §9) -------------------------------------------


AGE = "message_age"
SIZE = "destination_storage"


@pytest.mark.parametrize(
    ("level", "type_", "quota", "retention", "refused"),
    [
        ("namespace", SIZE, {"limitSize": 2**20}, (-1, 1), True),
        ("namespace", SIZE, {"limitSize": 2**20 - 1}, (-1, 1), False),
        ("namespace", SIZE, {"limitSize": 2**30}, (5, -1), False),
        ("namespace", SIZE, {"limit": 2**20}, (-1, 1), True),
        ("namespace", SIZE, {"limitTime": 300}, (5, -1), True),
        ("namespace", AGE, {"limitTime": 300}, (5, -1), False),
        ("namespace", AGE, {"limitTime": 300}, (0, 0), False),
        ("topic", SIZE, {"limitSize": 2**20}, (-1, 1), True),
        ("topic", AGE, {"limitTime": 300}, (5, -1), True),
        ("topic", AGE, {"limitTime": 299}, (5, -1), False),
        ("topic", AGE, {"limitTime": 300}, (-1, 1), False),
        ("topic", AGE, {"limitTime": 300}, (0, 0), False),
    ],
)
@pytest.mark.parametrize("quota_first", [True, False])
def test_a_quota_must_be_below_what_retention_keeps(
    level: str,
    type_: str,
    quota: dict[str, int],
    retention: tuple[int, int],
    refused: bool,
    quota_first: bool,
) -> None:
    """A namespace compares its quota on size, with both of its limits; a topic compares both types."""
    run = Run()
    minutes, megabytes = retention
    calls = [
        (f"backlogQuota?backlogQuotaType={type_}", quota),
        ("retention", {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}),
    ]
    if not quota_first:
        calls.reverse()
    answers = [
        status(
            run.namespace("POST", *call)
            if level == "namespace"
            else run.admin("POST", "/" + call[0], call[1])
        )
        for call in calls
    ]
    assert answers == [204, 412 if refused else 204]


def test_a_topics_quota_must_be_below_the_retention_of_its_namespace() -> None:
    run = Run()
    run.namespace("POST", "retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1})
    quota = {"limitTime": 300}
    assert status(run.admin("POST", f"/backlogQuota?backlogQuotaType={AGE}", quota)) == 412
    run.admin("POST", "/retention", {"retentionTimeInMinutes": 6, "retentionSizeInMB": -1})
    assert status(run.admin("POST", f"/backlogQuota?backlogQuotaType={AGE}", quota)) == 204


@pytest.mark.parametrize(("time", "refused"), [(300, True), (299, False)])
def test_a_quota_that_is_not_set_is_the_brokers(time: int, refused: bool) -> None:
    """The namespace's quota on age makes the check happen; the broker's quota fails it."""
    run = Run(backlogQuotaDefaultLimitSecond=time)
    retention = {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1}
    assert status(run.namespace("POST", "retention", retention)) == 204, "no quota is set"
    quota = f"backlogQuota?backlogQuotaType={AGE}"
    assert status(run.namespace("POST", quota, {"limitTime": 1})) == (412 if refused else 204)


@pytest.mark.parametrize(("minutes", "megabytes"), [(0, 1), (1, 0), (-1, 0), (0, -1), (-2, 5), (5, -2)])
def test_a_retention_that_makes_no_sense_is_refused(minutes: int, megabytes: int) -> None:
    run = Run()
    retention = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
    assert status(run.namespace("POST", "retention", retention)) == 400
    assert status(run.admin("POST", "/retention", retention)) == 400


def test_quotas_are_shown_with_the_old_name_of_their_limit() -> None:
    run = Run()
    run.namespace("POST", "backlogQuota", {"limit": 5, "policy": "producer_exception"})
    shown = {"limit": 5, "limitSize": 5, "limitTime": -1, "policy": "producer_exception"}
    assert response(run.namespace("GET", "backlogQuotaMap")) == {SIZE: shown}


def test_cursors_are_shown_by_their_encoded_names() -> None:
    run = Run()
    run.subscribe("a/b c%20~*é")
    assert list(response(run.admin("GET", "/internalStats"))["cursors"]) == ["a%2Fb+c%2520%7E*%C3%A9"]
    assert list(response(run.admin("GET", "/stats"))["subscriptions"]) == ["a/b c%20~*é"]


@pytest.mark.parametrize("path", ["/clusters", "/namespaces/public/default/nonsense", "/namespaces/public"])
def test_calls_that_are_not_there(path: str) -> None:
    effects = Run().do(Admin(method="POST", path=path), None)
    assert one(effects, Unsupported).cause == f"admin call POST {path} is not supported"
    assert status(effects) == 404


# -- finding (docs/rules/cursors.md §12–§15, docs/rules/ttl.md §4) ------------------------------------------------


def test_expiry_to_a_position_between_entries_goes_to_the_newest_before_it() -> None:
    run = Run(**TWO_PER_LEDGER)
    run.subscribe("s")
    for sequence_id in range(3):
        run.publish(sequence_id)
    effects = run.admin("POST", "/subscription/s/expireMessages", {"ledgerId": 1, "entryId": 7})
    expired = one(effects, Expired)
    assert (expired.after_ledger, expired.after_entry, expired.entries) == (1, 1, 2)
    assert status(effects) == 204


def test_a_search_by_time_ends_before_the_last_ledger_of_a_terminated_topic_that_was_loaded_again() -> None:
    run = Run(**TWO_PER_LEDGER)
    run.subscribe("s")
    for sequence_id in range(3):
        run.publish(sequence_id)
        run.wait(1)
    run.admin("POST", "/terminate")
    run.unload()
    run.subscribe("s")
    for time, mark_delete in ((START, (1, -1)), (START + 1_500, (1, 1)), (START + 999_999, (1, 1))):
        run.seek("s", time=time)
        assert run.mark_delete("s") == mark_delete
        run.subscribe("s")


# -- a batch that a seek goes into (docs/rules/batching.md §5) ----------------------------------------------------


def test_a_seek_into_a_batch_sends_what_is_left_of_it() -> None:
    run = Run(acknowledgmentAtBatchIndexLevelEnabled=True)
    run.create_producer()
    run.send(0, 2)
    run.subscribe("s", permits=9)
    run.seek("s", (1, 0), left=[6])
    message = one(run.subscribe("s", permits=9), Message)
    assert message.ack_set == [6]


# -- the broker of a partition ------------------------------------------------------------------------------------


def test_every_record_comes_once_and_in_order() -> None:
    run = Run()
    with pytest.raises(LogOrderError, match="partition 0: offset 0 after 0"):
        feed(run.broker, 0, START, None, b"")


def test_a_time_in_another_unit_is_refused() -> None:
    run = Run(now=START)
    run.now = START * 1000
    refused = one(run.publish(0), Quarantined)
    assert refused.rule == "timestamp"
    assert run.broker.clock == START


def test_the_triggers_time_is_told() -> None:
    run = Run()
    run.broker.tick(START + 5)
    (row,) = run.broker.take()
    assert (row.offset, row.clock, row.effect) == (0, START + 5, Tick())


def test_what_is_not_there() -> None:
    run = Run()
    with pytest.raises(KeyError):
        run.broker.topic(TOPIC)
    run.publish(0)
    forgetful = Broker.decode(run.broker.encode(), NoEntries())
    with pytest.raises(EntryNotFound, match=r"t 1:0\.\.0: no store was given"):
        forgetful._ctx.entries.get(TOPIC, Position(1, 0))


@pytest.mark.parametrize(("state", "found"), [(b"", "none"), (bytes([VERSION + 1]), str(VERSION + 1))])
def test_a_state_of_another_version_is_refused(state: bytes, found: str) -> None:
    with pytest.raises(StateVersionError, match=f"version {found}, this Magnetar reads {VERSION}"):
        Broker.decode(state, NoEntries())


def test_no_snapshot_is_taken_where_a_cursor_cannot_be() -> None:
    """Deduplication's cursor stepped over to a ledger that was dropped empty when a write to it failed; then a producer
    is purged, and the snapshot that keeps it is refused until the next entry is there. Found by the silences' test."""
    run = Run(
        profile="2.x",
        moveCursorOverConsumedLedger=True,
        opensLedgerAtOnce=True,
        managedLedgerMaxEntriesPerLedger=2,
        managedLedgerMinLedgerRolloverTimeMinutes=0,
        brokerDeduplicationEnabled=True,
        brokerDeduplicationEntriesInterval=1,
        brokerDeduplicationProducerInactivityTimeoutMinutes=1,
    )
    for number in range(2):
        run.publish(number)
    assert run.mark_delete(DEDUP_CURSOR) == (2, -1)
    run.fault("FailWrites", 1)
    run.publish(2)
    run.wait(3600)
    assert run.topic.dedup.persisted == {}
    assert run.cursor(DEDUP_CURSOR).properties == {"p": 1}
    run.publish(0, producer="r")
    assert run.cursor(DEDUP_CURSOR).properties == {"r": 0}
    assert run.mark_delete(DEDUP_CURSOR) == (3, 0)


@pytest.mark.parametrize("fate", ["CompleteWrites", "LoseWrites"])
@pytest.mark.parametrize("type_", ["Exclusive", "Failover", "Shared", "Key_Shared"])
def test_a_termination_is_the_end_also_for_writes_under_way(type_: Any, fate: str) -> None:
    run = Run(activeConsumerFailoverDelayTimeMillis=0)
    run.subscribe("s", type_, permits=50)
    run.create_producer()
    run.send(0)
    run.ack("s", (1, 0))
    run.fault("DelayWrites", 5)
    for number in range(1, 6):
        run.send(number)
    end = one(run.admin("POST", "/terminate"), AdminResponse)
    assert run.fault(fate) == []
    assert run.wait(600) == []
    assert one(run.admin("GET", "/lastMessageId"), AdminResponse).fields == end.fields
    assert one(run.publish(7, "short"), SendError).error == "TopicTerminatedError"
    assert run.backlog("s") == 0


def test_a_reader_behind_what_was_deleted_gets_back_what_the_topic_has() -> None:
    """It has acked an entry of a deleted ledger, which counts for nothing."""
    run = Run(profile="2.10", **TWO_PER_LEDGER | {"managedLedgerMaxEntriesPerLedger": 3})
    for sequence_id in range(8):
        run.publish(sequence_id)
    assert [*run.topic.ledger.ledgers] == [2, 3]
    run.subscribe("r", "Shared", durable=False, start_message_id=MessageIdData(1, 1), permits=9)
    run.ack("r", (1, 2), (3, 0), (3, 1))
    assert run.topic.cursors["r"].mark_delete == (1, 0)
    assert one(run.seek("r", (2, 0)), CursorMoved).entries == -2
