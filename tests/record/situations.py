"""Situations of topics that an operator is called for, made with the official client on any broker that speaks Pulsar."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pulsar

from streaming.record.rest import Rest

PREFIX = "persistent://public/default/"
WAIT = 20_000
_SECONDS = 40.0
_MANY = 300
"""So many messages keep a producer slow while the situations are looked at."""
_SMALL: dict[str, Any] = {"receiver_queue_size": 1}

SETTINGS = {
    "backlogQuotaCheckIntervalInSeconds": "2", "managedLedgerMaxEntriesPerLedger": "7",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0", "retentionCheckIntervalInSeconds": "3600",
    "brokerDeleteInactiveTopicsEnabled": "false", "activeConsumerFailoverDelayTimeMillis": "100",
    "topicLevelPoliciesEnabled": "true", "systemTopicEnabled": "true", "allowAutoTopicCreationType": "non-partitioned",
    "defaultRetentionTimeInMinutes": "0", "defaultRetentionSizeInMB": "0", "managedLedgerDefaultMarkDeleteRateLimit": "1000000",
}  # fmt: skip
"""Settings of the broker on which the situations arise quickly."""


class Scene:
    """A broker on which situations are made. Clients stay connected until it is left."""

    def __init__(self, service_url: str, rest: Rest) -> None:
        self.rest = rest
        self._url, self._clients = service_url, list[Any]()
        self._kept = list[Any]()  # a client that nothing refers to is closed
        self.client = self.new_client()

    def new_client(self) -> Any:
        """Another connection."""
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(self._url, logger=logger, operation_timeout_seconds=60)
        self._clients.append(client)
        return client

    def close(self) -> None:
        """Disconnect all clients."""
        for client in self._clients:
            with suppress(Exception):
                client.close()

    def stats(self, topic: str, what: str = "stats") -> Any:
        """A topic's stats, or its internalStats."""
        return self.rest.get(f"{path(topic)}/{what}")

    def until(self, topic: str, holds: Callable[[Any], Any], what: str = "stats") -> None:
        """Wait until the stats of a topic are as they should be."""
        end = time.monotonic() + _SECONDS
        while True:
            found = self.stats(topic, what)
            with suppress(KeyError, IndexError):
                if holds(found):
                    return
            if time.monotonic() > end:
                raise AssertionError(f"{topic}: {json.dumps(found, indent=1)}")
            time.sleep(0.05)

    def policy(self, topic: str, name: str, body: Any) -> None:
        """Set a policy of a topic, which takes effect later."""
        end = time.monotonic() + _SECONDS
        while True:
            said = self.rest.call("POST", f"{path(topic)}/{name}", body)
            if said.status < 300:
                break
            if time.monotonic() > end:
                raise AssertionError(f"{topic} {name}: {said}")
            time.sleep(0.2)
        read = name.partition("?")[0]
        read = "backlogQuotaMap" if read == "backlogQuota" else read
        while self.rest.call("GET", f"{path(topic)}/{read}").value in (None, {}, ""):
            if time.monotonic() > end:
                raise AssertionError(f"{topic} {name} takes no effect")
            time.sleep(0.1)

    def publish(self, topic: str, count: int, **how: Any) -> None:
        """Publish messages, each an entry."""
        producer = self.client.create_producer(topic, batching_enabled=False)
        for number in range(count):
            each = {name: value(number) if callable(value) else value for name, value in how.items()}
            producer.send(b"x" * 50, **each)
        producer.close()

    def subscribe(
        self, topic: str, name: str = "s", type_: Any = pulsar.ConsumerType.Shared, **how: Any
    ) -> Any:
        """A consumer, from the first message on."""
        client = self.new_client()
        earliest = pulsar.InitialPosition.Earliest
        return self.keep(client.subscribe(topic, name, type_, initial_position=earliest, **how))

    def keep(self, connected: Any) -> Any:
        """A producer or a consumer that stays connected."""
        self._kept.append(connected)
        return connected


def path(topic: str) -> str:
    """Where the admin API has a topic."""
    domain, _, rest = topic.partition("://")
    tenant, namespace, name = rest.split("/", 2)
    return f"/{domain}/{tenant}/{namespace}/{quote(name, safe='')}"


def _subscription(stats: Any) -> Any:
    return stats["subscriptions"]["s"]


def _consumer(stats: Any) -> Any:
    return _subscription(stats)["consumers"][0]


def no_consumer(scene: Scene, topic: str) -> None:
    scene.subscribe(topic).close()
    scene.publish(topic, 3)
    scene.until(topic, lambda stats: _subscription(stats)["msgBacklog"] == 3)


def caught_up(scene: Scene, topic: str) -> None:
    consumer = scene.subscribe(topic, consumer_name="app-1")
    scene.publish(topic, 2)
    for _ in range(2):
        consumer.acknowledge(consumer.receive(WAIT))
    scene.until(topic, lambda stats: _subscription(stats)["msgBacklog"] == 0)


def no_permits(scene: Scene, topic: str) -> None:
    """The application does not receive."""
    scene.subscribe(topic, consumer_name="app-1", **_SMALL)
    scene.publish(topic, 4)
    scene.until(
        topic,
        lambda stats: _consumer(stats)["availablePermits"] == 0 and _subscription(stats)["msgBacklog"] == 4,
    )


def in_flight(scene: Scene, topic: str) -> None:
    scene.subscribe(topic, consumer_name="app-1")
    scene.publish(topic, 3)
    scene.until(topic, lambda stats: _consumer(stats)["unackedMessages"] == 3)


def unacked_of_consumer(scene: Scene, topic: str) -> None:
    scene.publish(topic, 1)
    scene.policy(topic, "maxUnackedMessagesOnConsumer", 2)
    scene.subscribe(topic, consumer_name="app-1")
    scene.publish(topic, 5)
    scene.until(topic, lambda stats: _consumer(stats)["blockedConsumerOnUnackedMsgs"])


def unacked_of_subscription(scene: Scene, topic: str) -> None:
    scene.publish(topic, 1)
    scene.policy(topic, "maxUnackedMessagesOnSubscription", 2)
    scene.subscribe(topic, consumer_name="app-1")
    scene.publish(topic, 5)
    scene.until(topic, lambda stats: _subscription(stats)["blockedSubscriptionOnUnackedMsgs"])


def key_held(scene: Scene, topic: str) -> None:
    """A second consumer has joined, and the keys that it got are still with the first one."""
    scene.subscribe(topic, type_=pulsar.ConsumerType.KeyShared, consumer_name="app-1")
    scene.publish(topic, 8, partition_key=lambda number: f"k{number}")
    scene.until(topic, lambda stats: _consumer(stats)["unackedMessages"] == 8)
    scene.subscribe(topic, type_=pulsar.ConsumerType.KeyShared, consumer_name="app-2")
    scene.publish(topic, 8, partition_key=lambda number: f"k{number}")
    scene.until(topic, lambda stats: _subscription(stats)["msgBacklog"] == 16)


def active_without_permits(scene: Scene, topic: str) -> None:
    """Failover: the active consumer does not receive, the other one could."""
    scene.subscribe(topic, type_=pulsar.ConsumerType.Failover, consumer_name="app-1", **_SMALL)
    scene.subscribe(topic, type_=pulsar.ConsumerType.Failover, consumer_name="app-2")
    scene.until(topic, lambda stats: _subscription(stats)["activeConsumerName"] == "app-1")
    scene.publish(topic, 4)
    scene.until(topic, lambda stats: _consumer(stats)["availablePermits"] == 0)


def delayed_only(scene: Scene, topic: str) -> None:
    scene.subscribe(topic, consumer_name="app-1")
    scene.publish(topic, 3, deliver_after=timedelta(hours=1))
    scene.until(topic, lambda stats: _subscription(stats)["msgDelayed"] == 3)


def dispatch_rate(scene: Scene, topic: str) -> None:
    scene.publish(topic, 1)
    rate = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 3600,
            "relativeToPublishRate": False}  # fmt: skip
    scene.policy(topic, "subscriptionDispatchRate", rate)
    scene.subscribe(topic, consumer_name="app-1")
    scene.publish(topic, 5)
    scene.until(topic, lambda stats: _consumer(stats)["unackedMessages"] >= 1)


def hole(scene: Scene, topic: str) -> None:
    """The first message is not acknowledged, what follows is."""
    consumer = scene.subscribe(topic, consumer_name="app-1")
    scene.publish(topic, 5)
    _, *others = [consumer.receive(WAIT) for _ in range(5)]
    for each in others:
        consumer.acknowledge(each)
    scene.until(topic, lambda stats: _subscription(stats)["msgBacklog"] == 1)


def terminated_at_its_end(scene: Scene, topic: str) -> None:
    caught_up(scene, topic)
    assert scene.rest.call("POST", f"{path(topic)}/terminate").status < 300


def exclusive_and_waiting(scene: Scene, topic: str) -> None:
    mode = pulsar.ProducerAccessMode
    scene.keep(scene.client.create_producer(topic, producer_name="first", access_mode=mode.Exclusive))
    waits = scene.new_client()

    def wait() -> None:
        with suppress(Exception):
            scene.keep(
                waits.create_producer(topic, producer_name="second", access_mode=mode.WaitForExclusive)
            )

    threading.Thread(target=wait, daemon=True).start()
    scene.until(topic, lambda stats: stats["waitingPublishers"] == 1)


def quota_blocks(scene: Scene, topic: str) -> None:
    """Two slow subscriptions; the older one exceeds a quota of size."""
    scene.subscribe(topic, "slow").close()
    scene.publish(topic, 4)
    quick = scene.subscribe(topic, "quick")
    scene.publish(topic, 2)
    for _ in range(4):
        quick.acknowledge(quick.receive(WAIT))
    quick.close()
    quota = {"limitSize": 100, "limitTime": -1, "policy": "producer_exception"}
    scene.policy(topic, "backlogQuota?backlogQuotaType=destination_storage", quota)


def quota_holds(scene: Scene, topic: str) -> None:
    """A quota of size has closed a producer, whose client holds its messages and asks again."""
    scene.subscribe(topic, "slow").close()
    scene.publish(topic, 4)
    scene.keep(scene.new_client().create_producer(topic, producer_name="first"))
    quota = {"limitSize": 100, "limitTime": -1, "policy": "producer_request_hold"}
    scene.policy(topic, "backlogQuota?backlogQuotaType=destination_storage", quota)
    scene.until(topic, lambda stats: not stats["publishers"])


def age_blocks(scene: Scene, topic: str) -> None:
    """The same of a quota of age. The age is that of a ledger's end, so one must have ended."""
    scene.subscribe(topic, "slow").close()
    scene.publish(topic, 8)
    scene.keep(scene.new_client().create_producer(topic, producer_name="first"))
    quota = {"limitSize": -1, "limitTime": 1, "policy": "producer_request_hold"}
    scene.policy(topic, "backlogQuota?backlogQuotaType=message_age", quota)
    scene.until(topic, lambda stats: not stats["publishers"])


def age_evicts(scene: Scene, topic: str) -> None:
    """A quota of age has evicted a ledger from the backlog of a slow subscription. The open ledger stays."""
    scene.subscribe(topic, "s").close()
    scene.publish(topic, 8)
    scene.keep(scene.client.create_producer(topic, producer_name="first"))
    quota = {"limitSize": -1, "limitTime": 1, "policy": "consumer_backlog_eviction"}
    scene.policy(topic, "backlogQuota?backlogQuotaType=message_age", quota)
    scene.until(topic, lambda stats: _subscription(stats)["msgBacklog"] == 1)


def fenced_out(scene: Scene, topic: str) -> None:
    """A producer has taken the exclusive access of another one."""
    mode = pulsar.ProducerAccessMode
    for name, access in (("first", mode.Exclusive), ("second", mode.ExclusiveWithFencing)):
        with suppress(pulsar.ProducerBusy):  # 2.10 takes the second one for Shared
            scene.keep(scene.new_client().create_producer(topic, producer_name=name, access_mode=access))


def max_producers(scene: Scene, topic: str) -> None:
    """A topic has as many producers as it may have."""
    scene.publish(topic, 1)
    scene.policy(topic, "maxProducers", 1)
    scene.keep(scene.client.create_producer(topic, producer_name="first"))
    scene.until(topic, lambda stats: len(stats["publishers"]) == 1)


def publish_rate(scene: Scene, topic: str) -> None:
    """A producer sends more than the publish rate of its topic allows."""
    scene.publish(topic, 1)
    rate = {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}
    scene.policy(topic, "publishRate", rate)
    producer = scene.new_client().create_producer(topic, producer_name="first", batching_enabled=False)
    scene.keep(producer)
    for _ in range(_MANY):
        producer.send_async(b"x" * 50, lambda *_: None)
    scene.until(topic, lambda stats: stats["publishRateLimitedTimes"] > 0)


def ledgers_kept(scene: Scene, topic: str) -> None:
    """Three ledgers: a subscription is in the second one, another one is at the end."""
    slow, quick = scene.subscribe(topic, "slow", consumer_name="app-1"), scene.subscribe(topic, "quick")
    scene.publish(topic, 18)
    for number in range(18):
        quick.acknowledge(quick.receive(WAIT))
        message = slow.receive(WAIT)
        if number < 9:
            slow.acknowledge(message)
    scene.until(topic, lambda stats: stats["subscriptions"]["slow"]["msgBacklog"] == 9)


def retained(scene: Scene, topic: str) -> None:
    """All is consumed, and retention keeps it."""
    scene.publish(topic, 1)
    scene.policy(topic, "retention", {"retentionTimeInMinutes": 120, "retentionSizeInMB": 500})
    consumer = scene.subscribe(topic)
    scene.publish(topic, 15)
    for _ in range(16):
        consumer.acknowledge(consumer.receive(WAIT))
    scene.until(topic, lambda stats: _subscription(stats)["msgBacklog"] == 0)


def no_subscription(scene: Scene, topic: str) -> None:
    scene.publish(topic, 9)


def partitions(scene: Scene, topic: str) -> None:
    """Of three partitions, the second one has a backlog that nobody gets."""
    assert scene.rest.call("PUT", f"{path(topic)}/partitions", 3).status < 300
    scene.subscribe(topic, consumer_name="app-1")
    trouble = f"{topic}-partition-1"
    scene.subscribe(trouble, "stuck").close()
    scene.publish(trouble, 4)


SITUATIONS: dict[str, Callable[[Scene, str], None]] = {
    each.__name__: each
    for each in (
        no_consumer, caught_up, no_permits, in_flight, unacked_of_consumer, unacked_of_subscription, key_held,
        active_without_permits, delayed_only, dispatch_rate, hole, terminated_at_its_end, exclusive_and_waiting, quota_blocks,
        quota_holds, age_blocks, age_evicts, fenced_out, max_producers, ledgers_kept, retained, no_subscription, partitions,
        publish_rate,
    )
}  # fmt: skip


def topic_of(situation: str) -> str:
    """The topic that is in a situation."""
    return PREFIX + situation.replace("_", "-")


@contextmanager
def scene_of(service_url: str, rest: Rest) -> Iterator[Scene]:
    """A broker with all situations."""
    scene = Scene(service_url, rest)
    try:
        for name, make in SITUATIONS.items():
            make(scene, topic_of(name))
        yield scene
    finally:
        scene.close()
