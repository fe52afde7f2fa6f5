"""Records for a topic that may have got a part of them before: what an interrupted copy lacks is sent, and nothing twice.

Transactions under one transactional id send some thousand records at a time. To begin them, Kafka ends whatever an earlier
process with that id had begun, so nothing of it can still arrive. What the topic has is then the beginning of the copy, or another copy was
made to the same topic meanwhile, of which the records tell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import islice

import pyarrow as pa

from schemas.keys import key_of
from schemas.records import LARGEST
from streaming.kafka.client import administration, connect
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.produce import NotProduced
from streaming.kafka.repartition import read_records
from streaming.kafka.topics import topic_offsets
from streaming.kafka.url import KafkaUrl

_TOGETHER = 5_000
_PATIENCE_SECONDS = 60.0


def send_rest(
    records: pa.Table,
    url: KafkaUrl,
    config: KafkaConfig = PLAIN,
    progress: Callable[[int, int], None] | None = None,
    *,
    is_repeat: bool = True,
) -> int:
    """Send `records` (columns `RECORD`, any offsets) to a topic that has nothing but some of the first of them, or nothing, if this is not a
    repeated attempt (`is_repeat`). Returns how many were sent.

    Raises `KafkaUnreachable`, and `NotProduced` if the topic has other records, or Kafka takes one not.
    """
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    producer = connect(
        KafkaProducer,
        url,
        config,
        transactional_id=f"magnetar-copy-{url.topic}",
        acks="all",
        enable_idempotence=True,
        allow_auto_create_topics=False,
        max_request_size=LARGEST,
        batch_size=1 << 18,
    )
    try:
        producer.init_transactions()
        rows = iter(_rows(records))
        done = _present(records, url, config, is_repeat=is_repeat)
        list(islice(rows, done))
        sent = 0
        while together := list(islice(rows, _TOGETHER)):
            producer.begin_transaction()
            futures = [
                producer.send(
                    url.topic, value, key=key_of(topic), partition=partition, timestamp_ms=_held(timestamp)
                )
                for partition, timestamp, topic, value in together
            ]
            producer.flush(timeout=_PATIENCE_SECONDS)
            for each in futures:
                each.get()
            producer.commit_transaction()
            sent += len(together)
            if progress is not None:
                progress(done + sent, len(records))
        return sent
    except KafkaError as error:
        raise NotProduced(
            f"Kafka at {url.bootstrap} did not take a record for topic {url.topic}: {error!r}"
        ) from error
    finally:
        producer.close()


def _held(timestamp: int) -> int:
    """A timestamp (ms) that Spark can hold. One that it can't is no time for the broker, either, and neither is what replaces it."""
    return timestamp if abs(timestamp) < _BEYOND else 0 if timestamp < 0 else _NO_TIME


_BEYOND, _NO_TIME = 9 * 10**15, 10**15


def _rows(records: pa.Table) -> list[tuple[int, int, str | None, bytes]]:
    columns = (records[name].to_pylist() for name in ("partition", "timestamp", "topic", "value"))
    return list(zip(*columns, strict=True))


def _present(records: pa.Table, url: KafkaUrl, config: KafkaConfig, *, is_repeat: bool) -> int:
    """How many of the first records the topic has."""
    with administration(url, config) as admin:
        offsets = topic_offsets(admin, url.topic)
    found, first = defaultdict[int, list[_Content]](list), defaultdict[int, list[_Content]](list)
    for table in read_records(url, offsets, config):
        for partition, timestamp, topic, value in _rows(table):
            found[partition].append((timestamp, topic, value))
    done = sum(map(len, found.values()))
    for partition, timestamp, topic, value in _rows(records.slice(0, done)):
        first[partition].append((_held(timestamp), topic, value))
    is_other = first.keys() != found.keys() or any(
        len(own) != len(found[partition]) or not all(map(_is_same, own, found[partition]))
        for partition, own in first.items()
    )
    if is_other or (done and not is_repeat) or any(start for start, _ in offsets.values()):
        raise NotProduced(
            f"topic {url.topic} has records that this copy did not write. Start again with another topic "
            "and another store"
        )
    return done


_Content = tuple[int, str | None, bytes]
"""Timestamp, topic and value."""


def _is_same(sent: _Content, found: _Content) -> bool:
    """Of a record without a topic, the value names one when it is read."""
    return (sent[0], sent[2]) == (found[0], found[2]) and sent[1] in (None, found[1])
