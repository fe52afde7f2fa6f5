"""A query on S3 that is started again while nothing comes: what is due happens."""

import time
from collections import Counter
from pathlib import Path

import pytest

from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.log.partition import partition_log
from tests.cluster.outage import S3Query
from tests.cluster.s3 import LocalS3
from tests.e2e.processes import wait_until
from tests.e2e.test_crash import stop_between_batches
from tests.e2e.test_time_goes_on import in_tables, messages, written

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1200)]

DUE_MS = 50_000
"""How long after it was sent each message is due. By then, the first query has folded it and is stopped."""


def test_a_query_on_s3_goes_on_without_records(s3_server: LocalS3, kafka: LocalKafka, tmp_path: Path) -> None:
    query = S3Query(s3_server, kafka, tmp_path, "time", "both", "--no-quality", "--trigger", "1s")
    now = int(time.time() * 1000)
    due, log = now + DUE_MS, messages(now, DUE_MS)
    counts = Counter(partition_log(log, 2)["partition"].to_pylist())
    produce_log(log, query.ingress, partitions=2)
    try:
        query.start()
        query.wait(lambda: query.consumed() == counts, "all records")
        stop_between_batches(query)
        assert time.time() * 1000 > due or not any(written(query.store)), "too slow a machine for DUE_MS"
        wait_until(lambda: time.time() * 1000 > due, "what is due")
        before = query.committed()
        query.start()
        query.wait(lambda: query.committed() >= before + 3, "micro-batches without records")
        query.kill()
        assert in_tables(query.store)
    finally:
        query.close()
