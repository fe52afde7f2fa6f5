"""Calls of Pulsar's admin REST API, as commands (I1, D4): the paths and the answers."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from schemas.commands import Admin
from schemas.effect_fields import AdminResponseFields
from schemas.effects import AdminResponse, Unsupported
from streaming.broker.admin_table import AdminAnswer, Handler, Names, Table, decoded
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import Context
from streaming.broker.errors import AdminError
from streaming.broker.policies.admin_calls import (
    ALL_POLICIES,
    is_policy,
    rated_subscription,
)
from streaming.broker.policies.kept import MAY_HAVE_SECRETS
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


def topic_path(topic: str, call: str = "") -> str:
    """The path of a `call`, such as ``/stats``, on a topic by its full name. `topic_of` is its inverse, and takes tenant and namespace
    as they are: what they may consist of needs no escape."""
    domain, _, rest = topic.partition("://")
    tenant, _, rest = rest.partition("/")
    namespace, _, name = rest.partition("/")
    return f"/{domain}/{tenant}/{namespace}/{quote(name, safe='')}{call}"


def path_on(topic: str, path: str) -> str:
    """The path of the same call, with its query string, on another topic. `path` must be that of a call on a topic."""
    match = _TOPIC.fullmatch(path)
    assert match is not None
    return topic_path(topic, path[match.end("topic") :])


def may_have_secrets(path: str) -> bool:
    """Is a call, or its answer, a policy of a namespace or topic that may have passwords?"""
    names = [unquote(name) for name in path.partition("?")[0].split("/") if name]
    return names[-1:] == [MAY_HAVE_SECRETS] and len(names) == (4 if names[0] == "namespaces" else 5)


def is_schema_call(command: Admin) -> bool:
    """Is a call on a topic about its schemas?"""
    return command.path.startswith("/schemas/")


def creates_topic(command: Admin) -> bool:
    """Does a call create its topic? A policy or a subscription may come before any traffic."""
    return command.method != "GET" and (is_policy_call(command) or subscribes(command))


def is_policy_call(command: Admin) -> bool:
    """Is a call about a policy of a topic?"""
    call = call_of(command)[1:]
    return is_policy(call) or call == ALL_POLICIES or rated_subscription(call) is not None


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


def lacking(config: ServiceConfiguration, command: Admin) -> tuple[int, str] | None:
    """The status and the reason if a call is one that the broker's version lacks."""
    if not config.missingAdminCalls:
        return None
    words = command.path.partition("?")[0].split("/")
    for path, status in _missing(config.missingAdminCalls).get((command.method, len(words)), ()):
        if all(map(_fits, words, path)):
            if (command.method, status) == ("DELETE", 405) and words[1] == "namespaces":
                return (
                    412,
                    f"Invalid bundle range: {words[-1]}",
                )  # quirk: what can be deleted there is a bundle
            return status, _REASONS[status]
    return None


def refuses_numbers(ctx: Context, command: Admin, table: Table[Any]) -> bool:
    """Refuse a call of the table on a topic if a parameter is not of its type (`check_numbers`). Was it refused?"""
    try:
        table.check_numbers(command.method, call_of(command), command.path)
    except AdminError as error:
        refuse(ctx, command, error.status, error.reason)
        return True
    return False


_REASONS = {404: "HTTP 404 Not Found", 405: "HTTP 405 Method Not Allowed"}


@lru_cache(maxsize=16)
def _missing(calls: str) -> dict[tuple[str, int], list[tuple[list[str], int]]]:
    """The paths in `missingAdminCalls`, word by word, and the status of each, by method and number of words."""
    found: dict[tuple[str, int], list[tuple[list[str], int]]] = {}
    for call in calls.split(","):
        method, _, path = call.strip().partition(" ")
        path, _, status = path.partition("=")
        words = path.split("/")
        found.setdefault((method, len(words)), []).append((words, 405 if status == "405" else 404))
    return found


def _fits(word: str, of_path: str) -> bool:
    if of_path == "{domain}":
        return word in ("persistent", "non-persistent")
    return word == of_path or of_path[:1] == "{"


def answer_from(
    ctx: Context,
    topic: str,
    command: Admin,
    table: Table[Handler],
    run: Callable[[Handler, Names], AdminAnswer],
) -> None:
    """Answer a call on a topic: `run` calls the handler of its row. Without a row, the answer is 405, or 404 if no row has
    the path."""
    call = call_of(command)
    if (found := table.find(command.method, call)) is not None:
        handler, names = found
        answer(ctx, topic, command, lambda: run(handler, decoded(names)))
    elif table.knows(call):
        respond(ctx, topic, command, 405, {"reason": f"{command.method} {call} is not allowed"})
    else:
        refuse_as_unsupported(ctx, topic, command)


def answered_from(
    ctx: Context, command: Admin, table: Table[Handler], run: Callable[[Handler, Names], AdminAnswer]
) -> bool:
    """Answer a call that is not about a topic: `run` calls the handler of its row. False, and no answer: it has none in the table."""
    found = table.find(command.method, command.path.partition("?")[0])
    if found is None:
        return False
    handler, names = found
    answer(ctx, None, command, lambda: run(handler, names))
    return True


def answer(ctx: Context, topic: str | None, command: Admin, handler: Callable[[], AdminAnswer]) -> None:
    """Answer a call with the status and the body that its handler returns, or with the `AdminError` that it raises."""
    try:
        status, response = handler()
    except AdminError as error:
        status, response = error.status, {"reason": error.reason}
    respond(ctx, topic, command, status, response)


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
