"""``make durations``: measures the tests that `tests.samples` reads. A plugin of pytest.

Of each test, some cases run. A case takes the processor time of its process and of all that this has started, Spark and Kafka included, on a
busy machine, too. What is started for several tests counts for none.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from random import Random
from typing import Any, cast

import psutil
import pytest

from tests.samples import DURATIONS, durations

EACH = 2
"""How many cases of each test are measured."""

LEAST = 0.5
"""Tests whose cases take no more seconds together are not in the file."""

NEAR = 1.5
"""A figure stays, if the new one is not this many times larger or smaller: so that they don't all change each time."""

_PROCESS = psutil.Process()


def spent() -> float:
    """The seconds of processor time of this process and of all below it, those that have ended included."""
    seconds = sum(os.times()[:4])
    for child in _PROCESS.children(recursive=True):
        try:
            seconds += sum(child.cpu_times()[:4])
        except psutil.Error:  # it has just ended
            continue
    return seconds


def merged(
    old: Mapping[str, float], found: Mapping[str, Sequence[float]], counts: Mapping[str, int]
) -> dict[str, float]:
    """The durations after a measurement: of each test, what its cases took, and how many there are. Tests that were not measured stay."""
    new = dict(old)
    for test, seconds in found.items():
        mean = sum(seconds) / len(seconds)
        if mean * counts[test] <= LEAST:
            new.pop(test, None)
        elif not old.get(test, 0) / NEAR < mean < old.get(test, 0) * NEAR:
            new[test] = float(f"{mean:.2g}")
    return new


def written(seconds: Mapping[str, float]) -> str:
    """The file: tests by the file that they are in, sorted, but those whose file is gone."""
    files: dict[str, dict[str, float]] = {}
    for test in sorted(seconds):
        file, _, name = test.partition("::")
        files.setdefault(file, {})[name] = seconds[test]
    there = {file: tests for file, tests in files.items() if (DURATIONS.parents[1] / file).exists()}
    return json.dumps(there, indent=1) + "\n"


class _Measurement:
    def __init__(self) -> None:
        self.begin = 0.0
        self.shared = 0.0
        self.passed = False
        self.counts: dict[str, int] = {}
        self.found: defaultdict[str, list[float]] = defaultdict(list)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        tests: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            tests[_test(item)].append(item)
        self.counts = {test: len(cases) for test, cases in tests.items()}
        kept = {
            id(item)
            for test, cases in tests.items()
            for item in Random(test).sample(cases, min(EACH, len(cases)))
        }
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
        items[:] = [item for item in items if id(item) in kept]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        begin, within = spent(), self.shared
        try:
            return (yield)
        finally:
            self.shared = within + spent() - begin

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.begin, self.shared, self.passed = spent(), 0.0, False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "call":
            self.passed = report.passed
        elif call.when == "teardown" and self.passed:
            taken = spent() - self.begin - self.shared
            report.user_properties.append(("taken", (_test(item), taken, self.counts[_test(item)])))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == "taken":
                test, taken, count = cast("tuple[str, float, int]", value)
                self.counts[test] = count
                self.found[test].append(taken)

    def pytest_sessionfinish(self) -> None:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            DURATIONS.write_text(written(merged(durations(), self.found, self.counts)), "utf-8")


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Measurement())
