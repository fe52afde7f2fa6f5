"""Merges a log with ingress partitions into one order of records, so that it can be given other partitions.

A broker is a function of its partition's log. A topic in it is a function of its own records and of the records without a
topic, which concern all topics of the partition. So the merged log must show every topic what its partition showed it:

* If every partition has the same records without a topic in the same order, they count as copies of each other. No topic
  can tell which was meant as a copy of which. If they differ, no order is right for all topics, and the log is refused.
  (Partitions without any topic do not count. TICK and CONNECT only advance the time, so they may differ.)
* What came before such a record stays before it, and what came after it stays after it. In between, time decides.
* The time of a record is the clock at which it was folded: its timestamp, or its partition's clock if that was later.
* So a value says nothing of topic and time any more (`schemas.commands.Line`), which would contradict its record. One that did so before
  was refused, and is left out.
"""

from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas import commands as c
from schemas.units import LATEST_TIME
from streaming.broker.admin.partitioned_topics import is_for_whole
from streaming.broker.admin_requests import call_of, topic_of
from streaming.broker.transactions.coordinator import TransactionCommand
from streaming.log.pins import mentioning
from streaming.log.table import LOGICAL, LogError, ordered, replaced, taken

_REMEDY = (
    "Records without a topic count as copies of one only if every partition has the same ones in the same order, see "
    "docs/operate/partitions.md"
)
_CHECKS_MOVE = (
    "the log doesn't begin with one record for all partitions, such as BROKER_CONFIG: periodic checks count from a "
    "partition's first record, so they may run at other moments than before"
)
_LIMIT_SHARED = "maxUnackedMessagesPerBroker limits all topics of an ingress partition together: other topics share it now"

_Ints = np.ndarray[Any, np.dtype[np.int64]]


class Merged(NamedTuple):
    """One order of records (columns `LOGICAL`). `notes`: sentences, each on something that may come out differently for a
    topic once the log has other partitions; empty if nothing does."""

    log: pa.Table
    notes: list[str]


def _without_topic(value: bytes) -> c.AnyCommand | c.Publish | None:
    """The command in the value of a record without a topic; None: it is refused."""
    found = c.decode_or_refuse(value)
    if isinstance(found, c.Line):
        return found.command if found.topic is None else None
    return None if isinstance(found, c.Refused) else found


def for_partition(value: bytes) -> c.AnyCommand | None:
    """The command in the value of a record without a topic, if it is a command for a whole ingress partition."""
    command = _without_topic(value)
    common = (
        c.BrokerConfig | c.RunCheck | c.Restart | c.ConnectionLost | c.Tick | c.Connect | TransactionCommand
    )
    if isinstance(command, common):
        return command
    return command if isinstance(command, c.Admin) and topic_of(command.path) is None else None


def is_on_partitioned_topic(value: bytes) -> bool:
    """Whether the value of a record without a topic is a call that changes a partitioned topic as a whole."""
    command = _without_topic(value)
    return isinstance(command, c.Admin) and command.method != "GET" and is_for_whole(command)


def on_partitioned_topics(log: pa.Table) -> dict[int, c.Admin]:
    """The calls that change a partitioned topic as a whole, from its creation to its deletion, by the row in `log` (columns
    ``topic`` and ``value``). They concern all ingress partitions, see `streaming.broker.admin.partitioned_topics`."""
    found: dict[int, c.Admin] = {}
    if not pc.any(pc.match_substring(log["value"], "/partitions")).as_py():
        return found
    partitioned: set[str] = set()
    calls = pc.match_substring(log["value"], "ADMIN").to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(calls).tolist():
        command = c.decode_or_refuse(log["value"][row].as_py())
        if isinstance(command, c.Line):
            if command.differs_from(log["topic"][row].as_py(), log["timestamp"][row].as_py()) is not None:
                continue
            command = command.command
        if not isinstance(command, c.Admin) or command.method == "GET" or not is_for_whole(command):
            continue
        whole = topic_of(command.path)
        if whole is None or log["topic"][row].as_py() not in (None, whole):
            continue
        if call_of(command) == "/partitions":
            (partitioned.discard if command.method == "DELETE" else partitioned.add)(whole)
            found[row] = command
        elif whole in partitioned:
            found[row] = command
    return found


def to_coordinators(log: pa.Table) -> dict[int, TransactionCommand]:
    """The requests to coordinators of transactions, by the row in `log` (columns ``topic`` and ``value``). With several ingress partitions, they concern
    all of them."""
    found: dict[int, TransactionCommand] = {}
    for row in mentioning(log, b"_TXN", b"TC_CLIENT"):
        command = c.decode_or_refuse(log["value"][row].as_py())
        if isinstance(command, c.Line):
            if command.differs_from(log["topic"][row].as_py(), log["timestamp"][row].as_py()) is not None:
                continue
            command = command.command
        if isinstance(command, TransactionCommand):
            found[row] = command
    return found


def without_coordinates(records: pa.Table) -> tuple[pa.Table, int]:
    """`records` (columns `RECORD`) whose values say nothing of their topic and time. The number of those that were left out, because
    what they said was not what the record has: they are refused."""
    values = records["value"]
    said = pc.or_(pc.match_substring(values, '"timestamp"'), pc.match_substring(values, '"topic"'))
    said = pc.or_(said, pc.match_substring(values, "\\u"))  # an escape may be in the name of a field
    rows = np.flatnonzero(said.to_numpy(zero_copy_only=False)).tolist()
    plain, keep = dict[int, bytes](), np.ones(len(records), bool)
    for row in rows:
        line = c.decode_or_refuse(values[row].as_py())
        if isinstance(line, c.Line):
            keep[row] = (
                line.differs_from(records["topic"][row].as_py(), records["timestamp"][row].as_py()) is None
            )
            plain[row] = c.to_json(line.command)
    return replaced(records, "value", plain).filter(pa.array(keep)), int((~keep).sum())


def merge_partitions(records: pa.Table, ticks: pa.Table | None = None, latest: int = LATEST_TIME) -> Merged:
    """One order of `records` (columns `RECORD`) that shows every topic what its partition showed it.

    `ticks` (columns ``partition``, ``offset``, ``clock``) are the trigger's ticks of the query that folded the records: the
    clock of a partition was at least there when its later records were folded. The last tick becomes a TICK command.
    `latest`: records with a later time (ms) are refused, so they keep it, and take nothing along.

    Raises `LogError` if the records without a topic differ between partitions, or a topic is in two partitions.
    """
    records, refused = without_coordinates(ordered(records))
    notes = []
    if refused:
        notes.append(
            f"{refused} records were left out: the `topic` or `timestamp` in their value is not that of the record, so they are refused"
        )
    if not len(records):
        return Merged(records.select(LOGICAL.names), notes)
    check_topics(records)
    partition = records["partition"].to_numpy()
    found = _found(records, partition, ticks, latest)
    alone = records["topic"].is_null().to_numpy()
    commands = {int(row): for_partition(records["value"][int(row)].as_py()) for row in np.flatnonzero(alone)}
    commands |= {row: command for row, command in on_partitioned_topics(records).items() if alone[row]}
    timely = [row for row, command in commands.items() if isinstance(command, c.Tick | c.Connect)]
    common = np.zeros(len(records), bool)
    common[[row for row, command in commands.items() if command is not None and row not in {*timely}]] = True

    homes = np.unique(partition[~alone] if not alone.all() else partition)
    copies = _copies(records, {int(home): np.flatnonzero(common & (partition == home)) for home in homes})
    times = found[copies]  # by home and place
    last_copy = times.max(axis=0)

    stage = np.searchsorted(
        last_copy, found, side="right"
    )  # in a partition without topics, time alone decides
    for home in homes:
        own = partition == home
        stage[own] = np.cumsum(common[own]) - common[own]
    keep = ~common
    keep[copies[0]] = True
    keep[_repeats(records, partition, found, timely)] = False
    found[copies[0]] = last_copy
    order = np.lexsort((found, common, stage))
    order = order[keep[order]]

    stamps = records["timestamp"].to_numpy()
    stamps = np.where(
        stamps > latest, stamps, found
    )  # too late, or in another unit, so that it is not a time: the record is quarantined
    log = taken(records, order)
    log = pa.table([pa.array(stamps[order]), log["topic"], log["value"]], schema=LOGICAL)
    if ticks is not None and len(ticks) and (last := pc.max(ticks["clock"]).as_py()) > found.max():
        end = {"timestamp": last, "topic": None, "value": c.to_json(c.Tick())}
        log = pa.concat_tables([log, pa.Table.from_pylist([end], LOGICAL)])

    if (apart := int((last_copy - times.min(axis=0)).max(initial=0))) > 0:
        notes.append(
            f"the copies of records without a topic met clocks up to {apart} ms apart: each counts at the latest"
        )
    begun = [found[(partition == home) & (found > 0)][:1].tolist() for home in homes]
    first = order[found[order] > 0][:1].tolist()
    if any(each != begun[0] for each in begun) or (first and commands.get(first[0]) is None):
        notes.append(_CHECKS_MOVE)
    if any(isinstance(each, c.BrokerConfig) and _limits(each) for each in commands.values()):
        notes.append(_LIMIT_SHARED)
    return Merged(log, notes)


def check_topics(records: pa.Table) -> None:
    """Raises `LogError` if a topic has records in two ingress partitions."""
    pairs = records.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([])
    homes: dict[str, int] = {}
    for partition, topic in sorted(
        (pair["partition"], pair["topic"]) for pair in pairs.to_pylist() if pair["topic"] is not None
    ):
        if homes.setdefault(topic, partition) != partition:
            raise LogError(
                f"topic {topic} has records in partitions {homes[topic]} and {partition}, where it is two topics, which "
                "can't become one. All writers must choose the same partition for a topic"
            )


def _found(records: pa.Table, partition: _Ints, ticks: pa.Table | None, latest: int) -> _Ints:
    """The time (ms) at which each record was folded, which never goes back in a partition; 0: before any time was known."""
    found: _Ints = records["timestamp"].to_numpy().astype(np.int64)
    found[(found < 0) | (found > latest)] = 0
    offset = records["offset"].to_numpy()
    for number in np.unique(partition):
        own = np.flatnonzero(partition == number)
        if ticks is not None:
            mine = ticks.filter(pc.equal(ticks["partition"], number))
            after = np.searchsorted(offset[own], mine["offset"].to_numpy(), side="right")
            later = after < len(own)
            np.maximum.at(found, own[after[later]], mine["clock"].to_numpy()[later])
        found[own] = np.maximum.accumulate(found[own])
    return found


def _copies(records: pa.Table, rows: dict[int, _Ints]) -> _Ints:
    """The rows of the records that all partitions have, by partition and place. `rows`: the same by partition."""
    homes = list(rows)
    values = [[records["value"][int(row)].as_py() for row in own] for own in rows.values()]
    for place, copies in enumerate(zip_longest(*values)):
        for number, value in enumerate(copies):
            if value != copies[0]:
                one, other = (number, 0) if copies[0] is None else (0, number)
                offset = records["offset"][int(rows[homes[one]][place])].as_py()
                raise LogError(
                    f"partition {homes[one]}, offset {offset}: {values[one][place][:80]!r} has no topic, and partition "
                    f"{homes[other]} has no equal record in its place. {_REMEDY}"
                )
    return np.stack(list(rows.values())).astype(np.int64)


def _repeats(records: pa.Table, partition: _Ints, found: _Ints, rows: list[int]) -> list[int]:
    """Of the records that only advance the time, those that repeat one of another partition."""
    seen: dict[tuple[int, bytes], dict[int, int]] = {}
    repeats = []
    for row in rows:
        times = seen.setdefault((int(found[row]), records["value"][row].as_py()), {})
        most = max(times.values(), default=0)
        times[int(partition[row])] = times.get(int(partition[row]), 0) + 1
        if times[int(partition[row])] <= most:
            repeats.append(row)
    return repeats


def _limits(config: c.BrokerConfig) -> bool:
    return str(config.settings.get("maxUnackedMessagesPerBroker", 0)) not in ("0", "")
