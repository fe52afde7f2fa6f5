"""The terminal: consoles, progress bars, numbers in words."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_FILE_WIDTH = 200


def console(*, stderr: bool = False) -> Console:
    """A console on the standard output or error. Into a file it writes 200 columns, so that no table is cut."""
    from rich.console import Console

    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, width=None if is_terminal else _FILE_WIDTH)


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
