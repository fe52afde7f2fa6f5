"""Commands as flat columns, for the input suites.

The name of a column is the path of a field in the command. Its values depend on the field's type:

* a string or an integer of at most 64 bits: the value (``metadata.publish_time``), or null if a part of the path is absent;
* bytes: the number of bytes (``<path>.size``); lists and maps: the number of items (``<path>.count``);
* ``payload.size`` of PUBLISH and SEND: the bytes of the payload, from any of its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from schemas import commands as c

if TYPE_CHECKING:
    import pyarrow as pa

PUBLISH, RECORD = "PUBLISH", "RECORD"
"""The kinds that are not commands: the short form of publishing, and every record."""

KINDS: dict[type[Any], str] = {
    c.Publish: PUBLISH,
    **{kind: str(kind.__struct_config__.tag) for kind in get_args(c.AnyCommand)},
}
"""Command type → kind, such as `schemas.commands.Flow` → FLOW."""


class InputColumn(NamedTuple):
    """How to build a column: whether it has texts or integers, and the function from a command to a value."""

    is_text: bool
    get: Callable[[Any], Any]

    @property
    def type(self) -> pa.DataType:
        """The column's type in Arrow."""
        import pyarrow as pa

        return pa.string() if self.is_text else pa.int64()

    def array(self, commands: Sequence[Any]) -> pa.Array:
        """The field's values, one per command, null where the field is absent."""
        import pyarrow as pa

        values = list(map(self.get, commands))
        if values.count(None) == len(values):  # most fields are rarely set
            return pa.nulls(len(values), self.type)
        return pa.array(values, self.type)


def columns_of(kind: type[Any]) -> dict[str, InputColumn]:
    """All columns of a kind of command, by name."""
    columns = dict(_columns(kind, ()))
    if "payload_bytes" in kind.__struct_fields__:
        columns.pop("payload_bytes.size")
        del columns["payload"]
        columns["payload.size"] = InputColumn(False, _payload_size)
    return columns


def to_arrays(columns: dict[str, InputColumn], commands: Sequence[Any]) -> dict[str, pa.Array]:
    """The `columns` of commands of one kind as Arrow arrays."""
    return {name: column.array(commands) for name, column in columns.items()}


def _columns(
    struct: type[Any], path: tuple[str, ...], optional: bool = False
) -> list[tuple[str, InputColumn]]:
    found: list[tuple[str, InputColumn]] = []
    hints = get_type_hints(struct, include_extras=True)
    for field in struct.__struct_fields__:
        type_, may_be_null = _plain(hints[field])
        where = (*path, field)
        name = ".".join(where)
        get = _safe_getter(where) if optional else attrgetter(name)
        if type_ is str:
            found.append((name, InputColumn(True, get)))
        elif type_ is int and _fits(hints[field]):
            found.append((name, InputColumn(False, get)))
        elif type_ is bytes:
            found.append((f"{name}.size", InputColumn(False, _length(get))))
        elif get_origin(type_) in (list, dict):
            found.append((f"{name}.count", InputColumn(False, _length(get))))
        elif isinstance(type_, type) and issubclass(type_, msgspec.Struct) and type_ is not struct:
            found += _columns(type_, where, optional or may_be_null)
    return found


def _plain(hint: Any) -> tuple[Any, bool]:
    """The type without bounds and None, and whether it allows None. Literals are strings."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        others = [each for each in get_args(hint) if each is not type(None)]
        if len(others) == 1:
            return _plain(others[0])[0], True
        return None, True
    return (str, False) if get_origin(hint) is Literal else (hint, False)


def _fits(hint: Any) -> bool:
    """Whether the type is an integer with bounds. Without bounds it may have more than 64 bits."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(each) for each in get_args(hint))
    return get_origin(hint) is Annotated


def _safe_getter(path: tuple[str, ...]) -> Callable[[Any], Any]:
    def get(command: Any) -> Any:
        for field in path:
            if command is None:
                return None
            command = getattr(command, field)
        return command

    return get


def _length(get: Callable[[Any], Any]) -> Callable[[Any], int | None]:
    def length(command: Any) -> int | None:
        value = get(command)
        return None if value is None else len(value)

    return length


def _payload_size(command: c.Publish | c.Send) -> int:
    text = command.payload
    return len(command.payload_bytes) or (len(text) if text.isascii() else len(text.encode()))
