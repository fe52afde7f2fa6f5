"""Judges what a mirror, its log and its query made of a broker."""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.effects import KINDS, MirrorDrift, Quarantined, SendError, SubscriptionEvent, Tick, Unsupported
from schemas.records import RECORD
from sinks.base import Sink
from sinks.ledger_store import LedgerStore, read_entries
from sinks.quarantine import QuarantineSink, read_quarantine
from sinks.storage import Storage
from sinks.tables import TABLES, TableSink, read_table, table_files
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.fold.columns import Fold
from streaming.fold.records import StateRow, stats
from streaming.kafka.url import KafkaUrl
from streaming.quality.sink import read_broken
from tests.e2e.outcome import with_ticks
from tests.mirror.kit import topic_records
from tests.mirror.traffic import At

_SLICE = 20_000


class Log(NamedTuple):
    """A Kafka topic as a log."""

    records: pa.Table
    """The columns `RECORD`."""
    sends: dict[str, list[At]]
    """By topic: the entries in their order."""


def read_log(url: KafkaUrl) -> Log:
    columns: dict[str, list[Any]] = {name: [] for name in RECORD.names}
    sends: dict[str, list[At]] = defaultdict(list)
    for each in topic_records(url):
        topic = None if each.key is None else each.key.decode()
        values = (each.partition, each.offset, each.timestamp, topic, each.value)
        for name, value in zip(RECORD.names, values, strict=True):
            columns[name].append(value)
        command = json.loads(each.value)
        if command["command"] == "SEND":
            id_ = command["message_id"]
            sends[topic or ""].append((id_["ledgerId"], id_["entryId"]))
    return Log(pa.table(columns, RECORD), sends)


def of_entries(
    sends: Mapping[str, list[At]],
    receipts: Mapping[str, Collection[At]],
    ledgers: Mapping[str, Mapping[int, int]],
    closed: Mapping[str, Mapping[int, int]],
    short_lived: Mapping[str, Collection[int]],
) -> Iterator[str]:
    """Where the entries in a log are not those of the broker, by topic.

    `receipts`: those that producers know of. `ledgers`, `closed`: how many entries the broker showed of each ledger, when it was last seen,
    and after its end. `short_lived`: the ledgers that may be missing as a whole, as the broker soon deleted them.
    """
    for topic in sorted({*sends, *receipts, *ledgers}):
        found, ids = sends.get(topic, []), {*sends.get(topic, [])}
        counts, last = Counter(ledger for ledger, _ in ids), dict(sorted(ids))
        missing = {*short_lived.get(topic, ())} - counts.keys()
        wrong: dict[str, list[Any]] = {
            "entries are repeated": [at for at, count in Counter(found).items() if count > 1],
            "entries come after later ones": [at for before, at in pairwise(found) if at < before],
            "entries with a receipt are missing": [
                at for at in sorted({*receipts.get(topic, ())} - ids) if at[0] not in missing
            ],
            "ledgers have gaps": [ledger for ledger, count in counts.items() if count != last[ledger] + 1],
            "ledgers had more entries": [id_ for id_, count in ledgers.get(topic, {}).items() if counts[id_] < count and id_ not in missing],
            "ledgers ended with another number of entries": [
                id_ for id_, count in closed.get(topic, {}).items() if counts[id_] != count and id_ not in missing
            ],
        }  # fmt: skip
        for what, which in wrong.items():
            if which:
                yield f"{topic}: {len(which)} {what}, the first: {which[0]}"


def of_rows(states: list[StateRow], store: Path, found: Log, folder: Path) -> tuple[int, list[str]]:
    """The number of the query's rows, and where they are not those of one fold of its log."""
    tables, wrong = str(store / "tables"), list[str]()
    records = with_ticks(found.records, read_table(tables, KINDS[Tick]))
    ledgers = LedgerStore(str(folder))
    sinks: list[Sink] = [ledgers, QuarantineSink(str(folder)), TableSink(str(folder / "tables"))]
    fold = Fold(ledgers)
    for number, start in enumerate(range(0, len(records), _SLICE)):
        for sink in sinks:
            sink.begin(number)
        for partition, rows in fold.apply(records.slice(start, _SLICE)):
            for sink in sinks:
                sink.write(number, partition, rows)
    count = 0
    for kind in TABLES:
        mine = read_table(tables, kind)
        count += len(mine)
        written = sum(
            pq.read_metadata(store / "tables" / file).num_rows for file in table_files(Storage(tables), kind)
        )
        if written != len(mine):
            wrong.append(f"table {kind}: {written - len(mine)} rows too many in its files")
        if kind != KINDS[Tick]:
            wrong += _unequal(f"table {kind}", mine, read_table(str(folder / "tables"), kind))
    wrong += _unequal("entries", read_entries(str(store)), read_entries(str(folder)))
    wrong += _unequal("quarantine", read_quarantine(str(store)), read_quarantine(str(folder)))
    mine, other = ([each._replace(offset=0, broker=b"") for each in some] for some in (states, fold.states()))
    if mine != other or stats(states) != stats(fold.states()):
        wrong.append("states: not those of a fold of the log")
    wrong += [f"{broken} rows break {rule}" for rule, broken in read_broken(str(store)).items()]
    for effect in (Quarantined, SendError, Unsupported):
        if refused := len(read_table(tables, KINDS[effect])):
            wrong.append(f"{refused} rows {KINDS[effect]}: a twin refuses nothing")
    return count, wrong


def _unequal(name: str, mine: pa.Table, other: pa.Table) -> Iterator[str]:
    """A log that has ticks numbers its records otherwise."""
    mine, other = (
        each.drop_columns([n for n in ("offset", "ordinal") if n in each.column_names])
        for each in (mine, other)
    )
    if not mine.equals(other):
        yield f"{name}: {len(mine)} rows that are not the {len(other)} of a fold of the log"


class Drift(NamedTuple):
    """What MIRROR_DRIFT rows say: how many of subscriptions there are, the most entries, and for how long a backlog differed (s)."""

    rows: int
    entries: int
    seconds: float
    where: str


def drift_of(store: Path) -> Drift:
    tables = str(store / "tables")
    rows = read_table(tables, KINDS[MirrorDrift]).to_pylist()
    ends = [
        each
        for each in read_table(tables, KINDS[SubscriptionEvent]).to_pylist()
        if each["cause"].startswith("deleted")
    ]
    since = dict[tuple[str, str], int]()
    longest, where = 0, ""
    subscriptions = [each for each in rows if each["subscription"] is not None]
    for each in sorted(
        [*subscriptions, *ends], key=lambda row: (row["partition"], row["offset"], row["ordinal"])
    ):
        key = each["topic"], each["subscription"]
        differs = each.get("entries")  # of one that was deleted: None
        begin = since.setdefault(key, each["clock"]) if differs else since.pop(key, each["clock"])
        if each["clock"] - begin > longest:
            longest, where = each["clock"] - begin, f"{key[0]}, {key[1]}: {each['cause']}"
    return Drift(
        len(subscriptions),
        max((abs(each["entries"]) for each in subscriptions), default=0),
        longest / 1000,
        where,
    )


def brokers_of(states: list[StateRow]) -> dict[str, Broker]:
    """The twins of topics, by topic."""
    found = dict[str, Broker]()
    for state in states:
        broker = Broker.decode(state.broker, NoEntries())
        found |= dict.fromkeys(broker.topic_names(), broker)
    return found
