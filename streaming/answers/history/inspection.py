"""The state of the brokers at a micro-batch, as tables and as Pulsar's stats."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from schemas.arguments import checked
from streaming.answers.history.folders import NotFound, check_home, listed
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.state.codec import decode_state
from streaming.fold.records import StateRow
from streaming.spark.checkpoint import check_store, noted
from streaming.spark.failure import explained
from streaming.state.seed import read_seed, with_seed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_T, _N, _B = pa.string(), pa.int64(), pa.bool_()

VIEWS: dict[str, pa.Schema] = {
    "topics": pa.schema([
        ("partition", pa.int32()), ("topic", _T), ("ledgers", _N), ("entries", _N), ("storage", _N), ("backlog", _N),
        ("last_confirmed", _T), ("producers", _N), ("subscriptions", _N), ("terminated", _B), ("fenced", _B),
        ("deduplication", _T), ("sampled", _B),
    ]),
    "subscriptions": pa.schema([
        ("topic", _T), ("subscription", _T), ("type", _T), ("durable", _B), ("consumers", _N), ("backlog", _N),
        ("unacked", _N), ("delayed", _N), ("dispatched", _N), ("acked", _N), ("expired", _N), ("evicted", _N),
    ]),
    "consumers": pa.schema([
        ("topic", _T), ("subscription", _T), ("consumer", _T), ("connection", _T), ("consumer_id", _N), ("priority", _N),
        ("permits", _N), ("unacked", _N), ("blocked", _B), ("in_flight", _N),
    ]),
    "cursors": pa.schema([
        ("topic", _T), ("cursor", _T), ("durable", _B), ("mark_delete", _T), ("read_position", _T), ("backlog", _N),
        ("ack_holes", _N), ("partly_acked_batches", _N),
    ]),
    "ack_holes": pa.schema([("topic", _T), ("cursor", _T), ("ledger", _N), ("first", _N), ("last", _N)]),
    "producers": pa.schema([
        ("topic", _T), ("producer", _T), ("connected", _B), ("connection", _T), ("access_mode", _T), ("sequence_id", _N),
    ]),
    "ledgers": pa.schema([
        ("topic", _T), ("ledger", _N), ("entries", _N), ("size", _N), ("open", _B), ("closed_at", _N),
    ]),
    "policies": pa.schema([("level", _T), ("name", _T), ("policy", _T), ("value", _T)]),
}  # fmt: skip
"""The tables of `views`. Positions are LEDGER:ENTRY, sizes in bytes, times in ms since the epoch, values of policies JSON.
`sampled`: see `PersistentTopic.is_sampled`. An ack hole is a run of acked entries above the mark-delete position, `first` and `last` included. A producer's `sequence_id`:
the last one that deduplication persisted."""


def batches(checkpoint: str | Path) -> list[int]:
    """The micro-batches that a checkpoint (a folder, or an ``s3a://`` URL) has committed and still notes. Of these, Spark keeps the
    last 100 states. Raises `NotFound`, `BadCheckpoint`."""
    found = noted(checkpoint, "commits")
    if not found and not noted(checkpoint, "offsets"):
        raise NotFound(f"{checkpoint} is not the --checkpoint of a query")
    return sorted(found)


def batch_times(checkpoint: str | Path) -> dict[int, tuple[float, float]]:
    """When the committed micro-batches that a checkpoint still notes were planned and committed, in seconds since the epoch."""
    planned, committed = noted(checkpoint, "offsets"), noted(checkpoint, "commits")
    return {each: (planned[each], committed[each]) for each in sorted(planned.keys() & committed.keys())}


def check_batches(checkpoint: str | Path, *wanted: int) -> None:
    """Raises `NotFound` if a checkpoint has no state, or lacks one of these micro-batches."""
    known = batches(checkpoint)
    if not known:
        raise NotFound(f"{checkpoint} has no committed micro-batch")
    for batch_id in wanted:
        if batch_id not in known:
            raise NotFound(f"{checkpoint} has no micro-batch {batch_id}: there are {known[0]} to {known[-1]}")


@checked
def states_at(
    spark: SparkSession,
    checkpoint: str | Path,
    batch_id: int | None = None,
    *,
    store: str | Path | None = None,
) -> list[StateRow]:
    """The states after a micro-batch (None: the last) by ingress partition, from Spark's ``statestore`` source. The query
    may run meanwhile.

    `store`: that of the query. If it began from other states (`magnetar state`), partitions that it has not visited yet have theirs there.

    Raises `NotFound`, `QueryFailed`, or another `MagnetarError` for files that are damaged or missing, and for the store of another query.
    """
    from streaming.spark.state import partition_states

    check_batches(checkpoint, *([] if batch_id is None else [batch_id]))
    if store is not None:
        check_store(checkpoint, str(store))
    with explained("Try it again"):
        found = partition_states(spark, checkpoint, batch_id)
    return found if store is None else [*with_seed(found, read_seed(str(store)))]


@checked
def views(states: Sequence[StateRow], topics: Collection[str] | None = None) -> dict[str, pa.Table]:
    """The states as Arrow tables, see `VIEWS`, with their rows in the order of topics. Decodes all topics, or these alone."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in VIEWS}
    for state in sorted(states):
        broker = Broker.decode(state.broker, NoEntries())
        for name, row in _rows(state.partition, broker, topics):
            if name != "policies" or row not in rows[name]:  # every partition has those of all namespaces
                rows[name].append(row)
    return {name: pa.Table.from_pylist(rows[name], schema) for name, schema in VIEWS.items()}


@checked
def spark_views(spark: SparkSession, states: Sequence[StateRow]) -> dict[str, DataFrame]:
    """The `views` as DataFrames, registered under their names as temporary views, for SQL."""
    found = {}
    for name, table in views(states).items():
        found[name] = spark.createDataFrame(table)
        found[name].createOrReplaceTempView(name)
    return found


def topic_stats(states: Sequence[StateRow], topic: str) -> dict[str, Any]:
    """``stats`` and ``internal`` stats of a topic with the names of Pulsar's admin API, and whether it is ``sampled``. Raises `NotFound`."""
    brokers = [(state, Broker.decode(state.broker, NoEntries())) for state in states]
    for name in (topic, f"persistent://{topic}", f"persistent://public/default/{topic}"):
        found = {
            state.partition: (state, broker) for state, broker in brokers if name in broker.topic_names()
        }
        check_home(name, found)
        for state, broker in found.values():
            sampled = not is_non_persistent(name) and broker.topic(name).is_sampled
            return {"topic": name, "clock": state.clock, "sampled": sampled, **broker.topic_stats(name)}
    known = [name for _, broker in brokers for name in broker.topic_names()]
    raise NotFound(f"there is no topic {topic}: {listed('topic', topic, known)}")


def sampled_topics(states: Sequence[StateRow]) -> list[str]:
    """The topics that are sampled, see `PersistentTopic.is_sampled`."""
    brokers = (Broker.decode(state.broker, NoEntries()) for state in states)
    return sorted(
        name for broker in brokers for name in broker.topic_names()
        if not is_non_persistent(name) and broker.topic(name).is_sampled
    )  # fmt: skip


def differences(before: Sequence[StateRow], after: Sequence[StateRow]) -> pa.Table:
    """What changed in the `views` between two states: a row per changed value. `before` or `after` is null where a row is
    only in one of them. Decodes the topics that changed. Ack holes, which have no key, are compared as the runs of a ledger."""
    blocks = [
        {name: block.data for state in states for name, block in decode_state(state.broker).topics.items()}
        for states in (before, after)
    ]
    changed = {name for name in blocks[0] | blocks[1] if blocks[0].get(name) != blocks[1].get(name)}
    old, new = (_keyed(views(states, changed)) for states in (before, after))
    rows = [
        {"view": view, "of": of, "column": column, "before": old.get((view, of, column)),
         "after": new.get((view, of, column))}
        for view, of, column in dict.fromkeys([*old, *new])
        if old.get((view, of, column)) != new.get((view, of, column))
    ]  # fmt: skip
    return pa.Table.from_pylist(
        rows, pa.schema([(name, _T) for name in ("view", "of", "column", "before", "after")])
    )


_KEYS = {
    "topics": ("topic",), "subscriptions": ("topic", "subscription"), "cursors": ("topic", "cursor"),
    "consumers": ("topic", "subscription", "connection", "consumer_id"), "producers": ("topic", "producer"),
    "ack_holes": ("topic", "cursor", "ledger", "first"), "ledgers": ("topic", "ledger"),
    "policies": ("level", "name", "policy"),
}  # fmt: skip


def _keyed(tables: dict[str, pa.Table]) -> dict[tuple[str, str, str], str]:
    return {
        (view, " ".join(str(row[key]) for key in _KEYS[view]), column): str(value)
        for view, table in tables.items()
        for row in table.to_pylist()
        for column, value in row.items()
        if column not in _KEYS[view] and value is not None
    }


def _rows(
    partition: int, broker: Broker, topics: Collection[str] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a partition, each with its view."""
    for name, policies in broker.namespace_policies.items():
        yield from _policies("namespace", name, policies)
    for name in broker.topic_names():
        if is_non_persistent(name) or (topics is not None and name not in topics):
            continue
        topic = broker.topic(name)
        ledger = topic.ledger
        yield "topics", {
            "partition": partition, "topic": name, "ledgers": len(ledger.ledgers), "entries": ledger.number_of_entries,
            "storage": ledger.total_size, "backlog": topic.backlog(precise=True), "last_confirmed": str(ledger.last_confirmed),
            "producers": len(topic.producers), "subscriptions": len(topic.subscriptions),
            "terminated": ledger.terminated, "fenced": topic.fenced, "deduplication": topic.dedup.status,
            "sampled": topic.is_sampled,
        }  # fmt: skip
        for each in topic.subscriptions.values():
            dispatcher = each.dispatcher
            yield "subscriptions", {
                "topic": name, "subscription": each.name, "type": each.type, "durable": each.durable,
                "consumers": len(each.consumers), "backlog": topic.cursors[each.name].backlog(ledger, precise=True),
                "unacked": sum(consumer.unacked for consumer in each.consumers),
                "delayed": 0 if dispatcher is None else dispatcher.delayed_messages, "dispatched": each.dispatched,
                "acked": each.acked, "expired": each.expired, "evicted": each.evicted,
            }  # fmt: skip
            for consumer in each.consumers:
                yield "consumers", {
                    "topic": name, "subscription": each.name, "consumer": consumer.name,
                    "connection": consumer.connection, "consumer_id": consumer.consumer_id,
                    "priority": consumer.priority, "permits": consumer.permits, "unacked": consumer.unacked,
                    "blocked": consumer.blocked, "in_flight": len(consumer.pending),
                }  # fmt: skip
        for cursor in topic.cursors.values():
            yield "cursors", {
                "topic": name, "cursor": cursor.name, "durable": cursor.durable, "mark_delete": str(cursor.mark_delete),
                "read_position": str(cursor.read_position), "backlog": cursor.backlog(ledger, precise=True),
                "ack_holes": cursor.acked.count_runs(), "partly_acked_batches": len(cursor.batches),
            }  # fmt: skip
            for low, high in cursor.acked.runs():
                yield "ack_holes", {
                    "topic": name, "cursor": cursor.name, "ledger": low.ledger, "first": low.entry + 1, "last": high.entry,
                }  # fmt: skip
        for producer in dict.fromkeys([*topic.producers, *topic.dedup.persisted]):
            found = topic.producers.get(producer)
            yield "producers", {
                "topic": name, "producer": producer, "connected": found is not None,
                "connection": found and found.connection, "access_mode": found and found.access_mode,
                "sequence_id": topic.dedup.persisted.get(producer),
            }  # fmt: skip
        for id_, info in ledger.ledgers.items():
            is_open = id_ == ledger.current and not info.timestamp
            yield "ledgers", {
                "topic": name, "ledger": id_, "entries": ledger.current_entries if is_open else info.entries,
                "size": ledger.current_size if is_open else info.size, "open": is_open,
                "closed_at": info.timestamp or None,
            }  # fmt: skip
        yield from _policies("topic", name, topic.policies)


def _policies(level: str, name: str, policies: msgspec.Struct) -> Iterator[tuple[str, dict[str, Any]]]:
    for policy, value in msgspec.to_builtins(policies).items():
        yield "policies", {
            "level": level, "name": name, "policy": policy, "value": msgspec.json.encode(value).decode(),
        }  # fmt: skip
