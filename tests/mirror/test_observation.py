"""A topic and its twin, which knows of it only what the admin API shows from time to time."""

from collections.abc import Callable, Mapping
from itertools import product
from random import Random
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from schemas.commands import Mirror, MirroredConsumer, MirroredSubscription
from schemas.effect_fields import MirrorDriftFields
from schemas.effects import (
    CursorMoved,
    Effect,
    Error,
    Expired,
    Message,
    MirrorDrift,
    Quarantined,
    SendReceipt,
    Unsupported,
)
from streaming.broker.broker import Broker
from streaming.broker.persistent.mirroring import _apart
from streaming.broker.position import Position
from streaming.mirror.journal import MirrorRecord
from streaming.mirror.observation import (
    Observation,
    _nth_unacknowledged,
    _Stored,
    is_another,
    observe,
    ranges,
)
from streaming.mirror.progress import MirrorProgress
from tests.broker.kit import Run, Stored, of, response
from tests.broker.test_shadow_topics import shadow, store

pytestmark = pytest.mark.feature("K4")

TYPES = {"e": "Exclusive", "f": "Failover", "s": "Shared", "k": "Key_Shared"}


class Pair:
    """A topic on a cluster, and its twin. Both checks of TTL and of ledgers run when `check` says so."""

    def __init__(self, **settings: Any) -> None:
        self.cluster, self.twin, self.stored = Run(**settings), shadow(**settings), Stored()
        self.unseen: list[SendReceipt] = []
        self.before: Observation | None = None
        self.held: dict[str, list[tuple[int, int]]] = {}
        self.published = 0

    def on_cluster(self, effects: list[Effect]) -> None:
        self.unseen += [each for each in of(effects, SendReceipt) if each.size is not None]
        for each in of(effects, Message):
            self.held.setdefault(each.subscription, []).append((each.ledger_id, each.entry_id))

    def publish(self) -> None:
        self.on_cluster(self.cluster.publish(self.published, payload="x" * (self.published % 7)))
        self.published += 1

    def wait(self, seconds: float) -> None:
        self.on_cluster(self.cluster.wait(seconds))
        self.see(self.twin.wait(seconds))

    def see(self, effects: list[Effect]) -> list[Effect]:
        assert not [*of(effects, Quarantined), *of(effects, Unsupported)]
        self.stored.add(effects)
        return effects

    def look(
        self,
        during: Callable[[], Any] = lambda: None,
        says: Mapping[str, Any] = MappingProxyType({}),
        **more: Any,
    ) -> list[Effect]:
        """The twin gets the entries so far, and what the admin API shows. `during`: what happens between its two answers. `says`: what the
        record says of the look itself."""
        for receipt in self.unseen:
            payload = bytes(receipt.payload or b"").decode()
            self.see(
                store(
                    self.twin, receipt.ledger_id, receipt.entry_id, sequence_id=receipt.sequence_id, payload=payload,
                    publish_time=receipt.publish_time,
                )
            )  # fmt: skip
        self.unseen.clear()
        self.on_cluster(self.cluster.wait(0.001))  # no two looks are at the same time
        internal = response(self.cluster.admin("GET", "/internalStats"))
        during()
        stats = response(self.cluster.admin("GET", "/stats"))
        self.before = observe(self.cluster.now, stats, internal, self.before, **more)
        return self.see(self.twin.do(msgspec.structs.replace(self.before.record, **says)))

    def cut(self) -> None:
        self.twin.broker = Broker.decode(self.twin.broker.encode(), self.stored)

    def assert_equal(self) -> None:
        cluster, twin = self.cluster.topic, self.twin.topic
        assert twin.ledger.last_confirmed == cluster.ledger.last_confirmed
        assert twin.ledger.current == cluster.ledger.current
        durable = [name for name, each in cluster.subscriptions.items() if each.durable]
        assert sorted(durable) == sorted(twin.subscriptions)
        for name in durable:
            here, there = twin.cursors[name], cluster.cursors[name]
            assert len(twin.subscriptions[name].consumers) == len(cluster.subscriptions[name].consumers)
            if cluster.ledger.next_valid(there.mark_delete) > cluster.ledger.last_confirmed:
                continue  # quirk: all that it had is deleted, and its backlog counts it still
            backlog = there.backlog(cluster.ledger, precise=True)
            assert here.backlog(twin.ledger, precise=True) == backlog, name
            assert str(here.acked) == str(there.acked)
            assert twin.ledger.next_valid(here.mark_delete) == cluster.ledger.next_valid(there.mark_delete)
            assert twin.mirrored.subscriptions[name].drift.entries == 0
        assert twin.ledger.total_size == cluster.ledger.total_size
        assert sorted(twin.producers) == sorted(cluster.producers)


def act(pair: Pair, draw: Random, connected: set[str], *, expires: bool = True) -> None:
    """Something that clients or operators of the cluster do. `expires`: also expire messages."""
    cluster, name = pair.cluster, draw.choice([*TYPES])
    held = pair.held.setdefault(name, [])
    match draw.randrange(14):
        case 0 | 1 | 2 | 3:
            pair.publish()
        case 4:
            if name not in connected:
                pair.on_cluster(cluster.subscribe(name, TYPES[name], permits=draw.randint(1, 20)))  # type: ignore[arg-type]
                connected.add(name)
        case 5:
            pair.on_cluster(cluster.flow(name, draw.randint(1, 10)))
        case 6 | 7 if held and name in connected:
            number = draw.randint(1, len(held))
            pair.on_cluster(cluster.ack(name, *[held.pop(0) for _ in range(number)]))
        case 8 if held and name in connected:
            pair.on_cluster(cluster.ack(name, held.pop(draw.randrange(len(held)))))
        case 9 if name in connected and name in "sk" and held:
            pair.on_cluster(cluster.redeliver(name, draw.choice(held)))
        case 10 if name in connected:
            connected.discard(name)
            held.clear()
            pair.on_cluster(cluster.close_consumer(name))
        case 11:
            pair.on_cluster(
                cluster.create_producer("p1") if draw.random() < 0.5 else cluster.close_producer()
            )
        case 12:
            method, call = draw.choice(
                [
                    ("POST", f"/subscription/{name}/skip/2"),
                    ("POST", f"/subscription/{name}/expireMessages/1"),
                    ("PUT", f"/subscription/late{draw.randrange(2)}"),
                    ("DELETE", f"/subscription/late{draw.randrange(2)}"),
                    ("POST", f"/subscription/{name}/resetcursor/{cluster.now - 5000}"),
                ]
            )
            if call.endswith("000") or "resetcursor" in call:
                connected.discard(name)
                held.clear()
            if expires or "expireMessages" not in call:
                pair.on_cluster(cluster.admin(method, call))
        case _:
            pair.wait(draw.choice([0.1, 3, 20]))


@pytest.mark.parametrize("seed", range(60))
def test_a_twin_equals_its_topic(seed: int) -> None:
    draw = Random(seed)
    settings = {
        "managedLedgerMaxEntriesPerLedger": draw.choice([2, 5, 100]),
        "ttlDurationDefaultInSeconds": draw.choice([0, 0, 30]),
        "defaultRetentionTimeInMinutes": draw.choice([0, 0, -1]),
        "defaultRetentionSizeInMB": draw.choice([0, -1]),
    }
    pair, connected = Pair(**settings), set[str]()
    is_retained = settings["defaultRetentionTimeInMinutes"] == settings["defaultRetentionSizeInMB"] == -1
    pair.publish()
    for _ in range(draw.choice([20, 120])):
        for _ in range(draw.choice([1, 1, 5, 20])):
            act(pair, draw, connected)
        if settings["ttlDurationDefaultInSeconds"] and draw.random() < 0.2:
            pair.on_cluster(pair.cluster.check("messageExpiry"))
        if draw.random() < 0.2:
            pair.on_cluster(pair.cluster.check("consumedLedgers"))
        before = pair.before
        pair.look()
        assert not created_again(before, pair, retained=is_retained)
        if draw.random() < 0.2:
            pair.cut()
        pair.assert_equal()


@pytest.mark.parametrize("seed", range(60))
def test_a_twin_with_the_same_rules_of_its_own_comes_to_the_same(seed: int) -> None:
    """What-if of a mirrored log: the twin's own rules act, also between two looks, when it does not know yet of new subscriptions."""
    draw = Random(seed)
    minutes, megabytes = draw.choice([(0, 0), (-1, -1), (-1, 0)])
    settings: dict[str, Any] = {
        "managedLedgerMaxEntriesPerLedger": draw.choice([2, 5, 100]),
        "ttlDurationDefaultInSeconds": draw.choice([0, 30]),
        "defaultRetentionTimeInMinutes": minutes,
        "defaultRetentionSizeInMB": megabytes,
    }
    checks = ["messageExpiry", "consumedLedgers"][not settings["ttlDurationDefaultInSeconds"] :]
    pair, connected = Pair(**settings), set[str]()
    pair.twin.configure(**settings, shadowTopicFollowsSource=False)

    def check(what: str) -> None:
        pair.on_cluster(pair.cluster.check(what))
        pair.look()
        pair.see(pair.twin.check(what))
        pair.look()

    pair.publish()
    for _ in range(draw.choice([20, 60])):
        for _ in range(draw.choice([1, 1, 5, 20])):
            act(pair, draw, connected, expires=False)
        for what in checks:
            if draw.random() < 0.3:
                check(what)
        pair.look()
    pair.wait(60)
    for what in checks:
        check(what)
    pair.assert_equal()


def created_again(before: Observation | None, pair: Pair, *, retained: bool) -> bool:
    """Whether a mirror takes the topic for another one than at the look before."""
    assert pair.before is not None
    return before is not None and is_another(before.record, pair.before.record, retained=retained)


def observed(pair: Pair, name: str = "s") -> MirroredSubscription:
    assert pair.before is not None
    return pair.before.record.subscriptions[name]


def test_under_another_policy_what_the_source_expired_stays() -> None:
    """And what its consumers acknowledged is acknowledged."""
    pair = Pair(ttlDurationDefaultInSeconds=30)
    pair.twin.configure(shadowTopicFollowsSource=False)
    pair.on_cluster(pair.cluster.subscribe("s", "Shared", permits=10))
    for _ in range(4):
        pair.publish()
    pair.look()
    pair.on_cluster(pair.cluster.ack("s", (1, 1)))
    pair.look()
    pair.wait(40)
    for _ in range(2):
        pair.publish()
    pair.on_cluster(pair.cluster.check("messageExpiry"))
    pair.on_cluster(pair.cluster.ack("s", (1, 4)))
    pair.look()
    assert observed(pair).mark_delete == (1, 4)
    assert observed(pair).expired_to == (1, 3)
    assert pair.cluster.backlog("s") == 1
    assert str(pair.twin.cursor("s").acked) == "[(1:0..1:1],(1:3..1:4]]"
    pair.on_cluster(pair.cluster.ack("s", (1, 5)))
    pair.look()
    assert pair.twin.backlog("s") == 3  # 1:0, 1:2 and 1:3


@pytest.mark.parametrize("seed", range(40))
def test_what_expired_is_the_first_that_was_not_acknowledged(seed: int) -> None:
    """Whatever the acknowledged ranges span: whole ledgers, empty ones, and ones that are deleted."""
    draw = Random(seed)
    ledgers = {id_: draw.randrange(4) for id_ in sorted(draw.sample(range(3, 12), 6))}
    entries = [(id_, entry) for id_, count in ledgers.items() for entry in range(count)]
    places = sorted({(draw.randrange(3, 12), draw.randrange(-1, 4)) for _ in range(2 * draw.randrange(1, 5))})
    mark, *bounds = places
    acked = [(*low, *high) for low, high in zip(bounds[::2], bounds[1::2], strict=False)]
    unacked = [
        at
        for at in entries
        if at > mark and not any((low, first) < at <= (high, last) for low, first, high, last in acked)
    ]
    before = MirroredSubscription(mark, acked)
    for n in range(1, len(entries) + 2):
        expected = ([mark, *unacked[:n]])[-1]
        assert _nth_unacknowledged(before, n, _Stored(ledgers)) == expected, n


def test_a_quota_of_the_source_is_no_acknowledgment() -> None:
    pair = Pair()
    pair.twin.configure(shadowTopicFollowsSource=False)
    pair.on_cluster(pair.cluster.admin("PUT", "/subscription/s"))
    for _ in range(4):
        pair.publish()
    pair.look(evicts=True)
    pair.on_cluster(pair.cluster.admin("POST", "/subscription/s/skip/3"))  # it looks the same from outside
    pair.look(evicts=True)
    assert observed(pair).expired_to == (1, 2)
    assert pair.twin.backlog("s") == 4
    pair.on_cluster(pair.cluster.admin("POST", "/subscription/s/skip/1"))
    effects = pair.look()
    assert observed(pair).reset
    assert [each.entries for each in of(effects, CursorMoved)] == [4]


MOVES = {
    "quota": ("consumer_backlog_eviction", None),
    "skip": ("producer_request_hold", "/skip/6"),
    "clear": ("producer_request_hold", "/skip_all"),
    "expireMessages": ("producer_request_hold", "/expireMessages/1"),
}


@pytest.mark.parametrize("loaded", [False, True], ids=["", "after a restart of the mirror"])
@pytest.mark.parametrize("type_", ["Exclusive", "Failover", "Shared", "Key_Shared"])
@pytest.mark.parametrize("move", MOVES)
def test_what_no_consumer_was_sent_nobody_has_acknowledged(move: str, type_: Any, loaded: bool) -> None:
    """Whatever moves a subscription whose consumer is stuck: nothing is taken for acknowledged."""
    policy, call = MOVES[move]
    evicts = policy == "consumer_backlog_eviction"
    pair = Pair(backlogQuotaDefaultLimitBytes=100, backlogQuotaDefaultRetentionPolicy=policy)
    pair.twin.configure(shadowTopicFollowsSource=False, backlogQuotaDefaultLimitBytes=-1)
    pair.twin.broker.watch_acks()
    pair.on_cluster(pair.cluster.subscribe("s", type_, permits=1))
    pair.wait(5)  # a Failover consumer is active
    for _ in range(9):
        pair.publish()
        pair.look(evicts=evicts)
    pair.wait(5)
    for _ in range(2):
        pair.publish()
        if call is None:
            pair.on_cluster(pair.cluster.check("backlogQuota"))
        else:
            pair.on_cluster(pair.cluster.admin("POST", f"/subscription/s{call}"))
        before = pair.before
        if loaded and before is not None and before.earlier is not None:
            pair.before = in_log(before.earlier, before.record)
        effects = pair.look(evicts=evicts)
    assert observed(pair).mark_delete > (1, 0)
    assert observed(pair).consumers
    assert not any(each.positions or each.before != each.after for each in pair.twin.broker.take_acks())
    assert bool(of(effects, CursorMoved)) == (move in ("skip", "clear"))
    if move == "quota":
        assert pair.twin.backlog("s") == pair.published


def in_log(*records: Mirror) -> Observation | None:
    """What a mirror that starts knows of a topic."""
    log = [MirrorRecord(0, "t", msgspec.to_builtins(each)) for each in records]
    return MirrorProgress(log, sampled=False).topics["t"].before


@pytest.mark.parametrize("type_", ["Exclusive", "Failover", "Shared", "Key_Shared"])
@pytest.mark.parametrize("seed", range(20))
def test_what_consumers_acknowledge_nobody_has_skipped(seed: int, type_: Any) -> None:
    """Whatever happens between the two answers of a look, and however often a consumer comes and goes or the topic is loaded. But not
    all of it between two looks: such a consumer can't be seen."""
    draw, pair, connected, number = Random(seed), Pair(managedLedgerMaxEntriesPerLedger=5), False, 0
    held = pair.held.setdefault("s", [])
    pair.on_cluster(pair.cluster.admin("PUT", "/subscription/s"))

    def live() -> None:
        nonlocal connected, number
        for _ in range(draw.randrange(6)):
            what = draw.randrange(10)
            if what < 4:
                pair.publish()
            elif what < 8 and held and connected:
                pair.on_cluster(
                    pair.cluster.ack("s", *[held.pop(0) for _ in range(draw.randint(1, len(held)))])
                )
            elif what == 8 and connected:
                pair.on_cluster(pair.cluster.flow("s", draw.randint(1, 5)))
            elif connected and draw.random() < 0.5:
                connected = False
                held.clear()
                pair.on_cluster(pair.cluster.close_consumer("s"))
            elif not connected:
                connected, number = True, number + 1
                pair.on_cluster(
                    pair.cluster.subscribe("s", type_, permits=draw.randint(1, 9), consumer_name=f"c{number}")
                )

    for _ in range(60):
        live()
        if draw.random() < 0.5:
            pair.on_cluster(pair.cluster.check("consumedLedgers"))
        before = pair.before
        if draw.random() < 0.2:
            pair.look()
            before, connected = pair.before, False
            held.clear()
            pair.cluster.unload()
            pair.look(evicts=draw.random() < 0.5)
        else:
            pair.look(live, evicts=draw.random() < 0.5)
        assert not created_again(before, pair, retained=False)
        assert not observed(pair).reset
        assert observed(pair).expired_to is None


@pytest.mark.parametrize(
    "shown",
    [
        {"stats": {"committedTxnCount": 1}},
        {"stats": {"replication": {"other": {}}}},
        {"subscription": {"filterRejectedMsgCount": 1}},
        {"internal": {"compactedLedger": {"ledgerId": 7}}},
        {},
    ],
)
def test_entries_that_the_broker_passes_without_sending_them(shown: dict[str, Any]) -> None:
    """Where there may be markers and their like, the counters of messages disprove nothing."""
    before = None
    for entry in (-1, -1, 5):
        cursor = {
            "markDeletePosition": f"1:{entry}",
            "individuallyDeletedMessages": "[]",
            "readPosition": "1:1",
        }
        consumer = {"consumerName": "c", "msgOutCounter": 1, "unackedMessages": 1}
        seen = {"type": "Shared", "msgOutCounter": 1, "unackedMessages": 1, "consumers": [consumer]}
        stats = {"subscriptions": {"s": seen | shown.get("subscription", {})}, **shown.get("stats", {})}
        internal = {
            "ledgers": [{"ledgerId": 1, "entries": 9, "size": 9}], "cursors": {"s": cursor}, "numberOfEntries": 9,
            "totalSize": 9, "lastConfirmedEntry": "1:8", **shown.get("internal", {}),
        }  # fmt: skip
        before = observe(1000, stats, internal, before)
    assert before is not None
    assert before.record.subscriptions["s"].reset == (not shown)


def test_what_happens_during_a_look_is_no_drift() -> None:
    pair = Pair()
    pair.on_cluster(pair.cluster.subscribe("s", "Shared", permits=10))
    pair.on_cluster(pair.cluster.admin("PUT", "/subscription/idle"))
    for _ in range(4):
        pair.publish()
    pair.on_cluster(pair.cluster.ack("s", (1, 1)))
    assert not any(each.entries for each in of(pair.look(pair.publish), MirrorDrift))
    assert [observed(pair, name).backlog for name in ("s", "idle")] == [3, 4]
    acks = pair.look(lambda: pair.on_cluster(pair.cluster.ack("s", (1, 0), (1, 2))))
    assert not any(each.entries for each in of(acks, MirrorDrift))
    assert [observed(pair, name).backlog for name in ("s", "idle")] == [4, 5]
    pair.look()
    pair.assert_equal()


@pytest.mark.parametrize("follows", [True, False])
def test_the_source_decides_what_expires_as_long_as_it_is_seen(follows: bool) -> None:
    """Its broker's check comes at another time, and perhaps under another policy."""
    pair = Pair(ttlDurationDefaultInSeconds=30)
    pair.twin.configure(
        ttlDurationDefaultInSeconds=30,
        shadowTopicFollowsSource=follows,
        messageExpiryCheckIntervalInMinutes=1,
    )
    pair.on_cluster(pair.cluster.admin("PUT", "/subscription/s"))
    for _ in range(4):
        pair.publish()
    pair.look()
    for _ in range(3):
        pair.wait(290)
        pair.look()
        assert pair.twin.backlog("s") == (4 if follows else 0)
    pair.cluster.check("messageExpiry")
    pair.publish()
    expired = of(pair.look(), Expired)
    assert [(each.entries, each.cause) for each in expired] == ([(4, "message TTL")] if follows else [])
    assert pair.twin.backlog("s") == 1
    pair.wait(890)
    assert pair.twin.backlog("s") == (1 if follows else 0)
    pair.wait(80)
    assert pair.twin.backlog("s") == 0  # nobody looks any more


def test_what_expires_during_a_look_is_no_acknowledgment() -> None:
    pair = Pair(ttlDurationDefaultInSeconds=30)
    pair.on_cluster(pair.cluster.subscribe("s", "Shared", permits=10))
    for _ in range(4):
        pair.publish()
    pair.look()
    pair.wait(40)
    pair.look(lambda: pair.cluster.check("messageExpiry"))
    assert observed(pair).expired_to is None
    pair.look()
    assert observed(pair).expired_to == (1, 3)
    pair.look()
    assert observed(pair).expired_to is None


def test_a_subscription_that_differs_for_long_is_put_right() -> None:
    pair = Pair()
    pair.on_cluster(pair.cluster.subscribe("s", "Shared", permits=10))
    for _ in range(4):
        pair.publish()
    pair.look()
    pair.see(pair.twin.admin("POST", "/subscription/s/skip/2"))  # by a rule that the twin has wrong
    drift = [each for each in of(pair.look(), MirrorDrift) if each.subscription == "s"]
    assert [(each.entries, each.cause) for each in drift] == [
        (-2, "unknown: entries were passed here that the source still has")
    ]
    assert not of(pair.look(), MirrorDrift)  # nothing new
    pair.wait(119)
    assert not of(pair.look(says={"resync": True}), MirrorDrift)  # its own rules may act later on the source
    pair.wait(600)
    assert not of(pair.look(), MirrorDrift)  # no record says so
    assert pair.twin.backlog("s") == 2
    effects = pair.look(says={"resync": True})
    assert [each.cause for each in of(effects, CursorMoved)] == ["resynchronized with the source"]
    drift = [each for each in of(effects, MirrorDrift) if each.subscription == "s"]
    assert [(each.entries, each.messages, each.cause) for each in drift] == [(0, 0, "equal to the source")]
    pair.assert_equal()


@pytest.mark.parametrize("seed", range(20))
def test_only_a_record_that_says_so_puts_right_what_differs(seed: int) -> None:
    """Whatever made the twin another one, once it is known to differ for long. In between, each drift is as large as the difference."""
    draw, connected = Random(seed), set[str]()
    pair = Pair(managedLedgerMaxEntriesPerLedger=draw.choice([2, 5]))
    for name in TYPES:
        pair.on_cluster(pair.cluster.admin("PUT", f"/subscription/{name}"))
    told = 0
    for _ in range(12):
        for _ in range(draw.choice([1, 5])):
            act(pair, draw, connected)
        pair.look()
        for _ in range(draw.randrange(4)):
            name, call = draw.choice([*TYPES]), draw.choice(["skip/1", "skip/3", "skip_all", "resetcursor/0"])
            pair.see(pair.twin.admin("POST", f"/subscription/{name}/{call}"))
        told += bool(of(pair.look(), MirrorDrift))
        assert_told(pair)
        if draw.random() < 0.5:
            pair.cut()
        differ = {name for name, each in pair.twin.topic.mirrored.subscriptions.items() if each.since}
        assert not [
            each for each in of(pair.look(), CursorMoved) if each.cause == "resynchronized with the source"
        ]
        pair.cluster.now += 120_000
        pair.twin.now += 120_000
        effects = pair.look(says={"resync": True})
        moved = [each for each in of(effects, CursorMoved) if each.cause == "resynchronized with the source"]
        assert {each.subscription for each in moved} == differ
        pair.assert_equal()
    assert told


def assert_told(pair: Pair) -> None:
    """The drift is what is to be counted entry by entry."""
    cluster, twin = pair.cluster.topic, pair.twin.topic
    stored = [
        Position(id_, entry)
        for id_, info in twin.ledger.ledgers.items()
        for entry in range(info.entries or 99)
    ]
    stored = [each for each in stored if each <= twin.ledger.last_confirmed]
    for name, mirrored in twin.mirrored.subscriptions.items():
        here, there = (
            sum(each > side.cursors[name].mark_delete for each in stored) for side in (twin, cluster)
        )
        assert mirrored.drift.size == here - there
        assert bool(mirrored.since) == bool(mirrored.drift.entries or mirrored.drift.size)


SEEN_BEFORE = "missed interval: the source was last seen 900 s before, 600 s longer ago than planned"
MOVED_MEANWHILE = "race: the source moved while it was looked at"


@pytest.mark.parametrize(
    ("says", "cause"),
    [
        ({}, "unknown: entries were passed here that the source still has"),
        ({"late": 600_000}, SEEN_BEFORE),
        ({"moving": True}, MOVED_MEANWHILE),
        ({"moving": True, "resync": True}, "unknown: entries were passed here that the source still has"),
        ({"unknown": ["settings", "policies of the topic"]}, "rule unknown: the mirror could not read settings, policies of the topic"),
        ({"late": 600_000, "moving": True, "unknown": ["settings"]}, SEEN_BEFORE),
        ({"moving": True, "unknown": ["settings"]}, MOVED_MEANWHILE),
    ],
)  # fmt: skip
def test_why_a_subscription_differs(says: dict[str, Any], cause: str) -> None:
    pair = Pair()
    pair.on_cluster(pair.cluster.admin("PUT", "/subscription/s"))
    for _ in range(4):
        pair.publish()
    pair.look()
    pair.see(pair.twin.admin("POST", "/subscription/s/skip/2"))
    says = {**says, "since": pair.twin.now - 900_000}
    (drift,) = of(pair.look(says=says), MirrorDrift)
    assert (drift.entries, drift.fields, drift.messages, drift.size) == (
        -2,
        MirrorDriftFields(mark_delete=-2),
        0,
        0,
    )
    assert drift.cause == cause


def test_a_look_tells_what_moves_meanwhile() -> None:
    """Entries that come, or that are acknowledged, between its two answers."""
    pair = Pair()
    pair.on_cluster(pair.cluster.subscribe("s", "Shared", permits=10))
    pair.on_cluster(pair.cluster.admin("PUT", "/subscription/idle"))

    def moving() -> list[bool]:
        assert pair.before is not None
        return [pair.before.record.moving, observed(pair).moving, observed(pair, "idle").moving]

    pair.look(pair.publish)
    assert moving() == [True, True, True]
    pair.look()
    assert moving() == [False, False, False]
    pair.look(lambda: pair.on_cluster(pair.cluster.ack("s", (1, 0))))
    assert moving() == [False, True, False]
    pair.look()
    assert moving() == [False, False, False]


def test_a_rule_that_only_the_source_has() -> None:
    pair = Pair(ttlDurationDefaultInSeconds=30)
    pair.twin.configure(shadowTopicFollowsSource=False)
    pair.on_cluster(pair.cluster.admin("PUT", "/subscription/s"))
    pair.publish()
    pair.look()
    pair.wait(40)
    pair.on_cluster(pair.cluster.check("messageExpiry"))
    pair.publish()
    effects = pair.look(says={"late": 600_000, "resync": True})
    drift = [each for each in of(effects, MirrorDrift) if each.subscription]
    assert [(each.entries, each.fields, each.cause) for each in drift] == [
        (
            1,
            MirrorDriftFields(mark_delete=1),
            "rule unknown: one of the source passed entries up to 1:0, and none here did",
        )
    ]
    pair.wait(600)
    pair.see(pair.twin.admin("POST", "/subscription/s/skip/2"))
    (drift_,) = of(pair.look(says={"resync": True}), MirrorDrift)
    assert drift_.cause == "rule unknown: the topic has rules of its own here (shadowTopicFollowsSource)"
    assert pair.twin.backlog("s") == 0


def test_a_quota_that_acts_here_first() -> None:
    pair = Pair(
        backlogQuotaDefaultLimitBytes=150, backlogQuotaDefaultRetentionPolicy="consumer_backlog_eviction"
    )
    pair.on_cluster(pair.cluster.admin("PUT", "/subscription/s"))
    for _ in range(9):
        pair.publish()
    pair.look(evicts=True)
    pair.see(pair.twin.check("backlogQuota"))
    drift = [each for each in of(pair.look(evicts=True), MirrorDrift) if each.subscription]
    assert [each.cause for each in drift] == [
        "race: a backlog quota acted here that has yet to act on the source"
    ]
    pair.on_cluster(pair.cluster.check("backlogQuota"))
    pair.look(evicts=True)
    pair.assert_equal()


def test_the_storage_that_differs_is_told() -> None:
    pair = Pair()
    pair.publish()
    pair.look()
    assert pair.before is not None
    wrong = msgspec.structs.replace(pair.before.record, entries=3, size=1000)
    (drift,) = of(pair.see(pair.twin.do(wrong)), MirrorDrift)
    assert (drift.subscription, drift.entries, drift.size) == (
        None,
        -2,
        pair.twin.topic.ledger.total_size - 1000,
    )
    assert drift.cause == "unknown: less is stored than on the source"
    (drift,) = of(pair.see(pair.twin.do(msgspec.structs.replace(wrong, entries=1))), MirrorDrift)
    assert drift.cause == "unknown: as many entries are stored as on the source, with another size"


@pytest.mark.parametrize(
    "record",
    [
        Mirror(ledger_id=2**63 - 1),
        Mirror(ledger_id=-5, first_ledger=2**63 - 1),
        Mirror(
            subscriptions={"s": MirroredSubscription((2**63 - 1, 2**63 - 1), [(0, 0, 2**63 - 1, 2**63 - 1)])}
        ),
        Mirror(
            subscriptions={"s": MirroredSubscription((-1, -1), [(5, 5, 1, 1), (1, 2**63 - 2, 1, 2**63 - 1)])}
        ),
        Mirror(subscriptions={"s": MirroredSubscription((1, 2), expired_to=(2**63 - 1, 0))}),
    ],
)
def test_positions_that_cannot_be(record: Mirror) -> None:
    """They are clipped to what is there, whatever their size."""
    pair = Pair()
    for _ in range(3):
        pair.publish()
    pair.look()
    pair.see(pair.twin.do(record))
    assert pair.twin.topic.ledger.number_of_entries == 3
    pair.cut()
    pair.twin.wait(700)
    pair.see(pair.twin.do(record))


def test_names_that_cannot_be() -> None:
    run = shadow()
    effects = run.do(
        Mirror(
            subscriptions={"pulsar.dedup": MirroredSubscription((1, -1)), "": MirroredSubscription((1, -1))}
        )
    )
    assert len(of(effects, Unsupported)) == 2
    assert not run.topic.subscriptions
    other = Run()
    other.publish(0)
    assert "not a shadow topic" in of(other.do(Mirror()), Unsupported)[0].cause


def test_ranges_of_internal_stats() -> None:
    assert list(ranges("[(7:0..7:2],(7:4..8:1]]")) == [(7, 0, 7, 2), (7, 4, 8, 1)]
    assert list(ranges("[]")) == []


def test_consumers_that_can_not_be_connected() -> None:
    """Two of an Exclusive subscription come of a moment between two looks. One without a type is none yet."""
    run = shadow()
    store(run, 1, 0)
    both = [MirroredConsumer(name, name, permits=5) for name in "ab"]
    seen = {
        "s": MirroredSubscription((1, -1), type="Exclusive", consumers=both),
        "t": MirroredSubscription((1, -1), consumers=both[:1]),
    }
    effects = run.do(Mirror(ledger_id=1, last_confirmed=(1, 0), first_ledger=1, subscriptions=seen))
    assert [each.error for each in of(effects, Error)] == ["ConsumerBusy"]
    assert [(each.connection, each.entry_id) for each in of(effects, Message)] == [("a", 0)]
    assert not run.topic.subscriptions["t"].consumers


@pytest.mark.parametrize("type_", ["Shared", "Exclusive", None])
def test_acks_are_observed_with_consumers_and_without(type_: Any) -> None:
    run = shadow()
    for entry in range(4):
        store(run, 1, entry)
    run.broker.watch_acks()
    consumers = [] if type_ is None else [MirroredConsumer("a", "a", permits=9)]
    for mark, holes in ((-1, []), (0, [(1, 1, 1, 2)]), (3, [])):
        seen = MirroredSubscription((1, mark), holes, type=type_, consumers=consumers)
        run.do(Mirror(ledger_id=1, last_confirmed=(1, 3), first_ledger=1, subscriptions={"s": seen}))
    positions = [position for each in run.broker.take_acks() for position in each.positions]
    assert run.backlog("s") == 0
    assert {(1, 0), (1, 2)} <= set(positions)
    waits = run.do(
        Mirror(ledger_id=1, last_confirmed=(1, 9), subscriptions={"s": MirroredSubscription((1, 3))})
    )
    assert not of(waits, MirrorDrift)  # entries are on their way


def test_what_an_earlier_subscription_of_the_name_had_expired_does_not_count() -> None:
    run = shadow()
    run.configure(shadowTopicFollowsSource=False)
    for entry in range(60):
        store(run, 1, entry)

    def see(mark: int, **more: Any) -> None:
        seen = {"s": MirroredSubscription((1, mark), **more)}
        run.do(Mirror(ledger_id=1, last_confirmed=(1, 59), first_ledger=1, subscriptions=seen))

    see(-1)
    see(50, expired_to=(1, 50))
    run.admin("DELETE", "/subscription/s")
    see(10, reset=True)
    see(40)
    assert run.backlog("s") == 19


@pytest.mark.parametrize("kind", ["subscriptions", "consumers", "names that cannot be"])
def test_nothing_is_kept_of_what_is_gone(kind: str) -> None:
    run = shadow()
    store(run, 1, 0)
    for number in range(50):
        name = {"subscriptions": f"s{number}", "consumers": "s"}.get(kind, f"__{number}" if number else "")
        consumer = MirroredConsumer(f"c{number}", "c", permits=5)
        seen = {name: MirroredSubscription((1, -1), type="Shared", consumers=[consumer])}
        run.do(Mirror(ledger_id=1, last_confirmed=(1, 0), first_ledger=1, subscriptions=seen))
        if kind == "consumers":
            run.unload()
    run.do(Mirror(ledger_id=1, last_confirmed=(1, 0), first_ledger=1))
    assert run.topic.mirrored.bases == {}
    assert run.topic.mirrored.subscriptions == {}


@pytest.mark.parametrize("seed", range(20))
def test_ranges_that_overlap(seed: int) -> None:
    draw = Random(seed)

    def position() -> Position:
        return Position(draw.randrange(3), draw.randrange(-1, 4))

    given = [(position(), position()) for _ in range(draw.randrange(6))]

    def covered(ranges: Any) -> list[Position]:
        return [
            at
            for at in map(Position, *zip(*product(range(4), range(-1, 6)), strict=True))
            for low, high in ranges
            if low < at <= high
        ]

    apart = [*_apart(given)]
    assert {*covered(apart)} == {*covered(given)}
    assert len(covered(apart)) == len({*covered(apart)})
