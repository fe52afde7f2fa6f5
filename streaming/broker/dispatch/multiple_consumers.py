"""Dispatch to many consumers: Shared (mirrors `PersistentDispatcherMultipleConsumers`; rules: docs/rules/shared.md).

The problem
    Several consumers share one cursor, and the dispatcher decides who gets which entry and when. An entry may be
    delivered, acknowledged out of order, handed back, delayed, or left behind by a consumer that disconnects. The read
    position alone cannot express that: it only moves forward. And Pulsar's clients can observe when a read happens, so
    "send whatever can be sent" after each command is not enough: some events do not start a read, and the rules keep it
    that way. Such behavior that looks unintended is marked ``quirk`` below.

The data
    An unacked entry before the read position is pending at a consumer (`Consumer.pending`), in the `replay` set,
    in `delayed`, in `rescheduled`, or nowhere until the subscription is read again (see `_lose`). The limits are
    counted in messages, not entries: permits and unacked messages of each consumer, and the totals of both.

In order
    `dispatch` runs rounds (`_round`, Pulsar's readMoreEntries) until one makes no progress. A round:

    1. computes how many entries it may read (`_wanted`): none if no consumer is available, a rate is used up, or
       delayed delivery pauses the subscription;
    2. moves delayed entries that are due to the replay set;
    3. if the replay set is not empty, deals out its first positions, and nothing else;
    4. otherwise reads new entries, unless a limit blocks the subscription or a read waits;
    5. deals them out (`deal`): each available consumer in turn gets a run of entries, and `send` filters and sends it.
       What nobody could take goes to the replay set.

    A round that finds no entry leaves a read waiting (`pending_read`). New entries complete it (`new_entries`).

    Consumers a and b with 2 permits each, and five entries 1:0 to 1:4 that arrive one by one::

        1:0 to a, 1:1 to b, 1:2 to a, 1:3 to b       nobody has permits left, so no read waits; 1:4 is not read
        a disconnects                                replay = {1:0, 1:2}; b has no permits
        b sends FLOW 3                               round 1: 1:0 and 1:2 from the replay set, round 2: 1:4

    The redelivery counts stay 0: only a consumer's request raises them (`redeliver`), and a filter's (`timer`).

Invariants
    * A position is pending at no more than one consumer.
    * `consumers` are sorted by priority level, and those of one level by when they joined.
    * `total_permits` is the sum of the consumers' permits, and `total_unacked` that of their unacked messages, except for
      entries of chunked messages that were dealt to a consumer that has left (`_lose`).
    * The limits on unacked messages of the subscription and the broker stop new entries, never the replay set.

What it costs
    An entry costs the same whatever the backlog is. The replay set and the delayed entries are sorted blocks, so a
    position costs a search in a list of blocks. Finding the owner of an ack that came from another consumer looks at
    all consumers.
"""

from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from schemas.effects import Message
from schemas.entries import Entry
from schemas.printable import counted
from streaming.broker.config import ServiceConfiguration
from streaming.broker.dispatch.chunked_messages import ChunkOwners, assign
from streaming.broker.dispatch.delayed_delivery import DelayedDeliveryTracker
from streaming.broker.dispatch.dispatcher import Dispatcher, retry_delay
from streaming.broker.dispatch.round_robin import next_available, priority
from streaming.broker.dispatch.sending import Found, filter_entries, goes_out_at_once, read, send
from streaming.broker.dispatch.sorted_blocks import Positions
from streaming.broker.dispatch.verdict import (
    Verdict,
    Whereabouts,
    delayed_entries,
    permits_of,
    rate_of,
    unacked_of,
    unacked_of_broker,
    unacked_of_subscription,
)
from streaming.broker.entry_filters import judge
from streaming.broker.ledger.ack_set import to_bits
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.context import SubscriptionContext
from streaming.broker.subscription.subscription import Subscription

NO_HASHES: dict[Position, int] = {}


class MultipleConsumers(Dispatcher, tag="multiple", dict=True):
    """What a Shared subscription keeps between commands.

    * `round_robin`: the index of the consumer whose turn it is. It may be past the end, which means 0.
    * `replay`: positions to send before new entries.
    * `counts`: the redelivery counts, where they are not 0.
    * `total_permits`: the permits of all consumers, in messages.
    * `total_unacked`: the unacked messages of all consumers.
    * `blocked`: whether maxUnackedMessagesPerSubscription stops new entries.
    * `pending_read`: how many entries a waiting read asked for; 0: no read waits.
    * `delayed`: entries that wait for their delivery time.
    * `rescheduled`: time (ms) → positions that an entry filter judges again then.
    * `chunk_owners`: which consumer gets the remaining chunks of a message.
    * `asleep`: like `rescheduled`, but the filter would only reschedule them again. See `timer` and `resume_retries`.
    * `passed_from`: where the mark-delete position was before it passed entries that may still be pending; None: there
      are none. `_forget_passed` looks for them.

    In the encoding, the fields of `StickyKeyMultipleConsumers` follow these, so a new field here needs a new
    `codec.VERSION`.
    """

    round_robin: int = 0
    replay: Positions = msgspec.field(default_factory=Positions)
    counts: dict[Position, int] = msgspec.field(default_factory=dict)
    total_permits: int = 0
    total_unacked: int = 0
    blocked: bool = False
    pending_read: int = 0
    delayed: DelayedDeliveryTracker = msgspec.field(default_factory=DelayedDeliveryTracker)
    rescheduled: dict[int, list[Position]] = msgspec.field(default_factory=dict)
    chunk_owners: ChunkOwners = msgspec.field(default_factory=ChunkOwners)
    asleep: dict[int, list[Position]] = msgspec.field(default_factory=dict)
    passed_from: Position | None = None

    # -- consumers (docs/rules/shared.md §1) ----------------------------------------------------------------------

    def add_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> None:
        """Add the consumer by priority level. The first one starts reading behind the mark-delete position again."""
        consumers = sub.consumers
        if not consumers:
            self.pending_read = 0
            self.forget_all()
            self.delayed.clear()
            sub.cursor.rewind(sub.ledger)
        insort(consumers, consumer, key=priority)

    def remove_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> bool:
        """Move the consumer's pending entries to the replay set. If none goes there, the other consumers get no read
        (4.0.7)."""
        if sub.consumers[-1] is consumer:
            sub.consumers.pop()
        else:
            sub.consumers.remove(consumer)
        closes = sub.ctx.config.closesPendingAcksOfLeaving and bool(sub.consumers)
        self.chunk_owners.leaves(consumer, is_sent_more=not closes)
        was_blocked = self.blocked
        self._add_unacked(sub, -consumer.unacked)
        if not sub.consumers:
            self.forget_all()
            self.counts.clear()
            self.total_permits = self.pending_read = 0
            return False
        self.total_permits -= consumer.permits
        self._replay_all(sub, consumer.pending, consumer.hashes)
        mark_delete, acked = sub.cursor.mark_delete, sub.cursor.acked
        replays = any(position > mark_delete for position in consumer.pending)
        if sub.ctx.config.leavingConsumerCountsRedelivery:
            self._count([each for each in consumer.pending if each > mark_delete and each not in acked], 1)
        return replays or (was_blocked and not self.blocked)

    def remove_together(self, sub: SubscriptionContext, consumers: Sequence[Consumer]) -> bool:
        """See `Dispatcher`. Nobody is sent anything meanwhile, so the order of consumers does not matter."""
        leaving = {consumer.handle for consumer in consumers}
        sub.consumers[:] = [each for each in sub.consumers if each.handle not in leaving]
        sub.consumers.extend(reversed(consumers))  # who leaves next is the last one
        return super().remove_together(sub, consumers)

    def after_seek(self, sub: SubscriptionContext) -> None:
        """Remove all consumers. Delayed entries are kept until the next consumer joins (4.0.7)."""
        self.remove_together(sub, list(sub.consumers))
        self.rescheduled.clear()
        self.asleep.clear()

    def remembered(self) -> Collection[str]:
        """The connections of consumers that left before the last chunk of their messages."""
        return self.chunk_owners.remembered()

    # -- triggers (docs/rules/shared.md §2, §6) -------------------------------------------------------------------

    def flow(self, sub: SubscriptionContext, consumer: Consumer, permits: int) -> None:
        """Add permits and dispatch. A consumer at its unacked limit keeps them until it is unblocked."""
        limit = sub.consumer_limit
        if limit and consumer.unacked >= limit:
            consumer.blocked = True
        if consumer.blocked:
            consumer.permits_while_blocked += permits
            return
        consumer.permits += permits
        self.total_permits += permits
        self.dispatch(sub)

    def redeliver(
        self,
        sub: SubscriptionContext,
        consumer: Consumer,
        positions: list[Position] | None,
        epoch: int | None,
    ) -> None:
        """Resend those of `positions` (None: all) that are pending for this consumer. Raises their redelivery counts.

        quirk: a request for all sets the consumer's unacked messages to 0. If there is nothing to resend, a request for
        some triggers no read unless it gives the consumer permits or unblocks the subscription.
        """
        wanted = (
            list(consumer.pending) if positions is None else [p for p in positions if p in consumer.pending]
        )
        mark_delete = sub.cursor.mark_delete
        freed = 0
        reads = positions is None or consumer.permits_while_blocked > 0
        for position in wanted:
            if position not in consumer.pending:  # a client may list an id twice
                continue
            freed += self._unacked(sub, consumer, position)
            self.release(sub, consumer, position)
            if position > mark_delete:
                self.counts[position] = self.counts.get(position, 0) + 1
                reads = True
        consumer.redelivered += freed
        if positions is None:
            freed = consumer.unacked
        consumer.unacked -= freed
        was_blocked = self.blocked
        self._add_unacked(sub, -freed)
        self._replay_all(sub, wanted)
        self._unblock(consumer)
        if reads or (was_blocked and not self.blocked):
            self.dispatch(sub)

    def new_entry(self, sub: SubscriptionContext, position: Position, entry: Entry) -> None:
        """Complete a waiting read, since an entry was confirmed.

        quirk: the read returns nothing, since in 4.0.7 a read sees only entries confirmed before it was issued. It only
        triggers the next round, which serves the consumers with permits now and sends the replay set first. In 2.10 and
        4.2, it returns entries (waitingReadsReturnEntries).
        """
        most, self.pending_read = self.pending_read, 0
        if (
            self.sends_at_once
            and self.nothing_waits(sub)
            and goes_out_at_once(sub, position, entry)
            and self._send_at_once(sub, position, entry)
        ):
            self._waits(sub)
            return
        if sub.ctx.config.waitingReadsReturnEntries and (positions := sub.cursor.read(sub.ledger, most)):
            self._deal_out(sub, positions, from_replay=False)
        self.dispatch(sub)

    def nothing_waits(self, sub: SubscriptionContext) -> bool:
        """Whether a dispatch has nothing to do but to read new entries."""
        return not (
            self.replay.length
            or self.delayed.waiting.length
            or self.blocked
            or sub.subscription.broker_blocked
            or self.passed_from is not None
            or self.rescheduled
            or self.delayed.timer >= 0
        )

    def _send_at_once(self, sub: SubscriptionContext, position: Position, entry: Entry) -> bool:
        """Send a new entry, which a read would find, to the next consumer. False: it takes the way of all entries."""
        start = self.round_robin if self.round_robin < len(sub.consumers) else 0
        turn = None if entry.metadata.deliver_at_time is not None else next_available(sub.consumers, start)
        if turn is None:
            return False
        self.round_robin = turn + 1
        self._deliver_at_once(sub, sub.consumers[turn], position, entry)
        return True

    def _deliver_at_once(
        self, sub: SubscriptionContext, consumer: Consumer, position: Position, entry: Entry
    ) -> None:
        """Read an entry that no filter is asked about and no time delays, and send it."""
        sub.cursor.read_position = position.next()
        if sub.policies.delayedDelivery.value.active:
            self.delayed.add(position, None, sub.ctx.clock, sub.ctx.config, sub.tick)
        self._deliver(sub, consumer, [(position, entry)])

    def retry(self, sub: SubscriptionContext) -> None:
        """Dispatch again."""
        self.dispatch(sub)

    def due(self) -> int:
        """The earliest of the redelivery times that filters asked for and the delayed delivery timer."""
        if not self.rescheduled:
            return self.delayed.timer
        return min([at for at in (*self.rescheduled, self.delayed.timer) if at >= 0])

    def timer(self, sub: SubscriptionContext) -> bool:
        """Send delayed and rescheduled entries that are due. Rescheduled ones count as redelivered."""
        clock, dispatches = sub.ctx.clock, False
        if 0 <= self.delayed.timer <= clock:
            self.delayed.fired, self.delayed.timer, dispatches = clock, -1, True
        for due in [due for due in self.rescheduled if due <= clock]:
            positions = self.rescheduled.pop(due)
            self._count(positions, 1)
            if messages := self._rescheduled_again(sub, positions):
                again, subscription = clock + retry_delay(sub.ctx.config), sub.subscription
                self.asleep[again] = self.asleep.get(again, []) + positions
                subscription.filtered.reschedule(messages)
                subscription.asleep_messages[again] = subscription.asleep_messages.get(again, 0) + messages
            else:
                self._replay_all(sub, positions)
                dispatches = True
        if dispatches:
            self.dispatch(sub)
        return dispatches

    def _rescheduled_again(self, sub: SubscriptionContext, positions: list[Position]) -> int:
        """If a consumer could get each of the entries now, but the filters put all of them off again: the messages in them. Else 0."""
        cursor, config = sub.cursor, sub.ctx.config
        # Whenever a retry could do anything but ask the filter again, it must run: it may drop an entry that is acked,
        # or find that nobody can receive, in which case the filter is not asked.
        if any(map(cursor.has_acked, positions)):
            return 0
        if not config.entryFilterNames or self._read_size(sub) == 0 or sub.throttle is not None:
            return 0
        if self.delayed.pauses_all(sub.ctx.clock, config):
            return 0
        entries = sub.ctx.entries.get_all(sub.topic, sorted(positions))
        again = all(
            judge(config.entryFilterNames, entry.metadata, sub.subscription.properties) == "RESCHEDULE"
            for entry in entries
        )
        return sum(entry.messages for entry in entries) if again else 0

    def _count(self, positions: list[Position], redeliveries: int) -> None:
        for position in positions:
            self.counts[position] = self.counts.get(position, 0) + redeliveries

    def resume_retries(self, subscription: Subscription, now: int, delay: int) -> None:
        """They keep the rhythm of the first one, and each would have raised the redelivery counts, and those of the filters."""
        for due, positions in self.asleep.items():
            missed = max((now - due) // delay + 1, 0)
            if missed:
                self._count(positions, missed)
                subscription.filtered.reschedule(missed * subscription.asleep_messages[due])
            self.rescheduled.setdefault(due + missed * delay, []).extend(positions)
        self.asleep.clear()
        subscription.asleep_messages.clear()

    # -- acks (docs/rules/subscriptions.md §6, §7) ----------------------------------------------------------------

    def _owner(self, sub: SubscriptionContext, consumer: Consumer, position: Position) -> Consumer | None:
        if position in consumer.pending:
            return consumer
        for other in sub.consumers:
            if position in other.pending:
                return other
        return None

    def release(self, sub: SubscriptionContext, consumer: Consumer, position: Position) -> None:
        """Remove an entry from the pending acks."""
        del consumer.pending[position]

    def _unacked(self, sub: SubscriptionContext, consumer: Consumer, position: Position) -> int:
        """How many messages of a pending entry are not acked.

        quirk: that is its whole batch again once the cursor has forgotten the acks within the batch (4.0.7). Later versions
        keep what is left of the entry with the pending ack.
        """
        batches = sub.cursor.batches
        if (
            batches
            and not sub.ctx.config.removePendingAcksOnMarkDeleteMove
            and (stored := batches.get(position)) is not None
        ):
            return to_bits(stored).bit_count()
        return consumer.pending[position]

    def acknowledged(
        self, sub: SubscriptionContext, consumer: Consumer, position: Position
    ) -> Consumer | None:
        """Forget the entry, and reduce the unacked messages of the consumer that it was sent to."""
        if self.counts:
            self.counts.pop(position, None)
        owner = self._owner(sub, consumer, position)
        if owner is None:
            consumer.acks += 1
            if sub.ctx.config.ackOfAnyEntryLowersUnacked:
                consumer.unacked -= 1
                self.total_unacked -= 1
            self._acknowledged_unowned()
            return None
        freed = self._unacked(sub, owner, position)
        self.release(sub, owner, position)
        stays_blocked = (
            sub.ctx.config.unblocksConsumerOneAckLate and 0 < sub.consumer_limit < 2 * owner.unacked
        )
        owner.unacked -= freed
        self.total_unacked -= freed
        consumer.acks += freed
        return None if stays_blocked else owner

    def _acknowledged_unowned(self) -> None:
        """An entry was acked that no consumer has pending."""

    def acknowledged_partly(
        self,
        sub: SubscriptionContext,
        consumer: Consumer,
        position: Position,
        ack_set: int,
    ) -> None:
        """A partial ack never unblocks a consumer.

        quirk: the entry stays pending, also if the cursor has none of its messages left, until the mark-delete has passed it.

        quirk: nothing compares `ack_set` with the entry. If it has more messages than the entry, these count as unacked. If an
        ACK names an entry twice, both count by what the cursor knew before, and an entry that has none left counts again with
        each further ack. So the unacked messages can be less or more than what is left of the pending entries (4.0.7).
        """
        self.counts.pop(position, None)
        owner = self._owner(sub, consumer, position)
        if owner is None:
            return
        stored = sub.cursor.batches.get(position)
        if stored is None:
            messages = owner.pending[position] - ack_set.bit_count()
        else:
            left = to_bits(stored)
            messages = (left & ~ack_set).bit_count()
            if not left & ack_set:
                self._note_passed(sub.cursor.mark_delete)
                self._finished(sub).add(position)
        owner.unacked -= messages
        self.total_unacked -= messages
        consumer.acks += messages
        if sub.ctx.config.removePendingAcksOnMarkDeleteMove:
            owner.pending[position] -= messages

    def acknowledged_in_transaction(
        self, sub: SubscriptionContext, consumer: Consumer, position: Position, messages: int, *, whole: bool
    ) -> Consumer | None:
        """quirk: the messages count as acked, also if the entry is with nobody, so that fewer than none may be unacked. Later versions count what the
        pending ack has left, and nothing without one."""
        owner = self._owner(sub, consumer, position)
        if sub.ctx.config.removePendingAcksOnMarkDeleteMove:
            if owner is None:
                return None
            if whole and messages:
                messages = owner.pending[position]
            owner.pending[position] -= messages
        credited = consumer if owner is None else owner
        credited.unacked -= messages
        self._add_unacked(sub, -messages)
        if owner is None or not whole:
            return None
        self.release(sub, owner, position)
        return owner

    def redeliver_aborted(self, sub: SubscriptionContext, positions: list[Position]) -> None:
        """They go to the replay set, and count as redelivered, whoever had them. A client may have acked what it never got, or nobody stored: not these."""
        cursor, ledger = sub.cursor, sub.ledger
        positions = [
            each
            for each in positions
            if cursor.mark_delete < each < cursor.read_position and ledger.valid(each)
        ]
        for position in positions:
            self.counts[position] = self.counts.get(position, 0) + 1
        self._replay_all(sub, positions)
        self.dispatch(sub)

    def forget_redeliveries(self, position: Position) -> None:
        """Reset the redelivery count of an entry to 0."""
        self.counts.pop(position, None)

    def after_acks(
        self, sub: SubscriptionContext, owners: list[Consumer], *, mark_delete_moved: bool
    ) -> None:
        """Unblock those `owners` of fully acked entries that are at half of their limit or less.

        quirk: an owner without a limit counts as one that was blocked, so each of its acks triggers a read.
        """
        released = False
        limit = sub.consumer_limit
        for consumer in owners:
            if not limit or (consumer.blocked and consumer.unacked <= limit // 2):
                self._unblock(consumer)
                released = True
        was_blocked = self.blocked
        self._add_unacked(sub, 0)
        if released or (was_blocked and not self.blocked):
            self.dispatch(sub)

    def passed(self, ledger: ManagedLedger, cursor: ManagedCursor, before: Position) -> None:
        """See `Dispatcher.passed`. The batches are forgotten with what is pending of them, by `_forget_passed`."""
        self._note_passed(before)

    def _note_passed(self, before: Position) -> None:
        """Note from where on entries that the mark-delete passes may be pending."""
        self.passed_from = before if self.passed_from is None else min(before, self.passed_from)

    def entries_deleted(self, last: Position) -> None:
        """Forget those that wait to be sent again. quirk: Pulsar fails for ever to read them, and sends nothing else. Not here."""
        self.forget_to(last)

    def mark_delete_moved(self, sub: SubscriptionContext, *, by_expiry: bool) -> None:
        """After 4.0, drop entries up to the mark-delete position from the pending acks (docs/rules/shared.md §8)."""
        if sub.ctx.config.removePendingAcksOnMarkDeleteMove:
            self.after_acks(sub, self._forget_passed(sub), mark_delete_moved=False)
        elif self._retries(sub):
            self.dispatch(sub)

    def _forget_passed(self, sub: SubscriptionContext) -> list[Consumer]:
        """Drop the entries that the broker moved the mark-delete past from the pending acks. Returns whose they were.

        quirk: they stay in the unacked counts (4.0.7). Later versions uncount them.
        """
        cursor, ledger, before = sub.cursor, sub.ledger, self.passed_from
        self.forget_to(cursor.mark_delete)
        if before is None:
            return []
        if sub.ctx.config.passedEntriesStayPending:
            cursor.forget_batches(ledger, before)
            self.passed_from = None
            return []
        uncounts = sub.ctx.config.removePendingAcksOnMarkDeleteMove
        owners = []
        for consumer in sub.consumers:
            if gone := ledger.passed(consumer.pending, before, cursor.mark_delete):
                owners.append(consumer)
            for position in gone:
                freed = consumer.pending[position]
                self.release(sub, consumer, position)
                if uncounts:
                    consumer.unacked -= freed
                    self.total_unacked -= freed
        if uncounts:
            for position in ledger.passed(self.counts, before, cursor.mark_delete):
                del self.counts[position]
        cursor.forget_batches(ledger, before)
        # A partial ack may have taken the last message of an entry that is still above the mark-delete position. It stays
        # pending until that passes it, so somebody has to look again.
        self.passed_from = cursor.mark_delete if self._any_finished(sub) else None
        return owners

    def _finished(self, sub: SubscriptionContext) -> set[Position]:
        """Has all pending entries that the cursor counts as acked, since partial acks took the last of their messages. Others
        may be in it. Not in the state."""
        found: set[Position] | None = self.__dict__.get("_finished_entries")
        if found is None:
            acked = sub.cursor.acked
            found = {each for consumer in sub.consumers for each in consumer.pending if each in acked}
            self.__dict__["_finished_entries"] = found
        return found

    def _any_finished(self, sub: SubscriptionContext) -> bool:
        """Whether any pending entry is acked. Each one that is not any more costs one look."""
        finished = self._finished(sub)
        while finished:
            position = finished.pop()
            if position in sub.cursor.acked and any(position in each.pending for each in sub.consumers):
                finished.add(position)
                return True
        return False

    def _retries(self, sub: SubscriptionContext) -> bool:
        """Whether Pulsar retries a round without progress every few milliseconds.

        It does while somebody could receive, but nobody can take any entry of the replay set (chunks of others).
        """
        return bool(self.replay) and self._read_size(sub) > 0

    # -- delayed delivery -----------------------------------------------------------------------------------------

    @property
    def delayed_messages(self) -> int:
        """How many entries wait in the delayed delivery tracker."""
        return len(self.delayed)

    def clear_delayed(self) -> None:
        """Forget the entries in the delayed delivery tracker."""
        self.delayed.clear()

    # -- limits ---------------------------------------------------------------------------------------------------

    @property
    def unacked_messages(self) -> int:
        """Messages that were sent to consumers still connected and are not acked."""
        return self.total_unacked

    @property
    def blocked_on_unacked(self) -> bool:
        """Whether maxUnackedMessagesPerSubscription blocks the subscription."""
        return self.blocked

    def stats(self, consumers: list[Consumer]) -> dict[str, Any]:
        """`unackedMessages`, which is more than the sum over the consumers if entries were lost (see `_lose`)."""
        return {"unackedMessages": self.total_unacked}

    # -- why nothing is delivered ---------------------------------------------------------------------------------

    def verdicts(self, sub: SubscriptionContext) -> Iterator[Verdict]:
        """The limits on unacked messages, rates, delays and the replay set, then each consumer's permits and limits."""
        limit, config = sub.policies.maxUnackedMessagesPerSubscription, sub.ctx.config
        yield unacked_of_subscription(self.total_unacked, limit, blocked=self.blocked)
        if sub.subscription.broker_blocked:
            yield unacked_of_broker(config.maxUnackedMessagesPerBroker)
        yield from rate_of(sub)
        if self.delayed.pauses_all(sub.ctx.clock, config):
            yield delayed_entries(len(self.delayed), self.delayed.first, pauses=True)
        elif times := [at for at, position in self._delayed() if _is_waiting(sub.cursor, position)]:
            yield delayed_entries(len(times), times[0])
        if times := [at for at, position in self._rescheduled() if _is_waiting(sub.cursor, position)]:
            text = f"{counted(len(times), 'entry')} rescheduled by an entry filter, which judges again"
            yield Verdict("entryFilters", False, text, until=min(times))
        if self.replay.length > len(self.stuck_chunks(sub)):
            yield Verdict("replay queue", *self._replay_queue(sub), "new")
        turn = self.round_robin if self.round_robin < len(sub.consumers) else 0
        following = next_available(sub.consumers, turn) if sub.consumers else None
        for consumer in sub.consumers:
            yield permits_of(consumer)
            yield unacked_of(sub, consumer, strict=self._keeps_to_the_limit)
            if (
                following is not None
                and consumer.available
                and self._goes_first(sub.consumers[following], consumer)
            ):
                first = sub.consumers[following]
                text = f"level {consumer.priority}: {first.name} of level {first.priority} can receive, and gets all"
                yield Verdict("priorityLevel", True, text, "consumer", consumer.name)

    def _replay_queue(self, sub: SubscriptionContext) -> tuple[bool, str]:
        """Whether the replay set keeps new entries from being read, and why."""
        stuck = set(self.stuck_chunks(sub))
        count, first = len(self.replay) - len(stuck), next(each for each in self.replay if each not in stuck)
        return True, f"{counted(count, 'entry')} to redeliver first, from {first} on"

    @property
    def _keeps_to_the_limit(self) -> bool:
        """Whether a consumer at its unacked limit gets nothing even if it is not blocked yet. quirk: Shared gives it one entry at a time."""
        return False

    def _goes_first(self, consumer: Consumer, other: Consumer) -> bool:
        """Whether `other` gets nothing while `consumer` can receive."""
        return consumer.priority < other.priority

    @property
    def entries_to_redeliver(self) -> int:
        """The size of the replay set."""
        return len(self.replay)

    def waiting_for_time(self, cursor: ManagedCursor) -> int:
        """See `Dispatcher.waiting_for_time`."""
        return sum(
            _is_waiting(cursor, position) for _, position in chain(self._delayed(), self._rescheduled())
        )

    def _delayed(self) -> Iterator[tuple[int, Position]]:
        """The entries in the delayed delivery tracker, by time (ms)."""
        return ((at, Position(ledger, entry)) for at, ledger, entry in self.delayed.waiting)

    def _rescheduled(self) -> Iterator[tuple[int, Position]]:
        """The entries that an entry filter rescheduled, and when it judges them again (ms)."""
        every = chain(self.rescheduled.items(), self.asleep.items())
        return ((at, position) for at, positions in every for position in positions)

    def deals_chunks(self, config: ServiceConfiguration) -> bool:
        """See `Dispatcher`."""
        return config.keepsChunksTogether

    def stuck_chunks(self, sub: SubscriptionContext) -> list[Position]:
        """See `Dispatcher`. Looks at so many entries at most as an analysis of the backlog does."""
        most = sub.ctx.config.subscriptionBacklogScanMaxEntries
        return self._nobody_can_take(sub, self.replay.first(most)) if self.replay.length else []

    def _nobody_can_take(self, sub: SubscriptionContext, waiting: Sequence[Position]) -> list[Position]:
        """Those of the positions that are chunks which no consumer can take."""
        if not self.deals_chunks(sub.ctx.config):
            return []
        cursor, owners = sub.cursor, self.chunk_owners
        positions = [each for each in waiting if each > cursor.mark_delete and each not in cursor.acked]
        stored = sub.ctx.entries.get_all(sub.topic, positions)
        return [
            position
            for position, entry in zip(positions, stored, strict=True)
            if (uuid := entry.metadata.uuid) is not None
            and owners.nobody_can_take(uuid, entry.metadata.chunk_id or 0)
        ]

    def owners_of_chunks(self, sub: SubscriptionContext) -> Mapping[str, int]:
        """See `Dispatcher`."""
        return self.chunk_owners.permits(sub.subscription)

    def accounted_for(self, sub: SubscriptionContext) -> Collection[Position]:
        """The entries that were read and that consumers have, or that wait here."""
        return {
            *(position for consumer in sub.consumers for position in consumer.pending),
            *self.replay,
            *(position for _, position in chain(self._delayed(), self._rescheduled())),
        }

    def whereabouts(self, sub: SubscriptionContext, position: Position) -> Whereabouts:
        """Where an unacknowledged entry is: at a consumer, waiting for a time, waiting to be redelivered, or not read yet."""
        for consumer in sub.consumers:
            if (left := consumer.pending.get(position)) is not None:
                text = f"at {consumer.shown}, which has not acked it ({left} of its messages)"
                return Whereabouts("in flight", text, consumer.name)
        if position in self.replay:
            if self._nobody_can_take(sub, [position]):
                return Whereabouts(
                    "to redeliver", "a chunk that waits in the replay queue, and that nobody can take"
                )
            return Whereabouts("to redeliver", "waits in the replay queue for a consumer that can take it")
        for at, positions in (*self.rescheduled.items(), *self.asleep.items()):
            if position in positions:
                return Whereabouts("rescheduled", "an entry filter rescheduled it", until=at)
        if position < sub.cursor.read_position:
            for at, *waiting in self.delayed.waiting:
                if position == tuple(waiting):
                    return Whereabouts("delayed", "waits for its delivery time", until=at)
        return super().whereabouts(sub, position)

    def _add_unacked(self, sub: SubscriptionContext, messages: int) -> None:
        self.total_unacked += messages
        limit = sub.policies.maxUnackedMessagesPerSubscription
        if limit <= 0:
            self.blocked = False
        elif self.total_unacked >= limit:
            self.blocked = True
        elif self.total_unacked < limit // 2:
            self.blocked = False

    def _unblock(self, consumer: Consumer) -> None:
        self.total_permits += consumer.unblock()

    def _replay_all(
        self,
        sub: SubscriptionContext,
        positions: Iterable[Position],
        hashes: dict[Position, int] = NO_HASHES,
    ) -> None:
        """Add positions to the replay set. Only the Key_Shared dispatcher uses `hashes`."""
        passed = sub.passed_to
        self.remember([position for position in positions if position > passed])

    # -- dispatch (docs/rules/shared.md §3–§5) --------------------------------------------------------------------

    def dispatch(self, sub: SubscriptionContext) -> None:
        """Run rounds until nothing more can be sent. Then, if a consumer has permits, a read waits.

        quirk: entries that the broker moved the mark-delete past stay pending until the dispatcher next tries to read
        (readMoreEntries), with or without permits. Later versions: until a skip, an expiry or an eviction, see
        `mark_delete_moved`. The trimming of a reader's ledger is none.
        """
        if self.waits_for_entries(sub):
            return
        if self._looks_for_passed(sub) and not self._pauses(sub):
            self._forget_passed(sub)
        while self._round(sub):
            pass
        if self.delayed.waiting.length or self.delayed.timer >= 0:
            self.delayed.arm(sub.ctx.clock, sub.ctx.config)
        if (due := self.due()) >= 0:
            sub.wake(due)

    def waits_for_entries(self, sub: SubscriptionContext) -> bool:
        """Whether a read waits, and a dispatch would have nothing to do."""
        return (
            self.pending_read > 0
            and not self.replay.length
            and not self.delayed.waiting.length
            and not self._looks_for_passed(sub)
            and sub.throttle is None
        )

    def _looks_for_passed(self, sub: SubscriptionContext) -> bool:
        return self.passed_from is not None and not sub.ctx.config.removePendingAcksOnMarkDeleteMove

    def _pauses(self, sub: SubscriptionContext) -> bool:
        return self.delayed.waiting.length > 0 and self.delayed.pauses_all(sub.ctx.clock, sub.ctx.config)

    def _round(self, sub: SubscriptionContext) -> bool:
        """Run one round. Returns True if it made progress, so that another one may help."""
        if not (wanted := self._wanted(sub)):
            return False
        if self.delayed.waiting.length:
            self._replay_delayed(sub, wanted)
        # The replay set goes first, and a limit on unacked messages does not hold it back. While it has an entry that
        # nobody can take now (a chunk of another consumer's message), no new entries are read.
        if self.replay.length:
            positions = self._unacked_replays(sub, self.replay.first(wanted))
            # If all of them were acked, the next round takes the positions after them.
            return not positions or self._deal_out(sub, positions, from_replay=True)
        if self.blocked or sub.subscription.broker_blocked or self.pending_read:
            return False
        return self._read_new(sub, wanted)

    def _unacked_replays(self, sub: SubscriptionContext, taken: list[Position]) -> list[Position]:
        """Those that are not acked. Forgets the others."""
        cursor = sub.cursor
        positions = [each for each in taken if each > cursor.mark_delete and each not in cursor.acked]
        if len(positions) < len(taken):
            self.forget(set(taken).difference(positions))
        return positions

    def _read_new(self, sub: SubscriptionContext, wanted: int) -> bool:
        """The part of a round that reads so many new entries."""
        wanted = sub.fitting(wanted)
        positions = sub.cursor.read(sub.ledger, wanted)
        if not positions:
            self.pending_read = sub.waiting(wanted, each_shrinks=True)
            return False
        self._deal_out(sub, positions, from_replay=False)
        # After a short read there is nothing left to read, so `_waits` saves the round that would find that out.
        return len(positions) == wanted or not self._waits(sub)

    def _waits(self, sub: SubscriptionContext) -> bool:
        """All entries have been read. Does what the next round would do, if that is at most to leave a read waiting."""
        if self.replay.length or self.delayed.waiting.length:
            return False  # these need a round of their own
        # Nothing is left to read, so without dispatch rates `_wanted` would give the same.
        wanted = self._read_size(sub) if sub.throttle is None else self._wanted(sub)
        if wanted and not self.blocked and not sub.subscription.broker_blocked:
            self._wait(sub, wanted)
        return True

    def _wait(self, sub: SubscriptionContext, wanted: int) -> None:
        self.pending_read = sub.waiting(wanted, each_shrinks=True)

    def _wanted(self, sub: SubscriptionContext) -> int:
        """How many entries a round may read. 0: none, as nobody can receive, deliveries are paused, or a rate is used up."""
        wanted, delays = self._read_size(sub), self.delayed.waiting.length > 0
        if wanted == 0 or (delays and self._pauses(sub)):
            return 0
        return sub.readable(wanted, replay=delays or self.replay.length > 0)

    def _replay_delayed(self, sub: SubscriptionContext, wanted: int) -> None:
        """Put delayed entries that are due into the replay set."""
        if ready := self.delayed.take(wanted, sub.ctx.clock, sub.ctx.config, sub.tick):
            self._replay_all(sub, ready)

    def _read_size(self, sub: SubscriptionContext) -> int:
        """How many entries to read in a round, 0 if no consumer can receive."""
        # They are sorted by priority level, so this is the first one that is available.
        for first in sub.consumers:
            if first.permits > 0 and not first.blocked:
                break
        else:
            return 0
        config = sub.ctx.config
        # Permits may be negative after a large batch, so the total may be less than what the first one can take.
        permits, most = self.total_permits, sub.subscription.read_batch or config.dispatcherMaxReadBatchSize
        if first.permits > permits:
            permits = first.permits
        if config.preciseDispatcherFlowControl and first.average:
            permits = -(-permits // max(first.messages_per_entry, 1))  # rounded up
        return most if permits >= most > 0 else max(min(permits, most), 1)

    def _deal_out(
        self,
        sub: SubscriptionContext,
        positions: list[Position],
        *,
        from_replay: bool,
    ) -> bool:
        """Deal entries to consumers and put those that none can take now into the replay set. True if any was dealt."""
        found = read(sub, positions)
        left = self.deal(sub, found, from_replay=from_replay)
        # Only what was dealt leaves the replay set: those in `left` are still there.
        if from_replay:
            self.forget(set(positions).difference(left))
        elif left:
            self.remember(left)
        return len(left) < len(positions)

    def deal(self, sub: SubscriptionContext, found: Found, *, from_replay: bool) -> list[Position]:
        """Deal entries to the consumers round robin. Returns the positions that no consumer could take."""
        # All chunks of a message go to one consumer, whosever turn it is.
        if [
            1 for _, entry in found if entry.metadata.uuid is not None
        ] and sub.ctx.config.keepsChunksTogether:
            runs, left = assign(found, sub.subscription, self.next_consumer, self.chunk_owners)
            for connection in self.chunk_owners.take_parted():
                sub.ctx.part(connection, sub.topic)
            for owner, gone, run in runs:
                if gone:
                    self._lose(sub, owner, run)
                else:
                    self.send(sub, owner, run)
            return left
        if len(found) == 1:  # most often
            if (consumer := self.next_consumer(sub.consumers)) is None:
                return [found[0][0]]
            self.send(sub, consumer, found)
            return []
        # A turn is counted in entries, permits in messages: the average of this read converts one to the other.
        messages = [entry.messages for _, entry in found]
        remaining = sum(messages)
        average = max(remaining // max(len(found), 1), 1)
        config = sub.ctx.config
        limit, most = sub.consumer_limit, config.dispatcherMaxRoundRobinBatchSize
        of_messages = config.turnsCountMessages
        done = 0
        while done < len(found) and (consumer := self.next_consumer(sub.consumers)) is not None:
            turn = entries_in_turn(
                remaining, limit, consumer.unacked, average, consumer.permits, most, of_messages=of_messages
            )
            self.send(sub, consumer, found[done : done + turn])
            remaining -= sum(messages[done : done + turn])
            done += turn
        return [position for position, _ in found[done:]]

    def send(self, sub: SubscriptionContext, consumer: Consumer, run: Found) -> None:
        """Filter entries, send them to one consumer, and add them to its pending acks."""
        judged, (run, rescheduled) = run, filter_entries(sub, run, self.delayed)
        # What a filter rejected is acked now, and an acked entry has no redelivery count.
        if self.counts and len(run) < len(judged):
            for position, _ in judged:
                if sub.cursor.has_acked(position):
                    self.counts.pop(position, None)
        if rescheduled:
            self._reschedule(sub, rescheduled)
        self._deliver(sub, consumer, run)

    def _deliver(self, sub: SubscriptionContext, consumer: Consumer, run: Found) -> None:
        """Send entries to one consumer, and add them to its pending acks."""
        charged = send(sub, consumer, run, self.counts)
        pending, in_transactions, total = consumer.pending, sub.subscription.pending_acks, sum(charged)
        if in_transactions is not None and sub.ctx.config.pendingAcksCountAsSent:
            left = [in_transactions.left_to_send(sub.cursor, position) for position, _ in run]
            charged = [messages for messages, bits in zip(charged, left, strict=True) if bits != 0]
            run = [each for each, bits in zip(run, left, strict=True) if bits != 0]
        # Pending acks have all messages of a batch, though only those that were not acked before cost permits (4.0.7).
        for position, entry in run:
            pending[position] = entry.messages
        if sub.ctx.config.removePendingAcksOnMarkDeleteMove:
            pending.update(zip((position for position, _ in run), charged, strict=True))
        consumer.unacked += total
        self.total_permits -= total
        self._add_unacked(sub, total)
        limit = sub.consumer_limit
        if limit and consumer.unacked >= limit:
            consumer.blocked = True

    def _reschedule(self, sub: SubscriptionContext, positions: list[Position]) -> None:
        due = sub.ctx.clock + retry_delay(sub.ctx.config)
        self.rescheduled.setdefault(due, []).extend(positions)

    def _lose(self, sub: SubscriptionContext, owner: Consumer, run: Found) -> None:
        """quirk: entries for a consumer that has left count as unacked, but nobody has them pending. They are sent only if it left last and its
        connection is still open, and come again when the first consumer of the subscription joins."""
        run, rescheduled = filter_entries(sub, run, self.delayed)
        if rescheduled:
            self._reschedule(sub, rescheduled)
        for position, entry in run:
            if not owner.blocked and sub.topic in sub.ctx.connections.get(owner.connection, ()):
                message = Message(
                    sub.topic, owner.connection, owner.consumer_id, sub.subscription.name, position.ledger,
                    position.entry, entry.messages, entry.size, self.counts.get(position, 0),
                )  # fmt: skip
                sub.ctx.emit(message)
            owner.permits -= entry.messages
            self.total_permits -= entry.messages
            self._add_unacked(sub, entry.messages)

    def remember(self, positions: list[Position]) -> None:
        """Add positions to the replay set."""
        self.replay.update(positions)

    def forget(self, positions: Iterable[Position]) -> None:
        """Remove positions from the replay set."""
        for position in positions:
            self.replay.discard(position)

    def forget_to(self, position: Position) -> None:
        """Remove positions up to and including `position` from the replay set."""
        self.forget(self.replay.take_to(position))

    def forget_all(self) -> None:
        """Empty the replay set."""
        self.replay.clear()

    def next_consumer(self, consumers: list[Consumer]) -> Consumer | None:
        """The next consumer that can receive, or None.

        Round robin within a priority level, higher levels (lower numbers) first (docs/rules/shared.md §5).
        """
        if self.round_robin >= len(consumers):
            self.round_robin = 0
        index = next_available(consumers, self.round_robin)
        if index is None:
            return None
        self.round_robin = index + 1
        return consumers[index]


def entries_in_turn(
    remaining: int,
    limit: int,
    unacked: int,
    average: int,
    permits: int,
    most: int,
    *,
    of_messages: bool = False,
) -> int:
    """How many entries a consumer gets in its turn.

    Permits and the unacked limit count messages, so they are divided by `average`, the messages per entry. `of_messages`: see
    turnsCountMessages.
    """
    messages = min(remaining, permits)
    if limit > 0:
        messages = min(messages, max(limit - unacked, 0))
    if of_messages:
        return max(min(most, messages) // average, 1)
    return max(min(most, -(-messages // average)), 1)


def _is_waiting(cursor: ManagedCursor, position: Position) -> bool:
    """Whether an entry that was put off is still one of the backlog that was read: it stays with the dispatcher when it expires, and
    after a seek."""
    return position < cursor.read_position and not cursor.has_acked(position)
