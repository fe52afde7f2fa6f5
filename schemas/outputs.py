"""The output rows of the query: one row per effect, in one table per kind of effect.

`OUTPUT` documents every column. A kind's table has the identity, the clock and the columns that the kind fills, see
`SCHEMAS` and `schemas.effects`.
"""

from collections.abc import Mapping

import pyarrow as pa

from schemas.effects import KINDS
from schemas.records import column

IDENTITY = ("partition", "offset", "ordinal")
"""What makes a row unique. Readers drop repeated rows by it."""

_EPOCH = "ms since the epoch"

OUTPUT = pa.schema(
    [
        column("partition", pa.int32(), "The ingress partition.", nullable=False),
        column("offset", pa.int64(), "The record that caused the row. For a timer's rows: the record whose timestamp "
               "passed the timer. For the trigger's: the last record before.", nullable=False),
        column("ordinal", pa.int32(), "The row's number among those of its offset: 0, 1, …", nullable=False),
        column("clock", pa.int64(), "The partition's clock when it happened.", unit=_EPOCH, nullable=False),
        column("kind", pa.string(), "The kind of row.", nullable=False),
        column("topic", pa.string(), "The full topic name."),
        column("connection", pa.string(), "The client's connection that gets the answer."),
        column("request_id", pa.int64(), "The request's id, as the client chose it."),
        column("producer_id", pa.int64(), "The client's number for the producer, unique on its connection."),
        column("producer_name", pa.string(), "The producer's name, unique on the topic."),
        column("sequence_id", pa.int64(), "The sequence id of the message, or the lowest of a batch."),
        column("highest_sequence_id", pa.int64(), "The highest sequence id of a batch. Null: the client gave none."),
        column("lowest_sequence_id", pa.int64(), "The lowest sequence id of a batch that is refused. Null: it is one message."),
        column("consumer_id", pa.int64(), "The client's number for the consumer, unique on its connection."),
        column("subscription", pa.string(), "The subscription."),
        column("ledger_id", pa.int64(), "The ledger, numbered from 1 in each topic."),
        column("entry_id", pa.int64(), "The entry in its ledger, from 0."),
        column("before_ledger", pa.int64(), "The mark-delete position before: the ledger."),
        column("before_entry", pa.int64(), "The mark-delete position before: the entry. −1: before the ledger's first."),
        column("after_ledger", pa.int64(), "The mark-delete position after: the ledger."),
        column("after_entry", pa.int64(), "The mark-delete position after: the entry. −1: before the ledger's first."),
        column("entries", pa.int64(), "How many entries it concerns.", unit="entries"),
        column("size", pa.int64(), "The size of the entry as stored: headers, metadata and payload.", unit="bytes"),
        column("messages", pa.int32(), "The number of messages in the entry.", unit="messages"),
        column("redelivery_count", pa.int32(), "How often the entry was redelivered before. 0 at first; always 0 on "
               "Exclusive and Failover.", unit="times"),
        column("ack_set", pa.list_(pa.int64()), "The messages of a batch that are not acknowledged yet: words of a bit "
               "set, bit 1 is \"not acknowledged\"."),
        column("consumer_epoch", pa.int64(), "The consumer's epoch when the entry was read. Null: it gave none, or the "
               "subscription is Shared or Key_Shared."),
        column("publish_time", pa.int64(), "The client's publish time.", unit=_EPOCH),
        column("broker_timestamp", pa.int64(), "The broker's time of the entry. Null: `brokerEntryMetadataInterceptors` "
               "is not set.", unit=_EPOCH),
        column("partition_key", pa.string(), "The message's key."),
        column("error", pa.string(), "The error's name in the protocol (ServerError)."),
        column("rule", pa.string(), "The rule that the record breaks."),
        column("cause", pa.string(), "Why it happened, in words."),
        column("policy", pa.string(), "The value of the policy that caused it, and the level that sets it. Null: no policy "
               "did."),
        column("fields", pa.string(), "What only this kind has, as JSON."),
        column("metadata", pa.binary(), "The entry's MessageMetadata, in MessagePack. Null: the other columns say all."),
        column("payload", pa.binary(), "The entry's payload."),
    ]
)  # fmt: skip

SCHEMAS: dict[str, pa.Schema] = {
    kind: pa.schema([field for field in OUTPUT if field.name in {*IDENTITY, "clock", *effect._fields}])
    for effect, kind in KINDS.items()
}
"""The columns of each kind's table, in the order of `OUTPUT`."""

Rows = Mapping[str, pa.Table]
"""Output rows of one ingress partition by kind, in the columns `SCHEMAS` and in identity order. A kind without rows is
absent."""

ENTRY = pa.schema(
    [OUTPUT.field(name) for name in (
        "topic", "ledger_id", "entry_id", "producer_name", "sequence_id", "highest_sequence_id", "publish_time",
        "broker_timestamp", "messages", "size", "partition_key", "metadata", "payload",
    )]
)  # fmt: skip
"""A stored entry, as in segments and sealed ledgers, sorted by (topic, ledger_id, entry_id)."""
