"""What 2.10 and 3.0 do otherwise than 4.0, rule by rule: the same log under each, with what comes of it worked out by hand.

The recordings of 2.10.5 and 3.0.7 (tests/conformance/test_versions.py) show the same of real brokers.
"""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import UNSET

from schemas.commands import Admin, GetLastMessageId, MessageIdData, PartitionedMetadata, Unsubscribe
from schemas.effects import (
    ActiveConsumerChange,
    AdminResponse,
    Error,
    LedgerClosed,
    LedgerDeleted,
    Message,
    PartitionedMetadataResponse,
    ProducerSuccess,
    ReachedEndOfTopic,
    SendReceipt,
)
from streaming.broker.admin_requests import topic_of
from streaming.broker.config import configuration
from tests.broker.kit import Run, of, one, response

NP = "non-persistent://public/default/t"


def older(log: Callable[[Run], Any], **settings: Any) -> tuple[Any, Any, Any]:
    """What `log` returns under 2.10, 3.0 and 4.0."""
    first, second, third = (log(Run(profile=profile, **settings)) for profile in ("2.10", "3.0", "4.0"))
    return first, second, third


def received(effects: list[Any]) -> list[tuple[int, int, int]]:
    """Entry, redelivery count and consumer of each message."""
    return [(each.entry_id, each.redelivery_count, each.consumer_id) for each in of(effects, Message)]


@pytest.mark.feature("D3", "I2")
def test_active_consumer_failover_first_connected() -> None:
    """b connects first, then a with a better priority. When b leaves, a is active everywhere."""

    def log(run: Run) -> list[tuple[int, bool]]:
        found = run.subscribe("s", "Failover", id_=2, consumer_name="b", priority_level=1)
        found += run.subscribe("s", "Failover", id_=1, consumer_name="a", priority_level=0)
        found += run.wait(2)
        return [(each.consumer_id, each.fields.is_active) for each in of(found, ActiveConsumerChange)]

    first, second, third = older(log, activeConsumerFailoverDelayTimeMillis=1000)
    assert first == [(1, False), (2, True), (1, False)]
    assert second == third
    assert second[-2:] == [(1, True), (2, False)]


@pytest.mark.feature("D6", "I2")
def test_key_shared_remembers_hashes() -> None:
    """A consumer leaves with 20 entries beside another one, and comes back. Each has one permit. In 3.0, each gets the first entry of
    its keys. In 4.0, all 20 have one hash: its owner gets one, and the other nothing. In 2.10, the first entry waits for its owner."""

    def log(run: Run) -> list[int]:
        run.subscribe("s", "Key_Shared", id_=1, consumer_name="a", permits=100)
        run.create_producer()
        for number in range(20):
            run.send(number, partition_key=str(number))
        run.subscribe("s", "Key_Shared", id_=2, consumer_name="b")
        run.close_consumer("s")
        run.subscribe("s", "Key_Shared", id_=1, consumer_name="a")
        return [len(received(run.flow("s", 1, id_=id_))) for id_ in (2, 1)]

    found = older(log, subscriptionKeySharedUseClassicPersistentImplementation=True)
    assert found == ([0, 1], [1, 1], [1, 0])


@pytest.mark.feature("D1", "I2")
@pytest.mark.parametrize("durable", [True, False])
def test_refused_consumer_leaves_subscription(durable: bool) -> None:
    def log(run: Run) -> tuple[bool, list[str]]:
        run.namespace("POST", "maxConsumersPerTopic", 1)
        run.subscribe("s")
        refused = one(run.subscribe("t", durable=durable), Error)
        shown = response(run.admin("GET", "/stats"))["subscriptions"]
        return "limit" in refused.cause or "maximum" in refused.cause, sorted(shown)

    assert older(log) == ((True, ["s", "t"]), (True, ["s"]), (True, ["s"]))


@pytest.mark.feature("D5", "I2")
def test_passed_batches_are_forgotten() -> None:
    """A reader has acknowledged one of two messages, and trimming moves its cursor past them. The ack of the rest counts both, or one."""

    def log(run: Run) -> list[int]:
        run.create_producer()
        run.subscribe("r", "Shared", permits=10, durable=False, start_message_id=MessageIdData(-1, -1))
        run.send(0, 1)
        run.ack("r", (1, 0), left=[2], size=2)
        run.send(2)  # the ledger is full, and nothing keeps it
        (consumer,) = run.topic.subscriptions["r"].consumers
        before = consumer.unacked
        run.ack("r", (1, 0))
        return [before, consumer.unacked]

    found = older(
        log,
        managedLedgerMaxEntriesPerLedger=2,
        acknowledgmentAtBatchIndexLevelEnabled=True,
        passedEntriesStayPending=True,
        opensLedgerAtOnce=True,
        trimMovesToNextLedger=False,  # there is no next entry yet
        trimAtRolloverSparesClosedLedger=False,
    )
    assert found == ([2, 0], [2, 0], [2, 1])


@pytest.mark.feature("C2", "I2")
def test_opens_ledger_of_terminated() -> None:
    """A terminated topic with two entries, and an empty ledger at its end, is loaded again. Nobody needs the entries, and they stay: in 2.10 the
    backlogSize is all of them, as the mark-delete position is in the empty ledger, which is gone."""

    def log(run: Run) -> tuple[list[int], int, int, list[str]]:
        run.publish(0)
        run.subscribe("s")
        run.publish(1)
        run.unload()
        run.admin("POST", "/terminate")
        run.unload()
        gone = [each.ledger_id for each in of(run.admin("POST", "/subscription/s/skip_all"), LedgerDeleted)]
        shown = response(run.admin("GET", "/stats"))
        kept = run.broker.retention(run.topic.name)
        return (
            gone,
            shown["storageSize"],
            shown["subscriptions"]["s"]["backlogSize"],
            [e.reason for e in kept.ledgers],
        )

    found = older(log, managedLedgerMaxEntriesPerLedger=5)
    size = found[0][1]
    assert size > 0
    assert found == (([], size, size, ["terminated"]), ([], size, 0, ["terminated"]), ([1], 0, 0, []))


@pytest.mark.feature("C2", "I2")
def test_without_an_open_ledger_a_skip_passes_the_last_one_and_searches_fail() -> None:
    def log(run: Run) -> tuple[tuple[int, int], int]:
        run.subscribe("s")
        for sequence_id in range(3):
            run.publish(sequence_id)
            run.wait(1)
        run.admin("POST", "/terminate")
        run.unload()
        run.admin("POST", "/subscription/s/skip/2")
        skipped = run.mark_delete("s")
        reset = one(run.admin("POST", f"/subscription/s/resetcursor/{run.now}"), AdminResponse)
        return (skipped.ledger, skipped.entry), reset.fields.status

    found = older(log, managedLedgerMaxEntriesPerLedger=50)
    assert found == (((1, 1), 500), ((1, 1), 500), ((1, -1), 500))


@pytest.mark.feature("D4", "I2")
def test_without_an_open_ledger_no_single_entry_can_be_read() -> None:
    """The last message, by the protocol and by the admin API, a message by its id, the first one of the topic and of a backlog, and the one
    to seek to."""

    def log(run: Run) -> tuple[str, set[int], str]:
        run.publish(0)
        run.admin("POST", "/terminate")
        run.unload()
        run.subscribe("s")
        asked = GetLastMessageId(connection="s", consumer_id=1, request_id=run.request())
        (answer,) = run.do(asked)
        calls = ("/lastMessageId", "/ledger/1/entry/0", "/examinemessage", "/subscription/s/position/1")
        statuses = {one(run.admin("GET", call), AdminResponse).fields.status for call in calls}
        run.subscribe("t")
        sought = run.seek("t", time=run.now)[0]
        return getattr(answer, "error", type(answer).__name__), statuses, type(sought).__name__

    first, second, (answer, _, sought) = older(log)
    assert first == ("CloseConnection", {500}, "CloseConnection")
    assert second == ("UnknownError", {500}, "CloseConnection")
    assert (answer, sought) == ("GetLastMessageIdResponse", "CloseConsumer")


@pytest.mark.feature("D1", "I2")
def test_unsubscribe_of_reader_fails() -> None:
    def log(run: Run) -> tuple[str, list[str]]:
        run.subscribe("r", durable=False)
        unsubscribed = run.do(Unsubscribe(connection="r", consumer_id=1, request_id=run.request()))
        errors = [each.error for each in of(unsubscribed, Error)]
        return "".join(errors), sorted(run.topic.subscriptions)

    assert older(log) == (("PersistenceError", []), ("", []), ("", []))


@pytest.mark.feature("D5", "I2")
def test_leaving_consumer_counts_redelivery() -> None:
    def log(run: Run) -> list[tuple[int, int, int]]:
        run.subscribe("s", "Shared", connection="a", permits=2)
        run.fill(2, 100)
        run.subscribe("s", "Shared", connection="b", id_=2, permits=10)
        return received(run.lose("a"))

    assert older(log) == ([(0, 1, 2), (1, 1, 2)], [(0, 0, 2), (1, 0, 2)], [(0, 0, 2), (1, 0, 2)])


@pytest.mark.feature("D6", "I2")
def test_key_shared_points_by_name_alone() -> None:
    """Two consumers of one name: 2.10 gives each of their shared ranges to one of them by the key's hash, so stats show each
    point twice. Without names, they still divide the keys."""

    def log(run: Run) -> tuple[int, bool]:
        for id_ in (1, 2):
            run.subscribe("s", "Key_Shared", id_=id_, consumer_name="c", permits=100)
        run.create_producer()
        sent = [effect for number in range(40) for effect in run.send(number, partition_key=str(number))]
        shares = {consumer for _, _, consumer in received(sent)}
        found = response(run.admin("GET", "/stats"))["subscriptions"]["s"]["consumers"]
        ranges = [range_ for consumer in found for range_ in consumer["keyHashRanges"]]
        return len(ranges) - len(set(ranges)), shares == {1, 2}

    classic = {"subscriptionKeySharedUseClassicPersistentImplementation": True}
    assert older(log, **classic) == ((100, True), (0, True), (0, True))


@pytest.mark.feature("D6", "I2")
def test_key_shared_passes_entries_that_wait() -> None:
    """Two entries are unacknowledged when a second consumer joins. Of what is published then, the first entry of its keys waits, and in 2.10
    everything behind that."""

    def log(run: Run) -> tuple[int, int]:
        run.subscribe("s", "Key_Shared", id_=1, consumer_name="a", permits=100)
        run.create_producer()
        for number in range(2):
            run.send(number, partition_key=str(number))
        run.subscribe("s", "Key_Shared", id_=2, consumer_name="b", permits=100)
        sent = [effect for number in range(2, 30) for effect in run.send(number, partition_key=str(number))]
        got = [entry for entry, _, _ in received(sent)]
        waits = min(set(range(2, 30)) - set(got))
        return len([entry for entry in got if entry < waits]), len([entry for entry in got if entry > waits])

    first, second, _ = older(log, subscriptionKeySharedUseClassicPersistentImplementation=True)
    assert first[1] == 0 < second[1]
    assert second[0] >= 0


@pytest.mark.feature("D6", "I2")
def test_a_key_shared_dispatcher_that_waits_for_a_newcomer_notices_a_skip() -> None:
    """The older consumer has no permits, and the newcomer must wait for its acks. In 2.10, the dispatcher tries again and again, and so finds
    the end of a terminated topic when all is skipped. In 3.0 it waits for the next ack."""

    def log(run: Run) -> list[int]:
        run.subscribe("s", "Key_Shared", id_=1, consumer_name="a", permits=20)
        for number in range(20):
            run.publish(number, key=str(number))
        run.subscribe("s", "Key_Shared", id_=2, consumer_name="b", permits=5)
        for number in range(20, 40):
            run.publish(number, key=str(number))
        run.admin("POST", "/terminate")
        ended = of(run.admin("POST", "/subscription/s/skip_all"), ReachedEndOfTopic)
        return sorted(each.consumer_id for each in ended)

    first, second, _ = older(log, subscriptionKeySharedUseClassicPersistentImplementation=True)
    assert (first, second) == ([1, 2], [])


@pytest.mark.feature("D6", "I2")
def test_a_key_shared_dispatcher_that_waits_for_a_newcomer_notices_another_one() -> None:
    """Consumers of one name share their keys. One has no permits, the second one has, and a third one changes whose the keys are. So the second
    one gets some that waited for the first, in 2.10. In 3.0, the third one only takes keys."""

    def log(run: Run) -> set[int]:
        run.subscribe("s", "Key_Shared", id_=1, consumer_name="c", permits=20)
        for number in range(20):
            run.publish(number, key=str(number))
        run.redeliver("s")
        run.subscribe("s", "Key_Shared", id_=2, consumer_name="c", permits=1000)
        joined = run.subscribe("s", "Key_Shared", id_=3, consumer_name="c")
        return {consumer for *_, consumer in received(joined)}

    first, second, _ = older(log, subscriptionKeySharedUseClassicPersistentImplementation=True)
    assert (first, second) == ({2}, set())


@pytest.mark.feature("D3", "I2")
def test_keeps_chunks_together() -> None:
    def log(run: Run) -> list[int]:
        for id_ in (1, 2):
            run.subscribe("s", "Shared", id_=id_, permits=10)
        run.create_producer()
        sent = [
            effect
            for chunk in range(4)
            for effect in run.send(0, uuid="u", chunk_id=chunk, num_chunks_from_msg=4, total_chunk_msg_size=4)
        ]
        return [consumer for _, _, consumer in received(sent)]

    first, second, third = older(log)
    assert len(set(first)) == 2
    assert len(set(second)) == len(set(third)) == 1


@pytest.mark.feature("D5", "I2")
def test_ack_of_any_entry_lowers_unacked() -> None:
    """Two entries are out. One is acknowledged three times."""

    def log(run: Run) -> list[int]:
        run.subscribe("s", "Shared", permits=10)
        run.fill(2, 100)
        unacked = []
        for _ in range(3):
            run.ack("s", (1, 0))
            unacked.append(response(run.admin("GET", "/stats"))["subscriptions"]["s"]["unackedMessages"])
        return unacked

    assert older(log) == ([1, 0, -1], [1, 1, 1], [1, 1, 1])


@pytest.mark.feature("E1", "I2")
def test_fences_producers() -> None:
    """ExclusiveWithFencing beside a shared producer, and beside an exclusive one."""

    def log(run: Run) -> tuple[bool, str | None]:
        run.create_producer("p", 1)
        beside = run.create_producer("q", 2, producer_access_mode="ExclusiveWithFencing")
        stays = any(isinstance(each, SendReceipt) for each in run.send(0))
        assert of(beside, ProducerSuccess)
        run.close_producer(1)
        run.close_producer(2)
        run.create_producer("x", 3, producer_access_mode="Exclusive")
        refused = of(run.create_producer("y", 4, producer_access_mode="ExclusiveWithFencing"), Error)
        return stays, refused[0].error if refused else None

    assert older(log) == ((True, "ProducerBusy"), (False, None), (False, None))


@pytest.mark.feature("E1", "I2")
def test_promotes_behind_shared_producers() -> None:
    def log(run: Run, behind: str) -> bool:
        run.create_producer("p", 1, producer_access_mode=behind)
        run.create_producer("w", 2, producer_access_mode="WaitForExclusive")
        return any(each.fields.producer_ready for each in of(run.close_producer(1), ProducerSuccess))

    assert older(lambda run: log(run, "Shared")) == (False, False, True)
    assert older(lambda run: log(run, "Exclusive")) == (True, True, True)


@pytest.mark.feature("H2", "I2")
def test_opens_ledger_at_once() -> None:
    """Ledgers of two entries, nobody subscribes, nothing is retained: a full ledger stays until the next one is full, or if it is the
    only one."""

    def log(run: Run) -> list[Any]:
        found = []
        for first in range(0, 6, 2):
            effects = run.fill(2, 100, first=first)
            closed = [each.ledger_id for each in of(effects, LedgerClosed)]
            gone = [each.ledger_id for each in of(effects, LedgerDeleted)]
            internal = response(run.admin("GET", "/internalStats"))
            found.append((closed, gone, internal["state"], internal["currentLedgerEntries"]))
        return found

    first, _, third = older(log, managedLedgerMaxEntriesPerLedger=2)
    assert first == [
        ([1], [], "ClosedLedger", 2),
        ([2], [1], "ClosedLedger", 2),
        ([3], [2], "ClosedLedger", 2),
    ]
    assert third == [
        ([1], [], "LedgerOpened", 0),
        ([2], [1, 2], "LedgerOpened", 0),
        ([3], [], "LedgerOpened", 0),
    ]


@pytest.mark.feature("H2", "I2")
def test_a_full_ledger_that_waits_for_an_entry() -> None:
    """Faults, an unload, a termination and checks while the last ledger is closed and the next one not open."""

    def full() -> Run:
        run = Run(
            profile="2.10", managedLedgerMaxEntriesPerLedger=2, managedLedgerMaxLedgerRolloverTimeMinutes=1
        )
        run.namespace("POST", "retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        run.subscribe("s", permits=10)
        run.create_producer()
        for number in range(2):
            run.send(number)
        assert run.topic.ledger.closed
        return run

    run = full()
    run.wait(3600)
    assert run.topic.ledger.closed  # it is not closed again for its age
    assert one(run.send(2), SendReceipt).ledger_id == 2

    run = full()
    assert not of(run.unload(), LedgerClosed)  # it was
    assert {id_: info.entries for id_, info in run.topic.ledger.ledgers.items()} == {1: 2, 2: 0}
    assert run.backlog("s") == 2

    run = full()
    run.admin("POST", "/terminate")
    assert response(run.admin("GET", "/internalStats"))["state"] == "Terminated"

    run = full()
    run.fault("DelayWrites", 3)
    for number in range(2, 5):
        run.send(number)
    receipts = of(run.fault("CompleteWrites", 3), SendReceipt)
    assert [(each.ledger_id, each.entry_id) for each in receipts] == [(2, 0), (2, 1), (3, 0)]
    assert not run.topic.ledger.closed

    run = full()
    run.fault("FailWrites", 1)
    run.send(2)
    run.create_producer()
    assert one(run.send(3), SendReceipt).ledger_id == 3


@pytest.mark.feature("H2", "I2")
def test_trims_ledger_of_slowest_position() -> None:
    """Three ledgers of two entries. An ack to the end of the second one."""

    def log(run: Run) -> tuple[list[int], list[int], list[int]]:
        run.subscribe("s", permits=10)
        run.fill(5, 100)
        gone = [
            [each.ledger_id for each in of(effects, LedgerDeleted)]
            for effects in (run.ack("s", (2, 1), cumulative=True), run.check("consumedLedgers"), run.unload())
        ]
        return gone[0], gone[1], gone[2]

    assert older(log, managedLedgerMaxEntriesPerLedger=2) == (
        ([1], [], [2]), ([1, 2], [], []), ([1, 2], [], []),
    )  # fmt: skip


@pytest.mark.feature("D4", "I2")
def test_trim_moves_to_next_ledger() -> None:
    """A reader is in a ledger that is trimmed."""

    def log(run: Run) -> str:
        run.subscribe("r", durable=False, permits=1)
        run.fill(5, 100)
        (found,) = response(run.admin("GET", "/internalStats"))["cursors"].values()
        return str(found["markDeletePosition"])

    assert older(log, managedLedgerMaxEntriesPerLedger=2) == ("2:-1", "2:1", "2:1")


def cursor_of_reader(run: Run) -> tuple[str, str]:
    found = response(run.admin("GET", "/internalStats"))["cursors"]["r"]
    return found["markDeletePosition"], found["individuallyDeletedMessages"]


@pytest.mark.feature("D4", "I2")
@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
def test_a_reader_whose_ledger_is_deleted_stays_behind_with_its_acks(type_: Any) -> None:
    """A ledger is deleted before the next one has an entry. In 2.10, an ack behind it moves no position, and one in it counts, but not if no
    deleted ledger had so many entries."""

    run = Run(profile="2.10", managedLedgerMaxEntriesPerLedger=3)
    run.subscribe("s", permits=10)
    run.subscribe("r", type_, durable=False, permits=10)
    run.fill(3, 100)
    run.ack("r", (1, 1))
    run.ack("s", (1, 2), cumulative=True)
    assert [each.ledger_id for each in of(run.fill(1, 100, first=3), LedgerDeleted)] == [1]
    found = [cursor_of_reader(run)]
    for position in ((2, 0), (1, 3), (1, 2), (1, 0)):
        run.ack("r", position)
        found.append(cursor_of_reader(run))
    assert found == [
        ("1:-1", "[(1:0..1:1]]"),
        ("1:-1", "[(1:0..1:1],(2:-1..2:0]]"),
        ("1:-1", "[(1:0..1:1],(2:-1..2:0]]"),
        ("1:-1", "[(1:0..1:2],(2:-1..2:0]]"),
        ("2:0", "[]"),
    ]


@pytest.mark.feature("D4", "I2")
def test_what_a_reader_held_of_a_deleted_ledger_is_not_sent_again() -> None:
    """A consumer of a Shared reader holds an entry of a ledger that is deleted, and another one waits to be sent again."""
    run = Run(profile="2.10", managedLedgerMaxEntriesPerLedger=2)
    run.subscribe("s", permits=10)
    run.subscribe("r", "Shared", connection="a", durable=False, permits=2)
    run.fill(2, 100)
    run.subscribe("r", "Shared", connection="b", id_=2, durable=False)
    run.redeliver("a", (1, 1))
    run.ack("s", (1, 1), cumulative=True)
    assert [each.ledger_id for each in of(run.fill(1, 100, first=2), LedgerDeleted)] == [1]
    assert received(run.lose("a") + run.flow("b", 10, id_=2)) == [(0, 0, 2)]


@pytest.mark.feature("D4", "I2")
def test_reads_on_in_closed_ledger() -> None:
    """Where a subscription reads that had acknowledged everything when the topic was loaded."""

    def log(run: Run) -> tuple[str, list[tuple[int, int, int]]]:
        run.namespace("POST", "retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        run.subscribe("s", permits=10)
        run.fill(2, 100)
        run.ack("s", (1, 1), cumulative=True)
        run.unload()
        position = response(run.admin("GET", "/internalStats"))["cursors"]["s"]["readPosition"]
        run.subscribe("s", permits=10)
        return position, received(run.fill(1, 100, first=2))

    next_entry = [(0, 0, 1)]
    assert older(log) == (("1:2", next_entry), ("2:0", next_entry), ("2:0", next_entry))


@pytest.mark.feature("D1", "I2")
def test_reads_by_ledger_sizes() -> None:
    """Five entries are there, then a consumer of Shared asks for all of them, and a second one. The first read has one entry if nothing is
    known of their sizes. Then the size of what was read bounds the next one: 250 bytes are two entries of 100."""

    def log(run: Run) -> list[int]:
        run.fill(5, 100)
        run.subscribe("s", "Shared", id_=1)
        run.subscribe("s", "Shared", id_=2)
        effects = run.flow("s", 10, id_=1)
        return [entry for entry, _, _ in received(effects)]

    def reads(run: Run) -> int:
        run.fill(5, 100)
        run.subscribe("s", permits=10)
        return run.cursor("s").read_entries

    assert older(log) == ([0, 1, 2, 3, 4],) * 3
    assert older(reads) == (5, 5, 0)

    def batches(run: Run) -> int:
        """The average of messages per entry depends on how many entries are sent together."""
        run.create_producer()
        for first, messages in ((0, 3), (3, 3), (6, 2), (8, 1)):
            run.send(first, first + messages - 1)
        run.subscribe("s", "Shared", permits=100)
        (found,) = response(run.admin("GET", "/stats"))["subscriptions"]["s"]["consumers"]
        return int(found["avgMessagesPerEntry"])

    assert older(batches) == (3, 3, 2)


@pytest.mark.feature("A3", "I2")
def test_deduplication_replay_counts() -> None:
    """Snapshots every three entries: four come, of which a load reads the last one again."""

    def log(run: Run) -> int:
        run.namespace("POST", "deduplication", True)
        run.namespace("POST", "retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        run.fill(2, 100)
        run.unload()
        return run.topic.dedup.snapshot_counter

    assert older(log, brokerDeduplicationEntriesInterval=3) == (0, 2, 2)


@pytest.mark.feature("A8", "I2")
def test_a_non_persistent_subscription_that_stayed_goes_on_with_whose_turn_it_was() -> None:
    """The first of two consumers got the last message. Both leave and come back. In 2.10 and 3.0, it is the second one's turn, unless one of
    another type came in between."""

    def log(run: Run) -> list[int]:
        found = []
        for between in ("Shared", "Exclusive"):
            for id_ in (1, 2):
                run.subscribe("s", "Shared", id_=id_, topic=NP, permits=2)
            found += [each.consumer_id for each in of(run.publish(0, topic=NP), Message)]
            run.lose("s")
            run.subscribe("s", between, topic=NP)
            run.lose("s")
            for id_ in (1, 2):
                run.subscribe("s", "Shared", id_=id_, topic=NP, permits=2)
            found += [each.consumer_id for each in of(run.publish(0, topic=NP), Message)]
            run.lose("s")
        return found

    assert older(log) == ([1, 2, 1, 1], [1, 2, 1, 1], [1, 1, 1, 1])


@pytest.mark.feature("B1", "I2")
def test_message_expiry_passes_closed_ledgers() -> None:
    """A client's clock is a day ahead, and its ledger closed ten seconds ago."""

    def log(run: Run) -> int:
        run.subscribe("s")
        for number in range(3):
            run.publish(number, publish_time=run.now + 86_400_000)
        run.lose("s")
        run.wait(10)
        run.admin("POST", "/subscription/s/expireMessages/5")
        return run.backlog("s")

    assert older(log, managedLedgerMaxEntriesPerLedger=2) == (3, 1, 1)


@pytest.mark.feature("A8", "I2")
def test_non_persistent_counts_unacked() -> None:
    """A limit of 4. Without acks, the fifth message is lost. An ack lowers the count, and unblocks a consumer at half."""

    def log(run: Run) -> tuple[list[int], int]:
        run.subscribe("s", "Shared", topic=NP, permits=4)
        run.create_producer(topic=NP)

        def send(first: int, count: int) -> int:
            effects = [each for n in range(first, first + count) for each in run.publish(n, topic=NP)]
            return len(of(effects, Message))

        found = [send(0, 4)]
        run.flow("s", 10, topic=NP)
        found.append(send(4, 1))
        for _ in range(3):
            run.ack("s", (0, 0), topic=NP)
        found.append(send(5, 1))
        (consumer,) = response(run.admin("GET", "/stats", topic=NP))["subscriptions"]["s"]["consumers"]
        return found, consumer["unackedMessages"]

    first, second, third = older(log, maxUnackedMessagesPerConsumer=4)
    assert first == ([4, 0, 0], 1)  # only an ack of an entry that is held unblocks: all have one position
    assert second == third == ([4, 1, 1], 0)


@pytest.mark.feature("A8", "I2")
def test_non_persistent_subscriptions_stay() -> None:
    def log(run: Run) -> tuple[list[str], int, str]:
        run.subscribe("s", "Shared", topic=NP, permits=10)
        run.publish(0, topic=NP)
        run.close_consumer("s", topic=NP)
        left = sorted(response(run.admin("GET", "/stats", topic=NP))["subscriptions"])
        run.publish(1, topic=NP)  # nobody gets it
        run.subscribe("s", topic=NP, permits=10)
        run.publish(2, topic=NP)
        found = response(run.admin("GET", "/stats", topic=NP))["subscriptions"]["s"]
        return left, found["msgOutCounter"], found["type"]

    assert older(log) == ((["s"], 2, "Exclusive"), (["s"], 2, "Exclusive"), ([], 1, "Exclusive"))


@pytest.mark.feature("A8", "I2")
def test_a_non_persistent_subscription_that_stayed_can_be_deleted() -> None:
    run = Run(profile="3.0")
    run.subscribe("s", "Key_Shared", topic=NP, permits=10)
    run.lose("s")
    assert of(run.admin("DELETE", "/subscription/s", topic=NP), AdminResponse)[0].fields.status == 204
    assert response(run.admin("GET", "/stats", topic=NP))["subscriptions"] == {}
    run.subscribe("s", topic=NP)
    run.admin("DELETE", "/subscription/s?force=true", topic=NP)
    assert response(run.admin("GET", "/stats", topic=NP))["subscriptions"] == {}


@pytest.mark.feature("D2", "I2")
def test_metadata_without_auto_creation() -> None:
    def log(run: Run) -> str:
        command = PartitionedMetadata(connection="c", request_id=1, metadata_auto_creation_enabled=False)
        found = one(run.do(command, "persistent://public/default/missing"), PartitionedMetadataResponse)
        return found.fields.response

    assert older(log) == ("Success", "Failed", "Failed")


@pytest.mark.feature("I1", "I2")
@pytest.mark.parametrize(
    "policy", ["maxConsumersPerSubscription", "messageTTL", "retention", "compactionThreshold"]
)
def test_unset_namespace_policies_are_204(policy: str) -> None:
    """Those of topics are 200 in each."""

    def log(run: Run) -> list[int]:
        run.fill(1, 100)
        own = one(run.namespace("GET", policy), AdminResponse).fields
        of_topic = one(run.admin("GET", "/messageTTL"), AdminResponse).fields
        assert (own.response, of_topic.response) == (UNSET, UNSET)
        return [own.status, of_topic.status]

    assert older(log) == ([204, 200], [200, 200], [200, 200])


@pytest.mark.feature("I1", "I2")
def test_missing_admin_calls() -> None:
    def log(run: Run) -> list[int]:
        run.fill(1, 100)
        calls = [("POST", "/trim"), ("PUT", "/properties"), ("DELETE", "/policies"), ("GET", "/stats")]
        found = [run.admin(method, call, {"a": "b"} if method == "PUT" else None) for method, call in calls]
        return [one(effects, AdminResponse).fields.status for effects in found]

    assert older(log) == ([404, 405, 404, 200], [200, 204, 404, 200], [200, 204, 204, 200])
    run = Run(profile="2.10")
    assert one(run.namespace("GET", "entryFilters"), AdminResponse).fields.status == 405
    assert one(run.namespace("GET", "messageTTL"), AdminResponse).fields.status == 204


@pytest.mark.feature("I1", "I2")
def test_admin_message_ids_name_batch() -> None:
    def log(run: Run) -> list[str]:
        run.fill(1, 100)
        return sorted(response(run.admin("POST", "/terminate")))

    short, long = (
        ["entryId", "ledgerId", "partitionIndex"],
        ["batchIndex", "batchSize", "entryId", "ledgerId", "partitionIndex"],
    )
    assert older(log) == (short, long, long)


@pytest.mark.feature("D3", "I2")
def test_turns_count_messages() -> None:
    """Batches of 3, 3 and 1 messages: 2 for each entry. For 3 permits, that is one entry or, rounded up, two."""

    def log(run: Run) -> list[int]:
        run.create_producer()
        for first, messages in ((0, 1), (1, 3), (4, 3), (7, 1)):
            run.send(first, first + messages - 1)
        run.subscribe("s", "Shared", permits=1)  # reads the first one
        return [entry for entry, _, _ in received(run.flow("s", 3))]

    assert older(log) == ([1], [1], [1, 2])


@pytest.mark.feature("D4", "I2")
def test_reader_starts_at_its_position() -> None:
    """A reader of what comes after 2:-1. The entry before that is the last of ledger 1."""

    def log(run: Run) -> tuple[tuple[int, int], list[int]]:
        run.subscribe("keeps")
        run.fill(4, 100)
        effects = run.subscribe("r", durable=False, start_message_id=MessageIdData(2, -1), permits=10)
        return run.mark_delete("r"), [entry for entry, _, _ in received(effects)]

    assert older(log, managedLedgerMaxEntriesPerLedger=2) == (
        ((2, -1), [0, 1]), ((1, 1), [0, 1]), ((1, 1), [0, 1]),
    )  # fmt: skip


@pytest.mark.feature("D6", "I2")
def test_waiting_reads_return_entries() -> None:
    """A consumer asks for its only message again, which takes its last permit while a read waits. The read of 2.10 takes the next entry, and
    keeps it for later. With two more permits, 2.10 first reads on: the dispatcher leaves what it could not send alone for once."""

    def log(run: Run) -> tuple[int, list[int]]:
        run.create_producer()
        run.send(0, partition_key="a")
        run.subscribe("s", "Key_Shared", permits=2)
        run.redeliver("s")
        for number in range(1, 4):
            run.send(number, partition_key=str(number))
        position = run.cursor("s").read_position.entry
        return position, [entry for entry, _, _ in received(run.flow("s", 2))]

    classic = {"subscriptionKeySharedUseClassicPersistentImplementation": True}
    assert older(log, **classic) == ((2, [2, 3]), (1, [1, 2]), (1, [1, 2]))


@pytest.mark.feature("I2")
@pytest.mark.parametrize("profile", ["2.10", "3.0", "4.0"])
def test_what_a_missing_call_is_answered(profile: Any) -> None:
    """As 2.10.5 answers each of them. Below a namespace, DELETE of anything is that of a bundle."""
    run = Run(profile=profile)
    for call in configuration(profile, {}).missingAdminCalls.split(","):
        method, path = call.partition("=")[0].split(" ")
        expected = 404
        if path.startswith("/namespaces/{tenant}/{namespace}/") and path.count("/") == 4:
            expected = 412 if method == "DELETE" else 405
        elif path.endswith(("/properties", "/clusters/{cluster}/migrate")):
            expected = 405
        names = {
            "cluster": "c",
            "domain": "persistent",
            "tenant": "public",
            "namespace": "default",
            "topic": "t",
        }
        path = path.format(**names, subscription="s", bundle="0x00000000_0xffffffff")
        command = Admin(method=method, path=path)  # type: ignore[arg-type]
        found = one(run.do(command, topic_of(path)), AdminResponse).fields
        reason = {404: "HTTP 404 Not Found", 405: "HTTP 405 Method Not Allowed"}.get(
            expected, f"Invalid bundle range: {path.rpartition('/')[2]}"
        )
        assert (found.status, found.response) == (expected, {"reason": reason}), call


@pytest.mark.feature("D5", "I2")
@pytest.mark.parametrize(("limit", "late", "in_time"), [(1, [], [1]), (2, [2], [1, 2]), (3, [3], [2])])
def test_a_consumer_is_unblocked_one_ack_late(limit: int, late: list[int], in_time: list[int]) -> None:
    """It gets the next message with the ack that leaves at most half of the limit, in 3.0 with the one after that: never, if there is none."""

    def log(run: Run) -> list[int]:
        run.fill(limit + 3)
        run.subscribe("s", "Shared", permits=10)
        acks = [received(run.ack("s", (1, number))) for number in range(limit)]
        return [number + 1 for number, got in enumerate(acks) if got]

    assert older(log, maxUnackedMessagesPerConsumer=limit, dispatcherMaxReadBatchSize=1) == (
        in_time,
        late,
        in_time,
    )


@pytest.mark.feature("I2")
@pytest.mark.parametrize(("profile", "status"), [("2.10", 204), ("3.0", 204), ("4.0", 204), ("4.2", 200)])
@pytest.mark.parametrize("call", ["antiAffinity", "persistence/bookieAffinity"])
def test_affinity_that_is_not_set(profile: Any, status: int, call: str) -> None:
    found = one(Run(profile=profile).namespace("GET", call), AdminResponse).fields
    assert (found.status, found.response) == (status, UNSET)


@pytest.mark.feature("A8", "I2")
def test_an_ack_that_leaves_half_of_the_limit_unblocks_a_consumer_of_a_non_persistent_topic() -> None:
    """It gets the permits that it asked for while it was blocked."""
    run = Run(profile="2.10", maxUnackedMessagesPerConsumer=2)
    run.subscribe("s", "Shared", topic=NP, permits=2)
    assert [len(of(run.publish(n, topic=NP), Message)) for n in range(2)] == [1, 1]
    run.flow("s", 5, topic=NP)
    assert not of(run.publish(2, topic=NP), Message)
    run.ack("s", (0, 0), topic=NP)
    assert len(of(run.publish(3, topic=NP), Message)) == 1
