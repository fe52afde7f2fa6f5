"""Where the entries of shadow topics are now: a mirror's log names their positions (docs/rules/ledgers.md §15), and the states that its
traffic comes on may have these already."""

from __future__ import annotations

import msgspec

from schemas import commands as c
from schemas.commands import Decoded
from streaming.answers.history.folders import NotFound
from streaming.broker.broker import Broker
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.position import EARLIEST, MAX, Position, from_wire


class _Shadow(msgspec.Struct):
    """A shadow topic of a state. `free`: where its next entry comes. `first`: the first position of the log's own; None: it names none.
    `there`: the durable subscriptions that the topic has had since before the log; `shown`: those of them that the log has shown."""

    free: Position
    there: set[str]
    first: Position | None = None
    shown: set[str] = msgspec.field(default_factory=set)

    @property
    def shift(self) -> int:
        """How much higher the ledgers of the log are now. 0: the log goes on after what the state has."""
        if self.first is None or self.first >= self.free:
            return 0
        return self.free.ledger + (self.free.entry > 0) - self.first.ledger


class ShadowPositions:
    """Moves the positions of a log into ledgers behind those that its topics have.

    What the source acknowledged before the log's first entry is none of the topic's now. So of a subscription that the topic has had
    before, the log acknowledges its own entries only, until it is reset; and it is not deleted before the log has shown it.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker, self._shadows, self._ordinary = broker, dict[str, _Shadow](), set[str]()
        for name in broker.topic_names():
            if is_non_persistent(name):
                continue
            topic = broker.topic(name)
            if topic.is_shadow:
                free = Position(topic.ledger.current, topic.ledger.current_entries)
                durable = {each.name for each in topic.subscriptions.values() if each.durable}
                self._shadows[name] = _Shadow(free, durable)
            elif not topic.is_new:
                self._ordinary.add(name)
        self._of_state = frozenset(self._shadows)

    def note(self, topic: str | None, command: Decoded) -> None:
        """A command of the log. Note all of them before the first is moved. Raises `NotFound` for traffic that its topic can't take."""
        topic = topic or ""
        if isinstance(command, c.Send) and command.message_id is not None:
            first = from_wire(command.message_id.ledgerId, command.message_id.entryId)
        elif isinstance(command, c.Mirror) and command.ledger_id >= 0:
            last = Position(*command.last_confirmed)
            first = last.next() if last.ledger == command.ledger_id else Position(command.ledger_id, 0)
        elif isinstance(command, c.Publish | c.Send) and topic in self._of_state:
            raise NotFound(
                f"{topic} is mirrored in the state, and takes the entries of its source only: give the log of a mirror, or the state of a query "
                "whose clients publish there"
            )
        else:
            return
        if topic in self._ordinary:
            raise NotFound(
                f"{topic} is not mirrored in the state, and the log is of a mirror: give the state of the query that folds the mirror's log"
            )
        if (shadow := self._shadows.get(topic)) is None:
            free = Position(self._broker.former_ledger(topic) + 1, 0)
            shadow = self._shadows[topic] = _Shadow(free, set())
        shadow.first = first if shadow.first is None else min(first, shadow.first)

    def send(self, topic: str | None, command: c.Send) -> c.Send:
        """An entry of the log, where it is now."""
        shadow, named = self._shadows.get(topic or ""), command.message_id
        if shadow is None or named is None or not shadow.shift:
            return command
        ledger = min(from_wire(named.ledgerId, 0).ledger + shadow.shift, MAX)
        return msgspec.structs.replace(command, message_id=msgspec.structs.replace(named, ledgerId=ledger))

    def mirror(self, topic: str | None, command: c.Mirror) -> c.Mirror:
        """What the log shows of the source, at the positions of now."""
        shadow = self._shadows.get(topic or "")
        if shadow is None or shadow.first is None or not (shift := shadow.shift):
            return command
        begin = Position(shadow.first.ledger, shadow.first.entry - 1)

        def now(position: tuple[int, int]) -> Position:
            ledger, entry = max(Position(*position), begin)
            return Position(min(ledger + shift, MAX), entry)

        def now_in(ledger: int) -> int:
            return now((ledger, 0)).ledger if ledger >= 0 else ledger

        subscriptions = {}
        for name, seen in command.subscriptions.items():
            mark_delete = now(seen.mark_delete)
            ranges = [(now((low, first)), now((high, last))) for low, first, high, last in seen.acknowledged]
            if seen.reset:
                shadow.there.discard(name)
            if name in shadow.there:
                shadow.shown.add(name)
                ranges = [(now(EARLIEST), mark_delete), *ranges]
                mark_delete = EARLIEST
            subscriptions[name] = msgspec.structs.replace(
                seen,
                mark_delete=mark_delete,
                acknowledged=[(*low, *high) for low, high in ranges if low < high],
                expired_to=None if seen.expired_to is None else now(seen.expired_to),
                read=None if seen.read is None else now(seen.read),
            )
        shadow.there -= shadow.shown - subscriptions.keys()  # the source has deleted them
        unmoved = c.MirroredSubscription(mark_delete=EARLIEST)
        subscriptions |= dict.fromkeys(sorted(shadow.there - subscriptions.keys()), unmoved)
        return msgspec.structs.replace(
            command,
            ledger_id=now_in(command.ledger_id),
            last_confirmed=now(command.last_confirmed),
            read_to=now(command.read_to),
            first_ledger=now_in(command.first_ledger),
            subscriptions=subscriptions,
        )
