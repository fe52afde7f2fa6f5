"""`magnetar record`: clients talk to a real Pulsar through a proxy, and the recording becomes a command log."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from streaming.record.admin_proxy import AdminProxy
from streaming.record.policies import (
    PolicyCall,
    namespace_policies,
    namespaces_of,
    partitioned_topics,
    settings_of,
    tenant_call,
)
from streaming.record.proxy import Proxy
from streaming.record.recording import COMMANDS, Recording
from streaming.record.rest import CallFailed, Rest, understood
from streaming.server.admin.http import HttpServer
from streaming.server.server import Address, not_for_pages
from streaming.traces.conform import TraceComparison, compare_trace
from streaming.traces.importer import Imported, import_traces
from streaming.traces.trace import Payloads, read_trace

_POLL_SECONDS = 0.1


class BrokerInfo(NamedTuple):
    """What is known of a broker when a recording begins. `missing`: what is not, and why."""

    header: dict[str, Any]
    calls: list[PolicyCall]
    missing: list[str]


def known_of(rest: Rest) -> BrokerInfo:
    """The version, settings, tenants, namespaces' policies and partitioned topics of a broker. Raises nothing: what the API does not
    tell is `missing`."""
    header: dict[str, Any] = {}
    calls: list[PolicyCall] = []
    missing: list[str] = []
    cluster: str | None = None
    try:
        with understood(rest.url):
            found = settings_of(rest, transactions=True)
        cluster = found.cluster
        header = {"broker_config": found.settings, "pulsar_version": found.version}
        missing += found.refused
    except CallFailed as error:
        missing.append(f"the broker's settings, so the defaults hold: {error}")
    try:
        for tenant in rest.get("/tenants", list[str]):
            calls.append(tenant_call(rest, tenant))
            for namespace in namespaces_of(rest, tenant):
                with understood(rest.url):
                    policies = namespace_policies(rest, namespace, cluster)
                calls += policies.calls
                missing += policies.refused
                calls += partitioned_topics(rest, namespace)
    except CallFailed as error:
        missing.append(f"tenants, policies and partitioned topics: {error}")
    return BrokerInfo(header, calls, missing)


async def record(
    folder: Path,
    to: str,
    rest: Rest,
    listeners: tuple[socket.socket, socket.socket],
    stop: threading.Event,
    on_start: Callable[[str, str, Iterable[str]], None],
    payloads: Payloads = "keep",
    *,
    insecure: bool = False,
) -> None:
    """Record into `folder` until `stop` is set.

    `to`: the broker's URL. `listeners`: for the binary protocol and the admin API. `on_start` gets their URLs, and what is not
    known of the broker. `insecure`: the admin API passes also what a page of another site can send. Raises `BadUrl`, `InTheWay`, and the OSError with which the recording could not be written.
    """
    address, admin = (Address(*listener.getsockname()[:2]) for listener in listeners)
    known = await asyncio.to_thread(known_of, rest)
    with Recording(folder, known.header, payloads) as recording:
        for method, path, body in known.calls:
            recording.answer(recording.call(method, path, body), 204)
        proxy = Proxy(recording, to, address, rest.tls)
        admin_url = f"http://{admin}"
        api = AdminProxy(recording, rest, proxy, admin_url)
        http = HttpServer(api if insecure else not_for_pages(api, "magnetar record"), listeners[1])
        if (why := await proxy.start(listeners[0])) is not None:
            known.missing.append(
                f"whether there is a broker at {to}: {why}. Clients can connect when there is one"
            )
        await http.start()
        on_start(f"pulsar://{address}", admin_url, known.missing)
        try:
            while not stop.is_set() and recording.failed is None:
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            await http.close()
            api.close()
            recording.note(dir="note", step="the recording ends")
            await proxy.close()
        if recording.failed is not None:
            raise recording.failed


def command_log(trace: Path) -> tuple[Imported, TraceComparison]:
    """Write the command log of a recording beside its trace, and compare Magnetar with the broker. Raises `TraceError`."""
    imported = import_traces([trace], trace.with_name(COMMANDS), replace=True)
    return imported, compare_trace(read_trace(trace))
