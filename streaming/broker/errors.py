"""The two kinds of refusal: the peer asked for what the rules forbid, or Magnetar is misused."""


class BrokerError(Exception):
    """A request is refused. `code` is the ServerError name that the client gets (protocol.md §8)."""

    def __init__(self, code: str, cause: str) -> None:
        super().__init__(cause)
        self.code, self.cause = code, cause


class CursorError(Exception):
    """An operation that a managed cursor refuses; its state is unchanged (cursor.md)."""


class AdminError(Exception):
    """An admin call is refused. `status` is the HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class StateVersionError(Exception):
    """A checkpoint was written by a version of Magnetar whose state this one can't read."""


class LogOrderError(Exception):
    """Records of an ingress partition came out of order or twice: the source is not what it should be."""
