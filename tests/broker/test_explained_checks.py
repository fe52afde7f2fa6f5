"""Why TTL, unused topics and subscriptions, and deduplication do what they do: what the answers say is what the checks then do."""

import pytest

from schemas.commands import RunCheck, Tick, to_json
from schemas.effects import Expired, Row, SubscriptionEvent, TopicEvent
from streaming.broker.broker import Broker
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.persistent.cleanup.message_expiry import Expiration
from tests.broker.kit import Stored, feed
from tests.broker.random_lives import restarts
from tests.broker.recorded_lives import NAMES


@pytest.mark.parametrize(("theme", "seed"), NAMES[1::4])
def test_the_checks_do_what_the_answers_say(theme: str, seed: int) -> None:
    for broker, store, draw in restarts(theme, seed, 0.05):
        names = [name for name in broker.topic_names() if not is_non_persistent(name)]
        if names and broker.clock > 0:
            name = draw.choice(names)
            expiry_agrees(broker, store, name)
            inactivity_agrees(broker, store, name)
            inactive_subscriptions_agree(broker, store, name)


def after(state: bytes, store: Stored, name: str, command: RunCheck | Tick, time: int) -> list[Row]:
    """The rows of a topic that a command at `time` causes, on a copy."""
    broker = Broker.decode(state, store)
    feed(broker, broker.offset + 1, time, None, to_json(command))
    return [row for row in broker.take() if getattr(row.effect, "topic", None) == name]


def first_expirations(rows: list[Row]) -> dict[str, Expiration]:
    """The first thing that each subscription expires."""
    found: dict[str, Expiration] = {}
    for row in rows:
        one = row.effect
        if isinstance(one, Expired):
            before, after = f"{one.before_ledger}:{one.before_entry}", f"{one.after_ledger}:{one.after_entry}"
            first = found.get(one.subscription)
            if first is None:
                found[one.subscription] = Expiration(row.clock, one.entries, before, after, one.cause)
            elif first.at == row.clock:  # a ledger that was closed before, and then entries
                first.entries, first.after, first.cause = first.entries + one.entries, after, one.cause
    return found


def expiry_agrees(broker: Broker, store: Stored, name: str) -> None:
    state = broker.encode()
    found = Broker.decode(state, store).expiry(name)
    of = {each.subscription: each for each in found.subscriptions}

    now = first_expirations(after(state, store, name, RunCheck(check="messageExpiry"), broker.clock))
    if found.unchecked is None:
        assert {*now} == {each for each, one in of.items() if one.state == "not checked yet"}, found
    else:
        assert not now

    for each in found.subscriptions:
        assert each.due is None or each.due >= found.clock
        assert (each.due == found.clock) == (each.state == "not checked yet"), each
        assert each.expires is None or (found.unchecked is None and each.due is not None)
    if found.next_check is not None:
        ahead = [each.expires.at for each in found.subscriptions if each.expires is not None]
        for until in sorted({found.next_check, *ahead}):
            then = first_expirations(after(state, store, name, Tick(), until))
            assert then == {
                each: one.expires
                for each, one in of.items()
                if one.expires is not None and one.expires.at <= until
            }, (until, found)


def topic_deleted(rows: list[Row]) -> int | None:
    """When a check deleted the topic."""
    return next(
        (row.clock for row in rows if isinstance(row.effect, TopicEvent) and row.effect.cause == UNUSED), None
    )


UNUSED = "deleted because nobody used it"


def inactivity_agrees(broker: Broker, store: Stored, name: str) -> None:
    state = broker.encode()
    found = Broker.decode(state, store).inactivity(name)

    now = topic_deleted(after(state, store, name, RunCheck(check="inactiveTopics"), broker.clock))
    assert (now is not None) == (
        found.unchecked is None and found.due is not None and found.due <= found.clock
    ), found
    assert (found.due is not None) == (found.state == "unused"), found
    if found.due is not None:
        assert found.last_active is not None
        assert found.keeps is not None
        assert found.due == max(found.last_active + found.keeps * 1000, found.clock)
    if found.unchecked is not None:
        assert found.deletes_at is None
    if found.next_check is not None:
        then = topic_deleted(after(state, store, name, Tick(), found.next_check))
        assert then == (found.deletes_at if found.deletes_at == found.next_check else None), found
    if found.deletes_at is not None:
        assert topic_deleted(after(state, store, name, Tick(), found.deletes_at)) == found.deletes_at
        assert topic_deleted(after(state, store, name, Tick(), found.deletes_at - 1)) is None
    elif found.unchecked is None and found.due is not None and found.next_check is not None:
        raise AssertionError(found)  # nobody uses it without a command


def subscriptions_deleted(rows: list[Row]) -> dict[str, int]:
    """When a check deleted subscriptions that nobody used."""
    events = [(row.clock, row.effect) for row in rows if isinstance(row.effect, SubscriptionEvent)]
    return {each.subscription: at for at, each in events if each.cause.startswith("deleted: unused for ")}


def inactive_subscriptions_agree(broker: Broker, store: Stored, name: str) -> None:
    state = broker.encode()
    found = Broker.decode(state, store).inactive_subscriptions(name)
    of = {each.subscription: each for each in found.subscriptions}

    now = subscriptions_deleted(
        after(state, store, name, RunCheck(check="inactiveSubscriptions"), broker.clock)
    )
    due = {each for each, one in of.items() if one.due is not None and one.due <= found.clock}
    assert {*now} == (due if found.unchecked is None else set()), found
    for each in found.subscriptions:
        assert (each.state == "in use") == (each.last_active is None)
        assert (each.state == "unused") == (each.due is not None)
        assert (
            each.due is None
            or each.last_active is None
            or each.due in (each.last_active + each.minutes * 60_000 + 1, found.clock)
        )
        assert (each.deletes_at is not None) == (
            each.due is not None and found.unchecked is None and found.next_check is not None
        )
    ahead = [each.deletes_at for each in found.subscriptions if each.deletes_at is not None]
    for until in sorted({*ahead, *([] if found.next_check is None else [found.next_check])}):
        rows = after(state, store, name, Tick(), until)
        gone = topic_deleted(rows)
        expected = {
            each: one.deletes_at
            for each, one in of.items()
            if one.deletes_at is not None and one.deletes_at <= (gone or until)
        }
        if gone is None:
            assert subscriptions_deleted(rows) == expected, (until, found)
        else:  # the topic was deleted first, with what it had
            assert subscriptions_deleted(rows).items() <= expected.items(), (until, found)
