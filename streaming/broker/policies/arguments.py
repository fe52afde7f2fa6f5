"""What a call gives to an operation: query parameters and a body."""

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from schemas.commands import Admin
from streaming.broker.errors import AdminError


def query(path: str) -> dict[str, str]:
    """The query parameters of a path."""
    return dict(parse_qsl(urlsplit(path).query))


def convert(body: Any, type_: Any) -> Any:
    """A body as `type_`. Texts are numbers where those are expected, as in Pulsar. Raises `AdminError`."""
    try:
        return msgspec.convert(body, type_, strict=False)
    except msgspec.ValidationError as error:
        raise AdminError(400, str(error)) from None


def is_applied(command: Admin) -> bool:
    """Whether a call asks for the value in force."""
    return query(command.path).get("applied") == "true"
