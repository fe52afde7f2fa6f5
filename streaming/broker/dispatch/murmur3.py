"""Murmur3 32-bit as Pulsar uses it: seed 0, the sign bit cleared (Murmur3_32Hash)."""

_MASK = 0xFFFFFFFF


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _MASK


def _mix(block: int) -> int:
    return _rotate(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def murmur3_31(data: bytes) -> int:
    """A hash in [0, 2^31)."""
    state = 0
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        state ^= _mix(int.from_bytes(data[start : start + 4], "little"))
        state = (_rotate(state, 13) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        state ^= _mix(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return (state ^ state >> 16) & 0x7FFFFFFF
