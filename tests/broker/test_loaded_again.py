"""What 4.0.7 does with a topic that was loaded again (recorded with it): terminated topics, consumed ledgers."""

from typing import Any

import pytest

from schemas.commands import MessageIdData, Profile, SubType
from schemas.effects import (
    AdminResponse,
    CloseConsumer,
    Error,
    LedgerDeleted,
    Message,
    ReachedEndOfTopic,
    Success,
)
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.position import Position
from tests.broker.kit import START, BareTopic, Run, of, one, response, sent

SIZE_LIMIT = 5 * 1024 * 1024


def terminated(entries: int, per_ledger: int = 2) -> Run:
    """A terminated topic that was loaded again, with the subscription `s` at its start."""
    run = Run(managedLedgerMaxEntriesPerLedger=per_ledger)
    run.subscribe("s")
    for sequence_id in range(entries):
        run.publish(sequence_id)
        run.wait(1)
    run.admin("POST", "/terminate")
    run.unload()
    return run


def status(effects: list[Any]) -> int:
    code: int = one(effects, AdminResponse).fields.status
    return code


# -- the last ledger of a terminated topic counts as empty -------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "skips", "mark_delete"),
    [(1, [1], (1, -1)), (3, [1], (1, 0)), (3, [2], (1, 1)), (3, [9], (1, 1)), (3, [2, 1], (1, 1))],
)
def test_a_skip_ends_before_it(entries: int, skips: list[int], mark_delete: tuple[int, int]) -> None:
    run = terminated(entries)
    for n in skips:
        assert status(run.admin("POST", f"/subscription/s/skip/{n}")) == 204
    assert run.mark_delete("s") == mark_delete
    run.admin("POST", "/subscription/s/skip_all")
    assert run.backlog("s") == 0


def test_a_skip_goes_round_the_last_ledger_with_entries_if_the_last_one_was_empty() -> None:
    run = terminated(4)
    found = []
    for n in (1, 2, 3):
        run.admin("POST", "/subscription/s/resetcursor", {"ledgerId": 1, "entryId": 0})
        run.admin("POST", f"/subscription/s/skip/{n}")
        found.append(run.mark_delete("s"))
    assert found == [(1, 0), (1, 1), (2, 0)]
    run.admin("POST", "/subscription/s/skip/6")
    assert run.mark_delete("s") == (2, 0), "three entries, and the second ledger's two, to the first of them"


def test_a_search_by_time_fails_if_it_is_the_only_ledger() -> None:
    run = terminated(2, per_ledger=9)
    run.subscribe("s", permits=1)
    cause = "Incorrect parameter input error code: -14"
    refused = one(run.seek("s", time=START + 9_000), Error)
    assert refused.error == "UnknownError"
    assert refused.cause.endswith(cause)
    assert run.mark_delete("s") == (1, -1)
    assert run.topic.subscriptions["s"].consumers
    assert status(run.admin("POST", f"/subscription/s/resetcursor/{START + 9_000}")) == 500
    assert status(run.admin("GET", "/subscription/s/position/1")) == 500
    assert status(run.admin("GET", f"/messageid/{START + 9_000}")) == 404
    assert of(run.subscribe("r", durable=False, start_message_rollback_duration_sec=1), Success)
    assert of(run.seek("s", time=START), CloseConsumer), "the first entry is found without a search"


def test_nothing_expires_by_a_search_that_fails() -> None:
    run = terminated(1)
    run.namespace("POST", "messageTTL", 60)
    run.now += 61_000
    run.unload()
    assert run.backlog("s") == 1
    run.check("message_expiry")
    assert run.backlog("s") == 1
    run.wait(100_000)
    assert run.topic.subscriptions["s"].last_expire == 0


def test_a_read_knows_the_size_of_its_entries() -> None:
    topic = BareTopic()
    topic.add(100, 100, 100)
    topic.ledger.terminated = True
    topic.ledger.reopen(topic.ctx.clock)
    assert topic.ledger.entries_within(SIZE_LIMIT, Position(1, 1), 2) == 2


def test_behind_its_end_its_first_entry_comes_next() -> None:
    run = terminated(3)
    run.subscribe("s")
    run.seek("s", (7, 0))
    assert run.mark_delete("s") == (1, 1)


# -- a terminated topic without ledgers ---------------------------------------------------------------------------


def test_without_ledgers_nothing_is_read_and_nothing_starts_at_the_first_one() -> None:
    run = Run()
    run.create_producer()
    run.admin("POST", "/terminate")
    run.unload()
    assert run.topic.ledger.ledgers == {}
    latest, earliest = MessageIdData(2**63 - 1, 2**63 - 1), MessageIdData(2**64 - 1, 2**64 - 1)
    taken = [
        run.subscribe("a", earliest=False, permits=3),
        run.subscribe("b", "Shared", earliest=False, permits=3),
        run.subscribe("r", durable=False, earliest=False, start_message_id=latest, permits=3),
    ]
    assert [len(of(effects, Success)) for effects in taken] == [1, 1, 1]
    assert [of(effects, ReachedEndOfTopic) for effects in taken] == [[], [], []]
    refused = [
        run.subscribe("c"),
        run.subscribe("d", durable=False, earliest=False, start_message_id=earliest),
        run.subscribe("e", durable=False, start_message_id=latest),
    ]
    assert [one(effects, Error).error for effects in refused] == ["UnknownError"] * 3
    assert status(run.admin("GET", "/subscription/f/position/1")) == 500
    assert list(run.topic.cursors) == ["a", "b", "r"]


@pytest.mark.parametrize(("profile", "tells"), [("2.10", 1), ("3.0", 1), ("4.0", 0), ("4.2", 1), ("5.0", 1)])
@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
def test_without_ledgers_only_4_0_does_not_tell_the_end(profile: Profile, tells: int, type_: SubType) -> None:
    run = Run(profile=profile)
    run.create_producer()
    run.admin("POST", "/terminate")
    run.unload()
    assert len(of(run.subscribe("s", type_, earliest=False, permits=3), ReachedEndOfTopic)) == tells
    assert not of(run.flow("s", 3), ReachedEndOfTopic)


# -- the end of a terminated topic --------------------------------------------------------------------------------


def test_redelivery_to_the_active_consumer_tells_the_end_again() -> None:
    run = Run()
    run.publish(0)
    run.admin("POST", "/terminate")
    assert of(run.subscribe("s", earliest=False, permits=1), ReachedEndOfTopic)
    assert not of(run.flow("s", 1), ReachedEndOfTopic)
    assert of(run.redeliver("s"), ReachedEndOfTopic)


# -- consumed ledgers ---------------------------------------------------------------------------------------------


def test_a_ledger_goes_with_the_cursor_that_had_consumed_the_one_before() -> None:
    """The cursor counts from the next ledger once that is open, so its first ack there does not leave a ledger."""
    run = Run(managedLedgerMaxEntriesPerLedger=1)
    run.subscribe("s", permits=9)
    run.publish(0)
    assert not of(run.ack("s", (1, 0)), LedgerDeleted)
    assert one(run.publish(1), LedgerDeleted).ledger_id == 1
    assert (run.mark_delete("s"), run.cursor("s").key) == ((1, 0), (2, -1))
    assert not of(run.ack("s", (2, 0)), LedgerDeleted)
    assert one(run.publish(2), LedgerDeleted).ledger_id == 2
    assert not of(run.ack("s", (3, 0)), LedgerDeleted)
    assert run.mark_delete("s") == run.cursor("s").key == (3, 0)


def test_the_profile_2_x_keeps_the_position_at_the_end() -> None:
    run = Run(profile="2.x", managedLedgerMaxEntriesPerLedger=1)
    run.subscribe("s", permits=9)
    run.publish(0)
    run.ack("s", (1, 0))
    run.publish(1)
    assert run.cursor("s").key == (1, 0)


@pytest.mark.parametrize(("acked", "deleted"), [(1, []), (2, [1, 2])])
def test_loading_trims_only_if_the_slowest_cursor_had_consumed_its_ledger(
    acked: int, deleted: list[int]
) -> None:
    run = Run()
    run.publish(0)
    run.unload()  # a ledger before, which nobody needs
    run.publish(1)
    run.publish(2)
    run.subscribe("s", earliest=False)
    run.seek("s", (2, acked))
    assert run.mark_delete("s") == (2, acked - 1)
    assert [effect.ledger_id for effect in of(run.unload(), LedgerDeleted)] == deleted


def test_a_read_does_not_open_a_ledger_that_is_acked_as_a_whole() -> None:
    topic = BareTopic()
    cursor = topic.open()
    topic.add_ledger(1)
    topic.add_ledger(1, 1)
    cursor.acknowledge_all(topic.ledger, [Position(2, 0), Position(2, 1)])
    assert cursor.read(topic.ledger, 9) == [Position(1, 0)]
    assert cursor.read_position == Position(3, 0)


def test_a_ledger_that_is_acked_to_its_end_in_part_is_read_to_its_end() -> None:
    topic = BareTopic()
    cursor = topic.open()
    topic.add_ledger(1, 1)
    cursor.acknowledge_all(topic.ledger, [Position(1, 1)])
    assert cursor.read(topic.ledger, 9) == [Position(1, 0)]
    assert cursor.read_position == Position(1, 2)


def test_a_managed_ledger_counts_only_the_last_one_as_empty() -> None:
    ledger = ManagedLedger.create(START)
    assert ledger.position_after(Position(1, -1), 1) == Position(1, -1)


# -- a reader that comes back after its seek ---------------------------------------------------------------------


def test_a_reader_that_comes_back_after_its_seek_has_expired_nothing() -> None:
    run = Run()
    run.publish(0)
    run.subscribe("r", durable=False, start_message_id=MessageIdData(2**64 - 1, 2**64 - 1))
    run.wait(5)
    run.admin("POST", "/subscription/r/expireMessages/1")
    shown = response(run.admin("GET", "/stats"))["subscriptions"]["r"]
    assert (shown["totalMsgExpired"], shown["lastExpireTimestamp"]) == (1, START + 5_000)
    run.seek("r", (1, 0))
    run.subscribe("r", durable=False)
    shown = response(run.admin("GET", "/stats"))["subscriptions"]["r"]
    assert (shown["totalMsgExpired"], shown["lastExpireTimestamp"]) == (0, 0)


# -- a lost connection --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("active", "other", "rewinds"), [(1, 0, False), (0, 1, True), (2, 1, True)])
def test_consumers_of_a_lost_connection_are_closed_in_the_order_of_their_hashes(
    active: int, other: int, rewinds: bool
) -> None:
    """Failover: if the active one goes first, the other one takes over, and the cursor rewinds later."""
    run = Run(activeConsumerFailoverRingForNonPartitioned=False, activeConsumerFailoverDelayTimeMillis=1000)
    run.publish(0)
    for id_, name in ((active, "a"), (other, "b")):
        run.subscribe("s", "Failover", id_=id_, connection="c", consumer_name=name, permits=3)
        run.wait(2)
    assert len(sent(run.redeliver("c", id_=active))) == 1
    assert run.cursor("s").read_position == (1, 1)
    run.lose("c")
    run.wait(2)
    assert run.cursor("s").read_position == ((1, 0) if rewinds else (1, 1))


# -- a non-persistent topic ---------------------------------------------------------------------------------------


def test_consumers_that_joined_behind_those_of_a_lower_priority_are_found_late() -> None:
    run = Run()
    topic = "non-persistent://public/default/np"
    for name, priority, permits in (("a", 1, 0), ("b", 0, 9), ("c", 1, 9)):
        run.subscribe("s", "Shared", connection=name, topic=topic, priority_level=priority, permits=permits)
    turns = [one(run.publish(sequence_id, topic=topic), Message).connection for sequence_id in range(5)]
    assert turns == ["b", "c", "b", "c", "b"]


def test_key_shared_consumers_agree_on_out_of_order_delivery() -> None:
    run = Run()
    topic = "non-persistent://public/default/np"
    meta = {"keySharedMode": "AUTO_SPLIT", "allowOutOfOrderDelivery": False}
    run.subscribe("s", "Key_Shared", connection="a", topic=topic, keySharedMeta=meta)
    refused = run.subscribe(
        "s", "Key_Shared", connection="b", topic=topic, keySharedMeta=meta | {"allowOutOfOrderDelivery": True}
    )
    assert one(refused, Error).cause == (
        "Subscription is of different type. Active subscription does not allow out of order delivery while the "
        "connecting consumer allows it."
    )
    assert len(response(run.admin("GET", "/stats", topic=topic))["subscriptions"]["s"]["consumers"]) == 1
