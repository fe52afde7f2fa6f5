"""What the state says of a role: superusers, admins of tenants, and grants (docs/rules/authorization.md §2 to §5).

`tests/authorization` compares a server that asks with a real broker.
"""

from typing import Any

import pytest

from schemas.commands import Admin, Subscribe
from streaming.broker.authorization import Access, NotPrefixed, TenantMissing
from streaming.broker.topic.abstract_topic import Attached
from tests.broker.kit import TOPIC, Run

NAMESPACE = "public/default"
PARTITIONED = "persistent://public/default/parts"


def call(run: Run, method: Any, path: str, body: Any = None) -> None:
    run.do(Admin(method=method, path=path, body=body), None)


def granted() -> Run:
    run = Run()
    tenant = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
    call(run, "PUT", "/tenants/public", tenant)
    call(run, "PUT", "/namespaces/public/default")
    run.namespace("POST", "permissions/writer", ["produce"])
    run.namespace("POST", "permissions/reader", ["consume"])
    run.namespace("POST", "permissions/team-*", ["produce"])
    run.namespace("POST", "permissions/*-audit", ["consume"])
    run.create_producer()
    run.admin("POST", "/permissions/guest", ["consume"])
    call(run, "PUT", "/persistent/public/default/parts/partitions", 2)
    run.admin("POST", "/permissions/guest", ["produce"], PARTITIONED)
    return run


def access(run: Run, *, wildcards: bool = False) -> Access:
    return run.broker.access(frozenset({"root"}), wildcards=wildcards)


def test_superusers_and_admins_of_the_tenant_may_do_everything() -> None:
    of = access(granted())
    assert of.has_namespace(NAMESPACE)
    assert not of.has_namespace("public/none")
    for role in ("root", "boss"):
        assert of.is_admin(role, "public")
        assert of.may_namespace(role, NAMESPACE, "DELETE_TOPIC")
        assert of.may_topic(role, TOPIC, "TERMINATE")
    assert not of.is_admin("writer", "public")
    assert not of.is_superuser("boss")
    with pytest.raises(TenantMissing):
        of.is_admin("boss", "none")
    assert of.is_admin("root", "none")


def test_superusers_may_be_changed_while_the_broker_runs() -> None:
    run = granted()
    call(run, "POST", "/brokers/configuration/superUserRoles/lord%2C%20lady")
    assert [each for each in ("root", "lord", "lady") if access(run).is_superuser(each)] == ["lord", "lady"]


@pytest.mark.parametrize(
    ("role", "operation", "topic", "namespace"),
    [
        ("writer", "PRODUCE", True, False), ("writer", "CONSUME", False, False), ("writer", "LOOKUP", True, False),
        ("reader", "CONSUME", True, False), ("reader", "PRODUCE", False, False), ("reader", "GET_TOPICS", False, True),
        ("reader", "CLEAR_BACKLOG", False, True), ("writer", "CLEAR_BACKLOG", False, False), ("writer", "GET_TOPICS", False, True),
        ("guest", "CONSUME", True, False), ("guest", "PRODUCE", False, False), ("guest", "GET_TOPICS", False, False),
        ("nobody", "LOOKUP", False, False), ("reader", "TERMINATE", False, False),
    ],
)  # fmt: skip
def test_grants_allow_operations(role: str, operation: str, topic: bool, namespace: bool) -> None:
    of = access(granted())
    assert of.may_topic(role, TOPIC, operation) == topic
    assert of.may_namespace(role, NAMESPACE, operation) == namespace


def test_a_partition_has_what_its_topic_grants() -> None:
    of = access(granted())
    assert of.may_topic("guest", f"{PARTITIONED}-partition-1", "PRODUCE")
    assert not of.may_topic("guest", f"{PARTITIONED}-partition-1", "CONSUME")


def test_a_star_at_an_end_stands_for_roles_if_that_is_on() -> None:
    run = granted()
    asked = [
        ("team-a", "PRODUCE"),
        ("weekly-audit", "CONSUME"),
        ("team-a", "CONSUME"),
        ("a-team-", "PRODUCE"),
    ]
    assert [access(run, wildcards=True).may_topic(role, TOPIC, what) for role, what in asked] == [True, True, False, False]  # fmt: skip
    assert not any(access(run).may_topic(role, TOPIC, what) for role, what in asked)


def test_a_subscription_may_be_for_some_roles_alone() -> None:
    run = granted()
    run.namespace("POST", "permissions/subscription/s", ["other"])
    assert not access(run).may_topic("reader", TOPIC, "CONSUME", "s")
    assert access(run).may_topic("reader", TOPIC, "CONSUME", "t")
    run.namespace("POST", "subscriptionAuthMode", "Prefix")
    assert access(run).may_topic("reader", TOPIC, "CONSUME", "reader-1")
    with pytest.raises(NotPrefixed, match="like reader-xxxx for topic"):
        access(run).may_topic("reader", TOPIC, "CONSUME", "t")


def test_what_a_connection_has_in_a_namespace() -> None:
    """Whatever ids it uses, and however often: of each topic, its producers, those that wait for access, and its consumers."""
    run, elsewhere = Run(), "persistent://public/other/t"
    np = "non-persistent://public/default/t"
    for topic in (TOPIC, np, elsewhere):
        run.create_producer("p", connection="c", topic=topic, producer_access_mode="Exclusive")
    run.create_producer("q", id_=2, connection="c", producer_access_mode="WaitForExclusive")
    run.create_producer("r", id_=1, connection="d", producer_access_mode="WaitForExclusive")
    run.do(
        Subscribe(connection="c", consumer_id=1, request_id=9, subscription="s", subType="Shared"), elsewhere
    )
    for number in (1, 3):
        run.do(
            Subscribe(
                connection="c", consumer_id=number, request_id=9, subscription=f"s{number}", subType="Shared"
            )
        )
    of = run.broker.attached
    assert of("c", NAMESPACE) == [
        Attached(TOPIC, 1, None), Attached(TOPIC, 2, None), Attached(TOPIC, 1, "s1"), Attached(TOPIC, 3, "s3"), Attached(np, 1, None)
    ]  # fmt: skip
    assert of("c", "public/other") == [Attached(elsewhere, 1, None), Attached(elsewhere, 1, "s")]
    assert of("d", NAMESPACE) == [Attached(TOPIC, 1, None)]
    assert of("c", "public/none") == of("e", NAMESPACE) == []
    has = run.broker.has_attached
    assert all(has("c", each) for each in (*of("c", NAMESPACE), *of("c", "public/other")))
    assert has("c", Attached(TOPIC, 1, "whatever"))
    for topic, number, subscription in (
        (TOPIC, 3, None),
        (TOPIC, 2, ""),
        (elsewhere, 3, ""),
        ("persistent://public/default/none", 1, None),
    ):
        assert not has("c", Attached(topic, number, subscription))
    assert not has("e", Attached(TOPIC, 1, None))
