"""The worked cases of docs/rules/quotas.md §11, by number.

All of them are here. Case 2 is told of a Key_Shared subscription; here it is Shared, which keeps the same pending acks.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.effects import CloseProducer, Error, Evicted, SendError, SendReceipt
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.persistent.cleanup.backlog_quota import _Slowest, over_age
from streaming.broker.policies.hierarchy import default_quota
from streaming.broker.position import Position
from tests.broker.kit import BareTopic, Run, of, one

EVICTION = "consumer_backlog_eviction"
HOLD = "producer_request_hold"
EXCEPTION = "producer_exception"


def limited(
    size: int | None = None, time: int | None = None, policy: str = EVICTION, *, per_ledger: int = 5, **settings: Any
) -> Run:  # fmt: skip
    """A broker with quotas (bytes, seconds) on the topic and `per_ledger` entries a ledger."""
    run = Run(managedLedgerMaxEntriesPerLedger=per_ledger, **settings)
    limit(run, size, time, policy)
    return run


def limit(run: Run, size: int | None = None, time: int | None = None, policy: str = EVICTION) -> None:
    if size is not None:
        run.admin("POST", "/backlogQuota", {"limitSize": size, "policy": policy})
    if time is not None:
        run.admin("POST", "/backlogQuota?backlogQuotaType=message_age", {"limitTime": time, "policy": policy})


def check(run: Run) -> list[Evicted]:
    """A round of the periodic check; the moves it made."""
    return of(run.check("backlogQuota"), Evicted)


def backlog_size(run: Run) -> int:
    return run.topic.backlog_size()


def pending(run: Run, name: str) -> int:
    """Pending acks of the subscription's only consumer."""
    (consumer,) = run.topic.subscriptions[name].consumers
    assert len(consumer.pending) == consumer.unacked
    return consumer.unacked


def ledgers(run: Run) -> list[int]:
    return list(run.topic.ledger.ledgers)


@pytest.mark.feature("G3")
def test_backlog_quota_case_01_two_equally_slow_cursors_are_each_moved() -> None:
    run = limited(10_240)
    run.subscribe("c1")
    run.subscribe("c2")
    run.fill(20)
    assert backlog_size(run) == 20_480
    first, second = check(run)
    assert (first.subscription, first.after_ledger, first.after_entry, first.entries) == ("c1", 3, 0, 11)
    assert (second.subscription, second.after_ledger, second.after_entry, second.entries) == ("c2", 3, 0, 11)
    assert "20480 B" in first.cause
    assert "20480 B" in second.cause, "the first move doesn't shrink what the other cursor holds"
    assert "9216 B" in first.cause
    assert backlog_size(run) == 9216
    assert [run.backlog("c1"), run.backlog("c2")] == [9, 9]
    assert ledgers(run) == [3, 4, 5]
    assert run.topic.ledger.total_size == 10_240
    assert run.topic.counters.size_evictions == 1


@pytest.mark.feature("G3")
def test_backlog_quota_case_02_evicted_entries_are_pending_no_more() -> None:
    run = limited(10_240, removePendingAcksOnMarkDeleteMove=True)
    run.subscribe("s", "Shared", permits=1000)
    run.fill(20)
    assert pending(run, "s") == 20
    check(run)
    assert pending(run, "s") == 9


@pytest.mark.feature("G1", "G3")
def test_backlog_quota_case_03_by_age_whole_closed_ledgers_go() -> None:
    run = limited(time=2, removePendingAcksOnMarkDeleteMove=True)
    run.subscribe("c1", "Shared", permits=1000)
    run.subscribe("c2")
    run.fill(14)
    assert [run.topic.ledger.ledgers[id_].entries for id_ in (1, 2)] == [5, 5]
    assert run.cursor("c1").read_position == (3, 4)
    run.wait(2)
    assert check(run) == []
    run.wait(0.001)
    check(run)
    assert [run.backlog("c1"), run.backlog("c2")] == [4, 4]
    assert run.cursor("c1").read_position == (3, 4)
    assert pending(run, "c1") == 4
    assert ledgers(run) == [3]


@pytest.mark.feature("G1", "G3")
def test_backlog_quota_case_04_by_age_precisely() -> None:
    run = limited(time=2, preciseTimeBasedBacklogQuotaCheck=True)
    run.subscribe("c1")
    run.subscribe("c2")
    run.fill(9)
    run.wait(4)
    check(run)
    assert [run.backlog("c1"), run.backlog("c2")] == [0, 0]
    assert run.topic.counters.time_evictions == 1


@pytest.mark.feature("G1", "G3")
def test_backlog_quota_case_05_a_ledger_that_closed_later_stays() -> None:
    run = limited(time=5)
    run.subscribe("s")
    run.fill(5)
    run.wait(5)
    run.fill(9, first=5)
    run.wait(2)
    check(run)
    assert run.backlog("s") == 9


@pytest.mark.feature("G1", "G3")
def test_backlog_quota_case_06_an_empty_ledger_behind_the_last_entry() -> None:
    run = limited(time=2, preciseTimeBasedBacklogQuotaCheck=True)
    run.subscribe("s")
    run.fill(1)
    run.unload()
    run.wait(4)
    check(run)
    assert run.backlog("s") == 0
    assert ledgers(run) == [1, 2]


@pytest.mark.feature("G1")
def test_backlog_quota_case_07_readers_hold_nothing_back() -> None:
    run = limited(10_240, policy=EXCEPTION)
    run.subscribe("reader", durable=False)
    run.fill(20)
    assert run.check("backlogQuota") == []
    assert backlog_size(run) == 0
    assert list(run.topic.producers) == ["p"]
    one(run.publish(20), SendReceipt)
    assert len(ledgers(run)) == 1


def refusals_after_check(policy: str, entries: int) -> set[str]:
    """A connected producer and one of the short form are closed by the check; how they are refused afterwards."""
    run = limited(10_240, policy=policy)
    run.subscribe("s")
    run.create_producer("q")
    run.fill(entries)
    assert len(of(run.check("backlogQuota"), CloseProducer)) == 2
    assert run.topic.producers == {}
    refusals = {one(run.create_producer("q"), Error).error, one(run.publish(entries), SendError).error}
    assert run.topic.ledger.number_of_entries == entries
    return refusals


@pytest.mark.feature("G1", "G2")
@pytest.mark.parametrize("entries", [11, 10])
def test_backlog_quota_case_08_hold_closes_and_refuses_producers(entries: int) -> None:
    assert refusals_after_check(HOLD, entries) == {"ProducerBlockedQuotaExceededError"}


@pytest.mark.feature("G1", "G2")
def test_backlog_quota_case_09_exception_closes_and_refuses_producers() -> None:
    assert refusals_after_check(EXCEPTION, 11) == {"ProducerBlockedQuotaExceededException"}


@pytest.mark.feature("G2")
@pytest.mark.parametrize("deduplication", [False, True])
def test_backlog_quota_case_10_producers_return_when_all_is_acked(deduplication: bool) -> None:
    run = limited(10_240, policy=EXCEPTION, brokerDeduplicationEnabled=deduplication)
    run.subscribe("s")
    run.fill(10)
    if deduplication:  # the first round takes a snapshot instead, see case 18
        assert run.check("backlogQuota") == []
        assert run.mark_delete(DEDUP_CURSOR) == run.topic.ledger.last_confirmed
    run.check("backlogQuota")
    assert run.topic.producers == {}
    assert one(run.publish(10), SendError).error == "ProducerBlockedQuotaExceededException"
    run.ack("s", (2, 4), cumulative=True)
    assert run.check("backlogQuota") == []
    one(run.publish(11), SendReceipt)
    assert run.check("backlogQuota") == []
    assert list(run.topic.producers) == ["p"]


def oldest(run: Run) -> tuple[float, str] | None:
    """Age in seconds of the oldest unacked entry, as far as it is known, and whose it is."""
    found = run.topic.oldest
    return None if found is None else ((run.now - found.timestamp) / 1000, found.cursor)


@pytest.mark.feature("G1")
def test_backlog_quota_case_11_without_precision_an_open_ledger_has_no_age() -> None:
    run = limited(per_ledger=50)
    run.subscribe("slow")
    run.subscribe("fast")
    run.fill(3)
    run.ack("fast", (1, 0), cumulative=True)
    run.wait(10)
    run.check("backlogQuota")
    assert oldest(run) is None
    run.unload()
    run.wait(10)
    run.check("backlogQuota")
    assert oldest(run) == (10, "slow")


@pytest.mark.feature("G3")
@pytest.mark.parametrize(("entries", "skipped"), [(11, 2), (12, 3), (10, 1)])
def test_backlog_quota_case_12_one_cursor_goes_down_to_nine_tenths(entries: int, skipped: int) -> None:
    run = limited(10_240)
    run.subscribe("s")
    run.fill(entries)
    assert one(check(run), Evicted).entries == skipped
    assert backlog_size(run) == 9216


class Moving:
    """As much of a cursor as eviction needs to find the slowest one."""

    def __init__(self, key: int, *, durable: bool) -> None:
        self.key, self.durable = key, durable


@given(
    cursors=st.lists(st.builds(Moving, st.integers(0, 4), durable=st.sampled_from([True, True, False])), max_size=9),
    moves=st.lists(st.integers(0, 4), max_size=12),
)  # fmt: skip
def test_the_slowest_of_cursors_that_move(cursors: list[Moving], moves: list[int]) -> None:
    topic: Any = SimpleNamespace(cursors=dict(enumerate(cursors)))
    durable = [cursor for cursor in cursors if cursor.durable]
    slowest = _Slowest(topic)
    first: Any = slowest.first()
    oldest: Any = min(durable, key=lambda cursor: cursor.key, default=None)
    assert first is oldest
    for move in moves if durable else []:
        moved = first
        moved.key += move
        found: Any = slowest.first()
        assert found.key == min(cursor.key for cursor in durable)
        assert (found is moved) == (moved.key == found.key)
        first = found


@pytest.mark.feature("G3")
def test_backlog_quota_case_13_one_skip_a_round() -> None:
    run = limited(15_360)
    run.subscribe("s")
    run.fill(17)
    assert one(check(run), Evicted).entries == 3
    assert backlog_size(run) == 14_336
    assert check(run) == []


@pytest.mark.feature("G3")
def test_backlog_quota_case_14_a_stall_by_uneven_sizes() -> None:
    run = limited(5000, per_ledger=50)
    run.subscribe("s")
    run.fill(9, 100)
    run.fill(1, 10_000, first=9)
    assert backlog_size(run) == 10_900
    assert one(check(run), Evicted).entries == 5
    assert run.mark_delete("s") == (1, 4)
    assert backlog_size(run) == 5450
    for _ in range(3):
        assert check(run) == []
    assert backlog_size(run) == 5450


@pytest.mark.feature("G3")
@pytest.mark.parametrize("policy", [EVICTION, HOLD, EXCEPTION])
def test_backlog_quota_case_15_an_entry_over_the_limit_is_never_evicted(policy: str) -> None:
    run = limited(5000, policy=policy)
    run.subscribe("s")
    run.fill(1, 6000)
    for _ in range(3):
        assert check(run) == []
    assert run.backlog("s") == 1
    blocked = bool(of(run.create_producer("q"), Error))
    assert blocked == (policy != EVICTION)


@pytest.mark.feature("G3")
@pytest.mark.parametrize(
    ("size", "skipped", "mark_delete", "left"), [(6000, 1, (1, 1), 8000), (10_000, None, (1, -1), 10_000)]
)
def test_backlog_quota_case_16_individual_acks(
    size: int, skipped: int | None, mark_delete: tuple[int, int], left: int
) -> None:
    run = limited(size, per_ledger=50)
    run.subscribe("s")
    run.fill(10, 1000)
    run.ack("s", (1, 1), (1, 3), (1, 5), (1, 7))
    assert backlog_size(run) == 10_000
    assert run.backlog("s") == 6
    assert [move.entries for move in check(run)] == ([] if skipped is None else [skipped])
    assert run.mark_delete("s") == mark_delete
    assert backlog_size(run) == left
    assert run.backlog("s") == 6 - (skipped or 0)


@pytest.mark.feature("G3")
def test_backlog_quota_case_17_a_cursor_without_backlog_stays() -> None:
    run = limited(10_240)
    run.subscribe("a")
    run.subscribe("b")
    run.fill(20)
    run.ack("a", (4, 4), cumulative=True)
    at_end = run.mark_delete("a")
    move = one(check(run), Evicted)
    assert (move.subscription, move.entries) == ("b", 11)
    assert run.mark_delete("a") == at_end
    assert backlog_size(run) == 9216


def slow_deduplication(policy: str) -> Run:
    """12 entries, the last snapshot after the second one, a subscription that has the first two ledgers behind it."""
    run = limited(5120, policy=policy, brokerDeduplicationEnabled=True)
    run.subscribe("s")
    run.create_producer("q")
    run.fill(2)
    run.check("deduplicationSnapshot")
    assert run.mark_delete(DEDUP_CURSOR) == (1, 1)
    assert run.cursor(DEDUP_CURSOR).properties == {"p": 1}
    run.fill(10, first=2)
    run.ack("s", (2, 4), cumulative=True)
    assert run.mark_delete("s") == (2, 4)
    assert backlog_size(run) == 10_240
    assert run.backlog(DEDUP_CURSOR) == 10
    return run


@pytest.mark.feature("A4", "G3")
def test_backlog_quota_case_18_the_deduplication_cursor_is_evicted_too() -> None:
    run = slow_deduplication(EVICTION)
    move = one(check(run), Evicted)
    assert (move.subscription, move.entries) == (DEDUP_CURSOR, 5)
    assert run.mark_delete(DEDUP_CURSOR) == (2, 1)
    assert run.cursor(DEDUP_CURSOR).properties == {}
    assert backlog_size(run) == 5120
    assert check(run) == []
    assert backlog_size(run) == 5120


@pytest.mark.feature("A4", "G2")
def test_backlog_quota_case_18_the_deduplication_cursor_spares_the_producers_a_round() -> None:
    run = slow_deduplication(EXCEPTION)
    assert run.check("backlogQuota") == []
    assert sorted(run.topic.producers) == ["p", "q"]
    assert one(run.create_producer("r", 2), Error).error == "ProducerBlockedQuotaExceededException"


@pytest.mark.feature("G3")
def test_backlog_quota_case_19_a_limit_of_zero_evicts_everything() -> None:
    run = limited(0)
    run.subscribe("s")
    assert check(run) == []
    assert run.topic.counters.size_evictions == 1
    run.fill(7)
    assert one(check(run), Evicted).entries == 7
    assert run.backlog("s") == 0


@pytest.mark.feature("G1")
def test_backlog_quota_case_19_a_negative_limit_is_off() -> None:
    run = limited(-1)
    run.subscribe("s")
    run.fill(20)
    assert check(run) == []
    assert run.topic.counters.size_evictions == 0


@pytest.mark.feature("G1", "G3")
def test_backlog_quota_case_20_the_last_ledger_with_entries_stays_while_the_open_one_is_empty() -> None:
    run = limited(time=60, per_ledger=50)
    run.subscribe("s")
    run.fill(1)
    run.unload()
    run.wait(3600)
    assert run.mark_delete("s") == (1, -1)
    assert check(run) == []
    assert run.backlog("s") == 1
    run.fill(1, first=1)
    check(run)
    assert run.mark_delete("s") == (2, -1)


@pytest.mark.feature("G1")
def test_the_age_behind_a_ledger_acked_to_its_end_is_that_of_the_next() -> None:
    """Retention keeps the first ledger, and the mark-delete position stays at its last entry."""
    run = Run(
        managedLedgerMaxEntriesPerLedger=5, defaultRetentionTimeInMinutes=-1, defaultRetentionSizeInMB=-1
    )
    run.subscribe("s")
    run.fill(5)
    run.wait(10)
    run.fill(6, first=5)
    run.ack("s", (1, 3), cumulative=True)
    check(run)
    first = run.topic.oldest
    run.ack("s", (1, 4), cumulative=True)
    check(run)
    second = run.topic.oldest
    assert first is not None
    assert second is not None
    assert (first.position.ledger, second.position.ledger) == (1, 1)
    assert second.timestamp - first.timestamp == 10_000


def test_the_default_limit_in_gigabytes() -> None:
    for gigabytes in (0.5, 1, 3):
        run = Run(backlogQuotaDefaultLimitGB=gigabytes)
        assert default_quota(run.broker._ctx.config).limitSize == gigabytes * 1024**3


def test_age_eviction_moves_the_slowest_cursor_over_a_closed_ledger() -> None:
    bare = BareTopic()
    bare.add(10)
    cursor = bare.open()
    assert over_age(bare.topic, 60, cursor) is None  # its ledger is open
    bare.ctx.clock += 5_000
    bare.roll_over()
    closed = bare.ctx.clock
    assert over_age(bare.topic, 60, cursor) is None  # nothing is after it
    bare.ctx.clock += 5_000
    bare.add(10)
    assert over_age(bare.topic, 60, cursor) == (closed + 60_001, Position(bare.ledger.current, -1))
    assert over_age(bare.topic, 60, None) is None
