"""The brokers' states at the end of a replay as a file, which can be read without Spark."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from streaming.fold import StateRow

FILE = "states.parquet"


def write_states(folder: Path, states: list[StateRow]) -> None:
    """Write the states below a folder, one row per ingress partition, in the columns of `StateRow`."""
    folder.mkdir(parents=True, exist_ok=True)
    types = (pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.large_binary())
    schema = pa.schema(list(zip(StateRow._fields, types, strict=True)))
    table = pa.Table.from_pylist([each._asdict() for each in states], schema)
    pq.write_table(table, folder / FILE, compression="zstd", row_group_size=1)


def read_states(folder: Path) -> list[StateRow] | None:
    """The states that `write_states` wrote, or None if there are none."""
    if not (folder / FILE).is_file():
        return None
    return [StateRow(**row) for row in pq.read_table(folder / FILE).to_pylist()]
