"""How Magnetar's Parquet files are encoded.

Measured with 62,500 entries of 100 B payload (pyarrow 26, one core; JSON-like payloads / random bytes): no compression
17 ms and 6.6 MB; lz4 14 ms and 1.7 / 6.6 MB; zstd-1 17–23 ms and 0.9 / 6.5 MB. Dictionaries for every column (pyarrow's
default) add 5 ms and 10 % of size. Deltas for integers take no time and save 1 to 13 %. A checksum per page adds at most
0.1 % of size (0.8 % in very small files) and no measurable time to writes or reads.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from sinks.s3 import failed
from sinks.storage import Damaged, Storage, plain

if TYPE_CHECKING:
    import pyarrow.dataset as ds

Compression = Literal["lz4", "zstd"]
"""lz4 for files that are soon rewritten (segments), zstd (level 1) for files that stay: half the size, twice the time."""


@cache
def _checked() -> "ds.ParquetFileFormat":
    """The format of files whose pages are compared with their checksums."""
    import pyarrow.dataset as ds  # it imports pandas, which takes longer than many commands

    scan = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    return ds.ParquetFileFormat(default_fragment_scan_options=scan)


@contextmanager
def rows_of(where: str, to_do: str | None = None) -> Iterator[None]:
    """Reading output rows in here raises `Damaged` for what Arrow can't read, and an `OSError` that names the file for one that can't
    be opened. `where` names them. `to_do`: what to do then."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError):
            if failed(str(error)) is not None:  # S3 is away, and the file may be whole
                raise
            if error.errno is not None:  # Arrow's text repeats itself, and its error has no name of a file
                raise OSError(error.errno, os.strerror(error.errno), where) from error
        to_do = to_do or "Restore it from a backup, or replay the log again"
        raise Damaged(f"{where} (output rows) is damaged: {plain(error)}. {to_do}") from error


@contextmanager
def fragment(storage: Storage, path: str) -> "Iterator[ds.ParquetFileFragment]":
    """A file of output rows, to be scanned in here. `path`: in the storage. What it raises: see `rows_of`."""
    with rows_of(f"{storage.url}/{path}", storage.restore), storage.open(path) as file:
        yield _checked().make_fragment(file)


def options(schema: pa.Schema, compression: Compression) -> dict[str, Any]:
    """Keyword arguments for `pyarrow.parquet.ParquetWriter`.

    Integers are deltas (identities, times and positions mostly count up), text uses dictionaries (names repeat), and bytes
    are plain (payloads don't repeat).
    """
    integers = [f.name for f in schema if pa.types.is_integer(f.type)]
    return {
        "compression": compression,
        "compression_level": 1 if compression == "zstd" else None,
        "use_dictionary": [f.name for f in schema if pa.types.is_string(f.type)],
        "column_encoding": dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        # Otherwise a flipped bit in an uncompressed payload would go unnoticed.
        "write_page_checksum": True,
        # Without the Arrow schema, readers treat binary and large_binary as one type.
        "store_schema": False,
    }
