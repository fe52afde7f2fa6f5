"""The worked cases of docs/rules/key-shared.md §14, by number; the vectors of its §2, §3, rules beyond the cases, and
random lives of a subscription.

Left out: 13, the backoff of rounds that sent nothing. Here rounds go on until another one could change nothing, and
each event that could change something starts them again: there is nothing to retry.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.commands import (
    Ack,
    AnyCommand,
    BrokerConfig,
    CloseConsumer,
    Flow,
    IntRange,
    KeySharedMeta,
    MessageIdData,
    MessageMetadata,
    Profile,
    Publish,
    RedeliverUnacknowledgedMessages,
    Subscribe,
    Tick,
    to_json,
)
from schemas.effects import Effect, Error, Message, Success
from streaming.broker.broker import Broker
from streaming.broker.dispatch.draining_hashes import DrainingHashes
from streaming.broker.dispatch.murmur3 import murmur3_31
from streaming.broker.dispatch.selectors import (
    AutoSplit,
    ConsistentHashing,
    HashRangeExclusive,
    Selector,
)
from streaming.broker.dispatch.sticky_key import StickyKeyMultipleConsumers, budget
from streaming.broker.dispatch.sticky_key_classic import ClassicStickyKeyMultipleConsumers
from streaming.broker.dispatch.sticky_key_hash import NONE_KEY, sticky_key
from streaming.broker.errors import BrokerError
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.subscription.context import SubscriptionContext
from tests.broker.kit import QUIET, START, TOPIC, Run, Stored, feed, of, one, sent
from tests.examples import examples

pytestmark = pytest.mark.feature("E4")

KEYS = [f"k{i}" for i in range(10)]
WITH_TWO = ["c1", "c2", "c2", "c1", "c2", "c2", "c2", "c1", "c1", "c2"]
"""Who has `KEYS` when c1 and c2 are there, and when c3 has joined them (docs/rules/key-shared.md §3).

k8 has slot 47285, and the next point, 47586, is one of c1's.
"""
WITH_THREE = ["c1", "c3", "c2", "c1", "c3", "c3", "c3", "c1", "c3", "c2"]
MOVES = "k1"
"""A key of c1's that c2 gets when it joins."""


def join(run: Run, id_: int, permits: int = 1000, **fields: Any) -> list[Effect]:
    """Consumer c‹id› joins the subscription s."""
    return run.subscribe("s", "Key_Shared", id_=id_, consumer_name=f"c{id_}", permits=permits, **fields)


def publish(run: Run, keys: Iterable[str], first: int = 0) -> list[Effect]:
    """One entry a key; all effects."""
    return [
        effect for i, key in enumerate(keys, first) for effect in run.publish(i, key=key)
    ]  # the sequence id is the entry id


def ack(run: Run, id_: int, *entries: int) -> list[Effect]:
    return run.ack("s", *[(1, entry) for entry in entries], id_=id_)


def later(run: Run) -> list[Effect]:
    """When the unblocking interval is over."""
    return run.wait(0.01)


def dispatcher(run: Run) -> StickyKeyMultipleConsumers:
    found = run.topic.subscriptions["s"].dispatcher
    assert isinstance(found, StickyKeyMultipleConsumers)
    return found


def draining(run: Run) -> dict[int, tuple[int, int, int]]:
    """Hash → (its consumer, entries, blocked)."""
    return {
        hash_: (entry.owner[1], entry.entries, entry.blocked)
        for hash_, entry in dispatcher(run).draining.hashes.items()
    }


def replay(run: Run) -> list[int]:
    return [position.entry for position in dispatcher(run).replay]


def ranges(selector: Selector, last: int) -> dict[str, list[tuple[int, int]]]:
    """Each consumer's ranges of slots, found by asking for every slot from 0 to `last`."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    before = None
    for slot in range(last + 1):
        handle = selector.select(slot)
        name = "nobody" if handle is None else handle[0]
        if name == before:
            found[name][-1] = (found[name][-1][0], slot)
        else:
            found[name].append((slot, slot))
        before = name
    return dict(found)


def wants(*hash_ranges: IntRange) -> Consumer:
    return Consumer("a", 1, "", hash_ranges=list(hash_ranges))


def filled(selector: ConsistentHashing | AutoSplit, *names: str) -> Any:
    for id_, name in enumerate(names):
        selector.add(Consumer(name, id_, name))
    return selector


# -- the cases --------------------------------------------------------------------------------------------------------


def test_key_shared_case_01_auto_split() -> None:
    split = filled(AutoSplit(), "C1", "C2", "C3", "C4", "C5")
    assert ranges(split, 65536) == {
        "C5": [(0, 8192)], "C3": [(8193, 16384)], "C2": [(16385, 32768)], "C4": [(32769, 49152)],
        "C1": [(49153, 65536)],
    }  # fmt: skip
    split.remove(("C1", 0))
    assert ranges(split, 65536)["C4"] == [(32769, 65536)]
    split.remove(("C2", 1))
    assert ranges(split, 65536) == {
        "C5": [(0, 8192)],
        "C3": [(8193, 16384)],
        "C4": [(16385, 65536)],
    }
    assert ranges(filled(AutoSplit(64), "1", "2", "3", "4"), 64) == {
        "3": [(0, 16)], "2": [(17, 32)], "4": [(33, 48)], "1": [(49, 64)],
    }  # fmt: skip


def test_key_shared_case_02_auto_split_routing() -> None:
    run = Run(subscriptionKeySharedUseConsistentHashing=False)
    for id_ in (1, 2, 3):
        join(run, id_)
    selector = dispatcher(run).selector
    assert isinstance(selector, AutoSplit)
    assert selector.bounds == [(16384, ("s", 3)), (32768, ("s", 2)), (65536, ("s", 1))]
    keys = {"k0": 2, "k1": 2, "k2": 2, "k3": 1, "k4": 2, "key-1": 3}
    slots = [selector.slot(murmur3_31(key.encode())) for key in keys]
    assert slots == [27862, 24618, 32712, 47229, 21917, 5536]
    assert [message.consumer_id for message in of(publish(run, keys), Message)] == list(keys.values())


@pytest.mark.parametrize("leaver", ["closes", "loses its connection"])
def test_key_shared_case_03_a_new_consumer_waits(leaver: str) -> None:
    run = Run()
    join(run, 1)
    keys = [str(i) for i in range(10)]
    assert sent(publish(run, keys), 1) == list(range(10))
    join(run, 2)
    assert sent(publish(run, keys, 10), 2) == []
    effects = run.close_consumer("s", id_=1)
    assert sent(effects) == sent(effects, 2) == list(range(20))


def one_key_moves() -> Run:
    """c1 has entries 5 and 8 of a key unacked, c2 joins and gets the key, entry 9 of it is published."""
    run = Run()
    join(run, 1)
    publish(run, ["k0", "k0", "k0", "k0", "k0", MOVES, "k0", "k0", MOVES])
    join(run, 2)
    slot = dispatcher(run).selector.slot(murmur3_31(MOVES.encode()))
    assert slot == 56817
    assert draining(run) == {slot: (1, 2, 0)}
    assert sent(publish(run, [MOVES], 9)) == []
    assert draining(run) == {slot: (1, 2, 1)}
    assert replay(run) == [9]
    return run


def test_key_shared_case_04_one_key_moves() -> None:
    run = one_key_moves()
    assert sent(ack(run, 1, 5)) == []
    assert [entries for _, entries, _ in draining(run).values()] == [1]
    assert sent(ack(run, 1, 8)) == []
    assert draining(run) == {}
    assert sent(run.wait(0.009)) == []
    assert sent(run.wait(0.001), 2) == [9]


def test_key_shared_case_05_the_key_comes_back() -> None:
    run = one_key_moves()
    assert sent(run.close_consumer("s", id_=2), 1) == []
    assert draining(run) == {}
    assert sent(run.wait(0.01), 1) == [9]


def test_key_shared_case_06_a_nack_releases() -> None:
    run = one_key_moves()
    effects = run.redeliver("s", (1, 5), (1, 8), id_=1)
    messages = of(effects, Message)
    assert [(m.entry_id, m.consumer_id, m.redelivery_count) for m in messages] == [
        (5, 2, 1),
        (8, 2, 1),
        (9, 2, 0),
    ]
    assert draining(run) == {}


def test_key_shared_case_07_a_slow_consumer_does_not_block_others() -> None:
    run = Run(keySharedLookAheadMsgInReplayThresholdPerSubscription=200)
    join(run, 1, permits=10)
    join(run, 2)
    join(run, 3)
    got: dict[int, list[int]] = defaultdict(list)
    for entry in range(300):
        key = KEYS[entry % 10]
        messages = of(publish(run, [key], entry), Message)
        for message in messages:
            got[message.consumer_id].append(entry)
            if message.consumer_id != 1:
                ack(run, message.consumer_id, entry)
    expected: dict[int, list[int]] = defaultdict(list)
    for entry in range(300):
        expected[int(WITH_THREE[entry % 10][1])].append(entry)
    assert got[2] == expected[2]
    assert got[3] == expected[3]
    assert got[1] == expected[1][:10]  # its queue is full
    assert replay(run) == expected[1][10:]
    assert len(replay(run)) == 80
    assert sent(run.flow("s", 1000, id_=1), 1) == expected[1][10:]


@pytest.mark.parametrize("limit", [50, 20])
@pytest.mark.parametrize("keys", [[f"key-{i}" for i in range(300)], ["k0", "k3", "k7"]])
def test_key_shared_case_08_look_ahead_limit(limit: int, keys: list[str]) -> None:
    run = Run(keySharedLookAheadMsgInReplayThresholdPerSubscription=limit)
    join(run, 1, permits=10)
    assert len(sent(publish(run, [keys[i % len(keys)] for i in range(10)]), 1)) == 10
    c1_only = len(keys) == 3  # these stay c1's, which is full: the rest is look-ahead for c2
    join(run, 2, permits=1000 if c1_only else 10)
    for entry in range(10, 1000):
        publish(run, [keys[entry % len(keys)]], entry)
        assert len(replay(run)) <= limit
    assert run.cursor("s").read_position.entry < 100
    if c1_only:
        assert replay(run) == list(range(10, 10 + limit))
        assert run.cursor("s").read_position == (1, 10 + limit)


def sticky(*given: tuple[int, int]) -> dict[str, Any]:
    hash_ranges = [IntRange(start, end) for start, end in given]
    return {"keySharedMeta": KeySharedMeta("STICKY", hash_ranges)}


def test_key_shared_case_09_sticky_conflicts() -> None:
    run = Run()

    def refused(*given: tuple[int, int]) -> bool:
        effects = join(run, 9, 0, **sticky(*given))
        if of(effects, Success):
            run.close_consumer("s", id_=9)
            return False
        return one(effects, Error).error == "ConsumerAssignError"

    one(join(run, 1, 0, **sticky((0, 99), (400, 65535))), Success)
    one(join(run, 2, 0, **sticky((100, 399))), Success)
    run.flow("s", 10, id_=2)
    assert refused((0, 65535))
    assert refused((1, 1))
    run.close_consumer("s", id_=1)
    assert refused((0, 65535))
    assert refused((50, 100))
    assert refused((399, 500))
    one(join(run, 3, 0, **sticky((400, 600))), Success)
    one(join(run, 4, 0, **sticky((50, 99))), Success)
    assert refused()
    assert refused((700, 699))
    assert refused((700, 800), (800, 900))
    assert not refused((801, 900), (700, 800))
    assert [c.consumer_id for c in run.topic.subscriptions["s"].consumers] == [2, 3, 4]
    # key-1 has slot 5536, which no consumer asked for
    assert sent(publish(run, ["key-1"])) == []
    assert replay(run) == [0]
    assert sent(join(run, 5, **sticky((5536, 5536))), 5) == [0]


def test_key_shared_case_10_a_marker_is_acked() -> None:
    run = Run()
    run.create_producer()
    run.send(0, marker_type=10)
    for i in range(1, 6):
        run.send(i)
    assert sent(join(run, 1)) == [1, 2, 3, 4, 5]
    assert run.mark_delete("s") == (1, 0)


def test_key_shared_case_11_the_slow_ones_replays_are_left_alone() -> None:
    run = Run()
    join(run, 1, permits=2)
    join(run, 2, permits=2)
    publish(run, ["k0", "k3", "k2", "k4"])  # two each
    join(run, 3, permits=100)  # new entries are read for it
    publish(run, ["k0", "k2", "k0", "k2"], 4)
    assert replay(run) == [4, 5, 6, 7]
    assert sent(run.flow("s", 10, id_=2)) == [5, 7]
    assert replay(run) == [4, 6]
    assert sent(run.flow("s", 1, id_=1)) == [4]
    assert sent(run.flow("s", 1, id_=1)) == [6]


def test_key_shared_case_12_draining_hashes() -> None:
    c1, c2 = ("x", 1), ("x", 2)
    tracker = DrainingHashes()
    tracker.add(c1, 1)
    assert tracker.blocks(c2, 1)
    assert not tracker.blocks(c1, 1)  # it has come back
    assert tracker.hashes == {}
    tracker.add(c1, 1)
    tracker.add(c1, 1)
    assert not tracker.reduce(c1, 1)
    assert tracker.blocks(c2, 1)
    assert tracker.reduce(c1, 1)  # and c2 may go on
    assert not tracker.blocks(c2, 1)
    tracker.add(c1, 1)
    assert not tracker.reduce(c1, 1)  # no entry had waited
    tracker.add(c1, 1)
    tracker.add(c1, 1)
    assert tracker.blocks(c2, 1)
    tracker.forget(c1, [1])  # closing: no callback
    assert not tracker.blocks(c2, 1)


def test_key_shared_case_12_one_callback_for_a_batch_of_acks() -> None:
    run = Run()
    join(run, 1)
    publish(run, KEYS)
    join(run, 2)
    publish(run, KEYS, 10)
    moved = [i for i in range(10) if WITH_TWO[i] == "c2"]
    assert len(draining(run)) == len(moved) == 6
    assert sent(ack(run, 1, *range(10))) == []
    assert draining(run) == {}
    assert dispatcher(run).unblocks_at == run.now + 10
    assert sent(later(run), 2) == [10 + i for i in moved]
    assert dispatcher(run).unblocks_at == -1


# -- vectors (docs/rules/key-shared.md §1–§5) -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "hash_", "split", "ring"),
    [
        ("", 0, 1, 1), ("a", 1009084850, 27058, 42456), ("hello", 613153351, 64071, 7892),
        ("key-1", 414258592, 5536, 11858), ("key-2", 1945654540, 21772, 51461), ("NONE_KEY", 504741539, 48803, 56505),
        ("k0", 190934230, 27862, 30776), ("k1", 2110152746, 24618, 56817), ("k2", 1479966664, 32712, 55295),
        ("k3", 1964947581, 47229, 11677), ("k4", 344610205, 21917, 27176), ("stub-0-1-0", 385671471, 57647, 63532),
    ],
)  # fmt: skip
def test_slots_of_keys(key: str, hash_: int, split: int, ring: int) -> None:
    assert murmur3_31(key.encode()) == hash_
    assert AutoSplit().slot(hash_) == HashRangeExclusive().slot(hash_) == split
    assert ConsistentHashing().slot(hash_) == ring


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"ordering_key": b"o", "partition_key": "p"}, b"o"),
        ({"partition_key": "p"}, b"p"),
        ({"partition_key": "aGVsbG8=", "partition_key_b64_encoded": True}, b"hello"),
        ({"partition_key": "aGVsbG8", "partition_key_b64_encoded": True}, b"hello"),
        ({"partition_key": "no base64", "partition_key_b64_encoded": True}, NONE_KEY),
        ({"partition_key": "", "partition_key_b64_encoded": False}, b""),
        ({}, b"stub-0-1-0"),
    ],
)
def test_sticky_keys(fields: dict[str, Any], key: bytes) -> None:
    assert sticky_key(MessageMetadata("stub-0-1", 0, 0, **fields)) == key


def test_ring_of_three_points() -> None:
    ring = filled(ConsistentHashing(points=3), "consumer1", "consumer2", "consumer3")
    found = ranges(ring, 65535)
    found["consumer2"][0] = (1, found["consumer2"][0][1])  # slot 0 doesn't exist
    assert found == {
        "consumer1": [(14359, 18366), (29991, 39817), (52980, 60442)],
        "consumer2": [(1, 6668), (39818, 52979), (60443, 63679), (65184, 65535)],
        "consumer3": [(6669, 14358), (18367, 29990), (63680, 65183)],
    }


def test_ring_shares() -> None:
    def shares(ring: ConsistentHashing) -> list[int]:
        found = [ring.select(slot) for slot in range(1, 65536)]
        return [found.count((name, id_)) for id_, name in enumerate(("c1", "c2", "c3"))]

    def owners(ring: ConsistentHashing) -> list[str]:
        found = [ring.select(ring.slot(murmur3_31(key.encode()))) for key in KEYS]
        return ["" if handle is None else handle[0] for handle in found]

    ring = filled(ConsistentHashing(), "c1", "c2")
    assert shares(ring) == [30966, 34569, 0]
    assert owners(ring) == WITH_TWO
    ring.add(Consumer("c3", 2, "c3"))
    assert shares(ring) == [20340, 21396, 23799]
    assert owners(ring) == WITH_THREE
    ring.remove(("c3", 2))
    assert owners(ring) == WITH_TWO


def test_consumers_of_one_name_have_different_points() -> None:
    ring = ConsistentHashing(points=5)
    for id_ in range(3):
        ring.add(Consumer("x", id_, "c1"))
    assert [index for _, _, index in ring.members] == [0, 1, 2]
    assert [ring.select(slot) for slot in (34662, 61273, 23534, 54464, 29173)] == [("x", 0)] * 5
    assert [ring.select(slot) for slot in (50223, 35253, 6275, 3977, 33655)] == [("x", 1)] * 5
    ring.remove(("x", 1))
    ring.add(Consumer("y", 7, "c1"))
    assert ring.members[-1] == (("y", 7), "c1", 1)
    assert ring.select(50223) == ("y", 7)


def test_points_that_collide_belong_to_who_joined_first() -> None:
    ring = ConsistentHashing(points=3, size=1)  # everything collides
    for id_ in range(3):
        ring.add(Consumer("x", id_, str(id_)))
    owners = []
    while ring.members:
        owners.append(ring.select(1))
        assert owners[-1] is not None
        ring.remove(owners[-1])
    assert owners == [("x", 0), ("x", 1), ("x", 2)]
    assert ring.select(1) is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40), st.integers(1, 65535))
def test_selectors_cover_every_slot(steps: list[tuple[bool, int]], slot: int) -> None:
    """Whoever comes and goes: a slot belongs to one who is there, and moves only to or from who comes or goes."""
    for selector in (ConsistentHashing(points=3), AutoSplit()):
        present: set[Handle] = set()
        for joins, id_ in steps:
            handle = ("x", id_)
            if joins == (handle in present):
                continue
            before = selector.select(slot)
            if joins:
                selector.add(Consumer(*handle, "name"))
                present.add(handle)
            else:
                selector.remove(handle)
                present.remove(handle)
            after = selector.select(slot)
            assert after in present if present else after is None
            assert after == before or handle in (before, after)


def test_sticky_ranges_are_validated() -> None:
    exclusive = HashRangeExclusive()
    exclusive.check(wants(IntRange(0, 10), IntRange(12, 20)))
    exclusive.add(wants(IntRange(12, 20), IntRange(0, 10)))
    assert [exclusive.select(slot) for slot in (0, 10, 11, 12, 20, 21)] == [
        ("a", 1), ("a", 1), None, ("a", 1), ("a", 1), None,
    ]  # fmt: skip
    with pytest.raises(BrokerError, match="Range conflict with consumer"):
        exclusive.check(wants(IntRange(11, 12)))
    exclusive.check(wants(IntRange(11, 11)))


# -- rules beyond the cases -------------------------------------------------------------------------------------------


def test_budget() -> None:
    consumer = Consumer("x", 1, "c", permits=10, average=3.4)
    assert budget(consumer, 0) == 10
    consumer.unacked = 4
    assert budget(consumer, 10) == 2  # ⌈6 / 3⌉
    assert budget(consumer, 4) == 0
    consumer.permits = -5
    assert budget(consumer, 10) == 0


def test_a_batch_costs_one_of_the_budget() -> None:
    run = Run()
    run.create_producer()
    for i in range(12):
        run.send(10 * i, 10 * i + 9, partition_key="k0")
    assert sent(join(run, 1, permits=10)) == list(range(10))
    assert run.topic.subscriptions["s"].consumers[0].permits == -90


def test_one_mode_at_a_time() -> None:
    run = Run()
    one(join(run, 1, 0), Success)
    error = one(join(run, 2, 0, **sticky((0, 9))), Error)
    assert (error.error, "key_shared mode of 'AUTO_SPLIT'" in error.cause) == ("ConsumerBusy", True)
    loose: dict[str, Any] = {"keySharedMeta": KeySharedMeta("AUTO_SPLIT", allowOutOfOrderDelivery=True)}
    assert one(join(run, 2, 0, **loose), Error).error == "ConsumerBusy"
    assert one(run.subscribe("s", "Shared", id_=3), Error).error == "ConsumerBusy"
    run.close_consumer("s", id_=1)
    one(join(run, 2, 0, **sticky((0, 9))), Success)
    assert dispatcher(run).mode == "STICKY"
    run.close_consumer("s", id_=2)
    one(join(run, 2, 0, **loose), Success)
    assert dispatcher(run).out_of_order
    run.close_consumer("s", id_=2)
    one(run.subscribe("s", "Shared", id_=3), Success)


def test_refused_by_the_broker() -> None:
    run = Run(subscriptionKeySharedEnable=False)
    assert one(join(run, 1, 0), Error).error == "NotAllowedError"
    run.configure(subscriptionTypesEnabled="Exclusive,Shared")
    assert one(join(run, 1, 0), Error).error == "NotAllowedError"
    run.configure(maxConsumersPerSubscription=1)
    join(run, 1, 0)
    assert one(join(run, 2, 0), Error).error == "ConsumerBusy"


def test_a_refused_consumer_leaves_its_subscription() -> None:
    run = Run()
    assert one(join(run, 1, 0, **sticky()), Error).error == "ConsumerAssignError"
    assert run.topic.subscriptions["s"].consumers == []
    assert run.topic.consumer_handles.names == {}


def test_out_of_order_delivery() -> None:
    """Neither do hashes drain, nor does what waits hold back what is new."""
    run = Run()
    loose: dict[str, Any] = {"keySharedMeta": KeySharedMeta("AUTO_SPLIT", allowOutOfOrderDelivery=True)}
    join(run, 1, permits=1, **loose)
    assert sent(publish(run, [MOVES, MOVES]), 1) == [0]
    assert sent(join(run, 2, **loose), 2) == [1]
    assert sent(publish(run, [MOVES], 2), 2) == [2]
    assert draining(run) == {}


def test_what_was_nacked_and_waits_does_not_hold_back_its_key() -> None:
    run = Run()
    join(run, 1, permits=2)
    publish(run, ["k0", "k0"])
    run.redeliver("s", (1, 0), id_=1)  # no permits: it waits, without its hash
    assert replay(run) == [0]
    assert dispatcher(run).hashes == {}
    assert sent(run.flow("s", 5, id_=1)) == [0]


def test_an_earlier_entry_that_came_back_goes_first() -> None:
    """Also before those of its key that were read after it."""
    run = Run()
    join(run, 1, permits=1)
    join(run, 2, permits=100)
    publish(run, ["k0", "k0"])  # c1 has 0, 1 waits for it; c2's read waits for entries
    assert replay(run) == [1]
    run.redeliver("s", (1, 0), id_=1)  # read with 1, and blocked as c1 has no permits
    assert replay(run) == [0, 1]
    assert sent(publish(run, ["k2"], 2), 2) == [2]
    assert sent(run.flow("s", 5, id_=1)) == [0, 1]


def test_who_leaves_with_nothing_makes_nobody_read() -> None:
    """Recorded from 4.0.7: its keys' entries, nacked before, wait for the next occasion."""
    run = Run()
    join(run, 1, permits=1)
    join(run, 2, permits=100)
    publish(run, ["k0"])
    run.redeliver("s", (1, 0), id_=1)
    assert replay(run) == [0]
    assert sent(run.close_consumer("s", id_=1)) == []
    assert sent(run.wait(1)) == []
    assert sent(run.flow("s", 1, id_=2)) == [0]


def test_entries_are_for_those_who_have_permits_when_they_come() -> None:
    """A waiting read completes with nothing in 4.0.7: what it asked for may be more than anybody can take now."""
    run = Run()
    join(run, 1, permits=2)
    publish(run, ["k0"])
    assert dispatcher(run).pending_read == 1
    run.redeliver("s", (1, 0), id_=1)  # takes the last permit
    assert sent(publish(run, ["k0"], 1)) == []
    assert run.cursor("s").read_position == Position(1, 1)
    assert replay(run) == []


def test_without_an_interval_what_has_drained_goes_at_once() -> None:
    run = Run(keySharedUnblockingIntervalMs=0)
    join(run, 1)
    publish(run, [MOVES])
    join(run, 2)
    publish(run, [MOVES], 1)
    assert sent(ack(run, 1, 0), 2) == [1]


def with_nacked(**fields: Any) -> Run:
    """c1 has nacked three entries, the last of which belongs to c2 now; neither has permits."""
    run = Run(**fields.pop("settings", {}))
    join(run, 1, permits=3, **fields)
    publish(run, ["k0", "k0", "k2"])
    run.redeliver("s", (1, 0), (1, 1), (1, 2), id_=1)
    join(run, 2, permits=0, **fields)
    assert replay(run) == [0, 1, 2]
    return run


def test_a_look_ahead_may_leave_replays_out() -> None:
    """Recorded from 4.0.7: with a read waiting at the end, what else could be replayed waits for the next occasion."""
    run = with_nacked()
    assert sent(run.flow("s", 1, id_=2)) == []  # reads the first, which is c1's
    assert dispatcher(run).pending_read == 1
    assert sent(run.flow("s", 1, id_=2)) == [2]
    assert sent(run.flow("s", 2, id_=1)) == [0, 1]


def test_a_waiting_read_is_given_up_for_what_has_drained() -> None:
    """Recorded from 4.0.7 (`RescheduleReadHandler`): no consumer has permits any more, so there are no more reads."""
    run = Run()
    join(run, 1, permits=1)
    publish(run, [MOVES], 0)
    join(run, 2, permits=10)
    publish(run, [MOVES], 1)
    assert replay(run) == [1]
    assert dispatcher(run).pending_read == 10
    run.close_consumer("s", id_=2)
    assert draining(run) == {}
    run.wait(0.01)
    assert dispatcher(run).pending_read == 0
    publish(run, [MOVES], 2)
    assert run.cursor("s").read_position == Position(1, 2)


@pytest.mark.parametrize(("profile", "waits", "replays"), [("4.0", 0, [1]), ("4.2", 9, [1, 2])])
def test_an_ack_that_moves_the_mark_delete_position_gives_up_a_waiting_read_in_4_0(
    profile: Profile, waits: int, replays: list[int]
) -> None:
    """c2 leaves an entry behind, and nobody has permits. Recorded from 4.2.4 and 5.0.0-M1: the read that waits stays, and takes the next
    entry."""
    run = Run(profile=profile)
    join(run, 1, permits=1)
    publish(run, ["k0"])
    join(run, 2, permits=10)
    publish(run, [MOVES], 1)
    run.close_consumer("s", id_=2)
    assert (replay(run), dispatcher(run).pending_read) == ([1], 9)
    ack(run, 1, 0)
    later(run)
    assert dispatcher(run).pending_read == waits
    publish(run, [MOVES], 2)
    assert replay(run) == replays
    assert run.cursor("s").read_position == Position(1, 1 + len(replays))


@pytest.mark.parametrize(("profile", "gets"), [("4.0", [1, 2]), ("4.2", [1, 2]), ("5.0", [])])
def test_nothing_is_looked_for_beyond_the_end_in_4_2(profile: Profile, gets: list[int]) -> None:
    """c2 leaves without what waits for it, which c1 could take. Recorded from 4.2.4: c1 gets it with the next entry. In 5.0.0-M1, the round
    after that entry looks ahead. In 4.0.7, the read that waits returns nothing, so that no round looks ahead."""
    run = Run(profile=profile)
    join(run, 1, permits=10)
    publish(run, ["k0"])
    join(run, 2, permits=0)
    assert sent(publish(run, [MOVES], 1)) == []
    run.close_consumer("s", id_=2)
    assert (sent(publish(run, [MOVES], 2)), replay(run)) == (gets, [] if gets else [1, 2])


def test_any_order_replays_whatever_comes_first() -> None:
    """Recorded from 4.0.7: the consumer of an entry is not selected before the entry is read."""
    run = with_nacked(keySharedMeta=KeySharedMeta("AUTO_SPLIT", allowOutOfOrderDelivery=True))
    assert sent(run.flow("s", 1, id_=2)) == []
    assert sent(run.flow("s", 1, id_=2)) == []  # those of c1 once more
    assert sent(run.flow("s", 1, id_=2)) == [2]
    assert sent(run.flow("s", 2, id_=1)) == [0, 1]


def test_any_order_with_too_much_to_replay() -> None:
    """Nothing is read ahead then; Pulsar tries again and again."""
    run = with_nacked(
        settings={"keySharedLookAheadMsgInReplayThresholdPerSubscription": 1},
        keySharedMeta=KeySharedMeta("AUTO_SPLIT", allowOutOfOrderDelivery=True),
    )
    assert sent(run.flow("s", 1, id_=2)) == []
    assert dispatcher(run).pending_read == 0
    assert sent(run.flow("s", 2, id_=2)) == [2]


def test_expired_entries_drain() -> None:
    """Even when they stay in the consumer's count of unacked ones."""
    run = one_key_moves()
    run.admin("POST", "/subscription/s/expireMessages", {"ledgerId": 1, "entryId": 8})
    assert draining(run) != {}
    assert sent(later(run), 2) == [9]
    assert draining(run) == {}
    run.unload()


def test_skipped_entries_drain_when_something_reads() -> None:
    """Nothing tells the dispatcher of a skip, and here it doesn't retry: a read waits."""
    run = one_key_moves()
    assert sent([*run.admin("POST", "/subscription/s/skip/9"), *later(run)]) == []
    assert draining(run) != {}
    assert sent(run.flow("s", 1, id_=1), 2) == [9]
    assert draining(run) == {}


def test_a_dispatcher_that_retries_notices_a_skip() -> None:
    """It retries every few milliseconds while its look-ahead is at the limit."""
    run = Run(keySharedLookAheadMsgInReplayThresholdPerSubscription=1)
    join(run, 1)
    publish(run, [MOVES])
    join(run, 2)
    assert sent(publish(run, [MOVES, "k0"], 1)) == []
    assert dispatcher(run).pending_read == 0
    assert sent(run.admin("POST", "/subscription/s/skip/1")) == [1, 2]


@pytest.mark.parametrize(("nacked", "order"), [([], [2, 5, 4]), ([0], [2, 4, 5])])
def test_hashes_of_replays_that_were_passed(nacked: list[int], order: list[int]) -> None:
    """As recorded: they stay, and hold new entries back on their way, unless the replay set had every entry of the ledger up
    to the mark-delete, or none behind it."""
    run = Run()
    join(run, 1, 1)
    join(run, 2, 1)
    assert sent(publish(run, ["k0", "k0", "k3", "k1", "k0", "k3"])) == [0, 3]
    assert replay(run) == [1, 2]
    if nacked:
        run.redeliver("s", (1, 0))
    run.admin("POST", "/subscription/s/expireMessages", {"ledgerId": 1, "entryId": 1})
    assert sent(run.flow("s", 1000)) == order
    run.ack("s", *[(1, entry) for entry in range(6)])
    later(run)
    assert sent(publish(run, ["k0"], 6)) == ([6] if nacked else [])  # a look-ahead skips it in the replay set
    assert sent(run.flow("s", 1)) == ([] if nacked else [6])


def test_a_consumer_that_leaves_holds_back_no_hash_of_a_passed_entry() -> None:
    run = Run()
    join(run, 1)
    publish(run, ["k0", "k0"])
    join(run, 2)
    run.admin("POST", "/subscription/s/skip/1")
    run.close_consumer("s", id_=1)
    assert dispatcher(run).hashes == {}


def test_seek_keeps_the_mode() -> None:
    run = Run()
    meta: dict[str, Any] = {"keySharedMeta": KeySharedMeta("STICKY", [IntRange(0, 65535)])}
    join(run, 1, **meta)
    publish(run, KEYS)
    run.admin("POST", "/subscription/s/resetcursor", {"ledgerId": 1, "entryId": 0})
    assert dispatcher(run).mode == "STICKY"
    assert sent(join(run, 1, **meta))[-1] == 9


def test_nothing_is_searched_for_new_entries_while_nothing_can_move() -> None:
    run = Run()
    join(run, 1, permits=1)
    join(run, 2)
    publish(run, ["k0"] * 5)
    assert dispatcher(run).stuck
    publish(run, ["k2"], 5)
    assert dispatcher(run).stuck
    assert sent(run.flow("s", 1, id_=1)) == [1]


def test_an_ack_below_the_limit_searches_nothing_of_what_waits_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(maxUnackedMessagesPerConsumer=2)
    join(run, 1, permits=1)
    join(run, 2)
    publish(run, ["k0"] * 5)
    assert sent(publish(run, ["k2"], 5), 2) == [5]
    searches: list[int] = []
    select = StickyKeyMultipleConsumers._select

    def searched(found: StickyKeyMultipleConsumers, sub: SubscriptionContext, wanted: int) -> list[Position]:
        searches.append(wanted)
        return select(found, sub, wanted)

    monkeypatch.setattr(StickyKeyMultipleConsumers, "_select", searched)
    assert ack(run, 2, 5) == []
    assert sent(publish(run, ["k2"], 6), 2) == [6]
    assert (searches, replay(run)) == ([], [1, 2, 3, 4])
    assert sent(run.flow("s", 1)) == [1]
    assert searches, "permits are a reason to search"


def test_an_ack_at_the_limit_makes_room_for_what_waits_although_the_consumer_stays_blocked() -> None:
    """It is unblocked at half of its limit, but Key_Shared asks only for room below the limit. The next entry shows it."""
    run = Run(maxUnackedMessagesPerConsumer=4)
    join(run, 1)
    join(run, 2)
    assert sent(publish(run, ["k0"] * 6)) == [0, 1, 2, 3]
    assert sent(publish(run, ["k2"], 6), 2) == [6]
    assert ack(run, 1, 1) == []
    assert sent(publish(run, ["k2"], 7)) == [4, 7]
    assert replay(run) == [5]


def test_an_ack_makes_room_under_a_limit_of_one_that_was_lowered_too_late_to_block() -> None:
    run = Run(maxUnackedMessagesPerConsumer=4)
    for id_ in (1, 2, 3):
        join(run, id_)
    assert sent(publish(run, ["k1", "k0"])) == [0, 1]
    run.namespace("POST", "maxUnackedMessagesPerConsumer", 1)
    assert sent(publish(run, ["k0"], 2)) == []
    assert (dispatcher(run).stuck, replay(run)) == (True, [2])
    assert ack(run, 1, 1) == []
    assert sent(publish(run, ["k2"], 3)) == [2, 3]


# -- before 4.0 (docs/rules/key-shared.md §12) ------------------------------------------------------------------------


def classic(**settings: Any) -> Run:
    run = Run(profile="3.0", **settings)
    join(run, 1)
    assert isinstance(dispatcher(run), ClassicStickyKeyMultipleConsumers)
    selector = dispatcher(run).selector
    assert isinstance(selector, ConsistentHashing)
    assert selector.size == 2**31 - 2
    return run


def key_of_second(run: Run) -> str:
    """A key that is c2's."""
    selector = dispatcher(run).selector
    keys = [f"key-{i}" for i in range(99)]
    return next(key for key in keys if selector.select(selector.slot(murmur3_31(key.encode()))) == ("s", 2))


def test_classic_a_newcomer_waits_for_everything_older() -> None:
    run = classic()
    publish(run, ["a", "b"])
    join(run, 2)
    key = key_of_second(run)
    assert sent(publish(run, [key], 2)) == []
    assert sent(ack(run, 1, 1)) == []
    assert sent(ack(run, 1, 0), 2) == [2]
    assert sent(publish(run, [key], 3), 2) == [3]


def test_classic_who_leaves_with_nothing_frees_the_newcomer_but_sends_it_nothing() -> None:
    """The newcomer holds all that was sent before it joined. It gets the rest with the next occasion, here its FLOW."""
    run, key = Run(profile="3.0"), key_of_newcomer()
    join(run, 1, permits=2)
    publish(run, [key] * 3)
    run.redeliver("s")
    join(run, 2)
    assert [len(each.pending) for each in run.topic.subscriptions["s"].consumers] == [0, 2]
    assert sent(run.close_consumer("s")) == []
    assert sent(run.flow("s", 1, id_=2), 2) == [2]


def key_of_newcomer() -> str:
    """A key that is c2's when it has joined c1."""
    run = classic()
    join(run, 2)
    return key_of_second(run)


def test_classic_only_an_ack_that_moves_the_mark_delete_position_lets_a_newcomer_in() -> None:
    """A skip does so, too, but tells nobody. Neither does the ack of an entry that it has passed."""
    run = classic()
    publish(run, ["a", "b"])
    join(run, 2)
    key = key_of_second(run)
    assert sent(publish(run, [key, key], 2)) == []
    assert run.admin("POST", "/subscription/s/skip/2")
    assert run.mark_delete("s") == (1, 1)
    assert sent(ack(run, 1, 1), 2) == []
    assert sent(ack(run, 1, 0), 2) == []
    assert sent(publish(run, ["a"], 4), 2) == [2, 3]


def test_classic_the_first_to_join_restricts_those_after_it() -> None:
    run = classic()
    publish(run, ["a"])
    join(run, 2)
    publish(run, ["b"], 1)
    join(run, 3)
    found = dispatcher(run)
    assert isinstance(found, ClassicStickyKeyMultipleConsumers)
    assert found.joined == [(("s", 2), (1, 1)), (("s", 3), (1, 2))]
    run.close_consumer("s", id_=2)
    assert found.joined == [(("s", 3), (1, 2))]
    run.close_consumer("s", id_=3)
    assert found.joined == []


def test_classic_with_nothing_unacked_a_newcomer_is_free() -> None:
    run = classic()
    join(run, 2)
    assert sent(publish(run, [key_of_second(run)]), 2) == [0]


def own(run: Run, id_: int, count: int = 1) -> list[str]:
    """Keys of a consumer, each with a hash of its own."""
    selector = dispatcher(run).selector
    keys = [f"key-{i}" for i in range(99)]
    return [key for key in keys if selector.select(selector.slot(murmur3_31(key.encode()))) == ("s", id_)][
        :count
    ]


def test_classic_the_first_read_after_a_consumer_left_heeds_who_waits() -> None:
    """As recorded: it is chosen before the restriction of the only one left ends. So the permits of the batch are used up
    before the second read."""
    run = Run(subscriptionKeySharedUseClassicPersistentImplementation=True)
    join(run, 1, 6)
    run.create_producer()
    run.publish(0, producer="q")
    run.send(1, 5)
    join(run, 2, 3)
    (key,) = own(run, 1)
    assert sent(run.publish(1, producer="q", key=key)) == []
    assert sent(run.flow("s", 1), 1) == [2]
    assert sent(run.close_consumer("s", id_=1), 2) == [0, 1]
    assert replay(run) == [2]
    assert dispatcher(run).stats([])["consumersAfterMarkDeletePosition"] == {}
    assert sent(run.flow("s", 4, id_=2)) == [2]


def test_classic_the_first_of_several_that_leave_decides_what_is_read() -> None:
    """As recorded: when it leaves, the others still own their hashes, so what is theirs comes later."""
    run = Run(subscriptionKeySharedUseClassicPersistentImplementation=True)
    for id_ in (1, 3):
        join(run, id_)
    remains, moves = own(run, 1, 99), own(run, 3, 99)
    run = Run(subscriptionKeySharedUseClassicPersistentImplementation=True)
    join(run, 2, 0, connection="c")
    join(run, 1, 0, connection="c")
    join(run, 3, 2)
    selector = dispatcher(run).selector

    def owner(key: str) -> Handle | None:
        return selector.select(selector.slot(murmur3_31(key.encode())))

    first = next(key for key in remains if owner(key) == ("c", 1))
    second = next(key for key in moves if owner(key) == ("c", 2))
    assert sent(publish(run, [first, second])) == []
    assert replay(run) == [0, 1]
    assert sent(run.lose("c"), 3) == [1, 0]  # 4.0.7 closes consumer 2 before consumer 1


def test_classic_what_a_consumer_leaves_behind_is_read_for_the_owner_of_no_hash() -> None:
    """As recorded: pending entries have hash 0. So they wait while its owner has no permits, behind later ones of their key."""
    run = Run(subscriptionKeySharedUseClassicPersistentImplementation=True)
    for id_ in (1, 2, 3):
        join(run, id_, 0)
    nobodys = dispatcher(run).selector.select(0)
    assert nobodys is not None
    owner, other = nobodys[1], 1 + nobodys[1] % 3
    third = 6 - owner - other
    key = own(run, third)[0]
    run.flow("s", 9, id_=third)
    assert sent(publish(run, [key]), third) == [0]
    run.close_consumer("s", id_=third)
    assert replay(run) == [0]
    assert sent(run.flow("s", 1, id_=other)) == []
    assert sent(run.flow("s", 1, id_=owner)) == [0]


@pytest.mark.parametrize(("leave_together", "read"), [(True, 0), (False, 2)])
def test_classic_all_that_leave_together_rewind_the_cursor(leave_together: bool, read: int) -> None:
    """As recorded: the read for what the first one left behind finds nobody."""
    run = Run(subscriptionKeySharedUseClassicPersistentImplementation=True)
    join(run, 2, 2)
    publish(run, ["a", "b", "c"])
    join(run, 1, 2)
    if leave_together:
        run.lose("s")
    else:
        run.close_consumer("s", id_=1)
        run.close_consumer("s", id_=2)
    assert run.cursor("s").read_position == (1, read)


def test_classic_who_rejoins_after_a_seek_is_another_consumer() -> None:
    run = Run(subscriptionKeySharedUseClassicPersistentImplementation=True)
    join(run, 1, 2)
    join(run, 2, 2)
    publish(run, ["a", "b", "c", "d"])
    run.seek("s", (1, 0))
    for id_ in (1, 2):
        join(run, id_, 0)
        run.close_consumer("s", id_=id_)
    assert run.topic.subscriptions["s"].consumers == []


def read_position(run: Run) -> int:
    return run.cursor("s").read_position.entry


def shown(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = run.broker.topic_stats(TOPIC)["stats"]["subscriptions"]["s"]
    return found


def test_classic_nothing_is_read_while_only_newcomers_have_permits() -> None:
    run = Run(profile="3.0")
    join(run, 1, permits=1)
    publish(run, ["a", "b"])
    join(run, 2)
    assert read_position(run) == 1
    assert sent(publish(run, [*own(run, 2, 2), *own(run, 1, 2)], 2)) == []
    assert read_position(run) == 1, "c2 gets new entries only when all before them are acked"
    assert [m.consumer_id for m in of(run.flow("s", 2, id_=1), Message)].count(2) == 0
    assert shown(run)["consumersAfterMarkDeletePosition"] == {"c2": "1:1"}
    run.ack("s", (1, 0), id_=1)
    assert shown(run)["consumersAfterMarkDeletePosition"] == {}
    assert read_position(run) == 6


def test_classic_looks_ahead_without_newcomers() -> None:
    """c1 has no permits. Since nobody waits for old entries, reading goes on for c2."""
    run = Run(profile="3.0")
    join(run, 1, permits=0)
    join(run, 2)
    keys = [*own(run, 1, 3), *own(run, 2, 1)]
    assert sent(publish(run, keys), 2) == [3]
    assert (replay(run), read_position(run)) == ([0, 1, 2], 4)
    assert sent(run.flow("s", 2, id_=1), 1) == [0, 1]


def test_classic_one_hash_that_waits_holds_back_all_of_a_read_for_its_consumer() -> None:
    run = Run(profile="3.0", dispatcherMaxReadBatchSize=2)
    for id_, permits in ((1, 0), (2, 0), (3, 9)):
        join(run, id_, permits=permits)
    mine, waiting = own(run, 1, 2)
    publish(run, [*own(run, 2) * 2, waiting])
    run.close_consumer("s", id_=3)
    assert replay(run) == [0, 1, 2]
    publish(run, [waiting, mine], 3)
    assert sent(run.flow("s", 9, id_=1)) == [], (
        "a read looks at two positions of the replay set, which are for c2"
    )
    assert replay(run) == [0, 1, 2, 3, 4]
    assert sent(publish(run, [own(run, 1, 3)[2]], 5), 1) == [5], "no hash of this read waits"
    effects = run.flow("s", 2, id_=2)
    assert (sent(effects, 2), sent(effects, 1)) == ([0, 1], [2, 3, 4])


def test_classic_what_is_nacked_has_no_hash() -> None:
    run = Run(profile="3.0")
    join(run, 1, permits=2)
    publish(run, ["a", "b", "c"])
    assert run.redeliver("s", (1, 1), id_=1) == []
    assert dispatcher(run).hashes == {}
    run.redeliver("s", id_=1)
    assert dispatcher(run).hashes == {}
    again = of(run.flow("s", 3, id_=1), Message)
    assert [(m.entry_id, m.redelivery_count) for m in again] == [(0, 1), (1, 1), (2, 0)]


def test_classic_keeps_to_the_dispatch_rate() -> None:
    run = Run(profile="3.0")
    run.admin(
        "POST", "/subscriptionDispatchRate", {"dispatchThrottlingRateInMsg": 2, "ratePeriodInSecond": 10}
    )
    publish(run, "abcde")
    run.admin("PUT", "/subscription/s", {"ledgerId": -1, "entryId": -1})
    assert sent(join(run, 1)) == [0, 1]
    assert sent(run.wait(10)) == [2, 3]


def test_classic_stats_show_the_hash_ranges() -> None:
    run = classic(keySharedRangesByPoint=False)
    assert shown(run)["consumers"][0]["keyHashRanges"] == ["[1, 2147483646]"]
    join(run, 2)
    first, second = (consumer["keyHashRanges"] for consumer in shown(run)["consumers"])
    bounds = sorted(tuple(map(int, text[1:-1].split(", "))) for text in first + second)
    assert (bounds[0][0], bounds[-1][1]) == (1, 2147483646)
    assert all(after[0] == before[1] + 1 for before, after in pairwise(bounds))
    run = Run()
    join(run, 1)
    assert "keyHashRanges" not in shown(run)["consumers"][0]


def test_the_ranges_of_a_selector_are_those_it_selects_by() -> None:
    asked = HashRangeExclusive()
    asked.add(Consumer("a", 1, "", hash_ranges=[IntRange(7, 9), IntRange(1, 3)]))
    asked.add(Consumer("b", 1, "", hash_ranges=[IntRange(4, 6)]))
    names = ["a", "b", "c"]
    for selector, first, last in (
        (filled(ConsistentHashing(points=5, size=300), *names), 1, 300),
        (filled(AutoSplit(64), *names), 0, 64),
        (asked, 1, 9),
    ):
        by_name: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for start, end, (name, _) in selector.assignments():
            by_name[name].append((max(start, first), end))
        wanted = {
            name: [(max(start, first), end) for start, end in there if end >= first]
            for name, there in ranges(selector, last).items()
            if name != "nobody"
        }
        assert dict(by_name) == wanted
    assert (
        ConsistentHashing().assignments()
        == AutoSplit().assignments()
        == HashRangeExclusive().assignments()
        == []
    )


def test_the_setting_decides_not_the_profile() -> None:
    run = Run(profile="3.0", subscriptionKeySharedUseClassicPersistentImplementation=False)
    join(run, 1)
    assert type(dispatcher(run)) is StickyKeyMultipleConsumers


# -- random lives -----------------------------------------------------------------------------------------------------

SHARES = [(0, 20_000), (20_001, 40_000), (40_001, 65_535)]
CHOICES: dict[str, st.SearchStrategy[Any]] = {
    "subscriptionKeySharedUseConsistentHashing": st.booleans(),
    "subscriptionKeySharedConsistentHashingReplicaPoints": st.sampled_from([1, 10]),
    "subscriptionKeySharedUseClassicPersistentImplementation": st.sampled_from([False, False, False, True]),
    "keySharedLookAheadMsgInReplayThresholdPerConsumer": st.sampled_from([0, 1, 2000]),
    "keySharedLookAheadMsgInReplayThresholdPerSubscription": st.sampled_from([0, 0, 1, 3]),
    "keySharedUnblockingIntervalMs": st.sampled_from([0, 10]),
    "maxUnackedMessagesPerConsumer": st.sampled_from([0, 0, 1, 3]),
    "maxUnackedMessagesPerSubscription": st.sampled_from([0, 0, 5]),
    "dispatcherMaxReadBatchSize": st.sampled_from([1, 2, 100]),
    "managedLedgerMaxEntriesPerLedger": st.sampled_from([3, 50_000]),
    "removePendingAcksOnMarkDeleteMove": st.booleans(),
}  # fmt: skip
CONSUMERS = st.integers(0, 2)
WHICH = st.sampled_from([{0}, {0}, {1}, {0, 1}, {0, 2}, set(range(9))])
"""Which of its unacked entries a consumer acks or nacks."""
STEPS = [
    st.tuples(st.just("publish"), st.integers(0, 5)),
    st.tuples(st.just("join"), CONSUMERS, st.sampled_from([0, 2, 20])),
    st.tuples(st.just("leave"), CONSUMERS),
    st.tuples(st.just("flow"), CONSUMERS, st.sampled_from([1, 3, 20])),
    st.tuples(st.just("ack"), CONSUMERS, WHICH),
    st.tuples(st.just("ack of anything"), CONSUMERS, st.integers(0, 20)),
    st.tuples(st.just("wait"), st.sampled_from([1, 10])),
    st.tuples(st.just("nack"), CONSUMERS, WHICH),
]


def lives(*, nacks: bool) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Publishes half of the time."""
    others = STEPS[1:] if nacks else STEPS[1:-1]
    return st.lists(
        st.booleans().flatmap(lambda publish: STEPS[0] if publish else st.one_of(others)),
        min_size=20,
        max_size=80,
    )


class Life:
    """A Key_Shared subscription in two brokers: one is encoded and decoded after every command, the other never."""

    def __init__(self, configuration: dict[str, Any], meta: KeySharedMeta) -> None:
        self.store = Stored()
        self.whole, self.cut = Broker(0, self.store), Broker(0, self.store)
        self.meta = meta
        self.now, self.published = START, 0
        self.limited = bool(configuration["maxUnackedMessagesPerConsumer"])
        self.keys: dict[Position, str] = {}
        self.do(BrokerConfig(settings={**QUIET, **configuration}), None)

    def do(self, command: AnyCommand | Publish, topic: str | None = TOPIC) -> None:
        effects = []
        for broker in (self.whole, self.cut):
            feed(broker, broker.offset + 1, self.now, topic, to_json(command))
            effects.append(broker.take())
        assert effects[0] == effects[1]
        state = self.whole.encode()
        assert self.cut.encode() == state
        self.store.add([row.effect for row in effects[0]])
        self.cut = Broker.decode(state, self.store)
        self._check_rest(state)

    def _check_rest(self, state: bytes) -> None:
        """Another round would send nothing, whether or not the search of the replay set is spared.

        Only a consumer under an unacked limit may have room that nobody looks at before the next event; nobody looks
        either at what a look ahead left out, or at what comes to others when somebody leaves a blocked subscription.
        """
        sent_more = []
        for search in (False, True):
            broker = Broker.decode(state, self.store)
            if TOPIC not in broker.topic_names() or "s" not in (topic := broker.topic(TOPIC)).subscriptions:
                return
            subscription = topic.subscriptions["s"]
            found = subscription.dispatcher
            assert isinstance(found, StickyKeyMultipleConsumers)
            left_out = not found.stuck and (found.pending_read > 0 or found.blocked)
            waits = found.unblocks_at >= 0 or left_out
            found.stuck = found.stuck and not search
            found.dispatch(topic.context_of(broker._ctx, subscription))
            sent_more.append([row.effect for row in broker.take()])
        assert sent_more[0] == sent_more[1]
        assert not sent_more[0] or waits or self.limited

    def pending(self) -> dict[int, list[Position]]:
        """Of each connected consumer, in order of their positions."""
        if (
            TOPIC not in self.whole.topic_names()
            or "s" not in (topic := self.whole.topic(TOPIC)).subscriptions
        ):
            return {}
        return {c.consumer_id: sorted(c.pending) for c in topic.subscriptions["s"].consumers}

    def step(self, what: str, *args: Any) -> None:
        there = self.pending()
        match what, args:
            case "publish", (key,):
                position = self.whole.topic(TOPIC).ledger.last_confirmed if self.published else None
                self.do(Publish(producer="p", sequence_id=self.published, key=f"k{key}"))
                self.published += 1
                after = self.whole.topic(TOPIC).ledger.last_confirmed
                assert after != position
                self.keys[after] = f"k{key}"
            case "join", (id_, permits) if id_ not in there:
                self.do(
                    Subscribe(
                        connection="x", consumer_id=id_, subscription="s", subType="Key_Shared", request_id=1,
                        consumer_name=f"c{id_}", initialPosition="Earliest", keySharedMeta=self._meta_of(id_),
                    )
                )  # fmt: skip
                if permits:
                    self.step("flow", id_, permits)
            case "leave", (id_,):
                self.do(CloseConsumer(connection="x", consumer_id=id_, request_id=1))
            case "flow", (id_, permits):
                self.do(Flow(connection="x", consumer_id=id_, messagePermits=permits))
            case "ack" | "nack", (id_, which):
                chosen = [p for i, p in enumerate(there.get(id_, [])) if i in which]
                ids = [MessageIdData(*position) for position in chosen]
                if ids and what == "ack":
                    self.do(Ack(connection="x", consumer_id=id_, ack_type="Individual", message_id=ids))
                elif ids:
                    self.do(RedeliverUnacknowledgedMessages(connection="x", consumer_id=id_, message_ids=ids))
            case "ack of anything", (id_, entry):
                ids = [MessageIdData(*position) for position in list(self.keys)[entry : entry + 1]]
                self.do(Ack(connection="x", consumer_id=id_, ack_type="Individual", message_id=ids))
            case "wait", (milliseconds,):
                self.now += milliseconds
                self.do(Tick(), None)

    def _meta_of(self, id_: int) -> KeySharedMeta:
        if self.meta.keySharedMode == "AUTO_SPLIT":
            return self.meta
        return KeySharedMeta("STICKY", [IntRange(*SHARES[id_])], self.meta.allowOutOfOrderDelivery)

    def holders(self) -> dict[str, set[int]]:
        """Key → the consumers that have unacked entries of it."""
        found: dict[str, set[int]] = defaultdict(set)
        for id_, positions in self.pending().items():
            for position in positions:
                found[self.keys[position]].add(id_)
        return found

    def overtaken(self) -> list[Position]:
        """Unacked entries without a consumer, although a later entry of their key is pending at one."""
        topic = self.whole.topic(TOPIC)
        if "s" not in topic.subscriptions:
            return []
        cursor = topic.cursors["s"]
        have = [position for positions in self.pending().values() for position in positions]
        latest = {key: max(p for p in have if self.keys[p] == key) for key in {self.keys[p] for p in have}}
        return [
            position
            for position, key in self.keys.items()
            if cursor.mark_delete < position < latest.get(key, position)
            and position not in cursor.acked
            and position not in have
        ]

    def finish(self) -> None:
        """Everybody comes, takes and acks what they get until nothing comes any more."""
        for id_ in range(3):
            self.step("join", id_, 0)
        before = None
        while before != (
            before := self.whole.topic(TOPIC).cursors["s"].backlog(self.whole.topic(TOPIC).ledger)
        ):
            for id_ in range(3):
                self.step("flow", id_, 10)
            for id_ in range(3):
                self.step("ack", id_, set(range(100)))
            self.step("wait", 10)
        topic = self.whole.topic(TOPIC)
        assert topic.cursors["s"].backlog(topic.ledger) == 0
        assert self.pending() == {0: [], 1: [], 2: []}


META = st.builds(
    KeySharedMeta,
    st.sampled_from(["AUTO_SPLIT", "AUTO_SPLIT", "AUTO_SPLIT", "STICKY"]),
    allowOutOfOrderDelivery=st.sampled_from([False, False, False, True]),
)
RANDOM = settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])


@given(st.fixed_dictionaries(CHOICES), META, lives(nacks=False))
@RANDOM
def test_a_key_is_with_one_consumer_and_in_order(
    configuration: dict[str, Any], meta: KeySharedMeta, steps: list[tuple[Any, ...]]
) -> None:
    life = Life(configuration, meta)
    life.step("join", 0, 20)
    in_order = not (
        meta.allowOutOfOrderDelivery
        or configuration["subscriptionKeySharedUseClassicPersistentImplementation"]
    )
    for step in steps:
        life.step(*step)
        if in_order:
            assert all(len(ids) == 1 for ids in life.holders().values())
            assert life.overtaken() == []
    life.finish()


def test_an_ack_of_what_waits_makes_room_for_new_entries() -> None:
    """Consumer 0 is at its limit and acks an entry that waits for it: the search of the replay set drops the entry."""
    limits = {"maxUnackedMessagesPerConsumer": 1, "dispatcherMaxReadBatchSize": 1}
    ring = {
        "subscriptionKeySharedUseConsistentHashing": True,
        "subscriptionKeySharedConsistentHashingReplicaPoints": 1,
    }
    look_ahead = {
        "keySharedLookAheadMsgInReplayThresholdPerConsumer": 0,
        "keySharedLookAheadMsgInReplayThresholdPerSubscription": 0,
    }
    life = Life({**limits, **ring, **look_ahead}, KeySharedMeta("AUTO_SPLIT", allowOutOfOrderDelivery=True))
    life.step("join", 0, 20)
    for key in (0, 1, 1, 0):
        life.step("publish", key)
    life.step("join", 1, 2)
    life.step("ack of anything", 0, 1)


@given(st.fixed_dictionaries(CHOICES), META, lives(nacks=True))
@RANDOM
def test_everything_arrives_with_nacks_too(
    configuration: dict[str, Any], meta: KeySharedMeta, steps: list[tuple[Any, ...]]
) -> None:
    life = Life(configuration, meta)
    life.step("join", 0, 20)
    for step in steps:
        life.step(*step)
    life.finish()


@pytest.mark.parametrize("hashing", [True, False])
def test_a_seek_leaves_the_kind_of_selector(hashing: bool) -> None:
    """Consumers are disconnected by a seek. Those that come back share the hashes as before."""
    run = Run(subscriptionKeySharedUseConsistentHashing=hashing)
    run.subscribe("s", "Key_Shared", permits=10)
    run.publish(0, key="k")
    dispatcher = run.topic.subscriptions["s"].dispatcher
    assert isinstance(dispatcher, StickyKeyMultipleConsumers)
    before = type(dispatcher.selector)
    run.seek("s", time=0)
    run.subscribe("s", "Key_Shared", id_=2)
    assert [(each.connection, each.consumer_id) for each in of(run.flow("s", 10, id_=2), Message)] == [
        ("s", 2)
    ]
    dispatcher = run.topic.subscriptions["s"].dispatcher
    assert isinstance(dispatcher, StickyKeyMultipleConsumers)
    assert type(dispatcher.selector) is before


@pytest.mark.parametrize("ring", [ConsistentHashing(points=3), AutoSplit(1 << 16)])
def test_a_consumer_that_is_not_in_the_selector_leaves_nothing(ring: ConsistentHashing | AutoSplit) -> None:
    filled(ring, "c1", "c2")
    before = [ring.select(ring.slot(hash_)) for hash_ in range(0, 1 << 31, 1 << 24)]
    ring.remove(("somebody else", 7))
    assert [ring.select(ring.slot(hash_)) for hash_ in range(0, 1 << 31, 1 << 24)] == before


@pytest.mark.parametrize(
    "selector", [ConsistentHashing(50, 4), AutoSplit(4)], ids=["more points than slots", "more than slots"]
)
def test_each_slot_is_shown_once_with_its_owner_also_when_there_are_fewer_than_points(
    selector: ConsistentHashing | AutoSplit,
) -> None:
    names = "abcdef"
    filled(selector, *names)
    shown = [
        (slot, owner) for first, last, owner in selector.assignments() for slot in range(first, last + 1)
    ]
    slots = [slot for slot, _ in shown]
    assert slots == list(range(slots[0], 5))
    assert shown == [(slot, selector.select(slot)) for slot in slots]


def test_the_look_after_an_ack_finds_nothing_when_nobody_has_permits() -> None:
    run = Run(maxUnackedMessagesPerConsumer=500)
    join(run, 1, permits=2)
    publish(run, "abc")
    assert ack(run, 1, 0) == []
    assert (dispatcher(run).unblocks_at > run.now, replay(run)) == (True, [])
    assert later(run) == []
    assert dispatcher(run).unblocks_at == -1
    assert sent(run.flow("s", 1)) == [2]


def test_when_everyone_is_at_the_limit_no_read_is_left_waiting() -> None:
    run = Run(maxUnackedMessagesPerConsumer=2)
    join(run, 1)
    assert sent(publish(run, "ab")) == [0, 1]
    assert dispatcher(run).pending_read == 0
    assert sent(publish(run, "c", 2)) == []
    assert sent(ack(run, 1, 0)) == [2]


def test_no_read_is_left_waiting_for_who_is_above_a_lowered_limit() -> None:
    """Such a consumer counts as one that can receive until it is sent something, but it can take nothing."""
    run = Run(maxUnackedMessagesPerConsumer=3)
    join(run, 1)
    join(run, 2)
    selector = dispatcher(run).selector
    keys: dict[int, list[str]] = {1: [], 2: []}
    for key in (f"k{n}" for n in range(30)):
        owner = selector.select(selector.slot(murmur3_31(key.encode())))
        assert owner is not None
        keys[owner[1]].append(key)
    assert sent(publish(run, keys[1][:2]), 1) == [0, 1]
    run.namespace("POST", "maxUnackedMessagesPerConsumer", 2)
    assert sent(publish(run, keys[2][:1], 2), 2) == [2]
    assert dispatcher(run).pending_read > 0
    assert sent(publish(run, keys[2][1:2], 3), 2) == [3]
    assert dispatcher(run).pending_read == 0
    assert sent(publish(run, keys[2][2:3], 4)) == []
    assert sent(ack(run, 2, 2), 2) == [4]


def test_what_is_due_when_the_look_after_an_ack_is_comes_once() -> None:
    run = Run(maxUnackedMessagesPerConsumer=500, keySharedUnblockingIntervalMs=10)
    join(run, 1)
    assert sent(publish(run, "a")) == [0]
    run.publish(1, key="b", deliver_at_time=run.now + 5_000)
    run.now = dispatcher(run).delayed.timer - 10
    assert ack(run, 1, 0) == []
    assert dispatcher(run).unblocks_at == dispatcher(run).delayed.timer == run.now + 10
    assert sent(run.wait(0.01)) == [1]
    assert (dispatcher(run).unblocks_at, dispatcher(run).delayed.timer) == (-1, -1)
    assert sent(run.wait(9)) == []


def test_classic_a_delayed_entry_that_is_sent_because_a_consumer_leaves_has_no_timer_any_more() -> None:
    """A consumer that leaves lets entries be sent that are due within a tick. The timer fired then for ever, at the same time: the
    broker did nothing else any more. Found by the fuzzer, in a life of split ranges."""
    run = Run(profile="3.0")
    join(run, 1)
    join(run, 2)
    run.publish(1, key=own(run, 1)[0], deliver_at_time=run.now + 10_000)
    run.wait(9.5)
    assert sent(run.close_consumer("s", id_=2), 1) == [0]
    run.wait(2)
    assert run.broker.next_due() > run.now
    assert dispatcher(run).delayed.timer == -1
