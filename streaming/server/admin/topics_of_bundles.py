"""What topics say about the bundles of their namespace (mirrors `NamespaceService` and the algorithms by which it splits bundles). A
broker of an ingress partition does not know the other ones' topics."""

from binascii import crc32
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from streaming.broker import bundles
from streaming.server.clients import Json

LARGEST = "LARGEST"
"""In place of a bundle to be split: the one with the most topics."""


def positions(topics: Iterable[str], asked: Sequence[str] = ()) -> Json:
    """The hashes of topics, by name. `asked`: only of those."""
    return {topic: crc32(topic.encode()) for topic in topics if not asked or topic in asked}


def largest(topics: Sequence[str], boundaries: Sequence[str]) -> str:
    """The bundle with the most topics."""
    found = [f"{first}_{last}" for first, last in pairwise(boundaries)]
    return max(found, key=lambda bundle: sum(bundles.contains(bundle, topic) for topic in topics))


def are_positions(given: Any) -> bool:
    """Is it a list of positions at which to split a bundle?"""
    return isinstance(given, list) and bool(given) and all(type(each) is int for each in given)


def split_at(topics: Iterable[str], algorithm: str, given: Any) -> list[int]:
    """Where an algorithm splits a bundle with these topics; nowhere if it has fewer than two. `given`: the positions that the call has."""
    hashes = sorted(positions(topics).values())
    if len(hashes) < 2 or algorithm == "flow_or_qps_equally_divide":  # no bundle has the load for that one
        return []
    if algorithm == bundles.AT_POSITIONS:
        return sorted(given)
    middle = max(len(hashes) // 2 - 1, 0)
    return [(hashes[middle] + hashes[middle + 1]) // 2]
