"""A topic is compacted in the middle of a micro-batch: its payloads are found wherever they wait, and no cut of the log makes a difference."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from schemas.records import RECORD
from sinks import rows as spooled
from sinks.ledger_store import LedgerStore
from streaming.cli.app import app
from streaming.fold import columns, recent_payloads
from streaming.fold.columns import Fold
from streaming.log.files import write_log
from streaming.log.table import log_table
from tests.broker.random_lives import live
from tests.rows import together

pytestmark = pytest.mark.feature("C4", "J1")

Log = Sequence[tuple[int, str | None, bytes]]
T = "persistent://public/default/t"
START = 1_700_000_000_000


def table(log: Log) -> pa.Table:
    timestamps, topics, values = zip(*log, strict=True)
    return log_table(
        RECORD, partition=[0] * len(log), offset=list(range(len(log))), timestamp=list(timestamps),
        topic=pa.array(topics, pa.string()), value=list(values),
    )  # fmt: skip


def folded(log: Log, folder: Path, sizes: Iterator[int]) -> tuple[pa.Table, bytes, pa.Table]:
    """Rows, state and stored entries of a log in micro-batches of these sizes, each stored before the next."""
    store, records = LedgerStore(str(folder)), table(log)
    fold, start, batch, found = Fold(store), 0, 0, list[pa.Table]()
    while start < len(records):
        size = next(sizes)
        store.begin(batch)
        for partition, rows in fold.apply(records.slice(start, size)):
            store.write(batch, partition, rows)
            found.append(together(rows))
        start, batch = start + size, batch + 1
    (state,) = fold.states()
    store.begin(batch)
    return pa.concat_tables(found).combine_chunks(), state.broker, store.scan()


def pieces(seed: str, most: int) -> Iterator[int]:
    draw = Random(seed)
    while True:
        yield draw.randint(1, most)


def publishes() -> Log:
    """Runs of plain publishes, with compactions and readers between them."""
    draw, log = Random("publishes"), list[tuple[int, str | None, bytes]]()
    now = START

    def add(command: dict[str, Any], topic: str | None = T) -> None:
        log.append((now, topic, msgspec.json.encode(command)))

    settings = {"managedLedgerMaxEntriesPerLedger": 50, "managedLedgerMinLedgerRolloverTimeMinutes": 0,
                "managedLedgerDefaultMarkDeleteRateLimit": 0, "brokerServiceCompactionMonitorIntervalInSeconds": 10}  # fmt: skip
    add({"command": "BROKER_CONFIG", "settings": settings}, None)
    path = "/persistent/public/default/t"
    sequence = 0
    for turn in range(7):
        for _ in range(draw.choice([5, 20, 60])):
            key = {"key": f"k{draw.randrange(20)}"} if draw.random() < 0.9 else {}
            add(
                {"producer": "p", "sequence_id": sequence, "payload": f"v{sequence}", **key},
                draw.choice([T, T, T + "2"]),
            )
            sequence += 1
            now += draw.choice([0, 1, 400])
        if turn == 4:
            add({"command": "ADMIN", "method": "POST", "path": f"{path}/compactionThreshold", "body": 500})
        add({"command": "ADMIN", "method": "PUT", "path": f"{path}/compaction"})
        add({"command": "SUBSCRIBE", "connection": f"c{turn}", "subscription": f"r{turn}", "subType": "Exclusive", "consumer_id": 1,
             "request_id": 1, "durable": False, "read_compacted": True,
             "start_message_id": {"ledgerId": 2**64 - 1, "entryId": 2**64 - 1}})  # fmt: skip
        add(
            {
                "command": "FLOW",
                "connection": f"c{turn}",
                "consumer_id": 1,
                "messagePermits": draw.choice([1, 7, 1000]),
            }
        )
        add({"command": "CONNECTION_LOST", "connection": f"c{turn}"}, None)
    return log


@pytest.mark.parametrize("spool", [0, spooled.SPOOL_BYTES], ids=["in a file", "in memory"])
def test_cuts_of_runs_of_publishes_make_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spool: int
) -> None:
    log = publishes()
    one_by_one = folded(log, tmp_path / "one", pieces("", 1))
    kinds = one_by_one[0]["kind"].to_pylist()
    assert kinds.count("COMPACTED_ENTRY") > 50
    messages = one_by_one[0].filter(pc.equal(one_by_one[0]["kind"], "MESSAGE"))
    assert pc.sum(pc.is_valid(messages["payload"])).as_py() > 50
    monkeypatch.setattr(spooled, "SPOOL_BYTES", spool)
    for most in (7, 100, len(log)):
        assert folded(log, tmp_path / f"{most}", pieces(f"{most}", most)) == one_by_one, most


@pytest.mark.parametrize("seed", range(2))
def test_cuts_of_random_lives_make_no_difference(tmp_path: Path, seed: int) -> None:
    log = live("compaction", seed).log
    one_by_one = folded(log, tmp_path / "one", pieces("", 1))
    for most in (20, len(log)):
        assert folded(log, tmp_path / f"{most}", pieces(f"{seed}", most)) == one_by_one, most


def looked_at(log: Log, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many rows are looked at in search of payloads, when a log is one micro-batch."""
    looked = 0

    def counted(original: Any) -> Any:
        def look(*given: Any) -> Any:
            nonlocal looked
            found = original(*given)
            table = given[0] if isinstance(given[0], pa.Table) else found
            looked += 0 if table is None else len(table)
            return found

        return look

    monkeypatch.setattr(recent_payloads, "_runs", counted(recent_payloads._runs))
    monkeypatch.setattr(spooled.SpooledRows, "waiting", counted(spooled.SpooledRows.waiting))
    rows, *_ = folded(log, folder, iter([len(log)]))
    assert rows["kind"].to_pylist().count("COMPACTED_ENTRY") > 5
    return looked


@pytest.mark.parametrize(
    ("others", "compactions", "between", "piece"),
    [(2_000, 60, 8, 1 << 16), (0, 1, 3_000, 1 << 16), (0, 1, 3_000, 1_000)],
)
def test_compactions_look_at_the_rows_of_their_micro_batch_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int, compactions: int, between: int, piece: int
) -> None:
    """However many entries they read, and how many of them there are: they took a second for each ten thousand publishes that were there."""
    log = list[tuple[int, str | None, bytes]]()

    def publish(topic: str) -> None:
        number = len(log)
        found = {"producer": "p", "sequence_id": number, "payload": "x", "key": str(number % 7)}
        log.append((START, topic, msgspec.json.encode(found)))

    for _ in range(others):
        publish(T + "2")
    for _ in range(compactions):
        for _ in range(between):
            publish(T)
        compaction = {"command": "ADMIN", "method": "PUT", "path": "/persistent/public/default/t/compaction"}
        log.append((START, T, msgspec.json.encode(compaction)))
    monkeypatch.setattr(spooled, "SPOOL_BYTES", 0)
    monkeypatch.setattr(columns, "CHUNK_RECORDS", piece)
    assert looked_at(log, tmp_path, monkeypatch) < 12 * len(log)


def test_what_was_kept_can_be_read_when_the_topic_has_it_no_more(tmp_path: Path) -> None:
    """The store has the kept messages in a ledger of their own."""
    log = publishes()
    *_, entries = folded(log, tmp_path, pieces("x", 200))
    kept = entries.filter(pc.equal(entries["topic"], T))
    newest = pc.max(kept["ledger_id"]).as_py()
    own = kept.filter(pc.equal(kept["ledger_id"], newest))
    assert len(own) <= 20
    assert all(payload.startswith(b"v") for payload in own["payload"].to_pylist())


def test_what_if_says_what_a_threshold_keeps(tmp_path: Path) -> None:
    """As much as a replay under the policy, which has the payloads."""
    by_hand = (b'/compaction"', b"compactionThreshold")
    plain = [each for each in publishes() if not any(text in each[2] for text in by_hand)]
    log, policies = tmp_path / "log.jsonl", tmp_path / "policies.yaml"
    write_log(log, table(plain))
    policies.write_text("namespaces:\n  public/default:\n    compactionThreshold: 500\n")
    path = "/namespaces/public/default/compactionThreshold"
    set_it = msgspec.json.encode({"command": "ADMIN", "method": "PUT", "path": path, "body": 500})
    replayed, *_ = folded([plain[0], (START, None, set_it), *plain[1:]], tmp_path / "store", pieces("", 100))
    expected = {}
    for topic in (T, T + "2"):
        rows = replayed.filter(pc.equal(replayed["topic"], topic)).to_pylist()
        kept = [each for each in rows if each["kind"] == "COMPACTED_ENTRY"]
        kept = [each for each in kept if each["ledger_id"] == kept[-1]["ledger_id"]]
        done = kept[-1]["offset"]
        stored = [each for each in rows if each["kind"] == "SEND_RECEIPT" and each["offset"] < done]
        expected[topic] = len(kept), sum(each["size"] for each in kept), len(stored) - len(kept)
    asked = ["whatif", str(log), "--policies", str(policies)]
    ran = CliRunner().invoke(app, [*asked, "--json"])
    assert ran.exit_code == 0, ran.output
    compacted = json.loads(ran.output)["compacted"]
    assert {each["topic"]: (each["kept"], each["size"], each["left_out"]) for each in compacted} == expected
    assert {each["policies"] for each in compacted} == {"policies"}
    assert "public/default/t is compacted: its compacted data has" in CliRunner().invoke(app, asked).output


@pytest.mark.parametrize(
    "command", [["whatif", "{log}", "--policies", "{policies}"], ["advise", "{log}"]], ids=str
)
def test_answers_about_batches_without_payloads_are_refused(tmp_path: Path, command: list[str]) -> None:
    """In one line that says why."""
    log, policies = tmp_path / "log.jsonl", tmp_path / "policies.yaml"
    of = {"connection": "b", "producer_id": 1}
    metadata = {"producer_name": "b", "sequence_id": 0, "publish_time": START, "num_messages_in_batch": 2}
    commands: list[dict[str, Any]] = [
        {"command": "PRODUCER", **of, "request_id": 1, "producer_name": "b"},
        {
            "command": "SEND",
            **of,
            "sequence_id": 0,
            "num_messages": 2,
            "metadata": metadata,
            "payload": "x" * 99,
        },
        {"command": "ADMIN", "method": "PUT", "path": "/persistent/public/default/t/compaction"},
    ]
    write_log(log, table([(START, T, msgspec.json.encode(each)) for each in commands]))
    policies.write_text("namespaces:\n  public/default:\n    messageTTL: 60\n")
    ran = CliRunner().invoke(app, [each.format(log=log, policies=policies) for each in command])
    assert ran.exit_code == 1
    assert f"{T} is compacted and has batches, whose keys are in their payloads" in ran.output
    assert "Traceback" not in ran.output


@pytest.mark.parametrize("processes", [1, 2])
def test_a_scenario_with_compaction_is_refused(tmp_path: Path, processes: int) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "topic: t\nsetup: [PUBLISH: {times: 2}]\n"
        "clients: {c: [SUBSCRIBE: {subscription: s, subType: Shared}]}\n"
        "faults: [ADMIN: {method: PUT, path: '{topic}/compaction'}]\n"
    )
    ran = CliRunner().invoke(app, ["check", str(scenario), "--processes", str(processes)])
    assert ran.exit_code == 2
    assert f"{T} is compacted, which needs the payloads of its messages" in ran.output
    assert "Traceback" not in ran.output
