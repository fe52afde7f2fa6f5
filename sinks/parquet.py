"""How Magnetar's Parquet files are encoded.

Measured on 62,500 entries with 100 B of payload (pyarrow 26, one core; JSON-like payloads / random bytes): without
compression 17 ms and 6.6 MB; lz4 14 ms and 1.7 / 6.6 MB; zstd-1 17–23 ms and 0.9 / 6.5 MB. Dictionaries for every column
(pyarrow's default) cost 5 ms and 10 % of size more; deltas for integers cost nothing and save 1 to 13 %. A checksum a
page: 0.1 % of size at most (0.8 % of very small files), no time that could be measured, written or read.
"""

from typing import Any, Literal

import pyarrow as pa

Compression = Literal["lz4", "zstd"]
"""lz4 for what is soon written again (segments), zstd (level 1) for what stays: half the bytes, twice the time."""


def options(schema: pa.Schema, compression: Compression) -> dict[str, Any]:
    """Keyword arguments for `pyarrow.parquet.ParquetWriter`: integers as deltas (identities, times and positions
    mostly count up), text by dictionary (names repeat), bytes as they are (payloads don't)."""
    integers = [f.name for f in schema if pa.types.is_integer(f.type)]
    return {
        "compression": compression,
        "compression_level": 1 if compression == "zstd" else None,
        "use_dictionary": [f.name for f in schema if pa.types.is_string(f.type)],
        "column_encoding": dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        # A flipped bit in a payload that is stored as it is would not be noticed otherwise.
        "write_page_checksum": True,
        # Without the Arrow schema inside, binary and large_binary are one type to every reader.
        "store_schema": False,
    }
