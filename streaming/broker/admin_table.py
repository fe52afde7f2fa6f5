"""The form of the one table of admin calls (I1, D4). Its rows stand beside their handlers, and `admin_calls` has them all."""

import re
from collections.abc import Iterable
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import unquote

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

    `refusal`: why Pulsar does not allow the call on a partitioned topic; "" if it does.
    """

    method: str
    path: str
    handler: Handler
    on_partitioned: OnPartitioned = "whole"
    refusal: str = ""


class Table(Generic[Handler]):
    """The calls below a path. The first row that matches answers."""

    def __init__(self, below: str, rows: Iterable[Call[Handler]]) -> None:
        """The paths of the `rows` go on where `below` ends."""
        rows = tuple(rows)
        self.calls = tuple(row._replace(path=below + row.path) for row in rows)
        self._patterns = [(row, _pattern(row.path)) for row in rows]

    def find(self, method: str, path: str) -> tuple[Handler, Names] | None:
        """The handler of a call, and the names in its path, as the client encoded them. The path begins after `below` and has
        no query. None: no row is that of the call."""
        for row, pattern in self._patterns:
            if row.method == method and (match := pattern.fullmatch(path)) is not None:
                return row.handler, match.groupdict()
        return None

    def knows(self, path: str, on_partitioned: OnPartitioned | None = None) -> bool:
        """Has a row this path, whatever its method? `on_partitioned`: only those rows count."""
        return any(
            pattern.fullmatch(path)
            for row, pattern in self._patterns
            if on_partitioned in (None, row.on_partitioned)
        )


def decoded(names: Names) -> Names:
    """The names in a path, without its encoding."""
    return {name: unquote(value) for name, value in names.items()}


_FORMS = {
    "count": r"-?\d{1,15}", "time": r"-?\d{1,15}", "seconds": r"-?\d{1,10}", "n": r"\d{1,15}", "ledger": r"\d{1,15}",
    "entry": r"\d{1,15}", "version": r"\d{1,15}", "domain": "persistent|non-persistent", "value": "[^?]*",
}  # fmt: skip
"""Parameter → its form. Any other parameter is one element of the path."""


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(
        re.sub(r"\{(\w+)\}", lambda name: f"(?P<{name[1]}>{_FORMS.get(name[1], '[^/]+')})", path)
    )
