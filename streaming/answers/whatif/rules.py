"""Which rules and defaults of another version a log meets, and which of them makes which difference.

Each setting whose default differs is folded by itself: the log's own configuration, with that one value of the other version. What
differs then, differs because of it. A difference that no setting makes alone takes several: those without each of which the other
version does not make it. To fold less, settings that don't matter are ruled out several at a time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.commands import BrokerConfig
from schemas.commands.control import Profile
from streaming.answers.fates import CHANGE_COLUMNS
from streaming.answers.profile_rules import PROFILE_RULES
from streaming.answers.whatif.answer import Figure, RuleMet, RuleOnTopic, Rules, WhatIf
from streaming.answers.whatif.texts import is_in
from streaming.broker.config import changes

BESIDE = 8
"""So many policy sets are folded beside the baseline in one pass."""

_NOT_FIGURES = frozenset(
    {"policies", "topic", "subscription", "unchanged", *CHANGE_COLUMNS.values()}
    | {f"open_loop_{what}" for what in ("from", "offset", "baseline", "proposed")}
)
T = TypeVar("T", bound=Sized)

_MESSAGE = ("topic", "subscription", "offset", "baseline_ledger", "baseline_entry")
"""The columns of differences that say which message for which subscription."""


def differing_settings(
    configurations: Iterable[BrokerConfig], profile: Profile
) -> dict[str, tuple[Any, Any]]:
    """The settings whose values change for a log with these configurations if it gets `profile`, and both values. What the log sets
    itself stays."""
    found: dict[str, tuple[Any, Any]] = {}
    own: set[str] = set()
    for each in configurations:
        own |= each.settings.keys()
        for name, values in changes(each.profile, profile).items():
            found.setdefault(name, values)
    return {name: values for name, values in found.items() if name not in own}


def differing_topics(found: WhatIf, policies: str) -> list[str]:
    """The topics on which a policy set makes a difference."""
    return [each.topic for each in _topics(found, policies)]


def rules_met(
    found: WhatIf,
    profile: str,
    settings: Mapping[str, tuple[Any, Any]],
    topics: Collection[str],
    fold: Callable[[Mapping[str, Mapping[str, Any]]], WhatIf],
) -> Rules:
    """Which of the `settings` make the differences of the last policy set, which is `profile`. Fills the column `rules` of its differences.

    `topics`: its `differing_topics`. `fold` folds the log under sets of fields of a BROKER_CONFIG, by name.
    """
    policies = found.totals[-1].policies
    causes = _Causes(found.differences, policies)
    met: list[RuleMet] = []

    def only(names: Sequence[str]) -> dict[str, Any]:
        return {"settings": {name: settings[name][1] for name in names}}

    def all_but(names: Sequence[str]) -> dict[str, Any]:
        return {"profile": profile, "settings": {name: settings[name][0] for name in names}}

    tried = list(settings) if topics else []
    for name, answer, differ in _single(tried, fold, only, _topics):
        met.append(_rule(answer, name, settings[name], differ))
        causes.suffices(name, _of(answer.differences, name))
    if causes.open():
        rows_of = {name: rows for name, _, rows in _single(tried, fold, all_but, causes.gone)}
        for name in [name for name in tried if name in rows_of]:
            causes.are_of(name, rows_of[name], " and ")
    found.differences = causes.filled()
    met.sort(key=lambda each: (-each.messages, each.setting))
    return Rules(profile, policies, len(settings), met, causes.together())


def _single(
    settings: Iterable[str],
    fold: Callable[[Mapping[str, Mapping[str, Any]]], WhatIf],
    fields: Callable[[Sequence[str]], Mapping[str, Any]],
    effect: Callable[[WhatIf, str], T],
) -> Iterator[tuple[str, WhatIf, T]]:
    """The settings that have an effect by themselves, each with an answer in which its policy set has its name, and with the effect.

    Several that have none together are not tried one by one.
    """
    waiting = _parts(list(settings), BESIDE)
    while waiting:
        group, waiting = waiting[:BESIDE], waiting[BESIDE:]
        answer = fold({names[0]: fields(names) for names in group})
        for names in group:
            found = effect(answer, names[0])
            if len(names) > 1:
                waiting += _parts(names, 2) if len(found) else ()
            elif len(found):
                yield names[0], answer, found


class _Causes:
    """Which settings make each difference of a policy set: those of which each suffices, or else those that it takes together."""

    def __init__(self, differences: pa.Table, policies: str) -> None:
        self._all = differences
        own = is_in(differences["policies"], [policies])
        keys = _messages(differences).append_column("row", pa.array(np.arange(len(differences))))
        self._open = self._own = keys.filter(own)
        self._texts = np.full(len(differences), None, object)

    def open(self) -> bool:
        """Whether there are differences that no setting makes by itself, as far as it is known."""
        return len(self._open) > 0

    def suffices(self, name: str, differences: pa.Table) -> None:
        """A setting makes these by itself."""
        messages, keys = _messages(differences), list(_MESSAGE)
        self.are_of(name, _row_numbers(self._own.join(messages, keys=keys, join_type="left semi")), " or ")
        self._open = self._open.join(messages, keys=keys, join_type="left anti")

    def gone(self, answer: WhatIf, name: str) -> np.ndarray[Any, Any]:
        """The rows that no setting makes by itself, and that a policy set of `answer` does not have."""
        messages = _messages(_of(answer.differences, name))
        return _row_numbers(self._open.join(messages, keys=list(_MESSAGE), join_type="left anti"))

    def are_of(self, name: str, rows: np.ndarray[Any, Any], word: str) -> None:
        """Add a setting to those that make these rows."""
        for row in rows.tolist():
            before = self._texts[row]
            self._texts[row] = name if before is None else before + word + name

    def filled(self) -> pa.Table:
        """The differences, with their column `rules`."""
        place = self._all.schema.get_field_index("rules")
        field = self._all.schema.field(place)
        column = pa.array(self._texts.tolist(), pa.string()).dictionary_encode()
        return self._all.set_column(place, field, column)

    def together(self) -> dict[str, int]:
        """The settings that it takes together (empty: it is not known which), and how many messages × subscriptions they change."""
        texts = (self._texts[row] or "" for row in self._open["row"].to_pylist())
        return dict(Counter(texts).most_common())


def _parts(names: Sequence[str], count: int) -> list[Sequence[str]]:
    """At most so many parts of about the same size."""
    size = max(1, -(-len(names) // count))
    return [names[start : start + size] for start in range(0, len(names), size)]


def _rule(found: WhatIf, name: str, values: tuple[Any, Any], topics: list[RuleOnTopic]) -> RuleMet:
    totals = next(each for each in found.totals if each.policies == name)
    counts = {change: count for change, count in totals.differences.items() if count}
    rule = PROFILE_RULES[name]
    return RuleMet(name, *values, rule.notices, rule.shown_by, counts, topics)


def _topics(found: WhatIf, name: str) -> list[RuleOnTopic]:
    """The topics on which a policy set makes a difference."""
    by_topic: defaultdict[str, _Rows] = defaultdict(_Rows)
    for row in _of(found.summary, found.totals[0].policies).to_pylist():
        by_topic[row["topic"]].baseline[row["subscription"]] = row
    for row in _of(found.summary, name).to_pylist():
        by_topic[row["topic"]].proposed[row["subscription"]] = row
    messages = _of(found.differences, name).group_by(["topic", "subscription"]).aggregate([([], "count_all")])
    for row in messages.to_pylist():
        by_topic[row["topic"]].differences[row["subscription"]] = row["count_all"]
    topics = [rows.of(topic) for topic, rows in sorted(by_topic.items())]
    return [each for each in topics if each.differences or each.figures or each.open_loop_from is not None]


class _Rows:
    """What there is about a topic: rows of the summary by subscription, and how many messages differ."""

    def __init__(self) -> None:
        self.baseline: dict[str | None, dict[str, Any]] = {}
        self.proposed: dict[str | None, dict[str, Any]] = {}
        self.differences: dict[str, int] = {}

    def of(self, topic: str) -> RuleOnTopic:
        whole = self.proposed.get(None, {})
        opened = (whole.get(f"open_loop_{what}") for what in ("from", "offset", "baseline", "proposed"))
        return RuleOnTopic(topic, dict(sorted(self.differences.items())), list(self._figures()), *opened)

    def _figures(self) -> Iterator[Figure]:
        for subscription in sorted({*self.baseline, *self.proposed}, key=lambda name: name or ""):
            before, after = self.baseline.get(subscription, {}), self.proposed.get(subscription, {})
            for name in before or after:
                # A topic may have no row, if it has nothing to say.
                if name not in _NOT_FIGURES and (before.get(name) or 0) != (after.get(name) or 0):
                    yield Figure(subscription, name, before.get(name), after.get(name))


def _of(table: pa.Table, policies: str) -> pa.Table:
    return table.filter(is_in(table["policies"], [policies]))


def _row_numbers(keys: pa.Table) -> np.ndarray[Any, Any]:
    rows: np.ndarray[Any, Any] = keys["row"].to_numpy()
    return rows


def _messages(differences: pa.Table) -> pa.Table:
    """Which message for which subscription each row is about. A join never matches nulls."""
    return pa.table(
        {
            name: differences[name].cast(pa.large_string())
            if name in ("topic", "subscription")
            else pc.fill_null(differences[name], -1)
            for name in _MESSAGE
        }
    )
