"""The worked cases of docs/rules/ledgers.md §14, by number (none is left out), and what they don't reach.

The cases are those of the development line: `HEAD` has its settings where they show.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.effects import AdminResponse, CursorMoved, LedgerClosed, LedgerDeleted
from streaming.broker.ledger.managed_ledger import ENTRY_OVERHEAD, MEGABYTE, ManagedLedger
from streaming.broker.policies.hierarchy import RetentionPolicies
from streaming.broker.position import EARLIEST, Position
from tests.broker.kit import START, BareTopic, Run, of, one

P = Position
HEAD: dict[str, Any] = {"trimLedgerAckedToItsEnd": True, "moveCursorOverConsumedLedger": True}


def keep(run: Run, minutes: int, megabytes: int) -> None:
    run.admin("POST", "/retention", {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes})


def bare(*ledgers: int) -> ManagedLedger:
    """Ledgers with these numbers of entries, the last one open."""
    topic = BareTopic()
    topic.topic.policies.retention = RetentionPolicies(-1, -1)
    for entries in ledgers[:-1]:
        topic.add_ledger(*[1] * entries)
    topic.add(*[1] * ledgers[-1])
    return topic.ledger


@pytest.mark.feature("C2")
def test_ledger_case_01_backlog_size_in_an_open_ledger() -> None:
    topic = BareTopic()
    cursor = topic.open()
    positions = topic.add(*[1024] * 5)
    assert topic.topic.backlog_size() == 5120
    topic.mark(cursor, positions[1])
    assert topic.topic.backlog_size() == 3072
    topic.mark(cursor, positions[-1])
    assert topic.topic.backlog_size() == 0


@pytest.mark.feature("C2")
def test_ledger_case_02_backlog_size_from_any_position() -> None:
    ledger = bare(2, 2, 2, 2, 2, 0)
    assert ledger.backlog_size_from(EARLIEST) == 10
    assert ledger.backlog_size_from(P(1, 1)) == 8
    assert ledger.backlog_size_from(P(5, 2)) == 0


@pytest.mark.feature("H1")
def test_ledger_case_03_retention_by_size() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=1, **HEAD)
    keep(run, 60, 5)
    run.subscribe("s")
    run.fill(10, MEGABYTE)
    deleted = of(run.ack("s", (10, 0), cumulative=True), LedgerDeleted)
    assert [(effect.ledger_id, effect.cause) for effect in deleted] == [
        (id_, "retention size") for id_ in range(1, 6)
    ]
    assert run.topic.ledger.total_size == 5 * MEGABYTE
    assert list(run.topic.ledger.ledgers) == [6, 7, 8, 9, 10, 11]
    assert run.topic.ledger.current_entries == 0


@pytest.mark.feature("C1")
def test_ledger_case_04_total_size() -> None:
    topic = BareTopic(managedLedgerMaxEntriesPerLedger=1)
    cursor = topic.open()
    topic.add(8, 5)
    assert topic.ledger.total_size == 13
    topic.mark(cursor, P(2, -1))
    topic.trim()
    assert topic.ledger.total_size == 5


@pytest.mark.feature("C3")
@pytest.mark.parametrize(("to_its_end", "left"), [(True, 1), (False, 2)])
def test_ledger_case_05_trimmer(to_its_end: bool, left: int) -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=1, trimLedgerAckedToItsEnd=to_its_end)
    run.subscribe("s")
    run.fill(4)
    assert run.topic.ledger.number_of_entries == 4
    run.ack("s", (3, 0), cumulative=True)
    assert run.topic.ledger.number_of_entries == left


@pytest.mark.feature("C1")
def test_ledger_case_06_minimum_rollover_time() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=1, managedLedgerMinLedgerRolloverTimeMinutes=1 / 60)
    run.subscribe("s")
    run.fill(2)
    assert list(run.topic.ledger.ledgers) == [1]
    run.now += 1001
    closed = one(run.publish(2), LedgerClosed)
    assert (closed.ledger_id, closed.entries) == (1, 3)
    run.publish(3)
    assert list(run.topic.ledger.ledgers) == [1, 2]


@pytest.mark.feature("C1")
def test_ledger_case_07_position_after() -> None:
    ledger = bare(5, 5, 0)
    assert ledger.position_after(P(1, 0), 1) == P(1, 1)
    assert ledger.position_after(P(1, 0), 4) == P(1, 4)
    before = ledger.previous(P(2, 0))  # "from 2:0 inclusive"
    assert ledger.position_after(before, 1) == P(2, 0)
    assert ledger.position_after(before, 100) == P(2, 4)
    assert ledger.position_after(P(999, 0), 0) == P(2, 4)
    assert ledger.position_after(P(999, 0), 10) == P(2, 4)


@pytest.mark.feature("C1")
@pytest.mark.parametrize(
    ("interval", "entries"),
    [
        ("[1:0,1:9]", 10), ("(1:1,1:9]", 8), ("[1:2,1:9)", 7), ("[1:0,2:9]", 20), ("(1:0,2:9]", 19),
        ("[1:-1,1:9]", 11), ("[1:1,2:-1]", 9), ("(1:1,3:-1]", 18), ("[1:0,4:100]", 131), ("[1:9,2:-1]", 1),
    ],
)  # fmt: skip
def test_ledger_case_08_count(interval: str, entries: int) -> None:
    start, end = (P(*map(int, text.split(":"))) for text in interval[1:-1].split(","))
    include_start, include_end = interval[0] == "[", interval[-1] == "]"
    ledger = bare(10, 10, 10, 5)
    assert ledger.count(start, end, include_start=include_start, include_end=include_end) == entries


@pytest.mark.feature("C1")
def test_ledger_case_09_empty_ledgers_go_on_reopening() -> None:
    run = Run()
    run.subscribe("s")  # holds the entry back
    run.publish(0)
    assert list(run.topic.ledger.ledgers) == [1]
    run.unload()
    assert list(run.topic.ledger.ledgers) == [1, 2]
    run.unload()
    assert list(run.topic.ledger.ledgers) == [1, 3]
    assert run.topic.ledger.last_confirmed == P(1, 0)


@pytest.mark.feature("H1")
def test_ledger_case_10_infinite_retention_and_none() -> None:
    for minutes, megabytes, kept in ((-1, -1, 10), (0, 0, 0)):
        run = Run(managedLedgerMaxEntriesPerLedger=1, **HEAD)
        keep(run, minutes, megabytes)
        run.subscribe("s")
        run.fill(10, 100)
        run.ack("s", (10, 0), cumulative=True)
        run.check("consumedLedgers")
        assert len(run.topic.ledger.ledgers) == kept + 1
        assert run.topic.ledger.total_size == kept * 100


@pytest.mark.feature("C1", "H2")
def test_ledger_case_11_inactive_ledgers() -> None:
    run = Run(managedLedgerInactiveLedgerRolloverTimeSeconds=10)
    keep(run, -1, -1)
    for sequence_id in range(5):
        run.wait(10)
        assert not of(run.check("consumedLedgers"), LedgerClosed)  # not *beyond* the timeout
        run.wait(0.001)
        run.check("consumedLedgers")
        run.publish(sequence_id)
    assert list(run.topic.ledger.ledgers) == [1, 2, 3, 4, 5]

    run.wait(11)
    assert one(run.check("consumedLedgers"), LedgerClosed).ledger_id == 5
    run.wait(1000)
    assert not of(run.check("consumedLedgers"), LedgerClosed)  # an empty one is never rolled
    assert list(run.topic.ledger.ledgers) == [1, 2, 3, 4, 5, 6]


@pytest.mark.feature("C1")
def test_ledger_case_12_rollover_when_full() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=2, **HEAD)
    run.subscribe("s")
    run.fill(10, MEGABYTE)
    assert [run.topic.ledger.ledgers[id_].entries for id_ in range(1, 7)] == [2, 2, 2, 2, 2, 0]
    run.ack("s", (5, 1), cumulative=True)
    assert list(run.topic.ledger.ledgers) == [6]
    assert run.topic.ledger.total_size == run.topic.ledger.number_of_entries == 0


@pytest.mark.feature("C1")
def test_ledger_case_12_rollover_when_full_by_size() -> None:
    run = Run(managedLedgerMaxSizePerLedgerMbytes=2)
    run.subscribe("s")
    run.fill(10, MEGABYTE)
    assert len(run.topic.ledger.ledgers) == 6


@pytest.mark.feature("C3", "H1")
def test_ledger_case_13_truncate_heeds_no_retention() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=2, **HEAD)
    keep(run, 24 * 60, 50)
    run.subscribe("s")
    run.fill(10)
    assert len(run.topic.ledger.ledgers) == 6
    effects = run.admin("DELETE", "/truncate")
    assert one(effects, AdminResponse).fields.status == 204
    assert {effect.cause for effect in of(effects, LedgerDeleted)} == {"truncate"}
    assert list(run.topic.ledger.ledgers) == [6]
    assert run.topic.ledger.total_size == 0
    assert run.backlog("s") == 0


@pytest.mark.feature("C2")
@pytest.mark.parametrize(
    ("mark_delete", "size"), [(P(1, 2), 11264), (P(1, 4), 9216), (P(1, -1), 14336), (P(2, 4), 4096)]
)
def test_ledger_case_14_backlog_size_over_ledgers(mark_delete: Position, size: int) -> None:
    topic = BareTopic()
    slow, ahead = topic.open("slow"), topic.open("ahead")
    topic.add_ledger(*[1024] * 5)
    topic.add_ledger(*[1024] * 5)
    topic.add(*[1024] * 4)
    topic.mark(slow, mark_delete)
    topic.mark(ahead, P(3, 1))
    assert topic.topic.slowest_cursor() is slow
    assert topic.topic.backlog_size() == size


@pytest.mark.feature("C2")
def test_ledger_case_15_average_sizes_are_rounded_down() -> None:
    topic = BareTopic()
    topic.add(10, 10, 10, 13)
    assert [topic.ledger.backlog_size_from(P(1, entry)) for entry in range(-1, 4)] == [43, 33, 23, 13, 0]

    topic = BareTopic()
    topic.open()
    topic.add_ledger(33, 33, 34)
    assert [topic.ledger.backlog_size_from(P(1, entry)) for entry in range(3)] == [67, 34, 0]

    topic = BareTopic()
    topic.open()
    topic.add_ledger(250, 250, 250, 253)
    assert topic.ledger.backlog_size_from(P(1, 2)) == 253


@pytest.mark.feature("C2", "H1")
def test_ledger_case_16_retained_data_is_no_backlog() -> None:
    topic = BareTopic(managedLedgerMaxEntriesPerLedger=4)
    topic.topic.policies.retention = RetentionPolicies(-1, -1)
    cursor = topic.open()
    positions = topic.add(*[100] * 10)
    assert topic.topic.backlog_size() == 1000
    for mark_delete, backlog in ((positions[4], 500), (positions[7], 200), (P(3, -1), 200)):
        topic.mark(cursor, mark_delete)
        topic.trim()
        assert topic.topic.backlog_size() == backlog
        assert topic.ledger.total_size == 1000
    assert positions[4] == P(2, 0)
    assert positions[7] == P(2, 3)


@pytest.mark.feature("H1")
@pytest.mark.parametrize(
    ("minutes", "megabytes", "deleted"),
    [(1, -1, 1), (-1, 1, 3), (1, 1, 3), (1, 0, 4), (0, 0, 4), (-1, -1, 0), (-1, 4, 0), (-1, 3, 1)],
)
def test_ledger_case_17_retention_by_age_and_size(minutes: int, megabytes: int, deleted: int) -> None:
    topic = BareTopic(**HEAD)
    policies = topic.topic.policies
    policies.retention = RetentionPolicies(-1, -1)
    cursor = topic.open()
    now = topic.ctx.clock
    for age in (70, 50, 30, 10):
        topic.ctx.clock = now - age * 1000
        topic.add_ledger(MEGABYTE)
    topic.ctx.clock = now
    topic.mark(cursor, P(4, 0))
    policies.retention = RetentionPolicies(minutes, megabytes)
    topic.ctx.policies_changed()
    topic.trim()
    assert list(topic.ledger.ledgers) == [1, 2, 3, 4, 5][deleted:]
    assert len(of([row.effect for row in topic.ctx.rows], LedgerDeleted)) == deleted


@pytest.mark.feature("H1")
def test_ledger_case_18_a_younger_ledger_is_never_deleted_first() -> None:
    topic = BareTopic(**HEAD)
    topic.topic.policies.retention = RetentionPolicies(24 * 60, -1)
    cursor = topic.open()
    now = topic.ctx.clock
    for age, size in ((10, 1024 * MEGABYTE), (2 * 24 * 3600, 1)):
        topic.ctx.clock = now - age * 1000
        topic.add_ledger(size)
    topic.ctx.clock = now
    topic.mark(cursor, P(2, 0))
    topic.trim()
    assert list(topic.ledger.ledgers) == [1, 2, 3]


@pytest.mark.feature("C1")
def test_ledger_case_19_full_but_too_young() -> None:
    topic = BareTopic(managedLedgerMaxEntriesPerLedger=50000, managedLedgerMinLedgerRolloverTimeMinutes=10)
    topic.open()
    topic.ctx.clock = START + 60_000
    topic.add(*[1] * 50_000)
    topic.add(1)
    topic.ctx.clock = START + 600_000
    topic.add(1)
    assert list(topic.ledger.ledgers) == [1]
    topic.ctx.clock = START + 600_001
    topic.add(1)
    assert list(topic.ledger.ledgers) == [1, 2]
    assert topic.ledger.ledgers[1].entries == 50_003


@pytest.mark.feature("C1", "D3")
def test_ledger_case_20_ledger_closes_behind_a_cursor_that_caught_up() -> None:
    run = Run(managedLedgerMaxLedgerRolloverTimeMinutes=5, **HEAD)
    run.subscribe("s")
    run.fill(5)
    run.ack("s", (1, 4), cumulative=True)
    assert run.mark_delete("s") == P(1, 4)
    effects = run.wait(300)
    assert one(effects, LedgerClosed).entries == 5
    assert one(effects, LedgerDeleted).ledger_id == 1
    assert run.mark_delete("s") == P(2, -1)
    assert list(run.topic.ledger.ledgers) == [2]
    assert run.topic.ledger.last_confirmed == P(1, 4)
    assert run.backlog("s") == 0


@pytest.mark.feature("C1", "D3")
def test_ledger_case_20_ack_after_the_ledger_closed() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=5, **HEAD)
    run.subscribe("s")
    run.fill(5)
    assert list(run.topic.ledger.ledgers) == [1, 2]
    assert not of(
        run.ack("s", (1, 4), cumulative=True), LedgerDeleted
    )  # the old minimum was in this ledger too
    assert one(run.check("consumedLedgers"), LedgerDeleted).ledger_id == 1
    assert run.mark_delete("s") == P(1, 4)
    assert list(run.topic.ledger.ledgers) == [2]
    assert run.backlog("s") == 0


@pytest.mark.feature("C1", "D3")
def test_ledger_case_20_without_the_settings_of_head() -> None:
    run = Run(
        managedLedgerMaxLedgerRolloverTimeMinutes=5,
        trimLedgerAckedToItsEnd=False,
        moveCursorOverConsumedLedger=False,
    )
    run.subscribe("s")
    run.fill(5)
    run.ack("s", (1, 4), cumulative=True)
    run.wait(300)
    assert run.mark_delete("s") == P(1, 4)
    assert list(run.topic.ledger.ledgers) == [1, 2]
    run.publish(5)
    assert one(run.ack("s", (2, 0), cumulative=True), LedgerDeleted).ledger_id == 1


# -- beyond the worked cases --------------------------------------------------------------------------------------


@pytest.mark.feature("C1")
def test_an_interval_has_its_beginning_first() -> None:
    with pytest.raises(ValueError, match="reversed"):
        bare(5).count(P(1, 2), P(1, 1), include_start=True, include_end=True)


@pytest.mark.feature("C1")
def test_counting_is_arithmetic_in_the_last_ledger_of_a_range() -> None:
    """As 4.0.7 does: a cursor that has read a closed ledger to its end shows one entry more than there is."""
    ledger = bare(10, 10, 10, 5)
    assert ledger.count(P(1, 0), P(2, 10), include_start=False, include_end=True) == 9 + 11
    assert ledger.count(P(1, 0), P(2, 100), include_start=True, include_end=True) == 111
    assert (
        ledger.count(P(1, 0), P(9, 2), include_start=False, include_end=True) == 9 + 20 + 3
    )  # no such ledger
    assert ledger.count(P(1, 100), P(2, 3), include_start=False, include_end=True) == 4 - 91  # by arithmetic


@pytest.mark.feature("C1")
@pytest.mark.parametrize(
    ("start", "end", "include_start", "include_end", "count", "in_4_0"),
    [
        (P(1, 0), P(2, 10), False, True, 9 + 10, 9 + 11),  # read to the end of a closed ledger
        (P(1, 0), P(2, 100), True, True, 10 + 10, 10 + 101),
        (P(1, 0), P(2, 3), False, False, 9 + 3, 9 + 3),
        (P(2, 0), P(2, 10), False, True, 10, 10),  # the ends are in one ledger
        (P(1, 0), P(4, 100), True, True, 10 + 20 + 101, 10 + 20 + 101),  # the last ledger
        (P(1, 0), P(9, 2), False, True, 9 + 20, 9 + 20 + 3),  # no such ledger
        (P(9, 0), P(9, 2), False, True, 0, 2),
        (P(1, 0), P(2, -1), False, True, 9, 9),
        (P(1, 0), P(2, -1), False, False, 9, 8),
        (P(2, -1), P(2, -1), True, True, 0, 1),
        (P(1, -1), P(2, 3), True, False, 10 + 3, 11 + 3),
    ],
)  # fmt: skip
def test_from_4_2_on_stored_entries_count(
    start: Position, end: Position, include_start: bool, include_end: bool, count: int, in_4_0: int
) -> None:
    """As `ManagedLedgerImpl.getNumberOfEntries` of 4.2.4 and of 4.0.7."""
    ledger = bare(10, 10, 10, 5)
    assert ledger.count(start, end, include_start=include_start, include_end=include_end) == in_4_0
    ledger.counts_deleted = False
    assert ledger.count(start, end, include_start=include_start, include_end=include_end) == count


@pytest.mark.feature("C1")
def test_a_position_has_nothing_before_it() -> None:
    ledger = bare(0)
    assert ledger.previous(P(1, 0)) == P(1, -1)
    assert ledger.previous(P(999, 0)) == P(1, -1)


@pytest.mark.feature("C1")
def test_nothing_lies_behind_the_end() -> None:
    ledger = bare(5, 5)
    assert ledger.backlog_size_from(P(9, 0)) == 0
    assert ledger.position_after(P(2, 4), 1) == P(2, 4)
    assert ledger.next_valid(P(9, 0)) == P(2, 5)


@pytest.mark.feature("C1")
def test_entries_of_a_deleted_ledger_count_within_it() -> None:
    """Quirk, seen in a real broker: an Earliest cursor on a topic whose entries are all deleted has a backlog."""
    topic = BareTopic(managedLedgerMaxEntriesPerLedger=2, trimAtRolloverSparesClosedLedger=False)
    topic.add(1, 1)
    assert list(topic.ledger.ledgers) == [2]
    cursor = topic.open()
    assert cursor.mark_delete == P(1, -1)
    assert cursor.backlog(topic.ledger) == 2
    assert topic.topic.backlog_size() == 0
    assert cursor.read(topic.ledger, 10) == []


@pytest.mark.feature("A3", "C1")
def test_unconfirmed_entries_are_dropped() -> None:
    topic = BareTopic()
    topic.add(7)
    topic.ledger.submit(5, topic.ctx.clock, topic.ctx.config)
    assert (topic.ledger.current_entries, topic.ledger.current_size) == (2, 12)
    topic.ledger.drop_unconfirmed()
    assert (topic.ledger.current_entries, topic.ledger.current_size) == (1, 7)

    topic.open()
    topic.roll_over()
    topic.ledger.submit(5, topic.ctx.clock, topic.ctx.config)
    topic.ledger.drop_unconfirmed()
    assert (topic.ledger.current_entries, topic.ledger.current_size) == (0, 0)


@pytest.mark.feature("C1")
@pytest.mark.parametrize("last", [3, 0])
def test_a_terminated_ledger_opens_no_other(last: int) -> None:
    topic = BareTopic(**HEAD)
    cursor = topic.open()
    topic.add_ledger(1, 1)
    topic.add(*[1] * last)
    topic.ledger.terminated = True
    topic.ledger.reopen(topic.ctx.clock)
    cursor.recover(topic.ledger)
    assert list(topic.ledger.ledgers) == ([1, 2] if last else [1])
    end = P(2, last - 1) if last else P(1, 1)
    assert topic.ledger.last_confirmed == end
    assert topic.ledger.number_of_entries == topic.ledger.total_size == topic.topic.backlog_size() == 2 + last
    assert cursor.peek(topic.ledger, 2 + last) == P(1, 1)
    assert topic.ledger.next_valid(P(9, 0)) == P(2, 0)
    cursor.skip(topic.ledger, 1, exclude_acked=True)
    cursor.skip(topic.ledger, last, exclude_acked=True)
    assert cursor.mark_delete == P(1, 1 if last else 0)
    assert len(cursor.read(topic.ledger, 10)) == cursor.backlog(topic.ledger) == max(last, 1)
    topic.mark(cursor, end)
    topic.trim()
    assert list(topic.ledger.ledgers) == ([2] if last else [])


@pytest.mark.feature("C1")
def test_a_terminated_ledger_keeps_its_entries_however_often_it_is_reopened() -> None:
    topic = BareTopic()
    topic.add(1, 1)
    topic.ledger.terminated = True
    for _ in range(3):
        topic.ledger.reopen(topic.ctx.clock)
        assert list(topic.ledger.ledgers) == [1]
        assert topic.ledger.number_of_entries == 2
        assert topic.ledger.last_confirmed == P(1, 1)


@pytest.mark.feature("C1")
def test_an_empty_ledger_is_replaced_on_reopening() -> None:
    topic = BareTopic()
    topic.ledger.reopen(topic.ctx.clock)
    assert list(topic.ledger.ledgers) == [2]
    assert topic.ledger.last_confirmed == P(2, -1)


@pytest.mark.feature("C1")
def test_a_terminated_ledger_recovers_a_cursor_before_its_dropped_end() -> None:
    topic = BareTopic(**HEAD)
    cursor = topic.open()
    topic.add(1)
    topic.mark(cursor, P(1, 0))
    topic.topic.policies.retention = RetentionPolicies(-1, -1)
    topic.roll_over()
    assert cursor.mark_delete == P(2, -1)
    topic.ledger.terminated = True
    topic.ledger.reopen(topic.ctx.clock)
    cursor.recover(topic.ledger)
    assert cursor.mark_delete == topic.ledger.last_confirmed == P(1, 0)
    assert cursor.backlog(topic.ledger) == 0


@pytest.mark.feature("C1")
def test_an_empty_ledger_of_maximum_age_closes_with_its_first_entry() -> None:
    run = Run(managedLedgerMaxLedgerRolloverTimeMinutes=5)
    run.subscribe("s")
    assert not of(run.wait(300), LedgerClosed)
    closed = one(run.publish(0), LedgerClosed)
    assert (closed.ledger_id, closed.entries, closed.cause) == (1, 1, "ledger full")


@pytest.mark.feature("C1")
def test_no_timer_closes_a_ledger_with_writes_under_way() -> None:
    run = Run(managedLedgerMaxLedgerRolloverTimeMinutes=5, managedLedgerInactiveLedgerRolloverTimeSeconds=10)
    run.publish(0)
    run.fault("DelayWrites", 1)
    run.publish(1)
    assert not of(run.wait(300), LedgerClosed)
    assert not of(run.check("consumedLedgers"), LedgerClosed)
    assert not of(run.fault("CompleteWrites"), LedgerClosed)
    assert one(run.publish(2), LedgerClosed).entries == 3


@pytest.mark.feature("H1")
def test_a_ledger_outlives_its_retention_time() -> None:
    topic = BareTopic(**HEAD)
    topic.topic.policies.retention = RetentionPolicies(1, -1)
    cursor = topic.open()
    topic.add_ledger(1)
    topic.mark(cursor, P(1, 0))
    topic.ctx.clock = START + 60_000
    topic.trim()
    assert list(topic.ledger.ledgers) == [1, 2]
    topic.ctx.clock += 1
    topic.trim()
    assert list(topic.ledger.ledgers) == [2]


@pytest.mark.feature("C3")
@pytest.mark.parametrize("slow", [(1, 1), (2, 0)])
def test_acks_look_for_free_ledgers_only_when_the_slowest_cursor_moves(slow: tuple[int, int]) -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=2, **HEAD)
    keep(run, 1, -1)
    run.subscribe("slow")
    run.subscribe("fast")
    run.fill(6)
    run.ack("slow", slow, cumulative=True)
    run.ack("fast", (2, 0), cumulative=True)
    run.wait(61)
    assert not of(run.ack("fast", (3, 0), cumulative=True), LedgerDeleted)
    assert one(run.check("consumedLedgers"), LedgerDeleted).ledger_id == 1


@pytest.mark.feature("C3")
def test_a_cursor_that_is_not_the_slowest_frees_nothing() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=1, **HEAD)
    run.subscribe("slow")
    run.subscribe("fast")
    run.fill(3)
    assert not of(run.ack("fast", (3, 0), cumulative=True), LedgerDeleted)
    deleted = of(run.ack("slow", (2, 0), cumulative=True), LedgerDeleted)
    assert [effect.ledger_id for effect in deleted] == [1, 2]


@pytest.mark.feature("C3", "D3")
def test_mark_deletes_that_are_not_written_hold_ledgers_back() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=1, managedLedgerDefaultMarkDeleteRateLimit=1, **HEAD)
    run.subscribe("s")
    run.fill(4)
    assert of(run.ack("s", (1, 0), cumulative=True), LedgerDeleted) == []
    run.ack("s", (4, 0), cumulative=True)
    assert run.mark_delete("s") == P(4, 0)
    assert [effect.ledger_id for effect in of(run.check("consumedLedgers"), LedgerDeleted)] == [1]
    assert [effect.ledger_id for effect in of(run.check("cursorFlush"), LedgerDeleted)] == [2, 3, 4]


BOOKIES = {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1}


@pytest.mark.feature("C3", "D3", "I1")
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("topic", "namespace", "broker", "limited"),
    [
        (None, None, 1, True),
        (None, 0, 1, False),
        (None, 1, 0, True),
        (0, 1, 1, False),
        (1, 0, 0, True),
        (-1, 1, 1, False),
    ],
)
def test_the_rate_of_mark_deletes_is_that_of_the_first_level(
    topic: int | None, namespace: int | None, broker: int, limited: bool, later: bool
) -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=1, managedLedgerDefaultMarkDeleteRateLimit=broker, **HEAD)
    if later:
        run.subscribe("s")
    for rate, call in (
        (namespace, run.namespace),
        (topic, lambda *args: run.admin(args[0], f"/{args[1]}", args[2])),
    ):
        if rate is not None:
            body = {**BOOKIES, "managedLedgerMaxMarkDeleteRate": rate}
            assert one(call("POST", "persistence", body), AdminResponse).fields.status == 204
    if not later:
        run.subscribe("s")
    run.fill(4)
    run.ack("s", (1, 0), cumulative=True)
    run.ack("s", (4, 0), cumulative=True)
    assert (run.topic.cursors["s"].key == P(4, 0)) is not limited


@pytest.mark.feature("D3", "I1")
def test_a_mark_delete_that_waits_is_written_by_the_next_change_once_no_rate_limits_it() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=1, managedLedgerDefaultMarkDeleteRateLimit=1, **HEAD)
    run.subscribe("s")
    run.fill(4)
    for ledger in (1, 2):
        run.ack("s", (ledger, 0), cumulative=True)
    run.admin("POST", "/persistence", BOOKIES)
    assert run.topic.cursors["s"].key == P(1, 0)
    run.ack("s", (3, 0), cumulative=True)
    assert run.topic.cursors["s"].key == P(3, 0)
    run.admin("DELETE", "/persistence")
    run.ack("s", (4, 0), cumulative=True)
    assert run.topic.cursors["s"].key == P(3, 0)


@pytest.mark.feature("C3")
def test_trimming_tells_which_cursors_it_moved() -> None:
    topic = BareTopic(managedLedgerMaxEntriesPerLedger=2, trimAtRolloverSparesClosedLedger=False)
    topic.open_reader("reader", EARLIEST)
    topic.add(1, 1)
    moved = one([row.effect for row in topic.ctx.rows], CursorMoved)
    assert (moved.subscription, moved.entries, moved.cause) == ("reader", 2, "ledger trimmed")
    assert (moved.before_ledger, moved.before_entry) == (1, -1)
    assert (moved.after_ledger, moved.after_entry) == (1, 1)
    assert moved.policy == "0 min, 0 MB (broker)"


@pytest.mark.feature("D1")
def test_a_read_goes_on_in_the_next_ledger_while_any_of_its_bytes_are_left() -> None:
    ledger = bare(1, 3)
    one_entry = 1 + ENTRY_OVERHEAD
    for size, entries in ((one_entry, 1), (one_entry + 1, 2), (2 * one_entry, 2), (3 * one_entry, 3)):
        assert ledger.entries_within(size, P(1, 0), 10) == entries


@pytest.mark.feature("D1")
def test_a_read_behind_the_last_ledger_or_before_the_first_is_estimated_by_what_is_there() -> None:
    """By the last ledger that has entries, and from the first one on. Without entries, a read asks for one."""
    ledger = bare(2, 1)
    one_entry = 1 + ENTRY_OVERHEAD
    for at in (P(2, 1), P(3, 0), P(9, 0)):
        assert [ledger.entries_within(n * one_entry, at, 10) for n in (1, 2, 20)] == [1, 2, 10]
    assert ledger.entries_within(3 * one_entry, P(0, 0), 10) == 3
    assert BareTopic().ledger.entries_within(3 * one_entry, P(9, 0), 10) == 1


@pytest.mark.feature("D1")
def test_a_read_in_an_empty_open_ledger_is_estimated_by_the_last_one_with_entries() -> None:
    topic = BareTopic()
    topic.topic.policies.retention = RetentionPolicies(-1, -1)
    topic.add_ledger(1, 1)
    ledger = topic.ledger
    assert ledger.current_entries == 0
    assert [
        ledger.entries_within(n * (1 + ENTRY_OVERHEAD), P(ledger.current, 0), 10) for n in (1, 3, 20)
    ] == [1, 3, 10]


@given(st.lists(st.integers(1, 4), max_size=9), st.integers(0, 9), st.integers(0, 2))
def test_the_entries_between_two_ledgers(closed: list[int], trimmed: int, open_entries: int) -> None:
    """They are counted from the end that is nearer: also those of a cursor that is far behind, at the first ledger."""
    topic = BareTopic()
    for entries in closed:
        topic.add_ledger(*[1] * entries)
    topic.add(*[1] * open_entries)
    ledger = topic.ledger
    for id_ in list(ledger.ledgers)[: min(trimmed, len(closed))]:
        ledger.number_of_entries -= ledger.ledgers.pop(id_).entries
    ids = [*range(ledger.current + 1)]
    for low in ids:
        for high in ids[low + 1 :]:
            between = sum(info.entries for id_, info in ledger.ledgers.items() if low < id_ < high)
            assert ledger._entries_between(low, high) == between
