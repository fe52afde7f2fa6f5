"""A mirror of a cluster that went back in time, as one that is restored from a backup: it does not go on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sinks.sums import sealed
from streaming.cli.app import app
from streaming.mirror import journal
from streaming.mirror import mirror as mirroring
from streaming.mirror.journal import OtherData
from streaming.mirror.last import LastEntry, went_back
from streaming.mirror.mirror import EntriesMode
from streaming.record.rest import Rest, Said
from tests.broker.kit import QUIET
from tests.mirror.kit import mirror, positions
from tests.mirror.test_mirror import is_twin, once, publish
from tests.server.conftest import Running, running

pytestmark = pytest.mark.feature("K4")

T = "persistent://public/default/t"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring, "SLOWEST", 0)
    monkeypatch.setattr(mirroring, "_CONFIGURED_SECONDS", 0.0)


class Cluster:
    """A broker whose data are stored, and a backup of them."""

    def __init__(self, folder: Path) -> None:
        self._data, self._backup = folder / "data", folder / "backup"

    def run(self, use: Callable[[Running, Rest], Any], **settings: Any) -> Any:
        with running(self._data, **QUIET, **settings) as broker:
            return use(broker, Rest(str(broker.server.admin_url)))

    def publish(self, count: int, *topics: str) -> None:
        def use(broker: Running, _: Rest) -> None:
            with broker.client() as client:
                for topic in topics or [T]:
                    publish(client, topic, count)

        self.run(use)

    def follow(self, folder: Path, rounds: int = 1, **more: Any) -> None:
        self.run(
            lambda broker, rest: mirror(broker.service_url, rest, ["public/default"], folder, rounds, **more)
        )

    def back_up(self) -> None:
        shutil.copytree(self._data, self._backup)

    def restore(self) -> None:
        shutil.rmtree(self._data)
        shutil.copytree(self._backup, self._data)


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}


@pytest.mark.parametrize(
    ("before", "after", "entries", "shown"),
    [
        (0, 9, "keep", "entry 2:4 is another message now"),
        (0, 9, "drop", "entry 2:4 is another message now"),
        (2, 9, "keep", "entry 2:4 is another message now"),
        (0, 3, "keep", "ledger 2 had 5 entries or more, and has 3"),
        (0, 3, "sampled", "ledger 2 had 5 entries or more, and has 3"),
        (2, 0, "keep", "ledger 2 is gone, and ledger 1 before it is not"),
        (2, 0, "sampled", "ledger 2 is gone, and ledger 1 before it is not"),
    ],
)
def test_a_cluster_that_was_restored(
    before: int, after: int, entries: EntriesMode, shown: str, tmp_path: Path
) -> None:
    """It has fewer entries than the log, or has others in their places already. The log stays as it was."""
    cluster, folder = Cluster(tmp_path), tmp_path / "log"
    cluster.publish(before)
    cluster.back_up()
    cluster.publish(5)
    for _ in range(2):  # it goes on with the same cluster
        cluster.follow(folder, entries=entries)
    cluster.restore()
    cluster.publish(after)
    log = written(folder)
    with pytest.raises(OtherData) as error:
        cluster.follow(folder, entries=entries)
    assert str(error.value) == (
        f"{T}: the cluster has other data than this log: {shown}. It was restored from a backup, has lost data, or is another cluster. Mirror "
        "into a new log"
    )
    assert written(folder) == log


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_topic_that_was_silent_for_long(
    is_noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start does not read its last entry in the log. It is noted; former versions did not do that, and do not mind it."""
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 1)
    monkeypatch.setattr(mirroring, "RESTATED_SECONDS", 0.0)
    cluster, folder, other = Cluster(tmp_path), tmp_path / "log", f"{T}2"
    cluster.publish(0, T, other)
    cluster.back_up()
    cluster.publish(5, T)
    cluster.follow(folder, 3)
    cluster.publish(5, other)
    cluster.follow(folder, 3)
    note = folder / "mirror.json"
    noted = json.loads(note.read_bytes())
    assert {*noted["last"]} == {T, other}
    begin = noted["read_from"]
    late = b"".join(path.read_bytes() for path in folder.glob("*.jsonl") if int(path.stem) >= begin)
    assert b"SEND" not in late
    if not is_noted:
        former = {"read_from": begin, "sum": noted["sum"]}
        note.write_bytes(sealed(json.dumps(former).encode()))
    cluster.restore()
    cluster.publish(9, T, other)
    if is_noted:
        with pytest.raises(OtherData, match="the cluster has other data"):
            cluster.follow(folder)
    else:
        cluster.follow(folder)


class Older(Rest):
    """An admin API that shows less of a topic than it has, so many times. `left`: how many of the next answers do."""

    left = 0

    def call(self, method: str, path: str, body: Any = None) -> Said:
        said = super().call(method, path, body)
        if path.endswith("/internalStats") and self.left:
            self.left -= 1
            said.value["ledgers"][-1]["entries"] = 0
            said.value["currentLedgerEntries"] = 2
        return said


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("entries", ["keep", "sampled"])
def test_a_mirror_that_runs_notices_it_at_once(entries: EntriesMode, times: int, tmp_path: Path) -> None:
    """One answer may be of two moments. A second one says the same."""
    folder = tmp_path / "log"
    with running(**QUIET) as broker:
        older = Older(str(broker.server.admin_url))

        def restore() -> None:
            older.left = times

        with broker.client() as client:
            publish(client, T, 5)

            def follow() -> None:
                mirror(
                    broker.service_url, older, ["public/default"], folder, 4, once(restore), entries=entries
                )

            if times == 1:
                follow()
                publish(client, T, 1)
                mirror(broker.service_url, older, ["public/default"], folder)
                is_twin(older, folder, T)
                return
            with pytest.raises(OtherData, match="had 5 entries or more, and has 2"):
                follow()
    assert len(positions(folder, T)) == 5


@pytest.mark.parametrize(
    ("ledgers", "shown"),
    [
        ({5: 3}, None),
        ({5: 9, 7: 1}, None),
        ({4: 1, 5: 3}, None),
        ({}, None),
        ({6: 0}, None),  # trimmed, or another topic of the same name
        ({6: 1, 9: 1}, None),
        ({5: 2}, "ledger 5 had 3 entries or more, and has 2"),
        ({5: 0, 6: 9}, "ledger 5 had 3 entries or more, and has 0"),
        ({4: 9}, "its last ledger was 5, and is 4"),
        ({3: 9, 4: 0}, "its last ledger was 5, and is 4"),
        ({4: 9, 6: 0}, "ledger 5 is gone, and ledger 4 before it is not"),
    ],
)
def test_what_shows_that_a_topic_went_back(ledgers: dict[int, int], shown: str | None) -> None:
    """The log has entry 5:2."""
    internal = {
        "ledgers": [{"ledgerId": id_, "entries": count, "size": 1} for id_, count in ledgers.items()],
        "currentLedgerEntries": 0,
    }
    assert went_back(LastEntry(5, 2), internal) == shown


def test_the_command_says_so(tmp_path: Path) -> None:
    """In one line."""
    cluster, folder = Cluster(tmp_path), tmp_path / "log"
    cluster.publish(0)
    cluster.back_up()
    cluster.publish(5)
    cluster.follow(folder)
    cluster.restore()

    def use(broker: Running, rest: Rest) -> Any:
        urls = ["--service-url", broker.service_url, "--admin-url", rest.url]
        return CliRunner().invoke(app, ["mirror", T, "--to", str(folder), *urls])

    ran = cluster.run(use)
    assert ran.exit_code == 2, ran.output
    said = ran.output.splitlines()[-1]
    assert said.startswith(f"magnetar: {T}: the cluster has other data than this log: ledger 2 had 5 entries")
