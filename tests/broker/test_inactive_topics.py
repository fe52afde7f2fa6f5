"""Topics that nobody uses are deleted: when, and what counts as use. The expected times were seen on Pulsar 4.0.7."""

from typing import Any

import pytest

from schemas.commands import (
    Admin,
    CloseProducer,
    ConnectionLost,
    PartitionedMetadata,
    Producer,
    Restart,
    Tick,
)
from schemas.effects import AdminResponse, LedgerDeleted, TopicEvent
from schemas.effects import CloseConsumer as ConsumerClosed
from streaming.broker.broker import Broker
from tests.broker.kit import TOPIC, Run, of, one

OTHER = "persistent://public/default/other"
NON_PERSISTENT = "non-persistent://public/default/n"
WHOLE = "persistent://public/default/p"
CAUGHT_UP = "delete_when_subscriptions_caught_up"
NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"

pytestmark = [pytest.mark.feature("H2")]


def run_with(**settings: Any) -> Run:
    """The check runs every 10 s, from the first record on, and deletes what nobody has used for 20 s."""
    given = {
        "brokerDeleteInactiveTopicsEnabled": True,
        "brokerDeleteInactiveTopicsFrequencySeconds": 10,
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": 20,
    }
    return Run(**(given | settings))


def policy(mode: str | None = NO_SUBSCRIPTIONS, seconds: int = 20, *, deletes: bool = True) -> dict[str, Any]:
    return {
        "inactiveTopicDeleteMode": mode,
        "maxInactiveDurationSeconds": seconds,
        "deleteWhileInactive": deletes,
    }


def is_there(run: Run, name: str = TOPIC) -> bool:
    return name in run.broker.topic_names()


def seconds_until_deleted(run: Run, name: str = TOPIC, most: int = 200) -> int | None:
    """The seconds until the topic is gone. None: it is still there after `most`."""
    for seconds in range(1, most + 1):
        run.wait(1)
        if not is_there(run, name):
            return seconds
    return None


def test_an_unused_topic_is_deleted_in_the_first_round_after_its_time() -> None:
    run = run_with()
    run.wait(5)
    run.admin("PUT", "")
    assert seconds_until_deleted(run) == 25  # created at 5 s, unused for 25 s in the round at 30 s


def test_as_long_as_the_policy_says_is_long_enough() -> None:
    run = run_with()
    run.admin("PUT", "")
    assert seconds_until_deleted(run) == 20


def test_the_topic_is_gone_with_all_it_has() -> None:
    run = run_with(managedLedgerMaxEntriesPerLedger=2)
    run.create_producer("p", 1)
    for number in range(5):
        run.send(number, name="p", id_=1)
    run.admin("POST", "/messageTTL?messageTTL=7")
    run.close_producer(1)
    effects = run.wait(100)
    assert one(effects, TopicEvent).cause == "deleted because nobody used it"
    assert [effect.ledger_id for effect in of(effects, LedgerDeleted)] == [3]  # the others had been trimmed
    assert run.broker.topic_names() == []
    run.admin("PUT", "")
    assert run.topic.ledger.current > 3
    assert run.topic.policies.messageTTL is None


def test_a_producer_is_use_until_it_leaves() -> None:
    run = run_with()
    run.create_producer("p", 1)
    assert seconds_until_deleted(run) is None
    run.wait(3)
    run.close_producer(1)
    assert seconds_until_deleted(run) == 27  # 203 s + 20 s: the round at 230 s


def test_the_loss_of_a_connection_ends_its_use() -> None:
    run = run_with()
    run.create_producer("p", 1)
    run.wait(100)
    run.lose("client")
    assert seconds_until_deleted(run) == 20


def test_a_producer_of_the_short_form_stays() -> None:
    run = run_with()
    run.publish(0)
    assert seconds_until_deleted(run) is None


def test_a_replicator_is_no_use_but_its_topic_stays_until_it_leaves() -> None:
    run = run_with()
    run.create_producer("pulsar.repl.east", 1)
    assert seconds_until_deleted(run) is None
    run.close_producer(1)
    assert seconds_until_deleted(run) == 20


def test_a_subscription_is_use_until_it_is_deleted() -> None:
    run = run_with()
    run.subscribe("s")
    run.close_consumer("s")
    assert seconds_until_deleted(run) is None
    run.wait(3)
    run.admin("DELETE", "/subscription/s")
    assert seconds_until_deleted(run) == 27


def test_a_reader_was_last_seen_by_the_last_round() -> None:
    run = run_with()
    run.subscribe("r", durable=False)
    run.wait(38)
    run.close_consumer("r")
    assert seconds_until_deleted(run) == 12  # the round at 30 s saw it: 30 s + 20 s


def test_caught_up_subscriptions_do_not_keep_a_topic() -> None:
    run = run_with(brokerDeleteInactiveTopicsMode=CAUGHT_UP)
    run.subscribe("s")
    run.create_producer("p", 1)
    run.send(0, name="p", id_=1)
    run.close_producer(1)
    assert seconds_until_deleted(run) is None
    run.wait(5)
    run.admin("POST", "/subscription/s/skip_all")
    run.wait(14)
    assert is_there(run)
    effects = run.wait(1)
    assert one(effects, ConsumerClosed).subscription == "s"  # quirk: a consumer is no use
    assert not is_there(run)


def test_policies_come_from_the_topic_then_the_namespace_then_the_broker() -> None:
    run = run_with()
    run.admin("PUT", "")
    run.namespace("POST", "inactiveTopicPolicies", policy(seconds=50))
    run.admin("POST", "/inactiveTopicPolicies", policy(deletes=False))
    assert seconds_until_deleted(run) is None
    run.admin("DELETE", "/inactiveTopicPolicies")
    assert seconds_until_deleted(run) == 10  # it was never seen in use
    run.admin("PUT", "")
    assert seconds_until_deleted(run) == 50


def test_without_a_known_mode_no_persistent_topic_is_deleted() -> None:
    run = run_with()
    run.admin("PUT", "")
    run.admin("POST", "/inactiveTopicPolicies", policy(mode=None))
    assert seconds_until_deleted(run) is None


def test_where_the_broker_does_not_check_no_policy_deletes() -> None:
    run = run_with(brokerDeleteInactiveTopicsEnabled=False)
    run.admin("PUT", "")
    run.do(Producer(connection="c", producer_id=2, request_id=1, producer_name="n"), NON_PERSISTENT)
    run.do(CloseProducer(connection="c", producer_id=2, request_id=2), NON_PERSISTENT)
    run.namespace("POST", "inactiveTopicPolicies", policy())
    run.wait(1000)
    assert run.broker.topic_names() == [NON_PERSISTENT, TOPIC]
    run.configure(
        brokerDeleteInactiveTopicsEnabled=True, brokerDeleteInactiveTopicsFrequencySeconds=10,
    )  # fmt: skip
    run.wait(10)
    assert run.broker.topic_names() == []


@pytest.mark.parametrize(("minutes", "expected"), [(1, 60), (-1, None)])
def test_retention_keeps_a_topic_with_messages(minutes: int, expected: int | None) -> None:
    run = run_with(defaultRetentionTimeInMinutes=minutes, defaultRetentionSizeInMB=minutes)
    run.create_producer("p", 1)
    run.do(Producer(connection="c", producer_id=2, request_id=1, producer_name="q"), OTHER)
    run.send(0, name="p", id_=1)
    run.close_producer(1)
    run.do(CloseProducer(connection="c", producer_id=2, request_id=2), OTHER)
    assert seconds_until_deleted(run, OTHER) == 20  # it is empty
    assert seconds_until_deleted(run) == (expected and expected - 20)


@pytest.mark.parametrize(
    ("minutes", "expected"), [(0, 20), (1, 60), (-1, None)], ids=["none", "a minute", "for ever"]
)
def test_retention_may_keep_an_empty_topic_too(minutes: int, expected: int | None) -> None:
    run = run_with(
        retentionKeepsEmptyTopics=True,
        defaultRetentionTimeInMinutes=minutes,
        defaultRetentionSizeInMB=minutes,
    )
    run.admin("PUT", "")
    assert seconds_until_deleted(run) == expected


@pytest.mark.parametrize(
    "name",
    [
        "public/default/__change_events",
        "pulsar/system/any",
        "public/default/t-multiTopicsReader__transaction_pending_ack",
    ],
)
def test_system_topics_stay(name: str) -> None:
    run = run_with(namespacesMustExist=False)
    run.admin("PUT", "", topic=f"persistent://{name}")
    assert seconds_until_deleted(run, f"persistent://{name}") is None


def test_a_topic_that_is_not_loaded_stays() -> None:
    run = run_with()
    run.admin("PUT", "")
    run.do(Restart(), None)
    assert seconds_until_deleted(run) is None
    run.admin("GET", "/stats")
    assert seconds_until_deleted(run) == 20


def test_the_check_runs_on_command() -> None:
    run = run_with(brokerDeleteInactiveTopicsFrequencySeconds=10_000)
    run.admin("PUT", "")
    run.wait(19)
    run.check("inactiveTopics")
    assert is_there(run)
    run.wait(1)
    run.check("inactiveTopics")
    assert not is_there(run)


def test_the_namespace_has_room_for_another_topic_then() -> None:
    run = run_with(maxTopicsPerNamespace=1)
    run.admin("PUT", "")
    run.wait(20)
    run.admin("PUT", "", topic=OTHER)
    assert run.broker.topic_names() == [OTHER]


# -- partitioned topics -----------------------------------------------------------------------------------------------


def partitions(run: Run) -> int:
    return run.broker.partitioned.get(WHOLE, 0)


@pytest.mark.parametrize(("setting", "left"), [(True, 0), (False, 2)])
def test_the_last_partition_may_take_the_partitioned_topic_with_it(setting: bool, left: int) -> None:
    run = run_with(brokerDeleteInactivePartitionedTopicMetadataEnabled=setting)
    run.admin("PUT", "/partitions", 2, topic=WHOLE)
    run.admin("GET", "/stats", topic=f"{WHOLE}-partition-0")
    run.wait(100)
    assert not is_there(run, f"{WHOLE}-partition-0")
    assert partitions(run) == 2  # nobody has loaded the other partition
    run.admin("GET", "/stats", topic=f"{WHOLE}-partition-1")
    run.wait(100)
    assert run.broker.topic_names() == []
    assert partitions(run) == left
    answer = run.do(PartitionedMetadata(connection="c", request_id=3), WHOLE)
    assert len(answer) == 1


# -- non-persistent topics --------------------------------------------------------------------------------------------


def non_persistent(run: Run) -> None:
    run.do(Producer(connection="c", producer_id=1, request_id=1, producer_name="p"), NON_PERSISTENT)


def close(run: Run) -> None:
    run.do(CloseProducer(connection="c", producer_id=1, request_id=2), NON_PERSISTENT)


def test_a_non_persistent_topic_must_be_unused_for_longer() -> None:
    run = run_with()
    non_persistent(run)
    run.wait(100)
    assert is_there(run, NON_PERSISTENT)
    close(run)
    assert (
        seconds_until_deleted(run, NON_PERSISTENT) == 30
    )  # after 20 s it was unused for as long as the policy says


def test_consumers_use_a_non_persistent_topic() -> None:
    run = run_with(brokerDeleteInactiveTopicsMode=CAUGHT_UP)
    run.subscribe("s", topic=NON_PERSISTENT)
    run.wait(105)
    run.close_consumer("s", topic=NON_PERSISTENT)
    assert seconds_until_deleted(run, NON_PERSISTENT) == 25  # the round at 100 s saw it


def test_a_lost_connection_ends_the_use_of_a_non_persistent_topic() -> None:
    run = run_with()
    non_persistent(run)
    run.wait(3)
    run.do(ConnectionLost(connection="c"), None)
    assert seconds_until_deleted(run, NON_PERSISTENT) == 27


@pytest.mark.parametrize("level", ["namespace", "topic", "partitioned topic"])
def test_policies_of_non_persistent_topics(level: str) -> None:
    run = run_with(brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=1000)
    whole = "non-persistent://public/default/w"
    name = NON_PERSISTENT if level != "partitioned topic" else f"{whole}-partition-0"
    if level == "partitioned topic":
        run.admin("PUT", "/partitions", 1, topic=whole)
    run.do(Producer(connection="c", producer_id=1, request_id=1, producer_name="p"), name)
    run.do(CloseProducer(connection="c", producer_id=1, request_id=2), name)
    run.wait(95)
    if level == "namespace":
        run.namespace("POST", "inactiveTopicPolicies", policy(mode=None))
    else:
        at = whole if level == "partitioned topic" else name
        run.do(
            Admin(method="POST", path=f"/{at.replace('://', '/')}/inactiveTopicPolicies", body=policy()), at
        )
    assert seconds_until_deleted(run, name) == 5


def test_a_non_persistent_topic_with_policies_is_not_loaded_after_a_restart() -> None:
    run = run_with()
    non_persistent(run)
    run.admin("POST", "/inactiveTopicPolicies", policy(), topic=NON_PERSISTENT)
    run.do(Restart(), None)
    assert seconds_until_deleted(run, NON_PERSISTENT) is None
    non_persistent(run)
    close(run)
    assert seconds_until_deleted(run, NON_PERSISTENT) == 30


def test_the_timer_of_a_non_persistent_topic_is_part_of_the_state() -> None:
    run = run_with()
    non_persistent(run)
    close(run)
    run.broker = Broker.decode(run.broker.encode(), run.broker._ctx.entries)  # type: ignore[arg-type]
    assert run.broker.next_due() == run.now + 30_000
    assert seconds_until_deleted(run, NON_PERSISTENT) == 30


def test_a_topic_used_before_time_began_counts_from_then() -> None:
    run = Run(now=0, brokerDeleteInactiveTopicsEnabled=True)
    run.admin("PUT", "")
    non_persistent(run)
    close(run)
    run.now = 1_000_000
    run.do(Tick(), None)
    run.wait(59)
    assert run.broker.topic_names() == [NON_PERSISTENT, TOPIC]
    run.wait(1)
    assert run.broker.topic_names() == []


# -- what it costs ----------------------------------------------------------------------------------------------------


def test_rounds_cost_nothing_where_nothing_can_be_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic in use is looked at in two rounds after something happened, and then no more."""
    run = run_with()
    for number in range(20):
        run.do(Producer(connection="c", producer_id=number, request_id=1), f"{TOPIC}{number}")
        run.subscribe("s", id_=number, topic=f"{OTHER}{number}")
    run.wait(100)
    checked: list[str] = []
    load = run.broker._persistent.load
    monkeypatch.setattr(run.broker._persistent, "load", lambda name: checked.append(name) or load(name))  # type: ignore[func-returns-value]
    run.wait(10_000)  # before ledgers roll over
    assert checked == []


def test_the_broker_shows_which_policy_holds() -> None:
    run = run_with(brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=-1)
    run.admin("PUT", "")
    found = one(run.admin("GET", "/inactiveTopicPolicies?applied=true"), AdminResponse).fields.response
    assert found == policy(seconds=10)
