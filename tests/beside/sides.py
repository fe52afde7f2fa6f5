"""Two brokers and what asks them: `pulsar-admin`, which stays a process, HTTP, and an official client."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pulsar import AlreadyClosed, Client, ConsoleLogger, Consumer, LoggerLevel, Producer

from streaming.runtime.java import java_binary
from tests.e2e.live import MAGNETAR
from tests.parity.pulsar import LocalPulsar, jars_of

_ADMIN = Path(__file__).parent.parent / "server" / "pulsar_admin"

_RECORD = '{{"type":"record","name":"R","fields":[{fields}]}}'
_FIELD = '{"name":"a","type":"string"}'
SCHEMAS = {
    name: json.dumps({"type": type_, "schema": schema, "properties": {}})
    for name, type_, schema in (
        ("schema", "AVRO", _RECORD.format(fields=_FIELD)),
        ("other", "AVRO", _RECORD.format(fields=f'{_FIELD},{{"name":"b","type":"int"}}')),
        ("bad", "AVRO", "nonsense"),
        ("proto", "PROTOBUF_NATIVE", '{"fileDescriptorSet":"","rootMessageTypeName":"N","rootFileDescriptorName":"n"}'),
    )
}  # fmt: skip
"""The files that calls on schemas name."""


Settings = Mapping[str, str]

COMMON: Settings = {"brokerDeleteInactiveTopicsEnabled": "false"}
"""Settings of both brokers: calls come at any time."""

_STANDALONE: Settings = {"defaultNumberOfNamespaceBundles": "4", "forceDeleteNamespaceAllowed": "false"}
"""The settings of a standalone Pulsar that are not those of a real broker in other tests."""

_SECONDS = 60
"""For so long a broker may take to answer."""


class Side:
    """A broker and its clients. `broker` and `service`: the hosts and ports of its admin API and of its binary protocol."""

    def __init__(self, broker: str, service: str, admin: "subprocess.Popen[str]") -> None:
        self.broker, self.service, self._admin = broker, service, admin
        logger = ConsoleLogger(LoggerLevel.Error)
        self.client = Client(f"pulsar://{service}", logger=logger)
        self._consumers: list[Consumer] = []
        self._producers: dict[str, Producer] = {}

    def answer(self, call: str) -> str:
        """What the broker says to a line of `commands.txt`."""
        word, _, rest = call.partition(" ")
        if word == ">":
            self._use(*rest.split())
            return ""
        if word.isupper():
            return self._http(word, *rest.split(" ", 1))
        assert self._admin.stdin is not None
        assert self._admin.stdout is not None
        self._admin.stdin.write(f"--request-timeout {_SECONDS} {call}\n")
        self._admin.stdin.flush()
        said = ""
        for line in self._admin.stdout:
            said += line
            if line.startswith("=> "):
                break
        return said

    def _http(self, method: str, path: str, body: str | None = None) -> str:
        data = None if body is None else body.encode()
        root = "" if path.startswith(("/lookup", "/status.html")) else "/admin/v2"
        request = urllib.request.Request(f"http://{self.broker}{root}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                return f"{answer.status}\n{_indented(answer.read())}"
        except urllib.error.HTTPError as error:
            with error:
                return f"{error.status}\n{_indented(error.read())}"
        except TimeoutError:
            return "no answer"

    def _use(self, what: str, topic: str, *names: str) -> None:
        """Publish messages, or subscribe. The producer and the consumer stay."""
        if what == "subscribe":
            self._consumers.append(self.client.subscribe(topic, *names, consumer_name="c"))
            return
        if topic not in self._producers:
            self._producers[topic] = self.client.create_producer(topic, "p", batching_enabled=False)
        for name in names:
            self._producers[topic].send(name.encode())


def _indented(body: bytes) -> str:
    """A body of JSON with a field a line, in the order of their names."""
    text = body.decode()
    try:
        return json.dumps(json.loads(text), indent=1, sort_keys=True)
    except ValueError:
        return text


class Address(NamedTuple):
    """The hosts and ports of a broker's admin API and of its binary protocol."""

    admin: str
    service: str


@contextmanager
def pulsar(folder: Path, version: str, settings: Settings = COMMON) -> Iterator[Address]:
    """A real Pulsar with the settings of a standalone one."""
    with LocalPulsar(folder / "pulsar", {**_STANDALONE, **settings}, version) as broker:
        yield Address(f"127.0.0.1:{broker.ports.admin}", f"127.0.0.1:{broker.ports.broker}")


@contextmanager
def magnetar(folder: Path, settings: Settings = COMMON, profile: str | None = None) -> Iterator[Address]:
    """`magnetar serve` with the settings that it has if nobody says otherwise. `profile`: another version's."""
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    given += [] if profile is None else ["--profile", profile]
    addresses = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
    command = [str(MAGNETAR), "serve", *addresses, "--ready-file", "-", *given]
    with (folder / "magnetar.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        yield Address(*(ready[name].partition("://")[2] for name in ("admin_url", "service_url")))
    finally:
        process.terminate()
        process.wait()


@contextmanager
def side(config: Path, address: Address) -> Iterator[Side]:
    """The clients of a broker. `config`: the file of `pulsar-admin`'s settings."""
    broker, service = address
    config.write_text(f"webServiceUrl=http://{broker}/\nbrokerServiceUrl=pulsar://{service}\n")
    options = "-Xmx400m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars_of(_ADMIN / 'pom.xml')}/*"
    command = [str(java_binary()), *options, str(_ADMIN / "Commands.java"), str(config), "/dev/stdin"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as admin:
        found = Side(broker, service, admin)
        try:
            yield found
        finally:
            with suppress(AlreadyClosed):  # its topics were deleted
                found.client.close()
            admin.kill()
