"""A process that writes commands to a topic, which somebody deletes and makes anew meanwhile."""

import queue
from collections.abc import Callable
from typing import Any

import pytest

from schemas.commands import ConnectionLost, to_json
from streaming.kafka.client import administration
from streaming.kafka.config import PLAIN
from streaming.kafka.local import LocalKafka
from streaming.kafka.topics import committed_ends, ensure_topic
from streaming.kafka.url import KafkaUrl
from streaming.kafka.writer import CommandWriter, NotWritten, SoleWriter, ToSend
from tests.e2e.processes import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.feature("J1")]

TOPIC = "persistent://public/default/t"
COMMAND = to_json(ConnectionLost(connection="1"))


def sole(url: KafkaUrl, failed: Callable[[NotWritten], None]) -> SoleWriter:
    return SoleWriter(url, PLAIN, failed, f"mirror of {url.topic}")


def server(url: KafkaUrl, failed: Callable[[NotWritten], None]) -> CommandWriter:
    return CommandWriter(url, PLAIN, failed)


def a_command(writer: Any) -> None:
    writer.send(TOPIC, COMMAND, 1)
    writer.flush()


def to_all(writer: Any) -> None:
    writer.send_to_all([COMMAND], 1).exception(2)


def a_transaction(writer: Any) -> None:
    writer.transact([ToSend(TOPIC, COMMAND, 1)], {0: 0})


@pytest.mark.parametrize(
    ("made", "write"), [(server, a_command), (server, to_all), (sole, to_all), (sole, a_transaction)]
)
def test_nothing_is_written_to_a_topic_that_was_made_anew(
    kafka: LocalKafka, made: Callable[..., Any], write: Callable[[Any], None]
) -> None:
    """Its log lacks what was before, and a query or a mirror that went on with it would not know."""
    url = KafkaUrl(kafka.bootstrap, f"anew-{made.__name__}-{write.__name__}")
    failures = queue.SimpleQueue[NotWritten]()
    ensure_topic(url, 1)
    writer = made(url, failures.put)
    write(writer)
    with administration(url) as admin:
        admin.delete_topics([url.topic])
        wait_until(lambda: url.topic not in admin.list_topics(), "the end of the topic")
        ensure_topic(url, 1)
        while failures.empty():  # a server's producer learns it with the next answer about the topic
            if write is not a_command:
                with pytest.raises((NotWritten, TimeoutError)):
                    write(writer)
        assert "was deleted and recreated while this process wrote to it" in str(failures.get())
        with pytest.raises(NotWritten, match="was deleted and recreated"):
            writer.send(TOPIC, COMMAND, 1)
        writer.close(0)
        assert committed_ends(admin, url.topic, [0]) == {0: 0}
