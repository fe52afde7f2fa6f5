"""The worked cases of docs/rules/protocol.md §25, by number, and what the broker answers besides.

Left out, as they are bytes on the wire: 1 and 2, which are in tests/protocol/test_codec.py.
"""

import base64
from typing import Any

import pytest
from msgspec import UNSET

from schemas.commands import (
    Admin,
    GetLastMessageId,
    GetOrCreateSchema,
    GetSchema,
    Lookup,
    MessageIdData,
    MessageMetadata,
    PartitionedMetadata,
    SchemaData,
    Send,
    SubType,
)
from schemas.effect_fields import (
    LookupResponseFields,
    MarkDeletePosition,
    PartitionedMetadataResponseFields,
    SchemaFields,
)
from schemas.effects import (
    AckResponse,
    AdminResponse,
    CloseConnection,
    CloseConsumer,
    CloseProducer,
    Effect,
    Error,
    GetLastMessageIdResponse,
    GetOrCreateSchemaResponse,
    GetSchemaResponse,
    LookupResponse,
    Message,
    PartitionedMetadataResponse,
    ProducerSuccess,
    Quarantined,
    ReachedEndOfTopic,
    SendError,
    SendReceipt,
    Success,
)
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.policies.admin_calls import policy_of
from streaming.broker.subscription.consumer import MAX_PERMITS
from tests.broker.kit import START, TOPIC, Run, of, one, sent

NOWHERE = "persistent://public/default/nowhere"


def last_id(run: Run, name: str = "s") -> GetLastMessageIdResponse:
    effects = run.do(GetLastMessageId(connection=name, consumer_id=1, request_id=run.request()))
    return one(effects, GetLastMessageIdResponse)


def partitions(run: Run, topic: str = TOPIC, *, create: bool = True) -> PartitionedMetadataResponse:
    command = PartitionedMetadata(
        connection="c", request_id=run.request(), metadata_auto_creation_enabled=create
    )
    return one(run.do(command, topic), PartitionedMetadataResponse)


def called(effects: list[Effect]) -> tuple[int, Any]:
    """Status and response of an admin call."""
    answer = one(effects, AdminResponse)
    if answer.ledger_id is not None:
        return answer.fields.status, (answer.ledger_id, answer.entry_id)
    response = answer.fields.response
    return answer.fields.status, None if response is UNSET else response


# -- the worked cases ---------------------------------------------------------------------------------------------


@pytest.mark.feature("K1")
def test_protocol_case_03_sequence_ids_are_echoed() -> None:
    run = Run()
    run.create_producer()
    receipts = [one(run.send(*ids), SendReceipt) for ids in ((5, 9), (5,), (9, 5))]
    assert [(r.sequence_id, r.highest_sequence_id) for r in receipts] == [(5, 9), (5, None), (9, None)]


@pytest.mark.feature("A1", "K1")
def test_protocol_case_04_a_duplicate_has_no_position() -> None:
    run = Run(brokerDeduplicationEnabled=True)
    run.create_producer()
    run.send(3)
    receipt = one(run.send(3), SendReceipt)
    assert (receipt.sequence_id, receipt.ledger_id, receipt.entry_id) == (3, -1, -1)


@pytest.mark.feature("K1")
def test_protocol_case_05_request_ids_may_collide() -> None:
    run = Run()
    looked_up = one(run.do(Lookup(connection="client", request_id=1)), LookupResponse)
    run.requests = 0
    created = one(run.create_producer(), ProducerSuccess)
    assert (looked_up.request_id, created.request_id) == (1, 1)


@pytest.mark.feature("K1")
def test_protocol_case_06_subscribe_and_producer_may_be_repeated() -> None:
    run = Run()
    first, second = one(run.subscribe("s"), Success), one(run.subscribe("s"), Success)
    assert second.request_id == first.request_id + 1
    assert len(run.topic.subscriptions["s"].consumers) == 1
    created = [one(run.create_producer(None), ProducerSuccess) for _ in range(2)]
    assert created[1].request_id == created[0].request_id + 1
    assert created[1].producer_name == created[0].producer_name
    assert len(run.topic.producers) == 1
    assert one(run.subscribe("s", id_=2), Error).error == "ConsumerBusy"


@pytest.mark.feature("K1")
def test_protocol_case_06_not_while_the_first_is_being_created() -> None:
    run = Run()
    run.create_producer("a", producer_access_mode="Exclusive")
    waits = run.create_producer("b", id_=2, producer_access_mode="WaitForExclusive")
    assert one(waits, ProducerSuccess).fields.producer_ready is False
    again = run.create_producer("b", id_=2, producer_access_mode="WaitForExclusive")
    assert one(again, Error).error == "ServiceNotReady"


@pytest.mark.feature("K1")
def test_protocol_case_07_send_after_the_client_closed() -> None:
    run = Run()
    run.create_producer()
    run.close_producer()
    assert one(run.send(0), CloseConnection).connection == "client"


@pytest.mark.feature("K1")
def test_protocol_case_07_send_after_the_broker_closed() -> None:
    run = Run()
    run.create_producer()
    assert one(run.unload(), CloseProducer).producer_id == 1
    run.now += 30_000
    assert run.send(0) == []
    run.now += 1
    assert one(run.send(1), CloseConnection).connection == "client"


@pytest.mark.feature("K1")
def test_protocol_case_07_send_before_any_producer() -> None:
    run = Run()
    run.subscribe("s")
    assert one(run.send(0), CloseConnection).connection == "client"


@pytest.mark.feature("K1")
def test_protocol_case_08_the_last_ack_on_a_terminated_topic() -> None:
    run = Run()
    run.subscribe("s", "Shared", permits=10)
    run.subscribe("s", "Shared", id_=2)
    run.publish(0)
    run.publish(1)
    assert of(run.admin("POST", "/terminate"), ReachedEndOfTopic) == []
    assert of(run.ack("s", (1, 0)), ReachedEndOfTopic) == []
    told = of(run.ack("s", (1, 1)), ReachedEndOfTopic)
    assert [end.consumer_id for end in told] == [1, 2]
    again = of(run.ack("s", (1, 1)), ReachedEndOfTopic)
    assert [end.consumer_id for end in again] == [1, 2], "with each ack of a subscription without a backlog"


@pytest.mark.feature("D4")
def test_protocol_case_09_the_last_id_of_a_batch() -> None:
    run = Run()
    run.subscribe("s")
    empty = last_id(run)
    assert (empty.ledger_id, empty.entry_id, empty.fields.batch_index) == (-1, -1, -1)
    run.create_producer()
    run.send(0)
    last = last_id(run)
    assert (last.ledger_id, last.entry_id, last.fields.batch_index) == (1, 0, -1)
    run.send(1, 1)
    last = last_id(run)
    assert (last.ledger_id, last.entry_id, last.fields.batch_index) == (1, 1, 0)
    run.send(2, 4)
    assert last_id(run).fields.batch_index == 2


@pytest.mark.feature("B1")
def test_protocol_case_10_exclusive_producers() -> None:
    run = Run()
    run.create_producer("P1")
    refused = run.create_producer("P2", id_=2, producer_access_mode="Exclusive")
    assert one(refused, Error).error == "ProducerFenced"
    waits = one(run.create_producer("P2", id_=3, producer_access_mode="WaitForExclusive"), ProducerSuccess)
    assert waits.fields.producer_ready is False
    ready = one(run.close_producer(), ProducerSuccess)
    assert (ready.request_id, ready.fields.producer_ready) == (waits.request_id, True)
    assert one(run.create_producer("P3", id_=4), Error).error == "ProducerBusy"


@pytest.mark.feature("B1")
def test_protocol_case_10_nobody_shares_with_one_that_waits() -> None:
    run = Run()
    run.create_producer("P1")
    run.create_producer("P2", id_=2, producer_access_mode="WaitForExclusive")
    assert one(run.create_producer("P3", id_=3), Error).error == "ProducerBusy"


@pytest.mark.feature("D4")
def test_protocol_case_11_a_seek_closes_the_consumers_then_succeeds() -> None:
    run = Run()
    for id_ in (1, 2):
        run.subscribe("s", "Shared", id_=id_)
    run.publish(0)
    answers = [e for e in run.seek("s", (1, 0), id_=2) if isinstance(e, CloseConsumer | Success)]
    assert [type(answer) for answer in answers] == [CloseConsumer, CloseConsumer, Success]
    assert [closed.consumer_id for closed in of(answers, CloseConsumer)] == [1, 2]
    for id_ in (1, 2):
        assert one(run.subscribe("s", "Shared", id_=id_), Success)


@pytest.mark.feature("D3")
def test_protocol_case_12_an_ack_is_answered_if_it_asks_for_it() -> None:
    run = Run()
    run.subscribe("s", id_=3)
    run.publish(0)
    (answer,) = run.ack("s", (1, 0), id_=3, request_id=8)
    assert isinstance(answer, AckResponse)
    assert (answer.consumer_id, answer.request_id) == (3, 8)
    run.publish(1)
    assert run.ack("s", (1, 1), id_=3) == []


# -- producers ----------------------------------------------------------------------------------------------------


@pytest.mark.feature("K1")
def test_a_message_that_names_an_id_is_refused() -> None:
    """Only shadow topics take such messages, and there are none."""
    run = Run()
    run.create_producer()
    metadata = MessageMetadata("p", 0, START)
    sent = Send(
        connection="client", producer_id=1, sequence_id=0, metadata=metadata, message_id=MessageIdData(1, 0)
    )
    assert one(run.do(sent), SendError).error == "NotAllowedError"


# -- consumers (docs/rules/protocol.md §13–§17) -------------------------------------------------------------------


@pytest.mark.feature("D3")
def test_an_ack_that_the_cursor_refuses_is_answered_all_the_same() -> None:
    run = Run()
    run.subscribe("s", "Shared")
    run.publish(0)
    assert one(run.ack("s", (7, 7), request_id=1), AckResponse)
    assert one(run.ack("s", (1, 0), cumulative=True, request_id=2), AckResponse)
    assert run.backlog("s") == 1
    assert run.ack("nobody", (1, 0), request_id=3) == []


@pytest.mark.feature("E1")
def test_a_flow_before_its_consumer_is_lost() -> None:
    run = Run()
    run.publish(0)
    assert run.flow("s", 10) == []
    assert sent(run.subscribe("s")) == []
    assert sent(run.flow("s", 10)) == [0]


@pytest.mark.feature("E1")
def test_a_flow_of_nothing_costs_the_connection() -> None:
    run = Run()
    run.subscribe("s", permits=10)
    assert one(run.flow("s", 0), CloseConnection).connection == "s"
    assert run.topic.subscriptions["s"].consumers == []


@pytest.mark.feature("K1")
def test_nothing_is_sent_after_a_consumer_is_closed() -> None:
    run = Run()
    run.subscribe("s", permits=10)
    assert one(run.close_consumer("s"), Success)
    assert one(run.close_consumer("s"), Success)
    assert sent(run.publish(0)) == []


@pytest.mark.feature("D4")
def test_a_position_beyond_the_end_is_the_end() -> None:
    run = Run()
    run.subscribe("s")
    run.publish(0)
    run.seek("s", (2**63 - 1, 2**63 - 1))
    assert run.backlog("s") == 0


@pytest.mark.feature("D4")
def test_a_seek_to_a_time() -> None:
    run = Run(now=0)
    run.subscribe("s")
    for sequence_id, time in enumerate((10, 20, 20, 30)):
        run.publish(sequence_id, publish_time=time)
    for time, expected in ((0, [0, 1, 2, 3]), (20, [1, 2, 3]), (21, [3]), (31, [])):
        effects = run.seek("s", time=time)
        assert isinstance(effects[-1], Success)
        assert sent(run.subscribe("s", permits=10)) == expected


# -- the last id --------------------------------------------------------------------------------------------------


@pytest.mark.feature("D4")
def test_the_last_id_passes_over_markers() -> None:
    run = Run()
    run.subscribe("s")
    run.create_producer()
    run.send(0)
    for number, marker in enumerate((10, 13, 21), 1):
        run.send(number, marker_type=marker)
    assert (last_id(run).ledger_id, last_id(run).entry_id) == (1, 0)
    run.unload()
    run.subscribe("s")
    assert (last_id(run).ledger_id, last_id(run).entry_id) == (1, 0)


@pytest.mark.feature("D4")
def test_the_last_id_of_nothing_but_markers_is_none() -> None:
    run = Run()
    run.subscribe("s")
    run.create_producer()
    run.send(0, marker_type=10)
    assert (last_id(run).ledger_id, last_id(run).entry_id) == (-1, -1)


@pytest.mark.feature("D4")
def test_the_last_id_tells_the_mark_delete_position() -> None:
    run = Run()
    run.subscribe("s")
    run.subscribe("r", durable=False, earliest=False)
    run.publish(0)
    run.ack("s", (1, 0))
    for name, entry in (("s", 0), ("r", -1)):
        found = last_id(run, name).fields.consumer_mark_delete_position
        assert found == MarkDeletePosition(ledgerId=1, entryId=entry)


@pytest.mark.feature("D4")
def test_the_last_id_of_trimmed_data_is_none() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=1)
    run.subscribe("s")
    run.publish(0)
    run.ack("s", (1, 0))
    run.check("consumedLedgers")
    assert 1 not in run.topic.ledger.ledgers
    assert (last_id(run).ledger_id, last_id(run).entry_id) == (-1, -1)


# -- the end of a topic -------------------------------------------------------------------------------------------


@pytest.mark.feature("K1")
def test_terminate_tells_where_the_topic_ends() -> None:
    run = Run()
    run.create_producer()
    run.send(0)
    run.subscribe("s")
    effects = run.admin("POST", "/terminate")
    assert one(effects, CloseProducer).producer_id == 1
    status, response = called(effects)
    assert (status, response["ledgerId"], response["entryId"]) == (200, 1, 0)
    assert one(run.publish(1), SendError).error == "TopicTerminatedError"
    assert one(run.create_producer(), Error).error == "TopicTerminatedError"
    assert sent(run.flow("s", 1)) == [0]


@pytest.mark.feature("K1")
def test_the_end_is_told_at_once_where_nothing_is_left() -> None:
    run = Run()
    run.subscribe("s")
    assert one(run.admin("POST", "/terminate"), ReachedEndOfTopic).consumer_id == 1
    assert of(run.subscribe("t"), ReachedEndOfTopic) == [], "nothing is read without permits"
    assert one(run.flow("t", 1), ReachedEndOfTopic).connection == "t"


@pytest.mark.feature("K1")
@pytest.mark.parametrize("type_", ["Exclusive", "Failover", "Shared", "Key_Shared"])
def test_a_read_at_the_end_reaches_it_once(type_: SubType) -> None:
    """The read that failed counts as one that waits, for who comes back and for further consumers."""
    run = Run(activeConsumerFailoverDelayTimeMillis=0)
    run.publish(0)
    run.admin("POST", "/terminate")
    run.subscribe("s", type_, permits=1)
    assert one(run.ack("s", (1, 0)), ReachedEndOfTopic).consumer_id == 1, (
        "by the ack: it has not read that far"
    )
    assert one(run.flow("s", 1), ReachedEndOfTopic).consumer_id == 1, "by the read"
    assert of(run.flow("s", 1), ReachedEndOfTopic) == []
    run.close_consumer("s")
    assert of(run.subscribe("s", type_, permits=1), ReachedEndOfTopic) == []
    if type_ != "Exclusive":
        assert of(run.subscribe("s", type_, id_=2, permits=1), ReachedEndOfTopic) == []
    run.unload()
    assert one(run.subscribe("s", type_, permits=1), ReachedEndOfTopic).consumer_id == 1, "it is loaded again"


@pytest.mark.feature("K1")
@pytest.mark.parametrize("type_", ["Exclusive", "Failover", "Shared", "Key_Shared"])
def test_a_read_that_waited_when_the_topic_was_terminated_is_replaced(type_: SubType) -> None:
    run = Run(activeConsumerFailoverDelayTimeMillis=0)
    run.subscribe("s", type_, permits=10)
    run.publish(0)
    run.admin("POST", "/terminate")
    assert one(run.ack("s", (1, 0)), ReachedEndOfTopic).consumer_id == 1
    assert of(run.flow("s", 1), ReachedEndOfTopic) == []
    run.close_consumer("s")
    assert one(run.subscribe("s", type_, permits=1), ReachedEndOfTopic).consumer_id == 1
    run.close_consumer("s")
    assert of(run.subscribe("s", type_, permits=1), ReachedEndOfTopic) == []


@pytest.mark.feature("K1")
def test_a_skip_is_noticed_by_the_next_read_and_a_seek_back_by_acks_alone() -> None:
    run = Run()
    run.subscribe("s", permits=1)
    run.publish(0)
    run.admin("POST", "/terminate")
    assert of(run.admin("POST", "/subscription/s/skip_all"), ReachedEndOfTopic) == []
    assert one(run.flow("s", 1), ReachedEndOfTopic).consumer_id == 1
    run.seek("s", (1, 0))
    assert of(run.subscribe("s", permits=10), ReachedEndOfTopic) == []
    assert one(run.ack("s", (1, 0)), ReachedEndOfTopic).consumer_id == 1


@pytest.mark.feature("K1")
def test_after_a_read_failed_at_the_end_one_active_consumer_is_read_for_in_small_steps() -> None:
    """make parity PULSAR=4.2.4 KIND=old_clients SEED=7002: an entry with 5 messages takes all 5 permits before another is read."""
    run = Run()
    run.create_producer()
    run.send(0, 5)
    run.send(5, 5)
    run.admin("POST", "/terminate")
    assert sent(run.subscribe("s", permits=20)) == [0, 1]
    run.seek("s", (1, 0))
    assert sent(run.subscribe("s", permits=5)) == [0]
    run.seek("s", (1, 0))
    assert sent(run.subscribe("s", permits=5)) == [0, 1], "each read that returns something doubles the next"


@pytest.mark.feature("K1")
def test_after_a_read_failed_at_the_end_shared_consumers_take_turns_for_small_reads() -> None:
    """Recorded with 4.2.4: the reads after it have 1, 2 and 4 entries."""
    run = two_at_the_end()
    again = run.redeliver("s")
    assert (sent(again, 2), sent(again, 1)) == ([0, 3, 4, 5, 6], [1, 2])
    run.flow("s", 1)
    again = run.redeliver("s", id_=2)
    assert (sent(again, 1), sent(again, 2)) == ([0, 5], [3, 4, 6]), "the last of those reads failed, too"


@pytest.mark.feature("K1")
def test_the_smallest_read_is_a_setting() -> None:
    again = two_at_the_end(dispatcherMinReadBatchSize=3).redeliver("s")
    assert (sent(again, 2), sent(again, 1)) == ([0, 1, 2, 6], [3, 4, 5])


def two_at_the_end(**settings: Any) -> Run:
    """The first of two Shared consumers has all 7 entries, and its next read met the end of the topic."""
    run = Run(**settings)
    run.subscribe("s", "Shared")
    run.subscribe("s", "Shared", id_=2)
    for number in range(7):
        run.publish(number)
    run.admin("POST", "/terminate")
    assert sent(run.flow("s", 10), 1) == [0, 1, 2, 3, 4, 5, 6]
    run.flow("s", 10, id_=2)
    return run


@pytest.mark.feature("D4")
def test_a_topic_is_terminated_at_its_open_ledger_even_if_that_is_empty() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=2)
    run.subscribe("s")
    run.publish(0)
    run.publish(1)
    end = {"ledgerId": 2, "entryId": -1, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
    assert called(run.admin("POST", "/terminate")) == (200, end)
    assert run.broker.topic_stats(TOPIC)["internal"]["lastConfirmedEntry"] == "2:-1"
    assert sent(run.flow("s", 10)) == [0, 1]
    assert one(run.ack("s", (1, 1), cumulative=True), ReachedEndOfTopic).consumer_id == 1
    run.unload()
    assert called(run.admin("POST", "/terminate")) == (200, end), "once"
    run = Run(managedLedgerMaxEntriesPerLedger=2)
    run.publish(0)
    assert called(run.admin("POST", "/terminate"))[1]["entryId"] == 0
    run.unload()
    assert called(run.admin("POST", "/terminate"))[1]["entryId"] == 0


# -- peek, examine, get by id -------------------------------------------------------------------------------------


def stored(run: Run) -> Run:
    """Five entries in ledgers of two, of which subscription s has acked the first and the third."""
    run.subscribe("s", "Shared")
    for sequence_id in range(5):
        run.publish(sequence_id)
    run.ack("s", (1, 0), (2, 0))
    return run


@pytest.mark.feature("D4")
def test_peek_shows_the_unacked_ones() -> None:
    run = stored(Run(managedLedgerMaxEntriesPerLedger=2))
    found = [called(run.admin("GET", f"/subscription/s/position/{n}")) for n in (1, 2, 3)]
    assert found == [(200, (1, 1)), (200, (2, 1)), (200, (3, 0))]
    assert called(run.admin("GET", "/subscription/s/position/4"))[0] == 404
    assert sent(run.flow("s", 10)) == [1, 1, 0], "peeking moves nothing"


@pytest.mark.feature("D4")
def test_peek_counts_from_one() -> None:
    run = stored(Run(managedLedgerMaxEntriesPerLedger=2))
    for n in (0, -1, -(2**31)):
        assert called(run.admin("GET", f"/subscription/s/position/{n}"))[0] == 500


@pytest.mark.feature("D4")
@pytest.mark.parametrize(
    ("query", "position"),
    [
        ("", (3, 0)),
        ("?initialPosition=latest&messagePosition=2", (2, 1)),
        ("?initialPosition=earliest&messagePosition=1", (1, 0)),
        ("?initialPosition=earliest&messagePosition=4", (2, 1)),
        ("?initialPosition=earliest&messagePosition=6", (3, 0)),
        ("?initialPosition=earliest&messagePosition=0", (1, 0)),
        ("?initialPosition=latest&messagePosition=5", (1, 0)),
        ("?initialPosition=latest&messagePosition=6", 500),
        ("?initialPosition=first", (3, 0)),  # quirk: as latest
        ("?messagePosition=six", 404),
        ("?messagePosition=", (3, 0)),
        ("?messagePosition=2&messagePosition=six", (2, 1)),
        (f"?initialPosition=earliest&messagePosition={2**63 - 1}", (3, 0)),
        (f"?initialPosition=earliest&messagePosition={2**63}", 404),
    ],
)
def test_examine_counts_from_an_end(query: str, position: tuple[int, int] | int) -> None:
    run = stored(Run(managedLedgerMaxEntriesPerLedger=2))
    status, found = called(run.admin("GET", f"/examinemessage{query}"))
    assert (status if isinstance(position, int) else found) == position


@pytest.mark.feature("D4")
def test_nothing_can_be_examined_in_an_empty_topic() -> None:
    run = Run()
    run.subscribe("s")
    assert called(run.admin("GET", "/examinemessage"))[0] == 412


@pytest.mark.feature("I1")
def test_policies_are_told_at_their_level() -> None:
    run = Run()
    run.publish(0)
    run.subscribe("s")
    quota = {"limitSize": 5, "limitTime": -1, "policy": "producer_exception"}

    def of_namespace(method: str, call: str, *body: Any) -> list[Effect]:
        return run.namespace(method, call[1:], *body)

    for ask in (run.admin, of_namespace):
        assert called(ask("GET", "/retention")) == (200, None)
        ask("POST", "/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2})
        ask("POST", "/backlogQuota", quota)
        assert called(ask("GET", "/retention")) == (
            200,
            {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2},
        )
        assert called(ask("GET", "/backlogQuotaMap")) == (200, {"destination_storage": {"limit": 5, **quota}})
        assert called(ask("GET", "/messageTTL")) == (200, None)
        assert called(ask("GET", "/nothing"))[0] == 404
    assert called(run.admin("GET", "/subscriptions")) == (200, ["s"])


# -- calls on a namespace ------------------------------------------------------------------------------------------


@pytest.mark.feature("D4")
def test_all_topics_of_a_namespace_are_unloaded() -> None:
    run = Run()
    run.subscribe("s", permits=5)
    run.subscribe("e", topic="persistent://public/other/t")
    effects = run.namespace("PUT", "unload")
    assert called(effects)[0] == 204
    assert [closed.connection for closed in of(effects, CloseConsumer)] == ["s"]


@pytest.mark.feature("D4")
@pytest.mark.parametrize(("call", "left"), [("", (0, 0)), ("/a", (0, 1)), ("/c", (1, 1))])
def test_the_backlogs_of_a_namespace_are_cleared(call: str, left: tuple[int, int]) -> None:
    run = Run()
    run.subscribe("a")
    run.subscribe("b")
    run.publish(0)
    assert called(run.namespace("POST", f"clearBacklog{call}")[:1])[0] == 204
    assert (run.backlog("a"), run.backlog("b")) == left


# -- positions in the bodies of calls ------------------------------------------------------------------------------


@pytest.mark.feature("D4")
@pytest.mark.parametrize(
    ("more", "mark_delete"),
    [
        ({}, (1, 0)),
        ({"isExcluded": True}, (1, 0)),  # not its name: see the recorded admin_reset_cursor
        ({"excluded": True}, (1, 1)),
        ({"excluded": True, "batchIndex": 0}, (1, 1)),
        ({"excluded": True, "batchIndex": -1}, (1, 1)),
    ],
)
def test_a_cursor_is_reset_to_an_id_or_behind_it(more: dict[str, Any], mark_delete: tuple[int, int]) -> None:
    run = Run()
    run.subscribe("s")
    for sequence_id in range(5):
        run.publish(sequence_id)
    body = {"ledgerId": 1, "entryId": 1, **more}
    assert called(run.admin("POST", "/subscription/s/resetcursor", body))[0] == 204
    assert run.mark_delete("s") == mark_delete
    run.admin("POST", "/subscription/s/expireMessages", {"ledgerId": 1, "entryId": 2, "excluded": True})
    assert run.mark_delete("s") == (1, 3)


@pytest.mark.feature("D4")
@pytest.mark.parametrize(
    ("enabled", "index", "excluded", "left"),
    [(True, 1, False, 0b110), (True, 1, True, 0b100), (True, 0, False, None), (False, 1, False, None)],
)
def test_a_cursor_is_reset_into_a_batch(enabled: bool, index: int, excluded: bool, left: int | None) -> None:
    run = Run(acknowledgmentAtBatchIndexLevelEnabled=enabled)
    run.subscribe("s", "Shared")
    run.create_producer()
    run.send(0, 2)
    body = {"ledgerId": 1, "entryId": 0, "batchIndex": index, "excluded": excluded}
    assert called(run.admin("POST", "/subscription/s/resetcursor", body))[0] == 204
    (message,) = of(run.subscribe("s", "Shared", permits=10), Message)
    assert message.ack_set == (None if left is None else [left])


@pytest.mark.feature("D4")
def test_behind_the_last_message_of_a_batch_is_behind_the_batch() -> None:
    run = Run(acknowledgmentAtBatchIndexLevelEnabled=True)
    run.subscribe("s", "Shared")
    run.create_producer()
    run.send(0, 2)
    body = {"ledgerId": 1, "entryId": 0, "batchIndex": 2, "excluded": True}
    run.admin("POST", "/subscription/s/resetcursor", body)
    assert run.mark_delete("s") == (1, 0)
    run.admin("POST", "/subscription/s/resetcursor", {"ledgerId": 9, "entryId": 0, "batchIndex": 2})
    assert run.mark_delete("s") == (1, 0), "nothing is known of an entry that isn't there"


@pytest.mark.feature("D4")
def test_a_subscription_made_where_all_was_trimmed_starts_in_the_ledger_that_is_there() -> None:
    run = Run(managedLedgerMaxEntriesPerLedger=2)
    run.subscribe("s")
    for sequence_id in range(2):
        run.publish(sequence_id)
    run.ack("s", (1, 1), cumulative=True)
    run.admin("POST", "/trim")
    assert list(run.topic.ledger.ledgers) == [2]
    run.admin("PUT", "/subscription/t", {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1})
    assert run.mark_delete("t") == (2, -1)
    run.subscribe("u", earliest=False)
    assert run.mark_delete("u") == (1, 1), "a consumer's subscription isn't reset"


@pytest.mark.feature("D4")
def test_an_entry_is_got_by_its_id() -> None:
    run = stored(Run(managedLedgerMaxEntriesPerLedger=2))
    assert called(run.admin("GET", "/ledger/2/entry/1")) == (200, (2, 1))
    for position, code in (("2/entry/2", 500), ("3/entry/1", 500), ("9/entry/0", 404)):
        assert called(run.admin("GET", f"/ledger/{position}"))[0] == code


# -- what is asked before a topic is used (docs/rules/protocol.md §7, §8, §20) ------------------------------------


@pytest.mark.feature("K1")
def test_partitions_of_a_topic() -> None:
    run = Run()
    assert partitions(run, NOWHERE).fields == PartitionedMetadataResponseFields(
        response="Success", partitions=0
    )
    absent = partitions(run, NOWHERE, create=False)
    assert (absent.fields.response, absent.error) == ("Failed", "TopicNotFound")
    run.publish(0)
    assert partitions(run, create=False).fields == PartitionedMetadataResponseFields(
        response="Success", partitions=0
    )
    assert run.broker.topic_names() == [TOPIC], "asking creates nothing"


@pytest.mark.feature("K1")
def test_partitions_where_topics_are_not_created_by_use() -> None:
    run = Run(allowAutoTopicCreation=False)
    assert partitions(run, NOWHERE).error == "TopicNotFound"


@pytest.mark.feature("K1")
@pytest.mark.parametrize("name", ["t", "persistent://public/t", "http://public/default/t"])
def test_partitions_of_a_bad_name(name: str) -> None:
    answer = partitions(Run(), name)
    assert (answer.fields.response, answer.error) == ("Failed", "InvalidTopicName")


BAD_TOPICS = ["t", "persistent://public/t", "persistent://pu blic/default/t", "persistent://public/../t"]


SHORT = "it should be in the format of <tenant>/<namespace>/<topic> or <topic>"


@pytest.mark.feature("K1")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a/b", f"Invalid short topic name 'a/b', {SHORT}"),
        ("persistent:/a", f"Invalid short topic name 'persistent:/a', {SHORT}"),
        ("nope://public/default/t", "Invalid topic domain: 'nope'"),
        ("persistent://public/default", "Invalid topic name: persistent://public/default"),
        ("persistent:///default/t", "Invalid namespace format. namespace: /default"),
        ("persistent://prop//ns/t", "Invalid namespace format. namespace: prop//ns"),
        ("persistent://pub lic/default/t", "Invalid named entity: pub lic"),
        ("persistent://prop/cl/n s/t", "Invalid named entity: n s"),
        (
            "persistent://public/default/ ",
            "Invalid topic name: persistent://public/default/ . Topic local name must not be blank.",
        ),
        (
            "persistent://prop/cl/ns/",
            "Invalid topic name: persistent://prop/cl/ns/. Topic local name must not be blank.",
        ),
    ],
)
def test_why_a_name_is_refused(name: str, why: str) -> None:
    """As 4.0.7 says it."""
    run = Run()
    assert one(run.do(GetSchema(connection="c", request_id=1), name), GetSchemaResponse).cause == why
    for effects in (
        run.do(Lookup(connection="c", request_id=1), name),
        run.create_producer(topic=name),
        run.subscribe("s", topic=name),
    ):
        (answer,) = effects
        assert isinstance(answer, LookupResponse | Error)
        assert (answer.error, answer.cause) == ("InvalidTopicName", f"Invalid topic name: {why}")


@pytest.mark.feature("K1")
def test_a_listener_that_the_broker_does_not_have() -> None:
    """4.0.7: ServiceNotReady."""
    asked = Lookup(connection="c", request_id=1, advertised_listener_name="external")
    answer = one(Run().do(asked), LookupResponse)
    assert (answer.fields.response, answer.error, answer.cause) == (
        "Failed", "ServiceNotReady", "the broker do not have external listener",
    )  # fmt: skip


@pytest.mark.feature("K1")
def test_a_partition_that_a_topic_does_not_have() -> None:
    """4.0.7: PARTITIONED_METADATA, PRODUCER and SUBSCRIBE do not create it. One of no partitioned topic is a topic like others."""
    run = Run()
    run.admin("PUT", "/partitions", 2)
    beyond, orphan = f"{TOPIC}-partition-2", "persistent://public/default/u-partition-2"
    assert partitions(run, beyond).error == "TopicNotFound"
    assert one(run.create_producer(topic=beyond), Error).error == "TopicNotFound"
    assert one(run.subscribe("s", topic=beyond), Error).error == "TopicNotFound"
    asked = PartitionedMetadata(connection="c", request_id=1, metadata_auto_creation_enabled=False)
    for topic, error in (
        (f"{TOPIC}-partition-1", None),
        (beyond, "TopicNotFound"),
        (orphan, "TopicNotFound"),
    ):
        assert one(run.do(asked, topic), PartitionedMetadataResponse).error == error
    assert partitions(run, orphan).error is None
    assert one(run.create_producer(topic=orphan), ProducerSuccess)


@pytest.mark.feature("K1")
@pytest.mark.parametrize(("stated", "counted"), [(0, 0), (-1, -1), (5, 5)])
def test_a_stated_number_of_messages_is_what_the_topic_counts(stated: int, counted: int) -> None:
    """4.0.7: any number is taken, and adds to msgInCounter; a publish rate sees no negative one."""
    run = Run()
    run.namespace("POST", "publishRate", {"publishThrottlingRateInMsg": 100})
    run.create_producer()
    metadata = MessageMetadata("p", 0, START)
    sent = Send(connection="client", producer_id=1, sequence_id=0, metadata=metadata, num_messages=stated)
    assert one(run.do(sent), SendReceipt)
    assert run.broker.topic_stats(TOPIC)["stats"]["msgInCounter"] == counted


@pytest.mark.feature("K1")
@pytest.mark.parametrize("name", BAD_TOPICS)
def test_a_lookup_of_a_bad_name(name: str) -> None:
    run = Run()
    schema = SchemaData(name="s", type="String", schema_data=b"")
    for command in (
        Lookup(connection="client", request_id=1),
        GetSchema(connection="client", request_id=1),
        GetOrCreateSchema(connection="client", request_id=1, schema=schema),
    ):
        (answer,) = run.do(command, name)
        assert isinstance(answer, LookupResponse | GetSchemaResponse | GetOrCreateSchemaResponse)
        assert answer.error == "InvalidTopicName"
    assert not run.broker._ctx.schemas


@pytest.mark.feature("K1")
@pytest.mark.parametrize("name", BAD_TOPICS)
def test_a_command_without_an_answer_for_a_bad_name_is_quarantined(name: str) -> None:
    (row,) = Run().flow("s", 1, topic=name)
    assert isinstance(row, Quarantined)
    assert row.rule == "invalid_topic"


@pytest.mark.feature("I1")
@pytest.mark.parametrize("name", BAD_TOPICS[2:])
def test_partitions_of_a_bad_topic(name: str) -> None:
    run = Run()
    assert called(run.admin("PUT", "/partitions", 4, topic=name)) == (
        412,
        {"reason": "Topic name is not valid"},
    )
    assert not run.broker.partitioned


@pytest.mark.feature("I1")
@pytest.mark.parametrize("name", ["public/de fault", "public/..", "pub\nlic/default"])
def test_policies_of_a_bad_namespace(name: str) -> None:
    run = Run()
    call = Admin(method="POST", path=f"/namespaces/{name}/messageTTL", body=5)
    assert called(run.do(call, None)) == (412, {"reason": "Namespace name is not valid"})
    assert name not in run.broker._ctx.namespaces


@pytest.mark.feature("K1")
def test_a_partition_has_no_partitions() -> None:
    run = Run()
    run.admin("PUT", "/partitions", 4)
    assert partitions(run, f"{TOPIC}-partition-3", create=False).fields == PartitionedMetadataResponseFields(
        response="Success", partitions=0
    )


@pytest.mark.feature("K1")
def test_partitions_are_made_and_multiplied() -> None:
    run = Run()
    assert called(run.admin("PUT", "/partitions", 4))[0] == 204
    assert partitions(run, create=False).fields == PartitionedMetadataResponseFields(
        response="Success", partitions=4
    )
    assert called(run.admin("PUT", "/partitions", 4))[0] == 409
    assert called(run.admin("POST", "/partitions", 3))[0] == 422
    assert called(run.admin("POST", "/partitions", 6))[0] == 204
    assert partitions(run).fields.partitions == 6
    assert called(run.admin("POST", "/partitions", 6, topic=NOWHERE))[0] == 409
    for body, expected in ((0, 406), (-1, 406), (True, 400), ("x", 400), (None, 400), (2.5, 400)):
        assert called(run.admin("PUT", "/partitions", body, topic=NOWHERE))[0] == expected


@pytest.mark.feature("K1")
def test_partitions_are_deleted() -> None:
    run = Run()
    run.admin("PUT", "/partitions", 4)
    assert called(run.admin("DELETE", "/partitions"))[0] == 204
    assert partitions(run).fields.partitions == 0


@pytest.mark.feature("K1")
def test_a_lookup_always_connects() -> None:
    run = Run()
    answer = one(run.do(Lookup(connection="c", request_id=4), NOWHERE), LookupResponse)
    assert (answer.connection, answer.request_id) == ("c", 4)
    assert answer.fields == LookupResponseFields(
        response="Connect", authoritative=True, proxy_through_service_url=True
    )


def schema_of(answer: GetSchemaResponse) -> SchemaFields:
    assert answer.fields.schema is not UNSET
    return answer.fields.schema


def version(number: int) -> str:
    """A schema version as it is put out."""
    return base64.b64encode(number.to_bytes(8, "big")).decode()


@pytest.mark.feature("K1")
def test_schemas_are_numbered() -> None:
    run = Run(schemaCompatibilityStrategy="ALWAYS_COMPATIBLE")
    run.admin("PUT", "")
    a, b = SchemaData("a", b"[]", "Json"), SchemaData("b", b'"int"', "Avro")

    def keep(schema: SchemaData) -> str:
        effects = run.do(GetOrCreateSchema(connection="c", request_id=1, schema=schema))
        found = one(effects, GetOrCreateSchemaResponse).fields.schema_version
        assert isinstance(found, str)
        return found

    def get(schema_version: bytes = b"") -> GetSchemaResponse:
        command = GetSchema(connection="c", request_id=1, schema_version=schema_version)
        return one(run.do(command), GetSchemaResponse)

    nothing = get()
    assert (nothing.error, nothing.cause) == ("TopicNotFound", f"Topic not found or no-schema {TOPIC}")
    assert [keep(a), keep(b), keep(a)] == [version(0), version(1), version(0)]
    assert (schema_of(get()).schema_data, get().fields.schema_version) == (b'"int"', version(1))
    first = schema_of(get(bytes(8)))
    assert first == SchemaFields(name="public/default/t", schema_data=b"[]", type="Json", properties=[])
    assert get((2).to_bytes(8, "big")).error == "TopicNotFound"


@pytest.mark.feature("K1")
def test_a_producers_schema_is_kept_and_its_version_told() -> None:
    run = Run()
    answer = one(run.create_producer(schema=SchemaData("a", b"[]", "Json")), ProducerSuccess)
    assert answer.fields.schema_version == version(0)
    found = one(run.do(GetSchema(connection="c", request_id=1)), GetSchemaResponse)
    assert schema_of(found).schema_data == b"[]"


@pytest.mark.feature("K1")
def test_the_answers_survive_a_restart() -> None:
    run = Run()
    run.admin("PUT", "/partitions", 4)
    schema = SchemaData("a", b"[]", "Json")
    run.do(GetOrCreateSchema(connection="c", request_id=1, schema=schema), f"{TOPIC}-partition-0")
    run.broker = Broker.decode(run.broker.encode(), NoEntries())
    assert partitions(run).fields.partitions == 4
    found = one(run.do(GetSchema(connection="c", request_id=1)), GetSchemaResponse)
    assert schema_of(found).schema_data == b"[]"


@pytest.mark.feature("E5")
def test_messages_keep_the_brokers_order() -> None:
    run = Run()
    run.subscribe("s", "Shared", permits=10)
    for sequence_id in range(5):
        run.publish(sequence_id)
    run.flow("s", 10)
    assert [m.entry_id for m in of(run.redeliver("s", (1, 3), (1, 1)), Message)] == [1, 3]


@pytest.mark.feature("E1")
@pytest.mark.parametrize("type_", ["Exclusive", "Shared", "Key_Shared", "Failover"])
@pytest.mark.parametrize("topic", [TOPIC, "non-persistent://public/default/n"])
def test_the_sum_of_permits_is_bounded(type_: SubType, topic: str) -> None:
    """What a consumer may get from one record is at most what it asked for. In Pulsar, the sum overflows."""
    run = Run()
    run.subscribe("s", type_, topic=topic)
    assert run.flow("s", MAX_PERMITS - 1, topic=topic) == []
    assert run.flow("s", 1, topic=topic) == []
    closed = one(run.flow("s", 1, topic=topic), CloseConnection)
    assert closed.cause == "FLOW of 1 permits: the consumer would have 1000001, more than 1000000"
    run.subscribe("s", type_, topic=topic)
    run.flow("s", MAX_PERMITS, topic=topic)
    run.wait(5)  # a Failover consumer becomes active
    one(run.publish(0, topic=topic), Message)
    assert run.flow("s", 1, topic=topic) == []


def test_topics_that_do_not_exist_have_no_state_to_look_at() -> None:
    run = Run()
    run.publish(0)
    for look in (run.broker.topic, run.broker.non_persistent_topic, run.broker.topic_stats):
        with pytest.raises(KeyError):
            look(NOWHERE)


@pytest.mark.feature("I1")
@pytest.mark.parametrize(
    ("call", "query", "policy"),
    [
        ("backlogQuota", "", "backlogQuota destination_storage"),
        ("backlogQuota", "?backlogQuotaType=message_age", "backlogQuota message_age"),
        ("deduplication", "", "deduplication"),
        ("deduplicationEnabled", "", "deduplication"),
        ("unload", "", None),
    ],
)
def test_the_policy_that_a_call_sets(call: str, query: str, policy: str | None) -> None:
    assert policy_of(call, f"/namespaces/public/default/{call}{query}") == policy
