"""The page of a what-if stays small whatever the log has, and shows what matters most."""

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from streaming.answers.fates import CHANGE_COLUMNS, CHANGES, Change
from streaming.answers.whatif.answer import BASELINE, DIFFERENCES, SERIES, SUMMARY, Rules, Totals, WhatIf
from streaming.answers.whatif.report import report

LONG = '"<&🙂' * 500


def table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema)


def answer(
    policies: list[str], topics: list[str], counts: dict[tuple[str, str, Change], int], text: str = ""
) -> WhatIf:
    """What-if of these policy sets and topics, with one subscription each. `counts`: of differences, by policy set, topic and change."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for (name, topic, change), count in counts.items():
        found.setdefault((name, topic), {})[CHANGE_COLUMNS[change]] = count
    of_topic = {
        "open_loop_from": 5,
        "open_loop_offset": 1,
        "open_loop_baseline": "b" + text,
        "open_loop_proposed": "p" + text,
    }
    summary = [
        row
        for name in policies
        for topic in topics
        for row in (
            {"policies": name, "topic": topic, **of_topic},
            {"policies": name, "topic": topic, "subscription": "s" + text, "lost_undelivered": 0, "lost_delivered": 0,
             "peak_backlog": 0, "peak_oldest": 0, **found.get((name, topic), {})},
        )
    ]  # fmt: skip
    side = {
        "fate": "expired",
        "taken": "delivered",
        "clock": 1,
        "cause": "c" + text,
        "policy": text or None,
        "age": 1,
    }
    sides = {f"{which}_{name}": value for which in ("baseline", "proposed") for name, value in side.items()}
    differences = [
        {"policies": name, "topic": topic, "subscription": "s" + text, "change": change, "open_loop": True, "offset": number,
         "producer": "p" + text, "sequence_id": number, "key": text, "rules": text, **sides}
        for (name, topic, change), count in sorted(counts.items(), key=lambda each: each[0][1])
        for number in range(count)
    ]  # fmt: skip
    measures = [("storage", None), ("backlog", "s" + text), ("oldest", "s" + text)]
    series = [
        {
            "policies": name,
            "topic": topic,
            "subscription": of,
            "measure": measure,
            "clock": clock,
            "value": clock % 7,
        }
        for name in (BASELINE, *policies)
        for topic in topics[:2]
        for measure, of in measures
        for clock in range(500)
    ]
    changes: dict[str, int] = dict.fromkeys(CHANGES, 10)
    totals = [Totals(name, changes, *[10] * 12) for name in (BASELINE, *policies)]
    return WhatIf(
        "log" + text, 1, 0, 500, "recorded", totals, table(summary, SUMMARY), table(differences, DIFFERENCES), table(series, SERIES)
    )  # fmt: skip


def test_it_is_small_whatever_names_and_texts_there_are() -> None:
    policies, topics = (
        [f"{number}{LONG}" for number in range(40)],
        [f"{number}{LONG}" for number in range(16)],
    )
    counts = {(name, topic, change): 1 for name in policies[:5] for topic in topics for change in CHANGES}
    found = answer(policies, topics, counts, LONG)
    found.rules = Rules("4.2", policies[0], 60, [], {f"{number}{LONG}": 1 for number in range(300)})
    assert len(report(found).encode()) < 5_000_000


def test_it_is_small_however_many_topics_and_messages_differ() -> None:
    topics = [f"persistent://public/default/{number:04}" for number in range(2_000)]
    saved: Change = "saved"
    found = answer(["a", "b"], topics, {(name, topic, saved): 5 for name in ("a", "b") for topic in topics})
    page = report(found)
    assert len(page.encode()) < 500_000
    assert "3,800 more rows are in the Parquet files" in page  # of subscriptions
    assert "19,800 more rows are in the Parquet files" in page  # of messages


@pytest.mark.parametrize("seed", range(20))
def test_the_most_important_differences(seed: int) -> None:
    dice = Random(seed)
    topics = [f"persistent://public/default/{number}" for number in range(dice.randrange(1, 40))]
    counts = {
        (name, topic, change): dice.choice([1, 2, 30])
        for name in ("a", "b")
        for topic in topics
        for change in CHANGES
        if dice.random() < 0.2
    }
    found, most = answer(["a", "b"], topics, counts), dice.choice([1, 10, 200])
    found.differences = pa.concat_tables(
        found.differences.slice(start, 97) for start in range(0, max(len(found.differences), 1), 97)
    )
    rows = found.important(most)
    order = sorted(counts, key=lambda each: (CHANGES.index(each[2]), -counts[each], each[1], each[0]))[:most]
    each = most // max(len(order), 1)
    assert [(row["policies"], row["topic"], row["change"], row["offset"]) for row in rows] == [
        (*group, number) for group in order for number in range(min(each, counts[group]))
    ]
