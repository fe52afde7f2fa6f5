"""The figures of topics that a metrics endpoint shows, as they travel from where a partition is folded to the driver.

Names are those of Pulsar's stats where it has one. Rates are per second and belong to an interval, so each comes twice: as it
is until `TopicMetrics.rates_until`, and as it is during the interval after that if nothing happens. Then it is 0.
"""

import msgspec


class ConsumerMetrics(msgspec.Struct, array_like=True):
    """A consumer: `permits` and `unacked` in messages. `rates`: those of `CONSUMER_RATES`."""

    name: str
    consumer_id: int
    permits: int
    unacked: int
    blocked: bool
    rates: tuple[float, ...]
    next_rates: tuple[float, ...]


CONSUMER_RATES = ("msgRateOut", "msgThroughputOut", "messageAckRate", "msgRateRedeliver")
"""The rates of a consumer, by Pulsar's names."""


class DriftMetrics(msgspec.Struct, array_like=True):
    """How much more a shadow topic, or a subscription of it, has than its source, negative if less: the figures and the cause of the
    latest MIRROR_DRIFT row. `cause`: empty if an earlier version, which did not keep it, wrote the state."""

    entries: int
    mark_delete: int
    messages: int
    size: int
    cause: str

    @property
    def differs(self) -> bool:
        """Whether there is any."""
        return bool(self.entries or self.mark_delete or self.messages or self.size)


class SubscriptionMetrics(msgspec.Struct, array_like=True):
    """A subscription: backlogs in entries, sizes in bytes, `expired` and `evicted` in entries, all others in messages.

    `rates`: those of `SUBSCRIPTION_RATES`. `members`: the consumers, if the broker exposes them. `filtered`: the messages that entry
    filters processed, accepted, rejected and rescheduled. `times`: those of `SUBSCRIPTION_TIMES` (ms since the epoch; 0: never).
    `drift`: None if it was not compared with a subscription of a source.
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
    in_replay: int = 0
    filtered: tuple[int, ...] = (0, 0, 0, 0)
    times: tuple[int, ...] = (0, 0, 0, 0, 0)
    members: list[ConsumerMetrics] = []
    drift: DriftMetrics | None = None


SUBSCRIPTION_TIMES = (
    "lastExpireTimestamp",
    "lastAckedTimestamp",
    "lastConsumedFlowTimestamp",
    "lastConsumedTimestamp",
    "lastMarkDeleteAdvancedTimestamp",
)
"""The times of a subscription, by Pulsar's names."""

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


ENTRY_SIZES = ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb", "overflow")
"""The buckets of the sizes of entries, as Pulsar names them: up to so much, and larger."""


class CompactionMetrics(msgspec.Struct, array_like=True):
    """The compactions of a topic since it was loaded: the messages that they `removed`, and how many `succeeded` and `failed`. `entries` and
    `size` (bytes): what the compacted ledger has now."""

    removed: int
    succeeded: int
    failed: int
    entries: int
    size: int


class TransactionMetrics(msgspec.Struct, array_like=True):
    """Transactions on a topic: open ones, and those that ended since it was loaded."""

    active: int
    committed: int
    aborted: int


class CoordinatorMetrics(msgspec.Struct, array_like=True):
    """The transactions of a coordinator: `active` ones, and those since it was loaded. `timeouts` are `aborted` ones, too."""

    active: int
    created: int
    committed: int
    aborted: int
    timeouts: int


class TopicMetrics(msgspec.Struct, array_like=True):
    """A topic: sizes in bytes, counters in messages, times in ms since the epoch.

    `quota_size` (bytes) and `quota_time` (s): the limits of its backlog; 0 or less: none. `oldest`: the time of the oldest
    unacknowledged message as of the last check of the quotas; None: unknown. `duplicates` and `unknown`: messages that
    deduplication refused. `rates`: those of `TOPIC_RATES`. `publish_limited`: how often a publish rate limited a connection in
    the interval that ends at `publish_limited_until`. `closed_ledgers`: how many of them the topic has.
    `entry_sizes`: how many entries of the interval had a size in each of `ENTRY_SIZES`, then the sum of their sizes; empty: there
    were none. It comes twice, as rates do. `drift`: None if the topic is no shadow topic. `source_seen`: the time of the latest
    look at its source; 0: there was none. `compaction`: None if it was not compacted since it was loaded. `transactions`: None if it has had none.
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
    entry_sizes: list[int] = []
    next_entry_sizes: list[int] = []
    drift: DriftMetrics | None = None
    source_seen: int = 0
    compaction: CompactionMetrics | None = None
    transactions: TransactionMetrics | None = None


class PartitionMetrics(msgspec.Struct, array_like=True):
    """An ingress partition after a micro-batch: the topics that it touched, and the names of those that it deleted.

    `clock` in ms since the epoch, `interval` of the rates in ms. `offset`: the last record's, −1: there was none.
    `state_bytes`: the size of the encoded state. `quarantined`: the records that the micro-batch refused, by rule.
    `write_seconds`: how long the sinks took to write its rows; None: there were none. `release`: the version of Pulsar whose rules
    are in force. `reads`: how many entries of topics were read from the store. `coordinators`: those of transactions, by id.
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
    write_seconds: float | None = None
    release: str = ""
    reads: dict[str, int] = {}
    coordinators: dict[int, CoordinatorMetrics] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PartitionMetrics)


def encode(metrics: PartitionMetrics) -> bytes:
    """The figures in MessagePack."""
    return _encoder.encode(metrics)


def decode(data: bytes) -> PartitionMetrics:
    """The figures that `encode` encoded."""
    return _decoder.decode(data)
