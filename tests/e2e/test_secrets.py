"""A live query on a Kafka with TLS and passwords: it works, and the password is nowhere but in its file.

Everything that could tell is made to tell: Spark's own log at INFO (its Kafka clients print their settings there),
Spark's event log (plans and properties), and all temporary files below the test's folder.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from sinks.kafka import read_responses
from streaming.kafka.config import KafkaConfig
from tests.e2e.live import LiveQuery
from tests.e2e.processes import session
from tests.e2e.test_cli import magnetar
from tests.kafka.secured import PASSWORD, SecuredKafka, secured_kafka

MESSAGES = 20
PRODUCER = (
    '{"timestamp":1700000000000,"topic":"persistent://public/default/t","command":"PRODUCER","connection":"c",'
    '"producer_id":1,"request_id":1,"producer_name":"p"}\n'
)
SEND = (
    '{"timestamp":1700000000000,"topic":"persistent://public/default/t","command":"SEND","connection":"c",'
    '"producer_id":1,"sequence_id":%d,"metadata":{"producer_name":"p","sequence_id":1,"publish_time":1}}\n'
)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[SecuredKafka]:
    folder = tmp_path / "kafka"
    folder.mkdir()
    with secured_kafka(folder) as secured:
        yield secured


@pytest.mark.feature("J5")
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.slow
def test_the_password_is_nowhere_but_in_its_file(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = tmp_path / "watched"
    for folder in ("conf", "events", "tmp"):
        (watched / folder).mkdir(parents=True)
    events = (watched / "events").as_uri()
    (watched / "conf" / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir {events}\nspark.eventLog.compress false\nspark.log.level INFO\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(watched / "conf"))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(watched / "tmp"))
    monkeypatch.setenv("TMPDIR", str(watched / "tmp"))

    file, bootstrap = secured.file("client", {}), secured.kafka.bootstrap
    config, name = KafkaConfig.of(file), uuid4().hex
    ingress, responses = f"kafka://{bootstrap}/in-{name}", f"kafka://{bootstrap}/out-{name}"
    log = watched / "log.jsonl"
    log.write_text(PRODUCER + "".join(SEND % number for number in range(MESSAGES)))
    produced = magnetar("produce", log, "--ingress", ingress, "--kafka-config", file)
    assert produced.code == 0, produced.err

    query = LiveQuery(
        watched, ingress, responses, "--kafka-config", str(file), "--cores", "1", "--partitions", "1",
        "--dead-letters", f"kafka://{bootstrap}/dead-{name}",
    )  # fmt: skip
    try:
        query.start()
        query.wait(lambda: sum(query.consumed().values()) == MESSAGES + 1, "all records are read")
        assert query.process is not None
        found = of_processes(query.process.pid)
        living = files(watched)
        assert query.stop(signal.SIGTERM) == 0
    finally:
        query.close()

    answers = list(read_responses(bootstrap, f"out-{name}", timeout=0.01, config=config))
    assert [answer["kind"] for answer in answers] == ["PRODUCER_SUCCESS", *["SEND_RECEIPT"] * MESSAGES]

    # Check that the search covers the right places.
    told = str(file).encode()
    assert told in found["cmdline"]
    assert b"SparkListenerEnvironmentUpdate" in b"".join(
        content for path, content in living.items() if path.startswith("events/")
    )
    assert "sasl.jaas.config = [hidden]" in query.said()
    assert any(path.startswith("checkpoint/offsets/") for path in living)
    assert any(path.startswith("store/") for path in living)

    for place, content in {**found, **living, **files(watched)}.items():
        assert PASSWORD.encode() not in content, place
    assert PASSWORD not in produced.out + produced.err + query.said()


def of_processes(leader: int) -> dict[str, bytes]:
    """What every user can see of a session's processes."""
    found = {"cmdline": b"", "environ": b""}
    for pid in session(leader):
        for name in found:
            try:
                found[name] += Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue  # it ended
    assert found["cmdline"].count(b"magnetar") > 1
    return found


def files(folder: Path) -> dict[str, bytes]:
    """The contents of every file below a folder, by path."""
    found = {}
    for path in folder.rglob("*"):
        try:
            found[str(path.relative_to(folder))] = path.read_bytes() if path.is_file() else b""
        except OSError:
            continue  # it was temporary
    return found
