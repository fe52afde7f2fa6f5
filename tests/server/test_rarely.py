"""What a client causes again and again fills no log."""

import logging

import pytest

from streaming.server.rarely import Rarely


def test_an_answer_that_cannot_be_encoded_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    rarely = Rarely(logging.getLogger("rarely"), lambda: now[0])
    for second in range(180):
        now[0] = float(second)
        for _ in range(100):
            rarely.error("an answer to %s can't be encoded", "c")
    assert [record.getMessage() for record in caplog.records] == [
        "an answer to c can't be encoded",
        "an answer to c can't be encoded (5999 more in the minute before)",
        "an answer to c can't be encoded (5999 more in the minute before)",
    ]
    assert all(record.exc_info is None for record in caplog.records)
