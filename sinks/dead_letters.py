"""Dead letters: quarantined records in a Kafka topic, for monitoring and repair by other systems.

A dead letter has the key and value of the refused record. Besides the identity (see `sinks.kafka`), it has these headers
(UTF-8): ``magnetar.rule``, ``magnetar.cause`` and, if the record had one, ``magnetar.topic``. ``magnetar.partition`` and
``magnetar.offset`` are the position of the record in the ingress topic.

An empty key counts as absent.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from kafka import KafkaAdminClient

from schemas.effects import KINDS, Quarantined
from schemas.keys import key_of
from schemas.outputs import IDENTITY, Rows
from sinks.kafka import ClientConfig, KafkaSink, NotSent, Outgoing, read_records

_LONGEST = 4096  # characters of a topic name or cause, since a bad record's may be as long as the record
_CHUNK = 256  # letters whose values are in memory at a time
_OVERHEAD = 1024  # bytes that Kafka and the other headers add to a record


class DeadLettersNotSent(NotSent):
    """Kafka didn't take the dead letters."""


class KafkaDeadLetters(KafkaSink):
    """Sends QUARANTINED rows. All rows of an ingress partition go to one Kafka partition, in order.

    A letter that is too large for the topic is sent without its value, because a bad record must not stop the query.
    ``magnetar.size`` is then the size of the value in bytes. The files of the quarantine have the value.
    """

    _what = "dead letters"
    _not_sent = DeadLettersNotSent

    def __init__(self, bootstrap: str, topic: str, config: ClientConfig | None = None) -> None:
        """The arguments are those of `KafkaSink`."""
        super().__init__(bootstrap, topic, config)
        self._partitions = 1

    def _look(self, admin: KafkaAdminClient) -> None:
        (topic,) = admin.describe_topics([self._topic])
        # Not chosen by key: without one, a repeated micro-batch could choose another partition.
        self._partitions = len(topic["partitions"])
        super()._look(admin)

    def write(self, batch_id: int, partition: int, rows: Rows) -> None:
        """Returns when Kafka has confirmed every letter. Raises `DeadLettersNotSent`."""
        bad = rows.get(KINDS[Quarantined])
        if bad is not None:
            letters = bad.to_batches(max_chunksize=_CHUNK)
            self._send(batch_id, (self._outgoing(partition, each) for each in letters))

    def _outgoing(self, partition: int, rows: pa.RecordBatch) -> Outgoing:
        keys, values, headers = zip(*map(self._letter, rows.to_pylist()), strict=True)
        identity = {name: rows[name] for name in IDENTITY}
        to = partition % self._partitions
        return Outgoing(identity, pa.array(keys, pa.binary()), pa.array(values, pa.binary()), headers, to)

    def _letter(self, row: dict[str, Any]) -> tuple[bytes | None, bytes, dict[str, bytes]]:
        key = key_of(row["topic"])
        value = row["payload"]
        headers = {
            f"magnetar.{name}": row[name][:_LONGEST].encode()
            for name in ("rule", "cause", "topic")
            if row[name] is not None
        }
        room = self._most - _OVERHEAD - sum(map(len, headers.values()))
        if len(key or b"") + len(value) > room:
            headers["magnetar.size"] = str(len(value)).encode()
            key, value = (key if len(key or b"") <= room else None), b""
        return key, value, headers


def read_dead_letters(
    bootstrap: str, topic: str, *, timeout: float | None = None, config: ClientConfig | None = None
) -> Iterator[Any]:
    """The dead letters from the start of the topic as kafka-python's records, without repeats.

    Reads what the topic has in any case, then ends after `timeout` seconds without a new one, or never if None.
    """
    return read_records(bootstrap, topic, timeout=timeout, config=config)
