"""What the calls below ``/magnetar/v1`` of a test double take and answer, and `OPENAPI`, which describes them."""

from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta, Struct

from streaming.broker.persistent.delivery import Show
from streaming.server.client_times import Whose
from streaming.server.clock import Mode
from streaming.server.faults import FaultSpec

MOST_PEEKED = MOST_SNAPSHOTS = MOST_FAULTS = 1000
"""What a test may look at, and what it may ask a double to keep, at a time."""


def _said(description: str, unit: str | None = None) -> Meta:
    """What a field is. `unit`: of a number."""
    return Meta(description=description, extra_json_schema={"x-unit": unit} if unit else None)


_EPOCH, _ID = "ms since the epoch", "number of its kind"

Now = Annotated[int, _said("The time on the broker's clock.", _EPOCH)]


class ClockCall(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to do with the clock: one of these."""

    advance: Annotated[int | None, _said("Move it on by so much.", "ms")] = None
    advance_to_next: Annotated[
        int | None,
        _said(
            "Move it to the next time at which the broker has something to do, if that is within so much.",
            "ms",
        ),
    ] = None
    mode: Annotated[
        Mode | None,
        _said("held: it stands still until a call moves it. real: it goes as the machine's. skip: as soon as nothing happens, it "
              "jumps to the next time at which the broker has something to do."),
    ] = None  # fmt: skip
    delivery_times: Annotated[
        Whose | None,
        _said("Whose clock the delivery times of messages are on. either: the one from which a time is the rounder delay. broker: all are "
              "absolute times on the broker's. client: all are delays that clients added to their own."),
    ] = None  # fmt: skip


class PendingTimer(Struct):
    """When the broker will look at a topic by itself."""

    due: Annotated[int, _said("When. There may be nothing to do then.", _EPOCH)]
    topic: Annotated[str, _said("The topic's full name.")]


class ClockAnswer(Struct):
    """The clock."""

    now: Now
    mode: Annotated[Mode, _said("How it goes, see ClockCall.")]
    delivery_times: Annotated[Whose, _said("Whose clock delivery times are on, see ClockCall.")]
    timers: Annotated[list[PendingTimer], _said("What is due when, by time.")]


class MovedAnswer(Struct):
    """The clock after a call."""

    now: Now
    moved: Annotated[int, _said("By how much the call moved it.", "ms")]
    due: Annotated[
        int | None,
        _said("After an advance_to_next that found nothing within its limit: the next time at which the broker has something to do. "
              "Null: there is none, or the clock was moved.", _EPOCH),
    ] = None  # fmt: skip


class FaultAnswer(Struct):
    """A fault."""

    id: Annotated[int, _said("Its number, for the other calls.", _ID)]
    hits: Annotated[int, _said("How many commands it has hit.", "commands")]
    fault: Annotated[FaultSpec, _said("What was asked for.")]


class RemovedAnswer(Struct):
    """It is removed, if it was not before."""


class PeekedMessage(Struct):
    """A stored message, or batch of messages."""

    ledgerId: Annotated[int, _said("Its ledger.", _ID)]
    entryId: Annotated[int, _said("Its entry in the ledger.", _ID)]
    metadata: Annotated[
        dict[str, Any],
        _said(
            "The fields of its MessageMetadata by Pulsar's names: times in ms since the epoch, sizes in bytes, binary ones in base64."
        ),
    ]
    payload: Annotated[str, _said("Its payload as stored, perhaps compressed or a batch, in base64.")]


class PeekAnswer(Struct):
    """Messages of a subscription."""

    messages: Annotated[list[PeekedMessage], _said("They are in the order of the topic.")]


class SnapshotAnswer(Struct):
    """A snapshot."""

    id: Annotated[int, _said("Its number, which is never that of another one.", _ID)]


class TimeAnswer(Struct):
    """The broker has gone back."""

    now: Now


class TestCall(Struct, forbid_unknown_fields=True, kw_only=True):
    """A test that begins."""

    name: Annotated[str, _said("Its name, by which the clients that it leaves behind are told.")]
    same_address: Annotated[
        bool,
        _said(
            "Whether its clients connect where those of the last test did, as behind mapped ports. What these still have keeps its "
            "connections, and finds nobody there; one that had none when this test began is not known, and is let in."
        ),
    ] = False


class TestAnswer(Struct):
    """A test has begun."""

    now: Now
    service_url: Annotated[str, _said("Where the clients of this test connect: pulsar://HOST:PORT.")]


class LeftClients(Struct):
    """Clients that an earlier test did not close, and that have come since the last one began, or are still connected."""

    test: Annotated[str, _said("The name of the test that they are of.")]
    clients: Annotated[list[str], _said("What was open when it ended, each in words.")]
    tries: Annotated[
        dict[str, Annotated[int, _said("How often they have come.", "connections")]],
        _said(
            "How often they have come, by the versions of their libraries. One that is still connected counts once."
        ),
    ]


class ShutOutAnswer(Struct):
    """Who was shut out."""

    shut_out: Annotated[
        list[LeftClients], _said("By test, the oldest first. Tests without such clients are not among them.")
    ]


class RefusedAnswer(Struct):
    """Why a call was not carried out."""

    reason: Annotated[str, _said("In words.")]


def _with_types(schema: Any) -> Any:
    """A schema whose enumerations say that they are of texts: without that, some generators of clients make no type of them."""
    if isinstance(schema, dict):
        found = {name: _with_types(value) for name, value in schema.items()}
        return {"type": "string", **found} if "enum" in found else found
    return list(map(_with_types, schema)) if isinstance(schema, list) else schema


_, _SCHEMAS = msgspec.json.schema_components(
    (
        ClockCall, FaultSpec, TestCall, ClockAnswer, MovedAnswer, FaultAnswer, RemovedAnswer, PeekAnswer, SnapshotAnswer, TimeAnswer,
        TestAnswer, ShutOutAnswer, RefusedAnswer,
    ),
    ref_template="#/components/schemas/{name}",
)  # fmt: skip


def _content(type_: type[Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{type_.__name__}"}}}


def _parameter(
    name: str, description: str, schema: dict[str, Any], *, required: bool = False
) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "required": required, "schema": schema}


def _number(what: str) -> dict[str, Any]:
    schema = {"type": "integer", "minimum": 0, "x-unit": _ID}
    return {
        "name": "id",
        "in": "path",
        "description": f"The number of the {what}.",
        "required": True,
        "schema": schema,
    }


def _operation(
    id_: str,
    summary: str,
    answer: type[Struct],
    *parameters: dict[str, Any],
    body: type[Struct] | None = None,
) -> dict[str, Any]:
    answers = {
        "200": {"description": "Done; the broker is at rest.", "content": _content(answer)},
        "400": {"description": "Not done.", "content": _content(RefusedAnswer)},
    }
    found: dict[str, Any] = {
        "operationId": id_,
        "summary": summary,
        "parameters": list(parameters),
        "responses": answers,
    }
    if body is not None:
        found["requestBody"] = {"content": _content(body), "required": True}
    return found


OPENAPI = {
    "openapi": "3.1.0",
    "info": {
        "title": "Magnetar as a test double",
        "version": "1",
        "description": "The clock, faults, a look into subscriptions, and going back. Fields that are numbers have their unit in `x-unit`. "
        "Pulsar's admin API is beside it, below /admin/v2.",
    },
    "servers": [{"url": "/magnetar/v1"}],
    "paths": {
        "/clock": {
            "get": _operation("getClock", "The time, how the clock goes, and what is due when", ClockAnswer),
            "post": _operation("setClock", "Move the clock, or let it run by itself", MovedAnswer, body=ClockCall),
        },
        "/faults": {"post": _operation("addFault", "Ask for a fault", FaultAnswer, body=FaultSpec)},
        "/faults/{id}": {
            "get": _operation(
                "getFault",
                "A fault; with `hits`, once it has hit that many commands, or 400 if it is removed before or hits fewer",
                FaultAnswer,
                _number("fault"),
                _parameter(
                    "hits", "Wait for so many hits.", {"type": "integer", "minimum": 0, "x-unit": "commands"}
                ),
            ),
            "delete": _operation("removeFault", "Remove a fault", RemovedAnswer, _number("fault")),
        },
        "/peek": {
            "get": _operation(
                "peek",
                "Messages of a subscription",
                PeekAnswer,
                _parameter("topic", "The topic, by its full or its short name.", {"type": "string"}, required=True),
                _parameter("subscription", "The subscription.", {"type": "string"}, required=True),
                _parameter(
                    "show",
                    "backlog: those that are not acknowledged. inflight: those of them that a consumer has. delayed: those that wait for "
                    "their delivery time. holes: those that are acknowledged, while older ones are not.",
                    {"type": "string", "enum": list(get_args(Show)), "default": "backlog"},
                ),
                _parameter(
                    "count",
                    "So many at most.",
                    {"type": "integer", "minimum": 0, "maximum": MOST_PEEKED, "default": 100, "x-unit": "entries"},
                ),
            )
        },
        "/snapshots": {"post": _operation("makeSnapshot", "Remember the broker as it is", SnapshotAnswer)},
        "/snapshots/{id}/restore": {
            "post": _operation(
                "restoreSnapshot", "Go back to a snapshot; all later ones are gone", TimeAnswer, _number("snapshot")
            )
        },
        "/reset": {"post": _operation("reset", "Be as after the start", TimeAnswer)},
        "/tests": {
            "post": _operation(
                "beginTest",
                "Be as after the start at another address, `service_url`, or at the same; the clients of earlier tests are shut out",
                TestAnswer,
                body=TestCall,
            )
        },
        "/shut-out": {
            "get": _operation(
                "getShutOut", "The earlier tests whose clients have come since the last one began", ShutOutAnswer
            )
        },
    },
    "components": {"schemas": _with_types(_SCHEMAS)},
}  # fmt: skip
"""The description of the API, in OpenAPI."""
