"""The smallest policy value that loses nothing: a search by folding one ingress partition under several values side by side.

What a value takes depends on what it took before, so nothing but a fold tells. All topics of the partition are searched at the
same time: each fold tries one value for every topic. The first values come from estimates on one fold of the log as it is
(`streaming.answers.advise.traffic`). For plain traffic these are exact, so that one round of folds confirms them.

Each fold reads the log in pieces, and messages are judged as soon as they are settled. So memory does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np
import pyarrow as pa

from schemas.commands import Admin
from streaming.answers.advise.traffic import SubscriptionTraffic, TopicTraffic
from streaming.answers.quarantined import QuarantineKey
from streaming.answers.whatif.observed import Ints, Observer, OfSubscription, OfTopic, moment
from streaming.answers.whatif.settling import Settling
from streaming.answers.whatif.side_by_side import Folded, Runs, fold_side_by_side
from streaming.broker.admin_requests import topic_path
from streaming.broker.ledger.managed_ledger import MEGABYTE
from streaming.broker.persistent.cleanup.backlog_quota import EVICTION_TARGET
from streaming.broker.policies.hierarchy import BacklogQuota, Policies, RetentionPolicies
from streaming.log.pins import PartitionPins, PolicyCommand, of_baseline, pins

PolicyName = Literal["messageTTL", "limitSize", "limitTime", "retentionTimeInMinutes", "retentionSizeInMB"]
"""A number that a policy of a topic has: its TTL, the limits of its two backlog quotas, and its retention."""

POLICY_NAMES: tuple[PolicyName, ...] = get_args(PolicyName)

UNITS: dict[PolicyName, str] = {
    "messageTTL": "s", "limitSize": "B", "limitTime": "s", "retentionTimeInMinutes": "min", "retentionSizeInMB": "MB",
}  # fmt: skip

ESTIMATED: tuple[PolicyName, ...] = ("messageTTL", "limitSize", "limitTime")
"""Of these, one fold of the log gives an estimate."""

TOGETHER = 7
"""A round folds the log under so many values, and as it is."""

ROUNDS = 12
"""A policy is searched in so many rounds at most, whatever the log."""

_GREATEST = dict.fromkeys(POLICY_NAMES, 2**31 - 1) | {"limitSize": 2**62}
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
    still in the backlog at the end. `unknown`, `exact_until` (ms): see `Point`, with `smallest`. `estimated`: nothing was tried.
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
    estimated: bool = False


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
    records: pa.Table,
    partition: int,
    policies: Sequence[PolicyName] = POLICY_NAMES,
    *,
    estimate: bool = False,
) -> PartitionSearch:
    """Search the `records` (columns `schemas.records.RECORD`) of an ingress partition for the smallest values of `policies`.

    It folds them once, and then at most `ROUNDS` × (`TOGETHER` + 1) times for each policy. `estimate`: once only, for the policies
    in `ESTIMATED`.
    """
    baseline = of_baseline(records).get(partition)
    traffic = _Traffic(records["timestamp"][0].as_py() if len(records) else 0)
    base = _fold(records, partition, [], baseline, traffic.add)
    found: list[TopicSearch] = []
    folds = 1
    for policy in policies:
        if estimate:
            found += _estimates(traffic.topics, base, policy) if policy in ESTIMATED else []
            continue
        searched, more = _search(records, partition, traffic.topics, base, policy, baseline)
        found += searched
        folds += more
    return PartitionSearch(found, folds, base.first, base.last, base.sampled, base.observers[0].quarantined)


def _estimates(
    traffic: Mapping[str, TopicTraffic], base: Folded, policy: PolicyName
) -> Iterator[TopicSearch]:
    for topic, of in sorted(traffic.items()):
        found = _Search(topic, _RULES[policy], base, of)
        yield TopicSearch(topic, policy, found.estimates(), [])


_Judge = Callable[[Runs, str, int, bool], object]
"""Called with the runs, a topic, the number of the first message that is not to be judged yet, and whether the log has ended."""


def _fold(
    records: pa.Table, partition: int, sets: Sequence[PartitionPins], baseline: PartitionPins | None, judge: _Judge
) -> Folded:  # fmt: skip
    """Fold the records as they are, and under each set. Each message is judged once."""
    settling = Settling()

    def settle(runs: Runs) -> None:
        settling.settle(runs, lambda runs, topic, stop: judge(runs, topic, stop, False))

    folded = fold_side_by_side(records, partition, sets, baseline=baseline, settle=settle)
    for topic, of in sorted(folded.observers[0].topics.items()):
        judge(folded, topic, len(of.messages), True)
    return folded


class _Traffic:
    """What the log's own fold tells of each topic. `first`: the time (ms) of the first record."""

    def __init__(self, first: int) -> None:
        self._first = first
        self.topics: dict[str, TopicTraffic] = {}

    def add(self, runs: Runs, topic: str, stop: int, last: bool) -> None:
        observer = runs.observers[0]
        of = observer.known(topic)
        if not len(of.messages):
            return
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicTraffic(self._first)
        found.add(of, stop, observer.broker.config, last=last)


class _Losses(NamedTuple):
    """How many messages a subscription loses, and of how many it is unknown."""

    lost: int = 0
    unknown: int = 0


class _RoundLosses:
    """What the subscriptions lose under the values of a round. `asked`: how many values are tried for a topic, and its subscriptions."""

    def __init__(self, rule: _Rule, asked: Mapping[str, tuple[int, Collection[str]]]) -> None:
        self._rule, self._asked = rule, asked
        self._found: dict[tuple[int, str, str], _Losses] = {}

    def add(self, runs: Runs, topic: str, stop: int, last: bool) -> None:
        """Judge the messages of a topic before `stop` that have not been."""
        count, names = self._asked.get(topic, (0, ()))
        for run in range(1, count + 1):
            for name in names:
                more, before = _judged(self._rule, runs, run, topic, name, stop), self._of(run, topic, name)
                self._found[run, topic, name] = _Losses(
                    before.lost + more.lost, before.unknown + more.unknown
                )

    def of(self, run: int, topic: str) -> dict[str, _Losses]:
        """By subscription, what a set does."""
        _, names = self._asked[topic]
        return {name: self._of(run, topic, name) for name in names}

    def _of(self, run: int, topic: str, name: str) -> _Losses:
        return self._found.get((run, topic, name), _Losses())


def _search(
    records: pa.Table, partition: int, traffic: Mapping[str, TopicTraffic], base: Folded, policy: PolicyName,
    baseline: PartitionPins | None,
) -> tuple[list[TopicSearch], int]:  # fmt: skip
    rule = _RULES[policy]
    searches = {topic: _Search(topic, rule, base, of) for topic, of in sorted(traffic.items())}
    folds = 0
    for _ in range(ROUNDS):
        values = {topic: wanted for topic, each in searches.items() if (wanted := each.wanted())}
        if not values:
            break
        count = max(map(len, values.values()))
        each_set = [_pins(records, partition, rule, values, place) for place in range(count)]
        losses = _RoundLosses(
            rule, {topic: (len(each), searches[topic].names) for topic, each in values.items()}
        )
        folded = _fold(records, partition, each_set, baseline, losses.add)
        folds += count + 1
        for topic, wanted in values.items():
            for run, value in enumerate(wanted, 1):
                searches[topic].note(value, folded, run, losses.of(run, topic))
    return [each.result() for each in searches.values()], folds


def _judged(rule: _Rule, runs: Runs, run: int, topic: str, name: str, stop: int) -> _Losses:
    """What a set does to those of the messages before `stop` that have not been judged."""
    before, after = runs.observers[0].known(topic), runs.observers[run].known(topic)
    first = before.messages.first
    own, other = before.subscriptions.get(name), after.subscriptions.get(name) or OfSubscription(stop)
    if own is None:  # it comes later
        return _Losses()
    consumed = rule.consumed(own, first, stop)
    lost = consumed > rule.consumed(other, first, stop)
    moments = own.acked
    if rule.of_retention:
        lost &= _trimmed(runs.observers[run], topic, after, first, stop)
        moments = own.delivered
    unknown = 0
    if (opened := runs.open_loop[run].get(topic)) is not None:
        unknown = int(((consumed > 0) & (moments.between(first, stop) > moment(opened.clock))).sum())
    return _Losses(int(lost.sum()), unknown)


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

    def __init__(self, topic: str, rule: _Rule, base: Folded, traffic: TopicTraffic) -> None:
        self.topic, self._rule = topic, rule
        self._points: dict[int, Point] = {}
        self._tried: dict[str, dict[int, tuple[int, int, int | None]]] = {}
        self._greatest = min(rule.greatest(base.last, traffic), _GREATEST[rule.name])
        self._guesses: dict[str, int] = {}
        self._counts: dict[str, tuple[int, int]] = {}
        for name, mine in sorted(traffic.subscriptions.items()):
            self._counts[name] = mine.read if rule.of_retention else mine.acked, mine.waiting
            if self._counts[name][0]:
                self._tried[name] = {}
                self._guesses[name] = min(max(rule.guess(mine), rule.least), self._greatest)

    @property
    def names(self) -> Collection[str]:
        """The subscriptions that consumed something."""
        return self._tried

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

    def note(self, value: int, folded: Folded, run: int, losses: Mapping[str, _Losses]) -> None:
        """Note what a value does."""
        after, opened = folded.observers[run].of(self.topic), folded.open_loop[run].get(self.topic)
        refused = not _in_force(folded, run, self.topic, self._rule, value)
        for name, tried in self._tried.items():
            lost, unknown = losses[name]
            tried[value] = max(lost, refused), unknown, None if opened is None else opened.clock
        lost, unknown = map(sum, zip(*losses.values(), strict=True))
        self._points[value] = Point(value, lost, unknown, after.storage, after.peak_storage, refused)

    def result(self) -> TopicSearch:
        """What was found."""
        points = [self._points[value] for value in sorted(self._points)]
        found = [self._requirement(name, *counts) for name, counts in self._counts.items()]
        return TopicSearch(self.topic, self._rule.name, found, points)

    def estimates(self) -> list[Requirement]:
        """What one fold of the log tells."""
        return [
            Requirement(
                topic=self.topic, subscription=name, policy=self._rule.name, smallest=self._guesses.get(name), loses=None, lost=0,
                consumed=consumed, waiting=waiting, unknown=0, exact_until=None, refused=False, estimated=True,
            )
            for name, (consumed, waiting) in self._counts.items()
        ]  # fmt: skip

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


def _in_force(folded: Folded, run: int, topic: str, rule: _Rule, value: int) -> bool:
    """Whether the broker takes the policy."""
    found = folded.observers[run].broker.lasting.get(topic)
    return found is not None and rule.is_set(found, value)


def _trimmed(observer: Observer, topic: str, of: OfTopic, first: int, stop: int) -> np.ndarray[Any, Any]:
    """The messages `first`..`stop` − 1 whose ledgers are gone."""
    ledgers, _ = of.written.positions_of(np.arange(first, stop))
    try:
        ledger = observer.broker.topic(topic).ledger
    except KeyError:
        return ledgers >= 0
    found: np.ndarray[Any, Any] = (ledgers >= 0) & ~np.isin(ledgers, [*ledger.ledgers, ledger.current])
    return found


# ---- the policies


def _acks(of: OfSubscription, first: int, stop: int) -> Ints:
    return of.consumptions(first, stop)


def _reads(of: OfSubscription, first: int, stop: int) -> Ints:
    return of.deliveries.between(first, stop).astype(np.int64)


def _longest(last: int, traffic: TopicTraffic) -> int:
    """An age (s) that no message reaches within the log."""
    return (last - traffic.oldest + 1000) // 1000


class _Rule(NamedTuple):
    """How a policy is set, and what a good first estimate of it is. `least`: the smallest value that is not another policy.
    `greatest`: with it, the policy takes nothing; it gets the time (ms) of the log's end."""

    name: PolicyName
    call: str
    least: int
    body: Callable[[int], Any]
    greatest: Callable[[int, TopicTraffic], int]
    guess: Callable[[SubscriptionTraffic], int]
    is_set: Callable[[Policies, int], bool]
    consumed: Callable[[OfSubscription, int, int], Ints] = _acks
    of_retention: bool = False


def _eviction(**limit: int) -> BacklogQuota:
    return BacklogQuota(policy="consumer_backlog_eviction", **limit)


def _retention(**limit: int) -> RetentionPolicies:
    """A retention by one measure. Pulsar takes 0 only for both."""
    if not any(limit.values()):
        return RetentionPolicies()
    return RetentionPolicies(**{"retentionTimeInMinutes": -1, "retentionSizeInMB": -1} | limit)


def _seconds(age: int) -> int:
    """An age (ms) in whole seconds, rounded up."""
    return -(-age // 1000)


_RULES: dict[PolicyName, _Rule] = {
    each.name: each
    for each in (
        _Rule(
            "messageTTL", "messageTTL", 1, lambda value: value, _longest, lambda of: _seconds(of.ttl),
            lambda policies, value: policies.messageTTL == value,
        ),
        _Rule(
            "limitSize", "backlogQuota?backlogQuotaType=destination_storage", 0, lambda value: _eviction(limitSize=value),
            lambda last, of: of.size + 1, lambda of: of.size,
            lambda policies, value: policies.backlogQuota.get("destination_storage") == _eviction(limitSize=value),
        ),
        _Rule(
            "limitTime", "backlogQuota?backlogQuotaType=message_age", 1, lambda value: _eviction(limitTime=value),
            _longest, lambda of: _seconds(of.age),
            lambda policies, value: policies.backlogQuota.get("message_age") == _eviction(limitTime=value),
        ),
        _Rule(
            "retentionTimeInMinutes", "retention", 0, lambda value: _retention(retentionTimeInMinutes=value),
            lambda last, of: (last - of.first) // 60_000 + 1, lambda of: 0,
            lambda policies, value: policies.retention == _retention(retentionTimeInMinutes=value), _reads, True,
        ),
        _Rule(
            "retentionSizeInMB", "retention", 0, lambda value: _retention(retentionSizeInMB=value),
            lambda last, of: of.size // MEGABYTE + 1, lambda of: 0,
            lambda policies, value: policies.retention == _retention(retentionSizeInMB=value), _reads, True,
        ),
    )
}  # fmt: skip
