"""`magnetar record` and `magnetar capture` before a cluster that speaks TLS alone."""

import base64
import contextlib
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from typer.testing import CliRunner

from streaming.cli.app import app
from streaming.protocol.codec import encode
from streaming.record.client import Reader, ReadFailed
from streaming.record.proxy import broker_address
from streaming.record.rest import CallFailed, Rest
from streaming.server.server import Security, tls_context
from tests.certificates import Certificate
from tests.record.kit import proxied
from tests.record.test_record import CONNECT, Scripted, connected, exchange
from tests.server.conftest import Running, running

pytestmark = pytest.mark.feature("K3")

TOPIC = "persistent://public/default/encrypted"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The PEM files of an authority, and of a key with the certificate that it signed."""
    folder = tmp_path_factory.mktemp("certificates")
    signer = Certificate("authority")
    trusted, own = folder / "trusted.pem", folder / "server.pem"
    trusted.write_bytes(signer.pem())
    own.write_bytes(Certificate("server", signer).pem(with_key=True))
    return trusted, own


@pytest.fixture(scope="module")
def broker(authority: tuple[Path, Path]) -> Iterator[Running]:
    trusted, own = authority
    with running(security=Security(tls_context(own, own))) as found:
        with found.client(tls_trust_certs_file_path=str(trusted)) as client:
            producer = client.create_producer(TOPIC, batching_enabled=False)
            for number in range(3):
                producer.send(b"%d" % number)
        yield found


@pytest.fixture
def trust(authority: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority[0])


def admin_url(broker: Running) -> str:
    return str(broker.server.admin_url).replace("localhost", "127.0.0.1")


def test_plain_clients_stay_on_the_proxy(broker: Running, trust: ssl.SSLContext, tmp_path: Path) -> None:
    with proxied(tmp_path / "log", broker.service_url, admin_url(broker), tls=trust) as proxy:
        assert proxy.missing == []
        with proxy.client() as client:
            consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
            client.create_producer(TOPIC).send(b"3")
            assert [consumer.receive(10_000).data() for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        status, body = proxy.call("GET", f"/lookup/v2/topic/{TOPIC.replace('://', '/')}")
        found = json.loads(body)
        assert status == 200
        assert found["brokerUrl"].startswith("pulsar://127.0.0.1:")
        assert found["brokerUrlTls"] is None
    assert len(proxy.frames("out", "SEND_RECEIPT")) == 1
    assert len(proxy.frames("out", "MESSAGE")) == 4


@pytest.mark.parametrize("names_tls", [True, False])
def test_brokers_that_lookups_name_are_reached_by_tls(
    authority: tuple[Path, Path], trust: ssl.SSLContext, tmp_path: Path, names_tls: bool
) -> None:
    tls = tls_context(authority[1], authority[1])
    owner = Scripted(connected, tls)

    def answers(frame: Any) -> list[bytes]:
        if frame.cmd != "LOOKUP":
            return connected(frame)
        fields = {"request_id": 1, "response": "Redirect", "brokerServiceUrl": "pulsar://127.0.0.1:1"}
        through = {"proxy_through_service_url": frame.fields["topic"].endswith("proxied")}
        return [
            encode(
                "LOOKUP_RESPONSE",
                fields | through | ({"brokerServiceUrlTls": owner.url} if names_tls else {}),
            )
        ]

    first = Scripted(answers, tls)
    with proxied(tmp_path / "log", first.url, "https://127.0.0.1:1", tls=trust) as proxy:

        def lookup(topic: str) -> Any:
            asked = encode("LOOKUP", {"topic": topic, "request_id": 1})
            return exchange(proxy.service_url, CONNECT, asked, until="LOOKUP_RESPONSE")[-1].fields

        direct, through = lookup("t"), lookup("proxied")
        assert "brokerServiceUrlTls" not in direct | through
        if names_tls:
            exchange(direct["brokerServiceUrl"], CONNECT, until="CONNECTED")
            assert through["brokerServiceUrl"] == owner.url.replace("pulsar+ssl", "pulsar")
        else:  # it is not asked in plain text
            assert "brokerServiceUrl" not in direct | through
    assert owner.got == ["CONNECT"] * names_tls
    first.close()
    owner.close()


def test_a_certificate_of_another_authority_is_not_accepted(broker: Running, tmp_path: Path) -> None:
    with proxied(tmp_path / "log", broker.service_url, admin_url(broker)) as proxy:
        assert any("CERTIFICATE_VERIFY_FAILED" in each for each in proxy.missing)
        with socket.create_connection(broker_address(proxy.service_url), timeout=10) as connection:
            connection.sendall(CONNECT)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    assert proxy.frames("in", "CONNECT") == []
    with pytest.raises(CallFailed, match="CERTIFICATE_VERIFY_FAILED"):
        Rest(admin_url(broker)).get("/tenants", list[str])
    with pytest.raises(ReadFailed, match="CERTIFICATE_VERIFY_FAILED"):
        next(Reader(broker.service_url).entries(TOPIC))


def test_capture(broker: Running, authority: tuple[Path, Path], tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    options = [
        "--service-url",
        broker.service_url,
        "--admin-url",
        admin_url(broker),
        "--tls-ca",
        str(authority[0]),
    ]
    done = CliRunner().invoke(app, ["capture", TOPIC, "--to", str(log), *options])
    assert done.exit_code == 0, done.output
    sent = [json.loads(line) for line in log.read_text().splitlines() if '"SEND"' in line]
    assert [base64.b64decode(each["payload_bytes"]) for each in sent][:3] == [b"0", b"1", b"2"]


def test_explain(broker: Running, authority: tuple[Path, Path]) -> None:
    options = ["explain", TOPIC, "--admin-url", admin_url(broker)]
    done = CliRunner().invoke(app, [*options, "--tls-ca", str(authority[0])])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(TOPIC)
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 1
    assert "can't be reached" in done.output
    assert "CERTIFICATE_VERIFY_FAILED" in done.output
