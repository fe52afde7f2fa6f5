"""Entries that wait in files: each once, and no file longer than somebody waits for what is in it."""

import os
import random
from pathlib import Path

import pytest

from schemas.commands import MessageMetadata
from streaming.protocol.codec import entry
from streaming.protocol.frames import metadata_fields
from streaming.server import entry_spool
from streaming.server.entry_spool import EntrySpool, SpooledEntry


def metadata(number: int) -> MessageMetadata:
    return MessageMetadata("p", number, 1)


def tail(number: int, payload: bytes) -> bytes:
    return entry(metadata_fields(metadata(number)), payload)


def test_equal_entries_are_one_and_others_are_not() -> None:
    spool = EntrySpool()
    first = spool.put(metadata(1), bytes(1000))
    again = spool.put(metadata(1), bytes(bytearray(1000)))
    assert again is first
    assert spool.size == len(tail(1, bytes(1000)))
    other = spool.put(metadata(2), bytes(1000))
    assert spool.take(first) == spool.take(again) == tail(1, bytes(1000))
    later = spool.put(metadata(1), bytes(1000))  # the former one is gone
    assert later is not first
    assert (spool.take(other), spool.take(later)) == (tail(2, bytes(1000)), tail(1, bytes(1000)))
    assert spool.size == 0


@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_and_goes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_spool, "_RECENT_BYTES", 3_000)
    drawn, spool = random.Random(seed), EntrySpool(1_000)
    descriptors = len([*Path("/proc/self/fd").iterdir()])
    waiting: list[tuple[SpooledEntry, bytes]] = []
    for _ in range(2_000):
        if waiting and drawn.random() < 0.5:
            known, expected = waiting.pop(drawn.randrange(len(waiting)))
            if drawn.random() < 0.2:
                spool.drop(known)
            else:
                assert spool.take(known) == expected
        else:
            number, payload = drawn.randrange(3), bytes([drawn.randrange(3)]) * drawn.choice((0, 10, 700))
            waiting.append((spool.put(metadata(number), payload), tail(number, payload)))
        needed = {known: known.size for known, _ in waiting}
        assert sum(needed.values()) <= spool.size <= sum(known.file.end for known in needed)
        assert spool._recent_bytes <= 3_000
    for known, expected in waiting:
        assert spool.take(known) == expected
    assert spool.size == 0
    assert len([*Path("/proc/self/fd").iterdir()]) == descriptors


def test_a_full_disk_leaves_no_file_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    spool = EntrySpool()
    kept = spool.put(metadata(1), b"x" * 100)
    size = spool.size

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            spool.put(metadata(2), b"y" * 100)
        assert spool.size == size
        assert spool.take(kept) == tail(1, b"x" * 100)
        with pytest.raises(OSError, match="No space"):
            spool.put(metadata(2), b"y" * 100)
    assert (spool.size, spool._files) == (0, {})
    assert spool.take(spool.put(metadata(2), b"y" * 100)) == tail(2, b"y" * 100)
