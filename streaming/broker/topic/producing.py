"""Why producers of a topic are refused, held or wait: who has access now, and what a new producer gets."""

from typing import Literal, get_args

import msgspec

from schemas.commands import AccessMode
from streaming.broker.dispatch.verdict import Verdict
from streaming.broker.names import DEDUP_CURSOR
from streaming.broker.producer.access_mode import ProducerAccess
from streaming.broker.topic.abstract_topic import AbstractTopic

ACCESS_MODES: tuple[AccessMode, ...] = get_args(AccessMode)

ProducerCondition = Literal["connected", "waiting", "unconfirmed", "closing", "gone"]
"""What a producer is: ``waiting`` for exclusive access, ``unconfirmed``: some of its messages are not stored yet, ``closing``: it leaves
once they are, ``gone``: its client left the queue, but its place stays."""

AdmissionAnswer = Literal["gets in", "waits", "fences", "is refused", "not known"]
"""What a new producer gets. ``fences``: it gets in, and the others lose their access."""


class ProducerState(msgspec.Struct):
    """A producer of a topic. `where`: its connection, or its address. `since`: when it connected (ms), if that is known."""

    name: str
    access_mode: str
    state: ProducerCondition
    where: str
    text: str
    since: int | None = None


class Admission(msgspec.Struct):
    """What a new producer with an access mode gets now: with `error` and `text`, the words of the broker's refusal."""

    access_mode: AccessMode
    answer: AdmissionAnswer
    error: str | None = None
    text: str = ""


class Happened(msgspec.Struct):
    """What happened to a topic's producers at `clock` (ms), as the output rows have it. `producer`: None if they don't name it."""

    clock: int
    producer: str | None
    text: str
    partition: int
    offset: int


class Producing(msgspec.Struct):
    """Who produces on a topic at `clock` (ms), who waits, and who would be refused.

    `slowest`: the cursor whose backlog counts for quotas. `owner`: who has exclusive access. `epoch`: the topic epoch, None if there was no owner yet. `producers`: those that are connected,
    then the queue in its order; `waiting`: how many are in it, also where their names are not known. `verdicts`: what blocks
    producers. `happened`: the last events. `unknown`: what can't be concluded, and why. `to_do`: what to do about it. `sampled`: see
    `PersistentTopic.is_sampled`.
    """

    topic: str
    clock: int
    owner: str | None
    epoch: int | None
    producers: list[ProducerState]
    waiting: int
    admissions: list[Admission]
    verdicts: list[Verdict]
    slowest: str | None = None
    happened: list[Happened] = []
    unknown: list[str] = []
    to_do: list[str] = []
    sampled: bool = False

    @property
    def refused(self) -> Admission | None:
        """The refusal of a new producer that shares the topic, unless it gets in. Others are refused wherever there are producers."""
        shared = (each for each in self.admissions if each.access_mode == "Shared")
        return next((each for each in shared if each.answer == "is refused"), None)


def explain(topic: AbstractTopic, now: int) -> Producing:
    """Who produces on a topic. `admissions` and what its policies block are left to the caller."""
    queue = topic.access.waiting
    producers = [
        _connected(topic, name, producer.access_mode, producer.connection, producer.created)
        for name, producer in topic.producers.items()
    ]
    producers += [
        ProducerState(
            each.producer.name,
            each.producer.access_mode,
            "gone" if each.gone else "waiting",
            each.producer.connection,
            f"number {number} in the queue"
            + (", its client is gone: it gets the access, and leaves at once" if each.gone else ""),
            each.producer.created,
        )
        for number, each in enumerate(queue, 1)
    ]
    verdicts = []
    if topic.fenced:
        verdicts.append(fenced())
    if topic.terminated:
        verdicts.append(terminated())
    if topic.access.owner is not None or queue:
        verdicts.append(exclusive_access(topic.access, shared=bool(topic.producers)))
    return Producing(
        topic.name, now, topic.access.owner, topic.access.epoch, producers, len(queue), [], verdicts
    )


def _connected(
    topic: AbstractTopic, name: str, mode: AccessMode, connection: str, since: int
) -> ProducerState:
    pending = sum(write.producer.name == name for write in topic.pending)
    state: ProducerCondition = (
        "closing" if name in topic.closing_producers else "unconfirmed" if pending else "connected"
    )
    text = f"{pending} of its messages are not confirmed yet" if pending else ""
    if state == "closing":
        text += ": it leaves once they are"
    return ProducerState(name, mode, state, connection, text, since)


def fenced() -> Verdict:
    """A write failed."""
    return Verdict(
        "fenced", True, "the topic is fenced after a failed write: no producer gets in until it has recovered"
    )


def terminated() -> Verdict:
    """The topic takes no more messages."""
    return Verdict("terminated", True, "the topic is terminated: no producer gets in any more")


def exclusive_access(access: ProducerAccess, *, shared: bool) -> Verdict:
    """Somebody has exclusive access, or waits for it. `shared`: the topic has producers."""
    return access_of(access.owner, len(access.waiting), access.epoch, shared=shared)


def access_of(owner: str | None, waiting: int, epoch: int | None, *, shared: bool) -> Verdict:
    """The same of an owner, so many that wait, and the topic's epoch."""
    wait = f"{waiting} {'waits' if waiting == 1 else 'wait'}"
    if owner is not None:
        before = f" (topic epoch {epoch}: who had it under an earlier one is fenced out)" if epoch else ""
        text = f"{owner} has exclusive access{before}" + (f", and {wait} for it" if waiting else "")
    else:
        text = f"{wait} for exclusive access" + (", until all producers have left" if shared else "")
    return Verdict("access mode", True, text)


def quota_blocks(type_: str, policy: str, level: str, figures: str, slowest: str | None) -> Verdict:
    """A backlog quota that blocks producers is exceeded. `slowest`: the cursor whose backlog it is."""
    of_deduplication = slowest == DEDUP_CURSOR
    found = "cursor is that of deduplication" if of_deduplication else f"subscription is {slowest}"
    whose = "" if slowest is None else f"; the slowest {found}"
    text = f"the {type_} quota is exceeded ({policy}, {level}): {figures}{whose}; {_CLIENTS[policy]}"
    return Verdict("backlogQuota", True, text)


_CLIENTS = {
    "producer_request_hold": "clients hold their producers' messages and ask again until these time out",
    "producer_exception": "clients fail their producers and what these send",
}
"""What a client does with the refusal of a quota (docs/rules/quotas.md §7)."""


def encryption() -> Verdict:
    """encryptionRequired, or encryptionRequireOnProducer."""
    return Verdict("encryptionRequired", False, "a new producer must declare that it encrypts")


def max_producers(count: int, limit: int) -> Verdict:
    """maxProducersPerTopic."""
    text = f"{count} producers, the limit is {limit}"
    return Verdict("maxProducersPerTopic", count >= limit, text)
