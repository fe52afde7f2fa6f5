"""``docs/example.jsonl`` and ``docs/example-transactions.jsonl``: small logs with every command, and the output rows that they cause."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow.parquet as pq

from schemas import commands as c
from schemas.effects import KINDS, Tick
from schemas.outputs import IDENTITY
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.jobs.replay import replay_in_process

LOG = Path(__file__).parents[1] / "docs" / "example.jsonl"
TRANSACTIONS = LOG.with_name("example-transactions.jsonl")
"""One of its own, since transactions need a setting."""
SHORT_FORM = "PUBLISH"
"""What stands for the name of the command in the short form."""


class Example(NamedTuple):
    """An output row. `record` is the number of the line in its `log` that caused it; None: no line did, but the trigger."""

    record: int | None
    row: dict[str, Any]
    log: Path = LOG


def records() -> list[str]:
    """The lines of the logs."""
    return [line for log in (LOG, TRANSACTIONS) for line in log.read_text().splitlines()]


@cache
def commands() -> dict[str, str]:
    """Command → its first record in the logs."""
    found: dict[str, str] = {}
    for line in records():
        found.setdefault(msgspec.json.decode(line).get("command", SHORT_FORM), line)
    return found


@cache
def rows() -> dict[str, Example]:
    """Kind → its most telling row, which is the longest: what the table sink wrote when the log was replayed."""
    found = {KINDS[Tick]: Example(None, _tick())}
    for log in (TRANSACTIONS, LOG):
        found |= _rows(log)
    return {kind: found[kind] for kind in KINDS.values() if kind in found}


def _rows(log: Path) -> dict[str, Example]:
    found: dict[str, Example] = {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        replay_in_process(log, out, partitions=1)
        for kind in KINDS.values():
            written: list[dict[str, Any]] = []
            for file in (out / "tables" / f"kind={kind}").glob("*.parquet"):
                written += pq.read_table(file, partitioning=None).to_pylist()
            if written:
                written.sort(key=lambda row: [row[name] for name in IDENTITY])
                row = max(written, key=lambda row: len(str([v for v in row.values() if v is not None])))
                found[kind] = Example(row["offset"] + 1, row, log)
    return found


def _tick() -> dict[str, Any]:
    """The row of a tick of the trigger, which a replay of a log does not have."""
    broker = Broker(0, NoEntries())
    first = msgspec.json.decode(records()[0])["timestamp"]
    broker.apply(0, first, None, c.Tick(), b"")
    broker.take()
    broker.tick(first + 1000)
    (row,) = broker.take()
    return {
        "partition": 0,
        "offset": row.offset,
        "ordinal": row.ordinal,
        "clock": row.clock,
        **row.effect._asdict(),
    }
