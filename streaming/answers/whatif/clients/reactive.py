"""The clients of a log as they would have acted on what a broker with other policies answers.

The problem
    `magnetar whatif` folds a log under other policies. But a log holds what clients did under its own policies: acks of
    messages that the other broker never delivers, and no acks of those that it delivers in addition. A producer that the
    other broker closes would come back and send its messages later. Folding the recorded commands as they are says what
    the broker would have done with these commands, not what would have happened.

The idea
    A model of Pulsar's Java client, driven by the log. A command of the log stands as long as its client saw the same
    as in the log. So under the log's own policies nothing changes. A client that sees something else is modelled
    from there on:

    * A producer that is closed or refused comes back with `Backoff`, and sends again what is pending, in order and with
      the same sequence ids. What the application sends meanwhile waits behind. All of it fails when the oldest has
      waited for the send timeout.
    * A consumer takes and acks each message as long after the delivery as in the log. A message that the log never
      delivered gets a delay that is drawn from the consumer's own ones there.

The data
    `History`       what the log's clients did: deliveries with the acks that answered them, breaks (a producer or
                    consumer closed, an error), habits of each consumer
    `Producers`, `Consumers`   the clients in this run. `following`: one saw what it saw in the log. The consumers know what
                    each subscription got in this run, and which deliveries are those of the log.
    `MadeLog`       the log that is made, the other broker, which folds each record as soon as it is made, and a heap of what
                    the clients will do: come back, time out, take, ack. It has the position of each message in this run, by
                    its number in its topic. Positions differ from the log's once a message is lost or late
                    (`moved_topics`); commands are then translated (`translated`, `Consumers._here`).

In order (`_Clients.run`)
    For each record of the log, by time: first the broker's timers and the clients' events up to then (`MadeLog.advance`), then
    what the log's clients had seen by then and these have not (`_breaks_in_log`), then the record itself (`_record`),
    which is passed, changed or dropped. `emit` adds a record to the log that is made, folds it, and shows the clients
    the effects (`_effects`). These may let them act later (`at`).

    A producer sends 1 to 5 in the first five seconds and 14 to 17 at seconds 14 to 17. The quota of the other policy
    closes it at second 10. At second 25, an ack makes room::

         0 s    PRODUCER          as in the log
       1–5 s    SEND 1 … 5        as in the log
        10 s    PRODUCER          the model's, after 0.1 s; refused; again after about 0.2, 0.4, 0.8 … s
     14–17 s                      the log's SENDs are pending: the producer is not connected
        25 s    ACK               of the log, without the messages 14 to 17, which nobody has got
        34 s    PRODUCER          accepted. SEND 14 … 17 follow at once: the log's commands, at another time
     42–45 s    ACK               the model's: each as long after the delivery as in the log, 8 to 11 s

    When nothing is pending any more, the producer follows the log again (`Producers._converge`).

Invariants
    * Under the log's own policies, the log that is made is the log, record by record
      (``tests/answers/test_reactive.py``).
    * An ack of the log that answered a delivery there stands only for messages that its consumer has got in this run.
    * Randomness (the jitter of backoff, delays that the log does not have) comes from the seed, by client and message.
      So each run is deterministic, and what happens to one client changes no other client's draws.
    * Ids of the model's own requests begin at `OWN_REQUESTS`, so they are none of the log's.

What it costs
    Two folds of the log (the other one is `History`'s), record by record, and memory for each delivery. `ASSUMED` says
    in words what the model takes for granted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from schemas import commands as c
from schemas import effects as e
from schemas.units import LATEST_TIME
from streaming.answers.whatif.clients.consumers import ConsumerModel, Consumers
from streaming.answers.whatif.clients.history import Break, DecodedRecord, History, break_of, decoded
from streaming.answers.whatif.clients.made_log import ClientSettings, MadeLog
from streaming.answers.whatif.clients.producers import ProducerModel, Producers
from streaming.answers.whatif.observed import Ints
from streaming.broker.non_persistent.topic import is_non_persistent

ASSUMED = (
    "A command stands as recorded while its client saw what it saw in the log.",
    "A closed or refused producer comes back after 100 ms, doubling to 60 s, less up to 10 %, and sends what is pending again.",
    "Once attempts are 60 s apart, those are left out that come while nothing happens on the topic: they would be refused again.",
    "What a quota makes the client return is sent again by the application; what fails by the send timeout is not.",
    "A consumer acks each message as long after the delivery as in the log, or after a delay drawn from its own ones there.",
    "Permits come back in FLOWs of half the receiver queue, or as small as the consumer's smallest one in the log.",
)
"""What the model takes for granted, in words."""


_CHANGES_NOTHING = (e.Error, e.SendError, e.Tick)
"""What happens without letting anybody in."""


class Reacted(NamedTuple):
    """A partition's log as its clients would have made it.

    * `records`: the log, with the columns of `RECORD`, policies included.
    * `origins`: by row, the offset in the log of the record that it is or sends again; −1: a command of the model, or a
      policy.
    * `after`: by row, how many records of the log were reached before it.
    * `given_up`: why publishes, by offset in the log, were never stored.
    * `own`: how many commands of each name are the model's own.
    * `dropped`: how many commands of the log, by name, the clients would not have sent.
    * `left_out`: what is not modelled, in words, and how often it occurred.
    * `unmatched`: how many commands named a message that never was.
    """

    records: pa.Table
    origins: Ints
    after: Ints
    given_up: dict[int, str]
    own: dict[str, int]
    dropped: dict[str, int]
    left_out: dict[str, int]
    unmatched: int


def react(
    records: pa.Table,
    pinned: pa.Table,
    shift: int,
    partition: int,
    history: History,
    settings: ClientSettings,
) -> Reacted:
    """The log of an ingress partition as its clients would have made it under other policies.

    `records`: the log; `pinned`: the same under the policies, with offsets higher by `shift`, see
    `streaming.log.policies.pin`; `history`: that of `records`.
    """
    return _Clients(records, pinned, shift, partition, history, settings).run()


class _Clients:
    """One run."""

    def __init__(
        self, records: pa.Table, pinned: pa.Table, shift: int, partition: int, history: History, settings: ClientSettings
    ) -> None:  # fmt: skip
        self._pinned, self._shift, self._history = pinned, shift, history
        self._made = MadeLog(records, partition, history, settings, self._effects)
        self._producers, self._consumers = Producers(self._made), Consumers(self._made)
        self._seen: set[Break] = set()
        self._in_log = frozenset(each for _, each in history.breaks)
        self._break = 0

    def run(self) -> Reacted:
        made = self._made
        for record in decoded(self._pinned):
            origin = record.offset - self._shift
            if origin < made.first:  # a policy
                made.emit(record.timestamp, record.topic, record.command, record.value, -1, record.offset)
                continue
            made.advance(record.timestamp)
            made.reached = int(np.searchsorted(made.offsets, origin)) + 1
            self._breaks_in_log(origin, record.timestamp)
            self._record(record, origin)
            self._breaks_in_log(origin, LATEST_TIME + 1)
        made.advance(made.broker.clock + 1)
        return Reacted(
            made.records(), np.array(made.origins, np.int64), np.array(made.after, np.int64), made.given_up, dict(made.own),
            dict(made.dropped), dict(made.left_out), made.unmatched,
        )  # fmt: skip

    # -- what the log's clients say

    def _record(self, record: DecodedRecord, origin: int) -> None:
        topic, command = record.topic, record.inner
        self._made.now = max(record.timestamp, self._made.broker.clock)
        if isinstance(command, c.ConnectionLost):
            self._connection_lost(command)
        if topic is None or isinstance(command, c.Refused):
            self._made.pass_on(record, origin, command)
            return
        if is_non_persistent(topic):
            if isinstance(command, c.Command | c.Publish):
                self._made.left_out["commands on non-persistent topics"] += 1
            self._made.pass_on(record, origin, command)
            return
        match command:
            case c.Publish() | c.Send():
                self._made.topics[topic].publishes = self._history.topics[topic].number_of(origin) + 1
                self._producers.publish(topic, record, origin, command)
            case c.Producer():
                self._producers.create(topic, record, origin, command)
            case c.CloseProducer():
                self._producers.close(topic, record, origin, command)
            case c.Subscribe():
                self._consumers.subscribe(topic, record, origin, command)
            case c.Flow():
                self._consumers.flow(topic, record, origin, command)
            case c.Ack():
                self._consumers.ack(topic, record, origin, command)
            case c.RedeliverUnacknowledgedMessages():
                self._consumers.redeliver(topic, record, origin, command)
            case c.CloseConsumer():
                self._consumers.close(topic, command)
                self._made.pass_on(record, origin, command)
            case _:
                self._made.translated(topic, record, origin, command)

    def _connection_lost(self, command: c.ConnectionLost) -> None:
        def lost(connection: str) -> bool:
            if command.prefix:
                kept = command.connection and connection.startswith(command.connection)
                return connection.startswith(command.prefix) and not kept
            return connection == command.connection

        self._producers.lost(lost)
        self._consumers.lost(lost)

    # -- what the broker says

    def _effects(self) -> None:
        for row in self._made.broker.take():
            effect = row.effect
            self._made.now = max(self._made.now, row.clock)
            kind = type(effect)
            if kind not in _CHANGES_NOTHING:
                self._made.changed(getattr(effect, "topic", None))
            if kind is e.SendReceipt:
                published = self._made.stored(effect)  # type: ignore[arg-type]
                if published is not None:
                    self._producers.receipt(effect, published.message)  # type: ignore[arg-type]
            elif kind is e.Message:
                self._consumers.delivered(effect, row.clock)  # type: ignore[arg-type]
            elif kind is e.ProducerSuccess:
                self._producers.success(effect)  # type: ignore[arg-type]
            elif kind is e.TopicEvent:
                self._made.numbers.topic_event(effect)  # type: ignore[arg-type]
            elif kind is e.Success:
                found = self._made.requests.get((effect.topic, effect.connection, effect.request_id))  # type: ignore[union-attr,arg-type]
                if isinstance(found, ConsumerModel) and not found.connected:
                    self._consumers.subscribed(found)
            else:
                broken = break_of(row)
                if broken is not None:
                    self._seen.add(broken)
                    self._broken(broken, effect)

    def _broken(self, broken: Break, effect: Any) -> None:
        """A client learns that something went wrong. If the log's client learned the same, the log has what it did then."""
        same = broken in self._in_log
        what, who = broken[:2]
        if what == "closed connection":
            for each in self._clients_of(who):
                self._broken_client(each, same, "")
            return
        published = self._made.numbers.answered(effect) if what == "send error" else None
        client = self._client(what, who)
        if client is None:
            return
        error = getattr(effect, "error", "")
        if what == "send error" and isinstance(client, ProducerModel):
            as_in_log, never = same and client.following, error == "NotAllowedError"
            if published is not None and (as_in_log or never):
                client.pending.pop(published.message.number, None)
            if never and not as_in_log:  # its client drops the message, and goes on
                return
        self._broken_client(client, same, error)

    def _clients_of(self, connection: str) -> list[ProducerModel | ConsumerModel]:
        clients: list[ProducerModel | ConsumerModel] = [
            *self._producers.models.values(),
            *self._consumers.models.values(),
        ]
        return [each for each in clients if each.key[1] == connection]

    def _client(self, what: str, who: Any) -> ProducerModel | ConsumerModel | None:
        if what == "error":
            found = self._made.requests.get(who)
            return found if isinstance(found, ProducerModel | ConsumerModel) else None
        return (self._consumers if what == "closed consumer" else self._producers).models.get(who)

    def _broken_client(self, client: ProducerModel | ConsumerModel, same: bool, error: str) -> None:
        if isinstance(client, ConsumerModel):
            self._consumers.broken(client, same, error)
        else:
            self._producers.broken(client, same, error)

    # -- what the log's clients saw, and these did not

    def _breaks_in_log(self, origin: int, before: int) -> None:
        """What clients saw in the log up to the record at `origin`, and before a time (ms)."""
        breaks = self._history.breaks
        while self._break < len(breaks) and breaks[self._break][0] <= origin:
            _, broken = breaks[self._break]
            if broken[2] >= before:
                return
            self._break += 1
            if broken in self._seen:
                continue
            what, who = broken[:2]
            if what == "closed connection":
                clients: Sequence[ProducerModel | ConsumerModel | None] = self._clients_of(who)
            else:
                clients = [self._client(what, who)]
            for client in clients:
                if isinstance(client, ConsumerModel):
                    client.closed_in_log = True
                elif isinstance(client, ProducerModel):
                    self._producers.spared(client, origin)
