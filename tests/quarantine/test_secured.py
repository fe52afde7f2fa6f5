"""Dead letters and resubmission where Kafka asks for a certificate and a password."""

from pathlib import Path

import pytest

from schemas.effects import Quarantined
from sinks.dead_letters import KafkaDeadLetters, read_dead_letters
from sinks.quarantine import QuarantineSink
from streaming.kafka.config import KafkaConfig
from streaming.kafka.topics import ensure_topic
from streaming.kafka.url import KafkaUrl
from tests.kafka.secured import WRONG, secured_kafka
from tests.quarantine.test_quarantine import TOPIC, complaint, edited, magnetar, message
from tests.sinks.helpers import output


@pytest.mark.kafka
@pytest.mark.feature("J6")
def test_with_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.kafka.client.PATIENCE_MS", 1500)
    store = tmp_path / "store"
    rows = output([Quarantined(TOPIC, "malformed", "no", b"{}")])
    QuarantineSink(str(store)).write(0, 0, rows)
    bad = edited(store, tmp_path / "bad.jsonl", p0_0=message(1))
    with secured_kafka(tmp_path) as secured:
        bootstrap, file = secured.kafka.bootstrap, secured.file("right", {})
        config = KafkaConfig.of(file)
        for name in ("dead", "ingress"):
            ensure_topic(KafkaUrl(bootstrap, name), 1, config)
        sink = KafkaDeadLetters(bootstrap, "dead", config)
        sink.begin(0)
        sink.write(0, 0, rows)
        assert [each.value for each in read_dead_letters(bootstrap, "dead", timeout=0.01, config=config)] == [
            b"{}"
        ]

        resubmit = ("resubmit", store, bad, "--ingress", f"kafka://{bootstrap}/ingress", "--kafka-config")
        said = complaint(*resubmit, secured.file("wrong", {"sasl.password": WRONG}))
        assert said.startswith(f"Kafka at {bootstrap} did not let user 'magnetar' in")
        assert WRONG not in said
        assert "No such file" in complaint(*resubmit, tmp_path / "absent.properties")
        sent = magnetar(*resubmit, file)
        assert sent.stdout == f"1 record to kafka://{bootstrap}/ingress: 0:0 as 0:0\n", sent.output
