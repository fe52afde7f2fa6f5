"""Why a subscription gets nothing: the deciders name a reason whenever dispatching sends nothing, and none when it sends."""

from random import Random
from typing import get_args

import pytest

from streaming.broker.broker import Broker
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.persistent.delivery import Show
from streaming.broker.position import Position
from tests.broker.kit import TOPIC, Run, Stored, feed
from tests.broker.random_lives import live
from tests.broker.recorded_lives import NAMES

SHOWN: tuple[Show, ...] = get_args(Show)


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


def test_what_a_subscription_sees_of_its_first_entries() -> None:
    run = Run()
    run.subscribe("s", "Shared", permits=3)
    for sequence_id in range(5):
        run.publish(sequence_id)
    run.ack("s", (1, 1))
    found = {show: [each.position for each in run.broker.peek(TOPIC, "s", show, 9)] for show in SHOWN}
    assert found == {
        "backlog": ["1:0", "1:2", "1:3", "1:4"], "inflight": ["1:0", "1:2"], "delayed": [], "holes": ["1:1"],
    }  # fmt: skip
    assert [each.position for each in run.broker.peek(TOPIC, "s", "backlog", 2)] == ["1:0", "1:2"]
    assert run.broker.peek(TOPIC, "s", "holes", 1)[0].state == "acked"
    assert run.broker.entry_state(TOPIC, "s", Position(1, 4)).state == "unread"
    with pytest.raises(KeyError):
        run.broker.peek(f"{TOPIC}2", "s", "backlog", 1)
