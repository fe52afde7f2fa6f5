"""The bit set of a batch: bit i = message i, 1 = still unacknowledged (docs/rules/batching.md §5).

It is a list of signed 64-bit words on the wire, little-endian bytes in the state, and an integer in computations.
"""

_WORD = 8
"""Bytes of a word."""

_UNSIGNED = 1 << 64


def from_words(words: list[int]) -> int:
    """An integer from words on the wire."""
    if not words:
        return 0
    return int.from_bytes(
        b"".join([(word % _UNSIGNED).to_bytes(_WORD, "little") for word in words]), "little"
    )


def to_words(bits: int) -> list[int]:
    """Words for the wire, without trailing zero words."""
    stored = bits.to_bytes(-(-bits.bit_length() // 64) * _WORD, "little")
    return [
        int.from_bytes(stored[at : at + _WORD], "little", signed=True) for at in range(0, len(stored), _WORD)
    ]


def to_bytes(bits: int) -> bytes:
    """The bits as little-endian bytes, without zero bytes at the end."""
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def to_bits(stored: bytes) -> int:
    """The bits that `to_bytes` stored."""
    return int.from_bytes(stored, "little")


def first_unacked(bits: int) -> int:
    """The index of the first unacknowledged message, or −1 if there is none."""
    return (bits & -bits).bit_length() - 1
