"""Metrics of topics equal the stats of the admin API, whatever happened, and are bounded in number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from schemas import metrics
from schemas.commands import Admin, to_json
from schemas.effects import AdminResponse, SendReceipt
from schemas.entries import EntryReader
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.ledger.entry_sizes import BOUNDS, EntrySizes
from streaming.metrics.topics import OTHER, TopicFigures
from tests.broker.kit import START, TOPIC, Run, Stored, feed, one
from tests.broker.random_lives import live
from tests.broker.recorded_lives import NAMES
from tests.broker.test_compaction_cases import Topic
from tests.broker.test_transactions import Transacting

Values = dict[tuple[str, ...], float]

MINUTE = 60_000
LABELS = (
    "cluster", "namespace", "topic", "subscription", "consumer_name", "consumer_id", "quota_type", "command", "le", "version", "quantile",
    "coordinator_id",
)  # fmt: skip

TOPICS = {
    "pulsar_average_msg_size": "averageMsgSize",
    "pulsar_rate_in": "msgRateIn",
    "pulsar_rate_out": "msgRateOut",
    "pulsar_throughput_in": "msgThroughputIn",
    "pulsar_throughput_out": "msgThroughputOut",
    "pulsar_storage_size": "storageSize",
    "pulsar_storage_backlog_size": "backlogSize",
    "pulsar_publish_rate_limit_times": "publishRateLimitedTimes",
    "pulsar_in_messages_total": "msgInCounter",
    "pulsar_in_bytes_total": "bytesInCounter",
}
SUBSCRIPTIONS = {
    "pulsar_subscription_back_log": "msgBacklog",
    "pulsar_subscription_back_log_no_delayed": "msgBacklogNoDelayed",
    "pulsar_subscription_delayed": "msgDelayed",
    "magnetar_subscription_backlog_size": "backlogSize",
    "pulsar_subscription_unacked_messages": "unackedMessages",
    "pulsar_subscription_blocked_on_unacked_messages": "blockedSubscriptionOnUnackedMsgs",
    "pulsar_subscription_msg_rate_out": "msgRateOut",
    "pulsar_subscription_msg_throughput_out": "msgThroughputOut",
    "pulsar_subscription_msg_ack_rate": "messageAckRate",
    "pulsar_subscription_msg_rate_redeliver": "msgRateRedeliver",
    "pulsar_subscription_msg_rate_expired": "msgRateExpired",
    "pulsar_subscription_msg_drop_rate": "msgDropRate",
    "pulsar_subscription_total_msg_expired": "totalMsgExpired",
    "pulsar_out_messages_total": "msgOutCounter",
    "pulsar_out_bytes_total": "bytesOutCounter",
    "pulsar_subscription_in_replay": "msgInReplay",
    "pulsar_subscription_filter_accepted_msg_count": "filterAcceptedMsgCount",
    "pulsar_subscription_filter_rejected_msg_count": "filterRejectedMsgCount",
    "pulsar_subscription_last_acked_timestamp": "lastAckedTimestamp",
    "pulsar_subscription_last_consumed_flow_timestamp": "lastConsumedFlowTimestamp",
    "pulsar_subscription_last_consumed_timestamp": "lastConsumedTimestamp",
    "pulsar_subscription_last_mark_delete_advanced_timestamp": "lastMarkDeleteAdvancedTimestamp",
}


class Collected(Collector):
    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self._found


def values(text: str) -> Values:
    """The samples of a scrape by name and label values, as the official parser reads them."""
    return {
        (sample.name, *(sample.labels[label] for label in LABELS if label in sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(found: Iterable[Metric]) -> Values:
    """The samples after a round through the text format."""
    registry = CollectorRegistry()
    registry.register(Collected(found))
    return values(generate_latest(registry).decode())


def stats_of(state: bytes, store: EntryReader, name: str, offset: int, time: int) -> dict[str, Any]:
    """What the admin API answers at a time (ms)."""
    broker = Broker.decode(state, store)
    path = f"/persistent/{name.partition('://')[2]}/stats"
    if name.startswith("non-"):
        path = f"/non-{path[1:]}"
    feed(broker, offset, time, name, to_json(Admin(method="GET", path=path)))
    (answer,) = [row.effect for row in broker.take() if isinstance(row.effect, AdminResponse)]
    assert isinstance(answer.fields.response, dict)
    return answer.fields.response


def expected(cluster: str, name: str, stats: dict[str, Any]) -> Values:
    namespace = name.partition("://")[2].rpartition("/")[0]
    labels, subscriptions = (cluster, namespace, name), stats["subscriptions"]
    found: Values = {(metric, *labels): stats.get(field, 0) for metric, field in TOPICS.items()}
    found["pulsar_subscriptions_count", *labels] = len(subscriptions)
    found["pulsar_producers_count", *labels] = len(stats["publishers"])
    found["pulsar_consumers_count", *labels] = sum(len(each["consumers"]) for each in subscriptions.values())
    found["pulsar_msg_backlog", *labels] = sum(each["msgBacklog"] for each in subscriptions.values())
    for subscription, fields in subscriptions.items():
        for metric, field in SUBSCRIPTIONS.items():
            found[metric, *labels, subscription] = fields.get(field, 0)
        found["pulsar_subscription_consumers_count", *labels, subscription] = len(fields["consumers"])
        if name.startswith("non-persistent:"):  # quirk: stats have 0, Prometheus the sum (2.10)
            unacked = sum(each["unackedMessages"] for each in fields["consumers"])
            found["pulsar_subscription_unacked_messages", *labels, subscription] = unacked
    return found


@pytest.mark.feature("I2")
@pytest.mark.parametrize(("theme", "seed"), NAMES[::3])
def test_metrics_equal_the_stats_of_the_admin_api(theme: str, seed: int) -> None:
    """After each few records, only the topics that these touched are measured; the others are as they were, but older."""
    log, *_ = live(theme, seed)
    figures, store, state = TopicFigures(), Stored(), b""
    for start in range(0, len(log), 9):
        broker = Broker.decode(state, store) if state else Broker(0, store)
        before = set(broker.topic_names())
        for offset, (timestamp, topic, value) in enumerate(log[start : start + 9], start):
            feed(broker, offset, timestamp, topic, value)
            store.add([row.effect for row in broker.take()])
        state = broker.encode()
        measured = broker.metrics(everything=False)
        measured.deleted = sorted(before.difference(broker.topic_names()))
        figures.update(metrics.decode(metrics.encode(measured)))
        if start % 4:
            continue
        wanted: Values = {}
        fresh = Broker.decode(state, NoEntries())
        for name in broker.topic_names():
            if not fresh.is_closed(name):  # a question would load it
                stats = stats_of(state, store, name, len(log), broker.clock)
                wanted |= expected(measured.cluster, name, stats)
        found = scraped(figures.collect(broker.clock))
        shown = {key: value for key, value in found.items() if key[0] in {name for name, *_ in wanted}}
        assert {key: shown.get(key) for key in wanted} == wanted
        assert {key[3] for key in shown} <= set(broker.topic_names())


def test_rates_end_with_their_interval_although_nothing_happens() -> None:
    run = Run(now=START - START % MINUTE)
    run.create_producer()
    for sequence_id in range(6):
        run.send(sequence_id)
    figures = TopicFigures()
    figures.update(run.broker.metrics(everything=True))
    found = [
        scraped(figures.collect(run.now + minutes * MINUTE))[
            "pulsar_rate_in", "standalone", "public/default", TOPIC
        ]
        for minutes in range(4)
    ]
    assert found == [0, 0.1, 0, 0]
    state = run.broker.encode()
    assert found == [
        stats_of(state, NoEntries(), TOPIC, 100, run.now + minutes * MINUTE)["msgRateIn"]
        for minutes in range(4)
    ]


def test_sizes_of_entries_are_those_of_the_last_interval() -> None:
    run = Run(now=START - START % MINUTE)
    run.subscribe("s")
    sizes = []
    for sequence_id, length in enumerate((1, 1500, 100_000)):
        sizes.append(one(run.publish(sequence_id, payload="x" * length), SendReceipt).size or 0)
    assert 0 not in sizes
    figures = TopicFigures()
    figures.update(run.broker.metrics(everything=True))
    labels = ("standalone", "public/default", TOPIC)
    now, then, later = (
        {
            name.removeprefix("pulsar_entry_size_"): value
            for (name, *found), value in scraped(figures.collect(run.now + minutes * MINUTE)).items()
            if name.startswith("pulsar_entry_size_") and tuple(found) == labels and value
        }
        for minutes in range(3)
    )
    assert (now, later) == ({}, {})
    assert then == {"le_128": 1, "le_2_kb": 1, "le_100_kb": 1, "count": 3, "sum": sum(sizes)}


def test_a_size_counts_in_the_first_bucket_that_it_does_not_exceed() -> None:
    together, single = EntrySizes(), EntrySizes()
    sizes = [*BOUNDS, *(bound + 1 for bound in BOUNDS), 0]
    assert together.add_all(sizes) == sum(sizes)
    for size in sizes:
        single.add(size)
    assert single == together
    assert together.current == [2, *[2] * (len(BOUNDS) - 1), 1, sum(sizes)]


def test_an_unload_forgets_the_sizes() -> None:
    run = Run()
    run.publish(0)
    run.unload()
    run.publish(1, producer="another")
    assert sum(run.topic.ledger.entry_sizes.current[:-1]) == 1


def test_filters_and_times() -> None:
    run = Run(entryFilterNames="PropertyFilter")
    run.subscribe("s", "Shared", permits=10)
    flow = run.now
    run.wait(1)
    run.publish(0)
    sent = run.now
    run.wait(1)
    run.ack("s", (1, 0))
    figures = TopicFigures()
    figures.update(run.broker.metrics(everything=True))
    found = scraped(figures.collect(run.now))
    labels = ("standalone", "public/default", TOPIC, "s")
    prefix = "pulsar_subscription"
    assert [
        found[f"{prefix}_filter_{each}_msg_count", *labels]
        for each in ("processed", "accepted", "rejected", "rescheduled")
    ] == [1, 1, 0, 0]
    assert found[f"{prefix}_last_consumed_flow_timestamp", *labels] == flow
    assert found[f"{prefix}_last_consumed_timestamp", *labels] == sent
    assert found[f"{prefix}_last_acked_timestamp", *labels] == run.now
    assert found[f"{prefix}_last_mark_delete_advanced_timestamp", *labels] == run.now
    assert found[f"{prefix}_last_expire_timestamp", *labels] == 0


@pytest.mark.parametrize("exposed", [False, True])
def test_consumers_are_shown_if_the_broker_exposes_them(exposed: bool) -> None:
    run = Run(now=START - START % MINUTE, exposeConsumerLevelMetricsInPrometheus=exposed)
    for number in range(4):
        run.subscribe("s", "Shared", id_=number, permits=10)
    for sequence_id in range(12):
        run.publish(sequence_id)
    figures = TopicFigures()
    figures.update(metrics.decode(metrics.encode(run.broker.metrics(everything=True))))
    found = scraped(figures.collect(run.now + MINUTE, label_sets=2))
    of_consumers = {key: value for key, value in found.items() if key[0].startswith("pulsar_consumer_")}
    unacked = [value for key, value in of_consumers.items() if key[0] == "pulsar_consumer_unacked_messages"]
    assert len(of_consumers) == (21 if exposed else 0)
    assert sum(unacked) == (12 if exposed else 0)
    if exposed:
        rate = "pulsar_consumer_msg_rate_out"
        assert sum(value for key, value in of_consumers.items() if key[0] == rate) == pytest.approx(0.2)
        assert (rate, "standalone", *[OTHER] * 5) in of_consumers
        assert (rate, "standalone", "public/default", TOPIC, "s", "", "0") in of_consumers


def test_quota_headroom() -> None:
    """How much of a quota is used, and what Pulsar shows of it."""
    run = Run(
        backlogQuotaDefaultLimitBytes=1000,
        backlogQuotaDefaultLimitSecond=40,
        preciseTimeBasedBacklogQuotaCheck=True,
    )
    run.subscribe("s")
    run.publish(0)
    run.now += 10_000
    run.check("backlogQuota")
    size = run.topic.backlog_size()
    figures = TopicFigures()
    figures.update(run.broker.metrics(everything=True))
    found = scraped(figures.collect(run.now))
    labels = ("standalone", "public/default", TOPIC)
    assert found["magnetar_backlog_quota_used_ratio", *labels, "size"] == size / 1000
    assert found["pulsar_storage_backlog_quota_limit", *labels] == 1000
    assert found["pulsar_storage_backlog_quota_limit_time", *labels] == 40
    assert found["pulsar_storage_backlog_age_seconds", *labels] == 10
    assert found["pulsar_storage_backlog_quota_exceeded_evictions_total", *labels, "size"] == 0


def test_what_there_is_no_quota_for_is_minus_one() -> None:
    run = Run()
    run.publish(0)
    figures = TopicFigures()
    figures.update(run.broker.metrics(everything=True))
    found = scraped(figures.collect(run.now))
    labels = ("standalone", "public/default", TOPIC)
    for name in ("quota_limit", "quota_limit_time", "age_seconds"):
        assert found[f"pulsar_storage_backlog_{name}", *labels] == -1


def test_the_version_is_that_of_the_profile() -> None:
    run = Run(profile="2.x")
    figures = TopicFigures()
    figures.update(metrics.decode(metrics.encode(run.broker.metrics(everything=True))))
    assert scraped(figures.collect(run.now))["pulsar_version_info", "standalone", "2.10.5"] == 1


def test_label_sets_are_bounded_and_sums_stay_right() -> None:
    run = Run()
    for number in range(5):
        topic = f"persistent://public/ns{number}/t"
        for subscription in ("a", "b", "c"):
            run.subscribe(subscription, topic=topic)
        run.publish(0, topic=topic)
    figures = TopicFigures()
    figures.update(run.broker.metrics(everything=True))
    found = scraped(figures.collect(run.now, label_sets=2))
    for name, sets in (
        ("pulsar_msg_backlog", 3),
        ("pulsar_subscription_back_log", 3),
        ("pulsar_topics_count", 3),
    ):
        own = {key: value for key, value in found.items() if key[0] == name}
        assert len(own) == sets
        assert sum(own.values()) == (5 if name == "pulsar_topics_count" else 15)
    assert found["pulsar_msg_backlog", "standalone", OTHER, OTHER] == 9


@pytest.mark.feature("I2", "C4", "L1")
def test_compactions_and_transactions_have_the_metrics_of_pulsar() -> None:
    """With the names and labels of a real 4.0.7, and its values for the same."""
    topic = Topic()
    assert not [key for key in shown(topic) if "compaction" in key[0]]
    for key, payload in [("a", b"1"), ("b", b"1"), ("a", b"2"), ("b", b"")]:
        topic.put(key, payload)
    topic.compact()
    topic.put("c", b"1")
    topic.compact()
    topic.subscribe("__compaction")
    topic.compact()  # fails
    found = {
        key[0]: value
        for key, value in shown(topic).items()
        if key[1:] == ("standalone", "public/default", TOPIC)
    }
    ledger = topic.topic.compaction.ledger
    assert ledger is not None
    assert {name: value for name, value in found.items() if "compaction" in name} == {
        "pulsar_compaction_removed_event_count": 2,
        "pulsar_compaction_succeed_count": 2,
        "pulsar_compaction_failed_count": 1,
        "pulsar_compaction_compacted_entries_count": 2,
        "pulsar_compaction_compacted_entries_size": ledger.size,
    }

    run = Transacting()
    txns = [run.begin() for _ in range(3)]
    for number, txn in enumerate(txns):
        run.send_in(txn, number)
    run.begin(1000, topic=None)
    run.end(txns[0])
    run.end(txns[1], "ABORT")
    run.wait(2)
    found = {key[0]: value for key, value in shown(run).items() if "txn" in key[0]}
    assert found == {
        "pulsar_txn_tb_active_total": 1,
        "pulsar_txn_tb_committed_total": 1,
        "pulsar_txn_tb_aborted_total": 1,
        "pulsar_txn_active_count": 1,
        "pulsar_txn_created_total": 4,
        "pulsar_txn_committed_total": 1,
        "pulsar_txn_aborted_total": 2,
        "pulsar_txn_timeout_total": 1,
    }
    assert shown(run)["pulsar_txn_active_count", "standalone", "0"] == 1


def test_a_coordinator_that_is_in_all_ingress_partitions_counts_once() -> None:
    run = Transacting()
    run.begin()
    own = run.broker.metrics(everything=True)
    figures = TopicFigures()
    for partition in range(3):
        figures.update(msgspec.structs.replace(own, partition=partition, topics=[]))
    assert scraped(figures.collect(run.now))["pulsar_txn_active_count", "standalone", "0"] == 1


def shown(run: Run) -> Values:
    figures = TopicFigures()
    figures.update(metrics.decode(metrics.encode(run.broker.metrics(everything=True))))
    return scraped(figures.collect(run.now))
