"""Errors that a user can act on, as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def expected_errors(*kinds: type[Exception], code: int = 1) -> Iterator[None]:
    """Turn errors of these kinds, whose messages are written for people, into their text and an exit code."""
    try:
        yield
    except kinds as error:
        typer.echo(f"magnetar: {error}", err=True)
        raise typer.Exit(code) from error
