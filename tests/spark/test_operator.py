"""The operator by itself, with a stand-in for Spark's group state and for the broker."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pandas as pd
import pyarrow as pa
import pytest

from schemas.outputs import Rows
from schemas.records import RECORD
from sinks.begun import LastRecord
from sinks.folded import FoldedBefore, FoldedFiles
from sinks.storage import Storage
from streaming.fold import columns
from streaming.fold.records import FoldError, OffsetError
from streaming.quality.gate import decode_only
from streaming.runtime.clock import FoldClock
from streaming.spark import operator as op
from streaming.spark.packing import pack
from streaming.spark.schema import LAST
from tests.broker.kit import feed
from tests.rows import together
from tests.spark.fake import FakeBroker
from tests.spark.helpers import Nowhere


class State:
    """What the operator uses of `GroupState`."""

    def __init__(self, now: int = 0) -> None:
        self.value: tuple[Any, ...] | None = None
        self.now = now
        self.timeout: int | None = None
        self.hasTimedOut = False

    exists = property(lambda self: self.value is not None)
    get = property(lambda self: self.value)

    def update(self, value: tuple[Any, ...]) -> None:
        self.value = value

    def getCurrentProcessingTimeMs(self) -> int:
        return self.now

    def setTimeoutDuration(self, ms: int) -> None:
        self.timeout = ms


def frame(*offsets: int, topic: str = "t", payload: str = "x", step: int = 10) -> pd.DataFrame:
    values = [b'{"producer":"p","sequence_id":%d,"payload":"%s"}' % (o, payload.encode()) for o in offsets]
    return pd.DataFrame(
        {
            "offset": offsets,
            "timestamp": [o * step for o in offsets],
            "topic": [topic] * len(offsets),
            "value": values,
        }
    )


class Written:
    """A sink in memory."""

    def __init__(self) -> None:
        self.tables: list[Rows] = []

    def begin(self, batch_id: int) -> None: ...

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        assert (batch_id, partition) == (3, 5)
        self.tables.append(rows)


def fold(
    state: State,
    *frames: pd.DataFrame,
    clock: FoldClock = "log",
    timed_out: bool = False,
    folded: FoldedFiles | None = None,
) -> pa.Table:
    state.hasTimedOut, state.timeout = timed_out, None
    sink = Written()
    function = op.operator(
        op.FoldOptions(
            sinks=[sink],
            store=Nowhere(),
            clock=clock,
            broker=cast(Any, FakeBroker),
            judge=decode_only,
            folded=folded,
        )
    )
    packed = (batch.to_pandas() for batch in pack(map(records, frames)))
    with patch.object(op, "batch_id", lambda: 3):
        counted = list(function((5, 0), packed, state))  # type: ignore[arg-type]
    assert len(counted) == len(sink.tables) <= 1, "a partition is written once a batch"
    if not counted:
        return None
    counts = dict(zip(counted[0]["kind"], counted[0]["rows"], strict=True))
    last = dict(zip(counted[0]["kind"], counted[0]["metrics"], strict=True)).get(LAST)
    assert counts.pop(LAST, 0) == (last is not None) == bool(frames)
    if last is not None:
        assert LastRecord.decode(last).offset == max(frame["offset"].max() for frame in frames)
    assert counts == {kind: len(table) for kind, table in sink.tables[0].items()}
    return together(sink.tables[0])


def records(frame: pd.DataFrame) -> pa.RecordBatch:
    return pa.RecordBatch.from_pandas(frame.assign(partition=5)[RECORD.names], RECORD)


@pytest.mark.feature("J1")
def test_records_in_any_order_of_arrival() -> None:
    ordered, mixed = State(), State()
    straight = fold(ordered, frame(0, 1, 2), frame(3, 4))
    assert fold(mixed, frame(3, 4), frame(2, 0), frame(1)).equals(straight)
    assert straight["offset"].to_pylist() == [0, 1, 2, 3, 4]
    assert ordered.value == mixed.value
    assert ordered.value is not None
    assert ordered.value[:5] == (40, 1, 5, 5, 4)


@pytest.mark.feature("J1")
def test_state_goes_on() -> None:
    parts, whole = State(), State()
    fold(parts, frame(0, 1))
    fold(parts, frame(2, 7))
    fold(whole, frame(0, 1, 2, 7))
    assert parts.value == whole.value


@pytest.mark.feature("J1")
@pytest.mark.parametrize("offsets", [(0, 1, 1), (3, 2, 3)])
def test_an_offset_twice(offsets: tuple[int, ...]) -> None:
    with pytest.raises(OffsetError, match=r"partition 5: offset \d after"):
        fold(State(), frame(*offsets))


@pytest.mark.feature("J1")
def test_an_offset_of_before() -> None:
    state = State()
    fold(state, frame(0, 1, 2))
    with pytest.raises(OffsetError, match="offset 2 after 2"):
        fold(state, frame(2, 3))


@pytest.mark.feature("J1")
def test_a_failure_names_the_record() -> None:
    with pytest.raises(
        FoldError,
        match="partition 5, offset 8, topic 't', carrying out the command: ZeroDivisionError: boom; .*sequence_id",
    ):
        fold(State(), frame(7), frame(8, payload="boom"))


@pytest.mark.feature("J1")
def test_large_batches_come_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fold(State(), frame(*range(10)))
    monkeypatch.setattr(columns, "CHUNK_RECORDS", 3)
    assert fold(State(), frame(*range(10))).equals(whole)
    monkeypatch.setattr(columns, "CHUNK_BYTES", 1)
    assert fold(State(), frame(*range(10))).equals(whole)


class TestTriggerClock:
    """The micro-batch's own time."""

    @pytest.mark.feature("J4")
    def test_a_batch_ends_with_its_tick(self) -> None:
        state = State(now=500)
        rows = fold(state, frame(0), clock="trigger")
        assert rows["kind"].to_pylist() == ["SEND_RECEIPT", "TICK"]
        assert rows["clock"].to_pylist() == [0, 500]
        assert state.value is not None
        assert state.value[0] == 500
        assert state.timeout

    @pytest.mark.feature("J4")
    def test_an_idle_visit_that_does_nothing_leaves_no_trace(self) -> None:
        state = State(now=500)
        fold(state, frame(0), clock="trigger")
        before, state.now = state.value, 900
        assert fold(state, clock="trigger", timed_out=True) is None
        assert state.value is before
        assert state.timeout

    @pytest.mark.feature("J4")
    def test_an_idle_visit_with_effects_is_kept(self) -> None:
        state = State(now=500)
        fold(state, frame(0), clock="trigger")
        state.now = 1600
        rows = fold(state, clock="trigger", timed_out=True)
        assert rows["kind"].to_pylist() == ["EXPIRED", "TICK"]
        assert rows["offset"].to_pylist() == [0, 0]
        assert state.value is not None
        assert state.value[0] == 1600
        assert state.value[4] == 0

    @pytest.mark.feature("J4")
    def test_an_idle_visit_is_kept_once_a_minute(self) -> None:
        state = State(now=500)
        fold(state, frame(0, topic="t", payload="x"), clock="trigger")
        fold(state, clock="trigger", timed_out=True)
        state.now = 500 + op.IDLE_TICK_MS
        assert "TICK" in fold(state, clock="trigger", timed_out=True)["kind"].to_pylist()

    @pytest.mark.feature("J4")
    def test_it_replays_exactly(self) -> None:
        """Kept ticks, as TICK records of the log clock, give the state that the live query had."""
        live = State(now=500)
        fold(live, frame(0, 1), clock="trigger")
        live.now = 900
        fold(live, clock="trigger", timed_out=True)
        live.now = 1700
        kept = list(ticks(fold(live, frame(2, step=700), clock="trigger")))
        assert kept == [1700]
        again = FakeBroker(5, Nowhere().reader(5))
        feed(again, 0, 0, "t", frame(0)["value"][0])
        feed(again, 1, 10, "t", frame(1)["value"][0])
        again.tick(500)
        feed(again, 2, 1400, "t", frame(2)["value"][0])
        again.tick(1700)
        assert live.value is not None
        assert again.encode() == live.value[5]


def ticks(rows: pa.Table) -> Iterator[int]:
    for row in rows.to_pylist():
        if row["kind"] == "TICK":
            yield row["clock"]


def test_workers_are_forked_with_their_modules() -> None:
    """Each worker would spend most of its first second on imports."""
    needed = ["pyspark.worker", "pandas", "pyarrow", "streaming.spark.operator", "streaming.fold.columns", "sinks.kafka",
              "sinks.dead_letters", "sinks.ledger_store", "sinks.tables", "sinks.quarantine", "streaming.quality.sink"]  # fmt: skip
    code = f"import sys, streaming.spark.worker_daemon; print([n for n in {needed} if n not in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_a_note_for_canaries_that_fails_is_no_trouble_of_the_query(tmp_path: Path) -> None:
    """They notice that it is missing."""
    (tmp_path / "canaries").write_text("a file, where the folder should be")
    notes, state = FoldedFiles(Storage(str(tmp_path / "canaries"))), State()
    with pytest.raises(OSError, match="canaries"):
        notes.write(3, 5, FoldedBefore(0, None), ([], [], [], []), {}, 1)
    without = State()
    assert fold(state, frame(0, 1), folded=notes).equals(fold(without, frame(0, 1)))
    assert state.value == without.value is not None
