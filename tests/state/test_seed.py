"""The states in the store of a new query."""

import pickle
import shutil
from pathlib import Path
from zlib import crc32

import msgspec
import pytest

from sinks.base import INGRESS
from sinks.begun import Begun, Planned
from sinks.ledger_store import LedgerStore
from sinks.storage import Damaged, Storage
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.fold.records import StateRow
from streaming.state.seed import NotWhole, Origin, Seed, SeedReader, SeedWriter, read_seed, with_seed
from tests.broker.kit import START, feed

pytestmark = pytest.mark.feature("J1")

ORIGIN = Origin(states="c", ingress="t", topic_id="i", partitions=3, ends=[4])


def state() -> bytes:
    broker = Broker(1, NoEntries())
    feed(broker, 6, START, "persistent://a/b/t", b'{"producer":"p","sequence_id":1}')
    return broker.encode()


def test_a_store_without_states(tmp_path: Path) -> None:
    assert read_seed(str(tmp_path / "none")) is None


def test_states_come_back(tmp_path: Path) -> None:
    writer = SeedWriter(str(tmp_path))
    writer.begin(ORIGIN)
    later = msgspec.structs.replace(ORIGIN, latest=ORIGIN.latest + 1)
    assert writer.begin(later) == ORIGIN  # the same move, started again
    writer.write(1, state())
    writer.write_piece(4, 2, b"second")
    writer.write_piece(0, 2, b"first")
    assert writer.take_pieces(2) == [b"first", b"second"]
    writer.finish(Seed(partitions=3, offsets={"1": 7}))
    assert not (tmp_path / "seed" / "pieces" / "00002" / "00000").exists()
    seed = read_seed(str(tmp_path))
    assert seed is not None
    reader = pickle.loads(pickle.dumps(seed))  # as Spark ships it
    assert reader.seed == Seed(partitions=3, offsets={"1": 7}, states={"1": crc32(state())})
    (row,) = reader.states()
    assert row == reader.state(1)
    assert (row.partition, row.clock, row.topics, row.backlog, row.offset, row.broker) == (
        1,
        START,
        1,
        0,
        6,
        state(),
    )
    assert reader.state(0) is None


def test_partitions_that_were_not_visited_have_the_states_of_the_beginning(tmp_path: Path) -> None:
    def row(partition: int, encoded: bytes) -> StateRow:
        return StateRow(partition, 0, 0, 0, 0, None, encoded)

    writer = SeedWriter(str(tmp_path))
    for partition in (0, 2, 3, 5):
        writer.write(partition, state())
    writer.finish(Seed(partitions=7))
    seed = read_seed(str(tmp_path))
    assert seed is not None
    (tmp_path / "seed" / "00003.state").write_bytes(b"not read")
    found = [row(1, b"one"), row(3, b"three")]
    assert [*with_seed(found, None)] == found
    whole = [(each.partition, each.broker) for each in with_seed(found, seed)]
    assert whole == [(0, state()), (1, b"one"), (2, state()), (3, b"three"), (5, state())]
    assert [*with_seed([row(3, b"three")], seed, 3)] == [row(3, b"three")]
    assert [each.partition for each in with_seed([], seed, 5)] == [5]
    assert [*with_seed([], seed, 6)] == []


@pytest.mark.parametrize("name", ["00001.state", "whole.json", "begun.json"])
def test_damage_is_noticed(name: str, tmp_path: Path) -> None:
    writer = SeedWriter(str(tmp_path))
    writer.begin(ORIGIN)
    writer.write(1, state())
    if name != "begun.json":
        writer.finish(Seed(partitions=3))
    file = tmp_path / "seed" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)

    def read() -> None:
        seed = read_seed(str(tmp_path))
        assert seed is not None
        seed.states()

    with pytest.raises(Damaged, match=name):
        read()


def seeded(store: Path) -> None:
    """A store that begins with the states of partitions 0 and 2 of 4, which have no entries."""
    writer, ledgers = SeedWriter(str(store)), LedgerStore(str(store))
    writer.begin(ORIGIN)
    for partition in (0, 2):
        ledgers.take(ledgers, partition, [])
        writer.write(partition, state())
    writer.finish(Seed(partitions=4, offsets={"0": 5, "1": 6, "2": 7, "3": 8}))


def without(store: Path, *names: str) -> SeedReader:
    """What is read of a copy of the store that lacks these files and folders."""
    copy = store.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store, copy)
    for name in names:
        shutil.rmtree(copy / name) if (copy / name).is_dir() else (copy / name).unlink()
    seed = read_seed(str(copy))
    assert seed is not None
    return seed


LOST = {
    "seed/00002.state": "00002.state", "seed/whole.json": "whole.json", "seed": "whole.json",
    "segments/00002": "segments/00002/0--00000001--00000001-0.parquet", "segments": "segments/00000/",
}  # fmt: skip


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("lost", LOST)
def test_what_is_lost_is_missed_as_long_as_it_is_needed(lost: str, older: bool, tmp_path: Path) -> None:
    """`older`: the seed of an earlier version, which did not list the states. There, only the segments tell of them."""
    store = tmp_path / "store"
    seeded(store)
    if older:
        offsets = without(store).seed.offsets
        Storage(str(store)).write_json("seed/whole.json", Seed(partitions=4, offsets=offsets))
    without(store).check({})
    assert without(store).state(1) is None
    if older and lost.startswith("segments"):
        return
    # Before the query has begun, a seed that is not whole is that of a move which goes on.
    files = [lost, "seed/begun.json"] if lost == "seed/whole.json" else [lost]
    seed = without(store, *files)
    with pytest.raises(Damaged, match=f"copy lacks .*{LOST[lost]}.* Restore it from a backup, or"):
        seed.check({})
    if lost.startswith("segments"):
        with pytest.raises(Damaged):
            seed.check(dict.fromkeys(range(4), 9))
        return
    for _ in range(2):
        # Nothing of partition 2 is in a committed micro-batch; then something is.
        if lost == "seed/00002.state":
            with pytest.raises(Damaged, match=r"lacks seed/00002\.state, the state with which"):
                seed.check({0: 6, 1: 6, 2: 7, 3: 9})
        with pytest.raises(Damaged, match="the state with which ingress partition 2 begins"):
            seed.state(2)
        with pytest.raises(Damaged, match="ingress partition 2"):
            [*with_seed([StateRow(0, 0, 0, 0, 0, None, b"zero")], seed)]
        seed.check({0: 6, 1: 6, 2: 8, 3: 8})
        found = [StateRow(each, 0, 0, 0, 0, None, b"") for each in (0, 2)]
        assert [*with_seed(found, seed)] == found
        Begun(str(store)).begin(Planned(0, 0, "0"), None)
        seed = without(store, lost)  # now begun.json tells nothing


def test_the_state_of_another_store_is_noticed(tmp_path: Path) -> None:
    seeded(tmp_path / "store")
    SeedWriter(str(tmp_path / "other")).write(2, Broker(2, NoEntries()).encode())
    shutil.copy(tmp_path / "other" / "seed" / "00002.state", tmp_path / "store" / "seed")
    seed = read_seed(str(tmp_path / "store"))
    assert seed is not None
    with pytest.raises(Damaged, match="00002.state"):
        seed.state(2)


def test_an_attempt_begins_anew(tmp_path: Path) -> None:
    """Nothing of one that failed stays but the latest time of the same move."""
    writer = SeedWriter(str(tmp_path))
    writer.begin(ORIGIN)
    writer.write(2, state())
    writer.write_piece(4, 2, b"piece")
    storage = Storage(str(tmp_path))
    for path in ("ledgers/t/000000001.parquet", "segments/00007/0--00000001--00000001-0.parquet", INGRESS):
        storage.publish(path, lambda stream: stream.write(b"wrong"))
    other = msgspec.structs.replace(ORIGIN, states="others", latest=7)
    with pytest.raises(
        NotWhole, match=r"topic t has records already, and .* a part of a move of c to topic t .*: choose"
    ):
        writer.begin(other, lambda: True)
    assert storage.info(INGRESS) is not None
    assert writer.begin(other) == other
    assert [storage.relative(each) for each in storage.files("", recursive=True)] == ["seed/begun.json"]
    assert writer.begin(msgspec.structs.replace(other, latest=8), lambda: True) == other


def test_an_attempt_does_not_touch_the_store_of_a_query(tmp_path: Path) -> None:
    """Of one that has lost its seed, say."""
    seeded(tmp_path)
    (tmp_path / "seed" / "whole.json").unlink()
    Begun(str(tmp_path)).begin(Planned(0, 0, "0"), None)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NotWhole, match="is the store of a query: use a new one"):
        SeedWriter(str(tmp_path)).begin(ORIGIN)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_checkpoint_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").touch()
    with pytest.raises(NotWhole, match="is the checkpoint of a query: use a new folder"):
        SeedWriter(str(tmp_path)).check_new("")
