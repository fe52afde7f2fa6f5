"""Merging segments over many batches, held against a dict; and with a crash anywhere."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.effects import Effect
from sinks import ledger_store, segments
from sinks.ledger_store import LedgerStore
from sinks.storage import Storage
from tests.examples import examples
from tests.sinks.helpers import TOPIC, Killed, Mortal, closed, deleted, output, payload_of, receipts, tree

Position = tuple[str, int, int]


@dataclass
class Topic:
    name: str
    ledger_id: int = 1
    next_entry: int = 0
    closed: dict[int, int] = field(default_factory=dict)  # ledger: entries

    def step(self, action: str, count: int) -> list[Effect]:
        if action == "publish":
            effects = receipts(self.ledger_id, self.next_entry, self.next_entry + count - 1, topic=self.name)
            self.next_entry += count
            return effects
        if action == "close":
            self.closed[self.ledger_id] = self.next_entry
            effects = [closed(self.ledger_id, self.next_entry, topic=self.name)]
            self.ledger_id, self.next_entry = self.ledger_id + 1, 0
            return effects
        if not self.closed:
            return []
        oldest = min(self.closed)
        return [deleted(oldest, self.closed.pop(oldest), topic=self.name)]

    def positions(self) -> set[Position]:
        ledgers = {**self.closed, self.ledger_id: self.next_entry}
        return {(self.name, ledger, e) for ledger, entries in ledgers.items() for e in range(entries)}


def stored(store: LedgerStore) -> set[Position]:
    rows = store.scan()
    positions = list(zip(*(rows[n].to_pylist() for n in ("topic", "ledger_id", "entry_id")), strict=True))
    assert positions == sorted(set(positions))
    assert rows["payload"].to_pylist() == [payload_of(*p) for p in positions]
    return set(positions)


def check_readable(store: LedgerStore, positions: set[Position], partition: int) -> None:
    reader = store.reader(partition)
    for (topic, ledger_id), entries in Counter(p[:2] for p in positions).items():
        found = reader.payloads(topic, ledger_id, 0, entries - 1)
        assert found == [payload_of(topic, ledger_id, e) for e in range(entries)]


def levels(store_url: str, partition: int) -> Counter[int]:
    live, covered = segments.listed(Storage(store_url), partition)
    assert len(covered) <= 2 * segments.FAN_IN
    assert [s.level for s in live] == sorted((s.level for s in live), reverse=True)
    for older, newer in pairwise(live):
        assert older.last < newer.first
    return Counter(s.level for s in live)


@pytest.mark.parametrize("partition", [0, 5])
def test_hundreds_of_batches(tmp_path: Path, partition: int) -> None:
    chance = random.Random(partition)
    url = str(tmp_path)
    store = LedgerStore(url)
    topics = [Topic(f"topic {i}") for i in range(12)]
    batch_id = 0
    for number in range(700):
        batch_id += chance.choice([1, 1, 1, 3])
        store.begin(batch_id)
        effects: list[Effect] = []
        for topic in chance.sample(topics, 2):
            effects += topic.step("publish", chance.randint(1, 4))
            if chance.random() < 0.15 and topic is not topics[0]:  # its ledger stays open
                effects += topic.step("close", 0)
            if chance.random() < 0.12:
                effects += topic.step("delete", 0)
        store.write(batch_id, partition, output(effects, partition=partition, offset=batch_id * 100))
        if number % 50 == 49:
            positions = set().union(*(t.positions() for t in topics))
            assert stored(store) == positions
            check_readable(store, positions, partition)
        if number % 10 == 9:
            assert max(levels(url, partition).values()) <= segments.FAN_IN + partition
    assert max(levels(url, partition)) == 2
    # Entries of sealed and deleted ledgers leave the merged segments too.
    live = segments.opened(Storage(url), segments.listed(Storage(url), partition)[0])
    merged = [file for file in live if not file.path.split("/")[-1].startswith("0-")]
    assert sum(f.num_rows for f in merged) < 2 * sum(t.next_entry for t in topics) + 50


def test_thousands_of_ledgers_that_close_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a server starts again. Each batch seals a bounded number, and the largest first."""
    monkeypatch.setattr(ledger_store, "SEALED_AT_ONCE", 3)
    store = LedgerStore(str(tmp_path))
    topics = [Topic(f"topic {i}") for i in range(10)]
    steps: list[tuple[str, Callable[[int], int]]] = [
        ("publish", lambda i: i + 1),
        ("close", lambda _: 0),
        *[("publish", lambda _: 1)] * 3,
    ]
    sealed = []
    for batch_id, (action, count) in enumerate(steps):
        store.begin(batch_id)
        effects = [effect for i, topic in enumerate(topics) for effect in topic.step(action, count(i))]
        store.write(batch_id, 0, output(effects, offset=batch_id * 100))
        check_readable(store, set().union(*(t.positions() for t in topics)), 0)
        sealed.append([row["topic"][-1] for row in store.ledgers().to_pylist() if row["sealed"]])
    assert sealed == [[], list("789"), list("456789"), list("123456789"), list("0123456789")]


STEP = st.tuples(
    st.integers(0, 3),
    st.sampled_from(["publish", "publish", "publish", "close", "delete"]),
    st.integers(1, 3),
)
BATCH = st.tuples(st.lists(STEP, max_size=4), st.integers(1, 3), st.none() | st.integers(0, 30))


@pytest.mark.feature("J2")
@settings(max_examples=examples(25))
@given(st.lists(BATCH, min_size=1, max_size=60), st.sampled_from([1, 2, ledger_store.SEALED_AT_ONCE]))
def test_random_batches_with_crashes(
    batches: list[tuple[list[tuple[int, str, int]], int, int | None]], at_once: int
) -> None:
    """What is stored after any number of crashed attempts is what a dict says; every attempt reads the same."""
    with TemporaryDirectory() as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "FAN_IN", 3)  # many merges and levels in few batches
        patch.setattr(ledger_store, "SEALED_AT_ONCE", at_once)
        topics = [Topic(f"topic {i}") for i in range(4)]
        store = LedgerStore(url)
        batch_id = 0
        for steps, gap, lives in batches:
            batch_id += gap
            committed = set().union(*(t.positions() for t in topics))
            effects = [
                effect for topic, action, count in steps for effect in topics[topic].step(action, count)
            ]
            rows = output(effects, partition=1, offset=batch_id * 100)
            if lives is not None:
                mortal = LedgerStore(url, Mortal(lives))
                try:
                    mortal.begin(batch_id)
                    mortal.write(batch_id, 1, rows)
                except Killed:
                    pass
                store = LedgerStore(url)
            store.begin(batch_id)
            check_readable(store, committed, 1)
            store.write(batch_id, 1, rows)
            check_readable(store, committed, 1)
            assert stored(store) == set().union(*(t.positions() for t in topics))
            assert max(levels(url, 1).values(), default=0) <= 3 + 1
        for _ in range(sum(len(topic.closed) for topic in topics)):
            batch_id += 1
            store.begin(batch_id)
            store.write(batch_id, 1, output(topics[0].step("publish", 1), partition=1, offset=batch_id * 100))
        live = segments.opened(Storage(url), segments.listed(Storage(url), 1)[0])
        assert not segments.unsealed(live)
        closed_ledgers = {
            (topic.name, ledger) for topic in topics for ledger, entries in topic.closed.items() if entries
        }
        assert {
            (row["topic"], row["ledger_id"]) for row in store.ledgers().to_pylist() if row["sealed"]
        } == closed_ledgers
        assert stored(store) == set().union(*(t.positions() for t in topics))


@pytest.mark.feature("J2")
def test_a_crash_while_merging(tmp_path: Path) -> None:
    def write(store: LedgerStore, batch_id: int) -> None:
        store.begin(batch_id)
        store.write(batch_id, 0, output(receipts(1, batch_id * 5, batch_id * 5 + 4), offset=batch_id * 100))

    lives = 0
    while True:
        url = str(tmp_path / str(lives))
        for batch_id in range(segments.FAN_IN):
            write(LedgerStore(url), batch_id)
        try:
            write(LedgerStore(url, Mortal(lives)), segments.FAN_IN)
        except Killed:
            lives += 1
        else:
            break
        store = LedgerStore(url)
        check_readable(store, {(TOPIC, 1, e) for e in range(80)}, 0)
        write(store, segments.FAN_IN)
        write(store, segments.FAN_IN + 1)
        assert levels(url, 0) == {1: 1, 0: 2}
        assert store.scan()["entry_id"].to_pylist() == list(range(90))
        assert len(tree(Path(url))) == 3
    assert lives > 7
