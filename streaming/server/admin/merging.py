"""One answer from those of several partitions, and the fields of statistics that are the same for every topic here."""

from collections.abc import Sequence
from functools import lru_cache, reduce
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec import UNSET

from schemas.effects import AdminResponse
from schemas.units import moment
from streaming.broker.admin_table import NAMESPACE, TOPIC
from streaming.broker.position import from_text
from streaming.server.clients import Json


def first_failure(answers: Sequence[AdminResponse]) -> AdminResponse:
    """The answer to a call from those of the ingress partitions: the first that failed, or all their lists as one."""
    first = next((answer for answer in answers if answer.fields.status >= 400), answers[0])
    lists: list[Any] = [answer.fields.response for answer in answers]
    if len(lists) > 1 and first.fields.status < 400 and all(isinstance(found, list) for found in lists):
        return _with(first, sorted({name for found in lists for name in found}))
    return first


def of_partitions(answers: Sequence[AdminResponse]) -> AdminResponse:
    """The answer to a call on each partition: the first that failed, or all their lists or objects as one."""
    found = first_failure(answers)
    parts: list[Any] = [answer.fields.response for answer in answers]
    if found.fields.status < 400 and all(isinstance(part, dict) for part in parts):
        return _with(found, {name: value for part in parts for name, value in part.items()})
    return found


def _with(answer: AdminResponse, response: Any) -> AdminResponse:
    return answer._replace(fields=msgspec.structs.replace(answer.fields, response=response))


_OLDEST, _OLDEST_NAME = "oldestBacklogMessageAgeSeconds", "oldestBacklogMessageSubscriptionName"
_OF_FIRST = ("backlogQuotaLimitSize", "backlogQuotaLimitTime")
_EARLIEST = ("earliestMsgPublishTimeInBacklog", "earliestMsgPublishTimeInBacklogs")
_NOT_OF_ALL = frozenset(
    {"deduplicationStatus", "ownerBroker", "activeConsumerName", "accessMode", "producerName", "address", "clientVersion", "connectedSince", "metadata",
     "keyHashRanges", "keyHashRangeArrays"}
)  # fmt: skip
"""Fields that Pulsar does not show of all partitions of a topic."""


def sum_of(parts: Sequence[Json]) -> Json:
    """Statistics of partitions as those of one topic: numbers are summed, and objects merged by name.

    quirk: times are 0. Quotas are each partition's, and of the oldest messages the oldest one counts. The average size of messages is the
    average of the partitions'. Producers and consumers are those at the same place of the partitions' lists.
    """
    names = dict.fromkeys(name for part in parts for name in part if name not in _NOT_OF_ALL)
    merged = {name: _sum(name, [part[name] for part in parts if name in part]) for name in names}
    if _OLDEST in names:
        merged.pop(_OLDEST_NAME, None)
        oldest = max(parts, key=lambda part: part.get(_OLDEST, 0))
        merged |= {name: oldest[name] for name in (_OLDEST, _OLDEST_NAME) if name in oldest}
        merged[_OLDEST] = max(merged[_OLDEST], 0)
    return merged


def _sum(name: str, values: Sequence[Any]) -> Any:
    first = values[0]
    if name.endswith("Timestamp") or name in ("producerId", "avgMessagesPerEntry"):
        return 0  # of no partition's producer or consumer
    if name in ("isReplicated", "replicated"):
        return False
    if name in ("lastAckedTime", "lastConsumedTime"):
        return _time(0)
    if isinstance(first, dict):
        return sum_of(values)
    if name in ("publishers", "consumers"):
        return [sum_of([each for each in place if each is not None]) for place in zip_longest(*values)]
    if isinstance(first, list):
        return [each for value in values for each in value]
    if name in _EARLIEST:
        return reduce(_earlier, values, 0)
    if name == "averageMsgSize":
        return sum(values) / len(values)
    if name in _OF_FIRST or isinstance(first, bool) or not isinstance(first, int | float):
        return first
    return sum(values)


def _earlier(one: int, other: int) -> int:
    return min(one, other) if one and other else max(one, other)


def internal_info(stats: Any) -> Json:
    """The metadata of a topic's ledgers and cursors, from its internal stats."""
    cursors = {}
    for name, cursor in ({} if stats is UNSET else stats["cursors"]).items():
        marked = from_text(cursor["markDeletePosition"])
        position = {"ledgerId": marked.ledger, "entryId": marked.entry}
        cursors[name] = {"version": 0, "cursorsLedgerId": -1, "markDelete": position}
    ledgers = [
        {"ledgerId": each["ledgerId"], "entries": each["entries"], "size": each["size"], "isOffloaded": False}
        for each in stats["ledgers"]
    ]
    return {"version": 1, "ledgers": ledgers, "cursors": cursors}


_TOPIC: Json = {
    "msgRateIn": 0.0, "msgThroughputIn": 0.0, "msgRateOut": 0.0, "msgThroughputOut": 0.0, "averageMsgSize": 0.0,
    "systemTopicBytesInCounter": 0, "bytesOutInternalCounter": 0, "delayedMessageIndexSizeInBytes": 0,
    "nonContiguousDeletedMessagesRangesSerializedSize": 0, "msgChunkPublished": False, "storageSize": 0,
    "backlogSize": 0, "publishRateLimitedTimes": 0, "earliestMsgPublishTimeInBacklogs": 0, "offloadedStorageSize": 0,
    "lastOffloadLedgerId": 0, "lastOffloadSuccessTimeStamp": 0, "lastOffloadFailureTimeStamp": 0, "ongoingTxnCount": 0,
    "abortedTxnCount": 0, "committedTxnCount": 0, "replication": {}, "compaction": {
        "lastCompactionRemovedEventCount": 0, "lastCompactionSucceedTimestamp": 0, "lastCompactionFailedTimestamp": 0,
        "lastCompactionDurationTimeInMills": 0,
    },
}  # fmt: skip
_PUBLISHER: Json = {
    "msgRateIn": 0.0, "msgThroughputIn": 0.0, "averageMsgSize": 0.0, "chunkedMessageRate": 0.0,
    "supportsPartialProducer": False, "metadata": {},
}  # fmt: skip
_SUBSCRIPTION: Json = {
    "msgRateOut": 0.0, "msgThroughputOut": 0.0, "msgRateRedeliver": 0.0, "messageAckRate": 0.0,
    "chunkedMessageRate": 0.0, "msgRateExpired": 0.0, "isReplicated": False, "subscriptionProperties": {},
    "earliestMsgPublishTimeInBacklog": 0, "nonContiguousDeletedMessagesRangesSerializedSize": 0, "delayedMessageIndexSizeInBytes": 0,
    "dispatchThrottledMsgEventsBySubscriptionLimit": 0, "dispatchThrottledBytesEventsBySubscriptionLimit": 0,
    "dispatchThrottledMsgEventsByTopicLimit": 0, "dispatchThrottledBytesEventsByTopicLimit": 0,
    "dispatchThrottledMsgEventsByBrokerLimit": 0, "dispatchThrottledBytesEventsByBrokerLimit": 0,
}  # fmt: skip
_CONSUMER: Json = {
    "msgRateOut": 0.0, "msgThroughputOut": 0.0, "msgRateRedeliver": 0.0, "messageAckRate": 0.0,
    "chunkedMessageRate": 0.0, "metadata": {}, "lastConsumedFlowTimestamp": 0, "lastConsumedTimestamp": 0,
    "lastAckedTimestamp": 0,
}  # fmt: skip
_LEDGER: Json = {"offloaded": False, "underReplicated": False}
_CURSOR: Json = {
    "waitingReadOp": False, "pendingReadOps": 0, "cursorLedger": -1, "cursorLedgerLastEntry": -1, "state": "Open",
    "active": True, "subscriptionHavePendingRead": False, "subscriptionHavePendingReplayRead": False,
}  # fmt: skip
_INTERNAL: Json = {
    "waitingCursorsCount": 0, "pendingAddEntriesCount": 0, "schemaLedgers": [], "properties": {},
    "compactedLedger": {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False},
}  # fmt: skip
"""Fields of Pulsar's statistics of what Magnetar does not have. Clients expect them."""


def stats(found: Json) -> Json:
    """A topic's stats with all fields that clients expect."""
    subscriptions = {
        name: _subscription(each) | {"consumers": [_consumer(one) for one in each["consumers"]]}
        for name, each in found["subscriptions"].items()
    }
    publishers = [_PUBLISHER | each for each in found["publishers"]]
    return _TOPIC | found | {"publishers": publishers, "subscriptions": subscriptions}


def _subscription(found: Json) -> Json:
    """quirk: Pulsar shows two of the fields by two names."""
    shown = _SUBSCRIPTION | found
    return shown | {"replicated": shown["isReplicated"], "durable": shown.get("isDurable", False)}


def _consumer(found: Json) -> Json:
    """Two of the times are shown as texts, too, and the ranges of hashes as numbers."""
    shown = _CONSUMER | found
    shown |= {f"{name}Time": _time(shown[f"{name}Timestamp"]) for name in ("lastAcked", "lastConsumed")}
    if "keyHashRanges" in shown:
        shown["keyHashRangeArrays"] = [msgspec.json.decode(each) for each in shown["keyHashRanges"]]
    return shown


def _time(ms: int) -> str:
    """A time as Java's `Instant` writes it."""
    parts = "milliseconds" if ms % 1000 else "seconds"
    return moment(ms).isoformat(timespec=parts).replace("+00:00", "Z")


_OF_NAMESPACE: Json = {"is_allow_auto_update_schema_with_replicator": True}

VERSIONED = {
    **{f"{TOPIC}/{name}": name for name in ("stats", "internalStats", "partitions")},
    NAMESPACE: "namespace",
}
"""The GETs whose answers have other fields in other versions, by path, as `ServiceConfiguration.missingAdminFields` names them."""


def shown(call: str, found: Json, missing: str) -> Json:
    """The answer to a call with the fields that the version has, of which `missing` says which it lacks."""
    whole = _OF_NAMESPACE | found if call == "namespace" else dict(found)
    for path in _paths(missing).get(call, ()):
        _remove(whole, path)
    return whole


@lru_cache(maxsize=16)
def _paths(missing: str) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    for each in missing.split(","):
        call, *path = each.strip().split(".")
        if path:
            found.setdefault(call, []).append(path)
    return found


def _remove(found: Any, path: list[str]) -> None:
    name, *rest = path
    if not rest:
        found.pop(name, None)
    elif name in found:
        below = found[name]
        for each in below.values() if isinstance(below, dict) else below:
            _remove(each, rest)


_OF_NON_PERSISTENT = (
    "entriesAddedCounter", "numberOfEntries", "totalSize", "currentLedgerEntries", "currentLedgerSize",
    "waitingCursorsCount", "pendingAddEntriesCount", "cursors",
)  # fmt: skip


def internal_stats(found: Json, topic: str = "") -> Json:
    """A topic's internal stats with all fields that clients expect. Those of a non-persistent topic have no ledgers."""
    if topic.startswith("non-persistent://"):
        return {name: (_INTERNAL | found)[name] for name in _OF_NON_PERSISTENT}
    ledgers = [_LEDGER | each for each in found.get("ledgers", [])]
    cursors = {name: _CURSOR | each for name, each in found.get("cursors", {}).items()}
    return _INTERNAL | found | {"ledgers": ledgers, "cursors": cursors}
