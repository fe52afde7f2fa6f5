"""Which policies hold: those in force on a topic, with the level that sets each, and those that namespaces set."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from streaming.answers.folders import Folders, NotFound
from streaming.broker.policies.hierarchy import NO_POLICIES, Effective, HierarchyTopicPolicies, Policies

_INTERNAL = {"throttled", "publish_throttled"}
_QUOTAS = {"destination_storage_quota": "destination_storage", "message_age_quota": "message_age"}

_UNSET: tuple[object, ...] = (None, {})


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
    return [
        _policy(name, getattr(in_force, name), own, of_namespace)
        for name in HierarchyTopicPolicies.__struct_fields__
        if name not in _INTERNAL
    ]


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


def _policy(name: str, value: Any, own: Policies, of_namespace: Policies) -> Policy:
    if isinstance(value, Effective):
        return Policy(_QUOTAS.get(name, name), msgspec.to_builtins(value.value), value.level)
    plain = sorted(value) if isinstance(value, frozenset) else msgspec.to_builtins(value)
    if getattr(own, name) not in _UNSET:
        return Policy(name, plain, "topic")
    return Policy(name, plain, "broker" if getattr(of_namespace, name) in _UNSET else "namespace")
