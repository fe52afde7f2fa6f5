"""Why TTL, unused topics and subscriptions, and deduplication do what they do: what the answers say is what the checks then do."""

import pytest

from schemas.commands import RunCheck, Tick, to_json
from schemas.effects import Expired, Row
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
                each: one.expires for each, one in of.items() if one.expires is not None and one.expires.at <= until
            }, (until, found)
