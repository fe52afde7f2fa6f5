"""The output suites: what every row of a kind is. A row that breaks one of these rules is a mistake of Magnetar's.

So such a row isn't held back: what it tells of has happened, in the state and perhaps in the store, and a client waits
for it. It goes on, and the rule is told.
"""

from functools import cache
from pathlib import Path

from schemas.outputs import SCHEMAS, Rows
from streaming.quality.kernels import CompiledSuite, compile_suite
from streaming.quality.suites import FOLDER, SuiteError, read_suites

OUTPUTS = FOLDER / "outputs"


class OutputRules:
    """The compiled output suites, by kind."""

    def __init__(self, folder: Path = OUTPUTS) -> None:
        """Raises `SuiteError`, by name, if a suite is missing or can't be compiled."""
        suites = read_suites(folder)
        if wrong := suites.keys() ^ SCHEMAS.keys():
            raise SuiteError(f"output suites and kinds of rows differ: {', '.join(sorted(wrong))}")
        self.kinds: dict[str, CompiledSuite] = {
            kind: compile_suite(suites[kind], {field.name: field.type for field in schema})
            for kind, schema in SCHEMAS.items()
        }

    def broken(self, rows: Rows) -> dict[str, int]:
        """How many of `rows` break each rule; rules that hold are left out."""
        counts: dict[str, int] = {}
        for kind, table in rows.items():
            suite = self.kinds[kind]
            columns = {name: table[name].combine_chunks() for name in suite.columns}
            counts |= suite.counts(suite.masks(columns, len(table)))
        return counts


@cache
def output_rules() -> OutputRules:
    """The rules of Magnetar's own suites, compiled once a process. Raises `SuiteError`."""
    return OutputRules()
