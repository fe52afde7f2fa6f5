"""All sinks get the rows of a log, as in a query; only Kafka is not there."""

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

from schemas.outputs import Rows
from sinks.base import Sink
from sinks.dead_letters import KafkaDeadLetters
from sinks.kafka import KafkaResponses, Outgoing
from sinks.ledger_store import LedgerStore
from sinks.quarantine import QuarantineSink
from sinks.tables import TableSink, read_table
from streaming.quality.sink import QualitySink


class Responses(KafkaResponses):
    def begin(self, batch_id: int) -> None:
        """There is no broker."""

    def _send(self, batch_id: int, records: Iterable[Outgoing]) -> None:
        for each in records:
            for value in each.values.to_pylist():
                json.loads(value)


class DeadLetters(KafkaDeadLetters):
    def begin(self, batch_id: int) -> None:
        """There is no broker."""

    def _send(self, batch_id: int, records: Iterable[Outgoing]) -> None:
        for each in records:
            for key, value in zip(each.keys.to_pylist(), each.values.to_pylist(), strict=True):
                assert len(value) + len(key or b"") <= self._most


def written(rows: Rows) -> dict[str, int]:
    """The number of rows of each kind in the output tables."""
    with tempfile.TemporaryDirectory() as folder:
        store = LedgerStore(f"{folder}/store")
        sinks: list[Sink] = [store, QuarantineSink(folder), TableSink(f"{folder}/tables"), QualitySink(folder),
                 Responses("", "", store=store), DeadLetters("", "")]  # fmt: skip
        for sink in sinks:
            sink.begin(0)
        for sink in sinks:
            sink.write(0, 0, rows)
        found = {kind: len(read_table(f"{folder}/tables", kind)) for kind in rows}
        assert not list(Path(folder).glob("quality/**/*.parquet")), "rows broke a rule of the output suites"
        return found
