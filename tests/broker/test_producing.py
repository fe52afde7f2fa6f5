"""Why producers are refused, held or wait: what the answer says is what the broker then does."""

from random import Random

import pytest

from schemas.commands import AnyCommand, CloseProducer, ConnectionLost, Producer, to_json
from schemas.effects import Effect, Error, ProducerSuccess
from streaming.broker.broker import Broker
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.topic.producing import ACCESS_MODES, Admission, Producing
from tests.broker.kit import TOPIC, Run, Stored, feed
from tests.broker.random_lives import restarts
from tests.broker.recorded_lives import SEEDS

THEMES = ("producers", "writes", "quotas", "comings and goings", "policies")


@pytest.mark.parametrize(("theme", "seed"), [(theme, seed) for theme in THEMES for seed in SEEDS[::2]])
def test_the_broker_answers_producers_as_explained(theme: str, seed: int) -> None:
    for broker, store, draw in restarts(theme, seed, 0.1):
        names = [name for name in broker.topic_names() if not is_non_persistent(name)]
        if names:
            agree(broker.encode(), store, draw.choice(names), draw)


def agree(state: bytes, store: Stored, name: str, draw: Random) -> None:
    found = Broker.decode(state, store).producing(name)
    assert found == Broker.decode(state, store).producing(name), "to ask changes nothing"
    told = {each.access_mode: each for each in found.admissions}
    for mode in ACCESS_MODES:
        answers(Broker.decode(state, store), name, told[mode])
    if any(each.blocks and each.decider != "access mode" for each in found.verdicts):
        assert told["Shared"].answer == "is refused", found
    if found.owner is not None and found.waiting:
        passes_on(Broker.decode(state, store), name, found)


def answers(broker: Broker, name: str, told: Admission) -> None:
    """A producer gets the answer that it was told."""
    asked = Producer(
        connection="new", producer_id=7, request_id=1, producer_access_mode=told.access_mode, encrypted=True
    )  # fmt: skip
    effects = tell(broker, name, asked)
    refusals = [each for each in effects if isinstance(each, Error) and each.connection == "new"]
    ready = [
        each.fields.producer_ready
        for each in effects
        if isinstance(each, ProducerSuccess) and each.connection == "new"
    ]
    if told.answer == "is refused":
        assert [(each.error, each.cause) for each in refusals] == [(told.error, told.text)]
        return
    assert not refusals, (told, refusals)
    assert ready == [told.answer in ("gets in", "fences")], told


def passes_on(broker: Broker, name: str, found: Producing) -> None:
    """When all who produce leave, the first in the queue whose client is there gets the access."""
    first = next((each for each in found.producers if each.state == "waiting"), None)
    for producer in [*broker.topic(name).producers.values()]:
        if producer.producer_id is None or producer.connection == (first and first.where):
            return
    got = [
        effect
        for producer in [*broker.topic(name).producers.values()]
        for effect in tell(broker, None, ConnectionLost(connection=producer.connection))
        if isinstance(effect, ProducerSuccess) and effect.fields.producer_ready and effect.topic == name
    ]
    if first is not None and not broker.topic(name).fenced and not broker.topic(name).terminated:
        assert [each.producer_name for each in got][:1] == [first.name] or "connected" in first.text, (
            got,
            found,
        )


def tell(broker: Broker, topic: str | None, command: AnyCommand) -> list[Effect]:
    feed(broker, broker.offset + 1, broker.clock, topic, to_json(command))
    return [row.effect for row in broker.take()]


# -- each reason


def answer(run: Run) -> Producing:
    run.broker.take()
    return Broker.decode(run.broker.encode(), Stored()).producing(TOPIC)


def of(found: Producing, mode: str) -> tuple[str, str | None]:
    (one,) = [each for each in found.admissions if each.access_mode == mode]
    return one.answer, one.error


def test_an_owner_and_a_queue() -> None:
    run = Run()
    run.create_producer("first", producer_access_mode="Exclusive")
    run.create_producer("second", id_=2, connection="other", producer_access_mode="WaitForExclusive")
    found = answer(run)
    assert (found.owner, found.epoch, found.waiting) == ("first", 0, 1)
    assert [(each.name, each.state, each.text) for each in found.producers] == [
        ("first", "connected", ""), ("second", "waiting", "number 1 in the queue"),
    ]  # fmt: skip
    assert [each.text for each in found.verdicts if each.blocks] == [
        "first has exclusive access, and 1 waits for it"
    ]
    assert of(found, "Shared") == ("is refused", "ProducerBusy")
    assert of(found, "Exclusive") == ("is refused", "ProducerFenced")
    assert of(found, "WaitForExclusive") == ("waits", None)
    assert of(found, "ExclusiveWithFencing") == ("fences", None)
    assert found.admissions[-1].text == "fences out first and 1 that wait"
    run.do(CloseProducer(connection="other", producer_id=2, request_id=9))
    assert [each.state for each in answer(run).producers] == ["connected", "gone"]


def test_a_quota_that_blocks_names_whose_backlog_it_is() -> None:
    run = Run()
    run.subscribe("slow")
    run.create_producer("p")
    run.fill(3)
    run.namespace("POST", "backlogQuota", {"policy": "producer_exception", "limitSize": 100})
    found = answer(run)
    (blocks,) = [each for each in found.verdicts if each.blocks]
    assert blocks.decider == "backlogQuota"
    assert blocks.text == (
        "the destination_storage quota is exceeded (producer_exception, namespace): used 3072 bytes, the limit is 100 bytes; the "
        "slowest subscription is slow; clients fail their producers and what these send"
    )
    assert {of(found, mode) for mode in ACCESS_MODES} == {
        ("is refused", "ProducerBlockedQuotaExceededException")
    }
    run.namespace("POST", "backlogQuota", {"policy": "consumer_backlog_eviction", "limitSize": 100})
    assert of(answer(run), "Shared") == ("gets in", None)


def test_deduplication_s_cursor_is_not_called_a_subscription() -> None:
    run = Run(brokerDeduplicationEnabled=True)
    run.fill(3)
    run.namespace("POST", "backlogQuota", {"policy": "producer_exception", "limitSize": 100})
    (blocks,) = [each for each in answer(run).verdicts if each.blocks]
    assert "; the slowest cursor is that of deduplication; " in blocks.text


def test_a_new_producer_must_encrypt() -> None:
    run = Run(encryptionRequireOnProducer=True)
    run.create_producer("p", encrypted=True)
    assert [(each.text, each.blocks) for each in answer(run).verdicts] == [
        ("a new producer must declare that it encrypts", False)
    ]
    assert of(answer(run), "Shared") == ("gets in", None)


def test_a_full_topic_a_terminated_one_and_a_fenced_one() -> None:
    full = Run(maxProducersPerTopic=1)
    full.create_producer("p")
    assert of(answer(full), "Shared") == ("is refused", "ProducerBusy")
    assert [each.text for each in answer(full).verdicts] == ["1 producers, the limit is 1"]
    ended = Run()
    ended.publish(0)
    ended.admin("POST", "/terminate")
    assert [each.decider for each in answer(ended).verdicts if each.blocks] == ["terminated"]
    assert of(answer(ended), "Shared") == ("is refused", "TopicTerminatedError")


def test_writes_that_are_not_confirmed() -> None:
    run = Run()
    run.create_producer("p")
    run.fault("DelayWrites", 5)
    run.send(0)
    (one,) = answer(run).producers
    assert (one.state, one.text) == ("unconfirmed", "1 of its messages are not confirmed yet")
    run.close_producer()
    (one,) = answer(run).producers
    assert (one.state, one.text) == (
        "closing",
        "1 of its messages are not confirmed yet: it leaves once they are",
    )


def test_the_answer_is_that_to_a_connection_of_its_own() -> None:
    """Also if a client has taken the name of it."""
    run = Run()
    for connection in ("explain", "explain'"):
        run.create_producer(f"p of {connection}", connection=connection)
    found = answer(run)
    assert {of(found, mode)[0] for mode in ("Shared", "WaitForExclusive", "ExclusiveWithFencing")} == {
        "gets in", "waits", "fences",
    }  # fmt: skip
    exclusive = found.admissions[1]
    assert (exclusive.access_mode, exclusive.error) == ("Exclusive", "ProducerFenced")
    assert found.refused is None  # who shares the topic gets in
