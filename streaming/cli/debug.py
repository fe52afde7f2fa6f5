"""`magnetar debug`: a log, step by step, in a terminal."""

from __future__ import annotations

import cmd
import json
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from schemas.printable import counted, one_line
from schemas.units import moment
from streaming.cli.errors import expected_errors
from streaming.cli.options import SnapshotsFolder

if TYPE_CHECKING:
    from streaming.answers.history.debugger import Debugger
    from streaming.answers.history.timeline import Timeline

_SHOWN = 300
_CHANGES = 60
_DIGITS = 18


def debug_command(
    log: Annotated[Path, typer.Argument(help="A command log: .jsonl, .jsonl.gz or Parquet.")],
    at: Annotated[
        str,
        typer.Option(help="Where to start: a number of commands, PARTITION:OFFSET, or a time (ISO 8601)."),
    ] = "0",
    snapshots: SnapshotsFolder = None,
) -> None:
    """Step through a log command by command, back and forth, and see what each command changes."""
    from sinks.storage import BadUrl
    from streaming.answers.history.debugger import Debugger
    from streaming.answers.history.folders import NotFound
    from streaming.answers.history.timeline import Timeline
    from streaming.log.table import LogError

    with expected_errors(NotFound, LogError, FileNotFoundError, BadUrl):
        timeline = Timeline(log, snapshots)
        shell = Shell(timeline, Debugger(timeline, timeline.moment(at)))
    shell.use_rawinput = sys.stdin.isatty()
    shell.cmdloop(
        f"{counted(len(timeline), 'command')}. `help` lists what you can type; an empty line repeats the last."
    )


class Shell(cmd.Cmd):
    """The terminal's side of a `Debugger`."""

    def __init__(self, timeline: Timeline, debugger: Debugger) -> None:
        super().__init__()
        self._timeline, self._debugger = timeline, debugger
        self._told = set[str]()
        self._show_moment()

    def emptyline(self) -> bool:
        """Repeat the last command."""
        return bool(self.onecmd(self.lastcmd)) if self.lastcmd else False

    def default(self, line: str) -> None:
        """Answer what is not a command."""
        self._say(f"{line.split()[0]!r} is not a command: see `help`")

    def do_step(self, argument: str) -> None:
        """step [N]: carry out the next command, or the next N."""
        self._move(argument, lambda number: self._debugger.forth(number))

    def do_back(self, argument: str) -> None:
        """back [N]: go back by one command, or by N."""
        self._move(argument, lambda number: self._debugger.back(number))

    def do_goto(self, argument: str) -> None:
        """goto AT: go to a number of commands, a record PARTITION:OFFSET, or a time such as 2026-01-01T12:00:00."""
        from streaming.answers.history.folders import NotFound

        try:
            self._debugger.goto(self._timeline.moment(argument))
        except NotFound as error:
            self._say(str(error))
            return
        self._show()

    def do_continue(self, argument: str) -> None:
        """continue: go on to the next breakpoint, or to the end."""
        found = self._debugger.run()
        self._say("the end of the log" if found is None else f"breakpoint: {found.on} {found.value}")
        self._show()

    def do_reverse(self, argument: str) -> None:
        """reverse: go back to the last breakpoint, or to the beginning."""
        found = self._debugger.run_back()
        self._say("the beginning of the log" if found is None else f"breakpoint: {found.on} {found.value}")
        self._show()

    def do_break(self, argument: str) -> None:
        """break topic|message|subscription|cause VALUE: stop after a command that concerns it. Without VALUE, list them.

        A message is LEDGER:ENTRY. A cause is a part of an output row's cause or policy, or its kind, such as EXPIRED.
        """
        from streaming.answers.history.debugger import BreakOn, Breakpoint
        from streaming.broker.position import from_words

        on, _, value = argument.partition(" ")
        if not argument:
            for number, each in enumerate(self._debugger.breakpoints, 1):
                self._say(f"{number}  {each.on} {each.value}")
            return
        if on not in get_args(BreakOn) or not value:
            self._say("expected topic, message, subscription or cause, and a value")
            return
        try:
            if on == "message":
                from_words(value)
        except ValueError as error:
            self._say(str(error))
        else:
            self._debugger.breakpoints.append(Breakpoint(on, value))  # type: ignore[arg-type]

    def do_delete(self, argument: str) -> None:
        """delete N: remove the N-th breakpoint."""
        points = self._debugger.breakpoints
        if 0 < (number := _number(argument)) <= len(points):
            del points[number - 1]
        else:
            self._say(f"there {'is' if len(points) == 1 else 'are'} {counted(len(points), 'breakpoint')}")

    def do_rows(self, argument: str) -> None:
        """rows: the output rows of the last command, whole."""
        from streaming.answers.explain.delivery import to_json
        from streaming.answers.history.debugger import kind_of

        for partition, row in self._debugger.rows:
            lines = f"{kind_of(row)} in partition {partition}: {to_json(row.effect)}".splitlines()
            for line in lines:
                self._say(line)

    def do_stats(self, argument: str) -> None:
        """stats TOPIC: its stats and internal stats, as Pulsar's admin API shows them."""
        from streaming.answers.history.folders import NotFound
        from streaming.answers.history.inspection import topic_stats

        try:
            stats = topic_stats(self._debugger.states(), argument)
            for line in json.dumps(stats, indent=2).splitlines():
                self._say(line)
            self._tell_sampled(stats["topic"])
        except NotFound as error:
            self._say(str(error))

    def do_show(self, argument: str) -> None:
        """show: the last command, its rows, and what it changed."""
        self._show()

    def do_quit(self, argument: str) -> bool:
        """quit: leave."""
        return True

    do_s, do_b, do_c, do_r, do_q, do_EOF = do_step, do_back, do_continue, do_reverse, do_quit, do_quit

    # -- output

    def _move(self, argument: str, move: Callable[[int], None]) -> None:
        if not (number := _number(argument or "1")):
            self._say(f"{argument[:_SHOWN]!r}: expected a number of commands")
            return
        try:
            move(number)
        except IndexError:
            self._say(
                f"the log has {counted(len(self._timeline), 'command')}, and this is after {self._debugger.moment:,}"
            )
            return
        self._show()

    def _show(self) -> None:
        self._show_moment()
        command = self._debugger.command
        if command is None:
            self._say("before the first command")
            return
        value = command.value.decode(errors="replace")
        self._say(f"{_time(command.timestamp)}  {command.topic or 'the whole broker'}  {_cut(value)}")
        from streaming.answers.history.debugger import summary

        for _, row in self._debugger.rows:
            self._say(f"  → {_cut(summary(row))}")
        changes = list(_changes(self._debugger.difference().to_pylist()))
        for each in changes[:_CHANGES]:
            self._say(f"  {each}")
        if len(changes) > _CHANGES:
            self._say(f"  … and {len(changes) - _CHANGES:,} more changes")
        self._tell_sampled(command.topic)

    def _tell_sampled(self, topic: str | None) -> None:
        """Say of a topic that it is sampled, once."""
        from streaming.answers.history.inspection import sampled_topics
        from streaming.answers.sampled import sampled_note

        if topic is not None and topic not in self._told and topic in sampled_topics(self._debugger.states()):
            self._told.add(topic)
            for line in sampled_note([topic]):
                self._say(line)

    def _show_moment(self) -> None:
        self.prompt = f"({self._debugger.moment}/{len(self._timeline)}) "

    def _say(self, text: str) -> None:
        self.stdout.write(f"{one_line(text)}\n")


def _changes(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each row of the views that changed: what is new (+), gone (−), or another value."""
    for (view, of), group in groupby(rows, lambda row: (row["view"], row["of"])):
        changed = list(group)
        if all(each["before"] is None for each in changed):
            yield f"+ {view} {of}: " + ", ".join(f"{each['column']} {each['after']}" for each in changed)
        elif all(each["after"] is None for each in changed):
            yield f"− {view} {of}"
        else:
            values = (
                f"{each['column']} {each['before'] or 'none'} → {each['after'] or 'none'}" for each in changed
            )
            yield f"  {view} {of}: " + ", ".join(values)


def _number(text: str) -> int:
    """A number from 1. 0: it is none, or larger than that of any command."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else 0


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _time(clock: int) -> str:
    return moment(clock).strftime("%Y-%m-%d %H:%M:%S.") + f"{clock % 1000:03d}"
