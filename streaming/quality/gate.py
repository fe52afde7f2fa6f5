"""The gate before the broker: decodes records, and refuses those that break a rule of the input suites.

The result for a record depends only on that record. There are two gates with the same results: one checks the columns of many commands
with Arrow, the other one command after the other, for a test double, which does without Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from schemas.commands import Decoded, decode_or_refuse
from streaming.quality.row_gate import RowGate

if TYPE_CHECKING:
    import pyarrow as pa

    from streaming.quality.column_gate import Gate

Judge = Callable[[Sequence[str | None], Sequence[bytes]], Iterator[Decoded]]
"""Takes the topics and raw values of records. Returns their commands, or why they are refused."""


@cache
def gate() -> Gate:
    """The gate with Magnetar's own suites, compiled once per process. Raises `SuiteError`."""
    from streaming.quality.column_gate import Gate

    return Gate()


def judge(topics: Sequence[str | None], values: Sequence[bytes]) -> Iterator[Decoded]:
    """`Gate.judge` with Magnetar's own suites. Raises `SuiteError` immediately if one can't be compiled."""
    return gate().judge(topics, values)


@cache
def _row_gate() -> RowGate:
    return RowGate()


def judge_each(topics: Sequence[str | None], values: Sequence[bytes]) -> Iterator[Decoded]:
    """`judge`, record by record and without Arrow."""
    return _row_gate().judge(topics, values)


def decode_only(topics: Sequence[str | None], values: Sequence[bytes]) -> Iterator[Decoded]:
    """A gate without rules: it refuses only what is not a command."""
    return map(decode_or_refuse, values)


def passes(
    by: Judge, topics: Iterable[str | None], kind: type[Any], *columns: Mapping[str, pa.Array]
) -> bool:
    """`Gate.passes`, if `by` is `judge` or `decode_only`; no other judge is known to pass anything."""
    return by is decode_only or (by is judge and gate().passes(topics, kind, *columns))
