"""Random lives of one ledger and its cursors, held against a naive model: a list of entries, a set of acked ones for
each cursor.

The model knows no counters, no runs and no algebra. Where Pulsar's own counters drift, the model says by how much.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.effects import CursorMoved
from streaming.broker.errors import CursorError
from streaming.broker.ledger.ack_holes import AckHoles
from streaming.broker.ledger.ack_set import first_unacked, from_words, to_bits, to_bytes, to_words
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import LedgerInfo
from streaming.broker.persistent.topic import Reason
from streaming.broker.position import EARLIEST, LATEST, MAX, Position
from tests.broker.kit import BareTopic
from tests.examples import examples

BATCH = 4
"""Every entry is a batch of so many messages."""

WHOLE = (1 << BATCH) - 1


@dataclass
class Naive:
    """A cursor as anybody would write it. `acked` holds indices of entries, those before the mark-delete too."""

    cursor: ManagedCursor
    acked: set[int] = field(default_factory=set)
    unread: int = 0
    batches: dict[int, int] = field(default_factory=dict)
    drift: int = 0
    """How many entries the counter has taken off too often."""
    floor: Position = EARLIEST

    def prefix(self) -> int:
        """How many entries from the beginning are acked without a hole: the mark-delete position."""
        length = 0
        while length in self.acked:
            length += 1
        return length


class Step(NamedTuple):
    """An operation of `Life`. `who` and `where` choose among what there is; each operation takes what it needs."""

    operation: str
    who: int
    where: int
    n: int
    flag: bool


class Life:
    """`entries` holds everything ever added, with its size; entries before `trimmed` are deleted.

    `head`: the settings of Pulsar's development line.
    """

    def __init__(self, entries_per_ledger: int, head: bool) -> None:
        self.head = head
        self.topic = BareTopic(
            managedLedgerMaxEntriesPerLedger=entries_per_ledger,
            trimLedgerAckedToItsEnd=head,
            moveCursorOverConsumedLedger=head,
        )
        self.ledger = self.topic.ledger
        self.entries: list[Position] = []
        self.sizes: list[int] = []
        self.trimmed = 0
        self.cursors: list[Naive] = []
        self.opened = 0
        self.open_cursor(earliest=True)
        self.add([3, 1, 4, 1, 5, 9, 2, 6])

    def do(self, step: Step) -> None:
        """One operation. The steps that need an entry or a cursor pick it here."""
        naive = self.cursors[step.who % len(self.cursors)]
        index = self.trimmed + step.where % max(len(self.stored()), 1)
        there = bool(self.stored())
        match step.operation:
            case "add":
                self.add([step.where + 1, step.who + 1, step.n, 7][: step.n % 4 + 1])
            case "roll_over":
                self.roll_over()
            case "trim":
                self.trim()
            case "reopen":
                self.reopen()
            case "open_cursor" if len(self.cursors) < 4:
                self.open_cursor(earliest=step.flag)
            case "open_reader" if len(self.cursors) < 4:
                self.open_reader(step.where)
            case "delete_cursor" if len(self.cursors) > 1:
                self.forget(naive)
            case "ack" if there:
                self.ack(naive, index, step.n % WHOLE + 1 if step.flag and step.n > 4 else None)
            case "ack_cumulatively" if there:
                self.ack_cumulatively(naive, index, None if step.flag else step.n % (BATCH - 1))
            case "ack_what_is_not_there":
                self.ack_what_is_not_there(naive, step.n, 1 if step.flag else None)
            case "skip":
                self.skip(naive, step.n, step.flag)
            case "clear_backlog":
                self.clear_backlog(naive)
            case "reset":
                self.reset(naive, step.where)
            case "read":
                self.read(naive, step.n)
            case "rewind":
                self.rewind(naive)

    def check(self) -> None:
        """What must hold after every step."""
        self.check_ledger()
        for naive in self.cursors:
            self.check_cursor(naive)
        self.check_topic()
        self.check_positions()
        self.check_counts()

    # -- the model ------------------------------------------------------------------------------------------------

    def stored(self) -> list[Position]:
        return self.entries[self.trimmed :]

    def unacked(self, naive: Naive) -> list[int]:
        return [index for index in range(self.trimmed, len(self.entries)) if index not in naive.acked]

    def take_trimmed(self) -> None:
        """Check what trimming deleted, and let it go from the model: it counts as acked for every cursor."""
        closed = sorted({position.ledger for position in self.stored()} - {self.ledger.current})
        durable = [naive for naive in self.cursors if naive.cursor.durable]
        gone = []
        for id_ in closed:
            indices = {i for i in range(self.trimmed, len(self.entries)) if self.entries[i].ledger == id_}
            done = all(
                indices <= naive.acked and (self.head or naive.cursor.mark_delete.ledger > id_)
                for naive in durable
            )
            if not done:
                break
            gone.append(id_)
        assert [id_ for id_ in closed if id_ not in self.ledger.ledgers] == gone
        self.trimmed += sum(position.ledger in gone for position in self.stored())
        for naive in self.cursors:
            naive.acked |= set(range(self.trimmed))
            self.settle(naive)

    def settle(self, naive: Naive) -> None:
        """After acks: batch records of acked entries go, nothing before the mark-delete is read."""
        naive.batches = {index: bits for index, bits in naive.batches.items() if index not in naive.acked}
        naive.unread = max(naive.unread, naive.prefix())

    # -- the ledger -----------------------------------------------------------------------------------------------

    def add(self, sizes: list[int]) -> None:
        for size in sizes:
            self.entries += self.topic.add(size)
            self.sizes.append(size)
            self.trim()

    def roll_over(self) -> None:
        self.topic.roll_over()
        self.take_trimmed()

    def trim(self) -> None:
        self.topic.trim()
        self.take_trimmed()

    def reopen(self) -> None:
        """A clean restart: readers are gone, every durable cursor was written."""
        self.topic.ledger.reopen(self.topic.ctx.clock)
        for naive in list(self.cursors):
            if naive.cursor.durable:
                naive.cursor.recover(self.ledger)
                naive.unread, naive.drift, naive.floor = naive.prefix(), 0, naive.cursor.mark_delete
            else:
                self.forget(naive)
        if not self.cursors:
            self.open_cursor(earliest=False)

    # -- cursors come and go --------------------------------------------------------------------------------------

    def has_phantoms(self) -> bool:
        """Has the last ledger that took entries gone? Then "earliest" is before its first one, and counts them."""
        return self.ledger.last_confirmed.ledger not in self.ledger.ledgers

    def enter(self, cursor: ManagedCursor, acked: int) -> None:
        self.cursors.append(Naive(cursor, set(range(acked)), acked, floor=cursor.mark_delete))

    def forget(self, naive: Naive) -> None:
        self.cursors.remove(naive)
        del self.topic.topic.cursors[naive.cursor.name]

    def open_cursor(self, earliest: bool) -> None:
        earliest = earliest and not self.has_phantoms()
        self.opened += 1
        cursor = self.topic.open(f"c{self.opened}", earliest=earliest)
        self.enter(cursor, self.trimmed if earliest else len(self.entries))

    def open_reader(self, where: int) -> None:
        self.opened += 1
        starts = [None, EARLIEST, Position(MAX, 0), *self.entries]
        start = starts[where % len(starts)]
        if start == EARLIEST:
            acked = self.trimmed
        elif start is None or start.ledger == MAX:
            acked = len(self.entries)
        else:
            acked = max(self.entries.index(start) + 1, self.trimmed)
        self.enter(self.topic.open_reader(f"r{self.opened}", start), acked)

    # -- acks -----------------------------------------------------------------------------------------------------

    def ack(self, naive: Naive, index: int, left: int | None) -> None:
        self.topic.ack(naive.cursor, self.entries[index], left=left)
        if left is not None and index not in naive.acked:
            left &= naive.batches.get(index, WHOLE)
            naive.batches[index] = left
        if not left:
            naive.acked.add(index)
        self.settle(naive)

    def ack_cumulatively(self, naive: Naive, index: int, message: int | None) -> None:
        """All before an entry, and the entry or its messages up to one."""
        position = self.entries[index]
        if message is None:
            if position < naive.cursor.mark_delete:
                with pytest.raises(CursorError):
                    naive.cursor.acknowledge_cumulative(self.ledger, position, None)
                return
            naive.cursor.acknowledge_cumulative(self.ledger, position, None)
            naive.acked |= set(range(index + 1))
        else:
            given_bits = WHOLE >> message + 1 << message + 1
            if position <= naive.cursor.mark_delete:
                before = dict(naive.cursor.batches)
                naive.cursor.acknowledge_cumulative(self.ledger, position, given_bits)
                assert naive.cursor.batches == before
                return
            naive.cursor.acknowledge_cumulative(self.ledger, position, given_bits)
            naive.acked |= set(range(index))
            if index not in naive.acked:
                had = naive.batches.get(index)
                if had is None or message + 1 > min(i for i in range(BATCH) if had >> i & 1):
                    naive.batches[index] = given_bits
        self.settle(naive)

    def ack_what_is_not_there(self, naive: Naive, past: int, message: int | None) -> None:
        """Refused, and nothing changes."""
        last = self.ledger.last_confirmed
        before = repr(naive.cursor)
        for position in (
            Position(last.ledger, last.entry + past + 1),
            Position(self.ledger.current + past, 0),
        ):
            with pytest.raises(CursorError):
                naive.cursor.acknowledge(self.ledger, position, message)
            with pytest.raises(CursorError):
                naive.cursor.acknowledge_cumulative(self.ledger, position, None)
            assert repr(naive.cursor) == before

    # -- skip, reset, read ----------------------------------------------------------------------------------------

    def move(self, naive: Naive, operation: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """The broker moves a cursor."""
        reason = Reason(CursorMoved, "test")
        self.topic.topic.record_move(self.topic.ctx, naive.cursor, reason, operation, *args, **kwargs)

    def skip(self, naive: Naive, n: int, exclude_acked: bool) -> None:
        self.move(naive, naive.cursor.skip, self.ledger, n, exclude_acked=exclude_acked)
        if exclude_acked:
            following = self.unacked(naive)
        else:
            following = list(range(naive.prefix(), len(self.entries)))
        end = following[n - 1] + 1 if n <= len(following) else len(self.entries)
        naive.acked |= set(range(end))
        self.settle(naive)

    def clear_backlog(self, naive: Naive) -> None:
        self.move(naive, naive.cursor.clear_backlog, self.ledger)
        naive.acked = set(range(len(self.entries)))
        self.settle(naive)

    def reset(self, naive: Naive, where: int) -> None:
        ends = [Position(id_, info.entries) for id_, info in self.ledger.ledgers.items()]
        last = self.ledger.last_confirmed
        targets = [LATEST, last.next(), Position(MAX, 0), *ends, *self.entries]
        if not self.has_phantoms():
            targets.append(EARLIEST)
        target = targets[where % len(targets)]
        if target == LATEST:
            index = len(self.entries)
        else:
            index = next(
                (i for i in range(self.trimmed, len(self.entries)) if self.entries[i] >= target),
                len(self.entries),
            )
        prefix = naive.prefix()
        if prefix < index and naive.cursor.durable:  # quirk: acks that it moves over are counted twice
            naive.drift += sum(prefix <= i < index for i in naive.acked)
        # quirk: those after the new mark-delete stay counted, though they are unacked again
        naive.drift += sum(i >= max(prefix, index) for i in naive.acked)
        before = naive.cursor.mark_delete
        naive.cursor.reset(self.ledger, target)
        after = naive.cursor.mark_delete
        if before.ledger not in self.ledger.ledgers and before.ledger < after.ledger:
            naive.drift -= 1  # quirk: out of a ledger that is gone one less is counted
        naive.acked, naive.unread, naive.batches = set(range(index)), index, {}
        naive.floor = naive.cursor.mark_delete
        assert naive.cursor.properties == {}

    def read(self, naive: Naive, n: int) -> None:
        unread = [index for index in self.unacked(naive) if index >= naive.unread]
        assert naive.cursor.read(self.ledger, n) == [self.entries[index] for index in unread[:n]]
        naive.unread = unread[n - 1] + 1 if n <= len(unread) else len(self.entries)

    def rewind(self, naive: Naive) -> None:
        naive.cursor.rewind(self.ledger)
        naive.unread = naive.prefix()

    # -- what must hold after each step ---------------------------------------------------------------------------

    def check_ledger(self) -> None:
        ledger = self.ledger
        assert ledger.number_of_entries == len(self.stored())
        assert ledger.total_size == sum(self.sizes[self.trimmed :])
        assert ledger.current_entries == sum(p.ledger == ledger.current for p in self.stored())
        assert list(ledger.ledgers) == sorted({*(p.ledger for p in self.stored()), ledger.current})
        assert ledger.ledgers[ledger.current] == LedgerInfo()
        for id_, info in ledger.ledgers.items():
            if id_ != ledger.current:
                sizes = [size for p, size in zip(self.entries, self.sizes, strict=True) if p.ledger == id_]
                assert (info.entries, info.size) == (len(sizes), sum(sizes))
        if self.entries and self.entries[-1] != ledger.last_confirmed:
            assert ledger.last_confirmed.entry == -1
            assert not self.stored()

    def check_cursor(self, naive: Naive) -> None:
        ledger, cursor = self.ledger, naive.cursor
        prefix, unacked = naive.prefix(), self.unacked(naive)
        assert cursor.mark_delete >= naive.floor
        naive.floor = cursor.mark_delete
        assert [p for p in self.stored() if p <= cursor.mark_delete] == self.entries[self.trimmed : prefix]
        assert members(cursor.acked) == {self.entries[index] for index in naive.acked if index > prefix}
        assert cursor.batches == {
            self.entries[index]: to_bytes(bits) for index, bits in naive.batches.items()
        }

        assert cursor.backlog(ledger, precise=True) == len(unacked)
        counted = len(unacked) - naive.drift
        assert cursor.backlog(ledger) == (counted if counted >= 0 else len(unacked))
        for n in range(1, len(unacked) + 2):
            expected = self.entries[unacked[n - 1]] if n <= len(unacked) else None
            assert cursor.peek(ledger, n) == expected

        assert cursor.read_position > cursor.mark_delete or cursor.read_position.entry == -1
        nothing = cursor.read_position.entry < 0 and cursor.read_position <= ledger.last_confirmed  # counts
        assert cursor.entries_to_read(ledger) == sum(index >= naive.unread for index in unacked) + nothing

        after = self.estimate(naive)
        assert ledger.backlog_size_from(cursor.mark_delete) == after
        left = len(self.entries) - prefix
        holes = left - len(unacked)
        assert cursor.backlog_size(ledger) == (after - holes * (after // left) if left else 0)

    def check_topic(self) -> None:
        """Its backlog is that of the slowest durable cursor."""
        durable = [naive for naive in self.cursors if naive.cursor.durable]
        slowest = min(durable, key=lambda naive: naive.cursor.mark_delete, default=None)
        assert self.topic.topic.backlog_size() == (0 if slowest is None else self.estimate(slowest))

    def estimate(self, naive: Naive) -> int:
        """Bytes after the mark-delete, its ledger by the average."""
        prefix = naive.prefix()
        total = sum(self.sizes[prefix:])
        if prefix in (self.trimmed, len(self.entries)):
            return total
        id_ = self.entries[prefix].ledger
        here = [i for i in range(self.trimmed, len(self.entries)) if self.entries[i].ledger == id_]
        size = sum(self.sizes[i] for i in here)
        done = prefix - here[0]
        return total - sum(self.sizes[i] for i in here[done:]) + size - done * (size // len(here))

    def check_positions(self) -> None:
        ledger, stored = self.ledger, self.stored()
        last = ledger.last_confirmed
        edges = [Position(id_, -1) for id_ in ledger.ledgers]
        end = Position(ledger.current, 0) if not ledger.current_entries else last.next()
        for position in {*stored[:3], *stored[-3:], *edges, *self.entries[:1]}:
            following = [p for p in stored if p > position]
            assert ledger.next_valid(position) == (following[0] if following else end)
            before = [p for p in stored if p < position]
            assert ledger.previous(position) == (before[-1] if before else Position(position.ledger, -1)) or (
                position not in stored and position.entry > 0  # deleted: only arithmetic is left
            )
            assert ledger.valid(position) == (position in stored)
            for n in range(1, len(following) + 2):
                expected = following[n - 1] if n <= len(following) else last
                assert ledger.position_after(position, n) == expected
        assert ledger.valid(end)
        first = min([p.ledger for p in stored[:1]] or [ledger.current])
        assert ledger.first_position() == Position(min(first, last.ledger), -1)

    def check_counts(self) -> None:
        ledger, stored = self.ledger, self.stored()
        known = sorted({*stored[:4], *stored[-4:], *(Position(id_, -1) for id_ in ledger.ledgers)})
        for start in known:
            for end in (p for p in known if start < p):
                for include_start, include_end in product((True, False), repeat=2):
                    expected = sum(
                        start < p < end or (include_start and p == start) or (include_end and p == end)
                        for p in stored
                    )
                    if start.entry < 0 and include_start:
                        expected += 1  # quirk: an entry −1 counts
                    if end.entry < 0 and not include_end:
                        expected -= 1
                    counted = ledger.count(start, end, include_start=include_start, include_end=include_end)
                    assert counted == expected


def members(holes: AckHoles) -> set[Position]:
    """What its runs say is in it."""
    return {
        Position(low.ledger, entry)
        for low, high in holes.runs()
        for entry in range(low.entry + 1, high.entry + 1)
    }


OPERATIONS = [
    *["add"] * 5, *["ack"] * 12, *["read"] * 5, *["ack_cumulatively"] * 2, *["skip"] * 2, *["reset"] * 2,
    *["roll_over"] * 2, "trim", "reopen", "open_cursor", "open_reader", "delete_cursor", "ack_what_is_not_there",
    "clear_backlog", "rewind",
]  # fmt: skip
"""Some more often than others."""

STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(OPERATIONS),
        st.integers(0, 99),
        st.integers(0, 99),
        st.integers(1, 12),
        st.booleans(),
    ),
    min_size=15,
    max_size=60,
)


@pytest.mark.feature("C1", "D3", "D4")
@settings(max_examples=examples(60))
@given(st.integers(1, 5), st.booleans(), STEPS)
@example(
    5, False, [Step("open_reader", 0, 1, 1, False), Step("ack", 1, 2, 6, True), Step("skip", 1, 0, 4, False)]
)
@example(
    3,
    False,
    [
        Step("open_reader", 0, 1, 1, False),
        Step("delete_cursor", 0, 0, 1, False),
        Step("ack", 0, 0, 6, True),
        Step("roll_over", 0, 0, 1, False),
    ],
)
def test_a_random_life_agrees_with_the_model(entries_per_ledger: int, head: bool, steps: list[Step]) -> None:
    life = Life(entries_per_ledger, head)
    for step in steps:
        life.do(step)
        life.check()


POSITIONS = st.builds(Position, st.integers(1, 3), st.integers(0, 5))
BOUNDS = st.builds(Position, st.integers(0, 4), st.integers(-1, 6))


@pytest.mark.feature("D3")
@given(st.sets(POSITIONS), st.lists(BOUNDS, max_size=3), BOUNDS, BOUNDS)
def test_ack_holes_are_a_set_of_positions(
    positions: set[Position], discarded: list[Position], start: Position, end: Position
) -> None:
    holes, expected = AckHoles(), set(positions)
    for position in positions:
        holes.add(position)
    untouched = holes.copy()
    for bound in discarded:
        holes.discard_to(bound)
        expected = {position for position in expected if position > bound}
    assert members(holes) == expected
    assert members(untouched) == positions
    assert (holes == untouched) == (expected == positions)
    assert bool(holes) == bool(expected)

    runs = list(holes.runs())
    assert runs == sorted(runs)
    for low, high in runs:
        assert low not in expected
        assert high.next() not in expected
        assert holes.run_end(low.next()) == high
    assert str(holes) == "[" + ",".join(f"({low}..{high}]" for low, high in runs) + "]"

    for bound in (start, end, *discarded):
        assert (bound in holes) == (bound in expected)
    assert holes.count(start, end) == sum(start <= position <= end for position in expected)


@pytest.mark.feature("D3")
def test_ack_holes_are_equal_to_nothing_else() -> None:
    assert AckHoles() != {}


@pytest.mark.feature("D3")
@given(st.sets(st.integers(0, 200)))
def test_ack_sets_as_words_and_bytes(unacked: set[int]) -> None:
    bits = sum(1 << index for index in unacked)
    words = to_words(bits)
    assert len(words) == (max(unacked, default=-1) + 64) // 64
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert from_words(words) == from_words([*words, 0]) == bits
    assert from_words([word % 2**64 for word in words]) == bits  # some clients write them unsigned
    assert to_bits(to_bytes(bits)) == bits
    assert first_unacked(bits) == min(unacked, default=-1)
