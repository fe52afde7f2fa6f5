"""Columns of texts that repeat, compared by number. Written out, they may have more than the 2 GiB that a column of Arrow holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def is_in(column: pa.ChunkedArray, texts: Iterable[str]) -> pa.ChunkedArray:
    """Whether each value of a column (dictionaries of texts, without null) is one of the texts."""
    wanted = pa.array([*texts], pa.string())
    chunks = [pc.take(pc.is_in(chunk.dictionary, wanted), chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.bool_())


def numbered(column: pa.ChunkedArray) -> tuple[list[str], np.ndarray[Any, Any]]:
    """The texts of a column, and for each row which of them it has; −1: none."""
    known: dict[str, int] = {}
    rows = [np.zeros(0, np.int32)]
    for chunk in column.chunks:
        places = [known.setdefault(text, len(known)) for text in chunk.dictionary.to_pylist()]
        rows.append(np.array([*places, -1], np.int32)[chunk.indices.fill_null(-1).to_numpy()])
    return [*known], np.concatenate(rows)


def ranks_of(texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """The place of each text in their order. One more at the end is for none: −1."""
    found = np.full(len(texts) + 1, -1, np.int32)
    found[sorted(range(len(texts)), key=texts.__getitem__)] = np.arange(len(texts))
    return found


def ranks(column: pa.ChunkedArray) -> pa.Array:
    """Numbers that are in the order of a column's texts. A null stays null."""
    texts, rows = numbered(column)
    return pa.array(ranks_of(texts)[rows], mask=rows < 0)
