"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from schemas.records import Coordinates
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


RecordsSetAside = Annotated[
    list[str] | None,
    typer.Option(
        "--quarantine",
        metavar="PARTITION:OFFSET",
        help="Set a record aside, unread, because Magnetar fails on it. Repeatable.",
    ),
]


def coordinates(text: str) -> Coordinates:
    """A record's place in the ingress, from PARTITION:OFFSET. Raises `typer.BadParameter`."""
    from schemas.records import Coordinates

    found = Coordinates.parse(text)
    if found is None:
        raise typer.BadParameter(f"{text!r}: expected PARTITION:OFFSET, such as 3:42")
    return found


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


def credentials(file: Path | None) -> KafkaConfig:
    """The settings in a ``--kafka-config`` file, with a warning if every user of this machine can read it.

    Raises `KafkaConfigError`.
    """
    from streaming.kafka.config import KafkaConfig

    config = KafkaConfig.of(file)
    if config.is_open:
        typer.echo(
            f"magnetar: every user of this machine can read the passwords in {file}: chmod 600 {file}",
            err=True,
        )
    return config
