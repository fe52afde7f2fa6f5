"""Plain publishes and ACKs in MessagePack, read by column.

Most records of most logs are publishes with a producer, a sequence id, a payload in bytes and perhaps a key, and ACKs of one entry or a part of it.
`schemas.commands.to_binary` gives each of them one layout: a map of these fields in one order. So NumPy finds the fields of thousands of values at
once. To decode each value, check it, and gather the fields of all commands takes four times as long.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_Integers = npt.NDArray[np.int64]

_PRODUCER = b"\xa8producer"
_SEQUENCE_ID = b"\xabsequence_id"
_PAYLOAD = b"\xadpayload_bytes"
_KEY = b"\xa3key"
_FIELDS, _FIELDS_WITH_KEY = 0x83, 0x84

_ACK = b"\xa7command\xa3ACK"
_CONSUMER_ID = b"\xabconsumer_id"
_ACK_TYPE = b"\xa8ack_type"
_INDIVIDUAL, _CUMULATIVE = b"\xaaIndividual", b"\xaaCumulative"
_MESSAGE_ID = b"\xaamessage_id\x91"
_FIELDS_OF_ID, _FIELDS_OF_PART = 0x82, 0x83
_LEDGER_ID = b"\xa8ledgerId"
_ENTRY_ID = b"\xa7entryId"
_ACK_SET = b"\xa7ack_set"
_CONNECTION = b"\xaaconnection"
_FIELDS_OF_ACK = 0x85

_OTHERS = 0.2
"""The share of the values that begin like such a publish, or like an ACK, which may be something else. All of them are looked at."""
_FEWEST = 32
"""Fewer publishes, or fewer ACKs, are not worth it."""
_SAMPLE = 16
_MOST = 1 << 26
"""The bytes of values that are copied to be read. More are few values, whose payloads take the time and the memory."""
_WORD = 8
_PADDING = bytes(3 * _WORD)
"""Behind the last value, so that a field can be looked for wherever the one before it may end."""


class PlainPublishes(NamedTuple):
    """The plain publishes among some values. `rows`: which values they are. `producers`: indices into `names`. `keys`: null where there is none."""

    rows: _Integers
    names: pa.StringArray
    producers: _Integers
    sequence_ids: _Integers
    payloads: pa.BinaryArray
    keys: pa.StringArray


class PlainAcks(NamedTuple):
    """The plain ACKs among some values. `rows`: which values they are. `connections`: indices into `names`. `individual`: of the type
    Individual; the others are Cumulative. `parts`: of a part of a batch."""

    rows: _Integers
    names: pa.StringArray
    connections: _Integers
    consumer_ids: _Integers
    ledgers: _Integers
    entries: _Integers
    individual: npt.NDArray[np.bool_]
    parts: npt.NDArray[np.bool_]


class PlainValues(NamedTuple):
    """What was read of some values. None: too few to be worth it, or they can't be read like this."""

    publishes: PlainPublishes | None = None
    acks: PlainAcks | None = None


class _Number(NamedTuple):
    """How a MessagePack type has its number, by first byte: `size` is the bytes of a number that follows, 0 if the `bits` of the
    first byte are the number, −1 for other types."""

    size: npt.NDArray[np.int64]
    bits: int

    @classmethod
    def of(cls, inline: Sequence[int], bits: int, sizes: dict[int, int]) -> "_Number":
        size = np.full(256, -1)
        size[list(inline)] = 0
        size[list(sizes)] = list(sizes.values())
        return cls(size, bits)


_TEXT = _Number.of(range(0xA0, 0xC0), 0x1F, {0xD9: 1, 0xDA: 2, 0xDB: 4})
_UNSIGNED = _Number.of(range(0x80), 0x7F, {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8})
_BINARY = _Number.of(range(0), 0, {0xC4: 1, 0xC5: 2, 0xC6: 4})
_FEW_ITEMS = _Number.of(range(0x90, 0xA0), 0x0F, {})
_WORDS = _Number.of(
    [*range(0x80), *range(0xE0, 0x100)],
    0xFF,
    {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8},
)
"""Of which only matters whether they are 0."""
_INT64 = 0xD3


def plain_values(values: Sequence[bytes], *, with_acks: bool) -> PlainValues:
    """Those of `values` that have one of these layouts. `with_acks`: look for ACKs, too."""
    sample = values[:: len(values) // _SAMPLE + 1]
    wanted = (_PRODUCER, _ACK) if with_acks else (_PRODUCER,)
    if not any(value.startswith(wanted, 1) for value in sample) or sum(map(len, values)) > _MOST:
        return PlainValues()
    data = b"".join([*values, _PADDING])
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    ends = np.cumsum(lengths)
    every = _Finder(data, ends - lengths, ends)
    publishes = every.candidates(_PRODUCER)
    acks = every.candidates(_ACK) if with_acks else publishes[:0]
    return PlainValues(
        _plain_publishes(publishes, every.of(publishes), data) if len(publishes) >= _FEWEST else None,
        _plain_acks(acks, every.of(acks), data) if len(acks) >= _FEWEST else None,
    )


def _plain_publishes(candidates: _Integers, found: "_Finder", data: bytes) -> PlainPublishes | None:
    keyed = found.head(_FIELDS, _FIELDS_WITH_KEY)
    found.constant(_PRODUCER)
    names = found.content(found.number(_TEXT))
    found.constant(_SEQUENCE_ID)
    ids = found.number(_UNSIGNED)
    found.constant(_PAYLOAD)
    payloads = found.content(found.number(_BINARY))
    keys = payloads[1].copy(), payloads[1].copy()  # empty, where there is none
    if len(with_key := np.flatnonzero(keyed)):
        rest = found.of(with_key)
        rest.constant(_KEY)
        keys[0][with_key], keys[1][with_key] = rest.content(rest.number(_TEXT))
        found.put_back(with_key, rest)
    found.end()
    if (own := _worth_it(found)) is None:
        return None
    producers, contents, texts = _contents(data, own, names, payloads, keys)
    known = producers.dictionary_encode()
    try:
        named = known.dictionary.cast(pa.string())
        given = (
            texts.filter(pa.array(keyed[own])).cast(pa.string())
            if len(with_key)
            else pa.nulls(0, pa.string())
        )
    except pa.ArrowInvalid:  # not UTF-8
        return None
    place = np.cumsum(keyed[own]) - 1
    return PlainPublishes(
        candidates[own], named, known.indices.to_numpy().astype(np.int64), ids[own].astype(np.int64), contents,
        given.take(pa.array(place, mask=~keyed[own])),
    )  # fmt: skip


def _plain_acks(candidates: _Integers, found: "_Finder", data: bytes) -> PlainAcks | None:
    found.head(_FIELDS_OF_ACK)
    found.constant(_ACK)
    found.constant(_CONSUMER_ID)
    consumers = found.number(_UNSIGNED)
    found.constant(_ACK_TYPE)
    individual = found.one_of(_INDIVIDUAL, _CUMULATIVE)
    found.constant(_MESSAGE_ID)
    sets = found.head(_FIELDS_OF_ID, _FIELDS_OF_PART)
    found.constant(_LEDGER_ID)
    ledgers = found.number(_UNSIGNED)
    found.constant(_ENTRY_ID)
    entries = found.number(_UNSIGNED)
    parts = np.zeros(len(sets), bool)
    if len(with_set := np.flatnonzero(sets)):
        rest = found.of(with_set)
        parts[with_set] = _ack_sets(rest)
        found.put_back(with_set, rest)
    found.constant(_CONNECTION)
    connections = found.content(found.number(_TEXT))
    found.end()
    if (own := _worth_it(found)) is None:
        return None
    (named,) = _contents(data, own, connections)
    known = named.dictionary_encode()
    try:
        names = known.dictionary.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8
        return None
    numbers = [column[own].astype(np.int64) for column in (consumers, ledgers, entries)]
    return PlainAcks(
        candidates[own],
        names,
        known.indices.to_numpy().astype(np.int64),
        numbers[0],
        numbers[1],
        numbers[2],
        individual[own],
        parts[own],
    )


def _ack_sets(found: "_Finder") -> npt.NDArray[np.bool_]:
    """Each has an ack set here. Returns which of them have any bit, as `from_words` would find."""
    found.constant(_ACK_SET)
    left = found.number(_FEW_ITEMS)
    parts = np.zeros(len(left), bool)
    while len(more := np.flatnonzero(found.fits & (left > 0))):
        rest = found.of(more)
        parts[more] |= rest.number(_WORDS) != 0
        found.put_back(more, rest)
        left[more] -= np.uint64(1)
    return parts


def _worth_it(found: "_Finder") -> _Integers | None:
    """Which values were what was looked for. None: too few of them."""
    own = np.flatnonzero(found.fits)
    return own if len(own) and len(found.fits) - len(own) <= _OTHERS * len(found.fits) else None


def _contents(data: bytes, own: _Integers, *bounds: tuple[_Integers, _Integers]) -> list[pa.BinaryArray]:
    """What is between the `bounds` of each of the values `own`. Each begins where the one before it ends, or behind that."""
    width = 2 * len(bounds)
    columns = [edge[own] for pair in bounds for edge in pair]
    offsets = np.stack(columns, axis=1).astype(np.int32)
    # Between these are the other fields, and other values.
    fields = pa.Array.from_buffers(
        pa.binary(), offsets.size - 1, [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(data)]
    )
    starts = np.arange(0, offsets.size, width)
    return [fields.take(pa.array(starts + at)) for at in range(0, width, 2)]


class _Finder:
    """Goes through some values at once. `fits`: those that have had what was looked for, so far. What it finds in others means nothing."""

    def __init__(self, data: bytes, starts: _Integers, ends: _Integers) -> None:
        """`data`: values, and `_PADDING`. `starts`, `ends`: of those to go through."""
        self._data, self._at, self._ends = data, starts, ends
        self._bytes = np.frombuffer(data, np.uint8)
        words = len(data) - _WORD + 1
        self._words: npt.NDArray[Any] = np.ndarray(words, "<u8", data, strides=(1,))
        self._numbers: npt.NDArray[Any] = np.ndarray(words, ">u8", data, strides=(1,))
        self.fits = np.ones(len(starts), bool)

    def of(self, rows: _Integers) -> "_Finder":
        """One that goes on with some of the values."""
        found = _Finder(self._data, self._at[rows], self._ends[rows])
        found.fits = self.fits[rows]
        return found

    def put_back(self, rows: _Integers, found: "_Finder") -> None:
        """Take over how far another one came with some of the values."""
        self._at = self._at.copy()  # who asked for bounds has the one before
        self._at[rows], self.fits[rows] = found._at, found.fits

    def candidates(self, text: bytes) -> _Integers:
        """The values that have `text`, of 8 to 16 bytes, after their first byte."""
        at = self._at + 1
        return np.flatnonzero(self._are(text, at) & (at + len(text) <= self._ends))

    def head(self, byte: int, other: int | None = None) -> npt.NDArray[np.bool_]:
        """Each has `byte` here, or the `other`. Returns which have the other."""
        found = self._bytes[self._at]
        others: npt.NDArray[np.bool_] = found == (byte if other is None else other)
        self.fits &= (found == byte) | others
        self._go(1)
        return others

    def constant(self, text: bytes) -> None:
        """Each has `text`, of 4 to 16 bytes, here."""
        self.fits &= self._are(text, self._at)
        self._go(len(text))

    def one_of(self, text: bytes, other: bytes) -> npt.NDArray[np.bool_]:
        """Each has one of two texts, equally long, here. Returns which have the first."""
        found = self._are(text, self._at)
        self.fits &= found | self._are(other, self._at)
        self._go(len(text))
        return found

    def _are(self, text: bytes, at: _Integers) -> npt.NDArray[np.bool_]:
        if len(text) < _WORD:
            bits = 8 * len(text)
            short: npt.NDArray[np.bool_] = (self._words[at] & np.uint64((1 << bits) - 1)) == int.from_bytes(
                text, "little"
            )
            return short
        found = np.ones(len(at), bool)
        for start in (0, len(text) - _WORD):
            found &= self._words[at + start] == int.from_bytes(text[start : start + _WORD], "little")
        return found

    def number(self, kind: _Number) -> npt.NDArray[np.uint64]:
        """Each has a number, from −2^63 to below 2^63, here."""
        tag = self._bytes[self._at]
        size = kind.size[tag]
        bits = (_WORD * (_WORD - size)).astype(np.uint64)
        numbers: npt.NDArray[np.uint64] = self._numbers[self._at + 1] >> bits
        numbers = np.where(size > 0, numbers, tag & np.uint8(kind.bits))
        self.fits &= (size >= 0) & ((numbers < 1 << 63) | (tag == _INT64))
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
