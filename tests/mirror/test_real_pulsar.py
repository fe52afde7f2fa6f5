"""Beside real brokers: whatever official clients and operators do, and however often the mirror is killed, the twin is the cluster."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming.record.rest import Rest
from tests.e2e.live import MAGNETAR
from tests.e2e.processes import wait_until
from tests.mirror.kit import Twin, differences, positions
from tests.mirror.traffic import NAMESPACE, Traffic, config
from tests.parity.pulsar import LocalPulsar

pytestmark = [pytest.mark.slow, pytest.mark.feature("K4")]

SECONDS = 40
KILLS = 5


@pytest.fixture(params=["2.10.5", "4.0.7", "4.2.4"])
def real(request: Any, tmp_path: Path) -> Iterator[LocalPulsar]:
    with LocalPulsar(tmp_path / "pulsar", config(), request.param) as found:
        yield found


def test_a_twin_equals_its_cluster(real: LocalPulsar, tmp_path: Path) -> None:
    traffic, folder = Traffic(real, real.version), tmp_path / "log"
    rest = Rest(traffic.admin_url)
    traffic.start()
    command = [
        str(MAGNETAR), "mirror", NAMESPACE, "--to", str(folder), "--service-url", traffic.url, "--admin-url", traffic.admin_url,
        "--every", "1s",
    ]  # fmt: skip
    said = (tmp_path / "said").open("wb")
    for _ in range(KILLS):
        mirror = subprocess.Popen(command, stderr=said)
        time.sleep(SECONDS / KILLS)
        mirror.kill()
        mirror.wait()
    traffic.stop()
    mirror = subprocess.Popen(command, stderr=said)

    def is_twin() -> bool:
        twin = Twin(folder).broker
        return not any(
            topic not in twin.topic_names() or differences(rest, topic, twin) for topic in traffic.topics
        )

    try:
        wait_until(is_twin, "the twin is at rest")  # TTL is checked each minute, here and there
    finally:
        mirror.send_signal(signal.SIGTERM)
        assert mirror.wait(60) == 0
    assert Twin(folder).refused == []
    receipts = traffic.acked
    for topic in traffic.topics:
        found = positions(folder, topic)
        assert found == sorted(set(found))
        assert found
        assert {*receipts.get(topic, ())} <= {*found}
