"""The smallest policy value that loses nothing: a search by folding one ingress partition under several values side by side.

What a value takes depends on what it took before, so nothing but a fold tells. All topics of the partition are searched at the
same time: each fold tries one value for every topic. The first values come from estimates on one fold of the log as it is. For
plain traffic these are exact, so that one round of folds confirms them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np
import pyarrow as pa

from schemas.commands import Admin
from streaming.answers.quarantined import QuarantineKey
from streaming.answers.whatif.observed import STORED, Ints, OfSubscription, OfTopic, OpenLoop, moment, time_of
from streaming.answers.whatif.side_by_side import Folded, fold_side_by_side
from streaming.broker.admin_requests import topic_path
from streaming.broker.config import ServiceConfiguration
from streaming.broker.ledger.managed_ledger import MEGABYTE, consumed_size
from streaming.broker.periodic_checks import CHECKS
from streaming.broker.persistent.cleanup.backlog_quota import EVICTION_TARGET
from streaming.broker.policies.hierarchy import BacklogQuota, Policies, RetentionPolicies
from streaming.log.pins import PartitionPins, PolicyCommand, of_baseline, pins

PolicyName = Literal["messageTTL", "limitSize", "limitTime", "retentionTimeInMinutes", "retentionSizeInMB"]
"""A number that a policy of a topic has: its TTL, the limits of its two backlog quotas, and its retention."""

POLICY_NAMES: tuple[PolicyName, ...] = get_args(PolicyName)

UNITS: dict[PolicyName, str] = {
    "messageTTL": "s", "limitSize": "B", "limitTime": "s", "retentionTimeInMinutes": "min", "retentionSizeInMB": "MB",
}  # fmt: skip

TOGETHER = 7
"""A round folds the log under so many values, and as it is."""

ROUNDS = 12
"""A policy is searched in so many rounds at most, whatever the log."""

_GREATEST = dict.fromkeys(POLICY_NAMES, 2**31 - 1) | {"limitSize": 2**62}
_NEVER = np.iinfo(np.int64).max
_CURVE = (1 / 2, 3 / 4, 1 / 4, 1 / 16)
"""Shares of the first estimate that are tried as well, to show what smaller values lose."""


class Point(msgspec.Struct):
    """What one value does to a topic. `lost`: consumed messages that it takes before their ack, for all subscriptions together.
    `unknown`: consumed messages whose ack comes after the first moment at which a client would have seen something else; they
    are judged by the recorded commands. `storage` at the end and at most, in bytes. `refused`: the broker does not take it."""

    value: int
    lost: int
    unknown: int
    storage: int
    peak_storage: int
    refused: bool = False


class Requirement(msgspec.Struct):
    """What a subscription of a topic needs. `smallest` loses nothing of what the subscription consumed, nor does any greater
    value that was tried. None: even the greatest value that makes a difference loses something, or nothing was consumed.

    `loses`: the largest value that was tried and loses something, one unit less than `smallest` unless the search ended
    before; `lost`: so many messages. None: none of the values lose anything. `consumed`, `waiting`: messages that are acked, and that are
    still in the backlog at the end. `unknown`, `exact_until` (ms): see `Point`, with `smallest`.
    """

    topic: str
    subscription: str
    policy: PolicyName
    smallest: int | None
    loses: int | None
    lost: int
    consumed: int
    waiting: int
    unknown: int
    exact_until: int | None
    refused: bool


class TopicSearch(NamedTuple):
    """What was found of a topic and a policy. `points` rise by value."""

    topic: str
    policy: PolicyName
    requirements: list[Requirement]
    points: list[Point]


class PartitionSearch(NamedTuple):
    """What was found of an ingress partition. `folds`: how often the log was folded. `first` and `last`: the time (ms) it covers. `sampled`: see `Folded`."""

    topics: list[TopicSearch]
    folds: int
    first: int
    last: int
    sampled: list[str]
    quarantined: Mapping[QuarantineKey, int]


def search(
    records: pa.Table, partition: int, policies: Sequence[PolicyName] = POLICY_NAMES
) -> PartitionSearch:
    """Search the `records` (columns `schemas.records.RECORD`) of an ingress partition for the smallest values of `policies`.

    It folds them once, and then at most `ROUNDS` × (`TOGETHER` + 1) times for each policy.
    """
    baseline = of_baseline(records).get(partition)
    base = fold_side_by_side(records, partition, [], baseline=baseline)
    found, folds = [], 1
    for policy in policies:
        searched, more = _search(records, partition, base, policy, baseline)
        found += searched
        folds += more
    return PartitionSearch(found, folds, base.first, base.last, base.sampled, base.observers[0].quarantined)


def _search(
    records: pa.Table, partition: int, base: Folded, policy: PolicyName, baseline: PartitionPins | None
) -> tuple[list[TopicSearch], int]:
    rule = _RULES[policy]
    searches = [
        _Search(topic, rule, base, of) for topic, of in sorted(base.observers[0].topics.items()) if len(of.messages)
    ]  # fmt: skip
    folds = 0
    for _ in range(ROUNDS):
        values = {each.topic: wanted for each in searches if (wanted := each.wanted())}
        if not values:
            break
        count = max(map(len, values.values()))
        each_set = [_pins(records, partition, rule, values, place) for place in range(count)]
        folded = fold_side_by_side(records, partition, each_set, baseline=baseline)
        folds += count + 1
        for each in searches:
            for place, value in enumerate(values.get(each.topic, ())):
                each.note(value, folded, place + 1)
    return [each.result() for each in searches], folds


def _pins(records: pa.Table, partition: int, rule: _Rule, values: dict[str, list[int]], place: int) -> Any:
    """One value of each topic that still has one."""
    policies = [
        PolicyCommand("", topic, _command(topic, rule, wanted[place]), {})
        for topic, wanted in values.items()
        if place < len(wanted)
    ]
    return pins(records, policies)[partition]


def _command(topic: str, rule: _Rule, value: int) -> Admin:
    path = topic_path(topic, f"/{rule.call}")
    return Admin(method="POST", path=path, body=msgspec.to_builtins(rule.body(value)))


class _Search:
    """One topic and policy: what was tried, and what to try next."""

    def __init__(self, topic: str, rule: _Rule, base: Folded, of: OfTopic) -> None:
        self.topic, self._rule = topic, rule
        self._points: dict[int, Point] = {}
        self._tried: dict[str, dict[int, tuple[int, int, int | None]]] = {}
        self._greatest = min(rule.greatest(base, of), _GREATEST[rule.name])
        self._guesses: dict[str, int] = {}
        self._counts: dict[str, tuple[int, int]] = {}
        traffic = _Traffic(of)
        config = base.observers[0].broker.config
        for name, mine in sorted(of.subscriptions.items()):
            consumed = rule.consumed(mine, len(of.messages))
            self._counts[name] = int((consumed > 0).sum()), _waiting(of, mine)
            if self._counts[name][0]:
                self._tried[name] = {}
                guess = rule.guess(traffic, mine, config, base.first)
                self._guesses[name] = min(max(guess, rule.least), self._greatest)

    def wanted(self) -> list[int]:
        """The values to try next, at most `TOGETHER`. None: everything is known."""
        open_ = [(name, *found) for name in self._tried if (found := self._bracket(name)) is not None]
        if not open_:
            return []
        # The topic needs what the neediest subscription needs, so that one goes first.
        open_.sort(key=lambda each: (-each[1], -self._guesses[each[0]], each[0]))
        wanted: dict[int, None] = {}
        if not self._points:
            guesses = [self._guesses[name] for name, *_ in open_]
            wanted.update(dict.fromkeys((max(guesses), max(guesses) - 1)))
            wanted.update(dict.fromkeys(int(max(guesses) * share) for share in _CURVE[:3]))
            wanted.update(dict.fromkeys(value for guess in guesses for value in (guess, guess - 1)))
            wanted.update(dict.fromkeys(int(max(guesses) * share) for share in _CURVE[3:]))
        else:
            share = max(TOGETHER // len(open_), 1)
            for name, low, high in open_:
                guess = self._guesses[name]
                tried = self._tried[name]
                if high is None:
                    near = (
                        int(low / EVICTION_TARGET) + 1
                    )  # enough where eviction for another subscription goes on
                    wanted.update(dict.fromkeys((self._greatest, min(near, self._greatest))))
                    wanted.update(dict.fromkeys(_between(low, self._greatest, max(share - 2, 0))))
                elif guess not in tried and low < guess < high:
                    wanted.update(dict.fromkeys((guess, guess - 1)))
                else:
                    wanted.update(dict.fromkeys(_between(low, high, share)))
        fresh = [value for value in wanted if value >= self._rule.least and value not in self._points]
        return fresh[:TOGETHER]

    def _bracket(self, name: str) -> tuple[int, int | None] | None:
        """The largest value that loses something (one less than the least: none that was tried), and the next larger that
        does not (None: none that was tried). None: there is nothing between them to try."""
        tried = self._tried[name]
        low = max((value for value, (lost, *_) in tried.items() if lost), default=self._rule.least - 1)
        high = min((value for value in tried if value > low), default=None)
        done = low >= self._greatest if high is None else high == low + 1
        return None if done else (low, high)

    def note(self, value: int, folded: Folded, run: int) -> None:
        """Note what a value does."""
        before, after = folded.observers[0].of(self.topic), folded.observers[run].of(self.topic)
        opened = folded.open_loop[run].get(self.topic)
        refused = not _in_force(folded, run, self.topic, self._rule, value)
        lost_, unknown_ = 0, 0
        for name, tried in self._tried.items():
            lost, unknown = self._judged(name, before, after, folded, run, opened)
            tried[value] = max(lost, refused), unknown, None if opened is None else opened.clock
            lost_ += lost
            unknown_ += unknown
        self._points[value] = Point(value, lost_, unknown_, after.storage, after.peak_storage, refused)

    def _judged(
        self, name: str, before: OfTopic, after: OfTopic, folded: Folded, run: int, opened: OpenLoop | None
    ) -> tuple[int, int]:
        """How many messages a subscription loses, and of how many it is unknown."""
        count = len(before.messages)
        own, other = before.subscriptions[name], after.subscriptions.get(name) or OfSubscription(count)
        consumed = self._rule.consumed(own, count)
        lost = consumed > self._rule.consumed(other, count)
        moments = own.acked
        if self._rule.of_retention:
            lost &= _trimmed(folded, run, self.topic, after, count)
            moments = own.delivered
        unknown = 0
        if opened is not None:
            unknown = int(((consumed > 0) & (moments.up_to(count) > moment(opened.clock))).sum())
        return int(lost.sum()), unknown

    def result(self) -> TopicSearch:
        """What was found."""
        points = [self._points[value] for value in sorted(self._points)]
        found = [self._requirement(name, *counts) for name, counts in self._counts.items()]
        return TopicSearch(self.topic, self._rule.name, found, points)

    def _requirement(self, name: str, consumed: int, waiting: int) -> Requirement:
        tried = self._tried.get(name, {})
        losing = [value for value, (lost, *_) in tried.items() if lost]
        loses = max(losing, default=None)
        smallest = min((value for value in tried if loses is None or value > loses), default=None)
        _, unknown, opened = (0, 0, None) if smallest is None else tried[smallest]
        return Requirement(
            topic=self.topic, subscription=name, policy=self._rule.name, smallest=smallest, loses=loses,
            lost=0 if loses is None else tried[loses][0], consumed=consumed, waiting=waiting, unknown=unknown,
            exact_until=opened, refused=loses is not None and self._points[loses].refused,
        )  # fmt: skip


def _between(low: int, high: int, count: int) -> Iterator[int]:
    """Values that split a range: of equal ratio if it is wide, else of equal distance."""
    if high - low <= count:
        yield from range(low + 1, high)
    elif high > 16 * max(low, 1):
        ratio = high / max(low, 1)
        yield from (int(max(low, 1) * ratio ** (step / (count + 1))) for step in range(1, count + 1))
    else:
        yield from (low + (high - low) * step // (count + 1) for step in range(1, count + 1))


def _waiting(of: OfTopic, mine: OfSubscription) -> int:
    """The stored messages that a subscription has neither acked nor lost at the end."""
    count = len(of.messages)
    return int(((of.answer.up_to(count) == STORED) & mine.waiting(count)).sum())


def _in_force(folded: Folded, run: int, topic: str, rule: _Rule, value: int) -> bool:
    """Whether the broker takes the policy."""
    found = folded.observers[run].broker.lasting.get(topic)
    return found is not None and rule.is_set(found, value)


def _trimmed(folded: Folded, run: int, topic: str, of: OfTopic, count: int) -> np.ndarray[Any, Any]:
    """The messages whose ledgers are gone at the end of a run."""
    ledgers, _ = of.written.positions_of(np.arange(count))
    try:
        ledger = folded.observers[run].broker.topic(topic).ledger
    except KeyError:
        return ledgers >= 0
    found: np.ndarray[Any, Any] = (ledgers >= 0) & ~np.isin(ledgers, [*ledger.ledgers, ledger.current])
    return found


# ---- the policies, and the first estimates


class _Traffic:
    """The stored messages of a topic, by place: the record's clock, the publish time (ms), the ledger, and the sum of sizes before."""

    def __init__(self, of: OfTopic) -> None:
        messages, count = of.messages, len(of.messages)
        ledgers, _ = of.written.positions_of(np.arange(count))
        self.numbers = np.flatnonzero(ledgers >= 0)
        self.ledgers = ledgers[self.numbers]
        self.clock = np.maximum.accumulate(messages.clock.between(0, count)[self.numbers])
        self.time = of.times()[self.numbers]
        self.sizes = np.concatenate(([0], np.cumsum(of.sizes()[self.numbers])))
        self.starts = np.searchsorted(self.ledgers, self.ledgers)
        """The place of the first message of each message's ledger."""
        self.stops = np.searchsorted(self.ledgers, self.ledgers, side="right")

    def released(self, of: OfSubscription, *, in_order: bool) -> Ints:
        """When each message was acked or taken (ms). `in_order`: when it and all before were."""
        count = int(self.numbers[-1]) + 1 if len(self.numbers) else 0
        acked, passed = of.acked.up_to(count)[self.numbers], of.passed.up_to(count)[self.numbers]
        found: Ints = np.where(acked > 0, time_of(acked), np.where(passed > 0, time_of(passed), _NEVER))
        found[self.numbers <= of.start] = 0
        return np.maximum.accumulate(found) if in_order else found


def _last_round(times: Ints, first: int, interval: int) -> Ints:
    """The last round of a check up to each time (ms)."""
    return first + (times - first) // interval * interval


def _seconds(ages: Ints) -> int:
    """The greatest of some ages (ms), in whole seconds, rounded up."""
    return int(-(-ages.max() // 1000)) if len(ages) else 0


def _guess_ttl(traffic: _Traffic, of: OfSubscription, config: ServiceConfiguration, first: int) -> int:
    """The age of the oldest message that was still unacked at a check and acked later."""
    interval = int(CHECKS["messageExpiry"].interval(config))
    released = traffic.released(of, in_order=False)
    acked = (released < _NEVER) & (released > 0)
    if not interval or not acked.any():
        return 0
    check = _last_round(released[acked], first, interval)
    seen = check > traffic.clock[acked]
    return _seconds((check - traffic.time[acked])[seen])


def _guess_time(traffic: _Traffic, of: OfSubscription, config: ServiceConfiguration, first: int) -> int:
    """The greatest age of the oldest unacked message at a check; if not precise, since its ledger closed."""
    interval = int(CHECKS["backlogQuota"].interval(config))
    if not interval or not len(traffic.numbers):
        return 0
    released = traffic.released(of, in_order=True)
    before = np.concatenate(([0], released[:-1]))
    front = (released > before) & (released < _NEVER)
    check = _last_round(released[front], first, interval)
    since, stored = traffic.time[front], traffic.clock[front]
    if not config.preciseTimeBasedBacklogQuotaCheck:
        last = traffic.stops[front] - 1
        closed = traffic.clock[last]
        following = last + 1 < len(traffic.clock)
        since = np.where(following, closed, _NEVER)
        stored = since
    seen = (check > stored) & (check > before[front])
    return _seconds((check - since)[seen])


def _guess_size(traffic: _Traffic, of: OfSubscription, config: ServiceConfiguration, first: int) -> int:
    """One more than the subscription's largest backlog at a check, as the broker estimates it."""
    interval = int(CHECKS["backlogQuota"].interval(config))
    if not interval or not len(traffic.numbers):
        return 0
    released = traffic.released(of, in_order=True)
    checks = np.unique(_last_round(traffic.clock, first, interval) + interval)
    stored, passed = np.searchsorted(traffic.clock, checks), np.searchsorted(released, checks)
    most = 0
    sizes = traffic.sizes
    for end, done in zip(stored.tolist(), np.minimum(passed, stored).tolist(), strict=True):
        size = int(sizes[end])
        if done:
            start, stop = int(traffic.starts[done - 1]), min(int(traffic.stops[done - 1]), end)
            own = int(sizes[stop] - sizes[start])
            size -= int(sizes[start]) + consumed_size(own, stop - start, done - 1 - start)
        most = max(most, size)
    return most + 1


def _acks(of: OfSubscription, count: int) -> Ints:
    return of.consumptions(count)


def _reads(of: OfSubscription, count: int) -> Ints:
    return of.deliveries.up_to(count).astype(np.int64)


def _span(base: Folded, of: OfTopic) -> int:
    """An age (ms) that no message reaches within the log."""
    times: list[int] = [base.first, *of.messages.publish_time, *of.times().tolist()]
    return base.last - min(times) + 1000


class _Rule(NamedTuple):
    """How a policy is set, and what a good first estimate of it is. `least`: the smallest value that is not another policy.
    `greatest`: with it, the policy takes nothing."""

    name: PolicyName
    call: str
    least: int
    body: Callable[[int], Any]
    greatest: Callable[[Folded, OfTopic], int]
    guess: Callable[[_Traffic, OfSubscription, ServiceConfiguration, int], int]
    is_set: Callable[[Policies, int], bool]
    consumed: Callable[[OfSubscription, int], Ints] = _acks
    of_retention: bool = False


def _eviction(**limit: int) -> BacklogQuota:
    return BacklogQuota(policy="consumer_backlog_eviction", **limit)


def _retention(**limit: int) -> RetentionPolicies:
    """A retention by one measure. Pulsar takes 0 only for both."""
    if not any(limit.values()):
        return RetentionPolicies()
    return RetentionPolicies(**{"retentionTimeInMinutes": -1, "retentionSizeInMB": -1} | limit)


def _stored_bytes(base: Folded, of: OfTopic) -> int:
    return int(of.sizes().sum())


_RULES: dict[PolicyName, _Rule] = {
    each.name: each
    for each in (
        _Rule(
            "messageTTL", "messageTTL", 1, lambda value: value, lambda base, of: _span(base, of) // 1000, _guess_ttl,
            lambda policies, value: policies.messageTTL == value,
        ),
        _Rule(
            "limitSize", "backlogQuota?backlogQuotaType=destination_storage", 0, lambda value: _eviction(limitSize=value),
            lambda base, of: _stored_bytes(base, of) + 1, _guess_size,
            lambda policies, value: policies.backlogQuota.get("destination_storage") == _eviction(limitSize=value),
        ),
        _Rule(
            "limitTime", "backlogQuota?backlogQuotaType=message_age", 1, lambda value: _eviction(limitTime=value),
            lambda base, of: _span(base, of) // 1000, _guess_time,
            lambda policies, value: policies.backlogQuota.get("message_age") == _eviction(limitTime=value),
        ),
        _Rule(
            "retentionTimeInMinutes", "retention", 0, lambda value: _retention(retentionTimeInMinutes=value),
            lambda base, of: (base.last - base.first) // 60_000 + 1, lambda *_: 0,
            lambda policies, value: policies.retention == _retention(retentionTimeInMinutes=value), _reads, True,
        ),
        _Rule(
            "retentionSizeInMB", "retention", 0, lambda value: _retention(retentionSizeInMB=value),
            lambda base, of: _stored_bytes(base, of) // MEGABYTE + 1, lambda *_: 0,
            lambda policies, value: policies.retention == _retention(retentionSizeInMB=value), _reads, True,
        ),
    )
}  # fmt: skip
