"""Integers with bounds, and with the unit that their fields are measured in.

A unit is the ``unit`` of a type's ``msgspec.Meta.extra``, from where the reference pages and the JSON Schema take it.
"""

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
