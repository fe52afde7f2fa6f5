"""Upgrades of states that an older Magnetar wrote.

`codec.VERSION` numbers the encodings. An older state is decoded into plain lists, dicts and numbers. The steps from its
version on bring it to the current encoding, which is then decoded. This happens once: the next write is current.

A change to a structure that is part of a state needs a new `codec.VERSION`, and a test checks this. New last fields with
a default, in a structure without subclasses, need nothing else: msgspec fills them in. Any other change (a field that is
inserted, moved, removed or of another type, or another default) needs a step in `UPGRADES`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

UpgradeStep = Callable[[list[Any], dict[str, Any]], None]
"""Changes a version's state to the next version's, in place. Takes the partition's state and its topics by name.

A structure is a list of its fields (after its tag, if it has one), or a dict if its encoding is a map. A position is a
pair. A list may lack its last fields, if a version without them wrote it.
"""

_CLOCK, _CONFIG, _TOPICS, _DATA, _DUE = 1, 5, 7, 0, 1
"""Where `PartitionState.clock`, `config` and `topics`, and `TopicBlock.data` and `due` are, in every version."""


# -- version 1 to 2 -----------------------------------------------------------------------------------------------

_TOPIC_1 = (
    "name", "ledger", "dedup", "policies", "cursors", "subscriptions", "producers", "producer_handles",
    "closed_producers", "consumer_handles", "fenced", "pending", "fail_writes", "delay_writes", "oldest", "counters",
    "generated_names", "access", "failed_producers", "closing_producers",
)  # fmt: skip
_TOPIC_2 = (
    "name", "policies", "producers", "producer_handles", "closing_producers", "consumer_handles", "access", "last_active", "fenced", "pending", "delay_writes", "rates_until", "producer_counters",
    "counters", "ledger", "dedup", "cursors", "subscriptions", "fail_writes", "oldest",
)  # fmt: skip
"""The fields of a persistent topic. `failed_producers` held errors for clients that retried."""

_GENERATED_NAMES, _CLOSED_PRODUCERS = _TOPIC_1.index("generated_names"), _TOPIC_1.index("closed_producers")
_ADDED_FIELDS: tuple[Any, ...] = ({}, [], {}, {}, {}, {}, {})
"""The fields of `PartitionState` between those of version 1 and `generated_names`."""

_AFTER_GENERATED_NAMES: tuple[Any, ...] = ({}, {}, 0)
"""Those between `generated_names` and `closed_producers`."""

_ADDED_TO_SUBSCRIPTION: tuple[Any, ...] = (0, 0, [], {})
"""The fields of a subscription that version 2 has before the dispatcher, and version 1 had not."""

_CONSUMERS, _DISPATCHER, _HASH_RANGES = 3, 4, 14
"""Where version 1 had `Subscription.consumers`, `Subscription.dispatcher` and `Consumer.hash_ranges`."""

_PRODUCER_ID, _PRODUCER_1 = 2, (None, None, None, 0, "Shared", None, "")
"""Where `Producer.producer_id` is, and the defaults of the fields of version 1. In version 2, `created` follows."""

_REPLAY, _DELAYED, _MIN_REPLAYED = 2, 8, 17
"""Where a dispatcher to many consumers had these fields in version 1, counting its tag."""

_CHUNK_OWNERS, _ASLEEP, _PASSED_FROM = 10, 11, 12
"""Where it has these in version 2."""

_BLOCK = 512
"""How many items a block of a sorted set has in version 2."""


def _from_0_1_0(state: list[Any], topics: dict[str, Any]) -> None:
    """Delayed messages were in buckets, no topic was deleted because nobody used it, a rollover spared no ledger, and each schema was
    compatible with all others. A partition keeps rounding times, such topics, trimming such ledgers, and accepting schemas, until it
    gets another configuration. Each topic counted the names of producers that it made up, and knew when the broker
    closed a producer.
    """
    state[_CONFIG]["delayedDeliveryRoundsTimes"] = True
    state[_CONFIG]["brokerDeleteInactiveTopicsEnabled"] = False
    state[_CONFIG]["trimAtRolloverSparesClosedLedger"] = False
    state[_CONFIG].setdefault("schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    names = [
        topic[_GENERATED_NAMES] if isinstance(topic, list) else topic.get("generated_names", 0)
        for topic in topics.values()
    ]
    closed: dict[str, dict[int, int]] = {}
    keep_alive = state[_CONFIG].get("keepAliveIntervalSeconds", 30) * 1000
    for topic in topics.values():
        found = topic[_CLOSED_PRODUCERS] if isinstance(topic, list) else topic.pop("closed_producers", {})
        for (connection, id_), at in found.items():
            closed.setdefault(connection, {})[id_] = at + keep_alive
    state += [*_ADDED_FIELDS, max(names, default=0), *_AFTER_GENERATED_NAMES, closed]
    for name, topic in topics.items():
        if isinstance(topic, list):
            persistent_topic(topic, state[_CLOCK])
            state[_TOPICS][name].append(state[_CLOCK] + 1)  # `TopicBlock.next_round`: as soon as time goes on
        else:  # a non-persistent topic, whose encoding has field names
            _non_persistent_topic(topic, state[_CLOCK])
            state[_TOPICS][name][_DUE] = state[_CLOCK] + 1  # producers of the short form may leave


def persistent_topic(topic: list[Any], clock: int = 0) -> None:
    """Version 2 has the fields of all topics first, then those of persistent topics only. `clock`: the partition's (ms)."""
    fields = dict(zip(_TOPIC_1, topic, strict=True))
    for subscription in fields["subscriptions"].values():
        _sort_hash_ranges(subscription[_CONSUMERS])
        _dispatcher_last(subscription)
    _silent_from_now_on(fields["producers"], clock)
    for handles in ("producer_handles", "consumer_handles"):
        fields[handles] = _by_connection(fields[handles])
    fields["counters"] = _counters_of_all_first(fields["counters"])
    fields |= {"rates_until": 0, "producer_counters": {}, "last_active": clock}
    topic[:] = [fields[name] for name in _TOPIC_2]


def _by_connection(handles: dict[tuple[str, int], str]) -> list[dict[str, dict[int, str]]]:
    found: dict[str, dict[int, str]] = {}
    for (connection, id_), name in handles.items():
        found.setdefault(connection, {})[id_] = name
    return [found]


def _silent_from_now_on(producers: dict[str, list[Any]], clock: int) -> None:
    """Version 1 did not know when a producer of the short form published last. It has as much time as one that is new at `clock` (ms)."""
    for producer in producers.values():
        if producer[_PRODUCER_ID] is None:
            producer += [*_PRODUCER_1[len(producer) :], clock]


def _sort_hash_ranges(consumers: list[list[Any]]) -> None:
    """Version 1 had them in the order in which the consumer gave them."""
    for consumer in consumers:
        for ranges in consumer[_HASH_RANGES : _HASH_RANGES + 1]:
            ranges.sort(key=lambda given: (given["start"], given["end"]))


def _dispatcher_last(subscription: list[Any]) -> None:
    """Version 2 has the dispatcher after a subscription's other fields. In it are `asleep` and `passed_from`, and no
    `min_replayed`. With the owners of chunks are those that left. Entries that are delayed, or to be replayed, are sorted sets in blocks.
    """
    dispatcher = subscription.pop(_DISPATCHER)
    if dispatcher is not None and dispatcher[0] != "single":
        dispatcher[_REPLAY] = _in_blocks(dispatcher[_REPLAY])
        if len(dispatcher) > _DELAYED:
            tracker = dispatcher[_DELAYED]
            tracker[0] = _in_blocks(
                [time, *position] for time, positions in tracker[0].items() for position in positions
            )
        del dispatcher[_MIN_REPLAYED : _MIN_REPLAYED + 1]
        if len(dispatcher) > _CHUNK_OWNERS:
            dispatcher[_CHUNK_OWNERS] = [dispatcher[_CHUNK_OWNERS], []]
        if len(dispatcher) >= _ASLEEP:
            dispatcher.insert(_ASLEEP, {})
            dispatcher.insert(_PASSED_FROM, [-1, -1])  # entries that were passed may be pending
    subscription += [*_ADDED_TO_SUBSCRIPTION, dispatcher]


def _in_blocks(items: Iterable[list[int]]) -> list[Any]:
    """A sorted set in the encoding of version 2: the number of items, then each block's last item and encoding."""
    ordered = sorted(items)
    blocks = [ordered[start : start + _BLOCK] for start in range(0, len(ordered), _BLOCK)]
    return [len(ordered), [[block[-1], _encode(block)] for block in blocks]]


def _counters_of_all_first(counters: list[int]) -> list[int]:
    return counters[:2] + counters[8:10] + counters[2:8]


def _non_persistent_topic(topic: dict[str, Any], clock: int) -> None:
    """In version 2, a non-persistent topic has nothing for ledgers and cursors."""
    topic.pop("ledger", None)
    topic["last_active"] = clock
    _silent_from_now_on(topic.get("producers", {}), clock)
    for handles in topic.keys() & {"producer_handles", "consumer_handles"}:
        topic[handles] = _by_connection(topic[handles])
    if "counters" in topic:
        topic["counters"] = _counters_of_all_first(topic["counters"])[:4]
    for name, subscription in topic.get("subscriptions", {}).items():
        _, _, type_, consumers, dispatcher, properties, _, messages_out, bytes_out, dispatched = subscription[
            :10
        ]
        topic["subscriptions"][name] = [
            name, type_, _non_persistent_dispatcher(dispatcher), consumers, properties, messages_out, bytes_out,
            dispatched,
        ]  # fmt: skip


def _non_persistent_dispatcher(dispatcher: list[Any]) -> list[Any]:
    """Version 1 used the dispatchers of persistent topics, but only some of their fields."""
    match dispatcher[0]:
        case "single":
            _, failover, active = dispatcher[:3]
            return ["single", failover, active]
        case "multiple":
            _, round_robin, _, _, total_permits = dispatcher[:5]
            return ["multiple", round_robin, total_permits]
        case _:
            mode, _, selector = dispatcher[11:14]
            return ["sticky", mode, selector]


UPGRADES: dict[int, UpgradeStep] = {1: _from_0_1_0}
"""Version → the step to the next version. Missing if the next version only added fields with defaults."""

_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode


def upgraded(state: memoryview, found: int, wanted: int) -> bytes:
    """Upgrade a state without its version byte from version `found` to version `wanted`, which must not be lower."""
    raw = _decode(state)
    blocks = raw[_TOPICS]
    topics = {name: _decode(block[_DATA]) for name, block in blocks.items()}
    for version in range(found, wanted):
        if (step := UPGRADES.get(version)) is not None:
            step(raw, topics)
    for name, topic in topics.items():
        blocks[name][_DATA] = _encode(topic)
    return _encode(raw)
