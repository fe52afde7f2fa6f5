"""A sink that keeps every row, a store of nothing, and some traffic."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from schemas.entries import EntryReader
from schemas.outputs import IDENTITY, OUTPUT, Rows
from schemas.records import RECORD
from sinks.ledger_store import LedgerStore
from streaming.broker.entries import NoEntries
from streaming.kafka.records import READ, ingress_records
from streaming.log.partition import partition_log
from streaming.log.table import LOGICAL
from tests.rows import together

START = 1_700_000_000_000


class Nowhere:
    """A store without entries."""

    def reader(self, partition: int) -> EntryReader:
        return NoEntries()


def read_with_spark(spark: SparkSession, bootstrap: str, topic: str, partitions: int) -> pa.Table:
    """What a Kafka topic holds, as the query reads it (columns `RECORD`)."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    read = spark.read.format("kafka").options(**options).load().select(*READ.names).toArrow()
    return pa.Table.from_batches([ingress_records(b, partitions) for b in read.to_batches()], RECORD)


class FolderSink:
    """Every column of every row, a file a batch and partition."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, batch_id: int) -> None:
        (self.folder / f"begun-{batch_id}").mkdir(parents=True, exist_ok=True)

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        table = together(rows)
        assert set(table["partition"].to_pylist()) == {partition}
        assert (self.folder / f"begun-{batch_id}").exists()
        file = self.folder / f"{batch_id}-{partition}.parquet"
        assert not file.exists(), "a partition is written once a batch"
        pq.write_table(table, file)

    def rows(self) -> pa.Table:
        """All rows, sorted by identity."""
        tables = [pq.read_table(file, schema=OUTPUT) for file in self.folder.glob("*.parquet")]
        rows = pa.concat_tables([OUTPUT.empty_table(), *tables])
        return rows.sort_by([(name, "ascending") for name in IDENTITY]).combine_chunks()


class Stored:
    """The rows' sink and the store that the broker reads, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.sink = FolderSink(folder / "rows")
        self.store = LedgerStore(str(folder / "store"))

    @property
    def sinks(self) -> list[FolderSink | LedgerStore]:
        return [self.store, self.sink]


def log_of(*records: tuple[int, str | None, object]) -> pa.Table:
    """A logical log of (timestamp, topic, value: bytes, or an object for JSON)."""
    return pa.Table.from_pylist(
        [
            {
                "timestamp": time,
                "topic": topic,
                "value": v if isinstance(v, bytes) else msgspec.json.encode(v),
            }
            for time, topic, v in records
        ],
        LOGICAL,
    )


def traffic(*, messages: int = 72, partitions: int = 4) -> pa.Table:
    """Messages with a repeat now and then, consumers that take and ack some of them, a TTL, a tick, and rubbish."""
    topics = [f"persistent://public/default/t{n}" for n in range(6)]
    namespace = {
        "command": "ADMIN",
        "path": "/namespaces/public/default/messageTTL",
        "method": "POST",
        "body": 30,
    }
    records: list[tuple[int, str | None, object]] = [
        (0, None, {"command": "BROKER_CONFIG"}),
        (0, None, namespace),
    ]
    for n, topic in enumerate(topics):
        consumer = {"connection": f"c{n}", "consumer_id": 1}
        subscribe = {"command": "SUBSCRIBE", "subscription": "s", "subType": "Shared", "request_id": 1}
        records.append((1, topic, subscribe | consumer | {"initialPosition": "Earliest"}))
        records.append((2, topic, {"command": "FLOW", "messagePermits": 5} | consumer))
    for n in range(messages):
        topic, time = topics[n % 6], 1000 + 1000 * n
        message = {
            "producer": f"p{n % 2}",
            "sequence_id": n - n % 5 // 4,
            "payload": "x" * n,
            "key": f"k{n % 3}",
        }
        records.append((time, topic, message))
        if n % 7 == 3:
            acked = [{"ledgerId": 1, "entryId": n // 6}]
            ack = {"command": "ACK", "ack_type": "Individual", "message_id": acked}
            records.append((time, topic, ack | {"connection": f"c{n % 6}", "consumer_id": 1}))
        if n % 20 == 10:
            records.append((time, topic, b"\xff\x00 rubbish"))
    records.append((1000 * messages + 400_000, None, {"command": "TICK"}))
    return partition_log(
        log_of(*((START + time, topic, value) for time, topic, value in records)), partitions
    )
