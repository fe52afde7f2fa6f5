"""The output suites: rules for the output rows of each kind. A row that breaks one shows a bug in Magnetar.

Such a row is not held back, because its effect has already happened in the state and perhaps in the store, and a client
may wait for it. The row goes on, and the broken rule is reported.
"""

from collections import Counter
from functools import cache
from pathlib import Path

from schemas.outputs import SCHEMAS, Rows
from streaming.quality.kernels import CompiledSuite, compile_suite
from streaming.quality.suites import FOLDER, SuiteError, read_suites

OUTPUTS = FOLDER / "outputs"

_AT_ONCE = 1 << 16
"""Rows that are checked together."""


class OutputRules:
    """The compiled output suites, by kind."""

    def __init__(self, folder: Path = OUTPUTS) -> None:
        """Raises `SuiteError` with the name of a suite that is missing or can't be compiled."""
        suites = read_suites(folder)
        if wrong := suites.keys() ^ SCHEMAS.keys():
            raise SuiteError(f"output suites and kinds of rows differ: {', '.join(sorted(wrong))}")
        self.kinds: dict[str, CompiledSuite] = {
            kind: compile_suite(suites[kind], {field.name: field.type for field in schema})
            for kind, schema in SCHEMAS.items()
        }

    def broken(self, rows: Rows) -> dict[str, int]:
        """How many of `rows` break each rule, without rules that hold."""
        counts: Counter[str] = Counter()
        for kind, table in rows.items():
            suite = self.kinds[kind]
            # Not all at once, because a million rows may be mapped from a file.
            for batch in table.select([*suite.columns]).to_batches(max_chunksize=_AT_ONCE):
                columns = dict(zip(suite.columns, batch.columns, strict=True))
                counts.update(suite.counts(suite.masks(columns, len(batch))))
        return dict(counts)


@cache
def output_rules() -> OutputRules:
    """The rules of Magnetar's own suites, compiled once per process. Raises `SuiteError`."""
    return OutputRules()
