"""The schemas of topics, numbered from 0 and kept (protocol.md §7). Compatibility is not checked: every new schema is
accepted.
"""

import base64

from schemas import commands as c
from schemas.effect_fields import GetOrCreateSchemaResponseFields, GetSchemaResponseFields, SchemaFields
from schemas.effects import GetOrCreateSchemaResponse, GetSchemaResponse
from streaming.broker.context import Context


def register(ctx: Context, topic: str, schema: c.SchemaData | None) -> int | None:
    """The version (0, 1, …) of a schema, a new one if the topic does not have it; None for no schema (plain bytes)."""
    if schema is None or schema.type == "None":
        return None
    versions = ctx.schemas.setdefault(topic, [])
    if schema not in versions:
        versions.append(schema)
    return versions.index(schema)


def version_text(version: int | None) -> str:
    """A schema version on the wire, in base64: 8 bytes, big-endian; empty for none."""
    return "" if version is None else base64.b64encode(version.to_bytes(8, "big")).decode()


def get_or_create_schema(ctx: Context, topic: str, command: c.GetOrCreateSchema) -> None:
    """GET_OR_CREATE_SCHEMA: register the schema and answer its version."""
    fields = GetOrCreateSchemaResponseFields(
        schema_version=version_text(register(ctx, topic, command.schema))
    )
    ctx.emit(GetOrCreateSchemaResponse(topic, command.connection, command.request_id, fields))


def get_schema(ctx: Context, topic: str, command: c.GetSchema) -> None:
    """GET_SCHEMA: the version that the client names, or the latest one."""
    versions = ctx.schemas.get(topic, [])
    wanted = int.from_bytes(command.schema_version, "big") if command.schema_version else len(versions) - 1
    if not 0 <= wanted < len(versions):
        error, cause = "TopicNotFound", "Topic not found or no-schema"
        nothing = GetSchemaResponseFields()
        ctx.emit(GetSchemaResponse(topic, command.connection, command.request_id, nothing, error, cause))
        return
    found = versions[wanted]
    properties = [(pair.key, pair.value) for pair in found.properties]
    schema = SchemaFields(
        name=found.name, schema_data=found.schema_data, type=found.type, properties=properties
    )
    fields = GetSchemaResponseFields(schema=schema, schema_version=version_text(wanted))
    size = len(found.schema_data) + sum(len(key) + len(value) for key, value in properties)
    ctx.emit_large(GetSchemaResponse(topic, command.connection, command.request_id, fields), size)
