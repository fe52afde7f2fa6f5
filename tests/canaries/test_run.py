"""Canaries of a query on Spark and Kafka: the query is what it would be without them, and they go on when it is started again."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from streaming.answers.whatif.answer import WhatIf
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.canaries.beside import Canaries, CanarySource
from streaming.fold.records import StateRow
from streaming.jobs.run import run_query
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.spark import state
from tests.answers.test_whatif import flow, publish, subscribe, table

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.feature("J7")]

PARTITIONS = 2


def log(first: int, count: int) -> pa.Table:
    """A message each 10 seconds."""
    begin = [subscribe(), flow(0, 3)] if not first else []
    return table([*begin, *(publish(10 * number, number) for number in range(first, first + count))])


def has(count: int, found: WhatIf) -> bool:
    """Whether so many messages were published."""
    return (pc.sum(found.summary["published"]).as_py() or 0) >= count * len(found.totals)


class Query:
    """A query, and what was said of its canaries."""

    def __init__(self, spark: SparkSession, ingress: str, folder: Path, name: str) -> None:
        self._spark, self.ingress = spark, ingress
        self.checkpoint, self.store = folder / name / "checkpoint", str(folder / name / "store")
        self.looks: list[WhatIf] = []
        self.notes: list[str] = []

    def run(self, enough: Any, sources: list[CanarySource], clock: Any) -> None:
        """Run until `enough` holds."""
        stop = threading.Event()
        limit = threading.Timer(90, stop.set)

        def look(found: WhatIf, _: Any) -> None:
            self.looks.append(found)
            if enough(found):
                stop.set()

        canaries = Canaries(self.store, sources, every=0.5, on_look=look, on_note=self.notes.append)
        limit.start()
        try:
            run_query(
                self.ingress, self.checkpoint, self.store, clock=clock, trigger="0s", quality=False, max_ahead_ms=None,
                records_per_batch=50, spark=self._spark, stop=stop, canaries=canaries,
            )  # fmt: skip
        finally:
            limit.cancel()

    def states(self) -> list[StateRow]:
        return state.partition_states(self._spark, self.checkpoint)


@pytest.mark.parametrize("clock", ["log", "trigger"])
def test_they_follow_a_query(spark: SparkSession, kafka: LocalKafka, tmp_path: Path, clock: str) -> None:
    ttl = tmp_path / "ttl.yaml"
    ttl.write_text("broker: {ttlDurationDefaultInSeconds: 60}\n")
    ingress = f"kafka://{kafka.bootstrap}/canaries-{clock}"
    query = Query(spark, ingress, tmp_path, "query")
    sources = [CanarySource("ttl", str(ttl))]
    for first in (0, 150):
        produce_log(log(first, 150), ingress, partitions=PARTITIONS)
        query.run(partial(has, first + 150), sources, clock)
    assert query.notes == []
    [_, found] = query.looks[-1].totals
    assert found.expired == found.differences["lost newly"] > 40
    if clock == "log":
        both = pa.concat_tables([log(0, 150), log(150, 150)])
        expected = whatif(both, [PolicySet("ttl", ttl)], partitions=PARTITIONS)
        assert query.looks[-1].totals == expected.totals
        other = Query(spark, ingress, tmp_path, "other")
        other.run(partial(has, 300), [], clock)
        assert other.states() == query.states()
