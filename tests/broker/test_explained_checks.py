"""Why TTL, unused topics and subscriptions, and deduplication do what they do: what the answers say is what the checks then do."""

import pytest

from schemas.commands import Admin, RunCheck, Tick, to_json
from schemas.effects import Expired, Row, SubscriptionEvent, TopicEvent
from streaming.broker.broker import Broker
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.persistent.cleanup.message_expiry import Expiration
from streaming.broker.persistent.topic import PersistentTopic
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
            snapshots_agree(broker, store, name)
            absent_producers_agree(broker, store, name)


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


def later(
    state: bytes, store: Stored, name: str, time: int, command: Tick | RunCheck
) -> PersistentTopic | None:
    """A topic of a copy of the broker after a command at `time`. None: it was deleted."""
    broker = Broker.decode(state, store)
    feed(broker, broker.offset + 1, time, None, to_json(command))
    return broker.topic(name) if name in broker.topic_names() else None


def snapshots_agree(broker: Broker, store: Stored, name: str) -> None:
    state = broker.encode()
    found = Broker.decode(state, store).deduplication(name)
    before = Broker.decode(state, store).topic(name).dedup.last_snapshot

    checked = later(state, store, name, broker.clock, RunCheck(check="deduplicationSnapshot"))
    assert checked is not None
    assert (found.unchecked is None and found.state == "not checked yet") == (
        checked.dedup.last_snapshot != before
    ), found
    assert (found.due is not None) == (found.state in ("not yet", "not checked yet"))
    if found.snapshot_at is not None:
        early = later(state, store, name, found.snapshot_at - 1, Tick())
        if (
            early is not None and early.dedup.last_snapshot == before
        ):  # neither the purge nor a quota has taken one
            then = later(state, store, name, found.snapshot_at, Tick())
            assert then is None or then.dedup.last_snapshot == found.snapshot_at, found

    for crashes, changes in ((False, found.unload), (True, found.crash)):
        loaded = after_load(state, store, name, crashes=crashes)
        if found.status == "Enabled":
            now = Broker.decode(state, store).topic(name).dedup
            known = {producer: now.pushed(producer) for producer in (*now.persisted, *now.ahead)}
            expected = {**known, **{each.producer: each.after for each in changes}}
            assert loaded.dedup.persisted == {
                producer: id_ for producer, id_ in expected.items() if id_ is not None
            }, found
        else:
            assert changes == []


def after_load(state: bytes, store: Stored, name: str, *, crashes: bool) -> PersistentTopic:
    """A topic that was unloaded and is loaded again. `crashes`: its cursors are as they were written last."""
    broker = Broker.decode(state, store)
    topic = broker.topic(name)
    if (
        crashes
        and DEDUP_CURSOR in topic.cursors
        and (saved := topic.cursors[DEDUP_CURSOR].persisted) is not None
    ):
        cursor = topic.cursors[DEDUP_CURSOR]
        cursor.mark_delete, cursor.properties, cursor.persisted = saved.mark_delete, saved.properties, None
    path = "/" + name.replace("://", "/")
    for method, call in (("PUT", "/unload"), ("GET", "/stats")):
        command = Admin(method=method, path=path + call)  # type: ignore[arg-type]
        feed(broker, broker.offset + 1, broker.clock, name, to_json(command))
        assert broker.is_closed(name) == (call == "/unload")
    return broker.topic(name)


def absent_producers_agree(broker: Broker, store: Stored, name: str) -> None:
    state = broker.encode()
    found = Broker.decode(state, store).absent_producers(name)
    of = {each.producer: each for each in found.producers}
    here = Broker.decode(state, store).topic(name)
    assert {each.producer: each.sequence_id for each in found.producers if each.sequence_id is not None} == {
        producer: id_ for producer, id_ in here.dedup.persisted.items() if producer in of
    }
    assert {*here.dedup.persisted} <= {*of, *here.producers} or here.dedup.status != "Enabled"

    ahead = {each.forgotten_at for each in found.producers if each.forgotten_at is not None}
    for until in sorted({*ahead, *([] if found.next_check is None else [found.next_check])}):
        then = later(state, store, name, until, Tick())
        if then is None:
            return
        expected = {
            each for each, one in of.items() if one.forgotten_at is not None and one.forgotten_at <= until
        }
        forgotten = {*here.dedup.persisted} - {*then.dedup.persisted}
        assert forgotten & {*of} == expected & {*here.dedup.persisted}, (until, found)
        assert forgotten - {*of} <= {*here.producers}, "those that a quota has closed meanwhile"
        silent = {each for each in expected if of[each].state == "silent"}
        assert not silent & {each for each, one in then.producers.items() if one.producer_id is None}, (
            until,
            found,
        )
