"""A log folded in other ways than from one end to the other: each must give the same rows and the same state."""

from collections.abc import Sequence
from random import Random

from schemas.effects import Row
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from tests.broker.kit import Stored, feed
from tests.broker.test_silence import Patient, awake

Log = Sequence[tuple[int, str | None, bytes]]
"""Records: timestamp (ms), topic, value."""


def cut(log: Log, expected: Sequence[list[Row]], draw: Random) -> None:
    """The state is encoded and decoded in between. `expected`: the rows of each record."""
    store = Stored()
    whole, parts = Broker(0, NoEntries()), Broker(0, store)
    for offset, (timestamp, topic, value) in enumerate(log):
        if draw.random() < 0.2:
            parts = Broker.decode(parts.encode(), store)
        for broker in (whole, parts):
            feed(broker, offset, timestamp, topic, value)
        rows = parts.take()
        assert rows == whole.take() == expected[offset], f"record {offset}, cut"
        store.add([row.effect for row in rows])
    assert whole.encode() == parts.encode(), "the state, cut"


def without_skipping(log: Log, expected: Sequence[list[Row]]) -> None:
    """Every round of every check runs, and every retry. `expected`: the rows of each record."""
    brokers = Broker(0, NoEntries()), Patient(0, NoEntries())
    for offset, (timestamp, topic, value) in enumerate(log):
        for broker in brokers:
            feed(broker, offset, timestamp, topic, value)
            assert broker.take() == expected[offset], f"record {offset}, {type(broker).__name__}"
    assert awake(brokers[0]) == awake(brokers[1]), "the state, patiently"
