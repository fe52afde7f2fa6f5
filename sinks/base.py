"""The interface of a sink, which stores or sends the output rows of the query.

Delivery: after a crash, Spark may repeat a micro-batch with the same rows (the query is deterministic). The first attempt
may have written everything, a part, or nothing. So the result of a sink must depend only on (batch, partition, rows),
not on earlier attempts.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from schemas.errors import MagnetarError
from schemas.outputs import Rows

INGRESS = "ingress.json"
"""In the store of a query: the topic that it belongs to, see `streaming.kafka.ingress`."""


class Sink(Protocol):
    """Spark pickles sinks and ships them to its Python workers, so keep them small and open connections lazily."""

    def begin(self, batch_id: int) -> None:
        """Called on the driver before the writes of a micro-batch.

        Every batch below `batch_id` is committed. This one may have been attempted before. Raises `ForeignFiles` if the
        stored files belong to another query.
        """
        ...

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        """Called in a Spark task with all rows of one ingress partition in this batch. Must be idempotent."""
        ...


@runtime_checkable
class CommittingSink(Sink, Protocol):
    """A sink whose rows become visible by a commit."""

    def commit(self, batch_id: int, rows: Mapping[tuple[int, str], int]) -> None:
        """Called on the driver after all writes of a micro-batch, and before Spark commits it. Must be idempotent.

        `rows`: the number of rows that were written by (ingress partition, kind).
        """
        ...


class ForeignFiles(MagnetarError, RuntimeError):
    """The folder has output of a later batch than the one that begins.

    It belongs to another query, or the checkpoint was deleted or rolled back without the output.
    """

    @classmethod
    def found(cls, where: str, batch_id: int, found: int) -> "ForeignFiles":
        """The error for a folder `where` with output of micro-batch `found`, when the query begins `batch_id` (−1: it is new)."""
        at = f"at micro-batch {batch_id}" if batch_id >= 0 else "new"
        return cls(
            f"{where} holds output of micro-batch {found}, but the query is {at}: it was written "
            "with another checkpoint. Give this query a new folder, or the checkpoint that goes with this one."
        )
