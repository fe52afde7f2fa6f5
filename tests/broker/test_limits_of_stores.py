"""What a topic's store keeps through an unload, and the broker's own times of entries."""

from typing import Any

import pytest

from schemas.commands import Ack, BrokerConfig, MessageIdData, MessageMetadata, Send
from schemas.effects import AckResponse, Effect, Expired, Quarantined, SendError, SendReceipt, Unsupported
from streaming.broker.producer.message_size import broker_entry_metadata_size
from tests.broker.kit import START, Run, of, one, response

TIMESTAMPS = "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"


@pytest.mark.feature("D3")
def test_only_so_many_ack_holes_are_kept() -> None:
    run = Run(managedLedgerMaxUnackedRangesToPersist=1)
    run.subscribe("s", "Shared", permits=100)
    for sequence_id in range(10):
        run.publish(sequence_id)
    for entry in (2, 4, 6, 7):
        run.ack("s", (1, entry))
    assert run.backlog("s") == 6
    run.unload()
    assert str(run.topic.cursors["s"].acked) == "[(1:1..1:2],(1:3..1:4]]"
    assert run.backlog("s") == 8


@pytest.mark.feature("F2")
def test_with_broker_timestamps_a_clients_clock_does_not_matter() -> None:
    sizes = []
    for interceptors, expired in (("", 0), (TIMESTAMPS, 3)):
        run = Run(brokerEntryMetadataInterceptors=interceptors, ttlDurationDefaultInSeconds=10)
        run.subscribe("s")
        receipts = [one(run.publish(n, publish_time=START + 10**9), SendReceipt) for n in range(3)]
        assert {receipt.broker_timestamp for receipt in receipts} == {START if interceptors else None}
        sizes.append(run.topic.ledger.total_size)
        run.wait(11)
        assert sum(row.entries for row in of(run.check("messageExpiry"), Expired)) == expired
    assert sizes[1] - sizes[0] == 3 * broker_entry_metadata_size(START)


@pytest.mark.feature("F2")
def test_other_interceptors_are_refused() -> None:
    wanted = BrokerConfig(settings={"brokerEntryMetadataInterceptors": "AppendIndexMetadataInterceptor"})
    assert "AppendBrokerTimestampMetadataInterceptor" in one(Run().do(wanted, None), Quarantined).cause


@pytest.mark.feature("F4")
def test_the_rate_of_expiry_is_of_the_last_interval() -> None:
    run = Run(ttlDurationDefaultInSeconds=10)
    run.subscribe("s")
    for sequence_id in range(6):
        run.publish(sequence_id)
    run.wait(11)
    run.check("messageExpiry")
    run.wait(60)
    stats = response(run.admin("GET", "/stats"))
    assert stats["subscriptions"]["s"]["msgRateExpired"] == 6 / 60
    run.wait(60)
    stats = response(run.admin("GET", "/stats"))
    assert stats["subscriptions"]["s"]["msgRateExpired"] == 0


@pytest.mark.feature("K1")
def test_transactions_are_refused() -> None:
    run = Run()
    run.create_producer()
    metadata = MessageMetadata("p", 0, START)
    send = Send(connection="client", producer_id=1, sequence_id=0, metadata=metadata, txnid_most_bits=1)
    error = one(run.do(send), SendError)
    assert (error.error, error.cause) == ("NotAllowedError", "Transaction buffer disable!")
    run.subscribe("s", permits=10)
    run.subscribe("t", "Shared", id_=2, connection="s", permits=10)
    run.publish(1)

    def ack(consumer: int, ack_type: Any, request_id: int | None = None) -> list[Effect]:
        ids = [MessageIdData(1, 0)]
        return run.do(
            Ack(
                connection="s",
                consumer_id=consumer,
                ack_type=ack_type,
                message_id=ids,
                txnid_least_bits=7,
                request_id=request_id,
            )
        )

    assert [type(effect) for effect in ack(1, "Individual")] == [Unsupported]
    refused = ("NotAllowedError", "Server don't support transaction ack!")
    for consumer, ack_type in ((1, "Individual"), (1, "Cumulative"), (2, "Individual")):
        assert one(ack(consumer, ack_type, 5), AckResponse)[-2:] == refused
    # 4.0.7 ignores a cumulative ack of a shared subscription before it looks at the transaction
    assert one(ack(2, "Cumulative", 6), AckResponse).error is None
    assert run.backlog("s") == run.backlog("t") == 1
