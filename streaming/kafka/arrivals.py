"""Waiting for records of a topic while there are none."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from streaming.kafka.client import KafkaUnreachable, connect
from streaming.kafka.config import KafkaConfig
from streaming.kafka.url import KafkaUrl

if TYPE_CHECKING:
    from kafka import KafkaConsumer

_POLL_MS = 100


class Arrivals:
    """Lets a query that has nothing to do wait for the next record, instead of running one empty micro-batch after the other.

    Spark runs them so that timeouts fire, and decides before each up to which record it reads. So the end of the topic is
    noted after one micro-batch, and whatever came since is looked for only after the next one.
    """

    def __init__(self, url: KafkaUrl, config: KafkaConfig, seconds: float, stop: threading.Event) -> None:
        """`seconds`: how long to wait at most, in which timers may be late. A wait also ends when `stop` is set."""
        self._url, self._config, self._seconds, self._stop = url, config, seconds, stop
        self._closed = False
        self._consumer: KafkaConsumer | None = None
        self._idle_after = -1
        self._lock = threading.Lock()  # the query may end in another thread than the one that waits

    def wait(self, batch_id: int) -> None:
        """Call it after a micro-batch that did nothing. Without a Kafka it returns at once: the query says what is wrong."""
        from kafka.errors import KafkaError

        with self._lock, suppress(KafkaError, KafkaUnreachable):
            consecutive, self._idle_after = batch_id == self._idle_after + 1, batch_id
            if self._ended():
                return
            if self._consumer is None:
                self._consumer = self._connected()
            if consecutive:
                self._wait(self._consumer)
            else:
                self._consumer.seek_to_end()
                for part in self._consumer.assignment():
                    self._consumer.position(part)  # now, not when it is first needed

    def _wait(self, consumer: KafkaConsumer) -> None:
        until = time.monotonic() + self._seconds
        while time.monotonic() < until and not self._ended():
            if consumer.poll(timeout_ms=_POLL_MS, max_records=1):
                self._idle_after = -1
                return

    def _ended(self) -> bool:
        return self._closed or self._stop.is_set()

    def _connected(self) -> KafkaConsumer:
        from kafka import KafkaConsumer, TopicPartition

        consumer = connect(KafkaConsumer, self._url, self._config, enable_auto_commit=False)
        parts = consumer.partitions_for_topic(self._url.topic) or ()
        consumer.assign([TopicPartition(self._url.topic, part) for part in sorted(parts)])
        return consumer

    def close(self) -> None:
        """End the wait, and close the connection."""
        self._closed = True
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
