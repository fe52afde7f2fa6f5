"""What clients ask before they use a topic: its partitions, its broker, its schema (protocol.md §4, §7)."""

import re
from typing import NamedTuple

from schemas import commands as c
from schemas.effect_fields import (
    GetOrCreateSchemaResponseFields,
    GetSchemaResponseFields,
    LookupResponseFields,
    PartitionedMetadataResponseFields,
)
from schemas.effects import (
    GetOrCreateSchemaResponse,
    GetSchemaResponse,
    LookupResponse,
    PartitionedMetadataResponse,
)
from streaming.broker import schema_registry
from streaming.broker.context import Context, namespace_of
from streaming.broker.policies.hierarchy import Policies

NAMED_ENTITY = r"(?!\.{1,2}(?:/|\Z))[-=:.A-Za-z0-9_]+"
"""A pattern: how tenants and namespaces may be named."""

_NAMESPACE_NAME = re.compile(rf"{NAMED_ENTITY}(?:/{NAMED_ENTITY}){{1,2}}/")
_TOPIC_NAME = re.compile(
    rf"(?:persistent|non-persistent)://{NAMED_ENTITY}/{NAMED_ENTITY}/"
    rf"(?:{NAMED_ENTITY}/(?!\.{{1,2}}\Z)(?=.*\S).+|(?!\.{{1,2}}\Z)[^/]*[^/\s][^/]*)",
    re.DOTALL,
)
_DOMAINS = ("persistent", "non-persistent")
PARTITION = re.compile(r".+-partition-\d+")

LookupCommand = c.PartitionedMetadata | c.Lookup | c.GetSchema | c.GetOrCreateSchema


def is_namespace_name(name: str) -> bool:
    """Whether ``tenant/namespace`` or ``tenant/cluster/namespace`` may be named so, see `is_topic_name`."""
    return _NAMESPACE_NAME.fullmatch(f"{name}/") is not None


def is_topic_name(name: str) -> bool:
    """Whether topics may be named so (TopicName, NamespaceName, NamedEntity).

    Tenant and namespace consist of letters, digits and ``-=:._``; the topic's own name is not blank and has no slash. None
    of the three is ``.`` or ``..``, since they are parts of paths in the metadata store. A name of Pulsar 1 has a cluster
    between tenant and namespace, and the topic's own name may have slashes.
    """
    return _TOPIC_NAME.fullmatch(name) is not None


def why_not_topic_name(name: str) -> str:
    """Why topics may not be named so, as Pulsar says it."""
    domain, found, rest = name.partition("://")
    if not found:
        return f"Invalid short topic name '{name}', it should be in the format of <tenant>/<namespace>/<topic> or <topic>"
    if domain not in _DOMAINS:
        return f"Invalid topic domain: '{domain}'"
    namespace = rest.split("/", 3)[:-1]
    if len(namespace) < 2:
        return f"Invalid topic name: {name}"
    if not all(namespace):
        return f"Invalid namespace format. namespace: {'/'.join(namespace)}"
    for part in namespace:
        if re.fullmatch(NAMED_ENTITY, part) is None:
            return f"Invalid named entity: {part}"
    return f"Invalid topic name: {name}. Topic local name must not be blank."


def answer(ctx: Context, name: str, command: LookupCommand, *, exists: bool, own: Policies) -> None:
    """Answer a lookup command. `exists`: the broker has the topic. `own`: the policies that it sets."""
    match command:
        case c.PartitionedMetadata():
            _partitioned_metadata(ctx, name, command, exists=exists)
        case c.Lookup() if command.advertised_listener_name:
            cause = f"the broker do not have {command.advertised_listener_name} listener"
            refuse(ctx, name, command, "ServiceNotReady", cause)
        case c.Lookup():
            fields = LookupResponseFields(
                response="Connect", authoritative=True, proxy_through_service_url=True
            )
            ctx.emit(LookupResponse(name, command.connection, command.request_id, fields))
        case c.GetSchema():
            schema_registry.get_schema(ctx, name, command)
        case _ if exists:
            schema_registry.get_or_create_schema(ctx, name, command, own)
        case _:
            refuse_as_missing(ctx, name, command)


def refuse(ctx: Context, name: str, command: LookupCommand, error: str, cause: str) -> None:
    """Answer a lookup command that fails."""
    connection, request_id = command.connection, command.request_id
    match command:
        case c.PartitionedMetadata():
            failed = PartitionedMetadataResponseFields(response="Failed")
            ctx.emit(PartitionedMetadataResponse(name, connection, request_id, failed, error, cause))
        case c.Lookup():
            ctx.emit(
                LookupResponse(
                    name, connection, request_id, LookupResponseFields(response="Failed"), error, cause
                )
            )
        case c.GetSchema():
            nothing = GetSchemaResponseFields()
            ctx.emit(GetSchemaResponse(name, connection, request_id, nothing, error, cause))
        case _:
            no_version = GetOrCreateSchemaResponseFields()
            ctx.emit(GetOrCreateSchemaResponse(name, connection, request_id, no_version, error, cause))


def refuse_as_missing(ctx: Context, name: str, command: LookupCommand) -> None:
    """Answer a lookup command on a topic whose namespace does not exist, or which itself has to."""
    match command:
        case c.GetSchema():
            cause = f"Topic not found or no-schema {name}"
        case c.GetOrCreateSchema():
            cause = f"Topic not found {name}"
        case _:
            cause = "Namespace not found"
    refuse(ctx, name, command, "TopicNotFound", cause)


def is_beyond(ctx: Context, name: str) -> bool:
    """Whether this is a partition that its partitioned topic does not have."""
    whole, _, index = name.rpartition("-partition-")
    count = ctx.partitioned.get(whole)
    return count is not None and PARTITION.fullmatch(name) is not None and int(index) >= count


def _partitioned_metadata(ctx: Context, name: str, command: c.PartitionedMetadata, *, exists: bool) -> None:
    creatable = (
        command.metadata_auto_creation_enabled
        and auto_topic_creation(ctx, name).allowed
        and not is_beyond(ctx, name)
    )
    partitions = ctx.partitioned.get(name, 0)
    if creatable and not (exists or partitions):
        partitions = create_by_use(ctx, name)
    if not (exists or partitions or creatable):
        refuse(ctx, name, command, "TopicNotFound", f"Topic {name} does not exist")
        return
    fields = PartitionedMetadataResponseFields(response="Success", partitions=partitions)
    ctx.emit(PartitionedMetadataResponse(name, command.connection, command.request_id, fields))


class AutoTopicCreation(NamedTuple):
    """Whether use creates a topic, and with how many partitions; 0: it is not partitioned."""

    allowed: bool
    partitions: int


def auto_topic_creation(ctx: Context, name: str) -> AutoTopicCreation:
    """What use of a topic that does not exist creates: as its namespace says, or else the broker."""
    config, policies = ctx.config, ctx.namespaces.get(namespace_of(name))
    override = None if policies is None else policies.autoTopicCreation
    if override is None:
        partitions = config.defaultNumPartitions if config.allowAutoTopicCreationType == "partitioned" else 0
        return AutoTopicCreation(config.allowAutoTopicCreation, partitions)
    partitions = (override.defaultNumPartitions or 0) if override.topicType == "partitioned" else 0
    return AutoTopicCreation(bool(override.allowAutoTopicCreation), partitions)


def create_by_use(ctx: Context, name: str) -> int:
    """Create a partitioned topic if use of a topic that does not exist does. The number of its partitions; 0: it does not.

    Other ingress partitions do not learn of it: with several, let operators create partitioned topics.
    """
    allowed, partitions = auto_topic_creation(ctx, name)
    if not allowed or not partitions or PARTITION.fullmatch(name):
        return 0
    ctx.partitioned[name] = partitions
    return partitions


def partition_index(name: str) -> int:
    """K of ``…-partition-K``, −1 for other topics."""
    return int(name.rpartition("-")[2]) if PARTITION.fullmatch(name) else -1


def partitions_of(name: str, count: int) -> list[str]:
    """The full names of a partitioned topic's partitions."""
    return [f"{name}-partition-{index}" for index in range(count)]
