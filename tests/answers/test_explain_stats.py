"""What explain concludes from stats is what the state says: the broker's own stats and its own verdicts, on random lives."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from schemas.commands import Admin, CloseConsumer, to_json
from schemas.effects import AdminResponse
from streaming.answers.explain import advice
from streaming.answers.explain.advice import of_delivery
from streaming.answers.explain.stats.answers import _HARMLESS, TROUBLE
from streaming.answers.explain.stats.delivery import SINGLE_ACTIVE, explain_delivery
from streaming.answers.explain.stats.observed import Observed, ShownFields
from streaming.answers.explain.stats.producing import explain_producers
from streaming.answers.explain.stats.storage import MOST_NAMED, explain_quotas, explain_retention
from streaming.broker.admin_requests import topic_path
from streaming.broker.broker import Broker
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import namespace_of
from streaming.broker.dispatch.sticky_key import StickyKeyMultipleConsumers
from streaming.broker.dispatch.sticky_key_classic import ClassicStickyKeyMultipleConsumers
from streaming.broker.entries import NoEntries
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.persistent.cleanup.backlog_quota import Quotas
from streaming.broker.persistent.cleanup.trimming import Retention
from streaming.broker.persistent.delivery import Delivery, State
from streaming.broker.policies.hierarchy import (
    NO_POLICIES,
    BacklogQuota,
    Policies,
    QuotaType,
    RetentionPolicies,
)
from streaming.cli.explained import _STATES, delivery_lines, producers_headline
from tests.broker.kit import TOPIC, Run, Stored, feed
from tests.broker.random_lives import restarts
from tests.broker.recorded_lives import NAMES

UNSEEN = {
    "dispatchRate", "entryFilters", "priorityLevel", "unconfirmed writes", "maxEffectsPerCommand", "hashRanges", "draining hash",
    "activeConsumerFailoverDelayTimeMillis", "replay queue", "delayedDelivery", "active consumer", "recently joined",
    "maxUnackedMessagesPerBroker", "open transaction", "chunk owner", "chunk owner left", "first chunk", "read position",
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
    for broker, store, _ in restarts(theme, seed, 0.05):
        for name in broker.topic_names():
            if not is_non_persistent(name) and has_its_dispatchers(broker, name):
                compare(broker, store, name)


def has_its_dispatchers(broker: Broker, name: str) -> bool:
    """False: a log has chosen others since, which a real broker has only after a restart, and stats don't tell them apart."""
    classic = broker.config.subscriptionKeySharedUseClassicPersistentImplementation
    return all(
        isinstance(each.dispatcher, ClassicStickyKeyMultipleConsumers) is classic
        for each in broker.topic(name).subscriptions.values()
        if isinstance(each.dispatcher, StickyKeyMultipleConsumers)
    )


def compare(broker: Broker, store: Stored, name: str) -> None:
    broker = Broker.decode(broker.encode(), store)
    seen = observed(broker, name)
    if name not in broker.topic_names():  # each record may run a timer, also one that asks
        return
    state = broker.encode()
    for subscription in seen.subscriptions:
        truth = Broker.decode(state, store).delivery(name, subscription)
        for each in (seen, *lesser(seen)):
            agree(explain_delivery(each, subscription), truth)
    kept, quotas = (Broker.decode(state, store) for _ in range(2))
    of_storage(seen, kept.retention(name), quotas.quotas(name))
    of_producers(seen, Broker.decode(state, store), name)


def lesser(seen: Observed) -> list[Observed]:
    """What is known of an old version, without the internal stats, and without policies."""
    stats: Any = seen.stats._value
    subscriptions = {
        name: {field: value for field, value in sub.items() if field != "msgInReplay"}
        for name, sub in stats["subscriptions"].items()
    }
    old = ShownFields({**stats, "subscriptions": subscriptions})
    known = seen.own, seen.namespace, seen.config
    return [
        Observed(seen.topic, seen.clock, old, seen.internal, *known),
        Observed(seen.topic, seen.clock, seen.stats, None, *known),
        Observed(seen.topic, seen.clock, old, seen.internal),
    ]


def agree(ours: Delivery, truth: Delivery) -> None:
    both = ours, truth
    assert (ours.backlog, ours.consumers) == (truth.backlog, truth.consumers)
    assert ours.mark_delete in (truth.mark_delete, None)
    # quirk: an empty position before the first entry may count
    if ours.unread is not None and truth.unread is not None and truth.unread <= truth.backlog:
        assert ours.unread == truth.unread, both
    blocking = {(each.decider, each.consumer) for each in truth.verdicts if each.blocks}
    for each in ours.verdicts:
        if each.decider == "blockedSubscriptionOnUnackedMsgs":
            limits = {("maxUnackedMessagesPerSubscription", None), ("maxUnackedMessagesPerBroker", None)}
            assert limits & blocking, both
        elif each.decider == "replay queue" and each.blocks:  # the stats don't show what is in it
            chunks = {(name, None) for name in ("chunk owner", "chunk owner left", "first chunk")}
            assert {("replay queue", None), *chunks} & blocking, both
        elif each.blocks:
            # quirk: the stats go on naming an active consumer that has left, and another one may have its name
            inactive = each.decider == "permits" and ("active consumer", each.consumer) in blocking
            assert inactive or (each.decider, each.consumer) in blocking, (each, *both)
    if ours.first and truth.first:
        assert ours.first[0].position == truth.first[0].position, both
    if ours.state in ("caught up", "no consumers", "deleted"):
        # The internal stats show which ledgers are there.
        assert truth.state in (ours.state, *(["deleted"] * (ours.mark_delete is None))), both
    elif ours.state == "held back":
        # A delayed entry may be due, which limits on new entries don't hold back.
        assert truth.state == "held back" or truth.sends == 0 or ours.delayed, both
    elif ours.unread is None or (ours.to_redeliver is None and ours.type not in SINGLE_ACTIVE):
        assert ours.unknown or ours.state == "waiting for a time", both
    elif ours.state in ("in flight", "waiting for a time", "lost"):
        assert ours.state != "lost" or truth.lost, both
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
            assert each.reason in ("cursor", "terminated", "source"), (own, each)
    for quota, found in zip(quotas.quotas, explain_quotas(seen).quotas, strict=True):
        if found.type == "destination_storage":
            assert (quota.state, quota.used, quota.limit) == (found.state, found.used, found.limit)


def of_producers(seen: Observed, broker: Broker, name: str) -> None:
    truth, ours = broker.producing(name), explain_producers(seen)
    closing = any(each.state in ("closing", "unconfirmed") for each in truth.producers)
    is_seen = truth.owner in (None, *(each.name for each in truth.producers if each.state != "gone"))
    if broker.topic(name).fenced or closing or not is_seen:
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


# -- cases


def shown(run: Run) -> Observed:
    return observed(Broker.decode(run.broker.encode(), Stored()), TOPIC)


def test_chunks_that_nobody_has_are_lost() -> None:
    """The subscription counts a message more than its consumers have, and more entries were read than they can have."""
    run = Run()
    run.create_producer()
    run.subscribe("s", "Shared", id_=1, permits=9)
    for number in range(2):
        run.send(0, chunk_id=number, num_chunks_from_msg=3, total_chunk_msg_size=3, uuid="u")
    run.ack("s", (1, 0), (1, 1))
    run.do(CloseConsumer(connection="s", consumer_id=1, request_id=9))
    run.subscribe("s", "Shared", id_=2, permits=9)
    run.send(0, chunk_id=2, num_chunks_from_msg=3, total_chunk_msg_size=3, uuid="u")
    run.send(1)
    found = explain_delivery(shown(run), "s")
    assert (found.state, found.lost, found.in_flight, found.backlog) == ("lost", 1, 1, 2)
    (one,) = [each for each in found.verdicts if each.blocks]
    assert one.text.startswith("1 entry dealt to a consumer that has left")
    assert found.to_do[0].startswith("Disconnect all consumers of the subscription at the same time")
    busy = shown(run)
    busy.stats._value["subscriptions"]["s"]["msgRateOut"] = 5.0
    found = explain_delivery(busy, "s")
    assert found.state == "in flight", (
        "the stats and the internal stats of a busy subscription may not fit together"
    )
    assert found.unknown[0].startswith("what happened between the stats and the internal stats")


def test_a_limit_of_one_never_unblocks_here_either() -> None:
    run = Run(maxUnackedMessagesPerSubscription=1)
    run.subscribe("s", "Shared", permits=9)
    run.publish(0)
    run.publish(1)
    run.ack("s", (1, 0))
    found = explain_delivery(shown(run), "s")
    (one,) = [each for each in found.verdicts if each.blocks]
    assert "a limit of 1 never unblocks" in one.text
    assert found.to_do[0].startswith("Set the limit to 2 or more")


def test_consumers_of_one_name() -> None:
    """Only one of them is active, and the stats show its name alone."""
    run = Run()
    for number, permits in ((1, 0), (2, 5)):
        run.subscribe(
            "s", "Failover", id_=number, connection=f"c{number}", permits=permits, consumer_name="app"
        )
    run.publish(0)
    found = explain_delivery(shown(run), "s")
    assert not [each for each in found.verdicts if each.blocks]
    assert [each.sure for each in found.verdicts if each.decider == "permits"] == [False, True]
    assert any(each.startswith("which of the consumers") for each in found.unknown)


@pytest.mark.parametrize(
    ("read", "acked", "unread"),
    [
        ("1:0", "[]", 10), ("1:3", "[]", 7), ("2:0", "[]", 5), ("1:5", "[]", 5), ("3:0", "[]", 0), ("2:5", "[]", 0),
        ("1:0", "[(1:0..1:2]]", 8), ("1:2", "[(1:0..1:2]]", 7), ("1:0", "[(1:3..2:1]]", 7), ("1:0", "[(1:0..1:2],(2:0..2:4]]", 4),
    ],
)  # fmt: skip
def test_how_many_entries_were_not_read(read: str, acked: str, unread: int) -> None:
    """Two ledgers of five entries, of which the second one is open."""
    internal = {
        "lastConfirmedEntry": "2:4", "currentLedgerEntries": 5, "currentLedgerSize": 50,
        "ledgers": [{"ledgerId": 1, "entries": 5, "size": 50}, {"ledgerId": 2, "entries": 0, "size": 0}],
    }  # fmt: skip
    seen = Observed("t", 0, ShownFields({}), ShownFields(internal))
    cursor = {"readPosition": read, "individuallyDeletedMessages": acked}
    assert seen.unread(ShownFields(cursor)) == unread


def test_a_policy_is_known_only_if_all_levels_above_are() -> None:
    own, namespace = Policies(), Policies(maxProducersPerTopic=3)
    quota: dict[QuotaType, BacklogQuota] = {"destination_storage": BacklogQuota(limitSize=5)}

    def seen(*known: Any) -> Observed:
        return Observed("t", 0, ShownFields({}), None, *known)

    assert seen(None, namespace).policy("maxProducersPerTopic") is None
    assert seen(own, namespace).policy("maxProducersPerTopic") == (3, "namespace")
    assert seen(own, namespace).policy("retention") is None
    assert seen(own, namespace, ServiceConfiguration()).policy("retention") == (RetentionPolicies(), "broker")
    assert seen(Policies(maxProducersPerTopic=1)).policy("maxProducersPerTopic") == (1, "topic")
    assert seen(own, Policies(backlogQuota=quota)).quota("destination_storage") == (
        quota["destination_storage"],
        "namespace",
    )
    assert seen(own, Policies(backlogQuota=quota)).quota("message_age") is None


def test_an_age_of_the_last_check_and_a_throttled_topic_are_not_sure() -> None:
    stats: dict[str, Any] = {
        "subscriptions": {"s": {"msgBacklog": 3, "backlogSize": 30}}, "backlogSize": 30, "oldestBacklogMessageAgeSeconds": 100,
        "oldestBacklogMessageSubscriptionName": "s",
    }  # fmt: skip
    held: dict[QuotaType, BacklogQuota] = {
        "message_age": BacklogQuota(limitTime=60, policy="producer_request_hold")
    }
    policies = Policies(backlogQuota=held), Policies(), ServiceConfiguration()
    found = explain_producers(Observed("t", 0, ShownFields(stats), None, *policies))
    assert [(each.decider, each.blocks, each.sure) for each in found.verdicts] == [
        ("backlogQuota", False, False)
    ]
    assert {(each.answer, each.text) for each in found.admissions} == {
        ("not known", "refused with ProducerBlockedQuotaExceededError if the quota is still exceeded")
    }
    assert producers_headline(found).startswith(
        "perhaps held: the message_age quota is exceeded (producer_request_hold, topic): used"
    )
    throttled = {
        "subscriptions": {},
        "publishRateLimitedTimes": 7,
        "publishers": [{"producerName": "p", "accessMode": "Shared"}],
    }
    found = explain_producers(Observed("t", 0, ShownFields(throttled)))
    assert (
        producers_headline(found)
        == "perhaps held: publishing was throttled 7 times in the last interval of the stats"
    )
    assert "raise the publish rate" in found.to_do[0]


def test_nobody_is_told_to_consume_or_delete_the_cursor_of_deduplication() -> None:
    """From the state, and from stats."""
    run = Run(managedLedgerMaxEntriesPerLedger=4, brokerDeduplicationEnabled=True)
    for number in range(10):
        run.publish(number)
    hold = {"limitSize": 10, "policy": "producer_request_hold"}
    run.namespace("POST", "backlogQuota", hold)
    seen = observed(run.broker, TOPIC)
    state = run.broker.encode()
    own = [Broker.decode(state, NoEntries()) for _ in range(3)]
    found = own[1].quotas(TOPIC)
    for to_do in (
        advice.of_producers(own[0].producing(TOPIC)), advice.of_quotas(TOPIC, found.quotas, found.slowest),
        advice.of_retention(own[2].retention(TOPIC)),
        explain_producers(seen).to_do, explain_quotas(seen).to_do, explain_retention(seen).to_do,
    ):  # fmt: skip
        assert to_do[0].startswith("Wait for the next snapshot of deduplication")
        assert not any("pulsar.dedup" in each for each in to_do)


def test_nobody_is_told_to_consume_or_delete_the_cursor_of_compaction() -> None:
    """Which would delete what was compacted."""
    run = Run(managedLedgerMaxEntriesPerLedger=4, brokerServiceCompactionThresholdInBytes=1_000_000)
    for number in range(10):
        run.publish(number)
    run.namespace("POST", "backlogQuota", {"limitSize": 10, "policy": "producer_request_hold"})
    seen = observed(run.broker, TOPIC)
    for to_do in (explain_producers(seen).to_do, explain_quotas(seen).to_do, explain_retention(seen).to_do):
        assert to_do[0].startswith("Compact the topic")
        assert not any("__compaction" in each for each in to_do)


def test_what_it_costs_does_not_grow_with_the_product_of_ledgers_and_cursors() -> None:
    """10,000 subscriptions that hold 1,000 ledgers, and 10,000 ranges of acknowledged entries."""
    internal = {
        "state": "LedgerOpened", "lastConfirmedEntry": "1000:9", "currentLedgerEntries": 10,
        "ledgers": [{"ledgerId": ledger, "entries": 10, "size": 100} for ledger in range(1, 1001)],
        "cursors": {f"s{n}": {"markDeletePosition": f"{n % 3 + 1}:-1", "readPosition": "1:0"} for n in range(10_000)},
    }  # fmt: skip
    internal["cursors"]["s0"]["individuallyDeletedMessages"] = ",".join(  # type: ignore[index]
        f"({n // 10 + 1}:{n % 10 - 1}..{n // 10 + 1}:{n % 10}]" for n in range(0, 10_000, 2)
    )
    stats = {"subscriptions": {f"s{n}": {"msgBacklog": 1, "isDurable": True} for n in range(10_000)}}
    seen = Observed("t", 0, ShownFields(stats), ShownFields(internal))
    found = explain_retention(seen)
    assert (found.ledgers[0].reason, len(found.ledgers[0].cursors)) == ("cursor", MOST_NAMED)
    assert found.ledgers[0].text.endswith(" and 3,324 more")
    assert found.ledgers[500].text.endswith(" and 9,990 more")
    assert explain_delivery(seen, "s0").unread == 5000


def test_a_backlog_of_what_was_deleted_before_the_subscription_is_nothing_to_wait_for() -> None:
    """Pulsar counts the entries of a trimmed ledger for who begins at Earliest when no other ledger has any."""
    run = Run(
        managedLedgerMaxEntriesPerLedger=2,
        managedLedgerMinLedgerRolloverTimeMinutes=0,
        trimAtRolloverSparesClosedLedger=False,
    )
    run.publish(0)
    run.publish(1)
    run.subscribe("s", "Shared", permits=9)
    truth = Broker.decode(run.broker.encode(), Stored()).delivery(TOPIC, "s")
    assert (truth.state, truth.gone, truth.in_flight, truth.backlog) == ("deleted", 2, 0, 2)
    ours = explain_delivery(shown(run), "s")
    assert (ours.state, ours.first, ours.backlog) == ("deleted", [], 2)
    assert ours.to_do == of_delivery(truth)


def test_each_state_has_its_place_and_its_sentence() -> None:
    states = [*get_args(State)]
    assert sorted((*TROUBLE, *_HARMLESS)) == sorted(states)
    assert sorted(_STATES) == sorted(states)


def test_a_consumer_without_a_name_is_called_so() -> None:
    stats = {
        "subscriptions": {
            "s": {
                "type": "Exclusive",
                "msgBacklog": 1,
                "consumers": [{"consumerName": "", "availablePermits": 0}],
            }
        }
    }
    found = explain_delivery(Observed(TOPIC, 0, ShownFields(stats), None, None, None, None), "s")
    lines = [*delivery_lines(found)]
    assert "  a consumer without a name is at an unknown address (unknown client)" in lines


@pytest.mark.parametrize("bound", ["65535", None, [], {}, 1.5])
def test_hash_ranges_that_are_no_numbers(bound: Any) -> None:
    consumers = [
        {"consumerName": "a", "drainingHashes": [{"hash": 7, "unackMsgs": 1, "blockedAttempts": 1}]},
        {
            "consumerName": "b",
            "keyHashRangeArrays": [[bound, bound]],
            "keyHashRanges": ["[0, 65535]", f"[{bound}, ²]"],
        },
    ]
    stats = {"subscriptions": {"s": {"type": "Key_Shared", "msgBacklog": 1, "consumers": consumers}}}
    found = explain_delivery(Observed("t", 0, ShownFields(stats)), "s")
    assert [each.consumer for each in found.verdicts if each.decider == "draining hash"] == ["b"]
