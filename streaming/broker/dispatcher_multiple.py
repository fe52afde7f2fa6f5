"""Dispatch to many consumers: Shared (mirrors `PersistentDispatcherMultipleConsumers`; rules: dispatch_shared.md)."""

from bisect import bisect_right, insort
from typing import TYPE_CHECKING

import msgspec

from streaming.broker.consumer import Consumer
from streaming.broker.context import Context
from streaming.broker.dispatch import is_server_only, send
from streaming.broker.entries import Entry
from streaming.broker.position import Position

if TYPE_CHECKING:
    from streaming.broker.subscription import Subscription
    from streaming.broker.topic import Topic


class MultipleConsumers(msgspec.Struct, array_like=True, tag="multiple"):
    """`next_consumer` = round-robin index; `replay` = ascending positions to be sent again before anything new;
    `counts` = redelivery counts; `pending_read` = entries a waiting read asked for; totals are in messages."""

    next_consumer: int = 0
    replay: list[Position] = []
    counts: dict[Position, int] = {}
    total_permits: int = 0
    total_unacked: int = 0
    blocked: bool = False
    pending_read: int = 0

    # -- consumers (§2) -------------------------------------------------------------------------------------------

    def add_consumer(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer
    ) -> None:
        consumers = subscription.consumers
        if not consumers:
            self.pending_read = 0
            self.replay.clear()
            topic.cursors[subscription.name].rewind(topic.ledger)
        consumers.append(consumer)
        if len(consumers) > 1 and consumer.priority < consumers[-2].priority:
            consumers.sort(key=lambda c: c.priority)

    def remove_consumer(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer
    ) -> None:
        subscription.consumers.remove(consumer)
        self._add_unacked(ctx, topic, subscription, -consumer.unacked)
        if not subscription.consumers:
            self.replay.clear()
            self.counts.clear()
            self.total_permits = self.pending_read = 0
            return
        self.total_permits -= consumer.permits
        self._replay_all(topic, subscription, consumer.pending)
        self.dispatch(ctx, topic, subscription)

    # -- triggers (§3, §6) ----------------------------------------------------------------------------------------

    def flow(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer, permits: int
    ) -> None:
        limit = self._consumer_limit(ctx, topic, subscription)
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
            remaining = consumer.pending.pop(position, None)
            if remaining is not None:  # an id may be listed twice
                freed += remaining
                self.counts[position] = self.counts.get(position, 0) + 1
        consumer.unacked -= freed
        self._add_unacked(ctx, topic, subscription, -freed)
        self._replay_all(topic, subscription, wanted)
        self._unblock(consumer)
        self.dispatch(ctx, topic, subscription)

    def new_entries(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        """Entries were confirmed: a waiting read completes, even when nobody can be sent to any more."""
        if self.pending_read:
            wanted, self.pending_read = self.pending_read, 0
            positions = topic.cursors[subscription.name].read(topic.ledger, wanted)
            if positions:
                self._send_round(ctx, topic, subscription, positions)
            self.dispatch(ctx, topic, subscription)

    # -- acks (subscriptions.md §5) -------------------------------------------------------------------------------

    def _owner(self, subscription: "Subscription", consumer: Consumer, position: Position) -> Consumer | None:
        if position in consumer.pending:
            return consumer
        return next((other for other in subscription.consumers if position in other.pending), None)

    def acknowledged(
        self, subscription: "Subscription", consumer: Consumer, position: Position
    ) -> Consumer | None:
        """A whole entry was acked, by whomever: credit the consumer it was sent to, and return it."""
        self.counts.pop(position, None)
        owner = self._owner(subscription, consumer, position)
        if owner is not None:
            freed = owner.pending.pop(position)
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
        """Unblock those `owners` of fully acked entries that are down to half of their limit."""
        released = False
        limit = self._consumer_limit(ctx, topic, subscription)
        for consumer in owners:
            if consumer.blocked and consumer.unacked <= limit // 2:
                self._unblock(consumer)
                released = True
        was_blocked = self.blocked
        self._add_unacked(ctx, topic, subscription, 0)
        if released or (was_blocked and not self.blocked):
            self.dispatch(ctx, topic, subscription)

    def mark_delete_moved(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        """The broker moved the mark-delete: what lies before it is neither pending nor to be replayed (§6)."""
        mark_delete = topic.cursors[subscription.name].mark_delete
        del self.replay[: bisect_right(self.replay, mark_delete)]
        if not ctx.config.removePendingAcksOnMarkDeleteMove:
            return
        owners = []
        for consumer in subscription.consumers:
            gone = [position for position in consumer.pending if position <= mark_delete]
            if gone:
                owners.append(consumer)
            freed = sum(consumer.pending.pop(position) for position in gone)
            consumer.unacked -= freed
            self.total_unacked -= freed
        for position in [position for position in self.counts if position <= mark_delete]:
            del self.counts[position]
        self.after_acks(ctx, topic, subscription, owners)

    # -- limits ---------------------------------------------------------------------------------------------------

    def _consumer_limit(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> int:
        if not subscription.durable:
            return 0
        limit: int = ctx.policy(topic.name, topic.policies, "maxUnackedMessagesPerConsumer").value
        return max(limit, 0)

    def _add_unacked(self, ctx: Context, topic: "Topic", subscription: "Subscription", messages: int) -> None:
        self.total_unacked += messages
        limit = ctx.policy(topic.name, topic.policies, "maxUnackedMessagesPerSubscription").value
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
        self, topic: "Topic", subscription: "Subscription", positions: "list[Position] | dict[Position, int]"
    ) -> None:
        mark_delete = topic.cursors[subscription.name].mark_delete
        fresh = set(positions).difference(self.replay)
        self.replay = sorted([*self.replay, *(position for position in fresh if position > mark_delete)])

    # -- dispatch (§4, §5) ----------------------------------------------------------------------------------------

    def dispatch(self, ctx: Context, topic: "Topic", subscription: "Subscription") -> None:
        """Rounds until nothing more can be sent; then, if somebody has permits, leave a read waiting."""
        cursor = topic.cursors[subscription.name]
        while True:
            first = next((c.permits for c in subscription.consumers if c.available), 0)
            if first <= 0:
                return
            wanted = max(min(max(self.total_permits, first), ctx.config.dispatcherMaxReadBatchSize), 1)
            if self.replay:
                taken = self.replay[:wanted]
                positions = [p for p in taken if p > cursor.mark_delete and p not in cursor.acked]
                if len(positions) < len(taken):
                    acked = set(taken).difference(positions)
                    self.replay = [p for p in self.replay if p not in acked]
                if positions and not self._send_round(ctx, topic, subscription, positions):
                    return
            elif self.blocked or self.pending_read:
                return
            else:
                positions = cursor.read(topic.ledger, wanted)
                if not positions:
                    self.pending_read = wanted
                    return
                self._send_round(ctx, topic, subscription, positions)

    def _send_round(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", positions: list[Position]
    ) -> bool:
        """Deal out entries in turns; what nobody can take goes to the replay set. True: something was dealt with."""
        found = list(zip(positions, ctx.entries.get_all(topic.name, positions), strict=True))
        remaining = sum(entry.messages for _, entry in found)
        average = max(remaining // len(found), 1)
        limit = self._consumer_limit(ctx, topic, subscription)
        done = 0
        while done < len(found) and (consumer := self._next_consumer(subscription.consumers)) is not None:
            run = found[done : done + entries_in_turn(
                remaining, limit, consumer.unacked, average, consumer.permits,
                ctx.config.dispatcherMaxRoundRobinBatchSize,
            )]  # fmt: skip
            if self.replay:
                sent = {position for position, _ in run}
                self.replay = [position for position in self.replay if position not in sent]
            remaining -= self._send(ctx, topic, subscription, consumer, run)
            if limit and consumer.unacked >= limit:
                consumer.blocked = True
            done += len(run)
        for position, _ in found[done:]:
            if position not in self.replay:
                insort(self.replay, position)
        return done > 0

    def _send(
        self, ctx: Context, topic: "Topic", subscription: "Subscription", consumer: Consumer,
        run: list[tuple[Position, Entry]],
    ) -> int:  # fmt: skip
        cursor = topic.cursors[subscription.name]
        markers = [position for position, entry in run if is_server_only(entry)]
        if markers:
            run = [item for item in run if item[0] not in markers]
            for position in markers:
                cursor.acknowledge(topic.ledger, position, None)
            cursor.collapse(topic.ledger)
        charged = send(ctx, topic, subscription, consumer, run, self.counts)
        for (position, _), messages in zip(run, charged, strict=True):
            consumer.pending[position] = messages
        total = sum(charged)
        consumer.unacked += total
        self.total_permits -= total
        self._add_unacked(ctx, topic, subscription, total)
        return sum(entry.messages for _, entry in run)

    def _next_consumer(self, consumers: list[Consumer]) -> Consumer | None:
        """Round robin inside a priority level, higher levels (lower numbers) first (§5)."""
        if not consumers:
            return None
        if self.next_consumer >= len(consumers):
            self.next_consumer = 0
        level = consumers[self.next_consumer].priority
        if level != 0:  # quirk: on level 0 nobody looks for a still higher one
            for index, consumer in enumerate(consumers):
                if consumer.priority >= level:
                    break
                if consumer.available:
                    self.next_consumer = index + 1
                    return consumer
        same = [index for index, consumer in enumerate(consumers) if consumer.priority == level]
        turn = same.index(self.next_consumer)
        lower = [index for index, consumer in enumerate(consumers) if index > same[-1]]
        for index in [*same[turn:], *same[:turn], *lower]:
            if consumers[index].available:
                self.next_consumer = index + 1
                return consumers[index]
        return None


def entries_in_turn(remaining: int, limit: int, unacked: int, average: int, permits: int, most: int) -> int:
    """Entries for one consumer's turn: its permits and its unacked limit in messages, over the average per entry."""
    messages = min(remaining, permits)
    if limit > 0:
        messages = min(messages, max(limit - unacked, 0))
    return max(min(most, -(-messages // average)), 1)
