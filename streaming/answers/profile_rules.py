"""What a user notices of each setting whose default differs between profiles, and what shows it.

A rule has its ids in docs/rules/versions.md, and the recordings of real brokers that show it: each differs from its own profile if
the setting has the value of another one.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class ProfileRule(NamedTuple):
    """What a user `notices` if the setting changes, either way; the `ids` of the rule; its `recordings`: release and scenario. `why`
    there is no id, or no recording."""

    notices: str
    ids: tuple[str, ...] = ()
    recordings: tuple[tuple[str, str], ...] = ()
    why: str = ""

    @property
    def shown_by(self) -> str:
        """The rule and its recordings, or why there are none, for people."""
        recorded = ", ".join(f"{scenario} ({release})" for release, scenario in self.recordings)
        parts = [
            *(f"rule{'s' if len(self.ids) > 1 else ''} {', '.join(self.ids)}" for _ in self.ids[:1]),
            *(f"recorded in {recorded}" for _ in self.recordings[:1]),
            *(each for each in [self.why] if each),
        ]
        return "; ".join(parts)


class ListChange(NamedTuple):
    """How two settings that are lists differ."""

    gone: list[str]
    new: list[str]
    before: int
    after: int


def entries(before: Any, after: Any) -> ListChange | None:
    """How two values differ if they are lists. None: they are not."""
    if not (isinstance(before, str) and isinstance(after, str) and "," in before + after):
        return None
    first, second = (value.split(",") if value else [] for value in (before, after))
    return ListChange(
        [each for each in first if each not in second],
        [each for each in second if each not in first],
        len(first),
        len(second),
    )


_SOURCES = "no recording decides: it is in the sources"
_DEFAULT = "not a rule but a default of Pulsar, which docs/rules/versions.md does not number"
_NOT_RECORDED = "no recording shows it"
_NOT_IN_LOGS = "tests/authorization has it recorded: a log has only what was permitted"
_ARTICLE = "a rule of an article, which no release follows (docs/rules/articles.md)"

PROFILE_RULES: dict[str, ProfileRule] = {
    "abortedCumulativeAckIsSentAgain": ProfileRule(
        "After an aborted cumulative ack, the broker sends its messages again, or leaves that to the client.",
        ("A67",),
        (("2.10.5", "txn_ack_cumulative"),),
    ),
    "compactedDataGoesWithSubscription": ProfileRule(
        "Readers still get what was compacted after `__compaction` was deleted, or the topic itself.",
        ("A64",),
        (("2.10.5", "compaction_trimmed"),),
    ),
    "compactedReadsTakeOneMore": ProfileRule(
        "A reader of compacted data gets one message more than it has permits for, or not.",
        ("A61",),
        (("2.10.5", "compaction_basic"),),
    ),
    "compactionCountsSingleMessages": ProfileRule(
        "Compaction loses messages of batches that also have an empty value, or keeps them.",
        ("A60",),
        (("2.10.5", "compaction_batches"),),
    ),
    "compactionSeekKeepsMarkDelete": ProfileRule(
        "Compaction counts more messages as sent to `__compaction`, or frees ledgers that its cursor had passed.",
        ("B25",),
        (("4.2.4", "compaction_emptied"),),
    ),
    "compactionSubscriptionExpires": ProfileRule(
        "`expireMessages` for all subscriptions moves `__compaction`, too, or leaves it alone.",
        ("A63",),
        (("2.10.5", "compaction_policies"),),
    ),
    "durableReadsBeginAnew": ProfileRule(
        "A durable consumer of compacted data that connects again gets all of it again, or what it has not acknowledged.",
        ("A62",),
        (("2.10.5", "compaction_durable"),),
    ),
    "errorsNameTransactions": ProfileRule(
        "Errors that answer requests to a coordinator name the transaction, or not.",
        ("A66",),
        (("2.10.5", "txn_refused"),),
    ),
    "lastMessageIdIsReadable": ProfileRule(
        "The last message id is that of a message that the consumer may read, or of whatever is last in the topic.",
        ("A59",),
        (("2.10.5", "txn_two"),),
    ),
    "limitsDeliveryDelays": ProfileRule(
        "Messages that are to be delivered later than `maxDeliveryDelayInMillis` allows are refused, or stored.",
        ("A69", "D34"),
        why=_NOT_RECORDED,
    ),
    "limitsActiveTransactions": ProfileRule(
        "NEW_TXN beyond `maxActiveTransactionsPerCoordinator` is answered, or not.",
        ("A65",),
        (("2.10.5", "txn_limit"),),
    ),
    "pendingAcksCountAsSent": ProfileRule(
        "Messages that a transaction has acknowledged cost permits and count as sent again after a redelivery, or not.",
        ("A68",),
        (("2.10.5", "txn_unload"),),
    ),
    "adminCallsAskByOperation": ProfileRule(
        "Roles that are no superusers may make other admin calls, or are refused them in other words.",
        ("A58", "D33"),
        why=_NOT_IN_LOGS,
    ),
    "compactedBatchesNameMessages": ProfileRule(
        "The metadata of a compacted batch names the messages that stayed, or does not.",
        ("B22",),
        (("4.2.4", "compaction_batches"),),
    ),
    "compactionCountsMetadata": ProfileRule(
        "Compaction deletes a key for an empty message that does not tell its size, or keeps that message.",
        ("A54", "D29", "B18"),
        (("3.0.7", "compaction_basic"), ("4.2.4", "compaction_emptied")),
    ),
    "compactionNeedsNewMessages": ProfileRule(
        "A compaction without anything new does nothing, or writes a new ledger and may move the horizon back.",
        ("B20",),
        (("4.2.4", "compaction_basic"),),
    ),
    "compactionSeesNullValues": ProfileRule(
        "Compaction deletes a key for a null value that has a payload, or keeps that message.",
        ("B19",),
        (("4.2.4", "compaction_codecs"),),
    ),
    "findsCompactedByTime": ProfileRule(
        "The message id of a time is that of a compacted message, or of the first one that the topic still has.",
        ("A55", "D30"),
        (("3.0.7", "compaction_trimmed"),),
    ),
    "lastOfNothingHasIndex": ProfileRule(
        "The last message id of compacted data of which nothing is left has the batch index 0, or none.",
        ("B21",),
        (("4.2.4", "compaction_emptied"),),
    ),
    "originalPrincipalsAreAsked": ProfileRule(
        "An admin call that names another principal is decided for both roles, or refused.",
        ("B24",),
        why=_NOT_IN_LOGS,
    ),
    "producersReadyTopicForAborts": ProfileRule(
        "The abort of a transaction that published nothing writes a marker to its topics, or none.",
        ("A57", "D32"),
        (("3.0.7", "txn_empty"),),
    ),
    "publishRatesInWindows": ProfileRule(
        "Producers that exceed a publish rate are read no more until their second is over, or until permits are back.",
        ("A53", "D28"),
        why=_NOT_RECORDED,
    ),
    "refusedTransactionsStay": ProfileRule(
        "A topic that refused a message of an ended transaction refuses those of all others, too, or takes them.",
        ("A56", "D31", "B23"),
        (("3.0.7", "txn_failed"), ("4.2.4", "txn_failed")),
    ),
    "ackOfAnyEntryLowersUnacked": ProfileRule(
        "`unackedMessages` counts down with every ack, also below 0, or only with those of what a consumer holds.",
        ("A11",),
        (("2.10.5", "ack_holes"),),
    ),
    "acknowledgmentAtBatchIndexLevelEnabled": ProfileRule(
        "After a redelivery, clients get whole batches, or only the messages of them that they have not acknowledged.",
        recordings=(("4.0.7", "ack_batch_index_off"),),
        why=_DEFAULT,
    ),
    "activeConsumerFailoverFirstConnected": ProfileRule(
        "On a topic that is not a partition, another consumer of a Failover subscription is the active one.",
        ("A1",),
        (("2.10.5", "sub_failover_priority"),),
    ),
    "activeConsumerFailoverRingForNonPartitioned": ProfileRule(
        "On a topic that is not a partition, another consumer of a Failover subscription is the active one.",
        why=_ARTICLE,
    ),
    "adminMessageIdsNameBatch": ProfileRule(
        "Message ids in answers of the admin API, such as that of terminate, have `batchIndex` and `batchSize`, or not.",
        ("A22",),
        (("2.10.5", "admin_terminate"),),
    ),
    "backlogQuotaMessageAge": ProfileRule(
        "A backlog quota by age refuses producers or evicts messages, or has no effect.", why=_ARTICLE
    ),
    "backlogQuotaSkipByFactor": ProfileRule(
        "An eviction by size skips a message more or less.", why=_SOURCES
    ),
    "backlogQuotaSkipsFencedTopics": ProfileRule(
        "A backlog quota is enforced on a fenced topic, too, or not.", why=_SOURCES
    ),
    "backlogQuotaSparesProducersForDedupCursor": ProfileRule(
        "A backlog quota that only deduplication's own cursor exceeds refuses producers, or lets them in.",
        ("A26",),
        why=_NOT_RECORDED,
    ),
    "backlogSizeOfMissingLedgerIsAll": ProfileRule(
        "`backlogSize` of a subscription whose position is in a deleted ledger is the size of the topic, or what is behind it.",
        ("A42",),
        why=_NOT_RECORDED,
    ),
    "backlogSizeWholeLedgers": ProfileRule(
        "A few bytes of a ledger that is acknowledged to its end stay in the backlog size, or none.",
        why=_ARTICLE,
    ),
    "closesOnAckOfNoEntry": ProfileRule(
        "An individual ack of the message id -1:-1 costs the client its connection, or has no effect.",
        ("A29", "D12"),
        (("2.10.5", "raw_cum_shared"),),
    ),
    "countsEntriesOfDeletedLedgers": ProfileRule(
        "A new subscription at the earliest message of a trimmed topic begins with deleted messages in its backlog, or without.",
        ("B3",),
        (("2.10.5", "last_message_id"), ("4.2.4", "last_message_id")),
    ),
    "deduplicationChecksLastChunkOnly": ProfileRule(
        "With deduplication, all chunks of a message but the first are dropped as duplicates, or none.",
        ("A25",),
        why=_NOT_RECORDED,
    ),
    "deduplicationReplayCounts": ProfileRule(
        "After a topic is loaded, deduplication takes its next snapshot sooner or later, and ledgers are deleted with it.",
        ("A16",),
        (("2.10.5", "dedup_restart"),),
    ),
    "delayedDeliveryRoundsTimes": ProfileRule(
        "Delayed messages are delivered up to a tick earlier, or at their exact time.",
        ("B14",),
        why=_NOT_RECORDED,
    ),
    "dispatchRateLimiterFactoryClassName": ProfileRule(
        "With a dispatch rate, messages come at other moments, above all after a change of policies.",
        ("A43", "D21"),
        why=_NOT_RECORDED,
    ),
    "fencesProducers": ProfileRule(
        "A producer with ExclusiveWithFencing fences the others out, or is one among them.",
        ("A9",),
        (("2.10.5", "access_fencing"),),
    ),
    "highestProtocolVersion": ProfileRule(
        "Clients use what a newer protocol has, such as watching lists of topics, or do without.",
        ("A23",),
        (("2.10.5", "ack_cumulative"),),
    ),
    "keepOldestPositionWhenUnknown": ProfileRule(
        "Once the oldest ledger is acknowledged, a backlog quota by age goes on refusing producers, or lets them in.",
        ("A4", "D8", "B4"),
        (("2.10.5", "quota_age_exception"), ("4.2.4", "quota_age_exception")),
    ),
    "keepsChunksTogether": ProfileRule(
        "On a Shared subscription, the chunks of a message all go to one consumer, or to several, none of which gets all.",
        ("A30",),
        (("2.10.5", "raw_chunks_resend"),),
    ),
    "closesPendingAcksOfLeaving": ProfileRule(
        "On a Shared subscription, a consumer that left others behind is sent the rest of a chunked message, which nobody there expects, or is not.",
        ("D25",),
        why=_NOT_RECORDED,
    ),
    "keySharedLookAheadMsgInReplayThresholdPerConsumer": ProfileRule(
        "A Key_Shared subscription with slow consumers reads further ahead for the others, or less far.",
        why=f"{_DEFAULT}; {_NOT_RECORDED}",
    ),
    "keySharedLookAheadMsgInReplayThresholdPerSubscription": ProfileRule(
        "A Key_Shared subscription with slow consumers reads further ahead for the others, or less far.",
        recordings=(("4.2.4", "ks_autosplit"),),
        why=_DEFAULT,
    ),
    "keySharedModesMustAgree": ProfileRule(
        "A consumer of Key_Shared with another mode than the connected ones may join, or is refused, with another error.",
        ("A7", "A8", "D4", "D5"),
        (("2.10.5", "sub_keyshared_sticky"),),
    ),
    "keySharedLooksAheadAtEnd": ProfileRule(
        "On a Key_Shared subscription, messages that wait to be sent again go to the new consumer of their key with the next message, or later.",
        ("B16",),
        why=_NOT_RECORDED,
    ),
    "keySharedPassesEntriesThatWait": ProfileRule(
        "On a Key_Shared subscription, a message that waits for a newcomer holds up all others, or not.",
        ("A6",),
        (("2.10.5", "ks_autosplit"),),
    ),
    "keySharedPointsByNameAlone": ProfileRule(
        "Keys belong to other consumers of a Key_Shared subscription.", ("A5",), (("2.10.5", "ks_draining"),)
    ),
    "keySharedRangesByPoint": ProfileRule(
        "Keys belong to other consumers of a Key_Shared subscription, and stats show other hash ranges.",
        ("D2",),
        (("3.0.7", "ks_classic"),),
    ),
    "keySharedRemembersHashes": ProfileRule(
        "When a consumer of Key_Shared leaves, the messages that it held go to the owners of their keys, or all wait for one consumer.",
        ("A37", "D17"),
        why=_NOT_RECORDED,
    ),
    "keySharedSpreadsKeyless": ProfileRule(
        "On a Key_Shared subscription, messages without a key all go to one consumer, or spread over all.",
        ("D3",),
        (("2.10.5", "ks_nokey"),),
    ),
    "leavingConsumerCountsRedelivery": ProfileRule(
        "What a consumer held when it left comes back with a redelivery count one higher, or with the same: dead-letter topics get it "
        "sooner or later.",
        ("A2",),
        (("2.10.5", "ks_autosplit"),),
    ),
    "listsSystemTopics": ProfileRule(
        "Lists of topics have system topics, such as `__change_events`, or only if asked for them.",
        why=f"{_SOURCES}, and docs/rules/versions.md does not number it",
    ),
    "managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis": ProfileRule(
        "A seek by time or a check of TTL finds another message if publish times are out of order.",
        recordings=(("4.2.4", "rnm_ledger5_40"),),
        why="docs/rules/versions.md names it in §1, without an id",
    ),
    "managedLedgerMaxUnackedRangesToPersist": ProfileRule(
        "After a restart, fewer or more messages that were acknowledged out of order come again.",
        why=f"{_DEFAULT}; {_NOT_RECORDED}",
    ),
    "messageExpiryPassesClosedLedgers": ProfileRule(
        "Messages with publish times in the future expire with their ledger, or not before their time.",
        ("A28",),
        why=_SOURCES,
    ),
    "messageExpiryOnEachPolicyUpdate": ProfileRule(
        "After a change of another policy than the TTL, messages that are too old go at once, or at the next check.",
        ("B17",),
        why=_NOT_RECORDED,
    ),
    "messageExpirySharedPosition": ProfileRule(
        "With a TTL, all subscriptions expire up to one position, or each by itself: then one with a consumer and a backlog below 1,000 entries "
        "waits until its oldest message is 1.5 times as old as the TTL.",
        ("A24", "D6"),
        (("4.2.4", "ttl_last_acked"),),
    ),
    "messageExpiryStopsAtOpenLedger": ProfileRule(
        "With a TTL, a position behind the last closed ledger is another one.", why=_ARTICLE
    ),
    "messageExpiryThroughCursor": ProfileRule(
        "A call of expireMessages expires more messages or fewer, and with a time of 0 all or none.",
        ("B6", "B7"),
        (("2.10.5", "ttl_last_acked"), ("4.2.4", "ttl_last_acked")),
    ),
    "metadataWithoutAutoCreation": ProfileRule(
        "A client that asks about an absent topic without creating it is told that it does not exist, or that it has no partitions.",
        ("A20",),
        (("3.0.7", "dlq_retry_letter"),),
    ),
    "missingAdminCalls": ProfileRule(
        "Calls of the admin API that are in this list are answered with 404 or 405.",
        ("A21", "B13"),
        (("2.10.5", "retention_infinite"),),
    ),
    "missingAdminFields": ProfileRule(
        "Answers of the admin API lack the fields in this list.",
        ("A40",),
        why="recordings leave these fields out; tests/server/admin_fields.json has those of each release",
    ),
    "moveCursorOverConsumedLedger": ProfileRule(
        "The mark-delete position of a subscription that has acknowledged a whole ledger is in the next one, or stays at its end.",
        ("B2a", "B2b"),
        (("2.10.5", "dedup_unload"), ("4.2.4", "dedup_unload")),
    ),
    "nonPersistentCountsUnacked": ProfileRule(
        "`unackedMessages` of a non-persistent topic counts what consumers were sent, or is 0.",
        ("A17",),
        (("2.10.5", "np_permits"),),
    ),
    "nonPersistentKeepsPermits": ProfileRule(
        "Consumers of Shared on a non-persistent topic get messages, or lose them, after another one has left with permits or below 0.",
        ("B15",),
        why="no recording shows it",
    ),
    "nonPersistentSubscriptionsStay": ProfileRule(
        "A subscription of a non-persistent topic stays, with its counters, when its last consumer leaves, or goes.",
        ("A18", "D14"),
        (("2.10.5", "np_basic"),),
    ),
    "opensLedgerAtOnce": ProfileRule(
        "After a full ledger, the next one opens at once or with the next message, and ledgers are deleted sooner or later.",
        ("A12", "A13"),
        (("2.10.5", "q_reader"),),
    ),
    "opensLedgerOfTerminated": ProfileRule(
        "A terminated topic that is loaded again deletes consumed ledgers, or keeps them.",
        ("A41", "D20"),
        (("4.0.7", "raw_term_unload"),),
    ),
    "partitionsMustIncrease": ProfileRule(
        "A call that gives a partitioned topic the number of partitions that it has succeeds, or is refused with 409.",
        ("A44",),
        why=_NOT_RECORDED,
    ),
    "passedBatchesAreForgotten": ProfileRule(
        "`unackedMessages` of a reader goes down by a whole batch or by what was left of it, if the broker had passed the batch.",
        ("A39", "D18"),
        why=_NOT_RECORDED,
    ),
    "passedEntriesStayPending": ProfileRule(
        "Messages that expired or were skipped while a consumer held them count in `unackedMessages` until its ack, or not.",
        ("D10",),
        (("4.2.4", "ttl_unacked"),),
    ),
    "promotesBehindSharedProducers": ProfileRule(
        "A producer that waits for exclusive access behind shared ones gets it when they have left, or waits for ever.",
        ("A10", "D11"),
        why=_NOT_RECORDED,
    ),
    "readerStartsAtItsPosition": ProfileRule(
        "Internal stats show another mark-delete position of a reader that has read nothing.",
        ("A35",),
        why=_NOT_RECORDED,
    ),
    "readsByLedgerSizes": ProfileRule(
        "The first messages of a topic are sent one by one, or many at a time.",
        ("A19", "B11", "D13", "D15"),
        (("3.0.7", "rnd_ledger5_1"),),
    ),
    "readsOnInClosedLedger": ProfileRule(
        "Internal stats show the read position at the end of a closed ledger, or at the beginning of the next one.",
        ("A15",),
        (("2.10.5", "dedup_unload"),),
    ),
    "readsWithoutLedgers": ProfileRule(
        "Consumers of a terminated topic without messages are told that they have reached the end, or not.",
        ("B11",),
        why=_NOT_RECORDED,
    ),
    "lastMessageIdOfTerminatedCloses": ProfileRule(
        "A client that asks for the last message of a terminated topic that was loaded again loses its connection, or gets an error.",
        ("A50",),
        why=_NOT_RECORDED,
    ),
    "forceUnsubscribes": ProfileRule(
        "A consumer that unsubscribes by force takes the subscription from the others, or gets an error.",
        ("A52", "D27"),
        why=_NOT_RECORDED,
    ),
    "unsubscribeOfReaderFails": ProfileRule(
        "A reader that unsubscribes gets an error, or none. It is gone all the same.",
        ("A49",),
        why=_NOT_RECORDED,
    ),
    "refusedConsumerLeavesSubscription": ProfileRule(
        "A consumer that maxConsumersPerTopic refuses leaves its subscription behind, which keeps messages, or nothing.",
        ("A38",),
        why=_NOT_RECORDED,
    ),
    "refusedCumulativeAckIsAnError": ProfileRule(
        "A cumulative ack of what is acknowledged already gets an error, if the client waits for an answer, or none.",
        ("C1",),
        (("4.2.4", "ack_receipt"), ("5.0.0-M1", "ack_receipt")),
    ),
    "removePendingAcksOnMarkDeleteMove": ProfileRule(
        "Messages that expired or were skipped count in `unackedMessages` of the consumer that holds them until its ack, or no longer.",
        ("B1", "B10"),
        (("4.2.4", "ttl_unacked"),),
    ),
    "retentionCheckEveryTopic": ProfileRule(
        "Consumed ledgers of a topic without retention are deleted by the periodic check, too, or not.",
        why=_ARTICLE,
    ),
    "retentionKeepsEmptyTopics": ProfileRule(
        "Retention keeps an inactive topic that is empty, or the topic is deleted.",
        ("A46", "D23"),
        why=_NOT_RECORDED,
    ),
    "retentionWithoutDurableCursor": ProfileRule(
        "Retention keeps the messages of a topic that has no durable subscription, or they are deleted.",
        why=_ARTICLE,
    ),
    "seekCountsConsumedAnew": ProfileRule(
        "`messagesConsumedCounter` of internal stats begins again with a seek, or goes on.",
        ("B5",),
        (("2.10.5", "seek_ends"), ("4.2.4", "seek_ends")),
    ),
    "subscriptionKeySharedUseClassicPersistentImplementation": ProfileRule(
        "A consumer that joins a Key_Shared subscription waits until all older messages are acknowledged, or those of its keys alone.",
        ("D1",),
        (("2.10.5", "ks_autosplit"),),
    ),
    "topicCompactionRetainNullKey": ProfileRule(
        "Compaction keeps messages without a key, or removes them.",
        ("A51", "D26"),
        why=_SOURCES,
    ),
    "trimLedgerAckedToItsEnd": ProfileRule(
        "A ledger that every subscription has acknowledged to its end is deleted, or stays until a later one is read.",
        why=_ARTICLE,
    ),
    "trimMovesToNextLedger": ProfileRule(
        "Internal stats show the cursor of a reader whose messages are deleted before the next ledger, or at the end of the old one.",
        ("A48",),
        (("2.10.5", "q_reader"),),
    ),
    "trimsLedgerOfSlowestPosition": ProfileRule(
        "A ledger that is acknowledged to its end is deleted at once, or when the next one opens or the topic is loaded.",
        ("A14",),
        (("2.10.5", "ttl_unload"),),
    ),
    "turnsCountMessages": ProfileRule(
        "On a Shared subscription, batches are dealt to the consumers differently.",
        ("A33", "D16"),
        (("4.0.7", "rnd_ledger5_5"),),
    ),
    "unblocksConsumerOneAckLate": ProfileRule(
        "A consumer that reached `maxUnackedMessagesPerConsumer` goes on an ack earlier or later, and with a limit of 1 not at all.",
        ("D9",),
        (("2.10.5", "un_redeliver"), ("3.0.7", "un_redeliver")),
    ),
    "unsetAffinityIs204": ProfileRule(
        "GET of an affinity that a namespace does not have is answered with 204, or with 200 without a body.",
        ("B12",),
        why=_NOT_RECORDED,
    ),
    "unsetNamespacePoliciesAre204": ProfileRule(
        "GET of a policy that a namespace does not set is answered with 204, or with 200 without a body.",
        ("A36",),
        why=_NOT_RECORDED,
    ),
    "useRecreatesPartitions": ProfileRule(
        "Where topics are not created automatically, clients bring back a partition that was deleted, or are refused.",
        ("A45", "D22"),
        why=_SOURCES,
    ),
    "waitingReadsReturnEntries": ProfileRule(
        "Messages that come when no consumer has permits are read at once and wait, or are read later.",
        ("A34", "B9"),
        (("3.0.7", "rnd_ledger5_1"),),
    ),
}
"""By setting: each one whose default differs between two profiles."""
