"""What the contracts say about themselves: descriptions, units, types and defaults of their fields.

A description is the text below a field in the source (``name: type``, then a string). It is read from the source because
Python keeps no such text at run time.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any, NamedTuple

import msgspec
from msgspec import NODEFAULT
from msgspec import inspect as types

BOUNDS = {-(2**31): "int32", -(2**63): "int64", 0: "int32"}
"""The name of a bounded integer, by its lower bound."""


class Field(NamedTuple):
    """A field of a contract. `type` and `default` are Markdown; `unit` and `default` are empty if there is none."""

    name: str
    type: str
    default: str
    unit: str
    description: str


def descriptions(cls: type) -> dict[str, str]:
    """Field → description, of a class and of those it inherits from. A field without one is absent."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.split(".")[0] not in ("schemas", "streaming"):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in zip(definition.body, definition.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[name] = _markdown(" ".join(words.split()))
    return found


def sections(cls: type) -> dict[str, str]:
    """Field → the comment that begins its section in the source, for each field that begins one."""
    found: dict[str, str] = {}
    title = ""
    for line in inspect.getsource(cls).splitlines():
        if comment := re.fullmatch(r" {4}# (.+)", line):
            title = f"{title} {comment[1]}".strip()
        elif title and (field := re.match(r" {4}(\w+): ", line)):
            found[field[1]], title = title, ""
    return found


def doc(thing: Any) -> str:
    """A docstring as Markdown."""
    return _markdown(inspect.cleandoc(thing.__doc__ or ""))


def first_sentence(thing: Any) -> str:
    """The first sentence of a docstring, as Markdown on one line."""
    paragraph = " ".join(doc(thing).partition("\n\n")[0].splitlines())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0]


def _markdown(text: str) -> str:
    """A text of the source, without references to rules."""
    return re.sub(r" \((?:docs/rules/)?[a-z_-]+\.md[^)]*\)", "", text.replace("``", "`"))


def fields(struct: type[msgspec.Struct]) -> list[Field]:
    """The fields of a structure, in their order."""
    described = descriptions(struct)
    info = types.type_info(struct)
    assert isinstance(info, types.StructType)
    return [
        Field(
            field.encode_name,
            type_name(field.type),
            _default(field),
            unit(field.type),
            described.get(field.name, ""),
        )
        for field in info.fields
    ]


def type_name(type_: types.Type) -> str:
    """A type in the words of JSON."""
    match type_:
        case types.Metadata(type=plain):
            return type_name(plain)
        case types.IntType(ge=int(least)):
            return BOUNDS[least]
        case types.IntType():
            return "integer"
        case types.FloatType():
            return "number"
        case types.StrType():
            return "string"
        case types.BytesType():
            return "bytes"
        case types.BoolType():
            return "boolean"
        case types.AnyType():
            return "any JSON"
        case types.UnionType(types=members) if {types.ListType, types.DictType} <= {*map(type, members)}:
            return "any JSON"
        case types.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case types.ListType(item_type=item):
            return f"list of {type_name(item)}"
        case types.TupleType(item_types=items):
            return f"[{', '.join(map(type_name, items))}]"
        case types.DictType(value_type=value):
            return f"object of {type_name(value)}"
        case types.StructType(cls=cls):
            return f"[{cls.__name__}](#{cls.__name__.lower()})"
        case types.UnionType(types=members):
            return " or ".join(type_name(each) for each in members if not isinstance(each, types.NoneType))
    raise TypeError(f"no words for {type_}")


def unit(type_: types.Type) -> str:
    """The unit in which values of a type are measured; empty: none."""
    match type_:
        case types.Metadata(extra={"unit": str(found)}):
            return found
        case types.Metadata(type=plain):
            return unit(plain)
        case types.UnionType(types=members):
            return next(filter(None, map(unit, members)), "")
    return ""


def _default(field: types.Field) -> str:
    if field.required:
        return "required"
    if field.default_factory is not NODEFAULT:
        return "empty"
    if (
        field.default is None or field.default is NODEFAULT
    ):  # of a field that may be UNSET, msgspec names no default
        return "absent"
    return f"`{msgspec.json.encode(field.default).decode()}`"
