"""What a client hears of a command that the gate refuses (`streaming.quality.gate`).

Pulsar has no such bounds. If the connection ended without a word, the client would open it again, and repeat what was refused and all
that came after it. So whatever has an answer gets one.
"""

from typing import Any

import msgspec

from schemas import commands as c
from schemas.effects import AckResponse, CloseConnection, Effect, Error, Quarantined, SendError
from schemas.undecodable import UNDECODABLE
from streaming.broker import lookup

_ERROR = "NotAllowedError"
"""A client's request fails with it at once. Java's client also gives up a message for it; that of C++ opens a connection again after any
SEND_ERROR, as beside Pulsar."""
_LOOKUPS: dict[str, type[lookup.LookupCommand]] = {
    "LOOKUP": c.Lookup,
    "PARTITIONED_METADATA": c.PartitionedMetadata,
    "GET_SCHEMA": c.GetSchema,
    "GET_OR_CREATE_SCHEMA": c.GetOrCreateSchema,
}


def answer_of(refused: Quarantined, *, in_order: bool) -> Effect | None:
    """What the client's connection gets. It is closed if the command asks for no answer, or has no number to answer to. None: the
    command came from no connection.

    `in_order`: answers come in the order of commands. Else a SEND has none, since the client expects those of earlier ones first.
    """
    try:
        fields = msgspec.json.decode(refused.payload)
    except UNDECODABLE:
        return None
    connection = fields.get("connection") if isinstance(fields, dict) else None
    if not isinstance(connection, str):
        return None
    topic, cause = refused.topic or "", f"{refused.rule}: {refused.cause}"
    kind, request_id = str(fields.get("command")), _number(fields, "request_id")
    if kind == "SEND":
        producer, lowest = _number(fields, "producer_id"), _number(fields, "sequence_id")
        if in_order and producer is not None and lowest is not None:
            highest = max(lowest, _number(fields, "highest_sequence_id") or 0)
            return SendError(topic, connection, producer, "", highest, _ERROR, cause)
    elif kind == "ACK":
        consumer = _number(fields, "consumer_id")
        if request_id is not None and consumer is not None:
            return AckResponse(topic, connection, request_id, consumer, _ERROR, cause)
    elif request_id is not None:
        return refusal(kind, topic, connection, request_id, _ERROR, cause)
    return CloseConnection(topic, connection, cause)


def refusal(kind: str, topic: str, connection: str, request_id: int, error: str, cause: str) -> Effect:
    """The answer to a request, a frame of some `kind`, that is refused before it is a command."""
    if kind in _LOOKUPS:
        return lookup.refusal(_LOOKUPS[kind], topic, connection, request_id, error, cause)
    return Error(topic, connection, request_id, error, cause)


def _number(fields: dict[str, Any], name: str) -> int | None:
    found = fields.get(name)
    return found if type(found) is int and 0 <= found < 2**63 else None
