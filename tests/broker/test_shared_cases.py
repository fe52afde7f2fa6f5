"""The worked cases of docs/rules/shared.md §14, by number."""

from typing import Any

import pytest

from schemas.effects import Effect, Message
from streaming.broker.config import configuration
from streaming.broker.dispatch.chunked_messages import assign
from streaming.broker.dispatch.delayed_delivery import DelayedDeliveryTracker
from streaming.broker.dispatch.multiple_consumers import MultipleConsumers, entries_in_turn
from streaming.broker.dispatch.sending import Found, read
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.subscription.context import SubscriptionContext
from tests.broker.kit import TOPIC, Run, of, sent


def join(run: Run, id_: int, permits: int = 0, **fields: Any) -> list[Effect]:
    return run.subscribe("s", "Shared", id_=id_, permits=permits, **fields)


def publish(run: Run, count: int, first: int = 0) -> list[Effect]:
    return [effect for i in range(first, first + count) for effect in run.publish(i)]


def ack(run: Run, id_: int, *entries: int) -> list[Effect]:
    return run.ack("s", *[(1, entry) for entry in entries], id_=id_)


def nack(run: Run, id_: int, *entries: int) -> list[Effect]:
    return run.redeliver("s", *[(1, entry) for entry in entries], id_=id_)


def context(run: Run) -> SubscriptionContext:
    return run.topic.context_of(run.broker._ctx, run.topic.subscriptions["s"])


def dispatcher(run: Run) -> MultipleConsumers:
    found = run.topic.subscriptions["s"].dispatcher
    assert isinstance(found, MultipleConsumers)
    return found


def consumer(run: Run, id_: int) -> Consumer:
    return run.topic.subscriptions["s"].consumer("s", id_)


def replay(run: Run) -> list[int]:
    return [position.entry for position in dispatcher(run).replay]


def with_counts(effects: list[Effect]) -> list[tuple[int, int]]:
    """(Entry id, redelivery count) of each message."""
    return [(message.entry_id, message.redelivery_count) for message in of(effects, Message)]


def one_read(run: Run, permits: dict[int, int], priorities: dict[int, int] | None = None) -> Found:
    """The whole backlog in one read, to be dealt out to consumers with these permits.

    Commands alone don't bring that about: a FLOW is answered before the next one comes.
    """
    for id_ in permits:
        join(run, id_, priority_level=(priorities or {}).get(id_, 0))
    for id_, count in permits.items():
        consumer(run, id_).permits = count
    last = run.topic.ledger.last_confirmed.entry
    return read(context(run), [Position(1, entry) for entry in range(last + 1)])


@pytest.mark.feature("E1")
@pytest.mark.parametrize(
    ("remaining", "limit", "unacked", "average", "permits", "entries"),
    [
        (40, 50000, 0, 20, 40, 2),
        (110, 50000, 0, 55, 10, 1),
        (100, 50000, 0, 1, 1000, 20),
        (5, 100, 99, 5, 10, 1),
        (200, 50000, 0, 2, 7, 4),
    ],
)
def test_shared_case_01_entries_in_a_turn(
    remaining: int, limit: int, unacked: int, average: int, permits: int, entries: int
) -> None:
    assert entries_in_turn(remaining, limit, unacked, average, permits, 20) == entries


@pytest.mark.feature("E2")
def test_shared_case_02_round_robin() -> None:
    run = Run()
    join(run, 1, 1000)
    join(run, 2, 1000)
    trickle = of(publish(run, 4), Message)
    assert [(m.consumer_id, m.entry_id) for m in trickle] == [(1, 0), (2, 1), (1, 2), (2, 3)]


@pytest.mark.feature("E2")
def test_shared_case_02_a_burst_before_any_flow() -> None:
    run = Run()
    join(run, 1)
    join(run, 2)
    publish(run, 50)
    assert sent(run.flow("s", 1000, id_=1), 1) == list(range(50))
    assert sent(run.flow("s", 1000, id_=2)) == []


@pytest.mark.feature("E2")
def test_shared_case_02_a_burst_after_both_flows() -> None:
    run = Run(maxUnackedMessagesPerSubscription=4)
    join(run, 1, 1000)
    join(run, 2, 1000)
    publish(run, 4)  # that blocks the subscription,
    assert sent(publish(run, 50, 4)) == []
    ack(run, 1, 0, 2)
    effects = ack(run, 2, 1, 3)  # and this releases it
    assert sent(effects, 1) == [*range(4, 24), *range(44, 54)]
    assert sent(effects, 2) == list(range(24, 44))


@pytest.mark.feature("E1")
def test_shared_case_03_negative_permits() -> None:
    run = Run(acknowledgmentAtBatchIndexLevelEnabled=True)
    run.create_producer()
    run.send(0, 99)
    assert sent(join(run, 1, 10)) == [0]
    assert consumer(run, 1).permits == -90
    left = (1 << 100) - (1 << 40)  # 40 of the 100 are acked
    words = [(left & (2**64 - 1)) - 2**64, left >> 64]
    run.ack("s", (1, 0), id_=1, left=words, size=100)
    assert consumer(run, 1).unacked == 60
    run.close_consumer("s", id_=1)
    (message,) = of(join(run, 2, 10), Message)
    assert message.ack_set == words
    assert (consumer(run, 2).permits, consumer(run, 2).unacked) == (-50, 60)


@pytest.mark.feature("E5")
def test_shared_case_04_nack_order() -> None:
    run = Run()
    join(run, 1, 10)
    assert sent(publish(run, 13)) == list(range(10))
    assert sent(nack(run, 1, 7, 2, 5)) == []
    assert with_counts(run.flow("s", 3)) == [(2, 1), (5, 1), (7, 1)]
    assert with_counts(run.flow("s", 3)) == [(10, 0), (11, 0), (12, 0)]


@pytest.mark.feature("E5")
def test_shared_case_05_leftovers_go_to_replay() -> None:
    run = Run()
    run.create_producer()
    for i in range(4):
        run.send(5 * i, 5 * i + 4)
    assert sent(join(run, 1, 3)) == [0]
    assert (consumer(run, 1).permits, replay(run)) == (-2, [1, 2])
    assert with_counts(run.flow("s", 5)) == [(1, 0)]
    assert (consumer(run, 1).permits, replay(run)) == (-2, [2])
    assert with_counts(run.flow("s", 5)) == [(2, 0)]
    assert sent(run.flow("s", 5)) == [3]


@pytest.mark.feature("E5")
def test_shared_case_06_a_consumer_leaves() -> None:
    run = Run()
    join(run, 1, 3)
    join(run, 2)
    assert sent(publish(run, 5), 1) == [0, 1, 2]
    assert sent(run.flow("s", 2, id_=2), 2) == [3, 4]
    publish(run, 1, 5)
    assert with_counts(run.close_consumer("s", id_=1)) == []
    assert with_counts(run.flow("s", 3, id_=2)) == [(0, 0), (1, 0), (2, 0)]
    assert with_counts(run.flow("s", 3, id_=2)) == [(5, 0)]


@pytest.mark.feature("D5")
def test_shared_case_07_subscription_limit() -> None:
    run = Run(maxUnackedMessagesPerSubscription=100)
    join(run, 1, 30)
    join(run, 2)
    publish(run, 150)
    run.flow("s", 70, id_=2)
    run.flow("s", 1000, id_=2)
    assert (dispatcher(run).total_unacked, dispatcher(run).blocked) == (100, True)
    effects = run.close_consumer("s", id_=1)
    assert sent(effects, 2) == list(range(30))
    assert (dispatcher(run).total_unacked, dispatcher(run).blocked) == (100, True)
    assert sent(ack(run, 2, *range(50))) == []
    assert (dispatcher(run).total_unacked, dispatcher(run).blocked) == (50, True)
    assert sent(ack(run, 2, 50)) == list(range(100, 150))
    assert dispatcher(run).total_unacked == 99


@pytest.mark.feature("E6")
def test_shared_case_08_delayed() -> None:
    def add(deliver_at: int, now: int = 0, *, strict: bool = False, tick: int = 1000) -> int | None:
        """The bucket, None: it is to be delivered now."""
        config = configuration(
            "4.x",
            {
                "delayedDeliveryTickTimeMillis": tick,
                "isDelayedDeliveryDeliverAtTimeStrict": strict,
                "delayedDeliveryRoundsTimes": True,
            },
        )
        tracker = DelayedDeliveryTracker()
        if not tracker.add(Position(1, 0), deliver_at, now, config):
            return None
        bucket = tracker.first
        assert bucket is not None
        assert tracker.take(10, bucket - 10_000, config) == []
        return bucket

    assert [add(at, tick=100) for at in (10, 99, 100)] == [None] * 3
    assert [add(at, tick=100) for at in (101, 200)] == [64, 192]
    assert add(60400) == 59904
    assert add(60400, strict=True) == 60416
    assert add(61000, strict=True) == 61440
    tracker, config = DelayedDeliveryTracker(), configuration("4.x", {"delayedDeliveryRoundsTimes": True})
    tracker.add(Position(1, 0), 60400, 0, config)
    assert tracker.take(10, 59000, config) == tracker.take(10, 59414, config) == []
    assert tracker.take(10, 59415, config) == [(1, 0)]


@pytest.mark.feature("E6")
def test_shared_case_09_delayed_order() -> None:
    tracker = DelayedDeliveryTracker()
    config = configuration("4.x", {"delayedDeliveryTickTimeMillis": 1})
    for entry, deliver_at in enumerate((20, 10, 30, 50, 40)):
        assert tracker.add(Position(1, entry), deliver_at, 0, config)
    assert tracker.take(10, 15, config) == [(1, 1)]
    assert [position.entry for position in tracker.take(10, 60, config)] == [0, 2, 4, 3]
    assert len(tracker) == 0


@pytest.mark.feature("E6")
def test_shared_case_09_delayed_order_on_the_wire() -> None:
    run = Run(now=0, delayedDeliveryTickTimeMillis=1)
    join(run, 1, 10)
    for entry, deliver_at in enumerate((20, 10, 30, 50, 40)):
        assert sent(run.publish(entry, deliver_at_time=deliver_at)) == []
    assert sent(run.wait(0.015)) == [1]
    assert sent(run.wait(0.045)) == [0, 2, 4, 3]


def chunks() -> Run:
    """0: A-0, 1: A-1 chunk 0 of 3, 2: A-1 1/3, 3: B-0, 4: B-1 0/2, 5: A-1 2/3, 6: B-1 1/2."""
    run = Run()
    run.create_producer("A", 1)
    run.create_producer("B", 2)
    for name, sequence_id, chunk in (
        ("A", 0, None), ("A", 1, (0, 3)), ("A", 1, (1, 3)), ("B", 0, None), ("B", 1, (0, 2)), ("A", 1, (2, 3)),
        ("B", 1, (1, 2)),
    ):  # fmt: skip
        fields: dict[str, Any] = {}
        if chunk is not None:
            fields = {"uuid": f"{name}-{sequence_id}", "chunk_id": chunk[0], "num_chunks_from_msg": chunk[1]}
        run.send(sequence_id, name=name, id_=1 if name == "A" else 2, **fields)
    return run


def deal_chunks(run: Run, found: Found) -> tuple[list[Effect], list[int]]:
    """What was sent, and what is left for replay."""
    left = dispatcher(run).deal(context(run), found, from_replay=False)
    return [row.effect for row in run.broker.take()], [position.entry for position in left]


@pytest.mark.feature("A6")
def test_shared_case_10_chunks_to_one_consumer() -> None:
    run = chunks()
    effects, left = deal_chunks(run, one_read(run, {1: 5}))
    assert (sent(effects, 1), left) == ([0, 1, 2, 3, 4], [5, 6])
    assert dispatcher(run).chunk_owners.by_uuid == {"A-1": ("s", 1), "B-1": ("s", 1)}


@pytest.mark.feature("A6")
def test_shared_case_10_chunks_to_two_consumers() -> None:
    run = chunks()
    found = one_read(run, {1: 3, 2: 4})
    effects, left = deal_chunks(run, found)
    assert (sent(effects, 1), sent(effects, 2), left) == ([0, 1, 2], [3, 4, 6], [5])
    assert dispatcher(run).chunk_owners.by_uuid == {"A-1": ("s", 1)}
    consumer(run, 1).permits = 1
    effects, left = deal_chunks(run, [found[5]])
    assert (sent(effects, 1), sent(effects, 2), left) == ([5], [], [])
    assert dispatcher(run).chunk_owners.by_uuid == {}


def chunk(run: Run, number: int, uuid: str = "p-7", of: int = 3) -> list[Effect]:
    return run.send(number, uuid=uuid, chunk_id=number, num_chunks_from_msg=of)


@pytest.mark.feature("A6")
@pytest.mark.parametrize("connected", [False, True])
def test_chunks_of_a_consumer_that_left_are_lost(connected: bool) -> None:
    """As recorded: the owner of a message keeps it when it leaves, with the permits that it has then. What it gets counts as
    unacked, and nobody else gets any chunk of the message."""
    run = Run()
    run.create_producer()
    run.subscribe("s", "Shared", permits=3)
    assert sent(chunk(run, 0)) == [0]
    run.close_consumer("s") if connected else run.lose("s")
    run.subscribe("s", "Shared", connection="t", id_=2, permits=9)
    assert run.topic.subscriptions["s"].consumers[0].unacked == 0
    assert dispatcher(run).total_unacked == 1
    effects = chunk(run, 1)
    assert [(message.connection, message.consumer_id) for message in of(effects, Message)] == (
        [("s", 1)] if connected else []
    )
    assert dispatcher(run).total_unacked == 2
    stats = run.broker.topic_stats(TOPIC)["stats"]["subscriptions"]["s"]
    assert stats["unackedMessages"] == 2
    assert sent(chunk(run, 2)) == []  # the permits that it left with are used up
    assert list(dispatcher(run).replay) == [(1, 2)]
    assert sent(run.send(3)) == []  # what waits in the replay set comes before anything new
    run.lose("t")
    assert sent(run.subscribe("s", "Shared", connection="u", id_=3, permits=9)) == [3]


@pytest.mark.feature("A6")
@pytest.mark.parametrize("closes", [True, False])
def test_a_consumer_that_left_others_behind_is_sent_no_chunks(closes: bool) -> None:
    """As recorded: they are lost, though its connection is open. See closesPendingAcksOfLeaving."""
    run = Run(closesPendingAcksOfLeaving=closes)
    run.create_producer()
    run.subscribe("s", "Shared", permits=9)
    assert sent(chunk(run, 0)) == [0]
    run.subscribe("s", "Shared", id_=2, permits=9)
    run.close_consumer("s")
    assert sent(chunk(run, 1)) == ([] if closes else [1])
    assert dispatcher(run).total_unacked == 2
    assert run.topic.subscriptions["s"].consumers[0].unacked == 0


@pytest.mark.feature("A6")
def test_the_last_chunk_frees_the_place_of_a_consumer_that_left() -> None:
    run = Run()
    run.create_producer()
    for number in range(3):
        run.subscribe("s", "Shared", id_=number, permits=9)
        run.send(3 * number, uuid=f"{number}", chunk_id=0, num_chunks_from_msg=2)
        run.subscribe("s", "Shared", id_=9)
        run.close_consumer("s", id_=number)
        assert [each.consumer_id for each in dispatcher(run).chunk_owners.gone] == [number]
        run.flow("s", 9, id_=9)
        run.send(3 * number + 1, uuid=f"{number}", chunk_id=1, num_chunks_from_msg=2)
        assert dispatcher(run).chunk_owners.by_uuid == {}
        run.close_consumer("s", id_=9)


@pytest.mark.feature("A6")
def test_a_chunk_for_another_consumer_leaves_it_the_permits_of_the_current_one() -> None:
    """quirk: what the first chunk's consumer has left while entries are assigned is overwritten."""
    run = chunks()
    join(run, 1, 1)
    join(run, 2, 5)
    owners = dispatcher(run).chunk_owners
    found = [
        (Position(1, entry), run.broker._ctx.entries.get(TOPIC, Position(1, entry))) for entry in range(7)
    ]
    owners.by_uuid |= {"A-1": ("s", 1), "B-1": ("s", 1)}
    consumer(run, 1).permits, consumer(run, 2).permits = 1, 5
    dispatcher(run).round_robin = 1
    runs, left = assign(found, run.topic.subscriptions["s"], dispatcher(run).next_consumer, owners)
    assert [(owner.consumer_id, [position.entry for position, _ in run]) for owner, _, run in runs] == [
        (1, [1]),
        (2, [0, 3]),
    ]
    assert [position.entry for position in left] == [2, 4, 5, 6]


@pytest.mark.feature("D5", "E5")
def test_shared_case_11_redeliver_unblocks() -> None:
    run = Run(maxUnackedMessagesPerConsumer=10)
    join(run, 1, 10)
    publish(run, 20)
    assert (consumer(run, 1).unacked, consumer(run, 1).blocked) == (10, True)
    assert sent(run.flow("s", 5)) == []
    assert (consumer(run, 1).permits, consumer(run, 1).permits_while_blocked) == (0, 5)
    assert with_counts(nack(run, 1, 3, 4, 5)) == [(3, 1), (4, 1), (5, 1)]
    assert (consumer(run, 1).unacked, consumer(run, 1).blocked) == (10, True)
    assert (consumer(run, 1).permits, consumer(run, 1).permits_while_blocked) == (2, 0)
    assert sent(ack(run, 1, 0, 1, 2, 6)) == []
    assert sent(ack(run, 1, 7)) == [10, 11]  # half of the limit is reached


@pytest.mark.feature("D3")
def test_shared_case_12_cross_consumer_ack() -> None:
    run = Run()
    join(run, 1, 1)
    join(run, 2, 1)
    got: dict[int, list[int]] = {1: [], 2: []}
    for message in of(publish(run, 10), Message):
        got[message.consumer_id].append(message.entry_id)
    while len(got[1]) + len(got[2]) < 10:
        for id_ in (1, 2):
            got[id_] += sent(run.flow("s", 1, id_=id_), id_)
    assert [len(got[1]), len(got[2])] == [5, 5]
    ack(run, 1, *got[2])
    assert (consumer(run, 1).unacked, consumer(run, 2).unacked) == (5, 0)
    ack(run, 2, *got[1])
    assert (consumer(run, 1).unacked, consumer(run, 2).unacked) == (0, 0)
    run.flow("s", 10, id_=1)
    assert sent([*run.redeliver("s", id_=1), *run.redeliver("s", id_=2)]) == []


# -- docs/rules/shared.md §4, §5 --------------------------------------------------------------------------------------


@pytest.mark.feature("E2")
def test_next_consumer() -> None:
    """(priority, permits): C1(0,2) C2(0,1) C3(0,1) C4(1,2) C5(1,1), one permit used a call."""
    given = {"C1": (0, 2), "C2": (0, 1), "C3": (0, 1), "C4": (1, 2), "C5": (1, 1)}
    consumers = [
        Consumer("x", id_, name, priority, permits=permits)
        for id_, (name, (priority, permits)) in enumerate(given.items())
    ]
    chooser = MultipleConsumers()
    chosen = []
    while (found := chooser.next_consumer(consumers)) is not None:
        found.permits -= 1
        chosen.append(found.name)
    assert chosen == ["C1", "C2", "C3", "C1", "C4", "C5", "C4"]


@pytest.mark.feature("E2")
def test_a_burst_to_two_levels() -> None:
    """A(0), B(0), C(1) with 25, 10 and 1000 permits, 60 entries in one read."""
    run = Run()
    publish(run, 60)
    found = one_read(run, {1: 25, 2: 10, 3: 1000}, {3: 1})
    left = dispatcher(run).deal(context(run), found, from_replay=False)
    effects = [row.effect for row in run.broker.take()]
    assert left == []
    assert sent(effects, 1) == [*range(20), *range(30, 35)]
    assert sent(effects, 2) == list(range(20, 30))
    assert sent(effects, 3) == list(range(35, 60))
    assert [consumer(run, id_).permits for id_ in (1, 2, 3)] == [0, 0, 975]


@pytest.mark.feature("E2")
def test_a_turn_is_as_long_as_the_messages_that_are_left() -> None:
    """The average entry has 4 messages. After the batch of 10, two messages are left: less than an average entry for each."""
    run = Run()
    join(run, 9, 100)
    run.create_producer()
    run.send(0, 9)
    run.send(10)
    run.send(11)
    for id_, permits in ((1, 100), (2, 1), (3, 100)):
        join(run, id_, permits)
    effects = run.close_consumer("s", id_=9)
    assert {id_: sent(effects, id_) for id_ in (1, 2, 3)} == {1: [2], 2: [0], 3: [1]}
