"""Answers that work in processes, asked for in several threads."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from streaming.answers.forked import forked


@pytest.fixture
def turns() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("turns")
def test_each_thread_gets_what_came_of_its_own_work() -> None:
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda each: list(forked(str, [each] * 3, 2)), range(24)))
    assert found == [[str(each)] * 3 for each in range(24)]
