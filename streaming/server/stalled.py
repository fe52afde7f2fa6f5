"""Who has what is bounded in sum over all connections, and for how long."""

from typing import Generic, TypeVar

T = TypeVar("T")


class Stalled(Generic[T]):
    """So much of something of each connection. The first one has waited longest since it last got on."""

    def __init__(self) -> None:
        self.total = 0
        self._of: dict[T, int] = {}

    def count(self, connection: T, size: int, *, goes_on: bool) -> None:
        """A connection has so much; it has waited since now if it `goes_on`."""
        before = self._of.get(connection, 0)
        if goes_on or not size:
            self._of.pop(connection, None)
        if size:
            self._of[connection] = size
        self.total += size - before

    @property
    def first(self) -> T:
        """The connection that has waited longest. There must be one."""
        return next(iter(self._of))
