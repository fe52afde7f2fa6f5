"""docs/idea.svg shows what the log in docs/guide/replay.md leads to."""

from __future__ import annotations

import re
from pathlib import Path

import magnetar
from tools.picture import ROWS, picture

ROOT = Path(__file__).parents[1]
HOUR = '{"command": "ADMIN", "method": "POST", "path": "/namespaces/shop/day/messageTTL", "body": 3600}\n'


def test_its_rows_and_its_difference_are_true(tmp_path: Path) -> None:
    text, *_ = re.findall(r"<<'END'\n(.*?)^END$", (ROOT / "docs/guide/replay.md").read_text(), re.M | re.S)
    log, policies, out = tmp_path / "orders.jsonl", tmp_path / "hour.jsonl", tmp_path / "out"
    log.write_text(text)
    policies.write_text(HOUR)
    magnetar.replay(log, out)
    shown = {
        f"{kind} {row['ledger_id']}:{row['entry_id']}"
        for kind in ("SEND_RECEIPT", "MESSAGE")
        for row in magnetar.read_rows(out, kind).to_pylist()
    }
    assert shown == {each for line in ROWS for each in line.split("   ")}
    assert magnetar.read_rows(out, "EXPIRED")["entries"].to_pylist() == [2]
    assert "EXPIRED billing, 2 entries: TTL 60 s" in picture()
    answer = magnetar.whatif(log, policies)
    assert [each.expired for each in answer.totals] == [2, 0]
    saved = [(row["change"], row["sequence_id"]) for row in answer.differences.to_pylist()]
    assert saved == [("saved", 1), ("saved", 2)]
    assert "with one hour, billing still has 1:1 and 1:2" in picture()
