"""Admin calls on a namespace: its creation, its policies, and what operators do to all of its topics (I1, D4)."""

import re
from collections.abc import Callable, Container, Iterable
from urllib.parse import unquote

from schemas.commands import Admin
from streaming.broker.admin import PARTITIONED, refuse_as_unsupported, respond
from streaming.broker.context import Context
from streaming.broker.errors import AdminError
from streaming.broker.lookup import is_namespace_name, partitions_of
from streaming.broker.persistent.admin_operations import clear_backlog
from streaming.broker.persistent.lifecycle import policies_changed, unload
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.policies.admin_calls import RetentionCheck, get_policy, query, set_policy
from streaming.broker.policies.hierarchy import Policies, default_quota

_NAMESPACE = re.compile(r"/namespaces/(?P<namespace>[^/]+/[^/?]+)(?:/(?P<policy>[^?]+))?(?:\?(?P<query>.*))?")

_DOMAINS = ("persistent", "non-persistent")
_TOPICS = re.compile(
    rf"/(?P<domain>persistent|non-persistent|namespaces)/(?P<namespace>[^/]+/[^/?]+)(?:/(?P<kind>topics|{PARTITIONED}))?(?:\?.*)?"
)

OnTopic = Callable[[Context, PersistentTopic], object]
"""What a call on a namespace does to each of its topics."""


def call_of(path: str) -> tuple[str, str] | None:
    """The namespace that a call's path is about, and what the call asks for: a policy, an operation, or nothing. None: the
    call is not about a namespace."""
    match = _NAMESPACE.fullmatch(path)
    return None if match is None else (match["namespace"], match["policy"] or "")


def list_topics(ctx: Context, command: Admin, topics: Iterable[str], deleted: Container[str]) -> bool:
    """Answer a call that lists the topics of a namespace. False, and no answer: the call is about something else.

    `topics` are those that exist. A partition that nobody has used counts as one, unless it was deleted.
    """
    match = _TOPICS.fullmatch(command.path)
    if (
        match is None
        or command.method != "GET"
        or (match["kind"] == "topics") != (match["domain"] == "namespaces")
    ):
        return False
    if match["domain"] == "namespaces":
        mode = query(command.path).get("mode", "PERSISTENT")
        domains = {"ALL": _DOMAINS, "NON_PERSISTENT": _DOMAINS[1:]}.get(mode, _DOMAINS[:1])
    else:
        domains = (match["domain"],)
    if match["kind"] == PARTITIONED:
        found = set(ctx.partitioned)
    else:
        unused = {
            partition
            for name, count in ctx.partitioned.items()
            for partition in partitions_of(name, count)
            if partition not in deleted
        }
        found = unused.union(topics)
    prefixes = tuple(f"{domain}://{match['namespace']}/" for domain in domains)
    respond(ctx, None, command, 200, sorted(name for name in found if name.startswith(prefixes)))
    return True


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
