"""SEND and the short form up to where the kinds of topics differ: the request as a write, and the checks that all topics
make (mirrors `ServerCnx.handleSend` and `Producer.publishMessage`; docs/rules/producers.md §11–§13).
"""

from schemas.commands import MessageMetadata, Publish, Send
from schemas.effects import SendError
from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import Context
from streaming.broker.policies.hierarchy import HierarchyTopicPolicies
from streaming.broker.producer.message_size import HEADER, metadata_size, plain_metadata_size
from streaming.broker.producer.producer import Producer
from streaming.broker.topic.abstract_topic import AbstractTopic, PendingWrite

_SHADOW = "Cannot send messages to a shadow topic"


def from_send(ctx: Context, topic: AbstractTopic, command: Send) -> PendingWrite | None:
    """A SEND as a write. None: the connection has no such producer, and is closed for that unless the broker closed the
    producer a moment ago.
    """
    name = topic.producer_handles.get(command.connection, command.producer_id)
    if name is None:
        closed_until = ctx.closed_producers.get(command.connection, {}).get(command.producer_id, -1)
        if ctx.clock > closed_until:
            cause = f"SEND for producer {command.producer_id}, which this connection has not created"
            ctx.close_connection(topic.name, command.connection, cause)
        return None
    return _write(topic.producers[name], command)


def from_source(ctx: Context, topic: AbstractTopic, command: Send) -> PendingWrite:
    """A SEND with an entry of the source of a shadow topic as a write. Its producer published to the source, so it need not be known
    here. The answer is for who sends the entry."""
    name = command.metadata.producer_name
    return _write(Producer(name, command.connection, command.producer_id, created=ctx.clock), command)


def _write(producer: Producer, command: Send) -> PendingWrite:
    highest = command.highest_sequence_id
    if highest is not None and highest < command.sequence_id:
        highest = None
    payload = command.payload_bytes or command.payload.encode()
    size = HEADER + metadata_size(command.metadata) + len(payload)
    return PendingWrite(producer, command.sequence_id, highest, command.metadata, payload, size, plain=False)


def may_send(
    ctx: Context, topic: AbstractTopic, policies: HierarchyTopicPolicies, command: Send, write: PendingWrite
) -> bool:
    """The checks that a producer makes on a SEND. False: it was refused."""
    if (command.txnid_least_bits or command.txnid_most_bits) and not (
        topic.has_transactions and ctx.config.transactionCoordinatorEnabled
    ):
        refuse(ctx, topic, write, "NotAllowedError", "Transaction buffer disable!")
    elif command.message_id is not None:
        refuse(
            ctx, topic, write, "NotAllowedError", "Only shadow topic supports sending messages with messageId"
        )
    elif topic.is_shadow:
        refuse(ctx, topic, write, "NotAllowedError", _SHADOW)
    elif write.producer.name in topic.closing_producers:
        refuse(ctx, topic, write, "PersistenceError", "Producer is closed")
    elif not command.metadata.encryption_keys and policies.messages_encrypted:
        refuse(ctx, topic, write, "MetadataError", "Messages must be encrypted")
    else:
        return True
    return False


def from_short_form(ctx: Context, topic: AbstractTopic, command: Publish) -> PendingWrite:
    """The short form as a write. A producer that the topic does not know yet is a new one. A REST call uses none of the topic's."""
    name = command.producer
    known = None if command.rest else topic.producers.get(name)
    producer = known or Producer(name, "", None, created=ctx.clock)
    time = ctx.clock if command.publish_time is None else command.publish_time
    payload = command.payload_bytes or command.payload.encode()
    metadata = MessageMetadata(name, command.sequence_id, time, partition_key=command.key)
    plain = not command.properties and command.event_time is None and command.deliver_at_time is None
    if plain:
        size = plain_metadata_size(name, command.sequence_id, time, command.key)
    else:
        metadata.properties = command.key_values()
        metadata.event_time, metadata.deliver_at_time = command.event_time, command.deliver_at_time
        size = metadata_size(metadata)
    return PendingWrite(
        producer, command.sequence_id, None, metadata, payload, HEADER + size + len(payload), plain
    )


def may_publish(
    ctx: Context, topic: AbstractTopic, policies: HierarchyTopicPolicies, write: PendingWrite, *, rest: bool
) -> bool:
    """The checks that a producer makes on the short form, which is never encrypted. False: it was refused. `rest`: there is no producer
    that could make them."""
    if topic.is_shadow:
        refuse(ctx, topic, write, "NotAllowedError", _SHADOW)
    elif rest:
        return True
    elif policies.encryptionRequired:
        refuse(ctx, topic, write, "MetadataError", "Messages must be encrypted")
    elif write.producer.name in topic.closing_producers:
        refuse(ctx, topic, write, "PersistenceError", "Producer is closed")
    else:
        return True
    return False


def too_large(ctx: Context, policies: HierarchyTopicPolicies, write: PendingWrite) -> str | None:
    """Why an entry has too many messages or bytes; None: it has not. The bytes of chunks are not checked."""
    batch = write.metadata.num_messages_in_batch is not None
    if batch and (refusal := too_many_messages(ctx.config, write.metadata, write.payload)) is not None:
        return refusal
    if write.metadata.chunk_id is not None:
        return None
    largest = ctx.config.maxMessageSize
    if len(write.payload) > largest:
        return f"payload of {len(write.payload)} bytes, the broker takes {largest}"
    limit = policies.maxMessageSize
    if 0 < limit < largest and write.size > limit:
        return "Exceed maximum message size"
    return None


def too_many_messages(config: ServiceConfiguration, metadata: MessageMetadata, payload: bytes) -> str | None:
    """Why a batch can't have so many messages, or None.

    Pulsar's broker never looks into a batch. Here a batch has at most one message per byte of its payload, so that what is
    kept for an entry (its ack set) is in proportion to its record. Without a payload, as in a log that leaves payloads
    out, only maxMessagesPerBatch counts.
    """
    messages, most = metadata.num_messages_in_batch, config.maxMessagesPerBatch
    if messages is None:
        return None
    if messages > most:
        return f"a batch of {messages} messages, the broker takes {most}"
    size = len(payload) if metadata.compression in (None, "NONE") else metadata.uncompressed_size
    if payload and size is not None and size < messages:
        return f"a batch of {messages} messages in {size} bytes"
    return None


def refuse(ctx: Context, topic: AbstractTopic, write: PendingWrite, error: str, cause: str) -> None:
    """SEND_ERROR, with the highest sequence id of the message or batch."""
    producer, lowest = write.producer, write.sequence_id
    highest = lowest if write.highest_sequence_id is None else write.highest_sequence_id
    ctx.emit(
        SendError(topic.name, producer.connection, producer.producer_id, producer.name, highest, error, cause,
                  None if lowest == highest else lowest)
    )  # fmt: skip
