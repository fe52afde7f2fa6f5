"""The states in the store of a new query."""

import pickle
from pathlib import Path

import msgspec
import pytest

from sinks.storage import Damaged
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.fold.records import StateRow
from streaming.state.seed import Origin, Seed, SeedWriter, read_seed, with_seed
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
    assert reader.seed == Seed(partitions=3, offsets={"1": 7})
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
