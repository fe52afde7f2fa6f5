"""Why a subscription gets nothing: the deciders name a reason whenever dispatching sends nothing, and none when it sends."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import (
    Ack,
    Admin,
    AnyCommand,
    ConnectionLost,
    Flow,
    MessageIdData,
    Profile,
    Subscribe,
    SubType,
    to_json,
)
from schemas.effects import Effect, Expired, Message
from streaming.broker.broker import Broker
from streaming.broker.dispatch.verdict import Verdict, unacked_of_broker
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.persistent.delivery import Delivery, EntryState, Show
from streaming.broker.position import Position
from tests.broker.kit import START, TOPIC, Run, Stored, feed, sent
from tests.broker.random_lives import restarts
from tests.broker.recorded_lives import NAMES
from tests.examples import examples

SHOWN: tuple[Show, ...] = get_args(Show)


@pytest.mark.parametrize(("theme", "seed"), NAMES[2::4])
def test_there_is_a_reason_whenever_entries_wait(theme: str, seed: int) -> None:
    for broker, store, _ in restarts(theme, seed, 0.1):
        check(broker, store)


def check(broker: Broker, store: Stored) -> None:
    state = broker.encode()
    for name in broker.topic_names():
        if is_non_persistent(name):
            continue
        for subscription in broker.topic(name).subscriptions:
            found = Broker.decode(state, store).delivery(name, subscription)
            dispatcher = broker.topic(name).subscriptions[subscription].dispatcher
            if getattr(dispatcher, "pending_read", 0):
                stays = broker.topic(name).cursors[subscription].reads_compacted  # whatever is trimmed
                withheld = "open transaction" in {each.decider for each in found.verdicts}
                assert withheld or found.unread in (0, found.gone if stays else 0), (
                    "a read waits only at the end of the topic, or before what a transaction holds back"
                )
            assert not [each for each in found.verdicts if "None" in each.text], "names nobody"
            delayed = Broker.decode(state, store).peek(name, subscription, "delayed", 9999)
            assert found.delayed == len(delayed), (found, delayed)
            blocking = [verdict for verdict in found.verdicts if verdict.blocks]
            if found.state == "held back":
                assert blocking, found
            if found.sends:
                assert (
                    not [
                        each
                        for each in blocking
                        if each.scope == "everything" and "Failover" not in each.decider
                    ]
                    or found.lost
                ), found
            comes_true(Broker.decode(state, store), store, found)


def comes_true(broker: Broker, store: Stored, found: Delivery) -> None:
    """The broker does what the state says: acks finish what is in flight, permits release what waits for them, and what is lost comes
    again when all consumers have left."""
    subscription = broker.topic(found.topic).subscriptions[found.subscription]
    consumers = [*subscription.consumers]
    assert (found.state == "lost") <= bool(found.lost)
    blocking = [each for each in found.verdicts if each.blocks]
    if found.state == "caught up":
        assert not broker.peek(found.topic, found.subscription, "backlog", 1)
    elif found.state == "in flight":
        entries = broker.peek(found.topic, found.subscription, "backlog", 9999)
        assert {each.state for each in entries} <= {"in flight", "pending ack"}, found
        ids = [MessageIdData(*at(each.position)) for each in entries]
        one = consumers[0]
        tell(
            broker,
            found.topic,
            Ack(
                connection=one.connection, consumer_id=one.consumer_id, ack_type="Individual", message_id=ids
            ),
        )
        assert not broker.peek(found.topic, found.subscription, "backlog", 1), found
    elif found.state == "held back" and {each.decider for each in blocking} == {"permits"}:
        before = told(broker, found)
        for one in consumers:
            tell(
                broker,
                found.topic,
                Flow(connection=one.connection, consumer_id=one.consumer_id, messagePermits=1000),
            )
        if (
            told(Broker.decode(broker.encode(), store), found) == before
        ):  # then something else holds them back, too
            now = broker.delivery(found.topic, found.subscription)
            reasons = {each.decider for each in now.verdicts if each.blocks}
            # What was released may wait for a time then, or an entry filter acked it.
            assert now.state not in {"held back", "lost"} or reasons - {"permits"}, (found, now)
    elif found.lost:
        again_is_true(broker, store, found)


AGAIN = {
    "read position": "rejoin",
    "chunk owner": "rejoin",
    "chunk owner left": "unload",
    "first chunk": "never",
}
"""By the decider of a verdict on chunks, when they come again."""


def again_is_true(broker: Broker, store: Stored, found: Delivery) -> None:
    """Chunks that nobody can take come again when the verdict says so, and not before."""
    state = broker.encode()
    kind = broker.topic(found.topic).subscriptions[found.subscription].type
    assert kind is not None
    sent_again = dict[str, set[str]]()
    limited = False
    for happens in ("rejoin", "unload"):
        broker = Broker.decode(state, store)
        if happens == "unload":
            call = found.topic.replace("://", "/") + "/unload"
            tell(broker, found.topic, Admin(method="PUT", path=f"/{call}"))
        for connection in {
            each.connection for each in broker.topic(found.topic).subscriptions[found.subscription].consumers
        }:
            tell(broker, None, ConnectionLost(connection=connection))
        if found.subscription not in broker.topic(found.topic).subscriptions:
            return  # a reader's goes with it
        join = Subscribe(
            connection="new", consumer_id=1, subscription=found.subscription, subType=kind, request_id=1
        )
        # what is loaded expires messages
        limited |= any(isinstance(each, Expired) for each in tell(broker, found.topic, join))
        got = tell(broker, found.topic, Flow(connection="new", consumer_id=1, messagePermits=1000))
        sent_again[happens] = {
            f"{each.ledger_id}:{each.entry_id}" for each in got if isinstance(each, Message)
        }
        now = broker.delivery(found.topic, found.subscription)
        others = {each.decider for each in now.verdicts if each.blocks} - {*AGAIN, "backlog", "permits"}
        limited |= bool(others or now.unread or now.delayed)
    for each in found.verdicts:
        if each.decider in AGAIN:
            at_first = each.text.partition(", from ")[2].partition(" on:")[0]
            comes = [happens for happens, those in sent_again.items() if at_first in those]
            expected = {"rejoin": ["rejoin", "unload"], "unload": ["unload"], "never": []}[
                AGAIN[each.decider]
            ]
            assert comes == expected or (limited and set(comes) < set(expected)), (comes, expected, found)


def chunk(run: Run, number: int) -> None:
    run.send(number, uuid="u", chunk_id=number, num_chunks_from_msg=3)


class Chunked(Run):
    """With a producer, and the entries stored."""

    def __init__(self) -> None:
        self.entries = Stored()
        super().__init__(reader=self.entries)
        self.create_producer()

    def raw(self, value: bytes, topic: str | None = TOPIC) -> list[Effect]:
        found = super().raw(value, topic)
        self.entries.add(found)
        return found


@pytest.mark.parametrize(
    ("permits", "acked", "last", "decider", "text"),
    [
        # dealt to the consumer that left, which the last chunk forgets: then to whoever gets the first one
        (9, False, True, "chunk owner", "unacked, and sent again when all consumers of the subscription have left and one joins"),
        (9, True, True, "first chunk", "unacked, and never sent again, for the first chunk is acked or deleted, and without that one"),
        # while the message is not complete, it is still that consumer's
        (9, False, False, "chunk owner left", "unacked, and sent again only when the topic was unloaded, for the message is still that"),
        # it has no permits left
        (2, False, True, "chunk owner left", "the consumer that got the first chunk has left, and has no permits"),
        (2, True, True, "first chunk", "the first chunk of the message is acked or deleted, so nobody gets the others"),
    ],
)  # fmt: skip
def test_chunks_of_a_consumer_that_left(
    permits: int, acked: bool, last: bool, decider: str, text: str
) -> None:
    run = Chunked()
    run.subscribe("s", "Shared", id_=1, permits=permits)
    chunk(run, 0)
    if last:
        chunk(run, 1)
    if acked:
        run.ack("s", (1, 0), (1, 1))
    run.close_consumer("s")
    run.subscribe("s", "Shared", id_=2, permits=9)
    chunk(run, 2 if last else 1)
    found = run.broker.delivery(TOPIC, "s")
    assert found.state == ("held back" if found.unread else "lost")
    verdicts = [each for each in found.verdicts if each.decider in AGAIN]
    assert verdicts[-1].decider == decider
    assert text in verdicts[-1].text
    check(run.broker, run.entries)


def test_chunks_without_a_consumer_hold_up_new_entries() -> None:
    """The last chunk was dealt, so nobody owns the message: what comes back waits for its first chunk, which is acked."""
    run = Chunked()
    run.subscribe("s", "Shared", id_=1, permits=9)
    for number in range(3):
        chunk(run, number)
    run.ack("s", (1, 0))
    run.close_consumer("s")
    run.subscribe("s", "Shared", id_=2, permits=9)
    assert not sent(run.send(3))
    found = run.broker.delivery(TOPIC, "s")
    assert (found.state, found.lost, found.to_redeliver, found.unread) == ("held back", 2, 0, 1)
    (held,) = [each for each in found.verdicts if each.blocks]
    assert (held.decider, held.scope) == ("first chunk", "new")
    assert found.first[0].text == "a chunk that waits in the replay queue, and that nobody can take"
    check(run.broker, run.entries)
    run.admin("POST", "/subscription/s/skip/2")
    assert run.broker.delivery(TOPIC, "s").state != "held back"


CHUNKS = st.lists(
    st.one_of(
        st.tuples(st.just("chunk"), st.sampled_from("uv"), st.integers(0, 2)),
        st.tuples(st.sampled_from(["message", "unload"]), st.just(""), st.just(0)),
        st.tuples(st.just("join"), st.sampled_from(["1", "3", "9"]), st.integers(1, 3)),
        st.tuples(st.sampled_from(["leave", "again"]), st.just(""), st.integers(1, 3)),
        st.tuples(st.just("ack"), st.just(""), st.integers(0, 7)),
        st.tuples(st.just("flow"), st.just(""), st.integers(1, 3)),
    ),
    max_size=25,
)


@settings(max_examples=examples(150))
@given(CHUNKS)
def test_what_is_said_of_chunks_is_what_the_dispatcher_does(steps: list[tuple[str, str, int]]) -> None:
    """Whoever comes, leaves and acknowledges: the reason is there, and what is lost comes again as it says."""
    run = Chunked()
    joined: set[int] = set()
    for number, (what, text, count) in enumerate(steps):
        match what:
            case "chunk":
                run.send(number, uuid=text, chunk_id=count, num_chunks_from_msg=3)
            case "message":
                run.send(number)
            case "unload":
                run.unload()
                joined.clear()
                run.create_producer()
            case "join" if count not in joined:
                run.subscribe("s", "Shared", id_=count, permits=int(text))
                joined.add(count)
            case "leave" if count in joined:
                run.close_consumer("s", id_=count)
                joined.remove(count)
            case "again" if count in joined:
                run.redeliver("s", id_=count)
            case "flow" if count in joined:
                run.flow("s", 2, id_=count)
            case "ack" if joined and "s" in run.topic.subscriptions:
                run.ack("s", (1, count), id_=min(joined))
        check(run.broker, run.entries)


def at(position: str) -> tuple[int, int]:
    ledger, _, entry = position.partition(":")
    return int(ledger), int(entry)


def told(broker: Broker, found: Delivery) -> tuple[Position, int]:
    """How far a subscription has read, and how much its consumers got."""
    topic = broker.topic(found.topic)
    sent = sum(each.messages_out for each in topic.subscriptions[found.subscription].consumers)
    return topic.cursors[found.subscription].read_position, sent


def tell(broker: Broker, topic: str | None, command: AnyCommand) -> list[Effect]:
    feed(broker, broker.offset + 1, broker.clock, topic, to_json(command))
    return [row.effect for row in broker.take()]


def test_what_a_subscription_sees_of_its_first_entries() -> None:
    run = Run()
    run.subscribe("s", "Shared", permits=3)
    for sequence_id in range(5):
        run.publish(sequence_id)
    run.ack("s", (1, 1))
    found = {show: [each.position for each in run.broker.peek(TOPIC, "s", show, 9)] for show in SHOWN}
    assert found == {
        "backlog": ["1:0", "1:2", "1:3", "1:4"], "inflight": ["1:0", "1:2"], "delayed": [], "holes": ["1:1"],
    }  # fmt: skip
    assert [each.position for each in run.broker.peek(TOPIC, "s", "backlog", 2)] == ["1:0", "1:2"]
    assert run.broker.peek(TOPIC, "s", "holes", 1)[0].state == "acked"
    assert run.broker.entry_state(TOPIC, "s", Position(1, 4)).state == "unread"
    with pytest.raises(KeyError):
        run.broker.peek(f"{TOPIC}2", "s", "backlog", 1)


# -- where entries are


def state_of(run: Run, ledger: int, entry: int) -> EntryState:
    return run.broker.entry_state(TOPIC, "s", Position(ledger, entry))


def peek(run: Run, show: Show, most: int = 99) -> list[tuple[str, str]]:
    return [(each.position, each.state) for each in run.broker.peek(TOPIC, "s", show, most)]


def verdict(run: Run, decider: str) -> Verdict:
    (found,) = [each for each in run.broker.delivery(TOPIC, "s").verdicts if each.decider == decider]
    return found


def mixed() -> Run:
    """1:0 and 1:3 are in flight, 1:1 and 1:2 acked out of order, 1:4 and 1:5 are delayed, 1:6 is in flight, and nobody has permits for 1:7."""
    run = Run()
    run.create_producer()
    run.subscribe("s", "Shared", permits=4)
    for n in range(4):
        run.send(n)
    run.ack("s", (1, 1), (1, 2))
    run.flow("s", 1)
    for n in (4, 5):
        run.send(n, deliver_at_time=START + 60_000 * n)
    assert sent(run.send(6)) == [6]
    run.send(7)
    return run


@pytest.mark.parametrize(
    ("show", "entries"),
    [
        (
            "backlog",
            [
                ("1:0", "in flight"),
                ("1:3", "in flight"),
                ("1:4", "delayed"),
                ("1:5", "delayed"),
                ("1:6", "in flight"),
                ("1:7", "unread"),
            ],
        ),
        ("inflight", [("1:0", "in flight"), ("1:3", "in flight"), ("1:6", "in flight")]),
        ("delayed", [("1:4", "delayed"), ("1:5", "delayed")]),
        ("holes", [("1:1", "acked"), ("1:2", "acked")]),
    ],
)
def test_the_first_entries_of_a_kind(show: Show, entries: list[tuple[str, str]]) -> None:
    run = mixed()
    assert peek(run, show) == entries
    assert peek(run, show, 1) == entries[:1]


def test_each_delayed_entry_waits_for_its_own_time() -> None:
    run = mixed()
    assert [state_of(run, 1, entry).until for entry in (4, 5)] == [START + 240_000, START + 300_000]


def test_what_is_passed_or_was_never_written() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=2)
    run.subscribe("s", "Shared", permits=1)
    for n in range(3):
        run.publish(n)
    run.ack("s", (1, 0))
    assert run.mark_delete("s") == (1, 0)
    assert (state_of(run, 1, 0).state, state_of(run, 1, 1).state) == ("passed", "unread")
    assert (state_of(run, 2, 0).state, state_of(run, 2, 1).state) == ("unread", "not written")
    assert state_of(run, 2, 1).text == "the last confirmed entry is 2:0"
    behind = state_of(run, 1, 2)
    assert (behind.state, behind.text) == ("not written", "ledger 1 was closed before it")


def test_an_empty_ledger_that_an_unload_left_is_deleted() -> None:
    run = Run()
    run.subscribe("s", "Shared")
    run.publish(0)
    run.unload()
    run.unload()
    run.publish(1)
    last = run.topic.ledger.last_confirmed
    assert [ledger for ledger in range(1, last.ledger) if ledger not in run.topic.ledger.ledgers] == [2]
    assert state_of(run, 2, 0).state == "deleted"
    assert (state_of(run, 1, 0).state, state_of(run, *last).state) == ("unread", "unread")


# -- what the dispatchers say


def failover() -> Run:
    """Three consumers, of which the first by name is active at once."""
    run = Run()
    for id_ in (1, 2, 3):
        run.subscribe("s", "Failover", id_=id_, consumer_name=f"c{id_}", permits=9)
    return run


def inactive(run: Run) -> dict[str, str]:
    """What is said of each consumer that is not the active one."""
    found = [each for each in run.broker.delivery(TOPIC, "s").verdicts if each.decider == "active consumer"]
    assert all(each.blocks for each in found)
    return {each.consumer: each.text for each in found if each.consumer is not None}


def test_who_is_not_active_is_told_who_is() -> None:
    active = failover().broker.delivery(TOPIC, "s")
    assert [each.consumer for each in active.verdicts if each.decider == "permits"] == ["c1"]
    assert inactive(failover()) == dict.fromkeys(["c2", "c3"], "not the active consumer, which is c1")


def test_after_a_seek_nobody_is_active_and_nobody_is_named() -> None:
    run = failover()
    run.seek("s", time=0)
    assert inactive(run) == dict.fromkeys(["c2", "c3"], "not the active consumer")


def test_delays_that_are_all_the_same_hold_everything_back() -> None:
    run = Run(delayedDeliveryFixedDelayDetectionLookahead=2)
    run.create_producer()
    run.subscribe("s", "Shared", permits=9)
    for n in range(2):
        run.send(n, deliver_at_time=START + 60_000)
        found = verdict(run, "delayedDelivery")
        assert (found.blocks, found.until) == (n == 1, START + 60_000)
    assert (
        found.text
        == "2 entries wait for their delivery time; they all have one delay, so nothing else is read before"
    )
    assert sent(run.publish(2)) == []


def test_a_full_replay_queue_holds_new_entries_back() -> None:
    run = Run(keySharedLookAheadMsgInReplayThresholdPerSubscription=2)
    run.subscribe("s", "Key_Shared", permits=9)
    run.subscribe("s", "Key_Shared", id_=2)
    keys = {n: run.publish(n, key=f"k{n}") for n in range(40)}
    assert len(run.topic.subscriptions["s"].dispatcher.replay) >= 2  # type: ignore[union-attr]
    found = verdict(run, "replay queue")
    assert (found.blocks, found.scope) == (True, "new")
    assert found.text.endswith("so many that no new ones are read")
    assert not sent(keys[39])


@pytest.mark.parametrize(("limit", "acks"), [(2, 1), (4, 2), (5, 3)])
def test_a_blocked_consumer_is_unblocked_by_the_ack_that_its_verdict_names(limit: int, acks: int) -> None:
    run = Run(maxUnackedMessagesPerConsumer=limit)
    run.subscribe("s", "Shared", permits=100)
    for n in range(limit + 1):
        run.publish(n)
    assert verdict(run, "maxUnackedMessagesPerConsumer").text == (
        f"{limit} unacked messages, the limit is {limit}; unblocked by an ack that leaves {limit // 2} or fewer"
    )
    assert [bool(sent(run.ack("s", (1, n)))) for n in range(acks)] == [*[False] * (acks - 1), True]


def test_a_consumer_whose_limit_was_lifted_while_it_was_blocked_is_unblocked_by_its_next_ack() -> None:
    run = Run(maxUnackedMessagesPerConsumer=4)
    run.subscribe("s", "Shared", permits=100)
    for n in range(5):
        run.publish(n)
    run.namespace("POST", "maxUnackedMessagesPerConsumer", 0)
    found = verdict(run, "maxUnackedMessagesPerConsumer")
    assert (found.blocks, found.text) == (True, "4 unacked messages, no limit; unblocked by its next ack")
    assert sent(run.ack("s", (1, 0))) == [4]
    assert not verdict(run, "maxUnackedMessagesPerConsumer").blocks


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (None, "the broker has reached its limit of unacked messages"),
        (1, "the broker has reached its limit of 1 unacked messages; a limit of 1 never unblocks"),
        (2, "the broker has reached its limit of 2 unacked messages"),
    ],
)
def test_a_limit_of_the_broker_that_nothing_is_below_half_of(limit: int | None, text: str) -> None:
    assert unacked_of_broker(limit).text.partition(",")[0] == text


@pytest.mark.parametrize("profile", ["4.0", "3.0"])
def test_a_limit_that_is_lowered_to_what_a_consumer_has_leaves_it_no_room_for_keys(profile: Profile) -> None:
    run = lowered_limit("Key_Shared", profile)
    assert not sent(run.publish(4, key="k"))
    found = verdict(run, "maxUnackedMessagesPerConsumer")
    assert (found.blocks, found.text) == (
        True,
        "4 unacked messages, the limit is 3; there is room after an ack that leaves fewer",
    )
    assert run.broker.delivery(TOPIC, "s").state == "held back"
    assert not sent([*run.ack("s", (1, 0)), *run.wait(1)])  # leaves three
    assert sent([*run.ack("s", (1, 1)), *run.flow("s", 1), *run.wait(1)]) == [4]


def test_a_limit_that_is_lowered_to_what_a_consumer_has_blocks_no_shared_one_before_its_next_flow() -> None:
    run = lowered_limit("Shared", "4.0")
    assert not verdict(run, "maxUnackedMessagesPerConsumer").blocks
    assert sent(run.publish(4)) == [4]
    assert not sent(run.publish(5))
    assert verdict(run, "maxUnackedMessagesPerConsumer").blocks


def lowered_limit(kind: SubType, profile: Profile) -> Run:
    """A consumer has four unacked messages, and may have three now."""
    run = Run(profile=profile)
    run.subscribe("s", kind, permits=100)
    for n in range(4):
        run.publish(n, key="k")
    run.namespace("POST", "maxUnackedMessagesPerConsumer", 3)
    return run
