"""Small files that would become much, and damaged ones: a sentence, and no memory."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from schemas.records import LARGEST, RECORD
from sinks.small_files import MOST_BYTES, read_small
from streaming.answers.check.scenario import ScenarioError, read_scenario
from streaming.cli.app import app
from streaming.jobs.replay import load, replay_in_process
from streaming.log import files, yaml_files
from streaming.log.files import line_numbers, read_log
from streaming.log.policy_files import read_policy_file
from streaming.log.table import LogError
from streaming.log.yaml_files import NotYaml, read_yaml

DOUBLING = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 500))
FEW = 20_000
"""A tenth of the bound: the parser is slow while its memory is traced."""
HOSTILE = {
    "nested": "[" * 20_000,
    "maps": "{a: " * 20_000,
    "blocks": "".join(f"{' ' * n}a:\n" for n in range(500)),
    "doubling": DOUBLING,
    "chain": CHAIN,
    "itself": "a: &a [*a]\n",
    "of nothing": "a: *b\n",
    "many": "[" + "x," * (FEW + 1) + "]",
    "binary": "\x00\x01",
    "tag": "a: !!python/object:os.system [x]\n",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("command", ["check", "replay"])
def test_yaml_is_bounded(name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "many":
        monkeypatch.setattr(yaml_files, "MOST_VALUES", FEW)
    path = tmp_path / "x.yaml"
    path.write_text(HOSTILE[name])
    log = tmp_path / "log.jsonl"
    log.write_text('{"timestamp":1,"topic":"persistent://public/default/t","producer":"p","sequence_id":1}\n')
    arguments = (
        ["check", str(path)]
        if command == "check"
        else ["replay", str(log), "--out", str(tmp_path / "out"), "--no-spark", "--policies", str(path)]
    )
    tracemalloc.start()
    ran = CliRunner().invoke(app, arguments)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ran.exit_code == 2, ran.exception
    assert ran.stderr.startswith("magnetar: ")
    assert len(ran.stderr.splitlines()) < 4
    assert peak < (20 if name == "many" else 200) << 20


@pytest.mark.parametrize("time", [-(2**63), -62_135_596_800_001, 253_402_300_800_000, 10**14, 2**63 - 1])
@pytest.mark.parametrize(
    "words",
    [["whatif", "{log}", "--profile", "4.2"], ["advise", "{log}"], ["debug", "{log}"]],
)
def test_a_time_that_is_in_no_calendar(words: list[str], time: int, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(
        f'{{"timestamp":{time},"topic":"persistent://public/default/t","producer":"p","sequence_id":0}}\n'
    )
    ran = CliRunner().invoke(app, [word.format(log=log) for word in words], input="step\nlog\n")
    assert ran.exit_code == 0, ran.exception


@pytest.mark.parametrize("field", ["topic", "timestamp", "partition", "producer"])
def test_a_line_that_is_not_utf_8_is_a_record_to_refuse(field: str, tmp_path: Path) -> None:
    good = b'{"topic":"persistent://public/default/t","producer":"p","sequence_id":1}'
    (tmp_path / "log.jsonl").write_bytes(b'{"%b":"a\xff","sequence_id":1}\n%b\n' % (field.encode(), good))
    ran = CliRunner().invoke(
        app, ["replay", str(tmp_path / "log.jsonl"), "--no-spark", "--out", str(tmp_path / "out")]
    )
    assert ran.exit_code == 0, ran.exception
    assert "2 records" in ran.output
    assert "1 in quarantine" in ran.output


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.symlink_to(path), "no such log"),
        (lambda path: path.mkdir(), "has no file of a log in it"),
        (
            lambda path: path.write_bytes(gzip.compress(b"{}")),
            "is gzip: give it a name that ends in .jsonl.gz",
        ),
        (
            lambda path: pq.write_table(pa.table({"a": [1]}), path),
            "is Parquet: give it a name that ends in .parquet",
        ),
        (lambda path: path.write_text("{}", "utf-16"), "is UTF-16: save it as UTF-8"),
    ],
)
def test_what_is_no_log_is_told(make: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    make(log := tmp_path / "log.jsonl")
    ran = CliRunner().invoke(app, ["replay", str(log), "--no-spark", "--out", str(tmp_path / "out")])
    assert ran.exit_code == 2, ran.exception
    assert f"magnetar: {log}" in ran.stderr.replace("\n", "")
    assert said in ran.stderr


def test_what_is_no_gzip_is_told(tmp_path: Path) -> None:
    (log := tmp_path / "log.jsonl.gz").write_text('{"timestamp":1,"command":"TICK"}\n')
    with pytest.raises(LogError, match=r"is not gzip, or damaged: give it a name that ends in \.jsonl, or"):
        read_log(log)


def test_the_folder_of_a_replay_is_no_log(tmp_path: Path) -> None:
    (log := tmp_path / "log.jsonl").write_text('{"timestamp":1,"command":"TICK"}\n')
    out = tmp_path / "out"
    assert CliRunner().invoke(app, ["replay", str(log), "--no-spark", "--out", str(out)]).exit_code == 0
    with pytest.raises(LogError, match=r"out is the --out of a replay, .*not a log: name the log itself"):
        read_log(out)


def test_a_replay_may_be_called_like_a_log(tmp_path: Path) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "out.jsonl"
    log.write_text('{"topic":"persistent://public/default/t","producer":"p","sequence_id":1}\n')
    for words in (["replay", str(log), "--no-spark", "--out", str(out)], ["explain", str(out), "t"]):
        ran = CliRunner().invoke(app, words)
        assert ran.exit_code == 0, ran.output


def test_aliases_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: &a {ttl: 1}\nb: *a\n")
    assert read_yaml(tmp_path / "x.yaml") == {"a": {"ttl": 1}, "b": {"ttl": 1}}
    (tmp_path / "x.yaml").write_bytes(b" " * (MOST_BYTES + 1))
    with pytest.raises(NotYaml, match="MiB"):
        read_yaml(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("2026-01-01", "2026-01-01 is a date: put it in quotes"),
        ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00Z is a date: put it in quotes"),
        (".nan", ".nan is not a number that can be used: write another one"),
        ("-.INF", "-.INF is not a number"),
        ("1e999", "1e999 is not a number"),
        ("!!binary aGk=", "!!binary is not a supported type: remove it"),
        ("!!set {a, b}", "!!set is not a supported type: remove it"),
        ("!mine [x]", "!mine is not a supported type: remove it"),
        ("{a: [.nan]}", ".nan is not a number"),
        ("=", "= is not a value that can be used: put it in quotes"),
        ("0x" + "f" * 20_000, "0xffff"),
        ("9" * 6_000, "9999"),
    ],
)
def test_what_json_has_not_is_named_with_its_line(value: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"namespaces:\n  public/default:\n    messageTTL: {value}\n")
    with pytest.raises(LogError, match=f"{path}: line 3: {re.escape(said)}"):
        read_policy_file(path)
    with pytest.raises(ScenarioError, match=f"{path}: line 3: {re.escape(said)}"):
        read_scenario(path)


def test_values_that_json_has(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("broker:\n  a: &yes true\n  b: *yes\n  c: '2026-01-01'\n  d: 1.5e3\n  e: 1:30.5\n")
    values = [json.loads(each)["settings"] for each in read_policy_file(path).commands["value"].to_pylist()]
    assert values == [
        {"a": True}, {"b": True}, {"c": "2026-01-01"}, {"d": 1500.0}, {"e": "1:30.5"},
    ]  # fmt: skip


def test_a_line_that_no_command_is_long_enough_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 1 << 20)
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    with pytest.raises(LogError, match="line 1 has more than 1 MiB"):
        read_log(path)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_a_value_in_parquet_that_no_command_is_long_enough_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 1000)
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"value": [b"x" * 1000, None]}), path)
    assert len(read_log(path)) == 2
    pq.write_table(pa.table({"value": [b"x" * 1001, None]}), path)
    with pytest.raises(LogError, match="a value of more than 0 MiB"):
        read_log(path)


def _lines_of(lines: Iterable[bytes], path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.writelines(lines)


def _many_lines(folder: Path) -> None:
    _lines_of((b"x" * (1 << 16) + b"\n" for _ in range(400)), folder / "log.jsonl.gz")


def _small_lines(folder: Path) -> None:
    _lines_of([b"{}\n" * 200_000], folder / "log.jsonl.gz")


def _two_files(folder: Path) -> None:
    for name in "ab":
        _lines_of((b"x" * (1 << 16) + b"\n" for _ in range(200)), folder / f"log.{name}.jsonl.gz")


def _table(folder: Path, **columns: Any) -> None:
    pq.write_table(pa.table(columns), folder / "log.parquet", compression="zstd")


_REPEATED = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array([b"x" * 10_000]))
_MAP = pa.map_(pa.string(), pa.string())
_SHORT: dict[str, Any] = {"topic": ["t"] * 5000, "producer": ["p"] * 5000, "sequence_id": range(5000)}
PACKED: dict[str, Callable[[Path], None]] = {
    "long lines": _many_lines,
    "many lines": _small_lines,
    "a folder": _two_files,
    "one value": partial(_table, value=_REPEATED),
    "one value, plain": lambda folder: pq.write_table(
        pa.table({"value": [b"x" * 10_000] * 5000}),
        folder / "log.parquet",
        compression="zstd",
        use_dictionary=False,
    ),
    "one topic": partial(_table, value=[b"{}"] * 5000, topic=_REPEATED),
    "a value of fixed length": partial(_table, value=pa.array([b"x" * 10_000] * 5000, pa.binary(10_000))),
    "many rows": partial(_table, value=[b"{}"] * 200_000),
    "one payload": partial(_table, **_SHORT, payload=_REPEATED),
    "one property": partial(
        _table, **_SHORT, payload=["x"] * 5000, properties=pa.array([[("a", "x" * 10_000)]] * 5000, _MAP)
    ),
    "in a list": partial(_table, **_SHORT, payload=["x"] * 5000, key=[["x" * 10_000]] * 5000),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_small_log_that_holds_very_much(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PACKED[name](tmp_path)
    path = next((each for each in tmp_path.iterdir()), tmp_path) if name != "a folder" else tmp_path
    size = sum(each.stat().st_size for each in tmp_path.iterdir())
    assert size < 1 << 18
    monkeypatch.setattr(files, "MOST_BYTES", 8 << 20)
    monkeypatch.setattr(files, "MOST_TIMES", 50)
    with pytest.raises(LogError, match=r"GiB in memory.*unpack it \(.jsonl.gz\) or write it as JSON Lines"):
        read_log(path)


def test_what_is_not_read_of_a_log_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 8 << 20)
    _table(tmp_path, value=[b"{}"] * 5000, other=_REPEATED)
    assert len(read_log(tmp_path / "log.parquet")) == 5000
    _table(tmp_path, **_SHORT, payload=["x"] * 5000, other=_REPEATED)
    assert len(read_log(tmp_path / "log.parquet")) == 5000


def test_more_different_values_than_a_dictionary_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a row group, which is no mistake of a log."""

    def full(self: pq.ParquetFile, size: int, *arguments: Any) -> Iterator[pa.RecordBatch]:
        if size > 16:
            raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
        yield from iterate(self, size, *arguments)

    iterate = pq.ParquetFile.iter_batches
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", full)
    _table(tmp_path, value=_REPEATED)
    assert len(read_log(tmp_path / "log.parquet")) == 5000
    monkeypatch.setattr(files, "MOST_BYTES", 8 << 20)
    with pytest.raises(LogError, match="GiB in memory"):
        read_log(tmp_path / "log.parquet")


def test_a_million_lines_need_no_more_room_than_there_is(tmp_path: Path) -> None:
    """However well they are packed."""
    path = tmp_path / "log.jsonl.gz"
    _lines_of(
        (
            b'{"topic":"persistent://public/default/t","producer":"p","sequence_id":%d}\n' % n
            for n in range(10**6)
        ),
        path,
    )
    assert len(line_numbers(path) or ()) == 10**6


_TRY = """
import resource, sys
from pathlib import Path
limit = 5 << 30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
from typer.testing import CliRunner
from streaming.cli.app import app
ran = CliRunner().invoke(app, sys.argv[1:])
print(ran.exit_code, " ".join(ran.output.split()), repr(ran.exception), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["log.jsonl.gz", "log.parquet", "trace.jsonl"])
def test_memory_for_a_file_that_becomes_very_large(name: str, tmp_path: Path) -> None:
    """A process of its own with a limit, which it does not reach."""
    path = tmp_path / name
    if name == "log.jsonl.gz":
        _lines_of((b"x" * (15 << 20) + b"\n" for _ in range(400)), path)
    elif name == "log.parquet":
        many = pa.DictionaryArray.from_arrays(pa.array([0] * 10**6, pa.int32()), pa.array([b"x" * (1 << 20)]))
        _table(tmp_path, value=many)
    else:
        with path.open("wb") as file:
            file.truncate(20 << 30)
    words = ["conform", str(path)] if name == "trace.jsonl" else ["inspect", str(path)]
    ran = subprocess.run([sys.executable, "-c", _TRY, *words], capture_output=True, text=True, check=True)
    said = ran.stdout
    assert said.startswith("2 "), said
    assert ("GiB in memory" if name != "trace.jsonl" else "more than 64 MiB") in said
    assert int(said.split()[-1]) < 3 << 10, said


def test_a_parquet_column_that_occurs_twice(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([b"x"])] * 2, ["value", "value"]), path)
    with pytest.raises(LogError, match="column value occurs twice: remove one of them"):
        read_log(path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x.parquet", "is neither a file nor a folder"),
        ("x.jsonl", "line 1 has more than 1 MiB"),
        ("x.jsonl.gz", "is not gzip, or damaged"),
    ],
)
def test_a_device_is_no_log(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 1 << 20)
    (tmp_path / name).symlink_to("/dev/zero")
    ran = CliRunner().invoke(
        app, ["replay", str(tmp_path / name), "--no-spark", "--out", str(tmp_path / "out")]
    )
    assert ran.exit_code == 2, ran.exception
    assert said in " ".join(ran.stderr.split())


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.parquet"])
def test_a_damaged_log_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    plain = tmp_path / "log.jsonl"
    plain.write_text(
        '{"timestamp":1,"topic":"persistent://public/default/t","producer":"p","sequence_id":1}\n' * 50
    )
    files.write_log(path, read_log(plain))
    data = path.read_bytes()
    for damaged in (
        data[: len(data) // 2],
        data[:-4],
        b"\0" * len(data),
        b"PAR1",
        data[:20] + bytes(40) + data[60:],
    ):
        path.write_bytes(damaged)
        ran = CliRunner().invoke(app, ["replay", str(path), "--out", str(tmp_path / "out"), "--no-spark"])
        assert ran.exit_code == 2, ran.exception
        assert "damaged" in ran.stderr


PLACES: list[tuple[list[dict[str, object]], str]] = [
    ([{"partition": -1}], "0: partition -1 is out of range, which is from 0 to 99,999"),
    ([{"partition": 0}, {"partition": 100_000}], "1: partition 100000 is out of range"),
    ([{"partition": 2**31}], "0: partition 2147483648 is out of range"),
    ([{"partition": 0, "offset": -1}], "0: offset -1 is out of range"),
    ([{"partition": 0, "offset": 1}, {"partition": 1, "offset": -(2**63)}], "1: offset -9223372036854775808"),
    ([{"partition": 0, "offset": 10**18}], "0: offset 1000000000000000000 is out of range, which is from"),
    ([{"partition": 0, "offset": 2**63 - 1}], "0: offset 9223372036854775807 is out of range"),
]
"""Coordinates that there can't be, and what is said of them, with the row."""


@pytest.mark.parametrize(("places", "said"), PLACES)
def test_a_place_that_there_cannot_be_is_named(
    places: list[dict[str, object]], said: str, tmp_path: Path
) -> None:
    rows = [{"timestamp": 1, "topic": "t"} | place for place in places]
    lined, table = tmp_path / "log.jsonl", tmp_path / "log.parquet"
    lined.write_text("".join(json.dumps(row | {"producer": "p", "sequence_id": 1}) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist([row | {"value": b"{}"} for row in rows]), table)
    row, _, rest = said.partition(":")
    with pytest.raises(LogError, match=re.escape(f"{lined}, line {int(row) + 1}:{rest}")):
        read_log(lined)
    with pytest.raises(LogError, match=re.escape(f"{table}, row {said}")):
        read_log(table)
    if all(isinstance(place["partition"], int) and place["partition"] < 2**31 for place in places):
        typed = pa.Table.from_pylist([{"offset": 0} | row | {"value": b"{}"} for row in rows], RECORD)
        with pytest.raises(LogError, match=re.escape(f"the log, row {said}")):
            load(typed, partitions=None, policies=None)


def test_offsets_that_are_counted_end_too(tmp_path: Path) -> None:
    last = {
        "partition": 0,
        "timestamp": 1,
        "topic": "t",
        "producer": "p",
        "sequence_id": 1,
        "offset": 10**18 - 1,
    }
    (tmp_path / "log.jsonl").write_text(f'{json.dumps(last)}\n{{"command":"TICK"}}\n')
    with pytest.raises(LogError, match="line 2: offset 1000000000000000000 is out of range"):
        read_log(tmp_path / "log.jsonl")


def test_policies_move_the_last_offset_up(tmp_path: Path) -> None:
    last = {"partition": 0, "timestamp": 1, "topic": "persistent://a/b/c", "producer": "p", "sequence_id": 1,
            "offset": 10**18 - 1}  # fmt: skip
    (tmp_path / "log.jsonl").write_text(json.dumps(last))
    (tmp_path / "p.yaml").write_text("namespaces:\n  a/b:\n    messageTTL: 60\n")
    words = ["replay", str(tmp_path / "log.jsonl"), "--no-spark", "--out", str(tmp_path / "out")]
    ran = CliRunner().invoke(app, [*words, "--policies", str(tmp_path / "p.yaml")])
    assert ran.exit_code == 0, ran.exception


def test_a_parquet_log_has_every_offset_or_none(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"partition": [0, 0], "offset": [0, None], "value": [b"{}", b"{}"]}), path)
    with pytest.raises(LogError, match="row 1: there is no offset: fill it in, or leave the column out"):
        read_log(path)


BAD_TEXT = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"]).buffers())
GOOD_TEXT = pa.array(["a"])
SHORT = ("topic", "producer", "payload", "key", "properties")


@pytest.mark.parametrize("column", [*SHORT, "value"])
@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()])
def test_a_text_in_parquet_that_is_not_utf_8_is_a_record_to_refuse(
    column: str, type_: pa.DataType, tmp_path: Path
) -> None:
    def texts(name: str) -> pa.Array:
        good = pa.array([f"persistent://public/default/{name}"])
        both = pa.concat_arrays([good, BAD_TEXT if name == column else good]).cast(type_)
        return pa.MapArray.from_arrays([0, 1, 2], both, both) if name == "properties" else both

    path, out = tmp_path / "log.parquet", str(tmp_path / "out")
    columns = {name: texts(name) for name in SHORT} | {"sequence_id": [1, 2]}
    if column == "value":
        columns = {"topic": texts("topic"), "value": texts("value")}
    pq.write_table(pa.table(columns), path)
    ran = CliRunner().invoke(app, ["replay", str(path), "--no-spark", "--out", out])
    assert ran.exit_code == 0, ran.exception
    assert "2 records" in ran.output
    assert f"{2 if column == 'value' else 1} in quarantine" in ran.output


LARGE = (
    ("check", "{w}/large.yaml"),
    ("replay", "{w}/log.jsonl", "--no-spark", "--out", "{w}/new", "--policies", "{w}/large.yaml"),
    ("quarantine", "resubmit", "{w}/out", "0:0", "--log", "{w}/log.jsonl", "--out", "{w}/new.jsonl", "--partitions", "1", "--value",
     "{w}/large"),
    ("minimize", "{w}/log.jsonl", "--out", "{w}/new.jsonl", "--keep", "{w}/large.py"),
    ("record", "{w}/new", "--token-file", "{w}/large"),
    ("record", "{w}/new", "--tls-ca", "{w}/large"),
    ("capture", "t", "--to", "{w}/new.jsonl", "--token-file", "{w}/large"),
    ("produce", "{w}/log.jsonl", "--ingress", "kafka://127.0.0.1:1/t", "--kafka-config", "{w}/large"),
    ("produce", "{w}/log.jsonl", "--ingress", "kafka://127.0.0.1:1/t", "--kafka-config", "{w}/ssl"),
)  # fmt: skip
"""Commands that name a small file which is not small."""


@pytest.mark.parametrize("command", LARGE, ids=" ".join)
def test_a_small_file_that_is_large_is_not_read(command: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("large", "large.yaml", "large.py"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(LARGEST + 1)
    (tmp_path / "ssl").write_text(f"security.protocol=SSL\nssl.truststore.location={tmp_path}/large\n")
    (tmp_path / "log.jsonl").write_text("x\n")
    replay_in_process(tmp_path / "log.jsonl", tmp_path / "out", partitions=1)
    ran = CliRunner().invoke(app, [each.replace("{w}", str(tmp_path)) for each in command])
    assert ran.exit_code == 2, ran.exception
    said = " ".join((ran.stderr or str(ran.exception)).split())
    assert re.search(r"large[.a-z]*: it has more than (4|16) MiB: name another file", said), said


def test_no_more_is_read_of_what_has_no_end() -> None:
    with pytest.raises(OSError, match="it has more than 4 MiB"):
        read_small("/dev/zero")
    with pytest.raises(NotYaml, match="it has more than 4 MiB"):
        read_yaml("/dev/zero")


def test_a_small_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff")
    ran = CliRunner().invoke(app, ["record", str(tmp_path / "new"), "--token-file", str(tmp_path / "token")])
    assert ran.exit_code == 2, ran.exception
    assert "it is not text in UTF-8: name another file" in ran.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("column", "values", "wanted"),
    [
        ("producer", [[1]], "text"),
        ("sequence_id", ["x"], "an integer"),
        ("sequence_id", [[1]], "an integer"),
        ("payload", [1], "text or binary"),
        ("payload", [{"a": 1}], "text or binary"),
        ("key", [[1]], "text"),
        ("properties", [1], "a map of text to text"),
        ("publish_time", ["x"], "an integer"),
        ("timestamp", ["yesterday"], "an integer (ms since the epoch) or a timestamp"),
        ("timestamp", [b"x"], "an integer (ms since the epoch) or a timestamp"),
        ("topic", [[1]], "text"),
        ("partition", ["x"], "an integer"),
        ("partition", [True], "an integer"),
        ("value", [1.5], "text or binary"),
        ("value", [{"a": 1}], "text or binary"),
        ("offset", [[1]], "an integer"),
    ],
)
def test_a_parquet_column_of_a_wrong_type(
    tmp_path: Path, column: str, values: list[object], wanted: str
) -> None:
    """The file is whole, and so it is not called damaged."""
    rest: dict[str, list[object]] = {"topic": ["t"], "producer": ["p"], "sequence_id": [0], "payload": [b"x"]}
    if column in {"value", "offset"}:
        rest = {"topic": ["t"], "value": [b"{}"], "partition": [0]}
    table = pa.table(rest | {column: values})
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(LogError) as refused:
        read_log(tmp_path / "log.parquet")
    said = f"log.parquet: column {column} is of type {pq.read_schema(tmp_path / 'log.parquet').field(column).type}, but must be {wanted} ("
    assert said in str(refused.value)
