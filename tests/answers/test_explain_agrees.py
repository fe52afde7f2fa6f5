"""What explain says of a message agrees with the state, where it waits if it is in the backlog, and only then; and with what-if."""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from schemas.effects import SendReceipt
from streaming.answers.explain.life import by_position
from streaming.answers.history.folders import Folders
from streaming.answers.whatif.differences import ALL_FATES, Fates
from streaming.answers.whatif.side_by_side import fold_side_by_side
from streaming.broker.names import COMPACTION_CURSOR
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.position import Position
from streaming.jobs.replay import replay_in_process
from tests.answers.test_reactive import as_table
from tests.broker.random_lives import live
from tests.broker.recorded_lives import NAMES, WITHOUT_PAYLOADS

MOST = 6
"""Messages of a topic that are asked for: so many of the first, and of the last."""
WAITING = {"waiting", "in flight", "delayed"}
SAME: dict[str, set[str]] = {
    **{each: {"waiting"} for each in WAITING},
    "acked": {"acked"},
    "acked out of order": {"acked"},
    "expired": {"expired", "acked"},
    "evicted": {"evicted", "acked"},
    "not for it": {"not for it"},
    "subscription deleted": {"subscription deleted", "acked"},
}
"""By what explain says, what what-if may say: it sees acks, and explain does not. A subscription that begins behind messages (a rollback, a
mirror) skips them for explain alone."""


@pytest.mark.parametrize(("theme", "seed"), NAMES)
def test_a_message_waits_if_it_is_in_the_backlog(theme: str, seed: int, tmp_path: Path) -> None:
    records = as_table(live(theme, seed).log)
    replay_in_process(records, tmp_path / "out")
    folders = Folders.of(tmp_path / "out")
    stored: dict[str, list[Position]] = {}
    for row in folders.rows(SendReceipt, pc.field("ledger_id") > 0, ["topic", "ledger_id", "entry_id"]):
        stored.setdefault(row["topic"], []).append(Position(row["ledger_id"], row["entry_id"]))
    for topic, positions in stored.items():
        broker = None if is_non_persistent(topic) else folders.broker_of(topic)
        if broker is None or topic not in broker.topics():
            continue
        backlogs = {
            name: {each.position for each in broker.peek(topic, name, "backlog", 9999)}
            for name in broker.topic(topic).subscriptions
            if name != COMPACTION_CURSOR
        }
        for position in dict.fromkeys([*positions[:MOST], *positions[-MOST:]]):
            found = by_position(folders, topic, position)
            waits = {each.subscription for each in found.subscriptions if each.outcome in WAITING}
            assert waits == {name for name, of in backlogs.items() if str(position) in of}, found


@pytest.mark.parametrize(("theme", "seed"), [each for each in WITHOUT_PAYLOADS if each[0] != "mirrors"])
def test_what_if_says_the_same(theme: str, seed: int, tmp_path: Path) -> None:
    records = as_table(live(theme, seed).log)
    replay_in_process(records, tmp_path / "out")
    folders = Folders.of(tmp_path / "out")
    (observer,) = fold_side_by_side(records, 0, []).observers
    for topic, of in observer.topics.items():
        ledgers, entries = of.written.positions_of(np.arange(len(of.messages)))
        stored = np.flatnonzero(ledgers >= 0).tolist()
        fates = {name: Fates(observer, of, name).fate for name in of.subscriptions}
        for number in dict.fromkeys([*stored[:MOST], *stored[-MOST:]]):
            found = by_position(folders, topic, Position(int(ledgers[number]), int(entries[number])))
            for each in found.subscriptions:
                if (
                    each.subscription != "reader" and each.outcome in SAME
                ):  # a reader's rows don't say where it began
                    assert ALL_FATES[fates[each.subscription][number]] in SAME[each.outcome], found
