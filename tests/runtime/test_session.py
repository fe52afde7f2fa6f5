from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streaming.kafka.local import LocalKafka

pytestmark = pytest.mark.spark


def test_settings_arrive(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    # as it was made: replays in other tests set their own number in the session
    assert spark.sparkContext.getConf().get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


def test_workers_are_this_python(spark: SparkSession) -> None:
    def which(_: int) -> str:
        return sys.executable

    assert set(spark.sparkContext.parallelize(range(2), 2).map(which).collect()) == {sys.executable}


@pytest.mark.kafka
def test_a_topic_is_read(spark: SparkSession, kafka: LocalKafka) -> None:
    from kafka import KafkaProducer

    kafka.create_topic("session-read", 2)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    for number in range(50):
        producer.send("session-read", key=b"k%d" % (number % 7), value=b"v%d" % number)
    producer.close()
    topic = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("subscribe", "session-read")
        .load()
    )
    values = {row.value for row in topic.selectExpr("CAST(value AS STRING) AS value").collect()}
    assert values == {f"v{number}" for number in range(50)}
