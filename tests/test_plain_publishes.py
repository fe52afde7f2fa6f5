"""Publishes that are read by column are what decoding each value gives, and every other value is left out."""

from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import Publish, Refused, Tick, decode, decode_or_refuse, to_binary
from streaming.fold import plain_layout as plain
from streaming.quality.gate import judge, passes

NUMBERS = st.one_of(st.integers(-3, 300), st.sampled_from([2**16, 2**31, 2**32, 2**63 - 1, -(2**63)]))
PAYLOADS = st.one_of(
    st.binary(min_size=1, max_size=40), st.integers(250, 260).map(bytes), st.just(bytes(70_000))
)
NAMES = st.one_of(st.text(max_size=40), st.sampled_from(["é" * 130, "x" * 1025, "x" * 70_000]))
PUBLISHES = st.builds(
    lambda name, number, data: to_binary(Publish(producer=name, sequence_id=number, payload_bytes=data)),
    NAMES, NUMBERS, PAYLOADS,
)  # fmt: skip
OTHERS = st.one_of(
    st.binary(max_size=60),
    st.just(to_binary(Tick())),
    st.builds(
        lambda key: to_binary(Publish(producer="p", sequence_id=1, payload_bytes=b"x", key=key)), st.text()
    ),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A publish with a few bytes that are other ones, or one that is cut or goes on."""
    value = bytearray(draw(PUBLISHES))
    for at, byte in draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=2)):
        value[min(at, len(value) - 1)] = byte
    return bytes(value[: draw(st.integers(0, 80))] if draw(st.booleans()) else value) + draw(
        st.sampled_from([b"", b"\0", b"\x83\xa8producer"])
    )


def found_in(values: list[bytes]) -> dict[int, Publish]:
    with mock.patch.object(plain, "_OTHERS", 1):
        found = plain.plain_publishes([*values, START, *[b""] * len(values)])
    if found is None:
        return {}
    found.payloads.validate(full=True)
    names = found.names.to_pylist()
    rows = found.rows.tolist()
    assert rows.index(len(values)) == len(rows) - 1
    columns = zip(
        rows, found.producers.tolist(), found.sequence_ids.tolist(), found.payloads.to_pylist(), strict=True
    )
    return {
        row: Publish(producer=names[producer], sequence_id=number, payload_bytes=data)
        for row, producer, number, data in columns
        if row < len(values)
    }


START = to_binary(Publish(producer="p", sequence_id=0, payload_bytes=b"x"))


@given(st.lists(st.one_of(PUBLISHES, OTHERS, damaged()), max_size=12))
def test_what_is_found_is_what_decoding_gives(values: list[bytes]) -> None:
    found = found_in(values)
    decoded = [decode_or_refuse(value) for value in values]
    assert [decoded[row] for row in found] == list(found.values())


@given(st.lists(PUBLISHES, max_size=12))
def test_nothing_in_this_layout_is_missed(values: list[bytes]) -> None:
    # A negative number has another form.
    wanted = [row for row, value in enumerate(values) if decode(value).sequence_id >= 0]  # type: ignore[union-attr]
    assert list(found_in(values)) == wanted


@pytest.mark.parametrize("others", [20, 21])
def test_other_values_may_be_a_fifth(others: int) -> None:
    found = plain.plain_publishes([*[START] * (100 - others), *[b""] * others])
    assert (found is None) == (others > 20)


def test_a_large_value_is_not_copied() -> None:
    few = [START] * 3
    with mock.patch.object(plain, "_MOST", 3 * len(START)):
        assert plain.plain_publishes(few) is not None
        assert plain.plain_publishes([*few, b"x"]) is None


@given(
    st.sampled_from(["", "p", "é" * 1024, "x" * 1025]), st.sampled_from([0, 2**62]), st.sampled_from([None, "t", "t" * 4096, "t" * 4097])
)  # fmt: skip
def test_the_gate_passes_columns_if_it_refuses_no_command(name: str, number: int, topic: str | None) -> None:
    value = to_binary(Publish(producer=name, sequence_id=number, payload_bytes=b"x"))
    (judged,) = judge([topic], [value])
    columns = [topic], pa.array([name]), pa.array([number]), pa.array([1])
    assert passes(judge, *columns) == (not isinstance(judged, Refused))


def test_the_gate_limits_numbers_and_payloads_in_columns_too() -> None:
    def passed(number: int, size: int) -> bool:
        return passes(judge, ["t"], pa.array(["p"]), pa.array([number]), pa.array([size]))

    assert passed(0, 2**27)
    assert not passed(-1, 1)
    assert not passed(0, 2**27 + 1)
    assert not passes(
        lambda topics, values: judge(topics, values), ["t"], pa.array(["p"]), pa.array([0]), pa.array([1])
    )
