"""What a call gives to an operation: a body as a type, and what it asks of a value."""

from typing import Any

import msgspec

from schemas.commands import Admin
from streaming.broker.errors import AdminError
from streaming.broker.parameters import flag

_LEAST, _MOST = -(2**63), 2**63 - 1
_SHOWN = 30


def convert(body: Any, type_: Any) -> Any:
    """A body as `type_`. Texts are numbers where those are expected, and fields that the type lacks are ignored, as in Pulsar. Raises
    `AdminError`."""
    try:
        found = msgspec.convert(body, type_, strict=False)
    except msgspec.ValidationError as error:
        raise AdminError(400, str(error)) from None
    waiting = [found] if isinstance(found, dict | list) else []
    for each in waiting:  # grows meanwhile
        for value in each.values() if isinstance(each, dict) else each:
            if isinstance(value, dict | list):
                waiting.append(value)
            elif type(value) is int and not _LEAST <= value <= _MOST:  # the state has no larger ones
                raise AdminError(400, f"{str(value)[:_SHOWN]} is not a 64-bit integer")
    return found


def is_applied(command: Admin) -> bool:
    """Whether a call asks for the value in force."""
    return flag(command.path, "applied")
