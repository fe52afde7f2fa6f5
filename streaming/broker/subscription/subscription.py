"""The part of a persistent subscription that its dispatcher works on."""

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from schemas.commands import SubType
from streaming.broker.rates.rate import Rate
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.transactions.pending_acks import PendingAcks

INDIVIDUAL_TYPES = frozenset({"Shared", "Key_Shared"})
"""Types that keep pendingAcks, redelivery counts and unacked limits."""


class FilterCounts(msgspec.Struct, array_like=True, gc=False):
    """Messages that entry filters judged, since the dispatcher was made: `accepted` without those that are delayed then."""

    processed: int = 0
    accepted: int = 0
    rejected: int = 0
    rescheduled: int = 0

    def reschedule(self, messages: int) -> None:
        """Messages were judged, and put off."""
        self.processed += messages
        self.rescheduled += messages


class Subscription(msgspec.Struct, array_like=True, dict=True):
    """The part of a subscription that its dispatcher works on.

    `dispatched`, `acked`, `expired` and `evicted` count entries, `messages_out` counts messages. Times are in ms.
    `expired_before_load`: what to subtract from `expired` for totalMsgExpired, which counts from when the topic was loaded,
    and counts what the expiry of messages evicted, too, all by Pulsar's backlog before and after.
    `broker_blocked`: gets no new entries while the broker is over maxUnackedMessagesPerBroker. `last_flow` and
    `last_mark_delete_advanced`: when a consumer last asked for messages, and when acks or the expiry last moved the mark-delete position,
    since the topic was loaded. `asleep_messages`: how many messages are in the entries that sleep until a time (see `Dispatcher.timer`).

    In the encoding, the fields of the subclasses follow these, so a new field here needs a new `codec.VERSION`.
    """

    name: str
    durable: bool = True
    type: SubType | None = None
    consumers: list[Consumer] = []
    properties: dict[str, str] = {}
    last_active: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    dispatched: int = 0
    acked: int = 0
    expired: int = 0
    evicted: int = 0
    last_expire: int = 0
    expired_before_load: int = 0
    end_reached: bool = False
    expired_rate: Rate = msgspec.field(default_factory=Rate)
    broker_blocked: bool = False
    last_flow: int = 0
    last_mark_delete_advanced: int = 0
    filtered: FilterCounts = msgspec.field(default_factory=FilterCounts)
    asleep_messages: dict[int, int] = {}
    if TYPE_CHECKING:
        read_batch: int = 0  # of those that read entries
        pending_acks: PendingAcks | None = None

    def consumer(self, connection: str, consumer_id: int) -> Consumer:
        """The connected consumer with this connection and id."""
        handle = connection, consumer_id
        found = self._by_handle.get(handle)
        if found is None:  # it joined since; most consumers join at the end
            found = next(consumer for consumer in self.consumers[::-1] if consumer.handle == handle)
            self._by_handle[handle] = found
        return found

    def connected(self, connection: str, consumer_id: int) -> Consumer | None:
        """A consumer that has sent a command since it joined, or None if it left."""
        return self._by_handle.get((connection, consumer_id))

    def forget(self, consumer: Consumer) -> None:
        """A consumer leaves, so that its connection and id may become another's. Leaves `consumers` as it is."""
        self._by_handle.pop(consumer.handle, None)

    def forget_dispatcher(self) -> None:
        """The dispatcher is a new one, or there is none any more."""
        self.filtered, self.asleep_messages = FilterCounts(), {}

    @cached_property
    def _by_handle(self) -> dict[Handle, Consumer]:
        return {consumer.handle: consumer for consumer in self.consumers}

    @abstractmethod
    def put_off(self, now: int, until: int) -> int:
        """The dispatcher reads nothing before `until` (ms). Returns when the first of the subscription's own timers fires (ms), or −1."""
