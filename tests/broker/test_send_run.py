"""Runs of plain SENDs are only faster: rows and state are those of the scalar step, for any log and any cuts."""

from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.commands import BrokerConfig, Fault, MessageIdData, MessageMetadata, Producer, Send
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


def metadata() -> st.SearchStrategy[MessageMetadata]:
    """Mostly plain."""
    rarely: dict[str, Any] = {
        "num_messages_in_batch": st.just(2), "deliver_at_time": st.just(START + 5_000), "marker_type": st.just(1),
        "chunk_id": st.just(0), "num_chunks_from_msg": st.just(2), "event_time": st.just(START), "null_value": st.just(False),
    }  # fmt: skip
    plain: dict[str, Any] = {
        "producer_name": st.sampled_from(["q", "é" * 70]), "sequence_id": st.integers(-1, 300),
        "publish_time": st.sampled_from([0, START, START + 10**9]), "partition_key": st.sampled_from([None, None, "", "kö"]),
        "uncompressed_size": st.sampled_from([None, 0, 300]),
    }  # fmt: skip
    some = st.builds(MessageMetadata, **plain)
    return st.one_of(
        *[some] * 9, st.fixed_dictionaries(plain, optional=rarely).map(lambda each: MessageMetadata(**each))
    )


def sends(connection: str, topic: str) -> st.SearchStrategy[list[Record]]:
    """SENDs of one producer, one after the other."""
    rarely: dict[str, Any] = {
        "highest_sequence_id": st.integers(0, 60), "txnid_least_bits": st.just(1), "txnid_most_bits": st.just(1),
        "message_id": st.just(MessageIdData(ledgerId=1, entryId=1)), "is_chunk": st.just(True),
    }  # fmt: skip
    always: dict[str, Any] = {
        "connection": st.just(connection), "producer_id": st.just(1), "sequence_id": st.integers(-1, 60),
        "metadata": metadata(), "num_messages": st.sampled_from([1, 1, 1, 3]),
        "payload": st.sampled_from(["", "payload", "ö" * 150]),
    }  # fmt: skip
    one = st.builds(Send, **always)
    send = st.one_of(
        *[one] * 9, st.fixed_dictionaries(always, optional=rarely).map(lambda each: Send(**each))
    )
    jumps = st.sampled_from([*[0] * 20, 1, 1, 7, -3, 1_000, 61_000])
    rising = st.lists(send, max_size=40).map(
        lambda found: [_numbered(each, number) for number, each in enumerate(found)]
    )
    commands = st.one_of(rising, st.lists(send, max_size=20))
    return commands.flatmap(
        lambda found: st.lists(jumps, min_size=len(found), max_size=len(found)).map(
            lambda waits: [(wait, topic, each) for wait, each in zip(waits, found, strict=True)]
        )
    )


def _numbered(command: Send, number: int) -> Send:
    command.sequence_id = number
    return command


def producers(names: list[str]) -> list[Record]:
    return [
        (0, topic, Producer(connection=name, producer_id=1, request_id=1, producer_name=name))
        for topic in QUIET_TOPICS
        for name in names
    ]


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
    log = [configuration, *prelude(), *producers(["x", "y"]), *(each for part in parts for each in part)]
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
        *producers(["x", "y"]),
        *(each for part in parts for each in named(part)),
    ]
    in_columns(log, sorted(cut for cut in cuts if cut < len(log)), shortest=1)


def test_plain_sends_of_several_producers_take_the_run() -> None:
    log = [each for pair in zip(plain(500), plain(500, connection="y"), strict=True) for each in pair]
    first = producers(["x", "y"])
    # The first SEND of a producer takes the scalar step.
    assert steps_in_columns([*first, *log]) == len(first) + 2
    # Those with more in their metadata, or of batches, do not.
    special = [each for number in range(20) for each in plain(1, number)]
    for _, _, command in special[::2]:
        assert isinstance(command, Send)
        command.metadata.event_time = START
    assert steps_in_columns([*first, *special]) == len(first) + len(special)


def plain(count: int, first: int = 0, connection: str = "x") -> list[Record]:
    return [
        (0, TOPIC, Send(connection=connection, producer_id=1, sequence_id=number, payload_bytes=b"x", metadata=MessageMetadata(connection, number, START)))
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
