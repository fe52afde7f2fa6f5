"""Synthetic command logs, each cut in two when nearly all parts of a broker's state are in use."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

from schemas.commands import (
    Admin,
    EncryptionKeys,
    GetOrCreateSchema,
    IntRange,
    KeySharedMeta,
    KeyValue,
    MessageIdData,
    MessageMetadata,
    Mirror,
    MirroredConsumer,
    MirroredSubscription,
    SchemaData,
    Send,
)
from schemas.effects import Effect
from streaming.broker import entry_filters
from streaming.broker.persistent.topic import SHADOW_SOURCE
from tests.broker.kit import START, TOPIC, Run, Stored
from tests.broker.random_lives import live
from tests.e2e.traffic import Traffic

Record = tuple[int, str | None, bytes]
"""Timestamp (ms), topic, value."""


class Life(NamedTuple):
    """A log before and after the cut."""

    before: list[Record]
    after: list[Record]


METADATA: dict[str, Any] = {
    "properties": [KeyValue("a", "b")], "replicated_from": "r", "partition_key": "aw==", "replicate_to": ["x"],
    "compression": "LZ4", "uncompressed_size": 9, "event_time": 5, "encryption_algo": "a", "encryption_param": b"p",
    "encryption_keys": [EncryptionKeys("k", b"v", [KeyValue("m", "n")])], "schema_version": b"\0",
    "partition_key_b64_encoded": True, "ordering_key": b"o", "deliver_at_time": START, "null_value": True,
    "compacted_batch_indexes": [1], "schema_id": b"i",
}  # fmt: skip
"""All fields, for an entry whose write isn't confirmed, so that the state keeps them."""


def put_off(metadata: MessageMetadata, properties: Mapping[str, str]) -> entry_filters.FilterResult:
    """Reschedule, every time, messages with a property ``later``."""
    return "RESCHEDULE" if any(pair.key == "later" for pair in metadata.properties) else "ACCEPT"


entry_filters.register("tests.state.put_off", put_off)


class Recorder(Run):
    """A broker under test that keeps its log. The methods of `kit` use the topic `at` instead of `TOPIC`."""

    def __init__(self, profile: Literal["2.x", "4.x"] = "4.x", **settings: Any) -> None:
        self.at, self.records, self.cut = TOPIC, list[Record](), 0
        super().__init__(reader=Stored(), profile=profile, **settings)

    def on(self, name: str, scheme: str = "persistent") -> None:
        """Use this topic from now on."""
        self.at = f"{scheme}://public/default/{name}"

    def raw(self, value: bytes, topic: str | None = TOPIC) -> list[Effect]:
        topic = self.at if topic == TOPIC else topic
        self.records.append((self.now, topic, value))
        return super().raw(value, topic)

    def call(self, method: str, call: str, body: Any = None) -> None:
        """An admin call on the current topic."""
        self.admin(method, call, body, self.at)

    def life(self) -> Life:
        return Life(self.records[: self.cut], self.records[self.cut :])


def lives() -> dict[str, Life]:
    return {name: make() for name, make in LIVES.items()}


def traffic() -> Life:
    """The log of the crash tests: deduplication, faults, policies, Exclusive and Shared."""
    log = Traffic(5, START, settings={"subscriptionExpirationTimeMinutes": 5}).write(420)
    records = [(row["timestamp"], row["topic"], row["value"]) for row in log.to_pylist()]
    return Life(records[:300], records[300:])


def rates() -> Life:
    """All rate limits, at each level, in use."""
    run = Recorder(brokerPublisherThrottlingMaxByteRate=1000, dispatchThrottlingRateInMsg=50)
    run.namespace("POST", "publishRate", {"publishThrottlingRateInMsg": 3})
    run.namespace("POST", "subscribeRate", {"subscribeThrottlingRatePerConsumer": 2})
    run.namespace(
        "POST", "autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}
    )
    run.namespace("POST", "autoSubscriptionCreation", {"allowAutoSubscriptionCreation": True})
    run.namespace("POST", "inactiveTopicPolicies", {"maxInactiveDurationSeconds": 5})
    run.namespace("POST", "persistence", {"managedLedgerMaxMarkDeleteRate": 2.0})
    run.namespace("POST", "dispatchRate", {"dispatchThrottlingRateInMsg": 9, "ratePeriodInSecond": 4})
    run.call("POST", "/dispatchRate", {"dispatchThrottlingRateInByte": 900, "relativeToPublishRate": True})
    run.call("POST", "/s/dispatchRate", {"dispatchThrottlingRateInMsg": 2})
    for name in "sr":
        run.subscribe(name, "Shared", consumer_name=name, permits=100)
    for number in range(20):
        run.publish(number, payload="x" * 50)
    run.wait(1.5)
    run.cut = len(run.records)
    for number in range(20, 90):
        run.wait(0.7)
        run.publish(number)
    run.wait(100)
    return run.life()


def rates_in_windows() -> Life:
    """A publish rate as before 4.0, exceeded."""
    run = Recorder(publishRatesInWindows=True)
    run.namespace("POST", "publishRate", {"publishThrottlingRateInMsg": 3})
    for number in range(20):
        run.publish(number)
    run.wait(0.3)
    run.cut = len(run.records)
    for number in range(20, 60):
        run.wait(0.07)
        run.publish(number)
    return run.life()


def mirrored() -> Life:
    """A shadow topic whose source has been mirrored, and differs."""
    run = Recorder()
    run.on("shadow")
    run.call("PUT", "", {SHADOW_SOURCE: run.at})
    for entry in range(6):
        metadata = MessageMetadata("p", entry, run.now)
        run.do(
            Send(
                connection="m",
                producer_id=0,
                sequence_id=entry,
                metadata=metadata,
                message_id=MessageIdData(7, entry),
            )
        )
    seen = MirroredSubscription(
        (7, 1), [(7, 2, 7, 3)], 2, 0, type="Shared", consumers=[MirroredConsumer("c", "c", 2, 9, 1)]
    )
    run.do(Mirror(ledger_id=7, last_confirmed=(7, 5), first_ledger=7, subscriptions={"s": seen}))
    run.wait(1)
    run.cut = len(run.records)
    run.do(Mirror(ledger_id=9, last_confirmed=(7, 5), first_ledger=7, subscriptions={"s": seen}))
    run.wait(700)
    run.do(Mirror(ledger_id=9, last_confirmed=(7, 5), first_ledger=9, subscriptions={"s": seen}))
    return run.life()


def operators() -> Life:
    """A tenant, a deleted topic, a partitioned one, and policies of delayed delivery."""
    run = Recorder()
    run.do(Admin(method="PUT", path="/tenants/acme", body={"allowedClusters": ["standalone"]}), None)
    run.call("POST", "/delayedDelivery", {"active": True, "tickTime": 10})
    run.create_producer("p")
    run.send(0)
    run.on("gone")
    run.create_producer("p", topic=run.at)
    run.call("DELETE", "?force=true")
    run.on("parts")
    path = "/persistent/public/default/parts"
    run.do(Admin(method="PUT", path=f"{path}/partitions", body=2), None)
    run.do(Admin(method="POST", path=f"{path}/messageTTL", body=60), None)
    run.on("parts-partition-1")
    run.subscribe("s", "Shared", permits=1, topic=run.at)
    run.publish(0, topic=run.at)
    run.cut = len(run.records)
    for name in ("gone", "parts-partition-0", "parts-partition-1"):
        run.on(name)
        run.publish(1, topic=run.at)
    run.wait(200)
    return run.life()


def keys(profile: Literal["2.x", "4.x"]) -> Life:
    """Key_Shared by ring, split and fixed ranges, with consumers that join while others have unacked entries."""
    run = Recorder(profile, subscriptionKeySharedConsistentHashingReplicaPoints=10)

    def publish(first: int, last: int) -> None:
        for number in range(first, last):
            run.publish(number, key=f"k{number % 7}", topic=run.at)

    for name in ("ring", "split"):
        run.configure(profile, subscriptionKeySharedUseConsistentHashing=name == "ring",
                      keySharedLookAheadMsgInReplayThresholdPerConsumer=3)  # fmt: skip
        run.on(name)
        run.subscribe("s", "Key_Shared", consumer_name="one", permits=8, topic=run.at)
        publish(0, 12)
        run.subscribe("s", "Key_Shared", id_=2, consumer_name="two", permits=20, topic=run.at)
        publish(12, 20)
        run.redeliver("s", (1, 1), (1, 2))
    run.on("fixed")
    for id_, (start, end) in enumerate([(0, 30000), (40000, 65535)]):
        meta = KeySharedMeta("STICKY", [IntRange(start, end)], allowOutOfOrderDelivery=True)
        run.subscribe(
            "s", "Key_Shared", id_=id_, consumer_name=f"c{id_}", permits=4, keySharedMeta=meta, topic=run.at
        )
    publish(0, 12)
    run.cut = len(run.records)
    for name in ("ring", "split", "fixed"):
        run.on(name)
        run.ack("s", (1, 0), (1, 3), (1, 5), topic=run.at)
        run.wait(1)
        run.flow("s", 30, topic=run.at)
        publish(20, 26)
        run.lose("s")
        run.subscribe("s", "Key_Shared", id_=3, consumer_name="three", permits=50, topic=run.at)
    return run.life()


def corners() -> Life:
    """Rare states."""
    run = Recorder(
        managedLedgerMaxEntriesPerLedger=4,
        managedLedgerDefaultMarkDeleteRateLimit=2.5,
        acknowledgmentAtBatchIndexLevelEnabled=True,
        brokerDeduplicationEnabled=True,
        brokerEntryMetadataInterceptors="AppendBrokerTimestampMetadataInterceptor",
        entryFilterNames="tests.state.put_off",
        maxUnackedMessagesPerBroker=20,
        maxConcurrentNonPersistentMessagePerConnection=1,
    )
    policies(run)
    storage(run)
    non_persistent(run)
    producers(run)
    single(run)  # from here on no time passes
    shared(run)
    limited(run)
    owing(run)
    run.cut = len(run.records)
    go_on(run)
    return run.life()


def policies(run: Recorder) -> None:
    """All policies, on a namespace and on a separate topic; partitions and schemas of topics."""
    values: dict[str, Any] = {
        "messageTTL": 100, "retention": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}, "deduplication": True,
        "deduplicationSnapshotInterval": 7, "maxProducersPerTopic": 8, "maxConsumersPerTopic": 9,
        "maxConsumersPerSubscription": 9, "maxSubscriptionsPerTopic": 9, "maxUnackedMessagesPerConsumer": 99,
        "maxUnackedMessagesPerSubscription": 99, "maxMessageSize": 9999, "encryptionRequired": True,
        "subscriptionExpirationTime": 60,
        "backlogQuota?backlogQuotaType=message_age": {"limitTime": 30, "policy": "producer_exception"},
        "backlogQuota": {"limitSize": 9000, "limitTime": 3, "policy": "consumer_backlog_eviction"},
    }  # fmt: skip
    run.on("ruled")
    run.publish(0, topic=run.at)
    for name, value in values.items():
        run.namespace("POST", name, value) if name == "messageTTL" else run.call("POST", f"/{name}", value)
    run.on("parted")
    run.call("PUT", "/partitions", 3)
    schema = SchemaData("s", b"[]", "Json", [KeyValue("a", "b")])
    run.do(GetOrCreateSchema(connection="c", request_id=1, schema=schema), f"{run.at}-partition-0")


def shared(run: Recorder) -> None:
    """Batches, chunks and delays; acks inside a batch and out of order; entries to replay and rescheduled ones."""
    run.on("shared")
    run.create_producer(schema=SchemaData("s", b"x", "String"))
    run.subscribe("s", "Shared", permits=9, topic=run.at, subscription_properties=[KeyValue("x", "y")])
    run.send(0)
    run.send(1, 4)
    run.send(5)
    run.publish(0, "late", topic=run.at, deliver_at_time=run.now + 5000)
    run.publish(1, "late", topic=run.at, properties={"later": "yes"})
    run.send(6, uuid="u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=9)
    for id_ in (2, 3):
        run.subscribe("s", "Shared", id_=id_, priority_level=id_, consumer_epoch=id_, permits=1, topic=run.at)
    run.ack("s", (1, 2), topic=run.at)
    run.ack("s", (1, 1), left=[0b0101], size=4, topic=run.at)
    run.redeliver("s", (1, 0), (1, 1))


def single(run: Recorder) -> None:
    """Failover with a delay before the new active consumer starts, a rewind because of a filter, a reader."""
    run.on("failover")
    run.subscribe("f", "Failover", id_=1, consumer_name="b", permits=3, topic=run.at)
    run.publish(0, topic=run.at)
    run.subscribe("r", durable=False, id_=5, topic=run.at, permits=1)
    run.subscribe("gone", id_=6, permits=1, topic=run.at)
    run.unsubscribe("gone", id_=6)
    run.wait(2)
    run.ack("f", (1, 0), cumulative=True, topic=run.at)
    run.publish(1, topic=run.at, properties={"later": "yes"})
    run.subscribe("f", "Failover", id_=2, consumer_name="a", permits=3, topic=run.at)
    run.publish(2, topic=run.at)
    run.close_consumer("f", id_=1, topic=run.at)


def producers(run: Recorder) -> None:
    """A producer with exclusive access, others that wait for it, and one that was refused."""
    run.on("exclusive")
    run.create_producer("owner", producer_access_mode="Exclusive", epoch=2)
    for id_ in (2, 3):
        run.create_producer(
            f"next{id_}", id_, f"c{id_}", producer_access_mode="WaitForExclusive", topic_epoch=id_
        )
    run.lose("c3")
    run.create_producer(None, 4, "c4", user_provided_producer_name=False)


def storage(run: Recorder) -> None:
    """Writes that fail and writes that aren't confirmed yet; ledgers; a topic that is terminated."""
    run.on("writes")
    run.create_producer("w", 7)
    run.create_producer(None, 8, "c8", user_provided_producer_name=False)
    run.send(0, name="w", id_=7)
    run.fault("DelayWrites", 3)
    run.send(1, 2, name="w", id_=7, **METADATA)
    for number in (3, 4):
        run.send(number, name="w", id_=7)
    run.close_producer(7)
    run.create_producer("v", 9, "c9")
    run.on("broken")
    run.publish(0, topic=run.at)
    run.publish(0, topic=run.at)
    run.fault("FailWrites", 2)
    run.publish(1, topic=run.at)
    run.on("old")
    run.call(
        "POST",
        "/backlogQuota?backlogQuotaType=message_age",
        {"limitTime": 60, "policy": "producer_exception"},
    )
    run.create_producer("o", 3)
    run.subscribe("s", topic=run.at)
    run.fill(9, topic=run.at)
    run.wait(70)
    run.check("backlogQuota")
    run.call("POST", "/subscription/s/expireMessages/20")
    run.on("ended")
    run.subscribe("s", permits=5, topic=run.at)
    run.publish(0, topic=run.at)
    run.ack("s", (1, 0), topic=run.at)
    run.call("POST", "/terminate")


def non_persistent(run: Recorder) -> None:
    run.on("np", "non-persistent")
    run.create_producer("n", 1, "n")
    run.subscribe("s", "Shared", permits=1, topic=run.at)
    run.subscribe("active", "Failover", permits=2, topic=run.at)
    run.subscribe("keys", "Key_Shared", permits=3, topic=run.at)
    run.fault("DelayWrites", 1)
    for number in range(3):
        run.send(number, name="n", connection="n")
    run.fault("CompleteWrites")
    for number in range(3, 6):
        run.send(number, name="n", connection="n")


def limited(run: Recorder) -> None:
    """A consumer and a subscription at their limits of unacked messages."""
    for name, whose in (("consumer", "Consumer"), ("subscription", "Subscription")):
        run.on(name)
        run.publish(0, topic=run.at)
        run.call("POST", f"/maxUnackedMessagesOn{whose}", 2)
        run.subscribe("s", "Shared", permits=5, topic=run.at)
        for number in range(1, 9):
            run.publish(number, topic=run.at)
        run.flow("s", 5, topic=run.at)


def owing(run: Recorder) -> None:
    """More unacked messages than the broker's limit."""
    for name in ("debtor", "other"):
        run.on(name)
        run.subscribe("s", "Shared", permits=30, topic=run.at)
        for number in range(15):
            run.publish(number, topic=run.at)


def go_on(run: Recorder) -> None:
    """Use every topic once more."""
    run.on("shared")
    run.send(7, uuid="u", chunk_id=1, num_chunks_from_msg=2, total_chunk_msg_size=9)
    run.ack("s", (1, 0), topic=run.at)
    run.flow("s", 20, topic=run.at)
    run.on("failover")
    run.publish(3, topic=run.at)
    run.wait(1.5)
    run.on("exclusive")
    run.close_producer(1)
    run.on("writes")
    run.fault("CompleteWrites")
    run.on("broken")
    for number in (1, 2):
        run.publish(number, topic=run.at)
    run.on("np", "non-persistent")
    run.send(6, name="n", connection="n")
    run.on("debtor")
    run.ack("s", *((ledger, entry) for ledger in (1, 2, 3) for entry in range(4)), topic=run.at)
    run.wait(10)
    for name in ("shared", "failover", "exclusive", "writes", "broken", "old", "ended", "debtor", "other", "consumer",
                 "subscription", "ruled"):  # fmt: skip
        run.on(name)
        run.call("GET", "/stats")
        run.call("PUT", "/unload")
        run.publish(50, topic=run.at)
        run.call("GET", "/internalStats")
    run.wait(200)
    run.check("consumedLedgers")


def compacted() -> Life:
    """A random life with compactions and readers of compacted data."""
    log = live("compaction", 7).log
    return Life(list(log[: len(log) // 2]), list(log[len(log) // 2 :]))


def transacted() -> Life:
    """A random life, cut where transactions are open, others were aborted, and acks of both kinds are pending."""
    log = live("transactions", 26).log
    return Life(list(log[:82]), list(log[82:]))


LIVES: dict[str, Callable[[], Life]] = {
    "traffic": traffic,
    "corners": corners,
    "keys 2.x": partial(keys, "2.x"),
    "keys 4.x": partial(keys, "4.x"),
    "rates": rates,
    "rates in windows": rates_in_windows,
    "operators": operators,
    "mirrored": mirrored,
    "compacted": compacted,
    "transacted": transacted,
}
