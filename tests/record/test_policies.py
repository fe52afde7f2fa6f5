"""What the admin API of a cluster says of its settings and policies, as calls."""

from typing import Any

import pytest

from streaming.broker.config import configuration
from streaming.record.policies import PolicyCall, namespace_policies, settings_of, topic_policies
from streaming.record.rest import CallFailed, Rest, Said

pytestmark = pytest.mark.feature("K3")

RATE = {"dispatchThrottlingRateInMsg": 3}


class Told(Rest):
    """A cluster that says what it is told to."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__("http://localhost:8080")
        self.answers, self.asked = answers, list[str]()

    def get(self, path: str, type_: Any = Any) -> Any:
        """An answer; without one, the call fails."""
        self.asked.append(path)
        if path not in self.answers:
            raise CallFailed(path)
        return self.answers[path]


def told(version: str, **settings: str) -> Told:
    return Told({"/brokers/version": version, "/brokers/configuration/runtime": settings})


def test_the_settings_that_are_not_the_profiles() -> None:
    found = settings_of(
        told(
            "4.0.7", clusterName="prod", ttlDurationDefaultInSeconds="60", maxProducersPerTopic="0", numIOThreads="8",
            entryFilterNames="[]", subscriptionTypesEnabled="[Failover, Shared, Key_Shared, Exclusive]",
            brokerDeleteInactiveTopicsMaxInactiveDurationSeconds="", namespacesMustExist="true",
        )
    )  # fmt: skip
    assert found.settings == {"clusterName": "prod", "ttlDurationDefaultInSeconds": "60"}
    assert (found.version, found.profile, found.cluster, found.refused) == ("4.0.7", "4.0", "prod", [])


def test_the_settings_that_can_not_be_applied() -> None:
    found = settings_of(
        told(
            "4.0.7",
            transactionCoordinatorEnabled="true",
            entryFilterNames="[a]",
            ofTheFuture="1",
            ofAFork="2",
        )
    )
    assert found.settings == {}
    assert found.refused == [
        "transactionCoordinatorEnabled: transactions are those of the log, and policies can't turn them on",
        "unknown entry filters: a",
        "2 settings that no known release has, such as ofTheFuture",
    ]


def test_a_server_of_magnetar_has_no_unknown_settings() -> None:
    server = configuration("2.10", {"ttlDurationDefaultInSeconds": 5})
    found = settings_of(told("2.10.5", **server.as_texts()))
    assert (found.settings, found.refused) == ({"ttlDurationDefaultInSeconds": "5"}, [])


def test_one_request_and_one_call_for_the_policies_of_a_namespace() -> None:
    shown = {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "replication_clusters": ["prod"],
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "backlog_quota_map": {},
        "topicDispatchRate": {"prod": RATE, "other": {"dispatchThrottlingRateInMsg": 4}},
        "clusterDispatchRate": {"prod": RATE},
        "message_ttl_in_seconds": 60,
        "is_allow_auto_update_schema": True,
        "offload_policies": {"s3ManagedLedgerOffloadCredentialSecret": "secret"},
        "entryFilters": {"entryFilterNames": "a"},
    }
    rest = Told({"/namespaces/public/n": shown})
    found = namespace_policies(rest, "public/n", "prod")
    assert rest.asked == ["/namespaces/public/n"]
    body = {
        "bundles": shown["bundles"],
        "topicDispatchRate": {"standalone": RATE},
        "message_ttl_in_seconds": 60,
    }
    assert found.calls == [PolicyCall("PUT", "/namespaces/public/n", body)]
    assert [each.partition(": entry filters")[0] for each in found.refused] == [
        "/namespaces/public/n: entryFilters"
    ]


def test_a_namespace_without_policies_needs_no_call() -> None:
    shown: dict[str, Any] = {"message_ttl_in_seconds": None, "backlog_quota_map": {}, "deleted": False}
    assert namespace_policies(Told({"/namespaces/a/b": shown}), "a/b", None) == ([], [])


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_policy_of_a_topic_that_is_refused_says_how(status: int) -> None:
    """So that a lack of rights is told from a cluster that fails."""

    class Refusing(Rest):
        def call(self, method: str, path: str, body: Any = None) -> Said:
            return Said(status, None)

    with pytest.raises(CallFailed) as failed:
        list(topic_policies(Refusing("http://localhost:8080"), "/persistent/public/default/t"))
    assert failed.value.status == status


def test_a_policy_that_may_have_passwords_is_not_asked_for() -> None:
    class Telling(Rest):
        def call(self, method: str, path: str, body: Any = None) -> Said:
            name = path.rpartition("/")[2]
            value = {
                "offloadPolicies": {"s3ManagedLedgerOffloadCredentialSecret": "PASSWORD"},
                "maxConsumers": 3,
            }
            return Said(200, value[name]) if name in value else Said(404, None)

    path = "/persistent/public/default/t"
    found = [*topic_policies(Telling("http://localhost:8080"), path)]
    assert found == [PolicyCall("POST", f"{path}/maxConsumers", 3)]
