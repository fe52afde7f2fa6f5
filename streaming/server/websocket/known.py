"""What the consumers of WebSockets know of messages that their clients have, which is bounded for all of them together."""

from typing import Protocol

MOST_KNOWN_BY_ALL = 1_000_000
"""Messages that all consumers know, at some 350 bytes each. Beyond them, the one that knows most forgets the older half of its own."""


class Forgets(Protocol):
    """A consumer."""

    def forget_half(self) -> None:
        """Forget the older half of what it knows, one message at least, and count what is left."""


class KnownMessages:
    """How many messages each consumer knows."""

    def __init__(self) -> None:
        self.total = 0
        self._of: dict[Forgets, int] = {}
        self._forgetting = False

    def count(self, consumer: Forgets, messages: int) -> None:
        """A consumer knows so many."""
        self.total += messages - self._of.pop(consumer, 0)
        if messages:
            self._of[consumer] = messages
        if self._forgetting:
            return
        self._forgetting = True
        try:
            while (before := self.total) > MOST_KNOWN_BY_ALL:
                max(self._of, key=self._of.__getitem__).forget_half()
                assert self.total < before
        finally:
            self._forgetting = False
