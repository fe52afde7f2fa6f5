"""SENDs and ACKs that are decoded at once say what `codec.decode`, JSON and the gate make of them."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.commands import Decoded, to_json
from streaming.protocol.codec import FrameError, decode, encode, entry
from streaming.protocol.plain import LONGEST_TOPIC, plain_command
from streaming.protocol.requests import Requests
from streaming.quality.gate import judge
from streaming.traces import RECORDED
from streaming.traces.trace import payload_of, read_trace

NOW = 1_700_000_000_000
TOPIC = "x" * LONGEST_TOPIC
FIELDS = {"producer_id": 1, "sequence_id": 300}
METADATA = {"producer_name": "p", "sequence_id": 300, "publish_time": NOW}
BATCH = {"num_messages": 3, "highest_sequence_id": 302}

NUMBERS = st.integers(0, 2**64 - 1).map(lambda number: number >> number % 64)
COUNTS = st.integers(-(2**31), 2**31 - 1).map(lambda number: number >> abs(number) % 31)
TEXTS = st.sampled_from(["", "p", "é", "x" * 127, "x" * 128, "\0"]) | st.text(max_size=5)
PLAIN = st.fixed_dictionaries(
    {"producer_id": NUMBERS, "sequence_id": NUMBERS},
    optional={"num_messages": COUNTS, "highest_sequence_id": NUMBERS},
)
OTHER: dict[str, st.SearchStrategy[Any]] = {
    "is_chunk": st.booleans(), "marker": st.booleans(), "txnid_least_bits": NUMBERS, "txnid_most_bits": NUMBERS,
}  # fmt: skip
PLAIN_METADATA = st.fixed_dictionaries(
    {"producer_name": TEXTS, "sequence_id": NUMBERS, "publish_time": NUMBERS},
    optional={
        "partition_key": TEXTS, "uncompressed_size": COUNTS.map(abs), "num_messages_in_batch": COUNTS,
        "highest_sequence_id": NUMBERS,
    },
)  # fmt: skip
OTHER_METADATA: dict[str, st.SearchStrategy[Any]] = {
    "event_time": NUMBERS, "chunk_id": COUNTS, "schema_version": st.binary(max_size=3), "null_value": st.booleans(),
    "compression": st.sampled_from(["NONE", "LZ4"]), "replicate_to": st.lists(TEXTS, min_size=1, max_size=2),
    "deliver_at_time": st.integers(0, 2**62),
}  # fmt: skip


def rarely(
    plain: st.SearchStrategy[dict[str, Any]], other: dict[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[dict[str, Any]]:
    more = st.tuples(plain, st.fixed_dictionaries({}, optional=other)).map(lambda both: both[0] | both[1])
    return st.one_of(*[plain] * 9, more)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """SENDs, most of them plain, some damaged. Without their total size."""
    metadata = draw(rarely(PLAIN_METADATA, OTHER_METADATA))
    data = encode("SEND", draw(rarely(PLAIN, OTHER)), entry(metadata, draw(st.binary(max_size=20))))[4:]
    return damaged(draw, data)


def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Some frames of five have other bytes somewhere."""
    if draw(st.integers(0, 4)):
        return data
    at = draw(st.integers(0, len(data) - 1))
    return data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 4)) :]


IDS = st.fixed_dictionaries(
    {"ledgerId": NUMBERS, "entryId": NUMBERS},
)
ACKS = st.fixed_dictionaries(
    {
        "consumer_id": NUMBERS, "ack_type": st.sampled_from(["Individual", "Cumulative"]),
        "message_id": st.lists(st.one_of(*[IDS] * 9, st.just({"ledgerId": 1, "entryId": 1, "ack_set": [3]})), max_size=4),
    },
    optional={"request_id": NUMBERS},
)  # fmt: skip
OTHER_ACKS: dict[str, st.SearchStrategy[Any]] = {
    "validation_error": st.just("ChecksumMismatch"), "txnid_least_bits": NUMBERS, "txnid_most_bits": NUMBERS,
}  # fmt: skip


@st.composite
def acks(draw: st.DrawFn) -> bytes:
    """ACKs, most of them plain, some damaged. Without their total size."""
    return damaged(draw, encode("ACK", draw(rarely(ACKS, OTHER_ACKS)))[4:])


def judged(data: bytes) -> Decoded | None:
    """What a frame is on the way of all commands; None: it never gets to the broker."""
    try:
        frame = decode(data, "c")
    except FrameError:
        return None
    if frame.cmd == "SEND" and (frame.metadata is None or not frame.intact):
        return None
    _, command = Requests().command(frame)
    (found,) = judge([TOPIC], [to_json(command)])  # type: ignore[arg-type]
    return found


def same(data: bytes) -> bool:
    """Whether the frame was decoded at once. If so, it is the same command, and comes back from its JSON."""
    found = plain_command(data, "c")
    if found is not None:
        assert found == judged(data)
        assert [found] == list(judge([TOPIC], [to_json(found)]))
    return found is not None


@given(frames() | acks())
@example(encode("SEND", FIELDS, entry({**METADATA, "producer_name": "x" * 127}, b""))[4:])
def test_a_frame_is_the_same_command(data: bytes) -> None:
    same(data)


def test_sends_of_official_clients_are_the_same_commands() -> None:
    plain = {"producer_name", "sequence_id", "publish_time", "partition_key", "uncompressed_size", "num_messages_in_batch",
             "highest_sequence_id"}  # fmt: skip
    count = 0
    for path in sorted(RECORDED.glob("*.jsonl")):
        for record in read_trace(path).records:
            if record.get("cmd") == "SEND" and record["dir"] == "in":
                data = encode("SEND", record["fields"], entry(record["metadata"], payload_of(record)))[4:]
                is_plain = record["metadata"].keys() <= plain and "is_chunk" not in record["fields"]
                assert same(data) == is_plain
                count += is_plain
    assert count > 1000


def test_acks_of_official_clients_are_the_same_commands() -> None:
    count = 0
    for path in sorted(RECORDED.glob("*.jsonl")):
        for record in read_trace(path).records:
            if record.get("cmd") == "ACK" and record["dir"] == "in":
                data, ids = encode("ACK", record["fields"])[4:], record["fields"]["message_id"]
                is_plain = len(data) < 128 and all(
                    each.keys() == {"ledgerId", "entryId"} and each["entryId"] < 2**63 for each in ids
                )
                is_plain = is_plain and {"validation_error", "txnid_least_bits"}.isdisjoint(record["fields"])
                assert same(data) == is_plain
                count += is_plain
    assert count > 300


def test_a_damaged_ack_is_another_frame_or_left_to_the_codec() -> None:
    """With each byte changed in turn, with another size, and cut off anywhere."""
    ids = [{"ledgerId": 1, "entryId": 300}, {"ledgerId": 1, "entryId": 301}]
    data = encode("ACK", {"consumer_id": 1, "ack_type": "Individual", "message_id": ids, "request_id": 7})[4:]
    assert same(data)
    assert not same(data + b"\0")
    for at in range(len(data)):
        for byte in (0, 0x7F, 0x80, 0xFF, *range(max(data[at] - 3, 0), data[at] + 3)):
            same(data[:at] + bytes([byte]) + data[at + 1 :])
        assert not same(data[:at])


@pytest.mark.parametrize("name", ["", "p", "é", "x" * 127])
@pytest.mark.parametrize("number", [0, 127, 128, 2**35, 2**63 - 1])
@pytest.mark.parametrize("payload", [b"", b"\x0e\x01", b"x" * 10_000])
def test_most_sends_are_decoded_at_once(name: str, number: int, payload: bytes) -> None:
    ids = {"sequence_id": number}
    for more in (
        {},
        {"partition_key": name},
        {"uncompressed_size": 2**28 - 1},
        {"num_messages_in_batch": 3, **BATCH},
    ):
        own = {each: more[each] for each in more.keys() - {"num_messages"}}
        tail = entry({**METADATA, "producer_name": name, **ids, **own}, payload)
        for fields in ({}, BATCH):
            assert same(encode("SEND", {**FIELDS, **ids, **fields}, tail)[4:])


@pytest.mark.parametrize(
    ("fields", "metadata"),
    [
        ({"sequence_id": 2**63}, {}),
        ({"is_chunk": True}, {}),
        ({"num_messages": -1}, {}),
        ({}, {"producer_name": "x" * 128}),
        ({}, {"partition_key": "x" * 128}),
        ({}, {"publish_time": 2**42}),
        ({}, {"uncompressed_size": 2**28}),
        ({}, {"num_messages_in_batch": -1}),
        ({}, {"properties": [{"key": "k", "value": "v"}]}),
        ({}, {"event_time": 1}),
    ],
)
def test_what_is_rare_is_left_to_the_codec(fields: dict[str, int], metadata: dict[str, Any]) -> None:
    assert plain_command(encode("SEND", FIELDS | fields, entry(METADATA | metadata, b"x"))[4:], "c") is None


@pytest.mark.parametrize("key", [{}, {"partition_key": "k"}])
def test_what_is_damaged_is_left_to_the_codec(key: dict[str, str]) -> None:
    """With each byte changed in turn, and cut off anywhere. A changed command is another command: its bytes have no checksum."""
    data = encode("SEND", FIELDS, entry(METADATA | key, b"x"))[4:]
    tail = data.index(b"\x0e\x01")
    for at in range(len(data)):
        for byte in (0, 0x7F, 0x80, 0xFF, data[at] ^ 1):
            changed = data[:at] + bytes([byte]) + data[at + 1 :]
            assert not same(changed) or at < tail or changed == data
        assert not same(data[:at])
    for text in ({"producer_name": "pp"}, {"partition_key": "kk"}):
        whole = encode("SEND", FIELDS, entry(METADATA | text, b"x"))[4:]
        (found,) = text.values()
        bad = whole.replace(found.encode(), b"\xc3\xc3")
        at = bad.index(b"\x0e\x01") + 6
        assert not same(bad[: at - 4] + _checksum(bad[at:]) + bad[at:])


def _checksum(data: bytes) -> bytes:
    from crc32c import crc32c

    return crc32c(data).to_bytes(4)
