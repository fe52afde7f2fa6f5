"""The reference in `docs/` says what the code says."""

import pytest

from tools.reference import DOCS, FILES


@pytest.mark.parametrize("file", FILES)
def test_it_is_fresh(file: str) -> None:
    assert (DOCS / file).read_text() == FILES[file](), "run `make docs`"
