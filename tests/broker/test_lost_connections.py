"""CONNECTION_LOST: one connection is gone, or all of a server's former lives."""

import pytest

from schemas.commands import ConnectionLost
from schemas.effects import Message
from streaming.broker.broker import Broker
from tests.broker.kit import Run, Stored, of

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
