"""A real Kafka with TLS, clients' certificates and passwords, and what kafka-python does with it."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from typer.testing import CliRunner

from schemas.commands import BrokerConfig
from schemas.effects import Success
from schemas.records import RECORD
from sinks.kafka import KafkaResponses, ResponsesNotSent, read_records, read_responses
from streaming.cli.app import app
from streaming.kafka import client, ingress
from streaming.kafka.client import KafkaUnreachable, administration
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.ingress import TopicWatch, claim, ensure_ingress
from streaming.kafka.produce import produce_log
from streaming.kafka.retention import check_retention
from streaming.kafka.topics import ensure_topic, records_within
from streaming.kafka.url import KafkaUrl
from streaming.server.query_engine import QueryEngine
from tests.kafka.secured import GUEST, PASSWORD, SCRAM_USER, USER, WRONG, SecuredKafka, secured_kafka
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


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_commands_and_answers_with_a_password(
    secured: SecuredKafka, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config = KafkaConfig.of(secured.file("plain", {}))
    user, password = USER, PASSWORD
    if mechanism != "PLAIN":
        user, password = SCRAM_USER, 'a"b\\c and a blank'
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


LOG = '{"topic":"persistent://public/default/t","producer":"p","sequence_id":1}\n'
POLICIES = "namespaces: {public/default: {messageTTL: 60}}"
SEEN = (ACLOperation.READ, ACLOperation.DESCRIBE_CONFIGS)


def grant(
    secured: SecuredKafka, name: str, *operations: ACLOperation, kind: ResourceType = ResourceType.TOPIC
) -> None:
    """Gives the guest rights."""
    config = KafkaConfig.of(secured.file("admin", {}))
    with administration(KafkaUrl(secured.kafka.bootstrap, name), config) as admin:
        pattern = ResourcePattern(kind, name)
        made = [ACL(f"User:{GUEST}", "*", each, ACLPermissionType.ALLOW, pattern) for each in operations]
        admin.create_acls(made)


def topic_of_a_log(secured: SecuredKafka, tmp_path: Path) -> tuple[KafkaUrl, Path]:
    """A topic with a log, which the guest may not use, and the file of the guest."""
    url = KafkaUrl(secured.kafka.bootstrap, f"rights-{uuid4().hex}")
    (tmp_path / "log.jsonl").write_text(LOG)
    (tmp_path / "p.yaml").write_text(POLICIES)
    address = f"kafka://{url.bootstrap}/{url.topic}"
    produce_log(
        tmp_path / "log.jsonl", address, partitions=1, config=KafkaConfig.of(secured.file("right", {}))
    )
    return url, secured.file("guest", {"sasl.username": GUEST})


@pytest.mark.parametrize("command", ["run", "produce", "whatif"])
def test_the_right_to_see_a_topics_settings_is_named(
    command: str, secured: SecuredKafka, tmp_path: Path
) -> None:
    url, file = topic_of_a_log(secured, tmp_path)
    new = url._replace(topic=f"{url.topic}-new")
    grant(secured, url.topic, ACLOperation.READ)
    grant(secured, new.topic, ACLOperation.CREATE, ACLOperation.WRITE)
    address, to = (f"kafka://{each.bootstrap}/{each.topic}" for each in (url, new))
    arguments = {
        "run": ["--ingress", address, "--checkpoint", str(tmp_path / "c"), "--store", str(tmp_path / "s")],
        "produce": [address, "--ingress", to],
        "whatif": [address, "--policies", str(tmp_path / "p.yaml")],
    }
    done = CliRunner().invoke(app, [command, *arguments[command], "--kafka-config", str(file)])
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"magnetar: Kafka at {url.bootstrap} does not show cleanup.policy of topic {url.topic!r} to this user: grant it the right "
        "DescribeConfigs on the topic"
    )


def test_a_query_goes_on_when_it_may_not_see_that_any_more(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingress, "_POLICY_SECONDS", -1.0)
    url, file = topic_of_a_log(secured, tmp_path)
    grant(secured, url.topic, ACLOperation.READ)
    config, said = KafkaConfig.of(file), list[str]()
    ensure_ingress(url, str(tmp_path / "store"), 1, config)
    watch = TopicWatch(url, [], str(tmp_path / "store"), config, said.append)
    for _ in range(3):
        watch.check()
    (note,) = said
    assert "the right DescribeConfigs on the topic" in note
    assert note.endswith("the query goes on and does not notice if the topic is compacted")
    grant(secured, url.topic, ACLOperation.DESCRIBE_CONFIGS)
    watch.check()
    watch.close()
    assert said == [note]


def test_the_rights_that_each_command_needs(secured: SecuredKafka, tmp_path: Path) -> None:
    """Those in docs/operate/security.md#rights-in-kafka are enough."""
    url, file = topic_of_a_log(secured, tmp_path)
    new, answers = (url._replace(topic=f"{url.topic}-{name}") for name in ("new", "answers"))
    address, to = (f"kafka://{each.bootstrap}/{each.topic}" for each in (url, new))
    config, store = KafkaConfig.of(file), str(tmp_path / "store")

    def magnetar(*arguments: object) -> None:
        done = CliRunner().invoke(app, [*map(str, arguments), "--kafka-config", str(file)])
        assert done.exit_code == 0, done.output

    grant(secured, url.topic, *SEEN)
    magnetar("whatif", address, "--policies", tmp_path / "p.yaml")
    grant(secured, new.topic, ACLOperation.CREATE, ACLOperation.WRITE)
    magnetar("produce", address, "--ingress", to)
    magnetar("produce", tmp_path / "log.jsonl", "--ingress", to)
    # What a query asks for itself. Spark reads the topic with the same right.
    grant(secured, answers.topic, ACLOperation.CREATE, ACLOperation.READ, ACLOperation.WRITE)
    ensure_ingress(url, store, 1, config)
    claim([answers], store, 1, config)
    assert check_retention(url, None, config) == []
    assert records_within(url, 1 << 20, config) is None  # sizes are another right
    KafkaResponses(answers.bootstrap, answers.topic, config).begin(0)
    grant(secured, url.topic, ACLOperation.WRITE)
    grant(secured, f"magnetar-{url.topic}", ACLOperation.WRITE, kind=ResourceType.TRANSACTIONAL_ID)

    async def serve() -> None:
        async with QueryEngine(url, answers, "a", config=config, begins_with=[BrokerConfig()]):
            pass

    asyncio.run(serve())
