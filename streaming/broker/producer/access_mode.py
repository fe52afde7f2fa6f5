"""Exclusive access to a topic: who may produce, who waits for it, and the topic epoch (producer.md §3).

Theory of operation. A topic is in one of these situations, or in several: it has an ``owner`` (Pulsar's
hasExclusiveProducer), it has ``waiting`` producers, it has registered ``producers``. A request comes to the gate, and the
first row of its access mode's part of `GATE` that names one of the topic's situations says what becomes of it:

* admit: it is registered beside the others, and the epoch stays;
* own: it becomes the owner, which moves the epoch: to the one that it carries, else one up. Whoever carries an epoch that
  has passed was away while another had access, and is refused;
* wait: it is queued. Its client is told at once that it isn't ready yet;
* fence: the queue is refused, the producers are closed, then it is as with own;
* a refusal.

When a registered producer leaves the owner's access ends, and the first in the queue becomes the owner; behind shared
producers the queue waits for the last of them.

Quirks of Pulsar, kept on purpose:

* A producer that waits becomes the owner whatever epoch it carries, even if that sets the topic's epoch back.
* WaitForExclusive looks at the producers and not at the queue.
* An owner that is refused after the gate (the topic is fenced, terminated) stays the owner in name: until the topic is
  loaded again, only ExclusiveWithFencing gets in.
* A waiting producer whose client is gone keeps its place. It becomes the owner, uses up an epoch, and only then leaves.
* A fenced producer that still has unconfirmed writes leaves when they are confirmed, and its leaving ends the new
  owner's access.
"""

from typing import Literal, NamedTuple

import msgspec

from schemas.commands import AccessMode, ServerError
from streaming.broker.errors import BrokerError
from streaming.broker.producer.producer import Producer

Situation = Literal["owner", "waiting", "producers"]
Verdict = Literal["admit", "own", "wait", "fence"]


class Refusal(NamedTuple):
    """The answer to a request that the gate doesn't let through."""

    error: ServerError
    cause: str


ANY: frozenset[Situation] = frozenset()
"""A row for every situation."""

_TAKEN = "Topic has an existing exclusive producer: {owner}"

GATE: dict[AccessMode, list[tuple[frozenset[Situation], Verdict | Refusal]]] = {
    "Shared": [
        (frozenset({"owner", "waiting"}), Refusal("ProducerBusy", _TAKEN)),
        (ANY, "admit"),
    ],
    "Exclusive": [
        (frozenset({"owner", "waiting"}), Refusal("ProducerFenced", _TAKEN)),
        (frozenset({"producers"}), Refusal("ProducerFenced", "Topic has existing shared producers")),
        (ANY, "own"),
    ],
    "ExclusiveWithFencing": [
        (frozenset({"owner", "producers"}), "fence"),
        (ANY, "own"),
    ],
    "WaitForExclusive": [
        (frozenset({"owner", "producers"}), "wait"),
        (ANY, "own"),
    ],
}  # fmt: skip
"""Access mode → (situations, what becomes of the request), the first row that names a situation of the topic."""


def pass_gate(mode: AccessMode, situations: set[Situation]) -> Verdict | Refusal:
    """What becomes of a request, by `GATE`."""
    return next(then for when, then in GATE[mode] if not when or when & situations)


class WaitingProducer(msgspec.Struct, array_like=True):
    """A producer in the queue, and the request to be answered when its turn comes. `gone`: nobody is left to answer."""

    producer: Producer
    request_id: int
    gone: bool = False


class ProducerAccess(msgspec.Struct, array_like=True):
    """`owner` = the name of the producer with exclusive access; `epoch` = the topic epoch, None: there was no owner yet.

    The epoch is kept with the topic's ledgers, so it survives that the topic is loaded again; the rest doesn't.
    """

    owner: str | None = None
    epoch: int | None = None
    waiting: list[WaitingProducer] = []

    def ask(self, producer: Producer, *, others: bool) -> Verdict:
        """A producer comes to the gate; are there `others` on the topic? Raises `BrokerError`."""
        situations: set[Situation] = {"producers"} if others else set()
        if self.owner is not None:
            situations.add("owner")
        if self.waiting:
            situations.add("waiting")
        verdict = pass_gate(producer.access_mode, situations)
        if isinstance(verdict, Refusal):
            raise BrokerError(verdict.error, verdict.cause.format(owner=self.owner))
        return verdict

    def own(self, producer: Producer) -> None:
        """Give it the access, which moves the epoch. Raises `BrokerError` if the epoch it carries has passed."""
        carried, current = producer.topic_epoch, -1 if self.epoch is None else self.epoch
        if carried is not None and _int64(carried) < current:
            raise BrokerError(
                "ProducerFenced",
                f"Topic epoch has already moved. Current epoch: {current}, Producer epoch: {carried}",
            )
        self._give_to(producer)

    def _give_to(self, producer: Producer) -> None:
        current = -1 if self.epoch is None else self.epoch
        self.owner = producer.name
        self.epoch = _int64(current + 1 if producer.topic_epoch is None else producer.topic_epoch)

    def pass_on(self, *, others: bool) -> WaitingProducer | None:
        """A registered producer left; are there `others` still? Returns the new owner, if there is one now."""
        if self.owner is None and (others or not self.waiting):
            return None
        self.owner = None
        if not self.waiting:
            return None
        first = self.waiting.pop(0)
        self._give_to(first.producer)
        return first

    def find_waiting(self, connection: str, producer_id: int) -> WaitingProducer | None:
        """The producer in the queue whose client knows it by this id and still waits for it."""
        for waiting in self.waiting:
            producer = waiting.producer
            if (producer.connection, producer.producer_id) == (connection, producer_id) and not waiting.gone:
                return waiting
        return None


def _int64(value: int) -> int:
    """An epoch as Pulsar holds it: 64 bits with a sign."""
    return (value + 2**63) % 2**64 - 2**63
