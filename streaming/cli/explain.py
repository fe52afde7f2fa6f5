"""`magnetar explain`: the life of a message, why a subscription gets nothing, why ledgers stay and quotas do not evict."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.units import moment
from streaming.cli.console import printable, say, say_json
from streaming.cli.errors import expected_errors
from streaming.cli.options import AT, LARGEST, SnapshotsFolder, opened_folders, position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming.answers.explain.life import Life
    from streaming.broker.persistent.cleanup.backlog_quota import Quotas
    from streaming.broker.persistent.cleanup.trimming import Retention
    from streaming.broker.persistent.delivery import Delivery, EntryState

_STATES = {
    "caught up": "It has caught up: its backlog is empty.",
    "no consumers": "Nobody gets its entries: no consumer is connected.",
    "in flight": "Every entry of its backlog is with a consumer and not acked yet: it waits for acks.",
    "waiting for a time": "The entries that no consumer has yet wait for a point in time.",
    "held back": "Entries are waiting, but the dispatcher sends none of them now:",
    "not triggered": "Nothing holds its entries back. Like Pulsar, the broker dispatches on the next "
    "event, such as a message or a FLOW.",
}


def explain_command(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="The --out of a replay, the --store of a query, or a command log."
        ),
    ],
    topic: Annotated[
        str | None, typer.Argument(help="A topic. persistent://public/default/ can be omitted.")
    ] = None,
    message: Annotated[
        str | None, typer.Argument(metavar="[LEDGER:ENTRY]", help="The message at this position.")
    ] = None,
    producer: Annotated[
        str | None, typer.Option(help="The message of this producer, with --sequence-id.")
    ] = None,
    sequence_id: Annotated[
        int | None, typer.Option(min=-1, max=LARGEST, help="The message with this sequence id.")
    ] = None,
    subscription: Annotated[
        str | None,
        typer.Option(
            help="Explain what this subscription receives, and why. The default is every subscription of the "
            "topic."
        ),
    ] = None,
    quota: Annotated[
        bool,
        typer.Option("--quota", help="Explain why the topic's backlog quotas have not evicted anything."),
    ] = False,
    retention: Annotated[
        bool, typer.Option("--retention", help="Explain why each ledger of the topic still exists.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="The --checkpoint of the query (a folder, or an s3a:// URL), if DIR is not a replay's folder."
        ),
    ] = None,
    at: Annotated[str | None, AT] = None,
    snapshots: SnapshotsFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Explain what happened to a message, why a subscription receives nothing, or why a topic still stores data.

    Given a message, it tells the message's history; given only a topic, it explains the topic's subscriptions; given neither, it picks an example.
    """
    from schemas.entries import EntryNotFound
    from sinks.storage import BadUrl
    from streaming.answers.explain import life, storage
    from streaming.answers.explain.delivery import explain_deliveries, to_json
    from streaming.answers.history.folders import NotFound
    from streaming.broker.errors import StateVersionError
    from streaming.broker.position import Position
    from streaming.log.table import LogError
    from streaming.runtime.jars import JarsUnavailableError
    from streaming.runtime.java import JavaNotFoundError
    from streaming.spark.checkpoint import BadCheckpoint
    from streaming.spark.failure import QueryFailed

    if (producer is None) != (sequence_id is None):
        raise typer.BadParameter("--producer and --sequence-id identify a message only together")
    about_message = message is not None or producer is not None
    if (quota or retention) and (about_message or subscription is not None):
        raise typer.BadParameter(
            "--quota and --retention apply to a topic: omit the message and the subscription"
        )
    if topic is None and (producer is not None or subscription is not None):
        raise typer.BadParameter("give the topic as well")
    if message is not None and (producer is not None or subscription is not None):
        raise typer.BadParameter("LEDGER:ENTRY alone identifies a message: omit the other options")
    if producer is not None and subscription is not None:
        raise typer.BadParameter("ask about a message or about a subscription, not about both")
    named = None if message is None else position(message)
    with expected_errors(
        NotFound, EntryNotFound, BadCheckpoint, BadUrl, StateVersionError, JarsUnavailableError, JavaNotFoundError, LogError,
        FileNotFoundError, failed=(QueryFailed,),
    ), ExitStack() as reading:  # fmt: skip
        folders = opened_folders(folder, checkpoint, at, snapshots)
        reading.enter_context(folders.unchanged())
        name = None if topic is None else folders.topic(topic)
        lives: list[Life] = []
        deliveries: list[Delivery] = []
        stored: list[tuple[Quotas | Retention, Iterator[str]]] = []
        example = None
        if quota or retention:
            if name is None:
                name, example = storage.example(folders, by_backlog=quota)
            if quota:
                quotas = storage.explain_quotas(folders, name)
                stored.append((quotas, _quotas(quotas)))
            if retention:
                retained = storage.explain_retention(folders, name)
                stored.append((retained, _retention(retained)))
        elif name is None:
            name, what, why = life.example(folders)
            lives = (
                [life.by_position(folders, name, what)]
                if isinstance(what, Position)
                else (life.by_sequence_id(folders, name, *what))
            )
            for each in lives:
                each.example = why
        elif named is not None:
            lives = [life.by_position(folders, name, named)]
        elif producer is not None and sequence_id is not None:
            lives = life.by_sequence_id(folders, name, producer, sequence_id)
        else:
            deliveries = explain_deliveries(folders, name, subscription)
    if as_json:
        say_json(to_json(lives or [each for each, _ in stored] or deliveries))
        return
    if example is not None:
        say(printable(f"No topic was given. As an example, a topic that was chosen because {example}:"))
    for number, (_, lines) in enumerate(stored):
        say(*[*[""] * bool(number), *lines])
    if not lives and not deliveries and not stored:
        say(f"{name} has no subscriptions.")
    for number, one in enumerate(lives):
        say(*[*[""] * bool(number), *_life(one)])
    for number, delivery in enumerate(deliveries):
        say(*[*[""] * bool(number), *_delivery(delivery)])


def _life(life: Life) -> Iterator[str]:
    what = life.position or f"sequence id {life.sequence_id} of {life.producer}"
    if life.example is not None:
        yield f"No topic was given. As an example, a message that was chosen because {life.example}:"
    yield f"{life.topic}, {what}: {life.text}"
    if life.events and life.fate == "stored":
        yield "\nWhat happened:"
        for each in life.events:
            whose = f"{each.subscription}: " if each.subscription else ""
            yield f"  {_time(each.clock)}  {whose}{each.text}"
    elif life.events:
        yield f"  at {_time(life.events[0].clock)}, record {life.events[0].partition}:{life.events[0].offset}"
    if life.subscriptions:
        when = f" at {_time(life.clock)}" if life.clock is not None else ""
        yield f"\nWhat became of it{when}:"
        width = max(len(each.subscription) for each in life.subscriptions)
        for of in life.subscriptions:
            yield f"  {of.subscription.ljust(width)}  {of.outcome}: {of.text}"


def _delivery(found: Delivery) -> Iterator[str]:
    yield f"{found.topic}, subscription {found.subscription} ({found.type}), at {_time(found.clock)}"
    yield (
        f"  backlog {found.backlog:,} entries ({found.analysis['messages']:,} messages{' or more' * found.analysis['aborted']}): "
        f"{found.in_flight:,} in flight, {found.to_redeliver:,} to redeliver, {found.delayed:,} delayed, {found.unread:,} not "
        "read yet"
    )
    yield f"  mark-delete position {found.mark_delete}, read position {found.read_position}, last entry {found.last_confirmed}"
    yield f"\n  {_STATES[found.state]}"
    shown = [
        (f"{each.decider} ({each.consumer})" if each.consumer else each.decider, each)
        for each in found.verdicts
    ]
    width = max((len(name) for name, _ in shown), default=0)
    for name, each in sorted(shown, key=lambda pair: not pair[1].blocks):
        yield f"    {'holds back' if each.blocks else '        ok'}  {name.ljust(width)}  {each.text}{_until(each.until)}"
    for number, entry in enumerate(found.first):
        yield f"  {'first unacknowledged entry' if number == 0 else 'first that no consumer has'} {_entry(entry)}"


def _retention(found: Retention) -> Iterator[str]:
    size = "unlimited" if found.megabytes < 0 else f"{found.megabytes} MB"
    time = "unlimited" if found.minutes < 0 else f"{found.minutes} min"
    yield f"{found.topic}, {len(found.ledgers)} ledgers of {found.size:,} bytes, at {_time(found.clock)}"
    yield f"  retention of what is consumed: {time}, {size} ({found.level})"
    yield _next_check(found.next_check, found.unchecked)
    for each in found.ledgers:
        until = "" if each.until is None else f"; retention time ends at {_time(each.until)}"
        goes = "; the next check deletes it" if each.ledger in found.deletes else ""
        closed = "" if each.closed_at is None else f", closed {_time(each.closed_at)}"
        yield f"  ledger {each.ledger} ({each.entries:,} entries, {each.size:,} bytes{closed})"
        yield f"    {each.reason}: {each.text}{until}{goes}"


def _quotas(found: Quotas) -> Iterator[str]:
    yield f"{found.topic}, at {_time(found.clock)}"
    if found.slowest is None:
        yield "  no durable subscription has a backlog"
    else:
        yield f"  the slowest cursor is {found.slowest}, mark-delete position {found.mark_delete}"
    yield _next_check(found.next_check, found.unchecked)
    for each in found.quotas:
        how = str if each.type == "destination_storage" else _seconds
        unit = " bytes" * (each.type == "destination_storage")
        yield f"  {each.type}: {each.state}"
        if each.state != "no limit":
            used = "unknown" if each.used is None else f"{how(each.used)}{unit}"
            left = "" if each.headroom is None else f", headroom {how(each.headroom)}{unit}"
            yield f"    limit {how(each.limit)}{unit}, used {used}{left} ({each.policy}, {each.level})"
        yield f"    {each.text}"
    for eviction in found.evicts:
        yield (
            f"  The next check evicts {_entries(eviction.entries)} of {eviction.subscription}, from {eviction.before} to "
            f"{eviction.after}."
        )
    if found.disconnects:
        yield f"  The next check closes the producers {', '.join(found.disconnects)}."
    if not found.evicts and not found.disconnects and found.next_check is not None:
        yield "  The next check evicts nothing, unless a command comes before."


def _next_check(at: int | None, unchecked: str | None) -> str:
    if unchecked is not None:
        return f"  not checked: {unchecked}"
    return "  not checked: its interval is 0" if at is None else f"  next check at {_time(at)}"


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"


def _entry(entry: EntryState) -> str:
    acked = (
        "" if entry.messages_acked is None else f"; {entry.messages_acked} messages of its batch are acked"
    )
    return f"{entry.position}: {entry.state}, {entry.text}{_until(entry.until)}{acked}"


def _until(until: int | None) -> str:
    return "" if until is None else f", until {_time(until)}"


def _time(clock: int) -> str:
    return moment(clock).strftime("%Y-%m-%d %H:%M:%S.") + f"{clock % 1000:03d}"
