"""``python -m tests.state.record_draft``: states as the first commit of the broker wrote them.

It was never released, but it is a realistic old version: since then, fields were inserted before others, and a default
changed. The code of that commit folds the log in a separate process. `tests/golden/draft` has the result.
"""

import lzma
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

COMMIT = "9d31bbd"
DRAFT = Path(__file__).parents[1] / "golden" / "draft" / "broker.xz"
ROOT = Path(__file__).parents[2]

FOLD = """
import sys, msgspec
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
broker = Broker(0, NoEntries())
for offset, (timestamp, topic, value) in enumerate(msgspec.msgpack.decode(sys.stdin.buffer.read())):
    broker.apply(offset, timestamp, topic, value)
receipts = [r.effect for r in broker.take() if type(r.effect).__name__ == "SendReceipt" and r.effect.size is not None]
entries = [(r.topic, r.ledger_id, r.entry_id, r.producer_name, r.sequence_id, r.publish_time, r.size) for r in receipts]
draft = {"state": broker.encode(), "entries": entries, "stats": broker.stats()}
sys.stdout.buffer.write(msgspec.msgpack.encode(draft))
"""


class Draft(msgspec.Struct):
    """`entries`: topic, ledger, entry, producer, sequence id, publish time (ms), size (bytes)."""

    state: bytes
    entries: list[tuple[str, int, int, str, int, int, int]]
    stats: list[dict[str, Any]]


def read() -> Draft:
    return msgspec.msgpack.decode(lzma.decompress(DRAFT.read_bytes()), type=Draft)


def main() -> None:
    from tests.broker.kit import START
    from tests.e2e.traffic import Traffic

    log = Traffic(3, START).write(500).to_pylist()
    records = [(row["timestamp"], row["topic"], row["value"]) for row in log]
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x", "-C", folder], input=archive, check=True)
        draft = subprocess.run(
            [sys.executable, "-c", FOLD], input=msgspec.msgpack.encode(records), check=True, capture_output=True,
            cwd=folder, env={"PYTHONPATH": folder},
        ).stdout  # fmt: skip
    DRAFT.parent.mkdir(parents=True, exist_ok=True)
    DRAFT.write_bytes(lzma.compress(draft, preset=9))


if __name__ == "__main__":
    main()
