"""How long writes took, and what was read from the store, by topic."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from schemas import metrics
from schemas.commands import AnyCommand, Flow, Publish, Subscribe, to_json
from streaming.broker.broker import Broker
from streaming.fold.columns import PartitionFold
from streaming.metrics.storage_use import WRITES, StorageUse
from streaming.metrics.topics import BrokerMetrics, TopicFigures, stored_since
from streaming.server.clock import HeldClock
from streaming.server.embedded import EmbeddedEngine
from tests.broker.kit import START, TOPIC, Run
from tests.fuzz import folding
from tests.fuzz.cases import Sent
from tests.metrics.test_topics import MINUTE, Values, scraped

LABELS = ("standalone", "public/default", TOPIC)
PREFIX = "pulsar_storage_write_latency"


def latencies(found: Values) -> dict[str, float]:
    """Those of the topic that are not 0, by the ends of their names."""
    return {
        name.removeprefix(f"{PREFIX}_"): value
        for (name, *labels), value in found.items()
        if name.startswith(PREFIX) and tuple(labels) == LABELS and value
    }


def test_each_entry_counts_in_the_bucket_of_its_write() -> None:
    use = StorageUse()
    for milliseconds in (0.5, 0.6, 5, 7, 20, 50, 100, 200, 1000, 1001):
        use.wrote(TOPIC, 2, milliseconds / 1000, 3)
    found = use.values(TOPIC, 4 * MINUTE, MINUTE)
    buckets = [found[name] for name in WRITES][:10]
    assert buckets == [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    assert found[f"{PREFIX}_count"] == 20
    assert found[f"{PREFIX}_sum"] == 2 * 2_384_100
    assert "pulsar_storage_write_latency_count" not in StorageUse(writes=False).values(TOPIC, 0, MINUTE)


@pytest.mark.parametrize(("at", "entries"), [(2, 0), (3, 0), (4, 1), (5, 0), (9, 0)])
def test_what_is_shown_is_the_last_whole_interval(at: int, entries: int) -> None:
    use = StorageUse()
    use.wrote(TOPIC, 1, 0.001, 3)
    use.read(TOPIC, 30, 3)
    for _ in range(2):
        found = use.values(TOPIC, at * MINUTE, MINUTE)
        assert found[f"{PREFIX}_le_1"] == found[f"{PREFIX}_count"] == entries
        assert found["pulsar_storage_read_rate"] == entries / 2
        use.read("another", 1, 4)  # the interval after it has begun


def test_topics_that_write_no_more_are_forgotten() -> None:
    use = StorageUse()
    for interval in range(10):
        use.wrote(f"t{interval}", 1, 0.001, interval)
    assert len(use._current) + len(use._last) == 2


def test_a_query_times_the_writes_of_micro_batches() -> None:
    """As many entries as their sizes count, each as long as the write of its partition in its micro-batch."""
    run, figures = Run(now=START - START % MINUTE), TopicFigures()
    run.subscribe("s")
    run.broker.take()
    sequence_id = 0
    for seconds, publishes in ((0.004, 3), (0.3, 2), (0.0001, 0), (5.0, 1)):
        state = run.broker.encode()
        run.broker = Broker.decode(state, run.broker._ctx.entries._reader)
        for _ in range(publishes):
            run.publish(sequence_id)
            sequence_id += 1
        measured = run.broker.metrics(everything=False)
        measured.write_seconds = seconds
        figures.update(metrics.decode(metrics.encode(measured)))
    assert latencies(scraped(figures.collect(run.now))) == {}
    found = scraped(figures.collect(run.now + MINUTE))
    assert latencies(found) == {
        "le_5": 3, "le_1000": 2, "overflow": 1, "count": 6, "sum": 5_612_000,
    }  # fmt: skip
    assert found["pulsar_entry_size_count", *LABELS] == 6
    assert latencies(scraped(figures.collect(run.now + 2 * MINUTE))) == {}


def test_entries_count_once_whatever_interval_they_are_measured_in() -> None:
    run = Run(now=START - START % MINUTE)
    seen, before = [], None
    for number, wait in enumerate((0, 10_000, 50_000, 10_000, 5 * MINUTE)):
        run.now += wait
        run.publish(2 * number)
        run.publish(2 * number + 1)
        (now,) = metrics.decode(metrics.encode(run.broker.metrics(everything=True))).topics
        seen.append(stored_since(before, now, MINUTE))
        before = now
    assert seen == [2, 2, 2, 2, 2]
    run.unload()
    run.publish(99, producer="another")
    (now,) = run.broker.metrics(everything=True).topics
    assert stored_since(before, now, MINUTE) == 1


@pytest.mark.feature("I2")
@pytest.mark.parametrize("fsync", [False, True])
def test_a_server_times_the_writes_of_its_log(tmp_path: Path, fsync: bool) -> None:
    async def shown() -> tuple[Values, Values]:
        clock = HeldClock(START - START % MINUTE)
        async with EmbeddedEngine(tmp_path, clock=clock, fsync=fsync) as engine:
            own = BrokerMetrics(engine.metrics, engine.now, engine.storage)
            for sequence_id in range(3):
                await engine.submit(TOPIC, Publish(producer="p", sequence_id=sequence_id))
            before = scraped(own.collect())
            clock.set_back(clock.now() + MINUTE)
            return before, scraped(own.collect())

    before, found = asyncio.run(shown())
    assert latencies(before) == {}
    shown_now = latencies(found)
    total, microseconds = shown_now.pop("count"), shown_now.pop("sum")
    assert total == sum(shown_now.values()) == found["pulsar_entry_size_count", *LABELS] == 3
    assert microseconds > 0


READER: list[AnyCommand] = [
    Subscribe(
        connection="c",
        subscription="s",
        subType="Exclusive",
        consumer_id=1,
        request_id=1,
        initialPosition="Earliest",
    ),
    Flow(connection="c", consumer_id=1, messagePermits=10),
]
"""A consumer that wants all messages."""


def test_a_query_counts_what_it_reads_of_earlier_micro_batches() -> None:
    run = folding.Run()
    publishes: list[AnyCommand | Publish] = [Publish(producer="p", sequence_id=number) for number in range(4)]
    figures, reads = TopicFigures(), []
    start = START - START % MINUTE
    for commands in (publishes[:3], [*publishes[3:], *READER]):
        fold = PartitionFold(0, run.store, run.state, measured=True)
        log = [Sent(start, TOPIC, to_json(command)) for command in commands]
        fold.apply(folding.records_of(log, run.offset))
        run.offset += len(log)
        run.state = fold.state()
        run.store.add(fold.rows())
        measured = fold.metrics(run.state)
        reads.append(measured.reads)
        figures.update(metrics.decode(metrics.encode(measured)))
    assert reads == [{}, {TOPIC: 3}]  # the fourth is in memory
    assert scraped(figures.collect(start + MINUTE))["pulsar_storage_read_rate", *LABELS] == 3 / 60


@pytest.mark.feature("I2")
def test_a_server_counts_what_it_reads_from_the_store(tmp_path: Path) -> None:
    async def rate() -> float:
        clock = HeldClock(START - START % MINUTE)
        async with EmbeddedEngine(tmp_path, clock=clock) as engine:
            for sequence_id in range(3):
                await engine.submit(TOPIC, Publish(producer="p", sequence_id=sequence_id))
        async with EmbeddedEngine(tmp_path, clock=clock) as engine:
            await engine.submit(TOPIC, Publish(producer="p", sequence_id=3))
            for command in READER:
                await engine.submit(TOPIC, command)
            clock.set_back(clock.now() + MINUTE)
            found = scraped(BrokerMetrics(engine.metrics, engine.now, engine.storage).collect())
            return found["pulsar_storage_read_rate", *LABELS]

    assert asyncio.run(rate()) == 3 / 60
