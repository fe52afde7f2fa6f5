"""Malformed records without end, of more than fifty kinds: values that are no command, and commands that break a rule.

`KINDS` maps a kind's name to a function that makes one of it with the dice it is given.
"""

import gzip
import json
import pickle
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import msgspec

from tests.quality.helpers import GOOD, TOPIC, value

INTEGERS = {
    "PUBLISH": "sequence_id", "PRODUCER": "producer_id", "SEND": "sequence_id", "SUBSCRIBE": "consumer_id",
    "FLOW": "messagePermits", "SEEK": "request_id", "UNSUBSCRIBE": "request_id", "GET_LAST_MESSAGE_ID": "consumer_id",
}  # fmt: skip
TEXTS = {"PUBLISH": "producer", "SUBSCRIBE": "subscription", "ADMIN": "path"}
CHOICES = {
    "SUBSCRIBE": "subType", "ACK": "ack_type", "ADMIN": "method", "RUN_CHECK": "check", "FAULT": "fault",
}  # fmt: skip
WITH_FIELDS = sorted(kind for kind in GOOD if GOOD[kind])
LATEST = 10**14


class Bad(NamedTuple):
    """A record, and the rule that it is to be refused by."""

    value: bytes
    rule: str = "malformed"
    topic: str | None = TOPIC


def good(dice: Random) -> dict[str, Any]:
    """A good command as JSON's types; its text is like none before."""
    command: dict[str, Any] = json.loads(value(dice.choice(WITH_FIELDS)))
    return command | {"connection": f"c{dice.getrandbits(40)}"} if "command" in command else command


def text(dice: Random) -> bytes:
    return json.dumps(good(dice)).encode()


def binary(dice: Random) -> bytes:
    return msgspec.msgpack.encode(good(dice))


def cut(encoded: bytes, dice: Random) -> bytes:
    """Its beginning; a JSON object or a MessagePack map is whole at the very end only."""
    return encoded[: dice.randrange(1, len(encoded))]


def changed(fields: dict[str, str], new: Callable[[Random], Any]) -> Callable[[Random], Bad]:
    """A good command of one of the kinds with something else in the field."""

    def make(dice: Random) -> Bad:
        kind = dice.choice(sorted(fields))
        return Bad(value(kind, **{fields[kind]: new(dice)}))

    return make


def without_a_field(dice: Random) -> Bad:
    kind = dice.choice(sorted(INTEGERS))
    command = json.loads(value(kind))
    del command[INTEGERS[kind]]
    return Bad(json.dumps(command).encode())


def with_bytes(dice: Random) -> Bad:
    encoded = bytearray(text(dice))
    at = encoded.index(b'"') + 1  # inside a name: no UTF-8 is as good as any
    encoded[at:at] = bytes([dice.randrange(0x80, 0xC0)])
    return Bad(bytes(encoded))


def replaced(old: bytes, new: bytes) -> Callable[[Random], Bad]:
    return lambda dice: Bad(text(dice).replace(old, new))


NOT_COMMANDS: dict[str, Callable[[Random], Bad]] = {
    "nothing": lambda dice: Bad(b""),
    "white space": lambda dice: Bad(b" \n\t" * dice.randrange(1, 9)),
    "cut JSON": lambda dice: Bad(cut(text(dice), dice)),
    "cut MessagePack": lambda dice: Bad(cut(binary(dice), dice)),
    "JSON and more": lambda dice: Bad(text(dice) + b"}"),
    "two commands": lambda dice: Bad(text(dice) + b"\n" + text(dice)),
    "MessagePack and more": lambda dice: Bad(binary(dice) + b"\x01"),
    "a JSON list": lambda dice: Bad(b"[" + text(dice) + b"]"),
    "a JSON number": lambda dice: Bad(str(dice.getrandbits(63)).encode()),
    "a JSON text": lambda dice: Bad(json.dumps(text(dice).decode()).encode()),
    "null": lambda dice: Bad(b"null"),
    "no UTF-8": with_bytes,
    "UTF-16": lambda dice: Bad(text(dice).decode().encode("utf-16")),
    "a byte order mark": lambda dice: Bad(b"\xef\xbb\xbf" + text(dice)),
    "single quotes": replaced(b'"', b"'"),
    "no colons": replaced(b":", b" "),
    "a comment": lambda dice: Bad(b"// a command\n" + text(dice)),
    "a trailing comma": lambda dice: Bad(text(dice)[:-1] + b",}"),
    "gzip": lambda dice: Bad(gzip.compress(text(dice), mtime=0)),
    "a pickle": lambda dice: Bad(pickle.dumps(good(dice))),
    "XML": lambda dice: Bad(f"<command>{dice.getrandbits(40)}</command>".encode()),
    "random bytes": lambda dice: Bad(b"\xc1" + dice.randbytes(dice.randrange(40))),  # MessagePack never begins so
    "nested without end": lambda dice: Bad(b"[" * dice.randrange(2000, 100_000)),
    "an unknown command": lambda dice: Bad(json.dumps({"command": f"NO_{dice.getrandbits(40)}"}).encode()),
    "a command in small letters": lambda dice: Bad(
        value(dice.choice(["SUBSCRIBE", "SEND"])).replace(b"SUBSCRIBE", b"subscribe").replace(b"SEND", b"send")
    ),
    "a command that is no text": lambda dice: Bad(
        json.dumps(good(dice) | {"command": dice.getrandbits(8)}).encode()
    ),
    "a field is missing": without_a_field,
    "null in a field": changed(INTEGERS, lambda dice: None),
    "a text for a number": changed(INTEGERS, lambda dice: str(dice.getrandbits(8))),
    "a fraction": changed(INTEGERS, lambda dice: dice.randrange(100) + 0.5),
    "true for a number": changed(INTEGERS, lambda dice: True),
    "a list for a number": changed(INTEGERS, lambda dice: [1]),
    "more than 64 bits": changed(INTEGERS, lambda dice: dice.getrandbits(30) + 2**64),
    "an endless number": lambda dice: Bad(b'{"producer":"p","sequence_id":' + b"9" * dice.randrange(400, 9000) + b"}"),
    "not a number": lambda dice: Bad(b'{"producer":"p","sequence_id":NaN}'),
    "a number for a text": changed(TEXTS, lambda dice: dice.getrandbits(8)),
    "an object for a text": changed(TEXTS, lambda dice: {"a": 1}),
    "no such choice": changed(CHOICES, lambda dice: f"x{dice.getrandbits(20)}"),
    "no base64": lambda dice: Bad(value("PUBLISH", payload_bytes=f"?{dice.getrandbits(20)}")),
    "a text for a list": lambda dice: Bad(value("ACK", message_id=f"{dice.randrange(9)}:0")),
    "a bad member of a list": lambda dice: Bad(value("ACK", message_id=[{"ledgerId": 1}])),
    "a bad member deep inside": lambda dice: Bad(value("SEND", metadata__sequence_id="one")),
    "properties of numbers": lambda dice: Bad(value("PUBLISH", properties={"k": dice.getrandbits(8)})),
}  # fmt: skip
OUT_OF_BOUNDS: dict[str, Callable[[Random], Bad]] = {}


def _breaks(kind: str, field: str, rule: str, new: Callable[[Random], Any]) -> None:
    def make(dice: Random) -> Bad:
        return Bad(value(kind, **{field: new(dice)}), f"input.{kind}/{rule}")

    OUT_OF_BOUNDS[f"{kind}.{field}"] = make


def negative(dice: Random) -> int:
    return -dice.randrange(1, 2 ** dice.randrange(1, 32))


def late(dice: Random) -> int:
    return LATEST + dice.randrange(1, 2**60)


def long(dice: Random) -> str:
    return "é" * dice.randrange(1025, 1200)


def many(dice: Random) -> list[dict[str, str]]:
    return [{"key": str(n), "value": ""} for n in range(dice.randrange(1001, 1100))]


for _kind, _field, _new in [
    ("PUBLISH", "sequence_id", negative), ("PUBLISH", "publish_time", late), ("PUBLISH", "event_time", late),
    ("PUBLISH", "deliver_at_time", negative), ("CONNECT", "protocol_version", negative), ("PRODUCER", "producer_id", negative),
    ("PRODUCER", "epoch", negative), ("SEND", "producer_id", negative),
    ("SEND", "metadata__publish_time", late), ("SEND", "metadata__chunk_id", negative), ("CLOSE_PRODUCER", "request_id", negative),
    ("SUBSCRIBE", "start_message_rollback_duration_sec", negative), ("FLOW", "consumer_id", negative),
    ("ACK", "request_id", negative), ("SEEK", "message_publish_time", negative), ("LOOKUP", "request_id", negative),
    ("FAULT", "count", lambda dice: dice.randrange(1_000_001, 2**31)),
]:  # fmt: skip
    _breaks(_kind, _field, f"{_field.replace('__', '.')}_range", _new)
for _kind, _field in [
    ("PUBLISH", "producer"), ("CONNECT", "client_version"), ("CONNECTION_LOST", "connection"), ("PRODUCER", "producer_name"),
    ("SEND", "metadata__producer_name"), ("SUBSCRIBE", "subscription"), ("SUBSCRIBE", "consumer_name"), ("TICK", "connection"),
]:  # fmt: skip
    _breaks(_kind, _field, f"{_field.replace('__', '.')}_length", long)
_breaks("PRODUCER", "metadata", "metadata.count_range", many)
_breaks("SUBSCRIBE", "subscription_properties", "subscription_properties.count_range", many)
_breaks("ADMIN", "path", "path_form", lambda dice: f"persistent/{dice.getrandbits(40)}")

KINDS = NOT_COMMANDS | OUT_OF_BOUNDS
