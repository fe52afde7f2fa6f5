"""The worked cases of docs/rules/cursors.md §18, by number (none is left out), and what they don't reach. p1, p2, … are
consecutive entries."""

from collections.abc import Callable
from typing import Any

import pytest

from schemas.effects import AdminResponse, Expired
from streaming.broker.errors import CursorError
from streaming.broker.ledger.ack_set import to_bits
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import LedgerInfo, ManagedLedger
from streaming.broker.persistent.cleanup.message_finder import find_newest, search_range
from streaming.broker.policies.hierarchy import RetentionPolicies
from streaming.broker.position import EARLIEST, LATEST, Position
from tests.broker.kit import BareTopic, Run, of, one

P = Position


def ledgers_of(entries: int, **settings: Any) -> BareTopic:
    """A topic whose ledgers take so many entries; nothing is trimmed."""
    topic = BareTopic(managedLedgerMaxEntriesPerLedger=entries, **settings)
    topic.topic.policies.retention = RetentionPolicies(-1, -1)
    return topic


def backlog(topic: BareTopic, cursor: ManagedCursor) -> int:
    """The backlog, which is the same by counters and by walking."""
    found = cursor.backlog(topic.ledger)
    assert found == cursor.backlog(topic.ledger, precise=True)
    return found


def acked_in_batch(cursor: ManagedCursor, position: Position, size: int = 10) -> set[int]:
    """Indices of a batch that are acked."""
    bits = to_bits(cursor.batches[position])
    return {index for index in range(size) if not bits >> index & 1}


def without(*indices: int, size: int = 10) -> int:
    """The ack set of a batch whose `indices` are acked."""
    return sum(1 << index for index in range(size) if index not in indices)


@pytest.mark.feature("D3")
def test_cursor_case_01_backlog() -> None:
    topic = ledgers_of(2)
    cursors, positions = [topic.open("0", earliest=False)], []
    for number in range(1, 5):
        positions += topic.add(1)
        cursors.append(topic.open(str(number), earliest=False))
    assert [backlog(topic, cursor) for cursor in cursors] == [4, 3, 2, 1, 0]
    first = cursors[0]
    topic.mark(first, positions[0])
    assert backlog(topic, first) == 3
    topic.ack(first, positions[2])
    assert backlog(topic, first) == 2
    topic.mark(first, positions[3])
    assert backlog(topic, first) == 0
    assert [backlog(topic, cursor) for cursor in cursors[1:]] == [3, 2, 1, 0]


@pytest.mark.feature("D3")
def test_cursor_case_02_single_deletes() -> None:
    topic = ledgers_of(3)
    cursor = topic.open()
    p = [None, *topic.add(*[1] * 6)]
    for acked, mark_delete in ((4, P(1, -1)), (1, p[1]), (3, p[1]), (3, p[1]), (2, p[4]), (5, p[5])):
        topic.ack(cursor, p[acked])  # type: ignore[arg-type]
        assert cursor.mark_delete == mark_delete
    assert p[4] == P(2, 0)  # over the ledger's end
    assert not cursor.acked
    assert backlog(topic, cursor) == 1


@pytest.mark.feature("D3")
def test_cursor_case_03_counting_with_deletes() -> None:
    topic = ledgers_of(2)
    cursor = topic.open()
    p = [EARLIEST, *topic.add(*[1] * 8)]
    for acked, left in (((8,), 7), ((1,), 6), ((7, 6, 5), 3)):
        topic.ack(cursor, *(p[number] for number in acked))
        assert cursor.entries_to_read(topic.ledger) == left
        assert backlog(topic, cursor) == left


@pytest.mark.feature("D3")
def test_cursor_case_04_mark_delete_out_of_order() -> None:
    topic = ledgers_of(10)
    cursor = topic.open()
    p1, p2 = topic.add(1, 1)
    topic.mark(cursor, p2)
    with pytest.raises(CursorError):
        topic.mark(cursor, p1)
    assert cursor.mark_delete == p2
    assert backlog(topic, cursor) == 0


@pytest.mark.feature("D3")
def test_cursor_case_04_mark_delete_twice() -> None:
    topic = ledgers_of(10)
    cursor = topic.open()
    p1, _ = topic.add(1, 1)
    topic.mark(cursor, p1)
    topic.mark(cursor, p1)
    assert cursor.mark_delete == p1
    assert backlog(topic, cursor) == 1


@pytest.mark.feature("D4")
def test_cursor_case_05_skip_with_deletes() -> None:
    topic = ledgers_of(5)
    cursor = topic.open()
    p = topic.add(*[1] * 5)
    topic.ack(cursor, p[1])
    topic.ack(cursor, p[3])
    cursor.skip(topic.ledger, 3, exclude_acked=True)
    assert cursor.mark_delete == p[4]
    assert cursor.entries_to_read(topic.ledger) == backlog(topic, cursor) == 0
    assert cursor.read_position == P(2, 0)

    q = topic.add(*[1] * 5)
    topic.ack(cursor, q[1])
    topic.ack(cursor, q[3])
    cursor.skip(topic.ledger, 4, exclude_acked=False)
    assert cursor.mark_delete == q[3]
    assert cursor.read_position == q[4]
    assert cursor.entries_to_read(topic.ledger) == backlog(topic, cursor) == 1


@pytest.mark.feature("D4")
def test_cursor_case_06_skip() -> None:
    topic = ledgers_of(2)
    cursor = topic.open()
    before = cursor.mark_delete, cursor.read_position
    cursor.skip(topic.ledger, 1, exclude_acked=True)
    assert (cursor.mark_delete, cursor.read_position) == before

    p = topic.add(1, 1)
    cursor.skip(topic.ledger, 1, exclude_acked=True)
    assert cursor.mark_delete == p[0]
    cursor.skip(topic.ledger, 1, exclude_acked=True)
    assert cursor.mark_delete == p[1]
    assert cursor.read_position == P(2, 0)

    topic.add(*[1] * 6)
    cursor.skip(topic.ledger, 5, exclude_acked=True)
    assert cursor.entries_to_read(topic.ledger) == backlog(topic, cursor) == 1
    cursor.skip(topic.ledger, 10, exclude_acked=True)
    assert cursor.entries_to_read(topic.ledger) == backlog(topic, cursor) == 0


@pytest.mark.feature("D4")
def test_cursor_case_07_peek() -> None:
    topic = ledgers_of(10)
    cursor = topic.open()
    p = topic.add(*[1] * 5)
    topic.ack(cursor, p[2], p[3])
    assert cursor.peek(topic.ledger, 3) == p[4]
    assert cursor.peek(topic.ledger, 3, exclude_acked=False) == p[2]
    assert cursor.peek(topic.ledger, 4) is None


@pytest.mark.feature("D3")
def test_cursor_case_08_cumulative_ack_inside_a_batch() -> None:
    topic = ledgers_of(10)
    cursor = topic.open()
    (batch,) = topic.add(1)
    for index, acked in ((3, 4), (4, 5), (2, 5)):
        cursor.acknowledge_cumulative(topic.ledger, batch, without(*range(index + 1)))
        assert acked_in_batch(cursor, batch) == set(range(acked))
        assert cursor.mark_delete == P(1, -1)
        assert backlog(topic, cursor) == 1


@pytest.mark.feature("D3")
def test_cursor_case_09_individual_acks_inside_a_batch() -> None:
    topic = ledgers_of(10)
    cursor = topic.open()
    batch, other = topic.add(1, 1)
    topic.ack(cursor, batch, left=without(2, 3, 4))
    assert acked_in_batch(cursor, batch) == {2, 3, 4}
    topic.ack(cursor, batch, left=without(3, 4, 5, 6, 7, 8))
    assert acked_in_batch(cursor, batch) == {2, 3, 4, 5, 6, 7, 8}
    topic.ack(cursor, batch, left=without(0))
    assert acked_in_batch(cursor, batch) == {0, 2, 3, 4, 5, 6, 7, 8}
    assert backlog(topic, cursor) == 2
    topic.ack(cursor, batch, left=without(1))
    topic.ack(cursor, batch, left=without(9))
    assert cursor.batches == {}
    assert cursor.mark_delete == batch
    assert backlog(topic, cursor) == 1

    topic.ack(cursor, other, left=without(2))
    assert acked_in_batch(cursor, other) == {2}
    cursor.reset(topic.ledger, other)
    assert cursor.batches == {}


@pytest.mark.feature("C2")
def test_cursor_case_10_size_with_individual_acks() -> None:
    topic = ledgers_of(10)
    cursor = topic.open()
    p = topic.add(*[100] * 5)
    assert cursor.backlog_size(topic.ledger) == 500
    topic.ack(cursor, p[1], p[3], p[4])
    assert cursor.backlog_size(topic.ledger) == 200
    assert backlog(topic, cursor) == 2


@pytest.mark.feature("D3")
def test_cursor_case_11_rate_limited_mark_deletes_are_lost_in_a_crash() -> None:
    topic = ledgers_of(10, managedLedgerDefaultMarkDeleteRateLimit=1)
    cursor = topic.open()
    positions = topic.add(*[1] * 3)
    for position in positions:
        topic.mark(cursor, position)
    assert backlog(topic, cursor) == 0
    assert cursor.key == positions[0]
    topic.ledger.reopen(topic.ctx.clock)
    cursor.recover(topic.ledger)
    assert cursor.mark_delete == positions[0]
    assert backlog(topic, cursor) == 2


@pytest.mark.feature("D3")
def test_cursor_case_12_positions_past_the_end() -> None:
    topic = ledgers_of(100)
    cursor = topic.open()
    topic.add(*[1] * 20)
    before = cursor.mark_delete, cursor.read_position
    for operation in (topic.mark, topic.ack):
        with pytest.raises(CursorError):
            operation(cursor, P(100, 100))
        assert (cursor.mark_delete, cursor.read_position) == before
    assert backlog(topic, cursor) == 20


@pytest.mark.feature("E5")
def test_cursor_case_13_rewind() -> None:
    topic = ledgers_of(2)
    cursor = topic.open()
    p = topic.add(*[1] * 4)
    topic.mark(cursor, p[0])
    assert cursor.entries_to_read(topic.ledger) == 3
    assert cursor.read(topic.ledger, 10) == p[1:]
    assert cursor.entries_to_read(topic.ledger) == 0
    assert backlog(topic, cursor) == 3
    cursor.rewind(topic.ledger)
    assert cursor.entries_to_read(topic.ledger) == 3


@pytest.mark.feature("F2")
def test_cursor_case_14_find_newest_with_deletes() -> None:
    topic = ledgers_of(10)
    cursor = topic.open()
    p = topic.add(*[1] * 7)
    topic.ack(cursor, p[1], p[2])
    start = topic.ledger.next_valid(cursor.mark_delete)
    assert find_newest(topic.ledger, lambda position: position != p[6], start, None) == p[5]


@pytest.mark.feature("F2")
def test_cursor_case_14_find_newest_after_a_rollover() -> None:
    topic = ledgers_of(10)
    topic.open()
    p = topic.add_ledger(1, 1, 1)
    assert find_newest(topic.ledger, lambda position: position != p[1], p[0], None) == p[2]


@pytest.mark.feature("C3")
def test_cursor_case_15_readers_lose_data_to_trimming() -> None:
    topic = BareTopic(managedLedgerMaxEntriesPerLedger=1)
    durable = topic.open("c1")
    reader = topic.open_reader("reader", EARLIEST)
    p = topic.add(*[1] * 10)
    assert backlog(topic, reader) == 10
    topic.mark(durable, p[4])
    topic.trim()
    assert backlog(topic, reader) == 5
    del topic.topic.cursors["c1"]
    topic.trim()
    assert backlog(topic, reader) == 0


@pytest.mark.feature("D2")
def test_cursor_case_16_readers_start_where_data_starts() -> None:
    topic = BareTopic(managedLedgerMaxEntriesPerLedger=1)
    durable = topic.open("durable")
    topic.add(1, 1)
    topic.mark(durable, P(2, 0))
    topic.trim()
    p = topic.add(*[1] * 6)
    assert p[0] == P(3, 0)

    reader = topic.open_reader("earliest", EARLIEST)
    assert (reader.read_position, reader.mark_delete) == (P(3, 0), P(3, -1))
    assert backlog(topic, reader) == 6
    reader = topic.open_reader("p1", p[0])
    assert (reader.read_position, reader.mark_delete) == (p[1], p[0])
    assert backlog(topic, reader) == 5


@pytest.mark.feature("F2", "F4")
def test_cursor_case_17_expiry_to_a_position() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=5)
    run.subscribe("s")
    run.fill(30)
    p = [P(index // 5 + 1, index % 5) for index in range(30)]

    def expire(position: Position) -> tuple[int, int]:
        body = {"ledgerId": position.ledger, "entryId": position.entry}
        effects = run.admin("POST", "/subscription/s/expireMessages", body)
        moved = sum(effect.entries for effect in of(effects, Expired))
        return one(effects, AdminResponse).fields.status, moved

    for position, status, expired, mark_delete in (
        (p[15], 204, 16, p[15]),
        (P(100, 100), 409, 0, p[15]),
        (p[15], 204, 0, p[15]),
        (p[10], 204, 0, p[15]),
        (p[16], 204, 1, p[16]),
    ):
        assert expire(position) == (status, expired)
        assert run.mark_delete("s") == mark_delete


@pytest.mark.feature("D4")
@pytest.mark.parametrize(
    ("target", "mark_delete", "read_position", "left"),
    [
        (P(1, 1), P(1, 0), P(1, 1), 7),
        (EARLIEST, P(1, -1), P(1, -1), 8),
        (LATEST, P(3, 1), P(3, 2), 0),
        (P(1, 3), P(1, 2), P(2, 0), 5),
    ],
)
def test_cursor_case_18_reset(
    target: Position, mark_delete: Position, read_position: Position, left: int
) -> None:
    topic = ledgers_of(3)
    cursor = topic.open()
    p = topic.add(*[1] * 8)
    topic.ack(cursor, *p[:3], p[4])
    assert (cursor.mark_delete, cursor.read_position) == (P(1, 2), P(2, 0))
    assert str(cursor.acked) == "[(2:0..2:1]]"
    assert backlog(topic, cursor) == 4

    cursor.reset(topic.ledger, target)
    assert (cursor.mark_delete, cursor.read_position) == (mark_delete, read_position)
    assert not cursor.acked
    assert cursor.backlog(topic.ledger, precise=True) == left
    # quirk: the counter keeps the ack of 2:1, or counts it once more
    assert cursor.backlog(topic.ledger) == left - (left > 0)


@pytest.mark.feature("F2")
@pytest.mark.parametrize(
    ("entries", "probes", "found"),
    [
        ("EEEEENNNNN", [0, 9, 5, 2, 3, 4], 4),
        ("EEEENEEEEN", None, 8),
        ("EENNEENNNN", None, 5),
        ("ENNNNNNNNE", [0, 9], 9),
        ("NEEEEEEEEE", [0], None),
    ],
)
def test_cursor_case_19_search_probes(entries: str, probes: list[int] | None, found: int | None) -> None:
    topic = ledgers_of(100)
    positions = topic.add(*[1] * 10)
    probed = []

    def matches(position: Position) -> bool:
        probed.append(position.entry)
        return entries[position.entry] == "E"

    expected = None if found is None else positions[found]
    assert find_newest(topic.ledger, matches, positions[0], None) == expected
    assert probes is None or probed == probes


@pytest.mark.feature("D3")
def test_cursor_case_20_mark_delete_before_an_empty_ledger() -> None:
    topic = ledgers_of(2)
    cursor = topic.open()
    topic.add(1, 1)
    assert cursor.mark_delete == P(1, -1)
    with pytest.raises(CursorError):
        topic.mark(cursor, P(2, -1))
    topic.mark(cursor, P(1, 1))
    topic.mark(cursor, P(2, -1))
    assert cursor.mark_delete == P(2, -1)
    assert backlog(topic, cursor) == 0


@pytest.mark.feature("F2")
@pytest.mark.parametrize(
    ("closed", "time", "skew", "expected"),
    [
        ([1000, 2000, 3000], 2500, 0, (P(2, 9), P(3, 9))),
        ([1000, 2000, 3000, 4000], 3000, 0, (P(3, 9), P(4, 9))),
        ([1000, 2000, 2010, 4000, 0], 2009, 10, (P(1, 9), P(4, 9))),
        ([1000, 1500, 0], 2000, 0, (P(2, 9), None)),
    ],
)
def test_cursor_case_21_search_range(
    closed: list[int], time: int, skew: int, expected: tuple[Position | None, Position | None]
) -> None:
    ledger = ManagedLedger(
        {id_: LedgerInfo(10 if at else 0, 10 if at else 0, at) for id_, at in enumerate(closed, 1)},
        current=len(closed),
    )
    assert search_range(ledger, time, skew) == expected


# -- beyond the worked cases --------------------------------------------------------------------------------------


@pytest.mark.feature("D3")
def test_a_mark_delete_runs_on_over_acked_ledgers() -> None:
    topic = ledgers_of(2)
    cursor = topic.open()
    p = topic.add(*[1] * 6)
    topic.ack(cursor, *p[1:5])
    topic.mark(cursor, p[0])
    assert cursor.mark_delete == p[4]
    assert not cursor.acked
    assert backlog(topic, cursor) == 1


@pytest.mark.feature("D3")
@pytest.mark.parametrize("position", [P(1, 2), P(1, 2**62), P(2, -1), P(2, -7), P(7, 0), P(7, 2**62)])
def test_an_ack_of_what_was_never_written_changes_nothing(position: Position) -> None:
    topic = ledgers_of(2)
    cursor = topic.open()
    topic.add(*[1] * 6)
    topic.ledger.current = 8  # ids have gaps
    topic.ledger.ledgers = {**{id_: topic.ledger.ledgers[id_] for id_ in (1, 2, 3)}, 8: LedgerInfo()}
    topic.add(1)
    before = repr(cursor)
    for ack_set in (None, 0b10):
        assert not cursor.acknowledge(topic.ledger, position, ack_set)
        cursor.collapse(topic.ledger, cursor.mark_delete)
        assert repr(cursor) == before


@pytest.mark.feature("D3")
def test_a_cumulative_ack_past_the_end_of_a_ledger_is_one_of_its_end() -> None:
    topic = ledgers_of(3)
    cursor = topic.open()
    topic.add(*[1] * 5)
    cursor.acknowledge_cumulative(topic.ledger, P(1, 2**62), None)
    assert cursor.mark_delete == P(1, 2)
    assert backlog(topic, cursor) == 2


@pytest.mark.feature("D3")
def test_a_cumulative_ack_inside_a_batch_past_the_end_leaves_no_trace() -> None:
    topic = ledgers_of(10)
    cursor = topic.open()
    topic.add(1, 1)
    before = repr(cursor)
    with pytest.raises(CursorError):
        cursor.acknowledge_cumulative(topic.ledger, P(1, 5), without(0))
    assert repr(cursor) == before


@pytest.mark.feature("D3")
def test_a_cumulative_ack_inside_an_acked_batch_leaves_no_trace() -> None:
    topic = ledgers_of(10)
    cursor = topic.open()
    p1, p2, _ = topic.add(1, 1, 1)
    topic.ack(cursor, p2)
    cursor.acknowledge_cumulative(topic.ledger, p2, without(0))
    assert cursor.mark_delete == p2  # over p1, then over p2 that was acked
    assert cursor.batches == {}
    cursor.acknowledge_cumulative(topic.ledger, p1, without(0))
    assert cursor.mark_delete == p2
    assert cursor.batches == {}
    assert backlog(topic, cursor) == 1


@pytest.mark.feature("D3")
def test_a_mark_delete_into_the_empty_ledger_counts_the_entry_to_come() -> None:
    topic = ledgers_of(2)
    cursor = topic.open()
    p = topic.add(1, 1)
    topic.mark(cursor, p[1])
    topic.mark(cursor, P(2, -1))
    topic.mark(cursor, P(2, 0))
    assert backlog(topic, cursor) == 0
    topic.add(1)
    assert backlog(topic, cursor) == 0


@pytest.mark.feature("D4")
def test_nothing_to_skip_wipes_the_properties_all_the_same() -> None:
    topic = ledgers_of(10)
    cursor = topic.open()
    (p1,) = topic.add(1)
    operations: list[Callable[[], None]] = [
        lambda: cursor.skip(topic.ledger, 1, exclude_acked=False),
        lambda: cursor.clear_backlog(topic.ledger),
    ]
    for operation in operations:
        cursor.move(topic.ledger, p1, {"a": 1})
        cursor.move(topic.ledger, p1, None)
        assert cursor.properties == {"a": 1}
        operation()
        assert (cursor.mark_delete, cursor.properties) == (p1, {})


@pytest.mark.feature("D4")
def test_a_cursor_before_the_next_ledger_has_nothing_to_skip() -> None:
    topic = ledgers_of(2)
    cursor = topic.open()
    topic.add(1, 1)
    topic.mark(cursor, P(1, 1))
    topic.mark(cursor, P(2, -1))
    cursor.skip(topic.ledger, 1, exclude_acked=True)
    cursor.clear_backlog(topic.ledger)
    assert cursor.mark_delete == P(2, -1)
    assert cursor.peek(topic.ledger, 1) is None
    assert cursor.backlog_size(topic.ledger) == 0


@pytest.mark.feature("D4")
def test_a_reset_forward_over_acked_entries_counts_them_twice() -> None:
    """Quirk, seen in a real broker: the counter runs ahead, so the backlog by counters is too small."""
    topic = ledgers_of(10)
    cursor = topic.open()
    p = topic.add(*[1] * 6)
    topic.ack(cursor, p[1], p[2])
    cursor.reset(topic.ledger, p[4])
    assert cursor.consumed == 6
    assert cursor.backlog(topic.ledger) == 0
    assert cursor.backlog(topic.ledger, precise=True) == 2


@pytest.mark.feature("D4")
def test_a_seek_into_a_batch_leaves_its_rest_unacked() -> None:
    topic = ledgers_of(10)
    cursor = topic.open()
    p = topic.add(1, 1)
    topic.mark(cursor, p[1])
    cursor.reset(topic.ledger, p[0])
    cursor.set_batch(p[0], without(0, 1))
    assert acked_in_batch(cursor, p[0]) == {0, 1}
    assert backlog(topic, cursor) == 2


@pytest.mark.feature("D2")
def test_a_reader_starts_at_the_end_or_the_beginning_when_its_start_is_ahead() -> None:
    topic = ledgers_of(10)
    topic.open()
    topic.add(1, 1)
    assert backlog(topic, topic.open_reader("latest", P(5, 0))) == 0
    assert backlog(topic, topic.open_reader("earliest", P(5, 0), earliest=True)) == 2


@pytest.mark.feature("D3")
def test_write_permits_are_refilled_by_the_clock() -> None:
    topic = ledgers_of(10, managedLedgerDefaultMarkDeleteRateLimit=2)
    cursor = topic.open()
    p = topic.add(*[1] * 5)
    for advance, position, written in ((0, 0, 0), (100, 1, 0), (400, 2, 2), (5000, 3, 3), (0, 4, 4)):
        topic.ctx.clock += advance
        topic.mark(cursor, p[position])
        assert cursor.mark_delete == p[position]
        assert cursor.key == p[written]


@pytest.mark.feature("D3")
@pytest.mark.parametrize(("rate", "at_once"), [(3000, 3), (1, 1), (0.5, 1)])
def test_the_first_writes_are_those_of_a_millisecond(rate: float, at_once: int) -> None:
    topic = ledgers_of(10, managedLedgerDefaultMarkDeleteRateLimit=rate)
    cursor = topic.open()
    p = topic.add(*[1] * 5)
    for position in p:
        topic.mark(cursor, position)
    assert cursor.mark_delete == p[4]
    assert cursor.key == p[at_once - 1]
