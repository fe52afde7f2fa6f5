"""A made week, and four policy sets over it: what-if in one pass beside four separate replays.

``python -m bench.week [MESSAGES]`` prints times and the speed-up over real time; ``python -m bench.week MESSAGES FOLDER`` writes the
answer and its report instead of replaying.
"""

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.logs import START
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


def week(messages: int) -> pa.Table:
    """A week's log in four ingress partitions. Three of four messages come in bursts."""
    dice = random.Random(7)
    columns: tuple[list[Any], ...] = ([], [], [], [])
    brokers = [Broker(number, NoEntries()) for number in range(4)]
    acked: dict[str, MessageIdData] = {}

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
    times = sorted(
        dice.randrange(WEEK)
        if dice.random() < 0.25
        else dice.randrange(28) * (WEEK // 28) + dice.randrange(900_000)
        for _ in range(messages)
    )
    next_job, got = WEEK // 28, 0
    for number, (name, since) in enumerate(zip(names, times, strict=True)):
        now = START + since
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
    partitions, timestamps, topics, values = columns
    partition_ids = np.array(partitions, np.int32)
    return log_table(
        RECORD, partition=partition_ids, offset=OffsetCounter().of(partition_ids), timestamp=timestamps,
        topic=pa.array(topics, pa.string()), value=values,
    )  # fmt: skip


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


ROUNDS = 2
"""What-if and replays take turns so many times: the machine may not be quiet."""


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000, Path(sys.argv[2]) if len(sys.argv) > 2 else None
    )
