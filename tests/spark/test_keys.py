"""The spread of ingress partitions over tasks."""

import zlib

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streaming.spark.keys import BALANCED, slot, spark_hash


@pytest.mark.spark
def test_spark_sends_each_partition_where_we_say(spark: SparkSession) -> None:
    keys = [(partition, slot(partition)) for partition in range(BALANCED + 5)]
    keyed = spark.createDataFrame(keys, "partition int, slot int")
    for partition, slot_, hash_ in keyed.select("*", F.hash("partition", "slot")).collect():
        assert hash_ == spark_hash(partition, np.array([slot_]))[0]
        if partition >= BALANCED:
            assert slot_ == 0
        else:
            assert all(hash_ % n == partition % n for n in (1, 2, 3, 4, 6, 8, 16))


def test_slots_never_change() -> None:
    # They are in the keys of every checkpoint.
    slots = tuple(map(slot, range(BALANCED)))
    assert slots[:10] == (429, 573, 284, 293, 54, 204, 87, 1067, 64, 38)
    assert zlib.crc32(repr(slots).encode()) == 970096233
