"""One subscription at work: what a dispatcher needs while a command is folded."""

from typing import NamedTuple

from schemas.effects import ReachedEndOfTopic
from streaming.broker.context import Context
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.policies.hierarchy import HierarchyTopicPolicies
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.subscription import Subscription


class SubscriptionContext(NamedTuple):
    """A subscription with its topic's name, policies and ledger, and its own cursor.

    Made anew for each command; nothing may keep one.
    """

    ctx: Context
    topic: str
    policies: HierarchyTopicPolicies
    ledger: ManagedLedger
    cursor: ManagedCursor
    subscription: Subscription

    @property
    def consumers(self) -> list[Consumer]:
        """The connected consumers, in the dispatcher's order."""
        return self.subscription.consumers

    @property
    def consumer_limit(self) -> int:
        """Unacked messages that each consumer may have, 0: any number. A non-durable subscription has no limit."""
        return max(self.policies.maxUnackedMessagesPerConsumer, 0) if self.subscription.durable else 0

    def wake(self, due: int) -> None:
        """Run the topic's timers when the clock reaches `due` (ms)."""
        self.ctx.wake(self.topic, due)

    def check_end_of_topic(self) -> None:
        """If the topic is terminated and nothing is left, send REACHED_END_OF_TOPIC to the consumers, once.

        C++ clients fail on that command: the gateway keeps it from them (protocol.md §2).
        """
        subscription, ledger = self.subscription, self.ledger
        if not ledger.terminated or subscription.end_reached:
            return
        subscription.end_reached = self.cursor.backlog(ledger) == 0
        if subscription.end_reached:
            for consumer in subscription.consumers:
                self.ctx.emit(ReachedEndOfTopic(self.topic, consumer.connection, consumer.consumer_id))
