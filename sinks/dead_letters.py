"""Dead letters: quarantined records in a Kafka topic, for whoever watches or repairs them elsewhere.

A record has the key and the value that the refused one had, and these headers (UTF-8) beside the identity that
`sinks.kafka` describes: ``magnetar.rule``, ``magnetar.cause`` and, if the record named one, ``magnetar.topic``.
``magnetar.partition`` and ``magnetar.offset`` say where the record is in the ingress topic.

The key is what the query read: an empty one is no key, and bytes that are no UTF-8 were replaced.
"""

from collections.abc import Iterator
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from schemas.effects import KINDS, Quarantined
from schemas.outputs import Rows
from schemas.records import LARGEST
from sinks.kafka import ClientConfig, KafkaSink, NotSent, Outgoing, read_records

_LONGEST = 4096  # characters of a topic's name or a cause: a bad record's may be as long as the record
_LIMIT = "max.message.bytes"
_CHUNK = 256  # letters whose values are in memory at a time
_OVERHEAD = 1024  # bytes that Kafka puts around a record, with the other headers


class DeadLettersNotSent(NotSent):
    """Kafka didn't take the dead letters."""


class KafkaDeadLetters(KafkaSink):
    """Sends QUARANTINED rows. All of an ingress partition go to one Kafka partition, in order.

    A letter that is larger than the topic takes goes without its value (``magnetar.size`` says how many bytes it has;
    the quarantine's files have them), for a bad record must not stop the query.
    """

    _what = "dead letters"
    _not_sent = DeadLettersNotSent

    def __init__(self, bootstrap: str, topic: str, config: ClientConfig | None = None) -> None:
        """As of `KafkaSink`."""
        super().__init__(bootstrap, topic, config)
        self._partitions = 1
        self._most = LARGEST

    def _look(self, admin: KafkaAdminClient) -> None:
        (topic,) = admin.describe_topics([self._topic])
        # Not left to the key: a letter without one could go elsewhere when the micro-batch is run again.
        self._partitions = len(topic["partitions"])
        asked = ConfigResource(ConfigResourceType.TOPIC, self._topic, [_LIMIT])
        found = admin.describe_configs([asked], config_filter="all")["topic"].get(self._topic, {})
        if _LIMIT in found:  # who may write need not be allowed to ask
            self._most = min(LARGEST, int(found[_LIMIT]["value"]))

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        """Returns when Kafka has confirmed every letter. Raises `DeadLettersNotSent`."""
        bad = rows.get(KINDS[Quarantined])
        for letters in () if bad is None else bad.to_batches(max_chunksize=_CHUNK):
            self._send(batch_id, map(self._letter, letters.to_pylist()))

    def _letter(self, row: dict[str, Any]) -> Outgoing:
        key = None if row["topic"] is None else row["topic"].encode()
        value = row["payload"]
        headers = [
            (f"magnetar.{name}", row[name][:_LONGEST].encode())
            for name in ("rule", "cause", "topic")
            if row[name] is not None
        ]
        room = self._most - _OVERHEAD - sum(len(text) for _, text in headers)
        if len(key or b"") + len(value) > room:
            headers.append(("magnetar.size", str(len(value)).encode()))
            key, value = (key if len(key or b"") <= room else None), b""
        return Outgoing(row, key, value, tuple(headers), row["partition"] % self._partitions)


def read_dead_letters(
    bootstrap: str, topic: str, *, timeout: float | None = None, config: ClientConfig | None = None
) -> Iterator[Any]:
    """The dead letters as kafka-python's records, from the topic's beginning, repeats dropped. Ends after `timeout`
    seconds without a new one; None: never."""
    return read_records(bootstrap, topic, timeout=timeout, config=config)
