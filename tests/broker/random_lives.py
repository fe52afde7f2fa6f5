"""Random lives of a broker: long logs in which everything happens that clients, operators and time can do.

A seed determines a life. Numbers are small and times are multiples of a second, so that limits are reached exactly, too.
Commands are drawn among what exists: consumers that are connected, entries that they hold.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import pytest

from schemas import effects
from schemas.commands import (
    AddPartitionToTxn,
    AddSubscriptionToTxn,
    Admin,
    AnyCommand,
    BrokerConfig,
    EndTxn,
    Fault,
    GetLastMessageId,
    GetOrCreateSchema,
    GetSchema,
    IntRange,
    KeySharedMeta,
    KeyValue,
    Lookup,
    MessageIdData,
    MessageMetadata,
    Mirror,
    MirroredConsumer,
    MirroredProducer,
    MirroredSubscription,
    NewTxn,
    PartitionedMetadata,
    Publish,
    Restart,
    RunCheck,
    SchemaData,
    Seek,
    Send,
    Subscribe,
    TcClientConnectRequest,
    Tick,
    TxnSubscription,
    to_json,
)
from schemas.commands.client import (
    Ack,
    CloseConsumer,
    CloseProducer,
    ConnectionLost,
    Flow,
    Producer,
    RedeliverUnacknowledgedMessages,
    Unsubscribe,
)
from schemas.effects import Effect, Message, Row, SendReceipt
from streaming.broker import entry_filters
from streaming.broker.broker import Broker
from streaming.broker.config import CLASSIC_RATE_LIMITER, ServiceConfiguration
from streaming.broker.names import COORDINATOR_ASSIGN
from streaming.broker.periodic_checks import CHECKS
from streaming.broker.persistent.topic import SHADOW_SOURCE
from streaming.broker.producer.message_size import HEADER, plain_metadata_size
from tests.broker.kit import START, Stored, batch_of, feed
from tests.broker.test_silence import Work

SIZE = 100
"""Bytes of an entry, or a multiple of it."""


class Life(NamedTuple):
    """The records of a life (time in ms, topic, value), the rows of each, `Broker.stats` at the end, and what passing time
    cost (`Work`)."""

    log: list[tuple[int, str | None, bytes]]
    rows: list[list[Row]]
    stats: list[dict[str, Any]]
    work: dict[str, int]


SETTINGS: dict[str, list[Any]] = {
    "shadowTopicFollowsSource": [True, False],
    "managedLedgerMaxEntriesPerLedger": [1, 2, 3, 4, 4, 7],
    "managedLedgerMinLedgerRolloverTimeMinutes": [0, 0, 0, 1],
    "managedLedgerMaxLedgerRolloverTimeMinutes": [1, 5],
    "managedLedgerMaxSizePerLedgerMbytes": [1],
    "managedLedgerInactiveLedgerRolloverTimeSeconds": [1, 30, 60],
    "retentionCheckIntervalInSeconds": [0, 1, 60],
    "defaultRetentionTimeInMinutes": [-1, 1, 2],
    "defaultRetentionSizeInMB": [-1, 1],
    "managedLedgerDefaultMarkDeleteRateLimit": [0, 0, 0.1, 1, 2.5],
    "managedLedgerCursorPositionFlushSeconds": [0, 1, 10],
    "managedLedgerMaxUnackedRangesToPersist": [0, 1, 2],
    "managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis": [-1, 0, 1000, 60_000],
    "acknowledgmentAtBatchIndexLevelEnabled": [True],
    "maxMessageSize": [100, 200],
    "maxMessagesPerBatch": [2, 3],
    "maxConcurrentNonPersistentMessagePerConnection": [0, 1, 2],
    "maxProducersPerTopic": [1, 2],
    "encryptionRequireOnProducer": [True],
    "keepAliveIntervalSeconds": [0, 1, 60],
    "brokerDeduplicationEnabled": [True],
    "brokerDeduplicationMaxNumberOfProducers": [1, 2],
    "brokerDeduplicationEntriesInterval": [1, 2, 3, 5],
    "brokerDeduplicationSnapshotIntervalSeconds": [0, 1, 60],
    "brokerDeduplicationSnapshotFrequencyInSeconds": [0, 1, 60],
    "brokerDeduplicationProducerInactivityTimeoutMinutes": [0, 1, 3],
    "brokerDeleteInactiveTopicsEnabled": [False],
    "brokerDeleteInactiveTopicsFrequencySeconds": [1, 5, 20],
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": [-1, 0, 1, 60],
    "brokerDeleteInactiveTopicsMode": ["delete_when_subscriptions_caught_up"],
    "brokerDeleteInactivePartitionedTopicMetadataEnabled": [True],
    "subscriptionTypesEnabled": ["Shared,Key_Shared", "Exclusive,Failover,Shared"],
    "allowAutoSubscriptionCreation": [False],
    "allowAutoTopicCreation": [False],
    "maxTopicsPerNamespace": [1, 2, 3],
    "namespacesMustExist": [True],
    "forceDeleteNamespaceAllowed": [True],
    "forceDeleteTenantAllowed": [True],
    "maxNumPartitionsPerPartitionedTopic": [2, 3],
    "maxNamespacesPerTenant": [1],
    "maxConsumerMetadataSize": [0, 4],
    "maxSubscriptionsPerTopic": [2, 3],
    "maxConsumersPerTopic": [2, 3],
    "maxConsumersPerSubscription": [1, 2],
    "maxUnackedMessagesPerConsumer": [1, 2, 3, 5],
    "maxUnackedMessagesPerSubscription": [2, 3, 4, 6],
    "maxUnackedMessagesPerBroker": [4, 5, 10],
    "maxUnackedMessagesPerSubscriptionOnBrokerBlocked": [0.25, 0.5, 1],
    "maxEffectsPerCommand": [1, 3, 10],
    "messageExpiryThroughCursor": [False],
    "countsEntriesOfDeletedLedgers": [False],
    "seekCountsConsumedAnew": [True],
    "refusedCumulativeAckIsAnError": [True],
    "keySharedSpreadsKeyless": [False],
    "keySharedRangesByPoint": [True],
    "keySharedModesMustAgree": [False],
    "unblocksConsumerOneAckLate": [True],
    "passedEntriesStayPending": [True],
    "closesOnAckOfNoEntry": [True],
    "unsubscribeOfReaderFails": [True],
    "lastMessageIdOfTerminatedCloses": [True],
    "highestProtocolVersion": [19],
    "unsetNamespacePoliciesAre204": [True],
    "unsetAffinityIs204": [False],
    "missingAdminFields": ["stats.subscriptions.msgInReplay"],
    "missingAdminCalls": ["POST /{domain}/{tenant}/{namespace}/{topic}/trim"],
    "adminMessageIdsNameBatch": [False],
    "metadataWithoutAutoCreation": [False],
    "fencesProducers": [False],
    "promotesBehindSharedProducers": [False],
    "activeConsumerFailoverFirstConnected": [True],
    "leavingConsumerCountsRedelivery": [True],
    "keySharedPointsByNameAlone": [True],
    "turnsCountMessages": [True],
    "keySharedPassesEntriesThatWait": [False],
    "refusedConsumerLeavesSubscription": [True],
    "passedBatchesAreForgotten": [True],
    "backlogSizeOfMissingLedgerIsAll": [True],
    "opensLedgerOfTerminated": [False],
    "keySharedRemembersHashes": [True],
    "ackOfAnyEntryLowersUnacked": [True],
    "keepsChunksTogether": [False],
    "opensLedgerAtOnce": [False],
    "trimsLedgerOfSlowestPosition": [False],
    "trimMovesToNextLedger": [True],
    "readsOnInClosedLedger": [True],
    "waitingReadsReturnEntries": [True],
    "keySharedLooksAheadAtEnd": [False],
    "readerStartsAtItsPosition": [True],
    "readsByLedgerSizes": [False],
    "readsWithoutLedgers": [True],
    "deduplicationReplayCounts": [False],
    "messageExpiryPassesClosedLedgers": [False],
    "nonPersistentCountsUnacked": [True],
    "nonPersistentSubscriptionsStay": [True],
    "nonPersistentKeepsPermits": [False],
    "retentionKeepsEmptyTopics": [True],
    "dispatcherMaxReadBatchSize": [1, 2, 3, 5],
    "dispatcherMaxReadSizeBytes": [100, 200, 250],
    "dispatcherMaxRoundRobinBatchSize": [1, 2, 3],
    "preciseDispatcherFlowControl": [True],
    "subscriptionExpirationTimeMinutes": [1, 2],
    "subscriptionExpiryCheckIntervalInMinutes": [1, 5],
    "activeConsumerFailoverDelayTimeMillis": [0, 1000, 2000],
    "activeConsumerFailoverConsistentHashing": [True],
    "activeConsumerFailoverRingForNonPartitioned": [False],
    "delayedDeliveryEnabled": [False],
    "delayedDeliveryTickTimeMillis": [1, 1000, 3000],
    "isDelayedDeliveryDeliverAtTimeStrict": [True],
    "delayedDeliveryMaxDelayInMillis": [5000, 10_000],
    "delayedDeliveryFixedDelayDetectionLookahead": [0, 1, 2, 3],
    "delayedDeliveryRoundsTimes": [True],
    "subscriptionBacklogScanMaxEntries": [1, 2, 4],
    "dispatcherEntryFilterRescheduledMessageDelay": [0, 500, 1000, 3000],
    "entryFilterNames": ["PropertyFilter"],
    "maxPublishRatePerTopicInMessages": [1, 2, 3],
    "maxPublishRatePerTopicInBytes": [100, 250],
    "brokerPublisherThrottlingMaxMessageRate": [1, 3],
    "brokerPublisherThrottlingMaxByteRate": [200],
    "dispatchThrottlingRateInMsg": [1, 2, 3],
    "dispatchThrottlingRateInByte": [100, 250],
    "dispatchThrottlingRatePerTopicInMsg": [1, 2, 3],
    "dispatchThrottlingRatePerTopicInByte": [100, 250],
    "dispatchThrottlingRatePerSubscriptionInMsg": [1, 2],
    "dispatchThrottlingRatePerSubscriptionInByte": [100, 250],
    "dispatchRateLimiterFactoryClassName": [CLASSIC_RATE_LIMITER],
    "dispatchThrottlingOnBatchMessageEnabled": [True],
    "dispatchThrottlingOnNonBacklogConsumerEnabled": [False],
    "managedLedgerCursorBackloggedThreshold": [0, 1, 3],
    "subscribeThrottlingRatePerConsumer": [1, 2],
    "subscribeRatePeriodPerConsumerInSecond": [1, 10],
    "subscriptionKeySharedEnable": [False],
    "subscriptionKeySharedUseConsistentHashing": [False, False],
    "subscriptionKeySharedConsistentHashingReplicaPoints": [1, 3],
    "subscriptionKeySharedUseClassicPersistentImplementation": [True],
    "keySharedLookAheadMsgInReplayThresholdPerConsumer": [0, 1, 2],
    "keySharedLookAheadMsgInReplayThresholdPerSubscription": [0, 1, 2, 3],
    "keySharedUnblockingIntervalMs": [0, 10, 1000],
    "brokerEntryMetadataInterceptors": ["AppendBrokerTimestampMetadataInterceptor"],
    "ttlDurationDefaultInSeconds": [1, 5, 60],
    "messageExpiryCheckIntervalInMinutes": [0, 0.05, 1],
    "messageExpirySharedPosition": [False],
    "messageExpiryOnEachPolicyUpdate": [False],
    "messageExpiryStopsAtOpenLedger": [False],
    "backlogQuotaCheckEnabled": [False],
    "backlogQuotaCheckIntervalInSeconds": [0, 1, 10],
    "backlogQuotaDefaultLimitGB": [1],
    "backlogQuotaDefaultLimitBytes": [0, 100, 300, 500],
    "backlogQuotaDefaultLimitSecond": [1, 5, 60],
    "backlogQuotaDefaultRetentionPolicy": ["producer_exception", "consumer_backlog_eviction"],
    "preciseTimeBasedBacklogQuotaCheck": [True],
    "backlogSizeWholeLedgers": [False],
    "backlogQuotaSkipByFactor": [True],
    "backlogQuotaSparesProducersForDedupCursor": [False],
    "backlogQuotaSkipsFencedTopics": [False],
    "backlogQuotaMessageAge": [False],
    "deduplicationChecksLastChunkOnly": [False],
    "retentionWithoutDurableCursor": [False],
    "retentionCheckEveryTopic": [False],
    "subscriptionBacklogSizeWithoutAcked": [True],
    "removePendingAcksOnMarkDeleteMove": [True],
    "moveCursorOverConsumedLedger": [True],
    "keepOldestPositionWhenUnknown": [False],
    "trimAtRolloverSparesClosedLedger": [False],
    "partitionsMustIncrease": [True],
    "useRecreatesPartitions": [False],
    "trimLedgerAckedToItsEnd": [False],
    "listsSystemTopics": [True],
    "statsUpdateFrequencyInSecs": [1, 10],
    "clusterName": ["c"],
    "exposeConsumerLevelMetricsInPrometheus": [True],
    "allowAutoTopicCreationType": ["partitioned"],
    "defaultNumPartitions": [2],
    "isAllowAutoUpdateSchemaEnabled": [False],
    "isSchemaValidationEnforced": [True],
    "schemaCompatibilityStrategy": ["ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE", "BACKWARD_TRANSITIVE"],
}  # fmt: skip
"""Values under which much happens with few messages."""

RESTRICTIVE = {
    "allowAutoSubscriptionCreation", "allowAutoTopicCreation", "encryptionRequireOnProducer", "maxConsumersPerSubscription",
    "maxConsumersPerTopic", "maxMessageSize", "maxProducersPerTopic", "maxSubscriptionsPerTopic", "maxTopicsPerNamespace",
    "namespacesMustExist", "subscriptionKeySharedEnable", "subscriptionTypesEnabled",
}  # fmt: skip
"""Settings that refuse so much that a life does not begin with them, and that hold only until the next change."""

QUOTAS = [
    {"limitSize": 0, "policy": "consumer_backlog_eviction"},
    {"limitSize": 300, "policy": "consumer_backlog_eviction"},
    {"limit": 500, "policy": "producer_exception"},
    {"limitSize": 200, "limitTime": 5, "policy": "producer_request_hold"},
    {"limitTime": 3, "policy": "consumer_backlog_eviction"},
    {"limitTime": 10, "policy": "producer_exception"},
    {"limitSize": 2**20, "limitTime": 59, "policy": "producer_exception"},
    {"limitSize": 2**20 - 1, "limitTime": 60, "policy": "producer_exception"},
    {"limitSize": 2**20 - 1, "limitTime": 59, "policy": "consumer_backlog_eviction"},
]
POLICIES: dict[str, list[Any]] = {
    "messageTTL": [0, 1, 5, 60, -1],
    "messageTTL?messageTTL=5": [None],
    "retention": [{"retentionTimeInMinutes": time, "retentionSizeInMB": size}
                  for time, size in ((0, 0), (1, -1), (-1, 1), (1, 1), (2, 5), (0, 1), (-2, 1), (1, -2))],
    "deduplication": [True, False],
    "deduplicationEnabled": [True],
    "deduplicationSnapshotInterval": [0, 1, 60],
    "maxProducersPerTopic": [0, 1, 2, -1],
    "maxProducers": [1, 3],
    "maxConsumersPerTopic": [0, 1, 3],
    "maxConsumers": [2],
    "maxConsumersPerSubscription": [0, 1, 2],
    "maxSubscriptionsPerTopic": [0, 1, 3],
    "maxTopicsPerNamespace": [0, 1, 3],
    "maxUnackedMessagesPerConsumer": [0, 1, 2],
    "maxUnackedMessagesOnConsumer": [1, 3],
    "maxUnackedMessagesPerSubscription": [0, 2, 3],
    "maxUnackedMessagesOnSubscription": [2, 4],
    "maxMessageSize": [0, 100, 200],
    "encryptionRequired": [True, False],
    "subscriptionExpirationTime": [0, 1, 2],
    "persistence": [{"managedLedgerMaxMarkDeleteRate": rate} for rate in (0, 0.1, 2.5)],
    "inactiveTopicPolicies": [
        {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 5, "deleteWhileInactive": True},
        {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up", "maxInactiveDurationSeconds": 2, "deleteWhileInactive": True},
        {"maxInactiveDurationSeconds": 1, "deleteWhileInactive": True},
        {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 5},
    ],
    "dispatchRate": [
        {"dispatchThrottlingRateInMsg": 2},
        {"dispatchThrottlingRateInByte": 150, "ratePeriodInSecond": 2},
        {"dispatchThrottlingRateInMsg": 3, "relativeToPublishRate": True},
        {"dispatchThrottlingRateInMsg": 0},
    ],
    "subscriptionDispatchRate": [{"dispatchThrottlingRateInMsg": 1}, {"dispatchThrottlingRateInByte": 1}],
    "publishRate": [{"publishThrottlingRateInMsg": 2}, {"publishThrottlingRateInByte": 200}, {"publishThrottlingRateInMsg": -1}],
    "subscribeRate": [{"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 5}, {"subscribeThrottlingRatePerConsumer": 2}],
    "delayedDelivery": [{"active": False}, {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 5000}, {"active": True, "tickTime": 3000}],
    "subscriptionTypesEnabled": [["Shared"], ["Exclusive", "Failover", "Shared", "Key_Shared"], []],
    "backlogQuota": QUOTAS,
    "backlogQuota?backlogQuotaType=message_age": QUOTAS,
    "backlogQuota?backlogQuotaType=destination_storage": QUOTAS,
    "backlogQuota?backlogQuotaType=other": QUOTAS[:1],
}  # fmt: skip


def every_fourth_waits(
    metadata: MessageMetadata, properties: Mapping[str, str]
) -> entry_filters.FilterResult:
    return "RESCHEDULE" if metadata.sequence_id % 4 == 0 else "ACCEPT"


entry_filters.register("EveryFourthWaits", every_fourth_waits)

JUMPS = [0] * 6 + [1, 10, 500, 999, 1000, 1000, 1000, 2000, 3000, 5000]
LONG = [10_000, 30_000, 60_000, 60_000, 61_000, 120_000, 180_000, 600_000, 3_600_000]
TYPES: list[Any] = ["Exclusive", "Failover", "Shared", "Key_Shared"]
SCHEMAS = [
    SchemaData("s", b'{"type":"record","name":"A","fields":[]}', "Json"),
    SchemaData("s", b"x", "Avro"),
    SchemaData("", b"", "String"),
]
"""The second is malformed."""


SHADOW = "persistent://public/default/shadow"


class RandomLife:
    """A life in the making."""

    def __init__(self, seed: str, theme: "Theme") -> None:
        self.draw = Random(seed)
        self.theme = theme
        self.now = START
        self.log: list[tuple[int, str | None, bytes]] = []
        self.rows: list[list[Row]] = []
        self.store = Stored()
        self.broker = Broker(0, self.store)
        self.sequence = 0
        self.requests = 0
        self.settings: dict[str, Any] = {}
        self.stats: list[dict[str, Any]] = []
        self.consumers: dict[tuple[str, int], tuple[str, str, Any]] = {}
        self.producers: dict[tuple[str, int], tuple[str, str]] = {}
        self.held: dict[tuple[str, int], deque[tuple[int, int, int]]] = {}
        self.last: deque[tuple[str, int, int]] = deque([("", 1, 0)], maxlen=12)
        self.topics = theme.topics
        self.source = 1, -1
        self.transactions: deque[tuple[int, int]] = deque([(0, 99)], maxlen=6)
        weights = {**USUAL, **theme.weights}
        self.operations = [each for each, weight in weights.items() if weight]
        self.weights = [weight for weight in weights.values() if weight]
        self.configure(self.draw.choice([2, 4, 8]))
        self.begin()
        while len(self.log) < theme.records:
            if self.draw.random() < theme.pace:
                self.now += self.draw.choice(LONG if self.draw.random() < theme.silence else JUMPS)
            (operation,) = self.draw.choices(self.operations, self.weights)
            operation(self)
        self.end()

    def do(self, command: AnyCommand | Publish, topic: str | None) -> None:
        """Give the broker a record."""
        value = to_json(command)
        self.log.append((self.now, topic, value))
        feed(self.broker, len(self.log) - 1, self.now, topic, value)
        rows = self.broker.take()
        self.rows.append(rows)
        self.store.add([row.effect for row in rows])
        for row in rows:
            self.notice(row.effect)

    def notice(self, effect: Effect) -> None:
        """Clients take notice of what the broker sends."""
        match effect:
            case Message():
                held = self.held.setdefault((effect.connection, effect.consumer_id), deque(maxlen=30))
                held.append((effect.ledger_id, effect.entry_id, effect.messages))
            case SendReceipt():
                self.last.append((effect.topic, effect.ledger_id, effect.entry_id))
            case effects.CloseConnection():
                self.forget(effect.connection)
            case effects.CloseProducer():
                self.producers = {
                    key: value
                    for key, value in self.producers.items()
                    if key != (effect.connection, effect.producer_id)
                }
            case effects.CloseConsumer():
                self.consumers.pop((effect.connection, effect.consumer_id), None)

    def forget(self, connection: str) -> None:
        """All that a connection had is gone."""
        self.consumers = {key: value for key, value in self.consumers.items() if key[0] != connection}
        self.producers = {key: value for key, value in self.producers.items() if key[0] != connection}

    def refused(self) -> bool:
        """Was the last command refused?"""
        return any(isinstance(row.effect, effects.Error) for row in self.rows[-1])

    # -- choices ---------------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.draw.random() < probability

    def one(self, choices: Any) -> Any:
        return self.draw.choice(choices)

    def topic(self) -> str:
        return self.one(self.topics)  # type: ignore[no-any-return]

    def request(self) -> int:
        self.requests += 1
        return self.requests

    def connection(self) -> str:
        return self.one("xyz")  # type: ignore[no-any-return]

    def consumer(self) -> tuple[str, int, str, str, Any]:
        """Connection, id, topic, subscription and type, mostly of one that has been connected."""
        if not self.consumers or self.chance(0.02):
            return self.connection(), self.draw.randrange(4), self.topic(), "a", "Shared"
        (connection, number), known = self.one(list(self.consumers.items()))
        return (connection, number, *known)

    def position(self) -> tuple[int, int]:
        """A position: of a recent entry, or any."""
        if self.chance(0.7):
            _, ledger, entry = self.one(self.last)
            return ledger, entry + self.one([0, 0, 0, 0, -1, 1])
        anywhere = [
            (2**64 - 1, 2**64 - 1),
            (1, 0),
            (1, 2),
            (2, 0),
            (2, 3),
            (3, 1),
            (1, -1),
            (-1, -1),
            (2**63 - 1, 2**63 - 1),
            (99, 0),
        ]
        ledger, entry = self.one(anywhere)
        return ledger, entry

    def words(self, messages: int) -> list[int]:
        """A bit set of the messages in a batch that stay unacked, or none."""
        if messages == 1 or self.chance(0.5):
            return []
        return [self.draw.randrange(2**messages)]

    # -- producing -------------------------------------------------------------------------------------------------

    def next_sequence(self) -> int:
        if self.chance(self.theme.repeats):
            return max(0, self.sequence - self.draw.randrange(4))
        self.sequence += self.one([1, 1, 1, 1, 2, 3])
        return self.sequence

    def metadata(self) -> dict[str, Any]:
        """Fields that a message may have."""
        found: dict[str, Any] = {}
        if self.chance(self.theme.keys):
            found["key"] = self.one(["a", "b", "c", "d", "e"])
        if self.chance(self.theme.delays):
            found["deliver_at_time"] = self.now + 1000 * self.one([-1, 0, 1, 2, 3, 3, 3, 5, 10])
        if self.chance(self.theme.clocks):
            found["publish_time"] = self.now + 1000 * self.one([-60, -5, -2, -1, 0, 1, 5])
        if self.chance(self.theme.properties):
            found["properties"] = {"f": self.one("12")}
        return found

    def publish(self) -> None:
        """With the short form."""
        producer, sequence, fields = self.one("ppq"), self.next_sequence(), self.metadata()
        size = SIZE * self.one([1, 1, 1, 2, 3])
        size -= HEADER + plain_metadata_size(producer, sequence, self.now, fields.get("key"))
        self.do(Publish(producer=producer, sequence_id=sequence, payload="x" * size, **fields), self.topic())

    def create_producer(self) -> None:
        connection, number, topic = self.connection(), self.draw.randrange(3), self.topic()
        name = self.one([None, "p", "q", "r", "s"])
        mode = self.one(["Shared"] * 3 + ["Exclusive", "WaitForExclusive", "ExclusiveWithFencing"])
        if not self.chance(self.theme.modes):
            mode = "Shared"
        known = self.producers.get((connection, number), (topic, name or "p"))
        self.do(
            Producer(
                connection=connection, producer_id=number, request_id=self.request(), producer_name=name,
                producer_access_mode=mode, epoch=self.one([0, 0, 1, 2]), topic_epoch=self.one([None, None, 0, 1, 2, 2**63 - 1]),
                encrypted=self.chance(0.1), user_provided_producer_name=self.chance(0.7),
                schema=self.one(SCHEMAS) if self.chance(0.1) else None,
                initial_subscription_name=self.one("abc") if self.chance(0.15) else None,
            ),
            topic := known[0] if self.chance(0.9) else topic,
        )  # fmt: skip
        if not self.refused():
            self.producers[connection, number] = (topic, known[1])

    def send(self) -> None:
        """An entry of a producer: a message, a batch or a chunk."""
        if not self.producers:
            return self.create_producer()
        (connection, number), (topic, name) = self.one(list(self.producers.items()))
        sequence, fields, own = self.next_sequence(), self.metadata(), {}
        if "key" in fields:
            own["partition_key"] = fields["key"]
            if self.chance(0.1):
                own["ordering_key"] = b"o" + fields["key"].encode()
        for field in ("deliver_at_time",):
            if field in fields:
                own[field] = fields[field]
        if "properties" in fields:
            own["properties"] = [KeyValue(*pair) for pair in fields["properties"].items()]
        messages = 1
        highest = None
        if self.chance(self.theme.batches):
            messages = self.one([1, 2, 3, 4])
            own["num_messages_in_batch"] = messages
            highest = sequence + messages - 1
            if self.chance(0.8):
                own["highest_sequence_id"] = highest
            self.sequence = max(self.sequence, highest)
        elif self.chance(self.theme.chunks):
            own |= {"uuid": self.one("uv"), "chunk_id": self.draw.randrange(3), "num_chunks_from_msg": 3}
        if self.chance(0.03):
            own["marker_type"] = self.one([1, 10, 21, 22])
        if self.chance(0.1):
            own["encryption_keys"] = []
        content: dict[str, Any] = {"payload": "x" * self.one([3, 50, 50, 150])}
        if self.theme.compacted and self.chance(0.98):
            content = {"payload_bytes": self.payload(own)}
        if of_transaction := self.of_transaction():
            own |= of_transaction
            content |= of_transaction
        self.do(
            Send(
                connection=connection, producer_id=number, sequence_id=sequence, highest_sequence_id=highest,
                num_messages=messages, is_chunk="chunk_id" in own,
                metadata=MessageMetadata(name, sequence, fields.get("publish_time", self.now), **own),
                **content,
            ),
            topic,
        )  # fmt: skip
        return None

    def payload(self, own: dict[str, Any]) -> bytes:
        """What compaction looks into: a batch of messages with and without keys and values, or a message with or without a value."""
        if (count := own.get("num_messages_in_batch")) is None:
            value = b"" if self.chance(0.2) else b"v" * self.draw.randrange(1, 30)
            if self.chance(0.7):
                own["uncompressed_size"] = len(value)
            return value
        return batch_of(
            (self.one([None, "a", "b", "c", "d"]), b"v" * self.one([0, 1, 10])) for _ in range(count)
        )

    def compact(self) -> None:
        """Ask for a compaction, or whether there was one, or set the threshold."""
        call, body = "/compaction", None
        if self.chance(0.2):
            call, body = "/compactionThreshold", self.one([0, 1, 300])
        method = "PUT" if body is None and self.chance(0.8) else "GET" if body is None else "POST"
        self.admin(method, self.topic(), call, body)

    def close_producer(self) -> None:
        if self.producers:
            (connection, number), (topic, _) = self.one(list(self.producers.items()))
            del self.producers[connection, number]
            self.do(
                CloseProducer(connection=connection, producer_id=number, request_id=self.request()), topic
            )

    def fault(self) -> None:
        fault = self.one(["FailWrites", "DelayWrites", "DelayWrites", "CompleteWrites", "LoseWrites"])
        self.do(Fault(fault=fault, count=self.one([0, 1, 2, 3])), self.topic())

    # -- consuming -------------------------------------------------------------------------------------------------

    def subscribe(self) -> None:
        connection, number, topic = self.connection(), self.draw.randrange(4), self.topic()
        if self.consumers and self.chance(0.3):
            _, _, topic, *_ = self.consumer()
        subscription = self.one(self.theme.subscriptions)
        odd = self.one(["", " ", "pulsar.dedup", "pulsar.repl.x"]) if self.chance(0.02) else None
        type_ = self.theme.types[self.theme.subscriptions.index(subscription) % len(self.theme.types)]
        if self.chance(0.05):
            type_ = self.one(TYPES)
        fields: dict[str, Any] = {}
        if type_ == "Key_Shared" and self.chance(self.theme.sticky):
            first = self.draw.randrange(3) * 20_000
            ranges = [IntRange(first, first + self.one([0, 19_999, 19_999, 20_000, 65_535]))]
            fields["keySharedMeta"] = KeySharedMeta(
                "STICKY", ranges, allowOutOfOrderDelivery=self.chance(0.2)
            )
        elif type_ == "Key_Shared" and self.chance(0.1):
            fields["keySharedMeta"] = KeySharedMeta("AUTO_SPLIT", allowOutOfOrderDelivery=self.chance(0.7))
        durable = subscription != "reader" or self.chance(0.05)
        if not durable and self.chance(0.7):
            fields["start_message_id"] = MessageIdData(
                *self.position(), ack_set=self.one([[], [], [1]]), batch_size=2
            )
        if self.chance(0.2):
            fields["priority_level"] = self.one([0, 1, 2, -1])
        if self.chance(0.1):
            fields["consumer_epoch"] = self.one([0, 1, 2])
        if self.chance(0.05):
            fields["start_message_rollback_duration_sec"] = self.one([1, 5, 60])
        if self.chance(0.3):
            fields["subscription_properties"] = [KeyValue("filter.f", self.one("12"))]
        if self.theme.compacted and type_ in ("Exclusive", "Failover"):
            fields["read_compacted"] = self.chance(self.theme.compacted)
        fields["force_topic_creation"] = self.chance(0.9)
        if (known := self.consumers.get((connection, number))) is not None and self.chance(0.9):
            topic, subscription, type_ = known
        self.do(
            Subscribe(
                connection=connection, subscription=subscription if odd is None else odd, subType=type_, consumer_id=number,
                consumer_name=self.one([None, "a", "b", "c", f"{connection}{number}"]), request_id=self.request(),
                initialPosition=self.one(["Earliest", "Earliest", "Latest"]), durable=durable, **fields,
            ),
            topic,
        )  # fmt: skip
        if self.refused():
            return
        if known is None:
            self.consumers[connection, number] = (topic, subscription, type_)
            self.held.pop((connection, number), None)
        if self.chance(0.8):
            permits = self.one([1, 2, 3, 5, 10])
            self.do(Flow(connection=connection, consumer_id=number, messagePermits=permits), topic)

    def flow(self) -> None:
        connection, number, topic, *_ = self.consumer()
        permits = self.one([1, 1, 2, 3, 5, 20] + [0] * (self.draw.random() < 0.01))
        self.do(Flow(connection=connection, consumer_id=number, messagePermits=permits), topic)

    def ids(self, connection: str, number: int, most: int) -> list[MessageIdData]:
        held = self.held.get((connection, number))
        found = []
        for _ in range(self.draw.randint(1, most)):
            if held and self.chance(0.9):
                at = self.one(range(len(held))) if self.chance(0.5) else 0
                ledger, entry, messages = held[at]
                words = self.words(messages)
                if not words:
                    del held[at]
                found.append(MessageIdData(ledger, entry, ack_set=words, batch_size=messages))
            else:
                found.append(MessageIdData(*self.position()))
        return found

    def ack(self) -> None:
        connection, number, topic, _, type_ = self.consumer()
        cumulative = self.chance(0.5 if type_ in ("Exclusive", "Failover") else 0.05)
        ids = self.ids(connection, number, 1 if cumulative else 4)
        self.do(
            Ack(
                connection=connection, consumer_id=number, ack_type="Cumulative" if cumulative else "Individual",
                message_id=ids, request_id=self.request() if self.chance(0.2) else None, **self.of_transaction(),
            ),
            topic,
        )  # fmt: skip

    # -- transactions ----------------------------------------------------------------------------------------------

    def of_transaction(self) -> dict[str, Any]:
        """The fields of what belongs to a transaction, or none."""
        if not (self.theme.transacts and self.chance(self.theme.transacts)):
            return {}
        most, least = self.one(list(self.transactions))
        return {"txnid_most_bits": most, "txnid_least_bits": least}

    def coordinate(self, command: Any, id_: int) -> None:
        """A request to a coordinator."""
        self.do(command, f"{COORDINATOR_ASSIGN}-partition-{id_}")

    def connect_coordinator(self) -> None:
        id_ = self.one([0, 0, 1, 16])
        self.coordinate(TcClientConnectRequest(connection="x", request_id=self.request(), tc_id=id_), id_)

    def transact(self) -> None:
        """Begin a transaction, which mostly knows what it will touch."""
        id_, ttl = self.one([0, 0, 0, 1]), self.one([0, 50, 1000, 5000, 60_000, 600_000])
        self.coordinate(
            NewTxn(connection="x", request_id=self.request(), txn_ttl_seconds=ttl, tc_id=id_), id_
        )
        for row in self.rows[-1]:
            if isinstance(row.effect, effects.NewTxnResponse) and isinstance(
                row.effect.fields.txnid_least_bits, int
            ):
                self.transactions.append((id_, row.effect.fields.txnid_least_bits))
        self.add_to_transaction()

    def add_to_transaction(self) -> None:
        most, least = self.one(list(self.transactions))
        own = {"connection": "x", "request_id": 1, "txnid_most_bits": most, "txnid_least_bits": least}
        if self.chance(0.8):
            self.coordinate(AddPartitionToTxn(partitions=self.topics[: self.one([1, 1, 3])], **own), most)
        if self.chance(0.8):
            names = [
                TxnSubscription(topic, name) for topic in self.topics for name in self.theme.subscriptions
            ]
            self.coordinate(AddSubscriptionToTxn(subscription=names, **own), most)

    def end_transaction(self) -> None:
        most, least = self.one(list(self.transactions))
        action = self.one(["COMMIT", "COMMIT", "ABORT"])
        command = EndTxn(
            connection="x", request_id=1, txnid_most_bits=most, txnid_least_bits=least, txn_action=action
        )
        self.coordinate(command, most)

    def redeliver(self) -> None:
        connection, number, topic, *_ = self.consumer()
        held = list(self.held.get((connection, number), ()))
        ids = [
            MessageIdData(*each[:2])
            for each in self.draw.sample(held, min(len(held), self.one([0, 1, 2, 3])))
        ]
        self.do(
            RedeliverUnacknowledgedMessages(
                connection=connection, consumer_id=number, message_ids=ids, consumer_epoch=self.one([None, None, 1, 2])
            ),
            topic,
        )  # fmt: skip

    def close_consumer(self) -> None:
        connection, number, topic, *_ = self.consumer()
        self.consumers.pop((connection, number), None)
        self.do(CloseConsumer(connection=connection, consumer_id=number, request_id=self.request()), topic)

    def unsubscribe(self) -> None:
        connection, number, topic, *_ = self.consumer()
        command = Unsubscribe(
            connection=connection, consumer_id=number, request_id=self.request(), force=self.chance(0.3)
        )
        self.do(command, topic)

    def seek(self) -> None:
        connection, number, topic, *_ = self.consumer()
        where: dict[str, Any] = {}
        if self.chance(0.6):
            where["message_id"] = MessageIdData(
                *self.position(), ack_set=self.one([[], [], [2]]), batch_size=2
            )
        if self.chance(0.5):
            where["message_publish_time"] = self.now - 1000 * self.one([-1, 0, 1, 3, 10, 60])
        command = Seek(connection=connection, consumer_id=number, request_id=self.request(), **where)
        self.do(command, topic)

    def last_message_id(self) -> None:
        connection, number, topic, *_ = self.consumer()
        command = GetLastMessageId(connection=connection, consumer_id=number, request_id=self.request())
        self.do(command, topic)

    def lose(self) -> None:
        connection = self.connection()
        self.forget(connection)
        self.do(ConnectionLost(connection=connection), None)

    def ask(self) -> None:
        """What clients ask about topics."""
        topic, connection, request = self.topic(), self.connection(), self.request()
        command: AnyCommand = self.one(
            [
                Lookup(connection=connection, request_id=request),
                PartitionedMetadata(
                    connection=connection, request_id=request, metadata_auto_creation_enabled=self.chance(0.5)
                ),
                GetSchema(connection=connection, request_id=request, schema_version=self.one([b"", b"\0" * 7 + b"\1"])),
                GetOrCreateSchema(connection=connection, request_id=request, schema=self.one(SCHEMAS)),
            ]
        )  # fmt: skip
        self.do(command, topic if self.chance(0.7) else topic.partition("-partition-")[0])

    # -- operators -------------------------------------------------------------------------------------------------

    def admin(self, method: Any, topic: str, call: str, body: Any = None) -> None:
        self.do(Admin(method=method, path="/" + topic.replace("://", "/") + call, body=body), topic)

    def operate(self) -> None:
        """An operation on a topic or a subscription."""
        name = "/subscription/" + self.one([*self.theme.subscriptions, *self.theme.subscriptions, "new"])
        ledger, entry = self.position()
        at = {"ledgerId": ledger, "entryId": entry}
        where: Any = at | self.one(
            [
                {},
                {},
                {"excluded": True},
                {"batchIndex": 0},
                {"batchIndex": 1},
                {"batchIndex": 1, "excluded": True},
            ]
        )
        ms = self.now - 1000 * self.one([-1, 0, 1, 3, 10, 60])
        seconds, count = self.one([0, 1, 2, 5, 60]), self.one([0, 1, 2, 3, 10])
        method, call, body = self.one(
            [
                ("PUT", name, self.one([None, at, "latest", {"properties": {"filter.f": "1"}}])),
                ("DELETE", name + self.one(["", "?force=true"]), None),
                ("POST", f"{name}/skip/{count}", None),
                ("POST", f"{name}/skip/{count}", None),
                ("POST", f"{name}/skip_all", None),
                ("POST", f"{name}/resetcursor/{ms}", None),
                ("POST", f"{name}/resetcursor", where),
                ("POST", f"{name}/expireMessages/{seconds}", None),
                ("POST", f"{name}/expireMessages", where),
                ("POST", f"/all_subscription/expireMessages/{seconds}", None),
                ("PUT", "/properties", {self.one("kl"): self.one("12")}),
                ("DELETE", "/properties?key=" + self.one("kl"), None),
                ("PUT", f"{name}/properties", {"filter.f": self.one("12")}),
                ("POST", "/trim", None),
                ("DELETE", "/truncate", None),
                ("PUT", "/unload", None),
                ("PUT", "/unload", None),
            ]
        )
        self.admin(method, self.topic(), call, body)

    def look(self) -> None:
        """What an operator looks at."""
        name = "/subscription/" + self.one([*self.theme.subscriptions, *self.theme.subscriptions, "none"])
        ledger, entry = self.position()
        n, start = self.one([0, 1, 2, 3, 9]), self.one(["earliest", "latest"])
        call = self.one(
            [
                *["/stats"] * 4,
                *["/internalStats"] * 3,
                "/subscriptions",
                "/lastMessageId",
                f"/messageid/{self.now - 1000 * self.one([-1, 0, 1, 3, 10])}",
                "/properties",
                f"{name}/properties",
                f"{name}/position/{n}",
                f"/ledger/{max(ledger, 0) % 100}/entry/{max(entry, 0) % 100}",
                f"/examinemessage?initialPosition={start}&messagePosition={n}",
                "/backlogQuotaMap",
                "/" + self.one(list(POLICIES)).partition("?")[0],
            ]
        )
        if self.chance(0.1):
            ledger, entry = self.position()
            return self.admin(
                "POST",
                self.topic(),
                f"{name}/analyzeBacklog",
                self.one([None, {"ledgerId": ledger, "entryId": entry}]),
            )
        return self.admin("GET", self.topic(), call)

    def rule(self) -> None:
        """A policy is set or removed, for a topic, a partitioned topic or a namespace."""
        policy, values = self.one(
            [each for each in POLICIES.items() if self.chance(0.2)] or list(POLICIES.items())
        )
        method: Any = "DELETE" if self.chance(0.3) else "POST"
        body = self.one(values) if method == "POST" else None
        topic = self.topic()
        if self.chance(0.3):
            namespace = topic.partition("://")[2].rpartition("/")[0]
            self.do(Admin(method=method, path=f"/namespaces/{namespace}/{policy}", body=body), None)
        elif "-partition-" in topic and self.chance(0.5):
            path = "/" + topic.partition("-partition-")[0].replace("://", "/")
            self.do(Admin(method=method, path=f"{path}/{policy}", body=body), None)
        elif self.chance(0.15):
            rate = {"dispatchThrottlingRateInMsg": self.one([1, 2, 3])}
            name = self.one(self.theme.subscriptions)
            self.admin(method, topic, f"/{name}/dispatchRate", rate if body is not None else None)
        else:
            self.admin(method, topic, f"/{policy}", body)

    def manage(self) -> None:
        """Topics and namespaces come and go."""
        topic = self.topic()
        namespace = topic.partition("://")[2].rpartition("/")[0]
        whole = topic.partition("-partition-")[0]
        match self.draw.randrange(10):
            case 0:
                self.admin("DELETE", topic, self.one(["", "?force=true", "?force=true"]))
            case 1:
                self.do(
                    Admin(
                        method="PUT", path="/" + whole.replace("://", "/") + "/partitions", body=self.one([0, 2])
                    ),
                    None,
                )  # fmt: skip
            case 2:
                self.do(
                    Admin(
                        method=self.one(["POST", "GET", "DELETE"]),
                        path="/" + whole.replace("://", "/") + "/partitions" + self.one(["", "?force=true"]),
                        body=self.one([1, 3]),
                    ),
                    None,
                )
            case 3:
                mode = self.one(["", "?mode=ALL", "?mode=NON_PERSISTENT"])
                self.do(Admin(method="GET", path=f"/namespaces/{namespace}/topics{mode}"), None)
            case 4:
                domain = self.one(["persistent", "non-persistent"])
                kind = self.one(["", "/partitioned"])
                self.do(Admin(method="GET", path=f"/{domain}/{namespace}{kind}"), None)
            case 5:
                call = self.one(["unload", "clearBacklog", "clearBacklog/a"])
                method: Any = "PUT" if call == "unload" else "POST"
                self.do(Admin(method=method, path=f"/namespaces/{namespace}/{call}"), None)
            case 6:
                self.do(Admin(method="GET", path=f"/namespaces/{namespace}/{self.one(list(POLICIES))}"), None)
            case 7:
                self.admin(self.one(["DELETE", "GET"]), whole, self.one(["", "?force=true", "/stats"]))
            case 8:
                call = "/" + self.one(["properties", "messageTTL", "maxProducers", "backlogQuotaMap"])
                self.admin(self.one(["GET", "GET", "DELETE", "POST"]), whole, call, self.one([1, None]))
            case 9:
                self.admin(self.one(["POST", "PUT"]), topic, self.one(["/terminate", "/nothing", "/trim"]))

    def configure(self, many: int = 2) -> None:
        """Some settings change."""
        self.settings = {name: value for name, value in self.settings.items() if name not in RESTRICTIVE}
        while len(self.settings) > 14:
            self.settings.pop(self.one(sorted(self.settings)))
        for name in self.draw.sample(sorted(SETTINGS if self.log else SETTINGS.keys() - RESTRICTIVE), many):
            self.settings[name] = self.one(SETTINGS[name])
        fixed = {name: self.one(values) for name, values in self.theme.settings.items()}
        profile: Any = self.one(["4.x", "4.x", "2.x", "2.10", "3.0", "4.2", "5.0"])
        self.do(BrokerConfig(profile=profile, settings=self.settings | fixed), None)

    # -- time ------------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        self.now += self.one(JUMPS + LONG[:3])
        self.do(Tick(), None)

    def check(self) -> None:
        # Compaction has a theme of its own: among the others, it would change all of them.
        checks = CHECKS if self.theme.compacted else CHECKS.keys() - {"compaction"}
        self.do(RunCheck(check=self.one(sorted(checks))), None)

    def restart(self) -> None:
        self.consumers.clear()
        self.producers.clear()
        self.do(Restart(), None)

    # -- from the beginning to the end -----------------------------------------------------------------------------

    def begin(self) -> None:
        if SHADOW in self.topics:
            self.do(
                Admin(method="PUT", path="/" + SHADOW.replace("://", "/"), body={SHADOW_SOURCE: SHADOW}),
                SHADOW,
            )
        for topic in self.topics:
            if "-partition-" in topic:
                path = "/" + topic.partition("-partition-")[0].replace("://", "/") + "/partitions"
                self.do(Admin(method="PUT", path=path, body=2), None)
        for _ in range(3):
            self.subscribe()
            self.create_producer()

    # -- a shadow topic --------------------------------------------------------------------------------------------

    def copy(self) -> None:
        """An entry of the source, seldom one out of place."""
        ledger, entry = self.source
        if self.chance(0.15):
            ledger, entry = ledger + self.one([1, 1, 5]), -1
        entry, wrong = entry + 1, self.chance(0.05)
        times = self.now - self.one([0, 0, 40_000])
        metadata = MessageMetadata(
            self.one("pq"), self.sequence, times, partition_key=self.one([None, "k", "l"])
        )
        self.sequence += 1
        command = Send(
            connection="mirror", producer_id=0, sequence_id=metadata.sequence_id, metadata=metadata,
            payload="x" * self.draw.randrange(60), message_id=MessageIdData(ledger, entry + wrong),
        )  # fmt: skip
        self.do(command, SHADOW)
        if not wrong:
            self.source = ledger, entry

    def mirror(self) -> None:
        """What the source shows, which need not fit together."""
        ledger, entry = self.source
        seen = {
            name: self.mirrored(name, ledger, entry)
            for name in self.draw.sample("stu", self.draw.randrange(4))
        }
        last = (ledger, entry - self.chance(0.1))
        producers = [
            MirroredProducer(f"/1/{name}", name) for name in self.draw.sample("pq", self.draw.randrange(3))
        ]
        command = Mirror(
            connection="mirror", ledger_id=ledger + self.chance(0.1), last_confirmed=last, entries=self.draw.randrange(9),
            size=self.draw.randrange(900), first_ledger=max(ledger - self.draw.randrange(4), 0), subscriptions=seen,
            producers=producers,
        )  # fmt: skip
        self.do(command, SHADOW)

    def mirrored(self, name: str, ledger: int, entry: int) -> MirroredSubscription:
        mark = self.draw.randint(-1, max(entry, 0))
        holes = [(ledger, mark + 1, ledger, mark + 2)] if self.chance(0.3) else []
        consumers = [
            MirroredConsumer(f"/{number}/{name}", self.one("xy"), self.draw.randrange(9), self.draw.randrange(-2, 9), self.draw.randrange(3))
            for number in range(self.draw.randrange(3))
        ]  # fmt: skip
        if name == "s":
            consumers = consumers[:1]
        type_: Any = {"s": "Exclusive", "t": "Shared", "u": "Key_Shared"}[name]
        return MirroredSubscription(
            (ledger, mark), holes, self.draw.randrange(6), self.draw.randrange(6), type=type_,
            expired_to=(ledger, mark) if self.chance(0.2) else None, reset=self.chance(0.1), consumers=consumers,
        )  # fmt: skip

    def end(self) -> None:
        """All shows what it has become, once before and once after a silence."""
        for _ in range(2):
            for topic in self.topics:
                for call in ("/stats", "/internalStats", "/subscriptions"):
                    self.admin("GET", topic, call)
            self.now += 400_000
            self.do(Tick(), None)
        self.stats = self.broker.stats()


Operation = Callable[[RandomLife], object]

USUAL: dict[Operation, float] = {
    RandomLife.publish: 20, RandomLife.send: 15, RandomLife.create_producer: 4, RandomLife.close_producer: 1.5,
    RandomLife.subscribe: 8, RandomLife.flow: 18, RandomLife.ack: 20, RandomLife.redeliver: 5,
    RandomLife.close_consumer: 3, RandomLife.unsubscribe: 0.7, RandomLife.seek: 1.5, RandomLife.last_message_id: 0.7,
    RandomLife.lose: 1, RandomLife.ask: 0.7, RandomLife.fault: 0.5, RandomLife.operate: 2.5, RandomLife.look: 5,
    RandomLife.rule: 1.5, RandomLife.manage: 0.4, RandomLife.configure: 0.6, RandomLife.wait: 4, RandomLife.check: 2.5,
    RandomLife.restart: 0.3,
}  # fmt: skip


class Theme:
    """What there is most of in a life."""

    def __init__(
        self, weights: dict[Operation, float] | None = None, *, topics: tuple[str, ...] = ("a", "a", "b"),
        subscriptions: tuple[str, ...] = ("a", "b", "reader"), types: Sequence[Any] = TYPES,
        settings: dict[str, list[Any]] | None = None, pace: float = 0.3, silence: float = 0.1, keys: float = 0.3,
        delays: float = 0.02, clocks: float = 0.1, properties: float = 0.1, batches: float = 0.3, chunks: float = 0.05,
        repeats: float = 0.1, modes: float = 0.15, sticky: float = 0.1, records: int = 250, compacted: float = 0, transacts: float = 0,
    ) -> None:  # fmt: skip
        """`topics`: names in namespace ``public/default``, or whole names. `types`: of the subscriptions, in turn."""
        self.weights = weights or {}
        self.topics = [name if "://" in name else f"persistent://public/default/{name}" for name in topics]
        self.subscriptions, self.types = subscriptions, types
        self.settings = settings or {}
        self.pace, self.silence = pace, silence
        self.keys, self.delays, self.clocks, self.properties = keys, delays, clocks, properties
        self.batches, self.chunks, self.repeats = batches, chunks, repeats
        self.modes, self.sticky, self.records = modes, sticky, records
        self.compacted, self.transacts = compacted, transacts


SMALL = {
    "managedLedgerMaxEntriesPerLedger": [2, 3, 4],
    "managedLedgerMinLedgerRolloverTimeMinutes": [0],
    "managedLedgerDefaultMarkDeleteRateLimit": [0],
}
L = RandomLife
THEMES: dict[str, Theme] = {
    "all": Theme(),
    "small ledgers": Theme(settings=SMALL),
    "one active consumer": Theme(
        {L.seek: 3}, subscriptions=("a", "b"), types=("Exclusive", "Failover"),
        topics=("a", "a", "t-partition-1"),
    ),
    "Shared": Theme({L.subscribe: 12, L.redeliver: 10}, topics=("a",), subscriptions=("a", "b"), types=("Shared",)),
    "Key_Shared": Theme(
        {L.subscribe: 15, L.close_consumer: 5, L.redeliver: 8}, topics=("a",), subscriptions=("a", "b"),
        types=("Key_Shared",), keys=0.95, settings={
            "keySharedLookAheadMsgInReplayThresholdPerConsumer": [2000, 1, 2],
            "keySharedLookAheadMsgInReplayThresholdPerSubscription": [20_000, 1, 3],
        },
    ),
    "reads": Theme(
        {L.publish: 40, L.flow: 15}, topics=("a",), settings=SMALL | {
            "dispatcherMaxReadSizeBytes": [100, 200, 250, 300, 500, 5_000_000], "dispatcherMaxReadBatchSize": [1, 2, 3, 5, 100],
            "dispatcherMaxRoundRobinBatchSize": [1, 2, 3, 20], "maxEffectsPerCommand": [0, 1, 3, 10],
            "dispatcherMinReadBatchSize": [1, 2, 5],
        },
    ),
    "classic Key_Shared": Theme(
        {L.subscribe: 15, L.close_consumer: 5, L.redeliver: 8}, topics=("a",), subscriptions=("a", "b"),
        types=("Key_Shared",), keys=0.95,
        settings={"subscriptionKeySharedUseClassicPersistentImplementation": [True]},
    ),
    "split ranges": Theme(
        {L.subscribe: 20, L.close_consumer: 8}, topics=("a",), subscriptions=("a", "b"), types=("Key_Shared",), keys=0.95,
        settings={"subscriptionKeySharedUseConsistentHashing": [False]}, sticky=0,
    ),
    "sticky ranges": Theme(
        {L.subscribe: 15, L.close_consumer: 5}, topics=("a",), subscriptions=("a",), types=("Key_Shared",), keys=0.95,
        sticky=0.9,
    ),
    "delays": Theme(
        {L.wait: 12}, topics=("a",), subscriptions=("a", "b"), types=("Shared", "Key_Shared"), delays=0.6, pace=0.5,
        settings={"delayedDeliveryRoundsTimes": [False, False, True], "delayedDeliveryTickTimeMillis": [1, 1000, 1000, 3000]},
    ),
    "filters": Theme(
        {L.wait: 8}, subscriptions=("a", "b", "reader"), types=("Shared", "Failover", "Exclusive"), properties=0.7,
        settings={"entryFilterNames": ["PropertyFilter", "EveryFourthWaits", "EveryFourthWaits,PropertyFilter"]},
    ),
    "non-persistent": Theme(
        {L.fault: 3, L.lose: 2}, topics=("non-persistent://public/default/n", "non-persistent://public/default/m", "a"),
        subscriptions=("a", "b", "c", "d"), keys=0.7,
    ),
    "producers": Theme(
        {L.create_producer: 30, L.close_producer: 8, L.send: 25, L.fault: 4, L.lose: 4, L.subscribe: 2},
        topics=("a", "a", "non-persistent://public/default/n"), modes=0.9,
    ),
    "writes": Theme(
        {L.fault: 8, L.create_producer: 6, L.close_producer: 4, L.send: 40}, settings=SMALL | {
            "brokerDeduplicationEnabled": [True, False],
        },
    ),
    "comings and goings": Theme(
        {L.manage: 15, L.rule: 4, L.restart: 2, L.create_producer: 8, L.subscribe: 12, L.ask: 4},
        topics=("a", "t-partition-0", "t-partition-1", "non-persistent://public/default/n"),
    ),
    "long ledgers": Theme(
        {L.publish: 40, L.ack: 25, L.flow: 30, L.operate: 1, L.seek: 0.5}, topics=("a",), subscriptions=("a",),
        types=("Shared",), records=700,
    ),
    "deduplication": Theme(
        {L.create_producer: 10, L.close_producer: 6, L.send: 40, L.fault: 3, L.check: 8, L.restart: 1}, topics=("a",),
        repeats=0.4, chunks=0.3, settings={"brokerDeduplicationEnabled": [True, True, True, False], "closesPendingAcksOfLeaving": [True, False]},
    ),
    "batch acks": Theme(
        {L.send: 35, L.ack: 30, L.publish: 3}, topics=("a",), batches=0.9,
        settings={"acknowledgmentAtBatchIndexLevelEnabled": [True]},
    ),
    "age": Theme(
        {L.check: 8, L.wait: 8}, clocks=0.4, pace=0.5, silence=0.3,
        settings=SMALL | {"ttlDurationDefaultInSeconds": [0, 5, 30, 60], "preciseTimeBasedBacklogQuotaCheck": [True, False],
                          "backlogQuotaDefaultLimitSecond": [-1, -1, 10, 60], "retentionCheckIntervalInSeconds": [1, 60],
                          "messageExpiryCheckIntervalInMinutes": [0.05, 1]},
    ),
    "quotas": Theme(
        {L.check: 10, L.publish: 30}, settings=SMALL | {
            "backlogQuotaDefaultLimitBytes": [0, 100, 300, 500, 1000], "backlogQuotaCheckIntervalInSeconds": [1, 60],
            "backlogQuotaDefaultRetentionPolicy": ["producer_exception", "producer_request_hold", "consumer_backlog_eviction"],
        },
    ),
    "limits": Theme(
        {L.subscribe: 15}, topics=("a", "b", "c"), settings={
            "maxUnackedMessagesPerBroker": [0, 4, 6], "maxUnackedMessagesPerConsumer": [0, 2, 3],
            "maxUnackedMessagesPerSubscription": [0, 3, 5],
        }, subscriptions=("a", "b"), types=("Shared", "Key_Shared"),
    ),
    "rates": Theme(
        {L.wait: 10, L.rule: 4}, topics=("a", "b"), subscriptions=("a", "b"), types=("Shared", "Exclusive"), settings={
            "statsUpdateFrequencyInSecs": [1, 60],
            "dispatchThrottlingRatePerTopicInMsg": [0, 2], "dispatchThrottlingRatePerSubscriptionInByte": [0, 150],
            "maxPublishRatePerTopicInMessages": [0, 0, 2], "subscribeThrottlingRatePerConsumer": [0, 2],
            "dispatchThrottlingRateInMsg": [0, 3],
        },
    ),
    "operators": Theme({L.operate: 30, L.look: 20, L.rule: 6, L.manage: 4}, settings=SMALL),
    "policies": Theme(
        {L.rule: 25, L.manage: 8, L.look: 8, L.restart: 1},
        topics=("a", "t-partition-0", "t-partition-1", "persistent://public/other/b"),
        settings={"defaultNumberOfNamespaceBundles": [1, 2]},
    ),
    "mirrors": Theme(
        {L.copy: 40, L.mirror: 20, L.wait: 8, L.publish: 2}, topics=(SHADOW, SHADOW, "a"), subscriptions=("a", "b"),
        settings={"ttlDurationDefaultInSeconds": [0, 30], "shadowTopicFollowsSource": [True, True, False]},
    ),
    "silences": Theme({L.wait: 15}, pace=0.6, silence=0.6),
    "compaction": Theme(
        {L.compact: 6, L.seek: 3, L.last_message_id: 3, L.publish: 10, L.send: 25}, subscriptions=("a", "b", "reader", "reader"),
        types=("Exclusive", "Failover", "Exclusive", "Exclusive"), topics=("a", "a", "t-partition-1"), keys=0.8, compacted=0.7,
        settings=SMALL | {
            "brokerServiceCompactionThresholdInBytes": [0, 1, 200, 500], "brokerServiceCompactionMonitorIntervalInSeconds": [0, 5, 60],
            "topicCompactionRetainNullKey": [False, True], "retentionCheckIntervalInSeconds": [1, 10],
            "brokerEntryMetadataInterceptors": ["AppendBrokerTimestampMetadataInterceptor", ""],
        },
    ),
    "transactions": Theme(
        {L.transact: 8, L.end_transaction: 8, L.add_to_transaction: 3, L.connect_coordinator: 6, L.send: 30, L.ack: 25, L.publish: 5, L.fault: 1, L.rule: 0.2, L.configure: 0.2},
        transacts=0.5, topics=("a", "a", "b"), subscriptions=("a", "b", "reader"), types=("Shared", "Failover", "Exclusive"),
        settings=SMALL | {
            "transactionCoordinatorEnabled": [True, True, True, False], "maxActiveTransactionsPerCoordinator": [0, 0, 2],
            "acknowledgmentAtBatchIndexLevelEnabled": [True, True, False], "brokerDeduplicationEnabled": [False, True],
            "retentionCheckIntervalInSeconds": [1, 10],
        },
    ),
    "unsubscribes": Theme(
        {L.unsubscribe: 8, L.subscribe: 15}, topics=("a", "non-persistent://public/default/n"), subscriptions=("a", "b"),
        types=("Shared", "Key_Shared", "Failover"), settings={"forceUnsubscribes": [False, False, True]},
    ),
    # Without compaction and transactions, most of these choose between the same.
    "releases": Theme(
        {L.publish: 25, L.send: 25, L.wait: 10, L.rule: 2}, subscriptions=("a", "b"),
        settings={
            "brokerPublisherThrottlingMaxMessageRate": [0, 0, 3], "maxPublishRatePerTopicInMessages": [0, 1, 4],
            "publishRatesInWindows": [True, True, False], "preciseTopicPublishRateLimiterEnable": [False, True],
            **{
                name: [False, True]
                for name in (
                    "compactionCountsMetadata", "compactionSeesNullValues", "compactionNeedsNewMessages", "lastOfNothingHasIndex",
                    "compactedBatchesNameMessages", "findsCompactedByTime", "refusedTransactionsStay", "producersReadyTopicForAborts",
                    "originalPrincipalsAreAsked", "adminCallsAskByOperation", "limitsDeliveryDelays",
                )
            },
        },
    ),
    "compaction of releases": Theme(
        {L.compact: 6, L.seek: 3, L.last_message_id: 5, L.publish: 10, L.send: 25}, subscriptions=("a", "b", "reader", "reader"),
        types=("Exclusive", "Failover", "Exclusive", "Exclusive"), topics=("a", "a", "t-partition-1"), keys=0.8, compacted=0.7,
        settings=SMALL | {
            name: [False, True]
            for name in ("compactionCountsSingleMessages", "compactedReadsTakeOneMore", "durableReadsBeginAnew", "compactionSubscriptionExpires",
             "compactedDataGoesWithSubscription", "lastMessageIdIsReadable", "compactionSeekKeepsMarkDelete", "waitingReadsReturnEntries",
             "readsByLedgerSizes")
        },
    ),
    "transactions of releases": Theme(
        {L.transact: 8, L.end_transaction: 8, L.add_to_transaction: 3, L.connect_coordinator: 6, L.send: 30, L.ack: 25, L.redeliver: 8, L.last_message_id: 3},
        transacts=0.5, topics=("a", "a", "b"), subscriptions=("a", "b", "reader"), types=("Shared", "Failover", "Exclusive"),
        settings=SMALL | {
            "transactionCoordinatorEnabled": [True], "maxActiveTransactionsPerCoordinator": [0, 2], "acknowledgmentAtBatchIndexLevelEnabled": [True],
            **{
                name: [False, True]
                for name in ("limitsActiveTransactions", "errorsNameTransactions", "abortedCumulativeAckIsSentAgain", "pendingAcksCountAsSent",
                 "lastMessageIdIsReadable", "readsOnInClosedLedger", "preciseDispatcherFlowControl")
            },
        },
    ),
}  # fmt: skip


def live(theme: str, seed: int) -> Life:
    """A life."""
    with pytest.MonkeyPatch.context() as patch:
        work = Work(patch)
        life = RandomLife(f"{theme} {seed}", THEMES[theme])
    return Life(life.log, life.rows, life.stats, dict(work))


def restarts(theme: str, seed: int, chance: float) -> Iterator[tuple[Broker, Stored, Random]]:
    """A life lived again, by a broker that is restored from its state now and then. After each such restart: the broker, the entries that
    it has stored, and what to draw from. `chance`: of a restart after a record."""
    draw, store = Random(f"{theme} {seed}"), Stored()
    broker = Broker(0, store)
    for offset, (timestamp, topic, value) in enumerate(live(theme, seed).log):
        feed(broker, offset, timestamp, topic, value)
        store.add([row.effect for row in broker.take()])
        if draw.random() < chance:
            broker = Broker.decode(broker.encode(), store)
            yield broker, store, draw


def without_choices() -> set[str]:
    """Settings for which no values are drawn."""
    of_themes = {name for theme in THEMES.values() for name in theme.settings}
    return set(ServiceConfiguration.__struct_fields__) - set(SETTINGS) - of_themes - {"profile"}
