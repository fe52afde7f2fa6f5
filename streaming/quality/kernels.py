"""Expectations as pyarrow kernels. They find the rows that break rules, without Great Expectations.

A rule takes columns and returns a boolean array, true where a row breaks it. As in Great Expectations, a null breaks only
the rule "not null". If a kernel can't do exactly what Great Expectations does, compiling the suite fails with the name of
the rule. A rule is never skipped silently.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming.quality.rules import RowRule, columns_read, rule_of
from streaming.quality.suites import Expectation, Suite, SuiteError

Columns = Mapping[str, Any]
"""Arrow arrays of equal length, by name."""

Broken = Callable[[Columns], pa.BooleanArray]
"""Returns true where a row breaks the rule. Null counts as false."""

MOST_RULES = 64
"""The number of bits in a mask."""

_EXACT = 2**53
"""Great Expectations converts bounds to floats. From here on, they and the compared values lose digits."""


@dataclass(frozen=True, slots=True)
class CompiledRule(RowRule):
    """A rule with its kernel."""

    broken: Broken


class CompiledSuite(NamedTuple):
    """The rules of a kind. Bit i of a row's mask is set if the row breaks rule i."""

    name: str
    columns: tuple[str, ...]
    rules: tuple[CompiledRule, ...]

    def masks(self, columns: Columns, rows: int) -> npt.NDArray[np.uint64] | None:
        """One bit mask per row, or None if no row breaks a rule. Skips rules on columns that are not given."""
        masks: npt.NDArray[np.uint64] | None = None
        for bit, rule in enumerate(self.rules):
            if not columns.keys() >= set(rule.columns):
                continue
            broken = rule.broken(columns)
            if not broken.true_count:
                continue
            if masks is None:
                masks = np.zeros(rows, np.uint64)
            flags = broken.fill_null(False).to_numpy(zero_copy_only=False)
            masks |= flags.astype(np.uint64) << np.uint64(bit)
        return masks

    def broken(self, mask: int) -> list[CompiledRule]:
        """The broken rules of a mask, in order."""
        return [rule for bit, rule in enumerate(self.rules) if mask >> bit & 1]

    def counts(self, masks: npt.NDArray[np.uint64] | None) -> dict[str, int]:
        """How many rows break each rule, without rules that hold."""
        if masks is None:
            return {}
        found = {
            rule.name: int(np.count_nonzero(masks >> np.uint64(bit) & np.uint64(1)))
            for bit, rule in enumerate(self.rules)
        }
        return {name: count for name, count in found.items() if count}


def compile_suite(suite: Suite, types: Mapping[str, pa.DataType]) -> CompiledSuite:
    """Compile a suite. `types`: the types of the columns that the kind has.

    Raises `SuiteError` with the name of a rule whose expectation is unknown or can't be compiled.
    """
    if len(suite.expectations) > MOST_RULES:
        raise SuiteError(
            f"suite {suite.name} has {len(suite.expectations)} rules, but at most {MOST_RULES} fit into a mask"
        )
    rules = tuple(map(functools.partial(_compile, types=types), suite.rules(), suite.expectations))
    return CompiledSuite(suite.name, tuple(suite.columns()), rules)


def _compile(name: str, expectation: Expectation, types: Mapping[str, pa.DataType]) -> CompiledRule:
    if expectation.type not in _COMPILERS:
        raise SuiteError(f"rule {name}: {_unknown(expectation.type)}")
    make, required, optional = _COMPILERS[expectation.type]
    given = expectation.kwargs
    if missing := required - given.keys():
        raise SuiteError(f"rule {name}: {expectation.type} without {', '.join(sorted(missing))}")
    if extra := given.keys() - required - optional:
        raise SuiteError(
            f"rule {name}: {expectation.type} with {', '.join(sorted(extra))} can't be compiled to a kernel"
        )
    columns = columns_read(expectation)
    for column in columns:
        if column not in types:
            raise SuiteError(f"rule {name}: there is no column {column!r}")
    try:
        broken = make(given, *(types[column] for column in columns))
    except _NotCompilable as error:
        raise SuiteError(f"rule {name}: {expectation.type} can't be compiled: {error}") from None
    rule = rule_of(name, expectation)
    return CompiledRule(name, columns, rule.expected, rule.why, rule.breaks, rule.longest, broken)


def _unknown(type_: str) -> str:
    """Why there is no kernel. The slow import of Great Expectations is fine here, because the start fails anyway."""
    from great_expectations.expectations.registry import list_registered_expectation_implementations

    known = type_ in list_registered_expectation_implementations()
    what = "can't be compiled to a kernel" if known else "is unknown to Great Expectations"
    return f"{type_} {what}; compiled are {', '.join(_COMPILERS)}"


class _NotCompilable(ValueError):
    """The kernels don't support the expectation's arguments or the column's type."""


# -- kernels ------------------------------------------------------------------------------------------------------


def _not_null(given: dict[str, Any], type_: pa.DataType) -> Broken:
    column = given["column"]
    return lambda columns: columns[column].is_null()


def _between(given: dict[str, Any], type_: pa.DataType) -> Broken:
    if not pa.types.is_integer(type_):
        raise _NotCompilable(f"column {given['column']} is {type_}, not an integer")
    return _range(given, operator.itemgetter(given["column"]), type_)


def _lengths(given: dict[str, Any], type_: pa.DataType) -> Broken:
    _must_be_text(given["column"], type_)
    column = given["column"]
    return _range(given, lambda columns: pc.utf8_length(columns[column]), pa.int32())


def _range(given: dict[str, Any], measured: Callable[[Columns], Any], type_: pa.DataType) -> Broken:
    low, high = given.get("min_value"), given.get("max_value")
    for bound in (low, high):
        if bound is not None and (type(bound) is not int or abs(bound) >= _EXACT):
            raise _NotCompilable(f"the bound {bound} is not an integer below 2^53")
    try:
        least, most = (pa.scalar(bound, type_) if bound is not None else None for bound in (low, high))
    except (OverflowError, pa.ArrowInvalid):
        raise _NotCompilable(f"a bound does not fit {type_}") from None
    if least is None and most is None:
        raise _NotCompilable("it has no bounds")
    if least is None:
        return lambda columns: pc.greater(measured(columns), most)
    if most is None:
        return lambda columns: pc.less(measured(columns), least)

    def broken(columns: Columns) -> Any:
        values = measured(columns)
        return pc.or_(pc.less(values, least), pc.greater(values, most))

    return broken


def _in_set(given: dict[str, Any], type_: pa.DataType) -> Broken:
    _must_be_text(given["column"], type_)
    values, column = given["value_set"], given["column"]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise _NotCompilable("value_set is not a list of strings")
    known = pa.array(values, pa.string())
    # A null is not in the set, but doesn't break the rule.
    return lambda columns: pc.and_(pc.invert(pc.is_in(columns[column], known)), columns[column].is_valid())


def _matches(given: dict[str, Any], type_: pa.DataType) -> Broken:
    _must_be_text(given["column"], type_)
    column, pattern = given["column"], given["regex"]
    if set(pattern) & set("$\\(?"):
        # Python's re and Arrow's RE2 differ in these: end of text, non-ASCII classes, groups.
        raise _NotCompilable("a regex with $, \\, ( or ? isn't the same everywhere")
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        raise _NotCompilable(str(error)) from None
    return lambda columns: pc.invert(pc.match_substring_regex(columns[column], pattern))


def _not_below(given: dict[str, Any], first: pa.DataType, second: pa.DataType) -> Broken:
    if not (pa.types.is_integer(first) and pa.types.is_integer(second)):
        raise _NotCompilable("both columns must be integers")
    if given["ignore_row_if"] != "either_value_is_missing" or given["or_equal"] is not True:
        raise _NotCompilable('ignore_row_if must be "either_value_is_missing", or_equal true')
    a, b = given["column_A"], given["column_B"]
    return lambda columns: pc.less(columns[a], columns[b])


def _must_be_text(column: str, type_: pa.DataType) -> None:
    if not pa.types.is_string(type_):
        raise _NotCompilable(f"column {column} is {type_}, not a string")


_Maker = Callable[..., Broken]
_BOUNDS = frozenset({"min_value", "max_value"})
_COMPILERS: dict[str, tuple[_Maker, frozenset[str], frozenset[str]]] = {
    "expect_column_values_to_not_be_null": (_not_null, frozenset({"column"}), frozenset()),
    "expect_column_values_to_be_between": (_between, frozenset({"column"}), _BOUNDS),
    "expect_column_value_lengths_to_be_between": (_lengths, frozenset({"column"}), _BOUNDS),
    "expect_column_values_to_be_in_set": (_in_set, frozenset({"column", "value_set"}), frozenset()),
    "expect_column_values_to_match_regex": (_matches, frozenset({"column", "regex"}), frozenset()),
    "expect_column_pair_values_a_to_be_greater_than_b": (
        _not_below,
        frozenset({"column_A", "column_B", "or_equal", "ignore_row_if"}),
        frozenset(),
    ),
}
"""Expectation → its compiler, the required arguments, and the optional ones."""
