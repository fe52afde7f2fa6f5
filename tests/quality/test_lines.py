"""A line of a log, sent to Kafka as it is: its `topic` and `timestamp` must be those of the record."""

import json
from typing import Any

import pytest

from schemas.commands import Line, Refused, decode, decode_or_refuse
from schemas.effects import Effect, Quarantined, SendReceipt
from streaming.log.partition import ingress_partition, topic_in_value
from streaming.quality.gate import gate
from tests.broker.kit import START, TOPIC, Run
from tests.quality.helpers import GOOD, value

OTHER = "persistent://public/default/other"

COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"


def line(kind: str = "PUBLISH", **coordinates: Any) -> bytes:
    return json.dumps(coordinates | json.loads(value(kind))).encode()


def fold(record: bytes, topic: str | None = TOPIC) -> list[Effect]:
    """The effects of a record with the time `START`, through the gate."""
    run = Run(now=START)
    (command,) = gate().judge([topic], [record])
    run.broker.apply(1, START, topic, command, record)
    return [row.effect for row in run.broker.take()]


@pytest.mark.parametrize("kind", GOOD)
def test_every_command_may_be_a_line(kind: str) -> None:
    topic = COORDINATOR if kind.endswith("_TXN") or kind.startswith("TC_") else TOPIC
    for coordinates in ({"topic": topic}, {"timestamp": START}, {"timestamp": START, "topic": topic}):
        found = decode_or_refuse(line(kind, **coordinates))
        assert isinstance(found, Line)
        assert found == (decode(value(kind)), coordinates.get("topic"), coordinates.get("timestamp"))
        assert fold(line(kind, **coordinates), topic) == fold(value(kind), topic)


def test_coordinates_that_agree() -> None:
    for coordinates in (
        {"topic": TOPIC},
        {"timestamp": START},
        {"topic": TOPIC, "timestamp": START},
        {"topic": None},
        {"topic": ""},
    ):
        assert isinstance(fold(line(**coordinates))[-1], SendReceipt)
    admin = line("ADMIN", timestamp=START).replace(
        b"/persistent/public/default/t/stats", b"/namespaces/public/default"
    )
    assert not isinstance(fold(admin, None)[0], Quarantined)


@pytest.mark.parametrize(
    ("record", "topic", "cause"),
    [
        (line(topic=OTHER), TOPIC, f"`topic` {OTHER} differs from the record's key {TOPIC}"),
        (line(timestamp=START + 1), TOPIC, f"`timestamp` {START + 1} differs from the record's time {START}: leave it out"),
        (line(topic=TOPIC, timestamp=0), TOPIC, "`timestamp` 0 differs"),
        (line(topic=TOPIC), None, "the record has no key"),
    ],
)  # fmt: skip
def test_coordinates_that_disagree(record: bytes, topic: str | None, cause: str) -> None:
    (row,) = fold(record, topic)
    assert isinstance(row, Quarantined)
    assert (row.topic, row.rule, row.payload) == (topic, "coordinates", record)
    assert row.cause.startswith(cause)


@pytest.mark.parametrize(
    "record",
    [
        line(topic=5),
        line(timestamp="now"),
        line(timestamp=2**63),
        line(partition=1),
        line(offset=1),
        line(topic=TOPIC, unknown=1),
        line(timestamp=START, partition=1),
        value("SEND", metadata__topic=TOPIC),
        b'{"topic": "x", "timestamp": 1}',
        b'{"timestamp": 1, "topic": "x", "command": "NOTHING"}',
    ],
)
def test_other_fields_are_as_unknown_as_before(record: bytes) -> None:
    found = decode_or_refuse(record)
    assert isinstance(found, Refused)
    assert found.rule == "malformed"


def test_the_rules_of_the_suites_hold_for_lines() -> None:
    record = json.dumps({"topic": TOPIC, "producer": "", "sequence_id": 1}).encode()
    records = [value("TICK"), record, line(topic=TOPIC), value("PUBLISH")]
    found = list(gate().judge([TOPIC] * 4, records))
    assert [type(each) for each in found[::2]] == [type(decode(value("TICK"))), Line]
    assert isinstance(found[1], Refused)
    assert found[1].rule == "input.PUBLISH/producer_length"
    assert found[3] == decode(value("PUBLISH"))


def test_a_topic_stands_in_for_a_key_in_its_own_partition_only() -> None:
    record = line("SUBSCRIBE", topic=TOPIC)
    own = ingress_partition(TOPIC, 4)
    assert [topic_in_value(record, partition, 4) for partition in range(4)] == [
        TOPIC if partition == own else None for partition in range(4)
    ]
    assert topic_in_value(record, 0, 1) == TOPIC
    for other in (value("PUBLISH"), line(topic=""), line(timestamp=1), line(topic=5), b"", b"\x80"):
        assert topic_in_value(other, 0, 1) is None
