"""What clients of any age and kind ask of the binary protocol: each answer as a Pulsar 4.0.7 gave it."""

import asyncio
from typing import Any

import pytest

from schemas.commands import Admin, Publish
from streaming.protocol.codec import batch, encode, entry
from streaming.protocol.frames import MINUS_ONE, topics_hash
from streaming.server import topic_watchers
from streaming.server.embedded import EmbeddedEngine
from streaming.server.engine import Deliver, EngineStopped, NoAnswer
from tests.server.test_bounds import CONNECT, TOPIC, Peer, Scene, producer, run, send

pytestmark = pytest.mark.feature("K1")

NAMESPACE = "public/default"


def connect(version: int) -> bytes:
    return encode("CONNECT", {"client_version": "test", "protocol_version": version})


def subscribe(subscription_type: str, **more: Any) -> bytes:
    fields = {"topic": TOPIC, "subscription": "s", "subType": subscription_type, "consumer_id": 1}
    return encode("SUBSCRIBE", {**fields, "request_id": 9, **more})


FLOW = encode("FLOW", {"consumer_id": 1, "messagePermits": 10})
_PAIR = {"producer_name": "p1", "sequence_id": 2, "publish_time": 1, "num_messages_in_batch": 2}
BATCH = encode(
    "SEND",
    {"producer_id": 1, "sequence_id": 2, "num_messages": 2},
    entry(_PAIR, batch([{}, {}], [b"a", b"b"])),
)


# -- protocol versions ------------------------------------------------------------------------------------------------


def test_a_ping_is_answered_before_connect() -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.peer(encode("PING", {}) + CONNECT)
        assert [(await peer.until(cmd)).cmd for cmd in ("PONG", "CONNECTED")] == ["PONG", "CONNECTED"]

    run(work)


@pytest.mark.parametrize(("version", "told"), [(0, False), (11, False), (12, True), (21, True)])
def test_clients_before_version_12_are_not_told_who_is_active(version: int, told: bool) -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.peer(connect(version) + subscribe("Failover"))
        await peer.until("SUCCESS")
        scene.clock.move_to(scene.clock.now() + 10_000)
        engine = scene.server.engine
        assert isinstance(engine, EmbeddedEngine)
        await engine.tick()
        peer.send(encode("PING", {}))
        found: list[str] = []
        while "PONG" not in found:
            frame = await peer.next()
            assert frame is not None
            found.append(frame.cmd)
        assert ("ACTIVE_CONSUMER_CHANGE" in found) == told

    run(work)


@pytest.mark.parametrize("version", [3, 4])
def test_a_client_before_version_4_loses_its_connection_to_a_batch(version: int) -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.peer(connect(version) + producer() + subscribe("Shared") + FLOW + send(1) + BATCH)
        assert (await peer.until("MESSAGE")).payload == b"x"
        if version >= 4:
            assert (await peer.until("MESSAGE")).metadata["num_messages_in_batch"] == 2  # type: ignore[index]
        else:
            while (frame := await peer.next()) is not None:
                assert frame.cmd != "MESSAGE"

    run(work)


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_before_version_5_loses_its_connection_instead_of_a_consumer(version: int) -> None:
    """A seek closes the consumers of its subscription."""
    earliest = {"ledgerId": 2**64 - 1, "entryId": 2**64 - 1}
    seek = encode("SEEK", {"consumer_id": 1, "request_id": 10, "message_id": earliest})

    async def work(scene: Scene) -> None:
        peer = await scene.peer(connect(version) + subscribe("Shared") + seek)
        await peer.until("SUCCESS")
        if version >= 5:
            assert (await peer.until("CLOSE_CONSUMER")).fields["consumer_id"] == 1
        else:
            while (frame := await peer.next()) is not None:
                assert frame.cmd != "CLOSE_CONSUMER"

    run(work)


# -- watchers of topics -----------------------------------------------------------------------------------------------


def watch(pattern: str, number: int = 0, **more: Any) -> bytes:
    fields = {
        "request_id": 50 + number,
        "watcher_id": number,
        "namespace": NAMESPACE,
        "topics_pattern": pattern,
    }
    return encode("WATCH_TOPIC_LIST", {**fields, **more})


async def watching(scene: Scene, pattern: str = f"persistent://{NAMESPACE}/a.*") -> Peer:
    peer = await scene.peer(CONNECT)
    flags = (await peer.until("CONNECTED")).fields["feature_flags"]
    assert flags["supports_topic_watchers"]
    peer.send(watch(pattern))
    return peer


def name(topic: str) -> str:
    return f"persistent://{NAMESPACE}/{topic}"


def test_a_watcher_is_told_of_topics_that_come_and_go() -> None:
    async def work(scene: Scene) -> None:
        peer, other = await watching(scene), await scene.connected()
        found = await peer.until("WATCH_TOPIC_LIST_SUCCESS")
        assert found.fields == {"request_id": 50, "watcher_id": 0, "topics_hash": "00000000"}
        other.send(
            producer(1, name("b")), producer(2, f"non-persistent://{NAMESPACE}/a"), producer(3, name("a1"))
        )
        update = (await peer.until("WATCH_TOPIC_UPDATE")).fields
        assert update == {
            "watcher_id": 0,
            "new_topics": [name("a1")],
            "topics_hash": topics_hash([name("a1")]),
        }
        await scene.admin("PUT", f"/persistent/{NAMESPACE}/ap/partitions", 2)
        update = (await peer.until("WATCH_TOPIC_UPDATE")).fields
        assert update["new_topics"] == [name("ap-partition-0"), name("ap-partition-1")]
        await scene.admin("DELETE", f"/persistent/{NAMESPACE}/ap/partitions")
        gone: set[str] = set()
        while len(gone) < 2:
            update = (await peer.until("WATCH_TOPIC_UPDATE")).fields
            gone.update(update["deleted_topics"])
        assert gone == {name("ap-partition-0"), name("ap-partition-1")}
        assert update["topics_hash"] == topics_hash([name("a1")])

    run(work)


def test_a_client_is_not_told_of_system_topics() -> None:
    """quirk: one that watches a pattern is (`TopicListService.initializeTopicsListWatcher` of 4.0.7)."""

    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(producer(1, name("__change_events")), producer(2, name("a")))
        await peer.until("PRODUCER_SUCCESS")
        await peer.until("PRODUCER_SUCCESS")
        for pattern in ({}, {"topics_pattern": name(".*")}):
            peer.send(encode("GET_TOPICS_OF_NAMESPACE", {"request_id": 3, "namespace": NAMESPACE, **pattern}))
            found = (await peer.until("GET_TOPICS_OF_NAMESPACE_RESPONSE")).fields
            assert (found["topics"], found["topics_hash"]) == ([name("a")], topics_hash([name("a")]))
        peer.send(watch(name(".*"), 1))
        found = (await peer.until("WATCH_TOPIC_LIST_SUCCESS")).fields
        assert found["topic"] == [name("__change_events"), name("a")]

    run(work)


def test_watchers_are_told_apart_and_closed() -> None:
    async def work(scene: Scene) -> None:
        peer, other = await watching(scene), await scene.connected()
        other.send(producer(1, name("a1")))
        await peer.until("WATCH_TOPIC_UPDATE")
        known = topics_hash([name("a1")])
        peer.send(
            watch(f"{NAMESPACE}/a.*", 1), watch(name("b.*"), 1), watch(name("a.*"), 2, topics_hash=known)
        )
        for request, topics in ((51, [name("a1")]), (51, [name("a1")]), (52, None)):
            found = (await peer.until("WATCH_TOPIC_LIST_SUCCESS")).fields
            assert (found["request_id"], found.get("topic"), found["topics_hash"]) == (request, topics, known)
        for number in (0, 1, 99):
            peer.send(encode("WATCH_TOPIC_LIST_CLOSE", {"request_id": number, "watcher_id": number}))
            assert (await peer.until("SUCCESS")).fields == {"request_id": number}
        other.send(producer(2, name("a2")))
        assert (await peer.until("WATCH_TOPIC_UPDATE")).fields["watcher_id"] == 2

    run(work)


def test_the_first_message_of_a_new_topic_reaches_who_watches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer is not told that it is ready before the watchers have subscribed, as on a real broker, whose topic takes longer."""
    monkeypatch.setattr(topic_watchers, "HEAD_START", 1000.0)

    async def work(scene: Scene) -> None:
        peer, other = await watching(scene), await scene.connected()
        await peer.until("WATCH_TOPIC_LIST_SUCCESS")
        for number in range(12):
            topic = name(f"a{number}")
            other.send(producer(1 + number, topic))
            assert (await peer.until("WATCH_TOPIC_UPDATE")).fields["new_topics"] == [topic]
            other.send(encode("PING", {}))
            frame = await other.next()
            assert frame is not None
            assert frame.cmd == "PONG"
            peer.send(subscribe("Shared", topic=topic, consumer_id=1 + number, request_id=1000 + number))
            await peer.until("SUCCESS")
            await other.until("PRODUCER_SUCCESS")
            fields = {"producer_id": 1 + number, "sequence_id": 0}
            metadata = {"producer_name": f"p{1 + number}", "sequence_id": 0, "publish_time": 1}
            other.send(encode("SEND", fields, entry(metadata, b"x")))
            await other.until("SEND_RECEIPT")
            peer.send(encode("FLOW", {"consumer_id": 1 + number, "messagePermits": 10}))
            assert (await peer.until("MESSAGE")).fields["consumer_id"] == 1 + number

    run(work)


def test_a_producer_waits_for_nobody_who_does_not_watch_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watchers, "HEAD_START", 1000.0)

    async def work(scene: Scene) -> None:
        peer, other = await watching(scene), await scene.connected()
        await peer.until("WATCH_TOPIC_LIST_SUCCESS")
        # another name, another namespace, a topic that is not persistent, and one that is there
        await scene.server.engine.submit(name("a0"), Publish(producer="p", sequence_id=1))
        topics = name("b"), "persistent://public/another/a", f"non-persistent://{NAMESPACE}/a", name("a0")
        for number, topic in enumerate(topics):
            other.send(producer(number, topic))
            assert (await other.until("PRODUCER_SUCCESS")).fields["request_id"] == number

    run(work)


def test_a_producer_waits_only_so_long_and_its_connection_stays_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_watchers, "HEAD_START", 0.02)

    async def work(scene: Scene) -> None:
        peer, other = await watching(scene), await scene.connected()
        await peer.until("WATCH_TOPIC_LIST_SUCCESS")
        other.send(producer(1, name("a1")), producer(2, name("b")), producer(3, name("a2")))
        answers = [(await other.until("PRODUCER_SUCCESS")).fields["request_id"] for _ in range(3)]
        assert answers == [1, 2, 3]
        assert scene.server.binary.watchers._coming == {}
        other.send(producer(4, name("a3")))  # and one that leaves while it waits
        await peer.until("WATCH_TOPIC_UPDATE")
        other.close()
        while scene.server.binary.watchers._coming:
            await asyncio.sleep(0.001)

    run(work)


def test_a_pattern_is_measured_without_the_kind_of_topic() -> None:
    async def work(scene: Scene) -> None:
        peer = await watching(scene, "persistent://" + "a" * 50)
        await peer.until("WATCH_TOPIC_LIST_SUCCESS")
        # but not that of a list
        pattern = {"namespace": NAMESPACE, "topics_pattern": "persistent://" + "a" * 50}
        peer.send(encode("GET_TOPICS_OF_NAMESPACE", {"request_id": 3, **pattern}))
        assert not (await peer.until("GET_TOPICS_OF_NAMESPACE_RESPONSE")).fields["filtered"]

    run(work)


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        ("a" * 51, "NotAllowedError"),
        ("persistent://" + "a" * 51, "NotAllowedError"),
        ("public/default/a(", "InvalidTopicName"),
        (r"(?=a).*", "InvalidTopicName"),
    ],
)
def test_a_pattern_that_cannot_be_watched_is_refused(pattern: str, error: str) -> None:
    async def work(scene: Scene) -> None:
        peer = await watching(scene, pattern)
        refused = await peer.until("ERROR")
        assert (refused.fields["request_id"], refused.fields["error"]) == (50, error)
        peer.send(encode("PING", {}))
        await peer.until("PONG")

    run(work)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engine delivers only rows for connections, as before a query. Returns the namespaces whose topics are listed."""
    listed: list[str] = []
    connect, topics = EmbeddedEngine.connect, EmbeddedEngine.topics

    def connect_own(self: EmbeddedEngine, deliver: Deliver) -> None:
        connect(self, lambda rows: deliver([row for row in rows if getattr(row.effect, "connection", None)]))

    async def noted(self: EmbeddedEngine, namespace: str) -> list[str]:
        listed.append(namespace)
        return await topics(self, namespace)

    monkeypatch.setattr(EmbeddedEngine, "shows_topic_events", False)
    monkeypatch.setattr(EmbeddedEngine, "connect", connect_own)
    monkeypatch.setattr(EmbeddedEngine, "topics", noted)
    return listed


def test_before_a_query_topics_that_others_create_and_delete_are_found(
    elsewhere: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_watchers, "LOOK_SECONDS", 0.001)

    async def work(scene: Scene) -> None:
        peer = await watching(scene)
        assert (await peer.until("WATCH_TOPIC_LIST_SUCCESS")).fields["topics_hash"] == "00000000"
        await scene.server.engine.submit(name("a1"), Publish(producer="p", sequence_id=1))
        update = (await peer.until("WATCH_TOPIC_UPDATE")).fields
        assert (update["new_topics"], update["topics_hash"]) == ([name("a1")], topics_hash([name("a1")]))
        deletion = Admin(method="DELETE", path=f"/persistent/{NAMESPACE}/a1?force=true")
        await scene.server.engine.submit(name("a1"), deletion)
        assert (await peer.until("WATCH_TOPIC_UPDATE")).fields["deleted_topics"] == [name("a1")]
        watchers = scene.server.binary.watchers
        peer.send(encode("WATCH_TOPIC_LIST_CLOSE", {"request_id": 1, "watcher_id": 0}))
        await peer.until("SUCCESS")
        while watchers._looking is None or not watchers._looking.done():
            await asyncio.sleep(0)
        elsewhere.clear()
        watchers._look_soon()
        await watchers._looking
        assert elsewhere == []  # nobody watches

    run(work)


def test_before_a_query_topics_that_own_clients_create_are_found_at_once(elsewhere: list[str]) -> None:
    """It does not wait for the next look, and a topic that is known is no reason to look."""

    async def work(scene: Scene) -> None:
        peer, other = await watching(scene), await scene.connected()
        await peer.until("WATCH_TOPIC_LIST_SUCCESS")
        other.send(producer(1, name("a1")))
        assert (await peer.until("WATCH_TOPIC_UPDATE")).fields["new_topics"] == [name("a1")]
        fields = {"topic": name("a2"), "subscription": "s", "subType": "Shared", "consumer_id": 1}
        other.send(encode("SUBSCRIBE", {**fields, "request_id": 9}))
        assert (await peer.until("WATCH_TOPIC_UPDATE")).fields["new_topics"] == [name("a2")]
        looks = len(elsewhere)
        other.send(producer(2, name("a2")), producer(3, "persistent://public/another/a"))
        await other.until("PRODUCER_SUCCESS")
        await other.until("PRODUCER_SUCCESS")
        assert len(elsewhere) == looks

    run(work)


def test_before_a_query_a_namespace_is_listed_once_for_all_who_watch_it(elsewhere: list[str]) -> None:
    async def work(scene: Scene) -> None:
        peer = await watching(scene)
        await peer.until("WATCH_TOPIC_LIST_SUCCESS")
        peer.send(*[watch(f"{NAMESPACE}/a.*", number) for number in range(1, 10)])
        for _ in range(9):
            await peer.until("WATCH_TOPIC_LIST_SUCCESS")
        watchers = scene.server.binary.watchers
        while watchers._looking is not None and not watchers._looking.done():
            await asyncio.sleep(0)
        elsewhere.clear()
        watchers._look_soon()
        assert watchers._looking is not None
        await watchers._looking
        assert elsewhere == [NAMESPACE]

    run(work)


@pytest.mark.parametrize("error", [NoAnswer("nobody"), EngineStopped("closed"), TypeError("a bug")])
def test_before_a_query_that_does_not_answer_watchers_wait(
    elsewhere: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """They look again later, unless the engine has stopped."""

    async def fails(self: EmbeddedEngine, namespace: str) -> list[str]:
        raise error

    async def work(scene: Scene) -> None:
        peer = await watching(scene)
        await peer.until("WATCH_TOPIC_LIST_SUCCESS")
        watchers = scene.server.binary.watchers
        while watchers._looking is None or not watchers._looking.done():
            await asyncio.sleep(0)
        topics = EmbeddedEngine.topics
        with monkeypatch.context() as patch:
            patch.setattr(EmbeddedEngine, "topics", fails)
            watchers._look_soon()
            await watchers._looking
        assert EmbeddedEngine.topics is topics
        assert watchers._timer is not None
        assert watchers._timer.cancelled() is isinstance(error, EngineStopped)

    run(work)


# -- stats of a consumer ----------------------------------------------------------------------------------------------


def test_a_consumer_asks_for_its_stats() -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        second = subscribe("Shared", consumer_id=2, consumer_name="named", request_id=10)
        third = subscribe("Shared", consumer_id=3, request_id=11)
        peer.send(producer(), subscribe("Shared"), second, third, FLOW, send(1), send(2))
        await peer.until("MESSAGE")
        await peer.until("MESSAGE")
        found = []
        for number in (1, 2, 3):
            peer.send(encode("CONSUMER_STATS", {"request_id": 20 + number, "consumer_id": number}))
            found.append((await peer.until("CONSUMER_STATS_RESPONSE")).fields)
        names = ("request_id", "consumerName", "availablePermits", "unackedMessages")
        assert [[each[key] for key in names] for each in found] == [
            [21, "", 8, 2], [22, "named", 0, 0], [23, "", 0, 0],
        ]  # fmt: skip
        assert found[0]["address"].startswith("/127.0.0.1:")
        assert found[0]["connectedSince"] == "2023-11-14T22:13:20.000Z"
        shown = {"type": "Shared", "msgBacklog": 2, "msgRateExpired": 0.0, "msgRateOut": 0.0, "msgRateRedeliver": 0.0,
                 "msgThroughputOut": 0.0, "messageAckRate": 0.0, "blockedConsumerOnUnackedMsgs": False}  # fmt: skip
        assert {key: found[0][key] for key in shown} == shown

    run(work)


def test_stats_of_a_consumer_that_is_not_there() -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        asks = encode("CONSUMER_STATS", {"request_id": 4, "consumer_id": 2})
        peer.send(subscribe("Exclusive"), subscribe("Exclusive", consumer_id=2, request_id=10) + asks)
        refused = (await peer.until("CONSUMER_STATS_RESPONSE")).fields
        assert (refused["request_id"], refused["error_code"]) == (4, "ConsumerNotFound")

    run(work)


@pytest.mark.parametrize("asked", [True, False], ids=["refused", "never asked for"])
def test_stats_of_what_is_no_consumer_close_the_connection(asked: bool) -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        if asked:
            peer.send(subscribe("Exclusive"), subscribe("Exclusive", consumer_id=9, request_id=10))
            assert (await peer.until("ERROR")).fields["error"] == "ConsumerBusy"
        peer.send(encode("CONSUMER_STATS", {"request_id": 5, "consumer_id": 9}))
        while (frame := await peer.next()) is not None:
            assert frame.cmd != "CONSUMER_STATS_RESPONSE"

    run(work)


# -- odd values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ack_type", ["Individual", "Cumulative"])
def test_an_ack_of_nothing_is_answered(ack_type: str) -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(producer(), subscribe("Exclusive"), FLOW, send(1))
        await peer.until("MESSAGE")
        peer.send(encode("ACK", {"consumer_id": 1, "ack_type": ack_type, "request_id": 3}))
        assert (await peer.until("ACK_RESPONSE")).fields == {"consumer_id": 1, "request_id": 3}
        peer.send(encode("CONSUMER_STATS", {"request_id": 4, "consumer_id": 1}))
        assert (await peer.until("CONSUMER_STATS_RESPONSE")).fields["msgBacklog"] == 1

    run(work)


@pytest.mark.parametrize("time", [2**63 - 1, 2**63, MINUS_ONE])
def test_an_event_time_is_any_number_of_64_bits(time: int) -> None:
    """Pulsar takes it as a number with a sign; the application gets it back as it was."""
    metadata = {
        "producer_name": "p1",
        "sequence_id": 1,
        "publish_time": 1_700_000_000_000,
        "event_time": time,
    }
    late = encode("SEND", {"producer_id": 1, "sequence_id": 1}, entry(metadata, b"x"))

    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(producer(), subscribe("Exclusive"), FLOW, late)
        assert (await peer.until("MESSAGE")).metadata == metadata

    run(work)


# -- what a broker without transactions and authentication refuses --------------------------------------------------


@pytest.mark.parametrize(
    "cmd",
    [
        "NEW_TXN",
        "ADD_PARTITION_TO_TXN",
        "ADD_SUBSCRIPTION_TO_TXN",
        "END_TXN",
        "TC_CLIENT_CONNECT_REQUEST",
    ],
)
def test_transactions_are_not_enabled(cmd: str) -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        asked = {"request_id": 3} | ({"tc_id": 0} if cmd == "TC_CLIENT_CONNECT_REQUEST" else {})
        peer.send(encode(cmd, asked))
        refused = {"error": "NotAllowedError", "message": "Transactions are not enabled."}
        assert (await peer.until("ERROR")).fields == {"request_id": 3, **refused}
        peer.send(encode("PING", {}))
        await peer.until("PONG")

    run(work)


@pytest.mark.parametrize("cmd", ["END_TXN_ON_PARTITION", "END_TXN_ON_SUBSCRIPTION", "SUCCESS"])
def test_what_brokers_say_to_brokers_closes_the_connection(cmd: str) -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(encode(cmd, {"request_id": 3}))
        assert await peer.next() is None

    run(work)


def test_an_ack_in_a_transaction_is_refused() -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(producer(), subscribe("Exclusive"), FLOW, send(1))
        found = (await peer.until("MESSAGE")).fields["message_id"]
        ids = {"message_id": [{name: found[name] for name in ("ledgerId", "entryId")}], "txnid_least_bits": 1}
        peer.send(encode("ACK", {"consumer_id": 1, "ack_type": "Individual", "request_id": 3, **ids}))
        refused = {"error": "NotAllowedError", "message": "Server don't support transaction ack!"}
        assert (await peer.until("ACK_RESPONSE")).fields == {"consumer_id": 1, "request_id": 3, **refused}

    run(work)


def test_an_answer_to_no_challenge_closes_the_connection() -> None:
    """4.0.7: with an error, if it has something in it."""

    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(encode("AUTH_RESPONSE", {"response": {"auth_method_name": "token", "auth_data": b"x"}}))
        refused = {"error": "AuthenticationError", "message": "Failed to authenticate"}
        assert (await peer.until("ERROR")).fields == {"request_id": MINUS_ONE, **refused}
        assert await peer.next() is None
        other = await scene.connected()
        other.send(encode("AUTH_RESPONSE", {}))
        assert await other.next() is None

    run(work)


@pytest.mark.parametrize("namespace", ["", "public", "a/b/c/d", "a b/c"])
def test_topics_of_what_is_not_a_namespace(namespace: str) -> None:
    async def work(scene: Scene) -> None:
        peer = await scene.connected()
        peer.send(encode("GET_TOPICS_OF_NAMESPACE", {"request_id": 3, "namespace": namespace}))
        assert await peer.next() is None

    run(work)
