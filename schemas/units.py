"""Integers with bounds, and with the unit that their fields are measured in.

A unit is the ``unit`` of a type's ``msgspec.Meta.extra``, from where the reference pages and the JSON Schema take it.
"""

from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta


def unit(name: str) -> Meta:
    """The annotation that gives a type its unit."""
    return Meta(extra={"unit": name})


Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]

EpochMillis = Annotated[Int64, unit("ms since the epoch")]
Seconds64 = Annotated[Int64, unit("s")]
Bytes32 = Annotated[Int32, unit("bytes")]
Messages = Annotated[Int32, unit("messages")]

LATEST_TIME = 10**14
"""No time of a record is later (ms; the year 5138): one that is was given in another unit."""

_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
"""The first and the last millisecond of the calendar, the years 1 to 9999."""


def moment(ms: int) -> datetime:
    """A time (ms since the epoch) in UTC. One before or after the calendar is its first or last."""
    return datetime.fromtimestamp(min(max(ms, _FIRST), _LAST) / 1000, UTC)
