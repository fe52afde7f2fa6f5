"""Feeding a command log to Kafka, as clients would: key = topic, the log's timestamps, in log order."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa

from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.failure import explain, failures
from streaming.log.files import LogError, ordered, partition_log, read_log

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, KafkaProducer

T = TypeVar("T")

PARTITIONS = 4
"""Partitions of an ingress topic that is made because it is absent."""

LARGEST = 16 << 20
"""Bytes of the largest record: a Pulsar message may have 5 MiB, a third more in base64."""

_ADDRESS = re.compile(r"(\[[^\]@]+\]|[^:@\[\]]+):\d{1,5}")
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_CHECK_EVERY = 10_000
PATIENCE_MS = 5_000  # for an address at which nothing may be; kafka-python's default is 30 s
_TOPIC_CONFIG = {
    # Records carry the log's own timestamps, which may be years old, and the log is the truth: nothing expires.
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "max.message.bytes": str(LARGEST),
}


Offsets = dict[int, tuple[int, int]]
"""By partition: the first record's offset, and the one after the last."""


class KafkaUrlError(ValueError):
    """A text isn't ``kafka://HOST:PORT[,HOST:PORT…]/TOPIC``."""


class KafkaUnreachable(RuntimeError):
    """No Kafka answers at an address, or it won't have the topic. The text says which and why."""


class NotProduced(RuntimeError):
    """Kafka didn't take a record. What was sent before it is in the topic: continue with a new topic."""


class KafkaUrl(NamedTuple):
    """Where a topic is: `bootstrap` is ``host:port[,host:port…]``."""

    bootstrap: str
    topic: str

    @classmethod
    def parse(cls, url: str) -> KafkaUrl:
        """Raises `KafkaUrlError`."""
        parts = urlsplit(url)
        topic = parts.path.strip("/")
        hosts = parts.netloc.split(",")
        if parts.scheme != "kafka" or not topic or "/" in topic or not all(map(_ADDRESS.fullmatch, hosts)):
            raise KafkaUrlError(f"{url!r}: expected kafka://HOST:PORT/TOPIC")
        if not _TOPIC_NAME.fullmatch(topic):
            raise KafkaUrlError(
                f"{url!r}: a Kafka topic's name has ASCII letters, digits, '.', '_' and '-', 249 at most"
            )
        return cls(parts.netloc, topic)


def ensure_topic(url: KafkaUrl, partitions: int = PARTITIONS, config: KafkaConfig = PLAIN) -> int:
    """Creates the topic, for records of any age and up to 16 MiB, unless it is there. Gives its partitions.

    Raises `KafkaUnreachable`.
    """
    from kafka.errors import TopicAlreadyExistsError

    with administration(url, config) as admin:
        if url.topic not in admin.list_topics():
            spec = {"num_partitions": partitions, "replication_factor": -1, "configs": _TOPIC_CONFIG}
            with suppress(TopicAlreadyExistsError):  # somebody was quicker
                admin.create_topics({url.topic: spec}, wait_for_metadata=True)
        (topic,) = admin.describe_topics([url.topic])
        return len(topic["partitions"])


def records_within(url: KafkaUrl, size: int, config: KafkaConfig = PLAIN) -> int | None:
    """How many of the topic's records take `size` bytes on average, as Kafka stores them; at least 1.

    None: it has none yet, or Kafka doesn't tell sizes to this user. Raises `KafkaUnreachable`.
    """
    with administration(url, config) as admin:
        records = sum(end - first for first, end in topic_offsets(admin, url.topic).values())
        sizes: dict[int, int] = {}  # of a partition's largest copy
        for broker in admin.describe_log_dirs([url.topic]):
            for own in (own for folder in broker["log_dirs"] for own in folder["topics"]):
                for part in own["partitions"]:
                    index = part["partition_index"]
                    sizes[index] = max(sizes.get(index, 0), part["partition_size"])
    stored = sum(sizes.values())
    return max(1, records * size // stored) if records and stored else None


def connect(client: Callable[..., T], url: KafkaUrl, config: KafkaConfig, **settings: Any) -> T:
    """A client of one of kafka-python's classes. Raises `KafkaUnreachable` when nothing answers in `PATIENCE_MS`."""
    from kafka.errors import KafkaError

    credentials = config.client()
    with failures() as said:
        try:
            return client(
                bootstrap_servers=url.bootstrap.split(","),
                bootstrap_timeout_ms=PATIENCE_MS,
                **settings,
                **credentials,
            )
        except (KafkaError, ValueError) as error:
            raise KafkaUnreachable(explain(said, url.bootstrap, config, PATIENCE_MS // 1000)) from error


def topic_offsets(admin: KafkaAdminClient, topic: str) -> Offsets:
    """What the topic's partitions hold; empty if there is no such topic."""
    from kafka import TopicPartition
    from kafka.admin import OffsetSpec

    (described,) = admin.describe_topics([topic])
    parts = [TopicPartition(topic, int(each["partition_index"])) for each in described["partitions"]]
    first, end = (
        admin.list_partition_offsets(dict.fromkeys(parts, at)) if parts else {}
        for at in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    )
    return {part.partition: (first[part].offset, end[part].offset) for part in parts}


@contextmanager
def administration(url: KafkaUrl, config: KafkaConfig = PLAIN) -> Iterator[KafkaAdminClient]:
    """A client of the Kafka at `url`; what it raises becomes `KafkaUnreachable`."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    admin = connect(KafkaAdminClient, url, config)
    try:
        yield admin
    except KafkaError as error:
        raise KafkaUnreachable(f"Kafka at {url.bootstrap}, topic {url.topic!r}: {error}") from error
    finally:
        admin.close()


def produce(
    log: str | Path | pa.Table,
    ingress: str,
    *,
    partitions: int | None = None,
    config: KafkaConfig = PLAIN,
    paced: bool = False,
    progress: Callable[[int, int], None] | None = None,
    stop: threading.Event | None = None,
) -> int:
    """Sends the records of `log` to the topic `ingress` (``kafka://…``) and gives their number.

    Records whose timestamp is 0, as in a log without timestamps, get the time at which they are sent.

    Args:
        partitions: of the topic, if it is made now. A log without partitions is spread over those that the topic has
            by crc32 of the record's topic, see `streaming.log.files`; one with partitions keeps them.
        config: credentials, see `streaming.kafka.config`.
        paced: in real time, by the timestamps' distances, rather than at once.
        progress: called now and then: records sent, records in all.
        stop: when set, stops after the record at hand.

    Raises:
        LogError, FileNotFoundError, KafkaUrlError, KafkaConfigError: what was asked makes no sense.
        KafkaUnreachable: no Kafka there.
        NotProduced: a record was refused.
    """
    from kafka import KafkaProducer

    url = KafkaUrl.parse(ingress)
    table = log if isinstance(log, pa.Table) else read_log(log)
    own = "partition" in table.column_names
    least = max(table["partition"].to_pylist(), default=0) + 1 if own else 1
    count = ensure_topic(url, partitions or max(PARTITIONS, least), config)
    if partitions is not None and count != partitions:
        raise LogError(f"topic {url.topic} has {count} partitions, not {partitions}: name another topic")
    if own and least > count:
        raise LogError(
            f"the log has {least} partitions, topic {url.topic} has {count}: name a topic with as many"
        )
    records = ordered(table) if own else partition_log(table, count)
    producer = KafkaProducer(
        bootstrap_servers=url.bootstrap.split(","),
        linger_ms=0 if paced else 50,
        batch_size=1 << 18,
        max_request_size=LARGEST,
        allow_auto_create_topics=False,
        **config.client(),
    )
    try:
        return _send(producer, url.topic, records, paced, progress or _silent, stop or threading.Event())
    finally:
        producer.close()


def _send(
    producer: KafkaProducer,
    topic: str,
    records: pa.Table,
    paced: bool,
    progress: Callable[[int, int], None],
    stop: threading.Event,
) -> int:
    sent, now = 0, _now()
    total = len(records)
    pending: list[Any] = []
    start: tuple[float, int] | None = None
    for batch in records.to_batches(max_chunksize=_CHECK_EVERY):
        columns = [batch.column(name).to_pylist() for name in ("partition", "timestamp", "topic", "value")]
        for partition, timestamp, key, value in zip(*columns, strict=True):
            if timestamp < 0:
                raise LogError(f"timestamp {timestamp}: Kafka has none before 1970")
            if paced:
                start = start or (time.monotonic(), timestamp)
                stop.wait(max(0.0, start[0] + (timestamp - start[1]) / 1000 - time.monotonic()))
            if stop.is_set():
                break
            if key is not None or partition == 0:  # the copies of a record for all partitions have one time
                now = _now()
            pending.append(
                producer.send(
                    topic,
                    value,
                    key=None if key is None else key.encode(),
                    partition=partition,
                    # 0: the log names no time. As a time it would start a broker's clock in 1970.
                    timestamp_ms=timestamp or now,
                )
            )
            sent += 1
            if paced or len(pending) >= _CHECK_EVERY:
                _check(pending, wait=False)
                progress(sent, total)
        if stop.is_set():
            break
    producer.flush()
    _check(pending, wait=True)
    progress(sent, total)
    return sent


def _check(pending: list[Any], *, wait: bool) -> None:
    """Forgets what Kafka confirmed. Futures come true in order, nearly."""
    for future in pending:
        if future.is_done and future.failed():
            raise NotProduced(f"{type(future.exception).__name__}: {future.exception}")
    pending[:] = [future for future in pending if not future.is_done]
    if wait and pending:
        raise NotProduced(f"{len(pending)} records are still unconfirmed")


def _now() -> int:
    return time.time_ns() // 1_000_000


def _silent(sent: int, total: int) -> None:
    pass
