"""What the broker knows about a producer (mirrors `Producer`)."""

import msgspec

from schemas.commands import AccessMode
from streaming.broker.names import REPLICATOR_PREFIX


class Producer(msgspec.Struct, array_like=True, gc=False):
    """`producer_id` is None for a producer of the short form. `epoch` counts the client's attempts to connect.
    `topic_epoch`: the topic epoch in its request, which is that of its last exclusive access. `schema_version` in base64,
    empty for none. `created` in ms. `encrypted`: its request declares that it encrypts.
    """

    name: str
    connection: str
    producer_id: int | None
    epoch: int = 0
    access_mode: AccessMode = "Shared"
    topic_epoch: int | None = None
    schema_version: str = ""
    created: int = 0
    encrypted: bool = False

    @property
    def is_remote(self) -> bool:
        """Does it belong to a replicator?"""
        return self.name.startswith(REPLICATOR_PREFIX)

    def is_successor_to(self, other: "Producer") -> bool:
        """May it replace the producer of the same name? Only as a later attempt of the same client
        (docs/rules/producers.md §5)."""
        same = (self.connection, self.producer_id) == (other.connection, other.producer_id)
        return same and self.epoch > other.epoch
