"""What-if of the records in a Kafka topic, such as the ingress of a query."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from streaming.cli.app import app
from streaming.kafka import repartition
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.kafka.url import KafkaUrl
from streaming.log.files import write_log
from streaming.log.partition import ingress_partition, partition_log
from tests.state.test_other_partitions import made_log

pytestmark = pytest.mark.kafka


def test_the_answer_is_that_of_the_log(kafka: LocalKafka, tmp_path: Path) -> None:
    topic, file = f"kafka://{kafka.bootstrap}/asked", tmp_path / "log.parquet"
    policies = tmp_path / "ttl.yaml"
    policies.write_text("broker: {ttlDurationDefaultInSeconds: 1, messageExpiryCheckIntervalInMinutes: 1}")
    log = made_log(400)
    produce_log(log, topic, partitions=2)
    write_log(file, partition_log(log, 2))
    answers = []
    for source in (topic, str(file)):
        result = CliRunner().invoke(app, ["whatif", source, "--policies", str(policies), "--json"])
        assert result.exit_code == 0, result.output
        answers.append(json.loads(result.stdout))
        assert answers[-1].pop("log") == source
    assert answers[0] == answers[1]
    assert any(answers[0]["totals"][-1]["differences"].values())


@pytest.mark.spark
def test_later_records_are_not_part_of_the_answer(
    kafka: LocalKafka, spark: SparkSession, tmp_path: Path
) -> None:
    """Also where they come among earlier ones of another partition, and the answer has other partitions than the topic."""
    topic, policies = f"kafka://{kafka.bootstrap}/grows", tmp_path / "ttl.yaml"
    policies.write_text("broker: {ttlDurationDefaultInSeconds: 1, messageExpiryCheckIntervalInMinutes: 1}")
    log = made_log(400).filter(pc.field("topic").is_valid())
    places = [ingress_partition(each, 2) for each in log["topic"].to_pylist()]
    late = pa.array([place == 1 and row > 200 for row, place in enumerate(places)])
    produce_log(log.filter(pc.invert(late)), topic, partitions=2)
    asked = ["whatif", topic, "--policies", str(policies), "--partitions", "3", "--json", "--spark"]
    asked += ["--checkpoint", str(tmp_path / "kept")]
    before = CliRunner().invoke(app, asked)
    assert before.exit_code == 0, before.output
    produce_log(log.filter(late), topic)
    after = CliRunner().invoke(app, asked)
    assert after.exit_code == 0, after.output
    assert json.loads(after.stdout) == json.loads(before.stdout)


def test_the_order_is_not_that_in_which_kafka_sends(
    kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"kafka://{kafka.bootstrap}/order"
    produce_log(made_log(400), url, partitions=3)
    expected, sent = repartition.read_topic(KafkaUrl.parse(url)).records, repartition.read_records
    monkeypatch.setattr(
        repartition, "read_records", lambda *of: [pa.concat_tables(sent(*of)).sort_by("offset")]
    )
    assert repartition.read_topic(KafkaUrl.parse(url)).records.equals(expected)
