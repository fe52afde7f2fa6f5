"""Is the cluster still the one of the log? The last entry of each topic in the log tells: a cluster that was restored from a backup, or another
one, does not have it, or has another one in its place.

A topic has the entries that it had, until it trims its oldest ledgers, or is deleted. So an entry is evidence only if a reader got it, or if
the cluster said that it was confirmed: the entries of an open ledger in `internalStats` count some that may fail. A ledger that is older than all
that are there is none: it was trimmed, or was one of a topic that was deleted and created again, whose ledgers have higher ids.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from streaming.broker.position import from_text
from streaming.mirror.observation import ledgers_of
from streaming.record.stored import Stored

PRODUCER = "magnetar-mirror"
"""The producer of entries that nobody could read."""


class LastEntry(NamedTuple):
    """An entry that a topic of the cluster has had for certain. `sum`: of what tells it from others. None: nobody has read it."""

    ledger: int
    entry: int
    sum: int | None = None


def sum_of_entry(metadata: Mapping[str, Any]) -> int:
    """Of who published an entry, as what, and when: that is the same whatever a log keeps of payloads."""
    told = [metadata.get(each) for each in ("producer_name", "sequence_id", "publish_time")]
    return crc32(msgspec.json.encode(told))


def entry_of(command: Mapping[str, Any]) -> LastEntry | None:
    """The entry that a mirror's SEND is of. None: it stands for one that nobody has read."""
    id_, metadata = command["message_id"], command.get("metadata") or {}
    if metadata.get("producer_name") == PRODUCER:
        return None
    return LastEntry(id_["ledgerId"], id_["entryId"], sum_of_entry(metadata))


def is_replaced(last: LastEntry | None, stored: Stored) -> bool:
    """Whether the cluster has another entry where the last one is, as far as that is known."""
    if last is None or last.sum is None or last[:2] != (stored.ledger, stored.entry):
        return False
    return last.sum != sum_of_entry(stored.metadata)


def confirmed(internal: Mapping[str, Any]) -> LastEntry | None:
    """The last entry that is confirmed. None: the broker does not say, as it forgets it when it loads the topic, or says that it is none of the
    topic's."""
    ledger, entry = from_text(internal["lastConfirmedEntry"])
    entries, _ = ledgers_of(internal).get(ledger, (0, 0))
    return LastEntry(ledger, entry) if 0 <= entry < entries else None


def went_back(last: LastEntry, internal: Mapping[str, Any]) -> str | None:
    """What shows that a topic does not have an entry any more that it can't have lost. None: nothing does."""
    ledgers = ledgers_of(internal)
    if not ledgers or last.ledger < (oldest := min(ledgers)) or oldest < 0:  # which is no ledger
        return None
    if last.ledger not in ledgers:
        if last.ledger > (newest := max(ledgers)):
            return f"its last ledger was {last.ledger}, and is {newest}"
        return f"ledger {last.ledger} is gone, and ledger {oldest} before it is not"
    if (entries := ledgers[last.ledger][0]) <= last.entry:
        return f"ledger {last.ledger} had {last.entry + 1:,} entries or more, and has {entries:,}"
    return None
