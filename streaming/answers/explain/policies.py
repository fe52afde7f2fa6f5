"""Which policies hold: those in force on a topic, with the level that sets each, and those that namespaces set."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from streaming.answers.history.folders import Folders, NotFound
from streaming.broker.policies.hierarchy import (
    LEVELS,
    NO_POLICIES,
    Effective,
    HierarchyTopicPolicies,
    Policies,
    effective,
)

_INTERNAL = {"throttled", "publish_throttled", "messages_encrypted"}
_QUOTAS = {"destination_storage_quota": "destination_storage", "message_age_quota": "message_age"}


class Policy(msgspec.Struct):
    """A policy by Pulsar's name, its value as JSON has it, and the level that sets it. Units are those of the admin API."""

    policy: str
    value: Any
    level: Literal["topic", "namespace", "broker"]


class NamespacePolicies(msgspec.Struct):
    """What a namespace sets."""

    namespace: str
    policies: list[Policy]


def topic_policies(folders: Folders, topic: str) -> list[Policy]:
    """The policies in force on a topic (its full name) as of the last state. Raises `NotFound`."""
    broker = folders.broker_of(topic)
    if broker is None:
        raise NotFound(f"{topic} was deleted: the last state does not have it")
    in_force, own = broker.policies(topic)
    tenant, namespace = topic.partition("://")[2].split("/")[:2]
    of_namespace = broker.namespace_policies.get(f"{tenant}/{namespace}", NO_POLICIES)

    def policy(name: str) -> Policy:
        value = getattr(in_force, name)
        if isinstance(value, Effective):
            return Policy(_QUOTAS.get(name, name), msgspec.to_builtins(value.value), value.level)
        if name in LEVELS:
            level = effective(name, own, of_namespace, broker.config).level
        else:  # by subscription, of a topic only
            level = "topic" if value else "broker"
        return Policy(
            name, sorted(value) if isinstance(value, frozenset) else msgspec.to_builtins(value), level
        )

    return [policy(name) for name in HierarchyTopicPolicies.__struct_fields__ if name not in _INTERNAL]


def namespace_policies(folders: Folders) -> list[NamespacePolicies]:
    """What the namespaces set as of the last state, sorted by name. Every ingress partition has those of all namespaces."""
    found: dict[str, Policies] = {}
    for broker in folders.brokers().values():
        found |= broker.namespace_policies
    return [
        NamespacePolicies(
            name,
            [Policy(policy, value, "namespace") for policy, value in msgspec.to_builtins(policies).items()],
        )
        for name, policies in sorted(found.items())
    ]
