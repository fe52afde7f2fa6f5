"""What what-if observes of a message agrees with the state, and with what `diff` concludes from output rows."""

from pathlib import Path

import numpy as np
import pytest

from streaming.answers.fates import LOST
from streaming.answers.whatif.compare import _FATES
from streaming.answers.whatif.compare import _Side as Fates
from streaming.answers.whatif.diff import _observed, _Side
from streaming.answers.whatif.observed import Observer
from streaming.answers.whatif.side_by_side import fold_side_by_side
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position
from streaming.jobs.replay import replay_in_process
from tests.answers.test_reactive import as_table
from tests.broker.random_lives import live
from tests.broker.recorded_lives import NAMES


def fates(observer: Observer) -> dict[tuple[str, str, Position], str]:
    """What became of each entry, by topic, subscription and position."""
    found: dict[tuple[str, str, Position], str] = {}
    for topic, of in observer.topics.items():
        ledgers, entries = of.written.positions_of(np.arange(len(of.messages)))
        for name in of.subscriptions:
            for fate, ledger, entry in zip(Fates(observer, of, name).fate, ledgers, entries, strict=True):
                if ledger >= 0:
                    found[topic, name, Position(int(ledger), int(entry))] = _FATES[fate]
    return found


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("theme", "seed"), NAMES)
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


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("theme", "seed"), NAMES)
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
