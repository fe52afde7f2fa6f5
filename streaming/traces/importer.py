"""Converts recorded traces to a command log that can be replayed by itself."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from schemas.lines import JSON_LINES, Unreadable, readable
from sinks.outputs import new_lines
from streaming.traces.trace import TraceError, read_trace, trace_files
from streaming.traces.ungated import NOT_RECORDED, session_of


class Imported(NamedTuple):
    """`commands`: their number by name. `skipped`: the number of frames by name that a gateway answers, which a log omits.
    `lacking`: how much passed a recorder that could not record it, by what it was. `stand_ins`: see `streaming.broker.config.stand_in`."""

    traces: int
    commands: Counter[str]
    skipped: Counter[str]
    lacking: Counter[str]
    stand_ins: set[str | None]


def import_traces(
    paths: Iterable[Path],
    out: Path,
    progress: Callable[[str], None] | None = None,
    *,
    replace: bool = False,
) -> Imported:
    """Write the traces in `paths` (files or folders) to `out` (JSON Lines), the earliest first.

    Ledger ids in acks, seeks and admin calls become those that Magnetar assigns. Connections are prefixed with the name of
    their trace to keep them apart. Raises `TraceError`, also for an `out` that no command would read.
    """
    if not out.name.endswith(JSON_LINES):
        raise TraceError(f"{out}: expected a name ending in {' or '.join(JSON_LINES)}")
    traces = [read_trace(path) for path in trace_files(paths)]
    traces.sort(key=lambda trace: float(trace.records[0]["t"]) if trace.records else 0.0)
    commands: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    lacking: Counter[str] = Counter()
    stand_ins = set[str | None]()
    out.parent.mkdir(parents=True, exist_ok=True)
    with new_lines(out, replace=replace) as lines:
        for trace in traces:
            if progress is not None:
                progress(trace.name)
            session = session_of(trace, connection_prefix=f"{trace.name}/")
            for _, command in session.run():
                if command is None:
                    continue
                try:
                    lines.write(to_line(command.timestamp, command.topic, command.value))
                except Unreadable:  # a trace may have less of a payload
                    lacking[NOT_RECORDED["large"]] += 1
                else:
                    commands[command.value["command"]] += 1
            skipped.update(session.skipped)
            lacking.update({what: session.explained[what] for what in NOT_RECORDED.values()})
            stand_ins.add(session.stand_in)
    return Imported(len(traces), commands, +skipped, +lacking, stand_ins)


def to_line(timestamp: int, topic: str | None, command: dict[str, Any]) -> bytes:
    """A record of a logical log as a line, without partition and offset. Raises `Unreadable`."""
    coordinates: dict[str, Any] = {"timestamp": timestamp}
    if topic is not None:
        coordinates["topic"] = topic
    try:
        return readable(msgspec.json.encode({**coordinates, **command}) + b"\n")
    except Unreadable as error:
        raise Unreadable(f"{command['command']} {topic or ''}: {error}") from None
