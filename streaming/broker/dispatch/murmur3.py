"""Murmur3 32-bit as Pulsar uses it (Murmur3_32Hash)."""

import mmh3


def murmur3_31(data: bytes) -> int:
    """A hash in [0, 2^31), with seed 0 and the sign bit cleared."""
    return mmh3.hash(data) & 0x7FFFFFFF
