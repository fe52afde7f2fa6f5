"""What periodic checks do to a topic next, and why they have not yet: the core's own predicates on the last state."""

from __future__ import annotations

from streaming.answers.history.folders import Folders
from streaming.broker.persistent.cleanup.inactive_subscriptions import InactiveSubscriptions
from streaming.broker.persistent.cleanup.inactivity import InactiveTopic
from streaming.broker.persistent.cleanup.message_expiry import Expiry
from streaming.broker.persistent.publish.deduplication_snapshots import DeduplicationSnapshots
from streaming.broker.persistent.publish.producer_purge import AbsentProducers


def explain_expiry(folders: Folders, topic: str) -> Expiry:
    """What message TTL expires next of each subscription of a topic (its full name), and what keeps it from more, as of the last state.

    Decodes the topic, and what changes until then. Raises `NotFound`.
    """
    return folders.copy_of_broker(topic).expiry(topic)


def explain_inactivity(folders: Folders, topic: str) -> tuple[InactiveTopic, InactiveSubscriptions]:
    """Why a topic (its full name) and its subscriptions are not deleted although nobody uses them, or when they are.

    Decodes the topic, and what changes until then. Raises `NotFound`.
    """
    broker = folders.copy_of_broker(topic)
    subscriptions = broker.inactive_subscriptions(topic)  # first, as it lets no time pass
    return broker.inactivity(topic), subscriptions


def explain_deduplication(folders: Folders, topic: str) -> tuple[DeduplicationSnapshots, AbsentProducers]:
    """When the sequence ids of a topic (its full name) are stored next, what a load would not bring back, and which producers are forgotten.

    Decodes the topic, what changes until then, and the entries after the last snapshot. Raises `NotFound`.
    """
    broker = folders.copy_of_broker(topic)
    snapshots = broker.deduplication(topic)  # first, as it lets no time pass
    return snapshots, broker.absent_producers(topic)
