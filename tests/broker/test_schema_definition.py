"""Which definitions of schemas are well-formed: each verdict is that of a Pulsar 4.0.7, asked through its admin API."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from msgspec import UNSET

from schemas.commands import Admin, GetOrCreateSchema, GetSchema, KeyValue, SchemaData
from schemas.effects import AdminResponse, Error, GetOrCreateSchemaResponse, GetSchemaResponse, Success
from streaming.broker.schema.schema_definition import InvalidSchema, validate
from tests.broker.kit import TOPIC, Run, one

pytestmark = pytest.mark.feature("I6")


def record(*fields: str, **more: str) -> str:
    others = "".join(f',"{name}":{value}' for name, value in more.items())
    return f'{{"type":"record","name":"A","fields":[{",".join(fields)}]{others}}}'


X = '"name":"x"'

IN_AVRO = (
    '"int"', record(f'{{{X},"type":"A"}}'), '{"type":"fixed","name":"F","size":4}', '{"type":"map","values":"int"}',
    '{"type":"array","items":"string"}', '{"type":"record","name":"ä","fields":[]}',
    '{"type":"record","name":"a..C","fields":[]}', '{"type":"record","name":"A","namespace":"1x","fields":[]}',
    record(f'{{{X},"type":"int","default":"s"}}'), record(f'{{{X},"type":["null","int"],"default":5}}'),
    '{"type":"error","name":"A","fields":[]}', ' {"type":"int"} ', '{"type":"int","logicalType":"zz"}',
    '{"a":1,"a":2,"type":"int"}', '{"type":"enum","name":"E","symbols":["A","B"],"default":"B"}',
    record(f'{{{X},"type":{{"type":"record","name":"n.B","fields":[]}}}}', '{"name":"y","type":"n.B","order":"ignore"}'),
    '{"type":"record","name":"n.A","fields":[{"name":"x","type":{"type":"A"}},{"name":"y","type":"A"}]}',
)  # fmt: skip
"""Definitions that Avro's parser takes."""

UNIONS = '["null","int"]', "[]"
"""Taken for JSON, refused for AVRO."""

NOT_IN_AVRO = (
    '"nope"', '["null","null"]', '[["null"],"int"]', record('{"type":"int"}'), record(f"{{{X}}}"), record("1"),
    '{"type":"record","fields":[]}', '{"type":"record","name":"A","fields":{}}', '{"type":"record","name":"A"}',
    '{"type":"enum","name":"E"}', '{"type":"enum","name":"E","symbols":["A","A"]}',
    '{"type":"enum","name":"E","symbols":["1"]}', '{"type":"enum","name":"E","symbols":["A"],"default":"x"}',
    '{"type":"fixed","name":"F"}', '{"type":"fixed","name":"F","size":-1}', '{"type":"fixed","name":"F","size":"3"}',
    '{"type":"map"}', '{"type":{"type":"int"}}', '{"type":["int","null"]}', "{}", "5", "true",
    '{"type":"record","name":"A-b","fields":[]}', '{"type":"record","name":"1A","fields":[]}',
    '{"type":"record","name":"","fields":[]}', record('{"name":"x-y","type":"int"}'), record(aliases='"x"'),
    record(f'{{{X},"type":{record()}}}'), '{"type":"record","name":"int","fields":[]}',
    record(f'{{{X},"type":"int","order":"zz"}}'), record(f'{{{X},"type":"int","aliases":5}}'),
    f'["int",{record()},"A"]', record(f'{{{X},"type":["int","null","int"]}}'), '{"type":"nope"}',
    record(f'{{{X},"type":"int"}}', f'{{{X},"type":"int"}}'), record(f'{{{X},"type":"B"}}'),
    '{"type":"int"} x', "", "  ", "'int'", '{"type":"int",}', '"\\xff"',
)  # fmt: skip

IN_JSON_SCHEMA = (
    '{"type":"object"}', '{"type":"any"}', '{"type":"integer"}', '{"type":"object","foo":5}', "null",
    '{"type":"array"}', '{"type":"object","required":true}',
    '{"type":"object","id":"urn:x","properties":{"a":{"type":"integer"}}}',
)  # fmt: skip
"""Definitions of JSON alone."""

NEITHER = (
    '{"type":"object","properties":{"a":{"type":"zzz"}}}', '{"type":"object","properties":5}',
    '{"type":["string","null"]}', '{"properties":{}}', '{"type":"object","required":["a"]}',
)  # fmt: skip


def is_valid(type_: str, definition: str | bytes, **properties: str) -> bool:
    data = definition if isinstance(definition, bytes) else definition.encode()
    pairs = [KeyValue(name.replace("_", ".") + ".schema.type", value) for name, value in properties.items()]
    try:
        validate(SchemaData("n", data, type_, pairs))
    except InvalidSchema:
        return False
    return True


@pytest.mark.parametrize("definition", IN_AVRO)
def test_definitions_in_avro(definition: str) -> None:
    assert is_valid("Avro", definition)
    assert is_valid("Json", definition)
    assert is_valid("Protobuf", definition)


@pytest.mark.parametrize("definition", UNIONS)
def test_a_union_at_the_top_is_no_schema_of_type_avro(definition: str) -> None:
    assert is_valid("Json", definition)
    assert not is_valid("Avro", definition)


@pytest.mark.parametrize("definition", [*NOT_IN_AVRO, *NEITHER])
def test_definitions_that_are_refused(definition: str) -> None:
    assert not is_valid("Avro", definition)
    assert not is_valid("Json", definition)


@pytest.mark.parametrize("definition", IN_JSON_SCHEMA)
def test_definitions_in_json_schema(definition: str) -> None:
    assert is_valid("Json", definition)
    assert not is_valid("Avro", definition)


def test_primitive_types_have_no_definition() -> None:
    for type_ in ("Bool", "Int8", "Int64", "Double", "Date", "Instant", "LocalDateTime", "String"):
        assert is_valid(type_, "")
        assert not is_valid(type_, '"string"')
    assert is_valid("String", "null")  # as the Python client sends it
    assert not is_valid("Int32", "null")
    assert is_valid("None", "x")
    assert not is_valid("AutoConsume", "")


def test_a_native_schema_of_protobuf_has_a_descriptor() -> None:
    for definition in ("", "x", "{}", "[]", native("", "M"), native("!!", "M"), native("//8=", "M")):
        assert not is_valid("ProtobufNative", definition)


@pytest.mark.parametrize(
    ("package", "root", "valid"),
    [
        ("", "M", True), ("", ".M", True), ("", "p.M", False), ("", "M.N", False), ("", "", False),
        ("p", "M", True), ("p", "p.M", True), ("p", ".M", True), ("p", "p.q.M", False), ("p", "p.M.N", True),
        ("p", "M.N", False), ("p", "p.M.O", False), ("p", "p.X", False),
        ("p.q", "p.q.M", True), ("p.q", "p.q.M.N", True), ("p.q", "p.M", False),
    ],
)  # fmt: skip
def test_a_native_schema_of_protobuf_has_its_root_message(package: str, root: str, valid: bool) -> None:
    """As a 4.0.7 took them."""
    assert is_valid("ProtobufNative", native(descriptors(package), root)) is valid


def test_a_native_schema_of_protobuf_has_all_files() -> None:
    for name, valid in (("a.proto", True), ("b.proto", False), (None, False)):
        assert is_valid("ProtobufNative", native(descriptors("p"), "p.M", name)) is valid
    assert not is_valid("ProtobufNative", native(descriptors("p"), None))
    assert not is_valid("ProtobufNative", native(descriptors("p", imports=["missing.proto"]), "p.M"))
    whole = base64.b64decode(descriptors("p"))
    number = b"\x10\x05"  # what else a later version may have in it
    assert is_valid("ProtobufNative", native(base64.b64encode(number + whole).decode(), "p.M"))
    assert not any(
        is_valid("ProtobufNative", native(base64.b64encode(whole[:end]).decode(), "p.M"))
        for end in range(len(whole))
    )


def native(descriptor_set: str, root: str | None, file: str | None = "a.proto") -> str:
    names = {"rootMessageTypeName": root, "rootFileDescriptorName": file}
    return json.dumps({"fileDescriptorSet": descriptor_set, **names})


def descriptors(package: str, imports: Sequence[str] = ()) -> str:
    """A file with a message M, in which there is a message N."""
    file = FileDescriptorProto(name="a.proto", package=package, syntax="proto3", dependency=imports)
    message = file.message_type.add(name="M")
    message.field.add(name="x", number=1, type=FieldDescriptorProto.TYPE_DOUBLE)
    message.nested_type.add(name="N")
    return base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()


def pair(key: bytes, value: bytes) -> bytes:
    return b"".join(len(half).to_bytes(4, "big") + half for half in (key, value))


def test_keys_and_values_are_schemas_of_their_own() -> None:
    types = {"key": "AVRO", "value": "STRING"}
    assert is_valid("KeyValue", pair(b"", b""))
    assert is_valid("KeyValue", pair(b'{"type":"int"}', b""), **types)
    assert not is_valid("KeyValue", pair(b"xx", b""), **types)
    assert not is_valid("KeyValue", pair(b'{"type":"int"}', b'"x"'), **types)
    assert is_valid("KeyValue", pair(b'{"type":"int"}', b'{"type":"nope"}'))
    assert not is_valid("KeyValue", pair(b"", b"")[:-1])


BAD = SchemaData("n", b"not json", "Avro")
REASON = "Invalid schema definition data for AVRO schema"


def call(run: Run, rest: str, type_: str, definition: str) -> tuple[int, Any]:
    body: Any = {"type": type_, "schema": definition}
    found = run.do(Admin(method="POST", path=f"/schemas/public/default/t{rest}", body=body), TOPIC)
    fields = one(found, AdminResponse).fields
    return fields.status, fields.response


def test_operators_are_told() -> None:
    """4.0.7: 422 for a new one, 500 for the check of compatibility, and −1 for the version."""
    run = Run()
    assert call(run, "/schema", "AVRO", "no") == (422, {"reason": REASON})
    assert call(run, "/compatibility", "AVRO", "no") == (500, {"reason": REASON})
    assert call(run, "/version", "AVRO", "no") == (200, {"version": -1})
    assert call(run, "/schema", "AUTO_CONSUME", "") == (
        422, {"reason": "Schema AUTO_CONSUME is a client-side schema type"},
    )  # fmt: skip


def test_producers_are_refused() -> None:
    """4.0.7: IncompatibleSchema, to PRODUCER and GET_OR_CREATE_SCHEMA."""
    run = Run()
    refused = one(run.create_producer(schema=BAD), Error)
    assert refused.error == "IncompatibleSchema"
    assert str(refused.cause).startswith(f"{REASON} caused by ")
    run.create_producer("p2", 2)
    found = one(
        run.do(GetOrCreateSchema(connection="c", request_id=1, schema=BAD)), GetOrCreateSchemaResponse
    )
    assert (found.error, found.fields.schema_version) == ("IncompatibleSchema", UNSET)
    auto = one(run.create_producer("p3", 3, schema=SchemaData(type="AutoConsume")), Error)
    assert auto[-2:] == ("IncompatibleSchema", "Schema AUTO_CONSUME is a client-side schema type")


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_consumer_is_attached_without_its_schema(domain: str) -> None:
    """4.0.7: the first consumer is, and the topic has no schema then. Another with a schema is refused, since there is a consumer
    without one. One with AUTO_CONSUME is in nobody's way."""
    topic, run = f"{domain}://public/default/t", Run()
    assert one(run.subscribe("s", topic=topic, schema=BAD), Success)
    assert (
        one(run.do(GetSchema(connection="c", request_id=1), topic), GetSchemaResponse).error
        == "TopicNotFound"
    )
    text = SchemaData("n", b"", "String")
    assert one(run.subscribe("t", id_=2, topic=topic, schema=text), Error)[-2:] == (
        "IncompatibleSchema",
        "Failed to add schema to an active topic with empty(BYTES) schema: new schema type STRING",
    )
    other = f"{topic}2"
    assert one(run.subscribe("s", id_=3, topic=other, schema=SchemaData(type="AutoConsume")), Success)
    assert one(run.subscribe("t", id_=4, topic=other, schema=text), Success)
    assert one(run.subscribe("u", id_=5, topic=other, schema=text), Success)
    assert one(run.subscribe("v", id_=6, topic=other, schema=BAD), Error).error == "IncompatibleSchema"


def test_a_schema_needs_a_topic() -> None:
    """4.0.7: GET_OR_CREATE_SCHEMA of a topic that is not there, also of a partitioned one as a whole, is TopicNotFound. A
    partition that nobody has used yet is there."""
    run, text = Run(), SchemaData("n", b"", "String")
    run.do(Admin(method="PUT", path="/persistent/public/default/parts/partitions", body=2), None)
    whole = "persistent://public/default/parts"

    def ask(topic: str) -> tuple[str | None, str | None]:
        asked = GetOrCreateSchema(connection="c", request_id=1, schema=text)
        found = one(run.do(asked, topic), GetOrCreateSchemaResponse)
        return found.error, found.cause

    for topic in (TOPIC, whole):
        assert ask(topic) == ("TopicNotFound", f"Topic not found {topic}")
    assert ask(f"{whole}-partition-1") == (None, None)
    shown = one(run.do(GetSchema(connection="c", request_id=2), f"{whole}-partition-0"), GetSchemaResponse)
    assert shown.fields.schema.name == "public/default/parts"
