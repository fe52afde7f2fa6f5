"""Files that we write, read by Spark's own Parquet reader (`pyarrow.dataset`: test_tables.py)."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from schemas.effects import Quarantined
from sinks.ledger_store import LedgerStore
from sinks.quarantine import QuarantineSink
from sinks.tables import TableSink
from tests.sinks.helpers import TOPIC, closed, output, payload_of, receipts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.feature("J5")
@pytest.mark.spark
def test_spark_reads_tables_segments_ledgers_and_quarantine(spark: "SparkSession", tmp_path: Path) -> None:
    rows = output(
        [
            *receipts(1, 0, 4),
            closed(1, 5),
            *receipts(2, 0, 2),
            Quarantined(None, "json", "no object", b"\xff"),
        ]
    )
    store, tables = tmp_path / "store", tmp_path / "tables"
    for sink in (LedgerStore(str(store)), TableSink(str(tables)), QuarantineSink(str(tmp_path))):
        sink.begin(0)
        sink.write(0, 0, rows)

    kinds = spark.read.parquet(str(tables)).groupBy("kind").count().collect()
    assert {row["kind"]: row["count"] for row in kinds} == {
        "SEND_RECEIPT": 8,
        "LEDGER_CLOSED": 1,
        "QUARANTINED": 1,
    }
    for files, ledger_id, entries in (("ledgers/*", 1, 5), ("segments/*", 2, 3)):
        found = spark.read.parquet(str(store / files)).orderBy("entry_id").collect()
        assert [row["payload"] for row in found] == [payload_of(TOPIC, ledger_id, e) for e in range(entries)]
        assert [row["sequence_id"] for row in found] == [ledger_id * 1000 + e for e in range(entries)]
        assert {row["topic"] for row in found} == {TOPIC}
    (bad,) = spark.read.parquet(str(tmp_path / "quarantine")).collect()
    assert (bad["offset"], bytes(bad["value"])) == (9, b"\xff")
