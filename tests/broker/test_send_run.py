"""Runs of plain SENDs are only faster: rows and state are those of the scalar step, for any log and any cuts."""

from functools import partial
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.commands import (
    BrokerConfig,
    Fault,
    Flow,
    MessageIdData,
    MessageMetadata,
    Producer,
    Send,
    Subscribe,
)
from schemas.effects import Message, Row
from streaming.broker import context
from streaming.broker.broker import Broker
from streaming.fold import live
from streaming.fold.live import LiveFold
from streaming.fold.records import FoldError, OffsetError, Records, StateRow
from streaming.quality.gate import decode_only
from tests.broker.kit import START
from tests.broker.test_cut_invariance import Record, prelude, record, settings_of_a_broker
from tests.broker.test_publish_run import QUIET_TOPICS, Store, more_settings, records_of, scalar
from tests.broker.test_publish_run import same as in_columns
from tests.broker.test_publish_run import steps_of as steps_in_columns
from tests.examples import examples

TOPIC = QUIET_TOPICS[0]


RARELY_IN_METADATA: list[dict[str, Any]] = [
    {"num_messages_in_batch": 2}, {"deliver_at_time": START + 5_000}, {"marker_type": 1}, {"chunk_id": 0},
    {"num_chunks_from_msg": 2}, {"event_time": START}, {"null_value": False},
]  # fmt: skip
RARELY: list[dict[str, Any]] = [
    {"highest_sequence_id": 7}, {"highest_sequence_id": 60}, {"txnid_least_bits": 1}, {"txnid_most_bits": 1},
    {"message_id": MessageIdData(ledgerId=1, entryId=1)}, {"is_chunk": True},
    {"fails": True},
]  # fmt: skip


def sends_of(
    connection: str, topic: str, seed: int, count: int, odd: float, waits: float, rising: bool
) -> list[Record]:
    """SENDs of one producer, one after the other. `odd`: the share of those that are not plain; `waits`: of those at another time."""
    one = Random(seed)
    found: list[Record] = []
    for number in range(count):
        metadata = MessageMetadata(
            one.choice(["q", "q", "é" * 70]), one.randint(-1, 300), one.choice([0, START, START + 10**9]),
            partition_key=one.choice([None, None, "", "kö"]), uncompressed_size=one.choice([None, 0, 300]),
            **(one.choice(RARELY_IN_METADATA) if one.random() < odd else {}),
        )  # fmt: skip
        command = Send(
            connection=connection, producer_id=1, sequence_id=number if rising else one.randint(-1, 60), metadata=metadata,
            num_messages=one.choice([1, 1, 1, 3]), payload=one.choice(["", "payload", "ö" * 150]),
            **(one.choice(RARELY) if one.random() < odd else {}),
        )  # fmt: skip
        wait = one.choice([1, 1, 7, -3, 1_000, 61_000]) if one.random() < waits else 0
        found.append((wait, topic, command))
    return found


def sends(connection: str, topic: str) -> st.SearchStrategy[list[Record]]:
    """Built from a seed: drawn one by one, so many fields would leave runs of two or three SENDs."""
    return st.builds(
        partial(sends_of, connection, topic), seed=st.integers(0, 2**32 - 1), count=st.integers(0, 40),
        odd=st.sampled_from([0, 0, 0.05, 0.3]), waits=st.sampled_from([0, 0.05, 0.3]), rising=st.booleans(),
    )  # fmt: skip


def producers(names: list[str]) -> list[Record]:
    return [
        (0, topic, Producer(connection=name, producer_id=1, request_id=1, producer_name=name))
        for topic in QUIET_TOPICS
        for name in names
    ]


def opened(names: list[str]) -> list[Record]:
    """Producers that have sent something, without which the run leaves their SENDs to the scalar step."""
    sent = [each for topic in QUIET_TOPICS for name in names for each in plain(1, -1, name, topic)]
    return [*producers(names), *sent]


def same(log: list[Record], cuts: list[int], shortest: int) -> None:
    records, store = records_of(log), Store()
    expected, state = scalar(records, cuts)
    before: StateRow | None = None
    with mock.patch.object(live, "_SHORTEST", shortest):
        for rows, start, stop in zip(expected, [0, *cuts], [*cuts, len(log)], strict=True):
            fold = LiveFold(0, store, before, judge=decode_only)
            assert fold.answer(Records(*(column[start:stop] for column in records))) == rows  # type: ignore[arg-type]
            before = fold.state()
            store.stored.add([row.effect for row in rows])
    assert before is not None
    assert before.broker == state


@pytest.mark.feature("J4")
@given(
    settings_of_a_broker(),
    more_settings(),
    st.lists(
        st.one_of(
            *[sends(name, topic) for name in ("x", "y") for topic in QUIET_TOPICS[:2]],
            sends("x", "persistent://public/default/a"),
            st.lists(record(), max_size=10),
            st.just([(0, TOPIC, Fault(fault="FailWrites", count=1))]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sets(st.integers(1, 60), max_size=3),
)
@settings(
    max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_a_run_is_only_faster(
    configuration: Record, more: dict[str, Any], parts: list[list[Record]], cuts: set[int]
) -> None:
    config = configuration[2]
    assert isinstance(config, BrokerConfig)
    config.settings |= more
    log = [configuration, *prelude(), *opened(["x", "y"]), *(each for part in parts for each in part)]
    same(log, sorted(cut for cut in cuts if cut < len(log)), shortest=1)


def named(found: list[Record]) -> list[Record]:
    """With the producer's own name in the metadata, as clients put it there."""
    for _, _, command in found:
        if isinstance(command, Send) and command.metadata.producer_name == "q":
            command.metadata.producer_name = command.connection
    return found


def mixed(parts: list[list[Record]]) -> st.SearchStrategy[list[Record]]:
    """The parts, a record at a time from one of them."""
    whose = [number for number, part in enumerate(parts) for _ in part]

    def mix(order: list[int]) -> list[Record]:
        left = [iter(part) for part in parts]
        return [next(left[number]) for number in order]

    return st.permutations(whose).map(mix)


@pytest.mark.feature("J4")
@given(
    settings_of_a_broker(),
    more_settings(),
    st.lists(
        st.one_of(
            st.lists(
                st.one_of(*[sends(name, topic) for name in ("x", "y") for topic in QUIET_TOPICS]), max_size=4
            ).flatmap(mixed),
            st.lists(record(), max_size=10),
            st.just([(0, TOPIC, Fault(fault="DelayWrites", count=1))]),
            st.just(
                [
                    (
                        0,
                        TOPIC,
                        Producer(connection="x", producer_id=1, request_id=9, producer_name="x", epoch=1),
                    )
                ]
            ),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sets(st.integers(1, 60), max_size=3),
)
@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_run_of_several_producers_is_only_faster(
    configuration: Record, more: dict[str, Any], parts: list[list[Record]], cuts: set[int]
) -> None:
    config = configuration[2]
    assert isinstance(config, BrokerConfig)
    config.settings |= more
    log = [
        configuration,
        *prelude(),
        *opened(["x", "y"]),
        *(each for part in parts for each in named(part)),
    ]
    in_columns(log, sorted(cut for cut in cuts if cut < len(log)), shortest=1)


def test_plain_sends_of_several_producers_take_the_run() -> None:
    log = [each for pair in zip(plain(500), plain(500, connection="y"), strict=True) for each in pair]
    first = producers(["x", "y"])
    # The first SEND of a producer takes the scalar step.
    assert steps_in_columns([*first, *log]) == len(first) + 2
    # Those with more in their metadata, or of batches, take it, too.
    special = [each for number in range(20) for each in plain(1, number)]
    for _, _, command in special[::2]:
        assert isinstance(command, Send)
        command.metadata.event_time = START
    assert steps_in_columns([*first, *special]) >= len(first) + len(special) // 2


def plain(count: int, first: int = 0, connection: str = "x", topic: str = TOPIC) -> list[Record]:
    return [
        (0, topic, Send(connection=connection, producer_id=1, sequence_id=number, payload_bytes=b"x", metadata=MessageMetadata(connection, number, START)))
        for number in range(first, first + count)
    ]  # fmt: skip


def steps_of(log: list[Record]) -> int:
    """How many records took the scalar step."""
    steps = 0

    class Counting(Broker):
        def apply(self, *args: Any) -> None:
            nonlocal steps
            steps += 1
            super().apply(*args)

    LiveFold(0, Store(), None, broker=Counting).answer(records_of(log))
    return steps


def test_plain_sends_take_the_run() -> None:
    first = producers(["x"])
    # The first SEND of a producer takes the scalar step: those after it in the run do, too.
    assert (
        steps_of([*first, *plain(1), (0, QUIET_TOPICS[1], plain(1)[0][2]), *plain(5_000, 1)])
        == len(first) + 2
    )
    # So do the entry at which a snapshot is due, and a duplicate.
    deduplicated: Record = (0, None, BrokerConfig(settings={"brokerDeduplicationEnabled": True}))
    begin = [deduplicated, *first, *plain(1), (0, QUIET_TOPICS[1], plain(1)[0][2])]
    assert steps_of([*begin, *plain(2_500, 1)]) == len(begin) + 2
    assert steps_of([*begin, *plain(900, 1), *plain(3, 500)]) == len(begin) + 3


@pytest.mark.parametrize("waits", [0, 0.05])
def test_the_examples_reach_the_run(waits: float) -> None:
    """Else the properties above would hold of any run."""
    first, steps, most = opened(["x"]), 0, 0
    for seed in range(20):
        log = [*first, *sends_of("x", TOPIC, seed, 40, 0, waits, rising=True)]
        steps, most = steps + steps_of(log), most + len(log)
    assert steps < most / 3


@pytest.mark.parametrize(("most", "at_once"), [(1, True), (100, True), (1_000, False)])
def test_rows_of_a_run_are_taken_with_it_when_there_are_many(most: int, at_once: bool) -> None:
    """As those of the scalar step are: they bound the memory."""
    log = records_of([*opened(["x"]), *plain(200)])
    expected = LiveFold(0, Store(), None).answer(log)
    taken: list[int] = []

    class Counting(Broker):
        def take(self) -> list[Row]:
            rows = super().take()
            taken.append(len(rows))
            return rows

    with mock.patch.object(context, "ROWS", most):
        assert LiveFold(0, Store(), None, broker=Counting).answer(log) == expected
    assert (taken[-1] == 0) is at_once


def test_entries_of_a_run_are_read_in_the_same_batch() -> None:
    log = [
        *opened(["x"]),
        *sends_of("x", TOPIC, 1, 40, 0, 0, rising=True),
        (0, TOPIC, Subscribe(connection="c", consumer_id=1, subscription="s", subType="Exclusive", request_id=1, initialPosition="Earliest")),
        (0, TOPIC, Flow(connection="c", consumer_id=1, messagePermits=100)),
    ]  # fmt: skip
    ((*_, last),) = [[each.effect for each in rows] for rows in scalar(records_of(log), [])[0]]
    assert isinstance(last, Message)
    assert last.entry_id == 40
    same(log, [], shortest=1)


def test_errors_name_the_record() -> None:
    log = records_of([*producers(["x"]), *plain(1)])
    fold = LiveFold(0, Store(), None)
    fold.answer(log)
    late = records_of(plain(10))
    with pytest.raises(OffsetError, match="offset 0 after 3"):
        fold.answer(late)
    sent = Records([each + 10 for each in late.offsets], *late[1:])
    with (
        mock.patch.object(Broker, "send", side_effect=RuntimeError("no")),
        pytest.raises(FoldError, match="offset 10, topic '.*quiet-0', carrying out SENDs: RuntimeError: no"),
    ):
        fold.answer(sent)


@pytest.mark.parametrize("odd", range(3, 9))
def test_a_run_ends_with_a_ledger_that_is_full_by_size(odd: int) -> None:
    """Also one that begins within a ledger, behind a SEND that is not plain."""
    settings = {"managedLedgerMaxSizePerLedgerMbytes": 1, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
    log: list[Record] = [(0, None, BrokerConfig(settings=settings)), *opened(["x"])]  # type: ignore[arg-type]
    for number in range(36):
        more: dict[str, Any] = {"event_time": START} if number % odd == odd - 1 else {}
        metadata = MessageMetadata("q", number, START, **more)
        send = Send(
            connection="x", producer_id=1, sequence_id=number, payload="x" * 100_000, metadata=metadata
        )
        log.append((0, TOPIC, send))
    same(log, [], shortest=1)
