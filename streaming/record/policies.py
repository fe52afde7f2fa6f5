"""What a real Pulsar's admin API tells of its configuration: settings, policies and partitioned topics, as admin calls that set
them."""

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, NamedTuple

from schemas.commands import Profile
from streaming.broker.admin_requests import topic_path
from streaming.broker.config import BadSetting, ServiceConfiguration, configuration, profile_of, stand_in
from streaming.broker.policies.admin_calls import NAMESPACE_POLICIES, TOPIC_POLICIES
from streaming.record.rest import CallFailed, Rest

SYSTEM = "pulsar/"
"""The tenant whose namespaces hold only what Pulsar itself needs."""


_NOT_RECORDED = {"namespacesMustExist", "profile"}
"""Settings of `magnetar serve` that a log can't have: it lacks the calls that created what was there before, and a profile is none."""


class PolicyCall(NamedTuple):
    """An admin call: its path below ``/admin/v2``, and its body as JSON."""

    method: str
    path: str
    body: Any = None


class BrokerSettings(NamedTuple):
    """A broker's `version` and `profile`, those of its `settings` that Magnetar knows and that are not the profile's, and why others
    are `refused`, as its release line's profile may be."""

    version: str
    profile: Profile
    settings: dict[str, Any]
    refused: list[str]


def settings_of(rest: Rest) -> BrokerSettings:
    """What is known of the broker. Raises `CallFailed`."""
    version = str(rest.get("/brokers/version"))
    profile = profile_of(version)
    known, defaults = ServiceConfiguration.__struct_fields__, configuration(profile, {})
    found, refused = dict[str, Any](), list[str]()
    for name, value in rest.get("/brokers/configuration/runtime").items():
        if name in known and name not in _NOT_RECORDED and value:  # Java shows null as nothing
            if value.startswith("[") and value.endswith("]"):  # a set, as Java shows it
                value = value[1:-1].replace(" ", "")
            try:
                if getattr(configuration(profile, {name: value}), name) != getattr(defaults, name):
                    found[name] = value
            except BadSetting as error:
                refused.append(str(error))
    if missing := stand_in(version):
        refused.append(missing)
    return BrokerSettings(version, profile, found, refused)


def namespaces_of(rest: Rest) -> Iterator[str]:
    """The namespaces as ``tenant/namespace``, but for Pulsar's own. Raises `CallFailed`."""
    for tenant in rest.get("/tenants"):
        yield from (name for name in rest.get(f"/namespaces/{tenant}") if not name.startswith(SYSTEM))


def namespace_policies(rest: Rest, namespace: str) -> Iterator[PolicyCall]:
    """The policies that are set on a namespace. Raises `CallFailed`."""
    return _policies(rest, f"/namespaces/{namespace}", NAMESPACE_POLICIES)


def topic_policies(rest: Rest, path: str) -> Iterator[PolicyCall]:
    """The policies that are set on a topic, by its path. Raises `CallFailed`."""
    return _policies(rest, path, TOPIC_POLICIES)


def partitioned_topics(rest: Rest, namespace: str) -> Iterator[PolicyCall]:
    """The partitioned topics of a namespace. Raises `CallFailed`."""
    for domain in ("persistent", "non-persistent"):
        for topic in rest.get(f"/{domain}/{namespace}/partitioned"):
            path = topic_path(topic)
            yield PolicyCall("PUT", f"{path}/partitions", rest.get(f"{path}/partitions")["partitions"])


def _policies(rest: Rest, base: str, names: Iterable[str]) -> Iterator[PolicyCall]:
    for name in names:
        if name == "backlogQuota":
            for kind, quota in (_set(rest, f"{base}/backlogQuotaMap") or {}).items():
                yield PolicyCall("POST", f"{base}/backlogQuota?backlogQuotaType={kind}", quota)
        elif (value := _set(rest, f"{base}/{name}")) not in (None, []):
            of_topic = name == "messageTTL" and base.count("/") > _IN_NAMESPACE
            yield (
                PolicyCall("POST", f"{base}/{name}?messageTTL={value}")
                if of_topic
                else PolicyCall("POST", f"{base}/{name}", value)
            )


def _set(rest: Rest, path: str) -> Any:
    """What a policy is; None if it is not set, or the broker does not have it."""
    status, value = rest.call("GET", path)
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        return None
    if status >= HTTPStatus.BAD_REQUEST:
        raise CallFailed(f"GET {path}: {status}")
    return value


_IN_NAMESPACE = 3
"""The slashes in a namespace's path."""
