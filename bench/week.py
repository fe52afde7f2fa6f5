"""A made week, and four policy sets over it: what-if in one pass beside four separate replays.

``python -m bench.week [MESSAGES]`` prints times and the speed-up over real time; ``python -m bench.week MESSAGES FOLDER`` writes the
answer and its report instead of replaying. ``python -m bench.week MESSAGES long`` prints what a log takes that memory does not hold.
"""

import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.logs import START
from bench.memory import Shared
from schemas.commands import (
    Ack,
    Admin,
    AnyCommand,
    BrokerConfig,
    CloseConsumer,
    Flow,
    MessageIdData,
    Publish,
    Subscribe,
    Tick,
    to_binary,
    to_json,
)
from schemas.effects import Message
from schemas.records import RECORD
from streaming.answers.whatif.answer import write
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.answers.whatif.report import report
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.jobs.replay import replay_in_process
from streaming.log.table import LOGICAL, OffsetCounter, log_table

WEEK = 7 * 86_400_000
NAMESPACE = "bench/week"
TOPICS = {"live": 0, "jobs": 1, "stuck": 2, "clocks": 3, "unread": 0}
"""Topic → ingress partition. `live` has a consumer all the time, `jobs` one that comes every six hours; the consumer of `stuck`
acks nothing; producers of `clocks` are up to a day off; nobody reads `unread`."""

SHARES = (4, 46, 10, 20, 20)
PAYLOAD = bytes(100)

PIECE = 1 << 20
"""Records of a piece, or a few more."""


def week(messages: int) -> pa.Table:
    """A week's log in four ingress partitions. Three of four messages come in bursts."""
    return pa.concat_tables(pieces(messages)).combine_chunks()


def pieces(messages: int) -> Iterator[pa.Table]:
    """The same in pieces, made one after the other: of most of a message, only its time is in memory."""
    dice = random.Random(7)
    columns: tuple[list[Any], ...] = ([], [], [], [])
    brokers = [Broker(number, NoEntries()) for number in range(4)]
    acked: dict[str, MessageIdData] = {}
    offsets = OffsetCounter()

    def say(name: str | None, partition: int, now: int, command: AnyCommand | Publish) -> list[MessageIdData]:
        topic = None if name is None else f"persistent://{NAMESPACE}/{name}"
        broker = brokers[partition]
        value = to_binary(command)
        for column, each in zip(columns, (partition, now, topic, value), strict=True):
            column.append(each)
        broker.apply(broker.offset + 1, now, topic, command, value)
        return [
            MessageIdData(ledgerId=row.effect.ledger_id, entryId=row.effect.entry_id)
            for row in broker.take()
            if isinstance(row.effect, Message)
        ]

    def said() -> pa.Table:
        """What was said since the last call."""
        partitions, timestamps, topics, values = (column[:] for column in columns)
        for column in columns:
            column.clear()
        partition_ids = np.array(partitions, np.int32)
        return log_table(
            RECORD, partition=partition_ids, offset=offsets.of(partition_ids), timestamp=timestamps,
            topic=pa.array(topics, pa.string()), value=values,
        )  # fmt: skip

    for partition in range(4):
        say(None, partition, START, BrokerConfig(settings={"ttlDurationDefaultInSeconds": 3 * 86_400}))
    for name, partition in TOPICS.items():
        create = Subscribe(connection=name, consumer_id=1, request_id=1, subscription="s", subType="Exclusive",
                           initialPosition="Earliest")  # fmt: skip
        say(name, partition, START, create)
        say(name, partition, START, Flow(connection=name, consumer_id=1, messagePermits=1000))
        if name in ("jobs", "clocks", "unread"):
            leave(say, name, partition, START)
    names = dice.choices(list(TOPICS), SHARES, k=messages)
    drawn = (
        dice.randrange(WEEK)
        if dice.random() < 0.25
        else dice.randrange(28) * (WEEK // 28) + dice.randrange(900_000)
        for _ in range(messages)
    )
    times = np.sort(np.fromiter(drawn, np.int64, messages))
    next_job, got = WEEK // 28, 0
    for number, name in enumerate(names):
        since = int(times[number])
        now = START + since
        if len(columns[0]) >= PIECE:
            yield said()
        if since >= next_job:
            next_job += WEEK // 28
            for each in ("jobs", "clocks"):
                job(say, each, TOPICS[each], now)
        off = dice.randrange(-86_400_000, 86_400_000) if name == "clocks" else 0
        publish = Publish(
            producer=f"p-{name}", sequence_id=number, payload_bytes=PAYLOAD, publish_time=now + off
        )
        for position in say(name, TOPICS[name], now, publish):
            if name == "live":
                acked[name] = position
                got += 1
        if got >= 500:
            got = 0
            say(
                "live",
                0,
                now,
                Ack(connection="live", consumer_id=1, ack_type="Cumulative", message_id=[acked["live"]]),
            )
            say("live", 0, now, Flow(connection="live", consumer_id=1, messagePermits=500))
    for partition in range(4):
        say(None, partition, START + WEEK, Tick())
    yield said()


def leave(say: Any, name: str, partition: int, now: int) -> None:
    """The consumer of a topic goes."""
    say(name, partition, now, CloseConsumer(connection=name, consumer_id=1, request_id=2))


def job(say: Any, name: str, partition: int, now: int) -> None:
    """A consumer comes, takes what there is, acks it, and goes."""
    subscribe = Subscribe(connection=name, consumer_id=1, request_id=1, subscription="s", subType="Exclusive")
    say(name, partition, now, subscribe)
    while got := say(name, partition, now, Flow(connection=name, consumer_id=1, messagePermits=1000)):
        say(
            name,
            partition,
            now,
            Ack(connection=name, consumer_id=1, ack_type="Cumulative", message_id=[got[-1]]),
        )
    leave(say, name, partition, now)


def policies() -> list[PolicySet]:
    """A shorter TTL, an eviction quota, a quota that holds producers, and retention."""
    quota = {"limitSize": 5_000_000}
    calls: dict[str, tuple[str, Any]] = {
        "ttl": ("messageTTL", 86_400),
        "eviction": ("backlogQuota", {**quota, "policy": "consumer_backlog_eviction"}),
        "hold": ("backlogQuota", {**quota, "policy": "producer_request_hold"}),
        "retention": ("retention", {"retentionTimeInMinutes": 1440, "retentionSizeInMB": -1}),
    }
    return [
        PolicySet(
            name,
            log_table(
                LOGICAL, timestamp=[0], topic=pa.array([None], pa.string()),
                value=[to_json(Admin(method="POST", path=f"/namespaces/{NAMESPACE}/{call}", body=body))],
            ),
        )
        for name, (call, body) in calls.items()
    ]  # fmt: skip


def main(messages: int, report_to: Path | None = None) -> None:
    """Print what it takes, beside separate replays. With a folder, write the answer there instead of replaying."""
    log = week(messages)
    sets = policies()
    begun = time.perf_counter()
    found = whatif(log, sets)
    together = time.perf_counter() - begun
    print(f"{messages:,} messages, {len(log):,} records, {len(found.differences):,} differences")
    print(
        f"what-if of {len(sets)} policy sets: {together:.1f} s, {5 * WEEK / 1000 / together:,.0f} times real time"
    )
    if report_to is not None:
        write(found, report_to)
        (report_to / "report.html").write_text(report(found))
        return
    shared, apart = 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(ROUNDS):
            begun = time.process_time()
            whatif(log, sets, processes=1)
            shared += time.process_time() - begun
            begun = time.process_time()
            for each in sets:
                replay_in_process(log, Path(folder) / f"{each.name}{round_}", policies=each.source)
            apart += time.process_time() - begun
    print(
        f"{len(sets)} separate replays: {apart / ROUNDS:.1f} s of a processor; what-if in one process: {shared / ROUNDS:.1f} s, "
        f"{shared / apart:.2f} of that"
    )


def make(messages: int, log: Path) -> int:
    """Write a week's log. Returns its records."""
    records = 0
    with pq.ParquetWriter(log, RECORD, compression="zstd") as file:
        for piece in pieces(messages):
            file.write_table(piece, row_group_size=1 << 16)
            records += len(piece)
    return records


def long(messages: int) -> None:
    """Print the memory and the processor time of a what-if whose log is on the disk, where its pieces go as they are made."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "week.parquet")
        # What it needs for that is gone when the process ends.
        with ProcessPoolExecutor(1, get_context("spawn")) as maker:
            records = maker.submit(make, messages, log).result()
        begun = time.perf_counter()
        with Shared() as used:
            found = whatif(log, policies())
        took = time.perf_counter() - begun
    half = len(used.sizes) // 2
    first, second = max(used.sizes[:half]) / 1e9, max(used.sizes[half:]) / 1e9
    print(f"{messages:,} messages, {records:,} records, {len(found.differences):,} differences")
    print(f"{took:.0f} s, {used.processor / messages * 1e6:.1f} µs of a processor per message")
    print(f"memory of all processes: {first:.2f} GB at most in the first half, {second:.2f} GB in the second")


ROUNDS = 2
"""What-if and replays take turns so many times: the machine may not be quiet."""


if __name__ == "__main__":
    count, *to = sys.argv[1:] or ["5000000"]
    if to == ["long"]:
        long(int(count))
    else:
        main(int(count), Path(to[0]) if to else None)
