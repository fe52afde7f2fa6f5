"""Long silences: skipping the rounds of checks that do nothing has no visible effect."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.commands import Tick, to_json
from schemas.effects import Effect, Expired, LedgerClosed, LedgerDeleted, Row
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from tests.broker.kit import START, Run, feed, of
from tests.broker.test_cut_invariance import Record
from tests.broker.test_invariants import logs

SILENCES = [0, 0, 1_000, 61_000, 3_600_000, 6 * 3_600_000]
YEAR_MS = 365 * 86_400_000


class Patient(Broker):
    """Goes through every round."""

    _skips = False


def folded(kind: type[Broker], log: list[Record]) -> tuple[list[Row], bytes, list[bytes]]:
    broker, now, after = kind(0, NoEntries()), START, []
    rows: list[Row] = []
    for offset, (jump, topic, command) in enumerate(log):
        now += jump
        feed(broker, offset, now, topic, to_json(command))
        rows += broker.take()
        if jump:
            after.append(broker.encode())
    return rows, broker.encode(), after


@st.composite
def with_silences(draw: st.DrawFn) -> list[Record]:
    log: list[Record] = []
    for record in draw(logs()):
        log.append(record)
        if silence := draw(st.sampled_from(SILENCES)):
            log.append((silence, None, Tick()))
    return log


@given(with_silences())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_passing_over_rounds_makes_no_difference(log: list[Record]) -> None:
    assert folded(Broker, log) == folded(Patient, log)


@pytest.mark.parametrize(
    "settings", [{}, {"ttlDurationDefaultInSeconds": 60}, {"brokerDeduplicationEnabled": True}]
)
def test_years_pass_in_a_moment(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that begins with a time in seconds, or goes on after years: with a backlog, cursors to flush and a consumer."""
    run = Run(
        managedLedgerMaxEntriesPerLedger=2,
        messageExpiryCheckIntervalInMinutes=1,
        backlogQuotaCheckIntervalInSeconds=60,
        backlogQuotaDefaultLimitSecond=3600,
        retentionCheckIntervalInSeconds=60,
        managedLedgerDefaultMarkDeleteRateLimit=0.1,
        **settings,
    )
    run.subscribe("s", "Shared", permits=9)
    run.subscribe("slow")
    for number in range(9):
        run.publish(number)
    run.ack("s", (1, 0))
    rounds = 0
    count = Broker._run_checks

    def counted(self: Broker, names: list[str], topics: list[str]) -> None:
        nonlocal rounds
        rounds += 1
        count(self, names, topics)

    monkeypatch.setattr(Broker, "_run_checks", counted)
    run.wait(50 * YEAR_MS / 1000)
    assert rounds < 100


class Both:
    """Two brokers, one of which goes through every round, that must not differ."""

    def __init__(self, profile: Literal["2.x", "4.x"] = "4.x", **settings: Any) -> None:
        checks = {"messageExpiryCheckIntervalInMinutes": 1, "backlogQuotaCheckIntervalInSeconds": 60,
                  "retentionCheckIntervalInSeconds": 60}  # fmt: skip
        self.runs = [Run(profile=profile, **checks | settings) for _ in range(2)]
        patient = self.runs[1]
        patient.broker = Patient(0, NoEntries())
        patient.configure(profile, **checks | settings)

    def __getattr__(self, name: str) -> Callable[..., list[Effect]]:
        def call(*arguments: Any, **fields: Any) -> list[Effect]:
            effects, same = (getattr(run, name)(*arguments, **fields) for run in self.runs)
            assert effects == same
            return list(effects)

        return call

    def silence(self, hours: float) -> list[Effect]:
        effects = self.wait(hours * 3600)
        assert self.runs[0].broker.encode() == self.runs[1].broker.encode()
        return effects


def test_retention_lets_ledgers_go_in_the_middle_of_a_silence() -> None:
    both = Both(managedLedgerMaxEntriesPerLedger=2)
    both.namespace("POST", "retention", {"retentionTimeInMinutes": 90, "retentionSizeInMB": -1})
    both.subscribe("s", permits=9)
    for number in range(5):
        both.publish(number)
    both.ack("s", (3, 0), cumulative=True)
    assert of(both.silence(1), LedgerDeleted) == []
    assert len(of(both.silence(1), LedgerDeleted)) == 2
    both.namespace("POST", "retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    both.silence(5)


def test_what_a_new_retention_lets_go_goes_with_its_own_check() -> None:
    both = Both(managedLedgerMaxEntriesPerLedger=2, retentionCheckIntervalInSeconds=1800)
    both.namespace("POST", "retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    both.subscribe("s", permits=9)
    for number in range(5):
        both.publish(number)
    both.ack("s", (3, 0), cumulative=True)
    both.namespace("POST", "retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    assert len(of(both.silence(2), LedgerDeleted)) == 2


def test_a_ledger_without_new_entries_is_closed() -> None:
    both = Both(managedLedgerInactiveLedgerRolloverTimeSeconds=4000)
    both.subscribe("s")
    both.publish(0)
    assert len(of(both.silence(3), LedgerClosed)) == 1


def test_a_fenced_topic_is_left_alone_by_its_quota() -> None:
    both = Both(backlogQuotaDefaultLimitBytes=10)
    both.subscribe("s")
    both.publish(0)
    both.fault("DelayWrites", 1)
    both.publish(1)
    both.fault("FailWrites", 1)
    both.publish(2)
    assert both.runs[0].topic.fenced
    both.silence(3)


def test_a_quota_exceeded_because_of_deduplication() -> None:
    """Nobody produces any more; each round takes a snapshot when its time has come."""
    both = Both(
        brokerDeduplicationEnabled=True, backlogQuotaDefaultLimitBytes=10,
        brokerDeduplicationSnapshotIntervalSeconds=7200,
    )  # fmt: skip
    for first in (0, 5):
        both.create_producer()
        for number in range(first, first + 5):
            both.send(number)
        both.close_producer()
        both.silence(1)
    both.silence(3)


@pytest.mark.parametrize("connected", [False, True])
def test_each_subscription_expires_at_its_own_time(connected: bool) -> None:
    both = Both("2.x", ttlDurationDefaultInSeconds=3600)
    both.subscribe("s", permits=9)
    both.publish(0)
    if not connected:
        both.close_consumer("s")
    assert [bool(of(both.silence(hours), Expired)) for hours in (0.9, 0.2, 0.6)] == [
        False, not connected, connected,
    ]  # fmt: skip


def test_a_backlog_of_what_was_trimmed_before_the_subscription_came() -> None:
    both = Both("2.x", ttlDurationDefaultInSeconds=60, managedLedgerMaxEntriesPerLedger=2)
    for number in range(3):
        both.publish(number)
    both.admin("PUT", "/unload")
    both.admin("POST", "/trim")
    both.subscribe("s", permits=9)
    both.silence(3)


def test_readers_alone_expire_nothing_where_expiry_goes_by_the_slowest_cursor() -> None:
    both = Both(ttlDurationDefaultInSeconds=60, messageExpirySharedPosition=True)
    both.subscribe("reader", durable=False)
    both.publish(0)
    assert of(both.silence(1), Expired) == []
