"""The core does what a real Pulsar 4.0.7 did: every recorded trace, and a comparison that can fail."""

import base64
import json
import re
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from typer.testing import CliRunner

from streaming.cli.app import app
from streaming.traces import RECORDED
from streaming.traces.conform import compare_trace, compare_traces, known_gaps
from streaming.traces.importer import import_traces
from streaming.traces.normalise import Normaliser
from streaming.traces.trace import Trace, TraceError, read_trace

Line = dict[str, Any]
TRACES = sorted(RECORDED.glob("*.jsonl"))


@pytest.mark.feature("I2", "K1")
@pytest.mark.parametrize("path", TRACES, ids=[path.stem for path in TRACES])
def test_trace(path: Path) -> None:
    verdict = compare_trace(read_trace(path))
    assert verdict.frames > 0
    if path.stem in known_gaps():
        pytest.xfail(known_gaps()[path.stem])
    assert verdict.differences == []


def changed(name: str, **changes: Any) -> Trace:
    """A trace of which one recorded answer is made another: `cmd`, and what becomes of its fields."""
    trace = read_trace(RECORDED / f"{name}.jsonl")
    cmd, fields = changes.pop("cmd"), changes
    records = json.loads(json.dumps(trace.records))
    victim = [record for record in records if record.get("cmd") == cmd and record["dir"] == "out"][-1]
    victim["fields"].update(fields)
    return Trace(trace.header, records)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dedup_inorder_gaps", {"cmd": "SEND_RECEIPT", "sequence_id": 99}),
        ("nack_shared", {"cmd": "MESSAGE", "redelivery_count": 7}),
        ("ack_holes", {"cmd": "MESSAGE", "message_id": {"ledgerId": 75, "entryId": 0, "partition": -1}}),
        ("quota_exception", {"cmd": "ERROR", "error": "ProducerBusy"}),
        ("quota_hold", {"cmd": "CLOSE_PRODUCER", "producer_id": 5}),
    ],
)
def test_another_answer_is_a_difference(name: str, changes: dict[str, Any]) -> None:
    assert compare_trace(changed(name, **changes)).differences


def test_a_lost_answer_is_a_difference() -> None:
    trace = read_trace(RECORDED / "dedup_off.jsonl")
    records = list(trace.records)
    records.remove(next(record for record in records if record.get("cmd") == "SEND_RECEIPT"))
    assert any(
        "recorded has none" in text for _, text in compare_trace(Trace(trace.header, records)).differences
    )


def test_another_payload_is_a_difference() -> None:
    trace = read_trace(RECORDED / "dedup_off.jsonl")
    records = json.loads(json.dumps(trace.records))
    next(record for record in records if record.get("cmd") == "MESSAGE")["payload"] = "AAAA"
    assert any("payload" in text for _, text in compare_trace(Trace(trace.header, records)).differences)


@pytest.mark.parametrize(
    "path",
    [
        ("stats", "subscriptions", "s", "msgBacklog"),
        ("stats", "storageSize"),
        ("internal", "cursors", "s", "markDeletePosition"),
        ("internal", "cursors", "s", "individuallyDeletedMessages"),
        ("internal", "ledgers", 0, "size"),
    ],
)
def test_another_snapshot_is_a_difference(path: tuple[str | int, ...]) -> None:
    trace = read_trace(RECORDED / "ack_holes.jsonl")
    records = json.loads(json.dumps(trace.records))
    place = next(record for record in records if record["dir"] == "stats")
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = "(9:9..9:10]" if isinstance(place[path[-1]], str) else place[path[-1]] + 1
    assert compare_trace(Trace(trace.header, records)).differences


def test_the_command_says_how_many_are_equal(tmp_path: Path) -> None:
    for name in ("dedup_off", "ack_receipt"):
        (tmp_path / f"{name}.jsonl").write_bytes((RECORDED / f"{name}.jsonl").read_bytes())
    result = CliRunner().invoke(app, ["conform", str(tmp_path)])
    assert result.output.splitlines()[-1] == "conform: 2 of 2 traces equal"
    assert result.exit_code == 0
    lines = (
        (tmp_path / "dedup_off.jsonl").read_text().replace('"last_sequence_id":-1', '"last_sequence_id":5')
    )
    (tmp_path / "dedup_off.jsonl").write_text(lines)
    result = CliRunner().invoke(app, ["conform", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "conform: 1 of 2 traces equal"
    assert "first difference" in result.output


@pytest.mark.parametrize("command", [["conform"], ["import", "--out", "{folder}/log.jsonl"]])
def test_the_commands_say_that_a_version_has_no_profile(tmp_path: Path, command: list[str]) -> None:
    for name in ("dedup_off", "ack_receipt"):
        text = (RECORDED / f"{name}.jsonl").read_text().replace("4.0.7", "4.1.2")
        (tmp_path / f"{name}.jsonl").write_text(text)
    argv = [each.format(folder=tmp_path) for each in command]
    traces = [str(tmp_path / f"{name}.jsonl") for name in ("dedup_off", "ack_receipt")]
    result = CliRunner().invoke(app, [*argv, *traces])
    assert result.exit_code == 0
    sentence = "not there: a profile of Pulsar 4.1.2: that of 4.0, the nearest, stands in"
    assert [line for line in result.output.splitlines() if "4.1.2" in line] == [sentence]


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"format": 99}\n')
    result = CliRunner().invoke(app, ["conform", str(tmp_path)])
    assert result.exit_code == 2
    assert "not a trace of format 1" in result.output


# -- files that are none, records that are none -----------------------------------------------------------------------


HEADER = '{"format": 1, "scenario": "x", "broker_config": {}}'


def frame(**changes: Any) -> str:
    """A SEND with changes, as a line."""
    fields = {"producer_id": 0, "sequence_id": 0}
    metadata = {"producer_name": "p", "sequence_id": 0, "publish_time": 1}
    sent = (
        {"cmd": "SEND", "fields": fields, "metadata": metadata, "entry_size": 1}
        if "cmd" not in changes
        else {}
    )
    return json.dumps({"t": 1, "dir": "in", "conn": 0, **sent, **changes})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "not a trace of format 1"),
        ('{"topic": "t", "value": {"command": "TICK"}}', "a log of commands, not a trace: magnetar replay takes it"),
        ("[]", ":1: expected an object, found []"),
        ("{", ":1: not JSON"),
        ('{"format": 1, "scenario": "x"}', "the header has no broker_config"),
        (f"{HEADER}\n7", ":2: expected an object, found 7"),
        (f'{HEADER}\n{{"t": 1, "dir": "up"}}', ":2: dir 'up': expected one of in, out, admin, note, stats"),
        (f'{HEADER}\n{{"t": "now", "dir": "note"}}', ":2: a record of note: Expected `int | float`, got `str` - at `$.t`"),
        (f'{HEADER}\n\n{{"t": 1, "dir": "in", "cmd": "FLOW"}}', ":3: a record of in: Object missing required field `conn`"),
        (f'{HEADER}\n{{"t": 1, "dir": "in", "conn": 0, "cmd": "FLOW", "fields": 3}}', ":2: a record of in: Expected `object`, got `int` - at `$.fields`"),
        (f'{HEADER}\n{{"t": 1, "dir": "in", "conn": 0, "cmd": "SEND"}}', ":2: a record of in: Object missing required field `metadata`"),
        (f'{HEADER}\n{{"t": 1, "dir": "note", "event": "backlog_quota_check"}}', ":2: a record of note: Object missing required field `ms`"),
        ("\x80", "x.jsonl:1: not JSON: 'utf-8' codec"),
        ('{"format": 1, "broker_config": {}, "scenario": 5}', "the header: Expected `str`, got `int` - at `$.scenario`"),
        (HEADER.replace("{}", '{"backlogQuotaCheckIntervalInSeconds": "often"}'), "the header: Expected `str` matching regex"),
        (HEADER.replace("{}", f'{{"messageExpiryCheckIntervalInMinutes": {10**400}}}'), "the header: Expected `int` <= 1000000000"),
        (f'{HEADER}\n{{"t": 1, "dir": "note", "step": 5}}', ":2: a record of note: Expected `str`, got `int` - at `$.step`"),
        (f"{HEADER}\n{frame(cmd='X')}", ":2: a record of in: X: no such command"),
        (f"{HEADER}\n{frame(payload=5)}", ":2: a record of in: Expected `bytes`, got `int` - at `$.payload`"),
        (f"{HEADER}\n{frame(payload_repeat=[0, 10**400])}", ":2: a record of in: Expected `int` <= 2147483647 - at `$.payload_repeat[1]`"),
        (f"{HEADER}\n{frame(metadata={'producer_name': 'p'})}", ":2: a record of in: metadata: sequence_id, publish_time is missing"),
        (f"{HEADER}\n{frame(fields={'sequence_id': 0})}", ":2: a record of in: fields of SEND: producer_id is missing"),
        (f"{HEADER}\n{frame(fields={'producer_id': []})}", ":2: a record of in: fields of SEND: producer_id can't be []"),
        (f"{HEADER}\n{frame(cmd='LOOKUP', fields={'topic': 5})}", ":2: a record of in: fields of LOOKUP: topic can't be 5"),
        (f"{HEADER}\n{frame(cmd='SEEK', fields={'message_id': None})}", ":2: a record of in: fields of SEEK: message_id can't be null"),
    ],
)  # fmt: skip
def test_a_bad_file_gives_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(text.encode("latin-1"))
    for arguments in (["conform", str(file)], ["import", str(file), "--out", str(tmp_path / "out.jsonl")]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert sentence in " ".join(result.output.split())
        assert "Traceback" not in result.output


ODD: dict[type, list[Any]] = {
    str: [
        "",
        "x",
        "1:1",
        "/",
        "://",
        "persistent://",
        "persistent://a/b/c",
        "%zz",
        "(",
        "a" * 999,
        f"{'9' * 5000}:1",
    ],
    int: [-1, 0, 1, 2**31 - 1, 2**32, 2**53, 2**63 - 1, 2**64 - 1, 2**64, 10**400],
    float: [-1.0, 0.0, 0.5, 2.0**53, 1e300],
    bool: [True, False],
    dict: [{}, {"x": None}],
    list: [[], [[]], ["x", None]],
    type(None): [None],
}
"""Values, by type."""


def odd(value: Any, dice: Random) -> Any:
    """The value with one part of it missing, another one of its type, or one of any type."""
    if isinstance(value, dict | list) and value and dice.random() < 0.9:
        changed: Any = value.copy()
        at = dice.choice(list(value)) if isinstance(value, dict) else dice.randrange(len(value))
        if dice.random() < 0.1:
            del changed[at]
        else:
            changed[at] = odd(value[at], dice)
        return changed
    kind = type(value) if dice.random() < 0.6 else dice.choice(list(ODD))
    return dice.choice(ODD[kind])


def parts(number: int, line: Line) -> list[Line]:
    """A line as `magnetar record` writes it, which has the answer to a call by itself."""
    if line.get("dir") != "admin":
        return [line]
    answer: Line = {name: line.pop(name) for name in ("status", "headers", "response") if name in line}
    return [line | {"call": number}, {"t": line["t"], "dir": "answer", "call": number, **answer}]


@pytest.mark.parametrize("seed", range(40))
def test_an_odd_value_in_a_trace_gives_its_error_and_no_other(seed: int, tmp_path: Path) -> None:
    dice = Random(seed)
    for name in dice.sample([path for path in TRACES if path.stat().st_size < 100_000], 3):
        lines = [json.loads(line) for line in name.read_text().splitlines()]
        lines[0]["gated"] = dice.random() < 0.5
        if not lines[0]["gated"]:
            lines = [part for number, line in enumerate(lines) for part in parts(number, line)]
        asked = [number for number, line in enumerate(lines) if line.get("dir") in ("in", "admin", "answer")]
        for _ in range(dice.choice([1, 3])):
            at = dice.choice([0, dice.randrange(len(lines)), *[dice.choice(asked)] * 4])
            lines[at] = odd(lines[at], dice)
        file = tmp_path / "x.jsonl"
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        told = []
        reads: list[Callable[[list[Path]], object]] = [
            compare_traces,
            partial(import_traces, out=tmp_path / "o.jsonl", replace=True),
        ]
        for read in reads:
            try:
                found = read([file])
            except TraceError as error:
                told.append(str(error))
            else:
                assert "Magnetar failed" not in str(found)
        assert len(told) in (0, 2)
        assert all(re.match(rf"{re.escape(str(file))}(:\d+)?: ", each) for each in told)


def test_what_a_trace_may_leave_out() -> None:
    trace = read_trace(RECORDED / "quota_evict_one.jsonl")
    header = {**trace.header, "broker_config": dict(trace.header["broker_config"])}
    del header["broker_config"][
        "backlogQuotaCheckIntervalInSeconds"
    ]  # one check at the end of the wait, then
    assert compare_trace(Trace(header, trace.records)).differences == []


def test_a_snapshot_that_is_none_is_a_difference() -> None:
    trace = read_trace(RECORDED / "dedup_off.jsonl")
    records = json.loads(json.dumps(trace.records))
    next(record for record in records if record["dir"] == "stats")["stats"] = {"publishers": 5}
    assert any(
        "its stats are malformed" in text
        for _, text in compare_trace(Trace(trace.header, records)).differences
    )


# -- names, positions ------------------------------------------------------------------------------------------------


def test_a_name_that_looks_like_a_position_is_a_name() -> None:
    text = (RECORDED / "quota_evict_one.jsonl").read_text()
    records = [json.loads(line) for line in text.replace("producer01", "1:00000001").splitlines()]
    assert compare_trace(Trace(records[0], records[1:])).differences == []


def test_the_client_keeps_the_name_that_it_was_given() -> None:
    """Deduplication goes by the name: the reconnecting client finds its sequence ids."""
    text = (RECORDED / "dedup_unload.jsonl").read_text().replace('"p"', '"standalone-0-7"')
    records = [json.loads(line) for line in text.splitlines()]
    sizes = compare_trace(
        Trace(records[0], records[1:])
    ).differences  # the name is longer than the recorded one
    first = next(record for record in records if record.get("cmd") == "PRODUCER")
    del first["fields"]["producer_name"]
    assert compare_trace(Trace(records[0], records[1:])).differences == sizes


def test_a_ledger_older_than_all_stays_older() -> None:
    trace = read_trace(RECORDED / "seek_id.jsonl")
    ids = [
        record["fields"]["message_id"]
        for record in trace.records
        if record["dir"] == "in" and record["cmd"] == "SEEK"
    ]
    normaliser = Normaliser()
    assert normaliser.our_ledger("t", ids[0]["ledgerId"]) == ids[0]["ledgerId"], "nothing is known"
    assert normaliser.ledger("t", 42, 1)
    assert [normaliser.our_ledger("t", id_) for id_ in (41, 42, 43, 2**63 - 1, 2**64 - 1, -1)] == [
        0, 1, 43, 2**63 - 1, 2**64 - 1, -1,
    ]  # fmt: skip


# -- made traces: calls that none of the recorded ones holds ------------------------------------------------------------


def made(*records: dict[str, Any]) -> list[tuple[str, str]]:
    """The differences of a trace of these records."""
    header = read_trace(RECORDED / "dedup_off.jsonl").header
    return compare_trace(
        Trace(header, [{"t": 1_700_000_000_000 + i, **record} for i, record in enumerate(records)])
    ).differences


def into(cmd: str, **fields: Any) -> dict[str, Any]:
    more: dict[str, Any] = {name: fields.pop(name) for name in ("metadata", "payload") if name in fields}
    return {"dir": "in", "conn": 0, "cmd": cmd, "fields": fields, **more}


def out(cmd: str, **fields: Any) -> dict[str, Any]:
    return {"dir": "out", "conn": 0, "cmd": cmd, "fields": fields}


def call(method: str, path: str, status: int = 204, **more: Any) -> dict[str, Any]:
    return {"dir": "admin", "method": method, "path": path, "status": status, **more}


T = "/persistent/public/default/t"


def test_a_call_on_a_partitioned_topic_is_one_on_each_partition() -> None:
    calls = [call("PUT", f"{T}/partitions", body=2), call("PUT", f"{T}/subscription/s"),
             call("POST", f"{T}/subscription/s/skip_all"), call("PUT", f"{T}-partition-1/subscription/s", 409),
             call("DELETE", f"{T}/subscription/x", 404)]  # fmt: skip
    assert made(*calls) == []


def test_frames_of_ids_that_were_never_opened() -> None:
    """Pulsar ignores some, refuses others, and closes the connection of a SEND."""
    at, refused = {"ledgerId": 5, "entryId": 0}, {"error": "MetadataError", "message": "Consumer not found"}
    metadata = {"producer_name": "p", "sequence_id": 0, "publish_time": 1}
    frames = [
        into("FLOW", consumer_id=7, messagePermits=5),
        into("ACK", consumer_id=7, ack_type="Individual", message_id=[at]),
        into("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=7),
        into("SEEK", consumer_id=7, request_id=3, message_id=at), out("ERROR", request_id=3, **refused),
        into("GET_LAST_MESSAGE_ID", consumer_id=7, request_id=4), out("ERROR", request_id=4, **refused),
        into("UNSUBSCRIBE", consumer_id=7, request_id=5), out("ERROR", request_id=5, **refused),
        into("CLOSE_CONSUMER", consumer_id=7, request_id=6), out("SUCCESS", request_id=6),
        into("CLOSE_PRODUCER", producer_id=7, request_id=8), out("SUCCESS", request_id=8),
        into("SEND", producer_id=7, sequence_id=0, metadata=metadata, payload=""), out("_TCP_CLOSE"),
    ]  # fmt: skip
    assert made(*frames) == []


def hash_of(topics: list[str]) -> str:
    """As Pulsar computes it (docs/rules/protocol.md §9)."""
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()


def test_the_topics_of_a_namespace() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    names = [f"persistent://public/default/t-partition-{index}" for index in range(2)]
    asked = {"request_id": 1, "namespace": "public/default"}
    answer = {"request_id": 1, "filtered": False, "changed": True}
    start = [call("PUT", f"{T}/partitions", body=2), call("PUT", f"{T}1/subscription/s"),
             call("PUT", "/persistent/public/other/t/subscription/s")]  # fmt: skip
    topics = ["persistent://public/default/t1", *names]
    whole = out("GET_TOPICS_OF_NAMESPACE_RESPONSE", **answer, topics=topics, topics_hash=hash_of(topics))
    found = made(*start, into("GET_TOPICS_OF_NAMESPACE", **asked, mode="ALL"), whole)
    assert found == []
    again = out(
        "GET_TOPICS_OF_NAMESPACE_RESPONSE",
        request_id=1,
        filtered=False,
        changed=False,
        topics_hash=hash_of(topics),
    )
    assert made(*start, into("GET_TOPICS_OF_NAMESPACE", **asked, topics_hash=hash_of(topics)), again) == []
    some = into("GET_TOPICS_OF_NAMESPACE", **asked, topics_pattern="persistent://public/default/t")
    filtered = {**answer, "filtered": True, "topics": names, "topics_hash": hash_of(names)}
    assert made(*start, some, out("GET_TOPICS_OF_NAMESPACE_RESPONSE", **filtered)) == []
    none = into("GET_TOPICS_OF_NAMESPACE", **asked, mode="NON_PERSISTENT")
    assert made(*start, none, out("GET_TOPICS_OF_NAMESPACE_RESPONSE", **answer, topics_hash="00000000")) == []


@pytest.mark.parametrize("codec", ["NONE", "ZLIB", "LZ4", "ZSTD", "SNAPPY"])
def test_a_message_that_an_administrator_asks_for(codec: str) -> None:
    text = b"hello hello hello hello"
    payload = text
    if codec == "ZLIB":
        payload = zlib.compress(text)
    elif codec != "NONE":
        payload = pa.compress(text, codec={"LZ4": "lz4_raw"}.get(codec, codec.lower()), asbytes=True)
    topic = "persistent://public/default/t"
    metadata = {"producer_name": "p", "sequence_id": 0, "publish_time": 1, "compression": codec, "partition_key": "k",
                "uncompressed_size": len(text), "num_messages_in_batch": 1,
                "properties": [{"key": "a", "value": "b"}]}  # fmt: skip
    at = {"ledgerId": 50, "entryId": 0}
    start = [
        into("PRODUCER", topic=topic, producer_id=0, request_id=1, producer_name="p"),
        out("PRODUCER_SUCCESS", request_id=1, producer_name="p", last_sequence_id=-1, schema_version="", producer_ready=True),
        into("SEND", producer_id=0, sequence_id=0, metadata=metadata, payload=base64.b64encode(payload).decode()),
        out("SEND_RECEIPT", producer_id=0, sequence_id=0, message_id=at, highest_sequence_id=0),
    ]  # fmt: skip
    headers = {"X-Pulsar-Message-ID": "50:0", "X-Pulsar-PROPERTY": '{"a":"b"}', "X-Pulsar-sequence-id": "0",
               "X-Pulsar-publish-time": "1970", "Server": "Jetty"}  # fmt: skip
    body = {"base64": base64.b64encode(text).decode()}
    path = f"{T}/ledger/50/entry/0"
    assert made(*start, call("GET", path, 200, response=body, headers=headers)) == []
    assert made(*start, call("GET", path, 200, response=text.decode())) == []
    assert made(*start, call("GET", path, 200, response={"base64": "AAAA"})) != []
    assert made(*start, call("GET", path, 200, headers={"X-Pulsar-sequence-id": "1"})) != []
    assert made(*start, call("GET", path, 200, headers={"X-Pulsar-PROPERTY": '{"a":"c"}'})) != []


def test_what_an_administrator_reads() -> None:
    start = [call("PUT", f"{T}/subscription/{name}") for name in "ab"]
    start += [call("POST", f"{T}/messageTTL?messageTTL=7")]
    assert made(*start, call("GET", f"{T}/subscriptions", 200, response=["b", "a"])) == []
    assert made(*start, call("GET", f"{T}/subscriptions", 200, response=["a"])) != []
    assert made(*start, call("GET", f"{T}/messageTTL", 200, response=7)) == []
    assert made(*start, call("GET", f"{T}/messageTTL", 200, response=8)) != []
    assert made(*start, call("GET", f"{T}/retention", 200)) == []
    assert made(*start, call("GET", f"{T}/stats", 200, response={"msgRateIn": 0.0})) == []


@pytest.mark.parametrize("words", ["ackSet is null", "ackSet with long[] size of 0"])
def test_a_read_position_may_tell_of_the_batch_that_a_seek_went_into(words: str) -> None:
    trace = read_trace(RECORDED / "ack_holes.jsonl")
    records = json.loads(json.dumps(trace.records))
    cursor = next(record for record in records if record["dir"] == "stats")["internal"]["cursors"]["s"]
    cursor["readPosition"] += f" ({words})"
    assert compare_trace(Trace(trace.header, records)).differences == []
