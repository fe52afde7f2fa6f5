"""Unmodified Python clients read a compacted topic: readers, consumers and table views, also after restarts and on a query."""

import time
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from tests.server.conftest import Running, running

pytestmark = pytest.mark.feature("C4")

TOPIC = "persistent://public/default/t"
WAIT = 5000


def _call(broker: Running, method: str, path: str, body: Any = None) -> Any:
    url = f"{broker.server.admin_url}/admin/v2/persistent/public/default/t{path}"
    answer = httpx.request(method, url, json=body)
    assert answer.status_code in (200, 204), answer.text
    return answer.json() if answer.content else None


def _read(client: Any, *, compacted: bool = True) -> list[tuple[str, bytes]]:
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=compacted)
    found = []
    while reader.has_message_available():
        message = reader.read_next(WAIT)
        # This client shows what was compacted out of a batch as a message without a key and without a payload.
        if (message.partition_key(), message.data()) != ("", b""):
            found.append((message.partition_key(), message.data()))
    reader.close()
    return found


def _publish(client: Any, messages: list[tuple[str, bytes]], **options: Any) -> None:
    producer = client.create_producer(TOPIC, **options)
    for key, payload in messages:
        producer.send_async(payload, lambda *_: None, partition_key=key)
    producer.flush()
    producer.close()


SENT = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4"), ("b", b"")]


@pytest.mark.parametrize(
    "options",
    [
        {"batching_enabled": False},
        {"batching_enabled": True, "batching_max_publish_delay_ms": 1000},
        *(
            {"batching_enabled": batching, "compression_type": codec, "batching_max_publish_delay_ms": 1000}
            for batching in (False, True)
            for codec in (pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib, pulsar.CompressionType.ZSTD,
                          pulsar.CompressionType.SNAPPY)
        ),
    ],
    ids=str,
)  # fmt: skip
def test_readers_get_the_last_message_of_each_key(options: dict[str, Any]) -> None:
    with running() as broker, broker.client() as client:
        _publish(client, SENT, **options)
        assert _call(broker, "GET", "/compaction")["status"] == "NOT_RUN"
        _call(broker, "PUT", "/compaction")
        assert _call(broker, "GET", "/compaction")["status"] == "SUCCESS"
        left = _read(client)
        # Without the size that compression tells, the broker takes an empty message for one with a value.
        plain = not options["batching_enabled"] and "compression_type" not in options
        assert left == [("a", b"3"), ("c", b"4"), *([("b", b"")] if plain else [])]
        if (
            options.get("compression_type") != pulsar.CompressionType.ZLib
        ):  # of which this client can't read an empty message
            assert _read(client, compacted=False) == SENT


def test_a_table_view_of_a_compacted_topic() -> None:
    with running() as broker, broker.client() as client:
        _publish(client, SENT)
        _call(broker, "PUT", "/compaction")
        _publish(client, [("d", b"5")])
        view = client.create_table_view(TOPIC)
        assert {key: view.get(key) for key in "acd"} == {"a": b"3", "c": b"4", "d": b"5"}


def test_a_restart_and_an_unload_keep_what_was_compacted(tmp_path: Path) -> None:
    """Also what the topic itself has no more, because retention has deleted it."""
    settings: dict[str, Any] = {
        "managedLedgerMaxEntriesPerLedger": 2, "managedLedgerMinLedgerRolloverTimeMinutes": 0, "managedLedgerDefaultMarkDeleteRateLimit": 0,
    }  # fmt: skip
    with running(tmp_path, **settings) as broker, broker.client() as client:
        _call(broker, "PUT", "")
        _call(broker, "POST", "/compactionThreshold", 1 << 40)  # from now on, compaction holds the ledgers
        _publish(client, SENT, batching_enabled=False, compression_type=pulsar.CompressionType.LZ4)
        _call(broker, "PUT", "/compaction")
        before = _read(client)
        assert len(_call(broker, "GET", "/internalStats")["ledgers"]) == 1
        assert _read(client, compacted=False) == SENT[-1:]
    with running(tmp_path, **settings) as broker, broker.client() as client:
        assert _read(client) == before == [("a", b"3"), ("c", b"4")]
        assert _call(broker, "GET", "/compaction")["status"] == "NOT_RUN"
        stats = _call(broker, "GET", "/internalStats")
        assert stats["compactedLedger"]["entries"] == 2
        assert "__compaction" in stats["cursors"]
        _publish(client, [("c", b"6")])
        _call(broker, "PUT", "/compaction")
        _call(broker, "PUT", "/unload")
        assert _read(client) == [("a", b"3"), ("c", b"6")]
    with running(tmp_path, **settings) as broker, broker.client() as client:
        assert _read(client) == [("a", b"3"), ("c", b"6")]
        _call(broker, "DELETE", "/compactionThreshold")
        _call(broker, "DELETE", "/subscription/__compaction")
        assert _call(broker, "GET", "/internalStats")["compactedLedger"]["ledgerId"] == -1
        assert _read(client) in ([], [("c", b"6")])


def test_a_threshold_compacts_by_itself() -> None:
    with running(brokerServiceCompactionMonitorIntervalInSeconds=1) as broker, broker.client() as client:
        _publish(client, SENT[:1])
        _call(broker, "POST", "/compactionThreshold", 100)
        _publish(client, [("a", b"x" * 50)] * 3)
        until = time.monotonic() + 10
        while _call(broker, "GET", "/compaction")["status"] != "SUCCESS":
            assert time.monotonic() < until
            time.sleep(0.1)
        assert _read(client) == [("a", b"x" * 50)]
        assert _call(broker, "GET", "/stats")["compaction"]["lastCompactionRemovedEventCount"] == 3
