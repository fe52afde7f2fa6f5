"""``POST /topics/…``: messages published through HTTP (mirrors `TopicsBase`)."""

import struct
from typing import Any

import msgspec

from schemas.commands import Publish, SchemaData
from streaming.broker.schema.schema_definition import InvalidSchema, validate

DEFAULT_PRODUCER = "RestProducer"
_NUMBERS = {"INT8": ">b", "INT16": ">h", "INT32": ">i", "INT64": ">q", "FLOAT": ">f", "DOUBLE": ">d"}


class BadMessage(ValueError):
    """A message can't be published as the request asks. The text says why."""


class Schema(msgspec.Struct):
    """A schema in a request: its definition in base64."""

    type: str = "STRING"
    schema: bytes = b""
    properties: dict[str, str] | None = None


STRING = Schema(properties={"__charset": "UTF-8"})
"""The schema of a request that names none."""


class RestMessage(msgspec.Struct, rename="camel"):
    """A message of a request. Times in ms."""

    payload: str
    key: str | None = None
    properties: dict[str, str] | None = None
    event_time: int | None = None
    sequence_id: int | None = None
    deliver_at: int | None = None
    deliver_after_ms: int | None = None


class RestMessages(msgspec.Struct, rename="camel"):
    """The body of a request."""

    messages: list[RestMessage]
    producer_name: str = DEFAULT_PRODUCER
    value_schema: str | None = None
    key_schema: str | None = None
    schema_version: int = -1


def messages_of(body: Any) -> RestMessages:
    """The messages of a request. Raises `BadMessage`."""
    try:
        return msgspec.convert(body, RestMessages, strict=False)
    except msgspec.ValidationError as error:
        raise BadMessage(str(error)) from None


def schema_of(given: RestMessages) -> Schema:
    """The schema of a request's messages. Raises `BadMessage`."""
    if given.key_schema is not None:
        raise BadMessage("keySchema is not supported")
    if given.value_schema is None:
        return STRING
    try:
        found = msgspec.json.decode(given.value_schema, type=Schema)
    except (msgspec.DecodeError, ValueError):
        raise BadMessage("Fail to add or retrieve schema.") from None
    if found.type not in ("STRING", "JSON", "BOOLEAN", *_NUMBERS):
        raise BadMessage(f"messages of the schema type {found.type} are not supported")
    try:
        validate(SchemaData(schema_data=found.schema, type=found.type.capitalize()))
    except InvalidSchema as error:
        raise BadMessage(str(error)) from None
    return found


def command(message: RestMessage, schema: Schema, producer: str, number: int, now: int) -> Publish:
    """The command that publishes the message with a `number` at a time `now` (ms). Raises `BadMessage`."""
    deliver_at = message.deliver_at
    if deliver_at is None and message.deliver_after_ms is not None:
        deliver_at = now + message.deliver_after_ms
    return Publish(
        producer=producer,
        sequence_id=number if message.sequence_id is None else message.sequence_id,
        payload_bytes=_encoded(message.payload, schema.type),
        key=message.key,
        properties=message.properties or {},
        event_time=message.event_time,
        deliver_at_time=deliver_at,
        rest=True,
    )


def _encoded(payload: str, type_: str) -> bytes:
    try:
        if type_ in _NUMBERS:
            number = float(payload) if type_ in ("FLOAT", "DOUBLE") else int(payload)
            return struct.pack(_NUMBERS[type_], number)
        if type_ == "BOOLEAN":
            return bytes([payload.lower() == "true"])
        if type_ == "JSON":
            return msgspec.json.encode(msgspec.json.decode(payload))
    except (ValueError, OverflowError, struct.error) as error:
        raise BadMessage(f"{payload[:100]!r} is not a value of the type {type_}: {error}") from None
    return payload.encode()
