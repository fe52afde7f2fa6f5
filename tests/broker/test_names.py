"""No name is reserved in one way in and open in another (`streaming.broker.names`).

Every way in which a name can come into the state gets every hostile name. Whatever the broker answers, it holds only names
that the gate lets in, and goes on: after an unload, a restart, and from its encoded state.
"""

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from schemas.commands import Admin, Publish, Restart
from schemas.effects import Error, Success
from streaming.broker import admin_requests, names
from streaming.broker.admin_requests import call_of, topic_of, topic_path
from streaming.broker.broker import Broker
from streaming.broker.names import partition_index
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.schema import schema_registry
from tests.broker.kit import TOPIC, Run, Stored, feed, one
from tests.examples import examples

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.feature("B2", "I5")

NON_PERSISTENT = "non-persistent://public/default/t"
PARTITIONED = "persistent://public/default/whole"

HOSTILE = (
    "pulsar.dedup", "pulsar.repl", "pulsar.repl.west", "pulsar.replicator", "__compaction", "multiTopicsReader-x", "", " ", "\t\n",
    "\0", ".", "..", "a/b", "a%2Fb", "a?force=true", "é\u202e", "-partition-0", "x-partition-" + "9" * 30, "x-partition-٣",
    "x-partition-" + "9" * 4500, "n" * 5000,
)  # fmt: skip

Way = Callable[[Run, str], object]


def _path(name: str) -> str:
    return quote(name, safe="")


WAYS: dict[str, Way] = {
    "SUBSCRIBE": lambda run, name: run.subscribe(name, connection="c"),
    "SUBSCRIBE, not durable": lambda run, name: run.subscribe(name, connection="c", durable=False),
    "SUBSCRIBE, not persistent": lambda run, name: run.subscribe(
        name, topic=NON_PERSISTENT, connection="c"
    ),
    "SUBSCRIBE, a partition": lambda run, name: run.subscribe(
        name, topic=f"{PARTITIONED}-partition-0", connection="c"
    ),
    "PRODUCER, its initial subscription": lambda run, name: run.create_producer(
        "q", 7, initial_subscription_name=name
    ),
    "PRODUCER, its initial subscription, not persistent": lambda run, name: run.create_producer(
        "q", 7, topic=NON_PERSISTENT, initial_subscription_name=name
    ),
    "PUT of a subscription": lambda run, name: run.admin("PUT", f"/subscription/{_path(name)}"),
    "PUT of a subscription, not persistent": lambda run, name: run.admin(
        "PUT", f"/subscription/{_path(name)}", topic=NON_PERSISTENT
    ),
    "peek": lambda run, name: run.admin("GET", f"/subscription/{_path(name)}/position/1"),
    "reset": lambda run, name: run.admin("POST", f"/subscription/{_path(name)}/resetcursor/1"),
    "PRODUCER": lambda run, name: run.create_producer(name, 7),
    "PRODUCER, exclusive": lambda run, name: run.create_producer(
        name, 7, topic=f"{TOPIC}-own", producer_access_mode="WaitForExclusive"
    ),
    "PRODUCER, not persistent": lambda run, name: run.create_producer(name, 7, topic=NON_PERSISTENT),
    "the short form": lambda run, name: run.publish(1, name),
    "the short form, not persistent": lambda run, name: run.publish(1, name, NON_PERSISTENT),
    "a topic": lambda run, name: run.publish(1, topic=f"persistent://public/default/{name}"),
    "a topic, not persistent": lambda run, name: run.publish(1, topic=f"non-persistent://public/default/{name}"),
    "a topic of a tenant": lambda run, name: run.publish(1, topic=f"persistent://{name}/default/t"),
    "a topic of a namespace": lambda run, name: run.publish(1, topic=f"persistent://public/{name}/t"),
    "PUT of a topic": lambda run, name: run.admin("PUT", "", topic=f"persistent://public/default/{_path(name)}"),
    "PUT of partitions": lambda run, name: run.admin(
        "PUT", "/partitions", 2, topic=f"persistent://public/default/{_path(name)}"
    ),
    "PUT of a tenant": lambda run, name: _call(
        run, "PUT", f"/tenants/{_path(name)}", {"allowedClusters": ["standalone"]}
    ),
    "PUT of a namespace": lambda run, name: _call(run, "PUT", f"/namespaces/public/{_path(name)}"),
    "PUT of a namespace of a tenant": lambda run, name: _call(run, "PUT", f"/namespaces/{_path(name)}/default"),
    "a policy": lambda run, name: _call(run, "POST", f"/namespaces/public/{_path(name)}/messageTTL", 60),
    "permissions": lambda run, name: _call(
        run, "POST", f"/namespaces/public/{_path(name)}/permissions/role", ["consume"]
    ),
}  # fmt: skip
"""Each way in which a name comes in."""


def _call(run: Run, method: str, path: str, body: Any = None) -> object:
    return run.do(Admin(method=method, path=path, body=body), None)  # type: ignore[arg-type]


class Lively(Run):
    """A broker with a topic of each kind, whose entries can be read again."""

    def __init__(self, *, deduplication: bool) -> None:
        self.store = Stored()
        super().__init__(reader=self.store, brokerDeduplicationEnabled=deduplication)
        self.admin("PUT", "/partitions", 2, topic=PARTITIONED)
        for topic in (TOPIC, NON_PERSISTENT):
            self.publish(0, topic=topic)

    def raw(self, value: bytes, topic: str | None = TOPIC) -> list[Any]:
        effects = super().raw(value, topic)
        self.store.add(effects)
        return effects

    def use(self) -> None:
        """Use every topic and every subscription that there is."""
        for name in self.broker.topic_names():
            self.do(Publish(producer="p", sequence_id=self.request()), name)
            self.subscribe("user", "Shared", topic=name, connection=f"user of {name}", permits=10)
            self.admin("GET", "/stats", topic=name)
        for check in (
            "messageExpiry",
            "backlogQuota",
            "consumedLedgers",
            "deduplicationSnapshot",
            "inactiveProducers",
        ):
            self.check(check)  # fmt: skip
        self.broker.stats()


def let_in(broker: Broker) -> Iterator[tuple[str, str]]:
    """The names in the state that the gate would not let in: (kind, name)."""
    state = broker._state
    for tenant in state.tenants:
        if not names.is_tenant_name(tenant):
            yield "tenant", tenant
    for namespace in state.namespaces:
        if not names.is_namespace_name(namespace):
            yield "namespace", namespace
    for topic in (*state.topics, *state.partitioned, *state.partitioned_topics):
        if not names.is_topic_name(topic):
            yield "topic", topic
    for topic, found in broker.topics().items():
        subscriptions: Any = getattr(found, "subscriptions", {})
        for subscription in subscriptions:
            if not names.is_subscription_name(subscription):
                yield f"subscription of {topic}", subscription
        if isinstance(found, PersistentTopic):
            assert found.cursors.keys() - {names.DEDUP_CURSOR} == subscriptions.keys()


def holds(way: Way, name: str, *, deduplication: bool) -> None:
    run = Lively(deduplication=deduplication)
    way(run, name)
    assert list(let_in(run.broker)) == []
    run.use()
    run.unload()
    run.use()
    for switched in (not deduplication, deduplication):
        run.admin("POST", "/deduplicationEnabled", switched)
        run.use()
    run.broker = Broker.decode(run.broker.encode(), run.store)
    run.do(Restart(), None)
    run.broker = Broker.decode(run.broker.encode(), run.store)
    run.use()
    assert list(let_in(run.broker)) == []
    Broker.decode(run.broker.encode(), run.store).topics()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("deduplication", [False, True], ids=["", "deduplication"])
def test_every_way_in_holds_against_every_hostile_name(way: str, deduplication: bool) -> None:
    for name in HOSTILE:
        holds(WAYS[way], name, deduplication=deduplication)


@given(st.sampled_from(sorted(WAYS)), st.text(max_size=20) | st.sampled_from(HOSTILE), st.booleans())
@settings(max_examples=examples(150), deadline=None)
def test_every_way_in_holds_against_any_name(way: str, name: str, deduplication: bool) -> None:
    if not any("\ud800" <= letter <= "\udfff" for letter in name):  # no command has these
        holds(WAYS[way], name, deduplication=deduplication)


@pytest.mark.parametrize("way", [way for way in WAYS if "subscription" in way or "SUBSCRIBE" in way])
@pytest.mark.parametrize("name", ["pulsar.dedup", "pulsar.repl.west", " "])
def test_no_subscription_gets_a_reserved_name(way: str, name: str) -> None:
    run = Lively(deduplication=False)
    WAYS[way](run, name)
    assert all(name not in getattr(topic, "subscriptions", {}) for topic in run.broker.topics().values())


def test_a_producer_is_refused_whose_initial_subscription_has_a_reserved_name() -> None:
    run = Run()
    refused = one(run.create_producer(initial_subscription_name="pulsar.dedup"), Error)
    assert (refused.error, refused.cause) == ("ProducerBusy", "'pulsar.dedup' is empty or reserved")
    assert not run.topic.producers


def test_the_log_that_stopped_every_broker_folds() -> None:
    """A PRODUCER whose initial subscription was named as the cursor of deduplication, and a RESTART."""
    broker = Broker(0, Stored())
    log = Path(__file__).with_name("reserved_subscription.jsonl").read_bytes().splitlines()
    for offset, line in enumerate(log):
        record = json.loads(line)
        feed(broker, offset, record["timestamp"], record.get("topic"), line)
        broker.encode()
    assert len(broker.topics()) == 2


CREATES = {
    "subscriptions": {"persistent/subscribing.py": 2, "non_persistent/consumers.py": 1},
    "cursors": {"persistent/subscribing.py": 2, "persistent/publish/deduplication_snapshots.py": 1},
    "producers": {"topic/registration.py": 1},
    "tenants": {"admin/tenants.py": 2},
}
"""How often each file of the core gives a thing a name. What is new here must ask the gate, and needs a way in above."""


def test_only_these_places_give_names() -> None:
    core = Path(names.__file__).parent
    found: dict[str, dict[str, int]] = {kind: {} for kind in CREATES}
    for file in sorted(core.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute):
                    counts = found.get(target.value.attr)
                    if counts is not None:
                        name = str(file.relative_to(core))
                        counts[name] = counts.get(name, 0) + 1
    assert found == CREATES


def test_an_old_state_with_a_subscription_of_a_reserved_name_loads_without_it() -> None:
    for deduplication in (False, True):
        run = Lively(deduplication=False)
        run.subscribe("victim", connection="victim")
        topic = run.topic
        for named in (topic.subscriptions, topic.cursors):
            found: Any = named.pop("victim")
            found.name = names.DEDUP_CURSOR
            named[names.DEDUP_CURSOR] = found
        topic.consumer_handles.add(("victim", 1), names.DEDUP_CURSOR)
        run.broker = Broker.decode(run.broker.encode(), run.store)
        run.configure(brokerDeduplicationEnabled=deduplication)
        if not deduplication:
            run.do(Restart(), None)
        run.admin("POST", "/deduplicationEnabled", deduplication)
        assert list(let_in(run.broker)) == []
        run.use()
        assert one(run.subscribe("victim", connection="victim"), Success)


@pytest.mark.parametrize(
    ("index", "found"),
    [("0", 0), ("2147483647", 2147483647), ("2147483648", -1), ("01", -1), ("", -1), ("-1", -1)],
)
def test_the_index_of_a_partition_has_32_bits(index: str, found: int) -> None:
    assert partition_index(f"persistent://a/b/t-partition-{index}") == found
    topic = f"persistent://a/b/t-partition-{index}"
    assert names.whole_of(topic) == "persistent://a/b/t"
    assert names.base_of(topic) == ("persistent://a/b/t" if found >= 0 else topic)
    assert found < 0 or names.partition_of("persistent://a/b/t", found) == topic


def test_a_mark_in_the_middle_of_a_name() -> None:
    """What TopicName takes for a partition begins at the last mark. So none of these is a topic that Pulsar keeps for itself."""
    assert names.base_of("persistent://a/b/t-partition-x-partition-3") == "persistent://a/b/t-partition-x"
    assert names.whole_of("persistent://a/b/t") == ""
    assert names.base_of("persistent://a/b/t") == "persistent://a/b/t"
    system = "persistent://a/b/__change_events"
    assert names.is_system_topic(system)
    assert names.is_system_topic(f"{system}-partition-0")
    assert not names.is_system_topic(f"{system}-partition-x")
    assert schema_registry.name_of("persistent://a/b/t-partition-01") == "persistent://a/b/t-partition-01"


_ENTITY = st.text("-=:._azAZ09", min_size=1, max_size=8) | st.sampled_from(HOSTILE)


@given(
    _ENTITY,
    _ENTITY,
    st.text(min_size=1, max_size=20) | st.sampled_from(HOSTILE),
    st.sampled_from(["", "/stats", "/a%2Fb?x=/y"]),
)
@example("a=b", "c:d", "e", "")
@example("a", "cluster", "namespace/e/f", "/stats")
@settings(max_examples=examples(300), deadline=None)
def test_the_path_of_a_topic_leads_back_to_its_name(
    tenant: str, namespace: str, local: str, call: str
) -> None:
    name = f"non-persistent://{tenant}/{namespace}/{local}"
    assume(names.is_topic_name(name) and (local, call) != (admin_requests.PARTITIONED, ""))
    path = topic_path(name, call)
    assert topic_of(path) == name
    assert call_of(Admin(method="GET", path=path)) == call.partition("?")[0]


def test_names_of_partitions_are_taken_apart_at_one_place() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "streaming").rglob("*.py")
        if 'partition("-partition-")' in path.read_text() or "partition('-partition-')" in path.read_text()
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("a/b/t", "persistent://a/b/t"),
        ("non-persistent://a/b/t", "non-persistent://a/b/t"),
        ("a/b", "a/b"),
    ],
)
def test_the_full_name_of_a_topic(name: str, full: str) -> None:
    assert names.complete(name) == full
