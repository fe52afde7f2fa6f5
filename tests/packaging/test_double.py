"""The distribution `magnetar-double`: what serves a test double, without the rest of Magnetar and what that needs."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.parser import Parser
from functools import partial
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import httpx
import pulsar
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from streaming import __version__
from streaming.cli import double
from tests.certificates import Certificate
from tools import release

ROOT = Path(__file__).parents[2]
BLOCKED = Path(__file__).with_name("blocked.py")
TOPIC = "persistent://public/default/orders"
HEAVY = {"pyspark", "pyarrow", "pandas", "numpy", "great-expectations", "deltalake", "kafka-python", "typer"}


class Built(NamedTuple):
    """The wheel, and the folder in which it is installed without its dependencies."""

    wheel: Path
    site: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("double")
    release.copy_source(folder / "source")
    wheel = release.build_double(folder / "source", folder)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return Built(wheel, folder / "site")


def metadata(built: Built) -> Any:
    with zipfile.ZipFile(built.wheel) as archive:
        return Parser().parsestr(archive.read(f"magnetar_double-{__version__}.dist-info/METADATA").decode())


def needed(built: Built) -> set[str]:
    """The distributions that it needs, and those that these need here."""
    found: set[str] = set()
    waiting = [Requirement(each) for each in metadata(built).get_all("Requires-Dist")]
    while waiting:
        one = waiting.pop()
        extras = one.extras or {""}
        if one.marker is not None and not any(one.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        found.add(canonicalize_name(one.name))
        for text in requires(one.name) or ():
            other = Requirement(text)
            wanted = other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in extras)
            if wanted and canonicalize_name(other.name) not in found:
                other.marker = None
                waiting.append(other)
    return found


def importable(built: Built) -> list[str]:
    """The modules that are there where nothing is installed but the double and what it needs."""
    names = needed(built)
    known = packages_distributions().items()
    return [
        "magnetar_double", "streaming", "schemas", "sinks",
        *(module for module, homes in known if {canonicalize_name(home) for home in homes} & names),
    ]  # fmt: skip


@contextmanager
def serving(built: Built, folder: Path, *options: str) -> Iterator[dict[str, str]]:
    """What a double that runs alone says on its standard output when it is ready."""
    command = [sys.executable, "-P", BLOCKED, *importable(built), "--",
               "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--ready-file", "-", *options]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(built.site)}
    with subprocess.Popen(
        [*map(str, command)],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            assert line, process.stderr and process.stderr.read()
            yield json.loads(line)
        finally:
            process.terminate()
            _, said = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "Traceback" not in said


def test_it_has_files_of_the_repository_and_no_name_of_another_distribution(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        own = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in own} == {"magnetar_double"}
    for name, content in own.items():
        path = name.removeprefix("magnetar_double/")
        source = (
            ROOT / path
            if "/" in path or path in ("LICENSE", "pytest_magnetar.py")
            else ROOT / "double" / name
        )
        assert source.read_bytes() == content, name
    assert not [name for name in own if re.search("spark|kafka|answers|kernels|columns|ledger_store", name)]


def test_it_needs_a_part_of_what_magnetar_needs(built: Built) -> None:
    found = metadata(built)
    assert (found["Name"], found["Version"]) == ("magnetar-double", __version__)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    whole = {str(Requirement(each)) for each in project["dependencies"]}
    assert {str(Requirement(each)) for each in found.get_all("Requires-Dist")} < whole
    assert not needed(built) & HEAVY


def test_where_both_distributions_are_pytest_loads_one_plugin() -> None:
    """It loads one of each name, and what the two define would be there twice."""
    whole, double = (
        tomllib.loads((ROOT / file).read_text())["project"]["entry-points"]["pytest11"]
        for file in ("pyproject.toml", "double/pyproject.toml")
    )
    assert whole.keys() == double.keys()


@contextmanager
def mapped(url: str) -> Iterator[str]:
    """The same server at another port, as Docker maps it."""
    target = ("127.0.0.1", int(url.rpartition(":")[2]))

    def forward(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                ends = listener.accept()[0], socket.create_connection(target)
                for one, other in (ends, ends[::-1]):
                    Thread(target=forward, args=(one, other), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=accept, daemon=True).start()
        yield f"{url.partition('://')[0]}://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_clients_on_a_mapped_port_stay_on_it(built: Built, tmp_path: Path) -> None:
    """Whatever host is advertised: a client that went there would not come back."""
    with (
        serving(built, tmp_path, "--advertised-address", "nowhere.invalid") as at,
        mapped(at["service_url"]) as service_url,
        mapped(at["admin_url"]) as admin_url,
    ):
        client = pulsar.Client(service_url, operation_timeout_seconds=10)
        consumer = client.subscribe(TOPIC, "s")
        client.create_producer(TOPIC).send(b"x")
        assert consumer.receive(10_000).data() == b"x"
        client.close()
        found = httpx.get(f"{admin_url}/lookup/v2/topic/persistent/public/default/orders").json()
        assert found["brokerUrl"] == at["service_url"]
        assert "nowhere.invalid" in found["brokerUrl"]


@pytest.mark.parametrize("tls", [False, True])
def test_behind_mapped_ports_a_client_left_over_disturbs_nobody_and_is_named(
    tls: bool, built: Built, tmp_path: Path
) -> None:
    """All tests have one address, so its connection is what tells it from a client of the next test."""
    pem = tmp_path / "server.pem"
    pem.write_bytes(Certificate("server").pem(with_key=True))
    options = ("--tls-cert", "server.pem", "--tls-key", "server.pem") if tls else ()
    new_client = partial(pulsar.Client, tls_trust_certs_file_path=str(pem), operation_timeout_seconds=5)
    with (
        serving(built, tmp_path, *options) as at,
        mapped(at["service_url"]) as service_url,
        mapped(at["admin_url"]) as admin_url,
        httpx.Client(base_url=admin_url, verify=False) as http,
    ):

        def begin(name: str) -> list[Any]:
            test = {"name": name, "same_address": True}
            begun = http.post("/magnetar/v1/tests", json=test).json()
            assert begun["service_url"] == at["service_url"]
            found: list[Any] = http.get("/magnetar/v1/shut-out").json()["shut_out"]
            return found

        assert begin("first") == []
        left = new_client(service_url)
        old = left.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared, consumer_name="old")
        late = left.create_producer(TOPIC)
        closed = new_client(service_url)
        closed.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared, consumer_name="closed")
        closed.close()
        (found,) = begin("second")
        assert (found["test"], sum(found["tries"].values())) == ("first", 1)
        assert re.search(f"consumer old of subscription s of {TOPIC}", str(found["clients"]))
        assert "closed" not in str(found["clients"])

        client = new_client(service_url)
        consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
        late.send_async(b"late", lambda *_: None)
        producer = client.create_producer(TOPIC)
        for number in range(10):
            producer.send(b"%d" % number)
        assert [consumer.receive(10_000).data() for _ in range(10)] == [
            b"%d" % number for number in range(10)
        ]
        stats = http.get("/admin/v2/persistent/public/default/orders/stats").json()
        assert (len(stats["publishers"]), len(stats["subscriptions"]["s"]["consumers"])) == (1, 1)
        with pytest.raises(pulsar.NotAllowedError):
            left.subscribe(TOPIC, "other")
        (still,) = begin("third")[-1:]
        assert still["test"] == "second"  # the newest is the last
        client.close()

        began = time.monotonic()
        old.close()
        left.close()
        assert time.monotonic() - began < 4
        assert begin("fourth") == []


def test_alone_it_serves_clients_tests_and_tools(built: Built, tmp_path: Path) -> None:
    """Whatever it imports late, such as what a peek, a pattern or a large batch of commands needs."""
    with serving(built, tmp_path, "--data", "log") as at, httpx.Client(base_url=at["admin_url"]) as http:
        client = pulsar.Client(at["service_url"])
        try:
            consumer = client.subscribe(TOPIC, "shop", pulsar.ConsumerType.Shared)
            late = client.subscribe(re.compile("public/default/or.*"), "pattern")
            for number, compression in enumerate((pulsar.CompressionType.LZ4, pulsar.CompressionType.ZSTD)):
                producer = client.create_producer(TOPIC, compression_type=compression, batching_enabled=False)
                for _ in range(50):  # more at once than are looked at one by one elsewhere
                    producer.send_async(b"an order " * 10, lambda *_: None)
                producer.flush()
                assert consumer.receive(10_000).data() == b"an order " * 10
                path = (
                    f"/admin/v2/persistent/public/default/orders/subscription/shop/position/{1 + 50 * number}"
                )
                assert http.get(path).content == b"an order " * 10
            assert late.receive(10_000).data() == b"an order " * 10
            snapshot = http.post("/magnetar/v1/snapshots").json()["id"]
            http.post("/magnetar/v1/clock", json={"advance": 3600_000}).raise_for_status()
            http.post(f"/magnetar/v1/snapshots/{snapshot}/restore").raise_for_status()
            assert (
                http.post("/magnetar/v1/faults", json={"action": "drop", "command": "SEND"}).json()["hits"]
                == 0
            )
            assert "pulsar_msg_backlog" in http.get("/metrics").text
            assert http.get("/admin/v2/openapi.json").json()["openapi"] == "3.1.0"
            assert http.get("/admin/v2/persistent/public/default/orders/stats").json()["msgInCounter"] == 100
            assert (
                http.post("/magnetar/v1/tests", json={"name": "next"}).json()["service_url"]
                != at["service_url"]
            )
        finally:
            client.close()
    with serving(
        built,
        tmp_path,
        "--data",
        "log",
        "--token-secret-key",
        f"data:;base64,{base64.b64encode(bytes(32)).decode()}",
    ) as at:
        assert httpx.get(f"{at['admin_url']}/magnetar/v1/clock").status_code == 401


def test_the_image_serves_it_on_all_its_ports(tmp_path: Path) -> None:
    """Its command as a process, and what the image is built of: no test starts a container."""
    dockerfile = (ROOT / "deploy" / "Dockerfile.double").read_text()
    (entrypoint, command) = (
        json.loads(each) for each in re.findall(r"^(?:ENTRYPOINT|CMD) (.+)$", dockerfile, re.M)
    )
    assert entrypoint == ["magnetar-double"]
    ports = {
        command[command.index(option) + 1].rpartition(":")[2] for option in ("--listen", "--admin-listen")
    }
    assert set(*map(str.split, re.findall(r"^EXPOSE (.+)$", dockerfile, re.M))) == ports
    words = [re.sub(":[0-9]+$", ":0", word) for word in command]
    with subprocess.Popen(
        [sys.executable, "-m", "streaming.cli.double", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        with httpx.Client(base_url=said["admin_url"]) as http:
            assert http.get("/readyz").status_code == 200
            assert http.get("/magnetar/v1/clock").json()["mode"] == "held"
        process.terminate()
    assert {url.rpartition(":")[0] for url in said.values()} == {"pulsar://localhost", "http://localhost"}
    files = {str(each.relative_to(ROOT)) for each in release.context_files(ROOT / "deploy/Dockerfile.double")}
    assert {"deploy/Dockerfile.double", "double/setup.py", "pyproject.toml", "requirements.lock"} <= files
    patterns = re.findall(r'"([\w./*]+\.(?:py|json)|LICENSE)"', (ROOT / "double/setup.py").read_text())
    needed = {str(file.relative_to(ROOT)) for pattern in patterns for file in ROOT.glob(pattern)}
    assert len(needed) > 200
    assert needed <= files


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--listen x", "'x': expected HOST:PORT"),
        ("--listen 0.0.0.0:0", "--insecure"),
        ("--set ttl", "'ttl': expected NAME=VALUE"),
        ("--set messageTTL=3", "unknown broker setting"),
        ("--limit wings=2", "wings"),
        ("--profile 3.x", "invalid choice: '3.x'"),
        ("--tls-cert {file}", "one needs the other"),
        ("--tls-cert {file} --tls-key {file}", "damaged"),
        ("--token-secret-key {file}!", "neither a file"),
        ("--token-secret-key a --token-public-key b", "not allowed with"),
        ("--data {file}", "it is not a folder"),
        ("--data=", "the path is empty"),
        ("--ready-file {file}", "already exists"),
        ("--ingress kafka://x/t", "unrecognized arguments"),
    ],
)
def test_a_wrong_option_is_one_line(
    options: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("of mine")
    ports = [] if "--listen" in options else ["--listen", "127.0.0.1:0"]
    words = [word.format(file=tmp_path / "file") for word in options.split()]
    with pytest.raises(SystemExit) as end:
        double.main([*ports, "--admin-listen", "127.0.0.1:0", *words])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("magnetar-double: ")
    assert why in line
    assert (tmp_path / "file").read_text() == "of mine"


SERVE = "from streaming.cli import main; main()"


@pytest.mark.parametrize(
    "program", [("-m", "streaming.cli.double", "--end-with-stdin"), ("-c", SERVE, "serve")]
)
def test_the_ready_file_is_there_as_long_as_the_server(program: tuple[str, ...], tmp_path: Path) -> None:
    """The double ends with its standard input, too."""
    ready = tmp_path / "ready.json"
    addresses = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
    command = [sys.executable, *program, *addresses, "--ready-file", str(ready)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as process:
        while not ready.exists():
            assert process.poll() is None
            time.sleep(0.02)
        said = json.loads(ready.read_text())
        assert httpx.get(f"{said['admin_url']}/readyz").status_code == 200
        assert said.keys() == {"service_url", "admin_url"}
        assert process.stdin is not None
        process.stdin.close()
        if "serve" in program:
            process.terminate()
        assert process.wait(20) == 0
    assert not ready.exists()


APPLICATION = {
    "streaming/__init__.py": 'raise ImportError("the application\'s")',
    "schemas.py": 'raise ImportError("the application\'s")',
    "test_shop.py": """
import pulsar
import schemas_of_ours


def test_an_order(pulsar_broker):
    client = pulsar.Client(pulsar_broker.service_url)
    client.create_producer("orders").send(b"x")
    client.close()
    assert pulsar_broker.admin("GET", "/persistent/public/default") == ["persistent://public/default/orders"]
""",
    "schemas_of_ours.py": "",
}


def test_the_plugin_is_alone_in_an_application_with_packages_of_the_same_names(
    built: Built, tmp_path: Path
) -> None:
    for name, text in APPLICATION.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:magnetar", "-p", "no:xdist", "-p", "no:cacheprovider",
               "-p", "magnetar_double.pytest_magnetar"]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{built.site}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_installed_it_is_small(built: Built, tmp_path: Path) -> None:
    """With pip, from the package index. `make release` measures the same."""
    size, seconds = release.tried(built.wheel, tmp_path / "environment")
    print(f"{size:,} bytes in {seconds:.0f} s")
    assert 10_000_000 < size <= release.MOST_BYTES
