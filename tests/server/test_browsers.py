"""Pages of other sites that a browser shows can't use a server, or see the page, that asks nobody for a password."""

import asyncio
import http.client
from collections.abc import Iterator, Mapping
from contextlib import closing
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest

from streaming.metrics.browsers import refusal
from streaming.server.authentication import TokenAuthentication
from streaming.server.clock import HeldClock
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from streaming.server.server import CONTROL, OPEN, Address, Security, Server, bound
from tests.record.kit import Proxied, proxied
from tests.server.conftest import Running, running

OWN = {"host": "127.0.0.1:8080"}
ATTACKS = [
    ("GET", {"host": "evil.example:8080"}),
    ("GET", {}),
    ("GET", {"host": "127.0.0.1.evil.example"}),
    ("POST", {**OWN, "origin": "https://evil.example"}),
    ("POST", {**OWN, "origin": "null"}),
    ("POST", {**OWN, "origin": "http://127.0.0.1:3000"}),
    *[
        ("GET", {**OWN, "origin": origin})
        for origin in ("http://[", "http://[::1", "http://a]b", "", "127.0.0.1:8080")
    ],
    ("DELETE", {**OWN, "sec-fetch-site": "cross-site"}),
    ("GET", {**OWN, "sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}),
    ("POST", {**OWN, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}),
    ("POST", {**OWN, "content-type": "text/plain;charset=UTF-8"}),
    ("POST", {**OWN, "content-type": "application/x-www-form-urlencoded"}),
    ("PUT", {**OWN, "content-type": "multipart/form-data; boundary=x"}),
]
"""What a browser sends for pages of other sites, the last three if it is too old to say so."""

HARMLESS = [
    ("GET", {"host": "localhost:1"}), ("GET", {"host": "[::1]:8090"}), ("PUT", OWN), ("DELETE", OWN),
    ("POST", {**OWN, "content-type": "application/json"}),
    ("POST", {**OWN, "origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}),
    ("GET", {**OWN, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}), ("GET", {"host": "pulsar.example:8080"}),
    ("GET", {"host": "LOCALHOST:1"}), ("GET", {"host": "Pulsar.example"}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "headers"), ATTACKS)
def test_what_pages_of_other_sites_send_is_refused(method: str, headers: dict[str, str]) -> None:
    assert refusal(method, headers, "pulsar.example") is not None


@pytest.mark.parametrize(("method", "headers"), HARMLESS)
def test_what_others_send_is_not(method: str, headers: dict[str, str]) -> None:
    assert refusal(method, headers, "pulsar.example") is None


def statuses(security: Security, headers: dict[str, str]) -> list[int]:
    """Those of calls to all that a server's HTTP port has."""

    async def main() -> list[int]:
        clock = HeldClock(1_700_000_000_000)
        engine = EmbeddedEngine(clock=clock, begins_with=STANDALONE)
        sockets = [bound(Address("127.0.0.1", 0), "") for _ in range(2)]
        async with (
            engine,
            Server(engine, sockets[0], admin_listener=sockets[1], clock=clock, security=security) as server,
            httpx.AsyncClient(base_url=str(server.admin_url), headers=headers, trust_env=False) as http,
        ):
            calls = [
                http.put("/admin/v2/persistent/public/default/t"),
                http.post(f"{CONTROL}/snapshots"),
                http.get("/metrics"),
                http.get("/healthz"),
                http.get("/lookup/v2/topic/persistent/public/default/t"),
            ]
            return [(await call).status_code for call in calls]

    return asyncio.run(main())


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}])
def test_the_rule_holds_for_the_whole_port_unless_tokens_or_insecure(headers: dict[str, str]) -> None:
    assert statuses(OPEN, headers) == [403] * 5
    assert max(statuses(OPEN, {})) < 300
    assert max(statuses(Security(insecure=True), headers)) < 300
    tokens = Security(authentication=TokenAuthentication("x" * 32, ["HS256"]))
    assert statuses(tokens, headers) == [401, 401, 401, 200, 401]  # probes have no token


def status(address: str, method: str, path: str, headers: Mapping[str, str]) -> int:
    """That of the answer to a call with these headers and no others."""
    with closing(http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)) as connection:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {**headers, "content-length": "0"}.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with running() as found:
        yield found


def passed(proxy: Proxied, path: str) -> list[str]:
    """The methods of the calls on a path that went on to the broker."""
    return [each["method"] for each in proxy.trace.records if each["dir"] == "admin" and each["path"] == path]


def test_a_recording_proxy_passes_nothing_from_pages_of_other_sites(broker: Running, tmp_path: Path) -> None:
    """Neither to the broker, nor to the recording."""
    path = "/persistent/public/default/by-a-page"
    with proxied(tmp_path / "log", broker.service_url, str(broker.server.admin_url)) as proxy:
        for method, headers in ATTACKS:
            expected = HTTPStatus.FORBIDDEN if "host" in headers else HTTPStatus.BAD_REQUEST
            assert status(proxy.admin_url, method, f"/admin/v2{path}", headers) == expected
        others = [
            each for each in HARMLESS if each[1].get("host") not in ("pulsar.example:8080", "Pulsar.example")
        ]
        for method, headers in others:
            status(proxy.admin_url, method, f"/admin/v2{path}", headers)
    assert passed(proxy, path) == [method for method, _ in others]


def test_a_recording_proxy_that_is_insecure_passes_all(broker: Running, tmp_path: Path) -> None:
    path, addresses = "/persistent/public/default/anyhow", (broker.service_url, str(broker.server.admin_url))
    attacks = [each for each in ATTACKS if "host" in each[1]]
    with proxied(tmp_path / "log", *addresses, insecure=True) as proxy:
        for method, headers in attacks:
            status(proxy.admin_url, method, f"/admin/v2{path}", headers)
    assert passed(proxy, path) == [method for method, _ in attacks]
