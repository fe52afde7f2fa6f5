import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyarrow import fs

from bench.memory import of_this_process
from sinks.cache import ByteLru
from sinks.entry_file import EntryFile
from sinks.ledger_store import LedgerStore
from sinks.storage import Storage
from tests.sinks.helpers import output, receipts


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    packed = pickle.dumps(Storage("store"))
    monkeypatch.chdir("/")
    pickle.loads(packed).publish("a/b", lambda stream: stream.write(b"x"))
    assert (tmp_path / "store" / "a" / "b").read_bytes() == b"x"


@pytest.mark.parametrize("scheme", ["{}", "file://{}", "file:{}"])
def test_paths_and_urls(tmp_path: Path, scheme: str) -> None:
    storage = Storage(scheme.format(tmp_path))
    assert storage.files("a") == []
    assert storage.info("a/b%2Fc") is None
    storage.publish("a/b%2Fc", lambda stream: stream.write(b"one"))
    storage.publish("a/b%2Fc", lambda stream: stream.write(b"three"))
    (info,) = storage.files("a")
    assert storage.relative(info) == "a/b%2Fc"
    assert info.size == 5
    with storage.open("a/b%2Fc") as file:
        assert file.read() == b"three"
    storage.delete("a/b%2Fc")
    storage.delete("a/b%2Fc")
    assert storage.info("a/b%2Fc") is None


def test_a_failed_publication_changes_nothing(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    storage.publish("a", lambda stream: stream.write(b"old"))

    def fail(stream: object) -> None:
        stream.write(b"new")  # type: ignore[attr-defined]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        storage.publish("a", fail)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert not (tmp_path / "_temporary").exists()


def test_publications_beside_each_other_share_the_folder_of_temporary_files(tmp_path: Path) -> None:
    """Each removes it when no other uses it, while others create it."""

    def publish(thread: int) -> None:
        storage = Storage(str(tmp_path))
        for number in range(1000):
            storage.publish(f"{thread}/{number}", lambda stream: stream.write(b"x"))

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(publish, range(6))) == [None] * 6


def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    cache = ByteLru(10)
    loads: list[str] = []

    def get(key: str, weight: int = 4) -> str:
        def load() -> tuple[str, int]:
            loads.append(key)
            return key.upper(), weight

        return cache.get(key, load)

    assert [get(k) for k in "abaca"] == list("ABACA")
    assert loads == ["a", "b", "c"]  # c took b's place
    get("b")
    assert loads == ["a", "b", "c", "b"]
    get("huge", 100)
    assert len(cache) == 1
    get("huge")
    assert loads[-1] == "huge"
    assert loads.count("huge") == 1


def test_the_cache_is_charged_for_what_a_footer_takes(tmp_path: Path) -> None:
    """It was charged for a tenth of it: a query's workers grew by a gigabyte an hour."""
    store = LedgerStore(str(tmp_path))
    store.write(0, 0, output(receipts(1, 0, 3)))
    storage = Storage(str(tmp_path))
    (info,) = storage.files("segments", recursive=True)
    charged = EntryFile.open(storage, info)._nbytes
    before = of_this_process()
    kept = [EntryFile(storage, info) for _ in range(1000)]
    assert (of_this_process() - before) / len(kept) < 1.2 * charged


def test_files_of_another_storage(tmp_path: Path) -> None:
    """On one disk, they become links; from elsewhere, copies. What was there is replaced: it may be that of another source."""
    source = Storage(str(tmp_path / "source"))
    source.publish("a/b", lambda stream: stream.write(b"x" * 100))
    here = Storage(str(tmp_path / "here"))
    here.take(source, "a/b")
    here.take(source, "a/b")
    assert (tmp_path / "here" / "a" / "b").samefile(tmp_path / "source" / "a" / "b")
    source.publish("a/b", lambda stream: stream.write(b"other"))
    assert (tmp_path / "here" / "a" / "b").read_bytes() == b"x" * 100
    here.take(source, "a/b")
    assert (tmp_path / "here" / "a" / "b").read_bytes() == b"other"

    elsewhere = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    copy = Storage("copies", elsewhere)
    copy.take(here, "a/b")
    assert (tmp_path / "copies" / "a" / "b").read_bytes() == b"other"
    assert not (tmp_path / "copies" / "a" / "b").samefile(tmp_path / "here" / "a" / "b")
    for storage in (here, copy):
        with pytest.raises(FileNotFoundError):
            storage.take(source, "a/none")
    assert source.info("a/none") is None
