"""Command logs as files: the three forms, and ingress partitions."""

import gzip
import json
import os
import zlib
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.commands import Publish, decode
from schemas.records import RECORD
from streaming.log.files import appending, read_log, write_log
from streaming.log.partition import partition_log
from streaming.log.table import LOGICAL, LogError, log_table, ordered, slices

TICK = b'{"command":"TICK"}'


def lines(path: Path, *objects: Any) -> Path:
    text = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in objects)
    data = text.encode("utf-8", "surrogateescape")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def logical(*records: tuple[int, str | None, bytes]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"timestamp": time, "topic": topic, "value": value} for time, topic, value in records], LOGICAL
    )


@pytest.mark.feature("J1")
@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_lines_become_values_without_their_coordinates(tmp_path: Path, name: str) -> None:
    log = read_log(
        lines(
            tmp_path / name,
            {"timestamp": 5, "topic": "t", "producer": "p", "sequence_id": 2**63 - 1, "payload": "ü"},
            "",
            {"command": "TICK", "topic": None},
            {"timestamp": 7, "topic": "", "command": "TICK"},
        )
    )
    assert log.schema == LOGICAL
    assert log["timestamp"].to_pylist() == [5, 5, 7]
    assert log["topic"].to_pylist() == ["t", None, None]
    values = log["value"].to_pylist()
    assert decode(values[0]) == Publish(producer="p", sequence_id=2**63 - 1, payload="ü")
    assert values[1:] == [TICK, TICK]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = lines(tmp_path / "log.jsonl", {"timestamp": 3, "command": "TICK"}, {"command": "TICK"})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_log(path)["value"].to_pylist() == [TICK, TICK]


@pytest.mark.feature("J1", "J6")
def test_a_line_that_is_no_object_is_kept_as_it_is(tmp_path: Path) -> None:
    log = read_log(lines(tmp_path / "log.jsonl", {"timestamp": 3, "command": "TICK"}, "[1, 2]", "\udcff{"))
    assert log["value"].to_pylist() == [TICK, b"[1, 2]", b"\xff{"]
    assert log["timestamp"].to_pylist() == [3, 3, 3]


@pytest.mark.feature("J1", "J6")
def test_a_coordinate_of_a_wrong_type_stays_in_the_value(tmp_path: Path) -> None:
    log = read_log(lines(tmp_path / "log.jsonl", {"timestamp": "noon", "topic": 3, "command": "TICK"}))
    assert json.loads(log["value"][0].as_py()) == {"timestamp": "noon", "topic": 3, "command": "TICK"}
    assert log["topic"].to_pylist() == [None]


@pytest.mark.feature("J1")
def test_partitions_and_offsets_of_a_log_are_kept_and_filled(tmp_path: Path) -> None:
    log = read_log(
        lines(
            tmp_path / "log.jsonl",
            {"partition": 1, "offset": 7, "timestamp": 1, "command": "TICK"},
            {"partition": 0, "timestamp": 1, "command": "TICK"},
            "garbage",
            {"partition": 1, "command": "TICK"},
        )
    )
    assert log.schema == RECORD
    assert log["partition"].to_pylist() == [1, 0, 0, 1]
    assert log["offset"].to_pylist() == [7, 0, 1, 8]


@pytest.mark.feature("J1")
def test_offsets_that_fall_are_an_error(tmp_path: Path) -> None:
    path = lines(tmp_path / "log.jsonl", *({"partition": 0, "offset": n, "command": "TICK"} for n in (1, 1)))
    with pytest.raises(LogError, match="line 2: offset 1 of partition 0 follows 1"):
        read_log(path)


@pytest.mark.feature("B3", "J1")
def test_short_parquet_is_plain_publishing(tmp_path: Path) -> None:
    table = pa.table(
        {
            "topic": ["a", "b"],
            "producer": ["p", "q"],
            "sequence_id": [0, 2**62],
            "payload": pa.array([b"\x00\xff", b""]),
            "timestamp": pa.array([1000, 2000], pa.timestamp("ms", "UTC")),
            "key": [None, "k"],
            "properties": pa.array([[("x", "y")], None], pa.map_(pa.string(), pa.string())),
        }
    )
    pq.write_table(table, tmp_path / "short.parquet")
    log = read_log(tmp_path / "short.parquet")
    assert [decode(value) for value in log["value"].to_pylist()] == [
        Publish(producer="p", sequence_id=0, payload_bytes=b"\x00\xff", properties={"x": "y"}),
        Publish(producer="q", sequence_id=2**62, key="k"),
    ]
    assert log["timestamp"].to_pylist() == [1000, 2000]


@pytest.mark.feature("J1")
def test_short_parquet_with_text_and_without_times(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"topic": ["a"], "producer": ["p"], "sequence_id": [1], "payload": ["é"]}),
        tmp_path / "s.parquet",
    )
    log = read_log(tmp_path / "s.parquet")
    assert decode(log["value"][0].as_py()) == Publish(producer="p", sequence_id=1, payload="é")
    assert log["timestamp"].to_pylist() == [0]


@pytest.mark.feature("J1")
def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(LogError, match="columns x. Expected"):
        read_log(tmp_path / "x.parquet")
    (tmp_path / "x.csv").touch()
    with pytest.raises(LogError, match=r"expected a name ending in \.jsonl"):
        read_log(tmp_path / "x.csv")
    with pytest.raises(FileNotFoundError, match="no such log"):
        read_log(tmp_path / "absent.jsonl")


@pytest.mark.feature("J1")
def test_a_topic_goes_to_one_partition_and_the_topicless_to_all() -> None:
    log = logical((1, "a", b"1"), (2, None, TICK), (3, "b", b"2"), (4, "a", b"3"))
    records = partition_log(log, 3)
    assert records.schema == RECORD
    for partition in range(3):
        own = records.filter(pa.compute.equal(records["partition"], partition))
        assert own["offset"].to_pylist() == list(range(len(own)))
        expected = [t for t in ("a", None, "b", "a") if t is None or zlib.crc32(t.encode()) % 3 == partition]
        assert own["topic"].to_pylist() == expected
    assert records["timestamp"].to_pylist() == sorted(records["timestamp"].to_pylist())


@pytest.mark.feature("J1", "J6")
def test_what_speaks_to_no_partition_is_quarantined_once() -> None:
    bad = b'{"producer":"p","sequence_id":1}'  # a message, but of which topic?
    records = partition_log(logical((1, None, b"garbage"), (2, None, bad)), 4)
    assert records["partition"].to_pylist() == [0, 0]


@pytest.mark.feature("J1")
def test_partitioning_again_makes_copies_one() -> None:
    log = logical(
        (1, None, TICK), (2, "a", b"1"), (3, None, TICK), (3, None, TICK), (4, "b", b"2"), (9, "c", b"3")
    )
    once = partition_log(log, 5)
    # As a dump of one partition after the other.
    dump = once.sort_by([("partition", "ascending"), ("offset", "ascending")])
    again = partition_log(dump, 2)
    straight = partition_log(log, 2)
    assert again.equals(straight)


@pytest.mark.feature("J1")
@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.parquet"])
def test_written_and_read_again(tmp_path: Path, name: str) -> None:
    value = b'{"producer":"p","sequence_id":1}'
    for log in (
        logical((1, "a", value), (2, None, TICK)),
        partition_log(logical((1, "a", value), (2, None, TICK)), 2),
    ):
        write_log(tmp_path / name, log)
        assert read_log(tmp_path / name).equals(log)


@pytest.mark.feature("J1")
def test_what_no_line_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="write Parquet"):
        write_log(tmp_path / "log.jsonl", logical((1, "a", b"two\nlines")))
    with pytest.raises(LogError, match="a field with the name of a coordinate"):
        write_log(tmp_path / "log.jsonl", logical((1, "a", b'{"topic":1}')))


@pytest.mark.feature("J1")
def test_order() -> None:
    records = pa.Table.from_pylist(
        [
            {"partition": p, "offset": o, "timestamp": 0, "value": b""}
            for p, o in ((1, 0), (0, 5), (1, 2), (0, 6))
        ],
        RECORD,
    )
    assert ordered(records) is records
    mixed = records.take([2, 0, 1, 3])
    assert ordered(mixed)["offset"].to_pylist() == [5, 6, 0, 2]
    with pytest.raises(LogError, match="twice"):
        ordered(pa.concat_tables([records, records]))


@pytest.mark.feature("J3")
@pytest.mark.parametrize(("rows", "batches", "sizes"), [(7, 3, [2, 2, 3]), (2, 5, [1, 1]), (0, 3, [0])])
def test_slices(rows: int, batches: int, sizes: list[int]) -> None:
    assert [len(part) for part in slices(pa.table({"x": list(range(rows))}), batches)] == sizes


def test_a_folder_of_lines_is_one_log_in_the_order_of_its_files(tmp_path: Path) -> None:
    tick = b'{"partition":0,"offset":%d,"timestamp":%d,"command":"TICK"}\n'
    (tmp_path / "10.jsonl").write_bytes(tick % (10, 2) + tick % (11, 3))
    (tmp_path / "09.jsonl").write_bytes(tick % (9, 1))
    assert read_log(tmp_path)["offset"].to_pylist() == [9, 10, 11]
    assert read_log(tmp_path)["timestamp"].to_pylist() == [1, 2, 3]


def test_a_log_on_a_full_disk_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(before := b'{"command":"TICK"}')
    records = log_table(LOGICAL, timestamp=[1], topic=pa.array(["t"]), value=[TICK])
    write = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) > 20:
            return write(file, data[:20])
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left") as failed, appending(path) as append:
        append(records)
    assert (path.read_bytes(), failed.value.filename) == (before, str(path))
    monkeypatch.setattr(os, "write", write)
    with appending(path) as append:
        append(records)
    assert len(read_log(path)) == 2


def test_a_link_to_a_log_that_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "log.jsonl")
    with appending(tmp_path / "link.jsonl") as append:
        append(log_table(LOGICAL, timestamp=[1], topic=pa.array(["t"]), value=[TICK]))
    assert read_log(tmp_path / "log.jsonl")["timestamp"].to_pylist() == [1]


def test_a_folder_with_logs_of_two_kinds_is_none(tmp_path: Path) -> None:
    """It was read as its JSON Lines alone."""
    line = b'{"timestamp":1,"command":"TICK"}\n'
    (tmp_path / "a.jsonl").write_bytes(line)
    write_log(tmp_path / "b.parquet", read_log(tmp_path / "a.jsonl"))
    with pytest.raises(LogError, match=r"two kinds, such as a\.jsonl and b\.parquet"):
        read_log(tmp_path)
    (tmp_path / "b.parquet").unlink()
    (tmp_path / ".b.jsonl").write_bytes(line)  # what an editor or a file server keeps
    (tmp_path / "._a.jsonl").write_bytes(b"\0")
    assert len(read_log(tmp_path)) == 1
