"""Consumers and readers of a WebSocket (mirrors `ConsumerHandler` and `ReaderHandler`, and of Pulsar's client `ConsumerImpl`, `ReaderImpl`,
`MultiTopicsConsumerImpl`, `BatchMessageAcker`, `UnAckedMessageTracker` and `NegativeAcksTracker`).

Permits go to the broker as from Pulsar's client: as many as the receiver queue holds, and again whenever half of them are used.
"""

import asyncio
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from schemas.commands import MessageMetadata
from streaming.broker.context import namespace_of
from streaming.broker.names import complete, partition_index
from streaming.protocol.codec import Frame, FrameError, singles
from streaming.protocol.frames import NotUncompressed, matching, uncompressed
from streaming.server.websocket.client import FIRST_RETRY, LAST_RETRY, Alarm, Client, NotGranted
from streaming.server.websocket.known import KnownMessages
from streaming.server.websocket.messages import (
    ClientMessageId,
    NoText,
    NotPublished,
    ToPublish,
    delivered,
    encryption_context,
)
from streaming.server.websocket.parameters import BadParameter, ConsumerOptions, ProducerOptions
from streaming.server.websocket.producer import TopicProducer, partitions

_Json = dict[str, Any]

MOST_KNOWN = 100_000
"""Messages of a consumer that it may have delivered and not seen acknowledged. What is beyond them, the oldest first, is not known any more:
it is acknowledged as any message of that id, and not before time given back. Pulsar forgets after an hour."""

_LEAST_NACK_DELAY = 100
_MOST_IDS = 1000
"""Message ids in a frame."""

_MOST_CHUNKED = 10
"""Chunked messages of which more chunks are to come: Pulsar's maxPendingChunkedMessage. The oldest goes."""

_MOST_DEAD = 100
"""Messages that wait to be dead letters. While there are as many, no more are delivered."""

_END: Final = "no more"

_ACK_SECONDS = 0.1
"""A reader acknowledges what it has read after so long."""

_DEAD = ProducerOptions(None, None, False, 30_000, False, False, 0, 0, 0, None, ())


class Received(NamedTuple):
    """A message that came. `metadata`: its own, of those in a batch of `batch_size`."""

    consumer: "TopicConsumer"
    id: ClientMessageId
    payload: bytes
    metadata: _Json
    redelivery_count: int
    batch_size: int
    encryption: _Json | None = None

    def text(self) -> str:
        """It as a WebSocket gets it."""
        return delivered(
            self.id.encoded(self.batch_size),
            self.payload,
            self.metadata,
            self.redelivery_count,
            self.encryption,
        )


class Came:
    """An entry that came, and is not taken apart. `count`: its messages. `left`: those that are not taken out. `acked`: the messages of a
    batch that are not acknowledged, as words; None: all. `size`: the bytes that it takes."""

    def __init__(
        self, consumer: "TopicConsumer", id: ClientMessageId, frame: Frame, payload: bytes, count: int
    ) -> None:
        self.consumer, self.id, self.payload = consumer, id, payload
        self.metadata: _Json = frame.metadata or {}
        self.redelivery_count: int = frame.fields.get("redelivery_count", 0)
        self.acked: list[int] | None = frame.fields.get("ack_set")
        self.count = self.left = count
        self.size = _OVERHEAD + len(payload)


class _Batch:
    """The messages of a batch of `size` that the client has and has not acknowledged. `is_whole`: all of them are taken out."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.given: set[int] = set()
        self.is_whole = False


class _Chunks(NamedTuple):
    """The first chunks of a message: their ledgers and entries, and their payloads."""

    entries: list[tuple[int, int]]
    parts: list[bytes]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(map(len, self.parts))


class TopicConsumer:
    """A consumer of one topic, or of one partition. `owner`: who has it."""

    def __init__(self, owner: "WebSocketConsumer", topic: str, place: int) -> None:
        """`place`: among the topics of the owner; 0 if ids need not tell."""
        self.topic, self._place = topic, place
        self._owner, self._client, self._options = owner, owner.client, owner.options
        self._number = self._client.new_member("consumer", self)
        self._permits = self._epoch = 0
        self._open = True
        self._start = self._options.start
        self._batches: OrderedDict[tuple[int, int], _Batch] = OrderedDict()
        """By ledger and entry."""
        self._chunks: OrderedDict[str, _Chunks] = OrderedDict()
        """Messages of which more chunks are to come, by the id that their producer gave them."""
        self._others: OrderedDict[tuple[int, int], list[tuple[int, int]]] = OrderedDict()
        """The ledgers and entries of the chunks of a message before its last one, by that of the last one."""
        self._known = 0
        """The messages of `_batches`, and the chunks of `_others`."""
        self._read: ClientMessageId | None = None
        self.reached_end = False
        self._partition = partition_index(topic)

    async def open(self) -> None:
        """Subscribe. Raises `NotGranted`."""
        options = self._options
        asked: _Json = {
            "topic": self.topic, "subscription": self._owner.subscription, "subType": options.type, "consumer_id": self._number,
            "consumer_name": self._owner.name, "priority_level": options.priority, "durable": options.durable, "read_compacted": False,
            "initialPosition": "Earliest" if options.earliest else "Latest", "force_topic_creation": True, "consumer_epoch": self._epoch,
        }  # fmt: skip
        if not options.durable and self._start is not None:
            start: _Json = {"ledgerId": self._start.ledger, "entryId": self._start.entry}
            if self._start.batch_index >= 0:
                start["batch_index"] = self._start.batch_index
            asked["start_message_id"] = start
        await self._client.ask("SUBSCRIBE", asked)
        self._open, self._permits = True, 0
        if options.queue:
            self._flow(options.queue)

    def _flow(self, permits: int) -> None:
        self._tell("FLOW", messagePermits=permits)

    def _tell(self, cmd: str, **fields: Any) -> None:
        if self._open:
            self._client.tell(cmd, {"consumer_id": self._number, **fields})

    def used(self, permits: int = 1) -> None:
        """So many messages are out of the queue."""
        self._permits += permits
        if self._options.queue and self._permits >= self._options.queue // 2:
            self._flow(self._permits)
            self._permits = 0

    def wants_one(self) -> None:
        """Without a queue, ask for the one message that is wanted. quirk: a reader does not, and so gets nothing."""
        if not self._options.queue and self._options.durable:
            self._flow(1)

    # -- what comes

    def took(self, frame: Frame) -> None:
        """A frame for it has come."""
        if frame.cmd == "MESSAGE":
            if frame.fields.get("consumer_epoch", self._epoch) >= self._epoch:
                if (came := self._came(frame)) is not None:
                    self._owner.receive(came)
            else:
                self.used(_messages_in(frame))
        elif frame.cmd == "REACHED_END_OF_TOPIC":
            self.reached_end = True
        elif frame.cmd == "CLOSE_CONSUMER":
            self._open = False
            self._owner.forget(self)
            self.forget_known(0)
            if self._read is not None and self._start is not None:
                self._start = self._read
            self._client.begin(self._client.again(self.open))

    def _came(self, frame: Frame) -> Came | None:
        """An entry that may have messages for the client. None: they can't be decrypted, or more chunks are to come."""
        where, metadata = frame.fields["message_id"], frame.metadata or {}
        position = ClientMessageId(where["ledgerId"], where["entryId"], self._partition, topic=self._place)
        payload, count = frame.payload or b"", _messages_in(frame)
        if metadata.get("encryption_keys") and self._options.crypto != "CONSUME":
            if self._options.crypto == "DISCARD":
                self.ack_entry(position)
                self.used(count)
            return None
        chunks = metadata.get("num_chunks_from_msg", 1) if self._options.joins_chunks else 1
        if "num_messages_in_batch" not in metadata and chunks > 1:
            joined = self._joined(position, metadata, payload, chunks)
            if joined is None:
                self.used()
                return None
            position, payload = joined
        return Came(self, position, frame, payload, count)

    def messages(self, came: Came) -> Iterator[Received | None]:
        """The messages of an entry, one by one: a client may read none, and a short entry may have very many. None: one that the client
        does not get. An entry that nobody can read is acknowledged."""
        metadata, count = came.metadata, came.count
        if metadata.get("encryption_keys"):
            context = encryption_context(metadata)
            if self._options.tells_encrypted:
                context["encrypted"] = True
            yield Received(self, came.id, came.payload, metadata, came.redelivery_count, 0, context)
            return
        try:
            came.payload = payload = uncompressed(_compression(metadata), came.payload)
        except NotUncompressed:
            self.ack_entry(came.id)
            self.used(count)
            return
        if "num_messages_in_batch" not in metadata:
            if not self._is_before_start(came.id):  # quirk: its permit is lost
                yield Received(self, came.id, payload, metadata, came.redelivery_count, 0)
            return
        batch, key = _Batch(count), (came.id.ledger, came.id.entry)
        if not self._owner.is_reader:  # which acknowledges no single ones
            self._forget_batch(key)
            self._batches[key] = batch
            self._know(count)
            self.forget_known(max(MOST_KNOWN, count))
        try:
            for index, (single, data) in enumerate(singles(payload, count)):
                came.left -= 1
                is_acked = came.acked is not None and not _is_set(came.acked, index)
                if is_acked or single.get("compacted_out") or self._is_before_start(came.id, index):
                    self.used()
                    yield None
                    continue
                batch.given.add(index)
                found = {"publish_time": metadata["publish_time"], **single}
                id = came.id._replace(batch_index=index)
                yield Received(self, id, data, found, came.redelivery_count, count)
        except FrameError:
            self.used(came.left)
        batch.is_whole = True
        self._ack_if_done(came.id, batch)

    def _joined(
        self, position: ClientMessageId, metadata: _Json, payload: bytes, chunks: int
    ) -> tuple[ClientMessageId, bytes] | None:
        """A message of which the last chunk has come. None: more are to come, or one has not come here."""
        name, index = metadata.get("uuid", ""), metadata.get("chunk_id", 0)
        if not index:
            self._drop_chunks(name)
            self._chunks[name] = _Chunks([], [])
            if len(self._chunks) > _MOST_CHUNKED:
                self._drop_chunks(next(iter(self._chunks)))
        found = self._chunks.get(name)
        if found is None or len(found.parts) != index:
            self._drop_chunks(name)
            return None
        found.entries.append((position.ledger, position.entry))
        found.parts.append(payload)
        self._owner.keep(len(payload))
        if index < chunks - 1:
            return None
        self._drop_chunks(name)
        *others, last = found.entries
        if not self._owner.is_reader:
            self._forget_others(last)
            self._others[last] = others
            self._know(len(others))
            self.forget_known(max(MOST_KNOWN, len(others)))
        return position._replace(first_chunk=found.entries[0]), b"".join(found.parts)

    def _drop_chunks(self, name: str) -> None:
        if (found := self._chunks.pop(name, None)) is not None:
            self._owner.keep(-found.size)

    def _know(self, more: int) -> None:
        self._known += more
        self._owner.know(more)

    def _forget_batch(self, key: tuple[int, int]) -> None:
        if (batch := self._batches.pop(key, None)) is not None:
            self._know(-batch.size)

    def _forget_others(self, last: tuple[int, int]) -> list[tuple[int, int]]:
        others = self._others.pop(last, [])
        self._know(-len(others))
        return others

    def forget_known(self, left: int) -> None:
        """Forget the oldest batches, and then the chunks, until no more than so many messages are known."""
        for known, forget in ((self._batches, self._forget_batch), (self._others, self._forget_others)):
            while self._known > left and known:
                forget(next(iter(known)))

    def forget_half(self) -> None:
        """Forget the older half of what is known."""
        self.forget_known(self._known // 2)

    def forget_chunks(self) -> None:
        """They come again."""
        for name in list(self._chunks):
            self._drop_chunks(name)

    def _is_before_start(self, position: ClientMessageId, index: int = -1) -> bool:
        """Whether a reader begins after a message: the broker sends the one that it is to begin after, too."""
        start = self._start
        if self._options.durable or start is None or start.ledger != position.ledger:
            return False
        if index < 0:
            return position.entry <= start.entry
        return position.entry == start.entry and index <= start.batch_index

    # -- what goes

    def ack(self, id: ClientMessageId) -> None:
        """Acknowledge a message. One of a batch waits for the others."""
        if id.batch_index >= 0:
            key = id.ledger, id.entry
            if (batch := self._batches.get(key)) is not None:
                batch.given.discard(id.batch_index)
                self._ack_if_done(id, batch)
        else:
            self.ack_entry(id)

    def _ack_if_done(self, id: ClientMessageId, batch: _Batch) -> None:
        """Acknowledge a batch of which the client has had and acknowledged all."""
        if batch.is_whole and not batch.given:
            self._forget_batch((id.ledger, id.entry))
            self.ack_entry(id)

    def ack_entry(self, id: ClientMessageId) -> None:
        """Acknowledge an entry."""
        entries = [*self._forget_others((id.ledger, id.entry)), (id.ledger, id.entry)]
        where = [{"ledgerId": ledger, "entryId": entry} for ledger, entry in entries]
        self._tell("ACK", ack_type="Individual", message_id=where)

    def ack_read(self, id: ClientMessageId) -> None:
        """A reader has read a message, and all before it."""
        if self._read is None or not self._owner.ack_is_due:
            self._owner.ack_is_due = True
            self._client.later(_ACK_SECONDS, self._owner.ack_all_read)
        self._read = id

    def flush_read(self) -> None:
        """Acknowledge what is read."""
        if self._read is not None:
            where = {"ledgerId": self._read.ledger, "entryId": self._read.entry}
            self._tell("ACK", ack_type="Cumulative", message_id=[where])

    def redeliver(self, ids: Iterable[ClientMessageId]) -> None:
        """Ask for these messages again: for all, if the subscription can't give single ones."""
        if self._options.type in ("Shared", "Key_Shared"):
            of = [(id.ledger, id.entry) for id in ids]
            entries = list(dict.fromkeys(one for each in of for one in (*self._others.get(each, ()), each)))
            for at in range(0, len(entries), _MOST_IDS):
                some = [
                    {"ledgerId": ledger, "entryId": each} for ledger, each in entries[at : at + _MOST_IDS]
                ]
                self._tell("REDELIVER_UNACKNOWLEDGED_MESSAGES", message_ids=some)
        else:
            self._epoch += 1
            self.used(self._owner.forget(self))
            self._tell("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_epoch=self._epoch)

    async def unsubscribe(self) -> None:
        """Give the subscription up. Raises `NotGranted`."""
        await self._client.ask("UNSUBSCRIBE", {"consumer_id": self._number})
        self._open = False
        self._client.forget("consumer", self._number)

    def close(self) -> None:
        """Close it alone: its topic is gone."""
        self._owner.forget(self)
        self.forget_known(0)
        self._tell("CLOSE_CONSUMER", request_id=0)
        self._open = False
        self._client.forget("consumer", self._number)


class WebSocketConsumer:
    """The consumer of a WebSocket, or its reader, of any number of topics. `wake`: is called when there may be something to deliver, and
    `count` with the bytes that wait, and whether they wait since now. `known`: counts the messages that it knows."""

    def __init__(
        self,
        client: Client,
        subscription: str,
        options: ConsumerOptions,
        wake: Callable[[], None],
        count: Callable[[int, bool], None],
        known: KnownMessages,
    ) -> None:
        self.client, self.options, self._wake, self._count = client, options, wake, count
        self.is_reader = not subscription
        self._known, self._known_of_topics, self._closed = known, 0, False
        self.subscription = subscription or f"reader-{uuid.uuid4().hex[:10]}"
        self.name = options.name or uuid.uuid4().hex[:5]
        self.ack_is_due = self._is_multiple = False
        self._places = 0
        self._of: dict[str, TopicConsumer] = {}
        self._queue: deque[Came] = deque()
        self._apart: tuple[Came, Iterator[Received | None]] | None = None
        """The entry that is being taken apart, and its further messages."""
        self._bytes = self._kept = 0
        """Bytes of messages that wait, and of those that the client has and that may be dead letters."""
        self._given: OrderedDict[ClientMessageId, _Given] = OrderedDict()
        """Messages that the client has and has not acknowledged."""
        self._unacked: OrderedDict[ClientMessageId, float] = OrderedDict()
        """When they have taken too long (s)."""
        self._nacked: OrderedDict[ClientMessageId, tuple[_Given, float]] = OrderedDict()
        """Those that it wants again, and when (s)."""
        self._nack_alarm, self._ack_alarm = (
            Alarm(client, self._check_nacked),
            Alarm(client, self._check_unacked),
        )
        self._grave: TopicProducer | None = None
        """The producer of dead letters."""
        self._dead: deque[Received] = deque()
        """Messages that are to be dead letters."""
        self._most = 0 if options.pull else max(options.queue, 1)
        self._pending = 0
        self._asked = False

    async def open(self, topics: Sequence[str]) -> None:
        """Subscribe to topics. Raises `NotGranted`."""
        self._is_multiple = len(topics) > 1
        for topic in topics:
            for each in await partitions(self.client, topic):
                await self._subscribe(each)

    async def _subscribe(self, topic: str) -> None:
        self._places += self._is_multiple
        consumer = self._of[topic] = TopicConsumer(self, topic, self._places)
        try:
            await consumer.open()
        except BaseException:
            del self._of[topic]
            raise

    async def open_pattern(self, pattern: str) -> None:
        """Subscribe to all topics that match a pattern, and to those that come. Raises `NotGranted`, `BadParameter`."""
        self._is_multiple = True
        namespace = namespace_of(pattern)
        asked = {"namespace": namespace, "mode": "PERSISTENT"}
        found = (await self.client.ask("GET_TOPICS_OF_NAMESPACE", asked)).fields.get("topics", [])
        try:
            topics = _matching(pattern, found)
        except ValueError as error:
            raise BadParameter(str(error)) from None
        for topic in topics:
            await self._subscribe(topic)
        await self.client.watch_topics(namespace, pattern.partition("://")[2], self._change_topics)

    def _change_topics(self, frame: Frame) -> None:
        """Topics of the pattern have come and gone."""
        for topic in frame.fields.get("deleted_topics", ()):
            if (consumer := self._of.pop(topic, None)) is not None:
                consumer.close()
        came = [*frame.fields.get("new_topics", ()), *frame.fields.get("topic", ())]
        if new := [each for each in came if each not in self._of]:
            self.client.begin(self._join(new))

    async def _join(self, topics: list[str]) -> None:
        for topic in topics:
            try:
                if topic not in self._of:
                    await self._subscribe(topic)
            except NotGranted:  # it may be gone again
                continue

    @property
    def reached_end(self) -> bool:
        """Whether nothing more can come."""
        return bool(self._of) and all(each.reached_end for each in self._of.values())

    # -- messages

    def receive(self, came: Came) -> None:
        """An entry has come."""
        if self._closed:
            return
        self._queue.append(came)
        self._bytes += came.size
        self._asked = False
        self._count(self._bytes + self._kept, False)
        self._wake()

    def keep(self, size: int) -> None:
        """So many bytes more are kept."""
        self._kept += size
        if size and not self._closed:
            self._count(self._bytes + self._kept, False)

    def know(self, more: int = 0) -> None:
        """So many more messages are known in consumers of topics, or others here."""
        self._known_of_topics += more
        if not self._closed:
            self._known.count(self, len(self._given) + len(self._nacked) + self._known_of_topics)

    def forget_half(self) -> None:
        """Forget the older half of what is known."""
        for _ in range((len(self._given) + 1) // 2):
            self._forget_oldest()
        for _ in range((len(self._nacked) + 1) // 2):
            self._take_nacked()
        for each in self._of.values():
            each.forget_half()
        self.know()

    def _forget_oldest(self) -> None:
        oldest = next(iter(self._given))
        self._release(oldest)
        self._unacked.pop(oldest, None)

    def forget(self, consumer: TopicConsumer) -> int:
        """Forget the messages of a consumer that nobody has got. Returns how many they are."""
        kept = deque(each for each in self._queue if each.consumer is not consumer)
        gone = sum(each.left for each in self._queue if each.consumer is consumer)
        if self._apart is not None and self._apart[0].consumer is consumer:
            gone += self._apart[0].left
            self._apart = None
        self._queue, self._asked = kept, False
        consumer.forget_chunks()
        self._bytes = sum(each.size for each in kept) + (0 if self._apart is None else self._apart[0].size)
        self._count(self._bytes + self._kept, True)
        return gone

    def _take_apart(self) -> Received | None:
        """The next message that came. None: the one before it was the last of its entry, or is not for the client."""
        if self._apart is None:
            came = self._queue.popleft()
            self._apart = came, came.consumer.messages(came)
        came, messages = self._apart
        found = next(messages, _END)
        size = 0 if found is _END else _OVERHEAD + len(came.payload)  # it is uncompressed now
        self._bytes += size - came.size
        came.size = size
        self._count(self._bytes + self._kept, True)
        if isinstance(found, Received):
            if not found.batch_size:
                came.left = 0
            return found
        if found is _END:
            self._apart = None
        return None

    def next_text(self) -> str | None:
        """What the client gets next. None: nothing, for now. Empty: nothing yet, but there may be more."""
        if self._pending >= self._most or len(self._dead) >= _MOST_DEAD:
            return None
        if not self._queue and self._apart is None:
            if not self._asked:
                self._asked = True
                for each in self._of.values():
                    each.wants_one()
            return None
        if (found := self._take_apart()) is None:
            return ""
        if self.options.max_redeliver and found.redelivery_count > self.options.max_redeliver:
            self._bury(found)
            found.consumer.used()
            return ""
        self._pending += 1
        found.consumer.used()
        if self.is_reader:
            found.consumer.ack_read(found.id)
        else:
            self._deliver(found)
        return found.text()

    def _deliver(self, found: Received) -> None:
        limit = self.options.max_redeliver
        self._release(found.id)
        dead = found if limit and found.redelivery_count >= limit else None
        self._given[found.id] = _Given(found.consumer, dead)
        self.keep(self._given[found.id].size)
        if self.options.ack_timeout:
            self._ack_alarm.set(self.options.ack_timeout / 1000)
            self._unacked[found.id] = time.monotonic() + self.options.ack_timeout / 1000
        while len(self._given) > MOST_KNOWN:
            self._forget_oldest()
        self.know()

    def _release(self, id: ClientMessageId) -> "_Given | None":
        """The client has a message no more."""
        given = self._given.pop(id, None)
        if given is not None:
            self.keep(-given.size)
            self.know()
        return given

    # -- what the client says

    def permit(self, messages: int) -> None:
        """The client wants so many messages. quirk: of no effect unless it pulls."""
        if self.options.pull:
            self._pending -= messages
            self._wake()

    def resume(self) -> None:
        """The client has done with a message."""
        if not self.options.pull:
            self._pending -= 1
            self._wake()

    def ack(self, id: ClientMessageId) -> None:
        """The client acknowledges a message."""
        self._unacked.pop(id, None)
        given = self._release(id)
        if (consumer := self._consumer_of(given)) is not None:
            consumer.ack(id)
        self.resume()

    def nack(self, id: ClientMessageId) -> None:
        """The client wants a message again, later. Raises `Fatal` if nobody knows of which topic it is."""
        self._unacked.pop(id, None)
        given = self._release(id)
        if (consumer := self._consumer_of(given)) is None:
            raise NoText("IllegalArgumentException")
        delay = max(self.options.nack_delay, _LEAST_NACK_DELAY) / 1000
        self._nack_alarm.set(delay)
        if id in self._nacked:
            self.keep(-self._nacked.pop(id)[0].size)
        own = _Given(consumer, None if given is None else given.dead)
        self._nacked[id] = own, time.monotonic() + delay
        self.keep(own.size)
        while len(self._nacked) > MOST_KNOWN:
            self._take_nacked()
        self.know()
        self.resume()

    def _take_nacked(self) -> tuple[ClientMessageId, "_Given"]:
        """The oldest of those that the client wants again, which is forgotten."""
        id, (given, _) = self._nacked.popitem(last=False)
        self.keep(-given.size)
        return id, given

    def _consumer_of(self, given: "_Given | None") -> TopicConsumer | None:
        """Whose message it is. quirk: an id alone tells it for one topic only."""
        if given is not None:
            return given.consumer
        return next(iter(self._of.values())) if len(self._of) == 1 else None

    def _check_nacked(self) -> None:
        now = time.monotonic()
        due: list[tuple[ClientMessageId, _Given]] = []
        while self._nacked:
            _, when = next(iter(self._nacked.values()))
            if when > now:
                self._nack_alarm.set(when - now)
                break
            due.append(self._take_nacked())
        self.know()
        self._redeliver(due)

    def _check_unacked(self) -> None:
        now = time.monotonic()
        due: list[tuple[ClientMessageId, _Given]] = []
        while self._unacked:
            id, when = next(iter(self._unacked.items()))
            if when > now:
                self._ack_alarm.set(when - now)
                break
            del self._unacked[id]
            if (given := self._release(id)) is not None:
                due.append((id, given))
        self._redeliver(due)

    def _redeliver(self, due: list[tuple[ClientMessageId, "_Given"]]) -> None:
        wanted: dict[TopicConsumer, list[ClientMessageId]] = {}
        for id, (consumer, dead) in due:
            if dead is not None and self.options.type in ("Shared", "Key_Shared"):
                self._bury(dead)
            else:
                wanted.setdefault(consumer, []).append(id)
        for consumer, ids in wanted.items():
            consumer.redeliver(ids)

    # -- dead letters

    def _bury(self, message: Received) -> None:
        self._dead.append(message)
        self.keep(_size(message))
        if len(self._dead) == 1:
            self.client.begin(self._dig())

    async def _dig(self) -> None:
        """Publish what is dead, one after the other, and acknowledge it then. What can't be published comes again, after a pause: neither the
        broker nor its log should be busy with it."""
        pause = FIRST_RETRY
        while self._dead:
            message = self._dead[0]
            if await self._is_buried(message):
                message.consumer.ack(message.id)
                pause = FIRST_RETRY
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_RETRY)
                message.consumer.redeliver([message.id])
            self._dead.popleft()
            self.keep(-_size(message))
            self._wake()

    async def _is_buried(self, message: Received) -> bool:
        """Publish a message to the dead letter topic."""
        topic = complete(self.options.dead_letter_topic or "")
        if self._grave is None:
            chance = uuid.uuid4().hex[:5]
            name = f"{message.consumer.topic}-{self.subscription}-{self.name}-{chance}-DLQ"
            grave = TopicProducer(self.client, topic, _DEAD._replace(name=name))
            try:
                await grave.open()
            except NotGranted:
                grave.give_up()
                return False
            self._grave = grave
        own = {pair["key"]: pair["value"] for pair in message.metadata.get("properties", ())}
        where = {"REAL_TOPIC": message.consumer.topic}
        if self.options.full_dead_letters:
            where["REAL_SUBSCRIPTION"] = self.subscription
        origin = dict.fromkeys(("ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME"), str(message.id))
        found = ToPublish(
            message.payload,
            key=message.metadata.get("partition_key"),
            properties=dict(sorted({**own, **where, **origin}.items())),
            event_time=message.metadata.get("event_time") if self.options.full_dead_letters else None,
        )

        published: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(result: ClientMessageId | NotPublished) -> None:
            if not published.done():
                published.set_result(isinstance(result, ClientMessageId))

        self._grave.send(found, done)
        return await published

    # -- the end

    def ack_all_read(self) -> None:
        """Acknowledge what is read of each topic."""
        self.ack_is_due = False
        for each in self._of.values():
            each.flush_read()

    async def unsubscribe(self) -> None:
        """Give the subscription up. Raises `NotGranted`."""
        for each in self._of.values():
            await each.unsubscribe()
            each.forget_known(0)
        self._of.clear()
        self._queue.clear()
        self._apart = None
        self._bytes = 0
        self._count(self._kept, True)

    def close(self) -> None:
        """The WebSocket is closed."""
        self.ack_all_read()
        self._closed = True
        self._known.count(self, 0)
        self._queue.clear()
        self._dead.clear()
        self._apart = None
        self._count(0, True)


class _Given(NamedTuple):
    """A message that the client has. `dead`: itself, if it is not to be delivered again."""

    consumer: TopicConsumer
    dead: Received | None = None

    @property
    def size(self) -> int:
        """The bytes that it takes besides its id."""
        return 0 if self.dead is None else _size(self.dead)


def _matching(pattern: str, topics: list[str]) -> list[str]:
    found = matching(pattern, topics)
    return topics if found is None else found


def _size(message: Received) -> int:
    return _OVERHEAD + len(message.payload)


_OVERHEAD = 1000
"""Bytes of memory that a message takes besides its payload."""


def _messages_in(frame: Frame) -> int:
    """How many permits the broker counts for an entry."""
    found: int = (frame.metadata or {}).get("num_messages_in_batch", 1)
    return max(found, 1)


def _is_set(words: list[int], index: int) -> bool:
    word = index >> 6
    return word < len(words) and bool(words[word] >> (index & 63) & 1)


def _compression(metadata: _Json) -> MessageMetadata:
    names = ("compression", "uncompressed_size")
    found = {name: metadata[name] for name in names if name in metadata}
    return MessageMetadata(producer_name="", sequence_id=0, publish_time=0, **found)
