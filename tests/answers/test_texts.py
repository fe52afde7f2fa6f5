"""Texts that repeat are compared by number: written out, they would be more than Arrow's 2 GiB."""

from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streaming.answers.whatif.texts import is_in, ranks


@pytest.mark.parametrize("seed", range(20))
def test_they_are_as_the_texts(seed: int) -> None:
    dice = Random(seed)
    texts = ["", "a", "ab", "b", "é", "🙂", "\uffff"]
    values = [dice.choice([*texts, None]) for _ in range(dice.randrange(40))]
    cut = dice.randrange(len(values) + 1)
    column = pa.chunked_array(
        [pa.array(part, pa.string()).dictionary_encode() for part in (values[:cut], values[cut:])]
    )
    expected = pc.sort_indices(pa.table({"t": pa.array(values, pa.string())}), [("t", "ascending")])
    found = pc.sort_indices(pa.table({"t": ranks(column)}), [("t", "ascending")])
    assert [values[place] for place in found.to_pylist()] == [values[place] for place in expected.to_pylist()]
    some = column.drop_null()
    assert is_in(some, ["a", "🙂"]).to_pylist() == [each in ("a", "🙂") for each in some.to_pylist()]


def test_long_ones() -> None:
    long = ["b" * 1_000_000, "a" * 1_000_000]
    column = pa.chunked_array([pa.DictionaryArray.from_arrays(pa.array([0, 1] * 1_500, pa.int32()), long)])
    assert ranks(column).to_pylist() == [1, 0] * 1_500
    assert is_in(column, long[:1]).to_pylist() == [True, False] * 1_500
