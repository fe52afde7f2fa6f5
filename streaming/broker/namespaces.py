"""Admin calls on a namespace: its creation, its policies, and what operators do to all of its topics (I1, D4)."""

import re
from collections.abc import Callable
from urllib.parse import unquote

from schemas.commands import Admin
from streaming.broker.admin import refuse_as_unsupported, respond
from streaming.broker.context import Context
from streaming.broker.errors import AdminError
from streaming.broker.lookup import is_namespace_name
from streaming.broker.persistent.admin_operations import clear_backlog
from streaming.broker.persistent.lifecycle import policies_changed, unload
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.policies.admin_calls import RetentionCheck, get_policy, set_policy
from streaming.broker.policies.hierarchy import Policies, default_quota

_NAMESPACE = re.compile(r"/namespaces/(?P<namespace>[^/]+/[^/?]+)(?:/(?P<policy>[^?]+))?(?:\?(?P<query>.*))?")

OnTopic = Callable[[Context, PersistentTopic], object]
"""What a call on a namespace does to each of its topics."""


def call_of(path: str) -> tuple[str, str] | None:
    """The namespace that a call's path is about, and what the call asks for: a policy, an operation, or nothing. None: the
    call is not about a namespace."""
    match = _NAMESPACE.fullmatch(path)
    return None if match is None else (match["namespace"], match["policy"] or "")


def call_namespace(
    ctx: Context, command: Admin, before_change: Callable[[str], object]
) -> tuple[str, OnTopic] | None:
    """Answer a call on a namespace: its creation, a policy, or an operation on all of its topics.

    Calls `before_change` with the namespace before its policies change. Returns the namespace, and what to do to each of
    its topics.
    """
    if (about := call_of(command.path)) is None:
        refuse_as_unsupported(ctx, None, command)
        return None
    namespace, call = about
    if not is_namespace_name(namespace):
        respond(ctx, None, command, 412, {"reason": "Namespace name is not valid"})
        return None
    if (action := _on_each_topic(command, call)) is not None:
        respond(ctx, None, command, 204)
        return namespace, action
    policies = ctx.namespaces.get(namespace) or Policies()
    if (found := get_policy(policies, command, call)) is not None:
        respond(ctx, None, command, *found)
        return None
    if call:
        before_change(namespace)
    try:
        changed = call != "" and set_policy(
            policies, command, call, RetentionCheck(default_quota(ctx.config))
        )
    except AdminError as error:
        respond(ctx, None, command, error.status, {"reason": error.reason})
        return None
    if call and not changed:
        refuse_as_unsupported(ctx, None, command)
        return None
    ctx.namespaces[namespace] = policies
    ctx.policies_changed()
    respond(ctx, None, command, 204)
    return (namespace, policies_changed) if changed else None


def _on_each_topic(command: Admin, call: str) -> OnTopic | None:
    name, _, wanted = call.partition("/")
    if (command.method, call) == ("PUT", "unload"):
        return unload

    def clear_backlogs(ctx: Context, topic: PersistentTopic) -> None:
        for subscription in topic.known_subscriptions():
            if not wanted or subscription == unquote(wanted):
                clear_backlog(ctx, topic, topic.subscriptions[subscription])

    return clear_backlogs if (command.method, name) == ("POST", "clearBacklog") else None
