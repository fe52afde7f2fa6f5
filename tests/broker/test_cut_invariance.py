"""The same log gives the same rows and the same state, however it is cut into micro-batches.

At a cut the broker is encoded and decoded, its memory of entries is gone, and what it wrote before comes from a reader
that knows no more than the receipts told.
"""

from collections.abc import Iterable
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.commands import (
    Ack,
    Admin,
    AnyCommand,
    BrokerConfig,
    CloseConsumer,
    CloseProducer,
    ConnectionLost,
    Fault,
    Flow,
    GetLastMessageId,
    MessageIdData,
    MessageMetadata,
    Producer,
    Publish,
    RedeliverUnacknowledgedMessages,
    RunCheck,
    Seek,
    Send,
    Subscribe,
    SubType,
    Tick,
    Unsubscribe,
    to_json,
)
from schemas.effects import Error, Row
from streaming.broker.broker import Broker
from streaming.broker.config import InactiveTopicDeleteMode
from streaming.broker.periodic_checks import CHECKS
from tests.broker.kit import START, Run, Stored, feed, of
from tests.examples import examples

Record = tuple[int, str | None, AnyCommand | Publish]
"""Milliseconds since the record before, topic, command."""

TOPICS = ["persistent://public/default/a", "persistent://public/other/b"]
CONNECTIONS = ["x", "y"]
SUBSCRIPTIONS = {1: "exclusive", 2: "shared", 3: "shared", 4: "reader", 5: "failover", 6: "failover"}
TYPES: dict[str, SubType] = {"shared": "Shared", "failover": "Failover"}
"""Consumer id → its subscription."""


def settings_of_a_broker(*, deletes_inactive_topics: bool = True) -> st.SearchStrategy[Record]:
    """A configuration under which much happens with few messages."""
    choices: dict[str, st.SearchStrategy[Any]] = {
        "managedLedgerMaxEntriesPerLedger": st.sampled_from([2, 3, 50_000]),
        "managedLedgerMinLedgerRolloverTimeMinutes": st.sampled_from([0, 0.5]),
        "managedLedgerMaxLedgerRolloverTimeMinutes": st.sampled_from([1, 240]),
        "managedLedgerDefaultMarkDeleteRateLimit": st.sampled_from([0, 0.1, 1]),
        "trimLedgerAckedToItsEnd": st.booleans(),
        "removePendingAcksOnMarkDeleteMove": st.booleans(),
        "moveCursorOverConsumedLedger": st.booleans(),
        "acknowledgmentAtBatchIndexLevelEnabled": st.booleans(),
        "brokerDeduplicationEnabled": st.booleans(),
        "brokerDeduplicationEntriesInterval": st.sampled_from([2, 5, 1000]),
        "brokerDeduplicationMaxNumberOfProducers": st.sampled_from([1, 1000]),
        "brokerDeduplicationProducerInactivityTimeoutMinutes": st.just(1),
        "maxUnackedMessagesPerConsumer": st.sampled_from([0, 2]),
        "maxUnackedMessagesPerSubscription": st.sampled_from([0, 3]),
        "dispatcherMaxReadBatchSize": st.sampled_from([1, 3, 100]),
        "ttlDurationDefaultInSeconds": st.sampled_from([0, 30]),
        "messageExpiryCheckIntervalInMinutes": st.sampled_from([0, 1]),
        "backlogQuotaDefaultLimitBytes": st.sampled_from([-1, 60]),
        "backlogQuotaDefaultLimitSecond": st.sampled_from([-1, 30]),
        "backlogQuotaDefaultRetentionPolicy": st.sampled_from(["producer_exception", "consumer_backlog_eviction"]),
        "preciseTimeBasedBacklogQuotaCheck": st.booleans(),
        "defaultRetentionTimeInMinutes": st.just(0),
        "subscriptionExpirationTimeMinutes": st.sampled_from([0, 3]),
        "brokerDeleteInactiveTopicsEnabled": st.just(deletes_inactive_topics),
        "brokerDeleteInactiveTopicsFrequencySeconds": st.sampled_from([10, 60]),
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": st.sampled_from([-1, 0, 31]),
        "brokerDeleteInactiveTopicsMode": st.sampled_from(get_args(InactiveTopicDeleteMode)),
    }  # fmt: skip
    return st.builds(
        lambda profile, values: (0, None, BrokerConfig(profile=profile, settings=values)),
        st.sampled_from(["2.10", "2.x", "3.0", "4.x", "4.2", "5.0"]),
        st.fixed_dictionaries(choices),
    )


def ids() -> st.SearchStrategy[MessageIdData]:
    return st.builds(
        MessageIdData, ledgerId=st.integers(1, 5), entryId=st.integers(0, 3),
        ack_set=st.sampled_from([[], [], [2]]), batch_size=st.just(2),
    )  # fmt: skip


def prelude() -> list[Record]:
    """On each topic a producer, and consumers with permits."""
    log: list[Record] = []
    for topic in TOPICS:
        log.append((0, topic, Producer(connection="x", producer_id=1, request_id=1, producer_name="q")))
        for consumer_id in SUBSCRIPTIONS:
            log.append((0, topic, subscription("x", consumer_id, "Earliest")))
            log.append((0, topic, Flow(connection="x", consumer_id=consumer_id, messagePermits=4)))
    return log


def subscription(connection: str, consumer_id: int, at: Any) -> Subscribe:
    name = SUBSCRIPTIONS[consumer_id]
    return Subscribe(
        connection=connection, consumer_id=consumer_id, subscription=name, consumer_name=str(consumer_id), request_id=1, initialPosition=at,
        subType=TYPES.get(name, "Exclusive"), durable=name != "reader",
    )  # fmt: skip


CONNECTION = st.sampled_from(CONNECTIONS)
CONSUMER = {"connection": CONNECTION, "consumer_id": st.sampled_from(sorted(SUBSCRIPTIONS))}
REQUEST = {"request_id": st.just(1)}
MESSAGE_ID = st.builds(
    MessageIdData, ledgerId=st.integers(1, 5), entryId=st.integers(0, 3), ack_set=st.sampled_from([[], [], [2]]),
    batch_size=st.just(2),
)  # fmt: skip
METADATA = st.builds(
    MessageMetadata, producer_name=st.just("q"), sequence_id=st.integers(0, 9), publish_time=st.just(START),
    num_messages_in_batch=st.sampled_from([None, 2]), highest_sequence_id=st.sampled_from([None, 9]),
    partition_key=st.sampled_from([None, "k"]),
)  # fmt: skip
PUBLISH = st.builds(
    Publish, producer=st.sampled_from(["p", "r"]), sequence_id=st.integers(0, 30), payload=st.just("payload"),
    key=st.sampled_from([None, "k"]), publish_time=st.sampled_from([None, None, START, START + 10**9]),
    properties=st.sampled_from([{}, {}, {"a": "b"}]), deliver_at_time=st.sampled_from([None, None, None, START + 5_000]),
)  # fmt: skip
SEND = st.builds(
    Send, connection=CONNECTION, producer_id=st.just(1), sequence_id=st.integers(0, 30), metadata=METADATA,
    payload=st.just("x" * 30),
)  # fmt: skip
TRAFFIC: list[st.SearchStrategy[Any]] = [
    PUBLISH,
    SEND,
    st.builds(Flow, **CONSUMER, messagePermits=st.integers(1, 5)),
    st.builds(Ack, **CONSUMER, ack_type=st.just("Individual"), message_id=st.lists(MESSAGE_ID, max_size=3)),
    st.builds(Ack, **CONSUMER, ack_type=st.just("Cumulative"), message_id=MESSAGE_ID.map(lambda id_: [id_])),
]
RARER: list[st.SearchStrategy[Any]] = [
    st.builds(subscription, *CONSUMER.values(), st.sampled_from(["Earliest", "Latest"])),
    st.builds(
        Producer, connection=CONNECTION, producer_id=st.just(1), **REQUEST, producer_name=st.just("q"),
        epoch=st.integers(0, 1),
    ),
    st.builds(CloseProducer, connection=CONNECTION, producer_id=st.just(1), **REQUEST),
    st.builds(CloseConsumer, **CONSUMER, **REQUEST),
    st.builds(Unsubscribe, **CONSUMER, **REQUEST, force=st.booleans()),
    st.builds(RedeliverUnacknowledgedMessages, **CONSUMER, message_ids=st.lists(MESSAGE_ID, max_size=2)),
    st.builds(Seek, **CONSUMER, **REQUEST, message_id=MESSAGE_ID),
    st.builds(Seek, **CONSUMER, **REQUEST, message_publish_time=st.integers(START, START + 60_000)),
    st.builds(GetLastMessageId, **CONSUMER, **REQUEST),
    st.builds(
        Fault, fault=st.sampled_from(["FailWrites", "DelayWrites", "CompleteWrites", "LoseWrites"]),
        count=st.integers(0, 2),
    ),
]  # fmt: skip
FOR_ALL: list[st.SearchStrategy[Any]] = [
    st.builds(ConnectionLost, connection=CONNECTION),
    st.builds(RunCheck, check=st.sampled_from(sorted(CHECKS))),
    st.builds(Tick),
]


@st.composite
def record(draw: st.DrawFn) -> Record:
    jump = draw(st.sampled_from([0, 0, 0, 0, 1, 1_000, 20_000, 61_000, 400_000]))
    topic = draw(st.sampled_from(TOPICS))
    match draw(st.integers(0, 14)):
        case 11 | 12:
            command = draw(st.one_of(RARER))
        case 13:
            command = draw(admin("/" + topic.replace("://", "/")))
        case 14:
            return jump, None, draw(st.one_of(*FOR_ALL, admin("/namespaces/public/default")))
        case _:
            command = draw(st.one_of(TRAFFIC))
    return jump, topic, command


def admin(prefix: str) -> st.SearchStrategy[Admin]:
    """Calls on a topic or, when they are about policies, on its namespace."""
    policy: list[tuple[str, str, Any]] = [
        ("POST", "/messageTTL", 10),
        ("POST", "/deduplication", False),
        ("POST", "/deduplication", True),
        ("POST", "/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}),
        ("POST", "/backlogQuota", {"limitSize": 100, "policy": "consumer_backlog_eviction"}),
        ("POST", "/backlogQuota", {"limitSize": 60, "policy": "producer_request_hold"}),
        ("DELETE", "/messageTTL", None),
        ("DELETE", "/backlogQuota", None),
    ]
    own = [
        ("PUT", "/subscription/shared", {"ledgerId": 1, "entryId": 1}),
        ("DELETE", "/subscription/shared?force=true", None),
        ("POST", "/subscription/shared/skip/2", None),
        ("POST", "/subscription/exclusive/skip_all", None),
        ("POST", "/subscription/shared/resetcursor", {"ledgerId": 1, "entryId": 0}),
        ("POST", f"/subscription/exclusive/resetcursor/{START + 5_000}", None),
        ("POST", "/all_subscription/expireMessages/5", None),
        ("POST", "/subscription/shared/expireMessages", {"ledgerId": 2, "entryId": 0}),
        ("POST", "/trim", None),
        ("DELETE", "/truncate", None),
        ("PUT", "/unload", None),
    ]
    calls = policy if prefix.startswith("/namespaces") else policy + own
    return st.sampled_from(calls).map(lambda call: Admin(method=call[0], path=prefix + call[1], body=call[2]))


def fold(log: list[Record], cuts: Iterable[int]) -> tuple[list[Row], bytes]:
    """The log's rows and last state, cut before the records at `cuts`."""
    rows: list[Row] = []
    store, batch, now = Stored(), 0, START
    broker = Broker(0, store)
    before = set(cuts)
    for offset, (jump, topic, command) in enumerate(log):
        if offset in before:
            broker = Broker.decode(broker.encode(), store)
            store.add([row.effect for row in rows[batch:]])
            batch = len(rows)
        now += jump
        feed(broker, offset, now, topic, to_json(command))
        rows += broker.take()
    return rows, broker.encode()


@pytest.mark.feature("J3", "J4")
@given(
    settings_of_a_broker(),
    st.lists(record(), min_size=10, max_size=60),
    st.sets(st.integers(1, 60), max_size=8),
)
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
def test_batches_do_not_show(configuration: Record, records: list[Record], cuts: set[int]) -> None:
    log = [configuration, *prelude(), *records]
    rows, state = fold(log, [])
    for some in (range(1, len(log)), cuts):
        other_rows, other_state = fold(log, some)
        assert other_rows == rows
        assert other_state == state


def same_everywhere(log: list[Record]) -> None:
    """Cut before every record, and before any single one."""
    whole = fold(log, [])
    for cuts in (range(1, len(log)), *([at] for at in range(1, len(log)))):
        assert fold(log, cuts) == whole


# -- idle topics, which checks pass over -----------------------------------------------------------------------------

TOPIC = TOPICS[0]
LEDGERS_OF_ONE: Any = {"managedLedgerMaxEntriesPerLedger": 1, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
PUBLISHED: Record = (0, TOPIC, Publish(producer="p", sequence_id=0, payload="payload"))


@pytest.mark.feature("J4")
@pytest.mark.parametrize(
    "log",
    [
        pytest.param(
            [
                PUBLISHED,
                (0, None, BrokerConfig(settings={"backlogQuotaDefaultLimitBytes": 0})),
                (100_000, None, Tick()),
            ],
            id="a limit of 0, from now on, is exceeded without a cursor: producers are closed",
        ),
        pytest.param(
            [
                (0, None, BrokerConfig(settings={"managedLedgerInactiveLedgerRolloverTimeSeconds": 10})),
                PUBLISHED,
                (1_000_000, None, Tick()),
            ],
            id="an inactive ledger is rolled over without a cursor",
        ),
        pytest.param(
            [
                (0, None, BrokerConfig(settings=LEDGERS_OF_ONE)),
                (0, TOPIC, subscription("x", 1, "Earliest")),
                (0, TOPIC, Publish(producer="p", sequence_id=0)),
                (0, TOPIC, Publish(producer="p", sequence_id=1)),
                (0, None, RunCheck(check="backlogQuota")),
                (0, TOPIC, Unsubscribe(connection="x", consumer_id=1, request_id=1)),
                (0, None, RunCheck(check="backlogQuota")),
            ],
            id="the age of a backlog that is gone is forgotten",
        ),
    ],
)
def test_idle_topics_are_idle(log: list[Record]) -> None:
    same_everywhere(log)


# -- the timer that closes a ledger at its greatest age -----------------------------------------------------------

A_MINUTE: Any = {
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "managedLedgerMaxLedgerRolloverTimeMinutes": 1,
}


@pytest.mark.feature("J4")
@pytest.mark.parametrize(
    "log",
    [
        pytest.param(
            [
                (0, None, BrokerConfig(settings=A_MINUTE)),
                (0, TOPIC, Fault(fault="FailWrites", count=1)),
                (61_000, TOPIC, Publish(producer="p", sequence_id=0)),
                (0, TOPIC, Publish(producer="p", sequence_id=1)),
                (61_000, None, Tick()),
            ],
            id="a ledger that is opened after a failed write",
        ),
        pytest.param(
            [
                (0, None, BrokerConfig()),
                PUBLISHED,
                (0, None, BrokerConfig(settings=A_MINUTE)),
                (61_000, None, Tick()),
            ],
            id="a new greatest age",
        ),
        pytest.param(
            [
                (0, None, BrokerConfig(settings=A_MINUTE)),
                PUBLISHED,
                (61_000, TOPIC, Publish(producer="p", sequence_id=1)),
                (0, TOPIC, Admin(method="PUT", path="/persistent/public/default/a/unload")),
                (0, TOPIC, Publish(producer="p", sequence_id=2)),
                (61_000, None, Tick()),
            ],
            id="one ledger after the other",
        ),
    ],
)
def test_the_timer_of_a_new_ledger(log: list[Record]) -> None:
    same_everywhere(log)


def test_a_timer_behind_one_that_is_gone() -> None:
    """Two subscriptions wait for permits. The one that would look first is deleted; the other one looks when it would have."""
    rates: Any = {"dispatchThrottlingRatePerSubscriptionInMsg": 1, "dispatchThrottlingRatePerTopicInMsg": 2}
    one = Subscribe(
        connection="x",
        subscription="one",
        subType="Exclusive",
        consumer_id=1,
        request_id=1,
        initialPosition="Earliest",
    )
    two = Subscribe(
        connection="y",
        subscription="two",
        subType="Exclusive",
        consumer_id=2,
        request_id=2,
        initialPosition="Earliest",
    )
    log: list[Record] = [
        (0, None, BrokerConfig(settings=rates)),
        (0, TOPIC, one),
        (0, TOPIC, two),
        *((0, TOPIC, Publish(producer="p", sequence_id=number)) for number in range(3)),
        (300, TOPIC, Flow(connection="x", consumer_id=1, messagePermits=9)),
        (400, TOPIC, Flow(connection="y", consumer_id=2, messagePermits=9)),
        (0, TOPIC, Unsubscribe(connection="x", consumer_id=1, request_id=3)),
        (5_000, None, Tick()),
    ]  # fmt: skip
    same_everywhere(log)


@pytest.mark.parametrize("cut", [False, True])
def test_partitions_that_are_only_looked_at_count_and_go(cut: bool) -> None:
    store = Stored()
    run = Run(maxTopicsPerNamespace=3, brokerDeleteInactiveTopicsEnabled=True, reader=store)
    run.publish(0, topic="persistent://public/default/a")
    for domain in ("persistent", "non-persistent"):
        run.do(Admin(method="PUT", path=f"/{domain}/public/default/p/partitions", body=1), None)
        run.admin("GET", "/permissions", topic=f"{domain}://public/default/p-partition-0")
    if cut:
        run.broker = Broker.decode(run.broker.encode(), store)
    (refused,) = of(run.create_producer(topic="persistent://public/default/b"), Error)
    assert refused.cause == "Exceed maximum number of topics in namespace."
    run.wait(3_600)
    assert run.broker.topic_names() == ["persistent://public/default/a"]
