"""Non-persistent topics (A8): nothing is stored, and messages that no consumer can take at once are dropped. Traces: np_basic, np_permits.

Every command is folded twice: by one broker, and by one that is encoded and decoded after each command. Effects and
state must be the same.
"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import (
    Ack,
    Admin,
    AnyCommand,
    CloseConsumer,
    ConnectionLost,
    Flow,
    GetLastMessageId,
    MessageIdData,
    MessageMetadata,
    Mirror,
    Publish,
    RedeliverUnacknowledgedMessages,
    Seek,
    Send,
    Subscribe,
    Unsubscribe,
    to_binary,
)
from schemas.effect_fields import ActiveConsumerChangeFields
from schemas.effects import (
    AckResponse,
    ActiveConsumerChange,
    AdminResponse,
    CloseConnection,
    Effect,
    Error,
    Message,
    ProducerSuccess,
    SendError,
    SendReceipt,
    SubscriptionEvent,
    Success,
    TopicEvent,
    Unsupported,
)
from schemas.effects import CloseConsumer as ConsumerClosed
from schemas.effects import CloseProducer as ProducerClosed
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.non_persistent.dispatchers import NonPersistentMultipleConsumers
from streaming.broker.non_persistent.stats import topic_stats
from streaming.broker.non_persistent.topic import NonPersistentTopic
from streaming.broker.producer.message_size import HEADER, metadata_size
from tests.broker.kit import TOPIC, Run, feed, of, one, response

pytestmark = pytest.mark.feature("A8")

NAME = "non-persistent://public/default/t"


class NonPersistent(Run):
    """The kit on a non-persistent topic. A twin broker is cut after every command."""

    def __init__(self, **settings: Any) -> None:
        self.twin = Broker(0, NoEntries())
        super().__init__(**settings)

    def raw(self, value: bytes, topic: str | None = NAME) -> list[Effect]:
        topic = NAME if topic == TOPIC else topic
        effects = super().raw(value, topic)
        feed(self.twin, self.twin.offset + 1, self.now, topic, value)
        assert [row.effect for row in self.twin.take()] == effects
        encoded = self.twin.encode()
        assert encoded == self.broker.encode()
        self.twin = Broker.decode(encoded, NoEntries())
        return effects

    def do(self, command: AnyCommand | Publish, topic: str | None = NAME) -> list[Effect]:
        return super().do(command, topic)

    def call(self, method: str, path: str, body: Any = None) -> int:
        """The status of an admin call on the topic."""
        status = one(self.admin(method, path, body, topic=NAME), AdminResponse).fields.status
        assert isinstance(status, int)
        return status

    def flow(self, name: str, permits: int, *, id_: int = 1, topic: str = NAME) -> list[Effect]:
        effects = super().flow(name, permits, id_=id_, topic=topic)
        assert effects == []
        return effects

    @property
    def here(self) -> NonPersistentTopic:
        return self.broker.non_persistent_topic(NAME)

    def stats(self) -> dict[str, Any]:
        return topic_stats(self.here)

    def stats_with_rates(self) -> dict[str, Any]:
        """As an administrator gets them."""
        found: dict[str, Any] = response(self.admin("GET", "/stats", topic=NAME))
        return found

    def dropped(self, subscription: str) -> int:
        drops = self.here.drops.get(subscription)
        return 0 if drops is None else drops.total


def receipts(effects: list[Effect]) -> list[tuple[int, int, int]]:
    return [(r.sequence_id, r.ledger_id, r.entry_id) for r in of(effects, SendReceipt)]


def taken(effects: list[Effect]) -> list[str]:
    """The connections that got a message."""
    return [message.connection for message in of(effects, Message)]


def producing(**settings: Any) -> NonPersistent:
    run = NonPersistent(**settings)
    one(run.create_producer(), ProducerSuccess)
    return run


# -- publishing ---------------------------------------------------------------------------------------------------


def test_a_message_is_answered_0_0_and_goes_out_with_its_content() -> None:
    run = producing()
    run.subscribe("s", permits=10)
    metadata = MessageMetadata("p", 7, run.now, partition_key="k")
    effects = run.do(
        Send(connection="client", producer_id=1, sequence_id=7, metadata=metadata, payload="text")
    )
    receipt, message = effects
    assert isinstance(receipt, SendReceipt)  # the receipt first, whatever becomes of the message
    assert (receipt.sequence_id, receipt.ledger_id, receipt.entry_id, receipt.payload) == (7, 0, 0, None)
    assert isinstance(message, Message)
    assert (message.ledger_id, message.entry_id, message.redelivery_count) == (0, 0, 0)
    assert (message.metadata, message.payload) == (metadata, b"text")
    assert message.size == receipt.size == HEADER + metadata_size(metadata) + 4


def test_nothing_is_stored() -> None:
    run = producing()
    for sequence_id in range(3):
        assert receipts(run.send(sequence_id)) == [(sequence_id, 0, 0)]
    assert run.subscribe("s", earliest=True, permits=10)[0] == SubscriptionEvent(
        NAME, "s", "created, not durable"
    )
    found = run.stats()
    assert (found["msgInCounter"], found["msgOutCounter"], found["storageSize"]) == (3, 0, 0)
    assert run.broker.summary()[1:] == (1, 0, 0)
    assert [(row["subscription"], row["backlog"]) for row in run.broker.stats()] == [(None, 0), ("s", 0)]


def test_there_is_no_deduplication() -> None:
    run = NonPersistent(brokerDeduplicationEnabled=True)
    assert one(run.create_producer(), ProducerSuccess).fields.last_sequence_id == -1
    run.subscribe("s", permits=10)
    for _ in range(2):
        assert [type(effect) for effect in run.send(5)] == [SendReceipt, Message]
    run.close_producer()
    assert one(run.create_producer(), ProducerSuccess).fields.last_sequence_id == -1


def test_the_short_form() -> None:
    run = NonPersistent()
    run.publish(0, payload="lost", topic=NAME)
    run.subscribe("s", permits=10)
    message = one(run.publish(1, payload="x", key="k", properties={"a": "b"}, topic=NAME), Message)
    assert message.metadata is not None
    assert (message.payload, message.metadata.partition_key) == (b"x", "k")
    assert message.metadata.properties[0].value == "b"
    assert message.metadata.publish_time == run.now


def test_refusals_of_the_short_form() -> None:
    run = NonPersistent(maxProducersPerTopic=1)
    run.create_producer()
    assert one(run.publish(0, producer="q", topic=NAME), SendError).error == "ProducerBusy"
    run.fault("DelayWrites", 1)
    run.send(0)
    run.close_producer()
    assert one(run.publish(1, topic=NAME), SendError).error == "PersistenceError"


@pytest.mark.parametrize("check", ["messageExpiry", "backlogQuota", "consumedLedgers", "inactiveSubscriptions",
                                   "cursorFlush", "deduplicationSnapshot", "inactiveProducers"])  # fmt: skip
def test_no_periodic_check_concerns_it(check: str) -> None:
    run = producing()
    run.subscribe("s", permits=10)
    run.namespace("POST", "messageTTL", 1)
    run.namespace("POST", "backlogQuota", {"limitSize": 0, "policy": "producer_exception"})
    run.send(0)
    run.wait(100_000)
    assert run.check(check) == []


@pytest.mark.parametrize("level", ["namespace", "topic"])
@pytest.mark.parametrize(
    "quota", [{"limitSize": 0}, {"limitSize": 10, "limitTime": 1}, {"limitTime": 1}], ids=str
)
def test_no_quota_keeps_a_producer_away(level: str, quota: dict[str, Any]) -> None:
    run = NonPersistent()
    run.subscribe("s", permits=10)
    for kind in ("destination_storage", "message_age"):
        call = f"backlogQuota?backlogQuotaType={kind}"
        if level == "namespace":
            run.namespace("POST", call, quota)
        else:
            assert run.call("POST", f"/{call}", quota) == 204
            assert run.call("DELETE", f"/{call}") == 204
            assert run.call("POST", f"/{call}", quota) == 204
    run.wait(100)
    one(run.create_producer(), ProducerSuccess)


def test_refusals_of_a_message() -> None:
    run = NonPersistent(maxMessageSize=100)
    run.create_producer(encrypted=True)
    run.call("POST", "/maxMessageSize", 60)
    run.send(0)  # small enough
    metadata = MessageMetadata("p", 1, run.now)

    def error(payload: str, **fields: Any) -> str:
        send = Send(
            connection="client", producer_id=1, sequence_id=1, metadata=metadata, payload=payload, **fields
        )
        refusal = one(run.do(send), SendError)
        assert refusal.sequence_id == fields.get("highest_sequence_id", 1)
        return refusal.error

    assert error("x" * 50) == "NotAllowedError"
    assert error("x" * 50, highest_sequence_id=4) == "NotAllowedError"
    assert error("x" * 101) == "NotAllowedError"
    assert error("", message_id=MessageIdData(1, 1)) == "NotAllowedError"
    run.call("POST", "/encryptionRequired", True)
    assert error("") == "MetadataError"
    assert run.stats()["msgInCounter"] == 4  # those that were too large count, as in Pulsar


def test_a_delivery_time_is_ignored() -> None:
    run = producing(delayedDeliveryMaxDelayInMillis=10)
    run.subscribe("s", "Shared", permits=10)
    assert taken(run.send(0, deliver_at_time=run.now + 60_000)) == ["s"]


def test_messages_of_an_unknown_producer_close_the_connection() -> None:
    run = producing()
    run.subscribe("s", connection="client", permits=10)
    effects = run.send(0, id_=9)
    assert one(effects, CloseConnection).connection == "client"
    assert run.here.producers == {}
    assert run.here.subscriptions == {}


def test_commands_on_a_topic_that_is_not_there() -> None:
    run = NonPersistent()
    one(run.send(0), CloseConnection)
    subscribe = Subscribe(
        connection="c", subscription="s", subType="Shared", consumer_id=1, request_id=1, force_topic_creation=False
    )  # fmt: skip
    assert one(run.do(subscribe), Error).error == "TopicNotFound"
    seek = Seek(connection="c", consumer_id=1, request_id=1)
    assert one(run.do(seek), Error).error == "MetadataError"
    assert run.broker.topic_names() == []


# -- who gets it --------------------------------------------------------------------------------------------------


def test_each_subscription_with_permits_gets_it_and_the_others_drop_it() -> None:
    run = producing()
    run.subscribe("a", permits=2)
    run.subscribe("b", "Shared", permits=1)
    run.subscribe("c", "Failover", permits=0)
    assert taken(run.send(0)) == ["a", "b"]
    assert taken(run.send(1)) == ["a"]
    assert taken(run.send(2)) == []
    assert [run.dropped(name) for name in "abc"] == [1, 2, 3]
    run.flow("c", 1)
    assert taken(run.send(3)) == ["c"]  # what was dropped doesn't come again


def test_shared_round_robin_skips_consumers_without_permits() -> None:
    run = producing()
    run.subscribe("s", "Shared", connection="a", permits=2)
    run.subscribe("s", "Shared", connection="b", permits=3)
    assert [taken(run.send(i)) for i in range(7)] == [["a"], ["b"], ["a"], ["b"], ["b"], [], []]
    assert run.dropped("s") == 2
    run.flow("a", 1)
    run.flow("b", 1)
    assert [taken(run.send(i)) for i in range(3)] == [["a"], ["b"], []]


def test_shared_consumers_stay_in_the_order_of_joining_whatever_their_priority() -> None:
    run = producing()
    run.subscribe("s", "Shared", connection="low", permits=9, priority_level=1)
    run.subscribe("s", "Shared", connection="high", permits=9, priority_level=0)
    assert [taken(run.send(i)) for i in range(4)] == [["low"], ["high"], ["low"], ["high"]]


def test_a_higher_priority_that_joined_first_gets_all_while_it_can() -> None:
    run = producing()
    run.subscribe("s", "Shared", connection="high", permits=3, priority_level=0)
    run.subscribe("s", "Shared", connection="low", permits=2, priority_level=1)
    assert [taken(run.send(i)) for i in range(6)] == [["high"], ["high"], ["high"], ["low"], ["low"], []]
    assert run.dropped("s") == 1


def test_a_lower_priority_that_joined_first_is_passed_over_when_the_higher_one_has_its_turn() -> None:
    """quirk: the search for a consumer ends without looking before the level whose turn it is."""
    run = producing()
    run.subscribe("s", "Shared", connection="low", permits=9, priority_level=1)
    run.subscribe("s", "Shared", connection="high", permits=1, priority_level=0)
    assert [taken(run.send(i)) for i in range(5)] == [["low"], ["high"], ["low"], [], []]
    assert run.dropped("s") == 2
    run.flow("high", 1)
    assert [taken(run.send(i)) for i in range(3)] == [["high"], ["low"], []]


def test_among_higher_priorities_that_joined_first_the_first_that_can_is_next() -> None:
    run = producing()
    run.subscribe("s", "Shared", connection="a", permits=1, priority_level=0)
    run.subscribe("s", "Shared", connection="b", permits=3, priority_level=0)
    run.subscribe("s", "Shared", connection="c", permits=1, priority_level=1)
    assert [taken(run.send(i)) for i in range(6)] == [["a"], ["b"], ["b"], ["b"], ["c"], []]


@pytest.mark.parametrize("type_", ["Exclusive", "Failover", "Shared"])
def test_a_batch_is_charged_by_the_message_and_may_exceed_the_permits(type_: Any) -> None:
    run = producing()
    run.subscribe("s", type_, permits=2)
    message = one(run.send(0, 4), Message)
    assert message.messages == 5
    (consumer,) = run.stats()["subscriptions"]["s"]["consumers"]
    assert consumer["availablePermits"] == -3
    assert (consumer["msgOutCounter"], consumer["avgMessagesPerEntry"]) == (5, 5)
    assert consumer["unackedMessages"] == 0
    run.flow("s", 3)
    assert taken(run.send(5, 14)) == []
    assert run.dropped("s") == 10
    run.flow("s", 1)
    assert taken(run.send(15)) == ["s"]


def test_one_shared_consumer_far_below_zero_holds_up_the_others() -> None:
    run = producing()
    run.subscribe("s", "Shared", connection="a", permits=1)
    run.send(0, 9)
    run.subscribe("s", "Shared", connection="b", permits=5)
    assert taken(run.send(10)) == []  # −9 and 5 are less than 1
    run.flow("b", 5)
    assert taken(run.send(11)) == ["b"]
    assert taken(run.send(12)) == []
    run.do(ConnectionLost(connection="a"), None)  # its −9 stay
    assert taken(run.send(13)) == []
    run.flow("b", 1)
    assert taken(run.send(14)) == ["b"]


def test_filters_reject_and_markers_stay_inside() -> None:
    run = producing(entryFilterNames="PropertyFilter")
    wanted = [{"key": "filter.color", "value": "red"}]
    run.subscribe("all", "Shared", permits=10)
    run.subscribe("red", "Shared", permits=10, subscription_properties=wanted)
    red = [{"key": "color", "value": "red"}]
    assert taken(run.send(0, properties=red)) == ["all", "red"]
    assert taken(run.send(1)) == ["all"]
    assert taken(run.send(2, marker_type=10)) == []
    assert run.dropped("red") == 0


# -- consumers ----------------------------------------------------------------------------------------------------


def test_a_subscription_goes_with_its_last_consumer() -> None:
    run = producing()
    run.subscribe("s", permits=10)
    run.send(0)
    effects = run.do(CloseConsumer(connection="s", consumer_id=1, request_id=5))
    assert effects == [
        SubscriptionEvent(NAME, "s", "deleted: its last consumer left"),
        Success(NAME, "s", 5),
    ]
    assert run.stats()["subscriptions"] == {}
    run.send(1)
    run.subscribe("s", "Shared", permits=10)  # of any type
    run.send(2)
    found = run.stats()
    assert (found["msgInCounter"], found["msgOutCounter"]) == (3, 2)
    assert found["subscriptions"]["s"]["msgOutCounter"] == 1
    assert not found["subscriptions"]["s"]["isDurable"]
    assert "deduplicationStatus" not in found


def test_a_subscription_that_stays_expires() -> None:
    """The check runs every minute from the first record on; as a real 2.10.5 and 3.0.7."""
    run = NonPersistent(
        nonPersistentSubscriptionsStay=True, subscriptionExpiryCheckIntervalInMinutes=1, brokerDeleteInactiveTopicsEnabled=True,
        brokerDeleteInactiveTopicsFrequencySeconds=20,
    )  # fmt: skip
    run.create_producer()
    run.subscribe("s", permits=10)
    run.subscribe("used", permits=10)
    run.send(0)
    run.close_producer()
    run.do(CloseConsumer(connection="s", consumer_id=1, request_id=5))
    assert of(run.wait(200), SubscriptionEvent) == []  # no policy
    run.namespace("POST", "subscriptionExpirationTime", 1)
    run.subscribe("s", permits=10)
    run.wait(30)
    run.do(CloseConsumer(connection="s", consumer_id=1, request_id=6))  # at 230 s
    assert of(run.wait(69), SubscriptionEvent) == []  # the round at 240 s was too early
    assert of(run.wait(1), SubscriptionEvent) == [SubscriptionEvent(NAME, "s", "deleted: unused for 1 min")]
    assert list(run.stats()["subscriptions"]) == ["used"]
    assert run.stats()["msgOutCounter"] == 2  # what it was sent still counts
    run.do(CloseConsumer(connection="used", consumer_id=1, request_id=7))  # at 300 s
    effects = run.wait(119)
    assert of(effects, SubscriptionEvent) == []  # in the round at 360 s, it was not longer than a minute
    assert of(effects, TopicEvent) == []
    effects = run.wait(41)
    assert of(effects, SubscriptionEvent) == [SubscriptionEvent(NAME, "used", "deleted: unused for 1 min")]
    assert (
        one(effects, TopicEvent).cause == "deleted because nobody used it"
    )  # it had been in use until 420 s


def subscribed(run: NonPersistent, *args: Any, **fields: Any) -> str | None:
    """Subscribe; the error, None: it succeeded."""
    effects = run.subscribe(*args, **fields)
    errors = of(effects, Error)
    assert len(errors) + len(of(effects, Success)) == 1
    return errors[0].error if errors else None


def test_refusals_of_a_consumer() -> None:
    run = NonPersistent(maxConsumersPerSubscription=2, maxConsumersPerTopic=4, allowAutoSubscriptionCreation=False,
                        maxSubscriptionsPerTopic=1)  # fmt: skip
    assert subscribed(run, "x") is None
    assert subscribed(run, "x") is None  # the same consumer again
    assert subscribed(run, "x", connection="other") == "ConsumerBusy"
    assert subscribed(run, "x", "Shared", connection="other") == "ConsumerBusy"
    assert subscribed(run, "s", "Shared", connection="a") is None
    assert subscribed(run, "s", "Shared", connection="b", durable=False) is None
    assert subscribed(run, "s", "Shared", connection="c") == "ConsumerBusy"
    assert subscribed(run, "y", read_compacted=True) == "NotAllowedError"
    assert subscribed(run, "pulsar.repl.y") == "ProducerBusy"
    assert subscribed(run, "y", keySharedMeta={"keySharedMode": "STICKY"}) == "NotAllowedError"
    assert subscribed(run, "y") is None
    assert subscribed(run, "z") == "ConsumerBusy"
    run.configure(subscriptionTypesEnabled="Shared")
    assert subscribed(run, "z") == "NotAllowedError"


def test_failover_takes_over_at_once() -> None:
    run = producing()
    run.subscribe("s", "Failover", connection="b", consumer_name="b", permits=10)
    assert taken(run.send(0)) == ["b"]  # no failover delay
    effects = run.subscribe("s", "Failover", connection="c", consumer_name="c", permits=10)
    assert one(effects, ActiveConsumerChange) == ActiveConsumerChange(
        NAME, "c", 1, ActiveConsumerChangeFields(is_active=False)
    )
    assert isinstance(effects[-1], Success)
    effects = run.subscribe("s", "Failover", connection="a", consumer_name="a", permits=10)
    assert of(effects, ActiveConsumerChange) == []  # the first by name is active, without notifications
    assert taken(run.send(1)) == ["a"]
    run.subscribe("s", "Failover", connection="z", consumer_name="z", permits=1, priority_level=-1)
    assert taken(run.send(2)) == ["z"]
    assert taken(run.send(3)) == []  # the active one only
    run.do(ConnectionLost(connection="z"), None)
    assert taken(run.send(4)) == ["a"]
    assert "activeConsumerName" not in run.stats()["subscriptions"]["s"]


def test_failover_of_a_partition() -> None:
    name = f"{NAME}-partition-1"
    run = NonPersistent()
    for connection in "abc":
        run.subscribe("s", "Failover", connection=connection, consumer_name=connection, permits=9, topic=name)
    assert taken(run.publish(0, topic=name)) == ["b"]
    run.configure(activeConsumerFailoverConsistentHashing=True)
    run.do(ConnectionLost(connection="c"), None)
    assert len(taken(run.publish(1, topic=name))) == 1


# -- Key_Shared ---------------------------------------------------------------------------------------------------

KEYS = [f"key {i}" for i in range(20)]


def takers(run: NonPersistent) -> list[list[str]]:
    """Who gets a message of each of the `KEYS`."""
    return [taken(run.send(0, partition_key=key)) for key in KEYS]


@pytest.mark.parametrize("settings", [{}, {"subscriptionKeySharedUseConsistentHashing": False}], ids=str)
def test_keys_stick_to_their_consumers(settings: dict[str, Any]) -> None:
    run = producing(**settings)
    for connection in "ab":
        run.subscribe("s", "Key_Shared", connection=connection, consumer_name=connection, permits=1000)
    before = takers(run)
    assert {len(connections) for connections in before} == {1}
    assert {connection for (connection,) in before} == {"a", "b"}
    assert takers(run) == before
    run.do(ConnectionLost(connection="b"), None)
    assert takers(run) == [["a"]] * len(KEYS)
    assert "keySharedMode" not in run.stats()["subscriptions"]["s"], "of a persistent topic only"


def test_a_key_whose_consumer_has_no_permits_is_dropped() -> None:
    run = producing()
    for connection, permits in (("a", 1000), ("b", 0)):
        run.subscribe("s", "Key_Shared", connection=connection, consumer_name=connection, permits=permits)
    lost = takers(run).count([])
    assert 0 < run.dropped("s") == lost < len(KEYS)


def test_fixed_ranges_and_keys_that_are_nobodys() -> None:
    run = producing()

    def ranges(start: int, end: int, mode: str = "STICKY") -> dict[str, Any]:
        return {"keySharedMeta": {"keySharedMode": mode, "hashRanges": [{"start": start, "end": end}]}}

    assert subscribed(run, "s", "Key_Shared", connection="a", permits=1000, **ranges(0, 20000)) is None
    assert subscribed(run, "s", "Key_Shared", connection="b", **ranges(20000, 20001)) == "ConsumerAssignError"
    assert subscribed(run, "s", "Key_Shared", connection="b") == "ConsumerBusy"
    assert subscribed(run, "t", "Key_Shared", **ranges(5, 4)) == "ConsumerAssignError"
    assert run.here.subscriptions.keys() == {"s"}
    found = takers(run)
    assert 0 < found.count(["a"]) < len(KEYS)
    assert found.count(["a"]) + found.count([]) == len(KEYS)
    assert run.dropped("s") == 0
    run.configure(subscriptionKeySharedEnable=False)
    assert subscribed(run, "t", "Key_Shared") == "NotAllowedError"


def test_the_old_ring_of_the_2_x_profile() -> None:
    run = NonPersistent(profile="2.x")
    run.create_producer()
    run.subscribe("s", "Key_Shared", permits=1000)
    assert takers(run) == [["s"]] * len(KEYS)


# -- what consumers ask for ---------------------------------------------------------------------------------------


def test_acks_redelivery_and_seeks_do_nothing() -> None:
    run = producing()
    run.subscribe("s", "Shared", permits=10)
    run.send(0)
    before = run.stats()
    ids = [MessageIdData(0, 0)]

    def ack(**fields: Any) -> list[Effect]:
        return run.do(Ack(consumer_id=1, ack_type="Individual", message_id=ids, **fields))

    assert ack(connection="s") == []
    assert ack(connection="s", request_id=3) == [AckResponse(NAME, "s", 3, 1)]
    assert ack(connection="nobody", request_id=4) == []
    assert run.do(RedeliverUnacknowledgedMessages(connection="s", consumer_id=1)) == []
    for fields in ({"message_id": MessageIdData(-1, -1)}, {"message_publish_time": 5}):
        seek = Seek(connection="s", consumer_id=1, request_id=5, **fields)
        assert run.do(seek) == [Success(NAME, "s", 5)]
    assert one(run.do(Seek(connection="s", consumer_id=1, request_id=6)), Error).error == "MetadataError"
    assert run.stats() == before


def test_there_is_no_last_message_id() -> None:
    run = producing()
    run.subscribe("s", permits=10)
    run.send(0)
    for connection, error in (("s", "UnknownError"), ("nobody", "MetadataError")):
        command = GetLastMessageId(connection=connection, consumer_id=1, request_id=1)
        assert one(run.do(command), Error).error == error


def test_a_flow_of_no_permits_closes_the_connection() -> None:
    run = producing()
    run.subscribe("s", permits=5)
    one(run.do(Flow(connection="s", consumer_id=1, messagePermits=0)), CloseConnection)
    assert run.here.subscriptions == {}
    run.flow("nobody", 5)  # lost
    assert taken(run.send(0)) == []


def test_unsubscribe() -> None:
    run = producing()
    for connection in "abc":
        run.subscribe("s", "Shared", connection=connection)

    def unsubscribe(connection: str, force: bool = False) -> list[Effect]:
        return run.do(Unsubscribe(connection=connection, consumer_id=1, request_id=9, force=force))

    assert one(unsubscribe("nobody"), Error).error == "MetadataError"
    assert one(unsubscribe("a"), Error).error == "MetadataError"
    effects = unsubscribe("a", force=True)
    assert [closed.connection for closed in of(effects, ConsumerClosed)] == ["b", "c"]
    assert effects[-1] == Success(NAME, "a", 9)
    assert run.here.subscriptions == {}
    run.subscribe("s", "Shared", connection="a")
    assert of(unsubscribe("a"), ConsumerClosed) == []
    assert run.here.consumer_handles.names == {}


# -- in flight (docs/rules/producers.md §15) ----------------------------------------------------------------------


def test_producer_case_13_above_the_limit_a_message_is_dropped() -> None:
    """testMsgDropStat: limit 0, the second of two that overlap."""
    run = producing(maxConcurrentNonPersistentMessagePerConnection=0)
    run.subscribe("s", permits=10)
    run.fault("DelayWrites", 1)
    assert run.send(0) == []
    assert receipts(run.send(1, 3)) == [(1, -1, -1)]
    assert run.here.publisher_drops["p"].total == 1  # a batch is one
    effects = run.fault("CompleteWrites")
    assert receipts(effects) == [(0, 0, 0)]
    assert taken(effects) == ["s"]
    assert receipts(run.send(4)) == [(4, 0, 0)]
    run.wait(60)
    found = run.stats_with_rates()
    assert found["publishers"][0]["msgDropRate"] == 1 / 60
    assert found["msgDropRate"] == 0  # quirk: 4.0.7 never sets it
    assert found["subscriptions"]["s"]["msgDropRate"] == 0
    run.close_producer()
    assert run.here.publisher_drops == {}


def test_producer_case_13_no_send_fails_and_not_all_are_delivered() -> None:
    """testProducerRateLimit: limit 1, 500 sends."""
    run = producing(maxConcurrentNonPersistentMessagePerConnection=1)
    run.subscribe("s", permits=1000)
    run.fault("DelayWrites", 500)
    effects = [effect for i in range(500) for effect in run.send(i)]
    effects += run.fault("CompleteWrites")
    assert of(effects, SendError) == []
    assert len(receipts(effects)) == 500
    assert len(taken(effects)) == 2


def test_producer_case_16_one_above_the_limit_may_be_in_flight() -> None:
    run = producing(maxConcurrentNonPersistentMessagePerConnection=1000)
    topic = run.here
    run.fault("DelayWrites", 2000)
    metadata = MessageMetadata("p", 0, run.now)
    for i in range(1002):
        send = Send(connection="client", producer_id=1, sequence_id=i, metadata=metadata)
        feed(
            run.broker, run.broker.offset + 1, run.now, NAME, to_binary(send)
        )  # no twin: a thousand cuts take long
        answers = receipts([row.effect for row in run.broker.take()])
        assert answers == ([] if i < 1001 else [(1001, -1, -1)])
    assert topic.in_flight("client") == 1001


def test_in_flight_counts_by_connection() -> None:
    run = producing(maxConcurrentNonPersistentMessagePerConnection=0)
    run.create_producer("other", connection="other")
    run.fault("DelayWrites", 5)
    assert run.send(0) == []
    assert run.send(0, name="other", connection="other") == []
    assert receipts(run.send(1)) == [(1, -1, -1)]


def test_messages_in_flight_keep_their_order_and_wait_for_the_oldest() -> None:
    run = producing()
    run.subscribe("s", permits=10)
    run.fault("DelayWrites", 1)
    run.send(0)
    assert run.send(1) == []  # behind one in flight
    run.subscribe("late", permits=10)
    effects = run.fault("CompleteWrites", 1)
    assert receipts(effects) == [(0, 0, 0)]
    assert taken(effects) == ["s", "late"]  # who is there when it goes on
    assert receipts(run.fault("CompleteWrites")) == [(1, 0, 0)]
    assert receipts(run.send(2)) == [(2, 0, 0)]


def test_messages_lost_in_flight_are_dropped() -> None:
    run = producing()
    run.subscribe("s", permits=10)
    run.fault("DelayWrites", 2)
    run.send(0)
    run.send(1, 2)
    effects = run.fault("LoseWrites")
    assert receipts(effects) == [(0, -1, -1), (1, -1, -1)]
    assert taken(effects) == []
    assert run.here.publisher_drops["p"].total == 2
    assert receipts(run.send(3)) == [(3, 0, 0)]


def test_a_producer_closes_when_nothing_of_it_is_in_flight() -> None:
    run = producing()
    run.fault("DelayWrites", 1)
    run.send(0)
    assert run.close_producer() == []
    assert one(run.send(1), SendError).error == "PersistenceError"
    assert [type(effect) for effect in run.fault("CompleteWrites")] == [SendReceipt, Success]


def test_there_are_no_writes_to_fail() -> None:
    run = producing()
    one(run.fault("FailWrites", 1), Unsupported)
    assert receipts(run.send(0)) == [(0, 0, 0)]


def test_drop_rates_are_of_the_last_interval() -> None:
    run = producing(statsUpdateFrequencyInSecs=10)
    run.now -= run.now % 10_000
    run.subscribe("s")

    def rate() -> float:
        found: float = run.stats_with_rates()["subscriptions"]["s"]["msgDropRate"]
        return found

    for _ in range(5):
        run.send(0)
    assert rate() == 0  # the interval isn't over
    run.wait(10)
    assert rate() == 0.5
    run.send(1)
    assert rate() == 0.5
    run.wait(10)
    assert rate() == 0.1
    run.wait(10)
    assert rate() == 0
    run.send(2)
    assert rate() == 0
    assert run.dropped("s") == 7


# -- access, unload, administration -------------------------------------------------------------------------------


def test_access_modes_and_the_topic_epoch_in_memory() -> None:
    run = NonPersistent()

    def create(id_: int, mode: str) -> list[Effect]:
        return run.create_producer(f"p{id_}", id_=id_, producer_access_mode=mode)

    assert one(create(1, "Exclusive"), ProducerSuccess).fields.topic_epoch == 0
    assert one(create(2, "Exclusive"), Error).error == "ProducerFenced"
    assert one(create(3, "Shared"), Error).error == "ProducerBusy"
    assert not one(create(4, "WaitForExclusive"), ProducerSuccess).fields.producer_ready
    assert one(run.close_producer(1), ProducerSuccess).fields.topic_epoch == 1
    assert run.call("PUT", "/unload") == 204
    assert one(create(5, "Exclusive"), ProducerSuccess).fields.topic_epoch == 0


def test_unload_refuses_the_producer_that_waits_for_access() -> None:
    run = NonPersistent()
    run.create_producer("p", producer_access_mode="Exclusive")
    run.create_producer("q", id_=2, producer_access_mode="WaitForExclusive")
    effects = run.admin("PUT", "/unload", topic=NAME)
    assert of(effects, ProducerSuccess) == []
    assert [error.error for error in of(effects, Error)] == ["ServiceNotReady"]


def test_unload_forgets_everything_but_policies() -> None:
    run = producing()
    run.call("POST", "/maxConsumersPerTopic", 1)
    run.subscribe("s", permits=10)
    run.send(0)
    run.fault("DelayWrites", 1)
    run.send(1)
    effects = run.admin("PUT", "/unload", topic=NAME)
    assert one(effects, ProducerClosed).producer_name == "p"
    assert one(effects, ConsumerClosed).connection == "s"
    assert of(effects, SendReceipt) == []
    assert run.stats()["msgInCounter"] == 0
    assert run.send(2) == []  # was under way when the broker closed its producer
    assert subscribed(run, "s", permits=10) is None
    assert subscribed(run, "x") == "ConsumerBusy"
    run.create_producer(epoch=1)
    assert taken(run.send(3)) == ["s"]


@pytest.mark.parametrize(
    ("method", "call", "status"),
    [
        ("POST", "/messageTTL", 204),
        ("POST", "/subscription/s/skip_all", 405),
        ("POST", "/subscription/s/skip/1", 405),
        ("POST", "/subscription/s/resetcursor/5", 204),
        ("POST", "/subscription/s/expireMessages/5", 405),
        ("DELETE", "/truncate", 412),
        ("PUT", "/subscription/new", 400),
        ("PUT", "/subscription/new/properties", 404),
        ("DELETE", "/subscription/s", 412),
        ("DELETE", "/subscription/s?force=true", 204),
        ("DELETE", "/subscription/nobody", 404),
        ("PUT", "/compaction", 405),
        ("POST", "/terminate", 406),
        ("GET", "/subscription/s/position/1", 405),
        ("GET", "/stats", 200),
        ("GET", "/internalStats", 200),
    ],
)
def test_admin_calls(method: str, call: str, status: int) -> None:
    run = producing()
    run.subscribe("s", permits=10)
    run.send(0)
    assert run.call(method, call, 5) == status
    assert ("s" in run.here.subscriptions) == ("force" not in call)


@pytest.mark.parametrize(
    ("method", "call", "words"),
    [
        ("GET", "/lastMessageId", "GetLastMessageId on a non-persistent topic is"),
        (
            "POST",
            "/all_subscription/expireMessages/5",
            "Expire messages for all subscriptions on a non-persistent topic is",
        ),
        ("GET", "/subscription/s/position/1", "Peek messages on a non-persistent topic is"),
        ("POST", "/trim", "Trim on a non-persistent topic is"),
        ("POST", "/subscription/s/skip_all", "POST /subscription/s/skip_all on a non-persistent topic is"),
    ],
)
def test_what_is_refused_is_named_as_by_pulsar(method: str, call: str, words: str) -> None:
    run = producing()
    answer = one(run.admin(method, call, topic=NAME), AdminResponse).fields
    assert (answer.status, answer.response) == (405, {"reason": f"{words} not allowed"})


@pytest.mark.parametrize(("profile", "gets"), [("2.10", True), ("4.0", True), ("4.2", False), ("5.0", False)])
def test_the_permits_of_a_consumer_that_left_stay_in_the_total(profile: Any, gets: bool) -> None:
    """A batch leaves a consumer at −9. Another one has 20 permits, which make up for that, also when it has left up to 4.0."""
    run = NonPersistent(profile=profile)
    run.create_producer()
    run.subscribe("s", "Shared", connection="a", permits=1)
    run.send(0, 9)
    run.subscribe("s", "Shared", connection="b", permits=20)
    run.subscribe("s", "Shared", connection="c", permits=1)
    run.do(ConnectionLost(connection="b"), None)
    assert taken(run.send(10)) == (["c"] if gets else [])
    for connection in "ac":
        run.do(ConnectionLost(connection=connection), None)
    run.subscribe("s", "Shared", connection="d", permits=1)
    assert taken(run.send(11)) == ["d"]  # of the last one, nothing stays


def test_no_initial_subscription() -> None:
    run = NonPersistent(allowAutoSubscriptionCreation=False)
    one(run.create_producer(initial_subscription_name="s"), ProducerSuccess)
    assert run.here.subscriptions == {}


def test_stored_topics_beside_it_are_as_ever() -> None:
    run = NonPersistent()
    stored = "persistent://public/default/other"
    run.publish(0, topic=NAME)
    receipt = one(run.publish(0, topic=stored), SendReceipt)
    assert (receipt.ledger_id, receipt.entry_id) == (1, 0)
    run.create_producer("q", topic=NAME)
    run.subscribe("s", topic=stored, connection="client")
    run.do(ConnectionLost(connection="client"), None)
    assert run.here.producers.keys() == {"p"}


# -- whatever happens ---------------------------------------------------------------------------------------------

CONNECTIONS, TYPES = (
    st.sampled_from("abc"),
    st.sampled_from(["Exclusive", "Failover", "Shared", "Key_Shared"]),
)
OPERATIONS = st.one_of(
    st.tuples(st.just("subscribe"), CONNECTIONS, TYPES, st.integers(0, 4)),
    st.tuples(st.just("flow"), CONNECTIONS, st.integers(1, 4)),
    st.tuples(st.just("send"), st.integers(1, 5)),
    st.tuples(st.just("lost"), CONNECTIONS),
    st.tuples(st.just("fault"), st.sampled_from(["DelayWrites", "CompleteWrites", "LoseWrites"]), st.integers(0, 2)),
    st.tuples(st.just("unload")),
)  # fmt: skip


@given(st.lists(OPERATIONS, max_size=30))
def test_every_message_is_delivered_or_dropped_in_each_subscription(
    operations: list[tuple[Any, ...]],
) -> None:
    run = producing()
    stays = Counter[str]()  # the permits of those that left, in the totals
    for operation in operations:
        match operation:
            case "subscribe", connection, type_, permits:
                run.subscribe(type_, type_, connection=connection, permits=permits)
            case "flow", connection, permits:
                run.do(Flow(connection=connection, consumer_id=1, messagePermits=permits))
            case "send", messages:
                before = seen(run)
                effects = run.send(0, messages - 1)
                arrived = messages if receipts(effects) == [(0, 0, 0)] else 0
                assert seen(run) == {name: count + arrived for name, count in before.items()}
            case "lost", connection:
                for name, subscription in run.here.subscriptions.items():
                    stays[name] += sum(
                        each.permits for each in subscription.consumers if each.connection == connection
                    )
                run.do(ConnectionLost(connection=connection), None)
                for name in stays.keys() - run.here.subscriptions.keys():
                    del stays[name]
            case "fault", fault, count:
                run.fault(fault, count)
            case _:
                stays.clear()
                run.call("PUT", "/unload")
                run.create_producer()
        for subscription in run.here.subscriptions.values():
            assert subscription.consumers
            if isinstance(subscription.dispatcher, NonPersistentMultipleConsumers):
                permits = sum(consumer.permits for consumer in subscription.consumers)
                assert subscription.dispatcher.total_permits == permits + stays[subscription.name]
        handles = {c.handle for s in run.here.subscriptions.values() for c in s.consumers}
        assert handles == set(run.here.consumer_handles)


def seen(run: NonPersistent) -> dict[str, int]:
    """The messages that each subscription got or dropped."""
    return {name: s.messages_out + run.dropped(name) for name, s in run.here.subscriptions.items()}


def test_a_producer_id_in_use_is_answered_with_its_producer() -> None:
    run = Run()
    run.create_producer("p", topic=NAME)
    again = one(run.create_producer("q", topic=NAME), ProducerSuccess)
    assert (again.producer_name, again.producer_id) == ("p", 1)
    assert list(run.broker.non_persistent_topic(NAME).producers) == ["p"]


@pytest.mark.feature("I2")
def test_rates_are_those_of_the_last_interval() -> None:
    run = producing(now=60_000_000)
    run.subscribe("a", "Shared", permits=100)
    run.subscribe("b", "Exclusive", permits=100)
    run.send(0, 4)
    run.send(5, uuid="u", num_chunks_from_msg=2, chunk_id=0, total_chunk_msg_size=2)
    size = run.here.counters.bytes_in
    for name in "ab":
        run.ack(name, (0, 0), (0, 0), topic=NAME)
    run.send(6, 9)
    run.do(RedeliverUnacknowledgedMessages(connection="a", consumer_id=1))
    run.wait(60)
    found = run.stats_with_rates()
    total = run.here.counters.bytes_in
    assert size < total
    assert (found["msgRateIn"], found["msgThroughputIn"]) == (10 / 60, total / 60)
    assert (found["msgRateOut"], found["msgThroughputOut"]) == (20 / 60, 2 * total / 60)
    assert found["averageMsgSize"] == found["publishers"][0]["averageMsgSize"] == pytest.approx(total / 10)
    assert found["publishers"][0]["chunkedMessageRate"] == 1 / 60
    names = ("msgRateOut", "messageAckRate", "msgRateRedeliver", "chunkedMessageRate")
    for name, rates in {"a": [10, 2, 4, 1], "b": [10, 2, 0, 1]}.items():
        shown = found["subscriptions"][name]
        assert [shown["consumers"][0][each] * 60 for each in names] == pytest.approx(rates)
        assert [shown[each] * 60 for each in names] == pytest.approx([*rates[:-1], 0])  # quirk: no chunks
    run.wait(60)
    assert run.stats_with_rates()["msgRateIn"] == 0


@pytest.mark.feature("I2")
def test_rates_leave_with_their_clients_and_a_part_of_an_interval_counts_as_such() -> None:
    run = NonPersistent(now=60_000_000)
    run.wait(50)
    run.create_producer("q")
    run.subscribe("a", "Shared", permits=100)
    for n in range(5):
        run.send(n, name="q")
    run.wait(10)
    assert run.stats_with_rates()["msgRateIn"] == run.stats_with_rates()["msgRateOut"] == 0.5
    run.close_producer()
    run.close_consumer("a")
    assert run.stats_with_rates()["msgRateIn"] == run.stats_with_rates()["msgRateOut"] == 0
    assert run.here.producer_counters == {}


@pytest.mark.feature("I2")
@pytest.mark.parametrize(("index_acks", "acked"), [(True, 2), (False, 0)])
def test_acks_of_a_part_of_a_batch_count_with_index_acks(index_acks: bool, acked: int) -> None:
    run = producing(now=60_000_000, acknowledgmentAtBatchIndexLevelEnabled=index_acks)
    run.subscribe("a", "Shared", permits=100)
    run.send(0, 4)
    run.ack("a", (0, 0), left=[0b111], size=5, topic=NAME)
    run.ack("a", (0, 0), cumulative=True, topic=NAME)  # ignored
    run.wait(60)
    assert run.stats_with_rates()["subscriptions"]["a"]["messageAckRate"] == acked / 60


@pytest.mark.feature("I2")
def test_subscriptions_that_store_nothing_are_not_replicated() -> None:
    run = producing()
    run.subscribe("a", "Shared")
    path = "/subscription/a/replicatedSubscriptionStatus"
    assert [run.call("GET", path), run.call("POST", path, True)] == [405, 405]


@pytest.mark.feature("I2")
def test_what_a_source_stores_is_not_copied_where_nothing_is_stored() -> None:
    run = producing()
    shown = Mirror(ledger_id=1, connection="m")
    assert one(run.do(shown), Unsupported).cause == "MIRROR of a non-persistent topic"


def test_an_admin_call_that_nobody_knows_is_unsupported() -> None:
    run = producing()
    one(run.do(Admin(method="GET", path="/non-persistent/public/default/t/nothing")), Unsupported)
