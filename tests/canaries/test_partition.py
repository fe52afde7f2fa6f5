"""Canaries fold what the query folds: their baseline is the query, policies that change nothing make no difference, and it does not matter when
they look."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from streaming.answers.fates import CHANGE_COLUMNS
from streaming.answers.whatif import settling
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.answers.whatif.difference_table import gathered, together
from streaming.canaries.partition import Canary, CanaryPolicy, Kept, Looked, Place, begun, changed, looked
from streaming.jobs.replay import load
from streaming.log.policies import read_policies
from streaming.quality.gate import judge
from tests.answers.test_reactive import as_table
from tests.answers.test_settled import POLICIES
from tests.broker.random_lives import live
from tests.broker.recorded_lives import WITHOUT_PAYLOADS
from tests.canaries.running import Running, batches

pytestmark = pytest.mark.feature("J7")

PLACE = Place(0, 1)


def canary(own: PolicySet, log: pa.Table) -> Canary:
    policies = read_policies(own.source, log, judge, grows=True)
    return Canary(own.name, own.name, 0, [CanaryPolicy.of(each) for each in policies])


def run(running: Running, log: pa.Table, random: Random, most: int = 6) -> None:
    """Fold a log in some micro-batches, with ticks."""
    for part in batches(log, [random.randrange(len(log)) for _ in range(most)] if len(log) else []):
        running.fold(part, running_clock(running, part) + random.choice([0, 1, 700, 40_000]))
        if random.random() < 0.3 and running.state is not None:
            running.fold(part.slice(0, 0), running.state.clock + random.choice([1, 5_000, 90_000]))


def running_clock(running: Running, part: pa.Table) -> int:
    times = [each for each in part["timestamp"].to_pylist() if each < 1 << 50]
    now: int = max([0 if running.state is None else running.state.clock, *times])
    return now


def look(running: Running, kept: Kept | None, canaries: list[Canary], after: int) -> Looked:
    found = looked(PLACE, kept, canaries, running.visits(after))
    assert found is not None
    return found


def of(found: Looked, settled: list[pa.Table]) -> list[dict[str, Any]]:
    """All differences."""
    rows: list[dict[str, Any]] = together(
        [gathered(found.compared.differences, [*settled, found.open])]
    ).to_pylist()
    return rows


def loaded(theme: str, seed: int) -> pa.Table:
    return load(as_table(live(theme, seed).log), partitions=1).records


NOTHING = Canary("nothing", "nothing", 0, [])


class Traffic:
    """A life, the first half of which a query folds before canaries begin, unless they begin with it."""

    def __init__(self, theme: str, seed: int, folder: Path) -> None:
        self.random, self.log = Random(f"{theme} {seed}"), loaded(theme, seed)
        self.canaries = [canary(POLICIES[seed % 4], self.log), NOTHING]
        self.query = Running(folder)
        self.before = len(self.log) // 2 if seed % 3 else 0
        if self.before:
            run(self.query, self.log.slice(0, self.before), self.random)
        self.begins = self.query.batch
        state = self.query.state
        self.begun = None if state is None else begun(PLACE, state, self.query.store, self.canaries)
        run(self.query, self.log.slice(self.before), self.random)


@pytest.mark.parametrize(("theme", "seed"), WITHOUT_PAYLOADS)
def test_canaries_fold_what_the_query_folds(theme: str, seed: int, tmp_path: Path) -> None:
    """Their baseline is its state, and policies that change nothing make no difference."""
    traffic = Traffic(theme, seed, tmp_path)
    found = look(traffic.query, traffic.begun, traffic.canaries, traffic.begins)
    assert traffic.query.state == found.state
    summary = found.compared.summary.to_pylist()
    by_name = {
        name: [dict(each, policies=None) for each in summary if each["policies"] == name]
        for name in ("baseline", "nothing")
    }
    for before, after in zip(*by_name.values(), strict=True):
        assert not any(after[column] for column in CHANGE_COLUMNS.values())
        assert before == after | {
            column: before[column] for column in ("unchanged", *CHANGE_COLUMNS.values())
        }


def test_a_configuration_alone(tmp_path: Path) -> None:
    """It is the first record of each ingress partition, and of some the only one."""
    running, log = Running(tmp_path), loaded("policies", 4)
    running.fold(log.slice(0, 1))
    found = look(running, None, [canary(POLICIES[0], log), NOTHING], -1)
    assert running.state == found.state


@pytest.mark.parametrize(("theme", "seed"), WITHOUT_PAYLOADS)
def test_it_does_not_matter_when_canaries_look(theme: str, seed: int, tmp_path: Path) -> None:
    """But that they forget what is deleted and no policies changed anything of."""
    traffic = Traffic(theme, seed, tmp_path)
    forgotten: set[tuple[str, str | None]] = set()
    with mock.patch.object(settling, "AT_LEAST", 1):
        once = look(traffic.query, traffic.begun, traffic.canaries, traffic.begins)
        kept, settled = traffic.begun, list[pa.Table]()
        for visit in traffic.query.visits(traffic.begins):
            again = looked(PLACE, kept, traffic.canaries, [visit])
            if again is not None:
                kept, found = again.kept, again
                forgotten |= {*kept.gone}
                settled.append(again.settled)
    assert found.state == once.state
    assert of(found, settled) == of(once, [once.settled])
    known = [
        [
            row
            for row in each.compared.summary.to_pylist()
            if not forgotten & {(row["topic"], row["subscription"]), (row["topic"], None)}
        ]
        for each in (found, once)
    ]
    assert known[0] == known[1]


# A mirror's topics follow their source until the first MIRROR here, and not at all in whatif.
@pytest.mark.parametrize(("theme", "seed"), [each for each in WITHOUT_PAYLOADS if each[0] != "mirrors"])
def test_from_the_first_record_on_they_answer_as_whatif(theme: str, seed: int, tmp_path: Path) -> None:
    log, running = loaded(theme, seed), Running(tmp_path)
    own = POLICIES[seed % 4]
    for part in batches(log, [len(log) // 3, len(log) // 2]):
        running.fold(part)
    expected = whatif(log, [own], partitions=1)
    found = look(running, None, [canary(own, log)], -1)
    assert of(found, [found.settled]) == expected.differences.to_pylist()


@pytest.mark.parametrize("seed", range(12))
def test_others_come_and_go(seed: int, tmp_path: Path) -> None:
    """One that stays answers the same; one that comes begins as the baseline is."""
    traffic = Traffic("all", seed, tmp_path)
    first = canary(POLICIES[seed % 4], traffic.log)
    visits = traffic.query.visits(traffic.begins)
    expected = look(traffic.query, traffic.begun, traffic.canaries, traffic.begins)
    middle = looked(PLACE, traffic.begun, traffic.canaries, visits[: len(visits) // 2])
    if middle is None:
        return
    others = [canary(POLICIES[(seed + 1) % 4], traffic.log), NOTHING, first]
    kept = changed(PLACE, middle.kept, traffic.canaries, others)
    found = looked(PLACE, kept, others, visits[len(visits) // 2 :])
    assert found is not None
    assert found.state == expected.state
    own = [each for each in of(expected, [expected.settled]) if each["policies"] == first.name]
    assert [
        each for each in of(found, [middle.settled, found.settled]) if each["policies"] == first.name
    ] == own
