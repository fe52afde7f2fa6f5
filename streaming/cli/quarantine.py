"""`magnetar quarantine`: inspect, export and resubmit quarantined records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schemas.printable import counted, printable
from streaming.cli.console import console, new_table, printable_json, say, say_json
from streaming.cli.errors import expected_errors
from streaming.cli.options import MOST_PARTITIONS, KafkaConfigFile, coordinates, credentials

if TYPE_CHECKING:
    from streaming.quarantine.store import Repaired, RuleSummary

quarantine_app = typer.Typer(
    help="Inspect, repair and resubmit the records that the query quarantined.", no_args_is_help=True
)

_SHOWN = 4096
_NAMED = 5

StoreArgument = Annotated[
    str, typer.Argument(metavar="STORE", help="The --store of a run, or the output folder of a replay.")
]
OriginArgument = Annotated[
    str, typer.Argument(metavar="PARTITION:OFFSET", help="The record's place in the ingress.")
]
RuleOption = Annotated[str | None, typer.Option(help="Only records that broke this rule.")]
TopicOption = Annotated[str | None, typer.Option(help="Only records of this topic.")]


@contextmanager
def _expected() -> Iterator[None]:
    from sinks.lock import InUse, NotWritable
    from sinks.storage import BadUrl, NotStored
    from streaming.kafka.client import KafkaUnreachable
    from streaming.kafka.config import KafkaConfigError
    from streaming.kafka.produce import NotProduced
    from streaming.kafka.url import KafkaUrlError
    from streaming.log.table import LogError
    from streaming.quarantine.store import QuarantineError

    unusable = (QuarantineError, LogError, FileNotFoundError, KafkaUrlError, KafkaConfigError, BadUrl, InUse)
    with expected_errors(*unusable, KafkaUnreachable, NotWritable, failed=(NotProduced, NotStored)):
        yield


@quarantine_app.command("list")
def list_command(
    store: StoreArgument,
    rule: RuleOption = None,
    topic: TopicOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; times are in ms since the epoch.")
    ] = False,
) -> None:
    """Count records by the rule they broke, with times and the last record as an example."""
    import msgspec

    from streaming.quarantine.store import Quarantine

    with _expected():
        found = Quarantine(store).by_rule(rule=rule, topic=topic)
    if as_json:
        say_json(msgspec.json.encode([_plain(each) for each in found]))
        return
    if found:
        _table(found)
    total, back = sum(each.records for each in found), sum(each.resubmitted for each in found)
    say(f"{counted(total, 'record')} in quarantine, {back:,} of them resubmitted")


@quarantine_app.command("show")
def show_command(
    store: StoreArgument,
    record: OriginArgument,
    raw: Annotated[bool, typer.Option("--raw", help="Write only the bytes of the value.")] = False,
) -> None:
    """Show one record: its place, what is wrong with it, and its value as text or hex."""
    from streaming.quarantine.store import Quarantine, iso

    origin = coordinates(record)
    with _expected():
        quarantine = Quarantine(store)
        row = quarantine.record(origin)
        again = quarantine.resubmitted().get(origin)
    value: bytes = row["value"]
    if raw:
        sys.stdout.buffer.write(value)
        sys.stdout.buffer.flush()
        return
    say(f"record       {origin} (partition {origin.partition}, offset {origin.offset})")
    say(f"topic        {'none' if row['topic'] is None else row['topic']}")
    say(f"refused      {iso(round(row['timestamp'].timestamp() * 1000))}, by the partition's clock")
    say(f"rule         {row['rule']}")
    say(f"cause        {row['cause']}")
    say(f"resubmitted  {again or 'no'}")
    say(f"value        {len(value):,} bytes")
    say(*readable(value).split("\n"))


@quarantine_app.command("export")
def export_command(
    store: StoreArgument,
    rule: RuleOption = None,
    topic: TopicOption = None,
    every: Annotated[bool, typer.Option("--all", help="Also export records that were resubmitted.")] = False,
) -> None:
    """Write the records to the standard output as a command log (JSON Lines), ready to repair and resubmit."""
    from streaming.quarantine.store import Quarantine, coordinates_of, line

    with _expected():
        quarantine = Quarantine(store)
        records = quarantine.records(rule=rule, topic=topic)
        back = {} if every else quarantine.resubmitted()
    written = left_out = 0
    for batch in records.to_batches(max_chunksize=1024):
        for origin, row in zip(coordinates_of(batch), batch.to_pylist(), strict=True):
            if origin in back:
                left_out += 1
                continue
            sys.stdout.buffer.write(printable_json(line(row)).encode() + b"\n")
            written += 1
    sys.stdout.buffer.flush()
    notes = f"; {left_out:,} were resubmitted before (--all includes them)" * bool(left_out)
    say(f"{counted(written, 'record')}{notes}", err=True)


@quarantine_app.command("resubmit")
def resubmit_command(
    store: StoreArgument,
    repaired: Annotated[
        str, typer.Argument(metavar="REPAIRED", help="An edited export (.jsonl), or PARTITION:OFFSET.")
    ],
    value: Annotated[
        Path | None,
        typer.Option(help="With PARTITION:OFFSET: a file with the new value. The default is the old value."),
    ] = None,
    ingress: Annotated[
        str | None, typer.Option(help="For a run: the Kafka topic of the commands, kafka://HOST:PORT/TOPIC.")
    ] = None,
    kafka_config: KafkaConfigFile = None,
    log: Annotated[Path | None, typer.Option(help="For a replay: the log that was replayed.")] = None,
    out: Annotated[Path | None, typer.Option(help="With --log: the repaired log to write.")] = None,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_PARTITIONS, help="With --log: the --partitions of the replay."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also send records that were resubmitted before.")
    ] = False,
) -> None:
    """Resubmit repaired records. All are checked first: if one would be quarantined again, none is sent."""
    if (ingress is None) == (log is None) or (log is None) != (out is None):
        raise typer.BadParameter(
            "give --ingress for the records of a run, or --log and --out for those of a replay"
        )
    with _expected():
        from streaming.kafka.url import KafkaUrl
        from streaming.quarantine import resubmit
        from streaming.quarantine.store import Quarantine

        if ingress is not None:
            KafkaUrl.parse(ingress)
        config = credentials(kafka_config)
        quarantine = Quarantine(store)
        records = _repaired(quarantine, repaired, value)
        if ingress is not None:
            places = resubmit.to_ingress(quarantine, records, ingress, config=config, again=again)
            shown = ", ".join(
                f"{each.origin} as {place}" for each, place in zip(records[:_NAMED], places, strict=False)
            )
            more = f" and {len(records) - _NAMED:,} more" * (len(records) > _NAMED)
            say(f"{counted(len(records), 'record')} to {ingress}: {shown}{more}")
        elif log is not None and out is not None:
            resubmit.to_log(quarantine, records, log, out, partitions=partitions, again=again)
            say(f"{log} with {counted(len(records), 'record')} repaired -> {out}")


def _repaired(quarantine: Any, repaired: str, value: Path | None) -> list[Repaired]:
    from schemas.records import LARGEST, Coordinates
    from sinks.small_files import read_small
    from streaming.quarantine.store import Repaired, read_repaired

    origin = Coordinates.parse(repaired)
    if origin is None:
        if value is not None:
            raise typer.BadParameter(
                "--value is only for PARTITION:OFFSET: a file of records contains their values"
            )
        return read_repaired(repaired)
    row = quarantine.record(origin)
    new = row["value"] if value is None else read_small(value, LARGEST)
    return [Repaired(origin, round(row["timestamp"].timestamp() * 1000), row["topic"], new)]


def _plain(each: RuleSummary) -> dict[str, Any]:
    example = {"partition": each.example.partition, "offset": each.example.offset,
               "topic": each.topic, "cause": each.cause}  # fmt: skip
    numbers = {name: getattr(each, name) for name in ("rule", "records", "resubmitted", "first", "last")}
    return numbers | {"example": example}


def _table(found: list[RuleSummary]) -> None:
    from streaming.quarantine.store import iso

    table = new_table("rule", box=None, pad_edge=False, header_style="bold")
    for name in ("records", "resubmitted"):
        table.add_column(name, justify="right")
    for name in ("first", "last", "example"):
        table.add_column(name, no_wrap=True)
    table.add_column("cause", overflow="fold")
    for each in found:
        texts = (each.rule, f"{each.records:,}", f"{each.resubmitted:,}", iso(each.first), iso(each.last),
                 str(each.example), each.cause)  # fmt: skip
        table.add_row(*texts)
    console().print(table)


def readable(value: bytes) -> str:
    """The first `_SHOWN` of a value: text as it is, MessagePack as JSON, anything else in hex, 16 bytes a line; and
    nothing that a terminal would obey."""
    from streaming.quarantine.store import as_json

    title = ""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        found = as_json(value)
        if found is None:
            return _hex(value)
        title, text = "MessagePack, as JSON:\n", found.decode()
    return title + printable(text[:_SHOWN], keep="\n\t") + _more(len(text))


def _hex(value: bytes) -> str:
    rows = (value[start : start + 16] for start in range(0, min(len(value), _SHOWN), 16))
    lines = (
        f"{16 * number:08x}  {row.hex(' '):<47}  {''.join(chr(c) if 32 <= c < 127 else '.' for c in row)}"
        for number, row in enumerate(rows)
    )
    return "\n".join(lines) + _more(len(value))


def _more(size: int) -> str:
    return f"\n… these were the first {_SHOWN:,} of {size:,}; --raw writes all" * (size > _SHOWN)
