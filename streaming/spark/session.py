"""A Spark session with the settings that Magnetar needs; on a laptop they are what makes it usable."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from streaming.runtime.jars import spark_kafka_jars
from streaming.runtime.java import spark_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession as SparkSession

_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")


def spark_session(
    app_name: str,
    *,
    shuffle_partitions: int,
    master: str = "local[*]",
    with_kafka: bool = False,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The Spark session of this process: made in 5 s, or the present one with `conf`'s SQL settings.

    Args:
        app_name: shown in Spark's UI and logs.
        shuffle_partitions: tasks of the stateful operator. 1 gives the shortest micro-batch, one a core the
            most throughput. A streaming query keeps the number of its first batch.
        master: where to run, `local[n]` for n threads in this process.
        with_kafka: load Spark's Kafka source, fetching it if need be. Leave it off where `--packages` does.
        conf: more settings, or other values of those below.

    Raises:
        JavaNotFoundError, JarsUnavailableError: no Java, no jars.
    """
    # Imported late: it takes half a second, which `magnetar --help` has not.
    from pyspark.sql import SparkSession

    settings = _common(shuffle_partitions)
    if master.startswith("local"):
        settings |= _local()
    if with_kafka:
        settings["spark.jars"] = ",".join(map(str, spark_kafka_jars()))
    settings |= conf or {}
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _own_interrupt():
        return builder.getOrCreate()


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Whoever handles Ctrl-C goes on doing so: pyspark takes it over, to cancel jobs and raise KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if before is not signal.default_int_handler and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def _common(shuffle_partitions: int) -> dict[str, str]:
    return {
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        # Timestamps mean the same on every machine.
        "spark.sql.session.timeZone": "UTC",
        # Frames between Spark and pandas as Arrow, column by column, rather than pickled row by row.
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }


def _local() -> dict[str, str]:
    # Spark's launcher, and the workers it forks, take these from the environment and from nowhere else.
    os.environ["JAVA_HOME"] = str(spark_java_home())
    # Else workers are the first `python3` on PATH, which may lack every package.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Else Spark looks the host's name up, which may fail or take seconds, and warns about the answer.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return {
        # Nobody else on the network is to reach the driver.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Driver and executors are one JVM here; the default of 1 GB is tight for a large micro-batch.
        "spark.driver.memory": "2g",
        # A web server, a port and 0.5 s of start that nobody asked for.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Only errors, from the first moment on: `spark.log.level` comes too late for what the start logs.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}",
        # Python workers that don't print a traceback when Spark has hung up on them.
        "spark.python.daemon.module": "streaming.spark.worker_daemon",
        # Talking to Python workers through a file instead of TCP: shorter micro-batches.
        "spark.python.unix.domain.socket.enabled": "true",
        # Checkpoints without a checksum file beside each file and without a forked `chmod` for each:
        # 122 ms for an empty micro-batch instead of 172 ms.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        # Tables are not ours to keep; else Spark drops a folder into the working directory.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "magnetar-spark-warehouse"),
    }
