"""The worked cases of docs/rules/clients.md §12, by number: what the broker does when clients behave so.

Left out, because the broker has no part in them:

* 2: a producer without keys chooses the partition. (It has no part in 1 either: that is a look at what a client did.)
* 3: how many messages a producer keeps pending.
* 9: when a client redelivers.

The tests play the clients of the others: they give permits back, nack, time out, write to dead-letter and retry topics.
"""

from collections import Counter

import pytest

from schemas.effects import Effect, Message
from streaming.broker.dispatch.murmur3 import murmur3_31
from streaming.broker.ledger.ack_set import to_bits
from streaming.traces import RECORDED
from streaming.traces.trace import read_trace
from tests.broker.kit import Run, of, one, sent

DLQ = "persistent://public/default/t-s-DLQ"
RETRY = "persistent://public/default/t-s-RETRY"


def client(type_: str, *, messages: int, permits: int = 1000, **settings: bool) -> tuple[Run, list[Message]]:
    """A consumer of subscription s, and what it received of so many messages."""
    run = Run(**settings)  # type: ignore[arg-type]
    run.subscribe("s", type_)  # type: ignore[arg-type]
    for sequence_id in range(messages):
        run.publish(sequence_id)
    return run, received(run.flow("s", permits))


def received(effects: list[Effect]) -> list[Message]:
    return of(effects, Message)


def java_string_hash(key: str) -> int:
    """That of an ASCII string."""
    found = 0
    for byte in key.encode("ascii"):
        found = (31 * found + byte) % 2**32
    return found & 0x7FFFFFFF


@pytest.mark.feature("K2")
def test_client_side_case_01_keys_choose_partitions() -> None:
    """The recorded Java client has a producer for each partition, p's with JavaStringHash and q's with Murmur3_32Hash."""
    partitions, chosen = {}, []
    for record in read_trace(RECORDED / "part_keys.jsonl").records:
        fields = record.get("fields", {})
        if record.get("cmd") == "PRODUCER":
            partitions[fields["producer_id"]] = int(fields["topic"].rpartition("-")[2])
        elif record.get("cmd") == "SEND":
            metadata = record["metadata"]
            by = (
                java_string_hash if metadata["producer_name"] == "p" else lambda key: murmur3_31(key.encode())
            )
            chosen.append(partitions[fields["producer_id"]])
            assert chosen[-1] == by(metadata["partition_key"]) % 4
    assert chosen == [1, 3, 2, 1, 2, 1, 2, 0, 3, 2, 2, 0]


@pytest.mark.feature("E1")
@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
@pytest.mark.parametrize(("queue", "returned"), [(1000, 500), (1, 1), (4, 2)])
def test_client_side_case_04_permits_come_back_by_halves(type_: str, queue: int, returned: int) -> None:
    run = Run()
    run.subscribe("s", type_)  # type: ignore[arg-type]
    for sequence_id in range(queue + 2 * returned + 1):
        run.publish(sequence_id)
    assert sent(run.flow("s", queue)) == [*range(queue)]
    for first in (queue, queue + returned):
        assert sent(run.flow("s", returned)) == [*range(first, first + returned)]


@pytest.mark.feature("E5", "E8")
def test_client_side_case_05_nacked_until_dead() -> None:
    run, messages = client("Shared", messages=100)
    counts: Counter[int] = Counter()
    dead = 0
    while messages:
        counts.update(message.redelivery_count for message in messages)
        again = []
        for message in messages:
            at = (message.ledger_id, message.entry_id)
            if message.redelivery_count < 2:
                again += received(run.redeliver("s", at))
                run.flow("s", 1)
            else:
                run.publish(dead, topic=DLQ)
                run.ack("s", at)
                dead += 1
        messages = again
    assert counts == {0: 100, 1: 100, 2: 100}
    assert run.broker.topic(DLQ).ledger.number_of_entries == dead == 100
    assert run.backlog("s") == 0


@pytest.mark.feature("E8")
@pytest.mark.parametrize(("messages", "m", "receives"), [(10, 3, 40), (100, 2, 300)])
def test_client_side_case_06_reconsumed_later(messages: int, m: int, receives: int) -> None:
    run, arrived = client("Shared", messages=messages)
    run.subscribe("s", "Shared", topic=RETRY, permits=1000)
    total, dead, written = len(arrived), 0, 0
    times = dict.fromkeys(((message.topic, message.entry_id) for message in arrived), 0)
    while arrived:
        later = []
        for message in arrived:
            at = (message.ledger_id, message.entry_id)
            consumed = times[message.topic, message.entry_id] + 1
            if consumed > m:
                run.publish(dead, topic=DLQ)
                dead += 1
            else:
                later += received(run.publish(written, topic=RETRY, deliver_at_time=run.now + 5000))
                times[RETRY, written] = consumed
                written += 1
            run.ack("s", at, topic=message.topic)
        assert later == [], "delayed"
        arrived = received(run.wait(5))
        assert {message.redelivery_count for message in arrived} <= {0}
        total += len(arrived)
    assert total == receives
    assert run.broker.topic(DLQ).ledger.number_of_entries == dead == messages
    assert run.backlog("s") == 0
    assert run.broker.topic(RETRY).cursors["s"].backlog(run.broker.topic(RETRY).ledger) == 0


@pytest.mark.feature("E5")
@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
def test_client_side_case_07_ack_timeout(type_: str) -> None:
    run, first = client(type_, messages=15, permits=5)
    assert len(first) == 5
    second = received(run.flow("s", 5))
    run.ack("s", *[(1, message.entry_id) for message in second])
    third = received(run.flow("s", 5))
    assert [message.entry_id for message in third] == [*range(10, 15)]
    run.flow("s", 10)
    if type_ == "Exclusive":
        again = received(run.redeliver("s"))
        assert [message.entry_id for message in again] == [*range(5), *range(10, 15)]
    else:
        again = received(run.redeliver("s", *[(1, entry) for entry in range(5)]))
        assert [message.entry_id for message in again] == [*range(5)]


@pytest.mark.feature("D3", "E5")
@pytest.mark.parametrize("index_acks", [False, True])
def test_client_side_case_08_one_nack_of_a_batch(index_acks: bool) -> None:
    run, _ = client("Shared", messages=0, acknowledgmentAtBatchIndexLevelEnabled=index_acks)
    run.create_producer()
    run.send(0, 9)
    if index_acks:
        run.ack("s", (1, 0), left=[1 << 9], size=10)
    message = one(run.redeliver("s", (1, 0)), Message)
    assert (message.messages, message.ack_set) == (10, [512] if index_acks else None)


@pytest.mark.feature("D3")
@pytest.mark.parametrize("index_acks", [False, True])
def test_client_side_case_10_a_cumulative_ack_inside_a_batch(index_acks: bool) -> None:
    run, _ = client("Exclusive", messages=7, acknowledgmentAtBatchIndexLevelEnabled=index_acks)
    run.create_producer("q")
    run.send(7, 16, name="q")
    if index_acks:
        run.ack("s", (1, 7), cumulative=True, left=[992], size=10)
    else:
        run.ack("s", (1, 6), cumulative=True)
    assert run.mark_delete("s") == (1, 6)
    left = [to_bits(stored) for stored in run.cursor("s").batches.values()]
    assert left == ([992] if index_acks else [])
    message = one(run.redeliver("s"), Message)
    assert (message.entry_id, message.ack_set) == (7, [992] if index_acks else None)


# -- what no case says --------------------------------------------------------------------------------------------


@pytest.mark.feature("D3")
@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
def test_repeated_ids_in_an_ack_are_harmless(type_: str) -> None:
    run, _ = client(type_, messages=3)
    run.ack("s", (1, 1), (1, 1), (1, 0), (1, 1))
    run.ack("s", (1, 0), (1, 1))
    assert run.backlog("s") == 1
    assert run.topic.subscriptions["s"].consumers[0].unacked == (1 if type_ == "Shared" else 0)


@pytest.mark.feature("A1")
def test_a_producer_that_reconnects_sends_all_again() -> None:
    run = Run(brokerDeduplicationEnabled=True)
    run.subscribe("s", "Shared", permits=100)
    run.create_producer()
    for sequence_id in range(3):
        run.send(sequence_id)
    run.create_producer(epoch=1)
    arrived = [entry for sequence_id in range(1, 5) for entry in sent(run.send(sequence_id))]
    assert arrived == [3, 4]


@pytest.mark.feature("D4")
def test_a_reader_asks_what_is_left() -> None:
    run, _ = client("Shared", messages=3)
    assert sent(run.subscribe("reader", durable=False, permits=10)) == [0, 1, 2]
    run.ack("reader", (1, 1), cumulative=True)
    assert run.mark_delete("reader") == (1, 1)
