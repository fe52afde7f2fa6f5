"""A producer of a WebSocket (mirrors `ProducerHandler`, and of Pulsar's client `ProducerImpl`, `PartitionedProducerImpl` and the routers)."""

import random
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from streaming.broker.dispatch.murmur3 import murmur3_31
from streaming.broker.names import partition_index, partitions_of
from streaming.broker.persistent.compaction.batches import COMPRESS
from streaming.protocol.codec import Frame, batch, entry
from streaming.server.websocket.client import Alarm, Client, NotGranted
from streaming.server.websocket.messages import UNKNOWN, ClientMessageId, NotPublished, ToPublish
from streaming.server.websocket.parameters import ProducerOptions

_Json = dict[str, Any]
_Done = Callable[[ClientMessageId | NotPublished], None]

_BATCH_BYTES = 128 << 10
"""Pulsar's batchingMaxBytes."""

_BATCH_WHOLE = 1 << 20
"""The same for payloads with their keys and properties, which count for none in Pulsar: its client may make batches that no broker takes."""

_FAILS = frozenset({"NotAllowedError", "TopicTerminatedError", "ProducerFenced"})
"""Errors after which a message is not sent again, as it is after any other."""


class _Sent(NamedTuple):
    """What waits for its receipt: a frame and its tail. `done`: who is told of each message. `due`: when it has taken too long (s)."""

    fields: _Json
    tail: bytes
    done: tuple[_Done, ...]
    due: float
    is_batch: bool


class _Batched(NamedTuple):
    """A message that waits for its batch to be full."""

    sequence_id: int
    metadata: _Json
    payload: bytes
    done: _Done


class TopicProducer:
    """A producer of one topic, or of one partition."""

    def __init__(self, client: Client, topic: str, options: ProducerOptions) -> None:
        self._client, self._topic, self._options = client, topic, options
        self._number = client.new_member("producer", self)
        self._name = options.name
        self._epoch = 0
        self._next = -1 if options.initial_sequence_id is None else options.initial_sequence_id
        self._open = False
        self._sent: OrderedDict[int, _Sent] = OrderedDict()
        self._batch: list[_Batched] = []
        self._batch_bytes = self._batch_whole = 0
        self.partition = partition_index(topic)
        self._delayed, self._timeout = Alarm(client, self.flush), Alarm(client, self._check)

    async def open(self) -> None:
        """Ask for it. Raises `NotGranted`."""
        asked: _Json = {
            "topic": self._topic, "producer_id": self._number, "encrypted": bool(self._options.encryption_keys), "epoch": self._epoch,
            "user_provided_producer_name": self._options.name is not None,
        }  # fmt: skip
        answer = await self._client.ask(
            "PRODUCER", asked if self._name is None else {**asked, "producer_name": self._name}
        )
        self._name = answer.fields["producer_name"]
        last = answer.fields.get("last_sequence_id", -1)
        if not self._epoch and self._options.initial_sequence_id is None:
            self._next = last
        self._open = True
        for each in self._sent.values():
            self._client.tell("SEND", each.fields, each.tail)

    def give_up(self) -> None:
        """It was not granted, and is not asked for again."""
        self._client.forget("producer", self._number)

    async def _reopen(self) -> None:
        self._epoch += 1
        try:
            await self.open()
        except NotGranted as error:
            if error.code not in _FAILS:
                raise
            for number in list(self._sent):
                self._fail(number, self._told(error.code, str(error)))

    @property
    def pending(self) -> int:
        """The messages that wait for their receipts."""
        return sum(len(each.done) for each in self._sent.values()) + len(self._batch)

    def send(self, message: ToPublish, done: _Done) -> None:
        """Publish a message, and tell `done` what has become of it."""
        options = self._options
        if options.max_pending and self.pending >= options.max_pending:
            done(NotPublished(UNKNOWN, "Producer send queue is full"))
            return
        if len(message.payload) > self._client.max_message_size:
            text = f"The producer {self._name} of the topic {self._topic} sends a message with {len(message.payload)} bytes"
            done(NotPublished(UNKNOWN, f"{text} that exceeds {self._client.max_message_size} bytes"))
            return
        self._next += 1
        metadata = _metadata(message)
        each = _Batched(self._next, metadata, message.payload, done)
        if not options.batching or "deliver_at_time" in metadata:
            self.flush()
            self._send_one(each, message)
            return
        whole = len(message.payload) + len(message.key or "")
        whole += sum(len(name) + len(value) for name, value in message.properties.items())
        most = min(_BATCH_WHOLE, self._client.max_message_size // 2)
        if self._batch_whole + whole > most:
            self.flush()
        self._batch.append(each)
        self._batch_bytes += len(message.payload)
        self._batch_whole += whole
        if (
            len(self._batch) == options.batching_max_messages
            or self._batch_bytes >= _BATCH_BYTES
            or self._batch_whole >= most
        ):
            self.flush()
        elif len(self._batch) == 1:
            self._delayed.set(options.batching_delay / 1000)

    def flush(self) -> None:
        """Send what waits for more to make a batch."""
        messages, self._batch, self._batch_bytes, self._batch_whole = self._batch, [], 0, 0
        if len(messages) == 1 and not self._options.batches_of_one:
            self._send_one(messages[0], None)
        elif messages:
            first, last = messages[0], messages[-1]
            own = [
                {
                    name: value for name, value in each.metadata.items()
                    if name in ("properties", "partition_key", "partition_key_b64_encoded", "event_time")
                } | {"sequence_id": each.sequence_id} for each in messages
            ]  # fmt: skip
            payload = batch(own, [each.payload for each in messages])
            metadata = {
                **self._head(first.sequence_id),
                "num_messages_in_batch": len(messages),
                "highest_sequence_id": last.sequence_id,
            }
            if self._options.compression is not None:
                metadata |= {"compression": self._options.compression, "uncompressed_size": len(payload)}
            if "partition_key" in first.metadata:
                metadata["partition_key"] = first.metadata["partition_key"]
                metadata["partition_key_b64_encoded"] = False
            fields = {"num_messages": len(messages), "highest_sequence_id": last.sequence_id}
            self._post(first.sequence_id, fields, metadata, payload, tuple(each.done for each in messages))

    def _head(self, sequence_id: int) -> _Json:
        now = time.time_ns() // 1_000_000
        return {"producer_name": self._name, "sequence_id": sequence_id, "publish_time": now}

    def _send_one(self, each: _Batched, message: ToPublish | None) -> None:
        metadata = {**self._head(each.sequence_id), "uncompressed_size": len(each.payload), **each.metadata}
        if self._options.compression is not None:
            metadata["compression"] = self._options.compression
        if message is not None and (keys := self._options.encryption_keys):
            metadata["encryption_keys"] = keys
            if message.encryption_param is not None:
                metadata["encryption_param"] = message.encryption_param
            if message.compression is not None:
                metadata["compression"] = message.compression
            if message.uncompressed_size is not None:
                metadata["uncompressed_size"] = message.uncompressed_size
        self._post(each.sequence_id, {}, metadata, each.payload, (each.done,))

    def _post(
        self, sequence_id: int, fields: _Json, metadata: _Json, payload: bytes, done: tuple[_Done, ...]
    ) -> None:
        if (compress := COMPRESS.get(self._options.compression or "")) is not None:
            payload = compress(payload)
        sent = {"producer_id": self._number, "sequence_id": sequence_id, **fields}
        timeout = self._options.send_timeout / 1000
        due = time.monotonic() + timeout
        found = _Sent(sent, entry(metadata, payload), done, due, "num_messages" in fields)
        self._sent[sequence_id] = found
        if timeout:
            self._timeout.set(timeout)
        if self._open:
            self._client.tell("SEND", sent, found.tail)

    def _check(self) -> None:
        """Give up what has waited too long."""
        now = time.monotonic()
        for number, each in list(self._sent.items()):
            if each.due > now:
                self._timeout.set(each.due - now)
                return
            text = f"The producer {self._name} can not send message to the topic {self._topic} within given timeout"
            self._fail(number, text)

    def _told(self, code: str, text: str) -> str:
        """The text of an exception of Pulsar's client."""
        told, exception = self._client.told(text), code.removesuffix("Error")
        return f"org.apache.pulsar.client.api.PulsarClientException${exception}Exception: {told}"

    def _fail(self, number: int, why: str) -> None:
        if (sent := self._sent.pop(number, None)) is not None:
            for done in sent.done:
                done(NotPublished(UNKNOWN, why))

    def took(self, frame: Frame) -> None:
        """A frame for it has come."""
        fields = frame.fields
        if frame.cmd == "CLOSE_PRODUCER":
            self._lost()
        elif frame.cmd == "SEND_ERROR":
            if fields["error"] in _FAILS:
                self._fail(fields["sequence_id"], self._told(fields["error"], fields["message"]))
            else:
                self._lost()
        elif frame.cmd == "SEND_RECEIPT" and (sent := self._sent.pop(fields["sequence_id"], None)):
            where = fields["message_id"]
            for index, done in enumerate(sent.done):
                batch_index = index if sent.is_batch else -1
                done(ClientMessageId(where["ledgerId"], where["entryId"], self.partition, batch_index))

    def _lost(self) -> None:
        """The broker has closed it, or may not have stored a message: ask for it again."""
        if self._open:
            self._open = False
            self._client.begin(self._client.again(self._reopen))


class WebSocketProducer:
    """The producer of a WebSocket, which may be that of a partitioned topic."""

    def __init__(self, client: Client, options: ProducerOptions) -> None:
        self._client, self._options = client, options
        self._of: list[TopicProducer] = []
        self._turn = 0

    @property
    def is_encrypted(self) -> bool:
        """Whether the client encrypts messages itself."""
        return bool(self._options.encryption_keys)

    async def open(self, topic: str) -> None:
        """Ask for the producers of all partitions. Raises `NotGranted`."""
        for each in await partitions(self._client, topic):
            producer = TopicProducer(self._client, each, self._options)
            await producer.open()
            self._of.append(producer)
        # quirk: without keys, all messages go to one partition that is picked by chance, and in turns, the first one is
        self._turn = random.randrange(len(self._of))

    @property
    def pending(self) -> int:
        """The messages that wait for their receipts."""
        return sum(each.pending for each in self._of)

    def send(self, message: ToPublish, done: _Done) -> None:
        """Publish a message, and tell `done` what has become of it."""
        self._of[self._route(message.key)].send(message, done)

    def _route(self, key: str | None) -> int:
        if len(self._of) == 1:
            return 0
        if key is not None:
            return _hash(key, murmur=self._options.murmur) % len(self._of)
        if self._options.round_robin:
            self._turn = (self._turn + 1) % len(self._of)
        return self._turn

    def flush(self) -> None:
        """Send what waits for more to make batches."""
        for each in self._of:
            each.flush()


async def partitions(client: Client, topic: str) -> list[str]:
    """The names of the partitions of a topic; that of the topic if it has none. Raises `NotGranted`."""
    asked = {"topic": topic, "metadata_auto_creation_enabled": True}
    count = (await client.ask("PARTITIONED_METADATA", asked)).fields.get("partitions", 0)
    return partitions_of(topic, count) or [topic]


def _metadata(message: ToPublish) -> _Json:
    """What a message says of itself. quirk: a delay counts in place of a time."""
    found: _Json = {}
    if message.key is not None:
        found |= {"partition_key": message.key, "partition_key_b64_encoded": False}
    if message.properties:
        found["properties"] = [{"key": key, "value": value} for key, value in message.properties.items()]
    if message.clusters:
        found["replicate_to"] = list(message.clusters)
    if message.event_time is not None:
        found["event_time"] = message.event_time
    if message.deliver_after > 0:
        found["deliver_at_time"] = time.time_ns() // 1_000_000 + message.deliver_after
    elif message.deliver_at > 0:
        found["deliver_at_time"] = message.deliver_at
    return found


def _hash(key: str, *, murmur: bool) -> int:
    """The hash by which a key has its partition, not negative."""
    if murmur:
        return murmur3_31(key.encode())
    found = 0
    data = key.encode("utf-16-be", errors="surrogatepass")
    for at in range(0, len(data), 2):
        found = (31 * found + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return found & 0x7FFFFFFF
