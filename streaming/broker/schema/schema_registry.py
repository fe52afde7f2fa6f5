"""The schemas of topics, numbered from 0 and kept (docs/rules/protocol.md §20; mirrors `SchemaRegistryServiceImpl`,
`SchemasResource`).

`schema_compatibility` says which schemas may follow which. The partitions of a topic share its schemas; those in other ingress
partitions number theirs on their own.
"""

import base64
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from schemas import commands as c
from schemas.commands import Admin, KeyValue, SchemaData
from schemas.commands.nesting import is_deep
from schemas.effect_fields import GetOrCreateSchemaResponseFields, GetSchemaResponseFields, SchemaFields
from schemas.effects import GetOrCreateSchemaResponse, GetSchemaResponse
from streaming.broker.admin_requests import answer_from
from streaming.broker.admin_table import SCHEMAS, AdminAnswer, Call, Names, Table
from streaming.broker.config import SchemaCompatibilityStrategy
from streaming.broker.context import Context
from streaming.broker.errors import AdminError, BrokerError
from streaming.broker.names import base_of
from streaming.broker.parameters import LONG, flag, read_number
from streaming.broker.policies.arguments import convert
from streaming.broker.policies.hierarchy import HasPolicies, Policies
from streaming.broker.schema.schema_compatibility import for_consumers, halves, incompatibility
from streaming.broker.schema.schema_definition import InvalidSchema, validate
from streaming.broker.schema.schema_equality import essence
from streaming.broker.schema.schema_types import TYPES, type_name
from streaming.broker.subscription.consumer import Consumer

DELETED = SchemaData()
"""A version by which all versions before it were deleted."""

_DEFINED_IN_JSON = ("Json", "Avro", "Protobuf")
_REMEMBERED = 1 << 14
"""Definitions of more bytes are parsed each time that they are compared, so that what is remembered stays small."""


def name_of(topic: str) -> str:
    """The topic whose schemas these are: for a partition, its partitioned topic."""
    return base_of(topic)


class SchemaPolicies(NamedTuple):
    """What a topic's policies say of its schemas: the strategy, whether producers may add one, and whether they need one."""

    strategy: SchemaCompatibilityStrategy
    updates: bool
    required: bool


def policies_of(ctx: Context, topic: HasPolicies) -> SchemaPolicies:
    """The policies of a topic."""
    found = ctx.policies_of(topic)
    return SchemaPolicies(
        found.schemaCompatibilityStrategy, found.isAllowAutoUpdateSchema, found.schemaValidationEnforced
    )


def register(
    ctx: Context,
    topic: str,
    schema: SchemaData | None,
    policies: SchemaPolicies,
    *,
    by_operator: bool = False,
) -> int | None:
    """The version (0, 1, …) of a schema, a new one if the topic does not have it; None for no schema (plain bytes).

    Raises `InvalidSchema`, and `BrokerError` if the policies refuse the schema. `by_operator`: through the admin API, which may
    always add one.
    """
    known = _known(ctx, topic)
    if schema is None:
        if known and policies.required:
            raise BrokerError(
                "IncompatibleSchema",
                "Producers cannot connect or send message without a schema to topics with a schemawhen SchemaValidationEnforced is enabled",
            )
        return None
    validate(schema)
    if (version := _version_of(ctx, topic, schema)) is not None:
        return version
    if not policies.updates and not by_operator:
        raise BrokerError("IncompatibleSchema", "Schema not found and schema auto updating is disabled.")
    _check(known, schema, policies.strategy)
    return _append(ctx, topic, schema)


def register_for_client(
    ctx: Context, topic: str, schema: SchemaData | None, policies: SchemaPolicies
) -> int | None:
    """As `register`, for a client: raises `BrokerError` alone."""
    try:
        return register(ctx, topic, schema, policies)
    except InvalidSchema as error:
        raise BrokerError("IncompatibleSchema", str(error)) from None


def check_consumer(
    ctx: Context,
    topic: str,
    schema: SchemaData | None,
    policies: SchemaPolicies,
    *,
    idle: bool,
    consumers: Iterable[Consumer],
) -> None:
    """A consumer's schema becomes that of an `idle` topic (without producers and messages) that has none, if its other
    `consumers` read any schema. Raises `BrokerError` if another topic has none, or if the consumer can't read what the topic's latest
    schema writes; with a transitive strategy, any of its schemas.
    """
    if schema is None or schema.type == "AutoConsume":
        return
    known = _known(ctx, topic)
    if known:
        try:
            validate(schema)
        except InvalidSchema as error:
            raise BrokerError("IncompatibleSchema", str(error)) from None
        _check(known, schema, for_consumers(policies.strategy))
        return
    if not idle or not all(consumer.reads_any_schema for consumer in consumers):
        cause = f"Failed to add schema to an active topic with empty(BYTES) schema: new schema type {type_name(schema)}"
        raise BrokerError("IncompatibleSchema", cause)
    try:
        register(ctx, topic, schema, policies)
    except InvalidSchema:
        return  # quirk: the consumer is attached, and the topic has no schema


def reads_any_schema(schema: SchemaData | None) -> bool:
    """Whether a consumer takes whatever schema the topic has."""
    return schema is not None and schema.type == "AutoConsume"


def _check(known: dict[int, SchemaData], schema: SchemaData, strategy: SchemaCompatibilityStrategy) -> None:
    """Raises `BrokerError` if a schema is not compatible with the known ones."""
    if (reason := incompatibility([*known.values()], schema, strategy)) is not None:
        raise BrokerError("IncompatibleSchema", reason)


def _append(ctx: Context, topic: str, schema: SchemaData) -> int:
    name = name_of(topic)
    versions = ctx.schemas.setdefault(name, [])
    times = ctx.schema_times.setdefault(name, [0] * len(versions))
    if schema.type == "None" and schema is not DELETED and not schema.name:
        schema = msgspec.structs.replace(schema, name="NONE")  # not to be taken for a deletion
    versions.append(schema)
    times.append(ctx.clock)
    return len(versions) - 1


def _known(ctx: Context, topic: str) -> dict[int, SchemaData]:
    """The versions of a topic's schemas that are not deleted."""
    versions = list(enumerate(ctx.schemas.get(name_of(topic), [])))
    last = max((number for number, schema in versions if schema == DELETED), default=-1)
    return dict(versions[last + 1 :])


def _version_of(ctx: Context, topic: str, schema: SchemaData) -> int | None:
    """The version with the type and the definition of a schema, as `_content` compares them."""
    wanted = _content.__wrapped__(schema.type, schema.schema_data)
    for number, found in _known(ctx, topic).items():
        if found.type == schema.type:
            large = len(found.schema_data) > _REMEMBERED
            definition = _content.__wrapped__ if large else _content
            if definition(found.type, found.schema_data) == wanted:
                return number
    return None


@lru_cache(maxsize=1024)
def _content(type_: str, data: bytes) -> Any:
    """What makes two schemas of a type one: the essence of a definition in Avro; the text of any other."""
    return essence(_from_json(data)) if type_ in _DEFINED_IN_JSON else data


def forget(ctx: Context, topic: str) -> None:
    """The topic is deleted."""
    ctx.schemas.pop(topic, None)
    ctx.schema_times.pop(topic, None)


# -- the binary protocol --------------------------------------------------------------------------------------------


def version_text(version: int | None) -> str:
    """A schema version on the wire, in base64: 8 bytes, big-endian; empty for none."""
    return "" if version is None else base64.b64encode(version.to_bytes(8, "big")).decode()


def get_or_create_schema(ctx: Context, topic: str, command: c.GetOrCreateSchema, own: Policies) -> None:
    """`own`: the policies that the topic sets. GET_OR_CREATE_SCHEMA: register the schema and answer its version."""
    connection, request_id = command.connection, command.request_id
    try:
        # quirk: plain bytes are a schema for PRODUCER and SUBSCRIBE, and none here
        schema = None if command.schema.type == "None" else command.schema
        version = register_for_client(ctx, topic, schema, _policies(ctx, topic, own))
    except BrokerError as error:
        nothing = GetOrCreateSchemaResponseFields()
        ctx.emit(GetOrCreateSchemaResponse(topic, connection, request_id, nothing, error.code, error.cause))
        return
    fields = GetOrCreateSchemaResponseFields(schema_version=version_text(version))
    ctx.emit(GetOrCreateSchemaResponse(topic, connection, request_id, fields))


def _policies(ctx: Context, topic: str, own: Policies) -> SchemaPolicies:
    """The policies of a topic that may not exist."""
    return policies_of(ctx, _Named(name_of(topic), own))


class _Named(msgspec.Struct):
    """A topic by its name, for `Context.policies_of`."""

    name: str
    policies: Policies


def get_schema(ctx: Context, topic: str, command: c.GetSchema) -> None:
    """GET_SCHEMA: the version that the client names, or the latest one."""
    known = _known(ctx, topic)
    version = (
        int.from_bytes(command.schema_version, "big") if command.schema_version else max(known, default=-1)
    )
    if version not in known:
        error, cause = "TopicNotFound", f"Topic not found or no-schema {topic}"
        nothing = GetSchemaResponseFields()
        ctx.emit(GetSchemaResponse(topic, command.connection, command.request_id, nothing, error, cause))
        return
    found = known[version]
    properties = [(pair.key, pair.value) for pair in found.properties]
    schema = SchemaFields(
        name=name_of(topic).partition("://")[2],
        schema_data=found.schema_data,
        type=found.type,
        properties=properties,
    )
    fields = GetSchemaResponseFields(schema=schema, schema_version=version_text(version))
    size = len(found.schema_data) + sum(len(key) + len(value) for key, value in properties)
    ctx.emit_large(GetSchemaResponse(topic, command.connection, command.request_id, fields), size)


# -- the admin API --------------------------------------------------------------------------------------------------


class SchemaPayload(msgspec.Struct):
    """A schema in the body of a call."""

    type: str
    schema: str = ""
    properties: dict[str, str] | None = None


def call_schemas(ctx: Context, topic: str, command: Admin, own: Policies) -> None:
    """Answer a call on a topic's schemas. `own`: the policies that the topic sets."""
    answer_from(ctx, topic, command, CALLS, lambda handler, names: handler(ctx, topic, command, names, own))


def _get(ctx: Context, topic: str, command: Admin, names: Names, own: Policies) -> AdminAnswer:
    """The latest schema."""
    known = _known(ctx, topic)
    return _shown_or_missing(ctx, topic, known, max(known, default=-1))


def _get_version(ctx: Context, topic: str, command: Admin, names: Names, own: Policies) -> AdminAnswer:
    """The schema of a version."""
    try:
        version = read_number(names["version"], LONG)
    except AdminError as error:
        raise AdminError(
            500, error.reason
        ) from None  # quirk: a text for JAX-RS, in which Pulsar then expects a number
    return _shown_or_missing(ctx, topic, _known(ctx, topic), version)


def _get_all(ctx: Context, topic: str, command: Admin, names: Names, own: Policies) -> AdminAnswer:
    """All schemas."""
    known = _known(ctx, topic)
    return 200, {"getSchemaResponses": [_shown(ctx, topic, known, version) for version in known]}


def _post(ctx: Context, topic: str, command: Admin, names: Names, own: Policies) -> AdminAnswer:
    """Add a schema, if the topic does not have it. The answer is its version."""
    try:
        version = register(ctx, topic, _read(command), _policies(ctx, topic, own), by_operator=True)
    except InvalidSchema as error:
        raise AdminError(422, error.reason) from None
    except BrokerError as error:
        raise AdminError(409, error.cause) from None
    return 200, {"version": {"version": version}}


def _delete(ctx: Context, topic: str, command: Admin, names: Names, own: Policies) -> AdminAnswer:
    """Delete the schemas. Version numbers are not used again, unless with `?force=true`."""
    if flag(command.path, "force"):
        latest = len(ctx.schemas.get(name_of(topic), [])) - 1
        forget(ctx, name_of(topic))
        return 200, {"version": latest}
    return 200, {"version": _append(ctx, topic, DELETED)}


def _compatibility(ctx: Context, topic: str, command: Admin, names: Names, own: Policies) -> AdminAnswer:
    """Whether the schema in the body may be added."""
    schema, strategy = _read(command), _policies(ctx, topic, own).strategy
    try:
        validate(schema)
    except InvalidSchema as error:
        raise AdminError(500, error.reason) from None
    reason = incompatibility([*_known(ctx, topic).values()], schema, strategy)
    if reason is not None:
        raise AdminError(500, reason)  # quirk: `compatibility` is never false
    return 202, {"schemaCompatibilityStrategy": strategy, "compatibility": True}


def _metadata(ctx: Context, topic: str, command: Admin, names: Names, own: Policies) -> AdminAnswer:
    """Where the schemas are stored: in the state."""
    entries = [{"ledgerId": -1, "entryId": -1, "version": version} for version in _known(ctx, topic)]
    return 200, {"info": entries[-1], "index": entries} if entries else None


def _find_version(ctx: Context, topic: str, command: Admin, names: Names, own: Policies) -> AdminAnswer:
    """The version of the schema in the body; −1 if the topic does not have it. Unlike elsewhere, it must be the same text."""
    wanted = _read(command)
    same = (
        version
        for version, found in _known(ctx, topic).items()
        if (found.type, found.schema_data) == (wanted.type, wanted.schema_data)
    )
    return 200, {"version": next(same, -1)}


def _shown_or_missing(ctx: Context, topic: str, known: dict[int, SchemaData], version: int) -> AdminAnswer:
    if version not in known:
        raise AdminError(404, "Schema not found")
    return 200, _shown(ctx, topic, known, version)


def _shown(ctx: Context, topic: str, known: dict[int, SchemaData], version: int) -> dict[str, Any]:
    schema = known[version]
    times = ctx.schema_times.get(name_of(topic), [])
    return {
        "version": version,
        "type": type_name(schema),
        "timestamp": times[version] if version < len(times) else 0,
        "data": _definition(schema),
        "properties": {pair.key: pair.value for pair in schema.properties},
    }


def _definition(schema: SchemaData) -> str:
    """A schema's definition as text. That of keys and values is JSON with both."""
    if schema.type != "KeyValue":
        return schema.schema_data.decode("utf-8", "replace")
    key, value = halves(schema.schema_data)
    return msgspec.json.encode({"key": _from_json(key), "value": _from_json(value)}).decode()


def _from_json(data: bytes) -> Any:
    """The value of a JSON text; the text if it is not JSON, or too deep."""
    try:
        return data.decode("utf-8", "replace") if is_deep(data) else msgspec.json.decode(data)
    except ValueError:
        return data.decode("utf-8", "replace")


def _read(command: Admin) -> SchemaData:
    """The schema in the body of a call. Raises `AdminError`."""
    payload: SchemaPayload = convert(command.body, SchemaPayload)
    type_ = TYPES.get(payload.type)
    if type_ is None:
        raise AdminError(400, f"unknown schema type {payload.type}: use one of {', '.join(TYPES)}")
    data = payload.schema.encode()
    if type_ == "KeyValue":
        data = _joined(_from_json(data))
    properties = [KeyValue(key, value) for key, value in (payload.properties or {}).items()]
    return SchemaData(schema_data=data, type=type_, properties=properties)


def _joined(definition: Any) -> bytes:
    if not isinstance(definition, dict) or not {"key", "value"} <= definition.keys():
        raise AdminError(422, "Invalid schema definition data for KEY_VALUE schema: expected key and value")
    halves = [
        half.encode() if isinstance(half, str) else msgspec.json.encode(half)
        for half in (definition["key"], definition["value"])
    ]
    return b"".join(len(half).to_bytes(4, "big") + half for half in halves)


CALLS: Table[Callable[[Context, str, Admin, Names, Policies], AdminAnswer]] = Table(
    SCHEMAS,
    (
        Call("GET", "/schema", _get),
        Call("GET", "/schema/{version}", _get_version),
        Call("GET", "/schemas", _get_all),
        Call("POST", "/schema", _post),
        Call("DELETE", "/schema", _delete),
        Call("POST", "/compatibility", _compatibility),
        Call("POST", "/version", _find_version),
        Call("GET", "/metadata", _metadata),
    ),
)
"""The calls on the schemas of a topic."""
