"""How Magnetar's Parquet files are encoded.

Measured with 62,500 entries of 100 B payload (pyarrow 26, one core; JSON-like payloads / random bytes): no compression
17 ms and 6.6 MB; lz4 14 ms and 1.7 / 6.6 MB; zstd-1 17–23 ms and 0.9 / 6.5 MB. Dictionaries for every column (pyarrow's
default) add 5 ms and 10 % of size. Deltas for integers take no time and save 1 to 13 %. A checksum per page adds at most
0.1 % of size (0.8 % in very small files) and no measurable time to writes or reads.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pyarrow as pa
import pyarrow.dataset as ds

from sinks.storage import Damaged, plain

Compression = Literal["lz4", "zstd"]
"""lz4 for files that are soon rewritten (segments), zstd (level 1) for files that stay: half the size, twice the time."""


CHECKED = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)
"""The format of a data set whose pages are compared with their checksums."""


@contextmanager
def rows_of(where: str) -> Iterator[None]:
    """Reading output rows in here raises `Damaged` for what Arrow can't read. `where` names them."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise Damaged(
            f"{where} (output rows) is damaged: {plain(error)}. Restore it from a copy, or replay the log once more"
        ) from error


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
