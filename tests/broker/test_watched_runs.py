"""Whoever watches delivery runs is told the messages and acks of the scalar step, as columns."""

import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.effects import Message, Row
from streaming.broker.broker import Broker
from streaming.broker.context import Acked
from streaming.broker.dispatch.dispatcher import Dispatcher
from streaming.broker.persistent.delivery_run import DeliveryRun, Took
from streaming.fold import plain_layout
from streaming.fold import publishes as publish_columns
from streaming.fold.records import Records
from streaming.fold.shared import SharedFold
from tests.broker.kit import Stored, feed
from tests.broker.test_delivery_run import PlainTraffic, batches, cuts_of, simulated, traffic
from tests.broker.test_publish_run import Store
from tests.broker.test_steady import Traffic, stepwise
from tests.examples import examples

pytestmark = pytest.mark.feature("J3")


class Account:
    """By topic and subscription: the messages that were sent, and what each ack acked, when, and how many entries were unacked before it.
    Acks of nothing only tell the latter."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, str], list[tuple[Any, ...]]] = defaultdict(list)
        self.acks: dict[tuple[str, str], list[tuple[int, ...]]] = defaultdict(list)

    def add(self, acks: Sequence[Acked], rows: Sequence[Row]) -> None:
        for _, _, clock, topic, name, positions, before, after, backlog, recovered in acks:
            if recovered:
                continue
            found = self.acks[topic, name]
            if newly := [each.entry for each in positions if each > before]:
                found += [(entry - 1, entry, clock, backlog) for entry in newly]
            elif not positions and after > before:
                found.append((before.entry, after.entry, clock, backlog))
            else:
                found.append((-1, -1, clock, backlog))
        for row in rows:
            if isinstance(each := row.effect, Message):
                to = each.connection, each.consumer_id, each.consumer_epoch
                self.sent[each.topic, each.subscription].append(
                    (
                        *to,
                        each.ledger_id,
                        each.entry_id,
                        each.messages,
                        row.offset,
                        row.ordinal,
                        each.redelivery_count,
                    )
                )


class Watching(Broker):
    """A broker whose runs are watched."""

    account: Account
    stop = sys.maxsize
    runs = 0

    def delivery_run(self, *of: Any) -> DeliveryRun:
        self.run = super().delivery_run(*of)
        self.run.watcher = self
        return self.run

    def may_open(self, topic: str, ledger: int, first: int, acked: int) -> int:
        assert acked <= first + 1
        self.flush()
        return min(first + self.stop, sys.maxsize)

    def took(self, took: Took) -> None:
        self.runs += 1
        publishes = self.run.publishes
        for name, sent, acks in took.followed:
            columns = sent.rows, sent.ordinals, sent.ledgers, sent.entries, sent.numbers
            for row, ordinal, ledger, entry, number in zip(*columns, strict=True):
                connection, consumer_id, subscription, epoch = sent.to[number]
                assert subscription == name
                self.account.sent[took.topic, name].append(
                    (
                        connection,
                        consumer_id,
                        epoch,
                        ledger,
                        entry,
                        publishes.messages[row],
                        publishes.offsets[row],
                        ordinal,
                        0,
                    )
                )
            for before, after, clock, backlog in zip(*[iter(acks)] * 4, strict=True):
                of_none = before == after
                self.account.acks[took.topic, name].append(
                    (*((-1, -1) if of_none else (before, after)), clock, backlog)
                )

    def flush(self) -> None:
        self.account.add(self.take_acks(), self.take())


def same(records: Records, cuts: Sequence[int], *, stop: int = sys.maxsize) -> int:
    """Holds what a watcher is told equal to what the scalar step does. Returns how many topics were opened."""
    wanted, found, opened = Account(), Account(), 0
    one_by_one, store, before = Stored(), Store(), None
    broker = stepwise(Broker(0, one_by_one))
    for first, last in zip([0, *cuts], [*cuts, len(records.offsets)], strict=True):
        broker.watch_acks()
        with mock.patch.object(Dispatcher, "sends_at_once", False):
            for at in range(first, last):
                feed(broker, *(column[at] for column in records))  # type: ignore[arg-type]
        acks, rows = broker.take_acks(), broker.take()
        wanted.add(acks, rows)
        fold = SharedFold(0, store, before, broker=Watching)
        watching = fold.broker
        assert isinstance(watching, Watching)
        watching.account, watching.stop = found, stop
        watching.watch_acks()
        fold.fold(fold.read(records.piece(first, last), {}))
        opened += watching.runs
        before, state = fold.state(), broker.encode()
        assert before.broker == state
        assert found.sent == wanted.sent
        assert found.acks == wanted.acks
        for stored in (one_by_one, store.stored):
            stored.add([row.effect for row in rows])
        broker = stepwise(Broker.decode(state, one_by_one))
    return opened


@given(
    kind=st.sampled_from([PlainTraffic, PlainTraffic, Traffic]),
    seed=st.integers(0, 2**32 - 1),
    odd=st.sampled_from([0, 0.005, 0.02]),
    stop=st.sampled_from([sys.maxsize, 0, 3]),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_watcher_is_told_what_the_scalar_step_does(
    kind: type[Traffic], seed: int, odd: float, stop: int
) -> None:
    records = traffic(kind(seed, odd), 200)
    with (
        mock.patch.object(plain_layout, "_FEWEST", 1),
        mock.patch.object(publish_columns, "_SHORTEST", 1),
        mock.patch("streaming.broker.persistent.delivery_run._FEW", 2),
    ):
        same(records, cuts_of(seed, len(records.offsets)), stop=stop)


@pytest.mark.parametrize(
    "acks",
    [
        [(1, [(0, [])]), (1, [(2, []), (4, [])])],
        [(1, [(4, [])]), (1, [(0, [1])]), (1, [(2, [1]), (8, [])])],
        [(1, [(2, [])]), (1, [(2, [1])]), (1, [(4, []), (4, [1])])],
    ],
)
def test_acks_of_several_entries_and_of_parts_are_watched(acks: Any) -> None:
    with (
        mock.patch.object(publish_columns, "_SHORTEST", 1),
        mock.patch("streaming.broker.persistent.delivery_run._FEW", 2),
    ):
        assert same(batches(*acks), [])


@pytest.mark.parametrize("cumulative", [False, True])
def test_the_traffic_of_simulated_clients_is_watched(cumulative: bool) -> None:
    records = simulated(400, "Failover", cumulative=cumulative)
    assert same(records, [], stop=0) == 0
    assert same(records, [])
