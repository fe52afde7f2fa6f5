"""Servers before a Spark query: what they do without one, beside each other, and after an end by force."""

import asyncio
import logging
import os
import queue
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock, patch
from uuid import uuid4

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import InvalidProducerEpochError, KafkaTimeoutError

from schemas.commands import (
    Admin,
    BrokerConfig,
    ConnectionLost,
    NewTxn,
    Publish,
    RunCheck,
    Send,
    Subscribe,
    decode,
    to_json,
)
from schemas.effect_fields import AdminResponseFields, ProducerSuccessFields, TransactionFields
from schemas.effects import AdminResponse, Effect, NewTxnResponse, ProducerSuccess, Quarantined, Row
from schemas.entries import EntryNotFound
from sinks.kafka import KafkaResponses
from sinks.rows import to_tables
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.names import COORDINATOR_ASSIGN, partition_of
from streaming.kafka import writer as writer_module
from streaming.kafka.config import PLAIN
from streaming.kafka.local import LocalKafka
from streaming.kafka.topics import NoSuchTopic, ensure_topic, holds_records
from streaming.kafka.url import KafkaUrl, KafkaUrlError
from streaming.kafka.writer import CommandWriter, NotWritten
from streaming.log.partition import ingress_partition
from streaming.protocol.codec import encode
from streaming.protocol.frames import topics_hash
from streaming.quality import gate
from streaming.server import query_engine, topic_watchers
from streaming.server.binary import Limits
from streaming.server.embedded import STANDALONE
from streaming.server.engine import EngineStopped, NoAnswer
from streaming.server.query_engine import BadName, NameTaken, QueryEngine, server_name
from streaming.server.server import Address, Server, bound
from streaming.server.topic_watchers import TopicWatchers, Watching
from tests.server.test_bounds import CONNECT, Peer
from tests.sinks.helpers import TOPIC, metadata_of, output, payload_of, receipts

pytestmark = [pytest.mark.feature("K1"), pytest.mark.kafka]

PARTITIONS = 3

WATCH = {
    "request_id": 1,
    "watcher_id": 1,
    "namespace": "public/default",
    "topics_pattern": "public/default/.*",
}


@pytest.fixture
def topics(kafka: LocalKafka) -> tuple[KafkaUrl, KafkaUrl]:
    """An ingress and a response topic, which no query reads or writes."""
    found = [KafkaUrl(kafka.bootstrap, f"{name}-{uuid4().hex}") for name in ("commands", "responses")]
    for url in found:
        ensure_topic(url, PARTITIONS)
    return found[0], found[1]


def committed(url: KafkaUrl) -> list[list[tuple[str | None, Any]]]:
    """The key and the command of each record, by partition."""
    consumer = KafkaConsumer(
        bootstrap_servers=url.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        consumer_timeout_ms=1500,
    )
    consumer.assign([TopicPartition(url.topic, partition) for partition in range(PARTITIONS)])
    found: list[list[tuple[str | None, Any]]] = [[] for _ in range(PARTITIONS)]
    for record in consumer:
        key = None if record.key is None else record.key.decode()
        found[record.partition].append((key, decode(record.value)))
    consumer.close()
    return found


def answer(topics: tuple[KafkaUrl, KafkaUrl], batch: int, partition: int, *effects: Effect) -> None:
    """Answer as the query does."""
    url = topics[1]
    KafkaResponses(url.bootstrap, url.topic).write(
        batch, partition, output(list(effects), partition=partition)
    )


class TestTheLog:
    def test_it_begins_as_a_standalone_pulsar(self, topics: tuple[KafkaUrl, KafkaUrl]) -> None:
        config = BrokerConfig(settings={"namespacesMustExist": True})

        async def twice() -> list[str]:
            connections = []
            for _ in range(2):
                async with QueryEngine(*topics, "a", begins_with=(config, *STANDALONE)) as engine:
                    connections.append(engine.new_connection())
            return connections

        first, second = asyncio.run(twice())
        assert first != second
        partitions = committed(topics[0])
        assert partitions[0] == partitions[1] == partitions[2]
        commands = [command for _, command in partitions[0]]
        lives = [connection.rpartition(".")[0] + "." for connection in (first, second)]
        assert [each for each in commands if not isinstance(each, Admin) or each.method != "GET"] == [
            ConnectionLost(connection=lives[0], prefix="a."),
            config,
            *STANDALONE,
            ConnectionLost(prefix=lives[0]),
            ConnectionLost(connection=lives[1], prefix="a."),
            ConnectionLost(prefix=lives[1]),
        ]

    @pytest.mark.parametrize("ended", [True, False])
    def test_a_server_that_was_killed_in_its_first_transaction_has_left_nothing(
        self, topics: tuple[KafkaUrl, KafkaUrl], ended: bool
    ) -> None:
        killed = KafkaProducer(
            bootstrap_servers=topics[0].bootstrap, transactional_id=f"magnetar-{topics[0].topic}"
        )
        killed.init_transactions()
        killed.begin_transaction()
        for partition in range(PARTITIONS):
            killed.send(topics[0].topic, to_json(RunCheck(check="cursorFlush")), partition=partition).get(30)
        if ended:
            killed.abort_transaction()
        assert not holds_records(topics[0])

        async def run() -> None:
            async with QueryEngine(*topics, "a", begins_with=STANDALONE):
                pass

        for _ in range(2):
            asyncio.run(run())
        killed.close(timeout=0)
        assert holds_records(topics[0])
        for records in committed(topics[0]):
            commands = [command for _, command in records]
            assert [each for each in commands if each in STANDALONE] == [*STANDALONE]

    def test_a_topic_has_one_partition_and_the_whole_broker_has_all(
        self, topics: tuple[KafkaUrl, KafkaUrl]
    ) -> None:
        names = [f"persistent://public/default/{number}" for number in range(9)]

        async def run() -> None:
            async with QueryEngine(*topics, "a") as engine:
                for number in range(5):
                    for name in names:
                        engine.post(f"{number}", name, to_json(ConnectionLost(connection=f"{number}")))
                engine.post("c", None, to_json(RunCheck(check="messageExpiry")))

        asyncio.run(run())
        for partition, records in enumerate(committed(topics[0])):
            own = [name for name in names if ingress_partition(name, PARTITIONS) == partition]
            assert [(key, command.connection) for key, command in records if key] == [
                (name, str(number)) for number in range(5) for name in own
            ]
            assert [type(command) for key, command in records if key is None][-2:] == [
                RunCheck,
                ConnectionLost,
            ]

    @pytest.mark.parametrize("comes_back", [True, False])
    def test_the_loop_goes_on_while_kafka_does_not_know_the_topic(
        self, comes_back: bool, topics: tuple[KafkaUrl, KafkaUrl]
    ) -> None:
        """Kafka's client would wait for it, for a minute."""
        ended = threading.Event()

        def wait(_: str) -> None:
            ended.wait(60)
            if not comes_back:
                raise KafkaTimeoutError

        async def run() -> None:
            async with QueryEngine(*topics, "a") as engine:
                producer = engine._writer._producer
                with (
                    patch.object(producer, "partitions_for", wait),
                    patch.object(producer._metadata, "partitions_for_topic", return_value=None),
                ):
                    for number in range(3):
                        engine.post("c", TOPIC, to_json(ConnectionLost(connection=f"{number}")))
                        await asyncio.sleep(0)
                    engine._look_after()
                    assert not engine.failed.done()
                    if not comes_back:
                        ended.set()
                        with pytest.raises(NotWritten, match="check that it is up and that the topic exists"):
                            await asyncio.wait_for(engine.failed, 60)
                ended.set()

        asyncio.run(run())
        written = [command.connection for records in committed(topics[0]) for key, command in records if key]
        assert written == (["0", "1", "2"] if comes_back else [])

    def test_servers_beside_each_other_write_in_one_order(self, topics: tuple[KafkaUrl, KafkaUrl]) -> None:
        errors: list[Exception] = []
        writers = [CommandWriter(topics[0], PLAIN, errors.append) for _ in range(3)]
        done = [
            writer.send_to_all([to_json(ConnectionLost(connection=f"{number}.{place}"))], 1_700_000_000_000)
            for place in range(5)
            for number, writer in enumerate(writers)
        ]
        for each in done:
            each.result(60)
        for writer in writers:
            writer.close()
        assert errors == []
        partitions = committed(topics[0])
        assert partitions[0] == partitions[1] == partitions[2]
        connections = [command.connection for _, command in partitions[0]]
        assert sorted(connections) == [f"{number}.{place}" for number in range(3) for place in range(5)]
        for number in range(3):
            own = [each for each in connections if each.startswith(f"{number}.")]
            assert own == sorted(own)

    def test_kafka_stands_still_within_a_transaction(
        self, topics: tuple[KafkaUrl, KafkaUrl], kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server is told, and ends. Kafka's client does not close then, and goes on sending, unless it is forced to."""
        errors: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        writer = CommandWriter(topics[0], PLAIN, errors.put)
        writer.send_to_all([to_json(ConnectionLost(connection="1"))], 1_700_000_000_000).result(60)
        monkeypatch.setattr(writer_module, "PATIENCE_SECONDS", 1.0)
        running = kafka.status()
        assert running is not None
        os.kill(running.pid, signal.SIGSTOP)
        try:
            writer.send_to_all([to_json(ConnectionLost(connection="2"))], 1_700_000_000_000)
            assert isinstance(errors.get(timeout=60), NotWritten)
            writer.close(0.1)
        finally:
            os.kill(running.pid, signal.SIGCONT)
        assert [[command.connection for _, command in each] for each in committed(topics[0])] == [
            ["1"]
        ] * PARTITIONS

    def test_a_transaction_that_lost_its_records_is_repeated(self, topics: tuple[KafkaUrl, KafkaUrl]) -> None:
        class Fenced:
            """A producer whose commit succeeds, though Kafka did not take its records."""

            def send(self, *_: Any, **__: Any) -> Any:
                lost = Mock()
                lost.get.side_effect = InvalidProducerEpochError()
                return lost

            def nothing(self, **_: Any) -> None: ...

            begin_transaction = flush = commit_transaction = close = nothing

        transactional = CommandWriter._transactional
        fenced = [Fenced()]

        def first_fenced(writer: CommandWriter) -> Any:
            return fenced.pop() if fenced else transactional(writer)

        errors: list[Exception] = []
        writer = CommandWriter(topics[0], PLAIN, errors.append)
        with patch.object(CommandWriter, "_transactional", first_fenced):
            writer.send_to_all([to_json(ConnectionLost(connection="1"))], 1_700_000_000_000).result(60)
            writer.close()
        assert errors == []
        assert fenced == []
        assert [[command.connection for _, command in each] for each in committed(topics[0])] == [
            ["1"]
        ] * PARTITIONS


class TestAnswers:
    def test_a_call_takes_one_answer_from_each_partition_that_it_concerns(
        self, topics: tuple[KafkaUrl, KafkaUrl]
    ) -> None:
        def of(connection: str, **more: Any) -> AdminResponse:
            return AdminResponse(None, connection, "GET /x", AdminResponseFields(status=200, **more))

        async def run() -> None:
            async with QueryEngine(*topics, "a") as engine, QueryEngine(*topics, "b") as other:
                rows: list[Row] = []
                engine.connect(rows.extend)
                other.connect(lambda _: pytest.fail("these are not its rows"))
                life = engine.new_connection().rpartition(".")[0]
                call = asyncio.ensure_future(engine.submit(None, Admin(method="GET", path="/x")))
                whole = asyncio.ensure_future(engine.partitions("persistent://public/default/t"))
                await asyncio.sleep(0)
                names = [f"{life}.{number}" for number in (3, 4)]
                fields = ProducerSuccessFields(last_sequence_id=-1, producer_ready=True)
                success = ProducerSuccess(TOPIC, f"{life}.2", 1, 1, "p", fields)
                await asyncio.to_thread(answer, topics, 0, 2, success, of(names[0], response=[2]))
                await asyncio.to_thread(answer, topics, 0, 2, success, of(names[0], response=[2]))  # repeated
                assert not call.done()
                await asyncio.to_thread(answer, topics, 0, 0, of(names[0], response=[0]))
                await asyncio.to_thread(answer, topics, 0, 1, of(names[0], response=[1]))
                found = [row.effect.fields.response for row in await call]  # type: ignore[union-attr]
                assert found == [[0], [1], [2]]
                await asyncio.to_thread(answer, topics, 1, 1, of(names[1], response={"partitions": 7}))
                assert await whole == 7
                assert [row.effect for row in rows] == [success]

        asyncio.run(run())

    def test_a_coordinator_is_in_all_partitions(self, topics: tuple[KafkaUrl, KafkaUrl]) -> None:
        """A request goes to all, and the client gets the answer of the last. Other requests may have its number."""
        coordinator = partition_of(COORDINATOR_ASSIGN, 0)
        rows: list[Row] = []

        async def run() -> None:
            async with QueryEngine(*topics, "a") as engine:
                engine.connect(rows.extend)
                client = engine.new_connection()
                asked = NewTxn(connection=client, request_id=7, txn_ttl_seconds=1000)
                engine.post(client, coordinator, to_json(asked))
                begun = NewTxnResponse(coordinator, client, 7, TransactionFields(txnid_most_bits=0))
                fields = ProducerSuccessFields(last_sequence_id=-1, producer_ready=True)
                for place, partition in enumerate((2, 0, 1)):
                    other = ProducerSuccess(TOPIC, client, 7, place, "p", fields)
                    await asyncio.to_thread(answer, topics, 0, partition, begun, other)
                    while other not in [row.effect for row in rows]:
                        await asyncio.sleep(0)

        asyncio.run(run())
        said = [row.effect for row in rows if isinstance(row.effect, NewTxnResponse | ProducerSuccess)]
        assert [type(each) for each in said] == [*[ProducerSuccess] * 2, NewTxnResponse, ProducerSuccess]
        for records in committed(topics[0]):
            assert [key for key, command in records if isinstance(command, NewTxn)] == [None]

    def test_an_entry_comes_with_the_answer_that_names_it(self, topics: tuple[KafkaUrl, KafkaUrl]) -> None:
        async def run() -> None:
            async with QueryEngine(*topics, "a") as engine:
                life = engine.new_connection().rpartition(".")[0]
                call = asyncio.ensure_future(engine.submit(TOPIC, Admin(method="GET", path="/x")))
                named = AdminResponse(TOPIC, f"{life}.3", "GET /x", AdminResponseFields(status=200), 1, 0)
                await asyncio.to_thread(answer, topics, 0, 0, *receipts(1, 0, 0), named)
                assert [row.effect for row in await call] == [named]
                found = engine.entry(TOPIC, 1, 0)
                assert (found.metadata, found.payload) == (metadata_of(TOPIC, 1, 0), payload_of(TOPIC, 1, 0))
                with pytest.raises(EntryNotFound):
                    engine.entry(TOPIC, 1, 1)

        asyncio.run(run())

    def test_what_the_gate_refuses_does_not_reach_kafka(self, topics: tuple[KafkaUrl, KafkaUrl]) -> None:
        async def run() -> None:
            async with QueryEngine(*topics, "a") as engine:
                rows: list[Row] = []
                engine.connect(rows.extend)
                engine.post("c", TOPIC, b'{"command": "FLY", "connection": "c"}')
                (row,) = await engine.submit(None, Admin(method="GET", path="/" + "x" * 100_000))
                assert isinstance(row.effect, Quarantined)
                assert [type(each.effect) for each in rows] == [Quarantined, Quarantined]

        asyncio.run(run())
        assert [key for records in committed(topics[0]) for key, _ in records if key is not None] == []

    def test_a_run_is_written_in_its_place_and_not_checked_again(
        self, topics: tuple[KafkaUrl, KafkaUrl], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checked: list[bytes] = []

        def judge(names: list[str | None], values: list[bytes]) -> Any:
            checked.extend(values)
            return gate.judge(names, values)

        monkeypatch.setattr(query_engine, "judge", judge)
        first, last = (Publish(producer="p", sequence_id=number, payload="") for number in (1, 9))
        sends = [
            Send(connection="c", producer_id=1, sequence_id=number, payload="", metadata=metadata_of(TOPIC, 1, number))
            for number in range(5)
        ]  # fmt: skip

        async def run() -> None:
            async with QueryEngine(*topics, "a") as engine:
                checked.clear()
                engine.post("c", TOPIC, to_json(first))
                engine.post_run(TOPIC, sends, lambda _: None)
                engine.post("c", TOPIC, to_json(last))

        asyncio.run(run())
        (written,) = [
            [command for key, command in records if key == TOPIC]
            for records in committed(topics[0])
            if any(key == TOPIC for key, _ in records)
        ]
        assert written == [first, *sends, last]
        assert [each for each in checked if b"SEND" in each or b"producer" in each] == [
            to_json(first), to_json(last)
        ]  # fmt: skip


class Partitions:
    """Brokers that fold what servers write, one for each ingress partition, and answer as the query does."""

    def __init__(self, topics: tuple[KafkaUrl, KafkaUrl]) -> None:
        self._topics = topics
        self.brokers = [Broker(partition, NoEntries()) for partition in range(PARTITIONS)]
        self._consumer = KafkaConsumer(
            bootstrap_servers=topics[0].bootstrap, isolation_level="read_committed"
        )
        self._consumer.assign([TopicPartition(topics[0].topic, partition) for partition in range(PARTITIONS)])
        self._consumer.seek_to_beginning()
        self._batch = 0

    def fold(self) -> None:
        """Fold what has come, and answer."""
        for part, records in self._consumer.poll(timeout_ms=200).items():
            broker = self.brokers[part.partition]
            for record in records:
                topic = None if record.key is None else record.key.decode()
                broker.apply(record.offset, record.timestamp, topic, decode(record.value), record.value)
            rows = to_tables(part.partition, broker.take())
            self._batch += 1
            KafkaResponses(self._topics[1].bootstrap, self._topics[1].topic).write(
                self._batch, part.partition, rows
            )

    async def during(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of `work`, which waits for answers."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.to_thread(self.fold)
        return task.result()

    def close(self) -> None:
        self._consumer.close()


class TestGreetings:
    """What CONNECTED says is the configuration in the query's log, whatever the server itself would have begun it with."""

    @staticmethod
    def greeted(
        topics: tuple[KafkaUrl, KafkaUrl],
        config: BrokerConfig,
        work: Callable[[Peer], Coroutine[Any, Any, None]],
    ) -> None:
        """Do `work` with a client of a server before a query whose log begins with `config`."""

        async def run() -> None:
            async with QueryEngine(*topics, "first", begins_with=(config,)):
                pass
            partitions = Partitions(topics)
            engine = QueryEngine(*topics, "a", begins_with=(BrokerConfig(),))
            async with engine, Server(engine, bound(Address("127.0.0.1", 0), "")) as server:
                peer = Peer(*await asyncio.open_connection(*server.address))
                peer.send(CONNECT + encode("WATCH_TOPIC_LIST", WATCH))
                await partitions.during(asyncio.wait_for(work(peer), 60))
                peer.close()
            partitions.close()

        asyncio.run(run())

    def test_a_client_of_2_10(self, topics: tuple[KafkaUrl, KafkaUrl]) -> None:
        async def work(peer: Peer) -> None:
            greeting = await peer.next()
            assert greeting is not None
            assert (greeting.cmd, greeting.fields["protocol_version"]) == ("CONNECTED", 19)
            assert greeting.fields["max_message_size"] == 1000
            assert "feature_flags" not in greeting.fields
            assert await peer.next() is None  # topics can't be watched

        self.greeted(topics, BrokerConfig(profile="2.10", settings={"maxMessageSize": 1000}), work)

    def test_what_follows_connect_is_answered_after_it(self, topics: tuple[KafkaUrl, KafkaUrl]) -> None:
        async def work(peer: Peer) -> None:
            frames = [await peer.next(), await peer.next()]
            assert [each and each.cmd for each in frames] == ["CONNECTED", "WATCH_TOPIC_LIST_SUCCESS"]
            assert frames[0] is not None
            assert frames[0].fields["protocol_version"] == 21

        self.greeted(topics, BrokerConfig(), work)

    def test_a_query_that_does_not_run(self, topics: tuple[KafkaUrl, KafkaUrl]) -> None:
        """A client that waits for CONNECTED is not kept for ever."""

        async def run() -> None:
            engine, listener = QueryEngine(*topics, "a"), bound(Address("127.0.0.1", 0), "")
            async with engine, Server(engine, listener, Limits(keep_alive=0.2)) as server:
                peer = Peer(*await asyncio.open_connection(*server.address))
                peer.send(CONNECT)
                assert await asyncio.wait_for(peer.next(), 60) is None
                assert not server.binary.connections
                peer.close()

        asyncio.run(run())


class TestPartitionsAgree:
    """Calls that some partitions would refuse and others carry out change none of them."""

    @pytest.mark.parametrize("force", [False, True])
    def test_deleting_a_namespace_with_topics(self, topics: tuple[KafkaUrl, KafkaUrl], force: bool) -> None:
        async def run() -> None:
            partitions = Partitions(topics)
            config = BrokerConfig(settings={"namespacesMustExist": True, "forceDeleteNamespaceAllowed": True})
            async with QueryEngine(*topics, "a", begins_with=(config, *STANDALONE)) as engine:

                async def call(topic: str | None, method: Any, path: str, body: Any = None) -> list[int]:
                    command = Admin(method=method, path=path, body=body)
                    rows = await partitions.during(engine.submit(topic, command))
                    return [row.effect.fields.status for row in rows]

                assert await call(TOPIC, "PUT", f"/{TOPIC.replace('://', '/')}") == [204]
                assert await partitions.during(engine.topics("public/default")) == [TOPIC]
                suffix = "?force=true" if force else ""
                answers = await call(None, "DELETE", f"/namespaces/public/default{suffix}")
                assert answers == ([204] * PARTITIONS if force else [409])
                found = await call(None, "GET", "/namespaces/public/default")
                assert found == [404 if force else 200] * PARTITIONS
                if not force:
                    assert await call(TOPIC, "DELETE", f"/{TOPIC.replace('://', '/')}") == [204]
                    assert await call(None, "DELETE", "/namespaces/public/default") == [204] * PARTITIONS
            partitions.close()

        asyncio.run(run())

    def test_a_partitioned_topic_beside_one_of_its_name_and_in_use(
        self, topics: tuple[KafkaUrl, KafkaUrl]
    ) -> None:
        whole = "persistent://public/default/whole"
        paths = [f"/{each.replace('://', '/')}/partitions" for each in (TOPIC, whole)]

        async def run() -> None:
            partitions = Partitions(topics)
            async with QueryEngine(*topics, "a") as engine:

                async def call(topic: str | None, method: Any, path: str, body: Any = None) -> list[int]:
                    command = Admin(method=method, path=path, body=body)
                    rows = await partitions.during(engine.submit(topic, command))
                    return [row.effect.fields.status for row in rows]

                assert await call(TOPIC, "PUT", f"/{TOPIC.replace('://', '/')}") == [204]
                assert await call(None, "PUT", paths[0], 4) == [409]
                assert await call(None, "PUT", paths[1], 4) == [204] * PARTITIONS
                assert await call(None, "PUT", paths[1], 4) == [409]
                assert await partitions.during(engine.partitions(whole)) == 4
                assert all(broker.partitioned == {whole: 4} for broker in partitions.brokers)
                subscribe = Subscribe(
                    connection=engine.new_connection(),
                    subscription="s",
                    subType="Shared",
                    consumer_id=1,
                    request_id=1,
                )
                engine.post(subscribe.connection, f"{whole}-partition-2", to_json(subscribe))
                assert await call(None, "DELETE", paths[1]) == [412]
                assert all(broker.partitioned == {whole: 4} for broker in partitions.brokers)
                engine.post(
                    subscribe.connection, None, to_json(ConnectionLost(connection=subscribe.connection))
                )
                await partitions.during(engine.submit(None, RunCheck(check="messageExpiry")))
                assert await call(None, "DELETE", paths[1]) == [204] * PARTITIONS
                assert all(broker.partitioned == {} for broker in partitions.brokers)
            partitions.close()

        asyncio.run(run())


class TestTopicWatchers:
    def test_topics_that_come_and_go_elsewhere(
        self, topics: tuple[KafkaUrl, KafkaUrl], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A watcher hears of topics that another server creates, and of those that come through the log alone."""
        monkeypatch.setattr(topic_watchers, "LOOK_SECONDS", 0.1)

        async def run() -> None:
            partitions = Partitions(topics)
            told: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
            asked = {"namespace": "public/default", "topics_pattern": "public/default/a.*"}
            names = [f"persistent://public/default/{name}" for name in ("a1", "a2", "b")]
            with ThreadPoolExecutor(1) as executor:
                async with QueryEngine(*topics, "one") as engine, QueryEngine(*topics, "other") as other:
                    watchers = TopicWatchers(engine, executor)

                    def see(rows: Sequence[Row]) -> None:
                        watchers.see(rows)

                    engine.connect(see)

                    async def work() -> None:
                        begin = {**asked, "request_id": 1, "watcher_id": 7}
                        client = Watching("c", lambda *answer: told.put_nowait(answer), lambda: True, print)
                        await watchers.watch(client, begin)
                        assert (await told.get())[0] == "WATCH_TOPIC_LIST_SUCCESS"
                        await other.submit(names[0], Publish(producer="p", sequence_id=1))
                        assert (await told.get())[1]["new_topics"] == [names[0]]
                        for name in names[1:]:
                            other.post("c", name, to_json(Publish(producer="p", sequence_id=1)))
                        assert (await told.get())[1]["new_topics"] == [names[1]]
                        path = "/persistent/public/default/a1?force=true"
                        await other.submit(names[0], Admin(method="DELETE", path=path))
                        cmd, update = await told.get()
                        assert (cmd, update["deleted_topics"]) == ("WATCH_TOPIC_UPDATE", [names[0]])
                        assert update["topics_hash"] == topics_hash([names[1]])
                        watchers.stop()

                    await partitions.during(asyncio.wait_for(work(), 60))
            partitions.close()

        asyncio.run(run())


class TestErrors:
    def test_topics_that_do_not_exist(self, topics: tuple[KafkaUrl, KafkaUrl]) -> None:
        async def run(ingress: KafkaUrl, responses: KafkaUrl) -> None:
            async with QueryEngine(ingress, responses, "a"):
                pytest.fail("it started")

        none = topics[0]._replace(topic="none")
        for urls in ((none, topics[1]), (topics[0], none)):
            with pytest.raises(NoSuchTopic, match="has no topic 'none': `magnetar run` with .* creates it"):
                asyncio.run(run(*urls))
        with pytest.raises(KafkaUrlError, match="need separate topics"):
            asyncio.run(run(topics[0], topics[0]))

    def test_a_query_that_does_not_run(
        self,
        topics: tuple[KafkaUrl, KafkaUrl],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        for name in ("ANSWER_SECONDS", "SILENCE_SECONDS", "_LOOK_SECONDS"):
            monkeypatch.setattr(query_engine, name, 0.2)

        def said() -> list[str]:
            return [each.getMessage() for each in caplog.records if each.name == query_engine.__name__]

        async def run() -> None:
            async with QueryEngine(*topics, "a") as engine:
                with pytest.raises(
                    NoAnswer, match="no answer within 0 s: check that `magnetar run --ingress kafka://"
                ):
                    await engine.topics("public/default")
                await asyncio.sleep(0.6)
                (silent,) = said()
                assert "the query has not answered for 0 s, and clients wait: check that" in silent
                life = engine.new_connection().rpartition(".")[0]
                fields = ProducerSuccessFields(last_sequence_id=-1, producer_ready=True)
                success = ProducerSuccess(TOPIC, f"{life}.9", 1, 1, "p", fields)
                await asyncio.to_thread(answer, topics, 0, 0, success)
                await asyncio.sleep(0.5)
                assert said() == [silent, "magnetar: the query answers again"]

        with caplog.at_level(logging.WARNING, query_engine.__name__):
            asyncio.run(run())

    def test_a_command_that_the_topic_does_not_take(
        self, kafka: LocalKafka, topics: tuple[KafkaUrl, KafkaUrl]
    ) -> None:
        """It is refused as the query's gate would refuse it, and the server goes on."""
        small = topics[0]._replace(topic=f"{topics[0].topic}-small")
        kafka.create_topic(small.topic, 1, {"max.message.bytes": "100000"})

        async def run() -> None:
            async with QueryEngine(small, topics[1], "a") as engine:
                delivered: list[Row] = []
                engine.connect(lambda rows: delivered.extend(rows))
                engine.post("c", TOPIC, to_json(Publish(producer="p", sequence_id=0, payload="x" * 90_000)))
                await asyncio.sleep(0.2)
                (row,) = delivered
                assert isinstance(row.effect, Quarantined)
                assert row.effect.cause.startswith("a command of 90,")
                gone = query_engine._Call(1, asyncio.get_running_loop().create_future())
                gone.done.cancel()  # nobody waits any more, as from Python 3.12 on when a task ends at once
                engine._append(TOPIC, to_json(Admin(method="PUT", path="/x", body="x" * 90_000)), gone)
                engine.post("c", TOPIC, to_json(Publish(producer="p", sequence_id=0, payload="x")))
                await asyncio.sleep(0.2)
                assert not engine.failed.done()

        asyncio.run(run())

    def test_another_server_of_the_same_name(self, topics: tuple[KafkaUrl, KafkaUrl]) -> None:
        async def run() -> None:
            async with QueryEngine(*topics, "a") as engine:
                call = asyncio.ensure_future(engine.submit(None, Admin(method="GET", path="/x")))
                async with QueryEngine(*topics, "a") as second:
                    response = AdminResponse(
                        None, second.new_connection(), "", AdminResponseFields(status=200)
                    )
                    await asyncio.to_thread(answer, topics, 0, 0, response)
                    with pytest.raises(NameTaken, match="another server with the name 'a' has started"):
                        await asyncio.wait_for(asyncio.shield(engine.failed), 60)
                    with pytest.raises(EngineStopped):
                        await call
                    with pytest.raises(EngineStopped):
                        engine.post("c", None, b"{}")
                    assert not second.failed.done()

        asyncio.run(run())

    def test_names(self) -> None:
        assert server_name("a-1_B", 1) == "a-1_B"
        assert server_name(None, 6650).endswith("-6650")
        for name in ("", "a.b", "ä", "x" * 65):
            with pytest.raises(BadName, match="expected up to 64"):
                server_name(name, 1)
