"""Frames as bytes: the worked cases of the protocol, and that nothing but the declared error escapes."""

import base64
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.protocol.codec import (
    Frame,
    FrameError,
    FrameReader,
    batch,
    decode,
    encode,
    entry,
    send_receipt,
)
from streaming.protocol.requests import NO_TOPIC, Requests
from streaming.traces import RECORDED
from streaming.traces.trace import frame_record, payload_of, read_trace

SEND = bytes.fromhex(
    "000000240000000a080632060800100018010e0192cd300c000000070a01701000180168656c6c6f"
)  # worked case 1: producer 0 sends "hello"
METADATA = {"producer_name": "p", "sequence_id": 0, "publish_time": 1}
FIELDS = {"producer_id": 0, "sequence_id": 0, "num_messages": 1}


def frames(data: bytes) -> list[bytes]:
    return list(FrameReader().feed(data))


def test_a_published_message() -> None:
    (data,) = frames(SEND)
    assert decode(data, "c") == Frame("c", "SEND", FIELDS, METADATA, b"hello", 22)
    assert encode("SEND", FIELDS, entry(METADATA, b"hello")) == SEND


def test_frames_of_official_clients_and_of_a_real_broker_survive() -> None:
    met, count = set[str](), 0
    for path in sorted(RECORDED.glob("*.jsonl")):
        for record in read_trace(path).records:
            if record["dir"] not in ("in", "out") or record["cmd"].startswith("_TCP"):
                continue
            tail = entry(record["metadata"], payload_of(record)) if "metadata" in record else b""
            found = frame_record(decode(encode(record["cmd"], record["fields"], tail)[4:]))
            assert (found["fields"], found.get("metadata"), found.get("entry_size")) == (
                record["fields"], record.get("metadata"), record.get("entry_size"),
            )  # fmt: skip
            assert payload_of(found) == payload_of(record)
            met.add(record["cmd"])
            count += 1
    assert count > 3500
    assert len(met) > 25


def test_a_batch_is_encoded_as_clients_do() -> None:
    """A batch of an official client, made anew from its parts."""
    batches = [
        record
        for path in sorted(RECORDED.glob("*.jsonl"))
        for record in read_trace(path).records
        if record.get("cmd") == "SEND" and "batch" in record
    ]
    for record in batches:
        metadata = [
            {name: value for name, value in each["metadata"].items() if name != "payload_size"}
            for each in record["batch"]
        ]
        payloads = [base64.b64decode(each["payload"]) for each in record["batch"]]
        assert batch(metadata, payloads) == payload_of(record)
    assert len(batches) > 10


def test_a_large_payload_of_one_byte_is_recorded_as_such() -> None:
    tail = entry(METADATA, b"x" * 5000)
    found = frame_record(decode(encode("SEND", FIELDS, tail)[4:]))
    assert found["payload_repeat"] == [ord("x"), 5000]


@pytest.mark.parametrize("payloads", ["keep", "hash", "drop"])
@pytest.mark.parametrize("payload", [b"", b"secret", b"secret " * 200, b"x" * 5000])
def test_a_recorded_payload_has_its_size(payloads: Any, payload: bytes) -> None:
    record = frame_record(decode(encode("SEND", FIELDS, entry(METADATA, payload))[4:]), payloads)
    assert len(payload_of(record)) == len(payload)
    if payloads == "keep" or not payload:
        assert payload_of(record) == payload
    assert (b"secret" in payload_of(record)) == (payloads == "keep" and b"secret" in payload)
    assert ("payload" in record) == (payloads == "keep" and payload != b"x" * 5000)


def test_pong() -> None:
    assert encode("PONG", {}).hex() == "000000090000000508139a0100"  # worked case 2


def test_a_wrong_checksum_is_noticed() -> None:
    (data,) = frames(SEND[:-1] + b"x")
    assert not decode(data).intact


def test_a_message_needs_no_checksum() -> None:
    head = len(SEND) - 22
    tail = SEND[head + 6 :]
    (data,) = frames((int.from_bytes(SEND[:4]) - 6).to_bytes(4) + SEND[4:head] + tail)
    assert decode(data, "c") == Frame("c", "SEND", FIELDS, METADATA, b"hello", 16)


def test_metadata_of_the_broker_is_cut_off() -> None:
    head = len(SEND) - 22
    tail = b"\x0e\x02\x00\x00\x00\x02\x08\x05" + SEND[head:]
    (data,) = frames((int.from_bytes(SEND[:4]) + 8).to_bytes(4) + SEND[4:head] + tail)
    assert decode(data).entry_size == 22


def test_bytes_may_be_base64_as_in_a_trace() -> None:
    assert encode(
        "PRODUCER_SUCCESS", {"request_id": 1, "producer_name": "p", "schema_version": "AAE="}
    ) == encode("PRODUCER_SUCCESS", {"request_id": 1, "producer_name": "p", "schema_version": b"\0\1"})


def test_messages_of_a_batch_have_their_sizes() -> None:
    assert (
        batch([{"partition_key": "k"}, {}], [b"ab", b""]).hex()
        == "0000000512016b1802" + "6162" + "00000002" + "1800"
    )


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.data())
def test_a_stream_is_cut_anywhere(bodies: list[bytes], data: Any) -> None:
    stream = b"".join((len(body) + 4).to_bytes(4) + b"\0\0\0\0" + body for body in bodies)
    reader, found, at = FrameReader(), list[bytes](), 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        found += reader.feed(stream[at : at + size])
        at += size
    assert found == [b"\0\0\0\0" + body for body in bodies]


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: SEND[4:18] + tail))
def test_nothing_but_the_declared_error_escapes(data: bytes) -> None:
    try:
        found = decode(data)
    except FrameError:
        return
    assert isinstance(found, Frame)


@given(st.integers(0, len(SEND) - 5), st.binary(min_size=1, max_size=4))
def test_a_damaged_frame_is_an_error_or_another_frame(at: int, damage: bytes) -> None:
    data = SEND[4:]
    with suppress(FrameError):
        assert decode(data[:at] + damage + data[at + len(damage) :]).cmd


@pytest.mark.parametrize(
    ("cmd", "fields", "text"),
    [
        ("PRODUCER", {"topic": "t-XXX", "producer_id": 1, "request_id": 1}, "topic"),
        ("GET_TOPICS_OF_NAMESPACE_RESPONSE", {"request_id": 1, "topics": ["a", "t-XXX"]}, "topics"),
    ],
)
def test_text_that_is_not_utf_8_is_an_error(cmd: str, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(FrameError, match=f"{text}: text that is not UTF-8"):
        decode(encode(cmd, fields)[4:].replace(b"XXX", b"\xff\xfe\x80"))


@pytest.mark.parametrize(
    "more",
    [
        {"partition_key": "XXX"},
        {"properties": [{"key": "k", "value": "XXX"}]},
        {"replicate_to": ["a", "XXX"]},
    ],
    ids=str,
)
def test_metadata_that_cannot_be_read_has_its_numbers(more: dict[str, Any]) -> None:
    metadata = {**METADATA, "num_messages_in_batch": 3, **more}
    data = encode("SEND", FIELDS, entry(metadata, b"hello"))[4:].replace(b"XXX", b"\xff\xfe\x80")
    with pytest.raises(FrameError, match="text that is not UTF-8"):
        decode(data)
    found = decode(data, any_metadata=True)
    assert found.metadata == {"sequence_id": 0, "publish_time": 1, "num_messages_in_batch": 3}
    assert (found.payload, found.entry_size) == (b"hello", len(entry(metadata, b"hello")))
    assert found.unreadable is not None
    assert "text that is not UTF-8" in found.unreadable


@pytest.mark.parametrize(
    ("stream", "text"),
    [(b"\0\0\0\0", "a frame of 0 bytes"), (b"\x7f\0\0\0", "a frame of 2130706432 bytes")],
)
def test_sizes_that_no_frame_has(stream: bytes, text: str) -> None:
    with pytest.raises(FrameError, match=text):
        frames(stream)


@pytest.mark.parametrize(
    ("cmd", "fields"),
    [("FLY", {}), ("FLOW", {"consumer_id": "x", "messagePermits": 1}), ("FLOW", {"wings": 2}), ("FLOW", {"consumer_id": -1}),
     ("FLOW", {"consumer_id": 1})],
)  # fmt: skip
def test_what_is_no_frame_is_not_encoded(cmd: str, fields: dict[str, Any]) -> None:
    with pytest.raises(FrameError):
        encode(cmd, fields)


def test_a_producers_frames_are_of_its_topic_until_it_is_closed() -> None:
    requests = Requests()

    def topic(cmd: str, **fields: Any) -> str | None:
        return requests.command(Frame("c", cmd, fields, METADATA, b""))[0]

    assert topic("PRODUCER", topic="t", producer_id=1, request_id=1) == "persistent://public/default/t"
    assert topic("SEND", producer_id=1, sequence_id=1) == "persistent://public/default/t"
    assert topic("SEND", producer_id=2, sequence_id=1) == NO_TOPIC
    assert topic("FLOW", consumer_id=1, messagePermits=1) == NO_TOPIC
    assert topic("CLOSE_PRODUCER", producer_id=1, request_id=2) == "persistent://public/default/t"
    assert topic("SEND", producer_id=1, sequence_id=2) == NO_TOPIC
    assert len(requests) == 0


@given(*[st.integers(0, 2**64 - 1)] * 5)
def test_a_receipt_is_encoded_as_any_other_frame(
    producer: int, sequence_id: int, ledger: int, entry_id: int, highest: int
) -> None:
    fields = {"producer_id": producer, "sequence_id": sequence_id, "highest_sequence_id": highest,
              "message_id": {"ledgerId": ledger, "entryId": entry_id}}  # fmt: skip
    assert send_receipt(producer, sequence_id, ledger, entry_id, highest) == encode("SEND_RECEIPT", fields)
