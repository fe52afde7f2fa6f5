"""What random scenarios against a real 4.0.7 showed and no trace does: seeks, readers, calls of operators."""

from typing import Any

import pytest

from schemas.commands import GetLastMessageId, MessageIdData
from schemas.effects import AdminResponse, Error, Expired, GetLastMessageIdResponse, ProducerSuccess
from tests.broker.kit import Run, one, response, sent


def status(run: Run, method: str, call: str) -> int:
    code: int = one(run.admin(method, call), AdminResponse).fields.status
    return code


def filled(count: int, **settings: Any) -> Run:
    """A topic with entries in ledgers of two."""
    run = Run(managedLedgerMaxEntriesPerLedger=2, **settings)
    run.fill(count)
    return run


# -- ledgers without a durable cursor ------------------------------------------------------------------------------


@pytest.mark.feature("C3")
@pytest.mark.parametrize(("entries", "left"), [(2, [1, 2]), (4, [3]), (6, [3, 4]), (7, [3, 4])])
def test_a_rollover_that_finds_nothing_older_spares_the_ledger_it_closed(
    entries: int, left: list[int]
) -> None:
    """Pulsar trims before the next ledger is there: what closed counts as open. Only if it found something to delete it
    comes again 100 ms later, and then that ledger goes too."""
    run = filled(entries)
    assert list(run.topic.ledger.ledgers) == left


# -- what operators ask for ----------------------------------------------------------------------------------------


@pytest.mark.feature("D4")
@pytest.mark.parametrize(
    ("entry", "code"), [("1/entry/1", 200), ("1/entry/2", 500), ("2/entry/1", 500), ("9/entry/0", 404)]
)
def test_an_entry_past_the_end_of_its_ledger_is_tried_to_be_read(entry: str, code: int) -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=2)
    run.subscribe("s")
    run.fill(3)
    assert status(run, "GET", f"/ledger/{entry}") == code


@pytest.mark.feature("D4")
def test_peeking_makes_the_subscription() -> None:
    run = Run()
    run.fill(2)
    assert one(run.admin("GET", "/subscription/new/position/2"), AdminResponse).entry_id == 1
    assert run.backlog("new") == 2
    assert status(run, "GET", "/subscription/pulsar.dedup/position/1") == 404


# -- a reader that a seek has closed -------------------------------------------------------------------------------


@pytest.mark.feature("D4")
def test_of_a_reader_that_a_seek_closed_only_the_cursor_is_left() -> None:
    run = Run()
    run.admin("PUT", "/subscription/keeper", {"ledgerId": -1, "entryId": -1})
    run.fill(3)
    run.subscribe("r", durable=False, permits=10)
    run.seek("r", (1, 1))
    shown = run.broker.topic_stats(run.topic.name)
    assert list(shown["stats"]["subscriptions"]) == ["keeper"]
    assert sorted(shown["internal"]["cursors"]) == ["keeper", "r"]
    assert response(run.admin("GET", "/subscriptions")) == ["keeper"]
    assert status(run, "POST", "/subscription/r/skip/1") == 404
    run.wait(100)
    assert status(run, "POST", "/all_subscription/expireMessages/10") == 204
    assert (run.backlog("keeper"), run.backlog("r")) == (0, 2)
    run.fill(1, first=3)
    run.namespace("POST", "messageTTL", 10)
    run.wait(100)
    run.check("messageExpiry")
    assert (run.backlog("keeper"), run.backlog("r")) == (0, 3)


# -- what is delayed outlives a seek -------------------------------------------------------------------------------


@pytest.mark.feature("E6")
@pytest.mark.parametrize("type_", ["Shared", "Key_Shared"])
def test_what_is_delayed_is_known_until_the_next_consumer_comes(type_: str) -> None:
    run = Run()
    run.subscribe("s", type_, permits=10)  # type: ignore[arg-type]
    run.publish(0, deliver_at_time=run.now + 60_000)
    run.seek("s", (1, 0))

    def delayed() -> int:
        found: int = run.broker.topic_stats(run.topic.name)["stats"]["subscriptions"]["s"]["msgDelayed"]
        return found

    assert delayed() == 1
    run.subscribe("s", type_)  # type: ignore[arg-type]
    assert delayed() == 0
    assert sent(run.wait(70)) == []
    assert sent(run.flow("s", 1)) == [0]


# -- what a skip passes over ---------------------------------------------------------------------------------------


@pytest.mark.feature("D4")
@pytest.mark.parametrize(
    ("type_", "reads", "unacked"), [("Shared", False, 2), ("Shared", True, 3), ("Key_Shared", True, 3)]
)
def test_what_was_skipped_stays_unacked_once_something_is_read(type_: str, reads: bool, unacked: int) -> None:
    """Until the next read it is still pending: an ack takes it off. Then it is forgotten, but still counted."""
    run = Run()
    run.subscribe("s", type_, permits=1)  # type: ignore[arg-type]
    run.fill(3)
    run.flow("s", 1)
    run.redeliver("s", (1, 0))
    run.flow("s", 2)
    run.admin("POST", "/subscription/s/skip/1")
    if reads:
        run.flow("s", 1)
    run.ack("s", (1, 0))
    (consumer,) = run.topic.subscriptions["s"].consumers
    assert sorted(consumer.pending) == [(1, 1), (1, 2)]
    assert consumer.unacked == unacked


# -- loading -------------------------------------------------------------------------------------------------------


@pytest.mark.feature("C3")
@pytest.mark.parametrize("subscribed", [False, True])
def test_loading_a_topic_trims_only_if_cursors_come_back(subscribed: bool) -> None:
    run = Run()
    if subscribed:
        run.subscribe("s", permits=9)
    run.fill(2)
    if subscribed:
        run.ack("s", (1, 1), cumulative=True)
    run.unload()
    assert list(run.topic.ledger.ledgers) == ([2] if subscribed else [1, 2])


# -- messagesConsumedCounter after a seek --------------------------------------------------------------------------


@pytest.mark.feature("D4")
def test_a_seek_out_of_a_deleted_ledger_counts_one_less() -> None:
    run = filled(2, trimAtRolloverSparesClosedLedger=False)
    run.subscribe("s")
    before = run.cursor("s").consumed
    assert run.mark_delete("s") == (1, -1)
    assert list(run.topic.ledger.ledgers) == [2]
    run.seek("s", (1, 1))
    assert (run.mark_delete("s"), run.cursor("s").consumed) == ((2, -1), before - 1)


@pytest.mark.feature("D4")
@pytest.mark.parametrize(("durable", "consumed"), [(True, 4), (False, 3)])
def test_a_seek_over_single_acks_counts_them_twice_but_for_a_reader(durable: bool, consumed: int) -> None:
    run = Run()
    run.fill(5)
    run.subscribe(
        "s", "Shared", durable=durable, start_message_id=None if durable else MessageIdData(1, 0), permits=5
    )
    run.ack("s", (1, 1))
    run.seek("s", (1, 3))
    assert (run.mark_delete("s"), run.cursor("s").consumed) == ((1, 2), consumed)


# -- the end of a terminated topic ---------------------------------------------------------------------------------


@pytest.mark.feature("D4")
@pytest.mark.parametrize(("unloaded", "last"), [(False, (1, 1)), (True, (-1, -1))])
def test_the_last_message_before_an_empty_ledger_of_a_terminated_topic(
    unloaded: bool, last: tuple[int, int]
) -> None:
    """The end lies in the open ledger, which is empty. What was published since the topic was loaded is remembered."""
    run = Run(managedLedgerMaxEntriesPerLedger=2)
    run.subscribe("s")
    run.fill(2)
    if unloaded:
        run.admin("PUT", "/unload")
        run.subscribe("s")
    run.admin("POST", "/terminate")
    command = GetLastMessageId(connection="s", consumer_id=1, request_id=run.request())
    answer = one(run.do(command), GetLastMessageIdResponse)
    assert (answer.ledger_id, answer.entry_id) == last


# -- loading a topic -----------------------------------------------------------------------------------------------


@pytest.mark.feature("F1")
@pytest.mark.parametrize("own", [False, True])
def test_a_topic_with_a_policy_of_its_own_expires_messages_when_it_is_loaded(own: bool) -> None:
    """Whichever policy it is: the TTL itself is the broker's."""
    run = Run(ttlDurationDefaultInSeconds=10)
    run.subscribe("s")
    if own:
        run.admin("POST", "/maxConsumers", body=5)
    run.fill(2)
    run.wait(20)
    run.unload()
    assert run.backlog("s") == (0 if own else 2)


@pytest.mark.feature("F1")
def test_nothing_expires_on_an_unloaded_topic_until_something_uses_it() -> None:
    run = Run(ttlDurationDefaultInSeconds=10, messageExpiryCheckIntervalInMinutes=5)
    run.subscribe("s")
    run.fill(2)
    run.admin("PUT", "/unload")
    assert run.wait(86_400) == []
    run.admin("GET", "/stats")
    assert run.backlog("s") == 2  # no policy of its own: the next check does it
    assert one(run.wait(300), Expired).entries == 2


@pytest.mark.feature("F1")
@pytest.mark.parametrize("quota", ["producer_request_hold", "producer_exception"])
def test_a_producer_that_loads_a_topic_is_judged_before_messages_expire(quota: str) -> None:
    run = Run()
    run.subscribe("s")
    run.admin("POST", "/messageTTL", body=10)
    run.admin("POST", "/backlogQuota", body={"limitSize": 1, "policy": quota})
    run.fill(2)
    run.wait(20)
    run.admin("PUT", "/unload")
    refused = run.create_producer("p", 1)
    assert one(refused, Error).error.startswith("ProducerBlockedQuotaExceeded")
    assert one(refused, Expired).entries == 2
    assert one(run.create_producer("p", 1), ProducerSuccess)
