"""The bit set of a batch: bit i = message i, 1 = still unacknowledged (batching.md §3).

On the wire it is a list of signed 64-bit words, in the state little-endian bytes, in computations an integer.
"""

_WORD = 1 << 64


def from_words(words: list[int]) -> int:
    """The wire's words as an integer."""
    return sum((word % _WORD) << 64 * index for index, word in enumerate(words))


def to_words(bits: int) -> list[int]:
    """The wire's words; trailing zero words are absent."""
    words = []
    while bits:
        word = bits % _WORD
        words.append(word - _WORD if word >> 63 else word)
        bits >>= 64
    return words


def to_bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def to_bits(stored: bytes) -> int:
    return int.from_bytes(stored, "little")


def first_unacked(bits: int) -> int:
    """Index of the first unacknowledged message; −1 when there is none."""
    return (bits & -bits).bit_length() - 1
