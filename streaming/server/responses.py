"""The response topic, as the servers of a query read it: each takes the rows of its own connections."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Union, get_type_hints

import msgspec

from schemas.commands import MessageMetadata
from schemas.effects import KINDS, RESPONSES, AdminResponse, Effect, Row
from schemas.errors import MagnetarError
from sinks.kafka import RecordsGone, drop_repeats
from streaming.kafka.client import connect
from streaming.kafka.config import KafkaConfig
from streaming.kafka.url import KafkaUrl
from streaming.server.engine import StoredEntry

if TYPE_CHECKING:
    from kafka import KafkaConsumer, TopicPartition

_POLL_MS = 500
_METADATA_MS = 5_000
"""So long after the topic has got partitions, the reader knows of them. Producers learn it after minutes."""


class AnswersLost(MagnetarError, RuntimeError):
    """The topic is another one than before, or shorter. The text says what to do."""

    def __init__(self) -> None:
        super().__init__(
            "it was deleted and recreated, or Kafka has lost its end. Clients would wait for ever for answers that were there: start the "
            "server again, and they connect again"
        )


class Response(NamedTuple):
    """A row that answers a connection. `entry`: the entry that an admin call asked for."""

    partition: int
    row: Row
    entry: StoredEntry | None = None


def _structure(effect: type[Effect]) -> type[msgspec.Struct]:
    """What the value of a record holds: the identity, and the effect's fields, of which those that are null are absent."""
    fields: list[Any] = [(name, int) for name in ("partition", "offset", "ordinal", "clock")]
    for name, hint in get_type_hints(effect).items():
        fields.append((name, hint, None) if type(None) in getattr(hint, "__args__", ()) else (name, hint))
    if effect is AdminResponse:
        fields += [("metadata", MessageMetadata | None, None), ("payload", bytes | None, None)]
    return msgspec.defstruct(
        effect.__name__, fields, tag_field="kind", tag=KINDS[effect], kw_only=True, gc=False
    )


_EFFECTS = {_structure(effect): effect for effect, kind in KINDS.items() if kind in RESPONSES}
_decoder = msgspec.json.Decoder(Union[tuple(_EFFECTS)])  # noqa: UP007 (made at run time)


def decode(value: bytes) -> Response:
    """The row in the value of a record, see `sinks.kafka.KafkaResponses`."""
    found: Any = _decoder.decode(value)
    effect = _EFFECTS[type(found)]
    made: Any = effect(*[getattr(found, name) for name in effect._fields])
    row = Row(found.offset, found.ordinal, found.clock, made)
    if effect is AdminResponse and found.metadata is not None:
        payload = found.payload or b""
        return Response(found.partition, row, StoredEntry(found.metadata, payload, len(payload)))
    return Response(found.partition, row)


class ResponseReader:
    """Reads a response topic from its end on, in a thread of its own, until it is closed.

    `wanted` says of a record's key, the name of a connection, whether its row is passed to `deliver`. Both are called in that thread, and so is
    `failed`, at the end, such as with `RecordsGone` or `AnswersLost`.
    """

    def __init__(
        self,
        url: KafkaUrl,
        config: KafkaConfig,
        wanted: Callable[[str], bool],
        deliver: Callable[[Response], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Raises `KafkaUnreachable`."""
        from kafka import KafkaConsumer

        self._topic = url.topic
        self._wanted, self._deliver, self._failed = wanted, deliver, failed
        self._topic, self._closing = url.topic, False
        self._consumer: KafkaConsumer = connect(
            KafkaConsumer,
            url,
            config,
            enable_auto_commit=False,
            auto_offset_reset="none",  # clients wait for what is skipped
            allow_auto_create_topics=False,
            max_partition_fetch_bytes=16 << 20,
            metadata_max_age_ms=_METADATA_MS,
        )
        self._assign()
        self._id = self._topic_id()
        self._consumer.seek_to_end()
        for part in self._consumer.assignment():
            self._consumer.position(part)  # now, not when it is first needed: no answer may come before
        self._thread = threading.Thread(target=self._run, name="responses", daemon=True)
        self._thread.start()

    def _assign(self) -> list[TopicPartition]:
        """Read all partitions that the topic has now. Returns those that are new."""
        from kafka import TopicPartition

        parts = self._consumer.partitions_for_topic(self._topic) or ()
        before = self._consumer.assignment()
        new = [each for part in sorted(parts) if (each := TopicPartition(self._topic, part)) not in before]
        if new:
            self._consumer.assign([*before, *new])
        return new

    def _topic_id(self) -> str | None:
        """The topic's id, as Kafka last said. None: it has none, or there is no such topic now."""
        found: str | None = self._consumer._cluster.topic_id(self._topic)
        return found

    def close(self) -> None:
        """Read no more."""
        self._closing = True
        self._thread.join()

    def _run(self) -> None:
        from kafka.errors import LogTruncationError, OffsetOutOfRangeError

        try:
            for record in drop_repeats(self._own()):
                self._deliver(decode(record.value))
        except LogTruncationError:
            self._failed(AnswersLost())
        except OffsetOutOfRangeError as error:
            self._failed(RecordsGone(self._topic, error))
        except Exception as error:
            self._failed(error)
        finally:
            self._consumer.close()

    def _own(self) -> Iterator[Any]:
        while not self._closing:
            if new := self._assign():
                self._consumer.seek_to_beginning(*new)
            polled = self._consumer.poll(timeout_ms=_POLL_MS)
            # Kafka's client goes on in a new topic of the same name.
            if (found := self._topic_id()) is not None and found != (self._id or found):
                raise AnswersLost
            for records in polled.values():
                for record in records:
                    if record.key is not None and self._wanted(record.key.decode(errors="replace")):
                        yield record
