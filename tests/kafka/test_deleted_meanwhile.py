"""Kafka deletes records of a topic while they are read: every reader says so, and skips none."""

from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from typer.testing import CliRunner

from schemas.records import RECORD
from sinks.dead_letters import read_dead_letters
from sinks.kafka import RecordsGone
from streaming.cli.app import app
from streaming.kafka.client import KafkaUnreachable, administration
from streaming.kafka.config import PLAIN
from streaming.kafka.copies import send_rest
from streaming.kafka.local import LocalKafka
from streaming.kafka.repartition import read_records, read_topic
from streaming.kafka.topics import ensure_topic, holds_records, topic_offsets
from streaming.kafka.url import KafkaUrl
from streaming.mirror.journal import KafkaLog
from streaming.server.responses import Response, ResponseReader
from tests.e2e.processes import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.feature("J1")]

COUNT = 60
SIZE = 100_000
"""Bytes of a record. The first chunk that Kafka sends of a partition, and the next one, have but some of the records."""
GONE = r"topic '{}' no longer has the records to be read next \(partition 0, from offset \d+ on\): Kafka deleted them meanwhile"


def filled(kafka: LocalKafka, name: str) -> KafkaUrl:
    """A topic of one partition. Its records are commands, as a sink sends its rows."""
    url = KafkaUrl(kafka.bootstrap, name)
    ensure_topic(url, 1)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    for number in range(COUNT):
        value = b'{"producer":"p","sequence_id":%d,"payload":"%s"}' % (number, b"x" * SIZE)
        places = {"batch": 0, "partition": 0, "offset": number, "ordinal": 0}
        headers = [(f"magnetar.{place}", b"%d" % at) for place, at in places.items()]
        producer.send(name, value, key=b"persistent://public/default/t", headers=headers)
    producer.close()
    return url


def delete(url: KafkaUrl, before: int = COUNT - 1) -> None:
    with administration(url) as admin:
        admin.delete_records({TopicPartition(url.topic, 0): before})


def delete_after_the_first_chunk(url: KafkaUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    real = KafkaConsumer.poll
    deleted = Event()

    def poll(self: KafkaConsumer, *given: Any, **named: Any) -> Any:
        found = real(self, *given, **named)
        if found and not deleted.is_set():
            deleted.set()
            delete(url)
        return found

    monkeypatch.setattr(KafkaConsumer, "poll", poll)


def of_mirror(url: KafkaUrl) -> Iterable[object]:
    with KafkaLog(url) as log:
        return list(log.read())


def of_copy(url: KafkaUrl) -> Iterable[object]:
    return [send_rest(RECORD.empty_table(), url)]


READERS: dict[str, Callable[[KafkaUrl], Iterable[object]]] = {
    "a topic": lambda url: [read_topic(url)],
    "records": lambda url: list(read_records(url, {0: (0, COUNT)})),
    "a copy": of_copy,
    "a mirror": of_mirror,
    "a sink": lambda url: list(read_dead_letters(url.bootstrap, url.topic, timeout=0.01)),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_skips_nothing(reader: str, kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    url = filled(kafka, f"gone-under-{reader.replace(' ', '-')}")
    delete_after_the_first_chunk(url, monkeypatch)
    with pytest.raises((KafkaUnreachable, RecordsGone), match=GONE.format(url.topic)):
        READERS[reader](url)


@pytest.mark.parametrize("command", ["produce", "whatif"])
def test_a_command_ends_with_a_sentence(
    command: str, kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = filled(kafka, f"gone-under-{command}")
    new = url._replace(topic=f"{url.topic}-new")
    (tmp_path / "p.yaml").write_text("namespaces: {public/default: {messageTTL: 60}}")
    options = {
        "produce": ["--ingress", f"kafka://{new.bootstrap}/{new.topic}"],
        "whatif": ["--policies", str(tmp_path / "p.yaml")],
    }
    delete_after_the_first_chunk(url, monkeypatch)
    done = CliRunner().invoke(app, [command, f"kafka://{url.bootstrap}/{url.topic}", *options[command]])
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"magnetar: Kafka at {url.bootstrap}, topic '{url.topic}' no longer has the records"
    )
    with administration(url) as admin:
        assert topic_offsets(admin, new.topic) == {}


def test_a_topic_whose_records_are_deleted_is_not_taken_for_empty(
    kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = filled(kafka, "gone-before-a-look")
    real = KafkaConsumer.seek

    def seek(self: KafkaConsumer, *given: Any) -> None:
        delete(url, COUNT)
        real(self, *given)

    monkeypatch.setattr(KafkaConsumer, "seek", seek)
    with pytest.raises(KafkaUnreachable, match=GONE.format(url.topic)):
        holds_records(url)
    assert holds_records(url)


def test_a_mirror_goes_on_with_what_its_topic_keeps(kafka: LocalKafka) -> None:
    url = filled(kafka, "kept-of-a-mirror")
    delete(url, COUNT - 3)
    assert len(list(of_mirror(url))) == 3


def test_a_server_that_lost_answers_says_so(kafka: LocalKafka) -> None:
    """Its clients would wait for them. The topic is made anew, as nobody can delay a server's reader."""
    url = filled(kafka, "gone-under-a-server")
    errors: list[Exception] = []
    failed = Event()

    def note(error: Exception) -> None:
        errors.append(error)
        failed.set()

    def deliver(response: Response) -> None:
        pytest.fail(str(response))

    reader = ResponseReader(url, PLAIN, lambda _: False, deliver, note)
    try:
        with administration(url) as admin:
            admin.delete_topics([url.topic])
            wait_until(lambda: url.topic not in admin.list_topics(), "the end of the topic")
        kafka.create_topic(url.topic, 1)
        assert failed.wait(60)
    finally:
        reader.close()
    (error,) = errors
    assert isinstance(error, RecordsGone)
    assert (
        f"topic {url.topic!r} no longer has the records to be read next (partition 0, from offset {COUNT} on)"
        in str(error)
    )
