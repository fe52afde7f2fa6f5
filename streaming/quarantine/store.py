"""The quarantine of a run or a replay: find records by rule and topic, export them as a command log, check repaired ones,
and keep notes of those that were resubmitted.

Its coordinates in the ingress, ``PARTITION:OFFSET``, identify a record. An export has one line per record, as in a command
log (see `streaming.log.files`): the record's coordinates and, if its value is an object in JSON or MessagePack, the fields of
that object. Any other value is in the field ``value`` (text) or ``value_base64``. So is, in ``value``, an object that has a
field with the name of a coordinate or of one of these two.

``<store>/quarantine/_resubmitted/<ms>-<hex>.json`` notes a resubmission. It is written before anything is sent and again when
Kafka has confirmed it: whatever crashes, no record is resubmitted twice unnoticed.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from schemas.effects import SET_ASIDE, TOPIC_SET_ASIDE, Quarantined
from schemas.printable import some_of
from schemas.records import Coordinates
from schemas.undecodable import UNDECODABLE
from schemas.units import moment
from sinks.lock import exclusive
from sinks.quarantine import QUARANTINE, read_quarantine
from sinks.replayed import check_whole
from sinks.storage import Storage, within
from streaming.broker.entries import NoEntries
from streaming.log.files import is_data_folder, read_log, replay_first

_NOTES = "quarantine/_resubmitted"  # readers of data folders skip names that begin with an underscore
_RESUBMITTING = "quarantine/_resubmitting"
_COORDINATES = ("partition", "offset", "timestamp", "topic")
_VALUE, _VALUE_BASE64 = "value", "value_base64"
_NAMED = 5  # records that an error names

_WRITTEN = ("tables", "quarantine", "segments", "store")
"""The folders of which a run or a replay that wrote anything has one, at least."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class QuarantineError(ValueError):
    """A request to a quarantine can't be met, and nothing was resubmitted. The text says why and what to do."""


class Repaired(NamedTuple):
    """A record in the form in which to resubmit it. `timestamp`: ms since the epoch."""

    origin: Coordinates
    timestamp: int
    topic: str | None
    value: bytes


class Resubmission(NamedTuple):
    """A record was resubmitted `at` a time (ms since the epoch) `to` a topic or log. `place`: its coordinates there; None until
    Kafka confirms it."""

    at: int
    to: str
    place: Coordinates | None

    def __str__(self) -> str:
        where = f"as {self.place}" if self.place else "but Kafka has not confirmed it"
        return f"{iso(self.at)} to {self.to} {where}"


class RuleSummary(NamedTuple):
    """The quarantined records that broke one rule. `first` and `last`: the partition's clock, ms since the epoch."""

    rule: str
    records: int
    resubmitted: int
    first: int
    last: int
    example: Coordinates
    topic: str | None
    cause: str


class _Put(msgspec.Struct):
    partition: int
    offset: int
    place: Coordinates | None = None


class _Note(msgspec.Struct):
    at: int
    to: str
    records: list[_Put]


class Quarantine:
    """The quarantine in the store of a run, or in the folder of a replay."""

    def __init__(self, url: str) -> None:
        """`url`: a local folder or any URI pyarrow can open. Raises `QuarantineError` if there is no such folder, or if no run or replay
        has written to it, and `Damaged` for a replay that is not whole."""
        self.url = url
        self._storage = Storage(url)
        # With a folder of its own for what is not whole yet: a query that starts clears that of its store.
        self._notes = Storage(within(url, _NOTES))
        if ":/" not in url and not Path(url).is_dir():
            raise QuarantineError(
                f"{url}: no such folder; name the --store of a run, or the folder of a replay"
            )
        if self._storage.folder is not None:
            if is_data_folder(self._storage.folder):
                raise QuarantineError(replay_first(self._storage.folder))
            check_whole(self._storage.folder)
            if not any((self._storage.folder / each).is_dir() for each in _WRITTEN):
                raise QuarantineError(
                    f"{url}: no run or replay has written anything here; name the --store of a run, or the folder of a replay"
                )

    @property
    def of_replay(self) -> bool:
        """Whether the records came from a replayed log, not from Kafka."""
        return bool(self._storage.files("store", recursive=True))

    def records(
        self,
        *,
        rule: str | None = None,
        topic: str | None = None,
        among: Iterable[Coordinates] | None = None,
        columns: Sequence[str] = QUARANTINE.names,
    ) -> pa.Table:
        """Columns of `QUARANTINE`, by partition and offset."""
        where = pc.field("rule") != TOPIC_SET_ASIDE  # of every record
        if rule is not None:
            where &= pc.field("rule") == rule
        if topic is not None:
            where &= pc.field("topic") == topic
        if among is None:
            return read_quarantine(self.url, columns=columns, where=where)
        wanted = set(among)
        where &= pc.field("offset").isin(sorted({each.offset for each in wanted}))
        found = read_quarantine(self.url, columns=columns, where=where)
        return found.filter(pa.array([each in wanted for each in coordinates_of(found)], pa.bool_()))

    def record(self, origin: Coordinates) -> dict[str, Any]:
        """One row, columns of `QUARANTINE`. Raises `QuarantineError` if it isn't there."""
        rows: list[dict[str, Any]] = self.records(among=[origin]).to_pylist()
        if not rows:
            raise QuarantineError(f"record {origin} is not in the quarantine of {self.url}")
        return rows[0]

    def by_rule(self, *, rule: str | None = None, topic: str | None = None) -> list[RuleSummary]:
        """One summary per rule, the rule with the most records first. The example is the last record."""
        names = [name for name in QUARANTINE.names if name != "value"]
        table = self.records(rule=rule, topic=topic, columns=names)
        noted = self.resubmitted()
        found = []
        for each in pc.unique(table["rule"]).to_pylist():
            own = table.filter(pc.equal(table["rule"], each))
            times = pc.min_max(own["timestamp"].cast(pa.int64())).as_py()
            back = sum(origin in noted for origin in coordinates_of(own)) if noted else 0
            (last,) = own.slice(len(own) - 1).to_pylist()
            example = Coordinates(last["partition"], last["offset"])
            found.append(
                RuleSummary(
                    each, len(own), back, times["min"], times["max"], example, last["topic"], last["cause"]
                )
            )
        return sorted(found, key=lambda of: (-of.records, of.rule))

    # -- notes

    def resubmitted(self) -> dict[Coordinates, Resubmission]:
        """The last resubmission of each resubmitted record."""
        found = {}
        for info in self._notes.files(""):
            note = self._notes.read_json(self._notes.relative(info), _Note, "what was resubmitted")
            assert note is not None
            for put in note.records:
                origin = Coordinates(put.partition, put.offset)
                found[origin] = Resubmission(note.at, note.to, put.place)
        return found

    def exclusive(self) -> AbstractContextManager[object]:
        """Keeps other processes from resubmitting records, which could be the same. Raises `InUse`, `NotWritable`."""
        return exclusive([within(self.url, _RESUBMITTING)], "magnetar quarantine resubmit")

    def note(self, to: str, origins: Sequence[Coordinates]) -> Notebook:
        """Notes that records are about to be resubmitted."""
        notebook = Notebook(
            self._notes, _Note(int(time.time() * 1000), to, [_Put(*each) for each in origins])
        )
        notebook.write([None] * len(origins))
        return notebook

    # -- repaired records

    def check(self, repaired: Sequence[Repaired], *, again: bool) -> None:
        """Raises `QuarantineError` if a record isn't in this quarantine, still breaks a rule, or was resubmitted before
        (unless `again`)."""
        known = set(
            coordinates_of(self.records(among=[m.origin for m in repaired], columns=QUARANTINE.names[:3]))
        )
        strange = [m.origin for m in repaired if m.origin not in known]
        if strange:
            raise QuarantineError(
                f"not in the quarantine of {self.url}: {_listed(map(str, strange))}; a line's partition and offset "
                "identify the record that it repairs; nothing was resubmitted"
            )
        noted = {} if again else self.resubmitted()
        before = [f"{m.origin} ({noted[m.origin]})" for m in repaired if m.origin in noted]
        if before:
            raise QuarantineError(
                f"resubmitted before: {_listed(before)}; remove these, or give --again; nothing was resubmitted"
            )
        bad = [f"{m.origin} ({rule}: {cause})" for m, rule, cause in refused(repaired)]
        if bad:
            raise QuarantineError(
                f"{len(bad):,} of {len(repaired):,} records would be quarantined again: {_listed(bad)}; nothing was resubmitted"
            )


class Notebook:
    """The note of one resubmission."""

    def __init__(self, storage: Storage, note: _Note) -> None:
        self._storage = storage
        self._note = note
        self._path = f"{note.at:013d}-{uuid4().hex[:8]}.json"

    def write(self, places: Sequence[Coordinates | None]) -> None:
        """Notes where the records are now, in the order in which they were given; None: not confirmed."""
        for put, place in zip(self._note.records, places, strict=True):
            put.place = place
        self._storage.write_json(self._path, self._note)


def refused(repaired: Sequence[Repaired]) -> Iterator[tuple[Repaired, str, str]]:
    """Those of `repaired` that the query would quarantine, with rule and cause, according to the same gate and broker."""
    from streaming.broker.broker import Broker
    from streaming.quality.gate import judge

    commands = judge([each.topic for each in repaired], [each.value for each in repaired])
    for record, command in zip(repaired, commands, strict=True):
        broker = Broker(record.origin.partition, NoEntries())
        try:
            broker.apply(0, record.timestamp, record.topic, command, record.value)
        except Exception as error:  # it was set aside because of a bug, which this version still has
            yield record, SET_ASIDE, f"Magnetar fails on it: {type(error).__name__}: {error}"
            continue
        for row in broker.take():
            if isinstance(row.effect, Quarantined):
                yield record, row.effect.rule, row.effect.cause


def coordinates_of(records: pa.Table) -> Iterator[Coordinates]:
    """Partition and offset of each record, in order."""
    return map(Coordinates, records["partition"].to_pylist(), records["offset"].to_pylist())


# -- lines


def line(record: dict[str, Any]) -> bytes:
    """A row of `QUARANTINE` as a line of a command log, without a newline."""
    head = {"partition": record["partition"], "offset": record["offset"],
            "timestamp": round(record["timestamp"].timestamp() * 1000)}  # fmt: skip
    if record["topic"] is not None:
        head["topic"] = record["topic"]
    return msgspec.json.encode(head | _shown(record["value"]))


def _shown(value: bytes) -> dict[str, Any]:
    found = as_json(value)
    if found is None:
        try:
            return {_VALUE: value.decode()}
        except UnicodeDecodeError:
            return {_VALUE_BASE64: base64.b64encode(value).decode()}
    fields = _fields(found)
    taken = fields.keys() & {*_COORDINATES, _VALUE, _VALUE_BASE64}
    return {_VALUE: msgspec.Raw(found)} if taken else fields


def as_json(value: bytes) -> bytes | None:
    """A value that is an object in JSON or MessagePack as one line of JSON, with bytes in base64; None for any other."""
    try:
        if value.lstrip()[:1] == b"{":
            value.decode()
            found = msgspec.json.format(value, indent=-1)
            _fields(found)
            return found
        decoded = msgspec.msgpack.decode(value)
        return (
            msgspec.json.encode(decoded)
            if isinstance(decoded, dict) and all(map(_is_text, decoded))
            else None
        )
    except (*UNDECODABLE, ValueError, TypeError):
        return None


def _is_text(key: object) -> bool:
    return isinstance(key, str)


def read_repaired(path: str | Path) -> list[Repaired]:
    """The records of an export that somebody edited. Raises `LogError`, `FileNotFoundError`, `QuarantineError`."""
    log = read_log(path)
    if not len(log):
        raise QuarantineError(f"{path}: no records in it; nothing was resubmitted")
    values = log["value"].to_pylist()
    if ".jsonl" in Path(path).name:
        # In a log such lines are for the query to quarantine; here they are typing errors.
        for number, value in enumerate(values, 1):
            try:
                _fields(value)
            except UNDECODABLE as error:
                raise QuarantineError(
                    f"{path}: record {number} is not a JSON object ({error}); it begins {value[:60]!r}; nothing was resubmitted"
                ) from None
    if "partition" not in log.column_names:
        raise QuarantineError(
            f"{path}: its lines have no partition and offset, so they identify no quarantined record; begin with "
            "`magnetar quarantine export`; nothing was resubmitted"
        )
    rows = log.drop_columns(["value"]).to_pylist()
    return [
        Repaired(Coordinates(row["partition"], row["offset"]), row["timestamp"], row["topic"], _value(value))
        for row, value in zip(rows, values, strict=True)
    ]


def _value(value: bytes) -> bytes:
    """The value that `_shown` represented."""
    try:
        fields = _fields(value)
        if fields.keys() == {_VALUE}:
            raw = bytes(fields[_VALUE])
            return msgspec.json.decode(raw, type=str).encode() if raw[:1] == b'"' else raw
        if fields.keys() == {_VALUE_BASE64}:
            return base64.b64decode(msgspec.json.decode(fields[_VALUE_BASE64], type=str), validate=True)
    except (*UNDECODABLE, ValueError):
        pass  # the gate says what is wrong with it
    return value


def iso(milliseconds: int) -> str:
    """``2026-01-01T00:00:00.000Z``."""
    return moment(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _listed(names: Iterable[str]) -> str:
    return some_of(list(names), _NAMED)
