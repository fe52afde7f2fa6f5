"""What was written and is read back: a damaged file gives the same as before, or a sentence, and never something else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow.compute as pc
import pytest

from schemas.effects import SendReceipt
from schemas.records import Coordinates
from sinks.ledger_store import LedgerStore
from sinks.replayed import read_replayed
from sinks.storage import Damaged, Storage
from sinks.sums import sealed
from sinks.tables import read_table
from streaming.answers.history.folders import Budget, Folders
from streaming.answers.history.timeline import Timeline
from streaming.answers.whatif.diff import diff
from streaming.answers.whatif.folder import opened
from streaming.answers.whatif.projection import LiveState
from streaming.jobs.replay import replay_in_process
from streaming.jobs.summary import what_happened
from streaming.log.files import read_log
from streaming.log.table import LogError
from streaming.mirror import journal
from streaming.mirror.journal import BadLog, LogFolder, MirrorRecord
from streaming.mirror.last import LastEntry
from streaming.mirror.progress import MirrorProgress
from streaming.quarantine.store import Quarantine
from streaming.state.dump import BadDump, Header, read_dump, write_dump
from streaming.state.saved import read_states
from streaming.state.seed import NotWhole, Origin, Seed, SeedWriter, read_seed
from streaming.ui.output_rows import latest
from tests.damage import accepted
from tests.sinks.helpers import TOPIC, closed, deleted, output, receipts

FLIPS, CUTS = 60, 12
EVERY = pc.field("offset") >= 0

LOG = "".join(
    f'{{"timestamp":{n},"topic":"persistent://public/default/t","producer":"p","sequence_id":{n}}}\n'
    for n in range(1, 40)
)


def _replay(folder: Path) -> None:
    (folder / "log.jsonl").write_text(
        LOG + '{"timestamp":50,"topic":"persistent://public/default/t","x":1}\n'
    )
    replay_in_process(folder / "log.jsonl", folder / "out", partitions=2)


def _dump(folder: Path) -> None:
    _replay(folder)
    with (folder / "dump").open("wb") as file:
        write_dump(file, Header(), [each.broker for each in read_states(folder / "out" / "state") or []])


def _dumped(folder: Path) -> Any:
    with (folder / "dump").open("rb") as file:
        return list(read_dump(file))


def _seed(folder: Path) -> None:
    _replay(folder)
    writer = SeedWriter(str(folder / "store"))
    writer.begin(Origin(states="s", ingress="t", topic_id=None, partitions=2, ends=[]))
    for state in read_states(folder / "out" / "state") or []:
        writer.write(state.partition, state.broker)
    writer.finish(Seed(partitions=2, offsets={"0": 5, "1": 7}))


def _seeded(folder: Path) -> Any:
    reader = read_seed(str(folder / "store"))
    return None if reader is None else (reader.states(), reader.seed.offsets)


def _retention(folder: Path) -> None:
    store = LedgerStore(str(folder / "store"))
    store.write(
        0,
        0,
        output(
            [
                *receipts(1, 0, 4),
                closed(1, 5),
                *receipts(2, 0, 4),
                closed(2, 5),
                *receipts(3, 0, 4),
                closed(3, 5),
            ]
        ),
    )
    store.begin(1)
    store.write(1, 0, output([deleted(1)]))


def _retained(folder: Path) -> Any:
    """What is left when the micro-batch after a deletion begins."""
    copy = folder / "copy"
    shutil.copytree(folder / "store", copy)
    try:
        store = LedgerStore(str(copy))
        store.begin(2)
        return [store.reader(0).read(TOPIC, ledger, 0, 4) for ledger in (2, 3)], sorted(
            each.name for each in (copy / "ledgers").rglob("*")
        )
    finally:
        shutil.rmtree(copy)


def _note(folder: Path) -> None:
    _replay(folder)
    origin = [Coordinates(0, 1), Coordinates(1, 3)]
    Quarantine(str(folder / "out")).note("t", origin).write(origin)


def _snapshots(folder: Path) -> None:
    _replay(folder)
    _claimed(folder)


def _claimed(folder: Path) -> Any:
    timeline = Timeline(folder / "log.jsonl", folder / "snapshots", every=20)
    return timeline.states(25)


def _store(folder: Path) -> None:
    store = LedgerStore(str(folder / "store"))
    store.write(0, 0, output([*receipts(1, 0, 4), closed(1, 5), *receipts(2, 0, 4)]))


def _stored(folder: Path) -> Any:
    store = LedgerStore(str(folder / "store"))
    return [store.reader(0).read(TOPIC, ledger, 0, 4) for ledger in (1, 2)]


def _records(folder: Path) -> list[MirrorRecord]:
    with LogFolder(folder / "mirror") as log:
        return [*log.read()]


def _mirrored(folder: Path) -> None:
    """A log in three files, each of which says where all is."""
    with patch.object(journal, "SEGMENT_BYTES", 0), LogFolder(folder / "mirror") as log:
        assert [*log.read()] == []
        for file in range(3):
            for entry in range(4):
                id_ = {"ledgerId": 1 + file, "entryId": entry}
                log.write(MirrorRecord(file, TOPIC, {"command": "SEND", "message_id": id_}))
            log.flush()
            if file < 2:
                log.mark()


def _mirrored_and_noted(folder: Path) -> None:
    """A start reads the last file."""
    _mirrored(folder)
    with patch.object(journal, "SEGMENT_BYTES", 1 << 20), LogFolder(folder / "mirror") as log:
        assert len([*log.read()]) == 12
        log.keep(log.mark(), {TOPIC: LastEntry(1, 5, 7)})
    assert len(_records(folder)) == 4


def _followed(folder: Path) -> Any:
    progress = MirrorProgress(_records(folder), sampled=False)
    return progress.time, {name: each.read_to for name, each in progress.topics.items()}


def _whatif(folder: Path) -> None:
    """A what-if begins from the state of a query."""
    _replay(folder)
    log, live = read_log(folder / "log.jsonl"), _live(folder)
    with opened(folder / "kept", ()) as kept:
        kept.note(log, live, live.read())


def _live(folder: Path) -> LiveState:
    return LiveState(read_states(folder / "out" / "state") or [], LedgerStore(str(folder / "out" / "store")))


def _whatif_goes_on(folder: Path) -> Any:
    with opened(folder / "kept", ()) as kept:
        return kept.as_begun(read_log(folder / "log.jsonl"), _live(folder))


KINDS: dict[str, tuple[Callable[[Path], Any], str, Callable[[Path], Any]]] = {
    "states of a replay": (_replay, "out/state/states.parquet", lambda folder: read_states(folder / "out/state")),
    "what was replayed": (_replay, "out/state/replay.json", lambda folder: read_replayed(folder / "out/state")),
    "a dump": (_dump, "dump", _dumped),
    "states to begin with": (_seed, "store/seed/*.state", _seeded),
    "that these are whole": (_seed, "store/seed/whole.json", _seeded),
    "ledgers to delete": (_retention, "store/deletions/*.json", _retained),
    "notes of resubmissions": (
        _note, "out/quarantine/_resubmitted/*.json",
        lambda folder: {at: each.place for at, each in Quarantine(str(folder / "out")).resubmitted().items()},
    ),
    "of which log snapshots are": (
        _snapshots, "snapshots/timeline.json", _claimed,
    ),
    "snapshots": (_snapshots, "snapshots/snapshots/*20/states.parquet", _claimed),
    "entries of a closed ledger": (_store, "store/ledgers/*/*.parquet", _stored),
    "entries of a micro-batch": (_store, "store/segments/*/*.parquet", _stored),
    "a mirror's log": (_mirrored, "mirror/*1.jsonl", _records),
    "where a mirror's log is read": (_mirrored_and_noted, "mirror/mirror.json", _followed),
    "output rows": (
        _replay, "out/tables/kind=SEND_RECEIPT/*.parquet",
        lambda folder: read_table(str(folder / "out/tables"), "SEND_RECEIPT").to_pylist(),
    ),
    "output rows for an answer": (
        _replay, "out/tables/kind=SEND_RECEIPT/*.parquet",
        lambda folder: list(Folders.of(folder / "out").rows(SendReceipt, EVERY)),
    ),
    "output rows for a comparison": (
        _replay, "out/tables/kind=SEND_RECEIPT/*.parquet", lambda folder: diff(folder / "out", folder / "out"),
    ),
    "how far a log went": (_whatif, "kept/whatif-log.json", _whatif_goes_on),
    "what a query had when a what-if began": (_whatif, "kept/whatif-state", _whatif_goes_on),
    "quarantine": (
        _replay, "out/quarantine/*.parquet", lambda folder: Quarantine(str(folder / "out")).records().to_pylist(),
    ),
}  # fmt: skip
"""How a kind of file is written, its name, and what is read from it."""

SENTENCES = (Damaged, BadDump, BadLog, LogError, NotWhole, FileExistsError, IsADirectoryError)


def damages(data: bytes, dice: Random) -> Iterator[tuple[str, bytes]]:
    for _ in range(FLIPS):
        at = dice.randrange(len(data) * 8)
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        yield f"bit {at}", bytes(flipped)
    for size in sorted({0, len(data) - 1, *(dice.randrange(len(data)) for _ in range(CUTS))}):
        yield f"cut at {size}", data[:size]
    yield "zeros at the end", data + bytes(512)
    yield "zeros", bytes(len(data))
    yield "foreign", b"PAR1 of somebody else\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_never_another(kind: str, tmp_path: Path) -> None:
    write, name, look = KINDS[kind]
    write(tmp_path)
    path = next(iter(sorted(tmp_path.glob(name))))
    expected, ways = look(tmp_path), damages(path.read_bytes(), Random(24))
    assert accepted(path, ways, lambda: look(tmp_path), SENTENCES, lambda _, found: found == expected) == []


def test_the_end_of_a_mirrors_log_may_be_cut_off_and_nothing_else(tmp_path: Path) -> None:
    """As a kill does it."""
    _mirrored(tmp_path)
    path = tmp_path / "mirror" / "000000000003.jsonl"
    expected, ways = _records(tmp_path), damages(path.read_bytes(), Random(24))

    def is_right(what: str, found: list[Any]) -> bool:
        return found == expected[: len(found)] and not (
            what.startswith("bit") and len(found) < len(expected) - 1
        )

    assert accepted(path, ways, lambda: _records(tmp_path), BadLog, is_right) == []


@pytest.mark.parametrize("write", [_mirrored, _mirrored_and_noted])
@pytest.mark.parametrize("number", [1, 2])
def test_a_file_that_a_mirrors_log_lacks_is_named(
    number: int, write: Callable[[Path], None], tmp_path: Path
) -> None:
    """What is before the note, a start does not read: it may be elsewhere, all of it up to there."""
    write(tmp_path)
    expected, path = _followed(tmp_path), tmp_path / "mirror" / f"{number:012d}.jsonl"
    path.unlink()
    if write == _mirrored_and_noted and number == 1:
        assert _followed(tmp_path) == expected
        (tmp_path / "mirror" / "mirror.json").write_text("")
    with pytest.raises(BadLog, match=f"{path} is missing: restore the folder from a backup"):
        _followed(tmp_path)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("seal", [lambda text: text, sealed])
def test_a_note_that_points_elsewhere_skips_nothing(
    number: int, seal: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    _mirrored(tmp_path)
    expected = _records(tmp_path)
    (tmp_path / "mirror" / "mirror.json").write_bytes(seal(b'{"read_from":%d,"sum":0}' % number))
    if seal is sealed and number > 1:
        with pytest.raises(BadLog):
            _records(tmp_path)
    else:
        assert _records(tmp_path) == expected


def test_the_lines_of_a_mirror_are_those_of_a_log(tmp_path: Path) -> None:
    _mirrored(tmp_path)
    values = [msgspec.json.decode(each) for each in read_log(tmp_path / "mirror")["value"].to_pylist()]
    assert values == [each.command for each in _records(tmp_path)]


NOT_EVERY_BIT: dict[str, tuple[Callable[[Path], Any], str, Callable[[Path], Any]]] = {
    "output rows for the page": (
        _replay, "out/tables/kind=QUARANTINED/*.parquet",
        lambda folder: latest(Storage(str(folder / "out/tables")), ["QUARANTINED"], 9, None, Budget(60, 999)),
    ),
    "output rows for a summary": (
        _replay, "out/tables/kind=QUARANTINED/*.parquet",
        lambda folder: what_happened(folder / "out/tables", copied=False),
    ),
}  # fmt: skip
"""Files of which a few bits have no checksum: those in a footer of Parquet that name columns."""


@pytest.mark.parametrize("kind", NOT_EVERY_BIT)
def test_a_file_that_is_not_whole_is_named(kind: str, tmp_path: Path) -> None:
    write, name, look = NOT_EVERY_BIT[kind]
    write(tmp_path)
    path = next(iter(sorted(tmp_path.glob(name))))
    data = path.read_bytes()
    for _, damaged in islice(damages(data, Random(24)), FLIPS, None):
        path.write_bytes(damaged)
        with pytest.raises(
            Damaged, match=f"{path} .output rows. is damaged: .*. Restore it from a backup, or"
        ):
            look(tmp_path)


@pytest.mark.parametrize("kind", [kind for kind in KINDS | NOT_EVERY_BIT if kind.startswith("output rows")])
def test_output_rows_are_opened_at_one_place(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which knows S3's short answers; and an S3 that is away damages nothing."""
    write, _, look = (KINDS | NOT_EVERY_BIT)[kind]
    write(tmp_path)

    def away(self: Storage, path: str) -> None:
        raise OSError("AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 7")

    monkeypatch.setattr(Storage, "open", away)
    with pytest.raises(OSError, match="AWS Error NETWORK") as error:
        look(tmp_path)
    assert not isinstance(error.value, Damaged)
