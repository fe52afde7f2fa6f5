"""What holds after every command, whatever the commands are: random streams of all kinds, watched from outside.

`Watched` keeps a naive account of what clients were told and what they acked: sets of positions, no counters, no runs.
Time passes in records of its own, so that what a command sets off can be told from what the clock does.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.commands import (
    Ack,
    Admin,
    AnyCommand,
    CloseProducer,
    ConnectionLost,
    Fault,
    Flow,
    IntRange,
    KeySharedMeta,
    MessageIdData,
    MessageMetadata,
    Producer,
    Publish,
    RedeliverUnacknowledgedMessages,
    Seek,
    Send,
    Subscribe,
    SubType,
    Tick,
    to_json,
)
from streaming.broker.ack_set import first_unacked, from_words
from streaming.broker.broker import Broker
from streaming.broker.dispatcher_multiple import MultipleConsumers
from streaming.broker.effects import (
    AckResponse,
    AdminResponse,
    CloseConnection,
    CursorMoved,
    Effect,
    Error,
    Evicted,
    Expired,
    GetLastMessageIdResponse,
    LedgerClosed,
    LedgerDeleted,
    Message,
    ProducerSuccess,
    Quarantined,
    Row,
    SendError,
    SendReceipt,
    SubscriptionEvent,
    Success,
    TopicEvent,
)
from streaming.broker.entries import NoEntries
from streaming.broker.position import EARLIEST, LATEST, Position, from_wire
from streaming.broker.subscription import INDIVIDUAL_TYPES, Subscription
from streaming.broker.topic import Handle, Topic
from tests.broker.kit import START
from tests.broker.test_cut_invariance import (
    RARER,
    SUBSCRIPTIONS,
    TOPICS,
    TRAFFIC,
    TYPES,
    Record,
    record,
    settings_of_a_broker,
)

RESETS = ("seek", "reset", "start_message_rollback", "created at a message id")
"""Causes of a CURSOR_MOVED that forgets acks. By any other a mark-delete only goes forward."""

ANSWERS = (Success, Error, ProducerSuccess, AckResponse, GetLastMessageIdResponse)


@dataclass
class Group:
    """A subscription as its clients know it: what they acked, and of which batches some messages are left.

    `drift`: entries that Pulsar's counter has taken off too often: those acked one by one over which a reset moved the
    mark-delete forward (`ManagedCursor.reset`). `phantoms`: the counter took or takes entries of a ledger that is gone
    for stored (`ManagedLedger.count`); its value says nothing then. `ahead`: an entry yet to be written was acked, which
    Pulsar takes at the border of a ledger; the mark-delete says nothing then.
    """

    acked: set[Position] = field(default_factory=set)
    partial: dict[Position, int] = field(default_factory=dict)
    mark_delete: Position = EARLIEST
    drift: int = 0
    phantoms: bool = False
    ahead: bool = False

    def ack(self, position: Position, left: int | None) -> None:
        """An individual ack, or one of the messages that aren't in `left`."""
        if left is not None:
            left &= self.partial.get(position, left)
        if left:
            self.partial[position] = left
        else:
            self.partial.pop(position, None)
            self.acked.add(position)

    def ack_to(self, position: Position, stored: Iterable[Position]) -> None:
        self.acked.update(entry for entry in stored if entry <= position)
        self.partial = {entry: left for entry, left in self.partial.items() if entry > position}

    def reset(self, after: Position, before: Position, stored: Iterable[Position]) -> None:
        """Everything up to `after` is acked, nothing else."""
        if after > before:
            self.drift += sum(before < entry <= after for entry in self.acked)
        self.acked, self.partial = set(), {}
        self.ahead = False
        self.ack_to(after, stored)


@dataclass
class Account:
    """What is known of a topic: sizes of the stored entries by position, and who may be sent how many messages."""

    stored: dict[Position, int] = field(default_factory=dict)
    last: Position = EARLIEST
    closed: set[int] = field(default_factory=set)
    groups: dict[str, Group] = field(default_factory=dict)
    permits: dict[Handle, int] = field(default_factory=dict)
    answered: int = 0


class Watched:
    """A broker whose every effect, and state after every command, is held against the account."""

    def __init__(self) -> None:
        self.broker = Broker(0, NoEntries())
        self.now = START
        self.accounts: dict[str, Account] = {}
        self.requests: dict[int, str] = {}
        """Those without a final answer, with their connection."""

    def run(self, log: list[Record]) -> None:
        for jump, topic, command in log:
            if jump:
                self.now += jump
                self.do(None, Tick())
            self.do(topic, command)
        self.at_the_end()

    def do(self, name: str | None, command: AnyCommand | Publish) -> None:
        """One command: first what it says, then what it sets off, then what is left."""
        offset = self.broker.offset + 1
        if getattr(command, "request_id", None) is not None:
            command = msgspec.structs.replace(command, request_id=offset)
        there = self.broker.topic_names()
        if name is not None:
            account = self.accounts.setdefault(name, Account())
            if name in there:
                self.told(self.broker.topic(name), account, command)
            if getattr(command, "request_id", None) is not None and not self.is_dropped(name, command):
                self.requests[offset] = command.connection  # type: ignore[union-attr]
        pending = {topic: len(self.broker.topic(topic).pending) for topic in there}
        self.broker.apply(offset, self.now, name, to_json(command))
        rows: list[Row] = self.broker.take()
        effects = [row.effect for row in rows]
        for effect in effects:
            assert not isinstance(effect, Quarantined), effect
            self.effect(effect, command)
        if isinstance(command, ConnectionLost):
            self.gone(command.connection)
        for effect in effects:
            if isinstance(effect, CloseConnection):
                self.gone(effect.connection)
        if isinstance(command, Admin):
            assert sum(isinstance(effect, AdminResponse) for effect in effects) == 1
        for topic_name in self.broker.topic_names():
            topic = self.broker.topic(topic_name)
            self.rests(topic, self.accounts.setdefault(topic_name, Account()))
            self.every_publish_is_answered_once(topic, command, effects, pending.get(topic_name, 0), name)

    # -- what a command says --------------------------------------------------------------------------------------

    def is_dropped(self, name: str, command: AnyCommand | Publish) -> bool:
        """An ACK of nobody gets no answer (protocol.md §6)."""
        if not isinstance(command, Ack):
            return False
        known = self.accounts[name].permits
        return (command.connection, command.consumer_id) not in known

    def told(self, topic: Topic, account: Account, command: AnyCommand | Publish) -> None:
        """Permits and acks, as their rules have them."""
        if not isinstance(command, Flow | Ack):
            return
        handle = (command.connection, command.consumer_id)
        if handle not in account.permits:
            return
        if isinstance(command, Flow):
            account.permits[handle] += command.messagePermits
            return
        subscription = topic.subscriptions[topic.consumer_handles[handle]]
        by_index = self.broker._ctx.config.acknowledgmentAtBatchIndexLevelEnabled
        ids = [
            (from_wire(id_.ledgerId, id_.entryId), from_words(id_.ack_set) or None)
            for id_ in command.message_id
        ]
        group = account.groups[subscription.name]
        if command.ack_type == "Individual":
            for position, left in ids:
                if left is not None and not by_index:
                    continue
                if position > topic.ledger.last_confirmed:
                    break
                if position in account.stored and position not in group.acked:
                    group.ack(position, left)
        elif subscription.type not in INDIVIDUAL_TYPES and len(ids) == 1:
            position, left = ids[0]
            if left is not None and not by_index:
                position, left = topic.ledger.previous(position), None
            cumulative(topic, account, subscription, position, left)

    # -- what it sets off -----------------------------------------------------------------------------------------

    def effect(self, effect: Effect, command: AnyCommand | Publish) -> None:
        if isinstance(effect, ANSWERS):
            self.answered(effect)
        topic = getattr(effect, "topic", None)
        if topic is None:
            return
        account = self.accounts.setdefault(topic, Account())
        match effect:
            case SendReceipt() if effect.ledger_id >= 0:
                position = Position(effect.ledger_id, effect.entry_id)
                assert position > account.last
                assert position.ledger not in account.closed
                account.last = position
                account.stored[position] = effect.size or 0
            case Message():
                self.sent(account, effect)
            case LedgerClosed():
                assert effect.ledger_id not in account.closed
                account.closed.add(effect.ledger_id)
                sizes = [
                    size for position, size in account.stored.items() if position.ledger == effect.ledger_id
                ]
                assert (len(sizes), sum(sizes)) == (effect.entries, effect.size)
            case LedgerDeleted():
                assert effect.ledger_id in account.closed
                gone = [position for position in account.stored if position.ledger == effect.ledger_id]
                assert len(gone) == effect.entries
                assert sum(account.stored.pop(position) for position in gone) == effect.size
                for group in account.groups.values():
                    assert group.acked.issuperset(gone)
                    group.acked.difference_update(gone)
                for cursor in self.broker.topic(topic).cursors.values():
                    assert not cursor.durable or cursor.key >= gone[-1]
            case SubscriptionEvent():
                self.subscription_event(account, effect, command)
            case CursorMoved() | Expired() | Evicted() if effect.subscription in account.groups:
                before = Position(effect.before_ledger, effect.before_entry)
                after = Position(effect.after_ledger, effect.after_entry)
                group = account.groups[effect.subscription]
                if isinstance(effect, CursorMoved) and effect.cause.startswith(RESETS):
                    group.reset(after, before, account.stored)
                    group.mark_delete = after
                    by_index = self.broker._ctx.config.acknowledgmentAtBatchIndexLevelEnabled
                    if isinstance(command, Seek) and command.message_id is not None and by_index:
                        left = from_words(command.message_id.ack_set)
                        target = from_wire(command.message_id.ledgerId, command.message_id.entryId)
                        if left:
                            group.partial[target] = left
                else:
                    assert after >= before
                    group.ack_to(after, account.stored)
            case TopicEvent(cause="unloaded"):
                for group in account.groups.values():
                    group.partial.clear()
                    group.mark_delete = EARLIEST  # it may be written otherwise now; what is acked, stays
                    group.drift, group.phantoms = 0, False

    def subscription_event(
        self, account: Account, effect: SubscriptionEvent, command: AnyCommand | Publish
    ) -> None:
        if effect.cause.startswith("deleted"):
            del account.groups[effect.subscription]
            return
        group = account.groups[effect.subscription] = Group()
        if effect.cause == "created at Latest":
            group.ack_to(account.last, account.stored)
        else:
            ledger = self.broker.topic(effect.topic).ledger
            group.phantoms = ledger.last_confirmed.ledger not in ledger.ledgers
        if effect.cause == "created, not durable":
            assert isinstance(command, Subscribe)
            start = LATEST
            if (wire := command.start_message_id) is not None:
                start = from_wire(wire.ledgerId, wire.entryId)
            if start.entry >= 0:
                start = Position(start.ledger, start.entry - 1)
            if start > self.broker.topic(effect.topic).ledger.last_confirmed:
                start = LATEST if command.initialPosition == "Latest" else EARLIEST
            group.ack_to(start, account.stored)

    def sent(self, account: Account, message: Message) -> None:
        """Only what is stored and isn't acked is sent, and only to whoever has a permit."""
        position = Position(message.ledger_id, message.entry_id)
        group = account.groups[message.subscription]
        assert position in account.stored
        assert position not in group.acked or group.ahead
        left = group.partial.get(position)
        assert (None if message.ack_set is None else from_words(message.ack_set)) == left
        handle = (message.connection, message.consumer_id)
        account.permits[handle] -= message.messages if left is None else left.bit_count()

    def answered(self, answer: Any) -> None:
        """The one final answer to a request."""
        if isinstance(answer, ProducerSuccess) and not answer.fields["producer_ready"]:
            assert answer.request_id in self.requests
            return
        assert self.requests.pop(answer.request_id, None) == answer.connection, answer

    def gone(self, connection: str) -> None:
        self.requests = {id_: other for id_, other in self.requests.items() if other != connection}

    def every_publish_is_answered_once(
        self,
        topic: Topic,
        command: AnyCommand | Publish,
        effects: list[Effect],
        before: int,
        name: str | None,
    ) -> None:
        """With a receipt or an error, now or when its write is done. An unload answers nobody: all are gone."""
        answers = [e for e in effects if isinstance(e, SendReceipt | SendError) and e.topic == topic.name]
        if TopicEvent(topic.name, "unloaded") in effects:
            assert not topic.pending
            return
        published = isinstance(command, Publish | Send) and name == topic.name
        if isinstance(command, Send) and not answers and len(topic.pending) == before:
            return  # of a producer that isn't there: its connection was closed, or it is ignored
        assert before + published == len(answers) + len(topic.pending)

    # -- what is left ---------------------------------------------------------------------------------------------

    def rests(self, topic: Topic, account: Account) -> None:
        """The state after a command."""
        ledger, dedup = topic.ledger, topic.dedup
        assert ledger.number_of_entries == len(account.stored)
        assert ledger.total_size == sum(account.stored.values())
        for id_, info in ledger.ledgers.items():
            entries = sum(position.ledger == id_ for position in account.stored)
            assert info.entries == (entries if id_ in account.closed else 0)
        assert set(dedup.ahead) <= {write.producer.name for write in topic.pending}
        assert set(topic.subscriptions) == set(account.groups)
        account.permits = {handle: account.permits.get(handle, 0) for handle in topic.consumer_handles}
        for name, cursor in topic.cursors.items():
            if name in topic.subscriptions:
                self.cursor_rests(topic, account, topic.subscriptions[name])
            else:
                assert cursor.read_position > cursor.mark_delete
                assert cursor.backlog(ledger) == cursor.backlog(ledger, precise=True)

    def cursor_rests(self, topic: Topic, account: Account, subscription: Subscription) -> None:
        ledger, cursor, group = (
            topic.ledger,
            topic.cursors[subscription.name],
            account.groups[subscription.name],
        )
        assert cursor.mark_delete >= group.mark_delete
        group.mark_delete = cursor.mark_delete
        acked = {entry for entry in account.stored if entry <= cursor.mark_delete or entry in cursor.acked}
        if group.ahead:
            group.acked |= acked
        else:
            assert acked == group.acked
            # quirk: a reset to the beginning reads from the entry −1 on
            assert cursor.read_position > cursor.mark_delete or cursor.read_position.entry == -1
        left = len(account.stored) - len(acked)
        if ledger.last_confirmed.ledger not in ledger.ledgers and cursor.mark_delete < ledger.last_confirmed:
            group.phantoms = True
        if not group.phantoms and not group.ahead:
            assert cursor.backlog(ledger, precise=True) == left
            assert cursor.backlog(ledger) == (left - group.drift if left >= group.drift else left)
        for consumer in subscription.consumers:
            waiting = consumer.permits_while_blocked
            assert consumer.permits + waiting == account.permits[consumer.handle]
        if isinstance(subscription.dispatcher, MultipleConsumers):
            self.dispatcher_rests(subscription, subscription.dispatcher, group)

    def dispatcher_rests(
        self, subscription: Subscription, dispatcher: MultipleConsumers, group: Group
    ) -> None:
        """An entry is in one place: with one consumer, or to be sent again, or put off."""
        pending = [position for consumer in subscription.consumers for position in consumer.pending]
        delayed = [position for positions in dispatcher.delayed.buckets.values() for position in positions]
        assert len(pending) == len(set(pending))
        assert not set(pending) & {*dispatcher.replay, *delayed}
        assert not set(dispatcher.replay) & set(delayed)
        assert dispatcher.replay == sorted(set(dispatcher.replay))
        if self.broker._ctx.config.removePendingAcksOnMarkDeleteMove and subscription.durable:
            assert not set(pending) & group.acked
        for consumer in subscription.consumers:
            assert consumer.unacked == sum(consumer.pending.values())
        assert dispatcher.total_unacked == sum(consumer.unacked for consumer in subscription.consumers)
        assert dispatcher.total_permits == sum(consumer.permits for consumer in subscription.consumers)

    def at_the_end(self) -> None:
        """Only who waits for its turn or for its writes waits for an answer; the state is what it says."""
        waiting: set[int] = set()
        for name in self.broker.topic_names():
            topic = self.broker.topic(name)
            waiting.update(waiting.request_id for waiting in topic.access.waiting)
            for requests in topic.closing_producers.values():
                waiting.update(requests)
        assert set(self.requests) <= waiting
        state = self.broker.encode()
        again = Broker.decode(state, NoEntries())
        for name in again.topic_names():
            assert again.topic(name) == self.broker.topic(name)
        assert again.encode() == state


def cumulative(
    topic: Topic, account: Account, subscription: Subscription, position: Position, left: int | None
) -> None:
    """cursor.md §3: refused before the mark-delete and past the end, except at a ledger's border."""
    ledger, group = topic.ledger, account.groups[subscription.name]
    mark_delete = topic.cursors[subscription.name].mark_delete
    info = ledger.ledgers.get(position.ledger)
    if info is not None and 0 < info.entries <= position.entry and position < ledger.last_confirmed:
        position = Position(position.ledger, info.entries - 1)
    to = position if left is None else ledger.previous(position)
    if position < mark_delete or (left is not None and position == mark_delete):
        return
    if to > ledger.last_confirmed:
        here = ledger.ledgers.get(mark_delete.ledger)
        at_border = to.ledger == ledger.next_ledger(ledger.last_confirmed.ledger)
        if here is None or not at_border or mark_delete.entry + 1 < here.entries:
            return
        group.ahead = to.entry >= 0
    group.phantoms = group.phantoms or to.ledger not in ledger.ledgers
    group.ack_to(to, account.stored)
    if left is not None and position not in group.acked:
        known = group.partial.get(position)
        if known is None or first_unacked(left) > first_unacked(known):
            group.partial[position] = left


# -- commands beyond those of the cut invariance ------------------------------------------------------------------

MORE: dict[int, tuple[str, SubType]] = {
    7: ("keyed", "Key_Shared"), 8: ("keyed", "Key_Shared"), 9: ("ranges", "Key_Shared"), 10: ("ranges", "Key_Shared"),
    11: ("shared reader", "Shared"), 12: ("shared reader", "Shared"), 13: ("shared", "Shared"),
}  # fmt: skip
ALL = {**{id_: (name, TYPES.get(name, "Exclusive")) for id_, name in SUBSCRIPTIONS.items()}, **MORE}
STICKY = {9: IntRange(0, 40_000), 10: IntRange(40_001, 65_535)}
CLIENT = st.sampled_from(["x", "x", "x", "y"])
CONSUMER = {"connection": CLIENT, "consumer_id": st.sampled_from(sorted(ALL))}
MESSAGE_ID = st.builds(
    MessageIdData,
    ledgerId=st.sampled_from([1, 1, 1, 2, 2, 3, 4, 5, -1, 2**63 - 1, 2**64 - 1]),
    entryId=st.sampled_from([0, 0, 1, 1, 2, 3, 4, -1, 2**63 - 1]),
    ack_set=st.sampled_from([[], [], [2], [1], [6], [7], [-1, 1]]),
    batch_size=st.just(3),
)
"""Positions that there are, that there aren't, and the special ones; of batches of 3 and of others."""
BATCH = st.builds(
    MessageMetadata, producer_name=st.just("q"), sequence_id=st.integers(0, 9), publish_time=st.integers(START, START + 90_000),
    num_messages_in_batch=st.just(3), partition_key=st.sampled_from(["a", "b", "c"]),
    deliver_at_time=st.sampled_from([None, None, START + 30_000, START + 70_000]),
)  # fmt: skip


def subscribe(connection: str, consumer_id: int, **fields: Any) -> Subscribe:
    """As a consumer of `ALL`; `fields` over what its subscription asks for."""
    name, type_ = ALL[consumer_id]
    sticky = STICKY.get(consumer_id)
    defaults = {
        "consumer_name": str(consumer_id), "initialPosition": "Earliest", "durable": "reader" not in name,
        "keySharedMeta": KeySharedMeta("STICKY", [sticky]) if sticky else None,
    }  # fmt: skip
    return Subscribe(
        connection=connection, consumer_id=consumer_id, subscription=name, subType=type_, request_id=1,
        **{**defaults, **fields},
    )  # fmt: skip


def all_connected() -> list[Record]:
    """On each topic a producer, and every consumer with permits."""
    log: list[Record] = []
    for topic in TOPICS:
        log.append((0, topic, Producer(connection="x", producer_id=1, request_id=1, producer_name="q")))
        for consumer_id in ALL:
            log.append((0, topic, subscribe("x", consumer_id)))
            log.append((0, topic, Flow(connection="x", consumer_id=consumer_id, messagePermits=4)))
    return log


SUBSCRIBE = st.builds(
    subscribe, CLIENT, CONSUMER["consumer_id"], initialPosition=st.sampled_from(["Earliest", "Latest"]),
    priority_level=st.sampled_from([0, 0, 0, 1]), start_message_id=st.none() | MESSAGE_ID,
    start_message_rollback_duration_sec=st.sampled_from([0, 0, 0, 30]),
)  # fmt: skip
PRODUCER = {"connection": CLIENT, "producer_id": st.sampled_from([1, 2])}
OFTEN: list[st.SearchStrategy[Any]] = [
    st.builds(Send, connection=st.just("x"), producer_id=st.just(1), sequence_id=st.integers(0, 30), metadata=BATCH),
    st.builds(Flow, **CONSUMER, messagePermits=st.integers(1, 9)),
    st.builds(Ack, **CONSUMER, ack_type=st.just("Individual"), message_id=st.lists(MESSAGE_ID, max_size=4),
              request_id=st.sampled_from([None, 1])),
    st.builds(Ack, **CONSUMER, ack_type=st.just("Cumulative"), message_id=st.lists(MESSAGE_ID, min_size=1, max_size=1)),
    st.builds(RedeliverUnacknowledgedMessages, **CONSUMER, message_ids=st.lists(MESSAGE_ID, max_size=2)),
    SUBSCRIBE,
]  # fmt: skip
SELDOM: list[st.SearchStrategy[Any]] = [
    st.builds(
        Producer, **PRODUCER, request_id=st.just(1), producer_name=st.sampled_from(["q", "w", None]),
        epoch=st.integers(0, 1), topic_epoch=st.sampled_from([None, 0, 1, 2]),
        producer_access_mode=st.sampled_from(["Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing"]),
    ),
    st.builds(CloseProducer, **PRODUCER, request_id=st.just(1)),
    st.builds(Seek, **CONSUMER, request_id=st.just(1), message_id=MESSAGE_ID),
    st.builds(Fault, fault=st.sampled_from(["DelayWrites", "DelayWrites", "CompleteWrites", "LoseWrites", "FailWrites"]),
              count=st.integers(0, 3)),
    st.builds(Flow, **CONSUMER, messagePermits=st.sampled_from([0, -1])),
    *RARER,
]  # fmt: skip
CALLS = [
    ("POST", "/subscription/keyed/skip/1", None),
    ("POST", "/subscription/shared%20reader/skip/2", None),
    ("POST", "/subscription/shared/skip_all", None),
    ("POST", "/subscription/reader/resetcursor", {"ledgerId": 1, "entryId": 1}),
    ("POST", "/subscription/keyed/resetcursor", {"ledgerId": -1, "entryId": -1}),
    ("POST", "/subscription/failover/resetcursor", None),
    ("PUT", "/subscription/keyed", {"ledgerId": 1, "entryId": 1}),
    ("DELETE", "/subscription/failover", None),
    ("POST", "/all_subscription/expireMessages/0", None),
    ("POST", "/trim", None),
    ("PUT", "/unload", None),
    ("PUT", "/unload", None),
    ("POST", "/terminate", None),
    ("DELETE", "/truncate", None),
    ("POST", "/maxUnackedMessagesOnConsumer", 1),
    ("DELETE", "/maxUnackedMessagesOnConsumer", None),
    ("POST", "/nothing", None),
]


@st.composite
def any_record(draw: st.DrawFn) -> Record:
    kind = draw(st.integers(0, 19))
    if kind < 8:
        return draw(record())
    jump = draw(st.sampled_from([0, 0, 0, 0, 1, 1_000, 20_000, 61_000]))
    topic = draw(st.sampled_from([TOPICS[0], TOPICS[0], TOPICS[1]]))
    if kind < 16:
        return jump, topic, draw(st.one_of(*TRAFFIC, *OFTEN, *OFTEN))
    if kind < 19:
        return jump, topic, draw(st.one_of(SELDOM))
    method, call, body = draw(st.sampled_from(CALLS))
    return jump, topic, Admin(method=method, path="/" + topic.replace("://", "/") + call, body=body)  # type: ignore[arg-type]


LOGS = st.tuples(
    settings_of_a_broker(),
    st.sampled_from([True, True, False]),
    st.lists(any_record(), min_size=10, max_size=60),
)


@given(LOGS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_whatever_the_commands(log: tuple[Record, bool, list[Record]]) -> None:
    configuration, busy, records = log
    Watched().run([configuration, *(all_connected() if busy else []), *records])
