"""Looks the dependencies through: `make audit`. Exit code 1 for what somebody has to decide about.

What needs nobody: every requirement in requirements.lock is pinned and has its hashes, the lock is within
pyproject.toml's ranges, what is installed is what is locked, and its licences are ones we can ship with. What needs the
package index: no locked version was withdrawn ("yanked"), asked by uv. What needs a vulnerability service (PyPI's, else
OSV): no locked version has a known vulnerability, asked by pip-audit. A service that doesn't answer is told loudly and is
no failure, for a build must not depend on somebody else's server; a finding is one, unless `audit-accepted.toml` has it.
"""

import datetime
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SERVICES = ("pypi", "osv")
PATIENCE_SECONDS = 300
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_YANKED = re.compile(r"`([^`=]+)==([^`]+)` is yanked(?: \(reason: \"(.*)\"\))?")
_SHARING = re.compile(
    r"\bA?L?GPL|General Public License|SSPL|BUSL|Business Source|Commons Clause|Proprietary", re.I
)
_NETWORK = re.compile(
    r"ConnectionError|ServiceError|HTTPError|Timeout|timed out|Max retries|error sending request|Failed to fetch|dns error",
    re.I,
)


class Locked(NamedTuple):
    """A requirement of requirements.lock."""

    requirement: Requirement
    hashes: int

    @property
    def version(self) -> str:
        """The one that is pinned; empty if none is."""
        pins = list(self.requirement.specifier)
        return (
            pins[0].version
            if len(pins) == 1 and pins[0].operator == "==" and "*" not in pins[0].version
            else ""
        )


class Verdict(NamedTuple):
    """What was found: `wrong` fails, `unknown` could not be looked at."""

    wrong: list[str]
    unknown: list[str]


def read_lock(text: str) -> dict[str, Locked]:
    """The requirements by canonical name."""
    found: dict[str, Locked] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if line and line[0] not in "# \t":
            requirement = Requirement(line.partition(" --hash")[0])
            found[canonicalize_name(requirement.name)] = Locked(requirement, len(_HASH.findall(line)))
    return found


def check_lock(lock: dict[str, Locked], project: dict[str, Any]) -> list[str]:
    """Pins, hashes and ranges."""
    wrong = []
    for name, each in lock.items():
        if each.requirement.url or not each.version:
            wrong.append(f"{name} is not pinned by == in requirements.lock")
        elif not each.hashes:
            wrong.append(f"{name} has no hash in requirements.lock: make lock")
    direct = project["dependencies"] + project["optional-dependencies"]["dev"]
    for asked in map(Requirement, direct):
        found = lock.get(canonicalize_name(asked.name))
        if found is None or not asked.specifier.contains(found.version or "0"):
            there = "missing" if found is None else found.version
            wrong.append(f"pyproject.toml asks for {asked}, and requirements.lock has it {there}: make lock")
    return wrong


def check_installed(lock: dict[str, Locked], licences: dict[str, str]) -> list[str]:
    """What is in this environment against the lock, and its licences against those `licences` accepts."""
    wrong = []
    for name, each in lock.items():
        if each.requirement.marker is not None and not each.requirement.marker.evaluate():
            continue
        try:
            there = distribution(name)
        except PackageNotFoundError:
            wrong.append(f"{name} is locked and not installed: make env")
            continue
        if there.version != each.version:
            wrong.append(f"{name} {there.version} is installed and {each.version} locked: make env")
        licence = licence_of(there.metadata)
        if name not in licences and (not licence or _SHARING.search(licence)):
            wrong.append(
                f"{name} has the licence {licence or 'unknown'}: accept it in .ci/audit-accepted.toml"
            )
    return wrong


def licence_of(metadata: Any) -> str:
    """As a package tells it: an SPDX expression, classifiers, or the first line of a text."""
    classifiers = [
        c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier", []) if c.startswith("License ::")
    ]
    expression = metadata.get("License-Expression")
    return str(expression or ", ".join(classifiers) or (metadata.get("License") or "").partition("\n")[0])


def check_vulnerabilities(reports: Iterable[tuple[str, str, str]], accepted: list[dict[str, Any]]) -> Verdict:
    """`reports`: pip-audit's (service, standard output, standard error). Looks no further than the first that is whole."""
    today = datetime.datetime.now(datetime.UTC).date()
    valid = {(each["package"], each["id"]) for each in accepted if each["until"] >= today}
    wrong: list[str] = []
    unknown: list[str] = []
    for service, out, err in reports:
        if not out.lstrip().startswith("{"):
            last = (err.strip().splitlines() or ["it said nothing"])[-1][:200]
            (unknown if _NETWORK.search(err) else wrong).append(f"pip-audit with {service}: {last}")
            continue
        skipped = []
        for each in json.loads(out)["dependencies"]:
            if "skip_reason" in each:
                skipped.append(each["name"])
            for found in each.get("vulns", []):
                names = [found["id"], *found.get("aliases", [])]
                if not any((canonicalize_name(each["name"]), name) in valid for name in names):
                    mended = ", ".join(found.get("fix_versions", [])) or "nothing yet"
                    wrong.append(f"{each['name']} {each['version']}: {' '.join(names)}, mended in {mended}")
        if not skipped:
            unknown.clear()
            break
        # pip-audit calls that "no known vulnerabilities found".
        unknown.append(f"{service} knows nothing of {len(skipped)} packages ({', '.join(skipped[:3])}…)")
    return Verdict(list(dict.fromkeys(wrong)), unknown)


def check_yanked(code: int, err: str) -> Verdict:
    """`code`, `err`: uv's exit code and standard error."""
    if code:
        last = (err.strip().splitlines() or ["it said nothing"])[-1][:200]
        return Verdict(*(([], [f"uv: {last}"]) if _NETWORK.search(err) else ([f"uv: {last}"], [])))
    return Verdict(
        [f"{n} {v} was withdrawn: {why or 'no reason given'}" for n, v, why in _YANKED.findall(err)], []
    )


def main(tools: Path) -> int:
    lock_file = ROOT / "requirements.lock"
    accepted = tomllib.loads((ROOT / ".ci" / "audit-accepted.toml").read_text())
    lock = read_lock(lock_file.read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wrong = check_lock(lock, project) + check_installed(lock, accepted["licences"])
    unknown: list[str] = []
    if (tools / "pip-audit").exists() and (tools / "uv").exists():
        compiled = _run(tools / "uv", "pip", "compile", "--no-deps", "--universal", "--python-version", "3.11",
                        str(lock_file), "-o", "/dev/null")  # fmt: skip
        audit = (tools / "pip-audit", "-r", str(lock_file), "--require-hashes", "--disable-pip", "-f", "json",
                 "--progress-spinner", "off")  # fmt: skip
        reports = ((service, *_run(*audit, "-s", service)[1:]) for service in SERVICES)
        verdicts = (
            check_yanked(compiled[0], compiled[2]),
            check_vulnerabilities(reports, accepted["vulnerabilities"]),
        )
        for verdict in verdicts:
            wrong += verdict.wrong
            unknown += verdict.unknown
    else:
        unknown.append(f"pip-audit and uv could not be installed in {tools}")
    for sentence in unknown:
        print(f"audit: NOT LOOKED AT: {sentence}")
    for sentence in wrong:
        print(f"audit: {sentence}")
    rest = ": KNOWN VULNERABILITIES OR WITHDRAWN VERSIONS MAY BE AMONG THEM" if unknown else ""
    print(f"audit: {len(lock)} locked packages, {len(wrong)} findings, {len(unknown)} not looked at{rest}")
    return 1 if wrong else 0


def _run(*command: str | Path) -> tuple[int, str, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return 1, "", f"timed out after {PATIENCE_SECONDS} s"
    return done.returncode, done.stdout, done.stderr


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
