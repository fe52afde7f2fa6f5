"""What clients ask before they use a topic: its partitions, its broker, its schema (docs/rules/protocol.md §7, §8, §20)."""

from typing import NamedTuple

from schemas import commands as c
from schemas.effect_fields import (
    GetOrCreateSchemaResponseFields,
    GetSchemaResponseFields,
    LookupResponseFields,
    PartitionedMetadataResponseFields,
)
from schemas.effects import (
    Effect,
    GetOrCreateSchemaResponse,
    GetSchemaResponse,
    LookupResponse,
    PartitionedMetadataResponse,
)
from streaming.broker.config import MOST_PARTITIONS_IN_ALL
from streaming.broker.context import Context, namespace_of
from streaming.broker.errors import BrokerError
from streaming.broker.names import COORDINATOR_ASSIGN, PARTITION, is_partition
from streaming.broker.policies.hierarchy import Policies
from streaming.broker.schema import schema_registry

TOO_MANY_PARTITIONS = f"Partitioned topics may have {MOST_PARTITIONS_IN_ALL} partitions in all"

_DIGITS = (
    100  # more are beyond any number of partitions, and Python reads no text of many thousands as a number
)

LookupCommand = c.PartitionedMetadata | c.Lookup | c.GetSchema | c.GetOrCreateSchema


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
    ctx.emit(refusal(type(command), name, command.connection, command.request_id, error, cause))


def refusal(
    kind: type[LookupCommand], name: str, connection: str, request_id: int, error: str, cause: str
) -> Effect:
    """The answer to a lookup command that fails."""
    if kind is c.PartitionedMetadata:
        failed = PartitionedMetadataResponseFields(response="Failed")
        return PartitionedMetadataResponse(name, connection, request_id, failed, error, cause)
    if kind is c.Lookup:
        fields = LookupResponseFields(response="Failed")
        return LookupResponse(name, connection, request_id, fields, error, cause)
    if kind is c.GetSchema:
        nothing = GetSchemaResponseFields()
        return GetSchemaResponse(name, connection, request_id, nothing, error, cause)
    no_version = GetOrCreateSchemaResponseFields()
    return GetOrCreateSchemaResponse(name, connection, request_id, no_version, error, cause)


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
    found = PARTITION.fullmatch(name)
    if found is None or (count := ctx.partitioned.get(found[1])) is None:
        return False
    index = found[2]
    return len(index) > _DIGITS or int(index) >= count


def partitions_now(ctx: Context, name: str) -> int | None:
    """The number of a topic's partitions; None: it is not partitioned."""
    if name == COORDINATOR_ASSIGN and ctx.config.transactionCoordinatorEnabled:
        return 1  # as a standalone broker has
    return ctx.partitioned.get(name)


def _partitioned_metadata(ctx: Context, name: str, command: c.PartitionedMetadata, *, exists: bool) -> None:
    creatable = (
        command.metadata_auto_creation_enabled
        and auto_topic_creation(ctx, name).allowed
        and not is_beyond(ctx, name)
    )
    partitions = partitions_now(ctx, name) or 0
    if creatable and not (exists or partitions):
        try:
            partitions = create_by_use(ctx, name)
        except BrokerError as error:
            refuse(ctx, name, command, error.code, str(error))
            return
    if not (exists or partitions or creatable) and ctx.config.metadataWithoutAutoCreation:
        refuse(ctx, name, command, "TopicNotFound", f"Topic {name} does not exist")
        return
    fields = PartitionedMetadataResponseFields(response="Success", partitions=partitions)
    ctx.emit(PartitionedMetadataResponse(name, command.connection, command.request_id, fields))


class AutoTopicCreation(NamedTuple):
    """Whether use creates a topic, and with how many partitions; 0: it is not partitioned."""

    allowed: bool
    partitions: int


def auto_topic_creation(ctx: Context, name: str) -> AutoTopicCreation:
    """What use of a topic that does not exist creates: as its namespace says, or else the broker. The partitions of a partitioned topic
    exist, or are created by use anyway (BrokerService.isAllowAutoTopicCreationAsync)."""
    if is_partition(name, ctx.partitioned) and (ctx.config.useRecreatesPartitions or name not in ctx.deleted):
        return AutoTopicCreation(allowed=True, partitions=0)
    config, policies = ctx.config, ctx.namespaces.get(namespace_of(name))
    override = None if policies is None else policies.autoTopicCreation
    if override is None:
        partitions = config.defaultNumPartitions if config.allowAutoTopicCreationType == "partitioned" else 0
        return AutoTopicCreation(config.allowAutoTopicCreation, partitions)
    # A namespace that was created with it may have a number that no later call takes.
    partitions = max(override.defaultNumPartitions or 0, 0) if override.topicType == "partitioned" else 0
    return AutoTopicCreation(bool(override.allowAutoTopicCreation), partitions)


def create_by_use(ctx: Context, name: str) -> int:
    """Create a partitioned topic if use of a topic that does not exist does. The number of its partitions; 0: it does not.

    Other ingress partitions do not learn of it: with several, let operators create partitioned topics. Raises `BrokerError` if there
    are too many partitions.
    """
    allowed, partitions = auto_topic_creation(ctx, name)
    if not allowed or not partitions or PARTITION.fullmatch(name):
        return 0
    if not ctx.has_room_for_partitions(partitions):
        raise BrokerError("NotAllowedError", TOO_MANY_PARTITIONS)
    ctx.set_partitions(name, partitions)
    return partitions
