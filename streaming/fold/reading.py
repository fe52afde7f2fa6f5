"""What a fold is given of some records before it carries them out: their commands, and the plain publishes and ACKs among them as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import ge
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.commands import Ack, Decoded, Publish, Refused
from schemas.units import LATEST_TIME
from streaming.fold.plain_layout import PlainValues, plain_values
from streaming.fold.publishes import (
    PublishColumns,
    acks_of,
    plain_columns,
    publish_columns,
    send_columns,
    within_stretches,
)
from streaming.fold.record_fold import RecordFold
from streaming.fold.records import Records
from streaming.quality.gate import passes


class ReadRecords(NamedTuple):
    """Records, and their commands: None for plain publishes and ACKs that were read by column. `columns`: of the plain ones, None if these are
    too few, or can't be folded by column."""

    records: Records
    commands: list[Decoded | None]
    columns: PublishColumns | None


def read(
    fold: RecordFold, records: Records, aside: Mapping[int, Refused], *, delivers: bool = False
) -> ReadRecords:
    """Read records for a fold. `aside`: why some are quarantined unread, by offset. `delivers`: ACKs and FLOWs may be folded together with
    publishes. Raises `FoldError`."""
    plain = _plain_values(fold, records, aside, delivers)
    commands = _commands(fold, records, plain, aside)
    others = within_stretches(commands, plain.acks) if delivers else []
    return ReadRecords(records, commands, _columns(fold, records, commands, plain, aside, others))


def _plain_values(
    fold: RecordFold, records: Records, aside: Mapping[int, Refused], with_acks: bool
) -> PlainValues:
    """Those among the records that were read by column and that the gate passes."""
    if aside:
        return PlainValues()
    publishes, acks = plain_values(records.values, with_acks=with_acks)
    if publishes is not None:
        ids, sizes = pa.array(publishes.sequence_ids), pc.binary_length(publishes.payloads)
        columns = {"producer": publishes.names}, {"sequence_id": ids, "payload.size": sizes}
        if not passes(fold.judge, records.topics, Publish, *columns):
            publishes = None
    if acks is not None:
        columns = {"connection": acks.names}, {"consumer_id": pa.array(acks.consumer_ids)}
        if not passes(fold.judge, records.topics, Ack, *columns):
            acks = None
    return PlainValues(publishes, acks)


def _commands(
    fold: RecordFold, records: Records, plain: PlainValues, aside: Mapping[int, Refused]
) -> list[Decoded | None]:
    """The commands of the records, None for those that were read by column."""
    known = [each.rows for each in plain if each is not None]
    if not known:
        return list(fold.judged(records, aside))
    mask = np.ones(len(records.offsets), bool)
    mask[np.concatenate(known)] = False
    return fold.judged_where(records, aside, mask.tolist(), repeat(None))


def _columns(
    fold: RecordFold,
    records: Records,
    commands: Sequence[Decoded | None],
    plain: PlainValues,
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
    if plain.publishes is not None:
        found = plain_columns(*coordinates, plain.publishes, clock, others)
    else:
        found = publish_columns(*coordinates, commands, clock, others)
        found = found or send_columns(*coordinates, commands, clock, others)
    return found if found is None or plain.acks is None else found._replace(acks=acks_of(plain.acks))
