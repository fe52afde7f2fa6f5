"""A mirror whose log is an ingress topic of Kafka."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaTimeoutError

from streaming.kafka import writer
from streaming.kafka.client import KafkaUnreachable
from streaming.kafka.config import PLAIN
from streaming.kafka.local import LocalKafka
from streaming.kafka.topics import ensure_topic
from streaming.kafka.url import KafkaUrl
from streaming.kafka.writer import KafkaFailed, NotWritten, SoleWriter, ToSend
from streaming.mirror import going_on
from streaming.mirror import journal as journaling
from streaming.mirror import mirror as mirroring
from streaming.mirror.journal import BadLog, KafkaLog, MirrorRecord
from streaming.mirror.mirror import ClusterMirror
from streaming.record.rest import Rest
from tests.broker.kit import QUIET
from tests.mirror.kit import Rounds, Twin, differences, topic_records
from tests.server.conftest import Running, running

pytestmark = [pytest.mark.kafka, pytest.mark.feature("K4")]

NAMESPACE = "public/default"
TOPIC = f"persistent://{NAMESPACE}/t"


@pytest.fixture
def url(kafka: LocalKafka) -> KafkaUrl:
    return KafkaUrl(kafka.bootstrap, f"mirrored-{uuid4().hex[:8]}")


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with running(**QUIET, managedLedgerMaxEntriesPerLedger=7) as found:
        yield found


def mirror(broker: Running, url: KafkaUrl, rounds: int = 1, before: Any = None) -> list[str]:
    said: list[str] = []
    with KafkaLog(url, partitions=3) as journal:
        rest = Rest(str(broker.server.admin_url))
        made = ClusterMirror(broker.service_url, rest, [NAMESPACE], journal, every=0.01, say=said.append)
        made.find()
        made.run(Rounds(rounds, before))
    return said


def logged(url: KafkaUrl, folder: Path) -> list[dict[str, Any]]:
    """The records of all partitions, those of each topic in their order, also as a log folder."""
    found = []
    for record in topic_records(url):
        if record.key is not None or record.partition == 0:
            topic = {} if record.key is None else {"topic": record.key.decode()}
            found.append({"timestamp": record.timestamp, **topic, **json.loads(record.value)})
    folder.mkdir(exist_ok=True)
    (folder / "1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in found))
    return found


def test_it_goes_on_after_any_end(
    broker: Running, url: KafkaUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirroring, "_CONFIGURED_SECONDS", 0.0)
    rest = Rest(str(broker.server.admin_url))
    assert rest.call("PUT", f"/persistent/{NAMESPACE}/parts/partitions", 2).status == 204
    with broker.client() as client:
        topics = [
            f"persistent://{NAMESPACE}/{name}"
            for name in ("a", "b", "parts-partition-0", "parts-partition-1")
        ]
        producers = [client.create_producer(topic) for topic in topics]
        for topic in topics:
            client.subscribe(topic, "s")

        def publish() -> None:
            for producer in producers:
                for number in range(5):
                    producer.send(b"%d" % number)

        publish()
        assert mirror(broker, url, 3, publish) == []
        write = KafkaLog.write

        def dying(self: KafkaLog, record: MirrorRecord) -> None:
            dying.left -= 1  # type: ignore[attr-defined]
            if not dying.left:  # type: ignore[attr-defined]
                raise KeyboardInterrupt
            write(self, record)

        for steps in (1, 3, 8, 15):
            publish()
            dying.left = steps  # type: ignore[attr-defined]
            with monkeypatch.context() as patched:
                patched.setattr(KafkaLog, "write", dying)
                with pytest.raises(KeyboardInterrupt):
                    mirror(broker, url, 5, publish)
        mirror(broker, url)
        found = logged(url, tmp_path / "log")
        twin = Twin(tmp_path / "log")
        assert twin.refused == []
        for topic in topics:
            assert differences(rest, topic, twin.broker) == {}
            ids = [
                each["message_id"] for each in found if each["command"] == "SEND" and each["topic"] == topic
            ]
            positions = [(each["ledgerId"], each["entryId"]) for each in ids]
            assert positions == sorted(set(positions))


def test_it_does_not_go_on_with_other_partitions(broker: Running, url: KafkaUrl) -> None:
    """A topic would become two."""
    with broker.client() as client:
        for number in range(6):
            client.create_producer(f"persistent://{NAMESPACE}/more-{number}").send(b"x")
    mirror(broker, url)
    admin = KafkaAdminClient(bootstrap_servers=url.bootstrap)
    admin.create_partitions({url.topic: 8})
    admin.close()
    before = [*topic_records(url)]
    with pytest.raises(BadLog, match="has 8 partitions, and had another number when the mirror wrote of"):
        mirror(broker, url)
    assert len([*topic_records(url)]) == len(before)


def test_a_start_reads_from_the_last_restatement(
    broker: Running, url: KafkaUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirroring, "RESTATED_SECONDS", 0.0)
    with broker.client() as client:
        client.subscribe(f"persistent://{NAMESPACE}/restated", "s").close()
    mirror(broker, url, 4)
    with KafkaLog(url) as journal:
        records = [*journal.read()]
        assert records[0].command["command"] != "BROKER_CONFIG"
        ends = journal.mark()
        journal.keep(ends, {})
        assert [*journal.read()] == []


@pytest.mark.parametrize("error", [KafkaFailed("it stumbles"), KafkaTimeoutError("it is slow")])
def test_it_begins_again_when_kafka_fails(
    broker: Running, url: KafkaUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Nothing is lost or repeated, wherever that is: in a transaction, at its end, or where the log is read or marked."""
    monkeypatch.setattr(going_on, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(mirroring, "RESTATED_SECONDS", 0.0)
    dice = random.Random(3)
    for of, name, often in (
        (SoleWriter, "transact", 0.2), (KafkaLog, "mark", 0.2), (KafkaLog, "keep", 0.2), (KafkaLog, "write", 0.01),
    ):  # fmt: skip

        def stumbling(*given: Any, work: Any = getattr(of, name), often: float = often) -> Any:  # noqa: B008
            before, after = (dice.random() < often / 2 for _ in range(2))
            if before:
                raise error
            done = work(*given)
            if after:
                raise error
            return done

        monkeypatch.setattr(of, name, stumbling)
    topic, said = f"persistent://{NAMESPACE}/stumbling-{type(error).__name__}", list[str]()
    rest, journal = Rest(str(broker.server.admin_url)), KafkaLog(url, partitions=3)
    with broker.client() as client:
        producer = client.create_producer(topic)
        client.subscribe(topic, "s")

        def mirror() -> ClusterMirror:
            return ClusterMirror(broker.service_url, rest, [topic], journal, every=0.01, say=said.append)

        stop = Rounds(16, lambda: producer.send(b"x"))
        going_on.mirror_on(journal, mirror, stop, said.append, "begins")
    monkeypatch.undo()
    with journal:
        made = mirror()
        made.run(Rounds(1))
    failed = sum("trying again every" in each for each in said)
    assert 2 < failed < 15
    assert failed <= said.count("begins") <= failed + 1
    logged(url, tmp_path / "log")
    twin = Twin(tmp_path / "log")
    assert twin.refused == []
    assert differences(rest, topic, twin.broker) == {}


@pytest.mark.slow
def test_kafka_is_killed_and_started_again(
    broker: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(going_on, "AGAIN_SECONDS", 0.1)
    for module in (writer, journaling):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 31.0)
    topic, said = f"persistent://{NAMESPACE}/killed", list[str]()
    rest = Rest(str(broker.server.admin_url))
    with LocalKafka(tmp_path / "kafka") as kafka, broker.client() as client:
        url = KafkaUrl(kafka.bootstrap, "mirrored")
        journal = KafkaLog(url, partitions=3)
        producer = client.create_producer(topic)

        def mirror() -> ClusterMirror:
            return ClusterMirror(broker.service_url, rest, [topic], journal, every=0.1, say=said.append)

        def happens() -> None:
            rounds.append(producer.send(b"x"))
            if len(rounds) == 3:
                kafka.kill()
            if said[-1] != "begins" and kafka.status() is None:
                kafka.start()

        rounds = list[object]()
        going_on.mirror_on(journal, mirror, Rounds(15, happens), said.append, "begins")
        assert [each for each in said if "trying again every 0.1 s" in each] != []
        logged(url, tmp_path / "log")
        twin = Twin(tmp_path / "log")
        assert twin.refused == []
        assert differences(rest, topic, twin.broker) == {}


def test_a_kafka_that_stays_away_is_told_once(
    broker: Running, url: KafkaUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(going_on, "AGAIN_SECONDS", 0.01)
    said, journal = list[str](), KafkaLog(url, partitions=3)
    topic, rest = f"persistent://{NAMESPACE}/away", Rest(str(broker.server.admin_url))
    with broker.client() as client:
        client.create_producer(topic)

    def away(*_: object) -> None:
        monkeypatch.setattr(KafkaLog, "__enter__", away)
        raise KafkaUnreachable("no Kafka answers")

    monkeypatch.setattr(KafkaLog, "flush", away)
    mirror = partial(ClusterMirror, broker.service_url, rest, [topic], journal, every=0.01, say=said.append)
    going_on.mirror_on(journal, mirror, Rounds(9), said.append, "begins")
    assert said == ["begins", "no Kafka answers: trying again every 0.01 s"]


def test_a_record_that_is_too_large_is_told(url: KafkaUrl) -> None:
    with KafkaLog(url) as journal:
        record = MirrorRecord(1, "persistent://a/b/c", {"command": "SEND", "payload": "x" * journal.largest})
        with pytest.raises(NotWritten, match=r"max\.message\.bytes"):
            journal.write(record)


def test_kafka_is_gone(url: KafkaUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    with KafkaLog(url) as journal:
        journal.fail(NotWritten("it is gone"))
        with pytest.raises(NotWritten, match="it is gone"):
            journal.write(MirrorRecord(1, None, {}))
        with pytest.raises(NotWritten, match="it is gone"):
            journal.flush()


def _write_an_entry(log: KafkaLog) -> None:
    log.write(MirrorRecord(1, TOPIC, {"command": "OLD"}))
    log.flush()


OPERATIONS: dict[str, Callable[[KafkaLog], Any]] = {
    "an entry": _write_an_entry,
    "a command to all": lambda log: log.write(MirrorRecord(1, None, {"command": "OLD"})),
    "where a start reads": lambda log: log.keep({0: 9, 1: 9, 2: 9}, {}),
    "nothing new": lambda log: log.flush(),
}  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_topic_has_one_mirror_at_a_time(
    operation: str, url: KafkaUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that began last, wherever it runs. Of the one before, nothing comes that was not written by then."""
    monkeypatch.setattr("streaming.mirror.journal._OURS_SECONDS", 0.0)
    with suppress(NotWritten), KafkaLog(url, partitions=3) as first:
        assert [*first.read()] == []
        first.write(MirrorRecord(1, TOPIC, {"command": "FIRST"}))
        first.flush()
        first.write(MirrorRecord(2, TOPIC, {"command": "NOT FLUSHED"}))
        with KafkaLog(url) as second:
            assert [each.command["command"] for each in second.read()] == ["FIRST"]
            second.write(MirrorRecord(3, TOPIC, {"command": "SECOND"}))
            second.flush()
            with pytest.raises(NotWritten, match="another process writes to Kafka's topic"):
                OPERATIONS[operation](first)
            second.write(MirrorRecord(4, TOPIC, {"command": "THIRD"}))
    with KafkaLog(url) as third:
        assert [each.command["command"] for each in third.read()] == ["FIRST", "SECOND", "THIRD"]
    assert [each["command"] for each in logged(url, tmp_path / "log")] == ["FIRST", "SECOND", "THIRD"]


def test_a_writer_whose_topic_was_taken_over_says_so_whatever_fails_first(url: KafkaUrl) -> None:
    ensure_topic(url, 1)
    failed: list[NotWritten] = []
    first, second = (SoleWriter(url, PLAIN, failed.append, "one") for _ in range(2))

    def commands(flushed: bool) -> Iterator[ToSend]:
        yield ToSend(TOPIC, b"{}", 0)
        if flushed:  # Kafka's client knows it before the next one is sent
            first.flush()
        yield ToSend(TOPIC, b"{}", 0)

    for flushed in (True, False):  # the second time, it knows it from the beginning
        with pytest.raises(NotWritten, match="That one goes on"):
            first.transact(commands(flushed), {0: 0})
    with pytest.raises(NotWritten, match="That one goes on"):
        first.transact((), {0: 0})
    assert {type(each) for each in failed} == {NotWritten}
    second.transact(commands(False), {0: 0})
    for each in (first, second):
        each.close(0)


def test_a_mirror_ends_when_another_one_begins(broker: Running, url: KafkaUrl, tmp_path: Path) -> None:
    topic = f"persistent://{NAMESPACE}/two-mirrors"
    with broker.client() as client:
        producer = client.create_producer(topic)
        producer.send(b"1")
        with pytest.raises(NotWritten, match="That one goes on"):
            mirror(broker, url, 5, lambda: (producer.send(b"2"), mirror(broker, url)))
        producer.send(b"3")
        mirror(broker, url)
    ids = [
        (each["message_id"]["ledgerId"], each["message_id"]["entryId"])
        for each in logged(url, tmp_path / "log")
        if each["command"] == "SEND" and each["topic"] == topic
    ]
    assert ids == sorted(set(ids))
    assert len(ids) == 3
