"""What a client hears of a command that the gate refuses (`streaming.quality.gate`).

Pulsar has no such bounds. If the connection ended without a word, the client would open it again, and repeat what was refused and all
that came after it. So whatever has an answer gets one.
"""

from typing import Any

import msgspec

from schemas import commands as c
from schemas.effects import Effect, Error, Quarantined, SendError
from streaming.broker import lookup

_ERROR = "NotAllowedError"
"""Clients do not repeat a request for it."""
_LOOKUPS: dict[str, type[lookup.LookupCommand]] = {
    "LOOKUP": c.Lookup,
    "PARTITIONED_METADATA": c.PartitionedMetadata,
    "GET_SCHEMA": c.GetSchema,
    "GET_OR_CREATE_SCHEMA": c.GetOrCreateSchema,
}


def connection_of(refused: Quarantined) -> str | None:
    """The connection of a command; None: it has none, or can't be read."""
    found = _fields(refused).get("connection")
    return found if isinstance(found, str) else None


def answer_of(refused: Quarantined) -> Effect | None:
    """The answer to a command of a connection, or None if it has none: it asks for nothing, or has no number to answer to."""
    fields = _fields(refused)
    connection, kind = fields["connection"], fields.get("command")
    topic, cause = refused.topic or "", f"{refused.rule}: {refused.cause}"
    if kind == "SEND":
        producer, sequence_id = (_number(fields, name) for name in ("producer_id", "sequence_id"))
        if producer is None or sequence_id is None:
            return None
        return SendError(topic, connection, producer, "", sequence_id, _ERROR, cause)
    request_id = _number(fields, "request_id")
    if request_id is None or kind == "ACK":
        return None
    if kind in _LOOKUPS:
        return lookup.refusal(_LOOKUPS[kind], topic, connection, request_id, _ERROR, cause)
    return Error(topic, connection, request_id, _ERROR, cause)


def _fields(refused: Quarantined) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(refused.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(fields: dict[str, Any], name: str) -> int | None:
    found = fields.get(name)
    return found if type(found) is int and 0 <= found < 2**63 else None
