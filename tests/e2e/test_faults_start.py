"""A query refuses to start with a damaged checkpoint, with that of another query, and with another topic than before."""

import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sinks.storage import RESTORE, Damaged
from streaming.kafka.client import KafkaUnreachable
from streaming.kafka.config import KafkaConfigError
from streaming.kafka.ingress import IngressChanged, TopicInUse, TopicWatch, claim, ensure_ingress
from streaming.kafka.local import LocalKafka
from streaming.kafka.url import KafkaUrl
from streaming.spark.checkpoint import BadCheckpoint, check, check_state
from tests.e2e.processes import wait_until

pytestmark = pytest.mark.feature("J2")

VERSION = "v1\n"
OFFSETS = (
    VERSION + '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}\n{"commands":{"1":3,"0":7}}'
)
COMMIT = VERSION + '{"nextBatchWatermarkMs":0}'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The files that `check` reads, as Spark leaves them after eleven micro-batches."""
    for name, text in {"offsets": OFFSETS, "commits": COMMIT}.items():
        (tmp_path / name).mkdir()
        for batch in range(11):
            (tmp_path / name / str(batch)).write_text(text)
    (tmp_path / "offsets" / ".11.tmp").write_text("half")
    (tmp_path / "metadata").write_text('{"id":"360d94ed-365c-4991-92c7-879467f427dc"}')
    check(tmp_path, "commands")
    return tmp_path


@pytest.mark.parametrize("kept", [0, 1, 3, 30, len(OFFSETS) - 1])
def test_cut_offsets(checkpoint: Path, kept: int) -> None:
    (checkpoint / "offsets/10").write_text(OFFSETS[:kept])
    with pytest.raises(BadCheckpoint) as raised:
        check(checkpoint, "commands")
    assert str(raised.value) == (
        f"The checkpoint's file {checkpoint}/offsets/10 ({kept} bytes) is damaged. {RESTORE}"
    )


@pytest.mark.parametrize("kept", [0, 3, len(COMMIT) - 1])
def test_a_cut_commit(checkpoint: Path, kept: int) -> None:
    (checkpoint / "commits/10").write_text(COMMIT[:kept])
    with pytest.raises(BadCheckpoint, match="commits/10 .* is damaged. Delete it and start the query again"):
        check(checkpoint, "commands")
    (checkpoint / "commits/10").unlink()
    check(checkpoint, "commands")


def test_metadata(checkpoint: Path) -> None:
    (checkpoint / "metadata").write_text("")
    with pytest.raises(BadCheckpoint, match=r"metadata \(0 bytes\) is damaged"):
        check(checkpoint, "commands")
    (checkpoint / "metadata").unlink()
    with pytest.raises(BadCheckpoint, match="metadata is missing"):
        check(checkpoint, "commands")


def test_a_state_without_one_of_its_folders(checkpoint: Path) -> None:
    """Spark reads the others, and says nothing."""
    check_state(checkpoint)
    about = checkpoint / "state/0/_metadata/metadata"
    about.parent.mkdir(parents=True)
    about.write_text(
        VERSION + '{"operatorInfo":{},"stateStoreInfo":[{"storeName":"default","numPartitions":2}]}'
    )
    for partition in ("0", "1"):
        with pytest.raises(BadCheckpoint, match=f"state/0/{partition} is empty or missing. {RESTORE}"):
            check_state(checkpoint)
        (checkpoint / "state/0" / partition).mkdir()
        (checkpoint / "state/0" / partition / "1.delta").write_text("x")
    check_state(checkpoint)
    for text in (
        "",
        VERSION,
        VERSION + "{}",
        VERSION + '{"stateStoreInfo":[]}',
        VERSION + '{"stateStoreInfo":[{"numPartitions":"x"}]}',
    ):
        about.write_text(text)
        with pytest.raises(BadCheckpoint, match="state/0/_metadata/metadata .*damaged"):
            check_state(checkpoint)


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("5", "is the checkpoint of another query: "),
        ('{"logOffset":5}', "is the checkpoint of another query: "),
        ('{"others":{"0":1}}', "is the checkpoint of a query over topic 'others', not 'commands': "),
    ],
)
def test_another_query_s(checkpoint: Path, last: str, said: str) -> None:
    (checkpoint / "offsets/10").write_text(OFFSETS.rpartition("\n")[0] + "\n" + last)
    with pytest.raises(BadCheckpoint, match=f"^{checkpoint} {said}"):
        check(checkpoint, "commands")


def test_nothing_to_check(tmp_path: Path) -> None:
    check(tmp_path / "new", "commands")
    check("hdfs://elsewhere/checkpoint", "commands")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadCheckpoint, match="is not a folder"):
        check(tmp_path / "file", "commands")


@pytest.fixture
def admin(kafka: LocalKafka) -> Iterator[Any]:
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    yield admin
    admin.close()


def recreate(admin: Any, kafka: LocalKafka, topic: str, partitions: int) -> None:
    admin.delete_topics([topic])
    kafka.create_topic(topic, partitions)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda admin, kafka, topic: admin.delete_topics([topic]), "no longer has a topic '{topic}'"),
        # With the same offsets, so that only its id differs.
        (lambda admin, kafka, topic: recreate(admin, kafka, topic, 3), "was deleted and recreated since"),
        (lambda admin, kafka, topic: recreate(admin, kafka, topic, 2), "was deleted and recreated since"),
        (lambda admin, kafka, topic: admin.create_partitions({topic: 5}), "has 5 partitions, and had 3 when"),
    ],
    ids=["deleted", "recreated", "fewer", "more"],
)
def test_the_topic_is_another(
    kafka: LocalKafka, admin: Any, tmp_path: Path, change: Callable[..., object], said: str,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    topic = f"faults-{request.node.callspec.id.replace(' ', '-')}"
    url = KafkaUrl(kafka.bootstrap, topic)
    assert ensure_ingress(url, str(tmp_path), 3) == 3
    assert ensure_ingress(url, str(tmp_path), 4) == 3  # it stays unchanged
    before = admin.describe_topics([topic])
    change(admin, kafka, topic)
    wait_until(lambda: admin.describe_topics([topic]) != before, "a description of the other topic")
    with pytest.raises(IngressChanged, match=said.format(topic=topic)):
        ensure_ingress(url, str(tmp_path), 3)
    assert (topic in admin.list_topics()) == ("no longer" not in said)  # and it is not created


@pytest.mark.kafka
def test_the_store_is_of_another_topic(kafka: LocalKafka, tmp_path: Path) -> None:
    url = KafkaUrl(kafka.bootstrap, "faults-one")
    ensure_ingress(url, str(tmp_path), 1)
    with pytest.raises(IngressChanged, match="belongs to topic 'faults-one', not 'faults-other'"):
        ensure_ingress(url._replace(topic="faults-other"), str(tmp_path), 1)
    known = json.loads((tmp_path / "ingress.json").read_text())
    del known["crc32"]  # of another content; files of earlier versions have none
    # Kafka before 2.8 has no topic ids, so only the partitions identify a topic.
    (tmp_path / "ingress.json").write_text(json.dumps(known | {"id": None}))
    assert ensure_ingress(url, str(tmp_path), 1) == 1
    (tmp_path / "ingress.json").write_text('{"topic":')
    with pytest.raises(Damaged, match=f"ingress.json .the ingress topic's id. is damaged: .*{RESTORE}"):
        ensure_ingress(url, str(tmp_path), 1)


@pytest.mark.kafka
def test_what_a_query_writes_is_its_own(kafka: LocalKafka, admin: Any, tmp_path: Path) -> None:
    """Readers would drop the rows of one of two queries: those whose micro-batch has the smaller number."""
    from kafka import KafkaProducer

    ingress, answers, letters = (
        KafkaUrl(kafka.bootstrap, f"claimed-{name}") for name in ("in", "out", "bad")
    )
    one, two, old = (str(tmp_path / name) for name in ("one", "two", "old"))
    for store in (one, two, old):
        ensure_ingress(ingress, store, 1)
    claim([answers, letters], one, 2)
    claim([], two, 2)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    producer.send(answers.topic, b"{}", partition=1).get()
    producer.close()
    claim([answers, letters], one, 2)  # it goes on
    claim([answers], one, 2)
    claim([answers, letters], one, 2)  # an option that was left out once
    with pytest.raises(
        TopicInUse,
        match=r"topic 'claimed-out' has records that this query does not know.* its own output topics",
    ):
        claim([letters, answers], two, 2)
    known = json.loads((tmp_path / "old/ingress.json").read_text())
    assert known.pop("written") == []
    del known["crc32"]
    (tmp_path / "old/ingress.json").write_text(json.dumps(known))
    claim([answers], old, 2)  # the store of an earlier version does not tell
    recreate(admin, kafka, answers.topic, 1)
    claim([answers], two, 2)  # empty, and of nobody


@pytest.mark.kafka
@pytest.mark.parametrize("error", [KafkaUnreachable("it refuses"), KafkaConfigError("half a file")])
def test_a_query_that_goes_on_though_its_checks_fail_says_so(
    error: Exception, kafka: LocalKafka, admin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, store, now = (
        KafkaUrl(kafka.bootstrap, f"unchecked-{type(error).__name__}"),
        str(tmp_path / "store"),
        0.0,
    )
    kafka.create_topic(url.topic, 1)
    ensure_ingress(url, store, 1)
    said: list[str] = []
    asked: list[float] = []
    watch = TopicWatch(url, [], store, on_note=said.append)
    look = watch._look

    def refused(_: KafkaUrl) -> Any:
        asked.append(now)
        raise error

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(watch, "_look", refused)
    for _ in range(3):
        said.clear()
        asked.clear()
        begun = now
        for _ in range(600):  # a micro-batch each second
            watch.check()
            now += 1
        assert len(said) == 1
        assert str(error) in said[0]
        pauses = [after - before for before, after in pairwise(asked)]
        assert pauses[:3] == [1, 2, 4]
        assert set(pauses[6:]) == {60}
        assert asked[0] == begun
        now += 60
        monkeypatch.setattr(watch, "_look", look)
        watch.check()  # it answers again
        monkeypatch.setattr(watch, "_look", refused)
    monkeypatch.setattr(watch, "_look", look)
    recreate(admin, kafka, url.topic, 1)
    now += 60
    with pytest.raises(IngressChanged):
        watch.check()
    watch.close()


@pytest.mark.kafka
def test_what_a_query_writes_is_its_own_after_it_was_made_anew(
    kafka: LocalKafka, admin: Any, tmp_path: Path
) -> None:
    """However often, and whichever of its topics it is; also while one of them is not there. Another query does not get it."""
    from kafka import KafkaProducer

    topics = [KafkaUrl(kafka.bootstrap, f"anew-{name}") for name in ("in", "out", "bad")]
    one, two = (str(tmp_path / name) for name in ("one", "two"))
    for store in (one, two):
        ensure_ingress(topics[0], store, 1)
    claim(topics[1:], one, 1)
    claim([], two, 1)
    said: list[str] = []
    watch = TopicWatch(topics[0], topics[1:], one, on_note=said.append)
    watch.check()
    assert said == []
    for turn in range(4):
        url = topics[1 + turn % 2]
        admin.delete_topics([url.topic])
        gone = url.topic
        wait_until(lambda: gone not in admin.list_topics(), "the end of the topic")  # noqa: B023
        watch.check()
        kafka.create_topic(url.topic, 1)
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
        producer.send(url.topic, b"{}", partition=0).get()
        producer.close()
        for _ in range(2):
            watch.check()
        assert [each.partition("topic '")[2].partition("'")[0] for each in said] == [
            topics[1 + each % 2].topic for each in range(turn + 1)
        ]
        claim(topics[1:], one, 1)
        with pytest.raises(TopicInUse):
            claim([url], two, 1)
    watch.close()
    again = TopicWatch(topics[0], topics[1:], one, on_note=said.append)
    again.check()
    again.close()
    assert len(said) == 4
