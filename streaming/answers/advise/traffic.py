"""What a fold of the log as it is tells of a topic's traffic: what its subscriptions consumed, and the first values to search from.

For plain traffic these estimates are exact: with them, a policy takes nothing that was consumed, and with one unit less, it does. They
are made of when each message left the backlog of each subscription (ms): when it was acked, or taken.

* The TTL is the age of the oldest message that was unacked at a check and acked later.
* The size is one more than the largest backlog at a check, as the broker estimates it: whole ledgers, and a share of the one that
  the subscription is in.
* The age is that of the oldest unacked message at a check; if checks are not precise, since its ledger closed.

Messages come in their order, some at a time, as soon as they are settled (see `streaming.answers.whatif.settling`). So what is needed
of those before is carried along: when the last of them left each backlog, and how much its ledger had.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streaming.answers.whatif.observed import STORED, Ints, OfSubscription, OfTopic, time_of
from streaming.broker.config import ServiceConfiguration
from streaming.broker.ledger.managed_ledger import consumed_size
from streaming.broker.periodic_checks import CHECKS

_NEVER = np.iinfo(np.int64).max


class TopicTraffic:
    """A topic's messages so far. `first`: the time (ms) of the log's first record. `size`: the bytes that were stored. `oldest`: the
    least time (ms) of the log and its messages."""

    def __init__(self, first: int) -> None:
        self.first = self.oldest = first
        self.size = 0
        self.subscriptions: dict[str, SubscriptionTraffic] = {}
        self._clock: int | None = None
        self._ledger = _PartOfLedger()

    def add(self, of: OfTopic, stop: int, config: ServiceConfiguration, *, last: bool) -> None:
        """Add the messages before `stop` that were not added. `last`: all messages of the log are known."""
        first, count = of.messages.first, len(of.messages)
        sizes, times = of.sizes(), of.times()
        self.size += int(sizes[: stop - first].sum())
        for each in (times[: stop - first], of.messages.publish_time.between(first, stop)):
            self.oldest = int(each.min(initial=self.oldest))
        ledgers, _ = of.written.positions_of(np.arange(first, count))
        stored = np.flatnonzero(ledgers >= 0)
        clock: Ints = np.maximum.accumulate(of.messages.clock.between(first, count)[stored])
        if self._clock is not None:
            clock = np.maximum(clock, self._clock)
        known = _Known(
            first=first,
            stop=stop,
            stored=stored,
            added=int(np.searchsorted(stored, stop - first)),
            ledgers=ledgers[stored],
            clock=clock,
            time=times[stored],
            sizes=np.concatenate(([0], np.cumsum(sizes[stored]))),
            before=self._ledger,
            clock_before=self._clock,
        )
        for name, mine in sorted(of.subscriptions.items()):
            own = self.subscriptions.setdefault(name, SubscriptionTraffic())
            if not mine.is_over(first):
                own.add(of, mine, known, _Checks(config, self.first), last=last)
        if known.added:
            self._clock = int(clock[known.added - 1])
            self._ledger = known.last_ledger()


class _PartOfLedger(NamedTuple):
    """What a ledger has so far. Numbers below 0 are those of no ledger."""

    number: int = -1
    entries: int = 0
    size: int = 0


class _Known(NamedTuple):
    """The stored messages that are not added yet, by place, and the first `added` of them that are, those before `stop`. `stored`: the place of each
    among all messages from `first` on. `sizes`: the sum of sizes (bytes) before each. `before`: of the ledger of the message before them."""

    first: int
    stop: int
    stored: Ints
    added: int
    ledgers: Ints
    clock: Ints
    time: Ints
    sizes: Ints
    before: _PartOfLedger
    clock_before: int | None

    def ledger(self, passed: int, end: int) -> tuple[_PartOfLedger, _PartOfLedger]:
        """The ledger of the last of so many messages: with those that there are before `end`, and with those passed."""
        number = int(self.ledgers[passed - 1]) if passed else self.before.number
        start, entries, size = int(np.searchsorted(self.ledgers, number)), 0, 0
        if number == self.before.number:
            start, entries, size = 0, self.before.entries, self.before.size
        stop = min(int(np.searchsorted(self.ledgers, number, side="right")), end)

        def up_to(place: int) -> _PartOfLedger:
            more = int(self.sizes[place] - self.sizes[start])
            return _PartOfLedger(number, entries + place - start, size + more)

        return up_to(stop), up_to(passed)

    def last_ledger(self) -> _PartOfLedger:
        """Of the ledger of the last message that is added, what there is up to that."""
        return self.ledger(self.added, self.added)[1]

    def backlog(self, end: int, passed: int) -> int:
        """The broker's estimate (bytes) of the backlog of a subscription that has passed so many of the messages before `end`."""
        ahead = int(self.sizes[end])
        ledger, own = self.ledger(passed, end)
        if ledger.number < 0:
            return ahead
        begins = int(self.sizes[passed]) - own.size
        return ahead - begins - consumed_size(ledger.size, ledger.entries, own.entries - 1)


class _Checks(NamedTuple):
    """When checks run: at the log's first record, and at equal intervals (ms)."""

    config: ServiceConfiguration
    first: int

    def interval(self, check: str) -> int:
        """0: never."""
        return int(CHECKS[check].interval(self.config))

    def last(self, check: str, times: Ints) -> Ints:
        """The last one up to each time."""
        interval = self.interval(check)
        return self.first + (times - self.first) // interval * interval


class SubscriptionTraffic:
    """What a subscription did with the messages so far. `acked` and `read`: how many it acked, and got. `waiting`: how many are in its backlog
    at the end. `ttl` and `age` (ms), `size` (bytes): see the module; 0 if no check would have seen anything."""

    def __init__(self) -> None:
        self.acked = self.read = self.waiting = 0
        self.ttl = self.age = self.size = 0
        self._left = 0  # when it had passed all so far
        self._checked = 0

    def add(self, of: OfTopic, mine: OfSubscription, known: _Known, checks: _Checks, *, last: bool) -> None:
        """Add some messages."""
        first, stop = known.first, known.stop
        self.acked += int((mine.consumptions(first, stop) > 0).sum())
        self.read += int((mine.deliveries.between(first, stop) > 0).sum())
        stored = of.answer.between(first, stop) == STORED
        self.waiting += int((stored & mine.waiting(first, stop)).sum())
        added = known.stored[: known.added]
        acked, passed, parted = (
            column[added]
            for column in (mine.acked.between(first, stop), mine.passed.between(first, stop), mine.parted(first, stop))
        )  # fmt: skip
        left: Ints = np.where(acked > 0, time_of(acked), np.where(passed > 0, time_of(passed), _NEVER))
        left[added + first <= mine.start] = 0
        if checks.interval("messageExpiry"):
            self._add_ttl(left, known, checks)
        deleted = np.where(parted > 0, time_of(parted), 0)
        left = np.where((left == _NEVER) & ((parted != 0) | bool(mine.gone)), deleted, left)
        all_left: Ints = np.maximum.accumulate(np.concatenate(([self._left], left)))
        if checks.interval("backlogQuota"):
            self._add_age(all_left, known, checks, last=last)
            self._add_size(all_left, known, checks, last=last)
        self._left = int(all_left[-1])

    def _add_ttl(self, left: Ints, known: _Known, checks: _Checks) -> None:
        did = (left < _NEVER) & (left > 0)
        check = checks.last("messageExpiry", left[did])
        seen = check > known.clock[: known.added][did]
        self.ttl = int((check - known.time[: known.added][did])[seen].max(initial=self.ttl))

    def _add_age(self, all_left: Ints, known: _Known, checks: _Checks, *, last: bool) -> None:
        before, left = all_left[:-1], all_left[1:]
        front = np.flatnonzero((left > before) & (left < _NEVER))
        check = checks.last("backlogQuota", left[front])
        since, stored = known.time[front], known.clock[front]
        if not checks.config.preciseTimeBasedBacklogQuotaCheck:
            after = np.searchsorted(known.ledgers, known.ledgers[front], side="right")
            closed = (after < len(known.ledgers)) | (not last)  # its messages are settled, so it is deleted
            since = stored = np.where(closed, known.clock[after - 1], _NEVER)
        seen = (check > stored) & (check > before[front])
        self.age = int((check - since)[seen].max(initial=self.age))

    def _add_size(self, all_left: Ints, known: _Known, checks: _Checks, *, last: bool) -> None:
        clocks = known.clock if known.clock_before is None else np.append(known.clock_before, known.clock)
        times = np.unique(checks.last("backlogQuota", clocks) + checks.interval("backlogQuota"))
        # Later, it may have passed messages that are not added yet.
        until = _NEVER if last else int(all_left[-1])
        times = times[(times > self._checked) & (times <= until)]
        self._checked = max(self._checked, until)
        ends = np.searchsorted(known.clock, times)
        passed = np.minimum(np.searchsorted(all_left[1:], times), ends)
        for end, done in zip(ends.tolist(), passed.tolist(), strict=True):
            self.size = max(self.size, known.backlog(end, done) + 1)
