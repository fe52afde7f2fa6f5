"""Checks a command log or an output folder with all suites, by the kernels and by Great Expectations."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from schemas import commands as c
from sinks.replayed import check_whole
from streaming.log.files import has_lines
from streaming.quality.column_gate import Gate
from streaming.quality.data_docs import SuitePage
from streaming.quality.inputs import KINDS, RECORD, to_arrays
from streaming.quality.kernels import CompiledSuite
from streaming.quality.outputs import OUTPUTS, OutputRules
from streaming.quality.suites import INPUTS, Suite, read_suites

_EXAMPLES = 3


class NothingToCheck(ValueError):
    """The folder is neither a log nor the output of a replay or a run."""


class Subject(NamedTuple):
    """Rows of one kind and their rules. `keys`: the columns that identify a row."""

    suite: Suite
    rules: CompiledSuite
    table: pa.Table
    keys: tuple[str, ...]


class SuiteResult(NamedTuple):
    """The result of a suite. `broken`: the number of rows per broken rule, by the kernels; `examples`: descriptions of such
    rows per rule; `agrees`: whether Great Expectations has the same counts."""

    suite: Suite
    rows: int
    broken: dict[str, int]
    examples: dict[str, list[str]]
    agrees: bool
    page: SuitePage


class Report(NamedTuple):
    """The results of all suites with rows, the malformed records by reason, and the quarantined records by rule."""

    what: str
    checked: list[SuiteResult]
    malformed: dict[str, int]
    quarantined: dict[str, int]

    @property
    def holds(self) -> bool:
        """Whether every rule holds, and the kernels agree with Great Expectations."""
        return not self.malformed and all(each.agrees and not each.broken for each in self.checked)


def check(path: Path, progress: Callable[[str], None] = lambda _: None) -> Report:
    """Check everything in `path`: a command log, or the folder of a replay or of ``magnetar run --store``.

    Raises `NothingToCheck`, `FileNotFoundError`, `streaming.log.files.LogError`, `SuiteError`, and `Damaged`
    for a replay that is not whole.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such log or folder")
    malformed: Counter[str] = Counter()
    quarantined: dict[str, int] = {}
    progress("reading")
    check_whole(path)
    if path.is_dir() and (path / "tables").is_dir():
        subjects, what = list(of_outputs(path)), "output rows"
        for subject in subjects:
            if subject.suite.kind == "QUARANTINED":
                counts = subject.table["rule"].value_counts().to_pylist()
                quarantined = {str(each["values"]): int(each["counts"]) for each in counts}
    elif path.is_dir() and not has_lines(path) and not any(path.rglob("*.parquet")):
        raise NothingToCheck(
            f"{path}: expected a command log, or a folder with tables/ (of a replay or a run)"
        )
    else:
        subjects, what = list(of_log(path, malformed)), "commands"
    progress("starting Great Expectations")
    from streaming.quality.gx import GreatExpectations

    gx = GreatExpectations()
    checked = []
    for subject in subjects:
        progress(subject.suite.name)
        checked.append(_check(gx, subject))
    return Report(what, checked, dict(malformed), quarantined)


def of_log(path: Path, malformed: Counter[str]) -> Iterator[Subject]:
    """A log's commands by kind. Counts other records in `malformed`, by reason."""
    from streaming.log.files import read_log

    log = read_log(path)
    suites, gate = read_suites(INPUTS), Gate()
    index = tuple(name for name in ("partition", "offset") if name in log.column_names) or ("record",)
    if index == ("record",):
        log = log.append_column("record", pa.array(range(len(log)), pa.int64()))
    yield Subject(suites[RECORD], gate.record, log.select([*index, "topic"]), index)
    commands: dict[type[Any], list[Any]] = defaultdict(list)
    rows: dict[type[Any], list[int]] = defaultdict(list)
    for row, value in enumerate(log["value"].to_pylist()):
        try:
            command = c.decode(value)
        except c.MalformedCommand as error:
            malformed[str(error)] += 1
            continue
        commands[type(command)].append(command)
        rows[type(command)].append(row)
    for kind, own in commands.items():
        known = gate.kinds[kind]
        table = pa.table(to_arrays(known.columns, own))
        for name in reversed(index):
            table = table.add_column(0, name, log[name].take(pa.array(rows[kind])))
        yield Subject(suites[KINDS[kind]], known.suite, table, index)


def of_outputs(folder: Path) -> Iterator[Subject]:
    """A folder's output rows by kind."""
    from sinks.tables import TABLES, read_table

    suites, rules = read_suites(OUTPUTS), OutputRules()
    left_out = {"metadata", "payload"}
    for kind, schema in TABLES.items():
        table = read_table(str(folder / "tables"), kind)
        if len(table):
            kept = [name for name in schema.names if name not in left_out or kind == "QUARANTINED"]
            yield Subject(
                suites[kind], rules.kinds[kind], table.select(kept), ("partition", "offset", "ordinal")
            )


def _check(gx: Any, subject: Subject) -> SuiteResult:
    suite, rules, table, index = subject
    columns = {name: table[name].combine_chunks() for name in suite.columns()}
    masks = rules.masks(columns, len(table))
    broken = rules.counts(masks)
    examples: dict[str, list[str]] = {}
    for bit, rule in enumerate(rules.rules):
        if rule.name not in broken or masks is None:
            continue
        rows = [row for row, mask in enumerate(masks.tolist()) if mask >> bit & 1][:_EXAMPLES]
        examples[rule.name] = [
            ", ".join(f"{name} {table[name][row].as_py()}" for name in index)
            + f": {rule.cause({name: columns[name][row].as_py() for name in rule.columns})}"
            for row in rows
        ]
    # Great Expectations turns the key columns into objects, so pass them only if there are broken rows to identify.
    validated = gx.validate(
        suite, table, index=[name for name in index if name not in columns] if broken else ()
    )
    agrees = {rule: count for rule, count in validated.counts.items() if count} == broken
    page = SuitePage(suite.name, suite.meta.get("about", ""), len(table), broken, validated.result)
    return SuiteResult(suite, len(table), broken, examples, agrees, page)
