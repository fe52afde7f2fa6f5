"""The checkpoint of a release goes on in a query of the code at hand."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sinks.ledger_store import read_entries
from sinks.quarantine import read_quarantine
from sinks.tables import TABLES, read_table
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.fold.records import stats
from streaming.spark.state import partition_states
from tests.state import checkpoint
from tests.state.checkpoint import RELEASES


@pytest.mark.feature("J2")
@pytest.mark.spark
@pytest.mark.parametrize("folder", RELEASES, ids=lambda folder: folder.name)
def test_a_checkpoint_of_a_release_goes_on_to_the_same_end(
    folder: Path, spark: SparkSession, tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for each in (ours, theirs):
        checkpoint.unpack(folder / checkpoint.ARCHIVE, each)
    before = partition_states(spark, ours / "checkpoint")
    expected = checkpoint.go_on_in_process(before, theirs)
    checkpoint.go_on(spark, ours)
    for kind in TABLES:
        assert read_table(str(ours / "tables"), kind).equals(read_table(str(theirs / "tables"), kind)), kind
    assert read_entries(str(ours / "store")).equals(read_entries(str(theirs / "store")))
    assert read_quarantine(str(ours)).equals(read_quarantine(str(theirs)))
    states = partition_states(spark, ours / "checkpoint")
    assert [canonical(each.broker) for each in states] == [canonical(each.broker) for each in expected]
    assert stats(states) == stats(expected) != stats(before)


def canonical(state: bytes) -> bytes:
    """A state with all topics encoded by the current code."""
    broker = Broker.decode(state, NoEntries())
    broker.stats()
    return broker.encode()
