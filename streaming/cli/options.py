"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
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
