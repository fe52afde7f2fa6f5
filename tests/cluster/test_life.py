"""End to end on a cluster: what a query leaves on S3, whatever is killed, is what a fold of the log in one process leaves."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cluster.life import VICTIMS, Cluster, cluster, live
from tests.cluster.s3 import gateway

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.timeout(1800),  # two minutes on a quiet machine
    pytest.mark.skipif(gateway() is None, reason="versitygw is missing: make check-cluster builds it"),
]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_killed(seed: int, machines: Cluster, spark: SparkSession, tmp_path: Path) -> None:
    victims = random.Random(seed).sample(VICTIMS, len(VICTIMS))
    report = live(machines, tmp_path, seed=seed, records=700, victims=victims, spark=lambda: spark)
    assert report.differences == []
    assert report.rows > 1000
    assert [kill.victim for kill in report.kills] == victims


def test_the_executors_have_the_package_from_the_query(
    machines: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    """The workers have no PYTHONPATH, and what the executors imported is what the query sent them."""
    report = live(
        machines,
        tmp_path,
        seed=7,
        records=100,
        victims=[],
        spark=lambda: spark,
        options=["--state-store", "rocksdb"],
    )
    assert report.differences == []
    shipped = list(machines.spark.folder.glob("worker-*/app-*/*/magnetar/streaming/spark"))
    assert any((folder / "__pycache__").is_dir() for folder in shipped)
    assert list((machines.s3.folder / "objects").rglob("*.changelog"))
