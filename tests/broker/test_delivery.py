"""Why a subscription gets nothing: the deciders name a reason whenever dispatching sends nothing, and none when it sends."""

from random import Random

import pytest

from streaming.broker.broker import Broker
from streaming.broker.non_persistent.topic import is_non_persistent
from tests.broker.kit import Stored, feed
from tests.broker.random_lives import live
from tests.broker.recorded_lives import NAMES


@pytest.mark.parametrize(("theme", "seed"), NAMES[2::4])
def test_there_is_a_reason_whenever_entries_wait(theme: str, seed: int) -> None:
    log, *_ = live(theme, seed)
    draw, store = Random(f"{theme} {seed}"), Stored()
    broker = Broker(0, store)
    for offset, (timestamp, topic, value) in enumerate(log):
        feed(broker, offset, timestamp, topic, value)
        store.add([row.effect for row in broker.take()])
        if draw.random() < 0.1:
            broker = Broker.decode(broker.encode(), store)
            check(broker, store)


def check(broker: Broker, store: Stored) -> None:
    state = broker.encode()
    for name in broker.topic_names():
        if is_non_persistent(name):
            continue
        for subscription in broker.topic(name).subscriptions:
            found = Broker.decode(state, store).delivery(name, subscription)
            blocking = [verdict for verdict in found.verdicts if verdict.blocks]
            if found.state == "held back":
                assert blocking, found
            if found.sends:
                assert not [
                    each for each in blocking if each.scope == "everything" and "Failover" not in each.decider
                ], found
