"""Wrong arguments of every public function: an error that names the argument, before anything is done."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql
import pytest

import magnetar
from schemas.arguments import COUNTS

LEFT_OUT = {"decode"}
"""It is called for each record."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: each
    for name in magnetar.__all__
    if name not in LEFT_OUT and inspect.isfunction(each := getattr(magnetar, name))
} | {"Timeline": magnetar.Timeline}

PARAMETERS = [
    (name, each)
    for name, function in FUNCTIONS.items()
    for each in inspect.signature(function).parameters.values()
]


class Wrong:
    """Of no type that anything takes."""


class DataFrame(pyspark.sql.DataFrame):
    """Nothing is done with it."""

    def __new__(cls) -> "DataFrame":
        return object.__new__(cls)

    def __init__(self) -> None: ...


class SparkSession:
    """It is taken for one by its name."""


class StrangePath(str):
    """A string all the same."""


SAMPLES = {"str": "x", "str | Path": "x", "str | pathlib.Path": "x", "str | Path | pa.Table": "x", "SparkSession": SparkSession(),
           "Sequence[StateRow]": (), "Scenario | str | Path": "x", "DataFrame": DataFrame()}  # fmt: skip
"""Of the annotations of required parameters, in the functions' modules."""


def call(name: str, parameter: str, value: object) -> None:
    """With one argument, and something fitting for the others that are required."""
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    given = {each.name: sample(each) for each in parameters if each.default is each.empty}
    FUNCTIONS[name](**(given | {parameter: value}))


def sample(parameter: inspect.Parameter) -> object:
    annotation = inspect.formatannotation(parameter.annotation).strip("'")
    return next((found for text, found in SAMPLES.items() if annotation.startswith(text)), "x")


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS, ids=lambda each: getattr(each, "name", each))
def test_a_wrong_type(name: str, parameter: inspect.Parameter) -> None:
    optional = "None" in inspect.formatannotation(parameter.annotation)
    for value in [Wrong(), [Wrong()], {Wrong(): Wrong()}, *([] if optional else [None])]:
        with pytest.raises(TypeError, match=rf"^{name}: {parameter.name} is .* but must be "):
            call(name, parameter.name, value)


@pytest.mark.parametrize(
    ("name", "parameter"), [(name, each.name) for name, each in PARAMETERS if each.name in COUNTS]
)
@pytest.mark.parametrize("value", [0, -1])
def test_a_count_below_one(name: str, parameter: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: {parameter} is {value}, but must be 1 or more"):
        call(name, parameter, value)


PATHS = [(name, each.name) for name, each in PARAMETERS if "Path" in str(each.annotation)]


@pytest.mark.parametrize(("name", "parameter"), PATHS)
def test_an_empty_path(name: str, parameter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be the current folder."""
    monkeypatch.chdir(tmp_path)
    for value in ["", *([["x", ""]] if (name, parameter) == ("whatif", "policies") else [])]:
        with pytest.raises(ValueError, match=rf"^{name}: {parameter} is empty, but must be a path"):
            call(name, parameter, value)
    assert list(tmp_path.iterdir()) == []


def test_every_path_is_one() -> None:
    """A text is a path, or is one of these."""
    texts = {each.name for _, each in PARAMETERS if "str" in str(each.annotation)}
    assert texts - {name for _, name in PATHS} == {
        "topic", "topics", "producer", "at", "kind", "keep", "bootstrap", "app_name", "master", "conf", "trigger", "name", "profile",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parameter"),
    [(name, each.name) for name, each in PARAMETERS if "timedelta" in str(each.annotation)],
)
@pytest.mark.parametrize("value", [timedelta(), timedelta(microseconds=-1)])
def test_a_duration_that_is_none(name: str, parameter: str, value: timedelta) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: {parameter} is .*, but must be more than 0"):
        call(name, parameter, value)


def test_every_count_is_one() -> None:
    """A number is a count, or may be 0 or negative."""
    numbers = {each.name for _, each in PARAMETERS if "int" in str(each.annotation).split(" | ")}
    assert numbers - COUNTS == {"sequence_id", "at", "batch_id"}


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("read_rows", {"kind": ["EXPIRED"]}, r"read_rows: kind is ['EXPIRED'] (of type list), but must be str | None"),
        ("whatif", {"policies": {"a": 1}}, "policies is {'a': 1} (of type dict), but must be str | Path | Sequence["),
        ("whatif", {"policies": [1]}, "policies is [1] (of type list), but must be"),
        ("replay", {"partitions": True}, "partitions is True (of type bool), but must be int | None"),
        ("replay", {"overwrite": "no"}, "overwrite is 'no' (of type str), but must be bool"),
        ("start", {"clock": "sundial"}, "clock is 'sundial' (of type str), but must be FoldClock"),
        ("explain", {"position": (1,)}, "position is (1,) (of type tuple), but must be tuple[int, int] | None"),
        ("explain", {"position": "12"}, "position is '12' (of type str)"),
        ("views", {"topics": "orders"}, "topics is 'orders' (of type str), but must be Collection[str] | None"),
        ("spark_session", {"conf": {"a": 1}}, "conf is {'a': 1} (of type dict), but must be Mapping[str, str] | None"),
        ("read_rows", {"folder": pa.table({"a": list(range(99))})}, "folder is of type Table, but must be str | Path"),
        ("diff", {"befor": "x"}, "diff: got an unexpected keyword argument 'befor'"),
    ],
)  # fmt: skip
def test_what_is_said(name: str, given: dict[str, Any], said: str) -> None:
    ((parameter, value),) = given.items()
    with pytest.raises(TypeError) as refused:
        call(name, parameter, value)
    assert said in str(refused.value)


def test_what_fits(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(
        '{"topic": "persistent://shop/day/orders", "producer": "p", "sequence_id": 0, "payload": "x"}'
    )
    found = magnetar.replay(StrangePath(log), tmp_path / "out", partitions=np.int64(2))  # type: ignore[arg-type]
    assert found.partitions == 2
    assert magnetar.explain(tmp_path / "out", "shop/day/orders", position=[1, 0])[0].text  # type: ignore[arg-type]
