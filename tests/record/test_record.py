"""`magnetar record` in front of an embedded broker: what is recorded replays to what the broker answered."""

import asyncio
import contextlib
import http.client
import io
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from typer.testing import CliRunner

from schemas import lines
from streaming.cli.app import app
from streaming.jobs.replay import replay_in_process
from streaming.log.files import read_log
from streaming.protocol.codec import FrameReader, decode, encode, entry
from streaming.record import stored
from streaming.record.admin_proxy import AdminProxy, _Passing, _passing
from streaming.record.proxy import BadBrokerUrl, broker_address, broker_addresses
from streaming.record.record import command_log
from streaming.record.recording import COMMANDS, TRACE, Recording, RecordingExists
from streaming.record.rest import BadAdminUrl, Rest
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from streaming.server.start import STANDALONE_SETTINGS
from streaming.traces import trace
from streaming.traces.trace import TraceError, payload_of, read_trace
from streaming.traces.ungated import (
    EXISTED,
    LACKING,
    NOT_RECORDED,
    NOT_SUPPORTED,
    OLDER,
    ORDER,
    OTHER_CONSUMER,
    UNRECORDED,
)
from tests.record.kit import Proxied, proxied
from tests.server.conftest import Running, running, running_on
from tests.server.test_clock import START, YEAR, Machine

pytestmark = pytest.mark.feature("K3")

WAIT = 10_000
CONNECT = encode("CONNECT", {"client_version": "test", "protocol_version": 21})


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.fixture
def proxy(broker: Running, tmp_path: Path) -> Iterator[Proxied]:
    with proxied(tmp_path / "log", broker.service_url, str(broker.server.admin_url)) as found:
        yield found


def acknowledge(consumer: Any, count: int) -> None:
    for _ in range(count):
        consumer.acknowledge(consumer.receive(WAIT))


# ---- bodies: each gets a proxy, a client and a topic of its own


def each_type(proxy: Proxied, client: Any, topic: str) -> None:
    consumers = [
        client.subscribe(topic, f"s-{type_}".replace(".", "-"), type_, receiver_queue_size=5)
        for type_ in (
            pulsar.ConsumerType.Exclusive,
            pulsar.ConsumerType.Shared,
            pulsar.ConsumerType.Failover,
            pulsar.ConsumerType.KeyShared,
        )
    ]
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(12):
        producer.send(b"%d" % number, partition_key=str(number % 3))
    for consumer in consumers:
        acknowledge(consumer, 12)


def batches_and_nacks(proxy: Proxied, client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=50, compression_type=pulsar.CompressionType.ZLib
    )  # fmt: skip
    for number in range(30):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    consumer.negative_acknowledge(consumer.receive(WAIT))
    acknowledge(consumer, 30)


def positions(proxy: Proxied, client: Any, topic: str) -> None:
    path = "/" + topic.replace("://", "/")
    consumer = client.subscribe(topic, "s")
    # The broker has the acks before the topic is unloaded, and keeps the messages to which the consumer goes back.
    retention = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10}
    assert proxy.call("POST", f"{path}/retention", retention)[0] == 204
    producer = client.create_producer(topic, batching_enabled=False)
    sent = [producer.send(b"%d" % number) for number in range(8)]
    acknowledge(consumer, 8)
    while json.loads(proxy.call("GET", f"{path}/stats")[1])["subscriptions"]["s"]["msgBacklog"]:
        time.sleep(0.01)
    assert proxy.call("PUT", f"{path}/unload")[0] == 204
    producer.send(b"after")
    acknowledge(consumer, 1)
    consumer.seek(sent[5])
    assert consumer.receive(WAIT).data() == b"6"
    assert proxy.call("GET", f"{path}/subscriptions")[1] == b'["s"]'
    assert proxy.call("POST", f"{path}/subscription/s/skip/1")[0] == 204
    assert proxy.call("GET", f"{path}/subscription/s/position/1")[0] == 200
    assert proxy.call("DELETE", f"{path}/subscription/none")[0] == 404
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    while reader.has_message_available():
        reader.read_next(WAIT)


def partitions(proxy: Proxied, client: Any, topic: str) -> None:
    path = "/" + topic.replace("://", "/")
    assert proxy.call("PUT", f"{path}/partitions", 3)[0] == 204
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=False, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )  # fmt: skip
    for number in range(9):
        producer.send(b"%d" % number)
    acknowledge(consumer, 9)
    assert proxy.call("POST", f"{path}/subscription/s/skip_all")[0] == 204


def errors_and_deduplication(proxy: Proxied, client: Any, topic: str) -> None:
    path = "/" + topic.replace("://", "/")
    consumer = client.subscribe(topic, "s")
    assert proxy.call("POST", f"{path}/deduplicationEnabled", True)[0] == 204
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="p")
    for number in (0, 1, 1, 0, 2):
        producer.send(b"%d" % number, sequence_id=number)
    acknowledge(consumer, 3)
    assert proxy.call("POST", f"{path}/terminate")[0] == 200
    with pytest.raises((pulsar.TopicTerminated, pulsar.AlreadyClosed)):
        producer.send(b"late", sequence_id=9)
    # The client closes the producer of a terminated topic by itself. Closing it meanwhile is an error in this client.
    with contextlib.suppress(pulsar.AlreadyClosed):
        producer.close()


def non_persistent(proxy: Proxied, client: Any, topic: str) -> None:
    topic = topic.replace("persistent", "non-persistent", 1)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(5):
        producer.send(b"%d" % number)
        consumer.receive(WAIT)
    time.sleep(1.1)  # what a consumer gets that is about to be closed, may be a race


def typed(proxy: Proxied, client: Any, topic: str) -> None:
    class Order(pulsar.schema.Record):  # type: ignore[misc]
        id = pulsar.schema.Integer()

    schema = pulsar.schema.JsonSchema(Order)
    consumer = client.subscribe(topic, "s", schema=schema)
    producer = client.create_producer(topic, schema=schema)
    producer.send(Order(id=7))
    assert consumer.receive(WAIT).value().id == 7


BODIES = [
    each_type, batches_and_nacks, positions, partitions, errors_and_deduplication, non_persistent, typed,
]  # fmt: skip


# Without payloads: a body with messages, and one that reads them by admin calls.
CASES = [("keep", body) for body in BODIES] + [
    (payloads, body) for payloads in ("hash", "drop") for body in (each_type, positions)
]


@pytest.mark.parametrize(
    ("payloads", "body"), CASES, ids=[f"{body.__name__}-{payloads}" for payloads, body in CASES]
)
def test_a_recording_replays_to_the_answers_of_the_broker(
    body: Callable[..., None], payloads: Any, broker: Running, tmp_path: Path
) -> None:
    topic = f"persistent://public/default/{body.__name__}-{payloads}"
    with (
        proxied(tmp_path / "log", broker.service_url, str(broker.server.admin_url), payloads) as proxy,
        proxy.client() as client,
    ):
        body(proxy, client, topic)
    imported, verdict = command_log(proxy.folder / TRACE)
    assert verdict.differences == []
    assert verdict.frames > 10
    if payloads == "hash":
        assert b"payload_sha256" in (proxy.folder / TRACE).read_bytes()
    replayed = replay_in_process(proxy.folder / COMMANDS, tmp_path / "replayed", batches=3)
    assert replayed.records == sum(imported.commands.values())
    answered = Counter(each["cmd"] for each in proxy.trace.records if each["dir"] == "out")
    for kind in ("SEND_RECEIPT", "MESSAGE", "PRODUCER_SUCCESS"):
        assert replayed.rows.get(kind, 0) == answered[kind], kind


def test_what_serve_has_from_its_start_is_there_in_the_replay(tmp_path: Path) -> None:
    """Its namespaces were created before the recording began, so the log does not demand that they were created."""

    def engine() -> EmbeddedEngine:
        return EmbeddedEngine(begins_with=STANDALONE, settings=STANDALONE_SETTINGS)

    with (
        running_on(engine) as standalone,
        proxied(tmp_path / "log", standalone.service_url, str(standalone.server.admin_url)) as proxy,
        proxy.client() as client,
    ):
        each_type(proxy, client, "persistent://public/default/t")
        namespace = "/namespaces/public/later"
        assert proxy.call("PUT", namespace)[0] == 204
        each_type(proxy, client, "persistent://public/later/t")
    _, verdict = command_log(proxy.folder / TRACE)
    assert verdict.differences == []
    replayed = replay_in_process(proxy.folder / COMMANDS, tmp_path / "replayed")
    assert (replayed.rows["SEND_RECEIPT"], replayed.rows["MESSAGE"]) == (24, 96)


PATH = "/persistent/shop/day/t"
SUBSCRIPTION = f"{PATH}/subscription/s"
TO_EXISTING: list[tuple[str, str, Any]] = [
    ("PUT", PATH, None), ("PUT", SUBSCRIPTION, None), ("POST", f"{SUBSCRIPTION}/skip_all", None),
    ("GET", f"{PATH}/stats", None), ("DELETE", SUBSCRIPTION, None), ("DELETE", PATH, None),
]  # fmt: skip


@pytest.mark.parametrize("first", range(len(TO_EXISTING)))
def test_calls_on_what_was_there_before(first: int, tmp_path: Path) -> None:
    """Tenants, namespaces and partitioned topics are in the log. A topic and a subscription are not: that is why it differs."""

    def engine() -> EmbeddedEngine:
        return EmbeddedEngine(begins_with=STANDALONE, settings=STANDALONE_SETTINGS)

    with running_on(engine) as broker:
        api = Rest(str(broker.server.admin_url))
        tenant = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
        assert api.call("PUT", "/tenants/shop", tenant).status == 204
        assert api.call("PUT", "/namespaces/shop/day", {"message_ttl_in_seconds": 60}).status == 204
        assert api.call("PUT", "/persistent/shop/day/whole/partitions", 2).status == 204
        for path in (PATH, SUBSCRIPTION):
            assert api.call("PUT", path).status == 204
        with proxied(tmp_path / "log", broker.service_url, str(broker.server.admin_url)) as proxy:
            for status, method, path, body in (
                (409, "PUT", "/tenants/shop", tenant),
                (200, "GET", "/tenants/shop", None),
                (200, "GET", "/tenants", None),
                (409, "PUT", "/namespaces/shop/day", {"message_ttl_in_seconds": 5}),
                (200, "GET", "/namespaces/shop/day/messageTTL", None),
                (409, "PUT", "/persistent/shop/day/whole/partitions", 2),
            ):
                assert proxy.call(method, path, body)[0] == status
            for method, path, body in TO_EXISTING[first:]:
                assert proxy.call(method, path, body)[0] in (200, 204, 409)
    _, verdict = command_log(proxy.folder / TRACE)
    assert (verdict.differences, {*verdict.explained}) == ([], {EXISTED})


def test_what_the_recording_created_was_not_there_before(tmp_path: Path) -> None:
    """Answers that differ then are differences, in words."""
    with Recording(tmp_path, {}, "keep") as recording:
        for method, path, status, answer in (
            ("PUT", PATH, 204, {}),
            ("PUT", SUBSCRIPTION, 204, {}),
            ("DELETE", SUBSCRIPTION, 204, {}),
            ("PUT", SUBSCRIPTION, 409, {"response": {"reason": "Subscription already exists for topic"}}),
            ("DELETE", SUBSCRIPTION, 204, {}),
            ("DELETE", SUBSCRIPTION, 204, {}),
        ):
            recording.answer(recording.call(method, path, None), status, **answer)
    _, verdict = command_log(tmp_path / TRACE)
    assert verdict.explained == {}
    missing = "Subscription s not found for topic persistent://shop/day/t"
    assert [text for _, text in verdict.differences] == [
        f"PUT {SUBSCRIPTION}: recorded status 409 (Subscription already exists for topic), ours status 204",
        f"DELETE {SUBSCRIPTION}: recorded status 204, ours status 404 ({missing})",
    ]


def test_another_answer_of_the_broker_is_shown(proxy: Proxied) -> None:
    """A consumer that was not given a message, a receipt with another position, and another error are differences."""
    topic = "persistent://public/default/lies"
    with proxy.client() as client:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(5):
            producer.send(b"%d" % number)
        acknowledge(consumer, 5)
        time.sleep(1.2)  # else it may be that the connection was being closed
    written = (proxy.folder / TRACE).read_text().splitlines(keepends=True)
    lines = [line for line in written if line.endswith("\n")]
    path = proxy.folder / "changed.jsonl"  # the proxy may still write to its own

    def changed(cmd: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> list[str]:
        found, done = [], False
        for line in lines:
            value = json.loads(line)
            if value.get("cmd") == cmd and value["dir"] == "out" and not done:
                done, value = True, change(value)
            found += [json.dumps(value) + "\n"] if value is not None else []
        path.write_text("".join(found))
        return [text for _, text in command_log(path)[1].differences]

    def moved(value: dict[str, Any]) -> dict[str, Any]:
        value["fields"]["message_id"]["entryId"] += 7
        return value

    def refused(value: dict[str, Any]) -> dict[str, Any]:
        fields = {"request_id": value["fields"]["request_id"], "error": "ProducerBusy", "message": ""}
        return {**value, "cmd": "ERROR", "fields": fields}

    assert any("entryId" in text for text in changed("SEND_RECEIPT", moved))
    assert any("recorded has none" in text for text in changed("MESSAGE", lambda _: None))
    assert any("ERROR" in text for text in changed("PRODUCER_SUCCESS", refused))
    path.write_text("".join(lines))
    assert command_log(path)[1].differences == []


# ---- the proxy


def test_clients_stay_on_the_proxy(proxy: Proxied, broker: Running) -> None:
    with proxy.client() as client:
        client.create_producer("stay").send(b"x")
    assert len(proxy.frames("out", "PRODUCER_SUCCESS")) == len(proxy.frames("out", "SEND_RECEIPT")) == 1
    status, body = proxy.call("GET", "/lookup/v2/topic/persistent/public/default/stay")
    found = json.loads(body)
    assert (status, found["httpUrl"]) == (200, proxy.admin_url)
    assert str(broker.server.address.port) not in found["brokerUrl"]
    with socket.create_connection(broker_address(found["brokerUrl"])):
        pass


class Scripted:
    """A broker that answers each command as it is told to, on a port of its own."""

    def __init__(
        self, answers: Callable[[Any], list[bytes]], tls: ssl.SSLContext | None = None, port: int = 0
    ) -> None:
        self._listener, scheme = socket.create_server(("127.0.0.1", port)), "pulsar"
        if tls is not None:
            self._listener, scheme = tls.wrap_socket(self._listener, server_side=True), "pulsar+ssl"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.got: list[str] = []
        self._answers = answers
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        frames = FrameReader(1 << 30)
        with client, contextlib.suppress(ConnectionError):
            while data := client.recv(1 << 16):
                for each in frames.feed(data):
                    frame = decode(each)
                    self.got.append(frame.cmd)
                    for answer in self._answers(frame):
                        client.sendall(answer)

    def close(self) -> None:
        self._listener.close()


def connected(frame: Any) -> list[bytes]:
    return [encode("CONNECTED", {"server_version": "x"})] if frame.cmd == "CONNECT" else []


def exchange(url: str, *data: bytes, until: str) -> list[Any]:
    """Send `data` on a new connection, and read frames until one is `until`."""
    with socket.create_connection(broker_address(url), timeout=10) as connection:
        connection.sendall(b"".join(data))
        frames, found = FrameReader(), list[Any]()
        while not found or found[-1].cmd != until:
            received = connection.recv(1 << 16)
            assert received, found
            found += [decode(each) for each in frames.feed(received)]
        return found


def test_each_broker_of_a_cluster_has_a_listener(tmp_path: Path) -> None:
    owner = Scripted(connected)

    def answers(frame: Any) -> list[bytes]:
        if frame.cmd != "LOOKUP":
            return connected(frame)
        fields = {
            "request_id": frame.fields["request_id"], "response": "Redirect", "brokerServiceUrl": owner.url,
            "brokerServiceUrlTls": "pulsar+ssl://127.0.0.1:1", "authoritative": True,
            "proxy_through_service_url": frame.fields["topic"].endswith("proxied"),
        }  # fmt: skip
        return [encode("LOOKUP_RESPONSE", fields)]

    first = Scripted(answers)
    with proxied(tmp_path / "log", first.url, "http://127.0.0.1:1") as proxy:
        assert any("settings" in each for each in proxy.missing)

        def lookup(topic: str) -> Any:
            asked = encode("LOOKUP", {"topic": topic, "request_id": 1})
            return exchange(proxy.service_url, CONNECT, asked, until="LOOKUP_RESPONSE")[-1].fields

        direct, again, through = lookup("t"), lookup("t"), lookup("proxied")
        assert direct["brokerServiceUrl"] == again["brokerServiceUrl"] != owner.url
        assert "brokerServiceUrlTls" not in direct
        assert (
            through["brokerServiceUrl"] == owner.url
        )  # the client names it to Pulsar's proxy, through this one
        exchange(direct["brokerServiceUrl"], CONNECT, until="CONNECTED")
    assert owner.got == ["CONNECT"]
    first.close()
    owner.close()


def test_what_is_not_a_frame_passes_and_the_broker_closes(proxy: Proxied) -> None:
    for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x05\0\0\0\x01\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0"):
        with socket.create_connection(broker_address(proxy.service_url), timeout=10) as connection:
            connection.sendall(CONNECT + junk + CONNECT)
            while connection.recv(1 << 16):
                pass
    exchange(proxy.service_url, CONNECT, encode("PING", {}), until="PONG")
    notes = [each for each in proxy.trace.records if each.get("event") == "unreadable"]
    assert [note["of"] for note in notes] == ["in"] * 4
    assert "unreadable" not in str(command_log(proxy.folder / TRACE)[1].differences)


def test_secrets_are_not_recorded(proxy: Proxied) -> None:
    secret = encode("CONNECT", {"client_version": "t", "protocol_version": 21, "auth_method_name": "token",
                                "auth_data": b"secret", "original_auth_data": "secret"})  # fmt: skip
    exchange(proxy.service_url, secret, until="CONNECTED")
    assert b"c2VjcmV0" not in (proxy.folder / TRACE).read_bytes()
    assert b"secret" not in (proxy.folder / TRACE).read_bytes()


def test_a_side_that_does_not_read_holds_up_the_other(tmp_path: Path) -> None:
    """100 MB are due to a client that reads nothing: the broker can't send them, so the proxy does not hold them."""
    sent = 0
    frame = encode("MESSAGE", {"consumer_id": 1, "message_id": {"ledgerId": 1, "entryId": 1}},
                   entry({"producer_name": "p", "sequence_id": 1, "publish_time": 1}, bytes(1 << 20)))  # fmt: skip

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        for _ in range(100):
            writer.write(frame)
            await writer.drain()
            sent += 1

    def serve() -> None:
        asyncio.run(main())

    port: list[int] = []
    ready, end = threading.Event(), threading.Event()

    async def main() -> None:
        server = await asyncio.start_server(broker, "127.0.0.1", 0)
        port.append(server.sockets[0].getsockname()[1])
        ready.set()
        await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=serve)
    thread.start()
    ready.wait()
    with proxied(tmp_path / "log", f"pulsar://127.0.0.1:{port[0]}", "http://127.0.0.1:1") as proxy:
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        lazy.connect(broker_address(proxy.service_url))
        before = -1
        while before != sent or not sent:
            before = sent
            time.sleep(0.5)
        assert sent < 50
        assert len(proxy.frames("out", "MESSAGE")) < 50
        lazy.close()
    end.set()
    thread.join()


def test_a_recording_survives_kill_9(broker: Running, tmp_path: Path) -> None:
    code = "from streaming.cli.app import app; app()"
    options = ["--to", broker.service_url, "--admin-to", str(broker.server.admin_url),
               "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]  # fmt: skip
    recorder = subprocess.Popen(
        [sys.executable, "-c", code, "record", str(tmp_path / "log"), *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert recorder.stderr is not None
    said = ""
    while "recording" not in said:
        said = recorder.stderr.readline()
        assert said
    url = said.split()[2]
    asked = encode("PRODUCER", {"topic": "killed", "producer_id": 1, "request_id": 1, "producer_name": "p"})
    exchange(url, CONNECT, asked, until="PRODUCER_SUCCESS")
    os.kill(recorder.pid, signal.SIGKILL)
    recorder.communicate()
    path = tmp_path / "log" / TRACE
    with path.open("ab") as file:
        file.write(b'{"t": 1, "dir": "in", "co')
    assert [each["cmd"] for each in read_trace(path).records if each["dir"] == "out"][-1:] == [
        "PRODUCER_SUCCESS"
    ]
    imported, verdict = command_log(path)
    assert imported.commands["PRODUCER"] == 1
    assert verdict.differences == []


def test_a_recording_may_be_cut_off_anywhere_in_its_last_line(tmp_path: Path) -> None:
    """In the middle of a character, too."""
    path = tmp_path / "t.jsonl"
    header = b'{"format": 1, "gated": false, "broker_config": {}}\n'
    last = '{"t": 1, "dir": "note", "text": "é €"}'.encode()
    for end in range(len(last)):
        path.write_bytes(header + last[:end])
        assert read_trace(path).records == []
    path.write_bytes(header + last)
    assert [each["text"] for each in read_trace(path).records] == ["é €"]


@pytest.mark.parametrize("gated", [b"false", b"true"])
def test_a_line_that_is_not_utf_8_is_named(gated: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    header = b'{"format": 1, "gated": ' + gated + b', "broker_config": {}}\n'
    path.write_bytes(header + b'{"t": 1, "dir": "note", "text": "\xff"}\n{"t": 1, "dir": "note"}\n')
    with pytest.raises(TraceError, match="t.jsonl:2: not JSON: .*utf-8"):
        read_trace(path)
    path.write_bytes(header + b'{"t": 1, "dir": "note"}\n{"t": 1, "dir": "note", "text": "\xff"}\n')
    with pytest.raises(TraceError, match="t.jsonl:3: not JSON: .*utf-8"):
        read_trace(path)


def test_a_line_that_is_cut_off_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"format": 1, "gated": false, "broker_config": {}}\n{"t": 1, "dir": "no\n{"t": 1, "dir": "note"}\n'
    )
    with pytest.raises(TraceError, match="t.jsonl:2: not JSON"):
        read_trace(path)


def test_the_times_of_a_recording_go_on_whatever_the_machines_clock_does(tmp_path: Path) -> None:
    machine = Machine()
    with Recording(tmp_path, {}, "keep", machine.clock()) as recording:
        for off in (0, YEAR, 0, -YEAR, 0):
            machine.off = off
            recording.note(dir="note")
            machine.passes(60_000)
    times = [json.loads(line)["t"] - START for line in (tmp_path / TRACE).read_text().splitlines()[1:]]
    assert times == [0, 60_000, 120_000, 150_000, 240_000]


def test_a_recording_is_not_overwritten(tmp_path: Path) -> None:
    with Recording(tmp_path, {}, "keep"):
        pass
    with pytest.raises(RecordingExists, match="choose another folder"), Recording(tmp_path, {}, "keep"):
        pass


def test_a_full_disk_ends_the_recording(tmp_path: Path) -> None:
    with Recording(tmp_path, {}, "keep") as recording:
        whole = recording._file
        with Path("/dev/full").open("wb", buffering=0) as recording._file:
            recording.note(dir="note")
            assert recording.failed is not None
            assert recording.failed.filename == str(recording.path)
            recording.note(dir="note")
        recording._file = whole


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6650", "localhost", "pulsar://", "pulsar://h:", "pulsar://h:x", "pulsar://h/x", "pulsar://::1", "pulsar://:1", "pulsar://h:0", "pulsar://h:65536", "pulsar://h:1,", "pulsar://h:1,i:0",
        "pulsar://h:1,pulsar://i:1",
    ],
)  # fmt: skip
def test_urls_that_are_not_a_brokers(url: str) -> None:
    with pytest.raises(BadBrokerUrl):
        broker_address(url)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8080", "http://", "http://h:0", "http://h:99999", "http://h/admin", "http://[::1", "ftp://h", "http://h:1,", "http://h:1,i:0",
        "http://h:1,i/admin", "http://h:1,http://i:1",
    ],
)  # fmt: skip
def test_urls_that_are_not_an_admin_apis(url: str) -> None:
    with pytest.raises(BadAdminUrl):
        Rest(url)


def test_urls_that_are(tmp_path: Path) -> None:
    assert str(broker_address("pulsar://[::1]:6650/")) == "[::1]:6650"
    assert str(broker_address("pulsar+ssl://h:6652")) == "h:6652"
    ports = {"pulsar://h": "h:6650", "pulsar+ssl://h": "h:6651", "pulsar://[::1]/": "[::1]:6650"}
    assert {url: str(broker_address(url)) for url in ports} == ports
    several = {"pulsar+ssl://a:1": "a:1", "pulsar+ssl://[::1]:2": "[::1]:2"}
    assert {url: str(at) for url, at in broker_addresses("pulsar+ssl://a:1,[::1]:2/").items()} == several
    for url in ("http://h", "https://h:1/", "http://a:1,[::1]:2,c"):
        assert Rest(url).url == url.rstrip("/")


def test_an_admin_api_that_is_away_is_a_bad_gateway(broker: Running, tmp_path: Path) -> None:
    with proxied(tmp_path / "log", broker.service_url, "http://127.0.0.1:1") as proxy:
        status, body = proxy.call("GET", "/clusters")
        assert (status, "can't be reached" in json.loads(body)["reason"]) == (502, True)
        assert proxy.call("PUT", "/tenants/t", {})[0] == 502
    (call,) = [each for each in proxy.trace.records if each["dir"] == "admin"]
    assert "status" not in call  # nobody answered


@pytest.mark.parametrize(
    "path", ["/admin/v2/tenants", "/admin/v2/nowhere", "/lookup/v2/topic/persistent/public/default/t"]
)
def test_an_answer_has_each_header_once(path: str, proxy: Proxied) -> None:
    """The server adds some to those of the broker."""
    connection = http.client.HTTPConnection(proxy.admin_url.partition("://")[2], timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path)
        names = [name.lower() for name, _ in connection.getresponse().getheaders()]
    assert "date" in names
    assert len(names) == len({*names})


def test_payloads_are_not_in_a_recording_without_them(broker: Running, tmp_path: Path) -> None:
    with (
        proxied(tmp_path / "log", broker.service_url, str(broker.server.admin_url), "drop") as proxy,
        proxy.client() as client,
    ):
        consumer = client.subscribe("dropped", "s")
        client.create_producer("dropped").send(b"precious")
        assert consumer.receive(WAIT).data() == b"precious"
        path = "/persistent/public/default/dropped/subscription/s/position/1"
        assert proxy.call("GET", path)[1] == b"precious"
    text = (proxy.folder / TRACE).read_bytes()
    assert b"precious" not in text
    assert b"cHJlY2lvdX" not in text
    (message,) = proxy.frames("out", "MESSAGE")
    assert payload_of(message) == bytes(8)


def test_no_passwords_are_in_a_recording(broker: Running, tmp_path: Path) -> None:
    """Offload policies may have some. Names that look like calls on them are names."""
    policies = {
        "managedLedgerOffloadDriver": "aws-s3", "managedLedgerOffloadBucket": "b",
        "s3ManagedLedgerOffloadCredentialSecret": "PASSWORD",
    }  # fmt: skip
    namespace, topic = "/namespaces/public/offloaded", "/persistent/public/offloaded/offloadPolicies"
    body = {"offload_policies": policies, "message_ttl_in_seconds": 77}
    with proxied(tmp_path / "log", broker.service_url, str(broker.server.admin_url)) as proxy:
        assert proxy.call("PUT", namespace, body)[0] == 204
        assert proxy.call("PUT", topic)[0] == 204
        assert b"PASSWORD" in proxy.call("GET", namespace)[1]
        for path in (namespace, topic):
            for name in ("offloadPolicies", "offload%50olicies", "offloadPolicies/?x"):
                status, _ = proxy.call("POST", f"{path}/{name}", policies)
                assert status == 204 or name != "offloadPolicies"
            assert b"PASSWORD" in proxy.call("GET", f"{path}/offloadPolicies?applied=true")[1]
        assert proxy.call("GET", f"{topic}/messageTTL?applied=true")[1] == b"77"
    trace = proxy.trace.records
    _, verdict = command_log(proxy.folder / TRACE)
    assert (verdict.differences, verdict.explained) == ([], {})
    for name in (TRACE, COMMANDS):
        assert b"PASSWORD" not in (proxy.folder / name).read_bytes()
    calls = [
        (each["method"], each["path"])
        for each in trace
        if each.get("path", "").startswith((namespace, topic))
    ]
    assert calls == [
        ("PUT", namespace),
        ("PUT", topic),
        ("GET", namespace),
        ("GET", f"{topic}/messageTTL?applied=true"),
    ]


def test_what_can_not_be_recorded_is_counted(broker: Running, tmp_path: Path) -> None:
    """Messages through REST, and calls of Pulsar 1. What follows is explained, and an ack names the same message in the log."""
    topic, messages = (
        "persistent://public/default/through-rest",
        {"messages": [{"payload": "x"}, {"payload": "y"}]},
    )
    with (
        proxied(tmp_path / "log", broker.service_url, str(broker.server.admin_url)) as proxy,
        proxy.client() as client,
    ):
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=False)
        producer.send(b"0")
        rest = "/topics/" + topic.replace("://", "/")
        assert proxy.call("POST", rest, messages)[0] == 200
        assert proxy.call("POST", f"{rest}-none", messages)[0] == 500
        assert proxy.call("POST", f"{rest}/partitions/5", {"messages": []})[0] == 200
        producer.send(b"1")
        acknowledge(consumer, 3)
        assert consumer.receive(WAIT).data() == b"1"  # which stays in the backlog
        assert proxy.call("PUT", "/admin/properties/old", {"allowedClusters": ["standalone"]})[0] == 204
        assert proxy.call("GET", "/admin/properties/old")[0] == 200
        assert proxy.call("PUT", "/admin/properties/old")[0] >= 400
        consumer.close()
    _, verdict = command_log(proxy.folder / TRACE)
    assert verdict.differences == []
    assert verdict.explained == {NOT_RECORDED["rest"]: 2, NOT_RECORDED["v1"]: 1, LACKING: 3}
    stats = replay_in_process(proxy.folder / COMMANDS, tmp_path / "replayed").stats
    (found,) = (each for each in stats if (each["topic"], each["subscription"]) == (topic, "s"))
    assert (found["backlog"], found["mark_delete"]) == (1, "1:0")
    imported = ["import", str(proxy.folder / TRACE), "--out", str(tmp_path / "imported.jsonl")]
    assert f"2 times: {NOT_RECORDED['rest']}" in CliRunner().invoke(app, imported).output


@pytest.mark.parametrize(
    ("method", "target", "passing"),
    [
        ("POST", "/topics/persistent/a/b/c?authoritative=true", ("rest", "persistent://a/b/c")),
        ("POST", "/topics/non-persistent/a/b/c%2Fd/partitions/3", ("rest", "non-persistent://a/b/c/d")),
        ("PUT", "/admin/persistent/a/c/b/t%20u/subscription/s", ("v1", "persistent://a/c/b/t u")),
        ("POST", "//admin/namespaces/a/c/b/retention", ("v1", None)),
        ("DELETE", "/admin/properties/a", ("v1", None)),
        ("GET", "/admin/persistent/a/c/b/t/stats", None),
        ("POST", "/admin/v2/persistent/a/b/t/terminate", None),
        ("POST", "/admin/v3/functions/a/b/f", None),
        ("PUT", "/admin/clusters/c", None),
        ("POST", "/topics", None),
        ("POST", "/", None),
    ],
)
def test_which_calls_pass_without_being_recorded(method: str, target: str, passing: Any) -> None:
    assert _passing(method, target, 5) == (passing and (*passing, 5))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("status", "body", "count"),
    [
        (200, b'{"messagePublishResults":[{"errorCode":0},{},{"errorCode":2}],"schemaVersion":0}', 2),
        (200, b'{"messagePublishResults":[{"errorCode":2}]}', 0),
        (200, b"{}", 1),
        (500, b"{}", 0),
    ],
)
def test_messages_are_counted_if_the_broker_stored_them(
    status: int, body: bytes, count: int, whole: bool, tmp_path: Path
) -> None:
    """Whether or not the client waits for the end of the answer."""

    class Answer(io.BytesIO):
        pass

    answer: Any = Answer(body)
    answer.status, answer.chunked, answer.length = status, False, None

    async def read(api: AdminProxy) -> None:
        chunks: Any = api._body(answer, None, _Passing("rest", "persistent://a/b/c", 7))
        async for chunk in chunks:
            assert chunk == body
            if not whole:
                break
        await chunks.aclose()

    with Recording(tmp_path, {}, "keep") as recording:
        api = AdminProxy(recording, Rest("http://localhost:1"), Any, "")  # type: ignore[arg-type]
        asyncio.run(read(api))
        api.close()
    notes = read_trace(tmp_path / TRACE).records
    assert [(each["topic"], each["since"], each["count"]) for each in notes] == [
        ("persistent://a/b/c", 7, count)
    ] * (count > 0)


@pytest.mark.parametrize(
    "odd",
    [{}, {"what": []}, {"what": "x", "topic": 5}, {"what": "v1", "topic": "t", "since": "x", "count": "y"}],
)
def test_an_odd_note_of_what_is_not_recorded(odd: dict[str, Any], tmp_path: Path) -> None:
    path = traced(
        tmp_path, (-1, "note", "", {"event": UNRECORDED, **odd}), *opened(0), sent(0), receipt(0, 0)
    )
    assert command_log(path)[1].differences == []


# ---- what is written is read


@pytest.mark.parametrize("depth", range(98, 103))
def test_a_trace_is_readable_however_deep_a_value_is(depth: int, tmp_path: Path) -> None:
    """A body or an answer that would nest too deep in its line is left out."""
    value = json.loads("[" * depth + "]" * depth)
    with Recording(tmp_path, {}, "keep") as recording:
        call = recording.call("POST", "/persistent/a/b/c/x", value)
        recording.answer(call, 200, response=value, headers={"x": "y"})
    (found,) = read_trace(tmp_path / TRACE).records
    assert (found["status"], found["headers"]) == (200, {"x": "y"})
    assert ("body" in found, "response" in found) == ((True, True) if depth < 100 else (False, False))


def limit_lines(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Lines may have so many bytes, and no more."""
    for module in (lines, stored, trace):
        monkeypatch.setattr(module, "LONGEST_LINE", size)


def test_a_trace_is_readable_however_large_a_message_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_lines(monkeypatch, 2000)
    frames = {}
    for size in range(1000, 1600):
        metadata = {"producer_name": "p", "sequence_id": size, "publish_time": 1}
        send = encode(
            "SEND", {"producer_id": 1, "sequence_id": size}, entry(metadata, random.randbytes(size))
        )
        frames[size] = decode(send[4:])
    with Recording(tmp_path, {}, "keep") as recording:
        for connection, direction, cmd, fields in opened(0):
            recording.frame(connection, direction, decode(encode(cmd, fields)[4:]))
        for frame in frames.values():
            recording.frame(0, "in", frame)
    found = read_trace(tmp_path / TRACE).records[2:]
    sent = [each["fields"]["sequence_id"] for each in found if each["dir"] == "in"]
    assert len(found) == len(frames)
    assert sent == [*range(1000, 1000 + len(sent))]
    longest = max(map(len, (tmp_path / TRACE).read_bytes().splitlines(keepends=True)))
    assert 2000 - 4 < longest <= 2000
    for each in found[len(sent) :]:
        assert (each["what"], each["topic"], each["count"]) == ("large", "persistent://public/default/t", 1)


@pytest.mark.parametrize("payloads", ["keep", "hash"])
def test_a_message_that_no_line_has_room_for(
    payloads: Any, broker: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes, and the end of the recording says so. With its hash alone it is in the trace, and not in the log."""
    limit_lines(monkeypatch, 20_000)
    topic = f"persistent://public/default/large-{payloads}"
    with (
        proxied(tmp_path / "log", broker.service_url, str(broker.server.admin_url), payloads) as proxy,
        proxy.client() as client,
    ):
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=False)
        for size in (10, 15_000, 20):
            producer.send(random.randbytes(size))
        acknowledge(consumer, 3)
        consumer.close()
    imported, verdict = command_log(proxy.folder / TRACE)
    assert verdict.differences == []
    assert imported.lacking[NOT_RECORDED["large"]] == (2 if payloads == "keep" else 1)
    assert imported.commands["SEND"] == 2
    read_log(proxy.folder / COMMANDS)


# ---- answers of the admin API that are not whole, or odd


@contextlib.contextmanager
def answering_bytes(answers: dict[str, bytes]) -> Iterator[str]:
    """The URL of an admin API that sends such bytes to calls with such an end of their path, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    path = connection.recv(1 << 16).split(b" ")[1].decode()
                    connection.sendall(
                        next((answers[each] for each in answers if path.endswith(each)), whole(b"{}"))
                    )

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def whole(body: bytes, head: bytes = b"200 OK", length: int | None = None) -> bytes:
    """An answer. `length`: what it announces, if that is another one."""
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (
        head,
        len(body) if length is None else length,
        body,
    )


LARGE = b"x" * (1 << 20)
CUT_OFF = {
    "/length": whole(b"0123456789", length=100),
    "/chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n9\r\nab",
    "/chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n",
    "/large": whole(LARGE, length=len(LARGE) + 1),
    "/large-chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n"
    % (len(LARGE), LARGE),
}


def test_an_answer_that_is_cut_off_is_none(
    broker: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A client sees that it is, and the recording has no answer."""
    with (
        answering_bytes(CUT_OFF) as url,
        proxied(tmp_path / "log", broker.service_url, url) as proxy,
    ):
        for path in CUT_OFF:
            if "large" in path:
                with pytest.raises(http.client.IncompleteRead):
                    proxy.call("GET", f"/persistent/a/b/t{path}")
                continue
            status, body = proxy.call("GET", f"/persistent/a/b/t{path}")
            assert (status, "cut off" in json.loads(body)["reason"]) == (502, True)
        assert proxy.call("GET", "/persistent/a/b/t/whole") == (200, b"{}")
    calls = {each["path"].rpartition("/")[2]: each for each in proxy.trace.records if each["dir"] == "admin"}
    assert {name for name, each in calls.items() if "status" in each} == {"whole"}
    assert "Traceback" not in caplog.text
    assert not [each for each in caplog.records if each.exc_info]


ODD_ANSWERS = {
    "/scheme": whole(b"", b"307 Temporary Redirect\r\nLocation: http://[bad/x"),
    "/port": whole(b"", b"307 Temporary Redirect\r\nLocation: http://127.0.0.1:99999/x"),
    "/url": whole(b'{"brokerUrl":"pulsar://a:b:c","nativeUrl":"pulsar://x"}'),
    "/http": whole(b'{"brokerUrl":"http://foo"}'),
    "/number": whole(b'{"brokerUrl":5}'),
    "/list": whole(b'{"brokerUrl":[]}'),
    "/cut": whole(b"{}", length=100),
}


def test_an_odd_answer_is_a_bad_gateway(
    broker: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        answering_bytes(ODD_ANSWERS) as url,
        proxied(tmp_path / "log", broker.service_url, url) as proxy,
    ):
        for path in ODD_ANSWERS:
            root = "" if path in ("/scheme", "/port") else "/lookup/v2/topic"
            status, body = proxy.call("GET", f"{root}/persistent/a/b{path}")
            assert (status, json.loads(body)["reason"].startswith("GET ")) == (502, True), path
    assert not [each for each in caplog.records if each.exc_info]


def test_an_answer_that_is_too_deep_is_recorded_without_its_value(broker: Running, tmp_path: Path) -> None:
    depths = (90, 99, 100, 101, 900)
    answers = {f"/{depth}": whole(b"[" * depth + b"]" * depth) for depth in depths}
    with answering_bytes(answers) as url, proxied(tmp_path / "log", broker.service_url, url) as proxy:
        for depth in depths:
            assert len(proxy.call("GET", f"/persistent/a/b/{depth}")[1]) == 2 * depth
    calls = [each for each in proxy.trace.records if each["dir"] == "admin"]
    assert [each["status"] for each in calls] == [200] * len(depths)
    assert ["response" in each for each in calls] == [True, True, False, False, False]


@pytest.mark.parametrize("url", ["pulsar://a:b:c", "http://foo", "pulsar+ssl://", "x"])
def test_a_lookup_that_names_no_broker_goes_on_as_it_came(url: str, tmp_path: Path) -> None:
    def answers(frame: Any) -> list[bytes]:
        if frame.cmd != "LOOKUP":
            return connected(frame)
        fields = {"request_id": frame.fields["request_id"], "response": "Connect", "brokerServiceUrl": url}
        return [encode("LOOKUP_RESPONSE", fields)]

    broker = Scripted(answers)
    lookup = encode("LOOKUP", {"topic": "t", "request_id": 7, "authoritative": False})
    with proxied(tmp_path / "log", broker.url, "http://127.0.0.1:1") as proxy:
        found = exchange(proxy.service_url, CONNECT, lookup, until="LOOKUP_RESPONSE")
    broker.close()
    assert found[-1].fields["brokerServiceUrl"] == url


# ---- answers in another order


def traced(tmp_path: Path, *frames: tuple[int, str, str, dict[str, Any]]) -> Path:
    """A trace of frames: connection, direction, command and fields, with a message for SEND and MESSAGE."""
    path = tmp_path / TRACE
    with Recording(tmp_path, {}, "keep") as recording:
        for connection, direction, cmd, fields in frames:
            if cmd == "_TCP_CLOSE":
                recording.note(conn=connection, dir=direction, cmd=cmd, fields=fields)
                continue
            if connection < 0:
                recording.note(dir="note", **fields)
                continue
            tail = b""
            if cmd in ("SEND", "MESSAGE"):
                metadata = {
                    "producer_name": fields.pop("of"),
                    "sequence_id": fields.get("sequence_id", 0),
                    "publish_time": 1,
                }
                tail = entry(metadata, b"x")
            recording.frame(connection, direction, decode(encode(cmd, fields, tail)[4:]))
    return path


def opened(connection: int) -> list[tuple[int, str, str, dict[str, Any]]]:
    """A producer p0, p1, … on a connection of its own."""
    name = f"p{connection}"
    asked = {
        "topic": "t",
        "producer_id": 1,
        "request_id": 1,
        "producer_name": name,
        "user_provided_producer_name": True,
    }
    answer = {
        "request_id": 1,
        "producer_name": name,
        "last_sequence_id": -1,
        "schema_version": b"",
        "producer_ready": True,
    }
    return [(connection, "in", "PRODUCER", asked), (connection, "out", "PRODUCER_SUCCESS", answer)]


def receipt(connection: int, entry_id: int) -> tuple[int, str, str, dict[str, Any]]:
    fields = {
        "producer_id": 1,
        "sequence_id": 0,
        "message_id": {"ledgerId": 77, "entryId": entry_id},
        "highest_sequence_id": 0,
    }
    return connection, "out", "SEND_RECEIPT", fields


def sent(connection: int) -> tuple[int, str, str, dict[str, Any]]:
    return connection, "in", "SEND", {"producer_id": 1, "sequence_id": 0, "of": f"p{connection}"}


SUBSCRIBED: list[tuple[int, str, str, dict[str, Any]]] = [
    (2, "in", "SUBSCRIBE", {"topic": "t", "subscription": "s", "subType": "Shared", "consumer_id": 1, "request_id": 1}),
    (2, "out", "SUCCESS", {"request_id": 1}),
    (2, "in", "FLOW", {"consumer_id": 1, "messagePermits": 9}),
]  # fmt: skip


def delivered(producer: str, entry_id: int) -> tuple[int, str, str, dict[str, Any]]:
    fields = {
        "consumer_id": 1,
        "message_id": {"ledgerId": 77, "entryId": entry_id, "partition": -1},
        "of": producer,
    }
    return 2, "out", "MESSAGE", fields


def test_messages_of_several_producers_may_be_stored_in_another_order(tmp_path: Path) -> None:
    """The proxy saw p0's message first, the broker stored p1's first. The consumer acknowledges p1's: so it does in the log."""
    acked = {"consumer_id": 1, "ack_type": "Individual", "message_id": [{"ledgerId": 77, "entryId": 0}]}
    path = traced(
        tmp_path, *opened(0), *opened(1), *SUBSCRIBED, sent(0), sent(1), receipt(1, 0), receipt(0, 1),
        delivered("p1", 0), delivered("p0", 1), (2, "in", "ACK", acked),
    )  # fmt: skip
    _, verdict = command_log(path)
    assert verdict.differences == []
    assert verdict.explained == {ORDER: 2}
    (ack,) = [
        each
        for line in (tmp_path / COMMANDS).read_text().splitlines()
        if (each := json.loads(line))["command"] == "ACK"
    ]
    assert ack["message_id"] == [{"ledgerId": 1, "entryId": 1}]


def test_one_producer_alone_has_no_other_order(tmp_path: Path) -> None:
    assert command_log(traced(tmp_path, *opened(0), sent(0), receipt(0, 1)))[1].differences


def test_answers_to_two_requests_may_come_in_another_order(tmp_path: Path) -> None:
    def lookup(number: int) -> list[tuple[int, str, str, dict[str, Any]]]:
        answer = {
            "request_id": number,
            "response": "Connect",
            "brokerServiceUrl": "pulsar://x:1",
            "authoritative": True,
        }
        return [
            (0, "in", "LOOKUP", {"topic": "t", "request_id": number}),
            (0, "out", "LOOKUP_RESPONSE", answer),
        ]

    (first, late), (second, early) = lookup(1), lookup(2)
    _, verdict = command_log(traced(tmp_path, first, second, early, late))
    assert (verdict.differences, verdict.explained) == ([], {})


def test_an_entry_from_before_the_recording_is_not_a_difference(tmp_path: Path) -> None:
    _, verdict = command_log(traced(tmp_path, *SUBSCRIBED, delivered("before", 5)))
    assert (verdict.differences, verdict.explained) == ([], {OLDER: 1})


RESTARTED: dict[str, tuple[int, int]] = {"closed": (77, 1), "restarted": (78, 0)}
"""What the broker does when its connections end, and where the next entry is."""


@pytest.mark.parametrize("how", RESTARTED)
def test_a_broker_closes_its_connections(how: str, tmp_path: Path) -> None:
    """As when it ends: the clients connect again, and go on."""
    note = (-1, "note", "", {"event": "broker_restart", "phase": "started"})
    (_, _, producer, asked), (_, _, success, answer) = opened(0)
    ledger, entry_id = RESTARTED[how]
    stored = {"message_id": {"ledgerId": ledger, "entryId": entry_id}, "highest_sequence_id": 2**64 - 1}
    path = traced(
        tmp_path, *opened(0), sent(0), receipt(0, 0), (0, "out", "_TCP_CLOSE", {}), *[note] * (how == "restarted"),
        (5, "in", producer, asked | {"epoch": 1}), (5, "out", success, answer),
        (5, "in", "SEND", {"producer_id": 1, "sequence_id": 1, "of": "p0"}),
        (5, "out", "SEND_RECEIPT", {"producer_id": 1, "sequence_id": 1} | stored),
    )  # fmt: skip
    _, verdict = command_log(path)
    assert (verdict.differences, verdict.explained) == ([], {})
    commands = [json.loads(line)["command"] for line in (tmp_path / COMMANDS).read_text().splitlines()]
    assert commands.count("CONNECTION_LOST") == 1
    assert commands.count("RESTART") == (how == "restarted")


def test_what_was_sent_in_the_recording_is_not_from_before(tmp_path: Path) -> None:
    lost = (9, "in", "SEND", {"producer_id": 1, "sequence_id": 0, "of": "p0"})  # which has no producer
    path = traced(tmp_path, *SUBSCRIBED, lost, delivered("p0", 5))
    assert OLDER not in command_log(path)[1].explained


def test_a_broker_that_was_away_has_restarted(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        url = f"pulsar://127.0.0.1:{found.getsockname()[1]}"
    connect = encode("CONNECT", {"client_version": "x", "protocol_version": 21})
    with proxied(tmp_path / "log", url, "http://127.0.0.1:1") as proxy:
        for _ in range(2):
            with socket.create_connection(broker_address(proxy.service_url), timeout=10) as connection:
                connection.sendall(connect)
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(1) == b""
        broker = Scripted(connected, port=broker_address(url)[1])
        for _ in range(2):
            exchange(proxy.service_url, connect, until="CONNECTED")
    broker.close()
    noted = [each.get("event") or each.get("cmd") for each in proxy.trace.records]
    assert noted[:2] == ["broker_restart", "_TCP_OPEN"]
    assert noted.count("broker_restart") == 1


def test_a_message_may_go_to_another_consumer(tmp_path: Path) -> None:
    third = [(3, direction, cmd, dict(fields)) for _, direction, cmd, fields in SUBSCRIBED]
    to_third = (3, *delivered("p0", 0)[1:])
    path = traced(tmp_path, *opened(0), *SUBSCRIBED, *third, sent(0), receipt(0, 0), to_third)
    assert command_log(path)[1].explained == {OTHER_CONSUMER: 1}


def test_what_magnetar_does_not_support_is_not_a_difference(tmp_path: Path) -> None:
    asked = (0, "in", "CONSUMER_STATS", {"request_id": 9, "consumer_id": 1})
    answer = (0, "out", "CONSUMER_STATS_RESPONSE", {"request_id": 9})
    _, verdict = command_log(traced(tmp_path, asked, answer))
    assert (verdict.differences, verdict.explained) == ([], {f"{NOT_SUPPORTED} CONSUMER_STATS": 1})


def test_the_command_ends_with_a_log_and_a_verdict(broker: Running, tmp_path: Path) -> None:
    code = "from streaming.cli.app import app; app()"
    options = ["--to", broker.service_url, "--admin-to", str(broker.server.admin_url),
               "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]  # fmt: skip
    recorder = subprocess.Popen(
        [sys.executable, "-c", code, "record", str(tmp_path / "log"), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert recorder.stderr is not None
    while "recording" not in (said := recorder.stderr.readline()):
        assert said
    asked = encode("PRODUCER", {"topic": "ended", "producer_id": 1, "request_id": 1, "producer_name": "p"})
    exchange(said.split()[2], CONNECT, asked, until="PRODUCER_SUCCESS")
    recorder.send_signal(signal.SIGTERM)
    out, _ = recorder.communicate(timeout=60)
    assert recorder.returncode == 0
    assert f"commands -> {tmp_path / 'log' / COMMANDS}" in out
    assert "frames, equal" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to", "http://h:1"], "expected pulsar://HOST:PORT or pulsar+ssl://HOST:PORT"),
        (["--admin-to", "h:1"], "expected http://HOST:PORT"),
        (["--listen", "0.0.0.0:0"], "add --insecure"),
        (["--listen", "0.0.0.0:0", "--insecure"], "name the address that clients connect to"),
    ],
)
def test_the_command_refuses(options: list[str], said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["record", str(tmp_path / "log"), *options])
    assert done.exit_code != 0
    assert said in done.output
