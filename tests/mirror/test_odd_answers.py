"""A mirror of a cluster that shows something odd of one of its topics, or of its policies: that is told, and the other topics go on."""

import copy
from collections.abc import Iterator
from pathlib import Path
from random import Random
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
ODD: list[Any] = [
    None, -1, 0, 2**63, 2**64, 10**30, "", "x", [], {}, "1:2", "-1:-1", "9" * 25 + ":0", True, 1.5, [1], {"a": 1}, ["x"],
    "0001-01-01T00:00:00", "9999-12-31T23:59:59.999", "[(1:2..3:4]]", "\x00", 1e308,
]  # fmt: skip


def parts(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the parts of a value are in it."""
    yield at
    for key, part in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from parts(part, (*at, key))


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


@pytest.mark.parametrize("path", [path for path in RIGHT if "/good" not in path])
def test_an_odd_part_of_an_answer(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of it, with one of the odd values."""
    random = Random(path)
    for number, at in enumerate(parts(RIGHT[path])):
        odd = random.choice(ODD)
        folder = tmp_path / str(number)
        mirrored(Odd(path, at, odd), folder, monkeypatch)
        if path.startswith("/persistent/t/n/bad/"):
            found = {each["topic"] for each in records(folder) if each["command"] == "MIRROR"}
            assert GOOD in found, (at, odd)


@pytest.mark.parametrize(
    "odd", ["x", [1], {"retentionTimeInMinutes": "x"}, {"retentionSizeInMB": None}], ids=str
)
def test_an_odd_retention_of_a_topic_with_new_ledgers(
    odd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RIGHT, "/persistent/t/n/bad/retention", None)
    monkeypatch.setitem(RIGHT, "/persistent/t/n/bad/internal-info", {})
    said = mirrored(Odd("/namespaces/t/n", ("retention_policies",), odd), tmp_path / "log", monkeypatch)
    assert len(said) == 1
    assert said[0].startswith(f"{BAD}: left out: its stats or policies are not understood")


@pytest.mark.parametrize("odd", ["0001-01-01T00:00:00", "9999-12-31T23:59:59.999"])
def test_an_odd_time_of_creation(odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    path = "/persistent/t/n/bad/internal-info"
    said = mirrored(Odd(path, ("creationDate",), odd), tmp_path / "log", monkeypatch)
    assert all("does not answer like Pulsar's admin API" in each for each in said)
    assert GOOD in {each["topic"] for each in records(tmp_path / "log") if each["command"] == "MIRROR"}


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
