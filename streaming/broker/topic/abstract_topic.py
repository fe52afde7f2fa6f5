"""What topics have in common, whether they store messages or not (mirrors `AbstractTopic`)."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import ClassVar, NamedTuple

import msgspec
from msgspec.structs import astuple

from schemas.commands import MessageMetadata
from streaming.broker.context import Context
from streaming.broker.policies.hierarchy import Policies
from streaming.broker.position import Position
from streaming.broker.producer.access_mode import ProducerAccess
from streaming.broker.producer.producer import Producer
from streaming.broker.producer.short_form import ShortFormProducers
from streaming.broker.rates.rate import ProducerCounters, Rates, end_of_interval, seconds_of_interval
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.topic.handles import Handles
from streaming.broker.transactions.transaction_buffer import TxnID


class PendingWrite(msgspec.Struct, array_like=True):
    """A published message on its way: without a fault it is written or delivered at once.

    `plain`: the metadata holds nothing but what a receipt shows. `position` is None until a ledger takes the write.
    `size` is the stored size in bytes, `broker_timestamp` in ms. `txn`: the transaction
    to which it belongs, or which it ends: then nobody has sent it.
    """

    producer: Producer
    sequence_id: int
    highest_sequence_id: int | None
    metadata: MessageMetadata
    payload: bytes
    size: int
    plain: bool
    position: Position | None = None
    last_of_ledger: bool = False
    broker_timestamp: int | None = None
    txn: TxnID | None = None


class Counters(msgspec.Struct, array_like=True, gc=False):
    """Messages and bytes since the topic was loaded. `messages_out_gone`, `bytes_out_gone`: sent by subscriptions that
    were deleted since."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out_gone: int = 0
    bytes_out_gone: int = 0


class Attached(NamedTuple):
    """A producer or consumer of a connection: its topic, the id that the client gave it, and a consumer's `subscription`; None: it is a
    producer, or waits to become one."""

    topic: str
    id: int
    subscription: str | None


class AbstractTopic(msgspec.Struct, array_like=True, dict=True):
    """A topic's policies, its producers, and the handles of its clients.

    `closing_producers`: producers that leave once their writes are
    confirmed, with the requests to answer then. `last_active`: when the topic was last known to be in use (ms; see
    `inactive_topics`). `pending`: messages whose fate a fault put off; `delay_writes`: how many
    more messages the fault DelayWrites puts off. `rates_until` = when the present interval of the rates in its stats ends
    (ms). `producer_counters`: those of connected producers that have published.

    The fields of the subclasses follow these in the encoding: a new one here needs a new `codec.VERSION`.
    """

    has_transactions: ClassVar[bool] = False
    """Whether it takes messages of transactions, if there are any."""

    name: str
    policies: Policies = msgspec.field(default_factory=Policies)
    producers: dict[str, Producer] = {}
    producer_handles: Handles = msgspec.field(default_factory=Handles)
    closing_producers: dict[str, list[int]] = {}
    consumer_handles: Handles = msgspec.field(default_factory=Handles)
    access: ProducerAccess = msgspec.field(default_factory=ProducerAccess)
    last_active: int = 0
    fenced: bool = False
    pending: list[PendingWrite] = []
    delay_writes: int = 0
    counters: Counters = msgspec.field(default_factory=Counters)
    rates_until: int = 0
    producer_counters: dict[str, ProducerCounters] = msgspec.field(default_factory=dict)

    # -- connections ----------------------------------------------------------------------------------------------

    def add_handle(self, ctx: Context, handles: Handles, handle: Handle, name: str) -> None:
        """A connection has a new producer or consumer here: note its name in `producer_handles` or `consumer_handles`."""
        handles.add(handle, name)
        ctx.attach(handle[0], self.name)

    def remove_handle(self, ctx: Context, handles: Handles, handle: Handle) -> None:
        """A producer or consumer of a connection leaves."""
        handles.remove(handle)
        if handle[0] not in handles:
            ctx.part(handle[0], self.name)

    def holds(self, connection: str) -> bool:
        """Does the topic have something of a connection?"""
        return (
            connection in self.producer_handles
            or connection in self.consumer_handles
            or self.access.holds(connection)
        )

    def has_attached(self, connection: str, attached: Attached) -> bool:
        """Does the topic have this producer or consumer of a connection? Its subscription may be another one."""
        if attached.subscription is not None:
            return self.consumer_handles.get(connection, attached.id) is not None
        return self.producer_handles.get(connection, attached.id) is not None or self.access.awaits_answer(
            connection, attached.id
        )

    def attached(self, connection: str) -> Iterator[Attached]:
        """The producers and consumers of a connection."""
        for id_ in (*self.producer_handles.of(connection), *self.access.waiting_of(connection)):
            yield Attached(self.name, id_, None)
        for id_, subscription in self.consumer_handles.of(connection).items():
            yield Attached(self.name, id_, subscription)

    # -- groups of producers ------------------------------------------------------------------------------------------

    @cached_property
    def short_form(self) -> ShortFormProducers:
        """Those without a connection."""
        return ShortFormProducers(self.producers, self.producer_counters)

    @cached_property
    def remote_producers(self) -> set[str]:
        """The names of the replicators' producers. Not a part of the state, but made from it."""
        return {producer.name for producer in self.producers.values() if producer.is_remote}

    def silent_since(self) -> int | None:
        """When the one of them published that has been silent for longest (ms). None: none can leave."""
        if self.pending:  # a fault puts off a write, perhaps one of theirs
            return None
        first = self.short_form.first()
        return None if first is None else first[0]

    # -- writes that a fault puts off ---------------------------------------------------------------------------------

    @cached_property
    def _unconfirmed(self) -> tuple[Counter[str], Counter[tuple[object, ...]]]:
        """How many of the pending writes each connection and each producer, by its fields, has. Not a part of the state,
        but made from it."""
        producers = [write.producer for write in self.pending]
        return Counter(each.connection for each in producers), Counter(map(astuple, producers))

    def put_off(self, write: PendingWrite) -> None:
        """A write has to wait."""
        by_connection, by_producer = self._unconfirmed
        by_connection[write.producer.connection] += 1
        by_producer[astuple(write.producer)] += 1
        self.pending.append(write)

    def take_oldest(self) -> PendingWrite:
        """The write that has waited for longest waits no more."""
        by_connection, by_producer = self._unconfirmed
        write = self.pending.pop(0)
        by_connection[write.producer.connection] -= 1
        by_producer[astuple(write.producer)] -= 1
        if not self.pending:  # forget the names
            by_connection.clear()
            by_producer.clear()
        return write

    def take_pending(self) -> list[PendingWrite]:
        """No write waits any more. Returns those that did."""
        for counts in self._unconfirmed:
            counts.clear()
        pending, self.pending = self.pending, []
        return pending

    def in_flight(self, connection: str) -> int:
        """How many writes of a connection wait."""
        return self._unconfirmed[0][connection]

    def has_unconfirmed(self, producer: Producer) -> bool:
        """Does one of the producer's writes wait?"""
        return self._unconfirmed[1][astuple(producer)] > 0

    # -- rates ----------------------------------------------------------------------------------------------------

    def counters_of(self, ctx: Context, producer: Producer) -> ProducerCounters:
        """Where a message of a producer counts. One through REST has none, though the topic may have a producer of its name."""
        if producer.producer_id is None and self.producers.get(producer.name) != producer:
            return ProducerCounters(Rates(ctx.clock))
        return self.producer_counters.get(producer.name) or self.count_producer(ctx, producer)

    def count_producer(self, ctx: Context, producer: Producer) -> ProducerCounters:
        """Count what a producer publishes from now on."""
        start = self.rates_until - seconds_of_interval(ctx.config) * 1000
        counters = ProducerCounters(Rates(max(producer.created, start)))
        if producer.name in self.producers:
            self.producer_counters[producer.name] = counters
        return counters

    def update_rates(self, ctx: Context) -> None:
        """Compute the rates in its stats if intervals ended by now (mirrors `updateRates`). Call it before anything happens."""
        now, end = ctx.clock, self.rates_until
        if now < end:
            return
        self.rates_until = end_of_interval(now, ctx.config)
        self.end_intervals(ctx, end, 1)
        length = seconds_of_interval(ctx.config) * 1000
        start = self.rates_until - length
        if start > end:
            self.end_intervals(ctx, start, -((end - start) // length))

    def end_intervals(self, ctx: Context, until: int, count: int) -> None:
        """Intervals end, the last of them at `until` (ms). If there are several, they were empty."""
        self.end_intervals_of_clients(until)

    def end_intervals_of_clients(self, until: int) -> tuple[float, float]:
        """Compute the rates of all clients. Returns how many messages and bytes per second were published."""
        messages = size = 0.0
        for counters in self.producer_counters.values():
            if rates := counters.end_interval(until):
                messages += rates[0]
                size += rates[1]
        for consumer in self.all_consumers():
            consumer.end_interval(until)
        return messages, size

    @abstractmethod
    def all_consumers(self) -> Iterable[Consumer]:
        """The connected consumers."""

    # -- what producers ask of a topic ----------------------------------------------------------------------------

    @property
    def terminated(self) -> bool:
        """Does the topic take no more messages, for good?"""
        return False

    @property
    def is_shadow(self) -> bool:
        """Does the topic take its entries, and their positions, from a source topic?"""
        return False

    def last_sequence_id(self, producer: str) -> int:
        """The last sequence id that the topic knows of a producer name, −1: none."""
        return -1

    def producer_added(self, producer: str) -> None:
        """A producer of this name was registered."""

    def producer_removed(self, producer: Producer, now: int) -> None:
        """A producer left at `now` (ms)."""
        self.last_active = now
        self.producer_counters.pop(producer.name, None)
