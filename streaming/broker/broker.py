"""The broker of one ingress partition: a pure function of its command log.

The same records give the same effects and the same state, however they are cut into batches. It reads no clock, no
file and no random number; time comes with the records. After every command it has come to rest.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, NamedTuple
from weakref import proxy

from schemas import commands as c
from schemas.commands import Decoded, Line, Refused
from schemas.effects import (
    SET_ASIDE,
    TOPIC_SET_ASIDE,
    CloseProducer,
    Effect,
    Error,
    Evicted,
    Expired,
    LedgerDeleted,
    ProducerSuccess,
    Quarantined,
    Row,
    Tick,
    TopicEvent,
    Unsupported,
)  # fmt: skip
from schemas.entries import EntryReader
from schemas.keys import NOT_UTF8
from schemas.metrics import PartitionMetrics
from schemas.printable import some_of
from schemas.units import LATEST_TIME
from streaming.broker import admin_requests, bundles, lookup
from streaming.broker.admin import (
    dynamic_settings,
    namespaces,
    partitioned_topics,
    permissions,
    resources,
    tenants,
    transactions,
)
from streaming.broker.admin.transactions import TransactionSource
from streaming.broker.admin_table import TOPIC, Call, Table
from streaming.broker.authorization import Access
from streaming.broker.config import PROFILE_OF, RELEASES, BadSetting, ServiceConfiguration, configuration
from streaming.broker.context import NEVER, Acked, Context, Throttled, namespace_of
from streaming.broker.deleted_topics import DeletedTopics
from streaming.broker.entries import NoEntries, PayloadsOf
from streaming.broker.errors import LogOrderError
from streaming.broker.lookup import LookupCommand
from streaming.broker.names import (
    PARTITION,
    complete,
    is_hidden_topic,
    is_partition,
    is_topic_name,
    is_transaction_topic,
    partitions_of,
    whole_of,
    why_not_topic_name,
)
from streaming.broker.non_persistent.topic import SCHEME, NonPersistentTopic, is_non_persistent
from streaming.broker.parameters import flag
from streaming.broker.persistent import (
    acks_in_transactions,
    admin_operations,
    lifecycle,
    rate_limits,
    unacked_limit,
)
from streaming.broker.persistent.cleanup import (
    backlog_quota,
    inactive_subscriptions,
    inactivity,
    message_expiry,
    trimming,
)
from streaming.broker.persistent.cleanup.backlog_quota import Eviction, Quotas
from streaming.broker.persistent.cleanup.inactive_subscriptions import InactiveSubscriptions
from streaming.broker.persistent.cleanup.inactivity import InactiveTopic
from streaming.broker.persistent.cleanup.message_expiry import Expiry, SubscriptionExpiry
from streaming.broker.persistent.cleanup.trimming import Retention
from streaming.broker.persistent.delivery import (
    OPEN_TRANSACTION,
    Delivery,
    EntryState,
    Show,
    entries,
    entry_state,
    explain_delivery,
)
from streaming.broker.persistent.delivery_run import Deliveries, DeliveryRun, RecordsOfRun, Stretch
from streaming.broker.persistent.publish import deduplication_snapshots, producer_purge, publishing, send_run
from streaming.broker.persistent.publish.deduplication_snapshots import DeduplicationSnapshots
from streaming.broker.persistent.publish.producer_purge import AbsentProducer, AbsentProducers
from streaming.broker.persistent.publish.publish_run import Publishes, PublishRun, Receipts, Run
from streaming.broker.persistent.publish.send_run import Sends
from streaming.broker.persistent.topic import SHADOW_SOURCE, PersistentTopic
from streaming.broker.policies.hierarchy import NO_POLICIES, HierarchyTopicPolicies, Policies, max_topics
from streaming.broker.position import Position
from streaming.broker.rates.rate import seconds_of_interval
from streaming.broker.schema import schema_registry
from streaming.broker.state.codec import PartitionState, TopicBlock, decode_state, encode_state
from streaming.broker.topic import joining, policy_calls, producing, topic_commands
from streaming.broker.topic.abstract_topic import AbstractTopic, Attached
from streaming.broker.topic.producing import Admission, Producing
from streaming.broker.topic.topic_commands import TopicCommand
from streaming.broker.topics import NonPersistentTopics, PersistentTopics
from streaming.broker.transactions import coordinator
from streaming.broker.transactions.coordinator import Coordinator, Coordinators
from streaming.broker.transactions.transaction_buffer import TxnID

_MOST_NAMES = 10
"""An answer names so many subscriptions at most."""

_MOST_ROUNDS = 1000
"""An answer looks so many rounds ahead that may have an effect, and turn out to have none."""


def topic_set_aside(name: str) -> Refused:
    """Why the records of a topic that is set aside are refused."""
    return Refused(SET_ASIDE, f"an operator set the topic aside: --quarantine-topic {name}")


LOOKUPS = (c.PartitionedMetadata, c.Lookup, c.GetSchema, c.GetOrCreateSchema)
ROUTED = frozenset(
    {
        c.Tick,
        c.Connect,
        c.BrokerConfig,
        c.RunCheck,
        c.Restart,
        c.ConnectionLost,
        c.Admin,
        *LOOKUPS,
        *coordinator.COMMANDS,
    }
)
"""Commands that aren't, or not always, for a topic's own mechanisms."""


class Summary(NamedTuple):
    """What a person can query of a partition's state: ms, topics, entries, bytes."""

    clock: int
    topics: int
    backlog: int
    storage: int


class Broker:
    """Folds commands into state and effects. `apply` in offset order, then `take` and `encode`.

    `entries`: where the broker finds entries that it does not have in memory: those that were written before `decode` or `stored`. None:
    there are none.
    """

    alone: ClassVar[bool] = True
    """Whether no other ingress partition has topics of the same log. Else requests to coordinators of transactions must come to all of them."""

    def __init__(self, partition: int = 0, entries: EntryReader | None = None) -> None:
        self._start(PartitionState(partition), NoEntries() if entries is None else entries)

    @classmethod
    def decode(cls, state: bytes, entries: EntryReader) -> "Broker":
        """The broker as `encode` left it. Raises `MagnetarError` if it is none, or one of a later version."""
        broker = cls.__new__(cls)
        broker._start(decode_state(state), entries)
        return broker

    def _start(self, state: PartitionState, entries: EntryReader) -> None:
        self._state = state
        self._topics_of: Counter[str] | None = None  # by namespace; counted where there is a limit
        self._run: PublishRun | DeliveryRun | None = None  # one that a record interrupts
        ctx = self._ctx = Context(entries)
        ctx.clock, ctx.offset, ctx.ordinal = state.clock, state.offset, state.ordinal
        ctx.config, ctx.namespaces, ctx.connections = state.config, state.namespaces, state.connections
        ctx.partitioned, ctx.schemas, ctx.limits = state.partitioned, state.schemas, state.limits
        ctx.partitions = sum(state.partitioned.values())
        ctx.partitioned_topics, ctx.tenants, ctx.permissions = (
            state.partitioned_topics, state.tenants, state.permissions
        )  # fmt: skip
        ctx.deleted = DeletedTopics(
            state.deleted, state.deleted_partitions, state.forgotten_ledger, state.partitioned
        )
        ctx.schema_times, ctx.resources = state.schema_times, state.resources
        ctx.closed_producers, ctx.lasting = state.closed_producers, state.lasting
        ctx.partition, ctx.generated_names = state.partition, state.generated_names
        self._non_persistent = NonPersistentTopics(ctx, state)
        self._persistent = PersistentTopics(ctx, state, self._non_persistent)
        # A proxy, as a cycle would keep the broker until the garbage collector comes.
        self._coordinators = Coordinators(ctx, state.coordinators, proxy(self))
        self._persistent.run_coordinators = self._coordinators.run_timers

    # -- records --------------------------------------------------------------------------------------------------

    def apply(self, offset: int, timestamp: int, topic: str | None, command: Decoded, value: bytes) -> None:
        """Fold one record: advance the clock to its `timestamp` (ms), run what is due, carry out its `command`.

        A record that was refused becomes a quarantine row, and so does one that the broker itself refuses. `value` is
        the record's raw value, which that row keeps. Raises `MagnetarError` for an offset that isn't new.
        """
        ctx = self._ctx
        if offset <= ctx.offset:
            raise LogOrderError(
                f"partition {self._state.partition}: offset {offset} after {ctx.offset}; the source must "
                "deliver every record once, in order"
            )
        ctx.offset, ctx.ordinal, ctx.recorded = offset, 0, timestamp
        if timestamp > LATEST_TIME:
            cause = f"timestamp {timestamp}: expected milliseconds since the epoch"
            ctx.emit(Quarantined(topic, "timestamp", cause, value))
            return
        self._advance(timestamp)
        if isinstance(command, tuple):
            refused = command if isinstance(command, Refused) else self._fold_line(topic, timestamp, command)
        else:
            refused = self._fold(topic, command)
        if refused is not None:
            ctx.emit(Quarantined(topic, refused.rule, refused.cause, value))
        if ctx.lost and self._run is not None:
            self._run.close()
        while ctx.lost:
            self._connection_lost(ctx.lost.pop())
        if ctx.parted:
            self._forget_parted()

    each_record = False
    """Whether each record must come to `apply`, so that the fold asks neither for `publish` nor for `deliver`."""

    def publish(self, rows: Publishes, run: Run, step: Callable[[int], object], receipts: Receipts) -> None:
        """Fold the rows of a `run`, as `apply` would, but faster.

        Receipts are added to `receipts`, not to the effects. `step` must `apply` the record of a row that needs it.
        """
        self._run = PublishRun(self._ctx, self._persistent, rows, run, receipts)
        self._run.fold(step)
        self._run = None

    def deliver(
        self,
        run: DeliveryRun,
        records: RecordsOfRun,
        stretch: Stretch,
        step: Callable[[int], object],
    ) -> None:
        """Fold the records of a stretch, as `apply` would, but faster. `step` must `apply` a record that needs it."""
        self._run = run
        run.fold(records, stretch, step)
        self._run = None

    def delivery_run(
        self, publishes: Publishes, numbers: Sequence[int], receipts: Receipts, deliveries: Deliveries
    ) -> DeliveryRun:
        """A run for `deliver`. See `DeliveryRun`."""
        return DeliveryRun(self._ctx, self._persistent, publishes, numbers, receipts, deliveries)

    def send(self, topic: str | None, sends: Sends, start: int) -> int:
        """Fold the SENDs from number `start` on, as `apply` would, but faster. Returns the number of the first that needs `apply`."""
        found = self._persistent.awake(topic)
        if found is None or sends.offsets[start] <= self._ctx.offset:
            return start
        due = min(self._persistent.next_due(), LATEST_TIME)
        return send_run.carry_out(self._ctx, found, sends, start, due)

    def tick(self, timestamp: int) -> None:
        """The trigger's time: as a TICK record, but belonging to the last record's offset."""
        self._advance(timestamp)
        self._forget_parted()
        self._ctx.emit(Tick())

    def apply_between(self, timestamp: int, topic: str | None, command: c.AnyCommand) -> None:
        """As `apply`, for a command between two records: it belongs to the last record's offset, as a tick does."""
        self._ctx.offset -= 1
        self.apply(self._ctx.offset + 1, timestamp, topic, command, b"")

    def set_aside(self, name: str, why: Refused) -> None:
        """Go on without a topic. Its state stays as it is, unread, and a record that reaches it is refused.

        A row says that its state is set aside after the last record, if the topic is there.
        """
        ctx, state = self._ctx, self._state
        if name in state.aside:
            return
        if name not in state.topics:
            state.aside[name] = TopicBlock(b"")
            return
        self._domain(name).set_aside(name)
        for connection, topics in list(ctx.connections.items()):
            topics.pop(name, None)
            if not topics:
                del ctx.connections[connection]
        unacked_limit.forget(state.unacked, name)
        if ctx.limits.dispatch is not None:
            ctx.limits.dispatch.forget(name)
            ctx.wake_waiting(ctx.limits.dispatch)
        self._topics_of = None
        ctx.emit(Quarantined(name, TOPIC_SET_ASIDE, f"{why.cause}, as it was after this record", b""))

    @property
    def aside(self) -> Collection[str]:
        """The topics that are set aside."""
        return self._state.aside.keys()

    @property
    def at_work(self) -> str:
        """The topic that something was last done with. Empty: none."""
        return self._ctx.at_work

    def take(self) -> list[Row]:
        """The effects since the last call, in order."""
        return self._ctx.take()

    def watch_acks(self) -> None:
        """Note from now on what is acked, for `take_acks`."""
        self._ctx.acks = []

    def watch_throttled(self) -> list[Throttled]:
        """From now on, the connections that begin to exceed a publish rate are in the list. Whoever has dealt with them clears it."""
        self._ctx.throttled = []
        return self._ctx.throttled

    def throttled_until(self, topic: str, connection: str, now: int) -> int:
        """Until when (ms) a server reads no more from a connection because of what it published to a topic, as it looks at `now` (ms). 0:
        it reads again."""
        try:
            found = self.topic(topic)
        except KeyError:
            return 0
        return rate_limits.throttled_until(self._ctx, found, connection, now)

    def take_acks(self) -> list[Acked]:
        """What was acked since the last call, in order. Call it before each `take`."""
        acks, self._ctx.acks = self._ctx.acks or [], []
        return acks

    def next_due(self) -> int:
        """The time (ms) at which the broker next has something to do by itself, if no record comes before; `NEVER` if
        there is nothing."""
        return self._persistent.next_due()

    def pending_timers(self) -> list[tuple[int, str]]:
        """When the broker will look at a topic by itself: (time in ms, topic), sorted. There may be nothing to do then."""
        return self._persistent.pending()

    @property
    def connections(self) -> list[str]:
        """The connections that have producers or consumers."""
        return list(self._ctx.connections)

    def stored(self) -> None:
        """The entries of the effects so far can be read through the `EntryReader` from now on."""
        self._ctx.entries.stored()

    def find_recent_payloads(self, recent: PayloadsOf) -> None:
        """Keep no payloads, not even of entries that can't be read through the `EntryReader` yet. `recent` has these."""
        self._ctx.entries.recent_payloads = recent

    def when_full(self, full: Callable[[], object]) -> None:
        """Call `full` whenever many effects wait, also in the middle of a record. It must `take` them."""
        self._ctx.when_full(full)

    @property
    def partition(self) -> int:
        """The ingress partition."""
        return self._state.partition

    @property
    def clock(self) -> int:
        """The partition's clock (ms since the epoch). It never goes back."""
        return self._ctx.clock

    @property
    def config(self) -> ServiceConfiguration:
        """The configuration in force."""
        return self._ctx.config

    @property
    def offset(self) -> int:
        """The offset of the last record, or −1 before the first one."""
        return self._ctx.offset

    # -- commands -------------------------------------------------------------------------------------------------

    def _fold(self, name: str | None, command: c.AnyCommand | c.Publish) -> Refused | None:
        """Carry out a command, or say why the record must be refused."""
        if self._persistent.take_steady_step(name, command):
            return None
        if name in self._state.topics and type(command) not in ROUTED:  # the common case, kept short
            topics = self._non_persistent if name.startswith(SCHEME) else self._persistent
            topics.carry_out(name, command)  # type: ignore[arg-type]
            return None
        if name is not None and name.startswith(NOT_UTF8):
            return Refused(
                "key_encoding", "the key is not UTF-8; the record's topic shows its bytes in hexadecimal"
            )
        match command:
            case c.Tick() | c.Connect():
                return None
            case c.BrokerConfig():
                return self._configure(command)
            case c.RunCheck():
                self._persistent.run_check(command.check)
                return None
            case c.Restart():
                self._restart()
                return None
            case c.ConnectionLost():
                self._ctx.lost += self._lost(command)
                return None
            case (
                c.TcClientConnectRequest()
                | c.NewTxn()
                | c.AddPartitionToTxn()
                | c.AddSubscriptionToTxn()
                | c.EndTxn()
            ):
                return self._coordinators.carry_out(name, command)
            case c.Admin() if not name and admin_requests.topic_of(command.path) is None:
                self._call_namespace(command)
                return None
            case c.Admin() if not name and partitioned_topics.is_for_whole(command):
                whole = admin_requests.topic_of(command.path)
                if whole in self._ctx.partitioned or admin_requests.call_of(command) == "/partitions":
                    name = whole
        return self._fold_topic(name, command)

    def _fold_line(self, topic: str | None, timestamp: int, line: Line) -> Refused | None:
        """Carry out the command in a line of a log if the line's coordinates are those of the record."""
        if (cause := line.differs_from(topic, timestamp)) is not None:
            return Refused("coordinates", cause)
        return self._fold(topic, line.command)

    def _fold_topic(self, name: str | None, command: TopicCommand | LookupCommand) -> Refused | None:
        ctx = self._ctx
        if not name:
            return Refused("no_topic", "the command needs a topic: give the record a key")
        if isinstance(command, c.Admin) and admin_requests.topic_of(command.path) != name:
            return Refused("wrong_topic", f"{command.path} is not about the record's topic {name}")
        if isinstance(command, c.Admin) and (missing := admin_requests.lacking(ctx.config, command)):
            admin_requests.refuse(ctx, command, *missing)
            return None
        if isinstance(command, c.Admin) and admin_requests.refuses_numbers(
            ctx, command, admin_operations.CALLS
        ):
            return None
        exists = name in self._state.topics
        if not exists:
            if name in self._state.aside:
                return Refused(SET_ASIDE, topic_set_aside(name).cause)
            if not is_topic_name(name):
                return self._refuse_name(name, command)
            if (
                isinstance(command, c.Admin)
                and command.lasting
                and name not in ctx.partitioned
                and policy_calls.call_lasting(ctx, name, command)
            ):
                return None
            if not namespaces.takes_topics(ctx, namespace_of(name)) and self._refuse_namespace(name, command):
                return None
            if isinstance(command, c.Admin | c.GetOrCreateSchema) and self._awaits_use(name):
                self._domain(name).open(name)
                if self._topics_of is not None:
                    self._topics_of[namespace_of(name)] += 1
                exists = True
        if isinstance(command, c.Subscribe) and (cause := joining.too_large(ctx, command)):
            topic_commands.refuse(ctx, name, command, "MetadataError", cause)
            return None
        if (
            isinstance(command, c.Admin)
            and ctx.config.namespacesMustExist
            and admin_requests.is_policy_call(command)
            and not command.lasting
            and whole_of(name) in ctx.partitioned
        ):
            admin_requests.refuse(ctx, command, 412, "Not allowed to set/get topic policy for a partition")
            return None
        if (
            isinstance(command, c.Admin)
            and flag(command.path, "isGlobal")
            and admin_requests.is_policy_call(command)
        ):
            cause = "policies of a topic in all clusters are not supported"
            ctx.emit(Unsupported(name, command.connection, f"isGlobal: {cause}"))
            admin_requests.refuse(ctx, command, 501, cause)
            return None
        if isinstance(command, c.Admin) and admin_requests.is_schema_call(command):
            schema_registry.call_schemas(ctx, name, command, self._own_policies(name))
            return None
        if isinstance(command, c.Admin) and permissions.is_call(command):
            if (
                exists
                or not ctx.config.namespacesMustExist
                or name in ctx.partitioned
                or self._awaits_use(name)
            ):
                permissions.call_topic_permissions(ctx, name, command)
            else:
                admin_requests.refuse(ctx, command, 404, self._not_found(name))
            return None
        if isinstance(command, c.Admin) and admin_requests.call_of(command) == "/partitions":

            def delete(force: bool) -> bool:
                return self._delete_partitions(name, force)

            around = partitioned_topics.Surroundings(
                exists, delete, lambda count: self._has_room(name, count)
            )
            partitioned_topics.call_partitions(ctx, name, command, around)
            return None
        if (
            isinstance(command, c.Admin)
            and name in ctx.partitioned
            and partitioned_topics.is_for_whole(command)
        ):
            self._call_partitioned(name, command)
            return None
        if isinstance(command, LOOKUPS):
            own = self._own_policies(name) if isinstance(command, c.GetOrCreateSchema) else NO_POLICIES
            lookup.answer(ctx, name, command, exists=exists or self._awaits_use(name), own=own)
            return None
        if isinstance(command, c.Admin) and admin_requests.deletes_topic(command):
            self._delete(name, command)
            return None
        if (
            isinstance(command, c.Admin)
            and admin_requests.creates_only(command)
            and (refusal := self._refuse_creation(name, command, exists)) is not None
        ):
            admin_requests.refuse(ctx, command, *refusal)
            return None
        if exists:
            self._domain(name).carry_out(name, command)
            return None
        if self._creates(name, command):
            if not self._has_room(name):
                reason = partitioned_topics.TOO_MANY_TOPICS
                if isinstance(command, c.Admin):
                    admin_requests.refuse(ctx, command, 409, reason)
                    return None
                refused = topic_commands.refuse(ctx, name, command, "NotAllowedError", reason)
                return None if refused else Refused("too_many_topics", reason)
            self._domain(name).carry_out(name, command)
            if self._topics_of is not None:
                self._topics_of[namespace_of(name)] += 1
        elif isinstance(command, c.Admin):
            admin_requests.refuse(ctx, command, 404, self._not_found(name))
        elif not topic_commands.refuse(ctx, name, command, "TopicNotFound", f"Topic {name} does not exist"):
            self._domain(name).answer_missing(name, command)
        return None

    def _creates(self, name: str, command: TopicCommand) -> bool:
        """Does a command create its topic, which does not exist?"""
        if isinstance(command, c.Admin) and admin_requests.creates_only(command):
            return True
        if isinstance(command, c.Send | c.Mirror):
            return lifecycle.shadow_source(self._ctx, name) is not None
        ctx, config = self._ctx, self._ctx.config
        if (
            isinstance(command, c.Admin)
            and config.namespacesMustExist
            and not admin_requests.subscribes(command)
        ):
            return False
        if isinstance(command, c.Subscribe) and is_partition(name, ctx.partitioned):
            # Its partitioned topic has created it. Pulsar creates one that is not persistent for everyone.
            return name not in ctx.deleted or is_non_persistent(name) or command.force_topic_creation
        return (
            topic_commands.creates_topic(command)
            and lookup.auto_topic_creation(ctx, name).allowed
            and not lookup.is_beyond(ctx, name)
        )

    def _refuse_creation(self, name: str, command: c.Admin, exists: bool) -> tuple[int, str] | None:
        """Status and reason if PUT must not create a topic. A topic of which there is nothing but policies may become a shadow topic: under
        policies for it, which come first, a log would not find it missing."""
        if (
            exists
            and isinstance(command.body, dict)
            and SHADOW_SOURCE in command.body
            and not is_non_persistent(name)
            and self._persistent.touch(name).is_new
        ):
            return None
        if exists or name in self._ctx.partitioned:
            return 409, "This topic already exists"
        if PARTITION.fullmatch(name):
            local = name.rpartition("/")[2]
            whole = whole_of(local)
            if whole_of(name) in self._ctx.partitioned:
                return 412, (
                    f'Can\'t create topic {local} with "-partition-" followed by a number smaller than number of partition of '
                    f"partitioned topic {whole}"
                )
            return 412, (
                f"Can't create topic {local} with \"-partition-\" followed by numeric value if there isn't a partitioned topic "
                f"{whole} created."
            )
        return None

    def _not_found(self, name: str) -> str:
        """What an answer says of a topic that does not exist."""
        if PARTITION.fullmatch(name):
            if whole_of(name) in self._ctx.partitioned:
                return "Topic partitions were not yet created"
            return f"Partitioned Topic not found: {name} has zero partitions"
        return f"Topic {name} not found"

    def _awaits_use(self, name: str) -> bool:
        """Is this a partition of a partitioned topic that nobody has used or deleted?"""
        return is_partition(name, self._ctx.partitioned) and name not in self._ctx.deleted

    def _refuse_namespace(self, name: str, command: TopicCommand | LookupCommand) -> bool:
        """Answer a command on a topic whose namespace does not exist. False: this command gets no answer."""
        ctx = self._ctx
        if isinstance(command, c.Admin):
            reason = "Namespace not found"
            if admin_requests.is_schema_call(command):
                reason = "Schema not found" if command.method == "GET" else "Namespace does not exist"
            admin_requests.refuse(ctx, command, 404, reason)
        elif isinstance(command, LOOKUPS):
            lookup.refuse_as_missing(ctx, name, command)
        else:
            cause = (
                f"Namespace bundle ({namespace_of(name)}/{bundles.WHOLE}) for topic ({name}) not served by this instance. "
                "Please redo the lookup."
            )
            return topic_commands.refuse(ctx, name, command, "ServiceNotReady", cause)
        return True

    def _partitions(self, name: str) -> list[str]:
        """The partitions of a partitioned topic that are here."""
        return [
            each for each in partitions_of(name, self._ctx.partitioned[name]) if each in self._state.topics
        ]

    def _call_partitioned(self, name: str, command: c.Admin) -> None:
        """Answer a call on the policies or properties of a partitioned topic."""
        partitions = [each for each in self._partitions(name) if not is_non_persistent(each)]

        def touch() -> None:
            for each in partitions:
                self._persistent.touch(each)

        if partitioned_topics.call_whole(self._ctx, name, command, touch):
            for each in partitions:
                topic = self._persistent.touch(each)
                lifecycle.policies_changed(self._ctx, topic)
                self._persistent.check_effects(topic)
            self._non_persistent.policies_changed(
                [each for each in self._partitions(name) if is_non_persistent(each)]
            )

    def _delete_partitions(self, name: str, force: bool) -> bool:
        """Delete the partitions of a partitioned topic, without `force` only those that nobody uses. Is none left?"""
        deleted = [self._domain(each).delete(each, force=force) == 0 for each in self._partitions(name)]
        if self._topics_of is not None:
            self._topics_of[namespace_of(name)] -= sum(deleted)
        return all(deleted)

    def _delete(self, name: str, command: c.Admin) -> None:
        """Delete the topic with its subscriptions, ledgers, policies and schema. With `?force=true`, also one that has producers
        or consumers, which are disconnected. Ledger ids are never used again."""
        ctx = self._ctx
        if name in ctx.partitioned:
            reason = f"{name} is a partitioned topic, instead of calling delete topic, please call delete-partitioned-topic."
            admin_requests.refuse(ctx, command, 409, reason)
        elif name not in self._state.topics:
            if is_non_persistent(name):  # quirk: Pulsar does not look for it
                admin_requests.respond(ctx, name, command, 204)
            else:
                admin_requests.refuse(ctx, command, 404, f"Topic {name} not found")
        elif users := self._domain(name).delete(name, force=flag(command.path, "force")):
            admin_requests.refuse(ctx, command, 412, f"Topic has {users} connected producers/consumers")
        else:
            if self._topics_of is not None:
                self._topics_of[namespace_of(name)] -= 1
            admin_requests.respond(ctx, name, command, 204)

    def _refuse_name(self, name: str, command: TopicCommand | LookupCommand) -> Refused | None:
        """Answer a command for what is not a topic name. It is refused if no answer can say so."""
        ctx, cause = self._ctx, why_not_topic_name(name)
        if isinstance(command, c.Admin):
            admin_requests.refuse(ctx, command, 412, "Topic name is not valid")
        elif isinstance(command, c.GetSchema | c.GetOrCreateSchema):
            lookup.refuse(ctx, name, command, "InvalidTopicName", cause)
        elif isinstance(command, LOOKUPS):
            lookup.refuse(ctx, name, command, "InvalidTopicName", f"Invalid topic name: {cause}")
        elif not topic_commands.refuse(
            ctx, name, command, "InvalidTopicName", f"Invalid topic name: {cause}"
        ):
            return Refused("invalid_topic", cause)
        return None

    def _has_room(self, name: str, count: int = 1) -> bool:
        """May the namespace of a topic that isn't there have so many more topics?"""
        namespace = namespace_of(name)
        most = max_topics(self._ctx.namespaces.get(namespace, NO_POLICIES), self._ctx.config)
        if most <= 0:
            return True
        if self._topics_of is None or self._persistent.deleted_unused:
            self._topics_of = Counter(map(namespace_of, self._state.topics))
            self._persistent.deleted_unused = False
        return self._topics_of[namespace] + count <= most

    def _own_policies(self, name: str) -> Policies:
        """The policies that a topic sets, whether it exists or not."""
        if name in self._ctx.partitioned_topics:
            return self._ctx.partitioned_topics[name].policies
        return self._domain(name).load(name).policies if name in self._state.topics else NO_POLICIES

    def _domain(self, name: str) -> PersistentTopics | NonPersistentTopics:
        """The topics of the domain to which a topic belongs."""
        return self._non_persistent if is_non_persistent(name) else self._persistent

    def _restart(self) -> None:
        """Stop and start: close all topics, and with them everything that connections have there."""
        self._persistent.close()
        self._non_persistent.close()
        self._ctx.connections.clear()
        self._ctx.closed_producers.clear()
        self._coordinators.restarted()
        self._topics_of = None

    # -- transactions, see `Parts` --------------------------------------------------------------------------------

    def end_on_topic(self, topic: str, txn: TxnID, low_water_mark: int, *, commit: bool) -> bool:
        """See `Parts`."""
        topic = complete(topic)
        if topic not in self._state.topics or is_non_persistent(topic):
            return True
        found = self._persistent.touch(topic)
        ended = publishing.end_transaction(self._ctx, found, txn, low_water_mark, commit=commit)
        self._persistent.check_effects(found)
        return ended

    def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnID, low_water_mark: int, *, commit: bool
    ) -> None:
        """See `Parts`."""
        topic = complete(topic)
        if topic not in self._state.topics or is_non_persistent(topic):
            return
        found = self._persistent.touch(topic)
        if subscription in found.subscriptions:
            acks_in_transactions.end(
                self._ctx, found, found.subscriptions[subscription], txn, low_water_mark, commit=commit
            )
            self._persistent.check_effects(found)

    def _lost(self, command: c.ConnectionLost) -> list[str]:
        """The connections that a command says are gone."""
        kept, prefix = command.connection, command.prefix
        if not prefix:
            return [kept]
        return [
            name
            for name in {**self._ctx.connections, **self._ctx.closed_producers}
            if name.startswith(prefix) and not (kept and name.startswith(kept))
        ]

    def _connection_lost(self, connection: str) -> None:
        """Close all that a connection has on the topics of the partition."""
        self._ctx.closed_producers.pop(connection, None)
        for topic_name in self._ctx.connections.pop(connection, ()):
            if topic_name in self._state.topics:
                self._domain(topic_name).connection_lost(topic_name, connection)

    def _forget_parted(self) -> None:
        """Forget the connections of which topics have nothing left. The loss of some of them never comes."""
        ctx = self._ctx
        for connection, name in ctx.parted:
            topics = ctx.connections.get(connection, {})
            if name in topics and not (
                name in self._state.topics and self._domain(name).load(name).holds(connection)
            ):
                del topics[name]
                if not topics:
                    del ctx.connections[connection]
        ctx.parted.clear()

    def _configure(self, command: c.BrokerConfig) -> Refused | None:
        try:
            config = configuration(command.profile, command.settings)
        except BadSetting as error:
            return Refused("broker_config", str(error))
        self._reconfigure(dynamic_settings.over(self._ctx, config))
        return None

    def _reconfigure(self, config: ServiceConfiguration) -> None:
        ctx, topics = self._ctx, self._persistent
        for name in topics.open_names():
            topics.touch(name)  # until now, the former configuration held
        ctx.config = config
        ctx.policies_changed()
        rate_limits.configure_broker(ctx)
        topics.configured()
        topics.recount_unacked()
        self._non_persistent.configured(self._non_persistent.names())

    def _call_namespace(self, command: c.Admin) -> None:
        """Answer a call that is not about a topic."""
        ctx, state = self._ctx, self._state
        if (missing := admin_requests.lacking(ctx.config, command)) is not None:
            admin_requests.refuse(ctx, command, *missing)
            return
        if (
            dynamic_settings.call_settings(ctx, command, self._reconfigure)
            or resources.call_resources(ctx, command)
            or tenants.call_tenants(ctx, command, self._delete_namespace)
            or transactions.call_transactions(ctx, command, TransactionSource(state.coordinators, self.topic))
            or namespaces.call_lists(ctx, command, state.topics, ctx.deleted)
        ):
            return
        found = namespaces.call_namespace(ctx, command, self._touch_all, self._delete_all)
        if found is not None:
            self._on_namespace(*found)

    def _delete_namespace(self, namespace: str) -> None:
        """Delete a namespace and its topics."""
        self._delete_all(namespace, force=True)
        namespaces.forget(self._ctx, namespace)

    def _delete_all(self, namespace: str, force: bool) -> bool:
        """Delete the topics of a namespace, if there are none or by `force`. Is none left?"""
        ctx = self._ctx
        topics = sorted(namespaces.topics_in(namespace, self._state.topics))
        partitioned = list(namespaces.topics_in(namespace, ctx.partitioned))
        if (topics or partitioned) and not force:
            return False
        for name in topics:
            self._domain(name).delete(name, force=True)
        for name in partitioned:
            partitioned_topics.forget(ctx, name)
        if self._topics_of is not None:
            self._topics_of.pop(namespace, None)
        return True

    def _on_namespace(self, namespace: str, action: namespaces.OnTopic) -> None:
        for topic in self._touch_all(namespace):
            action(self._ctx, topic)
            self._persistent.check_effects(topic)
        self._non_persistent.policies_changed(namespaces.topics_in(namespace, self._non_persistent.names()))

    def _touch_all(self, namespace: str) -> list[PersistentTopic]:
        """The open persistent topics of a namespace, to which something happens now."""
        names = namespaces.topics_in(namespace, self._persistent.open_names())
        return [self._persistent.touch(name) for name in names]

    # -- time -----------------------------------------------------------------------------------------------------

    def _advance(self, timestamp: int) -> None:
        """Move the clock to `timestamp`, never back, stopping at every check and timer on the way.

        A `timestamp` of 0 or less is none.
        """
        ctx, topics = self._ctx, self._persistent
        ctx.begin(max(timestamp, ctx.clock))
        if timestamp <= 0:
            return
        if self._state.origin < 0:
            self._state.origin = ctx.clock = timestamp
            topics.configured()
            self._non_persistent.configured(self._non_persistent.names())
        if topics.may_be_due(timestamp):
            topics.advance(timestamp)
        if timestamp > ctx.clock:
            ctx.clock = timestamp

    # -- state ----------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The state, versioned. Only topics touched since the last call are encoded again."""
        state, ctx = self._state, self._ctx
        self._persistent.encode()
        self._non_persistent.encode()
        state.clock, state.offset, state.ordinal = ctx.clock, ctx.offset, ctx.ordinal
        state.config, state.generated_names = ctx.config, ctx.generated_names
        state.forgotten_ledger = ctx.deleted.forgotten
        self._forget_closed_producers()
        return encode_state(state)

    def _forget_closed_producers(self) -> None:
        """Forget those whose time is over. It makes no difference, but to the state's size."""
        closed, now = self._ctx.closed_producers, self._ctx.clock
        for connection, ids in list(closed.items()):
            for id_ in [id_ for id_, until in ids.items() if until < now]:
                del ids[id_]
            if not ids:
                del closed[connection]

    def summary(self) -> Summary:
        """Totals over the topics, as of the last `encode`."""
        blocks = self._state.topics.values()
        return Summary(
            self.clock,
            len(self._state.topics),
            sum([b.backlog for b in blocks]),
            sum([b.storage for b in blocks]),
        )

    def metrics(self, *, everything: bool) -> PartitionMetrics:
        """The figures of the topics that something has touched since `decode`, or of all topics.

        Nothing else has changed, except that time passed, which ends rates (`TopicMetrics.rates_until`).
        """
        ctx = self._ctx
        names = (
            self._state.topics if everything else self._persistent.loaded() + self._non_persistent.loaded()
        )
        return PartitionMetrics(
            self._state.partition,
            ctx.config.clusterName,
            ctx.clock,
            ctx.offset,
            seconds_of_interval(ctx.config) * 1000,
            state_bytes=0,
            topics=[self._domain(name).metrics(name) for name in names],
            deleted=[],
            quarantined={},
            release=RELEASES[PROFILE_OF[ctx.config.profile]],
            coordinators=self._coordinators.metrics(),
        )

    def is_closed(self, name: str) -> bool:
        """Whether nothing has used a topic since it was unloaded, or since the broker restarted."""
        return self._persistent.is_closed(name)

    def fan_out(self, name: str) -> int:
        """The subscriptions that a message of a topic goes to, as far as it is known without loading the topic."""
        return self._domain(name).fan_out(name)

    def topic(self, name: str) -> PersistentTopic:
        """The live state of a persistent topic, for inspection and tests. Raises `KeyError`."""
        if is_non_persistent(name) or name not in self._state.topics:
            raise KeyError(name)
        return self._persistent.load(name)

    def non_persistent_topic(self, name: str) -> NonPersistentTopic:
        """The live state of a non-persistent topic, for inspection and tests. Raises `KeyError`."""
        if not is_non_persistent(name) or name not in self._state.topics:
            raise KeyError(name)
        return self._non_persistent.load(name)

    def delivery(self, name: str, subscription: str) -> Delivery:
        """Why a subscription of a persistent topic gets what it gets. Raises `KeyError`.

        It finds out by dispatching, so use a broker that was decoded for this.
        """
        topic = self.topic(name)
        found = explain_delivery(self._ctx, topic, topic.subscriptions[subscription])
        if topic.transactions is not None and topic.transactions.ongoing:
            until = self._coordinators.ends_by(next(iter(topic.transactions.ongoing)))
            found.verdicts = [
                each._replace(until=until) if each.decider == OPEN_TRANSACTION else each
                for each in found.verdicts
            ]
        return found

    def retention(self, name: str) -> Retention:
        """Why a persistent topic has its ledgers. Raises `KeyError`.

        It goes on to the next check to see what that deletes, so use a broker that was decoded for this.
        """
        found = trimming.explain(self._ctx, self.topic(name))
        found.next_check, found.unchecked = self._next_check(name, "consumedLedgers", found.unchecked)
        effects = self._effects_until(found.next_check)
        found.deletes = [
            each.ledger_id for each in effects if isinstance(each, LedgerDeleted) and each.topic == name
        ]
        return found

    def quotas(self, name: str) -> Quotas:
        """Why the backlog quotas of a persistent topic have evicted nothing more. Raises `KeyError`.

        It goes on to the next check to see what that evicts, so use a broker that was decoded for this.
        """
        found = backlog_quota.explain(self._ctx, self.topic(name))
        found.next_check, found.unchecked = self._next_check(name, "backlogQuota", found.unchecked)
        for each in self._effects_until(found.next_check):
            if isinstance(each, Evicted) and each.topic == name:
                before = Position(each.before_ledger, each.before_entry)
                after = Position(each.after_ledger, each.after_entry)
                found.evicts.append(
                    Eviction(each.subscription, each.entries, str(before), str(after), each.cause)
                )
            if isinstance(each, CloseProducer) and each.topic == name:
                found.disconnects.append(each.producer_name)
        return found

    def expiry(self, name: str) -> Expiry:
        """What message TTL does to the subscriptions of a persistent topic. Raises `KeyError`.

        It goes on until each has expired something that will, so use a broker that was decoded for this.
        """
        found = message_expiry.explain(self._ctx, self.topic(name))
        found.next_check, found.unchecked = self._next_check(name, "messageExpiry", found.unchecked)
        waiting = {each.subscription: each for each in found.subscriptions if each.due is not None}
        if found.unchecked is None and found.next_check is not None:
            self._persistent.only(name)
            self._expire_next(name, waiting)
            if waiting:
                found.unknown.append(
                    f"what expires next for {some_of(waiting, _MOST_NAMES)}: nothing in the next {_MOST_ROUNDS:,} checks that may expire "
                    "something"
                )
        return found

    def _expire_next(self, name: str, waiting: dict[str, SubscriptionExpiry]) -> None:
        """Note what each subscription that waits expires first. Left are those for which it takes too many rounds to find out."""
        for _ in range(_MOST_ROUNDS):
            due = (
                {}
                if name not in self._state.topics
                else message_expiry.next_expiries(self._ctx, self.topic(name))
            )
            for subscription in [each for each in waiting if due.get(each, NEVER) >= NEVER]:
                del waiting[subscription]
            if not waiting:
                return
            at = self._persistent.next_round("messageExpiry", min(due[each] for each in waiting))
            for row in self._rows_until(at):
                expired = row.effect
                if isinstance(expired, Expired) and expired.topic == name and expired.subscription in waiting:
                    waiting[expired.subscription].add(row.clock, expired)
            for subscription in [name for name, each in waiting.items() if each.expires is not None]:
                del waiting[subscription]

    def inactivity(self, name: str) -> InactiveTopic:
        """Why a persistent topic is not deleted that nobody uses, or when it is. Raises `KeyError`.

        It goes on to the check that may delete it, so use a broker that was decoded for this.
        """
        self.topic(name)
        found = inactivity.explain(self._ctx, self._persistent.look_at(name))
        found.next_check, found.unchecked = self._next_check(name, "inactiveTopics", found.unchecked)
        if found.unchecked is None and found.next_check is not None:
            self._persistent.only(name)
            times = [found.next_check, self._persistent.next_round("inactiveTopics", found.due or 0)]
            for at in times:
                deleted = [each for each in self._rows_until(at) if _is_deletion(each.effect, name)]
                if deleted:
                    found.deletes_at = deleted[0].clock
                    break
        return found

    def inactive_subscriptions(self, name: str) -> InactiveSubscriptions:
        """Which subscriptions of a persistent topic are deleted because nobody uses them, and when. Raises `KeyError`."""
        found = inactive_subscriptions.explain(self._ctx, self.topic(name))
        found.next_check, found.unchecked = self._next_check(name, "inactiveSubscriptions", found.unchecked)
        if found.unchecked is None:
            for each in found.subscriptions:
                if each.due is not None:
                    each.deletes_at = self._persistent.next_round("inactiveSubscriptions", each.due)
        return found

    def deduplication(self, name: str) -> DeduplicationSnapshots:
        """When the next snapshot of a persistent topic's sequence ids is taken, and what a load would change. Raises `KeyError`."""
        found = deduplication_snapshots.explain(self._ctx, self.topic(name))
        found.next_check, found.unchecked = self._next_check(name, "deduplicationSnapshot", found.unchecked)
        if found.unchecked is None and found.due is not None:
            found.snapshot_at = self._persistent.next_round("deduplicationSnapshot", found.due)
        return found

    def absent_producers(self, name: str) -> AbsentProducers:
        """Which producers of a persistent topic are forgotten, and when. Raises `KeyError`.

        It goes on until each is forgotten that will be, so use a broker that was decoded for this.
        """
        found = producer_purge.explain(self._ctx, self.topic(name))
        found.next_check, found.unchecked = self._next_check(name, "inactiveProducers", found.unchecked)
        if found.unchecked is None:
            self._persistent.only(name)
            self._forget_next(name, {each.producer: each for each in found.producers if each.due is not None})
        return found

    def _forget_next(self, name: str, waiting: dict[str, AbsentProducer]) -> None:
        """Note which check forgets each producer that waits."""
        left: dict[str, AbsentProducer] = dict(waiting)
        for _ in range(_MOST_ROUNDS):
            due = [at for each in waiting if each in left and (at := left[each].due) is not None]
            if not due:
                return
            at = self._persistent.next_round("inactiveProducers", min(due))
            self._rows_until(at)
            if name not in self._state.topics:
                return
            left = {
                each.producer: each for each in producer_purge.explain(self._ctx, self.topic(name)).producers
            }
            for producer, each in list(waiting.items()):
                if producer not in left or (
                    left[producer].sequence_id is None and each.sequence_id is not None
                ):
                    waiting.pop(producer).forgotten_at = at

    def producing(self, name: str) -> Producing:
        """Who produces on a persistent topic, and what a new producer gets. Raises `KeyError`.

        It creates producers on copies to find out, so use a broker that was decoded for this.
        """
        topic, ctx = self.topic(name), self._ctx
        found = producing.explain(topic, ctx.clock)
        found.sampled = topic.is_sampled
        quotas = backlog_quota.explain(ctx, topic)
        found.verdicts += backlog_quota.blocking(quotas)
        found.slowest = quotas.slowest
        limit = ctx.policies_of(topic).maxProducersPerTopic
        if limit > 0:
            count = len(topic.producers) - len(topic.remote_producers)
            found.verdicts.append(producing.max_producers(count, limit))
        if ctx.policies_of(topic).encryptionRequired:
            found.verdicts.append(producing.encryption())
        state, reader = self.encode(), ctx.entries.reader
        for mode in producing.ACCESS_MODES:
            found.admissions.append(_admission(Broker.decode(state, reader), name, mode))
        return found

    def _next_check(self, name: str, check: str, unchecked: str | None) -> tuple[int | None, str | None]:
        """When a check runs next (ms), and why it passes the topic over."""
        if self._state.origin < 0:
            unchecked = "no record has a time yet"
        elif self.is_closed(name):
            unchecked = (
                "nothing has used the topic since it was unloaded, or since the broker restarted: it is not loaded, "
                "and not checked"
            )
        return self._persistent.next_round(check), unchecked

    def _effects_until(self, time: int | None) -> list[Effect]:
        """What happens up to `time` (ms) if no command comes."""
        return [row.effect for row in self._rows_until(time)]

    def _rows_until(self, time: int | None) -> list[Row]:
        self.take()
        if time is not None:
            self.tick(time)
        return self.take()

    def entry_state(self, name: str, subscription: str, position: Position) -> EntryState:
        """Where an entry of a persistent topic is for a subscription. Raises `KeyError`."""
        topic = self.topic(name)
        return entry_state(topic.context_of(self._ctx, topic.subscriptions[subscription]), position)

    def peek(self, name: str, subscription: str, show: Show, most: int) -> list[EntryState]:
        """The first entries of a subscription, see `delivery.entries`. Raises `KeyError`."""
        topic = self.topic(name)
        return entries(topic.context_of(self._ctx, topic.subscriptions[subscription]), show, most)

    def topics(self) -> dict[str, AbstractTopic]:
        """The live state of all topics by name, for inspection and tests."""
        return {name: self._domain(name).load(name) for name in self.topic_names()}

    def topic_stats(self, name: str) -> dict[str, Any]:
        """``stats`` and ``internal`` stats of a topic as Pulsar's admin API shows them. Raises `KeyError`."""
        if name not in self._state.topics:
            raise KeyError(name)
        return self._domain(name).stats(name)

    @property
    def partitioned(self) -> dict[str, int]:
        """The partitioned topics by name, with their number of partitions."""
        return self._ctx.partitioned

    def attached(self, connection: str, namespace: str) -> list[Attached]:
        """The producers and consumers that a connection has in a namespace, and those that wait for exclusive access."""
        return [
            each
            for name in self._ctx.connections.get(connection, ())
            if namespace_of(name) == namespace and name in self._state.topics
            for each in self._domain(name).load(name).attached(connection)
        ]

    def has_attached(self, connection: str, attached: Attached) -> bool:
        """Whether a connection has this producer or consumer, whatever its subscription, or it waits for exclusive access."""
        name = attached.topic
        return (
            name in self._ctx.connections.get(connection, ())
            and name in self._state.topics
            and (self._domain(name).load(name).has_attached(connection, attached))
        )

    def access(self, superusers: frozenset[str], *, wildcards: bool) -> Access:
        """Who may do what, as the state is when it is asked."""
        return Access(self._ctx, superusers, wildcards)

    @property
    def namespace_policies(self) -> dict[str, Policies]:
        """The policies that namespaces set, by ``tenant/namespace``."""
        return self._ctx.namespaces

    def policies(self, name: str) -> tuple[HierarchyTopicPolicies, Policies]:
        """The policies in force on a persistent topic, and those that are set on it or on the partitioned topic of which it is a
        partition. Raises `KeyError`."""
        topic = self.topic(name)
        return self._ctx.policies_of(topic), self._ctx.own_policies_of(topic)

    @property
    def coordinators(self) -> dict[int, Coordinator]:
        """The coordinators of transactions, by id."""
        return self._state.coordinators

    @property
    def initial_config(self) -> ServiceConfiguration:
        """The configuration without what the admin API has changed."""
        return dynamic_settings.initial(self._ctx)

    @property
    def changed_settings(self) -> list[str]:
        """The settings that the admin API has changed, by name."""
        return dynamic_settings.changed(self._ctx)

    @property
    def lasting(self) -> dict[str, Policies]:
        """The policies that topics and namespaces have whenever they exist, by name."""
        return self._state.lasting

    def former_ledger(self, topic: str) -> int:
        """The last ledger id of the deleted topic of a name, which the next one goes on from. 0: it stored nothing."""
        return self._ctx.deleted.former(topic)

    def topic_names(self) -> list[str]:
        """The full names of all topics, sorted."""
        return sorted(self._state.topics)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """The backlog (entries) and the storage (bytes) of each topic, as of the last `encode`."""
        return {name: (block.backlog, block.storage) for name, block in self._state.topics.items()}

    def listed_topics(self, namespace: str, *, to_client: bool = False) -> list[str]:
        """The full names of a namespace's topics, with all partitions of the partitioned ones, sorted. `to_client`: without system
        topics, as a client that asks for them gets them (docs/rules/protocol.md §9)."""
        names = set(namespaces.topics_in(namespace, self._state.topics))
        for name in namespaces.topics_in(namespace, self._ctx.partitioned):
            names.update(partitions_of(name, self._ctx.partitioned[name]))
        if to_client:
            is_hidden = is_transaction_topic if self._ctx.config.listsSystemTopics else is_hidden_topic
            names = {name for name in names if not is_hidden(name)}
        return sorted(names)

    def stats(self) -> list[dict[str, Any]]:
        """One row a topic (subscription None) and one each of its subscriptions: counts in entries, sizes in bytes."""
        return [row for name in self.topic_names() for row in self._domain(name).stats_rows(name)]


class OneOfSeveral(Broker):
    """The broker of one of several ingress partitions."""

    alone = False


def _is_deletion(effect: Effect, topic: str) -> bool:
    return isinstance(effect, TopicEvent) and effect.topic == topic and effect.cause.startswith("deleted ")


CALLS = Table(TOPIC, (Call("DELETE", "", Broker._delete, "one"),))
"""The call on a topic that none but the broker can answer."""


def _admission(copy: Broker, topic: str, mode: c.AccessMode) -> Admission:
    """What a new producer with an access mode, which encrypts, gets on a copy of a broker."""
    connection = "explain"
    while connection in copy.connections:
        connection += "'"
    asked = c.Producer(
        connection=connection, producer_id=0, request_id=0, producer_name=None, producer_access_mode=mode, encrypted=True
    )  # fmt: skip
    copy.apply(copy.offset + 1, copy.clock, topic, asked, b"")
    effects = [row.effect for row in copy.take()]
    for effect in effects:
        if isinstance(effect, Error) and effect.connection == connection:
            return Admission(mode, "is refused", effect.error, effect.cause)
    answer = next((each for each in effects if isinstance(each, ProducerSuccess)), None)
    if answer is None or not answer.fields.producer_ready:
        return Admission(mode, "waits")
    gone = [
        name
        for each in effects
        if isinstance(each, TopicEvent) and each.fields is not None
        for name in each.fields.fenced_out
    ]
    queued = sum(isinstance(each, Error) for each in effects)
    if not gone and not queued:
        return Admission(mode, "gets in")
    of_queue = f" and {queued} that wait" if queued else ""
    return Admission(mode, "fences", None, f"fences out {', '.join(gone) or 'nobody'}{of_queue}")
