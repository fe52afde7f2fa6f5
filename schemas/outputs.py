"""The output rows of the query: one wide table, one row an effect, null where a kind has no such column.

The kinds and which columns each fills: `schemas.effects`. `OUTPUT` is the operator's schema (Spark's types are
derived from it); the table sink writes one table a kind with only that kind's columns.
"""

import pyarrow as pa

from schemas.records import column

IDENTITY = ("partition", "offset", "ordinal")
"""What makes a row unique: readers drop repeats by it."""

OUTPUT = pa.schema(
    [
        column("partition", pa.int32(), "ingress partition", nullable=False),
        column("offset", pa.int64(), "the record that caused it (a timer's effects: the record that passed it)",
               nullable=False),
        column("ordinal", pa.int32(), "0, 1, … among the effects since the record before", nullable=False),
        column("clock", pa.int64(), "the partition's clock when it happened, ms since the epoch", nullable=False),
        column("kind", pa.string(), "the effect, see schemas.effects", nullable=False),
        column("topic", pa.string(), "full topic name"),
        column("connection", pa.string(), "the client's connection that gets the answer; empty: none"),
        column("request_id", pa.int64(), "echo of the request"),
        column("producer_id", pa.int64(), "client-chosen, unique on its connection"),
        column("producer_name", pa.string(), "name of the producer on the topic"),
        column("sequence_id", pa.int64(), "(lowest) sequence id of the message or batch"),
        column("highest_sequence_id", pa.int64(), "highest sequence id of a batch; null: none was given"),
        column("consumer_id", pa.int64(), "client-chosen, unique on its connection"),
        column("subscription", pa.string(), "subscription (or the cursor pulsar.dedup)"),
        column("ledger_id", pa.int64(), "ledger, numbered from 1 in each topic; −1 in the receipt of a duplicate"),
        column("entry_id", pa.int64(), "entry in its ledger, from 0; −1 in the receipt of a duplicate"),
        column("before_ledger", pa.int64(), "mark-delete position before: ledger"),
        column("before_entry", pa.int64(), "mark-delete position before: entry (−1: before the first)"),
        column("after_ledger", pa.int64(), "mark-delete position after: ledger"),
        column("after_entry", pa.int64(), "mark-delete position after: entry"),
        column("entries", pa.int64(), "entries concerned"),
        column("size", pa.int64(), "bytes as stored: of the entry or of the ledger"),
        column("messages", pa.int32(), "messages in the entry"),
        column("redelivery_count", pa.int32(), "times redelivered before, 0 at first"),
        column("ack_set", pa.list_(pa.int64()), "words of the bit set of unacked messages of a batch (bit 1 = unacked)"),
        column("consumer_epoch", pa.int64(), "epoch in force when the entry was read"),
        column("publish_time", pa.int64(), "the client's publish time, ms since the epoch"),
        column("broker_timestamp", pa.int64(), "the broker's time of the entry, if it notes one, ms since the epoch"),
        column("partition_key", pa.string(), "the message's key"),
        column("error", pa.string(), "ServerError name"),
        column("rule", pa.string(), "quarantine: the rule that was broken"),
        column("cause", pa.string(), "why it happened, in words"),
        column("policy", pa.string(), "the policy's value and level that caused it"),
        column("fields", pa.string(), "JSON: what only this kind has"),
        column("metadata", pa.binary(), "the entry's MessageMetadata in MessagePack; null when the other columns say all"),
        column("payload", pa.binary(), "the entry's payload; quarantine: the raw value"),
    ]
)  # fmt: skip

ENTRY = pa.schema(
    [OUTPUT.field(name) for name in (
        "topic", "ledger_id", "entry_id", "producer_name", "sequence_id", "highest_sequence_id", "publish_time",
        "broker_timestamp", "messages", "size", "partition_key", "metadata", "payload",
    )]
)  # fmt: skip
"""A stored entry, as in segments and sealed ledgers, sorted by (topic, ledger_id, entry_id)."""
