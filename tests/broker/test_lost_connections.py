"""CONNECTION_LOST: one connection is gone, or all of a server's former lives."""

import pytest

from schemas.commands import ConnectionLost
from schemas.effects import Message
from streaming.broker.broker import Broker
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
