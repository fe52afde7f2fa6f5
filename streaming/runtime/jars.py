"""The jars that pyspark does not include: Spark's Kafka source, Hadoop's S3 client, and a Kafka broker for local use.

They are fetched once per machine with the Ivy that ships with pyspark, so nothing but Java is needed. Each list
(``*.jars``, one ``group:name:version sha256`` per line) is complete and exact. That makes it reproducible, and fast: Ivy reads no
POM (the broker takes 9 s instead of 28 s). No jar is used before its hash is checked.

* ``spark-kafka.jars``: not what `spark.jars.packages` would resolve, because some mirrors of Maven Central lack parts of that.
  These work with every pyspark 4.2.x. Everything else that the source needs ships with pyspark.
* ``s3a.jars``: Hadoop's S3 client, of the version of Hadoop in pyspark 4.2.x, with the parts of AWS's SDK that it uses: 10 MB
  instead of the 600 MB of AWS's bundle. Netty and Apache's HTTP client ship with pyspark. ``spark-hadoop-cloud`` lets Spark write
  the files of a checkpoint without renaming them; the mirrors lack its 4.2.
* ``kafka-broker.jars``: ``org.apache.kafka:kafka_2.13`` with all that it depends on, and ``slf4j-simple`` to log with.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from filelock import FileLock

from schemas.errors import MagnetarError
from streaming.runtime.cache import cache_dir
from streaming.runtime.java import java_binary

MAVEN_URL_VARIABLE = "MAGNETAR_MAVEN_URL"
"""Environment variable: a Maven repository to use instead of Maven Central."""


class Jar(NamedTuple):
    """A jar in a Maven repository: its coordinates, and the SHA-256 of its contents in hexadecimal."""

    group: str
    name: str
    version: str
    sha256: str

    @property
    def coordinates(self) -> str:
        """``group:name:version``."""
        return f"{self.group}:{self.name}:{self.version}"

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}-{self.version}.jar"


class JarsUnavailableError(MagnetarError, RuntimeError):
    """Jars are not in the cache and could not be fetched, or are not the right ones. The message says which, why and what to do."""


def spark_kafka_jars() -> list[Path]:
    """Spark's Kafka source (4 jars, 10 MB; 4 s the first time), for `spark.jars`, sorted by name.

    Raises:
        JarsUnavailableError: they are not in the cache and could not be fetched, or have another hash.
        JavaNotFoundError: they are not in the cache, and there is no Java to fetch them with.
    """
    return fetch("spark-kafka", locked("spark-kafka"))


def s3a_jars() -> list[Path]:
    """Hadoop's S3 client (36 jars, 10 MB; 8 s the first time), for `spark.jars`, sorted by name.

    Raises the same errors as `spark_kafka_jars`.
    """
    return fetch("s3a", locked("s3a"))


def kafka_broker_jars() -> list[Path]:
    """The class path of a Kafka broker (46 jars, 44 MB; 9 s the first time), sorted by name.

    Raises the same errors as `spark_kafka_jars`.
    """
    return fetch("kafka-broker", locked("kafka-broker"))


def locked(name: str) -> list[Jar]:
    """The jars of the list ``<name>.jars``."""
    found = []
    for line in Path(__file__).with_name(f"{name}.jars").read_text().splitlines():
        coordinates, sha256 = line.split()
        group, artifact, version = coordinates.split(":")
        found.append(Jar(group, artifact, version, sha256))
    return found


def fetch(name: str, wanted: Sequence[Jar]) -> list[Path]:
    """The jars from the cache, fetched if they are missing, sorted by name.

    They are in `<cache>/jars/<name>-<digest of the list>`, a folder that is complete or absent. Any number of processes may ask at
    once: one fetches, the others wait. Each call checks the hashes (20 ms for Spark's Kafka source).
    """
    digest = hashlib.sha256(repr([tuple(jar) for jar in wanted]).encode()).hexdigest()[:12]
    folder = cache_dir() / "jars" / f"{name}-{digest}"
    if not folder.exists():
        with FileLock(folder.with_suffix(".lock")):
            if not folder.exists():
                _fetch_into(folder, wanted)
    if {file.name for file in folder.glob("*.jar")} != {jar.file for jar in wanted}:
        raise JarsUnavailableError(f"{folder} does not hold the {len(wanted)} jars; delete it and try again")
    if wrong := _of_another_hash(folder, wanted):
        raise JarsUnavailableError(f"{wrong} in {folder}: delete the folder and try again")
    return sorted(folder / jar.file for jar in wanted)


def _of_another_hash(folder: Path, wanted: Sequence[Jar]) -> str:
    """What is wrong with the first jar whose hash differs from the list's; else an empty text."""
    for jar in wanted:
        with (folder / jar.file).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != jar.sha256:
            return f"{jar.file} has the SHA-256 {found}, not {jar.sha256},"
    return ""


def _fetch_into(folder: Path, wanted: Sequence[Jar]) -> None:
    java = java_binary()
    print(f"fetching {len(wanted)} jars into {folder} (once per machine)", file=sys.stderr)
    # In the same folder as the target, because a rename across file systems is not atomic.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        draft = Path(scratch) / "jars"
        settings, module = Path(scratch) / "settings.xml", Path(scratch) / "ivy.xml"
        settings.write_text(_settings(Path(scratch) / "ivy"))
        module.write_text(_module(wanted))
        ivy = ["-XX:TieredStopAtLevel=1", "-cp", str(_ivy_jar()), "org.apache.ivy.Main"]
        paths = [
            "-settings",
            str(settings),
            "-ivy",
            str(module),
            "-retrieve",
            f"{draft}/[artifact]-[revision].[ext]",
        ]
        done = subprocess.run([java, *ivy, *paths], capture_output=True, text=True, check=False)
        if done.returncode != 0 or not draft.is_dir():
            raise JarsUnavailableError(_explain(wanted, done.stdout))
        if wrong := _of_another_hash(draft, wanted):
            raise JarsUnavailableError(
                f"{wrong} as {_repository()} has it: it was changed there or on the way, and is not used"
            )
        draft.rename(folder)


def _ivy_jar() -> Path:
    # pyspark is located, not imported: importing it takes longer than everything else here.
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise JarsUnavailableError("pyspark is not installed, and its Ivy fetches the jars")
    return next((Path(pyspark.origin).parent / "jars").glob("ivy-*.jar"))


def _settings(cache: Path) -> str:
    url = os.environ.get(MAVEN_URL_VARIABLE)
    root = f" root={quoteattr(url)}" if url else ""
    # Ivy's own cache is temporary: kept, it would hold every jar twice.
    return f"""<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir={quoteattr(str(cache))}/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false"{root}/>
  </resolvers>
</ivysettings>
"""


def _module(wanted: Sequence[Jar]) -> str:
    lines = (
        f"<dependency org={quoteattr(jar.group)} name={quoteattr(jar.name)} rev={quoteattr(jar.version)}"
        ' transitive="false" conf="default->default"/>'
        for jar in wanted
    )
    return f"""<ivy-module version="2.0">
  <info organisation="magnetar" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{"".join(lines)}</dependencies>
</ivy-module>
"""


def _repository() -> str:
    return os.environ.get(MAVEN_URL_VARIABLE, "Maven Central")


def _explain(wanted: Sequence[Jar], said: str) -> str:
    missing = [jar.name for jar in wanted if f"{jar.group}#{jar.name};{jar.version}: not found" in said]
    # Ivy gives the reason in the first line under one of these headings; "errors" says more.
    why = next((part for head in ("ERRORS", "WARNINGS") for part in said.split(f":::: {head}")[1:]), said)
    return (
        f"could not fetch {', '.join(missing) or 'the jars'} from {_repository()}: {(why.strip() or 'Ivy said nothing').splitlines()[0]}. "
        f"Is the network down? To use a mirror of Maven Central, set {MAVEN_URL_VARIABLE}."
    )
