"""`magnetar explain`: the life of a message, why a subscription gets nothing, why a producer is refused, why ledgers stay, and what checks
do next."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.printable import printable
from streaming.cli.console import say, say_json
from streaming.cli.errors import expected_errors
from streaming.cli.explained import (
    absent_producers_lines,
    answers_lines,
    delivery_lines,
    expiry_lines,
    inactive_subscriptions_lines,
    inactive_topic_lines,
    life_lines,
    producing_lines,
    quotas_lines,
    retention_lines,
    snapshots_lines,
)
from streaming.cli.options import AT, LARGEST, SnapshotsFolder, opened_folders, position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming.answers.explain.life import Life
    from streaming.answers.explain.stats.answers import Answers, Questions
    from streaming.broker.persistent.delivery import Delivery
    from streaming.cli.explained import OfTopic

_LIVE = "A live cluster, or what its admin API showed"


def explain_command(
    folder: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR]",
            help="The --out of a replay, the --store of a query, or a command log (a file, or a folder with its files). Not with --admin-url or --stats.",
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Argument(help="A topic. persistent://public/default/ can be omitted.")
    ] = None,
    message: Annotated[
        str | None, typer.Argument(metavar="[LEDGER:ENTRY]", help="The message at this position.")
    ] = None,
    producer: Annotated[
        str | None,
        typer.Option(
            help="With --sequence-id: a message of this producer. Without: why this producer is refused, closed or waits."
        ),
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
        typer.Option(
            "--quota",
            help="Explain whether a backlog quota is exceeded, by which subscription, and why nothing was evicted.",
        ),
    ] = False,
    retention: Annotated[
        bool, typer.Option("--retention", help="Explain why each ledger of the topic still exists.")
    ] = False,
    ttl: Annotated[
        bool,
        typer.Option(
            "--ttl",
            help="Explain what message TTL expires next for each subscription, and why it has not expired more.",
        ),
    ] = False,
    inactive: Annotated[
        bool,
        typer.Option(
            "--inactive",
            help="Explain why the topic and its subscriptions are not deleted although nobody uses them, or when they are.",
        ),
    ] = False,
    deduplication: Annotated[
        bool,
        typer.Option(
            "--deduplication",
            help="Explain when deduplication stores its sequence ids next, what an unload or a crash would forget, and which "
            "producers it forgets.",
        ),
    ] = False,
    producers: Annotated[
        bool,
        typer.Option(
            "--producers",
            help="Explain who produces on the topic, who waits for access, and why a new producer is refused.",
        ),
    ] = False,
    admin_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ask a live cluster: its admin REST API, such as http://localhost:8080. Only reads. Takes TOPIC as the first "
            "argument.",
            rich_help_panel=_LIVE,
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with a token (JWT) for the cluster.", rich_help_panel=_LIVE)
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            help="A PEM file with the authorities that sign the cluster's certificates. The default is the system's authorities.",
            rich_help_panel=_LIVE,
        ),
    ] = None,
    stats: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What `pulsar-admin topics stats` or `partitioned-stats --per-partition` printed.",
            rich_help_panel=_LIVE,
        ),
    ] = None,
    internal_stats: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --stats: what `pulsar-admin topics stats-internal` or `partitioned-stats-internal` printed.",
            rich_help_panel=_LIVE,
        ),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="With --stats: the policies and settings that hold, as `magnetar replay --policies` takes them: a broker.conf, what "
            "pulsar-admin shows of a broker, a namespace or a topic, or YAML. TOPIC=FILE says what a file is about; FILE,FILE is both.",
            rich_help_panel=_LIVE,
        ),
    ] = None,
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
    """Explain what happened to a message, why a subscription receives nothing, why a producer is refused, why a topic still
    stores data, or what expires and is deleted next.

    Given a message, it tells the message's history; given only a topic, it explains the topic's subscriptions; given neither, it picks an example. With --admin-url, it asks a live cluster: magnetar explain --admin-url http://localhost:8080 TOPIC
    """
    if sequence_id is not None and producer is None:
        raise typer.BadParameter("--producer and --sequence-id identify a message only together")
    about_message = message is not None or sequence_id is not None
    about_topic = quota or retention or ttl or inactive or deduplication or producers
    if about_topic and (about_message or subscription is not None):
        raise typer.BadParameter(
            "--quota, --retention, --ttl, --inactive, --deduplication and --producers apply to a topic: omit the message and the "
            "subscription"
        )
    if message is not None and (producer is not None or subscription is not None):
        raise typer.BadParameter("LEDGER:ENTRY alone identifies a message: omit the other options")
    if producer is not None and subscription is not None:
        raise typer.BadParameter("ask about a producer or about a subscription, not about both")
    if admin_url is not None or stats is not None:
        from streaming.answers.explain.stats.answers import Questions

        given = {
            "--checkpoint": checkpoint, "--at": at, "--snapshots": snapshots, "--sequence-id": sequence_id, "--producer": producer,
            "--ttl": ttl or None, "--inactive": inactive or None, "--deduplication": deduplication or None,
        }  # fmt: skip
        unfit = next((name for name, value in given.items() if value is not None), None)
        if unfit is not None or topic is not None:
            raise typer.BadParameter(
                "with --admin-url or --stats, give only TOPIC: "
                + (
                    f"{unfit} applies to a log, a replay or a query"
                    if unfit
                    else "a cluster keeps no history, so it has no DIR"
                )
            )
        asked = Questions(subscription, quota, retention, producers)
        if admin_url is not None:
            if stats is not None or internal_stats is not None or policies is not None:
                raise typer.BadParameter(
                    "give --admin-url or --stats, not both: the cluster shows all itself"
                )
            answers = _of_cluster(admin_url, folder, asked, token_file, tls_ca)
        else:
            if token_file is not None or tls_ca is not None:
                raise typer.BadParameter("--token-file and --tls-ca apply to --admin-url")
            answers = _of_files(stats, internal_stats, policies, folder, asked)
        _print(answers, as_json=as_json)
        return
    if internal_stats is not None or policies is not None:
        raise typer.BadParameter("--internal-stats and --policies add to --stats: give it as well")
    if token_file is not None or tls_ca is not None:
        raise typer.BadParameter("--token-file and --tls-ca apply to --admin-url")
    if folder is None:
        raise typer.BadParameter(
            "give DIR (a replay's folder, a query's store or a command log), or --admin-url URL TOPIC for a live cluster"
        )
    if folder.startswith(("http://", "https://", "pulsar://", "pulsar+ssl://")):
        raise typer.BadParameter(
            f"{folder} is not a DIR: to ask a live cluster, give the URL of its admin API as --admin-url"
        )
    if topic is None and (producer is not None or subscription is not None or producers):
        raise typer.BadParameter("give the topic as well")
    from schemas.entries import EntryNotFound
    from sinks.storage import BadUrl
    from streaming.answers.explain import checks, life, storage
    from streaming.answers.explain.delivery import explain_deliveries, to_json
    from streaming.answers.explain.producing import explain_producers
    from streaming.answers.history.folders import NotFound
    from streaming.broker.errors import StateVersionError
    from streaming.broker.position import Position
    from streaming.log.table import LogError
    from streaming.runtime.jars import JarsUnavailableError
    from streaming.runtime.java import JavaNotFoundError
    from streaming.spark.checkpoint import BadCheckpoint
    from streaming.spark.failure import QueryFailed

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
        stored: list[tuple[OfTopic, Iterator[str]]] = []
        example = None
        if about_topic or (producer is not None and sequence_id is None):
            if name is None:
                name, example = storage.example(folders, by_backlog=quota or ttl)
            if quota:
                quotas = storage.explain_quotas(folders, name)
                stored.append((quotas, quotas_lines(quotas)))
            if retention:
                retained = storage.explain_retention(folders, name)
                stored.append((retained, retention_lines(retained)))
            if ttl:
                expiry = checks.explain_expiry(folders, name)
                stored.append((expiry, expiry_lines(expiry)))
            if inactive:
                of_topic, of_subscriptions = checks.explain_inactivity(folders, name)
                stored.append((of_topic, inactive_topic_lines(of_topic)))
                stored.append((of_subscriptions, inactive_subscriptions_lines(of_subscriptions)))
            if deduplication:
                kept, absent = checks.explain_deduplication(folders, name)
                stored.append((kept, snapshots_lines(kept)))
                stored.append((absent, absent_producers_lines(absent)))
            if producers or producer is not None:
                producing = explain_producers(folders, name, producer)
                stored.append((producing, producing_lines(producing)))
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
        say(*[*[""] * bool(number), *life_lines(one)])
    for number, delivery in enumerate(deliveries):
        say(*[*[""] * bool(number), *delivery_lines(delivery)])


def _of_cluster(
    url: str, topic: str | None, asked: Questions, token_file: Path | None, tls_ca: Path | None
) -> Answers:
    from streaming.answers.explain.stats.answers import answer
    from streaming.answers.history.folders import NotFound
    from streaming.cli.record import authorization, tls_of, token_of
    from streaming.record.observe import observe
    from streaming.record.rest import BadAdminUrl, CallFailed, Rest

    if topic is None:
        raise typer.BadParameter("give the topic: magnetar explain --admin-url URL TOPIC")
    with expected_errors(BadAdminUrl, NotFound, failed=(CallFailed,)):
        rest = Rest(url, authorization(token_of(token_file)), tls_of(tls_ca))
        name, observed, partitions = observe(
            rest, topic, _now(), oldest=asked.quota or asked.subscription is not None
        )
        return answer(name, observed, asked, partitions)


def _of_files(
    stats: Path | None, internal: Path | None, policies: str | None, topic: str | None, asked: Questions
) -> Answers:
    from streaming.answers.explain.stats.answers import answer
    from streaming.answers.explain.stats.files import BadStats, Told, from_files
    from streaming.answers.history.folders import NotFound
    from streaming.cli.policy_notes import say_notes
    from streaming.log.policies import in_force
    from streaming.log.table import LogError

    assert stats is not None
    with expected_errors(BadStats, NotFound, LogError, FileNotFoundError):
        told = Told()
        if policies is not None:
            told = Told(*in_force(policies, topic))
            say_notes([policies])
        name, observed, partitions = from_files(stats, internal, told, topic, _now())
        return answer(name, observed, asked, partitions)


def _print(answers: Answers, *, as_json: bool) -> None:
    if as_json:
        from streaming.answers.explain.delivery import to_json

        say_json(to_json(answers))
        return
    say(*answers_lines(answers))


def _now() -> int:
    return time.time_ns() // 1_000_000
