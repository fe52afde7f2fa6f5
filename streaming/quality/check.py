"""The full suites over a command log or an output folder: kernels and Great Expectations side by side."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from schemas import commands as c
from streaming.quality.data_docs import Page
from streaming.quality.gate import INPUTS, Gate
from streaming.quality.inputs import KINDS, RECORD, to_arrays
from streaming.quality.kernels import CompiledSuite
from streaming.quality.outputs import OUTPUTS, OutputRules
from streaming.quality.suites import Suite, read_suites

MALFORMED = "malformed"
"""The rule that a record breaks whose value is no command: the decoder's, not a suite's."""

_EXAMPLES = 3


class NothingToCheck(ValueError):
    """A folder is neither a log nor what a replay or a run wrote."""


class Subject(NamedTuple):
    """Rows of one kind and their rules. `keys`: the columns that name a row."""

    suite: Suite
    rules: CompiledSuite
    table: pa.Table
    keys: tuple[str, ...]


class Checked(NamedTuple):
    """What became of a suite: `broken`, rows by rule, as the kernels count them; `examples`, in words, by rule;
    `agrees`: Great Expectations counts the same."""

    suite: Suite
    rows: int
    broken: dict[str, int]
    examples: dict[str, list[str]]
    agrees: bool
    page: Page


class Report(NamedTuple):
    """All suites that had rows, and what else there is to say: records that are no command, by reason, and what the
    query quarantined, by rule."""

    what: str
    checked: list[Checked]
    malformed: dict[str, int]
    quarantined: dict[str, int]

    @property
    def holds(self) -> bool:
        return not self.malformed and all(each.agrees and not each.broken for each in self.checked)


def check(path: Path, progress: Callable[[str], None] = lambda _: None) -> Report:
    """Everything in `path`: a command log, or the folder of a replay or of ``magnetar run --store``.

    Raises `NothingToCheck`, `FileNotFoundError`, `streaming.log.files.LogError`, `SuiteError`.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such log or folder")
    malformed: Counter[str] = Counter()
    quarantined: dict[str, int] = {}
    progress("reading")
    if path.is_dir() and (path / "tables").is_dir():
        subjects, what = list(of_outputs(path)), "output rows"
        for subject in subjects:
            if subject.suite.kind == "QUARANTINED":
                counts = subject.table["rule"].value_counts().to_pylist()
                quarantined = {str(each["values"]): int(each["counts"]) for each in counts}
    elif path.is_dir() and not any(path.rglob("*.parquet")):
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
    """A log's commands by kind. What is no command is counted in `malformed`, by reason."""
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


def _check(gx: Any, subject: Subject) -> Checked:
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
    # Great Expectations turns the columns that name a row into objects: only where rows are to be named.
    validated = gx.validate(
        suite, table, index=[name for name in index if name not in columns] if broken else ()
    )
    agrees = {rule: count for rule, count in validated.counts.items() if count} == broken
    page = Page(suite.name, suite.meta.get("about", ""), len(table), broken, validated.result)
    return Checked(suite, len(table), broken, examples, agrees, page)
