"""Which rules and defaults of another version a log meets, and which of them makes which difference.

Each setting whose default differs is folded by itself: the log's own configuration, with that one value of the other version. What
differs then, differs because of it. A difference that no setting makes alone takes several: those without each of which the other
version does not make it. To fold less, settings that don't matter are ruled out several at a time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.commands import BrokerConfig
from schemas.commands.control import Profile
from streaming.answers.fates import CHANGES
from streaming.answers.whatif.answer import Figure, RuleMet, RuleOnTopic, Rules, WhatIf
from streaming.broker.config import changes

BESIDE = 8
"""So many policy sets are folded beside the baseline in one pass."""

_NOT_FIGURES = frozenset(
    {"policies", "topic", "subscription", "unchanged", *(change.replace(" ", "_") for change in CHANGES)}
    | {f"open_loop_{what}" for what in ("from", "offset", "baseline", "proposed")}
)
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
    fold: Callable[[Mapping[str, Mapping[str, Any]]], WhatIf],
) -> Rules:
    """Which of the `settings` make the differences of the last policy set, which is `profile`. Fills the column `rules` of its differences.

    `fold` folds the log under sets of fields of a BROKER_CONFIG, by name.
    """
    policies = found.totals[-1].policies
    causes = _Causes(found.differences, policies)
    met: list[RuleMet] = []

    def only(names: Sequence[str]) -> dict[str, Any]:
        return {"settings": {name: settings[name][1] for name in names}}

    def all_but(names: Sequence[str]) -> dict[str, Any]:
        return {"profile": profile, "settings": {name: settings[name][0] for name in names}}

    differ = settings if differing_topics(found, policies) else ()
    for name, answer in _single(differ, fold, only, lambda answer, name: bool(_topics(answer, name))):
        met.append(_rule(answer, name, settings[name]))
        causes.suffices(name, _of(answer.differences, name))
    if causes.open():
        for name, answer in _single(
            differ, fold, all_but, lambda answer, name: causes.gone(_of(answer.differences, name))
        ):
            causes.is_needed(name, _of(answer.differences, name))
    found.differences = causes.filled()
    met.sort(key=lambda each: (-each.messages, each.setting))
    return Rules(profile, policies, len(settings), met, causes.together())


def _single(
    settings: Iterable[str],
    fold: Callable[[Mapping[str, Mapping[str, Any]]], WhatIf],
    fields: Callable[[Sequence[str]], Mapping[str, Any]],
    matters: Callable[[WhatIf, str], bool],
) -> Iterator[tuple[str, WhatIf]]:
    """The settings that matter by themselves, each with an answer in which its policy set has its name.

    Several that don't matter together are not tried one by one.
    """
    waiting = _parts(list(settings), BESIDE)
    while waiting:
        group, waiting = waiting[:BESIDE], waiting[BESIDE:]
        answer = fold({names[0]: fields(names) for names in group})
        for names in group:
            if matters(answer, names[0]):
                if len(names) == 1:
                    yield names[0], answer
                else:
                    waiting += _parts(names, 2)


class _Causes:
    """Which settings make each difference of a policy set: those of which each suffices, or else those that it takes together."""

    def __init__(self, differences: pa.Table, policies: str) -> None:
        self._all = differences
        own = pc.equal(differences["policies"].cast(pa.string()), policies)
        keys = _messages(differences).append_column("row", pa.array(np.arange(len(differences))))
        self._open = self._own = keys.filter(own)
        self._texts = np.full(len(differences), None, object)

    def open(self) -> bool:
        """Whether there are differences that no setting makes by itself, as far as it is known."""
        return len(self._open) > 0

    def suffices(self, name: str, differences: pa.Table) -> None:
        """A setting makes these by itself."""
        rows = self._rows(self._own, "semi", differences)
        self._add(name, rows, " or ")
        self._open = self._rest(self._open, "anti", differences)

    def gone(self, differences: pa.Table) -> bool:
        """Whether some that no setting makes by itself are not among these."""
        return len(self._rest(self._open, "anti", differences)) > 0

    def is_needed(self, name: str, differences: pa.Table) -> None:
        """All others together make only these."""
        self._add(name, self._rows(self._open, "anti", differences), " and ")

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

    def _add(self, name: str, rows: np.ndarray[Any, Any], word: str) -> None:
        for row in rows.tolist():
            before = self._texts[row]
            self._texts[row] = name if before is None else before + word + name

    def _rest(self, keys: pa.Table, kind: str, differences: pa.Table) -> pa.Table:
        return keys.join(_messages(differences), keys=list(_MESSAGE), join_type=f"left {kind}")

    def _rows(self, keys: pa.Table, kind: str, differences: pa.Table) -> np.ndarray[Any, Any]:
        rows: np.ndarray[Any, Any] = self._rest(keys, kind, differences)["row"].to_numpy()
        return rows


def _parts(names: Sequence[str], count: int) -> list[Sequence[str]]:
    """At most so many parts of about the same size."""
    size = max(1, -(-len(names) // count))
    return [names[start : start + size] for start in range(0, len(names), size)]


def _rule(found: WhatIf, name: str, values: tuple[Any, Any]) -> RuleMet:
    totals = next(each for each in found.totals if each.policies == name)
    counts = {change: count for change, count in totals.differences.items() if count}
    return RuleMet(name, *values, counts, _topics(found, name))


def _topics(found: WhatIf, name: str) -> list[RuleOnTopic]:
    """The topics on which a policy set makes a difference."""
    by_topic: defaultdict[str, _Rows] = defaultdict(_Rows)
    for row in found.summary.to_pylist():
        if row["policies"] == found.totals[0].policies:
            by_topic[row["topic"]].baseline[row["subscription"]] = row
        elif row["policies"] == name:
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
    return table.filter(pc.equal(table["policies"].cast(pa.string()), policies))


def _messages(differences: pa.Table) -> pa.Table:
    """Which message for which subscription each row is about. A join never matches nulls."""
    return pa.table(
        {
            name: differences[name].cast(pa.string())
            if name in ("topic", "subscription")
            else pc.fill_null(differences[name], -1)
            for name in _MESSAGE
        }
    )
