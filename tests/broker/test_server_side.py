"""What a server that holds the clock and the connections asks of the broker."""

from typing import Any

import pytest

from schemas.commands import Admin, Subscribe
from schemas.effects import AdminResponse
from streaming.broker.admin import dynamic_settings
from streaming.broker.context import NEVER
from streaming.broker.position import Position
from tests.broker.kit import START, TOPIC, Run, one


def answer(run: Run, method: str, path: str, body: Any = None, topic: str | None = None) -> tuple[int, Any]:
    fields = one(run.do(Admin(method=method, path=path, body=body), topic), AdminResponse).fields  # type: ignore[arg-type]
    return fields.status, fields.response


@pytest.mark.feature("K1")
def test_what_is_due_next() -> None:
    run = Run()
    assert run.broker.next_due() == NEVER
    assert run.broker.pending_timers() == []
    run.publish(0)
    due = run.broker.next_due()
    assert run.broker.pending_timers()[0] == (due, TOPIC)
    run.wait((due - START) / 1000)
    assert run.broker.next_due() > due


def test_connections_are_those_with_clients() -> None:
    run = Run()
    assert run.broker.connections == []
    run.do(Subscribe(connection="c9", subscription="s", consumer_id=1, request_id=1, subType="Shared"))
    assert run.broker.connections == ["c9"]


def test_entries_that_were_stored_are_read_through_the_reader() -> None:
    run = Run()
    run.publish(0)
    entries = run.broker._ctx.entries
    assert entries.get(TOPIC, Position(1, 0)).size > 0
    run.broker.stored()
    with pytest.raises(LookupError):  # this broker has no reader
        entries.get(TOPIC, Position(1, 0))


def test_the_configuration_at_runtime() -> None:
    run = Run(maxMessageSize=77, namespacesMustExist=False)
    status, settings = answer(run, "GET", "/brokers/configuration/runtime")
    assert status == 200
    assert (settings["maxMessageSize"], settings["namespacesMustExist"]) == ("77", "false")


def test_a_namespace_takes_put_and_delete_alone() -> None:
    status, _ = answer(Run(), "POST", "/namespaces/public/n", {})
    assert status == 405


def test_a_partition_takes_no_policies_where_namespaces_must_exist() -> None:
    run = Run(namespacesMustExist=True)
    info = {"adminRoles": [], "allowedClusters": ["standalone"]}
    assert answer(run, "PUT", "/tenants/public", info)[0] == 204
    assert answer(run, "PUT", "/namespaces/public/default")[0] == 204
    path = "/persistent/public/default/parts"
    assert answer(run, "PUT", f"{path}/partitions", 2)[0] == 204
    partition = "persistent://public/default/parts-partition-0"
    status, response = answer(run, "POST", f"{path}-partition-0/messageTTL", 5, partition)
    assert (status, response["reason"]) == (412, "Not allowed to set/get topic policy for a partition")


@pytest.mark.parametrize(
    ("method", "path", "setting"),
    [
        ("POST", "/brokers/configuration/maxProducersPerTopic/5", "maxProducersPerTopic"),
        ("DELETE", "/brokers/configuration/maxProducersPerTopic", "maxProducersPerTopic"),
        ("GET", "/brokers/configuration/values", None),
        ("POST", "/brokers/health", None),
    ],
)
def test_the_setting_that_a_call_changes(method: Any, path: str, setting: str | None) -> None:
    assert dynamic_settings.setting_of(Admin(method=method, path=path)) == setting
