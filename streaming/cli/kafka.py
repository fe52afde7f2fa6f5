"""`magnetar kafka`: a local Kafka broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streaming.cli.console import say
from streaming.cli.errors import expected_errors

kafka_app = typer.Typer(
    help="Run a real Kafka broker on this machine, to try things out.", no_args_is_help=True
)

Directory = Annotated[Path, typer.Option("--dir", help="The folder for the broker's data, log and state.")]
DIRECTORY = Path(".magnetar/kafka")


@kafka_app.command("up")
def up_command(
    port: Annotated[
        int, typer.Option(help="The port on 127.0.0.1; 0 picks a free port.", min=0, max=65535)
    ] = 9092,
    directory: Directory = DIRECTORY,
) -> None:
    """Start the broker and leave it running. It takes 2 s; the first start on a machine downloads 44 MB."""
    from sinks.lock import InUse, NotWritable
    from streaming.kafka.local import LocalKafka, LocalKafkaError, NotStarted
    from streaming.runtime.jars import JarsUnavailableError
    from streaming.runtime.java import JavaNotFoundError

    wrong = (NotStarted, InUse, NotWritable, JarsUnavailableError, JavaNotFoundError)
    with expected_errors(*wrong, failed=(LocalKafkaError,)):
        running = LocalKafka(directory, port).start()
        say(f"Kafka is up at {running.bootstrap} (pid {running.pid}, {directory})")


@kafka_app.command("down")
def down_command(directory: Directory = DIRECTORY) -> None:
    """Stop the broker. Its topics are kept for the next `up`."""
    from streaming.kafka.local import LocalKafka, LocalKafkaError

    kafka = LocalKafka(directory)
    with expected_errors(failed=(LocalKafkaError,)):
        was_up = kafka.status() is not None
        kafka.stop()
        say("Kafka is down" if was_up else f"Kafka was not up in {directory}")


@kafka_app.command("status")
def status_command(directory: Directory = DIRECTORY) -> None:
    """Show whether the broker is running. The exit code is 1 if it is not."""
    from streaming.kafka.local import LocalKafka

    running = LocalKafka(directory).status()
    if running is None:
        say(f"Kafka is not up in {directory}")
        raise typer.Exit(1)
    say(f"Kafka is up at {running.bootstrap} (pid {running.pid}, {directory})")
