"""Why subscriptions get what they get: the core's own verdicts on the last state of a replay or a live query."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from streaming.answers.folders import Folders, NotFound, listed
from streaming.broker.persistent.delivery import Delivery


def explain_deliveries(folders: Folders, topic: str, subscription: str | None = None) -> list[Delivery]:
    """What holds back the entries of a subscription, or of all subscriptions of a topic (its full name), as of the last state.

    Decodes the state of one topic, and reads as many entries as dispatching does, and those that analyzeBacklog reads.
    Raises `NotFound`, and `schemas.entries.EntryNotFound` if the store lacks an entry.
    """
    broker = folders.broker_of(topic)
    if broker is None:
        raise NotFound(f"{topic} was deleted: the last state does not have it")
    names = sorted(broker.topic(topic).subscriptions)
    if subscription is not None:
        if subscription not in names:
            raise NotFound(
                f"{topic} has no subscription {subscription}: {listed('subscription', subscription, names)}"
            )
        names = [subscription]
    return [broker.delivery(topic, name) for name in names]


def verdicts(deliveries: list[Delivery]) -> pa.Table:
    """The verdicts of all deciders as an Arrow table, one row each."""
    text, number = pa.string(), pa.int64()
    types = {"topic": text, "subscription": text, "decider": text, "blocks": pa.bool_(), "text": text, "scope": text,
             "consumer": text, "until": number}  # fmt: skip
    rows = [
        {"topic": each.topic, "subscription": each.subscription, **verdict._asdict()}
        for each in deliveries
        for verdict in each.verdicts
    ]
    return pa.Table.from_pylist(rows, pa.schema(list(types.items())))


def to_json(answer: object) -> str:
    """An answer as JSON: times in ms since the epoch, sizes in bytes."""
    return msgspec.json.format(msgspec.json.encode(_builtins(answer)), indent=2).decode()


def _builtins(answer: object) -> object:
    """Named tuples as objects, not as arrays."""
    if isinstance(answer, msgspec.Struct):
        return {name: _builtins(getattr(answer, name)) for name in answer.__struct_fields__}
    if hasattr(answer, "_asdict"):
        return {name: _builtins(value) for name, value in answer._asdict().items()}
    if isinstance(answer, list | tuple):
        return [_builtins(each) for each in answer]
    return answer
