"""The worked cases of docs/rules/ttl.md §9, by number.

Left out:

* 3: additionalSystemCursorNames isn't built.
* 5, its first half: test_limits_of_stores.py has broker timestamps.
* 8: lost data (autoSkipNonRecoverableData) isn't built.
* 15, overlapping calls on one monitor: a broker that is a fold has none; calls one after the other stand for them.
"""

from typing import Any

import pytest

from schemas.effects import AdminResponse, Expired
from streaming.broker.broker import Broker
from tests.broker.kit import Run, Stored, of, one


def at(run: Run, *seconds: float) -> None:
    """Publish one entry for each of these publish times."""
    for sequence_id, time in enumerate(seconds):
        run.publish(sequence_id, publish_time=int(time * 1000))


def with_subscription(*, ttl: int | None = None, **settings: Any) -> Run:
    """A broker at 0 s with a subscription s without consumers."""
    run = Run(now=0, **settings)
    create_subscription(run, "s")
    if ttl is not None:
        run.admin("POST", "/messageTTL", ttl)
    return run


def create_subscription(run: Run, name: str) -> None:
    run.admin("PUT", f"/subscription/{name}", {"ledgerId": -1, "entryId": -1})


def expire(run: Run, seconds: int) -> int:
    """The admin's call on s, which takes the per-subscription path; its HTTP status."""
    effects = run.admin("POST", f"/subscription/s/expireMessages/{seconds}")
    status = one(effects, AdminResponse).fields.status
    assert isinstance(status, int)
    return status


@pytest.mark.feature("F2")
def test_ttl_case_01_expiry_stops_at_the_last_entry_not_in_the_next_ledger() -> None:
    run = with_subscription(ttl=1)
    at(run, *[0] * 50)
    run.unload()
    assert list(run.topic.ledger.ledgers) == [1, 2]
    assert run.mark_delete("s") == (1, -1)
    run.wait(2)
    run.check("messageExpiry")
    assert run.mark_delete("s") == (1, 49)


@pytest.mark.feature("F1")
def test_ttl_case_02_entries_expire_after_their_time() -> None:
    run = with_subscription(ttl=5)
    at(run, *[0] * 10)
    run.wait(4)
    run.check("messageExpiry")
    assert run.backlog("s") == 10
    run.wait(3)
    run.check("messageExpiry")
    assert run.backlog("s") == 0


@pytest.mark.feature("F1")
def test_ttl_case_04_each_policy_update_checks_once() -> None:
    run = with_subscription()
    run.wait(20)
    at(run, 0)
    update = run.namespace("POST", "messageTTL", 10)
    assert one(update, Expired).policy == "messageTTL 10 s (namespace)"
    at(run, 13)
    update = run.admin("POST", "/messageTTL", 5)
    assert one(update, Expired).policy == "messageTTL 5 s (topic)"
    assert run.backlog("s") == 0


@pytest.mark.feature("F1")
def test_in_4_2_a_policy_update_checks_if_it_changes_the_ttl() -> None:
    """Since the topic was loaded: `make parity PULSAR=4.2.4 KIND=partitions SEED=7006`."""
    run = Run(profile="4.2", ttlDurationDefaultInSeconds=10)
    run.subscribe("s")

    def expired(method: str, call: str, body: Any = None) -> bool:
        run.publish(run.request(), publish_time=run.now - 100_000)
        return bool(of(run.admin(method, call, body), Expired))

    assert expired("POST", "/maxConsumers", 5)
    assert not expired("POST", "/maxConsumers", 6)
    assert not expired("POST", "/messageTTL", 10)
    assert expired("POST", "/messageTTL", 20)
    assert not expired("POST", "/messageTTL", 0)
    assert not expired("POST", "/maxConsumers", 7)
    assert expired("DELETE", "/messageTTL")
    assert not expired("DELETE", "/messageTTL")
    run.unload()
    assert run.backlog("s") == 0  # it has policies of its own
    assert not expired("DELETE", "/maxConsumers")
    run.unload()
    assert expired("POST", "/maxConsumers", 5)


@pytest.mark.feature("F2")
def test_ttl_case_05_publish_times_are_searched_when_there_are_no_broker_timestamps() -> None:
    run = with_subscription()
    at(run, 1, 2, 3)
    run.wait(10)
    run.admin("POST", "/subscription/s/resetcursor/5000")
    assert run.mark_delete("s") == (1, 2)


@pytest.mark.feature("F2")
def test_ttl_case_06_a_search_finds_acked_entries_too() -> None:
    run = with_subscription()
    at(run, 1, 2, 3, 4)
    run.subscribe("s")
    run.ack("s", (1, 3))
    run.admin("POST", "/subscription/s/resetcursor/5000")
    assert run.mark_delete("s") == (1, 3)


@pytest.mark.feature("F2")
def test_ttl_case_07_the_close_time_of_ledgers_outdoes_a_wrong_client_clock() -> None:
    run = with_subscription(managedLedgerMaxEntriesPerLedger=1)
    run.wait(1)
    at(run, *[10 * 86_400] * 10)
    assert len(run.topic.ledger.ledgers) == 11
    run.wait(1)
    assert expire(run, 1) == 204
    assert run.backlog("s") == 10
    run.wait(0.001)
    assert expire(run, 1) == 204
    assert run.backlog("s") == 0


@pytest.mark.feature("F2")
@pytest.mark.parametrize(("timestamp", "left"), [(89_999, 0), (90_000, 1)])
def test_ttl_case_09_older_means_strictly_older(timestamp: int, left: int) -> None:
    run = with_subscription(ttl=10)
    run.publish(0, publish_time=timestamp)
    run.wait(100)
    run.check("messageExpiry")
    assert run.backlog("s") == left


@pytest.mark.feature("F3", "F4")
def test_ttl_case_10_one_position_for_all_subscriptions() -> None:
    run = with_subscription(ttl=10)
    for name in "abc":
        run.subscribe(name)
    at(run, 80, 85, 95, 99)
    run.ack("b", (1, 0), cumulative=True)
    run.ack("b", (1, 2))
    run.ack("c", (1, 3), cumulative=True)
    run.wait(100)
    run.check("messageExpiry")
    assert [run.mark_delete(name) for name in "abc"] == [(1, 1), (1, 2), (1, 3)]
    assert [run.topic.subscriptions[name].expired for name in "abc"] == [2, 1, 0]
    assert [run.topic.subscriptions[name].last_expire for name in "abc"] == [100_000] * 3


@pytest.mark.feature("F2")
def test_ttl_case_11_a_young_head_keeps_everything_behind_it() -> None:
    run = with_subscription(ttl=10)
    at(run, 200, *[1] * 50)
    run.wait(100)
    assert run.check("messageExpiry") == []
    run.wait(110)
    assert run.check("messageExpiry") == []
    run.wait(0.001)
    assert one(run.check("messageExpiry"), Expired).entries == 51
    assert run.backlog("s") == 0


@pytest.mark.feature("F3")
@pytest.mark.parametrize(
    ("backlog", "age", "by_subscription"),
    [(999, 140, False), (999, 150, False), (999, 151, True), (1000, 140, True)],
)
def test_ttl_case_12_the_almost_caught_up_are_left_alone(
    backlog: int, age: int, by_subscription: bool
) -> None:
    for profile, path in (("4.x", "admin"), ("2.x", "periodic"), ("4.x", "periodic")):
        run = Run(now=0, profile=profile)  # type: ignore[arg-type]
        run.subscribe("s")
        run.wait(1000)
        at(run, 1000 - age, *[1000] * (backlog - 1))
        if path == "admin":
            assert expire(run, 100) == (204 if by_subscription else 409)
        else:
            run.namespace("POST", "messageTTL", 100)
        shared_position = (profile, path) == ("4.x", "periodic")
        assert run.topic.subscriptions["s"].expired == (by_subscription or shared_position)
        assert run.backlog("s") == backlog - (by_subscription or shared_position)


def two_ledgers(run: Run, last_of_first: float) -> None:
    """Ledger 1 with the times 0…8 s and `last_of_first`, closed at 9 s; ledger 2, open, with 95 s; now it is 100 s."""
    run.wait(9)
    at(run, *range(9), last_of_first, 95)
    assert run.topic.ledger.ledgers[1].timestamp == 9_000
    assert run.topic.ledger.last_confirmed == (2, 0)
    run.wait(91)


@pytest.mark.feature("F2")
def test_ttl_case_13_the_search_starts_at_the_end_of_a_ledger_closed_long_ago() -> None:
    run = with_subscription(ttl=10, managedLedgerMaxEntriesPerLedger=10)
    two_ledgers(run, 9)
    run.check("messageExpiry")
    assert run.mark_delete("s") == (1, 9)


@pytest.mark.feature("F2")
def test_ttl_case_14_a_wrong_time_at_that_end_stops_the_periodic_check_only() -> None:
    run = with_subscription(ttl=10, managedLedgerMaxEntriesPerLedger=10)
    two_ledgers(run, 10_000)
    assert run.check("messageExpiry") == []
    assert run.mark_delete("s") == (1, -1)
    assert expire(run, 10) == 204
    assert run.mark_delete("s") == (1, 9)


@pytest.mark.feature("F3", "F4")
def test_ttl_case_15_one_search_for_all_subscriptions() -> None:
    run, store = with_subscription(ttl=10), Stored()
    create_subscription(run, "t")
    for sequence_id in range(3):
        store.add(run.publish(sequence_id))
    run.broker = Broker.decode(run.broker.encode(), store)
    run.wait(11)
    assert [moved.subscription for moved in of(run.check("messageExpiry"), Expired)] == ["s", "t"]
    assert store.reads.count((1, 0)) == 1  # type: ignore[arg-type]


@pytest.mark.feature("F3", "F4")
def test_ttl_case_15_calls_in_a_row_count_an_entry_once() -> None:
    run = with_subscription()
    at(run, 0, 0, 0)
    run.wait(11)
    for _ in range(3):
        expire(run, 10)
    assert run.topic.subscriptions["s"].expired == 3


@pytest.mark.feature("F1")
def test_ttl_case_16_zero_is_a_value_and_a_negative_one_is_refused() -> None:
    run = with_subscription()
    at(run, 0)
    run.admin("POST", "/messageTTL", 0)
    run.namespace("POST", "messageTTL", 60)
    run.wait(61)
    assert run.check("messageExpiry") == []
    for refused in (run.admin("POST", "/messageTTL", -1), run.namespace("POST", "messageTTL", -1)):
        assert one(refused, AdminResponse).fields.status == 412
    effects = run.admin("DELETE", "/messageTTL")
    assert one(effects, Expired).policy == "messageTTL 60 s (namespace)"


# -- what no case says --------------------------------------------------------------------------------------------


@pytest.mark.feature("F2")
def test_a_backlog_whose_entries_were_trimmed_is_left_alone() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=1, trimAtRolloverSparesClosedLedger=False)
    run.publish(0)
    assert list(run.topic.ledger.ledgers) == [2]
    run.subscribe("s")
    run.wait(1000)
    assert expire(run, 10) == 409
    assert run.backlog("s") in (0, 1)


@pytest.mark.feature("F3")
def test_the_call_for_all_subscriptions_is_refused_if_one_of_them_is() -> None:
    run = Run()
    run.subscribe("a")
    run.subscribe("b")
    run.close_consumer("a")
    run.publish(0)
    run.ack("b", (1, 0))
    run.wait(10)
    call = "/all_subscription/expireMessages/5"
    assert one(run.admin("POST", call), AdminResponse).fields.status == 409, "b has no backlog"
    assert run.backlog("a") == 0, "but a was expired"
    run.publish(1)
    run.wait(10)
    assert one(run.admin("POST", call), AdminResponse).fields.status == 204
    assert run.backlog("a") == run.backlog("b") == 0


@pytest.mark.feature("F1")
@pytest.mark.parametrize(
    ("call", "body", "status", "backlog"),
    [
        ("?messageTTL=5", None, 204, 0),
        ("?messageTTL=50", None, 204, 1),
        ("", 5, 204, 0),
        ("?messageTTL=x", None, 404, 1),  # as JAX-RS answers a parameter that is not a number
    ],
)
def test_a_topics_ttl_comes_as_a_parameter(call: str, body: int | None, status: int, backlog: int) -> None:
    run = with_subscription()
    at(run, 0)
    run.now = 10_000
    answer = one(run.admin("POST", f"/messageTTL{call}", body), AdminResponse)
    assert (answer.fields.status, run.backlog("s")) == (status, backlog)
