"""Each bit of what Spark writes as text into a checkpoint, which has no checksums: it is refused, or makes no difference."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sinks.base import ForeignFiles
from sinks.begun import Begun, Planned
from sinks.storage import RESTORE, Damaged
from streaming.cli.app import app
from streaming.fold.records import StateRow
from streaming.jobs.live_sinks import LiveSinks
from streaming.spark.checkpoint import BadCheckpoint, Committed, check, check_state, committed
from streaming.state.dump import read_header
from streaming.state.move import Moved

pytestmark = pytest.mark.feature("J2")

TIME = 1_700_000_000_000
STATE = '{"operatorInfo":{"operatorId":0},"stateStoreInfo":[{"storeName":"default","numPartitions":2}]}'


class Query:
    """The checkpoint and the store of a query that has committed two micro-batches. `begun`: it has begun one more."""

    def __init__(self, folder: Path, *, begun: bool = False) -> None:
        self.checkpoint, self.store = folder / "checkpoint", folder / "store"
        ends = [{"0": 120, "1": 130}, {"0": 210, "1": 140}, {"0": 215, "1": 140}][: 3 if begun else 2]
        texts = {
            "metadata": '{"id":"360d94ed-365c-4991-92c7-879467f427dc"}',
            "state/0/_metadata/metadata": f"v1\n{STATE}",
            "state/0/0/1.delta": "x",
            "state/0/1/1.delta": "x",
            "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
            "commits/1": 'v1\n{"nextBatchWatermarkMs":0}',
        }
        self.store.mkdir(parents=True)
        (self.store / "ingress.json").write_text('{"topic":"t","id":null,"partitions":2}')
        (self.store / "segments").mkdir()
        before = None
        for batch, end in enumerate(ends):
            offsets = json.dumps({"t": end}, separators=(",", ":"))
            texts[f"offsets/{batch}"] = (
                f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{TIME + batch},"conf":{{"n":"2"}}}}\n{offsets}'
            )
            planned = Planned(batch, TIME + batch, f"[{offsets}]")
            Begun(str(self.store)).begin(planned, before)
            before = planned
        for name, text in texts.items():
            (self.checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
            (self.checkpoint / name).write_text(text)

    def read(self) -> Committed | None:
        check(self.checkpoint, "t")
        check_state(self.checkpoint)
        return committed(self.checkpoint, str(self.store))

    def magnetar(self, *arguments: object) -> Result:
        return CliRunner().invoke(app, list(map(str, arguments)))

    def move(self) -> Result:
        return self.magnetar(
            "state", "move", self.checkpoint, "--ingress", "kafka://127.0.0.1:1/t", "--store", self.store,
            "--to-ingress", "kafka://127.0.0.1:1/u", "--to-store", self.store.parent / "to", "--partitions", "3",
        )  # fmt: skip

    def replace(self, before: str, after: str, path: str = "offsets/1") -> None:
        text = (self.checkpoint / path).read_text()
        assert before in text
        (self.checkpoint / path).write_text(text.replace(before, after))


@pytest.mark.parametrize("begun", [False, True], ids=["stopped", "in the middle"])
def test_each_bit(tmp_path: Path, begun: bool) -> None:
    query = Query(tmp_path, begun=begun)
    whole, refused = query.read(), 0
    assert whole is not None
    assert (whole.batch, whole.offsets, whole.is_last) == (1, {0: 210, 1: 140}, not begun)
    for path in sorted(each for each in query.checkpoint.rglob("*") if each.is_file()):
        good = path.read_bytes()
        for bit in range(8 * len(good)):
            bad = bytearray(good)
            bad[bit // 8] ^= 1 << bit % 8
            path.write_bytes(bad)
            try:
                found = query.read()
            except (BadCheckpoint, ForeignFiles):
                refused += 1
            else:
                assert found == whole, (path, bit)
        path.write_bytes(good)
    assert refused > 1000


@pytest.mark.parametrize(("before", "after"), [("210", "200"), ("210", "212"), (str(TIME + 1), str(TIME))])
def test_commands_refuse_other_offsets_than_the_store_notes(
    tmp_path: Path, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.cli.state._states", lambda *_: iter([StateRow(0, 0, 0, 0, 0, 209, b"")]))
    query, out = Query(tmp_path), tmp_path / "dump"
    query.replace(before, after)
    said = (
        f"{query.store} holds output of another micro-batch 1 than the one that the query has: the checkpoint is an older copy, which went on "
        "without this store, or its file offsets/1 is damaged. Nothing was written. Restore"
    )
    for ran in (
        query.move(),
        query.magnetar("state", "export", query.checkpoint, "--store", query.store, "--out", out),
    ):
        assert (ran.exit_code, said in ran.stderr) == (2, True), ran.stderr
    with pytest.raises(ForeignFiles, match="another micro-batch 1 than"):
        LiveSinks(str(query.store), quality=False).begin(query.checkpoint)
    assert not out.exists()
    assert not (tmp_path / "to" / "seed").exists()


def test_an_older_copy_is_not_moved(tmp_path: Path) -> None:
    query = Query(tmp_path)
    for name in ("offsets/1", "commits/1"):
        (query.checkpoint / name).unlink()
    ran = query.move()
    assert ran.exit_code == 2
    assert "holds output of micro-batch 1, but the query is at micro-batch 0" in ran.stderr


def test_a_damaged_note_of_the_store(tmp_path: Path) -> None:
    query = Query(tmp_path)
    note = query.store / "begun.json"
    note.write_bytes(note.read_bytes().replace(b"210", b"211"))
    with pytest.raises(Damaged, match=r"begun\.json"):
        query.read()


def test_a_query_that_goes_on_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its store notes a later micro-batch than the one that was the last when the checkpoint was read."""
    query, whole = Query(tmp_path), Begun.check

    def check(begun: Begun, last: int, committed: int = -1) -> None:
        monkeypatch.setattr(Begun, "check", whole)
        text = (query.checkpoint / "offsets/1").read_text()
        for name in ("offsets/2", "offsets/3", "commits/2"):
            (query.checkpoint / name).write_text(text)
        planned = [
            Planned(batch, TIME + at, f'[{{"t":{ends}}}]')
            for batch, at, ends in (
                (1, 1, '{"0":210,"1":140}'), (2, 1, '{"0":210,"1":140}'), (3, 1, '{"0":210,"1":140}')
            )
        ]  # fmt: skip
        Begun(str(query.store)).begin(planned[1], planned[0])
        Begun(str(query.store)).begin(planned[2], planned[1])
        whole(begun, last, committed)

    monkeypatch.setattr(Begun, "check", check)
    found = query.read()
    assert found is not None
    assert (found.batch, found.is_last) == (2, False)


@pytest.mark.parametrize(("end", "code"), [(200, 2), (210, 0), (212, 0)])
def test_an_export_without_the_store(
    tmp_path: Path, end: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a state has folded is folded. Whether there is more than that, only the store tells."""
    from streaming.broker.broker import Broker
    from streaming.broker.entries import NoEntries

    states = [
        StateRow(part, 0, 0, 0, 0, at, Broker(part, NoEntries()).encode())
        for part, at in ((0, 209), (1, 139))
    ]
    monkeypatch.setattr("streaming.cli.state._states", lambda *_: iter(states))
    query, out = Query(tmp_path), tmp_path / "dump"
    query.replace("210", str(end))
    ran = query.magnetar("state", "export", query.checkpoint, "--out", out)
    assert ran.exit_code == code
    assert out.exists() == (code == 0)
    if end == 200:
        said = f"offsets/1 is damaged, or a state is: partition 0 has folded the record at offset 209, which is not in that micro-batch. {RESTORE}"
        assert said in ran.stderr
    else:
        assert ("the state of ingress partition 0 ends before offset 210" in ran.stderr) == (end == 212)
        with out.open("rb") as file:
            assert read_header(file).offsets == {"0": end, "1": 140}


def test_a_move_from_a_store_of_an_earlier_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no note. Then the states say what is folded."""

    def moved(states: object, *_: object, **__: object) -> Moved:
        list(states.encoded)  # type: ignore[attr-defined]
        return Moved(0, 0, [])

    monkeypatch.setattr("streaming.cli.state._states", lambda *_: iter([StateRow(0, 0, 0, 0, 0, 209, b"")]))
    monkeypatch.setattr("streaming.state.move.move_states", moved)
    query = Query(tmp_path)
    (query.store / "begun.json").unlink()
    (query.store / "segments" / "00000").mkdir()
    (query.store / "segments" / "00000" / "x").write_text("")
    assert query.move().exit_code == 0
    query.replace("210", "209")
    ran = query.move()
    assert ran.exit_code == 2
    assert "partition 0 has folded the record at offset 209" in ran.stderr
