"""What a live query writes into its store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

import pyarrow.compute as pc

from schemas.effects import KINDS, TOPIC_SET_ASIDE, Quarantined
from schemas.records import Coordinates
from sinks.base import Sink
from sinks.begun import Begun, LastRecord
from sinks.ledger_store import LedgerStore
from sinks.outputs import check_nested, local_path
from sinks.quarantine import QuarantineSink, read_topics_set_aside
from sinks.storage import Damaged, within
from sinks.tables import DeltaSink, read_table
from streaming.fold.records import NoSuchRecord
from streaming.quality.sink import EVERY_SECONDS, QualitySink
from streaming.spark.checkpoint import (
    BadCheckpoint,
    check_begun,
    committed_offsets,
    last_committed,
    last_planned,
    planned_offsets,
)

_FOLDERS = ("segments", "ledgers", "deletions", "tables", "quarantine", "quality")
"""What the sinks write in the store."""


class LiveSinks:
    """The sinks of a live query's store: the entries (`ledgers`), the quarantine, the output table (`output`), and the checks.

    `all` has them in the order in which they are written. `begun` is told of each micro-batch before them, see `query.start`. `close`
    them when the query has ended.
    """

    def __init__(
        self, store: str, *, tables: bool = True, keep_outputs: timedelta | None = None, quality: bool = True
    ) -> None:
        """See `streaming.jobs.run.run_query`. Raises `BadUrl`, `SuiteError`."""
        self._store = store
        self.begun = Begun(store, tables=tables)
        self.ledgers = LedgerStore(store)
        self.output = DeltaSink(within(store, "tables"), keep_outputs) if tables else None
        self._files: list[Sink] = [self.ledgers, QuarantineSink(store)]
        if self.output is not None:
            self._files.append(self.output)
        self._checks = [QualitySink(store, live=True, first_seconds=EVERY_SECONDS)] if quality else []
        self.all: list[Sink] = [*self._files, *self._checks]

    def begin(self, checkpoint: str | Path) -> int | None:
        """Compare what is stored with the checkpoint. Returns the micro-batch that this planned last, see `last_planned`.

        Nothing of a micro-batch is written before it is planned. So if there is output of one that the checkpoint has not planned, the
        checkpoint is older than the store: the query would plan another one with that number. And what the last committed ones wrote is
        there, or else rows would be missing for ever. Raises `ForeignFiles`, `Damaged`, `BadCheckpoint` for a new checkpoint that is
        not apart from the store, and `InTheWay` if one of them is in another query's, or around it.
        """
        last = last_planned(checkpoint)
        if last == -1:  # a query that began so goes on
            _check_apart(checkpoint, self._store)
        if last is not None:
            committed = last_committed(checkpoint)
            check_begun(checkpoint, self.begun)
            if missing := self.begun.missing(self._files, committed):
                repeated = committed == last and set(missing.values()) == {last}
                raise Damaged(
                    _lacking(self._store, missing, f"{checkpoint}/commits/{last}" if repeated else None)
                )
            for sink in self._files:
                sink.begin(last)
        return last

    def check_aside(
        self, checkpoint: str | Path, topic: str, records: Iterable[Coordinates], topics: Iterable[str]
    ) -> None:
        """Raises `NoSuchRecord` if records or topics can't be set aside yet: the query repeats a micro-batch whose rows the output table has
        already, and which did not set them aside. `topic`: that of the query in Kafka. Call it after `begin`."""
        last = last_planned(checkpoint)
        if (
            self.output is None
            or last is None
            or last <= last_committed(checkpoint)
            or not self.output.has_committed(last)
        ):
            return
        before, end = committed_offsets(checkpoint, topic), planned_offsets(checkpoint, topic)
        done = read_table(within(self._store, "tables"), KINDS[Quarantined])
        places = set(zip(done["partition"].to_pylist(), done["offset"].to_pylist(), strict=True))
        whole = done.filter(pc.equal(done["rule"], TOPIC_SET_ASIDE))["topic"].to_pylist()
        aside = {*whole, *(each.topic for each in read_topics_set_aside(self._store))}
        refused = [
            f"--quarantine {at}"
            for at in records
            if before.get(at.partition, 0) <= at.offset < end.get(at.partition, 0) and at not in places
        ] + [f"--quarantine-topic {each}" for each in topics if each not in aside]
        if refused:
            raise NoSuchRecord(
                f"{refused[0]}: the output table has the rows of micro-batch {last} already, which the query repeats first, as it was stopped before "
                "the checkpoint had it committed. Nothing was written. Start the query without the option until that micro-batch is done. Then "
                "--quarantine-topic sets the topic aside; the records of the micro-batch are folded, and can't be set aside any more"
            )

    def end(
        self,
        rows: Mapping[tuple[int, str], int],
        last: Mapping[int, LastRecord] = MappingProxyType({}),
    ) -> None:
        """Note that all of the micro-batch that began last is written, see `query.start`."""
        self.begun.end(self._files, rows, last)

    def close(self) -> None:
        """End what runs beside the query. What is at hand is finished first."""
        for check in self._checks:
            check.close()
        if self.output is not None:
            self.output.close()


def _lacking(store: str, missing: Mapping[str, int], commit: str | None) -> str:
    """What to say of a store without these files. `commit`: the file of the checkpoint without which the query writes them again."""
    path, batch = next(iter(missing.items()))
    more = f" (the first of {len(missing):,} missing files)" if len(missing) > 1 else ""
    to_do = (
        f"Delete {commit} and start the query again: it repeats that micro-batch, as after a crash. Or restore"
        if commit
        else "Restore"
    )
    return (
        f"{store} lacks {path}{more}, which micro-batch {batch} wrote, and the checkpoint has committed: the machine went down, or a copy "
        f"is not complete. {to_do} both from the same backup, or give this query a new checkpoint and a new store"
    )


def _check_apart(checkpoint: str | Path, store: str) -> None:
    """Spark clears up in its folder, and the sinks in theirs. A checkpoint beside these, in the store, is in nobody's way. Neither may be
    in another query's, or around it.

    Raises `BadCheckpoint`, `InTheWay`.
    """
    for each in (checkpoint, store):
        check_nested(each, [checkpoint, store], goes_on=True)
    path, around = local_path(checkpoint), local_path(store)
    if path is None or around is None:
        return
    own, root = Path(os.path.realpath(path)), Path(os.path.realpath(around))
    inside = root in own.parents and own.relative_to(root).parts[0] in _FOLDERS
    if own == root or own in root.parents or inside:
        raise BadCheckpoint(
            f"the checkpoint {checkpoint} and the store {store} are one folder, or one is in the other: give the query a folder for each"
        )
