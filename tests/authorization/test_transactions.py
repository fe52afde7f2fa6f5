"""Transactions of several roles: what each is told of those of others, compared with a real Pulsar 4.0.7."""

import json
from pathlib import Path
from typing import Any

import pytest

from streaming.server.authentication import TokenAuthentication
from streaming.server.server import Security
from tests.authorization.questions import Admin, Connection
from tests.authorization.test_authorization import compare
from tests.authorization.transactions import ALONE, BOTH, RECORDED, questions
from tests.server.conftest import Running, running

pytestmark = pytest.mark.feature("I8", "L1")

REAL: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text())


def _server(settings: dict[str, str], folder: Path | None = None) -> Any:
    tokens = TokenAuthentication.with_secret(settings["tokenSecretKey"])
    return running(
        folder,
        security=Security(None, tokens, settings=settings),
        transactionCoordinatorEnabled=True,
        defaultNumberOfNamespaceBundles=1,
    )


def _address(broker: Running) -> str:
    return broker.service_url.partition("://")[2]


def _admin(broker: Running) -> Admin:
    admin = Admin(str(broker.server.admin_url).replace("localhost", "127.0.0.1"))
    for tenant in ("pulsar", "public"):
        admin.must("PUT", f"/tenants/{tenant}", {"allowedClusters": ["standalone"]})
    admin.must("PUT", "/namespaces/pulsar/system")
    return admin


@pytest.mark.parametrize(("recorded", "settings"), [("authorization", BOTH), ("tokens alone", ALONE)])
def test_whose_transaction_it_is(recorded: str, settings: dict[str, str]) -> None:
    with _server(settings) as broker:
        ours = dict(questions(_admin(broker), _address(broker), authorized=settings is BOTH))
    real = REAL[recorded]
    calls, ours_of_calls = (
        {name: each[name] for name in each if name.startswith(("GET ", "POST "))} for each in (real, ours)
    )
    compare(calls, ours_of_calls)
    assert {name: ours[name] for name in ours.keys() - calls} == {
        name: real[name] for name in real.keys() - calls
    }


def test_an_owner_is_in_the_log(tmp_path: Path) -> None:
    asked = {"txnid_least_bits": 0, "txnid_most_bits": 0, "txn_action": "COMMIT"}
    connect = "TC_CLIENT_CONNECT_REQUEST", {"request_id": 0, "tc_id": 0}
    with _server(ALONE, tmp_path) as broker:
        owner = Connection(_address(broker), "producer")
        owner.ask(*connect)
        assert owner.ask("NEW_TXN", {"request_id": 1, "txn_ttl_seconds": 600_000})[0] == "NEW_TXN_RESPONSE"
        owner.close()
    with _server(ALONE, tmp_path) as broker:
        for role, error in (("stranger", "TransactionNotFound"), ("producer", None)):
            client = Connection(_address(broker), role)
            client.ask(*connect)
            assert client.ask("END_TXN", {"request_id": 2, **asked})[1].get("error") == error
            client.close()
