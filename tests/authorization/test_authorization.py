"""Authorization: each frame and each admin call by each role, compared with a real Pulsar 4.0.7; and what clients see of it."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from typer.testing import CliRunner

from streaming.broker.admin_calls import CALLS
from streaming.broker.config import NotSupported, profile_of
from streaming.cli.app import app
from streaming.server.admin.absent import UNSUPPORTED
from streaming.server.admin.application import BESIDE, OWN
from streaming.server.admin.asks import ASKS
from streaming.server.authentication import TokenAuthentication
from streaming.server.embedded import EmbeddedEngine
from streaming.server.protection import check_protection
from streaming.server.server import Security
from tests.authorization.parity import SECURITY, first, here
from tests.authorization.questions import (
    ROLES,
    SETTINGS,
    SUPERUSER,
    TENANT_ADMIN,
    Admin,
    Connection,
    of_calls,
    of_connections,
    of_frames,
    of_names,
    of_subscriptions,
    token,
)
from tests.authorization.record import OTHERS, differing, recorded
from tests.server.conftest import Running, running, running_on

pytestmark = pytest.mark.feature("I8")

REAL = recorded()

LIVES: dict[str, list[str]] = json.loads(Path(__file__).with_name("lives-4.0.7.json").read_text())
"""What `tests.authorization.parity` recorded of some seeds."""

NS, TOPIC = "/namespaces/{tenant}/{namespace}", "/{domain}/{tenant}/{namespace}/{topic}"

NOT_IN_4_0 = {
    f"GET {NS}/allowedTopicPropertyKeysForMetrics", f"POST {NS}/allowedTopicPropertyKeysForMetrics",
    *(f"{method} {TOPIC}/subscriptionExpirationTime" for method in ("GET", "POST", "DELETE")),
}  # fmt: skip
"""Calls that Pulsar 4.0.7 does not have, so it asks nothing."""

STRICTER = {
    "GET /namespaces/{cluster}/antiAffinity/{group}": "Pulsar fails with 500, whoever asks",
    f"GET {TOPIC}/getMessageIdByIndex": "Pulsar first says that its entries have no index",
    "GET /tenants without a subject": "Pulsar fails with 500",
}
"""Where we refuse what Pulsar answers with another error."""


OTHER_WORDS = {"GET /namespaces/missing/n/properties", "GET /persistent/missing/n/t/permissions"}
"""To superusers, Pulsar says of these that there is no tenant, where we say that there is no namespace."""


def answers(found: Any) -> dict[str, Any]:
    """Answers by role."""
    if isinstance(found, list) and found and all(isinstance(each, list) and len(each) == 2 for each in found):
        return {role: answer for answer, roles in found for role in str(roles).split()}
    return found if isinstance(found, dict) else {"": found}


def refusal(answer: Any) -> Any:
    """A refusal for want of a permission or of a role. None: it is none."""
    text = json.dumps(answer)
    is_one = text[:4].strip("[") in ("401", "403") or any(
        each in text
        for each in ("AuthorizationError", "AuthenticationError", "Tenant does not exist", "prefixed")
    )
    return answer if is_one else None


def compare(real: dict[str, Any], ours: dict[str, Any], besides: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Nobody is refused anything here that Pulsar does not refuse in the same words, and everybody what it does."""
    assert ours.keys() == real.keys()
    differences = [
        f"{what} by {role}: {expected} there, {found} here"
        for what in real.keys() - besides
        for (role, expected), found in zip(
            answers(real[what]).items(), answers(ours[what]).values(), strict=True
        )
        if refusal(expected) != refusal(found)
    ]
    assert differences == []


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with running(security=SECURITY, namespacesMustExist=True, defaultNumberOfNamespaceBundles=1) as found:
        admin = admin_of(found)
        admin.must("PUT", "/tenants/public", {"allowedClusters": ["standalone"]})
        admin.must("PUT", "/namespaces/public/default")
        yield found


def admin_of(broker: Running) -> Admin:
    return Admin(str(broker.server.admin_url).replace("localhost", "127.0.0.1"))


def address_of(broker: Running) -> str:
    return broker.service_url.partition("://")[2]


def test_each_call_by_each_role(broker: Running) -> None:
    compare(REAL["calls"], dict(of_calls(admin_of(broker))), NOT_IN_4_0 | STRICTER.keys())


@pytest.mark.parametrize("version", OTHERS)
def test_other_releases_refuse_what_they_refuse(version: str) -> None:
    """The calls in which one differs from 4.0.7, and all else."""
    real, own = recorded(version), differing(version)
    settings = {"namespacesMustExist": True, "defaultNumberOfNamespaceBundles": 1}
    with running_on(
        lambda: EmbeddedEngine(profile=profile_of(version), settings=settings), SECURITY
    ) as found:
        admin = admin_of(found)
        admin.must("PUT", "/tenants/public", {"allowedClusters": ["standalone"]})
        admin.must("PUT", "/namespaces/public/default")
        calls = dict(of_calls(admin, own["calls"]))
        compare({what: real["calls"][what] for what in calls}, calls, {*STRICTER})
        compare(real["frames"], dict(of_frames(admin, address_of(found))))
        assert dict(of_connections(admin, address_of(found))) == real["connections"]
        compare(real["subscriptions"], dict(of_subscriptions(admin)))
        ours = {name: each for name, each in of_names(admin) if not name.endswith("without a token")}
        compare({name: real["names"][name] for name in ours}, ours, STRICTER.keys() | OTHER_WORDS)


def test_each_frame_by_each_role(broker: Running) -> None:
    compare(REAL["frames"], dict(of_frames(admin_of(broker), address_of(broker))))


def test_revoked_permissions_and_other_principals(broker: Running) -> None:
    ours = dict(of_connections(admin_of(broker), address_of(broker)))
    assert ours == REAL["connections"]


@pytest.mark.parametrize("seed", LIVES)
def test_permissions_that_change_at_random(broker: Running, seed: str) -> None:
    """As a real broker said, step by step: also that it closes what a client may not have any more."""
    assert first(LIVES[seed], here(broker, int(seed), quiet=0.1)) is None


def test_calls_on_subscriptions_of_others(broker: Running) -> None:
    compare(REAL["subscriptions"], dict(of_subscriptions(admin_of(broker))))


def test_names_that_are_not_there_and_roles_that_are_none(broker: Running) -> None:
    ours = dict(of_names(admin_of(broker)))
    for what in [name for name in ours if name.endswith("without a token")]:
        assert ours.pop(what) == [401, "Authentication required"]  # a page of HTML in Pulsar
        assert REAL["names"][what] == 401
    real = {name: REAL["names"][name] for name in ours}
    compare(
        real,
        ours,
        STRICTER.keys() | OTHER_WORDS,
    )


def test_each_call_has_a_decision() -> None:
    """A call without one can't even be routed; and only policies have decisions about calls that there are not."""
    found = {call[:2] for call in (*CALLS, *OWN, *BESIDE)}
    found |= {(method, path) for path in UNSUPPORTED for method in ("GET", "PUT", "POST", "DELETE")}
    assert found <= ASKS.keys()
    spare = {asks[0].kind for key, asks in ASKS.items() if key not in found}
    assert spare <= {"namespacePolicy", "topicPolicy"}


def test_what_is_refused_leaves_no_trace(broker: Running) -> None:
    admin, before = admin_of(broker), broker.call(lambda: broker.engine.folded.offset)
    stranger = Connection(address_of(broker), "stranger")
    for request, cmd in enumerate(("LOOKUP", "PARTITIONED_METADATA")):
        stranger.ask(cmd, {"topic": "persistent://public/default/t", "request_id": request})
    stranger.ask("PRODUCER", {"topic": "persistent://public/default/t", "producer_id": 1, "request_id": 3})
    stranger.close()
    assert admin.ask("stranger", "PUT", "/persistent/public/default/t")[0] == 403
    assert admin.ask("stranger", "DELETE", "/tenants/public")[0] == 401
    assert broker.call(lambda: broker.engine.folded.offset) == before


def test_the_official_client(broker: Running) -> None:
    admin, topic = admin_of(broker), "persistent://shop/n/t"
    admin.prepare("shop")
    roles: dict[str, Any] = {}
    for role in ("producer", "consumer", "stranger"):
        roles[role] = pulsar.Client(
            broker.service_url, pulsar.AuthenticationToken(token(role)), operation_timeout_seconds=3,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )  # fmt: skip
    consumer = roles["consumer"].subscribe(topic, "s")
    producer = roles["producer"].create_producer(topic)
    producer.send(b"hello")
    assert consumer.receive(5000).data() == b"hello"
    for role in ("stranger", "consumer"):
        with pytest.raises(pulsar.AuthorizationError):
            roles[role].create_producer(topic)
    for role in ("stranger", "producer"):
        with pytest.raises(pulsar.AuthorizationError):
            roles[role].subscribe(topic, "s")
    admin.must("POST", "/namespaces/shop/n/permissions/stranger", ["produce"])
    roles["stranger"].create_producer(topic).send(b"now it may")
    for client in roles.values():
        client.close()


def test_a_token_of_another_role_ends_the_connection(broker: Running) -> None:
    client = Connection(address_of(broker), "producer")
    response = {"auth_method_name": "token", "auth_data": token("stranger").encode()}
    assert client.ask("AUTH_RESPONSE", {"response": response, "protocol_version": 21})[0] == "CLOSED"
    client.close()


def test_superusers_can_change(broker: Running) -> None:
    admin = admin_of(broker)
    assert admin.ask("stranger", "GET", "/tenants")[0] == 401
    admin.must("POST", f"/brokers/configuration/superUserRoles/{SUPERUSER},stranger")
    assert admin.ask("stranger", "GET", "/tenants")[0] == 200
    admin.must("DELETE", "/brokers/configuration/superUserRoles")
    assert admin.ask("stranger", "GET", "/tenants")[0] == 401


def test_clients_without_a_token_may_have_a_role() -> None:
    settings = {**SETTINGS, "anonymousUserRole": TENANT_ADMIN}
    security = Security(None, TokenAuthentication.with_secret(SETTINGS["tokenSecretKey"]), settings=settings)
    with running(security=security, namespacesMustExist=True) as broker:
        admin = admin_of(broker)
        admin.prepare("shop")
        assert admin.ask(None, "GET", "/namespaces/shop")[0] == 200
        assert admin.ask(None, "GET", "/tenants")[0] == 401
        client = Connection(address_of(broker), "stranger", auth_method_name="none")
        topic = {"topic": "persistent://shop/n/t", "producer_id": 1, "request_id": 1}
        assert client.ask("PRODUCER", topic)[0] == "PRODUCER_SUCCESS"
        client.close()


def test_grants_are_in_the_log(tmp_path: Path) -> None:
    topic = {"topic": "persistent://shop/n/t", "producer_id": 1, "request_id": 1}
    for life in range(2):
        with running(tmp_path, security=SECURITY, namespacesMustExist=True) as broker:
            if life == 0:
                admin_of(broker).prepare("shop")
            producer, stranger = (Connection(address_of(broker), role) for role in ("producer", "stranger"))
            assert producer.ask("PRODUCER", topic)[0] == "PRODUCER_SUCCESS"
            assert stranger.ask("PRODUCER", topic)[0] == "ERROR"
            if life == 1:
                admin_of(broker).must("DELETE", "/namespaces/shop/n/permissions/producer")
                assert producer.next()[0] == "CLOSE_PRODUCER"
                stats = admin_of(broker).ask(SUPERUSER, "GET", "/persistent/shop/n/t/stats")[1]
                assert stats["publishers"] == []
            producer.close()
            stranger.close()


def test_a_server_before_a_query_refuses_it(tmp_path: Path) -> None:
    topics = ["--ingress", "kafka://127.0.0.1:1/a", "--responses", "kafka://127.0.0.1:1/b"]
    for more in ([], ["--engine", "spark", "--data", str(tmp_path)]):
        found = CliRunner().invoke(
            app, ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", *topics, *more,
                  "--token-secret-key", SETTINGS["tokenSecretKey"], "--set", "authorizationEnabled=true"]
        )  # fmt: skip
        assert found.exit_code == 2
        assert "permissions are in the state of the query" in found.output


def test_permissions_that_nothing_enforces_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with running(namespacesMustExist=True) as broker, caplog.at_level(logging.WARNING):
        admin_of(broker).prepare("shop")
    said = [each.message for each in caplog.records if "NOT enforced" in each.message]
    assert len(said) == 1


ON = {"authorizationEnabled": "true", "superUserRoles": "root"}


@pytest.mark.parametrize(
    ("settings", "embedded", "text"),
    [
        (ON, False, "permissions are in the state of the query"),
        (ON | {"proxyRoles": "proxy"}, True, "proxyRoles"),
        (ON | {"authorizationProvider": "com.example.Own"}, True, "authorizationProvider"),
        (ON | {"tokenAuthClaim": "role"}, True, "tokenAuthClaim"),
    ],
)
def test_what_authorization_can_not_do_is_refused(
    settings: dict[str, str], embedded: bool, text: str
) -> None:
    check_protection(ON, tokens=True, tls=False)
    check_protection(settings | {"authorizationEnabled": "false"}, tokens=True, tls=False, embedded=embedded)
    with pytest.raises(NotSupported, match=text):
        check_protection(settings, tokens=True, tls=False, embedded=embedded)


def test_the_roles_are_all_asked() -> None:
    asked = {role for _, roles in REAL["frames"]["PRODUCER"] for role in roles.split()}
    assert asked >= set(ROLES)
