"""A log with partitions, made one order again: every topic must see what its partition showed it."""

from collections import defaultdict
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.records import RECORD
from schemas.units import LATEST_TIME
from streaming.log.merge import merge_partitions
from streaming.log.partition import partition_log
from streaming.log.table import LOGICAL, LogError
from tests.examples import examples

pytestmark = pytest.mark.feature("J1")

TICK, CONNECT = b'{"command":"TICK"}', b'{"command":"CONNECT","connection":"c"}'
CONFIG, CHECK = b'{"command":"BROKER_CONFIG"}', b'{"command":"RUN_CHECK","check":"backlogQuota"}'
LOST = b'{"command":"CONNECTION_LOST","connection":"c"}'
POLICY = b'{"command":"ADMIN","method":"POST","path":"/namespaces/a/b/messageTTL","body":1}'
OF_TOPIC = b'{"command":"ADMIN","method":"POST","path":"/persistent/a/b/t/messageTTL","body":1}'
FOR_ALL = [CONFIG, CHECK, LOST, POLICY]

Line = tuple[int, int, str | None, bytes]
"""Partition, timestamp, topic, value. Offsets count on."""


def log(*lines: Line) -> pa.Table:
    count: dict[int, int] = defaultdict(int)
    rows = []
    for partition, timestamp, topic, value in lines:
        rows.append(
            {
                "partition": partition,
                "offset": count[partition],
                "timestamp": timestamp,
                "topic": topic,
                "value": value,
            }
        )
        count[partition] += 1
    return pa.Table.from_pylist(rows, RECORD)


def merged(*lines: Line, **more: Any) -> list[tuple[int, str | None, bytes]]:
    return [tuple(row.values()) for row in merge_partitions(log(*lines), **more).log.to_pylist()]


# ---- the property


def seen(records: pa.Table) -> dict[str, list[tuple[int, bytes]]]:
    """By topic what its partition shows it: its own records and those for all, each at the time it found."""
    shown: dict[str, list[tuple[int, bytes]]] = {}
    rows = records.to_pylist()
    for topic in {row["topic"] for row in rows if row["topic"] is not None}:
        (home,) = {row["partition"] for row in rows if row["topic"] == topic}
        clock, shown[topic] = 0, []
        for row in (row for row in rows if row["partition"] == home):
            if row["timestamp"] <= LATEST_TIME:
                clock = max(clock, row["timestamp"])
            if row["topic"] == topic or row["value"] in FOR_ALL:
                # A record of a time that can't be is quarantined, whenever.
                shown[topic].append((clock if row["timestamp"] <= LATEST_TIME else 0, row["value"]))
    return shown


@st.composite
def logical(draw: st.DrawFn) -> pa.Table:
    """Records of a few topics, for all and of no meaning, with times that go back now and then."""
    rows, now = [], 0
    for number in range(draw(st.integers(0, 30))):
        now += draw(st.sampled_from([0, 0, 1, 5, 5, -4]))
        kind = draw(st.integers(0, 6))
        topic = draw(st.sampled_from("abcdefg")) if kind < 4 else None
        own = b'{"producer":"p","sequence_id":%d}' % number
        value = own if kind < 4 else draw(st.sampled_from([*FOR_ALL, TICK, CONNECT, b"rubbish"]))
        time = draw(st.sampled_from([max(0, now)] * 9 + [LATEST_TIME + 1]))
        rows.append({"timestamp": time, "topic": topic, "value": value})
    return pa.Table.from_pylist(rows, LOGICAL)


@given(logical(), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=examples(60))
def test_every_topic_sees_what_it_saw(first: pa.Table, before: int, after: int) -> None:
    old = partition_log(first, before)
    dump = old.sort_by([("partition", "ascending"), ("offset", "ascending")])  # one partition after the other
    again = merge_partitions(dump)
    new = partition_log(again.log, after)
    expected, found = seen(old), seen(new)
    assert found.keys() == expected.keys()
    lag = any("clocks up to" in note for note in again.notes)
    for topic, shown in expected.items():
        assert [value for _, value in found[topic]] == [value for _, value in shown]
        assert lag or found[topic] == shown
    for value in FOR_ALL:  # copies became one
        times = sum(each == value for each in first["value"].to_pylist())
        homes = old.filter(pa.compute.is_valid(old["topic"]))["partition"].unique()
        assert again.log["value"].to_pylist().count(value) == times or not len(homes)
    assert again.log["value"].to_pylist().count(b"rubbish") == first["value"].to_pylist().count(b"rubbish")


def said(records: pa.Table, saying: st.DataObject) -> pa.Table:
    """The same records, of which some say in their value what topic and time they have."""
    rows = records.to_pylist()
    for row in rows:
        fields = {name: row[name] for name in ("timestamp", "topic") if saying.draw(st.booleans())}
        if fields and row["value"] != b"rubbish":
            row["value"] = msgspec.json.encode(msgspec.json.decode(row["value"]) | fields)
    return pa.Table.from_pylist(rows, records.schema)


@given(logical(), st.integers(1, 5), st.integers(1, 5), st.data())
@settings(max_examples=examples(60))
def test_a_value_that_says_what_its_record_has_is_merged_as_one_that_does_not(
    first: pa.Table, before: int, after: int, saying: st.DataObject
) -> None:
    old = partition_log(first, before)
    assert merge_partitions(said(old, saying)) == merge_partitions(old)
    # A log without partitions gets them as it is.
    coordinates = ["partition", "offset", "timestamp", "topic"]
    assert partition_log(said(first, saying), after).select(coordinates) == partition_log(first, after).select(coordinates)  # fmt: skip


def test_a_value_that_contradicts_its_record_is_left_out() -> None:
    other_time, other_topic, no_key = (
        b'{"producer":"p","sequence_id":1,"timestamp":8}',
        b'{"producer":"p","sequence_id":1,"topic":"b"}',
        b'{"producer":"p","sequence_id":1,"topic":"a"}',
    )
    records = log((0, 7, "a", b"1"), (0, 7, "a", other_time), (0, 7, "a", other_topic), (0, 7, None, no_key))
    found = merge_partitions(records)
    assert found.log["value"].to_pylist() == [b"1"]
    assert found.notes[0].startswith("3 records were left out: the `topic` or `timestamp` in their value")


def test_a_value_that_contradicts_its_record_partitions_no_topic() -> None:
    whole = "persistent://a/b/t"
    call = b'{"command":"ADMIN","method":"PUT","path":"/persistent/a/b/t/partitions","body":2,"timestamp":%d}'
    later = b'{"command":"ADMIN","method":"POST","path":"/persistent/a/b/t/retention","body":null}'
    for time, copies in ((7, 3), (8, 1)):
        rows = [
            {"timestamp": 7, "topic": whole, "value": call % time},
            {"timestamp": 9, "topic": whole, "value": later},
        ]
        found = partition_log(pa.Table.from_pylist(rows, LOGICAL), 3)
        assert len(found) == 2 * copies
        assert found["topic"].null_count == (2 * copies if copies > 1 else 0)


def test_a_record_from_the_future_takes_no_other_along() -> None:
    lines: list[Line] = [(0, 7, "a", b"1"), (0, 999, "a", b"2"), (0, 8, "a", b"3"), (1, 9, "b", b"4")]
    assert merged(*lines, latest=500) == [(7, "a", b"1"), (999, "a", b"2"), (8, "a", b"3"), (9, "b", b"4")]
    assert [time for time, *_ in merged(*lines)] == [7, 9, 999, 999]


# ---- cases


def test_what_was_before_a_record_for_all_stays_before_it() -> None:
    """By time alone, a@9 would come after the policy, which partition 1 saw at 5."""
    lines: list[Line] = [
        (0, 9, "a", b"1"),
        (0, 5, None, POLICY),
        (0, 9, "a", b"2"),
        (1, 5, None, POLICY),
        (1, 6, "b", b"3"),
    ]
    assert merged(*lines) == [(9, "a", b"1"), (9, None, POLICY), (6, "b", b"3"), (9, "a", b"2")]
    notes = merge_partitions(log(*lines)).notes
    assert (
        notes[0]
        == "the copies of records without a topic met clocks up to 4 ms apart: each counts at the latest"
    )


def test_a_record_has_the_time_that_it_found() -> None:
    lines: list[Line] = [
        (0, 7, "a", b"1"),
        (0, 0, "a", b"2"),
        (0, LATEST_TIME + 1, "a", b"3"),
        (0, 3, "a", b"4"),
    ]
    assert merged(*lines) == [(7, "a", b"1"), (7, "a", b"2"), (LATEST_TIME + 1, "a", b"3"), (7, "a", b"4")]


def test_ticks_of_a_trigger_are_part_of_the_time() -> None:
    ticks = pa.table({"partition": [0, 0, 1], "offset": [0, 2, 0], "clock": [50, 90, 40]})
    lines: list[Line] = [(0, 1, "a", b"1"), (0, 2, "a", b"2"), (0, 60, "a", b"3"), (1, 3, "b", b"4")]
    assert merged(*lines, ticks=ticks) == [
        (1, "a", b"1"), (3, "b", b"4"), (50, "a", b"2"), (60, "a", b"3"), (90, None, TICK),
    ]  # fmt: skip
    assert merged(*lines, ticks=ticks.slice(0, 0)) == merged(*lines)


def test_ticks_and_connects_may_differ() -> None:
    lines: list[Line] = [(0, 1, None, TICK), (0, 1, None, TICK), (0, 2, "a", b"1"), (1, 1, None, TICK), (1, 3, "b", b"2"),
                         (1, 4, None, CONNECT)]  # fmt: skip
    assert merged(*lines) == [(1, None, TICK)] * 2 + [(2, "a", b"1"), (3, "b", b"2"), (4, None, CONNECT)]


def test_a_partition_without_topics_has_no_say() -> None:
    assert merged((0, 1, None, CONFIG), (0, 2, "a", b"1"), (1, 5, None, CHECK), (1, 0, None, b"rubbish")) == [
        (1, None, CONFIG), (2, "a", b"1"), (5, None, b"rubbish"),
    ]  # fmt: skip
    assert merged((0, 1, None, CONFIG), (1, 1, None, CONFIG)) == [(1, None, CONFIG)]
    assert merged() == []


@pytest.mark.parametrize("value", [b"rubbish", OF_TOPIC, b'{"producer":"p","sequence_id":1}'])
def test_what_is_for_no_partition_is_kept_as_it_is(value: bytes) -> None:
    lines: list[Line] = [(0, 1, "a", b"1"), (0, 2, None, value), (1, 1, "b", b"2"), (1, 2, None, value)]
    assert [each for *_, each in merged(*lines)] == [b"1", b"2", value, value]
    assert partition_log(log(*lines), 3)["value"].to_pylist().count(value) == 2


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([(0, 1, None, CHECK)], "partition 0, offset 1: .*RUN_CHECK.* and partition 1 has no equal"),
        ([(1, 1, None, CHECK)], "partition 1, offset 1: .*RUN_CHECK.* and partition 0 has no equal"),
        ([(0, 1, None, LOST), (0, 1, None, POLICY), (1, 1, None, POLICY), (1, 1, None, LOST)],
         "partition 0, offset 1: .*CONNECTION_LOST.* and partition 1 has no equal"),
        ([(0, 1, "b", b"3")], "topic b has records in partitions 0 and 1, where it is two topics"),
    ],
)  # fmt: skip
def test_what_has_no_order_for_all_is_refused(lines: list[Line], sentence: str) -> None:
    records = log((0, 1, "a", b"1"), (1, 1, "b", b"2"), *lines)
    with pytest.raises(LogError, match=sentence):
        merge_partitions(records)
    with pytest.raises(LogError, match=sentence):
        partition_log(records, 3)


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        ([(0, 1, None, CONFIG), (0, 2, "a", b""), (1, 1, None, CONFIG), (1, 2, "b", b"")], None),
        ([(0, 1, None, TICK), (0, 2, "a", b""), (1, 1, None, TICK), (1, 2, "b", b"")], None),
        ([(0, 0, None, CONFIG), (0, 1, "a", b""), (1, 0, None, CONFIG), (1, 1, "b", b"")], "periodic checks"),
        ([(0, 1, None, TICK), (0, 2, "a", b""), (1, 2, "b", b"")], "periodic checks"),
        ([(0, 1, "a", b"")], "periodic checks"),
        ([(0, 1, None, CONFIG.replace(b"}", b',"settings":{"maxUnackedMessagesPerBroker":"5"}}')), (0, 1, "a", b"")],
         "other topics share it now"),
        ([(0, 1, None, CONFIG.replace(b"}", b',"settings":{"maxUnackedMessagesPerBroker":0}}')), (0, 1, "a", b"")], None),
    ],
)  # fmt: skip
def test_what_may_come_out_otherwise_is_told(lines: list[Line], note: str | None) -> None:
    notes = merge_partitions(log(*lines)).notes
    assert len(notes) == (note is not None)
    assert note is None or note in notes[0]
