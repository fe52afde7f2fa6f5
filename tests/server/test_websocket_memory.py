"""What consumers of WebSockets remember of the messages that their clients have: counted, whatever comes and whatever clients say, and bounded."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.protocol.codec import Frame, batch
from streaming.server.binary import Limits
from streaming.server.websocket import consumer, known
from streaming.server.websocket.consumer import TopicConsumer, WebSocketConsumer
from streaming.server.websocket.known import KnownMessages
from streaming.server.websocket.messages import ClientMessageId
from streaming.server.websocket.parameters import ConsumerOptions
from streaming.server.websocket.sessions import _Session

pytestmark = pytest.mark.feature("I9")

DAY = 86_400_000


class _Socket:
    """A consumer of two topics, or a reader of one. Messages come, and its client does whatever clients may."""

    def __init__(self, seed: int, memory: KnownMessages, *, reads: bool = False) -> None:
        self.draw, self.entry, self.held = Random(seed), 0, 0
        client: Any = SimpleNamespace(
            new_member=lambda *_: 1, tell=lambda *_: None, later=lambda *_: None, forget=lambda *_: None,
            begin=lambda task: task.close(), again=self.again, closed=False,
        )  # fmt: skip
        options = ConsumerOptions(
            "Shared", nack_delay=DAY, ack_timeout=DAY, max_redeliver=3, durable=not reads
        )
        self.consumer = WebSocketConsumer(
            client, "" if reads else "s", options, lambda: None, self.count, memory
        )
        self.topics = [
            TopicConsumer(self.consumer, f"t{number}", number) for number in range(1 if reads else 2)
        ]
        self.consumer._of = {each.topic: each for each in self.topics}
        self.got: list[ClientMessageId] = []

    async def again(self, reopen: Any) -> None:
        pass

    def count(self, size: int, goes_on: bool) -> None:
        self.held = size

    def come(self) -> None:
        """A message comes, a batch, or all chunks of one."""
        draw = self.draw
        topic, kind = draw.choice(self.topics), draw.choice(["one", "batch", "batch", "chunks"])
        if kind == "chunks":
            for index in range(chunks := draw.randint(2, 9)):
                self.take(topic, {"uuid": "u", "chunk_id": index, "num_chunks_from_msg": chunks}, b"x")
        elif kind == "batch":
            count = draw.randint(1, 40)
            payload = batch([{"sequence_id": each} for each in range(count)], [b"x"] * count)
            self.take(topic, {"num_messages_in_batch": count}, payload)
        else:
            self.take(topic, {}, b"x" * draw.randrange(9))
        while (text := self.consumer.next_text()) is not None and draw.random() < 0.97:
            if text:
                self.got += [*self.consumer._given][-1:]
                self.consumer._pending = 0

    def take(self, topic: TopicConsumer, metadata: dict[str, Any], payload: bytes) -> None:
        where = {"ledgerId": 1, "entryId": self.entry}
        self.entry += self.draw.choice([1, 1, 1, 1, 0])
        fields = {"message_id": where, "redelivery_count": self.draw.choice([0, 0, 3])}
        topic.took(Frame("", "MESSAGE", fields, {"publish_time": 1, **metadata}, payload))

    def say(self) -> None:
        """The client acknowledges a message, wants one again, or one that there never was; or its topic is unloaded."""
        draw, own = self.draw, self.consumer
        id = ClientMessageId(draw.randrange(9), draw.randrange(9), topic=draw.choice([1, 2]))
        if self.got and draw.random() < 0.8:
            id = self.got.pop(draw.randrange(len(self.got)))
        what = draw.random()
        if what < 0.02:
            draw.choice(self.topics).took(Frame("", "CLOSE_CONSUMER", {}))
        elif what < 0.5 or id not in own._given:
            own.ack(id)
        else:
            own.nack(id)

    def remembers(self) -> int:
        own = self.consumer
        of_topics = [
            sum(each.size for each in topic._batches.values()) + sum(map(len, topic._others.values()))
            for topic in self.topics
        ]
        assert [each._known for each in self.topics] == of_topics
        return len(own._given) + len(own._nacked) + sum(of_topics)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_remembered_is_counted_and_bounded(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(consumer, "MOST_KNOWN", 120)
    monkeypatch.setattr(known, "MOST_KNOWN_BY_ALL", 300)
    memory = KnownMessages()
    sockets = [_Socket(seed * 10 + number, memory) for number in range(4)]
    seen = 0
    for turn in range(400):
        one = sockets[turn % 4]
        one.come() if one.draw.random() < 0.6 else one.say()
        total = sum(each.remembers() for each in sockets)
        assert memory.total == total <= 300
        seen = max(seen, total)
        kept = [given.size for given, _ in one.consumer._nacked.values()]
        kept += [given.size for given in one.consumer._given.values()]
        assert one.held == one.consumer._bytes + one.consumer._kept >= sum(kept)
    assert seen > 250
    for each in sockets:
        each.consumer.close()
        each.come()
        assert each.held == 0
    assert memory.total == 0


def test_messages_that_there_never_were_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may want any ids again, in 24 days: each took 350 bytes until then."""
    monkeypatch.setattr(known, "MOST_KNOWN_BY_ALL", 100)
    memory = KnownMessages()
    modest, greedy = _Socket(1, memory, reads=False), _Socket(2, memory)
    modest.topics = greedy.topics = []
    for each, ids in ((modest, 10), (greedy, 500)):
        each.consumer._of = {"t": TopicConsumer(each.consumer, "t", 0)}
        for number in range(ids):
            each.consumer.nack(ClientMessageId(1, number))
    assert len(modest.consumer._nacked) == 10
    assert 40 < len(greedy.consumer._nacked) <= 90


def test_a_reader_remembers_nothing_of_what_it_has_read() -> None:
    """It kept each batch, and the ids of all chunks, until there were 100,000 of them."""
    reader = _Socket(0, KnownMessages(), reads=True)
    for _ in range(50):
        reader.come()
    (topic,) = reader.topics
    assert not topic._batches
    assert not topic._others
    assert reader.remembers() == 0


def test_what_comes_after_the_end_is_not_counted() -> None:
    """Nobody would take it out of the sum again."""
    counted = list[int]()
    server: Any = SimpleNamespace(limits=Limits())
    never: Any = None
    session = _Session(
        server, {}, never, never, lambda _, size, __: counted.append(size), KnownMessages(), "4.0"
    )
    producer: Any = SimpleNamespace(flush=lambda: None, pending=0)
    session._producer = producer
    session._answer("receipt")
    session.close()
    session._answer("receipt")
    assert counted == [7]


@pytest.mark.parametrize("count", [0, -5])
@pytest.mark.parametrize("keys", [{}, {"encryption_keys": [{"key": "k", "value": b""}]}])
def test_a_batch_of_no_messages_gives_its_permit_back(count: int, keys: dict[str, Any]) -> None:
    """The broker counts one for it. Producers could take all permits from a consumer."""
    told = list[int]()
    client: Any = SimpleNamespace(
        new_member=lambda *_: 1,
        tell=lambda cmd, fields: told.append(fields["messagePermits"]) if cmd == "FLOW" else None,
    )
    options = ConsumerOptions("Shared", queue=2, crypto="DISCARD")
    own = WebSocketConsumer(client, "s", options, lambda: None, lambda *_: None, KnownMessages())
    own._of = {"t": (topic := TopicConsumer(own, "t", 0))}
    for entry in range(9):
        fields = {"message_id": {"ledgerId": 1, "entryId": entry}}
        metadata = {"publish_time": 1, "num_messages_in_batch": count, **keys}
        topic.took(Frame("", "MESSAGE", fields, metadata, b""))
        while own.next_text() is not None:
            pass
    assert told == [1] * 9
