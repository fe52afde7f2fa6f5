"""What a dispatcher needs of its subscription while the broker folds a command."""

from typing import NamedTuple

from schemas.effects import ReachedEndOfTopic
from streaming.broker.context import Context
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.policies.hierarchy import HierarchyTopicPolicies
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.subscription import Subscription


class SubscriptionContext(NamedTuple):
    """A subscription and its cursor, with the name, policies and ledger of its topic. `consumers` are the subscription's.

    Created for each command. Do not keep one for longer.
    """

    ctx: Context
    topic: str
    policies: HierarchyTopicPolicies
    ledger: ManagedLedger
    cursor: ManagedCursor
    subscription: Subscription
    consumers: list[Consumer]

    @property
    def consumer_limit(self) -> int:
        """How many unacked messages each consumer may have. 0: no limit, as on non-durable subscriptions."""
        return max(self.policies.maxUnackedMessagesPerConsumer, 0) if self.subscription.durable else 0

    def wake(self, due: int) -> None:
        """Run the topic's timers when the clock reaches `due` (ms)."""
        self.ctx.wake(self.topic, due)

    def check_end_of_topic(self) -> None:
        """Send REACHED_END_OF_TOPIC to the consumers, once, if the topic is terminated and there is no backlog.

        C++ clients fail on that command, so the gateway must not pass it on to them (protocol.md §2).
        """
        subscription, ledger = self.subscription, self.ledger
        if not ledger.terminated or subscription.end_reached:
            return
        subscription.end_reached = self.cursor.backlog(ledger) == 0
        if subscription.end_reached:
            for consumer in subscription.consumers:
                self.ctx.emit(ReachedEndOfTopic(self.topic, consumer.connection, consumer.consumer_id))
