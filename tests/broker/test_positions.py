"""Positions as text: how they are written, and that they are read at one address."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.broker.position import EARLIEST, LATEST, MAX, Position, from_text, from_words

ROOT = Path(__file__).parents[2]
NUMBERS = st.integers(-1, MAX)

OTHERS = {
    "streaming/broker/position.py": "positions",
    "streaming/kafka/client.py": "addresses",
    "streaming/kafka/url.py": "addresses",
    "streaming/log/policy_files.py": "lines of settings",
    "streaming/metrics/browsers.py": "addresses",
    "streaming/metrics/endpoint.py": "addresses",
    "streaming/runtime/jars.py": "artifacts of Maven",
    "streaming/server/server.py": "addresses",
    "streaming/server/websocket/messages.py": "times",
    "streaming/traces/conform.py": "lines of a diff",
}
"""The files that cut text at colons, and what they cut."""


@given(st.builds(Position, NUMBERS, NUMBERS))
def test_a_position_is_read_as_it_is_written(position: Position) -> None:
    assert from_text(str(position)) == position
    for words in ("is null", "with long[] size of 2"):
        assert from_text(f"{position} (ackSet {words})") == position


@given(st.integers(0, 10**18 - 1), st.integers(0, 10**18 - 1))
def test_a_message_is_named_by_its_position(ledger: int, entry: int) -> None:
    assert from_words(f"{ledger}:{entry}") == Position(ledger, entry)


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "3", "3:", ":4", "3:4:5", "3-4", "a:b", " 3:4", "3:4\n", "3: 4", "+3:4", "-1:4", "3:-1", "1_0:4", "3.0:4",
        "٣:4", "3:²", f"{10**18}:1", f"1:{10**18}", "9" * 5_000 + ":1", str(EARLIEST), str(LATEST),
    ],
)  # fmt: skip
def test_what_names_no_message_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected LEDGER:ENTRY, such as 3:42"):
        from_words(text)


def test_positions_are_read_at_one_address() -> None:
    """A new file that cuts text at a colon reads a position with `from_text` or `from_words`, or is listed."""
    found = set()
    for folder in ("magnetar", "schemas", "sinks", "streaming"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                match node:
                    case ast.Call(
                        ast.Attribute(attr="partition" | "rpartition" | "split"), [ast.Constant(":"), *_]
                    ):
                        found.add(file.relative_to(ROOT).as_posix())
    assert found == {*OTHERS}
