"""Admin calls on permissions, of a namespace or a topic. They are kept and shown. What enforces them is a server with
authorization (`streaming.broker.authorization`)."""

from collections.abc import Callable
from typing import Literal

from schemas.commands import Admin
from streaming.broker.admin_requests import answer, call_of
from streaming.broker.admin_table import TOPIC, AdminAnswer, Call, Names, Table, decoded
from streaming.broker.context import Context
from streaming.broker.errors import AdminError
from streaming.broker.policies.arguments import convert

AuthAction = Literal["produce", "consume", "functions", "sources", "sinks", "packages"]


def call_permissions(ctx: Context, of: str, command: Admin, call: str) -> AdminAnswer:
    """Answer a call on the permissions of a namespace or topic. Raises `AdminError`."""
    found = CALLS.find("POST" if command.method == "PUT" else command.method, call)
    if found is None:
        raise AdminError(405, f"{command.method} of permissions is not allowed")
    handler, names = found
    return handler(ctx, of, command, decoded(names))


def is_call(command: Admin) -> bool:
    """Is a call on a topic about its permissions?"""
    return CALLS.knows(call_of(command))


def call_topic_permissions(ctx: Context, topic: str, command: Admin) -> None:
    """Answer a call on the permissions of a topic."""
    answer(ctx, topic, command, lambda: call_permissions(ctx, topic, command, call_of(command)))


def _get(ctx: Context, of: str, command: Admin, names: Names) -> AdminAnswer:
    """Which roles may do what."""
    return 200, ctx.permissions.get(of, {})


def _grant(ctx: Context, of: str, command: Admin, names: Names) -> AdminAnswer:
    """Permit the role the actions in the body."""
    actions = convert(command.body, list[AuthAction])
    ctx.permissions[of] = {**ctx.permissions.get(of, {}), names["role"]: actions}
    return 204, None


def _revoke(ctx: Context, of: str, command: Admin, names: Names) -> AdminAnswer:
    """Permit the role nothing any more."""
    found = ctx.permissions.get(of, {})
    ctx.permissions[of] = {name: found[name] for name in found if name != names["role"]}
    if not ctx.permissions[of]:
        del ctx.permissions[of]
    return 204, None


CALLS: Table[Callable[[Context, str, Admin, Names], AdminAnswer]] = Table(
    TOPIC,
    (
        Call("GET", "/permissions", _get),
        Call("POST", "/permissions/{role}", _grant),
        Call("DELETE", "/permissions/{role}", _revoke),
    ),
)
"""The calls on the permissions of a topic. A namespace has the same ones."""
