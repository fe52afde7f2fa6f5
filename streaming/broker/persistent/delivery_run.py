"""Delivery runs: the publishes, deliveries, acks and permits of steady topics, folded by arithmetic.

The problem
    A steady step (`streaming.broker.persistent.steady`) costs some hundred operations, most of them to make the objects of entries and rows,
    and to keep counters that nobody looks at before the next check.

The idea
    Plain publishes that follow each other in a log, on whatever topics, form a *stretch*, with the ACKs, FLOWs and other commands of clients
    that are between them and concern nothing but their topics. A topic opens at
    one of its records, if it is steady, and takes its records until a *decision*: one from which more may come than arithmetic. Then it
    is closed, which writes what it took to its state, and the record takes the scalar step.

The data
    `Stretch`        the records, and where their publishes are in `Publishes`
    `Deliveries`     the messages that were sent, as columns
    `Watcher`        gets these and the acks of each topic instead, as columns
    `_TopicOfRun`    an open topic: what it took, the lanes of its subscriptions (`streaming.broker.dispatch.lanes`) and the runs of their
                     cursors (`streaming.broker.ledger.cursor_run`)

Invariants
    * Rows and state are those of the scalar step, for any log and any cuts (``tests/broker/test_delivery_run.py``).
    * Records are taken in their order. Nobody looks at a topic between two of its decisions, so its state may be behind then.
    * A check or a timer closes all topics, and so does a record that closes a connection.

What it costs
    A record that a topic takes costs a microsecond or less. A topic that has fewer than `_FEW` in a stretch does not open. One that
    can't be opened, or takes fewer before its next decision, is left to the scalar step for a while, and longer each time.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from schemas.commands import Ack, Decoded, Flow
from streaming.broker.context import Context
from streaming.broker.dispatch.lanes import Lane
from streaming.broker.dispatch.sticky_key_hash import hash_of_key, sticky_key_hash
from streaming.broker.ledger.cursor_run import CursorRun, cursor_run
from streaming.broker.persistent.publish.publish_run import OpenTopic, Publishes, Receipts
from streaming.broker.persistent.steady import SteadySubscription, SteadyTopic
from streaming.broker.position import Position
from streaming.broker.subscription.consumer import Consumer, Handle
from streaming.broker.subscription.subscription import INDIVIDUAL_TYPES

DECISION = -1
"""Instead of a number of effects: the record takes the scalar step."""

NO_PLACE, FIRST_ACK = -1, -2
"""See `RecordsOfRun.places`."""

_FEW = 8
_LONGEST_REST = 256
_MOST_SUBSCRIPTIONS = 8
"""A topic with more takes the scalar step: the messages of a run wait until its records are done, and so they are no more than this times the
records."""


class Stretch(NamedTuple):
    """Records from number `start` to before `stop`: plain publishes, of which the first is row `row` of `Publishes`, and commands that concern
    nothing but their topic."""

    start: int
    stop: int
    row: int


class Acks(NamedTuple):
    """ACKs of one entry each, and without any other field, as columns. `records`: their numbers. `individual`: of the type Individual; the
    others are Cumulative. `parts`: of a part of a batch."""

    records: list[int]
    consumers: list[Handle]
    ledgers: list[int]
    entries: list[int]
    individual: list[bool]
    parts: list[bool]


class RecordsOfRun(NamedTuple):
    """The records around a stretch, by number. `commands`: None for one that is not decoded. `places`: the row of a publish in `Publishes`;
    `FIRST_ACK` for the first of `acks`, and one less for each of them after it; `NO_PLACE` for all other records."""

    offsets: Sequence[int]
    timestamps: Sequence[int]
    topics: Sequence[str | None]
    commands: Sequence[Decoded | None]
    places: Sequence[int]
    acks: Acks


class To(NamedTuple):
    """Who is sent messages. `epoch`: see `schemas.effects.Message`."""

    connection: str
    consumer_id: int
    subscription: str
    epoch: int | None


class Deliveries:
    """Messages as columns, in any order: the rows of `Publishes`, each one's place among the effects of its record, the position of the entry,
    and who gets it, as a number of `to`."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.ordinals: list[int] = []
        self.ledgers: list[int] = []
        self.entries: list[int] = []
        self.numbers: list[int] = []
        self.to: list[To] = []

    def add(
        self, lane: Lane, ledger: int, subscription: str, ordinals: Sequence[int], *, epochs: bool
    ) -> None:
        """Add what a subscription was sent of a ledger. `epochs`: it shows the epochs of its consumers."""
        numbers: dict[Handle, int] = {}
        for consumer in lane.owners:
            if (handle := (consumer.connection, consumer.consumer_id)) not in numbers:
                numbers[handle] = len(self.to)
                epoch = consumer.epoch if epochs and consumer.epoch >= 0 else None
                self.to.append(To(*handle, subscription, epoch))
            self.numbers.append(numbers[handle])
        self.rows += lane.rows
        self.ordinals += ordinals
        self.ledgers += [ledger] * len(lane.rows)
        self.entries += lane.entries


class Followed(NamedTuple):
    """What a subscription was sent, and of each ack four integers: the entry before the first and the last entry that it acked, its time (ms), and
    the entries that were unacked before it."""

    subscription: str
    deliveries: Deliveries
    acks: list[int]


class Took(NamedTuple):
    """What a topic took from its opening to its close: publishes, of which `rows[0]` became entry `first` of a ledger, and what came of them."""

    topic: str
    ledger: int
    first: int
    rows: list[int]
    followed: list[Followed]


class Watcher(Protocol):
    """Watches acks (see `Broker.watch_acks`), and is told what the topics of a run take."""

    def may_open(self, topic: str, ledger: int, first: int, acked: int) -> int:
        """A topic opens, whose next publish becomes entry `first` of its ledger. Acks are of entries from `acked` on. Returns the entry that takes
        the scalar step; `first`: the topic doesn't open."""

    def took(self, took: Took) -> None:
        """A topic closes. Of it, there are no effects since it opened."""


class SteadyTopics(Protocol):
    """The persistent topics, as a run needs them: see `streaming.broker.topics.PersistentTopics`."""

    def steady(self, name: str | None) -> SteadyTopic | None:
        """The topic of that name, if it is steady."""

    def next_due(self) -> int:
        """When the next check or timer is due (ms)."""


class DeliveryRun:
    """A run over a stretch. Use it once."""

    def __init__(
        self,
        ctx: Context,
        topics: SteadyTopics,
        publishes: Publishes,
        numbers: Sequence[int],
        receipts: Receipts,
        deliveries: Deliveries,
    ) -> None:
        """`numbers`: a number for the sender of each row. `receipts`, `deliveries`: where those of the records that the run takes are added."""
        self.ctx, self.publishes, self.numbers = ctx, publishes, numbers
        self.receipts, self.deliveries = receipts, deliveries
        self.watcher: Watcher | None = None
        self._all = topics
        self._open: dict[str | None, _TopicOfRun] = {}
        self._worth_it: set[str | None] = set()  # topics with enough records in the stretch
        self._rests: dict[
            str | None, list[int]
        ] = {}  # how long a topic's last rest was, and what is left of it

    def fold(self, records: RecordsOfRun, stretch: Stretch, step: Callable[[int], object]) -> None:
        """Fold the records of a stretch. `step` carries out one that takes the scalar step."""
        ctx, opened = self.ctx, self._open
        offsets, timestamps, topics, commands, places, self.acks = records
        start, stop, _ = stretch
        self._worth_it = {name for name, count in Counter(topics[start:stop]).items() if count >= _FEW}
        clock, due, effects = ctx.clock, self._all.next_due(), DECISION
        try:
            for record in range(start, stop):
                before = clock
                if timestamps[record] > clock:
                    clock = timestamps[record]
                effects = DECISION
                if clock >= due:
                    self.close()
                elif (topic := opened.get(topics[record]) or self._opened(topics[record], clock)) is not None:
                    if clock >= topic.end:
                        pass
                    elif (place := places[record]) >= 0:
                        effects = topic.publish(place, clock)
                    elif place <= FIRST_ACK:
                        effects = topic.acknowledge(FIRST_ACK - place, clock)
                    else:
                        effects = topic.command(commands[record], clock)
                    if effects >= 0:
                        topic.took += 1
                        continue
                    self._close(opened.pop(topics[record]))
                ctx.clock = max(ctx.clock, before)  # the step goes on from there
                step(record)
                clock, due = ctx.clock, self._all.next_due()
        except Exception:
            ctx.at_work = topics[record] or ""
            raise
        if effects >= 0:
            ctx.offset, ctx.ordinal, ctx.clock = offsets[stop - 1], effects, clock
        self.close()

    def close(self) -> None:
        """Write what the topics took to their states. Do it before something happens on other topics than a record's own."""
        while self._open:
            self._close(self._open.popitem()[1])

    def hash_of(self, row: int) -> int:
        """The hash of the key of a publish, as `sticky_key_hash`."""
        publishes = self.publishes
        if publishes.metadata is None and (key := publishes.keys[row]) is not None:
            return hash_of_key(key)
        spreads = self.ctx.config.keySharedSpreadsKeyless
        return sticky_key_hash(publishes.entry(row).metadata, spreads_keyless=spreads)

    def _opened(self, name: str | None, clock: int) -> "_TopicOfRun | None":
        """Open a topic. None: it takes the scalar step."""
        if name not in self._worth_it:
            return None
        if (rest := self._rests.get(name)) is not None and rest[1] > 0:
            rest[1] -= 1
            return None
        if (steady := self._all.steady(name)) is None:
            return None
        self.ctx.clock = clock
        if (found := _open(self, steady)) is None:
            self._rest(name)
            return None
        self._open[name] = found
        return found

    def _close(self, topic: "_TopicOfRun") -> None:
        topic.close()
        if topic.took < _FEW:
            self._rest(topic.found.topic.name)
        else:
            self._rests.pop(topic.found.topic.name, None)

    def _rest(self, name: str | None) -> None:
        """It was in vain to open a topic."""
        rest = self._rests.setdefault(name, [_FEW // 2, 0])
        rest[0] = rest[1] = min(2 * rest[0], _LONGEST_REST)


class _Follower(NamedTuple):
    """A subscription of an open topic. `cursor`: None, if acks take the scalar step. `ordinals`: of the messages that it was sent. `acks`: see
    `Followed`; None: nobody watches them. `ahead`: how many more entries were unacked than were in the ledger, when the topic opened."""

    known: SteadySubscription
    lane: Lane
    cursor: CursorRun | None
    ordinals: list[int]
    acks: list[int] | None
    ahead: int


class _TopicOfRun:
    """An open topic. `took`: how many records it took; `end`: when it takes none any more (ms). The record is a `DECISION`, or the methods
    return how many effects it has."""

    __slots__ = ("_acknowledging", "_entry", "_followers", "_run", "_steady", "end", "found", "took")

    def __init__(self, run: DeliveryRun, steady: SteadyTopic, found: OpenTopic, followers: list[_Follower]) -> None:  # fmt: skip
        self._run, self._steady, self.found, self._followers = run, steady, found, followers
        self._entry, self.end, self.took = found.first, min(found.end, found.topic.rates_until), 0
        self._acknowledging: dict[Handle, tuple[_Follower, Consumer]] = {}

    def publish(self, row: int, now: int) -> int:
        """Take a publish."""
        run, found, entry = self._run, self.found, self._entry
        publishes, number = run.publishes, run.numbers[row]
        producer = found.lanes.get(number) or found.add_lane(number, publishes.senders[row])
        if (
            producer is None
            or entry >= found.stop
            or (found.enabled and publishes.sequence_ids[row] <= producer.mark)
        ):
            return DECISION
        messages = publishes.messages[row]
        chosen: list[tuple[_Follower, Consumer]] = []
        for each in self._followers:
            if each.lane.flowing:
                if (consumer := each.lane.pick(row, messages)) is None:
                    return DECISION
                chosen.append((each, consumer))
        size, effects = publishes.sizes[row], 1
        for (_, lane, _, ordinals, _, _), consumer in chosen:
            lane.take(consumer, row, entry, messages, size, now)
            ordinals.append(effects)
            effects += 1
        if found.enabled:
            producer.mark = publishes.marks[row]
        counters = producer.counters
        counters.messages_in += messages
        counters.bytes_in += size
        counters.last = now
        found.taken.append(row)
        self._entry = entry + 1
        return effects

    def command(self, command: Decoded | None, now: int) -> int:
        """Take an ACK or a FLOW."""
        if type(command) is Ack:
            ids, handle = command.message_id, (command.connection, command.consumer_id)
            if (
                command.request_id is not None
                or command.txnid_least_bits is not None
                or command.txnid_most_bits is not None
            ):
                return DECISION
            individual, ledger = command.ack_type == "Individual", self.found.ledger
            if len(ids) == 1 and not ids[0].ack_set:
                return self._acknowledge(handle, ids[0].ledgerId, ids[0].entryId, individual, now)
            if not individual or not ids or any(each.ledgerId != ledger for each in ids):
                return DECISION
            whole = [each.entryId for each in ids if not any(each.ack_set)]
            parts = [each.entryId for each in ids if any(each.ack_set)]
            return self._acknowledge_all(handle, whole, parts, now)
        if type(command) is not Flow:
            return DECISION
        permits, known = command.messagePermits, self._known((command.connection, command.consumer_id))
        if known is None:
            return DECISION
        (of, lane, *_), consumer = known
        if permits <= 0 or consumer.exceeds(permits) is not None or not lane.flow(consumer, permits):
            return DECISION
        of.subscription.last_flow = consumer.last_flow = now
        return 0

    def acknowledge(self, number: int, now: int) -> int:
        """Take the ACK of a number of `Acks`."""
        _, consumers, ledgers, entries, individual, parts = self._run.acks
        handle, ledger, entry = consumers[number], ledgers[number], entries[number]
        if parts[number]:
            if ledger != self.found.ledger or not individual[number]:
                return DECISION
            return self._acknowledge_all(handle, (), (entry,), now)
        return self._acknowledge(handle, ledger, entry, individual[number], now)

    def _acknowledge(self, handle: Handle, ledger: int, entry: int, individual: bool, now: int) -> int:
        known = self._acknowledging.get(handle) or self._known(handle)
        if known is None:
            return DECISION
        (of, lane, cursor, _, acks, ahead), consumer = known
        if cursor is None or ledger != self.found.ledger or entry >= self._entry:
            return DECISION
        before, acked = cursor.mark, cursor.acks
        if individual:
            if not cursor.has(entry) or not lane.take_ack(consumer, ledger, entry):
                return DECISION
            cursor.acknowledge(entry, now)
            before = entry - 1
        elif (
            of.subscription.type in INDIVIDUAL_TYPES
            or entry >= lane.read
            or not cursor.acknowledge_to(entry, now)
        ):
            return DECISION
        else:
            consumer.acks += 1
        if acks is not None:
            acks.extend((before, entry, now, ahead + self._entry - acked))
        of.subscription.last_active = consumer.last_ack = now
        return 0

    def _acknowledge_all(self, handle: Handle, whole: Sequence[int], parts: Sequence[int], now: int) -> int:
        """Individual acks of entries, and of parts of them, which mean nothing where the cursor does not note them."""
        known, ledger, end = (
            self._acknowledging.get(handle) or self._known(handle),
            self.found.ledger,
            self._entry,
        )
        if known is None:
            return DECISION
        (of, lane, cursor, _, acks, ahead), consumer = known
        if cursor is None or (parts and self._run.ctx.config.acknowledgmentAtBatchIndexLevelEnabled):
            return DECISION
        if acks is not None and any(entry in whole or not cursor.has(entry) for entry in parts):
            return DECISION  # it is watched as an ack of the whole entry
        if whole and not (
            max(whole) < end
            and len(set(whole)) == len(whole)
            and all(map(cursor.has, whole))
            and lane.sent(consumer, ledger, whole)
        ):
            return DECISION
        # What lets the first of them be taken lets all of them.
        for entry in whole:
            if not lane.take_ack(consumer, ledger, entry):
                return DECISION
        for entry in parts:
            if not lane.take_part(ledger, entry):
                return DECISION
        if acks is not None:
            backlog = ahead + end - cursor.acks
            for entry in whole:
                acks.extend((entry - 1, entry, now, backlog))
            if not whole:
                acks.extend((cursor.mark, cursor.mark, now, backlog))
        cursor.acknowledge_all(whole, now)
        of.subscription.last_active = consumer.last_ack = now
        return 0

    def _known(self, handle: Handle) -> tuple[_Follower, Consumer] | None:
        if (found := self._steady.consumer(handle)) is None:
            return None
        follower = next(each for each in self._followers if each.known is found[0])
        known = self._acknowledging[handle] = follower, found[1]
        return known

    def close(self) -> None:
        """Leave the topic as the records have made it."""
        run, found = self._run, self.found
        publishes, topic = run.publishes, found.topic
        if taken := found.taken:
            found.size = topic.ledger.entry_sizes.add_all([publishes.sizes[row] for row in taken])
            topic.counters.messages_in += sum(map(publishes.messages.__getitem__, taken))
            topic.counters.bytes_in += found.size
            found.write(run.ctx, publishes)
            found.hand_over(run.ctx, publishes, run.receipts)
        followed = []
        for (_, subscription, _, _), lane, cursor, ordinals, acks, _ in self._followers:
            if cursor is not None and cursor.acks:
                subscription.acked += cursor.acks
                if cursor.moved >= 0:
                    subscription.last_mark_delete_advanced = cursor.moved
                cursor.end()
            lane.end(found.ledger, publishes)
            deliveries = run.deliveries if acks is None else Deliveries()
            if lane.rows:
                epochs = subscription.type not in INDIVIDUAL_TYPES
                deliveries.add(lane, found.ledger, subscription.name, ordinals, epochs=epochs)
            if acks is not None:
                followed.append(Followed(subscription.name, deliveries, acks))
        if run.watcher is not None and self.took:
            run.watcher.took(Took(topic.name, found.ledger, found.first, taken, followed))


def _open(run: DeliveryRun, steady: SteadyTopic) -> _TopicOfRun | None:
    ctx, topic, largest = run.ctx, steady.topic, run.publishes.largest
    ledger = topic.ledger
    if (
        (ctx.acks is not None and run.watcher is None)
        or largest.payload > ctx.config.maxMessageSize
        or largest.messages > ctx.config.maxMessagesPerBatch
        or 0 < ctx.config.maxEffectsPerCommand <= _MOST_SUBSCRIPTIONS + 1
        or len(steady.waiting) > _MOST_SUBSCRIPTIONS
        or not steady.is_as_it_was()
    ):
        return None
    following, followers = Position(ledger.current, ledger.current_entries), []
    for known in steady.waiting:
        lane = known.lane
        if lane is None or not lane.begin(following, run.hash_of):
            return None
        cursor = cursor_run(known.sub.cursor, ledger, steady.rate)
        follower = _Follower(known, lane, cursor, [], None, 0)
        if run.watcher is not None:
            ahead = known.sub.cursor.backlog(ledger, precise=True) - following.entry
            follower = _Follower(known, lane, cursor, [], [], ahead)
        followers.append(follower)
    found = OpenTopic(topic, ctx, largest.entry, steady.until)
    if run.watcher is not None:
        marks = (each.cursor.mark for each in followers if each.cursor is not None)
        acked = min(marks, default=found.first - 1) + 1
        found.stop = min(found.stop, run.watcher.may_open(topic.name, found.ledger, found.first, acked))
        if found.stop <= found.first:
            return None
    return _TopicOfRun(run, steady, found, followers)
