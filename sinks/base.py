"""The contract of a sink: where the output rows of the query go.

Delivery. Spark may run a micro-batch again after a crash, with the same rows (the query is deterministic), whatever its
first attempt left behind: everything, half, nothing. So a sink's result must depend on (batch, partition, rows) alone,
however often and however far `write` ran before.
"""

from typing import Protocol

from schemas.outputs import Rows


class Sink(Protocol):
    """Sinks are pickled and shipped to Spark's Python workers: keep them small, open connections lazily."""

    def begin(self, batch_id: int) -> None:
        """Called on the driver before a micro-batch's writes. Every batch below `batch_id` is committed; this one may
        have been attempted before. Raises `ForeignFiles` if what is stored can't be this query's."""
        ...

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        """Called in a Spark task with all rows that one ingress partition put out in this batch. Called again with the
        same arguments it leaves the same result."""
        ...


class ForeignFiles(RuntimeError):
    """The folder holds output of a batch later than the one that begins: it belongs to another query, or the
    checkpoint was deleted or rolled back and the output was not."""

    @classmethod
    def found(cls, where: str, batch_id: int, found: int) -> "ForeignFiles":
        return cls(
            f"{where} holds output of micro-batch {found}, but the query is at micro-batch {batch_id}: it was written "
            "with another checkpoint. Give this query an empty folder, or the checkpoint that goes with this one."
        )
