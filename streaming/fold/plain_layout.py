"""Plain publishes in MessagePack, read by column.

Most records of most logs are publishes with a producer, a sequence id and a payload in bytes. `schemas.commands.to_binary`
gives them one layout: a map of these three fields in this order. So NumPy finds the fields of thousands of values at once.
To decode each value, check it, and gather the fields of all commands takes four times as long.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_Integers = npt.NDArray[np.int64]

_PRODUCER = b"\x83\xa8producer"
_SEQUENCE_ID = b"\xabsequence_id"
_PAYLOAD = b"\xadpayload_bytes"
_OTHERS = 0.2
"""The share of values that may be something else. All are looked at."""
_MOST = 1 << 26
"""The bytes of values that are copied to be read. More are few values, whose payloads take the time and the memory."""
_WORD = 8
_PADDING = bytes(2 * _WORD)
"""Behind the last value, so that a field can be looked for wherever the one before it may end."""


class PlainPublishes(NamedTuple):
    """The plain publishes among some values. `rows`: which values they are. `producers`: indices into `names`."""

    rows: _Integers
    names: pa.StringArray
    producers: _Integers
    sequence_ids: _Integers
    payloads: pa.BinaryArray


class _Number(NamedTuple):
    """How a MessagePack type has its number, by first byte: `size` is the bytes of a number that follows, 0 if the `bits` of the
    first byte are the number, −1 for other types."""

    size: npt.NDArray[np.int64]
    bits: int

    @classmethod
    def of(cls, inline: range, bits: int, sizes: dict[int, int]) -> "_Number":
        size = np.full(256, -1)
        size[list(inline)] = 0
        size[list(sizes)] = list(sizes.values())
        return cls(size, bits)


_TEXT = _Number.of(range(0xA0, 0xC0), 0x1F, {0xD9: 1, 0xDA: 2, 0xDB: 4})
_UNSIGNED = _Number.of(range(0x80), 0x7F, {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8})
_BINARY = _Number.of(range(0), 0, {0xC4: 1, 0xC5: 2, 0xC6: 4})


def plain_publishes(values: Sequence[bytes]) -> PlainPublishes | None:
    """Those of `values`, of which there is at least one, that have this layout. None: they are too few to be worth it, or they
    can't be read like this."""
    if not values[len(values) // 2].startswith(_PRODUCER):  # nor will most others
        return None
    if sum(map(len, values)) > _MOST:
        return None
    data = b"".join([*values, _PADDING])
    found = _Finder(data, values)
    found.constant(_PRODUCER)
    names = found.content(found.number(_TEXT))
    found.constant(_SEQUENCE_ID)
    ids = found.number(_UNSIGNED)
    found.constant(_PAYLOAD)
    payloads = found.content(found.number(_BINARY))
    found.end()
    rows = np.flatnonzero(found.fits)
    if len(values) - len(rows) > _OTHERS * len(values):
        return None
    bounds = np.stack((*names, *payloads), axis=1)[rows].astype(np.int32)
    # Between these are the other fields, and other values.
    fields = pa.Array.from_buffers(
        pa.binary(), bounds.size - 1, [None, pa.py_buffer(np.ascontiguousarray(bounds)), pa.py_buffer(data)]
    )
    field = np.arange(0, bounds.size, 4)
    known = fields.take(pa.array(field)).dictionary_encode()
    try:
        texts = known.dictionary.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8
        return None
    producers = known.indices.to_numpy().astype(np.int64)
    return PlainPublishes(
        rows, texts, producers, ids[rows].astype(np.int64), fields.take(pa.array(field + 2))
    )


class _Finder:
    """Goes through all values at once. `fits`: those that have had what was looked for, so far. What it finds in others means
    nothing."""

    def __init__(self, data: bytes, values: Sequence[bytes]) -> None:
        """`data`: the values and `_PADDING`."""
        self._bytes = np.frombuffer(data, np.uint8)
        words = len(data) - _WORD + 1
        self._words: npt.NDArray[Any] = np.ndarray(words, "<u8", data, strides=(1,))
        self._numbers: npt.NDArray[Any] = np.ndarray(words, ">u8", data, strides=(1,))
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        self._ends = np.cumsum(lengths)
        self._at = self._ends - lengths
        self.fits = np.ones(len(values), bool)

    def constant(self, text: bytes) -> None:
        """Each has `text`, of 8 to 16 bytes, here."""
        for start in (0, len(text) - _WORD):
            word = int.from_bytes(text[start : start + _WORD], "little")
            self.fits &= self._words[self._at + start] == word
        self._go(len(text))

    def number(self, kind: _Number) -> npt.NDArray[np.uint64]:
        """Each has a number, below 2^63, here."""
        tag = self._bytes[self._at]
        size = kind.size[tag]
        bits = (_WORD * (_WORD - size)).astype(np.uint64)
        numbers: npt.NDArray[np.uint64] = self._numbers[self._at + 1] >> bits
        numbers = np.where(size > 0, numbers, tag & np.uint8(kind.bits))
        self.fits &= (size >= 0) & (numbers < 1 << 63)
        self._go(1 + np.maximum(size, 0))
        return numbers

    def content(self, sizes: npt.NDArray[np.uint64]) -> tuple[_Integers, _Integers]:
        """Each has so many bytes here. Returns where they begin and end."""
        begin = self._at
        self._go(np.minimum(sizes, len(self._bytes)).astype(np.int64))
        return begin, self._at

    def end(self) -> None:
        """Each ends here."""
        self.fits &= self._at == self._ends

    def _go(self, size: int | _Integers) -> None:
        self._at = self._at + size
        self.fits &= self._at <= self._ends
        # A value that doesn't fit stays where it can be looked at.
        self._at = np.minimum(self._at, self._ends)
