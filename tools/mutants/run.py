"""The core's tests against mutants: one pytest session that forks, inside an instrumented copy of the repository.

The session collects the tests once. One fork per job runs all of them on the unchanged code and learns which tests run which
mutants, and how long they take; SlipCover measures their coverage there. Then there is one fork per mutant: it runs the tests that
reach the mutant, the short ones first, until one fails. Whatever a mutant does, its fork ends: what uses too much time or memory, or
waits too long, is noticed. With `minutes`, what is still running when they are over, or has not begun, is left without a judgment: a
mutant that no test notices costs all the tests that reach it.
"""

from __future__ import annotations

import json
import math
import os
import posix
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby, zip_longest
from typing import Any, NoReturn

import pytest

from tools.mutants.active import ACTIVE

MEMORY = 6 << 30
"""The address space of a fork, in bytes."""

WAIT = 120
"""The most seconds that a test may take, on a busy machine, beyond the CPU time that it has."""


def limit(seconds: float) -> float:
    """The CPU time that a test has against a mutant, of one that takes `seconds` without."""
    return 5 + 10 * seconds


class Session:
    """Replaces pytest's loop over the tests."""

    def __init__(self, mutants: int, jobs: int, minutes: float, tests: list[str]) -> None:
        """`minutes`: for all mutants, after the tests without. `tests`: arguments of pytest."""
        self.mutants = mutants
        self.jobs = jobs
        self.minutes = minutes
        self.tests = tests
        self.failed: dict[str, str] = {}
        self.left_out = 0

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.left_out += len(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = f"{report.nodeid}\n{report.longreprtext}"

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("tests could not be collected")
        at_import = set(ACTIVE)
        modules = [list(items) for _, items in groupby(session.items, key=lambda item: item.path)]
        halves = [[item for items in modules[job :: self.jobs] for item in items] for job in range(self.jobs)]
        seconds: dict[str, float] = {}
        reached: dict[int, list[str]] = {}
        for _, outcome in forked(
            self.jobs, (partial(self.unchanged, half) for half in halves), measured=True
        ):
            if outcome is None or outcome["failed"]:
                texts = ["a test was killed"] if outcome is None else outcome["failed"].values()
                sys.exit("\n".join(["the tests fail without a mutant:", *texts]))
            seconds |= outcome["seconds"]
            for number, names in outcome["reached"].items():
                reached.setdefault(int(number), []).extend(names)
        say({"tests": len(seconds), "left_out": self.left_out, "seconds": sum(seconds.values())})
        items = {item.nodeid: item for item in session.items}

        def against(number: int) -> Callable[[], dict[str, Any]]:
            if number in at_import:
                return lambda: against_in_new_process(number, self.tests, sum(seconds.values()))
            names = sorted(reached.get(number, ()), key=seconds.__getitem__)
            return lambda: self.against(number, [items[name] for name in names], seconds)

        works = (against(number) for number in range(self.mutants))
        for number, outcome in forked(self.jobs, works, until=time.monotonic() + 60 * self.minutes):
            say({"mutant": number, **(outcome or {"noticed": "a test was killed", "ran": 0})})
        return True

    def unchanged(self, items: list[pytest.Item]) -> dict[str, Any]:
        """How long each test takes, in seconds of CPU time, the tests that reach a mutant, and those that fail."""
        seconds: dict[str, float] = {}
        reached: dict[int, list[str]] = {}
        for item, following in pairs(items):
            ACTIVE.clear()
            begin = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds[item.nodeid] = time.process_time() - begin
            for number in ACTIVE:
                reached.setdefault(number, []).append(item.nodeid)
        return {"seconds": seconds, "reached": reached, "failed": self.failed}

    def against(self, number: int, items: list[pytest.Item], seconds: dict[str, float]) -> dict[str, Any]:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        ACTIVE[number] = True
        for ran, (item, following) in enumerate(pairs(items)):
            most = limit(seconds[item.nodeid])
            signal.setitimer(signal.ITIMER_PROF, most)  # the signals of both end the process
            signal.setitimer(signal.ITIMER_REAL, WAIT + most)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return {"noticed": next(iter(self.failed)), "ran": ran + 1}
        return {"noticed": None, "ran": len(items)}


def against_in_new_process(number: int, tests: list[str], seconds: float) -> dict[str, Any]:
    """For a mutant that runs when the core or the tests are imported, which this process has done. `seconds`: see `limit`."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--hypothesis-profile=mutants", *tests]
    # The other way to end a test, an exception, is a failure that Hypothesis would reproduce.
    command += ["-o", f"timeout={WAIT}", "-o", "timeout_method=thread"]
    most = 60 + 2 * int(seconds)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))

    environment = os.environ | {"MAGNETAR_MUTANT": str(number)}
    ran = subprocess.run(command, env=environment, preexec_fn=limited)
    return {"noticed": "all tests" if ran.returncode else None, "ran": len(tests)}


def pairs(items: list[pytest.Item]) -> Iterable[tuple[pytest.Item, pytest.Item | None]]:
    return zip_longest(items, items[1:])


def forked(
    jobs: int, works: Iterable[Callable[[], Any]], *, measured: bool = False, until: float = math.inf
) -> Iterator[tuple[int, Any]]:
    """Each work in a fork of its own, `jobs` at a time: its number and what it returned, or None if the fork died. `measured`: its coverage
    counts, for which SlipCover has functions of its own in `os`. `until`: by the monotonic clock, when the forks that are left end, and
    nothing is said of their works."""
    ways = os if measured else posix
    waiting = iter(enumerate(works))
    running: dict[int, tuple[int, int, list[bytes]]] = {}
    try:
        while True:
            while len(running) < jobs and (work := next(waiting, None)):
                end, theirs = os.pipe()
                if not (child := ways.fork()):
                    answer(work[1], theirs, ways._exit)
                os.close(theirs)
                running[end] = (child, work[0], [])
            left = until - time.monotonic()
            if not running or left <= 0:
                return
            for end in select.select(list(running), [], [], None if left == math.inf else left)[0]:
                child, number, parts = running[end]
                if part := os.read(end, 1 << 16):
                    parts.append(part)
                    continue
                os.close(end)
                os.waitpid(child, 0)
                del running[end]
                yield number, json.loads(b"".join(parts)) if parts else None
    finally:
        for child, _, _ in running.values():
            kill_group(child)


def kill_group(child: int) -> None:
    """End a fork, and what it has started: the tests in a process of their own would go on for minutes."""
    with suppress(ProcessLookupError):  # it has yet to make its group
        os.killpg(child, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def answer(work: Callable[[], Any], pipe: int, end: Callable[[int], NoReturn]) -> None:
    """What a fork does."""
    try:
        os.setpgid(0, 0)
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        with os.fdopen(pipe, "wb") as file:
            file.write(json.dumps(work()).encode())
    finally:
        end(0)


def say(found: dict[str, Any]) -> None:
    """One line of JSON for the process that started this one."""
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    mutants, jobs, minutes, *tests = sys.argv[1:]
    options = ["-qq", "-s", "-p", "no:cacheprovider", "-o", "timeout=0"]
    sys.exit(
        pytest.main(
            [*options, "--hypothesis-profile=mutants", *tests],
            plugins=[Session(int(mutants), int(jobs), float(minutes), tests)],
        )
    )
