"""The outcome of a log by topic. Two partitionings of the same log must agree on it."""

from collections import defaultdict
from typing import Any

from schemas.effects import KINDS, Tick
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from tests.e2e.outcome import Outcome

PLACE = ("partition", "offset", "ordinal")


def by_topic(outcome: Outcome) -> dict[str, dict[str, list[Any]]]:
    """The rows of each kind, the entries and the state of each topic. Responses without a topic differ per partition."""
    found: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    tables = {kind: table for kind, table in outcome.tables.items() if kind != KINDS[Tick]}
    for kind, table in {**tables, "entries": outcome.entries, "quarantine": outcome.quarantine}.items():
        for row in table.to_pylist():
            if row["topic"] is not None:
                kept = {name: value for name, value in row.items() if name not in PLACE}
                found[row["topic"]][kind].append(kept)
    for each in outcome.states:
        broker = Broker.decode(each.broker, NoEntries())
        for name, topic in broker.topics().items():
            found[name]["state"] = [
                topic,
                broker.clock,
                broker._ctx.config,
                broker._ctx.namespaces,
            ]
    return {topic: dict(kinds) for topic, kinds in found.items()}
