"""``python -m tools.spark_classes FILE``: writes the classes that Spark loads for a query into an archive, which Java maps into memory.

The tests start about a hundred Sparks. With the archive (``-XX:SharedArchiveFile``), each takes a third less processor time.
"""

import os
import sys
import tempfile
from pathlib import Path


def main(file: Path) -> None:
    """Run a replay and a query, and have Java write what it loaded when it ends."""
    part = file.with_suffix(".part")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={part} -Xlog:cds=off -Xlog:cds+dynamic=off"
    from pyspark import SparkContext

    import magnetar
    from streaming.jobs.demo import make_log

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        make_log(log)
        spark = magnetar.spark_session()
        magnetar.replay(log, Path(folder) / "out", spark=spark)
        commands = spark.createDataFrame(
            [(0, 0, "persistent://public/default/t", '{"producer": "p", "sequence_id": 1}')],
            "offset bigint, timestamp bigint, topic string, value string",
        )
        commands.write.json(f"{folder}/in")
        query = magnetar.start(
            spark.readStream.schema(commands.schema).json(f"{folder}/in"),
            checkpoint=f"{folder}/checkpoint", store=f"{folder}/store", clock="log", trigger="availableNow",
        )  # fmt: skip
        query.awaitTermination()
        spark.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(120)
    part.rename(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
