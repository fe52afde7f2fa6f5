"""Producer: what the broker knows of one (mirrors `Producer`)."""

import msgspec

from schemas.commands import AccessMode

REPLICATOR_PREFIX = "pulsar.repl"


class Producer(msgspec.Struct, array_like=True, gc=False):
    """`producer_id` is None for one known by the short form only. `epoch` counts its client's attempts to connect;
    `topic_epoch` is the epoch of the topic that its request carried: the one of its last exclusive access.
    `schema_version` in base64, empty for none."""

    name: str
    connection: str
    producer_id: int | None
    epoch: int = 0
    access_mode: AccessMode = "Shared"
    topic_epoch: int | None = None
    schema_version: str = ""

    @property
    def is_remote(self) -> bool:
        """Is it a replicator's?"""
        return self.name.startswith(REPLICATOR_PREFIX)

    def is_successor_to(self, other: "Producer") -> bool:
        """May it take the place of the producer with its name? Only as that one's own, later attempt (producer.md §4)."""
        same = (self.connection, self.producer_id) == (other.connection, other.producer_id)
        return same and self.epoch > other.epoch
