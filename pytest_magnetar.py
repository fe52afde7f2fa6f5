"""A pytest plugin: the fixture `pulsar_broker` is a broker for tests of applications that use Apache Pulsar.

The broker is a process of its own, a test double (`streaming.cli.double`), started once per test run. Before each test that uses it,
it becomes as after its start. This module imports nothing of Magnetar, so that folders of the application named like
Magnetar's packages do no harm.
"""

from __future__ import annotations

import base64
import hmac
import http.client
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

_ROLE = "pytest"
"""The role of the fixture's own calls."""

_LOG = Path("commands", f"{0:020d}.jsonl")
_FOREVER = 10**15
_HOME = str(Path(__file__).parent)
"""The folder of Magnetar's packages."""
_PROGRAM = """
import os, shutil, signal, sys, threading

def end_with_pytest():
    os.read(0, 1)  # nothing comes, until pytest has ended, killed or not
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=end_with_pytest, daemon=True).start()
if (home := sys.argv.pop(1)) not in sys.path:  # that of the distribution magnetar-double, which only this process needs
    sys.path.insert(0, home)
from streaming.cli.double import main
try:
    main()
finally:
    shutil.rmtree(os.getcwd(), ignore_errors=True)
"""
_IN_URLS = "%/?&=:;,+!$'()*@~"
"""What stays as it is in the path of a call, besides letters and digits."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The broker is on this machine, whatever proxy the environment names."""


class BrokerError(RuntimeError):
    """The broker could not be started, or refused a call. The text says why."""


class Timer(NamedTuple):
    """When the broker will look at a topic by itself: `due` in ms since the epoch."""

    due: int
    topic: str


class Message(NamedTuple):
    """A stored message, or batch of messages: its position, its metadata by Pulsar's names, and its payload as stored."""

    ledger_id: int
    entry_id: int
    metadata: dict[str, Any]
    payload: bytes


class ShutOut(NamedTuple):
    """Clients that an earlier `test` did not close, and that came again: what was open when it ended, and how often they have come since
    this test began, by the versions of their libraries."""

    test: str
    clients: list[str]
    tries: dict[str, int]


class Fault:
    """A fault that `PulsarBroker.fault` asked for."""

    def __init__(self, broker: PulsarBroker, id_: int) -> None:
        self._broker, self._id = broker, id_

    @property
    def hits(self) -> int:
        """How many commands it has hit."""
        return int(self._broker._call("GET", f"/faults/{self._id}")["hits"])

    def wait(self, hits: int = 1, timeout: float = 10.0) -> None:
        """Wait until it has hit so many commands. Raises `TimeoutError`, and `BrokerError` if it never will: it is removed before, as by a
        reset, or makes fewer (`times`)."""
        try:
            self._broker._call("GET", f"/faults/{self._id}?hits={hits}", timeout=timeout)
        except TimeoutError:
            raise TimeoutError(f"the fault hit {self.hits} commands in {timeout} s, not {hits}") from None

    def remove(self) -> None:
        """Make no more faults."""
        self._broker._call("DELETE", f"/faults/{self._id}")

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class PulsarBroker:
    """A broker whose clock stands still until it is moved.

    `service_url` is for the clients of the test, `admin_url` for the admin API. Calls return when the broker is at rest. Times are ms since the
    epoch.
    """

    def __init__(self, service_url: str, admin_url: str, log: Path, key: bytes | None = None) -> None:
        self.service_url, self.admin_url, self.log = service_url, admin_url, log
        self._key = key

    # -- the clock

    def now(self) -> int:
        """The time on the broker's clock. Messages are published at this time."""
        return int(self._call("GET", "/clock")["now"])

    def advance(self, **time: float) -> int:
        """Move the clock on, by what `timedelta` takes: ``advance(hours=5)``. Returns the time then."""
        return int(self._call("POST", "/clock", {"advance": _ms(**time)})["now"])

    def advance_to_next(self, **at_most: float) -> bool:
        """Move the clock to when the broker next has something to do. Returns False, and the clock stands still, if there is
        nothing, or not within `at_most` (as of `advance`)."""
        limit = _ms(**at_most) if at_most else _FOREVER
        return bool(self._call("POST", "/clock", {"advance_to_next": limit})["moved"])

    def run_until(self, condition: Callable[[], object], *, at_most: timedelta, patience: float = 1.0) -> int:
        """Advance from one due time to the next until `condition()` is true. Returns the time then.

        After each step, clients get `patience` seconds of real time to make it true. Raises `TimeoutError` once the clock has
        moved by `at_most`, or nothing is due any more.
        """
        left = at_most // timedelta(milliseconds=1)
        while True:
            until = time.monotonic() + patience
            while not (is_true := condition()) and time.monotonic() < until:
                time.sleep(0.005)
            if is_true:
                return self.now()
            moved = int(self._call("POST", "/clock", {"advance_to_next": left})["moved"])
            if not moved:
                raise TimeoutError(f"the condition did not become true within {at_most}")
            left -= moved

    def pending_timers(self) -> list[Timer]:
        """When the broker will look at its topics by itself, sorted. There may be nothing to do then."""
        return [Timer(**each) for each in self._call("GET", "/clock")["timers"]]

    def clock(self, mode: Literal["held", "real", "skip"]) -> None:
        """How time passes. held: only by `advance`. real: as the machine's. skip: as soon as nothing happens, the clock jumps to
        the next time at which the broker has something to do."""
        self._call("POST", "/clock", {"mode": mode})

    def delivery_times(self, whose: Literal["either", "broker", "client"]) -> None:
        """Whose clock the delivery times of messages are on, until the test ends. either: a time is the broker's if it is a rounder
        delay from the broker's clock than from the client's, as ``deliver_at=now() + 3600_000`` is; otherwise it is a delay that the client
        added to its own clock, as for `deliver_after`. broker: all are the broker's. client: all are delays."""
        self._call("POST", "/clock", {"delivery_times": whose})

    # -- faults

    def fault(
        self,
        action: Literal["error", "delay", "drop", "disconnect"],
        *,
        command: str | None = None,
        topic: str | None = None,
        producer: str | None = None,
        when: dict[str, Any] | None = None,
        times: int | None = 1,
        error: str = "ServiceNotReady",
        delay: timedelta = timedelta(seconds=1),
    ) -> Fault:
        """Let commands of clients go wrong.

        Args:
            action: error: the command fails; delay: it and what follows on its connection come later, on the broker's clock;
                drop: the broker never gets it; disconnect: the connection is closed.
            command: its name in Pulsar's protocol, such as SEND; None: any.
            topic: of this topic, or of its partitions.
            producer: of the producer of this name.
            when: values of the command's fields, such as ``{"sequence_id": 3}``.
            times: how many commands go wrong; None: all.
            error: the error that clients get, except for SEND, which gets that of a failed write if it is written, see `fails` of SEND.
            delay: for action delay.
        """
        spec = {"action": action, "command": command, "topic": topic, "producer": producer, "when": when or {}, "times": times,
                "error": error, "delay": delay // timedelta(milliseconds=1)}  # fmt: skip
        return Fault(self, int(self._call("POST", "/faults", spec)["id"]))

    # -- looking, and setting

    def peek(
        self,
        topic: str,
        subscription: str,
        *,
        show: Literal["backlog", "inflight", "delayed", "holes"] = "backlog",
        count: int = 1000,
    ) -> list[Message]:
        """Stored messages of a subscription, in order: the first `count`, at most 1,000.

        backlog: not acknowledged. inflight: sent to a consumer, and not acknowledged. delayed: they wait for their delivery time.
        holes: acknowledged, while older ones are not.
        """
        query = urllib.parse.urlencode(
            {"topic": topic, "subscription": subscription, "show": show, "count": count}
        )
        found = self._call("GET", f"/peek?{query}")["messages"]
        return [
            Message(each["ledgerId"], each["entryId"], each["metadata"], base64.b64decode(each["payload"]))
            for each in found
        ]

    def set_policy(self, scope: str, policy: str, value: Any) -> None:
        """Set a policy of a namespace (``public/default``) or a topic, as the admin API takes it.

        ``set_policy("public/default", "messageTTL", 60)``, in seconds, or
        ``set_policy("my-topic", "retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})``.
        """
        path = _topic_path(scope) if "://" in scope or scope.count("/") != 1 else f"/namespaces/{scope}"
        self.admin("POST", f"{path}/{policy}", value)

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """A call of the admin API, below ``/admin/v2``. Returns its answer: JSON as a value, text, or bytes. Raises `BrokerError`."""
        return self._http(method, f"/admin/v2{path}", body)

    # -- going back

    def snapshot(self) -> int:
        """Remember the broker as it is now. Returns a number for `restore`, which is never that of another snapshot."""
        return int(self._call("POST", "/snapshots")["id"])

    def restore(self, snapshot: int) -> None:
        """Go back to a snapshot. Later snapshots are gone. Clients are disconnected; they connect again by themselves."""
        self._call("POST", f"/snapshots/{snapshot}/restore")

    def reset(self) -> None:
        """Be as after the start: no topics, no faults, no snapshots, and the clock held at the machine's time."""
        self._call("POST", "/reset")

    # -- clients

    def token(self, role: str, *, expires_in: timedelta | None = None) -> str:
        """A token with which a client is `role`: ``pulsar.AuthenticationToken(pulsar_broker.token("shop"))``. It expires on the machine's clock.
        The broker asks for one if `pulsar_broker_settings` have ``"tokens": "true"``; raises `BrokerError` otherwise."""
        if self._key is None:
            raise BrokerError('the broker takes no tokens: pulsar_broker_settings need "tokens": "true"')
        claims: dict[str, Any] = {"sub": role}
        if expires_in is not None:
            claims["exp"] = int(time.time() + expires_in.total_seconds())
        parts = [_base64url(json.dumps(each).encode()) for each in ({"alg": "HS256", "typ": "JWT"}, claims)]
        signed = ".".join(parts)
        return f"{signed}.{_base64url(hmac.digest(self._key, signed.encode(), 'sha256'))}"

    def shut_out(self) -> list[ShutOut]:
        """Clients that earlier tests did not close, and that have come since this test began. They find nobody: each test has a
        `service_url` of its own."""
        return [ShutOut(**each) for each in self._call("GET", "/shut-out")["shut_out"]]

    def _begin(self, test: str) -> None:
        began = self._call("POST", "/tests", {"name": test})
        self.service_url = began["service_url"].replace("localhost", "127.0.0.1")

    # -- HTTP

    def _call(self, method: str, path: str, body: Any = None, timeout: float = 30.0) -> Any:
        return self._http(method, f"/magnetar/v1{path}", body, timeout)

    def _http(self, method: str, path: str, body: Any, timeout: float = 30.0) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self.token(_ROLE)}"
        url = self.admin_url + urllib.parse.quote(path, safe=_IN_URLS)
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with _DIRECT.open(request, timeout=timeout) as response:
                found, kind = response.read(), response.headers.get_content_type()
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise BrokerError(f"{method} {path}: {error.code} {text}") from None
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(reason, TimeoutError):
                raise TimeoutError(f"{method} {path}") from None
            raise BrokerError(f"{method} {path}: {reason}; the broker has ended") from None
        if not found:
            return None
        if kind == "application/json":
            return json.loads(found)
        return found.decode() if kind.startswith("text/") else found


def _ms(**time: float) -> int:
    return timedelta(**time) // timedelta(milliseconds=1)


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _topic_path(topic: str) -> str:
    if "://" in topic and topic.count("/") < 4:
        raise ValueError(f"{topic} is not the name of a topic: expected persistent://TENANT/NAMESPACE/TOPIC")
    if "://" not in topic:
        topic = f"persistent://{topic}" if topic.count("/") == 2 else f"persistent://public/default/{topic}"
    domain, _, rest = topic.partition("://")
    tenant, namespace, name = rest.split("/", 2)
    return f"/{domain}/{tenant}/{namespace}/{urllib.parse.quote(name, safe='')}"


@pytest.fixture(scope="session")
def pulsar_broker_settings() -> dict[str, str]:
    """The broker's settings by Pulsar's names, for all tests: override this fixture to have others. `profile` is the Pulsar version
    whose rules and defaults apply, as ``serve --profile`` takes it. With `tokens` "true", clients need a token, see `PulsarBroker.token`."""
    return {}


class _Double:
    """The broker's process, which is started again for the next test if one ends it."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        self._start()

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="magnetar-"))
        command = [sys.executable, "-P", "-c", _PROGRAM, _HOME,
                   "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data", str(self._folder)]  # fmt: skip
        key = None
        settings = dict(self._settings)
        if str(settings.get("authorizationEnabled")).lower() == "true":  # the fixture's own calls
            settings["superUserRoles"] = ",".join(filter(None, [settings.get("superUserRoles"), _ROLE]))
        for name, value in settings.items():
            if name == "tokens":
                if str(value).lower() == "true":
                    key = secrets.token_bytes(32)
                    command += ["--token-secret-key", f"data:;base64,{base64.b64encode(key).decode()}"]
                continue
            command += ["--profile", value] if name == "profile" else ["--set", f"{name}={value}"]
        # not in the application's folder, where packages may have the names of Magnetar's
        # And not in pytest's process group: what is sent to that, such as Ctrl-C in the debugger, is not for the broker, which ends with pytest.
        self._process = subprocess.Popen(
            command,
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            service_url, admin_url = _urls(self._process)
        except BaseException:
            self.close()
            raise
        self._broker = PulsarBroker(service_url, admin_url, self._folder / _LOG, key)

    def running(self) -> PulsarBroker:
        """The broker, or another one in place of one that has ended."""
        if self._process.poll() is not None:
            self.close()
            self._start()
        return self._broker

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _pulsar_broker_process(pulsar_broker_settings: dict[str, str]) -> Iterator[_Double]:
    double = _Double(pulsar_broker_settings)
    yield double
    double.close()


def _urls(process: subprocess.Popen[str]) -> Sequence[str]:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        if line.startswith("magnetar: serving "):
            urls = line.removeprefix("magnetar: serving ").partition(";")[0].split(" and ")
            return [url.replace("localhost", "127.0.0.1") for url in urls]
        said.append(line)
    process.wait()
    raise BrokerError("the broker did not start: " + "".join(said).strip())


_BROKER = pytest.StashKey[PulsarBroker]()


@pytest.fixture
def pulsar_broker(request: pytest.FixtureRequest, _pulsar_broker_process: _Double) -> Iterator[PulsarBroker]:
    """A fresh broker whose clock stands still. If the test fails, its log is kept, and the report says where."""
    broker = _pulsar_broker_process.running()
    broker._begin(request.node.nodeid)
    request.node.stash[_BROKER] = broker
    yield broker
    del request.node.stash[_BROKER]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Keep the log of the broker if a test fails, or what a fixture sets up with it, and say in the report where it is. Name the clients of
    earlier tests that came."""
    report: Any = yield
    broker = item.stash.get(_BROKER, None)
    if broker is not None and (report.failed or report.when == "call"):
        with suppress(BrokerError, TimeoutError):
            for each in broker.shut_out():
                tries = ", ".join(f"{version} {count} times" for version, count in each.tries.items())
                text = f"of {each.test}, which should close them. They came ({tries}) and found nobody."
                report.sections.append(("Clients shut out", "\n  ".join((text, *each.clients))))
    if report.failed and broker is not None:
        kept = Path(tempfile.mkdtemp(prefix="magnetar-failed-")) / "commands.jsonl"
        try:
            shutil.copyfile(broker.log, kept)
        except OSError as error:  # if the test, or what it tests, has ended the broker
            text = f"the log of the broker is lost: {error}"
        else:
            text = f"log of the broker: {kept}\nask it: magnetar explain {kept} TOPIC"
        report.sections.append(("Pulsar broker", text))
    return report
