"""The worked cases of docs/rules/deduplication.md §17, by number.

All of them are here. Case 8 needs a state that no command reaches (marks kept while deduplication is off) and takes the
mechanism alone.
"""

from typing import Any

import pytest

from schemas.effects import Message, ProducerSuccess, SendError, SendReceipt, TopicEvent
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.persistent.publish.message_deduplication import MessageDeduplication
from streaming.broker.position import Position
from tests.broker.kit import Run, of, one

DUPLICATE = (-1, -1)


def deduplicating(**settings: Any) -> Run:
    """A broker with deduplication and producers p1 (id 1) and p2 (id 2)."""
    run = Run(brokerDeduplicationEnabled=True, **settings)
    run.create_producer("p1", 1)
    run.create_producer("p2", 2)
    return run


def p1(run: Run, sequence_id: int, highest: int | None = None, **metadata: Any) -> Any:
    """SEND of p1 and what came of it: the position, "Unknown", or None while its write is unconfirmed."""
    return outcome(run.send(sequence_id, highest, name="p1", id_=1, **metadata))


def p2(run: Run, sequence_id: int) -> Any:
    return outcome(run.send(sequence_id, name="p2", id_=2))


def outcome(effects: list[Any]) -> Any:
    if errors := of(effects, SendError):
        assert len(effects) == 1
        assert errors[0].error == "PersistenceError"
        assert errors[0].cause.endswith("Cannot determine whether the message is a duplicate at this time")
        return "Unknown"
    if receipts := of(effects, SendReceipt):
        return receipts[0].ledger_id, receipts[0].entry_id
    assert effects == []
    return None


def marks(run: Run, name: str = "p1") -> tuple[int | None, int | None]:
    """(pushed, persisted) of a producer name."""
    dedup = run.topic.dedup
    return dedup.pushed(name), dedup.persisted.get(name)


def appended(run: Run) -> int:
    """Writes handed to the ledger, confirmed or not."""
    return run.topic.ledger.number_of_entries + len(run.topic.pending)


def last_sequence_id(effects: list[Any]) -> int:
    fields = one(effects, ProducerSuccess).fields
    return fields.last_sequence_id


@pytest.mark.feature("A1")
def test_dedup_case_01_unpersisted_ids_are_unknown() -> None:
    run = deduplicating()
    run.fault("DelayWrites", 10)
    for id_ in (0, 1, 5):
        assert p1(run, id_) is None
        assert marks(run) == (id_, None)
    assert p1(run, 0) == "Unknown"
    assert marks(run) == (5, None)


@pytest.mark.feature("A1")
def test_dedup_case_02_a_persisted_id_is_a_duplicate() -> None:
    run = deduplicating()
    run.fault("DelayWrites", 10)
    for id_ in (0, 1, 5):
        p1(run, id_)
    run.fault("CompleteWrites", 1)
    assert marks(run) == (5, 0)
    assert p1(run, 0) == DUPLICATE
    assert marks(run) == (5, 0)


@pytest.mark.feature("A2")
def test_dedup_case_03_a_batch_is_judged_by_its_lowest_id_and_pushes_its_highest() -> None:
    run = deduplicating()
    p1(run, 0)
    assert marks(run) == (0, 0)
    run.fault("DelayWrites", 10)
    assert p1(run, 1, 5) is None
    assert marks(run) == (5, 0)
    assert p1(run, 4, 8) == "Unknown"
    assert marks(run) == (5, 0)


def four_appended() -> Run:
    run = deduplicating()
    assert p1(run, 0) == (1, 0)
    assert p2(run, 1) == (1, 1)
    assert p1(run, 1) == (1, 2)
    assert p1(run, 5) == (1, 3)
    return run


@pytest.mark.feature("A1")
def test_dedup_case_04_a_duplicate_gets_a_receipt_without_a_position() -> None:
    run = four_appended()
    assert p1(run, 0) == DUPLICATE
    assert appended(run) == 4
    assert run.topic.counters.duplicates == 1
    assert run.topic.counters.messages_in == 5


@pytest.mark.feature("A1")
def test_dedup_case_05_an_id_in_flight_is_unknown_until_it_persists() -> None:
    run = four_appended()
    run.fault("DelayWrites", 1)
    assert p1(run, 6) is None
    assert marks(run) == (6, 5)
    assert p1(run, 6) == "Unknown"
    assert appended(run) == 5
    assert outcome(run.fault("CompleteWrites")) == (1, 4)
    assert marks(run) == (6, 6)


@pytest.mark.feature("A3")
def test_dedup_case_06_a_failed_write_rolls_pushed_back_to_persisted() -> None:
    run = four_appended()
    assert p1(run, 6) == (1, 4)
    run.fault("DelayWrites", 1)
    assert p1(run, 7) is None
    assert appended(run) == 6
    lost = run.fault("LoseWrites")
    assert one(lost, SendError).sequence_id == 7
    assert len([event for event in of(lost, TopicEvent) if event.cause.startswith("recovered")]) == 1
    assert marks(run, "p1") == (6, 6)
    assert marks(run, "p2") == (1, 1)
    run.create_producer("p1", 1)
    assert p1(run, 6) == DUPLICATE
    assert p1(run, 8) == (2, 0)
    assert marks(run) == (8, 8)


@pytest.mark.feature("A4")
def test_dedup_case_07_producers_long_inactive_are_forgotten() -> None:
    run = Run(brokerDeduplicationEnabled=True, brokerDeduplicationProducerInactivityTimeoutMinutes=1)
    names = ["test1", "test2", "test3"]
    for id_, name in enumerate(names):
        run.create_producer(name, id_)
        run.send(1, 2, name=name, id_=id_)
        assert marks(run, name) == (2, 2)
        run.close_producer(id_)
    run.check("inactiveProducers")
    assert sorted(run.topic.dedup.inactive) == names
    run.wait(70)
    run.create_producer("test1", 0)
    run.close_producer(0)
    run.check("inactiveProducers")
    assert [marks(run, name) for name in names] == [(2, 2), (None, None), (None, None)]
    assert list(run.topic.dedup.inactive) == ["test1"]
    assert run.cursor(DEDUP_CURSOR).properties == {"test1": 2}


@pytest.mark.feature("A4", "A5")
def test_dedup_case_08_without_deduplication_the_purge_keeps_the_marks() -> None:
    dedup = MessageDeduplication("Disabled", persisted={"a": 2, "b": 2}, inactive={"a": 1_000, "b": 1_000})
    assert not dedup.purge_inactive(81_000 - 60_000)
    assert dedup.inactive == {}
    assert dedup.persisted == {"a": 2, "b": 2}


@pytest.mark.feature("A4")
def test_dedup_case_09_duplicates_stay_out_across_an_unload() -> None:
    run = deduplicating()
    run.subscribe("s", permits=100)
    effects = []
    for id_ in (0, 1, 2, 1, 2):
        effects += run.send(id_, name="p1")
    assert [(message.ledger_id, message.entry_id) for message in of(effects, Message)] == [
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    run.unload()
    run.subscribe("s", permits=100)
    run.ack("s", (1, 2), cumulative=True)
    assert last_sequence_id(run.create_producer("p1")) == 2
    for id_ in (1, 2):
        (receipt,) = run.send(id_, name="p1")
        assert (receipt.ledger_id, receipt.entry_id) == DUPLICATE  # type: ignore[union-attr]
    assert run.backlog("s") == 0


@pytest.mark.feature("A7")
def test_dedup_case_10_a_producer_learns_its_last_sequence_id() -> None:
    run = Run(brokerDeduplicationEnabled=True)
    assert last_sequence_id(run.create_producer()) == -1
    for id_ in range(10):
        one(run.send(id_), SendReceipt)
    run.close_producer()
    assert last_sequence_id(run.create_producer()) == 9


@pytest.mark.feature("A2")
def test_dedup_case_11_gaps_are_no_matter() -> None:
    run = deduplicating()
    run.subscribe("s", permits=100)
    got = [id_ for id_ in (2, 3, 5, 2, 4, 6) if of(run.send(id_, name="p1"), Message)]
    assert got == [2, 3, 5, 6]
    run.unload()
    assert last_sequence_id(run.create_producer("p1")) == 6


@pytest.mark.feature("A4")
def test_dedup_case_12_the_timer_snapshots_at_the_last_entry() -> None:
    run = deduplicating(
        brokerDeduplicationEntriesInterval=20_000,
        brokerDeduplicationSnapshotFrequencyInSeconds=1,
        brokerDeduplicationSnapshotIntervalSeconds=1,
    )
    for id_ in range(50):
        p1(run, id_)
    run.wait(1)
    assert run.mark_delete(DEDUP_CURSOR) == (1, 49) == run.topic.ledger.last_confirmed
    assert run.cursor(DEDUP_CURSOR).properties == {"p1": 49}
    p1(run, 50)
    run.wait(1)
    assert run.mark_delete(DEDUP_CURSOR) == (1, 50)


@pytest.mark.feature("A4")
def test_dedup_case_12_without_the_timer_nothing_snapshots() -> None:
    run = deduplicating(
        brokerDeduplicationEntriesInterval=20_000, brokerDeduplicationSnapshotIntervalSeconds=1
    )
    for id_ in range(50):
        p1(run, id_)
    run.wait(600)
    assert run.mark_delete(DEDUP_CURSOR) == (1, -1)


@pytest.mark.feature("A4")
def test_dedup_case_13_loading_below_the_interval_takes_no_snapshot() -> None:
    run = deduplicating(brokerDeduplicationEntriesInterval=1000)
    for id_ in range(999):
        p1(run, id_)
    assert run.topic.dedup.snapshot_counter == 999
    run.unload()
    assert run.topic.dedup.snapshot_counter == 999
    assert run.mark_delete(DEDUP_CURSOR) == (1, -1)
    assert run.cursor(DEDUP_CURSOR).properties == {}


@pytest.mark.feature("A5")
def test_dedup_case_14_topic_before_namespace_before_broker() -> None:
    run = deduplicating()
    p1(run, 5)
    run.namespace("POST", "deduplication", False)
    assert marks(run) == (None, None)
    run.close_producer()
    assert last_sequence_id(run.create_producer("p1")) == -1
    assert p1(run, 5) == (1, 1)
    run.admin("POST", "/deduplicationEnabled", True)
    assert p1(run, 6) == (1, 2)
    assert p1(run, 6) == DUPLICATE
    run.admin("DELETE", "/deduplicationEnabled")
    assert p1(run, 6) == (1, 3)
    run.namespace("DELETE", "deduplication")
    assert p1(run, 7) == (1, 4)
    assert p1(run, 7) == DUPLICATE


@pytest.mark.feature("A2")
def test_dedup_case_15_overlapping_batches_are_judged_as_a_whole() -> None:
    run = deduplicating()
    assert p1(run, 0, 7) == (1, 0)
    assert marks(run) == (7, 7)
    assert p1(run, 5, 10) == DUPLICATE
    run.fault("DelayWrites", 1)
    assert p1(run, 8, 10) is None
    assert marks(run) == (10, 7)
    assert p1(run, 9) == "Unknown"
    assert p1(run, 6, 12) == DUPLICATE
    assert p1(run, 8, 12) == "Unknown"
    assert marks(run) == (10, 7)


@pytest.mark.feature("A4")
def test_dedup_case_16_every_entry_counts_towards_the_snapshot() -> None:
    run = deduplicating(brokerDeduplicationEntriesInterval=10)
    for id_ in range(1, 10):
        p1(run, id_)
    assert run.topic.dedup.snapshot_counter == 9
    assert run.mark_delete(DEDUP_CURSOR) == (1, -1)
    p1(run, 10)
    assert run.topic.dedup.snapshot_counter == 0
    assert run.mark_delete(DEDUP_CURSOR) == (1, 9)
    assert run.cursor(DEDUP_CURSOR).properties == {"p1": 10}
    for chunk, persisted in enumerate((10, 10, 11)):
        p1(run, 11, chunk_id=chunk, num_chunks_from_msg=3)
        assert run.topic.dedup.snapshot_counter == chunk + 1
        assert marks(run) == (persisted, persisted)


@pytest.mark.feature("A4", "A6")
def test_dedup_case_17_a_replay_takes_a_stale_chunk_at_its_word() -> None:
    run = deduplicating()
    assert p1(run, 5) == (1, 0)
    assert p1(run, 3, chunk_id=0, num_chunks_from_msg=2) == (1, 1)
    assert marks(run) == (5, 5)
    assert p1(run, 4) == DUPLICATE
    run.unload()
    assert marks(run) == (3, 3)
    run.create_producer("p1")
    assert p1(run, 4) == (2, 0)


@pytest.mark.feature("A4")
def test_dedup_case_18_a_snapshot_during_load_leaves_the_counter() -> None:
    run = deduplicating()
    for id_ in range(25):
        p1(run, id_)
    run.configure(brokerDeduplicationEnabled=True, brokerDeduplicationEntriesInterval=10)
    run.unload()
    assert run.mark_delete(DEDUP_CURSOR) == (1, 24)
    assert run.cursor(DEDUP_CURSOR).properties == {"p1": 24}
    assert run.topic.dedup.snapshot_counter == 25
    run.create_producer("p1")
    p1(run, 25)
    assert run.mark_delete(DEDUP_CURSOR) == Position(2, 0)
    assert run.topic.dedup.snapshot_counter == 0


# -- what no case says --------------------------------------------------------------------------------------------


@pytest.mark.feature("A4")
def test_a_topic_that_is_loaded_again_may_snapshot_at_once() -> None:
    run = deduplicating(brokerDeduplicationSnapshotIntervalSeconds=120)
    for id_ in (0, 1):
        p1(run, id_)
        run.check("deduplicationSnapshot")
    assert run.mark_delete(DEDUP_CURSOR) == (1, 0), "the second one is within the interval"
    run.unload()
    run.check("deduplicationSnapshot")
    assert run.mark_delete(DEDUP_CURSOR) == (1, 1)


@pytest.mark.feature("A5")
def test_a_topic_that_is_loaded_without_deduplication_knows_no_producer() -> None:
    run = deduplicating()
    p1(run, 5)
    run.configure(brokerDeduplicationEnabled=False)
    run.unload()
    assert last_sequence_id(run.create_producer("p1")) == -1


@pytest.mark.feature("A1", "B2")
def test_what_is_refused_before_the_check_leaves_its_id_free() -> None:
    run = deduplicating(delayedDeliveryMaxDelayInMillis=1000)
    run.admin("POST", "/maxMessageSize", 200)
    large = run.send(0, name="p1", ordering_key=b"k" * 200)
    late = run.send(0, name="p1", deliver_at_time=run.now + 1001)
    assert [one(effects, SendError).error for effects in (large, late)] == ["NotAllowedError"] * 2
    assert marks(run) == (None, None)
    assert p1(run, 0) == (1, 0)


@pytest.mark.feature("A6")
def test_a_message_whose_chunks_were_cut_short_by_an_unload_is_lost() -> None:
    """quirk: recovery takes each chunk for the whole message, so its last one is a duplicate."""
    run = deduplicating()
    assert p1(run, 6, chunk_id=0, num_chunks_from_msg=2) == (1, 0)
    run.unload()
    assert last_sequence_id(run.create_producer("p1")) == 6
    assert p1(run, 6, chunk_id=0, num_chunks_from_msg=2) == (2, 0)
    assert p1(run, 6, chunk_id=1, num_chunks_from_msg=2) == DUPLICATE


@pytest.mark.feature("A4")
def test_a_snapshot_holds_only_so_many_producers() -> None:
    run = deduplicating(brokerDeduplicationMaxNumberOfProducers=1, brokerDeduplicationEntriesInterval=2)
    p1(run, 5)
    p2(run, 6)
    assert run.cursor(DEDUP_CURSOR).properties == {"p1": 5}
    run.unload()
    assert [last_sequence_id(run.create_producer(name, id_)) for id_, name in ((1, "p1"), (2, "p2"))] == [
        5,
        -1,
    ]


@pytest.mark.feature("A4")
def test_the_timer_leaves_the_count_and_the_count_puts_the_timer_off() -> None:
    run = deduplicating(brokerDeduplicationEntriesInterval=3, brokerDeduplicationSnapshotIntervalSeconds=120)
    p1(run, 0)
    run.check("deduplicationSnapshot")
    assert (run.mark_delete(DEDUP_CURSOR), run.topic.dedup.snapshot_counter) == ((1, 0), 1)
    run.wait(100)
    p1(run, 1)
    p1(run, 2)
    assert run.mark_delete(DEDUP_CURSOR) == (1, 2)
    p1(run, 3)
    run.wait(100)
    run.check("deduplicationSnapshot")
    assert run.mark_delete(DEDUP_CURSOR) == (1, 2), "the last snapshot is 100 s old"


@pytest.mark.feature("A4", "F1")
def test_messages_that_expire_leave_the_cursor_where_it_is() -> None:
    run = deduplicating(ttlDurationDefaultInSeconds=10)
    run.subscribe("s")
    p1(run, 0)
    run.wait(20)
    run.check("messageExpiry")
    assert run.mark_delete("s") == (1, 0)
    assert run.mark_delete(DEDUP_CURSOR) == (1, -1)


@pytest.mark.feature("A4")
def test_a_producer_that_only_recovery_knows_is_never_purged() -> None:
    """quirk: it has to connect and leave first."""
    run = deduplicating(brokerDeduplicationProducerInactivityTimeoutMinutes=1)
    p1(run, 0)
    p2(run, 0)
    run.unload()
    run.create_producer("p2", 2)
    run.close_producer(2)
    run.wait(70)
    run.check("inactiveProducers")
    assert (marks(run, "p1"), marks(run, "p2")) == ((0, 0), (None, None))


@pytest.mark.feature("A4")
def test_a_truncation_empties_the_snapshot() -> None:
    run = deduplicating(brokerDeduplicationEntriesInterval=2)
    for id_ in range(3):
        p1(run, id_)
    assert (run.mark_delete(DEDUP_CURSOR), run.cursor(DEDUP_CURSOR).properties) == ((1, 1), {"p1": 1})
    run.admin("DELETE", "/truncate")
    assert (run.mark_delete(DEDUP_CURSOR), run.cursor(DEDUP_CURSOR).properties) == ((1, 2), {})


@pytest.mark.feature("A4", "C3")
def test_the_cursor_keeps_ledgers_until_a_snapshot_moves_it() -> None:
    run = deduplicating(managedLedgerMaxEntriesPerLedger=2, brokerDeduplicationEntriesInterval=5)
    run.subscribe("s")
    for id_ in range(4):
        p1(run, id_)
    run.ack("s", (2, 1), cumulative=True)
    run.admin("POST", "/trim")
    assert list(run.topic.ledger.ledgers) == [1, 2, 3]
    p1(run, 4)
    assert run.mark_delete(DEDUP_CURSOR) == (3, 0)
    assert list(run.topic.ledger.ledgers) == [3]
