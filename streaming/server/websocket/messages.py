"""What a WebSocket says, as JSON (mirrors `ProducerMessage`, `ProducerAck`, `ConsumerCommand` and `ConsumerMessage`).

quirk: Pulsar reads JSON with Jackson, which takes numbers for text and text for numbers, ignores fields that it does not know, and stops at the
end of the first value. So does this.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from streaming.protocol.codec import FrameError, decode_message_id, encode_message_id

_Json = dict[str, Any]

FROM_JSON, PAYLOAD, UNKNOWN = 3, 7, 8
"""Numbers of `WebSocketError`: FailedToDeserializeFromJSON, PayloadEncodingError, UnknownError."""

_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{0,9}))?)?(Z|[+-]\d\d(?::\d\d){1,2})"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALPHABET = re.compile(rb"[A-Za-z0-9+/]*")
_LONG = 1 << 63


class BadJson(ValueError):
    """A text is not the JSON that is expected. The text says why."""


class NotEncoded(ValueError):
    """A payload or a time is not encoded as it should be. The text says why."""


class Fatal(Exception):
    """What a WebSocket sends ends it, with the code 1011 and this reason, as an exception that Pulsar's service does not expect."""


class NoText(Fatal):
    """The same of an exception without a text: its name is the reason, from 4.2 on nothing is."""


class Dropped(Exception):
    """What a WebSocket sends ends it without a close frame: Pulsar's service closes with a code that WebSockets do not have."""


class ToPublish(NamedTuple):
    """A message to publish, and what its answer repeats. `deliver_after` and `deliver_at` in ms, `event_time` in ms since the epoch."""

    payload: bytes
    context: str | None = None
    key: str | None = None
    properties: Mapping[str, str] = {}
    clusters: tuple[str, ...] = ()
    event_time: int | None = None
    deliver_at: int = 0
    deliver_after: int = 0
    encryption_param: bytes | None = None
    compression: str | None = None
    uncompressed_size: int | None = None


class NotPublished(NamedTuple):
    """Why a message is not published: a number of `WebSocketError`, and a text."""

    code: int
    why: str
    context: str | None = None


def command(text: str) -> _Json:
    """A command of a consumer or a reader: its `type`, `messageId` and `permitMessages`, as far as it has them. Raises `BadJson`, `Fatal`."""
    if (given := _object(text, "ConsumerCommand")) is None:
        raise Fatal('Cannot read field "type" because "command" is null')
    return {
        "type": _text(given, "type"),
        "messageId": _text(given, "messageId"),
        "permitMessages": None if given.get("permitMessages") is None else _long(given, "permitMessages"),
    }


def published(text: str, *, is_encrypted: bool = False) -> ToPublish | NotPublished:
    """The message of a producer's text. `is_encrypted`: the client has encrypted it, and says how. Raises `Fatal`."""
    context = None
    try:
        if (given := _object(text, "ProducerMessage")) is None:
            return NotPublished(PAYLOAD, 'Cannot read field "context" because "sendRequest" is null')
        context = _text(given, "context")
        found = _published(given, context)
        return _encrypted(given, found) if is_encrypted else found
    except BadJson as error:
        return NotPublished(FROM_JSON, str(error))
    except NotEncoded as error:
        return NotPublished(PAYLOAD, str(error), context)


def _published(given: _Json, context: str | None) -> ToPublish:
    payload, key, event_time = _text(given, "payload"), _text(given, "key"), _text(given, "eventTime")
    properties = given.get("properties") or {}
    clusters = given.get("replicationClusters") or []
    for name in ("sequenceId", "schemaVersion"):  # these have no effect, but must be numbers
        _long(given, name)
    deliver_at, deliver_after = _long(given, "deliverAt"), _long(given, "deliverAfterMs")
    if not isinstance(properties, dict):
        raise BadJson("properties: expected an object")
    if not isinstance(clusters, list):
        raise BadJson("replicationClusters: expected an array")
    texts = {_encodable(name): _text(properties, name) for name in properties}
    if payload is None:
        raise NotEncoded('Cannot invoke "String.getBytes(java.nio.charset.Charset)" because "src" is null')
    try:
        data = decoded(payload)
    except NotEncoded as error:
        raise NotEncoded(f"Invalid Base64 message-payload error={error}") from None
    if (missing := next((name for name, value in texts.items() if value is None), None)) is not None:
        raise Fatal(f"Need Non-Null value for key: {missing}")
    return ToPublish(
        payload=data,
        context=context,
        key=key,
        properties={name: value for name, value in texts.items() if value is not None},
        clusters=tuple(_encodable(str(each)) for each in clusters),
        event_time=None if event_time is None else parse_time(event_time),
        deliver_at=deliver_at,
        deliver_after=deliver_after,
    )


def _encrypted(given: _Json, found: ToPublish) -> ToPublish:
    param, compression = _text(given, "encryptionParam"), _text(given, "compressionType")
    if compression not in (
        "NONE",
        "LZ4",
        "ZLIB",
        "ZSTD",
        "SNAPPY",
    ):  # quirk: Jackson takes any other name as none
        compression = None
    size = None if given.get("uncompressedMessageSize") is None else _long(given, "uncompressedMessageSize")
    if (compression is None) != (size is None) and (compression, size) != ("NONE", None):
        both = "the params compressionType and uncompressedMessageSize should both empty or both non-empty"
        raise NotEncoded(both)
    try:
        key = decoded(param) if param and param.strip() else None
    except NotEncoded as error:
        raise NotEncoded(f"Invalid Base64 encryptionParam error={error}") from None
    return found._replace(
        encryption_param=key, compression=None if size is None else compression, uncompressed_size=size
    )


def receipt(message_id: str, context: str | None) -> str:
    """The answer to a message that is stored."""
    return _json({"result": "ok", "messageId": message_id, "context": context, **_LAST_FIELDS})


def refused(refusal: NotPublished) -> str:
    """The answer to a message that is not published."""
    named = {"result": f"send-error:{refusal.code}", "errorMsg": refusal.why, "context": refusal.context}
    return _json({**named, **_LAST_FIELDS})


def end_of_topic(*, reached: bool) -> str:
    """The answer to ``isEndOfTopic``."""
    return _json({"endOfTopic": reached})


_LAST_FIELDS = {"errorCode": 0, "schemaVersion": 0}


def delivered(
    message_id: str, payload: bytes, metadata: _Json, redelivery_count: int, encryption: _Json | None = None
) -> str:
    """A message for a consumer or a reader. `metadata`: its own, of those in a batch."""
    event_time = metadata.get("event_time", 0)
    return _json(
        {
            "messageId": message_id,
            "payload": base64.b64encode(payload).decode(),
            "properties": {pair["key"]: pair["value"] for pair in metadata.get("properties", ())},
            "publishTime": format_time(metadata["publish_time"]),
            "redeliveryCount": redelivery_count,
            "eventTime": format_time(event_time) if event_time else None,
            "encryptionContext": encryption,
            "key": metadata.get("partition_key"),
        }
    )


def encryption_context(metadata: _Json) -> _Json:
    """What a consumer is told that decrypts messages itself (mirrors `EncryptionContext`)."""
    keys = {
        each["key"]: {
            "keyValue": base64.b64encode(each["value"]).decode(),
            "metadata": {pair["key"]: pair["value"] for pair in each.get("metadata", ())},
        }
        for each in metadata["encryption_keys"]
    }
    found = {
        "keys": keys,
        "param": base64.b64encode(metadata.get("encryption_param", b"")).decode(),
        "compressionType": metadata.get("compression", "NONE"),
        "uncompressedMessageSize": metadata.get("uncompressed_size", 0),
    }
    if "encryption_algo" in metadata:
        found["algorithm"] = metadata["encryption_algo"]
    return {**found, "batchSize": metadata.get("num_messages_in_batch")}


def key_of(name: str, value: str, metadata: Mapping[str, str]) -> _Json:
    """A key of an encrypted message, as its metadata has it."""
    pairs = [{"key": key, "value": text} for key, text in metadata.items()]
    return {"key": name, "value": decoded(value), "metadata": pairs}


def _json(fields: _Json) -> str:
    present = {name: value for name, value in fields.items() if value is not None}
    return _encodable(json.dumps(present, ensure_ascii=False, separators=(",", ":")))


# -- values -----------------------------------------------------------------------------------------------------------


def _object(text: str, what: str) -> _Json | None:
    """The object in a text. None: it is null."""
    try:
        found, _ = _DECODER.raw_decode(text.lstrip(" \t\r\n"))
    except (ValueError, RecursionError) as error:
        raise BadJson(f"not JSON: {error}") from None
    if found is not None and not isinstance(found, dict):
        raise BadJson(f"expected an object, a {what}")
    return found


_DECODER = json.JSONDecoder()


def _text(given: _Json, name: str) -> str | None:
    value = given.get(name)
    if isinstance(value, dict | list):
        raise BadJson(f"{name}: expected a text")
    if isinstance(value, str):
        return _encodable(value)
    return None if value is None else json.dumps(value)


def _encodable(text: str) -> str:
    """quirk: half of a character outside of the basic plane is a question mark, as Java encodes it."""
    return text.encode(errors="replace").decode()


def _long(given: _Json, name: str) -> int:
    value = given.get(name)
    try:
        if isinstance(value, str):
            value = int(value) if value.strip() else 0
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            number = int(value or 0)
            if -_LONG <= number < _LONG:
                return number
    except (ValueError, OverflowError):
        pass
    raise BadJson(f"{name}: expected a whole number of 64 bits")


def decoded(text: str) -> bytes:
    """Bytes in base64, with or without padding. Raises `NotEncoded`, in the words of Java's decoder."""
    data = text.encode(errors="replace")
    body = data.rstrip(b"=")
    padding = len(data) - len(body)
    valid = _ALPHABET.match(body)
    if valid is None or valid.end() < len(body):
        at = 0 if valid is None else valid.end()
        if body[at] == ord("="):
            raise NotEncoded("Input byte array has wrong 4-byte ending unit")
        raise NotEncoded(f"Illegal base64 character {body[at]:x}")
    if len(data) == 1:
        raise NotEncoded("Input byte[] should at least have 2 bytes for base64 bytes")
    rest = len(body) % 4
    if rest == 1:
        raise NotEncoded("Last unit does not have enough valid bits")
    if padding not in ({0} if not rest else {0, 4 - rest}):
        raise NotEncoded("Input byte array has wrong 4-byte ending unit")
    try:
        return base64.b64decode(body + b"=" * (-len(body) % 4))
    except binascii.Error as error:
        raise NotEncoded(str(error)) from None


def parse_time(text: str) -> int:
    """A time in ISO 8601 with an offset, in ms since the epoch. Raises `NotEncoded`."""
    found = _ISO.fullmatch(text)
    if found is None:
        raise NotEncoded(f"Text '{text}' could not be parsed at index 0")
    year, month, day, hour, minute, second, fraction, offset = found.groups()
    try:
        at = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second or 0), tzinfo=UTC)
    except ValueError as error:
        raise NotEncoded(f"Text '{text}' could not be parsed: {error}") from None
    ms = (at - _EPOCH) // timedelta(milliseconds=1) + int((fraction or "").ljust(3, "0")[:3])
    if offset != "Z":
        parts = [int(part) for part in offset[1:].split(":")]
        seconds = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
        ms += -1000 * seconds if offset[0] == "+" else 1000 * seconds
    return ms


def format_time(ms: int) -> str:
    """A time (ms since the epoch) as Pulsar writes it: in UTC, without the zeros at its end."""
    ms = ms - 2 * _LONG if ms >= _LONG else ms
    try:
        at = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return str(ms)
    text = at.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    rest = f"{ms % 1000:03}".rstrip("0")
    return f"{text}.{rest}Z" if rest else f"{text}Z"


# -- message ids ------------------------------------------------------------------------------------------------------


class ClientMessageId(NamedTuple):
    """Where a message is. `partition` and `batch_index` −1: there is none. `topic`: the place of its topic among those of a consumer of several.
    `first_chunk`: ledger and entry of the first chunk of a chunked message, which is where its last one is.

    Pulsar's ledgers have their numbers in the whole cluster, Magnetar's in their topics. So an id that a consumer of several topics gets has one
    field more than Pulsar's, which clients send back as it is.
    """

    ledger: int
    entry: int
    partition: int = -1
    batch_index: int = -1
    topic: int = 0
    first_chunk: tuple[int, int] | None = None

    def encoded(self, batch_size: int = 0) -> str:
        """It in base64, as WebSockets exchange it. `batch_size`: that of its batch, which Pulsar tells to consumers alone."""
        fields: _Json = {"ledgerId": self.ledger, "entryId": self.entry, "batch_size": batch_size}
        partition = {"partition": self.partition} if self.partition >= 0 else {}
        fields |= partition
        if self.first_chunk is not None:
            ledger, entry = self.first_chunk
            fields["first_chunk_message_id"] = {
                "ledgerId": ledger,
                "entryId": entry,
                "batch_size": 0,
                **partition,
            }
        if self.batch_index >= 0:
            fields["batch_index"] = self.batch_index
        return base64.b64encode(encode_message_id(fields, self.topic)).decode()

    def __str__(self) -> str:
        """It as Pulsar's client writes it."""
        parts = [self.ledger, self.entry, self.partition]
        return ":".join(map(str, [*parts, self.batch_index] if self.batch_index >= 0 else parts))

    @classmethod
    def of(cls, text: str | None) -> "ClientMessageId":
        """The one in a text. Raises `Fatal` if it is not base64, and `Dropped` if its bytes are not a message id."""
        if text is None:
            raise Fatal('Cannot invoke "String.getBytes(java.nio.charset.Charset)" because "src" is null')
        try:
            return cls.parsed(decoded(text))
        except NotEncoded as error:
            raise Fatal(str(error)) from None
        except FrameError:
            raise Dropped(f"no message id: {text[:100]}") from None

    @classmethod
    def parsed(cls, data: bytes) -> "ClientMessageId":
        """The one in these bytes. Raises `FrameError`."""
        fields, topic = decode_message_id(data)
        first = fields.get("first_chunk_message_id")
        chunk = None if first is None else (first["ledgerId"], first["entryId"])
        return cls(
            fields["ledgerId"],
            fields["entryId"],
            fields.get("partition", -1),
            fields.get("batch_index", -1),
            topic,
            chunk,
        )
