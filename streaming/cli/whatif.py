"""`magnetar whatif`: a log under its own and under other policies."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.printable import counted, some_of
from streaming.cli.console import console, new_table, progress, say, say_json
from streaming.cli.errors import expected_errors
from streaming.cli.options import (
    LARGEST,
    MOST_CORES,
    AnswerFolder,
    KafkaConfigFile,
    Partitions,
    ProfileChoice,
    credentials,
)
from streaming.cli.policy_notes import say_notes
from streaming.cli.replay import unmatched_commands

if TYPE_CHECKING:
    from rich.table import Table

    from streaming.answers.whatif.answer import Model, RuleMet, WhatIf

_SHOWN = 20
_NAMED = 5
MOST_SECONDS = 365 * 86_400


class ClientsChoice(StrEnum):
    """How clients act where they would have seen something else."""

    RECORDED = "recorded"
    REACTIVE = "reactive"


def whatif_command(
    log: Annotated[
        str,
        typer.Argument(
            help="A command log: .jsonl, .jsonl.gz, Parquet, or a topic: kafka://HOST:PORT/TOPIC."
        ),
    ],
    policies: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Other policies: YAML with Pulsar's names, a broker.conf, what pulsar-admin shows of a broker or a namespace, or a "
            "log of ADMIN and BROKER_CONFIG commands. NAMESPACE=FILE says what a file is about; FILE,FILE is one policy set. Repeat it "
            "for more policy sets.",
        ),
    ] = None,
    profile: Annotated[
        ProfileChoice | None,
        typer.Option(
            help="An additional policy set: the rules and defaults of this Pulsar version. Says which of them make the differences."
        ),
    ] = None,
    out: AnswerFolder = None,
    partitions: Partitions = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_CORES,
            help="How many ingress partitions to fold in parallel. The default is the number of cores.",
        ),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="The --checkpoint of a query (a folder, or an s3a:// URL): fold the traffic of the log "
            "from its state, as if it began now.",
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="With --from: the --store of that query, a folder or a URL.")
    ] = None,
    with_spark: Annotated[
        bool,
        typer.Option(
            "--spark", help="Fold with a Structured Streaming query of Spark instead of in processes."
        ),
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="With --spark: a folder for the query's progress. After a crash, the same command goes on from there."
        ),
    ] = None,
    clients: Annotated[
        ClientsChoice,
        typer.Option(
            help="How clients act once the broker answers them differently than in the log: as recorded, or "
            "reactive, like modelled official clients."
        ),
    ] = ClientsChoice.RECORDED,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=LARGEST, help="The seed of reactive clients: the same seed gives the same answer."
        ),
    ] = 0,
    send_timeout: Annotated[
        float,
        typer.Option(
            min=0,
            max=MOST_SECONDS,
            help="The send timeout of reactive clients' producers, in seconds. 0: none.",
        ),
    ] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    kafka_config: KafkaConfigFile = None,
) -> None:
    """What would other policies have done? Fold a log under its own and under other policies, in one pass."""
    from schemas.entries import EntryNotFound
    from sinks.base import ForeignFiles
    from sinks.ledger_store import LedgerStore
    from sinks.storage import BadUrl, Damaged, NotStored, Storage
    from streaming.answers.history.folders import NotFound
    from streaming.answers.history.inspection import check_batches, states_at
    from streaming.answers.whatif.clients.made_log import ClientSettings
    from streaming.answers.whatif.compare import whatif
    from streaming.answers.whatif.folder import check
    from streaming.answers.whatif.projection import LiveState
    from streaming.kafka.client import KafkaUnreachable
    from streaming.kafka.config import KafkaConfigError
    from streaming.kafka.repartition import read_topic
    from streaming.kafka.url import KafkaUrl, KafkaUrlError
    from streaming.log.files import check_log
    from streaming.log.table import LogError
    from streaming.runtime.jars import JarsUnavailableError
    from streaming.spark.checkpoint import BadCheckpoint
    from streaming.spark.failure import QueryFailed

    if (from_ is None) != (store is None):
        raise typer.BadParameter(
            "give --from and --store together: the checkpoint and the store of one query"
        )
    if not policies and profile is None and from_ is None:
        raise typer.BadParameter("give --policies or --profile: without either, there is nothing to compare")
    if with_spark and processes is not None:
        raise typer.BadParameter(
            "give either --spark or --processes: Spark has as many tasks as there are cores"
        )
    if checkpoint is not None and (not with_spark or clients is ClientsChoice.REACTIVE):
        raise typer.BadParameter(
            "--checkpoint is for --spark, with clients as recorded: nothing else has a query that goes on"
        )
    if from_ is not None and clients is ClientsChoice.REACTIVE:
        raise typer.BadParameter(
            "give either --from or --clients reactive: reactive clients are modelled from the start of a log"
        )
    topic = log.startswith("kafka://")
    if kafka_config is not None and not topic:
        raise typer.BadParameter("--kafka-config is only for a topic, kafka://HOST:PORT/TOPIC")
    settings = None
    if clients is ClientsChoice.REACTIVE:
        settings = ClientSettings(seed=seed, send_timeout=round(send_timeout * 1000))
    with (
        expected_errors(
            BadCheckpoint,
            BadUrl,
            FileNotFoundError,
            ForeignFiles,
            JarsUnavailableError,
            KafkaConfigError,
            KafkaUnreachable,
            KafkaUrlError,
            LogError,
            NotFound,
            failed=(Damaged, EntryNotFound, NotStored, QueryFailed),
        ),
        progress() as bar,
    ):
        task = bar.add_task("reading", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, description="folding", completed=done, total=total)

        if not topic:
            check_log(log)
        say_notes(policies or [])
        if checkpoint is not None:
            check(checkpoint, [log, *(policies or ())], out)
        spark = live = None
        if with_spark or from_ is not None:
            from streaming.spark.checkpoint import is_on_s3
            from streaming.spark.session import spark_session

            if from_ is not None and store is not None:
                check_batches(from_)
                if not Storage(store).has_folders():
                    raise NotFound(f"--store {store}: there is no store; name the --store of the query")
            session = spark_session(
                "magnetar whatif",
                shuffle_partitions=1,
                master="local[*]" if with_spark else "local[1]",
                with_s3=from_ is not None and is_on_s3(from_),
            )
            spark = session if with_spark else None
            if from_ is not None and store is not None:
                live = LiveState(states_at(session, from_, store=store), LedgerStore(store))
        found = whatif(
            read_topic(KafkaUrl.parse(log), credentials(kafka_config)).records if topic else log,
            policies or [],
            profile=None if profile is None else profile.value,
            partitions=partitions,
            processes=processes,
            progress=show,
            spark=spark,
            live=live,
            clients=settings,
            name=log,
            checkpoint=checkpoint,
        )
        write_answer(found, out)
    print_answer(found, out, as_json)


def diff_command(
    before: Annotated[Path, typer.Argument(help="The folder of a finished replay.")],
    after: Annotated[
        Path, typer.Argument(help="The folder of another replay of the same log, under other policies.")
    ],
    out: AnswerFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """How does another replay change the fate of each message? Compare the outputs of two replays of one log."""
    from streaming.answers.history.folders import NotFound
    from streaming.answers.whatif.diff import diff

    with expected_errors(NotFound), progress() as bar:
        task = bar.add_task("comparing", total=None)
        found = diff(
            before, after, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
        write_answer(found, out)
    print_answer(found, out, as_json)


def write_answer(found: WhatIf, out: Path | None) -> None:
    """Write an answer to a folder, if one is given."""
    from sinks.outputs import filling
    from streaming.answers.whatif.answer import write
    from streaming.answers.whatif.report import report

    if out is not None:
        with filling(out):
            write(found, out)
            (out / "report.html").write_text(report(found), encoding="utf-8")


def print_answer(found: WhatIf, out: Path | None, as_json: bool) -> None:
    """Print an answer, which may have been written."""
    if as_json:
        from streaming.answers.whatif.answer import to_json

        say_json(to_json(found))
        return
    terminal = console()
    terminal.print(totals_table(found), soft_wrap=True)
    terminal.print(subscriptions_table(found))
    for text in (*notes(found), *rules(found)):
        say(text)
    if out is not None:
        say(f"\nDifferences, in {out}: {len(found.differences):,}. {out / 'report.html'} shows them.")


def totals_table(found: WhatIf) -> Table:
    """A column per policy set, a row per total."""
    table = new_table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    for each in found.totals:
        table.add_column(each.policies, justify="right")
    for name in ("expired", "evicted", "trimmed", "refused", "backlog"):
        table.add_row(name, *(f"{getattr(each, name):,}" for each in found.totals))
    table.add_row("storage, B", *(f"{each.storage:,}" for each in found.totals))
    table.add_row("peak storage, B", *(f"{each.peak_storage:,}" for each in found.totals))
    table.add_row("producers held, s", *(f"{each.held / 1000:,.0f}" for each in found.totals))
    for change in found.totals[0].differences:
        if any(each.differences[change] for each in found.totals):
            table.add_row(change, "", *(f"{each.differences[change]:,}" for each in found.totals[1:]))
    table.add_row("unchanged", "", *(f"{each.unchanged:,}" for each in found.totals[1:]))
    table.add_row(
        "of open-loop topics" if found.model is None else "of modelled topics",
        "",
        *(f"{each.unjudged:,}" for each in found.totals[1:]),
    )
    return table


def subscriptions_table(found: WhatIf) -> Table:
    """The subscriptions whose messages differ, those with most differences first."""
    from streaming.answers.whatif.answer import changes_in
    from streaming.answers.whatif.page import clock_text

    differing = found.differing()
    used = [*changes_in(differing).values()]
    table = new_table(box=None, header_style="bold", pad_edge=False, caption_justify="left")
    for name in (
        "policies",
        "topic",
        "subscription",
        *(each.replace("_", " ") for each in used),
        "exact until",
    ):
        table.add_column(
            name,
            overflow="fold",
            justify="left" if name in ("policies", "topic", "subscription") else "right",
        )
    for row in differing.slice(0, _SHOWN).to_pylist():
        until = "the end" if row["open_loop_from"] is None else clock_text(row["open_loop_from"])
        table.add_row(
            row["policies"], row["topic"].removeprefix("persistent://"), row["subscription"],
            *(f"{row[name]:,}" if row[name] else "" for name in used), until,
        )  # fmt: skip
    if len(differing) > _SHOWN:
        table.caption = f"{len(differing) - _SHOWN:,} more rows: see --json or --out"
    return table


def notes(found: WhatIf) -> list[str]:
    """The window, and what the answer does not know."""
    from streaming.answers.quarantined import quarantine_note
    from streaming.answers.sampled import sampled_note
    from streaming.answers.whatif.page import compacted_note, window_text

    model = found.model
    clients = "clients as recorded" if model is None else f"reactive clients, seed {model.settings.seed}"
    texts = [
        f"\n{window_text(found.records, found.begin, found.end)}; {clients}.",
        *quarantine_note(found.quarantined),
        *sampled_note(found.sampled),
    ]
    for each in found.totals:
        if each.open_loop_topics:
            texts.append(
                f"{each.policies}: clients of {counted(each.open_loop_topics, 'topic')} would have seen something else; from "
                "that moment on (exact until), "
                + (
                    "the answer is open-loop: it has their commands as they were recorded."
                    if model is None
                    else "they are modelled."
                )
            )
        if each.unmatched:
            texts.append(f"{each.policies}: {unmatched_commands(each.unmatched)}")
        own = [one for one in found.compacted if one.policies == each.policies]
        texts += [compacted_note(one) for one in own[:_SHOWN]]
        if len(own) > _SHOWN:
            texts.append(f"{each.policies}: {len(own) - _SHOWN:,} more topics were compacted: see --json")
    return texts + ([] if model is None else _modelled(model))


def _modelled(model: Model) -> list[str]:
    """What modelled clients did, and what the model takes for granted."""
    texts = [
        f"{run.policies}: modelled clients sent {counted(run.sent, 'command')} of their own, and omitted "
        f"{run.left:,} of the log; producers gave up {counted(run.given_up, 'message')}."
        for run in model.runs
    ]
    texts += ["", "The model (Pulsar's Java client):", *(f"  {text}" for text in model.assumed)]
    timeout = model.settings.send_timeout
    texts.append(
        f"  The send timeout is {timeout / 1000:g} s." if timeout else "  Producers never give up a message."
    )
    if model.left_out:
        texts.append(
            "Left as recorded: "
            + ", ".join(f"{count:,} {what}" for what, count in model.left_out.items())
            + "."
        )
    return texts


def rules(found: WhatIf) -> list[str]:
    """Under a profile: which of its rules and defaults make the differences."""
    from streaming.answers.whatif.page import clock_text, short_name
    from streaming.log.policy_files import setting_descriptions

    if found.rules is None:
        return []
    of, met = found.rules, found.rules.met
    changed = (
        f"\n{counted(of.settings, 'setting')} {'differs' if of.settings == 1 else 'differ'} in {of.policies}."
    )
    if not met and not of.together:
        return [f"{changed} None makes a difference to this log."]
    texts = [
        f"{changed} {len(met)} of them {'makes a difference to this log, by itself' if len(met) == 1 else 'make a difference to this log, each by itself'}."
    ]
    meanings = setting_descriptions()
    for rule in met:
        texts += [
            f"\n{rule.change}",
            f"  {rule.notices}",
            f"  {meanings[rule.setting]}",
            f"  Shown by: {rule.shown_by}.",
            f"  {_messages(rule)}, on {some_of([short_name(on.topic) or 'calls about no topic' for on in rule.topics], _NAMED)}.",
        ]
        if rule.figures:
            texts.append(f"  Other figures: {some_of(rule.figures, _NAMED)}.")
        if rule.stats:
            texts.append(f"  Other stats of the admin API: {some_of(rule.stats, _NAMED)}.")
        if (on := rule.first_seen) is not None:
            texts.append(
                f"  First seen by a client at {clock_text(on.open_loop_from or 0)}: {on.open_loop_baseline} -> {on.open_loop_proposed}."
            )
    texts += [""] * bool(of.together)
    texts += [
        f"{counted(count, 'message')} more differ because of {names or 'several rules together'}."
        for names, count in list(of.together.items())[:_SHOWN]
    ]
    return texts


def _messages(rule: RuleMet) -> str:
    if not rule.messages:
        return "No message is affected"
    changes = ", ".join(f"{count:,} {change}" for change, count in rule.differences.items())
    return f"{counted(rule.messages, 'message')} {'is' if rule.messages == 1 else 'are'} affected ({changes})"
