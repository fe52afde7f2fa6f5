"""Shared state while the broker folds a command: the clock, the configuration, and the effects."""

import heapq
from collections.abc import Callable, Sequence
from functools import lru_cache
from sys import maxsize
from typing import Any, NamedTuple

import msgspec

from schemas.commands import SchemaData
from schemas.effects import CloseConnection, Effect, Row
from schemas.entries import EntryReader
from streaming.broker.config import MOST_PARTITIONS_IN_ALL, ServiceConfiguration, configuration
from streaming.broker.deleted_topics import DeletedTopics
from streaming.broker.entries import Entries
from streaming.broker.names import whole_of
from streaming.broker.policies.hierarchy import (
    NO_POLICIES,
    HasPolicies,
    HierarchyTopicPolicies,
    Level,
    PartitionedTopic,
    Policies,
    effective,
    over,
    resolve,
)
from streaming.broker.position import Position, from_tuple
from streaming.broker.rates.dispatch_rate_limiter import DispatchRateLimiter
from streaming.broker.rates.publish_rate_limiter import PublishRateLimiter

NEVER = 1 << 62
"""A time (ms) that does not come: nothing happens before the next command."""


@lru_cache(maxsize=1 << 14)
def namespace_of(topic: str) -> str:
    """``tenant/namespace`` of a full topic name, ``tenant/cluster/namespace`` of one of Pulsar 1."""
    parts = topic.partition("://")[2].split("/", 3)
    return "/".join(parts[:-1])


def tenant_of(namespace: str) -> str:
    """The tenant of ``tenant/namespace``."""
    return namespace.partition("/")[0]


_SLEPT = 100
"""So many timers that were taken back may be there, besides as many as there are others."""


class TenantInfo(msgspec.Struct):
    """What the admin API keeps of a tenant."""

    adminRoles: list[str] = []
    """Who may administer it."""
    allowedClusters: list[str] = []
    """The clusters that it may use: `standalone` is the one that there is."""


class RateLimits(msgspec.Struct, array_like=True):
    """The rate limits of all topics of an ingress partition together. None: there is none."""

    dispatch: DispatchRateLimiter | None = None
    publish: PublishRateLimiter | None = None


class Throttled(NamedTuple):
    """A message to `topic` exceeded a publish rate, so its connection is not to be read `until` then (ms), or longer."""

    topic: str
    connection: str
    until: int


ROWS = 1 << 14
ROW_BYTES = 1 << 11
"""When so many effects wait, they are handed on, so that a record with a million of them doesn't need memory for all. An effect
that carries a payload or a body counts as one more row per `ROW_BYTES`."""


class Acked(NamedTuple):
    """A client, an entry filter or a marker acked entries of a subscription, or, with `recovered`, the topic was loaded again
    and the cursor is back in its last written state. Not an output row: only observers see it, see `Broker.watch_acks`.

    `effects`: how many effects wait that came before. `positions`: the named entries that are acked now, none for a cumulative
    ack; `before` and `after` are mark-delete positions, `backlog` the entries that were unacked before. Before the broker
    moves a cursor, it says so with nothing acked.
    """

    effects: int
    offset: int
    clock: int
    topic: str
    subscription: str
    positions: Sequence[Position]
    before: Position
    after: Position
    backlog: int
    recovered: bool = False


class Context:
    """`clock` is in ms, and is moved to `until` before a command. `recorded`: the time (ms) of the record, which may be earlier. `at_work`: the topic that something was last done with. Each
    effect has the `offset` of the record that causes it and an `ordinal` within it, from 0. From the ordinal `spent_at` on, dispatchers
    put their reads off (maxEffectsPerCommand). `freed`: cursors that dispatchers have moved, each by its topic and name,
    with its former key (see `change_cursor`)."""

    __slots__ = (
        "_policies",
        "_slept",
        "_woken",
        "acks",
        "at_work",
        "clock",
        "closed_producers",
        "config",
        "connections",
        "deleted",
        "entries",
        "freed",
        "full",
        "generated_names",
        "lasting",
        "limits",
        "lost",
        "most",
        "namespaces",
        "offset",
        "ordinal",
        "parted",
        "partition",
        "partitioned",
        "partitioned_topics",
        "partitions",
        "permissions",
        "policies_epoch",
        "recorded",
        "resources",
        "rows",
        "schema_times",
        "schemas",
        "spent_at",
        "tenants",
        "throttled",
        "timers",
        "unloaded",
        "until",
    )

    def __init__(self, reader: EntryReader) -> None:
        self.partition = 0
        self.generated_names = 0
        self.at_work = ""
        self.clock = self.recorded = 0
        self.offset = -1
        self.ordinal = 0
        self.spent_at = maxsize
        self.until = 0
        self.config: ServiceConfiguration = configuration("4.x", {})
        self.tenants: dict[str, TenantInfo] = {}
        self.namespaces: dict[str, Policies] = {}
        self.permissions: dict[str, dict[str, list[str]]] = {}
        self.resources: dict[str, dict[str, Any]] = {}
        self.limits = RateLimits()
        self.connections: dict[str, dict[str, None]] = {}
        self.freed: list[tuple[str, str, Position]] = []
        self.closed_producers: dict[str, dict[int, int]] = {}
        self.lasting: dict[str, Policies] = {}
        self.unloaded: str | None = None
        self.partitioned: dict[str, int] = {}
        self.partitions = 0  # the sum of `partitioned`, which changes by `set_partitions` alone
        self.deleted = DeletedTopics({}, {}, 0, self.partitioned)
        self.partitioned_topics: dict[str, PartitionedTopic] = {}
        self.schemas: dict[str, list[SchemaData]] = {}
        self.schema_times: dict[str, list[int]] = {}
        self.entries = Entries(reader)
        self.rows: list[Row] = []
        self.full: Callable[[], object] | None = None
        self.most = maxsize
        self.lost: list[str] = []
        self.parted: dict[tuple[str, str], None] = {}
        self.acks: list[Acked] | None = None
        self.throttled: list[Throttled] | None = None
        self.timers: list[tuple[int, str]] = []
        self._woken: set[tuple[int, str]] = set()
        self._slept = 0  # calls of `sleep` since what was taken back was removed
        self.policies_epoch = 0  # rises when a policy or the configuration changes
        self._policies: dict[str, HierarchyTopicPolicies] = {}

    def begin(self, until: int) -> None:
        """A command begins, or a trigger, at `until` (ms): as many effects as may be follow."""
        self.until = until
        self.spent_at = self.ordinal + (self.config.maxEffectsPerCommand or maxsize)

    def emit(self, effect: Effect) -> None:
        """Append an effect to the output rows."""
        rows = self.rows
        rows.append(from_tuple(Row, (self.offset, self.ordinal, self.clock, effect)))
        self.ordinal += 1
        if len(rows) >= self.most and self.full is not None:
            self.full()

    def emit_large(self, effect: Effect, size: int) -> None:
        """Append an effect that carries `size` bytes besides names and numbers, and perhaps shares them with others."""
        self.most -= size // ROW_BYTES
        self.emit(effect)

    def take(self) -> list[Row]:
        """The effects since the last call, in order."""
        rows, self.rows = self.rows, []
        self.most = maxsize if self.full is None else ROWS
        return rows

    def when_full(self, full: Callable[[], object]) -> None:
        """Call `full` whenever many effects wait, also in the middle of a record. It must `take` them."""
        self.full, self.most = full, ROWS

    def observe_ack(
        self,
        topic: str,
        subscription: str,
        positions: Sequence[Position],
        before: Position,
        after: Position,
        backlog: int,
        *,
        recovered: bool = False,
    ) -> None:
        """Note an ack for an observer. Call it only if there is one (`acks` is not None)."""
        assert self.acks is not None
        self.acks.append(
            Acked(
                len(self.rows), self.offset, self.clock, topic, subscription, positions, before, after, backlog, recovered
            )
        )  # fmt: skip

    def wake(self, topic: str, due: int) -> None:
        """Run the topic's timers when the clock reaches `due` (ms). Superfluous calls are harmless."""
        if (timer := (due, topic)) not in self._woken:
            self._woken.add(timer)
            heapq.heappush(self.timers, timer)

    def sleep(self, topic: str, due: int) -> None:
        """Take a `wake` back that is not needed any more, so that they do not add up until they are due."""
        self._woken.discard((due, topic))
        self._slept += 1
        if self._slept > len(self.timers) // 2 + _SLEPT:
            self._slept = 0
            self.timers[:] = sorted({each for each in self.timers if each[1] != topic or each in self._woken})

    def wake_waiting(self, limiter: DispatchRateLimiter | None) -> None:
        """Run the timers of the topic whose dispatcher is the first to find permits of a shared limiter, if any waits for them."""
        if limiter is not None and (first := limiter.first_look()) is not None:
            due, (topic, _) = first
            self.wake(topic, due)

    def next_timer(self) -> str:
        """Remove the earliest timer and return its topic."""
        timer = heapq.heappop(self.timers)
        self._woken.discard(timer)
        return timer[1]

    def close_connection(self, topic: str, connection: str, cause: str) -> None:
        """Close a connection that broke the protocol. Its producers and consumers are removed at the end of the command."""
        self.emit(CloseConnection(topic, connection, cause))
        self.lost.append(connection)

    def attach(self, connection: str, topic: str) -> None:
        """Note that a connection has a producer or consumer on a topic, so that they are removed when it is lost."""
        self.connections.setdefault(connection, {})[topic] = None

    def part(self, connection: str, topic: str) -> None:
        """Note that a topic no longer has something of a connection. If nothing is left, the topic is forgotten for it at the end of
        the command."""
        self.parted[connection, topic] = None

    def set_partitions(self, name: str, count: int) -> None:
        """A topic has so many partitions from now on. 0: it is no partitioned topic."""
        self.partitions += count - self.partitioned.get(name, 0)
        if count:
            self.partitioned[name] = count
        else:
            self.partitioned.pop(name, None)

    def has_room_for_partitions(self, count: int) -> bool:
        """May there be so many more partitions?"""
        return self.partitions + count <= MOST_PARTITIONS_IN_ALL

    def policies_changed(self) -> None:
        """Drop the resolved policies of every topic, since a policy or the configuration changed."""
        self.policies_epoch += 1
        self._policies.clear()

    def policies_of(self, topic: HasPolicies) -> HierarchyTopicPolicies:
        """The effective policies of a topic. The result is cached until a policy or the configuration changes."""
        found = self._policies.get(topic.name)
        if found is None:
            namespace = namespace_of(topic.name)
            # Topics without policies of their own, which is most, share what their namespace has.
            own = self.own_policies_of(topic)
            scope = namespace if own == NO_POLICIES else topic.name
            found = self._policies.get(scope)
            if found is None:
                of_namespace = self.namespaces.get(namespace, NO_POLICIES)
                found = self._policies[scope] = resolve(own, of_namespace, self.config)
            self._policies[topic.name] = found
        return found

    def level_of(self, topic: HasPolicies, policy: str) -> Level:
        """The level that sets a policy of `hierarchy.LEVELS` for a topic."""
        of_namespace = self.namespaces.get(namespace_of(topic.name), NO_POLICIES)
        return effective(policy, self.own_policies_of(topic), of_namespace, self.config).level

    def own_policies_of(self, topic: HasPolicies) -> Policies:
        """The policies set on a topic, then those set on the partitioned topic of which it is a partition."""
        whole = whole_of(topic.name)
        if whole not in self.partitioned_topics:
            return topic.policies
        return over(topic.policies, self.partitioned_topics[whole].policies)
