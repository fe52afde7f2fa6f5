"""A query whose machine's clock is set back: while it runs, and before it starts again."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import magnetar
from schemas.outputs import IDENTITY
from sinks.base import BEGUN
from sinks.begun import Begun, Planned
from sinks.storage import Storage
from streaming.spark import query
from streaming.spark.trigger import ClockJumped, SetBack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.feature("J2"), pytest.mark.spark]

SCHEMA = "offset bigint, timestamp bigint, topic string, value string"
TOPIC = "persistent://public/default/orders"
AHEAD_MS = 2 * 3_600_000


class Life:
    """A query over files, of a command each."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self.checkpoint, self.store = folder / "checkpoint", folder / "store"
        (folder / "in").mkdir()

    def send(self, offset: int) -> None:
        value = json.dumps({"producer": "p", "sequence_id": offset, "payload": "x"})
        now = time.time_ns() // 1_000_000
        row = {"offset": offset, "timestamp": now, "topic": TOPIC, "value": value}
        hidden = self._folder / "in" / f".{offset}"
        hidden.write_text(json.dumps(row))
        hidden.rename(self._folder / "in" / f"{offset}.json")

    def run(self, receipts: int) -> None:
        """Until it has folded so many publishes. Raises what ends it."""
        enough = threading.Event()

        def on_batch(written: magnetar.Written) -> None:
            nonlocal receipts
            receipts -= written.rows.get((0, "SEND_RECEIPT"), 0)
            if receipts <= 0:
                enough.set()

        running = self.start("100ms", on_batch)
        try:
            query.wait(running, enough)
        finally:
            running.stop()

    def start(self, trigger: str, on_batch: Callable[[magnetar.Written], None]) -> StreamingQuery:
        return magnetar.start(
            self._spark.readStream.schema(SCHEMA).json(str(self._folder / "in")), checkpoint=self.checkpoint, store=self.store,
            partitions=1, trigger=trigger, quality=False, on_batch=on_batch,
        )  # fmt: skip

    def plan_ahead(self) -> None:
        """Make the last micro-batch one of a later time, in all that was noted of it: as if the clock had been set back since."""
        offsets = max((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        assert not (self.checkpoint / "commits" / offsets.name).exists()
        version, metadata, *ends = offsets.read_text().split("\n")
        planned = json.loads(metadata)
        planned["batchTimestampMs"] += AHEAD_MS
        offsets.write_text("\n".join([version, json.dumps(planned), *ends]))
        (offsets.parent / f".{offsets.name}.crc").unlink(missing_ok=True)
        storage = Storage(str(self.store))
        note = storage.read_json(BEGUN, dict[str, Any], "the note")
        assert note is not None
        if note["batch"] == int(offsets.name):
            storage.write_json(BEGUN, note | {"time": planned["batchTimestampMs"]})


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_batch_that_has_begun_is_repeated_and_another_planned_anew(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    life = Life(spark, tmp_path)
    life.send(0)
    life.run(1)
    life.send(1)
    begin = Begun.begin

    def crash(
        begun: Begun, planned: Planned, previous: Planned | None, max_ahead_ms: int | None = None
    ) -> None:
        has_records = previous is not None and planned.offsets != previous.offsets
        if has_begun or not has_records:
            begin(begun, planned, previous, max_ahead_ms)
        if has_records:
            raise ZeroDivisionError("as if the machine had gone down")

    monkeypatch.setattr(Begun, "begin", crash)
    with pytest.raises(Exception, match="as if the machine had gone down"):
        life.run(1)
    monkeypatch.undo()
    life.plan_ahead()
    before = time.time_ns() // 1_000_000
    life.run(1)
    life.send(2)
    life.run(1)
    rows = magnetar.read_rows(life.store)
    rows = rows.sort_by([(name, "ascending") for name in IDENTITY])
    receipts = rows.filter([kind == "SEND_RECEIPT" for kind in rows["kind"].to_pylist()])
    assert receipts["offset"].to_pylist() == [0, 1, 2]
    ahead = [clock - before > AHEAD_MS // 2 for clock in receipts["clock"].to_pylist()]
    assert ahead == [False, False, has_begun]  # a tick ends the repeated one, and time never goes back
    assert rows["clock"].to_pylist() == sorted(rows["clock"].to_pylist())


def test_a_query_whose_clock_is_set_back_ends_and_says_so(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(spark, tmp_path)
    life.send(0)
    first = threading.Event()

    def check(self: SetBack) -> None:
        if first.is_set():
            raise ClockJumped("set back")

    monkeypatch.setattr(SetBack, "check", check)
    with pytest.raises(StreamingQueryException, match="set back"):
        life.start("24h", lambda _: first.set()).awaitTermination()
    monkeypatch.undo()
    life.send(1)
    life.run(1)
