"""The HTTP endpoint of a running query: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for whoever runs it."""

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector

from streaming.metrics.browsers import READING, is_loopback
from streaming.metrics.query import QueryMetrics

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"

CONNECTIONS = 64
"""The most connections that are served at a time."""


class EndpointError(ValueError):
    """The endpoint's address can't be used. The text says why."""


WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""


class Endpoint:
    """Has an address from its creation until `close`, and serves an application there, in threads of its own, from `start` on."""

    def __init__(self, address: str, *, option: str = "--metrics", only_loopback: bool = False) -> None:
        """`address`: ``HOST:PORT``, or ``PORT`` for this machine alone. Port 0 picks a free port. `option` names it in errors.
        `only_loopback`: refuse an address that other machines reach. Raises `EndpointError`."""
        host, port = _parsed(address, option)
        if only_loopback and not is_loopback(host):
            raise EndpointError(
                f"{option} {address}: other machines reach this address, and no password is required: "
                "take 127.0.0.1, or add --insecure if your network protects it"
            )
        try:
            self._server = _Server((host, port), _Quiet)
        except (OSError, OverflowError) as error:
            raise EndpointError(f"{option} {address}: {error}") from None
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    def start(self, application: WsgiApplication) -> None:
        """Answer requests, those that came before, too."""
        self._server.set_app(application)
        self._thread.start()

    def close(self) -> None:
        """Take no more requests."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


def registry(metrics: Collector) -> CollectorRegistry:
    """A registry of metrics and those of the process."""
    found = CollectorRegistry()
    found.register(metrics)
    ProcessCollector(registry=found)
    PlatformCollector(registry=found)
    return found


def _parsed(address: str, option: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise EndpointError(f"{option} {address}: expected HOST:PORT, such as 127.0.0.1:9464, or PORT")
    return host.strip("[]") or LOOPBACK, int(port)


_VERSIONS = frozenset({"version=0.0.1", "version=0.0.4", "version=1.0.0"})


def known_types(accept: str) -> str:
    """An Accept header without the types whose versions no format of metrics has. `prometheus_client` fails on a version that is no number,
    and shows others in its answers."""
    return ",".join(
        kind for kind in accept.split(",")
        if _VERSIONS.issuperset(part for each in kind.split(";") if (part := each.strip()).startswith("version="))
    )  # fmt: skip


class _Status(NamedTuple):
    status: str
    text: str


def application(metrics: QueryMetrics) -> WsgiApplication:
    """Answers with the metrics of a query, and says whether it runs."""
    expose = make_wsgi_app(registry(metrics))

    def probe(path: str) -> _Status:
        if path == "/healthz":
            return (
                _Status("200 OK", "ok") if metrics.healthy else _Status("503 Service Unavailable", "stopped")
            )
        if path == "/readyz":
            if metrics.ready:
                return _Status("200 OK", "ready")
            why = "no micro-batch is done yet" if metrics.healthy else "stopped"
            if metrics.healthy and metrics.waits_for_clock:
                why = "the machine's clock jumped ahead, and no micro-batch folds until it is back"
            return _Status("503 Service Unavailable", why)
        return _Status("404 Not Found", "there are /metrics, /healthz and /readyz")

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            accept = known_types(environ.get("HTTP_ACCEPT", ""))
            exposed: Iterable[bytes] = expose({**environ, "HTTP_ACCEPT": accept}, start_response)
            return exposed
        found = probe(environ["PATH_INFO"])
        if environ["REQUEST_METHOD"] not in READING:
            found = _Status("405 Method Not Allowed", "only GET is supported")
        body = f"{found.text}\n".encode()
        start_response(
            found.status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        )
        return [body]

    return answer


_LONGEST_LINE = 1 << 16


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._waiting: dict[Any, None] = {}
        """Connections that have not sent a whole request yet, or not read their answer. The first one waits for longest."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread. If there are too many, the one makes room whose client has let it wait for longest; if none does,
        it is closed, unless one ends in a moment: who has its answer may be back before its thread has ended."""
        if self._free.acquire(blocking=False) or self._free.acquire(
            timeout=5 if self._close_waiting() else 0.5
        ):
            self.waits(request)
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def waits(self, request: Any) -> None:
        """A connection waits for its client, from now on if it did not before."""
        self._waiting[request] = None

    def heard(self, request: Any) -> None:
        """A connection has sent a request with its headers, or ends."""
        self._waiting.pop(request, None)

    def _close_waiting(self) -> bool:
        for request in list(self._waiting):
            self.heard(request)
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)  # its thread closes it
            return True
        return False

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.heard(request)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what went wrong with a connection."""
        log.error("a connection can't be served, which is a bug in Magnetar: %r", sys.exception())


class _Quiet(WSGIRequestHandler):
    timeout = 10
    """Seconds without a byte, after which a connection is closed."""

    def handle(self) -> None:
        """Answer a request."""
        with suppress(OSError):  # the client sends nothing for too long, or hangs up
            self.raw_requestline = self.rfile.readline(_LONGEST_LINE + 1)
            if len(self.raw_requestline) > _LONGEST_LINE:
                self.requestline = self.request_version = self.command = ""
                self.send_error(414)
            elif self.parse_request():
                self.server.heard(self.connection)  # type: ignore[attr-defined]
                handler = _Handler(self.rfile, self.wfile, self.get_stderr(), self.get_environ())  # type: ignore[arg-type]
                handler.request_handler = self  # type: ignore[attr-defined]  # as WSGIRequestHandler does
                handler.run(self.server.get_app())  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Handler(ServerHandler):
    def write(self, data: bytes) -> None:
        """A part of the answer."""
        of = self.request_handler  # type: ignore[attr-defined]
        of.server.waits(of.connection)
        super().write(data)

    def log_exception(self, exc_info: Any) -> None:
        if not isinstance(exc_info[1], OSError):  # a client that does not read any more is no error
            log.error("a request can't be answered, which is a bug in Magnetar: %r", exc_info[1])
