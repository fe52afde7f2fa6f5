"""The life of one message, from the output rows and the last state of its topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from schemas import effects as e
from schemas.arguments import checked
from schemas.effect_fields import CompactedEntryFields
from schemas.effects import KINDS
from schemas.printable import counted
from schemas.undecodable import UNDECODABLE
from streaming.answers.explain.opened import opened
from streaming.answers.fates import MOVED, Outcome, Published, deletes
from streaming.answers.history.folders import Folders, NotFound, listed
from streaming.broker.broker import Broker
from streaming.broker.names import COMPACTION_CURSOR, DEDUP_CURSOR
from streaming.broker.persistent.mirroring import SEEN_FIRST
from streaming.broker.position import Position, from_text


class Event(msgspec.Struct):
    """What happened to the message, at `clock` (ms). `kind`, `partition`, `offset` and `ordinal` are those of the output row."""

    clock: int
    kind: str
    text: str
    partition: int
    offset: int
    ordinal: int
    subscription: str | None = None


class SubscriptionFate(msgspec.Struct):
    """What became of the message for a subscription. `deliveries`: how often it was sent."""

    subscription: str
    outcome: Outcome
    deliveries: int
    text: str


class Life(msgspec.Struct):
    """The life of a message. A message that was published more than once under its sequence id has several.

    `clock`: of the state that says what has become of it (ms), None if there is no state. `kept_from`: the first micro-batch
    of which outputs are kept. `sampled`: its topic has no messages of its own, see `PersistentTopic.is_sampled`.
    """

    topic: str
    fate: Published
    text: str
    position: str | None
    producer: str | None
    sequence_id: int | None
    events: list[Event]
    subscriptions: list[SubscriptionFate]
    clock: int | None = None
    kept_from: int | None = None
    example: str | None = None
    sampled: bool = False

    def to_arrow(self) -> pa.Table:
        """The events, one row each."""
        rows = [
            {"topic": self.topic, "position": self.position, **msgspec.to_builtins(each)}
            for each in self.events
        ]
        text, number = pa.string(), pa.int64()
        types = {"topic": text, "position": text, "clock": number, "kind": text, "text": text, "partition": pa.int32(),
                 "offset": number, "ordinal": pa.int32(), "subscription": text}  # fmt: skip
        return pa.Table.from_pylist(rows, pa.schema(list(types.items())))


@checked
def explain(
    source: str | Path,
    topic: str,
    *,
    position: tuple[int, int] | None = None,
    producer: str | None = None,
    sequence_id: int | None = None,
    checkpoint: str | Path | None = None,
    at: str | int | None = None,
    snapshots: str | Path | None = None,
) -> list[Life]:
    """What happened to a message: one life, or several if its producer sent it again under the same sequence id.

    Args:
        source: the `out` of a replay, the `store` of a query, or a command log.
        topic: its full name. ``persistent://`` or ``persistent://public/default/`` may be left out.
        position: the message's ledger and entry. Else give its `producer` and `sequence_id`.
        checkpoint: that of the query, if `source` is its store. Without it, nothing is said about what waits.
        at: of a log, the moment: so many commands, ``PARTITION:OFFSET``, or a time (ISO 8601, UTC). None: the end.
        snapshots: of a log, a folder for the states on the way. None: one in the user's cache.

    Raises `ValueError` unless the message is named in one of the two ways, `FileNotFoundError`, and `MagnetarError`: `NotFound` for a
    folder, topic or moment that is not there, `LogError` for a log.
    """
    by_producer = producer is not None or sequence_id is not None
    if (position is None) != by_producer or (producer is None) != (sequence_id is None):
        raise ValueError("name a message by position, or by producer and sequence_id")
    folders = opened(source, checkpoint=checkpoint, at=at, snapshots=snapshots)
    with folders.unchanged():
        name = folders.topic(topic)
        if position is not None:
            return [by_position(folders, name, Position(*position))]
        assert producer is not None
        assert sequence_id is not None
        return by_sequence_id(folders, name, producer, sequence_id)


def by_position(folders: Folders, topic: str, position: Position) -> Life:
    """The life of the message at a position. Raises `NotFound`."""
    at = (
        (pc.field("topic") == topic)
        & (pc.field("ledger_id") == position.ledger)
        & (pc.field("entry_id") == position.entry)
    )
    receipt = next(folders.rows(e.SendReceipt, at), None)
    return _LifeReader(folders, topic).stored(receipt, position)


def by_sequence_id(folders: Folders, topic: str, producer: str, sequence_id: int) -> list[Life]:
    """The lives of what a producer sent under a sequence id, in order: it may have sent it again. Raises `NotFound`."""
    reader = _LifeReader(folders, topic)
    by = (pc.field("topic") == topic) & (pc.field("producer_name") == producer)
    ids = (pc.field("sequence_id") == sequence_id) | (
        (pc.field("sequence_id") < sequence_id) & (pc.field("highest_sequence_id") >= sequence_id)
    )
    lowest = pc.coalesce(pc.field("lowest_sequence_id"), pc.field("sequence_id"))
    rows = [
        *folders.rows(e.SendReceipt, by & ids),
        *folders.rows(e.SendError, by & (pc.field("sequence_id") >= sequence_id) & (lowest <= sequence_id)),
        *(
            row
            for row in reader.quarantined()
            if row["producer_name"] == producer and row["sequence_id"] == sequence_id
        ),
    ]
    rows.sort(key=_identity)
    if not rows:
        return [reader.absent(producer, sequence_id)]
    return [reader.of_row(row) for row in rows]


def example(folders: Folders) -> tuple[str, Position | tuple[str, int], str]:
    """A message to show: (topic, its position or its producer and sequence id, why this one). Raises `NotFound`."""
    for kind, what in ((e.Evicted, "a quota evicted it"), (e.Expired, "it expired")):
        row = next(folders.rows(kind, pc.field("entries") > 0), None)
        if row is not None:
            ledger, entry = row["after_ledger"], row["after_entry"]
            if entry >= 0:
                return row["topic"], Position(ledger, entry), what
    row = next(folders.rows(e.Message, pc.field("redelivery_count") > 0), None)
    if row is not None:
        return row["topic"], Position(row["ledger_id"], row["entry_id"]), "it was redelivered"
    for where, what in (
        ((pc.field("ledger_id") == -1) & pc.field("size").is_null(), "it was a duplicate"),
        (pc.field("ledger_id") > 0, "it was stored"),
    ):
        row = next(folders.rows(e.SendReceipt, where), None)
        if row is not None and row["ledger_id"] > 0:
            return row["topic"], Position(row["ledger_id"], row["entry_id"]), what
        if row is not None:
            return row["topic"], (row["producer_name"], row["sequence_id"]), what
    raise NotFound("no message was published: there is nothing to explain")


class _LifeReader:
    """Tells lives on one topic. Reads the rows of that topic, from the files of its partition once that is known."""

    def __init__(self, folders: Folders, topic: str) -> None:
        self._folders, self._topic = folders, topic
        self._broker: Broker | None = folders.broker_of(topic) if folders.has_states else None
        self._of_topic = pc.field("topic") == topic
        self._first_batch, self._missing = folders.first_batch(), folders.without_tables()
        self._life = partial(
            Life,
            topic=topic,
            clock=None if self._broker is None else self._broker.clock,
            kept_from=self._first_batch,
            sampled=self._is_sampled(),
        )

    def _is_sampled(self) -> bool:
        """False without a state, and after the end of the topic."""
        with suppress(KeyError):
            return self._broker is not None and self._broker.topic(self._topic).is_sampled
        return False

    # -- messages that were not stored ----------------------------------------------------------------------------

    def of_row(self, row: dict[str, Any]) -> Life:
        """The life that begins with a SEND_RECEIPT, SEND_ERROR or QUARANTINED row."""
        if row["kind"] == KINDS[e.SendReceipt] and row["ledger_id"] >= 0:
            return self.stored(row, Position(row["ledger_id"], row["entry_id"]))
        fate: Published
        if row["kind"] == KINDS[e.SendReceipt]:
            fate, text = "duplicate", self._duplicate(row)
        elif row["kind"] == KINDS[e.SendError]:
            lowest = row.get("lowest_sequence_id")
            what = "" if lowest is None else f"in a batch from {lowest} to {row['sequence_id']}, "
            fate, text = "refused", f"{what}refused with {row['error']}: {row['cause']}"
        else:
            fate, text = "quarantined", f"quarantined by the rule {row['rule']}: {row['cause']}"
        event = _event(row, text)
        return self._life(
            fate=fate, text=text, position=None, producer=row["producer_name"], sequence_id=row["sequence_id"],
            events=[event], subscriptions=[],
        )  # fmt: skip

    def _duplicate(self, row: dict[str, Any]) -> str:
        if row["size"] is not None:
            return f"dropped: {row['cause']}"
        return f"not stored: {row['cause']}{self._known_before(row)}"

    def _known_before(self, row: dict[str, Any]) -> str:
        """What deduplication had persisted of the producer before a receipt: the last id that was stored."""
        columns = [
            "partition",
            "offset",
            "ordinal",
            "ledger_id",
            "entry_id",
            "sequence_id",
            "highest_sequence_id",
        ]
        where = (
            self._of_topic
            & (pc.field("producer_name") == row["producer_name"])
            & (pc.field("ledger_id") >= 0)
        )
        before = self._folders.rows(
            e.SendReceipt, where & (pc.field("offset") <= row["offset"]), columns, row["partition"]
        )
        last = max((each for each in before if _identity(each) < _identity(row)), key=_identity, default=None)
        if last is None:
            return "; what the producer stored before is not in the outputs that are kept"
        highest = last["sequence_id"] if last["highest_sequence_id"] is None else last["highest_sequence_id"]
        return (
            f"; {row['sequence_id']} is not above {highest}, the last sequence id of {row['producer_name']} stored before, "
            f"at {last['ledger_id']}:{last['entry_id']}"
        )

    def quarantined(self) -> Iterator[dict[str, Any]]:
        """The topic's quarantined records in the short form of a publish, with producer and sequence id."""
        columns = ["partition", "offset", "ordinal", "clock", "topic", "rule", "cause", "payload"]
        for row in self._folders.rows(e.Quarantined, self._of_topic, columns):
            try:
                found = msgspec.json.decode(row.pop("payload"), type=dict[str, Any])
            except UNDECODABLE:
                continue
            yield {**row, "producer_name": found.get("producer"), "sequence_id": found.get("sequence_id")}

    def absent(self, producer: str, sequence_id: int) -> Life:
        """No row is about a producer's sequence id: is it certain that there never was one?"""
        fate: Published = "never seen"
        marks = [] if self._broker is None else [self._mark(self._broker, producer)]
        if self._complete:
            text = f"{producer} never sent sequence id {sequence_id} to {self._topic}: the outputs reach back to its creation"
            names = {
                row["producer_name"]
                for row in self._folders.rows(e.SendReceipt, self._of_topic, ["producer_name"])
            }
            if producer not in names:
                text += f". No message of {producer} was stored: {listed('producer', producer, names)}"
        elif marks and marks[0] is not None and marks[0] < sequence_id:
            text = f"the highest sequence id that deduplication knows of {producer} is {marks[0]}"
        else:
            fate, text = "not kept", self._not_kept("a message that was sent before")
        return self._life(
            fate=fate,
            text=text,
            position=None,
            producer=producer,
            sequence_id=sequence_id,
            events=[],
            subscriptions=[],
        )

    def _mark(self, broker: Broker, producer: str) -> int | None:
        dedup = broker.topic(self._topic).dedup
        return dedup.persisted.get(producer) if dedup.status == "Enabled" else None

    @cached_property
    def _complete(self) -> bool:
        """Whether the kept outputs begin no later than the topic. If they begin with its end, that was another life of it."""
        columns = ["partition", "offset", "ordinal", "cause"]
        first = min(self._folders.rows(e.TopicEvent, self._of_topic, columns), key=_identity, default=None)
        return first is not None and first["cause"] == "created" and not self._missing

    def _not_kept(self, what: str) -> str:
        if self._missing:
            batches = " and ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in self._missing)
            return f"the query wrote no output tables in micro-batches {batches}: {what} may have been there"
        if self._first_batch is None:
            return f"no outputs are kept: {what} may have been in them"
        return (
            f"the outputs that are kept begin with micro-batch {self._first_batch}, after {self._topic} was created: {what} is "
            "not in them"
        )

    # -- stored messages ------------------------------------------------------------------------------------------

    def stored(self, receipt: dict[str, Any] | None, position: Position) -> Life:
        """The life of the message at a position, of which there may be no receipt."""
        partition = None if receipt is None else receipt["partition"]
        if receipt is None and self._never_written(position):
            return self._no_such(position)
        rows = _while_there(sorted(self._rows(position, partition), key=_identity), receipt)
        events = [] if receipt is None else [_event(receipt, _received(receipt))]
        events += [_event(row, _told(row, position)) for row in rows]
        compactions = self._compactions(position, receipt, partition, rows)
        events = sorted([*events, *compactions], key=lambda each: (each.partition, each.offset, each.ordinal))
        if receipt is None:
            text = self._not_kept(f"the receipt of {position}")
        else:
            text = f"stored at {position}"
        if compactions:
            text += f", {compactions[-1].text}"
        last = next((row for row in rows if row["kind"] == KINDS[e.LedgerDeleted]), None)
        if last is not None:
            gone = (
                "deleted with its topic"
                if last["cause"] == _WITH_TOPIC
                else f"trimmed with ledger {position.ledger}"
            )
            text += f", and {gone}"
        outcomes = self._outcomes(position, receipt, rows)
        return self._life(
            fate="stored" if receipt is not None or self._is_there(position) else "not kept",
            text=text,
            position=str(position),
            producer=None if receipt is None else receipt["producer_name"],
            sequence_id=None if receipt is None else receipt["sequence_id"],
            events=events,
            subscriptions=outcomes,
        )  # fmt: skip

    def _compactions(
        self,
        position: Position,
        receipt: dict[str, Any] | None,
        partition: int | None,
        rows: list[dict[str, Any]],
    ) -> list[Event]:
        """What compactions did with the message: those that kept a copy of it, and the first that did not. The `rows` end with its topic."""
        where = self._of_topic & pc.starts_with(pc.field("cause"), f"{e.COMPACTED} ")
        all_ = sorted(self._folders.rows(e.TopicEvent, where, partition=partition), key=_identity)
        end = next((row for row in rows if row["kind"] == KINDS[e.TopicEvent]), None)
        fields = msgspec.json.encode(CompactedEntryFields(position=str(position))).decode()
        where = self._of_topic & (pc.field("fields") == fields)
        copies = {
            _record(row): row for row in self._folders.rows(e.CompactedEntry, where, partition=partition)
        }
        found = list[Event]()
        for row in all_:
            horizon = row["cause"].removeprefix(f"{e.COMPACTED} ").partition(": ")[0]
            if (
                from_text(horizon) < position
                or (receipt is not None and _identity(row) < _identity(receipt))
                or (end is not None and _identity(row) > _identity(end))
            ):
                continue
            copy = copies.get(_record(row))
            if copy is None:
                text = f"compaction up to {horizon} kept no copy: a message behind it has its key, or it is empty or has no key"
                return [*found, _event(row, text)]
            found.append(
                _event(row, f"compaction up to {horizon} kept a copy, in ledger {copy['ledger_id']}")
            )
        return found

    def _never_written(self, position: Position) -> bool:
        """Whether it is certain that there was no message at a position."""
        if self._complete:
            return True
        return self._broker is not None and position > self._broker.topic(self._topic).ledger.last_confirmed

    def _is_there(self, position: Position) -> bool:
        return self._broker is not None and self._broker.topic(self._topic).ledger.valid(position)

    def _no_such(self, position: Position) -> Life:
        text = f"no message was ever stored at {position}"
        if self._broker is not None:
            text += f": the last one is at {self._broker.topic(self._topic).ledger.last_confirmed}"
        return self._life(
            fate="never seen",
            text=text,
            position=str(position),
            producer=None,
            sequence_id=None,
            events=[],
            subscriptions=[],
        )

    def _rows(self, position: Position, partition: int | None) -> Iterator[dict[str, Any]]:
        """The rows that are about a position."""
        ledger, entry = position
        of_ledger = self._of_topic & (pc.field("ledger_id") == ledger)
        before = _at_or_after(position, "before_ledger", "before_entry")
        after = _at_or_after(position, "after_ledger", "after_entry")
        passed = self._of_topic & ((~before & after) | (before & ~after))
        for kind, where in (
            (e.Message, of_ledger & (pc.field("entry_id") == entry)),
            (e.Expired, passed),
            (e.Evicted, passed),
            (e.CursorMoved, passed),
            (e.LedgerClosed, of_ledger),
            (e.LedgerDeleted, of_ledger),
            (e.TopicEvent, self._of_topic & pc.starts_with(pc.field("cause"), "deleted ")),
        ):
            yield from self._folders.rows(kind, where, partition=partition)

    def _outcomes(
        self, position: Position, receipt: dict[str, Any] | None, rows: list[dict[str, Any]]
    ) -> list[SubscriptionFate]:
        partition = None if receipt is None else receipt["partition"]
        columns = ["partition", "offset", "ordinal", "clock", "subscription", "cause"]
        events = list(self._folders.rows(e.SubscriptionEvent, self._of_topic, columns, partition))
        events.sort(key=_identity)
        names = {row["subscription"]: None for row in events} | {
            row["subscription"]: None for row in rows if row.get("subscription") is not None
        }
        if self._broker is not None:
            names |= dict.fromkeys(self._broker.topic(self._topic).subscriptions)
        for internal in (DEDUP_CURSOR, COMPACTION_CURSOR):
            names.pop(internal, None)
        end = next((row for row in rows if row["kind"] == KINDS[e.TopicEvent]), None)
        found: list[SubscriptionFate] = []
        for name in names:
            own = [row for row in events if row["subscription"] == name]
            if end is None or (own := [row for row in own if _is_of_life(row, end)]):
                found.append(self._outcome(name, position, receipt, rows, own))
            else:
                text = "the subscription began after the topic was deleted"
                found.append(SubscriptionFate(name, "not for it", _deliveries(rows, name), text))
        return found

    def _outcome(
        self,
        name: str,
        position: Position,
        receipt: dict[str, Any] | None,
        rows: list[dict[str, Any]],
        events: list[dict[str, Any]],
    ) -> SubscriptionFate:
        """What became of the message in the last life of a subscription that was to get it."""
        last: SubscriptionFate | None = None
        for life in reversed(_lives(events)):
            own = [row for row in rows if row.get("subscription") == name and life.has(row)]
            since = None if receipt is None else life.began_after(receipt, rows)
            if life.deleted is None:
                fate = self._of_living(name, position, own, since)
            else:
                fate = self._of_deleted(name, life.deleted, receipt, own, since)
            if fate.outcome != "not for it":
                return (
                    fate
                    if last is None
                    else msgspec.structs.replace(fate, text=f"{fate.text}, and created again later")
                )
            last = last or fate
        assert last is not None
        return last

    def _of_deleted(
        self,
        name: str,
        deleted: dict[str, Any],
        receipt: dict[str, Any] | None,
        own: list[dict[str, Any]],
        since: str | None,
    ) -> SubscriptionFate:
        """`own`: the rows of this life of the subscription. `since`: see `_Lifetime.began_after`."""
        found = partial(SubscriptionFate, name, deliveries=(deliveries := _deliveries(own, name)))
        if receipt is not None and _identity(deleted) < _identity(receipt):
            return found(
                outcome="not for it", text="the subscription was deleted before the message was stored"
            )
        if since is not None and not own:
            return found(outcome="not for it", text=since)
        what = "topic" if deleted["cause"].endswith(_WITH_TOPIC) else "subscription"
        text = "the topic was deleted" if what == "topic" else f"the subscription was {deleted['cause']}"
        if (move := _last_move(own)) is not None:
            text = f"{self._lost(move, deliveries)}; the {what} was deleted later"
            return found(outcome=_OUTCOMES[move["kind"]], text=text)
        return found(outcome="subscription deleted", text=text)

    def _of_living(
        self, name: str, position: Position, own: list[dict[str, Any]], since: str | None
    ) -> SubscriptionFate:
        """`own`: the rows of this life of the subscription. `since`: see `_Lifetime.began_after`."""
        found = partial(SubscriptionFate, name, deliveries=(deliveries := _deliveries(own, name)))
        last = _last_move(own)
        if self._broker is None or name not in self._broker.topic(self._topic).subscriptions:
            if last is not None:
                return found(outcome=_OUTCOMES[last["kind"]], text=self._lost(last, deliveries))
            return found(outcome="unknown", text="no state says whether it was acked: give the --checkpoint")
        state = self._broker.entry_state(self._topic, name, position)
        if state.state == "acked":
            return found(outcome="acked out of order", text=state.text)
        if state.state in ("passed", "deleted"):
            if last is not None and last["cause"] == SEEN_FIRST:
                return found(
                    outcome="unknown",
                    text="its mark-delete position had passed the message when the mirror first saw the subscription",
                )
            if last is not None:
                return found(outcome=_OUTCOMES[last["kind"]], text=self._lost(last, deliveries))
            if since is not None and not own:
                return found(outcome="not for it", text=since)
            if self._broker.topic(self._topic).is_shadow and self._complete:
                return found(outcome="acked", text="acknowledged on the source")
            text = state.text
            if not deliveries:
                text += (
                    "; its consumer acked it, although this log never delivered it"
                    if self._complete and state.state != "deleted"
                    else "; no delivery of it is in the outputs that are kept"
                )
            if self._missing:
                text += f"; {self._not_kept('what moved it there')}"
            known = (deliveries or self._complete) and state.state != "deleted" and not self._missing
            return found(outcome="acked" if known else "unknown", text=text)
        if state.state == "in flight":
            return found(outcome="in flight", text=state.text)
        if state.state in ("delayed", "rescheduled"):
            return found(outcome="delayed", text=state.text)
        return found(outcome="waiting", text=f"not acked: {state.text}")

    def _lost(self, row: dict[str, Any], deliveries: int) -> str:
        """What a move took that passed the message. Acks are not in the outputs, but counts may show that there were none."""
        times = "once" if deliveries == 1 else f"{deliveries} times"
        text = f"by {_rule(row)}, {f'after it was delivered {times}' if deliveries else 'never delivered'}"
        whole = (
            row["before_ledger"] == row["after_ledger"]
            and row["entries"] == row["after_entry"] - row["before_entry"]
        )
        return (
            text
            if whole or not deliveries
            else f"{text}; whether it had been acked before is not in the outputs"
        )


_WITH_TOPIC = "topic deleted"
"""The cause of a LEDGER_DELETED row that came with the end of its topic."""
_OUTCOMES: dict[str, Outcome] = {KINDS[effect]: outcome for effect, outcome in MOVED.items()}


class _Lifetime(NamedTuple):
    """From when to when there was a subscription, as rows of SUBSCRIPTION_EVENT. `created`: None if that is not in the outputs;
    `deleted`: None if it is there."""

    created: dict[str, Any] | None
    deleted: dict[str, Any] | None

    def has(self, row: dict[str, Any]) -> bool:
        """Whether a row about the subscription is of this time."""
        return (self.created is None or _identity(self.created) < _identity(row)) and (
            self.deleted is None or _identity(row) < _identity(self.deleted)
        )

    def began_after(self, receipt: dict[str, Any], rows: list[dict[str, Any]]) -> str | None:
        """In words, if it began after the message, or after the ledger of the message was deleted. None: it was to get the message."""
        if self.created is None or _identity(self.created) < _identity(receipt):
            return None
        trimmed = next((row for row in rows if row["kind"] == KINDS[e.LedgerDeleted]), None)
        if trimmed is not None and _identity(trimmed) < _identity(self.created):
            return f"the subscription was {self.created['cause']} after its ledger was deleted"
        if self.created["cause"] == "created at Earliest":
            return None
        return f"the subscription was {self.created['cause']} after the message was stored"


def _lives(events: list[dict[str, Any]]) -> list[_Lifetime]:
    """The lives of a subscription, of which these are the events, in order."""
    found: list[_Lifetime] = []
    for event in events:
        if not deletes(event["cause"]):
            if found and found[-1].deleted is None:
                found[-1] = found[-1]._replace(
                    deleted=event | {"cause": "deleted while the query wrote no output tables"}
                )
            found.append(_Lifetime(event, None))
        elif found and found[-1].deleted is None:
            found[-1] = found[-1]._replace(deleted=event)
        else:
            found.append(_Lifetime(None, event))
    return found or [_Lifetime(None, None)]


def _last_move(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The last move of a cursor over a message, if that was forward."""
    moves = [row for row in rows if row["kind"] in _OUTCOMES]
    return moves[-1] if moves and _forward(moves[-1]) else None


def _at_or_after(position: Position, ledger: str, entry: str) -> pc.Expression:
    """Whether the position in two columns is `position` or a later one."""
    return (pc.field(ledger) > position.ledger) | (
        (pc.field(ledger) == position.ledger) & (pc.field(entry) >= position.entry)
    )


def _identity(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["partition"], row["offset"], row["ordinal"]


def _deliveries(rows: list[dict[str, Any]], name: str) -> int:
    """How often a subscription got the message."""
    return sum(row["kind"] == KINDS[e.Message] and row["subscription"] == name for row in rows)


def _while_there(rows: list[dict[str, Any]], receipt: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The rows about a message, in order, without the moves of cursors after its ledger was trimmed: they concern it no more, though a
    subscription that began later may have its cursor before it. Of the ends of the topic, the one that it met: the first one after
    its receipt, or the one that took its ledger."""
    trimmed = next(
        (place for place, row in enumerate(rows) if row["kind"] == KINDS[e.LedgerDeleted]), len(rows)
    )
    ends = [row for row in rows if row["kind"] == KINDS[e.TopicEvent]]
    if receipt is not None:
        ends = [row for row in ends if _identity(row) > _identity(receipt)]
    else:
        ends = [row for row in ends if rows[trimmed:] and _record(row) == _record(rows[trimmed])]
    return [
        row
        for place, row in enumerate(rows)
        if (
            row in ends[:1]
            if row["kind"] == KINDS[e.TopicEvent]
            else place < trimmed or row["kind"] not in _OUTCOMES
        )
    ]


def _is_of_life(event: dict[str, Any], end: dict[str, Any]) -> bool:
    """Whether an event of a subscription belongs to the life of the topic that ended so. Its subscriptions are deleted after it, by the
    same record, which may also begin the next life."""
    deleted = _record(event) == _record(end) and event["cause"] == "deleted: topic deleted"
    return deleted or _identity(event) < _identity(end)


def _record(row: dict[str, Any]) -> tuple[int, int]:
    """The record that caused a row."""
    return row["partition"], row["offset"]


def _forward(row: dict[str, Any]) -> bool:
    before, after = (row["before_ledger"], row["before_entry"]), (row["after_ledger"], row["after_entry"])
    return before < after


def _event(row: dict[str, Any], text: str) -> Event:
    return Event(
        row["clock"],
        row["kind"],
        text,
        row["partition"],
        row["offset"],
        row["ordinal"],
        row.get("subscription"),
    )


def _received(row: dict[str, Any]) -> str:
    highest = row["highest_sequence_id"]
    ids = f"{row['sequence_id']}" if highest is None else f"{row['sequence_id']} to {highest}"
    messages = f", a batch of {row['messages']} messages" if row["messages"] > 1 else ""
    key = "" if row["partition_key"] is None else f", key {row['partition_key']}"
    return (
        f"received from {row['producer_name']}, sequence id {ids}, and stored at {row['ledger_id']}:{row['entry_id']} "
        f"({row['size']} bytes{messages}{key})"
    )


def _told(row: dict[str, Any], position: Position) -> str:
    """What a row says of the message at a position."""
    kind = row["kind"]
    if kind == KINDS[e.Message]:
        again = f", redelivery {row['redelivery_count']}" if row["redelivery_count"] else ""
        return f"sent to consumer {row['consumer_id']} of {row['connection']}{again}"
    if kind in _OUTCOMES:
        moved = (
            f"the mark-delete position moved from {row['before_ledger']}:{row['before_entry']} to "
            f"{row['after_ledger']}:{row['after_entry']} ({counted(row['entries'], 'entry')})"
        )
        if row["cause"] == SEEN_FIRST:
            return f"first seen by the mirror, with its mark-delete position at {row['after_ledger']}:{row['after_entry']}"
        what = _OUTCOMES[kind] if _forward(row) else "unacknowledged again"
        return f"{what} by {_rule(row)}: {moved}"
    if kind == KINDS[e.LedgerClosed]:
        return f"ledger {row['ledger_id']} closed with {counted(row['entries'], 'entry')}: {row['cause']}"
    if kind == KINDS[e.LedgerDeleted]:
        policy = f", {row['policy']}" if row["policy"] else ""
        how = "deleted" if row["cause"] == _WITH_TOPIC else "trimmed"
        return f"ledger {row['ledger_id']} {how}: {row['cause']}{policy}"
    return f"topic {row['cause']}"


def _rule(row: dict[str, Any]) -> str:
    return row["cause"] if row["policy"] is None else f"{row['cause']} ({row['policy']})"
