"""The worked cases of docs/rules/batching.md §9, by number.

Left out: 1, the bytes of a record inside a batch, which the broker never looks at. What clients do in 4, 6 and 7
(nack, time out, put chunks together) is played by the tests.
"""

from typing import Any

import pytest

from schemas.commands import MessageMetadata, Send
from schemas.effects import Message, SendError, SendReceipt
from streaming.broker.ledger.ack_set import to_bits, to_words
from streaming.broker.subscription.consumer import Consumer
from tests.broker.kit import TOPIC, Run, of, one, sent

ODD = sum(1 << index for index in range(1, 100, 2))


def consumer(run: Run) -> Consumer:
    """The only consumer of s."""
    (found,) = run.topic.subscriptions["s"].consumers
    return found


def with_consumer(
    type_: Any = "Shared", *, permits: int = 1000, index_acks: bool = True, **settings: Any
) -> Run:
    """A broker with a producer and a consumer."""
    run = Run(acknowledgmentAtBatchIndexLevelEnabled=index_acks, **settings)
    run.subscribe("s", type_, permits=permits)
    run.create_producer()
    return run


def words(*indices: int) -> list[int]:
    """The ack set in which these messages of a batch remain."""
    return to_words(sum(1 << index for index in indices))


# -- the worked cases ---------------------------------------------------------------------------------------------


@pytest.mark.feature("B3")
def test_batching_case_02_a_batch_is_stored_as_it_came() -> None:
    payload = bytes.fromhex("00000004 18014000 61 00000004 18024001 6263")
    assert len(payload) == 19
    run = with_consumer()
    metadata = MessageMetadata("p", 0, run.now, num_messages_in_batch=2, uncompressed_size=19)
    effects = run.do(
        Send(
            connection="client", producer_id=1, sequence_id=0, num_messages=2, metadata=metadata,
            payload_bytes=payload,
        )
    )  # fmt: skip
    receipt = one(effects, SendReceipt)
    assert (receipt.payload, receipt.messages) == (payload, 2)
    assert receipt.metadata is not None
    assert receipt.metadata.uncompressed_size == 19
    assert one(effects, Message).messages == 2


@pytest.mark.feature("E1")
@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
def test_batching_case_03_permits_may_go_below_zero(type_: str) -> None:
    run = with_consumer(type_, permits=10)
    assert sent(run.send(0, 99)) == [0]
    assert consumer(run).permits == -90
    assert sent(run.send(100)) == []
    assert sent(run.flow("s", 90)) == []
    assert sent(run.flow("s", 1)) == [1]


@pytest.mark.feature("D3", "E5")
def test_batching_case_04_acked_messages_of_batches_never_come_again() -> None:
    run = with_consumer(permits=100)
    for first in range(0, 100, 20):
        run.send(first, first + 19)
    assert consumer(run).permits == 0
    acked = {entry: set(range(0, 20, 2)) for entry in range(5)}
    for entry in acked:
        for index in acked[entry]:
            run.ack("s", (1, entry), left=words(*(i for i in range(20) if i != index)), size=20)
    assert consumer(run).unacked == 50
    run.flow("s", 50)
    again = of(run.redeliver("s", *[(1, entry) for entry in range(5)]), Message)
    assert [message.entry_id for message in again] == [*range(5)]
    assert {tuple(message.ack_set or ()) for message in again} == {tuple(words(*range(1, 20, 2)))}
    assert (consumer(run).unacked, consumer(run).permits) == (50, 0)
    run.ack("s", *[(1, entry) for entry in range(5)])
    assert run.mark_delete("s") == (1, 4)
    run.flow("s", 50)
    arrived = [entry for number in range(100, 160) for entry in sent(run.send(number))]
    assert len(arrived) == 50


@pytest.mark.feature("D3", "E5")
def test_batching_case_04_derived() -> None:
    run = with_consumer(permits=200)
    run.send(0, 99)
    for index in range(0, 100, 2):
        run.ack("s", (1, 0), left=words(*(i for i in range(100) if i != index)), size=100)
    assert (consumer(run).unacked, consumer(run).permits) == (50, 100)
    message = one(run.redeliver("s", (1, 0)), Message)
    assert message.ack_set == to_words(ODD)
    assert (consumer(run).unacked, consumer(run).permits) == (50, 50)


@pytest.mark.feature("D3")
def test_batching_case_05_a_cumulative_ack_inside_a_batch() -> None:
    run = with_consumer("Exclusive")
    run.send(0)
    run.send(1, 100)
    run.ack("s", (1, 1), cumulative=True, left=words(*range(50, 100)), size=100)
    assert run.mark_delete("s") == (1, 0)
    assert to_bits(run.cursor("s").batches[(1, 1)]) == sum(1 << i for i in range(50, 100))  # type: ignore[index]
    run.lose("s")
    message = one(run.subscribe("s", permits=100), Message)
    assert (message.entry_id, message.ack_set) == (1, words(*range(50, 100)))
    assert consumer(run).permits == 50


@pytest.mark.feature("D3", "E8")
def test_batching_case_06_an_acked_batch_needs_no_dead_letter() -> None:
    run = with_consumer()
    first = one(run.send(0, 4), Message)
    assert (first.messages, first.ack_set, first.redelivery_count) == (5, None, 0)
    deliveries = 5
    for left in ([1, 2, 3, 4], [1, 2, 4], [1, 2]):
        run.ack("s", (1, 0), left=words(*left), size=5)
    for count in (1, 2, 3):
        message = one(run.redeliver("s", (1, 0)), Message)
        assert (message.ack_set, message.redelivery_count) == (words(1, 2), count)
        deliveries += 2
    run.ack("s", (1, 0), left=words(2), size=5)
    run.ack("s", (1, 0))
    assert deliveries == 3 + 2 * 4
    assert run.redeliver("s", (1, 0)) == []
    assert run.backlog("s") == 0


@pytest.mark.feature("D3", "E5")
def test_batching_case_06_a_partial_ack_forgets_the_count() -> None:
    run = with_consumer()
    run.send(0, 4)
    assert one(run.redeliver("s", (1, 0)), Message).redelivery_count == 1
    run.ack("s", (1, 0), left=words(1, 2, 3, 4), size=5)
    assert one(run.redeliver("s", (1, 0)), Message).redelivery_count == 1


@pytest.mark.feature("A6")
def test_batching_case_07_a_resent_chunk_leaves_no_hole() -> None:
    run = with_consumer("Exclusive")
    arrived = []
    for chunk in (0, 0, 1):
        arrived += sent(run.send(0, uuid="0", chunk_id=chunk, num_chunks_from_msg=2, total_chunk_msg_size=2))
    assert arrived == [0, 1, 2]
    run.ack("s", (1, 1))  # the chunk that came twice
    run.ack("s", (1, 0), (1, 2))
    stats = run.broker.topic_stats(run.topic.name)["stats"]
    assert stats["subscriptions"]["s"]["nonContiguousDeletedMessagesRanges"] == 0
    assert run.backlog("s") == 0


@pytest.mark.feature("A2")
def test_batching_case_08_possible_duplicates_are_alone_in_their_batch() -> None:
    run = with_consumer(brokerDeduplicationEnabled=True)
    for sequence_id in (0, 1, 2):
        run.send(sequence_id)
    run.close_producer()
    run.create_producer()
    receipts = [one(run.send(i, i), SendReceipt) for i in (1, 2, 3, 4)]
    assert [(r.ledger_id, r.entry_id) for r in receipts] == [(-1, -1), (-1, -1), (1, 3), (1, 4)]


@pytest.mark.feature("A6")
@pytest.mark.parametrize("deduplication", [False, True])
def test_batching_case_09_chunks_have_one_sequence_id(deduplication: bool) -> None:
    run = with_consumer(brokerDeduplicationEnabled=deduplication)
    for sequence_id in range(7):
        run.send(sequence_id)
    receipts = [
        one(
            run.send(7, uuid="p-7", chunk_id=chunk, num_chunks_from_msg=3, total_chunk_msg_size=9),
            SendReceipt,
        )
        for chunk in range(3)
    ]
    assert [(r.sequence_id, r.ledger_id, r.entry_id) for r in receipts] == [(7, 1, 7), (7, 1, 8), (7, 1, 9)]
    assert consumer(run).unacked == 10


@pytest.mark.feature("D3")
@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
def test_batching_case_10_without_index_acks_a_partial_ack_stores_nothing(type_: str) -> None:
    run = with_consumer(type_, index_acks=False)
    run.send(0, 2)
    run.ack("s", (1, 0), left=[5], size=3)
    assert run.backlog("s") == 1
    assert run.cursor("s").batches == {}
    again = one(run.redeliver("s", (1, 0)), Message)
    assert (again.messages, again.ack_set) == (3, None)


@pytest.mark.feature("D3", "E5")
def test_without_index_acks_a_partial_ack_still_forgets_the_count() -> None:
    run = with_consumer(index_acks=False)
    run.send(0, 2)
    assert one(run.redeliver("s", (1, 0)), Message).redelivery_count == 1
    run.ack("s", (1, 0), left=[5], size=3)
    assert one(run.redeliver("s", (1, 0)), Message).redelivery_count == 1
    assert one(run.redeliver("s", (1, 0)), Message).redelivery_count == 2


# -- what no case says --------------------------------------------------------------------------------------------


@pytest.mark.feature("D3")
def test_the_average_of_messages_in_an_entry_is_pulsars_to_the_last_bit() -> None:
    run = with_consumer()
    run.send(0)
    run.send(1, 16)
    consumer = run.topic.subscriptions["s"].consumers[0]
    assert consumer.messages_per_entry == 2, "0.9 · 1 + (1 − 0.9) · 16 is less than 2.5"
    consumer.average = 0.9999999999999999
    run.send(17, 24)
    assert consumer.average == 8


@pytest.mark.feature("D3")
def test_how_an_ack_set_looks_on_the_wire() -> None:
    run = with_consumer()
    run.send(0, 2)
    run.ack("s", (1, 0), left=[5], size=3)
    assert one(run.redeliver("s"), Message).ack_set == [5]
    run.send(3, 102)
    run.ack("s", (1, 1), left=to_words(2**100 - 2), size=100)
    assert of(run.redeliver("s"), Message)[1].ack_set == [-2, 2**36 - 1]


@pytest.mark.feature("E1")
def test_a_batch_of_no_messages_counts_one() -> None:
    run = with_consumer(permits=10)
    run.send(0, num_messages_in_batch=0)
    assert (consumer(run).permits, consumer(run).unacked) == (9, 1)


@pytest.mark.feature("D3")
def test_partial_acks_that_leave_nothing_are_a_full_ack() -> None:
    run = with_consumer("Exclusive")
    run.send(0, 2)
    run.ack("s", (1, 0), left=[5], size=3)
    run.ack("s", (1, 0), left=[2], size=3)
    assert run.backlog("s") == 0
    assert run.cursor("s").batches == {}


@pytest.mark.feature("D4")
def test_a_seek_into_a_batch_brings_its_tail() -> None:
    run = with_consumer("Exclusive")
    run.send(0)
    run.send(1, 10)
    run.send(11)
    run.seek("s", (1, 1), left=words(*range(5, 10)))
    again = of(run.subscribe("s", permits=100), Message)
    assert [(m.entry_id, m.ack_set) for m in again] == [(1, words(*range(5, 10))), (2, None)]
    assert consumer(run).permits == 100 - 5 - 1


@pytest.mark.feature("D3")
def test_partly_acked_batches_come_whole_after_an_unload() -> None:
    run = with_consumer()
    run.send(0, 2)
    run.ack("s", (1, 0), left=[5], size=3)
    run.unload()
    assert one(run.subscribe("s", "Shared", permits=10), Message).ack_set is None


@pytest.mark.feature("A6")
def test_chunks_of_a_message_go_to_one_consumer() -> None:
    run = Run()
    run.create_producer()
    for id_ in (1, 2):
        run.subscribe("s", "Shared", id_=id_)
    entries: list[tuple[str, int, int]] = [
        ("A-0", 0, 1), ("A-1", 0, 3), ("A-1", 1, 3), ("B-0", 0, 1), ("B-1", 0, 2), ("A-1", 2, 3), ("B-1", 1, 2),
    ]  # fmt: skip
    for sequence_id, (uuid, chunk, chunks) in enumerate(entries):
        fields: dict[str, Any] = {"uuid": uuid, "chunk_id": chunk, "num_chunks_from_msg": chunks}
        run.send(sequence_id, **(fields if chunks > 1 else {}))
    arrived = run.flow("s", 3, id_=1)
    assert (sent(arrived, 1), sent(arrived, 2)) == ([0, 1, 2], [])
    arrived = run.flow("s", 4, id_=2)
    assert (sent(arrived, 1), sent(arrived, 2)) == ([], [3, 4, 6])
    arrived = run.flow("s", 3, id_=1)
    assert (sent(arrived, 1), sent(arrived, 2)) == ([5], [])


@pytest.mark.feature("A6")
def test_a_chunk_that_comes_before_the_first_is_kept_for_replay() -> None:
    run = Run()
    run.subscribe("s", "Shared")
    run.create_producer()
    for sequence_id, chunk in enumerate((1, 0, 2)):
        run.send(sequence_id, uuid="A", chunk_id=chunk, num_chunks_from_msg=3)
    assert sent(run.flow("s", 10)) == [1, 2]
    assert run.backlog("s") == 3


@pytest.mark.feature("D3")
def test_a_corrupt_entry_is_acked_like_any_other() -> None:
    run = with_consumer()
    run.send(0, 2)
    run.raw(
        b'{"command": "ACK", "connection": "s", "consumer_id": 1, "ack_type": "Individual",'
        b' "message_id": [{"ledgerId": 1, "entryId": 0}], "validation_error": "ChecksumMismatch"}'
    )
    assert (run.backlog("s"), consumer(run).unacked) == (0, 0)


# -- how many messages an entry may have


@pytest.mark.feature("E1")
def test_a_batch_has_at_most_as_many_messages_as_the_broker_takes() -> None:
    run = Run()
    run.create_producer()
    assert one(run.send(0, 99_999), SendReceipt).messages == 100_000
    refused = one(run.send(100_000, 200_000), SendError)
    assert (refused.error, refused.sequence_id) == ("NotAllowedError", 200_000)
    assert "100001 messages, the broker takes 100000" in refused.cause
    run.configure(maxMessagesPerBatch=2)
    assert one(run.send(0, 2), SendError).error == "NotAllowedError"
    assert one(run.send(0, num_messages_in_batch=2**31 - 1, chunk_id=0), SendError).error == "NotAllowedError"
    assert run.topic.ledger.number_of_entries == 1


@pytest.mark.feature("E1")
@pytest.mark.parametrize("topic", [TOPIC, TOPIC.replace("persistent", "non-persistent")])
@pytest.mark.parametrize(
    ("payload", "metadata", "fits"),
    [
        ("xxx", {}, True),
        ("xx", {}, False),
        ("xx", {"compression": "NONE", "uncompressed_size": 99}, False),
        ("x", {"compression": "LZ4", "uncompressed_size": 3}, True),
        ("x", {"compression": "LZ4", "uncompressed_size": 2}, False),
        ("", {}, True),
    ],
)
def test_a_batch_has_no_more_messages_than_fit_into_its_payload(
    topic: str, payload: str, metadata: dict[str, Any], fits: bool
) -> None:
    run = Run()
    run.create_producer(topic=topic)
    batch = MessageMetadata("p", 0, run.now, num_messages_in_batch=3, **metadata)
    (answer,) = run.do(
        Send(
            connection="client", producer_id=1, sequence_id=0, num_messages=3, metadata=batch, payload=payload
        ),
        topic,
    )
    assert isinstance(answer, SendReceipt) == fits
    if not fits:
        assert isinstance(answer, SendError)
        assert answer.cause == "a batch of 3 messages in 2 bytes"
