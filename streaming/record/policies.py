"""What a real Pulsar's admin API tells of its configuration: settings, tenants, policies and partitioned topics, as admin calls that
set them."""

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, NamedTuple

from schemas.commands import Profile
from streaming.broker.admin.namespace_policies import is_unset, take
from streaming.broker.admin_requests import topic_path
from streaming.broker.config import configuration, profile_of, stand_in
from streaming.broker.names import CLUSTER
from streaming.broker.policies.admin_calls import TOPIC_POLICIES
from streaming.broker.policies.kept import KEPT, MAY_HAVE_SECRETS
from streaming.log.broker_settings import sort_out
from streaming.record.rest import CallFailed, PartitionCount, Rest, TenantShown, understood

SYSTEM = "pulsar/"
"""The tenant whose namespaces hold only what Pulsar itself needs."""

SYSTEM_NAMES = "__"
"""Begins the names of topics and cursors that Pulsar needs for itself."""


class PolicyCall(NamedTuple):
    """An admin call: its path below ``/admin/v2``, and its body as JSON."""

    method: str
    path: str
    body: Any = None

    def as_command(self) -> dict[str, Any]:
        """The call as a command, as JSON."""
        body = {} if self.body is None else {"body": self.body}
        return {"command": "ADMIN", "method": self.method, "path": self.path, **body}


def is_namespace(given: str) -> bool:
    """Whether an argument names a namespace, and not a topic."""
    return "://" not in given and given.count("/") == 1


class BrokerSettings(NamedTuple):
    """A broker's `version` and `profile`, those of its `settings` that Magnetar knows and that are not the profile's, its `cluster`, and
    why others are `refused`, as its release line's profile may be."""

    version: str
    profile: Profile
    settings: dict[str, Any]
    cluster: str | None
    refused: list[str]


def settings_of(rest: Rest, *, transactions: bool = False) -> BrokerSettings:
    """What is known of the broker. `transactions`: see `sort_out`. Raises `CallFailed`."""
    version = rest.get("/brokers/version", str)
    profile = profile_of(version)
    defaults = configuration(profile, {})
    shown = rest.get("/brokers/configuration/runtime")
    found = sort_out(shown, profile, transactions=transactions)
    differing = {
        name: value
        for name, value in found.applied.items()
        if getattr(configuration(profile, {name: value}), name) != getattr(defaults, name)
    }
    refused = [*found.not_applied.values(), *found.bad.values()]
    if found.unknown:
        refused.append(
            f"{len(found.unknown):,} settings that no known release has, such as {next(iter(found.unknown))}"
        )
    if missing := stand_in(version):
        refused.append(missing)
    cluster = shown.get("clusterName")
    return BrokerSettings(version, profile, differing, cluster if isinstance(cluster, str) else None, refused)


def tenant_call(rest: Rest, tenant: str) -> PolicyCall:
    """The call that creates a tenant. Its clusters have no effect, and Magnetar has one. Raises `CallFailed`."""
    path = f"/tenants/{tenant}"
    roles = rest.get(path, TenantShown).adminRoles
    return PolicyCall("PUT", path, {"adminRoles": roles, "allowedClusters": [CLUSTER]})


def namespaces_of(rest: Rest, tenant: str) -> list[str]:
    """The namespaces of a tenant as ``tenant/namespace``, but for Pulsar's own. Raises `CallFailed`."""
    names = rest.get(f"/namespaces/{tenant}", list[str])
    return [name for name in names if not name.startswith(SYSTEM)]


class FoundPolicies(NamedTuple):
    """The `calls` that set the policies of a namespace, and why others are `refused`."""

    calls: list[PolicyCall]
    refused: list[str]


def namespace_policies(rest: Rest, namespace: str, cluster: str | None) -> FoundPolicies:
    """The policies of a namespace, in one call that sets all of them: single calls would be refused where the namespace was created with
    its policies. `cluster`: the name of the cluster, if it is known. Raises `CallFailed`."""
    path = f"/namespaces/{namespace}"
    shown = rest.get(path)
    taken = take(shown, cluster)
    body = {name: value for name, value in taken.body.items() if not is_unset(name, value)}
    refused = [f"{path}: {name}: {why}" for name, why in taken.not_applied.items()]
    return FoundPolicies([PolicyCall("PUT", path, body)] if body else [], refused)


def topic_policies(rest: Rest, path: str) -> Iterator[PolicyCall]:
    """The policies that are set on a topic, by its path, but for the one that may have passwords. Pulsar shows some of those without
    effect here as false if they are not set. Raises `CallFailed`."""
    for name in TOPIC_POLICIES:
        if name == MAY_HAVE_SECRETS:
            continue
        if name == "backlogQuota":
            for kind, quota in (_set(rest, f"{path}/backlogQuotaMap") or {}).items():
                yield PolicyCall("POST", f"{path}/backlogQuota?backlogQuotaType={kind}", quota)
        elif (value := _set(rest, f"{path}/{name}")) not in (None, []) and not (name in KEPT and not value):
            yield (
                PolicyCall("POST", f"{path}/{name}?messageTTL={value}")
                if name == "messageTTL"
                else PolicyCall("POST", f"{path}/{name}", value)
            )


def partitioned_topics(rest: Rest, namespace: str) -> Iterator[PolicyCall]:
    """The partitioned topics of a namespace. Raises `CallFailed`."""
    for domain in ("persistent", "non-persistent"):
        for topic in rest.get(f"/{domain}/{namespace}/partitioned", list[str]):
            with understood(rest.url):
                path = topic_path(topic)
            count = rest.get(f"{path}/partitions", PartitionCount).partitions
            yield PolicyCall("PUT", f"{path}/partitions", count)


def _set(rest: Rest, path: str) -> Any:
    """What a policy is; None if it is not set, or the broker does not have it."""
    status, value = rest.call("GET", path)
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        return None
    if status >= HTTPStatus.BAD_REQUEST:
        raise CallFailed(f"GET {path}: {status}", status)
    return value
