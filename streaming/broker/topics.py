"""The topics of an ingress partition, by domain: loaded from the state when something touches them, created, and given
their commands (mirrors `BrokerService`).
"""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from streaming.broker.abstract_topic import AbstractTopic
from streaming.broker.codec import (
    PartitionState,
    TopicBlock,
    decode_non_persistent_topic,
    decode_topic,
    encode_topic,
)
from streaming.broker.context import Context
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.non_persistent import commands as non_persistent_commands
from streaming.broker.non_persistent import stats as non_persistent_stats
from streaming.broker.non_persistent.topic import NonPersistentTopic
from streaming.broker.persistent import commands, lifecycle, unacked_limit
from streaming.broker.persistent import stats as persistent_stats
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.stats import internal_stats
from streaming.broker.topic_commands import TopicCommand

T = TypeVar("T", bound=AbstractTopic)


class Topics(ABC, Generic[T]):
    """The topics of one domain. `state` holds the encoded topics of both."""

    def __init__(self, ctx: Context, state: PartitionState) -> None:
        self._ctx, self._state = ctx, state
        self._loaded: dict[str, T] = {}

    def load(self, name: str) -> T:
        """A topic, decoded from the state, or created if the state does not have it."""
        topic = self._loaded.get(name)
        if topic is None:
            block = self._state.topics.get(name)
            if block is None:
                self._state.topics[name] = TopicBlock(b"")
                topic = self._loaded[name] = self._create(name)
            else:
                topic = self._loaded[name] = self._decode(block.data)
        return topic

    def loaded(self, name: str) -> T | None:
        """A topic if it is loaded already."""
        return self._loaded.get(name)

    def carry_out(self, name: str, command: TopicCommand) -> None:
        """Carry out a command, and everything that follows from it. A missing topic is created first."""
        self._carry_out(self.load(name), command)

    def answer_missing(self, name: str, command: TopicCommand) -> None:
        """Answer a command on a topic that does not exist and that the command does not create, as an empty topic does."""
        self._carry_out(self._missing(name), command)

    def encode(self) -> None:
        """Encode the loaded topics into the state."""
        for name, topic in self._loaded.items():
            block = self._state.topics[name]
            block.data = encode_topic(topic)
            self._summarise(topic, block)

    @abstractmethod
    def _create(self, name: str) -> T:
        """Create a topic."""

    @abstractmethod
    def _decode(self, data: bytes) -> T:
        """A topic as `encode_topic` left it."""

    @abstractmethod
    def _summarise(self, topic: T, block: TopicBlock) -> None:
        """Note in the block what the broker must know without decoding it."""

    @abstractmethod
    def _missing(self, name: str) -> T:
        """An empty topic that is not kept."""

    @abstractmethod
    def _carry_out(self, topic: T, command: TopicCommand) -> None:
        """Carry out a command, and everything that follows from it."""

    @abstractmethod
    def connection_lost(self, name: str, connection: str) -> None:
        """Close everything that a connection had on a topic."""

    @abstractmethod
    def stats(self, name: str) -> dict[str, Any]:
        """See `Broker.topic_stats`."""

    @abstractmethod
    def stats_rows(self, name: str) -> list[dict[str, Any]]:
        """See `Broker.stats`."""


class PersistentTopics(Topics[PersistentTopic]):
    """Topics that store their messages. The broker runs their timers and periodic checks."""

    def _create(self, name: str) -> PersistentTopic:
        return lifecycle.create(self._ctx, name)

    def _decode(self, data: bytes) -> PersistentTopic:
        return decode_topic(data)

    def _summarise(self, topic: PersistentTopic, block: TopicBlock) -> None:
        block.due = lifecycle.next_due(self._ctx, topic)
        block.idle = lifecycle.is_idle(self._ctx, topic)
        block.backlog, block.storage = topic.backlog(), topic.ledger.total_size

    def _carry_out(self, topic: PersistentTopic, command: TopicCommand) -> None:
        commands.carry_out(self._ctx, topic, command)
        self.check_unacked(topic)

    def _missing(self, name: str) -> PersistentTopic:
        return PersistentTopic(name, ledger=ManagedLedger.create(self._ctx.clock))

    def connection_lost(self, name: str, connection: str) -> None:
        """Close the connection's producers and consumers, then apply the broker's limit of unacked messages."""
        topic = self.load(name)
        lifecycle.connection_lost(self._ctx, topic, connection)
        self.check_unacked(topic)

    def check_unacked(self, topic: PersistentTopic) -> None:
        """Something happened on the topic: enforce maxUnackedMessagesPerBroker."""
        unacked_limit.check(self._ctx, self._state.unacked, topic, self.load)

    def stats(self, name: str) -> dict[str, Any]:
        """The topic's stats and internal stats, by Pulsar's names."""
        topic = self.load(name)
        internal = internal_stats(topic.ledger, topic.cursors)
        return {"stats": persistent_stats.topic_stats(topic, self._ctx.config), "internal": internal}

    def stats_rows(self, name: str) -> list[dict[str, Any]]:
        """The topic's row of stats, then one per subscription, by name."""
        return persistent_stats.rows(self.load(name))


class NonPersistentTopics(Topics[NonPersistentTopic]):
    """Topics that store nothing. They have no timers and no periodic checks."""

    def _create(self, name: str) -> NonPersistentTopic:
        return non_persistent_commands.create(self._ctx, name)

    def _decode(self, data: bytes) -> NonPersistentTopic:
        return decode_non_persistent_topic(data)

    def _summarise(self, topic: NonPersistentTopic, block: TopicBlock) -> None:
        pass

    def _carry_out(self, topic: NonPersistentTopic, command: TopicCommand) -> None:
        non_persistent_commands.carry_out(self._ctx, topic, command)

    def _missing(self, name: str) -> NonPersistentTopic:
        return NonPersistentTopic(name)

    def connection_lost(self, name: str, connection: str) -> None:
        """Close the connection's producers and consumers."""
        non_persistent_commands.connection_lost(self._ctx, self.load(name), connection)

    def stats(self, name: str) -> dict[str, Any]:
        """The topic's stats and internal stats, by Pulsar's names."""
        topic = self.load(name)
        return {
            "stats": non_persistent_stats.topic_stats(topic),
            "internal": non_persistent_stats.internal_stats(),
        }

    def stats_rows(self, name: str) -> list[dict[str, Any]]:
        """The topic's row of stats, then one per subscription, by name."""
        return non_persistent_stats.rows(self.load(name))
