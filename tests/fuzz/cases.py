"""Short logs: ordinary commands that build up a state, then hostile records, then silence, then an ordinary message."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from schemas.commands import (
    Ack,
    AddPartitionToTxn,
    AddSubscriptionToTxn,
    Admin,
    AnyCommand,
    BrokerConfig,
    ConnectionLost,
    EndTxn,
    Fault,
    Flow,
    GetOrCreateSchema,
    KeySharedMeta,
    KeyValue,
    MessageIdData,
    MessageMetadata,
    NewTxn,
    PartitionedMetadata,
    Producer,
    Publish,
    RedeliverUnacknowledgedMessages,
    SchemaData,
    Send,
    Subscribe,
    SubType,
    TcClientConnectRequest,
    Tick,
    TxnSubscription,
    to_json,
)
from tests.broker.kit import START
from tests.fuzz.values import (
    COMMANDS,
    CONNECTIONS,
    COORDINATOR,
    OF_COORDINATORS,
    TOPICS,
    call,
    damaged,
    encoded,
    settings_of_a_broker,
    size,
    text,
)

NEIGHBOUR = "persistent://other/quiet/neighbour"
"""The topic of somebody else. What it gets does not depend on the other topics' records."""

SECOND, DAY = 1000, 86_400_000
JUMPS = [0, 1, SECOND, 61 * SECOND, 3_600 * SECOND, DAY, 366 * DAY, 30 * 366 * DAY]
TIMES = [0, -1, -(2**63), 2**63 - 1, 10**14, 10**14 + 1, 2**31, 1, START - DAY]


class Sent(NamedTuple):
    """A record: its time (ms), topic and value."""

    timestamp: int
    topic: str | None
    value: bytes


Log = list[Sent]


class Builder:
    """A log of ordinary commands in the making."""

    def __init__(self) -> None:
        self.log: Log = []
        self.now = START
        self.sequence = self.transactions = 0

    def add(self, command: AnyCommand | Publish, topic: str | None) -> None:
        self.log.append(Sent(self.now, topic, to_json(command)))

    def publish(self, topic: str, *, count: int = 1, **fields: Any) -> None:
        for _ in range(count):
            self.sequence += 1
            self.add(Publish(producer="p", sequence_id=self.sequence, **fields), topic)

    def subscribe(
        self,
        topic: str,
        name: str,
        type_: SubType,
        consumer: int,
        permits: int,
        connection: str = "x",
        **fields: Any,
    ) -> None:
        self.add(
            Subscribe(
                connection=connection, subscription=name, subType=type_, consumer_id=consumer, request_id=1,
                initialPosition="Earliest", consumer_name=f"c{consumer}", **fields,
            ),
            topic,
        )  # fmt: skip
        if permits:
            self.add(Flow(connection=connection, consumer_id=consumer, messagePermits=permits), topic)

    def admin(self, topic: str, method: Any, path: str, body: Any = None) -> None:
        self.add(Admin(method=method, path="/" + topic.replace("://", "/") + path, body=body), topic)


Segment = Callable[[Builder, str, int], None]
"""Adds `count` commands of a sort to a topic."""


def messages(log: Builder, topic: str, count: int) -> None:
    log.publish(topic, count=count, payload="x" * 20)


def keyed(log: Builder, topic: str, count: int) -> None:
    for number in range(count):
        log.publish(topic, key=f"k{number % 17}", properties={"a": str(number % 2)})


def delayed(log: Builder, topic: str, count: int) -> None:
    """Messages with times of delivery of their own, in no order."""
    for number in range(count):
        log.publish(topic, deliver_at_time=log.now + 10_000 + number * 7919 % 100_003 * 10)


def hourly(log: Builder, topic: str, count: int) -> None:
    """Messages that are delivered an hour apart."""
    for number in range(count):
        log.publish(topic, deliver_at_time=log.now + 3_600 * SECOND * (1 + number))


def entries(log: Builder, topic: str, count: int, **metadata: Any) -> None:
    """What a producer of the binary protocol sends."""
    log.add(Producer(connection="x", producer_id=1, request_id=1, producer_name="q"), topic)
    for _ in range(count):
        log.sequence += 1
        own = MessageMetadata("q", log.sequence, log.now, **metadata)
        log.add(
            Send(connection="x", producer_id=1, sequence_id=log.sequence, metadata=own, payload="x" * 10),
            topic,
        )


def batches(log: Builder, topic: str, count: int) -> None:
    entries(log, topic, count, num_messages_in_batch=10)


def chunks(log: Builder, topic: str, count: int) -> None:
    for number in range(count):
        entries(log, topic, 1, uuid=f"u{number // 3}", chunk_id=number % 3, num_chunks_from_msg=3)


def subscriptions(log: Builder, topic: str, count: int) -> None:
    for number in range(count):
        log.subscribe(topic, f"many-{number}", "Shared", 100 + number, 2 * (number % 2), connection="y")


def shared(log: Builder, topic: str, count: int) -> None:
    for number in range(count):
        log.subscribe(topic, "s", "Shared", 1 + number, 5 + 3 * number, priority_level=number % 2)


def key_shared(log: Builder, topic: str, count: int) -> None:
    for number in range(count):
        log.subscribe(topic, "t", "Key_Shared", 1 + number, 7, connection="y",
                      keySharedMeta=KeySharedMeta("AUTO_SPLIT"))  # fmt: skip


def failover(log: Builder, topic: str, count: int) -> None:
    for number in range(count):
        log.subscribe(topic, "u", "Failover", 1 + number, 4, connection="z")


def readers(log: Builder, topic: str, count: int) -> None:
    for number in range(count):
        log.subscribe(topic, f"reader-{number}", "Exclusive", 50 + number, 3, durable=False)


def filtered(log: Builder, topic: str, count: int) -> None:
    for number in range(count):
        log.subscribe(topic, f"filtered-{number}", "Shared", 70 + number, 9,
                      subscription_properties=[KeyValue("filter.a", "1")])  # fmt: skip


def producers(log: Builder, topic: str, count: int) -> None:
    for number in range(count):
        log.publish(topic)
        log.add(Publish(producer=f"p{number}", sequence_id=number), topic)


def topics(log: Builder, topic: str, count: int) -> None:
    """Topics that differ in their times."""
    for number in range(count):
        log.publish(f"{topic}-{number}", count=2)
        log.subscribe(f"{topic}-{number}", "s", "Shared", number, 1)
        log.now += 7 * SECOND


def holes(log: Builder, topic: str, count: int) -> None:
    for number in range(count):
        log.add(
            Ack(
                connection="x",
                consumer_id=1,
                ack_type="Individual",
                message_id=[MessageIdData(1, 2 * number + 1)],
            ),
            topic,
        )


def acked_in_parts(log: Builder, topic: str, count: int) -> None:
    """The last of many batches has been acked in two parts, and stays pending while permits come."""
    topic += "-in-parts"
    log.subscribe(topic, "s", "Shared", 1, 10 * count)
    batches(log, topic, count)
    for left in (0b11111, 0b1111100000):
        ack = MessageIdData(1, count - 1, ack_set=[left], batch_size=10)
        log.add(Ack(connection="x", consumer_id=1, ack_type="Individual", message_id=[ack]), topic)
    for _ in range(4 * count):
        log.add(Flow(connection="x", consumer_id=1, messagePermits=1), topic)


def redeliveries(log: Builder, topic: str, count: int) -> None:
    for _ in range(count):
        log.add(RedeliverUnacknowledgedMessages(connection="x", consumer_id=1), topic)
        log.add(Flow(connection="x", consumer_id=1, messagePermits=20), topic)


def permits(log: Builder, topic: str, count: int) -> None:
    for consumer in (1, 2):
        for connection in CONNECTIONS:
            log.add(Flow(connection=connection, consumer_id=consumer, messagePermits=count), topic)


def unconfirmed(log: Builder, topic: str, count: int) -> None:
    log.add(Fault(fault="DelayWrites", count=count), topic)
    entries(log, topic, count)


def unloads(log: Builder, topic: str, count: int) -> None:
    for _ in range(min(count, 30)):
        log.admin(topic, "PUT", "/unload")
        log.publish(topic)


def stats(log: Builder, topic: str, count: int) -> None:
    for _ in range(count):
        log.admin(topic, "GET", "/stats")


def partitions(log: Builder, topic: str, count: int) -> None:
    """Partitioned topics, each with as many partitions as it is old, of which one is used."""
    for number in range(count):
        name = f"{topic}-parted-{number}"
        log.admin(name, "PUT", "/partitions", 1 + number % 17)
        log.add(PartitionedMetadata(connection="x", request_id=number), name)
        log.publish(f"{name}-partition-{number % 17}")


def unused(log: Builder, topic: str, count: int) -> None:
    """Topics that the check of inactive topics deletes, one after the other, and those that it must look at in vain."""
    for number in range(count):
        name = f"{topic}-unused-{number}"
        log.admin(name, "PUT", "")
        if number % 4 == 3:  # a producer uses it
            log.publish(name)
        policies = {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up", "maxInactiveDurationSeconds": 30 + number,
                    "deleteWhileInactive": True}  # fmt: skip
        log.admin(name, "POST", "/inactiveTopicPolicies", policies)
        if number % 3:
            log.subscribe(name, "s", "Shared", 1000 + number, 5 * (number % 2), connection="w")
        log.now += SECOND
    log.add(ConnectionLost(connection="w"), None)


def overruled(log: Builder, topic: str, count: int) -> None:
    """Policies of topics, of which each change concerns the topic, its subscriptions, and the next checks."""
    for number in range(count):
        log.admin(topic, "POST", "/messageTTL", 30 + number)
        log.admin(topic, "POST", "/retention", {"retentionTimeInMinutes": number % 7, "retentionSizeInMB": 1})
        log.admin(
            topic,
            "POST",
            f"/s-{number}/dispatchRate",
            {"dispatchThrottlingRateInMsg": 1 + number, "ratePeriodInSecond": 1},
        )


def throttled(log: Builder, topic: str, count: int) -> None:
    """Subscriptions that a rate of the topic and rates of their own hold back, each with permits and a backlog."""
    topic += "-throttled"
    log.admin(topic, "PUT", "")
    for path, most in (("/dispatchRate", 2 + count), ("/subscriptionDispatchRate", 2)):
        body = {"dispatchThrottlingRateInMsg": most, "ratePeriodInSecond": 1}
        log.admin(topic, "POST", path, body)
    log.admin(topic, "POST", "/publishRate", {"publishThrottlingRateInMsg": 3})
    for number in range(count):
        log.subscribe(topic, f"held-{number}", "Shared", 2000 + number, 20)
        log.publish(topic)


def queued(log: Builder, topic: str, count: int) -> None:
    """Subscriptions that wait for the permits of one rate, each with a backlog."""
    topic += "-queued"
    log.admin(topic, "PUT", "")
    log.admin(topic, "POST", "/dispatchRate", {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 1})
    for number in range(count):
        log.subscribe(topic, f"queued-{number}", "Shared", 3000 + number, 20)
        log.publish(topic)


def schemas(log: Builder, topic: str, count: int) -> None:
    """Versions of a schema, each compatible with the one before it."""
    log.admin(f"{topic}-typed", "PUT", "")
    for number in range(count):
        fields = [
            {"name": f"f{each}", "type": ["null", "int"], "default": None} for each in range(number % 20)
        ]
        definition = json.dumps({"type": "record", "name": "R", "doc": str(number), "fields": fields})
        schema = SchemaData(name="R", type="Avro", schema_data=definition.encode())
        log.add(GetOrCreateSchema(connection="x", request_id=number, schema=schema), f"{topic}-typed")


def coordinated(log: Builder, *commands: AnyCommand) -> None:
    """Requests to coordinator 0, which a client has asked for."""
    for each in (TcClientConnectRequest(connection="x", request_id=1, tc_id=0), *commands):
        log.add(each, COORDINATOR)


def new_transaction(log: Builder, topic: str, least: int, time: int = 10**12) -> None:
    """A transaction with the number `least`, if it is the next one, on a topic and its subscription `s`, for so many ms."""
    own: dict[str, Any] = {"connection": "x", "request_id": 1, "txnid_least_bits": least}
    coordinated(
        log,
        NewTxn(connection="x", request_id=1, txn_ttl_seconds=time),
        AddPartitionToTxn(**own, partitions=[topic]),
        AddSubscriptionToTxn(**own, subscription=[TxnSubscription(topic, "s")]),
    )


def transactions(log: Builder, topic: str, count: int) -> None:
    """Each has a message and acknowledges a part of a batch, some have years, half of them end."""
    log.subscribe(topic, "s", "Shared", 1, 0)
    for _ in range(count):
        least = log.transactions
        log.transactions += 1
        new_transaction(log, topic, least, 10**14 - least)
        own: dict[str, Any] = {"txnid_least_bits": least, "txnid_most_bits": 0}
        entries(log, topic, 1, **own)
        ids = [MessageIdData(1, least, ack_set=[1], batch_size=10), MessageIdData(10**9 + least, 0)]
        ack: dict[str, Any] = {"connection": "x", "consumer_id": 1, "ack_type": "Individual"}
        log.add(Ack(**ack, message_id=ids, **own), topic)
        log.add(Ack(**ack, message_id=[MessageIdData(2 * 10**9, least, ack_set=[2])]), topic)
        end: dict[str, Any] = {"connection": "x", "request_id": 1, "txnid_least_bits": least}
        if least % 4 < 2:
            coordinated(log, EndTxn(**end, txn_action="ABORT" if least % 4 else "COMMIT"))


def stuck(log: Builder, topic: str, count: int) -> None:
    """Transactions that can't end, because a topic is terminated."""
    topic += "-terminated"
    log.publish(topic)
    first = log.transactions
    log.transactions += count
    for least in range(first, log.transactions):
        new_transaction(log, topic, least)
    log.admin(topic, "POST", "/terminate")
    for least in range(first, log.transactions):
        coordinated(log, EndTxn(connection="x", request_id=1, txnid_least_bits=least))


def silence(log: Builder, topic: str, count: int) -> None:
    log.now += 61 * SECOND * count
    log.add(Tick(), None)


SEGMENTS: dict[str, Segment] = {
    each.__name__: each
    for each in (messages, keyed, delayed, hourly, batches, chunks, subscriptions, shared, key_shared, failover, readers, filtered,
                 producers, topics, holes, acked_in_parts, redeliveries, permits, unconfirmed, unloads, stats, partitions, unused, overruled, throttled, queued, schemas, transactions,
                 stuck, silence)
}  # fmt: skip

USUAL: dict[str, list[Any]] = {
    "managedLedgerMaxEntriesPerLedger": [3, 50],
    "managedLedgerMinLedgerRolloverTimeMinutes": [0],
    "acknowledgmentAtBatchIndexLevelEnabled": [True],
    "brokerDeduplicationEnabled": [True],
    "ttlDurationDefaultInSeconds": [30, 30 * 86_400],
    "backlogQuotaDefaultLimitBytes": [0, 500],
    "backlogQuotaDefaultLimitSecond": [60],
    "backlogQuotaDefaultRetentionPolicy": ["consumer_backlog_eviction", "producer_exception"],
    "defaultRetentionTimeInMinutes": [-1, 60],
    "defaultRetentionSizeInMB": [-1],
    "maxUnackedMessagesPerConsumer": [5],
    "entryFilterNames": ["PropertyFilter"],
    "managedLedgerDefaultMarkDeleteRateLimit": [0, 0.1],
    "preciseTimeBasedBacklogQuotaCheck": [True],
    "subscriptionExpirationTimeMinutes": [5],
    "brokerDeleteInactiveTopicsFrequencySeconds": [1],
    "brokerDeleteInactiveTopicsMode": ["delete_when_subscriptions_caught_up"],
    "brokerDeleteInactivePartitionedTopicMetadataEnabled": [True],
    "defaultNumPartitions": [3],
    "allowAutoTopicCreationType": ["partitioned"],
    "dispatchThrottlingRatePerSubscriptionInMsg": [2],
    "maxPublishRatePerTopicInMessages": [5],
    "subscriptionKeySharedUseConsistentHashing": [False],
    "subscriptionKeySharedUseClassicPersistentImplementation": [True],
    "transactionCoordinatorEnabled": [True],
}
"""Settings that make something happen."""

usual_settings = st.builds(
    lambda profile, settings: BrokerConfig(profile=profile, settings=settings),
    st.sampled_from(["4.x", "4.x", "2.x", "2.10", "3.0", "4.2", "5.0"]),
    st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in USUAL.items()}),
)


def begun() -> Builder:
    """The log of every case begins with the neighbour."""
    log = Builder()
    log.subscribe(NEIGHBOUR, "n", "Shared", 1, 1000, connection="neighbour")
    log.publish(NEIGHBOUR)
    return log


@st.composite
def ordinary(draw: st.DrawFn, most: int) -> Builder:
    """A state with a bit of everything: up to `most` commands of each sort."""
    log = begun()
    if draw(st.booleans()):
        log.add(draw(usual_settings), None)
    for name, topic, count in draw(
        st.lists(
            st.tuples(st.sampled_from(sorted(SEGMENTS)), st.sampled_from(TOPICS[:2] + TOPICS), size(most)),
            max_size=8,
        )
    ):
        SEGMENTS[name](log, topic, count)
        log.now += SECOND
    return log


@st.composite
def hostile(draw: st.DrawFn, now: int, largest: int) -> Log:
    """One record of any kind, whole or damaged, once or many times, at any time."""
    topic: str | None = draw(st.sampled_from(TOPICS[:2] + TOPICS))
    sort = draw(st.sampled_from(["command"] * 5 + ["settings", "settings", "call", "call", "namespace"]))
    if sort == "settings":
        settings = draw(settings_of_a_broker)
        topic, tree = (
            None,
            {
                "command": "BROKER_CONFIG",
                "profile": draw(st.sampled_from(["4.x", "2.x", "2.10", "3.0", "4.2", "5.0"])),
                "settings": settings,
            },
        )
    elif sort == "call":
        tree = draw(call(topic))
    elif sort == "namespace":
        topic, tree = None, draw(call(None))
    else:
        name = draw(st.sampled_from(sorted(COMMANDS)))
        tree = draw(COMMANDS[name])
        if name in OF_COORDINATORS and draw(st.integers(0, 9)):
            topic = COORDINATOR
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        tree = draw(damaged(tree, largest))
    value = draw(encoded(tree, largest))
    if draw(st.integers(0, 19)) == 0:
        others = [None, "x", "persistent://a/b/c/d", "persistent://public/default/" + "x" * 5000]
        topic = draw(text | st.sampled_from(others)) or None  # no source gives an empty one
    timestamp = (
        now + draw(st.sampled_from(JUMPS)) if draw(st.integers(0, 9)) else draw(st.sampled_from(TIMES))
    )
    times = draw(st.sampled_from([1] * 8 + [2, 30])) if len(value) < 10_000 else 1
    return [Sent(timestamp, topic, value)] * times


@st.composite
def logs(draw: st.DrawFn, most: int = 64, largest: int = 1 << 17) -> Log:
    """`most` commands of each sort, then hostile records of at most `largest` bytes or so."""
    built = draw(ordinary(most))
    log = built.log
    for _ in range(draw(st.integers(1, 4))):
        log += draw(hostile(built.now, largest))
    return ended(built, draw(st.sampled_from(JUMPS)))


def ended(built: Builder, jump: int) -> Log:
    """Time passes, and the neighbour publishes again."""
    built.now = max(0 if each.timestamp > 10**14 else each.timestamp for each in built.log) + jump
    built.add(Tick(), None)
    built.publish(NEIGHBOUR)
    return built.log


# -- loads ------------------------------------------------------------------------------------------------------------


class Load(NamedTuple):
    """An ordinary load: `before`, then `grows` with the load's size, then `after`, then a `jump` in time (ms).

    A step is the name of a segment, the topic, and the number of commands.
    """

    settings: dict[str, Any]
    before: list[tuple[str, str, int]]
    grows: tuple[str, str]
    after: list[tuple[str, str, int]]
    jump: int

    def log(self, count: int) -> Log:
        log = begun()
        log.add(BrokerConfig(settings=self.settings), None)
        for name, topic, many in [*self.before, (*self.grows, count), *self.after]:
            SEGMENTS[name](log, topic, many)
        return ended(log, self.jump)


def loads() -> st.SearchStrategy[Load]:
    step = st.tuples(st.sampled_from(sorted(SEGMENTS)), st.just(TOPICS[0]), st.sampled_from([1, 2, 4, 8, 16]))
    return st.builds(
        Load,
        settings=st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in USUAL.items()}),
        before=st.lists(step, max_size=3),
        grows=st.tuples(st.sampled_from(sorted(SEGMENTS)), st.just(TOPICS[0])),
        after=st.lists(step, max_size=3),
        jump=st.sampled_from(JUMPS),
    )  # fmt: skip
