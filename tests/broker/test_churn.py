"""Names come and go for a simulated year, and the state keeps nothing of them for ever: what it has after 200 days, it has after 400.

A life is what is done with one name, and then nobody uses that name again. Each kind of thing that has a name has lives of its own.
"""

from collections.abc import Callable
from typing import Any, get_args

import pytest

from schemas.commands import (
    Ack,
    AddPartitionToTxn,
    AddSubscriptionToTxn,
    Admin,
    BrokerConfig,
    EndTxn,
    MessageIdData,
    MessageMetadata,
    NewTxn,
    Publish,
    Restart,
    Send,
    SubType,
    TcClientConnectRequest,
    TxnSubscription,
)
from schemas.effects import AdminResponse, Effect, Expired, NewTxnResponse, SendReceipt
from streaming.broker.broker import Broker
from streaming.broker.names import COORDINATOR_ASSIGN
from streaming.broker.producer.access_mode import MOST_GONE
from tests.broker.kit import START, TOPIC, Run, Stored, of

pytestmark = pytest.mark.feature("J2")

DAY = 86_400
SLACK = 64
"""By how many bytes two states may differ: numbers grow, and a time may be there or not."""

Life = Callable[["Churn", str], object]


class Churn(Run):
    """A broker with the checks that it has by default. One topic has a producer and a durable subscription that stay."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.stored = Stored()
        self.broker, self.now, self.requests = Broker(0, self.stored), START, 0
        config = BrokerConfig(settings={"forceDeleteNamespaceAllowed": True, **settings})
        assert self.do(config, None) == []
        self.create_producer("stays", 99, "stays")
        self.subscribe("stays", connection="stays")

    def raw(self, value: bytes, topic: str | None = TOPIC) -> list[Effect]:
        effects = super().raw(value, topic)
        self.stored.add(effects)
        self.broker.stored()
        return effects

    def lived(self, life: Life, often: int, days: range) -> int:
        """Live so often on each day. Returns the bytes of the state then, and goes on with what that says."""
        for day in days:
            for number in range(often):
                life(self, f"n{day:03}x{number:02}")
                self.wait(DAY / often)
                self.admin("POST", "/subscription/stays/skip_all")
        state = self.broker.encode()
        self.broker = Broker.decode(state, self.stored)
        return len(state)


def call(run: Run, method: str, path: str, body: object = None, topic: str | None = None) -> None:
    run.do(Admin(method=method, path=path, body=body), topic)  # type: ignore[arg-type]


def deleted(run: Churn, name: str, topic: str = "persistent://t/n/{}") -> None:
    topic = topic.format(name)
    run.create_producer("p", 1, name, topic)
    run.admin("DELETE", "?force=true", topic=topic)


def unused(run: Churn, name: str) -> None:
    run.publish(0, topic=f"persistent://t/n/{name}")


def unused_non_persistent(run: Churn, name: str) -> None:
    run.publish(0, topic=f"non-persistent://t/n/{name}")


def deleted_non_persistent(run: Churn, name: str) -> None:
    deleted(run, name, "non-persistent://t/n/{}")


def partitioned(run: Churn, name: str) -> None:
    path = f"/persistent/t/n/{name}"
    call(run, "PUT", f"{path}/partitions", 3)
    call(run, "POST", f"{path}/messageTTL", 5)
    call(run, "POST", f"{path}/permissions/r", ["consume"], f"persistent://t/n/{name}")
    run.publish(0, topic=f"persistent://t/n/{name}-partition-1")
    call(run, "DELETE", f"{path}/partitions?force=true")


def partition_deleted(run: Churn, name: str) -> None:
    path = f"/persistent/t/n/{name}"
    call(run, "PUT", f"{path}/partitions", 3)
    deleted(run, f"{name}-partition-2")
    call(run, "DELETE", f"{path}/partitions?force=true")


def namespace(run: Churn, name: str) -> None:
    path = f"/namespaces/t/{name}"
    call(run, "PUT", path)
    call(run, "POST", f"{path}/messageTTL", 5)
    call(run, "POST", f"{path}/permissions/r", ["consume"])
    call(run, "PUT", f"{path}/property/a/b")
    call(run, "POST", f"{path}/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1})
    call(run, "DELETE", path)


def namespace_with_topics(run: Churn, name: str) -> None:
    run.publish(0, topic=f"persistent://t/{name}/t")
    call(run, "PUT", f"/persistent/t/{name}/p/partitions", 2)
    call(run, "DELETE", f"/namespaces/t/{name}?force=true")


def tenant(run: Churn, name: str) -> None:
    call(run, "PUT", f"/tenants/{name}", {"adminRoles": ["r"], "allowedClusters": ["standalone"]})
    call(run, "DELETE", f"/tenants/{name}")


def resource(run: Churn, name: str) -> None:
    call(run, "PUT", f"/resourcegroups/{name}", {"publishRateInMsgs": 1})
    call(run, "DELETE", f"/resourcegroups/{name}")


def producer(run: Churn, name: str) -> None:
    run.create_producer(name)
    run.send(1, name=name)
    run.close_producer()


def short_form(run: Churn, name: str) -> None:
    run.publish(1, name)


def through_rest(run: Churn, name: str) -> None:
    run.publish(1, name, rest=True)
    run.publish(1, name, "non-persistent://t/n/t", rest=True)


def short_form_non_persistent(run: Churn, name: str) -> None:
    topic = "non-persistent://t/n/t"
    run.subscribe("s", connection="stays", topic=topic)
    run.publish(1, name, topic)


def short_form_then_a_restart(run: Churn, name: str) -> None:
    """Deduplication knows the name from its snapshot or from the entries after it."""
    run.publish(1, name)
    run.wait(300)
    run.do(Restart(), None)
    run.create_producer("stays", 99, "stays")


def short_form_fenced_out(run: Churn, name: str) -> None:
    """It leaves before the topic is closed, and deduplication recovers its ids."""
    run.publish(1, name)
    run.close_producer(99, "stays")
    run.create_producer("fences", 98, "stays", producer_access_mode="ExclusiveWithFencing")
    run.close_producer(98, "stays")
    run.do(Restart(), None)
    run.create_producer("stays", 99, "stays")


def short_form_purged_before_a_load(run: Churn, name: str) -> None:
    """No snapshot was taken since it published, but the one after it was forgotten."""
    run.publish(1, name)
    run.wait(10 * 3_600)
    run.do(Restart(), None)
    run.create_producer("stays", 99, "stays")


def short_form_on_a_topic_that_is_often_unloaded(run: Churn, name: str) -> None:
    run.publish(1, name)
    run.admin("PUT", "/unload")
    run.create_producer("stays", 99, "stays")


def short_form_on_a_topic_that_is_open_between_rounds(run: Churn, name: str) -> None:
    run.publish(1, name)
    run.wait(60)
    run.do(Restart(), None)
    run.now += 86_339_000  # less than a day: the rest is that of the life


def partitions_that_are_only_looked_at(run: Churn, name: str) -> None:
    for domain in ("persistent", "non-persistent"):
        call(run, "PUT", f"/{domain}/t/n/{name}/partitions", 2)
        for partition in range(2):
            topic = f"{domain}://t/n/{name}-partition-{partition}"
            run.admin("GET", "/permissions", topic=topic)


def role(run: Churn, name: str) -> None:
    run.admin("POST", f"/permissions/{name}", ["consume"])
    run.admin("DELETE", f"/permissions/{name}")
    call(run, "POST", f"/persistent/t/n/{name}/permissions/r", ["consume"], f"persistent://t/n/{name}")
    call(run, "DELETE", f"/persistent/t/n/{name}/permissions/r", None, f"persistent://t/n/{name}")


def subscription(type_: SubType) -> Life:
    def life(run: Churn, name: str) -> None:
        run.subscribe(name, type_, permits=5)
        run.do(Publish(producer="p", sequence_id=run.request(), key=name))
        run.unsubscribe(name)

    life.__name__ = type_
    return life


def subscription_that_expires(run: Churn, name: str) -> None:
    run.subscribe(name)
    run.close_consumer(name)


def reader(run: Churn, name: str) -> None:
    run.subscribe(name, durable=False, permits=5)
    run.close_consumer(name)


def reader_that_a_seek_closed(run: Churn, name: str) -> None:
    run.subscribe(name, durable=False, permits=5)
    run.seek(name, (1, 0))


def consumer(type_: SubType) -> Life:
    def life(run: Churn, name: str) -> None:
        run.subscribe("s", type_, connection=name, consumer_name=name, permits=3)
        for _ in range(3):
            run.do(Publish(producer="p", sequence_id=run.request(), key=name))
        run.redeliver(name)
        run.close_consumer(name)
        run.admin("POST", "/subscription/s/skip_all")

    life.__name__ = type_
    return life


def connection(run: Churn, name: str) -> None:
    run.create_producer(name, connection=name)
    run.subscribe("c", "Shared", connection=name)
    run.lose(name)


def connection_whose_loss_never_comes(run: Churn, name: str) -> None:
    run.create_producer(name, connection=name)
    run.subscribe("c", "Failover", connection=name, consumer_name=name)
    run.seek(name, (1, 0))
    run.close_producer(1, name)


def waiting_producer(run: Churn, name: str) -> None:
    run.create_producer(name, connection=name, producer_access_mode="WaitForExclusive")
    run.close_producer(1, name)


def refused(run: Churn, name: str) -> None:
    run.create_producer(name, connection=name, producer_access_mode="Exclusive")
    run.subscribe("stays", connection=name)
    run.send(0, connection=name)


def schema(run: Churn, name: str) -> None:
    topic = f"persistent://t/n/{name}"
    body = {"type": "STRING", "schema": "", "properties": {}}
    call(run, "PUT", f"/persistent/t/n/{name}", None, topic)
    call(run, "POST", f"/schemas/t/n/{name}/schema", body, topic)
    call(run, "DELETE", f"/persistent/t/n/{name}?force=true", None, topic)


def policies(run: Churn, name: str) -> None:
    topic = f"persistent://t/n/{name}"
    call(run, "PUT", f"/persistent/t/n/{name}", None, topic)
    run.admin("POST", "/messageTTL", 5, topic)
    run.admin("POST", "/publishRate", {"publishThrottlingRateInMsg": 5}, topic)
    run.admin("POST", "/permissions/r", ["consume"], topic)
    run.admin("PUT", "/properties", {"a": name}, topic)
    run.admin("DELETE", "?force=true", topic=topic)


def dispatch_rate(run: Churn, name: str) -> None:
    run.admin("POST", f"/{name}/dispatchRate", {"dispatchThrottlingRateInMsg": 5})
    run.admin("DELETE", f"/{name}/dispatchRate")


def subscribe_rate(run: Churn, name: str) -> None:
    run.admin("POST", "/subscribeRate", {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30})
    run.subscribe("r", "Shared", connection=name, consumer_name=name)
    run.close_consumer(name)


def keys(run: Churn, name: str) -> None:
    run.subscribe("k", "Key_Shared", connection="k1", consumer_name="1", permits=2)
    run.subscribe("k", "Key_Shared", connection="k2", consumer_name="2", permits=2)
    for n in range(4):
        run.do(Publish(producer="p", sequence_id=run.request(), key=f"{name}-{n}"))
    run.close_consumer("k2")
    run.close_consumer("k1")
    run.admin("POST", "/subscription/k/skip_all")


def delayed(run: Churn, name: str) -> None:
    run.subscribe("d", "Shared", connection="d", permits=9)
    at = run.now + 60_000
    run.do(Publish(producer="p", sequence_id=run.request(), deliver_at_time=at))
    run.wait(90)
    run.ack("d", *run.topic.subscriptions["d"].consumers[0].pending)


def partly_acked_batches(run: Churn, name: str) -> None:
    run.subscribe("b", "Shared", connection="b", permits=9)
    run.send(run.request(), name="stays", id_=99, connection="stays", num_messages_in_batch=3)
    position = run.topic.ledger.last_confirmed
    run.ack("b", position, left=[6], size=3)
    run.redeliver("b", position)
    run.ack("b", *run.topic.subscriptions["b"].consumers[0].pending)


def chunks(run: Churn, name: str) -> None:
    run.subscribe("u", "Shared", connection="u", permits=9)
    for n in range(2):
        run.send(
            run.request(), name="stays", id_=99, connection="stays", uuid=name, chunk_id=n, num_chunks_from_msg=2
        )  # fmt: skip
    run.ack("u", *run.topic.subscriptions["u"].consumers[0].pending)


def chunks_without_an_end(run: Churn, name: str) -> None:
    run.subscribe("u", "Shared", connection=name, permits=9)
    run.send(1, name="stays", id_=99, connection="stays", uuid=name, chunk_id=0, num_chunks_from_msg=2)
    run.ack(name, *run.topic.subscriptions["u"].consumers[0].pending)
    run.close_consumer(name)


def producers_closed_by_the_broker(run: Churn, name: str) -> None:
    run.create_producer(name, connection=name)
    run.admin("PUT", "/unload")
    run.create_producer("stays", 99, "stays")


def ask(run: Churn, command: Any) -> list[Effect]:
    command.connection, command.request_id = "stays", run.request()
    return run.do(command, f"{COORDINATOR_ASSIGN}-partition-0")


def begun(run: Churn, topics: list[str], subscriptions: list[str]) -> int:
    """The number of a transaction with a message on each topic, and with an ack of a message on each subscription of the topic that stays."""
    ask(run, TcClientConnectRequest(request_id=0, tc_id=0))
    (begun,) = of(ask(run, NewTxn(request_id=0, txn_ttl_seconds=60_000)), NewTxnResponse)
    least = begun.fields.txnid_least_bits
    assert isinstance(least, int)
    ask(run, AddPartitionToTxn(request_id=0, txnid_least_bits=least, partitions=topics))
    parts = [TxnSubscription(TOPIC, each) for each in subscriptions]
    ask(run, AddSubscriptionToTxn(request_id=0, txnid_least_bits=least, subscription=parts))
    txn: dict[str, Any] = {"txnid_least_bits": least, "txnid_most_bits": 0}
    for topic in topics:
        metadata = MessageMetadata("stays", run.request(), run.now, **txn)
        run.do(
            Send(
                connection="stays", producer_id=99, sequence_id=metadata.sequence_id, metadata=metadata, **txn
            ),
            topic,
        )
    for each in subscriptions:
        (of_each,) = run.topic.subscriptions[each].consumers
        ids = [MessageIdData(at.ledger, at.entry) for at in of_each.pending]
        run.do(
            Ack(connection=of_each.connection, consumer_id=1, ack_type="Individual", message_id=ids, **txn)
        )
    return least


def ended(run: Churn, least: int, name: str) -> None:
    """It commits, aborts, or is left alone."""
    action: Any = ("COMMIT", "ABORT", None)[int(name[-1]) % 3]
    if action is not None:
        ask(run, EndTxn(request_id=0, txnid_least_bits=least, txn_action=action))


def transaction(run: Churn, name: str) -> None:
    run.subscribe("t", "Shared", connection="t", permits=9)
    run.send(run.request(), name="stays", id_=99, connection="stays")
    ended(run, begun(run, [TOPIC], ["t"]), name)
    run.wait(600)
    run.ack("t", *run.topic.subscriptions["t"].consumers[0].pending)


def transaction_on_a_topic_that_goes(run: Churn, name: str) -> None:
    topic = f"persistent://t/n/{name}"
    run.create_producer("stays", 99, "stays", topic)
    ended(run, begun(run, [topic], []), name)
    run.close_producer(99, "stays", topic)


def transaction_before_a_restart(run: Churn, name: str) -> None:
    begun(run, [TOPIC], [])
    run.do(Restart(), None)
    run.create_producer("stays", 99, "stays")


def compacted(run: Churn, name: str) -> None:
    topic = f"persistent://t/n/{name}"
    run.publish(0, name, topic)
    run.admin("PUT", "/compaction", topic=topic)
    run.admin("DELETE", "?force=true", topic=topic)
    run.send(run.request(), name="stays", id_=99, connection="stays", partition_key="k")
    run.admin("PUT", "/compaction")


DEDUP = {"brokerDeduplicationEnabled": True}
TXN = {
    "transactionCoordinatorEnabled": True,
    "managedLedgerMaxEntriesPerLedger": 3,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}
TYPES: tuple[SubType, ...] = get_args(SubType)

LIVES: list[tuple[Life, int, dict[str, Any]]] = [
    (unused, 6, {}),
    (unused_non_persistent, 2, {}),
    (deleted, 6, {}),
    (deleted_non_persistent, 6, {}),
    (partitioned, 6, {}),
    (partition_deleted, 6, {}),
    (namespace, 1, {}),
    (namespace_with_topics, 6, {}),
    (tenant, 1, {}),
    (resource, 1, {}),
    (producer, 1, DEDUP),
    (short_form, 1, {}),
    (short_form, 1, DEDUP),
    (short_form_non_persistent, 1, {}),
    (through_rest, 1, {}),
    (through_rest, 1, DEDUP),
    (short_form_then_a_restart, 1, DEDUP),
    (short_form_fenced_out, 1, DEDUP),
    (short_form_purged_before_a_load, 1, DEDUP),
    (short_form_purged_before_a_load, 1, DEDUP | {"brokerDeduplicationSnapshotFrequencyInSeconds": 0}),
    (
        short_form_purged_before_a_load,
        1,
        DEDUP
        | {
            "brokerDeduplicationSnapshotFrequencyInSeconds": 0,
            "managedLedgerDefaultMarkDeleteRateLimit": 0.0001,
        },
    ),
    (short_form_on_a_topic_that_is_often_unloaded, 8, DEDUP),
    (short_form_on_a_topic_that_is_open_between_rounds, 1, DEDUP),
    (partitions_that_are_only_looked_at, 6, {"brokerDeleteInactivePartitionedTopicMetadataEnabled": True}),
    (role, 1, {}),
    *[(subscription(each), 1, {}) for each in TYPES],
    (subscription_that_expires, 1, {"subscriptionExpirationTimeMinutes": 60}),
    (reader, 1, {}),
    (reader_that_a_seek_closed, 1, {}),
    *[(consumer(each), 1, {}) for each in TYPES],
    (consumer("Key_Shared"), 1, {"subscriptionKeySharedUseClassicPersistentImplementation": True}),
    (connection, 1, {}),
    (connection_whose_loss_never_comes, 1, {}),
    (waiting_producer, 5, {}),
    (refused, 1, {}),
    (schema, 6, {}),
    (policies, 6, {}),
    (dispatch_rate, 1, {}),
    (subscribe_rate, 1, {}),
    (keys, 1, {}),
    (delayed, 1, {}),
    (partly_acked_batches, 1, {"acknowledgmentAtBatchIndexLevelEnabled": True}),
    (chunks, 1, {}),
    (chunks_without_an_end, 12, {}),
    (producers_closed_by_the_broker, 1, {}),
    (transaction, 6, TXN),
    (transaction_on_a_topic_that_goes, 6, TXN),
    (transaction_before_a_restart, 1, TXN),
    (compacted, 6, {}),
]
"""Each life, how often a day it is lived, and the broker's settings. More than `REMEMBERED` topics go in 200 days."""


@pytest.mark.parametrize(
    ("life", "often", "settings"), LIVES, ids=[f"{life.__name__} {settings}" for life, _, settings in LIVES]
)
def test_a_year_of_names_leaves_nothing(life: Life, often: int, settings: dict[str, Any]) -> None:
    run = Churn(settings)
    half = run.lived(life, often, range(200))
    assert run.lived(life, often, range(200, 400)) <= half + SLACK


def test_a_name_that_was_forgotten_has_no_message_id_again() -> None:
    run = Churn({})
    for _ in range(3):
        run.publish(0, topic="persistent://t/n/again")
        deleted(run, "again")
    for number in range(1000):
        assert "persistent://t/n/again" in run.broker._state.deleted
        deleted(run, f"other-{number}")
    assert "persistent://t/n/again" not in run.broker._state.deleted
    run.broker = Broker.decode(run.broker.encode(), run.stored)
    (receipt,) = of(run.publish(0, topic="persistent://t/n/again"), SendReceipt)
    assert receipt.ledger_id == 4
    assert len(run.broker._state.deleted) == 1000


def test_a_deleted_partition_stays_deleted() -> None:
    """However many topics are deleted after it."""
    run, name = Churn({}), "persistent://t/n/p-partition-5"
    call(run, "PUT", "/persistent/t/n/p/partitions", 6)
    deleted(run, "p-partition-5")
    for number in range(1001):
        deleted(run, f"other-{number}")
    assert name in run.broker._ctx.deleted
    run.broker = Broker.decode(run.broker.encode(), run.stored)
    assert name in run.broker._ctx.deleted
    call(run, "DELETE", "/persistent/t/n/p/partitions?force=true")
    for number in range(1001):
        deleted(run, f"another-{number}")
    assert name not in run.broker._ctx.deleted


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_partitioned_topic_that_is_made_again_has_all_its_partitions(domain: str) -> None:
    """Its creation creates them, whatever was deleted before."""
    run, path = Churn({}), f"/{domain}/t/n/p"
    for _ in range(2):
        call(run, "PUT", f"{path}/partitions", 2)
        (answer,) = of(run.admin("GET", "/stats", topic=f"{domain}://t/n/p-partition-1"), AdminResponse)
        assert answer.fields.status == 200
        call(run, "DELETE", f"{path}/partitions?force=true")


def test_a_topic_whose_namespace_is_deleted_leaves_no_permissions_and_no_schema() -> None:
    run, topic = Churn({}), "persistent://t/gone/z"
    body = {"type": "STRING", "schema": "", "properties": {}}
    call(run, "POST", "/persistent/t/gone/z/permissions/r", ["consume"], topic)
    call(run, "POST", "/schemas/t/gone/z/schema", body, topic)
    call(run, "DELETE", "/namespaces/t/gone?force=true")
    state = run.broker._state
    assert (state.permissions, state.schemas, state.schema_times) == ({}, {}, {})


def test_a_name_that_a_client_may_have_is_kept_after_a_restart() -> None:
    """Pulsar does not count ids that it recovered as those of an inactive producer. A producer of the short form is one."""
    run = Churn(DEDUP)
    producer(run, "client")
    short_form(run, "short")
    run.do(Restart(), None)
    run.create_producer("stays", 99, "stays")
    run.wait(DAY)
    assert set(run.topic.dedup.persisted) == {"client"}
    run.do(Restart(), None)
    run.create_producer("client", connection="c")
    assert run.topic.dedup.last_sequence_id("client") == 1


def test_one_that_waits_for_access_with_the_name_of_one_that_leaves_is_not_inactive() -> None:
    run = Churn(DEDUP)
    run.close_producer(99, "stays")
    run.publish(1, "same")
    run.create_producer("same", connection="c", producer_access_mode="WaitForExclusive")
    run.wait(9 * 3600)
    assert run.topic.producers["same"].connection == "c"
    assert "same" not in run.topic.dedup.inactive


def test_many_that_wait_and_go_leave_room_for_those_that_stay() -> None:
    run = Churn({})
    for number in range(2 * MOST_GONE + 10):
        name = f"w{number}"
        run.create_producer(name, connection=name, producer_access_mode="WaitForExclusive")
        if number % 2:
            run.close_producer(1, name)
        else:
            assert run.topic.access.holds(name)
    assert [each.producer.name for each in run.topic.access.waiting if not each.gone] == [
        f"w{number}" for number in range(0, 2 * MOST_GONE + 10, 2)
    ]
    assert len(run.topic.access.waiting) < 2 * MOST_GONE


def test_a_deleted_partition_is_remembered_as_long_as_its_partitioned_topic() -> None:
    run, name = Churn({}), "persistent://t/n/p-partition-1"
    call(run, "PUT", "/persistent/t/n/p/partitions", 2)
    deleted(run, "p-partition-1")
    for number in range(1001):
        deleted(run, f"other-{number}")
    assert name in run.broker._ctx.deleted
    run.broker = Broker.decode(run.broker.encode(), run.stored)
    (receipt,) = of(run.publish(0, topic=name), SendReceipt)
    assert receipt.ledger_id == 2
    assert run.broker._state.deleted_partitions == {}
    deleted(run, "p-partition-1")
    deleted(run, "p-partition-0")
    call(run, "DELETE", "/persistent/t/n/p/partitions")
    assert run.broker._state.deleted_partitions == {}
    assert list(run.broker._state.deleted)[-2:] == [name, "persistent://t/n/p-partition-0"]


def test_no_producer_leaves_while_a_fault_puts_off_its_write() -> None:
    run = Churn({})
    run.publish(0)
    run.fault("DelayWrites", 1)
    run.publish(1)
    run.wait(9 * 3_600)
    assert "p" in run.topic.producers
    run.check("inactiveProducers")
    assert "p" in run.topic.producers
    run.fault("CompleteWrites")
    run.wait(5 * 3_600)
    assert "p" in run.topic.producers
    run.wait(4 * 3_600)
    assert "p" not in run.topic.producers


def test_an_ack_behind_the_end_of_a_ledger_that_is_gone_moves_nothing() -> None:
    run = Run(reader=Stored(), managedLedgerMaxEntriesPerLedger=1)
    run.subscribe("s", permits=9)
    run.namespace("POST", "messageTTL", 10)
    run.publish(0)
    run.ack("s", (1, 0), cumulative=True)
    run.check("consumedLedgers")
    run.publish(1)
    assert 1 not in run.topic.ledger.ledgers
    run.ack("s", (1, 5), cumulative=True)
    assert (run.mark_delete("s"), run.backlog("s")) == ((1, 0), 1)
    run.wait(11)
    assert [(each.after_ledger, each.entries) for each in of(run.check("messageExpiry"), Expired)] == [(2, 1)]


@pytest.mark.parametrize("topic", [TOPIC, "non-persistent://public/default/t"])
@pytest.mark.parametrize(("minutes", "stays"), [(0, True), (1, False)])
def test_without_a_timeout_nobody_leaves(topic: str, minutes: int, stays: bool) -> None:
    run = Churn({"brokerDeduplicationProducerInactivityTimeoutMinutes": minutes})
    run.subscribe("s", connection="stays", topic=topic)
    run.publish(1, "short", topic)
    run.wait(7 * DAY)
    assert ("short" in run.broker._domain(topic).load(topic).producers) == stays
