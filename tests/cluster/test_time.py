"""A query on S3 that is started again while nothing comes: time goes on."""

from pathlib import Path

import pytest

from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from tests.cluster.outage import S3Query
from tests.cluster.s3 import LocalS3
from tests.e2e.test_crash import stop_between_batches
from tests.e2e.traffic import Traffic

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1200)]


def test_a_query_on_s3_goes_on_without_records(s3_server: LocalS3, kafka: LocalKafka, tmp_path: Path) -> None:
    query = S3Query(s3_server, kafka, tmp_path, "time", "both", "--no-quality")
    produce_log(Traffic(1, 1_700_000_000_000).write(100), query.ingress, partitions=2)
    try:
        query.start()
        query.wait(lambda: sum(query.consumed().values()) >= 100, "all records")
        stop_between_batches(query)
        before = query.committed()
        query.start()
        query.wait(lambda: query.committed() >= before + 3, "micro-batches without records")
        query.kill()
    finally:
        query.close()
