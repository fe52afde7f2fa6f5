"""``POST /topics/…``: messages published through HTTP (mirrors `TopicsBase`)."""

import struct
from typing import Any, Literal

import msgspec

from schemas.commands import Publish, SchemaData
from schemas.undecodable import UNDECODABLE
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
    """A message of a request. Times in ms. As in Pulsar, null is what a field has that is not there."""

    payload: str
    key: str | None = None
    properties: dict[str, str] | None = None
    event_time: int | Literal[""] | None = None
    sequence_id: int | None = None
    deliver_at: int | None = None
    deliver_after_ms: int | None = None


class RestMessages(msgspec.Struct, rename="camel"):
    """The body of a request. As in Pulsar, null and the empty text are what a field has that is not there."""

    messages: list[RestMessage]
    producer_name: str | None = None
    value_schema: str | None = None
    key_schema: str | None = None
    schema_version: int | None = None

    @property
    def version(self) -> int | None:
        """The version of the topic's schema that the messages have; None: the request says which schema."""
        return None if self.schema_version == _NO_VERSION else self.schema_version


_NO_VERSION = -1


def messages_of(body: Any) -> RestMessages:
    """The messages of a request. Raises `BadMessage`."""
    try:
        return msgspec.convert(body, RestMessages, strict=False)
    except msgspec.ValidationError as error:
        raise BadMessage(str(error)) from None


def schema_of(given: RestMessages) -> Schema:
    """The schema of a request's messages, which names no version. Raises `BadMessage`."""
    if given.key_schema:
        raise BadMessage("keySchema is not supported")
    if not given.value_schema:
        return STRING
    try:
        found = msgspec.json.decode(given.value_schema, type=Schema)
    except UNDECODABLE:
        raise BadMessage("Fail to add or retrieve schema.") from None
    check_type(found)
    try:
        validate(SchemaData(schema_data=found.schema, type=found.type.capitalize()))
    except InvalidSchema as error:
        raise BadMessage(str(error)) from None
    return found


def check_type(schema: Schema) -> None:
    """Raise `BadMessage` if payloads can't be encoded by a schema."""
    if schema.type not in ("STRING", "JSON", "BOOLEAN", *_NUMBERS):
        raise BadMessage(f"messages of the schema type {schema.type} are not supported")


def commands(given: RestMessages, schema: Schema) -> list[Publish]:
    """The commands that publish the messages of a request. Raises `BadMessage`."""
    return [
        Publish(
            producer=given.producer_name or DEFAULT_PRODUCER,
            sequence_id=message.sequence_id or 0,
            payload_bytes=_encoded(message.payload, schema.type),
            key=message.key,
            properties=message.properties or {},
            event_time=_event_time(message),
            deliver_at_time=_deliver_at(message),
            rest=True,
        )
        for message in given.messages
    ]


def _event_time(message: RestMessage) -> int | None:
    return None if message.event_time == "" else message.event_time


def _deliver_at(message: RestMessage) -> int | None:
    """quirk: `deliverAt` counts beside an event time alone, and `deliverAfterMs` from the event time, or from 1970."""
    event_time = _event_time(message)
    if message.deliver_at and event_time is not None:
        return message.deliver_at
    return (event_time or 0) + message.deliver_after_ms if message.deliver_after_ms else None


def _encoded(payload: str, type_: str) -> bytes:
    try:
        if type_ in _NUMBERS:
            number = float(payload) if type_ in ("FLOAT", "DOUBLE") else int(payload)
            return struct.pack(_NUMBERS[type_], number)
        if type_ == "BOOLEAN":
            return bytes([payload.lower() == "true"])
        if type_ == "JSON":
            return msgspec.json.encode(msgspec.json.decode(payload))
    except (ValueError, OverflowError, struct.error, RecursionError) as error:
        raise BadMessage(f"{payload[:100]!r} is not a value of the type {type_}: {error}") from None
    return payload.encode()
