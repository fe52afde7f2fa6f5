"""``python -m tests.suites``: the tests of foreign clients, unchanged, against ``magnetar serve``.

The package registries give the suites, at the versions of ``suites.toml``. Each test runs in a process of its own. The outcome is
compared with the list there of tests that don't pass, each with its reason: the exit status is 1 if there is any difference.

The suites expect a broker on the default ports, so nothing else may listen on 6650 and 8080, nor on 6651 and 8443. They need Go, and Cargo and Maven.
"""

import argparse
import json
import os
import re
import shutil
import socket
import socketserver
import ssl
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from streaming.runtime.cache import cache_dir

SUITES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("suites.toml").read_text())

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
_ADMIN, _ADMIN_TLS = 8080, 8443
_START_SECONDS = 120.0
_TEST_SECONDS = 120


class Suite(NamedTuple):
    """A program with tests, its source, and where it runs. `names`: those of its tests."""

    program: Path
    source: Path
    directory: Path
    names: list[str]
    arguments: str
    """Of a run of one test, with ``{name}``."""


def main() -> int:
    """Run the suites that the arguments name. The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="all if none is named")
    parser.add_argument("--only", default="", help="a regular expression of test names")
    given = parser.parse_args()
    wrong = []
    for name in given.suites or SUITES:
        settings = SUITES[name]
        suite = _cargo(settings) if "crate" in settings else _go(settings)
        names = [
            test
            for test in suite.names
            if not re.search(settings["without"], test)
            and all(re.search(only, test) for only in (settings.get("only", ""), given.only))
        ]
        certificates = suite.source / settings["tls"] if "tls" in settings else None
        with _broker(settings.get("settings", {}), certificates):
            outcomes = {test: _run(suite, test) for test in names}
        failed = [test for test, passed in outcomes.items() if not passed]
        print(f"{name} {settings['version']}: {len(names) - len(failed)} passed, {len(failed)} failed")
        wrong += list(_differences(name, outcomes, settings["failing"]))
    print("\n".join(wrong))
    return bool(wrong)


def _differences(name: str, outcomes: dict[str, bool], expected: dict[str, str]) -> Iterator[str]:
    for test, passed in outcomes.items():
        if passed and test in expected:
            yield f"{name}: {test} passes, and is listed as failing: {expected[test]}"
        elif not passed and test not in expected:
            yield f"{name}: {test} fails"


def _run(suite: Suite, test: str) -> bool:
    arguments = suite.arguments.format(name=test).split()
    try:
        done = subprocess.run(
            [suite.program, *arguments],
            cwd=suite.directory,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TEST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        print(f"  {test}: no end after {_TEST_SECONDS} s", flush=True)
        return False
    if done.returncode:
        print(f"  {test}: {_last(done.stdout + done.stderr)}", flush=True)
    return done.returncode == 0


def _last(output: str) -> str:
    """What says best why a test failed."""
    lines = [line.strip() for line in output.splitlines() if re.search(r"Error:|panic|panicked", line)]
    return lines[0][:200] if lines else "failed"


def _go(settings: Any) -> Suite:
    """Tests of a Go module, from the module proxy."""
    home = cache_dir() / "suites"
    home.mkdir(parents=True, exist_ok=True)
    asked = f"{settings['package']}@{settings['version']}"
    found = _output(["go", "mod", "download", "-json", asked], home, GOFLAGS="-mod=mod")
    source = _copy(Path(json.loads(found)["Dir"]), home / asked.replace("/", "_"))
    program = source / f"{settings['tests'].replace('/', '_')}.test"
    if not program.exists():
        _output(["go", "test", "-c", "-o", str(program), f"./{settings['tests']}"], source)
    directory = source / settings["tests"]
    listed = _output([str(program), "-test.list", "."], directory).split()
    names = [name for name in listed if name.startswith("Test")]
    return Suite(program, source, directory, names, "-test.run ^{name}$ -test.timeout 100s")


def _cargo(settings: Any) -> Suite:
    """Tests within the source of a crate, from the registry. Maven gives the compiler of .proto files that its build needs."""
    home = cache_dir() / "suites"
    home.mkdir(parents=True, exist_ok=True)
    compiler = home / "protoc-{protoc}-linux-x86_64.exe".format(**settings)
    if not compiler.exists():
        artifact = "com.google.protobuf:protoc:{protoc}:exe:linux-x86_64".format(**settings)
        _output(["mvn", "-B", "-q", _COPY, f"-Dartifact={artifact}", f"-DoutputDirectory={home}"], home)
        compiler.chmod(0o755)
    crate, version = settings["crate"], settings["version"]
    asking = home / f"{crate}-{version}-asked"
    (asking / "src").mkdir(parents=True, exist_ok=True)
    (asking / "src" / "lib.rs").touch()
    (asking / "Cargo.toml").write_text(
        f'[package]\nname = "asked"\nedition = "2021"\n[dependencies]\n{crate} = "={version}"\n'
    )
    found = json.loads(_output(["cargo", "metadata", "--format-version", "1"], asking))["packages"]
    manifest = next(each["manifest_path"] for each in found if each["name"] == crate)
    source = _copy(Path(manifest).parent, home / f"{crate}-{version}")
    built = _output(
        ["cargo", "test", "--no-run", "--lib", "--locked", "--message-format", "json"],
        source,
        PROTOC=str(compiler),
    )
    (program,) = (
        Path(each["executable"])
        for each in map(json.loads, built.splitlines())
        if each.get("executable") and each["target"]["name"] == crate
    )
    listed = _output([str(program), "--list", "--format", "terse"], source).splitlines()
    names = [line.removesuffix(": test") for line in listed if line.endswith(": test")]
    return Suite(program, source, source, names, "--exact {name}")


def _copy(source: Path, target: Path) -> Path:
    if not target.exists():
        shutil.copytree(source, target)
        for each in (target, *target.rglob("*")):
            each.chmod(each.stat().st_mode | 0o200)
    return target


def _output(command: list[str], directory: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=directory, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return done.stdout


@contextmanager
def _broker(settings: dict[str, str], certificates: Path | None) -> Iterator[None]:
    """A server on the default ports: those of TLS, if there are `certificates`."""
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    if certificates is not None:
        options += ["--listen", "127.0.0.1:6651", "--admin-listen", f"127.0.0.1:{_ADMIN_TLS}", "--advertised-address", "localhost",
                    "--tls-cert", str(certificates / "broker-cert.pem"), "--tls-key", str(certificates / "broker-key.pem")]  # fmt: skip
    program = Path(sys.executable).with_name("magnetar")
    process = subprocess.Popen([program, "serve", *options])
    try:
        with _without_tls() if certificates is not None else nullcontext():
            deadline = time.monotonic() + _START_SECONDS
            while not _serves() or process.poll() is not None:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("magnetar serve did not start")
                time.sleep(0.2)
            yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _without_tls() -> Iterator[None]:
    """The admin API of a server with TLS on the default port, as a Pulsar has both."""
    with _Plain(("127.0.0.1", _ADMIN), _Forward) as plain:
        Thread(target=plain.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            plain.shutdown()


class _Plain(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


class _Forward(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", _ADMIN_TLS)) as plain,
            trusting.wrap_socket(plain) as broker,
        ):
            Thread(target=_copy_bytes, args=(self.request, broker), daemon=True).start()
            _copy_bytes(broker, self.request)


def _copy_bytes(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _serves() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{_ADMIN}/admin/v2/clusters", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(main())
