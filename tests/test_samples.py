"""The cases that changes run in turn."""

from hypothesis import given
from hypothesis import strategies as st

from tests.samples import parts

SECONDS = st.lists(st.sampled_from([1, 1, 1, 14, 60, 150]), max_size=60)


@given(SECONDS, st.integers(1, 32))
def test_each_case_comes_once_and_no_part_takes_much_longer(seconds: list[float], count: int) -> None:
    dealt = parts(list(zip(seconds, range(len(seconds)), strict=True)), count)
    assert len(dealt) == count
    assert sorted(case for part in dealt for case in part) == list(range(len(seconds)))
    taken = [sum(seconds[case] for case in part) for part in dealt]
    assert max(taken) - min(taken) <= max(seconds, default=0)
