"""Admin calls on a partitioned topic as a whole: its partitions, policies and properties (mirrors `PersistentTopicsBase`).

Its partitions may be in other ingress partitions, so every ingress partition gets these calls, in records without a key. Each
keeps the metadata and the policies, and changes the partitions that it has. All other calls are on single partitions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from schemas.commands import Admin
from schemas.units import Int32
from streaming.broker.admin import permissions
from streaming.broker.admin_requests import answer, call_of, is_schema_call, respond
from streaming.broker.admin_table import TOPIC, AdminAnswer, Call, Table
from streaming.broker.context import Context, namespace_of
from streaming.broker.errors import AdminError, BrokerError
from streaming.broker.lookup import TOO_MANY_PARTITIONS, create_by_use, partitions_now
from streaming.broker.names import PARTITION
from streaming.broker.parameters import flag, query
from streaming.broker.persistent import admin_operations
from streaming.broker.persistent.admin_operations import check_stays_as_it_is, read_properties
from streaming.broker.policies.admin_calls import (
    ALL_POLICIES,
    LowerLevels,
    get_policy,
    is_policy,
    set_policy,
)
from streaming.broker.policies.arguments import convert
from streaming.broker.policies.hierarchy import NO_POLICIES, PartitionedTopic
from streaming.broker.schema import schema_registry


def is_for_whole(command: Admin) -> bool:
    """Is this a call on a topic that a partitioned topic as a whole answers?"""
    call = call_of(command)
    return (
        is_schema_call(command)
        or is_policy(call[1:])
        or call[1:] == ALL_POLICIES
        or any(
            table.knows(call, on_partitioned="whole")
            for table in (admin_operations.CALLS, CALLS, permissions.CALLS)
        )
    )


def call_whole(ctx: Context, name: str, command: Admin, before_change: Callable[[], object]) -> bool:
    """Answer a call on the policies or properties of a partitioned topic. Was a policy changed?

    Calls `before_change` before policies change.
    """
    found = ctx.partitioned_topics.get(name, PartitionedTopic())
    lower = LowerLevels(ctx.namespaces.get(namespace_of(name), NO_POLICIES), ctx.config)
    call = call_of(command)[1:]
    try:
        if call == "createMissedPartitions":  # none is ever missing
            respond(ctx, name, command, 204 if command.method == "POST" else 405)
            return False
        if call == "properties":
            respond(ctx, name, command, *_properties(found, command))
            changed = False
        elif (answer := get_policy(found.policies, command, call, lower)) is not None:
            respond(ctx, name, command, *answer)
            return False
        else:
            before_change()
            changed = set_policy(found.policies, command, call, ctx.config, lower)
            respond(ctx, name, command, 204 if changed else 405)
    except AdminError as error:
        respond(ctx, name, command, error.status, {"reason": error.reason})
        return False
    ctx.partitioned_topics[name] = found
    ctx.policies_changed()
    return changed


def _properties(found: PartitionedTopic, command: Admin) -> tuple[int, Any]:
    match command.method:
        case "GET":
            return 200, found.properties
        case "PUT":
            after = found.properties | read_properties(command.body)
        case "DELETE":
            key = query(command.path).get("key", "")
            after = {name: value for name, value in found.properties.items() if name != key}
        case _:
            return 405, None
    check_stays_as_it_is(found.properties, after)
    found.properties = after
    return 204, None


IN_USE = 412, "Topic has active producers/subscriptions"
EXISTS = 409, "This topic already exists"
TOO_MANY_TOPICS = "Exceed maximum number of topics in namespace."


class Surroundings(NamedTuple):
    """What a call on partitions needs of the rest of the broker.

    `exists`: there is a topic of that name. `delete` deletes the partitions, by force or only those that nobody uses; it
    returns whether none is left. `has_room`: whether the namespace may have so many more topics.
    """

    exists: bool
    delete: Callable[[bool], bool]
    has_room: Callable[[int], bool]


def call_partitions(ctx: Context, name: str, command: Admin, around: Surroundings) -> None:
    """Answer a call on the number of partitions: it is asked for, set, raised, or the partitioned topic is deleted."""
    found = CALLS.find(command.method, call_of(command))
    assert found is not None  # there is one of each method
    handler, _ = found
    answer(ctx, name, command, lambda: handler(ctx, name, command, around))


def forget(ctx: Context, name: str) -> None:
    """Delete what a partitioned topic has as a whole."""
    ctx.set_partitions(name, 0)
    ctx.deleted.partitioned_topic_deleted(name)
    ctx.partitioned_topics.pop(name, None)
    schema_registry.forget(ctx, name)
    ctx.permissions.pop(name, None)
    ctx.policies_changed()


def _get(ctx: Context, name: str, command: Admin, around: Surroundings) -> AdminAnswer:
    """The number of partitions, 0 for a topic that is not partitioned."""
    now = partitions_now(ctx, name)
    if now is None and not around.exists and flag(command.path, "checkAllowAutoCreation"):
        try:
            now = create_by_use(ctx, name)
        except BrokerError as error:
            raise AdminError(412, str(error)) from None
    elif now is None and not around.exists:
        raise AdminError(404, f"Topic {name} not found")
    kept = ctx.partitioned_topics.get(name, PartitionedTopic()).properties
    shown = {"properties": kept} if kept else {}
    return 200, {"partitions": now or 0, "deleted": False, **shown}


def _delete(ctx: Context, name: str, command: Admin, around: Surroundings) -> AdminAnswer:
    """Delete a partitioned topic. With `?force=true`, also partitions that have producers or consumers. Without it, those stay,
    and the answer is 412; each ingress partition decides on its own partitions."""
    if name not in ctx.partitioned:
        if around.exists:
            raise AdminError(
                409,
                f"{name} is a non-partitioned topic. Instead of calling delete-partitioned-topic please call delete.",
            )
        raise AdminError(404, f"Topic {name} not found.")
    if not around.delete(flag(command.path, "force")):
        raise AdminError(*IN_USE)
    forget(ctx, name)
    return 204, None


def _create(ctx: Context, name: str, command: Admin, around: Surroundings) -> AdminAnswer:
    """Create a partitioned topic. The body is the number of partitions, or an object with `partitions` and `properties`."""
    count, properties = _metadata(command.body)
    if PARTITION.fullmatch(name):
        raise AdminError(412, "Partitioned Topic Name should not contain '-partition-'")
    if count <= 0:
        raise AdminError(406, "Number of partitions should be more than 0")
    if count > (most := ctx.config.most_partitions):
        raise AdminError(406, f"Number of partitions should be less than or equal to {most}")
    if not around.has_room(count):
        raise AdminError(412, TOO_MANY_TOPICS)
    if around.exists or name in ctx.partitioned:
        raise AdminError(*EXISTS)
    return _set(ctx, name, count, properties)


def _update(ctx: Context, name: str, command: Admin, around: Surroundings) -> AdminAnswer:
    """Give a partitioned topic more partitions. The body is the new number of partitions. Like Pulsar, `magnetar serve` then gives each
    partition the durable subscriptions of the first one, at its first message; a log has a PUT for each of these."""
    count, properties = _metadata(command.body)
    now = ctx.partitioned.get(name)
    if now is None:
        raise AdminError(409, f"Topic {name} is not the partitioned topic.")
    if count <= now and ctx.config.partitionsMustIncrease:
        raise AdminError(409, f"number of partitions must be more than existing {now}")
    if count < now:
        raise AdminError(422, f"Desired partitions {count} can't be less than the current partitions {now}.")
    if properties:
        check_stays_as_it_is(ctx.partitioned_topics.get(name, PartitionedTopic()).properties, properties)
    if count > (most := ctx.config.most_partitions):
        raise AdminError(
            422,
            f"Desired partitions {count} can't be greater than the maximum partitions per topic {most}.",
        )
    return _set(ctx, name, count, properties)


def _set(ctx: Context, name: str, count: int, properties: dict[str, str]) -> AdminAnswer:
    if not ctx.has_room_for_partitions(count - ctx.partitioned.get(name, 0)):
        raise AdminError(412, TOO_MANY_PARTITIONS)
    ctx.set_partitions(name, count)
    if properties:
        ctx.partitioned_topics[name] = PartitionedTopic(properties=properties)
    return 204, None


def _metadata(body: Any) -> tuple[int, dict[str, str]]:
    """The number of partitions in a body, and the properties of a new topic. The number may come alone. Raises
    `AdminError`."""
    if not isinstance(body, dict):
        return convert(body, Int32), {}
    found = convert(body, _Metadata)
    return found.partitions, found.properties or {}


class _Metadata(msgspec.Struct):
    partitions: Int32 = 0
    properties: dict[str, str] | None = None


CALLS: Table[Callable[[Context, str, Admin, Surroundings], AdminAnswer]] = Table(
    TOPIC,
    (
        Call("GET", "/partitions", _get),
        Call("PUT", "/partitions", _create),
        Call("POST", "/partitions", _update),
        Call("DELETE", "/partitions", _delete),
    ),
)
"""The calls on the number of partitions of a topic."""
