"""What a client's frames ask of the broker: each becomes a command on a topic.

Frames of a producer or consumer carry its number alone, so the topic that it was created with is remembered here.
"""

from typing import Any

from streaming.broker.names import COORDINATOR_ASSIGN, complete, partition_of
from streaming.protocol.codec import Frame

OF_THE_GATEWAY = frozenset({"CONNECT", "GET_TOPICS_OF_NAMESPACE", "PING", "PONG"})
"""Frames that whoever holds the connection answers, because they concern no topic."""

LOOKUPS = frozenset({"PARTITIONED_METADATA", "LOOKUP", "GET_SCHEMA", "GET_OR_CREATE_SCHEMA"})
"""Requests about a topic, of no producer or consumer."""

TRANSACTIONS = frozenset(
    {"NEW_TXN", "ADD_PARTITION_TO_TXN", "ADD_SUBSCRIPTION_TO_TXN", "END_TXN", "TC_CLIENT_CONNECT_REQUEST"}
)
"""Requests to a coordinator of transactions. What a coordinator asks a broker, no client does."""

OF_THE_BROKER = LOOKUPS | TRANSACTIONS | {
    "PRODUCER", "SEND", "CLOSE_PRODUCER", "SUBSCRIBE", "FLOW", "ACK", "REDELIVER_UNACKNOWLEDGED_MESSAGES", "UNSUBSCRIBE",
    "CLOSE_CONSUMER", "SEEK", "GET_LAST_MESSAGE_ID",
}  # fmt: skip
"""Frames that are commands."""

NO_TOPIC = "persistent://public/default/no-topic"
"""The topic of frames that carry the number of a producer or consumer which was never opened."""


_SIGN = 2**63
"""Pulsar's times have a sign; protobuf's field of the event time has none. An application may give any."""


class Requests:
    """The requests of one connection."""

    def __init__(self) -> None:
        self._topics: dict[tuple[str, int], str] = {}

    def topic_of(self, sender: tuple[str, int]) -> str:
        """The topic that a producer or consumer was opened with, or `NO_TOPIC`."""
        return self._topics.get(sender, NO_TOPIC)

    def topic_of_consumer(self, consumer_id: int) -> str | None:
        """The topic that a consumer was opened with."""
        return self._topics.get(("consumer", consumer_id))

    def forget(self, sender: tuple[str, int]) -> None:
        """A consumer is gone with its subscription."""
        self._topics.pop(sender, None)

    def topic(self, frame: Frame) -> str | None:
        """The topic that a frame names, or that its producer or consumer was opened with (`NO_TOPIC`: it never was). None: the frame has
        neither. A frame that opens or closes one, from either side, is remembered."""
        fields = frame.fields
        topic = complete(fields["topic"]) if "topic" in fields else None
        if frame.cmd in LOOKUPS:
            return topic
        kind = "producer" if "producer_id" in fields else "consumer"
        if (id_ := fields.get(f"{kind}_id")) is None:
            return topic
        if topic is not None:
            self._topics[kind, id_] = topic
            return topic
        if frame.cmd in ("CLOSE_PRODUCER", "CLOSE_CONSUMER"):
            return self._topics.pop((kind, id_), NO_TOPIC)
        return self.topic_of((kind, id_))

    def __len__(self) -> int:
        """The producers and consumers that are remembered."""
        return len(self._topics)

    def command(self, frame: Frame) -> tuple[str, dict[str, Any]]:
        """The topic and the command of a frame that is one of `OF_THE_BROKER`.

        A topic's name is completed as clients do: ``my-topic`` is ``persistent://public/default/my-topic``.
        """
        if frame.cmd == "SEND":
            if frame.metadata is not None and frame.metadata.get("event_time", 0) >= _SIGN:
                frame.metadata["event_time"] -= 2 * _SIGN
            return self.topic_of(("producer", frame.fields["producer_id"])), {
                "command": "SEND",
                "connection": frame.connection,
                **frame.fields,
                "metadata": frame.metadata,
                "payload_bytes": frame.payload,
            }
        if frame.cmd in TRANSACTIONS:
            named = "tc_id" if frame.cmd in ("NEW_TXN", "TC_CLIENT_CONNECT_REQUEST") else "txnid_most_bits"
            topic = partition_of(COORDINATOR_ASSIGN, frame.fields.get(named, 0))
            return topic, {"command": frame.cmd, "connection": frame.connection, **frame.fields}
        fields = {name: value for name, value in frame.fields.items() if name != "topic"}
        topic = self.topic(frame) or NO_TOPIC
        return topic, {"command": frame.cmd, "connection": frame.connection, **fields}
