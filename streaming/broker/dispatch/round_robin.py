"""Round robin over consumers with priorities (mirrors `AbstractDispatcherMultipleConsumers.getNextConsumer`; rules:
dispatch_shared.md §5).
"""

from itertools import chain

from streaming.broker.subscription.consumer import Consumer


def next_available(consumers: list[Consumer], turn: int) -> int | None:
    """The index of the first available consumer from `turn` on within its priority level; higher levels (lower numbers)
    come first. None: no consumer is available.
    """
    level = consumers[turn].priority
    same = [index for index, consumer in enumerate(consumers) if consumer.priority == level]
    place = same.index(turn)
    # quirk: from level 0, Pulsar does not look for an even higher level
    higher = range(same[0] if level != 0 else 0)
    lower = range(same[-1] + 1, len(consumers))
    for index in chain(higher, same[place:], same[:place], lower):
        if consumers[index].available:
            return index
    return None
