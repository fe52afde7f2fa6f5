"""Messages through REST: no producer joins the topic for them (docs/rules/producers.md §19)."""

import pytest

from schemas.commands import Admin
from schemas.effects import SendError, SendReceipt
from tests.broker.kit import TOPIC, Run, of, one


def test_what_concerns_producers_does_not_apply() -> None:
    run = Run(maxProducersPerTopic=1)
    run.create_producer("x", producer_access_mode="Exclusive", encrypted=True)
    run.namespace("POST", "encryptionRequired", True)
    assert one(run.publish(1, "y"), SendError).error == "MetadataError"
    for name in ("x", "y"):
        assert one(run.publish(1, name, rest=True), SendReceipt).ledger_id == 1
    assert [*run.topic.producers] == ["x"]


@pytest.mark.parametrize("topic", ["persistent://public/default/t", "non-persistent://public/default/t"])
def test_a_producer_of_the_same_name_does_not_count_them(topic: str) -> None:
    run = Run()
    run.publish(1, "p", topic)
    topics = run.broker.topics()
    before = {name: counters.messages_in for name, counters in topics[topic].producer_counters.items()}
    run.wait(1)
    run.publish(2, "p", topic, rest=True)
    after = {name: each.messages_in for name, each in run.broker.topics()[topic].producer_counters.items()}
    assert after == before != {}


def test_a_topic_that_takes_no_messages_refuses_them() -> None:
    run = Run()
    run.publish(1, rest=True)
    run.admin("POST", "/terminate")
    assert one(run.publish(2, rest=True), SendError).error == "TopicTerminatedError"


@pytest.mark.parametrize(
    "call", ["/namespaces/public/default/deduplication", "/persistent/public/default/t/deduplicationEnabled"]
)
def test_deduplication_takes_none_of_them(call: str) -> None:
    """A real 4.0.7 stores none either, whatever their names and ids are, and takes them again without deduplication."""
    run = Run()
    topic = TOPIC if call.startswith("/persistent") else None
    run.publish(1, rest=True)
    run.do(Admin(method="POST", path=call, body=True), topic)
    run.publish(5)
    for name, id_ in (("p", 5), ("p", 6), ("p", 6), ("other", 0), ("RestProducer", 0)):
        refused = run.publish(id_, name, rest=True)
        assert "deduplication" in (one(refused, SendError).cause or "")
        assert not of(refused, SendReceipt)
    assert run.topic.dedup.persisted == {"p": 5}
    non_persistent = "non-persistent://public/default/t"
    assert one(run.publish(5, "p", non_persistent, rest=True), SendReceipt).cause is None
    run.do(Admin(method="POST", path=call, body=False), topic)
    assert [one(run.publish(5, rest=True), SendReceipt).entry_id for _ in range(2)] == [2, 3]


def test_deduplication_forgets_one_that_waited_when_it_was_enabled() -> None:
    run = Run()
    run.publish(1, "x")
    run.fault("DelayWrites", 1)
    assert not of(run.publish(7, rest=True), SendReceipt)
    run.namespace("POST", "deduplication", True)
    run.fault("CompleteWrites")
    assert [*run.topic.dedup.inactive_short_form] == ["p"]
    run.wait(9 * 3600)
    run.check("inactiveProducers")
    assert run.topic.dedup.persisted == {}
