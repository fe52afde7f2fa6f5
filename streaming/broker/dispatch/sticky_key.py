"""Dispatch by key: Key_Shared (mirrors `PersistentStickyKeyDispatcherMultipleConsumers`, PIP-379; rules:
docs/rules/key-shared.md §6–§11). Read `multiple_consumers` first: this is Shared, with the keys' order.

The problem
    All entries of a key go to one consumer, in order. A hash of the key chooses the consumer, but that is not enough:

    * The consumer may have no permits. Later entries of its keys must not overtake the one that waits, and entries for
      other consumers must not wait with it.
    * A consumer joins or leaves, and hashes move to another one. The former consumer still has unacked entries of them.
      If the new one got the next entries now, two consumers would have the key at the same time.

The data
    `selector`      hash slot → consumer: a ring of consistent hashing, ranges that are split, or fixed ranges (STICKY)
    `replay`        entries that were read and wait, as for Shared
    `hashes`        the hash of a position in the replay set, if it was judged by key. Entries that were asked for again
                    or delayed have none: they are read again, then judged.
    `held`          how many positions of each hash `hashes` has. New entries with such a hash wait behind them.
    `draining`      hashes that moved away from a consumer with unacked entries, and how many it still has
    `Consumer.hashes`   the hash of each pending entry

    `_index`, `_queues` and `_stale` are derived from these and not part of the state. With them, a join, a search of
    the replay set and an ack need not look at all entries that wait. All changes of the replay set go through
    `remember`, `forget`, `forget_to` and `forget_all`, which keep them up to date.

In order
    A round (`_round`) takes from the replay set what can be sent now (`_select`). If there is nothing, it *looks ahead*:
    it reads new entries, unless too many wait already (`look_ahead`). `deal` gives each entry to the consumer of its
    hash if that has room, the hash does not drain, and no earlier entry of the hash waits. Otherwise the entry goes to
    the replay set with its hash.

    Keys k1 and k2, consumer a alone, then b joins and gets k1's hash::

        1:0 (k1) to a, 1:1 (k2) to a
        b joins                         k1 drains: a has 1 unacked entry of it
        1:2 (k1), 1:3 (k2), 1:4 (k1)    1:3 to a; 1:2 and 1:4 wait: replay = {1:2, 1:4}, held = {k1: 2}
        a acks 1:0                      k1 has drained; a dispatch is due 10 ms later (`unblocks_at`)
        10 ms later                     1:2 and 1:4 to b, in order

    Pulsar retries a round without progress after a backoff. Here, rounds run until another one would change nothing, and
    every event that could change the outcome starts them again or resets `stuck`.

Invariants
    * `held` counts exactly the hashes in `hashes`, and each consumer's `hashes` has exactly its pending entries.
    * In mode AUTO_SPLIT without out-of-order delivery, a draining hash counts exactly the unacked entries of its owner
      with that hash, and at least one.
    * While `stuck` is set, no position of the replay set can be sent.

What it costs
    An entry costs a hash and a search on the ring. `_select` looks only at queues of consumers with room, so entries
    that wait for a slow consumer are not searched again. A join or leave costs in proportion to the entries with hashes
    in the ranges that change hands, see `hashes_in_use`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from heapq import heapify, heappop, heapreplace
from sys import maxsize
from typing import Any, Literal

import msgspec

from schemas.commands import KeySharedMeta, MessageMetadata
from schemas.entries import Entry
from schemas.printable import counted
from streaming.broker.config import ServiceConfiguration
from streaming.broker.dispatch.draining_hashes import DrainingHashes
from streaming.broker.dispatch.hashes_in_use import UnackedHashes, WaitingHashes
from streaming.broker.dispatch.multiple_consumers import NO_HASHES, MultipleConsumers
from streaming.broker.dispatch.selectors import (
    RANGE_SIZE,
    ConsistentHashing,
    Selector,
    new_selector,
)
from streaming.broker.dispatch.sending import Found
from streaming.broker.dispatch.sticky_key_hash import sticky_key_hash
from streaming.broker.dispatch.verdict import Verdict, Whereabouts, draining_hash
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.subscription.context import SubscriptionContext

KeySharedMode = Literal["AUTO_SPLIT", "STICKY"]


def key_shared(meta: KeySharedMeta | None) -> tuple[KeySharedMode, bool]:
    """The mode that a consumer asks for, and whether it allows out-of-order delivery."""
    return ("AUTO_SPLIT", False) if meta is None else (meta.keySharedMode, meta.allowOutOfOrderDelivery)


def key_shared_mismatch(
    active: tuple[KeySharedMode, bool], joining: tuple[KeySharedMode, bool]
) -> str | None:
    """Why a consumer with one result of `key_shared` can't join those with another, or None if it can."""
    if active[0] != joining[0]:
        return (
            f"Active subscription key_shared mode of '{active[0]}' is different than the connecting consumer's "
            f"key_shared mode '{joining[0]}'."
        )
    if active[1] != joining[1]:
        allows, does_not = "allows", "does not allow"
        return (
            f"Active subscription {allows if active[1] else does_not} out of order delivery while the connecting "
            f"consumer {allows if joining[1] else does_not} it."
        )
    return None


class StickyKeyMultipleConsumers(MultipleConsumers, tag="sticky", dict=True):
    """What a Key_Shared subscription keeps between commands, besides what Shared does.

    * `mode`, `out_of_order`: what the connected consumers asked for. They agree.
    * `selector`: which consumer gets which hash.
    * `draining`: the hashes that wait for their former consumer's acks.
    * `hashes`: position in the replay set → its hash, where known. `forget_to` may keep those of positions that left it.
    * `held`: hash → how many positions in `hashes` have it.
    * `skip_replay`: the next round looks ahead of the replay set.
    * `stuck`: nothing in the replay set can be sent until something other than new entries happens. This saves a search
      of the set for each new entry.
    * `unblocks_at`: when to dispatch because a hash has drained or acks moved the mark-delete position (ms); −1: not set.
    """

    mode: KeySharedMode = "AUTO_SPLIT"
    out_of_order: bool = False
    selector: Selector = msgspec.field(default_factory=ConsistentHashing)
    draining: DrainingHashes = msgspec.field(default_factory=DrainingHashes)
    hashes: dict[Position, int] = msgspec.field(default_factory=dict)
    held: dict[int, int] = msgspec.field(default_factory=dict)
    skip_replay: bool = False
    stuck: bool = False
    unblocks_at: int = -1

    @classmethod
    def create(
        cls, config: ServiceConfiguration, mode: KeySharedMode, *, out_of_order: bool
    ) -> "StickyKeyMultipleConsumers":
        """A dispatcher with the selector for the mode and the broker's settings."""
        selector = new_selector(config, fixed_ranges=mode == "STICKY", ring_size=cls.ring_size())
        return cls(mode=mode, out_of_order=out_of_order, selector=selector)

    @classmethod
    def ring_size(cls) -> int:
        """How many slots the ring of consistent hashing has."""
        return RANGE_SIZE - 1

    # -- consumers (docs/rules/key-shared.md §6, §7) --------------------------------------------------------------

    def mismatch(self, meta: KeySharedMeta | None) -> str | None:
        """Mode and `allowOutOfOrderDelivery` must equal those of the connected consumers."""
        return key_shared_mismatch((self.mode, self.out_of_order), key_shared(meta))

    def check(self, consumer: Consumer) -> None:
        """Raise `BrokerError` if the selector can't give the consumer the hash ranges it asks for."""
        self.selector.check(consumer)

    def add_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> None:
        """Give the consumer its hash slots. Hashes it takes from others drain first."""
        super().add_consumer(sub, consumer)
        self._take_over(sub, consumer)
        self.stuck = False
        if self._polls:
            self.dispatch(sub)  # one more consumer allows a longer look-ahead

    def remove_consumer(self, sub: SubscriptionContext, consumer: Consumer) -> bool:
        """Give the consumer's hash slots to the others. None of its hashes drain any more."""
        if self.selector.has(consumer.handle):
            self._give_up(sub, consumer)
        self.stuck = False
        return super().remove_consumer(sub, consumer) or self._polls

    def remove_together(self, sub: SubscriptionContext, consumers: Sequence[Consumer]) -> bool:
        """See `Dispatcher`. What became of each hash in between does not matter: who stays only gains hashes."""
        self._give_up_together(sub, consumers)
        return super().remove_together(sub, consumers)

    @property
    def _polls(self) -> bool:  # whether Pulsar may be retrying: not while a read waits or is not allowed
        return not self.pending_read and not self.blocked

    def _take_over(self, sub: SubscriptionContext, joining: Consumer) -> None:
        """Add a consumer to the selector. A hash with unacked entries drains once its consumer loses it."""
        for hash_, former in self._moved(
            sub, self.selector.reach(joining), lambda: self.selector.add(joining)
        ):
            if (
                former is not None
                and self._drains
                and (entries := self._unacked_hashes(sub).entries(former, hash_))
            ):
                self.draining.add(former, hash_, entries)

    def _give_up(self, sub: SubscriptionContext, leaving: Consumer) -> None:
        """Remove a consumer from the selector. None of its hashes drain any more. The others only gain: a hash no longer drains once
        its consumer gets it back."""
        self.draining.forget(leaving.handle, leaving.hashes.values())
        self._come_back(sub, self._moved(sub, self.selector.reach(leaving), lambda: self.selector.remove(leaving.handle)))  # fmt: skip
        if self._index is not None:
            if self._index.outlives(len(leaving.hashes)):
                for hash_ in leaving.hashes.values():
                    self._index.remove(leaving.handle, hash_)
            else:
                self.__dict__["_index"] = None

    def _give_up_together(self, sub: SubscriptionContext, consumers: Sequence[Consumer]) -> None:
        """`_give_up` for many."""
        for leaving in consumers:
            self.draining.forget(leaving.handle, leaving.hashes.values())
        leaving_now = {consumer.handle for consumer in consumers}
        everywhere = [(0, maxsize)]
        self._come_back(sub, self._moved(sub, everywhere, lambda: self.selector.remove_together(leaving_now)))
        self.__dict__["_index"] = None

    def _come_back(self, sub: SubscriptionContext, moved: list[tuple[int, Handle | None]]) -> None:
        """Hashes have new consumers, since others left. They no longer drain from these."""
        for hash_, _ in moved:
            owner = self.selector.select(hash_)
            draining = self.draining.hashes.get(hash_)
            if owner is None or draining is None or draining.owner != owner:
                continue
            entries = self._unacked_hashes(sub).entries(owner, hash_)
            if entries and self.draining.reduce(owner, hash_, entries):
                self._read_soon(sub)

    def _moved(
        self, sub: SubscriptionContext, reach: list[tuple[int, int]], change: Callable[[], None]
    ) -> list[tuple[int, Handle | None]]:
        """Let consumers join or leave. The hashes in use that belong to another consumer then, and the former one. `reach`: ranges in
        which these hashes are."""
        select, queues = self.selector.select, self.__dict__.get("_queues")
        in_use = [each for each in (self._unacked_hashes(sub) if self._drains else None, queues) if each]
        had = {hash_: select(hash_) for range_ in reach for each in in_use for hash_ in each.between(*range_)}
        change()
        moved = [(hash_, former) for hash_, former in had.items() if select(hash_) != former]
        if queues is not None:
            for hash_, former in moved:
                queues.move(hash_, former, select(hash_))
        return moved

    def _unacked_hashes(self, sub: SubscriptionContext) -> UnackedHashes:
        if self._index is None:
            self.__dict__["_index"] = UnackedHashes(sub.consumers)
        assert self._index is not None
        return self._index

    @cached_property
    def _index(self) -> UnackedHashes | None:
        """See `_unacked_hashes`, None: it is not needed now."""
        return None

    def _forget_outdated(self) -> None:
        if self._index is not None and self._index.is_outdated:
            self.__dict__["_index"] = None

    @property
    def _drains(self) -> bool:
        return self.mode == "AUTO_SPLIT" and not self.out_of_order

    # -- triggers -------------------------------------------------------------------------------------------------

    def flow(self, sub: SubscriptionContext, consumer: Consumer, permits: int) -> None:
        """Add permits. They may also let entries through that waited in the replay set."""
        self.stuck = False
        super().flow(sub, consumer, permits)

    def due(self) -> int:
        """The earliest of the timers of Shared and the unblocking of hashes."""
        others = super().due()
        return others if self.unblocks_at < 0 else min(self.unblocks_at, others if others >= 0 else maxsize)

    def dispatch(self, sub: SubscriptionContext) -> None:
        """Dispatch now instead of when hashes are unblocked."""
        self.unblocks_at = -1
        super().dispatch(sub)

    def _unblock(self, consumer: Consumer) -> None:
        self.stuck = False
        super()._unblock(consumer)

    # -- entries that aren't pending any more ---------------------------------------------------------------------

    def release(self, sub: SubscriptionContext, consumer: Consumer, position: Position) -> None:
        """Also forget its hash, which may have drained."""
        if 0 < sub.policies.maxUnackedMessagesPerConsumer <= consumer.unacked:
            self.stuck = False
        hash_ = consumer.hashes.pop(position, None)
        if hash_ is not None:
            if self._index is not None:
                self._index.remove(consumer.handle, hash_)
                self._forget_outdated()
            if self.draining.hashes and self.draining.reduce(consumer.handle, hash_):
                self._read_soon(sub)
        super().release(sub, consumer, position)

    def _read_soon(self, sub: SubscriptionContext) -> None:
        """Schedule one dispatch a little later, however many events ask for it."""
        self.stuck = False
        if self.unblocks_at < 0:
            self.unblocks_at = sub.ctx.clock + sub.ctx.config.keySharedUnblockingIntervalMs
            sub.wake(self.unblocks_at)

    def timer(self, sub: SubscriptionContext) -> bool:
        """Also cancel a waiting read if there are entries to replay (`RescheduleReadHandler`)."""
        if not 0 <= self.unblocks_at <= sub.ctx.clock:
            return super().timer(sub)
        if self.replay:
            self.pending_read = 0
        if not super().timer(sub):
            self._read_unblocked(sub)
        return True

    def _read_unblocked(self, sub: SubscriptionContext) -> None:
        """quirk: while the dispatcher waits for permits of a dispatch rate, it reads with its next look at them."""
        if sub.throttle is not None and sub.throttle.waits(sub.ctx.clock):
            self.unblocks_at = -1
        else:
            self.dispatch(sub)

    def _acknowledged_unowned(self) -> None:
        self.stuck = False  # it may be in the replay set and take up room there

    def acknowledged_partly(
        self,
        sub: SubscriptionContext,
        consumer: Consumer,
        position: Position,
        ack_set: int,
    ) -> None:
        """As for Shared. It may also let entries through that waited in the replay set."""
        self.stuck = False
        super().acknowledged_partly(sub, consumer, position, ack_set)

    def after_acks(
        self, sub: SubscriptionContext, owners: list[Consumer], *, mark_delete_moved: bool
    ) -> None:
        """Dispatch at once if hashes are due to be unblocked, else only what the acks allow. In 4.0, acks that move the mark-delete
        position schedule a dispatch, too; later versions tell the dispatcher of the broker's own moves instead."""
        tells = not sub.ctx.config.removePendingAcksOnMarkDeleteMove
        if tells and mark_delete_moved and not self.waits_for_entries(sub):
            self._read_soon(sub)
        super().after_acks(sub, owners, mark_delete_moved=mark_delete_moved)
        if 0 <= self.unblocks_at <= sub.ctx.clock:
            self._read_unblocked(sub)

    def mark_delete_moved(self, sub: SubscriptionContext, *, by_expiry: bool) -> None:
        """The hashes of the entries it passed drain with the next dispatch, which an expiry schedules."""
        super().mark_delete_moved(sub, by_expiry=by_expiry)
        if sub.ctx.config.removePendingAcksOnMarkDeleteMove:
            self.dispatch(sub)
        elif by_expiry:
            self._read_soon(sub)

    def _retries(self, sub: SubscriptionContext) -> bool:
        """While somebody could receive, but the look-ahead has reached its limit."""
        if self._read_size(sub) == 0 or sub.subscription.broker_blocked:
            return False
        return self._polls or (self.out_of_order and bool(self.replay))

    # -- the replay set -------------------------------------------------------------------------------------------

    def _replay_all(
        self,
        sub: SubscriptionContext,
        positions: Iterable[Position],
        hashes: dict[Position, int] = NO_HASHES,
    ) -> None:
        passed = sub.passed_to
        if len(hashes) > self.replay.length:  # the queues are made anew for less, when somebody asks
            self.__dict__.pop("_queues", None)
        for position, hash_ in hashes.items():
            if position > passed:
                self._hold(position, hash_)
        super()._replay_all(sub, positions, hashes)
        self.stuck = False

    def _hold(self, position: Position, hash_: int) -> None:
        """Remember the hash of a position in the replay set."""
        if position not in self.hashes:
            self._leave_queue(position)
            self.hashes[position] = hash_
            self.held[hash_] = self.held.get(hash_, 0) + 1
            if position in self.replay:
                self._join_queue(position)

    @cached_property
    def _queues(self) -> WaitingHashes:
        """The replay set by the consumer that gets each position, and by hash."""
        select = self.selector.select
        return WaitingHashes(((position, self.hashes.get(position)) for position in self.replay), select)

    def _consumer_of(self, position: Position) -> Handle | None:
        hash_ = self.hashes.get(position)
        return None if hash_ is None else self.selector.select(hash_)

    def _join_queue(self, position: Position) -> None:
        if "_queues" in self.__dict__:  # else it will be there when somebody asks
            self._queues.add(self._consumer_of(position), self.hashes.get(position), position)

    def _leave_queue(self, position: Position) -> None:
        if "_queues" in self.__dict__:
            self._queues.discard(self._consumer_of(position), self.hashes.get(position), position)

    def remember(self, positions: list[Position]) -> None:
        """Add positions to the replay set."""
        super().remember(positions)
        for position in positions:
            self._join_queue(position)

    def forget(self, positions: Iterable[Position]) -> None:
        """Remove entries from the replay set, with their hashes."""
        for position in positions:
            self.replay.discard(position)
            self._leave_queue(position)
            self._forget_hash(position)
            self.stuck = False

    def _forget_hash(self, position: Position) -> None:
        hash_ = self.hashes.pop(position, None)
        if hash_ is not None:
            self._stale.discard(position)
            left = self.held.get(hash_, 0) - 1
            if left > 0:
                self.held[hash_] = left
            else:
                self.held.pop(hash_, None)

    def forget_to(self, position: Position) -> None:
        """Remove entries up to and including `position` from the replay set.

        quirk: their hashes stay as long as later entries of the ledger, but not all of its entries up to `position`, and none
        of older ledgers were in the replay set. So new entries with such a hash pass through the replay set first (4.0.7).
        """
        gone = self.replay.take_to(position)
        if not gone:
            return
        self.stuck = False
        for each in gone:
            self._leave_queue(each)
        first = bisect_left(gone, Position(position.ledger, 0))
        following = self.replay.at_or_after(position)
        if (
            first
            or len(gone) == position.entry + 1
            or following is None
            or following.ledger > position.ledger
        ):
            for each in [*gone, *self._stale]:
                self._forget_hash(each)
        else:
            self._stale.update(each for each in gone if each in self.hashes)

    @cached_property
    def _stale(self) -> set[Position]:
        """Positions that left the replay set but not `hashes`."""
        return {position for position in self.hashes if position not in self.replay}

    def forget_all(self) -> None:
        """Forget the replay set and the draining hashes."""
        super().forget_all()
        for derived in ("_queues", "_stale", "_index"):
            self.__dict__.pop(derived, None)
        self.hashes.clear()
        self.held.clear()
        self.draining = DrainingHashes()
        self.skip_replay, self.stuck, self.unblocks_at = False, False, -1

    def _select(self, sub: SubscriptionContext, wanted: int) -> list[Position]:
        """Up to `wanted` positions to replay.

        A position with a known hash needs a consumer that can take it (docs/rules/key-shared.md §9), unless out-of-order
        delivery is allowed.
        """
        if self.out_of_order or not self.replay.length:
            return self.replay.first(wanted)
        budgets = budgets_of(sub)
        taken: list[Position] = []
        blocked: set[int] = set()
        heads: list[tuple[Position, Handle | None, Iterator[Position]]] = []
        for handle, queue in self._queues.by_consumer.items():
            if handle is None or budgets[handle] > 0:
                positions = iter(queue)
                heads.append((next(positions), handle, positions))
        heapify(heads)
        while heads and len(taken) < wanted:
            position, handle, positions = heads[0]
            hash_ = self.hashes.get(position)
            if hash_ is None:
                taken.append(position)
            elif hash_ not in blocked:
                if handle is None or self._must_wait(handle, position, hash_):
                    blocked.add(hash_)
                else:
                    budgets[handle] -= 1
                    taken.append(position)
            following = None if handle is not None and budgets[handle] <= 0 else next(positions, None)
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (following, handle, positions))
        return taken

    # -- why nothing is delivered ---------------------------------------------------------------------------------

    def verdicts(self, sub: SubscriptionContext) -> Iterator[Verdict]:
        """As for Shared, then the hashes of each consumer that drain."""
        yield from super().verdicts(sub)
        if nobodys := [hash_ for hash_ in self.held if self.selector.select(hash_) is None]:
            waiting = sum(map(self.held.__getitem__, nobodys))
            text = f"{counted(waiting, 'entry', 'wait')} because no consumer owns their key hashes, such as {nobodys[0]}"
            yield Verdict("hashRanges", True, text, "consumer")
        if not self._drains:
            return
        for consumer in sub.consumers:
            drain = [
                (hash_, draining)
                for hash_, draining in self.draining.hashes.items()
                if draining.owner != consumer.handle and self.selector.select(hash_) == consumer.handle
            ]
            if drain:
                waiting = sum(self.held.get(hash_, 0) for hash_, _ in drain)
                hash_, draining = max(drain, key=lambda each: self.held.get(each[0], 0))
                owner = sub.subscription.consumer(*draining.owner).name
                left = counted(draining.entries, "entry")
                yield draining_hash(consumer.name, len(drain), hash_, owner, left, waiting)

    def _replay_queue(self, sub: SubscriptionContext) -> tuple[bool, str]:
        room = self.look_ahead(sub) - len(self.replay)
        text = f"{counted(len(self.replay), 'entry', 'wait')} for the consumer of the key, from {self.replay.first(1)[0]} on"
        if room <= 0:
            return True, f"{text}: so many that no new ones are read"
        return False, f"{text}; new ones are read until {self.look_ahead(sub)} wait"

    def deals_chunks(self, config: ServiceConfiguration) -> bool:
        """See `Dispatcher`."""
        return False

    def _goes_first(self, consumer: Consumer, other: Consumer) -> bool:
        return False

    @property
    def _keeps_to_the_limit(self) -> bool:
        return True

    def whereabouts(self, sub: SubscriptionContext, position: Position) -> Whereabouts:
        """As for Shared. For an entry that waits for the consumer of its key: why that one cannot take it."""
        found = super().whereabouts(sub, position)
        hash_ = self.hashes.get(position)
        if found.state != "to redeliver" or hash_ is None:
            return found
        handle = self.selector.select(hash_)
        if handle is None:
            return found._replace(text=f"no consumer takes key hash {hash_}")
        consumer = sub.subscription.consumer(*handle)
        draining = self.draining.hashes.get(hash_) if self._drains else None
        why = f"its key hash {hash_} belongs to {consumer.shown}"
        if draining is not None and draining.owner != handle:
            owner = sub.subscription.consumer(*draining.owner).name
            why += (
                f", which gets it when {owner} has acked {counted(draining.entries, 'entry')} with that hash"
            )
        elif budget(consumer, sub.consumer_limit) <= 0:
            why += ", which cannot take more"
        return found._replace(text=why, consumer=consumer.name)

    # -- stats ----------------------------------------------------------------------------------------------------

    def stats(self, consumers: list[Consumer]) -> dict[str, Any]:
        """Also `keySharedMode` and `allowOutOfOrderDelivery`."""
        found = super().stats(consumers)
        return {**found, "keySharedMode": self.mode, "allowOutOfOrderDelivery": self.out_of_order}

    # -- dispatch (docs/rules/key-shared.md §8–§10) ---------------------------------------------------------------

    def _round(self, sub: SubscriptionContext) -> bool:
        cursor = sub.cursor
        if self.replay.length:
            self.forget_to(cursor.mark_delete)
        if not (wanted := self._wanted(sub)):
            return False
        if self.delayed.waiting.length:
            self._replay_delayed(sub, wanted)
        skip, self.skip_replay = self.skip_replay, False
        if not skip and not self.stuck:
            if taken := self._select(sub, wanted):
                self.forget({position for position in taken if position in cursor.acked})
                if positions := [position for position in taken if position not in cursor.acked]:
                    some = self._deal_out(sub, positions, from_replay=True)
                    return some or self.skip_replay or not self.out_of_order
                return True
            self.stuck = True
        if self.blocked or sub.subscription.broker_blocked or self.pending_read:
            return False  # quirk: entries that a look-ahead skipped wait for the next dispatch
        room = self.look_ahead(sub) - self.replay.length
        if room <= 0 or not self.anyone(sub):
            return skip
        return self._read_new(sub, min(wanted, room))

    def _wait(self, sub: SubscriptionContext, wanted: int) -> None:
        self.stuck = True  # there is nothing to replay
        if self.anyone(sub):
            super()._wait(sub, min(wanted, self.look_ahead(sub)))

    def look_ahead(self, sub: SubscriptionContext) -> int:
        """How many positions to replay stop the reading of new entries (docs/rules/key-shared.md §10)."""
        config = sub.ctx.config
        of_all = config.keySharedLookAheadMsgInReplayThresholdPerConsumer * len(sub.consumers)
        of_one = config.keySharedLookAheadMsgInReplayThresholdPerSubscription
        if of_all > 0 and of_one > 0:
            return of_all if of_all < of_one else of_one
        return max(of_all, of_one) if of_all > 0 or of_one > 0 else self._unacked_bound(sub)

    def _unacked_bound(self, sub: SubscriptionContext) -> int:
        limits = [
            sub.policies.maxUnackedMessagesPerSubscription,
            sub.policies.maxUnackedMessagesPerConsumer * len(sub.consumers),
        ]
        return min((limit for limit in limits if limit > 0), default=maxsize)

    def anyone(self, sub: SubscriptionContext) -> bool:
        """Whether any consumer can take new entries."""
        limit = sub.consumer_limit
        for consumer in sub.consumers:  # the first one usually can
            if not consumer.blocked and consumer.permits > 0 and (limit <= 0 or consumer.unacked < limit):
                return True
        return False

    def _must_wait(self, handle: Handle, position: Position, hash_: int) -> bool:
        """Whether an entry must wait although its consumer has room."""
        return bool(self.draining.hashes) and self._drains and self.draining.blocks(handle, hash_)

    def deal(self, sub: SubscriptionContext, found: Found, *, from_replay: bool) -> list[Position]:
        """Deal each entry to the consumer of its key (docs/rules/key-shared.md §8). Returns the positions that must wait and
        keeps their hashes."""
        held_by_gone, budgets, select = bool(self._stale), budgets_of(sub), self.selector.select
        slots: dict[Position, int] = {}
        runs: dict[Handle, Found] = {}
        left: list[Position] = []
        blocked: set[int] = set()
        seen: set[Handle] = set()
        blocked_by_hash: set[Handle] = set()
        for position, entry in found:
            slot = slots[position] = self._slot(sub, position, entry.metadata)
            handle = None if slot in blocked else select(slot)
            if handle is not None:
                seen.add(handle)
                if budgets[handle] <= 0:
                    handle = None
                elif (not from_replay and not self.out_of_order and slot in self.held) or self._must_wait(
                    handle, position, slot
                ):
                    blocked_by_hash.add(handle)
                    handle = None
            if handle is None:
                blocked.add(slot)
                left.append(position)
                self._hold(position, slot)
            else:
                budgets[handle] -= 1
                runs.setdefault(handle, []).append((position, entry))
        if left and held_by_gone and not from_replay:
            self.stuck = False
        receivers = [(sub.subscription.consumer(*handle), run) for handle, run in runs.items()]
        if len(receivers) > 1:
            receivers = [(each, runs[each.handle]) for each in sub.consumers if each.handle in runs]
        for consumer, run in receivers:
            self.send(sub, consumer, run)
            for position, _ in run:
                self.note_hash(consumer, position, slots[position])
        if len(left) < len(found):
            # filtered and partly acked entries took less room than estimated: a consumer may still have some
            if self.stuck and 0 in budgets.values():
                limit = sub.consumer_limit
                self.stuck = not any(
                    budgets[consumer.handle] <= 0 and budget(consumer, limit) > 0 for consumer, _ in receivers
                )
        elif self.look_ahead(sub) > self.replay.length and self._looks_ahead(sub):
            self.skip_replay = any(
                budgets[consumer.handle] > 0
                and (consumer.handle not in seen or (consumer.handle in blocked_by_hash and not from_replay))
                for consumer in sub.consumers
            )
        return left

    def nothing_waits(self, sub: SubscriptionContext) -> bool:
        """Also, no hash holds an entry back."""
        return (
            super().nothing_waits(sub)
            and not self.held
            and not self.hashes
            and not self.draining.hashes
            and not self.skip_replay
            and self.unblocks_at < 0
        )

    def _send_at_once(self, sub: SubscriptionContext, position: Position, entry: Entry) -> bool:
        slot = self._slot(sub, position, entry.metadata)
        handle = None if entry.metadata.deliver_at_time is not None else self.selector.select(slot)
        if handle is None:
            return False
        consumer = sub.subscription.consumer(*handle)
        if (
            consumer.blocked or budget(consumer, sub.consumer_limit) < 2
        ):  # with 1, `deal` looks for what an estimate left
            return False
        self.stuck = True  # there is nothing to replay
        self._deliver_at_once(sub, consumer, position, entry)
        self.note_hash(consumer, position, slot)
        return True

    def note_hash(self, consumer: Consumer, position: Position, slot: int) -> None:
        """Note the hash of an entry that was sent, if it is pending."""
        if position in consumer.pending:
            consumer.hashes[position] = slot
            if self._index is not None:
                self._index.add(consumer.handle, slot)
                self._forget_outdated()

    def _looks_ahead(self, sub: SubscriptionContext) -> bool:
        """Whether the next round may look ahead, see `keySharedLooksAheadAtEnd`."""
        at_end = sub.cursor.read_position > sub.ledger.last_confirmed
        return sub.ctx.config.keySharedLooksAheadAtEnd or self.out_of_order or not at_end

    def _slot(self, sub: SubscriptionContext, position: Position, metadata: MessageMetadata) -> int:
        if (known := self.hashes.get(position)) is not None:
            return known
        return self.selector.slot(
            sticky_key_hash(metadata, spreads_keyless=sub.ctx.config.keySharedSpreadsKeyless)
        )


class Budgets(dict[Handle, int]):
    """How many entries consumers can still take, for those that were asked for."""

    __slots__ = ("sub",)
    sub: SubscriptionContext

    def __missing__(self, handle: Handle) -> int:
        sub = self.sub
        self[handle] = found = budget(sub.subscription.consumer(*handle), sub.consumer_limit)
        return found


def budgets_of(sub: SubscriptionContext) -> Budgets:
    """The budgets of a subscription's consumers."""
    budgets = Budgets()
    budgets.sub = sub
    return budgets


def budget(consumer: Consumer, limit: int) -> int:
    """How many entries a consumer can take.

    That is its permits or, if less, the room under its unacked limit (messages, 0: no limit) over its messages per entry.
    """
    permits = consumer.permits
    if permits <= 0:
        return 0
    if limit <= 0:
        return permits
    left = limit - consumer.unacked
    if left <= 0:
        return 0
    entries = -(-left // max(consumer.messages_per_entry, 1))
    return permits if permits < entries else entries
