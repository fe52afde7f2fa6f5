"""Errors of the broker: a client asks for what the rules forbid, or Magnetar is used the wrong way."""

from schemas.errors import MagnetarError


class BrokerError(Exception):
    """The broker refuses a request. `code` is the name of the ServerError for the client (docs/rules/protocol.md §22)."""

    def __init__(self, code: str, cause: str) -> None:
        super().__init__(cause)
        self.code, self.cause = code, cause


class CursorError(Exception):
    """A managed cursor refuses an operation. Its state is unchanged (docs/rules/cursors.md §4, §5)."""


class AdminError(Exception):
    """The broker refuses an admin call. `status` is the HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class StateVersionError(MagnetarError):
    """Another version of Magnetar wrote the state, and this one can't read it."""


class LogOrderError(MagnetarError):
    """Records of an ingress partition arrived out of order or twice, so the source is faulty."""
