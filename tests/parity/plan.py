"""What a seed determines: the broker's settings, and the operations of a scenario, each with a seed for its own choices.

Nothing else is random. An operation chooses (a consumer, messages to ack) from what exists at that time. So a seed always
gives the same scenario as long as the broker behaves the same.
"""

import random
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from streaming.protocol.frames import KNOWS_BATCHES

STEPS = 40
"""The steps of a scenario, not counting operations that had nothing to do."""

BLOCK = 10
"""This many seeds in a row have the same settings of the broker, as each change of them costs a new broker."""

_PUBLISHING = {"publish": 7, "batch": 2}
_JOINING = {"join": 2, "rejoin": 3, "close": 1, "cut": 0.7, "flow": 3}
_ACKING = {"ack": 5, "ack_some": 1, "ack_any": 0.5, "ack_part": 1, "nack": 3, "nack_all": 1, "unload": 0.35}
_SINGLE = {"ack_cumulative": 2, "seek": 0.3}
_CONSUMERS = {**_PUBLISHING, **_JOINING, **_ACKING}
_SEVERAL = {**_CONSUMERS, "join": 3, "ack": 6, "ack_some": 2, "ack_cumulative": 1, "seek": 0.4, "read": 0.7}
_CURSORS = {"create_subscription": 0.7, "delete_subscription": 0.3, "unsubscribe": 0.3, "skip": 0.8, "skip_all": 0.2,
            "reset": 0.5, "reset_to_time": 0.3, "expire_to": 0.5, "last_message_id": 0.4}  # fmt: skip
_CLOCKS = {"publish_old": 3, "publish_ahead": 1}
_PRODUCERS = {
    "produce": 4,
    "produce_again": 0.5,
    "send": 7,
    "send_batch": 2,
    "close": 2,
    "cut": 1,
    "unload": 0.4,
}


class Kind(NamedTuple):
    """`operations`: their weights. `settings`: those of the broker to draw, with the values. `subscriptions`: the type of
    each, by name; None draws types for several. `partitions`: of the topic, if it is partitioned. `protocols`: the versions of the
    protocol of which the clients have one. `steps`: how many make a scenario."""

    operations: dict[str, float]
    settings: Mapping[str, list[Any]] = MappingProxyType({})
    subscriptions: dict[str, str] | None = None
    partitions: int = 0
    protocols: tuple[int, ...] = (20,)
    steps: int = STEPS

    @property
    def alone(self) -> bool:
        """Whether it does something to the whole broker, so that no other scenario may run at the same time, or
        counts on its order, as ids of transactions do, or on its time. A broker that cannot delete a
        terminated topic is started again."""
        return not self.operations.keys().isdisjoint(
            {"restart", "check_quota", "terminate", "begin", "burst"}
        )


_LEDGERS: dict[str, list[Any]] = {"managedLedgerMaxEntriesPerLedger": [2, 3, 5, 7, 50000],
                                  "acknowledgmentAtBatchIndexLevelEnabled": [True, False]}  # fmt: skip
_READS: dict[str, list[Any]] = {"dispatcherMaxReadBatchSize": [100, 1, 2, 4], "dispatcherMaxRoundRobinBatchSize": [20, 1, 3],
                                "preciseDispatcherFlowControl": [False, True]}  # fmt: skip

# fmt: off
KINDS: dict[str, Kind] = {
    "exclusive": Kind({**_CONSUMERS, **_SINGLE}, subscriptions={"s": "Exclusive"}),
    "failover": Kind({**_CONSUMERS, **_SINGLE, "rejoin": 1.5}, subscriptions={"s": "Failover"}),
    "shared": Kind({**_CONSUMERS, "seek": 0.2}, subscriptions={"s": "Shared"}),
    "key_shared": Kind({**_CONSUMERS, "seek": 0.2}, subscriptions={"s": "Key_Shared"}),
    "classic_key_shared": Kind(
        {**_CONSUMERS, "seek": 0.2},
        {"subscriptionKeySharedUseClassicPersistentImplementation": [True], **_READS},
        {"s": "Key_Shared"},
    ),
    "non_persistent": Kind({**_PUBLISHING, **_JOINING, "ack": 1, "nack_all": 0.5}),
    "producers": Kind(_PRODUCERS),
    "deduplication": Kind({**_PRODUCERS, "send_again": 2, "deduplicate": 0.3}),
    "subscriptions": Kind({**_SEVERAL, **_CURSORS}, _LEDGERS),
    "reads": Kind({**_SEVERAL, "publish": 12, "batch": 5, "flow": 6}, {**_LEDGERS, **_READS}),
    "readers": Kind({**_SEVERAL, "read": 4, "last_message_id": 2, "expire": 0.5, "trim": 0.5, "skip": 0.5}, _LEDGERS),
    "batch_acks": Kind(
        {**_SEVERAL, "publish": 3, "batch": 8, "ack_part": 8, "skip": 0.3, "reset": 0.3},
        {"managedLedgerMaxEntriesPerLedger": [3, 7, 50000], "acknowledgmentAtBatchIndexLevelEnabled": [True, True, False]},
    ),
    "chunks": Kind({**_SEVERAL, "publish": 3, "chunks": 6, "reset": 0.3}, _LEDGERS),
    "ttl": Kind({**_SEVERAL, **_CLOCKS, "set_ttl": 1.5, "remove_ttl": 0.2, "expire": 2, "expire_to": 0.7,
                 "create_subscription": 0.5, "reset": 0.2}, _LEDGERS),
    "clocks": Kind({**_SEVERAL, "publish": 2, "publish_old": 6, "publish_ahead": 2, "reset_to_time": 1.5, "seek": 2,
                    "expire": 2, "read": 1.5}, _LEDGERS),
    "quotas": Kind(
        {**_SEVERAL, "set_quota": 2.5, "remove_quota": 0.3, "check_quota": 5, "wait": 1, "create_subscription": 0.5},
        {**_LEDGERS, "preciseTimeBasedBacklogQuotaCheck": [False, True]},
    ),
    "retention": Kind({**_SEVERAL, "publish_large": 1.5, "set_retention": 2, "trim": 3, "skip": 1, "create_subscription": 0.5},
                      {"managedLedgerMaxEntriesPerLedger": [1, 2, 3, 5]}),
    "delayed": Kind(
        {**_SEVERAL, "publish": 3, "publish_delayed": 6, "wait": 2.5, "read": 0.3},
        {**_LEDGERS, "isDelayedDeliveryDeliverAtTimeStrict": [False, True], "delayedDeliveryEnabled": [True, True, True, False]},
    ),
    "restarts": Kind({**_SEVERAL, **_CURSORS, "restart": 0.8, "publish_delayed": 0.5}, _LEDGERS),
    "terminated": Kind({**_SEVERAL, "terminate": 0.6, "skip_all": 0.5, "skip": 0.7, "unload": 1, "last_message_id": 1}, _LEDGERS),
    "limits": Kind(
        {**_SEVERAL, "set_limit": 2, "create_subscription": 0.5, "join": 4},
        {"maxUnackedMessagesPerConsumer": [50000, 2, 5], "maxUnackedMessagesPerSubscription": [200000, 3, 8],
         "maxConsumersPerTopic": [0, 0, 3], "maxConsumersPerSubscription": [0, 0, 2],
         "maxSubscriptionsPerTopic": [0, 0, 2]},
    ),
    "rates": Kind(
        {**_SEVERAL, "publish": 6, "flow": 4, "wait": 3, "set_dispatch_rate": 2.5,
         "remove_dispatch_rate": 0.3, "set_publish_rate": 0.6, "set_subscribe_rate": 0.8},
        {"dispatchThrottlingOnBatchMessageEnabled": [False, True], "dispatcherMaxReadSizeBytes": [5242880, 200],
         "dispatchThrottlingOnNonBacklogConsumerEnabled": [True, True, False],
         "managedLedgerCursorBackloggedThreshold": [1000, 3],
         "managedLedgerMaxEntriesPerLedger": [3, 7, 50000]},
    ),
    "publish_rates": Kind({"burst": 8, "set_rate": 3, "pause": 1.5, "cut_one": 0.5, "unload": 0.7}, partitions=2, steps=20),
    "partitions": Kind(
        {**_SEVERAL, **_CLOCKS, "set_ttl": 0.7, "set_quota": 0.7, "check_quota": 1, "set_retention": 0.5, "set_limit": 0.7,
         "trim": 0.3, "expire": 0.5},
        _LEDGERS, partitions=2,
    ),
    "holes": Kind({**_SEVERAL, "ack": 9, "ack_some": 4, "ack_cumulative": 0.5, "nack": 1, "unload": 2, "restart": 0.4, "trim": 0.5},
                  {"managedLedgerMaxEntriesPerLedger": [1, 2, 3, 4]}),
    "emptied": Kind(
        {**_SEVERAL, "ack_cumulative": 3, "skip_all": 2.5, "trim": 3, "unload": 1, "create_subscription": 1.5, "delete_subscription": 1,
         "last_message_id": 1.5, "read": 2, "reset": 0.5, "seek": 1, "expire": 0.7},
        {"managedLedgerMaxEntriesPerLedger": [1, 2, 3]},
    ),
    "policies": Kind(
        {**_SEVERAL, "set_ttl": 1, "remove_ttl": 1, "set_quota": 1, "remove_quota": 1, "set_retention": 1, "remove_retention": 1,
         "set_limit": 2, "remove_limit": 2, "look": 5, "check_quota": 0.5, "trim": 0.5},
        _LEDGERS,
    ),
    "settings": Kind(
        {**_SEVERAL, "publish": 8, "check_quota": 0.7, "set_quota": 0.7},
        {**_LEDGERS, **_READS, "subscriptionKeySharedUseConsistentHashing": [True, False],
         "subscriptionKeySharedConsistentHashingReplicaPoints": [100, 3], "activeConsumerFailoverConsistentHashing": [False, True],
         "preciseTimeBasedBacklogQuotaCheck": [False, True], "maxUnackedMessagesPerConsumer": [50000, 4]},
    ),
    "transactions": Kind(
        {**_SEVERAL, "publish": 3, "ack": 3, "ack_cumulative": 0.5, "begin": 4, "publish_in_one": 5, "batch_in_one": 1, "ack_in_one": 5,
         "ack_any_in_one": 0.5, "ack_part_in_one": 1, "ack_cumulative_in_one": 1, "commit": 2, "abort": 2, "last_message_id": 1},
        {"transactionCoordinatorEnabled": [True], "managedLedgerMaxEntriesPerLedger": [3, 7, 50000],
         "acknowledgmentAtBatchIndexLevelEnabled": [True, True, False]},
    ),
    "compaction": Kind(
        {**_SEVERAL, "publish": 3, "batch": 1, "read": 3, "last_message_id": 1.5, "compact": 5, "compaction_status": 0.3,
         "publish_sized": 5, "publish_empty": 2, "publish_keyless": 1, "batch_of_keys": 3, "ack_cumulative": 2, "trim": 1, "skip": 0.5,
         "create_subscription": 0.5, "set_compaction_threshold": 0.5, "delete_compaction_subscription": 0.3,
         "reset_compaction_subscription": 0.3, "message_id_by_time": 1, "unload": 1, "seek": 1},
        {"managedLedgerMaxEntriesPerLedger": [2, 3, 5, 50000], "topicCompactionRetainNullKey": [False, True],
         "acknowledgmentAtBatchIndexLevelEnabled": [True, False]},
        {"a": "Exclusive", "b": "Failover", "c": "Shared"},
    ),
    "old_clients": Kind({**_SEVERAL, **_CURSORS, "terminate": 0.15}, _LEDGERS, protocols=(1, 6, 9, 10, 12, 13, 15, 17, 18, 19)),
}
# fmt: on
"""Kinds of scenarios. Operations are methods of the clients and of the administrator."""


class Step(NamedTuple):
    """One operation. `number` is the seed of its choices."""

    operation: str
    number: int


def plan(kind: str, seed: int) -> Iterator[Step]:
    """An endless sequence of steps, always the same for the same kind and seed."""
    dice, weights = random.Random(f"{kind} {seed}"), dict(KINDS[kind].operations)
    if (
        protocol(kind, seed) < KNOWS_BATCHES
    ):  # the broker would close the connection of a client that gets a batch
        weights.pop("batch", None)
    while True:
        (operation,) = dice.choices([*weights], [*weights.values()])
        yield Step(operation, dice.getrandbits(32))


def drawn(kind: str, seed: int) -> dict[str, str]:
    """The settings of the broker that a seed has of its own."""
    dice = random.Random(f"{kind} {seed // BLOCK} broker")
    return {name: str(dice.choice(values)).lower() for name, values in KINDS[kind].settings.items()}


def protocol(kind: str, seed: int) -> int:
    """The version of the protocol that the clients have."""
    return random.Random(f"{kind} {seed} protocol").choice(KINDS[kind].protocols)


def subscriptions(kind: str, seed: int) -> dict[str, str]:
    """The type of each subscription, by name."""
    dice = random.Random(f"{kind} {seed} subscriptions")
    names = "s" if kind == "non_persistent" else "abcd"[: dice.choice([1, 2, 3, 4])]
    types = {name: dice.choice(["Exclusive", "Failover", "Shared", "Shared", "Key_Shared"]) for name in names}
    return KINDS[kind].subscriptions or types
