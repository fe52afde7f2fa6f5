"""A broker under observation: after every command, its effects and its state are compared with a naive account.

The account uses sets of positions, without counters and runs: what was sent to clients and what they acked. Time passes
in separate records, so that effects of a command can be distinguished from those of the clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from schemas.commands import (
    Ack,
    Admin,
    AnyCommand,
    CloseProducer,
    ConnectionLost,
    Flow,
    MessageIdData,
    Publish,
    RedeliverUnacknowledgedMessages,
    Seek,
    Send,
    Subscribe,
    Tick,
    to_json,
)
from schemas.effects import (
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
from streaming.broker.broker import Broker
from streaming.broker.dispatch.multiple_consumers import MultipleConsumers
from streaming.broker.entries import NoEntries
from streaming.broker.ledger.ack_set import first_unacked, from_words, to_bits
from streaming.broker.ledger.managed_cursor import ManagedCursor
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import EARLIEST, LATEST, Position, from_wire
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.subscription.subscription import INDIVIDUAL_TYPES
from tests.broker.kit import START, feed

Record = tuple[int, str | None, AnyCommand | Publish]
"""Milliseconds since the record before, topic, command."""

NTH = -1000
"""A ledger id of NTH − n stands for the position of the n-th stored entry, modulo their number."""

RESETS = ("seek", "reset", "start_message_rollback", "created at a message id")
"""Causes of a CURSOR_MOVED that forgets acks. For any other cause, the mark-delete only moves forward."""

ANSWERS = (Success, Error, ProducerSuccess, AckResponse, GetLastMessageIdResponse)


@dataclass
class Group:
    """A subscription as its clients know it: what they acked, and which batches are partly acked.

    `drift`: entries that Pulsar's counter has subtracted too often, because a reset moved the mark-delete past or to before
    individually acked entries (`ManagedCursor.reset`). `phantoms`: the counter treats or treated entries of a missing ledger
    as stored (`ManagedLedger.count`), so its value is meaningless. `ahead`: an unwritten entry was acked, which Pulsar allows
    at the border of a ledger, so the mark-delete is meaningless. `finished`: entries of which acks of parts took the last
    message, so that consumers may still have them pending.
    """

    acked: set[Position] = field(default_factory=set)
    partial: dict[Position, int] = field(default_factory=dict)
    mark_delete: Position = EARLIEST
    drift: int = 0
    phantoms: bool = False
    ahead: bool = False
    finished: set[Position] = field(default_factory=set)

    def ack(self, position: Position, left: int | None) -> None:
        """An individual ack of an entry, or of the messages not in `left`."""
        if left is not None:
            left &= self.partial.get(position, left)
            if not left:
                self.finished.add(position)
        if left:
            self.partial[position] = left
        else:
            self.partial.pop(position, None)
            self.acked.add(position)

    def ack_to(self, position: Position, stored: Iterable[Position]) -> None:
        self.acked.update(entry for entry in stored if entry <= position)
        self.partial = {entry: left for entry, left in self.partial.items() if entry > position}

    def reset(self, after: Position, before: Position, stored: Iterable[Position], *, durable: bool) -> None:
        """Everything up to `after` is acked, and nothing else."""
        if after > before and durable:
            self.drift += sum(before < entry <= after for entry in self.acked)
        self.drift += sum(entry > max(before, after) for entry in self.acked)
        self.acked, self.partial, self.finished = set(), {}, set()
        self.ahead = False
        self.ack_to(after, stored)


@dataclass
class Held:
    """What a consumer has: permits and, if it is Shared or Key_Shared, unacked messages and the entries that it was sent.

    `pending`: position → messages of the entry. `unacked` is no sum of what is left of them (quirk, as in 4.0.7): it differs
    after an ACK with two ids of one entry, after acks or redeliveries of an entry that is `Group.finished`, and once the
    broker has moved the mark-delete past a pending entry. With config.removePendingAcksOnMarkDeleteMove, `pending` has what
    is left of an entry, and `unacked` is the sum.
    """

    permits: int = 0
    unacked: int = 0
    pending: dict[Position, int] = field(default_factory=dict)


@dataclass
class Account:
    """The account of a topic: sizes of the stored entries by position, and what each consumer has."""

    stored: dict[Position, int] = field(default_factory=dict)
    last: Position = EARLIEST
    closed: set[int] = field(default_factory=set)
    groups: dict[str, Group] = field(default_factory=dict)
    consumers: dict[Handle, Held] = field(default_factory=dict)
    answered: int = 0


class Watched:
    """A broker. Compares every effect, and the state after every command, with the account."""

    def __init__(self) -> None:
        self.broker = Broker(0, NoEntries())
        self.now = START
        self.accounts: dict[str, Account] = {}
        self.requests: dict[int, str] = {}
        """Requests without a final response, with their connection."""

    def run(self, log: list[Record]) -> None:
        for jump, topic, command in log:
            if jump:
                self.now += jump
                self.do(None, Tick())
            self.do(topic, command if topic is None else self.located(topic, command))
        self.at_the_end()

    def do(self, name: str | None, command: AnyCommand | Publish) -> None:
        """Run a command: check first its own effects, then their consequences, then the state."""
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
        feed(self.broker, offset, self.now, name, to_json(command))
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
        touched = {name, *(getattr(effect, "topic", None) for effect in effects)}
        everywhere = name is None or any(isinstance(effect, CloseConnection) for effect in effects)
        for topic_name in self.broker.topic_names():
            if not everywhere and topic_name not in touched:
                continue
            topic = self.broker.topic(topic_name)
            account = self.accounts.setdefault(topic_name, Account())
            if self.broker.is_closed(topic_name):
                account.consumers.clear()  # and the rest is as it was, until something loads it
            else:
                self.rests(topic, account)
            self.every_publish_is_answered_once(topic, command, effects, pending.get(topic_name, 0), name)

    def located(self, name: str, command: AnyCommand | Publish) -> AnyCommand | Publish:
        """The command with numbers of entries replaced by positions (see `NTH`)."""
        stored = sorted(self.accounts.setdefault(name, Account()).stored) or [Position(1, 0)]

        def locate(id_: MessageIdData) -> MessageIdData:
            if id_.ledgerId > NTH:
                return id_
            ledger, entry = stored[(NTH - id_.ledgerId) % len(stored)]
            return msgspec.structs.replace(id_, ledgerId=ledger, entryId=entry)

        match command:
            case Ack():
                return msgspec.structs.replace(
                    command, message_id=[locate(id_) for id_ in command.message_id]
                )
            case RedeliverUnacknowledgedMessages():
                return msgspec.structs.replace(
                    command, message_ids=[locate(id_) for id_ in command.message_ids]
                )
            case Seek(message_id=MessageIdData() as id_):
                return msgspec.structs.replace(command, message_id=locate(id_))
            case Subscribe(start_message_id=MessageIdData() as id_):
                return msgspec.structs.replace(command, start_message_id=locate(id_))
        return command

    # -- what a command says --------------------------------------------------------------------------------------

    def is_dropped(self, name: str, command: AnyCommand | Publish) -> bool:
        """An ACK by an unknown consumer gets no response (docs/rules/protocol.md §15)."""
        if not isinstance(command, Ack):
            return False
        return (command.connection, command.consumer_id) not in self.accounts[name].consumers

    def told(self, topic: PersistentTopic, account: Account, command: AnyCommand | Publish) -> None:
        """Apply permits, acks and redeliveries by their rules. A client that closes a queued producer no longer waits for it, and one
        whose topic is unloaded waits in vain."""
        if isinstance(command, Admin) and command.path.endswith("/unload"):
            for waiting in topic.access.waiting:
                self.requests.pop(waiting.request_id, None)
        if isinstance(command, CloseProducer):
            closed = (command.connection, command.producer_id)
            for waiting in topic.access.waiting:
                if (waiting.producer.connection, waiting.producer.producer_id) == closed and not waiting.gone:
                    del self.requests[waiting.request_id]
        if not isinstance(command, Flow | Ack | RedeliverUnacknowledgedMessages):
            return
        handle = (command.connection, command.consumer_id)
        if handle not in account.consumers:
            return
        if isinstance(command, Flow):
            account.consumers[handle].permits += command.messagePermits
            return
        subscription = topic.subscriptions[topic.consumer_handles.of(handle[0])[handle[1]]]
        cursor = topic.cursors[subscription.name]
        if isinstance(command, RedeliverUnacknowledgedMessages):
            resent = {from_wire(id_.ledgerId, id_.entryId) for id_ in command.message_ids}
            self.redelivered(account.consumers[handle], cursor, resent)
            return
        by_index = self.broker._ctx.config.acknowledgmentAtBatchIndexLevelEnabled
        ids = [
            (from_wire(id_.ledgerId, id_.entryId), from_words(id_.ack_set) or None)
            for id_ in command.message_id
        ]
        group = account.groups[subscription.name]
        if command.ack_type == "Individual":
            held = [
                account.consumers[handle],
                *(account.consumers[each.handle] for each in subscription.consumers),
            ]
            for position, left in ids:  # before the cursor gets any, and also those that it refuses
                if left is None or by_index:
                    self.credited(held, cursor, position, left)
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

    def credited(self, held: list[Held], cursor: ManagedCursor, position: Position, left: int | None) -> None:
        """docs/rules/subscriptions.md §6: an ack counts for the consumer that has the entry pending, by what the cursor
        knows of it."""
        owner = next((each for each in held if position in each.pending), None)
        if owner is None:
            held[0].unacked -= left is None and self.broker._ctx.config.ackOfAnyEntryLowersUnacked
            return
        if left is None:
            self.taken_back(owner, cursor, position)
            return
        stored = cursor.batches.get(position)
        if stored is None:
            messages = owner.pending[position] - left.bit_count()
        else:
            messages = (to_bits(stored) & ~left).bit_count()
        owner.unacked -= messages
        if self.keeps_what_is_left:
            owner.pending[position] -= messages

    def taken_back(self, held: Held, cursor: ManagedCursor, position: Position) -> None:
        """An entry is no longer pending: its whole batch counts if the cursor has no acks in it."""
        messages, stored = held.pending.pop(position), cursor.batches.get(position)
        if stored is not None and not self.keeps_what_is_left:
            messages = to_bits(stored).bit_count()
        held.unacked -= messages

    def redelivered(self, held: Held, cursor: ManagedCursor, positions: set[Position]) -> None:
        """A consumer asks for entries again; for all that it has if it names none: nothing counts any more then."""
        if not positions:
            held.unacked, held.pending = 0, {}
        for position in positions & held.pending.keys():
            self.taken_back(held, cursor, position)

    @property
    def keeps_what_is_left(self) -> bool:
        """See `Held.pending`."""
        return self.broker._ctx.config.removePendingAcksOnMarkDeleteMove

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
                    # what was acked ahead may be written, its ledger closed and deleted, all by one command
                    assert group.ahead or group.acked.issuperset(gone)
                    group.acked.difference_update(gone)
                for cursor in self.broker.topic(topic).cursors.values():
                    assert not cursor.durable or cursor.key >= gone[-1]
                    if cursor.key < gone[-1] and cursor.name in account.groups:  # see trimMovesToNextLedger
                        account.groups[cursor.name].phantoms = True
            case SubscriptionEvent():
                self.subscription_event(account, effect, command)
            case CursorMoved() | Expired() | Evicted() if effect.subscription in account.groups:
                before = Position(effect.before_ledger, effect.before_entry)
                after = Position(effect.after_ledger, effect.after_entry)
                group = account.groups[effect.subscription]
                if isinstance(effect, CursorMoved) and effect.cause.startswith(RESETS):
                    there = self.broker.topic(effect.topic or "")
                    durable = there.cursors[effect.subscription].durable
                    group.reset(after, before, account.stored, durable=durable)
                    if before.ledger not in there.ledger.ledgers:
                        group.phantoms = True
                    if self.broker.config.seekCountsConsumedAnew and not effect.cause.startswith("created"):
                        group.drift, group.phantoms = 0, False
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
                    group.mark_delete = EARLIEST  # the position may be written differently now, but acks stay
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
        """Only stored, unacked entries are sent, and only to consumers with permits."""
        position = Position(message.ledger_id, message.entry_id)
        group = account.groups[message.subscription]
        assert position in account.stored
        assert position not in group.acked or group.ahead
        left = group.partial.get(position)
        assert (None if message.ack_set is None else from_words(message.ack_set)) == left
        messages = message.messages if left is None else left.bit_count()
        held = account.consumers[message.connection, message.consumer_id]
        held.permits -= messages
        held.unacked += messages
        held.pending[position] = messages if self.keeps_what_is_left else message.messages

    def answered(self, answer: Any) -> None:
        """A request gets exactly one final response."""
        if isinstance(answer, ProducerSuccess) and not answer.fields.producer_ready:
            assert answer.request_id in self.requests
            return
        assert self.requests.pop(answer.request_id, None) == answer.connection, answer

    def gone(self, connection: str) -> None:
        self.requests = {id_: other for id_, other in self.requests.items() if other != connection}

    def every_publish_is_answered_once(
        self,
        topic: PersistentTopic,
        command: AnyCommand | Publish,
        effects: list[Effect],
        before: int,
        name: str | None,
    ) -> None:
        """With a receipt or an error, now or when its write is done. An unload and a termination send no responses: all producers are
        gone."""
        answers = [e for e in effects if isinstance(e, SendReceipt | SendError) and e.topic == topic.name]
        if any(TopicEvent(topic.name, cause) in effects for cause in ("unloaded", "terminated")):
            assert not topic.pending
            return
        published = isinstance(command, Publish | Send) and name == topic.name
        if isinstance(command, Send) and not answers and len(topic.pending) == before:
            return  # of a producer that isn't there: its connection was closed, or it is ignored
        assert before + published == len(answers) + len(topic.pending)

    # -- what is left ---------------------------------------------------------------------------------------------

    def rests(self, topic: PersistentTopic, account: Account) -> None:
        """The state after a command."""
        ledger, dedup = topic.ledger, topic.dedup
        assert ledger.number_of_entries == len(account.stored)
        assert ledger.total_size == sum(account.stored.values())
        for id_, info in ledger.ledgers.items():
            entries = sum(position.ledger == id_ for position in account.stored)
            assert info.entries == (entries if id_ in account.closed else 0)
        if not topic.fenced:  # else what failed is taken back when the last write under way is done
            assert set(dedup.ahead) <= {write.producer.name for write in topic.pending}
        assert set(topic.subscriptions) == set(account.groups)
        account.consumers = {
            handle: account.consumers.get(handle, Held()) for handle in topic.consumer_handles
        }
        for name, cursor in topic.cursors.items():
            if name in topic.subscriptions:
                self.cursor_rests(topic, account, topic.subscriptions[name])
            else:
                assert cursor.read_position > cursor.mark_delete
                assert cursor.backlog(ledger) == cursor.backlog(ledger, precise=True)

    def cursor_rests(
        self, topic: PersistentTopic, account: Account, subscription: PersistentSubscription
    ) -> None:
        ledger, cursor, group = (
            topic.ledger,
            topic.cursors[subscription.name],
            account.groups[subscription.name],
        )
        assert cursor.mark_delete >= group.mark_delete
        group.mark_delete = cursor.mark_delete
        acked = {entry for entry in account.stored if cursor.has_acked(entry)}
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
            assert consumer.permits + waiting == account.consumers[consumer.handle].permits
        if isinstance(subscription.dispatcher, MultipleConsumers):
            self.dispatcher_rests(subscription, subscription.dispatcher, group)
            for consumer in subscription.consumers:
                self.pending_rests(account.consumers[consumer.handle], consumer, cursor)

    def dispatcher_rests(
        self, subscription: PersistentSubscription, dispatcher: MultipleConsumers, group: Group
    ) -> None:
        """An entry is in one place: pending at one consumer, in the replay set, or delayed."""
        pending = [position for consumer in subscription.consumers for position in consumer.pending]
        delayed = [(ledger, entry) for _, ledger, entry in dispatcher.delayed.waiting]
        assert len(pending) == len(set(pending))
        assert not set(pending) & {*dispatcher.replay, *delayed}
        assert not set(dispatcher.replay) & set(delayed)
        assert list(dispatcher.replay) == sorted(set(dispatcher.replay))
        config = self.broker._ctx.config
        if (
            config.removePendingAcksOnMarkDeleteMove
            and subscription.durable
            and not config.passedEntriesStayPending
        ):
            assert set(pending) & group.acked <= group.finished
        assert dispatcher.total_unacked == sum(consumer.unacked for consumer in subscription.consumers)
        assert dispatcher.total_permits == sum(consumer.permits for consumer in subscription.consumers)

    def pending_rests(self, held: Held, consumer: Consumer, cursor: ManagedCursor) -> None:
        """Entries that the mark-delete has passed may be forgotten, which uncounts them later than 4.0."""
        for position in held.pending.keys() - consumer.pending.keys():
            assert position <= cursor.mark_delete
            messages = held.pending.pop(position)
            if self.keeps_what_is_left:
                held.unacked -= messages
        assert consumer.pending == held.pending
        assert consumer.unacked == held.unacked
        exact = self.keeps_what_is_left and not self.broker._ctx.config.ackOfAnyEntryLowersUnacked
        assert not exact or consumer.unacked == sum(consumer.pending.values())

    def at_the_end(self) -> None:
        """Only clients that wait for their turn or their writes still wait for a response. The state equals the effects."""
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
    topic: PersistentTopic,
    account: Account,
    subscription: PersistentSubscription,
    position: Position,
    left: int | None,
) -> None:
    """docs/rules/cursors.md §4: refused before the mark-delete and past the end, except at a ledger's border."""
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
