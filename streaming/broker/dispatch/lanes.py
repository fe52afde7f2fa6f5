"""Lanes: what dispatchers do in a steady step, in the fewest steps.

The problem
    A dispatcher that gets an entry, or hears of an ack, finds out each time that nothing unusual concerns it, in twenty or
    thirty calls. On a topic in its usual state (`streaming.broker.persistent.steady`) most of that stays as it is from one record
    to the next.

The idea
    A `Lane` is made once for a subscription, and asks then what can't change while only publishes, acks and FLOWs come: rates, filters,
    policies, the consumers. For each entry and each ack it asks the rest, and moves permits, pending acks and counters by additions.

Invariants
    * Rows and state are those of `Dispatcher.new_entry`, `acknowledged` and `after_acks` (``tests/broker/test_steady.py``), which are the
      definition. Where more may come of an entry or an ack, `new_entry` and `acknowledge` return False and have changed nothing.
    * Whoever has a lane forgets it when anything but a publish, an ack, a FLOW or a request for redelivery touches the topic, and when a timer
      or a check runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from schemas.commands import MessageMetadata
from schemas.effects import Message
from streaming.broker.dispatch.dispatcher import Dispatcher
from streaming.broker.dispatch.multiple_consumers import MultipleConsumers
from streaming.broker.dispatch.round_robin import next_available
from streaming.broker.dispatch.single_active_consumer import SingleActiveConsumer
from streaming.broker.dispatch.sticky_key import StickyKeyMultipleConsumers, budget
from streaming.broker.dispatch.sticky_key_classic import ClassicStickyKeyMultipleConsumers
from streaming.broker.dispatch.sticky_key_hash import sticky_key_hash
from streaming.broker.position import Position, from_tuple
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.context import SubscriptionContext


class RowsOfRun(Protocol):
    """What a lane asks of the publishes of a run, by row: `streaming.broker.persistent.publish.publish_run.Publishes`."""

    @property
    def sizes(self) -> Sequence[int]:
        """Of the entries, in bytes."""

    @property
    def messages(self) -> Sequence[int]:
        """How many each has."""


class Lane(ABC):
    """A subscription that entries pass through. Ask for it with `lane_of`."""

    __slots__ = (
        "_ctx",
        "_cursor",
        "_hash_of",
        "_most",
        "_sub",
        "_subscription",
        "entries",
        "flowing",
        "owners",
        "read",
        "rows",
    )

    def __init__(self, sub: SubscriptionContext) -> None:
        self._sub, self._ctx, self._cursor, self._subscription = sub, sub.ctx, sub.cursor, sub.subscription
        self._most = sub.ctx.config.dispatcherMaxReadBatchSize

    @abstractmethod
    def new_entry(self, position: Position, metadata: MessageMetadata, messages: int, size: int) -> bool:
        """Send an entry of so many messages and bytes, which was just confirmed and for which a read waits. It is no chunk and no marker,
        and has no delivery time."""

    @abstractmethod
    def acknowledge(self, consumer: Consumer, position: Position) -> bool:
        """A consumer acks an entry of the backlog as a whole, and the cursor has no acks within batches. Called before the cursor changes.
        After it, `acknowledged` is to be called."""

    def acknowledged(self, consumer: Consumer, *, mark_delete_moved: bool) -> None:  # noqa: B027 (most have nothing to do)
        """The cursor has changed, and the ack was answered."""

    # -- in a run -----------------------------------------------------------------------------------------------------

    def begin(self, following: Position, hash_of: Callable[[int], int]) -> bool:
        """A run begins (`streaming.broker.persistent.delivery_run`): entries from `following` on go to `pick` and `take`, acks to `take_ack`,
        and permits to `flow`. `end` must come before anybody else looks at the subscription. `hash_of`: the hash of a row's key. False: more may
        come of the next entry."""
        self._hash_of = hash_of
        self.rows: list[int] = []
        self.entries: list[int] = []
        self.owners: list[Consumer] = []
        self.flowing = self._pending_read > 0
        """Whether a read waits, so that each new entry is sent."""
        self.read = (
            self._cursor.read_position.entry if self._cursor.read_position.ledger == following.ledger else 0
        )
        """The entry of the read position."""
        return not self.flowing or (self._is_next(following) and self._goes_on())

    @property
    @abstractmethod
    def _pending_read(self) -> int:
        """Of the dispatcher."""

    @abstractmethod
    def _goes_on(self) -> bool:
        """Whether nothing but the consumers decides who gets the next entries."""

    @abstractmethod
    def pick(self, row: int, messages: int) -> Consumer | None:
        """Who gets the next entry, of so many messages, which is that of a row. None: more may come of it. Changes nothing."""

    @abstractmethod
    def take(self, consumer: Consumer, row: int, entry: int, messages: int, size: int, now: int) -> None:
        """Send the next entry, of `size` bytes, to a consumer that was picked. `row`: its record."""

    @abstractmethod
    def take_ack(self, consumer: Consumer, ledger: int, entry: int) -> bool:
        """Whether a consumer's ack of an entry that the cursor takes is only noted. It is then. False: nothing has changed."""

    @abstractmethod
    def sent(self, consumer: Consumer, ledger: int, entries: Sequence[int]) -> bool:
        """Whether a consumer was sent all of these entries of the backlog, so that `take_ack` takes all of them, if it takes the first."""

    @abstractmethod
    def take_part(self, ledger: int, entry: int) -> bool:
        """Whether an ack of a part of an entry, which the cursor does not note, only makes its redeliveries forgotten. It has then. False:
        nothing has changed. After `take_ack` of the same command, it is True."""

    @abstractmethod
    def flow(self, consumer: Consumer, permits: int) -> bool:
        """Whether permits, of which there are not too many, are only added. They are then. False: nothing has changed."""

    def end(self, ledger: int, rows: RowsOfRun) -> None:
        """Leave the subscription as the entries of a ledger have made it that were taken."""
        if taken := self.rows:
            subscription = self._subscription
            subscription.messages_out += sum(map(rows.messages.__getitem__, taken))
            subscription.bytes_out += sum(map(rows.sizes.__getitem__, taken))
            subscription.dispatched += len(taken)
            self._cursor.read_position = Position(ledger, self.read)
        self.settle()

    @abstractmethod
    def settle(self) -> None:
        """Leave a read waiting that asks for as many entries as after the last one that was sent."""

    def _note(self, consumer: Consumer, row: int, entry: int, messages: int, size: int, now: int) -> None:
        """Count an entry that is sent to a consumer."""
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.bytes_out += size
        consumer.last_sent = now
        average = consumer.average
        if average != 1 or messages != 1:
            consumer.average = float(messages) if average < 1 else average * 0.9 + (1 - 0.9) * messages
        self.rows.append(row)
        self.entries.append(entry)
        self.owners.append(consumer)
        self.read = entry + 1

    # -- one entry ----------------------------------------------------------------------------------------------------

    def _is_next(self, position: Position) -> bool:
        """Whether a read would find the entry, and nothing but the consumers decides who gets it."""
        cursor, subscription, ctx = self._cursor, self._subscription, self._ctx
        return (
            cursor.read_position == position
            and ctx.ordinal + 1 < ctx.spent_at
            and not subscription.read_batch
            and not cursor.batches
            and subscription.pending_acks is None
        )

    def _send(
        self, consumer: Consumer, position: Position, messages: int, size: int, redeliveries: int, epoch: int | None
    ) -> None:  # fmt: skip
        """See `sending.send`."""
        ctx, subscription = self._ctx, self._subscription
        ledger, entry = position
        self._cursor.read_position = from_tuple(Position, (ledger, entry + 1))
        ctx.emit(from_tuple(Message, (
            self._sub.topic, consumer.connection, consumer.consumer_id, subscription.name, ledger, entry, messages, size,
            redeliveries, None, epoch, None, None,
        )))  # fmt: skip
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.bytes_out += size
        consumer.last_sent = ctx.clock
        average = consumer.average
        consumer.average = float(messages) if average < 1 else average * 0.9 + (1 - 0.9) * messages
        subscription.messages_out += messages
        subscription.bytes_out += size
        subscription.dispatched += 1


class SingleLane(Lane):
    """Of an active consumer, Exclusive or Failover."""

    __slots__ = ("_active", "_dispatcher", "_sends")

    def __init__(self, sub: SubscriptionContext, dispatcher: SingleActiveConsumer) -> None:
        super().__init__(sub)
        self._dispatcher, self._active = dispatcher, dispatcher.active_consumer(sub.consumers)

    def new_entry(self, position: Position, metadata: MessageMetadata, messages: int, size: int) -> bool:
        """See `Lane`."""
        dispatcher, active = self._dispatcher, self._active
        if active is None or active.permits <= 0 or active.hash_ranges or not self._is_next(position):
            return False
        dispatcher.has_read = True
        self._send(active, position, messages, size, 0, active.epoch if active.epoch >= 0 else None)
        permits = active.permits
        dispatcher.pending_read = 0 if permits <= 0 else min(permits, self._most)
        return True

    def acknowledge(self, consumer: Consumer, position: Position) -> bool:
        """See `Lane`."""
        consumer.acks += 1
        return True

    @property
    def _pending_read(self) -> int:
        return self._dispatcher.pending_read

    def _goes_on(self) -> bool:
        active = self._active
        return active is not None and active.permits > 0 and not active.hash_ranges

    def pick(self, row: int, messages: int) -> Consumer | None:
        """See `Lane`."""
        return self._active

    def take(self, consumer: Consumer, row: int, entry: int, messages: int, size: int, now: int) -> None:
        """See `Lane`."""
        self._note(consumer, row, entry, messages, size, now)
        self._sends = True
        self.flowing = consumer.permits > 0

    def take_ack(self, consumer: Consumer, ledger: int, entry: int) -> bool:
        """See `Lane`."""
        if entry >= self.read:
            return False
        consumer.acks += 1
        return True

    def sent(self, consumer: Consumer, ledger: int, entries: Sequence[int]) -> bool:
        """See `Lane`."""
        return all(entry < self.read for entry in entries)

    def take_part(self, ledger: int, entry: int) -> bool:
        """See `Lane`."""
        return True

    def flow(self, consumer: Consumer, permits: int) -> bool:
        """See `Lane`."""
        if consumer is self._active:
            if not self.flowing:
                return False
            self.settle()
        consumer.permits += permits
        return True

    def begin(self, following: Position, hash_of: Callable[[int], int]) -> bool:
        """See `Lane`."""
        self._sends = False
        return super().begin(following, hash_of)

    def settle(self) -> None:
        """See `Lane`."""
        if self._sends and self._active is not None:
            self._sends, self._dispatcher.has_read = False, True
            self._dispatcher.pending_read = min(self._active.permits, self._most) if self.flowing else 0


class SharedLane(Lane):
    """Of a Shared subscription."""

    __slots__ = (
        "_consumers",
        "_delays",
        "_dispatcher",
        "_ledger",
        "_limit",
        "_limit_of_all",
        "_sends",
        "_taken",
        "_tick",
        "_turn",
    )

    def __init__(self, sub: SubscriptionContext, dispatcher: MultipleConsumers) -> None:
        super().__init__(sub)
        self._dispatcher, self._consumers = dispatcher, sub.consumers
        self._sends, self._turn, self._ledger = False, 0, 0
        self._delays, self._tick = sub.policies.delayedDelivery.value.active, sub.tick
        self._limit, self._limit_of_all = sub.consumer_limit, sub.policies.maxUnackedMessagesPerSubscription

    def new_entry(self, position: Position, metadata: MessageMetadata, messages: int, size: int) -> bool:
        """See `Lane`."""
        dispatcher, consumers = self._dispatcher, self._consumers
        if not (dispatcher.nothing_waits(self._sub) and self._is_next(position)):
            return False
        turn: int | None = dispatcher.round_robin if dispatcher.round_robin < len(consumers) else 0
        consumer = consumers[turn]  # type: ignore[index]
        if consumer.permits <= 0 or consumer.blocked or consumer.priority:
            turn = next_available(consumers, turn)  # type: ignore[arg-type]
            if turn is None:
                return False
            consumer = consumers[turn]
        dispatcher.round_robin = turn + 1  # type: ignore[operator]
        self._deliver(consumer, position, messages, size)
        return True

    def _deliver(self, consumer: Consumer, position: Position, messages: int, size: int) -> None:
        """Send the entry to the consumer, and leave a read waiting. See `MultipleConsumers._deliver` and `_waits`."""
        dispatcher = self._dispatcher
        if self._delays:
            delayed = dispatcher.delayed
            delayed.tick, delayed.fixed = self._tick, False
        self._send(consumer, position, messages, size, dispatcher.counts.get(position, 0), None)
        consumer.pending[position] = messages
        unacked = consumer.unacked = consumer.unacked + messages
        if 0 < self._limit <= unacked:
            consumer.blocked = True
        dispatcher.total_permits -= messages
        of_all = dispatcher.total_unacked = dispatcher.total_unacked + messages
        if 0 < self._limit_of_all <= of_all:
            dispatcher.blocked = True
        self._wait_for_more()

    def _wait(self, wanted: int) -> None:
        """Leave a read of so many entries waiting. 0: nobody can receive, or a limit blocks the subscription."""
        self._dispatcher.pending_read = wanted

    def acknowledge(self, consumer: Consumer, position: Position) -> bool:
        """See `Lane`."""
        dispatcher, limit = self._dispatcher, self._limit
        if (
            not limit
            or consumer.blocked
            or dispatcher.blocked
            or position not in consumer.pending
            or 0 < self._limit_of_all <= dispatcher.total_unacked
        ):
            return False
        if dispatcher.counts:
            dispatcher.counts.pop(position, None)
        freed = consumer.pending[position]
        dispatcher.release(self._sub, consumer, position)
        consumer.unacked -= freed
        consumer.acks += freed
        dispatcher.total_unacked -= freed
        return True

    @property
    def _pending_read(self) -> int:
        return self._dispatcher.pending_read

    def _goes_on(self) -> bool:
        return self._dispatcher.nothing_waits(self._sub)

    def pick(self, row: int, messages: int) -> Consumer | None:
        """See `Lane`."""
        dispatcher, consumers = self._dispatcher, self._consumers
        if 0 < self._limit_of_all <= dispatcher.total_unacked + messages:
            return None
        turn = dispatcher.round_robin if dispatcher.round_robin < len(consumers) else 0
        consumer = consumers[turn]
        if consumer.permits <= 0 or consumer.blocked or consumer.priority:
            found = next_available(consumers, turn)
            if found is None:
                return None
            turn, consumer = found, consumers[found]
        self._turn = turn + 1
        return consumer

    def take(self, consumer: Consumer, row: int, entry: int, messages: int, size: int, now: int) -> None:
        """See `Lane`."""
        dispatcher = self._dispatcher
        dispatcher.round_robin = self._turn
        self._note(consumer, row, entry, messages, size, now)
        position = self._taken = from_tuple(Position, (self._ledger, entry))
        consumer.pending[position] = messages
        unacked = consumer.unacked = consumer.unacked + messages
        if 0 < self._limit <= unacked:
            consumer.blocked = True
        dispatcher.total_permits -= messages
        dispatcher.total_unacked += messages
        self._sends = True
        if consumer.permits <= 0 or consumer.blocked:
            self.flowing = any(each.permits > 0 and not each.blocked for each in self._consumers)

    def take_ack(self, consumer: Consumer, ledger: int, entry: int) -> bool:
        """See `Lane`."""
        return self.acknowledge(consumer, from_tuple(Position, (ledger, entry)))

    def sent(self, consumer: Consumer, ledger: int, entries: Sequence[int]) -> bool:
        """See `Lane`."""
        return all((ledger, entry) in consumer.pending for entry in entries)

    def take_part(self, ledger: int, entry: int) -> bool:
        """See `Lane`."""
        dispatcher = self._dispatcher
        if dispatcher.blocked or 0 < self._limit_of_all <= dispatcher.total_unacked:
            return False
        if dispatcher.counts:
            dispatcher.counts.pop(Position(ledger, entry), None)
        return True

    def flow(self, consumer: Consumer, permits: int) -> bool:
        """See `Lane`."""
        if not self.flowing or consumer.blocked or 0 < self._limit <= consumer.unacked:
            return False
        self.settle()
        consumer.permits += permits
        self._dispatcher.total_permits += permits
        return True

    def begin(self, following: Position, hash_of: Callable[[int], int]) -> bool:
        """See `Lane`."""
        self._sends, self._ledger = False, following.ledger
        return super().begin(following, hash_of)

    def settle(self) -> None:
        """See `Lane`."""
        if self._sends:
            self._sends = False
            if self._delays:
                delayed = self._dispatcher.delayed
                delayed.tick, delayed.fixed = self._tick, False
            self._wait_for_more()

    def _wait_for_more(self) -> None:
        """Leave a read waiting, if anybody can receive. See `MultipleConsumers._waits`."""
        dispatcher = self._dispatcher
        dispatcher.pending_read = 0
        if not dispatcher.blocked:
            for first in self._consumers:
                if first.permits > 0 and not first.blocked:
                    self._wait(max(min(max(dispatcher.total_permits, first.permits), self._most), 1))
                    return
        self._wait(0)


class KeySharedLane(SharedLane):
    """Of a Key_Shared subscription."""

    __slots__ = ("_ahead", "_owners", "_slot", "_spreads", "_sticky", "_tells")

    def __init__(self, sub: SubscriptionContext, dispatcher: StickyKeyMultipleConsumers) -> None:
        super().__init__(sub, dispatcher)
        config = sub.ctx.config
        self._sticky, self._spreads = dispatcher, config.keySharedSpreadsKeyless
        self._tells = not config.removePendingAcksOnMarkDeleteMove
        self._ahead = dispatcher.look_ahead(sub)
        self._owners: dict[int, Consumer | None] = {}

    def new_entry(self, position: Position, metadata: MessageMetadata, messages: int, size: int) -> bool:
        """See `Lane`."""
        dispatcher = self._sticky
        if not (dispatcher.nothing_waits(self._sub) and self._is_next(position)):
            return False
        if (consumer := self._owner(sticky_key_hash(metadata, spreads_keyless=self._spreads))) is None:
            return False
        dispatcher.stuck = True
        self._deliver(consumer, position, messages, size)
        dispatcher.note_hash(consumer, position, self._slot)
        return True

    def _owner(self, key_hash: int) -> Consumer | None:
        """Who gets an entry whose key has this hash, of which the slot is `_slot` then. None: more may come of it."""
        selector = self._sticky.selector
        slot = self._slot = selector.slot(key_hash)
        if slot not in self._owners:
            handle = selector.select(slot)
            self._owners[slot] = None if handle is None else self._subscription.consumer(*handle)
        consumer = self._owners[slot]
        if consumer is None or consumer.blocked or budget(consumer, self._limit) < 2:
            return None
        return consumer

    def pick(self, row: int, messages: int) -> Consumer | None:
        """See `Lane`."""
        dispatcher = self._sticky
        if 0 < self._limit_of_all <= dispatcher.total_unacked + messages:
            return None
        self._turn = dispatcher.round_robin
        return self._owner(self._hash_of(row))

    def take(self, consumer: Consumer, row: int, entry: int, messages: int, size: int, now: int) -> None:
        """See `Lane`."""
        super().take(consumer, row, entry, messages, size, now)
        self._sticky.note_hash(consumer, self._taken, self._slot)

    def take_ack(self, consumer: Consumer, ledger: int, entry: int) -> bool:
        """See `Lane`."""
        dispatcher = self._sticky
        if (self._tells and not self.flowing) or dispatcher.draining.hashes or dispatcher.unblocks_at >= 0:
            return False
        return self.acknowledge(consumer, from_tuple(Position, (ledger, entry)))

    def take_part(self, ledger: int, entry: int) -> bool:
        """See `Lane`."""
        return self._sticky.unblocks_at < 0 and super().take_part(ledger, entry)

    def flow(self, consumer: Consumer, permits: int) -> bool:
        """See `Lane`."""
        if not super().flow(consumer, permits):
            return False
        self._sticky.stuck = False
        return True

    def _wait(self, wanted: int) -> None:
        dispatcher = self._sticky
        dispatcher.stuck = True
        dispatcher.pending_read = 0
        if wanted and dispatcher.anyone(self._sub):
            dispatcher.pending_read = min(wanted, self._ahead)

    def acknowledged(self, consumer: Consumer, *, mark_delete_moved: bool) -> None:
        """See `Lane`."""
        dispatcher = self._sticky
        if dispatcher.unblocks_at >= 0 or (
            mark_delete_moved and self._tells and not dispatcher.waits_for_entries(self._sub)
        ):
            dispatcher.after_acks(self._sub, [consumer], mark_delete_moved=mark_delete_moved)


def lane_of(sub: SubscriptionContext, dispatcher: Dispatcher) -> Lane | None:
    """The lane of a subscription. None: rates, filters or limits decide about each of its entries."""
    config = sub.ctx.config
    if (
        sub.throttle is not None
        or sub.limiters
        or sub.transactions is not None
        or sub.ledger.terminated
        or config.entryFilterNames
        or not config.readsByLedgerSizes
        or config.preciseDispatcherFlowControl
        or config.dispatcherMaxReadBatchSize <= 0
    ):
        return None
    match dispatcher:
        case SingleActiveConsumer():
            return SingleLane(sub, dispatcher)
        case ClassicStickyKeyMultipleConsumers():
            return None
        case StickyKeyMultipleConsumers():
            return KeySharedLane(sub, dispatcher)
        case MultipleConsumers():
            return SharedLane(sub, dispatcher)
    return None
