"""The demonstration: recorded traffic of a real broker, then a made day with a slow subscription, replayed."""

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas.commands import decode_or_refuse
from schemas.effects import Message
from sinks.outputs import InTheWay, check_folder
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.jobs.replay import is_own
from streaming.traces import RECORDED
from streaming.traces.importer import import_traces, to_line

TRACES = (
    "dedup_reconnect_resend",
    "ack_holes",
    "nack_shared",
    "ttl_periodic",
    "quota_evict_two",
    "ledger_rollover",
)

RESULTS = "results"
_DRAFT = "_log.jsonl"

HOUR = 3_600_000
MINUTE = 60_000
ORDERS = "persistent://shop/day/orders"
CLICKS = "persistent://shop/day/clicks"
SETTINGS = {"managedLedgerMaxEntriesPerLedger": 400, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
POLICIES: tuple[tuple[str, Any], ...] = (
    ("/namespaces/shop/day/deduplication", True),
    ("/namespaces/shop/day/messageTTL", 6 * 3600),
    ("/namespaces/shop/day/retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10}),
    (
        "/namespaces/shop/day/backlogQuota?backlogQuotaType=destination_storage",
        {"limitSize": 400_000, "policy": "consumer_backlog_eviction"},
    ),
)


def make_log(path: Path) -> None:
    """Write the demonstration's log: the traces in `TRACES`, then a day that begins an hour after them.

    Raises `InTheWay` for another log of this name, or for what else no demonstration left in the folder.
    """
    draft = path.with_name(_DRAFT)

    def own(name: str) -> bool:
        folder, _, below = name.partition("/")
        return name in (path.name, _DRAFT) or (folder == RESULTS and is_own(below))

    check_folder(path.parent, own=own, writer="demonstration")
    import_traces([RECORDED / f"{name}.jsonl" for name in TRACES], draft, replace=True)
    text = draft.read_bytes()
    if path.exists() and not path.read_bytes().startswith(text):
        raise InTheWay(f"{path} is another log: choose another folder")
    last = max(json.loads(line)["timestamp"] for line in text.splitlines())
    with draft.open("ab") as lines:
        for timestamp, topic, command in demo_day(int(last) + HOUR):
            lines.write(to_line(timestamp, topic, command))
    draft.replace(path)


def demo_day(start: int) -> Iterator[tuple[int, str | None, dict[str, Any]]]:
    """A day of a shop from `start` (ms): (timestamp, topic, command).

    ``orders``: two web servers publish; ``billing`` (Shared, two consumers) keeps up, ``reports`` works from 8 to 9
    only. One web server loses its connection at noon and sends its last 50 messages again. ``clicks``: many and large; ``sessions``
    keeps up, ``archive`` never comes back. Acks need the ids that messages get, so a broker runs along.
    """
    dice = random.Random(20261121)
    broker, offset = Broker(0, NoEntries()), 0
    received: dict[tuple[str, int], list[Message]] = defaultdict(list)

    def fold(
        timestamp: int, topic: str | None, command: dict[str, Any]
    ) -> tuple[int, str | None, dict[str, Any]]:
        nonlocal offset
        value = json.dumps(command).encode()
        broker.apply(offset, timestamp, topic, decode_or_refuse(value), value)
        offset += 1
        for row in broker.take():
            if isinstance(row.effect, Message):
                received[row.effect.topic, row.effect.consumer_id].append(row.effect)
        return timestamp, topic, command

    def acks(timestamp: int, topic: str, consumer: int) -> Iterator[tuple[int, str | None, dict[str, Any]]]:
        messages = received.pop((topic, consumer), [])
        if messages:
            ids = [{"ledgerId": message.ledger_id, "entryId": message.entry_id} for message in messages]
            connection = f"consumer-{consumer}"
            yield fold(timestamp, topic, {"command": "ACK", "connection": connection, "consumer_id": consumer,
                                          "ack_type": "Individual", "message_id": ids})  # fmt: skip
            yield fold(timestamp, topic, {"command": "FLOW", "connection": connection, "consumer_id": consumer,
                                          "messagePermits": len(ids)})  # fmt: skip

    def subscribe(
        timestamp: int, topic: str, name: str, consumer: int
    ) -> Iterator[tuple[int, str | None, dict[str, Any]]]:
        connection = f"consumer-{consumer}"
        yield fold(timestamp, topic, {"command": "SUBSCRIBE", "connection": connection, "consumer_id": consumer,
                                      "subscription": name, "subType": "Shared", "request_id": consumer,
                                      "consumer_name": connection, "initialPosition": "Earliest"})  # fmt: skip
        yield fold(timestamp, topic, {"command": "FLOW", "connection": connection, "consumer_id": consumer,
                                      "messagePermits": 1000})  # fmt: skip

    yield fold(start, None, {"command": "BROKER_CONFIG", "profile": "4.x", "settings": SETTINGS})
    for path, body in POLICIES:
        yield fold(start, None, {"command": "ADMIN", "method": "POST", "path": path, "body": body})
    for topic, name, consumer in ((ORDERS, "billing", 0), (ORDERS, "billing", 1), (ORDERS, "reports", 2),
                                  (CLICKS, "sessions", 3), (CLICKS, "archive", 4)):  # fmt: skip
        yield from subscribe(start, topic, name, consumer)
    for consumer in (2, 4):  # they only came to leave their subscriptions behind
        yield fold(start, None, {"command": "CONNECTION_LOST", "connection": f"consumer-{consumer}"})
        received.clear()
    sequence: dict[str, int] = defaultdict(int)
    for minute in range(24 * 60):
        now = start + minute * MINUTE
        for topic, producer, rate, size in (
            (ORDERS, "web-1", 3, 60),
            (ORDERS, "web-2", 3, 60),
            (CLICKS, "edge", 4, 400),
        ):
            for _ in range(dice.randint(0, 2 * rate)):
                yield fold(
                    now + dice.randrange(MINUTE // 2), topic, _message(producer, sequence[producer], size)
                )
                sequence[producer] += 1
        if minute == 12 * 60:
            for again in range(sequence["web-1"] - 50, sequence["web-1"]):
                yield fold(now + MINUTE // 2, ORDERS, _message("web-1", again, 60))
        if minute == 8 * 60:
            yield from subscribe(now + MINUTE // 2, ORDERS, "reports", 2)
        if minute == 9 * 60:
            yield fold(now + MINUTE // 2, None, {"command": "CONNECTION_LOST", "connection": "consumer-2"})
        for topic, consumer in (
            (ORDERS, 0),
            (ORDERS, 1),
            (CLICKS, 3),
            *([(ORDERS, 2)] if 8 * 60 <= minute < 9 * 60 else []),
        ):
            yield from acks(now + MINUTE - 1, topic, consumer)


def _message(producer: str, sequence_id: int, size: int) -> dict[str, Any]:
    text = f"{producer} #{sequence_id} "
    return {"producer": producer, "sequence_id": sequence_id, "payload": text.ljust(size, ".")}
