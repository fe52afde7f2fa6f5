"""Arguments and options that several commands share."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.console import say

if TYPE_CHECKING:
    from schemas.coordinates import Coordinates
    from streaming.answers.history.folders import Folders
    from streaming.broker.position import Position
    from streaming.kafka.config import KafkaConfig


class ClockChoice(StrEnum):
    """What advances time."""

    log = "log"
    trigger = "trigger"


class ProfileChoice(StrEnum):
    """The versions of Pulsar whose rules and defaults a broker can have."""

    v2_10 = "2.10"
    articles = "2.x"
    v3_0 = "3.0"
    v4_0 = "4.0"
    v4_2 = "4.2"
    v4 = "4.x"
    v5_0 = "5.0"


IngressOption = Annotated[str, typer.Option(help="The Kafka topic of the commands: kafka://HOST:PORT/TOPIC.")]
KafkaConfigFile = Annotated[
    Path | None,
    typer.Option(
        help="A file of Kafka client properties for TLS and passwords; see docs/operate/security.md."
    ),
]

KeepOutputs = Annotated[
    str | None,
    typer.Option(
        help="Remove rows older than this from the output table, such as 30d. By default, all rows are kept."
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
        help="The number of ingress partitions. The default is the log's, or 4.",
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
        help="Set aside a record that Magnetar fails on, without reading it. Repeatable.",
    ),
]


TopicsSetAside = Annotated[
    list[str] | None,
    typer.Option(
        "--quarantine-topic",
        metavar="TOPIC",
        help="Set aside a topic that Magnetar fails on: its state and all its commands from now on stay "
        "unread, permanently. Give its full name. Repeatable.",
    ),
]

SnapshotsFolder = Annotated[
    Path | None,
    typer.Option(
        "--snapshots",
        help="The folder for state snapshots. The default is a folder in the user's cache.",
    ),
]
AT = typer.Option(
    "--at",
    metavar="N|PARTITION:OFFSET|TIME",
    help="For a log: after this many commands, after this record, or at this time (ISO 8601). The default is "
    "the end.",
)


def check_at(path: str | Path, at: str | None) -> None:
    """Whether what a path names has moments, if one is given. Raises `typer.BadParameter`."""
    from streaming.answers.explain.opened import is_of_run

    if at is not None and is_of_run(path):
        raise typer.BadParameter(
            f"--at applies to a log, and {path} is not one: give the log instead of the folder"
        )


def opened_folders(folder: str, checkpoint: str | None, at: str | None, snapshots: Path | None) -> Folders:
    """What a command explains, see `streaming.answers.explain.opened.opened`. Raises `typer.BadParameter`, and what that raises."""
    from streaming.answers.explain.opened import is_log, opened

    check_at(folder, at)
    of_log = at is not None or is_log(folder)
    if snapshots is not None and not of_log:
        raise typer.BadParameter("--snapshots applies to a log: give the log instead of the folder")
    if checkpoint is not None and of_log:
        raise typer.BadParameter("a log has no --checkpoint")
    return opened(folder, checkpoint=checkpoint, at=at, snapshots=snapshots)


def refuse_unused(*options: tuple[str, bool, str]) -> None:
    """Raises `typer.BadParameter` for an option without effect, so that nobody counts on it. Each option: its name, whether it has none,
    and why."""
    for name, is_unused, why in options:
        if is_unused:
            raise typer.BadParameter(f"no effect {why}: leave it out", param_hint=name)


def coordinates(text: str) -> Coordinates:
    """A record's place in the ingress, from PARTITION:OFFSET. Raises `typer.BadParameter`."""
    from schemas.coordinates import Coordinates

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
    from streaming.broker.position import from_words

    try:
        return from_words(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def milliseconds(text: str) -> int:
    """A duration such as 500ms, 30s, 5m or 1h. Raises `typer.BadParameter`."""
    units = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    number = text.rstrip("dhms")
    unit = text[len(number):]  # fmt: skip
    if not (number.isascii() and number.isdigit() and len(number) <= 9 and unit in units):
        raise typer.BadParameter(f"{text!r}: expected a number and a unit, such as 90s, 30m or 1h")
    return int(number) * units[unit]


MAX_AHEAD = "1h"
"""The default of ``--max-ahead``: clocks that are set wrong are mostly so by a time zone or more."""


def max_ahead_milliseconds(text: str) -> int | None:
    """The value of ``--max-ahead``; None: off. Raises `typer.BadParameter`."""
    if text == "off":
        return None
    if (found := milliseconds(text)) == 0:  # no clock could be followed
        raise typer.BadParameter(f"--max-ahead {text}: expected more than 0, or off to accept any time")
    return found


def least_milliseconds(option: str, text: str) -> int:
    """A duration of a second or more, such as 30s. Raises `typer.BadParameter`."""
    if (found := milliseconds(text)) < 1000:
        raise typer.BadParameter(f"{option} {text}: expected 1s or more")
    return found


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
