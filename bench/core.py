"""The core alone, in this process: what a backlog, an expiry and the shape of the load cost. Processor time, no Spark."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
import pyarrow.compute as pc

from bench import logs
from schemas.commands import (
    Ack,
    BrokerConfig,
    Flow,
    MessageIdData,
    MessageMetadata,
    Publish,
    Subscribe,
    Tick,
    to_binary,
)
from schemas.entries import Entry
from sinks.ledger_store import LedgerStore
from streaming.broker.broker import Broker
from streaming.broker.ledger.managed_ledger import LedgerInfo
from streaming.broker.position import Position
from streaming.fold.columns import PartitionFold
from streaming.fold.records import Records, StateRow

PER_LEDGER = 50_000
SIZE = 140
COLUMNS = ("offset", "timestamp", "topic", "value")
BATCH = 10_000
TOPIC = logs.topic(0)


class Past:
    """A store whose entries all exist: one per millisecond since `logs.START`. `reads` counts the entries that were read."""

    def __init__(self) -> None:
        self.reads = 0

    def reader(self, partition: int) -> "Past":
        """See `streaming.fold.records.Store`."""
        return self

    def read(self, topic: str, ledger_id: int, first: int, last: int) -> Sequence[Entry]:
        """See `schemas.entries.EntryReader`."""
        self.reads += last - first + 1
        return [
            Entry(MessageMetadata("p", number, logs.START + number), SIZE)
            for number in range((ledger_id - 1) * PER_LEDGER + first, (ledger_id - 1) * PER_LEDGER + last + 1)
        ]


def broker_with_backlog(entries: int, store: Past, **settings: Any) -> Broker:
    """A broker with one topic, of which the subscription `stuck` has acknowledged nothing, and `follows` everything."""
    broker = Broker(0, store)
    say(broker, None, BrokerConfig(settings={"managedLedgerMaxEntriesPerLedger": PER_LEDGER, **settings}))
    for number, name in enumerate(("stuck", "follows")):
        subscribe = Subscribe(
            connection="c",
            consumer_id=number,
            request_id=1,
            subscription=name,
            subType="Exclusive",
            initialPosition="Earliest",
        )
        say(broker, TOPIC, subscribe)
    ledger = broker.topic(TOPIC).ledger
    full, rest = divmod(entries, PER_LEDGER)
    ledger.ledgers = {
        number: LedgerInfo(PER_LEDGER, PER_LEDGER * SIZE, logs.START + number * PER_LEDGER)
        for number in range(1, full + 1)
    }
    ledger.current = full
    ledger.open_ledger(logs.START + entries)
    ledger.current_entries, ledger.current_size = rest, rest * SIZE
    ledger.number_of_entries = ledger.entries_added = entries
    ledger.total_size = entries * SIZE
    ledger.last_confirmed = (
        Position(full, PER_LEDGER - 1) if full and not rest else Position(ledger.current, rest - 1)
    )
    if entries:
        for cursor in broker.topic(TOPIC).cursors.values():
            cursor.mark_delete = Position(1, -1)
        follows = broker.topic(TOPIC).cursors["follows"]
        follows.move(ledger, ledger.last_confirmed, {})
        follows.rewind(ledger)
    broker.take()
    return broker


def say(broker: Broker, topic: str | None, command: Any, now: int = logs.START) -> None:
    """Fold a command."""
    broker.apply(broker.offset + 1, now, topic, command, b"")


class Backlog(NamedTuple):
    """What a batch of `BATCH` publishes that one subscription follows costs: seconds of processor time, bytes of state, bytes
    of memory."""

    entries: int
    seconds: float
    state: int
    resident: int


def backlog(entries: int) -> Backlog:
    """Behind a stuck subscription, with so many entries of backlog. Run it in a process of its own."""
    store = Past()
    broker = broker_with_backlog(entries, store)
    state = StateRow(0, *broker.summary(), broker.offset, broker.encode())
    ledger, first = broker.topic(TOPIC).ledger.current, broker.topic(TOPIC).ledger.current_entries
    now = logs.START + entries
    commands: list[Any] = [Flow(connection="c", consumer_id=1, messagePermits=2 * BATCH)]
    for number in range(BATCH):
        ack = MessageIdData(ledgerId=ledger, entryId=first + number)
        commands.append(Publish(producer="p", sequence_id=number, payload="x" * 100))
        commands.append(Ack(connection="c", consumer_id=1, ack_type="Individual", message_id=[ack]))
    offsets = list(range(state.offset + 1, state.offset + 1 + len(commands)))  # type: ignore[operator]
    records = Records(offsets, [now] * len(commands), [TOPIC] * len(commands), list(map(to_binary, commands)))
    times = []
    for _ in range(5):
        begun = time.process_time()
        fold = PartitionFold(0, store, state)
        fold.apply(records)
        fold.rows()
        after = fold.state()
        times.append(time.process_time() - begun)
    return Backlog(entries, min(times), len(after.broker), int(psutil.Process().memory_info().rss))


class Expiry(NamedTuple):
    """What one check cost that expires or deletes all `entries`: seconds of processor time, entries read, rows."""

    entries: int
    seconds: float
    reads: int
    rows: int


def expiry(entries: int, rule: str) -> Expiry:
    """Let a TTL, a quota or retention take a backlog in one check."""
    every: dict[str, Any] = {"messageExpiryCheckIntervalInMinutes": 0, "backlogQuotaCheckIntervalInSeconds": 0,
             "retentionCheckIntervalInSeconds": 0, "defaultRetentionTimeInMinutes": 0}  # fmt: skip
    rules: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "TTL": ({"ttlDurationDefaultInSeconds": 10}, {"messageExpiryCheckIntervalInMinutes": 1}),
        "quota": (
            {"backlogQuotaDefaultLimitBytes": 1000, "backlogQuotaDefaultRetentionPolicy": "consumer_backlog_eviction"},
            {"backlogQuotaCheckIntervalInSeconds": 60},
        ),
        "retention": ({"ttlDurationDefaultInSeconds": 0}, {"retentionCheckIntervalInSeconds": 60}),
    }  # fmt: skip
    settings, check = rules[rule]
    store = Past()
    broker = broker_with_backlog(entries, store, **(every | settings | check))
    if rule == "retention":
        cursors = broker.topic(TOPIC).cursors
        for cursor in cursors.values():
            cursor.move(broker.topic(TOPIC).ledger, broker.topic(TOPIC).ledger.last_confirmed, {})
    broker = Broker.decode(broker.encode(), store)
    begun = time.process_time()
    say(broker, None, Tick(), logs.START + entries + 100_000)
    seconds = time.process_time() - begun
    return Expiry(entries, seconds, store.reads, len(broker.take()))


class Reading(NamedTuple):
    """What it cost to send a stored backlog to a consumer: entries, seconds of processor time."""

    entries: int
    seconds: float


def reading(entries: int, folder: Path) -> Reading:
    """Publish to a store, then let a new subscription read all of it in another micro-batch."""
    store = LedgerStore(str(folder))
    log = logs.publishes(entries, topics=1, producers=1, partitions=1)
    first = PartitionFold(0, store, None)
    store.begin(0)
    first.apply(Records(*(log[name].to_pylist() for name in COLUMNS)))
    store.write(0, 0, first.rows())
    state = first.state()
    now = logs.START + entries
    commands: list[Any] = [
        Subscribe(connection="c", consumer_id=1, request_id=1, subscription="s", subType="Exclusive", initialPosition="Earliest")
    ]  # fmt: skip
    commands += [Flow(connection="c", consumer_id=1, messagePermits=logs.PERMITS)] * (entries // logs.PERMITS)
    offsets = list(range(entries + 1, entries + 1 + len(commands)))
    begun = time.process_time()
    fold = PartitionFold(0, store, state)
    fold.apply(Records(offsets, [now] * len(offsets), [TOPIC] * len(offsets), list(map(to_binary, commands))))
    rows = fold.rows()
    store.begin(1)
    store.write(1, 0, rows)
    fold.state()
    return Reading(len(rows["MESSAGE"]), time.process_time() - begun)


class Restart(NamedTuple):
    """What a partition's first batch after a restart cost: entries stored, seconds of processor time, files of the store."""

    entries: int
    seconds: float
    files: int


def restart(entries: int, folder: Path) -> Restart:
    """Publish to a store, with a subscription that acknowledges nothing, then let a new process's worker take one publish."""
    store = LedgerStore(str(folder))
    subscribe = Subscribe(
        connection="c", consumer_id=1, request_id=1, subscription="stuck", subType="Exclusive", initialPosition="Earliest"
    )  # fmt: skip
    first = PartitionFold(0, store, None)
    first.apply(Records([0], [logs.START], [TOPIC], [to_binary(subscribe)]))
    first.rows()
    state = first.state()
    batch, written = 0, 0
    while written < entries:
        numbers = range(written + 1, min(written + 100_000, entries) + 1)
        values = [to_binary(Publish(producer="p", sequence_id=n, payload="x" * 100)) for n in numbers]
        records = Records(list(numbers), [logs.START] * len(numbers), [TOPIC] * len(numbers), values)
        fold = PartitionFold(0, store, state)
        store.begin(batch)
        fold.apply(records)
        store.write(batch, 0, fold.rows())
        state, batch, written = fold.state(), batch + 1, numbers[-1]
    one = Records(
        [written + 1], [logs.START], [TOPIC], [to_binary(Publish(producer="q", sequence_id=0, payload="x"))]
    )
    begun = time.process_time()
    again = LedgerStore(str(folder))
    again.begin(batch)
    fold = PartitionFold(0, again, state)
    fold.apply(one)
    again.write(batch, 0, fold.rows())
    fold.state()
    seconds = time.process_time() - begun
    return Restart(entries, seconds, sum(1 for each in folder.rglob("*") if each.is_file()))


class Growth(NamedTuple):
    """What a shape of the load costs: microseconds of processor time per publish, bytes of state of all partitions, bytes of
    memory that the folds took at most."""

    what: str
    value: int
    microseconds: float
    state: int
    resident: int


SHAPES: dict[str, Sequence[int]] = {
    "topics": (1, 64, 1_000, 10_000),
    "producers": (64, 1_000, 10_000),
    "partitions": (1, 4, 16, 64),
    "payload": (10, 100, 1_000, 10_000),
}
"""What grows, with the rest as in `logs.publishes`."""


def growth(what: str, value: int, count: int) -> Growth:
    """Fold `count` publishes in two micro-batches; the second counts, at best of 3. Run it in a process of its own."""
    records = logs.publishes(count, **{what: value})
    parts, size = [], 0
    for partition in records["partition"].unique().to_pylist():
        own = records.filter(pc.equal(records["partition"], partition))
        columns = [own[name].to_pylist() for name in COLUMNS]
        half = len(own) // 2
        first = PartitionFold(partition, Past(), None)
        first.apply(Records(*(column[:half] for column in columns)))
        first.rows()
        parts.append((partition, first.state(), Records(*(column[half:] for column in columns))))
        size += len(own) - half
    times, state = [], 0
    for _ in range(3):
        begun, state = time.process_time(), 0
        for partition, before, records_of_it in parts:
            fold = PartitionFold(partition, Past(), before)
            fold.apply(records_of_it)
            fold.rows()
            state += len(fold.state().broker)
        times.append(time.process_time() - begun)
    return Growth(what, value, 1e6 * min(times) / size, state, int(psutil.Process().memory_info().rss))


if __name__ == "__main__":
    what, *numbers = sys.argv[1:]
    measured = (
        backlog(int(numbers[0])) if what == "backlog" else growth(what, int(numbers[0]), int(numbers[1]))
    )
    sys.stdout.buffer.write(msgspec.json.encode(measured))
