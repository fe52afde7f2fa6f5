"""Stopping the live query, and what its trigger may be."""

import threading
from pathlib import Path
from typing import Any

import pytest

from streaming.jobs.run import run_query
from streaming.kafka.url import KafkaUrlError
from streaming.spark.query import wait
from streaming.spark.trigger import interval


class Query:
    """A query that is in a micro-batch and ends it after it was asked a few times."""

    def __init__(self, error: Exception | None = None) -> None:
        self.isActive = error is None
        self.error, self.asked = error, 0
        self.lastProgress: Any = None

    @property
    def status(self) -> dict[str, bool]:
        self.asked += 1
        return {"isTriggerActive": self.asked < 3}

    def exception(self) -> Exception | None:
        return self.error


def test_the_batch_at_hand_is_finished() -> None:
    stop, query = threading.Event(), Query()
    stop.set()
    wait(query, stop)  # type: ignore[arg-type]
    assert query.asked == 3


def test_what_ended_the_query_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        wait(Query(ZeroDivisionError()), threading.Event())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "words"),
    [("1s", "1 seconds"), ("500ms", "500 milliseconds"), ("2 m", "2 minutes"), ("10 seconds", "10 seconds")],
)
def test_intervals(text: str, words: str) -> None:
    assert interval(text) == words


@pytest.mark.parametrize("text", ["", "1", "s", "1.5s", "1 fortnight"])
def test_what_is_no_interval(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number and a unit"):
        interval(text)


@pytest.mark.parametrize("same", [["responses"], ["dead_letters"], ["responses", "dead_letters"]])
def test_a_topic_for_two_things(tmp_path: Path, same: list[str]) -> None:
    """The query would read its own rows, without end."""
    other = {} if len(same) == 1 else dict.fromkeys(same, "kafka://127.0.0.1:1/other")
    topics: dict[str, Any] = dict.fromkeys(same, "kafka://127.0.0.1:1/t") | other
    with pytest.raises(KafkaUrlError, match="need separate topics"):
        run_query(
            "kafka://127.0.0.1:1/t",
            tmp_path,
            str(tmp_path),
            **topics,
        )
