"""What the admin API of real Pulsars of several versions answers `magnetar explain`, in each of the situations.

``python -m tests.record.recorded_clusters VERSION…`` records it again. The ZooKeeper of 2.10 binds all addresses, so give it a network of
its own: ``unshare --map-root-user --net env MAGNETAR_LOOPBACK_ONLY=1 python -m tests.record.recorded_clusters 2.10.5``.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from streaming.broker.config import ServiceConfiguration
from streaming.record.observe import observe
from streaming.record.rest import Rest, Said
from tests.parity.loopback import enter_namespace
from tests.parity.pulsar import LocalPulsar, has_zookeeper
from tests.record.situations import SETTINGS, SITUATIONS, Scene, topic_of

FOLDER = Path(__file__).parent / "clusters"
VERSIONS = ("2.10.5", "3.0.7", "4.0.7", "4.2.4", "5.0.0-M1")
_SETTINGS = "/brokers/configuration/runtime"
_WITH_AGES = ("quota_blocks", "age_blocks", "age_evicts")
"""Of these, the ages of the oldest messages are asked for, too."""
_CHECKS = 3
"""Seconds until a check of the quotas has run."""


class Recording(Rest):
    """An admin API whose responses are noted."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.said: dict[str, tuple[int, Any]] = {}

    def call(self, method: str, path: str, body: Any = None) -> Said:
        assert method == "GET", "explain only reads"
        found = super().call(method, path, body)
        value = found.value
        if path == _SETTINGS:
            value = {
                name: each for name, each in value.items() if name in ServiceConfiguration.__struct_fields__
            }
        self.said[path] = found.status, value
        return found


class Recorded(Rest):
    """The admin API of a cluster that was recorded. `now`: when (ms)."""

    def __init__(self, version: str) -> None:
        super().__init__("http://recorded")
        found = json.loads((FOLDER / f"{version}.json").read_text())
        self.now: int = found["now"]
        self.said: dict[str, Any] = found["said"]

    def call(self, method: str, path: str, body: Any = None) -> Said:
        assert method == "GET", "explain only reads"
        return Said(*self.said[path])


def record(version: str) -> None:
    """Make all situations on a broker, and record what explain asks."""
    with tempfile.TemporaryDirectory() as folder, LocalPulsar(Path(folder), SETTINGS, version) as real:
        rest = Recording(f"http://127.0.0.1:{real.ports.admin}")
        scene = Scene(f"pulsar://127.0.0.1:{real.ports.broker}", Rest(rest.url))
        try:
            for name, make in SITUATIONS.items():
                make(scene, topic_of(name))
            time.sleep(_CHECKS)
            now = time.time_ns() // 1_000_000
            for name in SITUATIONS:
                observe(rest, topic_of(name), now, oldest=name in _WITH_AGES)
        finally:
            scene.close()
    lines = [
        f"{json.dumps(path)}: {json.dumps(said, separators=(',', ':'))}"
        for path, said in sorted(rest.said.items())
    ]
    text = f'{{"now": {now}, "said": {{\n' + ",\n".join(lines) + "\n}}\n"
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{version}.json").write_text(text)
    print(f"{version}: {len(lines)} responses")


if __name__ == "__main__":
    if any(map(has_zookeeper, sys.argv[1:])):
        enter_namespace()
    for each in sys.argv[1:]:
        record(each)
