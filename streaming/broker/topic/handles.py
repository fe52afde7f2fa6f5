"""The producers and consumers that clients have on a topic, by how the clients identify them (mirrors the maps of `ServerCnx`)."""

from collections.abc import Iterator

import msgspec

from streaming.broker.subscription.consumer import Handle


class Handles(msgspec.Struct, array_like=True, dict=True):
    """`names`: connection → the client's id for its producer or consumer → the producer's name, or the consumer's subscription.

    A connection without ids is not there.
    """

    names: dict[str, dict[int, str]] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._size = sum(map(len, self.names.values()))

    def get(self, connection: str, id_: int) -> str | None:
        """The name, None if the connection has no such id."""
        found = self.names.get(connection)
        return None if found is None else found.get(id_)

    def add(self, handle: Handle, name: str) -> None:
        """Add what is not there yet."""
        ids = self.names.setdefault(handle[0], {})
        self._size += handle[1] not in ids
        ids[handle[1]] = name

    def remove(self, handle: Handle) -> None:
        """Remove what is there."""
        connection, id_ = handle
        self._size -= 1
        del self.names[connection][id_]
        if not self.names[connection]:
            del self.names[connection]

    def of(self, connection: str) -> dict[int, str]:
        """The names of a connection by id, a copy."""
        return dict(self.names.get(connection, {}))

    def __contains__(self, connection: object) -> bool:
        return connection in self.names

    def __iter__(self) -> Iterator[Handle]:
        return ((connection, id_) for connection, ids in self.names.items() for id_ in ids)

    def __len__(self) -> int:
        return self._size
