"""A Spark session with the settings that Magnetar needs. They also make it fast enough on a laptop."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from streaming.runtime.jars import spark_kafka_jars
from streaming.runtime.java import spark_java_home

if TYPE_CHECKING:
    import pyarrow as pa
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
    """The Spark session of this process: a new one, in 5 s, or the existing one with the SQL settings of `conf`.

    Args:
        app_name: shown in Spark's UI and logs.
        shuffle_partitions: tasks of the stateful operator. 1 gives the shortest micro-batches, one per core the
            highest throughput. A streaming query keeps the number of its first batch.
        master: where to run. `local[n]` means n threads in this process.
        with_kafka: load Spark's Kafka source, downloading it if needed. Leave it off if `--packages` loads it.
        conf: more settings, or other values for those below.

    Raises:
        JavaNotFoundError, JarsUnavailableError: Java or the jars are missing.
    """
    # Imported late, because it takes half a second, too long for `magnetar --help`.
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
    """Keep the present handler of Ctrl-C. pyspark would replace it to cancel jobs and raise KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if before is not signal.default_int_handler and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def warm_workers(spark: SparkSession) -> None:
    """Start Spark's Python workers now, in the background, rather than in the first micro-batch."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    def warm() -> None:
        # Nothing depends on it, and a failure would show in the micro-batch, too.
        with suppress(Exception):
            tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
            spark.range(tasks, numPartitions=tasks).mapInArrow(same, "id long").collect()

    threading.Thread(target=warm, daemon=True).start()


def _common(shuffle_partitions: int) -> dict[str, str]:
    return {
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        # So that timestamps mean the same on every machine.
        "spark.sql.session.timeZone": "UTC",
        # Convert frames between Spark and pandas by column, as Arrow, instead of pickling rows.
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }


def _local() -> dict[str, str]:
    # Spark's launcher and its workers read these only from the environment.
    os.environ["JAVA_HOME"] = str(spark_java_home())
    # Otherwise workers run the first `python3` on PATH, which may lack all packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Otherwise Spark looks up the host name, which may fail or take seconds, and warns about the result.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return {
        # Do not expose the driver to the network.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Driver and executors share a JVM here, and the default of 1 GB is tight for a large micro-batch.
        "spark.driver.memory": "2g",
        # Skip the web UI: a server, a port, and 0.5 s of startup.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Log only errors from the beginning: `spark.log.level` takes effect too late for the startup.
        # Compile quickly rather than well: Java's second compiler took half of a replay's processor time, and on long logs
        # its code wins back little, because most of the work is in Python.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()} -XX:TieredStopAtLevel=1",
        # Python workers that don't print a traceback when Spark closes the connection.
        "spark.python.daemon.module": "streaming.spark.worker_daemon",
        # Talking to Python workers through a file instead of TCP makes micro-batches shorter.
        "spark.python.unix.domain.socket.enabled": "true",
        # Checkpoints without a checksum file and a forked `chmod` per file:
        # 122 ms per empty micro-batch instead of 172 ms.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        # Otherwise Spark creates a folder for tables, which Magnetar doesn't use, in the working directory.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "magnetar-spark-warehouse"),
    }
