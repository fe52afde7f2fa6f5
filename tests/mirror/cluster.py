"""A cluster of several brokers, each of which serves topics of its own and can be cut off."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from streaming.protocol.codec import encode
from streaming.record.rest import Rest
from tests.broker.kit import QUIET
from tests.record.test_record import Scripted, connected
from tests.record.test_unreachable import answering
from tests.server.conftest import Running, running


class Gate:
    """A port that leads to the one of a URL, unless it is closed: then it refuses connections, and those that were open are cut off."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._to, self._port = (parts.hostname or "", parts.port or 0), 0
        self._lock, self._open = threading.Lock(), set[socket.socket]()
        self.open()
        self.url = f"{parts.scheme}://127.0.0.1:{self._port}"

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._to)
            with self._lock:
                self._open |= {client, server}
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._pipe, args=pair, daemon=True).start()

    def _pipe(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                to.sendall(data)
        for each in (source, to):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)
        source.close()


class Part:
    """A broker of a cluster."""

    def __init__(self, broker: Running) -> None:
        self.broker, self.rest = broker, Rest(str(broker.server.admin_url))
        self.gates = service, admin = Gate(broker.service_url), Gate(self.rest.url.replace("localhost", "127.0.0.1"))  # fmt: skip
        self.service_url, self.admin_url = service.url, admin.url

    def cut(self) -> None:
        for gate in self.gates:
            gate.close()

    def mend(self) -> None:
        for gate in self.gates:
            gate.open()


class Cluster:
    """Brokers, and what clients connect to: it has no topics, and knows who serves each. The number at the end of a topic's name is that
    of its broker."""

    def __init__(self, parts: list[Part], service_url: str, admin_url: str) -> None:
        self.parts, self.service_url, self.rest = parts, service_url, Rest(admin_url)


@contextmanager
def cluster(brokers: int, *, redirects: bool = False) -> Iterator[Cluster]:
    """Run a cluster. `redirects`: lookups are sent on to the broker that serves the topic, which answers."""
    with ExitStack() as stack:
        parts = [Part(stack.enter_context(running(**QUIET))) for _ in range(brokers)]

        def owner(path: str) -> Part:
            last = path.partition("?")[0].split("/")[4 if path.startswith("/") else -1]
            return parts[int(last[-1])]

        def lookup(frame: Any) -> list[bytes]:
            if frame.cmd != "LOOKUP":
                return connected(frame)
            part = owner(frame.fields["topic"])
            fields = {"request_id": frame.fields["request_id"], "response": "Redirect" if redirects else "Connect"}  # fmt: skip
            return [encode("LOOKUP_RESPONSE", {**fields, "brokerServiceUrl": part.service_url})]

        def call(path: str) -> tuple[int, dict[str, str], bytes]:
            below = path.removeprefix("/admin/v2")
            if below.startswith("/persistent/") and below.count("/") == 3:  # what there is in a namespace
                topics = [topic for part in parts for topic in part.rest.get(below, list[str])]
                return 200, {}, json.dumps(topics).encode()
            if below.startswith("/persistent/") and not below.endswith("/partitioned"):
                return 307, {"Location": owner(below).admin_url + path}, b""
            status, value = parts[0].rest.call("GET", below)
            return status, {}, json.dumps(value).encode()

        first = Scripted(lookup)
        stack.callback(first.close)
        yield Cluster(parts, first.url, stack.enter_context(answering(call)))
        for part in parts:
            part.cut()
