"""What what-if observes of a message agrees with the state, and with what `diff` concludes from output rows."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from streaming.answers.fates import LOST
from streaming.answers.whatif.diff import _observed, _Side
from streaming.answers.whatif.differences import ALL_FATES, Fates
from streaming.answers.whatif.observed import Column, Move, Observer, OfSubscription
from streaming.answers.whatif.side_by_side import fold_side_by_side
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position
from streaming.jobs.replay import load, replay_in_process
from streaming.log.positions import WrittenEntries
from tests.answers.test_reactive import as_table
from tests.answers.test_whatif import Record, T, publish, table
from tests.broker.random_lives import live
from tests.broker.recorded_lives import WITHOUT_PAYLOADS


def fates(observer: Observer) -> dict[tuple[str, str, Position], str]:
    """What became of each entry, by topic, subscription and position."""
    found: dict[tuple[str, str, Position], str] = {}
    for topic, of in observer.topics.items():
        ledgers, entries = of.written.positions_of(np.arange(len(of.messages)))
        for name in of.subscriptions:
            for fate, ledger, entry in zip(Fates(observer, of, name).fate, ledgers, entries, strict=True):
                if ledger >= 0:
                    found[topic, name, Position(int(ledger), int(entry))] = ALL_FATES[fate]
    return found


@pytest.mark.parametrize(("theme", "seed"), WITHOUT_PAYLOADS)
def test_a_message_waits_if_it_is_in_the_backlog(theme: str, seed: int) -> None:
    (observer,) = fold_side_by_side(as_table(live(theme, seed).log), 0, []).observers
    topics = observer.broker.topics()
    for (name, subscription, position), fate in fates(observer).items():
        topic = topics.get(name)
        waits = (
            isinstance(topic, PersistentTopic)
            and subscription in topic.subscriptions
            and position.ledger in topic.ledger.ledgers
            and not topic.cursors[subscription].has_acked(position)
        )
        assert (fate == "waiting") == waits, (name, subscription, position, fate)


@pytest.mark.parametrize(("theme", "seed"), WITHOUT_PAYLOADS)
def test_a_move_counts_what_leaves_the_backlog(
    theme: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what comes back, whatever Pulsar's own counter says after a seek back over acks."""
    move = OfSubscription.move

    def judged(self: OfSubscription, by: Move, clock: int, rule: int, written: WrittenEntries, count: int) -> None:  # fmt: skip
        self.settle(written)
        before = self.waiting(0, count)
        move(self, by, clock, rule, written, count)
        after = self.waiting(0, count)
        stored = written.positions_of(np.arange(count))[0] >= 0
        left, back = int((before & ~after & stored).sum()), int((after & ~before & stored).sum())
        assert by.entries == (left if by.after > by.before else -back), by

    monkeypatch.setattr(OfSubscription, "move", judged)
    fold_side_by_side(as_table(live(theme, seed).log), 0, [])


@pytest.mark.parametrize(("theme", "seed"), WITHOUT_PAYLOADS)
def test_the_output_rows_say_the_same_as_far_as_they_can(theme: str, seed: int, tmp_path: Path) -> None:
    """They have no acks: what a rule took, or a deleted subscription had, may have been acked. Of a reader, they don't say where it began."""
    records = as_table(live(theme, seed).log)
    (observer,) = fold_side_by_side(records, 0, []).observers
    replay_in_process(records, tmp_path / "out")
    side = _Side.of(tmp_path / "out")
    by_rows, _ = _observed(0, (side, side)).observers
    expected, found = fates(observer), fates(by_rows)
    assert found.keys() == expected.keys()
    for key, fate in found.items():
        if key[1] != "reader" and fate not in ("unknown", expected[key]):
            assert {fate, expected[key]} <= {"acked", "subscription deleted", *LOST}, (
                key,
                fate,
                expected[key],
            )
            assert "acked" in (fate, expected[key]), (key, fate, expected[key])


def readers(count: int, messages: int) -> list[Record]:
    """Readers that come one after the other among the messages of a topic, and get one each."""
    records: list[Record] = []
    for number in range(messages):
        here = number % (messages // count) == 0
        connection, time = f"c{number}", number * 10
        if here:
            subscribe = {
                "command": "SUBSCRIBE", "connection": connection, "consumer_id": 1, "request_id": 1,
                "subscription": f"reader-{number}", "subType": "Exclusive", "durable": False, "initialPosition": "Latest",
            }  # fmt: skip
            flow = {"command": "FLOW", "connection": connection, "consumer_id": 1, "messagePermits": 10}
            records += [(time, T, subscribe), (time, T, flow)]
        records.append(publish(time + 1, number))
        if here:
            records.append((time + 2, None, {"command": "CONNECTION_LOST", "connection": connection}))
    return records


def room(observers: Iterable[Observer]) -> int:
    """How many integers the columns of all subscriptions have room for."""
    return sum(
        len(column)
        for observer in observers
        for of in observer.topics.values()
        for subscription in of.subscriptions.values()
        for column in vars(subscription).values()
        if isinstance(column, Column)
    )


def test_a_reader_costs_what_it_gets_and_not_what_its_topic_has(tmp_path: Path) -> None:
    count, messages = 40, 800
    log = table(readers(count, messages))
    records = load(log, partitions=1).records
    folded = fold_side_by_side(records, 0, []).observers
    replay_in_process(log, tmp_path / "out", partitions=1)
    side = _Side.of(tmp_path / "out")
    by_rows = _observed(0, (side, side)).observers
    for observers in (folded, by_rows):
        assert all(len(each.topics[T].subscriptions) == count for each in observers)
        assert room(observers) <= len(observers) * 8 * (count + messages)
    assert sum(fate == "subscription deleted" for fate in fates(folded[0]).values()) == count
