"""The part of a fold that all of its kinds share: records, one by one, into a broker's state.

`RecordFold` has the broker of an ingress partition and knows the last offset. It says which records are set aside, asks the
gate for the commands of the others, carries them out, and names the record at fault when something fails. What becomes of
the effects is the business of whoever owns it: `streaming.fold.columns` makes Arrow tables of them for Spark and replays,
`streaming.fold.live` hands them to a server as they are, and `streaming.fold.shared` to an observer.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakMethod

from schemas.commands import Decoded, Refused, decode
from schemas.coordinates import Coordinates, TopicAside
from schemas.effects import TIMESTAMP_AHEAD
from schemas.entries import EntryNotFound
from schemas.printable import one_line, quoted
from schemas.units import LATEST_TIME
from streaming.broker.broker import Broker, topic_set_aside
from streaming.broker.entries import PayloadsOf
from streaming.broker.errors import StateVersionError
from streaming.broker.persistent.delivery_run import Deliveries, RecordsOfRun, Stretch
from streaming.broker.persistent.publish.publish_run import Receipts
from streaming.fold.records import BrokerType, FoldError, OffsetError, Records, SetAside, StateRow, Store
from streaming.quality.gate import Judge, judge

if TYPE_CHECKING:
    from streaming.fold.publishes import PublishColumns

_SHOWN = 200
_NO_TIME = 0
_DECODING = "decoding and checking it"


class RecordFold:
    """The broker of an ingress partition during one micro-batch, or for as long as a server runs.

    `broker`: to look at between two calls. `last`: the offset of the last record, None: there was none. `judge`: its gate. Its methods raise
    `FoldError`, and what the store raises when an entry can't be read. Both name the partition and the record.
    """

    def __init__(
        self,
        partition: int,
        store: Store,
        before: StateRow | None,
        *,
        broker: BrokerType = Broker,
        judge: Judge = judge,
        set_aside: SetAside | None = None,
        latest: int | None = None,
    ) -> None:
        """`before`: the state to continue from; None: the partition is new. `judge` decodes the records, see
        `streaming.quality.gate`. Records in `set_aside`, and those with a timestamp (ms) after `latest`, are quarantined. `set_aside`
        None: the user has no option that sets anything aside, so no advice names one.

        Raises `StateVersionError` for a state of another version, `FoldError` for one that can't be decoded.
        """
        self.partition = partition
        self.last = None if before is None else before.offset
        self.judge = judge
        self._has_options = set_aside is not None
        aside = (set_aside or {}).items()
        self._set_aside = {
            at.offset: why for at, why in aside if isinstance(at, Coordinates) and at.partition == partition
        }
        self._topics_aside = [
            (at, why) for at, why in aside if isinstance(at, TopicAside) and at.partition in (None, partition)
        ]
        self._latest = LATEST_TIME if latest is None else latest
        self._ticking = False
        entries = store.reader(partition)
        try:
            self.broker = (
                broker(partition, entries) if before is None else broker.decode(before.broker, entries)
            )
        except StateVersionError:
            raise
        except Exception as error:
            raise FoldError(
                f"partition {partition}, after offset {self.last}, decoding the state: "
                f"{described(error)}; the checkpoint is damaged, or this is a bug in Magnetar. Restore "
                "checkpoint and store from a backup, or start with a new checkpoint and an empty store"
            ) from error
        there = self.broker.topic_names() if self._topics_aside else ()
        for at, why in self._topics_aside:
            if at.topic in there and self.last is not None and at.after <= self.last:
                self.broker.set_aside(at.topic, why)

    def when_full(self, take: Callable[[], object]) -> None:
        """Call a method of an object when many effects have gathered.

        A strong reference would be a cycle, which keeps broker and rows in memory until Python collects its garbage.
        """
        weak = WeakMethod(take)
        self.broker.when_full(lambda: weak()())  # type: ignore[misc]

    def find_recent_payloads(self, recent: PayloadsOf) -> None:
        """See `Broker.find_recent_payloads`. A method of an object, as for `when_full`."""
        weak = WeakMethod(recent)
        self.broker.find_recent_payloads(lambda *entries: weak()(*entries))  # type: ignore[misc]

    # -- which records, and what they command -----------------------------------------------------------------------

    def parts(self, records: Records) -> Iterator[Records]:
        """The records in the parts between which topics are set aside, each of which is when its part is asked for."""
        if not self._topics_aside:
            yield records
            return
        cuts: list[tuple[int, TopicAside, Refused]] = []
        for at, why in self._topics_aside:
            if at.topic in self.broker.aside:
                continue
            start = bisect_right(records.offsets, at.after)
            if at.partition is None:  # it is not here yet
                start = next(
                    (row for row in range(start, len(records.topics)) if records.topics[row] == at.topic), -1
                )
            if 0 <= start < len(records.offsets):
                cuts.append((start, at, why))
        done = 0
        for start, at, why in sorted(cuts):
            if start > done:
                yield records.piece(done, start)
                done = start
            self.broker.set_aside(at.topic, why)
        yield records.piece(done, len(records.offsets)) if done else records

    def aside(self, records: Records) -> dict[int, Refused]:
        """The records that aren't folded, by offset, and why."""
        aside = {}
        if max(records.timestamps, default=0) > self._latest:
            for offset, timestamp in zip(records.offsets, records.timestamps, strict=True):
                if self._latest < timestamp <= LATEST_TIME:  # a later one is not in ms: the broker refuses it
                    cause = f"timestamp {timestamp} is after {self._latest}, the latest that the query accepts now"
                    aside[offset] = Refused(TIMESTAMP_AHEAD, cause)
        if topics := self.broker.aside:
            for offset, topic in zip(records.offsets, records.topics, strict=True):
                if topic is not None and topic in topics:
                    aside[offset] = topic_set_aside(topic)
        if self._set_aside:
            aside |= {
                offset: self._set_aside[offset] for offset in records.offsets if offset in self._set_aside
            }
        return aside

    def judged(self, records: Records, aside: Mapping[int, Refused]) -> Iterator[Decoded]:
        """Their commands, as the gate decodes them."""
        topics, values = records.topics, records.values
        if aside:  # the gate must not see them: perhaps it is what fails
            topics = [None if at in aside else each for at, each in zip(records.offsets, topics, strict=True)]
            values = [b"" if at in aside else each for at, each in zip(records.offsets, values, strict=True)]
        try:
            yield from self.judge(topics, values)
        except Exception as error:
            # It judges many records at once. To name the one that it fails on, judge each alone.
            start = 0 if self.last is None else bisect_right(records.offsets, self.last)
            for row in range(start, len(values)):
                try:
                    next(self.judge(topics[row : row + 1], values[row : row + 1]))
                except Exception as alone:
                    self.failed(_DECODING, alone, records.offsets[row], topics[row], values[row])
            self.failed(_DECODING, error)

    def judged_where(
        self, records: Records, aside: Mapping[int, Refused], mask: Sequence[bool], others: Iterable[Any]
    ) -> list[Any]:
        """Their commands where `mask` is true, and `others` where it isn't."""
        judged = self.judged(records if all(mask) else records.where(mask), aside)
        return [next(judged) if asked else other for asked, other in zip(mask, others, strict=False)]

    # -- folding ------------------------------------------------------------------------------------------------------

    def carry_out(
        self, records: Records, commands: Sequence[Decoded | None], aside: Mapping[int, Refused]
    ) -> Callable[[int], None]:
        """A function that folds the record of a number. A command None is decoded then, without the gate, and kept in a list, for
        other folds of the same records. Raises `OffsetError`, too."""
        offsets, timestamps, topics, values = records
        apply = self.broker.apply

        def one(record: int) -> None:
            offset, topic, value = offsets[record], topics[record], values[record]
            if self.last is not None and offset <= self.last:
                raise OffsetError(
                    f"partition {self.partition}: offset {offset} after {self.last}. Offsets must rise: the "
                    "checkpoint belongs to another topic or log, or the topic was deleted and recreated. Start "
                    "with a new checkpoint and store"
                )
            self.last = offset
            try:
                if aside and (why := aside.get(offset)) is not None:
                    apply(offset, _NO_TIME, topic, why, value)
                else:
                    command = commands[record]
                    if command is None:
                        command = decode(value)
                        if isinstance(commands, list):
                            commands[record] = command
                    apply(offset, timestamps[record], topic, command, value)
            except Exception as error:
                self.failed("carrying out the command", error, offset, topic, value)

        return one

    def fold(
        self,
        records: Records,
        commands: list[Decoded | None],
        aside: Mapping[int, Refused],
        columns: PublishColumns | None,
        receipts: Receipts,
        deliveries: Deliveries | None = None,
    ) -> None:
        """Folds some records: runs of plain publishes or SENDs, which are in `columns`, by `Broker.publish`, and stretches with ACKs and
        FLOWs by `Broker.deliver`, which add to `receipts` and `deliveries`, and all others one by one, or all of them: see
        `Broker.each_record`. `deliveries` None: there are no stretches."""
        one, done = self.carry_out(records, commands, aside), 0
        if columns is not None and not self.broker.each_record:
            around = delivering = None
            for run in columns.runs():
                stretch = isinstance(run, Stretch)
                first = run.start if stretch else columns.records[run.start]
                for record in range(done, first):
                    one(record)
                done = first + run.stop - run.start
                try:
                    if isinstance(run, Stretch):
                        assert deliveries is not None
                        if around is None or delivering is None:
                            places = columns.places(len(commands))
                            around = RecordsOfRun(*records[:3], commands, places, columns.acks)
                            delivering = self.broker.delivery_run(
                                columns.rows, columns.senders.tolist(), receipts, deliveries
                            )
                        self.broker.deliver(delivering, around, run, one)
                    else:
                        self.broker.publish(
                            columns.rows, run, lambda row: one(columns.records[row]), receipts
                        )
                except Exception as error:
                    self.failed("carrying out publishes", error)
                self.last = records.offsets[done - 1]
        for record in range(done, len(commands)):
            one(record)

    def tick(self, timestamp: int, take: Callable[[], object]) -> None:
        """Advances the clock to `timestamp` (ms), as a TICK record would, and lets `take` take the effects, which are of no record."""
        self._ticking = True
        try:
            self.broker.tick(timestamp)
        except Exception as error:
            self.failed(f"advancing the clock to {timestamp}", error)
        take()
        self._ticking = False

    def state(self) -> StateRow:
        """The state to continue from."""
        try:
            encoded = self.broker.encode()  # before the summary, which is of what was encoded
            return StateRow(self.partition, *self.broker.summary(), self.last, encoded)
        except Exception as error:
            self.failed("encoding the state", error)

    def failed(
        self,
        doing: str,
        error: Exception,
        offset: int | None = None,
        topic: str | None = None,
        value: bytes = b"",
    ) -> NoReturn:
        """Raise `error` with the place where it happened."""
        if isinstance(error, FoldError):
            raise error
        of_record = offset is not None and not self._ticking
        place = f"offset {offset}, topic {topic!r}" if of_record else f"after offset {self.last}"
        at_fault = self.broker.at_work or (topic if of_record else None)
        place = f"partition {self.partition}, {place}, {doing}"
        # The store or the disk is to blame, or what is asked for can't be done, and the text says so.
        if isinstance(error, EntryNotFound | OSError):
            raise type(error)(one_line(f"{place}: {' '.join(str(error).split())}")) from error
        ways = []
        if of_record and self._has_options:
            ways.append(f"without it, start with --quarantine {self.partition}:{offset}")
        if at_fault and self._has_options:
            ways.append(f"without the topic at hand, start with --quarantine-topic {quoted(at_fault)}")
        if of_record:
            to_do = "Started again, Magnetar comes to this record again"
        else:
            to_do = "No single record is to blame. Nothing of the micro-batch is committed, but started again, Magnetar does the same again"
        if of_record and not self._has_options:
            to_do += ": to go on without it, leave it out of what is folded"
        if ways:
            to_do += (
                f": to go on {', or '.join(ways)} (`magnetar run`, `replay` and `serve` have these options)"
            )
        if of_record:
            to_do += f". Its value begins {bytes(value[:_SHOWN])!r}"
        raise FoldError(
            f"{place}: {described(error)}; this is a bug in Magnetar: please report it. {to_do}"
        ) from error


def described(error: Exception) -> str:
    """An error by its type and its text, in one line."""
    return f"{type(error).__name__}: {one_line(' '.join(str(error).split()))}"


@contextmanager
def without_gc() -> Iterator[None]:
    """Disables Python's cyclic garbage collector. It would go through a hundred thousand effects again and again, which
    took half of the time, and find nothing, as effects hold no cycles."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
