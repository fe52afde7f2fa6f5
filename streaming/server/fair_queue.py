"""Who comes next when more is asked for than can be done at once: whoever has had the least.

Each key has the same share of the time, as in weighted fair queueing (generalized processor sharing). `FairQueue._now` is a
virtual clock. It shows what a key has had that was served alike with all others since it came: it advances by an n-th of the time
that is spent while n keys have something to do. The tag of an item is the reading of that clock at which its key would be done with
it, and the smallest tag comes next. So whoever asks for little comes before all that ask for much, however many they are and
whoever was first. Nobody waits for ever: a tag stays, and the clock goes on.

What an item costs is known once it is done. Until then, an estimate stands for it.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_KEPT = 1024
"""Keys that have nothing to do, of which it may be known what they have had."""


class TakenTurn(NamedTuple, Generic[K, T]):
    """An item whose turn it is, and what it was estimated to cost (s)."""

    key: K
    item: T
    cost: float


class FairQueue(Generic[K, T]):
    """Items that wait, by key. Those of a key keep their order. Operations take O(log keys) each, on average."""

    def __init__(self) -> None:
        self._of: dict[K, deque[tuple[T, float]]] = {}
        self._tags: list[tuple[float, int, K]] = []
        """A heap of the first item of each key, and of tags that are not valid any more."""
        self._valid: dict[K, int] = {}
        self._number = 0
        self._had: dict[K, float] = {}
        """The reading of the clock at which a key would be done with what it has had. It is behind for keys that wait for too long."""
        self._served: set[K] = set()
        self._now = 0.0
        self._most = _KEPT
        self._held: dict[K, deque[tuple[T, float]]] = {}

    def __len__(self) -> int:
        """The number of keys that have something to do, those that are held left out."""
        return len(self._of)

    def __contains__(self, key: K) -> bool:
        """Whether a key has something to do, held or not."""
        return key in self._of or bool(self._held.get(key))

    def put(self, key: K, item: T, cost: float) -> None:
        """Have an item wait, which takes about `cost` seconds."""
        if (held := self._held.get(key)) is not None:
            held.append((item, cost))
            return
        if not self._of and not self._served:
            self.forget()
        if (items := self._of.get(key)) is not None:
            items.append((item, cost))
            return
        self._of[key] = deque([(item, cost)])
        if key not in self._served:
            self._had[key] = max(self._had.get(key, 0.0), self._now)
        self._tag(key)

    def forget(self) -> None:
        """Everybody has got all that was asked for. What it was no longer matters."""
        self._had.clear()
        self._tags.clear()
        self._served.clear()
        self._now = 0.0

    def take(self) -> TakenTurn[K, T]:
        """The next item. There must be one. Others may be taken, too; then, `put_back` what is not done, and say what was `spent`."""
        while True:
            tag, number, key = heappop(self._tags)
            if self._valid.get(key) == number:
                break
        items = self._of[key]
        item, cost = items.popleft()
        self._had[key] = tag
        self._served.add(key)
        if items:
            self._tag(key)
        else:
            del self._of[key], self._valid[key]
        return TakenTurn(key, item, cost)

    def hold(self, key: K) -> None:
        """It is nobody's turn with this key until it is released."""
        if key not in self._held:
            self._held[key] = self._of.pop(key, deque())
            self._valid.pop(key, None)

    def release(self, key: K) -> None:
        """Items of the key have their turns again, as if they came now. It need not be held."""
        for item, cost in self._held.pop(key, ()):
            self.put(key, item, cost)

    def put_back(self, taken: TakenTurn[K, T], *, cost: float | None = None) -> None:
        """Have an item wait again that was not done, before all others of its key. `cost`: if the estimate is another one now."""
        key, item, estimate = taken
        self._had[key] -= estimate
        if (held := self._held.get(key)) is not None:
            held.appendleft((item, estimate if cost is None else cost))
            return
        self._of.setdefault(key, deque()).appendleft((item, estimate if cost is None else cost))
        self._tag(key)

    def drop(self, key: K, unwanted: Callable[[T], bool]) -> list[T]:
        """Forget some items of a key that wait. Returns them. The key must not be held."""
        items = self._of.get(key, deque())
        dropped = [item for item, _ in items if unwanted(item)]
        if dropped:
            left = deque(each for each in items if not unwanted(each[0]))
            if left:
                self._of[key] = left
                self._tag(key)
            else:
                del self._of[key], self._valid[key]
        return dropped

    def spent(self, done: Iterable[tuple[TakenTurn[K, T], float]]) -> None:
        """Those of the items taken that are done, and what each has cost (s)."""
        total, keys = 0.0, set()
        for taken, cost in done:
            self._had[taken.key] += cost - taken.cost
            total += cost
            keys.add(taken.key)
        self._served.clear()
        again = [key for key in keys if key in self._of]
        self._now += total / max(len(self._of) + len(keys) - len(again), 1)
        for key in again:
            self._tag(key)
        if len(self._had) > self._most:
            self._had = {key: had for key, had in self._had.items() if had > self._now or key in self._of}
            self._most = max(2 * len(self._had), _KEPT)

    def _tag(self, key: K) -> None:
        self._number += 1
        self._valid[key] = self._number
        heappush(self._tags, (self._had[key] + self._of[key][0][1], self._number, key))
        if len(self._tags) > 2 * len(self._of) + _KEPT:
            self._tags = [each for each in self._tags if self._valid.get(each[2]) == each[1]]
            heapify(self._tags)
