"""maxUnackedMessagesPerBroker (docs/rules/subscriptions.md §7): the broker is an ingress partition, with all its topics.

The numbers: a limit of 100, of which one subscription may owe 16 while the broker is blocked.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import (
    Ack,
    BrokerConfig,
    CloseConsumer,
    Flow,
    MessageIdData,
    Publish,
    Subscribe,
    SubType,
    to_json,
)
from schemas.effects import Effect, Message
from streaming.broker.broker import Broker
from tests.broker.kit import QUIET, START, Run, Stored, feed, of, sent
from tests.examples import examples

pytestmark = pytest.mark.feature("D5")

BIG, SMALL = "persistent://public/default/big", "persistent://public/default/small"


def at_the_limit(type_: SubType = "Shared", **more: Any) -> Run:
    """Two subscriptions owe 90 and 10 messages, and both have permits."""
    run = Run(maxUnackedMessagesPerBroker=100, **more)
    for topic, name in ((BIG, "b"), (SMALL, "s")):
        run.subscribe(name, type_, topic=topic, consumer_name=name, permits=1000)
    assert len(sent(publish(run, BIG, 90))) == 90
    assert blocked(run) == []
    assert len(sent(publish(run, SMALL, 10))) == 10
    return run


def publish(run: Run, topic: str, count: int) -> list[Effect]:
    first = run.broker.topic(topic).ledger.last_confirmed.entry + 1
    return [effect for i in range(first, first + count) for effect in run.publish(i, topic=topic, key="k")]


def ack(run: Run, name: str, entries: range) -> list[Effect]:
    topic = BIG if name == "b" else SMALL
    return run.ack(name, *[(1, entry) for entry in entries], topic=topic)


def blocked(run: Run) -> list[str]:
    return [
        name
        for topic in run.broker.topic_names()
        for name, subscription in run.broker.topic(topic).subscriptions.items()
        if subscription.broker_blocked
    ]


@pytest.mark.parametrize("type_", ["Shared", "Key_Shared"])
def test_who_owes_more_than_its_share_gets_nothing_new(type_: SubType) -> None:
    run = at_the_limit(type_)
    assert blocked(run) == ["b"]
    assert sent(publish(run, BIG, 2)) == []  # the read that was waiting completes with nothing
    assert len(sent(publish(run, SMALL, 6))) == 6
    assert blocked(run) == ["b"]
    publish(run, SMALL, 1)  # 17 of 16
    assert blocked(run) == ["b", "s"]


def test_replays_go_on() -> None:
    run = at_the_limit()
    run.subscribe("b", "Shared", id_=2, topic=BIG, permits=1000)
    effects = run.close_consumer("b", topic=BIG)
    assert sent(effects, 2) == list(range(90))
    assert sent(publish(run, BIG, 5)) == []


def test_below_half_of_the_limit_all_go_on_on_their_topics_too() -> None:
    run = at_the_limit()
    publish(run, SMALL, 40)
    assert blocked(run) == ["b", "s"]
    publish(run, BIG, 10)
    owed = run.broker._state.unacked
    assert owed.messages == {BIG: 90, SMALL: 17}
    assert sent(ack(run, "b", range(56))) == []
    assert owed.total == 51
    effects = ack(run, "s", range(2))
    assert [message.topic for message in of(effects, Message)] == [BIG] * 10 + [SMALL] * 33
    assert (owed.total, blocked(run)) == (92, [])


def test_one_alone_goes_on_below_half_of_its_share() -> None:
    run = at_the_limit()
    publish(run, SMALL, 60)
    publish(run, BIG, 5)
    assert blocked(run) == ["b", "s"]
    owed = run.broker._state.unacked.messages
    assert sent(ack(run, "s", range(owed[SMALL] - 8))) == []
    assert (owed[SMALL], blocked(run)) == (8, ["b", "s"])
    first = next(iter(run.broker.topic(SMALL).subscriptions["s"].consumers[0].pending))
    assert sent(ack(run, "s", range(first.entry, first.entry + 1))) != []


def test_consumers_that_leave_owe_nothing() -> None:
    run = at_the_limit()
    publish(run, BIG, 5)
    run.close_consumer("b", topic=BIG)
    assert (run.broker._state.unacked.total, blocked(run)) == (10, [])


def test_an_unload_forgets() -> None:
    run = at_the_limit()
    run.admin("PUT", "/unload", topic=BIG)
    assert (run.broker._state.unacked.total, blocked(run)) == (10, [])
    assert len(sent(run.subscribe("b", "Shared", topic=BIG, permits=1000))) == 90


def test_the_limit_may_change() -> None:
    run = at_the_limit()
    publish(run, BIG, 5)
    run.do(BrokerConfig(settings={**QUIET, "maxUnackedMessagesPerBroker": 1000}), None)
    assert blocked(run) == []
    assert len(sent(publish(run, BIG, 1))) == 1
    run.do(BrokerConfig(settings={**QUIET, "maxUnackedMessagesPerBroker": 50}), None)
    assert blocked(run) == ["b", "s"]
    run.do(BrokerConfig(settings=QUIET), None)
    assert blocked(run) == []
    assert run.broker._state.unacked.total == 0


def test_the_default_is_no_limit() -> None:
    run = Run()
    run.subscribe("b", "Shared", topic=BIG, permits=1000)
    assert len(sent(publish(run, BIG, 500))) == 500


TOPICS = [f"persistent://public/default/{name}" for name in "abc"]
STEP = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(TOPICS)),
    st.tuples(st.just("ack"), st.sampled_from(TOPICS), st.integers(0, 5)),
    st.tuples(st.just("leave"), st.sampled_from(TOPICS)),
    st.tuples(st.just("join"), st.sampled_from(TOPICS)),
)


@given(st.lists(STEP, max_size=80), st.sampled_from([0.1, 0.3, 1.0]), st.sets(st.integers(0, 80)))
@settings(max_examples=examples(60))
def test_everything_arrives_and_cuts_do_not_show(
    steps: list[tuple[Any, ...]], share: float, cuts: set[int]
) -> None:
    store, now = Stored(), START
    brokers = [Broker(0, store), Broker(0, store)]

    def do(command: Any, topic: str | None, *, cut: bool = True) -> None:
        rows = []
        for broker in brokers:
            feed(broker, broker.offset + 1, now, topic, to_json(command))
            rows.append(broker.take())
        assert rows[0] == rows[1]
        store.add([row.effect for row in rows[0]])
        state = brokers[0].encode()
        assert brokers[1].encode() == state
        if cut:
            brokers[1] = Broker.decode(state, store)
        owed = brokers[0]._state.unacked
        pending = {
            name: sum(
                len(c.pending) for s in brokers[0].topic(name).subscriptions.values() for c in s.consumers
            )
            for name in brokers[0].topic_names()
        }
        assert owed.messages == {name: count for name, count in pending.items() if count}
        assert owed.total == sum(pending.values())

    limits = {"maxUnackedMessagesPerBroker": 8, "maxUnackedMessagesPerSubscriptionOnBrokerBlocked": share}
    do(BrokerConfig(settings={**QUIET, **limits}), None)

    def join(topic: str) -> None:
        do(
            Subscribe(
                connection="x", consumer_id=1, request_id=1, subscription="s", subType="Shared", consumer_name="c",
                initialPosition="Earliest",
            ),
            topic,
        )  # fmt: skip
        do(Flow(connection="x", consumer_id=1, messagePermits=100), topic)

    def ack(topic: str, which: slice) -> None:
        consumers = brokers[0].topic(topic).subscriptions["s"].consumers
        for position in [p for c in consumers for p in sorted(c.pending)][which]:
            ids = [MessageIdData(*position)]
            do(Ack(connection="x", consumer_id=1, ack_type="Individual", message_id=ids), topic)

    for topic in TOPICS:
        join(topic)
    for i, (what, topic, *args) in enumerate(steps):
        match what:
            case "publish":
                do(Publish(producer="p", sequence_id=i), topic, cut=i in cuts)
            case "ack":
                ack(topic, slice(args[0], args[0] + 1))
            case "leave":
                do(CloseConsumer(connection="x", consumer_id=1, request_id=1), topic)
            case "join":
                join(topic)
    for topic in TOPICS:
        join(topic)
    while any(c.pending for t in TOPICS for c in brokers[0].topic(t).subscriptions["s"].consumers):
        for topic in TOPICS:
            ack(topic, slice(None))
    assert [
        brokers[0].topic(topic).cursors["s"].backlog(brokers[0].topic(topic).ledger) for topic in TOPICS
    ] == [0] * 3


def test_who_is_released_first_may_use_up_the_limit_again() -> None:
    """Then the next one waits on."""
    run = Run(maxUnackedMessagesPerBroker=10)
    for topic, name in ((BIG, "b"), (SMALL, "s")):
        run.subscribe(name, "Shared", topic=topic, permits=1000)
        publish(run, topic, 5)
    for topic in (BIG, SMALL):
        assert sent(publish(run, topic, 20)) == []
    assert blocked(run) == ["b", "s"]
    ack(run, "b", range(5))
    assert sent(ack(run, "s", range(5))) == list(range(5, 25))
    assert blocked(run) == ["b", "s"]
