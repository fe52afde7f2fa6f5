"""The broker's state of a consumer (mirrors `Consumer`; rules: docs/rules/subscriptions.md §6)."""

import msgspec

from schemas.commands import IntRange
from streaming.broker.position import Position
from streaming.broker.rates.rate import Rates

Handle = tuple[str, int]
"""How a client identifies its producer or consumer: (connection, id)."""


MAX_PERMITS = 1_000_000
"""The most messages that a consumer may ask for at once. Since a record may have to put out all of them, this bounds what it
costs. Pulsar's clients ask for 1,000; in Pulsar, the sum overflows above 2^31 − 1."""


_INFINITE = 1e18
"""An infinite average. JSON, as which states can be shown, has none."""


class Consumer(msgspec.Struct, array_like=True):
    """`pending` = pendingAcks: position → messages still unacked. Permits and `unacked` count messages.

    `permits_while_blocked` are added to `permits` when the consumer is unblocked. On Key_Shared, `hashes` = slots of the
    pending entries, and `hash_ranges` = the fixed ranges that the consumer asked for, in ascending order. `acks`,
    `redelivered` and `chunks_out` count, for the stats, messages that it acked, messages that it asked for again, and chunks.
    `reads_any_schema`: it subscribed with AUTO_CONSUME. `last_flow`, `last_sent`, `last_ack`: when it last asked for messages, was sent
    some, and acked (ms); 0: never. `reads_compacted`: it asked for compacted data, `from_earliest`: from the beginning.
    """

    connection: str
    consumer_id: int
    name: str
    priority: int = 0
    epoch: int = -1
    permits: int = 0
    unacked: int = 0
    blocked: bool = False
    permits_while_blocked: int = 0
    pending: dict[Position, int] = {}
    messages_out: int = 0
    bytes_out: int = 0
    average: float = 0.0
    hashes: dict[Position, int] = {}
    hash_ranges: list[IntRange] = []
    rates: Rates = msgspec.field(default_factory=Rates)
    acks: int = 0
    redelivered: int = 0
    chunks_out: int = 0
    reads_any_schema: bool = False
    last_flow: int = 0
    last_sent: int = 0
    last_ack: int = 0
    reads_compacted: bool = False
    from_earliest: bool = False

    @property
    def handle(self) -> Handle:
        """The consumer's identity: its connection, and its id there."""
        return self.connection, self.consumer_id

    @property
    def shown(self) -> str:
        """What to call it in a sentence."""
        return self.name or f"consumer {self.consumer_id} of connection {self.connection}"

    @property
    def available(self) -> bool:
        """Whether the consumer can receive now."""
        return not self.blocked and self.permits > 0

    def exceeds(self, permits: int) -> str | None:
        """Why a FLOW of so many permits is too much, or None if it isn't."""
        total = self.permits + self.permits_while_blocked + permits
        if total <= MAX_PERMITS:
            return None
        return f"FLOW of {permits} permits: the consumer would have {total}, more than {MAX_PERMITS}"

    def unblock(self) -> int:
        """It gets the permits that it asked for while it was blocked. Returns how many."""
        permits, self.permits_while_blocked, self.blocked = self.permits_while_blocked, 0, False
        self.permits += permits
        return permits

    @property
    def messages_per_entry(self) -> int:
        """avgMessagesPerEntry, rounded half up, as Java rounds: −1 if it is infinite, see `sent`."""
        return int(self.average + 0.5) if self.average < _INFINITE else -1

    def end_interval(self, until: int) -> None:
        """Compute the rates of the interval that ends at `until` (ms)."""
        self.rates.close(
            until, (self.messages_out, self.bytes_out, self.acks, self.redelivered, self.chunks_out)
        )

    def next_rates(self, until: int) -> tuple[float, ...]:
        """The rates that `end_interval` would compute."""
        return self.rates.closed(
            until, (self.messages_out, self.bytes_out, self.acks, self.redelivered, self.chunks_out)
        )

    def sent(self, messages: int, entries: int, size: int, now: int) -> None:
        """Update the average and the counters after a send at `now` (ms; docs/rules/subscriptions.md §6, avgMessagesPerEntry).

        The average equals Pulsar's to the last bit, so that it rounds the same way. quirk: it stays infinite once only messages counted, see
        pendingAcksCountAsSent.
        """
        self.messages_out += messages
        self.bytes_out += size
        if not entries and messages:
            self.average = _INFINITE
        if entries:
            self.last_sent = now
            if self.average == _INFINITE:
                return
            if self.average < 1:
                self.average = messages / entries
            else:
                self.average = self.average * 0.9 + (1 - 0.9) * messages / entries
