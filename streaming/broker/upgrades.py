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


_SUBSCRIPTIONS, _FAILED_PRODUCERS = 5, 18
"""Where version 1 had `Topic.subscriptions`, and `Topic.failed_producers`: errors for clients that asked again."""

_DISPATCHER, _MIN_REPLAYED = 4, 17
"""Where version 1 had `Subscription.dispatcher`, and, with its tag, `StickyKeyMultipleConsumers.min_replayed`."""


def _from_0_1_0(state: list[Any], topics: dict[str, Any]) -> None:
    """Delayed messages were in buckets: a partition goes on like that until it gets another configuration."""
    state[_CONFIG]["delayedDeliveryRoundsTimes"] = True
    for topic in topics.values():
        if isinstance(topic, list):
            del topic[_FAILED_PRODUCERS : _FAILED_PRODUCERS + 1]
            subscriptions = topic[_SUBSCRIPTIONS]
        else:  # a non-persistent one, whose fields have names
            subscriptions = topic.get("subscriptions", {})
        for subscription in subscriptions.values():
            dispatcher_last(subscription)


def dispatcher_last(subscription: list[Any]) -> None:
    """Version 2 has the dispatcher behind a subscription's other fields, and no `min_replayed` in it."""
    dispatcher = subscription.pop(_DISPATCHER)
    if dispatcher is not None and dispatcher[0].startswith("sticky"):
        del dispatcher[_MIN_REPLAYED : _MIN_REPLAYED + 1]
    subscription.append(dispatcher)


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
