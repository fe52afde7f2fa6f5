"""Where the outputs, the entries and the states of a replay or a live query are, and how they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from schemas.effects import KINDS, Effect, SendReceipt, TopicEvent
from sinks import batch_files
from sinks.ledger_store import LedgerStore
from sinks.storage import Storage
from sinks.tables import TABLES
from streaming.broker.broker import Broker
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.fold import StateRow
from streaming.states import read_states

SHOWN = 5
"""How many names an error lists."""

_LARGE = ("metadata", "payload")
_FILE = "__filename"
_ROWS = 1 << 14


class NotFound(LookupError):
    """There is no such folder, topic, subscription, or micro-batch. The text names what there is."""


@dataclass(slots=True)
class Folders:
    """The folders of a finished replay, or of a live query.

    `tables` is None if no output tables were written. `checkpoint` is None if there is none on this machine.
    """

    tables: Storage | None
    store: LedgerStore
    state: Path | None
    checkpoint: Path | None
    _brokers: dict[int, Broker] | None = field(default=None, init=False)

    @classmethod
    def of(cls, folder: str | Path, checkpoint: str | Path | None = None) -> Folders:
        """The folders of a replay (its --out) or of a live query (its --store, and its `checkpoint`). Raises `NotFound`."""
        root = Storage(str(folder))
        replayed = root.folder is not None and any(
            (root.folder / name).is_dir() for name in ("store", "state")
        )
        store = f"{root.url}/store" if replayed else root.url
        if not replayed and not any(_is_folder(root, name) for name in ("segments", "ledgers", "tables")):
            raise NotFound(f"{folder} is not the --out of a replay, nor the --store of a query")
        own = None if root.folder is None else root.folder
        if checkpoint is None and own is not None and (own / "checkpoint" / "offsets").is_dir():
            checkpoint = own / "checkpoint"
        if checkpoint is not None and not (Path(checkpoint) / "offsets").is_dir():
            raise NotFound(f"{checkpoint} is not the --checkpoint of a query")
        return cls(
            Storage(f"{root.url}/tables") if _is_folder(root, "tables") else None,
            LedgerStore(store),
            own / "state" if replayed and own is not None else None,
            None if checkpoint is None else Path(checkpoint),
        )

    # -- states ---------------------------------------------------------------------------------------------------

    def states(self) -> list[StateRow]:
        """The last states by ingress partition: those that a replay left, or, through Spark, the checkpoint's.

        Raises `NotFound`.
        """
        found = None if self.state is None else read_states(self.state)
        if found is not None:
            return found
        if self.checkpoint is None:
            raise NotFound("the state of the brokers is not here: give the --checkpoint of the query")
        from streaming.spark.session import spark_session
        from streaming.spark.state import partition_states

        spark = spark_session("magnetar explain", shuffle_partitions=1, master="local[1]")
        return partition_states(spark, self.checkpoint)

    @property
    def has_states(self) -> bool:
        """Whether `states` finds any."""
        return self.checkpoint is not None or (self.state is not None and read_states(self.state) is not None)

    def brokers(self) -> dict[int, Broker]:
        """The brokers of the last states by ingress partition. Each decodes only the topics that are asked for."""
        if self._brokers is None:
            self._brokers = {
                each.partition: Broker.decode(each.broker, self.store.reader(each.partition))
                for each in self.states()
            }
        return self._brokers

    def broker_of(self, topic: str) -> Broker | None:
        """The broker that has a topic."""
        return next((broker for broker in self.brokers().values() if topic in broker.topic_names()), None)

    # -- tables ---------------------------------------------------------------------------------------------------

    def rows(
        self,
        effect: type[Effect],
        where: pc.Expression,
        columns: Sequence[str] | None = None,
        partition: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The rows of a kind that match, in no order, each with its kind and micro-batch. Row groups that cannot match by
        their statistics are not read.

        `columns`: all but metadata and payload if None. `partition`: read this ingress partition's files alone. Raises
        `NotFound` if there are no output tables.
        """
        kind = KINDS[effect]
        files = self._files(kind, partition)
        if not files:
            return
        names = [name for name in TABLES[kind].names if name not in _LARGE] if columns is None else [*columns]
        assert self.tables is not None
        dataset = ds.dataset(
            [str(info.path) for info in files], TABLES[kind], "parquet", filesystem=self.tables.filesystem
        )
        scanner = dataset.scanner(
            [*names, _FILE], filter=where, batch_size=_ROWS, batch_readahead=1, fragment_readahead=1
        )
        for rows in scanner.to_batches():
            for row in rows.to_pylist():
                yield {"kind": kind, "batch": int(row.pop(_FILE).rpartition("/")[2].partition("-")[0]), **row}

    def _files(self, kind: str, partition: int | None) -> list[fs.FileInfo]:
        if self.tables is None:
            raise NotFound("there are no output tables: a query writes them, unless it runs with --no-tables")
        return [
            info
            for info in self.tables.files(f"kind={kind}")
            if partition is None or str(info.base_name).endswith(f"-{partition:05d}.parquet")
        ]

    def first_batch(self) -> int | None:
        """The first micro-batch of which there are rows, or None if there are no rows."""
        return min(
            (batch_files.batch_of(info) for kind in TABLES for info in self._files(kind, None)), default=None
        )

    # -- names ----------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> str:
        """The full name of a topic, of which a user may leave out ``persistent://`` or ``persistent://public/default/``.

        Raises `NotFound` if neither the states nor the tables have such a topic, or it is not persistent.
        """
        names = [name] if "://" in name else [f"persistent://{name}", f"persistent://public/default/{name}"]
        known = set[str]()
        if self.has_states:
            known.update(each for broker in self.brokers().values() for each in broker.topic_names())
        found = next((each for each in names if each in known), None)
        if found is None and self.tables is not None:  # it may have been deleted
            events = self.rows(TopicEvent, pc.field("cause") == "created", ["topic"])
            known.update(row["topic"] for row in events)
            found = next((each for each in names if each in known), None)
            for each in names if found is None else ():
                if next(self.rows(SendReceipt, pc.field("topic") == each, ["topic"]), None) is not None:
                    found = each
        if found is None:
            raise NotFound(f"there is no topic {name}: {listed('topic', name, known)}")
        if is_non_persistent(found):
            raise NotFound(f"{found} is not persistent: it keeps neither messages nor backlogs")
        return found


def listed(what: str, name: str, known: Iterable[str]) -> str:
    """The names that there are, those like `name` first."""
    names = sorted(known)
    if not names:
        return f"there is no {what} at all"
    like = get_close_matches(name, names, SHOWN, 0.5)
    shown = [*like, *(each for each in names if each not in like)][:SHOWN]
    more = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(shown)}{more}"


def _is_folder(storage: Storage, name: str) -> bool:
    return bool(storage.files(name, recursive=True))
