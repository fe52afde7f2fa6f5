"""States that are given other partitions go on as if the whole log had been folded over these."""

import json
from random import Random
from typing import Any

import pytest

from schemas.commands import Admin, BrokerConfig, Publish, Subscribe, Tick, to_json
from streaming.broker.config import configuration
from streaming.broker.persistent.unacked_limit import UnackedMessages
from streaming.broker.policies.hierarchy import Policies
from streaming.broker.state.codec import PartitionState, TopicBlock, decode_state
from streaming.broker.transactions.coordinator import Coordinator, OpenTransaction
from streaming.state.spread import NotSpread, Spread
from tests.broker.kit import START
from tests.broker.random_lives import live
from tests.broker.recorded_lives import NAMES
from tests.state.spreading import Cluster, Record, moved, undisturbed

pytestmark = pytest.mark.feature("J1")

SHARED = {
    "maxUnackedMessagesPerBroker", "brokerPublisherThrottlingMaxMessageRate", "brokerPublisherThrottlingMaxByteRate",
    "dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte", "maxTopicsPerNamespace",
}  # fmt: skip
"""Settings that limit all topics of an ingress partition together."""

TOPICS = [f"persistent://public/default/t{number}" for number in range(6)]


def log_of(theme: str, seed: int) -> list[Record]:
    """The log of a random life without what depends on the number of partitions: shared limits, and names with that number."""
    log = []
    for timestamp, topic, value in live(theme, seed).log:
        command: dict[str, Any] = json.loads(value)
        if command.get("command") == "BROKER_CONFIG":
            settings = command.get("settings", {})
            command["settings"] = {name: each for name, each in settings.items() if name not in SHARED}
        if command.get("command") == "PRODUCER" and not command.get("producer_name"):
            command["producer_name"] = f"made-{command['connection']}-{command['producer_id']}"
        if "maxTopicsPerNamespace" not in command.get("path", ""):
            log.append((timestamp, topic, json.dumps(command).encode()))
    return log


@pytest.mark.parametrize("first", range(6))
def test_random_lives_are_moved_at_any_record(first: int) -> None:
    """In every life in which the number of partitions makes no difference: a connection that breaks the protocol, for example, is
    closed on all topics of a partition."""
    compared = 0
    names = NAMES[5 * first :: 31]
    for theme, seed in names:
        log, draw = log_of(theme, seed), Random(f"{theme} {seed}")
        cut, (before, after) = draw.randrange(len(log)), draw.choice([(1, 3), (2, 5), (3, 2), (4, 1)])
        expected = undisturbed(log, cut, after)
        if expected == undisturbed(log, cut, before):
            found = moved(log, cut, before, after)
            assert found.rows == expected.rows, (theme, seed)
            assert found.states == expected.states, (theme, seed)
            compared += 1
    assert compared > 0.75 * len(names)


def publish(topic: str, number: int, at: int) -> Record:
    return at, topic, to_json(Publish(producer="p", sequence_id=number))


def test_partitions_whose_clocks_differ_come_to_one_time() -> None:
    """What is due on a topic is done at its time, although another partition is ahead."""
    ttl = BrokerConfig(
        settings={"ttlDurationDefaultInSeconds": 10, "messageExpiryCheckIntervalInMinutes": 0.05}
    )
    cluster = Cluster(2)
    cluster.fold([(START, None, to_json(ttl))])
    subscribe = Subscribe(
        consumer_id=1,
        request_id=1,
        connection="c",
        subscription="s",
        subType="Exclusive",
        initialPosition="Earliest",
    )
    cluster.fold([(START, topic, to_json(subscribe)) for topic in TOPICS])
    cluster.fold([publish(topic, 1, START) for topic in TOPICS])
    ahead = [topic for topic in TOPICS if topic in cluster.brokers[1].topic_names()]
    assert 0 < len(ahead) < len(TOPICS)
    cluster.fold([publish(ahead[0], 2, START + 60_000)])
    cluster.spread(3)
    assert {broker.clock for broker in cluster.brokers} == {START + 60_000}
    expired = {topic: [row[0] for row in cluster.rows[topic] if row[1] == "EXPIRED"] for topic in TOPICS}
    assert expired == {topic: [START + 12_000] for topic in TOPICS}


def test_names_that_the_broker_makes_up_stay_unique() -> None:
    def producer(topic: str, number: int) -> Record:
        value = {"command": "PRODUCER", "connection": "c", "producer_id": number, "request_id": number}
        return START, topic, json.dumps(value).encode()

    cluster = Cluster(3)
    cluster.fold([(START, None, to_json(BrokerConfig()))])
    cluster.fold([producer(topic, number) for number, topic in enumerate(TOPICS)])
    cluster.spread(2)
    cluster.fold([producer(topic, 10 + number) for number, topic in enumerate(TOPICS)])
    names = [row[5] for rows in cluster.rows.values() for row in rows if row[1] == "PRODUCER_SUCCESS"]
    assert len(names) == len(set(names)) == 2 * len(TOPICS)


@pytest.mark.feature("L1", "L2", "L3")
@pytest.mark.parametrize("seed", [0, 1, 2, 4])
def test_transactions_are_moved_and_span_partitions(seed: int) -> None:
    log, draw = log_of("transactions", seed), Random(seed)
    cut, (before, after) = draw.randrange(len(log)), (2, 5) if seed % 2 else (3, 2)
    expected = undisturbed(log, cut, before)
    assert undisturbed(log, cut, after) == expected
    assert moved(log, cut, before, after) == expected


# -- states by hand


def state_of(partition: int, *topics: str, **fields: Any) -> PartitionState:
    return PartitionState(partition, topics={topic: TopicBlock(b"") for topic in topics}, **fields)


def spread_of(*states: PartitionState, partitions: int = 1) -> Spread:
    spread = Spread(partitions, lambda topic: int(topic[-1]) % partitions)
    for state in states:
        spread.add(state)
    return spread


def one(*states: PartitionState) -> PartitionState:
    """All states in one partition."""
    spread = Spread(1, lambda _: 0)
    pieces = [piece for state in states for piece in spread.add(state).values()]
    return spread.joined(0, pieces)


def test_partitions_must_agree_on_what_is_of_the_broker() -> None:
    policies = {"public/default": Policies(messageTTL=5)}
    apart = spread_of(state_of(0, "t0"), state_of(1, "t1", namespaces=policies))
    with pytest.raises(
        NotSpread, match="partitions 0 and 1 differ in the namespaces: one of them has folded a command"
    ):
        apart.check()
    config = configuration("4.x", {"maxMessageSize": 7})
    apart = spread_of(state_of(2, "t0"), state_of(1, "t1", config=config))
    with pytest.raises(NotSpread, match="partitions 1 and 2 differ in the broker's configuration"):
        apart.check()
    # A partition without topics may have missed commands for all: nobody would have noticed.
    spread = spread_of(state_of(0, "t0", namespaces=policies, clock=7), state_of(1, clock=9))
    assert spread.check() == []
    assert (spread.clock, spread.joined(0, []).namespaces) == (7, policies)


def test_what_may_come_out_differently_is_said() -> None:
    config = configuration("4.x", {"maxUnackedMessagesPerBroker": 7})
    spread = spread_of(state_of(0, "t0", origin=5, config=config), state_of(1, "t1", origin=4, config=config))
    checks, limits = spread.check()
    assert checks.startswith("the partitions' first records have different times")
    assert limits.startswith("maxUnackedMessagesPerBroker and the rates of the whole broker")
    assert spread.joined(0, []).origin == 4


def test_no_states_at_all() -> None:
    spread = Spread(2, lambda _: 0)
    assert (spread.check(), spread.clock) == ([], 0)
    assert spread.joined(1, []) == PartitionState(1)


def test_a_topic_in_two_partitions_is_refused() -> None:
    with pytest.raises(NotSpread, match="topic t0 is in partitions 0 and 1, where it is two topics"):
        one(state_of(0, "t0"), state_of(1, "t0"))


def test_schemas_of_a_partitioned_topic() -> None:
    """Ingress partitions number them on their own. One numbering must be the beginning of the other."""
    from schemas.commands import SchemaData

    a, b = SchemaData("a"), SchemaData("b")
    first = state_of(0, "t-partition-0", schemas={"t": [a]}, schema_times={"t": [1]})
    second = state_of(1, "t-partition-1", schemas={"t": [a, b]}, schema_times={"t": [2, 3]})
    joined = one(first, second)
    assert (joined.schemas, joined.schema_times) == ({"t": [a, b]}, {"t": [2, 3]})
    with pytest.raises(NotSpread, match="partitions of topic t .* number its schemas differently"):
        one(second, state_of(0, "t-partition-0", schemas={"t": [b]}))
    alone = one(state_of(0, schemas={"t": [a]}))  # of a topic that does not exist yet
    assert (alone.schemas, alone.schema_times) == ({"t": [a]}, {})


def test_deleted_topics_go_where_their_names_belong() -> None:
    """One number is the bound of all names that are forgotten."""
    states = [
        state_of(
            number, forgotten_ledger=7 + number, deleted={f"gone{number}": 3},
            deleted_partitions={"t": {f"t-partition-{number}": number + 1}},
        )
        for number in range(2)
    ]  # fmt: skip
    joined = one(*states)
    assert joined.deleted == {"gone0": 3, "gone1": 3}
    assert joined.deleted_partitions == {"t": {"t-partition-0": 1, "t-partition-1": 2}}
    assert joined.forgotten_ledger == 8


def test_all_partitions_know_the_closed_producers_of_a_connection() -> None:
    states = [
        state_of(number, f"t{number}", closed_producers={"c": {number: 5, 7: 9 - number}})
        for number in range(2)
    ]
    assert one(*states).closed_producers == {"c": {0: 5, 1: 5, 7: 9}}
    assert states[0].closed_producers == {"c": {0: 5, 7: 9}}


def test_what_only_some_partitions_know_stays_with_its_name() -> None:
    name = "persistent://a/b/t0"
    spread = spread_of(
        state_of(
            0, "t0", partitioned={name: 2, "persistent://a/b/t1": 3}, permissions={"a/b": {"r": ["produce"]}}
        ),
        state_of(1, "t1", partitioned={"persistent://a/b/t1": 3}, permissions={"a/b": {"r": ["produce"]}}),
        partitions=2,
    )
    assert spread.joined(0, []).partitioned == {name: 2, "persistent://a/b/t1": 3}
    assert spread.joined(1, []).partitioned == {"persistent://a/b/t1": 3}
    assert spread.joined(1, []).permissions == {"a/b": {"r": ["produce"]}}
    busy = spread_of(state_of(0, "t0", partitioned={name: 2}), state_of(1, name), partitions=2)
    assert busy.joined(0, []).partitioned == {}, (
        "there is a topic of that name, where nobody knows of partitions"
    )
    pieces = spread.add(state_of(3, permissions={name: {"r": ["consume"]}}))
    assert spread.joined(0, [pieces[0]]).permissions == {"a/b": {"r": ["produce"]}, name: {"r": ["consume"]}}


def test_subscriptions_that_wait_for_the_limit_of_unacked_messages_go_on_waiting() -> None:
    blocked = UnackedMessages(9, {"t0": 4, "t1": 5}, True, {"t0": None})
    states = state_of(0, "t0", "t1", unacked=blocked, connections={"c": {"t0": None, "t1": None}})
    spread = Spread(2, lambda topic: int(topic[-1]))
    pieces = spread.add(states)
    first, second = (spread.joined(number, [pieces[number]]) for number in range(2))
    assert first.unacked == UnackedMessages(4, {"t0": 4}, True, {"t0": None})
    assert second.unacked == UnackedMessages(5, {"t1": 5}, False, {})
    assert (first.connections, second.connections) == ({"c": {"t0": None}}, {"c": {"t1": None}})


def test_the_limit_of_unacked_messages_holds_after_a_move() -> None:
    """Waiting subscriptions are released when clients ack, wherever they are now."""
    cluster = Cluster(1)
    cluster.fold([(START, None, to_json(BrokerConfig(settings={"maxUnackedMessagesPerBroker": 4})))])
    for number, topic in enumerate(TOPICS[:2]):
        cluster.fold([
            (START, topic, to_json(Subscribe(consumer_id=number, request_id=1, connection="c", subscription="s", subType="Shared"))),
            (START, topic, to_json_flow(number)),
            *(publish(topic, each, START) for each in range(1, 6)),
        ])  # fmt: skip
    (notes,) = cluster.spread(3)
    assert "maxUnackedMessagesPerBroker" in notes
    waiting = [name for broker in cluster.brokers for name in decode_state(broker.encode()).unacked.waiting]
    assert waiting
    for number, topic in enumerate(TOPICS[:2]):
        sent = [row for row in cluster.rows[topic] if row[1] == "MESSAGE"]
        cluster.fold([(START, topic, ack_all(number, sent))])
    cluster.fold([(START + 1, None, to_json(Tick()))])
    for topic in TOPICS[:2]:
        assert sum(row[1] == "MESSAGE" for row in cluster.rows[topic]) == 5


def test_dispatchers_that_wait_for_the_rate_of_the_broker_get_their_turn_after_a_move() -> None:
    cluster = Cluster(2)
    cluster.fold([(START, None, to_json(BrokerConfig(settings={"dispatchThrottlingRateInMsg": 1})))])
    for number, topic in enumerate(TOPICS):
        subscribe = Subscribe(
            consumer_id=number, request_id=1, connection="c", subscription="s", subType="Shared"
        )
        cluster.fold(
            [(START + number, topic, to_json(subscribe)), (START + number, topic, to_json_flow(number))]
        )
        cluster.fold([publish(topic, each, START + number) for each in range(1, 5)])
    waiting = {
        topic
        for broker in cluster.brokers
        if (limiter := decode_state(broker.encode()).limits.dispatch) is not None
        for dispatchers in limiter.waiting.values()
        for topic, _ in dispatchers
    }
    assert len(waiting) >= 4
    (notes,) = cluster.spread(3)
    assert "the rates of the whole broker" in notes
    cluster.fold([(START + 60_000, None, to_json(Tick()))])
    for topic in TOPICS:
        times = [row[0] for row in cluster.rows[topic] if row[1] == "MESSAGE"]
        assert len(times) == 4, topic
        assert times[-1] > START + 2_000


def to_json_flow(consumer: int) -> bytes:
    return json.dumps(
        {"command": "FLOW", "connection": "c", "consumer_id": consumer, "messagePermits": 100}
    ).encode()


def ack_all(consumer: int, sent: list[Any]) -> bytes:
    ids = [{"ledgerId": row[6], "entryId": row[7]} for row in sent]
    value = {
        "command": "ACK",
        "connection": "c",
        "consumer_id": consumer,
        "ack_type": "Individual",
        "message_id": ids,
    }
    return json.dumps(value).encode()


def test_policies_of_a_namespace_are_in_every_partition() -> None:
    cluster = Cluster(2)
    call = Admin(method="POST", path="/namespaces/public/default/messageTTL", body=5)
    cluster.fold([(START, None, to_json(BrokerConfig())), (START, None, to_json(call))])
    cluster.fold([publish(topic, 1, START) for topic in TOPICS])
    assert cluster.spread(4) == []
    assert all(broker.namespace_policies["public/default"].messageTTL == 5 for broker in cluster.brokers)


def test_policies_that_last_go_where_their_topic_or_namespace_is() -> None:
    of_namespace, of_topic = {"a/b": Policies(messageTTL=5)}, {"persistent://a/b/t1": Policies(messageTTL=6)}
    states = state_of(0, "t0", lasting=of_namespace), state_of(1, "t1", lasting=of_namespace | of_topic)
    spread = Spread(2, lambda topic: int(topic[-1]) % 2)
    pieces = [piece for state in states for piece in spread.add(state).values()]
    assert spread.joined(0, pieces[:1]).lasting == of_namespace
    assert spread.joined(1, pieces[1:]).lasting == of_namespace | of_topic


def test_each_partition_gets_the_coordinators_of_transactions() -> None:
    """A transaction that one partition has aborted by its own clock is known to all again: they abort it when its time comes, once more or for the first time."""
    first, second = OpenTransaction(1, 9), OpenTransaction(2, 900)
    alone = state_of(0, "t0", clock=7, coordinators={3: Coordinator(2, {0: first, 1: second})})
    spread = Spread(2, lambda topic: int(topic[-1]))
    spread.add(alone)
    for partition in range(2):
        (found,) = spread.joined(partition, []).coordinators.items()
        assert found == (3, Coordinator(2, {0: first, 1: second}, time=7))
    apart = [{0: first, 1: second}, {1: second}]
    states = [
        state_of(number, f"t{number}", coordinators={3: Coordinator(2, each, time=5 + number)})
        for number, each in enumerate(apart)
    ]
    assert one(*states).coordinators == {3: Coordinator(2, {0: first, 1: second}, time=6)}
