"""The least that a stateful Python query from Kafka to Kafka can do: it gives each value back.

``python -m bench.echo HOST:PORT COMMANDS ANSWERS FOLDER CORES`` runs until standard input ends.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming.state import GroupStateTimeout

from streaming.spark.session import spark_session


def main(bootstrap: str, commands: str, answers: str, folder: str, cores: int) -> None:
    """Run the query, and say `running` once it is started."""

    def give_back(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        seen = state.get[0] if state.exists else 0
        for frame in frames:
            seen += len(frame)
            yield frame[["key", "value"]]
        state.update((seen,))

    spark = spark_session("echo", shuffle_partitions=cores, master=f"local[{cores}]", with_kafka=True)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": commands, "startingOffsets": "earliest"}
    stream = spark.readStream.format("kafka").options(**options).load()
    out = stream.groupBy("partition").applyInPandasWithState(
        give_back, "key binary, value binary", "seen bigint", "append", GroupStateTimeout.NoTimeout
    )
    query = (
        out.writeStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": answers, "checkpointLocation": folder})
        .start()
    )
    print("running", flush=True)
    sys.stdin.read()
    query.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
