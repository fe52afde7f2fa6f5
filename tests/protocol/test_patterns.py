"""What the protocol needs beyond Python: patterns of topics, and what clients compress."""

from __future__ import annotations

import re
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import MessageMetadata
from streaming.protocol.frames import NotUncompressed, matches, uncompressed

PARTS = ["a", "b", ".", "*", "+", "?", "|", "(", ")", "[", "]", "^", "$", r"\d", r"\b", r"\pL", "é", "(?i)", "(?m)", "(?=a)", "(?:",
         "{2}", "-", "/", "\n", r"\z", r"\A", r"\Z", r"\1", r"\C", "[[:alpha:]]", "(?P<n>a)"]  # fmt: skip
NAMES = ["", "a", "ab", "aab", "b/a", "é", "a\n", "\na", "A", "a1", "a-b", "$", "日本", "ab\nab"] * 5


@given(st.lists(st.sampled_from(PARTS), max_size=6).map("".join))
def test_a_long_list_and_each_of_its_names_match_alike(pattern: str) -> None:
    """The former is matched with Arrow's RE2, if the process has it."""
    try:
        found = matches(pattern, NAMES)
    except ValueError:
        with pytest.raises(ValueError):
            matches(pattern, NAMES[:1])
        return
    each = [matches(pattern, [name]) for name in NAMES]
    assert each == ([None] * len(NAMES) if found is None else [[one] for one in found])


def test_without_arrow_a_long_list_matches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = pc.match_substring_regex(pa.array(NAMES), "^(?:a.*)$").to_pylist()
    monkeypatch.delitem(sys.modules, "pyarrow.compute")
    assert matches("a.*", NAMES) == expected
    assert True in expected
    assert matches("a(?=b).*", NAMES) is None
    with pytest.raises(ValueError, match=re.escape("unterminated subpattern")):
        matches("a(", NAMES)


@pytest.mark.parametrize(
    ("compression", "codec"), [("LZ4", "lz4_raw"), ("ZSTD", "zstd"), ("SNAPPY", "snappy")]
)
def test_what_clients_compress_is_uncompressed(compression: str, codec: str) -> None:
    payload = b"an order " * 1000
    packed = pa.compress(payload, codec=codec, asbytes=True)

    def metadata(size: int) -> MessageMetadata:
        return MessageMetadata("p", 0, 0, compression=compression, uncompressed_size=size)  # type: ignore[arg-type]

    assert uncompressed(metadata(len(payload)), packed) == payload
    for damaged, size in ((packed, len(payload) - 1), (packed[:-3], len(payload)), (b"\xff" * 20, 1000)):
        with pytest.raises(NotUncompressed):
            uncompressed(metadata(size), damaged)
