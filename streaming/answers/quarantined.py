"""What an answer says about records that were quarantined, which it leaves out."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from schemas.printable import counted


class QuarantineKey(NamedTuple):
    """Why a record is quarantined, and whether it is about a topic. One that is not may be in each ingress partition."""

    rule: str
    has_topic: bool


def in_all(parts: Iterable[Mapping[QuarantineKey, int]]) -> dict[str, int]:
    """How many records were quarantined by each rule, of those in each ingress partition."""
    of_topics, of_none = Counter[str](), Counter[str]()
    for part in parts:
        for (rule, has_topic), count in part.items():
            if has_topic:
                of_topics[rule] += count
            else:
                of_none[rule] = max(of_none[rule], count)
    return dict(sorted((of_topics + of_none).items()))


def quarantine_note(found: Mapping[str, int]) -> list[str]:
    """A sentence for each rule."""
    return [
        f"{counted(count, 'record')} {'was' if count == 1 else 'were'} quarantined by rule '{rule}', and changed nothing. "
        "`magnetar replay` says why."
        for rule, count in found.items()
    ]
