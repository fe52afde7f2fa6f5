"""Where a mirror's log goes on in the ledgers of a state."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from schemas import commands as c
from streaming.answers.history.folders import NotFound
from streaming.answers.whatif.shadow_positions import ShadowPositions
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.persistent.topic import SHADOW_SOURCE
from streaming.broker.position import MAX

T = "persistent://a/b/t"

pytestmark = pytest.mark.feature("K4")


def entry(ledger: int, number: int) -> c.Send:
    return c.Send(
        connection="m",
        producer_id=0,
        sequence_id=number,
        metadata=c.MessageMetadata(producer_name="p", sequence_id=number, publish_time=0),
        message_id=c.MessageIdData(ledgerId=ledger, entryId=number),
    )


def look(ledger: int, last: int, **subscriptions: c.MirroredSubscription) -> c.Mirror:
    return c.Mirror(
        connection="m",
        ledger_id=ledger,
        last_confirmed=(ledger, last),
        first_ledger=ledger,
        subscriptions=subscriptions,
    )


def at(ledger: int, number: int, **fields: Any) -> c.MirroredSubscription:
    return c.MirroredSubscription(mark_delete=(ledger, number), **fields)


PATH = f"/{T.replace('://', '/')}"
CREATE = c.Admin(method="PUT", path=PATH, body={SHADOW_SOURCE: T})


def moving(*commands: Any, before: Sequence[Any] = ()) -> tuple[ShadowPositions, list[Any]]:
    """A log on a state that has entries 7:0 to 7:2 and subscriptions `s` and `u`, or that comes of `before`."""
    broker = Broker(0, NoEntries())
    before = before or [
        CREATE,
        *(entry(7, number) for number in range(3)),
        look(7, 2, s=at(7, -1), u=at(7, -1)),
    ]
    for offset, command in enumerate(before):
        broker.apply(offset, 1000 + offset, T, command, b"")
    positions = ShadowPositions(broker)
    for command in commands:
        positions.note(T, command)
    return positions, [
        positions.send(T, command)
        if isinstance(command, c.Send)
        else positions.mirror(T, command)
        if isinstance(command, c.Mirror)
        else command
        for command in commands
    ]


def test_a_log_that_goes_on_does_not_move() -> None:
    for log in ([entry(7, 3), look(7, 3)], [look(7, 2), entry(7, 3)], [entry(8, 0), look(8, 0, s=at(7, 1))]):
        assert moving(*log)[1] == log


def test_entries_that_are_there_come_into_ledgers_behind() -> None:
    _, (first, second, shown) = moving(entry(4, 0), entry(7, 0), look(7, 0))
    assert (first.message_id.ledgerId, second.message_id.ledgerId) == (8, 11)
    assert (shown.ledger_id, shown.last_confirmed, shown.first_ledger) == (11, (11, 0), 11)


def test_what_was_acknowledged_before_the_log_is_none_of_the_state() -> None:
    """A subscription that is there acknowledges the log's entries only; a new one begins with the log."""
    seen = at(3, 9, acknowledged=[(3, 9, 4, 0), (4, 1, 4, 2)], expired_to=(2, 2), read=(4, 3))
    _, (_, shown) = moving(entry(4, 0), look(4, 5, s=seen, new=seen))
    old, new = shown.subscriptions["s"], shown.subscriptions["new"]
    assert (old.mark_delete, old.acknowledged) == ((-1, -1), [(8, -1, 8, 0), (8, 1, 8, 2)])
    assert (new.mark_delete, new.acknowledged) == ((8, -1), [(8, -1, 8, 0), (8, 1, 8, 2)])
    assert (new.expired_to, new.read) == ((8, -1), (8, 3))


def test_a_subscription_is_deleted_only_after_the_log_has_shown_it() -> None:
    _, shown = moving(look(4, -1), look(4, -1, s=at(4, -1)), look(4, -1))
    assert [sorted(each.subscriptions) for each in shown] == [["s", "u"], ["s", "u"], ["u"]]


def test_a_subscription_that_comes_again_or_is_reset_is_a_new_one() -> None:
    reset, u = look(4, 0, s=at(4, 0, reset=True)), look(4, 0, u=at(4, 1))
    _, (_, *shown) = moving(entry(4, 0), reset, u, look(4, 0), look(4, 0, u=at(4, 1), s=at(4, 2)))
    assert [each.subscriptions["s"].mark_delete for each in (shown[0], shown[3])] == [(8, 0), (8, 2)]
    assert [each.subscriptions["u"].mark_delete for each in (shown[1], shown[3])] == [(-1, -1), (8, 1)]


def test_a_topic_that_the_state_has_no_more_goes_on_after_its_ledgers() -> None:
    deleted = [CREATE, entry(7, 0), c.Admin(method="DELETE", path=PATH)]
    _, (first, shown) = moving(entry(4, 0), look(4, 0, s=at(4, -1)), before=deleted)
    assert (first.message_id.ledgerId, first.message_id.entryId) == (8, 0)
    assert shown.subscriptions["s"].mark_delete == (8, -1)
    assert moving(entry(9, 0), before=deleted)[1] == [entry(9, 0)]


def test_traffic_that_the_topics_of_the_state_can_not_take_is_refused() -> None:
    publish = c.Publish(producer="p", sequence_id=1)
    for command in (publish, msgspec.structs.replace(entry(0, 0), message_id=None)):
        with pytest.raises(
            NotFound, match="is mirrored in the state, and takes the entries of its source only"
        ):
            moving(command)
    for mirrored in (entry(4, 0), look(4, 0)):
        with pytest.raises(NotFound, match="is not mirrored in the state, and the log is of a mirror"):
            moving(mirrored, before=[publish])
    policies = c.Admin(method="POST", path=f"{PATH}/messageTTL", body=7)  # there is nothing but these
    assert moving(CREATE, entry(4, 0), before=[policies])[1] == [CREATE, entry(4, 0)]


def test_no_ledger_is_higher_than_the_highest() -> None:
    _, (_, last, shown) = moving(entry(0, 0), entry(MAX, 0), look(MAX, MAX, s=at(MAX, MAX)))
    assert last.message_id.ledgerId == shown.ledger_id == shown.last_confirmed[0] == MAX
