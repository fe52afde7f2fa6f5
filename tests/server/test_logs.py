"""The log of a server: nobody waits for its reader, and clients do not fill it."""

import logging
import os
import time
from collections.abc import Iterator

import pytest

from streaming.server.logs import MOST_A_MINUTE, MOST_WAITING, InBackground, Seldom


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def record(number: int, text: str = "line %d") -> logging.LogRecord:
    return logging.LogRecord("x", logging.WARNING, __file__, 1, text, (number,), None)


def test_nobody_waits_for_whoever_does_not_read(pipe: tuple[int, int]) -> None:
    handler = InBackground(pipe[1])
    for number in range(100_000):
        handler.emit(record(number))
    began = time.monotonic()
    handler.close()
    assert time.monotonic() - began < 30
    read = os.read(pipe[0], 1 << 20)
    assert read.startswith(b"line 0\nline 1\n")
    assert len(read.splitlines()) < 50_000


def test_what_was_dropped_is_told(pipe: tuple[int, int]) -> None:
    handler = InBackground(pipe[1])
    for number in range(MOST_WAITING + 30_000):
        handler.emit(record(number))
    while handler._lines.qsize():
        os.read(pipe[0], 1 << 16)
    handler.emit(record(7, "the last %d"))
    handler.close()
    rest = os.read(pipe[0], 1 << 20).splitlines()
    assert b"lines of the log were dropped, because nothing read them" in rest[-2]
    assert rest[-1] == b"the last 7"


def test_a_reader_that_is_gone_is_no_trouble(pipe: tuple[int, int]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    handler = InBackground(writing)
    for number in range(10):
        handler.emit(record(number))
    handler.close()
    os.close(writing)


def test_many_of_one_kind_are_few() -> None:
    now = 0.0
    seldom = Seldom(lambda: now)
    assert sum(seldom.filter(record(number)) for number in range(1000)) == MOST_A_MINUTE
    assert seldom.filter(record(1, "another %d"))
    now = 60.0
    last = record(5)
    assert seldom.filter(last)
    assert last.getMessage() == "line 5 (980 more in the minute before)"
    failed = [
        logging.makeLogRecord(record(n, "failed %d").__dict__ | {"exc_info": (None, None, None)})
        for n in range(9)
    ]
    assert sum(map(seldom.filter, failed)) == 1  # a traceback is many lines
    for number in range(5000):  # kinds of which there is no end
        seldom.filter(record(0, f"{number} %d"))
