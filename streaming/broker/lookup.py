"""What clients ask before they use a topic: its partitions, its broker, its schema (protocol.md §4, §7).

Schemas are numbered and kept, not checked: every new one is taken.
"""

import base64
import re

from msgspec import UNSET

from schemas import commands as c
from schemas.effect_fields import (
    AdminResponseFields,
    GetOrCreateSchemaResponseFields,
    GetSchemaResponseFields,
    LookupResponseFields,
    PartitionedMetadataResponseFields,
    SchemaFields,
)
from schemas.effects import (
    AdminResponse,
    GetOrCreateSchemaResponse,
    GetSchemaResponse,
    LookupResponse,
    PartitionedMetadataResponse,
    Unsupported,
)
from streaming.broker.context import Context

TOPIC_NAME = re.compile(r"(persistent|non-persistent)://[^/]+/[^/]+/[^/]+")
PARTITION = re.compile(r".+-partition-\d+")

LookupCommand = c.PartitionedMetadata | c.Lookup | c.GetSchema | c.GetOrCreateSchema


def fold(ctx: Context, name: str, command: LookupCommand, *, exists: bool) -> None:
    """Answer; `exists`: the topic was used before."""
    match command:
        case c.PartitionedMetadata():
            _partitioned_metadata(ctx, name, command, exists=exists)
        case c.Lookup():
            fields = LookupResponseFields(
                response="Connect", authoritative=True, proxy_through_service_url=True
            )
            ctx.emit(LookupResponse(name, command.connection, command.request_id, fields))
        case c.GetSchema():
            _get_schema(ctx, name, command)
        case _:
            version = GetOrCreateSchemaResponseFields(
                schema_version=version_text(register(ctx, name, command.schema))
            )
            ctx.emit(GetOrCreateSchemaResponse(name, command.connection, command.request_id, version))


def _partitioned_metadata(ctx: Context, name: str, command: c.PartitionedMetadata, *, exists: bool) -> None:
    partitions = ctx.partitioned.get(name, 0)
    creatable = command.metadata_auto_creation_enabled and ctx.config.allowAutoTopicCreation
    fields = PartitionedMetadataResponseFields(response="Failed")
    error = cause = None
    if not TOPIC_NAME.fullmatch(name):
        error, cause = "InvalidTopicName", f"{name!r} is no topic name"
    elif exists or partitions or creatable or PARTITION.fullmatch(name):
        fields = PartitionedMetadataResponseFields(response="Success", partitions=partitions)
    else:
        error, cause = "TopicNotFound", f"Topic {name} does not exist"
    ctx.emit(PartitionedMetadataResponse(name, command.connection, command.request_id, fields, error, cause))


def set_partitions(ctx: Context, name: str, command: c.Admin) -> None:
    """``PUT …/partitions``: make a partitioned topic; ``POST``: give it more partitions."""
    body = command.body
    count = body if isinstance(body, int) and not isinstance(body, bool) else 0
    now = ctx.partitioned.get(name)
    status, reason = 204, None
    if command.method == "DELETE":
        status, reason = 404, f"admin call {command.method} {command.path} is not supported"
        ctx.emit(Unsupported(name, command.connection, reason))
    elif not 0 < count <= 2**31:
        status, reason = 406, "Number of partitions should be greater than 0"
    elif command.method == "PUT" and now is not None:
        status, reason = 409, "This topic already exists"
    elif command.method == "POST" and (now is None or count < now):
        status, reason = (
            (404, "Topic not found") if now is None else (409, "Number of partitions can't go down")
        )
    else:
        ctx.partitioned[name] = count
    fields = AdminResponseFields(status=status, response=UNSET if reason is None else {"reason": reason})
    ctx.emit(AdminResponse(name, command.connection, f"{command.method} {command.path}", fields))


# -- schemas ------------------------------------------------------------------------------------------------------


def register(ctx: Context, name: str, schema: c.SchemaData | None) -> int | None:
    """The version (0, 1, …) of a schema, a new one if it wasn't known; None for no schema (plain bytes)."""
    if schema is None or schema.type == "None":
        return None
    versions = ctx.schemas.setdefault(name, [])
    if schema not in versions:
        versions.append(schema)
    return versions.index(schema)


def version_text(version: int | None) -> str:
    """A schema version on the wire, in base64: 8 bytes, big-endian; empty for none."""
    return "" if version is None else base64.b64encode(version.to_bytes(8, "big")).decode()


def _get_schema(ctx: Context, name: str, command: c.GetSchema) -> None:
    versions = ctx.schemas.get(name, [])
    wanted = int.from_bytes(command.schema_version, "big") if command.schema_version else len(versions) - 1
    if not 0 <= wanted < len(versions):
        error, cause = "TopicNotFound", "Topic not found or no-schema"
        nothing = GetSchemaResponseFields()
        ctx.emit(GetSchemaResponse(name, command.connection, command.request_id, nothing, error, cause))
        return
    found = versions[wanted]
    properties = [(pair.key, pair.value) for pair in found.properties]
    schema = SchemaFields(
        name=found.name, schema_data=found.schema_data, type=found.type, properties=properties
    )
    fields = GetSchemaResponseFields(schema=schema, schema_version=version_text(wanted))
    ctx.emit(GetSchemaResponse(name, command.connection, command.request_id, fields))
