"""Key_Shared before Pulsar 4.0 (mirrors `PersistentStickyKeyDispatcherMultipleConsumersClassic`; rules:
docs/rules/key-shared.md §12).

Hashes do not drain. Instead, a consumer that joins while entries are unacked gets only entries before the read position
at that time, until all of them are acked. While only such consumers have permits, nothing new is read. A read is divided
by consumer: if the replay set has one hash of a consumer's new entries, all of them wait.

Pulsar's look-ahead past entries that it can't send is unbounded. Here the unacked limits bound it, or `LEAST_LOOK_AHEAD` if they are
lower.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec

from schemas.entries import Entry
from schemas.printable import counted
from streaming.broker.dispatch.multiple_consumers import MultipleConsumers
from streaming.broker.dispatch.selectors import CLASSIC_RING_SIZE, ConsistentHashing
from streaming.broker.dispatch.sending import Found, read
from streaming.broker.dispatch.sticky_key import StickyKeyMultipleConsumers
from streaming.broker.dispatch.sticky_key_hash import sticky_key_hash
from streaming.broker.dispatch.verdict import Verdict, recently_joined
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.subscription.context import SubscriptionContext

LEAST_LOOK_AHEAD = 20_000
"""So many entries may wait for their consumers at least, however low the unacked limits are."""

NO_HASH = 0
"""What a consumer remembers as the hash of each of its pending entries without `keySharedRemembersHashes`. quirk: when it leaves, whoever
owns this hash decides if they can be read from the replay set. No key has it."""


class ClassicStickyKeyMultipleConsumers(StickyKeyMultipleConsumers, tag="sticky-classic"):
    """`joined` = recentlyJoinedConsumers: (consumer, read position when it joined), by position.

    `skips_replays` = isDispatcherStuckOnReplays: the next round that has permits doesn't look at the replay set.
    """

    joined: list[tuple[Handle, Position]] = msgspec.field(default_factory=list)
    skips_replays: bool = False

    @classmethod
    def ring_size(cls) -> int:
        """How many slots the ring of consistent hashing has."""
        return CLASSIC_RING_SIZE

    @property
    def _drains(self) -> bool:
        return False

    @property
    def _polls(self) -> bool:  # a consumer that joins starts no read
        return False

    def add_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> None:
        """Restrict the consumer to entries before the read position while older ones are unacked."""
        super().add_consumer(sub, consumer)
        cursor, ledger = sub.cursor, sub.ledger
        if (
            not self.out_of_order
            and len(sub.consumers) > 1
            and cursor.read_position >= cursor.mark_delete
            and ledger.count(cursor.mark_delete, cursor.read_position, include_start=False, include_end=True)
            > 1
        ):
            insort(self.joined, (consumer.handle, cursor.read_position), key=_position)
        elif self._older is not None:
            self._older.append(consumer)
        if self._retries(sub):  # keys have new owners
            self.dispatch(sub)

    def remove_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> bool:
        """Remove the consumer. Its restriction ends, and the other's if one is left. The caller must always call
        `consumers_left`.

        quirk: of consumers that leave together, the first one's leaving chooses what `consumers_left` sends first. It heeds
        the restriction that ends, and who owns the hashes then. And if nobody was free of it, nothing waits to be sent again, and no other
        restriction ends, nobody gets anything before the next occasion.
        """
        reads = "_chosen" in self.__dict__ and (self._chosen or self._reads_ahead(sub))
        reads_on = super().remove_consumer(sub, consumer)
        if not sub.consumers:
            if reads:  # what the leaving of another one made it read finds nobody, so the cursor is rewound
                sub.cursor.rewind(sub.ledger)
            return True
        self._choose(sub)
        self.__dict__.pop("_older", None)
        reads_on = reads_on or self.anyone(sub)
        self.joined = [entry for entry in self.joined if entry[0] != consumer.handle]
        if len(sub.consumers) == 1:
            self.joined.clear()
        self.__dict__.pop("_older", None)
        if reads_on or self._admit(sub) or self.replay:
            self.__dict__["_reads_on"] = True
        self._choose(sub)
        return True

    def remove_together(self, sub: SubscriptionContext, consumers: Sequence[Consumer]) -> bool:
        """See `MultipleConsumers`. The first one's leaving depends on who owns the hashes then."""
        return MultipleConsumers.remove_together(self, sub, consumers)

    def _reads_ahead(self, sub: SubscriptionContext) -> bool:
        unread = sub.cursor.read_position <= sub.ledger.last_confirmed
        return unread and not self.pending_read and not self.blocked and self.anyone(sub)

    def after_seek(self, sub: SubscriptionContext) -> None:
        """Remove all consumers. The seek decides where the next one reads."""
        read_position, consumers = sub.cursor.read_position, list(sub.consumers)
        super().after_seek(sub)
        sub.cursor.read_position = read_position
        for consumer in consumers:  # choosing what to read looked the others up again
            sub.subscription.forget(consumer)

    def _choose(self, sub: SubscriptionContext) -> None:
        """Choose what to replay for a read that completes later, unless there is such a read."""
        if not self._chosen and (wanted := self._wanted(sub)):
            self._chosen += self._replays(sub, wanted)

    @cached_property
    def _chosen(self) -> list[Position]:  # empty between two commands
        return []

    def consumers_left(self, sub: SubscriptionContext) -> None:
        """Send what was chosen when the first of them left, then as much as possible, unless none of them made the dispatcher read on."""
        if chosen := self._unacked_replays(sub, self.__dict__.pop("_chosen", [])):
            self._deal_out(sub, chosen, from_replay=True)
        if self.__dict__.pop("_reads_on", False) or chosen:
            self.dispatch(sub)

    def forget_all(self) -> None:
        """Forget the replay set and the restrictions of consumers that joined."""
        super().forget_all()
        self.joined.clear()
        for derived in ("_chosen", "_older", "_reads_on"):
            self.__dict__.pop(derived, None)

    def after_acks(
        self, sub: SubscriptionContext, owners: list[Consumer], *, mark_delete_moved: bool
    ) -> None:
        """Dispatch at once, unlike Key_Shared since 4.0."""
        super().after_acks(sub, owners, mark_delete_moved=False)
        # Acks of waiting entries may make room for more reads.
        passed = self.replay and self.replay.first(1)[0] <= sub.cursor.mark_delete
        if (mark_delete_moved and self._admit(sub)) or passed:
            self.dispatch(sub)

    def mark_delete_moved(self, sub: SubscriptionContext, *, by_expiry: bool) -> None:
        """Dispatch if an expiry lifts a restriction, or the dispatcher retries anyway."""
        if sub.ctx.config.removePendingAcksOnMarkDeleteMove:
            super().mark_delete_moved(sub, by_expiry=by_expiry)
        elif (by_expiry and self._admit(sub)) or self._retries(sub):
            self.dispatch(sub)

    def _retries(self, sub: SubscriptionContext) -> bool:
        """Before 3.0, while somebody could receive, but the first entries to send again wait for a consumer that joined recently."""
        waits = self.joined and self.replay and not sub.ctx.config.keySharedPassesEntriesThatWait
        return bool(waits) and self._read_size(sub) > 0

    def _admit(self, sub: SubscriptionContext) -> bool:
        """Lift the restriction of consumers for which everything older is acked. Returns True if there were any."""
        if not self.joined:
            return False
        reached = sub.ledger.next_valid(sub.cursor.mark_delete)
        waiting = [entry for entry in self.joined if entry[1] > reached]
        if len(waiting) == len(self.joined):
            return False
        self.joined = waiting
        self.__dict__.pop("_older", None)
        return True

    # -- dispatch -------------------------------------------------------------------------------------------------

    def waits_for_entries(self, sub: SubscriptionContext) -> bool:
        """As for Shared, but a round also ends being stuck."""
        return not self.skips_replays and super().waits_for_entries(sub)

    def _forget_passed(self, sub: SubscriptionContext) -> list[Consumer]:
        """Before 4.0, entries that the broker moved the mark-delete past stay pending."""
        if sub.ctx.config.removePendingAcksOnMarkDeleteMove:
            return super()._forget_passed(sub)
        self.passed_from = None
        return []

    def _send_at_once(self, sub: SubscriptionContext, position: Position, entry: Entry) -> bool:
        return False  # who joined lately decides, too

    def _round(self, sub: SubscriptionContext) -> bool:
        cursor = sub.cursor
        if not (wanted := self._wanted(sub)):
            return False
        if taken := self._replays(sub, wanted):
            positions = self._unacked_replays(sub, taken)
            return not positions or self._deal_out(sub, positions, from_replay=True)
        if self.blocked or sub.subscription.broker_blocked or self.pending_read or not self.anyone(sub):
            return False
        wanted = min(wanted, self._most_waiting(sub) - len(self.replay))
        if wanted <= 0:
            return False
        wanted = sub.fitting(wanted)
        if not (positions := cursor.read(sub.ledger, wanted)):
            self.pending_read = sub.waiting(wanted, each_shrinks=True)
            return False
        return self._deal_out(sub, positions, from_replay=False)

    def _most_waiting(self, sub: SubscriptionContext) -> int:
        return max(self._unacked_bound(sub), LEAST_LOOK_AHEAD)

    def _replays(self, sub: SubscriptionContext, wanted: int) -> list[Position]:
        """What to replay next, none if the dispatcher is stuck on replays."""
        skip, self.skips_replays = self.skips_replays, False
        if skip:
            return []
        if self.delayed.waiting.length:
            self._replay_delayed(sub, wanted)
        return self._sendable(sub, self.replay.first(wanted))

    def _hold(self, position: Position, hash_: int) -> None:
        """Remember the hash of a position in the replay set.

        quirk: a hash that replaces another is not counted as held, but uncounted when the position leaves.
        """
        if position not in self.hashes:
            super()._hold(position, hash_)
            return
        self._leave_queue(position)
        self.hashes[position] = hash_
        if position in self.replay:
            self._join_queue(position)

    def forget_to(self, position: Position) -> None:
        """Remove entries up to and including `position` from the replay set, with their hashes."""
        self.forget(self.replay.take_to(position))

    def anyone(self, sub: SubscriptionContext) -> bool:
        """Whether any consumer can take new entries: one that joined recently gets them only from the replay set."""
        if self.out_of_order or not sub.ctx.config.keySharedPassesEntriesThatWait:
            return True
        if self._older is None:
            joined = {handle for handle, _ in self.joined}
            self.__dict__["_older"] = [each for each in sub.consumers if each.handle not in joined]
        return any(consumer.available for consumer in self._older or ())

    @cached_property
    def _older(self) -> list[Consumer] | None:
        """The consumers that did not join recently, None: nobody has asked yet."""
        return None

    def _sendable(self, sub: SubscriptionContext, positions: list[Position]) -> list[Position]:
        """Those of the first positions in the replay set that their consumers can take, or whose hashes are not known."""
        if self.out_of_order or not sub.ctx.config.keySharedPassesEntriesThatWait:
            return positions
        found: list[Position] = []
        groups: dict[Handle, list[Position]] = {}
        for position in positions:
            if position not in self.hashes:
                found.append(position)
            elif (handle := self._consumer_of(position)) is not None:
                groups.setdefault(handle, []).append(position)
        for handle, group in groups.items():
            found += group[: self._allowed(sub, sub.subscription.consumer(*handle), group, from_replay=True)]
        return sorted(found)

    def _allowed(
        self, sub: SubscriptionContext, consumer: Consumer, positions: list[Position], *, from_replay: bool
    ) -> int:
        """How many of the positions a consumer can take, by its permits and by when it joined.

        In the replay set, the read position of the earliest `joined` consumer applies to all of them.
        """
        most = max(consumer.permits, 0)
        if (limit := sub.consumer_limit) > 0:
            most = min(most, max(limit - consumer.unacked, 0))
        most = min(most, len(positions))
        self._admit(sub)
        before = next((position for handle, position in self.joined if handle == consumer.handle), None)
        if before is None or most == 0:
            return most
        if from_replay:
            before = min(before, self.joined[0][1])
        return bisect_left(positions, before, 0, most)

    def _deal_out(self, sub: SubscriptionContext, positions: list[Position], *, from_replay: bool) -> bool:
        """Deal entries to the consumers of their keys, and keep the others with their hashes in the replay set. Returns
        True if another round follows."""
        found = read(sub, positions)
        spreads = sub.ctx.config.keySharedSpreadsKeyless
        slots = {
            position: self.selector.slot(sticky_key_hash(entry.metadata, spreads_keyless=spreads))
            for position, entry in found
        }
        groups: dict[Handle | None, Found] = {}
        for position, entry in found:
            groups.setdefault(self.selector.select(slots[position]), []).append((position, entry))
        left = [position for position, _ in groups.pop(None, [])]
        messages = 0
        for consumer in [consumer for consumer in sub.consumers if consumer.handle in groups]:
            group = groups[consumer.handle]
            of_group = [position for position, _ in group]
            allowed = 0
            if (
                from_replay
                or self.out_of_order
                or self.held.keys().isdisjoint(map(slots.__getitem__, of_group))
            ):
                allowed = self._allowed(sub, consumer, of_group, from_replay=from_replay)
            left += of_group[allowed:]
            if allowed:
                messages -= consumer.messages_out
                self.send(sub, consumer, group[:allowed])
                messages += consumer.messages_out
                remembers = sub.ctx.config.keySharedRemembersHashes
                consumer.hashes |= {
                    position: slots[position] if remembers else NO_HASH
                    for position in of_group[:allowed]
                    if position in consumer.pending
                }
        for position in left:
            self._hold(position, slots[position])
        if from_replay:
            self.forget(set(positions).difference(left))
        else:
            self.remember(left)
        if not messages and not self.joined:
            self.skips_replays = True
            return True
        if from_replay and len(left) == len(
            positions
        ):  # Pulsar tries again every 100 ms, until something else happens
            return False
        return bool(groups)

    # -- why nothing is delivered ---------------------------------------------------------------------------------

    def verdicts(self, sub: SubscriptionContext) -> Iterator[Verdict]:
        """As for Key_Shared, then the consumers that joined recently."""
        yield from super().verdicts(sub)
        for handle, before in self.joined:
            yield recently_joined(sub.subscription.consumer(*handle).name, str(before))

    def _replay_queue(self, sub: SubscriptionContext) -> tuple[bool, str]:
        bound = self._most_waiting(sub)
        text = f"{counted(len(self.replay), 'entry', 'wait')} for the consumer of the key, from {self.replay.first(1)[0]} on"
        return bound <= len(self.replay), f"{text}; new ones are read until {bound} wait"

    # -- stats ----------------------------------------------------------------------------------------------------

    def stats(self, consumers: list[Consumer]) -> dict[str, Any]:
        """Also who joined recently, with the position that restricts it (`consumersAfterMarkDeletePosition`)."""
        names = {consumer.handle: consumer.name for consumer in consumers}
        after = {names[handle]: str(position) for handle, position in self.joined}
        return {**super().stats(consumers), "consumersAfterMarkDeletePosition": after}

    def hash_ranges(self, *, by_point: bool = False) -> dict[Handle, list[str]]:
        """The hash ranges of each consumer that has any."""
        selector, found = self.selector, dict[Handle, list[str]]()
        if by_point and isinstance(selector, ConsistentHashing):
            ranges = selector.by_point()
        else:
            ranges = selector.assignments()
        for first, last, owner in ranges:
            found.setdefault(owner, []).append(f"[{first}, {last}]")
        return found


def _position(entry: tuple[Handle, Position]) -> Position:
    return entry[1]
