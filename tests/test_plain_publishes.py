"""Publishes and ACKs that are read by column are what decoding each value gives, and every other value is left out."""

from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import (
    Ack,
    Flow,
    MessageIdData,
    Publish,
    Refused,
    Tick,
    decode,
    decode_or_refuse,
    to_binary,
)
from streaming.fold import plain_layout as plain
from streaming.quality.gate import judge, passes

NUMBERS = st.one_of(st.integers(-3, 300), st.sampled_from([2**16, 2**31, 2**32, 2**63 - 1, -(2**63)]))
PAYLOADS = st.one_of(
    st.binary(min_size=1, max_size=40), st.integers(250, 260).map(bytes), st.just(bytes(70_000))
)
NAMES = st.one_of(st.text(max_size=40), st.sampled_from(["é" * 130, "x" * 1025, "x" * 70_000]))
PUBLISHES = st.builds(
    lambda name, number, data, key: to_binary(Publish(producer=name, sequence_id=number, payload_bytes=data, key=key)),
    NAMES, NUMBERS, PAYLOADS, st.none() | NAMES,
)  # fmt: skip
ACKS = st.builds(
    lambda name, consumer, kind, ledger, entry, words: to_binary(
        Ack(connection=name, consumer_id=consumer, ack_type=kind, message_id=[MessageIdData(ledgerId=ledger, entryId=entry, ack_set=words)])
    ),
    NAMES.filter(bool), NUMBERS, st.sampled_from(["Individual", "Cumulative"]), NUMBERS, NUMBERS, st.lists(NUMBERS | st.just(0), max_size=4),
)  # fmt: skip
OTHERS = st.one_of(
    st.binary(max_size=60),
    st.just(to_binary(Tick())),
    st.just(to_binary(Flow(connection="c", consumer_id=1, messagePermits=1))),
    st.builds(
        lambda sets, request, more: to_binary(
            Ack(
                connection="c", consumer_id=1, ack_type="Individual", request_id=request,
                message_id=[MessageIdData(ledgerId=1, entryId=2, ack_set=each) for each in sets], validation_error=more,
            )
        ),
        st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2), st.none() | st.integers(0, 9), st.none() | st.text(max_size=9),
    ),
    st.builds(
        lambda time: to_binary(Publish(producer="p", sequence_id=1, payload_bytes=b"x", publish_time=time)),
        st.integers(0, 9),
    ),
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A publish or an ACK with a few bytes that are other ones, or one that is cut or goes on."""
    value = bytearray(draw(PUBLISHES | ACKS))
    for at, byte in draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=2)):
        value[min(at, len(value) - 1)] = byte
    return bytes(value[: draw(st.integers(0, 80))] if draw(st.booleans()) else value) + draw(
        st.sampled_from([b"", b"\0", b"\x83\xa8producer", b"\xa3key"])
    )


def found_in(values: list[bytes]) -> dict[int, Publish | Ack]:
    with (
        mock.patch.object(plain, "_OTHERS", 1),
        mock.patch.object(plain, "_FEWEST", 1),
        mock.patch.object(plain, "_SAMPLE", 100),
    ):
        publishes, acks = plain.plain_values(values, with_acks=True)
    found: dict[int, Publish | Ack] = {}
    if publishes is not None:
        publishes.payloads.validate(full=True)
        publishes.keys.validate(full=True)
        names = publishes.names.to_pylist()
        columns = (each.tolist() for each in (publishes.rows, publishes.producers, publishes.sequence_ids))
        texts = publishes.payloads.to_pylist(), publishes.keys.to_pylist()
        for row, producer, number, data, key in zip(*columns, *texts, strict=True):
            found[row] = Publish(producer=names[producer], sequence_id=number, payload_bytes=data, key=key)
    if acks is not None:
        names = acks.names.to_pylist()
        columns = (each.tolist() for each in (acks.rows, *acks[2:]))
        for row, connection, consumer, ledger, entry, individual, part in zip(*columns, strict=True):
            found[row] = Ack(
                connection=names[connection], consumer_id=consumer, ack_type="Individual" if individual else "Cumulative",
                message_id=[MessageIdData(ledgerId=ledger, entryId=entry, ack_set=[1] if part else [])],
            )  # fmt: skip
    return found


START = to_binary(Publish(producer="p", sequence_id=0, payload_bytes=b"x"))
ACK = to_binary(
    Ack(
        connection="c",
        consumer_id=1,
        ack_type="Individual",
        message_id=[MessageIdData(ledgerId=1, entryId=2)],
    )
)
ODD = to_binary(Publish(producer="p", sequence_id=0, payload_bytes=b"x", publish_time=1))
ODD_ACK = to_binary(Ack(connection="c", consumer_id=1, ack_type="Individual"))


@given(st.lists(st.one_of(PUBLISHES, ACKS, OTHERS, damaged()), max_size=12))
def test_what_is_found_is_what_decoding_gives(values: list[bytes]) -> None:
    found = found_in(values)
    decoded = [decode_or_refuse(value) for value in values]
    for each in decoded:
        if isinstance(each, Ack):
            for id_ in each.message_id:
                id_.ack_set = [1] if any(id_.ack_set) else []
    assert [decoded[row] for row in found] == list(found.values())


@given(st.lists(PUBLISHES | ACKS, max_size=12))
def test_nothing_in_these_layouts_is_missed(values: list[bytes]) -> None:
    def negative(command: Publish | Ack) -> bool:  # such numbers have another form
        if isinstance(command, Publish):
            return command.sequence_id < 0
        return min(command.consumer_id, command.message_id[0].ledgerId, command.message_id[0].entryId) < 0

    wanted = {row for row, value in enumerate(values) if not negative(decode(value))}  # type: ignore[arg-type]
    assert found_in(values).keys() == wanted


@pytest.mark.parametrize("others", [20, 21])
def test_a_fifth_of_what_begins_alike_may_be_something_else(others: int) -> None:
    usual = 100 - others
    values = [*[START] * usual, *[ODD] * others, *[b""] * 100, *[ACK] * usual, *[ODD_ACK] * others]
    publishes, acks = plain.plain_values(values, with_acks=True)
    assert (publishes is None) == (acks is None) == (others > 20)


def test_few_values_are_not_worth_it() -> None:
    for count in (plain._FEWEST - 1, plain._FEWEST):
        publishes, acks = plain.plain_values([START, ACK] * count, with_acks=True)
        assert (publishes is None) == (acks is None) == (count < plain._FEWEST)


def test_acks_are_read_only_where_they_are_asked_for() -> None:
    assert plain.plain_values([ACK] * 100, with_acks=False) == plain.PlainValues()
    publishes, acks = plain.plain_values([START, ACK] * 100, with_acks=False)
    assert publishes is not None
    assert acks is None


def test_names_that_are_no_texts_are_left_to_the_decoder() -> None:
    bad = [value.replace(b"\xa1c", b"\xa1\xff").replace(b"\xa1p", b"\xa1\xff") for value in (START, ACK)]
    assert plain.plain_values(bad * 100, with_acks=True) == plain.PlainValues()


def test_a_large_value_is_not_copied() -> None:
    few = [START] * 100
    with mock.patch.object(plain, "_MOST", 100 * len(START)):
        assert plain.plain_values(few, with_acks=False).publishes is not None
        assert plain.plain_values([*few, b"x"], with_acks=False) == plain.PlainValues()


@given(st.sampled_from(["c", "é" * 1024, "x" * 1025]), st.sampled_from([0, 2**62]))
def test_the_gate_passes_columns_of_acks_if_it_refuses_no_command(name: str, number: int) -> None:
    value = to_binary(
        Ack(
            connection=name,
            consumer_id=number,
            ack_type="Individual",
            message_id=[MessageIdData(ledgerId=1, entryId=2)],
        )
    )
    (judged,) = judge(["t"], [value])
    columns = {"connection": pa.array([name])}, {"consumer_id": pa.array([number])}
    assert passes(judge, ["t"], Ack, *columns) == (not isinstance(judged, Refused))
    assert not passes(judge, ["t"], Ack, {"consumer_id": pa.array([-1])})


@given(
    st.sampled_from(["", "p", "é" * 1024, "x" * 1025]), st.sampled_from([0, 2**62]), st.sampled_from([None, "t", "t" * 4096, "t" * 4097])
)  # fmt: skip
def test_the_gate_passes_columns_if_it_refuses_no_command(name: str, number: int, topic: str | None) -> None:
    value = to_binary(Publish(producer=name, sequence_id=number, payload_bytes=b"x"))
    (judged,) = judge([topic], [value])
    columns = (
        {"producer": pa.array([name])},
        {"sequence_id": pa.array([number]), "payload.size": pa.array([1])},
    )
    assert passes(judge, [topic], Publish, *columns) == (not isinstance(judged, Refused))


def test_the_gate_limits_numbers_and_payloads_in_columns_too() -> None:
    def passed(number: int, size: int) -> bool:
        columns = {"sequence_id": pa.array([number]), "payload.size": pa.array([size])}
        return passes(judge, ["t"], Publish, {"producer": pa.array(["p"])}, columns)

    assert passed(0, 2**27)
    assert not passed(-1, 1)
    assert not passed(0, 2**27 + 1)
    assert not passes(
        lambda topics, values: judge(topics, values), ["t"], Publish, {"producer": pa.array(["p"])}
    )
