"""Calls of Pulsar's admin REST API, as commands (I1, D4): the paths, the answers, and policies of a topic."""

import re
from typing import Any, Literal
from urllib.parse import unquote

import msgspec

from schemas.commands import Admin
from schemas.effect_fields import AdminResponseFields
from schemas.effects import AdminResponse, Unsupported
from streaming.broker.abstract_topic import AbstractTopic
from streaming.broker.context import Context, namespace_of
from streaming.broker.errors import AdminError
from streaming.broker.policies.admin_calls import (
    ALL_POLICIES,
    POLICY_CALLS,
    LowerLevels,
    call_subscription_rate,
    get_policy,
    rated_subscription,
    set_policy,
)
from streaming.broker.policies.arguments import convert
from streaming.broker.policies.hierarchy import NO_POLICIES
from streaming.broker.policies.kept import KEPT
from streaming.broker.position import Position

_TOPIC = re.compile(
    r"/(?P<domain>persistent|non-persistent|schemas)/(?P<tenant>[^/]+)/(?P<namespace>[^/]+)/(?P<topic>[^/?]+)(?P<rest>/[^?]*)?(?:\?(?P<query>.*))?"
)

PARTITIONED = "partitioned"
"""In place of a topic: a call on all partitioned topics of a namespace."""

_OBJECT_BYTES = 8
"""The memory of a body, as objects of Python, per byte of its JSON."""


def topic_of(path: str) -> str | None:
    """The full topic name that a call's path is about; None for a call on a namespace or on the broker."""
    match = _TOPIC.fullmatch(path)
    if match is None or (match["topic"] == PARTITIONED and match["rest"] is None):
        return None
    domain = match["domain"] if match["domain"] != "schemas" else "persistent"
    return f"{domain}://{match['tenant']}/{match['namespace']}/{unquote(match['topic'])}"


def is_schema_call(command: Admin) -> bool:
    """Is a call on a topic about its schemas?"""
    return command.path.startswith("/schemas/")


def creates_topic(command: Admin) -> bool:
    """Does a call create its topic? A policy or a subscription may come before any traffic."""
    return command.method != "GET" and (is_policy_call(command) or subscribes(command))


def is_policy_call(command: Admin) -> bool:
    """Is a call about a policy of a topic?"""
    call = call_of(command)[1:]
    return (
        call in POLICY_CALLS
        or call in KEPT
        or call == ALL_POLICIES
        or call in ("backlogQuota", "backlogQuotaMap")
        or rated_subscription(call) is not None
    )


def subscribes(command: Admin) -> bool:
    """Does a call create a subscription?"""
    return command.method == "PUT" and re.fullmatch(r"/subscription/[^/]+", call_of(command)) is not None


def creates_only(command: Admin) -> bool:
    """Does a call create a topic that must not exist, without doing anything else?"""
    return command.method == "PUT" and call_of(command) == ""


def deletes_topic(command: Admin) -> bool:
    """Does a call on a topic delete it?"""
    return command.method == "DELETE" and call_of(command) == ""


def refuse(ctx: Context, command: Admin, status: int, reason: str) -> None:
    """Answer a call on a topic that does not exist or must not be created."""
    respond(ctx, None, command, status, {"reason": reason})


def call_of(command: Admin) -> str:
    """What a call on a topic asks for: the path after the topic, such as ``/stats``."""
    match = _TOPIC.fullmatch(command.path)
    return (match and match["rest"]) or ""


def call_policy(ctx: Context, topic: AbstractTopic, command: Admin, call: str) -> bool | None:
    """Answer a call on a policy of a topic. Was a policy changed? None, and no answer: the call is about something else."""
    lower = LowerLevels(ctx.namespaces.get(namespace_of(topic.name), NO_POLICIES), ctx.config)
    if (answer := get_policy(topic.policies, command, call[1:], lower)) is not None:
        respond(ctx, topic.name, command, *answer)
        return False
    subscription = rated_subscription(call[1:])
    try:
        if subscription is not None:
            before = topic.policies.subscriptionDispatchRates
            answer = call_subscription_rate(topic.policies, command, subscription, lower)
            ctx.policies_changed()
            respond(ctx, topic.name, command, *answer)
            return topic.policies.subscriptionDispatchRates is not before
        if not set_policy(topic.policies, command, call[1:], ctx.config, lower):
            return None
    except AdminError as error:
        respond(ctx, topic.name, command, error.status, {"reason": error.reason})
        return False
    ctx.policies_changed()
    respond(ctx, topic.name, command, 204)
    return True


AuthAction = Literal["produce", "consume", "functions", "sources", "sinks", "packages"]


def call_permissions(ctx: Context, of: str, command: Admin, role: str) -> tuple[int, Any]:
    """Answer a call on the permissions of a namespace or topic: they are kept and shown, but nothing enforces them, as in a
    Pulsar without authorization. Raises `AdminError`."""
    found = ctx.permissions.get(of, {})
    match command.method, role:
        case "GET", "":
            return 200, found
        case (("POST" | "PUT"), _) if role:
            ctx.permissions[of] = {**found, role: convert(command.body, list[AuthAction])}
        case "DELETE", _ if role:
            ctx.permissions[of] = {name: found[name] for name in found if name != role}
            if not ctx.permissions[of]:
                del ctx.permissions[of]
        case _:
            raise AdminError(405, f"{command.method} of permissions is not allowed")
    return 204, None


def call_topic_permissions(ctx: Context, topic: str, command: Admin) -> bool:
    """Answer a call on the permissions of a topic, whether it exists or not. False, and no answer: the call is about something
    else."""
    found = _PERMISSIONS.fullmatch(call_of(command))
    if found is None:
        return False
    try:
        status, response = call_permissions(ctx, topic, command, unquote(found["role"] or ""))
    except AdminError as error:
        status, response = error.status, {"reason": error.reason}
    respond(ctx, topic, command, status, response)
    return True


_PERMISSIONS = re.compile(r"/permissions(?:/(?P<role>[^/]+))?")


def respond(ctx: Context, topic: str | None, command: Admin, status: int, response: Any = None) -> None:
    """Answer a call: the HTTP status and the body, if there is one."""
    cause = f"{command.method} {command.path}"
    if isinstance(response, Position):
        fields = AdminResponseFields(status=status)
        ctx.emit(AdminResponse(topic, command.connection, cause, fields, *response))
        return
    fields = AdminResponseFields(status=status, response=msgspec.UNSET if response is None else response)
    answer = AdminResponse(topic, command.connection, cause, fields)
    if isinstance(response, dict | list):
        ctx.emit_large(answer, _OBJECT_BYTES * len(msgspec.json.encode(response)))
    else:
        ctx.emit(answer)


def refuse_as_unsupported(ctx: Context, topic: str | None, command: Admin) -> None:
    """Answer 404 to a call that Magnetar does not know."""
    cause = f"admin call {command.method} {command.path} is not supported"
    ctx.emit(Unsupported(topic, command.connection, cause))
    respond(ctx, topic, command, 404, {"reason": cause})
