"""Folding several policies side by side: what an observer gets of runs of plain publishes."""

from typing import Any
from unittest import mock

import pyarrow as pa

from schemas.commands import BrokerConfig, Publish, to_binary
from schemas.records import RECORD
from streaming.answers.whatif.side_by_side import fold_side_by_side
from streaming.broker import context
from streaming.fold import publishes as publish_columns

START = 1_700_000_000_000
TOPICS = ["persistent://public/default/a", "persistent://public/default/b"]


def test_effects_that_leave_in_the_middle_of_a_run_come_in_order() -> None:
    # New producers take the scalar step, after which the effects leave. Known producers' publishes, some of them duplicates, don't.
    settings: dict[str, Any] = {
        "brokerDeduplicationEnabled": True,
        "managedLedgerMaxEntriesPerLedger": 5,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    }
    publishes = [Publish(producer=f"p{number // 9}", sequence_id=number * 7 % 11) for number in range(60)]
    log: list[tuple[str | None, Any]] = [
        (None, BrokerConfig(settings=settings)),
        *((TOPICS[n % 7 % 2], each) for n, each in enumerate(publishes)),
    ]
    records = pa.Table.from_pylist(
        [
            {"partition": 0, "offset": offset, "timestamp": START, "topic": topic, "value": to_binary(command)}
            for offset, (topic, command) in enumerate(log)
        ],
        RECORD,
    )  # fmt: skip
    found = []
    for shortest, rows in ((1_000, 1_000), (1, 1)):
        with (
            mock.patch.object(publish_columns, "_SHORTEST", shortest),
            mock.patch.object(context, "ROWS", rows),
            mock.patch("streaming.answers.whatif.side_by_side.PIECES", 1),
        ):
            (observer,) = fold_side_by_side(records, 0, []).observers
        found.append(
            [
                (of.written.encode(), of.answer.up_to(len(of.messages)).tolist(), of.peak_storage)
                for of in map(observer.topics.__getitem__, TOPICS)
            ]
        )
    assert found[0] == found[1]
