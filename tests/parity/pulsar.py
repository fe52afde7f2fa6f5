"""A real Pulsar 4.0.7 for one machine: a standalone broker in one process and one folder, on loopback only.

Its jars are fetched by Maven, once a machine: they are too many to list each with its version as `streaming.runtime.jars`
does, and Maven follows Pulsar's own list.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple, Self

from filelock import FileLock

from streaming.kafka.local import HOST, free_port
from streaming.runtime.cache import cache_dir
from streaming.runtime.jars import JarsUnavailableError
from streaming.runtime.java import java_binary

_HERE = Path(__file__).parent
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"

_START_SECONDS = 180.0  # 20 s is usual
_STOP_SECONDS = 30.0
_JVM = ["-Xmx700m", "-XX:MaxDirectMemorySize=500m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-Dio.netty.leakDetectionLevel=disabled", "-Dpulsar.allocator.exit_on_oom=false",
        "-Dlog4j2.level=WARN"]  # fmt: skip
_OPENED = ("java.base/jdk.internal.loader", "java.base/jdk.internal.misc", "java.base/jdk.internal.platform",
           "java.base/java.io", "java.base/java.lang", "java.base/java.nio", "java.base/java.util.zip",
           "java.base/sun.net", "java.management/sun.management",
           "jdk.management/com.sun.management.internal")  # fmt: skip
"""What Pulsar reaches into of Java."""


class PulsarError(RuntimeError):
    """The broker did not come up; the message says why."""


class Ports(NamedTuple):
    """Of the binary protocol, of the admin API, of the bookie."""

    broker: int
    admin: int
    bookie: int


def settings() -> dict[str, str]:
    """The settings that decide what a broker does, as a trace's header has them (`broker.conf`)."""
    lines = (_HERE / "broker.conf").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def pulsar_jars() -> Path:
    """The folder of the class path (316 jars, 234 MB; minutes the first time), there whole or not at all.

    Raises:
        JarsUnavailableError: not in the cache, and there is no Maven or it could not fetch them.
    """
    pom = _HERE / "pom.xml"
    folder = cache_dir() / "jars" / f"pulsar-broker-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            maven = shutil.which("mvn")
            if maven is None:
                raise JarsUnavailableError(
                    "Pulsar's jars are fetched with Maven, and there is no mvn on PATH: install Maven 3"
                )
            print(f"fetching Pulsar's jars into {folder} (once a machine)", file=sys.stderr)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
                draft = Path(scratch) / "jars"
                asked = [maven, "-B", "-q", "-f", str(pom), _COPY, f"-DoutputDirectory={draft}"]
                done = subprocess.run([*asked, "-DincludeScope=runtime"], capture_output=True, text=True, check=False)  # fmt: skip
                if done.returncode != 0 or not draft.is_dir():
                    raise JarsUnavailableError(f"Maven could not fetch Pulsar's jars: {done.stdout[-1500:]}")
                draft.rename(folder)
    return folder


class LocalPulsar:
    """The broker of one folder, wiped at each start: `pulsar.log` what it says. Ends with its `with` block."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.log = self.directory / "pulsar.log"
        self.ports = Ports(free_port(), free_port(), free_port())

    def __enter__(self) -> Self:
        """Start it and wait until it serves clients. Raises `PulsarError`, `JarsUnavailableError`, `JavaNotFoundError`."""
        classpath = f"{pulsar_jars()}/*"
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        config = self.directory / "broker.conf"
        config.write_text(
            "".join(f"{key}={value}\n" for key, value in (settings() | _here(self.ports)).items())
        )
        opened = [f"--add-opens={each}=ALL-UNNAMED" for each in _OPENED]
        options = ["--config", config, "--no-functions-worker", "--no-stream-storage",
                   "--metadata-dir", self.directory / "metadata", "--bookkeeper-dir", self.directory / "bookie",
                   "--num-bookies", 1, "--bookkeeper-port", self.ports.bookie, "--advertised-address", HOST]  # fmt: skip
        java = [java_binary(), *_JVM, *opened, "-cp", classpath, "org.apache.pulsar.PulsarStandaloneStarter"]
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C in the terminal must leave the stopping to us.
            self._process = subprocess.Popen(
                [str(word) for word in (*java, *options)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        try:
            self._wait_until_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        # The namespace is the last thing that a standalone broker makes of itself.
        while not _serves(f"http://{HOST}:{self.ports.admin}/admin/v2/namespaces/public/default"):
            if self._process.poll() is not None:
                raise PulsarError(
                    f"Pulsar ended at once; the end of {self.log}:\n{self.log.read_text()[-1500:]}"
                )
            if time.monotonic() > deadline:
                raise PulsarError(f"Pulsar was not up after {_START_SECONDS:.0f} s; see {self.log}")
            time.sleep(0.3)


def _serves(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _here(ports: Ports) -> dict[str, object]:
    """The settings that make it small and keep it on this machine."""
    return {
        "clusterName": "standalone",
        "brokerServicePort": ports.broker,
        "webServicePort": ports.admin,
        "bookiePort": ports.bookie,
        "advertisedAddress": HOST,
        "bindAddress": HOST,
        "listeningInterface": "lo",
        "allowLoopback": "true",
        "zookeeperServers": "",
        "metadataStoreUrl": "",
        "configurationMetadataStoreUrl": "",
        "statusFilePath": "",
        # One broker, one bookie, one bundle a namespace, nothing to balance.
        "managedLedgerDefaultEnsembleSize": 1,
        "managedLedgerDefaultWriteQuorum": 1,
        "managedLedgerDefaultAckQuorum": 1,
        "defaultNumberOfNamespaceBundles": 1,
        "loadBalancerEnabled": "false",
        "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
        "numIOThreads": 4,
        "numHttpServerThreads": 8,
        "managedLedgerCacheSizeMB": 16,
        "journalSyncData": "false",
        "brokerShutdownTimeoutMs": 1000,
    }
