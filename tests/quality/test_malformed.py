"""Ten thousand malformed records: each is refused by its rule, and no other record is affected."""

from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import Refused
from schemas.records import RECORD
from streaming.fold.columns import Fold
from streaming.quality.column_gate import Gate
from tests.examples import examples
from tests.quality.helpers import value
from tests.quality.malformed import KINDS, NOT_COMMANDS, Bad
from tests.rows import together
from tests.spark.helpers import Nowhere, traffic

COUNT = 10_000


def ten_thousand() -> list[Bad]:
    dice = Random(11)
    makers = list(KINDS.values())
    return [makers[number % len(makers)](dice) for number in range(COUNT)]


def between(good: pa.Table, others: list[bytes]) -> pa.Table:
    """Records with others between them, as evenly as may be."""
    rows = good.to_pylist()
    each = -(-len(others) // len(rows))
    mixed = []
    for number, row in enumerate(rows):
        mixed.append(row)
        own = others[number * each : (number + 1) * each]
        mixed += [row | {"topic": "persistent://public/default/t", "value": other} for other in own]
    return pa.Table.from_pylist([row | {"offset": offset} for offset, row in enumerate(mixed)], RECORD)


def folded(records: pa.Table) -> tuple[pa.Table, bytes]:
    fold = Fold(Nowhere())
    rows = pa.concat_tables([together(own) for _, own in fold.apply(records)]).combine_chunks()
    return rows, fold.states()[0].broker


def test_there_are_enough_kinds() -> None:
    assert len(KINDS) >= 50
    assert len(NOT_COMMANDS) >= 40


@pytest.mark.feature("J6")
def test_ten_thousand_are_refused_and_their_neighbours_unchanged() -> None:
    bad = ten_thousand()
    good = traffic(partitions=1)
    rows, state = folded(between(good, [each.value for each in bad]))
    undisturbed, same = folded(between(good, [value("TICK")] * COUNT))

    own = {each.value for each in bad}
    of_ours = pa.array([row["payload"] in own for row in rows.select(["payload"]).to_pylist()])
    of_ours = pc.and_(of_ours, pc.equal(rows["kind"], "QUARANTINED"))
    found = rows.filter(of_ours)
    assert found["payload"].to_pylist() == [each.value for each in bad]
    assert found["rule"].to_pylist() == [each.rule for each in bad]
    assert rows.filter(pc.invert(of_ours)).equals(undisturbed)
    assert state == same


@pytest.mark.feature("J6")
@settings(max_examples=examples(200))
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 2**64))
def test_whatever_the_dice(kind: str, seed: int) -> None:
    bad = KINDS[kind](Random(seed))
    (verdict,) = Gate().judge([bad.topic], [bad.value])
    assert isinstance(verdict, Refused)
    assert verdict.rule == bad.rule
