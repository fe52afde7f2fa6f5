"""The gate for many records, see `streaming.quality.gate`: with Arrow.

It decodes a slice of values at a time, turns the commands of each kind into columns, and checks these with the kernels.
The result for a record depends only on that record, not on batches or slices.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from schemas.commands import Decoded, Line, Refused, decode_all
from schemas.records import RECORD as RECORDS
from streaming.quality.inputs import KINDS, RECORD, InputColumn, columns_of, to_arrays
from streaming.quality.kernels import CompiledSuite, compile_suite
from streaming.quality.row_gate import input_suites, of_command
from streaming.quality.rules import Breaks
from streaming.quality.suites import INPUTS

FEW = 16
"""So few commands of a kind, or topics, are checked one by one: Arrow needs tens of microseconds to set out."""

SLICE = 1 << 12
"""Records per slice. Their commands take a few MB, and the fixed cost of the kernels is small in comparison."""


class InputSuite(NamedTuple):
    """The rules of a kind, and how to build the columns that they read."""

    columns: dict[str, InputColumn]
    suite: CompiledSuite
    checks: tuple[tuple[int, Breaks], ...]
    """The rules for one command: `RowRule.longest`, and whether the command breaks it."""

    @classmethod
    def of(cls, suite: CompiledSuite, columns: Mapping[str, InputColumn]) -> "InputSuite":
        """The rules on these columns."""
        checks = tuple((rule.longest, of_command(rule, columns)) for rule in suite.rules)
        return cls({name: columns[name] for name in suite.columns}, suite, checks)

    def holds(self, command: Any, longest: int) -> bool:
        """Whether a command with a value of at most `longest` bytes breaks no rule."""
        return not any(most < longest and breaks(command) for most, breaks in self.checks)

    def arrays(self, commands: Sequence[Any], longest: int) -> dict[str, pa.Array]:
        """The columns of the rules that commands with values of at most `longest` bytes can break.

        A string of n characters or a list of n items takes at least n bytes. Building columns is nearly the whole cost of
        the gate, so rules that only limit such lengths cost nothing while records are short.
        """
        wanted = {name for rule in self.suite.rules if rule.longest < longest for name in rule.columns}
        return to_arrays({name: self.columns[name] for name in wanted}, commands)


class Gate:
    """The compiled input suites."""

    def __init__(self, folder: Path = INPUTS) -> None:
        """Raises `SuiteError` with the name of a suite that is missing or can't be compiled."""
        suites = input_suites(folder)
        record = suites.pop(RECORD)
        self.record = compile_suite(record, {"topic": RECORDS.field("topic").type})
        self.kinds: dict[type[Any], InputSuite] = {}
        for kind, name in KINDS.items():
            columns = columns_of(kind)
            suite = compile_suite(suites[name], {key: column.type for key, column in columns.items()})
            self.kinds[kind] = InputSuite.of(suite, columns)

    def judge(self, topics: Sequence[str | None], values: Sequence[bytes]) -> Iterator[Decoded]:
        """The command of each record, in order, or why it is refused.

        A refusal has the name of the first broken rule, and what is wrong for every broken rule.
        """
        starts = range(0, len(values), SLICE)
        slices = (self._judge(topics[at : at + SLICE], values[at : at + SLICE]) for at in starts)
        return chain.from_iterable(slices)

    def passes(self, topics: Iterable[str | None], kind: type[Any], *columns: Mapping[str, pa.Array]) -> bool:
        """Whether `judge` would refuse none of some commands of a kind, which have no other fields that a rule concerns than these
        `columns`: each time some of equal length."""
        names = [name for name in set(topics) if name is not None]
        given = [(self.kinds[kind].suite, each) for each in columns]
        given.append((self.record, {"topic": pa.array(names, pa.string())}))
        return all(suite.masks(each, len(next(iter(each.values())))) is None for suite, each in given)

    def _judge(self, topics: Sequence[str | None], values: Sequence[bytes]) -> list[Decoded]:
        judged: list[Any] = decode_all(values)
        lines: dict[int, Line] = {}
        if Line in set(map(type, judged)):
            lines = {row: each for row, each in enumerate(judged) if type(each) is Line}
            judged = [each.command if type(each) is Line else each for each in judged]
        refused = self._refused(topics, judged, max(map(len, values)))
        for row, given in (lines | refused).items():
            judged[row] = given
        return judged

    def _refused(self, topics: Sequence[str | None], commands: list[Any], longest: int) -> dict[int, Refused]:
        refused: dict[int, Refused] = {}
        for kind, rows in _by_kind(commands).items():
            if kind is Refused:
                continue
            known = self.kinds[kind]
            if len(rows) > FEW or not all(known.holds(commands[row], longest) for row in rows):
                own = commands if len(rows) == len(commands) else [commands[row] for row in rows]
                _flag(known.suite, known.arrays(own, longest), rows, refused)
        # Many records share a few topics.
        names = [name for name in set(topics) if name is not None]
        if len(names) <= FEW and not any(rule.breaks(name) for rule in self.record.rules for name in names):
            return refused
        columns = {"topic": pa.array(names, pa.string())}
        masks = self.record.masks(columns, len(names))
        if masks is not None:
            bad = {name for name, mask in zip(names, masks, strict=True) if mask}
            rows = [
                row for row, name in enumerate(topics) if name in bad and type(commands[row]) is not Refused
            ]
            _flag(self.record, {"topic": pa.array([topics[row] for row in rows], pa.string())}, rows, refused)
        return refused


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
