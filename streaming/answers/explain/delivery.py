"""Why subscriptions get what they get: the core's own verdicts on the last state of a replay or a live query."""

from __future__ import annotations

import msgspec
import pyarrow as pa
from msgspec import UNSET

from streaming.answers.explain import advice
from streaming.answers.history.folders import Folders, NotFound, listed
from streaming.broker.broker import Broker
from streaming.broker.persistent.delivery import Delivery, Show
from streaming.broker.position import from_text


def explain_deliveries(folders: Folders, topic: str, subscription: str | None = None) -> list[Delivery]:
    """What holds back the entries of a subscription, or of all subscriptions of a topic (its full name), as of the last state.

    Decodes the state of one topic, and reads as many entries as dispatching does, and those that analyzeBacklog reads.
    Raises `NotFound`, and `schemas.entries.EntryNotFound` if the store lacks an entry.
    """
    broker = _broker_of(folders, topic, subscription)
    names = sorted(broker.topic(topic).subscriptions) if subscription is None else [subscription]
    found = [broker.delivery(topic, name) for name in names]
    for each in found:
        each.to_do = advice.of_delivery(each)
    return found


def _broker_of(folders: Folders, topic: str, subscription: str | None = None) -> Broker:
    """The broker of the last state that has a topic and a subscription of it. Raises `NotFound`."""
    broker = folders.broker_of(topic)
    if broker is None:
        raise NotFound(f"{topic} was deleted: the last state does not have it")
    names = broker.topic(topic).subscriptions
    if subscription is not None and subscription not in names:
        raise NotFound(
            f"{topic} has no subscription {subscription}: {listed('subscription', subscription, names)}"
        )
    return broker


def verdicts(deliveries: list[Delivery]) -> pa.Table:
    """The verdicts of all deciders as an Arrow table, one row each."""
    text, number = pa.string(), pa.int64()
    types = {"topic": text, "subscription": text, "decider": text, "blocks": pa.bool_(), "text": text, "scope": text,
             "consumer": text, "until": number, "sure": pa.bool_()}  # fmt: skip
    rows = [
        {"topic": each.topic, "subscription": each.subscription, **verdict._asdict()}
        for each in deliveries
        for verdict in each.verdicts
    ]
    return pa.Table.from_pylist(rows, pa.schema(list(types.items())))


def to_json(answer: object) -> str:
    """An answer as JSON: times in ms since the epoch, sizes in bytes."""
    return msgspec.json.format(msgspec.json.encode(builtins(answer)), indent=2).decode()


def builtins(answer: object) -> object:
    """An answer in lists, objects and plain values: named tuples as objects, not as arrays. What is unset is left out."""
    if isinstance(answer, msgspec.Struct) or hasattr(answer, "_asdict"):
        fields = msgspec.structs.asdict(answer) if isinstance(answer, msgspec.Struct) else answer._asdict()
        return {name: builtins(value) for name, value in fields.items() if value is not UNSET}
    if isinstance(answer, list | tuple):
        return [builtins(each) for each in answer]
    return answer


PEEKED = pa.schema([
    ("position", pa.string()), ("state", pa.string()), ("consumer", pa.string()), ("text", pa.string()),
    ("until", pa.int64()), ("producer", pa.string()), ("sequence_id", pa.int64()), ("key", pa.string()),
    ("publish_time", pa.int64()), ("messages", pa.int64()), ("size", pa.int64()),
])  # fmt: skip
"""The columns of `peek`: times in ms since the epoch, the size in bytes as stored."""


def peek(folders: Folders, topic: str, subscription: str, show: Show, most: int) -> pa.Table:
    """The first entries of a subscription, columns `PEEKED`: of its backlog, those that consumers have, those that wait for a
    time, or the acked ones above the mark-delete position. If the topic is sampled, the metadata of the table have `sampled`.

    To find those that consumers have or that wait for a time, it goes through the backlog. Raises `NotFound`.
    """
    broker = _broker_of(folders, topic, subscription)
    rows = []
    for each in broker.peek(topic, subscription, show, most):
        ledger, entry = from_text(each.position)
        (stored,) = folders.store.reader(broker.partition).read(topic, ledger, entry, entry)
        metadata = stored.metadata
        rows.append(
            {
                "position": each.position, "state": each.state, "consumer": each.consumer, "text": each.text,
                "until": each.until, "producer": metadata.producer_name, "sequence_id": metadata.sequence_id,
                "key": metadata.partition_key, "publish_time": metadata.publish_time, "messages": stored.messages,
                "size": stored.size,
            }
        )  # fmt: skip
    found = pa.Table.from_pylist(rows, PEEKED)
    return found.replace_schema_metadata({"sampled": "true"}) if broker.topic(topic).is_sampled else found
