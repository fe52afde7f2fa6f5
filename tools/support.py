"""Generates ``docs/reference/support.md``: each feature, whether it is supported, and the tests and traces that prove it.

``features.toml`` lists the features and their gaps. Tests are marked with ``@pytest.mark.feature("A1", "A7")``, and this
module is also the pytest plugin that collects these marks.

``python -m tools.support A1`` prints the ids of A1's tests, for pytest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from streaming.broker.admin_calls import CALLS
from streaming.broker.admin_table import TOPIC, Call
from streaming.server.admin.absent import UNSUPPORTED
from streaming.server.admin.application import OWN
from streaming.traces import RECORDED
from streaming.traces.conform import known_gaps
from tools.versions import GAPS, recordings

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[1]
UNFINISHED = ("partly", "refused", "not_yet")
STATES = {"supported": "supported", "partly": "partly", "refused": "refused", "not_yet": "not yet"}


class Features(msgspec.Struct, forbid_unknown_fields=True):
    """``features.toml``: areas by the first letter of their ids, features by id, and notes on features."""

    areas: dict[str, str]
    features: dict[str, str]
    partly: dict[str, str]
    refused: dict[str, str]
    not_yet: dict[str, str]
    every_trace: dict[str, str]
    traces: dict[str, list[str]]

    def state(self, feature: str, marks: Marks) -> tuple[str, str]:
        """One of `STATES`, and what is missing. A feature with a test that is known to fail is not supported."""
        failing = "; ".join(marks.failing.get(feature, ()))
        missing = failing and f"Known to fail: {failing}"
        for state in UNFINISHED:
            if feature in (reasons := getattr(self, state)):
                return state, ". ".join(filter(None, (reasons[feature], missing)))
        return "partly" if missing else "supported", missing


class Marks(msgspec.Struct):
    """The feature marks of the tests.

    `tests`: feature → names of its tests, in pytest's order. `failing`: feature → descriptions of its tests that are
    marked as failing or skipped.
    """

    tests: dict[str, list[str]]
    failing: dict[str, list[str]] = {}


@cache
def features() -> Features:
    return msgspec.toml.decode((Path(__file__).parent / "features.toml").read_bytes(), type=Features)


# -- the tests' marks ---------------------------------------------------------------------------------------------


@cache
def marked() -> Marks:
    """The feature marks of all tests.

    Raises RuntimeError with pytest's output if it can't collect the tests.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "marks.json"
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
        ran = subprocess.run(
            [*command, "-p", "tools.support", "--write-feature-marks", str(file)],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
            | {"MAGNETAR_SAMPLES": "all"},
            capture_output=True,
            text=True,
        )
        if ran.returncode != 0:
            raise RuntimeError(
                f"pytest could not collect the tests:\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}"
            )
        return msgspec.json.decode(file.read_bytes(), type=Marks)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-feature-marks", type=Path, help="the JSON file to write the feature marks of tests to"
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    marks = Marks({})
    for item in session.items:
        name = item.nodeid.partition("[")[0]
        fails = any(item.iter_markers("xfail")) or any(item.iter_markers("skip"))
        for mark in item.iter_markers("feature"):
            for feature in map(str, mark.args or ("(a mark without an id)",)):
                if name not in (tests := marks.tests.setdefault(feature, [])):
                    tests.append(name)
                if fails:
                    words = (
                        item.nodeid.rpartition("::")[2]
                        .removeprefix("test_")
                        .replace("_", " ")
                        .replace("[", " [")
                    )
                    marks.failing.setdefault(feature, []).append(words)
    session.config.getoption("--write-feature-marks").write_bytes(msgspec.json.encode(marks))


# -- the page -----------------------------------------------------------------------------------------------------

HEAD = """\
<!-- Written by `make docs` from tools/features.toml and the tests' own marks. Do not edit. -->
# What is supported

{summary}
The [README](../../README.md#what-it-does-not-do) lists what is out of scope.

* **Tests** are files in `tests/`. A number is a worked case, computed by hand. An article is one of those on older
  Pulsar with an example, see [articles.md](../rules/articles.md).
* **Traces** are recordings of a real Pulsar 4.0.7 with its official clients (`streaming/traces/recorded/`).
  `magnetar conform` compares them frame by frame, and so do the tests.

A test fails if a feature has no test, or if this page is out of date. To run the tests of one feature, such as A1:

```sh
.venv/bin/python -m pytest $(.venv/bin/python -m tools.support A1)
```
"""


def support() -> str:
    """The text of ``docs/reference/support.md``."""
    return page(features(), marked())


def page(known: Features, marks: Marks) -> str:
    """The page. It lists files and worked cases but no tests or counts, so that another test of a rule doesn't change it."""
    parts = [HEAD.format(summary=_summary(known, marks))]
    for letter, area in known.areas.items():
        parts.append(
            f"\n## {letter} {area}\n\n| id | feature | state | tests | traces |\n|---|---|---|---|---|\n"
        )
        for feature, title in known.features.items():
            if feature[0] == letter:
                state, missing = known.state(feature, marks)
                word = f"**{STATES[state]}**: {missing}" if missing else STATES[state]
                tests, traces = _tests(marks.tests.get(feature, [])), _traces(known, feature)
                parts.append(f"| {feature} | {title} | {word} | {tests} | {traces} |\n")
    return "".join([*parts, *_versions(known), *_admin_calls(), *_differences()])


VERSIONS_HEAD = """
## Versions

How many recordings of a real broker Magnetar equals, of how many that show the feature. Each is compared under the profile of its
release line ([profiles](profiles.md)). [Versions](../rules/versions.md) has the rules in which they differ from each other. One of
them is left out: [A32](../rules/versions.md#A32) of 2.10.5.

"""


def _versions(known: Features) -> Iterator[str]:
    """A column for each version: equal recordings by feature, and the recordings that are known to differ."""
    gaps = {version: {scenario: gap.reason for scenario, gap in own.items()} for version, own in GAPS.items()}
    gaps["4.0.7"] = known_gaps()
    recorded: dict[str, list[str]] = {"4.0.7": list(known.traces)}
    for version, scenario, _ in recordings():
        recorded.setdefault(version, []).append(scenario)
    versions = sorted(recorded, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])
    yield VERSIONS_HEAD
    yield f"| id | {' | '.join(versions)} |\n|---|{'---|' * len(versions)}\n"
    for feature in ("all", *known.features):
        cells = []
        for version in versions:
            every = feature == "all" or feature in known.every_trace
            shown = [each for each in recorded[version] if every or feature in known.traces.get(each, ())]
            equal = sum(each not in gaps[version] for each in shown)
            cells.append(f"{equal} of {len(shown)}" if shown else "")
        if any(cells):
            yield f"| {feature} | {' | '.join(cells)} |\n"
    yield "\nKnown not to be equal:\n\n"
    for version in versions:
        for scenario, reason in gaps[version].items():
            yield f"* {version}, {scenario}: {reason}.\n"


ADMIN_HEAD = """
## The admin REST API

`magnetar serve` answers these calls below `/admin/v2`, with Pulsar's JSON and status codes; [commands.md](commands.md#admin-calls)
says what they do. `{domain}` is `persistent` or `non-persistent`. The HTTP lookup is `GET
/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}`, with or without `/bundle`. A call that fails has a `reason`. All other
paths are answered with 404, and other methods with 405. `GET /admin/v2/openapi.json`, which a real broker does not have, describes the
calls below `/admin/v2` in OpenAPI 3.1: parameters, bodies, and answers with a description and a unit of every field. As in Pulsar 4.0, the answer about a policy that is
not set has no body: some generated clients take that for a mistake.

| path | methods | a partitioned topic |
|---|---|---|
"""

_WORDS = {
    "whole": "answers as a whole",
    "each": "stands for each partition",
    "one": "has none: call its partitions",
}


def _admin_calls() -> Iterator[str]:
    """The calls, one row per path."""
    yield ADMIN_HEAD
    by_path: dict[str, dict[str, Call[Any]]] = {}
    for call in (*OWN, *CALLS):
        by_path.setdefault(call.path, {})[call.method] = call
    for path, calls in by_path.items():
        methods = ", ".join(f"`{method}`" for method in calls)
        words = (
            dict.fromkeys("405" if call.refusal else _WORDS[call.on_partitioned] for call in calls.values())
            if path.startswith(TOPIC)
            else {}
        )
        yield f"| `{path}` | {methods} | {'; '.join(words)} |\n"
    unsupported = ", ".join(f"`{path}`" for path in UNSUPPORTED)
    yield f"\nNot supported: {unsupported}. `GET` shows that nothing is set; other methods are answered with 501.\n"
    yield (
        "\nKept and returned without effect: the [policies](commands.md#policies-without-effect) on bookies, bundles, replication and "
        "offloading; "
        "[clusters](commands.md#calls-on-the-cluster), failure domains, isolation policies, resource groups and quotas, racks; and dynamic "
        "settings that are not in [settings.md](settings.md). Functions, connectors and packages are answered as by a "
        "broker that has them turned off. Calls on [transactions](../rules/transactions.md) are below `/admin/v3`.\n"
        "\nMessages can be published with `POST /topics/{domain}/{tenant}/{namespace}/{topic}` and `…/partitions/{partition}`, on the "
        "embedded engine: of the schema types STRING, JSON, BOOLEAN and of numbers; a key is text. No producer joins the topic "
        "for them, and they fail while deduplication is enabled ([producers.md](../rules/producers.md) §19). Paths and topic names of Pulsar 1, which have a cluster between tenant and namespace, are taken, too.\n"
    )


def _differences() -> Iterator[str]:
    """What tools may notice, by call or field."""
    yield "\n## What tools may notice\n\n"
    yield (
        "[`make beside`](../develop/testing.md#admin-calls-beside-a-real-broker) makes every admin call on a real standalone 4.0.7 and on "
        "`magnetar serve`, and lets a program with the official Java client look at both. They differ in this:\n\n"
    )
    listed: dict[str, list[dict[str, Any]]] = msgspec.toml.decode(
        (ROOT / "tests" / "beside" / "differences.toml").read_bytes()
    )
    for each in (*listed["calls"], *listed["fields"], *listed["checks"]):
        if "releases" in each:  # docs/rules/versions.md has these
            continue
        yield f"* {each['reason']}\n"


def _summary(known: Features, marks: Marks) -> str:
    """One line per state that occurs."""
    ids: dict[str, list[str]] = {state: [] for state in STATES}
    for feature in known.features:
        ids[known.state(feature, marks)[0]].append(feature)
    text = f"Of {len(known.features)} features, {len(ids.pop('supported'))} are supported.\n"
    return text + "".join(
        f"{STATES[state].capitalize()}: {', '.join(of)}.\n" for state, of in ids.items() if of
    )


def _tests(names: Iterable[str]) -> str:
    """Each test file with its worked cases and articles."""
    cells = []
    for file, group in groupby(sorted(names), key=lambda name: name.partition("::")[0]):
        functions = [name.rpartition("::")[2] for name in group]
        text = f"[{file.removeprefix('tests/').removesuffix('.py').replace('test_', '')}](../../{file})"
        cases = {found.groups() for name in functions if (found := re.match(r"test_(\w+)_case_(\d+)", name))}
        for spec, numbers in groupby(sorted(cases), key=lambda case: case[0]):
            own = file.endswith(f"/test_{spec}_cases.py")
            text += f" {_ranges(int(number) for _, number in numbers)}" + f" of {spec}" * (not own)
        articles = {found[1] for name in functions if (found := re.match(r"test_seed_(\d+)", name))}
        cells.append(text + f" (article {', '.join(sorted(articles))})" * bool(articles))
    return "; ".join(cells)


def _ranges(numbers: Iterable[int]) -> str:
    """1, 2, 4, 5, 6 → 1, 2, 4–6"""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _traces(known: Features, feature: str) -> str:
    if feature in known.every_trace:
        return f"all: {known.every_trace[feature]}"
    gaps = known_gaps()
    shown = sorted(scenario for scenario, ids in known.traces.items() if feature in ids)
    return ", ".join(f"{name} (differs: {gaps[name]})" if name in gaps else name for name in shown)


# -- what must hold -----------------------------------------------------------------------------------------------


def mistakes(known: Features, marks: Marks) -> list[str]:
    """Inconsistencies between the features, the marks and the traces, as sentences."""
    speakers: dict[str, Iterable[str]] = {
        f"marks of {', '.join(tests)}": [id_] for id_, tests in marks.tests.items()
    }
    speakers |= {table: getattr(known, table) for table in (*UNFINISHED, "every_trace")}
    speakers |= {f"trace {scenario}": ids for scenario, ids in known.traces.items()}
    found = [
        f"no feature {id_}: {who}"
        for who, ids in speakers.items()
        for id_ in ids
        if id_ not in known.features
    ]
    for id_ in known.features:
        if id_[0] not in known.areas:
            found.append(f"{id_} has no area")
        states = [state for state in UNFINISHED if id_ in getattr(known, state)] or ["supported"]
        if len(states) > 1:
            found.append(f"{id_} is at once {' and '.join(STATES[state] for state in states)}")
        if states != ["not_yet"] and not marks.tests.get(id_):
            found.append(f"{id_} is {STATES[states[0]]}, but no test shows it")
    recorded = {path.stem for path in RECORDED.glob("*.jsonl")}
    found += [f"trace {scenario} has no features" for scenario in sorted(recorded - known.traces.keys())]
    found += [f"no trace {scenario}" for scenario in sorted(known.traces.keys() - recorded)]
    return found


if __name__ == "__main__":
    if unknown := [feature for feature in sys.argv[1:] if feature not in features().features]:
        sys.exit(f"no feature {', '.join(unknown)}: there are {', '.join(features().features)}")
    print(
        *dict.fromkeys(name for feature in sys.argv[1:] for name in marked().tests.get(feature, ())), sep="\n"
    )
