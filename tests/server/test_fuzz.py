"""Whatever comes through the sockets of a server: it stays up, serves the others, and keeps nothing of who has left."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import cache
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streaming.broker.admin_calls import CALLS
from streaming.protocol import pulsar_api_pb2
from streaming.protocol.codec import FrameError, decode, encode, entry
from streaming.server.admin.absent import UNSUPPORTED
from streaming.server.admin.application import OWN, application
from streaming.server.clock import HeldClock
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from streaming.server.server import Address, Server, bound
from tests.examples import examples
from tests.server.test_bounds import CONNECT, Peer

pytestmark = pytest.mark.feature("K1")

NOW = 1_700_000_000_000
TOPIC = "persistent://public/default/t"
WITNESS = "persistent://public/default/witness"

# ---- frames

TEXTS = st.sampled_from(
    [TOPIC, f"{TOPIC}-partition-1", "non-persistent://public/default/n", "t", "", "a/b", "public/default", "s", "p",
     "://", "persistent://a/b/c/d/e", "persistent://public/default/" + "x" * 300, "\0", "ü", ".*", "[", "(a+)+$"]
)  # fmt: skip
"""Names that mean something, and that don't."""

NUMBERS = st.sampled_from(
    [0, 1, 2, 3, 5, 21, 1000, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1, -(2**31), -(2**63)]
)
_BASE: Descriptor = pulsar_api_pb2.DESCRIPTOR.message_types_by_name["BaseCommand"]
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1), FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1), FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}  # fmt: skip


@cache
def values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values of a field, small ones often, so that numbers of producers and consumers meet."""
    if field.enum_type is not None:
        one: st.SearchStrategy[Any] = st.sampled_from([value.name for value in field.enum_type.values])
    elif field.message_type is not None:
        one = fields(field.message_type)
    elif field.cpp_type in _RANGES:
        low, high = _RANGES[field.cpp_type]
        one = st.integers(1, 2) | NUMBERS.map(lambda number: min(max(number, low), high))
    elif field.type == FieldDescriptor.TYPE_BYTES:
        one = st.binary(max_size=20)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        one = TEXTS | st.text(max_size=10).filter(lambda text: text.isprintable())
    else:
        one = st.booleans()
    return st.lists(one, max_size=3) if field.is_repeated else one


def later(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """The same, for messages that contain each other."""
    return st.deferred(lambda: values(field))


@cache
def fields(message: Descriptor) -> st.SearchStrategy[dict[str, Any]]:
    """The fields of a message: what it must have, and some of the others."""
    required = {each.name: values(each) for each in message.fields if each.is_required}
    optional = {each.name: later(each) for each in message.fields if not each.is_required}
    return st.fixed_dictionaries(required, optional=optional)


_COMMANDS = {
    value.name: _BASE.fields_by_number[value.number].message_type
    for value in _BASE.enum_types_by_name["Type"].values
}
_OFTEN = ("PRODUCER", "SEND", "SUBSCRIBE", "FLOW", "ACK", "SEEK", "CLOSE_CONSUMER", "CLOSE_PRODUCER", "UNSUBSCRIBE",
          "REDELIVER_UNACKNOWLEDGED_MESSAGES", "GET_LAST_MESSAGE_ID", "LOOKUP", "PARTITIONED_METADATA")  # fmt: skip
_ENTRIES = st.builds(
    entry, fields(pulsar_api_pb2.DESCRIPTOR.message_types_by_name["MessageMetadata"]), st.binary(max_size=50)
)
_PLAIN = entry({"producer_name": "p", "sequence_id": 1, "publish_time": NOW}, b"x")


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A frame with every field drawn, with a message if it may have one. Some are damaged."""
    cmd = draw(st.sampled_from(_OFTEN) | st.sampled_from(sorted(_COMMANDS)))
    tail = draw(st.just(_PLAIN) | _ENTRIES) if cmd in ("SEND", "MESSAGE") and draw(st.integers(0, 9)) else b""
    data = encode(cmd, draw(fields(_COMMANDS[cmd])), tail)
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 4)) :]
    return data


_PREFIX = st.sampled_from([CONNECT, CONNECT, CONNECT, b""])
_TRAFFIC = st.lists(st.tuples(st.integers(0, 2), frames() | st.binary(max_size=30)), max_size=25)
"""What comes on which connection. A connection that the server closed is opened again."""


@given(frames())
def test_only_the_declared_error_escapes(data: bytes) -> None:
    try:
        frame = decode(data[4:])
    except FrameError:
        return
    tail = b"" if frame.metadata is None else entry(frame.metadata, frame.payload or b"")
    again = decode(encode(frame.cmd, frame.fields, tail)[4:])
    assert (again.fields, again.metadata, again.payload) == (frame.fields, frame.metadata, frame.payload)


class Scene:
    """A server with a witness: a client whose traffic must be served whatever others do."""

    def __init__(self, server: Server, engine: EmbeddedEngine) -> None:
        self.server, self.engine = server, engine
        self._sequence = 0

    async def open(self, *first: bytes) -> Peer:
        reader, writer = await asyncio.open_connection(*self.server.address)
        writer.write(b"".join(first))
        return Peer(reader, writer)

    async def start(self) -> None:
        self.witness = await self.open(CONNECT)
        created = {"topic": WITNESS, "producer_id": 1, "request_id": 1, "producer_name": "w"}
        subscribed = {
            "topic": WITNESS,
            "subscription": "w",
            "subType": "Exclusive",
            "consumer_id": 1,
            "request_id": 2,
        }
        self.witness.send(
            encode("PRODUCER", created), encode("SUBSCRIBE", subscribed),
            encode("FLOW", {"consumer_id": 1, "messagePermits": 1000}),
        )  # fmt: skip
        await self.witness.until("SUCCESS")

    async def is_served(self) -> None:
        """The witness publishes a message and gets it."""
        self._sequence += 1
        metadata = {"producer_name": "w", "sequence_id": self._sequence, "publish_time": NOW}
        tail = entry(metadata, b"w")
        self.witness.send(encode("SEND", {"producer_id": 1, "sequence_id": self._sequence}, tail))
        while True:
            frame = await self.witness.next()
            assert frame is not None, "the witness lost its connection"
            if frame.cmd == "MESSAGE":
                break
        assert frame.metadata is not None
        assert frame.metadata["sequence_id"] == self._sequence

    async def is_alone(self) -> None:
        """Only the witness is left, in the server and in the broker."""
        while len(self.server.binary.connections) > 1:
            await asyncio.sleep(0)
        await self.engine.tick()
        (name,) = self.server.binary.connections
        assert set(self.engine.broker.connections) == {name}


def on_server(work: Callable[[Scene], Awaitable[None]]) -> None:
    """Run `work` before a new server, which must not log an error or fail."""
    failures: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        engine = EmbeddedEngine(clock=HeldClock(NOW), begins_with=STANDALONE)
        async with engine, Server(engine, bound(Address("127.0.0.1", 0), "")) as server:
            scene = Scene(server, engine)
            await asyncio.wait_for(scene.start(), 60)
            await asyncio.wait_for(work(scene), 60)
            assert not engine.failed.done()
            scene.witness.close()

    asyncio.run(main())
    assert failures == []


@settings(max_examples=examples(60))
@given(_PREFIX, _TRAFFIC)
def test_any_frames_in_any_order_on_several_connections(
    prefix: bytes, traffic: list[tuple[int, bytes]]
) -> None:
    async def work(scene: Scene) -> None:
        peers: dict[int, Peer] = {}
        for number, data in traffic:
            if number not in peers or peers[number].is_closed:
                peers[number] = await scene.open(prefix)
            peers[number].send(data)
            await asyncio.sleep(0)
        await scene.is_served()
        for peer in peers.values():
            peer.close()
        await scene.is_alone()
        await scene.is_served()

    on_server(work)


# ---- HTTP

_SEGMENTS = st.sampled_from(
    ["persistent", "non-persistent", "public", "default", "t", "p", "s", "tenants", "namespaces", "1", "-1", "9" * 30, "%2F",
     "%00", "..", ".", "%C3%BC", "%", "a%20b", "0x00000000_0xffffffff", "latest", "x" * 300]
) | st.text(max_size=8).map(lambda text: quote(text, safe=""))  # fmt: skip
_CALLED = sorted({call.path for call in (*CALLS, *OWN)} | {*UNSUPPORTED})


@st.composite
def paths(draw: st.DrawFn) -> str:
    """A path of the API with names drawn, or any other path; with a query or without."""
    route = draw(
        st.sampled_from(_CALLED) | st.lists(_SEGMENTS, max_size=8).map(lambda parts: "/" + "/".join(parts))
    )
    parts = [
        draw(_SEGMENTS if draw(st.integers(0, 2)) == 0 else st.sampled_from(_KNOWN.get(part, ("t",))))
        if part.startswith("{")
        else part
        for part in route.split("/")
    ]
    query = draw(
        st.sampled_from(
            ["", "", "?force=true", "?messageTTL=x", "?authoritative=&a=b", "?%00=%FF", "?=", "?" + "a" * 300]
        )
    )
    prefix = draw(st.sampled_from(["/admin/v2", "/admin/v2", "/admin/v2", "/lookup/v2/topic", "/admin", ""]))
    return prefix + "/".join(parts) + query


_KNOWN = {
    "{domain}": ("persistent", "non-persistent"), "{tenant}": ("public",), "{namespace}": ("default",), "{topic}": ("t", "p", "x"),
    "{subscription}": ("s", "x"), "{cluster}": ("standalone",), "{time}": ("0", str(NOW)), "{n}": ("1",), "{count}": ("1",),
    "{seconds}": ("1",), "{ledger}": ("1",), "{entry}": ("0",), "{version}": ("0",), "{role}": ("r",),
    "{bundle}": ("0x00000000_0xffffffff",),
}  # fmt: skip
_METHODS = st.sampled_from(["GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "FLY"])
_JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.sampled_from(
        ["limit", "limitSize", "policy", "ledgerId", "entryId", "retentionTimeInMinutes", "retentionSizeInMB", "type", "schema",
         "properties", "active", "tickTime", "dispatchThrottlingRateInMsg"]), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
_BODIES = (
    st.just(b"")
    | _JSON.map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=30)
    | st.just(b"[" * 5000)
)
_HEADERS = st.dictionaries(
    st.sampled_from(["Content-Type", "Accept", "Accept-Encoding", "Authorization", "X-Original-Principal", "Range", "Expect"]),
    st.sampled_from(["", "application/json", "text/plain; charset=utf-7", "gzip", "Bearer x", "bytes=0-", "*/*;q=2"]),
    max_size=3,
)  # fmt: skip

ANSWERED = frozenset(
    {HTTPStatus.OK, HTTPStatus.ACCEPTED, HTTPStatus.NO_CONTENT, HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND,
     HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_ACCEPTABLE, HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED,
     HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.NOT_IMPLEMENTED}
)  # fmt: skip
"""Statuses with which Pulsar answers calls, and 501 for what is not supported."""

_REQUESTS = st.lists(st.tuples(_METHODS, paths(), _BODIES, _HEADERS), min_size=1, max_size=12)


@settings(max_examples=examples(120))
@given(_REQUESTS)
@example([("GET", "/admin/v2/persistent/public/default/t/subscription/s/position/1", b"", {})])
def test_any_call_is_answered(requests: list[tuple[str, str, bytes, dict[str, str]]]) -> None:
    """With a status that Pulsar uses; the application raises nothing, and goes on."""

    async def main() -> None:
        async with EmbeddedEngine(
            clock=HeldClock(NOW), begins_with=STANDALONE, settings={"namespacesMustExist": True}
        ) as engine:
            app = application(engine, lambda: "pulsar://localhost:6650", "http://localhost:8080")
            transport = httpx.ASGITransport(app=app)  # what the application raises comes out here
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
                await client.put("/admin/v2/persistent/public/default/t")
                await client.put("/admin/v2/persistent/public/default/p/partitions", content=b"2")
                await client.put("/admin/v2/persistent/public/default/t/subscription/s")
                for method, path, body, headers in requests:
                    answer = await client.request(method, path, content=body, headers=headers)
                    assert answer.status_code in ANSWERED, (
                        method,
                        path,
                        body,
                        answer.status_code,
                        answer.text,
                    )
                    if answer.status_code >= HTTPStatus.BAD_REQUEST and method != "HEAD":
                        assert answer.json()["reason"]
                assert (await client.get("/admin/v2/tenants")).status_code == HTTPStatus.OK

    asyncio.run(main())


_LINES = st.sampled_from(
    [b"GET /admin/v2/tenants HTTP/1.1\r\n", b"GET / HTTP/9.9\r\n", b"Host: x\r\n", b"Content-Length: 5\r\n",
     b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n", b"5\r\nhello\r\n", b"ffffffffffffffff\r\n",
     b"Connection: Upgrade\r\nUpgrade: websocket\r\n", b"X: " + b"y" * 70_000 + b"\r\n", CONNECT]
)  # fmt: skip


@settings(max_examples=examples(60))
@given(st.lists(_LINES | st.binary(max_size=20), max_size=8))
def test_bytes_that_are_not_http_disturb_nobody(parts: list[bytes]) -> None:
    failures: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        engine = EmbeddedEngine(clock=HeldClock(NOW), begins_with=STANDALONE)
        sockets = [bound(Address("127.0.0.1", 0), "") for _ in range(2)]
        port = sockets[1].getsockname()[1]
        async with engine, Server(engine, sockets[0], admin_listener=sockets[1]):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"".join(parts))
            writer.write_eof()
            answered = await asyncio.wait_for(_all(reader), 30)
            assert b"Traceback" not in answered
            assert b" 500 " not in answered
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                assert (await client.get("/admin/v2/clusters")).json() == ["standalone"]
            writer.close()

    asyncio.run(main())
    assert failures == []


async def _all(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""
