"""A query on a cluster whose processes are killed, and what came of it in comparison with an undisturbed fold."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from pyspark.sql import SparkSession

from streaming.kafka.local import HOST, LocalKafka
from streaming.kafka.produce import produce_log
from streaming.log.partition import partition_log
from tests.chaos.compare import compare
from tests.cluster.s3 import BUCKET, LocalS3
from tests.cluster.standalone import EXECUTOR, Standalone
from tests.e2e.live import LiveQuery
from tests.e2e.outcome import of_log, of_run
from tests.e2e.processes import wait_until
from tests.e2e.traffic import Traffic

PARTITIONS = 4
_START = 1_700_000_000_000

Victim = Literal["worker", "executor", "python", "master", "driver"]
"""kill −9 of a worker with all below it, of an executor, of its Python, of the master, or of the query's own process."""

VICTIMS: tuple[Victim, ...] = get_args(Victim)


class Cluster(NamedTuple):
    s3: LocalS3
    kafka: LocalKafka
    spark: Standalone


class Kill(NamedTuple):
    """A kill after the commit of a micro-batch, and the seconds until the next commit."""

    victim: Victim
    batch: int
    seconds: float


class Report(NamedTuple):
    batches: int
    kills: list[Kill]
    rows: int
    repeated: int
    """Responses that a repeated micro-batch sent again, which readers drop by their identity."""
    differences: list[str]


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """S3, Kafka and Spark, each in processes of its own, with their files in `folder`."""
    with ExitStack() as running:
        s3 = running.enter_context(LocalS3(folder / "s3"))
        kafka = running.enter_context(LocalKafka(folder / "kafka"))
        yield Cluster(s3, kafka, running.enter_context(Standalone(folder / "spark", s3.environment, workers)))


class ClusterQuery(LiveQuery):
    """The query of `name` with checkpoint and store on S3. Its folders are those that the S3 server keeps them in."""

    def __init__(self, cluster: Cluster, folder: Path, name: str, *options: str) -> None:
        ingress = f"kafka://{cluster.kafka.bootstrap}/{name}"
        super().__init__(folder, ingress, f"{ingress}-responses")
        settings = [word for item in EXECUTOR.items() for word in ("--conf", "=".join(item))]
        self._arguments = [
            "--ingress", ingress, "--responses", f"{ingress}-responses",
            "--checkpoint", f"s3a://{BUCKET}/{name}/checkpoint", "--store", f"s3://{BUCKET}/{name}/store",
            "--master", cluster.spark.url, *settings, *options,
        ]  # fmt: skip
        root = cluster.s3.folder / "objects" / BUCKET / name
        self.checkpoint, self.store = root / "checkpoint", root / "store"
        self.environment = cluster.s3.environment | {"SPARK_LOCAL_IP": HOST}


def live(
    cluster: Cluster,
    folder: Path,
    *,
    seed: int,
    records: int,
    victims: Sequence[Victim],
    spark: Callable[[], SparkSession],
    options: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Send traffic, run a query over it and kill the `victims` one after the other, each after some micro-batches.

    `spark`: a session to read the states with. It is made when the query has stopped.
    """
    dice = random.Random(seed)
    log = Traffic(seed, _START).write(records)
    name = f"seed-{seed}"
    query = ClusterQuery(
        cluster, folder, name, "--clock", "log", "--trigger", "0ms", "--max-offsets", str(max(20, records // 15)), *options
    )  # fmt: skip
    produce_log(log, query.ingress, partitions=PARTITIONS)
    kills: list[Kill] = []
    try:
        query.start()
        for victim in victims:
            _reach(query, query.committed() + dice.randint(1, 2))
            time.sleep(dice.random())
            batch, begun = query.committed(), time.monotonic()
            _kill(cluster, query, victim, dice)
            _reach(query, batch + 1)
            kills.append(Kill(victim, batch, time.monotonic() - begun))
            say(
                f"kill -9 of a {victim} after micro-batch {batch}: the next was done {kills[-1].seconds:.0f} s later"
            )
        counts = Counter(partition_log(log, PARTITIONS)["partition"].to_pylist())
        query.wait(lambda: query.consumed() == counts, "all records")
        assert query.process is not None
        query.process.terminate()
        assert query.end() == 0
    finally:
        query.close()
    found = of_run(spark(), query.store, query.checkpoint, cluster.kafka.bootstrap, query.responses)
    expected = of_log(partition_log(log, PARTITIONS), folder / "expected")
    rows, differences = compare(found, expected, query.store)
    return Report(query.committed() + 1, kills, rows, found.repeated, differences)


def _reach(query: ClusterQuery, batch: int) -> None:
    query.wait(lambda: query.committed() >= batch, f"micro-batch {batch}")


def _kill(cluster: Cluster, query: ClusterQuery, victim: Victim, dice: random.Random) -> None:
    number = dice.randrange(len(cluster.spark.workers))
    match victim:
        case "worker":
            cluster.spark.kill_worker(number)
            cluster.spark.start_worker()
        case "executor":
            wait_until(lambda: cluster.spark.kill_executor(number) > 0, "an executor to kill")
        case "python":
            wait_until(lambda: cluster.spark.kill_python(number) > 0, "Python workers to kill")
        case "master":
            cluster.spark.kill_master()
            cluster.spark.start_master()
        case "driver":
            query.kill()
            query.start()
