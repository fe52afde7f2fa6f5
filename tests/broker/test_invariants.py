"""Invariants after every command: random streams of all kinds of commands, checked by `Watched`."""

from itertools import chain
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.commands import (
    Ack,
    Admin,
    BrokerConfig,
    CloseProducer,
    Fault,
    Flow,
    IntRange,
    KeySharedMeta,
    MessageIdData,
    MessageMetadata,
    Producer,
    Publish,
    RedeliverUnacknowledgedMessages,
    Seek,
    Send,
    Subscribe,
    SubType,
)
from tests.broker.kit import START
from tests.broker.test_cut_invariance import (
    CONNECTIONS,
    RARER,
    SUBSCRIPTIONS,
    TOPICS,
    TRAFFIC,
    TYPES,
    record,
    settings_of_a_broker,
)
from tests.broker.watched import NTH, Record, Watched
from tests.examples import examples

MORE: dict[int, tuple[str, SubType]] = {
    7: ("keyed", "Key_Shared"), 8: ("keyed", "Key_Shared"), 9: ("ranges", "Key_Shared"), 10: ("ranges", "Key_Shared"),
    11: ("shared reader", "Shared"), 12: ("shared reader", "Shared"), 13: ("shared", "Shared"),
}  # fmt: skip
ALL = {**{id_: (name, TYPES.get(name, "Exclusive")) for id_, name in SUBSCRIPTIONS.items()}, **MORE}
STICKY = {9: IntRange(0, 40_000), 10: IntRange(40_001, 65_535)}
CLIENT = st.sampled_from(["x", "x", "x", "y"])
CONSUMER = {"connection": CLIENT, "consumer_id": st.sampled_from(sorted(ALL))}
ACK_SET = {"ack_set": st.sampled_from([[], [], [], [2], [1], [6], [7], [-1, 1]]), "batch_size": st.just(3)}
STORED = st.builds(MessageIdData, ledgerId=st.integers(NTH - 9, NTH), entryId=st.just(0), **ACK_SET)
ANYWHERE = st.builds(
    MessageIdData, ledgerId=st.sampled_from([1, 2, 3, 5, -1, 2**63 - 1, 2**64 - 1]),
    entryId=st.sampled_from([0, 1, 2, 4, -1, 2**63 - 1]), **ACK_SET,
)  # fmt: skip
"""Positions that there are, that there aren't, and the special ones."""
MESSAGE_ID = STORED | STORED | STORED | ANYWHERE
BATCH = st.builds(
    MessageMetadata, producer_name=st.just("q"), sequence_id=st.integers(0, 9), publish_time=st.integers(START, START + 90_000),
    num_messages_in_batch=st.just(3), partition_key=st.sampled_from(["a", "b", "c"]),
    deliver_at_time=st.sampled_from([None, None, START + 30_000, START + 70_000]),
)  # fmt: skip


def subscribe(connection: str, consumer_id: int, **fields: Any) -> Subscribe:
    """As a consumer of `ALL`; `fields` over what its subscription asks for."""
    name, type_ = ALL[consumer_id]
    sticky = STICKY.get(consumer_id)
    defaults = {
        "consumer_name": str(consumer_id), "initialPosition": "Earliest", "durable": "reader" not in name,
        "keySharedMeta": KeySharedMeta("STICKY", [sticky]) if sticky else None,
    }  # fmt: skip
    return Subscribe(
        connection=connection, consumer_id=consumer_id, subscription=name, subType=type_, request_id=1,
        **{**defaults, **fields},
    )  # fmt: skip


SUBSCRIBE = st.builds(
    subscribe, CLIENT, CONSUMER["consumer_id"], initialPosition=st.sampled_from(["Earliest", "Latest"]),
    priority_level=st.sampled_from([0, 0, 0, 1]), start_message_id=st.none() | MESSAGE_ID,
    start_message_rollback_duration_sec=st.sampled_from([0, 0, 0, 30]),
)  # fmt: skip
PRODUCER = {"connection": CLIENT, "producer_id": st.sampled_from([1, 2])}
OFTEN: list[st.SearchStrategy[Any]] = [
    st.builds(Send, connection=st.just("x"), producer_id=st.just(1), sequence_id=st.integers(0, 30), metadata=BATCH),
    st.builds(Flow, **CONSUMER, messagePermits=st.integers(1, 9)),
    st.builds(Ack, **CONSUMER, ack_type=st.just("Individual"), message_id=st.lists(MESSAGE_ID, max_size=4),
              request_id=st.sampled_from([None, 1])),
    st.builds(Ack, **CONSUMER, ack_type=st.just("Cumulative"), message_id=st.lists(MESSAGE_ID, min_size=1, max_size=1)),
    st.builds(RedeliverUnacknowledgedMessages, **CONSUMER, message_ids=st.lists(MESSAGE_ID, max_size=2)),
    SUBSCRIBE,
]  # fmt: skip
SELDOM: list[st.SearchStrategy[Any]] = [
    st.builds(
        Producer, **PRODUCER, request_id=st.just(1), producer_name=st.sampled_from(["q", "w", None]),
        epoch=st.integers(0, 1), topic_epoch=st.sampled_from([None, 0, 1, 2]),
        producer_access_mode=st.sampled_from(["Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing"]),
    ),
    st.builds(CloseProducer, **PRODUCER, request_id=st.just(1)),
    st.builds(Seek, **CONSUMER, request_id=st.just(1), message_id=MESSAGE_ID),
    st.builds(Fault, fault=st.sampled_from(["DelayWrites", "DelayWrites", "CompleteWrites", "LoseWrites", "FailWrites"]),
              count=st.integers(0, 3)),
    st.builds(Flow, **CONSUMER, messagePermits=st.sampled_from([0, -1])),
    *RARER,
]  # fmt: skip
CALLS = [
    ("POST", "/subscription/keyed/skip/1", None),
    ("POST", "/subscription/shared%20reader/skip/2", None),
    ("POST", "/subscription/shared/skip_all", None),
    ("POST", "/subscription/reader/resetcursor", {"ledgerId": 1, "entryId": 1}),
    ("POST", "/subscription/keyed/resetcursor", {"ledgerId": -1, "entryId": -1}),
    ("POST", "/subscription/failover/resetcursor", None),
    ("PUT", "/subscription/keyed", {"ledgerId": 1, "entryId": 1}),
    ("DELETE", "/subscription/failover", None),
    ("POST", "/all_subscription/expireMessages/0", None),
    ("POST", "/trim", None),
    ("PUT", "/unload", None),
    ("PUT", "/unload", None),
    ("POST", "/terminate", None),
    ("DELETE", "/truncate", None),
    ("POST", "/maxUnackedMessagesOnConsumer", 1),
    ("DELETE", "/maxUnackedMessagesOnConsumer", None),
    ("POST", "/nothing", None),
]


@st.composite
def burst(draw: st.DrawFn, topic: str) -> list[Record]:
    """Consecutive messages of a producer that is unknown so far."""
    name, count = f"b{draw(st.integers(0, 2**32))}", draw(st.integers(1, 6))
    jump = draw(st.sampled_from([0, 0, 1_000, 31_000]))
    return [(jump, topic, Publish(producer=name, sequence_id=i, payload="x" * i)) for i in range(count)]


@st.composite
def parts(draw: st.DrawFn, topic: str) -> list[Record]:
    """A consumer gets batches and acks parts of one entry, mostly in several steps. It may ask for the entry again."""
    consumer_id, first = draw(st.sampled_from([2, 2, 3, 7, 9, 11])), draw(st.integers(0, 30))
    entry, metadata = draw(STORED).ledgerId, draw(BATCH)
    found: list[Any] = [
        Send(connection="x", producer_id=1, sequence_id=first + number, metadata=metadata)
        for number in range(draw(st.integers(0, 2)))
    ]
    found.append(Flow(connection="x", consumer_id=consumer_id, messagePermits=9))
    part = st.builds(MessageIdData, ledgerId=st.just(entry), entryId=st.just(0), **ACK_SET)
    acks = st.builds(
        Ack, connection=st.just("x"), consumer_id=st.just(consumer_id), ack_type=st.just("Individual"),
        message_id=st.lists(part | part | part | STORED, min_size=1, max_size=2),
    )  # fmt: skip
    again = RedeliverUnacknowledgedMessages(
        connection="x", consumer_id=consumer_id, message_ids=[MessageIdData(entry, 0)]
    )
    found += draw(st.lists(acks | acks | acks | st.just(again), min_size=2, max_size=6))
    return [(0, topic, command) for command in found]


@st.composite
def some_records(draw: st.DrawFn) -> list[Record]:
    kind = draw(st.integers(0, 19))
    if kind < 4:
        return [draw(record())]
    jump = draw(st.sampled_from([0, 0, 0, 0, 1, 1_000, 20_000, 61_000]))
    topic = draw(st.sampled_from([TOPICS[0], TOPICS[0], TOPICS[1]]))
    if kind < 6:
        return draw(burst(topic))
    if kind < 8:
        return draw(parts(topic))
    if kind < 16:
        return [(jump, topic, draw(st.one_of(*TRAFFIC, *OFTEN, *OFTEN)))]
    if kind < 19:
        return [(jump, topic, draw(st.one_of(SELDOM)))]
    method, call, body = draw(st.sampled_from(CALLS))
    return [(jump, topic, Admin(method=method, path="/" + topic.replace("://", "/") + call, body=body))]  # type: ignore[arg-type]


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Records among few: one or two topics, up to four consumers, mostly of one client."""
    configuration = draw(settings_of_a_broker(deletes_inactive_topics=False))
    few = draw(st.lists(st.sampled_from(sorted(ALL)), min_size=1, max_size=4, unique=True))
    topics = draw(st.sampled_from([TOPICS[:1], TOPICS[:1], TOPICS]))
    clients = draw(st.sampled_from([CONNECTIONS[:1], CONNECTIONS[:1], CONNECTIONS]))
    log = [configuration]
    for topic in topics:
        log.append((0, topic, Producer(connection="x", producer_id=1, request_id=1, producer_name="q")))
        for consumer_id in few:
            log.append((0, topic, subscribe("x", consumer_id)))
            log.append((0, topic, Flow(connection="x", consumer_id=consumer_id, messagePermits=4)))
        log += draw(burst(topic))
    found = chain.from_iterable(draw(st.lists(some_records(), min_size=10, max_size=60)))
    return log + [among(found_record, few, topics, clients) for found_record in found]


def among(given_record: Record, few: list[int], topics: list[str], clients: list[str]) -> Record:
    """The record with another consumer, topic and client in place of one that isn't among these."""
    jump, topic, command = given_record
    changes: dict[str, Any] = {}
    if topic is not None and topic not in topics:
        if isinstance(command, Admin):
            changes["path"] = command.path.replace(topic.replace("://", "/"), topics[0].replace("://", "/"))
        topic = topics[0]
    if getattr(command, "connection", "") and command.connection not in clients:  # type: ignore[union-attr]
        changes["connection"] = clients[0]
    consumer_id = getattr(command, "consumer_id", None)
    if consumer_id is not None and consumer_id not in few:
        changes["consumer_id"] = consumer_id = few[consumer_id % len(few)]
        if isinstance(command, Subscribe):
            wanted = subscribe(command.connection, consumer_id)
            for name in ("subscription", "subType", "durable", "consumer_name", "keySharedMeta"):
                changes[name] = getattr(wanted, name)
    return jump, topic, msgspec.structs.replace(command, **changes)


@given(logs())
@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_whatever_the_commands(log: list[Record]) -> None:
    Watched().run(log)


FLOW = Flow(connection="x", consumer_id=2, messagePermits=9)
PUBLISHES = [Publish(producer="p", sequence_id=number, payload="x") for number in range(4)]


def run_each(settings: dict[str, Any], *commands: Any) -> None:
    configuration = BrokerConfig(settings=settings)
    Watched().run([(0, None, configuration), *((0, TOPICS[0], command) for command in commands)])


def ack(*ids: MessageIdData) -> Ack:
    return Ack(connection="x", consumer_id=2, ack_type="Individual", message_id=list(ids))


def part(number: int, *left: int) -> MessageIdData:
    """Of the n-th entry all but the messages in the bit set `left`."""
    return MessageIdData(NTH - number, 0, ack_set=list(left), batch_size=3)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("acks", "limit"),
    [
        pytest.param([ack(part(0, 2)), ack(part(0, 1))], 0, id="the last part"),
        pytest.param([ack(part(1, 2)), ack(part(1, 1)), ack(part(1))], 0, id="all of it after the last part"),
        pytest.param([ack(part(0, 2), part(0, 1)), ack(part(1))], 0, id="two parts in an ACK"),
        pytest.param([ack(part(1, 6)), ack(part(1, 5)), ack(part(1))], 0, id="more left than there are"),
        pytest.param([ack(part(0), part(2, 6))], 2, id="more left of one that was not sent"),
    ],
)
def test_acks_of_parts(acks: list[Ack], limit: int, later: bool) -> None:
    """What random commands found, under the rules of 4.0 and of `later` versions."""
    settings = {
        "acknowledgmentAtBatchIndexLevelEnabled": True, "maxUnackedMessagesPerConsumer": limit,
        "dispatcherMaxReadBatchSize": 1, "removePendingAcksOnMarkDeleteMove": later,
    }  # fmt: skip
    run_each(settings, subscribe("x", 2), FLOW, *PUBLISHES, *acks)


def test_an_entry_that_was_acked_before_it_was_written_is_deleted_at_once() -> None:
    """Found by random commands: Pulsar accepts an ack of the first entry of a ledger that has none yet."""
    settings = {"managedLedgerMaxEntriesPerLedger": 1, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
    acks = [
        Ack(connection="x", consumer_id=1, ack_type="Cumulative", message_id=[MessageIdData(ledger, 0)])
        for ledger in (1, 2)
    ]
    run_each(settings, subscribe("x", 1), PUBLISHES[0], *acks, PUBLISHES[1])
