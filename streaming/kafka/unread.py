"""How many records of its topic a query has not read, with those that a transaction holds back.

For Spark, a topic ends where the first transaction that is open begins, so a query that can read no further seems to have read all. For
whoever waits for the records, it is behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from streaming.kafka.client import KafkaUnreachable, connect
from streaming.kafka.config import PLAIN, KafkaConfig, KafkaConfigError
from streaming.kafka.topics import committed_ends, topic_offsets
from streaming.kafka.url import KafkaUrl

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

_PATIENCE_MS = 5_000


class Unread:
    """Compares what a query has read with the end of its topic. `look` asks Kafka, and may wait for it: give it a thread of its own."""

    def __init__(
        self,
        url: KafkaUrl,
        config: KafkaConfig = PLAIN,
        on_note: Callable[[str], None] = lambda _: None,
        patience: float = 60.0,
    ) -> None:
        """`on_note` gets a sentence when a transaction has held records back for `patience` seconds, once for each."""
        self._url, self._config, self._on_note, self._patience = url, config, on_note, patience
        self._read: Mapping[int, int] = {}
        self._ends: Mapping[int, int] = {}
        self._since: dict[tuple[int, int], float] = {}
        self._noted: set[tuple[int, int]] = set()
        self._admin: KafkaAdminClient | None = None

    def after(self, read: Mapping[int, int], behind: int | None) -> int | None:
        """The records of the partition that is furthest behind, after a micro-batch that read up to the offsets `read`.

        `behind`: what Spark says, which is newer than the last look. None: unknown.
        """
        self._read = read
        found = [self.count, behind]
        return max((each for each in found if each is not None), default=None)

    @property
    def count(self) -> int | None:
        """That number as of the last look. None: unknown, as nothing was read, or Kafka has not answered yet."""
        read, ends = self._read, self._ends
        return max((max(0, ends[each] - at) for each, at in read.items() if each in ends), default=None)

    def look(self) -> None:
        """Ask Kafka where the topic ends. If it does not answer, or the file of credentials is unusable now, what it said before stands."""
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        try:
            if self._admin is None:
                self._admin = connect(
                    KafkaAdminClient, self._url, self._config, request_timeout_ms=_PATIENCE_MS
                )
            ends = {part: end for part, (_, end) in topic_offsets(self._admin, self._url.topic).items()}
            committed = committed_ends(self._admin, self._url.topic, ends)
        except (KafkaError, KafkaUnreachable, KafkaConfigError):
            self.close()
            return
        self._ends = ends
        self._watch({(part, at): ends[part] - at for part, at in committed.items() if at < ends[part]})

    def _watch(self, held: Mapping[tuple[int, int], int]) -> None:
        """`held`: how many records are held back from a partition's offset on."""
        now = time.monotonic()
        self._since = {place: self._since.get(place, now) for place in held}
        self._noted &= held.keys()
        for place, since in self._since.items():
            if now - since >= self._patience and place not in self._noted:
                self._noted.add(place)
                partition, offset = place
                self._on_note(
                    f"topic {self._url.topic}, partition {partition}: a transaction is open at offset {offset}, and holds back the "
                    f"{held[place]} records from there on. The query waits until its writer ends it, or Kafka does because that is gone "
                    "(transaction.timeout.ms)"
                )

    def close(self) -> None:
        """Close the connection. Another look would open a new one."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
