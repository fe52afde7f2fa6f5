"""Resubmit repaired records: to the ingress topic of a live query, or in the log that was replayed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.keys import key_of
from schemas.records import LARGEST, RECORD, Coordinates
from sinks.outputs import check_new_file
from streaming.kafka.client import PATIENCE_MS, KafkaUnreachable, connect
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.ingress import noted_topic
from streaming.kafka.produce import NotProduced
from streaming.kafka.url import KafkaUrl
from streaming.log.files import check_log, check_log_name, read_log, write_log
from streaming.log.partition import PARTITIONS, ingress_partition, partition_log
from streaming.log.table import LOGICAL
from streaming.quarantine.store import Quarantine, QuarantineError, Repaired, coordinates_of

if TYPE_CHECKING:
    from kafka import KafkaProducer

ORIGIN = "magnetar.resubmitted"
"""The header of a resubmitted record: its coordinates when it was quarantined, ``PARTITION:OFFSET``."""


def to_ingress(
    quarantine: Quarantine,
    repaired: Sequence[Repaired],
    ingress: str,
    *,
    config: KafkaConfig = PLAIN,
    again: bool = False,
) -> list[Coordinates]:
    """Sends `repaired` to the topic `ingress` (``kafka://…``) and gives their coordinates there.

    A record returns to its ingress partition, where its topic lives, with the time of sending. A record whose topic was
    changed goes to that topic's partition (see `streaming.log.partition.ingress_partition`). All records are checked before
    the first is sent. `config`: credentials.

    Raises:
        QuarantineError, KafkaUrlError, KafkaConfigError, KafkaUnreachable: nothing was sent.
        InUse, NotWritable: another process resubmits records, or the store can't be written; nothing was sent.
        NotProduced: Kafka did not confirm some records; the quarantine's notes say which.
    """
    url = KafkaUrl.parse(ingress)
    if quarantine.of_replay:
        raise QuarantineError(
            f"{quarantine.url} belongs to a replay: its records are in a log, not in a topic. Give --log, the log that "
            "was replayed, and --out, the log to write; nothing was resubmitted"
        )
    if (topic := noted_topic(quarantine.url)) not in (None, url.topic):
        raise QuarantineError(
            f"{quarantine.url} is the store of a query that reads {topic!r}, and not {url.topic!r}: give its ingress; nothing was resubmitted"
        )
    now = int(time.time() * 1000)
    repaired = [each._replace(timestamp=now) for each in repaired]
    with quarantine.exclusive():
        quarantine.check(repaired, again=again)
        producer, partitions = _connect(url, config)
        try:
            places = _places(quarantine, repaired, url, partitions)
            notebook = quarantine.note(ingress, [each.origin for each in repaired])
            return _send(producer, url, repaired, places, notebook.write)
        finally:
            producer.close()


def _connect(url: KafkaUrl, config: KafkaConfig) -> tuple[KafkaProducer, int]:
    """A producer, and the number of the topic's partitions."""
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    producer: KafkaProducer = connect(
        KafkaProducer,
        url,
        config,
        max_block_ms=PATIENCE_MS,
        max_request_size=LARGEST,
        allow_auto_create_topics=False,  # a misspelt topic must be an error
    )
    try:
        return producer, len(producer.partitions_for(url.topic))
    except KafkaError as error:
        producer.close()
        raise KafkaUnreachable(
            f"Kafka at {url.bootstrap} has no topic {url.topic!r}, or does not say: give the ingress that the query reads"
        ) from error


def _places(
    quarantine: Quarantine, repaired: Sequence[Repaired], url: KafkaUrl, partitions: int
) -> list[int]:
    """The ingress partition of each record."""
    before = _originals(quarantine, repaired)
    places = [
        each.origin.partition
        if each.topic is None or each.topic == before[each.origin]["topic"]
        else ingress_partition(each.topic, partitions)
        for each in repaired
    ]
    if (most := max(places)) >= partitions:
        raise QuarantineError(
            f"topic {url.topic} has {partitions} partitions, and a record was in partition {most}: give the ingress "
            "that the query reads; nothing was resubmitted"
        )
    return places


def _originals(quarantine: Quarantine, repaired: Sequence[Repaired]) -> dict[Coordinates, dict[str, Any]]:
    """The quarantined rows that `repaired` replace."""
    rows = quarantine.records(among=[each.origin for each in repaired])
    return dict(zip(coordinates_of(rows), rows.to_pylist(), strict=True))


def _send(
    producer: KafkaProducer,
    url: KafkaUrl,
    repaired: Sequence[Repaired],
    partitions: Sequence[int],
    write: Callable[[Sequence[Coordinates | None]], None],
) -> list[Coordinates]:
    """Sends the records, waits for Kafka, and notes where each is now."""
    from kafka.errors import KafkaError

    futures: list[Any] = []
    places: list[Coordinates | None] = []
    failed: KafkaError | None = None
    for each, partition in zip(repaired, partitions, strict=True):
        headers = [(ORIGIN, str(each.origin).encode())]
        try:
            futures.append(producer.send(url.topic, each.value, key_of(each.topic), headers, partition))
        except KafkaError as error:
            failed = error
            break
    for future in futures:
        try:
            sent = future.get()
            places.append(Coordinates(sent.partition, sent.offset))
        except KafkaError as error:
            failed = error
            places.append(None)
    places += [None] * (len(repaired) - len(places))
    write(places)
    if failed is not None:
        raise NotProduced(
            f"Kafka at {url.bootstrap} confirmed {len(places) - places.count(None):,} of {len(repaired):,} records: "
            f"{failed!r}. `magnetar quarantine list` counts the others as resubmitted, and `show` says which were not "
            "confirmed: if they are not in the topic, resubmit those with --again"
        ) from failed
    return [place for place in places if place is not None]


def to_log(
    quarantine: Quarantine,
    repaired: Sequence[Repaired],
    log: str | Path,
    out: str | Path,
    *,
    partitions: int | None = None,
    again: bool = False,
) -> None:
    """Writes the log that was replayed to `out`, with `repaired` in place of the original records.

    A record gets the timestamp of its line. `partitions`: those of the replay. A log that has ingress partitions keeps them,
    so its records may not change their topics.

    Raises `QuarantineError`, `LogError`, `FileNotFoundError`, `InTheWay`, `InUse`, `NotWritable`; then nothing was written.
    """
    check_log(log)
    check_log_name(out)
    check_new_file(out := Path(out), [log])
    quarantine.check(repaired, again=again)
    records = read_log(log)
    originals = _originals(quarantine, repaired)
    rows: dict[int, Repaired] = {}
    for each, row in zip(
        repaired, _rows(records, [m.origin for m in repaired], partitions, str(log)), strict=True
    ):
        was = originals[each.origin]
        found = None if row is None else records.slice(row, 1).to_pylist()[0]
        if row is None or found is None or (found["topic"], found["value"]) != (was["topic"], was["value"]):
            raise QuarantineError(
                f"record {each.origin} of {log} is not the one in quarantine: give the log that was replayed into "
                f"{quarantine.url}, with the --partitions of that replay, if any; one with --policies has other "
                "offsets: replay without them first; nothing was resubmitted"
            )
        if "partition" in found and each.topic != found["topic"]:
            raise QuarantineError(
                f"record {each.origin} was given the topic {each.topic}, but {log} has ingress partitions, and a topic "
                "never spans two: keep its topic; nothing was resubmitted"
            )
        if rows.setdefault(row, each)[1:] != each[1:]:
            raise QuarantineError(
                f"records {rows[row].origin} and {each.origin} are one record in {log} and were repaired differently: "
                "remove one of them; nothing was resubmitted"
            )
    origins = [each.origin for each in repaired]
    with quarantine.exclusive():
        quarantine.check(repaired, again=again)  # another process may have resubmitted them since
        write_log(out, _replaced(records, rows), replace=False)
        quarantine.note(str(out), origins).write(origins)


def _rows(
    records: pa.Table, origins: Sequence[Coordinates], partitions: int | None, name: str
) -> list[int | None]:
    """For each origin its row in the log; None if the replayed log has no such record."""
    numbers = pa.array(np.arange(len(records), dtype=np.int64))
    if "partition" in records.column_names:
        if partitions is not None:
            raise QuarantineError(
                f"{name} has ingress partitions of its own: replay it without --partitions first; nothing was resubmitted"
            )
        placed = records.set_column(RECORD.get_field_index("timestamp"), RECORD.field("timestamp"), numbers)
    else:
        # Partitioning ignores timestamps, so a record's number can travel in their place.
        numbered = records.set_column(
            LOGICAL.get_field_index("timestamp"), LOGICAL.field("timestamp"), numbers
        )
        placed = partition_log(numbered, partitions or PARTITIONS)
    placed = placed.filter(
        pc.is_in(placed["offset"], pa.array([each.offset for each in origins], pa.int64()))
    )
    found = dict(zip(coordinates_of(placed), placed["timestamp"].to_pylist(), strict=True))
    return [found.get(origin) for origin in origins]


def _replaced(records: pa.Table, rows: dict[int, Repaired]) -> pa.Table:
    """`records` with the timestamps, topics and values of `rows`."""
    parts, begin = [], 0
    for row in sorted(rows):
        each = rows[row]
        changed = {"timestamp": each.timestamp, "topic": each.topic, "value": each.value}
        one = records.slice(row, 1).to_pylist()[0] | changed
        parts += [records.slice(begin, row - begin), pa.Table.from_pylist([one], records.schema)]
        begin = row + 1
    return pa.concat_tables([*parts, records.slice(begin)])
