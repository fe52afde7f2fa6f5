"""The bundles of a namespace: ranges of the hashes of topic names (mirrors `NamespaceBundles`).

Brokers share topics by bundle. There is one broker here, so bundles only say which topics a call is about.
"""

import re
from binascii import crc32
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from streaming.broker.errors import AdminError
from streaming.broker.policies.hierarchy import Policies

WHOLE = "0x00000000_0xffffffff"
"""The one bundle of a namespace that nobody has split."""

AT_POSITIONS = "specified_positions_divide"
"""The algorithm that splits a bundle where the call says."""

_LAST = 0xFFFFFFFF
_MOST = 1024
_BOUNDARY = re.compile(r"0x[0-9a-fA-F]{1,8}")
_RANGE = re.compile(r"0x([0-9a-fA-F]{8})_0x([0-9a-fA-F]{8})")


def shown(policies: Policies) -> dict[str, Any]:
    """The bundles as Pulsar's `BundlesData`."""
    boundaries = _boundaries(policies)
    return {"boundaries": [_text(each) for each in boundaries], "numBundles": len(boundaries) - 1}


def create(policies: Policies, number: int) -> None:
    """Give a new namespace so many bundles of one size; 0 or less: 1. Raises `AdminError`."""
    if number > _MOST:
        raise AdminError(412, f"at most {_MOST:,} bundles are supported")
    if number > 1:
        policies.kept = {**policies.kept, "bundles": _of_one_size(number)}


def create_with(policies: Policies, boundaries: Sequence[str]) -> None:
    """Give a new namespace the bundles between `boundaries`. Raises `AdminError`."""
    if len(boundaries) > _MOST + 1:
        raise AdminError(412, f"at most {_MOST:,} bundles are supported")
    if not all(_BOUNDARY.fullmatch(each) for each in boundaries):
        raise AdminError(400, "boundaries of bundles are numbers such as 0x80000000")
    found = sorted({int(each, 16) for each in boundaries})
    if found[0] != 0 or found[-1] != _LAST:
        ends = f"first:{_text(found[0])}, last:{_text(found[-1])}"
        raise AdminError(400, f"Input bundles do not cover the whole hash range. {ends}")
    if len(found) > len((0, _LAST)):
        policies.kept = {**policies.kept, "bundles": found}


def check(policies: Policies, namespace: str, bundle: str) -> int:
    """The index of a bundle. Raises `AdminError` if the namespace does not have it."""
    match = _RANGE.fullmatch(bundle)
    if match is None:
        raise AdminError(412, f"Invalid bundle range: {bundle}")
    first, last = (int(each, 16) for each in match.groups())
    boundaries = _boundaries(policies)
    if first not in boundaries[:-1]:
        raise AdminError(412, f"Cannot find bundle {namespace}/{bundle} in the bundles list")
    index = boundaries.index(first)
    if boundaries[index + 1] != last:
        own = f"{namespace}/{_text(first)}_{_text(boundaries[index + 1])}"
        raise AdminError(
            412, f"Invalid upper boundary for bundle {namespace}/{bundle}. Expected upper boundary of {own}"
        )
    return index


def split(policies: Policies, namespace: str, bundle: str, positions: Sequence[int] | None = None) -> None:
    """Split a bundle at the positions inside of it, or in the middle. Raises `AdminError`."""
    index = check(policies, namespace, bundle)
    boundaries = _boundaries(policies)
    first, last = boundaries[index : index + 2]
    at = sorted({(first + last) // 2} if positions is None else {*positions})
    at = [position for position in at if first < position < last]
    if len(boundaries) + len(at) > _MOST + 1 or (positions is None and not at):
        raise AdminError(412, f"the bundle {bundle} can't be split")
    policies.kept = {**policies.kept, "bundles": [*boundaries[: index + 1], *at, *boundaries[index + 1 :]]}


def contains(bundle: str, topic: str) -> bool:
    """Whether a topic, by its full name, is in a bundle. The last one has its upper end, too."""
    match = _RANGE.fullmatch(bundle)
    if match is None:
        return False
    first, last = (int(each, 16) for each in match.groups())
    hash_ = crc32(topic.encode())
    return first <= hash_ < last or hash_ == last == _LAST


def of_topic(topic: str, boundaries: Sequence[str]) -> str:
    """The bundle with a topic, by its full name, among those between `boundaries`."""
    ranges = (f"{first}_{last}" for first, last in pairwise(boundaries))
    return next(bundle for bundle in ranges if contains(bundle, topic))


def boundaries(number: int) -> list[str]:
    """The boundaries of so many bundles of one size, as Pulsar shows them."""
    return [_text(each) for each in _of_one_size(number)]


def _of_one_size(number: int) -> list[int]:
    size = (_LAST + 1) // number
    return [*(index * size for index in range(number)), _LAST]


def _boundaries(policies: Policies) -> list[int]:
    found: list[int] = policies.kept.get("bundles", [0, _LAST])
    return found


def _text(boundary: int) -> str:
    return f"0x{boundary:08x}"
