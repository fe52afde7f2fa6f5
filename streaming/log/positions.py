"""Positions in the commands of a log that is replayed under other policies.

A recorded ACK or SEEK names an entry by the position that it got in the log's own run. Under other policies a publish may be
refused, or one be accepted that was a duplicate, or ledgers may close elsewhere: then the entry has another position, or it
never was, and the recorded position is another entry's. So the log's own run, the *baseline*, is folded first, and every
position is translated through the publish that wrote the entry. The publishes of a topic are numbered in the order of the log,
which is the same in both runs.

Where the named entry never was:

* ACK, REDELIVER_UNACKNOWLEDGED_MESSAGES and the admin call that gets an entry leave it out. A command that then names
  nothing becomes a TICK.
* A cumulative ACK, and the admin call that expires up to a position, end at the nearest earlier entry. If there is none,
  the command becomes a TICK. So it does if the position is that of an entry beyond the topic's end in the log's own run, in which the
  broker ignored it.
* SEEK, SUBSCRIBE (`start_message_id`) and the admin calls that create a subscription or reset it at a position start
  after the nearest earlier entry, so with the next one that is there.

Earliest and Latest stay as they are. So does a position without an entry if it lies between the same two entries in both
runs; otherwise it counts as one of an entry that never was. `ack_set` and the batch index stay with the entry. What the broker
does not use (`first_chunk_message_id`, the counts in calls such as ``skip/10``) is not translated.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from schemas import commands as c
from streaming.broker import admin_requests
from streaming.broker.errors import AdminError
from streaming.broker.persistent.admin_operations import MessageIdBody
from streaming.broker.position import EARLIEST, LATEST, Position, from_wire

T = TypeVar("T", bound=msgspec.Struct)

_Ints = np.ndarray[Any, np.dtype[np.int64]]

_ENTRY_BITS = 32
"""A ledger has fewer entries than 2 to this."""

NAMING = (c.Ack, c.RedeliverUnacknowledgedMessages, c.Seek, c.Subscribe, c.Admin)
"""The commands in which positions can be."""

Naming = c.Ack | c.RedeliverUnacknowledgedMessages | c.Seek | c.Subscribe | c.Admin

_STARTS = {"PUT": re.compile(r"/subscription/[^/]+"), "POST": re.compile(r"/subscription/[^/]+/resetcursor")}
_EXPIRE = re.compile(r"/subscription/[^/]+/expireMessages")
_ENTRY = re.compile(r"/ledger/(\d{1,15})/entry/(\d{1,15})")


class WrittenEntry(NamedTuple):
    """An entry, and the number of the publish that wrote it, counted from 0 in its topic."""

    number: int
    position: Position


class WrittenEntries:
    """Which publish of a topic wrote which entry, in 32 bytes per run of them: a run ends with its ledger, and with a publish
    that wrote no entry. Both numbers and positions rise.

    `publishes` is the number of publishes so far, `last` the position of the last entry; `waiting` are the publishes whose
    writes a fault put off.
    """

    __slots__ = ("_count", "_entry", "_first", "_ledger", "last", "publishes", "waiting")

    def __init__(self) -> None:
        self.publishes = 0
        self.last = EARLIEST
        self.waiting: list[int] = []
        self._first, self._ledger, self._entry, self._count = (array("q") for _ in range(4))

    def add(self, number: int, position: Position) -> None:
        """Note that a publish wrote an entry. Both are higher than all before."""
        self.last = position
        if self._first:
            run = self._count[-1]
            if (self._first[-1] + run, self._ledger[-1], self._entry[-1] + run) == (number, *position):
                self._count[-1] += 1
                return
        for column, value in zip(self._columns(), (number, *position, 1), strict=True):
            column.append(value)

    def add_all(self, numbers: "_Ints", ledgers: "_Ints", entries: "_Ints") -> None:
        """`add` for some publishes, at least one, and their entries, which rise."""
        new = (np.diff(numbers) != 1) | (np.diff(ledgers) != 0) | (np.diff(entries) != 1)
        starts = np.append(0, np.flatnonzero(new) + 1)
        counts = np.diff(starts, append=len(numbers))
        columns = zip(*(column[starts].tolist() for column in (numbers, ledgers, entries)), strict=True)
        for (number, ledger, entry), count in zip(columns, counts.tolist(), strict=True):
            self.add(number, Position(ledger, entry))
            self._count[-1] += count - 1
        self.last = Position(int(ledgers[-1]), int(entries[-1]))

    def last_up_to(self, number: int) -> WrittenEntry | None:
        """The last entry that a publish up to `number` wrote."""
        run = bisect_right(self._first, number) - 1
        return self._up_to(run, number - self._first[run]) if run >= 0 else None

    def first_after(self, number: int, end: int) -> WrittenEntry | None:
        """The first entry that a publish after `number` and before `end` wrote."""
        number += 1
        run = bisect_right(self._first, number) - 1
        if run < 0 or number >= self._first[run] + self._count[run]:
            run += 1
            if run == len(self._first):
                return None
            number = self._first[run]
        return self._up_to(run, number - self._first[run]) if number < end else None

    def last_at(self, position: Position, end: int) -> WrittenEntry | None:
        """The last entry at `position` or before it that a publish before `end` wrote."""
        low = bisect_left(self._ledger, position.ledger)
        high = bisect_right(self._ledger, position.ledger, low)
        run = bisect_right(self._entry, position.entry, low, high) - 1
        if run < 0:
            return None
        found = self._up_to(run, position.entry - self._entry[run] if run >= low else self._count[run] - 1)
        return found if found.number < end else self.last_up_to(end - 1)

    def at(self, position: Position) -> WrittenEntry | None:
        """The entry at a position."""
        found = self.last_at(position, self._end)
        return found if found is not None and found.position == position else None

    def last_number_up_to(self, position: Position) -> int:
        """The number of the last entry at `position` or before it; −1: there is none."""
        found = self.last_at(position, self._end)
        return -1 if found is None else found.number

    def first_number_after(self, position: Position) -> int | None:
        """The number of the first entry after `position`."""
        found = self.first_after(self.last_number_up_to(position), self._end)
        return None if found is None else found.number

    def numbers(self, after: Position, to: Position) -> list[tuple[int, int]]:
        """The numbers of the entries after `after` and up to `to`, as ranges (first, stop)."""
        first, last = self.last_number_up_to(after) + 1, self.last_number_up_to(to)
        found = []
        run = max(bisect_right(self._first, first) - 1, 0)
        while run < len(self._first) and self._first[run] <= last:
            start = max(self._first[run], first)
            stop = min(self._first[run] + self._count[run], last + 1)
            if start < stop:
                found.append((start, stop))
            run += 1
        return found

    def same_until(self, other: "WrittenEntries", ledger: int, first: int, start: int) -> int:
        """Up to before which entry of a ledger both have the same publish at each position from entry `start` on, if the next
        publishes write the entries from `first` on. `first`: that is not known."""
        if not self._first:
            return first
        number, own, begins, count = (column[-1] for column in self._columns())
        low = bisect_left(other._ledger, ledger)
        run = bisect_right(other._entry, start, low, bisect_right(other._ledger, ledger, low)) - 1
        if (
            own != ledger
            or begins > start
            or begins + count != first
            or number + count != self.publishes
            or run < low
            or other._first[run] - other._entry[run] != number - begins
        ):
            return first
        return other._entry[run] + other._count[run]

    def numbers_of(self, ledgers: "_Ints", entries: "_Ints") -> "_Ints":
        """The number of the entry at each position; −1 where there is none."""
        if not self._first:
            return np.full(len(ledgers), -1, np.int64)
        first, ledger, entry, count = (np.frombuffer(column, np.int64) for column in self._columns())
        starts = (ledger << _ENTRY_BITS) + entry
        wanted = (ledgers << _ENTRY_BITS) + entries
        run = np.maximum(np.searchsorted(starts, wanted, side="right") - 1, 0)
        place = wanted - starts[run]
        found: _Ints = np.where((place >= 0) & (place < count[run]), first[run] + place, -1)
        return found

    def positions_of(self, numbers: "_Ints") -> "tuple[_Ints, _Ints]":
        """Ledger and entry of the entry with each number; −1 where there is none."""
        if not self._first:
            return np.full(len(numbers), -1, np.int64), np.full(len(numbers), -1, np.int64)
        first, ledger, entry, count = (np.frombuffer(column, np.int64) for column in self._columns())
        run = np.maximum(np.searchsorted(first, numbers, side="right") - 1, 0)
        place = numbers - first[run]
        there = (place >= 0) & (place < count[run])
        return np.where(there, ledger[run], -1), np.where(there, entry[run] + place, -1)

    @property
    def _end(self) -> int:
        """A number above all."""
        return self._first[-1] + self._count[-1] if self._first else 0

    def _up_to(self, run: int, place: int) -> WrittenEntry:
        """The entry at a place of a run, or the run's last one."""
        place = min(place, self._count[run] - 1)
        return WrittenEntry(self._first[run] + place, Position(self._ledger[run], self._entry[run] + place))

    def _columns(self) -> "tuple[array[int], array[int], array[int], array[int]]":
        return self._first, self._ledger, self._entry, self._count

    def encode(self) -> bytes:
        """Binary, in this machine's byte order: a replay's state is read by nobody else."""
        columns = [column.tobytes() for column in self._columns()]
        return msgspec.msgpack.encode([self.publishes, self.waiting, *columns])

    @classmethod
    def decode(cls, data: bytes) -> "WrittenEntries":
        """What `encode` encoded."""
        found = cls()
        found.publishes, found.waiting, *columns = msgspec.msgpack.decode(data)
        for column, encoded in zip(found._columns(), columns, strict=True):
            column.frombytes(encoded)
        if found._first:
            found.last = found._up_to(len(found._first) - 1, found._count[-1] - 1).position
        return found


class Named(NamedTuple):
    """What a position of the baseline names under other policies: `position`, or if that is None, an entry that never was;
    then `before` is the nearest earlier entry, if there is one. `beyond`: an entry that was not in the baseline either, nor any after it."""

    position: Position | None
    before: Position | None = None
    beyond: bool = False


def find(position: Position, baseline: WrittenEntries, own: WrittenEntries) -> Named:
    """What `position` of the baseline names, in commands that come after the `own.publishes` first publishes."""
    at = baseline.last_at(position, own.publishes)
    number = -1 if at is None else at.number
    mine, beyond = own.last_up_to(number), False
    if at is None or at.position != position:
        after = baseline.first_after(number, own.publishes)
        if at == mine and after == own.first_after(number, own.publishes):
            return Named(position)
        beyond = after is None and position.entry >= 0
    elif mine is not None and mine.number == number:
        return Named(mine.position)
    return Named(None, None if mine is None else mine.position, beyond)


class Translated(NamedTuple):
    """A command under other policies. None: it names nothing that was. `complete`: everything that it names was."""

    command: Naming | None
    complete: bool


def translate(command: Naming, baseline: WrittenEntries, own: WrittenEntries) -> Translated:
    """A command whose positions are those of the `baseline`, with positions of `own`."""
    return _Translator(baseline, own).translate(command)


FindPosition = Callable[[Named], Position | None]
"""The position to use in place of one that was found."""


def _itself(named: Named) -> Position | None:
    return named.position


def _end(named: Named) -> Position | None:
    return named.position or (None if named.beyond else named.before)


def _start(named: Named) -> Position | None:
    return named.position or (EARLIEST if named.before is None else named.before.next())


class _Translator:
    """Translates one command. `complete`: everything that it names was."""

    def __init__(self, baseline: WrittenEntries, own: WrittenEntries) -> None:
        self._baseline, self._own = baseline, own
        self.complete = True

    def translate(self, command: Naming) -> Translated:
        changed = self._changed(command)
        return Translated(changed, self.complete)

    def _changed(self, command: Naming) -> Naming | None:
        match command:
            case c.Ack():
                rule = _itself if command.ack_type == "Individual" else _end
                return self._replaced(command, "message_id", rule)
            case c.RedeliverUnacknowledgedMessages():
                return self._replaced(command, "message_ids", _itself)
            case c.Seek(message_id=c.MessageIdData() as named):
                return _with(command, "message_id", named, self._id(named, _start))
            case c.Subscribe(durable=False, start_message_id=c.MessageIdData() as named):
                return _with(command, "start_message_id", named, self._id(named, _start))
            case c.Admin():
                return self._call(command)
        return command

    def _replaced(self, command: Naming, field: str, rule: FindPosition) -> Naming | None:
        """A command that has a list of positions. An empty one has another meaning than one of which nothing is left."""
        given: list[c.MessageIdData] = getattr(command, field)
        left = [found for each in given if (found := self._id(each, rule)) is not None]
        if given and not left:
            return None
        return _with(command, field, given, left)

    def _position(self, position: Position, rule: FindPosition) -> tuple[Position | None, bool]:
        """The position to use, and whether it names the same."""
        if not EARLIEST.ledger < position.ledger < LATEST.ledger:
            return position, True
        named = find(position, self._baseline, self._own)
        self.complete = self.complete and named.position is not None
        return rule(named), named.position is not None

    def _id(self, given: c.MessageIdData, rule: FindPosition) -> c.MessageIdData | None:
        wire = from_wire(given.ledgerId, given.entryId)
        position, same = self._position(wire, rule)
        if position is None:
            return None
        if not same:  # another entry, or a place between two: no part of a batch
            return c.MessageIdData(*position, partition=given.partition)
        if position == wire:
            return given
        return msgspec.structs.replace(given, ledgerId=position.ledger, entryId=position.entry)

    def _call(self, command: c.Admin) -> c.Admin | None:
        call = admin_requests.call_of(command)
        if command.method == "GET":
            if (named := _ENTRY.fullmatch(call)) is None:
                return command
            position, _ = self._position(Position(int(named[1]), int(named[2])), _itself)
            if position is None:
                return None
            before, _, query = command.path.partition("/ledger/")
            rest = "?" + query.partition("?")[2] if "?" in query else ""
            path = f"{before}/ledger/{position.ledger}/entry/{position.entry}{rest}"
            return _with(command, "path", command.path, path)
        if command.method == "POST" and _EXPIRE.fullmatch(call):
            return self._body(command, _end)
        pattern = _STARTS.get(command.method)
        return self._body(command, _start) if pattern is not None and pattern.fullmatch(call) else command

    def _body(self, command: c.Admin, rule: FindPosition) -> c.Admin | None:
        if not isinstance(command.body, dict):
            return command  # absent: Latest
        try:
            given = MessageIdBody.read(command.body).position
        except AdminError:
            return command  # the broker says what is wrong with it
        position, same = self._position(given, rule)
        if position is None:
            return None
        if position == given:
            return command
        whole = {} if same else {"batchIndex": -1, "excluded": False}
        body = {**command.body, "ledgerId": position.ledger, "entryId": position.entry, **whole}
        return _with(command, "body", command.body, body)


def _with(command: T, field: str, before: object, after: object) -> T:
    """The command with another value in a field; the same one if the value is the same."""
    return command if after == before else msgspec.structs.replace(command, **{field: after})
