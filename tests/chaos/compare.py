"""What is lost, doubled or different between a disturbed run's outcome and that of the undisturbed fold, in words."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.outputs import IDENTITY
from tests.e2e.outcome import Identity, Outcome

_POSITION = ("topic", "ledger_id", "entry_id")


def compare(found: Outcome, expected: Outcome, store: Path) -> tuple[int, list[str]]:
    """The number of rows, entries, answers and states that were looked at, and the differences.

    `store`: of the run. Its files, unlike the answers, must hold every row once even before repeats are dropped.
    """
    rows = 0
    differences: list[str] = []
    for name, own, theirs, key in _outputs(found, expected):
        rows += len(theirs)
        differences += _differences(name, own, theirs, key)
    for name, folder, kept in (
        *(
            (f"table {kind}", store / "tables" / f"kind={kind}", table)
            for kind, table in found.tables.items()
        ),
        ("quarantine", store / "quarantine", found.quarantine),
    ):
        written = sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
        if written != len(kept):
            differences.append(f"{name}: {written - len(kept)} rows too many in its files")
    differences += _disorder(found)
    return rows, differences


def compare_letters(letters: list[Any], quarantine: pa.Table) -> list[str]:
    """`letters`: Kafka's records, without repeats."""
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
    """A connection's answers that come from one ingress partition come in its order."""
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
    # An answer has more than its row: what its message's entry holds.
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
        "not to be there": ours.keys() - theirs.keys(),
        "there twice": [i for i in theirs if i in ours and count[i] != expected_count[i]],
        "other than they should be": [i for i in theirs if i in ours and ours[i] != theirs[i]],
    }
    for what, which in kinds.items():
        if which := sorted(which, key=repr):
            yield f"{name}: {len(which)} of {len(expected)} {what}, the first: {which[0]!r}"


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in IDENTITY)


def _by(names: tuple[str, ...]) -> Callable[[dict[str, Any]], Hashable]:
    return lambda row: tuple(row[name] for name in names)
