"""The answers about a topic of a cluster, those with trouble first."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streaming.answers.explain.stats.delivery import explain_delivery
from streaming.answers.explain.stats.observed import Observed
from streaming.answers.explain.stats.producing import explain_producers
from streaming.answers.explain.stats.storage import explain_quotas, explain_retention
from streaming.answers.history.folders import NotFound, listed
from streaming.broker.persistent.cleanup.backlog_quota import Quotas
from streaming.broker.persistent.cleanup.trimming import Retention
from streaming.broker.persistent.delivery import Delivery, State
from streaming.broker.topic.producing import Producing

TROUBLE: tuple[State, ...] = ("lost", "held back", "not triggered", "no consumers", "in flight")
"""The states in which a subscription that has a backlog may need somebody, the worst first."""

_HARMLESS: tuple[State, ...] = ("receiving", "waiting for a time", "deleted", "caught up")


class Questions(msgspec.Struct, frozen=True):
    """What to answer. None of them: the subscriptions, and the quotas and producers if something is wrong with them."""

    subscription: str | None = None
    quota: bool = False
    retention: bool = False
    producers: bool = False

    @property
    def any(self) -> bool:
        """Whether something particular is asked."""
        return self.quota or self.retention or self.producers


class Answers(msgspec.Struct):
    """What stats show of a topic, at `clock` (ms). With `partitions`, the lists have an answer for each of them.

    `missing`: what was not to be had, and why.
    """

    topic: str
    clock: int
    partitions: int
    subscriptions: list[Delivery]
    quotas: list[Quotas]
    retention: list[Retention]
    producers: list[Producing]
    missing: list[str]


def answer(topic: str, observed: Sequence[Observed], asked: Questions, partitions: int = 0) -> Answers:
    """The answers about a topic, or about its partitions. Raises `NotFound` for a subscription that is not there."""
    missing = dict.fromkeys(each for one in observed for each in one.missing)
    found = Answers(topic, observed[0].clock, partitions, [], [], [], [], [*missing])
    if asked.subscription is not None or not asked.any:
        found.subscriptions = _deliveries(topic, observed, asked.subscription)
    for one in observed:
        if asked.quota or not (asked.any or asked.subscription):
            quotas = explain_quotas(one)
            if asked.quota or any(each.state == "exceeded" for each in quotas.quotas):
                found.quotas.append(quotas)
        if asked.retention:
            found.retention.append(explain_retention(one))
        if asked.producers or not (asked.any or asked.subscription):
            producing = explain_producers(one)
            blocked = any(
                (each.blocks or not each.sure) and each.decider != "access mode"
                for each in producing.verdicts
            )
            if asked.producers or blocked or producing.waiting:
                found.producers.append(producing)
    found.quotas.sort(key=lambda each: not any(quota.state == "exceeded" for quota in each.quotas))
    found.retention.sort(key=lambda each: -each.size)
    found.producers.sort(key=lambda each: not any(verdict.blocks for verdict in each.verdicts))
    return found


def _deliveries(topic: str, observed: Sequence[Observed], subscription: str | None) -> list[Delivery]:
    names = {name for one in observed for name in one.subscriptions}
    if subscription is not None and subscription not in names:
        raise NotFound(
            f"{topic} has no subscription {subscription}: {listed('subscription', subscription, names)}"
        )
    found = [
        explain_delivery(one, name)
        for one in observed
        for name in one.subscriptions
        if subscription in (None, name)
    ]
    order = {state: number for number, state in enumerate((*TROUBLE, *_HARMLESS))}
    return sorted(found, key=lambda each: (order[each.state], -each.backlog, each.topic, each.subscription))
