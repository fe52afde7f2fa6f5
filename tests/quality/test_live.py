"""Output rows are checked and go on; samples of them reach Great Expectations, in one process beside the driver."""

import logging
import pickle
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from schemas.effects import MirrorDrift, Row
from schemas.outputs import Rows
from sinks.rows import concat, to_tables
from sinks.storage import Storage
from streaming.fold.columns import Fold
from streaming.quality import sink as quality_sink
from streaming.quality import watch
from streaming.quality.outputs import output_rules
from streaming.quality.sink import LIVE, ROWS_PER_KIND, QualitySink, read_broken, sample_of
from streaming.quality.sink import __name__ as quality_log
from tests.quality.helpers import TOPIC, great_expectations, value
from tests.rows import together
from tests.spark.helpers import START, Nowhere, log_of, traffic


def rows(records: pa.Table | None = None) -> Rows:
    (applied,) = Fold(Nowhere()).apply(traffic(partitions=1) if records is None else records)
    return applied[1]


def spoilt(rows: Rows, column: str, bad: object) -> Rows:
    """`rows` with another value in the column of the first row of the first kind."""
    kind, table = next(iter(rows.items()))
    place, field = table.schema.get_field_index(column), table.schema.field(column)
    first = pa.array([number == 0 for number in range(len(table))])
    values = pc.if_else(first, pa.scalar(bad, field.type), table[column])
    return {**rows, kind: table.set_column(place, field, values)}


def test_good_rows_leave_nothing(tmp_path: Path) -> None:
    sink = QualitySink(str(tmp_path))
    sink.begin(0)
    sink.write(0, 0, rows())
    assert list(tmp_path.iterdir()) == []


def test_a_drift_has_either_sign() -> None:
    found = to_tables(
        0, [Row(0, n, 1, MirrorDrift(TOPIC, "s", n - 1, n - 1, n - 1, "why")) for n in range(3)]
    )
    assert output_rules().broken(found) == {}


def test_a_row_that_breaks_a_rule_is_told_and_counted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = rows()
    kind = next(iter(good))
    bad = spoilt(good, "partition", -1)
    sink = QualitySink(str(tmp_path))
    with caplog.at_level(logging.ERROR):
        sink.write(3, 0, bad)
        sink.write(3, 0, bad)  # the micro-batch is run again
        sink.write(4, 0, bad)
    rule = f"output.{kind}/partition_range"
    assert f"micro-batch 3, ingress partition 0: 1 rows break {rule}" in caplog.text
    assert read_broken(str(tmp_path)) == {rule: 2}


def test_a_sample_is_bounded_and_has_every_kind() -> None:
    own = rows()
    many = concat([own] * 10)
    sample = sample_of(many)
    assert sample.keys() == own.keys()
    assert max(map(len, many.values())) > ROWS_PER_KIND
    assert max(map(len, sample.values())) <= ROWS_PER_KIND
    table = together(sample)
    payloads = table.filter(pc.is_valid(table["payload"]))
    assert set(payloads["kind"].to_pylist()) == {"QUARANTINED"}


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Great Expectations is imported once for all tests."""
    monkeypatch.setattr("streaming.quality.gx.GreatExpectations", great_expectations)


@pytest.mark.usefixtures("looked")
def test_what_the_live_check_finds(tmp_path: Path) -> None:
    bad = [
        value("PUBLISH", producer=""),
        value("FLOW", consumer_id=-1),
        value("PUBLISH", sequence_id=-1),
        b"?",
    ]
    records = log_of(*((START, TOPIC, each) for each in bad))
    records = records.append_column("partition", pa.array([0] * 4, pa.int32()))
    quarantined = rows(records.append_column("offset", pa.array(range(4), pa.int64())))
    sink = pickle.loads(pickle.dumps(QualitySink(str(tmp_path), live=True, every_seconds=0)))
    watcher = watch.Watch(str(tmp_path), kept=2)
    assert watcher.look() is None

    sink.write(0, 0, quarantined)
    first = watcher.look()
    assert first is not None
    assert first.rows == 4
    wanted = {f"input.{rule}": 1 for rule in ("PUBLISH/producer_length", "PUBLISH/sequence_id_range", "FLOW/consumer_id_range")}  # fmt: skip
    assert first.counts == wanted | {"malformed": 1}
    assert first.broken == wanted  # Great Expectations sees in the quarantined records what the gate saw
    assert first.disagreements == []
    assert watcher.look() is None, "it has seen that"

    sink.write(1, 0, rows())
    sink.write(1, 1, spoilt(rows(), "clock", -1))
    second = watcher.look()
    assert second is not None
    assert second.batch == 1
    assert [rule for rule in second.broken if rule.endswith("clock_range")]
    assert second.disagreements == []
    assert second.counts["malformed"] > 1

    sink.write(2, 0, rows())
    watcher.look()
    kept = watch.read_results(str(tmp_path))
    assert [each.batch for each in kept] == [1, 2], "results have a bound"
    assert watch.Watch(str(tmp_path))._results == kept


@pytest.mark.usefixtures("looked")
def test_a_kernel_that_disagrees_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = watch.Watch(str(tmp_path))
    QualitySink(str(tmp_path), live=True).write(0, 0, spoilt(rows(), "clock", -1))
    monkeypatch.setattr("streaming.quality.kernels.CompiledSuite.masks", lambda *_: None)
    result = watcher.look()
    assert result is not None
    assert [rule.partition("/")[2] for rule in result.disagreements] == ["clock_range"]


def test_samples_keep_their_distance(tmp_path: Path) -> None:
    sink = QualitySink(str(tmp_path), live=True, every_seconds=3600)
    storage = Storage(str(tmp_path))
    sink.write(0, 0, rows())
    (before,) = storage.files(LIVE)
    sink.write(1, 0, rows())
    (after,) = storage.files(LIVE)
    assert before.mtime_ns == after.mtime_ns
    assert sink._counts[0]["malformed"], "what came since is counted into the next sample"


def watcher_of(sink: QualitySink) -> subprocess.Popen[bytes] | None:
    return sink._watcher


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == quality_log]


def test_a_dead_process_is_noticed_and_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = QualitySink(str(tmp_path), live=True, every_seconds=0)
    sink.begin(0)
    first = watcher_of(sink)
    assert first is not None
    sink.begin(1)
    assert watcher_of(sink) is first
    assert warnings(caplog) == []

    first.kill()
    first.wait()
    sink.begin(2)
    second = watcher_of(sink)
    assert second is not None
    assert second is not first
    assert second.poll() is None
    (warning,) = warnings(caplog)
    assert "ended (killed by signal 9): it is started again" in warning

    second.kill()
    sink.close()
    assert watcher_of(sink) is None
    _, last = warnings(caplog)
    assert "the last rows were not validated" in last


def test_a_process_that_does_not_end_is_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality_sink, "LAST_SECONDS", 0.1)
    sink = QualitySink(str(tmp_path), live=True)
    sink.begin(0)
    watcher = watcher_of(sink)
    assert watcher is not None
    watcher.send_signal(signal.SIGSTOP)
    sink.close()
    assert watcher.returncode == -signal.SIGKILL
    (warning,) = warnings(caplog)
    assert "did not end within 0.1 s" in warning


def test_a_folder_at_hand_with_packages_of_our_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "streaming").mkdir()
    (tmp_path / "streaming" / "__init__.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    sink = QualitySink(str(tmp_path / "store"), live=True)
    sink.begin(0)
    watcher = watcher_of(sink)
    assert watcher is not None
    assert watcher.stdin is not None
    watcher.stdin.close()
    assert watcher.wait() == 0


def test_the_first_micro_batch_has_the_machine_for_itself(tmp_path: Path) -> None:
    sink = QualitySink(str(tmp_path), live=True, every_seconds=0, first_seconds=0.2)
    sink.begin(0)
    assert watcher_of(sink) is None
    time.sleep(0.3)
    sink.begin(1)
    watcher = watcher_of(sink)
    assert watcher is not None
    watcher.kill()
    sink.close()


def test_a_process_that_dies_each_time_is_started_once_in_an_interval(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = QualitySink(str(tmp_path), live=True, every_seconds=3600)
    sink.begin(0)
    watcher = watcher_of(sink)
    assert watcher is not None
    watcher.kill()
    watcher.wait()
    for batch in range(1, 4):
        sink.begin(batch)
        assert watcher_of(sink) is None
    assert len(warnings(caplog)) == 1
    sink.close()


@pytest.mark.slow
def test_the_process_beside_the_driver(tmp_path: Path) -> None:
    sink = QualitySink(str(tmp_path), live=True, every_seconds=0.2)
    sink.begin(0)
    sink.write(0, 0, rows())
    sink.begin(1)
    watcher = sink._watcher
    assert watcher is not None
    assert pickle.loads(pickle.dumps(sink))._watcher is None, "tasks have none"
    sink.close()  # as when the driver ends: it looks once more, then goes
    assert watcher.returncode == 0
    assert [result.batch for result in watch.read_results(str(tmp_path))] == [0]
