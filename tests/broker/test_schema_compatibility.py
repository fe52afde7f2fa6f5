"""Which schemas may follow which (docs/rules/protocol.md §20; I6): Avro's schema resolution, by strategy."""

import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import Admin, GetOrCreateSchema, KeyValue, Producer, SchemaData, Subscribe
from schemas.effects import AdminResponse, Error, GetOrCreateSchemaResponse, ProducerSuccess, Success
from streaming.broker.schema import schema_compatibility
from streaming.broker.schema.schema_compatibility import MOST_IN_ALL, MOST_PAIRS, incompatibility
from streaming.broker.schema.schema_definition import InvalidSchema, validate
from tests.broker.kit import TOPIC, Run, one

pytestmark = pytest.mark.feature("I6")


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


def enum(*symbols: str, **more: str) -> dict[str, Any]:
    return {"type": "enum", "name": "e", "symbols": [*symbols], **more}


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
        ("FULL", enum("A", "B"), enum("A"), True),  # Avro finds a missing symbol only when it reads one
        ("FULL", enum("A"), enum("A", "B"), True),
        ("FULL", ["null", enum("A")], ["null", enum("A", "B")], True),
        ("FULL", enum(name="x.e"), enum(namespace="x"), True),
        ("FULL", enum(name="x.e"), enum(name="y.e"), True),
        ("FULL", enum(), enum(name="f"), False),
        ("FULL", {"type": "fixed", "name": "x.f", "size": 4}, {"type": "fixed", "name": "f", "size": 4}, True),
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
        ("BACKWARD", record(A), [record(B_REQUIRED) | {"name": "s"}, record(A) | {"name": "t"}], True),
        ("BACKWARD", record(A), [record(A) | {"name": "s"}, record(B_REQUIRED)], False),  # the branch of its name is the one
        ("BACKWARD", record(A), [record(A) | {"name": "s"}, record(B_REQUIRED) | {"namespace": "x"}], True),
        ("BACKWARD", record(A) | {"name": "x.r"}, [record(A) | {"name": "s"}, record(B_REQUIRED) | {"namespace": "x"}], False),
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


def pair(key: str, value: str, definition: bytes = b"") -> SchemaData:
    """A schema of keys and values. The key has no definition."""
    types = [KeyValue("key.schema.type", key), KeyValue("value.schema.type", value)]
    data = bytes(4) + len(definition).to_bytes(4, "big") + definition
    return SchemaData(schema_data=data, type="KeyValue", properties=types)


@pytest.mark.parametrize("strategy", ["BACKWARD", "FORWARD_TRANSITIVE", "FULL"])
def test_keys_and_values_keep_their_types(strategy: Any) -> None:
    known = [pair("STRING", "AVRO", b'"int"')]
    other = pair("INT64", "AVRO", b'{"type":"int"}')
    assert incompatibility(known, other, strategy) == (
        "Key schemas or Value schemas are different schema type, from key schema type is STRING and to key schema is INT64, "
        "from value schema is AVRO and to value schema is AVRO"
    )
    assert incompatibility(known, pair("STRING", "BOOLEAN"), strategy) is not None
    assert incompatibility(known, pair("STRING", "AVRO", b'{"type":"int"}'), strategy) is None
    assert incompatibility(known, other, "ALWAYS_COMPATIBLE") is None
    untyped = SchemaData(schema_data=b"", type="KeyValue")
    assert incompatibility([untyped], pair("BYTES", "BYTES"), strategy) is None
    assert incompatibility([untyped], pair("AVRO", "BYTES"), strategy) is not None


def test_types_without_definitions_change_unless_the_strategy_is_transitive() -> None:
    """Pulsar does not compare two schemas of the same bytes."""
    known = [pair("STRING", "INT32")]
    assert incompatibility(known, pair("INT64", "INT32"), "FULL") is None
    assert incompatibility(known, pair("INT64", "INT32"), "FULL_TRANSITIVE") is not None


@pytest.mark.parametrize("in_a_value", [False, True])
@pytest.mark.parametrize("strategy", ["BACKWARD_TRANSITIVE", "FORWARD", "FULL"])
def test_the_root_message_of_protobuf_stays(strategy: Any, in_a_value: bool) -> None:
    def native(root: str) -> SchemaData:
        names = {"rootMessageTypeName": root, "rootFileDescriptorName": "a.proto"}
        data = json.dumps({"fileDescriptorSet": "AAAA", **names}).encode()
        if not in_a_value:
            return SchemaData(schema_data=data, type="ProtobufNative")
        return pair("STRING", "PROTOBUF_NATIVE", data)

    assert incompatibility([native("p.A")], native("p.B"), strategy) == (
        f"Protobuf root message change is not allowed under the '{strategy}' strategy. "
        "Original message name: 'p.A', new message name: 'p.B'."
    )
    assert incompatibility([native("p.A")], native("p.A"), strategy) is None
    assert incompatibility([native("p.A")], native("p.B"), "ALWAYS_COMPATIBLE") is None


@pytest.mark.parametrize("strategy", ["BACKWARD", "FORWARD", "FORWARD_TRANSITIVE", "FULL"])
def test_a_consumer_must_read_the_latest_schema(strategy: Any) -> None:
    """Even if its own is an older one of the topic."""
    run = Run(schemaCompatibilityStrategy="ALWAYS_COMPATIBLE")
    old, new = avro(record(A, B_REQUIRED)), avro(record(A))
    for number, schema in enumerate((old, new), 1):
        added = run.do(Producer(connection="c", producer_id=number, request_id=number, schema=schema))
        assert one(added, ProducerSuccess)
    assert one(run.subscribe("s", id_=3, schema=old), Success)
    path = f"/{TOPIC.replace('://', '/')}/schemaCompatibilityStrategy"
    assert one(run.do(Admin(method="PUT", path=path, body=strategy)), AdminResponse).fields.status == 204
    assert one(run.subscribe("t", id_=4, schema=old), Error).error == "IncompatibleSchema"
    assert one(run.subscribe("t", id_=5, schema=new), Success)


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


# -- what schemas cost, and what nobody has validated --------------------------------------------------------------


def nested(depth: int, leaf: Any) -> Any:
    """Records in each of which the one before is a field, and its name is another field."""
    found: Any = leaf
    for number in range(depth):
        before = f"r{number - 1}" if number else "int"
        found = {"type": "record", "name": f"r{number}", "fields": [
            {"name": "a", "type": found}, {"name": "b", "type": before}]}  # fmt: skip
    return found


def circle(length: int, type_: str = "record") -> Any:
    """Records of which each has the next one as a field, and the last one has the first."""
    found: Any = "c0"
    for number in reversed(range(length)):
        found = {"type": type_, "name": f"c{number}", "fields": [{"name": "next", "type": found}]}
    return found


def union(count: int, field: str) -> Any:
    return [
        {"type": "record", "name": f"u{n}", "fields": [{"name": f"{field}{n}", "type": "int"}]} for n in range(count)
    ]  # fmt: skip


def both_ways(old: Any, new: Any) -> str | None:
    return incompatibility([avro(old)], avro(new), "FULL")


def calls(work: Callable[[], object]) -> int:
    """The calls of functions that a piece of work makes."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    ("old", "new", "compatible"),
    [
        (nested(30, "int"), nested(30, "int"), True),  # 2^30 ways through it
        (nested(30, "int"), nested(30, "string"), False),
        (circle(31), circle(30), True),  # 930 pairs in a row
        (circle(1, "error"), circle(1, "error"), True),
        (union(60, "a"), union(60, "a"), True),
        (union(60, "a"), union(60, "b"), False),
        (
            {"type": "enum", "name": "e", "symbols": [f"s{n}" for n in range(20_000)]},
            {"type": "enum", "name": "e", "symbols": [f"s{n}" for n in range(20_000)]},
            True,
        ),
    ],
)
def test_types_are_compared_once(old: Any, new: Any, compatible: bool) -> None:
    assert (both_ways(old, new) is None) is compatible
    assert calls(lambda: both_ways(old, new)) < 100 * MOST_PAIRS


@pytest.mark.parametrize("kind", ["enum", "record"])
def test_a_large_type_is_read_once(kind: str) -> None:
    """However many types of the other schema it is compared with."""

    def of(name: str, parts: int) -> Any:
        if kind == "enum":
            return {"type": "enum", "name": name, "symbols": [f"s{n}" for n in range(parts)]}
        return {
            "type": "record",
            "name": name,
            "fields": [{"name": f"f{n}", "type": "int"} for n in range(parts)],
        }

    many: Any = [of(f"t{n}", 0) for n in range(1_000)]
    for strategy in ("BACKWARD", "FORWARD", "FULL"):
        for old, new in ((of("big", 3_000), many), (many, of("big", 3_000))):
            work = calls(lambda: incompatibility([avro(old)], avro(new), strategy))  # noqa: B023
            assert work < 100 * MOST_PAIRS


def test_a_namespace_is_no_part_of_each_name_inside_it() -> None:
    fields = [{"name": f"f{n}", "type": {"type": "enum", "name": f"e{n}", "symbols": []}} for n in range(100)]
    of_a_namespace = {"type": "record", "name": "r", "namespace": "n" * 1_000, "fields": fields}
    validate(avro(of_a_namespace))
    with pytest.raises(InvalidSchema, match="Names of more than 1024 characters"):
        validate(avro({**of_a_namespace, "namespace": "n" * 1_030}))
    validate(avro({**of_a_namespace, "namespace": "n" * 1_020}))  # with the dot, 1,024 for the longest
    with pytest.raises(InvalidSchema, match="Names of more than 1024 characters"):
        validate(avro({**of_a_namespace, "namespace": "n" * 1_021}))


def test_schemas_with_too_many_types_are_refused() -> None:
    old, new = union(1_000, "a"), union(1_000, "b")
    assert "more than 4000 pairs of types" in str(both_ways(old, new))
    assert calls(lambda: both_ways(old, new)) < 100 * MOST_PAIRS


def test_a_schema_is_compared_with_many_as_long_as_that_is_cheap() -> None:
    """With a transitive strategy, each new schema is compared with all before it."""
    small = [avro(record(A, (f"b{n}", "int", 0))) for n in range(3_000)]
    assert incompatibility(small, avro(record(A)), "FULL_TRANSITIVE") is None
    many = [avro(union(100, "a"))] * 200
    other = SchemaData(schema_data=many[0].schema_data + b" ", type="Avro")
    refused = incompatibility(many, other, "FULL_TRANSITIVE")
    assert "more than 50000 pairs of types would have to be compared in all" in str(refused)
    assert calls(lambda: incompatibility(many, other, "FULL_TRANSITIVE")) < 200 * MOST_IN_ALL
    large = [avro({"type": "string", "doc": "x" * 1_000_000})] * 100
    assert "in all" in str(incompatibility(large, avro("string"), "FULL_TRANSITIVE"))


NAMES = st.sampled_from(["r", "s", "t"])
PRIMITIVES = st.sampled_from(["null", "int", "long", "string", "bytes", "double"])


def types(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    field = st.fixed_dictionaries(
        {"name": st.sampled_from("ab"), "type": inner}, optional={"default": st.none(), "aliases": st.just(["a"])}
    )  # fmt: skip
    return st.one_of(
        st.fixed_dictionaries(
            {
                "type": st.sampled_from(["record", "error"]),
                "name": NAMES,
                "fields": st.lists(field, max_size=2),
            }
        ),
        st.lists(inner, max_size=3),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries({"type": st.just("map"), "values": inner}),
        st.fixed_dictionaries({"type": inner}),
        st.fixed_dictionaries({"type": st.just("fixed"), "name": NAMES, "size": st.integers(1, 2)}),
        st.fixed_dictionaries(
            {"type": st.just("enum"), "name": NAMES, "symbols": st.lists(st.sampled_from("AB"), max_size=2)}
        ),
    )


DEFINITIONS = st.recursive(st.one_of(PRIMITIVES, NAMES), types, max_leaves=12)


@given(DEFINITIONS, DEFINITIONS)
def test_it_is_as_following_every_path(old: Any, new: Any) -> None:
    """Through each field and branch, until a pair comes again that is being compared."""

    def matches(reader: Any, writer: Any, above: frozenset[tuple[int, int]]) -> bool:
        reader, writer = by_name(reader, of_reader), by_name(writer, of_writer)
        pair = id(reader), id(writer)
        if pair in above:
            return True
        above |= {pair}
        if isinstance(writer, list):
            return all(matches(reader, each, above) for each in writer)
        if isinstance(reader, list):
            records = [each for each in reader if same_record(by_name(each, of_reader), writer)]
            return any(matches(each, writer, above) for each in records[-1:] or reader)
        one, other = (str(each.get("type")) if isinstance(each, dict) else each for each in (reader, writer))
        if one != other:
            return one in schema_compatibility._PROMOTIONS.get(other, ())
        if not isinstance(reader, dict) or not isinstance(writer, dict):
            return True
        if one in ("array", "map"):
            part = "items" if one == "array" else "values"
            return matches(reader[part], writer[part], above)
        if one == "fixed":
            return (reader["name"], reader["size"]) == (writer["name"], writer["size"])
        if one == "enum":
            return bool(reader["name"] == writer["name"])
        if one not in ("record", "error"):
            return True
        written = {field["name"]: field for field in writer["fields"]}
        for field in {each["name"]: each for each in reader["fields"]}.values():
            names = [each for each in (field["name"], *field.get("aliases", ())) if each in written]
            if not (
                matches(field["type"], written[names[0]]["type"], above) if names else "default" in field
            ):
                return False
        return True

    def same_record(one: Any, other: Any) -> bool:
        both = [(each["type"], each.get("name")) if isinstance(each, dict) else each for each in (one, other)]
        return both[0] == both[1] and both[0][0] == "record"

    by_name = schema_compatibility._by_name
    old, new = schema_compatibility._definition(old), schema_compatibility._definition(new)
    of_reader, of_writer = (schema_compatibility._names(each, "", {}) for each in (new, old))
    assert schema_compatibility._can_read(new, old, schema_compatibility._Budget()) is matches(
        new, old, frozenset()
    )


JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.integers(-1, 2), st.sampled_from(["r", "int", "enum", "A"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "name", "namespace", "fields", "items", "values", "symbols", "size", "aliases",
                             "default"]), inner, max_size=5),
        st.fixed_dictionaries({"type": st.sampled_from(["record", "error", "enum", "fixed", "array", "map"])},
                              optional={"name": inner, "fields": inner, "symbols": inner, "items": inner, "size": inner}),
    ), max_leaves=15,
)  # fmt: skip


@given(JSON, JSON)
def test_keys_and_values_that_nobody_has_validated_are_compared(old: Any, new: Any) -> None:
    """Nobody validates the schemas of a state."""
    found = []
    for each in (old, new):
        half = json.dumps(each).encode()
        data = len(half).to_bytes(4, "big") + half
        found.append(msgspec.structs.replace(pair("AVRO", "JSON"), schema_data=data + data))
    incompatibility(found[:1], found[1], "FULL")


@pytest.mark.parametrize("length", [10, 1_022, 1_023, 2_000])
def test_a_type_whose_full_name_is_too_long_has_its_name_alone(length: int) -> None:
    """Nobody validates the schemas of a state: the names that are kept of them have a bound all the same."""
    kind = schema_compatibility._definition({"type": "enum", "name": "e", "symbols": []})
    found = schema_compatibility._names(kind, "n" * length, {})
    assert [*found] == (["e", f"{'n' * length}.e"] if length < 1_023 else ["e"])
