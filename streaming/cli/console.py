"""The terminal: consoles, progress bars, numbers in words."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

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


def printable(text: str, keep: str = "\n") -> str:
    """A text with escapes in place of what a terminal would obey, but for the characters to `keep`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


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


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 record, 2,000 records, 3 micro-batches."""
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"
