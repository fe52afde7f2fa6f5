"""The listeners of a server, on the loop of its engine."""

import asyncio
import ctypes
import errno
import ipaddress
import logging
import re
import resource
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

from cryptography import x509
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from streaming.metrics.browsers import READING, is_loopback, refusal
from streaming.metrics.endpoint import known_types, registry
from streaming.metrics.server import ServerMetrics
from streaming.metrics.topics import BrokerMetrics
from streaming.server.admin.application import application
from streaming.server.admin.http import MOST_OPEN, HttpServer
from streaming.server.admin.turns import InTurn
from streaming.server.authentication import ROLE, TokenAuthentication
from streaming.server.authorization import Authorization
from streaming.server.binary import BinaryServer, Limits
from streaming.server.clock import HeldClock
from streaming.server.control import Control
from streaming.server.embedded import EmbeddedEngine
from streaming.server.engine import Engine
from streaming.server.handshakes import Handshakes
from streaming.server.left_over import KEPT, Addresses, Held
from streaming.server.websocket.sessions import WebSockets

log = logging.getLogger(__name__)

BACKLOG = 1024

_M_MMAP_THRESHOLD = -3  # from malloc.h

_OTHER_FILES = 2048
"""Those of the log and the store, and connections of the admin API."""

_LONG = 0.02
"""Seconds of the loop that a page of metrics may take each time."""

_NO_FILES = (errno.EMFILE, errno.ENFILE)

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")

CONTROL = "/magnetar/v1"
"""The path of the API of a test double."""


class ListenError(RuntimeError):
    """An address can't be listened on. The text says why and what to do."""


class Address(NamedTuple):
    """Where to listen. Port 0 picks a free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parses ``HOST:PORT``, ``[IPV6]:PORT``. Raises `ListenError`."""
        host, _, port = text.rpartition(":")
        if not (host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise ListenError(f"{text!r}: expected HOST:PORT, such as 127.0.0.1:6650")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)


def bound(address: Address, option: str) -> socket.socket:
    """A socket that is bound to an address, and free. `option` names the setting in errors. Raises `ListenError`.

    It does not listen yet: a server listens as soon as it can answer. Until then, clients are refused, and try again.
    """
    try:
        family, kind, proto, _, target = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ListenError(f"{option} {address}: {error.strerror}") from None
    found = socket.socket(family, kind, proto)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(target)
    except OSError as error:
        found.close()
        raise ListenError(f"{option} {address}: {_why(error)}") from None
    found.setblocking(False)
    return found


def _listen(listener: socket.socket) -> None:
    """Listen on a bound socket. Raises `ListenError`."""
    try:
        listener.listen(BACKLOG)
    except OSError as error:  # another server was bound to the address, too, and listens since
        raise ListenError(f"{Address(*listener.getsockname()[:2])}: {_why(error)}") from None


def _why(error: OSError) -> str:
    return {
        errno.EADDRINUSE: "another program listens there, perhaps a Pulsar: stop it, or choose another port",
        errno.EACCES: "this user may not listen there: choose a port from 1024 on",
        errno.EADDRNOTAVAIL: "this machine does not have the address",
    }.get(error.errno or 0, error.strerror or str(error))


class Security(NamedTuple):
    """How a server is protected. `tls`: the context with its certificate; None: connections are in plain text.
    `authentication`: None: everybody may connect. `insecure`: that is wanted, so pages in browsers may, too. `settings`: the broker's, of which
    some say whether there is authorization, and how; only with `authentication`, and an embedded engine."""

    tls: ssl.SSLContext | None = None
    authentication: TokenAuthentication | None = None
    insecure: bool = False
    settings: Mapping[str, str] = MappingProxyType({})


OPEN = Security()
"""Everybody may connect, in plain text."""


def advertisable(host: str) -> str:
    """`host` if it is the name or the address of a machine. Raises `ListenError`."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(host))
    if _HOST.fullmatch(host) is None:
        raise ListenError(
            f"--advertised-address {host}: expected a host name or an IP address, without a port"
        )
    return host


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS with the certificates and the key in two PEM files. Raises `ListenError`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    encrypted = False

    def password() -> str:  # without this, OpenSSL asks at the terminal, which a service does not have
        nonlocal encrypted
        encrypted = True
        return ""

    for each in (certificate, key):
        if each.exists() and not each.is_file():  # a pipe would make the server wait for its writer
            raise ListenError(f"--tls-cert {certificate}, --tls-key {key}: {each} is no regular file")
    try:
        context.load_cert_chain(certificate, key, password)
    except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        if encrypted:
            why = f"the key is encrypted. Decrypt it first: openssl pkey -in {key} -out NEW"
        elif "PEM lib" in why:
            why = "one of them is damaged, or is not what it should be in PEM"
        elif "key values mismatch" in why:
            why = "the key is not that of the first certificate"
        raise ListenError(f"--tls-cert {certificate}, --tls-key {key}: {why}") from None
    if (refused := _why_not_valid(certificate)) is not None:
        log.warning("--tls-cert %s: %s, so clients refuse it", certificate, refused)
    return context


def _why_not_valid(certificate: Path) -> str | None:
    """Why a certificate that was loaded counts for no client now. None: it does, or has a form that only OpenSSL knows."""
    try:
        own = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    except ValueError:
        return None
    now = datetime.now(UTC)
    if own.not_valid_after_utc < now:
        return f"it expired at {own.not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC"
    if own.not_valid_before_utc > now:
        return f"it is valid from {own.not_valid_before_utc:%Y-%m-%d %H:%M:%S} UTC on"
    return None


def allow_connections(count: int) -> int:
    """Let this process have so many connections, as far as the machine lets it: many shells allow 1,024 open files. Returns how many it
    can have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        if soft < wanted:
            count = max(soft // 2, soft - _OTHER_FILES)
            log.warning(
                "this process may have %d open files, so at most %d connections: see ulimit -n", soft, count
            )
    return count


def give_back_memory() -> None:
    """Let this process give large blocks back to the machine as soon as they are free, where the C library is glibc.

    Of its own accord, glibc keeps blocks of up to 32 MiB: after some waves of large answers, gigabytes.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


class Server:
    """Serves an engine on bound sockets: clients of the binary protocol, and calls of the admin API if there is a socket for
    those."""

    def __init__(
        self,
        engine: Engine,
        listener: socket.socket,
        limits: Limits | None = None,
        admin_listener: socket.socket | None = None,
        clock: HeldClock | None = None,
        security: Security = OPEN,
        advertised: str | None = None,
    ) -> None:
        """`clock`: the engine's, if the server is a test double, see `streaming.server.control`. `advertised`: the host that
        clients connect to, in place of the one that the sockets are bound to."""
        self.engine = engine
        self.address = Address(*listener.getsockname()[:2])
        binary, http = ("pulsar", "http") if security.tls is None else ("pulsar+ssl", "https")
        self._scheme, self._advertised = binary, advertised
        authorization = (
            Authorization.of(lambda: engine.folded, security.settings)
            if security.authentication is not None and isinstance(engine, EmbeddedEngine)
            else None
        )
        self._authorization = authorization
        self.binary = BinaryServer(engine, self._url(), limits, security.authentication, authorization)
        self._addresses = Addresses(self.binary.new_connection)
        self._tls = security.tls
        self._handshakes: Handshakes | None = None
        self.admin_url: str | None = None
        self._listener = listener
        self._listeners: tuple[socket.socket, ...] = (listener,)
        self._servers: deque[asyncio.Server] = deque()
        """By age. All but the last one are those of earlier tests of a double."""
        self._http: HttpServer | None = None
        if admin_listener is not None:
            self.admin_url = f"{http}://{_named(Address(*admin_listener.getsockname()[:2]), advertised)}"
            app: ASGIApp = InTurn(
                application(
                    engine, lambda: self.service_url, self.admin_url, self.binary.clients,
                    changes_in_turn=isinstance(engine, EmbeddedEngine), authorization=authorization,
                )
            )  # fmt: skip
            app = app if clock is None else self._with_control(app, clock)
            app = _with_metrics(app, engine, self.binary.metrics)
            if security.authentication is not None:
                anonymous = None if authorization is None else authorization.anonymous
                app = security.authentication.guarded(app, anonymous)
            # a query elsewhere does not tell its profile
            profile = (
                (lambda: engine.folded.config.profile)
                if isinstance(engine, EmbeddedEngine)
                else (lambda: "4.x")
            )
            app = WebSockets(self.binary, profile).beside(app)
            app = _with_health(app, engine)  # probes have no token
            if security.authentication is None and not security.insecure:
                app = not_for_pages(app, "the server", advertised)
            self._http = HttpServer(_with_paths(app), admin_listener, security.tls)
            self._listeners = (listener, admin_listener)

    async def __aenter__(self) -> "Server":
        for each in self._listeners:
            _listen(each)
        await self._accept(self._listener)
        self.binary.start()
        if self._http is not None:
            await self._http.start()
        return self

    @property
    def service_url(self) -> str:
        """Where clients connect. In a double, each test has another one."""
        return self.binary.service_url

    def _url(self) -> str:
        return f"{self._scheme}://{_named(self.address, self._advertised)}"

    async def _accept(self, listener: socket.socket) -> None:
        """Accept clients there, for the test that runs now if this is a double."""
        new_connection = self._addresses.entrance()
        if self._tls is not None:
            self._handshakes = self._handshakes or Handshakes(self._tls, self.binary.limits.keep_alive)
            new_connection = partial(self._handshakes.new_connection, new_connection)
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(new_connection, sock=listener, backlog=BACKLOG))

    async def begin_test(self, name: str, *, same_address: bool = False) -> str:
        """A test of a double begins, at an address of its own, which is returned. Clients of earlier ones find nobody any more.
        `same_address`: at the address of the last one, whose clients keep their connections, and find nobody there."""
        if same_address:
            former = self._addresses.begin(name, self.binary.described(), same_address=True)
            self.binary.hand_over(partial(Held, former))
            return self.service_url
        listener = bound(self.address._replace(port=0), "the next test's address")
        _listen(listener)
        self._addresses.begin(name, self.binary.described())
        await self._accept(listener)
        self.address = Address(*listener.getsockname()[:2])
        self.binary.service_url = self._url()
        while len(self._servers) > 1 + KEPT:
            self._servers.popleft().close()
        return self.service_url

    def _with_control(self, app: ASGIApp, clock: HeldClock) -> ASGIApp:
        assert isinstance(self.engine, EmbeddedEngine)
        control = Control(self.engine, self.binary, clock, self.begin_test, self._addresses.shut_out)
        below = InTurn(Starlette(routes=[Mount(CONTROL, routes=control.routes())]), MOST_OPEN)

        async def either(scope: Scope, receive: Receive, send: Send) -> None:
            is_control = scope["type"] == "http" and scope["path"].startswith(f"{CONTROL}/")
            if is_control and self._authorization and not self._authorization.is_superuser(scope[ROLE]):
                refusal = JSONResponse({"reason": "This operation requires super-user access"}, 401)
                await refusal(scope, receive, send)
            else:
                await (below if is_control else app)(scope, receive, send)

        return either

    async def __aexit__(self, *_: object) -> None:
        self.binary.faults.clear("the server is being stopped")
        if self._http is not None:
            await self._http.close()
        for each in self._servers:
            each.close()
        self._addresses.close()
        self.binary.close()


def _with_paths(app: ASGIApp) -> ASGIApp:
    """`app`, which gets a target that names the server, too, as a path and a Host (RFC 9112 §3.2.2)."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["raw_path"].startswith((b"http://", b"https://")):
            host, _, path = scope["raw_path"].partition(b"://")[2].partition(b"/")
            headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
            raw = b"/" + path
            scope = {
                **scope,
                "raw_path": raw,
                "path": unquote(raw.decode()),
                "headers": [(b"host", host), *headers],
            }
        await app(scope, receive, send)

    return call


def not_for_pages(app: ASGIApp, what: str, advertised: str | None = None) -> ASGIApp:
    """`app` without what a page of another site can send, see `streaming.metrics.browsers`. `what` has the option --insecure."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            if (why := refusal(scope.get("method", "GET"), headers, advertised)) is not None:
                return await JSONResponse({"reason": f"{why}, or start {what} with --insecure"}, 403)(
                    scope, receive, send
                )
        return await app(scope, receive, send)

    return call


def _with_metrics(app: ASGIApp, engine: Engine, server: ServerMetrics) -> ASGIApp:
    """`app`, and ``/metrics``, where Pulsar's brokers have them: those of the server, and of the topics if the broker is here."""
    found = registry(server)
    if isinstance(engine, EmbeddedEngine):
        found.register(BrokerMetrics(engine.metrics, engine.now, engine.storage))
    return _beside(app, {"/metrics": Page(found)})


def _with_health(app: ASGIApp, engine: Engine) -> ASGIApp:
    """`app`, and ``/healthz`` and ``/readyz``."""

    async def health(scope: Scope, receive: Receive, send: Send) -> None:
        if engine.failed.done():
            await PlainTextResponse("the engine has stopped\n", 503)(scope, receive, send)
        else:
            trouble = engine.clock.trouble
            await PlainTextResponse(f"ok; {trouble}\n" if trouble else "ok\n")(scope, receive, send)

    return _beside(app, {"/healthz": health, "/readyz": health})


def _beside(app: ASGIApp, others: Mapping[str, ASGIApp]) -> ASGIApp:
    """`app`, and others at their paths."""

    async def either(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/") if scope["type"] == "http" else ""
        found = others.get(path, app)
        if path in others and scope["method"] not in READING:
            found = PlainTextResponse("only GET is supported\n", 405, {"allow": ", ".join(READING)})
        await found(scope, receive, send)

    return either


class Page:
    """The metrics for Prometheus. A page that takes long is made for at most a tenth of the time, and shown again meanwhile: many topics
    and many who ask would take all of it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """`registry`: what is shown."""
        self._registry = registry
        self._made: dict[str, tuple[bytes, float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        encode, type_ = choose_encoder(known_types(Headers(scope=scope).get("accept", "")))
        now = time.monotonic()
        page, until = self._made.get(type_, (b"", now))
        if now >= until:
            page = encode(self._registry)
            took = time.monotonic() - now
            self._made[type_] = page, now + took + (9 * took if took > _LONG else 0)
        await Response(page, headers={"content-type": type_})(scope, receive, send)


def _named(address: Address, advertised: str | None) -> str:
    """An address as clients connect to it: those that reach the `advertised` host, or else those on this machine."""
    if advertised is not None:
        return str(Address(advertised, address.port))
    if address.host in ("127.0.0.1", "0.0.0.0", "::"):  # localhost need not be ::1
        return f"localhost:{address.port}"
    return str(address)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what asyncio can't tell anybody else."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _NO_FILES:
        log.error(
            "no connection can be accepted: %s. Allow more open files (ulimit -n), or fewer connections (--limit connections=N)",
            error.strerror,
        )
    else:
        loop.default_exception_handler(context)


async def serve(
    engine: Engine,
    listener: socket.socket,
    stop: threading.Event,
    on_start: Callable[[Server], None],
    limits: Limits | None = None,
    admin_listener: socket.socket | None = None,
    clock: HeldClock | None = None,
    security: Security = OPEN,
    advertised: str | None = None,
) -> None:
    """Serve until `stop` is set. Raises what entering the engine raises, and what its failure was."""
    asyncio.get_running_loop().set_exception_handler(_report)
    async with (
        engine,
        Server(engine, listener, limits, admin_listener, clock, security, advertised) as server,
    ):
        on_start(server)
        stopped = asyncio.get_running_loop().run_in_executor(None, stop.wait)
        try:
            await asyncio.wait(
                (stopped, asyncio.ensure_future(engine.failed)), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stop.set()
            await stopped
        if engine.failed.done():
            engine.failed.result()
