"""A query that goes on from the states of another one: over other ingress partitions, or from a dump.

What it needs is put into its new store: the states (`streaming.seed`), and the entries of their topics. Its topic begins with a
TICK in every partition, so that each is visited, and with the records that the old query has not folded. The old query's
topic, checkpoint and store stay as they are. Every step can be repeated, and the last one says that all is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from schemas.commands import Connect, Tick, to_json
from schemas.records import RECORD
from sinks.ledger_store import LedgerStore, TopicLedgers
from streaming.broker.codec import PartitionState, TopicBlock, decode_state, decode_topic, encode_state
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.kafka.client import administration
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.copies import send_rest
from streaming.kafka.ingress import ensure_ingress
from streaming.kafka.produce import produce_log
from streaming.kafka.repartition import read_records
from streaming.kafka.topics import Offsets, ensure_topic, holds_records, topic_offsets
from streaming.kafka.url import KafkaUrl
from streaming.log.merge import for_partition, merge_partitions, on_partitioned_topics
from streaming.log.partition import ingress_partition, partition_log
from streaming.log.table import LogError, log_table
from streaming.seed import NotWhole, Origin, Seed, SeedWriter
from streaming.spread import NotSpread, Spread

MOST_UNFOLDED = 100_000
"""How many records the old query may not have folded yet. They are in memory while they are copied."""

CATCH_UP = "start the query once more, and stop it when it has caught up"
"""What to do first. A clause of a sentence."""


class States(NamedTuple):
    """The states of a query. `name`: says whose they are. `encoded`: as `Broker.encode` gives them, one per ingress partition.

    `entries`: the URL of the store that has the entries. `ingress`: the query's topic, None: unknown. `offsets`: the first offset
    that was not folded, by partition of the topic.
    """

    name: str
    encoded: Iterable[bytes]
    entries: str
    ingress: KafkaUrl | None
    offsets: Mapping[int, int]


class Moved(NamedTuple):
    """`copied`: records that the old query had not folded. `notes`: what may come out differently, and what to watch."""

    topics: int
    copied: int
    notes: list[str]


def move_states(
    states: States,
    ingress: KafkaUrl,
    store: str,
    *,
    partitions: int,
    config: KafkaConfig = PLAIN,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Moved:
    """Give `states` the partitions of a new topic `ingress`, which is created with `partitions`, for a query with a new `store`.

    `check` is called again and again, and may raise what stops the move. Without `states.ingress`, no records are copied. Memory:
    one partition's state, old or new, and the records that are copied.

    Raises:
        NotSpread, LogError: the states can't be given other partitions.
        NotWhole: the store or the topic is in use for something else.
        IngressChanged: the old topic is not the one that the old store belongs to.
        KafkaUnreachable, NotProduced: Kafka failed. Start again.
        EntryNotFound, Damaged, NotStored: the old store lacks an entry, or the new one can't be written.
        StateVersionError: a newer Magnetar wrote the states.
    """
    writer = SeedWriter(store)
    writer.check_new()
    ends = None
    if states.ingress is not None:
        ensure_ingress(states.ingress, states.entries, config=config)
        ends = _unfolded(states.ingress, states.offsets, config)
    if not writer.is_begun:
        _check_new(ingress, config)
    count = ensure_topic(ingress, partitions, config)
    if count != partitions:
        raise LogError(
            f"topic {ingress.topic} has {count} partitions, not {partitions}: choose another topic"
        )
    writer.begin(_origin(states, ingress, partitions, ends or {}, config))

    spread = Spread(partitions, lambda topic: ingress_partition(topic, partitions))
    for encoded in states.encoded:
        state = decode_state(encoded)
        check()
        for new, piece in spread.add(state).items():
            writer.write_piece(state.partition, new, encode_state(piece))
    notes, homes = spread.check(), spread.homes
    records = _first_records(dict.fromkeys(range(partitions), spread.clock))
    copied = 0
    if states.ingress is not None and ends is not None:
        tail = _tail(states.ingress, ends, set(homes.values()), spread.clock, config)
        notes += tail.notes
        copied = tail.read
        records = pa.concat_tables([records, partition_log(tail.records, partitions)])
        notes += _strays(homes, len(ends))
    entries, target = LedgerStore(states.entries), LedgerStore(store)
    for new in range(partitions):
        check()
        state = spread.joined(new, [decode_state(piece) for piece in writer.take_pieces(new)])
        _put(writer, state, entries, target, homes)
    check()
    send_rest(records, ingress, config, progress)
    if states.ingress is not None and ends is not None:
        _check_end(states.ingress, ends, config)
    ensure_ingress(ingress, store, partitions, config)
    check()
    writer.finish(Seed(partitions=partitions))
    return Moved(len(homes), copied, notes)


def restore_states(
    states: States,
    ingress: KafkaUrl,
    store: str,
    *,
    partitions: int,
    config: KafkaConfig = PLAIN,
    check: Callable[[], None] = lambda: None,
) -> Moved:
    """Put `states` into a new `store` as they are, for a query that goes on in the topic that they come from.

    `check` and what it raises: see `move_states`.
    """
    writer = SeedWriter(store)
    writer.check_new()
    with administration(ingress, config) as admin:
        held = topic_offsets(admin, ingress.topic)
    if len(held) != partitions:
        raise LogError(
            f"topic {ingress.topic} has {len(held)} partitions, and the states are of {partitions}: give them a new topic"
        )
    for partition, (first, end) in held.items():
        if not first <= states.offsets[partition] <= end:
            raise LogError(
                f"topic {ingress.topic}, partition {partition}: the states go on at offset {states.offsets[partition]}, and Kafka has "
                f"offsets {first} to {end - 1}: give them a new topic, if you can do without the records in between"
            )
    writer.begin(_origin(states, ingress, partitions, {}, config))
    entries, target = LedgerStore(states.entries), LedgerStore(store)
    topics, clocks = 0, dict[int, int]()
    for encoded in states.encoded:
        check()
        state = decode_state(encoded)
        topics += len(state.topics)
        clocks[state.partition] = state.clock
        _put(writer, state, entries, target, dict.fromkeys(state.topics, state.partition))
    # Their own clocks: nothing happens but that the query visits them, which it does from then on.
    produce_log(_first_records(clocks), f"kafka://{ingress.bootstrap}/{ingress.topic}", config=config)
    ensure_ingress(ingress, store, partitions, config)
    check()
    writer.finish(Seed(partitions=partitions, offsets={str(p): at for p, at in states.offsets.items()}))
    return Moved(topics, 0, [])


def _check_new(ingress: KafkaUrl, config: KafkaConfig) -> None:
    with administration(ingress, config) as admin:
        known = ingress.topic in admin.list_topics()
    if known and holds_records(ingress, config):
        raise NotWhole(f"topic {ingress.topic} has records already: choose another topic")


def _origin(states: States, ingress: KafkaUrl, partitions: int, ends: Offsets, config: KafkaConfig) -> Origin:
    with administration(ingress, config) as admin:
        (topic,) = admin.describe_topics([ingress.topic])
    return Origin(
        states=states.name,
        ingress=ingress.topic,
        topic_id=topic["topic_id"],
        partitions=partitions,
        ends=[end for _, end in ends.values()],
    )


def _put(
    writer: SeedWriter,
    state: PartitionState,
    entries: LedgerStore,
    target: LedgerStore,
    homes: Mapping[str, int],
) -> None:
    topics = [
        _ledgers(name, homes[name], block)
        for name, block in sorted(state.topics.items())
        if not is_non_persistent(name)
    ]
    target.take(entries, state.partition, topics)
    writer.write(state.partition, encode_state(state))


def _ledgers(name: str, partition: int, block: TopicBlock) -> TopicLedgers:
    ledger = decode_topic(block.data).ledger
    entries = {id_: info.entries for id_, info in ledger.ledgers.items()}
    closed = {id_ for id_, info in ledger.ledgers.items() if info.entries or id_ != ledger.current}
    if ledger.current in entries and ledger.current not in closed:
        entries[ledger.current] = ledger.current_entries
        if block.closed:
            closed.add(ledger.current)
    return TopicLedgers(name, partition, entries, closed, ledger.number_of_entries, ledger.total_size)


def _first_records(clocks: Mapping[int, int]) -> pa.Table:
    """A record for each partition, at its time (ms): with it, the query visits the partition for the first time."""
    return log_table(
        RECORD,
        partition=list(clocks),
        offset=[0 for _ in clocks],
        timestamp=list(clocks.values()),
        topic=pa.nulls(len(clocks), RECORD.field("topic").type),
        value=[to_json(Tick() if clock else Connect()) for clock in clocks.values()],
    )


# -- what the old query has not folded


class _Tail(NamedTuple):
    read: int
    records: pa.Table
    notes: list[str]


def _unfolded(url: KafkaUrl, offsets: Mapping[int, int], config: KafkaConfig) -> Offsets:
    """The offsets that the query has not folded, which Kafka must still have. Raises `LogError`."""
    with administration(url, config) as admin:
        held = topic_offsets(admin, url.topic)
    for partition, (first, end) in held.items():
        at = offsets.get(partition, 0)
        if at < first:
            raise LogError(
                f"topic {url.topic}, partition {partition}: the query has folded the records up to offset {at - 1}, and Kafka has "
                f"deleted those before {first}: what was in between is lost"
            )
        if at > end:
            raise LogError(
                f"topic {url.topic}, partition {partition}: the query has folded the records up to offset {at - 1}, and the partition "
                f"ends at {end - 1}: it is another topic of that name"
            )
    unfolded = {partition: (offsets.get(partition, 0), end) for partition, (_, end) in held.items()}
    if (behind := sum(end - first for first, end in unfolded.values())) > MOST_UNFOLDED:
        raise LogError(f"the query has not folded {behind:,} records of topic {url.topic}: {CATCH_UP}")
    return unfolded


def _tail(url: KafkaUrl, ends: Offsets, homes: set[int], clock: int, config: KafkaConfig) -> _Tail:
    """The records that were not folded, in one order. `homes`: the partitions that have topics."""
    read = pa.concat_tables([RECORD.empty_table(), *read_records(url, ends, config)])
    _check_commands_for_all(read, homes)
    ticks = pa.table(
        {
            "partition": pa.array(list(ends), pa.int32()),
            "offset": pa.array([first - 1 for first, _ in ends.values()], pa.int64()),
            "clock": pa.array([clock for _ in ends], pa.int64()),
        }
    )
    merged = merge_partitions(read, ticks)
    notes = [note for note in merged.notes if "first record" not in note]  # the log began long before
    return _Tail(len(read), merged.log, notes)


def _check_commands_for_all(records: pa.Table, homes: set[int]) -> None:
    """Raises `NotSpread` if some partitions have folded a command for all of them that others have not."""
    alone = records.filter(pa.compute.is_null(records["topic"]))
    changes = on_partitioned_topics(alone)
    found: dict[int, list[bytes]] = {partition: [] for partition in homes}
    for row, each in enumerate(alone.to_pylist()):
        command = changes.get(row) or for_partition(each["value"])
        if command is not None and not isinstance(command, Tick | Connect) and each["partition"] in homes:
            found[each["partition"]].append(each["value"])
    first = min(found, default=0)
    for partition, values in found.items():
        if values != found[first]:
            raise NotSpread(
                f"partitions {first} and {partition} have not folded the same commands for all partitions ({len(found[first])} and "
                f"{len(values)} are left): {CATCH_UP}"
            )


def _check_end(url: KafkaUrl, ends: Offsets, config: KafkaConfig) -> None:
    with administration(url, config) as admin:
        now = topic_offsets(admin, url.topic)
    if more := sum(end - ends[partition][1] for partition, (_, end) in now.items()):
        raise LogError(
            f"topic {url.topic} got {more} more records meanwhile, which the copy lacks: stop whoever writes to it, and start again with "
            "another topic and another store"
        )


def _strays(homes: Mapping[str, int], partitions: int) -> list[str]:
    strays = sorted(name for name, home in homes.items() if ingress_partition(name, partitions) != home)
    if not strays:
        return []
    note = (
        f"{len(strays)} topics (such as {strays[0]}) were not in the partition that crc32 of their name gives, where they are now: "
        "whoever writes them must choose that partition from now on, or each becomes two topics"
    )
    return [note]
