"""`make audit`: checks the dependencies. Exits with 1 if there is a finding that needs a decision.

Offline checks: every requirement in requirements.lock is pinned and has hashes, the lock satisfies pyproject.toml, the
installed versions are the locked ones, and we can ship under their licences. With the package index (by uv): no locked
version was withdrawn ("yanked"). With a vulnerability service, PyPI's or else OSV (by pip-audit): no locked version has a
known vulnerability. A finding fails unless `audit-accepted.toml` accepts it. An unreachable service is reported loudly but
does not fail: a build must not depend on servers of others.
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
        """The pinned version, or "" if it is not pinned."""
        pins = list(self.requirement.specifier)
        return (
            pins[0].version
            if len(pins) == 1 and pins[0].operator == "==" and "*" not in pins[0].version
            else ""
        )


class Verdict(NamedTuple):
    """`wrong`: findings, which fail the audit; `unknown`: what could not be checked."""

    wrong: list[str]
    unknown: list[str]


def read_lock(text: str) -> dict[str, Locked]:
    """The requirements of a lock file by canonical name."""
    found: dict[str, Locked] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if line and line[0] not in "# \t":
            requirement = Requirement(line.partition(" --hash")[0])
            found[canonicalize_name(requirement.name)] = Locked(requirement, len(_HASH.findall(line)))
    return found


def check_lock(lock: dict[str, Locked], project: dict[str, Any]) -> list[str]:
    """Check the pins, the hashes, and the ranges of pyproject.toml."""
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
            there = "none" if found is None else found.version
            wrong.append(f"pyproject.toml requires {asked}, but requirements.lock has {there}: make lock")
    return wrong


def check_installed(lock: dict[str, Locked], licences: dict[str, str]) -> list[str]:
    """Compare this environment with the lock, and its licences with the accepted ones in `licences`."""
    wrong = []
    for name, each in lock.items():
        if each.requirement.marker is not None and not each.requirement.marker.evaluate():
            continue
        try:
            there = distribution(name)
        except PackageNotFoundError:
            wrong.append(f"{name} is locked but not installed: make env")
            continue
        if there.version != each.version:
            wrong.append(f"{name} {there.version} is installed, but {each.version} is locked: make env")
        licence = licence_of(there.metadata)
        if name not in licences and (not licence or _SHARING.search(licence)):
            wrong.append(
                f"{name} has the licence {licence or 'unknown'}: accept it in .ci/audit-accepted.toml"
            )
    return wrong


def licence_of(metadata: Any) -> str:
    """The licence in a package's metadata: an SPDX expression, classifiers, or the first line of a text."""
    classifiers = [
        c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier", []) if c.startswith("License ::")
    ]
    expression = metadata.get("License-Expression")
    return str(expression or ", ".join(classifiers) or (metadata.get("License") or "").partition("\n")[0])


def check_vulnerabilities(
    reports: Iterable[tuple[str, str, str]],
    accepted: list[dict[str, Any]],
    today: datetime.date | None = None,
) -> Verdict:
    """Check pip-audit's reports (service, standard output, standard error) up to the first complete one."""
    today = today or datetime.datetime.now(datetime.UTC).date()
    valid = {(each["package"], each["id"]) for each in accepted if each["until"] >= today}
    wrong: list[str] = []
    unknown: list[str] = []
    for service, out, err in reports:
        if not out.lstrip().startswith("{"):
            last = (err.strip().splitlines() or ["no output"])[-1][:200]
            (unknown if _NETWORK.search(err) else wrong).append(f"pip-audit with {service}: {last}")
            continue
        skipped = []
        for each in json.loads(out)["dependencies"]:
            if "skip_reason" in each:
                skipped.append(each["name"])
            for found in each.get("vulns", []):
                names = [found["id"], *found.get("aliases", [])]
                if not any((canonicalize_name(each["name"]), name) in valid for name in names):
                    fixed = ", ".join(found.get("fix_versions", [])) or "nothing yet"
                    wrong.append(f"{each['name']} {each['version']}: {' '.join(names)}, fixed in {fixed}")
        if not skipped:
            unknown.clear()
            break
        # pip-audit reports this as "no known vulnerabilities found"
        unknown.append(f"{service} does not know {len(skipped)} packages ({', '.join(skipped[:3])}…)")
    return Verdict(list(dict.fromkeys(wrong)), unknown)


def check_yanked(code: int, err: str) -> Verdict:
    """Check uv's exit code and standard error for yanked versions."""
    if code:
        last = (err.strip().splitlines() or ["no output"])[-1][:200]
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
        print(f"audit: NOT CHECKED: {sentence}")
    for sentence in wrong:
        print(f"audit: {sentence}")
    rest = ": KNOWN VULNERABILITIES OR WITHDRAWN VERSIONS MAY BE AMONG THEM" if unknown else ""
    print(f"audit: {len(lock)} locked packages, {len(wrong)} findings, {len(unknown)} not checked{rest}")
    return 1 if wrong else 0


def _run(*command: str | Path) -> tuple[int, str, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return 1, "", f"timed out after {PATIENCE_SECONDS} s"
    return done.returncode, done.stdout, done.stderr


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
