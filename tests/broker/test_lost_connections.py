"""CONNECTION_LOST: one connection is gone, or all of a server's former lives."""

import sys
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from schemas.commands import ConnectionLost, IntRange, KeySharedMeta, Profile, SubType
from schemas.effects import ActiveConsumerChange, Effect, Message
from streaming.broker.broker import Broker
from streaming.broker.persistent import leaving
from tests.broker.kit import TOPIC, Run, Stored, of

pytestmark = pytest.mark.feature("C1")


def test_all_connections_with_a_prefix_but_those_with_another() -> None:
    run = Run(reader=Stored())
    names = ["a.1.1", "a.1.2", "a.2.1", "ab.1.1"]
    for name in names:
        run.subscribe(name, "Shared", connection=name, permits=1)
    run.broker = Broker.decode(run.broker.encode(), Stored())
    assert run.do(ConnectionLost(connection="a.2.", prefix="a."), None) == []
    assert run.broker.connections == names[2:]
    run.create_producer()
    assert [each.connection for each in of(run.send(0), Message)] == names[2:]
    run.do(ConnectionLost(prefix="a.2."), None)
    assert run.broker.connections == ["ab.1.1", "client"]
    run.do(ConnectionLost(connection="a"), None)  # without a prefix: one connection
    assert run.broker.connections == ["ab.1.1", "client"]


def test_a_connection_is_forgotten_when_nothing_of_it_is_left() -> None:
    """Its loss may never come: a log need not say it."""
    run = Run(reader=Stored())
    run.create_producer("p", 1, "a")
    run.create_producer("q", 2, "a")
    run.subscribe("s", connection="a")
    run.broker = Broker.decode(run.broker.encode(), Stored())
    run.close_producer(1, "a")
    run.close_producer(2, "a")
    assert run.broker.connections == ["a"]
    run.close_consumer("a")
    assert run.broker.connections == []


@pytest.mark.parametrize("topic", [TOPIC, "non-persistent://public/default/t"])
@pytest.mark.parametrize(("method", "call"), [("PUT", "/unload"), ("DELETE", "?force=true")])
def test_the_connections_of_a_topic_that_closes_are_forgotten(topic: str, method: str, call: str) -> None:
    run = Run(reader=Stored())
    run.create_producer("p", 1, "a", topic)
    run.subscribe("s", connection="b", topic=topic)
    run.subscribe("u", connection="b", topic="persistent://public/default/other")
    run.create_producer("w", 1, "w", topic, producer_access_mode="WaitForExclusive")
    assert run.broker.connections == ["a", "b", "w"]
    run.admin(method, call, topic=topic)
    assert run.broker.connections == ["b"]


def test_a_producer_that_waits_for_its_turn_is_something() -> None:
    run = Run(reader=Stored())
    for connection in ("a", "b", "c"):
        run.create_producer(connection, 1, connection, producer_access_mode="WaitForExclusive")
    run.close_producer(1, "c")
    assert run.broker.connections == ["a", "b"]
    run.create_producer("d", 1, "d", producer_access_mode="ExclusiveWithFencing")
    assert run.broker.connections == ["d"]


def test_a_consumer_to_which_each_seek_sends_again_is_something() -> None:
    run = Run(reader=Stored(), activeConsumerFailoverRingForNonPartitioned=False)
    run.subscribe("s", "Failover", connection="a", consumer_name="a")
    run.subscribe("s", "Failover", connection="b", consumer_name="b")
    run.subscribe("s", "Failover", connection="c", consumer_name="c")
    run.seek("a", (1, 0))
    assert run.broker.connections == ["a", "b", "c"]
    run.close_consumer("b")  # that makes `c` the active one
    assert run.broker.connections == ["c"]
    run.subscribe("s", "Failover", connection="d", consumer_name="d")
    run.seek("c", (1, 0))
    run.close_consumer("d")  # nobody is left to become the active one
    assert run.broker.connections == []


def test_the_owner_of_chunks_that_left_is_something_until_the_last_chunk() -> None:
    run = Run(reader=Stored())
    run.create_producer()
    run.subscribe("s", "Shared", permits=9)
    run.send(0, uuid="u", chunk_id=0, num_chunks_from_msg=2)
    run.subscribe("s", "Shared", connection="t", permits=9)
    run.close_consumer("s")
    assert run.broker.connections == ["client", "s", "t"]
    run.send(1, uuid="u", chunk_id=1, num_chunks_from_msg=2)
    assert run.broker.connections == ["client", "t"]


FIXED = "fixed"
"""Key_Shared with ranges that consumers ask for."""


def crowd(run: Run, type_: str, draw: Random, topic: str, consumers: int) -> list[Effect]:
    """Consumers of two connections, with messages that they have and have not acknowledged."""
    effects: list[Effect] = []
    for id_ in range(consumers):
        fields: dict[str, Any] = {}
        if type_ == FIXED:
            fields["keySharedMeta"] = KeySharedMeta(
                keySharedMode="STICKY", hashRanges=[IntRange(id_ * 9, id_ * 9 + 8)]
            )
        kind: SubType = "Key_Shared" if type_ == FIXED else type_  # type: ignore[assignment]
        effects += run.subscribe(
            "s", kind, id_=id_, connection=draw.choice("ab"), topic=topic, permits=draw.choice([0, 1, 3]),
            consumer_name=draw.choice("xyz"), **fields,
        )  # fmt: skip
        for number in range(draw.choice([0, 0, 2])):
            effects += run.publish(id_ * 2 + number, topic=topic, key=str(draw.randrange(20)))
            run.now += draw.choice([1, 2000])
        sent = of(effects, Message)
        if sent and topic == TOPIC and draw.random() < 0.5:
            one = draw.choice(sent)
            effects += run.ack("a", (one.ledger_id, one.entry_id), id_=one.consumer_id)
    return effects


@pytest.mark.parametrize("topic", [TOPIC, f"{TOPIC}-partition-3", "non-persistent://public/default/t"])
@pytest.mark.parametrize("profile", ["4.0", "3.0"])
@pytest.mark.parametrize("type_", ["Exclusive", "Failover", "Shared", "Key_Shared", FIXED])
def test_many_leave_together_as_they_would_one_by_one(
    type_: str, profile: Profile, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But that those of the connection aren't told who of them is active meanwhile."""
    for seed in range(12):
        found = []
        for many in (10**9, 1):
            monkeypatch.setattr(leaving, "MANY", many)
            draw, run = Random(seed), Run(profile=profile, maxUnackedMessagesPerSubscription=draw_limit(seed))
            crowd(run, type_, draw, topic, draw.choice([2, 7, 30]))
            effects = run.lose("a") + run.wait(5)
            told = [
                each
                for each in effects
                if not (isinstance(each, ActiveConsumerChange) and each.connection == "a")
            ]
            effects = run.publish(1000, topic=topic, key="k") + run.lose("b") + run.wait(60)
            found.append(
                (
                    told,
                    [each for each in effects if not isinstance(each, ActiveConsumerChange)],
                    run.broker.encode(),
                )
            )
        assert found[0] == found[1], seed


def draw_limit(seed: int) -> int:
    """maxUnackedMessagesPerSubscription: of a third of the seeds, one that blocks."""
    return 3 if seed % 3 == 0 else 0


@pytest.mark.parametrize("topic", [TOPIC, "non-persistent://public/default/t"])
@pytest.mark.parametrize("type_", ["Failover", "Shared", "Key_Shared"])
def test_the_loss_of_many_takes_in_proportion(type_: SubType, topic: str) -> None:
    """Four times as many take less than eight times as many calls of functions."""
    took = []
    for consumers in (500, 2000):
        run = Run()
        for id_ in range(consumers):
            run.subscribe("s", type_, id_=id_, connection="a", topic=topic, permits=1)
        run.subscribe("s", type_, id_=consumers, connection="b", topic=topic)
        took.append(calls(partial(run.lose, "a")))
        assert run.broker.connections == ["b"]
    assert took[1] < 8 * took[0]


def calls(work: Callable[[], object]) -> int:
    """How many calls of functions some work takes, also of those that yield."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
