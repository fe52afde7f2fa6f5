"""Names made to break out of the store, through a whole replay: files only where they belong, and nothing lost."""

import os
from pathlib import Path

import msgspec
import pytest

from sinks.ledger_store import read_entries
from sinks.quarantine import read_quarantine
from sinks.tables import read_table
from streaming.jobs.replay import replay_in_process

LOCAL = [
    "..", ".", "../../../../../escaped", "/etc/passwd", "//x", "..\\..\\escaped", "C:\\nul", "a\0b", "_temporary", "_SUCCESS",
    ".hidden", "x" * 10_000, "é" * 10_000, "orders", "Orders", "ORDERS", "\u043erders", "K", "\u212a", "é", "e\u0301", "%2e%2e",
    "%", "kind=TICK", "a\nb\r\x1b[31m", "~", "-rf", "con", "a.", "a ", "a", "\u202egnp", "\U0001f600",
]  # fmt: skip
"""Of topics in ``persistent://a/b/``, of subscriptions and of producers."""
WHOLE = [
    "",
    "/",
    "../../../../escaped",
    "/etc/passwd",
    "\0",
    "x" * 10_000,
    "persistent://../../..",
    "kafka://a:1/b",
]
"""In the place of a topic's full name."""
ENTRIES = 3


@pytest.mark.feature("J6")
def test_files_are_only_in_the_store_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nested = tmp_path / "a" / "b" / "c"
    nested.mkdir(parents=True)
    monkeypatch.chdir(nested)
    topics = [f"persistent://a/b/{name}" for name in LOCAL] + WHOLE
    log, out = tmp_path / "log.jsonl", nested / "out"
    settings = {"managedLedgerMaxEntriesPerLedger": 2, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
    commands: list[dict[str, object]] = [{"command": "BROKER_CONFIG", "profile": "4.x", "settings": settings}]
    for number, topic in enumerate(topics):
        name = LOCAL[number % len(LOCAL)]
        client = {"topic": topic, "connection": name}
        ask = {"consumer_id": number, "request_id": number, "subscription": name, "subType": "Shared"}
        commands.append(client | {"command": "SUBSCRIBE", "consumer_name": name} | ask)
        for sequence_id in range(ENTRIES):
            payload = f"{number}:{sequence_id}"
            commands.append(
                {"topic": topic, "producer": name, "sequence_id": sequence_id, "payload": payload}
            )
    lines = [
        msgspec.json.encode({"partition": 0, "timestamp": 1000, "topic": None} | each) for each in commands
    ]
    log.write_bytes(b"\n".join(lines))

    replay_in_process(log, out, batches=3)

    assert set(tree(tmp_path)) - {"log.jsonl", "a", "a/b", "a/b/c", "a/b/c/out"} == {
        f"a/b/c/out/{path}" for path in tree(out)
    }
    assert not [path for path in out.rglob("*") if path.is_symlink()]
    assert {path.name for path in out.iterdir()} == {"store", "tables", "quarantine", "state"}

    # Each message is stored, or answered with an error, or in quarantine, and says so under its own name.
    stored = {(row["topic"], row["payload"].decode()) for row in read_entries(str(out / "store")).to_pylist()}
    refused = {row["topic"] for row in read_quarantine(str(out)).to_pylist()}
    refused |= {
        row["topic"]
        for kind in ("ERROR", "SEND_ERROR")
        for row in read_table(str(out / "tables"), kind).to_pylist()
    }
    for number, topic in enumerate(topics):
        expected = {(topic, f"{number}:{sequence_id}") for sequence_id in range(ENTRIES)}
        assert expected <= stored or (not expected & stored and (topic or None) in refused), topic[:50]
    accepted = {topic for topic, _ in stored}
    assert len(accepted) >= 25, "most names are legal"
    sealed = {path.parent.name for path in (out / "store" / "ledgers").rglob("*.parquet")}
    assert len({folder.casefold() for folder in sealed}) == len(accepted), "one folder each"


def tree(root: Path) -> list[str]:
    """Every path below `root`, hidden ones too."""
    return [
        os.path.relpath(Path(folder) / name, root)
        for folder, folders, names in os.walk(root)
        for name in (*folders, *names)
    ]
