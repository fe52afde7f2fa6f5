"""What-if on a mirrored log, against what a real broker does when the policy is really set: the same messages are lost, to the interval."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pulsar
import pytest

from streaming.answers.whatif.answer import WhatIf
from streaming.answers.whatif.compare import PolicySet, whatif
from streaming.record.rest import Rest
from tests.parity.pulsar import LocalPulsar, settings

pytestmark = [pytest.mark.slow, pytest.mark.feature("K4")]

SECONDS, PER_SECOND, SIZE = 100, 5, 1000
"""How long, how fast and how large messages are published, with nobody to take them. Then somebody takes all that are left."""
TTL, TTL_CHECK = 5, 60
QUOTA, QUOTA_CHECK = 100_000, 10
RETENTION, RETENTION_CHECK, LEDGER = 60, 10, 20
NAMESPACES = ("base", "ttl", "quota", "retention")
POLICIES: dict[str, dict[str, Any]] = {
    "ttl": {"messageTTL": TTL},
    "quota": {
        "backlogQuota": {"destination_storage": {"limitSize": QUOTA, "policy": "consumer_backlog_eviction"}}
    },
    "retention": {"retention": {"retentionTimeInMinutes": RETENTION // 60, "retentionSizeInMB": -1}},
}


class Lived(NamedTuple):
    """What happened on the cluster. `received`: the numbers of the messages that the late consumer got, by namespace; `stored`: the
    number of entries at the end. `published` and `consumed`: when each message was published, and the first one taken (s)."""

    log: Path
    received: dict[str, set[int]]
    stored: dict[str, int]
    published: list[float]
    consumed: float


def _topic(name: str) -> str:
    return f"persistent://public/{name}/t"


def _set(rest: Rest, name: str) -> None:
    path = f"/namespaces/public/{name}"
    assert rest.call("PUT", path).status in (204, 409)
    policies = POLICIES.get(name, {})
    if "messageTTL" in policies:
        assert rest.call("POST", f"{path}/messageTTL", policies["messageTTL"]).status == 204
    if "backlogQuota" in policies:
        quota = policies["backlogQuota"]["destination_storage"]
        assert (
            rest.call("POST", f"{path}/backlogQuota?backlogQuotaType=destination_storage", quota).status
            == 204
        )
    if "retention" in policies:
        assert rest.call("POST", f"{path}/retention", policies["retention"]).status == 204


@pytest.fixture(scope="module", params=["2.10.5", "4.0.7", "4.2.4"])
def lived(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    folder = tmp_path_factory.mktemp("whatif")
    config = settings() | {
        "managedLedgerMaxEntriesPerLedger": str(LEDGER), "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "messageExpiryCheckIntervalInMinutes": str(TTL_CHECK // 60), "backlogQuotaCheckIntervalInSeconds": str(QUOTA_CHECK),
        "retentionCheckIntervalInSeconds": str(RETENTION_CHECK),
    }  # fmt: skip
    with LocalPulsar(folder / "pulsar", config, request.param) as real:
        rest = Rest(f"http://127.0.0.1:{real.ports.admin}")
        url = f"pulsar://127.0.0.1:{real.ports.broker}"
        for name in ("first", *NAMESPACES):
            _set(rest, name)
        client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        with closing(client):
            yield _live(client, rest, url, folder)


def _live(client: Any, rest: Rest, url: str, folder: Path) -> Lived:
    client.create_producer(_topic("first")).close()  # the cluster's first ledger may have the id 0
    consumers = {name: client.subscribe(_topic(name), "s", pulsar.ConsumerType.Shared) for name in NAMESPACES}
    for each in consumers.values():
        each.close()
    command = [
        str(Path(sys.executable).with_name("magnetar")), "mirror", "public/base", "--to", str(folder / "log"), "--service-url", url,
        "--admin-url", rest.url, "--every", "1s",
    ]  # fmt: skip
    mirror = subprocess.Popen(command)
    try:
        producers = {name: client.create_producer(_topic(name), "p") for name in NAMESPACES}
        published: list[float] = []
        began = time.monotonic()
        for number in range(SECONDS * PER_SECOND):
            time.sleep(max(0.0, began + number / PER_SECOND - time.monotonic()))
            published.append(time.time())
            for each in producers.values():
                each.send(f"{number:0{SIZE}}".encode())
        consumed = time.time()
        received = {name: set(_received(client, name)) for name in NAMESPACES}
        time.sleep(2.5 * RETENTION_CHECK)
        stored = {
            name: rest.get(f"/persistent/public/{name}/t/internalStats")["numberOfEntries"]
            for name in NAMESPACES
        }
        time.sleep(3)
    finally:
        mirror.send_signal(signal.SIGTERM)
        assert mirror.wait(60) == 0
    return Lived(folder / "log", received, stored, published, consumed)


def _received(client: Any, name: str) -> Iterator[int]:
    consumer = client.subscribe(_topic(name), "s", pulsar.ConsumerType.Shared)
    with suppress(pulsar.Timeout):
        while True:
            message = consumer.receive(3000)
            consumer.acknowledge(message)
            yield int(message.data())
    consumer.close()


def _asked(lived: Lived, name: str) -> WhatIf:
    policies = lived.log.with_name(f"{name}.yaml")
    policies.write_text(json.dumps({"namespaces": {"public/base": POLICIES[name]}}))
    return whatif(lived.log, [PolicySet(name, policies)], partitions=1)


def _lost(lived: Lived, name: str) -> tuple[set[int], set[int]]:
    """What-if's losses, and the real ones."""
    found = _asked(lived, name).differences.to_pylist()
    return {each["sequence_id"] for each in found if each["change"] == "lost newly"}, {
        *range(len(lived.published))
    } - lived.received[name]


def test_without_policies_nothing_is_lost(lived: Lived) -> None:
    assert lived.received["base"] == {*range(SECONDS * PER_SECOND)}
    assert lived.stored["base"] <= LEDGER


def test_ttl(lived: Lived) -> None:
    for lost in _lost(lived, "ttl"):
        assert lost == {*range(len(lost))}
        for number, at in enumerate(lived.published):
            age = lived.consumed - at
            assert number in lost or age < TTL + TTL_CHECK + 5
            assert number not in lost or age > TTL - 5


def test_a_quota_of_size(lived: Lived) -> None:
    here, there = _lost(lived, "quota")
    assert here == {*range(len(here))}
    assert there == {*range(len(there))}
    assert len(there) > len(lived.published) / 2
    assert abs(len(here) - len(there)) <= QUOTA_CHECK * PER_SECOND + LEDGER


def test_retention(lived: Lived) -> None:
    (row,) = (
        each
        for each in _asked(lived, "retention").summary.to_pylist()
        if each["policies"] == "retention" and each["subscription"] is None
    )
    here, there = len(lived.published) - row["trimmed"], lived.stored["retention"]
    assert there > 2 * LEDGER
    assert abs(here - there) <= (RETENTION_CHECK + 3) * PER_SECOND + LEDGER
