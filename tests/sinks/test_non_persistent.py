"""Rows of non-persistent topics: their messages carry themselves, and no ledger store ever hears of them."""

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from schemas.commands import MessageMetadata
from schemas.effects import Effect, Message, SendReceipt
from schemas.entries import EntryNotFound
from sinks.kafka import KafkaResponses, KafkaSink, Outgoing
from sinks.ledger_store import LedgerStore
from tests.sinks.helpers import metadata_of, output, payload_of, receipt, receipts

pytestmark = pytest.mark.feature("A8")

NAME = "non-persistent://public/default/t"


def passed_on(number: int, payload: bytes) -> list[Effect]:
    """What the broker puts out for a message that one consumer takes."""
    metadata = MessageMetadata("p", number, 5000, partition_key=f"key {number}")
    return [
        SendReceipt(NAME, "c", 1, "p", number, None, 0, 0, None, 40, 1, 5000, f"key {number}"),
        Message(NAME, "c", 1, "sub", 0, 0, 1, 40, 0, metadata=metadata, payload=payload),
    ]


class Sent:
    """The values of the records that a Kafka sink sends."""

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []

    def send(self, sink: KafkaSink, batch_id: int, records: Iterable[Outgoing]) -> None:
        self.values += [msgspec.json.decode(value) for each in records for value in each.values.to_pylist()]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    sent = Sent()
    monkeypatch.setattr(KafkaSink, "_send", lambda *args: sent.send(*args))
    return sent


def contents(sent: Sent) -> list[tuple[int, bytes]]:
    """(sequence id, payload) of the messages sent."""
    messages = [value for value in sent.values if value["kind"] == "MESSAGE"]
    return [(m["metadata"]["sequence_id"], base64.b64decode(m["payload"])) for m in messages]


def test_each_message_goes_out_with_its_own_payload(sent: Sent) -> None:
    effects = [effect for i in range(3) for effect in passed_on(i, f"payload {i}".encode())]
    KafkaResponses("nowhere", "responses").write(0, 0, output([*effects, *passed_on(3, b"")]))
    assert contents(sent) == [(0, b"payload 0"), (1, b"payload 1"), (2, b"payload 2"), (3, b"")]
    assert sent.values[1]["metadata"]["partition_key"] == "key 0"


def test_stored_messages_are_still_read_from_their_ledger(sent: Sent, tmp_path: Path) -> None:
    store = LedgerStore(tmp_path.as_uri())
    earlier = output(receipts(1, 0, 3))
    store.begin(0)
    store.write(0, 0, earlier)
    topic = receipt(1, 0).topic
    rows = output(
        [
            *passed_on(7, b"own"),
            Message(topic, "c", 1, "sub", 1, 2, 1, 40, 0),
            receipt(1, 4, connection="c"),
            Message(topic, "c", 1, "sub", 1, 4, 1, 40, 0),
        ]
    )
    KafkaResponses("nowhere", "responses", store=store).write(1, 0, rows)
    expected = [(metadata_of(topic, 1, e).sequence_id, payload_of(topic, 1, e)) for e in (2, 4)]
    assert contents(sent) == [(7, b"own"), *expected]
    assert all("payload" not in value for value in sent.values if value["kind"] == "SEND_RECEIPT")
    with pytest.raises(EntryNotFound):
        KafkaResponses("nowhere", "responses").write(1, 0, rows)


@pytest.mark.parametrize("id_", [0, -1])
def test_the_ledger_store_takes_nothing_of_it(id_: int, tmp_path: Path) -> None:
    store = LedgerStore(tmp_path.as_uri())
    store.begin(0)
    receipt, message = passed_on(0, b"x")
    assert isinstance(receipt, SendReceipt)
    receipt = receipt._replace(ledger_id=id_, entry_id=id_)
    store.write(0, 0, output([receipt, message, *receipts(1, 0, 1)]))
    table: pa.Table = store.scan()
    assert table.num_rows == 2
    assert NAME not in table["topic"].to_pylist()
    with pytest.raises(EntryNotFound):
        store.read(NAME, 0, 0, 0)
