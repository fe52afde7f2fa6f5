"""Topics that nobody uses are deleted: what this means for topics of both kinds (mirrors `checkGC`).

The rules are those of Pulsar 4.0.7's classes and were tried on it. A round of the check finds a topic in use, and notes the time, or
unused since the last such time, in which case the topic may be deleted. A topic is also in use when it is loaded, when a producer
leaves, and when a durable subscription is deleted.
"""

from collections.abc import Iterable

from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import Context
from streaming.broker.names import is_system_topic
from streaming.broker.policies.hierarchy import InactiveTopicPolicies
from streaming.broker.producer.producer import Producer
from streaming.broker.topic.abstract_topic import AbstractTopic


def policy(ctx: Context, topic: AbstractTopic) -> InactiveTopicPolicies | None:
    """The policy that says when the topic is deleted because nobody uses it. None: it never is."""
    return None if why_off(ctx, topic) is not None else ctx.policies_of(topic).inactiveTopicPolicies


def why_off(ctx: Context, topic: AbstractTopic) -> str | None:
    """Why the topic is never deleted because nobody uses it. None: it may be."""
    if not ctx.config.brokerDeleteInactiveTopicsEnabled:
        return "brokerDeleteInactiveTopicsEnabled is false"
    if not ctx.policies_of(topic).inactiveTopicPolicies.deleteWhileInactive:
        return "deleteWhileInactive is false"
    return "it is a system topic" if is_system_topic(topic.name) else None


def has_local_producers(producers: Iterable[Producer]) -> bool:
    """Does anybody but a replicator publish to the topic?"""
    return any(not producer.is_remote for producer in producers)


def interval(config: ServiceConfiguration) -> int:
    """The interval of the check (ms). 0: off."""
    return (
        config.brokerDeleteInactiveTopicsFrequencySeconds * 1000
        if config.brokerDeleteInactiveTopicsEnabled
        else 0
    )
