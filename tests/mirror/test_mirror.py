"""`magnetar mirror`: a log that follows a broker, whose replay is the broker's twin."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sinks.lock import InUse
from sinks.outputs import InTheWay
from sinks.sums import sealed
from streaming.answers.whatif.side_by_side import sampled_topics
from streaming.cli.app import app
from streaming.cli.record import PayloadsChoice
from streaming.mirror import journal, trouble
from streaming.mirror import mirror as mirroring
from streaming.mirror.journal import BadLog, LogFolder
from streaming.mirror.last import PRODUCER
from streaming.mirror.mirror import ClusterMirror, EntriesMode, MirrorTotals
from streaming.mirror.policies import ClusterPolicies
from streaming.mirror.reading import MOST_ENTRIES, Known, read, stand_ins
from streaming.mirror.source import Look, MirroredCluster, NotMirrored
from streaming.protocol.codec import entry
from streaming.record import client as reading_client
from streaming.record.client import NoRight, Reader, ReadFailed
from streaming.record.rest import CallFailed, Rest, Said
from streaming.record.stored import Stored
from streaming.runtime import clock
from streaming.runtime.clock import MAX_AHEAD_MS
from tests.broker.kit import QUIET
from tests.mirror.kit import Twin, differences, mirror, positions, records
from tests.record.test_capture import fill
from tests.record.test_record import Scripted, connected
from tests.record.test_unreachable import of_all, redirecting, refusing
from tests.server.conftest import Running, running
from tests.server.test_clock import HOUR, START, YEAR, Machine

pytestmark = pytest.mark.feature("K4")

WAIT = 10_000
NAMESPACE = "public/default"


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with running(**QUIET, managedLedgerMaxEntriesPerLedger=7) as found:
        yield found


@pytest.fixture
def rest(broker: Running) -> Rest:
    return Rest(str(broker.server.admin_url))


@pytest.fixture
def client(broker: Running) -> Iterator[Any]:
    with broker.client() as client:
        yield client


@pytest.fixture
def namespace(request: Any, rest: Rest) -> str:
    """One of its own."""
    name = f"public/{request.node.originalname.replace('_', '-')}-{abs(hash(request.node.name)) % 10_000}"
    assert rest.call("PUT", f"/namespaces/{name}").status == 204
    return name


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics and policies are looked for in each round, and each topic is."""
    monkeypatch.setattr(mirroring, "_CONFIGURED_SECONDS", 0.0)
    monkeypatch.setattr(mirroring, "_LEFT_OUT_SECONDS", 0.0)
    monkeypatch.setattr(mirroring, "SLOWEST", 0)
    monkeypatch.setattr(trouble, "CALM_SECONDS", 0.0)


def publish(client: Any, topic: str, count: int, **more: Any) -> None:
    producer = client.create_producer(topic, **more)
    for number in range(count):
        producer.send(b"%d" % number)
    producer.close()


def is_twin(rest: Rest, folder: Path, *topics: str) -> Twin:
    twin = Twin(folder)
    assert twin.refused == []
    assert {topic: differences(rest, topic, twin.broker) for topic in topics} == {
        topic: {} for topic in topics
    }
    return twin


@pytest.mark.parametrize(("silence", "ticks"), [(60, 1), (0, 2)])
def test_the_time_of_a_log_goes_on_although_nothing_happens(
    silence: int, ticks: int, client: Any, rest: Rest, broker: Running, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(mirroring, "SILENT_SECONDS", silence)
    topic = f"persistent://{namespace}/t"
    publish(client, topic, 1)
    mirror(broker.service_url, rest, [topic], tmp_path / "log", 3)
    found = [*records(tmp_path / "log")]
    times = [each["timestamp"] for each in found]
    assert [each["command"] for each in found].count("TICK") == ticks
    assert found[-1]["command"] == "TICK"
    assert times == sorted(times)
    assert Twin(tmp_path / "log").refused == []


_AHEAD, _AGAIN = "the machine's clock is 31,536,000 s ahead of", "the machine's clock is followed again"
_BEHIND, _HOUR_BEHIND = "the machine's clock is 31,535,970 s behind", "the machine's clock is 3,570 s behind"
_JUMPS = {
    (YEAR, 0): [_AHEAD, _AGAIN],
    (YEAR, YEAR): [_AHEAD, _AGAIN],
    (YEAR, -YEAR): [_AHEAD, _AGAIN],
    (0, YEAR): [_AHEAD, _AGAIN],
    (-YEAR, 0): [_BEHIND, _AGAIN],
    (HOUR // 2, -HOUR // 2): [_HOUR_BEHIND],
}
"""How far the machine's clock is off in the second and in the third of a mirror's looks, and what is said. In the others it is right."""


def of_clock(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the clock said. Clients of other tests may say something, too."""
    return [each.getMessage() for each in caplog.records if each.name == clock.__name__]


@pytest.mark.parametrize("offs", _JUMPS, ids=str)
def test_the_time_of_a_log_goes_on_whatever_the_machines_clock_does(
    offs: tuple[int, int], client: Any, rest: Rest, broker: Running, namespace: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """It passes between looks, and never is an hour ahead. An operator is told once of what is not followed."""
    monkeypatch.setattr(mirroring, "SILENT_SECONDS", 0)
    topic, machine, then = f"persistent://{namespace}/t", Machine(), [*offs, 0, 0]

    def before() -> None:
        machine.passes(60_000)
        machine.off = then.pop(0)
        publish(client, topic, 1)

    publish(client, topic, 1)
    _, said = mirror(broker.service_url, rest, [topic], tmp_path / "log", 5, before, clock=machine.clock())
    assert said == []
    for told, begin in zip(of_clock(caplog), _JUMPS[offs], strict=True):
        assert told.startswith(begin)
    found = [*records(tmp_path / "log")]
    times = [each["timestamp"] for each in found]
    assert times == sorted(times)
    assert times[-1] < START + machine.running + MAX_AHEAD_MS
    looks = [each["timestamp"] for each in found if each["command"] == "MIRROR"]
    assert all(after - before >= 30_000 for before, after in pairwise(looks))
    assert len(looks) == 5


def test_a_log_that_is_ahead_is_caught_up_with(
    client: Any, rest: Rest, broker: Running, namespace: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The machine's clock was wrong when a mirror started, and is right at the next start: time goes on from the log's end, at half speed."""
    topic, machine = f"persistent://{namespace}/t", Machine()
    publish(client, topic, 1)
    machine.off = YEAR
    mirror(broker.service_url, rest, [topic], tmp_path / "log", clock=machine.clock())
    machine.off = 0

    def before() -> None:
        machine.passes(60_000)
        publish(client, topic, 1)

    mirror(broker.service_url, rest, [topic], tmp_path / "log", 3, before, clock=machine.clock())
    looks = [
        each["timestamp"] - START - YEAR for each in records(tmp_path / "log") if each["command"] == "MIRROR"
    ]
    assert looks == [0, 0, 30_000, 60_000]
    assert of_clock(caplog) == [
        "the machine's clock is 31,536,000 s behind Magnetar's time, which runs at half speed until the clock has caught up"
    ]


def test_a_twin_follows_its_broker(client: Any, rest: Rest, broker: Running, tmp_path: Path) -> None:
    topic = "persistent://public/default/followed"
    fill(client, topic)
    kept: list[Any] = []

    def more() -> None:
        kept.append(client.subscribe(topic, "late", pulsar.ConsumerType.Shared))
        publish(client, topic, 10, producer_name="q")
        consumer = client.subscribe(topic, "idle")
        for _ in range(5):
            consumer.acknowledge(consumer.receive(WAIT))
        consumer.close()

    done, said = mirror(broker.service_url, rest, [topic], tmp_path / "log", 2, more)
    assert said == []
    is_twin(rest, tmp_path / "log", topic)
    assert done.entries == 31
    assert len(set(positions(tmp_path / "log", topic))) == 31


def change(client: Any, rest: Rest, namespace: str, draw: Random) -> None:
    """Something that happens to the topics of a namespace."""
    name = draw.choice(["a", "b", "parts"])
    topic = f"persistent://{namespace}/{name}"
    path = f"/persistent/{namespace}/{name}"
    match draw.randrange(10):
        case 0 | 1 | 2:
            publish(client, topic, draw.randrange(1, 12))
        case 3 | 4:
            consumer = client.subscribe(
                topic,
                draw.choice("st"),
                pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
            )
            try:
                for _ in range(draw.randrange(6)):
                    consumer.acknowledge(consumer.receive(100))
            except pulsar.Timeout:
                pass
            consumer.close()
        case 5:
            rest.call("DELETE", f"{path}/partitions?force=true" if name == "parts" else f"{path}?force=true")
        case 6:
            rest.call("PUT", f"/persistent/{namespace}/parts/partitions", 2)
            rest.call("POST", f"/persistent/{namespace}/parts/partitions", draw.randrange(2, 5))
        case 7:
            rest.call("PUT", f"{path}/unload")
        case 8:
            rest.call("POST", f"{path}/subscription/s/resetcursor/{draw.choice([0, 2**40])}")
        case _:
            rest.call("POST", f"{path}/subscription/{draw.choice('st')}/skip/{draw.randrange(1, 5)}")


class Killed(BaseException):
    """The mirror was killed."""


class Mortal(LogFolder):
    """A log whose writer is killed now and then, in the middle of a write."""

    draw = Random(0)

    def flush(self) -> None:
        if self._lines and self.draw.random() < 0.2:
            del self._lines[self.draw.randrange(len(self._lines) + 1) :]
            super().flush()
            raise Killed
        super().flush()


class Moody(Rest):
    """An admin API that does not always answer."""

    draw = Random(0)

    def call(self, method: str, path: str, body: Any = None) -> Said:
        match self.draw.randrange(40):
            case 0:
                raise CallFailed("it can't be reached")
            case 1:
                return Said(500, {"reason": "no reason"})
            case 2:
                return Said(403, {"reason": "not now"})
        return super().call(method, path, body)


@pytest.mark.parametrize("seed", range(6))
def test_after_any_end_the_log_goes_on_without_a_gap_or_a_repetition(
    seed: int,
    client: Any,
    rest: Rest,
    broker: Running,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The entries that are in the log are those of the broker, each once, whatever happened to its topics and to the mirror."""
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 2000)
    monkeypatch.setattr(mirroring, "RESTATED_SECONDS", 0.0)
    draw, folder = Random(seed), tmp_path / "log"
    Mortal.draw = Moody.draw = draw
    moody = Moody(rest.url)
    publish(client, f"persistent://{namespace}/a", 3)
    for _ in range(8):
        with suppress(Killed, CallFailed, NotMirrored):
            mirror(
                broker.service_url,
                moody,
                [namespace],
                folder,
                draw.choice([1, 2, 3]),
                lambda: change(client, rest, namespace, draw),
                log=Mortal,
            )
        change(client, rest, namespace, draw)
    _, said = mirror(broker.service_url, rest, [namespace], folder, 2)
    assert said == []
    topics = rest.get(f"/persistent/{namespace}", list[str])
    twin = is_twin(
        rest, folder, *(topic for topic in topics if rest.call("GET", _path(topic) + "/stats").status == 200)
    )
    here = {topic for topic in twin.broker.topic_names() if namespace in topic}
    assert here <= {*topics}
    for topic in here:
        found = positions(folder, topic)
        assert found == sorted(set(found))
    assert len([*folder.glob("*.jsonl")]) > 1


def looked(ledgers: dict[int, int], state: str = "LedgerOpened", open_transactions: int = 0) -> Look:
    """A look at a topic that has so many entries in its ledgers."""
    shown = [{"ledgerId": id_, "entries": entries, "size": 0} for id_, entries in ledgers.items()]
    return Look(1000, {"ongoingTxnCount": open_transactions}, {"ledgers": shown, "state": state})


@pytest.mark.parametrize("seed", range(40))
def test_something_stands_for_each_entry_that_no_reader_gets(seed: int) -> None:
    """Wherever it is, but for the last ones of the open ledger, and of one that came after the look."""
    draw = Random(seed)
    ledgers = {id_: draw.randrange(5) for id_ in sorted(draw.sample(range(3, 20), 5))}
    there = [(id_, entry) for id_, count in ledgers.items() for entry in range(count)]
    after = draw.choice([(-1, -1), (2, 7), *there])
    later = [(30, entry) for entry in range(draw.randrange(3))]
    readable = [at for at in [*there, *later] if at > after and draw.random() < 0.5]
    metadata = {"producer_name": "p", "sequence_id": 1, "publish_time": 500}
    stored = (Stored(*at, metadata, b"x", 500) for at in readable)
    sends = [*read(stored, looked(ledgers), after, "keep")]
    end = max([(max(ledgers), -1), *readable])
    assert [each.position for each in sends] == [at for at in [*there, *later] if after < at <= end]
    assert [each.position for each in sends if each.command["metadata"] == metadata] == readable
    assert {each.time for each in sends} <= {500, 1000}


@pytest.mark.parametrize(
    ("state", "open_transactions", "count"),
    [("LedgerOpened", 0, 4), ("Terminated", 0, 0), ("LedgerOpened", 1, 0)],
)
def test_nothing_stands_for_what_may_be_read_later(state: str, open_transactions: int, count: int) -> None:
    look = looked({3: 2, 4: 2, 5: 0}, state, open_transactions)
    assert len([*read(iter(()), look, (-1, -1), "keep")]) == count


ODD_METADATA: list[dict[str, Any]] = [
    {"publish_time": 2**62}, {"publish_time": 2**63 + 5}, {"num_messages_in_batch": -5}, {"uncompressed_size": 2**32 - 1},
    {"uuid": "u", "chunk_id": -1, "num_chunks_from_msg": 0}, {"num_messages_in_batch": 2**31 - 1}, {"sequence_id": 2**64 - 1},
]  # fmt: skip
"""Of messages that a real Pulsar takes from its producers."""


@pytest.mark.parametrize("odd", ODD_METADATA, ids=str)
def test_one_of_the_same_size_stands_for_an_entry_that_no_log_can_have(odd: dict[str, Any]) -> None:
    metadata = {"producer_name": "producer", "sequence_id": 1, "publish_time": 500, **odd}
    payload = b"x" * 100
    marker, sent = read(iter([Stored(3, 1, metadata, payload)]), looked({3: 2}), (-1, -1), "keep")
    assert marker.command["metadata"]["publish_time"] <= 1000
    assert sent.odd is not None
    assert sent.odd.startswith("no log can have entry 3:1: ")
    assert len(entry(metadata, payload)) == len(
        entry(sent.command["metadata"], sent.command["payload_bytes"])
    )
    assert sent.time <= 1000


def test_one_of_the_same_size_stands_for_an_entry_whose_metadata_cannot_be_read() -> None:
    numbers = {"sequence_id": 1, "publish_time": 500}
    unreadable = Stored(3, 0, numbers, b"x", None, 90, "partition_key: text that is not UTF-8")
    (sent,) = read(iter([unreadable]), looked({3: 1}), (-1, -1), "keep")
    assert sent.odd == "no log can have entry 3:0: partition_key: text that is not UTF-8"
    assert len(entry(sent.command["metadata"], sent.command["payload_bytes"])) == 90


def test_entries_that_no_log_can_have(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin has what comes after them, and the mirror tells of them once."""
    entries, topic, folder = Reader.entries, f"persistent://{namespace}/t", tmp_path / "log"

    def odd(*given: Any) -> Iterator[Stored]:
        for each in entries(*given):
            more = ODD_METADATA[each.entry] if each.entry < 6 else {}
            yield each._replace(metadata={**each.metadata, **more})

    monkeypatch.setattr(Reader, "entries", odd)
    client.subscribe(topic, "s").close()
    publish(client, topic, 7)
    _, said = mirror(broker.service_url, rest, [topic], folder)
    assert len(said) == 1
    assert said[0].startswith(f"{topic}, an entry: another one stands for it: no log can have entry ")
    assert [number for _, number in positions(folder, topic)] == [*range(7)]
    twin = Twin(folder)
    assert twin.refused == []
    assert "numberOfEntries" not in differences(rest, topic, twin.broker)


def test_more_unreadable_entries_than_can_be() -> None:
    with pytest.raises(ValueError, match="that no reader gets"):
        next(read(iter(()), looked({3: MOST_ENTRIES + 1, 4: 0}), (-1, -1), "keep"))


def test_the_end_of_a_ledger_that_no_reader_gets(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the marker of a transaction is one. The ledgers have 7 entries; the mirror looks when the second one has begun, and later."""
    entries, topic, folder = Reader.entries, f"persistent://{namespace}/t", tmp_path / "log"
    monkeypatch.setattr(
        Reader, "entries", lambda *given: (each for each in entries(*given) if each.entry not in (5, 6))
    )
    client.subscribe(topic, "s").close()
    publish(client, topic, 8)
    _, said = mirror(broker.service_url, rest, [topic], folder, 3, lambda: publish(client, topic, 7))
    assert said == []
    found = positions(folder, topic)
    ids = sorted({ledger for ledger, _ in found})
    assert found == [(id_, entry) for id_ in ids for entry in range(7 if id_ != ids[-1] else 1)]
    assert len(ids) == 4
    twin = Twin(folder)
    assert twin.refused == []
    assert "numberOfEntries" not in differences(rest, topic, twin.broker)


def _path(topic: str) -> str:
    return "/" + topic.replace("://", "/")


def test_a_start_reads_what_follows_the_last_restatement(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 1000)
    monkeypatch.setattr(mirroring, "RESTATED_SECONDS", 0.0)
    topic, folder = f"persistent://{namespace}/t", tmp_path / "log"
    client.subscribe(topic, "s").close()
    publish(client, topic, 20)
    mirror(broker.service_url, rest, [topic], folder, 8, lambda: publish(client, topic, 2))
    *old, _, _ = sorted(folder.glob("*.jsonl"))
    assert old
    for path in old:
        path.rename(tmp_path / path.name)
    publish(client, topic, 1)
    mirror(broker.service_url, rest, [topic], folder)
    for path in tmp_path.glob("*.jsonl"):
        path.rename(folder / path.name)
    is_twin(rest, folder, topic)
    assert len(positions(folder, topic)) == 35


def test_policies_follow(client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str) -> None:
    topic, folder = f"persistent://{namespace}/t", tmp_path / "log"
    publish(client, topic, 1)
    of_topic, of_namespace = f"{_path(topic)}/maxConsumers", f"/namespaces/{namespace}"
    steps: list[Callable[[], Said]] = [
        lambda: rest.call("POST", f"{of_namespace}/messageTTL", 77),
        lambda: rest.call("POST", of_topic, 5),
        lambda: rest.call("DELETE", f"{of_namespace}/messageTTL"),
        lambda: rest.call("DELETE", of_topic),
    ]
    calls = [f"{of_namespace}/messageTTL", of_topic]
    seen = []
    for step in steps:
        assert step().status == 204
        mirror(broker.service_url, rest, [topic], folder)
        mirror(broker.service_url, rest, [topic], folder, 2)
        seen.append([Twin(folder).get(call, topic) for call in calls])
    assert seen == [[77, None], [77, 5], [None, 5], [None, None]]
    before = [*records(folder)]
    mirror(broker.service_url, rest, [topic], folder, 5)
    more = [each for each in [*records(folder)][len(before) :] if "path" in each]
    assert [(each["method"], each["path"]) for each in more] == [
        ("PUT", of_namespace),
        ("DELETE", f"{_path(topic)}/policies"),
    ]  # once


class Dated(Rest):
    """An admin API that says when a topic was created (s): in `stats`, or in its metadata. None: it answers with an error."""

    in_stats = 0
    in_metadata: int | None = 0
    asked = 0

    def call(self, method: str, path: str, body: Any = None) -> Said:
        said = super().call(method, path, body)
        if path.partition("?")[0].endswith("/stats") and said.status == 200:
            said.value["topicCreationTimeStamp"] = self.in_stats
        if path.endswith("/internal-info") and said.status == 200:
            self.asked += 1
            if self.in_metadata is None:
                return Said(500, {"reason": "not now"})
            zone = timezone(timedelta(hours=self.in_metadata % 3))  # that of the broker that answers
            said.value["creationDate"] = datetime.fromtimestamp(self.in_metadata, zone).isoformat()
        return said


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("entries", ["keep", "sampled"])
@pytest.mark.parametrize("known_from", ["this process", "the log", "nothing", "nothing any more"])
def test_when_a_topic_was_created_tells_whether_it_is_another(
    known_from: str,
    entries: EntriesMode,
    again: bool,
    client: Any,
    rest: Rest,
    broker: Running,
    tmp_path: Path,
    namespace: str,
) -> None:
    """Although a consumer has acknowledged all before and all after, and none of the ledgers is left: as after an unload. That costs a call for each
    topic at its first look, and one when the ledgers are all new."""
    topic, folder, dated = f"persistent://{namespace}/t", tmp_path / "log", Dated(rest.url)
    dated.in_metadata = None if known_from == "nothing" else 1_000_000

    def use(count: int) -> None:
        consumer = client.subscribe(topic, "s")
        publish(client, topic, count, producer_name="standalone-0-100")
        for _ in range(count):
            consumer.acknowledge(consumer.receive(WAIT))
        consumer.close()

    def change() -> None:
        path = _path(topic) + ("?force=true" if again else "/unload")
        assert rest.call("DELETE" if again else "PUT", path).status == 204
        use(15)
        if known_from == "nothing any more":
            dated.in_metadata = None
        elif again and dated.in_metadata:
            dated.in_metadata += 1

    use(8)
    if known_from == "the log":
        mirror(broker.service_url, dated, [topic], folder, 2, entries=entries)
        assert dated.asked == 1
        change()
        mirror(broker.service_url, dated, [topic], folder, 4, entries=entries)
    else:
        mirror(broker.service_url, dated, [topic], folder, 5, once(change), entries=entries)
    assert dated.asked == 2
    deletes = [each for each in records(folder) if each.get("path") == f"{_path(topic)}?force=true"]
    assert len(deletes) == (again and "nothing" not in known_from)
    is_twin(rest, folder, topic)


def once(change: Callable[[], None]) -> Callable[[], None]:
    """What happens at the first call."""
    changes = [change]
    return lambda: changes.pop()() if changes else None


@pytest.mark.parametrize("shown_by", ["the time of its creation", "its retention", "a subscription"])
def test_a_topic_that_was_deleted_and_created_again(
    shown_by: str, client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str
) -> None:
    """Also between two looks, with as many entries and subscriptions as before."""
    topic, folder = f"persistent://{namespace}/t", tmp_path / "log"
    dated = Dated(rest.url)
    dated.in_stats = int(shown_by == "the time of its creation")
    if shown_by == "its retention":
        retention = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10}
        assert rest.call("POST", f"/namespaces/{namespace}/retention", retention).status == 204

    def create() -> None:
        if shown_by == "a subscription":
            client.subscribe(topic, "s").close()
        publish(client, topic, 3, producer_name="p")  # whose length counts

    def again() -> None:
        before = rest.get(f"{_path(topic)}/stats")
        assert rest.call("DELETE", f"{_path(topic)}?force=true").status == 204
        create()
        dated.in_stats *= 2
        after = rest.get(f"{_path(topic)}/stats")
        for what in ("msgInCounter", "storageSize", "backlogSize"):
            assert before[what] == after[what]

    create()
    mirror(broker.service_url, dated, [topic], folder, 2)
    _, said = mirror(broker.service_url, dated, [topic], folder, 2, again)
    mirror(broker.service_url, dated, [topic], folder)
    assert said == []
    deletes = [each for each in records(folder) if each.get("path") == f"{_path(topic)}?force=true"]
    assert [each["method"] for each in deletes] == ["DELETE"]
    is_twin(rest, folder, topic)
    assert len({ledger for ledger, _ in positions(folder, topic)}) == 2
    assert len(positions(folder, topic)) == 6


def test_a_topic_that_is_loaded_and_trimmed_is_the_same(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str
) -> None:
    topic, folder = f"persistent://{namespace}/t", tmp_path / "log"

    def consume() -> None:
        consumer = client.subscribe(topic, "s")
        publish(client, topic, 8)
        for _ in range(8):
            consumer.acknowledge(consumer.receive(WAIT))
        consumer.close()
        assert rest.call("PUT", f"{_path(topic)}/unload").status == 204

    consume()
    mirror(broker.service_url, rest, [topic], folder, 6, consume)
    assert not any(each.get("path") == f"{_path(topic)}?force=true" for each in records(folder))
    is_twin(rest, folder, topic)


def test_sampled_entries_are_as_many_and_as_large(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reader, "entries", None)  # nobody reads
    topic, folder = f"persistent://{namespace}/t", tmp_path / "log"
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1000)

    def more() -> None:
        for size in (1000, 3000, 500):
            for _ in range(size // 100):
                producer.send_async(b"x" * size, lambda *_: None)
            producer.flush()

    more()
    done, said = mirror(broker.service_url, rest, [topic], folder, 3, more, entries="sampled")
    assert said == []
    twin = is_twin(rest, folder, topic)
    stats = twin.broker.topic_stats(topic)
    assert stats is not None
    assert twin.get(f"{_path(topic)}/properties", topic)["magnetar.entries"] == "sampled"
    sends = [each for each in records(folder) if each["command"] == "SEND"]
    assert len(sends) == done.entries
    assert sum(each["num_messages"] for each in sends[3:]) == 90
    assert [each["timestamp"] for each in sends] == sorted(each["timestamp"] for each in sends)


@pytest.mark.parametrize("ways", [*product(["keep", "sampled"], repeat=2)], ids="-".join)
def test_a_log_with_sampled_entries_says_so_however_it_is_gone_on_with(
    ways: tuple[EntriesMode, ...],
    client: Any,
    rest: Rest,
    broker: Running,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if a start does not read how the log began."""
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 100)
    monkeypatch.setattr(mirroring, "RESTATED_SECONDS", 0.0)
    topics, folder = [f"persistent://{namespace}/{name}" for name in "ab"], tmp_path / "log"
    assert rest.call("PUT", f"{_path(topics[1])}/partitions", 2).status == 204
    partitions = [topics[0], *(f"{topics[1]}-partition-{number}" for number in range(2))]
    for entries in ways:
        for topic in topics:
            publish(client, topic, 4)
        _, said = mirror(broker.service_url, rest, topics, folder, 2, entries=entries)
        assert said == []
        read_from = json.loads((folder / "mirror.json").read_text())["read_from"]
        assert read_from > 1
    twin = is_twin(rest, folder, *partitions)
    assert sampled_topics(twin.broker) == (partitions if "sampled" in ways else [])
    producers = {each["metadata"]["producer_name"] for each in records(folder) if each["command"] == "SEND"}
    assert (PRODUCER in producers) is ("sampled" in ways)
    assert bool(producers - {PRODUCER}) is ("keep" in ways)


def test_sampled_entries_are_spread_over_the_interval_across_a_restart(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str
) -> None:
    topic, folder = f"persistent://{namespace}/t", tmp_path / "log"
    client.subscribe(topic, "s").close()
    publish(client, topic, 2)
    for _ in range(2):
        mirror(broker.service_url, rest, [topic], folder, entries="sampled")
        publish(client, topic, 4)
    found = [*records(folder)]
    before, after = (each["timestamp"] for each in found if each["command"] == "MIRROR")
    times = [each["metadata"]["publish_time"] for each in found if each["command"] == "SEND"]
    assert times[2:] == [before + (after - before) * number // 4 for number in (1, 2, 3, 4)]


@pytest.mark.parametrize("shown", ["closed", "not found", "odd", "cut off once"])
def test_the_first_look_knows_when_ledgers_were_closed(
    shown: str, client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str
) -> None:
    """Ledgers have 7 entries. Of entries that were sampled, TTL makes something then."""
    topic, folder = f"persistent://{namespace}/t", tmp_path / "log"
    client.subscribe(topic, "s").close()
    publish(client, topic, 16)
    days = 86_400_000
    now = time.time_ns() // 1_000_000
    closed = [now - 7 * days, now - 5 * days]
    asked = list[str]()

    class History(Rest):
        def call(self, method: str, path: str, body: Any = None) -> Said:
            status, value = super().call(method, path, body)
            if path.endswith("/internalStats"):
                created = datetime.fromtimestamp(closed[1] / 1000, UTC).isoformat()
                value = {**value, "lastLedgerCreatedTimestamp": created}
            if path.endswith("/internal-info"):
                asked.append(path)
                if shown == "cut off once" and len(asked) == 1:
                    raise CallFailed("cut off", 504)
                if shown == "not found":
                    return Said(404, {"reason": "no such call"})
                times = [*closed, "x" if shown == "odd" else closed[1]]
                ledgers = [each | {"timestamp": at} for each, at in zip(value["ledgers"], times, strict=True)]
                for name in ("entries", "size"):  # as a real one shows the open one
                    del ledgers[-1][name]
                value = {**value, "ledgers": ledgers}
            return Said(status, value)

    _, said = mirror(broker.service_url, History(rest.url), [topic], folder, 2, entries="sampled")
    assert said == ([f"{topic}: waits: cut off", f"{topic}: goes on"] if shown == "cut off once" else [])
    twin = is_twin(rest, folder, topic)
    assert twin.broker.topic(topic).is_sampled
    sends = [each for each in records(folder) if each["command"] == "SEND"]
    times = [each["metadata"]["publish_time"] for each in sends]
    if shown != "cut off once":  # the log's time does not go back
        assert [each["timestamp"] for each in sends] == times
    first = closed[0] if shown in ("closed", "cut off once") else closed[1]
    assert times[:7] == [first] * 7
    expected = [first + (closed[1] - first) * number // 7 for number in range(1, 8)]
    assert times[7:14] == expected
    assert closed[1] < times[14] < times[15]


@pytest.mark.parametrize("seed", range(40))
def test_sampled_entries_come_in_their_time(seed: int) -> None:
    """Whatever the clocks of brokers say: in order, each after the look before, before this look and the end of its ledger, if that is in between."""
    draw = Random(seed)
    ids = sorted(draw.sample(range(3, 20), draw.randrange(1, 6)))
    shown = [{"ledgerId": id_, "entries": draw.randrange(5), "size": 1000} for id_ in ids]
    ends = dict(zip(ids, sorted(draw.choices(range(2000), k=len(ids))), strict=True))
    closed = {id_: end for id_, end in ends.items() if draw.random() < 0.7}
    internal: dict[str, Any] = {"ledgers": shown}
    if draw.random() < 0.7:
        created = datetime.fromtimestamp(draw.randrange(2000) / 1000, UTC).isoformat()
        internal["lastLedgerCreatedTimestamp"] = created
    look = Look(1000, {"msgInCounter": draw.randrange(30)}, internal, closed)
    before = draw.choice([None, Known(draw.randrange(1000), {}), Known(500, {ids[0]: 500}, 3)])
    there = [(each["ledgerId"], entry) for each in shown for entry in range(each["entries"])]
    after = draw.choice([(-1, -1), *there])
    sends = [*stand_ins(look, after, before)]
    assert [each.position for each in sends] == [at for at in there if at > after]
    times = [each.time for each in sends]
    assert times == sorted(times)
    least = -1 if before is None else before.time
    assert all(least <= each <= look.time for each in times)
    for each in sends:
        if least <= (end := closed.get(each.position[0], -2)):
            assert each.time <= end


@given(st.integers(1, 4), st.integers(1, 400), st.integers(1, 300))
def test_a_sampled_entry_has_no_more_messages_than_bytes(entries: int, size: int, messages: int) -> None:
    """However many messages the source has counted: its broker takes no other batch, unless its payload is left out."""
    ledger = {"ledgerId": 1, "entries": entries, "size": size}
    look = Look(1000, {"msgInCounter": messages}, {"ledgers": [ledger]})
    stored = least = 0
    for each in stand_ins(look, (-1, -1), Known(0, {}, 0)):
        metadata, payload = each.command["metadata"], each.command["payload_bytes"]
        count = metadata.get("num_messages_in_batch", 1)
        assert not payload or len(payload) >= count
        least += len(entry(metadata, b""))
        stored += len(entry(metadata, payload))
    assert size <= stored < size + least


class Flaky(Rest):
    """An admin API that answers every third question about stats with `status`. None: it can't be reached then. 200: it works."""

    status: int | None = 200
    asked = 0

    def call(self, method: str, path: str, body: Any = None) -> Said:
        if "tats" in path and self.status != 200:
            self.asked += 1
            if self.asked % 3 == 0 and self.status is None:
                raise CallFailed("it can't be reached")
            if self.asked % 3 == 0:
                return Said(self.status or 0, {"reason": "so it is"})
        return super().call(method, path, body)


@pytest.mark.parametrize(
    ("status", "words"), [(500, "waits: GET"), (403, "left out: GET"), (None, "trying again every")]
)
def test_what_the_cluster_does_not_say_now_it_says_later(
    status: int | None, words: str, client: Any, broker: Running, tmp_path: Path, namespace: str
) -> None:
    topic, folder = f"persistent://{namespace}/t", tmp_path / "log"
    publish(client, topic, 3)
    flaky = Flaky(str(broker.server.admin_url))
    mirror(broker.service_url, flaky, [topic], folder)
    flaky.status = status
    _, said = mirror(broker.service_url, flaky, [topic], folder, 12, lambda: publish(client, topic, 1))
    assert any(words in each for each in said), said
    assert any(each.endswith("goes on") for each in said)
    flaky.status = 200
    mirror(broker.service_url, flaky, [topic], folder, 2)
    is_twin(flaky, folder, topic)


@pytest.mark.parametrize("error", [ReadFailed("it broke"), NoRight("not allowed")])
def test_a_topic_that_can_not_be_read_waits(
    error: ReadFailed,
    client: Any,
    rest: Rest,
    broker: Running,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its entries are never left out while what happened to them is in the log."""
    folder, topics = tmp_path / "log", [f"persistent://{namespace}/{name}" for name in "ab"]
    for topic in topics:
        publish(client, topic, 3)
    entries = Reader.entries

    def broken(self: Reader, topic: str, after: Any, size: int) -> Any:
        for number, each in enumerate(entries(self, topic, after, size)):
            if topic == topics[0] and number == 2:
                raise error
            yield each

    with monkeypatch.context() as patched:
        patched.setattr(Reader, "entries", broken)
        _, said = mirror(broker.service_url, rest, [namespace], folder)
    assert said == [f"{topics[0]}: {'left out' if isinstance(error, NoRight) else 'waits'}: {error}"]
    mirrored = [each["topic"] for each in records(folder) if each["command"] == "MIRROR"]
    assert mirrored == topics[1:]
    mirror(broker.service_url, rest, [namespace], folder)
    is_twin(rest, folder, *topics)


@pytest.mark.parametrize(("status", "ends"), [(503, "wait"), (403, "are left out")])
def test_one_line_for_the_trouble_of_many_topics(
    status: int, ends: str, client: Any, broker: Running, tmp_path: Path, namespace: str
) -> None:
    """Whichever of its calls fail: two in three do, of all kinds."""
    topics = [f"persistent://{namespace}/{number}" for number in range(12)]
    for topic in topics:
        publish(client, topic, 1)

    class Busy(Flaky):
        def call(self, method: str, path: str, body: Any = None) -> Said:
            self.asked += 1
            if self.status != 200 and "/persistent/" in path and path.count("/") > 4 and self.asked % 3:
                return Said(self.status or 0, {"reason": "so it is"})
            return Rest.call(self, method, path, body)

    busy, left = Busy(str(broker.server.admin_url)), 20
    busy.status = status

    def before() -> None:
        nonlocal left
        left -= 1
        busy.status = status if left > 8 else 200

    _, said = mirror(broker.service_url, busy, [namespace], tmp_path / "log", 20, before)
    about = [each for each in said if "policies" not in each]
    assert len(about) == 2, said
    assert f" topics {ends}, such as persistent://" in about[0]
    assert about[1].endswith(": all go on")
    assert len(said) - len(about) <= 4, said
    is_twin(busy, tmp_path / "log", *topics)


def test_a_wrong_service_url_is_told_once(client: Any, rest: Rest, tmp_path: Path, namespace: str) -> None:
    for number in range(12):
        publish(client, f"persistent://{namespace}/{number}", 1)
    _, said = mirror("pulsar://127.0.0.1:1", rest, [namespace], tmp_path / "log", 5)
    assert len(said) == 1
    assert said[0].startswith("broker pulsar://127.0.0.1:1: 12 topics wait, such as ")


@pytest.mark.parametrize("seed", range(20))
def test_trouble_that_comes_and_goes_is_told_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again if ten times as many topics have it; its end, after a minute without it."""
    monkeypatch.setattr(trouble, "CALM_SECONDS", 60.0)
    draw, said, now = Random(seed), list[str](), 0.0
    troubles, kind = trouble.Troubles(said.append), trouble.Trouble("b", "waits", "topics wait")
    most = draw.choice([9, 99, 200])
    for _ in range(100):
        for topic in range(most):
            if draw.random() < 0.5:
                troubles.note(f"t{topic}", kind, f"why {draw.random()}")
            elif draw.random() < 0.5:
                troubles.over(f"t{topic}")
        now += draw.uniform(0, 50)
        troubles.tell(now)
    assert 1 <= len([each for each in said if "wait" in each]) <= len(str(most))
    assert not [each for each in said if "go" in each]
    for topic in range(most):
        troubles.over(f"t{topic}")
    said.clear()
    troubles.note("t0", kind, "why")
    troubles.tell(now)
    troubles.over("t0")
    said.clear()
    for _ in range(3):
        now += 59
        troubles.tell(now)
    assert len(said) == 1
    assert said[0].endswith((": all go on", ": goes on"))


class Guarded(Rest):
    """An admin API that tells nobody which rules it has."""

    def call(self, method: str, path: str, body: Any = None) -> Said:
        rules = path.startswith(("/brokers", "/namespaces")) or path.count("/") > 4
        asked = path.partition("?")[0].endswith(("tats", "/partitions", "/internal-info"))
        return Said(403, {"reason": "no"}) if rules and not asked else super().call(method, path, body)


def test_a_mirror_says_what_a_look_is_worth(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the topic rests, how late the look came, and which rules are unknown. At rest, nothing else is written of it."""
    monkeypatch.setattr(mirroring, "_QUIET_SECONDS", 0)
    monkeypatch.setattr(mirroring, "SLOWEST", 16)
    folder, topic = tmp_path / "log", f"persistent://{namespace}/t"
    publish(client, topic, 3)
    client.subscribe(topic, "s").close()

    def looks() -> list[dict[str, Any]]:
        return [each for each in records(folder) if each["command"] == "MIRROR"]

    due = iter(range(100))
    look = MirroredCluster.look

    def in_time(self: Any, name: str, **more: Any) -> Look:
        at = now + 10 * next(due)
        return look(self, name, **more)._replace(time=at)

    now = time.time_ns() // 1_000_000
    monkeypatch.setattr(MirroredCluster, "look", in_time)
    monkeypatch.setattr(mirroring, "SLOWEST", 0)
    mirror(broker.service_url, rest, [topic], folder, 12)
    assert [each.get("resync", False) for each in looks()] == [False, True]
    assert looks()[1]["since"] == now + 20  # the look before it, and not the record
    assert not any("late" in each or "unknown" in each for each in looks())
    now += 3_600_000
    mirror(broker.service_url, Guarded(rest.url), [topic], folder, 1)
    third = looks()[2]
    assert third["resync"]
    assert 3_500_000 < third["late"] <= 3_600_000
    assert third["unknown"] == ["settings", "policies of the namespace", "policies of the topic"]


@pytest.mark.parametrize("seed", range(20))
def test_the_end_of_trouble_is_that_of_all_that_had_it(seed: int) -> None:
    """Also of what has got it after it was told."""
    draw, said = Random(seed), list[str]()
    troubles, kind = trouble.Troubles(said.append), trouble.Trouble("b", "waits", "topics wait")
    having = dict.fromkeys(f"t{draw.choice([1, 1, 2, 3])}" for _ in range(draw.randrange(1, 5)))
    for now, topic in enumerate(having):
        troubles.note(topic, kind, "why")
        troubles.tell(now)
        if draw.random() < 0.5 and topic != [*having][-1]:
            troubles.note([*having][-1], kind, "why")
            troubles.over(topic)
    for topic in having:
        troubles.over(topic)
    troubles.tell(100)
    (first, *_) = having
    assert said == [f"{first}: waits: why", "b: all go on" if len(having) > 1 else f"{first}: goes on"]


@pytest.mark.parametrize("seed", range(10))
def test_shares_add_up(seed: int) -> None:
    """Whoever takes all turns gets the average. A pause gives no burst."""
    draw = Random(seed)
    each = draw.choice([0.1, 0.25, 1.0, 2.5, 10])
    shares, taken = mirroring.Shares(each), 0
    for number in range(1, 200):
        turns = shares.next()
        shares.spend(turns)
        taken += turns
        assert abs(taken - number * each) <= 1
    for _ in range(50):
        assert shares.next() <= each + 1
    shares.spend(1000)
    assert shares.next() <= each


def test_policies_have_their_share_although_all_topics_are_due(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1000 calls in a round a quarter, which is 10 topics. The looks at each of 20 topics would take all."""
    monkeypatch.setattr(mirroring, "_MOST_CALLS", 100_000)
    topics = [f"persistent://{namespace}/{number}" for number in range(20)]
    for topic in topics:
        publish(client, topic, 1)
    asked, looked = list[str](), list[str]()
    of_topic, look = ClusterPolicies.of_topic, MirroredCluster.look

    def asking(self: Any, topic: str, **more: Any) -> Any:
        asked.append(topic)
        return of_topic(self, topic, **more)

    def looking(self: Any, topic: str, **more: Any) -> Any:
        looked.append(topic)
        rest.calls += 98
        return look(self, topic, **more)

    monkeypatch.setattr(ClusterPolicies, "of_topic", asking)
    monkeypatch.setattr(MirroredCluster, "look", looking)
    _, said = mirror(broker.service_url, rest, [namespace], tmp_path / "log", 6)
    assert said == []
    counts = [asked.count(topic) for topic in topics]
    assert min(counts) >= 2
    assert max(counts) <= min(counts) + 1
    assert len(asked) <= 72  # and what is too little for another look
    assert min(looked.count(topic) for topic in topics) >= 2


def test_urls_of_several_brokers_of_which_the_first_is_away(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str
) -> None:
    topic, folder = f"persistent://{namespace}/t", tmp_path / "log"
    publish(client, topic, 3)
    urls = of_all(refusing("pulsar"), refusing("pulsar"), broker.service_url)
    several = Rest(of_all(refusing("http"), rest.url))
    _, said = mirror(urls, several, [topic], folder, 3, lambda: publish(client, topic, 1))
    assert said == []
    is_twin(rest, folder, topic)
    assert len(positions(folder, topic)) == 5


@pytest.mark.parametrize("redirects", [0, 1, 3])
def test_whatever_calls_take_a_round_has_no_more_than_it_may(
    redirects: int,
    client: Any,
    broker: Running,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no fewer, if there is enough to do: more is due in each round than 400 calls can tell."""
    monkeypatch.setattr(mirroring, "_MOST_CALLS", 40_000)
    for number in range(60):
        client.create_producer(f"persistent://{namespace}/{number}").close()

    class Redirected(Rest):
        def call(self, method: str, path: str, body: Any = None) -> Said:
            self.calls += redirects
            return super().call(method, path, body)

    rest, counts = Redirected(str(broker.server.admin_url)), list[int]()
    mirror(broker.service_url, rest, [namespace], tmp_path / "log", 9, lambda: counts.append(rest.calls))
    rounds = [after - before for before, after in pairwise(counts)]
    unit = 26 * (1 + redirects)  # the policies of a topic are asked for as a whole
    assert all(400 - 2 * unit <= each <= 400 + 2 * unit for each in rounds[1:]), rounds


@pytest.mark.parametrize(
    ("answers", "got"), [(lambda _: [], ["CONNECT"]), (connected, ["CONNECT", "SUBSCRIBE", "PING"])]
)
def test_topics_of_a_broker_that_can_not_be_reached_do_not_hold_up_others(
    answers: Any,
    got: list[str],
    client: Any,
    rest: Rest,
    broker: Running,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes connections, and says nothing more, or nothing after that."""
    monkeypatch.setattr(reading_client, "_CONNECT_SECONDS", 1.0)
    folder, topics = tmp_path / "log", [f"persistent://{namespace}/{name}" for name in "abcdef"]
    for topic in topics:
        publish(client, topic, 3)
    silent = Scripted(answers)
    away = {*topics[:4]}
    first = Scripted(redirecting(lambda topic: silent.url if topic in away else broker.service_url))
    _, said = mirror(first.url, rest, [namespace], folder, 5)
    assert silent.got == got
    assert len(said) == 1
    assert said[0].startswith(f"broker {silent.url}: 4 topics wait, such as {topics[0]}: ")
    assert {topic: len(positions(folder, topic)) for topic in topics} == dict.fromkeys(
        topics[:4], 0
    ) | dict.fromkeys(topics[4:], 3)
    away.clear()
    mirror(first.url, rest, [namespace], folder, 2)
    is_twin(rest, folder, *topics)
    silent.close()
    first.close()


def test_a_topic_that_is_not_given_any_more_stays_as_it_is(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str
) -> None:
    folder, topics = tmp_path / "log", [f"persistent://{namespace}/{name}" for name in "ab"]
    for topic in topics:
        publish(client, topic, 3)
    mirror(broker.service_url, rest, topics, folder)
    publish(client, topics[1], 3)
    mirror(broker.service_url, rest, topics[:1], folder, 2)
    twin = is_twin(rest, folder, topics[0])
    stats = twin.broker.topic_stats(topics[1])
    assert stats is not None
    assert stats["internal"]["numberOfEntries"] == 3


def test_what_a_log_folder_must_be(rest: Rest, broker: Running, tmp_path: Path) -> None:
    with LogFolder(tmp_path / "log"), pytest.raises(InUse), LogFolder(tmp_path / "log"):
        pass
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "commands.jsonl").write_text("{}\n")
    with pytest.raises(InTheWay), LogFolder(tmp_path / "other"):
        pass
    with LogFolder(tmp_path / "log") as log:
        assert [*log.read()] == []
    path = tmp_path / "log" / "000000000001.jsonl"
    for damage in (
        b'{"timestamp":1,', b'{"timestamp":1}\n{"a"\n{"timestamp":2}\n', b"[1]\n", b"\0\0\n", b'{"timestamp":1,"x":"\xff"}\n'
    ):  # fmt: skip
        path.write_bytes(damage)
        with LogFolder(tmp_path / "log") as log:
            if damage.count(b"\n"):
                with pytest.raises(BadLog, match="damaged"):
                    [*log.read()]
            else:
                assert [*log.read()] == []
    (tmp_path / "log" / "notes.txt").write_text("")
    with pytest.raises(InTheWay, match=r"notes\.txt"), LogFolder(tmp_path / "log"):
        pass


@pytest.mark.parametrize("value", [b'{"x":"\xff"}', b"\xff", b"{", b"", b"[" * 9_000, None])
def test_a_record_of_kafka_that_is_no_command_is_none(value: bytes | None) -> None:
    assert journal._command(value) is None


def test_what_can_not_be_mirrored(rest: Rest, broker: Running, tmp_path: Path) -> None:
    for names, words in (
        ("non-persistent://a/b/c", "not persistent"),
        ("public/default/none", "404"),
    ):
        with pytest.raises(NotMirrored, match=words):
            mirror(broker.service_url, rest, [names], tmp_path / "log")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--to LOG_DIR or --ingress"),
        (["--to", "a", "--ingress", "kafka://h:1/t"], "--to LOG_DIR or --ingress"),
        (["--to", "a", "--partitions", "3"], "for --ingress"),
        *(
            (
                ["--to", "a", "--entries", "sampled", "--payloads", each],
                "--payloads is for entries that are read",
            )
            for each in PayloadsChoice
        ),
        (["--to", "a", "--every", "5"], "expected a number and a unit"),
        (["--to", "a", "--every", "10ms"], "1s to 1h"),
        (["--to", "a", "--admin-url", "localhost"], "expected http://"),
        (["--to", "a", "--service-url", "http://x"], "pulsar://"),
        (["--to", "a", "--admin-url", "http://127.0.0.1:1"], "can't be reached"),
        (["--ingress", "kafka:/t"], "kafka://HOST:PORT/TOPIC"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["mirror", "public/default", *arguments])
    assert found.exit_code in (1, 2)
    assert words in " ".join(found.output.replace("│", " ").split())
    assert [*tmp_path.iterdir()] == []


def test_the_command_goes_on_until_a_signal(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str
) -> None:
    topic, folder = f"persistent://{namespace}/t", tmp_path / "log"
    publish(client, topic, 3)

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if any(b"MIRROR" in path.read_bytes() for path in folder.glob("*.jsonl")):
                break
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    urls = ["--service-url", broker.service_url, "--admin-url", rest.url]
    found = CliRunner().invoke(app, ["mirror", topic, "--to", str(folder), *urls])
    thread.join()
    assert found.exit_code == 0, found.output
    assert "1 topic, 3 new entries" in found.output
    is_twin(rest, folder, topic)
    assert json.loads((folder / "mirror.json").read_text())["read_from"] == 1


class Odd(Rest):
    """An admin API that answers calls whose path has `wanted` as `change` says."""

    wanted = "no call"
    change: Callable[[Any], Any] = staticmethod(lambda value: value)

    def call(self, method: str, path: str, body: Any = None) -> Said:
        status, value = super().call(method, path, body)
        return Said(status, self.change(value) if self.wanted in path else value)


def with_(**fields: Any) -> Callable[[Any], Any]:
    return lambda value: {**value, **fields}


def of_cursor(**fields: Any) -> Callable[[Any], Any]:
    return lambda value: {
        **value,
        "cursors": {name: {**each, **fields} for name, each in value["cursors"].items()},
    }


@pytest.mark.parametrize(
    ("wanted", "change"),
    [
        ("/stats", with_(subscriptions=[])),
        ("/stats", with_(subscriptions={"s": 5})),
        ("/stats", with_(publishers=[5])),
        ("/stats", lambda value: with_(subscriptions={"s": {**value["subscriptions"]["s"], "unackedMessages": 10**30}})(value)),
        ("/stats", lambda value: with_(subscriptions={"s": {**value["subscriptions"]["s"], "unackedMessages": None}})(value)),
        ("/internalStats", with_(cursors=[])),
        ("/internalStats", with_(numberOfEntries=-1)),
        ("/internalStats", with_(ledgers=[{"ledgerId": 10**30, "entries": 1, "size": 1}])),
        ("/internalStats", of_cursor(markDeletePosition=None)),
        ("/internalStats", lambda _: "<html>"),
        ("/partitions", lambda _: {}),
        ("/partitions", lambda _: "<html>"),
        ("/partitions", lambda _: {"partitions": "3"}),
        ("/brokers/configuration", lambda _: []),
        ("/namespaces/", lambda _: []),
        ("/maxConsumers", lambda _: {"a": []}),
    ],
)  # fmt: skip
def test_an_odd_answer_leaves_out_what_it_is_about(
    wanted: str, change: Any, client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str
) -> None:
    """Nothing else, and not for longer than it comes."""
    topic, folder = f"persistent://{namespace}/t", tmp_path / "log"
    client.subscribe(topic, "s").close()
    publish(client, topic, 3)
    odd = Odd(rest.url)
    mirror(broker.service_url, odd, [topic], folder)

    def begin() -> None:
        publish(client, topic, 1)
        odd.wanted, odd.change = wanted, change

    _, said = mirror(broker.service_url, odd, [topic], folder, 4, begin)
    assert said or wanted == "/maxConsumers"
    odd.wanted = "no call"
    mirror(broker.service_url, odd, [topic], folder, 2)
    is_twin(rest, folder, topic)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("/brokers/configuration/runtime", "the brokers' settings, so the defaults hold"),
        ("/namespaces/{namespace}", "the policies of namespace {namespace}"),
        ("/t/maxConsumers", "the policies of persistent://{namespace}/t"),
    ],
)
def test_what_is_known_again_is_told(
    call: str,
    what: str,
    client: Any,
    broker: Running,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic that is being unloaded has no policies to show."""
    monkeypatch.setattr(mirroring, "_CONFIGURED_SECONDS", 0.0)
    topic, call, what = (
        f"persistent://{namespace}/t",
        call.format(namespace=namespace),
        what.format(namespace=namespace),
    )
    publish(client, topic, 1)

    class Away(Rest):
        is_away = True

        def call(self, method: str, path: str, body: Any = None) -> Said:
            away = self.is_away and path.partition("?")[0].endswith(call)
            return Said(412, {"reason": "it moves"}) if away else super().call(method, path, body)

    rest = Away(str(broker.server.admin_url))
    rounds = iter(range(9))

    def before() -> None:
        rest.is_away = next(rounds) < 2

    _, said = mirror(broker.service_url, rest, [topic], tmp_path / "log", 7, before)
    about = [each.removeprefix(f"{what}: ") for each in said if each.startswith(what)]
    assert [each.partition(":")[0] for each in about] == ["not in the log", "goes on"]


def test_a_call_without_an_answer_does_not_keep_it_from_ending(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirroring, "_PATIENCE_SECONDS", 0.1)
    topic, never = f"persistent://{namespace}/t", threading.Event()
    publish(client, topic, 3)

    class Silent(Rest):
        def call(self, method: str, path: str, body: Any = None) -> Said:
            if "tats" in path:
                never.wait(60)
            return super().call(method, path, body)

    stop = threading.Event()
    with LogFolder(tmp_path / "log") as log:
        made = ClusterMirror(broker.service_url, Silent(rest.url), [topic], log, say=print)
        threading.Timer(0.3, stop.set).start()
        begun = time.monotonic()
        made.run(stop)
        assert time.monotonic() - begun < 30
    never.set()


def test_names_like_those_of_partitions(
    client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str
) -> None:
    orphan = f"persistent://{namespace}/orphan-partition-3"
    publish(client, orphan, 3)
    publish(client, f"persistent://{namespace}/t", 1)
    with pytest.raises(NotMirrored, match="name its topic"):
        mirror(broker.service_url, rest, [orphan], tmp_path / "log")
    _, said = mirror(broker.service_url, rest, [namespace], tmp_path / "log")
    assert said == [
        f"{orphan}: left out: it is named like a partition, and persistent://{namespace}/orphan has none"
    ]
    assert positions(tmp_path / "log", orphan) == []


@pytest.mark.parametrize(
    "state",
    [
        "",
        "{",
        '{"read_from":9,"sum":0}',
        '{"read_from":"000000000009.jsonl"}',
        sealed(b'{"read_from":"../x"}').decode(),
    ],
)
def test_a_note_that_is_wrong_costs_only_time(
    state: str, client: Any, rest: Rest, broker: Running, tmp_path: Path, namespace: str
) -> None:
    topic, folder = f"persistent://{namespace}/t", tmp_path / "log"
    client.subscribe(topic, "s").close()
    publish(client, topic, 3)
    mirror(broker.service_url, rest, [topic], folder)
    (folder / "mirror.json").write_text(state)
    mirror(broker.service_url, rest, [topic], folder)
    is_twin(rest, folder, topic)
    assert len(positions(folder, topic)) == 3


@pytest.mark.parametrize(
    "line",
    [
        '{"timestamp":"x","command":"TICK"}',
        '{"timestamp":1,"topic":"t","command":"SEND","message_id":{}}',
        "{" * 5000,
    ],
)
def test_a_record_that_no_mirror_wrote(line: str, rest: Rest, broker: Running, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    mirror(broker.service_url, rest, [NAMESPACE], folder)
    path = folder / "000000000001.jsonl"
    written = path.read_bytes()
    path.write_bytes(written + sealed(line.encode(), int(written[-11:-3], 16)) + b"\n")
    with pytest.raises(BadLog, match="(?i)mirror into a new"):
        mirror(broker.service_url, rest, [NAMESPACE], folder)


def test_a_folder_that_is_removed(rest: Rest, broker: Running, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with pytest.raises(BadLog, match="was removed"):
        mirror(broker.service_url, rest, [NAMESPACE], folder, 3, lambda: shutil.rmtree(folder))


@pytest.mark.parametrize("begun", [False, True])
def test_a_log_that_is_begun_waits_for_its_cluster(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a new one, the URL may be wrong."""
    monkeypatch.setattr(ClusterMirror, "run", lambda *_: MirrorTotals(0, 0, 0, 0))
    if begun:
        with LogFolder(tmp_path / "log"):
            pass
    urls = ["--service-url", "pulsar://127.0.0.1:1", "--admin-url", "http://127.0.0.1:1"]
    ran = CliRunner().invoke(app, ["mirror", "public/default", "--to", str(tmp_path / "log"), *urls])
    assert ran.exit_code == (0 if begun else 1), ran.output
    assert ("can't be reached" in ran.output) is not begun
    assert (tmp_path / "log").exists() is begun
