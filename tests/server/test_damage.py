"""A data folder that was damaged on the disk is refused with a sentence, and never accepted as another one; a start is whole."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sinks.sums import SUM
from streaming.broker.state.codec import decode_state
from streaming.server import data_folder
from streaming.server.clock import HeldClock
from streaming.server.data_folder import CHECKPOINT, COMMANDS, BadData
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from tests.damage import accepted
from tests.server.test_data import START, last, publish, run

FLIPS, CUTS, ZEROS = 300, 40, 40


def state(folder: Path) -> bytes:
    """What a start makes of a folder. The folder stays as it is."""
    copy = folder.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    return _state(copy)


def _state(folder: Path) -> bytes:
    with data_folder.DataFolder(folder, fsync=False) as log:
        _, fold, _ = log.recover()
        return fold.state().broker


def damages(data: bytes, dice: Random) -> Iterator[tuple[str, bytes]]:
    """Flipped bits, what was cut off, and zeros in place of what was there."""
    for _ in range(FLIPS):
        at = dice.randrange(len(data) * 8)
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        yield f"bit {at}", bytes(flipped)
    for _ in range(CUTS):
        size = dice.randrange(len(data))
        yield f"cut at {size}", data[:size]
    for _ in range(ZEROS):
        first = dice.randrange(len(data))
        size = dice.randrange(1, 600)
        yield f"zeros from {first}, {size}", (data[:first] + bytes(size) + data[first + size :])[: len(data)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, and a segment after it with several writes."""
    path = tmp_path_factory.mktemp("damage") / "data"
    path.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_folder, "CHECKPOINT_RECORDS", 12)
        run(path, lambda engine: publish(engine, *range(1, 12)))
    return killed(path, lambda engine: publish(engine, 20, 21, 22, payload=b'"crc32":"00000000"}'))


def killed(folder: Path, work: Callable[[EmbeddedEngine], Any]) -> Path:
    """A copy of the folder as it is when an engine has done `work`: what is left of one that is killed then."""
    left = folder.with_name("left")

    async def copied(engine: EmbeddedEngine) -> None:
        await work(engine)
        shutil.copytree(folder, left)

    run(folder, copied)
    assert (left / CHECKPOINT).exists()
    assert last(left).stat().st_size > 0
    return left


def prefixes(folder: Path) -> set[bytes]:
    """The states after each write of the last segment: what is left if the end of the file was never written."""
    segment = last(folder)
    data, found, copy = segment.read_bytes(), set(), folder.with_name("shorter")
    ends = [0, *(at + 1 for at, byte in enumerate(data) if byte == 10)]
    for end in ends:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        (copy / COMMANDS / segment.name).write_bytes(data[:end])
        found.add(_state(copy))
    return found


@pytest.mark.parametrize("which", ["checkpoint", "segment"])
def test_damage_is_never_another_state(folder: Path, which: str, tmp_path: Path) -> None:
    whole, shorter = state(folder), prefixes(folder)
    damaged = tmp_path / "data"
    shutil.copytree(folder, damaged)
    target = damaged / CHECKPOINT if which == "checkpoint" else last(damaged)

    def is_right(what: str, found: Any) -> bool:
        # The end of a file may never have been written. A bit that flips is no such end.
        return found == whole or not (what.startswith("bit") or which == "checkpoint" or found not in shorter)

    ways = damages(target.read_bytes(), Random(7))
    assert accepted(target, ways, lambda: state(damaged), BadData, is_right) == []


def test_an_end_of_zeros_was_never_written(folder: Path, tmp_path: Path) -> None:
    whole = state(folder)
    damaged = tmp_path / "data"
    shutil.copytree(folder, damaged)
    with last(damaged).open("ab") as file:
        file.write(bytes(5000))
    assert _state(damaged) == whole
    assert b"\0" not in last(damaged).read_bytes()


def test_a_folder_of_an_earlier_version_is_read(folder: Path, tmp_path: Path) -> None:
    """Without any checksums. From then on it gets some, which hold for what was there, too."""
    whole = state(folder)
    old = tmp_path / "data"
    shutil.copytree(folder, old)
    data = (old / CHECKPOINT).read_bytes()
    (old / CHECKPOINT).write_bytes(data[data.index(b"\n") + 1 :])
    for path in (old / COMMANDS).iterdir():
        path.write_bytes(SUM.sub(b"}", path.read_bytes()))
    before = last(old).read_bytes()
    assert state(old) == whole
    old = killed(old, lambda engine: publish(engine, 30))
    changed = last(old).read_bytes().replace(b'"sequence_id":21', b'"sequence_id":29', 1)
    assert changed.startswith(before[:20])
    last(old).write_bytes(changed)
    with pytest.raises(BadData, match="its checksum is wrong"):
        state(old)


@pytest.mark.parametrize(
    "foreign",
    [
        lambda folder: (folder / COMMANDS / "notes.jsonl").write_text("{}"),
        lambda folder: (folder / COMMANDS / f"{99:020d}.jsonl").mkdir(),
        lambda folder: ((folder / CHECKPOINT).unlink(), (folder / CHECKPOINT).mkdir()),
    ],
)
def test_what_is_not_the_engines_is_named(
    folder: Path, tmp_path: Path, foreign: Callable[[Path], object]
) -> None:
    damaged = tmp_path / "data"
    shutil.copytree(folder, damaged)
    foreign(damaged)
    with pytest.raises(BadData, match=r"is not a part of the log|belongs to something else"):
        _state(damaged)


# ---- a start is whole or not at all


def start(folder: Path, *, dies: bool = False) -> tuple[bytes, list[str]]:
    """Start an engine as `magnetar serve` does. The broker's state, and its namespaces."""

    async def main() -> tuple[bytes, list[str]]:
        async with EmbeddedEngine(folder, clock=HeldClock(START), begins_with=STANDALONE, settings={"namespacesMustExist": True}) as engine:  # fmt: skip
            encoded = engine.broker.encode()
            return encoded, sorted(decode_state(encoded).namespaces)

    return asyncio.run(main())


def test_a_first_start_that_was_killed_after_any_byte_is_begun_anew(tmp_path: Path) -> None:
    """And so is one that was killed before it wrote anything. The same start without a kill gives the same state."""
    plain = start(tmp_path / "plain")
    assert "public/default" in plain[1]
    data = (tmp_path / "plain" / COMMANDS / data_folder.segment_name(0)).read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10]
    for size in sorted({0, 1, *ends[:-1], *(end - 1 for end in ends), *range(5, ends[-1] - 25, 97)}):
        cut = tmp_path / f"killed-{size}"
        (cut / COMMANDS).mkdir(parents=True)
        (cut / COMMANDS / data_folder.segment_name(0)).write_bytes(data[:size])
        if size == ends[-1] - 1:  # only the end of the line is missing: all was written
            assert start(cut)[1] == plain[1]
        else:
            assert start(cut) == plain, size
