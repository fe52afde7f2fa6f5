"""Positions in recorded commands are translated when a log is replayed under other policies."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.commands import (
    Ack,
    AddPartitionToTxn,
    Admin,
    AnyCommand,
    BrokerConfig,
    Decoded,
    EndTxn,
    Fault,
    Flow,
    MessageIdData,
    NewTxn,
    Publish,
    RedeliverUnacknowledgedMessages,
    Seek,
    Send,
    Subscribe,
    SubType,
    TcClientConnectRequest,
    to_json,
)
from schemas.effects import Row, SendReceipt
from schemas.records import Coordinates
from sinks.tables import read_table
from streaming.broker.broker import Broker
from streaming.broker.names import COORDINATOR_ASSIGN, partition_of
from streaming.broker.position import EARLIEST, Position
from streaming.fold.records import BrokerType
from streaming.jobs.replay import BASELINE, replay_in_process
from streaming.log.positions import WrittenEntries, WrittenEntry, find, translate
from streaming.log.translation import TrackingBroker, Translation
from tests.broker.kit import START, Stored, feed
from tests.broker.test_cut_invariance import Record, prelude, record, settings_of_a_broker
from tests.examples import examples
from tests.spark.helpers import log_of

# ---- which publish wrote which entry

RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 5)), max_size=8)
"""Publishes without an entry before it, ledgers passed over before it, and entries, of each run."""


def entries_of(runs: list[tuple[int, int, int]]) -> tuple[WrittenEntries, list[WrittenEntry]]:
    found, model = WrittenEntries(), list[WrittenEntry]()
    ledger, entry = 1, 0
    for gap, passed, count in runs:
        found.publishes += gap
        ledger, entry = ledger + passed, 0 if passed else entry
        for _ in range(count):
            model.append(WrittenEntry(found.publishes, Position(ledger, entry)))
            found.add(*model[-1])
            found.publishes, entry = found.publishes + 1, entry + 1
    return found, model


@given(RUNS)
def test_runs_are_as_good_as_single_entries(runs: list[tuple[int, int, int]]) -> None:
    written, model = entries_of(runs)
    encoded = written.encode()
    assert len(encoded) <= 40 + 32 * len(runs)
    written = WrittenEntries.decode(encoded)
    assert written.last == (model[-1].position if model else EARLIEST)
    end = written.publishes
    for number in range(-1, end + 1):
        assert written.last_up_to(number) == last(each for each in model if each.number <= number)
        for limit in (end, number + 2):
            after = (each for each in model if number < each.number < limit)
            assert written.first_after(number, limit) == next(after, None)
    for position in (Position(ledger, entry) for ledger in range(20) for entry in range(-1, 45)):
        for limit in (end, end // 2):
            early = (each for each in model if each.number < limit)
            found = last(each for each in early if each.position <= position)
            assert written.last_at(position, limit) == found


def last(entries: Iterable[WrittenEntry]) -> WrittenEntry | None:
    return max(entries, default=None)


# ---- single commands

BASELINE_RUNS, OWN_RUNS = [(0, 0, 4), (0, 1, 4)], [(1, 0, 2), (2, 0, 1)]
"""Eight publishes. The log's own run put them into ledgers 1 and 2; under the policies, ledger 1 has those numbered 1, 2, 5."""


def translated(command: Any) -> tuple[Any, bool]:
    baseline, own = entries_of(BASELINE_RUNS)[0], entries_of(OWN_RUNS)[0]
    own.publishes = baseline.publishes
    return translate(command, baseline, own)


def at(ledger: int, entry: int, **fields: Any) -> MessageIdData:
    return MessageIdData(ledger, entry, **fields)


def ack(*ids: MessageIdData, kind: Any = "Individual") -> Ack:
    return Ack(connection="c", consumer_id=1, ack_type=kind, message_id=list(ids))


def redeliver(*ids: MessageIdData) -> RedeliverUnacknowledgedMessages:
    return RedeliverUnacknowledgedMessages(connection="c", consumer_id=1, message_ids=list(ids))


def seek(to: MessageIdData | None, **fields: Any) -> Seek:
    return Seek(connection="c", consumer_id=1, request_id=1, message_id=to, **fields)


def read_from(start: MessageIdData, *, durable: bool = False) -> Subscribe:
    return Subscribe(
        connection="c", consumer_id=1, request_id=1, subscription="s", subType="Exclusive", durable=durable, start_message_id=start
    )  # fmt: skip


def call(method: Any, path: str, body: Any = None) -> Admin:
    return Admin(method=method, path=f"/persistent/public/default/t{path}", body=body)


def body(ledger: int, entry: int, **fields: Any) -> dict[str, Any]:
    return {"ledgerId": ledger, "entryId": entry, **fields}


RESET, CREATE, EXPIRE = "/subscription/s/resetcursor", "/subscription/s", "/subscription/s/expireMessages"
MINUS_ONE = 2**64 - 1
AS_IT_IS = object()


@pytest.mark.feature("I1")
@pytest.mark.parametrize(
    ("command", "expected", "complete"),
    [
        # A batch stays one.
        (ack(at(1, 1, batch_index=3, ack_set=[8], partition=2)), ack(at(1, 0, batch_index=3, ack_set=[8], partition=2)), True),
        (ack(at(1, 0), at(1, 2), at(2, 1), at(2, 3)), ack(at(1, 1), at(1, 2)), False),
        (ack(at(1, 0), at(9, 9)), None, False),
        (ack(), AS_IT_IS, True),
        (ack(at(2, 1), kind="Cumulative"), ack(at(1, 2), kind="Cumulative"), True),
        (ack(at(2, 3, ack_set=[8]), kind="Cumulative"), ack(at(1, 2), kind="Cumulative"), False),
        (ack(at(1, 0), kind="Cumulative"), None, False),
        (ack(at(9, 9), kind="Cumulative"), None, False),
        (ack(at(2, 9), kind="Cumulative"), None, False),
        (ack(at(MINUS_ONE, MINUS_ONE), kind="Cumulative"), AS_IT_IS, True),
        (ack(at(2**63 - 1, 2**63 - 1), kind="Cumulative"), AS_IT_IS, True),
        (redeliver(at(1, 0), at(1, 1)), redeliver(at(1, 0)), False),
        (redeliver(), AS_IT_IS, True),
        (redeliver(at(1, 0)), None, False),  # an empty list would mean all
        (seek(at(1, 2)), seek(at(1, 1)), True),
        (seek(at(1, 3, ack_set=[8], partition=2)), seek(at(1, 2, partition=2)), False),
        (seek(at(1, 0)), seek(at(-1, -1)), False),
        (seek(at(2, 3)), seek(at(1, 3)), False),
        (seek(at(2, -1)), seek(at(1, 2)), False),
        (seek(at(-1, -1)), AS_IT_IS, True),
        (seek(None, message_publish_time=5), AS_IT_IS, True),
        (read_from(at(2, 1)), read_from(at(1, 2)), True),
        (read_from(at(2, 0)), read_from(at(1, 2)), False),
        (read_from(at(2, 0), durable=True), AS_IT_IS, True),
        (call("POST", RESET, body(2, 1, batchIndex=1, excluded=True)), call("POST", RESET, body(1, 2, batchIndex=1, excluded=True)), True),
        (call("POST", RESET, body(2, 2, batchIndex=1, excluded=True)), call("POST", RESET, body(1, 3, batchIndex=-1, excluded=False)), False),
        (call("POST", RESET, body(-1, -1)), AS_IT_IS, True),
        (call("POST", RESET, {}), AS_IT_IS, True),
        (call("POST", RESET), AS_IT_IS, True),
        (call("POST", RESET, {"ledgerId": "x"}), AS_IT_IS, True),
        (call("POST", f"{RESET}/12"), AS_IT_IS, True),
        (call("PUT", CREATE, body(1, 2)), call("PUT", CREATE, body(1, 1)), True),
        (call("PUT", CREATE), AS_IT_IS, True),
        (call("POST", EXPIRE, body(2, 3)), call("POST", EXPIRE, body(1, 2, batchIndex=-1, excluded=False)), False),
        (call("POST", EXPIRE, body(1, 0)), None, False),
        (call("POST", EXPIRE, body(9, 9)), None, False),
        (call("POST", f"{EXPIRE}/5"), AS_IT_IS, True),
        (call("GET", "/ledger/2/entry/1?x=y"), call("GET", "/ledger/1/entry/2?x=y"), True),
        (call("GET", "/ledger/2/entry/2"), None, False),
        (call("GET", "/stats"), AS_IT_IS, True),
        (call("POST", "/messageTTL", 5), AS_IT_IS, True),
    ],
)  # fmt: skip
def test_a_command(command: Any, expected: Any, complete: bool) -> None:
    found = translated(command)
    if expected is AS_IT_IS:
        assert found[0] is command
    assert found == (command if expected is AS_IT_IS else expected, complete)


@pytest.mark.feature("I1")
def test_a_place_between_the_same_entries_stays() -> None:
    """A client may name what is not there: a position at a ledger's border, or one that comes next."""
    baseline, own = entries_of([(0, 0, 4), (0, 1, 2)])[0], entries_of([(0, 0, 4), (0, 1, 1)])[0]
    own.publishes = baseline.publishes
    for unwritten in ((1, -1), (1, 4), (1, 9), (2, -1), (0, 3)):
        assert find(Position(*unwritten), baseline, own).position == unwritten
    for beyond in ((2, 2), (3, 0), (9, 9)):
        assert find(Position(*beyond), baseline, own) == (None, (2, 0), True)
        assert find(Position(*beyond), baseline, baseline).position == beyond
    baseline.publishes = 3  # as at a command that comes after three publishes
    assert find(Position(1, 3), baseline, entries_of([(0, 0, 3)])[0]).position == (1, 3)


# ---- random lives

TOPIC = "persistent://public/default/t"
LEDGER: dict[str, Any] = {
    "managedLedgerMaxEntriesPerLedger": 5,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}


class Run(NamedTuple):
    rows: list[Row]
    state: bytes
    commands: list[Decoded]
    """What the plain broker got."""


def fold(log: list[Record], broker: BrokerType, cuts: Iterable[int] = ()) -> Run:
    """The log through a broker, cut before the records at `cuts`."""
    rows, commands = list[Row](), list[Decoded]()
    store, batch, now = Stored(), 0, START
    own, before = broker(0, store), set(cuts)
    apply = Broker.apply

    def spy(self: Any, offset: int, timestamp: int, topic: Any, command: Decoded, value: bytes) -> None:
        commands.append(command)
        apply(self, offset, timestamp, topic, command, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Broker, "apply", spy)
        for offset, (jump, topic, command) in enumerate(log):
            if offset in before:
                own = broker.decode(own.encode(), store)
                store.add([row.effect for row in rows[batch:]])
                batch = len(rows)
            now += jump
            feed(own, offset, now, topic, to_json(command))
            rows += own.take()
    return Run(rows, own.encode(), commands)


def marked(log: list[Record]) -> list[Record]:
    """The log with another payload in each message, of the same length."""

    def of(number: int, command: AnyCommand | Publish) -> AnyCommand | Publish:
        if isinstance(command, Publish | Send):
            return msgspec.structs.replace(command, payload=f"{number:0{len(command.payload)}}")
        return command

    return [(jump, topic, of(number, command)) for number, (jump, topic, command) in enumerate(log)]


def translation(log: list[Record]) -> Translation:
    return Translation.of({0: fold(log, TrackingBroker).state})


LIVES = st.lists(record(), min_size=10, max_size=60)
SLOW = [HealthCheck.too_slow]


@pytest.mark.feature("I1")
@given(settings_of_a_broker(), LIVES)
@settings(max_examples=examples(100), suppress_health_check=SLOW)
def test_nothing_changes_where_positions_are_the_same(configuration: Record, records: list[Record]) -> None:
    log = [configuration, *prelude(), *records]
    plain, found = fold(log, Broker), fold(log, translation(log))
    assert found.rows == plain.rows
    assert found.commands == plain.commands
    assert Translation.unmatched([found.state]) == 0


@pytest.mark.feature("I1", "L2")
def test_a_marker_is_the_entry_of_no_publish() -> None:
    coordinator = partition_of(COORDINATOR_ASSIGN, 0)
    parts = AddPartitionToTxn(connection="c", request_id=3, partitions=[TOPIC])
    requests: list[AnyCommand] = [
        TcClientConnectRequest(connection="c", request_id=1, tc_id=0),
        NewTxn(connection="c", request_id=2, txn_ttl_seconds=60_000),
        parts,
        EndTxn(connection="c", request_id=4),
    ]
    messages = [
        Publish(producer="a", sequence_id=number, payload=size * "x")
        for number, size in enumerate([1, 99, 1])
    ]
    config = BrokerConfig(settings={"transactionCoordinatorEnabled": True, "maxMessageSize": 10})
    log: list[Record] = [(0, None, config), (0, TOPIC, messages[0])]
    log += [(0, coordinator, each) for each in requests]
    log += [(0, TOPIC, each) for each in messages[1:]]
    run = fold(log, TrackingBroker)
    written = WrittenEntries.decode(Translation.of({0: run.state}).baselines[0][TOPIC])
    assert [written.at(Position(1, entry)) for entry in range(3)] == [(0, (1, 0)), None, (2, (1, 2))]


@pytest.mark.feature("I1", "J3")
@given(settings_of_a_broker(), settings_of_a_broker(), LIVES, st.sets(st.integers(1, 60), max_size=8))
@settings(max_examples=examples(60), suppress_health_check=SLOW)
def test_batches_do_not_show(own: Record, other: Record, records: list[Record], cuts: set[int]) -> None:
    log = [own, *prelude(), *records]
    follow = translation(log)
    assert Translation.of({0: fold(log, TrackingBroker, cuts).state}) == follow
    log[0] = other
    whole, parts = fold(log, follow), fold(log, follow, cuts)
    assert parts.rows == whole.rows
    assert parts.commands == whole.commands
    assert Translation.unmatched([parts.state]) == Translation.unmatched([whole.state])


def faults() -> st.SearchStrategy[AnyCommand | Publish]:
    message = Publish(producer="a", sequence_id=0, payload="1234")
    too_large = Publish(producer="b", sequence_id=0, payload="12345678901")
    unload = Admin(method="PUT", path="/persistent/public/default/t/unload")
    names: Any = ["DelayWrites", "CompleteWrites", "CompleteWrites", "FailWrites", "LoseWrites"]
    fates: list[Any] = [Fault(fault=name, count=count) for name in names for count in (1, 1, 2, 0)]
    delay = Fault(fault="DelayWrites", count=9)
    return st.sampled_from([*[message] * 16, *[too_large] * 3, *[delay] * 3, *fates, unload])


@given(st.lists(faults(), min_size=20, max_size=40), st.sets(st.integers(1, 40), max_size=4))
@settings(max_examples=examples(200))
def test_writes_that_wait_fail_or_are_lost(commands: list[AnyCommand | Publish], cuts: set[int]) -> None:
    """An entry is that of the publish that wrote it, however late it was confirmed."""
    config: dict[str, Any] = {
        "managedLedgerMaxEntriesPerLedger": 3,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
        "maxMessageSize": 9,
    }
    log = marked([(0, None, BrokerConfig(settings=config)), *((1, TOPIC, each) for each in commands)])
    run = fold(log, TrackingBroker, cuts)
    numbers = {
        offset: number
        for number, offset in enumerate(
            at for at, (_, _, each) in enumerate(log) if isinstance(each, Publish)
        )
    }
    written = Translation.of({0: run.state}).baselines[0].get(TOPIC, WrittenEntries().encode())
    for position, offset in Model(log, run.rows).before(len(log), TOPIC, confirmed=True):
        found = WrittenEntries.decode(written).last_at(position, len(log))
        assert found == WrittenEntry(numbers[offset], position)


class Model:
    """Every message by its payload, from the receipts alone."""

    def __init__(self, log: list[Record], rows: list[Row]) -> None:
        self.entries = [
            (row.effect.topic, Position(row.effect.ledger_id, row.effect.entry_id), row.effect.payload, row.offset)
            for row in rows
            if isinstance(row.effect, SendReceipt) and row.effect.ledger_id > 0
        ]  # fmt: skip

    def before(self, offset: int, topic: str | None, *, confirmed: bool) -> list[tuple[Position, int]]:
        """The entries of messages that were published, or also confirmed, before a record: position, message."""
        return sorted(
            (position, int(payload or b""))
            for name, position, payload, at in self.entries
            if name == topic and int(payload or b"") < offset and (at < offset or not confirmed)
        )


@pytest.mark.feature("I1")
@given(settings_of_a_broker(), settings_of_a_broker(), LIVES)
@settings(max_examples=examples(150), suppress_health_check=SLOW)
def test_a_command_names_the_same_messages(own: Record, other: Record, records: list[Record]) -> None:
    log = marked([own, *prelude(), *records])
    baseline = Model(log, fold(log, Broker).rows)
    follow = translation(log)
    log[0] = other
    run = fold(log, follow)
    variant, unmatched = Model(log, run.rows), 0
    for offset, ((_, topic, command), found) in enumerate(zip(log, run.commands, strict=True)):
        ids = positions(command)
        if ids is None:
            assert found == command
            continue
        theirs = baseline.before(offset, topic, confirmed=False)
        mine = variant.before(offset, topic, confirmed=True)
        expected = [_expected(each, theirs, mine) for each in ids]
        missing = [each for each in ids if _expected(each, theirs, mine)[0] is None]
        unmatched += bool(missing)
        ends = [each.entry >= 0 and (not theirs or each > theirs[-1][0]) for each in ids]
        wanted = [_by_rule(command, *each, beyond) for each, beyond in zip(expected, ends, strict=True)]
        left = [each for each in wanted if each is not None]
        assert positions(found) == (left if left or not ids else None), (offset, command)
    assert Translation.unmatched([run.state]) == unmatched


def _expected(
    named: Position, theirs: list[tuple[Position, int]], mine: list[tuple[Position, int]]
) -> tuple[Position | None, Position | None]:
    """The position of the same message, or of the nearest one before."""
    place = bisect_right(theirs, named, key=lambda each: each[0])
    message = theirs[place - 1][1] if place else -1
    until = bisect_right(sorted(mine, key=lambda each: each[1]), message, key=lambda each: each[1])
    before = mine[until - 1][0] if until else None
    if place and theirs[place - 1][0] == named:
        return next((position for position, each in mine if each == message), None), before
    around = [theirs[place - 1 : place], theirs[place : place + 1]]
    here = bisect_left(mine, named, key=lambda each: each[0])
    same = around == [mine[here - 1 : here] if here else [], mine[here : here + 1]]
    return named if same else None, before


def _by_rule(
    command: Any, position: Position | None, before: Position | None, beyond: bool
) -> Position | None:
    """`beyond`: the position is that of an entry after the last one in the log's own run."""
    if position is not None:
        return position
    if isinstance(command, Ack):
        return before if command.ack_type == "Cumulative" and not beyond else None
    if isinstance(command, RedeliverUnacknowledgedMessages):
        return None
    if isinstance(command, Admin) and command.path.endswith("expireMessages"):
        return None if beyond else before
    return EARLIEST if before is None else before.next()


def positions(command: Any) -> list[Position] | None:
    """What a command names, or None if it is of a kind that names nothing."""
    match command:
        case Ack(message_id=ids) | RedeliverUnacknowledgedMessages(message_ids=ids):
            return [Position(each.ledgerId, each.entryId) for each in ids]
        case Seek(message_id=MessageIdData() as to):
            return [Position(to.ledgerId, to.entryId)]
        case Admin(body={"ledgerId": int(ledger), "entryId": int(entry)}):
            return [Position(ledger, entry)]
    return None


# ---- what it is for

GROUPS: dict[str, SubType] = {"one": "Shared", "some": "Shared", "upto": "Exclusive"}
QUOTA: dict[str, Any] = {"backlogQuotaDefaultLimitBytes": 300, "backlogQuotaCheckIntervalInSeconds": 1}
POLICIES: list[dict[str, Any]] = [
    {"maxMessageSize": 60},
    {"brokerDeduplicationEnabled": True},
    {"managedLedgerMaxEntriesPerLedger": 3},
    {"maxProducersPerTopic": 1},
    QUOTA,
    QUOTA | {"backlogQuotaDefaultRetentionPolicy": "producer_exception"},
]


def acks(group: str, ids: list[MessageIdData]) -> list[Ack]:
    """The acks of a consumer: each message for itself, several at a time, or all up to the last one."""
    kind: Any = "Cumulative" if group == "upto" else "Individual"
    parts = {"one": [[each] for each in ids], "some": [ids], "upto": [ids[-1:]]}[group]
    return [Ack(connection=group, consumer_id=1, ack_type=kind, message_id=part) for part in parts]


MESSAGES = st.tuples(st.sampled_from("ab"), st.sampled_from([1, 80]), st.booleans(), st.integers(0, 4))
"""The producer, the size of the payload, whether it is sent twice, and how many messages are acked afterwards."""


def traffic(messages: list[tuple[str, int, bool, int]]) -> list[Record]:
    """Messages, all of which three subscriptions ack sooner or later, by the positions of the log's own run."""
    log: list[Record] = [(0, None, BrokerConfig(settings=LEDGER))]
    for group, type_ in GROUPS.items():
        log.append(
            (
                0,
                TOPIC,
                Subscribe(connection=group, consumer_id=1, request_id=1, subscription=group, subType=type_),
            )
        )
        log.append((0, TOPIC, Flow(connection=group, consumer_id=1, messagePermits=1000)))
    waiting: list[MessageIdData] = []
    written = 0
    for number, (producer, size, twice, acked) in enumerate([*messages, ("a", 1, False, 1000)]):
        for _ in range(1 + twice):
            log.append((500, TOPIC, Publish(producer=producer, sequence_id=number, payload="x" * size)))
            waiting.append(MessageIdData(1 + written // 5, written % 5))
            written += 1
        ids, waiting = waiting[:acked], waiting[acked:]
        log += [(500, TOPIC, each) for group in GROUPS if ids for each in acks(group, ids)]
    return log


@pytest.mark.feature("I1")
@given(st.lists(MESSAGES, max_size=25), st.sampled_from(POLICIES))
@settings(max_examples=examples(100), suppress_health_check=SLOW)
def test_what_the_log_acked_is_no_backlog(
    messages: list[tuple[str, int, bool, int]], policy: dict[str, Any]
) -> None:
    log = traffic(messages)
    follow = translation(log)
    assert backlogs(fold(log, TrackingBroker).state) == {0}
    log[0] = (0, None, BrokerConfig(settings=LEDGER | policy))
    assert backlogs(fold(log, follow).state) == {0}


def backlogs(state: bytes) -> set[int]:
    broker = TrackingBroker.decode(state, Stored())
    return {row["backlog"] for row in broker.stats() if row["subscription"] is not None}


@pytest.mark.feature("I1", "J3")
def test_a_replay_under_policies_that_refuse(tmp_path: Path) -> None:
    """Every third message is too large for the policies. Its acks are left out, and so the others are what is acked."""
    log = traffic([("a", 80 if number % 3 == 0 else 1, False, 1) for number in range(30)])
    records = log_of(
        *((START + at, topic, msgspec.to_builtins(command)) for at, (_, topic, command) in enumerate(log))
    )
    policies = log_of((0, None, msgspec.to_builtins(BrokerConfig(settings={"maxMessageSize": 60}))))
    seen: list[tuple[int, int, int]] = []
    results = [
        replay_in_process(
            records, tmp_path / str(batches), policies=policies, batches=batches, partitions=2,
            progress=lambda *now: seen.append(now),
        )
        for batches in (1, 2, 7, len(log) + 5)
    ]  # fmt: skip
    assert [now[:2] for now in seen[:6]] == [(1, 2), (2, 2), (1, 4), (2, 4), (3, 4), (4, 4)]
    for result in results:
        assert not (result.out / BASELINE).exists()
        assert result.unmatched == 30
        assert {row["backlog"] for row in result.stats} == {0}
        assert (result.rows, result.stats) == (results[0].rows, results[0].stats)
        assert read_table(str(result.out / "tables")) == read_table(str(results[0].out / "tables"))


def test_a_record_set_aside_is_so_in_both_folds(tmp_path: Path) -> None:
    """The position after it is the next message's in the log's own run, which is what its ack names."""
    message = {"producer": "p", "payload": "x"}
    acked: dict[str, Any] = msgspec.to_builtins(acks("one", [MessageIdData(1, 1)])[0])
    subscribe = Subscribe(connection="one", consumer_id=1, request_id=1, subscription="one", subType="Shared")
    commands = [msgspec.to_builtins(subscribe), *(message | {"sequence_id": n} for n in range(3)), acked]
    records = log_of(*((START, TOPIC, each) for each in commands))
    policies = log_of((0, None, {"command": "BROKER_CONFIG", "settings": {"maxMessageSize": 60}}))
    result = replay_in_process(
        records, tmp_path / "out", policies=policies, partitions=1, set_aside=[Coordinates(0, 2)]
    )
    assert (result.unmatched, result.rows["QUARANTINED"], result.rows["SEND_RECEIPT"]) == (0, 1, 2)
    assert [row["backlog"] for row in result.stats if row["subscription"]] == [1]


def test_a_log_without_positions_is_folded_once(tmp_path: Path) -> None:
    records = log_of(*((START, TOPIC, {"producer": "p", "sequence_id": n}) for n in range(3)))
    policies = log_of((0, None, {"command": "BROKER_CONFIG", "settings": {"maxMessageSize": 60}}))
    seen: list[int] = []
    replay_in_process(
        records, tmp_path / "out", policies=policies, progress=lambda done, all_, _: seen.append(all_)
    )
    assert seen == [1]


def test_a_log_that_publishes_nothing(tmp_path: Path) -> None:
    """The fold of the log as it is writes no entries."""
    subscribe = Subscribe(connection="one", consumer_id=1, request_id=1, subscription="one", subType="Shared")
    commands = [msgspec.to_builtins(each) for each in (subscribe, *acks("one", [MessageIdData(1, 0)]))]
    records = log_of(*((START, TOPIC, each) for each in commands))
    policies = log_of((0, None, {"command": "BROKER_CONFIG", "settings": {"maxMessageSize": 60}}))
    result = replay_in_process(records, tmp_path / "out", policies=policies)
    assert (result.records, (result.out / BASELINE).exists()) == (2, False)
