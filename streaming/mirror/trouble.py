"""What a mirror tells its operator: trouble, not each of the topics that have it."""

from collections.abc import Callable
from typing import NamedTuple

CALM_SECONDS = 60.0
"""Trouble that comes back before is the same."""

_MORE = 10
"""Trouble is told again if so many times as much has it."""


class Trouble(NamedTuple):
    """A kind of trouble: who has or makes it, and how that is told of one thing and of several."""

    who: str
    one: str
    many: str


class _Told:
    """Trouble that was told. `having`: all that had it since, `count`: how many when it was told."""

    def __init__(self) -> None:
        self.having: set[str] = set()
        self.count = 0
        self.last = 0.0


class Troubles:
    """What has which trouble now. `say` gets a line when trouble begins, and a line when it is over."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._having: dict[str, tuple[Trouble, str]] = {}
        self._told: dict[Trouble, _Told] = {}

    def note(self, what: str, trouble: Trouble, why: str) -> None:
        """Something has trouble."""
        self._having[what] = trouble, why

    def over(self, what: str) -> None:
        """Something has no trouble any more."""
        self._having.pop(what, None)

    def tell(self, now: float) -> None:
        """Say what is new. `now`: in seconds."""
        found: dict[Trouble, list[str]] = {}
        for what, (trouble, _) in self._having.items():
            found.setdefault(trouble, []).append(what)
        for trouble, having in found.items():
            told = self._told.setdefault(trouble, _Told())
            told.last = now
            told.having.update(having)
            if len(having) >= max(told.count * _MORE, 1):
                self._begin(trouble, having)
                told.count = len(having)
        for trouble in self._told.keys() - found.keys():
            if now >= self._told[trouble].last + CALM_SECONDS:
                one, *others = self._told.pop(trouble).having
                self._say(f"{trouble.who}: all go on" if others else f"{one}: goes on")

    def _begin(self, trouble: Trouble, having: list[str]) -> None:
        first, why = having[0], self._having[having[0]][1]
        if len(having) == 1:
            self._say(": ".join(filter(None, (first, trouble.one, why))))
            return
        self._say(f"{trouble.who}: {len(having):,} {trouble.many}, such as {first}: {why}".removesuffix(": "))
