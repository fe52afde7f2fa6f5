"""`magnetar compact`: the output table of a live query, with fewer files and without rows that are too old."""

from __future__ import annotations

from typing import Annotated

import typer

from schemas.printable import counted
from streaming.cli.console import say
from streaming.cli.errors import expected_errors
from streaming.cli.options import KeepOutputs, days
from streaming.runtime.signals import in_thread


def compact_command(
    store: Annotated[str, typer.Argument(metavar="STORE", help="The --store of a query.")],
    keep_outputs: KeepOutputs = None,
) -> None:
    """Merge small files of a query's output table into large ones. The query can keep running; it also does this itself."""
    from sinks.delta_log import Conflict, DeltaLog, NotATable
    from sinks.storage import BadUrl, Damaged, Storage, within

    keep = None if keep_outputs is None else days(keep_outputs)
    with expected_errors(NotATable, BadUrl, failed=(Conflict, Damaged)):
        table = DeltaLog(Storage(within(store, "tables")))
        done = in_thread(lambda: table.compact(keep))
        say(f"{counted(done.before, 'file')} before, {done.after:,} after")
