"""End to end: S3 goes away in the middle of a query and comes back, and the query's rows and states are those of an undisturbed fold."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streaming.kafka.local import LocalKafka
from tests.cluster.outage import Outage, Where, live
from tests.cluster.s3 import LocalS3

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1200)]


OURS = (
    r"S3 did not answer \(.+\)\. Nothing is lost: .+",
    r"S3 failed for so long that the query gave up \(\w+ on s3a://.+\)\. Nothing is lost: .+",
    r"s3://\S+ could not be (written|changed): .+\. Nothing is lost: .+",
    r"the lease of s3://\S+ could not be renewed: S3 did not answer \(.+\)\. Nothing is lost: .+",
)
"""What the last line on the terminal is, whichever request it was."""


@pytest.mark.parametrize(
    ("where", "outages"),
    [
        ("both", ["short", "busy", "long"]),
        ("store", ["long", "busy"]),
        ("checkpoint", ["busy", "long"]),
    ],
)
def test_whatever_goes_away(
    where: Where,
    outages: list[Outage],
    s3_server: LocalS3,
    kafka: LocalKafka,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    report = live(s3_server, kafka, tmp_path, where, outages, seed=1, records=300, spark=spark)
    assert report.differences == []
    assert report.rows > 500
    assert outages.index("long") in report.said
    for said in report.said.values():
        assert re.fullmatch(f"magnetar: ({'|'.join(OURS)})", said), said
