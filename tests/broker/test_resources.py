"""Clusters, resource groups, quotas, racks and dynamic settings, which the admin API keeps (I5). The answers are those of Pulsar 4.0.7."""

from typing import Any

import msgspec
import pytest

from schemas.commands import Admin, Profile
from schemas.effects import AdminResponse
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from tests.broker.kit import Run, one

pytestmark = pytest.mark.feature("I5")

CLUSTER = {"serviceUrl": "http://h:8080", "brokerServiceUrl": "pulsar://h:6650"}


@pytest.fixture
def run() -> Run:
    return Run(namespacesMustExist=True)


def call(run: Run, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and response; of a refusal, its reason."""
    effects = run.do(Admin(method=method, path=path, body=body), None)  # type: ignore[arg-type]
    fields = one(effects, AdminResponse).fields
    response: Any = None if fields.response is msgspec.UNSET else fields.response
    return fields.status, response["reason"] if fields.status >= 400 else response


def test_a_cluster_from_its_creation_to_its_deletion(run: Run) -> None:
    assert call(run, "GET", "/clusters") == (200, ["standalone"])
    assert call(run, "PUT", "/clusters/c", CLUSTER) == (200, None)
    assert call(run, "PUT", "/clusters/c", CLUSTER) == (409, "Cluster already exists")
    assert call(run, "GET", "/clusters") == (200, ["c", "standalone"])
    assert call(run, "GET", "/clusters/c")[1] == CLUSTER | {
        "brokerClientTlsEnabled": False, "tlsAllowInsecureConnection": False, "brokerClientTlsEnabledWithKeyStore": False,
    }  # fmt: skip
    assert call(run, "POST", "/clusters/c", {"serviceUrl": "http://h:8081"}) == (200, None)
    run.broker = Broker.decode(run.broker.encode(), NoEntries())
    assert call(run, "GET", "/clusters/c")[1]["serviceUrl"] == "http://h:8081"
    assert call(run, "POST", "/clusters/c/peers", ["standalone"]) == (204, None)
    assert call(run, "GET", "/clusters/c/peers") == (200, ["standalone"])
    assert call(run, "DELETE", "/clusters/c") == (204, None)
    assert call(run, "DELETE", "/clusters/c") == (404, "Cluster does not exist")


@pytest.mark.parametrize(("profile", "status"), [("4.0", 200), ("2.10", 204)])
def test_peers_that_there_are_and_that_there_are_not(profile: Profile, status: int) -> None:
    run = Run(profile=profile, namespacesMustExist=True)
    assert call(run, "GET", "/clusters/standalone/peers") == (status, None)
    call(run, "PUT", "/clusters/c", CLUSTER)
    call(run, "POST", "/clusters/c/peers", ["standalone"])
    assert call(run, "GET", "/clusters/c/peers") == (200, ["standalone"])


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("PUT", "/clusters/c", None, (400, "cluster data is required")),
        ("PUT", "/clusters/c", {"serviceUrl": "x"}, (400, "Illegal service url, example: http://pulsar.example.com:8080")),
        ("PUT", "/clusters/a*b", CLUSTER, (412, "Cluster name is not valid")),
        ("POST", "/clusters/c", CLUSTER, (404, "Cluster does not exist")),
        ("GET", "/clusters/c/peers", None, (404, "Cluster does not exist")),
        ("POST", "/clusters/standalone/peers", ["c"], (412, "Peer cluster c does not exist")),
        ("POST", "/clusters/standalone/peers", ["standalone"], (412, "standalone itself can't be part of peer-list")),
        ("GET", "/clusters/c/failureDomains/d", None, (412, "Cluster c does not exist.")),
        ("POST", "/clusters/c/failureDomains/d", {"brokers": []}, (412, "Cluster c does not exist.")),
        ("GET", "/clusters/standalone/failureDomains/d", None, (404, "Domain d for cluster standalone does not exist")),
        ("DELETE", "/clusters/standalone/failureDomains/d", None, (404, "Domain-name d or cluster standalone does not exist")),
        ("GET", "/clusters/c/namespaceIsolationPolicies", None, (404, "Cluster c does not exist.")),
        ("GET", "/clusters/standalone/namespaceIsolationPolicies", None, (404, "NamespaceIsolationPolicies for cluster standalone does not exist")),
        ("POST", "/clusters/standalone/namespaceIsolationPolicies/p", {}, (400, "namespaces, primary and auto_failover_policy are required")),
        ("DELETE", "/clusters/standalone", None, (501, "the cluster standalone can't be deleted: it is the broker's own")),
        ("GET", "/resourcegroups/g", None, (404, "ResourceGroup does not exist")),
        ("PUT", "/resourcegroups/g", None, (412, "ResourceGroup is null")),
        ("GET", "/bookies/racks-info/b", None, (404, "Bookie rack placement configuration not found: b")),
        ("POST", "/bookies/racks-info/b", {"rack": "r"}, (412, "Bookie 'group' parameters is missing")),
        ("POST", "/brokers/configuration/maxMessageSize/5", None, (412, "Can't update non-dynamic configuration")),
        ("DELETE", "/brokers/configuration/nonsense", None, (412, "Can't delete non-dynamic configuration")),
        ("GET", "/resource-quotas/t/n/0x00000000_0xffffffff", None, (404, "Tenant does not exist")),
    ],
)  # fmt: skip
def test_refusals(run: Run, method: str, path: str, body: Any, expected: tuple[int, str]) -> None:
    assert call(run, method, path, body) == expected


def test_failure_domains_and_isolation_policies(run: Run) -> None:
    path, policy = "/clusters/standalone", {"namespaces": ["a"], "primary": ["b"], "auto_failover_policy": {"policy_type": "min_available"}}  # fmt: skip
    assert call(run, "POST", f"{path}/failureDomains/d", {"brokers": ["b"]}) == (204, None)
    assert call(run, "POST", f"{path}/failureDomains/e", {"brokers": ["b"]})[0] == 409
    assert call(run, "POST", f"{path}/failureDomains/e", {"brokers": ["c", "b"]}) == (
        409,
        "[b] already exists in d",
    )
    assert call(run, "GET", f"{path}/failureDomains") == (200, {"d": {"brokers": ["b"]}})
    for brokers in (["c"], ["c", "f"]):
        assert call(run, "POST", f"{path}/failureDomains/e", {"brokers": brokers}) == (204, None)
    assert call(run, "GET", f"{path}/failureDomains/e") == (200, {"brokers": ["c", "f"]})
    assert call(run, "GET", f"{path}/failureDomains/d") == (200, {"brokers": ["b"]})
    assert call(run, "DELETE", f"{path}/failureDomains/d") == (200, None)
    assert call(run, "POST", f"{path}/namespaceIsolationPolicies/p", policy) == (204, None)
    assert call(run, "GET", f"{path}/namespaceIsolationPolicies/p") == (200, policy)
    assert call(run, "DELETE", f"{path}/namespaceIsolationPolicies/p") == (204, None)
    assert call(run, "GET", f"{path}/namespaceIsolationPolicies/p")[0] == 404
    assert call(run, "GET", f"{path}/namespaceIsolationPolicies") == (200, {})


def test_a_cluster_may_be_migrated(run: Run) -> None:
    """As 4.0.7 has it: where clients go on is kept beside the cluster."""
    path, where = "/clusters/other", {"serviceUrl": "http://b:8080", "brokerServiceUrl": "pulsar://b:6650"}
    for cluster in ("standalone", "other"):
        assert call(run, "GET", f"/clusters/{cluster}/migrate") == (404, "Cluster does not exist")
    assert call(run, "PUT", path, {"serviceUrl": "http://h:8080"}) == (200, None)
    assert call(run, "POST", f"{path}/migrate?migrated=true", where) == (200, None)
    shown = {"migrated": True, "migratedClusterUrl": where | {"empty": False}}
    assert call(run, "GET", f"{path}/migrate") == (200, shown)
    assert call(run, "POST", f"{path}/migrate?migrated=false") == (200, None)
    assert call(run, "GET", f"{path}/migrate")[1] == {
        "migrated": False,
        "migratedClusterUrl": {"empty": True},
    }
    assert call(run, "DELETE", path) == (204, None)
    assert call(run, "GET", "/clusters") == (200, ["other", "standalone"])  # quirk
    assert call(run, "PUT", "/tenants/t", {"allowedClusters": ["other", "standalone"]}) == (204, None)
    assert call(run, "POST", "/clusters/standalone/migrate?migrated=true", where)[0] == 501


def test_resource_groups_and_quotas(run: Run) -> None:
    assert call(run, "PUT", "/resourcegroups/g", {"publishRateInMsgs": 5}) == (204, None)
    assert call(run, "PUT", "/resourcegroups/g", {"publishRateInBytes": 6}) == (204, None)
    assert call(run, "GET", "/resourcegroups/g")[1] == {
        "publishRateInMsgs": 5, "publishRateInBytes": 6, "dispatchRateInMsgs": -1, "dispatchRateInBytes": -1,
    }  # fmt: skip
    assert call(run, "GET", "/resourcegroups") == (200, ["g"])
    assert call(run, "DELETE", "/resourcegroups/g") == (204, None)
    assert call(run, "GET", "/resource-quotas")[1]["msgRateIn"] == 40.0
    assert call(run, "POST", "/resource-quotas", {"msgRateIn": 1}) == (204, None)
    assert call(run, "GET", "/resource-quotas")[1]["msgRateIn"] == 1.0


def test_the_quota_of_a_bundle_hides_the_default(run: Run) -> None:
    path = "/resource-quotas/t/n/0x00000000_0xffffffff"
    assert call(run, "PUT", "/tenants/t", {"allowedClusters": ["standalone"]}) == (204, None)
    assert call(run, "PUT", "/namespaces/t/n") == (204, None)
    assert call(run, "GET", path.replace("/n/", "/none/")) == (404, "Namespace does not exist")
    assert call(run, "POST", path, {"msgRateIn": 7}) == (204, None)
    assert call(run, "GET", path)[1]["msgRateIn"] == 7.0
    assert call(run, "DELETE", path) == (204, None)
    assert call(run, "GET", path)[1]["msgRateIn"] == 40.0


def test_racks(run: Run) -> None:
    info = {"rack": "r", "hostname": "h"}
    assert call(run, "POST", "/bookies/racks-info/b:1?group=g", info) == (204, None)
    assert call(run, "GET", "/bookies/racks-info") == (200, {"g": {"b:1": info}})
    assert call(run, "GET", "/bookies/racks-info/b:1") == (200, info)
    assert call(run, "DELETE", "/bookies/racks-info/b:1") == (204, None)
    assert call(run, "GET", "/bookies/all") == (200, {"bookies": []})


def test_a_dynamic_setting_takes_effect_until_it_is_removed(run: Run) -> None:
    path, runtime = "/brokers/configuration", "/brokers/configuration/runtime"
    initial = run.broker.config
    assert "maxTopicsPerNamespace" in call(run, "GET", path)[1]
    before = call(run, "GET", runtime)[1]
    assert call(run, "POST", f"{path}/maxTopicsPerNamespace/7") == (200, None)
    assert call(run, "POST", f"{path}/maxTenants/3") == (200, None)
    assert call(run, "GET", f"{path}/values") == (200, {"maxTopicsPerNamespace": "7", "maxTenants": "3"})
    assert call(run, "GET", runtime) == (200, before | {"maxTopicsPerNamespace": "7"})
    assert call(run, "POST", f"{path}/maxTopicsPerNamespace/x") == (200, None)  # quirk: kept, without effect
    assert call(run, "GET", f"{path}/values")[1]["maxTopicsPerNamespace"] == "x"
    assert call(run, "GET", runtime)[1]["maxTopicsPerNamespace"] == "7"
    run.broker = Broker.decode(run.broker.encode(), NoEntries())
    assert run.broker.initial_config == initial != run.broker.config
    assert call(run, "DELETE", f"{path}/maxTopicsPerNamespace") == (200, None)
    assert run.broker.initial_config == initial == run.broker.config
    assert call(run, "GET", runtime)[1]["maxTopicsPerNamespace"] == "0"
    assert call(run, "GET", f"{path}/values") == (200, {"maxTenants": "3"})


def test_a_dynamic_setting_outlives_the_configuration(run: Run) -> None:
    """As the metadata store of a cluster outlives its brokers."""
    path, runtime = "/brokers/configuration", "/brokers/configuration/runtime"
    run.configure(maxTopicsPerNamespace=1, defaultNumPartitions=5)
    assert call(run, "POST", f"{path}/maxTopicsPerNamespace/7") == (200, None)
    assert call(run, "POST", f"{path}/defaultNumPartitions/x") == (200, None)  # without effect
    run.broker = Broker.decode(run.broker.encode(), NoEntries())
    for number in (2, 3):
        run.configure(maxTopicsPerNamespace=number, defaultNumPartitions=number)
        assert call(run, "GET", f"{path}/values")[1]["maxTopicsPerNamespace"] == "7"
        found = call(run, "GET", runtime)[1]
        assert [found["maxTopicsPerNamespace"], found["defaultNumPartitions"]] == ["7", str(number)]
    assert call(run, "DELETE", f"{path}/maxTopicsPerNamespace") == (200, None)
    assert call(run, "GET", runtime)[1]["maxTopicsPerNamespace"] == "3"


def test_a_command_between_two_records(run: Run) -> None:
    """It belongs to the last record, and the next one has the next offset."""
    before = run.broker.offset
    run.broker.apply_between(
        run.now, None, Admin(method="POST", path="/brokers/configuration/maxTopicsPerNamespace/7")
    )
    assert run.broker.offset == before
    assert {row.offset for row in run.broker.take()} == {before}
    assert run.broker.config.maxTopicsPerNamespace == 7
    assert call(run, "GET", "/brokers/configuration/values") == (200, {"maxTopicsPerNamespace": "7"})
