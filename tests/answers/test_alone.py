"""What a policy set is told does not depend on what else is asked, nor on when a log begins."""

from typing import Any
from unittest import mock

import pytest

from streaming.answers.advise.needs import advise
from streaming.answers.whatif.answer import BASELINE
from streaming.answers.whatif.compare import PolicySet, whatif
from tests.answers import test_whatif
from tests.answers.test_reactive import as_table
from tests.answers.test_settled import POLICIES
from tests.answers.test_whatif import Record, T, ack, broker, flow, publish, subscribe, table, tick, ttl
from tests.broker.random_lives import live
from tests.broker.recorded_lives import WITHOUT_PAYLOADS

STAMPED = PolicySet(
    "stamped",
    broker(
        brokerEntryMetadataInterceptors="org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor",
        ttlDurationDefaultInSeconds=20,
    ),
)
UNSTAMPED = PolicySet("unstamped", broker(brokerEntryMetadataInterceptors="", ttlDurationDefaultInSeconds=20))


TIMES = ("publish_time", "baseline_clock", "proposed_clock", "baseline_delivered", "proposed_delivered")

OTHERS = {"open_loop_from", "storage", "peak_storage", "peak_oldest"}
"""Besides the time: a later one takes more bytes, and checks come with other records."""


def told(log: Any, asked: list[PolicySet], name: str) -> list[Any]:
    """All that an answer says of a policy set and of the baseline."""
    found = whatif(log, asked, partitions=1, processes=1)
    rows = [
        row
        for each in (found.summary, found.differences, found.series)
        for row in each.to_pylist()
        if row["policies"] in (name, BASELINE)
    ]
    return [[each for each in found.totals if each.policies in (name, BASELINE)], rows]


@pytest.mark.parametrize(("theme", "seed"), WITHOUT_PAYLOADS)
def test_a_policy_set_alone_and_among_others(theme: str, seed: int) -> None:
    log = as_table(live(theme, seed).log)
    sets = [POLICIES[seed % 2], STAMPED, POLICIES[2], UNSTAMPED]
    first = sets[seed % 4]
    assert told(log, [first], first.name) == told(log, sets, first.name)


def consumed() -> list[Record]:
    """Five of ten messages are acked, all at the first second; then time passes."""
    return [
        subscribe(), flow(0, 8), *(publish(0, number) for number in range(10)), ack(0, 0, 1, 2, 3, 4),
        *map(tick, range(0, 900, 60)),
    ]  # fmt: skip


def test_a_log_without_times_begins_at_0() -> None:
    answers = []
    for start in (0, 1, 1_000_000):
        with mock.patch.object(test_whatif, "START", start):
            log = table(consumed())
        found = whatif(log, [PolicySet("ttl", ttl(300))], partitions=1)
        summary = [
            {name: value for name, value in row.items() if name not in OTHERS}
            for row in found.summary.to_pylist()
        ]
        differences = [
            row | {name: row[name] - start for name in TIMES if row[name] is not None}
            for row in found.differences.to_pylist()
        ]
        answers.append(
            [
                [each.differences for each in found.totals],
                summary,
                differences,
                advise(log, partitions=1).needs,
            ]
        )
    assert answers[0] == answers[1] == answers[2]
    lost = answers[0][2]
    assert [row["baseline_delivered"] for row in lost] == [0, 0, 0, None, None]


def test_the_names_that_the_baseline_makes_up_are_the_producers() -> None:
    """Under a policy set that refuses the first producer, the second one would have the first name."""
    other = T.replace("/t", "/u")
    records: list[Record] = [
        (0, T, {"command": "ADMIN", "method": "PUT", "path": f"/{T.replace('://', '/')}"}),
        subscribe(),
        *((0, topic, {"command": "PRODUCER", "connection": topic, "producer_id": 1, "request_id": 1}) for topic in (other, T)),
        (1, T, {
            "command": "SEND", "connection": T, "producer_id": 1, "sequence_id": 0, "payload": "x",
            "metadata": {"producer_name": "recorded", "sequence_id": 0, "publish_time": test_whatif.START},
        }),
        tick(600), tick(1200),
    ]  # fmt: skip
    log = table(records, allowAutoTopicCreation=True)
    refusing = PolicySet("r", broker(allowAutoTopicCreation=False, ttlDurationDefaultInSeconds=60))
    (row,) = whatif(log, [refusing], partitions=1).differences.to_pylist()
    assert (row["change"], row["producer"]) == ("lost newly", "standalone-0-1")
