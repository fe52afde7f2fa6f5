"""Canaries beside a query: they go on after a crash at any step, begin anew when they missed something, and never harm the query."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from typer.testing import CliRunner

from sinks.storage import NotStored, Storage
from streaming.answers.whatif import settling
from streaming.answers.whatif.answer import DIFFERENCES, WhatIf
from streaming.broker.admin_requests import topic_path
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.canaries import beside
from streaming.canaries.beside import Canaries, CanarySource
from streaming.canaries.files import CanaryFiles, Marker, Settled
from streaming.canaries.partition import Place, _folds, _unpinned
from streaming.cli.app import app
from streaming.jobs.replay import load
from streaming.log.policy_files import PolicyError
from tests.answers.test_whatif import Record, T, flow, publish, subscribe, table
from tests.answers.test_whatif_rules import send
from tests.canaries.running import Running

pytestmark = pytest.mark.feature("J7")


def traffic(count: int = 120) -> pa.Table:
    """A message each 10 seconds, of which nothing is acked."""
    log = table([subscribe(), flow(0, 3), *(publish(10 * number, number) for number in range(count))])
    return load(log, partitions=1).records


class Beside:
    """A query, and its canaries."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder, self.names = folder, names or ("ttl", "keep")
        self.query = Running(folder)
        self.log, self.done = traffic(), 0
        self.notes: list[str] = []
        self.looks: list[WhatIf] = []
        self.canaries: Canaries | None = None

    def begin(self) -> None:
        """Start the query with its canaries."""
        sources = [CanarySource(name, str(self.folder / f"{name}.yaml")) for name in self.names]
        self.canaries = Canaries(
            self.query.store.url,
            sources,
            on_look=lambda found, _: self.looks.append(found),
            on_note=self.notes.append,
        )
        states = [] if self.query.state is None else [self.query.state]
        self.canaries.begin(states, self.query.batch, 1, self.query.store, None)

    def fold(self, count: int, *, noted: bool = True) -> None:
        """A micro-batch of so many records, and a tick."""
        part = self.log.slice(self.done, count)
        self.done += len(part)
        self.query.fold(part, part["timestamp"][-1].as_py() + 3, noted=noted)

    def fail(self) -> None:
        """Looks fail until the canaries give up."""
        assert self.canaries is not None
        self.canaries.committed(self.query.batch)
        for _ in range(beside.TRIES):
            self.canaries._try()

    def look_once(self) -> None:
        """As `look`, as the thread of the canaries does it."""
        assert self.canaries is not None
        self.canaries.committed(self.query.batch)
        self.canaries._try()

    def look(self) -> None:
        """The query has committed its micro-batches, and the canaries look."""
        assert self.canaries is not None
        self.canaries.committed(self.query.batch)
        self.canaries._look()


def rows(found: WhatIf | None) -> list[Any]:
    assert found is not None
    return [found.totals, found.records, found.summary.to_pylist(), found.differences.to_pylist()]


def told(folder: Path, *names: str) -> list[Any]:
    """What canaries that nothing befalls find."""
    own = Beside(folder, *names)
    own.query = Running(folder / "told")
    own.begin()
    for _ in range(4):
        own.fold(30)
        own.look()
    return rows(CanaryFiles(own.query.store.url).answer())


class Crash(BaseException):
    """The process ends."""


@pytest.mark.parametrize("at", range(1, 60))
def test_they_go_on_after_a_crash_at_any_step(folder: Path, at: int) -> None:
    """A step is a file that is published or deleted."""
    own, left = Beside(folder), at

    def dying(real: Any) -> Any:
        def act(self: Storage, path: str, *rest: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Crash
            return real(self, path, *rest)

        return act

    def survive(act: Callable[[], None]) -> None:
        with (
            mock.patch.object(Storage, "publish", dying(Storage.publish)),
            mock.patch.object(Storage, "delete", dying(Storage.delete)),
        ):
            try:
                act()
            except Crash:
                own.begin()

    survive(own.begin)
    for _ in range(4):
        own.fold(30)
        survive(own.look)
    assert own.notes == []
    own.look()
    assert rows(CanaryFiles(own.query.store.url).answer()) == told(folder)


def test_they_begin_with_what_the_query_has(folder: Path) -> None:
    own = Beside(folder)
    own.fold(60, noted=False)
    own.begin()
    own.fold(30)
    own.look()
    before, ttl, _ = own.looks[-1].totals
    assert before.expired == 0
    assert ttl.expired == ttl.differences["lost newly"] > 60, "more than came since"
    assert own.looks[-1].records == 30


def test_they_begin_anew_if_the_query_ran_without_them(folder: Path) -> None:
    own = Beside(folder)
    own.begin()
    own.fold(30)
    own.look()
    own.fold(30, noted=False)
    own.begin()
    assert own.notes == ["the canaries begin anew: the query ran without them"]
    own.fold(30)
    own.look()
    assert own.looks[-1].records == 30
    assert not CanaryFiles(own.query.store.url).folded.waiting(own.query.batch)


def test_a_damaged_marker_is_no_trouble_of_the_query(folder: Path) -> None:
    own = Beside(folder)
    own.begin()
    own.fold(30)
    (folder / "store" / "canaries" / "canaries.json").write_text("{")
    own.begin()
    assert "begin anew" in own.notes[0]
    assert "canaries.json (which looks of the canaries count) is damaged" in own.notes[0]


def test_another_version_begins_anew(folder: Path) -> None:
    own = Beside(folder)
    own.begin()
    with mock.patch.object(beside, "__version__", "9.9"):
        own.begin()
    assert "can't go on with 9.9" in own.notes[0]


def test_others_come_and_go(folder: Path) -> None:
    own = Beside(folder)
    own.begin()
    own.fold(60)
    own.look()
    first = own.looks[-1].totals
    own.names = ("nothing", "ttl")
    own.begin()
    assert own.notes == []
    assert [each.policies for each in own.looks[-1].totals] == ["baseline", "nothing", "ttl"]
    assert own.looks[-1].totals[2] == first[1]
    assert not any(own.looks[-1].totals[1].differences.values())
    (folder / "ttl.yaml").write_text("broker: {ttlDurationDefaultInSeconds: 90}\n")
    own.begin()
    assert own.looks[-1].totals[2].expired == 0, "with other policies, it is another canary"


def test_what_a_canary_found_goes_with_it(folder: Path) -> None:
    """Another one of its name does not get it, and those that stay keep theirs."""
    (folder / "short.yaml").write_text("broker: {ttlDurationDefaultInSeconds: 30}\n")
    (folder / "keep.yaml").write_text(
        "broker: {managedLedgerMaxEntriesPerLedger: 5, managedLedgerMinLedgerRolloverTimeMinutes: 0}\n"
    )
    own = settled(folder, "ttl", "short")
    before = of(own)
    assert len(before["ttl"]) > 100
    assert CanaryFiles(own.query.store.url).marker().settled[0]  # type: ignore[union-attr]
    own.names = ("short", "keep")
    (folder / "keep.yaml").write_text((folder / "nothing.yaml").read_text())
    own.begin()
    assert of(own) == {"short": before["short"]}
    (folder / "short.yaml").write_text("broker: {ttlDurationDefaultInSeconds: 31}\n")
    own.begin()
    assert of(own) == {}
    assert (
        CliRunner().invoke(app, ["canaries", own.query.store.url, "--out", str(folder / "answer")]).exit_code
        == 0
    )


def settles() -> pa.Table:
    """Messages that nobody acks, and then the end of the subscription: the ledgers go."""
    log = table(
        [subscribe(), flow(0, 3), *(publish(10 * number, number) for number in range(200)), (2500, T, {"command": "UNSUBSCRIBE", "connection": "s", "consumer_id": 1, "request_id": 9}), *(publish(2600 + number, 200 + number) for number in range(40))],
        managedLedgerMaxEntriesPerLedger=5, managedLedgerMinLedgerRolloverTimeMinutes=0, messageExpiryCheckIntervalInMinutes=1,
    )  # fmt: skip
    return load(log, partitions=1).records


def settled(folder: Path, *names: str) -> Beside:
    """A query whose canaries have found differences that are settled."""
    own = Beside(folder, *names)
    own.log = settles()
    with mock.patch.object(settling, "AT_LEAST", 1):
        own.begin()
        for _ in range(4):
            own.fold(60)
            own.look()
    return own


def of(own: Beside) -> dict[str, list[Any]]:
    """The differences, by policies."""
    found = CanaryFiles(own.query.store.url).answer()
    assert found is not None
    rows: dict[str, list[Any]] = {}
    for each in found.differences.to_pylist():
        rows.setdefault(each["policies"], []).append(each)
    return rows


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40, 300])
def test_files_of_settled_differences_are_few(folder: Path, count: int) -> None:
    """Their number grows with the logarithm of that of looks, and no row is lost or doubled."""
    files, settled = CanaryFiles(str(folder)), list[Settled]()
    for look in range(1, count + 1):
        nulls = {field.name: pa.nulls(1, field.type) for field in DIFFERENCES}
        row = pa.table(nulls | {"offset": pa.array([look])}, schema=DIFFERENCES)
        settled = [*files.write_settled(look, 0, row, settled)]
        marker = Marker("", 1, [], 0, look=look, settled={0: settled})
        if look % 50 == 0 or look == count:
            files.commit(marker)
    assert len(settled) <= 3 * 15
    assert sorted(row for each in files._differences(marker) for row in each["offset"].to_pylist()) == [
        *range(1, count + 1)
    ]


def test_what_they_can_not_fold_is_no_trouble_of_the_query(folder: Path) -> None:
    own = Beside(folder)
    own.begin()
    own.fold(30)
    assert own.canaries is not None
    own.canaries.committed(own.query.batch)
    with mock.patch.object(beside, "looked", side_effect=OSError("the store is away")):
        for _ in range(beside.TRIES - 1):
            own.canaries._try()
    own.canaries._try()
    assert own.looks[-1].records == 30
    assert own.notes == []
    own.fold(30)
    with mock.patch.object(beside, "looked", side_effect=ZeroDivisionError("a bug")):
        own.fail()
    assert own.notes == ["the canaries stop until the query is started again: ZeroDivisionError: a bug"]
    own.fold(30)
    own.canaries.committed(own.query.batch)
    own.canaries._try()
    assert not own.query.files.waiting(own.query.batch), "what nobody folds is deleted"
    own.begin()
    assert own.notes[1:] == ["the canaries begin anew: the query ran without them"]


@pytest.mark.parametrize("gone", [True, False])
def test_others_begin_anew_without_what_those_before_found(folder: Path, gone: bool) -> None:
    (folder / "short.yaml").write_text(
        "broker: {managedLedgerMaxEntriesPerLedger: 5, managedLedgerMinLedgerRolloverTimeMinutes: 0}\n"
    )
    own = settled(folder, "ttl", "short")
    for path in (folder / "store" / "canaries" / "differences" / "settled").iterdir():
        path.unlink() if gone else path.write_bytes(b"")
    own.names = ("ttl", "nothing")
    own.begin()
    assert own.notes[0].startswith("the canaries begin anew: ")
    own.begin()
    assert len(own.notes) == 1


def test_why_a_task_failed_is_said_without_a_traceback(folder: Path) -> None:
    lines = ["An exception was thrown from the Python worker:", "Traceback (most recent call last):", '  File "a.py", line 1, in b' * 20, "sinks.storage.NotStored: kept/1 could not be written: No space left on device", ""]  # fmt: skip
    own = Beside(folder)
    own.begin()
    own.fold(30)
    with mock.patch.object(beside, "looked", side_effect=PySparkException("\n".join(lines))):
        own.fail()
    assert own.notes == [
        "the canaries stop until the query is started again: kept/1 could not be written: No space left on device"
    ]


STOPPED = "the canaries stop until the query is started again: "


def test_that_their_files_are_gone_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = Beside(folder)
    own.begin()
    own.fold(30)
    shutil.rmtree(folder / "store" / "canaries")
    own.look_once()
    assert own.notes == [f"{STOPPED}their files in {folder}/store/canaries are gone"]
    assert [each for each in caplog.records if each.name.startswith(("streaming", "sinks"))] == []


def test_what_no_canary_can_judge_is_said_at_once_and_without_a_traceback(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A client's command is enough for it, on a topic with batches. Canaries are judged by it once, not three times, and begin anew behind it."""
    compaction = {"command": "ADMIN", "method": "PUT", "path": topic_path(T, "/compaction")}
    create = {
        "command": "PRODUCER",
        "connection": "p",
        "producer_id": 1,
        "request_id": 1,
        "producer_name": "p",
    }
    own = Beside(folder)
    own.log = load(
        table([(0, T, create), *(send(number, number, num_messages_in_batch=2) for number in (1, 2)), (10, T, compaction), *(publish(20 + number, 3 + number) for number in range(3))]),
        partitions=1,
    ).records  # fmt: skip
    own.begin()
    own.fold(5)
    own.look_once()
    (said,) = own.notes
    assert said.startswith(
        f"{STOPPED}partition 0, offset 4, topic '{T}', carrying out the command: {T} is compacted and has batches, "
    )
    assert said.endswith("What-if, advise and canaries keep none, and can't judge this")
    assert [each for each in caplog.records if each.name.startswith(("streaming", "sinks"))] == []
    own.begin()
    own.fold(3)
    own.look()
    assert own.looks[-1].records == 3
    assert len(own.notes) == 2


@pytest.mark.parametrize(
    "error", [OSError("the store is away"), NotStored("kept/1 could not be written: the disk is full")]
)
def test_a_store_that_is_away_is_told_without_a_traceback(
    error: Exception, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = Beside(folder)
    own.begin()
    own.fold(30)
    with mock.patch.object(beside, "looked", side_effect=error):
        own.fail()
    assert own.notes == [f"{STOPPED}{error}"]
    tried = f"a look of the canaries failed, and is tried again: {error}"
    said = [each for each in caplog.records if each.name.startswith(("streaming", "sinks"))]
    assert [each.getMessage() for each in said] == [tried] * (beside.TRIES - 1)
    assert not any(each.exc_info for each in said)


@pytest.mark.parametrize(
    ("name", "at"), [*itertools.product(("kept", "answer"), (0.0, 0.3, 0.6, 0.99)), ("folded", 0.6)]
)
def test_a_file_with_another_bit_is_noticed(folder: Path, name: str, at: float) -> None:
    own = Beside(folder)
    own.begin()
    own.fold(60)
    own.look()
    own.fold(60)
    [path] = (folder / "store" / "canaries" / name).iterdir()
    data = bytearray(path.read_bytes())
    data[int(at * len(data))] ^= 1
    path.write_bytes(data)
    if name == "answer":
        run = CliRunner().invoke(app, ["canaries", own.query.store.url])
        assert run.exit_code == 1
        assert "its checksum is wrong. Stop the query, remove the folder" in run.stderr
        return
    own.fail()
    assert "the canaries stop until the query is started again" in own.notes[0]
    own.begin()
    assert "the canaries begin anew" in own.notes[1]


def test_a_look_that_ends_meanwhile_takes_no_row_from_an_answer(folder: Path) -> None:
    own = Beside(folder)
    own.begin()
    own.fold(60)
    own.look()
    files, real = CanaryFiles(own.query.store.url), CanaryFiles._differences

    def later(self: CanaryFiles, marker: Marker) -> Any:
        if own.done == 60:
            own.fold(60)
            own.look()
        return real(self, marker)

    with mock.patch.object(CanaryFiles, "_differences", later):
        found = rows(files.answer())
    assert found == rows(files.answer())
    assert len(found[-1]) > 60


@pytest.mark.parametrize("name", ["open", "settled"])
def test_missing_differences_are_noticed(folder: Path, name: str) -> None:
    (folder / "keep.yaml").write_text(
        "broker: {managedLedgerMaxEntriesPerLedger: 5, managedLedgerMinLedgerRolloverTimeMinutes: 0}\n"
    )
    own = settled(folder)
    for path in (folder / "store" / "canaries" / "differences" / name).iterdir():
        path.unlink()
    run = CliRunner().invoke(app, ["canaries", own.query.store.url, "--json"])
    assert run.exit_code == 1
    assert "Stop the query, remove the folder" in run.stderr


def test_readers_that_come_and_go_are_forgotten(folder: Path) -> None:
    """Each has a name of its own. One of which the policies changed something stays in the answer."""
    own = Beside(folder)
    own.log = load(
        table([publish(0, 0), *(each for second in range(1, 400) for each in read(second))]), partitions=1
    ).records
    own.begin()
    sizes, rows = list[int](), list[int]()
    for _ in range(8):
        own.fold(100)
        own.look()
        [kept] = (folder / "store" / "canaries" / "kept").iterdir()
        sizes.append(kept.stat().st_size)
        rows.append(len(own.looks[-1].summary))
    assert own.notes == []
    assert max(rows[1:]) <= 2 * rows[0]
    assert max(sizes[4:]) < 2 * max(sizes[:2])


def read(second: int) -> list[Record]:
    """A reader that is there for a moment, and gets nothing."""
    name = f"reader-{second}"
    made = subscribe(second, name, "Exclusive", durable=False, initialPosition="Latest")
    return [made, flow(second, 1, name), (second, None, {"command": "CONNECTION_LOST", "connection": name})]


def test_a_note_that_is_missing_is_noticed(folder: Path) -> None:
    """The disk may have been full when the query made it."""
    own = Beside(folder)
    own.begin()
    own.fold(30)
    own.look()
    own.fold(30, noted=False)
    own.fold(30)
    own.fail()
    assert "could not note all that it folded" in own.notes[0]
    own.begin()
    assert own.looks[-1].records == 0
    own.fold(30)
    own.look()
    assert len(own.notes) == 2


def test_a_setting_that_the_admin_api_changed_can_be_changed_back(folder: Path) -> None:
    """Policies about other settings leave it as it is, and those about it win."""
    (folder / "ttl.yaml").write_text("broker: {dispatchThrottlingRatePerTopicInMsg: 7}\n")
    own = Beside(folder)
    name = "dispatchThrottlingRatePerTopicInMsg"
    admin = {"command": "ADMIN", "method": "POST", "path": f"/brokers/configuration/{name}/1"}
    back = {"command": "ADMIN", "method": "DELETE", "path": f"/brokers/configuration/{name}"}
    own.log = load(
        table([(0, None, admin), publish(1, 0), (2, None, back), publish(3, 1)]), partitions=1
    ).records
    own.fold(3, noted=False)

    def settings() -> list[int]:
        kept = CanaryFiles(own.query.store.url)
        marker = kept.marker()
        assert marker is not None
        states = _folds(
            Place(0, 1), marker.canaries, *_unpinned(marker.canaries), kept.kept(marker.kept[0], 0)
        ).states
        return [
            Broker.decode(each.broker, NoEntries()).config.dispatchThrottlingRatePerTopicInMsg
            for each in states
        ]

    own.begin()
    assert settings() == [1, 7, 1]
    own.fold(2)
    own.look()
    assert settings() == [0, 7, 0]


def test_they_give_up_when_they_are_too_slow(folder: Path) -> None:
    own = Beside(folder)
    own.begin()
    own.fold(30)
    assert own.canaries is not None
    with mock.patch.object(beside, "MOST_BYTES", 10):
        own.canaries.committed(own.query.batch)
        own.canaries._try()
    assert "slower than the query" in own.notes[0]


def test_they_fold_some_of_it_at_a_time(folder: Path) -> None:
    own, expected = Beside(folder), told(folder)
    with mock.patch.object(beside, "_LOOK_BYTES", 1):
        own.begin()
        for _ in range(4):
            own.fold(30)
        own.look()
    assert rows(CanaryFiles(own.query.store.url).answer()) == expected


def test_a_record_far_ahead_is_set_aside_by_both(folder: Path) -> None:
    own = Beside(folder)
    own.begin()
    part = own.log.slice(0, 60)
    own.query.fold(part, latest=part["timestamp"][40].as_py())
    own.look()
    assert own.looks[-1].quarantined == {"timestamp_ahead": 19}
    own.begin()
    assert own.notes == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttl", "expected NAME=FILE"),
        ("=ttl.yaml", "expected NAME=FILE"),
        ("baseline=ttl.yaml", "choose another one"),
    ],
)
def test_what_is_no_canary(text: str, said: str) -> None:
    with pytest.raises(beside.CanaryError, match=said):
        CanarySource.parse(text)


def test_wrong_policies_are_refused_before_anything_starts(folder: Path) -> None:
    (folder / "wrong.yaml").write_text("broker: {ttlDurationDefaultInSecond: 60}\n")
    with pytest.raises(PolicyError, match="ttlDurationDefaultInSeconds"):
        Canaries(str(folder / "store"), [CanarySource("a", str(folder / "wrong.yaml"))])
    with pytest.raises(beside.CanaryError, match="twice"):
        Canaries(str(folder / "store"), [CanarySource("a", str(folder / "ttl.yaml"))] * 2)


def test_policies_of_a_topic_that_comes_later(folder: Path) -> None:
    (folder / "ttl.yaml").write_text(f"topics: {{{T}: {{messageTTL: 60}}}}\n")
    own = Beside(folder, "ttl")
    own.begin()
    own.fold(60)
    own.look()
    assert own.looks[-1].totals[1].expired > 30


def test_the_command(folder: Path) -> None:
    run = CliRunner().invoke(app, ["canaries", str(folder)])
    assert run.exit_code == 2
    assert "start it with --canary" in run.stderr
    own = Beside(folder)
    own.begin()
    own.fold(60)
    own.look()
    run = CliRunner().invoke(app, ["canaries", own.query.store.url, "--out", str(folder / "answer")])
    assert run.exit_code == 0, run.stderr
    assert "lost newly" in run.stdout
    assert (folder / "answer" / "report.html").is_file()
