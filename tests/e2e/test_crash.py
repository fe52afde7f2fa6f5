"""kill −9 during a run and a restart from the checkpoint: every output exactly once, and the state of an undisturbed run."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from schemas.effects import KINDS, Expired, Tick
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.log.partition import partition_log
from tests.e2e.live import LiveQuery
from tests.e2e.outcome import Outcome, assert_equal, assert_same_story, of_log, of_run, with_ticks
from tests.e2e.traffic import HURRIED, Traffic

pytestmark = [
    pytest.mark.feature("J2"),
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.skipif(not Path("/proc").exists(), reason="finds a query's processes in /proc"),
]

PARTITIONS = 3
START = 1_700_000_000_000

MOMENTS: dict[str, Callable[[LiveQuery], int]] = {
    "planned": LiveQuery.begun,  # offsets are written, but not the commit
    "stored": LiveQuery.stored,
    "deleting": LiveQuery.deleting,
    "tabled": LiveQuery.tabled,
    "committed": LiveQuery.committed,
}
"""The phases of a micro-batch, in order, each with the last batch that reached it."""


@pytest.fixture
def queries(tmp_path: Path, kafka: LocalKafka) -> Iterator[Callable[..., LiveQuery]]:
    """Creates live queries over a topic's records. None outlives the test."""
    made: list[LiveQuery] = []

    def make(topic: str, *options: str) -> LiveQuery:
        folder = tmp_path / topic
        folder.mkdir()
        url = f"kafka://{kafka.bootstrap}/{topic}"
        made.append(LiveQuery(folder, url, f"{url}-responses", *options))
        return made[-1]

    yield make
    for query in made:
        query.close()


def test_the_traffic_is_worth_it(tmp_path: Path) -> None:
    outcome = of_log(partition_log(Traffic(1, START).write(1000), PARTITIONS), tmp_path)
    assert {kind for kind, table in outcome.tables.items() if len(table)} >= {
        "SEND_RECEIPT", "SEND_ERROR", "PRODUCER_SUCCESS", "SUCCESS", "CLOSE_PRODUCER", "CLOSE_CONSUMER",
        "MESSAGE", "ADMIN_RESPONSE", "CURSOR_MOVED", "EXPIRED", "EVICTED", "LEDGER_CLOSED", "LEDGER_DELETED", "TOPIC_EVENT",
        "SUBSCRIPTION_EVENT", "QUARANTINED",
    }  # fmt: skip
    receipts = outcome.tables["SEND_RECEIPT"]["ledger_id"].to_pylist()
    assert receipts.count(-1) > 3  # duplicates
    assert len(outcome.entries) > 20
    assert len(outcome.quarantine) > 5
    assert [state.topics for state in outcome.states] == [3, 2, 3]


def test_killed_and_started_again(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, queries: Callable[..., LiveQuery]
) -> None:
    log = Traffic(1, START).write(900)
    query = start(log, queries("crash", "--clock", "log", "--trigger", "0ms", "--max-offsets", "40"), kafka)

    while (
        "Python worker exited unexpectedly" not in query.said()
    ):  # Spark doesn't notice the death of an idle worker
        reach(query, "planned", 2)
        assert query.kill_workers() > 0
    reach(query, "committed", 2)  # Spark repeated such tasks
    reach(query, "planned", 2)
    query.kill()
    assert query.begun() > query.committed()  # so there is a micro-batch to repeat

    query.start()
    reach(query, "deleting", 3)
    query.kill_jvm()
    assert query.end() == 1
    *_, last = query.said().splitlines()
    assert last.startswith("magnetar: Spark's Java process is gone")
    assert "when restarted with the same checkpoint, it repeats the micro-batch" in last

    query.start()
    reach(query, "committed", 3)
    assert query.stop(signal.SIGTERM) == 0
    # The current batch was finished. Without a pause between batches, the next one may have started meanwhile.
    assert query.begun() <= query.committed() + 1

    query.start("--max-offsets", "1000")  # the rest at once
    finish(query, log)
    assert_equal(of(spark, kafka, query), of_log(partition_log(log, PARTITIONS), tmp_path / "expected"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_whenever(
    seed: int, spark: SparkSession, kafka: LocalKafka, tmp_path: Path, queries: Callable[..., LiveQuery]
) -> None:
    """Eight consecutive kills at random points, some before the first repeated micro-batch is done."""
    dice = random.Random(seed)
    log = Traffic(seed, START).write(900)
    query = start(
        log, queries(f"whenever-{seed}", "--clock", "log", "--trigger", "0ms", "--max-offsets", "40"), kafka
    )
    for _ in range(8):
        reach(query, dice.choice([*MOMENTS]), dice.randint(1, 3))
        dice.choice([query.kill, query.kill_driver])()
        query.start()
    finish(query, log)
    assert_equal(of(spark, kafka, query), of_log(partition_log(log, PARTITIONS), tmp_path / "expected"))


def test_a_live_run_replays_exactly(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, queries: Callable[..., LiveQuery]
) -> None:
    """With the trigger's clock: the log, merged with the ticks that the run emitted, replays to the same output."""
    log = Traffic(2, int(time.time() * 1000), step=1, settings=HURRIED).write(400)
    query = start(log, queries("live", "--trigger", "1s", "--max-offsets", "100"), kafka)

    reach(query, "stored", 2)
    query.kill()
    query.start()
    consume(query, log)
    reach(query, "planned", 4)  # no records arrive, only time passes
    query.kill_driver()
    query.start()  # immediately: children of the driver may not have ended yet
    reach(query, "committed", 6)
    stop_between_batches(query)

    found = of(spark, kafka, query)
    ticks = found.tables[KINDS[Tick]]
    expired = found.tables[KINDS[Expired]]
    assert len(ticks) > 5
    assert len(expired) > 5
    assert_same_story(found, of_log(with_ticks(partition_log(log, PARTITIONS), ticks), tmp_path / "expected"))


def start(log: pa.Table, query: LiveQuery, kafka: LocalKafka) -> LiveQuery:
    produce_log(log, query.ingress, partitions=PARTITIONS)
    query.start()
    return query


def reach(query: LiveQuery, moment: str, batches: int) -> None:
    """Wait until the micro-batch this many after the last committed one has reached a phase."""
    target = query.committed() + batches
    query.wait(lambda: MOMENTS[moment](query) >= target, f"batch {target} was {moment}")


def consume(query: LiveQuery, log: pa.Table) -> None:
    """Let the query read all records."""
    counts = Counter(partition_log(log, PARTITIONS)["partition"].to_pylist())
    query.wait(lambda: query.consumed() == counts, "all records were taken")


def finish(query: LiveQuery, log: pa.Table) -> None:
    """Let the query read all records, then stop it."""
    consume(query, log)
    assert query.stop(signal.SIGINT) == 0
    assert query.said().strip().endswith("stopped")


def stop_between_batches(query: LiveQuery) -> None:
    """Stop the query so that its output ends with a whole micro-batch: an interrupted one may have reached some sinks only."""
    assert query.stop(signal.SIGTERM) == 0
    while query.begun() > query.committed():  # a slow one leaves no pause before the next
        query.start()
        reach(query, "committed", 1)
        assert query.stop(signal.SIGTERM) == 0


def of(spark: SparkSession, kafka: LocalKafka, query: LiveQuery) -> Outcome:
    return of_run(spark, query.store, query.checkpoint, kafka.bootstrap, query.responses)
