"""The HTTP endpoint of a running query: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for whoever runs it."""

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector

from streaming.metrics.query import QueryMetrics

LOOPBACK = "127.0.0.1"


class EndpointError(ValueError):
    """The endpoint's address can't be used. The text says why."""


class Endpoint:
    """Serves metrics in threads of its own, from its creation until `close`."""

    def __init__(self, address: str, metrics: QueryMetrics) -> None:
        """`address`: ``HOST:PORT``, or ``PORT`` for this machine alone. Port 0: any free one. Raises `EndpointError`."""
        host, port = _parsed(address)
        app = _application(metrics)
        try:
            self._server = make_server(host, port, app, _Server, _Quiet)
        except (OSError, OverflowError) as error:
            raise EndpointError(f"--metrics {address}: {error}") from None
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Take no more requests."""
        self._server.shutdown()
        self._server.server_close()


def registry(metrics: Collector) -> CollectorRegistry:
    """A registry of metrics and those of the process."""
    found = CollectorRegistry()
    found.register(metrics)
    ProcessCollector(registry=found)
    PlatformCollector(registry=found)
    return found


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise EndpointError(f"--metrics {address}: expected HOST:PORT, such as 127.0.0.1:9464, or PORT")
    return host.strip("[]") or LOOPBACK, int(port)


class _Status(NamedTuple):
    status: str
    text: str


def _application(metrics: QueryMetrics) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    expose = make_wsgi_app(registry(metrics))

    def probe(path: str) -> _Status:
        if path == "/healthz":
            return (
                _Status("200 OK", "ok") if metrics.healthy else _Status("503 Service Unavailable", "stopped")
            )
        if path == "/readyz":
            return (
                _Status("200 OK", "ready")
                if metrics.ready
                else _Status(
                    "503 Service Unavailable", "no micro-batch is done yet" if metrics.healthy else "stopped"
                )
            )
        return _Status("404 Not Found", "there are /metrics, /healthz and /readyz")

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            exposed: Iterable[bytes] = expose(environ, start_response)
            return exposed
        found = probe(environ["PATH_INFO"])
        body = f"{found.text}\n".encode()
        start_response(
            found.status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        )
        return [body]

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    timeout = 10
    """Seconds without a byte, after which a connection is closed."""

    def log_message(self, format: str, *args: object) -> None:
        pass
