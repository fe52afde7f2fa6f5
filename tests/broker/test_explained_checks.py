"""Why TTL, unused topics and subscriptions, and deduplication do what they do: what the answers say is what the checks then do."""

from typing import Any

import pytest

from schemas.commands import Admin, RunCheck, Tick, to_json
from schemas.effects import Expired, Row, SubscriptionEvent, TopicEvent
from streaming.broker.broker import Broker
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.persistent.cleanup.inactive_subscriptions import InactiveSubscription
from streaming.broker.persistent.cleanup.inactivity import InactiveTopic
from streaming.broker.persistent.cleanup.message_expiry import Expiration, SubscriptionExpiry
from streaming.broker.persistent.publish.deduplication_snapshots import DeduplicationSnapshots, RecoveredId
from streaming.broker.persistent.publish.producer_purge import AbsentProducer
from streaming.broker.persistent.topic import SHADOW_SOURCE, PersistentTopic
from tests.broker.kit import START, TOPIC, Run, Stored, feed
from tests.broker.random_lives import restarts
from tests.broker.recorded_lives import NAMES
from tests.broker.test_quota_and_retention import Kept


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


# -- each reason


def asked(run: Kept) -> Broker:
    """A copy of the broker, to ask something."""
    run.broker.take()
    return Broker.decode(run.broker.encode(), run.store)


def ttl(run: Run, seconds: int) -> None:
    run.namespace("POST", "messageTTL", seconds)


def expiry_of(run: Kept, subscription: str = "s") -> SubscriptionExpiry:
    (found,) = [each for each in asked(run).expiry(TOPIC).subscriptions if each.subscription == subscription]
    return found


def test_ttl_of_a_backlog_that_is_too_young() -> None:
    run = Kept(messageExpiryCheckIntervalInMinutes=1)
    ttl(run, 90)
    run.subscribe("s")
    run.close_consumer("s")
    run.wait(10)
    run.fill(3)
    found = asked(run).expiry(TOPIC)
    assert (found.ttl, found.level, found.next_check, found.unchecked) == (
        90,
        "namespace",
        START + 60_000,
        None,
    )
    of = expiry_of(run)
    assert (of.state, of.position, of.published, of.due) == (
        "too young",
        "1:0",
        START + 10_000,
        START + 100_001,
    )
    assert of.expires == Expiration(START + 120_000, 3, "1:-1", "1:2", "message TTL")
    run.wait(95)
    of = expiry_of(run)
    assert (of.state, of.due, of.expires and of.expires.at) == ("not checked yet", run.now, START + 120_000)
    run.wait(15)
    assert expiry_of(run).state == "nothing to expire"


def test_no_ttl_and_no_check() -> None:
    run = Kept()
    run.subscribe("s")
    run.fill(1)
    found = asked(run).expiry(TOPIC)
    assert (found.unchecked, found.subscriptions) == ("messageTTL is 0: nothing expires", [])
    ttl(run, 1)
    run.wait(5)
    found = asked(run).expiry(TOPIC)
    assert (found.next_check, found.unchecked, found.subscriptions[0].state) == (
        None,
        None,
        "not checked yet",
    )
    assert found.subscriptions[0].expires is None


def test_ttl_of_readers_alone() -> None:
    run = Kept(messageExpiryCheckIntervalInMinutes=1, brokerDeduplicationEnabled=False)
    ttl(run, 1)
    run.subscribe("s", durable=False)
    run.fill(1)
    assert expiry_of(run).state == "no durable subscription"


def test_ttl_behind_a_younger_entry() -> None:
    run = Kept(messageExpiryCheckIntervalInMinutes=1)
    run.subscribe("s", permits=9)
    run.publish(0, publish_time=START + 10**9)
    run.publish(1)
    run.ack("s", (1, 0))
    ttl(run, 1)
    run.wait(5)
    found = expiry_of(run)
    assert (found.state, found.position) == ("not found", "1:1")
    assert found.text.endswith("begins at the first stored entry, which is younger or can't be read")


def test_ttl_of_a_subscription_that_has_nearly_caught_up() -> None:
    run = Kept(messageExpiryCheckIntervalInMinutes=1, messageExpirySharedPosition=False)
    ttl(run, 60)
    run.subscribe("s")
    run.fill(1)
    run.wait(61)
    found = expiry_of(run)
    assert (found.state, found.due) == ("left alone", START + 90_001)
    assert found.text.endswith("the oldest is younger than 1.5 times the TTL")
    assert found.expires == Expiration(START + 120_000, 1, "1:-1", "1:0", "message TTL")


def test_ttl_of_a_backlog_that_is_counted_wrong() -> None:
    run = Kept(messageExpirySharedPosition=False)
    run.fill(1)
    run.subscribe("s")
    run.topic.cursors["s"].consumed = run.topic.ledger.entries_added
    ttl(run, 1)
    found = expiry_of(run)
    assert (found.state, found.text, found.due) == (
        "left alone",
        "its backlog counts no entry that can be read",
        None,
    )


def test_what_expires_first_may_be_several_rows_of_one_check() -> None:
    of = SubscriptionExpiry("s", "too young", "", "1:0", START, START)
    for at, first, last in ((1, -1, 1), (1, 1, 4), (2, 4, 6)):
        of.add(at, Expired(TOPIC, "s", 1, first, 1, last, last - first, "message TTL", ""))
    assert of.expires == Expiration(1, 5, "1:-1", "1:4", "message TTL")


def test_it_takes_too_many_checks_to_find_what_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.broker.broker._MOST_ROUNDS", 0)
    run = Kept(messageExpiryCheckIntervalInMinutes=1)
    ttl(run, 90)
    run.subscribe("s")
    run.fill(1)
    found = asked(run).expiry(TOPIC)
    assert found.subscriptions[0].expires is None
    assert found.unknown == [
        "what expires next for s: nothing in the next 0 checks that may expire something"
    ]


def test_an_answer_about_a_topic_lets_time_pass_there_alone() -> None:
    run = Kept(messageExpiryCheckIntervalInMinutes=1)
    ttl(run, 6000)
    for name in (TOPIC, f"{TOPIC}2"):
        run.subscribe("s", topic=name, connection=name)
        run.fill(1, topic=name)
    broker = asked(run)
    (found,) = broker.expiry(TOPIC).subscriptions
    assert found.expires is not None
    assert broker.clock == found.expires.at
    assert broker.topic(TOPIC).backlog() == 0
    assert broker.topic(f"{TOPIC}2").backlog() == 1


def unused(run: Kept) -> InactiveTopic:
    return asked(run).inactivity(TOPIC)


CHECKED: dict[str, Any] = {
    "brokerDeleteInactiveTopicsEnabled": True,
    "brokerDeleteInactiveTopicsFrequencySeconds": 10,
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": 25,
}


def test_who_uses_a_topic() -> None:
    run = Kept(**CHECKED)
    run.create_producer("p")
    found = unused(run)
    assert (found.state, found.text, found.deletes_at) == ("in use", "it has producers: p", None)
    assert (found.mode, found.seconds, found.level) == ("delete_when_no_subscriptions", 25, "broker")
    run.close_producer()
    for number in range(12):
        run.subscribe(f"s{number}", id_=number)
    assert unused(run).text == "it has subscriptions: s0, s1, s2, s3, s4, s5, s6, s7, s8, s9 and 2 more"
    body = {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 5,
        "deleteWhileInactive": True,
    }
    run.namespace("POST", "inactiveTopicPolicies", body)
    found = unused(run)
    assert (found.state, found.level, found.deletes_at) == ("unused", "namespace", START + 10_000)
    run.create_producer("p")
    run.send(0)
    run.close_producer()
    assert unused(run).text.startswith("subscriptions have a backlog: s0, s1")


def test_when_an_unused_topic_is_deleted() -> None:
    run = Kept(**CHECKED)
    run.admin("PUT", "")
    found = unused(run)
    assert (found.state, found.text, found.last_active, found.keeps) == (
        "unused",
        "nobody uses it",
        START,
        25,
    )
    assert (found.due, found.next_check, found.deletes_at) == (START + 25_000, START + 10_000, START + 30_000)
    run.create_producer("p")
    run.send(0)
    run.close_producer()
    run.namespace("POST", "retention", {"retentionTimeInMinutes": 2, "retentionSizeInMB": 1})
    assert (unused(run).keeps, unused(run).deletes_at) == (120, START + 120_000)
    run.namespace("POST", "retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    found = unused(run)
    assert (found.state, found.due, found.keeps, found.last_active) == ("retention", None, None, START)


def test_a_topic_whose_last_subscription_goes_in_the_same_round() -> None:
    run = Kept(**{**CHECKED, "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": 0, "brokerDeleteInactiveTopicsFrequencySeconds": 120},
               subscriptionExpirationTimeMinutes=1, subscriptionExpiryCheckIntervalInMinutes=2)  # fmt: skip
    run.subscribe("s")
    run.close_consumer("s")
    found = unused(run)
    assert (found.state, found.due, found.deletes_at) == ("in use", None, START + 120_000)


def test_a_topic_that_is_never_deleted() -> None:
    run = Kept()
    run.admin("PUT", "")
    assert unused(run).text == unused(run).unchecked == "brokerDeleteInactiveTopicsEnabled is false"
    run.configure(**CHECKED)
    run.namespace(
        "POST", "inactiveTopicPolicies", {"maxInactiveDurationSeconds": 5, "deleteWhileInactive": False}
    )
    assert (unused(run).state, unused(run).text) == ("off", "deleteWhileInactive is false")
    run.namespace(
        "POST", "inactiveTopicPolicies", {"maxInactiveDurationSeconds": 5, "deleteWhileInactive": True}
    )
    assert (unused(run).state, unused(run).text) == ("off", "inactiveTopicDeleteMode is not set")
    run.namespace("DELETE", "inactiveTopicPolicies")
    run.admin("PUT", "", {SHADOW_SOURCE: f"{TOPIC}-source"}, topic=f"{TOPIC}-shadow")
    assert asked(run).inactivity(f"{TOPIC}-shadow").state == "source"
    run.raw(b'{"command": "RESTART"}', None)
    assert "not loaded" in (unused(run).unchecked or "")
    assert unused(run).deletes_at is None


def test_a_replicator_keeps_a_topic_without_using_it() -> None:
    run = Kept(**CHECKED)
    run.create_producer("pulsar.repl.r")
    assert (unused(run).state, unused(run).text) == ("in use", "a replicator is connected")


def unused_subscription(run: Kept, name: str = "s") -> InactiveSubscription:
    (found,) = [
        each for each in asked(run).inactive_subscriptions(TOPIC).subscriptions if each.subscription == name
    ]
    return found


def test_when_a_subscription_is_deleted() -> None:
    run = Kept(subscriptionExpiryCheckIntervalInMinutes=5)
    run.subscribe("s")
    found = unused_subscription(run)
    assert (found.state, found.text, found.last_active, found.deletes_at) == (
        "in use",
        "it has consumers (1)",
        None,
        None,
    )
    run.wait(30)
    run.close_consumer("s")
    found = unused_subscription(run)
    assert (found.state, found.minutes, found.last_active, found.due) == ("kept", 0, START + 30_000, None)
    assert found.text == "subscriptionExpirationTime is 0: it may be without consumers for ever"
    run.namespace("POST", "subscriptionExpirationTime", 5)
    found = unused_subscription(run)
    assert (found.state, found.text, found.due, found.deletes_at) == (
        "unused", "no consumer", START + 330_001, START + 600_000
    )  # fmt: skip
    assert asked(run).inactive_subscriptions(TOPIC).level == "namespace"


def snapshots(run: Kept) -> DeduplicationSnapshots:
    return asked(run).deduplication(TOPIC)


DEDUPLICATED: dict[str, Any] = {
    "brokerDeduplicationEnabled": True,
    "brokerDeduplicationSnapshotFrequencyInSeconds": 60,
}


def test_when_the_next_snapshot_is_taken() -> None:
    run = Kept(**DEDUPLICATED, brokerDeduplicationEntriesInterval=4)
    run.create_producer("p")
    assert snapshots(run).state == "nothing new"
    run.send(0)
    found = snapshots(run)
    assert (found.status, found.wanted, found.level) == ("Enabled", True, "broker")
    assert (found.state, found.position, found.taken, found.entries, found.entries_left) == (
        "not checked yet",
        "1:-1",
        None,
        1,
        3,
    )
    assert (found.interval, found.interval_level, found.snapshot_at) == (120, "broker", START + 60_000)
    run.wait(60)
    found = snapshots(run)
    assert (found.state, found.position, found.producers, found.taken, found.entries) == (
        "nothing new",
        "1:0",
        1,
        run.now,
        0,
    )
    run.send(1)
    found = snapshots(run)
    assert (found.state, found.due, found.snapshot_at) == ("not yet", START + 180_000, START + 180_000)
    assert (found.unload, found.crash) == ([], [])
    run.namespace("POST", "deduplicationSnapshotInterval", 0)
    assert (snapshots(run).state, snapshots(run).interval_level) == ("by count", "namespace")
    run.send(2)
    run.send(3)
    assert (snapshots(run).entries, snapshots(run).entries_left) == (0, 4)


def test_what_an_unload_forgets() -> None:
    run = Kept(**DEDUPLICATED, brokerDeduplicationMaxNumberOfProducers=1)
    run.create_producer("p")
    run.create_producer("q", 2)
    run.send(7)
    run.send(8, name="q", id_=2)
    assert snapshots(run).unload == []
    run.wait(60)
    assert snapshots(run).unload == snapshots(run).crash == [RecoveredId("q", 8, None)]


def test_what_a_crash_forgets() -> None:
    run = Kept(**DEDUPLICATED, brokerDeduplicationEntriesInterval=1, managedLedgerDefaultMarkDeleteRateLimit=0.001,
               managedLedgerCursorPositionFlushSeconds=0, brokerDeduplicationMaxNumberOfProducers=1)  # fmt: skip
    run.create_producer("p")
    run.send(0)
    run.send(1)
    found = snapshots(run)
    assert (found.position, found.written, found.unload, found.crash) == ("1:1", False, [], [])
    run.fault("DelayWrites", 1)
    run.send(2)
    assert snapshots(run).unload == [RecoveredId("p", 2, 1)], "a write that is not confirmed"


def test_a_crash_begins_at_a_snapshot_that_is_written() -> None:
    run = Kept(
        **DEDUPLICATED,
        brokerDeduplicationEntriesInterval=2,
        managedLedgerDefaultMarkDeleteRateLimit=0.001,
        managedLedgerCursorPositionFlushSeconds=0,
    )
    run.create_producer("p")
    run.send(5)
    run.send(6)
    run.send(7, chunk_id=0, num_chunks_from_msg=2, uuid="u")
    run.publish(0, "q")
    found = snapshots(run)
    assert (found.position, found.written, found.unload) == ("1:3", False, [])
    assert found.crash == [RecoveredId("p", 6, 7)], "a recovery counts every chunk that it reads"


def test_deduplication_that_is_off_or_about_to_be() -> None:
    run = Kept(**DEDUPLICATED)
    run.create_producer("p")
    run.send(0)
    run.configure()
    found = snapshots(run)
    assert (found.status, found.wanted, found.unload) == ("Enabled", False, [RecoveredId("p", 0, None)])
    run.unload()
    found = snapshots(run)
    assert (found.status, found.state, found.unchecked, found.position) == (
        "Disabled",
        "off",
        "deduplication is off",
        None,
    )
    assert (found.unload, found.due) == ([], None)


def test_when_a_producer_is_forgotten() -> None:
    run = Kept(**DEDUPLICATED, brokerDeduplicationProducerInactivityTimeoutMinutes=3)
    run.create_producer("p")
    run.send(4)
    run.publish(9, "short")
    run.wait(30)
    run.close_producer()
    found = asked(run).absent_producers(TOPIC)
    assert (found.minutes, found.next_check, found.unchecked) == (3, START + 60_000, None)
    assert found.producers == [
        AbsentProducer("short", "silent", 9, START, START + 180_001, START + 240_000),
        AbsentProducer("p", "inactive", 4, START + 30_000, START + 210_001, START + 240_000),
    ]
    run.unload()
    found = asked(run).absent_producers(TOPIC)
    assert found.producers == [
        AbsentProducer("short", "inactive", 9, run.now, run.now + 180_001, START + 240_000),
        AbsentProducer("p", "kept", 4, None, None),
    ]
    run.configure(**DEDUPLICATED, brokerDeduplicationProducerInactivityTimeoutMinutes=0)
    found = asked(run).absent_producers(TOPIC)
    assert found.unchecked == "brokerDeduplicationProducerInactivityTimeoutMinutes is 0"
    assert {each.forgotten_at for each in found.producers} == {None}
