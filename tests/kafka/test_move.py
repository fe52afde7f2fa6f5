"""States that move to another topic with other partitions, in the middle of a log whose beginning Kafka has deleted."""

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from typer.testing import CliRunner, Result

from schemas.commands import ConnectionLost, RunCheck, Tick, to_json
from schemas.effects import KINDS, SendReceipt
from schemas.entries import EntryNotFound
from sinks.base import Sink
from sinks.begun import Begun, Planned
from sinks.ledger_store import LedgerStore, read_entries
from sinks.quarantine import QuarantineSink, read_quarantine
from sinks.storage import Damaged
from sinks.tables import TABLES, TableSink, read_table
from streaming.cli.app import app
from streaming.fold.columns import Fold
from streaming.fold.records import StateRow
from streaming.jobs.run import run_query
from streaming.kafka import copies
from streaming.kafka.client import KafkaUnreachable, administration
from streaming.kafka.ingress import IngressChanged, ensure_ingress
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import NotProduced, produce_log
from streaming.kafka.repartition import read_records, read_topic
from streaming.kafka.topics import Offsets, holds_records, topic_offsets
from streaming.kafka.url import KafkaUrl
from streaming.log.partition import partition_log
from streaming.log.table import LOGICAL, LogError, slices
from streaming.state import move
from streaming.state.dump import Header, write_dump
from streaming.state.move import Moved, States, move_states, restore_states
from streaming.state.seed import NotWhole, SeedWriter, read_seed
from streaming.state.spread import NotSpread
from tests.e2e.outcome import Outcome, of_log
from tests.e2e.traffic import TOPICS
from tests.state.by_topic import by_topic
from tests.state.test_other_partitions import made_log

pytestmark = [pytest.mark.kafka, pytest.mark.feature("J1")]

LOG = made_log(700)
CUT, UNFOLDED = 400, 40


def tick_at(row: int) -> pa.Table:
    """A tick for all partitions at the time of a record."""
    tick = {"timestamp": LOG["timestamp"][row].as_py(), "topic": None, "value": to_json(Tick())}
    return pa.Table.from_pylist([tick], LOGICAL)


BEFORE = pa.concat_tables([LOG.slice(0, CUT), tick_at(CUT - 1)])
AFTER = LOG.slice(CUT)


class Query:
    """What a query does, without Spark: a topic, a store, and the states."""

    def __init__(
        self, kafka: LocalKafka, name: str, folder: Path, states: list[StateRow] | None = None
    ) -> None:
        self.url = KafkaUrl(kafka.bootstrap, name)
        self.address = f"kafka://{kafka.bootstrap}/{name}"
        self.store = str(folder / name)
        ledgers = LedgerStore(self.store)
        self._sinks: list[Sink] = [
            ledgers, QuarantineSink(self.store), TableSink(f"{self.store}/tables"),
        ]  # fmt: skip
        self._fold = Fold(ledgers, states or [])
        self._batch = 0

    def fold(self, records: pa.Table, batches: int) -> None:
        for part in slices(records, batches):
            self.write(part)
            self._batch += 1
        for sink in self._sinks:
            sink.begin(self._batch)

    def write(self, records: pa.Table) -> None:
        """A micro-batch that is not committed."""
        for sink in self._sinks:
            sink.begin(self._batch)
        for partition, rows in self._fold.apply(records):
            for sink in self._sinks:
                sink.write(self._batch, partition, rows)

    def offsets(self) -> Offsets:
        with administration(self.url) as admin:
            return topic_offsets(admin, self.url.topic)

    def rows(self) -> list[StateRow]:
        return self._fold.states()

    def states(self, ends: Offsets | None = None, name: str = "the checkpoint") -> States:
        folded = {partition: end for partition, (_, end) in (ends or self.offsets()).items()}
        encoded = [each.broker for each in self.rows()]
        return States(name, encoded, self.store, self.url, folded)

    def forget(self) -> None:
        """Kafka deletes all records so far."""
        ends = {TopicPartition(self.url.topic, part): end for part, (_, end) in self.offsets().items()}
        with administration(self.url) as admin:
            admin.delete_records(ends)

    def outcome(self) -> Outcome:
        return Outcome(
            {kind: read_table(f"{self.store}/tables", kind) for kind in TABLES},
            read_entries(self.store),
            read_quarantine(self.store),
            {},
            self.rows(),
        )


def stopped(
    kafka: LocalKafka, name: str, folder: Path, partitions: int = 2, unfolded: int = UNFOLDED
) -> tuple[Query, States]:
    """A query that has folded the first part of the log, which Kafka has deleted, and of the rest some records are there."""
    query = Query(kafka, name, folder)
    produce_log(BEFORE, query.address, partitions=partitions)
    query.fold(read_topic(query.url).records, 7)
    ends = query.offsets()
    query.forget()
    if unfolded:
        produce_log(AFTER.slice(0, unfolded), query.address)
    return query, query.states(ends)


def moved_on(
    kafka: LocalKafka, old: Query, name: str, folder: Path, unfolded: int = UNFOLDED
) -> dict[str, Any]:
    """The rest of the log in the new topic, folded with the moved states."""
    new = Query(kafka, name, folder)
    produce_log(AFTER.slice(unfolded), new.address)
    seed = read_seed(new.store)
    assert seed is not None
    new = Query(kafka, name, folder, seed.states())
    new.fold(read_topic(new.url).records, 5)
    return joined(old, new)


def joined(old: Query, new: Query) -> dict[str, Any]:
    """What has become of each topic, of both queries. The new one has all entries."""
    first, second = old.outcome(), new.outcome()
    return by_topic(
        Outcome(
            {kind: pa.concat_tables([first.tables[kind], second.tables[kind]]) for kind in TABLES},
            second.entries,
            pa.concat_tables([first.quarantine, second.quarantine]),
            {},
            second.states,
        )
    )


def undisturbed(partitions: int, folder: Path) -> dict[str, Any]:
    whole = pa.concat_tables([BEFORE, AFTER])
    return by_topic(of_log(partition_log(whole, partitions), folder))


@pytest.mark.parametrize(("before", "after"), [(2, 5), (3, 1)])
def test_a_log_goes_on_over_other_partitions(
    before: int, after: int, kafka: LocalKafka, tmp_path: Path
) -> None:
    names = f"old-{before}", f"new-{after}"
    old, states = stopped(kafka, names[0], tmp_path, before)
    new = f"kafka://{kafka.bootstrap}/{names[1]}"
    done = move_states(states, KafkaUrl.parse(new), str(tmp_path / names[1]), partitions=after)
    assert done == Moved(len(TOPICS), len(read_unfolded(old, states)), [])
    found = moved_on(kafka, old, names[1], tmp_path)
    expected = undisturbed(after, tmp_path / "whole")
    assert set(TOPICS) <= expected.keys()
    for topic, kinds in expected.items():
        for kind, rows in kinds.items():
            assert found[topic].get(kind) == rows, (topic, kind)
    assert found == expected
    receipts = [row for topic in TOPICS for row in found[topic][KINDS[SendReceipt]]]
    assert len({row["ledger_id"] for row in receipts}) > 5
    assert any(row["ledger_id"] < 0 for row in receipts), "no duplicate"


def read_unfolded(query: Query, states: States) -> list[dict[str, Any]]:
    ends = {partition: (states.offsets[partition], end) for partition, (_, end) in query.offsets().items()}
    return [row for table in read_records(query.url, ends) for row in table.to_pylist()]


class Interrupted(Exception):
    """As a kill would."""


STEPS = ["piece", "entries", "state", "first transaction", "finish", "check"]


@contextmanager
def interrupted_at(step: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A move is interrupted at the second of such steps. Gives arguments for it."""
    calls = iter(range(9))

    def interrupted(*_: Any, **__: Any) -> None:
        if next(calls) == 1:
            raise Interrupted

    place: dict[str, tuple[Any, str]] = {
        "piece": (SeedWriter, "write_piece"), "entries": (LedgerStore, "take"), "state": (SeedWriter, "write"),
    }  # fmt: skip
    with monkeypatch.context() as patch:
        if step in place:
            owner, method = place[step]
            whole = getattr(owner, method)

            def partly(*given: Any) -> Any:
                interrupted()
                return whole(*given)

            patch.setattr(owner, method, partly)
        elif step == "finish":
            patch.setattr(move, "ensure_ingress", interrupt)
        yield {
            "progress": interrupted if step == "first transaction" else None,
            "check": interrupted if step == "check" else lambda: None,
        }


@pytest.mark.parametrize("step", STEPS)
def test_a_move_that_was_interrupted_goes_on(
    step: str, kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"again-{STEPS.index(step)}"
    old, states = stopped(kafka, f"{name}-old", tmp_path)
    new, store = KafkaUrl(kafka.bootstrap, name), str(tmp_path / name)
    monkeypatch.setattr(copies, "_TOGETHER", 7)
    with interrupted_at(step, monkeypatch) as given, pytest.raises(Interrupted):
        move_states(states, new, store, partitions=5, **given)
    with pytest.raises(NotWhole, match="has only part of the states of the checkpoint: run the same"):
        read_seed(store)
    if step in ("first transaction", "finish"):
        with pytest.raises(NotWhole, match="has records already, and .* has a part of a move of the check"):
            move_states(states._replace(name="another"), new, store, partitions=5)
    move_states(states, new, store, partitions=5)
    assert moved_on(kafka, old, name, tmp_path) == undisturbed(5, tmp_path / "whole")
    with pytest.raises(NotWhole, match="has its states: start the query"):
        move_states(states, new, store, partitions=5)
    with pytest.raises(
        NotWhole, match="has the states of the checkpoint, not those of another: use another store"
    ):
        move_states(states._replace(name="another"), new, store, partitions=5)
    produce_log(AFTER.slice(0, 1), old.address)  # the query has not gone on, but its topic has
    with pytest.raises(
        NotWhole, match="the old topic has changed since: use another store and another topic"
    ):
        move_states(states, new, store, partitions=5)


def magnetar(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def files_of(store: Path) -> dict[str, bytes]:
    """What a store has, but for what names the topic."""
    found = {str(each.relative_to(store)): each for each in store.rglob("*") if each.is_file()}
    return {name: found[name].read_bytes() for name in found.keys() - {"seed/begun.json", "ingress.json"}}


def query_of(records: pa.Table, kafka: LocalKafka, name: str, folder: Path) -> Query:
    query = Query(kafka, name, folder)
    query.fold(partition_log(records, 2), 7)
    return query


IMPORTS = [
    ("the same topic", "entries"), ("the same topic", "state"), ("the same topic", "finish"), ("the same topic", "itself"),
    ("a new topic", "piece"), ("a new topic", "entries"), ("a new topic", "state"), ("a new topic", "finish"), ("a new topic", "itself"),
]  # fmt: skip
"""Where an import fails. `itself`: it may, because of its sources."""


@pytest.mark.parametrize(("target", "step"), IMPORTS)
@pytest.mark.parametrize("changed", ["entries", "entries in their place", "dump", "folder", "nothing"])
def test_nothing_of_an_import_that_failed_stays(
    changed: str, target: str, step: str, kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one, from other sources, is as if it were the first, or it needs another topic."""
    name = f"{changed}-{target}-{step}".replace(" ", "-")
    old, states = stopped(kafka, name, tmp_path, unfolded=0)
    entries, dump, store = tmp_path / "entries", tmp_path / "here" / "dump", tmp_path / "store"

    def export(query: Query) -> None:
        offsets = {str(partition): offset for partition, offset in states.offsets.items()}
        dump.unlink(missing_ok=True)
        with dump.open("wb") as file:
            write_dump(file, Header(ingress=name, partitions=2, offsets=offsets), query.states().encoded)
        shutil.rmtree(entries, ignore_errors=True)
        shutil.copytree(query.store, entries)

    def run(topic: str, to: Path, given: Path = entries) -> Result:
        return magnetar(
            "state", "import", dump, "--ingress", f"kafka://{kafka.bootstrap}/{topic}", "--entries", given, "--store", to,
            *(() if topic == name else ("--partitions", 3)),
        )  # fmt: skip

    dump.parent.mkdir()
    wrong = tmp_path / "wrong"
    values = [each.replace(b" of persistent", b" OF persistent") for each in BEFORE["value"].to_pylist()]
    others = BEFORE.set_column(BEFORE.schema.get_field_index("value"), "value", pa.array(values))
    query_of(others, kafka, "payloads", wrong)  # of the same sizes
    topics = pa.compute.is_in(BEFORE["topic"], pa.array([None, *TOPICS[4:]], pa.string()))
    fewer = query_of(BEFORE.filter(topics), kafka, "topics", wrong)
    topic = name if target == "the same topic" else f"{name}-new"
    export(old)
    if changed == "entries in their place":
        shutil.rmtree(entries)
        shutil.copytree(wrong / "payloads", entries)
    if step == "itself":  # at the second partition
        for each in (entries, wrong / "payloads"):
            shutil.rmtree(each / "segments" / "00001")
    with interrupted_at(step, monkeypatch):
        ran = run(topic, store, wrong / "payloads" if changed == "entries" else entries)
    assert ran.exit_code == 1, ran.output
    assert (store / "seed" / "begun.json").exists()
    export(fewer if changed == "dump" else old)
    if changed == "folder":
        monkeypatch.chdir(dump.parent)
        dump = Path("dump")
    ran = run(topic, store)
    if step == "finish" and changed == "dump" and topic != name:
        assert ran.exit_code == 2
        assert "has records already, and " in ran.stderr
        topic += "-2"
        ran = run(topic, store)
    assert ran.exit_code == 0, ran.output
    assert run(f"{name}-whole" if topic != name else name, tmp_path / "whole").exit_code == 0
    assert files_of(store) == files_of(tmp_path / "whole")
    assert json.loads((store / "ingress.json").read_bytes())["topic"] == topic


@pytest.mark.parametrize("target", ["the same topic", "a new topic"])
def test_each_file_of_a_store_with_states_is_missed(target: str, kafka: LocalKafka, tmp_path: Path) -> None:
    """The query does not start, or it starts with all that there was. So do those without a whole folder."""
    name = f"lost-{target}".replace(" ", "-")
    old, states = stopped(kafka, name, tmp_path, unfolded=0)
    store, copy = tmp_path / "store", tmp_path / "copy"
    url = old.url if target == "the same topic" else KafkaUrl(kafka.bootstrap, f"{name}-new")
    if url == old.url:
        restore_states(states, url, str(store), partitions=2)
    else:
        move_states(states, url, str(store), partitions=3)
    stop = threading.Event()
    stop.set()  # when it has checked all, and before Spark starts

    def start() -> Any:
        run_query(
            f"kafka://{url.bootstrap}/{url.topic}", tmp_path / "new", str(copy), quality=False, stop=stop
        )
        seed = read_seed(str(copy))
        assert seed is not None
        note = json.loads((copy / "ingress.json").read_bytes())
        return seed.states(), seed.seed.offsets, read_entries(str(copy)), note

    shutil.copytree(store, copy)
    expected, refused = start(), dict[str, str]()
    for each in sorted(store.rglob("*")):
        lost = each.relative_to(store)
        shutil.rmtree(copy)
        shutil.copytree(store, copy)
        shutil.rmtree(copy / lost) if each.is_dir() else (copy / lost).unlink()
        try:
            found = start()
        except (Damaged, NotWhole) as error:
            refused[str(lost)] = str(error)
        else:
            assert found == expected, lost
    assert {
        "seed",
        "seed/whole.json",
        "seed/00001.state",
        "segments",
        "segments/00001",
        "ledgers",
    } <= refused.keys()
    assert all(str(copy) in each for each in refused.values()), refused
    assert len([each for each in refused if each.endswith(".parquet")]) > 10
    assert not refused.keys() & {"ingress.json", "seed/begun.json"}


def test_the_commands_go_on_after_an_interruption(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the command line, which look at the folders first."""
    old, states = stopped(kafka, "commands-old", tmp_path)
    ensure_ingress(old.url, old.store)
    checkpoint, dump = tmp_path / "checkpoint", tmp_path / "dump"
    last = json.dumps({old.url.topic: {str(each): at for each, at in states.offsets.items()}})
    for name, text in {"metadata": "{}", "offsets/0": f"v1\n{{}}\n{last}", "commits/0": "v1\n{}"}.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)
    monkeypatch.setattr("streaming.cli.state._states", lambda checkpoint, batch: iter(old.rows()))
    export = magnetar("state", "export", checkpoint, "--out", dump)
    assert export.exit_code == 0, export.output
    new, again = f"kafka://{kafka.bootstrap}/commands-new", tmp_path / "again"
    move = (
        "state", "move", checkpoint, "--ingress", old.address, "--store", old.store, "--partitions", "5",
        "--to-ingress", new, "--to-store", tmp_path / "commands-new",
    )  # fmt: skip
    restore = ("state", "import", dump, "--ingress", old.address, "--entries", old.store, "--store", again)
    for command, store, topic in ((move, tmp_path / "commands-new", new), (restore, again, old.address)):
        with monkeypatch.context() as patch:
            patch.setattr(SeedWriter, "finish", interrupt)
            assert isinstance(magnetar(*command).exception, Interrupted)
        query = magnetar("run", "--ingress", topic, "--store", store, "--checkpoint", tmp_path / "next")
        assert query.exit_code == 2
        assert "run the same magnetar state command again" in query.stderr
        ran = magnetar(*command)
        assert ran.exit_code == 0, ran.output
        assert read_seed(str(store)) is not None
    assert moved_on(kafka, old, "commands-new", tmp_path) == undisturbed(5, tmp_path / "whole")


def checkpointed(
    query: Query, states: States, folder: Path, monkeypatch: pytest.MonkeyPatch, *, planned: int
) -> Path:
    """The checkpoint of a query whose last whole micro-batch was 0, with `planned` as the last one that it planned."""
    checkpoint = folder / "checkpoint"
    last = json.dumps({query.url.topic: {str(each): at for each, at in states.offsets.items()}})
    files = {f"offsets/{each}": f"v1\n{{}}\n{last}" for each in range(planned + 1)}
    for name, text in {"metadata": "{}", "commits/0": "v1\n{}", **files}.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)
    monkeypatch.setattr(
        "streaming.cli.state._states",
        lambda *_: iter([StateRow(part, 0, 0, 0, 0, None, each) for part, each in enumerate(states.encoded)]),
    )
    return checkpoint


def add_partitions(query: Query, count: int) -> None:
    with administration(query.url) as admin:
        admin.create_partitions({query.url.topic: count})


def test_states_move_from_a_topic_that_got_partitions(kafka: LocalKafka, tmp_path: Path) -> None:
    """Kafka has deleted the log's beginning, so the states are all that there is."""
    old, states = stopped(kafka, "grown", tmp_path)
    unfolded = read_unfolded(old, states)
    ensure_ingress(old.url, old.store)
    add_partitions(old, 3)
    with pytest.raises(IngressChanged, match=r"has 3 partitions, and had 2 .* \(magnetar state move\)"):
        ensure_ingress(old.url, old.store)
    done = move_states(
        states, KafkaUrl(kafka.bootstrap, "grown-new"), str(tmp_path / "grown-new"), partitions=3
    )
    assert done.copied == len(unfolded)
    assert moved_on(kafka, old, "grown-new", tmp_path) == undisturbed(3, tmp_path / "whole")


def test_partitions_that_get_records_during_a_move(kafka: LocalKafka, tmp_path: Path) -> None:
    old, states = stopped(kafka, "grown-busy", tmp_path)
    ensure_ingress(old.url, old.store)
    add_partitions(old, 3)

    def meanwhile(sent: int, total: int) -> None:
        write(kafka, old.url.topic, 2)

    with pytest.raises(LogError, match="topic grown-busy got 1 more records meanwhile"):
        move_states(
            states,
            KafkaUrl(kafka.bootstrap, "grown-busy-new"),
            str(tmp_path / "new"),
            partitions=3,
            progress=meanwhile,
        )


def write(kafka: LocalKafka, topic: str, partition: int) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    producer.send(
        topic, to_json(Tick()), partition=partition, timestamp_ms=LOG["timestamp"][-1].as_py()
    ).get()
    producer.close()


def test_from_added_partitions_with_records_a_dump_leads_on(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without what the query has not folded: the way that docs/operate/partitions.md names."""
    old, states = stopped(kafka, "cut", tmp_path)
    ensure_ingress(old.url, old.store)
    add_partitions(old, 3)
    write(kafka, "cut", 2)
    new, store, dump = f"kafka://{kafka.bootstrap}/cut-new", tmp_path / "cut-new", tmp_path / "dump"
    with pytest.raises(
        LogError, match="had 2 partitions when .* 1 records in those .* export and magnetar state import"
    ):
        move_states(states, KafkaUrl.parse(new), str(store), partitions=3)
    assert not store.exists()
    checkpoint = checkpointed(old, states, tmp_path, monkeypatch, planned=1)
    assert magnetar("state", "export", checkpoint, "--store", old.store, "--out", dump).exit_code == 0
    ran = magnetar(
        "state", "import", dump, "--ingress", new, "--entries", old.store, "--store", store, "--partitions", 3
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    seed = read_seed(str(store))
    assert seed is not None
    assert len(Query(kafka, "cut-new", tmp_path, seed.states()).rows()) == 3


@pytest.mark.parametrize("began", [False, True])
def test_a_query_whose_topic_got_partitions_during_a_micro_batch(
    began: bool, kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was planned, or it had written already. The query can't repeat it, and the states before it lead on."""
    name = f"planned-{began}".lower()
    old, states = stopped(kafka, name, tmp_path)
    ensure_ingress(old.url, old.store)
    checkpoint = checkpointed(old, states, tmp_path, monkeypatch, planned=1)
    *_, ends_noted = (checkpoint / "offsets/0").read_text().splitlines()
    first = Planned(0, 0, f"[{ends_noted}]")
    Begun(old.store).begin(first, None)
    if began:
        Begun(old.store).begin(Planned(1, 1, "1"), first)
        ends = {part: (states.offsets[part], end) for part, (_, end) in old.offsets().items()}
        old.write(pa.concat_tables(read_records(old.url, ends)))
    command = (
        "state", "move", checkpoint, "--ingress", old.address, "--store", old.store, "--partitions", 3,
        "--to-ingress", f"kafka://{kafka.bootstrap}/{name}-new", "--to-store", tmp_path / f"{name}-new",
    )  # fmt: skip
    if began:
        ran = magnetar(*command)
        assert ran.exit_code == 2
        assert "in the middle of a micro-batch: start the query again" in ran.stderr
    add_partitions(old, 3)
    ran = magnetar(*command)
    assert ran.exit_code == 0, ran.output
    assert ("micro-batch 1 ended in the middle" in ran.stderr) == began
    found, expected = moved_on(kafka, old, f"{name}-new", tmp_path), undisturbed(3, tmp_path / "whole")
    if not began:  # otherwise both queries have the rows of the micro-batch
        assert found == expected
    for topic in TOPICS:
        assert found[topic]["entries"] == expected[topic]["entries"]


def test_an_open_transaction_does_not_use_up_the_new_store(kafka: LocalKafka, tmp_path: Path) -> None:
    """Its end moves that of the old topic, so a move that had noted that would be another one when it is started again."""
    old, states = stopped(kafka, "open", tmp_path)
    new, store = KafkaUrl(kafka.bootstrap, "open-new"), str(tmp_path / "open-new")
    writer = KafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id="open")
    writer.init_transactions()
    writer.begin_transaction()
    writer.send("open", to_json(Tick()), partition=0, timestamp_ms=LOG["timestamp"][CUT].as_py()).get()
    with pytest.raises(
        LogError, match="topic open has records of a transaction that is open: wait until its writer"
    ):
        move_states(states, new, store, partitions=5)
    writer.abort_transaction()
    writer.close()
    move_states(states, new, store, partitions=5)
    assert moved_on(kafka, old, "open-new", tmp_path) == undisturbed(5, tmp_path / "whole")


def test_records_that_kafka_deletes_during_a_move_are_missed(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, states = stopped(kafka, "gone-under-a-move", tmp_path)
    new, store = KafkaUrl(kafka.bootstrap, "gone-under-a-move-new"), str(tmp_path / "new")
    real = KafkaConsumer.seek

    def seek(self: KafkaConsumer, part: TopicPartition, offset: int) -> None:
        if part.topic == old.url.topic:
            old.forget()
        real(self, part, offset)

    monkeypatch.setattr(KafkaConsumer, "seek", seek)
    with pytest.raises(KafkaUnreachable, match="'gone-under-a-move' no longer has the records"):
        move_states(states, new, store, partitions=5)
    assert not holds_records(new)


def test_the_old_query_goes_on_as_if_nothing_had_been_moved(kafka: LocalKafka, tmp_path: Path) -> None:
    old, states = stopped(kafka, "stays", tmp_path)
    move_states(states, KafkaUrl(kafka.bootstrap, "stays-too"), str(tmp_path / "new"), partitions=5)
    produce_log(AFTER.slice(UNFOLDED), old.address)
    ends = {partition: (states.offsets[partition], end) for partition, (_, end) in old.offsets().items()}
    old.fold(pa.concat_tables(read_records(old.url, ends)), 3)
    assert by_topic(old.outcome()) == undisturbed(2, tmp_path / "whole")


def test_states_go_on_in_their_topic(kafka: LocalKafka, tmp_path: Path) -> None:
    old, states = stopped(kafka, "restored", tmp_path, unfolded=0)
    store = str(tmp_path / "again" / "restored")
    restore_states(states, old.url, store, partitions=2)
    seed = read_seed(store)
    assert seed is not None
    assert seed.seed.offsets == {str(partition): offset for partition, offset in states.offsets.items()}
    assert [each.broker for each in seed.states()] == list(states.encoded)
    produce_log(AFTER, old.address)
    again = Query(kafka, "restored", tmp_path / "again", seed.states())
    ends = {partition: (states.offsets[partition], end) for partition, (_, end) in again.offsets().items()}
    again.fold(pa.concat_tables(read_records(again.url, ends)), 3)
    assert joined(old, again) == undisturbed(2, tmp_path / "whole")


def test_states_do_not_go_on_in_another_topic_of_the_same_name(kafka: LocalKafka, tmp_path: Path) -> None:
    old, states = stopped(kafka, "made-anew", tmp_path, unfolded=0)
    ensure_ingress(old.url, old.store)
    with administration(old.url) as admin:
        admin.delete_topics([old.url.topic])
    produce_log(
        pa.concat_tables([BEFORE, AFTER]), old.address, partitions=2
    )  # more than the states have folded
    with pytest.raises(IngressChanged, match="'made-anew' was deleted and recreated"):
        restore_states(states, old.url, str(tmp_path / "again"), partitions=2)
    assert not (tmp_path / "again").exists()


def cut_apart(kafka: LocalKafka, name: str, folder: Path, command: Any) -> States:
    """A query that has folded a command for all partitions in one of them alone."""
    query = Query(kafka, name, folder)
    produce_log(BEFORE, query.address, partitions=2)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    for partition in range(2):
        producer.send(name, to_json(command), partition=partition, timestamp_ms=LOG["timestamp"][-1].as_py())
    producer.close()
    log = read_topic(query.url)
    last = log.offsets[1][1] - 1
    query.fold(
        log.records.filter((pa.compute.field("partition") == 0) | (pa.compute.field("offset") < last)), 2
    )
    states = query.states()
    return states._replace(offsets={**states.offsets, 1: last})


@pytest.mark.parametrize("command", [RunCheck(check="messageExpiry"), ConnectionLost(connection="p")])
def test_a_command_that_only_one_partition_has_folded(
    command: Any, kafka: LocalKafka, tmp_path: Path
) -> None:
    name = f"apart-{type(command).__name__}"
    states = cut_apart(kafka, name, tmp_path, command)
    with pytest.raises(
        NotSpread,
        match=r"partitions 0 and 1 have not folded the same commands .* \(0 and 1 are left\): start the query again",
    ):
        move_states(states, KafkaUrl(kafka.bootstrap, f"{name}-new"), str(tmp_path / "new"), partitions=4)


def test_what_cannot_be_moved(kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, states = stopped(kafka, "wrong", tmp_path)
    new, store = KafkaUrl(kafka.bootstrap, "wrong-new"), str(tmp_path / "new")
    behind = states._replace(offsets=dict.fromkeys(states.offsets, 3))
    with pytest.raises(LogError, match="Kafka has deleted those before .*: what was in between is lost"):
        move_states(behind, new, store, partitions=5)
    ahead = states._replace(offsets=dict.fromkeys(states.offsets, 10**6))
    with pytest.raises(LogError, match="a different topic of the same name"):
        move_states(ahead, new, store, partitions=5)
    with pytest.raises(NotWhole, match="is the store of a query: use a new one"):
        move_states(states, new, old.store, partitions=5)
    with pytest.raises(NotWhole, match="topic wrong has records already"):
        move_states(states, old.url, store, partitions=2)
    with monkeypatch.context() as patch:
        patch.setattr(move, "MOST_UNFOLDED", 10)
        with pytest.raises(LogError, match="has not folded .* records of topic wrong: start the query again"):
            move_states(states, new, store, partitions=5)
    with pytest.raises(LogError, match="has 2 partitions, but the states have 3"):
        restore_states(states, old.url, store, partitions=3)
    with pytest.raises(LogError, match="the states continue at offset 3, and Kafka has offsets"):
        restore_states(behind, old.url, store, partitions=2)
    empty = states._replace(entries=str(tmp_path / "empty"), name="without entries")
    with pytest.raises(EntryNotFound, match="has 0 entries of persistent.*a file is missing"):
        move_states(empty, KafkaUrl(kafka.bootstrap, "wrong-3"), str(tmp_path / "third"), partitions=5)


def test_writers_that_go_on_are_noticed(kafka: LocalKafka, tmp_path: Path) -> None:
    old, states = stopped(kafka, "busy-source", tmp_path)

    def meanwhile(sent: int, total: int) -> None:
        produce_log(AFTER.slice(UNFOLDED, 1), old.address)

    with pytest.raises(
        LogError, match="topic busy-source got . more records meanwhile, which the copy lacks"
    ):
        move_states(
            states,
            KafkaUrl(kafka.bootstrap, "busy-target"),
            str(tmp_path / "new"),
            partitions=5,
            progress=meanwhile,
        )


def test_a_topic_that_somebody_else_writes_to(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, states = stopped(kafka, "shared-source", tmp_path)
    new, store = KafkaUrl(kafka.bootstrap, "shared-target"), str(tmp_path / "new")
    with monkeypatch.context() as patch:
        patch.setattr(move, "send_rest", interrupt)
        with pytest.raises(Interrupted):
            move_states(states, new, store, partitions=5)
    produce_log(AFTER.slice(200), f"kafka://{new.bootstrap}/{new.topic}")
    with pytest.raises(NotProduced, match="has records that this copy did not write"):
        move_states(states, new, store, partitions=5)


def interrupt(*_: Any, **__: Any) -> Iterator[None]:
    raise Interrupted
