from datetime import UTC, datetime
from pathlib import Path

import pytest

from schemas.effects import Quarantined, Unsupported
from sinks.base import ForeignFiles
from sinks.quarantine import QUARANTINE, QuarantineSink, read_quarantine
from tests.sinks.helpers import output, receipts, tree


@pytest.mark.feature("J6")
def test_bad_records_keep_their_coordinates_and_their_bytes(tmp_path: Path) -> None:
    sink = QuarantineSink(str(tmp_path))
    rows = output(
        [
            *receipts(1, 0, 1),
            Quarantined("t", "json", "unexpected end", b'{"a"\xff'),
            Unsupported("t", "c", "transactions"),
            Quarantined(None, "schema", "no producer", b""),
        ],
        partition=3,
        offset=40,
        clock=1_700_000_000_123,
    )
    sink.begin(1)
    sink.write(1, 3, rows)
    found = read_quarantine(str(tmp_path))
    assert found.schema.equals(QUARANTINE)
    first, second = found.to_pylist()
    assert first == {
        "partition": 3,
        "offset": 42,
        "ordinal": 0,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
        "topic": "t",
        "rule": "json",
        "cause": "unexpected end",
        "value": b'{"a"\xff',
    }
    assert (second["offset"], second["topic"], second["value"]) == (44, None, b"")
    before = tree(tmp_path)
    sink.write(1, 3, rows)
    assert tree(tmp_path) == before


def test_no_bad_record_no_file(tmp_path: Path) -> None:
    QuarantineSink(str(tmp_path)).write(1, 0, output(receipts(1, 0, 1)))
    assert read_quarantine(str(tmp_path)).num_rows == 0
    assert not tree(tmp_path)


def test_records_of_a_later_batch_are_another_query_s(tmp_path: Path) -> None:
    QuarantineSink(str(tmp_path)).write(5, 0, output([Quarantined(None, "json", "empty", b"")]))
    with pytest.raises(ForeignFiles):
        QuarantineSink(str(tmp_path)).begin(4)
