"""`magnetar state`: the brokers' states as text, and queries that go on from them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.printable import counted
from schemas.units import LATEST_TIME
from streaming.cli.console import progress, say
from streaming.cli.errors import expected_errors
from streaming.cli.options import (
    MAX_AHEAD,
    MOST_PARTITIONS,
    IngressOption,
    KafkaConfigFile,
    credentials,
    max_ahead_milliseconds,
)

if TYPE_CHECKING:
    from streaming.fold.records import StateRow
    from streaming.spark.checkpoint import Committed
    from streaming.state.dump import Header
    from streaming.state.move import Moved

state_app = typer.Typer(
    help="Export the brokers' states as text, and start queries from them, also with another number of "
    "ingress partitions.",
    no_args_is_help=True,
)

_DIGITS = 16
"""Of a dump's checksum, which tells it from others."""

Checkpoint = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The --checkpoint of a query: a folder, or an s3a:// URL.")
]


@contextmanager
def _expected() -> Iterator[None]:
    from schemas.entries import EntryNotFound
    from sinks.base import ForeignFiles
    from sinks.lock import InUse, LeaseLost, NotWritable
    from sinks.storage import BadUrl, Damaged, NotStored
    from streaming.broker.errors import StateVersionError
    from streaming.kafka.client import KafkaUnreachable
    from streaming.kafka.config import KafkaConfigError
    from streaming.kafka.ingress import IngressChanged
    from streaming.kafka.produce import NotProduced
    from streaming.kafka.url import KafkaUrlError
    from streaming.log.table import LogError
    from streaming.runtime.jars import JarsUnavailableError
    from streaming.runtime.java import JavaNotFoundError
    from streaming.spark.checkpoint import BadCheckpoint
    from streaming.spark.failure import QueryFailed
    from streaming.state.dump import BadDump
    from streaming.state.seed import NotWhole
    from streaming.state.spread import NotSpread

    with expected_errors(
        BadCheckpoint, BadDump, BadUrl, FileNotFoundError, ForeignFiles, InUse, IngressChanged, JarsUnavailableError,
        JavaNotFoundError, KafkaConfigError, KafkaUnreachable, KafkaUrlError, LogError, NotSpread, NotWhole, NotWritable, StateVersionError,
        failed=(Damaged, EntryNotFound, LeaseLost, NotProduced, NotStored, QueryFailed),
    ):  # fmt: skip
        try:
            yield
        except NotStored as error:
            raise NotStored(f"{error}. Nothing is lost: fix this and try again") from error


@state_app.command("export")
def export_command(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="The --checkpoint of a query, also of magnetar.start, running or not (a folder, or an s3a:// URL), or the --out of a replay.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write. It must not exist.")],
    store: Annotated[
        str | None,
        typer.Option(
            help="The --store of the query, which also notes the checkpoint's offsets. Needed if the query began from other states: it has "
            "those of partitions without records since."
        ),
    ] = None,
) -> None:
    """Write the brokers' states after the last micro-batch as JSON Lines: one line per partition and per topic."""
    from sinks.outputs import new_file
    from streaming.spark.checkpoint import NoTopic, last_committed
    from streaming.state.dump import Header, write_dump
    from streaming.state.saved import read_states

    with _expected():
        encoded: Iterable[bytes]
        last = None
        if "://" not in checkpoint and (states := read_states(Path(checkpoint) / "state")) is not None:
            header = Header()
            encoded = [each.broker for each in states]
        else:
            try:
                last = _committed(checkpoint, store)
            except NoTopic:  # as for a replay, nobody knows which records of what come next
                header, batch = Header(), last_committed(checkpoint)
            else:
                header, batch = _header(last), last.batch
            encoded = (
                each.broker
                for each in (_states(checkpoint, batch) if last is None else _whole(checkpoint, last, store))
            )
        with new_file(out) as file:
            topics = write_dump(file, header, encoded)
    say(f"{counted(topics, 'topic')} to {out}")


@state_app.command("import")
def import_command(
    dump: Annotated[Path, typer.Argument(metavar="FILE", help="What magnetar state export wrote.")],
    ingress: IngressOption,
    entries: Annotated[
        str,
        typer.Option(
            help="The --store of the query that the states come from. The query must not have run since."
        ),
    ],
    store: Annotated[str, typer.Option(help="A new store, for the query that continues from the states.")],
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_PARTITIONS,
            help="The number of partitions of the new topic, if it is not the topic of the states.",
        ),
    ] = None,
    kafka_config: KafkaConfigFile = None,
) -> None:
    """Prepare a store for a query that continues from a dump, on the same ingress topic or a new one."""
    from sinks.lock import exclusive
    from streaming.kafka.url import KafkaUrl
    from streaming.log.partition import PARTITIONS
    from streaming.state.dump import read_dump, read_header
    from streaming.state.move import States, move_states, restore_states

    # Another file may get its name meanwhile.
    with _expected(), ExitStack() as held_open:
        url = KafkaUrl.parse(ingress)
        config = credentials(kafka_config)
        file = held_open.enter_context(dump.open("rb"))
        header = read_header(file)
        file.seek(0)
        for _ in read_dump(file):  # before anything is written
            pass
        file.seek(0)
        digest = file_digest(file, "sha256").hexdigest()[:_DIGITS]
        file.seek(0)
        offsets = {int(partition): offset for partition, offset in header.offsets.items()}
        same = header.ingress == url.topic
        if same and partitions not in (None, header.partitions):
            raise typer.BadParameter(
                f"topic {url.topic} has {header.partitions} partitions: for another number, name a new topic",
                param_hint="--partitions",
            )
        with exclusive([entries, store], "magnetar state import") as held:
            states = States(f"{dump.name} (sha256 {digest}…)", read_dump(file), entries, None, offsets)
            if same:
                moved = restore_states(
                    states, url, store, partitions=header.partitions, config=config, check=held.check
                )
            else:
                moved = move_states(
                    states,
                    url,
                    store,
                    partitions=partitions or header.partitions or PARTITIONS,
                    config=config,
                    check=held.check,
                )
    _done(moved, ingress, store)


@state_app.command("move")
def move_command(
    checkpoint: Checkpoint,
    ingress: IngressOption,
    store: Annotated[str, typer.Option(help="The --store of the query.")],
    to_ingress: Annotated[
        str, typer.Option(help="The topic for the new query, which is created: kafka://HOST:PORT/TOPIC.")
    ],
    to_store: Annotated[str, typer.Option(help="The store for the new query.")],
    partitions: Annotated[
        int, typer.Option(min=1, max=MOST_PARTITIONS, help="The number of partitions of the new topic.")
    ],
    max_ahead: Annotated[
        str,
        typer.Option(
            help="Of the records that the query has not folded, those with timestamps at least this far ahead of the machine's clock are "
            "for the new query to quarantine: give its --max-ahead; off: none."
        ),
    ] = MAX_AHEAD,
    kafka_config: KafkaConfigFile = None,
) -> None:
    """Prepare a topic and a store for a query that continues where a stopped one ended, with another number of ingress partitions.

    If it is interrupted, run it again. The stopped query's topic, checkpoint and store do not change.
    """
    from sinks.base import INGRESS
    from sinks.begun import Begun
    from sinks.lock import exclusive
    from sinks.storage import Storage
    from streaming.kafka.ingress import partition_counts
    from streaming.kafka.topics import are_distinct
    from streaming.kafka.url import KafkaUrl, KafkaUrlError
    from streaming.spark.checkpoint import BadCheckpoint, check
    from streaming.state.move import CATCH_UP, States, move_states
    from streaming.state.seed import SeedWriter, read_seed, with_seed

    ahead = max_ahead_milliseconds(max_ahead)
    latest = LATEST_TIME if ahead is None else time.time_ns() // 1_000_000 + ahead - 1
    with _expected():
        old, new = KafkaUrl.parse(ingress), KafkaUrl.parse(to_ingress)
        config = credentials(kafka_config)
        check(checkpoint, old.topic)
        if Storage(store).info(INGRESS) is None:
            raise BadCheckpoint(f"{store} is not the --store of a query")
        folders = [store, to_store] if "://" in checkpoint else [checkpoint, store, to_store]
        with exclusive(folders, "magnetar state move") as held, progress() as bar:
            last = _committed(checkpoint, store)
            notes = []
            if not last.is_last and Begun(store).may_have_begun(last.batch + 1):
                first, count = partition_counts(old, store, config)
                if first == count:
                    raise BadCheckpoint(
                        f"the query of {checkpoint} ended in the middle of a micro-batch: {CATCH_UP}. If it can't, see "
                        "docs/operate/partitions.md#a-query-that-cant-catch-up"
                    )
                # It can't go on, as its topic got partitions, and the states of the last whole micro-batch have what they need.
                notes.append(
                    f"micro-batch {last.batch + 1} ended in the middle: the new query folds its records again, and what it wrote may also be in "
                    f"the outputs of the old query: rows in {store}, responses, dead letters"
                )
            name = f"{_absolute(checkpoint)} after micro-batch {last.batch}"
            SeedWriter(to_store).check_new(name)
            if old == new or not are_distinct([old, new], config):
                raise KafkaUrlError(f"{to_ingress} is the topic of the query: choose another one")
            task = bar.add_task("moving", total=None)
            moved = move_states(
                States(
                    name,
                    (each.broker for each in with_seed(_folded(checkpoint, last), read_seed(store))),
                    store,
                    old,
                    last.offsets,
                ),
                new,
                to_store,
                partitions=partitions,
                latest=latest,
                config=config,
                check=held.check,
                progress=lambda done, total: bar.update(
                    task, description="sent", completed=done, total=total
                ),
            )
    _done(moved._replace(notes=[*notes, *moved.notes]), to_ingress, to_store)


def _header(last: Committed) -> Header:
    from streaming.state.dump import Header

    return Header(
        ingress=last.topic,
        partitions=len(last.offsets),
        offsets={str(partition): offset for partition, offset in last.offsets.items()},
    )


def _committed(checkpoint: str, store: str | None) -> Committed:
    """The last committed micro-batch, as the query's store notes it, too. Raises `BadCheckpoint`, `ForeignFiles`, `Damaged`."""
    from streaming.kafka.ingress import DATAFRAME, noted_topic
    from streaming.spark.checkpoint import BadCheckpoint, committed

    last = committed(checkpoint)
    if last is None:
        raise BadCheckpoint(f"{checkpoint} is not the --checkpoint of a query with a committed micro-batch")
    if store is None:
        return last
    if noted_topic(store) not in (last.topic, DATAFRAME):
        raise BadCheckpoint(f"{store} is not the --store of the query of {checkpoint}")
    return committed(checkpoint, store) or last


def _folded(checkpoint: str, last: Committed, until: dict[int, int] | None = None) -> Iterator[StateRow]:
    """The states of a checkpoint, and into `until` the offset after the last record of each. Raises `BadCheckpoint` if the offsets of the
    micro-batch do not have that record."""
    from sinks.storage import RESTORE
    from streaming.spark.checkpoint import BadCheckpoint

    for each in _states(checkpoint, last.batch):
        at = -1 if each.offset is None else each.offset
        if at >= last.offsets.get(each.partition, 0):
            raise BadCheckpoint(
                f"The checkpoint's file {checkpoint}/offsets/{last.batch} is damaged, or a state is: partition {each.partition} has folded the "
                f"record at offset {at}, which is not in that micro-batch. {RESTORE}"
            )
        if until is not None:
            until[each.partition] = at + 1
        yield each


def _whole(checkpoint: str, last: Committed, store: str | None) -> Iterator[StateRow]:
    """The states of a checkpoint, and those that only the query's store has. If nobody names that, it says what the checkpoint alone does
    not tell: whether the query began from others, if a state is missing, and whether the offsets are right, if a state ends before."""
    from streaming.state.seed import read_seed, with_seed

    missing, until = {*last.offsets}, dict[int, int]()
    for each in with_seed(_folded(checkpoint, last, until), None if store is None else read_seed(store)):
        missing.discard(each.partition)
        yield each
    if store is None and missing:
        say(
            f"magnetar: {checkpoint} has no state of {counted(len(missing), 'ingress partition')}, from {min(missing)} on. If the query began from "
            "other states (magnetar state), they are in its store: give --store",
            err=True,
        )
    short = sorted(each for each, at in until.items() if at < last.offsets[each])
    if store is None and short:
        first = short[0]
        say(
            f"magnetar: the state of ingress partition {first} ends before offset {until[first]}, and the micro-batch before offset "
            f"{last.offsets[first]}. Ends of transactions may be in between; only the query's store tells whether that offset is right: give "
            "--store",
            err=True,
        )


def _states(checkpoint: str, batch: int) -> Iterator[StateRow]:
    """The states of a checkpoint, one after the other. Spark starts with the first. Raises `QueryFailed`."""
    from streaming.runtime.jars import s3a_jars
    from streaming.runtime.java import spark_java_home
    from streaming.spark.checkpoint import is_on_s3
    from streaming.spark.failure import explained
    from streaming.spark.session import spark_session
    from streaming.spark.state import states_in_turn

    spark_java_home()
    on_s3 = is_on_s3(checkpoint)
    if on_s3:
        s3a_jars()
    with explained("Try again"):
        spark = spark_session("magnetar state", shuffle_partitions=1, master="local[1]", with_s3=on_s3)
        yield from states_in_turn(spark, _absolute(checkpoint), batch)


def _absolute(checkpoint: str) -> str:
    return checkpoint if "://" in checkpoint else os.path.abspath(checkpoint)  # noqa: PTH100 (a text, as a URL is)


def _done(moved: Moved, ingress: str, store: str) -> None:
    for note in moved.notes:
        say(f"magnetar: {note}", err=True)
    copied = (
        f", and {counted(moved.copied, 'record')} copied that the query had not folded"
        if moved.copied
        else ""
    )
    say(
        f"{counted(moved.topics, 'topic')} moved{copied}. Continue with a new checkpoint, and with new "
        "topics for responses and dead letters:"
    )
    say(f"magnetar run --ingress {ingress} --store {store} --checkpoint NEW")
