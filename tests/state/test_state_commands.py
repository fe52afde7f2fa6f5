"""`magnetar state` without Spark and Kafka."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sinks.lock import exclusive
from streaming.cli.app import app
from streaming.jobs.replay import replay_in_process
from streaming.state.dump import read_dump
from streaming.state.saved import read_states

pytestmark = pytest.mark.feature("J2")

EXAMPLE = Path(__file__).parents[2] / "docs" / "example.jsonl"


def magnetar(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_the_states_of_a_replay_as_text(tmp_path: Path) -> None:
    replay_in_process(EXAMPLE, tmp_path / "out", partitions=2)
    ran = magnetar("state", "export", tmp_path / "out", "--out", tmp_path / "states.jsonl")
    assert (ran.exit_code, ran.output) == (0, f"2 topics to {tmp_path}/states.jsonl\n")
    with (tmp_path / "states.jsonl").open("rb") as file:
        found = list(read_dump(file))
    states = read_states(tmp_path / "out" / "state")
    assert states is not None
    assert found == [each.broker for each in states]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "states.jsonl"]


def ended(folder: Path) -> tuple[Path, Path]:
    """The checkpoint and the store of a query that was stopped."""
    checkpoint, store = folder / "checkpoint", folder / "store"
    for name, text in {"metadata": "{}", "offsets/0": 'v1\n{}\n{"t":{"0":1}}', "commits/0": "v1\n{}"}.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)
    store.mkdir()
    (store / "ingress.json").write_text('{"topic":"t","id":null,"partitions":1}')
    return checkpoint, store


def move(checkpoint: Path, store: Path, to: Path) -> Result:
    return magnetar(
        "state", "move", checkpoint, "--ingress", "kafka://127.0.0.1:1/t", "--store", store,
        "--to-ingress", "kafka://127.0.0.1:1/u", "--to-store", to, "--partitions", "2",
    )  # fmt: skip


@pytest.mark.parametrize("used", ["checkpoint", "store", "new"])
def test_what_a_query_uses_is_not_moved(used: str, tmp_path: Path) -> None:
    checkpoint, store = ended(tmp_path)
    with exclusive([str(tmp_path / used)], "magnetar run"):
        ran = move(checkpoint, store, tmp_path / "new")
    assert ran.exit_code == 2
    assert f"magnetar: {tmp_path / used} is in use by magnetar run (pid " in ran.stderr


def test_a_query_that_ended_in_the_middle_of_a_micro_batch(tmp_path: Path) -> None:
    checkpoint, store = ended(tmp_path)
    (checkpoint / "offsets" / "1").write_text((checkpoint / "offsets" / "0").read_text())
    ran = move(checkpoint, store, tmp_path / "new")
    assert ran.exit_code == 2
    assert (
        "ended in the middle of a micro-batch: start the query again, and stop it when it has caught up"
        in ran.stderr
    )
