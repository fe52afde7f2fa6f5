"""The worked cases of docs/rules/subscriptions.md §20, by number (none is left out), and what they don't reach.

Case 1 adds one consumer object twice, which no command can: two consumers of one name stand for it. Case 12 ends in
the client, which drops the first entry; the broker's half is tested.
"""

from typing import Any

import pytest

from schemas.commands import (
    IntRange,
    KeySharedMeta,
    KeyValue,
    MessageIdData,
    MessageMetadata,
    Seek,
    Unsubscribe,
)
from schemas.effects import (
    AckResponse,
    ActiveConsumerChange,
    AdminResponse,
    CloseConsumer,
    CursorMoved,
    Effect,
    Error,
    LedgerDeleted,
    Message,
    ProducerSuccess,
    SubscriptionEvent,
    Success,
)
from streaming.broker.broker import Broker
from streaming.broker.dispatch.sticky_key_hash import sticky_key_hash
from tests.broker.kit import START, TOPIC, Run, Stored, of, one, sent

LATEST = (2**63 - 1, 2**63 - 1)
EARLIEST = (2**64 - 1, 2**64 - 1)
"""The two ends on the wire."""


def topic_of(name: str) -> str:
    return f"persistent://public/default/{name}"


def join(run: Run, name: str, id_: int, topic: str = TOPIC, permits: int = 0, level: int = 0) -> list[Effect]:
    """A Failover consumer of subscription s."""
    return run.subscribe(
        "s", "Failover", id_=id_, consumer_name=name, topic=topic, permits=permits, priority_level=level
    )


def told(effects: list[Effect]) -> list[tuple[int, bool]]:
    """The notifications about the active consumer, in order."""
    return [(change.consumer_id, change.fields.is_active) for change in of(effects, ActiveConsumerChange)]


def active(run: Run, topic: str = TOPIC) -> str | None:
    name: str | None = run.broker.topic_stats(topic)["stats"]["subscriptions"]["s"].get("activeConsumerName")
    return name


def refusal(effects: list[Effect]) -> str:
    """The error of the only answer."""
    (answer,) = effects
    assert isinstance(answer, Error)
    return answer.error


def with_entries(count: int, *, name: str = "s", type_: str = "Shared", permits: int = 0, **settings: Any) -> Run:  # fmt: skip
    """A broker with a consumer (id 1) of a subscription, and so many entries in its backlog."""
    run = Run(**settings)
    run.subscribe(name, type_)  # type: ignore[arg-type]
    for sequence_id in range(count):
        run.publish(sequence_id)
    if permits:
        run.flow(name, permits)
    return run


def metadata(key: str) -> MessageMetadata:
    return MessageMetadata("p", 0, START, partition_key=key)


# -- the worked cases ---------------------------------------------------------------------------------------------


@pytest.mark.feature("E3")
def test_subscriptions_case_01_pick_by_partition_index() -> None:
    run, topic = Run(activeConsumerFailoverDelayTimeMillis=0), topic_of("t-partition-4")
    assert told(join(run, "Cons1", 1, topic)) == [(1, True)]
    assert told(join(run, "Cons1", 2, topic)) == [(2, False)]
    assert active(run, topic) == "Cons1"
    assert told(join(run, "Cons2", 3, topic)) == [(1, False), (2, True), (3, False)]
    assert active(run, topic) == "Cons1"
    assert told(join(run, "Cons0", 4, topic)) == [(4, True), (1, False), (2, False), (3, False)]
    assert active(run, topic) == "Cons0"
    assert told(run.close_consumer("s", id_=3, topic=topic)) == [(4, False), (1, True), (2, False)]
    assert told(run.close_consumer("s", id_=4, topic=topic)) == []
    assert active(run, topic) == "Cons1"


@pytest.mark.feature("E3")
@pytest.mark.parametrize(
    ("topic", "picked"),
    [
        ("t1", ("c1", "c1", "B")),
        ("t2", ("c1", "c1", "A")),
        ("orders", ("c1", "c3", "A")),
        ("my-topic", ("c1", "c3", "B")),
    ],
)
@pytest.mark.parametrize("hashing", [False, True])
def test_subscriptions_case_02_the_ring(topic: str, picked: tuple[str, str, str], hashing: bool) -> None:
    for names, winner in zip((("c1", "c2"), ("c1", "c2", "c3"), ("A", "B")), picked, strict=True):
        run = Run(activeConsumerFailoverDelayTimeMillis=0, activeConsumerFailoverConsistentHashing=hashing)
        for id_, name in enumerate(names):
            join(run, name, id_, topic_of(topic))
        assert active(run, topic_of(topic)) == winner


@pytest.mark.feature("E3")
def test_subscriptions_case_03_partitions_are_spread() -> None:
    run = Run(activeConsumerFailoverDelayTimeMillis=0)
    topics = [topic_of(f"t-partition-{index}") for index in range(4)]

    def actives() -> list[str | None]:
        return [active(run, topic) for topic in topics]

    for name in ("1", "2"):
        for topic in topics:
            join(run, name, int(name), topic)
    assert actives() == ["1", "2", "1", "2"]
    for topic in topics:
        join(run, "3", 3, topic)
    assert actives() == ["1", "2", "3", "1"]
    for topic in topics:
        run.close_consumer("s", id_=1, topic=topic)
    assert actives() == ["2", "3", "2", "3"]


@pytest.mark.feature("E3")
def test_subscriptions_case_04_only_the_best_priority_is_active() -> None:
    run = Run(activeConsumerFailoverDelayTimeMillis=0)
    topics = [topic_of(f"t-partition-{index}") for index in range(9)]
    for id_, (name, level) in enumerate([("aaa", 1), ("bbb4", 1), ("bbb1", 0), ("bbb2", 0), ("bbb3", 0)]):
        for topic in topics:
            join(run, name, id_, topic, level=level)
    actives = [active(run, topic) for topic in topics]
    assert {name: actives.count(name) for name in set(actives)} == {"bbb1": 3, "bbb2": 3, "bbb3": 3}


@pytest.mark.feature("E3")
@pytest.mark.parametrize("whole", [True, False])
def test_without_a_ring_for_others_the_first_partition_has_one_all_the_same(whole: bool) -> None:
    run = Run(activeConsumerFailoverRingForNonPartitioned=False, activeConsumerFailoverConsistentHashing=True)
    topics = [topic_of(f"t{number}" if whole else f"t{number}-partition-0") for number in range(9)]
    for topic in topics:
        for number, name in enumerate(("a", "b", "c")):
            join(run, name, number, topic)
    assert {active(run, topic) for topic in topics} == ({"a"} if whole else {"a", "b"})


@pytest.mark.feature("E3")
def test_subscriptions_case_05_failover_hand_over() -> None:
    run, topic = Run(), topic_of("t1")
    join(run, "c1", 1, topic)
    join(run, "c2", 2, topic)
    run.wait(1)
    run.flow("s", 1000, id_=2, topic=topic)
    for sequence_id in range(100):
        assert sent(run.publish(sequence_id, topic=topic)) == []
    assert sent(run.flow("s", 10, id_=1, topic=topic), 1) == [*range(10)]
    run.ack("s", *[(1, entry) for entry in range(5)], topic=topic)
    assert sent(run.close_consumer("s", id_=1, topic=topic)) == []
    assert sent(run.wait(1), 2) == [*range(5, 100)]


@pytest.mark.feature("D1")
def test_subscriptions_case_06_exclusive_is_busy() -> None:
    run = Run()
    run.subscribe("s", connection="A")
    assert refusal(run.subscribe("s", connection="B")) == "ConsumerBusy"
    (answer,) = run.subscribe("s", "Shared", connection="B")
    assert isinstance(answer, Error)
    assert answer.error == "ConsumerBusy"
    assert "different type" in answer.cause
    run.close_consumer("A")
    assert one(run.subscribe("s", "Shared", connection="B"), Success)


@pytest.mark.feature("D1")
def test_subscriptions_case_07_the_type_changes_while_nobody_is_connected() -> None:
    run = with_entries(3, permits=10)
    run.ack("s", (1, 0))
    run.close_consumer("s")
    effects = run.subscribe("s", permits=10)
    assert sent(effects) == [1, 2]
    assert run.topic.subscriptions["s"].type == "Exclusive"


@pytest.mark.feature("E5")
def test_subscriptions_case_08_redelivery_on_exclusive() -> None:
    run = with_entries(10, type_="Exclusive", permits=10)
    run.ack("s", (1, 0), (1, 1), (1, 2))
    run.flow("s", 10)
    effects = run.redeliver("s", (1, 5))
    assert sent(effects) == [*range(3, 10)]
    assert {message.redelivery_count for message in of(effects, Message)} == {0}


@pytest.mark.feature("D5")
def test_subscriptions_case_09_the_consumer_limit() -> None:
    run = with_entries(600, permits=10, maxUnackedMessagesPerConsumer=500)
    received = 10
    while new := sent(run.flow("s", 5)):
        received += len(new)
    assert received == 500
    assert run.topic.subscriptions["s"].consumers[0].blocked
    received = 0
    for entry in range(249):
        assert sent(run.ack("s", (1, entry))) == []
    for entry in range(249, 500):
        received += len(sent(run.ack("s", (1, entry))))
    assert received > 0, "250 unacked are few enough"
    while new := sent(run.flow("s", 5)):
        received += len(new)
    assert received == 100


@pytest.mark.feature("D5")
def test_subscriptions_case_10_a_partial_ack_does_not_unblock() -> None:
    run = Run(maxUnackedMessagesPerConsumer=100, acknowledgmentAtBatchIndexLevelEnabled=True)
    run.subscribe("s", "Shared", permits=1)
    run.create_producer()
    assert sent(run.send(0, 99)) == [0]
    run.send(100)
    consumer = run.topic.subscriptions["s"].consumers[0]
    assert (consumer.unacked, consumer.blocked) == (100, True)
    assert sent(run.flow("s", 1000)) == []
    assert sent(run.ack("s", (1, 0), left=[2**30 - 1], size=100)) == []
    assert (consumer.unacked, consumer.blocked) == (30, True)
    assert sent(run.ack("s", (1, 0))) == [1]
    assert (consumer.unacked, consumer.blocked) == (1, False)


@pytest.mark.feature("D2", "D5")
def test_an_ack_is_answered_before_the_messages_that_it_makes_room_for() -> None:
    run = Run(maxUnackedMessagesPerConsumer=2)
    run.subscribe("s", "Shared", permits=10)
    for sequence_id in range(3):
        run.publish(sequence_id)
    answer, message = run.ack("s", (1, 0), request_id=7)
    assert isinstance(answer, AckResponse)
    assert isinstance(message, Message)


@pytest.mark.feature("D5")
def test_partial_acks_release_a_subscription() -> None:
    run = Run(maxUnackedMessagesPerSubscription=4, acknowledgmentAtBatchIndexLevelEnabled=True)
    run.subscribe("s", "Shared", permits=100)
    run.create_producer()
    assert sent(run.send(0, 3)) == [0]
    assert sent(run.send(4)) == []
    assert sent(run.ack("s", (1, 0), left=[0b1100], size=4)) == [], (
        "2 unacked: not less than half of the limit"
    )
    assert sent(run.ack("s", (1, 0), left=[0b1000], size=4)) == [1]


@pytest.mark.feature("D5", "I1")
@pytest.mark.parametrize(("method", "limit"), [("POST", 0), ("DELETE", None)])
def test_a_consumer_limit_that_is_taken_off_releases_with_the_next_ack(
    method: str, limit: int | None
) -> None:
    run = Run()
    run.namespace("POST", "maxUnackedMessagesPerConsumer", 4)
    run.subscribe("s", "Shared", permits=10)
    for sequence_id in range(9):
        run.publish(sequence_id)
    run.flow("s", 3)
    assert sent(run.namespace(method, "maxUnackedMessagesPerConsumer", limit)) == []
    assert sent(run.ack("s", (1, 0))) == [4, 5, 6, 7, 8]
    consumer = run.topic.subscriptions["s"].consumers[0]
    assert (consumer.unacked, consumer.blocked, consumer.permits) == (8, False, 4)


@pytest.mark.feature("E5")
def test_subscriptions_case_11_a_disconnect_keeps_the_counts() -> None:
    run = Run()
    for id_ in (0, 1):
        run.subscribe("s", "Shared", id_=id_, permits=100)
    for sequence_id in range(10):
        run.publish(sequence_id)
    again = of(run.close_consumer("s", id_=0), Message)
    assert len(again) == 5
    assert {(message.consumer_id, message.redelivery_count) for message in again} == {(1, 0)}


@pytest.mark.feature("E5")
def test_subscriptions_case_11_an_ack_timeout_raises_the_count() -> None:
    run = with_entries(1, permits=100)
    for count in (1, 2, 3):
        run.wait(1)
        assert one(run.redeliver("s", (1, 0)), Message).redelivery_count == count


@pytest.mark.feature("D2")
def test_subscriptions_case_12_a_reader_gets_its_start_entry_too() -> None:
    run = with_entries(3, name="keeper")
    effects = run.subscribe("r", durable=False, start_message_id=MessageIdData(1, 1), permits=10)
    assert sent(effects) == [1, 2]


@pytest.mark.feature("D4")
def test_subscriptions_case_13_unsubscribe_with_two_shared_consumers() -> None:
    run = Run()
    for id_ in (1, 2):
        run.subscribe("s", "Shared", id_=id_)
    assert refusal(run.unsubscribe("s")) == "MetadataError"
    effects = run.unsubscribe("s", force=True)
    assert [closed.consumer_id for closed in of(effects, CloseConsumer)] == [1, 2]
    assert isinstance(effects[-1], Success)
    assert run.topic.subscriptions == {}


@pytest.mark.feature("D4")
@pytest.mark.parametrize(
    ("target", "backlog"),
    [(LATEST, 0), (EARLIEST, 10), ((1, 5), 5), ((0, 4), 10), ((2, 4), 0)],
)
@pytest.mark.parametrize("after", [(), (0, 1, 2, 3, 7)])
def test_subscriptions_case_14_seek(target: tuple[int, int], backlog: int, after: tuple[int, ...]) -> None:
    run = with_entries(10, permits=1000)
    if after:
        run.ack("s", *[(1, entry) for entry in after])
    assert isinstance(run.seek("s", target)[-1], Success)
    assert run.cursor("s").backlog(run.topic.ledger, precise=True) == backlog
    assert sent(run.subscribe("s", "Shared", permits=1000)) == [*range(10 - backlog, 10)]


# -- SUBSCRIBE (docs/rules/subscriptions.md §1–§3) ----------------------------------------------------------------


@pytest.mark.feature("D1")
def test_the_same_consumer_again_is_no_second_one() -> None:
    run = Run(maxConsumersPerTopic=1)
    run.subscribe("s")
    assert one(run.subscribe("s"), Success)
    assert len(run.topic.subscriptions["s"].consumers) == 1


@pytest.mark.feature("D1")
def test_refusals_come_in_their_order() -> None:
    run = Run(maxConsumersPerTopic=1, allowAutoSubscriptionCreation=False, subscriptionTypesEnabled="Shared")
    run.admin("PUT", "/subscription/taken")
    run.subscribe("taken", "Shared")
    assert refusal(run.subscribe("new", read_compacted=True, id_=2)) == "ConsumerBusy"
    run.close_consumer("taken")
    assert refusal(run.subscribe("pulsar.dedup", "Shared", read_compacted=True)) == "SubscriptionNotFound"
    assert refusal(run.subscribe("taken", "Shared", read_compacted=True)) == "NotAllowedError"
    assert refusal(run.subscribe("taken", "Exclusive")) == "NotAllowedError"
    assert refusal(run.subscribe(" ", "Shared", durable=False)) == "ProducerBusy"


@pytest.mark.feature("D1")
@pytest.mark.parametrize("durable", [True, False])
def test_one_name_one_durability(durable: bool) -> None:
    run = Run()
    run.subscribe("s", durable=durable)
    assert refusal(run.subscribe("s", connection="other", durable=not durable)) == "NotAllowedError"


@pytest.mark.feature("D1")
def test_limits_of_subscriptions_and_consumers() -> None:
    run = Run(maxSubscriptionsPerTopic=1, maxConsumersPerSubscription=1)
    run.subscribe("s", "Shared")
    assert refusal(run.subscribe("t")) == "NotAllowedError"
    assert refusal(run.subscribe("s", "Shared", id_=2)) == "ConsumerBusy"


@pytest.mark.feature("D1")
def test_the_limit_of_subscriptions_holds_however_one_is_created() -> None:
    run = Run(maxSubscriptionsPerTopic=1)
    run.subscribe("s")
    run.publish(0)
    for method, call in (("PUT", "/subscription/t"), ("GET", "/subscription/t/position/1")):
        assert one(run.admin(method, call), AdminResponse).fields.status == 409
    refused = run.create_producer("q", initial_subscription_name="t")
    assert one(refused, Error).error == "NotAllowedError"
    assert list(run.topic.subscriptions) == ["s"]
    assert one(run.create_producer("q", initial_subscription_name="s"), ProducerSuccess)
    assert one(run.admin("GET", "/subscription/s/position/1"), AdminResponse).fields.status == 200


@pytest.mark.feature("D1")
def test_a_reader_that_closed_itself_by_a_seek_leaves_room_for_another_subscription() -> None:
    run = Run(maxSubscriptionsPerTopic=1)
    run.subscribe("r", durable=False)
    run.seek("r", EARLIEST)
    assert one(run.subscribe("s"), Success)
    assert refusal(run.subscribe("r", durable=False)) == "NotAllowedError"
    run.close_consumer("s")
    run.admin("DELETE", "/subscription/s")
    assert one(run.subscribe("r", durable=False), Success)


@pytest.mark.feature("D2")
def test_properties_and_position_count_at_creation_only() -> None:
    run = with_entries(2, name="keeper")
    run.subscribe("s", subscription_properties=[KeyValue("a", "1")])
    run.ack("s", (1, 0))
    run.close_consumer("s")
    effects = run.subscribe(
        "s", earliest=False, subscription_properties=[KeyValue("a", "2")],
        start_message_id=MessageIdData(1, 0), permits=10,
    )  # fmt: skip
    assert sent(effects) == [1]
    assert run.topic.subscriptions["s"].properties == {"a": "1"}


def left_by_a_seek() -> Run:
    """Failover consumers c0 and c1 of s with three messages sent to c1, which a seek by c0 then closes."""
    run = Run(activeConsumerFailoverRingForNonPartitioned=False)
    join(run, "c1", 1, permits=10)
    for sequence_id in range(3):
        run.publish(sequence_id)
    run.subscribe("s", "Failover", id_=0, connection="z", consumer_name="c2", permits=10)
    run.do(Seek(connection="z", consumer_id=0, request_id=1, message_id=MessageIdData(1, 1)))
    return run


@pytest.mark.feature("D4", "E3")
def test_the_active_consumer_that_a_seek_closed_stays_the_active_one() -> None:
    run = left_by_a_seek()
    assert active(run) == "c1"
    assert sent(run.publish(3)) == [], "and nobody reads"
    again = run.admin("POST", "/subscription/s/resetcursor/0")
    assert one(again, CloseConsumer).consumer_id == 1, "each further seek closes it again"
    assert one(run.seek("s", (1, 0)), Error).error == "MetadataError"
    assert refusal(run.do(Unsubscribe(connection="z", consumer_id=0, request_id=2))) == "MetadataError"


@pytest.mark.feature("D4", "E3")
def test_the_consumer_that_a_seek_closed_is_forgotten_when_another_becomes_active() -> None:
    run = left_by_a_seek()
    effects = join(run, "c3", 3, permits=10) + run.wait(10)
    assert active(run) == "c2"
    assert sent(effects) == [1, 2]
    assert [
        closed.consumer_id for closed in of(run.admin("POST", "/subscription/s/resetcursor/0"), CloseConsumer)
    ] == [0]
    assert active(run) == "c2"
    run.close_consumer("s", id_=3)
    assert active(run) is None, "nobody is connected"


@pytest.mark.feature("D4", "E3")
def test_a_consumer_whose_connection_is_lost_is_not_closed_again() -> None:
    run = left_by_a_seek()
    run.lose("s")
    assert of(run.admin("POST", "/subscription/s/resetcursor/0"), CloseConsumer) == []
    assert active(run) == "c1"


@pytest.mark.feature("D2")
@pytest.mark.parametrize("durable", [True, False])
def test_a_rollback_duration_resets_the_cursor_before_the_consumer_comes(durable: bool) -> None:
    run = Run()
    run.subscribe("keeper")
    for sequence_id in range(10):
        run.publish(sequence_id)
        run.wait(1)
    fields: dict[str, Any] = {"earliest": False, "durable": durable, "start_message_rollback_duration_sec": 4}
    effects = run.subscribe("s", permits=100, **fields)
    assert of(effects, CloseConsumer) == []
    assert sent(effects) == [6, 7, 8, 9]
    run.wait(1)
    run.close_consumer("s")
    if durable:
        assert sent(run.subscribe("s", permits=100, **fields)) == [7, 8, 9]


@pytest.mark.feature("D2")
def test_a_rollback_duration_disconnects_who_was_there() -> None:
    run = with_entries(3, permits=10)
    run.wait(1)
    effects = run.subscribe("s", "Shared", id_=2, permits=10, start_message_rollback_duration_sec=60)
    assert one(effects, CloseConsumer).consumer_id == 1
    assert sent(effects, 2) == [0, 1, 2]


# -- readers (docs/rules/subscriptions.md §4) ---------------------------------------------------------------------


@pytest.mark.feature("D2")
@pytest.mark.parametrize(
    ("start", "earliest", "expected"),
    [
        (None, False, []),
        (None, True, [0, 1, 2]),
        (LATEST, False, []),
        (EARLIEST, False, [0, 1, 2]),
        ((1, 2), False, [2]),
        ((1, 3), True, []),
        ((1, 7), False, []),
        ((1, 7), True, [0, 1, 2]),
        ((0, 7), False, [0, 1, 2]),
    ],
)
def test_where_a_reader_starts(start: tuple[int, int] | None, earliest: bool, expected: list[int]) -> None:
    run = with_entries(3, name="keeper")
    id_ = None if start is None else MessageIdData(*start)
    effects = run.subscribe("r", earliest=earliest, durable=False, start_message_id=id_, permits=10)
    assert sent(effects) == expected
    assert sent(run.publish(3)) == [3]


@pytest.mark.feature("D1")
def test_a_reader_goes_with_its_last_consumer() -> None:
    run = Run()
    run.subscribe("r", "Shared", durable=False)
    run.subscribe("r", "Shared", durable=False, id_=2, start_message_id=MessageIdData(*LATEST))
    run.close_consumer("r")
    assert list(run.topic.cursors) == ["r"]
    assert one(run.lose("r"), SubscriptionEvent).cause == "deleted: its last consumer left"
    assert list(run.topic.cursors) == []


@pytest.mark.feature("D1")
def test_a_second_consumer_of_a_reader_uses_its_cursor() -> None:
    run = with_entries(3, name="keeper")
    run.subscribe("r", "Shared", durable=False, permits=1)
    effects = run.subscribe(
        "r", "Shared", durable=False, id_=2, start_message_id=MessageIdData(1, 0), permits=10
    )
    assert sent(effects) == [1, 2]


@pytest.mark.feature("D5")
def test_a_reader_has_no_unacked_limit_of_a_consumer() -> None:
    run = Run(maxUnackedMessagesPerConsumer=1)
    run.subscribe("r", "Shared", durable=False, permits=10)
    assert [sent(run.publish(sequence_id)) for sequence_id in range(3)] == [[0], [1], [2]]


@pytest.mark.feature("E1")
def test_a_reader_outlives_its_own_seek() -> None:
    run = with_entries(3, name="keeper")
    run.subscribe("r", durable=False, permits=10)
    run.seek("r", (1, 1))
    start = MessageIdData(*LATEST)
    assert sent(run.subscribe("r", durable=False, start_message_id=start, permits=10)) == [1, 2]
    stats = run.broker.topic_stats(run.topic.name)["stats"]
    assert stats["subscriptions"]["r"]["msgOutCounter"] == 2, "only its cursor outlives it: it counts anew"
    assert stats["msgOutCounter"] == 5


@pytest.mark.feature("E1")
def test_a_reader_that_never_came_back_goes_with_the_topic() -> None:
    run = with_entries(3, name="keeper")
    run.subscribe("r", durable=False, permits=10)
    run.seek("r", (1, 1))
    run.unload()
    assert list(run.topic.cursors) == ["keeper"]


@pytest.mark.feature("D6", "E1")
@pytest.mark.parametrize(("expiration", "minutes"), [(0, 360), (10, 10), (500, 360)])
def test_a_reader_that_never_came_back_goes_after_six_hours(expiration: int, minutes: int) -> None:
    run = Run(subscriptionExpirationTimeMinutes=expiration)
    run.subscribe("r", durable=False)
    run.seek("r", EARLIEST)
    run.wait(60 * minutes)
    assert of(run.check("inactiveSubscriptions"), SubscriptionEvent) == []
    run.wait(0.001)
    assert one(run.check("inactiveSubscriptions"), SubscriptionEvent).subscription == "r"


@pytest.mark.feature("C3")
def test_trimming_pushes_a_reader_that_holds_nothing_back() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=2)
    run.subscribe("s")
    run.subscribe("r", durable=False)
    for sequence_id in range(5):
        run.publish(sequence_id)
    effects = run.ack("s", (2, 1), cumulative=True)
    assert [deleted.ledger_id for deleted in of(effects, LedgerDeleted)] == [1, 2]
    moved = one(effects, CursorMoved)
    assert (moved.subscription, moved.cause, moved.entries) == ("r", "ledger trimmed", 4)
    assert run.mark_delete("r") >= (2, 1)
    assert [(m.ledger_id, m.entry_id) for m in of(run.flow("r", 10), Message)] == [(3, 0)]


# -- leaving (docs/rules/subscriptions.md §9–§11) -----------------------------------------------------------------


@pytest.mark.feature("D4")
def test_a_lone_consumer_unsubscribes_and_the_data_goes() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=1)
    run.subscribe("s")
    run.publish(0)
    effects = run.unsubscribe("s")
    assert one(effects, LedgerDeleted).ledger_id == 1
    assert isinstance(effects[-1], Success)
    assert refusal(run.unsubscribe("s")) == "MetadataError"


@pytest.mark.feature("D4")
def test_a_failover_consumer_among_others_may_not_unsubscribe() -> None:
    run = Run()
    join(run, "a", 1)
    join(run, "b", 2)
    assert [refusal(run.unsubscribe("s", id_=id_)) for id_ in (1, 2)] == ["MetadataError"] * 2
    assert len(run.topic.subscriptions["s"].consumers) == 2


@pytest.mark.feature("D6")
def test_subscriptions_expire() -> None:
    run = Run(subscriptionExpirationTimeMinutes=10)
    for name in ("gone", "acked", "connected"):
        run.subscribe(name)
    run.publish(0)
    run.close_consumer("gone")
    run.wait(300)
    run.ack("acked", (1, 0))
    run.close_consumer("acked")
    run.wait(300)
    assert of(run.check("inactiveSubscriptions"), SubscriptionEvent) == []
    run.wait(0.001)
    expired = one(run.check("inactiveSubscriptions"), SubscriptionEvent)
    assert (expired.subscription, expired.cause) == ("gone", "deleted: unused for 10 min")
    run.wait(300)
    assert one(run.check("inactiveSubscriptions"), SubscriptionEvent).subscription == "acked"
    assert list(run.topic.subscriptions) == ["connected"]


@pytest.mark.feature("D6")
def test_the_expiry_check_runs_by_itself() -> None:
    run = Run(subscriptionExpirationTimeMinutes=1, subscriptionExpiryCheckIntervalInMinutes=5)
    run.subscribe("s")
    run.close_consumer("s")
    assert of(run.wait(299), SubscriptionEvent) == []
    assert one(run.wait(1), SubscriptionEvent).subscription == "s"


# -- Failover (docs/rules/subscriptions.md §12–§17) ---------------------------------------------------------------


@pytest.mark.feature("E3")
def test_even_the_first_consumer_waits_the_delay() -> None:
    run, topic = Run(), topic_of("t1")
    assert told(join(run, "c1", 1, topic, permits=10)) == []
    assert sent(run.publish(0, topic=topic)) == []
    assert told(run.wait(0.999)) == []
    effects = run.wait(0.001)
    assert told(effects) == [(1, True)]
    assert sent(effects) == [0]


@pytest.mark.feature("E3")
def test_a_second_change_does_not_restart_the_delay() -> None:
    run, topic = Run(), topic_of("t-partition-0")
    join(run, "b", 1, topic, permits=10)
    run.publish(0, topic=topic)
    run.wait(0.5)
    assert told(join(run, "a", 2, topic, permits=10)) == [], (
        "a is active now, and is told when the delay is over"
    )
    assert told(join(run, "c", 3, topic)) == [(3, False)]
    effects = run.wait(0.5)
    assert told(effects) == [(2, True), (1, False), (3, False)]
    assert sent(effects, 2) == [0]
    assert run.wait(10) == []


@pytest.mark.feature("E3")
def test_the_delay_ends_with_a_rewind_when_all_have_left_too() -> None:
    run, topic = Run(activeConsumerFailoverDelayTimeMillis=1000), TOPIC
    join(run, "b", 1, permits=10)
    run.wait(1)
    run.publish(0)
    run.close_consumer("s")
    join(run, "b", 1)
    run.close_consumer("s")
    assert str(run.topic.cursors["s"].read_position) == "1:1"
    run.wait(1)
    assert str(run.topic.cursors["s"].read_position) == "1:0"
    assert active(run, topic) is None


@pytest.mark.feature("E3", "E5")
def test_a_redelivery_during_the_delay_is_ignored() -> None:
    run = Run()
    join(run, "a", 1, permits=10)
    run.publish(0)
    assert run.redeliver("s") == []
    assert sent(run.wait(1)) == [0]


@pytest.mark.feature("E3", "E5")
def test_only_the_active_consumer_may_have_all_again() -> None:
    run = Run(activeConsumerFailoverDelayTimeMillis=0)
    for id_, name in enumerate("ab"):
        join(run, name, id_, permits=10)
    run.publish(0)
    chosen = {"a": 0, "b": 1}[active(run) or ""]
    assert run.redeliver("s", id_=1 - chosen) == []
    assert sent(run.redeliver("s", id_=chosen), chosen) == [0]


@pytest.mark.feature("E5")
def test_the_epoch_of_the_last_redelivery_goes_with_the_messages() -> None:
    run = with_entries(2, type_="Exclusive", permits=10)
    assert [m.consumer_epoch for m in of(run.redeliver("s", epoch=3), Message)] == [3, 3]
    assert [m.consumer_epoch for m in of(run.redeliver("s", epoch=2), Message)] == [3, 3]
    assert one(run.publish(2), Message).consumer_epoch == 3


@pytest.mark.feature("E3")
def test_the_first_named_is_active_by_utf16_order() -> None:
    run, topic = Run(activeConsumerFailoverDelayTimeMillis=0), topic_of("t-partition-0")
    join(run, "\uff5e", 1, topic)
    join(run, "\U0001f600", 2, topic)
    assert active(run, topic) == "\U0001f600", "a surrogate is smaller than U+FF5E, the code point is larger"


@pytest.mark.feature("E3", "E5")
def test_a_better_priority_takes_over_and_gets_what_is_unacked() -> None:
    run, topic = Run(activeConsumerFailoverDelayTimeMillis=0), topic_of("t-partition-0")
    join(run, "a", 1, topic, permits=10, level=1)
    for sequence_id in range(3):
        run.publish(sequence_id, topic=topic)
    run.ack("s", (1, 0), topic=topic)
    effects = join(run, "z", 2, topic, permits=10, level=0)
    assert told(effects) == [(2, True), (1, False)]
    assert sent(effects, 2) == [1, 2]
    assert sent(run.publish(3, topic=topic)) == [3]


@pytest.mark.feature("D4", "E3")
def test_a_seek_on_failover_closes_the_active_consumer_only() -> None:
    run = Run(activeConsumerFailoverDelayTimeMillis=0)
    for id_, name in enumerate("ab"):
        join(run, name, id_, permits=10)
    for sequence_id in range(3):
        run.publish(sequence_id)
    chosen = {"a": 0, "b": 1}[active(run) or ""]
    effects = run.seek("s", (1, 1), id_=1 - chosen)
    assert one(effects, CloseConsumer).consumer_id == chosen
    assert [type(effect) for effect in effects].index(CloseConsumer) == 0
    assert isinstance(effects[-1], Success)
    assert told(effects) == [], "the other one doesn't take over"
    assert sent(effects) == sent(run.publish(3)) == []
    assert run.seek("s", (1, 0), id_=1 - chosen)[-1] == Success(TOPIC, "s", run.requests)
    effects = join(run, "ab"[chosen], chosen, permits=10)
    assert set(told(effects)) == {(chosen, True), (1 - chosen, False)}
    assert sent(effects, chosen) == [0, 1, 2, 3]


@pytest.mark.feature("D4", "E3")
def test_after_a_seek_on_failover_another_takes_over_if_the_active_one_stays_away() -> None:
    run = Run(activeConsumerFailoverDelayTimeMillis=0)
    for id_, name in enumerate("abc"):
        join(run, name, id_, permits=10)
    run.publish(0)
    chosen = {"a": 0, "b": 1, "c": 2}[active(run) or ""]
    left, last = (id_ for id_ in range(3) if id_ != chosen)
    run.seek("s", (1, 0), id_=left)
    assert told(run.close_consumer("s", id_=left))[:1] == [(last, True)]


@pytest.mark.feature("D4", "E4")
def test_whose_turn_it_is_outlives_a_seek() -> None:
    run = Run()
    for id_ in (1, 2):
        run.subscribe("s", "Shared", id_=id_, permits=10)
    assert sent(run.publish(0), 1) == [0]
    run.seek("s", (1, 1), id_=1)
    for id_ in (1, 2):
        run.subscribe("s", "Shared", id_=id_, permits=10)
    assert sent(run.publish(1), 2) == [1]


@pytest.mark.feature("E3")
@pytest.mark.parametrize("type_", ["Shared", "Key_Shared", "Failover"])
def test_nobody_gets_the_others_messages_while_a_topic_is_unloaded(type_: Any) -> None:
    run = Run(activeConsumerFailoverDelayTimeMillis=0)
    for id_ in (1, 2):
        run.subscribe("s", type_, id_=id_, permits=10, consumer_name=f"c{id_}")
    for sequence_id in range(6):
        run.publish(sequence_id, key=str(sequence_id))
    effects = run.unload()
    assert [closed.consumer_id for closed in of(effects, CloseConsumer)] == [1, 2]
    assert sent(effects) == []


@pytest.mark.feature("E4")
@pytest.mark.parametrize("type_", ["Shared", "Key_Shared"])
def test_consumers_of_a_lost_connection_leave_together(type_: Any) -> None:
    run = Run()
    for id_ in (1, 2, 3):
        connection = "lost" if id_ < 3 else "s"
        run.subscribe("s", type_, id_=id_, permits=10, consumer_name=f"c{id_}", connection=connection)
    for sequence_id in range(6):
        run.publish(sequence_id, key=str(sequence_id))
    had = {id_: sorted(c.pending) for id_, c in enumerate(run.topic.subscriptions["s"].consumers, 1)}
    effects = run.lose("lost")
    assert had[1]
    assert had[2]
    assert {message.consumer_id for message in of(effects, Message)} == {3}
    assert sent(effects) == [entry for _, entry in sorted(had[1] + had[2])]


@pytest.mark.feature("E3")
def test_exclusive_consumers_are_never_told() -> None:
    run = Run()
    assert told(run.subscribe("s", permits=1)) == []
    assert told(run.close_consumer("s")) == []


@pytest.mark.feature("E3")
@pytest.mark.parametrize("durable", [True, False])
def test_exclusive_with_hash_ranges_gets_its_keys_and_acks_no_others(durable: bool) -> None:
    keys = [f"k{number}" for number in range(20)]
    mine = [entry for entry, key in enumerate(keys) if sticky_key_hash(metadata(key)) % 65536 <= 32767]
    assert 0 < len(mine) < 20
    run = Run()
    run.subscribe("keeper")
    for sequence_id, key in enumerate(keys):
        run.publish(sequence_id, key=key)
    lower = KeySharedMeta("STICKY", [IntRange(0, 9), IntRange(10, 32767)])
    assert sent(run.subscribe("s", durable=durable, keySharedMeta=lower, permits=100)) == mine
    assert run.backlog("s") == 20
    assert sent(run.redeliver("s")) == mine
    assert run.topic.subscriptions["s"].consumers[0].permits == 100 - 2 * len(mine)


@pytest.mark.feature("E3")
def test_exclusive_with_no_or_bad_hash_ranges() -> None:
    run = Run()
    run.publish(0)
    overlap = KeySharedMeta("STICKY", [IntRange(0, 10), IntRange(10, 20)])
    for name, durable in (("s", True), ("r", False)):
        refused = run.subscribe(name, durable=durable, keySharedMeta=overlap)
        assert one(refused, Error).error == "ConsumerAssignError"
    assert list(run.topic.subscriptions) == ["s"], "a durable subscription is there all the same"
    assert one(run.subscribe("s", keySharedMeta=KeySharedMeta("STICKY")), Success)
    run.subscribe("f", "Failover", keySharedMeta=KeySharedMeta("STICKY", [IntRange(0, 0)]), permits=10)
    run.publish(1)
    assert sent(run.wait(1)) == [0, 1], "ranges mean nothing on Failover"


@pytest.mark.feature("E1")
def test_a_read_of_few_permits_is_never_larger() -> None:
    run = with_entries(250, type_="Exclusive")
    assert sent(run.flow("s", 3)) == [0, 1, 2]
    assert sent(run.flow("s", 500)) == [*range(3, 250)]
    assert run.topic.subscriptions["s"].consumers[0].permits == 500 - 247


@pytest.mark.feature("D6")
def test_time_is_the_logs() -> None:
    run = Run()
    join(run, "a", 1)
    assert run.topic.subscriptions["s"].last_active == START


@pytest.mark.feature("E3")
def test_the_failover_delay_outlives_a_restart() -> None:
    store = Stored()
    run = Run()
    join(run, "a", 1, permits=10)
    store.add(run.publish(0))
    run.broker = Broker.decode(run.broker.encode(), store)
    assert run.wait(0.999) == []
    effects = run.wait(0.001)
    assert (told(effects), sent(effects)) == ([(1, True)], [0])


@pytest.mark.feature("E3")
@pytest.mark.parametrize("topic", [TOPIC, TOPIC.replace("persistent", "non-persistent")])
@pytest.mark.parametrize(("settings", "most"), [({}, 1024), ({"maxConsumerMetadataSize": 10}, 10)])
def test_a_consumer_with_too_much_metadata_is_refused(
    settings: dict[str, Any], most: int, topic: str
) -> None:
    """Keys and values count, all together, before anything is created."""
    run = Run(**settings)

    def metadata(size: int) -> list[KeyValue]:
        return [KeyValue(key="k", value="vv"), KeyValue(key="l" * (size - 3), value="")]

    refused = one(run.subscribe("s", metadata=metadata(most + 1), topic=topic), Error)
    assert refused.error == "MetadataError"
    assert run.broker.topic_names() == []
    assert of(run.subscribe("s", metadata=metadata(most), topic=topic), Error) == []
