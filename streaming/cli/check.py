"""`magnetar check`: all schedules of a small scenario."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schemas.printable import counted
from streaming.cli.console import progress, say, say_json
from streaming.cli.errors import FAILED, INCOMPLETE, expected_errors
from streaming.cli.options import LARGEST, MOST_CORES
from streaming.runtime.signals import stop_signals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming.answers.check.schedules import Checked, Counterexample

_HIDDEN = (
    "command",
    "connection",
    "request_id",
    "consumer_id",
    "producer_id",
    "metadata",
    "payload",
    "consumer_name",
)


def check_command(
    scenario: Annotated[Path, typer.Argument(help="A YAML file: clients, their commands, time and faults.")],
    to: Annotated[
        Path | None, typer.Option(help="A folder for the counterexamples, as logs for `magnetar replay`.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=MOST_CORES, help="The number of processes.")] = 2,
    max_states: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LARGEST,
            help="Stop after this many states. A million states can take 1 to 2 GB of memory. The default is "
            "two million.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Explore every schedule of a scenario, looking for one that violates an invariant.

    Ends with 1 if there is one, and with 3 if there is none in what it explored before --max-states. After Ctrl-C it says how far it got.
    """
    from streaming.answers.check.scenario import ScenarioError, read_scenario
    from streaming.answers.check.schedules import MOST_STATES, check
    from streaming.answers.explain.delivery import to_json
    from streaming.broker.entries import NoPayloads

    with expected_errors(ScenarioError):
        found = read_scenario(scenario)
        if to is not None:
            to.mkdir(parents=True, exist_ok=True)
    with expected_errors(ScenarioError, NoPayloads), stop_signals() as stop, progress() as bar:
        task = bar.add_task("exploring", total=None)

        def show(states: int, depth: int) -> None:
            bar.update(task, description=f"{states:,} states, {depth} steps deep")

        checked = check(
            found, processes=processes, most_states=max_states or MOST_STATES, stop=stop.is_set, progress=show
        )
    paths = [] if to is None else [*_written(to, checked)]
    if as_json:
        say_json(to_json(checked))
    else:
        say(*_lines(found.description, checked))
    if paths and not as_json:
        say()
        say(f"written: {', '.join(map(str, paths))}")
    if checked.counterexamples:
        raise typer.Exit(FAILED)
    if stop.number is not None and not checked.complete:
        raise typer.Exit(128 + stop.number)
    if not checked.complete:
        raise typer.Exit(INCOMPLETE)


def _written(to: Path, checked: Checked) -> Iterator[Path]:
    from sinks.outputs import filling, new_file

    with filling(to):
        for each in checked.counterexamples:
            path = to / f"{each.violation.invariant.replace(' ', '-')}.jsonl"
            with new_file(path) as file:
                file.writelines(each.lines())
            yield path


def _lines(description: str, checked: Checked) -> Iterator[str]:
    if description:
        yield description
    parts = f" in {checked.components} independent scenarios" if checked.components > 1 else ""
    yield (
        f"{counted(checked.states, 'state')}{parts}, {counted(checked.transitions, 'transition')}, at most "
        f"{counted(checked.deepest, 'step')} deep. {'Every schedule was explored.' if checked.complete else _how_far(checked)}"
    )
    for each in checked.never:
        yield f"Never possible: {each}"
    if not checked.counterexamples:
        yield f"No invariant is violated{'' if checked.complete else ' in what was explored'}."
    for example in checked.counterexamples:
        yield ""
        yield from _counterexample(example)


def _how_far(checked: Checked) -> str:
    where = " of the independent scenario at which it stopped" if checked.components > 1 else ""
    return (
        "Stopped before the end, by --max-states or a signal. Every schedule of up to "
        f"{counted(checked.whole or 0, 'step')}{where} was explored; longer ones may still violate an "
        "invariant."
    )


def _counterexample(example: Counterexample) -> Iterator[str]:
    violation = example.violation
    yield f"VIOLATED: {violation.invariant}. Topic {violation.topic}, subscription {violation.subscription}: {violation.text}"
    actors = max(len(each.actor) for each in example.records)
    start = example.records[0].timestamp
    for number, each in enumerate(example.records, 1):
        after = each.timestamp - start
        time = f" at +{after / 1000:g} s" if after else ""
        yield f"  {number:>3}  {each.actor.ljust(actors)}  {_command(each.command)}{time}"
        for effect in each.effects:
            yield f"       {' ' * actors}    → {effect}"


def _command(command: dict[str, Any]) -> str:
    key = command.get("metadata", {}).get("partition_key")
    shown = {name: value for name, value in command.items() if name not in _HIDDEN} | (
        {} if key is None else {"key": key}
    )
    return " ".join(
        [command.get("command", "PUBLISH"), *(f"{name}={_value(value)}" for name, value in shown.items())]
    )


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_value, value))
    if isinstance(value, dict) and value.keys() >= {"ledgerId", "entryId"}:
        return f"{value['ledgerId']}:{value['entryId']}"
    return str(value)
