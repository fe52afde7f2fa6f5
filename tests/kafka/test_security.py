"""A real Kafka with TLS, clients' certificates and passwords, and what kafka-python does with it."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion
from typer.testing import CliRunner

from schemas.effects import Success
from schemas.records import RECORD
from sinks.kafka import KafkaResponses, ResponsesNotSent, read_records, read_responses
from streaming.cli.app import app
from streaming.kafka import client
from streaming.kafka.client import KafkaUnreachable
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.produce import produce_log
from streaming.kafka.topics import ensure_topic
from streaming.kafka.url import KafkaUrl
from tests.kafka.secured import PASSWORD, USER, WRONG, SecuredKafka, secured_kafka
from tests.sinks.helpers import TOPIC, output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with secured_kafka(tmp_path_factory.mktemp("secured")) as secured:
        yield secured


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE_MS", 1500)


@pytest.mark.sampled(4, seconds=5)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_commands_and_answers_with_a_password(
    secured: SecuredKafka, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config = KafkaConfig.of(secured.file("plain", {}))
    user, password = USER, PASSWORD
    if mechanism != "PLAIN":
        user, password = "sam", 'a"b\\c and a blank'
        admin = KafkaAdminClient(bootstrap_servers=secured.kafka.bootstrap, **config.client())
        made = UserScramCredentialUpsertion(user, ScramMechanism.SCRAM_SHA_512, password)
        assert admin.alter_user_scram_credentials([made]) == {user: None}
        admin.close()
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        # First for JAAS, then for the file of properties.
        quoted = password.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
        jaas = f'{module} required username="{user}" password="{quoted}";'
        changed = {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": jaas,
            "sasl.username": None,
            "sasl.password": None,
        }
        config = KafkaConfig.of(secured.file("scram", changed))
    bootstrap, topic = secured.kafka.bootstrap, f"secured-{uuid4().hex}"
    rows = [
        {"partition": 0, "offset": n, "timestamp": 1_700_000_000_000, "topic": "t", "value": b"%d" % n}
        for n in range(9)
    ]
    assert produce_log(pa.Table.from_pylist(rows, RECORD), f"kafka://{bootstrap}/{topic}", config=config) == 9

    ensure_topic(KafkaUrl(bootstrap, f"{topic}-answers"), 2, config)
    sink = KafkaResponses(bootstrap, f"{topic}-answers", config)
    sink.begin(0)
    sink.write(0, 0, output([Success(TOPIC, "c", n) for n in range(5)]))
    answers = read_responses(bootstrap, f"{topic}-answers", timeout=0.01, config=config)
    assert [answer["request_id"] for answer in answers] == list(range(5))
    assert password not in caplog.text
    assert repr(password)[1:-1] not in caplog.text


@pytest.mark.sampled(4, seconds=4)
@pytest.mark.spark
def test_spark_resolves_the_secrets_by_itself(secured: SecuredKafka, spark: "SparkSession") -> None:
    bootstrap, topic = secured.kafka.bootstrap, f"secured-{uuid4().hex}"
    right, wrong = (
        KafkaConfig.of(secured.file(f"spark-{name}", changed))
        for name, changed in (("right", {}), ("wrong", {"sasl.password": WRONG}))
    )
    row = {"partition": 0, "offset": 0, "timestamp": 1, "topic": "t", "value": b"a command"}
    produce_log(pa.Table.from_pylist([row], RECORD), f"kafka://{bootstrap}/{topic}", config=right)

    def read(config: KafkaConfig) -> list[bytes]:
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "fetchOffset.numRetries": "1"}
        options |= config.spark()
        found = spark.read.format("kafka").options(**options).load()
        shown = found._jdf.queryExecution().toString()
        assert PASSWORD not in shown
        assert WRONG not in shown
        return [bytes(row.value) for row in found.collect()]

    assert read(right) == [b"a command"]
    with pytest.raises(Exception, match="Authentication failed") as raised:
        read(wrong)
    assert WRONG not in str(raised.value)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"sasl.password": WRONG}, "did not let user 'magnetar' in: check sasl.username, sasl.password"),
        ({"sasl.mechanism": "SCRAM-SHA-256"}, "did not let user 'magnetar' in.*sasl.mechanism"),
        ({"ssl.keystore.location": None}, "TLS with Kafka at .* failed: .*ssl.keystore.location"),
        ({"ssl.ca.location": "foreign.pem"}, "cannot be trusted: .*ssl.truststore.location"),
        ({"security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": None, "ssl.keystore.location": None},
         "did not let user 'magnetar' in.*security.protocol"),
    ],
)  # fmt: skip
def test_why_there_is_no_way_in(secured: SecuredKafka, changed: dict[str, str], sentence: str) -> None:
    if changed.get("ssl.ca.location"):
        changed = {"ssl.ca.location": str(secured.foreign)}
    file = secured.file("other", changed)
    with pytest.raises(KafkaUnreachable, match=sentence) as raised:
        ensure_topic(KafkaUrl(secured.kafka.bootstrap, "t"), 1, KafkaConfig.of(file))
    assert str(file) in str(raised.value)
    for secret in (WRONG, PASSWORD):
        assert secret not in str(raised.value)


@pytest.mark.usefixtures("impatient")
def test_a_broker_that_asks_for_more_than_was_given(secured: SecuredKafka) -> None:
    with pytest.raises(KafkaUnreachable, match="hung up: it may require TLS or a password.*--kafka-config"):
        ensure_topic(KafkaUrl(secured.kafka.bootstrap, "t"), 1, PLAIN)


@pytest.mark.usefixtures("impatient")
def test_a_wrong_password_is_one_sentence_on_the_terminal(secured: SecuredKafka, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"topic":"persistent://a/b/c","producer":"p","sequence_id":1}\n')
    arguments = ["--ingress", f"kafka://{secured.kafka.bootstrap}/t", "--kafka-config"]
    file = secured.file("wrong", {"sasl.password": WRONG})
    done = CliRunner().invoke(app, ["produce", str(log), *arguments, str(file)])
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    assert line.startswith(
        f"magnetar: Kafka at {secured.kafka.bootstrap} did not let user 'magnetar' in: check "
    )
    assert WRONG not in line


@pytest.mark.sampled(2)
def test_a_changed_password_stops_a_sink_with_a_sentence_and_a_repaired_file_lets_it_continue(
    secured: SecuredKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is read again for each new connection: no restart."""
    bootstrap, topic = secured.kafka.bootstrap, f"secured-{uuid4().hex}"
    config = KafkaConfig.of(secured.file("rotated", {}))
    ensure_topic(KafkaUrl(bootstrap, topic), 1, config)
    sink, rows = KafkaResponses(bootstrap, topic, config), output([Success(TOPIC, "c", 1)])
    monkeypatch.setattr("sinks.kafka._PATIENCE_MS", 1500)
    secured.file("rotated", {"sasl.password": WRONG})
    with pytest.raises(ResponsesNotSent) as raised:
        sink.write(0, 0, rows)
    assert WRONG not in str(raised.value)
    secured.file("rotated", {})
    sink.write(0, 0, rows)
    assert len(list(read_records(bootstrap, topic, timeout=0.01, config=config))) == 1
