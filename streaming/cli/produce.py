"""`magnetar produce`."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from schemas.printable import counted
from streaming.cli.console import progress, say
from streaming.cli.errors import expected_errors
from streaming.cli.options import MOST_PARTITIONS, IngressOption, KafkaConfigFile, credentials
from streaming.runtime.signals import stop_signals


def produce_command(
    log: Annotated[
        str,
        typer.Argument(
            help="A command log (.jsonl, .jsonl.gz, Parquet), or the topic to copy: kafka://HOST:PORT/TOPIC."
        ),
    ],
    ingress: IngressOption,
    kafka_config: KafkaConfigFile = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_PARTITIONS,
            help="The number of partitions, if the topic has to be created. The default is 4, or the log's number if that is larger.",
        ),
    ] = None,
    ticks: Annotated[
        str | None,
        typer.Option(
            help="When copying a topic: the --store of its query, to copy the times of its triggers too."
        ),
    ] = None,
    paced: Annotated[
        bool, typer.Option(help="Send in real time, spaced by the timestamps in the log.")
    ] = False,
) -> None:
    """Send a command log to a Kafka topic, or copy one topic to another with more partitions.

    Topics are given as kafka://HOST:PORT/TOPIC.
    """
    from sinks.storage import BadUrl
    from streaming.kafka.client import KafkaUnreachable
    from streaming.kafka.config import KafkaConfigError
    from streaming.kafka.produce import NotProduced, produce_log
    from streaming.kafka.repartition import repartition_topic
    from streaming.kafka.url import KafkaUrlError
    from streaming.log.table import LogError

    topic = log.startswith("kafka://")
    if ticks is not None and not topic:
        raise typer.BadParameter("--ticks is only for copying a topic, kafka://HOST:PORT/TOPIC")
    notes: list[str] = []
    with (
        expected_errors(
            LogError,
            FileNotFoundError,
            KafkaUrlError,
            KafkaConfigError,
            KafkaUnreachable,
            BadUrl,
            failed=(NotProduced,),
        ),
        stop_signals() as stop,
        progress() as bar,
    ):
        task = bar.add_task("reading", total=None)
        begun = time.perf_counter()
        common: dict[str, Any] = {
            "partitions": partitions,
            "config": credentials(kafka_config),
            "paced": paced,
            "progress": lambda done, total: bar.update(task, description="sent", completed=done, total=total),
            "stop": stop,
        }
        if topic:
            _, sent, notes = repartition_topic(log, ingress, store=ticks, **common)
        else:
            sent = produce_log(log, ingress, **common)
    for note in notes:
        say(f"magnetar: {note}", err=True)
    if stop.number is not None:
        say(f"magnetar: stopped after {counted(sent, 'record')}, which are in {ingress}", err=True)
        raise typer.Exit(128 + stop.number)
    say(f"{counted(sent, 'record')} in {time.perf_counter() - begun:.1f} s to {ingress}")
