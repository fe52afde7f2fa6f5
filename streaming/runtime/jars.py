"""The jars that pyspark does not include: Spark's Kafka source, and a Kafka broker for local use.

They are fetched once per machine with the Ivy that ships with pyspark, so nothing but Java is needed. Each list is complete
and exact. That makes it reproducible, and fast: Ivy reads no POM (the broker takes 9 s instead of 28 s).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from filelock import FileLock

from streaming.runtime.cache import cache_dir
from streaming.runtime.java import java_binary

MAVEN_URL_VARIABLE = "MAGNETAR_MAVEN_URL"
"""Environment variable: a Maven repository to use instead of Maven Central."""

# Not what `spark.jars.packages` would resolve: some mirrors of Maven Central lack parts of that. These work with every
# pyspark 4.2.x. Everything else that the source needs ships with pyspark.
_SPARK_KAFKA = """
org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0
org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0
org.apache.kafka:kafka-clients:3.9.2
org.apache.commons:commons-pool2:2.13.1
"""

# org.apache.kafka:kafka_2.13 with all it depends on, and slf4j-simple to log with.
_KAFKA_BROKER = """
at.yawk.lz4:lz4-java:1.10.2
com.dynatrace.hash4j:hash4j:0.22.0
com.fasterxml.jackson.core:jackson-annotations:2.21
com.fasterxml.jackson.core:jackson-core:2.21.2
com.fasterxml.jackson.core:jackson-databind:2.21.2
com.fasterxml.jackson.dataformat:jackson-dataformat-csv:2.21.2
com.fasterxml.jackson.dataformat:jackson-dataformat-yaml:2.21.2
com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.21.2
com.github.ben-manes.caffeine:caffeine:3.2.0
com.github.luben:zstd-jni:1.5.6-10
com.google.re2j:re2j:1.8
com.typesafe.scala-logging:scala-logging_2.13:3.9.6
com.yammer.metrics:metrics-core:2.2.0
commons-beanutils:commons-beanutils:1.11.0
commons-collections:commons-collections:3.2.2
commons-digester:commons-digester:2.1
commons-logging:commons-logging:1.3.5
commons-validator:commons-validator:1.10.1
net.sf.jopt-simple:jopt-simple:5.0.4
net.sourceforge.argparse4j:argparse4j:0.7.0
org.apache.kafka:kafka-clients:4.3.1
org.apache.kafka:kafka-coordinator-common:4.3.1
org.apache.kafka:kafka-group-coordinator:4.3.1
org.apache.kafka:kafka-group-coordinator-api:4.3.1
org.apache.kafka:kafka-metadata:4.3.1
org.apache.kafka:kafka-raft:4.3.1
org.apache.kafka:kafka-server:4.3.1
org.apache.kafka:kafka-server-common:4.3.1
org.apache.kafka:kafka-share-coordinator:4.3.1
org.apache.kafka:kafka-storage:4.3.1
org.apache.kafka:kafka-storage-api:4.3.1
org.apache.kafka:kafka-tools-api:4.3.1
org.apache.kafka:kafka-transaction-coordinator:4.3.1
org.apache.kafka:kafka_2.13:4.3.1
org.apache.logging.log4j:log4j-api:2.25.4
org.apache.logging.log4j:log4j-core:2.25.4
org.bitbucket.b_c:jose4j:0.9.6
org.hdrhistogram:HdrHistogram:2.2.2
org.jspecify:jspecify:1.0.0
org.pcollections:pcollections:4.0.2
org.scala-lang:scala-library:2.13.18
org.scala-lang:scala-reflect:2.13.18
org.slf4j:slf4j-api:1.7.36
org.slf4j:slf4j-simple:1.7.36
org.xerial.snappy:snappy-java:1.1.10.7
org.yaml:snakeyaml:2.5
"""


class JarsUnavailableError(RuntimeError):
    """Jars are not in the cache and could not be fetched. The message says which, why and what to do."""


def spark_kafka_jars() -> list[Path]:
    """Spark's Kafka source (4 jars, 10 MB; 4 s the first time), for `spark.jars`, sorted by name.

    Raises:
        JarsUnavailableError: they are not in the cache and could not be fetched.
        JavaNotFoundError: they are not in the cache, and there is no Java to fetch them with.
    """
    return fetch("spark-kafka", _SPARK_KAFKA)


def kafka_broker_jars() -> list[Path]:
    """The class path of a Kafka broker (46 jars, 44 MB; 9 s the first time), sorted by name.

    Raises the same errors as `spark_kafka_jars`.
    """
    return fetch("kafka-broker", _KAFKA_BROKER)


def fetch(name: str, coordinates: str) -> list[Path]:
    """The jars of `coordinates` (one `group:name:version` per line) from the cache, fetched if they are missing.

    They are in `<cache>/jars/<name>-<digest of the coordinates>`, a folder that is complete or absent. Any number of
    processes may ask at once: one fetches, the others wait.
    """
    wanted = [tuple(line.split(":")) for line in coordinates.split()]
    folder = cache_dir() / "jars" / f"{name}-{hashlib.sha256(coordinates.encode()).hexdigest()[:12]}"
    if not folder.exists():
        with FileLock(folder.with_suffix(".lock")):
            if not folder.exists():
                _fetch_into(folder, wanted)
    jars = sorted(folder.glob("*.jar"))
    if len(jars) != len(wanted):
        raise JarsUnavailableError(
            f"{folder} holds {len(jars)} of {len(wanted)} jars; delete it and try again"
        )
    return jars


def _fetch_into(folder: Path, wanted: list[tuple[str, ...]]) -> None:
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


def _module(wanted: list[tuple[str, ...]]) -> str:
    lines = (
        f"<dependency org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(version)}"
        ' transitive="false" conf="default->default"/>'
        for group, name, version in wanted
    )
    return f"""<ivy-module version="2.0">
  <info organisation="magnetar" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{"".join(lines)}</dependencies>
</ivy-module>
"""


def _explain(wanted: list[tuple[str, ...]], said: str) -> str:
    missing = [name for group, name, version in wanted if f"{group}#{name};{version}: not found" in said]
    where = os.environ.get(MAVEN_URL_VARIABLE, "Maven Central")
    # Ivy gives the reason in the first line under one of these headings; "errors" says more.
    why = next((part for head in ("ERRORS", "WARNINGS") for part in said.split(f":::: {head}")[1:]), said)
    return (
        f"could not fetch {', '.join(missing) or 'the jars'} from {where}: {(why.strip() or 'Ivy said nothing').splitlines()[0]}. "
        f"Is the network down? To use a mirror of Maven Central, set {MAVEN_URL_VARIABLE}."
    )
