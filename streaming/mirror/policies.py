"""A cluster's settings and policies, as commands that set what is new."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from schemas.commands.mirror import UnknownRules
from streaming.broker.admin_requests import topic_path
from streaming.broker.context import namespace_of
from streaming.broker.persistent.cleanup import backlog_quota
from streaming.broker.policies.admin_calls import ALL_POLICIES
from streaming.mirror.progress import WholeChange
from streaming.record.policies import PolicyCall, namespace_policies, settings_of, topic_policies
from streaming.record.rest import DENIED, CallFailed, Rest, understood

_DENIED_SECONDS = 600.0
"""For so long nobody asks for the policies of topics after the cluster has refused them."""

_SETTINGS, _TOPICS = "the brokers' settings, so the defaults hold", "the policies of topics"

_OF_NAMESPACE = "the policies of namespace"
POLICIES = (_OF_NAMESPACE, "the policies of persistent")
"""Begin what is refused of a namespace, and of a topic."""


class ClusterPolicies:
    """What was last seen of a cluster's settings and policies. `refused`: why some are not known or not applied, by what they are."""

    def __init__(self, rest: Rest, *, goes_on: bool) -> None:
        """`goes_on`: the log may already have policies."""
        self.refused: dict[str, str] = {}
        self._rest, self._goes_on = rest, goes_on
        self._settings: dict[str, Any] | None = None
        self._cluster: str | None = None
        self._namespaces: dict[str, Any] = {}
        self._topics: dict[str, dict[str, PolicyCall]] = {}
        self._denied_at = -_DENIED_SECONDS

    def of_broker(self) -> Iterator[WholeChange]:
        """The settings, if they are new. Raises `CallFailed` if the cluster can't be reached."""
        try:
            with understood(self._rest.url):
                found = settings_of(self._rest)
        except CallFailed as error:
            self._deny(_SETTINGS, error)
            return
        self.refused.pop(_SETTINGS, None)
        self._cluster = found.cluster
        self.refused |= dict.fromkeys(found.refused, "")
        command = {"command": "BROKER_CONFIG", "profile": found.profile, "settings": found.settings}
        if command != self._settings:
            self._settings = command
            yield WholeChange(None, command)

    def of_namespaces(self, namespaces: Iterable[str]) -> Iterator[WholeChange]:
        """The policies of namespaces that are new. Raises as `of_broker`."""
        for namespace in namespaces:
            what = f"{_OF_NAMESPACE} {namespace}"
            try:
                with understood(self._rest.url):
                    found = namespace_policies(self._rest, namespace, self._cluster)
            except CallFailed as error:
                self._deny(what, error)
                continue
            self.refused.pop(what, None)
            self.refused |= dict.fromkeys(found.refused, "")
            body = found.calls[0].body if found.calls else {}
            if body != self._namespaces.get(namespace):
                self._namespaces[namespace] = body
                yield WholeChange(None, PolicyCall("PUT", f"/namespaces/{namespace}", body).as_command())

    def of_topic(self, topic: str, *, partitioned: bool) -> Iterator[WholeChange]:
        """The policies of a topic that are new. `partitioned`: it stands for all of its partitions. Raises as `of_broker`."""
        path = topic_path(topic)
        if self.are_denied:
            return
        try:
            with understood(self._rest.url):
                found = {_key(call): call for call in topic_policies(self._rest, path)}
        except CallFailed as error:
            of_all = error.status in DENIED
            self._deny(_TOPICS if of_all else f"the policies of {topic}", error)
            if of_all:
                self._denied_at = time.monotonic()
            return
        for what in (_TOPICS, f"the policies of {topic}"):
            self.refused.pop(what, None)
        before = self._topics.get(topic)
        self._topics[topic] = found
        of = None if partitioned else topic
        if before is None:
            if self._goes_on:
                yield WholeChange(of, PolicyCall("DELETE", f"{path}/{ALL_POLICIES}").as_command())
            before = {}
        yield from (
            WholeChange(of, PolicyCall("DELETE", key).as_command()) for key in before if key not in found
        )
        yield from (
            WholeChange(of, call.as_command()) for key, call in found.items() if before.get(key) != call
        )

    @property
    def are_denied(self) -> bool:
        """Whether the policies of topics were refused lately, so that nobody asks for them."""
        return time.monotonic() < self._denied_at + _DENIED_SECONDS

    def allow(self) -> None:
        """Ask for what was refused."""
        self._denied_at = -_DENIED_SECONDS

    def evicts(self, topic: str) -> bool:
        """Whether a quota of a topic may evict, on any level."""
        namespace = self._namespaces.get(namespace_of(topic), {})
        quotas = [*namespace.get("backlog_quota_map", {}).values()]
        quotas += [call.body for key, call in self._topics.get(topic, {}).items() if "backlogQuota" in key]
        default = {} if self._settings is None else self._settings["settings"]
        policies = [
            default.get("backlogQuotaDefaultRetentionPolicy"),
            *(each.get("policy") for each in quotas),
        ]
        return any(map(backlog_quota.evicts, policies))

    def retains(self, topic: str, time: int, size: int) -> bool:
        """Whether a topic's retention keeps what is younger than `time` (ms) as long as there are no more than `size` bytes of it. Raises
        TypeError and ValueError for one that no broker shows."""
        if topic not in self._topics or self._settings is None:
            return False
        settings = self._settings["settings"]
        found: dict[str, Any] = {
            "retentionTimeInMinutes": settings.get("defaultRetentionTimeInMinutes", 0),
            "retentionSizeInMB": settings.get("defaultRetentionSizeInMB", 0),
        }
        found |= self._namespaces.get(namespace_of(topic), {}).get("retention_policies") or {}
        for call in self._topics[topic].values():
            if call.path.endswith("/retention"):
                found |= call.body
        retention = msgspec.convert(found, _Retention)
        minutes, megabytes = retention.retentionTimeInMinutes, retention.retentionSizeInMB
        return (minutes == -1 or time < minutes * 60_000) and (megabytes == -1 or size < megabytes << 20)

    def unknown(self, topic: str) -> list[UnknownRules]:
        """Which of the rules for a topic the cluster did not tell."""
        found: list[UnknownRules] = []
        if _SETTINGS in self.refused:
            found.append("settings")
        if f"{_OF_NAMESPACE} {namespace_of(topic)}" in self.refused:
            found.append("policies of the namespace")
        if _TOPICS in self.refused or f"the policies of {topic}" in self.refused:
            found.append("policies of the topic")
        return found

    def forget(self, topic: str) -> None:
        """A topic was deleted."""
        self._topics.pop(topic, None)
        self.refused.pop(f"the policies of {topic}", None)

    def _deny(self, what: str, error: CallFailed) -> None:
        if error.status is None:
            raise error
        self.refused[what] = str(error)


class _Retention(msgspec.Struct):
    retentionTimeInMinutes: int
    retentionSizeInMB: int


def _key(call: PolicyCall) -> str:
    """The path with which a policy is removed."""
    path, _, query = call.path.partition("?")
    return path if query.startswith("messageTTL") else call.path
