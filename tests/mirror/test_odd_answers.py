"""A mirror of a cluster that shows something odd of one of its topics, or of its policies: that is told, and the other topics go on."""

import copy
from pathlib import Path
from typing import Any

import pytest

from schemas import lines
from streaming.mirror import mirror as mirroring
from streaming.mirror.journal import LogFolder
from streaming.mirror.mirror import ClusterMirror
from streaming.record import stored
from streaming.record.rest import Rest, Said
from tests.mirror.kit import Rounds, records

pytestmark = pytest.mark.feature("K4")

GOOD, BAD = "persistent://t/n/good", "persistent://t/n/bad"
INTERNAL: dict[str, Any] = {
    "ledgers": [{"ledgerId": 10, "entries": 5, "size": 500}, {"ledgerId": 11, "entries": 0, "size": 0}],
    "cursors": {"s": {"markDeletePosition": "10:1", "readPosition": "10:5", "individuallyDeletedMessages": "[(10:2..10:3]]"}},
    "numberOfEntries": 5, "totalSize": 500, "entriesAddedCounter": 5, "lastConfirmedEntry": "10:4", "currentLedgerEntries": 0,
    "currentLedgerSize": 0, "lastLedgerCreatedTimestamp": "2026-11-29T01:00:00Z", "state": "LedgerOpened",
}  # fmt: skip
STATS: dict[str, Any] = {
    "subscriptions": {
        "s": {
            "isDurable": True, "type": "Shared", "msgBacklog": 2, "unackedMessages": 0, "totalMsgExpired": 0, "msgOutCounter": 3,
            "consumers": [{"consumerName": "c", "address": "/1", "connectedSince": "x", "msgOutCounter": 3, "availablePermits": 10, "unackedMessages": 0, "lastAckedTimestamp": 5}],
        },
    },
    "publishers": [{"producerName": "p", "address": "/1", "producerId": 0, "accessMode": "Shared"}],
    "storageSize": 500, "msgInCounter": 5, "topicCreationTimeStamp": 0, "ongoingTxnCount": 0,
}  # fmt: skip
INFO = {
    "ledgers": [{"ledgerId": 10, "entries": 5, "size": 500, "timestamp": 1795900000000}, {"ledgerId": 11, "timestamp": 0}],
    "creationDate": "2026-11-28T00:00:00Z",
}  # fmt: skip
QUOTA = {"destination_storage": {"limitSize": 1000, "limitTime": -1, "policy": "consumer_backlog_eviction"}}
RETENTION = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}
RIGHT: dict[str, Any] = {
    "/brokers/version": "4.0.7",
    "/brokers/configuration/runtime": {"clusterName": "c", "ttlDurationDefaultInSeconds": "0", "backlogQuotaDefaultRetentionPolicy": "producer_request_hold"},
    "/namespaces/t/n": {
        "retention_policies": RETENTION, "message_ttl_in_seconds": 30, "backlog_quota_map": QUOTA, "deleted": False,
        "topicDispatchRate": {"c": {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": 5, "relativeToPublishRate": False, "ratePeriodInSecond": 1}},
        "replication_clusters": ["c"], "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
    },
    "/persistent/t/n/partitioned": [],
    "/persistent/t/n": [BAD, GOOD],
    **{
        f"/persistent/t/n/{name}/{call}": value
        for name in ("bad", "good")
        for call, value in {
            "internalStats": INTERNAL, "stats": STATS, "internal-info": INFO, "backlogQuotaMap": QUOTA, "messageTTL": 60,
            "retention": RETENTION, "maxProducers": 5,
        }.items()
    },
}  # fmt: skip


class Odd(Rest):
    """An admin API of which one part of an answer is odd. `renewed`: all ledgers of the bad topic are new from then on."""

    def __init__(self, path: str, at: tuple[Any, ...], odd: Any) -> None:
        super().__init__("http://localhost:8080")
        self._path, self._at, self._odd = path, at, odd
        self.renewed = False

    def call(self, method: str, path: str, body: Any = None) -> Said:
        assert method == "GET"
        path = path.partition("?")[0]
        if path not in RIGHT:
            return Said(404, {"reason": "not found"})
        whole = {"": copy.deepcopy(RIGHT[path])}
        if self.renewed and path == "/persistent/t/n/bad/internalStats":
            for ledger in whole[""]["ledgers"]:
                ledger["ledgerId"] += 100
        if path == self._path:
            *way, last = ("", *self._at)
            inner: Any = whole
            for key in way:
                inner = inner[key]
            inner[last] = self._odd
        return Said(200, whole[""])


def mirrored(rest: Odd, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a mirror says that looks at the topics three times: the second time with new ledgers."""
    monkeypatch.setattr(mirroring, "_CONFIGURED_SECONDS", 0.0)
    monkeypatch.setattr(mirroring, "_LEFT_OUT_SECONDS", 0.0)
    monkeypatch.setattr(mirroring, "SLOWEST", 0)
    said: list[str] = []

    def renew() -> None:
        rest.renewed = True

    with LogFolder(folder) as journal:
        made = ClusterMirror(
            "pulsar://127.0.0.1:1", rest, ["t/n"], journal, every=0.001, say=said.append, entries="sampled"
        )
        made.run(Rounds(3, renew))
    return said


def test_an_entry_that_no_line_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topic is left out."""
    for module in (lines, stored):
        monkeypatch.setattr(module, "LONGEST_LINE", 20_000)
    monkeypatch.setattr(stored, "_ROOM", 500)
    ledgers = [{"ledgerId": 10, "entries": 5, "size": 100_000}, INTERNAL["ledgers"][1]]
    rest = Odd("/persistent/t/n/bad/internalStats", ("ledgers",), ledgers)
    said = mirrored(rest, tmp_path / "log", monkeypatch)
    assert len(said) == 1
    assert said[0].startswith(
        f"{BAD}: left out: entry 10:0 has 20,000 bytes: a line of a log has no room for it"
    )
    assert {each["topic"] for each in records(tmp_path / "log") if each["command"] == "SEND"} == {GOOD}
    # it goes on
    assert mirrored(rest, tmp_path / "log", monkeypatch)[0].startswith(f"{BAD}: left out: entry")
