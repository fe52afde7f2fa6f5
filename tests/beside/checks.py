"""`python -m tests.beside.checks`: what the official Java client sees of a real Pulsar and of `magnetar serve`.

The program in `java/` runs on both, with a client and topics of its own for each of its checks. What differs must be in `differences.toml`,
with the reason: the exit status is 1 for any other difference, and for one listed there that is gone. `--record` writes what a real
Pulsar showed to `checks-VERSION.txt`, with which a test compares a server.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from streaming.runtime.jars import JarsUnavailableError
from streaming.runtime.java import java_binary
from tests.beside.sides import COMMON, magnetar, pulsar
from tests.parity.pulsar import VERSION, PulsarError, pulsar_jars

_HERE = Path(__file__).parent
_SECONDS = 900
"""For so long the checks may take. Most take a few seconds, ten at a time."""

SETTINGS = {
    **COMMON,
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "backlogQuotaCheckIntervalInSeconds": "2",
}
"""Settings of both brokers."""

Lines = dict[str, dict[str, str]]
"""Check → what it looked at → what it saw."""


def compiled(folder: Path) -> list[str]:
    """The command that runs the program, with the client of Pulsar 4.0.7, compiled into a folder.

    Raises:
        JarsUnavailableError: Maven is missing or could not download the client.
    """
    jars = pulsar_jars()
    classpath = ":".join(str(each) for each in sorted(jars.glob("*.jar")))
    sources = sorted(str(each) for each in (_HERE / "java").glob("*.java"))
    compiler = [str(java_binary()), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-Xlint:none"]
    subprocess.run(
        [*compiler, "-d", str(folder), "-cp", classpath, *sources], check=True, stderr=subprocess.PIPE
    )
    (folder / "log4j2.properties").write_text("rootLogger.level = off\n")
    options = "-Xmx900m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"
    return [str(java_binary()), *options, "-cp", f"{folder}:{jars}/*", "Checks"]


def seen(
    program: list[str], admin_url: str, service_url: str, pattern: str = ".*", word: str = "checks"
) -> Lines:
    """What the checks see of a broker. `word`: in the names of their topics."""
    done = subprocess.run(
        [*program, service_url, admin_url, pattern, word],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    found = parsed(done.stdout)
    assert found, done.stdout[-3000:] + done.stderr[-3000:]
    return found


def parsed(text: str) -> Lines:
    """The lines of the program. What is looked at twice has a number."""
    found: Lines = {}
    for line in text.splitlines():
        if line.startswith("check "):
            name, _, values = line[6:].partition(": ")
            counts: Counter[str] = Counter()
            pieces: dict[str, str] = found.setdefault(name, {})
            for piece in re.split(r"; (?=[^=;{}\[\]]{1,60}=)", values):
                what, _, value = piece.partition("=")
                counts[what] += 1
                pieces[what if counts[what] == 1 else f"{what} {counts[what]}"] = value
    return found


def differences(there: Lines, here: Lines) -> dict[str, tuple[str, str]]:
    """Check and what it looked at → what was seen there and here."""
    found: dict[str, tuple[str, str]] = {}
    for name in there.keys() | here.keys():
        ours, real = here.get(name, {}), there.get(name, {})
        for what in ours.keys() | real.keys():
            if ours.get(what) != real.get(what):
                found[f"{name} {what}"] = (real.get(what, "nothing"), ours.get(what, "nothing"))
    return dict(sorted(found.items()))


LISTED: list[dict[str, Any]] = tomllib.loads((_HERE / "differences.toml").read_text())["checks"]


def judged(found: dict[str, tuple[str, str]], version: str = VERSION) -> tuple[list[str], Counter[str]]:
    """Texts on the differences from a `version` that are not listed and on those that are gone, and how many of each reason there are."""
    counts: Counter[str] = Counter()
    wrong = []
    known = [each for each in LISTED if version in each.get("releases", [version])]
    for name, (real, ours) in found.items():
        listed = next((each for each in known if re.fullmatch(each["check"], name)), None)
        if listed is None:
            wrong.append(f"{name}\n  Pulsar:   {real}\n  Magnetar: {ours}")
        else:
            counts[listed["reason"]] += 1
    wrong += [
        f"{each['check']}: no difference any more: {each['reason']}"
        for each in known
        if not (each.get("is_race") or counts[each["reason"]])
    ]
    return wrong, counts


def recorded(version: str = VERSION) -> Path:
    """The file with what a real Pulsar showed."""
    return _HERE / f"checks-{version}.txt"


def main() -> int:
    """Compare. The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.beside.checks", description=__doc__)
    parser.add_argument("--pulsar", default=VERSION, metavar="VERSION", help=f"(default: {VERSION})")
    parser.add_argument("--checks", default=".*", metavar="REGEX", help="their names (default: all)")
    parser.add_argument("--record", action="store_true", help="write what the real Pulsar shows")
    given = parser.parse_args()
    profile = given.pulsar.rpartition(".")[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        classes = folder / "classes"
        classes.mkdir()
        try:
            program = compiled(classes)
            with (
                pulsar(folder, given.pulsar, SETTINGS) as real,
                magnetar(folder, SETTINGS, None if profile == "4.0" else profile) as ours,
                ThreadPoolExecutor() as both,
            ):
                there, here = both.map(
                    lambda each: seen(
                        program, f"http://{each.admin}", f"pulsar://{each.service}", given.checks
                    ),
                    (real, ours),
                )
        except (PulsarError, JarsUnavailableError) as error:
            print(error, file=sys.stderr)
            return 2
    if given.record:
        recorded(given.pulsar).write_text("".join(f"{line}\n" for line in lines(there)))
    found = differences(there, here)
    wrong, counts = judged(found, given.pulsar)
    print("\n".join(wrong))
    unlike = {each.split(" ")[0] for each in found}
    print(f"{len(there) - len(unlike)} of {len(there)} checks see the same")
    for reason, count in counts.most_common():
        print(f"{count} differ: {reason}")
    return bool(wrong)


def lines(found: Lines) -> list[str]:
    """As the program prints them."""
    return [
        f"check {name}: {'; '.join(f'{what}={value}' for what, value in pieces.items())}"
        for name, pieces in found.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
