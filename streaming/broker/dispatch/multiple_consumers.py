"""Dispatch to many consumers: Shared (mirrors `PersistentDispatcherMultipleConsumers`; rules: dispatch_shared.md).

How a read is dealt out is the affair of `deal`; chunks are dealt out by `chunked_messages`, keys by the subclass for
Key_Shared.
"""

from bisect import bisect_right, insort
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from streaming.broker.context import Context
from streaming.broker.dispatch import chunked_messages
from streaming.broker.dispatch.delayed_delivery import DelayedDeliveryTracker
from streaming.broker.dispatch.dispatcher import Found, filter_entries, read, redelivery_time, send
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer

if TYPE_CHECKING:
    from streaming.broker.subscription.subscription import Subscription
    from streaming.broker.topic import Topic


NO_HASHES: dict[Position, int] = {}


class MultipleConsumers(msgspec.Struct, array_like=True, tag="multiple"):
    """`round_robin` = index of the consumer whose turn it is; `replay` = ascending positions to be sent again before anything new;
    `counts` = redelivery counts; `pending_read` = entries a waiting read asked for; totals are in messages.

    `rescheduled`: time (ms) → positions that an entry filter put off; `chunk_owners`: uuid of a chunked message →
    (connection, id) of the consumer that gets its chunks.

    The fields of `StickyKeyMultipleConsumers` follow these in the encoding: a new one here needs a new `codec.VERSION`.
    """

    round_robin: int = 0
    replay: list[Position] = []
    counts: dict[Position, int] = {}
    total_permits: int = 0
    total_unacked: int = 0
    blocked: bool = False
    pending_read: int = 0
    delayed: DelayedDeliveryTracker = msgspec.field(default_factory=DelayedDeliveryTracker)
    rescheduled: dict[int, list[Position]] = {}
    chunk_owners: dict[str, tuple[str, int]] = {}

    # -- consumers (§2) -------------------------------------------------------------------------------------------

    def add_consumer(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer
    ) -> None:
        consumers = subscription.consumers
        if not consumers:
            self.pending_read = 0
            self.forget_all()
            self.delayed.clear()
            topic.cursors[subscription.name].rewind(topic.ledger)
        consumers.append(consumer)
        if len(consumers) > 1 and consumer.priority < consumers[-2].priority:
            consumers.sort(key=lambda c: c.priority)

    def remove_consumer(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer
    ) -> bool:
        """Take a consumer out. What it had waits for the next dispatch, which is the caller's affair.

        True: it should dispatch. A consumer that had nothing to pass on makes nobody read (4.0.7).
        """
        subscription.consumers.remove(consumer)
        was_blocked = self.blocked
        self._add_unacked(ctx, topic, subscription, -consumer.unacked)
        if not subscription.consumers:
            self.forget_all()
            self.counts.clear()
            self.total_permits = self.pending_read = 0
            return False
        self.total_permits -= consumer.permits
        self._replay_all(topic, subscription, consumer.pending, consumer.hashes)
        return bool(consumer.pending) or (was_blocked and not self.blocked)

    def renewed(self) -> "MultipleConsumers":
        """A dispatcher of the same kind that nobody is connected to and that remembers nothing but whose turn it is."""
        return MultipleConsumers(self.round_robin)

    # -- triggers (§3, §6) ----------------------------------------------------------------------------------------

    def flow(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer, permits: int
    ) -> None:
        limit = self.consumer_limit(ctx, topic, subscription)
        if limit and consumer.unacked >= limit:
            consumer.blocked = True
        if consumer.blocked:
            consumer.permits_while_blocked += permits
            return
        consumer.permits += permits
        self.total_permits += permits
        self.dispatch(ctx, topic, subscription)

    def redeliver(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer,
        positions: list[Position] | None,
    ) -> None:  # fmt: skip
        """Send `positions` (None: all) that are pending for this consumer again, each with its count one higher."""
        wanted = (
            list(consumer.pending) if positions is None else [p for p in positions if p in consumer.pending]
        )
        freed = 0
        for position in wanted:
            remaining = self._release(ctx, topic, consumer, position)
            if remaining is not None:  # an id may be listed twice
                freed += remaining
                self.counts[position] = self.counts.get(position, 0) + 1
        consumer.unacked -= freed
        self._add_unacked(ctx, topic, subscription, -freed)
        self._replay_all(topic, subscription, wanted)
        self._unblock(consumer)
        self.dispatch(ctx, topic, subscription)

    def new_entries(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        """Entries were confirmed: a waiting read completes.

        quirk: with nothing, as in 4.0.7 a read may go no further than what was confirmed when it was issued. It only gives
        the occasion for another one, for those who have permits now, and after what waits to be replayed.
        """
        if self.pending_read:
            self.pending_read = 0
            self.dispatch(ctx, topic, subscription)

    def due(self, ctx: Context) -> int:
        """When a timer of the dispatcher fires (ms), −1: none."""
        return min((at for at in (*self.rescheduled, self.delayed.timer) if at >= 0), default=-1)

    def timer(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        """Do what is due: delayed entries, and those that a filter put off, which count as redelivered."""
        if 0 <= self.delayed.timer <= ctx.clock:
            self.delayed.fired = ctx.clock
        for due in [due for due in self.rescheduled if due <= ctx.clock]:
            positions = self.rescheduled.pop(due)
            for position in positions:
                self.counts[position] = self.counts.get(position, 0) + 1
            self._replay_all(topic, subscription, positions)
        self.dispatch(ctx, topic, subscription)

    # -- acks (subscriptions.md §5) -------------------------------------------------------------------------------

    def _owner(self, subscription: "Subscription", consumer: Consumer, position: Position) -> Consumer | None:
        if position in consumer.pending:
            return consumer
        return next((other for other in subscription.consumers if position in other.pending), None)

    def _release(self, ctx: Context, topic: "Topic", consumer: Consumer, position: Position) -> int | None:
        """An entry isn't pending any more; the messages it had left, None: it wasn't."""
        return consumer.pending.pop(position, None)

    def acknowledged(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer, position: Position
    ) -> Consumer | None:  # fmt: skip
        """A whole entry was acked, by whomever: credit the consumer it was sent to, and return it."""
        self.counts.pop(position, None)
        owner = self._owner(subscription, consumer, position)
        if owner is not None:
            freed = self._release(ctx, topic, owner, position) or 0
            owner.unacked -= freed
            self.total_unacked -= freed
        return owner

    def acknowledged_partly(
        self, subscription: "Subscription", consumer: Consumer, position: Position, messages: int
    ) -> None:
        """Some messages of a batch were acked. Never unblocks anybody."""
        self.counts.pop(position, None)
        owner = self._owner(subscription, consumer, position)
        if owner is not None and messages > 0:
            owner.unacked -= messages
            owner.pending[position] -= messages
            self.total_unacked -= messages

    def after_acks(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", owners: list[Consumer]
    ) -> None:
        """Unblock those `owners` of fully acked entries that are down to half of their limit, or have none any more."""
        released = False
        limit = self.consumer_limit(ctx, topic, subscription)
        for consumer in owners:
            if consumer.blocked and (not limit or consumer.unacked <= limit // 2):
                self._unblock(consumer)
                released = True
        was_blocked = self.blocked
        self._add_unacked(ctx, topic, subscription, 0)
        if released or (was_blocked and not self.blocked):
            self.dispatch(ctx, topic, subscription)

    def mark_delete_acked(self, ctx: Context, topic: "Topic") -> None:
        """Acks moved the mark-delete."""

    def mark_delete_moved(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        """The broker moved the mark-delete: what lies before it is neither pending nor to be replayed (§6)."""
        mark_delete = topic.cursors[subscription.name].mark_delete
        self.forget_to(mark_delete)
        if not ctx.config.removePendingAcksOnMarkDeleteMove:
            for consumer in subscription.consumers:
                consumer.put_first(mark_delete)  # for `_forget_passed`
            return
        owners = []
        for consumer in subscription.consumers:
            gone = [position for position in consumer.pending if position <= mark_delete]
            if gone:
                owners.append(consumer)
            freed = sum(self._release(ctx, topic, consumer, position) or 0 for position in gone)
            consumer.unacked -= freed
            self.total_unacked -= freed
        for position in [position for position in self.counts if position <= mark_delete]:
            del self.counts[position]
        self.after_acks(ctx, topic, subscription, owners)

    # -- limits ---------------------------------------------------------------------------------------------------

    def consumer_limit(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> int:
        if not subscription.durable:
            return 0
        return max(ctx.policies_of(topic).maxUnackedMessagesPerConsumer, 0)

    def _add_unacked(self, ctx: Context, topic: "Topic", subscription: "Subscription", messages: int) -> None:
        self.total_unacked += messages
        limit = ctx.policies_of(topic).maxUnackedMessagesPerSubscription
        if limit <= 0 or not subscription.durable:
            self.blocked = False
        elif self.total_unacked >= limit:
            self.blocked = True
        elif self.total_unacked < limit // 2:
            self.blocked = False

    def _unblock(self, consumer: Consumer) -> None:
        consumer.blocked = False
        consumer.permits += consumer.permits_while_blocked
        self.total_permits += consumer.permits_while_blocked
        consumer.permits_while_blocked = 0

    def _replay_all(
        self, topic: "Topic", subscription: "Subscription", positions: "list[Position] | dict[Position, int]",
        hashes: dict[Position, int] = NO_HASHES,
    ) -> None:  # fmt: skip
        """Put positions into the replay set; `hashes` is for the dispatcher that goes by keys."""
        mark_delete = topic.cursors[subscription.name].mark_delete
        fresh = set(positions).difference(self.replay)
        self.replay = sorted([*self.replay, *(position for position in fresh if position > mark_delete)])

    # -- dispatch (§4, §5) ----------------------------------------------------------------------------------------

    def dispatch(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        """Rounds until nothing more can be sent; then, if somebody has permits, leave a read waiting."""
        self._forget_passed(ctx, topic, subscription)
        while self._round(ctx, topic, subscription):
            pass
        self.delayed.arm(ctx.clock, ctx.config)
        if (due := self.due(ctx)) >= 0:
            ctx.wake(topic.name, due)

    def _forget_passed(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        """quirk: what the broker moved the mark-delete over is pending until the next read, and stays counted."""
        mark_delete = topic.cursors[subscription.name].mark_delete
        for consumer in subscription.consumers:
            while consumer.pending and (first := next(iter(consumer.pending))) <= mark_delete:
                self._release(ctx, topic, consumer, first)

    def _round(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> bool:
        """One round. True: something was dealt with, so another may be of use."""
        cursor = topic.cursors[subscription.name]
        wanted = self._read_size(ctx, subscription.consumers)
        if wanted == 0 or self.delayed.pauses_all(ctx.clock, ctx.config):
            return False
        if self.delayed.buckets:
            self._replay_all(topic, subscription, self.delayed.take(wanted, ctx.clock, ctx.config))
        if self.replay:
            taken = self.replay[:wanted]
            positions = [p for p in taken if p > cursor.mark_delete and p not in cursor.acked]
            if len(positions) < len(taken):
                self.forget(set(taken).difference(positions))
            return not positions or self._deal_out(ctx, topic, subscription, positions, from_replay=True)
        if self.blocked or subscription.broker_blocked or self.pending_read:
            return False
        positions = cursor.read(topic.ledger, wanted)
        if not positions:
            self.pending_read = wanted
            return False
        self._deal_out(ctx, topic, subscription, positions, from_replay=False)
        return True

    def _read_size(self, ctx: Context, consumers: list[Consumer]) -> int:
        """Entries to read in a round; 0: nobody can be sent to."""
        first = next((consumer for consumer in consumers if consumer.available), None)
        if first is None:
            return 0
        permits = max(self.total_permits, first.permits)
        if ctx.config.preciseDispatcherFlowControl and first.average:
            permits = -(-permits // first.messages_per_entry)
        return max(min(permits, ctx.config.dispatcherMaxReadBatchSize), 1)

    def _deal_out(
        self,
        ctx: Context,
        topic: "Topic",
        subscription: "Subscription",
        positions: list[Position],
        *,
        from_replay: bool,
    ) -> bool:
        """Deal out entries; what nobody can take now goes to the replay set. True: something was dealt with."""
        found = read(ctx, topic, positions)
        left = self.deal(ctx, topic, subscription, found, from_replay=from_replay)
        if from_replay:
            self.forget(set(positions).difference(left))
        else:
            for position in left:
                insort(self.replay, position)
        return len(left) < len(positions)

    def deal(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", found: Found, *, from_replay: bool
    ) -> list[Position]:
        """Turn by turn to the consumers in round robin; the positions that nobody could take."""
        if any(entry.metadata.uuid is not None for _, entry in found):
            return chunked_messages.deal(self, ctx, topic, subscription, found)
        remaining = sum(entry.messages for _, entry in found)
        average = max(remaining // max(len(found), 1), 1)
        limit = self.consumer_limit(ctx, topic, subscription)
        done = 0
        while done < len(found) and (consumer := self.next_consumer(subscription.consumers)) is not None:
            most = ctx.config.dispatcherMaxRoundRobinBatchSize
            turn = entries_in_turn(remaining, limit, consumer.unacked, average, consumer.permits, most)
            run = found[done : done + turn]
            self.send(ctx, topic, subscription, consumer, run)
            remaining -= sum(entry.messages for _, entry in run)
            done += len(run)
        return [position for position, _ in found[done:]]

    def send(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer, run: Found
    ) -> None:
        """Filter and send to one consumer, and remember what it has to ack."""
        judged, (run, rescheduled) = run, filter_entries(ctx, topic, subscription, run, self.delayed)
        if self.counts and len(run) < len(judged):
            cursor = topic.cursors[subscription.name]
            for position, _ in judged:
                if position <= cursor.mark_delete or position in cursor.acked:
                    self.counts.pop(position, None)
        if rescheduled:
            self.rescheduled.setdefault(redelivery_time(ctx), []).extend(rescheduled)
        charged = send(ctx, topic, subscription, consumer, run, self.counts)
        for (position, _), messages in zip(run, charged, strict=True):
            consumer.pending[position] = messages
        total = sum(charged)
        consumer.unacked += total
        self.total_permits -= total
        self._add_unacked(ctx, topic, subscription, total)
        limit = self.consumer_limit(ctx, topic, subscription)
        if limit and consumer.unacked >= limit:
            consumer.blocked = True

    def forget(self, positions: set[Position]) -> None:
        """Take positions out of the replay set."""
        if positions:
            self.replay = [position for position in self.replay if position not in positions]

    def forget_to(self, position: Position) -> None:
        """Take positions up to this one out of the replay set."""
        self.forget(set(self.replay[: bisect_right(self.replay, position)]))

    def forget_all(self) -> None:
        """Empty the replay set."""
        self.replay.clear()

    def next_consumer(self, consumers: list[Consumer]) -> Consumer | None:
        """Round robin inside a priority level, higher levels (lower numbers) first (§5)."""
        if self.round_robin >= len(consumers):
            self.round_robin = 0
        level = consumers[self.round_robin].priority
        same = [index for index, consumer in enumerate(consumers) if consumer.priority == level]
        turn = same.index(self.round_robin)
        # quirk: from level 0 nobody looks for a still higher one
        higher = range(same[0] if level != 0 else 0)
        lower = range(same[-1] + 1, len(consumers))
        for index in chain(higher, same[turn:], same[:turn], lower):
            consumer = consumers[index]
            if consumer.available:
                self.round_robin = index + 1
                return consumer
        return None


def entries_in_turn(remaining: int, limit: int, unacked: int, average: int, permits: int, most: int) -> int:
    """Entries for one consumer's turn: its permits and its unacked limit in messages, over the average per entry."""
    messages = min(remaining, permits)
    if limit > 0:
        messages = min(messages, max(limit - unacked, 0))
    return max(min(most, -(-messages // average)), 1)
