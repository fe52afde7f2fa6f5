"""What a cluster's admin API shows of a topic, as a MIRROR: where its subscriptions are, and what moved them (docs/rules/ledgers.md §16).

A position that moved does not say why. Its counters and the topic's policies do, as far as anything does:

* It went back, or an acknowledged entry is not acknowledged any more: somebody has reset the subscription.
* `totalMsgExpired` rose by n: the first n entries that were unacknowledged before were passed by TTL.
* It went forward over more entries than consumers can have acknowledged, and the topic has a quota that evicts: the quota passed the
  entries. Without such a quota, somebody skipped them. Consumers can have acknowledged what was read for them before, and what they were
  sent since. Without any consumer, that is nothing, and so it is if none has acknowledged anything (`lastAckedTimestamp`).
* Otherwise consumers have acknowledged.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import msgspec

from schemas.commands import (
    AccessMode,
    Mirror,
    MirroredConsumer,
    MirroredProducer,
    MirroredSubscription,
    SubType,
)
from streaming.broker.ledger.ack_holes import runs_of
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.position import from_text
from streaming.broker.topic.stats import cursor_name

_TYPES: tuple[SubType, ...] = get_args(SubType)
_MODES: tuple[AccessMode, ...] = get_args(AccessMode)

_Position = tuple[int, int]
_Range = tuple[int, int, int, int]


class Observation(NamedTuple):
    """What was seen of a topic at `time` (ms), and at the look before (`earlier`). `ledgers`: the entries of those that a subscription needs,
    by ledger, as far as this process has seen them."""

    time: int
    record: Mirror
    earlier: Mirror | None = None
    ledgers: Mapping[int, int] = MappingProxyType({})


def observe(
    time: int,
    stats: Mapping[str, Any],
    internal: Mapping[str, Any],
    before: Observation | None = None,
    *,
    read_to: tuple[int, int] = (-1, -1),
    evicts: bool = False,
    created: int | None = None,
) -> Observation:
    """What `stats` and `internalStats` of a topic show at `time` (ms), with what happened since `before`.

    `created`: when its metadata was (ms), for `stats` that do not show it. None: as `before`. `read_to`: the last entry in the log. `evicts`: the topic has a backlog quota with the policy consumer_backlog_eviction. Raises
    AttributeError, IndexError, KeyError, TypeError and ValueError for what no broker answers.
    """
    ledgers = {id_: entries for id_, (entries, _) in ledgers_of(internal).items()}
    stored = _Stored(ledgers)
    if created is None:
        created = 0 if before is None else before.record.created
    subscriptions = dict[str, MirroredSubscription]()
    for name, seen in stats["subscriptions"].items():
        cursor = internal["cursors"].get(cursor_name(name))
        if not seen.get("isDurable", True) or name == DEDUP_CURSOR or cursor is None:
            continue
        now = _subscription(name, seen, cursor, stored)
        if before is not None and name in before.record.subscriptions:
            now = _since(
                before, name, now, stored, evicts=evicts, all_sent=_are_all_sent(stats, internal, seen)
            )
        subscriptions[name] = now
    record = Mirror(
        connection=CONNECTION,
        since=0 if before is None else before.time,
        ledger_id=max(ledgers, default=-1),
        last_confirmed=max(
            ((id_, entries - 1) for id_, entries in ledgers.items() if entries),
            default=from_text(internal["lastConfirmedEntry"]),
        ),
        read_to=read_to,
        entries=internal["numberOfEntries"],
        size=internal["totalSize"],
        first_ledger=min(ledgers, default=-1),
        subscriptions=subscriptions,
        producers=list(_producers(stats.get("publishers", []))),
        created=max(stats.get("topicCreationTimeStamp", 0), 0) or created,
        added=internal.get("entriesAddedCounter", -1),
        moving=stats.get("storageSize", internal["totalSize"]) != internal["totalSize"],
    )
    try:
        record = msgspec.convert(msgspec.to_builtins(record), Mirror)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ValueError(f"no broker shows this: {error}") from None
    needed = min((each.mark_delete[0] for each in subscriptions.values()), default=record.ledger_id)
    needed_ledgers = {id_: entries for id_, entries in ledgers.items() if id_ >= needed}
    return Observation(time, record, None if before is None else before.record, needed_ledgers)


def is_another(before: Mirror, now: Mirror, *, retained: bool) -> bool:
    """Whether a topic was deleted and created again between two looks. `retained`: its retention would have kept the open ledger.

    All of its ledgers are gone, and with them entries that it could not do without: retained ones, or ones that nobody can have
    acknowledged for a subscription, and the broker counts from 0 again. Where it is known when the topic was created, that decides.
    """
    if before.created and now.created:
        return before.created != now.created
    if not before.entries or now.first_ledger <= max(before.ledger_id, before.last_confirmed[0]):
        return False
    if retained and before.last_confirmed[0] == before.ledger_id:
        return True
    counts_anew = 0 <= now.added < before.added + now.entries
    return counts_anew and any(each.reset for each in now.subscriptions.values())


def ledgers_of(internal: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    """Entries and bytes by ledger, ascending."""
    found = {each["ledgerId"]: (each["entries"], each["size"]) for each in internal["ledgers"]}
    if found:  # of the open one, they are elsewhere
        current = max(found)
        entries, size = found[current]
        found[current] = (
            max(entries, internal.get("currentLedgerEntries", 0)),
            max(size, internal.get("currentLedgerSize", 0)),
        )
    return dict(sorted(found.items()))


CONNECTION = "mirror"
"""The connection of what `magnetar mirror` writes."""


class _Stored:
    """Counts a topic's entries. `ledgers`: entries by ledger, ascending."""

    def __init__(self, ledgers: dict[int, int]) -> None:
        self.ledgers, self._ids = ledgers, [*ledgers]
        self._before = [0, *accumulate(ledgers.values())]

    def up_to(self, position: _Position) -> int:
        """How many entries there are up to a position, and with it."""
        ledger, entry = position
        return self._before[bisect_left(self._ids, ledger)] + min(entry + 1, self.ledgers.get(ledger, 0))

    @property
    def count(self) -> int:
        """How many entries there are."""
        return self._before[-1]

    def position_of(self, number: int) -> _Position:
        """Where an entry is, the first one of the topic being number 1."""
        index = bisect_left(self._before, number) - 1
        return self._ids[index], number - self._before[index] - 1

    def backlog(self, mark_delete: _Position, acknowledged: list[_Range]) -> int:
        """How many entries after `mark_delete` are in none of the ranges."""
        return (
            self.count
            - self.up_to(mark_delete)
            - sum(self.up_to(each[2:]) - self.up_to(each[:2]) for each in acknowledged)
        )


def _subscription(
    name: str, seen: Mapping[str, Any], cursor: Mapping[str, Any], stored: _Stored
) -> MirroredSubscription:
    mark_delete = from_text(cursor["markDeletePosition"])
    acknowledged = list(ranges(cursor["individuallyDeletedMessages"]))
    backlog = max(stored.backlog(mark_delete, acknowledged), 0)
    return MirroredSubscription(
        mark_delete=mark_delete,
        acknowledged=acknowledged,
        # That of `stats` is of another moment than the positions.
        backlog=backlog,
        unacked=seen.get("unackedMessages", 0),
        expired=max(seen.get("totalMsgExpired", 0), 0),
        sent=max(seen.get("msgOutCounter", 0), 0),
        type=seen["type"] if seen.get("type") in _TYPES else None,
        out_of_order=bool(seen.get("allowOutOfOrderDelivery", False)),
        consumers=list(_consumers(name, seen.get("consumers", []))),
        read=from_text(cursor["readPosition"]) if "readPosition" in cursor else None,
        moving=seen.get("msgBacklog", backlog) != backlog,
    )


def _since(
    look: Observation, name: str, now: MirroredSubscription, stored: _Stored, *, evicts: bool, all_sent: bool
) -> MirroredSubscription:
    """`now`, with what moved the subscription since the `look`. `all_sent`: see `_are_all_sent`."""
    before = look.record.subscriptions[name]
    if now.mark_delete < before.mark_delete or _took_back(before, now):
        return msgspec.structs.replace(now, reset=True)
    if now.mark_delete == before.mark_delete:
        # `stats` come later: what has expired since `internalStats` is seen to move the position at the next look.
        return msgspec.structs.replace(now, expired=min(before.expired, now.expired))
    earlier = None if look.earlier is None else look.earlier.subscriptions.get(name)
    read = None
    if all_sent and before.read is not None:
        read = _passed(look.record, before, (before.read[0], before.read[1] - 1), stored)
    acks = _most_acks(earlier, before, now, read)
    unsent = 0 if acks is None else _passed(look.record, before, now.mark_delete, stored) - acks
    lately = max(now.expired - (earlier or before).expired, 0)
    if unsent > lately:
        ruled = evicts or lately > 0
        return msgspec.structs.replace(now, expired_to=now.mark_delete if ruled else None, reset=not ruled)
    if (expired := max(now.expired - before.expired, unsent)) > 0:
        to = now.mark_delete
        if expired < _passed(look.record, before, to, stored):
            # A ledger may be gone as soon as its last entry has expired.
            known = _Stored(dict(sorted({**look.ledgers, **stored.ledgers}.items())))
            to = min(_nth_unacknowledged(before, expired, known), to)
        return msgspec.structs.replace(now, expired_to=to)
    return now


def _most_acks(
    earlier: MirroredSubscription | None,
    before: MirroredSubscription,
    now: MirroredSubscription,
    read: int | None,
) -> int | None:
    """How many entries can have been acknowledged since `before`, at most: as many as had been `read` and not acknowledged then, and as
    there were messages sent since. None: nobody can tell. The topic may have been loaded since, and then counts anew.

    `stats` come after `internalStats`, so of what was acknowledged between both answers of the look before, its counters know, and its
    positions do not. So those of the look before that one (`earlier`) count.
    """
    first = before if earlier is None else earlier
    if not (first.consumers or before.consumers or now.consumers):
        return 0 if now.sent == first.sent else None
    acked, acked_first = ({each.connection: each.last_ack for each in of.consumers} for of in (now, first))
    if earlier is None or read is None or now.sent < earlier.sent or not acked.keys() & acked_first.keys():
        return None
    if now.sent == earlier.sent and acked == acked_first and -1 not in acked.values():
        return 0
    return max(read, earlier.unacked, 0) + now.sent - earlier.sent


def _are_all_sent(stats: Mapping[str, Any], internal: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
    """Whether consumers are sent each entry. The broker itself acknowledges markers, aborted transactions, what a filter rejects, and what
    compaction has left out."""
    counts = ("ongoingTxnCount", "committedTxnCount", "abortedTxnCount")
    return not (
        any(stats.get(each) for each in counts)
        or stats.get("replication")
        or seen.get("filterRejectedMsgCount")
        or internal.get("compactedLedger", {}).get("ledgerId", -1) >= 0
    )


def _passed(look: Mirror, before: MirroredSubscription, to: _Position, stored: _Stored) -> int:
    """How many entries up to a position a subscription had not acknowledged at a look, also if they have been deleted since."""
    end = stored.up_to(to)
    found = before.backlog + end - stored.up_to(look.last_confirmed)
    for each in before.acknowledged:
        found += max(stored.up_to(each[2:]) - max(stored.up_to(each[:2]), end), 0)
    return found


def _took_back(before: MirroredSubscription, now: MirroredSubscription) -> bool:
    """Whether an entry that was acknowledged is not any more."""
    ranges = iter(now.acknowledged)
    current = next(ranges, None)
    for *low, high_ledger, high in before.acknowledged:
        first, last = max((low[0], low[1]), now.mark_delete), (high_ledger, high)
        if last <= now.mark_delete:
            continue
        while current is not None and current[2:] < last:
            current = next(ranges, None)
        if current is None or current[:2] > first:
            return True
    return False


def _nth_unacknowledged(before: MirroredSubscription, n: int, stored: _Stored) -> _Position:
    """The n-th entry that a subscription had not acknowledged, or the last one; without any, its mark-delete position."""
    at, found = stored.up_to(before.mark_delete), 0
    end = stored.count
    for start, next_ in [
        *((stored.up_to(each[:2]), stored.up_to(each[2:])) for each in sorted(before.acknowledged)),
        (end, end),
    ]:
        if (unacked := start - at) >= n:
            return stored.position_of(at + n)
        if unacked > 0:
            n -= unacked
            found = start
        at = max(at, next_)
    return stored.position_of(found) if found else before.mark_delete


def _consumers(subscription: str, seen: list[Mapping[str, Any]]) -> Iterator[MirroredConsumer]:
    names = dict[str, int]()
    for each in seen:
        name = each.get("consumerName") or ""
        key = f"{each.get('address', '')}/{subscription}/{name}/{each.get('connectedSince', '')}"
        names[key] = number = names.get(key, 0) + 1
        yield MirroredConsumer(
            connection=key if number == 1 else f"{key}/{number}",
            name=name,
            sent=max(each.get("msgOutCounter", 0), 0),
            permits=each.get("availablePermits", 0),
            held=max(each.get("unackedMessages", 0), 0),
            last_ack=each.get("lastAckedTimestamp", -1),
        )


def _producers(seen: list[Mapping[str, Any]]) -> Iterator[MirroredProducer]:
    for each in seen:
        mode = each.get("accessMode")
        name = each["producerName"]
        yield MirroredProducer(
            connection=f"{each.get('address', '')}/{name}/{each.get('producerId', '')}",
            name=name,
            access_mode=mode if mode in _MODES else "Shared",
        )


def ranges(text: str) -> Iterator[_Range]:
    """The ranges of acknowledged entries as internal stats have them: ``[(7:0..7:2],(7:4..8:1]]``."""
    for low, high in runs_of(text):
        yield (*low, *high)
