"""The endpoint, and the metrics of a query, without a query."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from streaming.metrics.endpoint import Endpoint, EndpointError, application
from streaming.metrics.query import BatchProgress, QueryMetrics
from streaming.spark.progress import parsed
from tests.broker.kit import Run
from tests.e2e.processes import wait_until

PROGRESS = BatchProgress(
    batch_id=3,
    time=1_700_000_000_000,
    records=20,
    seconds={"addBatch": 0.3, "triggerExecution": 0.4},
    records_per_second=50.0,
    behind=7,
    state_memory=1000,
    read={0: 40, 1: 20},
)


def get(url: str, accept: str = "*/*") -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_probes_and_metrics() -> None:
    metrics = QueryMetrics()
    endpoint = Endpoint("0")
    endpoint.start(application(metrics))
    try:
        assert endpoint.url.startswith("http://127.0.0.1:")
        assert get(f"{endpoint.url}/healthz") == (200, "ok\n")
        assert get(f"{endpoint.url}/readyz") == (503, "no micro-batch is done yet\n")
        metrics.progress(PROGRESS)
        assert get(f"{endpoint.url}/readyz") == (200, "ready\n")
        assert get(f"{endpoint.url}/")[0] == 404
        run = Run(managedLedgerMaxEntriesPerLedger=2, managedLedgerMinLedgerRolloverTimeMinutes=0)
        run.subscribe("s")  # else closed ledgers are trimmed
        for sequence_id in range(3):
            run.publish(sequence_id)
        metrics.files({"segments": 3, "tables": 6})
        metrics.files({"segments": 4})
        measured = run.broker.metrics(everything=True)
        measured.quarantined = {"json": 2}
        metrics.batch({(0, "SEND_RECEIPT"): 1, (1, "SEND_RECEIPT"): 2}, [measured])
        status, text = get(f"{endpoint.url}/metrics")
        assert status == 200
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert found["magnetar_output_rows_total", "SEND_RECEIPT"] == 3
        assert found["magnetar_quarantined_records_total", "json"] == 2
        assert found["magnetar_records_total",] == 20
        assert found["magnetar_batch_seconds_bucket", "0.25"] == 0
        assert found["magnetar_batch_seconds_bucket", "0.5"] == found["magnetar_batch_seconds_count",] == 1
        assert found["magnetar_batch_phase_seconds_total", "addBatch"] == 0.3
        assert found["magnetar_records_behind",] == 7
        files = {key[1]: value for key, value in found.items() if key[0] == "magnetar_files"}
        assert files == {"ledgers": 1, "segments": 4, "tables": 6}
        status, text = get(f"{endpoint.url}/metrics", "application/openmetrics-text; version=1.0.0")
        assert status == 200
        assert {"pulsar_storage_size", "magnetar_batch_seconds"} <= {each.name for each in openmetrics(text)}  # type: ignore[no-untyped-call]
        metrics.stopped()
        assert get(f"{endpoint.url}/healthz") == get(f"{endpoint.url}/readyz") == (503, "stopped\n")
    finally:
        endpoint.close()


@pytest.mark.parametrize("address", ["", "localhost", "127.0.0.1:x", "127.0.0.1:65536", "192.0.2.1:0"])
def test_an_address_that_is_not_usable(address: str) -> None:
    with pytest.raises(EndpointError, match="--metrics"):
        Endpoint(address)


def test_a_port_in_use() -> None:
    endpoint = Endpoint("127.0.0.1:0")
    try:
        with pytest.raises(EndpointError, match="in use"):
            Endpoint(endpoint.url.removeprefix("http://"))
    finally:
        endpoint.close()


@pytest.mark.parametrize(("time_passes", "lag"), [(True, 5.0), (False, 60.0)])
def test_micro_batches_advance_clocks_that_show_no_record(time_passes: bool, lag: float) -> None:
    metrics = QueryMetrics(time_passes=time_passes)
    metrics.progress(PROGRESS)
    assert metrics.clock_lag(PROGRESS.time - 55_000, PROGRESS.time + 5000) == lag
    assert metrics.clock_lag(PROGRESS.time + 9000, PROGRESS.time + 5000) == 0


def test_progress_of_spark() -> None:
    said = {
        "batchId": 3,
        "timestamp": "2023-11-14T22:13:20.000Z",
        "numInputRows": 20,
        "processedRowsPerSecond": 50.0,
        "durationMs": {"addBatch": 300, "triggerExecution": 400},
        "stateOperators": [{"memoryUsedBytes": 400}, {"memoryUsedBytes": 600}],
        "sources": [{"metrics": {"maxOffsetsBehindLatest": "7"}, "endOffset": {"t": {"0": 40, "1": 20}}}],
    }
    assert parsed(said) == PROGRESS
    without = parsed({**said, "sources": [{}]})
    assert (without.behind, without.read) == (None, {})


def test_records_that_a_transaction_holds_back_are_behind_also_without_micro_batches() -> None:
    metrics = QueryMetrics()
    metrics.progress(PROGRESS)
    metrics.unread(51)
    found = {each.name: each for each in metrics.collect()}
    assert [each.value for each in found["magnetar_records_behind"].samples] == [51]


def test_no_more_connections_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond it are closed at once, and those that end make room."""
    monkeypatch.setattr("streaming.metrics.endpoint.CONNECTIONS", 2)
    begun, end = threading.Semaphore(0), threading.Event()

    def slow(environ: Any, start_response: Any) -> list[bytes]:
        begun.release()
        end.wait(30)
        start_response("200 OK", [])
        return [b"ok"]

    endpoint = Endpoint("0")
    endpoint.start(slow)
    address = ("127.0.0.1", int(endpoint.url.rpartition(":")[2]))
    try:
        with ThreadPoolExecutor(2) as pool:
            under_way = [pool.submit(_is_served, address) for _ in range(2)]
            for _ in under_way:
                assert begun.acquire(timeout=30)
            assert not _is_served(address)
            end.set()
            assert [each.result() for each in under_way] == [True, True]
        wait_until(partial(_is_served, address), "room for a connection")
    finally:
        end.set()
        endpoint.close()


def test_connections_that_ask_nothing_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probes of a query are answered, however many there are."""
    monkeypatch.setattr("streaming.metrics.endpoint.CONNECTIONS", 2)
    endpoint = Endpoint("0")
    endpoint.start(application(QueryMetrics()))
    address = ("127.0.0.1", int(endpoint.url.rpartition(":")[2]))
    silent: list[socket.socket] = []
    try:
        for number in range(10):
            silent.append(socket.create_connection(address, 30))
            # half a line is no request, and neither is one whose headers do not end
            silent[-1].sendall([b"", b"GET /met", b"GET /healthz HTTP/1.1\r\nA: "][number % 3])
            assert _is_served(address)
        assert silent[0].recv(1) == b""
    finally:
        endpoint.close()
        for each in silent:
            each.close()


def test_connections_that_do_not_read_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probes of a query are answered, however many ask for a page and leave it unread."""
    monkeypatch.setattr("streaming.metrics.endpoint.CONNECTIONS", 2)
    probe = application(QueryMetrics())

    def large(environ: Any, start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/healthz":
            return probe(environ, start_response)
        start_response("200 OK", [])
        return [bytes(32 << 20)]

    endpoint = Endpoint("0")
    endpoint.start(large)
    address = ("127.0.0.1", int(endpoint.url.rpartition(":")[2]))
    unread: list[socket.socket] = []
    try:
        for _ in range(6):
            unread.append(socket.create_connection(address, 30))
            unread[-1].sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert unread[-1].recv(1) == b"H"
            assert _is_served(address)
    finally:
        endpoint.close()
        for each in unread:
            each.close()


def _is_served(address: tuple[str, int]) -> bool:
    with closing(HTTPConnection(*address, timeout=30)) as connection, suppress(OSError, HTTPException):
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    return False
