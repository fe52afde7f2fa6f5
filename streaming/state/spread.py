"""More ingress partitions, or fewer: the states of some partitions become the states of others, topic by topic.

A topic's block moves as it is: positions, cursors, deduplication, producers and consumers stay what clients know. What a
partition has of the whole broker (configuration, namespaces, tenants, metadata of partitioned topics) must be the same in
all partitions that have topics, and each new partition gets it.

The clock of a new partition is the *earliest* of the old clocks, so that nothing that is due on a topic is skipped. Its log
must begin with a TICK at the latest of them (`Spread.clock`), which brings all topics to one time in the order of what is due.

What can't be the same as if the whole log had been folded over the new partitions:

* Limits of a whole ingress partition (maxUnackedMessagesPerBroker, the broker's rates): other topics share them now.
* The names that the broker makes up for producers have the number of their partition. They stay unique.
* The phase of periodic checks counts from a partition's first record. If these differ, checks run at other moments.
* A partition that folded its records at a later clock than the others, because their timestamps were ahead, takes the others
  with it.
* Ingress partitions number the schemas of a partitioned topic on their own. A new partition has all versions of the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import RateLimits, TenantInfo
from streaming.broker.persistent.unacked_limit import UnackedMessages
from streaming.broker.policies.hierarchy import PartitionedTopic, Policies
from streaming.broker.rates.dispatch_rate_limiter import DispatchRateLimiter
from streaming.broker.schema.schema_registry import name_of
from streaming.broker.state.codec import PartitionState
from streaming.broker.transactions.coordinator import Coordinator

_CHECKS_MOVE = (
    "the partitions' first records have different times, from which periodic checks count: on some topics, checks run at other "
    "moments than before"
)
_LIMITS_SHARED = (
    "maxUnackedMessagesPerBroker and the rates of the whole broker limit all topics of an ingress partition together: other "
    "topics share them now"
)
_WHOLE = ("config", "namespaces", "tenants", "resources")
"""The parts of a state that are of the whole broker: every partition gets the commands that change them."""


class NotSpread(ValueError):
    """States can't be given other partitions. The text says which partitions differ in what, and what to do."""


class _Whole(NamedTuple):
    """What a partition has of the whole broker."""

    partition: int
    has_topics: bool
    clock: int
    origin: int
    generated_names: int
    forgotten_ledger: int
    closed_producers: dict[str, dict[int, int]]
    config: ServiceConfiguration
    namespaces: dict[str, Policies]
    tenants: dict[str, TenantInfo]
    resources: dict[str, dict[str, Any]]
    limits: RateLimits
    partitioned: dict[str, int]
    partitioned_topics: dict[str, PartitionedTopic]
    permissions: dict[str, dict[str, list[str]]]
    lasting: dict[str, Policies]
    coordinators: dict[int, Coordinator]


class Spread:
    """Gives states other partitions. `add` each state and keep the pieces; when all are added, `joined` each new one's pieces.

    Of the states themselves, it keeps only what is of the whole broker, and the names of topics.
    """

    def __init__(self, partitions: int, place: Callable[[str], int]) -> None:
        """`partitions`: how many there will be. `place`: the new partition of a topic, from 0."""
        self._partitions, self._place = partitions, place
        self._wholes: list[_Whole] = []
        self.homes: dict[str, int] = {}
        """The old partition of each topic."""

    def add(self, state: PartitionState) -> dict[int, PartitionState]:
        """The pieces of a state by new partition. They share objects with it. Raises `NotSpread` if a topic is in another one, too."""
        pieces: dict[int, PartitionState] = {}

        def piece(topic: str) -> PartitionState:
            at = self._place(topic)
            if at not in pieces:
                pieces[at] = PartitionState(state.partition)
            return pieces[at]

        for name, block in state.topics.items():
            piece(name).topics[name] = block
            if self.homes.setdefault(name, state.partition) != state.partition:
                raise NotSpread(
                    f"topic {name} is in partitions {self.homes[name]} and {state.partition}, where it is two topics, which can't become "
                    "one. All writers must choose the same partition for a topic"
                )
        for name, block in state.aside.items():
            piece(name).aside[name] = block
        for name, left in state.deleted.items():
            piece(name).deleted[name] = left
        for name, policies in state.lasting.items():
            if "://" in name:
                piece(name).lasting[name] = policies
        for whole, partitions in state.deleted_partitions.items():
            for name, left in partitions.items():
                piece(name).deleted_partitions.setdefault(whole, {})[name] = left
        for name, messages in state.unacked.messages.items():
            piece(name).unacked.messages[name] = messages
        for name in state.unacked.waiting:
            piece(name).unacked.waiting[name] = None
        for connection, topics in state.connections.items():
            for name in topics:
                piece(name).connections.setdefault(connection, {})[name] = None
        if (limiter := state.limits.dispatch) is not None:
            for moment, dispatchers in limiter.waiting.items():
                for dispatcher in dispatchers:
                    own = piece(dispatcher[0]).limits
                    own.dispatch = own.dispatch or DispatchRateLimiter(limiter.rate, windows=limiter.windows)
                    own.dispatch.waiting.setdefault(moment, {})[dispatcher] = None
        users: dict[str, list[str]] = {}
        deleted = [*state.deleted, *(name for names in state.deleted_partitions.values() for name in names)]
        for name in (*state.topics, *state.aside, *deleted):
            users.setdefault(name_of(name), []).append(name)
        for name, versions in state.schemas.items():
            for user in users.get(name, [name]):
                piece(user).schemas[name] = versions
                if name in state.schema_times:
                    piece(user).schema_times[name] = state.schema_times[name]
        for name, roles in state.permissions.items():
            if "://" in name and name not in state.partitioned:
                piece(name).permissions[name] = roles
        self._wholes.append(
            _Whole(
                state.partition,
                bool(state.topics or deleted),
                state.clock,
                state.origin,
                state.generated_names,
                state.forgotten_ledger,
                state.closed_producers,
                state.config,
                state.namespaces,
                state.tenants,
                state.resources,
                state.limits,
                state.partitioned,
                state.partitioned_topics,
                {
                    name: roles
                    for name, roles in state.permissions.items()
                    if "://" not in name or name in state.partitioned
                },
                {name: policies for name, policies in state.lasting.items() if "://" not in name},
                state.coordinators,
            )
        )
        return pieces

    @property
    def clock(self) -> int:
        """The latest clock of the states (ms), 0 if none knows a time."""
        return max((each.clock for each in self._counting()), default=0)

    def check(self) -> list[str]:
        """Sentences on what may come out differently, when all states are added.

        Raises `NotSpread` if the partitions disagree on what is of the whole broker.
        """
        counting = self._counting()
        for each in counting[1:]:
            for part in _WHOLE:
                if getattr(each, part) != getattr(counting[0], part):
                    raise NotSpread(
                        f"partitions {counting[0].partition} and {each.partition} differ in "
                        f"{_named(part)}: one of them has folded a command for all partitions that the "
                        "other has not. Start the query again, and stop it when it has caught up"
                    )
        notes = []
        if len({each.origin for each in counting}) > 1:
            notes.append(_CHECKS_MOVE)
        if any(
            each.config.maxUnackedMessagesPerBroker > 0 or each.limits != RateLimits() for each in counting
        ):
            notes.append(_LIMITS_SHARED)
        return notes

    def joined(self, partition: int, pieces: Iterable[PartitionState]) -> PartitionState:
        """The state of a new partition, made of its pieces in the order of their old partitions.

        Raises `NotSpread` if two old partitions numbered the schemas of a partitioned topic differently.
        """
        counting = self._counting()
        known = [each.origin for each in counting if each.origin >= 0]
        state = PartitionState(
            partition,
            clock=min((each.clock for each in counting), default=0),
            origin=min(known, default=-1),
            generated_names=max((each.generated_names for each in counting), default=0),
            forgotten_ledger=max((each.forgotten_ledger for each in self._wholes), default=0),
            partitioned=self._common("partitioned", partition),
            partitioned_topics=self._common("partitioned_topics", partition),
            permissions=self._common("permissions", partition),
            lasting=self._common("lasting", partition),
        )
        for each in counting[:1]:
            state.config, state.namespaces, state.tenants = each.config, each.namespaces, each.tenants
            state.coordinators = _coordinators(counting, state.clock)
            state.resources, state.limits = each.resources, RateLimits(_unused(counting), each.limits.publish)
        for whole in self._wholes:  # a producer id is unique on its connection, whatever the topic
            for connection, ids in whole.closed_producers.items():
                merged = state.closed_producers.setdefault(connection, {})
                merged.update({id_: max(until, merged.get(id_, 0)) for id_, until in ids.items()})
        for piece in pieces:
            state.topics.update(piece.topics)
            state.aside.update(piece.aside)
            state.deleted.update(piece.deleted)
            state.lasting.update(piece.lasting)
            for name, partitions in piece.deleted_partitions.items():
                state.deleted_partitions.setdefault(name, {}).update(partitions)
            state.permissions.update(piece.permissions)
            for connection, topics in piece.connections.items():
                state.connections.setdefault(connection, {}).update(topics)
            _take(state.schemas, piece.schemas, _longer)
            _take(state.schema_times, piece.schema_times, _longer_times)
            if state.limits.dispatch is not None and piece.limits.dispatch is not None:
                for moment, dispatchers in piece.limits.dispatch.waiting.items():
                    state.limits.dispatch.waiting.setdefault(moment, {}).update(dispatchers)
            state.unacked.messages.update(piece.unacked.messages)
            state.unacked.waiting.update(piece.unacked.waiting)
        _settle(state.unacked)
        return state

    def _counting(self) -> list[_Whole]:
        """The partitions that have topics, by number. Others may have missed commands for all, and nobody noticed."""
        wholes = sorted(self._wholes, key=lambda each: each.partition)
        return [each for each in wholes if each.has_topics] or wholes

    def _common(self, part: str, partition: int) -> dict[str, Any]:
        """What all old partitions agree on. What only some know, as a topic that use of it created, stays with its name, unless a
        topic of that name is in a partition that does not know it.
        """
        counting = self._counting()
        common: dict[str, Any] = {}
        for each in counting:
            for name, value in getattr(each, part).items():
                agreed = all(getattr(other, part).get(name) == value for other in counting)
                if agreed or ("://" in name and self._is_home(name, each.partition, partition)):
                    common.setdefault(name, value)
        return common

    def _is_home(self, name: str, old: int, new: int) -> bool:
        return self._place(name) == new and self.homes.get(name, old) == old


def _unused(counting: Sequence[_Whole]) -> DispatchRateLimiter | None:
    """The broker's limiter with the permits of the first partition, before anybody waits for them."""
    limiters = [each.limits.dispatch for each in counting if each.limits.dispatch is not None]
    if not limiters:
        return None
    looked = max(each.looked for each in limiters)
    first = limiters[0]
    messages, size = (
        None if bucket is None else msgspec.structs.replace(bucket)
        for bucket in (first.messages, first.bytes)
    )
    return DispatchRateLimiter(
        first.rate, messages, size, {}, looked, windows=first.windows, following=first.following
    )


def _coordinators(wholes: Iterable[_Whole], clock: int) -> dict[int, Coordinator]:
    """The coordinators of all partitions, which have the same ones but for transactions that some have aborted by their own clocks. Those of a single
    partition are common from `clock` on."""
    found: dict[int, Coordinator] = {}
    for whole in wholes:
        for id_, each in whole.coordinators.items():
            known = found.get(id_, each)
            transactions = dict(sorted((each.transactions | known.transactions).items()))
            time = max(each.time, known.time)
            found[id_] = msgspec.structs.replace(
                each, transactions=transactions, time=time if time >= 0 else clock
            )
    return found


def _named(part: str) -> str:
    return {"config": "the broker's configuration", "resources": "what operators set for the broker"}.get(
        part, f"the {part}"
    )


def _take(to: dict[str, Any], found: Mapping[str, Any], both: Callable[[str, Any, Any], Any]) -> None:
    for name, value in found.items():
        to[name] = both(name, to[name], value) if name in to else value


def _longer(name: str, one: list[Any], other: list[Any]) -> list[Any]:
    """One numbering of the versions of a schema, if the other is its beginning."""
    short, long = sorted((one, other), key=len)
    if long[: len(short)] != short:
        raise NotSpread(
            f"partitions of topic {name} that were in different ingress partitions number its schemas differently, and would share "
            "an ingress partition now: choose another number of partitions"
        )
    return long


def _longer_times(name: str, one: list[int], other: list[int]) -> list[int]:
    return max(one, other, key=len)


def _settle(unacked: UnackedMessages) -> None:
    """The total of the topics that are here. Subscriptions that wait go on waiting until the broker looks, at the next event."""
    unacked.total = sum(unacked.messages.values())
    unacked.blocked = bool(unacked.waiting)
