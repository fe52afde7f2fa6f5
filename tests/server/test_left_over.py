"""Clients that a test left behind, as the double counts them."""

from streaming.server.left_over import Addresses, Left, _ShutOut


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
