"""A store that lost a file: what the checkpoint has committed is missed at the start, or nothing of it is lost."""

import pickle
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from schemas.effects import Effect, Quarantined
from schemas.errors import MagnetarError
from schemas.outputs import Rows
from sinks.base import CommittingSink, ForeignFiles, StoringSink
from sinks.begun import Begun, Planned
from sinks.ledger_store import LedgerStore, read_entries
from sinks.quarantine import read_quarantine
from sinks.storage import Damaged, Storage
from sinks.tables import first_batch, read_table
from streaming.jobs.live_sinks import LiveSinks
from tests.sinks.helpers import closed, deleted, output, receipt, receipts

pytestmark = pytest.mark.feature("J2", "J5")

REFUSED = Quarantined("t", "no_json", "it is no JSON", b"{")
OTHER = "persistent://public/default/others"
DUPLICATE = receipt(1, 0)._replace(ledger_id=-1, entry_id=-1)

MICRO_BATCHES: list[dict[int, list[Effect]]] = [
    {0: [*receipts(1, 0, 4), REFUSED], 1: receipts(1, 0, 2, topic=OTHER)},
    {0: [*receipts(1, 5, 9), closed(1, 10), *receipts(2, 0, 2)]},
    {},
    {0: [deleted(1, 10), closed(2, 3), closed(3, 0), *receipts(4, 0, 3), REFUSED], 1: [DUPLICATE]},
]
NOTHING_LOST = re.compile(r"begun\.json|deletions/.*")
"""A store without its note is as one of an earlier version. A deletion that is forgotten leaves a file too many."""


class Life:
    """A store and a checkpoint as far as they matter here. Each query begins anew, as after a restart."""

    def __init__(self, folder: Path) -> None:
        self.store, self.checkpoint = folder / "store", folder / "ckpt"

    def start(self) -> LiveSinks:
        sinks = LiveSinks(str(self.store), quality=False)
        sinks.begin(self.checkpoint)
        return sinks

    def run(self, number: int) -> None:
        sinks = self.start()
        self.note("offsets", number)
        is_repeat = sinks.begun.begin(planned(number), planned(number - 1) if number else None)
        counts: dict[tuple[int, str], int] = {}
        for sink in sinks.all:
            sink.begin(number)
            if is_repeat and isinstance(sink, StoringSink):
                sink.clear(number)
        for partition, effects in MICRO_BATCHES[number].items():
            rows: Rows = output(effects, partition=partition, offset=100 * number)
            for sink in sinks.all:
                pickle.loads(pickle.dumps(sink)).write(number, partition, rows)
            counts |= {(partition, kind): len(table) for kind, table in rows.items()}
        for sink in sinks.all:
            if isinstance(sink, CommittingSink):
                sink.commit(number, counts)
        sinks.end(counts)
        self.note("commits", number)

    def note(self, folder: str, number: int) -> None:
        (self.checkpoint / folder).mkdir(parents=True, exist_ok=True)
        (self.checkpoint / folder / str(number)).write_text(
            f'v1\n{{"batchTimestampMs":{planned(number).time}}}\n{{}}'
        )

    def copy(self, folder: Path) -> "Life":
        copy = Life(folder)
        shutil.copytree(self.store, copy.store)
        shutil.copytree(self.checkpoint, copy.checkpoint)
        return copy


def planned(number: int) -> Planned:
    return Planned(number, 1_700_000_000_000 + number, "[{}]")


def lived(folder: Path, numbers: Iterable[int]) -> Life:
    life = Life(folder)
    for number in numbers:
        life.run(number)
    return life


def files(store: Path) -> set[str]:
    return {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()}


def contents(life: Life) -> tuple[object, ...]:
    url = str(life.store)
    return read_entries(url), read_table(f"{url}/tables"), read_quarantine(url)


@pytest.mark.parametrize("last", range(len(MICRO_BATCHES)))
def test_each_file_of_the_newest_micro_batch(tmp_path: Path, last: int) -> None:
    before = lived(tmp_path / "before", range(last))
    before.store.mkdir(parents=True, exist_ok=True)
    life = lived(tmp_path / "life", range(last + 1))
    whole, said = contents(life), dict[str, str]()
    for number, name in enumerate(sorted(files(life.store) - files(before.store) | {"begun.json"})):
        copy = life.copy(tmp_path / str(number))
        (copy.store / name).unlink()
        if name.endswith(
            "/_delta_log/00000000000000000000.json"
        ):  # it has no rows, and the others nothing to go on from
            with pytest.raises(
                Damaged, match="_delta_log lacks its first commit. Restore it from a backup, or move"
            ):
                copy.start()
            continue
        if NOTHING_LOST.fullmatch(name):
            copy.start()
        else:
            with pytest.raises(Damaged) as refused:
                copy.start()
            said[name] = str(refused.value)
            assert f"which micro-batch {last} wrote, and the checkpoint has committed" in said[name]
            commit = copy.checkpoint / "commits" / str(last)
            assert f"Delete {commit} and start the query again" in said[name]
            commit.unlink()
            copy.run(last)
        copy.start()
        assert contents(copy) == whole, name
    for name, text in said.items():
        assert "_delta_log" in text if "_delta_log" in name else name in text
    folders = {name.partition("/")[0] for name in said}
    assert folders >= {"segments", "tables"} if MICRO_BATCHES[last] else not folders
    assert ("ledgers" in folders) == (last in {1, 3})
    assert ("quarantine" in folders) == (last in {0, 3})


@pytest.mark.parametrize("pattern", ["segments/*/*", "tables/_delta_log/*.json", "tables/kind=*/*/*"])
def test_a_micro_batch_without_rows_came_after_it(tmp_path: Path, pattern: str) -> None:
    """It can't be repeated, so there is another advice."""
    life = lived(tmp_path, range(3))
    newest = max(life.store.glob(pattern), key=lambda path: (path.parent.name == "00000", path.name))
    newest.unlink()
    with pytest.raises(Damaged, match=r"which micro-batch 1 wrote, .* not complete\. Restore both"):
        life.start()


def test_the_note_of_the_end_is_lost(tmp_path: Path) -> None:
    life = lived(tmp_path, range(2))
    Begun(str(life.store)).begin(planned(2), planned(1))
    for folder in ("offsets", "commits"):
        life.note(folder, 2)
    with pytest.raises(Damaged, match=r"lacks the last begun.json, which micro-batch 2 wrote"):
        life.start()


def test_a_store_that_is_one_micro_batch_older(tmp_path: Path) -> None:
    old = lived(tmp_path / "old", range(1))
    life = lived(tmp_path / "life", range(2))
    shutil.rmtree(life.store)
    shutil.copytree(old.store, life.store)
    with pytest.raises(ForeignFiles, match="up to 0, but the query is at micro-batch 1: the store is older"):
        life.start()


def test_what_was_not_committed_may_be_absent(tmp_path: Path) -> None:
    """The checkpoint's last commit was deleted, as the message says, and the query was killed before it wrote all of it again."""
    life = lived(tmp_path / "life", range(4))
    whole = contents(life)
    (life.checkpoint / "commits" / "3").unlink()
    for path in (*life.store.glob("segments/*/*-000000003-*"), *life.store.glob("ledgers/*/000000002.*")):
        path.unlink()
    life.start()
    life.run(3)
    assert contents(life) == whole


def test_the_folder_of_the_table_was_moved_away(tmp_path: Path) -> None:
    """As the message about a damaged table advises."""
    life = lived(tmp_path, range(2))
    shutil.rmtree(life.store / "tables")
    life.start()
    life.run(2)
    assert read_table(f"{life.store}/tables").num_rows == 0


def test_the_store_of_an_earlier_version(tmp_path: Path) -> None:
    """Its note does not say what was written, so nothing is missed."""
    life = lived(tmp_path, range(2))
    old = b'{"batch":1,"time":1700000000001,"offsets":"[{}]"}'
    (life.store / "begun.json").write_bytes(old)
    for path in life.store.glob("segments/*/*-000000001-*"):
        path.unlink()
    life.start()


@pytest.mark.parametrize(
    "name", [".DS_Store", "README", "1.txt", "foreign.parquet", "0-1.parquet", "1.json", "1.json~"]
)
def test_files_that_nobody_of_us_wrote(tmp_path: Path, name: str) -> None:
    """They are no part of the store, in whichever folder of it."""
    numbers = range(len(MICRO_BATCHES) - 1)
    life, other = lived(tmp_path / "life", numbers), lived(tmp_path / "other", numbers)
    folders = [life.store, *(path for path in life.store.rglob("*") if path.is_dir())]
    for folder in folders:
        if folder.name != "_delta_log" or not name.endswith(".json"):  # there, these are commits
            (folder / name).write_text("x")
    assert contents(life) == contents(other)
    assert LedgerStore(str(life.store)).ledgers() == LedgerStore(str(other.store)).ledgers()
    for each in (life, other):
        each.run(len(MICRO_BATCHES) - 1)
    assert contents(life) == contents(other)
    assert all(
        (folder / name).exists() for folder in folders if folder.is_dir() and folder.name != "_delta_log"
    )


@pytest.mark.parametrize(
    ("folder", "read"),
    [
        ("segments", read_entries),
        ("ledgers", read_entries),
        ("quarantine", read_quarantine),
        ("deletions", read_entries),
    ],
)
def test_a_file_in_place_of_a_folder(tmp_path: Path, folder: str, read: Callable[[str], object]) -> None:
    life = lived(tmp_path, range(len(MICRO_BATCHES)))
    shutil.rmtree(life.store / folder, ignore_errors=True)
    (life.store / folder).write_text("x")
    with pytest.raises(MagnetarError, match="is a file, and should be a folder"):
        read(str(life.store))


def test_a_table_without_its_first_commit(tmp_path: Path) -> None:
    life = lived(tmp_path, range(2))
    (life.store / "tables" / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(Damaged, match="lacks its first commit"):
        read_table(f"{life.store}/tables")
    with pytest.raises(Damaged, match="lacks its first commit"):
        first_batch(Storage(f"{life.store}/tables"))
