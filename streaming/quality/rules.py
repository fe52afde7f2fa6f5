"""Expectations as rules on the values of one row, in Python alone: `streaming.quality.kernels` has the same for columns."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streaming.quality.suites import Expectation, Suite

Breaks = Callable[..., bool]
"""Whether the values of one row break a rule, one argument per column. As in Great Expectations, a null breaks only the rule "not null"."""


@dataclass(frozen=True, slots=True)
class RowRule:
    """An expectation. `name` is ``<suite>/<rule>``, `why` its reason, `expected` the expectation as text.

    `longest`: a string or list up to this length can't break it (0: any value may).
    """

    name: str
    columns: tuple[str, ...]
    expected: str
    why: str
    breaks: Breaks
    longest: int

    def cause(self, values: Mapping[str, Any]) -> str:
        """A description of what is wrong with a row with these `values`."""
        shown = ", ".join(f"{column} is {_shown(values[column])}" for column in self.columns)
        return f"{shown}: expected {self.expected} ({self.why})"


def rules_of(suite: Suite) -> tuple[RowRule, ...]:
    """The rules of a suite that can be compiled, see `streaming.quality.kernels.compile_suite`."""
    return tuple(map(rule_of, suite.rules(), suite.expectations))


def rule_of(name: str, expectation: Expectation) -> RowRule:
    """An expectation that can be compiled."""
    expected, breaks = _MAKERS[expectation.type](expectation.kwargs)
    return RowRule(
        name, columns_read(expectation), expected, expectation.notes, breaks, _longest(expectation)
    )


def columns_read(expectation: Expectation) -> tuple[str, ...]:
    """The columns that an expectation reads."""
    given = expectation.kwargs
    return tuple(given[key] for key in ("column", "column_A", "column_B") if key in given)


def _longest(expectation: Expectation) -> int:
    """`RowRule.longest`: the bound of a length, size or count that has only an upper bound."""
    given = expectation.kwargs
    measures = expectation.type == "expect_column_value_lengths_to_be_between" or (
        expectation.type == "expect_column_values_to_be_between"
        and given["column"].endswith((".size", ".count"))
    )
    return given["max_value"] if measures and given.get("min_value") is None else 0


_Made = tuple[str, Breaks]
"""The expectation as text, and what breaks it."""


def _not_null(given: dict[str, Any]) -> _Made:
    return "a value", lambda value: value is None


def _between(given: dict[str, Any]) -> _Made:
    return _range(given, operator.index, "")


def _lengths(given: dict[str, Any]) -> _Made:
    return _range(given, len, " characters")


def _range(given: dict[str, Any], measure: Callable[[Any], int], unit: str) -> _Made:
    low, high = given.get("min_value"), given.get("max_value")

    def breaks(value: Any) -> bool:
        if value is None:
            return False
        size = measure(value)
        return (low is not None and size < low) or (high is not None and size > high)

    if low is None:
        return f"at most {high:,}{unit}", breaks
    return f"at least {low:,}{unit}" if high is None else f"{low:,} to {high:,}{unit}", breaks


def _in_set(given: dict[str, Any]) -> _Made:
    allowed = {None, *given["value_set"]}
    return f"one of {', '.join(given['value_set'])}", lambda value: value not in allowed


def _matches(given: dict[str, Any]) -> _Made:
    search = re.compile(given["regex"]).search
    return f"a text with {given['regex']}", lambda value: value is not None and search(value) is None


def _not_below(given: dict[str, Any]) -> _Made:
    return (
        f"{given['column_A']} not below {given['column_B']}",
        lambda one, other: one is not None and other is not None and one < other,
    )


_MAKERS: dict[str, Callable[[dict[str, Any]], _Made]] = {
    "expect_column_values_to_not_be_null": _not_null,
    "expect_column_values_to_be_between": _between,
    "expect_column_value_lengths_to_be_between": _lengths,
    "expect_column_values_to_be_in_set": _in_set,
    "expect_column_values_to_match_regex": _matches,
    "expect_column_pair_values_a_to_be_greater_than_b": _not_below,
}


def _shown(value: Any) -> str:
    text = repr(value)
    return (
        text
        if len(text) <= 60
        else f"{text[:50]}… ({len(value) if isinstance(value, str) else len(text)} characters)"
    )
