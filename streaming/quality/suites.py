"""The expectation suites in ``schemas/expectations``: the one source of the rules.

A file is a suite as Great Expectations writes it: ``name``, ``meta``, ``expectations``; each expectation has ``type``,
``kwargs``, ``meta.rule`` (its name within the suite) and ``notes`` (why there is such a rule). A row that breaks a rule
is told by ``<suite>/<rule>``, as in ``input.SUBSCRIBE/subscription_length``.

* ``inputs/<KIND>.json``: a command's fields, see `streaming.quality.inputs`; ``inputs/RECORD.json``: every record.
* ``outputs/<KIND>.json``: the columns that a kind of output row fills.

This module reads files and knows nothing of what is done with them.
"""

from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parents[2] / "schemas" / "expectations"


class SuiteError(ValueError):
    """A suite can't be used. The text names the file's suite, the rule, and what is wrong."""


class Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is ours in an expectation."""

    rule: str


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule, as Great Expectations has it."""

    type: str
    kwargs: dict[str, Any]
    meta: Meta
    notes: str


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of one kind."""

    name: str
    meta: dict[str, str]
    expectations: list[Expectation]

    @property
    def kind(self) -> str:
        """The kind of command or row, as in the name: ``input.SEND`` is about SEND."""
        return self.name.partition(".")[2]

    def rules(self) -> list[str]:
        """The names under which broken rules are told, in order."""
        return [f"{self.name}/{each.meta.rule}" for each in self.expectations]

    def columns(self) -> list[str]:
        """The columns that the rules read, each once."""
        names = [
            each.kwargs[key]
            for each in self.expectations
            for key in ("column", "column_A", "column_B")
            if key in each.kwargs
        ]
        return list(dict.fromkeys(names))

    def to_gx(self) -> dict[str, Any]:
        """For ``ExpectationSuite(**…)`` of Great Expectations."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


def read_suites(folder: Path) -> dict[str, Suite]:
    """The suites of a folder by kind. Raises `SuiteError` for a file that isn't one."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise SuiteError(f"no expectation suites in {folder}: is Magnetar installed whole?")
    suites = {}
    for file in files:
        try:
            suite = msgspec.json.decode(file.read_bytes(), type=Suite)
        except msgspec.MsgspecError as error:
            raise SuiteError(f"expectation suite {file}: {error}") from None
        if suite.kind != file.stem:
            raise SuiteError(
                f"expectation suite {file} is named {suite.name!r}: expected a name ending in .{file.stem}"
            )
        if len(set(suite.rules())) < len(suite.expectations):
            raise SuiteError(f"expectation suite {suite.name}: two rules have the same name")
        suites[suite.kind] = suite
    return suites
