"""What 2.10 does otherwise than 3.0 with compacted topics and transactions: the same log under each.

The recordings of 2.10.5 and 3.0.7 (tests/conformance/test_versions.py) show the same of real brokers.
"""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import UNSET

from schemas.commands import Ack, GetLastMessageId, MessageIdData, NewTxn, Profile
from schemas.effects import (
    CompactedEntry,
    EndTxnResponse,
    GetLastMessageIdResponse,
    LedgerDeleted,
    Message,
    NewTxnResponse,
)
from tests.broker.kit import of, one, response
from tests.broker.test_compaction_cases import Topic
from tests.broker.test_transactions import Transacting

PROFILES: tuple[Profile, ...] = ("2.10", "3.0")


def compacted(log: Callable[[Topic], Any]) -> tuple[Any, Any]:
    """What `log` returns of a topic under 2.10 and 3.0."""
    first, second = (log(Topic(profile=each)) for each in PROFILES)
    return first, second


def transacted(log: Callable[[Transacting], Any], **settings: Any) -> tuple[Any, Any]:
    """The same with transactions."""
    first, second = (log(Transacting(profile=each, **settings)) for each in PROFILES)
    return first, second


def ids(effects: list[Any]) -> list[int]:
    return [each.entry_id for each in of(effects, Message)]


@pytest.mark.feature("C4", "I2")
def test_the_last_message_id_of_a_compacted_topic_is_the_last_one_kept() -> None:
    """Of two messages, the second deletes the key of another one. A reader of all is told what a reader of compacted data is."""

    def log(topic: Topic) -> list[tuple[int, int, int]]:
        topic.put("a", b"1")
        topic.put("b", b"")
        topic.compact()
        return [topic.last(topic.reader(compacted=each)[0]) for each in (True, False)]

    assert compacted(log) == ([(1, 0, -1), (1, 0, -1)], [(1, 0, -1), (1, 1, -1)])


@pytest.mark.feature("L2", "I2")
def test_the_last_message_id_is_that_of_the_last_entry() -> None:
    """Entry 0 can be read, entry 1 is held back, and entry 2 is the marker of its end."""

    def log(run: Transacting) -> list[int]:
        def last() -> int:
            asked = GetLastMessageId(connection="s", consumer_id=1, request_id=run.request())
            return one(run.do(asked), GetLastMessageIdResponse).entry_id

        run.subscribe("s", permits=10)
        run.publish(0, "q")
        txn = run.begin()
        run.send_in(txn, 1)
        found = [last()]
        run.end(txn, "ABORT")
        return [*found, last()]

    assert transacted(log) == ([1, 2], [0, 0])


@pytest.mark.feature("C4", "I2")
@pytest.mark.parametrize(
    ("batches", "kept"),
    [
        ("1 2x 3", ([0, 1, 2], [0, 1, 2])),
        ("1x 2", ([1], [0, 1])),
        ("1 2x", ([0], [0, 1])),
        ("1x 2x", ([1], [0, 1])),  # the last one is copied if none counts as staying
    ],
)
def test_a_batch_with_an_empty_value_counts_as_deleted(
    batches: str, kept: tuple[list[int], list[int]]
) -> None:
    """Batches of messages with keys of their own, one digit each; x is an empty value of another key."""

    def log(topic: Topic) -> list[int]:
        for number, each in enumerate(batches.split()):
            topic.batch(*((f"x{number}", b"") if key == "x" else (f"{number}{key}", b"1") for key in each))
        return [int(each.fields.position.partition(":")[2]) for each in of(topic.compact(), CompactedEntry)]

    assert compacted(log) == kept


@pytest.mark.feature("C4", "I2")
def test_each_message_behind_one_that_removed_something_counts_as_removed() -> None:
    """The batch has a key that came before, an empty value and a third message. 3.0 counts the first two."""

    def log(topic: Topic) -> Any:
        topic.put("a", b"1")
        topic.batch(("a", b"2"), ("b", b""), ("c", b"1"))
        topic.put("d", b"1")
        topic.compact()
        return response(topic.admin("GET", "/stats"))["compaction"]["lastCompactionRemovedEventCount"]

    assert compacted(log) == (3, 2)


@pytest.mark.feature("C4", "I2")
def test_a_read_of_compacted_data_takes_one_more() -> None:
    """Three keys, and a reader with one permit. It stays at -1 until it gives more."""

    def log(topic: Topic) -> list[list[int]]:
        for key in "abc":
            topic.put(key, b"1")
        topic.compact()
        name, found = topic.reader(permits=1)
        return [[each.entry_id for each in found], ids(topic.flow(name, 1)), ids(topic.flow(name, 1))]

    assert compacted(log) == ([[0, 1], [], [2]], [[0], [1], [2]])


@pytest.mark.feature("C4", "I2")
def test_a_durable_consumer_reads_compacted_data_anew() -> None:
    """It has acknowledged the first of two messages, and connects again."""

    def log(topic: Topic) -> list[int]:
        for key in "ab":
            topic.put(key, b"1")
        topic.compact()
        topic.subscribe("s", "Exclusive", read_compacted=True, permits=9)
        topic.ack("s", (1, 0), cumulative=True)
        topic.close_consumer("s")
        return ids(topic.subscribe("s", "Exclusive", read_compacted=True, permits=9))

    assert compacted(log) == ([0, 1], [1])


@pytest.mark.feature("C4", "I2")
def test_the_compaction_subscription_expires_with_the_others() -> None:
    def log(topic: Topic) -> Any:
        topic.put("a", b"1")
        topic.compact()
        topic.put("b", b"1")
        topic.wait(10)
        topic.admin("POST", "/all_subscription/expireMessages/5")
        return topic.mark_delete("__compaction").entry

    assert compacted(log) == (1, 0)


@pytest.mark.feature("C4", "I2")
def test_compacted_data_outlives_its_subscription() -> None:
    """Two messages of one key. Readers get one of them until the topic is loaded again, or both at once."""

    def log(topic: Topic) -> list[Any]:
        topic.subscribe("s")
        topic.put("a", b"1")
        topic.put("a", b"2")
        topic.compact()
        found: list[Any] = [len(of(topic.admin("DELETE", "/subscription/__compaction"), LedgerDeleted))]
        found.append([place for place, _ in topic.read()])
        found.append(len(of(topic.unload(), LedgerDeleted)))
        return [*found, [place for place, _ in topic.read()]]

    assert compacted(log) == (
        [0, ["1:1"], 1, ["1:0", "1:1"]],
        [1, ["1:0", "1:1"], 0, ["1:0", "1:1"]],
    )


@pytest.mark.feature("L1", "I2")
def test_as_many_transactions_as_a_client_likes() -> None:
    def log(run: Transacting) -> list[int]:
        asked = [NewTxn(connection="client", request_id=run.request(), txn_ttl_seconds=600_000)] * 2
        return [len(of(run.ask(each), NewTxnResponse)) for each in asked]

    assert transacted(log, maxActiveTransactionsPerCoordinator=1) == ([1, 1], [1, 0])


@pytest.mark.feature("L1", "I2")
def test_errors_name_the_coordinator_alone() -> None:
    def log(run: Transacting) -> Any:
        found = one(run.end(7), EndTxnResponse)
        assert found.error == "TransactionNotFound"
        assert found.fields.txnid_most_bits == 0
        return found.fields.txnid_least_bits

    assert transacted(log) == (UNSET, 7)


@pytest.mark.feature("L3", "I2")
def test_an_aborted_cumulative_ack_is_sent_again() -> None:
    """Of two messages, a transaction acknowledges the first one. Another one that has nothing there aborts, and then that one."""

    def log(run: Transacting) -> list[list[int]]:
        run.subscribe("s", "Exclusive", permits=10)
        run.publish(0, "q")
        run.publish(1, "q")
        first, other = run.begin(subscription="s"), run.begin(subscription="s")
        run.do(
            Ack(
                connection="s", consumer_id=1, ack_type="Cumulative", message_id=[MessageIdData(1, 0)],
                txnid_least_bits=first, txnid_most_bits=0,
            )
        )  # fmt: skip
        found = [ids(run.end(other, "ABORT")), ids(run.end(first, "ABORT"))]
        return [*found, ids(run.end(run.begin(subscription="s"), "ABORT"))]

    assert transacted(log) == ([[0, 1], [0, 1], []], [[], [], []])


@pytest.mark.feature("L3", "I2")
@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
def test_what_has_a_pending_ack_counts_as_sent(type_: Any) -> None:
    """One of two messages has a pending ack when both are read again: one is sent, and two count. Then a third comes alone, and of it nothing is
    left: each of its reads costs a permit, and there is no average any more."""

    def log(run: Transacting) -> list[Any]:
        def stats() -> list[int]:
            sub = response(run.admin("GET", "/stats"))["subscriptions"]["s"]
            (consumer,) = sub["consumers"]
            names = ("availablePermits", "unackedMessages", "avgMessagesPerEntry")
            return [sub["msgOutCounter"], *(consumer[each] for each in names)]

        run.subscribe("s", type_, permits=10)
        run.publish(0, "q")
        run.publish(1, "q")
        txn = run.begin(subscription="s")
        assert run.ack_in(txn, "s", (1, 0)).error is None
        run.close_consumer("s")
        found: list[Any] = [ids(run.subscribe("s", type_, permits=10)), stats()]
        assert run.ack_in(txn, "s", (1, 1)).error is None
        run.close_consumer("s")
        return [*found, ids(run.subscribe("s", type_, permits=10)), stats()]

    shared = type_ == "Shared"
    assert transacted(log) == (
        [[1], [4, 8, 2 * shared, 2], [], [6, 8, 2 * shared, -1]],
        [[1], [3, 9, 1 * shared, 1], [], [3, 10, 0, 0]],
    )
