"""What a live query writes into its store."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from sinks.base import Sink
from sinks.ledger_store import LedgerStore
from sinks.quarantine import QuarantineSink
from sinks.storage import within
from sinks.tables import DeltaSink
from streaming.quality.sink import EVERY_SECONDS, QualitySink
from streaming.spark.checkpoint import next_batch


class LiveSinks:
    """The sinks of a live query's store: the entries (`ledgers`), the quarantine, the output table (`output`), and the checks.

    `all` has them in the order in which they are written. `close` them when the query has ended.
    """

    def __init__(
        self, store: str, *, tables: bool = True, keep_outputs: timedelta | None = None, quality: bool = True
    ) -> None:
        """See `streaming.run.run_query`. Raises `BadUrl`, `SuiteError`."""
        self.ledgers = LedgerStore(store)
        self.output = DeltaSink(within(store, "tables"), keep_outputs) if tables else None
        self._files: list[Sink] = [self.ledgers, QuarantineSink(store)]
        if self.output is not None:
            self._files.append(self.output)
        self._checks = [QualitySink(store, live=True, first_seconds=EVERY_SECONDS)] if quality else []
        self.all: list[Sink] = [*self._files, *self._checks]

    def begin(self, checkpoint: str | Path) -> int | None:
        """Compare what is stored with the checkpoint. Returns the micro-batch with which the query starts, see `next_batch`.

        Raises `ForeignFiles`.
        """
        batch = next_batch(checkpoint)
        if batch is not None:
            for sink in self._files:
                sink.begin(batch)
        return batch

    def close(self) -> None:
        """End what runs beside the query. What is at hand is finished first."""
        for check in self._checks:
            check.close()
        if self.output is not None:
            self.output.close()
