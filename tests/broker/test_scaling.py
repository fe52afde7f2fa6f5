"""Work is proportional to what happens: four times the load takes about four times the work.

Each load runs with n and with 4n items. The work is the number of lines that the core executes, which is the same in every
run. A path that goes through everything for each item takes 16 times as much.
"""

import random
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import Admin, AnyCommand, Fault, MessageMetadata, Publish, Send
from schemas.effects import Effect, Error, Message, Success
from streaming.broker.broker import Broker
from streaming.broker.dispatch.chunked_messages import _choose, _Permits
from streaming.broker.dispatch.multiple_consumers import MultipleConsumers
from streaming.broker.entries import NoEntries
from streaming.broker.persistent.publish.publish_run import Receipts
from streaming.broker.subscription.consumer import Consumer
from streaming.fold.publishes import publish_columns, send_columns
from tests.broker.kit import START, TOPIC, Run, of

N = 250
"""Large enough that a path that is quadratic outweighs the rest."""

RATIO = 6
"""Linear paths take 4 times the work, those with a logarithm a little more."""

NO_LIMITS: dict[str, Any] = {
    "maxUnackedMessagesPerConsumer": 0,
    "maxUnackedMessagesPerSubscription": 0,
    "activeConsumerFailoverDelayTimeMillis": 0,
}

SMALL_LEDGERS: dict[str, Any] = {
    "managedLedgerMaxEntriesPerLedger": 5,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
}


class Direct(Run):
    """Commands go to the broker as they are."""

    def do(self, command: AnyCommand | Publish, topic: str | None = TOPIC) -> list[Effect]:
        self.broker.apply(self.broker.offset + 1, self.now, topic, command, b"")
        return [row.effect for row in self.broker.take()]

    def publish_all(self, count: int, **fields: Any) -> None:
        for sequence_id in range(count):
            self.publish(sequence_id, **fields)

    def publish_keys(self, count: int) -> None:
        for sequence_id in range(count):
            self.publish(sequence_id, key=str(sequence_id))


Load = Callable[[Direct, int], None]
LOADS: dict[str, tuple[Load, dict[str, Any]]] = {}


def load(**settings: Any) -> Callable[[Load], Load]:
    """A load under these settings."""

    def add(body: Load) -> Load:
        LOADS[body.__name__] = body, settings
        return body

    return add


def shuffled(n: int) -> list[int]:
    order = list(range(n))
    random.Random(1).shuffle(order)
    return order


def work(name: str, n: int) -> int:
    """How many lines of the core a load executes."""
    body, settings = LOADS[name]
    run = Direct(**NO_LIMITS | settings)
    count = 0

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return line

    def call(frame: FrameType, event: str, argument: object) -> Any:
        return line if "broker" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        body(run, n)
    finally:
        sys.settrace(before)
    return count


# -- delayed delivery and redelivery ------------------------------------------------------------------------------


@load()
def delayed_messages(run: Direct, n: int) -> None:
    run.subscribe("s", "Shared", permits=n)
    for sequence_id, late in enumerate(shuffled(n)):
        run.publish(sequence_id, deliver_at_time=START + 100_000 + late * 100)
        run.admin("GET", "/stats")
    run.wait(100)
    for _ in range(n):
        run.wait(0.1)


@load(delayedDeliveryFixedDelayDetectionLookahead=1)
def messages_with_a_fixed_delay(run: Direct, n: int) -> None:
    run.subscribe("s", "Key_Shared", permits=n)
    for sequence_id in range(n):
        run.now += 10
        run.publish(sequence_id, deliver_at_time=run.now + 1_000_000)


@load()
def nacks(run: Direct, n: int) -> None:
    run.subscribe("s", "Shared", permits=n)
    run.publish_all(n)
    for entry in shuffled(n):
        run.redeliver("s", (1, entry))
    for _ in range(n):
        run.flow("s", 1)


@load()
def nacks_on_key_shared(run: Direct, n: int) -> None:
    run.subscribe("s", "Key_Shared", permits=n)
    run.publish_keys(n)
    for entry in shuffled(n):
        run.redeliver("s", (1, entry))
    for _ in range(n):
        run.flow("s", 1)


@load()
def acks_of_entries_to_replay(run: Direct, n: int) -> None:
    run.subscribe("s", "Shared", permits=n)
    run.publish_all(n)
    run.redeliver("s")
    for entry in shuffled(n):
        run.ack("s", (1, entry))
    run.flow("s", n)


@load()
def unfinished_chunks(run: Direct, n: int) -> None:
    run.create_producer()
    run.subscribe("s", "Shared", permits=n)
    for sequence_id in range(n):
        run.send(sequence_id, chunk_id=sequence_id % 2, num_chunks_from_msg=3, uuid=f"{sequence_id}")


@load()
def a_slow_consumer_of_key_shared(run: Direct, n: int) -> None:
    run.subscribe("s", "Key_Shared", id_=1, consumer_name="slow")
    run.subscribe("s", "Key_Shared", id_=2, consumer_name="fast", permits=10)
    for sequence_id in range(n):
        for message in of(run.publish(sequence_id, key=str(sequence_id)), Message):
            run.ack("s", (1, message.entry_id), id_=2)
            run.flow("s", 1, id_=2)


# -- acks ---------------------------------------------------------------------------------------------------------


@load()
def acks_in_any_order(run: Direct, n: int) -> None:
    run.subscribe("s", "Shared", permits=n)
    run.publish_all(n)
    for entry in shuffled(n):
        run.ack("s", (1, entry))


@load(**SMALL_LEDGERS)
def acks_in_any_order_over_many_ledgers(run: Direct, n: int) -> None:
    run.subscribe("s", "Shared", permits=n)
    run.publish_all(n)
    for entry in shuffled(n):
        run.ack("s", (1 + entry // 5, entry % 5))


@load(**SMALL_LEDGERS)
def acks_in_reverse_order_over_many_ledgers(run: Direct, n: int) -> None:
    run.subscribe("s", "Shared", permits=n)
    run.publish_all(n)
    for entry in range(n)[::-1]:
        run.ack("s", (1 + entry // 5, entry % 5))


@load(managedLedgerMaxEntriesPerLedger=5)
def cumulative_acks_that_trim(run: Direct, n: int) -> None:
    run.subscribe("s", permits=n)
    run.publish_all(n)
    for entry in range(n):
        run.ack("s", (1 + entry // 5, entry % 5), cumulative=True)


@load(acknowledgmentAtBatchIndexLevelEnabled=True)
def acks_of_parts_of_batches(run: Direct, n: int) -> None:
    run.create_producer()
    run.subscribe("s", "Shared", permits=2 * n)
    for entry in range(n):
        run.send(2 * entry, 2 * entry + 1)
    for entry in range(n):
        run.ack("s", (1, entry), left=[0b10], size=2)
    for entry in range(n):
        run.ack("s", (1, entry))


@load(acknowledgmentAtBatchIndexLevelEnabled=True)
def permits_while_an_acked_batch_is_pending(run: Direct, n: int) -> None:
    """Partial acks of all its messages leave it pending until the mark-delete position passes it."""
    run.create_producer()
    run.subscribe("s", "Shared", permits=2 * n)
    for entry in range(n):
        run.send(2 * entry, 2 * entry + 1)
    run.ack("s", (1, n - 1), left=[0b10], size=2)
    run.ack("s", (1, n - 1), left=[0b01], size=2)
    for _ in range(n):
        run.flow("s", 1)


# -- the broker moves cursors -------------------------------------------------------------------------------------


@load()
def skips(run: Direct, n: int) -> None:
    run.subscribe("s", "Shared", permits=n)
    run.publish_all(n)
    run.redeliver("s", *((1, entry) for entry in range(0, n, 2)))
    for _ in range(n):
        run.admin("POST", "/subscription/s/skip/1")
        run.flow("s", 1)


@load(removePendingAcksOnMarkDeleteMove=True)
def skips_that_remove_pending_acks(run: Direct, n: int) -> None:
    skips(run, n)


@load()
def skips_on_key_shared(run: Direct, n: int) -> None:
    run.subscribe("s", "Key_Shared", permits=n)
    run.publish_keys(n)
    for _ in range(n):
        run.admin("POST", "/subscription/s/skip/1")


@load(**SMALL_LEDGERS)
def skips_with_holes_over_many_ledgers(run: Direct, n: int) -> None:
    run.subscribe("s", "Shared", permits=n)
    run.publish_all(n)
    for entry in range(1, n, 2):
        run.ack("s", (1 + entry // 5, entry % 5))
    for _ in range(n // 2):
        run.admin("POST", "/subscription/s/skip/1")


@load()
def expiry(run: Direct, n: int) -> None:
    run.subscribe("s", "Shared", permits=n)
    for sequence_id in range(n):
        run.now += 1000
        run.publish(sequence_id)
    for _ in range(n):
        run.now += 1000
        run.admin("POST", f"/subscription/s/expireMessages/{n}")


@load()
def seeks(run: Direct, n: int) -> None:
    run.subscribe("s", "Shared")
    run.publish_all(n)
    for entry in shuffled(n):
        run.seek("s", (1, entry))
        run.subscribe("s", "Shared", permits=1)


@load()
def stats_and_peeks_with_holes(run: Direct, n: int) -> None:
    run.subscribe("s", "Shared", permits=n)
    run.publish_all(n)
    for entry in range(1, n, 2):
        run.ack("s", (1, entry))
    for _ in range(n):
        run.admin("GET", "/stats")
        run.admin("GET", "/subscription/s/position/1")


# -- clients ------------------------------------------------------------------------------------------------------


@load()
def consumers_of_shared(run: Direct, n: int) -> None:
    for id_ in range(n):
        run.subscribe("s", "Shared", permits=10, id_=id_)
    run.publish_all(n)
    for id_ in range(n):
        run.flow("s", 1, id_=id_)
        run.close_consumer("s", id_=id_)


@load()
def consumers_of_key_shared(run: Direct, n: int) -> None:
    for id_ in range(n // 4):
        run.subscribe("s", "Key_Shared", permits=10, id_=id_, consumer_name=f"{n}-{id_}")
    run.publish_keys(n)


@load()
def consumers_of_key_shared_that_come_and_go(run: Direct, n: int) -> None:
    """With messages of few keys in flight."""
    run.subscribe("s", "Key_Shared", permits=n)
    for sequence_id in range(n):
        run.publish(sequence_id, key=str(sequence_id % 5))
    for _ in range(n // 10):
        run.subscribe("s", "Key_Shared", id_=2)
        run.close_consumer("s", id_=2)


@load()
def consumers_of_key_shared_that_join_and_leave_while_messages_are_unacknowledged(
    run: Direct, n: int
) -> None:
    """Each takes some of the messages of all keys, and others wait for it."""
    run.subscribe("s", "Key_Shared", id_=n, permits=n)
    for number in range(5 * n):
        run.publish(number, key=f"k{number}")
    for id_ in range(n // 4):
        run.subscribe("s", "Key_Shared", id_=id_, permits=20)
    for id_ in range(n // 4):
        run.close_consumer("s", id_=id_)


@load()
def consumers_of_key_shared_on_a_lost_connection(run: Direct, n: int) -> None:
    """With messages of as many keys that they have not acknowledged."""
    run.subscribe("s", "Key_Shared", id_=n, connection="another")
    for id_ in range(n):
        run.subscribe("s", "Key_Shared", id_=id_, connection="c", permits=1000)
    for number in range(n):
        run.publish(number, key=f"k{number}")
    run.lose("c")


@load()
def consumers_of_failover(run: Direct, n: int) -> None:
    for id_ in range(n // 10):
        run.subscribe("s", "Failover", id_=id_, consumer_name=f"{n}-{id_}")


@load()
def subscriptions_without_consumers(run: Direct, n: int) -> None:
    for id_ in range(n):
        run.admin("PUT", f"/subscription/s{id_}")
    run.publish_all(n)


@load()
def producers_in_a_queue(run: Direct, n: int) -> None:
    for id_ in range(n):
        run.create_producer(f"p{id_}", id_, producer_access_mode="WaitForExclusive")
    for id_ in shuffled(n):
        run.close_producer(id_)


@load(brokerDeleteInactiveTopicsEnabled=True, brokerDeleteInactivePartitionedTopicMetadataEnabled=True)
def partitions_that_nobody_uses_any_more(run: Direct, n: int) -> None:
    run.do(Admin(method="PUT", path="/persistent/public/default/p/partitions", body=n), None)
    for number in range(n):
        run.publish(0, topic=f"persistent://public/default/p-partition-{number}")
        run.wait(10)
    run.wait(9 * 3_600)
    assert run.broker.partitioned == {}


@load()
def an_unload_that_closes_producers(run: Direct, n: int) -> None:
    for number in range(n):
        run.create_producer(str(number), number)
    run.admin("PUT", "/unload")


@load()
def connections_that_are_lost(run: Direct, n: int) -> None:
    for topic in (TOPIC, "non-persistent://public/default/t"):
        for number in range(n):
            run.create_producer(str(number), connection=str(number), topic=topic)
            run.subscribe(f"s{number}", connection=str(number), topic=topic)
    for number in range(n):
        run.lose(str(number))


@load(nonPersistentSubscriptionsStay=True, subscriptionExpirationTimeMinutes=1_000)
def connections_that_are_lost_where_subscriptions_expire(run: Direct, n: int) -> None:
    connections_that_are_lost(run, n)


@load()
def owners_of_unfinished_chunks_that_leave(run: Direct, n: int) -> None:
    run.create_producer("p")
    for connection in ("c", "d"):
        for number in range(n // 2):
            run.subscribe("u", "Shared", connection=connection, id_=number, permits=n)
            run.send(number, uuid=f"{connection}{number}", chunk_id=0, num_chunks_from_msg=2)
    run.lose("c")
    for number in range(n // 2):
        run.close_consumer("d", id_=number)


@load()
def consumers_that_leave_while_others_that_left_are_remembered(run: Direct, n: int) -> None:
    for number in range(n):
        for consumer in (1, 2):
            run.subscribe(
                f"s{number}",
                "Failover",
                id_=consumer,
                connection=f"{number}-{consumer}",
                consumer_name=str(consumer),
            )
        run.seek(f"{number}-1", (1, -1))
    for number in range(n):
        run.close_consumer(f"{number}-2", id_=2)


@load(maxProducersPerTopic=1_000_000)
def producers_under_a_limit(run: Direct, n: int) -> None:
    for id_ in range(n):
        run.create_producer(f"p{id_}", id_)


@load(maxProducersPerTopic=1)
def producers_over_a_limit(run: Direct, n: int) -> None:
    run.create_producer("first", 0)
    for id_ in range(1, n):
        run.create_producer(f"pulsar.repl.{id_}", id_)
    for id_ in range(n, 2 * n):
        assert of(run.create_producer(f"p{id_}", id_), Error)


@load()
def consumers_over_a_limit(run: Direct, n: int) -> None:
    for id_ in range(n):
        run.subscribe(f"s{id_}", id_=id_)
    run.admin("POST", "/maxConsumers", n)
    for id_ in range(n, 2 * n):
        assert of(run.subscribe("more", id_=id_), Error)


@load(maxConcurrentNonPersistentMessagePerConnection=1_000_000)
def messages_in_flight(run: Direct, n: int) -> None:
    topic = "non-persistent://public/default/t"
    run.do(Fault(fault="DelayWrites", count=n), topic)
    for sequence_id in range(n):
        run.publish(sequence_id, topic=topic)


@load()
def producers_that_close_while_their_writes_wait(run: Direct, n: int) -> None:
    run.fault("DelayWrites", n)
    for id_ in range(n):
        run.create_producer(f"p{id_}", id_)
        run.send(0, name=f"p{id_}", id_=id_)
    for id_ in range(n):
        run.close_producer(id_)
    for _ in range(n):
        assert of(run.fault("CompleteWrites", 1), Success)


@load(brokerDeduplicationEnabled=True)
def producers_with_deduplication(run: Direct, n: int) -> None:
    for id_ in range(n):
        run.publish(0, producer=f"p{id_}")


@load()
def quiet_topics_in_a_publish_run_between_timers(run: Direct, n: int) -> None:
    # All topics are in the run when the first of n delayed messages of another topic is due.
    run.subscribe("s", "Shared", permits=n)
    for second in range(1, n + 1):
        run.publish(second, deliver_at_time=START + second * 1000)
    topics = [f"{TOPIC}-{number}" for number in range(4 * n)]
    for topic in topics:
        run.publish(0, topic=topic)
    times = [START] * (4 * n) + [START + second * 1000 for second in range(1, n + 1)]
    in_a_run(
        run, publish_columns, times, topics + topics[:n], [Publish(producer="p", sequence_id=1)] * (5 * n)
    )


@load()
def connections_lost_in_a_publish_run(run: Direct, n: int) -> None:
    # Each connection closes with its second SEND, which is of a producer that it has not created.
    topics = [f"{TOPIC}-{number}" for number in range(n)]
    for number, topic in enumerate(topics):
        run.create_producer(f"p{number}", connection=str(number), topic=topic)
    sends = [
        Send(connection=str(number), producer_id=id_, sequence_id=id_, metadata=MessageMetadata(f"p{number}", id_, START))
        for id_ in (1, 2)
        for number in range(n)
    ]  # fmt: skip
    in_a_run(run, send_columns, [START] * (2 * n), topics * 2, sends)


@load(brokerDeduplicationEnabled=True)
def new_producers_in_a_publish_run(run: Direct, n: int) -> None:
    publishes = [Publish(producer=f"p{number}", sequence_id=id_) for id_ in (1, 2) for number in range(n)]
    in_a_run(run, publish_columns, [START] * (2 * n), [TOPIC] * (2 * n), publishes)


@load(backlogQuotaDefaultLimitBytes=1 << 40, managedLedgerMaxLedgerRolloverTimeMinutes=1 << 20)
def a_publish_run_that_each_round_closes(run: Direct, n: int) -> None:
    # Rounds check the quota, so they don't pass the topic by: it never takes more than some of its rows.
    times = [START + number * 20_000 for number in range(4 * n)]
    publishes = [Publish(producer=f"p{number % 2}", sequence_id=number) for number in range(4 * n)]
    in_a_run(run, publish_columns, times, [TOPIC] * (4 * n), publishes)


def in_a_run(
    run: Direct, columns_of: Any, times: list[int], topics: list[str], commands: Sequence[Publish | Send]
) -> None:
    after = run.broker.offset + 1
    columns = columns_of(range(after, after + len(topics)), times, topics, commands, START)

    def step(row: int) -> None:
        run.broker.apply(after + row, times[row], topics[row], commands[row], b"")

    for each in columns.runs():
        run.broker.publish(columns.rows, each, step, Receipts([], [], []))


@pytest.mark.parametrize("name", LOADS)
def test_work_is_proportional_to_the_load(name: str) -> None:
    assert work(name, 4 * N) < RATIO * work(name, N)


# -- the state ----------------------------------------------------------------------------------------------------


def test_a_micro_batch_touches_few_of_the_delayed_messages() -> None:
    """The others are copied as bytes, however many they are."""
    run = Direct(**NO_LIMITS)
    run.subscribe("s", "Shared", permits=1)
    for sequence_id, late in enumerate(shuffled(5000)):
        run.publish(sequence_id, deliver_at_time=START + 100_000 + late)
    broker = Broker.decode(run.broker.encode(), NoEntries())
    delay = Publish(producer="p", sequence_id=5000, deliver_at_time=START + 102_000)
    broker.apply(broker.offset + 1, START, TOPIC, delay, b"")
    dispatcher: Any = broker.topic(TOPIC).subscriptions["s"].dispatcher
    decoded = [block for block in dispatcher.delayed.waiting._blocks if not isinstance(block, bytes)]
    assert len(dispatcher.delayed) == 5001
    assert sum(map(len, decoded)) < 1500


@given(
    members=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), min_size=1, max_size=12),
    turn=st.integers(0, 12),
)
def test_looking_for_a_consumer_with_permits_ends_where_looking_at_all_of_them_ends(
    members: list[tuple[int, bool, bool]], turn: int
) -> None:
    """`members`: priority, whether available, whether its permits are used up by the read at hand."""
    ranked = sorted(enumerate(members), key=lambda member: member[1][0])
    consumers = [
        Consumer("c", id_, str(id_), priority=priority, permits=available)
        for id_, (priority, available, _) in ranked
    ]
    permits = _Permits()
    for consumer, (_, (_, available, used_up)) in zip(consumers, ranked, strict=True):
        if available and used_up:
            permits.leave((consumer.handle, 0), 0)
    naive, ours = MultipleConsumers(round_robin=turn), MultipleConsumers(round_robin=turn)
    expected = None
    for _ in consumers:
        expected = naive.next_consumer(consumers)
        if expected is None or permits.of(expected) > 0:
            break
        expected = None
    assert _choose(ours.next_consumer, consumers, permits) is expected
    assert ours.round_robin == naive.round_robin
