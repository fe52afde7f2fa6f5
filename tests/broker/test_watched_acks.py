"""What an observer learns of acks: who acked what, and what an unload takes back."""

from typing import Any

from schemas.commands import Ack, MessageIdData
from streaming.broker import entry_filters
from streaming.broker.context import Acked
from streaming.broker.position import Position
from tests.broker.kit import TOPIC, Run

entry_filters.register("WatchedReject", lambda metadata, properties: "REJECT")


def watched(**settings: Any) -> Run:
    """Four entries, all with a Shared consumer, and an observer from now on."""
    run = Run(**settings)
    run.subscribe("s", "Shared", permits=100)
    run.fill(4)
    run.broker.watch_acks()
    return run


def told(run: Run) -> list[tuple[Any, ...]]:
    """Subscription, named positions, mark-delete before and after, backlog before, and whether an unload did it."""
    acks: list[Acked] = run.broker.take_acks()
    assert all(each.topic == TOPIC and each.clock == run.now for each in acks)
    return [(each.subscription, [*each.positions], each.before, each.after, each.backlog, each.recovered) for each in acks]  # fmt: skip


def test_individual_acks_name_their_positions() -> None:
    run = watched()
    run.ack("s", (1, 1))
    run.ack("s", (1, 0), (1, 3))
    none, first = Position(1, -1), Position(1, 1)
    assert told(run) == [
        ("s", [first], none, none, 4, False),
        ("s", [Position(1, 0), Position(1, 3)], none, first, 3, False),
    ]
    assert told(run) == []


def test_cumulative_acks_move_the_mark_delete_position() -> None:
    run = Run()
    run.subscribe("s", permits=100)
    run.fill(4)
    run.broker.watch_acks()
    run.ack("s", (1, 2), cumulative=True)
    assert told(run) == [("s", [], Position(1, -1), Position(1, 2), 4, False)]


def test_a_move_by_the_broker_tells_the_backlog_before() -> None:
    run = watched()
    run.admin("POST", "/subscription/s/skip/3")
    none = Position(1, -1)
    assert told(run) == [("s", [], none, none, 4, False)]


def test_an_ack_of_part_of_a_batch_names_nothing() -> None:
    run = watched(acknowledgmentAtBatchIndexLevelEnabled=True)
    run.ack("s", (1, 0), left=[1], size=2)
    none = Position(1, -1)
    assert told(run) == [("s", [], none, none, 4, False)]


def test_what_a_filter_rejects_is_acked() -> None:
    run = Run(entryFilterNames="WatchedReject")
    run.broker.watch_acks()
    run.subscribe("s", permits=100)
    run.fill(1)
    assert told(run) == [("s", [Position(1, 0)], Position(1, -1), Position(1, 0), 1, False)]


def test_a_cursor_that_is_recovered_tells_what_is_still_acked() -> None:
    run = watched()
    run.ack("s", (1, 2))
    told(run)
    run.unload()
    (each,) = told(run)
    assert each == ("s", [Position(1, 2)], Position(1, -1), Position(1, -1), 3, True)


def test_acks_stand_among_the_effects() -> None:
    run = watched()
    before = len(run.broker.take())
    run.broker.apply(run.broker.offset + 1, run.now, TOPIC, *_ack(1))
    run.broker.apply(run.broker.offset + 1, run.now, TOPIC, *_ack(2))
    first, second = run.broker.take_acks()
    rows = run.broker.take()
    assert (before, first.effects, second.effects, len(rows)) == (0, 0, 1, 2)


def _ack(entry: int) -> tuple[Any, bytes]:
    id_ = MessageIdData(1, entry)
    return Ack(connection="s", consumer_id=1, ack_type="Individual", message_id=[id_], request_id=entry), b""
