"""``python -m tools.mutants --count 60 --seed 1 tests/broker``: see docs/develop/testing.md."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from operator import itemgetter
from pathlib import Path

import msgspec
import slipcover

from tools.mutants.mutations import Identity, Module, Mutant, instrumented, modules

ROOT = Path(__file__).parents[2]
CORE = "streaming/broker"
COVERAGE = ["-m", "slipcover", "--branch", "--source", CORE, "--json", "--out"]
"""A switch is left out by the settings in pyproject.toml. In a module with a mutant, the lines are those of the copy."""
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*cache*", "__pycache__", ".hypothesis", "*.egg-info")


class Equivalent(msgspec.Struct, forbid_unknown_fields=True):
    """Mutants that no test can notice: a line of a function, what becomes of it, and why that makes no difference."""

    file: str
    function: str
    was: str
    becomes: str
    reason: str

    @property
    def identity(self) -> Identity:
        return Identity(self.file, self.function, self.was, self.becomes)


class Equivalents(msgspec.Struct, forbid_unknown_fields=True):
    equivalent: list[Equivalent]


def equivalents() -> list[Equivalent]:
    file = Path(__file__).parent / "equivalent.toml"
    return msgspec.toml.decode(file.read_bytes(), type=Equivalents).equivalent


def sampled(
    found: list[Module],
    count: int,
    seed: int,
    changed: dict[str, set[int]] | None = None,
    within: dict[str, set[int]] | None = None,
) -> list[tuple[Module, Mutant]]:
    """`count` mutants that are not known as equivalent, each as likely as any other. Of those in `changed` lines (by file), if there are
    any, half of them. `within`: only those in these lines.

    A digest of each mutant decides, not its place in the list, so a change of the code hardly changes the sample of a seed.
    """
    known = {each.identity for each in equivalents()}
    ranked = []
    for module in found:
        seen: Counter[Identity] = Counter()
        for mutant in module.mutants:
            seen[mutant.identity] += 1
            if mutant.identity not in known and (within is None or mutant.line in within[module.file]):
                name = f"{seed} {mutant.identity} {seen[mutant.identity]}"
                ranked.append((hashlib.sha256(name.encode()).digest(), module, mutant))
    ranked.sort(key=itemgetter(0))
    all_ = [(module, mutant) for _, module, mutant in ranked]
    first = [each for each in all_ if each[1].line in (changed or {}).get(each[0].file, ())][: count // 2]
    taken = {id(mutant) for _, mutant in first}
    return [*first, *(each for each in all_ if id(each[1]) not in taken)][:count]


def changed_lines(since: str) -> dict[str, set[int]]:
    """The lines of the core that were changed or added since a commit, by file."""
    command = ["git", "diff", "--unified=0", "--no-color", since, "--", CORE]
    found: dict[str, set[int]] = {}
    file = ""
    for line in subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines():
        if line.startswith("+++ b/"):
            file = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            found.setdefault(file, set()).update(range(first, first + count))
    return found


def lines_with(found: list[Module], pattern: str) -> dict[str, set[int]]:
    """The lines of each file in which a regular expression is found."""
    return {
        each.file: {
            number
            for number, line in enumerate((ROOT / each.file).read_text("utf-8").splitlines(), 1)
            if re.search(pattern, line)
        }
        for each in found
    }


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m tools.mutants", description=__doc__, epilog="All other arguments are for pytest."
    )
    arguments.add_argument("--count", type=int, default=60, help="how many mutants to sample")
    arguments.add_argument("--seed", type=int, help="of the sample (default: any)")
    arguments.add_argument("--since", help="a commit: half of the mutants are in lines that changed since")
    arguments.add_argument("--within", help="a regular expression: only mutants in lines where it is found")
    arguments.add_argument("--jobs", type=int, default=1, help="how many mutants to test at a time")
    arguments.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="for all mutants, after the tests without: what is not judged by then is left out",
    )
    arguments.add_argument(
        "--floor",
        type=float,
        default=0,
        help="fail if fewer percent are noticed, even if all that are not judged would be",
    )
    arguments.add_argument(
        "--coverage", type=float, help="measure the branch coverage, too, and fail if it is less, in percent"
    )
    options, tests = arguments.parse_known_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed

    found = modules(ROOT, CORE)
    changed = options.since and changed_lines(options.since)
    within = options.within and lines_with(found, options.within)
    sample = sampled(found, options.count, seed, changed, within)
    print(f"{len(sample)} of {sum(len(each.mutants) for each in found)} mutants, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT, symlinks=True)
        for module in found:
            if chosen := {number: mutant for number, (of, mutant) in enumerate(sample) if of is module}:
                (copy / module.file).write_text(instrumented(module, chosen), encoding="utf-8")
        mutants = [mutant for _, mutant in sample]
        survivors, judged = judge(copy, mutants, options.jobs, options.minutes, tests, options.coverage)
    if judged < len(mutants):
        print(f"not judged within {options.minutes:g} minutes: {len(mutants) - judged} of {len(mutants)}")
    if not judged:
        sys.exit("no mutant was judged: give them more --minutes")
    share = 100 * (1 - len(survivors) / judged)
    print(f"noticed: {judged - len(survivors)} of {judged}, {share:.1f} %")
    # Of few that were judged, one survivor says little: those that were not may be noticed.
    if 100 * len(survivors) > (100 - options.floor) * len(mutants):
        sys.exit(f"fewer than {options.floor:g} %")


def judge(
    copy: Path, mutants: list[Mutant], jobs: int, minutes: float, tests: list[str], coverage: float | None
) -> tuple[list[Mutant], int]:
    """Runs the tests against the mutants in `copy`, and shows those that survive. Returns them, and how many were judged within `minutes`.
    `coverage`: see `main`."""
    survivors = []
    said = []
    measured = [] if coverage is None else [*COVERAGE, str(copy / "coverage.json")]
    command = [sys.executable, *measured, "-m", "tools.mutants.run"]
    command += [str(len(mutants)), str(jobs), str(minutes), *tests]
    # The tests ask git what changed, of which those run that take long.
    repository = {"GIT_DIR": str(ROOT / ".git"), "GIT_WORK_TREE": str(ROOT)}
    environment = os.environ | repository | {"PYTHONPATH": str(copy), "TMPDIR": str(copy.parent)}
    judged = 0
    with subprocess.Popen(command, cwd=copy, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if not line.startswith('{"'):
                said.append(line)
                continue
            outcome = json.loads(line)
            if "mutant" not in outcome:
                left_out = f", {outcome['left_out']} left out" if outcome["left_out"] else ""
                print(
                    f"{outcome['tests']} tests pass unchanged, in {outcome['seconds']:.0f} s{left_out}",
                    flush=True,
                )
                continue
            judged += 1
            mutant = mutants[outcome["mutant"]]
            if outcome["noticed"] is None:
                survivors.append(mutant)
                print(diff(mutant, outcome["ran"]), flush=True)
            if not judged % 20:
                print(f"\n{judged} judged, {judged - len(survivors)} noticed", flush=True)
    if process.returncode or (judged < len(mutants) and minutes == math.inf):
        sys.exit("".join(said) + f"the tests did not run to the end: exit code {process.returncode}")
    if coverage is not None:
        found = json.loads((copy / "coverage.json").read_bytes())
        slipcover.print_coverage(found, skip_covered=True)
        if (share := found["summary"]["percent_covered"]) < coverage:
            sys.exit(f"the tests cover {share:.2f} % of the core, less than {coverage:g} %")
    return survivors, judged


def diff(mutant: Mutant, ran: int) -> str:
    identity = mutant.identity
    head = f"\n{identity.file}:{mutant.line} {identity.function}: not noticed by {ran} tests that reach it"
    return f"{head}\n- {identity.was}\n+ {identity.becomes}"


if __name__ == "__main__":
    main()
