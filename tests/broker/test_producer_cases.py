"""The worked cases of docs/rules/producers.md §21, by number.

Cases 13 and 16 are about non-persistent topics and aren't here. Case 8 needs a producer whose id its connection doesn't
know although it is registered, which no command reaches, and takes the mechanism alone.

Each producer has a connection of its own, with its own name, unless said otherwise.
"""

from typing import Any

import pytest
from msgspec import UNSET

from schemas.commands import AccessMode, ConnectionLost, MessageMetadata, Restart, Send
from schemas.effect_fields import ProducerSuccessFields
from schemas.effects import (
    CloseConnection,
    CloseProducer,
    Effect,
    Error,
    ProducerSuccess,
    SendError,
    SendReceipt,
    Success,
)
from streaming.broker.errors import BrokerError
from streaming.broker.producer.producer import Producer
from streaming.broker.topic import creation, registration
from tests.broker.kit import START, TOPIC, BareTopic, Run, of, one

EXCLUSIVE_MODES: list[AccessMode] = ["Exclusive", "ExclusiveWithFencing", "WaitForExclusive"]


class Clients(Run):
    """Producers and their responses: "waits", the topic epoch once they are ready, or the name of an error."""

    def create(
        self, name: str, mode: AccessMode = "Shared", connection: str | None = None, **fields: Any
    ) -> Any:
        """PRODUCER: its immediate response. `self.others` = the responses to others."""
        effects = self.create_producer(
            name, connection=name if connection is None else connection, producer_access_mode=mode, **fields
        )
        answers = told(effects)
        answer = answers.pop(self.requests)
        self.others = list(answers.values())
        return answer

    def close(self, name: str) -> list[Any]:
        """CLOSE_PRODUCER: the producers that get a response, and which one."""
        effects = self.close_producer(connection=name)
        assert one(effects, Success).request_id == self.requests
        names = {effect.request_id: effect.producer_name for effect in of(effects, ProducerSuccess)}
        return [(names[request_id], answer) for request_id, answer in told(effects).items()]

    def lose(self, connection: str) -> list[Effect]:
        return self.do(ConnectionLost(connection=connection), None)

    def sends(self, name: str, sequence_id: int = 0) -> bool:
        """SEND: is it stored? Else its connection is closed."""
        effects = self.send(sequence_id, name=name, connection=name)
        if of(effects, SendReceipt):
            return True
        assert one(effects, CloseConnection).connection == name
        return False

    @property
    def epoch(self) -> int | None:
        return self.topic.access.epoch

    @property
    def connected(self) -> list[str]:
        return list(self.topic.producers)

    @property
    def queue(self) -> list[str]:
        return [waiting.producer.name for waiting in self.topic.access.waiting]


def told(effects: list[Effect]) -> dict[int, Any]:
    """Request id → its answer. "ready" if the topic has no epoch."""
    answers: dict[int, Any] = {}
    for effect in effects:
        if isinstance(effect, ProducerSuccess):
            ready = effect.fields.producer_ready
            epoch = effect.fields.topic_epoch
            answers[effect.request_id] = ("ready" if epoch is UNSET else epoch) if ready else "waits"
            assert ready or epoch is UNSET
        elif isinstance(effect, Error):
            answers[effect.request_id] = effect.error
    return answers


@pytest.mark.feature("B1")
def test_producer_case_01_exclusive_and_fencing() -> None:
    run = Clients()
    assert run.create("p1", "Exclusive") == 0
    assert run.create("p2", "Exclusive") == "ProducerFenced"
    assert run.create("shared") == "ProducerBusy"
    assert run.close("p1") == []
    assert run.create("p2", "Exclusive", id_=2) == 1
    assert run.create("p3", "ExclusiveWithFencing") == 2
    assert run.connected == ["p3"]
    assert not run.sends("p2")
    assert run.create("p2", "Exclusive", "p2 again", epoch=1, topic_epoch=1) == "ProducerFenced"
    assert run.sends("p3")


@pytest.mark.feature("B1")
def test_producer_case_02_fencing_and_waiting() -> None:
    run = Clients()
    assert run.create("p4", "Exclusive") == 0
    assert run.create("p5", "WaitForExclusive") == "waits"
    assert run.create("p6", "ExclusiveWithFencing") == 1
    assert run.others == ["ProducerFenced"]  # p5
    assert not run.sends("p4")
    assert run.create("p4", "Exclusive", "p4 again", topic_epoch=0) == "ProducerFenced"
    assert run.create("p7", "WaitForExclusive") == "waits"
    assert run.sends("p6", 0)
    assert run.sends("p6", 1)
    assert run.close("p6") == [("p7", 2)]
    assert run.sends("p7")


@pytest.mark.feature("B1")
def test_producer_case_03_waiting_in_order() -> None:
    run = Clients()
    assert run.create("p1", "WaitForExclusive") == 0
    assert run.create("p2", "WaitForExclusive") == "waits"
    assert run.create("p3", "WaitForExclusive") == "waits"
    assert run.close("p1") == [("p2", 1)]
    assert run.queue == ["p3"]
    assert run.close("p2") == [("p3", 2)]


@pytest.mark.feature("B1")
def test_producer_case_04_waiting_for_the_last_shared_producer() -> None:
    run = Clients()
    assert run.create("p1") == "ready"
    assert run.create("p2") == "ready"
    assert run.create("p3", "WaitForExclusive") == "waits"
    assert run.close("p1") == []
    assert run.queue == ["p3"]
    assert run.close("p2") == [("p3", 0)]


@pytest.mark.feature("B1")
def test_producer_case_05_exclusive_beside_shared() -> None:
    run = Clients()
    assert run.create("p1") == "ready"
    assert run.create("p2", "Exclusive") == "ProducerFenced"


@pytest.mark.feature("B1")
@pytest.mark.parametrize("mode", EXCLUSIVE_MODES)
def test_producer_case_06_the_epoch_moved_while_away(mode: AccessMode) -> None:
    run = Clients()
    assert run.create("p1", mode) == 0
    run.lose("p1")
    assert run.create("other", "Exclusive") == 1
    run.close("other")
    run.unload()
    assert run.epoch == 1
    assert run.create("p1", mode, "p1 again", epoch=1, topic_epoch=0) == "ProducerFenced"
    assert not run.sends("p1")
    assert run.epoch == 1


@pytest.mark.feature("B1")
@pytest.mark.parametrize("mode", EXCLUSIVE_MODES)
def test_producer_case_07_reconnection_with_the_same_epoch(mode: AccessMode) -> None:
    run = Clients()
    assert run.create("p1", mode) == 0
    effects = run.unload()
    assert one(effects, CloseProducer).producer_name == "p1"
    assert run.create("p1", mode, epoch=1, topic_epoch=0) == 0
    assert run.sends("p1")


@pytest.mark.feature("B2")
def test_producer_case_08_the_same_name_with_a_later_epoch() -> None:
    bare = BareTopic()
    connected = bare.topic.producers

    def add(name: str, id_: int, epoch: int) -> str | None:
        try:
            creation.add(bare.ctx, bare.topic, Producer(name, "client", id_, epoch))
        except BrokerError as error:
            return error.code
        return None

    assert add("p", 1, 0) is None
    assert add("p", 2, 0) == "ProducerBusy"
    assert add("p", 2, 1) == "ProducerBusy"
    assert list(connected.values()) == [Producer("p", "client", 1, 0)]
    registration.disconnect(bare.ctx, bare.topic, connected["p"], "test")
    assert add("p", 2, 1) is None
    assert add("p", 2, 2) is None
    assert list(connected.values()) == [Producer("p", "client", 2, 2)]
    registration.disconnect(bare.ctx, bare.topic, connected["p"], "test")
    for epoch in (1, 2, 3):
        assert add("pulsar.repl.west", 3, epoch) is None
        assert [producer.epoch for producer in connected.values()] == [epoch]


@pytest.mark.feature("B2")
@pytest.mark.parametrize("user_provided", [True, False])
def test_producer_case_08_on_the_wire_the_id_is_known_first(user_provided: bool) -> None:
    """The name's origin plays no role, and a later epoch with a known id is a repeated request."""
    run = Clients()
    assert run.create("p") == "ready"
    assert (
        run.create("p", connection="q", epoch=1, user_provided_producer_name=user_provided) == "ProducerBusy"
    )
    effects = run.create_producer("p", connection="p", epoch=1, user_provided_producer_name=user_provided)
    assert one(effects, ProducerSuccess).fields == ProducerSuccessFields(
        last_sequence_id=-1, producer_ready=True
    )
    assert run.topic.producers["p"].epoch == 0


@pytest.mark.feature("B2")
def test_producer_case_09_the_same_name_twice_on_a_connection() -> None:
    run = Clients()
    run.create_producer("p", 1)
    assert one(run.create_producer("p", 2), Error).error == "ProducerBusy"
    assert run.connected == ["p"]


@pytest.mark.feature("B2")
def test_producer_case_09_the_same_id_twice_on_a_connection() -> None:
    run = Clients(brokerDeduplicationEnabled=True)
    first = one(run.create_producer("p", 1), ProducerSuccess)
    assert first.fields == ProducerSuccessFields(last_sequence_id=-1, producer_ready=True)
    run.send(7)
    second = one(run.create_producer("another name", 1), ProducerSuccess)
    assert (second.request_id, second.producer_name) == (run.requests, "p")
    assert second.fields == ProducerSuccessFields(last_sequence_id=-1, producer_ready=True)
    assert run.connected == ["p"]


@pytest.mark.feature("B2", "K1")
def test_producer_case_10_a_second_request_while_the_first_is_pending() -> None:
    run = Clients()
    run.create("owner", "Exclusive")
    assert run.create("p", "WaitForExclusive") == "waits"
    assert run.create("p", "WaitForExclusive") == "ServiceNotReady"
    assert run.close("owner") == [("p", 1)]
    assert run.connected == ["p"]


@pytest.mark.feature("B2", "K1")
def test_producer_case_11_messages_after_the_broker_closed_their_producer() -> None:
    run = Clients()
    run.create("p")
    run.unload()
    assert run.send(0, connection="p") == []
    run.wait(29.999)
    assert run.send(1, connection="p") == []
    run.wait(0.002)
    assert one(run.send(2, connection="p"), CloseConnection).connection == "p"
    assert run.topic.ledger.number_of_entries == 0


@pytest.mark.feature("B2")
def test_producer_case_12_encryption_is_required() -> None:
    run = Clients()
    run.namespace("POST", "encryptionRequired", True)
    assert run.create("plain") == "MetadataError"
    assert run.create("p", encrypted=True) == "ready"
    assert one(run.send(0, connection="p"), SendError).error == "MetadataError"
    keys = [{"key": "k", "value": b""}]
    assert of(run.send(1, connection="p", encryption_keys=keys), SendReceipt)


def plain_send(producer_id: int) -> Send:
    return Send(
        connection="client", producer_id=producer_id, sequence_id=0, metadata=MessageMetadata("p", 0, START)
    )


@pytest.mark.feature("B2")
def test_the_broker_asks_producers_for_encryption_and_a_policy_their_messages() -> None:
    for topic in (TOPIC, "non-persistent://public/default/t"):
        run = Clients(encryptionRequireOnProducer=True)
        run.namespace("POST", "encryptionRequired", False)
        assert one(run.create_producer("plain", 1, topic=topic), Error).error == "MetadataError"
        assert one(run.publish(0, topic=topic), SendError).error == "MetadataError"
        one(run.create_producer("p", 2, topic=topic, encrypted=True), ProducerSuccess)
        one(run.do(plain_send(2), topic), SendReceipt)


@pytest.mark.feature("B2")
def test_a_policy_that_requires_encryption_closes_producers_without_it() -> None:
    for topic in (TOPIC, "non-persistent://public/default/t"):
        run = Clients()
        run.create_producer("plain", 1, topic=topic)
        run.create_producer("p", 2, topic=topic, encrypted=True)
        closed = one(run.namespace("POST", "encryptionRequired", True), CloseProducer)
        assert (closed.producer_name, closed.cause) == ("plain", "encryption is required")
        assert run.do(plain_send(1), topic) == []
        assert of(run.namespace("POST", "messageTTL", 9), CloseProducer) == []
    by_the_broker_alone = Clients()
    by_the_broker_alone.create_producer("plain")
    by_the_broker_alone.configure(encryptionRequireOnProducer=True)
    assert of(by_the_broker_alone.namespace("POST", "messageTTL", 9), CloseProducer) == []
    assert by_the_broker_alone.connected == ["plain"]


@pytest.mark.feature("B1")
def test_producer_case_14_one_fences_a_crowd_out() -> None:
    run = Clients()
    assert run.create("a") == "ready"
    assert run.create("b") == "ready"
    assert run.create("c", "WaitForExclusive") == "waits"
    assert run.create("d") == "ProducerBusy"
    assert run.create("e", "Exclusive") == "ProducerFenced"
    assert run.create("f", "WaitForExclusive") == "waits"
    assert run.queue == ["c", "f"]
    assert run.create("g", "ExclusiveWithFencing") == 0
    assert run.others == ["ProducerFenced", "ProducerFenced"]
    assert run.connected == ["g"]
    assert run.topic.access.owner == "g"
    assert run.queue == []


@pytest.mark.feature("B1")
def test_producer_case_15_a_waiting_client_that_is_gone_uses_up_an_epoch() -> None:
    run = Clients()
    assert run.create("owner", "Exclusive", topic_epoch=4) == 4
    assert run.create("x", "WaitForExclusive") == "waits"
    assert run.create("y", "WaitForExclusive") == "waits"
    run.lose("x")
    assert run.queue == ["x", "y"]
    assert run.close("owner") == [("y", 6)]
    assert run.connected == ["y"]


@pytest.mark.feature("B1")
@pytest.mark.parametrize("topic", [TOPIC, "non-persistent://public/default/t"])
def test_the_id_of_a_producer_that_waited_when_its_topic_was_unloaded_stays_in_use(topic: str) -> None:
    """The first one in the queue is refused, the others get no answer, as their connections never hear of it."""
    run = Run()
    run.create_producer("owner", connection="o", topic=topic, producer_access_mode="Exclusive")
    for name in ("first", "second", "third", "lost"):
        run.create_producer(name, connection=name, topic=topic, producer_access_mode="WaitForExclusive")
    run.admin("PUT", "/unload", topic=topic)

    def is_in_use(name: str) -> bool:
        (answer,) = told(run.create_producer(name, connection=name, topic=topic)).values()
        return bool(answer == "ServiceNotReady")

    assert [is_in_use(name) for name in ("first", "second", "third")] == [False, True, True]
    run.admin("PUT", "/unload", topic=topic)
    assert is_in_use("second")
    assert run.close_producer(1, "second", topic) == [Success(topic, "second", run.requests)]
    run.lose("lost")
    assert [is_in_use(name) for name in ("second", "lost", "third")] == [False, False, True]
    run.do(Restart(), None)
    assert not is_in_use("third")
