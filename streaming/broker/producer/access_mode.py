"""Exclusive access to a topic: who may produce, who waits, and the topic epoch (docs/rules/producers.md §6–§10).

Theory of operation. A topic is in one or several of these situations: it has an ``owner`` (Pulsar's
hasExclusiveProducer), ``waiting`` producers, or registered ``producers``. `GATE` lists rows for each access mode. The
first row that names one of the topic's situations decides about a request:

* admit: the producer is registered beside the others, and the epoch stays;
* own: the producer becomes the owner. That moves the epoch to the one in its request, or else one up. A producer with a
  lower epoch than the topic's was away while another one had access, and is refused;
* wait: the producer is queued. Its client learns at once that it is not ready yet;
* fence: the queue is refused, the registered producers are closed, and then the same as for own;
* a refusal.

When a registered producer leaves, the owner's access ends, and the first producer in the queue becomes the owner. Behind
shared producers, the queue waits until the last of them leaves.

Quirks of Pulsar, kept on purpose:

* A waiting producer becomes the owner with any epoch, even if that sets the topic's epoch back.
* WaitForExclusive considers the registered producers, but not the queue.
* An owner that is refused after the gate (the topic is fenced or terminated) remains the owner in name: until the topic
  is loaded again, only ExclusiveWithFencing gets in.
* A waiting producer whose client is gone keeps its place. It becomes the owner, uses up an epoch, and leaves only then.
* A fenced producer with unconfirmed writes leaves when they are confirmed, and that ends the new owner's access.
"""

from functools import cached_property
from typing import Literal, NamedTuple

import msgspec

from schemas.commands import AccessMode, ServerError
from streaming.broker.errors import BrokerError
from streaming.broker.producer.producer import Producer

Situation = Literal["owner", "waiting", "producers"]
AccessVerdict = Literal["admit", "own", "wait", "fence"]


MOST_GONE = 1000
"""A queue has fewer producers whose clients are gone: of so many, the last half stays. Pulsar has no limit."""


class Refusal(NamedTuple):
    """The answer to a request that the gate refuses."""

    error: ServerError
    cause: str


ANY: frozenset[Situation] = frozenset()
"""A row that applies in every situation."""

_TAKEN = "Topic has an existing exclusive producer: {owner}"

GATE: dict[AccessMode, list[tuple[frozenset[Situation], AccessVerdict | Refusal]]] = {
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
"""Access mode → rows of (situations, decision). The first row that names one of the topic's situations decides."""


def pass_gate(mode: AccessMode, situations: set[Situation]) -> AccessVerdict | Refusal:
    """The decision of `GATE` about a request."""
    return next(then for when, then in GATE[mode] if not when or when & situations)


class WaitingProducer(msgspec.Struct, array_like=True):
    """A producer in the queue, and the request to answer when its turn comes. `gone`: its client is gone."""

    producer: Producer
    request_id: int
    gone: bool = False


class ProducerAccess(msgspec.Struct, array_like=True, dict=True):
    """`owner`: the name of the producer with exclusive access. `epoch`: the topic epoch, None if there was no owner yet. `stranded`:
    connection → ids of the producers that waited when the topic closed.

    When the topic is loaded again, the epoch survives, since Pulsar stores it with the ledgers, and `stranded`, since
    the connections do not hear of the end of the queue.
    """

    owner: str | None = None
    epoch: int | None = None
    waiting: list[WaitingProducer] = []
    stranded: dict[str, list[int]] = {}

    def closed(self) -> "ProducerAccess":
        """What is left of it when the topic closes."""
        stranded = {connection: list(ids) for connection, ids in self.stranded.items()}
        for connection, waiting in self._present.items():
            stranded.setdefault(connection, []).extend(id_ for id_ in waiting if id_ is not None)
        return ProducerAccess(epoch=self.epoch, stranded=stranded)

    def ask(self, producer: Producer, *, others: bool) -> AccessVerdict:
        """A producer comes to the gate. `others`: the topic has producers. Raises `BrokerError`."""
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
        """Make it the owner, which moves the epoch. Raises `BrokerError` if its epoch is lower than the topic's."""
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
        """A registered producer left. `others`: the topic still has producers. Returns the new owner, if there is one."""
        if self.owner is None and (others or not self.waiting):
            return None
        self.owner = None
        if not self.waiting:
            return None
        first = self.waiting[0]
        if first.gone:
            self._gone -= 1
        else:
            self._forget(first)
        del self.waiting[0]
        self._give_to(first.producer)
        return first

    # -- the queue ------------------------------------------------------------------------------------------------

    def wait(self, producer: Producer, request_id: int) -> None:
        """Queue a producer. No other one in the queue has its id on its connection, unless its client is gone."""
        waiting = WaitingProducer(producer, request_id)
        self._present.setdefault(producer.connection, {})[producer.producer_id] = waiting
        self.waiting.append(waiting)

    def awaits_answer(self, connection: str, producer_id: int) -> bool:
        """Does the producer with this id on this connection wait in the queue, or did it when the topic closed?"""
        return producer_id in self._present.get(connection, ()) or producer_id in self.stranded.get(
            connection, ()
        )

    def holds(self, connection: str) -> bool:
        """Does any producer on this connection?"""
        return connection in self._present or connection in self.stranded

    def waiting_of(self, connection: str) -> list[int]:
        """The ids of the producers on this connection that wait in the queue."""
        return [*self._present.get(connection, ())]

    def leave(self, connection: str, producer_id: int) -> None:
        """A client closes a producer in the queue, if it is there."""
        if (waiting := self._present.get(connection, {}).get(producer_id)) is not None:
            self._gone += 1  # first, since this counts them if nobody has
            waiting.gone = True
            self._forget(waiting)
            self._drop_gone()
        elif producer_id in (ids := self.stranded.get(connection, [])):
            ids.remove(producer_id)
            if not ids:
                del self.stranded[connection]

    def connection_lost(self, connection: str) -> None:
        """The client of these producers is gone."""
        self.stranded.pop(connection, None)
        for waiting in self._present.pop(connection, {}).values():
            self._gone += 1  # first, since this counts them if nobody has
            waiting.gone = True
        self._drop_gone()

    def take_queue(self) -> list[WaitingProducer]:
        """Empty the queue and return what was in it."""
        queue, self.waiting = self.waiting, []
        self._present.clear()
        self._gone = 0
        return queue

    def _drop_gone(self) -> None:
        """Only so many whose clients are gone keep their places."""
        if self._gone >= MOST_GONE:
            gone = [at for at, each in enumerate(self.waiting) if each.gone]
            surplus = set(gone[: -MOST_GONE // 2])
            self.waiting = [each for at, each in enumerate(self.waiting) if at not in surplus]
            self._gone -= len(surplus)

    def _forget(self, waiting: WaitingProducer) -> None:
        producer = waiting.producer
        del self._present[producer.connection][producer.producer_id]
        if not self._present[producer.connection]:
            del self._present[producer.connection]

    @cached_property
    def _gone(self) -> int:
        """How many of the queue are gone."""
        return sum(each.gone for each in self.waiting)

    @cached_property
    def _present(self) -> dict[str, dict[int | None, WaitingProducer]]:
        """The queue without those whose client is gone, by connection and producer id."""
        found: dict[str, dict[int | None, WaitingProducer]] = {}
        for waiting in self.waiting:
            if not waiting.gone:
                found.setdefault(waiting.producer.connection, {})[waiting.producer.producer_id] = waiting
        return found


def _int64(value: int) -> int:
    """An epoch as Pulsar stores it: a signed 64-bit integer."""
    return (value + 2**63) % 2**64 - 2**63
