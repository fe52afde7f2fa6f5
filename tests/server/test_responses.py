"""The rows in the response topic are those that the broker gave."""

from collections.abc import Iterable

import pytest

from schemas.effect_fields import AdminResponseFields
from schemas.effects import (
    KINDS,
    RESPONSES,
    AdminResponse,
    Effect,
    Message,
    ReachedEndOfTopic,
    Row,
    SendReceipt,
    Success,
)
from sinks import kafka as kafka_sink
from sinks.kafka import KafkaResponses, Outgoing, RecordsGone
from sinks.rows import to_tables
from streaming.kafka.client import administration
from streaming.kafka.config import PLAIN
from streaming.kafka.local import LocalKafka
from streaming.kafka.topics import ensure_topic
from streaming.kafka.url import KafkaUrl
from streaming.server import responses
from streaming.server.responses import AnswersLost, Response, ResponseReader, decode
from tests.broker.random_lives import live
from tests.broker.recorded_lives import NAMES
from tests.e2e.processes import wait_until
from tests.sinks.helpers import TOPIC, output


class Collected(KafkaResponses):
    """Collects what it would send."""

    def __init__(self) -> None:
        super().__init__("nowhere:1", "nothing")
        self.values: list[bytes] = []

    def _send(self, batch_id: int, records: Iterable[Outgoing]) -> None:
        self.values += [value for each in records for value in each.values.to_pylist()]


@pytest.mark.feature("J5", "K1")
@pytest.mark.parametrize(
    ("rows_at_a_time", "bytes_at_a_time"), [(1 << 12, 1 << 25), (3, 1 << 25), (1 << 12, 100)]
)
def test_each_row_is_read_as_it_was_written(
    rows_at_a_time: int, bytes_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.kafka._CHUNK", rows_at_a_time)
    monkeypatch.setattr("sinks.kafka._CHUNK_BYTES", bytes_at_a_time)
    kinds = set()
    for theme, seed in NAMES[::12]:
        rows = [row for own in live(theme, seed).rows for row in own]
        stored = {
            (row.effect.topic, row.effect.ledger_id, row.effect.entry_id): row.effect.payload
            for row in rows
            if isinstance(row.effect, SendReceipt) and row.effect.ledger_id > 0
        }
        fields = AdminResponseFields(status=200)
        asked: list[Effect] = [
            AdminResponse(topic, "c", "GET", fields, *at) for topic, *at in list(stored)[:1]
        ]
        asked.append(
            AdminResponse(None, "c", "GET", AdminResponseFields(status=404, response={"reason": "ä"}))
        )
        asked.append(ReachedEndOfTopic("persistent://a/b/c", "c", 7))
        rows += [Row(1 << 30, ordinal, 1, effect) for ordinal, effect in enumerate(asked)]
        sink = Collected()
        sink.write(0, 0, to_tables(0, rows))
        wanted = [row for row in rows if KINDS[type(row.effect)] in RESPONSES and row.effect.connection]  # type: ignore[union-attr]
        found = [decode(value) for value in sink.values]
        assert len(found) == len(wanted)
        for response, row in zip(found, wanted, strict=True):
            assert response.partition == 0
            assert _without_entry(response.row) == _without_entry(row)
            kinds.add(KINDS[type(row.effect)])
            effect = response.row.effect
            if isinstance(effect, Message) and effect.ledger_id > 0:
                own = row.effect.payload  # type: ignore[union-attr]
                at = effect.topic, effect.ledger_id, effect.entry_id
                assert effect.payload == (stored[at] if own is None else own)
            if isinstance(effect, AdminResponse) and effect.ledger_id is not None:
                assert response.entry is not None
                assert (
                    response.entry.payload
                    == stored[effect.topic or "", effect.ledger_id, effect.entry_id or 0]
                )
    assert kinds == RESPONSES


def _without_entry(row: Row) -> Row:
    if isinstance(row.effect, SendReceipt | Message):
        return row._replace(effect=row.effect._replace(metadata=None, payload=None))
    return row


@pytest.mark.kafka
def test_a_topic_that_gets_partitions_is_read_whole(
    kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes learns of them at some other time."""
    monkeypatch.setattr(responses, "_METADATA_MS", 100)
    url = KafkaUrl(kafka.bootstrap, "answers-more")
    ensure_topic(url, 1)
    found: list[int] = []
    failed: list[Exception] = []

    def deliver(response: Response) -> None:
        assert isinstance(response.row.effect, Success)
        found.append(response.row.effect.request_id)

    def send(batch: int) -> None:
        kafka_sink._producers.clear()
        sink = KafkaResponses(url.bootstrap, url.topic)
        sink.begin(batch)
        sink.write(batch, 0, output([Success(TOPIC, f"c{each}", 100 * batch + each) for each in range(20)]))

    def has(count: int) -> None:
        wait_until(lambda: len(found) == count, f"{count} answers")

    reader = ResponseReader(url, PLAIN, lambda _: True, deliver, failed.append)
    try:
        send(1)
        has(20)
        with administration(url) as admin:
            admin.create_partitions({url.topic: 4})
        for batch in (2, 3, 4):
            send(batch)
        has(80)
    finally:
        reader.close()
    assert failed == []
    assert sorted(found) == [100 * batch + each for batch in (1, 2, 3, 4) for each in range(20)]


@pytest.mark.kafka
@pytest.mark.parametrize("before", [True, False])
def test_a_topic_that_was_made_anew_is_noticed(
    before: bool, kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for an answer that was in the old one waits for ever. `before`: the reader has read none of what was there."""
    monkeypatch.setattr(responses, "_METADATA_MS", 100)
    url = KafkaUrl(kafka.bootstrap, f"answers-anew-{before}")
    ensure_topic(url, 1)
    found: list[int] = []
    failed: list[Exception] = []

    def deliver(response: Response) -> None:
        assert isinstance(response.row.effect, Success)
        found.append(response.row.effect.request_id)

    def send(batch: int, count: int) -> None:
        kafka_sink._producers.clear()
        sink = KafkaResponses(url.bootstrap, url.topic)
        sink.begin(batch)
        sink.write(
            batch, 0, output([Success(TOPIC, f"c{each}", 100 * batch + each) for each in range(count)])
        )

    if before:
        send(1, 10)
    reader = ResponseReader(url, PLAIN, lambda _: True, deliver, failed.append)
    try:
        if not before:
            send(1, 10)
            wait_until(lambda: len(found) == 10, "10 answers")
        with administration(url) as admin:
            admin.delete_topics([url.topic])
            wait_until(lambda: url.topic not in admin.list_topics(), "no topic")
        ensure_topic(url, 1)
        send(2, 30)
        wait_until(lambda: bool(failed), "the topic's end")
    finally:
        reader.close()
    (error,) = failed
    assert isinstance(error, RecordsGone | AnswersLost if before else AnswersLost)  # whichever it meets first
