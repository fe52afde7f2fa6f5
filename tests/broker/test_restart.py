"""RESTART: the broker stops cleanly and starts again on the same data."""

from typing import Any

import pytest

from schemas.commands import Restart
from schemas.effects import (
    AdminResponse,
    CloseConsumer,
    CloseProducer,
    Effect,
    Error,
    Expired,
    LedgerClosed,
    Message,
    ProducerSuccess,
    SendReceipt,
)
from streaming.broker.broker import Broker
from tests.broker.kit import TOPIC, Run, Stored, of, one, response, sent

pytestmark = pytest.mark.feature("C1", "D3")

VOLATILE = "non-persistent://public/default/n"


def restart(run: Run) -> list[Effect]:
    return run.do(Restart(), None)


def with_backlog(**settings: Any) -> Run:
    """Three entries, of which the subscription s has acked the first; its consumer and the producer p are connected."""
    run = Run(reader=Stored(), **settings)
    run.create_producer()
    run.subscribe("s", "Shared", permits=2)
    for sequence_id in range(3):
        run.send(sequence_id)
    run.ack("s", (1, 0))
    return run


def test_clients_are_disconnected_and_forgotten() -> None:
    run = with_backlog()
    effects = restart(run)
    assert (one(effects, CloseProducer).producer_id, one(effects, CloseConsumer).consumer_id) == (1, 1)
    assert one(effects, LedgerClosed).entries == 3
    assert run.lose("client") == run.lose("s") == []
    assert one(run.create_producer(), ProducerSuccess)
    assert sent(run.subscribe("s", "Shared", permits=9)) == [1, 2]
    assert one(run.send(3), SendReceipt).ledger_id == 2


def test_a_topic_that_nobody_uses_stays_closed() -> None:
    """Its new ledger is opened, and the age of its last one counts, from when it is used."""
    run = with_backlog(managedLedgerMaxLedgerRolloverTimeMinutes=1, backlogQuotaCheckIntervalInSeconds=1)
    restart(run)
    assert run.broker.is_closed(TOPIC)
    assert run.wait(7200) == []
    assert run.check("consumedLedgers") == run.check("backlogQuota") == []
    assert run.topic.ledger.current == 1
    run.admin("GET", "/stats")
    assert not run.broker.is_closed(TOPIC)
    assert (run.topic.ledger.current, run.topic.ledger.ledgers[1].timestamp) == (2, run.now)
    run.admin("GET", "/stats")
    assert run.topic.ledger.current == 2


def test_nothing_expires_on_a_closed_topic() -> None:
    run = with_backlog()
    run.namespace("POST", "messageTTL", 1)
    restart(run)
    run.wait(60)
    assert run.check("messageExpiry") == run.namespace("POST", "messageTTL", 2)[1:] == []
    run.create_producer()
    assert one(run.check("messageExpiry"), Expired).entries == 2


def test_non_persistent_topics_are_gone_but_for_their_policies() -> None:
    run = Run()
    run.create_producer(topic=VOLATILE)
    assert one(restart(run), CloseProducer).producer_id == 1
    assert VOLATILE not in run.broker.topic_names()
    assert one(run.admin("GET", "/stats", topic=VOLATILE), AdminResponse).fields.status == 404
    run.admin("POST", "/maxProducers", 1, topic=VOLATILE)
    restart(run)
    run.create_producer(topic=VOLATILE)
    assert one(run.create_producer("q", 2, topic=VOLATILE), Error).error == "ProducerBusy"


def test_policies_partitions_and_sequence_ids_survive() -> None:
    run = Run(reader=Stored(), brokerDeduplicationEnabled=True)
    run.admin("PUT", "/partitions", 3, topic=f"{TOPIC}s")
    run.admin("POST", "/messageTTL", 7)
    run.create_producer()
    run.send(5)
    restart(run)
    assert response(run.admin("GET", "/messageTTL")) == 7
    assert run.broker.partitioned == {f"{TOPIC}s": 3}
    assert one(run.create_producer(), ProducerSuccess).fields.last_sequence_id == 5


def test_a_closed_topic_stays_closed_in_the_state() -> None:
    run = with_backlog()
    restart(run)
    state = run.broker.encode()
    run.broker = Broker.decode(state, Stored())
    assert run.broker.is_closed(TOPIC)
    assert run.wait(3600) == []
    assert run.broker.is_closed(TOPIC)
    assert restart(run) == [], "it is closed already"
    assert [m.entry_id for m in of(run.subscribe("s", "Shared", permits=0), Message)] == []
    assert not run.broker.is_closed(TOPIC)


def test_a_new_configuration_opens_nothing() -> None:
    run = with_backlog()
    restart(run)
    run.configure(maxUnackedMessagesPerBroker=5)
    assert run.broker.is_closed(TOPIC)
