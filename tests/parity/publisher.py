"""A producer that publishes for the consumers."""

import random

from tests.parity.recorder import Record, Recorder


class Publisher:
    """A producer with its own connection, the first of the recording, which is never cut."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sequence = 0
        self.connection = recorder.open()
        self.create()

    def create(self) -> None:
        """Create the producer, again after each unload."""
        # As clients do, and so that the broker owns the topic's bundle.
        self._recorder.ask(self.connection, "LOOKUP", topic=self._recorder.topic, authoritative=False)
        self._recorder.ask(
            self.connection, "PRODUCER", topic=self._recorder.topic, producer_id=0, producer_name="p",
            user_provided_producer_name=True, producer_access_mode="Shared", epoch=0,
        )  # fmt: skip

    def publish(self, dice: random.Random, size: int | None) -> None:
        """Publish some messages, each with one of eight keys, or batches of `size` messages."""
        for _ in range(dice.choice([1, 1, 2, 4])):
            fields: Record = {"producer_id": 0, "sequence_id": self._sequence}
            metadata: Record = {"producer_name": "p", "sequence_id": self._sequence,
                                "partition_key": f"k{dice.randrange(8)}"}  # fmt: skip
            if size is not None:
                fields["num_messages"] = metadata["num_messages_in_batch"] = size
            self._recorder.publish(self.connection, metadata, **fields)
            self._sequence += size or 1
