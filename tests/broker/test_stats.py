"""What the stats of a topic tell beside its counters and rates: times, quotas and the oldest message."""

from typing import Any

import pytest

from schemas.effects import AdminResponse
from streaming.broker.topic.stats import cursor_name
from tests.broker.kit import TOPIC, Run, one

pytestmark = pytest.mark.feature("I2")

NON_PERSISTENT = f"non-{TOPIC}"


def stats(run: Run, topic: str = TOPIC) -> dict[str, Any]:
    response = one(run.admin("GET", "/stats", topic=topic), AdminResponse).fields.response
    assert isinstance(response, dict)
    return response


def times(shown: dict[str, Any]) -> dict[str, int]:
    return {
        name.removeprefix("last").removesuffix("Timestamp"): value
        for name, value in shown.items()
        if name.startswith("last") and name.endswith("Timestamp") and value
    }


def test_a_consumer_asks_gets_and_acks() -> None:
    run = Run()
    run.subscribe("s", "Shared", permits=10)
    asked = run.now
    run.wait(1)
    run.publish(0)
    run.publish(1)
    got = run.now
    run.wait(1)
    run.ack("s", (1, 1))
    found = stats(run)["subscriptions"]["s"]
    assert times(found["consumers"][0]) == {"ConsumedFlow": asked, "Consumed": got, "Acked": run.now}
    assert times(found) == {"ConsumedFlow": asked, "Consumed": got, "Acked": run.now}
    assert found["consumers"][0]["bytesOutCounter"] == found["bytesOutCounter"] > 0
    run.wait(1)
    run.ack("s", (1, 0))
    assert times(stats(run)["subscriptions"]["s"])["MarkDeleteAdvanced"] == run.now


def test_who_left_takes_its_times_along_but_not_when_it_asked() -> None:
    run = Run()
    run.subscribe("s", permits=10)
    asked = run.now
    run.publish(0)
    run.wait(1)
    run.ack("s", (1, 0), cumulative=True)
    acked = run.now
    run.close_consumer("s")
    assert times(stats(run)["subscriptions"]["s"]) == {"ConsumedFlow": asked, "MarkDeleteAdvanced": acked}
    run.unload()
    run.subscribe("s")
    assert times(stats(run)["subscriptions"]["s"]) == {}


@pytest.mark.parametrize("expires", [True, False])
def test_the_expiry_moves_the_mark_delete_position_and_skipping_does_not_count(expires: bool) -> None:
    run = Run()
    run.subscribe("s")
    run.publish(0)
    run.publish(1)
    run.wait(60)
    run.admin("POST", f"/subscription/s/{'expireMessages' if expires else 'skip'}/1")
    found = stats(run)["subscriptions"]["s"]
    assert found["msgBacklog"] < 2
    assert ("MarkDeleteAdvanced" in times(found)) is expires


def test_messages_in_replay() -> None:
    run = Run()
    run.subscribe("s", "Shared", permits=3)
    for sequence_id in range(3):
        run.publish(sequence_id)
    run.redeliver("s")
    assert stats(run)["subscriptions"]["s"]["msgInReplay"] == 3
    assert stats(run)["subscriptions"]["s"]["subscriptionProperties"] == {}


def test_quotas_and_the_oldest_message() -> None:
    run = Run(
        backlogQuotaDefaultLimitBytes=1000,
        backlogQuotaDefaultLimitSecond=40,
        preciseTimeBasedBacklogQuotaCheck=True,
    )
    run.subscribe("s")
    run.publish(0)
    found = stats(run)
    assert (found["backlogQuotaLimitSize"], found["backlogQuotaLimitTime"]) == (1000, 40)
    assert found["oldestBacklogMessageAgeSeconds"] == -1
    assert "oldestBacklogMessageSubscriptionName" not in found
    run.wait(10)
    run.check("backlogQuota")
    run.wait(5)
    found = stats(run)
    assert found["oldestBacklogMessageAgeSeconds"] == 15
    assert found["oldestBacklogMessageSubscriptionName"] == "s"


def test_a_non_persistent_topic_has_times_of_consumers_only() -> None:
    """As a Pulsar 4.0.7 shows them."""
    run = Run()
    run.subscribe("s", "Shared", topic=NON_PERSISTENT, permits=10)
    run.publish(0, topic=NON_PERSISTENT)
    run.ack("s", (0, 0), topic=NON_PERSISTENT)
    found = stats(run, NON_PERSISTENT)
    assert (found["backlogQuotaLimitSize"], found["oldestBacklogMessageAgeSeconds"]) == (0, 0)
    subscription = found["subscriptions"]["s"]
    assert times(subscription) == {}
    assert times(subscription["consumers"][0]) == dict.fromkeys(
        ("ConsumedFlow", "Consumed", "Acked"), run.now
    )
    assert subscription["msgInReplay"] == subscription["msgRateExpired"] == 0


@pytest.mark.parametrize(
    ("subscription", "name"),
    [
        ("s", "s"),
        ("a b", "a+b"),
        ("a/b?", "a%2Fb%3F"),
        ("*-_.", "*-_."),
        ("~", "%7E"),
        ("é", "%C3%A9"),
        ("", ""),
    ],
)
def test_names_of_cursors_are_encoded_as_java_does(subscription: str, name: str) -> None:
    """`java.net.URLEncoder` leaves letters, digits and ``.-*_`` as they are, and writes a space as a plus."""
    assert cursor_name(subscription) == name
