"""What-if forgets a message once nothing changes for it any more: the answer is the same, and the memory does not grow with the log."""

from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from streaming.answers.whatif import compare, differences, settling, side_by_side
from streaming.answers.whatif.answer import WhatIf
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.answers.whatif.observed import OfTopic
from tests.answers.test_reactive import as_table
from tests.answers.test_whatif import Record, T, ack, broker, flow, publish, subscribe, table, tick
from tests.broker.random_lives import live
from tests.broker.recorded_lives import WITHOUT_PAYLOADS

LEDGERS: dict[str, Any] = {
    "managedLedgerMaxEntriesPerLedger": 3,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}
POLICIES = [
    PolicySet("ttl", broker(ttlDurationDefaultInSeconds=30)),
    PolicySet("deduplication", broker(brokerDeduplicationEnabled=True, **LEDGERS)),
    PolicySet("retention", broker(defaultRetentionTimeInMinutes=-1, defaultRetentionSizeInMB=-1)),
    PolicySet("ledgers", broker(**LEDGERS)),
]


def answer(log: Any, at_least: int, pieces: int = 60, **asked: Any) -> tuple[WhatIf, list[int]]:
    """And how many messages a topic kept after each piece. `at_least`: so many are forgotten at once."""
    kept: list[int] = []

    class Forgetting(differences.Comparison):
        def settle(self, runs: side_by_side.Runs) -> None:
            super().settle(runs)
            kept.extend(len(each) - each.first for each in runs.messages.values())

    with (
        mock.patch.object(settling, "AT_LEAST", at_least),
        mock.patch.object(compare, "Comparison", Forgetting),
        mock.patch.object(side_by_side, "PIECES", pieces),
    ):
        return whatif(log, partitions=1, processes=1, **asked), kept


def rows(found: WhatIf) -> list[Any]:
    tables = found.summary, found.differences, found.series
    return [found.totals, *(each.to_pylist() for each in tables)]


@pytest.mark.parametrize(("theme", "seed"), WITHOUT_PAYLOADS)
def test_the_answer_is_the_same(theme: str, seed: int) -> None:
    log = as_table(live(theme, seed).log)
    asked: dict[str, Any] = {"policies": [POLICIES[seed % 2], POLICIES[2 + seed // 2 % 2]]}
    if seed % 4 == 0:
        asked["profile"] = "2.10"
    assert rows(answer(log, 1, **asked)[0]) == rows(answer(log, 1 << 60, **asked)[0])


def consumed(count: int) -> list[Record]:
    """A message each second, which a consumer gets and acks, in ledgers of three."""
    records = [subscribe(), flow(0, 1000)]
    for number in range(count):
        ledger, entry = divmod(number, 3)
        second, topic, acked = ack(number + 1, entry)
        acked["message_id"][0]["ledgerId"] += ledger
        records += [publish(number + 1, number), (second, topic, acked), flow(number + 1, 1)]
    return records


TTL = PolicySet("ttl", broker(ttlDurationDefaultInSeconds=1))


@pytest.mark.parametrize("count", [200, 800])
def test_what_is_kept_does_not_grow_with_the_log(count: int) -> None:
    found, kept = answer(table(consumed(count), **LEDGERS), 8, count, policies=[TTL])
    assert max(kept) < 24
    counts = [(row["published"], row["stored"], row["acked"]) for row in found.summary.to_pylist()]
    assert sorted(counts, key=str) == [(count, count, None)] * 2 + [(None, None, count)] * 2


def test_what_a_policy_set_still_has_is_kept() -> None:
    retention = PolicySet("kept", broker(defaultRetentionTimeInMinutes=-1, defaultRetentionSizeInMB=-1))
    _, kept = answer(table(consumed(200), **LEDGERS), 8, 200, policies=[retention])
    assert kept[-1] == 200


def test_what_holds_everything_back_is_looked_at_whenever_there_is_twice_as_much() -> None:
    looks = list[int]()

    def nothing_yet(of: OfTopic, first: int, stop: int) -> int:
        looks.append(stop)
        return first

    with mock.patch.object(OfTopic, "waiting", nothing_yet):
        _, kept = answer(table(consumed(800), **LEDGERS), 8, 800, policies=[TTL])
    assert kept[-1] == 800
    assert 0 < len(looks) <= 2 * (800 // 8).bit_length()


def test_a_publish_whose_write_waits_is_not_settled() -> None:
    faults: list[dict[str, Any]] = [
        {"command": "FAULT", "fault": "DelayWrites", "count": 2},
        {"command": "FAULT", "fault": "CompleteWrites"},
    ]
    records: list[Record] = [
        *(publish(number, number) for number in range(6)), (10, T, faults[0]), publish(10, 6), publish(11, 7),
        *map(tick, range(12, 20)), (20, T, faults[1]), tick(21),
    ]  # fmt: skip
    found, kept = answer(table(records, **LEDGERS), 1, len(records), policies=[TTL])
    assert 2 in kept
    assert [(row["published"], row["stored"]) for row in found.summary.to_pylist()] == [(8, 8)] * 2


def readers(count: int) -> list[Record]:
    """A message each second, and a reader that comes for it and goes."""
    found: list[Record] = []
    for number in range(count):
        name = f"reader-{number}"
        close = {"command": "CLOSE_CONSUMER", "connection": name, "consumer_id": 1, "request_id": 2}
        found += [
            publish(number, number),
            subscribe(number, name, "Exclusive", durable=False),
            (number, T, close),
        ]
    return found


def test_what_is_over_costs_nothing_more() -> None:
    asked = []
    for count in (50, 200):
        with mock.patch.object(differences, "Fates", wraps=differences.Fates) as fates:
            found, _ = answer(table(readers(count), **LEDGERS), 8, count, policies=[TTL])
        asked.append(fates.call_count)
        assert sum(row["published"] or 0 for row in found.summary.to_pylist()) == 2 * count
        counted = [row for row in found.summary.to_pylist() if row["subscription"] is not None]
        assert len(counted) == 2 * count
        assert {(row["acked"], row["dispatched"]) for row in counted} == {(0, 0)}
    assert asked[1] < 5 * asked[0]


def test_tables_become_one_with_one_dictionary() -> None:
    schema = pa.schema([("name", pa.dictionary(pa.int32(), pa.string())), ("number", pa.int64())])
    rows: list[list[str | None]] = [["a", "b", None], [], ["b", "c", "b"], [None]]
    tables = [
        pa.table([pa.array(each, pa.string()).dictionary_encode(), pa.array(range(len(each)))], schema) for each in rows
    ]  # fmt: skip
    found = differences.united(tables, schema)
    assert found.schema == schema
    assert found.equals(pa.concat_tables(tables).unify_dictionaries().combine_chunks())
    assert found["name"].num_chunks == 1
    assert differences.united([], schema).equals(schema.empty_table())
