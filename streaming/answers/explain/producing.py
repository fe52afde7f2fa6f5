"""Why producers are refused, held or wait: the core's own answers on the last state, and what the output rows have of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import nlargest
from typing import Any

import msgspec
import pyarrow.compute as pc

from schemas import effects as e
from schemas.commands import Producer, decode_or_refuse
from streaming.answers.explain import advice
from streaming.answers.history.folders import Folders, NotFound, listed
from streaming.broker.topic.producing import Happened, Producing

SHOWN = 20
"""How many of the last events an answer has."""

_REFUSED = (
    "ProducerBusy", "ProducerFenced", "ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException",
    "TopicTerminatedError",
)  # fmt: skip
"""The errors that no other request than PRODUCER gets."""


def explain_producers(folders: Folders, topic: str, producer: str | None = None) -> Producing:
    """Who produces on a topic (its full name) as of the last state, what a new producer gets, and the last refusals and ends.

    `producer`: tell of this one alone. Decodes the topic. Raises `NotFound`.
    """
    found = folders.copy_of_broker(topic).producing(topic)
    if folders.tables is not None:
        found.happened = _happened(folders, topic, producer)
    if producer is not None:
        _only(found, producer)
    found.to_do = advice.of_producers(found)
    return found


def _only(found: Producing, producer: str) -> None:
    """Leave out the other producers. Raises `NotFound` if nothing is known of it."""
    names = {each.name for each in found.producers}
    found.producers = [each for each in found.producers if each.name == producer]
    if not found.producers and not found.happened:
        raise NotFound(
            f"{found.topic} has no producer {producer}, and none of that name was refused or closed: "
            f"{listed('producer', producer, names)}"
        )


def _happened(folders: Folders, topic: str, producer: str | None) -> list[Happened]:
    """The last events, in order."""
    last = nlargest(SHOWN, _events(folders, topic, producer), key=lambda pair: pair[0])
    return [event for _, event in reversed(last)]


def _events(
    folders: Folders, topic: str, producer: str | None
) -> Iterator[tuple[tuple[int, int, int], Happened]]:
    of_topic = pc.field("topic") == topic
    named = of_topic if producer is None else of_topic & (pc.field("producer_name") == producer)
    kinds: list[
        tuple[type[e.Effect], pc.Expression, Callable[[dict[str, Any]], tuple[str | None, str] | None]]
    ] = [
        (e.ProducerSuccess, named, _created if producer is not None else _waits),
        (e.CloseProducer, named, _closed),
        (e.SendError, named, _not_stored),
        (e.TopicEvent, of_topic & pc.is_valid(pc.field("fields")), _fenced_out),
        (e.Error, of_topic & pc.field("error").isin(_REFUSED), lambda row: _refused(folders, row)),
    ]
    for kind, where, told in kinds:
        for row in folders.rows(kind, where):
            said = told(row)
            if said is None:
                continue
            name, text = said
            if (
                producer is not None
                and name != producer
                and f"'{producer}'" not in text
                and not (kind is e.TopicEvent and producer in _gone(row))
            ):
                continue
            key = row["clock"], row["offset"], row["ordinal"]
            yield key, Happened(row["clock"], name, text, row["partition"], row["offset"])


def _created(row: dict[str, Any]) -> tuple[str, str]:
    ready = msgspec.json.decode(row["fields"])["producer_ready"]
    return row["producer_name"], "got in" if ready else "waits for exclusive access"


def _waits(row: dict[str, Any]) -> tuple[str, str] | None:
    said = _created(row)
    return None if said[1] == "got in" else said


def _closed(row: dict[str, Any]) -> tuple[str, str]:
    return row["producer_name"], f"closed by the broker: {row['cause']}"


def _not_stored(row: dict[str, Any]) -> tuple[str, str]:
    return row[
        "producer_name"
    ], f"sequence id {row['sequence_id']} refused with {row['error']}: {row['cause']}"


def _gone(row: dict[str, Any]) -> list[str]:
    gone: list[str] = msgspec.json.decode(row["fields"]).get("fenced_out", [])
    return gone


def _fenced_out(row: dict[str, Any]) -> tuple[None, str] | None:
    gone = _gone(row)
    return (None, f"{', '.join(gone)} fenced out: {row['cause']}") if gone else None


def _refused(folders: Folders, row: dict[str, Any]) -> tuple[str | None, str]:
    """A refused request. Its name is in the command, which a log has, and the outputs don't."""
    name = None
    if folders.record is not None:
        command = decode_or_refuse(folders.record(row["partition"], row["offset"]))
        if isinstance(command, Producer) and command.request_id == row["request_id"]:
            name = command.producer_name
    who = "" if name is not None else f"a producer of the connection {row['connection']} "
    return name, f"{who}refused with {row['error']}: {row['cause']}"
