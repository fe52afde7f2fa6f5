"""Round robin over consumers with priorities (mirrors `AbstractDispatcherMultipleConsumers.getNextConsumer`; rules:
docs/rules/shared.md §5).
"""

from bisect import bisect_left, bisect_right
from itertools import chain

from streaming.broker.subscription.consumer import Consumer


def next_available(consumers: list[Consumer], turn: int) -> int | None:
    """The index of the first available consumer from `turn` on within its priority level; higher levels (lower numbers)
    come first. None: no consumer is available.
    """
    level = consumers[turn].priority
    if level == 0 and consumers[turn].available:
        return turn
    first = bisect_left(consumers, level, key=priority)
    end = bisect_right(consumers, level, key=priority)
    # quirk: from level 0, Pulsar does not look for an even higher level
    higher = range(first if level != 0 else 0)
    for index in chain(higher, range(turn, end), range(first, turn), range(end, len(consumers))):
        if consumers[index].available:
            return index
    return None


def priority(consumer: Consumer) -> int:
    """The consumer's priority level. 0 is the highest."""
    return consumer.priority
