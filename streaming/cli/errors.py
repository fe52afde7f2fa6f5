"""Errors that a user can act on, as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def expected_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds, whose messages are written for people, into one line and exit code 1."""
    try:
        yield
    except kinds as error:
        typer.echo(f"magnetar: {error}", err=True)
        raise typer.Exit(1) from error
