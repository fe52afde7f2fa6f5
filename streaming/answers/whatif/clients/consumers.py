"""What consumers do that do not see what they saw in the log: come back, take, ack (see `reactive`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec

from schemas import commands as c
from schemas import effects as e
from streaming.answers.whatif.clients.backoff import Backoff
from streaming.answers.whatif.clients.history import (
    ACK,
    CUMULATIVE,
    NACK,
    ConsumerKey,
    DecodedRecord,
    DeliveryTo,
    SubscriptionHistory,
)
from streaming.answers.whatif.clients.made_log import MadeLog
from streaming.broker.position import Position, from_wire
from streaming.log.positions import translate

_NO_SECOND_TRY = frozenset(
    {
        "AuthorizationError", "ConsumerBusy", "IncompatibleSchema", "ConsumerAssignError", "NotAllowedError", "ProducerBusy",
        "TopicNotFound", "SubscriptionNotFound", "InvalidTopicName", "UnsupportedVersionError",
    }
)  # fmt: skip
"""Errors that a client does not take as passing: a consumer that is refused with one of them does not come back."""


class ConsumerModel:
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


class Consumers:
    """The consumers of a run, `models`."""

    def __init__(self, made: MadeLog) -> None:
        self._made, self._history = made, made.history
        self.models: dict[ConsumerKey, ConsumerModel] = {}
        self._deliveries: dict[tuple[str, str], _Deliveries] = {}
        self._subscription_of: dict[ConsumerKey, str] = {}
        self._same_permits: Counter[int] = Counter()
        self._token = 0
        self._groups: dict[
            tuple[int, ConsumerKey, int, int], list[tuple[int, int, c.MessageIdData | None]]
        ] = {}

    # -- what the log's clients say

    def subscribe(self, topic: str, record: DecodedRecord, origin: int, command: c.Subscribe) -> None:
        """A SUBSCRIBE of the log."""
        key = topic, command.connection, command.consumer_id
        self._subscription_of[key] = command.subscription
        consumer = self.models.get(key)
        if consumer is not None and consumer.connected:
            if consumer.closed_in_log:  # the log's client came back; this one never left
                consumer.closed_in_log, consumer.skips_flow = False, True
                self._made.drop(command)
            else:
                self._made.pass_on(record, origin, command)
            return
        if command.read_compacted:
            self._made.left_out["consumers that read the compacted topic"] += 1
        if consumer is None or consumer.gone:
            smallest = self._history.habits[key].smallest_flow if key in self._history.habits else 0
            consumer = ConsumerModel(key, command, Backoff(self._made.dice("consumer", *key), 0), smallest)
            self.models[key] = consumer
        consumer.template = command
        consumer.permits, consumer.returned = 0, 0
        consumer.following, consumer.closed_in_log = True, False
        consumer.trying += 1
        self._made.requests[topic, command.connection, command.request_id] = consumer
        self._made.translated(topic, record, origin, command)

    def flow(self, topic: str, record: DecodedRecord, origin: int, command: c.Flow) -> None:
        """A FLOW of the log."""
        consumer = self.models.get((topic, command.connection, command.consumer_id))
        same = self._same_permits.pop(origin, 0)
        if consumer is None:
            self._made.pass_on(record, origin, command)
            return
        if consumer.skips_flow or not (consumer.connected or consumer.following):
            consumer.skips_flow = False
            self._made.drop(command)
            return
        if not consumer.permits:
            consumer.permits = command.messagePermits
        permits = command.messagePermits - (self._history.covered.get(origin, 0) - same)
        if permits == command.messagePermits and not consumer.returned:
            self._made.pass_on(record, origin, command)
            return
        self._return_permits(consumer, permits, record, origin)

    def ack(self, topic: str, record: DecodedRecord, origin: int, command: c.Ack) -> None:
        """An ACK of the log."""
        if command.txnid_least_bits or command.txnid_most_bits:
            self._made.left_out["acks of transactions"] += 1
        if command.ack_type == "Cumulative":
            self._ack_cumulative(topic, record, origin, command)
            return
        self._named(topic, record, origin, command, "message_id")

    def redeliver(
        self, topic: str, record: DecodedRecord, origin: int, command: c.RedeliverUnacknowledgedMessages
    ) -> None:
        """A REDELIVER_UNACKNOWLEDGED_MESSAGES of the log."""
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
            self._made.pass_on(record, origin, command)
        elif left:
            self._made.pass_on(record, origin, msgspec.structs.replace(command, **{field: left}))
        else:
            self._made.drop(command)

    def _here(
        self, topic: str, origin: int, command: c.Ack | c.RedeliverUnacknowledgedMessages, field: str, named: c.MessageIdData
    ) -> c.MessageIdData | None:  # fmt: skip
        """An id with the position that its message has here. None: the consumer has not got it as in the log."""
        history, own = self._history.topics[topic], self._made.topics[topic]
        number = history.positions.number_at(from_wire(named.ledgerId, named.entryId))
        if number is None or number >= own.publishes:  # no message of the log so far
            if topic not in self._made.moved_topics:
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
        if topic not in self._made.moved_topics:
            return named
        position = own.position_of(number)
        if position is None or position == (named.ledgerId, named.entryId):
            return None if position is None else named
        return msgspec.structs.replace(named, ledgerId=position.ledger, entryId=position.entry)

    def _ack_cumulative(self, topic: str, record: DecodedRecord, origin: int, command: c.Ack) -> None:
        covered, deliveries = self._history.cumulative.get(origin), self._of(topic, command)
        if not covered or deliveries is None:
            if not covered:
                self._made.translated(topic, record, origin, command)
            else:
                self._made.drop(command)
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
            self._made.translated(topic, record, origin, command)
        elif got and (position := self._made.topics[topic].position_of(max(got))) is not None:
            last = c.MessageIdData(*position, partition=named.partition)
            self._made.pass_on(record, origin, msgspec.structs.replace(command, message_id=[last]))
        else:
            self._made.drop(command)

    def _of(self, topic: str, command: c.Ack | c.RedeliverUnacknowledgedMessages) -> _Deliveries | None:
        name = self._subscription_of.get((topic, command.connection, command.consumer_id))
        return None if name is None else self._deliveries.get((topic, name))

    def close(self, topic: str, command: c.CloseConsumer) -> None:
        """A CLOSE_CONSUMER of the log."""
        consumer = self.models.pop((topic, command.connection, command.consumer_id), None)
        if consumer is not None:
            consumer.gone, consumer.connected = True, False

    def lost(self, is_lost: Callable[[str], bool]) -> None:
        """Connections of the log are lost."""
        for consumer in self.models.values():
            if is_lost(consumer.key[1]):
                consumer.gone, consumer.connected = True, False

    # -- what a client does

    def _return_permits(
        self, consumer: ConsumerModel, permits: int, record: DecodedRecord | None = None, origin: int = -1
    ) -> None:
        """The application took messages: their permits go back once there are enough."""
        consumer.returned += permits
        if consumer.returned < consumer.threshold:
            if record is not None:
                self._made.drop(record.inner)
            return
        permits, consumer.returned = consumer.returned, 0
        if record is None:
            self._own_flow(consumer, permits)
        else:
            self._made.pass_on(record, origin, msgspec.structs.replace(record.inner, messagePermits=permits))

    def _own_flow(self, consumer: ConsumerModel, permits: int) -> None:
        topic, connection, number = consumer.key
        self._made.send_own(topic, c.Flow(connection=connection, consumer_id=number, messagePermits=permits))

    def _first_flow(self, consumer: ConsumerModel, session: int) -> None:
        if consumer.connected and consumer.session == session:
            self._own_flow(consumer, consumer.permits)

    def _resubscribe(self, consumer: ConsumerModel, trying: int) -> None:
        if consumer.connected or consumer.gone or trying != consumer.trying:
            return
        attempt = partial(self._attempt, consumer)
        self._made.attempt(consumer.key[0], consumer.backoff, attempt, self._resubscribe, consumer, trying)

    def _attempt(self, consumer: ConsumerModel) -> None:
        topic, connection, _ = consumer.key
        command = msgspec.structs.replace(consumer.template, request_id=self._made.own_request())
        if not command.durable and consumer.last.ledger >= 0:
            command.start_message_id = c.MessageIdData(*consumer.last.next())
        self._made.requests[topic, connection, command.request_id] = consumer
        self._made.send_own(topic, command)

    def _lost_one(self, consumer: ConsumerModel) -> None:
        """The broker closed or refused the consumer. Its client clears its queue, and comes back."""
        consumer.connected, consumer.following = False, False
        consumer.returned = 0
        if consumer.gone:
            return
        consumer.trying += 1
        self._made.at(
            self._made.now + consumer.backoff.delay(self._made.now),
            self._resubscribe,
            consumer,
            consumer.trying,
        )

    # -- what the broker says

    def broken(self, consumer: ConsumerModel, same: bool, error: str) -> None:
        """A consumer is closed or refused. `same`: so it was in the log."""
        if same and consumer.following:
            consumer.connected = False
            return
        consumer.closed_in_log = consumer.closed_in_log or same
        if error in _NO_SECOND_TRY:
            consumer.connected, consumer.following = False, False
        else:
            self._lost_one(consumer)

    def subscribed(self, consumer: ConsumerModel) -> None:
        """A consumer may take messages."""
        consumer.connected = True
        consumer.session += 1
        consumer.backoff.reset()
        if not consumer.following and consumer.permits:
            self._made.at(self._made.now, self._first_flow, consumer, consumer.session)

    def delivered(self, effect: e.Message, clock: int) -> None:
        """A consumer gets a message."""
        position = Position(effect.ledger_id, effect.entry_id)
        number = self._made.topics[effect.topic].number_at(position)
        if effect.ledger_id <= 0 or number is None:
            return
        key = effect.topic, effect.connection, effect.consumer_id
        deliveries = self._deliveries.get((effect.topic, effect.subscription))
        if deliveries is None:
            history = self._history.topics[effect.topic].subscriptions.get(effect.subscription)
            deliveries = self._deliveries[effect.topic, effect.subscription] = _Deliveries(history)
        which = deliveries.counts[number]
        deliveries.counts[number] = which + 1
        consumer = self.models.get(key)
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
            self._made.at(clock + taken.taken.delay, self._takes, consumer, consumer.session, effect.messages)
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
        dice = self._made.dice(what)
        model = dice.choice(acked) if acked else None
        if model is not None and model.taken is not None:
            return model, model
        return model, dice.choice(habits.took) if habits is not None and habits.took else None

    def _takes(self, consumer: ConsumerModel, session: int, messages: int) -> None:
        if consumer.connected and consumer.session == session:
            self._return_permits(consumer, messages)

    def _acts(
        self, time: int, consumer: ConsumerModel, kind: int, number: int, subscription: str, named: c.MessageIdData | None
    ) -> None:  # fmt: skip
        """Let the consumer ack a message, or ask for it again. Commands of one time go together."""
        group = time, consumer.key, kind, consumer.session
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = []
            self._made.at(time, self._act, consumer, group, subscription)
        found.append((number, self._token, named))

    def _act(
        self, consumer: ConsumerModel, group: tuple[int, ConsumerKey, int, int], subscription: str
    ) -> None:
        asked = self._groups.pop(group)
        _, (topic, connection, number), kind, session = group
        if not consumer.connected or consumer.session != session:
            return
        newest = self._deliveries[topic, subscription].last
        ids: list[c.MessageIdData] = []
        for message, token, named in asked:
            position = self._made.topics[topic].position_of(message)
            if newest.get(message) != token or position is None:
                continue
            if named is None:
                ids.append(c.MessageIdData(*position))
            else:
                ids.append(msgspec.structs.replace(named, ledgerId=position.ledger, entryId=position.entry))
        if not ids:
            return
        if kind == NACK:
            self._made.send_own(
                topic,
                c.RedeliverUnacknowledgedMessages(connection=connection, consumer_id=number, message_ids=ids),
            )
        elif kind == CUMULATIVE:
            last = max(ids, key=lambda each: (each.ledgerId, each.entryId))
            self._made.send_own(
                topic,
                c.Ack(connection=connection, consumer_id=number, ack_type="Cumulative", message_id=[last]),
            )
        else:
            self._made.send_own(
                topic, c.Ack(connection=connection, consumer_id=number, ack_type="Individual", message_id=ids)
            )
