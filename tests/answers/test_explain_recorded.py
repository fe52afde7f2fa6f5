"""Fates of messages, and reasons for which a subscription gets nothing, as the official clients and Pulsar made them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.answers.explain import life
from streaming.answers.history.debugger import Debugger
from streaming.answers.history.folders import Folders
from streaming.answers.history.timeline import Timeline
from streaming.broker.broker import Broker
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.persistent.delivery import Delivery
from streaming.broker.position import Position
from streaming.traces import RECORDED
from streaming.traces.importer import import_traces


def timeline(trace: str, folder: Path) -> Timeline:
    log = folder / "log.jsonl"
    import_traces([RECORDED / f"{trace}.jsonl"], log)
    return Timeline(log, folder / "timeline", every=500)


def at_the_end(trace: str, folder: Path) -> tuple[Folders, str]:
    """What the trace leads to, and its topic."""
    found = timeline(trace, folder)
    return found.folders(len(found)), f"persistent://public/{trace}/t"


@pytest.mark.parametrize(
    ("trace", "subscription", "position", "outcome", "told"),
    [
        ("nack_shared", "s", Position(1, 0), "acked", "received from"),
        ("admin_peek", "s", Position(1, 1), "acked out of order", "sent to consumer"),
        ("nack_shared", "s", Position(1, 1), "acked", "redelivery 2"),
        (
            "ttl_periodic",
            "b",
            Position(1, 2),
            "expired",
            "expired by message TTL (messageTTL 20 s (namespace))",
        ),
        ("quota_evict_one", "s", Position(1, 0), "evicted", "evicted by backlog"),
        ("admin_skip", "s", Position(1, 7), "skipped", "skipped by skipped 3"),
        ("seek_id", "s", Position(1, 3), "skipped", "unacknowledged again by seek to a message id"),
        ("retention_infinite", "s", Position(1, 0), "acked", "ledger 1 trimmed: retention size"),
    ],
)
def test_fates(
    trace: str, subscription: str, position: Position, outcome: str, told: str, tmp_path: Path
) -> None:
    folders, topic = at_the_end(trace, tmp_path)
    found = life.by_position(folders, topic, position)
    assert found.fate == "stored"
    assert {each.subscription: each.outcome for each in found.subscriptions}[subscription] == outcome
    assert any(told in each.text for each in found.events), [each.text for each in found.events]


def test_a_duplicate_and_a_message_that_was_never_sent(tmp_path: Path) -> None:
    folders, topic = at_the_end("dedup_initial_seq", tmp_path)
    lives = life.by_sequence_id(folders, topic, "p", 11)
    assert lives[-1].fate == "duplicate"
    assert "11 is not above " in lives[-1].text
    assert life.by_sequence_id(folders, topic, "p", 9_999)[-1].fate == "never seen"


def test_a_delayed_message_on_its_way(tmp_path: Path) -> None:
    found = timeline("delayed_basic", tmp_path)
    outcomes = []
    for moment in range(1, len(found) + 1):
        broker = found.folders(moment).broker_of("persistent://public/delayed_basic/t")
        topic = "persistent://public/delayed_basic/t"
        if broker is not None and "s" in broker.topic(topic).subscriptions:
            outcomes.append(broker.entry_state(topic, "s", Position(1, 0)).state)
    changes = [each for n, each in enumerate(outcomes) if outcomes[n - 1 : n] != [each]]
    assert changes[:3] == ["not written", "delayed", "in flight"]


def reasons(trace: str, folder: Path) -> set[str]:
    """The states of all subscriptions at all moments of a trace, and the deciders that held entries back."""
    return {
        reason
        for found in deliveries(trace, folder)
        for reason in (found.state, *(each.decider for each in found.verdicts if each.blocks))
    }


def deliveries(trace: str, folder: Path) -> Iterator[Delivery]:
    found = timeline(trace, folder)
    debugger = Debugger(found)
    for _ in range(len(found)):
        debugger.forth()
        for state in debugger.states():
            if state.partition in {partition for partition, _ in debugger.rows}:
                broker = Broker.decode(state.broker, found.store.reader(state.partition))
                for name in broker.topic_names():
                    if not is_non_persistent(name):
                        for subscription in broker.topic(name).subscriptions:
                            yield broker.delivery(name, subscription)


REASONS = [
    ("ack_holes", "caught up"),
    ("ack_holes", "no consumers"),
    ("ack_not_sent", "in flight"),
    ("delayed_basic", "waiting for a time"),
    ("flow_small_queues", "permits"),
    ("unacked_consumer_limit", "maxUnackedMessagesPerConsumer"),
    ("un_sub_redeliver3", "maxUnackedMessagesPerSubscription"),
    ("ks_draining", "draining hash"),
    ("sub_failover3", "active consumer"),
    ("sub_shared_priority", "priorityLevel"),
    ("uns_rates", "dispatchRate"),
]


@pytest.mark.parametrize(("trace", "reason"), REASONS)
def test_reasons_to_be_stuck(trace: str, reason: str, tmp_path: Path) -> None:
    assert reason in reasons(trace, tmp_path)
