"""Fixtures that every test may use: a real Kafka and a Spark session, each started once, when first asked for."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, settings

from tests.examples import examples
from tests.samples import ALWAYS, FREE_FILES, FREE_NEAR, drawn, durations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streaming.kafka.local import LocalKafka

if "PYTEST_XDIST_WORKER" in os.environ:
    # A worker's main module is no file. pyspark takes such a process for one that runs its doctests, and ends it.
    sys.modules["__main__"].__file__ = importlib.import_module("xdist.remote").__file__

pytest.register_assert_rewrite("tests.e2e.outcome")  # so that it shows where two outcomes differ

# No deadlines: a busy machine is no wrong result. The same examples each time, so that a change is not to blame for what was there before
# it: new ones are drawn at night.
settings.register_profile("same", derandomize=True, deadline=None, database=None, max_examples=examples(100))
settings.register_profile("nightly", deadline=None, max_examples=examples(100))
settings.register_profile(
    "mutants", settings.get_profile("same"), phases=(Phase.explicit, Phase.generate)
)  # for `make mutants`: a mutant's example needs no shrinking
settings.load_profile("same")

FIRST = (
    "chaos",
    "e2e",
    "test_killed.py",
    "test_two_at_a_time.py",
    "server",
    "fuzz",
    "spark",
    "kafka",
    "answers",
)
"""Tests that take long begin first, so that no process is left with one when the others have ended."""


def pytest_configure(config: pytest.Config) -> None:
    """Whoever names a path gets all cases of the tests there. The processes of xdist get a path, and this variable."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
        os.environ.setdefault(
            "MAGNETAR_SAMPLES", "all" if named else _git("rev-list", "--count", "HEAD") or "0"
        )


_TESTS = Path(__file__).parent
_Case = tuple[str, float, pytest.Item]


def _git(*arguments: str) -> str:
    """What git prints; nothing where there is no such thing."""
    return subprocess.run(["git", *arguments], cwd=_TESTS, capture_output=True, text=True).stdout.strip()


@pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")
def pytest_draw_samples(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases of tests that take long, see `tests.samples`. More run of the files and the rooms that the last five commits changed."""
    if (commit := os.environ["MAGNETAR_SAMPLES"]) == "all":
        return
    changed = {Path(path) for path in _git("diff", "--name-only", "HEAD~5").split("\n")}
    rooms = {path.parts[1] for path in changed if path.parts[:1] == ("streaming",)}
    seconds = durations()
    files, near, far = list[_Case](), list[_Case](), list[_Case]()
    for item in items:
        path, test = item.path.relative_to(_TESTS.parent), item.nodeid.partition("[")[0]
        if test in seconds and path.name not in ALWAYS:
            group = files if path in changed else near if path.parts[1] in rooms else far
            group.append((test, seconds[test], item))
    now = int(commit)
    run = drawn(files, now, together=FREE_FILES) + drawn(near, now, FREE_NEAR) + drawn(far, now)
    left_out = {id(item) for *_, item in files + near + far} - {id(item) for item in run}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]
    if "PYTEST_XDIST_WORKER" in os.environ:
        config.workeroutput["left_out"] = len(left_out)  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The summary says how many cases were left out. All processes of xdist leave out the same."""
    if left_out := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.pluginmanager.get_plugin("terminalreporter").stats["deselected"] = [node] * left_out


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """See `FIRST`. Processes must find the same tests under the same names, so no name may come from a set's order."""
    for item in items:
        parameters = getattr(item, "callspec", None)
        for value in () if parameters is None else parameters.params.values():
            if isinstance(value, set | frozenset) and value and str(value) in item.name:
                raise pytest.UsageError(
                    f"{item.nodeid} is named after a set, which has no order: give it `ids`"
                )
    order = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path.relative_to(_TESTS).parts[0], len(FIRST)))


@pytest.fixture(autouse=True)
def logging_stays_on() -> Iterator[None]:
    """Fails a test that turns logging off for the whole process: later tests, and a user's program, read what is logged."""
    yield
    assert logging.root.manager.disable == logging.NOTSET


@pytest.fixture(autouse=True)
def kafka_clients_are_closed() -> Iterator[None]:
    """Fails a test that leaves a Kafka client open: its thread goes on for all tests after it, and logs when its Kafka is gone.

    A query of the whole module, in a thread of this name, connects in the middle of tests, and closes its clients itself.
    """
    before = set(threading.enumerate())
    yield
    if any(each.name == "query-of-the-module" for each in threading.enumerate()):
        return
    left = [
        each.name
        for each in threading.enumerate()
        if each not in before and each.name.startswith("kafka-io-")
    ]
    assert left == []


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported stays: the garbage collector need not look through it again and again."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A Kafka broker that is up, for all tests: take topic names of your own, and do not stop it."""
    from streaming.kafka.local import LocalKafka

    broker = LocalKafka(tmp_path_factory.mktemp("kafka"))
    try:
        broker.start()
        yield broker
    finally:
        # By force, because the data isn't needed afterwards.
        broker.kill()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session on two cores, with the Kafka source; use a new checkpoint path for each query."""
    from streaming.spark.session import spark_session

    session = spark_session("magnetar-tests", master="local[2]", shuffle_partitions=2, with_kafka=True)
    yield session
    session.stop()
