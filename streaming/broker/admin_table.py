"""The form of the one table of admin calls (I1, D4). Its rows stand beside their handlers, and `admin_calls` has them all."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import unquote

from streaming.broker.parameters import INT, LONG, query, read_number

NAMESPACE = "/namespaces/{tenant}/{namespace}"
TOPIC = "/{domain}/{tenant}/{namespace}/{topic}"
SCHEMAS = "/schemas/{tenant}/{namespace}/{topic}"

OnPartitioned = Literal["whole", "each", "one"]
"""What a call on a partitioned topic is: a call on it as a whole, on each partition, or on no topic, since only its partitions
are topics."""

AdminAnswer = tuple[int, Any]
"""The HTTP status and the body; None: no body."""

Names = dict[str, str]
"""Parameter of a path → what a call has in its place."""

Handler = TypeVar("Handler", covariant=True)


class Call(NamedTuple, Generic[Handler]):
    """A row: a method, a path below ``/admin/v2``, and what answers it. The handler's docstring is the reference of the call.

    `refusal`: why Pulsar does not allow the call on a partitioned topic; "" if it does. `numbers`: its query parameters that are
    numbers.
    """

    method: str
    path: str
    handler: Handler
    on_partitioned: OnPartitioned = "whole"
    refusal: str = ""
    numbers: tuple[str, ...] = ()


class Table(Generic[Handler]):
    """The calls below a path. The first row that matches answers."""

    def __init__(self, below: str, rows: Iterable[Call[Handler]]) -> None:
        """The paths of the `rows` go on where `below` ends."""
        rows = tuple(rows)
        self.calls = tuple(row._replace(path=below + row.path) for row in rows)
        self._patterns = [(row, _pattern(row.path)) for row in rows]
        self._numbers = [each for each in self._patterns if each[0].numbers or _numbers_in(each[0].path)]

    def find(self, method: str, path: str) -> tuple[Handler, Names] | None:
        """The handler of a call, and the names in its path, as the client encoded them. The path begins after `below` and has
        no query. None: no row is that of the call."""
        for row, pattern in self._patterns:
            if row.method == method and (match := pattern.fullmatch(path)) is not None:
                return row.handler, match.groupdict()
        return None

    def check_numbers(self, method: str, path: str, given: str) -> None:
        """Raise `AdminError` if the table has a call that `check_numbers` refuses. The path is as for `find`; `given` has
        the query."""
        for row, pattern in self._numbers:
            if row.method == method and (match := pattern.fullmatch(path)) is not None:
                check_numbers(row, match.groupdict(), given)
                return

    def knows(self, path: str, on_partitioned: OnPartitioned | None = None) -> bool:
        """Has a row this path, whatever its method? `on_partitioned`: only those rows count."""
        return any(
            pattern.fullmatch(path)
            for row, pattern in self._patterns
            if on_partitioned in (None, row.on_partitioned)
        )


def check_numbers(call: Call[Any], names: Names, path: str) -> None:
    """Refuse a call with a parameter that is not of its type, as Pulsar does before it looks at anything else. `names`: those
    in its path, as the client encoded them; `path` has the query. Raises `AdminError`."""
    for name, value in names.items():
        if (bits := NUMBERS.get(name)) is not None:
            read_number(unquote(value), bits)
    given = query(path) if call.numbers else {}
    for name in call.numbers:
        read_number(given.get(name, ""), NUMBERS[name])


def decoded(names: Names) -> Names:
    """The names in a path, without its encoding. Numbers are as Python writes them. Raises `AdminError` for one that is none."""
    return dict(_decoded(names))


def _decoded(names: Names) -> Iterator[tuple[str, str]]:
    for name, value in names.items():
        text, bits = unquote(value), NUMBERS.get(name)
        yield name, text if bits is None else str(read_number(text, bits))


NUMBERS = {
    "count": INT, "seconds": INT, "n": INT, "partition": INT, "time": LONG, "ledger": LONG, "entry": LONG,
    "messagePosition": LONG, "index": LONG,
}  # fmt: skip
"""Parameter of a path or query → its type. All others are texts."""


def _numbers_in(path: str) -> set[str]:
    return {name for name in re.findall(r"\{(\w+)\}", path) if name in NUMBERS}


_FORMS = {"domain": "persistent|non-persistent", "value": "[^?]*"}
"""Parameter → its form. Any other parameter is one element of the path."""


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(
        re.sub(r"\{(\w+)\}", lambda name: f"(?P<{name[1]}>{_FORMS.get(name[1], '[^/]+')})", path)
    )
