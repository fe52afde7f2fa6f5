"""Golden states: encoded states of a release that later versions must read, and the outcome of the rest of each log.

``tests/golden/<release>/broker.msgpack.xz`` has each of `tests.state.lives` as that release folded it. A later version
must reach the same outcome. If a bug of the release was fixed, the outcome is recorded again (`fixed`), but never a state.
"""

import lzma
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from schemas.commands import MessageMetadata
from schemas.effects import KINDS, Effect
from schemas.entries import Entry
from streaming.broker.broker import Broker
from streaming.broker.state.codec import VERSION
from tests.broker.kit import Stored, feed
from tests.state.lives import Life, Record
from tests.state.shape import Shape

GOLDEN = Path(__file__).parents[1] / "golden"
SHAPES = GOLDEN / "shapes"

StoredEntry = tuple[str, int, int, MessageMetadata, int, int | None]
"""Topic, ledger, entry, and the fields of an `Entry`."""


class GoldenLife(msgspec.Struct):
    """A state, the stored entries that it may read, and the outcome of the rest of the log.

    Rows are (offset, ordinal, clock, kind, fields that aren't None). `stats` is `Broker.stats`, `topics` is
    `Broker.topic_stats`.
    """

    state: bytes
    entries: list[StoredEntry]
    stats: list[dict[str, Any]]
    after: list[Record]
    rows: list[tuple[int, int, int, str, dict[str, Any]]]
    stats_after: list[dict[str, Any]]
    topics_after: dict[str, Any]


class Golden(msgspec.Struct):
    """The states of a release by the name of their life, encoded in `version`."""

    release: str
    version: int
    lives: dict[str, GoldenLife]


class Outcome(NamedTuple):
    """The outcome of the rest of a log."""

    rows: list[tuple[int, int, int, str, dict[str, Any]]]
    stats: list[dict[str, Any]]
    topics: dict[str, Any]


def record(life: Life) -> GoldenLife:
    """Fold a life with the current code."""
    store = Stored()
    broker = Broker(0, store)
    for offset, (timestamp, topic, value) in enumerate(life.before):
        feed(broker, offset, timestamp, topic, value)
    store.add([row.effect for row in broker.take()])
    state, entries = (
        broker.encode(),
        [(*at, *msgspec.structs.astuple(entry)) for at, entry in store.entries.items()],
    )
    stats = broker.stats()
    outcome = go_on(Broker.decode(state, store), life.after)
    return GoldenLife(state, entries, stats, life.after, *outcome)


def restored(golden: GoldenLife) -> Broker:
    """A broker of the current code with a golden state."""
    store = Stored()
    store.entries = {
        (topic, ledger, entry): Entry(metadata, size, time)
        for topic, ledger, entry, metadata, size, time in golden.entries
    }
    return Broker.decode(golden.state, store)


def go_on(broker: Broker, log: list[Record]) -> Outcome:
    """Fold more records. The outcome is as after JSON or MessagePack, so that outcomes can be compared."""
    for number, (timestamp, topic, value) in enumerate(log, broker.offset + 1):
        feed(broker, number, timestamp, topic, value)
    rows = [
        (row.offset, row.ordinal, row.clock, KINDS[type(row.effect)], _fields(row.effect))
        for row in broker.take()
    ]
    topics = {name: broker.topic_stats(name) for name in broker.topic_names() if "non-persistent" not in name}
    return Outcome(
        *msgspec.msgpack.decode(msgspec.msgpack.encode((rows, broker.stats(), topics)), type=Outcome)
    )


def fixed(golden: Golden) -> tuple[Golden, list[str]]:
    """The same states with their current outcome. Also returns the rows that are gone (-) and new (+)."""
    difference = []
    for name, life in golden.lives.items():
        outcome = go_on(restored(life), life.after)
        before, after = ([(row[0], row[3], row[4]) for row in rows] for rows in (life.rows, outcome.rows))
        difference += [f"- {name}: {row}" for row in before if row not in after]
        difference += [f"+ {name}: {row}" for row in after if row not in before]
        life.rows, life.stats_after, life.topics_after = outcome
    return golden, difference


def _fields(effect: Effect) -> dict[str, Any]:
    return {name: value for name, value in effect._asdict().items() if value is not None}


def write(golden: Golden, folder: Path) -> Path:
    path = folder / "broker.msgpack.xz"
    path.write_bytes(lzma.compress(msgspec.msgpack.encode(golden), preset=9))
    return path


def read(folder: Path) -> Golden:
    return msgspec.msgpack.decode(lzma.decompress((folder / "broker.msgpack.xz").read_bytes()), type=Golden)


def releases() -> dict[int, str]:
    """`codec.VERSION` → the last release that wrote it."""
    folders = sorted(file.parent for file in GOLDEN.glob("*/broker.msgpack.xz"))
    return {golden.version: golden.release for golden in map(read, folders)}


def shape_of(version: int) -> Shape:
    """The recorded shape of a version of the state, or empty if there is none."""
    file = SHAPES / f"{version}.json"
    shape: Shape = msgspec.json.decode(file.read_bytes()) if file.exists() else {}
    return shape


def next_version(difference: list[str]) -> str:
    """What to do about a change of the encoding."""
    return (
        f"the encoding of the state has changed ({'; '.join(difference)}), but checkpoints have the old one. Set "
        f"VERSION = {VERSION + 1} in streaming/broker/state/codec.py, read streaming/broker/state/upgrades.py, and run "
        "`python -m tests.state.record`"
    )
