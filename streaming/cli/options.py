"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.console import say

if TYPE_CHECKING:
    from schemas.records import Coordinates
    from streaming.answers.folders import Folders
    from streaming.answers.timeline import Timeline
    from streaming.broker.position import Position
    from streaming.kafka.config import KafkaConfig


class Clock(StrEnum):
    """What advances time."""

    log = "log"
    trigger = "trigger"


Ingress = Annotated[str, typer.Option(help="The Kafka topic of the commands: kafka://HOST:PORT/TOPIC.")]
KafkaConfigFile = Annotated[
    Path | None,
    typer.Option(help="A file of Kafka client properties for TLS and passwords; see docs/security.md."),
]

KeepOutputs = Annotated[
    str | None,
    typer.Option(
        help="Remove rows from the output table that are older than this, such as 30d. By default, all are kept."
    ),
]

MOST_PARTITIONS = 10_000
"""Ingress partitions. Each takes a copy of every command to the whole broker, and files and tasks of its own."""
MOST_CORES = 1024
LARGEST = 2**63 - 1
"""The largest number of a column."""

Partitions = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_PARTITIONS,
        help="The number of ingress partitions. The default is the log's own, or 4.",
    ),
]

AnswerFolder = Annotated[
    Path | None,
    typer.Option("--out", help="A new or empty folder for the tables, the JSON and the report."),
]

RecordsSetAside = Annotated[
    list[str] | None,
    typer.Option(
        "--quarantine",
        metavar="PARTITION:OFFSET",
        help="Set a record aside, unread, because Magnetar fails on it. Repeatable.",
    ),
]


TopicsSetAside = Annotated[
    list[str] | None,
    typer.Option(
        "--quarantine-topic",
        metavar="TOPIC",
        help="Set a topic aside, with its state unread and all its commands from now on, because Magnetar fails on it. Give its "
        "full name. Repeatable. It stays so.",
    ),
]

SnapshotsFolder = Annotated[
    Path | None,
    typer.Option(
        "--snapshots",
        help="The folder for snapshots of the states, for which the default is one below the user's cache.",
    ),
]
AT = typer.Option(
    "--at",
    metavar="N|PARTITION:OFFSET|TIME",
    help="Of a log: after so many commands, after a record, or at a time (ISO 8601). The default is the end.",
)

_TIMELINES = 8
"""How many logs have snapshots in the cache."""


def is_log(path: str | Path) -> bool:
    """Whether a path names a command log in a file, and not the folder of a replay or a query."""
    return not _is_of_run(path) and str(path).endswith((".jsonl", ".jsonl.gz", ".parquet"))


def _is_of_run(path: str | Path) -> bool:
    """Whether a path names the folder of a replay, or the checkpoint or the store of a query, however it is called."""
    return any((Path(path) / each).exists() for each in ("state", "commits", "ingress.json"))


def check_at(path: str | Path, at: str | None) -> None:
    """Whether what a path names has moments, if one is given. Raises `typer.BadParameter`."""
    if at is not None and _is_of_run(path):
        raise typer.BadParameter(f"--at is of a log, and {path} is none: name the log in place of the folder")


def opened_timeline(log: Path, snapshots: Path | None) -> Timeline:
    """The timeline of a log, with its snapshots in a folder, or in the user's cache, which keeps those of the last eight logs.

    Raises `LogError`, `FileNotFoundError`.
    """
    from sinks.lock import NotWritable
    from streaming import __version__
    from streaming.answers.timeline import Timeline, forget
    from streaming.broker.codec import VERSION
    from streaming.log.files import check_log
    from streaming.runtime.cache import cache_dir

    def in_cache(digest: str) -> Path:
        key = sha256(repr((__version__, VERSION, digest)).encode()).hexdigest()[:32]
        folder = cache_dir() / "timelines" / key
        try:
            _touch(folder)  # the last ones used are kept
        except OSError as error:
            raise NotWritable(
                f"{error.filename}: {error.strerror}: name a folder with --snapshots"
            ) from error
        for each in _by_last_use(folder.parent)[_TIMELINES:]:
            forget(each)
        return folder

    check_log(log)
    return Timeline(log, snapshots or in_cache)


def _touch(folder: Path) -> None:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another command forgets it
            os.utime(folder)
            return


def _by_last_use(folder: Path) -> list[Path]:
    found = []
    for each in folder.iterdir():
        with suppress(FileNotFoundError):  # another command forgets it
            found.append((each.stat().st_mtime_ns, each))
    return [each for _, each in sorted(found, reverse=True)]


def opened_folders(folder: str, checkpoint: str | None, at: str | None, snapshots: Path | None) -> Folders:
    """What a command explains: a log at a moment, or the last state of a replay or a query.

    Raises `LogError`, `FileNotFoundError`, `NotFound`, `BadCheckpoint`.
    """
    from streaming.answers.folders import Folders

    check_at(folder, at)
    if at is None and not is_log(folder):
        if snapshots is not None:
            raise typer.BadParameter("--snapshots are of a log: name it in place of the folder")
        return Folders.of(folder, checkpoint)
    if checkpoint is not None:
        raise typer.BadParameter("a log has no --checkpoint")
    timeline = opened_timeline(Path(folder), snapshots)
    return timeline.folders(len(timeline) if at is None else timeline.moment(at))


def coordinates(text: str) -> Coordinates:
    """A record's place in the ingress, from PARTITION:OFFSET. Raises `typer.BadParameter`."""
    from schemas.records import Coordinates

    found = Coordinates.parse(text)
    if found is None:
        raise typer.BadParameter(f"{text!r}: expected PARTITION:OFFSET, such as 3:42")
    return found


def topic_name(text: str) -> str:
    """A topic's full name. Raises `typer.BadParameter`."""
    from streaming.broker.names import is_topic_name

    if not is_topic_name(text):
        raise typer.BadParameter(
            f"{text!r}: expected the full name of a topic, such as persistent://public/default/orders"
        )
    return text


def position(text: str) -> Position:
    """A message's position, from LEDGER:ENTRY. Raises `typer.BadParameter`."""
    from streaming.broker.position import Position

    ledger, colon, entry = text.partition(":")
    if not colon or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in (ledger, entry)):
        raise typer.BadParameter(f"{text!r}: expected LEDGER:ENTRY, such as 3:42")
    return Position(int(ledger), int(entry))


def milliseconds(text: str) -> int:
    """A duration such as 500ms, 30s, 5m or 1h. Raises `typer.BadParameter`."""
    units = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    number = text.rstrip("dhms")
    unit = text[len(number):]  # fmt: skip
    if not (number.isascii() and number.isdigit() and len(number) <= 9 and unit in units):
        raise typer.BadParameter(f"{text!r}: expected a number and a unit, such as 90s, 30m or 1h")
    return int(number) * units[unit]


def cluster_master(text: str) -> str:
    """The master of a Spark cluster. Raises `typer.BadParameter`."""
    if not (text == "yarn" or text.startswith(("spark://", "k8s://"))):
        raise typer.BadParameter(
            f"{text!r} is not a Spark master: expected spark://HOST:PORT, k8s://HOST:PORT or yarn"
        )
    return text


def setting(text: str) -> tuple[str, str]:
    """A setting of Spark, from NAME=VALUE. Raises `typer.BadParameter`."""
    name, equals, value = text.partition("=")
    if not (equals and name.startswith("spark.")):
        raise typer.BadParameter(f"{text!r}: expected NAME=VALUE, such as spark.executor.memory=2g")
    return name, value


def days(text: str) -> timedelta:
    """A number of days such as 30d. Raises `typer.BadParameter`."""
    number = text.removesuffix("d")
    if not (
        text.endswith("d") and number.isascii() and number.isdigit() and 0 < len(number) <= 5 and int(number)
    ):
        raise typer.BadParameter(f"{text!r}: expected a number of days, such as 30d")
    return timedelta(days=int(number))


def credentials(file: Path | None) -> KafkaConfig:
    """The settings in a ``--kafka-config`` file, with a warning if every user of this machine can read a password
    in it.

    Raises `KafkaConfigError`.
    """
    from streaming.kafka.config import KafkaConfig

    config = KafkaConfig.of(file)
    if config.is_open:
        say(
            f"magnetar: every user of this machine can read the passwords in {file}: chmod 600 {file}",
            err=True,
        )
    return config
