"""States that an older Magnetar wrote, made readable to this one.

`codec.VERSION` numbers the encodings. A state of an older one is decoded into lists, dicts and numbers, goes through the
steps from its version on, and is read as a state of today. It costs that once: what is written next is of today.

A change of a structure that is part of a state needs a new `codec.VERSION` (a test says so). Fields appended with a
default, to a structure that no other extends, are no more work: msgspec fills them in. All else (a field put in between,
moved, removed, of another type, a default that is another) needs a step in `UPGRADES`.
"""

from collections.abc import Callable
from typing import Any

import msgspec

Step = Callable[[list[Any], dict[str, Any]], None]
"""Changes, in place, what a version wrote into what the next one writes: the partition's state and its topics by name.

A structure is a list of its fields (behind its tag, if it has one), or a dict where its encoding is a map; a position is
a pair. Such a list may be shorter than its version has fields: older versions only lacked the last ones.
"""

_CONFIG, _TOPICS, _DATA = 5, 7, 0
"""Where `PartitionState.config`, `PartitionState.topics` and `TopicBlock.data` are, in every version."""


# -- version 1 to 2 -----------------------------------------------------------------------------------------------

_TOPIC_1 = (
    "name", "ledger", "dedup", "policies", "cursors", "subscriptions", "producers", "producer_handles",
    "closed_producers", "consumer_handles", "fenced", "pending", "fail_writes", "delay_writes", "oldest", "counters",
    "generated_names", "access", "failed_producers", "closing_producers",
)  # fmt: skip
_TOPIC_2 = (
    "name", "policies", "producers", "producer_handles", "closed_producers", "closing_producers", "consumer_handles",
    "access", "generated_names", "fenced", "pending", "delay_writes", "counters", "ledger", "dedup", "cursors",
    "subscriptions", "fail_writes", "oldest",
)  # fmt: skip
"""The fields of a persistent topic. `failed_producers` were errors for clients that asked again."""

_DISPATCHER, _MIN_REPLAYED = 4, 17
"""Where version 1 had `Subscription.dispatcher`, and, with its tag, `StickyKeyMultipleConsumers.min_replayed`."""


def _from_0_1_0(state: list[Any], topics: dict[str, Any]) -> None:
    """Delayed messages were in buckets: a partition goes on like that until it gets another configuration."""
    state[_CONFIG]["delayedDeliveryRoundsTimes"] = True
    for topic in topics.values():
        if isinstance(topic, list):
            persistent_topic(topic)
        else:  # a non-persistent one, whose fields have names
            _non_persistent_topic(topic)


def persistent_topic(topic: list[Any]) -> None:
    """Version 2 has first what all topics have, then what only persistent ones have."""
    fields = dict(zip(_TOPIC_1, topic, strict=True))
    for subscription in fields["subscriptions"].values():
        _dispatcher_last(subscription)
    fields["counters"] = _counters_of_all_first(fields["counters"])
    topic[:] = [fields[name] for name in _TOPIC_2]


def _dispatcher_last(subscription: list[Any]) -> None:
    """Version 2 has the dispatcher behind a subscription's other fields, and no `min_replayed` in it."""
    dispatcher = subscription.pop(_DISPATCHER)
    if dispatcher is not None and dispatcher[0].startswith("sticky"):
        del dispatcher[_MIN_REPLAYED : _MIN_REPLAYED + 1]
    subscription.append(dispatcher)


def _counters_of_all_first(counters: list[int]) -> list[int]:
    return counters[:2] + counters[8:10] + counters[2:8]


def _non_persistent_topic(topic: dict[str, Any]) -> None:
    """Version 2 has nothing that concerns ledgers and cursors in a non-persistent topic."""
    topic.pop("ledger", None)
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
    """Version 1 had the dispatchers of persistent topics, of which only some fields were in use."""
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


UPGRADES: dict[int, Step] = {1: _from_0_1_0}
"""Version → the step to the next. None: the next one only added what has a default."""

_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode


def upgraded(state: memoryview, found: int, wanted: int) -> bytes:
    """A state without its version byte, from version `found` to version `wanted`, which is not older."""
    raw = _decode(state)
    blocks = raw[_TOPICS]
    topics = {name: _decode(block[_DATA]) for name, block in blocks.items()}
    for version in range(found, wanted):
        if (step := UPGRADES.get(version)) is not None:
            step(raw, topics)
    for name, topic in topics.items():
        blocks[name][_DATA] = _encode(topic)
    return _encode(raw)
