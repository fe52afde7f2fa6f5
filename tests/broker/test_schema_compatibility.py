"""Which schemas may follow which (docs/rules/protocol.md §20; I3): Avro's schema resolution, by strategy."""

import json
from typing import Any

import pytest

from schemas.commands import Admin, GetOrCreateSchema, KeyValue, Producer, SchemaData, Subscribe
from schemas.effects import AdminResponse, Error, GetOrCreateSchemaResponse, ProducerSuccess, Success
from streaming.broker.schema_compatibility import incompatibility
from tests.broker.kit import TOPIC, Run, one

pytestmark = pytest.mark.feature("I3")


def avro(definition: Any, type_: str = "Avro") -> SchemaData:
    return SchemaData(schema_data=json.dumps(definition).encode(), type=type_)


def record(*fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": field[0], "type": field[1], **({"default": field[2]} if len(field) > 2 else {})}
            for field in fields
        ],
    }


A, B_OPTIONAL, B_REQUIRED = ("a", "string"), ("b", ["null", "int"], None), ("b", "int")


@pytest.mark.parametrize(
    ("strategy", "old", "new", "compatible"),
    [
        ("BACKWARD", record(A), record(A, B_OPTIONAL), True),
        ("BACKWARD", record(A), record(A, B_REQUIRED), False),
        ("BACKWARD", record(A, B_REQUIRED), record(A), True),
        ("FORWARD", record(A), record(A, B_REQUIRED), True),
        ("FORWARD", record(A, B_REQUIRED), record(A), False),
        ("FULL", record(A), record(A, B_OPTIONAL), True),
        ("FULL", record(A, B_REQUIRED), record(A), False),
        ("ALWAYS_COMPATIBLE", record(A), "int", True),
        ("ALWAYS_INCOMPATIBLE", record(A), record(A, B_OPTIONAL), False),
        ("BACKWARD", "int", "long", True),
        ("FORWARD", "int", "long", False),
        ("BACKWARD", "string", "int", False),
        ("BACKWARD", "int", ["null", "int"], True),
        ("BACKWARD", ["null", "int"], "int", False),
        ("BACKWARD", {"type": "array", "items": "int"}, {"type": "array", "items": "double"}, True),
        ("BACKWARD", {"type": "map", "values": "string"}, {"type": "map", "values": "int"}, False),
        ("BACKWARD", {"type": "enum", "name": "e", "symbols": ["A", "B"]}, {"type": "enum", "name": "e", "symbols": ["A"]}, False),
        ("BACKWARD", {"type": "enum", "name": "e", "symbols": ["A"]}, {"type": "enum", "name": "e", "symbols": ["A", "B"]}, True),
        ("BACKWARD", {"type": "fixed", "name": "f", "size": 4}, {"type": "fixed", "name": "f", "size": 5}, False),
        ("BACKWARD", record(("next", ["null", "r"], None)), record(("next", ["null", "r"], None), A), False),
        ("FULL", record(("next", ["null", "r"], None)), record(("next", ["null", "r"], None)), True),
        ("FULL", {"type": "int"}, {"type": "int", "logicalType": "date"}, True),
        ("BACKWARD", {"type": {"type": "int"}}, {"type": ["null", "long"]}, True),
        ("BACKWARD", {"type": {"type": "string"}}, {"type": {"type": "int"}}, False),
        ("BACKWARD", {"type": "array", "items": record(A)}, {"type": "array", "items": record(A, B_OPTIONAL)}, True),
        ("BACKWARD", {"type": "array", "items": record(A)}, {"type": "array", "items": record(A, B_REQUIRED)}, False),
        ("BACKWARD", record(A, ("x", {"type": "array", "items": record(A) | {"name": "s"}}), ("y", "s")), record(("y", record(B_REQUIRED))), False),
        ("BACKWARD", record(A, ("x", {"type": "array", "items": record(A) | {"name": "s"}}), ("y", "s")), record(("y", record(A))), True),
    ],
)  # fmt: skip
def test_strategies(strategy: Any, old: Any, new: Any, compatible: bool) -> None:
    assert (incompatibility([avro(old)], avro(new), strategy) is None) == compatible


def test_transitive_strategies_look_at_all_schemas() -> None:
    known = [avro(record(B_REQUIRED)), avro(record())]
    assert incompatibility(known, avro(record(("b", "string", ""))), "BACKWARD") is None
    assert incompatibility(known, avro(record(("b", "string", ""))), "BACKWARD_TRANSITIVE") is not None


def test_the_type_must_be_the_same() -> None:
    found = incompatibility([avro("int")], avro("int", "Json"), "FULL")
    assert found == "Incompatible schema: exists schema type AVRO, new schema type JSON"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (SchemaData(schema_data=b"a", type="String"), SchemaData(schema_data=b"b", type="String")),
        (SchemaData(schema_data=b"{", type="Avro"), avro("int")),
        (avro("int"), SchemaData(schema_data=b"{", type="Avro")),
        (avro("int"), SchemaData(schema_data=b"[" * 100_000, type="Avro")),
    ],
)
def test_what_is_not_in_avro_is_not_compared(old: SchemaData, new: SchemaData) -> None:
    assert incompatibility([old], new, "FULL") is None


def test_keys_and_values_are_compared_on_their_own() -> None:
    def both(key: Any, value: Any) -> SchemaData:
        halves = [json.dumps(each).encode() for each in (key, value)]
        data = b"".join(len(half).to_bytes(4, "big") + half for half in halves)
        types = [KeyValue("key.schema.type", "AVRO"), KeyValue("value.schema.type", "AVRO")]
        return SchemaData(schema_data=data, type="KeyValue", properties=types)

    assert incompatibility([both("int", "int")], both("int", "long"), "BACKWARD") is None
    assert incompatibility([both("int", "int")], both("string", "int"), "BACKWARD") is not None


def _run(**settings: Any) -> Run:
    run = Run(**settings)
    run.do(Producer(connection="c", producer_id=1, request_id=1, schema=avro(record(A))))
    return run


def test_producers_and_requests_with_an_incompatible_schema_are_refused() -> None:
    run = _run(schemaCompatibilityStrategy="FULL")
    bad, good = avro(record(A, B_REQUIRED)), avro(record(A, B_OPTIONAL))
    assert (
        one(run.do(Producer(connection="c", producer_id=2, request_id=2, schema=bad)), Error).error
        == "IncompatibleSchema"
    )
    answer = one(
        run.do(GetOrCreateSchema(connection="c", request_id=3, schema=bad)), GetOrCreateSchemaResponse
    )
    assert answer.error == "IncompatibleSchema"
    assert one(run.do(Producer(connection="c", producer_id=2, request_id=4, schema=good)), ProducerSuccess)


def test_a_consumer_must_be_able_to_read() -> None:
    run = _run(schemaCompatibilityStrategy="FULL")

    def subscribe(id_: int, schema: SchemaData) -> list[Any]:
        return run.do(
            Subscribe(
                connection="c",
                consumer_id=id_,
                request_id=9,
                subscription=f"s{id_}",
                subType="Exclusive",
                schema=schema,
            )
        )

    assert one(subscribe(1, avro(record(A, B_REQUIRED))), Error).error == "IncompatibleSchema"
    assert one(subscribe(2, avro(record())), Success)


def test_policies_decide_for_a_namespace_and_a_topic() -> None:
    run = _run(schemaCompatibilityStrategy="FULL")
    bad = avro(record(A, B_REQUIRED))
    path = "/" + TOPIC.replace("://", "/")

    def set_(path: str, body: Any, topic: str | None) -> None:
        effects = run.do(Admin(method="PUT", path=path, body=body), topic)
        assert one(effects, AdminResponse).fields.status == 204

    def add(id_: int, schema: SchemaData | None) -> list[Any]:
        return run.do(Producer(connection="c", producer_id=id_, request_id=id_, schema=schema))

    set_(f"{path}/schemaCompatibilityStrategy", "FORWARD", TOPIC)
    assert one(add(2, bad), ProducerSuccess)
    set_("/namespaces/public/default/isAllowAutoUpdateSchema", False, None)
    assert (
        one(add(3, avro(record(A, ("c", "int")))), Error).cause
        == "Schema not found and schema auto updating is disabled."
    )
    assert one(add(4, bad), ProducerSuccess)
    assert one(add(5, None), ProducerSuccess)
    set_(f"{path}/schemaValidationEnforced", True, TOPIC)
    assert one(add(6, None), Error).error == "IncompatibleSchema"
