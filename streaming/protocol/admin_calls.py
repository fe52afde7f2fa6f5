"""Calls of the admin REST API as ADMIN commands, and the answers to those as HTTP responses."""

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from schemas.commands import Admin, EncryptionKeys, MessageMetadata
from schemas.effects import AdminResponse
from streaming.broker.admin_requests import topic_of
from streaming.broker.names import partition_of, partitions_of
from streaming.broker.producer.message_size import HEADER, broker_entry_metadata_size
from streaming.protocol.codec import encryption_keys
from streaming.protocol.frames import uncompressed

_NAME = 5
"""The path's elements up to the topic: an empty one, domain, tenant, namespace, topic."""


class HttpResponse(NamedTuple):
    """Status, headers and body of a response."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


def on_partitions(command: Admin, partitions: int) -> Iterator[tuple[str, Admin]]:
    """The same call on each partition of the partitioned topic that a call is about, with the partition's name."""
    topic, path = topic_of(command.path) or "", command.path
    name = "/".join(path.partition("?")[0].split("/")[:_NAME])
    for index, partition in enumerate(partitions_of(topic, partitions)):
        called = partition_of(name, index) + path[len(name) :]
        yield partition, msgspec.structs.replace(command, path=called)


FindEntry = Callable[[str, int, int], tuple[MessageMetadata, bytes, int | None]]
"""(topic, ledger id, entry id) → metadata, payload, and the broker's own timestamp (ms), if it adds one."""


def http_response(answer: AdminResponse, stored: FindEntry) -> HttpResponse:
    """The response to a call, with Pulsar's headers for an entry. Raises what `stored` raises, and
    `NotUncompressed`."""
    status, value = answer.fields.status, answer.fields.response
    if answer.ledger_id is not None and answer.entry_id is not None:
        metadata, payload, broker_timestamp = stored(answer.topic or "", answer.ledger_id, answer.entry_id)
        body = uncompressed(metadata, payload)
        found = headers(answer.ledger_id, answer.entry_id, metadata, len(payload), broker_timestamp)
        return HttpResponse(status, {"Content-Type": "application/octet-stream", **found}, body)
    if value is UNSET:
        return HttpResponse(status, {})
    return HttpResponse(status, {"Content-Type": "application/json"}, msgspec.json.encode(value))


def headers(
    ledger: int, entry: int, metadata: MessageMetadata, payload_size: int, broker_timestamp: int | None = None
) -> dict[str, str]:
    """The headers in which the admin API returns a message's metadata (mirrors `PersistentTopicsBase.generateResponseWithEntry`).
    One that Pulsar repeats is one here, with commas. Without transactions, no message is uncommitted."""
    properties = {pair.key: pair.value for pair in metadata.properties}
    found = {
        "Message-ID": f"{ledger}:{entry}",
        "PROPERTY": msgspec.json.encode(properties).decode(),
        "publish-time": _time(metadata.publish_time),
        "Is-Encrypted": _text(bool(metadata.encryption_keys)),
        "txn-uncommitted": "false",
    }
    if broker_timestamp is not None:
        found["Broker-Entry-METADATA-timestamp"] = _time(broker_timestamp)
    if metadata.num_messages_in_batch is not None:
        # quirk: Pulsar takes what the stored entry has besides its metadata for the batch
        own = 0 if broker_timestamp is None else broker_entry_metadata_size(broker_timestamp)
        found["batch-size"] = str(HEADER + own + payload_size)
    if metadata.num_chunks_from_msg is not None:
        found["PROPERTY-TOTAL-CHUNKS"] = str(metadata.num_chunks_from_msg)
        found["PROPERTY-CHUNK-ID"] = str(metadata.chunk_id or 0)
    if None not in (metadata.txnid_most_bits, metadata.txnid_least_bits):
        found["txn-aborted"] = "false"
    for name, shown in _HEADERS.items():
        value = getattr(metadata, name)
        if value not in (None, b"", "", []):
            found[shown] = _SHOWN.get(name, _text)(value)
    return {f"X-Pulsar-{name}": value for name, value in found.items()}


_HEADERS = {
    "producer_name": "producer-name", "sequence_id": "sequence-id", "event_time": "event-time",
    "deliver_at_time": "deliver-at-time", "replicated_from": "replicated-from", "partition_key": "partition-key",
    "partition_key_b64_encoded": "partition-key-b64-encoded", "ordering_key": "Base64-ordering-key",
    "num_messages_in_batch": "num-batch-message", "compression": "compression", "uncompressed_size": "uncompressed-size",
    "encryption_algo": "encryption-algo", "encryption_param": "Base64-encryption-param",
    "schema_version": "Base64-schema-version", "highest_sequence_id": "highest-sequence-id", "uuid": "uuid",
    "num_chunks_from_msg": "num-chunks-from-msg", "total_chunk_msg_size": "total-chunk-msg-size",
    "chunk_id": "chunk-id", "null_value": "null-value", "null_partition_key": "null-partition-key",
    "replicate_to": "replicated-to", "encryption_keys": "Base64-encryption-keys", "marker_type": "marker-type",
    "txnid_least_bits": "txnid-least-bits", "txnid_most_bits": "txnid-most-bits",
}  # fmt: skip
"""Field of the metadata → header, without ``X-Pulsar-``. A header is there if the field is."""


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, EncryptionKeys):
        value = encryption_keys(
            msgspec.structs.asdict(value) | {"metadata": [*map(msgspec.structs.asdict, value.metadata)]}
        )
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _time(ms: int) -> str:
    """A time as Pulsar shows it: ``2026-11-22T13:02:50.59Z``. One that is in no calendar is shown in ms."""
    try:
        seconds = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(ms)
    fraction = f".{ms % 1000:03}".rstrip("0").rstrip(".")
    return f"{seconds}{fraction}Z"


_SHOWN: dict[str, Callable[[Any], str]] = {"event_time": _time, "deliver_at_time": _time}
