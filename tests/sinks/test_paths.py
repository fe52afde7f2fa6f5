import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sinks.paths import escape

NAMES = st.text(max_size=400) | st.text(st.sampled_from("./%_hH~\0Kk\u212a\ud800"), max_size=8)


@given(NAMES)
@example("")
@example(".")
@example("..")
@example("../../etc/passwd")
@example("/etc/passwd")
@example("a\0b")
@example("C:\\nul")
@example("\ud800")
@example("_temporary")
@example("-rf")
@example("~root")
@example("a\n\r\x1b[31m\x7f")
@example("x" * 10_000)
@example("é" * 10_000)
def test_a_name_is_one_plain_component(name: str) -> None:
    escaped = escape(name)
    assert escaped
    assert len(escaped) <= 200
    assert escaped.isascii()
    assert not set(escaped) & set('/\\\0:*?"<>|= \n')
    assert escaped.isprintable()
    assert len(f"{escaped}.parquet".encode()) <= 255
    assert escaped[0] not in "._"
    root = Path("/root")
    assert (root / escaped / "x").resolve().parent.parent == root


@given(NAMES, NAMES)
@example("K", "\u212a")  # the Kelvin sign
@example("\u00e9", "e\u0301")
@example("orders", "Orders")
@example("\u0430", "a")  # Cyrillic
@example("\uff0e\uff0e\uff0f", "../")  # full width
@example("straße", "strasse")
@example("%2E", ".")
@example("%2f", "%2F")
@example("%4F", "O")
@example("%", "")
@example("x" * 201, "x" * 202)
@example("X" * 10_000, "x" * 10_000)
def test_two_names_never_share_a_path(one: str, other: str) -> None:
    """Nor on a file system that folds case (macOS) or normalises."""
    paths = [unicodedata.normalize("NFKC", escape(name)).casefold() for name in (one, other)]
    assert (paths[0] == paths[1]) == (one == other)


def test_the_hashed_form_of_a_long_name_is_no_other_name_s_path() -> None:
    long = "persistent://public/default/" + "x" * 500
    assert escape(escape(long)) != escape(long)
    assert unicodedata.is_normalized("NFD", escape(long))


@pytest.mark.parametrize("name", ["orders-1.x_y~z", "a"])
def test_plain_names_stay_readable(name: str) -> None:
    assert escape(name) == name
