"""A log larger than memory: it is read and taken apart in pieces, in a file, and is the same log."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from schemas.records import RECORD
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.jobs.replay import load
from streaming.log import spool
from streaming.log.files import read_log, write_log
from streaming.log.partition import by_partition, partition_log
from streaming.log.pins import pin, pins
from streaming.log.policies import read_policies
from streaming.log.spool import Spool
from streaming.log.table import LogError, digest, ordered, replaced, taken
from streaming.quality.gate import judge
from tests.answers.test_whatif import broker, eviction, ttl

TOPICS = [None, "persistent://a/b/t", "persistent://a/b/u", "persistent://a/b/t-partition-0"]
WHOLE = "/persistent/a/b/t/partitions"


@pytest.fixture
def small() -> Iterator[None]:
    """Pieces of seven rows, all of them in files."""
    with mock.patch.multiple(spool, IN_MEMORY=-1, ROWS=7):
        yield


def lines(seed: int, count: int = 100, *, partitions: bool = False) -> Iterator[dict[str, Any]]:
    draw, offsets, time = Random(seed), {0: 1}, 1_700_000_000_000
    yield {"timestamp": time, "command": "BROKER_CONFIG", "settings": {"ttlDurationDefaultInSeconds": 30}}
    yield {"timestamp": time, "command": "ADMIN", "method": "PUT", "path": WHOLE, "body": 2}
    for number in range(count):
        time += draw.randrange(2000)
        topic = draw.choice(TOPICS)
        line: dict[str, Any] = {"command": "TICK"} if draw.random() < 0.2 else {}
        if topic is None:
            line = {"command": draw.choice(["TICK", "FLOW", "BROKER_CONFIG"])}
        elif not line:
            line = {"producer": "p", "sequence_id": number, "payload": "x" * draw.randrange(9)}
        coordinates: dict[str, Any] = {"timestamp": time} if draw.random() < 0.9 else {}
        if partitions:
            home = 0 if topic is None else TOPICS.index(topic) % 3
            offsets[home] = offsets.get(home, -1) + draw.randrange(1, 3)
            coordinates |= {"partition": home, "offset": offsets[home]}
        yield coordinates | ({"topic": topic} if topic else {}) | line


def logs(folder: Path, seed: int) -> list[Path]:
    """A log in each of the forms that there are, without ingress partitions and with them."""
    found = []
    for name in ("plain", "parts"):
        path = folder / f"{name}.jsonl"
        rows = lines(seed, partitions=name == "parts")
        path.write_text("".join(json.dumps(each) + "\n" for each in rows))
        table = read_log(path)
        write_log(path.with_suffix(".parquet"), table)
        found += [path, path.with_suffix(".parquet")]
        if name == "parts":
            write_log(folder / "unnumbered.parquet", table)
            spare = pa.parquet.read_table(folder / "unnumbered.parquet").drop_columns(["offset"])
            pa.parquet.write_table(spare, folder / "unnumbered.parquet", row_group_size=13)
            found.append(folder / "unnumbered.parquet")
    short = {"topic": ["t"] * 40, "producer": ["p"] * 40, "sequence_id": range(40), "payload": ["x"] * 40}
    stamped = short | {"timestamp": [None if each % 3 else each for each in range(40)]}
    pa.parquet.write_table(pa.table(stamped), folder / "short.parquet", row_group_size=9)
    return [*found, folder / "short.parquet"]


@pytest.mark.parametrize("seed", range(4))
def test_a_log_that_is_read_in_pieces_is_the_same(seed: int, tmp_path: Path) -> None:
    for path in logs(tmp_path, seed):
        whole = read_log(path)
        parted = {} if "partition" in whole.column_names else {n: partition_log(whole, n) for n in (1, 3)}
        with mock.patch.multiple(spool, IN_MEMORY=-1, ROWS=7):
            assert read_log(path).equals(whole), path
            for partitions, expected in parted.items():
                assert partition_log(read_log(path), partitions).equals(expected), path


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(4))
def test_what_is_taken_apart_is_whole(seed: int, tmp_path: Path) -> None:
    for path in logs(tmp_path, seed)[2:5]:
        records = read_log(path)
        parts = by_partition(records)
        assert list(parts) == [0, 1, 2]
        for partition, own in parts.items():
            assert own.equals(records.filter(pc.equal(records["partition"], partition)))


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_the_same(seed: int, tmp_path: Path) -> None:
    policies = [PolicySet("ttl", ttl(5)), PolicySet("eviction", eviction(20)), PolicySet("b", broker(brokerDeduplicationEnabled=True))]  # fmt: skip
    for path in logs(tmp_path, seed)[:3:2]:

        def answer(path: Path = path) -> list[Any]:
            found = whatif(path, policies, profile="2.10", processes=1)
            return [found.totals, found.rules, found.summary.to_pylist(), found.differences.to_pylist()]

        whole = answer()
        records = load(path).records
        commands = read_policies(broker(brokerDeduplicationEnabled=True), records, judge)
        pinned, by_number = pin(records, commands), pins(records, commands)
        with mock.patch.multiple(spool, IN_MEMORY=-1, ROWS=7):
            assert answer() == whole
            records = load(path).records
            assert pin(records, commands).records.equals(pinned.records)
            assert pins(records, commands) == by_number


@pytest.mark.usefixtures("small")
def test_errors_name_the_row_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    columns = {"partition": [0] * 30, "offset": [*range(29), None], "value": [b"{}"] * 30}
    pa.parquet.write_table(pa.table(columns), path)
    with pytest.raises(LogError, match="row 29: there is no offset"):
        read_log(path)


@pytest.mark.usefixtures("small")
def test_offsets_that_do_not_rise_are_sorted_or_refused() -> None:
    def table(*offsets: int) -> pa.Table:
        return pa.Table.from_pylist([
            {"partition": number % 2, "offset": offset, "timestamp": 0, "value": b"{}"}
            for number, offset in enumerate(offsets)
        ], RECORD)  # fmt: skip

    rising = table(*range(20))
    assert ordered(rising) is rising
    falling = ordered(table(*range(20, 0, -1)))
    assert falling["offset"].to_pylist() == [*range(2, 21, 2), *range(1, 20, 2)]
    with pytest.raises(LogError, match="an offset occurs twice in a partition"):
        ordered(table(*range(18), 0, 1))


@pytest.mark.usefixtures("small")
def test_rows_are_replaced_in_every_piece() -> None:
    found = Spool(pa.schema([("n", pa.int64())]))
    for start in range(0, 50, 5):
        found.add(pa.table({"n": range(start, start + 5)}))
    others = {0: -1, 6: -2, 7: -3, 49: -4}
    expected = [others.get(number, number) for number in range(50)]
    assert replaced(found.table(), "n", others)["n"].to_pylist() == expected


def test_what_is_read_takes_no_memory_of_its_own(tmp_path: Path) -> None:
    """Neither of Python's nor of Arrow's, whatever the length of the log."""
    path, peaks = tmp_path / "log.jsonl", []
    with mock.patch.multiple(spool, IN_MEMORY=1 << 16, ROWS=1 << 9):
        for count in (4_000, 32_000):
            path.write_text("".join(json.dumps(each) + "\n" for each in lines(1, count)))
            before = pa.total_allocated_bytes()
            tracemalloc.start()
            records = partition_log(read_log(path), 3)
            peaks.append(tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - before)
            tracemalloc.stop()
            assert len(records) > count
    assert peaks[1] < 2 * peaks[0]


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    found = Spool(RECORD)
    with (
        mock.patch.object(spool, "IN_MEMORY", -1),
        Path("/dev/full").open("r+b", buffering=0) as full,
        mock.patch.object(spool, "TemporaryFile", return_value=full),
        mock.patch.object(spool, "gettempdir", return_value=str(tmp_path)),
        pytest.raises(OSError, match="No space left on device") as error,
    ):
        found.add(pa.table([[0], [0], [0], ["t"], [bytes(1 << 20)]], RECORD))
    assert error.value.filename == str(tmp_path)


def records(count: int, seed: int) -> pa.Table:
    """Records in a few chunks, the last ones longer than a piece."""
    draw, chunks, done = Random(seed), [RECORD.empty_table()], 0
    while done < count:
        size = min(draw.randrange(1, 30), count - done)
        columns = [
            [0] * size,
            range(done, done + size),
            [draw.randrange(9) for _ in range(size)],
            draw.choices(TOPICS, k=size),
            [draw.randbytes(draw.randrange(40)) for _ in range(size)],
        ]
        chunks.append(pa.table(columns, schema=RECORD))
        done += size
    return pa.concat_tables(chunks)


@pytest.mark.parametrize("seed", range(20))
def test_rows_in_another_order(seed: int, small: None) -> None:
    draw, table = Random(seed), records(100, seed)
    rows = [draw.randrange(100) for _ in range(draw.choice([0, 1, 50, 100]))]
    with mock.patch.object(spool, "BYTES", draw.choice([1, 30, 1 << 20])):
        found = taken(table, np.array(rows, np.int64))
    assert found.to_pylist() == table.take(pa.array(rows, pa.int64())).to_pylist()
    shuffled = taken(table, np.array(draw.sample(range(100), 100)))
    assert ordered(shuffled).to_pylist() == table.to_pylist()
    assert digest(ordered(shuffled)) == digest(table) == digest(table.combine_chunks())
    assert digest(table.slice(30)) != digest(table.slice(31))


def test_rows_of_a_table_of_more_than_2_gib() -> None:
    value = pa.array([bytes(64 << 20)], pa.binary())
    one = pa.table([[0], [0], [0], pa.nulls(1, pa.string()), value], schema=RECORD)
    table = pa.concat_tables([one] * 33)  # which all have this value
    found = taken(table, np.array([32, 0]))
    assert [len(each.as_py()) for each in found["value"]] == [64 << 20] * 2
