"""A query's ingress topic: the same one at every start, or its log would have another past.

Spark knows a topic by its name. One that was deleted, made again and filled beyond the offsets of the checkpoint would be
read on from there, and what comes before never. And with other partitions a topic's commands may come in two of them, each
with a part of its past. Partitions that Kafka deletes while the query runs Spark notices itself. So the store keeps, in ``<store>/ingress.json``, what Kafka said of the topic at the first start.
"""

from __future__ import annotations

import msgspec

from sinks.storage import RESTORE, Damaged, Storage, plain
from streaming.kafka.client import administration
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.topics import ensure_topic
from streaming.kafka.url import KafkaUrl
from streaming.log.partition import PARTITIONS

_FILE = "ingress.json"
_ANEW = "Give the query a new checkpoint and an empty store, or the Kafka that goes with these"


class IngressChanged(RuntimeError):
    """The ingress topic isn't the one that the query began with."""


class Ingress(msgspec.Struct, frozen=True):
    """`id` is Kafka's for the topic, another one when it is made again; None if this Kafka has no such ids."""

    topic: str
    id: str | None
    partitions: int


def ensure_ingress(
    url: KafkaUrl, store: str, partitions: int = PARTITIONS, config: KafkaConfig = PLAIN
) -> int:
    """As `ensure_topic` when a store is new; then the topic must stay as it is. Gives its partitions.

    Raises `IngressChanged`, `KafkaUnreachable`, and `Damaged` and `NotStored` of the store.
    """
    storage = Storage(store)
    before = _read(storage)
    if before is None:
        ensure_topic(url, partitions, config)
    elif before.topic != url.topic:
        raise IngressChanged(f"{storage.url} is of topic {before.topic!r}, not {url.topic!r}. {_ANEW}")
    with administration(url, config) as admin:
        (topic,) = admin.describe_topics([url.topic])
    now = Ingress(url.topic, topic["topic_id"], len(topic["partitions"]))
    if before is None:
        storage.publish(_FILE, lambda stream: stream.write(msgspec.json.encode(now)))
    elif not now.partitions:
        raise IngressChanged(f"Kafka at {url.bootstrap} has no topic {url.topic!r} any more. {_ANEW}")
    elif before.id != now.id and before.id is not None:
        raise IngressChanged(
            f"Kafka's topic {url.topic!r} was deleted and made again since this query began. Nothing is skipped silently: "
            "give the query a new checkpoint and an empty store, and it begins with what the topic has"
        )
    elif before.partitions != now.partitions:
        raise IngressChanged(
            f"Kafka's topic {url.topic!r} has {now.partitions} partitions, and had {before.partitions} when this query "
            f"began: a topic's commands may now come in two of them. Copy the log to a new topic (magnetar produce "
            f"kafka://{url.bootstrap}/{url.topic} --ingress kafka://…), for a query with a new checkpoint and an empty store"
        )
    return now.partitions


def _read(storage: Storage) -> Ingress | None:
    if storage.info(_FILE) is None:
        return None
    with storage.open(_FILE) as file:
        try:
            return msgspec.json.decode(file.read(), type=Ingress)
        except msgspec.MsgspecError as error:
            raise Damaged(
                f"{storage.url}/{_FILE} (the ingress topic's id) is damaged: {plain(error)}. {RESTORE}"
            ) from error
