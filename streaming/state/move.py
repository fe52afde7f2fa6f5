"""A query that goes on from the states of another one: over other ingress partitions, or from a dump.

The problem
    The number of ingress partitions limits how parallel a query is, and Kafka assigns records to partitions by their
    number. More partitions on the same topic would send a Pulsar topic's commands to a broker that knows nothing about
    it. Folding the whole log again over a new topic works only if Kafka still has it. Moving the states instead has
    three difficulties. Spark takes no initial state from outside. The old query may not have folded all records of its
    topic. And a move that is killed anywhere must neither lose nor double anything.

The idea
    The new query gets a new topic and a new store. The store gets the states as a *seed* (`streaming.state.seed`): the
    operator takes the state of a partition from there when it first visits that partition. The old topic, checkpoint and
    store are only read. Every step can be repeated, and the last one (`SeedWriter.finish`) says that all is there. Until
    then, the new query refuses to start.

The data
    `States`        what is moved: encoded states, the store with their entries, the old topic, and the first offset of
                    each of its partitions that was not folded
    `Origin`        written first: whose states, which topic, how many partitions, where the old topic ended. A move
                    with another one is not a repeated one.
    `Spread`        which part of which state goes to which new partition. It keeps names and what concerns the whole
                    broker, not the states.
    *pieces*        parts of old states that wait, in the store, for the other parts of their new state
    `Seed`          written last: the number of partitions, those with states, and where to read from

In order (`move_states`)
    1. Check: the old topic belongs to the old store, Kafka still has the records that were not folded, no transaction is
       open, partitions that were added since are empty, and so are the new topic and store. Note the `Origin`.
    2. Take each old state apart by topic, one after the other, and put the pieces into the new store.
    3. Make each new partition's state of its pieces; copy or link its closed ledgers, and write the entries of open ones
       as one segment.
    4. Fill the new topic: a TICK for each partition at the latest of the old clocks, then the records that the old query
       had not folded, in one order.
    5. Check that the old topic got no records meanwhile. Bind the new topic to the new store. Finish.

    From 2 partitions to 3. The old query has folded partition 0 up to offset 40, of 42, and partition 1 to its end::

        old states     0: topics a and c, clock 9:00      1: topics d and f, clock 9:01
        pieces         0→2: a    0→0: c    1→0: d    1→1: f
        new states     0: c and d    1: f    2: a, each with clock 9:00, the earliest
        new topic      TICK at 9:01 in each partition, then records 41 and 42 of old partition 0

    The clock of a new state is the earliest, so that nothing that is due on a topic is skipped. The TICK then takes all
    topics to the latest.

    `restore_states` is the simple case: the states stay in their partitions and go on in the same topic, at their
    offsets.

Invariants
    * The old query can go on as if nothing had been moved.
    * A topic is in one old state and in one new one. Its block of the state moves as it is.
    * A move that failed leaves nothing in the new store: the next attempt takes all anew. What it sent to the new topic stays there,
      so only a move with the same `Origin` goes on with that topic.
    * A command for all partitions is in all states that have topics, or in none (`_check_commands_for_all`).

What it costs
    Memory for one partition's state, old or new, for the names of all topics, and for the records that were not folded
    (`MOST_UNFOLDED`). Ledger files are linked on one file system, and copied otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from schemas.commands import Connect, Tick, to_json
from schemas.records import RECORD
from schemas.units import LATEST_TIME
from sinks.ledger_store import LedgerStore, TopicLedgers
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.state.codec import PartitionState, TopicBlock, decode_state, decode_topic, encode_state
from streaming.kafka.client import administration
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.copies import send_rest
from streaming.kafka.ingress import DATAFRAME, ensure_ingress, noted_topic, partition_counts
from streaming.kafka.produce import produce_log
from streaming.kafka.repartition import open_transaction, read_records
from streaming.kafka.topics import Offsets, committed_ends, ensure_topic, holds_records, topic_offsets
from streaming.kafka.url import KafkaUrl
from streaming.log.merge import (
    for_partition,
    merge_partitions,
    on_partitioned_topics,
    without_coordinates,
)
from streaming.log.partition import ingress_partition, note_on_strays, partition_log
from streaming.log.table import LogError, log_table
from streaming.state.seed import Origin, Seed, SeedWriter
from streaming.state.spread import NotSpread, Spread

MOST_UNFOLDED = 100_000
"""How many records the old query may not have folded yet. They are in memory while they are copied."""

CATCH_UP = "start the query again, and stop it when it has caught up"
"""What to do first. A clause of a sentence."""


class States(NamedTuple):
    """The states of a query.

    * `name`: says whose they are, and differs for others. It does not depend on the working directory.
    * `encoded`: as `Broker.encode` gives them, one per ingress partition.
    * `entries`: the URL of the store that has the entries.
    * `ingress`: the query's topic; None: unknown.
    * `offsets`: the first offset that was not folded, by partition of the topic.
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
    latest: int = LATEST_TIME,
    config: KafkaConfig = PLAIN,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Moved:
    """Give `states` the partitions of a new topic `ingress`, which is created with `partitions`, for a query with a new `store`.

    `latest`: records that were not folded and have a later time (ms) are copied as they are, for the new query to refuse; of several
    attempts, that of the first holds. `check` is called again and again, and may raise what stops the move. Without `states.ingress`, no records are copied. Memory:
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
    writer.check_new(states.name)
    ends = None
    if states.ingress is not None:
        first, _ = partition_counts(states.ingress, states.entries, config)
        ends = _unfolded(states.ingress, first, states.offsets, config)
    count = ensure_topic(ingress, partitions, config)
    if count != partitions:
        raise LogError(
            f"topic {ingress.topic} has {count} partitions, not {partitions}: choose another topic"
        )
    origin = writer.begin(
        _origin(states, ingress, partitions, ends or {}, latest, config),
        lambda: holds_records(ingress, config),
    )

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
        tail = _tail(states.ingress, ends, set(homes.values()), spread.clock, origin.latest, config)
        notes += tail.notes
        copied = tail.read
        records = pa.concat_tables([records, partition_log(tail.records, partitions)])
        notes += note_on_strays(homes.items(), len(ends))
    entries, target = LedgerStore(states.entries), LedgerStore(store)
    for new in range(partitions):
        check()
        state = spread.joined(new, [decode_state(piece) for piece in writer.take_pieces(new)])
        _put(writer, state, entries, target, homes)
    check()
    send_rest(records, ingress, config, progress, is_repeat=writer.is_repeat)
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
    writer.check_new(states.name)
    if noted_topic(states.entries) not in (None, DATAFRAME):  # else Kafka's id of the topic is not known
        ensure_ingress(ingress, states.entries, config=config)
    with administration(ingress, config) as admin:
        held = topic_offsets(admin, ingress.topic)
    if len(held) != partitions:
        raise LogError(
            f"topic {ingress.topic} has {len(held)} partitions, but the states have {partitions}: give "
            "them a new topic"
        )
    for partition, (first, end) in held.items():
        if not first <= states.offsets[partition] <= end:
            raise LogError(
                f"topic {ingress.topic}, partition {partition}: the states continue at offset "
                f"{states.offsets[partition]}, and Kafka has offsets {first} to {end - 1}: give them a "
                "new topic, if you can do without the records in between"
            )
    writer.begin(_origin(states, ingress, partitions, {}, LATEST_TIME, config))
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


def _origin(
    states: States, ingress: KafkaUrl, partitions: int, ends: Offsets, latest: int, config: KafkaConfig
) -> Origin:
    with administration(ingress, config) as admin:
        (topic,) = admin.describe_topics([ingress.topic])
    return Origin(
        states=states.name,
        ingress=ingress.topic,
        topic_id=topic["topic_id"],
        partitions=partitions,
        ends=[end for _, end in ends.values()],
        latest=latest,
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
    topic = decode_topic(block.data)
    ledger, compacted = topic.ledger, topic.compaction.ledger
    entries = {id_: info.entries for id_, info in ledger.ledgers.items()}
    closed = {id_ for id_, info in ledger.ledgers.items() if info.entries or id_ != ledger.current}
    if ledger.current in entries and ledger.current not in closed:
        entries[ledger.current] = ledger.current_entries
        if block.closed:
            closed.add(ledger.current)
    count, size = ledger.number_of_entries, ledger.total_size
    if compacted is not None and compacted.entries:
        entries[compacted.id] = compacted.entries
        closed.add(compacted.id)
        count, size = count + compacted.entries, size + compacted.size
    return TopicLedgers(name, partition, dict(sorted(entries.items())), closed, count, size)


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


def _unfolded(url: KafkaUrl, first: int, offsets: Mapping[int, int], config: KafkaConfig) -> Offsets:
    """The offsets that the query has not folded, which Kafka must still have, of the `first` partitions, with which it began.

    An open transaction is refused here, before the `Origin` is noted: its end moves that of the topic. Raises `LogError`.
    """
    with administration(url, config) as admin:
        held = topic_offsets(admin, url.topic)
        committed = committed_ends(admin, url.topic, held)
    if any(committed[partition] < end for partition, (_, end) in held.items()):
        raise open_transaction(url.topic)
    if written := sum(end for partition, (_, end) in held.items() if partition >= first):
        raise LogError(
            f"topic {url.topic} had {first} partitions when the query began, and has {written:,} records in those that were added since: the "
            "commands of one Pulsar topic may be in two of them, and their order is lost. To go on without all that the query has not "
            "folded, use magnetar state export and magnetar state import: see docs/operate/partitions.md#partitions-that-were-added"
        )
    held = {partition: each for partition, each in held.items() if partition < first}
    for partition, (begin, end) in held.items():
        at = offsets.get(partition, 0)
        if at < begin:
            raise LogError(
                f"topic {url.topic}, partition {partition}: the query has folded the records up to offset {at - 1}, and Kafka has "
                f"deleted those before {begin}: what was in between is lost. To go on without it, use magnetar state export and magnetar "
                "state import: see docs/operate/partitions.md#a-query-that-cant-catch-up"
            )
        if at > end:
            raise LogError(
                f"topic {url.topic}, partition {partition}: the query has folded the records up to offset "
                f"{at - 1}, and the partition ends at {end - 1}: it is a different topic of the same name"
            )
    unfolded = {partition: (offsets.get(partition, 0), end) for partition, (_, end) in held.items()}
    if (behind := sum(end - at for at, end in unfolded.values())) > MOST_UNFOLDED:
        raise LogError(f"the query has not folded {behind:,} records of topic {url.topic}: {CATCH_UP}")
    return unfolded


def _tail(
    url: KafkaUrl, ends: Offsets, homes: set[int], clock: int, latest: int, config: KafkaConfig
) -> _Tail:
    """The records that were not folded, in one order. `homes`: the partitions that have topics. `latest`: see `move_states`."""
    read = pa.concat_tables([RECORD.empty_table(), *read_records(url, ends, config)])
    _check_commands_for_all(read, homes)
    ticks = pa.table(
        {
            "partition": pa.array(list(ends), pa.int32()),
            "offset": pa.array([first - 1 for first, _ in ends.values()], pa.int64()),
            "clock": pa.array([clock for _ in ends], pa.int64()),
        }
    )
    merged = merge_partitions(read, ticks, latest)
    notes = [note for note in merged.notes if "first record" not in note]  # the log began long before
    return _Tail(len(read), merged.log, notes)


def _check_commands_for_all(records: pa.Table, homes: set[int]) -> None:
    """Raises `NotSpread` if some partitions have folded a command for all of them that others have not."""
    alone, _ = without_coordinates(records.filter(pa.compute.is_null(records["topic"])))
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
    if more := sum(end for _, end in now.values()) - sum(end for _, end in ends.values()):
        raise LogError(
            f"topic {url.topic} got {more} more records meanwhile, which the copy lacks: stop its "
            "writers, and start again with another topic and another store"
        )
