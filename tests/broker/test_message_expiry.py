"""Expiry as 4.0.7 was recorded: a search through each subscription's cursor, and what its stats count."""

import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.commands import (
    Ack,
    Admin,
    BrokerConfig,
    Flow,
    MessageIdData,
    Publish,
    RedeliverUnacknowledgedMessages,
    Subscribe,
    SubType,
    Tick,
)
from schemas.effects import AdminResponse, Effect, Evicted, Expired, LedgerDeleted
from streaming.broker.broker import Broker
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.persistent.cleanup.message_finder import find_newest_unacked, find_newest_unacked_up_to
from streaming.broker.position import Position
from tests.broker.kit import TOPIC, BareTopic, Run, Stored, of, one, response, sent
from tests.broker.test_cut_invariance import Record, fold
from tests.broker.test_silence import Both, Patient, folded
from tests.examples import examples

EVICTION = "consumer_backlog_eviction"
LAST_IN_LEDGER = {"ledgerId": 1, "entryId": 6}
ROUNDS = [(1, 0), (1, 1), (1, 2), (1, 4), (1, 6), (1, 6)]
"""Mark-delete positions of `last_acked` after each run. The acked entries behind an expired one go with it."""


def last_acked(run: Run) -> Run:
    """Shared subscription s with seven entries, of which the last and the one at 4 are acked; 60 s have passed."""
    run.subscribe("s", "Shared", permits=10)
    for sequence_id in range(7):
        run.publish(sequence_id)
    run.ack("s", (1, 6), (1, 4))
    run.wait(60)
    return run


def by_admin(run: Run) -> list[Effect]:
    return run.admin("POST", "/subscription/s/expireMessages/5")


def of_all_by_admin(run: Run) -> list[Effect]:
    return run.admin("POST", "/all_subscription/expireMessages/5")


def by_position(run: Run) -> list[Effect]:
    return run.admin("POST", "/subscription/s/expireMessages", LAST_IN_LEDGER)


def by_policy(run: Run) -> list[Effect]:
    return run.admin("POST", "/messageTTL", 5)


def by_quota(run: Run) -> list[Effect]:
    quota = {"limitTime": 6, "policy": EVICTION}
    run.admin("POST", "/backlogQuota?backlogQuotaType=message_age", quota)
    return run.check("backlogQuota")


@pytest.mark.feature("F2", "F4")
@pytest.mark.parametrize(
    ("profile", "expire"),
    [
        *[("4.x", expire) for expire in (by_admin, of_all_by_admin, by_position, by_policy, by_quota)],
        *[("2.x", expire) for expire in (by_admin, of_all_by_admin, by_position, by_policy)],
    ],
)
def test_the_oldest_entry_only_if_the_last_one_is_acked(
    profile: str, expire: Callable[[Run], list[Effect]]
) -> None:
    run = last_acked(Run(profile=profile, preciseTimeBasedBacklogQuotaCheck=True))  # type: ignore[arg-type]
    found = []
    for _ in ROUNDS:
        expire(run)
        found.append(run.mark_delete("s"))
    assert found == ROUNDS
    stats = response(run.admin("GET", "/stats"))["subscriptions"]["s"]
    assert stats["totalMsgExpired"] == 5
    assert (run.topic.subscriptions["s"].expired, run.topic.subscriptions["s"].evicted) == (
        (0, 5) if expire is by_quota else (5, 0)
    )


@pytest.mark.feature("F2", "F4")
@pytest.mark.parametrize("expire", [by_policy, by_quota])
def test_a_seek_back_over_acks_makes_pulsar_count_too_few_expired(
    expire: Callable[[Run], list[Effect]],
) -> None:
    """Its backlog by counters is 0 for an entry that is there. The row counts the entry."""
    run = Run(preciseTimeBasedBacklogQuotaCheck=True)
    run.subscribe("s", "Shared", permits=10)
    run.fill(2)
    run.ack("s", (1, 1))
    run.seek("s", Position(1, 0))
    run.subscribe("s", "Shared", permits=2)
    run.ack("s", (1, 0), (1, 1))
    run.publish(2)
    run.wait(60)
    (entries,) = (each.entries for each in expire(run) if isinstance(each, Expired | Evicted))
    assert (entries, run.mark_delete("s")) == (1, (1, 2))
    found = run.topic.subscriptions["s"]
    assert (found.expired, found.evicted) == ((0, 1) if expire is by_quota else (1, 0))
    assert response(run.admin("GET", "/stats"))["subscriptions"]["s"]["totalMsgExpired"] == 0


@pytest.mark.feature("F2")
def test_an_unacked_last_entry_lets_a_search_through_holes_end_where_the_age_does() -> None:
    run = Run()
    run.subscribe("s", "Shared", permits=20)
    for sequence_id in range(10):
        run.publish(sequence_id, publish_time=run.now - (60_000 if sequence_id < 6 else 0))
    run.ack("s", (1, 8), (1, 1), (1, 3))
    by_admin(run)
    assert run.mark_delete("s") == (1, 5)


@pytest.mark.feature("F2")
@pytest.mark.parametrize("expire", [by_position, by_policy])
def test_a_position_in_a_closed_ledger_is_reached_at_once(expire: Callable[[Run], list[Effect]]) -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=7)
    last_acked(run)
    assert run.topic.ledger.ledgers[1].entries == 7
    expire(run)
    assert run.backlog("s") == 0


@pytest.mark.feature("F1", "F2")
def test_a_ledger_that_closed_long_ago_expires_although_its_last_entry_is_acked() -> None:
    run = last_acked(Run(managedLedgerMaxEntriesPerLedger=7))
    by_admin(run)
    assert run.backlog("s") == 0


@pytest.mark.feature("F2")
def test_a_search_through_a_cursor_ignores_when_ledgers_closed() -> None:
    """A search over the ledger would start at 1:1, whose time is in the future, and find nothing."""
    run = Run(managedLedgerMaxEntriesPerLedger=2)
    run.admin("PUT", "/subscription/s", {"ledgerId": -1, "entryId": -1})
    for sequence_id, publish_time in enumerate((0, 10**9, 0)):
        run.publish(sequence_id, publish_time=run.now - 100_000 + publish_time)
    run.wait(100)
    assert run.mark_delete("s") == (1, -1)
    run.admin("POST", "/subscription/s/expireMessages/150")
    assert run.mark_delete("s") == (2, 0)


# -- the search, against one that asks the cursor before each probe ---------------------------------------------------


def as_in_pulsar(
    ledger: ManagedLedger, cursor: ManagedCursor, matches: Callable[[Position], bool]
) -> Position | None:
    """Counts the unacked entries at and behind each probe, one by one."""
    last = ledger.last_confirmed
    found: Position | None = None

    def read(position: Position) -> bool | None:
        """Whether the entry matches. None: no unacked entry follows, so the search ends."""
        behind = position
        while behind <= last and behind in cursor.acked:
            behind = ledger.next_valid(behind)
        return matches(position) if behind <= last else None

    start = ledger.next_valid(cursor.mark_delete)
    if start > last:
        return None
    size = ledger.count(start, last, include_start=True, include_end=True)
    if not read(start):
        return None
    found = start
    at_the_end = read(last)
    if at_the_end is None or at_the_end:
        return last if at_the_end else found
    low, high = 0, size
    while True:
        middle = low + max((high - low) // 2, 1)
        position = min(ledger.position_after(start, middle), last)
        match read(position):
            case None:
                return found
            case True:
                found, low = position, middle
            case False:
                high = middle - 1
        if high <= low:
            return found


@pytest.mark.feature("F2")
@given(st.data())
def test_the_search_finds_what_pulsars_does(data: st.DataObject) -> None:
    topic = BareTopic(managedLedgerMaxEntriesPerLedger=data.draw(st.integers(1, 6)))
    cursor = topic.open()
    entries = topic.add(*[1] * data.draw(st.integers(0, 20)))
    for position in data.draw(st.permutations(entries)) if entries else []:
        if data.draw(st.booleans()):
            topic.ack(cursor, position)
    old = data.draw(st.sets(st.sampled_from(entries))) if entries else set()
    probes: list[Position] = []

    def matches(position: Position) -> bool:
        probes.append(position)
        return position in old

    found = find_newest_unacked(topic.ledger, cursor, matches)
    assert len(probes) <= 4 + math.log2(len(entries) + 1)
    assert found == as_in_pulsar(topic.ledger, cursor, old.__contains__)
    for position in entries:
        for target in (position, Position(position.ledger, -1), Position(position.ledger, 99)):
            if cursor.mark_delete < target <= topic.ledger.last_confirmed:
                up_to = find_newest_unacked_up_to(topic.ledger, cursor, target)
                assert up_to == as_in_pulsar(topic.ledger, cursor, target.__ge__)


# -- what an expiry reads ---------------------------------------------------------------------------------------------


@pytest.mark.feature("F2")
@pytest.mark.parametrize("last_is_acked", [False, True])
def test_an_expiry_reads_few_entries(last_is_acked: bool) -> None:
    run, store = Run(managedLedgerMaxEntriesPerLedger=10**6), Stored()
    run.subscribe("s", "Shared", permits=2_000)
    run.subscribe("t", "Shared")
    for sequence_id in range(2_000):
        store.add(run.publish(sequence_id, publish_time=run.now + sequence_id))
    run.ack("s", *[(1, entry) for entry in range(3, 2_000 - (not last_is_acked), 2)])
    run.now += 1_500
    run.broker = Broker.decode(run.broker.encode(), store)
    run.admin("POST", "/messageTTL", 1)
    assert (run.mark_delete("s"), run.mark_delete("t")) == (
        ((1, 0), (1, 499)) if last_is_acked else ((1, 499), (1, 499))
    )
    assert len(set(store.reads)) <= 20


# -- silence ----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F1")
@pytest.mark.parametrize("profile", ["4.x", "2.x"])
def test_each_round_of_a_silence_expires_one_more_entry(profile: str) -> None:
    both = Both(profile, ttlDurationDefaultInSeconds=3_600)  # type: ignore[arg-type]
    both.subscribe("s", "Shared", permits=10)
    for sequence_id in range(7):
        both.publish(sequence_id)
    both.ack("s", (1, 6), (1, 4))
    both.subscribe("plain")
    both.close_consumer("s")
    both.close_consumer("plain")
    found = [(e.subscription, e.after_entry, e.entries) for e in of(both.silence(1.5), Expired)]
    of_s = [("s", 0, 1), ("s", 1, 1), ("s", 2, 1), ("s", 4, 1), ("s", 6, 1)]
    assert found == [("plain", 6, 7), *of_s]


EXPIRING: dict[str, st.SearchStrategy[Any]] = {
    "ttlDurationDefaultInSeconds": st.sampled_from([0, 30, 100]),
    "messageExpiryCheckIntervalInMinutes": st.just(1),
    "backlogQuotaCheckIntervalInSeconds": st.just(60),
    "backlogQuotaDefaultLimitSecond": st.sampled_from([-1, 1, 50]),
    "backlogQuotaDefaultRetentionPolicy": st.just(EVICTION),
    "preciseTimeBasedBacklogQuotaCheck": st.booleans(),
    "managedLedgerDefaultMarkDeleteRateLimit": st.sampled_from([0, 1]),
    "defaultRetentionTimeInMinutes": st.sampled_from([0, 3, -1]),
}
SUBSCRIPTIONS: list[tuple[str, SubType, bool]] = [
    ("s", "Shared", True), ("k", "Key_Shared", True), ("reader", "Exclusive", False),
]  # fmt: skip


@st.composite
def expiring_lives(draw: st.DrawFn) -> list[Record]:
    """A topic whose newest entries are acked while older ones aren't, with silences."""
    size = draw(st.sampled_from([3, 8, 1000]))
    profile: Literal["2.x", "4.x"] = draw(st.sampled_from(["2.x", "4.x"]))
    values = draw(st.fixed_dictionaries(EXPIRING))
    ledgers = {"managedLedgerMaxEntriesPerLedger": size, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
    log: list[Record] = [(0, None, BrokerConfig(profile=profile, settings=values | ledgers))]
    for id_, (name, type_, durable) in enumerate(SUBSCRIPTIONS):
        log.append((0, TOPIC, Subscribe(connection=name, subscription=name, subType=type_, consumer_id=id_,
                                        request_id=1, durable=durable)))  # fmt: skip
        log.append((0, TOPIC, Flow(connection=name, consumer_id=id_, messagePermits=15)))
    count = 0
    for _ in range(draw(st.integers(5, 25))):
        jump = draw(st.sampled_from([0, 0, 1_000, 20_000, 70_000, 400_000]))
        id_ = draw(st.integers(0, 1))
        name = SUBSCRIPTIONS[id_][0]
        match draw(st.integers(0, 9)):
            case 0 | 1 | 2 | 3:
                for _ in range(draw(st.integers(1, 4))):
                    log.append((jump, TOPIC, Publish(producer="p", sequence_id=count, key=str(count % 3))))
                    count, jump = count + 1, 0
            case 4 | 5 | 6 if count:
                newest = draw(st.lists(st.integers(0, min(count, 6) - 1), min_size=1, max_size=3))
                ids = [MessageIdData(1 + (count - 1 - n) // size, (count - 1 - n) % size) for n in newest]
                log.append(
                    (
                        jump,
                        TOPIC,
                        Ack(connection=name, consumer_id=id_, ack_type="Individual", message_id=ids),
                    )
                )
            case 7:
                flow = Flow(connection=name, consumer_id=id_, messagePermits=draw(st.integers(1, 5)))
                again = RedeliverUnacknowledgedMessages(connection=name, consumer_id=id_)
                log.append((jump, TOPIC, flow if draw(st.booleans()) else again))
            case 8:
                path = f"/{TOPIC.replace('://', '/')}/all_subscription/expireMessages/20"
                log.append((jump, TOPIC, Admin(method="POST", path=path)))
            case _:
                log.append((jump * 10, None, Tick()))
    return log


@pytest.mark.feature("F1", "J4")
@given(expiring_lives(), st.sets(st.integers(1, 60), max_size=6))
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
def test_rounds_that_are_skipped_and_cuts_make_no_difference(log: list[Record], cuts: set[int]) -> None:
    assert folded(Broker, log) == folded(Patient, log)
    assert fold(log, cuts) == fold(log, [])


# -- 0 seconds --------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F3")
@pytest.mark.parametrize("call", ["/subscription/s/expireMessages/0", "/all_subscription/expireMessages/0"])
@pytest.mark.parametrize(("connected", "status"), [(False, 204), (True, 409)])
def test_0_seconds_expire_nothing(call: str, connected: bool, status: int) -> None:
    """The oldest entry of a connected subscription doesn't count as expired, either."""
    run = Run(managedLedgerMaxEntriesPerLedger=2)
    run.subscribe("s")
    if not connected:
        run.close_consumer("s")
    for sequence_id in range(3):
        run.publish(sequence_id)
    run.wait(60)
    assert one(run.admin("POST", call), AdminResponse).fields.status == status
    assert run.backlog("s") == 3
    assert run.topic.subscriptions["s"].last_expire == (0 if connected else run.now)


@pytest.mark.feature("G3")
def test_a_precise_age_quota_of_1_s_evicts_nothing() -> None:
    """Its target is 0.9 s, which is 0 s in whole seconds."""
    both = Both(
        preciseTimeBasedBacklogQuotaCheck=True, backlogQuotaDefaultLimitSecond=1,
        backlogQuotaDefaultRetentionPolicy=EVICTION,
    )  # fmt: skip
    both.subscribe("s")
    both.publish(0)
    assert of(both.silence(1), Evicted) == []
    both.admin("GET", "/stats")
    assert both.runs[0].topic.counters.time_evictions == 60


# -- several subscriptions --------------------------------------------------------------------------------------------


@pytest.mark.feature("F4", "C3")
@pytest.mark.parametrize("expire", [of_all_by_admin, by_policy, by_quota])
def test_trimming_comes_after_the_last_subscription(expire: Callable[[Run], list[Effect]]) -> None:
    """Otherwise the trimming would move the reader z, which then had nothing to expire in that ledger."""
    run = Run(managedLedgerMaxEntriesPerLedger=2, preciseTimeBasedBacklogQuotaCheck=True)
    run.subscribe("a")
    run.subscribe("z", durable=False)
    for sequence_id in range(5):
        run.publish(sequence_id)
    run.wait(60)
    effects = expire(run)
    kind = Evicted if expire is by_quota else Expired
    moves = [effect for effect in effects if isinstance(effect, kind | LedgerDeleted)]
    assert [type(move) for move in moves[-2:]] == [LedgerDeleted] * 2
    assert of(moves[:-2], LedgerDeleted) == []
    stats = response(run.admin("GET", "/stats"))["subscriptions"]
    assert (stats["a"]["totalMsgExpired"], stats["z"]["totalMsgExpired"]) == (5, 5)


# -- the age quota ----------------------------------------------------------------------------------------------------


@pytest.mark.feature("F4", "G3")
def test_a_precise_age_quota_counts_as_expired_from_when_the_topic_was_loaded() -> None:
    run = Run(preciseTimeBasedBacklogQuotaCheck=True)
    run.subscribe("s")
    for sequence_id in range(3):
        run.publish(sequence_id)
    run.wait(60)
    assert one(by_quota(run), Evicted).entries == 3
    stats = response(run.admin("GET", "/stats"))["subscriptions"]["s"]
    assert (stats["totalMsgExpired"], stats["lastExpireTimestamp"]) == (3, 0)
    assert run.topic.subscriptions["s"].evicted == 3
    run.unload()
    assert response(run.admin("GET", "/stats"))["subscriptions"]["s"]["totalMsgExpired"] == 0


# -- pending entries that expire --------------------------------------------------------------------------------------


def unacked(run: Run) -> list[int]:
    """The unacked messages of each consumer of s, then those of the subscription."""
    subscription = run.topic.subscriptions["s"]
    assert subscription.dispatcher is not None
    return [
        *(consumer.unacked for consumer in subscription.consumers),
        subscription.dispatcher.unacked_messages,
    ]


def expired_while_pending() -> Run:
    """Two consumers of s with three pending messages each and no permits left. All of them have expired."""
    run = Run()
    for id_ in (1, 2):
        run.subscribe("s", "Shared", id_=id_, permits=3)
    for sequence_id in range(6):
        run.publish(sequence_id)
    run.wait(60)
    run.admin("POST", "/messageTTL", 5)
    run.admin("DELETE", "/messageTTL")
    assert run.backlog("s") == 0
    assert unacked(run) == [3, 3, 6]
    return run


def pending_of(run: Run, id_: int) -> list[Position]:
    return list(run.topic.subscriptions["s"].consumer("s", id_).pending)


@pytest.mark.feature("D5", "E5")
@pytest.mark.parametrize("type_", ["Shared", "Key_Shared"])
def test_redelivery_of_all_resets_the_unacked_messages(type_: SubType) -> None:
    run = Run(maxUnackedMessagesPerSubscription=7)
    run.subscribe("s", type_, permits=10)
    for sequence_id in range(6):
        run.publish(sequence_id, key="k")
    run.wait(60)
    run.admin("POST", "/messageTTL", 5)
    run.flow("s", 1)
    assert sent(run.publish(6, key="k")) == [6]
    assert unacked(run) == [7, 7], "the expired entries stay counted"
    assert run.publish(7, key="k")
    assert sent(run.redeliver("s")) == [6, 7]
    assert unacked(run) == [2, 2]


@pytest.mark.feature("D5", "E5")
def test_acks_of_expired_entries_count_until_the_next_attempt_to_read() -> None:
    run = expired_while_pending()
    first, *others = pending_of(run, 1)
    run.ack("s", first)
    assert unacked(run) == [2, 3, 5]
    run.flow("s", 1, id_=2)
    assert pending_of(run, 1) == pending_of(run, 2) == []
    run.ack("s", *others)
    assert unacked(run) == [2, 3, 5]


@pytest.mark.feature("D5", "E4")
@pytest.mark.parametrize(("classic", "left"), [(False, 3), (True, 0)])
def test_key_shared_before_4_0_never_forgets_what_expired(classic: bool, left: int) -> None:
    run = Run(subscriptionKeySharedUseClassicPersistentImplementation=classic)
    run.subscribe("s", "Key_Shared", permits=3)
    for sequence_id in range(3):
        run.publish(sequence_id, key="k")
    run.wait(60)
    run.admin("POST", "/messageTTL", 5)
    run.flow("s", 1)
    run.ack("s", (1, 0), (1, 1), (1, 2))
    assert unacked(run) == [left, left]


@pytest.mark.feature("D5", "E5")
def test_a_redelivery_that_resends_nothing_reads_nothing() -> None:
    run = expired_while_pending()
    first, *others = pending_of(run, 1)
    run.redeliver("s", first)
    assert unacked(run) == [2, 3, 5]
    assert run.topic.subscriptions["s"].dispatcher.counts == {}  # type: ignore[union-attr]
    run.ack("s", *others)
    assert unacked(run) == [0, 3, 3]
    run.redeliver("s")
    assert pending_of(run, 2) == [], "a redelivery of all reads, whatever there is"


@pytest.mark.feature("D5", "E5")
def test_a_consumer_that_leaves_nothing_to_resend_makes_the_others_read_nothing() -> None:
    run = expired_while_pending()
    run.close_consumer("s", id_=2)
    assert unacked(run) == [3, 3]
    run.ack("s", *pending_of(run, 1))
    assert unacked(run) == [0, 0]


@pytest.mark.feature("D5", "E5")
def test_a_redelivery_of_expired_entries_reads_if_it_unblocks_the_consumer() -> None:
    run = Run(maxUnackedMessagesPerConsumer=3)
    run.subscribe("s", "Shared", permits=3)
    for sequence_id in range(3):
        run.publish(sequence_id)
    run.wait(60)
    run.admin("POST", "/messageTTL", 5)
    run.flow("s", 5)
    run.publish(3)
    assert sent(run.redeliver("s", (1, 0))) == [3]


# -- a terminated topic -----------------------------------------------------------------------------------------------


@pytest.mark.feature("C2")
def test_the_last_ledger_of_a_terminated_topic_counts_as_a_whole_once_it_is_loaded_again() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=3)
    for name in ("all", "first", "none"):
        run.subscribe(name)
    for sequence_id in range(5):
        run.publish(sequence_id, payload="x" * 50)
    run.ack("all", (2, 1), cumulative=True)
    run.ack("first", (1, 2), cumulative=True)

    def sizes() -> dict[str, int]:
        stats = response(run.admin("GET", "/stats"))
        return {name: found["backlogSize"] for name, found in stats["subscriptions"].items()} | {
            "topic": stats["backlogSize"]
        }

    run.admin("POST", "/terminate")
    before = sizes()
    ledgers = run.topic.ledger.ledgers
    size_of_last = run.topic.ledger.total_size - ledgers[1].size
    assert before == {
        "all": 0,
        "first": size_of_last,
        "none": 5 * size_of_last // 2,
        "topic": 5 * size_of_last // 2,
    }
    run.unload()
    assert sizes() == before | {"all": size_of_last}
    run.subscribe("none")
    run.ack("none", (2, 1), cumulative=True)
    run.admin("DELETE", "/subscription/first?force=true")
    assert sizes() == {"all": size_of_last, "none": size_of_last, "topic": 0}


@pytest.mark.feature("C2")
def test_messages_of_a_terminated_topic_expire_when_it_is_loaded_again_behind_its_last_ledger() -> None:
    # Its ledger got too old and was closed, and an empty one was dropped with the load.
    run = Run(ttlDurationDefaultInSeconds=30, managedLedgerMaxLedgerRolloverTimeMinutes=10)
    run.subscribe("s")
    run.publish(0)
    run.admin("POST", "/terminate")
    run.admin("POST", "/maxConsumers", 5)  # with a policy of its own, a load applies the policies
    run.wait(1_200)
    assert one(run.unload(), Expired).entries == 1
    assert run.mark_delete("s") == (1, 0)
