"""What a seed stands for: the operations of a scenario, each with a number that its own choices are drawn from.

Nothing else is random. What an operation chooses (a consumer, messages to ack) it chooses among what there is by then, so
the same seed is the same scenario as long as the broker does the same.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

STEPS = 45
"""Of a scenario, without those that found nothing to do."""

_CONSUMERS = {
    "publish": 8,
    "batch": 2,
    "join": 2,
    "rejoin": 3,
    "close": 1,
    "cut": 0.7,
    "flow": 3,
    "snapshot": 3,
}
_PERSISTENT = {
    "ack": 5,
    "ack_some": 1,
    "ack_any": 0.5,
    "ack_part": 1,
    "nack": 3,
    "nack_all": 1,
    "unload": 0.35,
}
_SINGLE = {"ack_cumulative": 2, "seek": 0.3}
_PRODUCERS = {"produce": 4, "produce_again": 0.5, "send": 7, "send_batch": 2, "close": 2, "cut": 1, "unload": 0.4,
              "snapshot": 2}  # fmt: skip

KINDS: dict[str, dict[str, float]] = {
    "exclusive": {**_CONSUMERS, **_PERSISTENT, **_SINGLE},
    "failover": {**_CONSUMERS, **_PERSISTENT, **_SINGLE, "rejoin": 1.5},
    "shared": {**_CONSUMERS, **_PERSISTENT, "seek": 0.2},
    "key_shared": {**_CONSUMERS, **_PERSISTENT, "seek": 0.2},
    "non_persistent": {**_CONSUMERS, "ack": 1, "nack_all": 0.5},
    "producers": _PRODUCERS,
    "deduplication": {**_PRODUCERS, "send_again": 2, "deduplicate": 0.3},
}
"""Kinds of scenario: the operations with their weights. They are the methods of `consumers` and of `producers`."""


class Step(NamedTuple):
    """One operation. `number` is the seed of what it chooses."""

    operation: str
    number: int


def plan(kind: str, seed: int) -> Iterator[Step]:
    """The steps of a scenario, without end, always the same for the same kind and seed."""
    dice, weights = random.Random(f"{kind} {seed}"), KINDS[kind]
    while True:
        (operation,) = dice.choices([*weights], [*weights.values()])
        yield Step(operation, dice.getrandbits(32))
