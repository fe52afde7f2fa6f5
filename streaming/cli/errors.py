"""Errors that a user can act on, as one line."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, ENOSPC
from typing import Any

import typer
from typer.core import TyperGroup

from schemas.printable import one_line, printable
from streaming.runtime.logs import last_resort
from streaming.runtime.signals import ended_by

WRONG = 2
"""The exit code if the command line names something that can't be used: nothing was done."""
FAILED = 1
"""The exit code if the command failed while it ran."""
INCOMPLETE = 3
"""The exit code if the command found nothing, and did not look everywhere."""

_OF_FILES = (
    ("sinks.outputs", "InTheWay", WRONG),
    ("sinks.replayed", "StoreAsked", WRONG),
    ("sinks.lock", "InUse", WRONG),
    ("sinks.lock", "NotWritable", WRONG),
    ("sinks.storage", "BadUrl", WRONG),
    ("sinks.storage", "Damaged", FAILED),
    ("sinks.storage", "NotStored", FAILED),
    ("streaming.log.table", "LogError", WRONG),
    ("streaming.state.seed", "NotWhole", WRONG),
)

_FULL = (ENOSPC, EDQUOT)
_TO_DO = dict.fromkeys(_FULL, "free some space and try again") | {
    EFBIG: "allow larger files (ulimit -f) and try again"
}
"""What to do about an error of the operating system that a file has only when it is written."""
_NOWHERE = logging.NullHandler()


@contextmanager
def expected_errors(*wrong: type[Exception], failed: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn errors whose messages are written for people into one line and an exit code.

    `wrong` and the operating system's errors about a path give `WRONG`, `failed` gives `FAILED`.
    """
    try:
        yield
    except wrong as error:
        _end(_text(error), WRONG, error)
    except failed as error:
        _end(str(error), FAILED, error)
    except Exception as error:
        if (code := _code(error)) is not None:
            _end(str(error), code, error)
        if not isinstance(error, OSError) or isinstance(error, BrokenPipeError):
            raise
        from sinks.s3 import failed as failed_on_s3  # it takes half a second, too long for `magnetar --help`

        if (of_s3 := failed_on_s3(str(error))) is not None:
            _end(f"{of_s3}: check the address and the credentials, or try again later", FAILED, error)
        # With a file, the latter is about one that is read, see `sinks.small_files`.
        if error.errno in _FULL or (error.errno == EFBIG and error.filename is None):
            where = "" if error.filename is None else f"{error.filename}: "
            _end(f"{where}{os.strerror(error.errno)}: {_TO_DO[error.errno]}", FAILED, error)
        if error.errno is None or error.strerror is None or isinstance(error, ConnectionError):
            raise
        if error.filename is None:  # as Arrow's, whose text has the path, and repeats itself
            what, found, _ = error.strerror.rpartition(". Detail: ")
            _end(f"{what}: {os.strerror(error.errno)}" if found else os.strerror(error.errno), FAILED, error)
        no_folder = isinstance(error, FileExistsError | NotADirectoryError)
        why = "it is not a folder" if no_folder else error.strerror
        _end(f"{error.filename}: {why}", WRONG, error)


def _text(error: Exception) -> str:
    """What an error says, without the number of one of the operating system's."""
    if type(error) is FileNotFoundError and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _code(error: Exception) -> int | None:
    """The exit code for errors of files and folders, which every command may meet. None: it is not one of them."""
    for module, name, code in _OF_FILES:
        # An error that was raised has its module loaded. Some of these take too long for `magnetar --help`.
        if (loaded := sys.modules.get(module)) is not None and isinstance(error, getattr(loaded, name)):
            return code
    return None


def _end(text: str, code: int, error: Exception) -> None:
    if (number := ended_by()) is not None:  # this is what became of it, unless it is about files
        if _code(error) is not None:
            typer.echo(f"magnetar: {_shown(text, error)}", err=True)
        raise SystemExit(128 + number) from error
    if code == FAILED:
        # This is the last word. If Spark's process is gone, py4j's threads are about to log a traceback each.
        _silence_py4j()
    typer.echo(f"magnetar: {_shown(text, error)}", err=True)
    raise typer.Exit(code) from error


def _shown(text: str, error: Exception) -> str:
    """Mistakes in a file of policies have a line each. No name in an error begins a line."""
    return printable(text, keep="\n" if type(error).__name__ == "PolicyError" else "")


def _silence_py4j() -> None:
    """Turn off what py4j logs, and wait until what its threads are writing is written."""
    logger = logging.getLogger("py4j")
    logger.setLevel(logging.CRITICAL + 1)
    # For threads that have looked at the level already.
    logger.addHandler(_NOWHERE)
    logger.propagate = False
    logging.root.addFilter(_is_not_of_py4j)
    for handler in (logging.lastResort, *logging.root.handlers):
        if handler is not None:
            handler.acquire()
            handler.release()


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """py4j logs lost connections with the root logger."""
    return "/py4j/" not in record.pathname


class Group(TyperGroup):
    """The commands. A wrong option is one line, too."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command and exits."""
        last_resort()
        try:
            code = super().main(*args, **kwargs | {"standalone_mode": False})
            sys.stdout.flush()
        except typer.Abort:
            code = FAILED
        except OSError as error:  # --help and --version belong to no command
            if error.errno not in _FULL:
                raise
            typer.echo(f"magnetar: the output can't be written: {error.strerror}", err=True)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes what is left when it ends
            code = FAILED
        except Exception as error:
            # click's errors; what class they have depends on typer's version.
            if not hasattr(error, "format_message"):
                raise
            text = error.format_message().replace(
                ": Value error, ", ": "
            )  # of pydantic, with which typer converts
            if "\n" in text:  # a group without a command shows its help
                error.show()  # type: ignore[attr-defined]
            else:
                where = getattr(getattr(error, "ctx", None), "command_path", "magnetar")
                typer.echo(f"magnetar: {one_line(text.rstrip('.'))} (see {where} --help)", err=True)
            code = WRONG
        raise SystemExit(code or 0)
