"""`magnetar state` without Spark and Kafka."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sinks.lock import exclusive
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.cli.app import app
from streaming.jobs.replay import replay_in_process
from streaming.state.dump import read_dump
from streaming.state.move import Moved, States
from streaming.state.saved import read_states
from streaming.state.seed import Origin, Seed, SeedWriter

pytestmark = pytest.mark.feature("J2")

EXAMPLE = Path(__file__).parents[2] / "docs" / "example.jsonl"


def magnetar(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_the_states_of_a_replay_as_text(tmp_path: Path) -> None:
    replay_in_process(EXAMPLE, tmp_path / "out", partitions=2)
    ran = magnetar("state", "export", tmp_path / "out", "--out", tmp_path / "states.jsonl")
    assert (ran.exit_code, ran.output) == (0, f"4 topics to {tmp_path}/states.jsonl\n")
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


def test_a_query_does_not_begin_with_a_part_of_the_states(tmp_path: Path) -> None:
    origin = Origin(states="ckpt after micro-batch 3", ingress="t", topic_id=None, partitions=2, ends=[])
    SeedWriter(str(tmp_path / "store")).begin(origin)
    ran = magnetar(
        "run", "--ingress", "kafka://127.0.0.1:1/t", "--store", tmp_path / "store", "--checkpoint", tmp_path / "new",
    )  # fmt: skip
    assert ran.exit_code == 2
    assert (
        "has only part of the states of ckpt after micro-batch 3: run the same magnetar state command"
        in ran.stderr
    )


def of_two(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, list[bytes]]:
    """The checkpoint of a query that began from the states of two partitions, and has visited the last one only; its store; the states."""
    replay_in_process(EXAMPLE, folder / "out", partitions=2)
    states = read_states(folder / "out" / "state")
    assert states is not None
    checkpoint, store = ended(folder)
    (checkpoint / "offsets/0").write_text('v1\n{}\n{"t":{"0":1000,"1":1000}}')
    monkeypatch.setattr("streaming.cli.state._states", lambda checkpoint, batch: iter(states[1:]))
    writer = SeedWriter(str(store))
    writer.write(0, states[0].broker)
    writer.write(1, Broker(1, NoEntries()).encode())
    writer.finish(Seed(partitions=2))
    return checkpoint, store, [each.broker for each in states]


def test_an_export_has_the_states_of_partitions_without_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, store, states = of_two(tmp_path, monkeypatch)
    out, other = tmp_path / "dump", tmp_path / "other"
    export = ("state", "export", checkpoint, "--out", out)
    ran = magnetar(*export)
    assert ran.exit_code == 0
    assert "has no state of 1 ingress partition, from 0 on" in ran.stderr
    assert "give --store" in ran.stderr
    out.unlink()
    other.mkdir()
    (other / "ingress.json").write_text('{"topic":"u","id":null,"partitions":1}')
    ran = magnetar(*export, "--store", other)
    assert (ran.exit_code, out.exists()) == (2, False)
    assert f"{other} is not the --store of the query of {checkpoint}" in ran.stderr
    assert magnetar(*export, "--store", store).exit_code == 0
    with out.open("rb") as file:
        assert list(read_dump(file)) == states


def test_a_move_takes_the_states_of_partitions_without_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, store, states = of_two(tmp_path, monkeypatch)
    taken: list[bytes] = []

    def moved(given: States, *_: object, **__: object) -> Moved:
        taken.extend(given.encoded)
        return Moved(2, 0, [])

    monkeypatch.setattr("streaming.state.move.move_states", moved)
    assert move(checkpoint, store, tmp_path / "new").exit_code == 0
    assert taken == states


def test_a_query_that_ended_in_the_middle_of_a_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, store = ended(tmp_path)
    (store / "segments").mkdir()
    (checkpoint / "offsets" / "1").write_text((checkpoint / "offsets" / "0").read_text())
    monkeypatch.setattr("streaming.kafka.ingress.partition_counts", lambda *_: (1, 1))
    ran = move(checkpoint, store, tmp_path / "new")
    assert ran.exit_code == 2
    assert (
        "ended in the middle of a micro-batch: start the query again, and stop it when it has caught up. If it can't, see docs/operate/"
        "partitions.md#a-query-that-cant-catch-up"
    ) in ran.stderr
