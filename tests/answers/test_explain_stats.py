"""What explain concludes from stats is what the state says: the broker's own stats and its own verdicts, on random lives."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from schemas.commands import Admin, to_json
from schemas.effects import AdminResponse
from streaming.answers.explain.stats.delivery import SINGLE_ACTIVE, explain_delivery
from streaming.answers.explain.stats.observed import Observed, ShownFields
from streaming.answers.explain.stats.producing import explain_producers
from streaming.answers.explain.stats.storage import explain_quotas, explain_retention
from streaming.broker.admin_requests import topic_path
from streaming.broker.broker import Broker
from streaming.broker.context import namespace_of
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.persistent.cleanup.backlog_quota import Quotas
from streaming.broker.persistent.cleanup.trimming import Retention
from streaming.broker.persistent.delivery import Delivery
from streaming.broker.policies.hierarchy import NO_POLICIES
from tests.broker.kit import Stored, feed
from tests.broker.random_lives import live
from tests.broker.recorded_lives import NAMES

UNSEEN = {
    "dispatchRate", "entryFilters", "priorityLevel", "unconfirmed writes", "maxEffectsPerCommand", "hashRanges", "draining hash",
    "activeConsumerFailoverDelayTimeMillis", "replay queue", "delayedDelivery", "active consumer", "recently joined",
    "maxUnackedMessagesPerBroker", "chunk owner",
}  # fmt: skip
"""What stats don't show, or not all of it."""


def observed(broker: Broker, name: str) -> Observed:
    """What the admin API shows of a topic."""
    policies = broker.policies(name)[1]
    namespace = broker.namespace_policies.get(namespace_of(name), NO_POLICIES)
    stats, internal = (ShownFields(shown_by(broker, name, call)) for call in ("stats", "internalStats"))
    return Observed(name, broker.clock, stats, internal, policies, namespace, broker.config)


def shown_by(broker: Broker, name: str, call: str) -> Any:
    """The response to a GET, on a broker of its own."""
    path = topic_path(name, f"/{call}")
    feed(broker, broker.offset + 1, broker.clock, name, to_json(Admin(method="GET", path=path)))
    (said,) = [row.effect for row in broker.take() if isinstance(row.effect, AdminResponse)]
    return said.fields.response


@pytest.mark.parametrize(("theme", "seed"), NAMES[1::6])
def test_stats_are_not_read_otherwise_than_the_state(theme: str, seed: int) -> None:
    log, *_ = live(theme, seed)
    draw, store = Random(f"{theme} {seed}"), Stored()
    broker = Broker(0, store)
    for offset, (timestamp, topic, value) in enumerate(log):
        feed(broker, offset, timestamp, topic, value)
        store.add([row.effect for row in broker.take()])
        if draw.random() < 0.05:
            broker = Broker.decode(broker.encode(), store)
            for name in broker.topic_names():
                if not is_non_persistent(name):
                    compare(broker, store, name)


def compare(broker: Broker, store: Stored, name: str) -> None:
    broker = Broker.decode(broker.encode(), store)
    seen = observed(broker, name)
    if name not in broker.topic_names():  # each record may run a timer, also one that asks
        return
    state = broker.encode()
    for subscription in seen.subscriptions:
        ours = explain_delivery(seen, subscription)
        truth = Broker.decode(state, store).delivery(name, subscription)
        agree(ours, truth)
    kept, quotas = (Broker.decode(state, store) for _ in range(2))
    of_storage(seen, kept.retention(name), quotas.quotas(name))
    of_producers(seen, Broker.decode(state, store), name)


def agree(ours: Delivery, truth: Delivery) -> None:
    both = ours, truth
    assert (ours.backlog, ours.mark_delete, ours.consumers) == (
        truth.backlog,
        truth.mark_delete,
        truth.consumers,
    )
    if (
        truth.unread is not None and truth.unread <= truth.backlog
    ):  # quirk: an empty position before the first entry may count
        assert ours.unread == truth.unread, both
    blocking = {(each.decider, each.consumer) for each in truth.verdicts if each.blocks}
    for each in ours.verdicts:
        if each.decider == "blockedSubscriptionOnUnackedMsgs":
            limits = {("maxUnackedMessagesPerSubscription", None), ("maxUnackedMessagesPerBroker", None)}
            assert limits & blocking, both
        elif each.blocks:
            assert (each.decider, each.consumer) in blocking, (each, *both)
    if ours.first and truth.first:
        assert ours.first[0].position == truth.first[0].position, both
    if ours.state in ("caught up", "no consumers"):
        assert truth.state == ours.state, both
    elif ours.state == "held back":
        # A delayed entry may be due, which limits on new entries don't hold back.
        assert truth.state == "held back" or truth.sends == 0 or ours.delayed, both
    elif ours.state in ("in flight", "waiting for a time", "lost"):
        assert not truth.unread, both
        assert not truth.to_redeliver or ours.to_redeliver == 0, both
    else:
        reasons = {decider for decider, _ in blocking}
        assert truth.state in ("not triggered", "held back", "in flight", "waiting for a time", "lost"), both
        assert (
            truth.state != "held back" or reasons & UNSEEN or truth.type in (*SINGLE_ACTIVE, "Key_Shared")
        ), both


def of_storage(seen: Observed, truth: Retention, quotas: Quotas) -> None:
    for each, own in zip(truth.ledgers, explain_retention(seen).ledgers, strict=True):
        assert (each.ledger, each.entries, each.size) == (own.ledger, own.entries, own.size), (each, own)
        if own.reason == "open":
            assert each.reason in ("open", "terminated"), (own, each)
        if own.reason == "cursor":
            assert each.reason in ("cursor", "terminated"), (own, each)
    for quota, found in zip(quotas.quotas, explain_quotas(seen).quotas, strict=True):
        if found.type == "destination_storage":
            assert (quota.state, quota.used, quota.limit) == (found.state, found.used, found.limit)


def of_producers(seen: Observed, broker: Broker, name: str) -> None:
    truth, ours = broker.producing(name), explain_producers(seen)
    closing = any(each.state in ("closing", "unconfirmed") for each in truth.producers)
    if broker.topic(name).fenced or closing or (truth.owner is not None and not truth.producers):
        return  # stats don't show it
    assert (truth.owner, truth.epoch, truth.waiting) == (ours.owner, ours.epoch, ours.waiting), (truth, ours)
    refused = {each.access_mode: each for each in truth.admissions}
    for admission in ours.admissions:
        real = refused[admission.access_mode]
        if admission.answer == "is refused":
            assert real.answer == "is refused", (truth, ours)
            of_age = (
                real.text == "the message_age quota of the topic is exceeded"
            )  # which stats know of the last check
            assert of_age or real.error in (admission.error, "IncompatibleSchema"), (truth, ours)
