"""The timers of a topic's subscriptions, earliest first, so that nobody goes through all subscriptions to find those that are due.

They follow from the state of the subscriptions, so they are no part of the topic's state.
"""

import heapq
from typing import Generic, Protocol, TypeVar


class HasTimers(Protocol):
    """A subscription."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def due(self) -> int:
        """When its next timer fires (ms), or −1."""

    @property
    def is_asleep(self) -> bool:
        """Whether some of its timers don't fire before something happens on the topic."""


S = TypeVar("S", bound=HasTimers)


class SubscriptionTimers(Generic[S]):
    """What `subscriptions` have due. Call `wake` or `add` when one has something due earlier than before."""

    def __init__(self, subscriptions: dict[str, S]) -> None:
        """`subscriptions`: by name, in order of creation. The topic changes it."""
        self._subscriptions = subscriptions
        self._numbers: dict[str, int] = {}
        self._created = 0
        self._heap: list[tuple[int, int, str]] = []  # time, number, name
        self._known: set[tuple[int, int, str]] = set()
        self._asleep: dict[str, None] = {}
        for subscription in subscriptions.values():
            self.add(subscription)

    def add(self, subscription: S) -> None:
        """Wake the subscription when it is due, and remember if it is asleep."""
        self.wake(subscription.name, subscription.due)
        if subscription.is_asleep:
            self._asleep[subscription.name] = None

    def wake(self, name: str, due: int) -> None:
        """The subscription has something due (ms, −1: nothing)."""
        if due >= 0 and (timer := (due, self._number(name), name)) not in self._known:
            self._known.add(timer)
            heapq.heappush(self._heap, timer)

    def forget(self, subscription: S) -> None:
        """The subscription is about to be deleted. Another one of that name is younger than all others."""
        self._numbers.pop(subscription.name, None)
        self._asleep.pop(subscription.name, None)

    def first(self) -> int:
        """When the first timer fires (ms), or −1."""
        while self._heap:
            due, number, name = self._heap[0]
            subscription = self._subscriptions.get(name)
            if subscription is None or number != self._number(name):
                self._pop()  # deleted
            elif subscription.due == due:
                return due
            else:
                self._pop()
                self.wake(name, subscription.due)
        return -1

    def take(self, now: int) -> list[S]:
        """Remove and return the subscriptions that have timers due by `now` (ms), in order of creation."""
        taken: dict[int, S] = {}
        while 0 <= self.first() <= now:
            _, number, name = self._pop()
            taken[number] = self._subscriptions[name]
        return [taken[number] for number in sorted(taken)]

    def take_asleep(self) -> list[S]:
        """Remove and return the subscriptions that are asleep, in order of creation."""
        names = sorted(self._asleep, key=self._number)
        self._asleep.clear()
        return [each for name in names if (each := self._subscriptions[name]).is_asleep]

    def _pop(self) -> tuple[int, int, str]:
        timer = heapq.heappop(self._heap)
        self._known.discard(timer)
        return timer

    def _number(self, name: str) -> int:
        """The number of a subscription, larger for younger ones."""
        if (number := self._numbers.get(name)) is not None:
            return number
        fresh: list[str] = []
        for each in reversed(self._subscriptions):
            if each in self._numbers:
                break
            fresh.append(each)
        for each in reversed(fresh):
            self._numbers[each] = self._created
            self._created += 1
        return self._numbers[name]
