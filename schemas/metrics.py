"""The figures of topics that a metrics endpoint shows, as they travel from where a partition is folded to the driver.

Names are those of Pulsar's stats where it has one. Rates are per second and belong to an interval, so each comes twice: as it
is until `TopicMetrics.rates_until`, and as it is during the interval after that if nothing happens. Then it is 0.
"""

import msgspec


class SubscriptionMetrics(msgspec.Struct, array_like=True):
    """A subscription: backlogs in entries, sizes in bytes, `expired` and `evicted` in entries, all others in messages.

    `rates`: those of `SUBSCRIPTION_RATES`.
    """

    name: str
    consumers: int
    backlog: int
    backlog_no_delayed: int
    delayed: int
    backlog_size: int
    unacked: int
    blocked: bool
    messages_out: int
    bytes_out: int
    expired: int
    evicted: int
    rates: tuple[float, ...]
    next_rates: tuple[float, ...]


SUBSCRIPTION_RATES = (
    "msgRateOut",
    "msgThroughputOut",
    "messageAckRate",
    "msgRateRedeliver",
    "msgRateExpired",
    "msgDropRate",
)
"""The rates of a subscription, by Pulsar's names."""

TOPIC_RATES = ("msgRateIn", "msgThroughputIn")
"""The rates of a topic that are not sums over its subscriptions, by Pulsar's names."""


class TopicMetrics(msgspec.Struct, array_like=True):
    """A topic: sizes in bytes, counters in messages, times in ms since the epoch.

    `quota_size` (bytes) and `quota_time` (s): the limits of its backlog; 0 or less: none. `oldest`: the time of the oldest
    unacknowledged message as of the last check of the quotas; None: unknown. `duplicates` and `unknown`: messages that
    deduplication refused. `rates`: those of `TOPIC_RATES`. `publish_limited`: how often a publish rate limited a connection in
    the interval that ends at `publish_limited_until`. `closed_ledgers`: how many of them the topic has.
    """

    name: str
    producers: int
    subscriptions: list[SubscriptionMetrics]
    messages_in: int
    bytes_in: int
    storage_size: int
    backlog_size: int
    duplicates: int
    unknown: int
    quota_size: int
    quota_time: int
    oldest: int | None
    size_evictions: int
    time_evictions: int
    publish_limited: int
    publish_limited_until: int
    rates_until: int
    rates: tuple[float, ...]
    next_rates: tuple[float, ...]
    closed_ledgers: int = 0


class PartitionMetrics(msgspec.Struct, array_like=True):
    """An ingress partition after a micro-batch: the topics that it touched, and the names of those that it deleted.

    `clock` in ms since the epoch, `interval` of the rates in ms. `offset`: the last record's, −1: there was none.
    `state_bytes`: the size of the encoded state. `quarantined`: the records that the micro-batch refused, by rule.
    """

    partition: int
    cluster: str
    clock: int
    offset: int
    interval: int
    state_bytes: int
    topics: list[TopicMetrics]
    deleted: list[str]
    quarantined: dict[str, int]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PartitionMetrics)


def encode(metrics: PartitionMetrics) -> bytes:
    """The figures in MessagePack."""
    return _encoder.encode(metrics)


def decode(data: bytes) -> PartitionMetrics:
    """The figures that `encode` encoded."""
    return _decoder.decode(data)
