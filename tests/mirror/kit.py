"""A mirror of a broker, and the twin that its log makes."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas.commands import decode_or_refuse
from schemas.effects import AdminResponse, Effect, Quarantined, SendError, Unsupported
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.position import from_text
from streaming.kafka.client import consuming
from streaming.kafka.url import KafkaUrl
from streaming.mirror.journal import LogFolder
from streaming.mirror.mirror import ClusterMirror, MirrorTotals
from streaming.record.rest import Rest


class Rounds(threading.Event):
    """Stops a mirror after so many rounds. `before` is called before each but the first."""

    def __init__(self, rounds: int, before: Any = None) -> None:
        super().__init__()
        self._left, self._before = rounds, before

    def wait(self, timeout: float | None = None) -> bool:
        self._left -= 1
        if self._left <= 0:
            self.set()
        elif self._before is not None:
            self._before()
        return self.is_set()


def mirror(
    service_url: str,
    rest: Rest,
    topics: list[str],
    folder: Path,
    rounds: int | threading.Event = 1,
    before: Any = None,
    log: type[LogFolder] = LogFolder,
    every: float = 0.01,
    **more: Any,
) -> tuple[MirrorTotals, list[str]]:
    """What a mirror did in some rounds, or until it was stopped, and what it said."""
    said: list[str] = []
    with log(folder) as journal:
        made = ClusterMirror(service_url, rest, topics, journal, every=every, say=said.append, **more)
        made.find()
        stop = Rounds(rounds, before) if isinstance(rounds, int) else rounds
        return made.run(stop), said


def records(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            record.pop("crc32", None)
            yield record


def positions(folder: Path, topic: str) -> list[tuple[int, int]]:
    """The entries of a topic in a log, in order."""
    found = (
        each["message_id"] for each in records(folder) if each["command"] == "SEND" and each["topic"] == topic
    )
    return [(each["ledgerId"], each["entryId"]) for each in found]


def topic_records(url: KafkaUrl) -> Iterator[Any]:
    """The records of an ingress topic up to its end, partition by partition."""
    from kafka import TopicPartition

    with consuming(url, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        for number in sorted(consumer.partitions_for_topic(url.topic)):
            part = TopicPartition(url.topic, number)
            consumer.assign([part])
            consumer.seek(part, 0)
            end = consumer.end_offsets([part])[part]
            while consumer.position(part) < end:
                for records in consumer.poll(timeout_ms=500).values():
                    yield from records


def entries_of_mirror(ledger: int, count: int) -> list[dict[str, Any]]:
    """The commands with which a mirror adds the first entries of a ledger to its topic."""
    return [
        {
            "command": "SEND", "connection": "mirror", "producer_id": 0, "sequence_id": entry, "payload": "x",
            "metadata": {"producer_name": "p", "sequence_id": entry, "publish_time": 1000},
            "message_id": {"ledgerId": ledger, "entryId": entry},
        }
        for entry in range(count)
    ]  # fmt: skip


class Twin:
    """The broker at the end of a log, and what it did."""

    def __init__(self, folder: Path) -> None:
        self.broker, self.effects = Broker(0, NoEntries()), list[Effect]()
        self._offset = self._time = 0
        for record in records(folder):
            self._time = record.pop("timestamp")
            self._do(record.pop("topic", None), record)
        self.refused = [
            each for each in self.effects if isinstance(each, Quarantined | Unsupported | SendError)
        ]

    def get(self, path: str, topic: str) -> Any:
        """What a GET shows."""
        about = topic if path.startswith("/persistent") else None
        (found,) = self._do(about, {"command": "ADMIN", "method": "GET", "path": path})
        assert isinstance(found, AdminResponse)
        return found.fields.response or None

    def _do(self, topic: str | None, command: dict[str, Any]) -> list[Effect]:
        value = json.dumps(command).encode()
        self.broker.apply(self._offset, self._time, topic, decode_or_refuse(value), value)
        self._offset += 1
        effects = [row.effect for row in self.broker.take()]
        self.effects += effects
        return effects


def differences(rest: Rest, topic: str, twin: Broker) -> dict[str, Any]:
    """Where a topic of the cluster and its twin differ."""
    path, ours = "/" + topic.replace("://", "/"), twin.topic_stats(topic)
    assert ours is not None
    there, stats = rest.get(f"{path}/internalStats"), rest.get(f"{path}/stats?getPreciseBacklog=true")
    here = ours["internal"]
    found: dict[str, Any] = {}
    for name in ("numberOfEntries", "totalSize", "lastConfirmedEntry", "currentLedgerEntries"):
        if here[name] != there[name] and (name != "lastConfirmedEntry" or there["numberOfEntries"]):
            found[name] = here[name], there[name]
    ledgers = [[each["ledgerId"] for each in side["ledgers"]] for side in (here, there)]
    if ledgers[0] != ledgers[1]:
        found["ledgers"] = tuple(ledgers)
    durable = {name: sub for name, sub in stats["subscriptions"].items() if sub.get("isDurable", True)}
    if {*durable} != {*ours["stats"]["subscriptions"]}:
        found["subscriptions"] = {*ours["stats"]["subscriptions"]}, {*durable}
    for name, sub in durable.items():
        mine = ours["stats"]["subscriptions"].get(name, {})
        if mine.get("type") != sub.get("type") and sub["consumers"]:
            found[f"{name}.type"] = mine.get("type"), sub.get("type")
        ledger, cursors = twin.topic(topic).ledger, twin.topic(topic).cursors
        backlog = cursors[name].backlog(ledger, precise=True) if name in cursors else None
        # quirk: with all its entries deleted, a backlog on the cluster counts them still
        if backlog != sub["msgBacklog"] and there["numberOfEntries"]:
            found[f"{name}.msgBacklog"] = backlog, sub["msgBacklog"]
        if len(mine.get("consumers", [])) != len(sub["consumers"]):
            found[f"{name}.consumers"] = len(mine.get("consumers", [])), len(sub["consumers"])
        cursor = here["cursors"].get(name, {})
        real = there["cursors"][name]
        if cursor.get("individuallyDeletedMessages") != real["individuallyDeletedMessages"]:
            found[f"{name}.holes"] = (
                cursor.get("individuallyDeletedMessages"),
                real["individuallyDeletedMessages"],
            )
        marks = [from_text(each["markDeletePosition"]) for each in (cursor, real) if each]
        if len({ledger.next_valid(each) for each in marks}) != 1:
            found[f"{name}.markDeletePosition"] = marks[0], marks[-1]
    return found
