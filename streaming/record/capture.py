"""`magnetar capture`: a command log of what topics of a real Pulsar hold, without having recorded how it came about.

The log publishes each entry again, at its publish time, into the same ledgers; then each subscription acknowledges what it has
acknowledged; then the policies and settings of the cluster take effect. Until then, nothing is checked that could remove an
entry: whatever is still there, the cluster kept. So the log ends in the state of the cluster, and a what-if begins there.
"""

import heapq
import itertools
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple
from urllib.parse import quote

import msgspec

from schemas.commands import Profile, decode_or_refuse
from schemas.effects import AdminResponse, Effect, Error, Quarantined, SendError, SendReceipt, Unsupported
from schemas.lines import JSON_LINES, Unreadable
from sinks.outputs import check_new_file, new_lines
from streaming.broker.admin_requests import topic_path
from streaming.broker.broker import Broker
from streaming.broker.context import namespace_of
from streaming.broker.entries import NoEntries
from streaming.broker.ledger.ack_holes import runs_of
from streaming.broker.names import base_of, complete, partitions_of, whole_of
from streaming.broker.position import from_text
from streaming.broker.topic.stats import cursor_name
from streaming.record.client import Reader
from streaming.record.policies import (
    SYSTEM_NAMES,
    BrokerSettings,
    PolicyCall,
    is_namespace,
    namespace_policies,
    settings_of,
    topic_policies,
)
from streaming.record.proxy import broker_address
from streaming.record.rest import CallFailed, Rest, partition_count, understood
from streaming.record.stored import Stored, send_of
from streaming.traces.importer import to_line
from streaming.traces.trace import Payloads, TraceError

CONNECTION = "capture"
"""The connection of all commands in the log."""

UNKNOWN = (
    "when the broker got a message: its publish time stands for it",
    "what was deleted before, and the last sequence ids of producers all of whose messages were",
    "acknowledgments of single messages in a batch, and how often a message was delivered",
    "consumers, their permits and what was delivered to them and not acknowledged; the types of subscriptions",
    "schemas, and properties of topics and subscriptions",
)
"""What neither the admin API nor a reader tells."""

_LENIENT = {
    "managedLedgerMaxEntriesPerLedger": 1_000_000, "managedLedgerMaxLedgerRolloverTimeMinutes": 2**31 - 1,
    "managedLedgerMaxSizePerLedgerMbytes": 1 << 20, "managedLedgerMinLedgerRolloverTimeMinutes": 2**31 - 1,
    "managedLedgerInactiveLedgerRolloverTimeSeconds": 0, "defaultRetentionTimeInMinutes": -1, "defaultRetentionSizeInMB": -1,
    "backlogQuotaCheckEnabled": False, "brokerDeleteInactiveTopicsEnabled": False, "maxMessageSize": 1 << 27,
}  # fmt: skip
"""Settings with which nothing is removed, and a ledger ends only when the topic is unloaded."""

_IDS = 1000
"""Message ids in an ACK."""

_DEDUPLICATION = "pulsar.dedup"


class NotCaptured(RuntimeError):
    """A topic can't be captured. The text says why."""


class Captured(NamedTuple):
    """How many topics, entries and subscriptions are in the log, and its commands. `missing`: what is not, and why."""

    topics: int
    entries: int
    subscriptions: int
    commands: int
    missing: list[str]


def capture(
    service_url: str,
    rest: Rest,
    topics: Iterable[str],
    out: Path,
    payloads: Payloads = "keep",
    token: Callable[[], str | None] = lambda: None,
) -> Captured:
    """Write the log of `topics` (names of topics, or ``tenant/namespace`` for all in it) to `out`, JSON Lines.

    Raises `NotCaptured`, `CallFailed`, `ReadFailed`, `BadUrl`, and `TraceError` for an `out` that no command would read. Then
    there is no file.
    """
    if not out.name.endswith(JSON_LINES):
        raise TraceError(f"{out}: expected a name ending in .jsonl or .jsonl.gz")
    check_new_file(out)
    broker_address(service_url)
    out.parent.mkdir(parents=True, exist_ok=True)
    with understood(rest.url):
        found, partitioned = _expanded(rest, topics)
    with new_lines(out) as lines, Reader(service_url, token, rest.tls, len(found)) as reader:
        log = _Log(lines, payloads)
        streams = (_timed(topic, reader.entries(topic)) for topic in found)
        try:
            count = _write(log, rest, found, partitioned, heapq.merge(*streams, key=lambda timed: timed[0]))
        except Unreadable as error:
            raise NotCaptured(str(error)) from None
    return Captured(len(found), log.entries, count, log.commands, log.missing)


def _write(
    log: "_Log",
    rest: Rest,
    topics: list[str],
    partitioned: list[PolicyCall],
    stored: Iterator[tuple[int, str, Stored]],
) -> int:
    """Write the log of `topics` with the entries `stored`, by time. Returns the number of subscriptions."""
    first = next(stored, None)
    log.time = _now() if first is None else first[0]
    log.configure(_LENIENT)
    for call in partitioned:
        log.call(None, call)
    subscriptions = {topic: _cursors(rest, topic) for topic in topics}
    for topic, names in subscriptions.items():
        for name in names:
            log.call(topic, PolicyCall("PUT", f"{topic_path(topic)}/subscription/{quote(name, safe='')}"))
    for at, topic, each in () if first is None else itertools.chain([first], stored):
        log.publish(at, topic, each)
    log.time = max(log.time, _now())
    for topic in topics:
        log.end_ledger(topic, rest.get(f"{topic_path(topic)}/internalStats", _InternalStats).ledgers)
        for name, cursor in _cursors(rest, topic).items():  # later than the entries: they are all there
            if name in subscriptions[topic]:
                log.acknowledge(topic, name, cursor)
    log.command(None, {"command": "CONNECTION_LOST", "connection": CONNECTION})
    _end(rest, log, topics)
    return sum(map(len, subscriptions.values()))


def _end(rest: Rest, log: "_Log", topics: list[str]) -> None:
    """The cluster's own policies and settings."""
    settings: BrokerSettings | None = None
    try:
        settings = settings_of(rest)
    except CallFailed as error:
        log.missing.append(f"the broker's settings, so the defaults hold: {error}")
    bases = dict.fromkeys(base_of(topic) for topic in topics)
    for namespace in dict.fromkeys(namespace_of(base) for base in bases):
        policies = namespace_policies(rest, namespace, None if settings is None else settings.cluster)
        log.missing += policies.refused
        for call in policies.calls:
            log.call(None, call)
    for base in bases:
        for call in topic_policies(rest, topic_path(base)):
            log.call(None if base not in topics else base, call)
    if settings is None:
        log.configure({})
    else:
        log.configure(settings.settings, settings.profile)
        log.missing += settings.refused
    log.command(None, {"command": "TICK"})


def _expanded(rest: Rest, topics: Iterable[str]) -> tuple[list[str], list[PolicyCall]]:
    """The topics with partitions instead of partitioned topics, and the calls that create those."""
    found: dict[str, None] = {}
    partitioned: list[PolicyCall] = []
    for given in topics:
        for topic in _of_namespace(rest, given) if is_namespace(given) else [complete(given)]:
            if not topic.startswith("persistent://"):
                raise NotCaptured(f"{topic}: a non-persistent topic stores nothing")
            path = topic_path(topic)
            count = partition_count(rest, f"{path}/partitions")
            if count:
                partitioned.append(PolicyCall("PUT", f"{path}/partitions", count))
            found |= dict.fromkeys(partitions_of(topic, count) or [topic])
    return [*found], partitioned


def _of_namespace(rest: Rest, namespace: str) -> list[str]:
    """The topics of a namespace, partitioned ones as one."""
    partitioned = rest.get(f"/persistent/{namespace}/partitioned", list[str])
    plain = [
        topic
        for topic in rest.get(f"/persistent/{namespace}", list[str])
        if whole_of(topic) not in partitioned and not topic.rpartition("/")[2].startswith(SYSTEM_NAMES)
    ]
    return [*partitioned, *plain]


class _Subscription(msgspec.Struct):
    isDurable: bool = True


class _Stats(msgspec.Struct):
    """What is used of a topic's stats."""

    subscriptions: dict[str, _Subscription]


class _Ledger(msgspec.Struct):
    ledgerId: int


class _Cursor(msgspec.Struct):
    markDeletePosition: Annotated[
        str, msgspec.Meta(pattern=r"^-?[0-9]{1,18}:-?[0-9]{1,18}( \(ackSet [^)]*\))?$")
    ]
    individuallyDeletedMessages: str


class _InternalStats(msgspec.Struct):
    """What is used of a topic's internal stats."""

    ledgers: list[_Ledger]
    cursors: dict[str, _Cursor]


def _cursors(rest: Rest, topic: str) -> dict[str, _Cursor]:
    """The durable subscriptions of a topic, each with its cursor."""
    path = topic_path(topic)
    shown = rest.get(f"{path}/stats", _Stats).subscriptions
    durable = [name for name, sub in shown.items() if sub.isDurable]
    cursors = rest.get(f"{path}/internalStats", _InternalStats).cursors
    if absent := [name for name in durable if cursor_name(name) not in cursors]:
        raise NotCaptured(
            f"{topic}: its stats have the subscription {absent[0]!r}, its internal stats have no cursor of it. Try again"
        )
    return {
        name: cursors[cursor_name(name)]
        for name in durable
        if name != _DEDUPLICATION and not name.startswith(SYSTEM_NAMES)
    }


def _timed(topic: str, stored: Iterable[Stored]) -> Iterator[tuple[int, str, Stored]]:
    """Entries with their times, which go on in the order of the entries."""
    latest = 0
    for each in stored:
        latest = max(latest, each.time)
        yield latest, topic, each


def _now() -> int:
    return time.time_ns() // 1_000_000


class _Positions(NamedTuple):
    """Where the entries of a topic are on the cluster, ascending, and in the log."""

    real: list[tuple[int, int]]
    ours: list[tuple[int, int]]


class _Log:
    """The log as it is written, with a broker that folds it: it tells which position an entry has there."""

    def __init__(self, lines: BinaryIO, payloads: Payloads) -> None:
        self.time = 0
        self.entries = self.commands = 0
        self.missing: list[str] = []
        self._lines, self._payloads = lines, payloads
        self._broker = Broker(0, NoEntries())
        self._requests = itertools.count(1)
        self._producers: dict[tuple[str, str], int] = {}
        self._open: set[tuple[str, str]] = set()
        self._ledgers: dict[str, int] = {}
        self._positions: dict[str, _Positions] = {}
        self._shifted: set[str] = set()
        """Topics with entries that have another number here."""

    def command(self, topic: str | None, command: dict[str, Any]) -> list[Effect]:
        """Write a command, and return what it does."""
        value = msgspec.json.encode(command)
        self._broker.apply(self.commands, self.time, topic, decode_or_refuse(value), value)
        self._lines.write(to_line(self.time, topic, command))
        self.commands += 1
        effects = [row.effect for row in self._broker.take()]
        for effect in effects:
            if isinstance(effect, Quarantined | Unsupported | Error | SendError):
                self.missing.append(f"{command['command']} {topic or ''}: {effect.cause}")
        return effects

    def configure(self, settings: dict[str, Any], profile: Profile = "4.x") -> None:
        self.command(None, {"command": "BROKER_CONFIG", "profile": profile, "settings": settings})

    def call(self, topic: str | None, call: PolicyCall) -> None:
        done = self.command(topic, call.as_command())
        for effect in done:
            if isinstance(effect, AdminResponse) and effect.fields.status >= 400:
                self.missing.append(f"{call.method} {call.path}: {effect.fields.response}")

    def publish(self, time: int, topic: str, stored: Stored) -> None:
        """Publish an entry, in a new ledger if it is in another one than that before."""
        self.time = max(self.time, time)
        if self._ledgers.get(topic, stored.ledger) != stored.ledger:
            self._unload(topic)
        self._ledgers[topic] = stored.ledger
        producer = self._producer(topic, stored.metadata)
        common = {"connection": CONNECTION, "producer_id": producer}
        try:
            send = send_of(stored, self._payloads)
        except Unreadable as error:
            raise NotCaptured(f"{topic}: {error}") from None
        effects = self.command(topic, {**send, **common})
        for effect in effects:
            if isinstance(effect, SendReceipt):
                positions = self._positions.setdefault(topic, _Positions([], []))
                positions.real.append((stored.ledger, stored.entry))
                positions.ours.append((effect.ledger_id, effect.entry_id))
                self.entries += 1
                if effect.entry_id != stored.entry and topic not in self._shifted:
                    self._shifted.add(topic)
                    self.missing.append(
                        f"{topic}: entries before {stored.ledger}:{stored.entry} that no reader gets: the log has it as "
                        f"{effect.ledger_id}:{effect.entry_id}, and what follows likewise"
                    )

    def end_ledger(self, topic: str, ledgers: list[_Ledger]) -> None:
        """End the ledger of the last entry, if the topic has begun a new one since. The topic is in use."""
        if topic in self._ledgers and ledgers and ledgers[-1].ledgerId != self._ledgers[topic]:
            self._unload(topic)
            self.call(topic, PolicyCall("GET", f"{topic_path(topic)}/stats"))

    def _unload(self, topic: str) -> None:
        """Unload a topic, which ends its ledger and closes its producers."""
        self.call(topic, PolicyCall("PUT", f"{topic_path(topic)}/unload"))
        self._open = {key for key in self._open if key[0] != topic}

    def _producer(self, topic: str, metadata: dict[str, Any]) -> int:
        """The id of the producer of a message, which is open."""
        key = topic, metadata["producer_name"]
        id_ = self._producers.setdefault(key, len(self._producers))
        if key not in self._open:
            self._open.add(key)
            encrypted = {"encrypted": True} if metadata.get("encryption_keys") else {}
            self.command(
                topic,
                {"command": "PRODUCER", "connection": CONNECTION, "producer_id": id_, "request_id": next(self._requests),
                 "producer_name": key[1], "user_provided_producer_name": True, **encrypted},
            )  # fmt: skip
        return id_

    def acknowledge(self, topic: str, name: str, cursor: _Cursor) -> None:
        """Have a subscription acknowledge what its cursor has passed and deleted."""
        real, ours = self._positions.get(topic, _Positions([], []))
        passed = bisect_right(real, from_text(cursor.markDeletePosition))
        holes = [
            acked
            for low, high in runs_of(cursor.individuallyDeletedMessages)
            for acked in ours[max(bisect_right(real, low), passed) : bisect_right(real, high)]
        ]
        if not passed and not holes:
            return
        consumer = next(self._requests)
        common = {"connection": CONNECTION, "consumer_id": consumer}
        self.command(
            topic,
            {"command": "SUBSCRIBE", **common, "request_id": next(self._requests), "subscription": name, "subType": "Exclusive"},
        )  # fmt: skip
        ids = [("Cumulative", ours[passed - 1 : passed])] * bool(passed)
        ids += [("Individual", holes[at : at + _IDS]) for at in range(0, len(holes), _IDS)]
        for ack_type, acked in ids:
            message_id = [{"ledgerId": ledger, "entryId": entry_id} for ledger, entry_id in acked]
            self.command(topic, {"command": "ACK", **common, "ack_type": ack_type, "message_id": message_id})
        self.command(topic, {"command": "CLOSE_CONSUMER", **common, "request_id": next(self._requests)})
