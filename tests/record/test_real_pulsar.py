"""A real Pulsar 4.0.7 and the official client are recorded, and the replay says what the broker said."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.jobs.replay import replay_in_process
from streaming.record.capture import capture
from streaming.record.record import command_log
from streaming.record.recording import COMMANDS, TRACE
from streaming.record.rest import Rest
from tests.parity.pulsar import LocalPulsar
from tests.record.kit import proxied
from tests.record.test_capture import fill, same_state
from tests.record.test_record import BODIES

pytestmark = [pytest.mark.slow, pytest.mark.feature("K3")]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPulsar]:
    with LocalPulsar(tmp_path_factory.mktemp("pulsar")) as found:
        yield found


def test_a_recording_replays_to_the_answers_of_a_real_broker(real: LocalPulsar, tmp_path: Path) -> None:
    """Differences between Magnetar and the broker would be listed; races may be."""
    to, admin_to = f"pulsar://127.0.0.1:{real.ports.broker}", f"http://127.0.0.1:{real.ports.admin}"
    with proxied(tmp_path / "log", to, admin_to) as proxy:
        assert proxy.missing == []
        for body in BODIES:
            with proxy.client() as client:
                body(proxy, client, f"persistent://public/default/{body.__name__}")
    _, verdict = command_log(proxy.folder / TRACE)
    assert verdict.differences == []
    assert verdict.frames > 200
    assert sum(verdict.explained.values()) < verdict.frames / 10
    replayed = replay_in_process(proxy.folder / COMMANDS, tmp_path / "replayed", batches=3)
    answered = Counter(each["cmd"] for each in proxy.trace.records if each["dir"] == "out")
    assert replayed.rows["SEND_RECEIPT"] == answered["SEND_RECEIPT"]
    assert "QUARANTINED" not in replayed.rows


def test_a_capture_ends_in_the_state_of_a_real_broker(real: LocalPulsar, tmp_path: Path) -> None:
    to, rest = f"pulsar://127.0.0.1:{real.ports.broker}", Rest(f"http://127.0.0.1:{real.ports.admin}")
    topic = "persistent://public/default/captured"
    with proxied(tmp_path / "log", to, rest.url) as proxy, proxy.client() as client:
        fill(client, topic)
    captured = capture(to, rest, [topic], tmp_path / "log.jsonl")
    assert (captured.entries, captured.subscriptions, captured.missing) == (21, 3, [])
    same_state(rest, topic, tmp_path / "log.jsonl")
