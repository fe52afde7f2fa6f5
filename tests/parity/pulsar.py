"""A local Pulsar of any version: a standalone broker in one process and one folder, on loopback only.

Maven downloads its jars once per machine. There are too many to list them all with versions, as `streaming.runtime.jars`
does, and Maven uses Pulsar's own list.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import threading
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

VERSION = "4.0.7"
"""The one that parity is with, unless asked otherwise."""

_HERE = Path(__file__).parent
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"

_START_SECONDS = 180.0  # 20 s is usual
_STOP_SECONDS = 30.0
_JVM = ["-Xmx700m", "-XX:MaxDirectMemorySize=500m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_OPTIONS = ["-Dio.netty.leakDetectionLevel=disabled", "-Dpulsar.allocator.exit_on_oom=false",
        "-Dlog4j2.level=WARN"]  # fmt: skip
_OPENED = ("java.base/jdk.internal.loader", "java.base/jdk.internal.misc", "java.base/jdk.internal.platform",
           "java.base/java.io", "java.base/java.lang", "java.base/java.nio", "java.base/java.util.zip",
           "java.base/sun.net", "java.management/sun.management",
           "jdk.management/com.sun.management.internal")  # fmt: skip
"""The packages of Java that Pulsar accesses by reflection."""


_OWN = {
    "journalSyncData": "false",
    "defaultNumberOfNamespaceBundles": "1",
    "forceDeleteNamespaceAllowed": "true",
}
"""Settings that the broker has unless `config` says otherwise."""


class PulsarError(RuntimeError):
    """The broker did not start. The message says why."""


class Ports(NamedTuple):
    """The ports of the binary protocol, the admin API and the bookie."""

    broker: int
    admin: int
    bookie: int


def settings() -> dict[str, str]:
    """The settings that affect the broker's behaviour (`broker.conf`), as in the header of a trace."""
    lines = (_HERE / "broker.conf").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def pulsar_jars(version: str = VERSION) -> Path:
    """The folder of the broker's class path (316 jars, 234 MB), see `jars_of`."""
    return jars_of(_HERE / "pom.xml", "pulsar-broker", version)


def has_zookeeper(version: str) -> bool:
    """Whether a standalone broker brings a ZooKeeper, which binds all addresses, and refuses a namespace that nobody has looked up."""
    return version.startswith("2.") and int(version.split(".")[1]) <= _LAST_WITH_ZOOKEEPER


_LAST_WITH_ZOOKEEPER = 10


def jars_of(pom: Path, name: str = "pulsar-admin", version: str = VERSION) -> Path:
    """The folder with the class path of a `pom`, of Pulsar's `version`. The first call takes minutes. The folder is created atomically.

    Raises:
        JarsUnavailableError: not in the cache, and Maven is missing or could not download them.
    """
    text = pom.read_text().replace(f"<version>{VERSION}<", f"<version>{version}<")
    if version.startswith("5."):
        text = text.replace("<artifactId>pulsar</artifactId>", "<artifactId>pulsar-dependencies</artifactId>")
    folder = cache_dir() / "jars" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            maven = shutil.which("mvn")
            if maven is None:
                raise JarsUnavailableError(
                    "Pulsar's jars are fetched with Maven, and there is no mvn on PATH: install Maven 3"
                )
            print(f"fetching Pulsar's jars into {folder} (once a machine)", file=sys.stderr)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
                draft, project = Path(scratch) / "jars", Path(scratch) / "pom.xml"
                project.write_text(text)
                asked = [maven, "-B", "-q", "-f", str(project), _COPY, f"-DoutputDirectory={draft}"]
                done = subprocess.run([*asked, "-DincludeScope=runtime"], capture_output=True, text=True, check=False)  # fmt: skip
                if done.returncode != 0 or not draft.is_dir():
                    raise JarsUnavailableError(f"Maven could not fetch Pulsar's jars: {done.stdout[-1500:]}")
                draft.rename(folder)
    return folder


class LocalPulsar:
    """A broker in a folder that is wiped at first. Logs to `pulsar.log`. Ends with its `with` block.

    `config`: its settings, without those that only make it small and local. `token`: a superuser's, if it asks for one.
    """

    def __init__(
        self,
        directory: Path,
        config: dict[str, str] | None = None,
        version: str = VERSION,
        token: str | None = None,
    ) -> None:
        self.version, self._token = version, token
        self.directory = directory.absolute()
        self.log = self.directory / "pulsar.log"
        self.ports = Ports(free_port(), free_port(), free_port())
        self._zookeeper = free_port()
        self.config = settings() if config is None else config
        self.java_options = _JVM
        self._renewing = threading.Lock()
        self._renewals = 0

    def __enter__(self) -> Self:
        """Start it on an empty folder. Raises as `start` does."""
        self._start_empty()
        return self

    def renew(self) -> None:
        """Start it again without its data, of several scenarios on it for one after the other. Raises as `start` does."""
        with self._renewing:
            self._renewals += 1
            self.stop()
            self._start_empty()

    @property
    def renewals(self) -> int:
        """How often it was renewed. Waits until that is over if it goes on."""
        with self._renewing:
            return self._renewals

    def _start_empty(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.start()

    def start(self) -> None:
        """Start it and wait until it serves clients. Raises `PulsarError`, `JarsUnavailableError`, `JavaNotFoundError`."""
        classpath = f"{pulsar_jars(self.version)}/*"
        config = self.directory / "broker.conf"
        config.write_text(
            "".join(
                f"{key}={value}\n"
                for key, value in (
                    _OWN | self.config | _here(self.ports, zookeeper=has_zookeeper(self.version))
                ).items()
            )
        )
        opened = [f"--add-opens={each}=ALL-UNNAMED" for each in _OPENED]
        options = ["--config", config, "--no-functions-worker", "--no-stream-storage", "--bookkeeper-dir", self.directory / "bookie",
                   "--num-bookies", 1, "--advertised-address", HOST]  # fmt: skip
        if has_zookeeper(self.version):
            options += ["--zookeeper-dir", self.directory / "zookeeper", "--zookeeper-port", self._zookeeper]
        else:
            options += ["--metadata-dir", self.directory / "metadata"]
        if not self.version.startswith("5."):
            options += ["--bookkeeper-port", self.ports.bookie]
        java = [
            java_binary(),
            *self.java_options,
            *_OPTIONS,
            *opened,
            "-cp",
            classpath,
            "org.apache.pulsar.PulsarStandaloneStarter",
        ]
        with self.log.open("ab") as log:
            # In a new session, so that Ctrl-C in the terminal doesn't stop it before we do.
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
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop it as an operator does. Its data stays, so that `start` goes on with it."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        # The namespace is the last thing that a standalone broker creates.
        while not _serves(
            f"http://{HOST}:{self.ports.admin}/admin/v2/namespaces/public/default", self._token
        ):
            if self._process.poll() is not None:
                raise PulsarError(
                    f"Pulsar ended at once; the end of {self.log}:\n{self.log.read_text()[-1500:]}"
                )
            if time.monotonic() > deadline:
                raise PulsarError(f"Pulsar was not up after {_START_SECONDS:.0f} s; see {self.log}")
            time.sleep(0.3)


def _serves(url: str, token: str | None) -> bool:
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(asked, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _here(ports: Ports, *, zookeeper: bool) -> dict[str, object]:
    """The settings for a small broker that is reachable only from this machine."""
    stores = (
        ["configurationStoreServers"] if zookeeper else ["metadataStoreUrl", "configurationMetadataStoreUrl"]
    )
    return dict.fromkeys(stores, "") | {
        "clusterName": "standalone",
        "brokerServicePort": ports.broker,
        "webServicePort": ports.admin,
        "bookiePort": ports.bookie,
        "advertisedAddress": HOST,
        "bindAddress": HOST,
        "listeningInterface": "lo",
        "allowLoopback": "true",
        "zookeeperServers": "",
        "statusFilePath": "",
        # One broker, one bookie, no load balancing.
        "managedLedgerDefaultEnsembleSize": 1,
        "managedLedgerDefaultWriteQuorum": 1,
        "managedLedgerDefaultAckQuorum": 1,
        "loadBalancerEnabled": "false",
        "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
        "numIOThreads": 4,
        "numHttpServerThreads": 8,
        "managedLedgerCacheSizeMB": 32,
        "brokerShutdownTimeoutMs": 1000,
    }
