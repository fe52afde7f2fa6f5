"""What other policies would have done, asked of a mirrored log, is what they would have done on the cluster."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from schemas.commands import decode_or_refuse
from schemas.effects import AdminResponse, Message, SendReceipt
from schemas.records import RECORD
from streaming.answers.check.minimize import FoldedLog, minimize
from streaming.answers.whatif.answer import BASELINE
from streaming.answers.whatif.clients.made_log import ClientSettings
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.answers.whatif.difference_table import together
from streaming.answers.whatif.differences import compared
from streaming.answers.whatif.side_by_side import fold_side_by_side
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.persistent.topic import SHADOW_SOURCE
from streaming.jobs.replay import load
from streaming.log.pins import configurations, of_baseline, pin
from streaming.log.policies import read_policies
from streaming.log.table import LogError
from streaming.mirror.mirror import _shown
from streaming.mirror.observation import Observation, observe
from streaming.mirror.reading import read
from streaming.mirror.source import Look
from streaming.quality.gate import judge
from streaming.record.stored import Stored
from tests.answers.test_projection import state_after
from tests.answers.test_whatif import START, Record, T, admin, broker, eviction, table, ttl

pytestmark = pytest.mark.feature("K4")

LOOK = 300
"""A mirror looks at a silent topic at least so often (s)."""

PATH = f"/{T.replace('://', '/')}"


class Source:
    """A cluster, the log of what happens there, and what a mirror that looks all the time writes of it, once it has begun (second)."""

    def __init__(self, begun: int = 0, **settings: Any) -> None:
        self._begun = begun
        self.log: list[Record] = []
        self.mirrored: list[Record] = []
        self.held: list[tuple[int, int]] = []
        self._broker = Broker(0, NoEntries())
        self._before: Observation | None = None
        self._offset, self._second = 0, 0
        self._read_to = (-1, -1)
        self._settings = settings
        for row in table([], **settings).to_pylist():
            self._apply(0, row["topic"], row["value"])
        self.mirrored.append(
            (0, T, {"command": "ADMIN", "method": "PUT", "path": PATH, "body": {SHADOW_SOURCE: T}})
        )

    def _apply(self, second: int, topic: str | None, value: bytes) -> list[Any]:
        self._broker.apply(self._offset, START + 1000 * second, topic, decode_or_refuse(value), value)
        self._offset += 1
        return [row.effect for row in self._broker.take()]

    def _get(self, call: str) -> Any:
        value = json.dumps({"command": "ADMIN", "method": "GET", "path": f"{PATH}/{call}"}).encode()
        (found,) = (each for each in self._apply(self._second, T, value) if isinstance(each, AdminResponse))
        return found.fields.response

    def do(self, second: int, **command: Any) -> None:
        """Something happens, and the mirror looks."""
        topic = None if command.get("command") == "TICK" else T
        self._second = second
        self.log.append((second, topic, command))
        effects = self._apply(second, topic, json.dumps(command).encode())
        for each in effects:
            if isinstance(each, Message):
                self.held.append((each.ledger_id, each.entry_id))
            if isinstance(each, SendReceipt):
                metadata = {
                    "producer_name": each.producer_name,
                    "sequence_id": each.sequence_id,
                    "publish_time": each.publish_time,
                }
                stored = Stored(each.ledger_id, each.entry_id, metadata, bytes(each.payload or b""))
                look = Look(second, {}, {"ledgers": []})
                for send in read(iter([stored]), look, self._read_to, "keep"):
                    payload = send.command.pop("payload_bytes").decode()
                    self.mirrored.append(
                        (second, T, {"connection": "mirror", **send.command, "payload": payload})
                    )
                self._read_to = each.ledger_id, each.entry_id
        if second < self._begun:
            return
        if self._broker.topic_stats(T) is not None:
            before, self._before = (
                self._before,
                observe(
                    second,
                    self._get("stats"),
                    self._get("internalStats"),
                    self._before,
                    read_to=self._read_to,
                    evicts=self._settings.get("backlogQuotaDefaultRetentionPolicy")
                    == "consumer_backlog_eviction",
                ),
            )
            if before is None or _shown(before) != _shown(self._before):
                self.mirrored.append((second, T, msgspec.to_builtins(self._before.record)))
            else:
                self.mirrored.append((second, None, {"command": "TICK"}))

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """The cluster's log, and the mirror's."""
        return table(self.log, **self._settings), table(self.mirrored, **self._settings)


def live(
    draw: Random, subscriptions: str, pauses: Sequence[int] = (0, 1, 20, 65), begun: int = 0, **settings: Any
) -> Source:
    source, second, published = Source(begun, **settings), 0, 0
    for name in subscriptions:
        common = {"connection": name, "consumer_id": 1, "subscription": name, "request_id": 1}
        source.do(0, command="SUBSCRIBE", subType="Shared", initialPosition="Earliest", **common)
        if name == "s":
            source.do(0, command="FLOW", connection=name, consumer_id=1, messagePermits=1000)
    for _ in range(40):
        pause = draw.choice(pauses)
        for _ in range(0, pause - LOOK, LOOK):
            second += LOOK
            pause -= LOOK
            source.do(second, command="TICK")
        second += pause
        match draw.randrange(5):
            case 0 | 1 | 2:
                payload = "x" * draw.randrange(1, 200)
                source.do(
                    second,
                    producer="p",
                    sequence_id=published,
                    payload=payload,
                    publish_time=START + 1000 * second,
                )
                published += 1
            case 3 if source.held:
                ledger, entry = source.held.pop(draw.randrange(len(source.held)))
                ids = [{"ledgerId": ledger, "entryId": entry}]
                source.do(
                    second,
                    command="ACK",
                    connection="s",
                    consumer_id=1,
                    ack_type="Individual",
                    message_id=ids,
                )
            case _:
                source.do(second, command="TICK")
    source.do(max(second + 200, begun), command="TICK")
    return source


def lost(log: pa.Table, policies: pa.Table) -> set[tuple[Any, ...]]:
    found = whatif(log, [PolicySet("other", policies)], partitions=1)
    return {(row["subscription"], row["sequence_id"], row["change"]) for row in found.differences.to_pylist()}


@pytest.mark.parametrize(
    "policies", [ttl(60), ttl(300), eviction(400)], ids=["ttl 60", "ttl 300", "eviction"]
)
@pytest.mark.parametrize("seed", range(4))
def test_the_same_messages_would_be_lost(seed: int, policies: pa.Table) -> None:
    draw = Random(seed)
    own: dict[str, Any] = draw.choice([{}, {"ttlDurationDefaultInSeconds": 120}])
    log, mirrored = live(draw, "st", managedLedgerMaxEntriesPerLedger=draw.choice([3, 50000]), **own).tables()
    there, here = lost(log, policies), lost(mirrored, policies)
    if own:  # a cluster does not show who acknowledged what it had expired
        there, here = ({each for each in found if each[2] == "lost newly"} for found in (there, here))
    assert here == there


@pytest.mark.parametrize("minutes", [0, 1, 5, -1])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_ledgers_would_be_kept(seed: int, minutes: int) -> None:
    """Although ledgers of the cluster itself go, as it retains nothing."""
    draw = Random(seed)
    policies = admin(
        "POST", "retention", {"retentionTimeInMinutes": minutes, "retentionSizeInMB": -(minutes != 0)}
    )
    settings: dict[str, Any] = {"managedLedgerMaxEntriesPerLedger": 3, "retentionCheckIntervalInSeconds": 10}
    log, mirrored = live(draw, "s", **settings).tables()
    there, here = kept(log, policies), kept(mirrored, policies)
    assert here == there


@pytest.mark.parametrize("seed", range(12))
def test_the_policies_that_the_cluster_has_change_nothing(seed: int) -> None:
    """However long a topic pauses, and whenever the mirror began: until then, the log has entries and no subscriptions. But the cluster's rules
    act up to a look earlier than a mirror sees."""
    draw = Random(seed)
    own: tuple[dict[str, Any], ...] = (
        {},
        {"ttlDurationDefaultInSeconds": 120},
        {"defaultRetentionTimeInMinutes": 5, "defaultRetentionSizeInMB": -1},
        {
            "backlogQuotaDefaultLimitBytes": 800,
            "backlogQuotaDefaultRetentionPolicy": "consumer_backlog_eviction",
        },
    )
    settings = {"managedLedgerMaxEntriesPerLedger": draw.choice([3, 50000])} | own[seed % 4]
    pauses, begun = (0, 1, 65, 3600, 4 * 3600), draw.choice([0, 20_000])
    log, mirrored = live(draw, "st", pauses, begun, retentionCheckIntervalInSeconds=10, **settings).tables()
    same = PolicySet("same", broker(messageExpiryCheckIntervalInMinutes=1))
    for each in (log, mirrored):
        assert whatif(each, [same], partitions=1).differences.to_pylist() == []
    # And the rules of a twin that follows its source no more come to what the source did.
    records = load(mirrored, partitions=1).records
    found = compared(fold_side_by_side(records, 0, [of_baseline(records)[0]]), ["alone"])
    for row in together([found.differences]).to_pylist():
        assert row["change"] == "lost earlier", row
        assert row["baseline_clock"] - row["proposed_clock"] < 2 * LOOK * 1000
    at_end = ("dispatched", "acked", "expired", "backlog", "storage", "trimmed")
    followed, alone = (
        [[row[name] for name in at_end] for row in found.summary.to_pylist() if row["policies"] == policies]
        for policies in (BASELINE, "alone")
    )
    assert alone == followed


@pytest.mark.parametrize("seed", range(8))
def test_the_traffic_of_a_mirror_goes_on_behind_what_a_twin_has(seed: int, tmp_path: Path) -> None:
    """A log as if it began now, on the state that it led to: the same becomes of all messages, whether it is the cluster's or the mirror's."""
    draw = Random(seed)
    # Or else the cluster's goes on in a ledger that the mirror's log can't go on in.
    source = live(draw, "st", managedLedgerMaxEntriesPerLedger=1)
    policies = draw.choice([ttl(60), ttl(300), eviction(400)])
    found = []
    for name, log in zip(("cluster", "mirror"), source.tables(), strict=True):
        answer = whatif(log, [PolicySet("other", policies)], live=state_after(tmp_path / name, log))
        differences = {
            (
                row["subscription"],
                row["offset"] is None,
                row["sequence_id"],
                row["change"],
                row["baseline_fate"],
            )
            for row in answer.differences.to_pylist()
        }
        at_end = [
            [
                row[each]
                for each in ("policies", "subscription", "refused", "stored", "acked", "expired", "evicted")
            ]
            for row in answer.summary.to_pylist()
        ]
        found.append((differences, at_end))
    assert found[1] == found[0]


@pytest.mark.parametrize("seed", range(8))
def test_a_mirrors_log_goes_on_where_the_state_of_its_twin_ends(seed: int, tmp_path: Path) -> None:
    """Nothing moves then: all comes to what it would have without a stop."""
    draw = Random(seed)
    source = live(draw, "st", managedLedgerMaxEntriesPerLedger=draw.choice([3, 50000]))
    _, log = source.tables()
    cut = draw.randrange(3, len(log))
    before = state_after(tmp_path, log.slice(0, cut))
    (followed,) = (row for row in whatif(log).summary.to_pylist() if row["subscription"] == "s")
    (on,) = (
        row for row in whatif(log.slice(cut), live=before).summary.to_pylist() if row["subscription"] == "s"
    )
    assert on["backlog"] == followed["backlog"]


@pytest.mark.parametrize("begun", [0, 300])
@pytest.mark.parametrize("seed", range(6))
def test_a_twin_violates_nothing_and_minimizes_as_other_logs_do(seed: int, begun: int) -> None:
    """What the source's clients acknowledged is acked, whenever the mirror began. A mirror's entries have no producers."""
    draw = Random(seed)
    expiring: dict[str, Any] = draw.choice([{}, {"ttlDurationDefaultInSeconds": 120}])
    small: dict[str, Any] = {"managedLedgerMaxEntriesPerLedger": draw.choice([3, 50000])}
    _, mirrored = live(draw, "st", begun=begun, **small, **expiring).tables()
    found = minimize(mirrored, _stores_two_and_violates_nothing)
    assert (found.after, found.complete) == (3, True)  # the topic, and its entries


def kept(log: pa.Table, policies: pa.Table) -> list[tuple[int, int]]:
    """The entries that were trimmed, and the bytes that are left."""
    found = whatif(log, [PolicySet("other", policies)], partitions=1).summary.to_pylist()
    return [
        (row["trimmed"], row["storage"])
        for row in found
        if row["policies"] == "other" and not row["subscription"]
    ]


def test_under_other_policies_a_topic_does_not_follow_its_source() -> None:
    source = Source()
    source.do(0, producer="p", sequence_id=0, payload="x")
    log, mirrored = ((pa.Table.from_pylist(_numbered(each), RECORD)) for each in source.tables())
    policies = read_policies(ttl(60), mirrored, judge)
    settings = [dict(each.settings) for each in configurations(pin(mirrored, policies).records)]
    assert [each["shadowTopicFollowsSource"] for each in settings] == [False]
    for same in (
        configurations(mirrored),
        configurations(pin(log, read_policies(ttl(60), log, judge)).records),
    ):
        assert all("shadowTopicFollowsSource" not in each.settings for each in same)


def test_a_mirrors_log_has_no_clients_to_model() -> None:
    source = Source()
    source.do(0, producer="p", sequence_id=0, payload='{"command": "MIRROR"}')
    log, mirrored = source.tables()
    whatif(log, [PolicySet("short", ttl(60))], clients=ClientSettings())
    with pytest.raises(LogError, match="a mirror wrote it, which can't see what clients send"):
        whatif(mirrored, [PolicySet("short", ttl(60))], clients=ClientSettings())


def _stores_two_and_violates_nothing(found: FoldedLog) -> bool:
    assert found.judged()[0] == []
    return sum(isinstance(effect, SendReceipt) and effect.ledger_id > 0 for effect in found.effects) >= 2


def _numbered(log: pa.Table) -> list[dict[str, Any]]:
    return [{**row, "partition": 0, "offset": number} for number, row in enumerate(log.to_pylist())]
