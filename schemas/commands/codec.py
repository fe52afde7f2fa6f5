"""Commands as bytes: JSON and MessagePack."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from schemas.commands.client import (
    Ack,
    AddPartitionToTxn,
    AddSubscriptionToTxn,
    CloseConsumer,
    CloseProducer,
    Connect,
    ConnectionLost,
    EndTxn,
    Flow,
    GetLastMessageId,
    GetOrCreateSchema,
    GetSchema,
    Lookup,
    NewTxn,
    PartitionedMetadata,
    Producer,
    Publish,
    RedeliverUnacknowledgedMessages,
    Seek,
    Send,
    Subscribe,
    TcClientConnectRequest,
    Unsubscribe,
)
from schemas.commands.control import Admin, BrokerConfig, Fault, Restart, RunCheck, Tick
from schemas.commands.mirror import Mirror
from schemas.commands.nesting import DEEPEST, is_deep, is_deep_binary
from schemas.undecodable import UNDECODABLE
from schemas.units import Int64

AnyCommand = (
    Connect | ConnectionLost | Producer | Send | CloseProducer | Subscribe | Flow | Ack
    | RedeliverUnacknowledgedMessages | Unsubscribe | CloseConsumer | Seek | GetLastMessageId | PartitionedMetadata
    | Lookup | GetSchema | GetOrCreateSchema | Admin | BrokerConfig
    | Tick | RunCheck | Restart | Fault | Mirror | TcClientConnectRequest | NewTxn | AddPartitionToTxn | AddSubscriptionToTxn | EndTxn
)  # fmt: skip


class _Head(msgspec.Struct):
    """The name of a command. Decoding it builds no other objects."""

    command: str = ""


class _Coordinates(msgspec.Struct):
    topic: str | None = None
    timestamp: Int64 | None = None


_COORDINATES = frozenset(f"Object contains unknown field `{name}`" for name in _Coordinates.__struct_fields__)
"""What `decode` says of a line of a log."""

_json_coordinates = msgspec.json.Decoder(_Coordinates)
_json_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_json, _json_short = msgspec.json.Decoder(AnyCommand), msgspec.json.Decoder(Publish)
_pack, _pack_short = msgspec.msgpack.Decoder(AnyCommand), msgspec.msgpack.Decoder(Publish)
_json_head, _pack_head = msgspec.json.Decoder(_Head), msgspec.msgpack.Decoder(_Head)
_LARGEST_CONTROL = 1 << 20
_CONTROL = frozenset({"ADMIN", "BROKER_CONFIG"})
_TOO_DEEP = f"arrays and objects are nested more than {DEEPEST} deep"
_WHITESPACE_OR_BRACE = frozenset(b"{ \t\r\n")
_json_encode = msgspec.json.Encoder().encode
_pack_encode = msgspec.msgpack.Encoder().encode


_NO_OBJECT = "Expected `object`, got "
"""What msgspec says of MessagePack that is no map, such as the first byte of a text."""


class MalformedCommand(ValueError):
    """A record's value is not a command. The text says what is wrong and where (a JSON path)."""


def decode(value: bytes) -> AnyCommand | Publish:
    """The command in a record's value: JSON if it begins like an object, MessagePack otherwise.

    A value without ``command`` is the short form. Raises `MalformedCommand` and nothing else, whatever the bytes; its text
    depends on the value alone.
    """
    if not value:
        raise MalformedCommand("empty value: expected a JSON object or its MessagePack form")
    text = value[0] in _WHITESPACE_OR_BRACE
    full, short = (_json, _json_short) if text else (_pack, _pack_short)
    try:
        if b"command" not in value:
            return short.decode(value)
        if len(value) > _LARGEST_CONTROL:
            _check_size(value, _json_head if text else _pack_head)
        try:
            command: AnyCommand = full.decode(value)
            return command
        except msgspec.ValidationError as error:
            if "missing required field `command`" not in str(error):
                raise
            return short.decode(value)  # the word was in its payload or in a name
    except MalformedCommand:
        raise
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        deep = is_deep(value) if text else is_deep_binary(value)
        cause = str(error)
        if not text and cause.startswith(_NO_OBJECT) and " - at " not in cause:
            cause = "neither a JSON object, which begins with {, nor its MessagePack form"
        raise MalformedCommand(_TOO_DEEP if deep else cause) from None


def _check_size(value: bytes, head: msgspec.json.Decoder[_Head] | msgspec.msgpack.Decoder[_Head]) -> None:
    """Refuse large commands of operators. Their free-form fields take up to 70 bytes of memory per byte of the value."""
    name = head.decode(value).command
    if name in _CONTROL:
        raise MalformedCommand(f"{name} of {len(value):,} bytes: it has at most {_LARGEST_CONTROL:,}")


def to_json(command: AnyCommand | Publish) -> bytes:
    """The JSON form, for people."""
    return _json_encode(command)


def to_binary(command: AnyCommand | Publish) -> bytes:
    """The MessagePack form, for machines: smaller, and bytes stay bytes. A command with an integer of more than 64 bits, which only
    JSON can write, is in JSON."""
    try:
        return _pack_encode(command)
    except OverflowError:
        return _json_encode(command)


class Refused(NamedTuple):
    """Why a record goes to quarantine instead of being folded: the name of the rule that it breaks, and the cause in
    words."""

    rule: str
    cause: str


class Line(NamedTuple):
    """A line of a command log as the value of a record: a command beside its coordinates `topic` and `timestamp` (ms).

    They must agree with the record's own.
    """

    command: AnyCommand | Publish
    topic: str | None
    timestamp: int | None

    def differs_from(self, topic: str | None, timestamp: int) -> str | None:
        """Why a record with this topic and timestamp (ms) is refused, None: its own say the same."""
        if self.topic is not None and not topic:
            return (
                f"the record has no key, and `topic` {self.topic} belongs to another ingress partition or may do so: give "
                "the record its topic as a key"
            )
        if self.topic is not None and self.topic != topic:
            return f"`topic` {self.topic} differs from the record's key {topic}"
        if self.timestamp is not None and self.timestamp != timestamp:
            return (
                f"`timestamp` {self.timestamp} differs from the record's time {timestamp}: leave it out, or send the log "
                "with `magnetar produce`"
            )
        return None


Decoded = AnyCommand | Publish | Refused | Line
"""What a record's value turned out to be."""


def command_in(decoded: Decoded) -> AnyCommand | Publish | Refused:
    """The command of a record, whether or not its value is a line with coordinates."""
    return decoded.command if isinstance(decoded, Line) else decoded


def decode_all(values: Sequence[bytes]) -> list[Decoded]:
    """`decode_or_refuse` of each value, in half the time where all are commands in the same encoding."""
    if values:
        text = values[0][:1] in (b"{", b" ")
        short, full = (_json_short, _json) if text else (_pack_short, _pack)
        try:
            # They refuse what is not a command in this encoding.
            return [
                short.decode(value)
                if b"command" not in value
                else full.decode(value)
                if len(value) <= _LARGEST_CONTROL
                else decode_or_refuse(value)
                for value in values
            ]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
    return list(map(decode_or_refuse, values))


def decode_or_refuse(value: bytes) -> Decoded:
    """The command in a record's value, or a `Line`. A value that is neither is refused under the rule ``malformed``."""
    try:
        return decode(value)
    except MalformedCommand as error:
        cause = str(error)
    if cause not in _COORDINATES:
        return Refused("malformed", cause)
    try:
        given = _json_coordinates.decode(value)
        fields = _json_fields.decode(value)
        for name in given.__struct_fields__:
            fields.pop(name, None)
        return Line(decode(_json_encode(fields)), given.topic or None, given.timestamp)
    except (*UNDECODABLE, ValueError) as error:
        return Refused("malformed", str(error))
