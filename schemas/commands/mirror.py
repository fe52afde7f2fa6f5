"""What a mirrored cluster shows of a topic at one moment, as a command."""

from typing import Annotated, Literal

from msgspec import Meta, field

from schemas.commands.client import Command
from schemas.commands.parts import AccessMode, Part, SubType
from schemas.units import Int32, Int64

MirroredPosition = tuple[Int64, Int64]
"""Ledger and entry."""
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]


UnknownRules = Literal["settings", "policies of the namespace", "policies of the topic"]
"""The levels of rules of a cluster."""


class MirroredConsumer(Part):
    """A connected consumer, from the topic's stats."""

    connection: str
    """Names the consumer for as long as it is connected."""
    name: str = ""
    """`consumerName`."""
    sent: Natural = 0
    """`msgOutCounter`: the messages that it has got since it connected."""
    permits: Int32 = 0
    """`availablePermits`, which may be negative."""
    held: Natural = 0
    """`unackedMessages`. A consumer that is new here gets so many at first."""
    last_ack: Int64 = -1
    """`lastAckedTimestamp`, in ms, 0 before its first ack. −1: unknown."""


class MirroredSubscription(Part):
    """A durable subscription, from the topic's stats and internal stats."""

    mark_delete: MirroredPosition
    """`markDeletePosition`."""
    acknowledged: list[tuple[Int64, Int64, Int64, Int64]] = field(default_factory=list)
    """`individuallyDeletedMessages`: ranges from a position, which is not in the range, to another, which is."""
    backlog: Natural = 0
    """Its backlog, in entries."""
    unacked: Int64 = 0
    """`unackedMessages`, in messages."""
    expired: Natural = 0
    """`totalMsgExpired`, in entries."""
    sent: Natural = 0
    """`msgOutCounter`, in messages."""
    type: SubType | None = None
    """Absent: it has had no consumer yet."""
    out_of_order: bool = False
    """Key_Shared: `allowOutOfOrderDelivery`."""
    expired_to: MirroredPosition | None = None
    """The cluster's TTL or quota has moved the subscription up to here since the record before. What it passed is not taken for
    acknowledged."""
    reset: bool = False
    """True: somebody has reset the subscription since the record before. Its position went back, or went over entries that nobody can
    have acknowledged."""
    consumers: list[MirroredConsumer] = field(default_factory=list)
    """Its consumers."""
    read: MirroredPosition | None = None
    """`readPosition`. Absent: unknown."""
    moving: bool = False
    """True: it moved while the cluster was asked. `stats` show another backlog than `internalStats`, from which its position is."""


class MirroredProducer(Part):
    """A connected producer, from the topic's stats."""

    connection: str
    """Names the producer for as long as it is connected."""
    name: str
    """`producerName`."""
    access_mode: AccessMode = "Shared"
    """`accessMode`."""


class Mirror(Command, tag="MIRROR"):
    """What the cluster shows of the source of a [shadow topic](../rules/ledgers.md#15-shadow-topics) at one moment.

    Subscriptions, their positions, consumers and producers become those of the source, by what their clients or the cluster's
    rules would do. The answer is a MIRROR_DRIFT row if something differs afterwards. `magnetar mirror` writes it.
    """

    since: Int64 = 0
    """When the cluster was asked before (ms since the epoch). What the record shows happened after that. 0: unknown."""
    ledger_id: Int64 = -1
    """The source's open ledger. −1: unknown."""
    last_confirmed: MirroredPosition = (-1, -1)
    """The last entry that is there, or else `lastConfirmedEntry`, which a broker forgets when it loads the topic."""
    read_to: MirroredPosition = (-1, -1)
    """The source's entries up to here are in the log: where `magnetar mirror` goes on."""
    entries: Natural = 0
    """`numberOfEntries`."""
    size: Natural = 0
    """`totalSize`, in bytes."""
    first_ledger: Int64 = -1
    """The oldest ledger that is still there. −1: unknown."""
    subscriptions: dict[str, MirroredSubscription] = field(default_factory=dict)
    """The durable subscriptions. Others are deleted."""
    producers: list[MirroredProducer] = field(default_factory=list)
    """The producers. Others are closed."""
    resync: bool = False
    """True: a subscription that has had another backlog or mark-delete position than on the source for two minutes is put where it is
    there. `magnetar mirror` says so when nothing happens on the source any more, and at least every ten minutes."""
    late: Natural = 0
    """How much later than planned the cluster was asked (ms), if that was an interval or more. 0: in time."""
    moving: bool = False
    """True: entries came while the cluster was asked. `stats` show another size than `internalStats`."""
    unknown: Annotated[list[UnknownRules], Meta(max_length=3)] = field(default_factory=list)
    """The rules of the source that could not be read."""
    created: Int64 = 0
    """`topicCreationTimeStamp`, or, in versions before 4.2, the `creationDate` of `internal-info`. 0: unknown."""
    added: Int64 = -1
    """`entriesAddedCounter`: the entries since a broker loaded the topic. −1: unknown."""
