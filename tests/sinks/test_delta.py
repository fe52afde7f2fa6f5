"""The Delta table of a live query: each micro-batch once, whatever is repeated, compacted or removed."""

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake

from schemas.effects import SendReceipt
from schemas.outputs import Rows
from sinks import delta_log, tables
from sinks.base import CommittingSink, ForeignFiles
from sinks.delta_log import DeltaLog, NotATable
from sinks.storage import BadUrl, Damaged, NotStored, Storage
from sinks.tables import DeltaSink, TableSink, first_batch, read_table
from streaming.answers.history.folders import Folders
from tests.sinks.helpers import TOPIC, output, receipts
from tests.sinks.test_tables import EFFECTS

pytestmark = pytest.mark.feature("J2", "J5")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store" / "tables")


def batch(number: int, partition: int = 0) -> Rows:
    return output(EFFECTS, partition=partition, offset=100 * number)


def run(sink: DeltaSink, number: int, *, commit: bool = True) -> None:
    """A micro-batch of two partitions, written by copies of the sink, as Spark's tasks do."""
    sink.begin(number)
    counts: dict[tuple[int, str], int] = {}
    for partition in (0, 1):
        rows = batch(number, partition)
        pickle.loads(pickle.dumps(sink)).write(number, partition, rows)
        counts |= {(partition, kind): len(table) for kind, table in rows.items()}
    if commit:
        sink.commit(number, counts)


def expected(folder: Path, numbers: range) -> pa.Table:
    """The same micro-batches in plain Parquet."""
    sink = TableSink(str(folder))
    for number in numbers:
        for partition in (0, 1):
            sink.write(number, partition, batch(number, partition))
    return read_table(str(folder))


def parquet_files(url: str) -> int:
    return len(list(Path(url).rglob("kind=*/**/*.parquet")))


def compact(url: str, keep: timedelta | None = None, *, readable_hours: int = 0) -> delta_log.Compacted:
    with patch.object(delta_log, "READABLE_HOURS", readable_hours):
        return DeltaLog(Storage(url)).compact(keep)


def test_rows_are_in_the_table_once_they_are_committed(url: str, tmp_path: Path) -> None:
    sink = DeltaSink(url)
    assert isinstance(sink, CommittingSink)
    run(sink, 0)
    run(sink, 1, commit=False)
    assert read_table(url).equals(expected(tmp_path / "one", range(1)))
    run(sink, 1)
    assert read_table(url).equals(expected(tmp_path / "two", range(2)))


def test_a_file_is_looked_up_once(url: str) -> None:
    """On S3, each time is a request. Only a micro-batch that the table may have already is looked for before it is written."""
    asked: list[str] = []
    infos = Storage.infos

    def counted(self: Storage, paths: Iterable[str]) -> dict[str, Any]:
        names = list(paths)
        asked.extend(names)
        return infos(self, names)

    sink = DeltaSink(url)
    with patch.object(Storage, "infos", counted):
        for number in range(3):
            run(sink, number)
            assert len(asked) == len(set(asked)) == 2 * len(batch(number))
            asked.clear()
        run(DeltaSink(url), 2)
        assert set(Counter(asked).values()) == {2}


def test_a_repeated_micro_batch_is_committed_once(url: str, tmp_path: Path) -> None:
    run(DeltaSink(url), 3)
    run(DeltaSink(url), 3)  # after a crash before Spark's commit
    found = DeltaTable(url)
    assert found.version() == 1
    assert found.transaction_version("magnetar") == 3
    assert found.to_pyarrow_table().num_rows == len(expected(tmp_path / "one", range(3, 4)))


def test_a_micro_batch_repeated_after_its_compaction_adds_nothing(url: str, tmp_path: Path) -> None:
    sink = DeltaSink(url)
    run(sink, 0)
    run(sink, 1)
    compact(url)
    run(DeltaSink(url), 1)
    assert read_table(url).equals(expected(tmp_path / "two", range(2)))
    assert DeltaTable(url).to_pyarrow_table().num_rows == len(read_table(url))
    compact(url)  # and it deletes what was written again
    assert parquet_files(url) == len(DeltaTable(url).file_uris())


def test_a_micro_batch_without_rows_commits_nothing(url: str) -> None:
    sink = DeltaSink(url)
    sink.begin(0)
    sink.commit(0, {})
    assert DeltaTable(url).version() == 0


def test_the_table_of_another_query_is_refused(url: str) -> None:
    run(DeltaSink(url), 5)
    with pytest.raises(ForeignFiles, match="micro-batch 5.*at micro-batch 4"):
        DeltaSink(url).begin(4)
    DeltaSink(url).begin(5)


def test_plain_files_of_an_earlier_version_become_part_of_the_table(url: str, tmp_path: Path) -> None:
    plain = expected(Path(url), range(3))
    sink = DeltaSink(url)
    sink.begin(3)
    assert read_table(url).equals(plain)
    run(sink, 3)
    # The plain files came with the first commit: a crash can't come between.
    assert DeltaTable(url).version() == 1
    compact(url)
    assert read_table(url).equals(expected(tmp_path / "whole", range(4)))
    with pytest.raises(ForeignFiles):
        TableSink(str(tmp_path / "whole")).begin(1)


def test_a_table_without_new_columns_gets_them(url: str) -> None:
    names = [field.name for field in tables._ALL]
    DeltaLog(Storage(url)).create(pa.schema([field for field in tables._ALL if field.name != "policy"]), {})
    run(DeltaSink(url), 0)
    assert set(pa.schema(DeltaTable(url).schema()).names) == {*names, "kind", "date", "batch"}
    assert "policy" in DeltaTable(url).to_pyarrow_table().column_names


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:100], lambda data: data[:60] + b"?" * 9 + data[69:]]
)
def test_a_damaged_file_ends_a_compaction_with_a_sentence(url: str, damage: Callable[[bytes], bytes]) -> None:
    for number in range(3):
        run(DeltaSink(url), number)
    path = min(Path(url).rglob("kind=SEND_RECEIPT/**/*.parquet"))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        Damaged, match=f"^{url}/_delta_log or one of its files is damaged: .*Restore it from a backup"
    ):
        compact(url)


def test_compaction_leaves_one_file_per_kind_and_day_and_the_same_rows(url: str, tmp_path: Path) -> None:
    sink = DeltaSink(url)
    for number in range(20):
        run(sink, number)
    done = compact(url)
    assert done == (200, 5)
    assert parquet_files(url) == 5
    assert read_table(url).equals(expected(tmp_path / "plain", range(20)))
    assert read_table(url, "MESSAGE").equals(read_table(str(tmp_path / "plain"), "MESSAGE"))
    whole = DeltaTable(url).to_pyarrow_table()
    assert sorted(set(whole["batch"].to_pylist())) == list(range(20))
    assert compact(url) == (5, 5)


def test_replaced_files_stay_for_readers(url: str) -> None:
    sink = DeltaSink(url)
    run(sink, 0)
    run(sink, 1)
    reader = DeltaTable(url)
    compact(url, readable_hours=1)
    assert parquet_files(url) == 25
    assert reader.to_pyarrow_table().num_rows == DeltaTable(url).to_pyarrow_table().num_rows


def test_rows_may_be_committed_while_others_are_compacted(url: str, tmp_path: Path) -> None:
    sink = DeltaSink(url)
    for number in range(10):
        run(sink, number)
    done = threading.Event()
    errors: list[BaseException] = []

    def compacting() -> None:
        try:
            while not done.is_set():
                compact(url, readable_hours=1)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=compacting)
    thread.start()
    for number in range(10, 30):
        run(sink, number)
    done.set()
    thread.join()
    assert not errors
    assert read_table(url).equals(expected(tmp_path / "plain", range(30)))


def test_the_query_compacts_by_itself(url: str, caplog: pytest.LogCaptureFixture) -> None:
    sink = DeltaSink(url)
    with patch.object(tables, "COMPACT_EVERY", 4):
        for number in range(4):
            run(sink, number)
        sink.close()
        assert len(DeltaTable(url).file_uris()) == 5
        with patch.object(DeltaLog, "compact", side_effect=OSError("the disk said no")):
            for number in range(4, 8):
                run(sink, number)
            sink.close()
    assert "was not compacted: the disk said no" in caplog.text
    DeltaSink(url).close()


@pytest.mark.parametrize("starts_per_batch", [1, 2])
def test_a_query_that_ends_after_each_micro_batch_is_compacted_as_often_as_one_that_goes_on(
    starts_per_batch: int, url: str, tmp_path: Path
) -> None:
    """Two starts per micro-batch: the first one crashes after the commit of the table, before that of Spark."""
    calls: list[timedelta | None] = []
    files: list[int] = []
    own = DeltaLog.compact

    def counted(self: DeltaLog, keep: timedelta | None = None) -> delta_log.Compacted:
        calls.append(keep)
        return own(self, keep)

    keep = timedelta(days=3)
    with patch.object(tables, "COMPACT_EVERY", 4), patch.object(DeltaLog, "compact", counted):
        for number in range(24):
            for _ in range(starts_per_batch):
                sink = DeltaSink(url, keep)
                run(sink, number)
                sink.close()
            files.append(len(DeltaTable(url).file_uris()))
    assert calls == [keep] * 6
    # What is left of compactions, and at most four micro-batches of two partitions.
    kinds = len(batch(0))
    assert max(files) <= kinds + 4 * 2 * kinds
    assert max(files) == max(files[:8])
    assert read_table(url).equals(expected(tmp_path / "plain", range(24)))


def test_a_compaction_without_anything_to_do_counts(url: str) -> None:
    """Or else every start of a query with a micro-batch a day would look for something to do."""
    run(DeltaSink(url), 0)
    for _ in range(2):
        DeltaLog(Storage(url)).compact()
        again = DeltaLog(Storage(url))
        assert again.last_batch() == 0
        assert again.uncompacted() == 0


def test_a_compaction_that_fails_is_tried_again_by_the_next_start(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And by this one after as many commits."""
    with (
        patch.object(tables, "COMPACT_EVERY", 3),
        patch.object(DeltaLog, "compact", side_effect=OSError("no")) as compacting,
    ):
        sink = DeltaSink(url)
        for number in range(8):
            run(sink, number)
            sink.close()
        assert compacting.call_count == 2
        sink = DeltaSink(url)
        run(sink, 8)
        sink.close()
        assert compacting.call_count == 3
    assert caplog.text.count("was not compacted: no") == 3


def test_the_sink_knows_how_many_files_the_table_has(url: str) -> None:
    """Also one that goes on, after a repeated micro-batch, and after a compaction."""

    def files() -> int:
        return len(DeltaTable(url).file_uris())

    sink = DeltaSink(url)
    for number in (0, 1, 1, 2):
        run(sink, number)
        assert sink.files == files() > 0
    with patch.object(tables, "COMPACT_EVERY", 8):
        sink = DeltaSink(url)
        for number in range(3, 8):
            run(sink, number)
            assert sink.files == files()
        before = files()
        sink.close()  # the compaction is done
        assert files() < before
        run(sink, 8)
        assert sink.files == files()


def test_files_that_are_missing_are_not_committed(url: str) -> None:
    sink = DeltaSink(url)
    run(sink, 0)
    with pytest.raises(NotStored, match="micro-batch 1, partition 3 and kind MESSAGE are missing"):
        sink.commit(1, {(3, "MESSAGE"): 1})
    assert DeltaTable(url).transaction_version("magnetar") == 0


@pytest.fixture
def day() -> Iterator[list[datetime]]:
    """The present time of the log, which a test may set."""
    now = [datetime(2026, 11, 1, 12, tzinfo=UTC)]
    with patch.object(delta_log, "datetime", wraps=datetime) as clock:
        clock.now.side_effect = lambda zone: now[0].astimezone(zone)
        yield now


@pytest.mark.parametrize("hours", [0, 14, -14])
def test_rows_are_committed_on_another_day_than_they_were_written_on(
    url: str, day: list[datetime], hours: int
) -> None:
    sink = DeltaSink(url)
    run(sink, 0, commit=False)
    written = day[0].date()
    day[0] += timedelta(hours=hours)
    sink.commit(
        0,
        {
            (partition, kind): len(table)
            for partition in (0, 1)
            for kind, table in batch(0, partition).items()
        },
    )
    assert set(DeltaTable(url).to_pyarrow_table()["date"].to_pylist()) == {written}


def test_days_that_are_too_old_are_removed(url: str, tmp_path: Path, day: list[datetime]) -> None:
    sink = DeltaSink(url)
    for number in range(6):
        run(sink, number)
        day[0] += timedelta(days=1)
    compact(url)
    # Now it is November 7: rows of November 4 are at most 3 days old.
    assert compact(url, timedelta(days=3)).after == 15
    assert read_table(url).equals(expected(tmp_path / "plain", range(3, 6)))
    assert first_batch(Storage(url)) == 3
    assert compact(url, timedelta(days=3)).before == 15


@pytest.mark.parametrize(
    "keep", [timedelta(microseconds=1), timedelta(hours=12), timedelta(days=1), timedelta.max]
)
def test_rows_that_are_minutes_old_are_never_removed(
    url: str, tmp_path: Path, day: list[datetime], keep: timedelta
) -> None:
    day[0] = datetime(2026, 11, 1, 23, 59, tzinfo=UTC)
    run(DeltaSink(url), 0)
    day[0] += timedelta(minutes=2)
    compact(url, keep)
    assert read_table(url).equals(expected(tmp_path / "plain", range(1)))


def test_answers_find_rows_with_their_micro_batch_in_files_of_both_forms(url: str) -> None:
    sink = DeltaSink(url)
    run(sink, 0)
    run(sink, 1)
    compact(url)
    run(sink, 2)
    folders = Folders.of(Path(url).parent)
    assert folders.first_batch() == 0
    everything = ds.field("offset") >= 0
    rows = list(folders.rows(SendReceipt, everything, ["offset", "partition"]))
    assert sorted((row["batch"], row["offset"] // 100) for row in rows) == sorted(
        (number, number) for number in range(3) for _ in range(2 * len(receipts(1, 0, 4)))
    )
    assert all(row["partition"] == 1 for row in folders.rows(SendReceipt, everything, ["partition"], 1))
    assert first_batch(Storage(f"{url}/nothing")) is None


def test_a_commit_that_fails_says_where_and_is_repeated(url: str, tmp_path: Path) -> None:
    sink = DeltaSink(url)
    run(sink, 0)
    log = Path(url) / "_delta_log"
    log.rename(tmp_path / "away")
    log.touch()
    with pytest.raises(NotStored, match=f"{url} could not be changed: "):
        run(sink, 1)
    log.unlink()
    (tmp_path / "away").rename(log)
    run(DeltaSink(url), 1)
    assert read_table(url).equals(expected(tmp_path / "plain", range(2)))


def test_a_folder_without_a_table_is_not_compacted(tmp_path: Path) -> None:
    with pytest.raises(NotATable, match="no output table of a live query"):
        DeltaLog(Storage(str(tmp_path))).compact()


@pytest.mark.parametrize("name", ["sp ace", "ünïcode", "a,b;c'd\"e#f", "[x]{y}*?", "kind=x"])
def test_folders_with_any_name(name: str, tmp_path: Path) -> None:
    url = str(tmp_path / name / "tables")
    sink = DeltaSink(url)
    run(sink, 0)
    run(sink, 1)
    compact(url)
    run(DeltaSink(url), 2)
    assert read_table(url).equals(expected(tmp_path / "plain", range(3)))
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([name, "plain"])


@pytest.mark.parametrize(
    ("name", "what"),
    [("per%41cent", "a percent sign"), ("a\\b", "a backslash"), ("a\nb", "a line break"), *((f"a{c}b", "a control character") for c in "\t\r\x01\x7f")],
)  # fmt: skip
def test_names_of_folders_that_the_library_cannot_have_are_refused(
    name: str, what: str, tmp_path: Path
) -> None:
    with pytest.raises(BadUrl, match=f"{what} in its name") as refused:
        DeltaSink(str(tmp_path / name / "tables"))
    assert len(str(refused.value).splitlines()) == 1


def test_pandas_reads_it(url: str) -> None:
    run(DeltaSink(url), 0)
    found = DeltaTable(url).to_pandas(
        filters=[("kind", "=", "MESSAGE")], columns=["topic", "entry_id", "batch"]
    )
    assert found.to_dict("list") == {"topic": [TOPIC] * 2, "entry_id": [0, 0], "batch": [0, 0]}


@pytest.mark.parametrize(
    ("commit", "damage"),
    # Without its last commit, a table is what it was before. Of the others, nobody looks whether they are commits.
    [
        (c, d)
        for c in (3, 21, 23)
        for d in ("empty", "half", "nuls", "missing", "foreign")
        if (c, d) not in ((23, "missing"), (21, "foreign"))
    ],
)
def test_a_damaged_log_is_named_or_makes_no_difference(
    commit: int, damage: str, url: str, tmp_path: Path
) -> None:
    """As a power failure, a full disk or an incomplete copy leave it. Commit 20 has a checkpoint: those before it are not read."""
    sink = DeltaSink(url)
    for number in range(23):
        run(sink, number)
    file = Path(url) / "_delta_log" / f"{commit:020}.json"
    whole = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        left = {
            "empty": b"",
            "half": whole[: len(whole) // 2],
            "nuls": whole[:-40] + bytes(40),
            "foreign": b'{"a": 1}\n',
        }
        file.write_bytes(left[damage])
    if commit > 20:
        for attempt in (lambda: run(DeltaSink(url), 23), lambda: read_table(url), lambda: compact(url)):
            with pytest.raises(
                Damaged,
                match=r"/_delta_log.* is (damaged: .+|empty|not a commit)\. Restore it from a backup, or",
            ):
                attempt()
    else:
        run(DeltaSink(url), 23)
        assert read_table(url).equals(expected(tmp_path / "plain", range(24)))


def test_files_of_others_are_never_deleted(url: str) -> None:
    """Not by a compaction, however old they are, and not by the first write."""
    sink = DeltaSink(url)
    for number in range(3):
        run(sink, number)
    theirs = [
        "notes.txt",
        "mydata/thesis.csv",
        "mydata/part-00000.parquet",
        "kind=MESSAGE/mine.parquet",
        "kind=MESSAGE/date=2026-01-01/mine.parquet",
        "kind=MESSAGE/000000001-00000.parquet.bak",
        "_temporary/mine",
    ]
    for name in theirs:
        (Path(url) / name).parent.mkdir(parents=True, exist_ok=True)
        (Path(url) / name).write_text("theirs")
    (left,) = (Path(url) / "_temporary" / each for each in ["0" * 32])
    left.write_text("ours, of a killed write")
    assert compact(url).before > compact(url).after
    assert parquet_files(url) == len(DeltaTable(url).file_uris()) + sum(
        each.startswith("kind=") and each.endswith(".parquet") for each in theirs
    )
    again = DeltaSink(url)
    run(again, 3)
    assert not left.exists()
    assert [name for name in theirs if not (Path(url) / name).exists()] == []


@pytest.mark.parametrize("name", ["notes.txt", "mydata/thesis.csv", "kind=MESSAGE/mine.parquet"])
def test_a_table_does_not_begin_among_files_of_others(url: str, name: str) -> None:
    (Path(url) / name).parent.mkdir(parents=True)
    (Path(url) / name).write_text("theirs")
    with pytest.raises(
        ForeignFiles, match=rf"{url} contains files that no query wrote \({name}\): move that away"
    ):
        DeltaSink(url).begin(-1)
    (Path(url) / name).unlink()
    left = Path(url) / "_delta_log" / "_commit_0.json.tmp"  # of a first commit that was killed
    left.parent.mkdir()
    left.touch()
    run(DeltaSink(url), 0)


def test_a_delta_table_of_others_is_left_alone(url: str) -> None:
    write_deltalake(url, pa.table({"mine": [1]}))
    with pytest.raises(ForeignFiles, match=f"^{url} holds a Delta table that no query wrote: move it away"):
        DeltaSink(url).begin(-1)


def test_a_file_of_the_table_is_never_replaced(url: str) -> None:
    """Its size is in the log. A repeat has the same rows; a file that no commit names may be replaced."""
    run(DeltaSink(url), 0, commit=False)
    other = output(EFFECTS, partition=0, offset=7)
    DeltaSink(url).write(0, 0, other)
    run(DeltaSink(url), 0)
    files = {path: (path.stat().st_ino, path.read_bytes()) for path in Path(url).rglob("*.parquet")}
    run(DeltaSink(url), 0)
    with pytest.raises(ForeignFiles, match="has other rows than the query would write"):
        DeltaSink(url).write(0, 0, other)
    assert {path: (path.stat().st_ino, path.read_bytes()) for path in files} == files
