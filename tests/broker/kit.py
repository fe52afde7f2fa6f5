"""A broker under test. Tests send commands, get effects, and move the clock."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, TypeVar

from schemas.commands import (
    Ack,
    Admin,
    AnyCommand,
    BrokerConfig,
    CloseConsumer,
    CloseProducer,
    ConnectionLost,
    Fault,
    Flow,
    MessageIdData,
    MessageMetadata,
    Producer,
    Profile,
    Publish,
    RedeliverUnacknowledgedMessages,
    RunCheck,
    Seek,
    Send,
    Subscribe,
    SubType,
    Tick,
    Unsubscribe,
    decode_or_refuse,
    to_json,
)
from schemas.effects import AdminResponse, CompactedEntry, Effect, LedgerDeleted, Message, SendReceipt
from schemas.entries import Entry, EntryNotFound, EntryReader, metadata_of
from streaming.broker.broker import Broker
from streaming.broker.config import configuration
from streaming.broker.context import Context
from streaming.broker.entries import NoEntries
from streaming.broker.ledger.cursor_writes import change_cursor
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.ledger.managed_ledger import ManagedLedger
from streaming.broker.persistent.cleanup.ledger_rollover import roll_over
from streaming.broker.persistent.cleanup.trimming import trim
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position
from streaming.broker.producer.message_size import HEADER, plain_metadata_size
from streaming.protocol.codec import batch

E = TypeVar("E")

START = 1_700_000_000_000
TOPIC = "persistent://public/default/t"

QUIET: dict[str, Any] = {
    "managedLedgerDefaultMarkDeleteRateLimit": 0,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "backlogQuotaCheckIntervalInSeconds": 0,
    "messageExpiryCheckIntervalInMinutes": 0,
    "retentionCheckIntervalInSeconds": 0,
    "brokerDeduplicationSnapshotFrequencyInSeconds": 0,
    "brokerDeleteInactiveTopicsEnabled": False,
}
"""Only commands have effects: checks run only by RUN_CHECK, and every mark-delete is written at once."""


def feed(broker: Any, offset: int, timestamp: int, topic: str | None, value: bytes) -> None:
    """`Broker.apply` of a record that only the decoder checked, no other rules."""
    broker.apply(offset, timestamp, topic, decode_or_refuse(value), value)


class Run:
    """A `Broker` that gets one command at a time. `now` (ms) is the timestamp of the next record."""

    def __init__(
        self, *, now: int = START, reader: EntryReader | None = None, profile: Profile = "4.x",
        **settings: Any,
    ) -> None:  # fmt: skip
        """`settings` over those of `QUIET`."""
        self.broker = Broker(0, NoEntries() if reader is None else reader)
        self.now = now
        self.requests = 0
        self.configure(profile, **settings)

    def configure(self, profile: Profile = "4.x", **settings: Any) -> None:
        """BROKER_CONFIG: `settings` over those of `QUIET`."""
        assert self.do(BrokerConfig(profile=profile, settings={**QUIET, **settings}), None) == []

    # -- records --------------------------------------------------------------------------------------------------

    def raw(self, value: bytes, topic: str | None = TOPIC) -> list[Effect]:
        """The effects of one record."""
        feed(self.broker, self.broker.offset + 1, self.now, topic, value)
        return [row.effect for row in self.broker.take()]

    def do(self, command: AnyCommand | Publish, topic: str | None = TOPIC) -> list[Effect]:
        return self.raw(to_json(command), topic)

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass."""
        self.now += int(seconds * 1000)
        return self.do(Tick(), None)

    def check(self, name: str) -> list[Effect]:
        return self.do(RunCheck(check=name), None)  # type: ignore[arg-type]

    def request(self) -> int:
        self.requests += 1
        return self.requests

    # -- producing ------------------------------------------------------------------------------------------------

    def publish(
        self, sequence_id: int, producer: str = "p", topic: str = TOPIC, **fields: Any
    ) -> list[Effect]:
        """Publish with the short form."""
        return self.do(Publish(producer=producer, sequence_id=sequence_id, **fields), topic)

    def fill(self, count: int, size: int = 1024, *, first: int = 0, topic: str = TOPIC) -> list[Effect]:
        """Publish `count` entries with a stored size of exactly `size` bytes each."""
        effects: list[Effect] = []
        for sequence_id in range(first, first + count):
            metadata = plain_metadata_size("p", sequence_id, self.now, None)
            effects += self.publish(sequence_id, topic=topic, payload="x" * (size - HEADER - metadata))
        return effects

    def create_producer(
        self,
        name: str | None = "p",
        id_: int = 1,
        connection: str = "client",
        topic: str = TOPIC,
        **fields: Any,
    ) -> list[Effect]:
        return self.do(
            Producer(
                connection=connection,
                producer_id=id_,
                request_id=self.request(),
                producer_name=name,
                **fields,
            ),
            topic,
        )

    def close_producer(self, id_: int = 1, connection: str = "client", topic: str = TOPIC) -> list[Effect]:
        command = CloseProducer(connection=connection, producer_id=id_, request_id=self.request())
        return self.do(command, topic)

    def send(
        self, sequence_id: int, highest: int | None = None, name: str = "p", id_: int = 1, connection: str = "client",
        **metadata: Any,
    ) -> list[Effect]:  # fmt: skip
        """SEND a message, or a batch from `sequence_id` to `highest`. `metadata` adds to its MessageMetadata."""
        if highest is not None:
            metadata |= {"highest_sequence_id": highest, "num_messages_in_batch": highest - sequence_id + 1}
        return self.do(
            Send(
                connection=connection, producer_id=id_, sequence_id=sequence_id, highest_sequence_id=highest,
                num_messages=metadata.get("num_messages_in_batch", 1), is_chunk="chunk_id" in metadata,
                metadata=MessageMetadata(name, sequence_id, self.now, **metadata),
            )
        )  # fmt: skip

    def fault(self, fault: str, count: int = 0) -> list[Effect]:
        return self.do(Fault(fault=fault, count=count))  # type: ignore[arg-type]

    # -- consuming ------------------------------------------------------------------------------------------------

    def subscribe(
        self, name: str, type_: SubType = "Exclusive", *, earliest: bool = True, id_: int = 1, topic: str = TOPIC,
        connection: str | None = None, permits: int = 0, **fields: Any,
    ) -> list[Effect]:  # fmt: skip
        """Add a consumer, on a connection named like the subscription, and send its first FLOW if `permits` are given."""
        connection = name if connection is None else connection
        effects = self.do(
            Subscribe(
                connection=connection, subscription=name, subType=type_, consumer_id=id_, request_id=self.request(),
                initialPosition="Earliest" if earliest else "Latest", **fields,
            ),
            topic,
        )  # fmt: skip
        if permits:
            effects += self.do(Flow(connection=connection, consumer_id=id_, messagePermits=permits), topic)
        return effects

    def ack(
        self, name: str, *positions: tuple[int, int], cumulative: bool = False, id_: int = 1, topic: str = TOPIC,
        left: Sequence[int] | None = None, size: int | None = None, request_id: int | None = None,
    ) -> list[Effect]:  # fmt: skip
        """ACK by the consumer from `subscribe`. `left`: words of the messages that stay unacked in a batch of `size`."""
        ids = [MessageIdData(*at, ack_set=list(left or ()), batch_size=size) for at in positions]
        kind: Literal["Individual", "Cumulative"] = "Cumulative" if cumulative else "Individual"
        return self.do(
            Ack(connection=name, consumer_id=id_, ack_type=kind, message_id=ids, request_id=request_id), topic
        )

    def flow(self, name: str, permits: int, *, id_: int = 1, topic: str = TOPIC) -> list[Effect]:
        return self.do(Flow(connection=name, consumer_id=id_, messagePermits=permits), topic)

    def redeliver(
        self, name: str, *positions: tuple[int, int], id_: int = 1, epoch: int | None = None
    ) -> list[Effect]:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES for these positions, or for all if none are given."""
        ids = [MessageIdData(*position) for position in positions]
        return self.do(
            RedeliverUnacknowledgedMessages(
                connection=name, consumer_id=id_, message_ids=ids, consumer_epoch=epoch
            )
        )

    def seek(
        self, name: str, position: tuple[int, int] | None = None, *, time: int | None = None,
        left: Sequence[int] = (), id_: int = 1,
    ) -> list[Effect]:  # fmt: skip
        """SEEK to a position (with the words `left` of its batch), or to a publish time."""
        return self.do(
            Seek(
                connection=name, consumer_id=id_, request_id=self.request(), message_publish_time=time,
                message_id=MessageIdData(*position, ack_set=list(left)) if position else None,
            )
        )  # fmt: skip

    def close_consumer(self, name: str, *, id_: int = 1, topic: str = TOPIC) -> list[Effect]:
        return self.do(CloseConsumer(connection=name, consumer_id=id_, request_id=self.request()), topic)

    def unsubscribe(self, name: str, *, id_: int = 1, force: bool = False) -> list[Effect]:
        return self.do(Unsubscribe(connection=name, consumer_id=id_, request_id=self.request(), force=force))

    def lose(self, connection: str) -> list[Effect]:
        return self.do(ConnectionLost(connection=connection), None)

    # -- administration -------------------------------------------------------------------------------------------

    def admin(self, method: str, call: str, body: Any = None, topic: str = TOPIC) -> list[Effect]:
        """An admin call on a topic, such as ``/subscription/s/skip_all``."""
        path = "/" + topic.replace("://", "/") + call
        return self.do(Admin(method=method, path=path, body=body), topic)  # type: ignore[arg-type]

    def namespace(self, method: str, policy: str, body: Any = None) -> list[Effect]:
        """An admin call on a policy of the topic's namespace."""
        path = f"/namespaces/public/default/{policy}"
        return self.do(Admin(method=method, path=path, body=body), None)  # type: ignore[arg-type]

    def unload(self) -> list[Effect]:
        """Unload the topic, and load it again by looking at it."""
        return self.admin("PUT", "/unload") + self.admin("GET", "/stats")

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> PersistentTopic:
        return self.broker.topic(TOPIC)

    def cursor(self, name: str) -> ManagedCursor:
        return self.topic.cursors[name]

    def mark_delete(self, name: str) -> Position:
        return self.cursor(name).mark_delete

    def backlog(self, name: str) -> int:
        return self.cursor(name).backlog(self.topic.ledger)


class BareTopic:
    """A topic without a broker: its ledgers and cursors, with entries of any size."""

    def __init__(self, **settings: Any) -> None:
        """`settings` over those of `QUIET`."""
        self.ctx = Context(NoEntries())
        self.ctx.clock = START
        self.ctx.config = configuration("4.x", {**QUIET, **settings})
        self.topic = PersistentTopic(TOPIC, ledger=ManagedLedger.create(START))
        self.ledger = self.topic.ledger

    def add(self, *sizes: int, publish_time: int | None = None) -> list[Position]:
        """Store entries of these sizes and roll over full ledgers. Returns the positions."""
        positions, now = [], self.ctx.clock
        for size in sizes:
            position, full = self.ledger.submit(size, now, self.ctx.config)
            self.ledger.confirm(position, size, now)
            metadata = MessageMetadata("p", 0, now if publish_time is None else publish_time)
            self.ctx.entries.add(TOPIC, position, Entry(metadata, size))
            positions.append(position)
            if full:
                self.roll_over()
        return positions

    def add_ledger(self, *sizes: int) -> list[Position]:
        """Store entries and close their ledger."""
        positions = self.add(*sizes)
        self.roll_over()
        return positions

    def roll_over(self) -> None:
        roll_over(self.ctx, self.topic, "test")

    def trim(self) -> None:
        trim(self.ctx, self.topic)

    def open(self, name: str = "c", *, earliest: bool = True) -> ManagedCursor:
        """A durable cursor."""
        return self.keep(ManagedCursor.create(name, self.ledger, earliest=earliest))

    def open_reader(self, name: str, start: Position | None, *, earliest: bool = False) -> ManagedCursor:
        """A non-durable cursor."""
        return self.keep(ManagedCursor.non_durable(name, self.ledger, start, earliest=earliest))

    def keep(self, cursor: ManagedCursor) -> ManagedCursor:
        self.topic.cursors[cursor.name] = cursor
        return cursor

    def mark(self, cursor: ManagedCursor, position: Position) -> None:
        """Move the mark-delete, and write it if the cursor's rate limiter allows."""
        change_cursor(
            self.ctx, self.ctx.policies_of(self.topic), cursor, cursor.move, self.ledger, position, {}
        )

    def ack(self, cursor: ManagedCursor, *positions: Position, left: int | None = None) -> None:
        """One individual ack of entries. `left`: a bit set of the messages in a batch that stay unacked."""

        def acknowledge() -> None:
            mark_delete = cursor.mark_delete
            for position in positions:
                cursor.acknowledge(self.ledger, position, left)
            cursor.collapse(self.ledger, mark_delete)

        change_cursor(self.ctx, self.ctx.policies_of(self.topic), cursor, acknowledge)


def batch_of(messages: Iterable[tuple[str | None, bytes]]) -> bytes:
    """The payload of a batch of messages with these keys and payloads."""
    pairs = list(messages)
    return batch(
        ({} if key is None else {"partition_key": key} for key, _ in pairs), (value for _, value in pairs)
    )


def one(effects: Iterable[Effect], kind: type[E]) -> E:
    """The only effect of a kind."""
    (found,) = of(effects, kind)
    return found


def response(effects: Iterable[Effect]) -> Any:
    """The body of the only response to an admin call."""
    return one(effects, AdminResponse).fields.response


def of(effects: Iterable[Effect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(effects: Iterable[Effect], id_: int | None = None) -> list[int]:
    """The entry ids of the MESSAGEs in order, of all consumers or of consumer `id_`."""
    return [m.entry_id for m in of(effects, Message) if id_ is None or m.consumer_id == id_]


class Stored:
    """A reader of the entries that receipts confirmed and no trim deleted. `reads` = the positions requested."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int, int], Entry] = {}
        self.reads: list[Position] = []

    def add(self, effects: Collection[Effect]) -> None:
        """Apply what a micro-batch wrote and deleted."""
        for receipt in of(effects, SendReceipt):
            if receipt.size is None:
                continue  # a duplicate
            entry = Entry(metadata_of(receipt), receipt.size, receipt.broker_timestamp, receipt.payload)
            self.entries[receipt.topic, receipt.ledger_id, receipt.entry_id] = entry
        for copy in of(effects, CompactedEntry):
            entry = Entry(copy.metadata, copy.size, copy.broker_timestamp, copy.payload)
            self.entries[copy.topic, copy.ledger_id, copy.entry_id] = entry
        gone = {(deleted.topic, deleted.ledger_id) for deleted in of(effects, LedgerDeleted)}
        if gone:
            self.entries = {at: entry for at, entry in self.entries.items() if at[:2] not in gone}

    def read(self, topic: str, ledger_id: int, first: int, last: int) -> list[Entry]:
        positions = [Position(ledger_id, entry) for entry in range(first, last + 1)]
        self.reads += positions
        try:
            return [self.entries[topic, *position] for position in positions]
        except KeyError as missing:
            raise EntryNotFound(f"no entry {missing}") from None

    def payloads(self, topic: str, ledger_id: int, first: int, last: int) -> list[bytes]:
        return [self.entries[topic, ledger_id, entry].payload or b"" for entry in range(first, last + 1)]
