"""What-if as a streaming query: the same rows as of a fold of the whole log, wherever it is cut, and after a crash."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from schemas.entries import EntryNotFound
from sinks.ledger_store import LedgerStore
from sinks.lock import InUse, exclusive
from sinks.outputs import InTheWay
from sinks.storage import Damaged
from streaming.answers.whatif import compare, query
from streaming.answers.whatif.answer import to_json
from streaming.answers.whatif.clients.made_log import ClientSettings
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.answers.whatif.difference_table import gathered
from streaming.answers.whatif.differences import PartitionCompared
from streaming.answers.whatif.folder import BEFORE, AnotherWhatIf, check, opened
from streaming.answers.whatif.folds import from_bytes, to_bytes
from streaming.answers.whatif.projection import LiveState
from streaming.answers.whatif.side_by_side import piece_size
from streaming.cli.app import app
from streaming.cli.errors import FAILED
from streaming.jobs.replay import load
from streaming.log.files import write_log
from streaming.log.partition import partition_log
from streaming.log.policies import configuring
from streaming.log.table import LogError
from streaming.spark.failure import QueryFailed
from tests.answers.test_reactive import as_table
from tests.answers.test_resumed import folded, half_folded
from tests.answers.test_settled import LEDGERS, POLICIES, answer, rows
from tests.answers.test_whatif import Record, ack, eviction, flow, publish, subscribe, table, ttl
from tests.broker.random_lives import live
from tests.broker.recorded_lives import WITHOUT_PAYLOADS
from tests.state.test_other_partitions import made_log

SETS = [PolicySet("short", ttl(100)), PolicySet("evict", eviction(500))]
LATE = 200
"""How long (s) a consumer takes for a message."""


def log(count: int = 1200) -> pa.Table:
    """A message each second. Each is acked before the log ends, so most are settled by then."""
    records: list[Record] = [subscribe(), flow(0, 2 * count)]
    for number in range(count + LATE):
        if number < count:
            records.append(publish(number, number))
        if number >= LATE:
            ledger, entry = divmod(number - LATE, 3)
            second, topic, acked = ack(number, entry)
            acked["message_id"][0]["ledgerId"] += ledger
            records.append((second, topic, acked))
    return table(records, **LEDGERS)


# ---- without Spark


def in_batches(count: int) -> Any:
    """In place of processes: a fold of each partition in so many micro-batches, between which it is what it kept."""

    def fold(work: Any, *_: Any) -> Iterator[PartitionCompared]:
        for each in work:
            own, size = each.records, piece_size(len(each.records))
            of = query.Partition(each.partition, own, each.pins, each.names, each.start, each.baseline)
            step, kept, settled = query._step(len(own), count), None, list[pa.Table]()
            for start in range(0, len(own), step):
                folds = of.folds(size, kept)
                folds.fold(own.slice(start, step))
                settled.append(folds.take())
                kept = folds.keep()
            found, rest = of.folds(size, kept).end()
            found = from_bytes(to_bytes(found))
            yield found._replace(differences=gathered(found.differences, [*settled, rest]))

    return mock.patch.object(compare, "_fold_all", fold)


@pytest.mark.parametrize(("theme", "seed"), WITHOUT_PAYLOADS)
def test_the_rows_are_the_same(theme: str, seed: int) -> None:
    own = as_table(live(theme, seed).log)
    policies = [POLICIES[seed % 2], POLICIES[2 + seed // 2 % 2]]
    expected = rows(answer(own, 1, policies=policies)[0])
    with in_batches(1 + seed % 7):
        assert rows(answer(own, 1, policies=policies)[0]) == expected


@pytest.mark.parametrize("seed", range(12))
def test_after_a_state(seed: int, tmp_path: Path) -> None:
    own = as_table(live("deduplication", seed).log)
    asked: dict[str, Any] = {"policies": POLICIES[:2], "live": half_folded(own, tmp_path / "replayed")}
    expected = rows(answer(own, 1, **asked)[0])
    with in_batches(1 + seed % 3):
        assert rows(answer(own, 1, **asked)[0]) == expected


@pytest.mark.parametrize("records", [1, 2, 199, 200, 399, 400, 401, 10_000, 3_000_000])
@pytest.mark.parametrize("batches", [1, 2, 3, 7, 1000])
def test_micro_batches_have_whole_pieces(records: int, batches: int) -> None:
    step = query._step(records, batches)
    assert step % piece_size(records) == 0
    assert -(-records // step) <= batches


def test_a_checkpoint_is_for_a_query(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs Spark"):
        whatif(log(), SETS, checkpoint=tmp_path / "kept")


@pytest.mark.parametrize("name", ["a b", "jo+e", "ü", "100%", "[x]"])
def test_a_folder_in_which_spark_could_not_go_on_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InTheWay, match="other characters than letters"):
        check(tmp_path / name / "kept")


def test_a_what_if_is_in_no_other_one(tmp_path: Path) -> None:
    (tmp_path / "kept" / "fold-1" / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "kept" / "fold-1" / "checkpoint" / "metadata").touch()
    with pytest.raises(InTheWay, match=r"lacks whatif-log\.json"):
        check(tmp_path / "kept")
    (tmp_path / "kept" / "whatif-log.json").touch()
    check(tmp_path / "kept")
    for inside in ("new", "fold-1/new"):
        with pytest.raises(InTheWay, match="is the checkpoint of a what-if"):
            check(tmp_path / "kept" / inside)
    with pytest.raises(InTheWay, match="holds"):
        check(tmp_path)


def test_a_what_if_is_apart_from_what_it_reads_and_writes(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for out in (kept, kept / "out"):
        with pytest.raises(InTheWay, match="is an output"):
            check(kept, [tmp_path / "log"], out)
        with pytest.raises(InTheWay, match="is an input"):
            check(kept, [out])
    check(kept, [tmp_path / "log"], tmp_path / "out")


@pytest.mark.parametrize("seed", range(12))
def test_what_a_live_query_had_is_kept(seed: int, tmp_path: Path) -> None:
    own = as_table(live("deduplication", seed).log)
    before = half_folded(own, tmp_path / "replayed")
    with opened(tmp_path / "kept", ()) as folder:
        _, expected = folder.as_begun(own, before)
        folder.note(own, before, expected)
    assert expected is not None
    assert any(expected.entries.values())
    with opened(tmp_path / "kept", ()) as folder:
        assert folder.as_begun(own, LiveState([], before.store)) == (own, expected)
        for other, named in (
            (None, "for a what-if from the state of the query with the store"),
            (
                LiveState(before.states, LedgerStore(str(tmp_path / "other"))),
                "/replayed/store. Choose another",
            ),
        ):
            with pytest.raises(AnotherWhatIf, match=named):
                folder.as_begun(own, other)
    (tmp_path / "kept" / BEFORE).unlink()
    with opened(tmp_path / "kept", ()) as folder, pytest.raises(Damaged, match="missing"):
        folder.as_begun(own, before)


# ---- with Spark


@pytest.fixture
def cut() -> Iterator[int]:
    """A log is cut into so many micro-batches."""
    with mock.patch.object(query, "micro_batches", return_value=4):
        yield 4


Ask = Callable[..., Any]


@pytest.fixture
def ask(spark: SparkSession, tmp_path: Path, cut: int) -> Ask:
    """Ask with a checkpoint."""

    def ask(own: pa.Table | None = None, sets: Any = SETS, **given: Any) -> Any:
        own = log() if own is None else own
        given = {"checkpoint": tmp_path / "kept", **given}
        return whatif(own, sets, partitions=3, spark=spark, **given)

    return ask


def crash_in(batch: int) -> Any:
    """The micro-batch of this number fails after its writes, before it is committed."""
    run, left = query._run, [batch]

    def crashing(spark: Any, folder: Any, operator: Any, batches: Any, progress: Any) -> None:
        def note(records: int) -> None:
            if not left[0]:
                raise RuntimeError("no more")
            left[0] -= 1
            progress(records)

        run(spark, folder, operator, batches, note)

    return mock.patch.object(query, "_run", crashing)


@pytest.mark.spark
def test_after_a_crash_it_goes_on(ask: Ask, cut: int) -> None:
    expected = whatif(log(), SETS, partitions=3)
    assert expected.differences.num_rows > 1000
    for batch in (0, 1):
        with crash_in(batch), pytest.raises(QueryFailed, match="the same command goes on from there"):
            ask()
    done = list[int]()
    found = ask(progress=lambda records, _: done.append(records))
    assert len(done) == cut - 1
    assert to_json(found) == to_json(expected)
    assert rows(found) == rows(expected)
    assert rows(ask()) == rows(expected)  # which folds nothing


@pytest.mark.spark
def test_it_goes_on_from_the_state_of_a_query(ask: Ask, tmp_path: Path) -> None:
    own = log()
    state = half_folded(own, tmp_path / "replayed", partitions=3)
    expected = whatif(own, SETS, partitions=3, live=state)
    assert any(expected.totals[-1].differences.values())
    with crash_in(1), pytest.raises(QueryFailed, match="the same command goes on from there"):
        ask(own, live=state)
    assert rows(ask(own, live=state)) == rows(expected)


@pytest.mark.spark
def test_it_goes_on_after_the_query_went_on(ask: Ask, tmp_path: Path) -> None:
    """Its state is another one then, and its store has deleted entries."""
    own, begun = log(), half_folded(log(), tmp_path / "replayed", partitions=3)
    expected = rows(whatif(own, SETS, partitions=3, live=begun))
    with crash_in(1), pytest.raises(QueryFailed):
        ask(own, live=begun)
    now = folded(log(), tmp_path / "replayed", partitions=3)
    assert now.states != begun.states
    with pytest.raises(EntryNotFound):
        begun.read()
    assert rows(ask(own, live=now)) == expected


@pytest.mark.spark
def test_the_folder_is_for_one_what_if(ask: Ask, tmp_path: Path) -> None:
    own = log()
    expected = rows(ask(own))
    for other, why in (
        ({"sets": SETS[:1]}, "the policies"),
        ({"own": log(900)}, "other records"),
    ):
        with pytest.raises(AnotherWhatIf, match=why):
            ask(**other)
    # It may have grown: the answer is about what there was.
    assert rows(ask(log().slice(0, len(own)))) == expected
    with mock.patch.object(query, "__version__", "0.0"), pytest.raises(InTheWay, match="made it"):
        ask()
    with exclusive([str(tmp_path / "kept")], "another"), pytest.raises(InUse):
        ask()


@pytest.mark.spark
def test_a_folder_that_was_moved_is_refused(ask: Ask, tmp_path: Path) -> None:
    expected = rows(ask())
    (tmp_path / "kept").rename(tmp_path / "before")
    shutil.copytree(tmp_path / "before", tmp_path / "kept")
    assert rows(ask()) == expected  # it is where it was
    shutil.copytree(tmp_path / "kept", tmp_path / "copy")
    with pytest.raises(AnotherWhatIf, match=r"/copy began as .*/kept, and Spark goes on only there"):
        ask(checkpoint=tmp_path / "copy")


@pytest.mark.spark
def test_a_log_that_grew_is_taken_as_it_was(ask: Ask) -> None:
    own = load(log(), partitions=3).records
    grown = load(log(1300), partitions=3).records
    before = {each: own.filter(pa.compute.equal(own["partition"], each)) for each in range(3)}
    longer = [*before.values()]
    for partition in range(3):
        late = grown.filter(pa.compute.equal(grown["partition"], partition))
        longer.append(late.filter(pa.compute.greater(late["offset"], before[partition]["offset"][-1])))
    expected = rows(ask(own))
    assert rows(ask(pa.concat_tables(longer))) == expected


@pytest.mark.spark
def test_a_log_that_grew_is_projected_as_it_was(ask: Ask, tmp_path: Path) -> None:
    grown, state = log(), half_folded(log(), tmp_path / "replayed", partitions=3)
    expected = rows(ask(grown.slice(0, 2000), live=state))
    assert rows(ask(grown, live=state)) == expected


@pytest.mark.spark
def test_a_topic_that_grew_is_taken_as_it_was(ask: Ask) -> None:
    """Also if late records come in the middle, among those of another ingress partition."""
    topic = partition_log(made_log(400).filter(pc.field("topic").is_valid()), 2)
    late = pc.and_(pc.equal(topic["partition"], 1), pc.greater(topic["offset"], 60))
    begun = topic.filter(pc.invert(late))
    assert begun["timestamp"][-1].as_py() > topic.filter(late)["timestamp"][0].as_py()
    sets = [PolicySet("short", configuring(settings={"ttlDurationDefaultInSeconds": 1}))]
    expected = ask(begun, sets)
    assert expected.records == len(begun)
    assert to_json(ask(topic, sets)) == to_json(expected)


@pytest.mark.spark
def test_what_is_no_log_begins_nothing(ask: Ask, tmp_path: Path) -> None:
    topic = partition_log(log(), 2)
    twice = pa.concat_tables([topic, topic.slice(0, 1)])
    with pytest.raises(LogError, match="an offset occurs twice"):
        ask(twice)
    assert ask(log()).records == len(log())


@pytest.mark.spark
def test_a_lost_file_is_noticed(ask: Ask, tmp_path: Path) -> None:
    ask()
    files = sorted((tmp_path / "kept").rglob("differences/*.parquet"))
    assert len(files) > 1
    files[0].unlink()
    with pytest.raises(Damaged, match="lacks rows"):
        ask()


@pytest.mark.spark
def test_a_folder_with_other_files_is_refused(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mine.txt").touch()
    with pytest.raises(InTheWay, match=r"no what-if wrote \(mine\.txt\)"):
        ask()
    shutil.rmtree(tmp_path / "kept")
    with crash_in(0), pytest.raises(QueryFailed):
        ask()
    (next((tmp_path / "kept").glob("fold-*")) / "whatif.json").unlink()  # as if killed before
    shutil.rmtree(next((tmp_path / "kept").glob("fold-*")) / "checkpoint")
    assert rows(ask()) == rows(whatif(log(), SETS, partitions=3))


@pytest.mark.spark
def test_settings_of_the_session_are_as_before(ask: Ask, spark: SparkSession) -> None:
    names = [*query._QUERY, *query._ONE_AT_A_TIME, "spark.sql.shuffle.partitions"]
    before = [spark.conf.get(name) for name in names]
    ask()
    assert [spark.conf.get(name) for name in names] == before


@pytest.mark.spark
def test_modelled_clients_have_no_checkpoint(ask: Ask) -> None:
    with pytest.raises(ValueError, match="clients as recorded"):
        ask(clients=ClientSettings(seed=1))


@pytest.mark.spark
def test_the_command_goes_on(spark: SparkSession, tmp_path: Path, cut: int) -> None:
    path, policies = tmp_path / "log.jsonl", tmp_path / "ttl.yaml"
    write_log(path, log())
    policies.write_text("namespaces:\n  a/b:\n    message_ttl_in_seconds: 100\n")
    plain = ["whatif", str(path), "--policies", str(policies), "--partitions", "3", "--json"]
    asked = [*plain, "--spark", "--checkpoint", str(tmp_path / "kept")]
    with crash_in(1):
        failed = CliRunner().invoke(app, asked)
    assert failed.exit_code == FAILED
    assert "the same command goes on from there" in failed.stderr
    found, expected = CliRunner().invoke(app, asked), CliRunner().invoke(app, plain)
    assert (found.exit_code, found.stdout) == (0, expected.stdout)
