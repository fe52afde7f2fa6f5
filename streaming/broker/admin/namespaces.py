"""Admin calls on a namespace: its creation, its policies, and what operators do to all of its topics (I1, D4)."""

import re
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from schemas.commands import Admin
from streaming.broker import bundles
from streaming.broker.admin.namespace_policies import (
    SUBSCRIPTION_PERMISSIONS,
    AuthPolicies,
    gives_bundles,
    read,
    shown,
)
from streaming.broker.admin.permissions import call_permissions
from streaming.broker.admin.resources import check_cluster
from streaming.broker.admin.tenants import NO_FORCE
from streaming.broker.admin_requests import PARTITIONED, answered_from, refuse_as_unsupported, respond
from streaming.broker.admin_table import NAMESPACE, AdminAnswer, Call, Names, Table, decoded
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import Context, namespace_of, tenant_of
from streaming.broker.errors import AdminError
from streaming.broker.names import (
    CLUSTER,
    is_namespace_name,
    is_system_topic,
    is_transaction_topic,
    partitions_of,
)
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.parameters import flag, query
from streaming.broker.persistent.admin_operations import clear_backlog, delete_subscription
from streaming.broker.persistent.lifecycle import policies_changed, unload
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.policies.admin_calls import get_policy, is_policy, set_policy
from streaming.broker.policies.arguments import convert
from streaming.broker.policies.hierarchy import Policies, overlay
from streaming.broker.policies.kept import check_clusters

_NAMESPACE = re.compile(r"/namespaces/(?P<namespace>[^/]+/[^/?]+)(?:/(?P<policy>[^?]+))?(?:\?(?P<query>.*))?")

_DOMAINS = ("persistent", "non-persistent")
_SPLIT_ALGORITHMS = (
    "range_equally_divide", "topic_count_equally_divide", bundles.AT_POSITIONS, "flow_or_qps_equally_divide",
)  # fmt: skip

OnTopic = Callable[[Context, PersistentTopic], object]
"""What a call on a namespace does to each of its topics."""


def call_of(path: str) -> tuple[str, str] | None:
    """The namespace that a call's path is about, and what the call asks for: a policy, an operation, or nothing. None: the
    call is not about a namespace."""
    match = _NAMESPACE.fullmatch(path)
    return None if match is None else (unquote(match["namespace"]), match["policy"] or "")


def call_lists(ctx: Context, command: Admin, topics: Iterable[str], deleted: Container[str]) -> bool:
    """Answer a call that lists namespaces or topics. False, and no answer: the call is about something else.

    `topics` are those that exist. A partition that nobody has used counts as one, unless it was deleted.
    """
    return answered_from(
        ctx, command, LISTS, lambda handler, names: handler(ctx, command, names, topics, deleted)
    )


def _list_namespaces(
    ctx: Context, command: Admin, names: Names, topics: Iterable[str], deleted: Container[str]
) -> AdminAnswer:
    """The names of the tenant's namespaces."""
    tenant = names["tenant"]
    found = sorted(namespace for namespace in ctx.namespaces if tenant_of(namespace) == tenant)
    if not found and tenant not in ctx.tenants:
        raise AdminError(404, "Tenant not found")
    return 200, found


def _list_anti_affine(
    ctx: Context, command: Admin, names: Names, topics: Iterable[str], deleted: Container[str]
) -> AdminAnswer:
    """The names of the tenant's (`?tenant=…`) namespaces that are in an anti-affinity group. `pulsar-admin` calls a tenant a `property`, as
    Pulsar 1 did."""
    asked, group = query(command.path), unquote(names["group"])
    tenant = asked.get("tenant") or asked.get("property")
    if not tenant:
        raise AdminError(400, "Tenant should not be null")
    check_cluster(ctx, names)
    return 200, sorted(
        name
        for name, policies in ctx.namespaces.items()
        if tenant_of(name) == tenant and policies.kept.get("antiAffinity") == group
    )


def _list_by_mode(
    ctx: Context, command: Admin, names: Names, topics: Iterable[str], deleted: Container[str]
) -> AdminAnswer:
    """The names of the persistent topics. `?mode=NON_PERSISTENT`: of those that store nothing. `?mode=ALL`: of all."""
    mode = query(command.path).get("mode", "PERSISTENT")
    domains = {"ALL": _DOMAINS, "NON_PERSISTENT": _DOMAINS[1:]}.get(mode, _DOMAINS[:1])
    return 200, _listed(ctx, command, _all_of(ctx, names, domains, topics, deleted))


def _list_topics(
    ctx: Context, command: Admin, names: Names, topics: Iterable[str], deleted: Container[str]
) -> AdminAnswer:
    """The names of the namespace's topics of this kind. `?includeSystemTopic=true`: with those that Pulsar keeps for itself."""
    found = _all_of(ctx, names, (names["domain"],), topics, deleted)
    if names["domain"] == _DOMAINS[0]:
        found = {name for name in found if not is_transaction_topic(name)}
    return 200, _listed(ctx, command, found)


def _list_partitioned(
    ctx: Context, command: Admin, names: Names, topics: Iterable[str], deleted: Container[str]
) -> AdminAnswer:
    """The names of the namespace's partitioned topics of this kind."""
    return 200, _listed(ctx, command, _partitioned(ctx, names, (names["domain"],)))


def _all_of(
    ctx: Context, names: Names, domains: tuple[str, ...], topics: Iterable[str], deleted: Container[str]
) -> set[str]:
    """The topics of a namespace, and the persistent partitions that nobody has used or deleted."""
    unused = {
        partition
        for name in _partitioned(ctx, names, domains)
        for partition in partitions_of(name, ctx.partitioned[name])
        if partition not in deleted and not is_non_persistent(partition)
    }
    return unused.union(topics_in(_named(names), topics, domains))


def _partitioned(ctx: Context, names: Names, domains: tuple[str, ...]) -> set[str]:
    if not exists(ctx, _named(names)):
        raise AdminError(404, "Namespace does not exist")
    return set(topics_in(_named(names), ctx.partitioned, domains))


def _named(names: Names) -> str:
    return unquote(f"{names['tenant']}/{names['namespace']}")


def _listed(ctx: Context, command: Admin, topics: Iterable[str]) -> list[str]:
    """The topics in the order of their names, without system topics unless `?includeSystemTopic=true`; with `?bundle=…`,
    only those of this bundle."""
    bundle = query(command.path).get("bundle", "")
    if not (ctx.config.listsSystemTopics or flag(command.path, "includeSystemTopic")):
        topics = (name for name in topics if not is_system_topic(name))
    return sorted(name for name in topics if not bundle or bundles.contains(bundle, name))


def topics_in(namespace: str, names: Iterable[str], domains: Iterable[str] = _DOMAINS) -> Iterator[str]:
    """Those of the names that are of topics of a namespace. Looks at each name, and no longer than at its beginning."""
    beginnings = tuple(f"{domain}://{namespace}/" for domain in domains)
    return (name for name in names if name.startswith(beginnings) and namespace_of(name) == namespace)


NOT_EMPTY = 409, "Cannot delete non empty namespace"


def exists(ctx: Context, namespace: str) -> bool:
    """May the namespace have policies?"""
    return namespace in ctx.namespaces or not ctx.config.namespacesMustExist


def takes_topics(ctx: Context, namespace: str) -> bool:
    """May the namespace have topics? quirk: one of Pulsar 1, with a cluster, may have some before it exists."""
    return exists(ctx, namespace) or namespace.count("/") == 2


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
        if command.lasting and _keeps(ctx, namespace, command, call) and not exists(ctx, namespace):
            respond(ctx, None, command, 204)
            return None
        if not call:
            respond(ctx, None, command, *_call_whole(ctx, namespace, command, delete))
            return None
        if not exists(ctx, namespace) and (command.method, call) != ("GET", "antiAffinity"):
            tenant = (
                call.startswith("propert")
                and command.method != "GET"
                and tenant_of(namespace) not in ctx.tenants
            )
            raise AdminError(404, "Tenant does not exist" if tenant else _missing(call))
        if (action := _on_each_topic(ctx, namespace, command, call, lambda: touch(namespace))) is not None:
            respond(ctx, None, command, 204)
            return namespace, action
        for handler in dict.fromkeys(row.handler for row in _BEFORE_POLICIES.calls):
            if (found := handler(ctx, namespace, command, call)) is not None:
                _say(ctx, command, call, *found)
                return None
        policies = ctx.namespaces.get(namespace) or Policies()
        if (found := get_policy(policies, command, call)) is not None:
            _say(ctx, command, call, *found)
            return None
        if not is_policy(call):
            if (found := _bundle_call(ctx, namespace, command, call)) is None:
                refuse_as_unsupported(ctx, None, command)
                return None
            _say(ctx, command, call, *found)
            if flag(command.path, "unload") and (name := call.removesuffix("/split")) != call:
                return namespace, _in_bundle(name, unload)
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


_MISSING = {
    "unload": "Namespace not found",
    "split": "Namespace not found",
    "replicatorDispatchRate": "Namespace policies does not exist",
    "dispatcherPauseOnAckStatePersistent": "Namespace policies does not exist",
    "bookieAffinity": "Namespace not found",
}
"""The last name in the path of a call → what Pulsar says of a namespace that is not there, if that is not what other calls say."""


def _missing(call: str) -> str:
    return _MISSING.get(call.rpartition("/")[2], "Namespace does not exist")


def _keeps(ctx: Context, namespace: str, command: Admin, call: str) -> bool:
    """Keep the policies that a call sets, for whenever the namespace exists. False: it sets none."""
    kept = ctx.lasting.get(namespace) or Policies()
    if (command.method, call) == ("PUT", ""):
        kept = read(command.body, namespace)
    elif not is_policy(call) or command.method == "GET" or not set_policy(kept, command, call, ctx.config):
        return False
    ctx.lasting[namespace] = kept
    return True


def _say(ctx: Context, command: Admin, call: str, status: int, response: Any) -> None:
    if command.method == "GET" and response is None:
        status = _unset(ctx.config, call, status)
    respond(ctx, None, command, status, response)


def _unset(config: ServiceConfiguration, call: str, status: int) -> int:
    """The status of the answer to a GET of what is not set, which is `status` in 4.0."""
    if call in ("antiAffinity", "persistence/bookieAffinity") and not config.unsetAffinityIs204:
        return 200
    if status == 200 and config.unsetNamespacePoliciesAre204 and not call.startswith("property/"):
        return 204
    return status


Delete = Callable[[str, bool], bool]


def _call_whole(ctx: Context, namespace: str, command: Admin, delete: Delete) -> AdminAnswer:
    if (found := _WHOLE.find(command.method, "")) is None:
        raise AdminError(405, f"{command.method} of a namespace is not allowed")
    handler, _ = found
    return handler(ctx, namespace, command, delete)


def _get(ctx: Context, namespace: str, command: Admin, delete: Delete) -> AdminAnswer:
    """All policies of the namespace, in one object."""
    if not exists(ctx, namespace):
        raise AdminError(404, "Namespace does not exist")
    return 200, shown(ctx, namespace)


def _create(ctx: Context, namespace: str, command: Admin, delete: Delete) -> AdminAnswer:
    """Create the namespace. The body may have its policies, as the answer to `GET` has."""
    if ctx.config.namespacesMustExist and not command.lasting:
        if tenant_of(namespace) not in ctx.tenants:
            raise AdminError(404, "Tenant does not exist")
        if exists(ctx, namespace):
            raise AdminError(409, "Namespace already exists")
    policies = overlay(read(command.body, namespace), ctx.lasting.get(namespace))
    if namespace not in ctx.namespaces and (most := ctx.config.maxNamespacesPerTenant) > 0:
        tenant = tenant_of(namespace)
        # quirk: the one that is created is not counted
        if sum(tenant_of(each) == tenant for each in ctx.namespaces) > most:
            raise AdminError(412, f"Exceed the maximum number of namespace in tenant :{tenant}")
    if namespace not in ctx.namespaces and not command.lasting and not gives_bundles(command.body):
        bundles.create(policies, ctx.config.defaultNumberOfNamespaceBundles)
    if command.body is not None or namespace not in ctx.namespaces:
        ctx.namespaces[namespace] = policies
        if isinstance(command.body, dict) and command.body.get("auth_policies"):
            given = convert(command.body["auth_policies"], AuthPolicies)
            for name, roles in {namespace: given.namespace_auth, **given.destination_auth}.items():
                if name == namespace or ("://" in name and namespace_of(name) == namespace):
                    ctx.permissions[name] = {role: [*actions] for role, actions in roles.items()}
    ctx.policies_changed()
    return 204, None


def _delete(ctx: Context, namespace: str, command: Admin, delete: Delete) -> AdminAnswer:
    """Delete the namespace. With `?force=true`, also its topics, if [forceDeleteNamespaceAllowed](settings.md) is
    true. Without it, an ingress partition with topics refuses."""
    force = flag(command.path, "force")
    if force and not ctx.config.forceDeleteNamespaceAllowed:
        raise AdminError(405, NO_FORCE)
    if not exists(ctx, namespace):
        raise AdminError(404, f"Namespace {namespace} does not exist.")
    if not delete(namespace, force):
        raise AdminError(*NOT_EMPTY)
    forget(ctx, namespace)
    return 204, None


def forget(ctx: Context, namespace: str) -> None:
    """Delete what a namespace has besides its topics."""
    ctx.namespaces.pop(namespace, None)
    ctx.permissions.pop(namespace, None)
    for kept in (ctx.permissions, ctx.schemas, ctx.schema_times):  # of topics that are not there, too
        for topic in list(topics_in(namespace, kept)):
            del kept[topic]
    ctx.policies_changed()


def _bundle_call(ctx: Context, namespace: str, command: Admin, call: str) -> tuple[int, Any] | None:
    """The ranges of hashes by which brokers share topics. There is one broker, so they only name topics: `unload`, `clearBacklog`
    and `unsubscribe` may follow `/{bundle}`. A split with `?unload=true` unloads the topics. In a log, all algorithms but
    `specified_positions_divide` split in the middle; `magnetar serve` knows the topics, by which some of them split."""
    policies = ctx.namespaces.get(namespace) or Policies()
    if (command.method, call) == ("GET", "bundles"):
        return 200, bundles.shown(policies)
    name, _, rest = call.partition("/")
    if command.method == "DELETE" and not rest:
        bundles.check(policies, namespace, name)
        return 204, None
    match command.method, rest:
        case "PUT", "split":
            algorithm = query(command.path).get("splitAlgorithmName") or _SPLIT_ALGORITHMS[0]
            if algorithm not in _SPLIT_ALGORITHMS:
                known = ", ".join(_SPLIT_ALGORITHMS)
                raise AdminError(
                    412, f"Unsupported namespace bundle split algorithm, supported algorithms are [{known}]"
                )
            given = None if algorithm != bundles.AT_POSITIONS else convert(command.body, list[int] | None)
            if algorithm == bundles.AT_POSITIONS and not given:
                raise AdminError(412, f"With {algorithm} split algorithm, splitBoundaries must not be empty")
            bundles.split(policies, namespace, name, given)
            ctx.namespaces[namespace] = policies
            return 204, None
        case "GET", "topicHashPositions":
            bundles.check(policies, namespace, name)
            return 200, {"namespace": namespace, "bundle": name, "topicHashPositions": {}}
    return None


def _properties(ctx: Context, namespace: str, command: Admin, call: str) -> tuple[int, Any] | None:
    """Any texts by name: all of them, or one."""
    policies = ctx.namespaces.get(namespace) or Policies()
    name, _, rest = call.partition("/")
    key, _, value = (unquote(part) for part in rest.partition("/"))
    found = policies.properties
    match command.method, name:
        case "GET", "properties":
            return 200, found
        case "GET", "property":
            return 200, found.get(key)
        case "PUT", "properties":
            policies.properties = {**found, **convert(command.body, dict[str, str])}
        case "PUT", "property":
            policies.properties = {**found, key: value}
        case "DELETE", "properties":
            policies.properties = {}
        case "DELETE", "property":
            policies.properties = {other: found[other] for other in found if other != key}
            ctx.namespaces[namespace] = policies
            return 200, found.get(key)
        case _:
            return None
    ctx.namespaces[namespace] = policies
    return 204, None


def _clusters(ctx: Context, namespace: str, command: Admin, call: str) -> tuple[int, Any] | None:
    """The clusters of the namespace: `standalone` is the only one that it can have."""
    if call not in ("replication", "allowedClusters") or command.method not in ("GET", "POST"):
        return None
    policies = ctx.namespaces.get(namespace) or Policies()
    if command.method == "GET":
        return 200, policies.kept.get(call, [CLUSTER] if call == "replication" else [])
    clusters: list[str] = convert(command.body, list[str])
    if call == "replication":
        check_clusters(clusters)
        if foreign := [name for name in clusters if name != CLUSTER]:
            raise AdminError(403, f"Invalid cluster id: {foreign[0]}")
    elif foreign := [name for name in clusters if name != CLUSTER]:
        raise AdminError(
            403,
            f"Cluster [{foreign[0]}] is not in the list of allowed clusters list for tenant [{tenant_of(namespace)}]",
        )
    policies.kept = {**policies.kept, call: clusters}
    ctx.namespaces[namespace] = policies
    return 200, None


def _migration(ctx: Context, namespace: str, command: Admin, call: str) -> tuple[int, Any] | None:
    """Say whether the namespace is migrated. Only one of a migrated cluster would be."""
    if (command.method, call) != ("POST", "migration"):
        return None
    policies = ctx.namespaces.get(namespace) or Policies()
    policies.kept = {**policies.kept, "migration": convert(command.body, bool)}
    ctx.namespaces[namespace] = policies
    return 204, None


def _resource_group(ctx: Context, namespace: str, command: Admin, call: str) -> tuple[int, Any] | None:
    """The resource group of the namespace: it can have none, since nothing would hold its limits."""
    name, _, group = call.partition("/")
    if name != "resourcegroup":
        return None
    if command.method in ("GET", "DELETE") and not group:
        return (200 if command.method == "GET" else 204), None
    if unquote(group) not in ctx.resources.get("resourcegroups", {}):
        raise AdminError(412, "ResourceGroup does not exist")
    raise AdminError(
        501, "the resource group of a namespace is not supported: use publishRate and dispatchRate"
    )


def _permissions(ctx: Context, namespace: str, command: Admin, call: str) -> tuple[int, Any] | None:
    """Which roles may do what, and which may use a subscription."""
    name, _, rest = call.partition("/")
    role, _, last = rest.partition("/")
    if name != "permissions":
        return None
    if role != "subscription" and not last:
        return call_permissions(ctx, namespace, command, f"/{name}/{role}" if role else f"/{name}")
    return _subscription_permissions(ctx, namespace, command, unquote(role), unquote(last))


def _subscription_permissions(
    ctx: Context, namespace: str, command: Admin, role: str, last: str
) -> tuple[int, Any]:
    """Who may use a subscription: GET and POST have it after ``subscription``, DELETE has it before the role."""
    policies = ctx.namespaces.get(namespace) or Policies()
    found: dict[str, list[str]] = policies.kept.get(SUBSCRIPTION_PERMISSIONS, {})
    match command.method:
        case "GET":
            return 200, found
        case "POST" | "PUT" if role == "subscription" and last:
            roles = convert(command.body, list[str])
            found = {**found, last: sorted({*found.get(last, []), *roles})}
        case "DELETE" if last and role not in found:
            raise AdminError(500, "couldn't find subscription")  # as a call fails that Pulsar did not expect
        case "DELETE" if last:
            left = {role: [each for each in found[role] if each != last]}
            found = {name: roles for name, roles in (found | left).items() if name != role or roles}
        case _:
            raise AdminError(405, f"{command.method} of permissions is not allowed")
    policies.kept = {**policies.kept, SUBSCRIPTION_PERMISSIONS: found}
    ctx.namespaces[namespace] = policies
    return 204, None


def _on_each_topic(
    ctx: Context, namespace: str, command: Admin, call: str, topics: Callable[[], Iterable[PersistentTopic]]
) -> OnTopic | None:
    """What a call does to each topic of a namespace, or of a bundle. None: it does nothing to topics."""
    if (found := _ON_TOPICS.find(command.method, f"/{call}")) is None:
        return None
    handler, names = found
    if (bundle := names.get("bundle")) is not None:
        bundles.check(ctx.namespaces.get(namespace) or Policies(), namespace, bundle)
    action = handler(decoded(names).get("subscription", ""), topics)
    return action if bundle is None else _in_bundle(bundle, action)


def _in_bundle(bundle: str, action: OnTopic) -> OnTopic:
    """An action on the topics of a bundle alone."""

    def in_bundle(ctx: Context, topic: PersistentTopic) -> None:
        if bundles.contains(bundle, topic.name):
            action(ctx, topic)

    return in_bundle


def _unload(subscription: str, topics: Callable[[], Iterable[PersistentTopic]]) -> OnTopic:
    """Close the topics until something uses them."""
    return unload


def _clear_backlogs(subscription: str, topics: Callable[[], Iterable[PersistentTopic]]) -> OnTopic:
    """Clear the backlog of every subscription, or of those of this name."""

    def clear(ctx: Context, topic: PersistentTopic) -> None:
        for name in topic.known_subscriptions():
            if not subscription or name == subscription:
                clear_backlog(ctx, topic, topic.subscriptions[name])

    return clear


def _unsubscribe(subscription: str, topics: Callable[[], Iterable[PersistentTopic]]) -> OnTopic:
    """Delete the subscriptions of this name, if none has consumers."""
    if any(
        subscription in each.subscriptions and each.subscriptions[subscription].consumers for each in topics()
    ):
        raise AdminError(412, "Subscription has active connected consumers")

    def delete(ctx: Context, topic: PersistentTopic) -> None:
        if subscription in topic.known_subscriptions():
            delete_subscription(ctx, topic, subscription)

    return delete


# -- the table ----------------------------------------------------------------------------------------------------

LISTS: Table[Callable[[Context, Admin, Names, Iterable[str], Container[str]], AdminAnswer]] = Table(
    "",
    (
        Call("GET", "/namespaces/{tenant}", _list_namespaces),
        Call("GET", "/namespaces/{cluster}/antiAffinity/{group}", _list_anti_affine),
        Call("GET", f"{NAMESPACE}/topics", _list_by_mode),
        Call("GET", "/{domain}/{tenant}/{namespace}", _list_topics),
        Call("GET", f"/{{domain}}/{{tenant}}/{{namespace}}/{PARTITIONED}", _list_partitioned),
    ),
)
"""The calls that list namespaces or topics."""

_WHOLE = Table(NAMESPACE, (Call("GET", "", _get), Call("PUT", "", _create), Call("DELETE", "", _delete)))

_ON_TOPICS: Table[Callable[[str, Callable[[], Iterable[PersistentTopic]]], OnTopic]] = Table(
    NAMESPACE,
    [
        Call(method, prefix + path, handler)
        for prefix in ("", "/{bundle}")
        for method, path, handler in (
            ("PUT", "/unload", _unload),
            ("POST", "/clearBacklog", _clear_backlogs),
            ("POST", "/clearBacklog/{subscription}", _clear_backlogs),
            ("POST", "/unsubscribe/{subscription}", _unsubscribe),
        )
    ],
)
"""The calls that do something to each topic of a namespace, or of one of its bundles."""

_BEFORE_POLICIES: Table[Callable[[Context, str, Admin, str], AdminAnswer | None]] = Table(
    NAMESPACE,
    (
        Call("GET", "/permissions", _permissions),
        Call("POST", "/permissions/{role}", _permissions),
        Call("DELETE", "/permissions/{role}", _permissions),
        Call("GET", "/permissions/subscription", _permissions),
        Call("POST", "/permissions/subscription/{subscription}", _permissions),
        Call("DELETE", "/permissions/{subscription}/{role}", _permissions),
        Call("GET", "/properties", _properties),
        Call("PUT", "/properties", _properties),
        Call("DELETE", "/properties", _properties),
        Call("GET", "/property/{key}", _properties),
        Call("PUT", "/property/{key}/{value}", _properties),
        Call("DELETE", "/property/{key}", _properties),
        Call("GET", "/replication", _clusters),
        Call("POST", "/replication", _clusters),
        Call("GET", "/allowedClusters", _clusters),
        Call("POST", "/allowedClusters", _clusters),
        Call("POST", "/migration", _migration),
        Call("GET", "/resourcegroup", _resource_group),
        Call("POST", "/resourcegroup/{group}", _resource_group),
        Call("DELETE", "/resourcegroup", _resource_group),
    ),
)
"""Each handler is asked in turn. It returns None if the call is about something else."""

_AFTER_POLICIES = Table(
    NAMESPACE,
    (
        Call("GET", "/bundles", _bundle_call),
        Call("PUT", "/{bundle}/split", _bundle_call),
        Call("GET", "/{bundle}/topicHashPositions", _bundle_call),
        Call("DELETE", "/{bundle}", _bundle_call),
    ),
)

CALLS: tuple[Call[Any], ...] = (
    *_WHOLE.calls,
    *_ON_TOPICS.calls,
    *_BEFORE_POLICIES.calls,
    *_AFTER_POLICIES.calls,
)
"""The calls on a namespace, but for those on its policies."""
