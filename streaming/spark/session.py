"""A Spark session with the settings that Magnetar needs. They also make it fast enough on a laptop."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.arguments import checked
from schemas.printable import printable
from sinks.s3 import environment
from streaming.runtime.jars import s3a_jars, spark_kafka_jars
from streaming.runtime.java import spark_java_home
from streaming.runtime.signals import before_end, ended_by, in_thread

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession as SparkSession

ATTEMPTS = 3
"""Of a task, before the query fails. Each leaves the same, so a worker that was killed is no reason to stop."""

_PACKAGES = ("magnetar", "schemas", "sinks", "streaming")
_SHIPPED = "magnetar"
_WITHOUT_RENAME = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
_SQL = {
    # So that timestamps mean the same on every machine.
    "spark.sql.session.timeZone": "UTC",
    # Convert frames between Spark and pandas by column, as Arrow, instead of pickling rows.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")
_END_SECONDS = 2.0


@checked
def spark_session(
    app_name: str = "magnetar",
    *,
    shuffle_partitions: int = 2,
    master: str = "local[*]",
    with_kafka: bool = False,
    with_s3: bool = False,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The Spark session of this process: a new one, in 5 s, or the existing one with the SQL settings of `conf`.

    Args:
        app_name: shown in Spark's UI and logs.
        shuffle_partitions: tasks of the stateful operator. 1 gives the shortest micro-batches, one per core the
            highest throughput. A streaming query keeps the number of its first batch.
        master: where to run. `local[n]` means n threads in this process. A cluster's nodes get this package from here; what it
            depends on is installed there, for the Python at ``PYSPARK_PYTHON`` (by default, the path of this one).
        with_kafka: load Spark's Kafka source, downloading it if needed. Leave it off if `--packages` loads it.
        with_s3: the same of Hadoop's S3 client, with settings from the environment (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID`` and others). Checkpoints on S3 are
            then written without renaming.
        conf: more settings, or other values for those below.

    Raises:
        MagnetarError: Java or the jars are missing.
    """
    # Imported late, because it takes half a second, too long for `magnetar --help`.
    from pyspark.sql import SparkSession

    settings = _common(shuffle_partitions) | (_local() if master.startswith("local") else _cluster())
    jars = [*(spark_kafka_jars() if with_kafka else ()), *(s3a_jars() if with_s3 else ())]
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
    if with_s3:
        settings |= _s3()
    settings |= conf or {}

    def session() -> SparkSession:
        _start_java(settings | {"spark.app.name": app_name, "spark.master": master})
        builder = SparkSession.builder.appName(app_name).master(master)
        for key, value in settings.items():
            builder = builder.config(key, value)
        found = builder.getOrCreate()
        # Else it prints a traceback when Java is gone, perhaps after the line that says so.
        found.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
        return found

    # In the main thread, pyspark would replace the handler of Ctrl-C.
    return in_thread(session)


def current_session() -> SparkSession | None:
    """The Spark session of this process with the settings that it has, or None."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def submitted() -> bool:
    """Whether spark-submit started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def submitted_session(app_name: str) -> SparkSession:
    """The Spark session of spark-submit, whose options say what runs where."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    for key, value in _SQL.items():
        builder = builder.config(key, value)
    return in_thread(builder.getOrCreate)


def _start_java(settings: Mapping[str, str]) -> None:
    """Start Spark's Java, unless it runs or spark-submit started it, out of reach of the terminal's signals.

    What Java and its Python workers write to the standard error passes through this process, so nothing of it appears after
    the end.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or submitted():
        return
    conf = SparkConf()
    for key, value in settings.items():
        conf.set(key, value)
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), daemon=True).start()
    try:
        gateway = launch_gateway(conf, {"process_group": 0, "stderr": writing})  # type: ignore[no-untyped-call]
    finally:
        os.close(writing)

    def end() -> None:
        # Without its standard input, Java deletes its temporary files and ends. It is killed if that takes long.
        with suppress(OSError, subprocess.TimeoutExpired):
            gateway.proc.stdin.close()
            gateway.proc.wait(_END_SECONDS)

    before_end(end)
    SparkContext._ensure_initialized(gateway=gateway)


def _pass_on(reading: int) -> None:
    """Copy what a terminal does not obey to the standard error, until a signal ends the command."""
    decoder = getincrementaldecoder("utf-8")("backslashreplace")
    while data := os.read(reading, 1 << 16):
        if ended_by() is None:
            with suppress(OSError):
                os.write(2, printable(decoder.decode(data), keep="\n\t").encode())
    os.close(reading)


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
    # Spark's launcher reads it only from the environment.
    os.environ["JAVA_HOME"] = str(spark_java_home())
    return _SQL | {
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        # The driver's default of 1 GB is tight for a large micro-batch, which a local session's tasks share with it.
        "spark.driver.memory": "2g",
        # Skip the web UI: a server, a port, and 0.5 s of startup.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Log only errors from the beginning: `spark.log.level` takes effect too late for the startup.
        # Compile quickly rather than well: Java's second compiler took half of a replay's processor time, and on long logs
        # its code wins back little, because most of the work is in Python.
        # A query that is stopped within a micro-batch compares the error, some thousand characters, with a regular expression
        # (StreamExecution.PROXY_ERROR) for which Java's default stack of 1 MB is too small: it printed 1,000 lines of a StackOverflowError.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()} -XX:TieredStopAtLevel=1 -Xss16m",
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


def _local() -> dict[str, str]:
    # Otherwise workers run the first `python3` on PATH, which may lack all packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Otherwise Spark looks up the host name, which may fail or take seconds, and warns about the result.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return {
        # Do not expose the driver to the network.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }


def _cluster() -> dict[str, str]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # An archive is unpacked in the working directory of each executor. Packages in a zip file would do for Python, but not for
    # the data files beside them.
    return {
        "spark.archives": f"{_packed()}#{_SHIPPED}",
        "spark.executorEnv.PYTHONPATH": _SHIPPED,
        "spark.task.maxFailures": str(ATTEMPTS),
    }


def _packed() -> Path:
    """A zip file with this package as it is here. It goes when this process ends."""
    root = Path(__file__).parents[2]
    folder = Path(tempfile.mkdtemp(prefix="magnetar-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = folder / "magnetar.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(file for name in _PACKAGES for file in (root / name).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, file.relative_to(root))
    return target


def _s3() -> dict[str, str]:
    settings = {"spark.sql.streaming.checkpointFileManagerClass": _WITHOUT_RENAME}
    endpoint = environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    if endpoint is not None:
        settings |= {
            "spark.hadoop.fs.s3a.endpoint": endpoint,
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }
    if (region := environment("AWS_REGION", "AWS_DEFAULT_REGION")) is not None:
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    return settings
