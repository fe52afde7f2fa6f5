"""Runs Great Expectations, for the tests, the live check and `magnetar quality`. Never on the hot path.

The import takes seconds and a quarter of a gigabyte, and the library isn't thread-safe. Create one `GreatExpectations`, in
one thread of a process. It runs in memory, sends no telemetry, and leaves the process's warnings unchanged.
"""

import logging
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from streaming.quality.suites import Suite, SuiteError

_INTEGERS = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype()}
"""pandas types in which integers don't become floats next to nulls."""

_SHOWN = 20


class Validated(NamedTuple):
    """Great Expectations' result: how many rows break each rule (0 included), and its own result object."""

    counts: dict[str, int]
    result: Any


class GreatExpectations:
    """Runs suites, with one context and one asset."""

    def __init__(self) -> None:
        os.environ["GX_ANALYTICS_ENABLED"] = "false"
        # Without grpc, the import of Great Expectations ends a process with pyspark silently. Raise an error instead.
        import great_expectations as gx
        import grpc  # type: ignore[import-untyped,unused-ignore]  # noqa: F401

        logging.captureWarnings(False)
        context = gx.get_context(mode="ephemeral")
        variables: Any = context.variables
        variables.progress_bars = {"globally": False, "metric_calculations": False}
        asset = context.data_sources.add_pandas("magnetar").add_dataframe_asset("rows")
        self._batches = asset.add_batch_definition_whole_dataframe("all")
        self._suites: dict[str, Any] = {}

    def validate(self, suite: Suite, table: pa.Table, *, index: Sequence[str] = ()) -> Validated:
        """Validate a table with the columns of the suite and of `index`, which identify rows in the result.

        Raises `SuiteError` if an expectation is unknown or fails to run. Great Expectations wouldn't report this.
        """
        format_: dict[str, Any] = {"result_format": "SUMMARY", "partial_unexpected_count": _SHOWN}
        if index:
            format_["unexpected_index_column_names"] = list(index)
        result = self._run(suite, table.select([*index, *suite.columns()]), format_)
        counts = {
            rule: int(each.result.get("unexpected_count") or 0)
            for rule, each in zip(suite.rules(), result.results, strict=True)
        }
        return Validated(counts, result)

    def flags(self, suite: Suite, table: pa.Table) -> dict[str, list[int]]:
        """The numbers of the rows that break each rule. Raises as `validate` does."""
        result = self._run(suite, table.select(suite.columns()), {"result_format": "COMPLETE"})
        return {
            rule: sorted(each.result.get("unexpected_index_list") or [])
            for rule, each in zip(suite.rules(), result.results, strict=True)
        }

    def _run(self, suite: Suite, table: pa.Table, result_format: dict[str, Any]) -> Any:
        frame = table.to_pandas(types_mapper=_INTEGERS.get)
        result = self._batches.get_batch({"dataframe": frame}).validate(
            self._suite(suite), result_format=result_format
        )
        # Great Expectations sorts its results by column. Keep the order of the rules.
        by_rule = {_rule(each): each for each in result.results}
        result.results = [by_rule[each.meta.rule] for each in suite.expectations]
        for rule, each in zip(suite.rules(), result.results, strict=True):
            if (each.exception_info or {}).get("raised_exception", True):
                raise SuiteError(f"rule {rule}: Great Expectations failed: {each.exception_info}")
            for count in each.result.get("partial_unexpected_counts", ()):
                if count["value"] is pd.NA:  # which its pages compare with ""
                    count["value"] = None
        return result

    def _suite(self, suite: Suite) -> Any:
        from great_expectations import ExpectationSuite

        if suite.name not in self._suites:
            made = ExpectationSuite(**suite.to_gx())
            # Great Expectations drops unknown expectations silently.
            if len(made.expectations) != len(suite.expectations):
                known = {(each.meta or {}).get("rule") for each in made.expectations}
                lost = [each for each in suite.expectations if each.meta.rule not in known]
                names = ", ".join(f"{suite.name}/{each.meta.rule} ({each.type})" for each in lost)
                raise SuiteError(f"Great Expectations doesn't have {names}")
            self._suites[suite.name] = made
        return self._suites[suite.name]


def _rule(result: Any) -> str:
    return str(result.expectation_config.meta["rule"])
