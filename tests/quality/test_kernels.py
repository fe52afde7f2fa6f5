"""Kernels flag the rows that Great Expectations flags; what they can't is refused by name."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.outputs import OUTPUT
from schemas.records import RECORD as RECORDS
from streaming.jobs.replay import replay_in_process
from streaming.quality.check import of_log, of_outputs
from streaming.quality.column_gate import Gate
from streaming.quality.inputs import KINDS, RECORD, columns_of
from streaming.quality.kernels import compile_suite
from streaming.quality.outputs import OUTPUTS, OutputRules
from streaming.quality.suites import INPUTS, Suite, SuiteError, read_suites
from streaming.traces import RECORDED
from streaming.traces.importer import import_traces
from tests.examples import examples
from tests.quality.helpers import edge_table, flags, great_expectations

COLUMNS: dict[str, dict[str, pa.DataType]] = {
    RECORD: {"topic": RECORDS.field("topic").type},
    **{name: {key: column.type for key, column in columns_of(kind).items()} for kind, name in KINDS.items()},
}
ROWS = {name: field.type for name, field in zip(OUTPUT.names, OUTPUT, strict=True)}


@cache
def suites() -> dict[str, Suite]:
    return {suite.name: suite for folder in (INPUTS, OUTPUTS) for suite in read_suites(folder).values()}


def types_of(suite: Suite) -> dict[str, pa.DataType]:
    return COLUMNS[suite.kind] if suite.name.startswith("input.") else ROWS


@pytest.mark.parametrize("name", sorted(suites()))
def test_each_suite_flags_the_same_rows(name: str) -> None:
    suite = suites()[name]
    table = edge_table(suite, types_of(suite))
    found = flags(compile_suite(suite, types_of(suite)), table)
    assert found == great_expectations().flags(suite, table)
    assert all(found.values()), "the table breaks every rule"


def test_recorded_traffic_breaks_no_rule_and_both_say_so(tmp_path: Path) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "out"
    import_traces([RECORDED], log)
    replay_in_process(log, out)
    malformed: Any = {}
    subjects = [*of_log(log, malformed), *of_outputs(out)]
    assert len(subjects) > 30
    assert not malformed
    for suite, rules, table, _ in subjects:
        found = flags(rules, table)
        assert not any(found.values()), suite.name
        assert found == great_expectations().flags(suite, table)


def expectation(type_: str, rule: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": type_, "kwargs": kwargs, "meta": {"rule": rule}, "notes": "so it is"}


BETWEEN = "expect_column_values_to_be_between"
LENGTHS = "expect_column_value_lengths_to_be_between"
PAIR = "expect_column_pair_values_a_to_be_greater_than_b"
EITHER = {"ignore_row_if": "either_value_is_missing", "or_equal": True}
EVERYTHING = [
    expectation("expect_column_values_to_not_be_null", "null", column="a"),
    expectation(BETWEEN, "low", column="a", min_value=-3),
    expectation(BETWEEN, "high", column="a", max_value=2**53 - 1),
    expectation(BETWEEN, "both", column="b", min_value=-1, max_value=1),
    expectation(LENGTHS, "longest", column="s", max_value=3),
    expectation(LENGTHS, "length", column="s", min_value=1, max_value=2),
    expectation("expect_column_values_to_be_in_set", "set", column="s", value_set=["", "a", "ß", "None"]),
    expectation("expect_column_values_to_match_regex", "regex", column="s", regex="^[a-f]"),
    expectation(PAIR, "pair", column_A="a", column_B="b", **EITHER),
]
TYPES = {"a": pa.int64(), "b": pa.int32(), "s": pa.string(), "bytes": pa.binary()}


def suite_of(*expectations: dict[str, Any], name: str = "input.X") -> Suite:
    import msgspec

    return msgspec.convert({"name": name, "meta": {}, "expectations": list(expectations)}, Suite)


integers = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1), st.integers(2**53 - 2, 2**53 + 2))
texts = st.one_of(st.text(max_size=4), st.sampled_from(["None", "nan", "a", "ß", "a\n", "e\u0301"]))
rows = st.tuples(st.none() | integers, st.none() | st.integers(-3, 3), st.none() | texts)


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(rows, min_size=1, max_size=12))
def test_generated_tables(table: list[tuple[Any, ...]]) -> None:
    suite = suite_of(*EVERYTHING)
    columns = pa.table(
        [pa.array(column, TYPES[name]) for name, column in zip("abs", zip(*table, strict=True), strict=True)],
        names=list("abs"),
    )
    assert flags(compile_suite(suite, TYPES), columns) == great_expectations().flags(suite, columns)


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        (expectation("expect_colum_values_to_be_nice", "r", column="a"), "unknown to Great Expectations"),
        (expectation("expect_column_mean_to_be_between", "r", column="a"), "can't be compiled to a kernel"),
        (expectation("expect_column_values_to_be_unique", "r", column="a"), "can't be compiled to a kernel"),
        (expectation(BETWEEN, "r", column="a", min_value=0, mostly=0.9), "with mostly can't be compiled"),
        (expectation(BETWEEN, "r", column="a", min_value=0, strict_min=True), "with strict_min can't"),
        (expectation(BETWEEN, "r", column="a"), "no bounds"),
        (expectation(BETWEEN, "r", column="a", max_value=2**53), "2\\^53"),
        (expectation(BETWEEN, "r", column="a", max_value=0.5), "not an integer"),
        (expectation(BETWEEN, "r", column="b", max_value=2**40), "a bound does not fit int32"),
        (expectation(BETWEEN, "r", column="s", max_value=1), "string, not an integer"),
        (expectation(BETWEEN, "r", column="c", max_value=1), "no column 'c'"),
        (expectation(BETWEEN, "r", max_value=1), "without column"),
        (expectation(LENGTHS, "r", column="bytes", max_value=1), "binary, not a string"),
        (expectation("expect_column_values_to_be_in_set", "r", column="s", value_set=[1]), "not a list of strings"),
        (expectation("expect_column_values_to_match_regex", "r", column="s", regex="x$"), "isn't the same"),
        (expectation("expect_column_values_to_match_regex", "r", column="s", regex="["), "can't be compiled"),
        (expectation(PAIR, "r", column_A="a", column_B="b", **EITHER | {"or_equal": False}), "or_equal true"),
        (expectation(PAIR, "r", column_A="a", column_B="s", **EITHER), "must be integers"),
    ],
)  # fmt: skip
def test_what_has_no_kernel_is_refused_by_name(given_: dict[str, Any], says: str) -> None:
    with pytest.raises(SuiteError, match=f"rule input.X/r: .*{says}"):
        compile_suite(suite_of(EVERYTHING[0], given_), TYPES)


def test_more_rules_than_bits() -> None:
    many = [expectation(BETWEEN, f"r{n}", column="a", min_value=n) for n in range(65)]
    with pytest.raises(SuiteError, match="suite input.X has 65 rules, but at most 64"):
        compile_suite(suite_of(*many), TYPES)


def test_the_64th_rule_has_its_bit() -> None:
    many = [expectation(BETWEEN, f"r{n}", column="a", min_value=n) for n in range(64)]
    table = pa.table({"a": pa.array([62, 63, None], pa.int64())})
    assert flags(compile_suite(suite_of(*many), TYPES), table)["input.X/r63"] == [0]


def test_an_expectation_that_great_expectations_would_drop_is_an_error() -> None:
    suite = suite_of(
        EVERYTHING[0], expectation("expect_nothing_at_all", "r", column="a"), name="input.Dropped"
    )
    with pytest.raises(SuiteError, match="doesn't have input.Dropped/r \\(expect_nothing_at_all\\)"):
        great_expectations().flags(suite, pa.table({"a": [1]}))


class TestFolders:
    """Suites as files."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for file in INPUTS.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        return tmp_path

    def edit(self, folder: Path, kind: str, **fields: Any) -> None:
        file = folder / f"{kind}.json"
        suite = json.loads(file.read_text())
        suite["expectations"][0] |= fields
        file.write_text(json.dumps(suite))

    def test_an_unknown_expectation_stops_the_start(self, folder: Path) -> None:
        self.edit(folder, "FLOW", type="expect_permits")
        with pytest.raises(SuiteError, match="rule input.FLOW/connection_length: expect_permits is unknown"):
            Gate(folder)

    def test_a_field_that_the_command_has_not(self, folder: Path) -> None:
        self.edit(folder, "FLOW", kwargs={"column": "permits", "max_value": 1})
        with pytest.raises(SuiteError, match="input.FLOW/connection_length: there is no column 'permits'"):
            Gate(folder)

    def test_a_missing_suite(self, folder: Path) -> None:
        (folder / "SEEK.json").unlink()
        with pytest.raises(SuiteError, match="differ: SEEK"):
            Gate(folder)

    def test_a_suite_of_no_kind(self, folder: Path) -> None:
        suite = json.loads((folder / "SEEK.json").read_text()) | {"name": "input.PEEK"}
        (folder / "PEEK.json").write_text(json.dumps(suite))
        with pytest.raises(SuiteError, match="differ: PEEK"):
            Gate(folder)

    @pytest.mark.parametrize("text", ["", "{}", '{"name": "input.SEEK", "meta": {}, "expectations": [{}]}'])
    def test_no_suite(self, folder: Path, text: str) -> None:
        (folder / "SEEK.json").write_text(text)
        with pytest.raises(SuiteError, match="SEEK.json"):
            Gate(folder)

    def test_another_name(self, folder: Path) -> None:
        (folder / "SEEK.json").write_bytes((folder / "FLOW.json").read_bytes())
        with pytest.raises(SuiteError, match="SEEK.json is named 'input.FLOW'"):
            Gate(folder)

    def test_two_rules_of_one_name(self, folder: Path) -> None:
        self.edit(folder, "FLOW", meta={"rule": "consumer_id_range"})
        with pytest.raises(SuiteError, match="input.FLOW: two rules have the same name"):
            Gate(folder)

    def test_no_suites(self, tmp_path: Path) -> None:
        with pytest.raises(SuiteError, match="no expectation suites"):
            OutputRules(tmp_path)
