"""What the mechanisms share while a command is folded: the clock, the configuration, the way out."""

import heapq

from schemas.commands import SchemaData
from schemas.effects import CloseConnection, Effect, Row
from schemas.entries import EntryReader
from streaming.broker.config import ServiceConfiguration, configuration
from streaming.broker.ledger.entries import Entries
from streaming.broker.policies.hierarchy import (
    NO_POLICIES,
    HasPolicies,
    HierarchyTopicPolicies,
    Policies,
    resolve,
)


def namespace_of(topic: str) -> str:
    """``tenant/namespace`` of a full topic name."""
    _, _, rest = topic.partition("://")
    tenant, _, rest = rest.partition("/")
    return f"{tenant}/{rest.partition('/')[0]}"


class Context:
    """`clock` in ms. Effects are numbered within the record that causes them: `offset`, then 0, 1, 2, …"""

    __slots__ = (
        "_policies",
        "_woken",
        "clock",
        "config",
        "connections",
        "entries",
        "lost",
        "namespaces",
        "offset",
        "ordinal",
        "partitioned",
        "rows",
        "schemas",
        "timers",
    )

    def __init__(self, reader: EntryReader) -> None:
        self.clock = 0
        self.offset = -1
        self.ordinal = 0
        self.config: ServiceConfiguration = configuration("4.x", {})
        self.namespaces: dict[str, Policies] = {}
        self.connections: dict[str, dict[str, None]] = {}
        self.partitioned: dict[str, int] = {}
        self.schemas: dict[str, list[SchemaData]] = {}
        self.entries = Entries(reader)
        self.rows: list[Row] = []
        self.lost: list[str] = []
        self.timers: list[tuple[int, str]] = []
        self._woken: set[tuple[int, str]] = set()
        self._policies: dict[str, HierarchyTopicPolicies] = {}

    def emit(self, effect: Effect) -> None:
        """Put an effect out."""
        self.rows.append(Row(self.offset, self.ordinal, self.clock, effect))
        self.ordinal += 1

    def wake(self, topic: str, due: int) -> None:
        """Let the topic's timers run when the clock reaches `due` (ms). Once too often does no harm."""
        if (timer := (due, topic)) not in self._woken:
            self._woken.add(timer)
            heapq.heappush(self.timers, timer)

    def next_timer(self) -> str:
        """Take the earliest of `timers`: the topic to wake."""
        timer = heapq.heappop(self.timers)
        self._woken.discard(timer)
        return timer[1]

    def close_connection(self, topic: str, connection: str, cause: str) -> None:
        """A client broke the protocol: its connection is closed, all it has in the partition with the command's end."""
        self.emit(CloseConnection(topic, connection, cause))
        self.lost.append(connection)

    def attach(self, connection: str, topic: str) -> None:
        """Note that a connection has a producer or consumer on a topic, so that its loss finds them."""
        self.connections.setdefault(connection, {})[topic] = None

    def policies_changed(self) -> None:
        """Resolve every topic's policies anew: a policy or the configuration changed."""
        self._policies.clear()

    def policies_of(self, topic: HasPolicies) -> HierarchyTopicPolicies:
        """The policies in force on a topic, resolved once until one of them or the configuration changes."""
        found = self._policies.get(topic.name)
        if found is None:
            namespace = self.namespaces.get(namespace_of(topic.name), NO_POLICIES)
            found = self._policies[topic.name] = resolve(topic.policies, namespace, self.config)
        return found
