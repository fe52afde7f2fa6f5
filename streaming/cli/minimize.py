"""`magnetar minimize`: the smallest log that still shows something."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schemas.printable import counted
from streaming.cli.console import progress, say, say_json
from streaming.cli.errors import expected_errors
from streaming.cli.options import LARGEST
from streaming.cli.outputs import beside
from streaming.runtime.signals import stop_signals

if TYPE_CHECKING:
    from streaming.answers.check.minimize import Keep


def minimize_command(
    log: Annotated[Path, typer.Argument(help="A command log: .jsonl, .jsonl.gz or Parquet.")],
    keep: Annotated[
        str,
        typer.Option(
            help="What the smaller log must still show: stuck(TOPIC, SUBSCRIPTION), lost(TOPIC, "
            "LEDGER:ENTRY), differs(4.0, 4.2), violates(INVARIANT), or a Python file with a "
            "function `keep` over the outputs."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The new log, a .jsonl file. A test is written next to it, test_NAME.py.")
    ],
    tries: Annotated[int | None, typer.Option(min=1, max=LARGEST, help="Try at most this many logs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Shrink a log until no command can be removed without losing what it shows.

    After Ctrl-C it writes the smallest log that it has found.
    """
    from streaming.answers.check.minimize import KeepError, NothingSmaller, minimize, write
    from streaming.answers.explain.delivery import to_json
    from streaming.log.files import read_log
    from streaming.log.table import LogError

    if out.suffix != ".jsonl":
        raise typer.BadParameter(f"{out}: expected a name ending in .jsonl", param_hint="--out")
    with expected_errors(LogError, KeepError, FileNotFoundError), progress() as bar:
        table = read_log(log)
        wanted, source = _keep(keep, table)
        out.parent.mkdir(parents=True, exist_ok=True)
        task = bar.add_task("folding", total=None)

        def show(tried: int, left: int) -> None:
            bar.update(task, description=f"{counted(left, 'command')} left, {counted(tried, 'log')} tried")

        with stop_signals() as stop:
            try:
                found = minimize(
                    table, wanted, most=tries, progress=show, stop=lambda: stop.number is not None
                )
            except NothingSmaller:
                found = None
            if found is not None:
                test = beside(out)
                write(found, source, out, test)
    if found is None:
        say("magnetar: stopped by a signal: no smaller log was found, and nothing is written", err=True)
    elif as_json:
        say_json(to_json(found))
    else:
        say(f"{found.keep}: {found.after:,} of {counted(found.before, 'command')}, in {out} and {test}")
        if not found.complete:
            say("Stopped before the end, by --tries or a signal. It may not be the smallest log.")
        for line in found.lines:
            say(f"  {line}")
    if stop.number is not None and (found is None or not found.complete):
        raise typer.Exit(128 + stop.number)


def _keep(text: str, log: Any) -> tuple[Keep, str | None]:
    """What to keep, and the source of the file that says so."""
    from sinks.small_files import read_small_text
    from streaming.answers.check.minimize import Function, KeepError, keep_of

    path = Path(text)
    if path.suffix != ".py":
        return keep_of(text, log), None
    source = read_small_text(path)
    spec = spec_from_file_location("magnetar_keep", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise KeepError(f"{path}: {type(error).__name__}: {error}") from error
    if not callable(function := getattr(module, "keep", None)):
        raise KeepError(f"{path} has no function `keep`")
    return Function(function), source
