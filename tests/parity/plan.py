"""What a seed determines: the operations of a scenario, each with a seed for its own choices.

Nothing else is random. An operation chooses (a consumer, messages to ack) from what exists at that time. So a seed always
gives the same scenario as long as the broker behaves the same.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

STEPS = 45
"""The steps of a scenario, not counting operations that had nothing to do."""

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
"""Kinds of scenarios: operations with their weights. Operations are methods in `consumers` and `producers`."""


class Step(NamedTuple):
    """One operation. `number` is the seed of its choices."""

    operation: str
    number: int


def plan(kind: str, seed: int) -> Iterator[Step]:
    """An endless sequence of steps, always the same for the same kind and seed."""
    dice, weights = random.Random(f"{kind} {seed}"), KINDS[kind]
    while True:
        (operation,) = dice.choices([*weights], [*weights.values()])
        yield Step(operation, dice.getrandbits(32))
