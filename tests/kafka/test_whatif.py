"""What-if of the records in a Kafka topic, such as the ingress of a query."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.cli.app import app
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.log.files import write_log
from streaming.log.partition import partition_log
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
