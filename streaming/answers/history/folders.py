"""Where the outputs, the entries and the states of a replay or a live query are, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import reduce
from operator import or_
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from schemas.arguments import checked
from schemas.effects import KINDS, Effect, SendReceipt, TopicEvent
from schemas.entries import EntryNotFound
from schemas.errors import MagnetarError
from sinks import batch_files
from sinks.begun import Begun
from sinks.delta_log import BATCH
from sinks.ledger_store import LedgerStore
from sinks.parquet import fragment
from sinks.replayed import check_whole
from sinks.storage import Storage, within
from sinks.tables import TABLES, first_batch, read_table, table_files
from streaming.broker.broker import Broker
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.fold.records import StateRow
from streaming.log.files import is_data_folder, replay_first
from streaming.spark.checkpoint import is_on_s3, noted
from streaming.spark.failure import explained
from streaming.state.saved import read_states
from streaming.state.seed import read_seed, with_seed

SHOWN = 5
"""How many names an error lists."""

_LARGE = ("metadata", "payload")
_ROWS = 1 << 14


class NotFound(MagnetarError, LookupError):
    """There is no such folder, topic, subscription, or micro-batch. The text names what there is."""


class TooMuch(MagnetarError, RuntimeError):
    """An answer would take more time or more rows than it may. The text says which."""


class Budget:
    """What an answer may take: a time in seconds from now, and so many rows. Scans then use one core alone."""

    def __init__(self, seconds: float, rows: int) -> None:
        self.seconds, self.rows = seconds, rows
        self._until, self._left = monotonic() + seconds, rows

    def spend(self, rows: int) -> None:
        """Raises `TooMuch` if that was too much."""
        self._left -= rows
        if self._left < 0:
            raise TooMuch(f"the answer needs more than the limit of {self.rows:,} rows")
        if monotonic() > self._until:
            raise TooMuch(f"the answer takes longer than the limit of {self.seconds:g} s")


@dataclass(slots=True)
class Folders:
    """The folders of a finished replay, or of a live query.

    `tables` is None if no output tables were written. `checkpoint` (a folder, or an ``s3a://`` URL) is None if nobody named one.
    At a moment of a timeline, `at` has the states, `until` the last offset of each ingress partition whose rows count, and `record`
    gives the command at a partition and an offset. With a `budget`, reading rows raises `TooMuch`.
    """

    tables: Storage | None
    store: LedgerStore
    state: Path | None
    checkpoint: str | Path | None
    at: list[StateRow] | None = None
    until: dict[int, int] | None = None
    budget: Budget | None = None
    record: Callable[[int, int], bytes] | None = None
    _brokers: dict[int, Broker] | None = field(default=None, init=False)

    @classmethod
    def of(cls, folder: str | Path, checkpoint: str | Path | None = None) -> Folders:
        """The folders of a replay (its --out) or of a live query (its --store, and its `checkpoint`).

        Raises `NotFound`, `BadUrl`, `BadCheckpoint`, and `Damaged` for a replay that is not whole.
        """
        root = Storage(str(folder))
        if root.folder is not None:
            if is_data_folder(root.folder):
                raise NotFound(replay_first(root.folder))
            check_whole(root.folder)
        replayed = root.folder is not None and any(
            (root.folder / name).is_dir() for name in ("store", "state")
        )
        store = f"{root.url}/store" if replayed else root.url
        if not replayed and not any(_is_folder(root, name) for name in ("segments", "ledgers", "tables")):
            if root.folder is not None and not root.folder.exists():
                raise NotFound(f"{folder}: no such folder")
            raise NotFound(f"{folder} is neither the --out of a replay nor the --store of a query")
        own = None if root.folder is None else root.folder
        if checkpoint is None and own is not None and (own / "checkpoint" / "offsets").is_dir():
            checkpoint = own / "checkpoint"
        if checkpoint is not None and not noted(checkpoint, "offsets"):
            raise NotFound(f"{checkpoint} is not the --checkpoint of a query")
        return cls(
            Storage(within(root.url, "tables")) if _is_folder(root, "tables") else None,
            LedgerStore(store),
            own / "state" if replayed and own is not None else None,
            checkpoint,
        )

    # -- states ---------------------------------------------------------------------------------------------------

    def states(self) -> list[StateRow]:
        """The last states by ingress partition: those that a replay left, or, through Spark, the checkpoint's,
        and, of partitions that it has not visited yet, those with which the query begins.

        Raises `NotFound`, `QueryFailed`, `Damaged`, `NotWhole`.
        """
        found = self.at if self.at is not None or self.state is None else read_states(self.state)
        if found is not None:
            return found
        if self.checkpoint is None:
            raise NotFound("the state of the brokers is not here: give the --checkpoint of the query")
        from streaming.spark.session import current_session, spark_session
        from streaming.spark.state import partition_states

        with_s3 = is_on_s3(self.checkpoint)
        with explained("Try it again"):
            spark = current_session() or spark_session(
                "magnetar explain", shuffle_partitions=1, master="local[1]", with_s3=with_s3
            )
            return [*with_seed(partition_states(spark, self.checkpoint), read_seed(self.store.url))]

    @property
    def has_states(self) -> bool:
        """Whether `states` finds any."""
        return (
            self.at is not None
            or self.checkpoint is not None
            or (self.state is not None and read_states(self.state) is not None)
        )

    def brokers(self) -> dict[int, Broker]:
        """The brokers of the last states by ingress partition. Each decodes only the topics that are asked for."""
        if self._brokers is None:
            self._brokers = {
                each.partition: Broker.decode(each.broker, self.store.reader(each.partition))
                for each in self.states()
            }
        return self._brokers

    def broker_of(self, topic: str) -> Broker | None:
        """The broker that has a topic. Raises `NotFound` if two have one of that name."""
        found = {number: each for number, each in self.brokers().items() if topic in each.topic_names()}
        check_home(topic, found)
        return next(iter(found.values()), None)

    def copy_of_broker(self, topic: str) -> Broker:
        """A broker of its own that has a topic, to go on from the last state. Raises `NotFound`."""
        broker = self.broker_of(topic)
        if broker is None:
            raise NotFound(f"{topic} was deleted: the last state does not have it")
        return Broker.decode(broker.encode(), self.store.reader(broker.partition))

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Reading in here raises `NotFound` instead of `EntryNotFound` if the query went on meanwhile, for it may have deleted the
        entry."""
        before = self._committed()
        try:
            yield
        except EntryNotFound as error:
            if self._committed() == before:
                raise
            raise NotFound("the query deleted entries while they were read: try again") from error

    def _committed(self) -> int | None:
        live = self.checkpoint is not None and self.at is None
        return max(noted(self.checkpoint, "commits"), default=None) if live else None  # type: ignore[arg-type]

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
        names = [name for name in TABLES[kind].names if name not in _LARGE] if columns is None else [*columns]
        for path, rows in self._scan(effect, where, [*names, BATCH.name], partition):
            written = batch_files.of(path)
            for row in rows.to_pylist():
                batch = row.pop(BATCH.name)
                yield {"kind": kind, "batch": batch if written is None else written.batch, **row}

    def scan(
        self,
        effect: type[Effect],
        where: pc.Expression | None,
        columns: Sequence[str],
        partition: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow, in pieces of a few thousand rows."""
        for _, rows in self._scan(effect, where, columns, partition):
            yield rows

    def _scan(
        self, effect: type[Effect], where: pc.Expression | None, columns: Sequence[str], partition: int | None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The same with the path of the file."""
        kind = KINDS[effect]
        if partition is not None:  # a compacted file has several
            of_partition = pc.field("partition") == partition
            where = of_partition if where is None else where & of_partition
        if self.until is not None:
            kept = (
                (pc.field("partition") == partition) & (pc.field("offset") <= offset)
                for partition, offset in self.until.items()
            )
            until = reduce(or_, kept, pc.scalar(False))
            where = until if where is None else where & until
        for path in self._files(kind, partition):
            assert self.tables is not None
            with fragment(self.tables, path) as file:
                for rows in file.to_batches(
                    TABLES[kind].append(BATCH),
                    [*columns],
                    filter=where,
                    batch_size=_ROWS,
                    batch_readahead=1,
                    use_threads=self.budget is None,
                ):
                    if self.budget is not None:
                        self.budget.spend(len(rows))
                    yield path, rows

    def _files(self, kind: str, partition: int | None) -> list[str]:
        """The files that may have rows of a partition."""
        if self.tables is None:
            raise NotFound("there are no output tables: a query writes them, unless it runs with --no-tables")
        files = [(path, batch_files.of(path)) for path in table_files(self.tables, kind)]
        return [path for path, of in files if partition is None or of is None or of.partition == partition]

    def first_batch(self) -> int | None:
        """The first micro-batch of which there are rows, or None if there are no rows."""
        return None if self.tables is None else first_batch(self.tables)

    def without_tables(self) -> list[tuple[int, int]]:
        """The first and the last micro-batch of each time, since the first one of which there are rows, without output tables."""
        first = self.first_batch()
        return [
            each for each in Begun(self.store.url).without_tables() if first is not None and each[1] > first
        ]

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


@checked
def read_rows(folder: str | Path, kind: str | None = None) -> pa.Table:
    """The output rows of a replay (its `out`) or of a query (its `store`), of a kind such as ``EXPIRED`` or of all.

    They are sorted by partition, offset and ordinal, and each is there once. docs/reference/outputs.md has the kinds and their columns; rows of
    all kinds together have all columns. Raises `NotFound` for a folder without such rows, and
    `MagnetarError` for damaged files.
    """
    if kind is not None and kind not in TABLES:
        raise NotFound(f"there is no kind {kind}: {listed('kind', kind, TABLES)}")
    tables = Folders.of(folder).tables
    if tables is None:
        raise NotFound(f"{folder} has no output tables")
    return read_table(tables.url, kind)


@checked
def read_entries(folder: str | Path, topic: str | None = None) -> pa.Table:
    """The entries that the topics of a replay (its `out`) or of a query (its `store`) hold, with payloads, in the order of their
    positions. `topic`: the name of one, as of `Folders.topic`. Raises `NotFound`, also for a topic that is not there, and
    `MagnetarError` for damaged files."""
    folders = Folders.of(folder)
    found = folders.store.scan(topic)
    if topic is None or len(found):
        return found
    name = folders.topic(topic)
    return found if name == topic else folders.store.scan(name)


def listed(what: str, name: str, known: Iterable[str]) -> str:
    """The names that there are, those like `name` first."""
    names = sorted(known)
    if not names:
        return f"there is no {what} at all"
    like = get_close_matches(name, names, SHOWN, 0.5)
    shown = [*like, *(each for each in names if each not in like)][:SHOWN]
    more = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(shown)}{more}"


def check_home(topic: str, partitions: Collection[int]) -> None:
    """Raises `NotFound` if a topic is in several ingress partitions, where no answer can be that of the whole."""
    if len(partitions) > 1:
        first, second, *_ = partitions
        raise NotFound(
            f"topic {topic} is in partitions {first} and {second}, where it is two topics. All writers must choose the same "
            "partition for a topic"
        )


def _is_folder(storage: Storage, name: str) -> bool:
    return bool(storage.files(name, recursive=True))
