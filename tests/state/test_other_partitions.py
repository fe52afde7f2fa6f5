"""The number of ingress partitions doesn't affect topics."""

from pathlib import Path

import pyarrow as pa
import pytest

from schemas.effects import KINDS, Expired
from streaming.log.merge import merge_partitions
from streaming.log.partition import partition_log
from streaming.log.table import LOGICAL
from tests.broker.kit import START
from tests.e2e.outcome import of_log, with_ticks
from tests.e2e.traffic import TOPICS, Traffic
from tests.state.by_topic import by_topic

pytestmark = pytest.mark.feature("J1")


def made_log(records: int) -> pa.Table:
    """Traffic, and a tick for all partitions, so that their clocks end at the same time."""
    log = Traffic(4, START).write(records)
    end = {"timestamp": log["timestamp"][-1].as_py() + 60_000, "topic": None, "value": b'{"command":"TICK"}'}
    return pa.concat_tables([log, pa.Table.from_pylist([end], LOGICAL)])


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 1)])
def test_a_log_folded_over_other_partitions(before: int, after: int, tmp_path: Path) -> None:
    old = partition_log(made_log(1200), before)
    again = merge_partitions(old)
    assert again.notes == []
    new = partition_log(again.log, after)
    assert set(new["partition"].to_pylist()) == set(range(after))
    expected = by_topic(of_log(old, tmp_path / "old"))
    found = by_topic(of_log(new, tmp_path / "new"))
    assert len(expected[TOPICS[0]]) > 15
    assert set(TOPICS) <= expected.keys()
    for topic, kinds in expected.items():
        for kind, rows in kinds.items():
            assert found[topic].get(kind) == rows, (topic, kind)
    assert found == expected


def test_times_that_a_trigger_brought_are_kept(tmp_path: Path) -> None:
    """Batches end with ticks that are ahead of the records after them, as when a query catches up."""
    old = partition_log(made_log(900), 2)
    rows = old.to_pylist()
    ticks = []
    for cut in (200, 500, 700, len(rows)):
        last = {row["partition"]: row["offset"] for row in rows[:cut]}
        clock = max(row["timestamp"] for row in rows[:cut]) + 45_000
        ticks += [
            {"partition": home, "offset": offset, "ordinal": 0, "clock": clock}
            for home, offset in last.items()
        ]
    told = pa.Table.from_pylist(ticks)
    expected = of_log(with_ticks(old, told), tmp_path / "old")
    assert len(expected.tables[KINDS[Expired]]) > 5
    merged = merge_partitions(old, told)
    assert merged.notes == []
    assert by_topic(of_log(partition_log(merged.log, 5), tmp_path / "new")) == by_topic(expected)
    # Without them the outcome is different.
    other = by_topic(of_log(partition_log(merge_partitions(old).log, 5), tmp_path / "other"))
    assert other != by_topic(expected)
