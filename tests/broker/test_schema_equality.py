"""When two definitions in Avro are one (docs/rules/protocol.md §20; I6). The answers are those of Avro 1.10.2 and 1.11.4."""

from typing import Any

import pytest
from hypothesis import given

from streaming.broker.schema.schema_equality import essence
from tests.broker.test_schema_compatibility import JSON

pytestmark = pytest.mark.feature("I6")


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "A", "fields": [*fields], **more}


def field(type_: Any, name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def enum(**more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": ["A", "B"], **more}


ARRAY, FIXED = {"type": "array", "items": "int"}, {"type": "fixed", "name": "F", "size": 4}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (record(field("int")), record(field("int", doc="b"), doc="a"), True),
        (record(field("int")), record(field("int", aliases=["b"]), aliases=["Z"]), True),
        (record(field("int")), record(field({"type": "int"})), True),
        (record(field("int")), record(field({"type": "int", "logicalType": "date"})), False),
        (record(field("int")), record(field("int", order="ascending")), True),
        (record(field("int")), record(field("int", order="ignore")), False),
        (record(field("int")), record(field("int", default=0)), False),
        (record(field(["null", "int"])), record(field(["null", "int"], default=None)), False),
        (record(field(["null", "int"])), record(field(["int", "null"])), False),
        (record(field("int"), field("int", "b")), record(field("int", "b"), field("int")), False),
        (record(field("int")), record(field("int", x=1)), False),
        (record(), record(x=1), False),
        (record(), record(default=1), False),
        (record(), {"type": "error", "name": "A", "fields": []}, True),
        (record(name="x.A"), record(namespace="x"), True),
        (record(namespace="y"), record(namespace="x"), False),
        (record(field(enum()), name="x.A"), record(field(enum(namespace="x")), name="x.A"), True),
        (record(field(enum(namespace="x"))), record(field(enum())), False),
        (record(field(enum(namespace="x")), field("x.E", "b")), record(field(enum(name="x.E")), field({"type": "x.E"}, "b")), True),
        (record(field(enum()), field("E", "b"), namespace="x"), record(field(enum()), field("x.E", "b"), namespace="x"), True),
        (record(field(["null", "A"])), record(field(["null", {"type": "A", "x": 1}])), True),
        (enum(), enum(default="A"), True),
        (enum(), enum(symbols=["B", "A"]), False),
        (ARRAY, {**ARRAY, "items": {"type": "int"}, "doc": "a"}, True),
        (ARRAY, {**ARRAY, "java-class": "x"}, False),
        (ARRAY, {"type": "map", "values": "int"}, False),
        (FIXED, {**FIXED, "doc": "a"}, True),
        (FIXED, {**FIXED, "size": 5}, False),
        ("string", {"type": "string"}, True),
    ],
)  # fmt: skip
def test_what_avro_takes_for_one(one: Any, other: Any, same: bool) -> None:
    assert (essence(one) == essence(other)) is same


def test_what_is_not_in_avro_is_compared_as_it_is() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert essence(schema) == schema
    assert essence("no") == "no"
    assert essence(1) == 1
    assert essence(record(1)) != essence(record(2))
    assert essence(record(field(1))) != essence(record(field(2)))
    assert essence({"type": "record", "fields": 1}) != essence({"type": "record", "fields": 2})
    assert essence({"type": "no", "a": 1}) != essence({"type": "no", "a": 2})


@given(JSON)
def test_any_json_has_an_essence(value: Any) -> None:
    assert essence(value) == essence(value)
