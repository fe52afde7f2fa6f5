"""Writes the expectation suites in ``schemas/expectations``, from `schemas.rules` and the types of commands and effects.

They are in the format of Great Expectations, for whoever reads them; the gate compiles them to kernels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pyarrow as pa

from schemas.commands.parts import ServerError
from schemas.outputs import IDENTITY, OUTPUT
from schemas.records import RECORD as RECORDS
from schemas.rules import INPUT_RULES, NOT_BELOW, OUTPUT_KINDS, OUTPUT_RULES, RECORD_RULES, Rule
from sinks.tables import TABLES
from streaming.quality.inputs import KINDS, PUBLISH, RECORD, columns_of
from streaming.quality.suites import FOLDER

_ABOUT = {
    PUBLISH: "The short form of publishing, which has no `command`.",
    RECORD: "What holds for every record, whatever its command.",
}


def suites() -> dict[Path, str]:
    """The text of each file, by its path below ``schemas/expectations``."""
    found = {}
    for kind, name in KINDS.items():
        types = {column: each.type for column, each in columns_of(kind).items()}
        rules = [expectation for rule in INPUT_RULES for expectation in _of(rule, name, types)]
        found[Path("inputs") / f"{name}.json"] = _text(
            f"input.{name}", _ABOUT.get(name) or _about(name), rules
        )
    topic = {"topic": RECORDS.field("topic").type}
    rules = [expectation for rule in RECORD_RULES for expectation in _of(rule, RECORD, topic)]
    found[Path("inputs") / f"{RECORD}.json"] = _text(f"input.{RECORD}", _ABOUT[RECORD], rules)
    for name, effect in OUTPUT_KINDS.items():
        about = f"What every row of kind {name} is. A row that isn't is a mistake of Magnetar's."
        found[Path("outputs") / f"{name}.json"] = _text(f"output.{name}", about, _of_rows(name, effect))
    return found


def write() -> None:
    """Write the files, and remove those of kinds that are no more."""
    found = suites()
    for path in FOLDER.rglob("*.json"):
        if path.relative_to(FOLDER) not in found:
            path.unlink()
    for path, text in found.items():
        (FOLDER / path).write_text(text)


def _about(kind: str) -> str:
    return f"Values of {kind} beyond their types. What the broker answers with an error is no matter of these rules."


def _of_rows(kind: str, effect: type[Any]) -> Iterator[dict[str, Any]]:
    hints = get_type_hints(effect)
    for column in [*IDENTITY, "clock", *effect._fields]:
        if column in effect._fields and column not in TABLES[kind].names:
            continue  # it is in the ledger store, and so are its rules
        if column in hints and type(None) not in (hints[column], *get_args(hints[column])):
            yield _expectation(
                "values_to_not_be_null", f"{column}_given", "this kind always has it", column=column
            )
        if column == "error":
            why = "a client knows the protocol's errors only"
            yield _expectation(
                "values_to_be_in_set", "error_known", why, column=column, value_set=[*get_args(ServerError)]
            )
        for rule in OUTPUT_RULES:
            if rule.column == column:
                yield from _of(rule, kind, {column: OUTPUT.field(column).type})
    for first, second, why, kinds in NOT_BELOW:
        if kind in kinds:
            yield _expectation(
                "pair_values_a_to_be_greater_than_b",
                f"{first}_not_below_{second}",
                why,
                column_A=first,
                column_B=second,
                or_equal=True,
                ignore_row_if="either_value_is_missing",
            )


def _of(rule: Rule, kind: str, types: dict[str, pa.DataType]) -> Iterator[dict[str, Any]]:
    """The expectation of a rule, if the kind has its column."""
    if rule.column not in types or (rule.kinds is not None and kind not in rule.kinds):
        return
    if rule.form is not None:
        yield _expectation(
            "values_to_match_regex", f"{rule.column}_form", rule.why, column=rule.column, regex=rule.form
        )
        return
    is_text = pa.types.is_string(types[rule.column])
    bounds = {"min_value": rule.least, "max_value": rule.most}
    yield _expectation(
        "value_lengths_to_be_between" if is_text else "values_to_be_between",
        f"{rule.column}_{'length' if is_text else 'range'}",
        rule.why,
        column=rule.column,
        **{name: bound for name, bound in bounds.items() if bound is not None},
    )


def _expectation(what: str, rule: str, why: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_column_{what}", "kwargs": kwargs, "meta": {"rule": rule}, "notes": why}


def _text(name: str, about: str, rules: Iterable[dict[str, Any]]) -> str:
    suite = {"name": name, "meta": {"about": about}, "expectations": list(rules)}
    return json.dumps(suite, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    write()
