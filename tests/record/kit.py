"""A recording proxy in a thread of its own, in front of a broker."""

import asyncio
import json
import re
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import pulsar

from streaming.record.record import record
from streaming.record.recording import TRACE
from streaming.record.rest import Rest, Said
from streaming.server.server import Address, bound
from streaming.traces.trace import Payloads, Trace, read_trace


def of_batches(rest: Rest) -> Rest:
    """An admin API each of whose positions is one that a seek has set: it tells of a batch, too."""

    def call(*asked: Any) -> Said:
        found = rest.call(*asked)
        text = re.sub(r'"(-?\d+:-?\d+)"', r'"\1 (ackSet is null)"', json.dumps(found.value))
        return Said(found.status, json.loads(text))

    found = copy(rest)
    vars(found)["call"] = call
    return found


class Proxied:
    """A broker behind a proxy. Its recording is complete when the proxy has stopped."""

    def __init__(self, folder: Path, service_url: str, admin_url: str, missing: list[str]) -> None:
        self.folder, self.service_url, self.admin_url, self.missing = folder, service_url, admin_url, missing

    @contextmanager
    def client(self, **settings: Any) -> Iterator[Any]:
        """An official client, closed at the end."""
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(self.service_url, logger=logger, **settings)
        try:
            yield client
        finally:
            client.close()

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """An admin call below ``/admin/v2``, or one with another root: status and body."""
        data = None if body is None else json.dumps(body).encode()
        roots = ("/lookup/", "/topics/", "/admin/")
        url = self.admin_url + (path if path.startswith(roots) else f"/admin/v2{path}")
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    @property
    def trace(self) -> Trace:
        return read_trace(self.folder / TRACE)

    def frames(self, direction: str, cmd: str) -> list[dict[str, Any]]:
        """The recorded frames of a kind."""
        return [each for each in self.trace.records if each["dir"] == direction and each["cmd"] == cmd]


@contextmanager
def proxied(
    folder: Path,
    to: str,
    admin_to: str,
    payloads: Payloads = "keep",
    tls: ssl.SSLContext | None = None,
    *,
    insecure: bool = False,
) -> Iterator[Proxied]:
    """Run a proxy in front of a broker until the block ends."""
    stop, started = threading.Event(), threading.Event()
    found: list[Proxied] = []
    failed: list[BaseException] = []

    def on_start(service_url: str, admin_url: str, missing: Any) -> None:
        found.append(Proxied(folder, service_url, admin_url, [*missing]))
        started.set()

    def run() -> None:
        first, second = (bound(Address("127.0.0.1", 0), "") for _ in range(2))
        try:
            asyncio.run(
                record(
                    folder,
                    to,
                    Rest(admin_to, tls=tls),
                    (first, second),
                    stop,
                    on_start,
                    payloads,
                    insecure=insecure,
                )
            )
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        if found:
            yield found[0]
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]
