"""Writes commands to the ingress topic as they come, for servers, of which several may write to one topic.

A command on a Pulsar topic goes to that topic's ingress partition, by an idempotent producer, so that they arrive once and in
order. A command to the whole broker goes to all partitions in one transaction. All servers use the same transactional id, which
Kafka gives to one producer at a time: so each such command is in all partitions or in none, and in the same order everywhere,
which docs/operate/partitions.md requires.

Kafka's client knows a topic by its name. If somebody deletes it and makes it anew, the client would go on in the new one, whose log lacks
what was before. So nothing more is written once Kafka says that the topic has another id.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from schemas.keys import key_of
from schemas.records import LARGEST
from streaming.kafka.client import connect
from streaming.kafka.config import KafkaConfig
from streaming.kafka.topics import largest_value
from streaming.kafka.url import KafkaUrl
from streaming.log.partition import ingress_partition

if TYPE_CHECKING:
    from kafka import KafkaProducer

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0
"""How long a command waits for Kafka to take it. Then the writer fails."""

_LINGER_MS = 2
_TRANSACTION_MS = 10_000
"""The end of a server in the middle of a transaction holds up the query for so long, unless another server begins one."""


_METADATA_MS = 5_000
"""So long after the topic was made anew, or got partitions, its producers know. By default, that takes minutes."""

_ASK_SECONDS = 10.0
"""So long a question about the topic, before the end of a transaction, waits for Kafka. Without an answer, the end fails, too."""

_ROOM = 1 << 16
"""Bytes of a record besides the command. The command's own message must fit into a response, which has longer names."""


class NotWritten(RuntimeError):
    """Kafka did not take a command. The text says which topic and why."""


class KafkaFailed(NotWritten):
    """Kafka did not take a command, and may take it later. `reason`: why, without what to do about it."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}: check that it is up and that the topic exists, and start the server again"
        )
        self.reason = reason


class _ToAll(NamedTuple):
    """Commands for all partitions. `after`: the sends that must be done before. `timestamp`: in ms."""

    values: Sequence[bytes]
    timestamp: int
    after: Sequence[Any]
    done: Future[None]


class CommandWriter:
    """Writes to the ingress topic `url`, which must exist. Use it from one thread.

    `failed` is called in another thread, once at least, when Kafka doesn't take a command. Nothing may be written afterwards.
    """

    def __init__(
        self, url: KafkaUrl, config: KafkaConfig, failed: Callable[[NotWritten], None], **more: Any
    ) -> None:
        """`more`: settings of the producer of commands on topics. Raises `KafkaUnreachable`."""
        from kafka import KafkaProducer

        self._url, self._config, self._failed = url, config, failed
        self._settings: dict[str, Any] = {
            "acks": "all",
            "enable_idempotence": True,
            "allow_auto_create_topics": False,
            "linger_ms": _LINGER_MS,
            "batch_size": 1 << 18,
            "max_request_size": LARGEST,
            "delivery_timeout_ms": int(PATIENCE_SECONDS * 1000),
            "max_block_ms": int(PATIENCE_SECONDS * 1000),
            "metadata_max_age_ms": _METADATA_MS,
        }
        self._anew: NotWritten | None = None
        self._producer: KafkaProducer = connect(KafkaProducer, url, config, **self._settings, **more)
        self._last: dict[int, Any] = {}
        self._queue: queue.SimpleQueue[_ToAll | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="commands to all partitions", daemon=True)
        self.partitions = len(self._producer.partitions_for(url.topic) or ())
        self._id = self._producer._metadata.topic_id(url.topic)  # None: Kafka has no ids
        self._watch(self._producer)
        most = largest_value(url, config)
        self.largest = most - min(_ROOM, most // 4)
        """The bytes of the largest command that the topic takes."""
        self._thread.start()

    def count(self) -> int:
        """The number of the topic's partitions, as Kafka last said. 0: it knows no such topic, for which `send` would wait."""
        return len(self._producer._metadata.partitions_for_topic(self._url.topic) or ())

    def wait_for_topic(self) -> None:
        """Wait until Kafka knows the topic. Call it from any thread. Raises `NotWritten`."""
        from kafka.errors import KafkaError

        try:
            self._producer.partitions_for(self._url.topic)
        except KafkaError as error:
            raise self._refused(error) from error

    def send(self, topic: str, value: bytes, timestamp: int, done: Callable[[], None] | None = None) -> None:
        """Write a command on a Pulsar topic. `timestamp`: in ms. `done` is called in another thread when it is written.

        Raises `NotWritten`.
        """
        from kafka.errors import KafkaError

        if self._anew is not None:
            raise self._anew
        partition = ingress_partition(topic, self.partitions)
        try:
            sent = self._producer.send(
                self._url.topic, value, key=key_of(topic), partition=partition, timestamp_ms=timestamp
            )
        except KafkaError as error:
            raise self._refused(error) from error
        if done is not None:
            sent.add_callback(lambda _: done())
        sent.add_errback(self._on_error)
        self._last[partition] = sent

    def send_to_all(self, values: Sequence[bytes], timestamp: int) -> Future[None]:
        """Write commands to the whole broker, after all that was sent before. `timestamp`: in ms.

        The result is done when they are written, and never if they can't be.
        """
        done: Future[None] = Future()
        self._queue.put(_ToAll(values, timestamp, list(self._last.values()), done))
        return done

    def flush(self) -> None:
        """Wait for the commands on topics that were sent. Those that Kafka does not take call `failed`."""
        from kafka.errors import KafkaError

        with suppress(KafkaError):
            self._producer.flush(timeout=PATIENCE_SECONDS)

    def close(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Write what is pending, in `seconds` at most, and close the connections."""
        self._queue.put(None)
        self._thread.join(seconds)
        _close(self._producer, seconds)

    def _watch(self, producer: KafkaProducer) -> None:
        """Look at what Kafka tells a producer of the topic, before the producer sends anything after that."""
        producer._metadata.add_listener(lambda _: self._look(producer))

    def _look(self, producer: KafkaProducer) -> None:
        """Have a producer send nothing more, not even what it tries again, if the topic was made anew."""
        if self._id is None or producer._metadata.topic_id(self._url.topic) in (None, self._id):
            return
        producer._sender.force_close()
        self._anew = NotWritten(
            f"Kafka's topic {self._url.topic!r} was deleted and recreated while this process wrote to it. What it had is gone, and a query "
            "on it needs a new checkpoint and a new store. Then start this process again"
        )
        self._failed(self._anew)

    def _ask(self, producer: KafkaProducer) -> None:
        """Ask Kafka now whether the topic was made anew. Raises `NotWritten` if so."""
        asked = threading.Event()
        producer._metadata.request_update().add_both(lambda _: asked.set())
        producer._sender.wakeup()
        asked.wait(_ASK_SECONDS)
        self._look(producer)
        if self._anew is not None:
            raise self._anew

    def _not_written(self, error: Exception) -> NotWritten:
        if self._anew is not None:
            return self._anew
        return KafkaFailed(
            f"Kafka at {self._url.bootstrap} did not take a command for topic {self._url.topic!r} ({error!r})"
        )

    def _on_error(self, error: Exception) -> None:
        self._failed(self._refused(error))

    def _refused(self, error: Exception) -> NotWritten:
        """Why a command on a topic was not written."""
        return self._not_written(error)

    def _run(self) -> None:
        try:
            self._write_to_all()
        except Exception as error:  # or else what comes would wait for ever
            self._failed(self._not_written(error))

    def _write_to_all(self) -> None:
        from kafka.errors import KafkaError

        producer: KafkaProducer | None = None
        while (pending := self._queue.get()) is not None:
            deadline = time.monotonic() + PATIENCE_SECONDS
            try:
                for sent in pending.after:
                    sent.get(PATIENCE_SECONDS)
            except KafkaError:
                return  # `failed` was called
            while True:
                try:
                    if producer is None:
                        producer = self._transactional()
                    self._transact(producer, pending)
                    pending.done.set_result(None)
                    break
                except (KafkaError, NotWritten) as error:
                    # Another server took its turn, which is usual, or Kafka is away.
                    log.debug("a transaction is repeated: %r", error)
                    if producer is not None:
                        _close(producer, 0)
                        producer = None
                    if self._anew is not None:
                        return  # `failed` was called
                    if time.monotonic() > deadline:
                        self._failed(self._not_written(error))
                        return
                    time.sleep(random.uniform(0, 0.3))
        if producer is not None:
            _close(producer, PATIENCE_SECONDS)

    def _transactional(self) -> KafkaProducer:
        from kafka import KafkaProducer

        producer: KafkaProducer = KafkaProducer(
            bootstrap_servers=self._url.bootstrap.split(","),
            transactional_id=f"magnetar-{self._url.topic}",
            transaction_timeout_ms=_TRANSACTION_MS,
            **{**self._settings, "linger_ms": 0},
            **self._config.client(),
        )
        self._watch(producer)
        try:
            producer.init_transactions()
        except BaseException:
            _close(producer, 0)
            raise
        return producer

    def _transact(self, producer: KafkaProducer, pending: _ToAll) -> None:
        producer.begin_transaction()
        sent = [
            producer.send(self._url.topic, value, partition=partition, timestamp_ms=pending.timestamp)
            for value in pending.values
            for partition in range(self.partitions)
        ]
        producer.flush(timeout=PATIENCE_SECONDS)
        # The commit doesn't always raise these errors: of a producer that was fenced meanwhile, it may succeed without them.
        for each in sent:
            each.get(PATIENCE_SECONDS)
        self._ask(producer)
        producer.commit_transaction()


def _close(producer: KafkaProducer, seconds: float) -> None:
    """Write what is pending, in `seconds` at most, and close the connections. What is pending then is not written.

    Kafka's client gives up instead if something is pending, and goes on sending.
    """
    from kafka.errors import KafkaError

    try:
        producer.close(timeout=seconds)
    except KafkaError:
        producer._sender.force_close()


class ToSend(NamedTuple):
    """A command on a Pulsar topic. `timestamp`: in ms."""

    topic: str
    value: bytes
    timestamp: int


class SoleWriter(CommandWriter):
    """A `CommandWriter` of which one at a time, on any machine, writes commands on topics to an ingress topic.

    Kafka gives a transactional id to one producer at a time. So a writer that begins takes the topic over from the one before, of which nothing
    comes any more that `transact` has not written: it fails there with `NotWritten`.
    """

    def __init__(
        self, url: KafkaUrl, config: KafkaConfig, failed: Callable[[NotWritten], None], name: str
    ) -> None:
        """`name`: the transactional id, and the consumer group whose offsets `transact` sets. Raises `KafkaUnreachable` and `NotWritten`."""
        from kafka.errors import KafkaError

        self._name = name
        super().__init__(
            url, config, failed, transactional_id=name, transaction_timeout_ms=int(PATIENCE_SECONDS * 1000)
        )
        try:
            self._producer.init_transactions()
        except KafkaError as error:
            self.close(0)
            raise self._not_written(error) from error

    def transact(self, commands: Iterable[ToSend], offsets: Mapping[int, int]) -> None:
        """Write commands on topics, and set the group's offsets by partition: all of it or nothing. Raises `NotWritten`."""
        from kafka import TopicPartition
        from kafka.errors import KafkaError
        from kafka.structs import OffsetAndMetadata

        ends = {
            TopicPartition(self._url.topic, part): OffsetAndMetadata(end, "", -1)
            for part, end in offsets.items()
        }
        self._last.clear()
        try:
            self._producer.begin_transaction()
            for topic, value, timestamp in commands:
                self.send(topic, value, timestamp)
            self._producer.flush(timeout=PATIENCE_SECONDS)
            for sent in self._last.values():  # a partition takes none after one that it did not take
                sent.get(PATIENCE_SECONDS)
            self._ask(self._producer)
            if ends:
                self._producer.send_offsets_to_transaction(ends, self._name)
            self._producer.commit_transaction()
        except KafkaError as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> NotWritten:
        from kafka.errors import InvalidProducerEpochError, ProducerFencedError

        # After the first command that failed, Kafka's client only says that one has: why, it has kept.
        first = self._producer._transaction_manager.last_error
        if not any(
            isinstance(each, InvalidProducerEpochError | ProducerFencedError) for each in (error, first)
        ):
            return super()._refused(error)
        return NotWritten(
            f"another process writes to Kafka's topic {self._url.topic!r} as {self._name}, which one may at a time. That one goes on, and this "
            f"one has ended. If there is no other one, Kafka did not answer for {PATIENCE_SECONDS:.0f} s: start this one again"
        )
