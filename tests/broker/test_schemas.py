"""Schemas of topics: stored, numbered and returned; every new one is compatible (I6). The answers are those of Pulsar 4.0.7."""

from typing import Any

import pytest
from msgspec import UNSET

from schemas.commands import Admin, GetOrCreateSchema, GetSchema, KeyValue, SchemaData
from schemas.effects import (
    AdminResponse,
    Error,
    GetOrCreateSchemaResponse,
    GetSchemaResponse,
    ProducerSuccess,
    Success,
    Unsupported,
)
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from tests.broker.kit import START, TOPIC, Run, of, one

pytestmark = pytest.mark.feature("I6")

PATH = "/schemas/public/default/t"
JSON = {"type": "JSON", "schema": '{"type":"record","name":"A","fields":[]}', "properties": {"a": "b"}}
OTHER = {**JSON, "schema": '{"type":"record","name":"B","fields":[]}'}


def call(run: Run, method: str, rest: str, body: Any = None, topic: str = TOPIC) -> tuple[int, Any]:
    path = "/schemas/" + topic.partition("://")[2] + rest
    fields = one(run.do(Admin(method=method, path=path, body=body), topic), AdminResponse).fields  # type: ignore[arg-type]
    return fields.status, fields.response


def data(body: dict[str, Any]) -> SchemaData:
    """The schema as a client sends it."""
    return SchemaData("A", body["schema"].encode(), "Json", [KeyValue("a", "b")])


def version_of(run: Run, schema: SchemaData, topic: str = TOPIC) -> str:
    """What GET_OR_CREATE_SCHEMA answers for a topic, which is created if it is not there."""
    run.do(Admin(method="PUT", path=f"/{topic.replace('://', '/')}"), topic)
    effects = run.do(GetOrCreateSchema(connection="c", request_id=1, schema=schema), topic)
    return one(effects, GetOrCreateSchemaResponse).fields.schema_version  # type: ignore[return-value]


def test_a_schema_is_stored_once_and_shown() -> None:
    run = Run()
    assert call(run, "GET", "/schema") == (404, {"reason": "Schema not found"})
    assert call(run, "POST", "/schema", JSON) == (200, {"version": {"version": 0}})
    assert call(run, "POST", "/schema", JSON) == (200, {"version": {"version": 0}})
    run.now += 5
    assert call(run, "POST", "/schema", OTHER) == (200, {"version": {"version": 1}})
    first = {
        "version": 0,
        "type": "JSON",
        "timestamp": START,
        "data": JSON["schema"],
        "properties": {"a": "b"},
    }
    second = first | {"version": 1, "timestamp": START + 5, "data": OTHER["schema"]}
    assert call(run, "GET", "/schema") == (200, second)
    assert call(run, "GET", "/schema/0") == (200, first)
    assert call(run, "GET", "/schema/2") == (404, {"reason": "Schema not found"})
    assert call(run, "GET", "/schemas") == (200, {"getSchemaResponses": [first, second]})
    assert call(run, "POST", "/version", OTHER) == (200, {"version": 1})
    assert call(run, "POST", "/compatibility", OTHER) == (
        202, {"schemaCompatibilityStrategy": "FULL", "compatibility": True},
    )  # fmt: skip


def test_clients_and_operators_see_the_same_schemas() -> None:
    run = Run()
    call(run, "POST", "/schema", OTHER)
    effects = run.create_producer(schema=data(JSON))
    assert one(effects, ProducerSuccess).fields.schema_version == "AAAAAAAAAAE="
    assert version_of(run, data(OTHER)) == "AAAAAAAAAAA="
    found = one(run.do(GetSchema(connection="c", request_id=1), TOPIC), GetSchemaResponse).fields
    assert found.schema is not None
    assert found.schema_version == "AAAAAAAAAAE="
    assert call(run, "GET", "/schema")[1]["data"] == JSON["schema"]


def test_definitions_in_json_are_compared_as_json() -> None:
    run = Run()
    call(run, "POST", "/schema", JSON)
    spaced = JSON | {"schema": '{ "name": "A", "type": "record", "fields": [] }', "properties": {}}
    assert call(run, "POST", "/schema", spaced) == (200, {"version": {"version": 0}})


def test_comments_make_no_new_version() -> None:
    """POST /version asks for the very text."""
    run = Run()
    call(run, "POST", "/schema", JSON)
    commented = JSON | {"schema": '{"type":"record","name":"A","doc":"a comment","fields":[]}'}
    assert call(run, "POST", "/schema", commented) == (200, {"version": {"version": 0}})
    assert call(run, "POST", "/version", commented) == (200, {"version": -1})
    assert call(run, "POST", "/version", JSON) == (200, {"version": 0})


def test_deleted_schemas_do_not_come_back() -> None:
    run = Run()
    call(run, "POST", "/schema", JSON)
    assert call(run, "DELETE", "/schema") == (200, {"version": 1})
    assert call(run, "GET", "/schema")[0] == 404
    assert call(run, "GET", "/schema/0")[0] == 404
    assert call(run, "GET", "/schemas") == (200, {"getSchemaResponses": []})
    assert (
        one(run.do(GetSchema(connection="c", request_id=1), TOPIC), GetSchemaResponse).error
        == "TopicNotFound"
    )
    assert call(run, "DELETE", "/schema") == (200, {"version": 2})
    assert call(run, "POST", "/schema", JSON) == (200, {"version": {"version": 3}})
    assert call(run, "DELETE", "/schema?force=true") == (200, {"version": 3})
    assert call(run, "POST", "/schema", JSON) == (200, {"version": {"version": 0}})


def test_partitions_share_their_topics_schemas() -> None:
    run = Run()
    run.do(Admin(method="PUT", path="/persistent/public/default/t/partitions", body=2), None)
    for index in (0, 1):
        assert version_of(run, data(JSON), f"{TOPIC}-partition-{index}") == "AAAAAAAAAAA="
    assert call(run, "GET", "/schema")[1]["version"] == 0
    run.do(Admin(method="DELETE", path="/persistent/public/default/t/partitions"), None)
    assert call(run, "GET", "/schema")[0] == 404


def test_keys_and_values_have_one_schema() -> None:
    run = Run()
    definition = '{"key":{"type":"record","name":"K","fields":[]},"value":""}'
    assert call(run, "POST", "/schema", {"type": "KEY_VALUE", "schema": definition})[0] == 200
    assert call(run, "GET", "/schema")[1]["data"] == definition
    key = b'{"type":"record","name":"K","fields":[]}'
    sent = len(key).to_bytes(4, "big") + key + bytes(4)
    assert version_of(run, SchemaData("", sent, "KeyValue")) == "AAAAAAAAAAA="


def test_only_whoever_names_no_schema_has_none() -> None:
    run = Run()
    assert one(run.create_producer(), ProducerSuccess)
    assert call(run, "GET", "/schemas") == (200, {"getSchemaResponses": []})
    assert call(run, "POST", "/schema", {"type": "BYTES"}) == (200, {"version": {"version": 0}})
    shown = call(run, "GET", "/schemas")[1]["getSchemaResponses"]
    assert [(each["version"], each["type"]) for each in shown] == [(0, "NONE")]


@pytest.mark.parametrize(
    ("method", "rest", "body", "expected"),
    [
        ("POST", "/schema", {**JSON, "type": "NONSENSE"}, 400),
        ("POST", "/schema", {**JSON, "type": "AVRO", "schema": "no"}, 422),
        ("POST", "/schema", {"type": "KEY_VALUE", "schema": ""}, 422),
        ("POST", "/schema", None, 400),
        ("POST", "/schema", 3, 400),
        ("PUT", "/schema", JSON, 405),
    ],
)
def test_refused_calls(method: str, rest: str, body: Any, expected: int) -> None:
    found, response = call(Run(), method, rest, body)
    assert found == expected
    assert response["reason"]


def test_other_calls_are_unsupported() -> None:
    assert of(Run().do(Admin(method="GET", path=f"{PATH}/nonsense"), TOPIC), Unsupported)


def test_properties_may_be_null() -> None:
    """As the Go client sends them."""
    run = Run()
    assert call(run, "POST", "/schema", {"type": "STRING", "schema": "", "properties": None})[0] == 200
    assert call(run, "GET", "/schema")[1]["properties"] == {}


def test_an_avro_schema_may_be_the_name_of_a_type() -> None:
    assert call(Run(), "POST", "/schema", {"type": "AVRO", "schema": '"string"'})[0] == 200


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_consumers_schema(domain: str) -> None:
    """It becomes that of an idle topic. A topic that has none, but producers, messages or consumers, refuses it."""
    topic = f"{domain}://public/default/t"
    run = Run()
    assert one(run.subscribe("s", topic=topic, schema=data(JSON)), Success)
    assert version_of(run, data(JSON), topic) == "AAAAAAAAAAA="
    assert one(run.subscribe("t", id_=2, topic=topic, schema=data(OTHER)), Success)
    other = f"{topic}2"
    run.create_producer(topic=other)
    assert one(run.subscribe("s", id_=3, topic=other, schema=data(JSON)), Error)[-2:] == (
        "IncompatibleSchema", "Failed to add schema to an active topic with empty(BYTES) schema: new schema type JSON",
    )  # fmt: skip
    assert one(run.subscribe("t", id_=4, topic=other, schema=SchemaData(type="AutoConsume")), Success)


def test_a_deleted_topics_schemas_are_gone() -> None:
    run = Run()
    run.create_producer(schema=data(JSON))
    run.admin("DELETE", "?force=true")
    assert call(run, "GET", "/schema")[0] == 404


def test_schemas_are_state() -> None:
    run = Run()
    call(run, "POST", "/schema", JSON)
    shown = call(run, "GET", "/schema")
    run.broker = Broker.decode(run.broker.encode(), NoEntries())
    assert call(run, "GET", "/schema") == shown


def test_a_definition_that_is_too_deep_is_refused() -> None:
    run = Run()
    deep = "[" * 100_000
    assert call(run, "POST", "/schema", JSON | {"schema": deep})[0] == 422
    assert call(run, "GET", "/schema")[0] == 404


def test_an_incompatible_schema_is_refused_and_not_stored() -> None:
    run = Run(schemaCompatibilityStrategy="ALWAYS_INCOMPATIBLE")
    assert call(run, "POST", "/schema", JSON)[0] == 200
    assert call(run, "POST", "/schema", OTHER) == (
        409, {"reason": "Error during schema compatibility check with strategy ALWAYS_INCOMPATIBLE: unable to read schema"},
    )  # fmt: skip
    assert len(call(run, "GET", "/schemas")[1]["getSchemaResponses"]) == 1


def test_no_consumer_is_compatible_if_nothing_is() -> None:
    """Pulsar compares the schema of a consumer with all of the topic's then, itself among them."""
    run = Run(schemaCompatibilityStrategy="ALWAYS_INCOMPATIBLE")
    assert call(run, "POST", "/schema", JSON)[0] == 200
    assert one(run.subscribe("s", schema=data(JSON)), Error).error == "IncompatibleSchema"
    assert one(run.create_producer(schema=data(JSON)), ProducerSuccess)


def test_an_older_policy_of_the_namespace_decides_where_the_newer_one_is_undefined() -> None:
    run = Run()
    path = "/namespaces/public/default/schemaAutoUpdateCompatibilityStrategy"

    def strategy(older: str) -> str:
        done = one(run.do(Admin(method="PUT", path=path, body=older), None), AdminResponse)
        assert done.fields.status == 204
        return call(run, "POST", "/compatibility", JSON)[1]["schemaCompatibilityStrategy"]  # type: ignore[no-any-return]

    assert strategy("AlwaysCompatible") == "ALWAYS_COMPATIBLE"
    assert (
        one(run.do(Admin(method="GET", path=path), None), AdminResponse).fields.response == "AlwaysCompatible"
    )
    assert strategy("nonsense") == "FULL"
    assert one(run.do(Admin(method="GET", path=path), None), AdminResponse).fields.status == 204
    assert strategy("Backward") == "BACKWARD"
    newer = Admin(method="PUT", path="/namespaces/public/default/schemaCompatibilityStrategy", body="FORWARD")
    run.do(newer, None)
    assert strategy("Backward") == "FORWARD"


def test_where_schemas_are_stored() -> None:
    run = Run()
    assert call(run, "GET", "/metadata") == (200, UNSET)
    for body in (JSON, OTHER):
        assert call(run, "POST", "/schema", body)[0] == 200
    first, second = ({"ledgerId": -1, "entryId": -1, "version": version} for version in (0, 1))
    assert call(run, "GET", "/metadata") == (200, {"info": second, "index": [first, second]})
