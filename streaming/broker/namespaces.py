"""Admin calls on a namespace: its creation, its policies, and what operators do to all of its topics (I1, D4)."""

import re
from collections.abc import Callable, Container, Iterable
from typing import Any
from urllib.parse import unquote

from msgspec import json

from schemas.commands import Admin
from streaming.broker.admin import PARTITIONED, call_permissions, refuse_as_unsupported, respond
from streaming.broker.context import CLUSTER, Context, tenant_of
from streaming.broker.errors import AdminError
from streaming.broker.lookup import is_namespace_name, partitions_of
from streaming.broker.namespace_policies import BUNDLES, read, shown
from streaming.broker.persistent.admin_operations import clear_backlog, delete_subscription
from streaming.broker.persistent.lifecycle import policies_changed, unload
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.policies.admin_calls import get_policy, query, set_policy
from streaming.broker.policies.hierarchy import Policies

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


_NAMESPACES = re.compile(r"/namespaces/(?P<tenant>[^/?]+)(?:\?.*)?")


def list_namespaces(ctx: Context, command: Admin) -> bool:
    """Answer a call that lists the namespaces of a tenant. False, and no answer: the call is about something else."""
    match = _NAMESPACES.fullmatch(command.path)
    if match is None or command.method != "GET":
        return False
    tenant = match["tenant"]
    found = sorted(namespace for namespace in ctx.namespaces if tenant_of(namespace) == tenant)
    if not found and tenant not in ctx.tenants:
        respond(ctx, None, command, 404, {"reason": "Tenant not found"})
    else:
        respond(ctx, None, command, 200, found)
    return True


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
    if not exists(ctx, match["namespace"]):
        respond(ctx, None, command, 404, {"reason": "Namespace does not exist"})
        return True
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


def exists(ctx: Context, namespace: str) -> bool:
    """May the namespace have topics and policies?"""
    return namespace in ctx.namespaces or not ctx.config.namespacesMustExist


def call_namespace(
    ctx: Context,
    command: Admin,
    touch: Callable[[str], Iterable[PersistentTopic]],
    delete: Callable[[str, bool], bool],
) -> tuple[str, OnTopic] | None:
    """Answer a call on a namespace: its creation, its deletion, a policy, or an operation on all of its topics.

    Calls `touch`, which gives the namespace's open topics, before its policies change. `delete` deletes its topics, if there are none or by
    force; it returns whether none is left. Returns the namespace, and what to do to each of its topics.
    """
    if (about := call_of(command.path)) is None:
        refuse_as_unsupported(ctx, None, command)
        return None
    namespace, call = about
    try:
        if not is_namespace_name(namespace):
            raise AdminError(412, "Namespace name is not valid")
        if not call:
            respond(ctx, None, command, *_call_whole(ctx, namespace, command, delete))
            return None
        if not exists(ctx, namespace):
            raise AdminError(404, "Namespace does not exist")
        if (action := _on_each_topic(command, call, lambda: touch(namespace))) is not None:
            respond(ctx, None, command, 204)
            return namespace, action
        if (found := _permissions(ctx, namespace, command, call) or _fixed(command, call)) is not None:
            respond(ctx, None, command, *found)
            return None
        policies = ctx.namespaces.get(namespace) or Policies()
        if (found := get_policy(policies, command, call)) is not None:
            respond(ctx, None, command, *found)
            return None
        touch(namespace)
        if not set_policy(policies, command, call, ctx.config):
            refuse_as_unsupported(ctx, None, command)
            return None
    except AdminError as error:
        respond(ctx, None, command, error.status, {"reason": error.reason})
        return None
    ctx.namespaces[namespace] = policies
    ctx.policies_changed()
    respond(ctx, None, command, 204)
    return namespace, policies_changed


def _call_whole(
    ctx: Context, namespace: str, command: Admin, delete: Callable[[str, bool], bool]
) -> tuple[int, Any]:
    """Create a namespace, delete it, or show its policies."""
    there = exists(ctx, namespace)
    match command.method:
        case "GET" if there:
            return 200, shown(ctx, namespace)
        case "GET":
            raise AdminError(404, "Namespace does not exist")
        case "PUT":
            if ctx.config.namespacesMustExist:
                if tenant_of(namespace) not in ctx.tenants:
                    raise AdminError(404, "Tenant does not exist")
                if there:
                    raise AdminError(409, "Namespace already exists")
            policies = read(command.body, ctx.config)
            if command.body is not None or namespace not in ctx.namespaces:
                ctx.namespaces[namespace] = policies
        case "DELETE":
            if not there:
                raise AdminError(404, f"Namespace {namespace} does not exist.")
            if not delete(namespace, query(command.path).get("force") == "true"):
                raise AdminError(409, "Cannot delete non empty namespace")
            ctx.namespaces.pop(namespace, None)
            ctx.permissions.pop(namespace, None)
        case _:
            raise AdminError(405, f"{command.method} of a namespace is not allowed")
    ctx.policies_changed()
    return 204, None


FIXED: dict[str, Any] = {
    "bundles": BUNDLES,
    "replication": [CLUSTER],
    "allowedClusters": [],
    "schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE",
    "schemaValidationEnforced": False,
    "isAllowAutoUpdateSchema": True,
    "subscriptionAuthMode": "None",
    "compactionThreshold": None,
    "offloadThreshold": -1,
    "offloadThresholdInSeconds": -1,
    "offloadPolicies": None,
    "replicatorDispatchRate": None,
    "resourcegroup": None,
    "entryFilters": None,
    "autoTopicCreation": None,
    "autoSubscriptionCreation": None,
    "dispatcherPauseOnAckStatePersistent": False,
    "properties": {},
}
"""What Magnetar supports with one value only. A call that sets another one is refused."""


def _fixed(command: Admin, call: str) -> tuple[int, Any] | None:
    if call not in FIXED:
        return None
    if command.method == "GET":
        return 200, FIXED[call]
    if command.method != "DELETE" and command.body != FIXED[call]:
        raise AdminError(501, f"{call} other than {json.encode(FIXED[call]).decode()} is not supported")
    return 204, None


def _permissions(ctx: Context, namespace: str, command: Admin, call: str) -> tuple[int, Any] | None:
    """Answer a call on who may do what. It is kept and shown; nothing enforces it, as in a Pulsar without authorization."""
    name, _, role = call.partition("/")
    return call_permissions(ctx, namespace, command, unquote(role)) if name == "permissions" else None


def _on_each_topic(
    command: Admin, call: str, topics: Callable[[], Iterable[PersistentTopic]]
) -> OnTopic | None:
    bundle = _BUNDLE.fullmatch(call)
    if bundle is not None:
        if bundle["bundle"] != "0x00000000_0xffffffff":
            raise AdminError(
                412, f"Invalid bundle range {bundle['bundle']}: there is one bundle, 0x00000000_0xffffffff"
            )
        call = bundle["call"]
    name, _, wanted = call.partition("/")
    wanted = unquote(wanted)
    if (command.method, call) == ("PUT", "unload"):
        return unload

    def clear_backlogs(ctx: Context, topic: PersistentTopic) -> None:
        for subscription in topic.known_subscriptions():
            if not wanted or subscription == wanted:
                clear_backlog(ctx, topic, topic.subscriptions[subscription])

    def unsubscribe(ctx: Context, topic: PersistentTopic) -> None:
        if wanted in topic.known_subscriptions():
            delete_subscription(ctx, topic, wanted)

    if command.method != "POST":
        return None
    if name == "unsubscribe" and any(
        wanted in topic.subscriptions and topic.subscriptions[wanted].consumers for topic in topics()
    ):
        raise AdminError(412, "Subscription has active connected consumers")
    return {"clearBacklog": clear_backlogs, "unsubscribe": unsubscribe}.get(name)


_BUNDLE = re.compile(r"(?P<bundle>0x[^/]*)/(?P<call>.+)")
