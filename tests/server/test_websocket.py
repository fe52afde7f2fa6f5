"""The WebSocket API: conversations as a real Pulsar 4.0.7 held them, and what Magnetar adds: bounds, and pages of other sites."""

import base64
import json
import logging
import socket
import ssl
import subprocess
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.server import ServerProtocol
from websockets.sync.client import ClientConnection, connect

from schemas.commands import MessageMetadata
from streaming.broker.config import profile_of
from streaming.protocol.codec import FrameError, batch, singles
from streaming.protocol.frames import uncompressed
from streaming.runtime.java import java_binary
from streaming.server.admin import http
from streaming.server.authentication import TokenAuthentication
from streaming.server.binary import Limits
from streaming.server.clock import HeldClock
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from streaming.server.faults import FaultSpec
from streaming.server.server import Security, tls_context
from streaming.server.websocket import consumer
from streaming.server.websocket.messages import ClientMessageId
from tests.authorization.questions import SETTINGS
from tests.certificates import Certificate
from tests.parity.pulsar import jars_of
from tests.server.conftest import Query, Running, running_on
from tests.websocket.conversations import CONVERSATIONS, Talk, b64, held
from tests.websocket.record import OTHERS, address_of, differing, is_old, recorded, standalone

pytestmark = pytest.mark.feature("I9")

PRODUCER, CONSUMER = "v2/producer/persistent/public/default/{}", "v2/consumer/persistent/public/default/{}/s"


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with running_on(standalone) as found:
        yield found


@pytest.fixture(autouse=True)
def no_bugs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    records = caplog.get_records("call")  # the records of the teardown are others
    assert not [record.getMessage() for record in records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_is_that_of_a_real_pulsar(broker: Running, name: str) -> None:
    assert held(address_of(broker), name) == recorded()[name]


@pytest.mark.parametrize("version", OTHERS)
def test_conversations_that_differ_are_those_of_another_release(version: str) -> None:
    with running_on(partial(standalone, profile_of(version))) as broker:
        for name, heard in differing(version).items():
            if name != "roles":
                assert held(address_of(broker), name, old=is_old(version)) == heard


@pytest.mark.feature("I8")
@pytest.mark.parametrize("version", OTHERS)
def test_roles_may_open_what_another_release_lets_them(version: str) -> None:
    security = Security(None, TokenAuthentication.with_secret(SETTINGS["tokenSecretKey"]), settings=SETTINGS)
    with running_on(partial(standalone, profile_of(version)), security) as broker:
        heard = differing(version).get("roles", recorded()["roles"])
        assert held(address_of(broker), "roles", old=is_old(version)) == heard


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.parametrize(
    "name", ["producing", "consuming", "batching", "dead_letters", "several_topics", "unsubscribing"]
)
def test_a_conversation_before_a_query_is_the_same(query: Query, name: str) -> None:
    with query.server() as server:
        assert held(address_of(server), name) == recorded()[name]


@pytest.mark.feature("I8")
def test_roles_may_open_what_a_real_pulsar_lets_them() -> None:
    security = Security(None, TokenAuthentication.with_secret(SETTINGS["tokenSecretKey"]), settings=SETTINGS)
    with running_on(standalone, security) as broker:
        assert held(address_of(broker), "roles") == recorded()["roles"]


def opened(broker: Running, path: str, **given: Any) -> ClientConnection:
    return connect(f"ws://{address_of(broker)}/ws/{path}", legacy=True, **given)


def publish(broker: Running, topic: str, *payloads: str) -> None:
    with closing(opened(broker, PRODUCER.format(topic))) as client:
        for each in payloads:
            client.send(json.dumps({"payload": b64(each)}))
        for _ in payloads:
            assert json.loads(client.recv(timeout=20))["result"] == "ok"


def payload(message: str | bytes) -> str:
    return base64.b64decode(json.loads(message)["payload"]).decode()


def closed(client: ClientConnection) -> tuple[int, str] | None:
    """The code and the reason with which a WebSocket ends; None: without a close frame."""
    try:
        while True:
            client.recv(timeout=20)
    except ConnectionClosed as found:
        return None if found.rcvd is None else (found.rcvd.code, found.rcvd.reason)


@pytest.mark.slow
def test_pulsars_own_client_speaks_it(broker: Running, tmp_path: Path) -> None:
    """``pulsar-client --url ws://…``, from Maven. It misses an answer that comes before it begins to wait: within some microseconds of its message."""
    slow = FaultSpec(
        action="delay", delay=100, command="SEND", topic="persistent://public/default/cli", times=None
    )
    broker.call(partial(broker.server.binary.faults.add, slow))
    config = tmp_path / "client.conf"
    config.write_text(f"webServiceUrl=http://{address_of(broker)}/\n")
    jars = jars_of(Path(__file__).parent / "pulsar_admin" / "pom.xml")
    tool = [str(java_binary()), "-Xmx300m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", "org.apache.pulsar.client.cli.PulsarClientTool", str(config)]  # fmt: skip

    def run(*words: str) -> str:
        asked = [*tool, "--url", f"ws://{address_of(broker)}", *words, "persistent://public/default/cli"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    topic = "persistent://public/default/cli"
    asked = [*tool, "--url", f"ws://{address_of(broker)}", "consume", "-s", "s", "-n", "2", topic]
    talk = Talk(address_of(broker), "cli")
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as consuming:
        talk.call("PUT", "{t}")
        try:
            while talk.call("GET", "{t}/subscriptions") != ["s"]:
                assert consuming.poll() is None
            run("produce", "-m", "one,two")
            consumed, _ = consuming.communicate(timeout=120)
        finally:
            consuming.kill()
    for found in (consumed, run("read", "-n", "2", "-m", "earliest")):
        lines = [line for line in found.splitlines() if line.startswith("{")]
        assert [payload(line) for line in lines] == ["one", "two"]


# -- what is not as in Pulsar


def test_acknowledgements_of_several_topics_go_to_the_right_one(broker: Running) -> None:
    """Their ledgers have the same numbers."""
    publish(broker, "several-1", "one")
    publish(broker, "several-2", "two")
    topics = "v3/consumer/s?topics=several-1,several-2&subscriptionInitialPosition=Earliest"
    with closing(opened(broker, topics)) as client:
        came = {payload(message): json.loads(message) for message in (client.recv(20), client.recv(20))}
        assert came["one"]["messageId"] != came["two"]["messageId"]
        client.send(json.dumps({"messageId": came["one"]["messageId"]}))
        client.send(json.dumps({"type": "isEndOfTopic"}))
        client.recv(timeout=20)
    with closing(opened(broker, topics)) as client:
        assert payload(client.recv(timeout=20)) == "two"


def test_half_a_character_is_a_question_mark(broker: Running) -> None:
    half = {
        "context": "\ud83d",
        "key": "a\ud83d",
        "properties": {"\ud83d": "\ud83d"},
        "replicationClusters": ["\ud83d"],
    }
    with closing(opened(broker, CONSUMER.format("half-a-character"))) as client:
        with closing(opened(broker, PRODUCER.format("half-a-character"))) as producer:
            producer.send(json.dumps({"payload": "eA==", **half}))
            assert json.loads(producer.recv(timeout=20))["context"] == "?"
            producer.send(json.dumps({"context": "\ud83d", "eventTime": "\ud83d", "payload": ""}))
            assert json.loads(producer.recv(timeout=20))["result"] == "send-error:7"
        found = json.loads(client.recv(timeout=20))
    assert (found["key"], found["properties"]) == ("a?", {"?": "?"})


def test_a_pattern_that_is_none_is_refused(broker: Running) -> None:
    with pytest.raises(InvalidStatus) as refused:
        opened(broker, "v3/consumer/s?topicsPattern=(")
    assert refused.value.response.status_code == 400


def test_a_chunked_message_comes_again_as_a_whole(broker: Running) -> None:
    topic, text = "persistent://public/default/chunked", b"x" * 1_500_000
    with broker.client() as client:
        client.create_producer(topic, batching_enabled=False, chunking_enabled=True).send(text)
    path = CONSUMER.format("chunked")
    query = "subscriptionInitialPosition=Earliest&subscriptionType=Shared&negativeAckRedeliveryDelay=100"
    with closing(opened(broker, f"{path}?{query}", max_size=None)) as client:
        for _ in range(2):
            found = client.recv(timeout=20)
            assert payload(found) == text.decode()
            id = json.loads(found)["messageId"]
            client.send(json.dumps({"type": "negativeAcknowledge", "messageId": id}))


def test_a_pattern_finds_topics_that_come_later(broker: Running) -> None:
    with closing(opened(broker, "v3/consumer/s?topicsPattern=later-.*")) as client:
        publish(broker, "later-1", "first")
        assert payload(client.recv(timeout=20)) == "first"
        Talk(address_of(broker), "x").call("DELETE", "persistent/public/default/later-1?force=true")
        publish(broker, "later-2", "second")
        assert payload(client.recv(timeout=20)) == "second"


def test_a_lost_connection_to_the_broker_ends_the_websocket(broker: Running) -> None:
    """In Pulsar, the service connects again. Here, only limits, faults and the end of a double's test close that connection."""
    client = opened(broker, CONSUMER.format("lost"))
    fault = FaultSpec(action="disconnect", command="ACK")
    broker.call(partial(broker.server.binary.faults.add, fault))
    publish(broker, "lost", "a")
    client.send(json.dumps({"messageId": json.loads(client.recv(timeout=20))["messageId"]}))
    assert closed(client) == (1011, "the connection to the broker was closed")


def test_a_message_that_the_broker_can_not_write_is_sent_again(broker: Running) -> None:
    topic = "persistent://public/default/fails"
    fault = FaultSpec(action="error", command="SEND", topic=topic, times=1)
    broker.call(partial(broker.server.binary.faults.add, fault))
    with closing(opened(broker, PRODUCER.format("fails"))) as client:
        for each in "ab":
            client.send(json.dumps({"payload": b64(each), "context": each}))
        answers = [json.loads(client.recv(timeout=20)) for _ in "ab"]
    assert {each["context"]: each["result"] for each in answers} == {"a": "ok", "b": "ok"}


@pytest.mark.parametrize("profile", ["2.10", "3.0", "4.0", "4.2", "5.0"])
def test_a_release_has_what_it_has(profile: Any) -> None:
    own = partial(EmbeddedEngine, profile=profile, begins_with=STANDALONE)
    is_old = profile in ("2.10", "3.0")
    with running_on(own) as broker:
        talk = Talk(address_of(broker), "t")
        talk.open("several", "v3/consumer/s?topics=a")
        talk.open("ignored", "v2/consumer/{t}/s?subscriptionInitialPosition=nonsense")
        talk.open("own", "v2/producer/{t}?encryptionKeys=eyJhIjp7ImtleVZhbHVlIjoiZUE9PSJ9fQ%3D%3D")
        talk.open("theirs", "v2/producer/{t}?encryptionKeys=a")
        talk.close_all()
    no_reader = "500 Failed to create producer/consumer: Can&apos;t add encryption key without configuring cryptoKeyReaderFactoryClassName"
    assert talk.heard == [
        ["several", "404 Not Found" if is_old else "open"],
        ["ignored", "open" if is_old else "400 Invalid query params: Invalid subscriptionInitialPosition nonsense"],
        ["own", no_reader if profile == "3.0" else "open"],
        ["theirs", "open" if profile == "2.10" else no_reader],
    ]  # fmt: skip


def test_before_3_0_chunks_come_one_by_one_on_shared() -> None:
    """As the first answers of a real 2.10.5 show. Exclusive gets both messages, twice."""
    with running_on(partial(standalone, "2.10")) as broker:
        heard = held(address_of(broker), "chunks", old=True)
    sizes = [said["payload"] for who, said in heard if who == "c" and said != "open"]
    assert sizes == [1_500_000] * 4 + [699_980] * 2


def test_times_are_those_of_a_doubles_clock() -> None:
    clock = HeldClock(1_700_000_000_000)
    with (
        running_on(partial(EmbeddedEngine, clock=clock, begins_with=STANDALONE), held=clock) as broker,
        closing(opened(broker, CONSUMER.format("held") + "?subscriptionType=Shared")) as client,
        closing(opened(broker, PRODUCER.format("held"))) as producer,
    ):
        producer.send(json.dumps({"payload": b64("later"), "deliverAfterMs": 60_000}))
        producer.send(json.dumps({"payload": b64("now")}))
        first = json.loads(client.recv(timeout=20))
        assert (payload(json.dumps(first)), first["publishTime"]) == ("now", "2023-11-14T22:13:20Z")
        request = urllib.request.Request(
            f"http://{address_of(broker)}/magnetar/v1/clock", b'{"advance": 60000}'
        )
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request).close()
        assert payload(client.recv(timeout=20)) == "later"


def test_websockets_over_tls(tmp_path: Path) -> None:
    file = tmp_path / "own.pem"
    file.write_bytes(Certificate("localhost").pem(with_key=True))
    trusted = ssl.create_default_context(cafile=file)
    trusted.check_hostname = False
    with running_on(standalone, Security(tls_context(file, file))) as broker:
        url = f"wss://{address_of(broker)}/ws/{PRODUCER.format('tls')}"
        with closing(connect(url, ssl=trusted, legacy=True)) as client:
            client.send(json.dumps({"payload": b64("x" * 300_000)}))
            assert json.loads(client.recv(timeout=20))["result"] == "ok"


# -- bounds


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example"}, 403), ({"Origin": "http://{}"}, 101), ({}, 101),
    ],
)  # fmt: skip
def test_a_page_of_another_site_may_not_open_one(
    broker: Running, headers: dict[str, str], status: int
) -> None:
    own = address_of(broker)
    given = {"Host": own, **{name: value.format(own) for name, value in headers.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    with socket.create_connection((own.partition(":")[0], int(own.partition(":")[2]))) as client:
        client.sendall(handshake(PRODUCER.format("pages"), lines))
        assert client.recv(1000).split()[1] == str(status).encode()


def handshake(path: str, headers: str) -> bytes:
    own = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    return f"GET /ws/{path} HTTP/1.1\r\n{headers}{own}\r\n".encode()


def raw(broker: Running, path: str) -> socket.socket:
    """A WebSocket as a bare socket."""
    host, _, port = address_of(broker).partition(":")
    client = socket.create_connection((host, int(port)))
    client.settimeout(20)
    client.sendall(handshake(path, f"Host: {host}:{port}\r\n"))
    assert client.recv(1000).startswith(b"HTTP/1.1 101 ")
    return client


def ends(client: socket.socket) -> bytes:
    """What comes until the end."""
    found = b""
    try:
        while data := client.recv(1 << 20):
            found += data
    except ConnectionResetError:
        pass
    return found


def test_a_websocket_on_which_nothing_happens_is_closed(
    broker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.2)
    assert closed(opened(broker, PRODUCER.format("idle"))) == (1001, "Idle timeout expired: 200 ms")


def test_a_client_that_does_not_read_is_cut_off(broker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "UNREAD_SECONDS", 0.2)
    with raw(broker, CONSUMER.format("slow")):
        publish(broker, "slow", *["x" * 500_000] * 20)
        until_gone(broker, "slow")


def until_gone(broker: Running, topic: str) -> None:
    """Wait until the broker has lost the only consumer of a subscription: the next one may come."""
    while True:
        try:
            opened(broker, CONSUMER.format(topic)).close()
        except InvalidStatus:  # "Exclusive consumer is already connected"
            continue
        return


def test_half_messages_have_a_bound_together(broker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that exceeds it is cut off. The others go on."""
    monkeypatch.setattr(http, "MOST_INPUT", 250_000)
    text = json.dumps({"payload": b64("x" * 74_900)}).encode()
    head = b"\x81\xff" + len(text).to_bytes(8, "big") + bytes(4)
    with raw(broker, PRODUCER.format("half")) as first, raw(broker, PRODUCER.format("half")) as second:
        for client in (first, second):
            client.sendall(head + text[:90_000])
        with raw(broker, PRODUCER.format("half")) as third:
            third.sendall(head + text[:90_000])
            assert ends(third) == b""
        first.sendall(text[90_000:])
        assert b'"result":"ok"' in first.recv(1000)


def frame(opcode: int, data: bytes = b"", *, last: bool = True) -> bytes:
    """A frame of less than 126 bytes, as a client sends it."""
    return bytes([last << 7 | opcode, 0x80 | len(data)]) + bytes(4) + data


_TEXT, _PING = 1, 9


def test_a_message_in_very_many_frames_is_refused(broker: Running) -> None:
    """Each of its frames took as long as there were earlier ones, so that one client kept the server busy: 7 s after 7 MB."""
    with raw(broker, PRODUCER.format("parts")) as client:
        client.sendall(frame(_TEXT, last=False) + frame(0, last=False) * http.MOST_PARTS)
        assert ends(client) == b"\x88\x26\x03\xf1a message in more than 10,000 frames"


def test_text_that_is_none_is_no_bug(broker: Running) -> None:
    with raw(broker, PRODUCER.format("text")) as client:
        client.sendall(frame(_TEXT, b"\xff"))
        assert ends(client) == b"\x88\x02\x03\xef"


@pytest.mark.parametrize(
    "headers",
    ["X: y\r\n" * 200, f"X: {'y' * 9000}\r\n", "Content-Length: 1\r\n"],
    ids=["many", "long", "body"],
)
def test_a_request_that_the_library_refuses_is_answered(broker: Running, headers: str) -> None:
    """It had no answer, and its connection stayed for five minutes, beside all limits."""
    host, _, port = address_of(broker).partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(handshake(PRODUCER.format("refused"), f"Host: {host}:{port}\r\n{headers}"))
        assert ends(client).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))


def test_input_is_parsed_in_pieces(broker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their turn in between: 30 clients with empty messages made the server wait for 4 to 12 s."""
    sizes: list[int] = []
    receive = ServerProtocol.receive_data

    def noted(self: ServerProtocol, data: bytes) -> None:
        sizes.append(len(data))
        receive(self, data)

    monkeypatch.setattr(ServerProtocol, "receive_data", noted)
    with raw(broker, PRODUCER.format("pieces")) as client:
        client.sendall(frame(_TEXT, b"{}") * 5000 + frame(_PING, b"end") + frame(8))
        assert b"\x8a\x03end" in ends(client)
    assert sum(sizes) >= 40_000
    assert max(sizes) <= http.PIECE


def test_pings_of_a_client_that_does_not_read_wait(broker: Running) -> None:
    """A pong was written for each."""
    with raw(broker, PRODUCER.format("pings")) as client:
        client.settimeout(2)
        with pytest.raises(TimeoutError):
            client.sendall(frame(_PING, b"x" * 125) * 200_000)


def test_a_batch_is_taken_apart_as_its_messages_are_delivered(
    broker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of 100,000 empty messages and 50 consumers: the server answered nobody for 220 s, and had 2.3 GB."""
    taken = 0

    def counted(payload: bytes, messages: int) -> Iterator[Any]:
        nonlocal taken
        for each in singles(payload, messages):
            taken += 1
            yield each

    monkeypatch.setattr(consumer, "singles", counted)
    batching = "?batchingEnabled=true&batchingMaxMessages=300&batchingMaxPublishDelay=60000"
    with (
        closing(opened(broker, CONSUMER.format("apart") + "?receiverQueueSize=10")) as client,
        closing(opened(broker, PRODUCER.format("apart") + batching)) as producer,
    ):
        for _ in range(300):
            producer.send(json.dumps({"payload": ""}))
        for _ in range(300):
            producer.recv(timeout=20)
        first = [json.loads(client.recv(timeout=20))["messageId"] for _ in range(10)]
        assert taken == 10
        for id in first:
            client.send(json.dumps({"messageId": id}))
        for _ in range(10):
            client.recv(timeout=20)
        assert taken == 20


def test_messages_that_wait_have_a_bound_together() -> None:
    """The WebSocket that has waited longest is cut off."""
    with running_on(standalone, limits=Limits(held=2_000_000)) as broker:
        first = opened(broker, CONSUMER.format("first") + "?pullMode=true")
        publish(broker, "first", *["x" * 400_000] * 4)
        second = opened(broker, CONSUMER.format("second") + "?pullMode=true")
        publish(broker, "second", *["x" * 400_000] * 4)
        assert closed(first) is None
        second.send(json.dumps({"type": "permit", "permitMessages": 1}))
        assert len(payload(second.recv(timeout=20))) == 400_000
        second.close()


@pytest.mark.parametrize("text", ["context", "properties"])
def test_messages_that_wait_for_a_batch_do_not_wait_for_weeks(broker: Running, text: str) -> None:
    """Only payloads counted, so one WebSocket could have 1,000 messages with 1 MB of properties each wait."""
    long = f"batchingMaxMessages={2**31 - 1}&batchingMaxPublishDelay={2**31 - 1}"
    path = PRODUCER.format(f"long-{text}") + f"?batchingEnabled=true&{long}"
    # Answers have the context. A client that does not read them while it sends is not read, either.
    with closing(opened(broker, path, max_queue=None)) as client:
        given: Any = "x" * 500_000
        message = {"payload": "", text: {"a": given} if text == "properties" else given}
        for _ in range(20):
            client.send(json.dumps(message))
        for _ in range(15):
            assert json.loads(client.recv(timeout=20))["result"] == "ok"


def test_messages_that_are_not_stored_have_a_bound_together() -> None:
    """The WebSocket that has waited longest is cut off: the one of which a whole message came first."""
    with running_on(standalone, limits=Limits(held=1_000_000)) as broker:
        fault = FaultSpec(
            action="error", command="SEND", topic="persistent://public/default/never", times=None
        )
        broker.call(partial(broker.server.binary.faults.add, fault))
        first, second = (opened(broker, PRODUCER.format("never")) for _ in range(2))
        for client in (first, second):
            for _ in range(3):
                client.send(json.dumps({"payload": "", "properties": {"a": "x" * 250_000}}))
        ended = None
        while ended is None:
            for client in (first, second):
                try:
                    client.recv(timeout=0.05)
                except TimeoutError:
                    continue
                except ConnectionClosed as found:
                    ended = client, found.rcvd
        assert ended[1] is None  # without a close frame
        other = second if ended[0] is first else first
        with pytest.raises(TimeoutError):
            other.recv(timeout=0.05)
        publish(broker, "others", "a")
        other.close()


def test_there_is_a_most_of_connections() -> None:
    with running_on(standalone, limits=Limits(connections=1)) as broker:
        first = opened(broker, PRODUCER.format("first"))
        with pytest.raises(InvalidStatus) as refused:
            opened(broker, PRODUCER.format("second"))
        assert refused.value.response.status_code == 500
        first.close()


def latest_timer(broker: Running) -> float:
    """Seconds until the last timer of the server's loop."""
    loop: Any = broker._loop

    def latest() -> float:
        timers = [each.when() for each in loop._scheduled if not each.cancelled()]
        return max(timers, default=0.0) - float(loop.time())

    found: float = broker.call(latest)
    return found


def test_a_closed_websocket_leaves_no_timer(broker: Running) -> None:
    path = CONSUMER.format("left") + "?negativeAckRedeliveryDelay=2000000000"
    with closing(opened(broker, path)) as client:
        publish(broker, "left", "a")
        id = json.loads(client.recv(timeout=20))["messageId"]
        client.send(json.dumps({"type": "negativeAcknowledge", "messageId": id}))
        client.send(json.dumps({"type": "isEndOfTopic"}))
        client.recv(timeout=20)
        assert latest_timer(broker) > 1e6
    until_gone(broker, "left")
    assert latest_timer(broker) < 1e6


def test_messages_leave_no_timers(broker: Running) -> None:
    """Each left some, for as long as the client had asked for."""
    long = 2_000_000_000

    def timers() -> int:
        loop: Any = broker._loop

        def count() -> int:
            far = loop.time() + 1e5
            return sum(each.when() > far and not each.cancelled() for each in loop._scheduled)

        found: int = broker.call(count)
        return found

    batching = f"&batchingEnabled=true&batchingMaxMessages=2&batchingMaxPublishDelay={long}"
    with (
        closing(
            opened(broker, PRODUCER.format("timers") + f"?sendTimeoutMillis={long}{batching}")
        ) as producer,
        closing(
            opened(
                broker,
                CONSUMER.format("timers") + f"?ackTimeoutMillis={long}&negativeAckRedeliveryDelay={long}",
            )
        ) as client,
    ):
        for _ in range(20):
            for _ in range(2):
                producer.send(json.dumps({"payload": ""}))
            for how in ({}, {"type": "negativeAcknowledge"}):
                assert json.loads(producer.recv(timeout=20))["result"] == "ok"
                client.send(
                    json.dumps({"messageId": json.loads(client.recv(timeout=20))["messageId"], **how})
                )
        assert timers() <= 4


def test_a_consumer_knows_so_many_messages(broker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch that is not known any more, no message is acknowledged alone."""
    monkeypatch.setattr(consumer, "MOST_KNOWN", 1)
    path = (
        PRODUCER.format("known") + "?batchingEnabled=true&batchingMaxMessages=2&batchingMaxPublishDelay=60000"
    )
    with closing(opened(broker, path)) as client:
        for each in "abcd":
            client.send(json.dumps({"payload": b64(each)}))
        for _ in "abcd":
            client.recv(timeout=20)
    with closing(
        opened(broker, CONSUMER.format("known") + "?subscriptionInitialPosition=Earliest")
    ) as client:
        for id in [json.loads(client.recv(timeout=20))["messageId"] for _ in "abcd"]:
            client.send(json.dumps({"messageId": id}))
    with closing(opened(broker, CONSUMER.format("known"))) as client:
        assert payload(client.recv(timeout=20)) == "a"


# -- pieces


def test_a_batch_is_cut_into_its_messages() -> None:
    own: list[dict[str, Any]] = [{"partition_key": "k", "sequence_id": 1}, {"sequence_id": 2}]
    data = batch(own, [b"one", b""])
    assert [*singles(data, 2)] == [(own[0], b"one"), (own[1], b"")]
    for cut in range(len(data)):
        with pytest.raises(FrameError):
            [*singles(data[:cut], 2)]


def test_a_payload_of_pulsars_java_client_has_no_end() -> None:
    """ZLIB there flushes its stream, and does not finish it."""
    deflater = zlib.compressobj()
    data = deflater.compress(b"x" * 100) + deflater.flush(zlib.Z_SYNC_FLUSH)
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, compression="ZLIB", uncompressed_size=100)  # fmt: skip
    assert uncompressed(metadata, data) == b"x" * 100


@pytest.mark.parametrize("id", [ClientMessageId(1, 2), ClientMessageId(1, 2, 3), ClientMessageId(1, 2, -1, 4), ClientMessageId(2**64 - 1, 0, 3, 4, 70_000)])  # fmt: skip
def test_a_message_id_comes_back_as_it_was(id: ClientMessageId) -> None:
    assert ClientMessageId.of(id.encoded()) == id


@pytest.mark.parametrize("data", [b"", b"\x08\x01", b"\xff", b"xx"])
def test_bytes_that_are_no_message_id(data: bytes) -> None:
    with pytest.raises(FrameError):
        ClientMessageId.parsed(data)
