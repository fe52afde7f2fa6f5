"""Ingress partitions for a logical log, as `magnetar produce` makes them on the way to Kafka.

A record's partition is crc32(UTF-8 of its topic) mod N; offsets are 0, 1, 2, … in log order. A record without a topic
addresses whole partitions and is copied to each of them. So is a call on a partitioned topic as a whole, which loses its
topic: the partitions of that topic are in several ingress partitions. And so is a request to a coordinator of transactions, if there are several.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.commands import AnyCommand, Line, decode_or_refuse, to_json
from schemas.records import RECORD
from streaming.log.merge import (
    for_partition,
    is_on_partitioned_topic,
    merge_partitions,
    on_partitioned_topics,
    to_coordinators,
)
from streaming.log.spool import Spool, pieces
from streaming.log.table import LogError, OffsetCounter, log_table, replaced

PARTITIONS = 4
"""The default number of ingress partitions. It is not the number of cores: a replay's rows must not depend on the machine."""


def ingress_partition(topic: str, partitions: int) -> int:
    """The ingress partition (0 … `partitions` − 1) of a topic. Every producer of commands must use this function."""
    return zlib.crc32(topic.encode()) % partitions


def note_on_strays(homes: Iterable[tuple[str, int]], partitions: int) -> list[str]:
    """A note if the writers of topics chose other partitions, `homes`, than `ingress_partition` does."""
    strays = sorted(topic for topic, home in homes if ingress_partition(topic, partitions) != home)
    if not strays:
        return []
    note = (
        f"{len(strays)} topics (such as {strays[0]}) were not in the partition that crc32 of their name "
        "gives, where they are now: their writers must choose that partition from now on, or each of "
        "them becomes two topics"
    )
    return [note]


def topic_in_value(value: bytes, partition: int, partitions: int) -> str | None:
    """The topic of a record in Kafka without a key, if its value is a line of a log that names one. None in any other
    partition than the topic's own, for a topic never spans two."""
    line = decode_or_refuse(value)
    if (
        not isinstance(line, Line)
        or line.topic is None
        or ingress_partition(line.topic, partitions) != partition
    ):
        return None
    return line.topic


def _without_topics(log: pa.Table, whole: Mapping[int, AnyCommand]) -> pa.Table:
    """`log` without the topics of some rows, whose commands are given."""
    lines = {
        row: to_json(each)
        for row, each in whole.items()
        if isinstance(decode_or_refuse(log["value"][row].as_py()), Line)
    }
    return replaced(replaced(log, "topic", dict.fromkeys(whole)), "value", lines)


def partition_log(log: pa.Table, partitions: int) -> pa.Table:
    """`log` with `partitions` (≥ 1) ingress partitions: columns `RECORD`, in log order.

    A log that already has partitions is first merged into one order (see `streaming.log.merge`). A record without a
    topic goes to every partition, unless it is not a command for a partition: then it goes to partition 0 alone, where
    it is quarantined once.

    Raises `LogError`.
    """
    if partitions < 1:
        raise LogError(f"{partitions} partitions: expected 1 or more")
    if "partition" in log.column_names:
        log = merge_partitions(log).log
    whole: dict[int, AnyCommand] = {**on_partitioned_topics(log)}
    if partitions > 1:
        whole |= to_coordinators(log)
    log = _without_topics(log, whole)
    found, offsets, first = Spool(RECORD), OffsetCounter(), 0
    for piece in pieces(log):
        values = piece["value"]

        def for_all(row: int, first: int = first, values: pa.ChunkedArray = values) -> bool:
            return first + row in whole or for_partition(values[row].as_py()) is not None

        rows, partition = _spread(piece["topic"].combine_chunks(), for_all, partitions)
        first += len(piece)
        if len(rows) > len(piece):
            piece = piece.take(pa.array(rows))
        found.add(log_table(RECORD, partition=partition, offset=offsets.of(partition), timestamp=piece["timestamp"],
                            topic=piece["topic"], value=piece["value"]))  # fmt: skip
    return found.table()


def by_partition(records: pa.Table) -> dict[int, pa.Table]:
    """`records` (columns `RECORD`) by ingress partition."""
    found, places, done = Spool(records.schema), defaultdict[int, list[tuple[int, int]]](list), 0
    for piece in pieces(records):
        partition = piece["partition"].to_numpy()
        found.add(piece.take(pa.array(np.argsort(partition, kind="stable"))))
        for number, count in zip(*np.unique(partition, return_counts=True), strict=True):
            places[int(number)].append((done, int(count)))
            done += int(count)
    table = found.table()
    return {
        number: pa.concat_tables(table.slice(*place) for place in places[number]) for number in sorted(places)
    }


def spread(records: pa.Table, partitions: int) -> pa.Table:
    """Records with offsets, timestamps, topics and values, but without partitions, as columns `RECORD`.

    A record without a topic goes to every partition with the same offset, unless it is not a command for a partition: then it goes
    to partition 0 alone. A call on a partitioned topic as a whole has no topic.
    """
    values = records["value"]

    def for_all(row: int) -> bool:
        value = values[row].as_py()
        return for_partition(value) is not None or is_on_partitioned_topic(value)

    rows, partition = _spread(records["topic"].combine_chunks(), for_all, partitions)
    found = records.take(pa.array(rows))
    return log_table(
        RECORD, partition=partition, **{name: found[name] for name in RECORD.names if name != "partition"}
    )


def _spread(
    topics: pa.StringArray, for_all: Callable[[int], bool], partitions: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Records and their partitions: the row of each, with repeats, and beside it the partition.

    `for_all`: whether a row without a topic goes to all partitions. The others go to partition 0.
    """
    topics = topics.dictionary_encode()
    of_topic = [ingress_partition(topic, partitions) for topic in topics.dictionary.to_pylist()]
    index = topics.indices.fill_null(len(of_topic)).to_numpy(zero_copy_only=False)
    partition = np.array([*of_topic, -1], np.int32)[index]
    alone = np.flatnonzero(partition < 0)
    everywhere = np.array([row for row in alone.tolist() if for_all(row)], np.int64)
    partition[alone] = 0
    copies = np.ones(len(partition), np.int64)
    copies[everywhere] = partitions
    rows = np.repeat(np.arange(len(partition)), copies)
    partition = np.repeat(partition, copies)
    first = (np.cumsum(copies) - copies)[everywhere]
    partition[first[:, None] + np.arange(partitions)] = np.arange(partitions, dtype=np.int32)
    return rows, partition
