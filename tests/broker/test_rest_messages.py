"""Messages through REST: no producer joins the topic for them (docs/rules/producers.md §19)."""

import pytest

from schemas.effects import SendError, SendReceipt
from tests.broker.kit import Run, of, one


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


def test_deduplication_knows_them_by_their_name_and_forgets_it() -> None:
    run = Run(brokerDeduplicationEnabled=True)
    receipts = [one(run.publish(number, rest=True), SendReceipt).entry_id for number in (5, 5, 6)]
    assert receipts == [0, -1, 1]
    run.fault("DelayWrites", 1)
    assert not of(run.publish(7, rest=True), SendReceipt)
    run.wait(9 * 3600)
    run.fault("CompleteWrites")
    assert [*run.topic.dedup.inactive_short_form] == ["p"]
    run.wait(9 * 3600)
    run.check("inactiveProducers")
    assert run.topic.dedup.persisted == {}
