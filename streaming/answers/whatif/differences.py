"""How the fate of each message differs between the runs of an ingress partition, message by message, as columns.

The problem
    Under other policies, each message may be acked, lost or refused where it was not, for each subscription. A log has millions of them.

The idea
    A comparison need not wait for the end of the log: piece by piece, it counts what is settled (see `streaming.answers.whatif.settling`),
    keeps the differences, and lets the runs forget the messages. What is left at the end it compares then. Both give the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from streaming.answers.fates import CHANGE_COLUMNS, CHANGES, LOST, NOT_STORED, Change, Outcome, Published
from streaming.answers.quarantined import QuarantineKey
from streaming.answers.whatif.answer import BASELINE, DIFFERENCES, SERIES, SUMMARY, CompactedTopic
from streaming.answers.whatif.clients.reactive import Reacted
from streaming.answers.whatif.difference_table import DifferenceTable, PartitionDifferences, Texts
from streaming.answers.whatif.observed import (
    MISSED,
    REFUSED,
    STORED,
    UNKNOWN,
    UNTIMED,
    Ints,
    LossRule,
    Observer,
    OfSubscription,
    OfTopic,
    OpenLoop,
    TopicPublishes,
    moment,
    time_of,
)
from streaming.answers.whatif.series import TimeSeries
from streaming.answers.whatif.settling import Settling
from streaming.answers.whatif.side_by_side import Folded, Runs, numbers_in
from streaming.answers.whatif.texts import numbered
from streaming.broker.position import EARLIEST

ALL_FATES: tuple[Published | Outcome, ...] = (
    "waiting", "acked", *LOST, "refused", "duplicate", "not sent", "subscription deleted", "not for it", "unknown",
)  # fmt: skip
_CODE = {fate: code for code, fate in enumerate(ALL_FATES)}
_LOST = np.array([fate in LOST for fate in ALL_FATES])
_NOT_STORED = np.array([fate in NOT_STORED for fate in ALL_FATES])

Reached = Literal["never delivered", "delivered", "acked"]
"""What had become of a message when a rule took it: ``delivered`` and not acked; ``acked`` out of order, so not lost."""

_TAKEN: tuple[Reached, ...] = Reached.__args__  # type: ignore[attr-defined]


class PartitionCompared(NamedTuple):
    """What came of one ingress partition."""

    summary: pa.Table
    differences: PartitionDifferences
    series: pa.Table
    unmatched: list[int]
    begin: int
    end: int
    sampled: list[str]
    quarantined: Mapping[QuarantineKey, int]
    reacted: Sequence[Reacted]
    compacted: Sequence[CompactedTopic] = ()


class _Kept(NamedTuple):
    """What a `Comparison` has beside its rows: the numbers of their texts, how many publishes were answered how (run, topic, counts), the
    counts of messages (run, topic, subscription, counts), and when to look at a topic again."""

    texts: Texts
    answers: list[tuple[int, str, list[int]]]
    counts: list[tuple[int, str, str, dict[str, int]]]
    tries: dict[str, int]


class Comparison:
    """Compares the runs of an ingress partition message by message, as soon as nothing changes any more for a message.

    It does not when no run has it any more: each has deleted its ledger, or never stored it. Then its difference, if it has one, is
    noted, it is counted, and the runs forget it. `names`: of the policy sets. `file`: see `DifferenceTable`. `kept`: what another one kept
    (`keep`); this one goes on from there.
    """

    def __init__(self, names: Sequence[str], file: Any = None, kept: bytes | None = None) -> None:
        before = None if kept is None else msgspec.msgpack.decode(kept, type=_Kept)
        self.names = names
        self._differences = DifferenceTable(names, file, None if before is None else before.texts)
        self._answers: dict[tuple[int, str], Ints] = {}
        self._counts: dict[tuple[int, str, str], Counter[str]] = {}
        self._settling = Settling(None if before is None else before.tries)
        if before is not None:
            self._answers = {(run, topic): np.array(counts) for run, topic, counts in before.answers}
            self._counts = {(run, topic, name): Counter(counts) for run, topic, name, counts in before.counts}

    def keep(self) -> bytes:
        """What is needed to go on, with other rows."""
        answers = [(*of, answered.tolist()) for of, answered in self._answers.items()]
        counts = [(*of, dict(counts)) for of, counts in self._counts.items()]
        return msgspec.msgpack.encode(_Kept(self._differences.texts, answers, counts, self._settling.tries))

    def settle(self, runs: Runs) -> None:
        """A piece is folded: compare what is settled."""
        self._settling.settle(runs, self.compare)

    def forget(self, runs: Runs, topic: str, subscription: str | None) -> None:
        """Nobody asks any more what became of a subscription that is deleted in all runs, or (None) of a topic that is."""
        everything = [*runs.observers, *runs.beside]
        if subscription is not None:
            for each in everything:
                each.known(topic).subscriptions.pop(subscription, None)
            for run in range(len(runs.observers)):
                self._counts.pop((run, topic, subscription), None)
            return
        for each in everything:
            each.topics.pop(topic, None)
        runs.messages.pop(topic, None)
        self._settling.tries.pop(topic, None)
        self._answers = {of: counts for of, counts in self._answers.items() if of[1] != topic}
        self._counts = {of: counts for of, counts in self._counts.items() if of[1] != topic}

    def compare(
        self, runs: Runs, topic: str, stop: int, same: Mapping[int, _Same] = MappingProxyType({})
    ) -> None:
        """Compare the messages of a topic before `stop` that have not been. `same`: of runs with a log of their own."""
        everything = [observer.known(topic) for observer in runs.observers]
        own = everything[0]
        first = own.messages.first
        for run, of in enumerate(everything):
            answers = same[run].answer if run in same else of.answer.between(first, stop)
            so_far = self._answers.get((run, topic), 0)
            self._answers[run, topic] = so_far + np.bincount(answers, minlength=4)
        tables: list[pa.Table] = []
        for subscription in sorted({name for of in everything for name in of.subscriptions}):
            if all(_is_over(of.subscriptions.get(subscription), first) for of in everything):
                continue
            before = Fates(runs.observers[0], own, subscription, first, stop)
            for run, (observer, of) in enumerate(zip(runs.observers, everything, strict=True)):
                mine = of.subscriptions.get(subscription)
                if mine is None and subscription not in own.subscriptions:
                    continue
                counts = self._counts.setdefault((run, topic, subscription), Counter())
                if mine is not None:
                    window = (0, len(of.messages)) if run in same else (first, stop)
                    counts.update(_totals_of(mine, *window))
                if not run:
                    continue
                after = Fates(observer, of, subscription, first, stop, same.get(run))
                found = _Pair(topic, subscription, before, after, runs.open_loop[run].get(topic))
                counts.update(found.counts())
                if len(found.rows):
                    tables.append(found.table(self.names[run - 1]))
        self._differences.add(topic, tables)

    def differences(self, open_loop: Sequence[Mapping[str, OpenLoop]] = ()) -> PartitionDifferences:
        """The rows of `DIFFERENCES`. `open_loop`: of the runs, at the end."""
        opened: dict[str, list[str]] = {}
        for name, topics in zip(self.names, open_loop[1:], strict=False):
            for topic in topics:
                opened.setdefault(topic, []).append(name)
        return self._differences.finish(opened)

    def answers(self, run: int, topic: str) -> Ints:
        """How many publishes were answered how."""
        return self._answers[run, topic]

    def counts(self, run: int, topic: str, subscription: str) -> dict[str, int]:
        """The columns of `SUMMARY` that count messages of a subscription."""
        columns = (*_TOTALS, *_CHANGES) if run else _TOTALS
        return dict.fromkeys(columns, 0) | self._counts.get((run, topic, subscription), {})


def rearranged(kept: bytes, runs: Sequence[int]) -> bytes:
    """What a `Comparison` kept, for one of other runs: those of these numbers."""
    before = msgspec.msgpack.decode(kept, type=_Kept)
    answers = [
        (place, topic, counts)
        for place, number in enumerate(runs)
        for run, topic, counts in before.answers
        if run == number
    ]
    counts = [
        (place, topic, name, found)
        for place, number in enumerate(runs)
        for run, topic, name, found in before.counts
        if run == number
    ]
    return msgspec.msgpack.encode(before._replace(answers=answers, counts=counts))


def _is_over(mine: OfSubscription | None, first: int) -> bool:
    return mine is None or mine.is_over(first)


def compared(folded: Folded, names: Sequence[str], comparison: Comparison | None = None) -> PartitionCompared:
    """The tables of what came of a partition. `comparison`: has compared what was settled before the end."""
    comparison = comparison or Comparison(names)
    rows: list[dict[str, Any]] = []
    series: list[_OneSeries] = []
    baseline = folded.observers[0]
    there = sorted(baseline.topics)
    for topic in {topic: None for observer in folded.observers for topic in observer.topics}:
        own, same = baseline.of(topic), dict[int, _Same]()
        for run, reacted in enumerate(folded.reacted, 1):
            same[run] = _Same(own.messages, folded.observers[run].of(topic), reacted.given_up)
        comparison.compare(folded, topic, len(own.messages), same)
    compacted = list[CompactedTopic]()
    for run, (observer, stats) in enumerate(zip(folded.observers, folded.stats, strict=True)):
        name = names[run - 1] if run else BASELINE
        by_name = {(each["topic"], each["subscription"]): each for each in stats}
        topics = sorted(observer.topics) if run else there
        for topic in topics:
            other = observer.of(topic)
            opened = folded.open_loop[run].get(topic)
            if not topic and opened is None and not other.answered_otherwise:
                continue  # what is about no topic
            other_stats = folded.other_stats[run].get(topic)
            answers = comparison.answers(run, topic)
            rows.append(
                _topic_row(name, topic, other, answers, by_name.get((topic, None)), opened, other_stats)
            )
            rows += (
                _subscription_row(
                    name, topic, subscription, mine, by_name.get((topic, subscription)), opened,
                    comparison.counts(run, topic, subscription),
                )
                for subscription, mine in sorted(other.subscriptions.items())
            )  # fmt: skip
            series += _series_of(name, topic, other)
            if other.compacted_to > EARLIEST:
                compacted.append(_compacted(name, topic, other))
    return PartitionCompared(
        pa.Table.from_pylist(rows, SUMMARY),
        comparison.differences(folded.open_loop),
        _series_table(series),
        folded.unmatched,
        folded.first,
        folded.last,
        folded.sampled,
        baseline.quarantined,
        [each._replace(records=each.records.slice(0, 0)) for each in folded.reacted],
        compacted,
    )


def _compacted(name: str, topic: str, of: OfTopic) -> CompactedTopic:
    kept = [each for copies in of.compacted.values() for each in copies]
    written = sum(stop - start for start, stop in of.written.numbers(EARLIEST, of.compacted_to))
    return CompactedTopic(name, topic, len(kept), sum(each.size for each in kept), written - len(kept))


class _Same:
    """Which message of a run with a log of its own is which of the baseline.

    `places`: the number in the run of each message of the baseline, −1 for none: of several attempts, the one that was stored,
    or else the last. `answer` is that of each message of the baseline, `given_up` says why some were never stored.
    """

    def __init__(self, messages: TopicPublishes, other: OfTopic, given_up: Mapping[int, str]) -> None:
        numbers, count = numbers_in(messages, other.messages), len(other.messages)
        answers = other.answer.up_to(count)
        self.places = np.full(len(messages), -1, np.int64)
        self.places[numbers] = np.arange(count)
        stored = np.flatnonzero(answers == STORED)[::-1]  # of two entries, the first is assigned last
        self.places[numbers[stored]] = stored
        self.answer = self.column(answers)
        self.given_up = {
            number: given_up[messages.offset[number]]
            for number in np.flatnonzero(self.answer != STORED).tolist()
            if messages.offset[number] in given_up
        }
        self.answer[list(self.given_up)] = REFUSED

    def column(self, own: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A column of the run by number in the baseline."""
        if not len(own):
            return np.zeros(len(self.places), own.dtype)
        found: np.ndarray[Any, Any] = np.where(self.places >= 0, own[self.places], 0).astype(own.dtype)
        return found


def _topic_row(
    name: str,
    topic: str,
    of: OfTopic,
    answers: Ints,
    stats: dict[str, Any] | None,
    opened: OpenLoop | None,
    other_stats: Sequence[str] | None,
) -> dict[str, Any]:
    stats = stats or {}
    return {
        "policies": name, "topic": topic, "published": int(answers.sum()), "stored": int(answers[STORED]),
        "duplicates": int(answers[2]), "refused": int(answers[REFUSED]), "unanswered": int(answers[0]),
        "backlog": stats.get("backlog", 0), "storage": stats.get("storage", 0), "peak_storage": of.peak_storage,
        "trimmed": of.trimmed, "held": of.held, "closed_producers": of.closed_producers,
        "answered_otherwise": of.answered_otherwise, "other_stats": ", ".join(other_stats or ()) or None, **_opened(opened),
    }  # fmt: skip


def _subscription_row(
    name: str, topic: str, subscription: str, mine: OfSubscription, stats: dict[str, Any] | None,
    opened: OpenLoop | None, counts: dict[str, int],
) -> dict[str, Any]:  # fmt: skip
    stats = stats or {}
    return {
        "policies": name, "topic": topic, "subscription": subscription, **counts, **mine.moved,
        "lost_delivered": counts["lost_delivered"] + mine.unknown_lost, "taken_acked": counts["taken_acked"] + mine.unknown_acked,
        "backlog": stats.get("backlog", 0), "peak_backlog": mine.peak_backlog,
        "oldest": mine.oldest.last,
        "peak_oldest": None if mine.peak_backlog is None else mine.oldest.peak,
        **_opened(opened),
    }  # fmt: skip


_TOTALS = ("dispatched", "acked", "lost_undelivered", "lost_delivered", "taken_acked")
_CHANGES = (*CHANGE_COLUMNS.values(), "unchanged")


def _totals_of(mine: OfSubscription, first: int, stop: int) -> dict[str, int]:
    """What became of some messages of a subscription, in columns of `SUMMARY`."""
    passed = mine.passed.between(first, stop) > 0
    acked, delivered = (column.between(first, stop) for column in (mine.acked, mine.delivered))
    taken = _taken(acked, delivered)
    return {
        "dispatched": int(mine.deliveries.between(first, stop).sum()),
        "acked": int(((acked > 0) & ~passed).sum()),
        "lost_undelivered": int((passed & (taken == 0)).sum()),
        "lost_delivered": int((passed & (taken == 1)).sum()),
        "taken_acked": int((passed & (taken == 2)).sum()),
    }


def _opened(opened: OpenLoop | None) -> dict[str, Any]:
    if opened is None:
        return {}
    return {
        "open_loop_from": opened.clock, "open_loop_offset": opened.offset, "open_loop_baseline": opened.baseline,
        "open_loop_proposed": opened.proposed,
    }  # fmt: skip


def _taken(acked: np.ndarray[Any, Any], delivered: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What had become of each message when a rule took it, as a place in `_TAKEN`."""
    return np.where(acked > 0, 2, np.where(acked == UNKNOWN, -1, np.where(delivered > 0, 1, 0)))


class Fates:
    """What became of the messages `first`..`stop` − 1 of a topic for a subscription in one run, as columns. `same`: of a run with a
    log of its own, of which it is what became of all."""

    def __init__(
        self, observer: Observer, of: OfTopic, subscription: str,
        first: int = 0, stop: int | None = None, same: _Same | None = None,
    ) -> None:  # fmt: skip
        self.rules, self.of = list(observer.rules), of
        if stop is None or same is not None:
            stop = len(of.messages)
        found = of.subscriptions.get(subscription)
        self.there = found is not None
        mine = found or OfSubscription(stop)
        columns = [
            column.between(first, stop)
            for column in (
                mine.delivered, mine.acked, mine.passed, mine.rule, mine.deliveries, mine.redelivery_count, of.reason,
                of.answer,
            )
        ]  # fmt: skip
        columns.insert(0, mine.parted(first, stop))
        self.places = np.arange(first, stop)
        if same is not None:
            columns = [same.column(each) for each in columns]
            columns[-1], self.places = same.answer, same.places
        self.count = len(self.places)
        parted, self.delivered, self.acked, self.passed, self.rule, *others = columns
        self.deliveries, self.redelivery_count, reason, answer = others
        if same is not None and same.given_up:
            reason = reason.copy()
            for number, why in same.given_up.items():
                rule = LossRule("refused", why, None)
                if rule not in self.rules:
                    self.rules.append(rule)
                reason[number] = self.rules.index(rule) + 1
        kinds = np.array([0, *(_CODE.get(each.kind, 0) for each in self.rules)])  # type: ignore[call-overload]
        fate = np.zeros(self.count, np.int64)
        if mine.gone:
            fate[:] = _CODE["not for it"]
        fate[parted == MISSED] = _CODE["not for it"]
        fate[parted > 0] = _CODE["subscription deleted"]
        fate[self.acked > 0] = _CODE["acked"]
        fate[self.acked == UNKNOWN] = _CODE["unknown"]
        lost = (self.passed > 0) & (self.acked == 0)
        fate[lost] = kinds[self.rule[lost]]
        fate[(self.places <= mine.start) & (self.delivered == 0) & (self.acked == 0) & (self.passed == 0)] = _CODE["not for it"]  # fmt: skip
        fate[answer == 0] = _CODE["not sent"]
        fate[answer == 2] = _CODE["duplicate"]
        fate[answer == REFUSED] = _CODE["refused"]
        self.fate = fate
        # the rule that took it, or refused it
        self.why = np.where(answer == STORED, self.rule, reason)

    def columns(self, rows: np.ndarray[Any, Any], prefix: str) -> dict[str, pa.Array]:
        """The columns of `DIFFERENCES` for some messages."""
        rules = self.rules
        why = self.why[rows]
        passed = self.passed[rows]
        taken = np.where(passed > 0, _taken(self.acked, self.delivered)[rows], -1)
        places = self.places[rows]
        first = self.of.messages.first
        times = self.of.messages.publish_time.between(first, len(self.of.messages))
        publish = times[places - first] if len(times) else np.zeros(len(rows), np.int64)
        ledgers, entries = self.of.written.positions_of(places)
        values = {
            "fate": _dictionary(self.fate[rows], ALL_FATES),
            "taken": _dictionary(taken, _TAKEN),
            "clock": _times(passed),
            "cause": _dictionary(why - 1, [rule.cause for rule in rules]),
            "policy": _dictionary(why - 1, [rule.policy for rule in rules]),
            "age": pa.array(time_of(passed) - publish, mask=passed == 0),
            "delivered": _times(self.delivered[rows]),
            "deliveries": pa.array(self.deliveries[rows], pa.int32()),
            "redelivery_count": pa.array(self.redelivery_count[rows], pa.int32()),
            "ledger": pa.array(ledgers, mask=ledgers < 0),
            "entry": pa.array(entries, mask=ledgers < 0),
        }
        return {f"{prefix}_{name}": column for name, column in values.items()}


class _Pair:
    """Messages of a topic for a subscription, in the baseline and under other policies. `rows`: the places of those that differ."""

    def __init__(
        self, topic: str, subscription: str, before: Fates, after: Fates, opened: OpenLoop | None
    ) -> None:
        self.topic, self.subscription, self.before, self.after = topic, subscription, before, after
        self.opened = opened
        self.change = changes(before, after, open_loop=opened is not None)
        self.judged = ~(_absent(before) & _absent(after))
        self.rows = np.flatnonzero(self.change)

    def counts(self) -> dict[str, int]:
        """How many messages changed how, and how many did not."""
        found = np.bincount(self.change, minlength=len(CHANGES) + 1)
        unchanged = int((self.judged & (self.change == 0)).sum())
        return dict(zip(_CHANGES, [*found[1:].tolist(), unchanged], strict=True))

    def table(self, name: str) -> pa.Table:
        """The rows of `DIFFERENCES` for a policy set."""
        rows, messages, numbers = self.rows, self.before.of.messages, self.before.places
        offset, clock, publish_time, ids, producer = (
            column.between(numbers[0], numbers[-1] + 1)[rows]
            for column in (messages.offset, messages.clock, messages.publish_time, messages.sequence_id, messages.producer)
        )  # fmt: skip
        opened, untimed = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
        if self.opened is not None:
            opened[:] = self._after_opening(rows, clock)
            untimed[:] = ~opened & (
                (self.before.acked[rows] == UNTIMED) | (self.after.acked[rows] == UNTIMED)
            )
        columns = {
            "policies": _same(name, len(rows)),
            "topic": _same(self.topic, len(rows)),
            "subscription": _same(self.subscription, len(rows)),
            "change": _dictionary(self.change[rows] - 1, CHANGES),
            "open_loop": pa.array(opened, mask=untimed),
            "offset": pa.array(offset, mask=offset < 0),
            "producer": _dictionary(producer, messages.producers),
            "sequence_id": pa.array(ids),
            "key": pa.array([messages.key.get(number) for number in numbers[rows].tolist()], pa.string()),
            "publish_time": pa.array(publish_time),
            **self.before.columns(rows, "baseline"),
            **self.after.columns(rows, "proposed"),
            "rules": pa.nulls(len(rows), DIFFERENCES.field("rules").type),
        }
        return pa.Table.from_arrays([columns[field.name] for field in DIFFERENCES], schema=DIFFERENCES)

    def _after_opening(self, rows: np.ndarray[Any, Any], clock: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Whether anything that differs came after the first moment at which a client would have seen something else."""
        assert self.opened is not None
        moments = [moment(clock)]
        for side in (self.before, self.after):
            moments += [side.passed[rows], side.acked[rows], side.delivered[rows]]
        last: np.ndarray[Any, Any] = np.maximum.reduce(moments)
        found: np.ndarray[Any, Any] = (last > moment(self.opened.clock)) | (self.change[rows] == len(CHANGES))
        return found


def _absent(side: Fates) -> np.ndarray[Any, Any]:
    """The messages that a subscription has nothing to do with."""
    found: np.ndarray[Any, Any] = _NOT_STORED[side.fate] | (side.fate == _CODE["not for it"])
    return found


def changes(before: Fates, after: Fates, *, open_loop: bool) -> np.ndarray[Any, Any]:
    """How each message differs, as a place in `CHANGES`, from 1; 0: it does not.

    Where a message was perhaps acked on both sides, it was on both or on neither, unless the topic became open-loop, or another rule took
    the message, or the same at another time."""
    code = {change: number for number, change in enumerate(CHANGES, 1)}
    found = np.zeros(before.count, np.int64)
    lost_before, lost_after = _LOST[before.fate], _LOST[after.fate]
    absent_before, absent_after = _absent(before), _absent(after)

    def assign(where: np.ndarray[Any, Any], change: Change) -> None:
        found[where & (found == 0)] = code[change]

    assign(absent_before != absent_after, "unknown")
    both = ~absent_before & ~absent_after
    unknown = before.fate == _CODE["unknown"], after.fate == _CODE["unknown"]
    assign(both & (unknown[0] != unknown[1]), "unknown")
    taken = (before.passed != after.passed) | (_causes(before) != _causes(after))
    assign(both & unknown[0] & (open_loop | taken), "unknown")
    assign(both & lost_after & ~lost_before, "lost newly")
    assign(both & lost_before & ~lost_after, "saved")
    lost = both & lost_before & lost_after
    assign(lost & (_causes(before) != _causes(after)), "lost by another rule")
    assign(lost & (after.passed < before.passed), "lost earlier")
    assign(lost & (after.passed > before.passed), "lost later")
    kept = both & ~lost_before & ~lost_after
    never = np.iinfo(np.int64).max
    first, second = (np.where(side.delivered == 0, never, side.delivered) for side in (before, after))
    assign(kept & (second > first), "delivered later")
    assign(both & (after.deliveries != before.deliveries), "redelivered")
    assign(both & (after.redelivery_count != before.redelivery_count), "other redelivery count")
    assign(kept & (before.fate != after.fate), "unknown")
    assign(kept & (first != second), "unknown")
    return found


def _causes(side: Fates) -> np.ndarray[Any, Any]:
    """Which rule took each message, as a number that is the same in all runs: TTL, a size quota, an age quota, a skip, ….

    The hash of the kind, and of the cause without its figures."""
    known = np.array([0, *(hash(_rule_of(each.kind, each.cause, each.policy)) for each in side.rules)])
    found: np.ndarray[Any, Any] = known[side.rule]
    return found


def _rule_of(kind: str, cause: str, policy: str | None) -> str:
    if kind == "evicted":
        return "evicted by size" if "destination_storage" in (policy or "") else "evicted by age"
    return kind if kind == "expired" else f"{kind}: {cause}"


def _dictionary(codes: np.ndarray[Any, Any], values: Sequence[str | None]) -> pa.DictionaryArray:
    """Codes from 0; negative ones are null. `values` may have nulls, and repeat."""
    distinct = {
        value: number
        for number, value in enumerate(dict.fromkeys(each for each in values if each is not None))
    }
    places = np.array([-1, *(-1 if each is None else distinct[each] for each in values)], np.int32)
    codes = places[np.clip(codes, -1, None) + 1]
    indices = pa.array(np.maximum(codes, 0), pa.int32(), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(distinct), pa.string()))


def united(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """The rows of all tables, in one chunk. Arrow's own way takes memory in proportion to their number times that of the different texts."""
    whole = pa.concat_tables([schema.empty_table(), *tables])
    columns = [
        _in_one(column) if pa.types.is_dictionary(column.type) else column.combine_chunks()
        for column in whole.columns
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _in_one(column: pa.ChunkedArray) -> pa.DictionaryArray:
    texts, rows = numbered(column)
    return _dictionary(rows, texts)


def _same(value: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value]))


def _times(moments: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(time_of(moments), mask=moments == 0)


class _OneSeries(NamedTuple):
    policies: str
    topic: str
    subscription: str | None
    measure: str
    points: TimeSeries


def _series_of(name: str, topic: str, of: OfTopic) -> Iterator[_OneSeries]:
    yield _OneSeries(name, topic, None, "storage", of.storages)
    for subscription, mine in of.subscriptions.items():
        yield _OneSeries(name, topic, subscription, "backlog", mine.backlogs)
        yield _OneSeries(name, topic, subscription, "oldest", mine.oldest)


def _series_table(found: Sequence[_OneSeries]) -> pa.Table:
    rows = np.repeat(np.arange(len(found)), [len(each.points.values) for each in found])
    names = [(each.policies, each.topic, each.subscription, each.measure) for each in found]
    columns: list[Any] = [_dictionary(rows, [each[place] for each in names]) for place in range(4)]
    for name in ("clocks", "values"):
        points = [np.array(getattr(each.points, name)) for each in found]
        columns.append(pa.array(np.concatenate([np.zeros(0, np.int64), *points])))
    return pa.Table.from_arrays(columns, schema=SERIES)
