"""Pending acks of entries that a mark-delete position has passed, and other counts of unacked messages, as 4.0.7 has them:
when the dispatcher forgets such entries, and what acks of them count until then."""

from typing import Any

import pytest

from schemas.commands import Ack, MessageIdData
from schemas.effects import Effect
from streaming.broker.dispatch.multiple_consumers import MultipleConsumers
from streaming.broker.position import Position
from tests.broker.kit import Run, sent

pytestmark = pytest.mark.feature("D5")


def dispatcher(run: Run) -> MultipleConsumers:
    found = run.topic.subscriptions["s"].dispatcher
    assert isinstance(found, MultipleConsumers)
    return found


def unacked(run: Run) -> int:
    """Of the only consumer, and so of the subscription."""
    (consumer,) = run.topic.subscriptions["s"].consumers
    assert dispatcher(run).total_unacked == consumer.unacked
    return consumer.unacked


def with_pending(entries: int, *, type_: Any = "Shared", durable: bool = True, **settings: Any) -> Run:
    """The only consumer has so many unacked entries, and no permits."""
    run = Run(**settings)
    run.subscribe("s", type_, permits=entries, durable=durable)
    for entry in range(entries):
        run.publish(entry)
    assert unacked(run) == entries
    return run


def skip(run: Run, entries: int) -> list[Effect]:
    return run.admin("POST", f"/subscription/s/skip/{entries}")


@pytest.mark.parametrize("type_", ["Shared", "Key_Shared"])
def test_what_a_skip_passed_counts_until_the_dispatcher_reads(type_: str) -> None:
    run = with_pending(4, type_=type_)
    skip(run, 3)
    run.wait(1)
    run.ack("s", (1, 0))
    assert unacked(run) == 3
    assert sent(run.flow("s", 1)) == []  # reads, and so forgets the passed entries
    run.ack("s", (1, 1))
    assert unacked(run) == 3
    run.ack("s", (1, 3))
    assert unacked(run) == 2


@pytest.mark.parametrize(("type_", "counted"), [("Shared", 1), ("Key_Shared", 0)])
def test_an_expiry_makes_key_shared_read(type_: str, counted: int) -> None:
    """The expiry monitor tells the dispatcher, which reads keySharedUnblockingIntervalMs later."""
    run = with_pending(4, type_=type_)
    run.admin("POST", "/subscription/s/expireMessages", {"ledgerId": 1, "entryId": 1})
    run.ack("s", (1, 0))
    assert unacked(run) == 3
    run.wait(0.01)
    run.ack("s", (1, 1))
    assert unacked(run) == 3 - counted


@pytest.mark.parametrize("fields", [{"durable": False}, {"maxUnackedMessagesPerConsumer": 0}])
def test_without_a_limit_each_ack_of_a_pending_entry_reads(fields: dict[str, Any]) -> None:
    """As recorded: consumers without a limit on unacked messages are unblocked by every ack."""
    run = with_pending(4, **fields)
    skip(run, 3)
    run.ack("s", (1, 0))
    assert unacked(run) == 3
    run.redeliver("s", (1, 2))  # no longer pending
    assert unacked(run) == 3
    run.ack("s", (1, 1))
    assert unacked(run) == 3


def test_with_a_limit_an_ack_does_not_read() -> None:
    run = with_pending(4)
    skip(run, 3)
    run.ack("s", (1, 0))
    run.redeliver("s", (1, 2))
    assert unacked(run) == 2


def test_acks_of_a_batch_that_was_passed() -> None:
    """As recorded: a non-durable cursor keeps the acks within a batch that it passes, until the next ack of it. After that,
    each ack counts as if it were the first one."""
    run = Run(acknowledgmentAtBatchIndexLevelEnabled=True)
    run.subscribe("s", "Shared", permits=1, durable=False)
    run.create_producer()
    run.send(0, 4)
    assert unacked(run) == 5
    run.ack("s", (1, 0), left=[0b11110], size=5)
    skip(run, 1)
    assert unacked(run) == 4
    for left in (3, 1):
        run.ack("s", (1, 0), left=[0b01110], size=5)
        assert unacked(run) == left
    run.ack("s", (1, 0))
    assert unacked(run) == -4
    run.ack("s", (1, 0))
    assert unacked(run) == -4
    assert run.cursor("s").batches == {}


def test_a_batch_that_was_passed_and_is_forgotten_leaves_nothing_in_the_cursor() -> None:
    run = Run(acknowledgmentAtBatchIndexLevelEnabled=True)
    run.subscribe("s", "Shared", permits=1, durable=False)
    run.create_producer()
    run.send(0, 4)
    run.ack("s", (1, 0), left=[0b11110], size=5)
    skip(run, 1)
    assert run.cursor("s").batches != {}
    run.flow("s", 1)
    assert run.cursor("s").batches == {}


def test_a_batch_that_partial_acks_complete_stays_pending() -> None:
    """A nack of it counts the whole batch, since the cursor has no acks within it any more. It is forgotten once the
    mark-delete has passed it, when the dispatcher next reads."""
    run = Run(acknowledgmentAtBatchIndexLevelEnabled=True)
    run.subscribe("s", "Shared", permits=1)
    run.create_producer()
    run.publish(0, producer="q")
    run.send(0, 1)
    run.flow("s", 1)
    run.ack("s", (1, 1), left=[0b10], size=2)
    run.ack("s", (1, 1), left=[0b01], size=2)
    assert (unacked(run), run.backlog("s")) == (1, 1)
    run.flow("s", 1)  # the mark-delete has not passed it yet
    run.ack("s", (1, 0))
    run.redeliver("s", (1, 1))
    assert unacked(run) == -2


@pytest.mark.parametrize("reads", [True, False])
def test_a_completed_batch_is_forgotten_when_the_mark_delete_passes_it(reads: bool) -> None:
    run = Run(acknowledgmentAtBatchIndexLevelEnabled=True)
    run.subscribe("s", "Shared", permits=1)
    run.create_producer()
    run.send(0, 1)
    run.ack("s", (1, 0), left=[0b10], size=2)
    run.ack("s", (1, 0), left=[0b01], size=2)
    if reads:
        run.flow("s", 1)
    run.ack("s", (1, 0))
    assert unacked(run) == (0 if reads else -2)


@pytest.mark.parametrize(
    ("acks", "counts"),
    [
        ([[2], [1]], [2, 1]),  # the first message that is left of an entry of one counts as before
        ([[6]], [3]),  # more are left than it has
        ([[6], None], [3, 1]),
        ([[2], [1], None], [2, 1, 0]),  # finished by parts, and still pending: it is counted once more
        ([[2], [1], [1], [2]], [2, 1, 1, 1]),
        ([[2], [1], "again"], [2, 1, 0]),
        ([[6], "again"], [3, 3]),  # sent again, two messages of it
        ([[7]], [4]),
    ],
)
def test_parts_of_an_entry_that_is_no_batch(acks: list[Any], counts: list[int]) -> None:
    """As recorded: nobody compares the ids with the entry. None: an ack of all of it."""
    run = with_pending(2, acknowledgmentAtBatchIndexLevelEnabled=True)
    run.flow("s", 9)
    found = []
    for left in acks:
        if left == "again":
            run.redeliver("s", (1, 1))
        else:
            run.ack("s", (1, 1), left=left, size=3)
        found.append(unacked(run))
    assert found == counts


@pytest.mark.parametrize(("before", "lefts", "count"), [(None, [2, 1], 2), ([7], [2, 4], 0)])
def test_two_ids_of_one_entry_in_an_ack_both_count_as_the_first(
    before: list[int] | None, lefts: list[int], count: int
) -> None:
    """As recorded: all ids of an ACK are counted by what the cursor knew before."""
    run = with_pending(2, acknowledgmentAtBatchIndexLevelEnabled=True)
    if before:
        run.ack("s", (1, 1), left=before, size=3)
    ids = [MessageIdData(1, 1, ack_set=[left], batch_size=3) for left in lefts]
    run.do(Ack(connection="s", consumer_id=1, ack_type="Individual", message_id=ids))
    assert (unacked(run), run.backlog("s")) == (count, 1)
    (consumer,) = run.topic.subscriptions["s"].consumers
    assert consumer.pending == {(1, 0): 1, (1, 1): 1}


@pytest.mark.parametrize("again", [False, True])
def test_later_versions_count_what_the_pending_ack_has_left(again: bool) -> None:
    """docs/rules/subscriptions.md §6, docs/rules/shared.md §8: unacked −= remaining, also if the cursor knows of other
    acks in the batch."""
    run = Run(acknowledgmentAtBatchIndexLevelEnabled=True, removePendingAcksOnMarkDeleteMove=True)
    run.subscribe("s", "Shared", permits=1)
    run.create_producer()
    run.send(0, 2)
    ids = [MessageIdData(1, 0, ack_set=[left], batch_size=3) for left in (0b110, 0b101)]
    run.do(Ack(connection="s", consumer_id=1, ack_type="Individual", message_id=ids))
    (consumer,) = run.topic.subscriptions["s"].consumers
    assert unacked(run) == consumer.pending[Position(1, 0)] != 1
    assert run.cursor("s").batches == {Position(1, 0): b"\x04"}
    if again:
        run.redeliver("s", (1, 0))
    else:
        run.ack("s", (1, 0))
    assert (unacked(run), consumer.pending) == (0, {})


def test_ids_after_a_refused_one_count() -> None:
    """All ids of an ACK are counted before the cursor sees the first one."""
    run = with_pending(2)
    ids = [MessageIdData(1, 7), MessageIdData(1, 0)]
    run.do(Ack(connection="s", consumer_id=1, ack_type="Individual", message_id=ids))
    assert (unacked(run), run.backlog("s")) == (1, 2)


@pytest.mark.parametrize(("limit", "blocked"), [(1, True), (4, False)])
def test_a_seek_leaves_the_subscription_blocked_as_leaving_consumers_do(limit: int, blocked: bool) -> None:
    """As recorded: a limit of 1 is never undershot by half."""
    run = with_pending(limit, maxUnackedMessagesPerSubscription=limit)
    assert dispatcher(run).blocked
    run.seek("s", (1, 0))
    assert (dispatcher(run).blocked, dispatcher(run).total_unacked) == (blocked, 0)
    assert sent(run.subscribe("s", "Shared", permits=1)) == ([] if blocked else [0])


def test_the_limit_of_a_subscription_holds_for_non_durable_ones() -> None:
    """As recorded, unlike the limit of a consumer."""
    run = with_pending(2, durable=False, maxUnackedMessagesPerSubscription=2, maxUnackedMessagesPerConsumer=1)
    assert dispatcher(run).blocked
    run.flow("s", 1)
    assert sent(run.publish(2)) == []
    run.ack("s", (1, 0))
    assert sent(run.ack("s", (1, 1))) == [2]


def test_a_seek_restarts_a_non_durable_subscription() -> None:
    run = with_pending(1, durable=False, maxUnackedMessagesPerSubscription=1)
    run.admin("POST", "/subscription/s/expireMessages", {"ledgerId": 1, "entryId": 0})
    subscription = run.topic.subscriptions["s"]
    run.seek("s", (1, 0))
    assert subscription.dispatcher is None
    assert subscription.throttle is None  # or its timer would be due forever
    assert subscription.expired == subscription.expired_before_load == 1
    assert sent(run.subscribe("s", "Shared", permits=1, durable=False)) == [0]
