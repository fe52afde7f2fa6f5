"""What is known of a topic of a cluster: its stats, internal stats and policies, as Pulsar's admin API shows them (2.10 to 5.0).

ShownFields that a version lacks, or of another type than expected, are unknown. So a reader never fails on them: what depends on them
can't be concluded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, get_args

import msgspec

from schemas.commands import Admin
from streaming.broker.admin import namespace_policies
from streaming.broker.config import ServiceConfiguration
from streaming.broker.errors import AdminError
from streaming.broker.ledger.ack_holes import runs_of
from streaming.broker.policies.admin_calls import set_policy
from streaming.broker.policies.hierarchy import (
    NO_POLICIES,
    BacklogQuota,
    Effective,
    Policies,
    QuotaType,
    effective,
    effective_quota,
)
from streaming.broker.position import Position, from_text
from streaming.broker.topic.stats import cursor_name

NAMESPACE_POLICIES = (
    "backlog_quota_map", "retention_policies", "max_unacked_messages_per_consumer", "max_unacked_messages_per_subscription",
    "max_producers_per_topic", "topicDispatchRate", "subscriptionDispatchRate", "publishMaxMessageRate",
)  # fmt: skip
"""What is used of a namespace's policies."""

TOPIC_POLICIES = {
    "backlogQuotaMap": "backlogQuota", "retention": "retention", "maxUnackedMessagesOnConsumer": "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesOnSubscription": "maxUnackedMessagesOnSubscription", "maxProducers": "maxProducers",
    "dispatchRate": "dispatchRate", "subscriptionDispatchRate": "subscriptionDispatchRate", "publishRate": "publishRate",
}  # fmt: skip
"""The calls that show what is used of a topic's policies, and those that set them."""


class ShownFields:
    """An object of a response, whose fields may be anything."""

    def __init__(self, value: Any) -> None:
        self._value: Mapping[str, Any] = value if isinstance(value, dict) else {}

    def __contains__(self, name: str) -> bool:
        return name in self._value

    def number(self, name: str) -> int | None:
        """A whole number."""
        found = self._value.get(name)
        return int(found) if isinstance(found, int | float) and not isinstance(found, bool) else None

    def rate(self, name: str) -> float | None:
        """A number."""
        found = self._value.get(name)
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None

    def flag(self, name: str) -> bool:
        """Whether it is true."""
        return self._value.get(name) is True

    def text(self, name: str) -> str | None:
        """A text that is not empty."""
        found = self._value.get(name)
        return found if isinstance(found, str) and found else None

    def position(self, name: str) -> Position | None:
        """A position."""
        return position(self._value.get(name))

    def position_text(self, name: str) -> str | None:
        """A position as LEDGER:ENTRY, whatever else the cluster says of it."""
        found = self.position(name)
        return None if found is None else str(found)

    def items(self, name: str) -> Iterator[tuple[str, ShownFields]]:
        """The objects of an object, by name."""
        found = self._value.get(name)
        for key, value in found.items() if isinstance(found, dict) else ():
            yield str(key), ShownFields(value)

    def each(self, name: str) -> Iterator[ShownFields]:
        """The objects of a list."""
        yield from map(ShownFields, self.list(name))

    def list(self, name: str) -> list[Any]:
        """A list."""
        found = self._value.get(name)
        return found if isinstance(found, list) else []

    def positions(self, name: str) -> dict[str, Position]:
        """The positions of an object, by name."""
        found = self._value.get(name)
        read = {key: position(value) for key, value in found.items()} if isinstance(found, dict) else {}
        return {str(key): value for key, value in read.items() if value is not None}


class _Subscription(msgspec.Struct):
    msgBacklog: float
    consumers: list[Any]


class _Stats(msgspec.Struct):
    subscriptions: dict[str, _Subscription]


def stats_of(value: Any) -> ShownFields:
    """A topic's stats. Without these fields, which every version shows, nothing could be concluded. Raises `ValueError`, which says what is
    missing."""
    msgspec.convert(value, _Stats)
    return ShownFields(value)


def position(text: Any) -> Position | None:
    """A position from LEDGER:ENTRY. None: it is none."""
    try:
        return from_text(text) if isinstance(text, str) else None
    except ValueError:
        return None


class Observed(msgspec.Struct, dict=True):
    """A topic that is not partitioned, or a partition, as it was at `clock` (ms by the clock of who asked).

    `internal`: None if the internal stats are not known. `own`, `namespace`, `config`: the policies of the topic and its namespace and the
    broker's settings, None for those that are not known. `missing`: what is not known, and why.
    """

    topic: str
    clock: int
    stats: ShownFields
    internal: ShownFields | None = None
    own: Policies | None = None
    namespace: Policies | None = None
    config: ServiceConfiguration | None = None
    missing: list[str] = []

    def policy(self, name: str) -> Effective[Any] | None:
        """The value of a policy that holds, and its level. None: a level that might set it is not known."""
        found = effective(
            name,
            self.own or NO_POLICIES,
            self.namespace or NO_POLICIES,
            self.config or ServiceConfiguration(),
        )
        return found if self._knows(found) else None

    def quota(self, type_: QuotaType) -> Effective[BacklogQuota] | None:
        """The same of a backlog quota."""
        found = effective_quota(
            type_,
            self.own or NO_POLICIES,
            self.namespace or NO_POLICIES,
            self.config or ServiceConfiguration(),
        )
        return found if self._knows(found) else None

    def _knows(self, found: Effective[Any]) -> bool:
        levels = {"topic": self.own, "namespace": self.namespace, "broker": self.config}
        above = [*levels][: [*levels].index(found.level) + 1]
        return all(levels[level] is not None for level in above)

    @cached_property
    def subscriptions(self) -> dict[str, ShownFields]:
        """The subscriptions by name."""
        return dict(self.stats.items("subscriptions"))

    @cached_property
    def _cursors(self) -> dict[str, ShownFields]:
        return {} if self.internal is None else dict(self.internal.items("cursors"))

    def cursor(self, subscription: str) -> ShownFields | None:
        """The cursor of a subscription."""
        return self._cursors.get(cursor_name(subscription), self._cursors.get(subscription))

    @cached_property
    def ledgers(self) -> dict[int, tuple[int, int]] | None:
        """The ledgers in order, with their entries and bytes; also of the open one, which shows none. None: they are not known."""
        if self.internal is None or not self.internal.list("ledgers"):
            return None
        found: dict[int, tuple[int, int]] = {}
        for each in self.internal.each("ledgers"):
            if (id_ := each.number("ledgerId")) is not None:
                found[id_] = each.number("entries") or 0, each.number("size") or 0
        if found and found[last := next(reversed(found))][0] == 0:
            found[last] = (
                self.internal.number("currentLedgerEntries") or 0,
                self.internal.number("currentLedgerSize") or 0,
            )
        return found

    def last_confirmed(self) -> Position | None:
        """The last entry that is stored."""
        return None if self.internal is None else self.internal.position("lastConfirmedEntry")

    def unread(self, cursor: ShownFields | None) -> int | None:
        """How many entries at or after a cursor's read position are not acked. None: it is not known."""
        ledgers, last = self.ledgers, self.last_confirmed()
        start = None if cursor is None else cursor.position("readPosition")
        if cursor is None or ledgers is None or start is None or last is None:
            return None
        end = {**ledgers, last.ledger: (last.entry + 1, 0)} if last.ledger in ledgers else ledgers
        entries = {
            ledger: range(count)
            for ledger, (count, _) in end.items()
            if start.ledger <= ledger <= last.ledger
        }
        if start.ledger in entries:
            entries[start.ledger] = entries[start.ledger][max(start.entry, 0) :]
        acked = 0
        for low, high in runs_of(cursor.text("individuallyDeletedMessages") or ""):
            across = [low.ledger] if low.ledger == high.ledger else entries
            for ledger in across:
                left = entries.get(ledger, range(0))
                if low.ledger <= ledger <= high.ledger and left:
                    first = max(low.entry + 1 if ledger == low.ledger else 0, left.start)
                    end_of_run = min(high.entry + 1, left.stop) if ledger == high.ledger else left.stop
                    acked += max(end_of_run - first, 0)
        return max(sum(map(len, entries.values())) - acked, 0)


QUOTA_TYPES: tuple[QuotaType, ...] = get_args(QuotaType)


def policies_of_namespace(dump: Any) -> tuple[Policies, list[str]]:
    """What is used of a namespace's policies, as ``pulsar-admin namespaces policies`` shows them, and what of it is not understood."""
    found, refused = Policies(), list[str]()
    for name in NAMESPACE_POLICIES:
        value = dump.get(name) if isinstance(dump, dict) else None
        if value is None:
            continue
        try:
            _merge(found, namespace_policies.read({name: value}, ""))
        except AdminError as error:
            refused.append(f"{name} of the namespace: {error.reason}")
    return found, refused


def policies_of_topic(shown: Mapping[str, Any], config: ServiceConfiguration) -> tuple[Policies, list[str]]:
    """The policies of a topic from the responses to the calls of `TOPIC_POLICIES`, and what of it is not understood."""
    found, refused = Policies(), list[str]()
    for call, value in shown.items():
        if value in (None, {}, ""):
            continue
        calls = (
            [("backlogQuota", f"?backlogQuotaType={type_}", quota) for type_, quota in value.items()]
            if call == "backlogQuotaMap" and isinstance(value, dict)
            else [(TOPIC_POLICIES[call], "", value)]
        )
        for name, parameters, body in calls:
            one = Policies()
            try:
                set_policy(one, Admin(method="POST", path=parameters, body=body), name, config)
            except AdminError as error:
                refused.append(f"{call} of the topic: {error.reason}")
            else:
                _merge(found, one)
    return found, refused


def _merge(into: Policies, other: Policies) -> None:
    for name in Policies.__struct_fields__:
        value = getattr(other, name)
        if isinstance(value, dict):
            setattr(into, name, getattr(into, name) | value)
        elif value is not None:
            setattr(into, name, value)
