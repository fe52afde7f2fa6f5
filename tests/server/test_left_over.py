"""Clients that a test left behind, as the double counts them."""

import asyncio
from typing import Any

import pytest

from streaming.protocol.codec import FrameReader, decode, encode
from streaming.server.left_over import KEPT, Addresses, Held, Left, _ShutOut


def test_versions_are_counted_up_to_a_bound() -> None:
    addresses = Addresses(lambda: None)  # type: ignore[arg-type, return-value]
    addresses.begin("a test", [])
    (earlier,) = addresses._earlier
    assert isinstance(earlier, Left)
    for number in range(1000):
        client = _ShutOut(earlier)
        client._version = f"version {number % 100}"
        client.connection_lost(None)
    (found,) = addresses.shut_out()
    assert sum(found["tries"].values()) == 1000
    assert len(found["tries"]) == 21


class Transport:
    """What was written to it, as commands."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[str, Any]]] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += [(frame.cmd, frame.fields) for frame in map(decode, FrameReader().feed(data))]

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def held(addresses: Addresses, *, opened: bool) -> tuple[Held, Transport]:
    transport: Any = Transport()
    return Held(addresses.begin("next", ["a consumer"], same_address=True), transport, "Pulsar-Java", opened=opened), transport  # fmt: skip


ID = {"request_id": 7}


@pytest.mark.parametrize(
    ("cmd", "fields", "answer", "counts"),
    [
        ("PING", {}, "PONG", False),
        ("FLOW", {"consumer_id": 1, "messagePermits": 1}, None, False),
        ("CLOSE_CONSUMER", {"consumer_id": 1, **ID}, "SUCCESS", False),
        ("CLOSE_PRODUCER", {"producer_id": 1, **ID}, "SUCCESS", False),
        ("LOOKUP", {"topic": "t", **ID}, "LOOKUP_RESPONSE", True),
        ("PARTITIONED_METADATA", {"topic": "t", **ID}, "PARTITIONED_METADATA_RESPONSE", True),
        ("SUBSCRIBE", {"topic": "t", "subscription": "s", "subType": "Shared", "consumer_id": 1, **ID}, "ERROR", True),
        ("PRODUCER", {"topic": "t", "producer_id": 1, **ID}, "ERROR", True),
        ("ACK", {"consumer_id": 1, "ack_type": "Individual", "message_id": [], **ID}, "ACK_RESPONSE", True),
    ],
)  # fmt: skip
def test_a_held_connection_answers_so_that_its_client_keeps_it(
    cmd: str, fields: dict[str, Any], answer: str | None, counts: bool
) -> None:
    addresses = Addresses(asyncio.Protocol)
    connection, transport = held(addresses, opened=False)
    data = encode(cmd, fields)
    connection.data_received(data[:5])
    connection.data_received(data[5:])
    assert [cmd for cmd, _ in transport.written] == [answer] * (answer is not None)
    if counts:
        ((_, said),) = transport.written
        assert said["request_id"] == 7
        assert said["error"] == "NotAllowedError"
        assert said["message"].endswith("the test of this client has ended: before the first test")
    assert [each["tries"] for each in addresses.shut_out()] == [{"Pulsar-Java": 1}] * counts
    assert not transport.closed


def test_a_held_connection_counts_until_it_is_closed() -> None:
    addresses = Addresses(asyncio.Protocol)
    connection, transport = held(addresses, opened=True)
    for _ in range(KEPT - 1):
        addresses.begin("later", [], same_address=True)
        assert [each["test"] for each in addresses.shut_out()] == ["before the first test"]
    addresses.begin("last", [], same_address=True)
    assert transport.closed
    connection.connection_lost(None)
    assert addresses.shut_out() == []


@pytest.mark.parametrize("same", [True, False])
def test_an_address_is_that_of_the_test_that_has_it(same: bool) -> None:
    addresses = Addresses(asyncio.Protocol)
    entrance = addresses.entrance()
    addresses.begin("next", [], same_address=same)
    assert isinstance(entrance(), _ShutOut) != same
    addresses.begin("another", [])
    assert isinstance(entrance(), _ShutOut)
