"""The fold of a partition that goes on: a server's, which answers clients after each few records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import ge

from schemas.commands import Decoded, Refused, Send
from schemas.effects import Row
from streaming.broker.broker import Broker
from streaming.broker.persistent.publish.send_run import Sends
from streaming.fold.record_fold import RecordFold, without_gc
from streaming.fold.records import BrokerType, Records, SetAside, StateRow, Store
from streaming.quality.gate import Judge, judge

_SHORTEST = 4
"""A run of fewer SENDs is not worth its setup."""


class LiveFold:
    """It gives effects as they are, since nobody needs columns of so few. Raises what `RecordFold` raises."""

    def __init__(
        self,
        partition: int,
        store: Store,
        before: StateRow | None,
        *,
        broker: BrokerType = Broker,
        judge: Judge = judge,
        set_aside: SetAside | None = None,
    ) -> None:
        """As `RecordFold`."""
        self._records = RecordFold(partition, store, before, broker=broker, judge=judge, set_aside=set_aside)
        self._answers: list[Row] = []
        self._records.when_full(self._take)

    @property
    def broker(self) -> Broker:
        """The broker as it is between two calls, to look at."""
        return self._records.broker

    def state(self) -> StateRow:
        """The state to continue from."""
        return self._records.state()

    def answer(
        self,
        records: Records,
        known: Sequence[Decoded | None] | None = None,
        goes_on: Callable[[int], bool] = lambda done: True,
    ) -> list[Row]:
        """Folds `records` and gives their effects in order. From the next call on, the store must have their entries.

        `known`: of each record, what the gate would say of it; None: ask the gate. `goes_on`: is told the number of records
        that are folded, before the first, and after each one or some, and then says whether others are. Those that aren't may come with the next call.
        """
        self._records.broker.stored()
        self._answers = []
        with without_gc():
            done = 0
            for part in self._records.parts(records):
                size = len(part.offsets)
                commands = [None] * size if known is None else known[done : done + size]
                if not self._fold(part, commands, done, goes_on):
                    break
                done += size
        self._take()
        return self._answers

    def _take(self) -> None:
        self._answers += self._records.broker.take()

    def _fold(
        self,
        records: Records,
        known: Sequence[Decoded | None],
        before: int,
        goes_on: Callable[[int], bool],
    ) -> bool:
        """Folds runs of SENDs by `Broker.send`, all other records one by one. Returns whether it came to the end. `before`: the
        number of records that were folded before these."""
        aside, offsets = self._records.aside(records), records.offsets
        commands = self._commands(records, known, aside)
        one, done = self._records.carry_out(records, commands, aside), 0
        goes_on(before)
        is_special = aside or any(map(ge, offsets, offsets[1:]))
        for start, stop in () if is_special else _runs_of_sends(records.topics, commands):
            while done < start:
                one(done)
                done += 1
                if not goes_on(before + done):
                    return False
            sends = Sends(offsets[start:stop], records.timestamps[start:stop], commands[start:stop])  # type: ignore[arg-type]
            while done < stop and (taken := self._send(records, sends, done, done - start)):
                done += taken
                if done < stop:
                    one(done)
                    done += 1
                if not goes_on(before + done):
                    return False
        while done < len(commands):
            one(done)
            done += 1
            if not goes_on(before + done):
                return False
        return True

    def _commands(
        self, records: Records, known: Sequence[Decoded | None], aside: Mapping[int, Refused]
    ) -> Sequence[Decoded]:
        unknown = [command is None for command in known]
        return self._records.judged_where(records, aside, unknown, known) if any(unknown) else known  # type: ignore[return-value]

    def _send(self, records: Records, sends: Sends, record: int, start: int) -> int:
        """How many SENDs from number `start` on, that of `record`, the broker carried out together."""
        try:
            stop = self._records.broker.send(records.topics[record], sends, start)
        except Exception as error:
            place = records.offsets[record], records.topics[record], records.values[record]
            self._records.failed("carrying out SENDs", error, *place)
        if stop > start:
            self._records.last = sends.offsets[stop - 1]
        return stop - start


def _runs_of_sends(topics: Sequence[str | None], commands: Sequence[Decoded]) -> Iterator[tuple[int, int]]:
    """The SENDs of a producer that follow each other, and are not too few: each run from its first to before its last."""
    start, producer = 0, None
    for row, command in enumerate(commands):
        found = None
        if type(command) is Send:
            found = command.producer_id, command.connection, topics[row]
        if found != producer:
            if producer is not None and row - start >= _SHORTEST:
                yield start, row
            start, producer = row, found
    if producer is not None and len(commands) - start >= _SHORTEST:
        yield start, len(commands)
