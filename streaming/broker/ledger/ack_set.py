"""The bit set of a batch: bit i = message i, 1 = still unacknowledged (batching.md §3).

It is a list of signed 64-bit words on the wire, little-endian bytes in the state, and an integer in computations.
"""

_WORD = 1 << 64


def from_words(words: list[int]) -> int:
    """An integer from words on the wire."""
    return sum((word % _WORD) << 64 * index for index, word in enumerate(words))


def to_words(bits: int) -> list[int]:
    """Words for the wire, without trailing zero words."""
    words = []
    while bits:
        word = bits % _WORD
        words.append(word - _WORD if word >> 63 else word)
        bits >>= 64
    return words


def to_bytes(bits: int) -> bytes:
    """The bits as little-endian bytes, without zero bytes at the end."""
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def to_bits(stored: bytes) -> int:
    """The bits that `to_bytes` stored."""
    return int.from_bytes(stored, "little")


def first_unacked(bits: int) -> int:
    """The index of the first unacknowledged message, or −1 if there is none."""
    return (bits & -bits).bit_length() - 1
