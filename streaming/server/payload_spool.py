"""Payloads that wait for a client to read, in a temporary file instead of memory."""

import tempfile
from contextlib import suppress
from typing import IO


class PayloadSpool:
    """A queue of payloads. Methods raise `OSError`."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._read = self._end = 0

    @property
    def size(self) -> int:
        """The bytes in the file."""
        return self._end

    def put(self, payload: bytes) -> None:
        """Append a payload."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="magnetar-payloads-")  # noqa: SIM115
        self._file.seek(self._end)
        self._file.write(payload)
        self._end += len(payload)

    def take(self, size: int) -> bytes:
        """The first payload, which has `size` bytes. With the last one, the file goes."""
        assert self._file is not None
        self._file.seek(self._read)
        payload = self._file.read(size)
        self._read += size
        if self._read == self._end:
            self.close()
        return payload

    def close(self) -> None:
        """Drop what is left."""
        if self._file is not None:
            with suppress(OSError):  # the disk is full, and what is left is not wanted
                self._file.close()
            self._file, self._read, self._end = None, 0, 0
