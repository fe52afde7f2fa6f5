"""The gate before the broker: records that break a rule of the input suites go to quarantine, the others go on.

Commands are decoded a slice at a time, turned into columns kind by kind, and judged by the kernels; the broker takes
them decoded. A verdict depends on the record alone, so the result doesn't depend on batches or slices.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from schemas import commands as c
from schemas.effects import Quarantined
from schemas.records import RECORD as RECORDS
from streaming.broker.broker import LATEST_TIME, Broker
from streaming.quality.inputs import KINDS, RECORD, Column, columns_of, to_arrays
from streaming.quality.kernels import CompiledSuite, compile_suite
from streaming.quality.suites import FOLDER, SuiteError, read_suites

SLICE = 1 << 12
"""Records decoded at once: their commands take a few MB, and the kernels' fixed cost is small against them."""

INPUTS = FOLDER / "inputs"


class Refused(NamedTuple):
    """A record that breaks a rule: the first rule's name, and what is wrong, of every rule."""

    rule: str
    cause: str


Judged = c.AnyCommand | c.Publish | Refused | None
"""What is known of a record: its command, or why it is refused; None: its value is no command."""


class InputSuite(NamedTuple):
    """A kind's rules, and how to make the columns that they read."""

    columns: dict[str, Column]
    suite: CompiledSuite

    def arrays(self, commands: Sequence[Any], longest: int) -> dict[str, pa.Array]:
        """The columns of the rules that can be broken by commands whose values have at most `longest` bytes.

        A text of n characters, or a list of n members, takes n bytes at least. To make columns is nearly all that the
        gate costs: so rules that only bound such lengths cost nothing while records are short.
        """
        wanted = {name for rule in self.suite.rules if rule.longest < longest for name in rule.columns}
        return to_arrays({name: self.columns[name] for name in wanted}, commands)


class Gate:
    """The compiled input suites."""

    def __init__(self, folder: Path = INPUTS) -> None:
        """Raises `SuiteError`, by name, if a suite is missing or can't be compiled."""
        suites = read_suites(folder)
        wanted = {*KINDS.values(), RECORD}
        if wrong := suites.keys() ^ wanted:
            raise SuiteError(f"input suites and kinds of commands differ: {', '.join(sorted(wrong))}")
        record = suites.pop(RECORD)
        self.record = compile_suite(record, {"topic": RECORDS.field("topic").type})
        self.kinds: dict[type[Any], InputSuite] = {}
        for kind, name in KINDS.items():
            columns = columns_of(kind)
            suite = compile_suite(suites[name], {key: column.type for key, column in columns.items()})
            self.kinds[kind] = InputSuite({key: columns[key] for key in suite.columns}, suite)

    def judge(self, topics: Sequence[str | None], values: Sequence[bytes]) -> Iterator[Judged]:
        """A verdict each record, in order."""
        for start in range(0, len(values), SLICE):
            judged: list[Any] = []
            for value in values[start : start + SLICE]:
                try:
                    judged.append(c.decode(value))
                except c.MalformedCommand:
                    judged.append(None)
            longest = max(map(len, values[start : start + SLICE]))
            for row, refused in self._refused(topics[start : start + SLICE], judged, longest).items():
                judged[row] = refused
            yield from judged

    def _refused(self, topics: Sequence[str | None], commands: list[Any], longest: int) -> dict[int, Refused]:
        refused: dict[int, Refused] = {}
        for kind, rows in _by_kind(commands).items():
            if kind is not type(None):
                known = self.kinds[kind]
                own = commands if len(rows) == len(commands) else [commands[row] for row in rows]
                _flag(known.suite, known.arrays(own, longest), rows, refused)
        # Few topics have many records.
        names = [name for name in set(topics) if name is not None]
        columns = {"topic": pa.array(names, pa.string())}
        masks = self.record.masks(columns, len(names))
        if masks is not None:
            bad = {name for name, mask in zip(names, masks, strict=True) if mask}
            rows = [row for row, name in enumerate(topics) if name in bad and commands[row] is not None]
            _flag(self.record, {"topic": pa.array([topics[row] for row in rows], pa.string())}, rows, refused)
        return refused


class GatedBroker(Broker):
    """The broker, for records that a gate has judged."""

    def admit(self, offset: int, timestamp: int, topic: str | None, value: bytes, judged: Judged) -> None:
        """`apply` of a record whose `value` the gate judged: as if the broker had decoded it itself, but that what the
        gate refused becomes a quarantine row, and time passes."""
        ctx = self._ctx
        if judged is None or offset <= ctx.offset or timestamp > LATEST_TIME:
            self.apply(offset, timestamp, topic, value)  # it says what is wrong
            return
        ctx.offset, ctx.ordinal = offset, 0
        self._advance(timestamp)
        reason = judged if type(judged) is Refused else self._fold(topic, judged)  # type: ignore[arg-type]
        if reason is not None:
            ctx.emit(Quarantined(topic, *reason, value))
        while ctx.lost:
            self._connection_lost(ctx.lost.pop())


class UngatedBroker(Broker):
    """The broker, which the query doesn't know for Magnetar's own, so puts no gate before it: to compare with."""


@cache
def gate() -> Gate:
    """The gate of Magnetar's own suites, compiled once a process. Raises `SuiteError`."""
    return Gate()


def _by_kind(commands: list[Any]) -> Mapping[type[Any], Sequence[int]]:
    kinds = set(map(type, commands))
    if len(kinds) == 1:
        return {kinds.pop(): range(len(commands))}
    rows: dict[type[Any], list[int]] = defaultdict(list)
    for row, command in enumerate(commands):
        rows[type(command)].append(row)
    return rows


def _flag(
    suite: CompiledSuite, columns: dict[str, pa.Array], rows: Sequence[int], refused: dict[int, Refused]
) -> None:
    masks = suite.masks(columns, len(rows))
    if masks is None:
        return
    for place in masks.nonzero()[0].tolist():
        broken = suite.broken(int(masks[place]))
        values = {name: column[place].as_py() for name, column in columns.items()}
        causes = "; ".join(rule.cause(values) for rule in broken)
        if rows[place] in refused:
            causes = f"{refused[rows[place]].cause}; {causes}"
        refused[rows[place]] = Refused(refused.get(rows[place], (broken[0].name,))[0], causes)
