"""Sorted sets in blocks, compared with plain sets."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.broker.dispatch import sorted_blocks
from streaming.broker.dispatch.sorted_blocks import Positions
from streaming.broker.position import Position

positions = st.builds(Position, st.integers(1, 3), st.integers(0, 20))
changes = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["add", "discard"]), positions),
        st.tuples(
            st.just("update"), st.lists(positions, max_size=12) | st.sets(positions, max_size=12).map(sorted)
        ),
        st.tuples(st.just("take"), positions, st.none() | st.integers(0, 5)),
        st.tuples(st.sampled_from(["encode", "clear"])),
    )
)


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_blocks, "FULL", 4)
        yield


@given(changes)
def test_it_holds_what_a_set_holds(changes: list[Any]) -> None:
    blocks, expected = Positions(), set[Position]()
    for what, *arguments in changes:
        match what, arguments:
            case "add", [Position() as position]:
                blocks.add(position)
                expected.add(position)
            case "discard", [Position() as position]:
                blocks.discard(position)
                expected.discard(position)
            case "update", [items]:
                blocks.update(items)
                expected.update(items)
            case "take", [Position() as position, int() | None as most]:
                taken = sorted(each for each in expected if each <= position)[:most]
                assert blocks.take_to(position, most) == taken
                expected.difference_update(taken)
            case "encode", []:
                encoded = msgspec.msgpack.encode(blocks.encoded())
                blocks = Positions.decoded(msgspec.msgpack.decode(encoded))
                assert msgspec.msgpack.encode(blocks.encoded()) == encoded
            case _:
                blocks.clear()
                expected.clear()
        assert list(blocks) == sorted(expected)
        assert len(blocks) == len(expected)
        assert blocks.first(3) == sorted(expected)[:3]
        assert all((each in blocks) == (each in expected) for each in [Position(1, 5), Position(3, 21)])


@given(changes, st.integers(0, 20))
def test_the_encoding_does_not_depend_on_cuts(changes: list[Any], cut: int) -> None:
    whole, parts = Positions(), Positions()
    for number, (what, *arguments) in enumerate(changes):
        for each in (whole, parts):
            match what, arguments:
                case "add", [Position() as position]:
                    each.add(position)
                case "discard", [Position() as position]:
                    each.discard(position)
                case "update", [items]:
                    each.update(items)
                case "take", [Position() as position, int() | None as most]:
                    each.take_to(position, most)
        if number == cut or what == "encode":
            parts = Positions.decoded(msgspec.msgpack.decode(msgspec.msgpack.encode(parts.encoded())))
    assert whole == parts
    assert msgspec.msgpack.encode(whole.encoded()) == msgspec.msgpack.encode(parts.encoded())


@given(changes, st.sets(positions, max_size=12).map(sorted))
def test_an_update_does_what_so_many_additions_do(changes: list[Any], some: list[Position]) -> None:
    at_once, one_by_one = Positions(), Positions()
    for blocks in (at_once, one_by_one):
        for what, *arguments in changes:
            match what, arguments:
                case "add", [Position() as position]:
                    blocks.add(position)
                case "discard", [Position() as position]:
                    blocks.discard(position)
    at_once.update(some)
    for each in some:
        one_by_one.add(each)
    assert msgspec.msgpack.encode(at_once.encoded()) == msgspec.msgpack.encode(one_by_one.encoded())


def test_a_full_block_is_split_in_the_middle() -> None:
    blocks = Positions()
    for entry in (0, 1, 2, 4, 3):
        blocks.add(Position(1, entry))
    assert [len(block) for block in blocks._blocks] == [2, 3]
