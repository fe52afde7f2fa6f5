"""What producers do that do not see what they saw in the log: come back, send again, give up (see `reactive`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from schemas import commands as c
from schemas import effects as e
from streaming.answers.whatif.clients.backoff import INITIAL_BACKOFF, Backoff
from streaming.answers.whatif.clients.history import (
    DecodedRecord,
    MessageKey,
    MessageNumber,
    Sender,
    decoded,
    message_of,
    number_in_producer,
    sender_of,
)
from streaming.answers.whatif.clients.made_log import MadeLog

_FINAL = frozenset({"TopicTerminatedError", "ProducerFenced"})
"""Errors after which a producer does not come back."""

_PROMPT = 50
"""A message that comes up to so many ms later than its publish time was not held by its client."""


class _Pending(NamedTuple):
    """A message that waits for its receipt. `queued`: when the application sent it (ms)."""

    command: c.Publish | c.Send
    origin: int
    queued: int

    @property
    def number(self) -> MessageNumber:
        """Which message of its producer it is."""
        return number_in_producer(self.command)


def _without_fault(command: c.Publish | c.Send) -> c.Publish | c.Send:
    """What a client sends when it sends a message again: a fault on a SEND is of that SEND alone."""
    if isinstance(command, c.Send) and command.fails:
        return msgspec.structs.replace(command, fails=False)
    return command


class ProducerModel:
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
        self.pending: dict[MessageNumber, _Pending] = {}
        self.waiting: list[_Pending] = []
        self.epoch = 0 if template is None else template.epoch
        self.topic_epoch: int | None = None if template is None else template.topic_epoch
        self.trying = 0
        self.timed = False


class Producers:
    """The producers of a run, `models`."""

    def __init__(self, made: MadeLog) -> None:
        self._made, self._settings, self._history = made, made.settings, made.history
        self.models: dict[Sender, ProducerModel] = {}
        self._by_name: dict[tuple[str, str], ProducerModel] = {}
        self._moved: set[int] = set()

    # -- what the log's clients say

    def publish(self, topic: str, record: DecodedRecord, origin: int, command: c.Publish | c.Send) -> None:
        """A message of the log. Nobody repeats one that came through REST."""
        if isinstance(command, c.Publish) and command.rest:
            self._made.pass_on(record, origin, command)
            return
        key = sender_of(topic, command)
        producer = self.models.get(key)
        if producer is None and isinstance(command, c.Publish):
            producer = self._producer(key, None)
        if isinstance(command, c.Send) and (command.txnid_least_bits or command.txnid_most_bits):
            self._made.left_out["messages of transactions"] += 1
        if producer is None:
            self._made.pass_on(record, origin, command)
            return
        if origin in self._moved:
            self._moved.discard(origin)
            return
        if origin in self._history.repeats and message_of(topic, command) not in self._made.numbers.unstored:
            self._made.moved_topics.add(topic)
            self._made.drop(command)  # the log's client had to send it again, this one had not
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
        message = _Pending(command, origin, self._made.now)
        if producer.following:
            producer.pending[message.number] = message._replace(command=_without_fault(command))
            self._made.pass_on(record, origin, command)
        elif message.number in producer.pending:
            self._made.drop(command)
        else:
            self._queue(producer, message)

    def create(self, topic: str, record: DecodedRecord, origin: int, command: c.Producer) -> None:
        """A PRODUCER of the log."""
        key = topic, command.connection, command.producer_id
        producer = self.models.get(key)
        if producer is None or producer.gone:
            former = self._by_name.get((topic, command.producer_name or ""))
            if (
                former is not None and former.gone and command.epoch > 0
            ):  # the client is back on another connection
                self.models.pop(former.key, None)
                former.key, former.gone, former.template = key, False, command
                self.models[key] = producer = former
            else:
                producer = self._producer(key, command)
                producer.connected = False
        succeeded = origin in self._history.created
        if not producer.following and (producer.connected or not producer.gone):
            producer.in_log = producer.in_log or succeeded
            if producer.connected:
                self._made.drop(command)
                self._converge(producer)
                return
        producer.in_log = succeeded
        if producer.following:
            producer.pending.clear()  # the log's client sends them again
        producer.epoch = max(producer.epoch, command.epoch)
        self._made.requests[topic, command.connection, command.request_id] = producer
        self._made.pass_on(record, origin, command)

    def close(self, topic: str, record: DecodedRecord, origin: int, command: c.CloseProducer) -> None:
        """A CLOSE_PRODUCER of the log."""
        producer = self.models.pop((topic, command.connection, command.producer_id), None)
        if producer is not None:
            if not producer.following:
                self._fail_all(producer, "the application closed the producer")
            producer.gone, producer.connected = True, False
        self._made.pass_on(record, origin, command)

    # -- what a client does

    def _producer(self, key: Sender, template: c.Producer | None) -> ProducerModel:
        stop = max(INITIAL_BACKOFF, self._settings.send_timeout - 100) if self._settings.send_timeout else 0
        found = ProducerModel(key, template, Backoff(self._made.dice("producer", *key), stop))
        self.models[key] = found
        if found.name:
            self._by_name[key[0], found.name] = found
        return found

    def _queue(self, producer: ProducerModel, message: _Pending) -> None:
        """The application sends a message."""
        self._made.moved_topics.add(producer.key[0])
        most = self._settings.max_pending_messages
        if producer.refused:
            self._made.given_up[message.origin] = producer.refused
        elif producer.connected:
            producer.pending[message.number] = message
            self._send(producer, message)
        elif most and len(producer.pending) >= most:
            if self._settings.block_if_queue_full:
                producer.waiting.append(message)
            else:
                self._made.given_up[message.origin] = (
                    f"the client's queue was full: maxPendingMessages {most}"
                )
        else:
            producer.pending[message.number] = message
        self._time(producer)

    def _fail_all(self, producer: ProducerModel, why: str) -> None:
        self._made.given_up |= {message.origin: why for message in producer.pending.values()}
        producer.pending.clear()

    def _unblock(self, producer: ProducerModel) -> None:
        """The application's blocked call goes on: there is room in the queue."""
        most = self._settings.max_pending_messages
        while producer.waiting and len(producer.pending) < most:
            message = producer.waiting.pop(0)
            producer.pending[message.number] = message._replace(queued=self._made.now)
        self._time(producer)

    def _time(self, producer: ProducerModel) -> None:
        """Watch the send timeout of the oldest pending message."""
        if producer.pending and not producer.timed and not producer.following and self._settings.send_timeout:
            producer.timed = True
            oldest = next(iter(producer.pending.values()))
            self._made.at(
                max(oldest.queued + self._settings.send_timeout, self._made.now), self._timeout, producer
            )

    def _timeout(self, producer: ProducerModel) -> None:
        producer.timed = False
        if producer.following or not producer.pending:
            return
        oldest = next(iter(producer.pending.values()))
        if oldest.queued + self._settings.send_timeout <= self._made.now:
            self._fail_all(producer, f"the client gave up: sendTimeout {self._settings.send_timeout} ms")
            self._unblock(producer)
        self._time(producer)

    def _resume(self, producer: ProducerModel, trying: int) -> None:
        """The producer is connected again: send all pending messages in their order, until the broker refuses one."""
        if trying != producer.trying or producer.gone:
            return
        producer.connected = True
        sent: set[MessageNumber] = set()
        while producer.connected:
            number = next((each for each in producer.pending if each not in sent), None)
            if number is None:
                break
            sent.add(number)
            self._send(producer, producer.pending[number])
        self._converge(producer)

    def _send(self, producer: ProducerModel, message: _Pending) -> None:
        command = message.command
        if (again := _without_fault(command)) is not command:
            producer.pending[message.number] = message._replace(command=again)
        if isinstance(command, c.Send):
            if (command.connection, command.producer_id) != producer.key[1:]:
                command = msgspec.structs.replace(
                    command, connection=producer.key[1], producer_id=int(producer.key[2])
                )
        elif command.publish_time is None and message.queued != self._made.now:
            command = msgspec.structs.replace(command, publish_time=message.queued)
        self._made.send_own(producer.key[0], command, message.origin)

    def _converge(self, producer: ProducerModel) -> None:
        """The client has nothing left to do that the log does not have: the log's commands stand again."""
        if producer.connected and producer.in_log and not producer.pending and not producer.waiting:
            producer.following = True

    def _disconnected(self, producer: ProducerModel) -> None:
        """The broker does not take the producer's messages."""
        producer.connected = False
        if producer.gone or producer.refused:
            return
        producer.trying += 1
        self._made.at(
            self._made.now + producer.backoff.delay(self._made.now),
            self._reconnect,
            producer,
            producer.trying,
        )
        self._time(producer)

    def _reconnect(self, producer: ProducerModel, trying: int) -> None:
        if producer.connected or producer.gone or producer.refused or trying != producer.trying:
            return
        attempt = partial(self._attempt, producer, trying)
        self._made.attempt(producer.key[0], producer.backoff, attempt, self._reconnect, producer, trying)

    def _attempt(self, producer: ProducerModel, trying: int) -> None:
        topic, connection, number = producer.key
        if producer.template is None:  # the short form: a message is the attempt
            self._resume(producer, trying)
            return
        producer.epoch += 1
        command = msgspec.structs.replace(
            producer.template, connection=connection, producer_id=number, request_id=self._made.own_request(),
            producer_name=producer.name or None, epoch=producer.epoch, topic_epoch=producer.topic_epoch,
        )  # fmt: skip
        self._made.requests[topic, connection, command.request_id] = producer
        self._made.send_own(topic, command)

    def lost(self, is_lost: Callable[[str], bool]) -> None:
        """Connections of the log are lost."""
        for producer in self.models.values():
            if producer.key[1] and is_lost(producer.key[1]):
                producer.gone, producer.connected, producer.in_log = True, False, False

    # -- what the broker says

    def broken(self, producer: ProducerModel, same: bool, error: str) -> None:
        """A producer is closed or refused. `same`: so it was in the log."""
        if same and producer.following:
            producer.connected, producer.in_log = False, producer.key[1] == ""
            return
        producer.following = False
        if error in _FINAL:
            producer.connected, producer.refused = False, f"the broker refuses the producer: {error}"
            self._fail_all(producer, producer.refused)
        else:
            self._disconnected(producer)

    def receipt(self, effect: e.SendReceipt, message: MessageKey) -> None:
        """A message is stored."""
        producer = self._by_name.get((effect.topic, effect.producer_name))
        if producer is None or (effect.producer_id is None and producer.template is not None):
            return  # or it is for a message through REST, by the name of a connected producer
        producer.pending.pop(message.number, None)
        self._made.numbers.unstored.discard(message)
        if producer.template is None:
            producer.connected = True
        if not producer.following:
            producer.backoff.reset()
            self._unblock(producer)

    def success(self, effect: e.ProducerSuccess) -> None:
        """A producer is created, or waits."""
        producer = self._made.requests.get((effect.topic, effect.connection, effect.request_id))
        if not isinstance(producer, ProducerModel):
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
            self._made.at(self._made.now, self._resume, producer, producer.trying)

    # -- what the log's clients saw, and these did not

    def spared(self, producer: ProducerModel, origin: int) -> None:
        """The log's client was closed or refused, this one was not: it sends on, at the times at which the application sent."""
        producer.in_log = producer.key[1] == ""
        if not producer.following:
            return
        producer.following = False
        for later, time in self._sent_late(producer.key, origin):
            self._moved.add(later.offset)
            self._made.at(max(time, self._made.now), self._queue_moved, producer, later, time)

    def _queue_moved(self, producer: ProducerModel, record: DecodedRecord, time: int) -> None:
        message = _Pending(record.inner, record.offset, time)
        if message.number not in producer.pending:
            self._queue(producer, message)

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
        (record,) = decoded(self._made.log.slice(int(np.searchsorted(self._made.offsets, offset)), 1))
        return record, record.timestamp - record.inner.metadata.publish_time
