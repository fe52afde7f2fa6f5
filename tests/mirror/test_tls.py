"""`magnetar mirror` of a cluster that speaks TLS and asks for tokens, and what it says if TLS fails."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pulsar
import pytest
from typer.testing import CliRunner

from streaming.cli.app import app
from streaming.cli.record import authorization
from streaming.protocol.codec import encode
from streaming.record.client import Reader, ReadFailed
from streaming.record.rest import Rest
from streaming.server.authentication import TokenAuthentication
from streaming.server.server import Security, tls_context
from tests.certificates import Certificate
from tests.mirror.kit import Twin, differences, mirror, positions
from tests.record.test_record import Scripted, connected
from tests.server.conftest import Running, running
from tests.server.test_authentication import secret, token

pytestmark = pytest.mark.feature("K4")

TOPIC = "persistent://public/default/encrypted"


class Urls(NamedTuple):
    service: str
    admin: str


def urls_of(broker: Running) -> Urls:
    return Urls(broker.service_url, str(broker.server.admin_url).replace("localhost", "127.0.0.1"))


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the PEM files of two authorities, and of a key with the certificate that the first one signed."""
    folder = tmp_path_factory.mktemp("certificates")
    signer = Certificate("authority")
    (folder / "trusted.pem").write_bytes(signer.pem())
    (folder / "other.pem").write_bytes(Certificate("other authority").pem())
    (folder / "server.pem").write_bytes(Certificate("server", signer).pem(with_key=True))
    return folder


@pytest.fixture(scope="module")
def secure(pem: Path) -> Iterator[Running]:
    own = pem / "server.pem"
    security = Security(tls_context(own, own), TokenAuthentication.with_secret(secret()))
    with running(security=security) as broker:
        publish(broker, pem, 3)
        yield broker


@pytest.fixture(scope="module")
def plain() -> Iterator[Running]:
    with running() as broker:
        with broker.client() as client:
            client.create_producer(TOPIC).send(b"x")
        yield broker


def publish(broker: Running, pem: Path, count: int) -> None:
    settings = {"authentication": pulsar.AuthenticationToken(token()), "tls_trust_certs_file_path": str(pem / "trusted.pem")}  # fmt: skip
    with broker.client(**settings) as client:
        producer = client.create_producer(TOPIC)
        for number in range(count):
            producer.send(b"%d" % number)


def test_a_mirror_with_tls_and_a_token(secure: Running, pem: Path, tmp_path: Path) -> None:
    folder, tls = tmp_path / "log", ssl.create_default_context(cafile=pem / "trusted.pem")
    url, rest = secure.service_url, Rest(urls_of(secure).admin, authorization(token), tls)
    _, said = mirror(url, rest, [TOPIC], folder, 3, lambda: publish(secure, pem, 1), token=token)
    assert said == []
    twin = Twin(folder)
    assert twin.refused == []
    assert differences(rest, TOPIC, twin.broker) == {}
    assert len(set(positions(folder, TOPIC))) == len(positions(folder, TOPIC)) >= 5


def no_tls(url: str) -> str:
    return url.replace("pulsar+ssl", "pulsar").replace("https", "http")


def with_tls(url: str) -> str:
    return url.replace("pulsar:", "pulsar+ssl:").replace("http:", "https:")


def other_host(url: str) -> str:
    return url.replace("127.0.0.1", "localhost")


WRONG = {
    "the authority": (None, "other.pem", "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate (--tls-ca names"),
    "no authority": (None, None, "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate (--tls-ca names"),
    "the host": (other_host, "trusted.pem", "the URL needs a host that the certificate names"),
    "plain to TLS": (no_tls, "trusted.pem", "does it speak TLS? Then the URL begins with "),
    "TLS to plain": (with_tls, "trusted.pem", "does it speak TLS? If not, the URL begins with "),
}  # fmt: skip
"""How a URL is changed, the authorities, and what the line has."""


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("which", Urls._fields)
def test_what_is_wrong_with_tls_is_told_in_a_line(
    which: str, wrong: str, secure: Running, plain: Running, pem: Path, tmp_path: Path
) -> None:
    change, authority, words = WRONG[wrong]
    url = getattr(urls_of(plain if wrong == "TLS to plain" else secure), which)
    url = change(url) if change is not None else url
    if which == "admin":
        options = ["--admin-url", url, *([] if authority is None else ["--tls-ca", str(pem / authority)])]
        ran = CliRunner().invoke(app, ["mirror", TOPIC, "--to", str(tmp_path / "log"), *options])
        assert ran.exit_code == 1
        (line,) = ran.output.split("\n\n")[0].splitlines()
        assert line.startswith(f"magnetar: {url} can't be reached: ")
        assert not (tmp_path / "log").exists()
    else:
        tls = ssl.create_default_context(cafile=None if authority is None else pem / authority)
        rest = Rest(urls_of(plain).admin, tls=tls)
        _, said = mirror(url, rest, [TOPIC], tmp_path / "log", 3)
        (line,) = said
        assert line.startswith(f"{TOPIC}: waits: ")
        assert positions(tmp_path / "log", TOPIC) == []
    assert words in line


@pytest.mark.parametrize("tls", [True, False])
def test_a_broker_without_an_address_of_the_kind(tls: bool, pem: Path) -> None:
    def answers(frame: Any) -> list[bytes]:
        if frame.cmd != "LOOKUP":
            return connected(frame)
        other = {"brokerServiceUrl" if tls else "brokerServiceUrlTls": "pulsar://127.0.0.1:1"}
        return [encode("LOOKUP_RESPONSE", {"request_id": 1, "response": "Connect", **other})]

    broker = Scripted(answers, tls_context(pem / "server.pem", pem / "server.pem") if tls else None)
    trust = ssl.create_default_context(cafile=pem / "trusted.pem")
    kind = "with TLS" if tls else "without TLS"
    with Reader(broker.url, tls=trust) as reader, pytest.raises(ReadFailed, match=f"has no address for connections {kind}$"):  # fmt: skip
        next(reader.entries(TOPIC))
    broker.close()
