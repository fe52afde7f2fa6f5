"""`magnetar record` of clients with transactions."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streaming.jobs.replay import replay_in_process
from streaming.protocol.codec import entry
from streaming.record.record import command_log
from streaming.record.recording import COMMANDS, TRACE
from streaming.traces.ungated import BEGUN
from tests.authorization.questions import Connection
from tests.record.kit import Proxied, proxied
from tests.server.conftest import Running, running

pytestmark = pytest.mark.feature("K3", "L1")

TOPIC = "persistent://public/default/t"


class Client(Connection):
    """A client with a producer."""

    def __init__(self, url: str) -> None:
        super().__init__(url.removeprefix("pulsar://"), "client")
        self._requests = 0
        self.request("TC_CLIENT_CONNECT_REQUEST", tc_id=0)
        self.request("PRODUCER", topic=TOPIC, producer_id=1, txn_enabled=True)

    def request(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """The fields of the answer."""
        self._requests += 1
        return self.ask(cmd, {"request_id": self._requests, **fields})[1]

    def begin(self) -> dict[str, Any]:
        """A new transaction: its ids."""
        found = self.request("NEW_TXN", tc_id=0, txn_ttl_seconds=600_000)
        return {name: found[name] for name in ("txnid_most_bits", "txnid_least_bits")}

    def publish(self, txn: dict[str, Any], number: int) -> None:
        """A message in a transaction."""
        self.request("ADD_PARTITION_TO_TXN", partitions=[TOPIC], **txn)
        metadata = {"producer_name": "p", "sequence_id": number, "publish_time": 1, **txn}
        fields = {"producer_id": 1, "sequence_id": number, **txn}
        assert self.ask("SEND", fields, entry(metadata, b"x"))[0] == "SEND_RECEIPT"

    def end(self, txn: dict[str, Any], action: str) -> dict[str, Any]:
        """Commit or abort a transaction."""
        return self.request("END_TXN", txn_action=action, **txn)


@contextmanager
def recorded(folder: Path) -> Iterator[tuple[Running, Proxied]]:
    """A broker with transactions, and a proxy that records."""
    with (
        running(transactionCoordinatorEnabled=True) as broker,
        proxied(folder, broker.service_url, str(broker.server.admin_url)) as proxy,
    ):
        yield broker, proxy


def test_they_replay_though_the_broker_had_others_before(tmp_path: Path) -> None:
    """Their numbers differ then."""
    with recorded(tmp_path / "log") as (broker, proxy):
        direct = Client(broker.service_url)
        for _ in range(3):
            direct.begin()
        client = Client(proxy.service_url)
        for number, action in enumerate(("ABORT", "COMMIT", "ABORT")):
            txn = client.begin()
            client.publish(txn, number)
            assert "error" not in client.end(txn, action)
        nowhere = {"txnid_most_bits": 0, "txnid_least_bits": 7_000}
        assert client.end(nowhere, "COMMIT")["error"] == "TransactionNotFound"
        subscribe = {"subscription": "s", "subType": "Shared", "consumer_id": 2}
        client.request("SUBSCRIBE", topic=TOPIC, initialPosition="Earliest", **subscribe)
        client.send("FLOW", {"consumer_id": 2, "messagePermits": 9})
        assert client.next()[0] == "MESSAGE"
        for each in (direct, client):
            each.close()
    assert proxy.missing == []
    assert [each["metadata"]["sequence_id"] for each in proxy.frames("out", "MESSAGE")] == [1]
    _, verdict = command_log(proxy.folder / TRACE)
    assert (verdict.differences, verdict.explained) == ([], {})
    replayed = replay_in_process(proxy.folder / COMMANDS, tmp_path / "replayed")
    assert (replayed.rows["END_TXN_RESPONSE"], replayed.rows["MESSAGE"]) == (4, 1)


def test_one_that_began_before_is_no_difference(tmp_path: Path) -> None:
    """Nor is it taken for one of the recording that has its number in the replay."""
    with recorded(tmp_path / "log") as (broker, proxy):
        direct = Client(broker.service_url)
        before = direct.begin()
        client = Client(proxy.service_url)
        own = client.begin()
        client.publish(before, 0)
        assert "error" not in client.end(before, "ABORT")
        assert "error" not in client.end(own, "COMMIT")
        for each in (direct, client):
            each.close()
    _, verdict = command_log(proxy.folder / TRACE)
    assert (verdict.differences, verdict.explained) == ([], {BEGUN: 3})
    replayed = replay_in_process(proxy.folder / COMMANDS, tmp_path / "replayed")
    (found,) = (each for each in replayed.stats if each["topic"] == TOPIC)
    assert found["entries"] == 1  # which no transaction holds back, and no marker


def test_without_any_the_log_has_none_so_that_a_what_if_takes_it(tmp_path: Path) -> None:
    with recorded(tmp_path / "log") as (_, proxy), proxy.client() as client:
        client.create_producer("t").send(b"x")
    assert command_log(proxy.folder / TRACE)[1].differences == []
    assert proxy.trace.header["broker_config"]["transactionCoordinatorEnabled"] == "true"
    assert "transactionCoordinatorEnabled" not in (proxy.folder / COMMANDS).read_text()
