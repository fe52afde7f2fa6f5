"""Admin calls on what concerns the whole cluster (mirrors `ClustersBase`, `ResourceGroupsBase`, `ResourceQuotasBase`, `BookiesBase`).

All of it is kept and returned, and has no effect: there is one cluster with one broker and no bookies.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from schemas.commands import Admin
from schemas.units import Int32, Int64, unit
from streaming.broker.admin_requests import answered_from
from streaming.broker.admin_table import AdminAnswer, Call, Names, Table, decoded
from streaming.broker.context import Context, tenant_of
from streaming.broker.errors import AdminError
from streaming.broker.names import CLUSTER, is_tenant_name
from streaming.broker.parameters import flag, query
from streaming.broker.policies.arguments import convert


class ResourceQuota(msgspec.Struct):
    """The load that a bundle is expected to bring."""

    msgRateIn: Annotated[float, unit("messages/s")] = 0.0
    """What is published."""
    msgRateOut: Annotated[float, unit("messages/s")] = 0.0
    """What is sent to consumers."""
    bandwidthIn: Annotated[float, unit("bytes/s")] = 0.0
    """What is published."""
    bandwidthOut: Annotated[float, unit("bytes/s")] = 0.0
    """What is sent to consumers."""
    memory: Annotated[float, unit("MiB")] = 0.0
    """What its topics take."""
    dynamic: bool = True
    """Whether a broker may change it by what it measures."""


_DEFAULT_QUOTA = ResourceQuota(40.0, 120.0, 100_000.0, 300_000.0, 80.0)


class ResourceGroup(msgspec.Struct):
    """The limits of a resource group. None: not given."""

    publishRateInMsgs: Annotated[Int32 | None, unit("messages/s")] = None
    """How much may be published."""
    publishRateInBytes: Annotated[Int64 | None, unit("bytes/s")] = None
    """How much may be published."""
    dispatchRateInMsgs: Annotated[Int32 | None, unit("messages/s")] = None
    """How much may be sent to consumers."""
    dispatchRateInBytes: Annotated[Int64 | None, unit("bytes/s")] = None
    """How much may be sent to consumers."""


def call_resources(ctx: Context, command: Admin) -> bool:
    """Answer a call on the cluster's resources. False, and no answer: the call is about something else."""
    return answered_from(ctx, command, CALLS, lambda handler, names: handler(ctx, command, decoded(names)))


def clusters(ctx: Context) -> list[str]:
    """The names of all clusters. One that the admin API created takes no part in anything. quirk: one that was said to be migrated stays
    after it is deleted."""
    return sorted({CLUSTER, *ctx.resources.get("clusters", {}), *ctx.resources.get("migrations", {})})


def is_cluster(ctx: Context, name: str) -> bool:
    """Is there a cluster of that name?"""
    return name == CLUSTER or name in ctx.resources.get("clusters", {})


def _of(ctx: Context, kind: str) -> dict[str, Any]:
    return ctx.resources.setdefault(kind, {})


def _pop(ctx: Context, kind: str, name: str, status: int, reason: str) -> None:
    if _of(ctx, kind).pop(name, None) is None:
        raise AdminError(status, reason)


# -- clusters -----------------------------------------------------------------------------------------------------------

_URL = re.compile(r"(?P<scheme>[a-z+]+)://[^\s/]+/?")
_SCHEMES = {
    "serviceUrl": ("http", "Illegal service url, example: http://pulsar.example.com:8080"),
    "serviceUrlTls": ("https", "Illegal service tls url, example: https://pulsar.example.com:8443"),
    "brokerServiceUrl": ("pulsar", "Illegal broker service url, example: pulsar://pulsar.example.com:6650"),
    "brokerServiceUrlTls": (
        "pulsar+ssl",
        "Illegal broker service tls url, example: pulsar+ssl://pulsar.example.com:6651",
    ),
}
_CLUSTER_DEFAULTS = {
    "brokerClientTlsEnabled": False,
    "tlsAllowInsecureConnection": False,
    "brokerClientTlsEnabledWithKeyStore": False,
}


def _list_clusters(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """The names of the clusters."""
    return 200, clusters(ctx)


def _get_cluster(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """The cluster's addresses."""
    return 200, _known_cluster(ctx, names["cluster"])


def _known_cluster(ctx: Context, name: str) -> dict[str, Any]:
    found: dict[str, Any] | None = _of(ctx, "clusters").get(name)
    if found is None and name != CLUSTER:
        raise AdminError(404, "Cluster does not exist")
    return found or {}


def _put_cluster(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Create a cluster. The body has its addresses. It takes no part in anything."""
    name = names["cluster"]
    if not is_tenant_name(name):
        raise AdminError(412, "Cluster name is not valid")
    data = _cluster_data(command)
    if is_cluster(ctx, name):
        raise AdminError(409, "Cluster already exists")
    _of(ctx, "clusters")[name] = data
    return 200, None


def _post_cluster(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Replace the cluster's addresses by those in the body."""
    data = _cluster_data(command)
    _known_cluster(ctx, names["cluster"])
    _of(ctx, "clusters")[names["cluster"]] = data
    return 200, None


def _cluster_data(command: Admin) -> dict[str, Any]:
    if command.body is None:
        raise AdminError(400, "cluster data is required")
    data: dict[str, Any] = convert(command.body, dict[str, Any])
    for field, (scheme, reason) in _SCHEMES.items():
        for url in str(data.get(field) or "").split(","):
            if url and ((match := _URL.fullmatch(url)) is None or match["scheme"] != scheme):
                raise AdminError(400, reason)
    return _CLUSTER_DEFAULTS | {name: value for name, value in data.items() if value is not None}


def _delete_cluster(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Delete a cluster that is not the broker's own."""
    name = names["cluster"]
    if name == CLUSTER:
        raise AdminError(501, f"the cluster {CLUSTER} can't be deleted: it is the broker's own")
    _pop(ctx, "clusters", name, 404, "Cluster does not exist")
    for kind in (f"failureDomains/{name}", f"namespaceIsolationPolicies/{name}"):
        ctx.resources.pop(kind, None)
    return 204, None


def _get_peers(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """The names of the cluster's peers."""
    peers = _known_cluster(ctx, names["cluster"]).get("peerClusterNames")
    return 204 if peers is None and ctx.config.unsetNamespacePoliciesAre204 else 200, peers


def _post_peers(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Replace the cluster's peers by those in the body."""
    name, peers = names["cluster"], convert(command.body, list[str])
    for peer in peers:
        if peer == name:
            raise AdminError(412, f"{name} itself can't be part of peer-list")
        if not is_cluster(ctx, peer):
            raise AdminError(412, f"Peer cluster {peer} does not exist")
    _of(ctx, "clusters")[name] = _known_cluster(ctx, name) | {"peerClusterNames": peers}
    return 204, None


class ClusterUrl(msgspec.Struct, rename="camel", omit_defaults=True):
    """Where the clients of a migrated cluster are sent."""

    service_url: str | None = None
    service_url_tls: str | None = None
    broker_service_url: str | None = None
    broker_service_url_tls: str | None = None


def _get_migration(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Whether the cluster is migrated, and where to."""
    found = ctx.resources.get("migrations", {}).get(names["cluster"])
    if found is None:
        raise AdminError(404, "Cluster does not exist")  # quirk: also of one that does
    return 200, found


def _post_migration(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Say whether the cluster is migrated (`?migrated=true`), and where to. That has no effect, so the broker's own cluster can't be."""
    migrated = flag(command.path, "migrated")
    url = msgspec.to_builtins(convert(command.body or {}, ClusterUrl))
    if migrated and names["cluster"] == CLUSTER:
        raise AdminError(501, f"the cluster {CLUSTER} can't be migrated: clients would stay here")
    _of(ctx, "migrations")[names["cluster"]] = {
        "migrated": migrated,
        "migratedClusterUrl": url | {"empty": not url},
    }
    return 200, None


def _get_failure_domains(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """The cluster's failure domains, each with its brokers. quirk: a cluster that does not exist has none."""
    return 200, ctx.resources.get(f"failureDomains/{names['cluster']}", {})


def _get_failure_domain(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """The brokers of a failure domain."""
    check_cluster(ctx, names)
    cluster, domain = names["cluster"], names["failure_domain"]
    found = ctx.resources.get(f"failureDomains/{cluster}", {}).get(domain)
    if found is None:
        raise AdminError(404, f"Domain {domain} for cluster {cluster} does not exist")
    return 200, found


def _post_failure_domain(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Set the brokers of a failure domain. A broker is in one domain at most."""
    check_cluster(ctx, names)
    domains, name = _of(ctx, f"failureDomains/{names['cluster']}"), names["failure_domain"]
    brokers = convert(command.body, dict[str, list[str]]).get("brokers", [])
    given = set(brokers)
    for other, found in domains.items():
        if other != name and (both := sorted(given.intersection(found["brokers"]))):
            raise AdminError(409, f"[{', '.join(both)}] already exists in {other}")
    domains[name] = {"brokers": brokers}
    return 204, None


def _delete_failure_domain(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Delete a failure domain."""
    check_cluster(ctx, names)
    cluster, domain = names["cluster"], names["failure_domain"]
    reason = f"Domain-name {domain} or cluster {cluster} does not exist"
    _pop(ctx, f"failureDomains/{cluster}", domain, 404, reason)
    return 200, None


def _get_isolation_policies(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """The cluster's namespace isolation policies."""
    if not is_cluster(ctx, names["cluster"]):
        raise AdminError(404, f"Cluster {names['cluster']} does not exist.")
    return 200, _isolation_policies(ctx, names)


def _isolation_policies(ctx: Context, names: Names) -> dict[str, Any]:
    found = ctx.resources.get(f"namespaceIsolationPolicies/{names['cluster']}")
    if found is None:
        raise AdminError(404, f"NamespaceIsolationPolicies for cluster {names['cluster']} does not exist")
    return found


def _get_isolation_policy(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """A namespace isolation policy."""
    check_cluster(ctx, names)
    found = _isolation_policies(ctx, names).get(names["policy"])
    if found is None:
        raise AdminError(
            404, f"Cannot find NamespaceIsolationPolicy {names['policy']} for cluster {names['cluster']}"
        )
    return 200, found


def _post_isolation_policy(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Set a namespace isolation policy."""
    check_cluster(ctx, names)
    policy = convert(command.body, dict[str, Any])
    if not policy.get("namespaces") or not policy.get("primary") or not policy.get("auto_failover_policy"):
        raise AdminError(400, "namespaces, primary and auto_failover_policy are required")
    _of(ctx, f"namespaceIsolationPolicies/{names['cluster']}")[names["policy"]] = policy
    return 204, None


def _delete_isolation_policy(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Delete a namespace isolation policy."""
    check_cluster(ctx, names)
    _isolation_policies(ctx, names).pop(names["policy"], None)
    return 204, None


def check_cluster(ctx: Context, names: Names) -> None:
    """Raises `AdminError` if there is no such cluster."""
    if not is_cluster(ctx, names["cluster"]):
        raise AdminError(412, f"Cluster {names['cluster']} does not exist.")


# -- resource groups and quotas -----------------------------------------------------------------------------------------


def _list_groups(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """The names of the resource groups."""
    return 200, sorted(ctx.resources.get("resourcegroups", {}))


def _get_group(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """The limits of a resource group. −1: none."""
    found = ctx.resources.get("resourcegroups", {}).get(names["group"])
    if found is None:
        raise AdminError(404, "ResourceGroup does not exist")
    return 200, {field: -1 if value is None else value for field, value in found.items()}


def _put_group(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Create a resource group, or change the limits that the body has."""
    if command.body is None:
        raise AdminError(412, "ResourceGroup is null")
    given = msgspec.to_builtins(convert(command.body, ResourceGroup))
    groups = _of(ctx, "resourcegroups")
    former = groups.get(names["group"], {})
    groups[names["group"]] = {
        field: former.get(field) if value is None else value for field, value in given.items()
    }
    return 204, None


def _delete_group(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Delete a resource group."""
    _pop(ctx, "resourcegroups", names["group"], 404, "ResourceGroup does not exist")
    return 204, None


def _get_quota(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """The load that a bundle is expected to bring; without a bundle, the default."""
    quotas = ctx.resources.get("resource-quotas", {})
    default = quotas.get("", msgspec.to_builtins(_DEFAULT_QUOTA))
    return 200, quotas.get(_quota_of(ctx, names), default)


def _post_quota(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Set the load that a bundle is expected to bring, or the default."""
    quota = convert(command.body, ResourceQuota)
    _of(ctx, "resource-quotas")[_quota_of(ctx, names)] = msgspec.to_builtins(quota)
    return 204, None


def _delete_quota(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Remove what is set for a bundle."""
    _of(ctx, "resource-quotas").pop(_quota_of(ctx, names), None)
    return 204, None


def _quota_of(ctx: Context, names: Names) -> str:
    """The name of a quota: ``tenant/namespace/bundle``; empty for the default."""
    namespace = "/".join(names[key] for key in ("tenant", "namespace") if key in names)
    if namespace and ctx.config.namespacesMustExist and namespace not in ctx.namespaces:
        known = any(tenant_of(each) == names["tenant"] for each in ctx.namespaces)
        raise AdminError(404, "Namespace does not exist" if known else "Tenant does not exist")
    return f"{namespace}/{names['bundle']}" if namespace else ""


# -- bookies ------------------------------------------------------------------------------------------------------------


def _bookies(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """The bookies: there are none."""
    return 200, {"bookies": []}


def _racks(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """The racks of the bookies, by group."""
    found: dict[str, dict[str, Any]] = {}
    for bookie, (group, info) in ctx.resources.get("racks", {}).items():
        found.setdefault(group, {})[bookie] = info
    return 200, found


def _get_rack(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """The rack of a bookie."""
    found = ctx.resources.get("racks", {}).get(names["bookie"])
    if found is None:
        raise AdminError(404, f"Bookie rack placement configuration not found: {names['bookie']}")
    return 200, found[1]


def _post_rack(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Set the rack of a bookie, in the group `?group=…`."""
    group = query(command.path).get("group")
    if not group:
        raise AdminError(412, "Bookie 'group' parameters is missing")
    _of(ctx, "racks")[names["bookie"]] = [group, convert(command.body, dict[str, Any])]
    return 204, None


def _delete_rack(ctx: Context, command: Admin, names: Names) -> AdminAnswer:
    """Remove the rack of a bookie."""
    reason = f"Bookie rack placement configuration not found: {names['bookie']}"
    _pop(ctx, "racks", names["bookie"], 404, reason)
    return 204, None


_CLUSTER = "/clusters/{cluster}"
_ISOLATION = f"{_CLUSTER}/namespaceIsolationPolicies"
_QUOTA = "/resource-quotas/{tenant}/{namespace}/{bundle}"

CALLS: Table[Callable[[Context, Admin, Names], AdminAnswer]] = Table(
    "",
    (
        Call("GET", "/clusters", _list_clusters),
        Call("GET", _CLUSTER, _get_cluster),
        Call("PUT", _CLUSTER, _put_cluster),
        Call("POST", _CLUSTER, _post_cluster),
        Call("DELETE", _CLUSTER, _delete_cluster),
        Call("GET", f"{_CLUSTER}/peers", _get_peers),
        Call("POST", f"{_CLUSTER}/peers", _post_peers),
        Call("GET", f"{_CLUSTER}/migrate", _get_migration),
        Call("POST", f"{_CLUSTER}/migrate", _post_migration),
        Call("GET", f"{_CLUSTER}/failureDomains", _get_failure_domains),
        Call("GET", f"{_CLUSTER}/failureDomains/{{failure_domain}}", _get_failure_domain),
        Call("POST", f"{_CLUSTER}/failureDomains/{{failure_domain}}", _post_failure_domain),
        Call("DELETE", f"{_CLUSTER}/failureDomains/{{failure_domain}}", _delete_failure_domain),
        Call("GET", _ISOLATION, _get_isolation_policies),
        Call("GET", f"{_ISOLATION}/{{policy}}", _get_isolation_policy),
        Call("POST", f"{_ISOLATION}/{{policy}}", _post_isolation_policy),
        Call("DELETE", f"{_ISOLATION}/{{policy}}", _delete_isolation_policy),
        Call("GET", "/resourcegroups", _list_groups),
        Call("GET", "/resourcegroups/{group}", _get_group),
        Call("PUT", "/resourcegroups/{group}", _put_group),
        Call("DELETE", "/resourcegroups/{group}", _delete_group),
        Call("GET", "/resource-quotas", _get_quota),
        Call("POST", "/resource-quotas", _post_quota),
        Call("GET", _QUOTA, _get_quota),
        Call("POST", _QUOTA, _post_quota),
        Call("DELETE", _QUOTA, _delete_quota),
        Call("GET", "/bookies/all", _bookies),
        Call("GET", "/bookies/racks-info", _racks),
        Call("GET", "/bookies/racks-info/{bookie}", _get_rack),
        Call("POST", "/bookies/racks-info/{bookie}", _post_rack),
        Call("DELETE", "/bookies/racks-info/{bookie}", _delete_rack),
    ),
)
"""The calls on the cluster."""
