"""Random lives of one ledger and its cursors, held against a naive model: a list of entries, a set of acked ones a cursor.

The model knows no counters, no runs and no algebra. Where Pulsar's own counters drift, the model says by how much.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streaming.broker.ack_holes import AckHoles
from streaming.broker.ack_set import first_unacked, from_words, to_bits, to_bytes, to_words
from streaming.broker.errors import CursorError
from streaming.broker.managed_cursor import ManagedCursor
from streaming.broker.managed_ledger import LedgerInfo
from streaming.broker.position import EARLIEST, LATEST, MAX, Position
from tests.broker.kit import BareTopic

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


class Cursors(RuleBasedStateMachine):
    """`entries` holds everything ever added, with its size; entries before `trimmed` are deleted."""

    @initialize(entries=st.integers(1, 4), head=st.booleans())
    def start(self, entries: int, head: bool) -> None:
        self.head = head
        self.topic = BareTopic(
            managedLedgerMaxEntriesPerLedger=entries,
            trimLedgerAckedToItsEnd=head,
            moveCursorOverConsumedLedger=head,
        )
        self.ledger = self.topic.ledger
        self.entries: list[Position] = []
        self.sizes: list[int] = []
        self.trimmed = 0
        self.cursors: dict[str, Naive] = {}
        self.opened = 0
        self.open_cursor(earliest=True)

    # -- the model ------------------------------------------------------------------------------------------------

    def stored(self) -> list[Position]:
        return self.entries[self.trimmed :]

    def unacked(self, naive: Naive) -> list[int]:
        return [index for index in range(self.trimmed, len(self.entries)) if index not in naive.acked]

    def pick(self, data: st.DataObject) -> Naive:
        assume(self.cursors)
        return self.cursors[data.draw(st.sampled_from(sorted(self.cursors)), label="cursor")]

    def pick_index(self, data: st.DataObject) -> int:
        assume(self.stored())
        return data.draw(st.integers(self.trimmed, len(self.entries) - 1), label="entry")

    def take_trimmed(self) -> None:
        """Check what trimming deleted, and let it go from the model: it counts as acked for every cursor."""
        closed = sorted({position.ledger for position in self.stored()} - {self.ledger.current})
        durable = [naive for naive in self.cursors.values() if naive.cursor.durable]
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
        for naive in self.cursors.values():
            naive.acked |= set(range(self.trimmed))
            self.settle(naive)

    def settle(self, naive: Naive) -> None:
        """After acks: batch records of acked entries go, nothing before the mark-delete is read."""
        naive.batches = {index: bits for index, bits in naive.batches.items() if index not in naive.acked}
        naive.unread = max(naive.unread, naive.prefix())

    # -- the ledger -----------------------------------------------------------------------------------------------

    @rule(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=5))
    def add(self, sizes: list[int]) -> None:
        for size in sizes:
            self.entries += self.topic.add(size)
            self.sizes.append(size)
            self.trim()

    @rule()
    def roll_over(self) -> None:
        self.topic.roll_over()
        self.take_trimmed()

    @rule()
    def trim(self) -> None:
        self.topic.trim()
        self.take_trimmed()

    @rule()
    def reopen(self) -> None:
        """A clean restart: readers are gone, every durable cursor was written."""
        self.topic.ledger.reopen(self.topic.ctx.clock)
        for name, naive in list(self.cursors.items()):
            if naive.cursor.durable:
                naive.cursor.recover(self.ledger)
                naive.unread, naive.drift, naive.floor = naive.prefix(), 0, naive.cursor.mark_delete
            else:
                del self.cursors[name], self.topic.topic.cursors[name]

    # -- cursors come and go --------------------------------------------------------------------------------------

    def has_phantoms(self) -> bool:
        """Has the last ledger that took entries gone? Then "earliest" is before its first one, and counts them."""
        return self.ledger.last_confirmed.ledger not in self.ledger.ledgers

    def enter(self, cursor: ManagedCursor, acked: int) -> None:
        self.cursors[cursor.name] = Naive(cursor, set(range(acked)), acked, floor=cursor.mark_delete)

    @precondition(lambda self: len(self.cursors) < 4)
    @rule(earliest=st.booleans())
    def open_cursor(self, earliest: bool) -> None:
        earliest = earliest and not self.has_phantoms()
        self.opened += 1
        cursor = self.topic.open(f"c{self.opened}", earliest=earliest)
        self.enter(cursor, self.trimmed if earliest else len(self.entries))

    @precondition(lambda self: len(self.cursors) < 4)
    @rule(data=st.data())
    def open_reader(self, data: st.DataObject) -> None:
        self.opened += 1
        name = f"r{self.opened}"
        start = data.draw(st.sampled_from([None, EARLIEST, Position(MAX, 0), *self.entries]), label="start")
        if start == EARLIEST:
            acked = self.trimmed
        elif start is None or start.ledger == MAX:
            acked = len(self.entries)
        else:
            acked = max(self.entries.index(start) + 1, self.trimmed)
        self.enter(self.topic.open_reader(name, start), acked)

    @precondition(lambda self: len(self.cursors) > 1)
    @rule(data=st.data())
    def delete_cursor(self, data: st.DataObject) -> None:
        name = self.pick(data).cursor.name
        del self.cursors[name], self.topic.topic.cursors[name]

    # -- acks -----------------------------------------------------------------------------------------------------

    @rule(data=st.data(), left=st.none() | st.integers(1, WHOLE))
    def ack(self, data: st.DataObject, left: int | None) -> None:
        naive, index = self.pick(data), self.pick_index(data)
        self.topic.ack(naive.cursor, self.entries[index], left=left)
        if left is not None and index not in naive.acked:
            left &= naive.batches.get(index, WHOLE)
            naive.batches[index] = left
        if not left:
            naive.acked.add(index)
        self.settle(naive)

    @rule(data=st.data(), message=st.none() | st.integers(0, BATCH - 2))
    def ack_cumulatively(self, data: st.DataObject, message: int | None) -> None:
        """All before an entry, and the entry or its messages up to one."""
        naive, index = self.pick(data), self.pick_index(data)
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

    @rule(data=st.data(), past=st.integers(1, 3), message=st.none() | st.just(1))
    def ack_what_is_not_there(self, data: st.DataObject, past: int, message: int | None) -> None:
        """Refused, and nothing changes."""
        naive = self.pick(data)
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

    @rule(data=st.data(), n=st.integers(1, 12), exclude_acked=st.booleans())
    def skip(self, data: st.DataObject, n: int, exclude_acked: bool) -> None:
        naive = self.pick(data)
        naive.cursor.skip(self.ledger, n, exclude_acked=exclude_acked)
        if exclude_acked:
            following = self.unacked(naive)
        else:
            following = list(range(naive.prefix(), len(self.entries)))
        end = following[n - 1] + 1 if n <= len(following) else len(self.entries)
        naive.acked |= set(range(end))
        self.settle(naive)

    @rule(data=st.data())
    def clear_backlog(self, data: st.DataObject) -> None:
        naive = self.pick(data)
        naive.cursor.clear_backlog(self.ledger)
        naive.acked = set(range(len(self.entries)))
        self.settle(naive)

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        naive = self.pick(data)
        ends = [Position(id_, info.entries) for id_, info in self.ledger.ledgers.items()]
        last = self.ledger.last_confirmed
        target = data.draw(
            st.sampled_from([LATEST, EARLIEST, last.next(), Position(MAX, 0), *ends, *self.entries])
        )
        if target == EARLIEST:
            assume(not self.has_phantoms())
        if target == LATEST:
            index = len(self.entries)
        else:
            index = next(
                (i for i in range(self.trimmed, len(self.entries)) if self.entries[i] >= target),
                len(self.entries),
            )
        prefix = naive.prefix()
        if prefix < index:  # quirk: acks over which the mark-delete moves forward are counted twice
            naive.drift += sum(prefix <= i < index for i in naive.acked)
        naive.cursor.reset(self.ledger, target)
        naive.acked, naive.unread, naive.batches = set(range(index)), index, {}
        naive.floor = naive.cursor.mark_delete
        assert naive.cursor.properties == {}

    @rule(data=st.data(), n=st.integers(1, 6))
    def read(self, data: st.DataObject, n: int) -> None:
        naive = self.pick(data)
        unread = [index for index in self.unacked(naive) if index >= naive.unread]
        assert naive.cursor.read(self.ledger, n) == [self.entries[index] for index in unread[:n]]
        naive.unread = unread[n - 1] + 1 if n <= len(unread) else len(self.entries)

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        naive = self.pick(data)
        naive.cursor.rewind(self.ledger)
        naive.unread = naive.prefix()

    # -- what must hold after each step ---------------------------------------------------------------------------

    @invariant()
    def sizes_are_sums(self) -> None:
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

    @invariant()
    def cursors_agree(self) -> None:
        ledger = self.ledger
        for naive in self.cursors.values():
            cursor, prefix, unacked = naive.cursor, naive.prefix(), self.unacked(naive)
            assert cursor.mark_delete >= naive.floor
            naive.floor = cursor.mark_delete
            assert cursor.read_position > cursor.mark_delete or cursor.read_position.entry == -1
            assert [p for p in self.stored() if p <= cursor.mark_delete] == self.entries[
                self.trimmed : prefix
            ]
            holes = {self.entries[index] for index in naive.acked if index > prefix}
            assert members(cursor.acked) == holes
            assert cursor.batches == {
                self.entries[index]: to_bytes(bits) for index, bits in naive.batches.items()
            }
            assert cursor.backlog(ledger, precise=True) == len(unacked)
            counted = len(unacked) - naive.drift
            assert cursor.backlog(ledger) == (counted if counted >= 0 else len(unacked))
            unread = [index for index in unacked if index >= naive.unread]
            assert cursor.entries_to_read(ledger) == len(unread)
            for n in range(1, len(unacked) + 2):
                expected = self.entries[unacked[n - 1]] if n <= len(unacked) else None
                assert cursor.peek(ledger, n) == expected

    @invariant()
    def sizes_of_backlogs_agree(self) -> None:
        for naive in self.cursors.values():
            after = self.estimate(naive)
            assert self.ledger.backlog_size_from(naive.cursor.mark_delete) == after
            left = len(self.entries) - naive.prefix()
            holes = left - len(self.unacked(naive))
            expected = after - holes * (after // left) if left else 0
            assert naive.cursor.backlog_size(self.ledger) == expected
        durable = [naive for naive in self.cursors.values() if naive.cursor.durable]
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

    @invariant()
    def positions_agree(self) -> None:
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

    @invariant()
    def counts_agree(self) -> None:
        ledger, stored = self.ledger, self.stored()
        known = sorted({*stored[:4], *stored[-4:], *(Position(id_, -1) for id_ in ledger.ledgers)})
        for start in known:
            for end in (p for p in known if start < p):
                for include_start, include_end in (
                    (True, True),
                    (True, False),
                    (False, True),
                    (False, False),
                ):
                    expected = sum(
                        start < p < end or (include_start and p == start) or (include_end and p == end)
                        for p in stored
                    )
                    counted = ledger.count(start, end, include_start=include_start, include_end=include_end)
                    assert counted == expected or (counted == expected - 1 and not include_end)


def members(holes: AckHoles) -> set[Position]:
    """What its runs say is in it."""
    return {
        Position(low.ledger, entry)
        for low, high in holes.runs()
        for entry in range(low.entry + 1, high.entry + 1)
    }


Cursors.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestCursors: Any = Cursors.TestCase


POSITIONS = st.builds(Position, st.integers(1, 4), st.integers(0, 12))
BOUNDS = st.builds(Position, st.integers(0, 5), st.integers(-1, 13))


@settings(deadline=None)
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
        assert holes.count_above(bound) == sum(position > bound for position in expected)
    assert holes.count(start, end) == sum(start <= position <= end for position in expected)


def test_ack_holes_are_equal_to_nothing_else() -> None:
    assert AckHoles() != {}


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
