"""Rules of docs/rules/producers.md beyond its worked cases: the gate's table, the order of checks, quirks, unconfirmed
writes."""

from itertools import product
from typing import Any, get_args

import pytest

from schemas.commands import AccessMode, Producer
from schemas.effect_fields import ProducerSuccessFields, TopicEventFields
from schemas.effects import (
    CloseConnection,
    CloseProducer,
    Error,
    ProducerSuccess,
    SendError,
    SendReceipt,
    Success,
    TopicEvent,
)
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.persistent.stats import topic_stats
from streaming.broker.producer.access_mode import MOST_GONE, Refusal, Situation, pass_gate
from tests.broker.kit import TOPIC, Run, of, one
from tests.broker.test_producer_cases import Clients, told

SITUATIONS: list[set[Situation]] = [
    {name for name, there in zip(get_args(Situation), present, strict=True) if there}
    for present in product([False, True], repeat=3)
]


@pytest.mark.feature("B1")
@pytest.mark.parametrize("situations", SITUATIONS, ids=lambda present: "-".join(sorted(present)) or "none")
def test_the_gate(situations: set[Situation]) -> None:
    """The whole product of modes and situations, each mode said in one sentence."""
    verdicts: dict[AccessMode, Any] = {mode: pass_gate(mode, situations) for mode in get_args(AccessMode)}
    verdicts = {mode: v.error if isinstance(v, Refusal) else v for mode, v in verdicts.items()}
    assert verdicts == {
        "Shared": "ProducerBusy" if situations & {"owner", "waiting"} else "admit",
        "Exclusive": "ProducerFenced" if situations else "own",
        "ExclusiveWithFencing": "fence" if situations & {"owner", "producers"} else "own",
        "WaitForExclusive": "wait" if situations & {"owner", "producers"} else "own",
    }


# -- §1: the order of checks --------------------------------------------------------------------------------------


@pytest.mark.feature("B2", "G1")
def test_refusals_come_in_order() -> None:
    """Producers, quota, encryption, initial subscription, the gate, the topic, the name: repair one, meet the next."""
    run = Clients()
    run.publish(0, "p")
    run.topic.ledger.terminated = True
    asked: dict[str, Any] = {"initial_subscription_name": "s"}
    settings: dict[str, Any] = {
        "maxProducersPerTopic": 1, "encryptionRequireOnProducer": True, "allowAutoSubscriptionCreation": False,
        "backlogQuotaDefaultLimitBytes": 0, "backlogQuotaDefaultRetentionPolicy": "producer_exception",
    }  # fmt: skip

    def ask(mode: AccessMode = "Exclusive") -> Any:
        run.configure(**settings)
        return run.create("p", mode, "another", **asked)

    assert ask() == "ProducerBusy"
    settings["maxProducersPerTopic"] = 0
    assert ask() == "ProducerBlockedQuotaExceededException"
    settings["backlogQuotaDefaultLimitBytes"] = -1
    assert ask() == "MetadataError"
    asked["encrypted"] = True
    assert ask() == "NotAllowedError"
    settings["allowAutoSubscriptionCreation"] = True
    assert ask() == "ProducerFenced"
    assert list(run.topic.subscriptions) == ["s"]
    run.topic.fenced = True
    assert ask("Shared") == "ServiceNotReady"
    run.topic.fenced = False
    assert ask("Shared") == "TopicTerminatedError"
    run.topic.ledger.terminated = False
    assert ask("Shared") == "ProducerBusy"
    run.topic.producers.clear()
    assert ask("Shared") == "ready"


@pytest.mark.feature("B2")
def test_who_was_refused_is_judged_anew() -> None:
    """It does not get the former error (docs/rules/producers.md §2), which ServerCnx.safelyRemoveProducer has removed
    by then."""
    run = Clients()
    run.create("p", connection="a")
    assert run.create("p", connection="b") == "ProducerBusy"
    assert run.create("p", connection="b") == "ProducerBusy"
    run.close("a")
    assert run.create("p", connection="b") == "ready"


@pytest.mark.feature("B2")
def test_a_refusal_by_a_limit_is_told_once() -> None:
    run = Clients(maxProducersPerTopic=1)
    run.create("p")
    assert run.create("q") == "ProducerBusy"
    run.close("p")
    assert run.create("q") == "ready"


@pytest.mark.feature("B2")
@pytest.mark.parametrize("forget", ["close", "lose"])
def test_a_failure_is_forgotten(forget: str) -> None:
    run = Clients()
    run.create("p", connection="a")
    run.create("p", connection="b")
    run.close("a")
    getattr(run, forget)("b")
    assert run.create("p", connection="b") == "ready"


@pytest.mark.feature("B2")
def test_the_number_of_producers_leaves_replicators_out() -> None:
    run = Clients(maxProducersPerTopic=1)
    assert run.create("pulsar.repl.east") == "ready"
    assert run.create("p") == "ready"
    assert run.create("q") == "ProducerBusy"
    assert run.create("pulsar.repl.west") == "ready"
    assert one(run.publish(0, "q"), SendError).error == "ProducerBusy"


@pytest.mark.feature("B1", "B2")
def test_waiting_producers_arent_counted_again_when_their_turn_comes() -> None:
    run = Clients(maxProducersPerTopic=2)
    run.create("a", "Exclusive")
    assert run.create("b", "WaitForExclusive") == "waits"
    assert run.create("c", "WaitForExclusive") == "waits"  # one is registered
    run.configure(maxProducersPerTopic=0)
    assert run.close("a") == [("b", 1)]


@pytest.mark.feature("B2")
def test_generated_names_differ() -> None:
    run = Clients()
    names = [one(run.create_producer(None, id_), ProducerSuccess).producer_name for id_ in (1, 2)]
    assert names == ["standalone-0-0", "standalone-0-1"]


@pytest.mark.feature("B2", "A8")
def test_a_generated_name_is_unique_on_the_broker() -> None:
    run, names = Run(), list[str]()
    run.create_producer("standalone-0-3")
    for topic in (TOPIC, f"{TOPIC}2", f"non-{TOPIC}", TOPIC):
        for connection in ("a", "b"):
            effects = run.do(Producer(connection=connection, producer_id=len(names), request_id=1), topic)
            names.append(one(effects, ProducerSuccess).producer_name)
        run.admin("DELETE", "?force=true", topic=topic)
        run.broker = Broker.decode(run.broker.encode(), NoEntries())
    assert names == [
        f"standalone-0-{number}" for number in range(8)
    ]  # the topic of the producer with one of them is gone by then
    run.create_producer("standalone-0-8")
    assert (
        one(run.create_producer(None, 2), ProducerSuccess).producer_name == "standalone-0-9"
    )  # that one is taken


@pytest.mark.feature("B2")
def test_ingress_partitions_generate_names_of_their_own() -> None:
    run = Run()
    run.broker = Broker(3, NoEntries())
    assert one(run.create_producer(None), ProducerSuccess).producer_name == "standalone-3-0"


@pytest.mark.feature("D2")
def test_the_initial_subscription_is_at_the_earliest_message() -> None:
    run = Clients()
    run.publish(0, "p")
    assert run.create("q", initial_subscription_name="s") == "ready"
    assert run.backlog("s") == 1


@pytest.mark.feature("K1")
def test_a_disconnection_is_remembered_although_the_producer_came_back() -> None:
    run = Clients()
    run.create("p")
    run.unload()
    run.create("p")
    run.close("p")
    assert run.send(0, connection="p") == []
    run.wait(31)
    assert of(run.send(0, connection="p"), CloseConnection)


# -- §7–§10: epochs, the queue ------------------------------------------------------------------------------------


@pytest.mark.feature("B1")
def test_the_epoch_is_told_to_shared_producers_too() -> None:
    run = Clients()
    assert run.create("a") == "ready"
    run.close("a")
    run.create("b", "Exclusive")
    run.close("b")
    assert run.create("a") == 0


@pytest.mark.feature("B1")
def test_a_larger_epoch_moves_the_topic_forward() -> None:
    run = Clients()
    assert run.create("a", "Exclusive", topic_epoch=7) == 7
    run.close("a")
    assert run.create("a", "Exclusive", topic_epoch=6) == "ProducerFenced"
    assert run.epoch == 7
    run.close("a")
    assert run.create("a", "Exclusive") == 8


@pytest.mark.feature("B1")
def test_the_largest_epoch_is_followed_by_the_smallest() -> None:
    """As Java's 64 bits: not an error, and a state that can be written."""
    run = Clients()
    run.create("a", "Exclusive", topic_epoch=2**63 - 1)
    run.close("a")
    assert run.create("a", "Exclusive") == -(2**63)
    assert run.broker.encode()


@pytest.mark.feature("B1")
def test_waiting_producers_may_set_the_epoch_back() -> None:
    """quirk: a promotion doesn't ask whether the carried epoch has passed."""
    run = Clients()
    run.create("a", "Exclusive", topic_epoch=7)
    run.create("b", "WaitForExclusive", topic_epoch=3)
    assert run.close("a") == [("b", 3)]
    assert run.epoch == 3


@pytest.mark.feature("B1")
def test_fencing_with_a_passed_epoch_closes_the_others_all_the_same() -> None:
    run = Clients()
    run.create("a", "Exclusive", topic_epoch=7)
    run.create("b", "WaitForExclusive")
    assert run.create("c", "ExclusiveWithFencing", topic_epoch=6) == "ProducerFenced"
    assert run.others == ["ProducerFenced"]
    assert run.connected == []
    assert run.create("d") == 7


@pytest.mark.feature("B1")
def test_who_is_fenced_out_of_the_queue_may_wait_again() -> None:
    run = Clients()
    run.create("a", "Exclusive")
    run.create("b", "WaitForExclusive")
    assert run.create("c", "ExclusiveWithFencing") == 1
    assert run.others == ["ProducerFenced"]
    assert run.create("b", "WaitForExclusive") == "waits"


@pytest.mark.feature("B1")
@pytest.mark.parametrize("leave", ["close", "lose"])
def test_nobody_is_told_for_a_client_that_left_the_queue(leave: str) -> None:
    run = Clients()
    run.create("a", "Exclusive")
    run.create("b", "WaitForExclusive")
    getattr(run, leave)("b")
    assert run.create("c", "ExclusiveWithFencing") == 1
    assert run.others == []
    assert run.queue == []


@pytest.mark.feature("B1")
def test_fencing_names_those_it_closed() -> None:
    run = Clients()
    run.create("a")
    run.create("b")
    effects = run.create_producer("c", producer_access_mode="ExclusiveWithFencing")
    assert one(effects, TopicEvent).fields == TopicEventFields(fenced_out=["a", "b"])
    assert of(effects, CloseProducer) == []


@pytest.mark.feature("A7")
def test_the_first_answer_carries_the_last_sequence_id() -> None:
    run = Clients(brokerDeduplicationEnabled=True)
    run.create("b")
    run.sends("b", 5)
    run.close("b")
    run.create("a", "Exclusive")
    effects = run.create_producer("b", producer_access_mode="WaitForExclusive")
    assert one(effects, ProducerSuccess).fields == ProducerSuccessFields(
        last_sequence_id=5, producer_ready=False
    )


@pytest.mark.feature("K1")
def test_a_message_of_a_waiting_producer_closes_its_connection() -> None:
    run = Clients()
    run.create("a", "Exclusive")
    run.create("b", "WaitForExclusive")
    assert not run.sends("b")
    assert run.queue == ["b"]
    assert run.close("a") == []
    assert (run.connected, run.queue, run.epoch) == ([], [], 1)


@pytest.mark.feature("K1")
def test_a_closed_connection_takes_its_other_producers_along() -> None:
    run = Clients()
    run.create("a", "Exclusive", connection="x", id_=1)
    run.create("b", "WaitForExclusive", connection="y")
    effects = run.send(0, connection="x", id_=2)
    assert of(effects, CloseConnection)
    assert list(told(effects).values()) == [1]
    assert run.connected == ["b"]


@pytest.mark.feature("B1")
def test_a_waiting_producer_that_is_closed_keeps_its_place_and_frees_its_id() -> None:
    run = Clients()
    run.create("a", "Exclusive")
    run.create("b", "WaitForExclusive")
    assert run.close("b") == []
    assert run.create("b", "WaitForExclusive") == "waits"
    assert run.queue == ["b", "b"]
    assert run.close("a") == [("b", 2)]
    assert run.sends("b")


@pytest.mark.feature("B1")
@pytest.mark.parametrize(
    ("number", "epoch"), [(MOST_GONE - 1, MOST_GONE - 1), (2 * MOST_GONE, MOST_GONE // 2)]
)
def test_a_long_queue_of_dead_clients(number: int, epoch: int) -> None:
    run = Clients()
    run.create("a", "Exclusive")
    for id_ in range(number):
        run.create(f"w{id_}", "WaitForExclusive", "w", id_=id_)
    run.lose("w")
    assert run.close("a") == []
    assert (run.connected, run.queue, run.epoch) == ([], [], epoch)


@pytest.mark.feature("B1")
def test_the_owner_that_shares_a_connection_with_those_who_wait() -> None:
    run = Clients()
    run.create("a", "Exclusive", "x", id_=1)
    run.create("b", "WaitForExclusive", "x", id_=2)
    assert told(run.lose("x")) == {}
    assert (run.connected, run.queue) == ([], [])


@pytest.mark.feature("B1")
def test_the_flag_of_an_owner_that_was_refused_stays() -> None:
    """quirk: until the topic is loaded again, only ExclusiveWithFencing gets through the gate."""
    run = Clients()
    run.create("first")
    run.close("first")
    run.topic.ledger.terminated = True
    assert run.create("a", "Exclusive") == "TopicTerminatedError"
    run.topic.ledger.terminated = False
    assert run.create("b") == "ProducerBusy"
    assert run.create("c", "Exclusive") == "ProducerFenced"
    assert run.create("d", "WaitForExclusive") == "waits"
    assert run.create("e", "ExclusiveWithFencing") == 1
    assert run.others == ["ProducerFenced"]
    run.close("e")
    assert run.create("f") == 1


@pytest.mark.feature("B1")
def test_unload_leaves_nothing_but_the_epoch() -> None:
    run = Clients()
    run.create("a", "Exclusive")
    run.create("b", "WaitForExclusive")
    run.create("c", "WaitForExclusive")
    effects = run.unload()
    assert one(effects, CloseProducer).producer_name == "a"
    assert [error.error for error in of(effects, Error)] == ["ServiceNotReady"]  # b; c isn't answered (4.0.7)
    assert run.epoch == 1  # b was the owner for a moment
    assert run.create("a", "Exclusive", epoch=1, topic_epoch=0) == "ProducerFenced"
    assert run.create("d", "WaitForExclusive") == 2


@pytest.mark.feature("B1", "G2")
def test_a_producer_blocking_quota_hands_the_access_on() -> None:
    run = Clients()
    run.create("a", "Exclusive")
    run.create("b", "WaitForExclusive")
    run.subscribe("s")
    run.sends("a")
    run.configure(backlogQuotaDefaultLimitBytes=1)
    effects = run.check("backlogQuota")
    assert [type(effect) for effect in effects] == [CloseProducer, ProducerSuccess]
    assert run.connected == ["b"]


@pytest.mark.feature("B1", "I2")
def test_stats_show_producers_epoch_and_queue() -> None:
    run = Clients()
    run.create("s")
    shown = topic_stats(run.topic, run.broker._ctx.config)
    assert shown["publishers"] == [{"producerName": "s", "accessMode": "Shared"}]
    assert "topicEpoch" not in shown
    run.create("a", "ExclusiveWithFencing")
    run.create("b", "WaitForExclusive")
    shown = topic_stats(run.topic, run.broker._ctx.config)
    assert shown["publishers"] == [{"producerName": "a", "accessMode": "ExclusiveWithFencing"}]
    assert (shown["topicEpoch"], shown["waitingPublishers"]) == (0, 1)


# -- unconfirmed writes -------------------------------------------------------------------------------------------


@pytest.mark.feature("A3", "K1")
def test_close_is_answered_when_its_writes_are_confirmed() -> None:
    run = Clients()
    run.create("a", "Exclusive")
    run.create("b", "WaitForExclusive")
    run.fault("DelayWrites", 2)
    run.send(0, connection="a")
    run.send(1, connection="a")
    assert run.close_producer(connection="a") == []
    assert run.close_producer(connection="a") == []
    assert one(run.send(2, connection="a"), SendError).cause == "Producer is closed"
    assert [type(effect) for effect in run.fault("CompleteWrites", 1)] == [SendReceipt]
    effects = run.fault("CompleteWrites")
    assert [type(effect) for effect in effects] == [SendReceipt, Success, Success, ProducerSuccess]
    assert run.connected == ["b"]


@pytest.mark.feature("K1")
def test_a_lost_connection_waits_for_nothing() -> None:
    run = Clients()
    run.create("a", "Exclusive")
    run.fault("DelayWrites", 1)
    run.send(0, connection="a")
    assert run.close_producer(connection="a") == []
    assert run.lose("a") == []
    assert run.connected == []
    assert run.create("b", "Exclusive") == 1
    assert of(run.fault("CompleteWrites"), Success) == []
    assert run.connected == ["b"]


@pytest.mark.feature("K1")
def test_a_late_write_of_a_lost_producer_does_not_close_another_one_of_its_name() -> None:
    run = Run()
    run.create_producer(connection="a")
    run.fault("DelayWrites", 2)
    run.send(0, connection="a")
    run.lose("a")
    run.create_producer(connection="b")
    run.send(1, connection="b")
    assert run.close_producer(connection="b") == []
    assert [type(effect) for effect in run.fault("CompleteWrites", 1)] == [SendReceipt]
    assert run.topic.producers["p"].connection == "b"
    effects = run.fault("CompleteWrites")
    assert [type(effect) for effect in effects] == [SendReceipt, Success]
    assert one(effects, Success).connection == "b"
    assert run.topic.producers == {}


@pytest.mark.feature("A3", "B1")
def test_a_fenced_producer_with_an_unconfirmed_write_leaves_later() -> None:
    """quirk: its leaving then ends the access of the one that fenced it out."""
    run = Clients()
    run.create("a", "Exclusive")
    run.fault("DelayWrites", 1)
    run.send(0, connection="a")
    assert run.create("b", "ExclusiveWithFencing") == 1
    assert run.connected == ["a", "b"]
    refused = one(run.send(1, connection="a"), SendError)
    assert (refused.error, refused.cause) == ("PersistenceError", "Producer is closed")
    run.fault("CompleteWrites")
    assert run.connected == ["b"]
    assert not run.sends("a")
    assert run.topic.access.owner is None
    assert run.create("c") == 1


@pytest.mark.feature("B2")
def test_the_short_form_of_a_closing_producer() -> None:
    run = Clients()
    run.fault("DelayWrites", 1)
    run.publish(0, "a")
    run.create("b", "ExclusiveWithFencing")
    assert one(run.publish(1, "a"), SendError).cause == "Producer is closed"
    run.fault("CompleteWrites")
    assert run.connected == ["b"]


@pytest.mark.feature("B2")
def test_the_short_form_meets_the_gate() -> None:
    run = Clients()
    run.create("b", "Exclusive")
    refused = one(run.publish(0, "a"), SendError)
    assert (refused.error, refused.producer_id) == ("ProducerBusy", None)


@pytest.mark.feature("A3", "B1")
def test_a_failed_write_refuses_who_waits() -> None:
    """The topic is fenced when the owner is disconnected: the next in the queue is refused."""
    run = Clients()
    run.create("a", "Exclusive")
    run.create("b", "WaitForExclusive")
    run.fault("FailWrites", 1)
    effects = run.send(0, connection="a")
    assert one(effects, CloseProducer).producer_name == "a"
    assert one(effects, Error).error == "ServiceNotReady"
