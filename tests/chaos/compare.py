"""Describes what a disturbed run lost, doubled or changed in comparison with the undisturbed fold."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.outputs import IDENTITY
from sinks.storage import Storage
from sinks.tables import table_files
from tests.e2e.outcome import Identity, Outcome

_POSITION = ("topic", "ledger_id", "entry_id")


def compare(found: Outcome, expected: Outcome, store: Path) -> tuple[int, list[str]]:
    """The number of rows, entries, responses and states compared, and the differences.

    `store`: the store of the run. Unlike responses, its files must have every row once even before repeats are dropped.
    """
    rows = 0
    differences: list[str] = []
    for name, own, theirs, key in _outputs(found, expected):
        rows += len(theirs)
        differences += _differences(name, own, theirs, key)
    tables = Storage(str(store / "tables"))
    for name, files, kept in (
        *(
            (f"table {kind}", map(tables.path, table_files(tables, kind)), table)
            for kind, table in found.tables.items()
        ),
        ("quarantine", (store / "quarantine").glob("*.parquet"), found.quarantine),
    ):
        written = sum(pq.read_metadata(file).num_rows for file in files)
        if written != len(kept):
            differences.append(f"{name}: {written - len(kept)} rows too many in its files")
    differences += _disorder(found)
    return rows, differences


def compare_letters(letters: list[Any], quarantine: pa.Table) -> list[str]:
    """Compare dead letters (Kafka's records, without repeats) with the quarantine."""
    headers = ("partition", "offset", "ordinal", "rule", "cause")
    found = []
    for letter in letters:
        said = {name.removeprefix("magnetar."): text.decode() for name, text in letter.headers}
        found.append({name: said[name] for name in headers} | {"value": letter.value})
    expected = [
        {name: str(row[name]) for name in headers} | {"value": row["value"]} for row in quarantine.to_pylist()
    ]
    return [*_differences("dead letters", found, expected, _identity)]


def _disorder(found: Outcome) -> Iterator[str]:
    """Responses to a connection from one ingress partition must come in order."""
    last: dict[tuple[str, int], Identity] = {}
    late = []
    for identity, answer in found.responses.items():
        source = answer["connection"], answer["partition"]
        if identity < last.get(source, identity):
            late.append((source[0], identity, last[source]))
        last[source] = identity
    if late:
        connection, identity, before = late[0]
        yield f"answers: {len(late)} out of order, the first to {connection}: {identity} comes after {before}"


def _outputs(
    found: Outcome, expected: Outcome
) -> Iterator[tuple[str, list[dict[str, Any]], list[dict[str, Any]], Callable[[dict[str, Any]], Hashable]]]:
    for kind, table in expected.tables.items():
        yield f"table {kind}", found.tables[kind].to_pylist(), table.to_pylist(), _identity
    yield "entries", found.entries.to_pylist(), expected.entries.to_pylist(), _by(_POSITION)
    yield "quarantine", found.quarantine.to_pylist(), expected.quarantine.to_pylist(), _identity
    # A response has more than its row: also the entry of its message.
    answers = {i: {k: v for k, v in answer.items() if k in expected.responses.get(i, answer)}
               for i, answer in found.responses.items()}  # fmt: skip
    yield "answers", [*answers.values()], [*expected.responses.values()], _identity
    states, expected_states = ([state._asdict() for state in each.states] for each in (found, expected))
    yield "states", states, expected_states, _by(("partition",))


def _differences(
    name: str,
    found: list[dict[str, Any]],
    expected: list[dict[str, Any]],
    key: Callable[[dict[str, Any]], Hashable],
) -> Iterator[str]:
    ours, theirs = ({key(row): row for row in rows} for rows in (found, expected))
    count = Counter(map(key, found))
    expected_count = Counter(map(key, expected))
    kinds: dict[str, Iterable[Hashable]] = {
        "lost": theirs.keys() - ours.keys(),
        "unexpected": ours.keys() - theirs.keys(),
        "duplicated": [i for i in theirs if i in ours and count[i] != expected_count[i]],
        "different": [i for i in theirs if i in ours and ours[i] != theirs[i]],
    }
    for what, which in kinds.items():
        if which := sorted(which, key=repr):
            yield f"{name}: {len(which)} of {len(expected)} {what}, the first: {which[0]!r}"


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in IDENTITY)


def _by(names: tuple[str, ...]) -> Callable[[dict[str, Any]], Hashable]:
    return lambda row: tuple(row[name] for name in names)
