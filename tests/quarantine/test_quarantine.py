"""What is quarantined can be found, taken out, repaired and put into the log again; and only what the query would take."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from schemas.effects import Quarantined
from schemas.records import Coordinates
from sinks.quarantine import QuarantineSink, read_quarantine
from sinks.tables import read_table
from streaming.cli.app import app
from streaming.jobs.replay import replay_in_process
from streaming.log.files import read_log, write_log
from streaming.log.partition import partition_log
from streaming.log.table import LOGICAL
from streaming.quarantine.resubmit import to_log
from streaming.quarantine.store import (
    Quarantine,
    QuarantineError,
    Repaired,
    as_json,
    line,
    read_repaired,
    refused,
)
from tests.examples import examples
from tests.sinks.helpers import output
from tests.spark.helpers import START, log_of, traffic

pytestmark = pytest.mark.feature("J6")

TOPIC = "persistent://public/default/u"
OTHER = "persistent://public/default/t"
BAD: list[tuple[int, str | None, object]] = [
    (START + 1, TOPIC, {"producer": "p"}),
    (START + 2, None, {"producer": "p", "sequence_id": 3, "payload": "whose?"}),
    (START + 3, TOPIC, b"\xff\x00 rubbish"),
    (START + 4, OTHER, {"producer": "", "sequence_id": 4}),
    (START + 5, TOPIC, b"several\nlines"),
    (START * 1000, TOPIC, {"producer": "p", "sequence_id": 6, "payload": "in microseconds"}),
]
GOOD: list[tuple[int, str | None, object]] = [
    (START, TOPIC, {"producer": "p", "sequence_id": 1, "payload": "first"}),
    (START + 9, TOPIC, {"producer": "p", "sequence_id": 9, "payload": "last"}),
]


def magnetar(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["quarantine", *map(str, arguments)])


def complaint(*arguments: object, code: int = 2) -> str:
    """What a command that fails says: one line."""
    ran = magnetar(*arguments)
    assert (ran.exit_code, ran.stdout) == (code, ""), ran.output
    (only,) = ran.stderr.splitlines()
    return only.removeprefix("magnetar: ")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with bad records, in Parquet, which keeps every byte."""
    path = tmp_path / "log.parquet"
    write_log(path, log_of(GOOD[0], *BAD, GOOD[1]))
    return path


@pytest.fixture
def out(tmp_path: Path, log: Path) -> Path:
    """Its replay: 0:0 names no topic, 1:0 is OTHER's, partition 3 has TOPIC's."""
    folder = tmp_path / "out"
    replay_in_process(log, folder)
    return folder


def origins(folder: Path) -> dict[str, str]:
    """The rules of the quarantined records."""
    return {
        f"{row['partition']}:{row['offset']}": row["rule"] for row in read_quarantine(str(folder)).to_pylist()
    }


# -- looking


def test_the_fixture(out: Path) -> None:
    assert origins(out) == {
        "0:0": "no_topic", "1:0": "input.PUBLISH/producer_length", "3:1": "malformed", "3:2": "malformed",
        "3:3": "malformed", "3:4": "timestamp",
    }  # fmt: skip


def test_list(out: Path) -> None:
    shown = magnetar("list", out)
    assert shown.exit_code == 0
    header, first, *_, last = shown.stdout.splitlines()
    assert header.split() == ["rule", "records", "resubmitted", "first", "last", "example", "cause"]
    assert first.split()[:6] == [
        "malformed",
        "3",
        "0",
        "2023-11-14T22:13:20.001Z",
        "2023-11-14T22:13:20.005Z",
        "3:3",
    ]
    assert last == "6 records in quarantine, 0 of them resubmitted"

    found = json.loads(magnetar("list", out, "--json").stdout)
    assert [(each["rule"], each["records"], each["resubmitted"]) for each in found] == [
        ("malformed", 3, 0), ("input.PUBLISH/producer_length", 1, 0), ("no_topic", 1, 0), ("timestamp", 1, 0),
    ]  # fmt: skip
    assert found[1] | {"example": None} == {
        "rule": "input.PUBLISH/producer_length", "records": 1, "resubmitted": 0, "first": START + 4, "last": START + 4,
        "example": None,
    }  # fmt: skip
    example = found[1]["example"]
    assert (example["partition"], example["offset"], example["topic"]) == (1, 0, OTHER)
    assert example["cause"].startswith("producer is ''")


def test_filters(out: Path) -> None:
    def rules(*options: str) -> list[tuple[str, int]]:
        return [
            (each["rule"], each["records"])
            for each in json.loads(magnetar("list", out, "--json", *options).stdout)
        ]

    assert rules("--rule", "malformed") == [("malformed", 3)]
    assert rules("--topic", OTHER) == [("input.PUBLISH/producer_length", 1)]
    assert rules("--topic", OTHER, "--rule", "malformed") == []
    assert (
        magnetar("list", out, "--topic", "none").stdout == "0 records in quarantine, 0 of them resubmitted\n"
    )


def test_show(out: Path) -> None:
    shown = magnetar("show", out, "1:0").stdout.splitlines()
    assert [text.split(maxsplit=1) for text in shown[:4]] == [
        ["record", "1:0 (partition 1, offset 0)"], ["topic", OTHER],
        ["refused", "2023-11-14T22:13:20.004Z, by the partition's clock"], ["rule", "input.PUBLISH/producer_length"],
    ]  # fmt: skip
    assert shown[-1] == '{"producer":"","sequence_id":4}'
    assert magnetar("show", out, "3:2").stdout.splitlines()[-1] == (
        "00000000  ff 00 20 72 75 62 62 69 73 68                    .. rubbish"
    )
    assert magnetar("show", out, "3:2", "--raw").stdout_bytes == b"\xff\x00 rubbish"
    assert "topic        none" in magnetar("show", out, "0:0").stdout
    assert complaint("show", out, "3:99") == f"record 3:99 is not in the quarantine of {out}"
    assert magnetar("show", out, "three").exit_code == 2


def test_a_terminal_obeys_nothing_and_is_not_flooded(tmp_path: Path) -> None:
    packed = msgspec.msgpack.encode({"producer": "é\x1b[2J", "payload_bytes": b"\xff"})
    rows = [
        Quarantined("\x1b]0;t\x07", "malformed", "\x1b[31mred", b"\x1b[2J\tx\r\n"),
        Quarantined("t", "malformed", "large", b"\x80" * 10_000),
        Quarantined("t", "malformed", "large", b"x" * 10_000),
        Quarantined("t", "malformed", "packed", packed),
    ]
    QuarantineSink(str(tmp_path)).write(0, 0, output(rows))
    shown = [magnetar("show", tmp_path, f"0:{n}").stdout for n in range(4)]
    assert not any(control in "".join(shown) + magnetar("list", tmp_path).stdout for control in "\x1b\x07\r")
    assert shown[0].rstrip("\n").splitlines()[-1] == "\\x1b[2J\\tx\\r"
    assert all("the first 4,096 of 10,000; --raw writes all" in text for text in shown[1:3])
    assert max(map(len, shown)) < 25_000
    assert 'as JSON:\n{"producer":"é\\u001b[2J","payload_bytes":"/w=="}' in shown[3]


def test_no_store(tmp_path: Path) -> None:
    assert "no such folder; name the --store of a run" in complaint("list", tmp_path / "typo")


def test_the_folder_of_a_server_has_no_quarantine(tmp_path: Path) -> None:
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "00000000000000000000.jsonl").touch()
    (tmp_path / "store").mkdir()
    for call in ["list"], ["export"], ["show", "0:1"]:
        said = complaint(call[0], tmp_path, *call[1:])
        assert "is the --data of `magnetar serve`" in said
        assert f"magnetar replay {tmp_path}/commands --out OUT" in said


# -- an export is a log


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    ["partition", "offset", "timestamp", "topic", "value", "value_base64", "producer", "x"]
)
objects = st.dictionaries(names | st.text(), json_values, max_size=4)


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.tuples(
            st.none() | st.text(min_size=1).filter(lambda t: t.isprintable()),
            st.binary() | st.text().map(str.encode) | objects.map(lambda o: json.dumps(o, indent=1).encode())
            | objects.map(lambda o: b" " + json.dumps(o).encode())
            | st.dictionaries(names, st.binary() | st.text() | st.integers(0, 9)).map(msgspec.msgpack.encode),
        ),
        min_size=1,
        max_size=5,
    )
)  # fmt: skip
def test_unedited_it_is_what_it_was(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[str | None, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("export")
    QuarantineSink(str(folder)).write(
        0, 3, output([Quarantined(topic, "r", "c", value) for topic, value in records], partition=3)
    )
    lines = [line(row) for row in read_quarantine(str(folder)).to_pylist()]
    assert not any(b"\n" in each for each in lines)
    (folder / "bad.jsonl").write_bytes(b"\n".join(lines))
    repaired = read_repaired(folder / "bad.jsonl")
    assert [m.origin for m in repaired] == [Coordinates(3, n) for n in range(len(records))]
    assert [m.topic for m in repaired] == [topic for topic, _ in records]
    assert {m.timestamp for m in repaired} == {1000}
    for (_, value), each in zip(records, repaired, strict=True):
        found = as_json(value)
        assert each.value == (value if found is None else found) or json.loads(each.value) == json.loads(
            found or b"0"
        )


def test_export(out: Path, tmp_path: Path) -> None:
    exported = magnetar("export", out)
    assert exported.stderr == "6 records\n"
    lines = [json.loads(text) for text in exported.stdout.splitlines()]
    assert lines[0] == {"partition": 0, "offset": 0, "timestamp": START + 2, "producer": "p", "sequence_id": 3,
                        "payload": "whose?"}  # fmt: skip
    assert lines[3] == {"partition": 3, "offset": 2, "timestamp": START + 3, "topic": TOPIC,
                        "value_base64": "/wAgcnViYmlzaA=="}  # fmt: skip
    assert lines[4]["value"] == "several\nlines"
    (tmp_path / "bad.jsonl").write_text(exported.stdout)
    assert len(read_log(tmp_path / "bad.jsonl")) == 6
    assert magnetar("export", out, "--rule", "no_topic").stdout.count("\n") == 1


# -- checking


def test_what_the_query_refuses_is_refused_with_the_same_words() -> None:
    """The gate and the broker, not a copy of their rules."""
    from streaming.fold.columns import Fold
    from tests.spark.helpers import Nowhere

    records = traffic(partitions=1)
    extra = partition_log(
        log_of(*BAD, (START, None, {"command": "BROKER_CONFIG", "settings": {"nope": 1}})), 1
    )
    offsets = pa.array(range(len(records), len(records) + len(extra)), pa.int64())
    records = pa.concat_tables([records, extra.set_column(1, records.schema.field(1), offsets)])
    (applied,) = Fold(Nowhere()).apply(records)
    wanted = [(row["offset"], row["rule"], row["cause"]) for row in applied[1]["QUARANTINED"].to_pylist()]
    repaired = [
        Repaired(Coordinates(0, r["offset"]), r["timestamp"], r["topic"], r["value"])
        for r in records.to_pylist()
    ]
    assert [(m.origin.offset, rule, cause) for m, rule, cause in refused(repaired)] == wanted
    assert len(wanted) > 8


# -- a replay's log


def edited(out: Path, path: Path, **changes: dict[str, Any]) -> Path:
    """An export in which some lines, named as ``p1_0``, have other fields; the others are taken out."""
    lines = []
    for text in magnetar("export", out, "--all").stdout.splitlines():
        record = json.loads(text)
        name = f"p{record['partition']}_{record['offset']}"
        if name in changes:
            record = {
                key: record[key] for key in ("partition", "offset", "timestamp", "topic") if key in record
            }
            lines.append(json.dumps(record | changes[name]))
    path.write_text("\n".join(lines))
    return path


def message(sequence_id: int) -> dict[str, Any]:
    return {"producer": "p", "sequence_id": sequence_id, "payload": "repaired"}


def test_a_repaired_log_replays_without_quarantine(log: Path, out: Path, tmp_path: Path) -> None:
    bad = edited(out, tmp_path / "bad.jsonl", p0_0=message(3) | {"topic": OTHER}, p1_0=message(4), p3_1=message(2),
                 p3_2=message(3), p3_3=message(5))  # fmt: skip
    ran = magnetar("resubmit", out, bad, "--log", log, "--out", tmp_path / "repaired.parquet")
    assert ran.exit_code == 0, ran.output
    assert f"{log} with 5 records repaired -> {tmp_path / 'repaired.parquet'}" in ran.stdout
    assert "6 records in quarantine, 5 of them resubmitted" in magnetar("list", out).stdout
    assert magnetar("export", out).stdout.count("\n") == 1
    # The last one is good but for its time; so it needs no file, and the log that is half repaired serves.
    repaired = tmp_path / "all.parquet"
    one = magnetar("resubmit", out, "3:4", "--log", tmp_path / "repaired.parquet", "--out", repaired)
    assert one.exit_code == 0, one.output

    before, after = read_log(log), read_log(repaired)
    assert after.schema == LOGICAL
    assert after["timestamp"].to_pylist() == [*before["timestamp"].to_pylist()[:6], START + 5, START + 9]
    result = replay_in_process(repaired, tmp_path / "again")
    assert "QUARANTINED" not in result.rows
    receipts = read_table(str(tmp_path / "again" / "tables"), "SEND_RECEIPT")
    assert sorted(receipts["sequence_id"].to_pylist()) == [1, 2, 3, 3, 4, 5, 6, 9]
    assert receipts["topic"].to_pylist().count(OTHER) == 2


def test_a_log_with_partitions(tmp_path: Path) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "out"
    write_log(log, partition_log(log_of(GOOD[0], BAD[0], GOOD[1]), 2))
    replay_in_process(log, out)
    (name,) = origins(out)
    key = f"p{name.replace(':', '_')}"
    moved = edited(out, tmp_path / "moved.jsonl", **{key: message(2) | {"topic": OTHER}})
    assert "a topic never spans two: keep its topic" in complaint(
        "resubmit", out, moved, "--log", log, "--out", tmp_path / "repaired.jsonl"
    )
    bad = edited(out, tmp_path / "bad.jsonl", **{key: message(2)})
    several = complaint(
        "resubmit", out, bad, "--log", log, "--out", tmp_path / "repaired.jsonl", "--partitions", 3
    )
    assert "has ingress partitions of its own" in several
    assert magnetar("resubmit", out, bad, "--log", log, "--out", tmp_path / "repaired.jsonl").exit_code == 0
    assert replay_in_process(tmp_path / "repaired.jsonl", tmp_path / "again").rows["SEND_RECEIPT"] == 3
    before, after = read_log(log), read_log(tmp_path / "repaired.jsonl")
    assert after.select(["partition", "offset", "timestamp"]).equals(
        before.select(["partition", "offset", "timestamp"])
    )


def test_copies_of_one_record(tmp_path: Path) -> None:
    """A record without a topic is in each partition's quarantine and once in the log."""
    log, out = tmp_path / "log.jsonl", tmp_path / "out"
    write_log(log, log_of((START, None, {"command": "BROKER_CONFIG", "settings": {"nope": 1}}), *GOOD))
    replay_in_process(log, out, partitions=2)
    assert origins(out) == {"0:0": "broker_config", "1:0": "broker_config"}
    good: dict[str, Any] = {"command": "BROKER_CONFIG", "settings": {"maxMessageSize": 7}}
    unlike = edited(out, tmp_path / "unlike.jsonl", p0_0=good, p1_0=good | {"settings": {}})
    options = ("--log", log, "--out", tmp_path / "repaired.jsonl", "--partitions", 2)
    assert "records 0:0 and 1:0 are one record in" in complaint("resubmit", out, unlike, *options)
    bad = edited(out, tmp_path / "bad.jsonl", p0_0=good, p1_0=good)
    assert magnetar("resubmit", out, bad, *options).exit_code == 0
    assert json.loads(read_log(tmp_path / "repaired.jsonl")["value"][0].as_py()) == good


# -- refusals: nothing is written


def test_what_is_still_bad(log: Path, out: Path, tmp_path: Path) -> None:
    bad = edited(out, tmp_path / "bad.jsonl", p1_0=message(-4), p3_1=message(2), p3_2={"value": "rubbish"})
    said = complaint("resubmit", out, bad, "--log", log, "--out", tmp_path / "repaired.jsonl")
    assert said.startswith(
        "2 of 3 records would be quarantined again: 1:0 (input.PUBLISH/sequence_id_range: "
    )
    assert "3:2 (malformed: " in said
    assert not (tmp_path / "repaired.jsonl").exists()
    assert Quarantine(str(out)).resubmitted() == {}


@pytest.mark.parametrize("field", [{"value_base64": "é"}, {"value_base64": 5}, {"value": 5}, {"value": None}])
def test_a_whole_value_that_can_not_be_read(
    log: Path, out: Path, tmp_path: Path, field: dict[str, Any]
) -> None:
    bad = edited(out, tmp_path / "bad.jsonl", p3_2=field)
    said = complaint("resubmit", out, bad, "--log", log, "--out", tmp_path / "repaired.jsonl")
    assert "3:2 (malformed: " in said


@pytest.mark.parametrize("slip", ['"producer":"p,', '"producer":"p"', "\ud800", "\xff"])
def test_a_slip_of_the_pen(log: Path, out: Path, tmp_path: Path, slip: str) -> None:
    """A line that is not JSON must not be taken for the record after the one before it: 3:2 is in quarantine too."""
    bad = edited(out, tmp_path / "bad.jsonl", p3_1=message(2), p3_2=message(3))
    before, last = bad.read_text().splitlines()
    bad.write_bytes(
        f"{before}\n\n".encode() + last.replace('"producer": "p",', slip).encode("utf-8", "surrogatepass")
    )
    said = complaint("resubmit", out, bad, "--log", log, "--out", tmp_path / "repaired.jsonl")
    assert f"{bad}: record 2 is not a JSON object (" in said
    assert 'it begins b\'{"partition": 3' in said


def test_twice(log: Path, out: Path, tmp_path: Path) -> None:
    bad = edited(out, tmp_path / "bad.jsonl", p1_0=message(4), p3_1=message(2))
    repaired = tmp_path / "repaired.parquet"
    assert magnetar("resubmit", out, bad, "--log", log, "--out", repaired).exit_code == 0
    said = complaint("resubmit", out, bad, "--log", log, "--out", tmp_path / "twice.parquet")
    assert said.startswith("resubmitted before: 1:0 (20")
    assert f" to {repaired} as 1:0), 3:1" in said
    assert "give --again" in said
    assert f"to {repaired} as 1:0" in magnetar("show", out, "1:0").stdout
    assert "2 were resubmitted before" in magnetar("export", out).stderr
    again = magnetar("resubmit", out, bad, "--log", log, "--out", tmp_path / "twice.parquet", "--again")
    assert again.exit_code == 0
    assert "2 of them resubmitted" in magnetar("list", out).stdout


def test_files_that_are_no_use(log: Path, out: Path, tmp_path: Path) -> None:
    bad = edited(out, tmp_path / "bad.jsonl", p1_0=message(4))
    options = ("--log", log, "--out", tmp_path / "repaired.parquet")
    nameless = tmp_path / "nameless.jsonl"
    nameless.write_text(json.dumps({"topic": TOPIC} | message(4)))
    assert "begin with `magnetar quarantine export`" in complaint("resubmit", out, nameless, *options)
    nameless.write_text("")
    assert "no records in it" in complaint("resubmit", out, nameless, *options)
    nameless.write_text(json.dumps({"partition": 3, "offset": 77, "topic": TOPIC} | message(4)))
    assert f"not in the quarantine of {out}: 3:77" in complaint("resubmit", out, nameless, *options)
    assert "no such log" in complaint("resubmit", out, tmp_path / "absent.jsonl", *options)
    assert "its records are in a log" in complaint("resubmit", out, bad, "--ingress", "kafka://127.0.0.1:1/t")
    assert "is an input" in complaint("resubmit", out, bad, "--log", log, "--out", log)
    other = tmp_path / "other.parquet"
    write_log(other, log_of(*GOOD))
    assert "is not the one in quarantine" in complaint("resubmit", out, bad, "--log", other, *options[2:])
    unknown = complaint("resubmit", out, bad, "--log", log, "--out", tmp_path / "repaired.csv")
    assert "expected a name ending in" in unknown
    for wrong in ((), ("--log", log), ("--out", log), ("--ingress", "kafka://127.0.0.1:1/t", *options),
                  (*options, "--value", bad)):  # fmt: skip
        assert magnetar("resubmit", out, bad, *wrong).exit_code == 2
    assert Quarantine(str(out)).resubmitted() == {}


def test_half_a_log_is_not_left(out: Path, log: Path, tmp_path: Path) -> None:
    """Rubbish of several lines, which JSON Lines can't have, is still in the log."""
    repaired = read_repaired(edited(out, tmp_path / "bad.jsonl", p1_0=message(4)))
    with pytest.raises(ValueError, match="write Parquet"):
        to_log(Quarantine(str(out)), repaired, log, tmp_path / "repaired.jsonl")
    assert not (tmp_path / "repaired.jsonl").exists()


def test_a_note_does_not_disturb_the_query(out: Path, log: Path, tmp_path: Path) -> None:
    """Neither the sink that goes on, nor readers of the folder."""
    import pyarrow.parquet as pq

    before = pq.read_table(out / "quarantine").num_rows
    to_log(Quarantine(str(out)), read_repaired(edited(out, tmp_path / "b.jsonl", p1_0=message(4))), log,
           tmp_path / "repaired.parquet")  # fmt: skip
    sink = QuarantineSink(str(out))
    sink.begin(1)
    sink.write(1, 0, output([Quarantined("t", "malformed", "new", b"")], offset=50))
    assert pq.read_table(out / "quarantine").num_rows == before + 1
    assert len(Quarantine(str(out)).resubmitted()) == 1


def test_an_error_of_a_quarantine_is_one_of_value(tmp_path: Path) -> None:
    with pytest.raises(QuarantineError):
        Quarantine(str(tmp_path / "absent"))
    (tmp_path / "notes").mkdir()
    with pytest.raises(QuarantineError, match="no run or replay has written anything here"):
        Quarantine(str(tmp_path))
