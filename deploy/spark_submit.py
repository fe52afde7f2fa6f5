"""The query as a Spark application, for spark-submit: README.md says how.

Unlike `magnetar run`, which always makes a local session, it uses the session, and so the master, of spark-submit.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from streaming.kafka.config import KafkaConfig
from streaming.run import run_query
from streaming.signals import stop_signals

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def parser() -> argparse.ArgumentParser:
    """The command line: each option as in `magnetar run`."""
    made = argparse.ArgumentParser(
        description="Run the broker on a Kafka topic, on the cluster of spark-submit."
    )
    for name in ("ingress", "checkpoint", "store"):
        made.add_argument(f"--{name}", required=True)
    for name in ("responses", "dead-letters"):
        made.add_argument(f"--{name}")
    made.add_argument("--kafka-config", type=Path)
    made.add_argument("--trigger", default="1s")
    made.add_argument("--shuffle-partitions", type=int)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the query until SIGINT or SIGTERM."""
    given = parser().parse_args(arguments)
    builder = SparkSession.builder.appName("magnetar")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    with stop_signals() as stop:
        run_query(
            given.ingress,
            given.checkpoint,
            given.store,
            responses=given.responses,
            dead_letters=given.dead_letters,
            config=KafkaConfig.of(given.kafka_config),
            trigger=given.trigger,
            shuffle_partitions=given.shuffle_partitions,
            stop=stop,
            spark=builder.getOrCreate(),
        )


if __name__ == "__main__":
    main()
