"""Entries that wait for clients to read, in temporary files instead of memory.

An entry is written once, for however many deliveries it waits. A file goes as soon as nobody waits for anything in it.
"""

import os
import tempfile
from contextlib import suppress
from typing import IO

from schemas.commands import MessageMetadata
from streaming.protocol.codec import entry
from streaming.protocol.frames import metadata_fields

FILE_BYTES = 16 << 20
"""A file that has so many bytes gets no more. It goes with the last entry in it that waits, so it must be a small part of what may wait."""

_RECENT_BYTES, _KEPT = 16 << 20, 256
"""Bytes of the entries that are compared with the next one, and what each costs besides."""


class _File:
    """A temporary file: `end` is its size, and so many deliveries wait for what is in it."""

    __slots__ = ("end", "file", "waits")

    def __init__(self) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(prefix="magnetar-entries-", buffering=0)  # noqa: SIM115
        self.end = self.waits = 0


class SpooledEntry:
    """An entry in a file: `size` bytes from `first` on. So many deliveries wait for it."""

    __slots__ = ("file", "first", "size", "waits")

    def __init__(self, file: _File, size: int) -> None:
        self.file, self.first, self.size, self.waits = file, file.end, size, 0


class EntrySpool:
    """The entries that wait for the clients of a server. Each `put` is for one delivery, and needs one `take` or `drop`."""

    def __init__(self, file_bytes: int = FILE_BYTES) -> None:
        """`file_bytes`: a file that has so many gets no more."""
        self._file_bytes = file_bytes
        self.size = 0
        """The bytes of all files."""
        self._files: dict[_File, None] = {}
        self._last: _File | None = None
        self._recent: dict[bytes, tuple[MessageMetadata, SpooledEntry]] = {}
        """The last entries, by their payloads. Deliveries of an entry come together."""
        self._recent_bytes = 0

    def put(self, metadata: MessageMetadata, payload: bytes) -> SpooledEntry:
        """Keep an entry. Raises `OSError`."""
        known, found = self._recent.get(payload, (None, None))
        if found is None or not found.waits or (known is not metadata and known != metadata):
            found = self._write(entry(metadata_fields(metadata), payload))
            self._remember(payload, metadata, found)
        found.waits += 1
        found.file.waits += 1
        return found

    def take(self, known: SpooledEntry) -> bytes:
        """The tail of the frame in which an entry goes to a client. Raises `OSError`."""
        try:
            return os.pread(known.file.file.fileno(), known.size, known.first)
        finally:
            self.drop(known)

    def drop(self, known: SpooledEntry) -> None:
        """A delivery no longer waits for an entry."""
        known.waits -= 1
        known.file.waits -= 1
        if not known.file.waits:
            self._close(known.file)

    def _write(self, data: bytes) -> SpooledEntry:
        file = self._last
        if file is None or file.end >= self._file_bytes:
            file = self._last = _File()
            self._files[file] = None
        written = 0
        try:
            while written < len(data):  # the last bytes of a disk may take a part
                written += os.pwrite(file.file.fileno(), data[written:], file.end + written)
        except OSError:
            if not file.waits:
                self._close(file)
            raise
        found = SpooledEntry(file, len(data))
        file.end += len(data)
        self.size += len(data)
        return found

    def _remember(self, payload: bytes, metadata: MessageMetadata, found: SpooledEntry) -> None:
        former = self._recent.pop(payload, None)
        if former is not None:
            self._recent_bytes -= former[1].size + _KEPT
        self._recent[payload] = metadata, found
        self._recent_bytes += found.size + _KEPT
        while self._recent_bytes > _RECENT_BYTES:
            self._recent_bytes -= self._recent.pop(next(iter(self._recent)))[1].size + _KEPT

    def _close(self, file: _File) -> None:
        del self._files[file]
        self.size -= file.end
        if file is self._last:
            self._last = None
        if not self._files:
            self._recent.clear()
            self._recent_bytes = 0
        with suppress(OSError):  # the disk is full, and what is left is not wanted
            file.file.close()
