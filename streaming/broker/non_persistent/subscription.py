"""A subscription of a non-persistent topic (mirrors `NonPersistentSubscription`)."""

import msgspec

from schemas.commands import SubType
from streaming.broker.non_persistent.dispatchers import AnyNonPersistentDispatcher
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.subscription import FilterCounts


class NonPersistentSubscription(msgspec.Struct, array_like=True):
    """It has no cursor, and lives as long as it has consumers, or longer if it is `durable` (nonPersistentSubscriptionsStay).

    `messages_out` in messages, `bytes_out` in bytes, `dispatched` in entries. `last_active`: when a consumer last joined or left (ms).
    """

    name: str
    type: SubType
    dispatcher: AnyNonPersistentDispatcher
    consumers: list[Consumer] = []
    properties: dict[str, str] = {}
    messages_out: int = 0
    bytes_out: int = 0
    dispatched: int = 0
    filtered: FilterCounts = msgspec.field(default_factory=FilterCounts)
    durable: bool = False
    last_active: int = 0

    def consumer(self, connection: str, consumer_id: int) -> Consumer:
        """The connected consumer with this connection and id."""
        return next(c for c in self.consumers if c.connection == connection and c.consumer_id == consumer_id)
