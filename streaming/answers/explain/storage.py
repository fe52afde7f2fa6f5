"""Why a topic's ledgers are still there, and why a quota has not evicted: the core's own predicates on the last state."""

from __future__ import annotations

import pyarrow as pa

from schemas.printable import counted
from streaming.answers.explain import advice
from streaming.answers.history.folders import Folders, NotFound
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.persistent.cleanup.backlog_quota import Quotas
from streaming.broker.persistent.cleanup.trimming import Retention

LEDGERS = pa.schema([
    ("topic", pa.string()), ("ledger", pa.int64()), ("entries", pa.int64()), ("size", pa.int64()),
    ("closed_at", pa.int64()), ("reason", pa.string()), ("text", pa.string()), ("until", pa.int64()),
    ("goes", pa.bool_()),
])  # fmt: skip
"""The columns of `ledgers`: times in ms since the epoch, sizes in bytes. `goes`: deleted by the end of the next check."""

QUOTAS = pa.schema([
    ("topic", pa.string()), ("type", pa.string()), ("policy", pa.string()), ("level", pa.string()),
    ("limit", pa.int64()), ("used", pa.int64()), ("headroom", pa.int64()), ("state", pa.string()),
    ("evicts", pa.bool_()), ("text", pa.string()),
])  # fmt: skip
"""The columns of `quotas`: bytes for destination_storage, ms for message_age."""


def explain_retention(folders: Folders, topic: str) -> Retention:
    """Why each ledger of a topic (its full name) is still there, as of the last state, and what the next check deletes.

    Decodes the topic, and what changes up to the next check. Raises `NotFound`.
    """
    found = folders.copy_of_broker(topic).retention(topic)
    found.to_do = advice.of_retention(found)
    return found


def explain_quotas(folders: Folders, topic: str) -> Quotas:
    """What the backlog quotas of a topic (its full name) say as of the last state, and what the next check evicts.

    Decodes the topic, and what changes up to the next check. Raises `NotFound`.
    """
    found = folders.copy_of_broker(topic).quotas(topic)
    found.to_do = advice.of_quotas(topic, found.quotas, found.slowest)
    return found


def ledgers(found: Retention) -> pa.Table:
    """The ledgers as an Arrow table, columns `LEDGERS`."""
    rows = [
        {name: getattr(each, name) for name in LEDGERS.names[1:-1]}
        | {"topic": found.topic, "goes": each.ledger in found.deletes}
        for each in found.ledgers
    ]
    return pa.Table.from_pylist(rows, LEDGERS)


def quotas(found: Quotas) -> pa.Table:
    """The quotas as an Arrow table, columns `QUOTAS`."""
    rows = [
        {name: getattr(each, name) for name in QUOTAS.names[1:]} | {"topic": found.topic}
        for each in found.quotas
    ]
    return pa.Table.from_pylist(rows, QUOTAS)


def example(folders: Folders, *, by_backlog: bool) -> tuple[str, str]:
    """A topic to show, and why this one: that with the largest backlog, or the largest storage. Raises `NotFound`."""
    sizes = {
        name: size
        for broker in folders.brokers().values()
        for name, size in broker.sizes().items()
        if not is_non_persistent(name)
    }
    if not sizes:
        raise NotFound("there is no topic: there is nothing to explain")
    name = max(sorted(sizes), key=lambda each: sizes[each][not by_backlog])
    backlog, storage = sizes[name]
    return (
        name,
        f"its backlog is the largest ({counted(backlog, 'entry')})"
        if by_backlog
        else f"it stores the most ({counted(storage, 'byte')})",
    )
