"""What a fold is given of some records before it carries them out: their commands, and the plain publishes among them as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import ge
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.commands import Decoded, Refused
from schemas.units import LATEST_TIME
from streaming.fold.plain_layout import PlainPublishes, plain_publishes
from streaming.fold.publishes import (
    PublishColumns,
    plain_columns,
    publish_columns,
    send_columns,
    within_stretches,
)
from streaming.fold.record_fold import RecordFold
from streaming.fold.records import Records
from streaming.quality.gate import passes


class ReadRecords(NamedTuple):
    """Records, and their commands: None for plain publishes that were read by column. `columns`: of the plain ones, None if these are too
    few, or can't be folded by column."""

    records: Records
    commands: list[Decoded | None]
    columns: PublishColumns | None


def read(
    fold: RecordFold, records: Records, aside: Mapping[int, Refused], *, delivers: bool = False
) -> ReadRecords:
    """Read records for a fold. `aside`: why some are quarantined unread, by offset. `delivers`: ACKs and FLOWs may be folded together with
    publishes. Raises `FoldError`."""
    plain = _plain_publishes(fold, records, aside)
    commands = _commands(fold, records, plain, aside)
    others = within_stretches(commands) if delivers else []
    return ReadRecords(records, commands, _columns(fold, records, commands, plain, aside, others))


def _plain_publishes(
    fold: RecordFold, records: Records, aside: Mapping[int, Refused]
) -> PlainPublishes | None:
    """Those among the records that were read by column and that the gate passes."""
    plain = None if aside else plain_publishes(records.values)
    if plain is None:
        return None
    sizes = pc.binary_length(plain.payloads)
    ids = pa.array(plain.sequence_ids)
    return plain if passes(fold.judge, records.topics, plain.names, ids, sizes) else None


def _commands(
    fold: RecordFold, records: Records, plain: PlainPublishes | None, aside: Mapping[int, Refused]
) -> list[Decoded | None]:
    """The commands of the records, None for plain publishes that were read by column."""
    if plain is None:
        return list(fold.judged(records, aside))
    mask = np.ones(len(records.offsets), bool)
    mask[plain.rows] = False
    return fold.judged_where(records, aside, mask.tolist(), repeat(None))


def _columns(
    fold: RecordFold,
    records: Records,
    commands: Sequence[Decoded | None],
    plain: PlainPublishes | None,
    aside: Mapping[int, Refused],
    others: Sequence[int],
) -> PublishColumns | None:
    offsets, last = records.offsets, fold.last
    if (
        (aside and not aside.keys().isdisjoint(offsets))
        or max(records.timestamps) > LATEST_TIME
        or any(map(ge, offsets, offsets[1:]))
        or (last is not None and offsets[0] <= last)
    ):
        return None
    coordinates = offsets, records.timestamps, records.topics
    clock = fold.broker.clock
    if plain is not None:
        return plain_columns(*coordinates, plain, clock, others)
    decoded: Any = commands
    found = publish_columns(*coordinates, decoded, clock, others)
    return found or send_columns(*coordinates, decoded, clock, others)
