"""Bytes that are no value: whoever decodes them expects all that msgspec raises for them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from schemas.undecodable import UNDECODABLE
from tests.test_imports import PACKAGES, ROOT


@pytest.mark.parametrize(
    "value", [b"{", b"", b"1 2", b'"\xff"', b'{"\xff":1}', "\udcff", b"[" * 100_000 + b"]" * 100_000, b"null"]
)
def test_what_is_no_value(value: bytes | str) -> None:
    with pytest.raises(UNDECODABLE):
        msgspec.json.decode(value, type=dict | list | str)


@pytest.mark.parametrize("value", [b"", b"\x91", b"\xa1\xff", b"\x91" * 100_000 + b"\x01", b"\xc1"])
def test_what_is_no_value_in_messagepack(value: bytes) -> None:
    with pytest.raises(UNDECODABLE):
        msgspec.msgpack.decode(value)


def _too_few(tree: ast.AST) -> Iterator[int]:
    """The lines that catch what msgspec's decoders raise, and not what they raise for text that is not UTF-8, or nests too deep."""
    for each in ast.walk(tree):
        if isinstance(each, ast.ExceptHandler) and each.type is not None:
            names = {ast.unparse(name) for name in getattr(each.type, "elts", [each.type])}
            raised = {"msgspec.MsgspecError", "msgspec.DecodeError"} & names
            text = {"UnicodeDecodeError", "UnicodeError", "ValueError", "Exception"} & names
            if raised and not (text and {"RecursionError", "RuntimeError", "Exception"} & names):
                yield each.lineno


def test_who_decodes_expects_text_that_is_not_utf_8() -> None:
    """`UNDECODABLE` has all of it."""
    files = [
        ROOT / "pytest_magnetar.py",
        *(file for name in PACKAGES for file in (ROOT / name).rglob("*.py")),
    ]
    found = [f"{file.relative_to(ROOT)}:{line}" for file in files for line in _too_few(_parsed(file))]
    assert found == []
    assert [*_too_few(ast.parse("try: x\nexcept msgspec.DecodeError: y"))] == [2]
    assert [*_too_few(ast.parse("try: x\nexcept (msgspec.MsgspecError, KeyError): y"))] == [2]


def _parsed(file: Path) -> ast.AST:
    return ast.parse(file.read_bytes())


def test_no_route_has_starlettes_numbers() -> None:
    """They raise for one that is too long, before a handler could answer."""
    files = [file for name in PACKAGES for file in (ROOT / name).rglob("*.py")]
    assert [str(file) for file in files if ":int}" in file.read_text() or ":float}" in file.read_text()] == []
