"""The topics of an ingress partition, by domain: loaded from the state when something touches them, created, and given
their commands (mirrors `BrokerService`).
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from schemas.commands import Ack, Decoded, Flow, Producer, Publish, RedeliverUnacknowledgedMessages, Send
from schemas.metrics import TopicMetrics
from streaming.broker import periodic_checks
from streaming.broker.admin import partitioned_topics
from streaming.broker.context import NEVER, Context
from streaming.broker.names import DEDUP_CURSOR, whole_of
from streaming.broker.non_persistent import commands as non_persistent_commands
from streaming.broker.non_persistent import inactive_subscriptions, inactivity
from streaming.broker.non_persistent import stats as non_persistent_stats
from streaming.broker.non_persistent.topic import NonPersistentTopic, is_non_persistent
from streaming.broker.periodic_checks import CHECKS, Check, Rounds
from streaming.broker.persistent import lifecycle, rate_limits, unacked_limit
from streaming.broker.persistent import stats as persistent_stats
from streaming.broker.persistent.cleanup import trimming
from streaming.broker.persistent.commands import HANDLERS
from streaming.broker.persistent.publish import deduplication_snapshots, producer_purge
from streaming.broker.persistent.steady import SteadyTopic, steady_topic
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.state.codec import (
    PartitionState,
    TopicBlock,
    decode_non_persistent_topic,
    decode_topic,
    encode_topic,
)
from streaming.broker.topic import inactive_producers, inactive_topics, registration
from streaming.broker.topic.abstract_topic import AbstractTopic
from streaming.broker.topic.inactive_subscriptions import expires_at
from streaming.broker.topic.stats import internal_stats
from streaming.broker.topic.topic_commands import TopicCommand
from streaming.broker.transactions.coordinator import TIMER

T = TypeVar("T", bound=AbstractTopic)

STEADY = frozenset({Publish, Send, Ack, Flow, RedeliverUnacknowledgedMessages})
"""Commands after which a topic is still steady if it was."""


class Topics(ABC, Generic[T]):
    """The topics of one domain. `state` holds the encoded topics of both."""

    def __init__(self, ctx: Context, state: PartitionState) -> None:
        self._ctx, self._state = ctx, state
        self._loaded: dict[str, T] = {}

    def load(self, name: str) -> T:
        """A topic, decoded from the state, or created if the state does not have it."""
        self._ctx.at_work = name
        topic = self._loaded.get(name)
        if topic is None:
            block = self._state.topics.get(name)
            if block is None:
                self._state.topics[name] = TopicBlock(b"")
                topic = self._loaded[name] = self._create(name, self._ctx.deleted.take(name))
            else:
                topic = self._loaded[name] = self._decode(block.data)
        return topic

    @abstractmethod
    def open(self, name: str) -> None:
        """Create or load a topic, as a command on it does, and note when something is due on it."""

    @abstractmethod
    def carry_out(self, name: str, command: TopicCommand) -> None:
        """Carry out a command, and everything that follows from it. A missing topic is created first."""

    def answer_missing(self, name: str, command: TopicCommand) -> None:
        """Answer a command on a topic that does not exist and that the command does not create, as an empty topic does."""
        self._handle(self._missing(name, self._ctx.deleted.former(name)), command)

    def delete(self, name: str, *, force: bool, cause: str = "by an administrator") -> int:
        """Delete a topic, unless producers or consumers use it: returns their number. `force`: disconnects them and
        deletes it anyway."""
        topic = self._touch(name)
        users = len(topic.producers) + len(topic.consumer_handles)
        if users and not force:
            return users
        last_ledger = self._close(topic, cause)
        del self._loaded[name], self._state.topics[name]
        self._ctx.deleted.add(name, last_ledger)
        self._ctx.policies_changed()
        return 0

    def set_aside(self, name: str) -> None:
        """Take a topic out of everything, as it is. Nothing looks into it."""
        block = self._state.topics.pop(name)
        if (topic := self._loaded.pop(name, None)) is not None:
            block.data = encode_topic(topic)
        self._state.aside[name] = block

    def encode(self) -> None:
        """Encode the loaded topics into the state."""
        for name, topic in self._loaded.items():
            self._ctx.at_work = name
            block = self._state.topics[name]
            block.data = encode_topic(topic)
            self._summarise(topic, block)

    @abstractmethod
    def _touch(self, name: str) -> T:
        """Load or create a topic on which something happens now."""

    @abstractmethod
    def _close(self, topic: T, cause: str) -> int:
        """Delete what a topic has. Returns its last ledger id, 0: it had none."""

    @abstractmethod
    def _create(self, name: str, former: int) -> T:
        """Create a topic. `former`: the last ledger id of the deleted one of its name."""

    @abstractmethod
    def _decode(self, data: bytes) -> T:
        """A topic as `encode_topic` left it."""

    @abstractmethod
    def _summarise(self, topic: T, block: TopicBlock) -> None:
        """Note in the block what the broker must know without decoding it."""

    @abstractmethod
    def _missing(self, name: str, former: int) -> T:
        """An empty topic that is not kept, see `_create`."""

    @abstractmethod
    def _handle(self, topic: T, command: TopicCommand) -> None:
        """Carry out a command, and everything that follows from it."""

    @abstractmethod
    def connection_lost(self, name: str, connection: str) -> None:
        """Close everything that a connection had on a topic."""

    @abstractmethod
    def stats(self, name: str) -> dict[str, Any]:
        """See `Broker.topic_stats`."""

    @abstractmethod
    def stats_rows(self, name: str) -> list[dict[str, Any]]:
        """See `Broker.stats`."""

    def loaded(self) -> list[str]:
        """The names of the topics that something has touched."""
        return list(self._loaded)

    def fan_out(self, name: str) -> int:
        """The subscriptions that a message of a topic goes to, 0 if nothing has touched it."""
        topic = self._loaded.get(name)
        return 0 if topic is None else len(topic.subscriptions)  # type: ignore[attr-defined]  # each kind has its own

    @abstractmethod
    def metrics(self, name: str) -> TopicMetrics:
        """The figures of a topic that a metrics endpoint shows."""


class PersistentTopics(Topics[PersistentTopic]):
    """Topics that store their messages, with their timers and periodic checks.

    A topic on which nothing happens costs nothing: a round of checks runs on it only if a check may have an effect there.
    What the other rounds would have left behind is made up for when something happens, which starts with `touch`. After
    that, the next two rounds run in any case.
    """

    _skips = True  # False in a test, which shows that it makes no difference

    def __init__(
        self,
        ctx: Context,
        state: PartitionState,
        non_persistent: "NonPersistentTopics",
    ) -> None:
        super().__init__(ctx, state)
        self._non_persistent = non_persistent
        self.deleted_unused = False
        """Whether topics were deleted because nobody used them. The broker, which counts topics, resets it."""
        self.run_coordinators: Callable[[], object] = lambda: None
        """Runs the timers of transactions."""
        self._rounds = Rounds(ctx.config, state.origin)
        self._awake: dict[str, PersistentTopic] = {}  # something has happened since their last round
        # None: it may be one if the next publish goes well, too
        self._steady: dict[str, SteadyTopic | None] = {}
        self._put_off: dict[str, int] = {}  # topics that rounds leave out, and the first such round (ms)
        self._passed: int | None = None  # rounds up to this time are over (ms); None: up to the clock
        self._running = ""  # the topic on which a round runs; it is over for topics before that one
        ctx.timers = [(block.due, name) for name, block in state.topics.items() if block.due >= 0]
        heapq.heapify(ctx.timers)
        ctx.wake_waiting(ctx.limits.dispatch)
        self._queue = self._scheduled()

    # -- time -----------------------------------------------------------------------------------------------------

    def touch(self, name: str) -> PersistentTopic:
        """Load or create a topic on which something happens now."""
        self._steady.pop(name, None)
        return self._touch_steadily(name)

    def _touch_steadily(self, name: str) -> PersistentTopic:
        """As `touch`, for what leaves a steady topic as it is."""
        self._ctx.at_work = name
        topic = self._awake.get(name)
        if topic is None:
            topic = self._wake(name)
        if self._ctx.clock >= topic.rates_until:
            topic.update_rates(self._ctx)
        return topic

    def take_steady_step(self, name: str | None, command: Decoded) -> bool:
        """Carry out a publish or an ack on a topic that is in its usual state. False: it, or the command, is not that plain."""
        topic = self._steady.get(name)  # type: ignore[arg-type]
        if topic is None:
            return False
        self._ctx.at_work = name  # type: ignore[assignment]
        if isinstance(command, Publish):
            taken = topic.publish(command)
        elif isinstance(command, Ack):
            taken = topic.acknowledge(command)
        else:
            taken = isinstance(command, Send) and topic.send(command)
        if self._ctx.freed:
            self._free_ledgers()
        return taken

    def steady(self, name: str | None) -> SteadyTopic | None:
        """The topic of that name, if it is in its usual state."""
        return self._steady.get(name)  # type: ignore[arg-type]

    def open(self, name: str) -> None:
        """Create or load a topic, as a command on it does. Rounds of checks run on it from now on."""
        self.touch(name)

    def awake(self, name: str | None) -> PersistentTopic | None:
        """The topic on which something has happened since its last round of checks: `touch` only keeps its rates."""
        return self._awake.get(name)  # type: ignore[arg-type]

    def touch_without_effects(self, name: str | None) -> PersistentTopic | None:
        """As `touch`. None if that creates or reopens a topic, or if its consumers may get something."""
        topic = self.awake(name)
        if topic is None:
            block = self._state.topics.get(name)  # type: ignore[arg-type]
            if block is None or block.closed or is_non_persistent(name):  # type: ignore[arg-type]
                return None
            topic = self.load(name)  # type: ignore[arg-type]
        return None if topic.subscriptions and topic.connected else self.touch(topic.name)

    def _wake(self, name: str, *, expires: bool = True) -> PersistentTopic:
        """`expires`: if this loads the topic, it expires messages as well."""
        topic = self._awake[name] = self.load(name)
        block, passed = self._state.topics[name], self._passed_on(name)
        self._settle(topic, block, passed)
        if block.closed:
            block.closed = False
            lifecycle.reopen(self._ctx, topic)
            if expires:
                lifecycle.expire_when_loaded(self._ctx, topic)
        lifecycle.resume_retries(self._ctx, topic)
        block.settled = -1
        self._schedule(name, block, self._rounds.first_after(passed))
        return topic

    def _passed_on(self, name: str) -> int:
        return self._ctx.clock if self._passed is None else self._passed + (name < self._running)

    def _settle(self, topic: PersistentTopic, block: TopicBlock, until: int) -> None:
        if 0 < block.settled < until:
            if self._was_skipped(block, until):
                self._rounds.skipped(self._ctx, topic, block.settled, until)
            block.settled = until

    def _was_skipped(self, block: TopicBlock, until: int) -> bool:
        return block.settled > 0 and self._rounds.first_after(block.settled) <= until

    def look_at(self, name: str) -> PersistentTopic:
        """A topic as it is with what skipped rounds would have left behind. That is a copy then, as to look must not change it."""
        topic, block, now = self.load(name), self._state.topics[name], self._ctx.clock
        if self._was_skipped(block, now):
            topic = decode_topic(encode_topic(topic))
            self._rounds.skipped(self._ctx, topic, block.settled, now)
        return topic

    def _schedule(self, name: str, block: TopicBlock, at: int) -> None:
        at = at if at < NEVER else -1
        if block.next_round == at:
            return
        block.next_round = at
        if at >= 0:
            heapq.heappush(self._queue, (at, name))
            if len(self._queue) > 4 * len(self._state.topics) + 64:
                self._queue = self._scheduled()  # without the entries that no longer hold

    def _scheduled(self) -> list[tuple[int, str]]:
        queue = [
            (block.next_round, name) for name, block in self._state.topics.items() if block.next_round >= 0
        ]
        heapq.heapify(queue)
        return queue

    def next_due(self) -> int:
        """The time before which no timer fires and no round runs (ms), or `NEVER`."""
        timers, rounds = self._ctx.timers, self._queue
        while rounds and not self._holds(*rounds[0]):
            heapq.heappop(rounds)
        timer = timers[0][0] if timers else NEVER
        return rounds[0][0] if rounds and rounds[0][0] < timer else timer

    def may_be_due(self, until: int) -> bool:
        """Whether a timer fires or a round runs by `until` (ms), or was to do so: cheaper to find out than `next_due`."""
        timers, rounds = self._ctx.timers, self._queue
        return (rounds and rounds[0][0] <= until) or (timers and timers[0][0] <= until)  # type: ignore[return-value]

    def _holds(self, at: int, name: str) -> bool:
        """Whether a topic still has its next round then (ms)."""
        block = self._state.topics.get(name)
        return block is not None and block.next_round == at

    def postpone_rounds(self, topic: PersistentTopic) -> int:
        """Leave a topic out of the rounds, on which something happens now, and then nothing but publishes until `make_up_rounds`.

        Returns `next_snapshot`, at which one must be taken. Other rounds only do what `Rounds.skipped` makes up for. −1: that
        isn't so, and the topic is not left out.
        """
        ctx, name = self._ctx, topic.name
        if not periodic_checks.takes_only_snapshots(ctx, topic):
            return -1
        at = self.next_snapshot(topic)
        if at < NEVER:
            policies = ctx.policies_of(topic)
            rate, between = (
                policies.persistence.managedLedgerMaxMarkDeleteRate,
                policies.deduplicationSnapshotInterval * 1000,
            )
            # The first write must be permitted, and so must those after it, without permits from before.
            if topic.cursors[DEDUP_CURSOR].permits_at(at, rate) < 1 or 0 < rate * between / 1000 < 1:
                return -1
        if name not in self._put_off:
            self._put_off[name] = self._rounds.first_after(ctx.clock)
            self._state.topics[name].next_round = -1
        return at

    def next_snapshot(self, topic: PersistentTopic) -> int:
        """The next round in which a snapshot of a topic's sequence ids is due (ms), if there are new ones. `NEVER`: none is."""
        ctx = self._ctx
        due = deduplication_snapshots.snapshot_due(ctx, topic)
        if due == NEVER:
            return NEVER
        return self._rounds.next_of("deduplicationSnapshot", max(ctx.clock, due - 1)) or NEVER

    def next_purge(self, topic: PersistentTopic) -> int:
        """The round in which the first producer of a topic leaves or is forgotten if it stays inactive (ms), `NEVER`: none."""
        ctx = self._ctx
        if (at := producer_purge.next_effect(ctx, topic)) >= NEVER:
            return NEVER
        return self._rounds.next_of("inactiveProducers", max(ctx.clock, at - 1)) or NEVER

    def make_up_rounds(self, topic: PersistentTopic, happened: int) -> None:
        """Do what rounds would have done on a topic up to now that were put off. `happened`: when something happened there last, before
        which snapshots were taken that were due. Times are in ms."""
        ctx, rounds, name, now = self._ctx, self._rounds, topic.name, self._ctx.clock
        due = self._put_off.pop(name)
        if due <= happened:
            if not periodic_checks.is_idle(ctx, topic):
                rounds.skipped(ctx, topic, due - 1, happened)
            due = rounds.first_after(happened)
        block = self._state.topics[name]
        self._schedule(name, block, due)
        while 0 <= (due := block.next_round) <= now:
            ctx.clock, self._passed = due, due - 1
            self._run_checks(name, rounds.due(due))
        ctx.clock, self._passed = now, None

    def next_round(self, check: str, since: int = 0) -> int | None:
        """When a check has its next round (ms), at or after `since` (ms), or None if it is turned off."""
        return self._rounds.next_of(check, max(self._ctx.clock, since - 1))

    def only(self, name: str) -> None:
        """Let time pass on no other topic from now on: an answer looks far ahead, and the others do not matter to it."""
        for other, block in self._state.topics.items():
            if other != name:
                block.next_round = -1
        self._queue = self._scheduled()
        self._ctx.timers = [each for each in self._ctx.timers if each[1] == name]
        heapq.heapify(self._ctx.timers)

    def pending(self) -> list[tuple[int, str]]:
        """The timers and the rounds of checks to come: (time in ms, topic), sorted."""
        rounds = {(at, name) for at, name in self._queue if self._holds(at, name)}
        timers = {(at, name) for at, name in self._ctx.timers if name in self._state.topics}
        return sorted(rounds | timers)

    def advance(self, until: int) -> None:
        """Move the clock to the timers and rounds that are due by `until` (ms), in order, and run them.

        At the same time, timers go before checks, and topics by name.
        """
        ctx = self._ctx
        self._passed = ctx.clock
        self._steady.clear()
        while (due := self.next_due()) <= until:
            if ctx.timers and ctx.timers[0][0] == due:
                self._run_timers(due)
            else:
                self._run_round(due)
        self._passed = None

    def _run_timers(self, due: int) -> None:
        ctx = self._ctx
        ctx.clock = max(ctx.clock, due)
        self._passed = max(self._passed or 0, ctx.clock - 1)
        name = ctx.next_timer()
        if name == TIMER:
            self.run_coordinators()
            return
        if name not in self._state.topics:
            return  # deleted
        if is_non_persistent(name):
            if self._non_persistent.is_unused(name):
                self._delete_unused(name)
            return
        topic, block = self.load(name), self._state.topics[name]
        if block.closed:
            return
        if not 0 <= (next_due := lifecycle.next_due(ctx, topic)) <= ctx.clock:  # what was due is gone
            if next_due >= 0:
                ctx.wake(name, next_due)
            return
        self._settle(topic, block, self._passed)
        topic.update_rates(ctx)
        happened = lifecycle.run_timers(ctx, topic)
        if happened:
            self.touch(name)
            self.check_effects(topic)
        elif block.settled < 0:  # retries that make no difference may be asleep now
            block.settled = self._passed
            self._awake.pop(name, None)
        if (
            happened or not self._skips
        ):  # retries of one subscription fall asleep although another one's make a difference
            lifecycle.resume_retries(ctx, topic)

    def _run_round(self, due: int) -> None:
        ctx, checks = self._ctx, self._rounds.due(due)
        ctx.clock = max(ctx.clock, due)
        self._passed = due - 1
        while self._queue and self._queue[0][0] == due:
            _, name = heapq.heappop(self._queue)
            if self._holds(due, name):
                self._running = name
                self._run_checks(name, checks)
        self._passed, self._running = due, ""

    def _run_checks(self, name: str, checks: list[Check]) -> None:
        ctx, block = self._ctx, self._state.topics[name]
        # A busy topic is perhaps busy in the next round again, so that looking ahead would be in vain.
        busy = block.settled < 0
        if not periodic_checks.is_idle(ctx, self.load(name)):
            topic = self.touch(name)
            for check in checks:
                check.run(ctx, topic)
            self.check_effects(topic)
            for check in checks:
                if check.deletes is not None and check.deletes(ctx, topic):
                    self._delete_unused(name)
                    return
            if not periodic_checks.is_idle(ctx, topic):
                if busy or not self._skips:
                    after = self._rounds.first_after(ctx.clock)
                else:
                    after = self._rounds.next_effect(ctx, topic, ctx.clock)
                self._schedule(name, block, after)
                self._awake.pop(name, None)
                block.settled = ctx.clock
                return
        self._leave_idle(name, block)

    def _leave_idle(self, name: str, block: TopicBlock) -> None:
        """No check can change anything on an idle topic, or leave anything."""
        self._steady.pop(name, None)
        block.next_round, block.settled = -1, 0
        self._awake.pop(name, None)

    def _delete_unused(self, name: str) -> None:
        """Delete a topic of either domain that nobody uses, and with its last partition perhaps the partitioned topic (mirrors
        `tryToDeletePartitionedMetadata`)."""
        ctx = self._ctx
        topics: Topics[Any] = self._non_persistent if is_non_persistent(name) else self
        topics.delete(name, force=True, cause="because nobody used it")
        self.deleted_unused = True
        whole = whole_of(name)
        if (
            whole in ctx.partitioned
            and ctx.config.brokerDeleteInactivePartitionedTopicMetadataEnabled
            and ctx.deleted.has_all_partitions(whole)
        ):
            partitioned_topics.forget(ctx, whole)

    def run_check(self, name_of_check: str) -> None:
        """Run a check now on the topics that aren't idle, by name."""
        ctx, check = self._ctx, CHECKS[name_of_check]
        for name in [name for name in self.names() if not self._is_idle(name)]:
            topic = self.touch(name)
            check.run(ctx, topic)
            self.check_effects(topic)
            if check.deletes is not None and check.deletes(ctx, topic):
                self._delete_unused(name)

    def _is_idle(self, name: str) -> bool:
        topic, block = self._loaded.get(name), self._state.topics[name]
        if topic is None or block.closed:
            return block.idle or block.closed
        return periodic_checks.is_idle(self._ctx, topic)

    def configured(self) -> None:
        """The configuration is new, or time begins. It decides when rounds and timers are due."""
        ctx = self._ctx
        self._rounds = Rounds(ctx.config, self._state.origin)
        first = self._rounds.first_after(ctx.clock)
        for name in self.open_names():
            self._schedule(name, self._state.topics[name], first)
            rate_limits.configured(ctx, topic := self.touch(name))
            if (due := lifecycle.next_due(ctx, topic)) >= 0:
                ctx.wake(name, due)

    # -- topics ---------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of the topics, sorted."""
        return sorted(name for name in self._state.topics if not is_non_persistent(name))

    def open_names(self) -> list[str]:
        """The names of the topics that are not closed, sorted."""
        return [name for name in self.names() if not self._state.topics[name].closed]

    def is_closed(self, name: str) -> bool:
        """Whether nothing has used a topic since it was unloaded, or since the broker restarted."""
        return name in self._state.topics and self._state.topics[name].closed

    def close(self) -> None:
        """The broker stops. Each topic is loaded again when something uses it."""
        for name in self.open_names():
            topic = self.touch(name)
            lifecycle.unload(self._ctx, topic)
            topic.access.stranded.clear()  # with the connections
            self.check_effects(topic)

    def carry_out(self, name: str, command: TopicCommand) -> None:
        """Carry out a command, and everything that follows from it. A missing topic is created first."""
        kind = type(command)
        if kind in STEADY:
            topic = self._touch_steadily(name)
            HANDLERS[kind](self._ctx, topic, command)
            self.check_effects(topic)
            if kind is Publish or kind is Send:
                self._steady[name] = steady_topic(self._ctx, topic) if name in self._steady else None
            return
        loads = kind is Producer and self.is_closed(name)
        if loads:
            # quirk: expiry has to read entries first, so quotas judge the producer by the backlog before it (recorded)
            self._wake(name, expires=False)
        topic = self.touch(name)
        HANDLERS[kind](self._ctx, topic, command)
        self.check_effects(topic)
        if loads:
            lifecycle.expire_when_loaded(self._ctx, topic)

    def _touch(self, name: str) -> PersistentTopic:
        return self.touch(name)

    def _close(self, topic: PersistentTopic, cause: str) -> int:
        left = lifecycle.delete(self._ctx, topic, cause)
        self.check_effects(topic)
        self._awake.pop(topic.name, None)
        return left

    def _create(self, name: str, former: int) -> PersistentTopic:
        return lifecycle.create(self._ctx, name, former)

    def _decode(self, data: bytes) -> PersistentTopic:
        return decode_topic(data)

    def _summarise(self, topic: PersistentTopic, block: TopicBlock) -> None:
        block.due = lifecycle.next_due(self._ctx, topic) if not block.closed else -1
        block.idle = block.closed or periodic_checks.is_idle(self._ctx, topic)
        block.backlog, block.storage = topic.backlog(), topic.ledger.total_size
        if block.idle:
            self._leave_idle(topic.name, block)

    def _handle(self, topic: PersistentTopic, command: TopicCommand) -> None:
        HANDLERS[type(command)](self._ctx, topic, command)
        self.check_effects(topic)

    def set_aside(self, name: str) -> None:
        """See `Topics.set_aside`."""
        super().set_aside(name)
        self._awake.pop(name, None)
        self._steady.pop(name, None)

    def _missing(self, name: str, former: int) -> PersistentTopic:
        return lifecycle.empty(self._ctx, name, former)

    def connection_lost(self, name: str, connection: str) -> None:
        """Close the connection's producers and consumers, then apply the broker's limit of unacked messages."""
        topic = self.touch(name)
        lifecycle.connection_lost(self._ctx, topic, connection)
        self.check_effects(topic)

    def check_effects(self, topic: PersistentTopic) -> None:
        """Something happened on the topic: delete what its dispatchers freed, and enforce maxUnackedMessagesPerBroker. If it was unloaded, it rests from now on."""
        ctx = self._ctx
        if ctx.config.maxUnackedMessagesPerBroker > 0:
            unacked_limit.check(ctx, self._state.unacked, topic, self.touch)
        if ctx.freed:
            self._free_ledgers()
        if (name := ctx.unloaded) is not None:
            ctx.unloaded = None
            block = self._state.topics[name]
            block.closed = True
            self._leave_idle(name, block)

    def _free_ledgers(self) -> None:
        """Dispatchers have passed what nobody gets, as markers: delete the ledgers that this freed (docs/rules/transactions.md §9)."""
        freed, self._ctx.freed = self._ctx.freed, []
        for name, cursor, former in freed:
            topic = self.touch(name)
            trimming.free_ledgers(self._ctx, topic, topic.cursors[cursor], former)

    def recount_unacked(self) -> None:
        """The configuration is new: apply its maxUnackedMessagesPerBroker to the topics, which are loaded."""
        topics = [self.load(name) for name in self.names()]
        unacked_limit.configured(self._ctx, self._state.unacked, topics, self.touch)

    def stats(self, name: str) -> dict[str, Any]:
        """The topic's stats and internal stats, by Pulsar's names."""
        topic = self.look_at(name)
        internal = internal_stats(topic.ledger, topic.cursors, topic.compaction.ledger)
        return {"stats": persistent_stats.topic_stats(topic, self._ctx.config), "internal": internal}

    def stats_rows(self, name: str) -> list[dict[str, Any]]:
        """The topic's row of stats, then one per subscription, by name."""
        return persistent_stats.rows(self.look_at(name))

    def metrics(self, name: str) -> TopicMetrics:
        """The figures of a topic that a metrics endpoint shows."""
        return persistent_stats.metrics(self.look_at(name), self._ctx)


class NonPersistentTopics(Topics[NonPersistentTopic]):
    """Topics that store nothing. They have one timer, for the round of a check in which an unused topic or subscription is deleted,
    or producers of the short form leave."""

    def names(self) -> list[str]:
        """The names of the topics, sorted."""
        return sorted(name for name in self._state.topics if is_non_persistent(name))

    def close(self) -> None:
        """The broker stops: its clients are disconnected, and the topics are gone but for their policies."""
        for name in self.names():
            topic = self.load(name)
            if topic.policies == non_persistent_commands.empty(self._ctx, name).policies:
                self.delete(name, force=True)
            else:
                non_persistent_commands.unload(self._ctx, topic, "unloaded")
                topic.access.stranded.clear()  # with the connections
                self._state.topics[name].closed = True

    def open(self, name: str) -> None:
        """Create or load a topic, as a command on it does, and note when it may be deleted."""
        self._wake(self._touch(name))

    def carry_out(self, name: str, command: TopicCommand) -> None:
        """Carry out a command, and everything that follows from it. A missing topic is created first."""
        self._handle(self._touch(name), command)

    def _touch(self, name: str) -> NonPersistentTopic:
        ctx, topic, block = self._ctx, self.load(name), self._state.topics[name]
        if ctx.clock >= topic.rates_until:
            topic.update_rates(ctx)
        if block.closed:
            block.closed, topic.last_active = False, ctx.clock
        else:
            self._note_use(topic)
        return topic

    def _note_use(self, topic: NonPersistentTopic) -> None:
        """A topic that is in use was so in the last round, too."""
        if inactivity.is_used(topic) and (interval := inactive_topics.interval(self._ctx.config)):
            rounds = (self._ctx.clock - self._state.origin) // interval
            topic.last_active = max(topic.last_active, self._state.origin + rounds * interval)

    # -- time -----------------------------------------------------------------------------------------------------

    def configured(self, names: Iterable[str]) -> None:
        """The configuration of these topics is new. It decides when something is deleted that nobody uses."""
        for name in names:
            self._wake(self.load(name))

    def policies_changed(self, names: Iterable[str]) -> None:
        """A policy of these topics is new: producers may have to leave (docs/rules/producers.md §18), and see `configured`."""
        for name in names:
            topic = self.load(name)
            if topic.producers:
                registration.check_encryption(self._ctx, self._touch(name))
            self._wake(topic)

    def is_unused(self, name: str) -> bool:
        """Has nobody used the topic for so long that it is deleted in this round? If not, its timer is set again. Silent producers of the
        short form leave, and unused subscriptions expire."""
        topic, now = self.load(name), self._ctx.clock
        if self._purged_at(topic, now) == now:
            topic.update_rates(self._ctx)
            registration.leave_silent(self._ctx, topic, inactive_producers.inactive_before(self._ctx))
        if self._expired_at(topic, now) == now:
            self._note_use(topic)
            topic.update_rates(self._ctx)
            inactive_subscriptions.check(self._ctx, topic)
        if self._deleted_at(topic, now) == now:
            return True
        self._wake(topic)
        return False

    def _wake(self, topic: NonPersistentTopic) -> None:
        self._wake_at(topic, self._due(topic))

    def _wake_after(self, topic: NonPersistentTopic, consumers: int) -> None:
        """Set the timer after a command, before which there were so many consumers. It looks at no subscription: the timer for those
        without consumers is set, and one that has lost them now is the last to expire."""
        now = self._ctx.clock
        self._wake_at(topic, self._deleted_at(topic, now + 1))
        self._wake_at(topic, self._purged_at(topic, now + 1))
        if len(topic.consumer_handles) < consumers:
            minutes = inactive_subscriptions.expires_after(self._ctx, topic)
            self._wake_at(topic, self._expiry_round(expires_at((), now, minutes)))

    def _wake_at(self, topic: NonPersistentTopic, at: int) -> None:
        if at >= 0:
            self._ctx.wake(topic.name, at)

    def _due(self, topic: NonPersistentTopic) -> int:
        """The next round that has an effect on the topic if nothing happens until then (ms). −1: there is none."""
        after = self._ctx.clock + 1
        rounds = (
            self._deleted_at(topic, after),
            self._purged_at(topic, after),
            self._expired_at(topic, after),
        )
        return min((at for at in rounds if at >= 0), default=-1)

    def _purged_at(self, topic: NonPersistentTopic, since: int) -> int:
        """The first round from `since` on in which a producer of the short form leaves (ms). −1: there is none."""
        interval, silent = inactive_producers.interval(self._ctx.config), topic.silent_since()
        if silent is None or interval == 0:
            return -1
        return self._round(max(inactive_producers.goes_at(self._ctx, silent), since), interval)

    def _expired_at(self, topic: NonPersistentTopic, since: int) -> int:
        """The first round from `since` on in which a subscription expires (ms). −1: there is none."""
        at = inactive_subscriptions.next_effect(self._ctx, topic)
        return self._expiry_round(max(at, since))

    def _expiry_round(self, since: int) -> int:
        """The first round from `since` on in which subscriptions may expire (ms). −1: there is none."""
        interval = int(CHECKS["inactiveSubscriptions"].interval(self._ctx.config))
        return -1 if since == NEVER or interval == 0 else self._round(since, interval)

    def _deleted_at(self, topic: NonPersistentTopic, since: int) -> int:
        """The first round from `since` on in which the topic is deleted if nobody uses it until then (ms). −1: there is none."""
        at = inactivity.unused_at(self._ctx, topic)
        if at is None or self._state.topics[topic.name].closed:
            return -1
        return self._round(max(at, since), inactive_topics.interval(self._ctx.config))

    def _round(self, since: int, interval: int) -> int:
        """The first round of a check from `since` on, −1: before time begins, there is none. Times are in ms."""
        origin = self._state.origin
        return origin - (origin - since) // interval * interval if origin >= 0 else -1

    def _close(self, topic: NonPersistentTopic, cause: str) -> int:
        return non_persistent_commands.delete(self._ctx, topic, cause)

    def _create(self, name: str, former: int) -> NonPersistentTopic:
        return non_persistent_commands.create(self._ctx, name)

    def _decode(self, data: bytes) -> NonPersistentTopic:
        return decode_non_persistent_topic(data)

    def _summarise(self, topic: NonPersistentTopic, block: TopicBlock) -> None:
        block.due = self._due(topic)

    def _handle(self, topic: NonPersistentTopic, command: TopicCommand) -> None:
        consumers = len(topic.consumer_handles)
        non_persistent_commands.HANDLERS[type(command)](self._ctx, topic, command)
        if topic.name in self._state.topics:
            self._wake_after(topic, consumers)

    def _missing(self, name: str, former: int) -> NonPersistentTopic:
        return non_persistent_commands.empty(self._ctx, name)

    def connection_lost(self, name: str, connection: str) -> None:
        """Close the connection's producers and consumers."""
        topic = self._touch(name)
        consumers = len(topic.consumer_handles)
        non_persistent_commands.connection_lost(self._ctx, topic, connection)
        self._wake_after(topic, consumers)

    def stats(self, name: str) -> dict[str, Any]:
        """The topic's stats and internal stats, by Pulsar's names."""
        topic = self.load(name)
        return {
            "stats": non_persistent_stats.topic_stats(topic),
            "internal": non_persistent_stats.internal_stats(),
        }

    def stats_rows(self, name: str) -> list[dict[str, Any]]:
        """The topic's row of stats, then one per subscription, by name."""
        return non_persistent_stats.rows(self.load(name))

    def metrics(self, name: str) -> TopicMetrics:
        """The figures of a topic that a metrics endpoint shows."""
        return non_persistent_stats.metrics(self.load(name), self._ctx.config)
