"""Metrics of a shadow topic tell what its MIRROR_DRIFT rows tell, and when its source was last seen."""

from collections.abc import Iterable
from random import Random

import pytest

from schemas import metrics
from schemas.commands import to_json
from schemas.effects import Effect, MirrorDrift, Row
from schemas.metrics import PartitionMetrics
from streaming.metrics.topics import OTHER, TopicFigures
from tests.broker.kit import TOPIC, Run, of
from tests.broker.test_shadow_topics import shadow
from tests.metrics.test_topics import Values, scraped
from tests.mirror.test_observation import Pair, act

LABELS = ("standalone", "public/default", TOPIC)
SEEN = "magnetar_mirror_source_seen_timestamp_seconds"


def shown(measured: PartitionMetrics, label_sets: int = 9) -> Values:
    """The metrics of drift."""
    figures = TopicFigures()
    figures.update(metrics.decode(metrics.encode(measured)))
    found = scraped(figures.collect(measured.clock, label_sets))
    return {key: value for key, value in found.items() if key[0].startswith("magnetar_mirror_")}


def mark_delete(row: MirrorDrift) -> int:
    return 0 if row.fields is None else row.fields.mark_delete


def of_rows(rows: Iterable[MirrorDrift]) -> Values:
    """What rows tell, the last one for each topic and subscription."""
    found: Values = {}
    for row in rows:
        if row.subscription is None:
            found["magnetar_mirror_drift_storage_entries", *LABELS] = row.entries
            found["magnetar_mirror_drift_storage_bytes", *LABELS] = row.size
        else:
            found["magnetar_mirror_drift_backlog_entries", *LABELS, row.subscription] = row.entries
            found["magnetar_mirror_drift_mark_delete_entries", *LABELS, row.subscription] = mark_delete(row)
            found["magnetar_mirror_drift_unacked_messages", *LABELS, row.subscription] = row.messages
    return found


@pytest.mark.feature("I2", "K3")
@pytest.mark.parametrize("seed", range(8))
def test_the_drift_is_that_of_the_rows(seed: int) -> None:
    """Also from a state that was stored, of the topics that a batch touched or of all."""
    draw, pair, connected, rows = Random(seed), Pair(), set[str](), list[MirrorDrift]()
    pair.on_cluster(pair.cluster.subscribe("z"))
    for _ in range(5):
        pair.publish()
    pair.look()
    differed = 0
    for _ in range(40):
        act(pair, draw, connected)
        if draw.random() < 0.3 and pair.twin.topic.subscriptions:
            name = draw.choice([*pair.twin.topic.subscriptions, "z"])
            pair.see(pair.twin.admin("POST", f"/subscription/{name}/skip/1"))
        effects: list[Effect] = pair.look()
        rows += of(effects, MirrorDrift)
        found = shown(pair.twin.broker.metrics(everything=False))
        assert found.pop((SEEN, *LABELS)) == pair.twin.now / 1000
        there = {name for name, each in pair.twin.topic.subscriptions.items() if each.durable}
        assert {key[-1] for key in found if key[0].endswith("_backlog_entries")} <= there
        told = {key: value for key, value in of_rows(rows).items() if key[-1] in {*there, TOPIC}}
        assert {key: value for key, value in found.items() if value} == {
            key: value for key, value in told.items() if value
        }
        differed += any(told.values())
        if draw.random() < 0.3:
            pair.cut()
            again = shown(pair.twin.broker.metrics(everything=True))
            assert again == found | {(SEEN, *LABELS): pair.twin.now / 1000}
    assert differed


def test_the_cause_is_that_of_the_row() -> None:
    pair = Pair()
    pair.on_cluster(pair.cluster.subscribe("s"))
    pair.publish()
    pair.look()
    pair.see(pair.twin.admin("POST", "/subscription/s/skip/1"))
    (row,) = of(pair.look(), MirrorDrift)
    (topic,) = pair.twin.broker.metrics(everything=True).topics
    (subscription,) = topic.subscriptions
    assert subscription.drift == metrics.DriftMetrics(
        row.entries, mark_delete(row), row.messages, row.size, row.cause
    )
    assert row.entries == -1
    assert topic.drift is not None
    assert topic.drift.cause == "equal to the source"


def test_the_cause_stays_as_long_as_the_drift_does() -> None:
    """It is in the state: a partition that goes on from there knows it."""
    pair = Pair()
    for name in "st":
        pair.on_cluster(pair.cluster.subscribe(name))
    pair.publish()
    pair.publish()
    pair.look()

    def cause(name: str) -> str | None:
        known = TopicFigures()
        known.update(metrics.decode(metrics.encode(pair.twin.broker.metrics(everything=True))))
        found = known.topic(TOPIC)
        assert found is not None
        return next(
            each.drift.cause for each in found.topic.subscriptions if each.name == name and each.drift
        )

    pair.see(pair.twin.admin("POST", "/subscription/s/skip/1"))
    (row,) = of(pair.look(), MirrorDrift)
    assert cause("s") == row.cause != "equal to the source"
    pair.cut()
    pair.look()
    assert [cause(name) for name in "st"] == [row.cause, "equal to the source"]
    pair.see(pair.twin.admin("POST", "/subscription/s/skip/1"))
    (row,) = of(pair.look(says={"late": 5000}), MirrorDrift)
    assert cause("s") == row.cause
    assert row.cause.startswith("missed interval: ")


def test_a_topic_that_is_no_shadow_topic_has_none() -> None:
    run = Run()
    run.subscribe("s")
    run.publish(0)
    assert shown(run.broker.metrics(everything=True)) == {}


def test_a_shadow_topic_whose_source_nobody_looked_at() -> None:
    assert shown(shadow().broker.metrics(everything=True)) == {
        (SEEN, *LABELS): 0,
        ("magnetar_mirror_drift_storage_entries", *LABELS): 0,
        ("magnetar_mirror_drift_storage_bytes", *LABELS): 0,
    }


def test_a_query_that_is_late_does_not_make_the_look_later() -> None:
    """Its micro-batches end with the time of now, and the records in them may be hours old."""
    pair = Pair()
    pair.publish()
    pair.look()
    seen = pair.twin.now / 1000
    pair.twin.broker.tick(pair.twin.now + 3_600_000)
    assert pair.before is not None
    pair.twin.broker.apply(999, pair.twin.now, TOPIC, pair.before.record, to_json(pair.before.record))
    measured = pair.twin.broker.metrics(everything=True)
    assert measured.clock == pair.twin.now + 3_600_000
    assert shown(measured)[SEEN, *LABELS] == seen
    rows: list[Row] = pair.twin.broker.take()
    assert not of([row.effect for row in rows], MirrorDrift)


def test_sums_of_what_has_no_label_set_of_its_own() -> None:
    pair = Pair()
    for name in "ab":
        pair.on_cluster(pair.cluster.subscribe(name))
    pair.publish()
    pair.look()
    for name in "ab":
        pair.see(pair.twin.admin("POST", f"/subscription/{name}/skip/1"))
    pair.look()
    found = shown(pair.twin.broker.metrics(everything=True), label_sets=1)
    backlogs = {
        key[1:]: value for key, value in found.items() if key[0] == "magnetar_mirror_drift_backlog_entries"
    }
    assert backlogs == {(*LABELS, "a"): -1, ("standalone", OTHER, OTHER, OTHER): -1}
    none = shown(pair.twin.broker.metrics(everything=True), label_sets=0)
    assert none["magnetar_mirror_drift_backlog_entries", "standalone", OTHER, OTHER, OTHER] == -2
    assert SEEN not in {name for name, *_ in none}
