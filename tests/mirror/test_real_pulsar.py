"""Beside real brokers: whatever official clients and operators do, and however often the mirror is killed, the twin is the cluster."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pulsar
import pytest

from streaming.record.rest import Rest
from tests.e2e.processes import wait_until
from tests.mirror.kit import Twin, differences, positions
from tests.parity.pulsar import LocalPulsar, settings

pytestmark = [pytest.mark.slow, pytest.mark.feature("K4")]

NAMESPACE = "public/default"
TYPES = {
    "exclusive": pulsar.ConsumerType.Exclusive, "failover": pulsar.ConsumerType.Failover, "shared": pulsar.ConsumerType.Shared,
    "keys": pulsar.ConsumerType.KeyShared, "parts": pulsar.ConsumerType.Shared,
}  # fmt: skip
SECONDS = 40
KILLS = 5


@pytest.fixture(params=["2.10.5", "4.0.7", "4.2.4"])
def real(request: Any, tmp_path: Path) -> Iterator[LocalPulsar]:
    config = settings() | {
        "managedLedgerMaxEntriesPerLedger": "50", "managedLedgerMinLedgerRolloverTimeMinutes": "0", "messageExpiryCheckIntervalInMinutes": "1",
    }  # fmt: skip
    with LocalPulsar(tmp_path / "pulsar", config, request.param) as found:
        yield found


def produce(client: Any, topic: str, draw: Random, stop: threading.Event) -> None:
    batches = draw.random() < 0.5
    producer = client.create_producer(topic, batching_enabled=batches, batching_max_publish_delay_ms=20)
    while not stop.wait(draw.choice([0.005, 0.01, 0.05, 0.3])):
        key = str(draw.randrange(20))
        if batches:
            producer.send_async(b"x" * draw.randrange(100), lambda *_: None, partition_key=key)
        else:
            after = timedelta(seconds=draw.randrange(1, 8)) if draw.random() < 0.05 else None
            producer.send(b"x" * draw.randrange(100), partition_key=key, deliver_after=after)
    producer.flush()
    producer.close()


def consume(client: Any, topic: str, type_: Any, draw: Random, stop: threading.Event) -> None:
    while not stop.is_set():
        consumer = client.subscribe(
            topic, "s", type_, initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=draw.choice([5, 1000]),
            negative_ack_redelivery_delay_ms=500,
        )  # fmt: skip
        end = time.monotonic() + draw.choice([5, 15])
        while not stop.is_set() and time.monotonic() < end:
            with suppress(pulsar.Timeout):
                message = consumer.receive(500)
                match draw.randrange(10):
                    case 0:
                        pass
                    case 1:
                        consumer.negative_acknowledge(message)
                    case _:
                        consumer.acknowledge(message)
        consumer.close()


def operate(rest: Rest, draw: Random, stop: threading.Event) -> None:
    while not stop.wait(3):
        path = f"/persistent/{NAMESPACE}/{draw.choice(['exclusive', 'failover', 'shared', 'keys'])}"
        now = time.time_ns() // 1_000_000
        calls: list[tuple[Any, ...]] = [
            ("PUT", f"{path}/unload"), ("POST", f"{path}/subscription/s/skip/3"), ("POST", f"{path}/subscription/s/expireMessages/5"),
            ("POST", f"{path}/subscription/idle/resetcursor/{now - 10_000}"), ("PUT", f"{path}/subscription/late{draw.randrange(3)}"),
            ("DELETE", f"{path}/subscription/late{draw.randrange(3)}"), ("POST", f"/namespaces/{NAMESPACE}/messageTTL", draw.choice([30, 3600])),
            ("POST", f"/namespaces/{NAMESPACE}/retention", {"retentionTimeInMinutes": draw.choice([0, 10]), "retentionSizeInMB": 10}),
        ]  # fmt: skip
        rest.call(*draw.choice(calls))


def test_a_twin_equals_its_cluster(real: LocalPulsar, tmp_path: Path) -> None:
    url, rest = f"pulsar://127.0.0.1:{real.ports.broker}", Rest(f"http://127.0.0.1:{real.ports.admin}")
    draw, stop, folder = Random(real.version), threading.Event(), tmp_path / "log"
    assert rest.call("PUT", f"/persistent/{NAMESPACE}/parts/partitions", 3).status == 204
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    assert rest.call("PUT", "/namespaces/public/other").status in (204, 409)
    client.create_producer(
        "persistent://public/other/first"
    ).close()  # the cluster's first ledger may have the id 0
    threads = [threading.Thread(target=operate, args=(rest, draw, stop))]
    for name, type_ in TYPES.items():
        topic = f"persistent://{NAMESPACE}/{name}"
        client.subscribe(topic, "idle", initial_position=pulsar.InitialPosition.Earliest).close()
        threads += [
            threading.Thread(target=produce, args=(client, topic, Random(draw.random()), stop))
            for _ in range(2)
        ]
        threads += [
            threading.Thread(target=consume, args=(client, topic, type_, Random(draw.random()), stop))
        ]
    for thread in threads:
        thread.start()
    magnetar = str(Path(sys.executable).with_name("magnetar"))
    command = [
        magnetar,
        "mirror",
        NAMESPACE,
        "--to",
        str(folder),
        "--service-url",
        url,
        "--admin-url",
        rest.url,
        "--every",
        "1s",
    ]
    said = (tmp_path / "said").open("wb")
    for _ in range(KILLS):
        mirror = subprocess.Popen(command, stderr=said)
        time.sleep(SECONDS / KILLS)
        mirror.kill()
        mirror.wait()
    stop.set()
    for thread in threads:
        thread.join()
    client.close()
    mirror = subprocess.Popen(command, stderr=said)
    topics = [f"persistent://{NAMESPACE}/{name}" for name in TYPES if name != "parts"]
    topics += [f"persistent://{NAMESPACE}/parts-partition-{number}" for number in range(3)]

    def is_twin() -> bool:
        return not any(differences(rest, topic, Twin(folder)) for topic in topics)

    try:
        wait_until(is_twin, "the twin is at rest")  # TTL is checked each minute, here and there
    finally:
        mirror.send_signal(signal.SIGTERM)
        assert mirror.wait(60) == 0
    assert Twin(folder).refused == []
    for topic in topics:
        found = positions(folder, topic)
        assert found == sorted(set(found))
        assert found
