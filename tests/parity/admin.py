"""The admin API of a real broker, and the part of a topic's stats that the snapshots of traces have."""

import json
import urllib.error
import urllib.request
from typing import Any

from streaming.kafka.local import HOST

Json = dict[str, Any]

# State and counters; no rates, ages or addresses.
_TOPIC = ("msgInCounter", "bytesInCounter", "msgOutCounter", "bytesOutCounter", "storageSize", "backlogSize",
          "deduplicationStatus", "waitingPublishers", "nonContiguousDeletedMessagesRanges", "topicEpoch")  # fmt: skip
_PUBLISHER = ("producerName", "accessMode")
_SUBSCRIPTION = ("type", "isDurable", "msgBacklog", "backlogSize", "msgBacklogNoDelayed", "msgDelayed",
                 "unackedMessages", "blockedSubscriptionOnUnackedMsgs", "totalMsgExpired", "lastExpireTimestamp",
                 "msgOutCounter", "bytesOutCounter", "allowOutOfOrderDelivery", "keySharedMode",
                 "consumersAfterMarkDeletePosition", "nonContiguousDeletedMessagesRanges",
                 "activeConsumerName")  # fmt: skip
_CONSUMER = ("consumerName", "availablePermits", "unackedMessages", "blockedConsumerOnUnackedMsgs", "msgOutCounter",
             "avgMessagesPerEntry", "keyHashRanges")  # fmt: skip
_INTERNAL = ("entriesAddedCounter", "numberOfEntries", "totalSize", "currentLedgerEntries", "currentLedgerSize",
             "lastConfirmedEntry", "state")  # fmt: skip
_LEDGER = ("ledgerId", "entries", "size")
_CURSOR = ("markDeletePosition", "readPosition", "individuallyDeletedMessages", "messagesConsumedCounter",
           "numberOfEntriesSinceFirstNotAckedMessage", "totalNonContiguousDeletedMessagesRange", "state", "active",
           "properties")  # fmt: skip


class Admin:
    """The admin API at a local port."""

    def __init__(self, port: int) -> None:
        self._server = f"http://{HOST}:{port}"
        self._root = f"{self._server}/admin/v2"

    def call(self, method: str, path: str, body: Any = None) -> Json:
        """`status`, and `response` if there was one in JSON, as in a trace. Raises OSError if the broker is down."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._root}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                status, said = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, said = error.code, error.read()
        try:
            return {"status": status, "response": json.loads(said)}
        except ValueError:
            return {"status": status}

    def look_up(self, topic: str) -> None:
        """Ask which broker has a topic. This one takes the namespace over. Raises OSError if it is down."""
        with urllib.request.urlopen(
            f"{self._server}/lookup/v2/topic/{topic.replace('://', '/')}", timeout=30
        ):
            pass

    def snapshot(self, path: str) -> Json:
        """`stats` and, for a persistent topic, `internal`, as in a trace. Empty if the topic does not exist.

        `busy`: whether the topic is reading, writing or changing its ledger, so that more is about to change.
        """
        asked = f"{path}/stats?getPreciseBacklog=true&subscriptionBacklogSize=true"
        found: Json = {"stats": stats(self.call("GET", asked))}
        if path.startswith("/persistent"):
            answer = self.call("GET", f"{path}/internalStats")
            found["internal"] = internal(answer)
            found["busy"] = _busy(answer)
        return found


def stats(answer: Json) -> Json:
    """The part of the response to `…/stats` that a snapshot has."""
    if answer["status"] != 200:
        return {}
    said = answer["response"]
    subscriptions = {
        name: {
            **_some(each, _SUBSCRIPTION),
            "consumers": [_some(one, _CONSUMER) for one in each["consumers"]],
        }
        for name, each in said["subscriptions"].items()
    }
    publishers = [_some(each, _PUBLISHER) for each in said["publishers"]]
    return {**_some(said, _TOPIC), "publishers": publishers, "subscriptions": subscriptions}


def internal(answer: Json) -> Json:
    """The part of the response to `…/internalStats` that a snapshot has."""
    if answer["status"] != 200:
        return {}
    said = answer["response"]
    cursors = {name: _some(each, _CURSOR) for name, each in said["cursors"].items()}
    ledgers = [_some(each, _LEDGER) for each in said["ledgers"]]
    found = {**_some(said, _INTERNAL), "ledgers": ledgers, "cursors": cursors}
    compacted = said.get("compactedLedger", {})
    return found | {"compactedLedger": compacted} if compacted.get("ledgerId", -1) >= 0 else found


def _busy(answer: Json) -> bool:
    if answer["status"] != 200:
        return False
    said = answer["response"]
    changing = said["state"] in ("ClosingLedger", "CreatingLedger") or said["pendingAddEntriesCount"]
    return bool(changing or any(each["pendingReadOps"] for each in said["cursors"].values()))


def _some(said: Json, names: tuple[str, ...]) -> Json:
    return {name: said[name] for name in names if said.get(name) is not None}
