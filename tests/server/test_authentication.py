"""TLS and tokens: who may connect, and what the others are told. The official client, and frames."""

import base64
import gc
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
import tracemalloc
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

from streaming.cli.app import app
from streaming.protocol.codec import encode
from streaming.server import handshakes
from streaming.server.authentication import NotAuthenticated, TokenAuthentication, TokenKeyError
from streaming.server.server import ListenError, Security, tls_context
from tests.certificates import Certificate
from tests.e2e.processes import wait_until
from tests.server.conftest import Running, running
from tests.server.test_bounds import Scene, run

SECRET = b"a secret key of thirty-two bytes"
TOPIC = "persistent://public/default/t"


def secret() -> str:
    return "data:;base64," + base64.b64encode(SECRET).decode()


def token(key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    return jwt.encode({"sub": "me", **claims}, key, algorithm)


def get(
    broker: Running, path: str, authorization: str | None = None, context: ssl.SSLContext | None = None
) -> tuple[int, Any]:
    headers = {} if authorization is None else {"Authorization": authorization}
    url = str(broker.server.admin_url).replace("localhost", "127.0.0.1")
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url + path, headers=headers), context=context
        ) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_official_client_over_tls_with_a_token(tmp_path: Path) -> None:
    authority = Certificate("authority")
    trusted, own = tmp_path / "trusted.pem", tmp_path / "server.pem"
    trusted.write_bytes(authority.pem())
    own.write_bytes(Certificate("server", authority).pem(with_key=True))
    security = Security(tls_context(own, own), TokenAuthentication.with_secret(secret()))
    with running(security=security) as broker:
        assert broker.service_url.startswith("pulsar+ssl://")
        client_settings: dict[str, Any] = {
            "tls_trust_certs_file_path": str(trusted),
            "operation_timeout_seconds": 3,
        }
        with broker.client(authentication=pulsar.AuthenticationToken(token()), **client_settings) as client:
            consumer = client.subscribe(TOPIC, "s")
            client.create_producer(TOPIC).send(b"x" * 1_000_000)
            assert len(consumer.receive(10_000).data()) == 1_000_000
        with (
            broker.client(
                authentication=pulsar.AuthenticationToken(token(b"?" * 32)), **client_settings
            ) as client,
            pytest.raises(pulsar.Timeout),  # it tries again until then
        ):
            client.create_producer(TOPIC)
        context = ssl.create_default_context(cafile=str(trusted))
        path = f"/lookup/v2/topic/{TOPIC.replace('://', '/')}"
        status, found = get(broker, path, f"Bearer {token()}", context)
        assert (status, found["brokerUrlTls"]) == (200, broker.server.service_url)
        assert (found["brokerUrl"], found["httpUrlTls"]) == ("", broker.server.admin_url)
        assert get(broker, path, None, context)[0] == 401


def test_the_official_client_looks_up_over_https(tmp_path: Path) -> None:
    """pulsar-client 3.13.0 ends its process with a segmentation fault if the answer has no brokerUrl."""
    own = tmp_path / "server.pem"
    own.write_bytes(Certificate("server").pem(with_key=True))
    with running(security=Security(tls_context(own, own), insecure=True)) as broker:
        source = f"""
import pulsar
client = pulsar.Client({broker.server.admin_url!r}, tls_trust_certs_file_path={str(own)!r}, operation_timeout_seconds=20)
consumer = client.subscribe({TOPIC!r}, "s")
client.create_producer({TOPIC!r}).send(b"x")
assert consumer.receive(20_000).data() == b"x"
client.close()
"""
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("admin", [False, True])
def test_handshakes_that_do_not_end_are_few_and_cost_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, admin: bool
) -> None:
    """Anybody can begin one, without a token. The oldest goes where there are too many, and a client that goes on gets through."""
    monkeypatch.setattr(handshakes, "MOST", 40)
    own = tmp_path / "server.pem"
    own.write_bytes(Certificate("server").pem(with_key=True))
    context = ssl.create_default_context(cafile=str(own))
    with running(security=Security(tls_context(own, own), insecure=True)) as broker, ExitStack() as opened:
        port = int(str(broker.server.admin_url if admin else broker.service_url).rpartition(":")[2])
        tracemalloc.start()
        opened.callback(tracemalloc.stop)
        clients = [opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(100)]
        for client in clients:
            client.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
        for client in clients[:60]:
            client.settimeout(30)
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
        assert tracemalloc.get_traced_memory()[0] < 40 * (128 << 10)
        if admin:
            assert get(broker, "/admin/v2/clusters", None, context)[0] == 200
        else:
            with broker.client(tls_trust_certs_file_path=str(own)) as official:
                official.create_producer(TOPIC).send(b"x")


@pytest.mark.parametrize("admin", [False, True])
def test_a_handshake_that_fails_leaves_nothing(tmp_path: Path, admin: bool) -> None:
    """Not even until Python collects garbage: OpenSSL has 70 KB for each, of which Python does not know."""
    own = tmp_path / "server.pem"
    own.write_bytes(Certificate("server").pem(with_key=True))
    context = ssl.create_default_context(cafile=str(own))
    hello = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="server").do_handshake()
    begins = hello.read()

    def alive() -> int:
        return sum(type(each) is ssl.SSLObject for each in gc.get_objects())

    with running(security=Security(tls_context(own, own), insecure=True)) as broker:
        port = int(str(broker.server.admin_url if admin else broker.service_url).rpartition(":")[2])
        gc.collect()
        gc.disable()
        try:
            before = alive()
            for number in range(40):
                with socket.create_connection(("127.0.0.1", port)) as client:
                    client.settimeout(30)
                    client.sendall(b"GET / HTTP/1.0\r\n\r\n" if number % 2 else begins)
                    with suppress(ConnectionResetError):
                        client.recv(1)
            wait_until(lambda: alive() <= before, "nothing is left of them")
        finally:
            gc.enable()


def test_a_key_pair(tmp_path: Path) -> None:
    for private, algorithm in (
        (rsa.generate_private_key(65537, 2048), "RS256"),
        (ec.generate_private_key(ec.SECP256R1()), "ES256"),
    ):
        for encoding in Encoding.DER, Encoding.PEM:
            file = tmp_path / f"{algorithm}-{encoding}"
            file.write_bytes(private.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo))
            tokens = TokenAuthentication.with_public_key(f"file://{file}")
            assert tokens.expiry(token(private, algorithm)) is None
            with pytest.raises(NotAuthenticated):
                tokens.expiry(token())
            with pytest.raises(NotAuthenticated):  # a public key is no secret
                tokens.expiry(_signed_with(file.read_bytes()))


@pytest.mark.parametrize("alg", ["none", "HS256", "HS512", "RS256", "RS512", "PS384", "ES256", "ES384", "ES512", "ES256K", "EdDSA", "x", 7])  # fmt: skip
@pytest.mark.parametrize("size", [0, 64, 96, 132, 256])
def test_whatever_a_token_says_of_its_signature_it_is_refused(alg: object, size: int, tmp_path: Path) -> None:
    header = json.dumps({"alg": alg}).encode()
    forged = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, b"{}", bytes(size)))
    known = [TokenAuthentication.with_secret(secret())]
    for private in (
        rsa.generate_private_key(65537, 2048),
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP521R1()),
    ):
        file = tmp_path / "key"
        file.write_bytes(private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
        known.append(TokenAuthentication.with_public_key(f"file://{file}"))
    for tokens in known:
        with pytest.raises(NotAuthenticated):
            tokens.expiry(forged)


def _signed_with(public_key: bytes) -> str:
    """A token whose HMAC key is the public key, which is the classic attack."""
    import hashlib
    import hmac

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    body = part(b'{"alg":"HS256","typ":"JWT"}') + b"." + part(b'{"sub":"me"}')
    return (body + b"." + part(hmac.digest(public_key, body, hashlib.sha256))).decode()


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("data:;base64,eA==", "1 bytes"),
        ("file:///nowhere/key", "/nowhere/key: No such file"),
        ("/nowhere/key!", "neither a file"),
        ("data:;base64,?", "neither a file"),
        ("/dev/zero", "/dev/zero: more than 65,536 bytes are too many for a key"),
        ("data:;base64," + base64.b64encode(Certificate("x").pem()).decode(), "--token-public-key"),
    ],
)
def test_a_wrong_secret_key_is_named(setting: str, text: str) -> None:
    with pytest.raises(TokenKeyError, match=text):
        TokenAuthentication.with_secret(setting)


def test_a_wrong_public_key_is_named() -> None:
    with pytest.raises(TokenKeyError, match="not a public key"):
        TokenAuthentication.with_public_key(secret())


def test_a_secret_key_in_base64_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(SECRET)
    for setting in (str(file), file.as_uri(), secret(), base64.b64encode(SECRET).decode()):
        assert TokenAuthentication.with_secret(setting).expiry(token(exp=2**33)) == 2**33


@pytest.mark.parametrize(
    ("sub", "role"),
    [("a", "a"), (["a", "b"], "a"), ("größe", "größe"), ("\ud800", ""), ("a\udcff", ""), (["\ud800"], ""), ([], ""), ({}, ""), (1, ""), (None, ""), ([1], "")],
)  # fmt: skip
def test_a_subject_that_no_answer_could_name_is_none(sub: object, role: str) -> None:
    """JSON may have half of a surrogate pair, which no answer can: a refusal that named it was a traceback."""
    authentication = TokenAuthentication.with_secret(secret())
    found = {"auth_method_name": "token", "auth_data": token(sub=sub).encode()}
    authentication.of_connect(found)
    assert authentication.principal(found) == role


@pytest.mark.parametrize(
    ("exp", "expiry"), [(2**33, 2**33), (str(2**33), 2**33), (2.0**33, 2**33), (2**80, 2**80)]
)
def test_an_expiry_is_a_number_however_the_token_has_it(exp: object, expiry: int) -> None:
    found = TokenAuthentication.with_secret(secret()).expiry(token(exp=exp))
    assert (type(found), found) == (int, expiry)


@pytest.mark.parametrize("exp", ["soon", "", "9" * 5000, True, None, [], {}, float("inf"), float("nan")])
def test_a_token_whose_expiry_is_no_time_is_refused(exp: object) -> None:
    with pytest.raises(NotAuthenticated):
        TokenAuthentication.with_secret(secret()).expiry(token(exp=exp))


WRONG: list[dict[str, Any]] = [
    {},
    {"auth_method_name": "token"},
    {"auth_method_name": "token", "auth_data": b"x"},
    {"auth_method_name": "token", "auth_data": b"\xff.\xff.\xff"},
    {"auth_method_name": "token", "auth_data": token(exp=1).encode()},
    {"auth_method_name": "token", "auth_data": token(nbf=2**33).encode()},
    {"auth_method_name": "token", "auth_data": token(b"?" * 32).encode()},
    {"auth_method_name": "token", "auth_data": jwt.encode({"sub": "me"}, "", "none").encode()},
    {"auth_method_name": "tls", "auth_data": token().encode()},
]


def serving(work: Callable[[Scene], Awaitable[None]]) -> None:
    run(work, security=Security(authentication=TokenAuthentication.with_secret(secret())))


@pytest.mark.parametrize("fields", WRONG)
def test_without_a_valid_token_the_connection_ends(fields: dict[str, Any]) -> None:
    """As recorded from 4.0.7."""

    async def work(scene: Scene) -> None:
        peer = await scene.peer(encode("CONNECT", {"client_version": "x", "protocol_version": 21, **fields}))
        answer = await peer.next()
        assert answer is not None
        assert answer.cmd == "ERROR"
        assert answer.fields == {
            "request_id": 2**64 - 1,
            "error": "AuthenticationError",
            "message": "Failed to authenticate",
        }
        assert await peer.next() is None
        assert not scene.server.engine.broker.connections  # type: ignore[attr-defined]

    serving(work)


def connect(data: str, *, refreshes: bool = True) -> bytes:
    return encode(
        "CONNECT",
        {
            "client_version": "x",
            "protocol_version": 21,
            "auth_method_name": "token",
            "auth_data": data.encode(),
            "feature_flags": {"supports_auth_refresh": refreshes},
        },
    )


def answer(data: str) -> bytes:
    response = {"auth_method_name": "token", "auth_data": data.encode()}
    return encode("AUTH_RESPONSE", {"client_version": "x", "protocol_version": 21, "response": response})


def test_an_expired_token_is_asked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As recorded from 4.0.7: a challenge at the next check, and the end at the one after it."""
    later = int(time.time()) + 3600

    async def work(scene: Scene) -> None:
        peers = [await scene.peer(connect(token(exp=later), refreshes=n < 3)) for n in range(4)]
        new, wrong, silent, old = peers
        for peer in peers:
            await peer.until("CONNECTED")

        def check() -> None:
            for connection in list(scene.server.binary.connections.values()):
                connection.keep_alive()

        monkeypatch.setattr(time, "time", lambda: later + 1.0)
        check()
        assert await old.next() is None
        for peer in (new, wrong, silent):
            challenge = await peer.until("AUTH_CHALLENGE")
            assert challenge.fields["challenge"] == {
                "auth_method_name": "token",
                "auth_data": b"PulsarAuthRefresh",
            }
        new.send(answer(token()), encode("PING", {}))
        await new.until("PONG")
        wrong.send(answer("x"))
        assert (await wrong.until("ERROR")).fields["error"] == "AuthenticationError"
        assert await wrong.next() is None
        check()
        assert await silent.next() is None
        new.send(encode("PING", {}))
        await new.until("PONG")

    serving(work)


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        ({}, {}, True),
        ({}, {"sub": "other"}, False),
        ({}, {"sub": ""}, False),
        ({}, {"sub": None}, False),
        ({"sub": ["me", "other"]}, {"sub": ["me"]}, True),
        ({"sub": ["other", "me"]}, {}, False),
        ({"sub": []}, {"sub": "other"}, True),
        ({"sub": None}, {"sub": "other"}, True),
    ],
)
def test_a_new_token_is_of_the_same_principal(
    first: dict[str, Any], second: dict[str, Any], stays: bool
) -> None:
    """`ServerCnx.authChallengeSuccessCallback`: a connection without a principal takes any."""

    async def work(scene: Scene) -> None:
        peer = await scene.peer(connect(jwt_of(first)))
        await peer.until("CONNECTED")
        for _ in range(2):  # the principal stays that of CONNECT
            peer.send(answer(jwt_of(second)))
            peer.send(encode("PING", {}))
            assert ((found := await peer.next()) is not None and found.cmd == "PONG") == stays
            if not stays:
                return

    serving(work)


def jwt_of(claims: dict[str, Any]) -> str:
    """A token with any subject: `jwt.encode` takes texts alone."""
    return jwt.api_jws.encode(json.dumps({"sub": "me", **claims}).encode(), SECRET, "HS256")


def test_the_admin_api_needs_a_token() -> None:
    security = Security(authentication=TokenAuthentication.with_secret(secret()))
    refused = 401, {"reason": "Authentication required"}
    with running(security=security) as broker:
        path = "/admin/v2/clusters"
        assert get(broker, path, f"Bearer {token()}") == (200, ["standalone"])
        for wrong in (None, token(), "Bearer x", f"Bearer {token(exp=1)}"):
            assert get(broker, path, wrong) == refused
        assert get(broker, f"/lookup/v2/topic/{TOPIC.replace('://', '/')}") == refused


@pytest.mark.parametrize(
    ("begins", "why"), [(-9, "it expired at 20.+ UTC"), (9, "it is valid from 20.+ UTC on"), (-1, None)]
)
def test_a_certificate_that_no_client_takes_now_is_named(
    begins: int, why: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server starts nonetheless: the machine's clock may be wrong."""
    own = tmp_path / "own.pem"
    own.write_bytes(Certificate("own", begins=begins).pem(with_key=True))
    tls_context(own, own)
    lines = [each.getMessage() for each in caplog.records]
    assert len(lines) == (why is not None)
    assert why is None or re.fullmatch(f"--tls-cert {own}: {why}, so clients refuse it", lines[0])


def test_tls_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    own = Certificate("own")
    files = {
        "x": b"x",
        "own": own.pem(with_key=True),
        "other": Certificate("other").pem(with_key=True),
        "closed": own.pem(with_key=True, password=b"p"),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    for certificate, key, why in (
        ("own", "pipe", ".*pipe is no regular file"),
        ("pipe", "own", ".*pipe is no regular file"),
        ("own", ".", "is no regular file"),
        ("x", "x", "is not what it should be in PEM"),
        ("nowhere", "nowhere", "No such file"),
        ("own", "other", "the key is not that of the first certificate"),
        ("own", "closed", "the key is encrypted. Decrypt it first: openssl pkey -in .*closed -out"),
    ):
        with pytest.raises(ListenError, match=f"--tls-cert .*{why}"):
            tls_context(tmp_path / certificate, tmp_path / key)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--listen", "0.0.0.0:0"], "clients need no token"),
        (["--admin-listen", "0.0.0.0:0"], "clients need no token"),
        (["--limit", "connections=0"], "--limit"),
        (["--limit", "connections"], "NAME=VALUE"),
        (["--tls-cert", "x"], "one needs the other"),
        (["--token-secret-key", "x", "--token-public-key", "y"], "give one of them"),
        (["--token-secret-key", "/nowhere!"], "--token-secret-key: neither"),
        (["--token-public-key", "/nowhere!"], "--token-public-key: neither"),
    ],
)
def test_wrong_options_are_refused(words: list[str], text: str) -> None:
    found = CliRunner().invoke(
        app, ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", *words]
    )
    assert found.exit_code == 2
    assert text in " ".join(found.output.split())
