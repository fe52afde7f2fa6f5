"""The expectation suites in ``schemas/expectations``, the single source of the rules.

A file is a suite in the format of Great Expectations: ``name``, ``meta``, ``expectations``. Each expectation has ``type``,
``kwargs``, ``meta.rule`` (its name within the suite) and ``notes`` (the reason for the rule). A broken rule is reported as
``<suite>/<rule>``, such as ``input.SUBSCRIBE/subscription_length``.

* ``inputs/<KIND>.json``: the fields of a command, see `streaming.quality.inputs`; ``inputs/RECORD.json``: every record.
* ``outputs/<KIND>.json``: the columns of a kind of output row.

This module only reads the files.
"""

from pathlib import Path
from typing import Any

import msgspec

from schemas.undecodable import UNDECODABLE

FOLDER = Path(__file__).parents[2] / "schemas" / "expectations"
INPUTS = FOLDER / "inputs"


class SuiteError(ValueError):
    """A suite can't be used. The text names the suite, the rule, and what is wrong."""


class Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of an expectation that Magnetar defines."""

    rule: str


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule in the format of Great Expectations."""

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
        """The kind of command or row, from the name: ``input.SEND`` is about SEND."""
        return self.name.partition(".")[2]

    def rules(self) -> list[str]:
        """The full names of the rules, in order."""
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
        """Keyword arguments for Great Expectations' ``ExpectationSuite``."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


def read_suites(folder: Path) -> dict[str, Suite]:
    """The suites of a folder by kind. Raises `SuiteError` for a file that isn't one."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise SuiteError(f"no expectation suites in {folder}: is the installation of Magnetar complete?")
    suites = {}
    for file in files:
        try:
            suite = msgspec.json.decode(file.read_bytes(), type=Suite)
        except UNDECODABLE as error:
            raise SuiteError(f"expectation suite {file}: {error}") from None
        if suite.kind != file.stem:
            raise SuiteError(
                f"expectation suite {file} is named {suite.name!r}: expected a name ending in .{file.stem}"
            )
        if len(set(suite.rules())) < len(suite.expectations):
            raise SuiteError(f"expectation suite {suite.name}: two rules have the same name")
        suites[suite.kind] = suite
    return suites
