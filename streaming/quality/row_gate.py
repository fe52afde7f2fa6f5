"""The gate for few records, see `streaming.quality.gate`: one after the other, in Python alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.commands import Decoded, Line, Refused, decode_all
from streaming.quality.inputs import KINDS, RECORD, InputColumn, columns_of
from streaming.quality.rules import RowRule, rules_of
from streaming.quality.suites import INPUTS, Suite, SuiteError, read_suites

_Check = tuple[int, Callable[[Any], bool], RowRule]
"""`RowRule.longest`, whether a command breaks the rule, and the rule."""


def input_suites(folder: Path) -> dict[str, Suite]:
    """The suites of all kinds of commands, and that of every record. Raises `SuiteError`."""
    suites = read_suites(folder)
    if wrong := suites.keys() ^ {*KINDS.values(), RECORD}:
        raise SuiteError(f"input suites and kinds of commands differ: {', '.join(sorted(wrong))}")
    return suites


def of_command(rule: RowRule, columns: Mapping[str, InputColumn]) -> Callable[[Any], bool]:
    """Whether a command, which has these columns, breaks a rule."""
    gets = [columns[name].get for name in rule.columns]
    if len(gets) > 1:
        return lambda command: rule.breaks(*(get(command) for get in gets))
    (get,), breaks = gets, rule.breaks
    return lambda command: breaks(get(command))


class RowGate:
    """The input suites as rules on one command. It refuses what `streaming.quality.column_gate.Gate` refuses, in the same words."""

    def __init__(self, folder: Path = INPUTS) -> None:
        """Raises `SuiteError`."""
        suites = input_suites(folder)
        self._record = rules_of(suites.pop(RECORD))
        self._columns = {kind: columns_of(kind) for kind in KINDS}
        self._checks: dict[type[Any], list[_Check]] = {
            kind: [
                (rule.longest, of_command(rule, self._columns[kind]), rule) for rule in rules_of(suites[name])
            ]
            for kind, name in KINDS.items()
        }

    def judge(self, topics: Sequence[str | None], values: Sequence[bytes]) -> Iterator[Decoded]:
        """See `streaming.quality.column_gate.Gate.judge`."""
        for topic, value, given in zip(topics, values, decode_all(values), strict=True):
            command: Any = given.command if type(given) is Line else given
            yield given if type(command) is Refused else self._refused(topic, command, len(value)) or given

    def _refused(self, topic: str | None, command: Any, length: int) -> Refused | None:
        kind = type(command)
        broken = [
            (rule, {name: self._columns[kind][name].get(command) for name in rule.columns})
            for longest, breaks, rule in self._checks[kind]
            if longest < length and breaks(command)
        ]
        if topic is not None:
            broken += [(rule, {"topic": topic}) for rule in self._record if rule.breaks(topic)]
        if not broken:
            return None
        return Refused(broken[0][0].name, "; ".join(rule.cause(values) for rule, values in broken))
