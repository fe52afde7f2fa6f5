"""The interface of a sink, which stores or sends the output rows of the query.

Delivery: after a crash, Spark may repeat a micro-batch: with the same rows (the query is deterministic), or with others, if an operator
sets a topic aside or a new version corrects a rule. The first attempt may have written everything, a part, or nothing. So the result of a
sink must depend only on (batch, partition, rows), not on earlier attempts, see `StoringSink.clear`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from schemas.errors import MagnetarError

if TYPE_CHECKING:
    from schemas.outputs import Rows

INGRESS = "ingress.json"
"""In the store of a query: the topic that it belongs to, see `streaming.kafka.ingress`."""

BEGUN = "begun.json"
"""In the store of a query: the micro-batch that it began last, see `sinks.begun`."""

SEED = "seed"
"""In the store of a query that goes on from the states of another one: their folder, see `streaming.state.seed`."""

STATE = "state"
"""The folder of the states, which a replay makes first."""


class Sink(Protocol):
    """Spark pickles sinks and ships them to its Python workers, so keep them small and open connections lazily."""

    def begin(self, batch_id: int) -> None:
        """Called on the driver before the writes of a micro-batch.

        Every batch below `batch_id` is committed. This one may have been attempted before, as the same one: `sinks.begun` sees to
        that. Raises `ForeignFiles` if the stored files belong to another query.
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


@runtime_checkable
class StoringSink(Sink, Protocol):
    """A sink whose files must be there as long as the checkpoint says so. `sinks.begun` notes the places, and the last micro-batch that
    wrote to each."""

    def places(self, rows: Mapping[tuple[int, str], int]) -> set[str]:
        """Where a micro-batch with so many rows by (ingress partition, kind) writes. Their number is bounded by that of the partitions."""
        ...

    def clear(self, batch_id: int) -> None:
        """Delete what an earlier attempt of a micro-batch wrote, which is repeated now. Called on the driver, after `begin`. What a
        `CommittingSink` has committed stays, and it refuses other rows then. Raises `Damaged`."""
        ...

    def missing(self, wrote: Mapping[str, int], committed: int) -> dict[str, int]:
        """What is not there of what each place was last written, and by which micro-batch. `committed`: the last committed one, which is
        none before those. Reads only what the newest micro-batches wrote. Raises `Damaged`."""
        ...


class ForeignFiles(MagnetarError, RuntimeError):
    """The folder has output of a later batch than the one that begins, or of another one with its number.

    It belongs to another query, or the checkpoint was deleted or rolled back without the output.
    """

    @classmethod
    def found(cls, where: str, batch_id: int, found: int) -> ForeignFiles:
        """The error for a folder `where` with output of micro-batch `found`, when the query begins `batch_id`, or has planned
        it last (−1: it is new)."""
        at = f"at micro-batch {batch_id}" if batch_id >= 0 else "new"
        return cls(
            f"{where} holds output of micro-batch {found}, but the query is {at}: it was written "
            "with another checkpoint. Give this query a new folder, or the checkpoint that goes with this one."
        )
