"""What a copy finds in its topic: the beginning of itself, or records of another one."""

from contextlib import nullcontext

import pyarrow as pa
import pytest

from schemas.commands import Tick, to_json
from schemas.records import RECORD
from streaming.kafka import copies
from streaming.kafka.config import PLAIN
from streaming.kafka.produce import NotProduced
from streaming.kafka.url import KafkaUrl
from streaming.log.table import log_table

Row = tuple[int, int, str | None, bytes]

SENT: list[Row] = [
    (0, 50, None, to_json(Tick())), (1, 50, None, to_json(Tick())), (1, 60, "a", b"1"), (0, 61, "b", b"2"), (1, 62, "a", b"3"),
]  # fmt: skip
"""Partition, timestamp, topic and value, in the order in which they are sent."""
OTHERS: list[list[Row]] = [
    [(0, 51, None, to_json(Tick()))],  # another query's tick
    [*SENT[:2], (1, 60, "a", b"2")],
    [*SENT[:2], (1, 60, "c", b"1")],
    [*SENT[:2], (1, 60, None, b"1")],
    [SENT[0], SENT[0]],
    [*SENT, SENT[0]],
    [*SENT[:2], SENT[3]],
]


def table(rows: list[Row]) -> pa.Table:
    partition, timestamp, topic, value = map(list, zip(*rows, strict=True))
    return log_table(
        RECORD, partition=partition, offset=[*range(len(rows))], timestamp=timestamp, topic=pa.array(topic, pa.string()),
        value=value,
    )  # fmt: skip


def present(rows: list[Row], monkeypatch: pytest.MonkeyPatch, *, is_repeat: bool = True) -> int:
    monkeypatch.setattr(copies, "administration", lambda *_: nullcontext())
    monkeypatch.setattr(copies, "topic_offsets", lambda *_: {0: (0, 9), 1: (0, 9)})
    by_partition = sorted(rows, key=lambda row: -row[0])  # of several partitions, Kafka knows no order
    monkeypatch.setattr(copies, "read_records", lambda *_: [table(by_partition)] if rows else [])
    return copies._present(table(SENT), KafkaUrl("h:1", "t"), PLAIN, is_repeat=is_repeat)


@pytest.mark.parametrize("done", range(len(SENT) + 1))
def test_a_copy_goes_on_after_its_own_records(done: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert present(SENT[:done], monkeypatch) == done


@pytest.mark.parametrize("rows", OTHERS)
def test_the_records_of_another_copy_are_not_its_own(
    rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotProduced, match="topic t has records that this copy did not write. Start again"):
        present(rows, monkeypatch)


def test_a_first_attempt_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another move of an equal query began to write to the topic after both had looked."""
    assert present([], monkeypatch, is_repeat=False) == 0
    with pytest.raises(NotProduced, match="topic t has records that this copy did not write"):
        present(SENT[:1], monkeypatch, is_repeat=False)
