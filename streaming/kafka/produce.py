"""Sending a command log to Kafka, as clients would: key = topic, the log's timestamps, in log order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from schemas.keys import key_of
from schemas.records import LARGEST
from streaming.kafka.client import administration
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.topics import LATEST, ensure_topic, largest_value
from streaming.kafka.url import KafkaUrl
from streaming.log.files import check_log, read_log
from streaming.log.partition import PARTITIONS, partition_log
from streaming.log.table import LogError, ordered

if TYPE_CHECKING:
    from kafka import KafkaProducer

_CHECK_EVERY = 10_000
_ROOM = 1 << 14
"""Bytes of a record besides the command."""


class NotProduced(RuntimeError):
    """Kafka did not accept a record. What was sent before it is in the topic: use a new topic."""


def produce_log(
    log: str | Path | pa.Table,
    ingress: str,
    *,
    partitions: int | None = None,
    config: KafkaConfig = PLAIN,
    paced: bool = False,
    progress: Callable[[int, int], None] | None = None,
    stop: threading.Event | None = None,
) -> int:
    """Sends the records of `log` to the topic `ingress` (``kafka://…``) and returns how many were sent.

    In a log without timestamps (all are 0), each record gets the time of sending.

    Args:
        partitions: the number of partitions if the topic has to be created. A log without partitions is spread over the
            topic's, see `streaming.log.partition`; a log with partitions keeps them.
        config: credentials, see `streaming.kafka.config`.
        paced: send in real time, spaced by the timestamps, rather than at once.
        progress: called now and then with the records sent so far and the total.
        stop: when set, sending stops after the current record.

    Raises:
        LogError, FileNotFoundError, KafkaUrlError, KafkaConfigError: an argument is wrong.
        KafkaUnreachable: no Kafka answers.
        NotProduced: Kafka refused a record.
    """
    from kafka import KafkaProducer

    url = KafkaUrl.parse(ingress)
    if not isinstance(log, pa.Table):
        check_log(log)
    with administration(url, config):  # before a large log is read
        pass
    table = log if isinstance(log, pa.Table) else read_log(log)
    times = table["timestamp"]
    odd = pc.or_(pc.less(times, 0), pc.greater(times, LATEST))
    if pc.any(odd).as_py():
        row = pc.index(odd, True).as_py()
        raise LogError(
            f"record {row + 1} of the log has the timestamp {times[row]}, and Kafka takes 0 to {LATEST:,} ms since 1970: nothing was sent"
        )
    own = "partition" in table.column_names
    least = max(table["partition"].to_pylist(), default=0) + 1 if own else 1
    count = ensure_topic(url, partitions or max(PARTITIONS, least), config)
    if partitions is not None and count != partitions:
        raise LogError(f"topic {url.topic} has {count} partitions, not {partitions}: choose another topic")
    if own and least > count:
        raise LogError(
            f"the log has {least} partitions, topic {url.topic} has {count}: choose a topic with at least as many"
        )
    sizes = pc.binary_length(table["value"])
    most = largest_value(url, config)
    most -= min(_ROOM, most // 4)
    if (pc.max(sizes).as_py() or 0) > most:
        row = pc.index(pc.greater(sizes, most), True).as_py()
        raise LogError(
            f"record {row + 1} of the log has {sizes[row].as_py():,} bytes, and topic {url.topic} takes {most:,}: nothing was sent"
        )
    records = ordered(table) if own else partition_log(table, count)
    producer = KafkaProducer(
        bootstrap_servers=url.bootstrap.split(","),
        linger_ms=0 if paced else 50,
        batch_size=1 << 18,
        max_request_size=LARGEST,
        allow_auto_create_topics=False,
        **config.client(),
    )
    try:
        return _send(producer, url.topic, records, paced, progress or _silent, stop or threading.Event())
    finally:
        producer.close()


def _send(
    producer: KafkaProducer,
    topic: str,
    records: pa.Table,
    paced: bool,
    progress: Callable[[int, int], None],
    stop: threading.Event,
) -> int:
    sent, now = 0, _now()
    total = len(records)
    # If the log tells no time at all, 0 would start the broker's clock in 1970. If it does, the time of sending would take the clock to
    # today, and 0 leaves it where it is, as in a replay.
    timeless = not pc.any(pc.not_equal(records["timestamp"], 0)).as_py()
    pending: list[Any] = []
    start: tuple[float, int] | None = None
    for batch in records.to_batches(max_chunksize=_CHECK_EVERY):
        columns = [batch.column(name).to_pylist() for name in ("partition", "timestamp", "topic", "value")]
        for partition, timestamp, key, value in zip(*columns, strict=True):
            if paced and timestamp:
                start = start or (time.monotonic(), timestamp)
                stop.wait(max(0.0, start[0] + (timestamp - start[1]) / 1000 - time.monotonic()))
            if stop.is_set():
                break
            if key is not None or partition == 0:  # all copies of a record have the same time
                now = _now()
            pending.append(
                producer.send(
                    topic,
                    value,
                    key=key_of(key),
                    partition=partition,
                    timestamp_ms=now if timeless else timestamp,
                )
            )
            sent += 1
            if paced or len(pending) >= _CHECK_EVERY:
                _check(pending, wait=False)
                progress(sent, total)
        if stop.is_set():
            break
    producer.flush()
    _check(pending, wait=True)
    progress(sent, total)
    return sent


def _check(pending: list[Any], *, wait: bool) -> None:
    """Drops the futures that Kafka confirmed. They complete nearly in order."""
    for future in pending:
        if future.is_done and future.failed():
            raise NotProduced(f"{type(future.exception).__name__}: {future.exception}")
    pending[:] = [future for future in pending if not future.is_done]
    if wait and pending:
        raise NotProduced(f"{len(pending)} records are still unconfirmed")


def _now() -> int:
    return time.time_ns() // 1_000_000


def _silent(sent: int, total: int) -> None:
    pass
