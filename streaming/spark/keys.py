"""Spreads ingress partitions evenly over shuffle partitions.

Spark sends a key to shuffle partition ``hash(key) mod n``. With n = 2, three of the ingress partitions 0 to 3 would land in
one task, and both of 0 and 1, which leaves a core idle. So the key is (ingress partition, slot). The slot is chosen so
that the hash of the key lands in ``partition mod n``. It must not depend on n, which the checkpoint keeps and the
configuration may change. So it makes the hash congruent to the partition modulo 240, which works for every n that divides
240 (1 to 6, 8, 10, 12, 15, 16, 20 and so on). For other n, the hash decides.

The slots are part of the key of the state. Do not change anything here, or old checkpoints lose their state.
"""

from functools import cache
from typing import Any

import numpy as np

MODULUS = 240
BALANCED = 1024
"""Ingress partitions with this number or higher have slot 0."""

_Ints = np.ndarray[Any, np.dtype[np.int32]]
_CANDIDATES = np.arange(4096)
_Words = np.ndarray[Any, np.dtype[np.uint32]]


@cache
def slot(partition: int) -> int:
    """The slot of an ingress partition."""
    if partition >= BALANCED:
        return 0
    return int(np.argmax(spark_hash(partition, _CANDIDATES) % MODULUS == partition % MODULUS))


def spark_hash(partition: int, slots: "np.ndarray[Any, Any]") -> _Ints:
    """Spark's ``hash(partition, slot)`` of two ints: Murmur3 with seed 42, then with the first hash as the seed."""
    with np.errstate(over="ignore"):
        seed = _murmur3(np.array([partition], np.uint32), np.array([42], np.uint32))
        return _murmur3(slots.astype(np.uint32), seed).astype(np.int32)


def _murmur3(word: _Words, seed: _Words) -> _Words:
    u = np.uint32
    word = _rotate(word * u(0xCC9E2D51), 15) * u(0x1B873593)
    hash_ = _rotate(seed ^ word, 13) * u(5) + u(0xE6546B64)
    hash_ = hash_ ^ u(4)  # the length in bytes
    hash_ = (hash_ ^ (hash_ >> u(16))) * u(0x85EBCA6B)
    hash_ = (hash_ ^ (hash_ >> u(13))) * u(0xC2B2AE35)
    return hash_ ^ (hash_ >> u(16))


def _rotate(word: _Words, bits: int) -> _Words:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))
