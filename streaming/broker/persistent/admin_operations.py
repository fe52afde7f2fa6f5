"""What operators do to a persistent topic through the admin API (D4).

Every known call is one row of `CALLS`. Any other call is answered 404 and put out as unsupported.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from schemas.commands import Admin
from schemas.effects import CursorMoved, Expired, TopicEvent
from schemas.units import Int32, Int64
from streaming.broker.admin_requests import answer_from, call_of
from streaming.broker.admin_table import NUMBERS, TOPIC, AdminAnswer, Call, Names, Table
from streaming.broker.context import Context
from streaming.broker.errors import AdminError, BrokerError
from streaming.broker.names import is_subscription_name, partition_index
from streaming.broker.parameters import flag, query, read_number
from streaming.broker.persistent import leaving, seeking, stats, subscribing
from streaming.broker.persistent.cleanup import backlog_analysis, message_expiry, message_finder
from streaming.broker.persistent.cleanup.trimming import move_cursor, trim
from streaming.broker.persistent.compaction import compactor
from streaming.broker.persistent.lifecycle import terminate, unload
from streaming.broker.persistent.subscription import PersistentSubscription
from streaming.broker.persistent.topic import SHADOW_SOURCE, PersistentTopic, Reason
from streaming.broker.policies.arguments import convert
from streaming.broker.position import EARLIEST, LATEST, Position
from streaming.broker.topic.policy_calls import call_policy
from streaming.broker.topic.stats import internal_stats


def call_topic(ctx: Context, topic: PersistentTopic, command: Admin) -> bool:
    """Answer a call on a persistent topic. Was a policy changed?"""
    call = call_of(command)
    if (changed := call_policy(ctx, topic, command, call)) is not None:
        return changed
    answer_from(ctx, topic.name, command, CALLS, lambda handler, names: handler(ctx, topic, command, names))
    return False


class MessageIdBody(msgspec.Struct):
    """A position in the body of a call. Absent fields default to those of Latest.

    quirk: the field is ``excluded``. Pulsar ignores ``isExcluded`` (recorded in admin_reset_cursor).
    """

    ledgerId: Int64 = LATEST.ledger
    entryId: Int64 = LATEST.entry
    partitionIndex: Int32 = -1
    batchIndex: Int32 = -1
    excluded: bool = False
    properties: dict[str, str] = {}

    @classmethod
    def read(cls, body: Any) -> "MessageIdBody":
        """Raises `AdminError` for a body that is not a position."""
        found: MessageIdBody = convert({} if body is None else body, cls)
        return found

    @property
    def position(self) -> Position:
        """The entry. A batch index is not part of it."""
        return Position(self.ledgerId, self.entryId)

    def start(self, ctx: Context, topic: PersistentTopic) -> tuple[Position, int]:
        """Where to go on from, and which messages of that batch are left (a bit set; 0: the whole entry)."""
        position, messages = self.position, 0
        if self.batchIndex >= 0 and _is_stored(topic, position):
            messages = ctx.entries.get(topic.name, position).messages
        first = self.batchIndex + self.excluded
        if 0 < first < messages:
            return position, (1 << messages) - (1 << first)
        return position.next() if self.excluded else position, 0


def _subscription(topic: PersistentTopic, name: str) -> PersistentSubscription:
    found = topic.subscriptions.get(name)
    if found is None or found.awaits_its_reader:
        raise AdminError(404, f"Subscription {name} not found for topic {topic.name}")
    return found


def _create_topic(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Create a topic without partitions. The body has its properties, if it has any."""
    topic.properties = read_properties(command.body)
    return 204, None


def _create_subscription(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Create a durable subscription before the message at the position in the body; without a body: at the latest message."""
    if names["subscription"] in topic.subscriptions:
        raise AdminError(409, "Subscription already exists for topic")
    if not is_subscription_name(names["subscription"]):
        raise AdminError(412, f"'{names['subscription']}' is empty or reserved")
    body = MessageIdBody.read(command.body)
    target = body.position
    subscription = _create(ctx, topic, names["subscription"], earliest=False, properties=body.properties)
    subscription.replicated = flag(command.path, "replicated")
    # Pulsar always resets a new cursor. At Latest this only shows if the last ledger with an entry was trimmed.
    if target < LATEST or topic.ledger.last_confirmed.ledger not in topic.ledger.ledgers:
        seeking.reset(ctx, topic, subscription, target, "created at a message id")
    return 204, None


def _create(
    ctx: Context,
    topic: PersistentTopic,
    name: str,
    *,
    earliest: bool,
    properties: dict[str, str] | None = None,
) -> PersistentSubscription:
    try:
        subscribing.check_max_subscriptions(ctx, topic, name)
    except BrokerError as error:
        raise AdminError(409, error.cause) from None
    try:
        return subscribing.create(ctx, topic, name, earliest=earliest, properties=properties)
    except BrokerError as error:
        raise AdminError(500, error.cause) from None


def _delete_subscription(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Delete a subscription. With `?force=true`, also one that has consumers."""
    delete_subscription(ctx, topic, names["subscription"], force=flag(command.path, "force"))
    return 204, None


def delete_subscription(ctx: Context, topic: PersistentTopic, name: str, *, force: bool = False) -> None:
    """Delete a subscription, with `force` also one that has consumers. Raises `AdminError`."""
    subscription = _subscription(topic, name)
    if subscription.consumers and not force:
        raise AdminError(412, "Subscription has active connected consumers")
    leaving.delete(ctx, topic, subscription, "by an administrator")


def _skip(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Skip the next messages that are not acknowledged. Below 0: none."""
    subscription = _subscription(topic, names["subscription"])
    cursor, count = topic.cursors[subscription.name], names["count"]
    reason = Reason(CursorMoved, f"skipped {count}")
    move_cursor(ctx, topic, cursor, reason, cursor.skip, topic.ledger, max(int(count), 0), exclude_acked=True)
    return 204, None


def _skip_all(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Skip everything in the subscription's backlog."""
    clear_backlog(ctx, topic, _subscription(topic, names["subscription"]))
    return 204, None


def clear_backlog(ctx: Context, topic: PersistentTopic, subscription: PersistentSubscription) -> None:
    """Skip everything in a subscription's backlog."""
    cursor = topic.cursors[subscription.name]
    if subscription.dispatcher is not None:
        subscription.dispatcher.clear_delayed()
    reason = Reason(CursorMoved, "backlog cleared")
    move_cursor(ctx, topic, cursor, reason, cursor.clear_backlog, topic.ledger)


def _reset_to_time(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Reset the subscription to the first message published at or after the time, in ms since the epoch. Below 0: to the
    earliest."""
    target = seeking.position_at(ctx, topic, int(names["time"]))
    if target is None:
        raise AdminError(500, seeking.UNREADABLE)
    seeking.reset(ctx, topic, _subscription(topic, names["subscription"]), target, "reset to a time")
    return 204, None


def _reset_to_id(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Reset the subscription to the position in the body: the next message to be read."""
    subscription = _subscription(topic, names["subscription"])
    target, left = MessageIdBody.read(command.body).start(ctx, topic)
    batch = left if left and ctx.config.acknowledgmentAtBatchIndexLevelEnabled else None
    seeking.reset(ctx, topic, subscription, target, "reset to a message id", batch)
    return 204, None


def _expire(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Expire messages of the subscription that are older than this, in seconds. 0: none. Below 0: also those that clocks
    which are so fast will publish."""
    return _expire_older(
        ctx, topic, int(names["seconds"]), [_subscription(topic, names["subscription"]).name]
    )


def _expire_all(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Expire messages of every subscription that are older than this, in seconds. As for one subscription."""
    everything = ctx.config.compactionSubscriptionExpires
    found = topic.known_subscriptions() if everything else topic.expiring_subscriptions()
    return _expire_older(ctx, topic, int(names["seconds"]), found)


def _expire_older(ctx: Context, topic: PersistentTopic, seconds: int, names: list[str]) -> AdminAnswer:
    """Expire the entries of each subscription. The call is refused if one of them is left alone."""
    refused = message_expiry.expire_older(ctx, topic, names, seconds, f"older than {seconds} s (admin)")
    if refused:
        raise AdminError(409, _NOT_EXPIRED.format(topic=topic.name, subscription=refused[0]))
    return 204, None


_NOT_EXPIRED = (
    "Expire message by timestamp not issued on topic {topic} for subscription {subscription} due to ongoing message expiration not "
    "finished or subscription almost catch  up. If it's performed on a partitioned topic operation might succeeded on other "
    "partitions, please check stats of individual partition."
)


def _expire_to_position(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Expire messages of the subscription up to the position in the body."""
    subscription = _subscription(topic, names["subscription"])
    position, _ = MessageIdBody.read(command.body).start(ctx, topic)
    reason = Reason(Expired, "expired by an administrator", f"position {position}")
    if not message_expiry.expire_to_position(ctx, topic, [subscription.name], position, reason):
        raise AdminError(
            409, f"Expire message by position not issued: {position} is beyond the end of the topic"
        )
    return 204, None


def _entry(topic: PersistentTopic, position: Position | None) -> AdminAnswer:
    """The response that stands for an entry is its position: whoever answers the client reads the entry."""
    if position is None or not _is_stored(topic, position):
        raise AdminError(404, "Message not found")
    _check_readable(topic)
    return 200, position


def _check_readable(topic: PersistentTopic) -> None:
    """Raises `AdminError` if Pulsar fails to read any single entry."""
    if topic.ledger.without_open:
        raise AdminError(500, seeking.NO_OPEN_LEDGER)


def _is_stored(topic: PersistentTopic, position: Position) -> bool:
    return position <= topic.ledger.last_confirmed and topic.ledger.valid(position)


def _get_by_id(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """The message at a position."""
    position = Position(int(names["ledger"]), int(names["entry"]))
    if position.ledger not in topic.ledger.ledgers:
        raise AdminError(404, "Message id not found")
    if not _is_stored(topic, position):
        raise AdminError(500, f"{position} is past the end of its ledger")  # Pulsar tries to read it
    return _entry(topic, position)


def _examine(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """The n-th message (`?messagePosition=n`, from 1), counted from the earliest or from the latest one
    (`?initialPosition=earliest`, `latest`). Beyond the latest one: the latest."""
    given = query(command.path)
    start = given.get("initialPosition")
    n = max(read_number(given.get("messagePosition", ""), NUMBERS["messagePosition"]), 1)
    ledger = topic.ledger
    if not ledger.number_of_entries:
        raise AdminError(412, "Could not examine messages due to the total message is zero")
    if start != "earliest":  # quirk: whatever else it is
        n = ledger.number_of_entries - n + 1
        if n < 1:
            raise AdminError(500, "no entry is so far from the latest one")  # Pulsar tries to read entry -1
    return _entry(topic, ledger.position_after(ledger.first_position(), n))


def _terminate(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Terminate the topic: it takes no more messages. The answer is the last position."""
    terminate(ctx, topic)
    return 200, _message_id(ctx, -1, topic.ledger.last_confirmed)


def _message_id(ctx: Context, partition: int, position: Position, batch_index: int = -1) -> dict[str, int]:
    """A message id as Pulsar encodes it in JSON."""
    found = {"ledgerId": position.ledger, "entryId": position.entry, "partitionIndex": partition}
    if not ctx.config.adminMessageIdsNameBatch:
        return found
    found |= {"batchIndex": batch_index, "batchSize": 0}
    return found if batch_index < 0 else found | {"outstandingAcksInSameBatch": 0, "originalBatchSize": 0}


def _last_message_id(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """The id of the last message. Entry −1: the topic has none."""
    last = topic.ledger.last_confirmed
    if last.entry < 0:
        return 200, _message_id(ctx, partition_index(topic.name), last)
    if last.ledger not in topic.ledger.ledgers:
        return 200, _message_id(ctx, -1, EARLIEST)
    _check_readable(topic)
    messages = ctx.entries.get(topic.name, last).metadata.num_messages_in_batch
    batch_index = -1 if messages is None else messages - 1
    return 200, _message_id(ctx, partition_index(topic.name), last, batch_index)


def _message_id_at(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """The id of the first message published at or after the time, in ms since the epoch. If there is none, the id that the
    next message gets."""
    time = int(names["time"])
    position = compactor.first_published_at(ctx, topic, time) if ctx.config.findsCompactedByTime else None
    if position is None:
        position = message_finder.first_published_at(ctx, topic, time)
    if position is None:
        raise AdminError(404, "Message ID not found")
    return 200, _message_id(ctx, partition_index(topic.name), position)


def _message_id_by_index(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """The id of the message with the index `?index=…`, which the broker gives messages if it is told to append it. It can't be told here, so
    that no message has one."""
    if not ctx.config.brokerEntryMetadataInterceptors:
        raise AdminError(412, "GetMessageIDByIndex is not allowed when broker entry metadata is disabled")
    if topic.ledger.number_of_entries == 0:
        raise AdminError(404, f"No messages found in topic {topic.name}")
    raise AdminError(412, "Broker entry metadata is not present in the message")


def _create_missed_partitions(
    ctx: Context, topic: PersistentTopic, command: Admin, names: Names
) -> AdminAnswer:
    """Create the partitions that are missing: of a partitioned topic, none ever is."""
    raise AdminError(404, f"Topic {topic.name} does not exist")


def _properties(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """The topic's properties."""
    return 200, topic.properties


def _put_properties(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Set the properties in the body. The topic's other properties stay."""
    found = read_properties(command.body)
    check_stays_as_it_is(topic.properties, topic.properties | found)
    topic.properties = topic.properties | found
    return 204, None


def _delete_property(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Remove the property `?key=…`."""
    key = query(command.path).get("key", "")
    left = {name: value for name, value in topic.properties.items() if name != key}
    check_stays_as_it_is(topic.properties, left)
    topic.properties = left
    return 204, None


def check_stays_as_it_is(before: dict[str, str], after: dict[str, str]) -> None:
    """A topic is a shadow topic from the beginning and for good. Raises `AdminError`."""
    if before.get(SHADOW_SOURCE) != after.get(SHADOW_SOURCE):
        raise AdminError(412, f"{SHADOW_SOURCE} is given when the topic is created")


def read_properties(body: Any) -> dict[str, str]:
    """The properties in the body of a call. Raises `AdminError`."""
    found: dict[str, str] = convert({} if body is None else body, dict[str, str])
    return found


def _subscription_properties(
    ctx: Context, topic: PersistentTopic, command: Admin, names: Names
) -> AdminAnswer:
    """The subscription's properties."""
    return 200, _subscription(topic, names["subscription"]).properties


def _put_subscription_properties(
    ctx: Context, topic: PersistentTopic, command: Admin, names: Names
) -> AdminAnswer:
    """Replace the subscription's properties by those in the body."""
    _subscription(topic, names["subscription"]).properties = read_properties(command.body)
    return 204, None


def _replicated(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Whether the subscription is said to be replicated to other clusters, of which there are none."""
    return 200, {topic.name: _subscription(topic, names["subscription"]).replicated}


def _set_replicated(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Say whether the subscription is replicated. One that is does not expire."""
    _subscription(topic, names["subscription"]).replicated = convert(command.body, bool)
    return 204, None


def _analyze_backlog(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Count what the entry filters make of the subscription's backlog, from the position in the body or from its start."""
    subscription = _subscription(topic, names["subscription"])
    start = None if command.body is None else MessageIdBody.read(command.body).position
    return 200, backlog_analysis.analyze(ctx, topic, subscription, start)


def _stats(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """The statistics of the topic. `?getEarliestTimeInBacklog=true`: with the publish times of the oldest messages in backlogs.
    `?subscriptionBacklogSize=false`: without the sizes of backlogs, −1."""
    found = stats.stats_with_rates(topic, ctx)
    if flag(command.path, "getEarliestTimeInBacklog"):
        stats.add_earliest_times(ctx, topic, found)
    if not flag(command.path, "subscriptionBacklogSize", default=True):
        for each in found["subscriptions"].values():
            each["backlogSize"] = -1
    return 200, found


def _internal_stats(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """The statistics of the topic's ledgers and cursors."""
    found = internal_stats(topic.ledger, topic.cursors, topic.compaction.ledger)
    for name, cursor in found["cursors"].items():
        cursor["active"] = name in topic.subscriptions and bool(topic.subscriptions[name].consumers)
    return 200, found


def _subscriptions(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """The names of the subscriptions."""
    return 200, topic.known_subscriptions()


def _peek(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """The n-th message (from 1) that is not acknowledged. A subscription that does not exist is created at the earliest
    message."""
    name = names["subscription"]
    if int(names["n"]) < 1:
        raise AdminError(500, "Message positions start at 1")  # as a call fails that Pulsar did not expect
    if name not in topic.subscriptions and is_subscription_name(name):
        _create(ctx, topic, name, earliest=True)
    cursor = topic.cursors[_subscription(topic, name).name]
    position = cursor.peek(topic.ledger, int(names["n"]))
    if position is not None and position.entry < 0:
        raise AdminError(500, seeking.UNREADABLE)
    return _entry(topic, position)


def _backlog_size(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """The estimated size of what comes after the position in the body, in bytes. All, if the topic does not have its ledger."""
    position, ledger = MessageIdBody.read(command.body).position, topic.ledger
    if position.ledger not in ledger.ledgers:
        return 200, ledger.total_size
    return 200, ledger.estimate_backlog_from(position)


def _trim(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Trim the ledgers that nobody needs, as far as retention allows."""
    trim(ctx, topic)
    return 200, None


def _truncate(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Clear the backlog of each subscription and delete all closed ledgers (docs/rules/retention.md §9)."""
    ledger = topic.ledger
    for cursor in topic.cursors.values():
        if ledger.last_confirmed > cursor.mark_delete:
            topic.record_move(ctx, cursor, Reason(CursorMoved, "truncate"), cursor.clear_backlog, ledger)
            if (subscription := topic.subscriptions.get(cursor.name)) is not None:
                subscription.mark_delete_moved(topic.context_of(ctx, subscription))
    trim(ctx, topic, truncate=True)
    return 204, None


def _unload(ctx: Context, topic: PersistentTopic, command: Admin, names: Names) -> AdminAnswer:
    """Close the topic until something uses it. Its clients are disconnected."""
    ctx.emit(TopicEvent(topic.name, "unloaded by an administrator"))
    unload(ctx, topic)
    return 204, None


CALLS: Table[Callable[[Context, PersistentTopic, Admin, Names], AdminAnswer]] = Table(
    TOPIC,
    (
        Call("PUT", "", _create_topic, "one"),
        Call("PUT", "/subscription/{subscription}", _create_subscription, "each"),
        Call("DELETE", "/subscription/{subscription}", _delete_subscription, "each"),
        Call("POST", "/subscription/{subscription}/skip/{count}", _skip, "one",
             "Skip messages on a partitioned topic is not allowed"),
        Call("POST", "/subscription/{subscription}/skip_all", _skip_all, "each"),
        Call("POST", "/subscription/{subscription}/resetcursor/{time}", _reset_to_time, "each"),
        Call("POST", "/subscription/{subscription}/resetcursor", _reset_to_id, "one",
             "Reset-cursor at position is not allowed for partitioned-topic"),
        Call("POST", "/subscription/{subscription}/expireMessages/{seconds}", _expire, "each"),
        Call("POST", "/subscription/{subscription}/expireMessages", _expire_to_position, "one",
             "Expire message at position is not supported for partitioned-topic"),
        Call("POST", "/all_subscription/expireMessages/{seconds}", _expire_all, "each"),
        Call("GET", "/subscription/{subscription}/position/{n}", _peek, "one",
             "Peek messages on a partitioned topic is not allowed"),
        Call("GET", "/ledger/{ledger}/entry/{entry}", _get_by_id, "one",
             "GetMessageById is not allowed on partitioned-topic"),
        Call("GET", "/examinemessage", _examine, "one",
             "Examine messages on a partitioned topic is not allowed, please try examine message on specific topic partition",
             ("messagePosition",)),
        Call("GET", "/subscriptions", _subscriptions, "each"),
        Call("GET", "/stats", _stats, "one"),
        Call("GET", "/internalStats", _internal_stats, "one"),
        Call("GET", "/lastMessageId", _last_message_id, "one"),
        Call("GET", "/messageid/{time}", _message_id_at, "one",
             "Get message ID by timestamp on a partitioned topic is not allowed, please try do it on specific topic partition"),
        Call("GET", "/getMessageIdByIndex", _message_id_by_index, "one",
             "GetMessageIDByIndex is not allowed on partitioned-topic", ("index",)),
        Call("POST", "/createMissedPartitions", _create_missed_partitions),
        Call("GET", "/properties", _properties),
        Call("PUT", "/properties", _put_properties),
        Call("DELETE", "/properties", _delete_property),
        Call("GET", "/subscription/{subscription}/properties", _subscription_properties, "each"),
        Call("PUT", "/subscription/{subscription}/properties", _put_subscription_properties, "each"),
        Call("GET", "/subscription/{subscription}/replicatedSubscriptionStatus", _replicated, "each"),
        Call("POST", "/subscription/{subscription}/replicatedSubscriptionStatus", _set_replicated, "each"),
        Call("POST", "/subscription/{subscription}/analyzeBacklog", _analyze_backlog, "one",
             "Analyze backlog on a partitioned topic is not allowed, please try do it on specific topic partition"),
        Call("PUT", "/backlogSize", _backlog_size, "one",
             "calculate backlog size is not allowed for partitioned-topic"),
        Call("POST", "/terminate", _terminate, "one",
             "Termination of a partitioned topic is not allowed"),
        Call("PUT", "/compaction", compactor.trigger, "each"),
        Call("GET", "/compaction", compactor.status, "one"),
        Call("POST", "/trim", _trim, "each"),
        Call("DELETE", "/truncate", _truncate, "each"),
        Call("PUT", "/unload", _unload, "each"),
    ),
)  # fmt: skip
"""The calls on a topic, but for those on its policies."""
