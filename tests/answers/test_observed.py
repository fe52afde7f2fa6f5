"""What what-if and diff observe agrees with the state: a message waits for a subscription if it is in its backlog, and only then."""

from pathlib import Path

import numpy as np
import pytest

from streaming.answers.whatif.compare import _FATES
from streaming.answers.whatif.compare import _Side as Fates
from streaming.answers.whatif.diff import _observed, _Side
from streaming.answers.whatif.observed import Observer
from streaming.answers.whatif.side_by_side import fold_side_by_side
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position
from streaming.jobs.replay import replay_in_process
from tests.answers.test_reactive import as_table
from tests.broker.random_lives import live
from tests.broker.recorded_lives import NAMES


def _judge(observer: Observer, broker: Broker, *others: str) -> None:
    """`others`: what may be said of a message that is in the backlog, if not that it waits."""
    for name, of in observer.topics.items():
        topic = broker.topics().get(name)
        for subscription in of.subscriptions:
            fates = Fates(observer, of, subscription).fate
            positions = zip(*of.written.positions_of(np.arange(len(fates))), strict=True)
            for fate, (ledger, entry) in zip(fates.tolist(), positions, strict=True):
                position = Position(int(ledger), int(entry))
                waits = (
                    isinstance(topic, PersistentTopic)
                    and subscription in topic.subscriptions
                    and position.ledger in topic.ledger.ledgers
                    and not topic.cursors[subscription].has_acked(position)
                )
                assert _FATES[fate] in {"waiting", *others} if waits else _FATES[fate] != "waiting", (
                    name,
                    subscription,
                    position,
                )


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("theme", "seed"), NAMES)
def test_a_message_waits_if_it_is_in_the_backlog(theme: str, seed: int) -> None:
    (observer,) = fold_side_by_side(as_table(live(theme, seed).log), 0, []).observers
    _judge(observer, observer.broker)


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("theme", "seed"), NAMES)
def test_so_do_the_output_rows_as_far_as_they_can(theme: str, seed: int, tmp_path: Path) -> None:
    replay_in_process(as_table(live(theme, seed).log), tmp_path / "out")
    side = _Side.of(tmp_path / "out")
    observer, _ = _observed(0, (side, side)).observers
    _judge(observer, Broker.decode(side.states[0].broker, NoEntries()), "unknown", "not for it")
