"""A topic on which Magnetar fails can be set aside, and everything else goes on (`--quarantine-topic`)."""

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from schemas.commands import (
    AnyCommand,
    BrokerConfig,
    ConnectionLost,
    Flow,
    Publish,
    Restart,
    RunCheck,
    Subscribe,
    Tick,
    to_json,
)
from schemas.effects import KINDS, Quarantined
from schemas.records import RECORD, TopicAside
from sinks.ledger_store import LedgerStore
from sinks.quarantine import QuarantineSink, read_quarantine, read_topics_set_aside
from streaming.broker.state.codec import decode_state, encode_state
from streaming.cli.app import app
from streaming.fold.columns import Fold
from streaming.fold.records import FoldError, StateRow, set_aside_by_name
from streaming.jobs.replay import replay_in_process
from streaming.quarantine.store import Quarantine
from streaming.server.clock import HeldClock
from streaming.server.data_folder import CHECKPOINT, _Checkpoint
from streaming.server.embedded import EmbeddedEngine

pytestmark = pytest.mark.feature("J6")

START = 1_700_000_000_000
BAD, GOOD = "persistent://a/b/bad", "persistent://a/b/good"


def log(*records: tuple[str | None, AnyCommand | Publish], first: int = 0, step: int = 1000) -> pa.Table:
    rows = [
        {"partition": 0, "offset": first + n, "timestamp": START + first * 1000 + n * step, "topic": topic, "value": to_json(value)}
        for n, (topic, value) in enumerate(records)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=RECORD)


def publish(number: int) -> Publish:
    return Publish(producer="p", sequence_id=number)


def subscribe(connection: str, id_: int = 1) -> Subscribe:
    return Subscribe(
        connection=connection, subscription="s", subType="Shared", consumer_id=id_, request_id=1, initialPosition="Earliest"
    )  # fmt: skip


BEFORE = log(
    *((topic, subscribe("c")) for topic in (BAD, GOOD)),
    *((topic, publish(n)) for n in range(3) for topic in (BAD, GOOD)),
    (GOOD, Flow(connection="c", consumer_id=1, messagePermits=10)),
)
ON_BAD: dict[str, tuple[str | None, AnyCommand | Publish]] = {
    "a publish": (BAD, publish(9)),
    "a FLOW": (BAD, Flow(connection="c", consumer_id=1, messagePermits=10)),
    "a RESTART": (None, Restart()),
    "a lost connection": (None, ConnectionLost(connection="c")),
    "a check": (None, RunCheck(check="consumedLedgers")),
}
"""Records that touch the topic, whatever topic they are of."""


def damaged(states: list[StateRow]) -> list[StateRow]:
    """The states with one topic that can't be decoded."""
    (state,) = states
    broker = decode_state(state.broker)
    broker.topics[BAD].data = b"\xc1"
    return [state._replace(broker=encode_state(broker))]


def folded(
    store: Any, *tables: pa.Table, states: list[StateRow], **how: Any
) -> tuple[list[dict[str, Any]], list[StateRow]]:
    fold = Fold(store, states, **{"set_aside": {}} | how)
    rows: list[dict[str, Any]] = []
    for table in tables:
        for _, found in fold.apply(table):
            rows += [{"kind": kind, **row} for kind, own in found.items() for row in own.to_pylist()]
    return sorted(rows, key=lambda row: (row["offset"], row["ordinal"])), fold.states()


@pytest.mark.parametrize("what", ON_BAD)
def test_a_failure_names_the_topic_and_the_fold_goes_on_without_it(what: str, tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path))
    _, states = folded(store, BEFORE, states=[])
    after = log(ON_BAD[what], (GOOD, publish(3)), (BAD, publish(3)), (None, Tick()), first=len(BEFORE))
    with pytest.raises(FoldError, match=f"--quarantine-topic {BAD}"):
        folded(store, after, states=damaged(states))

    aside = set_aside_by_name([], [TopicAside(BAD)])
    rows, left = folded(store, after, states=damaged(states), set_aside=aside)
    mark = rows[0]
    assert (mark["kind"], mark["rule"], mark["topic"], mark["offset"]) == (
        KINDS[Quarantined], "topic_set_aside", BAD, len(BEFORE) - 1,
    )  # fmt: skip
    refused = [row for row in rows if row["topic"] == BAD and row is not mark]
    assert [row["rule"] for row in refused] == ["set_aside"] * (2 if ON_BAD[what][0] == BAD else 1)
    assert refused[-1]["cause"] == f"an operator set the topic aside: --quarantine-topic {BAD}"
    of_good = [row for row in rows if row["topic"] == GOOD]
    # As if the topic had never been there.
    without = log(
        *([ON_BAD[what]] if ON_BAD[what][0] is None else [(None, Tick())]),
        (GOOD, publish(3)),
        first=len(BEFORE),
    )
    (state,) = states
    broker = decode_state(state.broker)
    del broker.topics[BAD]
    del broker.connections["c"][BAD]
    expected, _ = folded(store, without, states=[state._replace(broker=encode_state(broker))])
    assert of_good == [row for row in expected if row["topic"] == GOOD]

    # The state says so from now on, with and without the option, and its block is as it was.
    assert decode_state(left[0].broker).aside[BAD].data == b"\xc1"
    more = log((BAD, publish(4)), (None, Restart()), (GOOD, publish(4)), first=len(BEFORE) + len(after))
    again, same = folded(store, more, states=left)
    assert (again, same) == folded(store, more, states=left, set_aside=aside)
    assert [row["rule"] for row in again if row["topic"] == BAD] == ["set_aside"]


def test_a_topic_that_is_not_there_yet_is_set_aside_at_its_first_record(tmp_path: Path) -> None:
    rows, states = folded(
        LedgerStore(str(tmp_path)), BEFORE, states=[], set_aside=set_aside_by_name([], [TopicAside(BAD)])
    )
    assert {row["rule"] for row in rows if row["topic"] == BAD} == {"set_aside"}
    assert len([row for row in rows if row["topic"] == GOOD]) > 5
    assert decode_state(states[0].broker).topics.keys() == {GOOD}


def test_what_the_broker_keeps_of_a_topic_elsewhere_goes(tmp_path: Path) -> None:
    """Its connections, its unacked messages, and its wait for permits of a limit that all topics share."""
    settings: dict[str, Any] = {"dispatchThrottlingRateInMsg": 1, "maxUnackedMessagesPerBroker": 100}
    before = log(
        (None, BrokerConfig(settings=settings)),
        (BAD, subscribe("only-bad")),
        (BAD, Flow(connection="only-bad", consumer_id=1, messagePermits=10)),
        (GOOD, subscribe("c")),
        (GOOD, Flow(connection="c", consumer_id=1, messagePermits=10)),
    )
    # At one time: the limit gives one permit a second.
    burst = log(*((BAD, publish(n)) for n in range(4)), (GOOD, publish(0)), first=len(before), step=0)
    store = LedgerStore(str(tmp_path))
    store.begin(0)
    fold = Fold(store, [])
    for _, found in fold.apply(pa.concat_tables([before, burst])):
        store.write(0, 0, found)
    assert "only-bad" in decode_state(fold.states()[0].broker).connections
    store.begin(1)
    after = log(*((None, Tick()) for _ in range(3)), first=len(before) + len(burst))
    rows, states = folded(
        store, after, states=fold.states(), set_aside=set_aside_by_name([], [TopicAside(BAD)])
    )
    assert [row["topic"] for row in rows if row["kind"] == "MESSAGE"] == [GOOD]
    assert "only-bad" not in decode_state(states[0].broker).connections


@pytest.mark.parametrize("batches", [1, 3, 20])
def test_a_replay_sets_aside_what_the_query_did(tmp_path: Path, batches: int) -> None:
    """The query set the topic aside in the middle of its log. Its quarantine says where."""
    after = log(
        (BAD, publish(3)), (None, Restart()), (GOOD, publish(3)), (BAD, publish(4)), first=len(BEFORE)
    )
    store, quarantine = LedgerStore(str(tmp_path / "run")), QuarantineSink(str(tmp_path / "run"))
    before, states = folded(store, BEFORE, states=[])
    fold = Fold(store, states, set_aside=set_aside_by_name([], [TopicAside(BAD)]))
    for partition, rows in fold.apply(after):
        quarantine.write(0, partition, rows)
    assert read_topics_set_aside(str(tmp_path / "run")) == [TopicAside(BAD, 0, len(BEFORE) - 1)]
    assert (
        Quarantine(str(tmp_path / "run")).records()["rule"].to_pylist() == ["set_aside"] * 2
    )  # all can be resubmitted
    whole = pa.concat_tables([BEFORE, after])
    replay_in_process(whole, tmp_path / "out", quarantined=str(tmp_path / "run"), batches=batches)
    assert read_quarantine(str(tmp_path / "out")).equals(read_quarantine(str(tmp_path / "run")))
    assert before


def test_a_replay_goes_on_without_a_topic(tmp_path: Path) -> None:
    result = replay_in_process(BEFORE, tmp_path / "out", topics_aside=[BAD])
    assert {row["topic"] for row in result.stats} == {GOOD}
    assert set(read_quarantine(str(tmp_path / "out"))["topic"].to_pylist()) == {BAD}


def test_a_server_goes_on_without_a_topic(tmp_path: Path) -> None:
    async def use(topics: list[str], *commands: tuple[str | None, AnyCommand | Publish]) -> list[str]:
        aside = set_aside_by_name([], map(TopicAside, topics))
        async with EmbeddedEngine(tmp_path, clock=HeldClock(START), set_aside=aside) as engine:
            rows = [row for topic, command in commands for row in await engine.submit(topic, command)]
            return [row.effect.rule for row in rows if isinstance(row.effect, Quarantined)]

    asyncio.run(use([], (BAD, publish(0)), (GOOD, publish(0))))
    path = tmp_path / CHECKPOINT
    _, _, packed = path.read_bytes().partition(b"\n")
    saved = msgspec.msgpack.decode(packed, type=_Checkpoint)
    (state,) = damaged([saved.state])
    path.write_bytes(msgspec.msgpack.encode(_Checkpoint(saved.batch, state)))
    with pytest.raises(Exception, match=f"--quarantine-topic {BAD}"):
        asyncio.run(use([]))
    assert asyncio.run(use([BAD], (BAD, publish(1)), (GOOD, publish(1)))) == ["set_aside"]
    assert asyncio.run(use([], (BAD, publish(2)), (GOOD, publish(2)))) == ["set_aside"]


def test_the_commands_that_a_failure_names_have_the_options_that_it_names(tmp_path: Path) -> None:
    from typer.main import get_command

    _, states = folded(LedgerStore(str(tmp_path)), BEFORE, states=[])
    with pytest.raises(FoldError) as failed:
        folded(
            LedgerStore(str(tmp_path)), log(ON_BAD["a publish"], first=len(BEFORE)), states=damaged(states)
        )
    options = set(re.findall(r"--[a-z-]+", str(failed.value)))
    assert options == {"--quarantine", "--quarantine-topic"}
    (named,) = re.findall(r"\(`magnetar (\w+)`, `(\w+)` and `(\w+)` have these options\)", str(failed.value))
    commands: Any = get_command(app)
    for name in named:
        known = {option for each in commands.commands[name].params for option in each.opts}
        assert options <= known, name
