"""Work in forked processes, which inherit what they work on: a log is read once and not copied."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

W = TypeVar("W")
R = TypeVar("R")


def forked(function: Callable[[W], R], work: Sequence[W], processes: int) -> Iterator[R]:
    """What `function` returns for each piece of `work`, in order. Several threads may do this at a time, each with work of its own."""
    context = get_context("fork")
    with ProcessPoolExecutor(processes, context, initializer=_inherit, initargs=(function, work)) as pool:
        yield from pool.map(_do, range(len(work)))


_inherited: list[Any] = []
"""Of a forked process alone."""


def _inherit(function: Callable[[W], R], work: Sequence[W]) -> None:
    _inherited[:] = function, work


def _do(index: int) -> Any:
    function, work = _inherited
    return function(work[index])
