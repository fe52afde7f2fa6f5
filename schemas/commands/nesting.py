"""How deep a value nests, found without recursion.

Decoders recurse. How deep they can go depends on the stack of whoever calls them, so the same record could be decoded in
one place and not in another. A fixed bound makes the result depend on the record alone.
"""

import re

DEEPEST = 100
"""The greatest depth of arrays and objects in a value. Decoders manage several times as much on any stack."""

_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
# A string without an end reaches to the end of the value, so that every byte is looked at once.
_STRING_OR_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|([\[\]{}]+)', re.DOTALL)


def is_deep(value: bytes, around: int = 0) -> bool:
    """Whether arrays and objects in a JSON text nest deeper than `DEEPEST`. `around`: how many there are around it. Takes time linear in the
    text's length."""
    if value.count(b"[") + value.count(b"{") + around <= DEEPEST:
        return False
    depth = around
    for found in _STRING_OR_BRACKETS.finditer(value):
        for bracket in found[1] or b"":
            depth += _STEPS[bracket]
            if depth > DEEPEST:
                return True
    return False


def is_deep_binary(value: bytes) -> bool:
    """Whether arrays and maps in a MessagePack value nest deeper than `DEEPEST`. Takes time linear in its length."""
    left: list[int] = []  # the items that each array or map around this place still expects
    at, end = 0, len(value)
    while at < end:
        size, length, per_item = _FORMATS[value[at]]
        items = 0
        if length:
            number = int.from_bytes(value[at + 1 : at + 1 + length], "big")
            size, items = (size, number * per_item) if per_item else (size + number, 0)
        elif per_item:
            items = per_item
        at += size
        if items:
            left.append(items)
            if len(left) > DEEPEST:
                return True
            continue
        while left:
            left[-1] -= 1
            if left[-1]:
                break
            left.pop()
        else:
            return False
    return False


def _format(first: int) -> tuple[int, int, int]:
    """Of a MessagePack format, by its first byte: its fixed size, the bytes of its length field, and how many items
    follow (with a length field: for each unit of it)."""
    if first <= 0x7F or first >= 0xE0 or first in (0xC0, 0xC1, 0xC2, 0xC3):
        return 1, 0, 0
    if first <= 0x8F:
        return 1, 0, 2 * (first & 0x0F)
    if first <= 0x9F:
        return 1, 0, first & 0x0F
    if first <= 0xBF:
        return 1 + (first & 0x1F), 0, 0
    return _FROM_C4[first - 0xC4]


_FROM_C4 = (
    (2, 1, 0), (3, 2, 0), (5, 4, 0),  # bin
    (3, 1, 0), (4, 2, 0), (6, 4, 0),  # ext: its type follows the length
    (5, 0, 0), (9, 0, 0),  # float
    (2, 0, 0), (3, 0, 0), (5, 0, 0), (9, 0, 0), (2, 0, 0), (3, 0, 0), (5, 0, 0), (9, 0, 0),  # uint, int
    (3, 0, 0), (4, 0, 0), (6, 0, 0), (10, 0, 0), (18, 0, 0),  # fixext
    (2, 1, 0), (3, 2, 0), (5, 4, 0),  # str
    (3, 2, 1), (5, 4, 1), (3, 2, 2), (5, 4, 2),  # array, map
)  # fmt: skip
_FORMATS = tuple(map(_format, range(256)))
