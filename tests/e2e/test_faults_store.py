"""Full disks, and damaged or missing files of the store, cause an error that says what to do, or no harm."""

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.entries import EntryNotFound
from sinks.cache import INDEXES, ROWS
from sinks.ledger_store import LedgerStore
from sinks.storage import RESTORE, Damaged, NotStored, Storage
from streaming.fold.columns import Fold
from streaming.log.partition import partition_log
from streaming.log.table import slices
from tests.e2e.traffic import Traffic
from tests.sinks.helpers import TOPIC, closed, deleted, output, receipts, tree

pytestmark = pytest.mark.feature("J2")

SEGMENT = "segments/00000/0-000000000-000000000-0.parquet"
FOLDER = "ledgers/persistent%3A%2F%2Fpublic%2Fdefault%2Forders"
SEALED = f"{FOLDER}/000000001.parquet"


def unshares() -> bool:
    """Whether a process may mount file systems in its own namespace."""
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(not unshares(), reason="this system lets nobody mount a small disk")
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    command = ["unshare", "-rm", sys.executable, "-m", "tests.e2e.full_disk", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said) > 10
    store = f"{tmp_path}/disk/store"
    for sentence in said:
        assert re.fullmatch(f"{store}/.* could not be written: No space left on device", sentence)
    for folder in ("segments", "ledgers", "tables"):
        assert any(sentence.startswith(f"{store}/{folder}/") for sentence in said)


def test_what_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "kind=X").write_text("a file where a folder should be")
    with pytest.raises(NotStored, match=f"^{tmp_path}/kind=X/a could not be written: .*[a-z]$"):
        Storage(str(tmp_path)).publish("kind=X/a", lambda stream: stream.write(b""))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    """A sealed ledger, and two segments with an open one. Clears the process's cache of it."""
    store = LedgerStore(str(tmp_path))
    store.write(0, 0, output([*receipts(1, 0, 19), closed(1, 20), *receipts(2, 0, 14)]))
    store.write(1, 0, output(receipts(2, 15, 19), offset=100))
    forget()
    yield store
    forget()


def forget() -> None:
    INDEXES.clear()
    ROWS.clear()


def everything(store: LedgerStore) -> list[Any]:
    """What the broker, the responses and a merge read."""
    forget()
    reader = store.reader(0)
    found: list[Any] = [
        ask(TOPIC, ledger, 0, 19) for ledger in (1, 2) for ask in (reader.read, reader.payloads)
    ]
    return [*found, *(t.to_pylist() for file in reader.segments() for t in file.entries_without([]))]


@pytest.mark.parametrize("name", [SEGMENT, SEALED])
def test_a_flipped_bit_is_an_error_or_changes_nothing(store: LedgerStore, tmp_path: Path, name: str) -> None:
    file, dice = tmp_path / name, random.Random(1)
    whole, good = file.read_bytes(), everything(store)
    # Everywhere, also in the footer's list of columns, where a bit turns text into bytes.
    columns = whole.find(b"producer_name", whole.rfind(b"schema"))
    places = [*dice.sample(range(len(whole)), 250), *range(columns - 8, columns + 24)]
    damaged = 0
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 1 << dice.randrange(8)
        file.write_bytes(changed)
        try:
            assert everything(store) == good, place
        except (Damaged, EntryNotFound):
            damaged += 1
    assert damaged > 100


CUTS: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda whole: whole[: len(whole) // 2],
    "empty": lambda whole: b"",
    "rubbish": lambda whole: b"no Parquet",
    "without its end": lambda whole: whole[:-9],
    "another's index": lambda whole: whole.replace(b'"magnetar"', b'"magnetaR"').replace(b"magnetar\x18", b"magnetaR\x18"),
}  # fmt: skip
SAID = {
    SEGMENT: "entries of ingress partition 0, micro-batches 0 to 0",
    SEALED: "ledger 1 of persistent://public/default/orders",
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", SAID)
def test_a_damaged_file_is_named(store: LedgerStore, tmp_path: Path, name: str, cut: str) -> None:
    whole = (tmp_path / name).read_bytes()
    changed = CUTS[cut](whole)
    assert changed != whole
    (tmp_path / name).write_bytes(changed)
    before = tree(tmp_path)
    with pytest.raises(Damaged) as raised:
        store.reader(0).payloads(TOPIC, 1 if name == SEALED else 2, 0, 19)
    said = str(raised.value)
    assert said.startswith(f"{tmp_path}/{name} ({len(changed):,} bytes, {SAID[name]}) is damaged: ")
    assert said.endswith(f". {RESTORE}")
    assert "\n" not in said
    if name == SEGMENT:  # and a merge fails without it
        with pytest.raises(Damaged):
            store.write(2, 0, output(receipts(2, 20, 20), offset=200))
    else:
        assert len(store.reader(0).payloads(TOPIC, 2, 0, 19)) == 20  # other ledgers are still readable
    assert tree(tmp_path) == before
    (tmp_path / name).write_bytes(whole)
    assert len(everything(store)) > 4


@pytest.mark.parametrize("name", SAID)
def test_a_missing_file_is_named(store: LedgerStore, tmp_path: Path, name: str) -> None:
    (tmp_path / name).unlink()
    ledger = 1 if name == SEALED else 2
    with pytest.raises(EntryNotFound) as raised:
        store.reader(0).payloads(TOPIC, ledger, 0, 19)
    assert str(raised.value) == (
        f"entry {ledger}:0 of {TOPIC} is not in {tmp_path}: a file is missing ({FOLDER}/00000000{ledger}.parquet or one "
        f"of segments/00000), or store and checkpoint are from different points in time. {RESTORE}"
    )
    if name == SEGMENT:
        with pytest.raises(EntryNotFound, match="lacks its entries 0..14: a segment file is missing"):
            store.write(2, 0, output([closed(2, 20)], offset=200))


def test_a_damaged_note_of_deletions_is_named(store: LedgerStore, tmp_path: Path) -> None:
    store.write(2, 0, output([deleted(1, 20)], offset=200))
    (note,) = (tmp_path / "deletions").iterdir()
    note.write_bytes(note.read_bytes()[:9])
    with pytest.raises(Damaged, match=f"^{note} .ledgers that retention deletes. is damaged: .*{RESTORE}"):
        LedgerStore(str(tmp_path)).begin(3)


def test_an_index_without_a_checksum_is_read(store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in stores written before the checksum existed."""
    good = everything(store)
    monkeypatch.setattr("sinks.entry_file._CHECKSUM", b"unknown")
    assert everything(store) == good


def test_the_broker_hands_on_what_the_store_says(tmp_path: Path) -> None:
    """Unchanged: `ApplyError` would call it a bug in Magnetar and name a harmless record."""
    records = partition_log(Traffic(1, 1_700_000_000_000).write(400), 1)
    store = LedgerStore(str(tmp_path))
    fold = Fold(store)
    before, after = slices(records, 2)
    for partition, rows in fold.apply(before):
        store.write(0, partition, rows)
    for file in tmp_path.rglob("*.parquet"):
        file.write_bytes(b"")
    forget()
    with pytest.raises(Damaged, match="is damaged: Parquet file size is 0 bytes"):
        list(fold.apply(after))
