"""The line that says why a command failed is the last one, whatever py4j's threads log meanwhile."""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import typer
from py4j.java_gateway import GatewayClient, GatewayParameters  # type: ignore[import-untyped]
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from streaming.cli.errors import expected_errors


class Slow(logging.Handler):
    """Takes its time for each of py4j's records, and notes when it is done."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events, self.begun, self.goes_on = events, threading.Event(), threading.Event()
        self.addFilter(logging.Filter("py4j"))  # other threads of this process log, too

    def emit(self, record: logging.LogRecord) -> None:
        self.begun.set()
        assert self.goes_on.wait(60)
        self.events.append(record.getMessage())


@pytest.fixture
def py4j() -> Iterator[logging.Logger]:
    """py4j's logger as it is in a new process: a command that failed in this one has turned it off."""
    logger = logging.getLogger("py4j")
    before = logger.level, logger.handlers, logger.propagate
    logger.setLevel(logging.NOTSET)
    logger.handlers, logger.propagate = [], True
    yield logger
    logger.setLevel(before[0])
    logger.handlers, logger.propagate = before[1:]
    logging.root.filters.clear()


def test_what_is_being_logged_comes_before_and_nothing_after(
    py4j: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    slow = Slow(events)
    monkeypatch.setattr(logging.root, "handlers", [slow])
    monkeypatch.setattr(typer, "echo", lambda text, **_: events.append(text))
    connection = logging.getLogger("py4j.clientserver")
    logging_now = threading.Thread(target=connection.error, args=("at once",))
    logging_now.start()
    assert slow.begun.wait(60)

    def failing() -> None:
        with pytest.raises(typer.Exit), expected_errors(failed=(RuntimeError,)):
            raise RuntimeError("gone")

    last_word = threading.Thread(target=failing)
    last_word.start()
    while py4j.propagate:  # it has silenced the logger, and waits for the record at hand
        last_word.join(0.01)
    slow.goes_on.set()
    last_word.join(60)
    logging_now.join(60)
    # A thread that has looked at the logger's level before goes on like this.
    connection.callHandlers(logging.LogRecord("py4j.clientserver", logging.ERROR, "", 0, "late", (), None))
    assert events == ["at once", "magnetar: gone"]


def test_a_connection_that_is_lost_afterwards_is_not_logged(
    py4j: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    """py4j logs it with the root logger."""

    def lose_a_connection() -> None:
        with socket.create_server(("127.0.0.1", 0)) as java:
            threading.Thread(target=lambda: java.accept()[0].close(), daemon=True).start()
            client = GatewayClient(gateway_parameters=GatewayParameters(port=java.getsockname()[1]))
            with suppress(Py4JNetworkError):  # or an answer that tells the same
                client.send_command("c\n", retry=False)

    lose_a_connection()
    assert [each.name for each in caplog.records].count("root") == 1
    with pytest.raises(typer.Exit), expected_errors(failed=(RuntimeError,)):
        raise RuntimeError("gone")
    lose_a_connection()
    assert [each.name for each in caplog.records].count("root") == 1
    logging.getLogger().error("of somebody else")
    assert len(caplog.records) == 2
