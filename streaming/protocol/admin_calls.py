"""Calls of the admin REST API as ADMIN commands, and the answers to those as HTTP responses."""

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from schemas.commands import Admin, MessageMetadata
from schemas.effects import AdminResponse
from streaming.broker.admin_requests import topic_of
from streaming.broker.names import partition_of, partitions_of
from streaming.protocol.frames import FindStored, uncompressed

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


def http_response(answer: AdminResponse, stored: FindStored) -> HttpResponse:
    """The response to a call, with Pulsar's headers for an entry. Raises what `stored` raises, and
    `NotUncompressed`."""
    status, value = answer.fields.status, answer.fields.response
    if answer.ledger_id is not None and answer.entry_id is not None:
        metadata, payload = stored(answer.topic or "", answer.ledger_id, answer.entry_id)
        body = uncompressed(metadata, payload)
        found = headers(answer.ledger_id, answer.entry_id, metadata)
        return HttpResponse(status, {"Content-Type": "application/octet-stream", **found}, body)
    if value is UNSET:
        return HttpResponse(status, {})
    return HttpResponse(status, {"Content-Type": "application/json"}, msgspec.json.encode(value))


def headers(ledger: int, entry: int, metadata: MessageMetadata) -> dict[str, str]:
    """The headers in which the admin API returns a message's metadata."""
    properties = {pair.key: pair.value for pair in metadata.properties}
    found = {
        "Message-ID": f"{ledger}:{entry}",
        "PROPERTY": msgspec.json.encode(properties).decode(),
        "publish-time": _time(metadata.publish_time),
        "Is-Encrypted": _text(bool(metadata.encryption_keys)),
    }
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
}  # fmt: skip
"""Field of the metadata → header, without ``X-Pulsar-``. A header is there if the field is."""


def _text(value: Any) -> str:
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
