"""What a subscription asks of its dispatcher, whatever its type (mirrors `Dispatcher`).

A dispatcher decides which consumer gets which entry, and when. It keeps what it must remember between commands; the
subscription, its cursor and its ledger come with each call.
"""

from abc import abstractmethod
from typing import Any, Self

import msgspec

from schemas.commands import KeySharedMeta
from streaming.broker.context import Context
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.context import SubscriptionContext


class Dispatcher(msgspec.Struct, array_like=True):
    """Abstract methods are there in every type. The others do nothing where a type has nothing to do."""

    # -- consumers ------------------------------------------------------------------------------------------------

    def mismatch(self, meta: KeySharedMeta | None) -> str | None:
        """Why a consumer that wants this Key_Shared mode can't join those that are here; None: it can."""
        return None

    def check(self, consumer: Consumer) -> None:
        """Raises `BrokerError` if the consumer can't have the hash ranges that it asks for."""

    @abstractmethod
    def add_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> None:
        """A consumer joins."""

    @abstractmethod
    def remove_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> bool:
        """A consumer leaves. True: the caller must `dispatch` once all that leave together have left."""

    def closed_by_seek(self, consumers: list[Consumer]) -> list[Consumer]:
        """Those of the subscription's `consumers` that a seek disconnects."""
        return list(consumers)

    @abstractmethod
    def after_seek(self, consumers: list[Consumer]) -> Self:
        """Take those in `closed_by_seek` out of `consumers`; the dispatcher that the subscription goes on with."""

    # -- triggers -------------------------------------------------------------------------------------------------

    def dispatch(self, sub: SubscriptionContext) -> None:
        """Read and send as much as can be sent: consumers have left, or the broker has lifted its limit."""

    @abstractmethod
    def flow(self, sub: SubscriptionContext, consumer: Consumer, permits: int) -> None:
        """A consumer gives permits, in messages."""

    @abstractmethod
    def redeliver(
        self,
        sub: SubscriptionContext,
        consumer: Consumer,
        positions: list[Position] | None,
        epoch: int | None,
    ) -> None:
        """A consumer wants `positions` (None: everything that it hasn't acked) again; `epoch`: its new one."""

    @abstractmethod
    def new_entries(self, sub: SubscriptionContext) -> None:
        """Entries were confirmed: a read that waits completes."""

    def due(self) -> int:
        """When the dispatcher's next timer fires (ms), −1: there is none."""
        return -1

    @abstractmethod
    def timer(self, sub: SubscriptionContext) -> None:
        """Do what is due at the clock."""

    # -- acknowledgements -----------------------------------------------------------------------------------------

    def acknowledged(
        self, sub: SubscriptionContext, consumer: Consumer, position: Position
    ) -> Consumer | None:
        """A consumer acked a whole entry: credit the consumer that it was sent to, and return that one."""
        return None

    def acknowledged_partly(
        self,
        sub: SubscriptionContext,
        consumer: Consumer,
        position: Position,
        stored: bytes | None,
        ack_set: int,
    ) -> None:
        """A consumer acked some messages of a batch and left those in `ack_set`.

        `stored`: the messages that were unacked before, see `ack_set.to_bits`; None: all.
        """

    def forget_redeliveries(self, position: Position) -> None:
        """The redelivery count of an entry starts again from 0."""

    def after_acks(
        self, sub: SubscriptionContext, owners: list[Consumer], *, mark_delete_moved: bool
    ) -> None:
        """One ACK command is done. `owners`: the consumers whose entries it acked."""

    def mark_delete_moved(self, sub: SubscriptionContext) -> None:
        """The broker moved the mark-delete position: forget what it passed."""

    # -- delayed delivery -----------------------------------------------------------------------------------------

    @property
    def delayed_messages(self) -> int:
        """Entries that wait for their delivery time."""
        return 0

    def clear_delayed(self) -> None:
        """Forget the entries that wait for their delivery time."""

    # -- limits and stats -----------------------------------------------------------------------------------------

    @property
    def unacked_messages(self) -> int:
        """Messages sent and not acked, where limits apply to them."""
        return 0

    @property
    def blocked_on_unacked(self) -> bool:
        """Is the subscription over maxUnackedMessagesPerSubscription?"""
        return False

    def stats(self, consumers: list[Consumer]) -> dict[str, Any]:
        """Fields of the subscription's stats that only this type has, with Pulsar's names."""
        return {}


def redelivery_time(ctx: Context) -> int:
    """When an entry that a filter rescheduled now is judged again (ms); never now, or time would stand still."""
    return ctx.clock + max(ctx.config.dispatcherEntryFilterRescheduledMessageDelay, 1)
