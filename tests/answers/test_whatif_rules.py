"""`magnetar whatif --profile`: which rules and defaults of another version make the differences."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from streaming.answers.profile_rules import PROFILE_RULES
from streaming.answers.whatif.answer import BASELINE, RuleMet, WhatIf
from streaming.answers.whatif.compare import whatif
from streaming.broker.config import LINES, changes
from streaming.broker.dispatch.murmur3 import murmur3_31
from streaming.cli.app import app
from streaming.jobs.replay import replay
from streaming.log.table import LogError
from streaming.traces import RECORDED
from streaming.traces.importer import import_traces
from tests.answers.test_whatif import (
    FIVE,
    START,
    Record,
    T,
    equal_to_a_replay,
    flow,
    publish,
    rows_of,
    subscribe,
    table,
    tick,
)
from tools.versions import recordings

RECORDINGS = {
    "activeConsumerFailoverFirstConnected": ("3.0", 3),
    "adminMessageIdsNameBatch": ("3.0", 0),
    "closesOnAckOfNoEntry": ("4.0", 0),
    "countsEntriesOfDeletedLedgers": ("4.2", 0),
    "deduplicationReplayCounts": ("3.0", 0),
    "fencesProducers": ("3.0", 0),
    "keepOldestPositionWhenUnknown": ("4.0", 0),
    "keepsChunksTogether": ("3.0", 4),
    "keySharedModesMustAgree": ("4.0", 0),
    "keySharedPassesEntriesThatWait": ("3.0", 13),
    "keySharedPointsByNameAlone": ("4.0", 16),
    "keySharedSpreadsKeyless": ("4.0", 6),
    "leavingConsumerCountsRedelivery": ("3.0", 4),
    "managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis": ("3.0", 2),
    "messageExpirySharedPosition": ("3.0", 2),
    "messageExpiryThroughCursor": ("4.2", 11),
    "missingAdminCalls": ("3.0", 0),
    "moveCursorOverConsumedLedger": ("4.2", 0),
    "nonPersistentSubscriptionsStay": ("4.0", 0),
    "opensLedgerAtOnce": ("3.0", 14),
    "passedEntriesStayPending": ("3.0", 2),
    "readsByLedgerSizes": ("4.0", 3),
    "readsOnInClosedLedger": ("3.0", 0),
    "refusedCumulativeAckIsAnError": ("5.0", 0),
    "removePendingAcksOnMarkDeleteMove": ("3.0", 2),
    "seekCountsConsumedAnew": ("4.2", 0),
    "subscriptionKeySharedUseClassicPersistentImplementation": ("4.0", 16),
    "trimsLedgerOfSlowestPosition": ("3.0", 0),
    "turnsCountMessages": ("3.0", 1),
    "unblocksConsumerOneAckLate": ("3.0", 6),
    "waitingReadsReturnEntries": ("4.2", 0),
}
"""By setting: the profile with which its first recording (`PROFILE_RULES`) is compared, and how many messages are affected by it alone."""

NP = "non-persistent://a/b/np"


def producer(second: int, name: str, id_: int, access: str) -> Record:
    return second, T, {"command": "PRODUCER", "connection": name, "producer_id": id_, "request_id": id_,
                       "producer_name": name, "producer_access_mode": access}  # fmt: skip


def member(id_: int, name: str, permits: int) -> list[Record]:
    """A consumer of a Key_Shared subscription, with its first FLOW."""
    permitted = (1, T, {"command": "FLOW", "connection": "s", "consumer_id": id_, "messagePermits": permits})
    return [
        subscribe(1, type_="Key_Shared", consumer_id=id_, consumer_name=name),
        *([permitted] if permits else []),
    ]


def acked(second: int, entry: int) -> Record:
    return second, T, {"command": "ACK", "connection": "s", "consumer_id": 1, "ack_type": "Individual",
                       "message_id": [{"ledgerId": 1, "entryId": entry}]}  # fmt: skip


def called(second: int, call: str, method: str = "POST") -> Record:
    return second, T, {"command": "ADMIN", "method": method, "path": f"/persistent/a/b/t/{call}"}


TERMINATED = [
    subscribe(),
    publish(1, 0),
    called(2, "unload", "PUT"),
    called(3, "terminate"),
    called(4, "unload", "PUT"),
    called(5, "subscription/s/skip_all"),
]
"""Its end is in a ledger without entries."""


def send(second: int, sequence_id: int, **metadata: Any) -> Record:
    """A SEND by the producer 1. `metadata` adds to its MessageMetadata."""
    fields = {
        "producer_name": "p",
        "sequence_id": sequence_id,
        "publish_time": START + 1000 * second,
    } | metadata
    return second, T, {"command": "SEND", "connection": "p", "producer_id": 1, "sequence_id": sequence_id, "metadata": fields,
                       "num_messages": metadata.get("num_messages_in_batch", 1), "highest_sequence_id": metadata.get("highest_sequence_id"),
                       "is_chunk": "chunk_id" in metadata, "payload": "x" * 40}  # fmt: skip


def joined(name: str, permits: int) -> list[Record]:
    """A consumer of Shared on a non-persistent topic, with its first FLOW."""
    return [
        (
            1,
            NP,
            {
                "command": "SUBSCRIBE",
                "connection": name,
                "consumer_id": 1,
                "request_id": 1,
                "subscription": "s",
                "subType": "Shared",
            },
        ),
        (1, NP, {"command": "FLOW", "connection": name, "consumer_id": 1, "messagePermits": permits}),
    ]


LOGS: dict[str, tuple[list[Record], str, str, dict[str, Any]]] = {
    # A multiple of 512 ms, the largest power of two in a tick, comes before the third second, its time after it.
    "delayedDeliveryRoundsTimes": (
        [
            subscribe(),
            flow(0, 1),
            publish(1, 0, deliver_at_time=START + 3_050),
            tick(3),
            tick(4),
        ],
        "4.0", "4.2", {"open_loop_baseline": "nothing"},
    ),
    # Nobody holds the entry, and its ack counts nonetheless.
    "ackOfAnyEntryLowersUnacked": ([subscribe(), publish(1, 0), acked(2, 0)], "2.10", "3.0", {"other_stats": "unackedMessages"}),
    # One consumer has all of the ring: from 0, or from 1.
    "keySharedRangesByPoint": ([subscribe(type_="Key_Shared")], "3.0", "4.0", {"other_stats": "keyHashRanges"}),
    # A consumer leaves without permits, and what waits for it could go to the other one.
    "keySharedLooksAheadAtEnd": (
        [
            *member(1, "a", 100),
            *member(2, "b", 0),
            publish(1, 0, key="5"),
            (2, T, {"command": "CLOSE_CONSUMER", "connection": "s", "consumer_id": 2, "request_id": 2}),
            publish(3, 1, key="5"),
        ],
        "4.2", "5.0", {"open_loop_baseline": "sent to s"},
    ),
    # A consumer leaves with what it has got. Beside it, and of what comes back, each has one permit.
    "keySharedRemembersHashes": (
        [
            *member(1, "a", 100),
            *(publish(1, number, key=str(number)) for number in range(20)),
            *member(2, "b", 0),
            (2, T, {"command": "CLOSE_CONSUMER", "connection": "s", "consumer_id": 1, "request_id": 2}),
            *member(1, "a", 0),
            *((3, T, {"command": "FLOW", "connection": "s", "consumer_id": id_, "messagePermits": 1}) for id_ in (2, 1)),
        ],
        "3.0", "4.0", {"open_loop_baseline": "sent to s"},
    ),
    # It got the first chunk of a message and leaves another one behind, on the same connection.
    "closesPendingAcksOfLeaving": (
        [
            producer(0, "p", 1, "Shared"),
            subscribe(1, type_="Shared"),
            flow(1, permits=9),
            send(1, 0, uuid="p-0", chunk_id=0, num_chunks_from_msg=2),
            (2, T, {"command": "SUBSCRIBE", "connection": "s", "subscription": "s", "subType": "Shared", "consumer_id": 2, "request_id": 2}),
            (2, T, {"command": "CLOSE_CONSUMER", "connection": "s", "consumer_id": 1, "request_id": 3}),
            (2, T, {"command": "FLOW", "connection": "s", "consumer_id": 2, "messagePermits": 9}),
            send(3, 0, uuid="p-0", chunk_id=1, num_chunks_from_msg=2),
        ],
        "3.0", "4.0", {"open_loop_baseline": "sent to s"},
    ),
    # Ten seconds later than the policy allows, by a producer of the long form.
    "limitsDeliveryDelays": (
        [
            (0, None, {"command": "ADMIN", "method": "POST", "path": "/namespaces/a/b/delayedDelivery",
                       "body": {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 1000}}),
            producer(0, "p", 1, "Shared"),
            send(1, 0, deliver_at_time=START + 12_000),
        ],
        "3.0", "4.0", {"open_loop_baseline": "stored"},
    ),
    # No one asked for this topic to be created.
    "metadataWithoutAutoCreation": (
        [(1, T, {"command": "PARTITIONED_METADATA", "connection": "c", "request_id": 1, "metadata_auto_creation_enabled": False})],
        "2.10", "3.0", {"open_loop_baseline": "PARTITIONED_METADATA_RESPONSE"},
    ),
    "nonPersistentCountsUnacked": (
        [
            (0, NP, {"command": "SUBSCRIBE", "connection": "s", "consumer_id": 1, "request_id": 1, "subscription": "s",
                     "subType": "Shared"}),
            (0, NP, {"command": "FLOW", "connection": "s", "consumer_id": 1, "messagePermits": 9}),
            (1, NP, {"producer": "p", "sequence_id": 0, "payload": "x"}),
        ],
        "2.10", "3.0", {"other_stats": "unackedMessages"},
    ),
    # A batch of three leaves the first consumer at −2, one with 9 permits leaves, and the last one has 1.
    "nonPersistentKeepsPermits": (
        [
            (0, NP, producer(0, "p", 1, "Shared")[2]),
            *joined("a", 1),
            (1, NP, send(1, 0, num_messages_in_batch=3)[2]),
            *joined("b", 9),
            *joined("c", 1),
            (1, NP, {"command": "CLOSE_CONSUMER", "connection": "b", "consumer_id": 1, "request_id": 2}),
            (2, NP, send(2, 3)[2]),
        ],
        "4.0", "4.2", {"other_stats": "msgOutCounter"},
    ),
    "forceUnsubscribes": (
        [
            subscribe(type_="Shared"),
            subscribe(type_="Shared", consumer_id=2),
            (1, T, {"command": "UNSUBSCRIBE", "connection": "s", "consumer_id": 1, "request_id": 2, "force": True}),
        ],
        "3.0", "4.0", {"open_loop_baseline": "attempting to unsubscribe"},
    ),
    "unsubscribeOfReaderFails": (
        [
            subscribe(durable=False),
            (1, T, {"command": "UNSUBSCRIBE", "connection": "s", "consumer_id": 1, "request_id": 2}),
        ],
        "2.10", "3.0", {"open_loop_baseline": "ManagedCursor not found"},
    ),
    "lastMessageIdOfTerminatedCloses": (
        [
            publish(1, 0),
            called(2, "terminate"),
            called(3, "unload", "PUT"),
            subscribe(4),
            (5, T, {"command": "GET_LAST_MESSAGE_ID", "connection": "s", "consumer_id": 1, "request_id": 2}),
        ],
        "2.10", "3.0", {"open_loop_baseline": "CLOSE_CONNECTION"},
    ),
    "refusedConsumerLeavesSubscription": (
        [
            (0, None, {"command": "ADMIN", "method": "POST", "path": "/namespaces/a/b/maxConsumersPerTopic", "body": 1}),
            subscribe(1),
            subscribe(2, "t"),
        ],
        "2.10", "3.0", {"other_stats": "t"},
    ),
    "promotesBehindSharedProducers": (
        [
            producer(1, "a", 1, "Shared"),
            producer(2, "b", 2, "WaitForExclusive"),
            (3, T, {"command": "CLOSE_PRODUCER", "connection": "a", "producer_id": 1, "request_id": 3}),
        ],
        "3.0", "4.0", {"open_loop_baseline": "nothing"},
    ),
    "unsetNamespacePoliciesAre204": (
        [(1, None, {"command": "ADMIN", "method": "GET", "path": "/namespaces/a/b/retention"})],
        "2.10", "3.0", {"answered_otherwise": "1"},
    ),
    "listsSystemTopics": (
        [
            (1, "persistent://a/b/__change_events", {"producer": "p", "sequence_id": 0, "payload": "x"}),
            (2, None, {"command": "ADMIN", "method": "GET", "path": "/namespaces/a/b/topics"}),
        ],
        "2.10", "3.0", {"answered_otherwise": "1"},
    ),
    "unsetAffinityIs204": (
        [(1, None, {"command": "ADMIN", "method": "GET", "path": "/namespaces/a/b/antiAffinity"})],
        "4.0", "4.2", {"answered_otherwise": "1"},
    ),
    # A policy changes after the first of two messages, of which a minute allows one.
    "dispatchRateLimiterFactoryClassName": (
        [
            (0, None, {"command": "ADMIN", "method": "POST", "path": "/namespaces/a/b/dispatchRate",
                       "body": {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 60}}),
            subscribe(1),
            flow(1, 9),
            publish(2, 0),
            publish(2, 1),
            (3, None, {"command": "ADMIN", "method": "POST", "path": "/namespaces/a/b/maxConsumersPerTopic", "body": 5}),
            publish(6, 2),
        ],
        "3.0", "4.0", {"open_loop_baseline": "nothing"},
    ),
    # A terminated topic is loaded again, and nobody needs its messages any more.
    "opensLedgerOfTerminated": (TERMINATED, "3.0", "4.0", {"other_stats": "numberOfEntries"}),
    "backlogSizeOfMissingLedgerIsAll": (TERMINATED, "2.10", "3.0", {"other_stats": "backlogSize"}),
    # A terminated topic that never had a message is loaded again.
    "readsWithoutLedgers": (
        [
            producer(0, "p", 1, "Shared"),
            called(1, "terminate"),
            called(1, "unload", "PUT"),
            subscribe(2, initialPosition="Latest"),
            flow(2, 1),
        ],
        "4.0", "4.2", {"open_loop_baseline": "nothing"},
    ),
    # Nobody uses the topic, which is empty, for longer than a minute, but not for as long as its retention.
    "retentionKeepsEmptyTopics": (
        [
            (0, None, {"command": "ADMIN", "method": "POST", "path": "/namespaces/a/b/retention",
                       "body": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}}),
            (0, T, {"command": "ADMIN", "method": "PUT", "path": "/persistent/a/b/t"}),
            (300, "persistent://a/b/other", {"producer": "p", "sequence_id": 0, "payload": "x"}),
        ],
        "3.0", "4.0", {"other_stats": "internal, stats"},
    ),
    # The mark-delete position is in the middle of the messages, or before them.
    "readerStartsAtItsPosition": (
        [
            publish(1, 0),
            subscribe(2, durable=False, start_message_id={"ledgerId": 0, "entryId": 7}),
        ],
        "2.10", "3.0", {"other_stats": "markDeletePosition"},
    ),
}  # fmt: skip
"""By setting: a log that meets it, its profile, that to compare with, and what the summary says of a topic."""


class Case(NamedTuple):
    """The smallest log that meets a rule. From the rule alone: how many messages differ how, by change; which figures of the topic (None) or a
    subscription differ, in the baseline and under the other profile, but for sizes; a field of stats that differs; and what a client sees first in both."""

    before: str
    after: str
    records: list[Record]
    settings: Mapping[str, Any] = MappingProxyType({})
    differences: Mapping[str, int] = MappingProxyType({})
    figures: Mapping[tuple[str | None, str], tuple[int, int]] = MappingProxyType({})
    stat: str | None = None
    sees: tuple[str, str] | None = None


NO_CHECKS = {"backlogQuotaCheckIntervalInSeconds": 0, "messageExpiryCheckIntervalInMinutes": 0}
FIRST = f"{T}-partition-0"
PARTITIONS = "/persistent/a/b/t/partitions"


def quota(limit: int, policy: str) -> Record:
    path = "/persistent/a/b/t/backlogQuota?backlogQuotaType=destination_storage"
    return (
        0,
        T,
        {"command": "ADMIN", "method": "POST", "path": path, "body": {"limitSize": limit, "policy": policy}},
    )


def check(second: int, name: str) -> Record:
    return second, None, {"command": "RUN_CHECK", "check": name}


def fault(second: int, name: str) -> Record:
    return second, T, {"command": "FAULT", "fault": name, "count": 1}


def of_partitions(method: str, count: int) -> Record:
    return 1, None, {"command": "ADMIN", "method": method, "path": PARTITIONS, "body": count}


def batch(second: int, sequence_id: int) -> Record:
    """A SEND of two messages."""
    return send(second, sequence_id, highest_sequence_id=sequence_id + 1, num_messages_in_batch=2)


def acked_up_to(second: int, ledger: int, entry: int) -> Record:
    return second, T, {"command": "ACK", "connection": "s", "consumer_id": 1, "ack_type": "Cumulative",
                       "message_id": [{"ledgerId": ledger, "entryId": entry}]}  # fmt: skip


def acked_second(second: int) -> Record:
    """An ack of the second message of the batch 1:0; the first one is left."""
    return second, T, {"command": "ACK", "connection": "s", "consumer_id": 1, "ack_type": "Individual",
                       "message_id": [{"ledgerId": 1, "entryId": 0, "ack_set": [1], "batch_size": 2}]}  # fmt: skip


CASES: dict[str, Case] = {
    # Of three chunks with one id, 2.10 stores the first one. The others are duplicates.
    "deduplicationChecksLastChunkOnly": Case(
        "2.10", "3.0",
        [
            producer(0, "p", 1, "Shared"),
            subscribe(),
            *(send(1, 7, uuid="p-7", chunk_id=chunk, num_chunks_from_msg=3) for chunk in range(3)),
        ],
        {"brokerDeduplicationEnabled": True},
        {"unknown": 2},
        {(None, "stored"): (1, 3), (None, "duplicates"): (2, 0), (None, "backlog"): (1, 3), ("s", "backlog"): (1, 3), ("s", "peak_backlog"): (1, 3)},
        sees=("sequence id 7 of p: a duplicate", "sequence id 7 of p: stored"),
    ),
    # Only deduplication's cursor is behind. 2.10 closes the producer, for the 20 s until the end; 3.0 takes a snapshot, and its cursor moves.
    "backlogQuotaSparesProducersForDedupCursor": Case(
        "2.10", "3.0",
        [
            quota(1, "producer_exception"),
            producer(0, "p", 1, "Shared"),
            subscribe(),
            send(1, 0),
            acked(2, 0),
            check(10, "backlogQuota"),
            tick(30),
        ],
        NO_CHECKS | {"brokerDeduplicationEnabled": True},
        {},
        {(None, "closed_producers"): (1, 0), (None, "held"): (20_000, 0)},
        "markDeletePosition",
        ("CLOSE_PRODUCER: backlog quota exceeded", "nothing"),
    ),
    # A client's clock is a day ahead. Its first two messages fill a ledger, which has been closed for longer than the TTL.
    # Nobody consumes: a connected consumer's few messages would be left alone.
    "messageExpiryOnEachPolicyUpdate": Case(
        "4.2", "5.0",
        [
            (0, T, {"command": "ADMIN", "method": "POST", "path": "/persistent/a/b/t/messageTTL", "body": 100}),
            subscribe(),
            publish(200, 0, publish_time=START),
            (201, T, {"command": "ADMIN", "method": "POST", "path": "/persistent/a/b/t/maxConsumers", "body": 5}),
        ],
        NO_CHECKS, {"lost newly": 1}, {("s", "expired"): (0, 1), ("s", "lost_undelivered"): (0, 1), ("s", "oldest"): (201_000, 0),
         ("s", "peak_oldest"): (201_000, 200_000), ("s", "backlog"): (1, 0), (None, "backlog"): (1, 0)},
    ),
    "messageExpiryPassesClosedLedgers": Case(
        "2.10", "3.0",
        [
            (0, T, {"command": "ADMIN", "method": "POST", "path": "/persistent/a/b/t/messageTTL", "body": 100}),
            subscribe(),
            *(publish(second, second, publish_time=START + 86_400_000) for second in (1, 2, 3)),
            (4, T, {"command": "CLOSE_CONSUMER", "connection": "s", "consumer_id": 1, "request_id": 2}),
            check(200, "messageExpiry"),
        ],
        NO_CHECKS | {"managedLedgerMaxEntriesPerLedger": 2},
        {"lost newly": 2},
        {("s", "expired"): (0, 2), ("s", "lost_undelivered"): (0, 2), ("s", "backlog"): (3, 1), (None, "backlog"): (3, 1)},
    ),
    # A subscription has acked all of three messages, so the ledger of the first two goes. A reader at its begin goes on before the third one:
    # at 2:-1, or at 1:1, behind the same two messages.
    "trimMovesToNextLedger": Case(
        "2.10", "3.0",
        [
            subscribe(0, "s", "Exclusive"),
            subscribe(0, "r", "Exclusive", durable=False, start_message_id={"ledgerId": -1, "entryId": -1}),
            *(publish(1, number) for number in range(3)),
            acked_up_to(2, 2, 0),
        ],
        {"managedLedgerMaxEntriesPerLedger": 2},
        stat="markDeletePosition",
    ),
    # A reader holds three messages and acks one of a batch, which a trim then passes. Of the ack of the whole batch, 3.0 counts both messages,
    # 4.0 the one that was left: 0 or 1 of its messages are unacked.
    "passedBatchesAreForgotten": Case(
        "3.0", "4.0",
        [
            producer(0, "p", 1, "Shared"),
            subscribe(durable=False, start_message_id={"ledgerId": -1, "entryId": -1}),
            flow(0, 9),
            batch(1, 0),
            acked_second(2),
            publish(3, 2),
            acked(4, 0),
        ],
        {
            "managedLedgerMaxEntriesPerLedger": 2,
            "acknowledgmentAtBatchIndexLevelEnabled": True,
            "passedEntriesStayPending": True,
            "trimAtRolloverSparesClosedLedger": False,
        },
        stat="unackedMessages",
    ),
    # As many partitions as there are: 409, or 204.
    "partitionsMustIncrease": Case(
        "2.10", "3.0", [of_partitions("PUT", 3), of_partitions("POST", 3)], figures={(None, "answered_otherwise"): (0, 1)}
    ),
    # A partition was deleted, and use creates no topics. A producer that comes creates it from 4.0 on.
    "useRecreatesPartitions": Case(
        "3.0", "4.0",
        [
            of_partitions("PUT", 1),
            (2, FIRST, {"command": "ADMIN", "method": "PUT", "path": "/persistent/a/b/t-partition-0"}),
            (3, FIRST, {"command": "ADMIN", "method": "DELETE", "path": "/persistent/a/b/t-partition-0"}),
            (4, FIRST, producer(4, "p", 1, "Shared")[2]),
        ],
        {"allowAutoTopicCreation": False},
        stat="stats",
        sees=(f"ERROR: Topic {FIRST} does not exist", "PRODUCER_SUCCESS"),
    ),
    # Two entries of 62 bytes under a quota of 69, of which 0.9 are 62.1. 3.0 skips (124 - 62.1) / 124 * 2 = 0.998 entries, so none. 4.0 has
    # the target 62, and skips (124 - 62) * 2 / 124 = 1.
    "backlogQuotaSkipByFactor": Case(
        "3.0", "4.0",
        [quota(69, "consumer_backlog_eviction"), subscribe(), publish(1, 0), publish(1, 1), check(10, "backlogQuota")],
        NO_CHECKS,
        {"lost newly": 1},
        {("s", "evicted"): (0, 1), ("s", "lost_undelivered"): (0, 1), ("s", "backlog"): (2, 1), (None, "backlog"): (2, 1)},
    ),
    # Four entries of 62 bytes under a quota of 100: (248 - 90) / 248 * 4 = 2.5, so two go. A write has failed while another one waits, so the
    # topic is fenced, and 4.0 skips it.
    "backlogQuotaSkipsFencedTopics": Case(
        "3.0", "4.0",
        [
            quota(100, "consumer_backlog_eviction"),
            subscribe(),
            *(publish(1, number) for number in range(4)),
            fault(2, "DelayWrites"),
            publish(2, 4),
            fault(2, "FailWrites"),
            publish(2, 5),
            check(10, "backlogQuota"),
        ],
        NO_CHECKS,
        {"saved": 2},
        {("s", "evicted"): (2, 0), ("s", "lost_undelivered"): (2, 0), ("s", "backlog"): (2, 4), (None, "backlog"): (2, 4)},
    ),
    # One of the two messages of a batch is acked. 4.2 keeps that: the next consumer holds one message, not two.
    "acknowledgmentAtBatchIndexLevelEnabled": Case(
        "4.0", "4.2",
        [
            producer(0, "p", 1, "Shared"),
            subscribe(),
            flow(0, 9),
            batch(1, 0),
            acked_second(2),
            (3, T, {"command": "CLOSE_CONSUMER", "connection": "s", "consumer_id": 1, "request_id": 2}),
            subscribe(4),
            flow(4, 9),
        ],
        stat="unackedMessages",
        sees=("sequence id 0 sent to s", "sequence id 0 sent to s"),
    ),
}  # fmt: skip
"""By setting: what the advisor has to find in a log that meets it and nothing else."""


def look_ahead(waiting: int, consumers: int) -> list[Record]:
    """So many messages wait for the slot of a consumer without permits, beside `consumers` - 1 others. One more is for the only consumer that
    has a permit."""
    slot = murmur3_31(b"slow") % 65536
    fast = next(key for key in map(str, range(1000)) if 0 < murmur3_31(key.encode()) % 65536 < slot)
    ranges = [(1, slot - 1), *((each, each) for each in range(slot, slot + consumers - 1))]
    return [
        *(subscribe(type_="Key_Shared", consumer_id=id_, consumer_name=str(id_),
                    keySharedMeta={"keySharedMode": "STICKY", "hashRanges": [{"start": first, "end": last}]})
          for id_, (first, last) in enumerate(ranges, 1)),
        flow(0, 1),
        *(publish(1, number, key="slow") for number in range(waiting)),
        publish(2, waiting, key=fast),
    ]  # fmt: skip


def loaded_again(holes: int) -> list[Record]:
    """Every second message is acked, and the topic is unloaded, and loaded again by the next call."""
    acked = [{"ledgerId": 1, "entryId": entry} for entry in range(1, 2 * holes, 2)]
    return [
        subscribe(),
        *(publish(1, number) for number in range(2 * holes)),
        (
            2,
            T,
            {
                "command": "ACK",
                "connection": "s",
                "consumer_id": 1,
                "ack_type": "Individual",
                "message_id": acked,
            },
        ),
        called(3, "unload", "PUT"),
        called(4, "subscriptions", "GET"),
    ]


LARGE: dict[str, Callable[[], Case]] = {
    # 4.2 keeps the first 10,001 acks, 5.0 all of them.
    "managedLedgerMaxUnackedRangesToPersist": lambda: Case(
        "4.2", "5.0", loaded_again(10_003), {}, {"unknown": 2},
        {("s", "acked"): (10_001, 10_003), ("s", "backlog"): (10_005, 10_003), (None, "backlog"): (10_005, 10_003)},
        "individuallyDeletedMessages",
    ),
    # Two consumers: 4,000 or 8,000 messages may wait before nothing new is read. A read may go beyond that by 100.
    "keySharedLookAheadMsgInReplayThresholdPerConsumer": lambda: Case(
        "4.2", "5.0", look_ahead(4200, 2), {}, {"redelivered": 1}, {("s", "dispatched"): (0, 1)}, "readPosition",
        ("nothing", "sequence id 4200 sent to s"),
    ),
    # Eleven consumers: 20,000 in all; or, if 40,000 may wait, 22,000 by the limit per consumer.
    "keySharedLookAheadMsgInReplayThresholdPerSubscription": lambda: Case(
        "4.2", "5.0", look_ahead(21_000, 11), {}, {"redelivered": 1}, {("s", "dispatched"): (0, 1)}, "readPosition",
        ("nothing", "sequence id 21000 sent to s"),
    ),
}  # fmt: skip
"""By setting: as `CASES`, for rules that only show beyond many messages."""

_SIZES_AND_STATS = {"storage", "peak_storage", "other_stats"}

_PERMITTED = "a log has only what was permitted"

ELSEWHERE = {
    "highestProtocolVersion": "no command of a log is answered with it",
    "missingAdminFields": "the rows of a log have the fields of 4.0",
    "publishRatesInWindows": "a rate delays no message of a log: rows say whom a broker would have read no more",
    "adminCallsAskByOperation": _PERMITTED,
    "originalPrincipalsAreAsked": _PERMITTED,
    **dict.fromkeys(
        ("compactedBatchesNameMessages", "compactedDataGoesWithSubscription", "compactedReadsTakeOneMore", "compactionCountsMetadata",
         "compactionCountsSingleMessages", "compactionSeekKeepsMarkDelete", "compactionSubscriptionExpires", "durableReadsBeginAnew", "lastMessageIdIsReadable", "compactionNeedsNewMessages", "compactionSeesNullValues",
         "findsCompactedByTime", "lastOfNothingHasIndex", "topicCompactionRetainNullKey"),
        "it shows to readers of compacted data alone, and none of these logs has one",
    ),
    **dict.fromkeys(
        ("abortedCumulativeAckIsSentAgain", "errorsNameTransactions", "limitsActiveTransactions", "pendingAcksCountAsSent",
         "producersReadyTopicForAborts", "refusedTransactionsStay"),
        "what-if refuses a log with transactions",
    ),
}  # fmt: skip
"""Settings that none of these meets, and why."""


def recorded(version: str, scenario: str, folder: Path) -> Path:
    """A recording as a log of commands."""
    path = folder / f"{scenario}.jsonl"
    if version == "4.0.7":
        path = RECORDED / path.name
    else:
        path.write_text(next(lines for *at, lines in recordings() if at == [version, scenario]))
    log = folder / "log.jsonl"
    import_traces([path], log)
    return log


def rule(found: WhatIf, setting: str) -> RuleMet:
    assert found.rules is not None
    return next(each for each in found.rules.met if each.setting == setting)


def test_each_setting_that_differs_between_two_profiles_has_a_case() -> None:
    differ = {name for before in LINES for after in LINES for name in changes(before, after)}
    assert {*RECORDINGS, *LOGS, *CASES, *LARGE, *ELSEWHERE} == differ


@pytest.mark.parametrize("setting", RECORDINGS)
def test_a_recording_meets_the_rule(setting: str, tmp_path: Path) -> None:
    profile, messages = RECORDINGS[setting]
    release, scenario = PROFILE_RULES[setting].recordings[0]
    found = whatif(recorded(release, scenario, tmp_path), profile=profile, partitions=1)
    assert rule(found, setting).messages == messages
    assert rule(found, setting).topics
    named = [each for each in found.differences["rules"].to_pylist() if each]
    assert sum(setting in each.split(" or ") for each in named) <= messages


@pytest.mark.parametrize("setting", LOGS)
def test_a_log_meets_the_rule(setting: str) -> None:
    records, before, after, says = LOGS[setting]
    log = table(records, profile=before)
    found = rule(whatif(log, profile=after, partitions=1), setting)
    (on,) = found.topics
    figures = {each.name: each.proposed for each in on.figures}
    for name, value in says.items():
        assert value in str(figures[name] if name in figures else getattr(on, name))
    if not setting.startswith("keyShared"):  # the dispatcher of 4.0 has but one way
        back = table(records, profile=after)
        assert rule(whatif(back, profile=before, partitions=1), setting).topics


def finds(setting: str, case: Case) -> list[str]:
    """The advisor finds exactly what a case says. The topics that it names."""
    log = table(case.records, profile=case.before, **case.settings)
    found = rule(whatif(log, profile=case.after, partitions=1), setting)
    assert found.differences == case.differences
    (on,) = found.topics
    figures = {(each.subscription, each.name): (each.baseline, each.proposed) for each in on.figures}
    assert {key: values for key, values in figures.items() if key[1] not in _SIZES_AND_STATS} == case.figures
    assert case.stat is None or case.stat in found.stats
    seen = (on.open_loop_baseline or "", on.open_loop_proposed or "")
    assert all(map(str.startswith, seen, case.sees or ("", "")))
    assert (on.open_loop_from is None) == (case.sees is None)
    return [on.topic]


@pytest.mark.parametrize("setting", CASES)
def test_the_advisor_finds_what_the_rule_does_to_its_smallest_log(setting: str) -> None:
    case = CASES[setting]
    topics = finds(setting, case)
    # The other way round, the same topic differs.
    log = table(case.records, profile=case.after, **case.settings)
    back = rule(whatif(log, profile=case.before, partitions=1), setting)
    assert [each.topic for each in back.topics] == topics


_SLOW = "keySharedLookAheadMsgInReplayThresholdPerSubscription"


@pytest.mark.parametrize(
    "setting", [pytest.param(each, marks=[pytest.mark.slow] if each == _SLOW else []) for each in LARGE]
)
def test_the_advisor_finds_what_a_rule_does_beyond_many_messages(setting: str) -> None:
    finds(setting, LARGE[setting]())


def test_a_log_that_meets_no_rule() -> None:
    found = whatif(table([*FIVE, tick(60)]), profile="4.2", partitions=1)
    assert found.rules is not None
    assert (found.rules.met, found.rules.together) == ([], {})
    assert found.rules.settings == len(changes("4.0", "4.2"))


def test_what_the_log_sets_is_no_difference() -> None:
    found = whatif(table(FIVE, acknowledgmentAtBatchIndexLevelEnabled=False), profile="4.2", partitions=1)
    assert found.rules is not None
    assert found.rules.settings == len(changes("4.0", "4.2")) - 1


def test_rules_that_it_takes_together_are_named(tmp_path: Path) -> None:
    """3.0 keeps passed entries pending, 4.0 forgets them but for a count, 4.2 forgets them at once if both rules are its own."""
    found = whatif(recorded("3.0.7", "ttl_unacked", tmp_path), profile="4.2", partitions=1)
    assert found.rules is not None
    both = "removePendingAcksOnMarkDeleteMove and passedEntriesStayPending"
    assert found.rules.together == {both: 2}
    assert found.differences["rules"].to_pylist() == [both] * 2


def test_other_policy_sets_have_no_rules(tmp_path: Path) -> None:
    log = recorded("2.10.5", "un_redeliver", tmp_path)
    alone = whatif(log, profile="3.0", partitions=1)
    policies = tmp_path / "short.yaml"
    policies.write_text("broker:\n  ttlDurationDefaultInSeconds: 1\n")
    beside = whatif(log, policies, profile="3.0", partitions=1)
    assert beside.rules == alone.rules
    rows = beside.differences.to_pylist()
    assert {row["rules"] for row in rows if row["policies"] == "short"} <= {None}
    assert {row["rules"] for row in rows if row["policies"] == "profile 3.0"} == {
        "unblocksConsumerOneAckLate"
    }


def sent(out: Path) -> list[tuple[Any, ...]]:
    """When a replay sent each message."""
    return [(row["clock"], row["ledger_id"], row["entry_id"]) for row in rows_of(out, "MESSAGE")]


def test_a_replay_under_a_profile_is_what_whatif_compares_with(tmp_path: Path) -> None:
    """The option wins over the log's profile, and what the log sets wins over the option, as in `whatif`."""
    log = recorded("2.10.5", "un_redeliver", tmp_path)
    found = whatif(log, profile="3.0", partitions=1)
    assert len(found.differences) == 6
    equal_to_a_replay(found, BASELINE, replay(log, tmp_path / "as-it-is", partitions=1))
    equal_to_a_replay(found, "profile 3.0", replay(log, tmp_path / "3.0", profile="3.0", partitions=1))
    arguments = ["replay", str(log), "--no-spark", "--partitions", "1", "--profile"]
    ran = CliRunner().invoke(app, [*arguments, "3.0", "--out", str(tmp_path / "command")])
    assert ran.exit_code == 0, ran.output
    assert sent(tmp_path / "command") == sent(tmp_path / "3.0") != sent(tmp_path / "as-it-is")
    lines = log.read_text().splitlines()
    sets = [number for number, line in enumerate(lines) if "BROKER_CONFIG" in line]
    for number in sets:
        command = json.loads(lines[number])
        command["settings"] |= {"unblocksConsumerOneAckLate": False}
        lines[number] = json.dumps(command)
    log.write_text("\n".join(lines) + "\n")
    replay(log, tmp_path / "set", profile="3.0", partitions=1)
    assert sets
    assert sent(tmp_path / "set") == sent(tmp_path / "as-it-is")


def test_a_profile_is_named_once_and_exists(tmp_path: Path) -> None:
    log = table(FIVE)
    policies = tmp_path / "policies.yaml"
    policies.write_text("profile: 4.2\n")
    with pytest.raises(LogError, match=r"line 1 names a profile, and profile 3\.0 is given"):
        replay(log, tmp_path / "out", policies=policies, profile="3.0")
    with pytest.raises(LogError, match=r"there is no profile 3\.1"):
        replay(log, tmp_path / "out", profile="3.1")


def test_the_command_and_the_page_say_it(tmp_path: Path) -> None:
    log = recorded("2.10.5", "un_redeliver", tmp_path)
    ran = CliRunner().invoke(app, ["whatif", str(log), "--profile", "3.0", "--out", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    assert "unblocksConsumerOneAckLate: false -> true" in ran.output
    assert "6 messages are affected" in ran.output
    page = (tmp_path / "out/report.html").read_text()
    assert "unblocksConsumerOneAckLate: false -&gt; true" in page
    (met,) = json.loads((tmp_path / "out/whatif.json").read_text())["rules"]["met"]
    assert met["setting"] == "unblocksConsumerOneAckLate"
    rule = PROFILE_RULES["unblocksConsumerOneAckLate"]
    assert (met["notices"], met["shown_by"]) == (rule.notices, rule.shown_by)
    for text in (rule.notices, rule.shown_by):
        assert text in ran.output
        assert escape(text) in page
