"""Long silences: the rounds of checks that do nothing are passed over, and nobody can tell."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.commands import Tick, to_json
from streaming.broker.broker import Broker
from streaming.broker.effects import Row
from streaming.broker.entries import NoEntries
from tests.broker.kit import START, Run
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
        broker.apply(offset, now, topic, to_json(command))
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
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_passing_over_rounds_makes_no_difference(log: list[Record]) -> None:
    assert folded(Broker, log) == folded(Patient, log)


@pytest.mark.parametrize(
    "settings", [{}, {"ttlDurationDefaultInSeconds": 60}, {"brokerDeduplicationEnabled": True}]
)
def test_years_pass_in_a_moment(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
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
