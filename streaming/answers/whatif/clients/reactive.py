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
    `_Producer`, `_Consumer`   a client in this run. `following`: it saw what it saw in the log.
    `_Deliveries`   what a subscription got in this run, and which deliveries are those of the log
    `_topics`       position of each message in this run, by its number in its topic. Positions differ from the log's once a
                    message is lost or late (`_moved_topics`); commands are then translated (`_translated`, `_here`).
    `_events`       heap of what the clients will do: come back, time out, take, ack
    `_broker`       the other broker, which folds each record as soon as it is made
    `_rows`         the log that is made

In order (`_Clients.run`)
    For each record of the log, by time: first the broker's timers and the clients' events up to then (`_advance`), then
    what the log's clients had seen by then and these have not (`_breaks_in_log`), then the record itself (`_record`),
    which is passed, changed or dropped. `_emit` adds a record to the log that is made, folds it, and shows the clients
    the effects (`_effects`). These may let them act later (`_at`).

    A producer sends 1 to 5 in the first five seconds and 14 to 17 at seconds 14 to 17. The quota of the other policy
    closes it at second 10. At second 25, an ack makes room::

         0 s    PRODUCER          as in the log
       1–5 s    SEND 1 … 5        as in the log
        10 s    PRODUCER          the model's, after 0.1 s; refused; again after about 0.2, 0.4, 0.8 … s
     14–17 s                      the log's SENDs are pending: the producer is not connected
        25 s    ACK               of the log, without the messages 14 to 17, which nobody has got
        34 s    PRODUCER          accepted. SEND 14 … 17 follow at once: the log's commands, at another time
     42–45 s    ACK               the model's: each as long after the delivery as in the log, 8 to 11 s

    When nothing is pending any more, the producer follows the log again (`_converge`).

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

import heapq
import random
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from schemas import commands as c
from schemas import effects as e
from schemas.commands import Decoded, to_binary
from schemas.records import RECORD
from streaming.answers.whatif.clients.history import (
    ACK,
    CUMULATIVE,
    NACK,
    Break,
    ConsumerKey,
    DecodedRecord,
    DeliveryTo,
    History,
    MessageKey,
    MessagePositions,
    PublishNumbers,
    Sender,
    SubscriptionHistory,
    break_of,
    decoded,
    message_of,
    sender_of,
)
from streaming.answers.whatif.observed import Ints
from streaming.broker.broker import LATEST_TIME, Broker
from streaming.broker.entries import NoEntries
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.broker.position import Position, from_wire
from streaming.log.positions import NAMING, translate

INITIAL_BACKOFF, LONGEST_BACKOFF = 100, 60_000
"""The Java client's `initialBackoffIntervalNanos` and `maxBackoffIntervalNanos`, in ms."""

OWN_REQUESTS = 1 << 62
"""Request ids of the model's own commands begin here; clients count from 0 or from a random number below."""

_FINAL = frozenset({"TopicTerminatedError", "ProducerFenced"})
"""Errors after which a producer does not come back."""

_NO_SECOND_TRY = frozenset(
    {
        "AuthorizationError", "ConsumerBusy", "IncompatibleSchema", "ConsumerAssignError", "NotAllowedError", "ProducerBusy",
        "TopicNotFound", "SubscriptionNotFound", "InvalidTopicName", "UnsupportedVersionError",
    }
)  # fmt: skip
"""Errors that a client does not take as passing: a consumer that is refused with one of them does not come back."""


class ClientSettings(msgspec.Struct, frozen=True):
    """What the log does not say of its clients. The defaults are those of the Java client.

    `send_timeout` in ms; 0: producers never give up. `max_pending_messages`: how many messages a producer holds; 0: no limit.
    More fail at once, or with `block_if_queue_full` wait in the application.
    """

    seed: int = 0
    send_timeout: int = 30_000
    max_pending_messages: int = 0
    block_if_queue_full: bool = False


ASSUMED = (
    "A command stands as recorded while its client saw what it saw in the log.",
    "A closed or refused producer comes back after 100 ms, doubling to 60 s, less up to 10 %, and sends what is pending again.",
    "What a quota makes the client return is sent again by the application; what fails by the send timeout is not.",
    "A consumer acks each message as long after the delivery as in the log, or after a delay drawn from its own ones there.",
    "Permits come back in FLOWs of half the receiver queue, or as small as the consumer's smallest one in the log.",
)
"""What the model takes for granted, in words."""


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


def _name(command: Any) -> str:
    """A command's name."""
    return str(type(command).__struct_config__.tag or "PUBLISH")


class Backoff:
    """When a client tries again (mirrors the Java client's `Backoff`): the interval doubles, and is shortened by up to a tenth.
    The attempt that would come after `stop` ms from the first one comes then instead, once; 0: no such attempt."""

    def __init__(self, dice: random.Random, stop: int) -> None:
        self._dice, self._stop = dice, stop
        self.reset()

    def reset(self) -> None:
        """An attempt succeeded."""
        self._next, self._first, self._stopped = INITIAL_BACKOFF, 0, self._stop <= 0

    def delay(self, now: int) -> int:
        """How long (ms) to wait from now."""
        delay = self._next
        if delay == INITIAL_BACKOFF:
            self._first = now
        self._next = min(2 * delay, LONGEST_BACKOFF)
        if not self._stopped and now - self._first + delay > self._stop:
            delay = max(INITIAL_BACKOFF, self._stop - (now - self._first))
            self._stopped = True
        return max(INITIAL_BACKOFF, delay - self._dice.randrange(delay // 10))


class _Pending(NamedTuple):
    """A message that waits for its receipt. `queued`: when the application sent it (ms)."""

    command: c.Publish | c.Send
    origin: int
    queued: int


class _Producer:
    """A producer in this run.

    `following`: its client saw what it saw in the log, whose commands stand. `in_log`: it is connected in the log.
    `gone`: its connection is lost, and only the log says whether the client comes back.
    """

    def __init__(self, key: Sender, template: c.Producer | None, backoff: Backoff) -> None:
        self.key, self.template, self.backoff = key, template, backoff
        self.name = key[2] if isinstance(key[2], str) else ""
        self.following = self.connected = self.in_log = True
        self.gone = False
        self.refused = ""
        self.pending: dict[int, _Pending] = {}
        self.waiting: list[tuple[int, _Pending]] = []
        self.epoch = 0 if template is None else template.epoch
        self.topic_epoch: int | None = None if template is None else template.topic_epoch
        self.trying = 0
        self.timed = False


class _Consumer:
    """A consumer in this run.

    * `following`: its client saw what it saw in the log, whose commands stand.
    * `gone`: it was closed or its connection is lost, and only the log says whether the client comes back.
    * `permits`: those of its first FLOW.
    * `session`: counts its subscriptions, so that what was planned in an earlier one is not done.
    * `returned`: the permits that its client has not given back yet.
    * `closed_in_log`: the log closed it, this run did not.
    * `skips_flow`: its next FLOW in the log is the first one after a subscription that was not needed here.
    * `last`: the last position that it got, where a reader goes on.
    * `trying`: counts its attempts to come back, so that only the latest one is made.
    """

    def __init__(self, key: ConsumerKey, template: c.Subscribe, backoff: Backoff, threshold: int) -> None:
        self.key, self.template, self.backoff = key, template, backoff
        self.smallest_flow = threshold
        self.following, self.connected, self.gone = True, False, False
        self.permits = self.session = self.returned = 0
        self.closed_in_log = self.skips_flow = False
        self.last = Position(-1, -1)
        self.trying = 0

    @property
    def threshold(self) -> int:
        """How many permits come back at a time."""
        return max(1, min(self.permits // 2, self.smallest_flow or self.permits))


class _Deliveries:
    """The deliveries of a subscription in this run: how many of each message, and the last one of each: that of the log if it
    is the same, otherwise a number of its own."""

    def __init__(self, history: SubscriptionHistory | None) -> None:
        self.history = history
        self.counts: Counter[int] = Counter()
        self.last: dict[int, DeliveryTo | int] = {}


class _Clients:
    """One run."""

    def __init__(
        self, records: pa.Table, pinned: pa.Table, shift: int, partition: int, history: History, settings: ClientSettings
    ) -> None:  # fmt: skip
        self._log, self._pinned, self._shift, self._history = records, pinned, shift, history
        self._offsets: Ints = records["offset"].to_numpy()
        self._partition, self._settings = partition, settings
        self._broker = Broker(partition, NoEntries())
        self._numbers = PublishNumbers()
        self._topics: dict[str, MessagePositions] = defaultdict(MessagePositions)
        self._producers: dict[Sender, _Producer] = {}
        self._by_name: dict[tuple[str, str], _Producer] = {}
        self._consumers: dict[ConsumerKey, _Consumer] = {}
        self._deliveries: dict[tuple[str, str], _Deliveries] = {}
        self._subscription_of: dict[ConsumerKey, str] = {}
        self._requests: dict[tuple[str, str, int], _Producer | _Consumer] = {}
        self._same_permits: Counter[int] = Counter()
        self._seen: set[Break] = set()
        self._in_log = frozenset(each for _, each in history.breaks)
        self._break = 0
        self._events: list[tuple[int, int, Any]] = []
        self._event = self._token = self._request = 0
        self._groups: dict[
            tuple[int, ConsumerKey, int, int], list[tuple[int, int, c.MessageIdData | None]]
        ] = {}
        self._moved: set[int] = set()
        self._moved_topics: set[str] = set()
        self._unstored: set[MessageKey] = set()
        self._reached = 0
        self._now = 0
        # the log that is made
        self._next = 0
        self._rows: tuple[list[int], list[int], list[str | None], list[bytes]] = ([], [], [], [])
        self._origins, self._after = array("q"), array("q")
        self._given_up: dict[int, str] = {}
        self._own: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._unmatched = 0

    def run(self) -> Reacted:
        first = int(self._offsets[0]) if len(self._offsets) else 0
        self._next = first
        for record in decoded(self._pinned):
            origin = record.offset - self._shift
            if origin < first:  # a policy
                self._emit(record.timestamp, record.topic, record.command, record.value, -1, record.offset)
                continue
            self._advance(record.timestamp)
            self._reached = int(np.searchsorted(self._offsets, origin)) + 1
            self._breaks_in_log(origin, record.timestamp)
            self._record(record, origin)
            self._breaks_in_log(origin, LATEST_TIME + 1)
        self._advance(self._broker.clock + 1)
        offsets, timestamps, topics, values = self._rows
        table = pa.table(
            {
                "partition": pa.array([self._partition] * len(offsets), pa.int32()),
                "offset": pa.array(offsets, pa.int64()),
                "timestamp": pa.array(timestamps, pa.int64()),
                "topic": pa.array(topics, pa.string()),
                "value": pa.array(values, pa.binary()),
            },
            schema=RECORD,
        )
        return Reacted(
            table, np.array(self._origins, np.int64), np.array(self._after, np.int64), self._given_up, dict(self._own),
            dict(self._dropped), dict(self._left_out), self._unmatched,
        )  # fmt: skip

    # -- time

    def _advance(self, until: int) -> None:
        """Let the broker's timers and the clients act before `until` (ms)."""
        if until > LATEST_TIME:
            return
        while True:
            due = self._broker.next_due()
            event = self._events[0][0] if self._events else until
            if self._broker.clock < due < until and due <= event:
                self._broker.tick(due)
                self._effects()
            elif event < until:
                self._now, _, act = heapq.heappop(self._events)
                self._now = max(self._now, self._broker.clock)
                act[0](*act[1:])
            else:
                return

    def _at(self, time: int, *act: Any) -> None:
        self._event += 1
        heapq.heappush(self._events, (time, self._event, act))

    def _dice(self, *what: object) -> random.Random:
        return random.Random(" ".join(map(str, (self._settings.seed, *what))))

    # -- the log that is made

    def _emit(
        self, timestamp: int, topic: str | None, command: Decoded, value: bytes | None, origin: int, offset: int = 0
    ) -> None:  # fmt: skip
        """Add a record, let the broker carry it out, and let clients see what it answers."""
        offset = max(offset, self._next)
        self._next = offset + 1
        encoded = to_binary(command) if value is None else value  # type: ignore[arg-type]
        offsets, timestamps, topics, values = self._rows
        offsets.append(offset)
        timestamps.append(timestamp)
        topics.append(topic)
        values.append(encoded)
        self._origins.append(origin)
        self._after.append(self._reached)
        inner = command.command if isinstance(command, c.Line) else command
        number = -1
        if topic is not None and isinstance(inner, c.Publish | c.Send) and not is_non_persistent(topic):
            number = self._history.topics[topic].number_of(origin)
            self._numbers.begin(topic, number)
            if (message := message_of(topic, inner)) in self._history.repeated:
                self._unstored.add(message)
        self._broker.apply(offset, timestamp, topic, command, encoded)
        self._effects()
        waits = self._numbers.end(self._broker)
        if (
            number >= 0
            and topic is not None
            and not waits
            and self._topics[topic].position_of(number) is None
        ):
            self._compare_entry(topic, number, None)

    def _compare_entry(self, topic: str, number: int, position: Position | None) -> None:
        """Does a message have the position that it has in the log?"""
        if self._history.topics[topic].positions.position_of(number) != position:
            self._moved_topics.add(topic)

    def _send_own(self, topic: str, command: Any) -> None:
        """A command of the model itself, now."""
        self._own[_name(command)] += 1
        self._emit(self._now, topic, command, None, -1)

    def _pass(self, record: DecodedRecord, origin: int, command: Any) -> None:
        """A record of the log, as it is or with another command."""
        same = command is record.inner
        self._emit(
            record.timestamp, record.topic, record.command if same else command, record.value if same else None, origin,
            record.offset,
        )  # fmt: skip

    def _drop(self, command: Any) -> None:
        self._dropped[_name(command)] += 1

    # -- what the log's clients say

    def _record(self, record: DecodedRecord, origin: int) -> None:
        topic, command = record.topic, record.inner
        self._now = max(record.timestamp, self._broker.clock)
        if isinstance(command, c.ConnectionLost):
            self._connection_lost(command)
        if topic is None or isinstance(command, c.Refused):
            self._pass(record, origin, command)
            return
        if is_non_persistent(topic):
            if isinstance(command, c.Command | c.Publish):
                self._left_out["commands on non-persistent topics"] += 1
            self._pass(record, origin, command)
            return
        match command:
            case c.Publish() | c.Send():
                self._topics[topic].publishes = self._history.topics[topic].number_of(origin) + 1
                self._publish(topic, record, origin, command)
            case c.Producer():
                self._create(topic, record, origin, command)
            case c.CloseProducer():
                self._close_producer(topic, record, origin, command)
            case c.Subscribe():
                self._subscribe(topic, record, origin, command)
            case c.Flow():
                self._flow(topic, record, origin, command)
            case c.Ack():
                self._ack(topic, record, origin, command)
            case c.RedeliverUnacknowledgedMessages():
                self._redeliver(topic, record, origin, command)
            case c.CloseConsumer():
                consumer = self._consumers.pop((topic, command.connection, command.consumer_id), None)
                if consumer is not None:
                    consumer.gone, consumer.connected = True, False
                self._pass(record, origin, command)
            case _:
                self._translated(topic, record, origin, command)

    def _translated(self, topic: str, record: DecodedRecord, origin: int, command: Any) -> None:
        """A command that may name positions of the log."""
        if isinstance(command, NAMING) and topic in self._moved_topics:
            own = self._topics[topic]
            found = translate(command, self._history.topics[topic].written, own)  # type: ignore[arg-type]
            self._unmatched += not found.complete
            if found.command is None:
                self._drop(command)
                return
            command = found.command
        self._pass(record, origin, command)

    def _connection_lost(self, command: c.ConnectionLost) -> None:
        def lost(connection: str) -> bool:
            if command.prefix:
                kept = command.connection and connection.startswith(command.connection)
                return connection.startswith(command.prefix) and not kept
            return connection == command.connection

        for producer in self._producers.values():
            if producer.key[1] and lost(producer.key[1]):
                producer.gone, producer.connected, producer.in_log = True, False, False
        for consumer in self._consumers.values():
            if lost(consumer.key[1]):
                consumer.gone, consumer.connected = True, False

    # -- producers

    def _producer(self, key: Sender, template: c.Producer | None) -> _Producer:
        stop = max(INITIAL_BACKOFF, self._settings.send_timeout - 100) if self._settings.send_timeout else 0
        found = _Producer(key, template, Backoff(self._dice("producer", *key), stop))
        self._producers[key] = found
        if found.name:
            self._by_name[key[0], found.name] = found
        return found

    def _publish(self, topic: str, record: DecodedRecord, origin: int, command: c.Publish | c.Send) -> None:
        key = sender_of(topic, command)
        producer = self._producers.get(key)
        if producer is None and isinstance(command, c.Publish):
            producer = self._producer(key, None)
        if isinstance(command, c.Send) and (command.txnid_least_bits or command.txnid_most_bits):
            self._left_out["messages of transactions"] += 1
        if producer is None:
            self._pass(record, origin, command)
            return
        if origin in self._moved:
            self._moved.discard(origin)
            return
        if origin in self._history.repeats and message_of(topic, command) not in self._unstored:
            self._moved_topics.add(topic)
            self._drop(command)  # the log's client had to send it again, this one had not
            return
        if (
            producer.following
            and producer.template is not None
            and producer.in_log
            and not producer.connected
        ):
            producer.following = False  # it waits for what the log's client had
        if not producer.following:
            self._converge(producer)
        if producer.following:
            producer.pending[command.sequence_id] = _Pending(command, origin, self._now)
            self._pass(record, origin, command)
        elif command.sequence_id in producer.pending:
            self._drop(command)
        else:
            self._queue(producer, _Pending(command, origin, self._now))

    def _queue(self, producer: _Producer, message: _Pending) -> None:
        """The application sends a message."""
        self._moved_topics.add(producer.key[0])
        number = message.command.sequence_id
        most = self._settings.max_pending_messages
        if producer.refused:
            self._given_up[message.origin] = producer.refused
        elif producer.connected:
            producer.pending[number] = message
            self._send(producer, message)
        elif most and len(producer.pending) >= most:
            if self._settings.block_if_queue_full:
                producer.waiting.append((number, message))
            else:
                self._given_up[message.origin] = f"the client's queue was full: maxPendingMessages {most}"
        else:
            producer.pending[number] = message
        self._time(producer)

    def _fail_all(self, producer: _Producer, why: str) -> None:
        self._given_up |= {message.origin: why for message in producer.pending.values()}
        producer.pending.clear()

    def _unblock(self, producer: _Producer) -> None:
        """The application's blocked call goes on: there is room in the queue."""
        most = self._settings.max_pending_messages
        while producer.waiting and len(producer.pending) < most:
            number, message = producer.waiting.pop(0)
            producer.pending[number] = message._replace(queued=self._now)
        self._time(producer)

    def _time(self, producer: _Producer) -> None:
        """Watch the send timeout of the oldest pending message."""
        if producer.pending and not producer.timed and not producer.following and self._settings.send_timeout:
            producer.timed = True
            oldest = next(iter(producer.pending.values()))
            self._at(max(oldest.queued + self._settings.send_timeout, self._now), self._timeout, producer)

    def _timeout(self, producer: _Producer) -> None:
        producer.timed = False
        if producer.following or not producer.pending:
            return
        oldest = next(iter(producer.pending.values()))
        if oldest.queued + self._settings.send_timeout <= self._now:
            self._fail_all(producer, f"the client gave up: sendTimeout {self._settings.send_timeout} ms")
            self._unblock(producer)
        self._time(producer)

    def _resume(self, producer: _Producer, trying: int) -> None:
        """The producer is connected again: send all pending messages in their order, until the broker refuses one."""
        if trying != producer.trying or producer.gone:
            return
        producer.connected = True
        sent: set[int] = set()
        while producer.connected:
            number = next((each for each in producer.pending if each not in sent), None)
            if number is None:
                break
            sent.add(number)
            self._send(producer, producer.pending[number])
        self._converge(producer)

    def _send(self, producer: _Producer, message: _Pending) -> None:
        command = message.command
        if isinstance(command, c.Send):
            if (command.connection, command.producer_id) != producer.key[1:]:
                command = msgspec.structs.replace(
                    command, connection=producer.key[1], producer_id=int(producer.key[2])
                )
        elif command.publish_time is None and message.queued != self._now:
            command = msgspec.structs.replace(command, publish_time=message.queued)
        self._own[_name(command)] += 1
        self._emit(self._now, producer.key[0], command, None, message.origin)

    def _converge(self, producer: _Producer) -> None:
        """The client has nothing left to do that the log does not have: the log's commands stand again."""
        if producer.connected and producer.in_log and not producer.pending and not producer.waiting:
            producer.following = True

    def _disconnected(self, producer: _Producer) -> None:
        """The broker does not take the producer's messages."""
        producer.connected = False
        if producer.gone or producer.refused:
            return
        producer.trying += 1
        self._at(self._now + producer.backoff.delay(self._now), self._reconnect, producer, producer.trying)
        self._time(producer)

    def _reconnect(self, producer: _Producer, trying: int) -> None:
        if producer.connected or producer.gone or producer.refused or trying != producer.trying:
            return
        topic, connection, number = producer.key
        if producer.template is None:  # the short form: a message is the attempt
            self._resume(producer, trying)
            return
        producer.epoch += 1
        self._request += 1
        command = msgspec.structs.replace(
            producer.template, connection=connection, producer_id=number, request_id=OWN_REQUESTS + self._request,
            producer_name=producer.name or None, epoch=producer.epoch, topic_epoch=producer.topic_epoch,
        )  # fmt: skip
        self._requests[topic, connection, command.request_id] = producer
        self._send_own(topic, command)

    def _create(self, topic: str, record: DecodedRecord, origin: int, command: c.Producer) -> None:
        key = topic, command.connection, command.producer_id
        producer = self._producers.get(key)
        if producer is None or producer.gone:
            former = self._by_name.get((topic, command.producer_name or ""))
            if (
                former is not None and former.gone and command.epoch > 0
            ):  # the client is back on another connection
                self._producers.pop(former.key, None)
                former.key, former.gone, former.template = key, False, command
                self._producers[key] = producer = former
            else:
                producer = self._producer(key, command)
                producer.connected = False
        succeeded = origin in self._history.created
        if not producer.following and (producer.connected or not producer.gone):
            producer.in_log = producer.in_log or succeeded
            if producer.connected:
                self._drop(command)
                self._converge(producer)
                return
        producer.in_log = succeeded
        if producer.following:
            producer.pending.clear()  # the log's client sends them again
        producer.epoch = max(producer.epoch, command.epoch)
        self._requests[topic, command.connection, command.request_id] = producer
        self._pass(record, origin, command)

    def _close_producer(
        self, topic: str, record: DecodedRecord, origin: int, command: c.CloseProducer
    ) -> None:
        producer = self._producers.pop((topic, command.connection, command.producer_id), None)
        if producer is not None:
            if not producer.following:
                self._fail_all(producer, "the application closed the producer")
            producer.gone, producer.connected = True, False
        self._pass(record, origin, command)

    # -- consumers

    def _subscribe(self, topic: str, record: DecodedRecord, origin: int, command: c.Subscribe) -> None:
        key = topic, command.connection, command.consumer_id
        self._subscription_of[key] = command.subscription
        consumer = self._consumers.get(key)
        if consumer is not None and consumer.connected:
            if consumer.closed_in_log:  # the log's client came back; this one never left
                consumer.closed_in_log, consumer.skips_flow = False, True
                self._drop(command)
            else:
                self._pass(record, origin, command)
            return
        if command.read_compacted:
            self._left_out["consumers that read the compacted topic"] += 1
        if consumer is None or consumer.gone:
            smallest = self._history.habits[key].smallest_flow if key in self._history.habits else 0
            consumer = _Consumer(key, command, Backoff(self._dice("consumer", *key), 0), smallest)
            self._consumers[key] = consumer
        consumer.template = command
        consumer.permits, consumer.returned = 0, 0
        consumer.following, consumer.closed_in_log = True, False
        consumer.trying += 1
        self._requests[topic, command.connection, command.request_id] = consumer
        self._translated(topic, record, origin, command)

    def _resubscribe(self, consumer: _Consumer, trying: int) -> None:
        if consumer.connected or consumer.gone or trying != consumer.trying:
            return
        topic, connection, _ = consumer.key
        self._request += 1
        command = msgspec.structs.replace(consumer.template, request_id=OWN_REQUESTS + self._request)
        if not command.durable and consumer.last.ledger >= 0:
            command.start_message_id = c.MessageIdData(*consumer.last.next())
        self._requests[topic, connection, command.request_id] = consumer
        self._send_own(topic, command)

    def _lost_consumer(self, consumer: _Consumer) -> None:
        """The broker closed or refused the consumer. Its client clears its queue, and comes back."""
        consumer.connected, consumer.following = False, False
        consumer.returned = 0
        if consumer.gone:
            return
        consumer.trying += 1
        self._at(self._now + consumer.backoff.delay(self._now), self._resubscribe, consumer, consumer.trying)

    def _subscribed(self, consumer: _Consumer) -> None:
        consumer.connected = True
        consumer.session += 1
        consumer.backoff.reset()
        if not consumer.following and consumer.permits:
            self._at(self._now, self._first_flow, consumer, consumer.session)

    def _first_flow(self, consumer: _Consumer, session: int) -> None:
        if consumer.connected and consumer.session == session:
            self._own_flow(consumer, consumer.permits)

    def _own_flow(self, consumer: _Consumer, permits: int) -> None:
        topic, connection, number = consumer.key
        self._send_own(topic, c.Flow(connection=connection, consumer_id=number, messagePermits=permits))

    def _flow(self, topic: str, record: DecodedRecord, origin: int, command: c.Flow) -> None:
        consumer = self._consumers.get((topic, command.connection, command.consumer_id))
        same = self._same_permits.pop(origin, 0)
        if consumer is None:
            self._pass(record, origin, command)
            return
        if consumer.skips_flow or not (consumer.connected or consumer.following):
            consumer.skips_flow = False
            self._drop(command)
            return
        if not consumer.permits:
            consumer.permits = command.messagePermits
        permits = command.messagePermits - (self._history.covered.get(origin, 0) - same)
        if permits == command.messagePermits and not consumer.returned:
            self._pass(record, origin, command)
            return
        self._return_permits(consumer, permits, record, origin)

    def _return_permits(
        self, consumer: _Consumer, permits: int, record: DecodedRecord | None = None, origin: int = -1
    ) -> None:
        """The application took messages: their permits go back once there are enough."""
        consumer.returned += permits
        if consumer.returned < consumer.threshold:
            if record is not None:
                self._drop(record.inner)
            return
        permits, consumer.returned = consumer.returned, 0
        if record is None:
            self._own_flow(consumer, permits)
        else:
            self._pass(record, origin, msgspec.structs.replace(record.inner, messagePermits=permits))

    def _of(self, topic: str, command: c.Ack | c.RedeliverUnacknowledgedMessages) -> _Deliveries | None:
        name = self._subscription_of.get((topic, command.connection, command.consumer_id))
        return None if name is None else self._deliveries.get((topic, name))

    def _ack(self, topic: str, record: DecodedRecord, origin: int, command: c.Ack) -> None:
        if command.txnid_least_bits or command.txnid_most_bits:
            self._left_out["acks of transactions"] += 1
        if command.ack_type == "Cumulative":
            self._ack_cumulative(topic, record, origin, command)
            return
        self._named(topic, record, origin, command, "message_id")

    def _redeliver(
        self, topic: str, record: DecodedRecord, origin: int, command: c.RedeliverUnacknowledgedMessages
    ) -> None:
        self._named(topic, record, origin, command, "message_ids")

    def _named(
        self, topic: str, record: DecodedRecord, origin: int, command: c.Ack | c.RedeliverUnacknowledgedMessages, field: str
    ) -> None:  # fmt: skip
        """A command that names messages: what is left of it names those that the consumer got as in the log."""
        ids: list[c.MessageIdData] = getattr(command, field)
        left = [
            found for each in ids if (found := self._here(topic, origin, command, field, each)) is not None
        ]
        if left == ids:
            self._pass(record, origin, command)
        elif left:
            self._pass(record, origin, msgspec.structs.replace(command, **{field: left}))
        else:
            self._drop(command)

    def _here(
        self, topic: str, origin: int, command: c.Ack | c.RedeliverUnacknowledgedMessages, field: str, named: c.MessageIdData
    ) -> c.MessageIdData | None:  # fmt: skip
        """An id with the position that its message has here. None: the consumer has not got it as in the log."""
        history, own = self._history.topics[topic], self._topics[topic]
        number = history.positions.number_at(from_wire(named.ledgerId, named.entryId))
        if number is None or number >= own.publishes:  # no message of the log so far
            if topic not in self._moved_topics:
                return named
            alone = msgspec.structs.replace(command, **{field: [named]})
            found = translate(alone, history.written, own).command  # type: ignore[arg-type]
            return None if found is None else getattr(found, field)[0]
        name = self._subscription_of.get((topic, command.connection, command.consumer_id), "")
        of_log, deliveries = history.subscriptions.get(name), self._deliveries.get((topic, name))
        answered = [] if of_log is None else of_log.deliveries.get(number, [])
        if any(action.offset == origin for each in answered for action in each.actions):
            mine = None if deliveries is None else deliveries.last.get(number)
            if not isinstance(mine, DeliveryTo) or all(action.offset != origin for action in mine.actions):
                return None
        if topic not in self._moved_topics:
            return named
        position = own.position_of(number)
        if position is None or position == (named.ledgerId, named.entryId):
            return None if position is None else named
        return msgspec.structs.replace(named, ledgerId=position.ledger, entryId=position.entry)

    def _ack_cumulative(self, topic: str, record: DecodedRecord, origin: int, command: c.Ack) -> None:
        covered, deliveries = self._history.cumulative.get(origin), self._of(topic, command)
        if not covered or deliveries is None:
            if not covered:
                self._translated(topic, record, origin, command)
            else:
                self._drop(command)
            return
        got = []
        for number in covered:
            mine = deliveries.last.get(number)
            if isinstance(mine, DeliveryTo) and any(action.offset == origin for action in mine.actions):
                got.append(number)
        written = self._history.topics[topic].written
        named = command.message_id[0]
        end = written.last_number_up_to(from_wire(named.ledgerId, named.entryId))
        if len(got) == len(covered) or (got and max(got) == end):
            self._translated(topic, record, origin, command)
        elif got and (position := self._topics[topic].position_of(max(got))) is not None:
            last = c.MessageIdData(*position, partition=named.partition)
            self._pass(record, origin, msgspec.structs.replace(command, message_id=[last]))
        else:
            self._drop(command)

    def _delivered(self, effect: e.Message, clock: int) -> None:
        """A consumer gets a message."""
        position = Position(effect.ledger_id, effect.entry_id)
        number = self._topics[effect.topic].number_at(position)
        if effect.ledger_id <= 0 or number is None:
            return
        key = effect.topic, effect.connection, effect.consumer_id
        deliveries = self._deliveries.get((effect.topic, effect.subscription))
        if deliveries is None:
            history = self._history.topics[effect.topic].subscriptions.get(effect.subscription)
            deliveries = self._deliveries[effect.topic, effect.subscription] = _Deliveries(history)
        which = deliveries.counts[number]
        deliveries.counts[number] = which + 1
        consumer = self._consumers.get(key)
        if consumer is not None:
            consumer.last = position
        history = deliveries.history
        logged: list[DeliveryTo] = [] if history is None else history.deliveries.get(number, [])
        if which < len(logged) and logged[which].consumer == key and logged[which].clock == clock:
            delivery = logged[which]
            deliveries.last[number] = delivery
            if delivery.taken is not None:
                self._same_permits[delivery.taken.offset] += effect.messages
            return
        self._token += 1
        deliveries.last[number] = self._token
        if consumer is None:
            return
        model = taken = logged[min(which, len(logged) - 1)] if logged else None
        if not logged:
            model, taken = self._drawn(key, history, f"{effect.topic} {effect.subscription} {number} {which}")
        if taken is not None and taken.taken is not None:
            self._at(clock + taken.taken.delay, self._takes, consumer, consumer.session, effect.messages)
        if model is None:
            return
        for action in model.actions:
            named = action.named if logged else None
            kind = action.kind
            if kind == CUMULATIVE and consumer.template.subType in ("Shared", "Key_Shared"):
                kind = ACK
            if not logged and kind == NACK:
                continue
            self._acts(clock + action.delay, consumer, kind, number, effect.subscription, named)

    def _drawn(
        self, key: ConsumerKey, history: SubscriptionHistory | None, what: str
    ) -> tuple[DeliveryTo | None, DeliveryTo | None]:
        """The deliveries in the log whose delays a message gets that the log's consumers never got: one that was acked,
        and one that was taken."""
        habits = self._history.habits.get(key)
        acked = (
            habits.acked if habits is not None and habits.acked else [] if history is None else history.acked
        )
        dice = self._dice(what)
        model = dice.choice(acked) if acked else None
        if model is not None and model.taken is not None:
            return model, model
        return model, dice.choice(habits.took) if habits is not None and habits.took else None

    def _takes(self, consumer: _Consumer, session: int, messages: int) -> None:
        if consumer.connected and consumer.session == session:
            self._return_permits(consumer, messages)

    def _acts(
        self, time: int, consumer: _Consumer, kind: int, number: int, subscription: str, named: c.MessageIdData | None
    ) -> None:  # fmt: skip
        """Let the consumer ack a message, or ask for it again. Commands of one time go together."""
        group = time, consumer.key, kind, consumer.session
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = []
            self._at(time, self._act, consumer, group, subscription)
        found.append((number, self._token, named))

    def _act(self, consumer: _Consumer, group: tuple[int, ConsumerKey, int, int], subscription: str) -> None:
        asked = self._groups.pop(group)
        _, (topic, connection, number), kind, session = group
        if not consumer.connected or consumer.session != session:
            return
        newest = self._deliveries[topic, subscription].last
        ids: list[c.MessageIdData] = []
        for message, token, named in asked:
            position = self._topics[topic].position_of(message)
            if newest.get(message) != token or position is None:
                continue
            if named is None:
                ids.append(c.MessageIdData(*position))
            else:
                ids.append(msgspec.structs.replace(named, ledgerId=position.ledger, entryId=position.entry))
        if not ids:
            return
        if kind == NACK:
            self._send_own(
                topic,
                c.RedeliverUnacknowledgedMessages(connection=connection, consumer_id=number, message_ids=ids),
            )
        elif kind == CUMULATIVE:
            last = max(ids, key=lambda each: (each.ledgerId, each.entryId))
            self._send_own(
                topic,
                c.Ack(connection=connection, consumer_id=number, ack_type="Cumulative", message_id=[last]),
            )
        else:
            self._send_own(
                topic, c.Ack(connection=connection, consumer_id=number, ack_type="Individual", message_id=ids)
            )

    # -- what the broker says

    def _effects(self) -> None:
        for row in self._broker.take():
            effect = row.effect
            self._now = max(self._now, row.clock)
            kind = type(effect)
            if kind is e.SendReceipt:
                self._receipt(effect)  # type: ignore[arg-type]
            elif kind is e.Message:
                self._delivered(effect, row.clock)  # type: ignore[arg-type]
            elif kind is e.ProducerSuccess:
                self._producer_success(effect)  # type: ignore[arg-type]
            elif kind is e.Success:
                found = self._requests.get((effect.topic, effect.connection, effect.request_id))  # type: ignore[union-attr,arg-type]
                if isinstance(found, _Consumer) and not found.connected:
                    self._subscribed(found)
            else:
                broken = break_of(row)
                if broken is not None:
                    self._seen.add(broken)
                    self._broken(broken, effect)

    def _receipt(self, effect: e.SendReceipt) -> None:
        number = self._numbers.answered(effect)
        if number is not None and effect.ledger_id > 0:
            position = Position(effect.ledger_id, effect.entry_id)
            self._topics[effect.topic].add(number, position)
            self._compare_entry(effect.topic, number, position)
        producer = self._by_name.get((effect.topic, effect.producer_name))
        if producer is None:
            return
        producer.pending.pop(effect.sequence_id, None)
        self._unstored.discard((effect.topic, effect.producer_name, effect.sequence_id))
        if producer.template is None:
            producer.connected = True
        if not producer.following:
            producer.backoff.reset()
            self._unblock(producer)

    def _producer_success(self, effect: e.ProducerSuccess) -> None:
        producer = self._requests.get((effect.topic, effect.connection, effect.request_id))
        if not isinstance(producer, _Producer):
            return
        if isinstance(effect.fields.topic_epoch, int):
            producer.topic_epoch = effect.fields.topic_epoch
        producer.name = effect.producer_name
        self._by_name[effect.topic, effect.producer_name] = producer
        if not effect.fields.producer_ready:
            return
        producer.backoff.reset()
        if producer.following:
            producer.connected = True
        else:
            producer.trying += 1
            self._at(self._now, self._resume, producer, producer.trying)

    def _broken(self, broken: Break, effect: Any) -> None:
        """A client learns that something went wrong. If the log's client learned the same, the log has what it did then."""
        same = broken in self._in_log
        what, who = broken[:2]
        if what == "closed connection":
            for each in self._clients_of(who):
                self._broken_client(each, same, "")
            return
        if what == "send error":
            self._numbers.answered(effect)
        client = self._client(what, who)
        if client is None:
            return
        error = getattr(effect, "error", "")
        if same and what == "send error" and client.following and isinstance(client, _Producer):
            self._refused_message(client, effect)
        elif what == "send error" and error == "NotAllowedError" and isinstance(client, _Producer):
            self._refused_message(client, effect)
            return
        self._broken_client(client, same, error)

    def _clients_of(self, connection: str) -> list[_Producer | _Consumer]:
        clients: list[_Producer | _Consumer] = [*self._producers.values(), *self._consumers.values()]
        return [each for each in clients if each.key[1] == connection]

    def _client(self, what: str, who: Any) -> _Producer | _Consumer | None:
        if what == "error":
            return self._requests.get(who)
        return self._consumers.get(who) if what == "closed consumer" else self._producers.get(who)

    def _refused_message(self, producer: _Producer, effect: e.SendError) -> None:
        """The broker will never take this message: its client drops it, and goes on."""
        for number, message in list(producer.pending.items()):
            command = message.command
            last = command.highest_sequence_id if isinstance(command, c.Send) else None
            if effect.sequence_id in (number, last):
                del producer.pending[number]

    def _broken_client(self, client: _Producer | _Consumer, same: bool, error: str) -> None:
        if same and client.following:
            client.connected = False
            if isinstance(client, _Producer):
                client.in_log = client.key[1] == ""
            return
        if isinstance(client, _Consumer):
            client.closed_in_log = client.closed_in_log or same
            if error in _NO_SECOND_TRY:
                client.connected, client.following = False, False
            else:
                self._lost_consumer(client)
            return
        client.following = False
        if error in _FINAL:
            client.connected, client.refused = False, f"the broker refuses the producer: {error}"
            self._fail_all(client, client.refused)
        else:
            self._disconnected(client)

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
                clients: Sequence[_Producer | _Consumer | None] = self._clients_of(who)
            else:
                clients = [self._client(what, who)]
            for client in clients:
                if isinstance(client, _Consumer):
                    client.closed_in_log = True
                elif isinstance(client, _Producer):
                    self._spared(client, origin)

    def _spared(self, producer: _Producer, origin: int) -> None:
        """The log's client was closed or refused, this one was not: it sends on, at the times at which the application sent."""
        producer.in_log = producer.key[1] == ""
        if not producer.following:
            return
        producer.following = False
        for later, time in self._sent_late(producer.key, origin):
            self._moved.add(later.offset)
            self._at(max(time, self._now), self._queue_moved, producer, later, time)

    def _queue_moved(self, producer: _Producer, record: DecodedRecord, time: int) -> None:
        if record.inner.sequence_id not in producer.pending:
            self._queue(producer, _Pending(record.inner, record.offset, time))

    def _sent_late(self, key: Sender, origin: int) -> Iterator[tuple[DecodedRecord, int]]:
        """The messages after `origin` that the log's client sent later than its application, and when the application did,
        by their publish times."""
        offsets = self._history.sent.get(key)
        if offsets is None or not key[1]:
            return
        start = bisect_right(offsets, origin)
        skew = self._lateness(offsets[start - 1])[1] if start else 0
        for offset in offsets[start:]:
            record, late = self._lateness(offset)
            if late - skew <= _PROMPT:
                return
            if offset not in self._history.repeats:
                yield record, record.timestamp - late + skew

    def _lateness(self, offset: int) -> tuple[DecodedRecord, int]:
        """A SEND of the log, and how much later than its publish time it came (ms)."""
        (record,) = decoded(self._log.slice(int(np.searchsorted(self._offsets, offset)), 1))
        return record, record.timestamp - record.inner.metadata.publish_time


_PROMPT = 50
"""A message that comes up to so many ms later than its publish time was not held by its client."""
