"""The terminal: consoles, progress bars, numbers in words."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

from schemas.printable import one_line, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

_OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_FILE_WIDTH = 200


def console(*, stderr: bool = False) -> Console:
    """A console on the standard output or error. Into a file it writes 200 columns, so that no table is cut."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Printable(Console):
        """Names come from clients: whatever they hold, the terminal obeys none of it."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                shown = segment.text if segment.control else printable(segment.text)
                yield segment if shown == segment.text else Segment(shown, segment.style)

    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Printable(stderr=stderr, width=None if is_terminal else _FILE_WIDTH)


def say(*lines: str, err: bool = False) -> None:
    """Prints lines. Names in them come from clients. Every command prints through this, `say_json`, `new_table` or `console`.

    Line feeds at the beginning of a line are empty lines before it.
    """
    for each in lines or ("",):
        text = each.lstrip("\n")
        typer.echo("\n" * (len(each) - len(text)) + one_line(text), err=err)


def say_json(text: str | bytes) -> None:
    """Prints JSON, see `printable_json`."""
    typer.echo(printable_json(text))


def printable_json(text: str | bytes) -> str:
    """JSON in which escapes stand for what a terminal would obey."""
    text = text if isinstance(text, str) else text.decode()
    return text if text.isprintable() else _OBEYED.sub(lambda found: json.dumps(found[0])[1:-1], text)


def new_table(*headers: str, **options: Any) -> Table:
    """A table of rich whose cells show names as they are, each on a line of its own, and not as rich's markup."""
    from rich.table import Table
    from rich.text import Text

    def shown(cell: Any) -> Any:
        return Text(one_line(cell)) if isinstance(cell, str) else cell

    class Shown(Table):
        def add_column(self, header: Any = "", *args: Any, **named: Any) -> None:
            super().add_column(shown(header), *args, **named)

        def add_row(self, *cells: Any, **named: Any) -> None:
            super().add_row(*map(shown, cells), **named)

    if "title" in options:
        options["title"] = shown(options["title"])
    table = Shown(**options)
    for header in headers:
        table.add_column(header)
    return table


def progress() -> Progress:
    """A progress bar on the standard error, if that is a terminal. It disappears when it is done."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    errors = console(stderr=True)
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)
