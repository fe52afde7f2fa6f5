"""What became of the messages of a mirrored topic: the mirror writes no deliveries, and sees a subscription late."""

import json
from pathlib import Path
from typing import Any

import pytest

from streaming.answers.explain.life import explain
from streaming.broker.persistent.topic import SHADOW_SOURCE
from tests.mirror.kit import entries_of_mirror

pytestmark = pytest.mark.feature("K4")

T = "persistent://public/default/t"
COMMON = {"command": "MIRROR", "connection": "mirror", "ledger_id": 7, "first_ledger": 7}


def seen(mark_delete: int, *acknowledged: list[int]) -> dict[str, Any]:
    backlog = 2 - mark_delete - len(acknowledged)
    return {"s": {"mark_delete": [7, mark_delete], "acknowledged": acknowledged, "backlog": backlog}}


@pytest.mark.parametrize(
    ("subscriptions", "outcomes"),
    [
        ([seen(-1)], ["waiting", "waiting", "waiting"]),
        ([seen(-1), seen(0)], ["acked", "waiting", "waiting"]),
        ([seen(0)], ["unknown", "waiting", "waiting"]),
        ([seen(0), seen(1)], ["unknown", "acked", "waiting"]),
        ([seen(2)], ["unknown", "unknown", "unknown"]),
        ([seen(-1), seen(-1, [7, 0, 7, 1])], ["waiting", "acked out of order", "waiting"]),
        ([seen(-1), seen(0), {}, seen(2)], ["unknown", "unknown", "unknown"]),
    ],
)
def test_what_became_of_each_message(
    subscriptions: list[dict[str, Any]], outcomes: list[str], tmp_path: Path
) -> None:
    records: list[dict[str, Any]] = [
        {"command": "ADMIN", "method": "PUT", "path": f"/{T.replace('://', '/')}", "body": {SHADOW_SOURCE: T}}
    ]
    records += entries_of_mirror(7, 3)
    for each in subscriptions:
        shown = {"last_confirmed": [7, 2], "read_to": [7, 2], "entries": 3, "size": 57, "subscriptions": each}
        records.append(COMMON | shown)
    lines = [json.dumps({"timestamp": 1000 * at, "topic": T, **each}) for at, each in enumerate(records)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    for entry, outcome in enumerate(outcomes):
        (life,) = explain(tmp_path / "log.jsonl", T, position=(7, entry), snapshots=tmp_path / "snapshots")
        assert [each.outcome for each in life.subscriptions] == [outcome], life
