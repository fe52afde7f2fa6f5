"""The work that a command makes is proportional to the lengths of its lists, whatever is in them.

Work is counted in bytecode instructions, from the record's bytes to its effects.
"""

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, get_args

import pytest
from msgspec import inspect as types

from schemas import commands as c
from streaming.broker.names import COORDINATOR_ASSIGN
from streaming.broker.persistent.topic import SHADOW_SOURCE
from streaming.quality.gate import gate
from tests.broker.kit import TOPIC, Run
from tests.quality.helpers import SCHEMA, value

SHORT, LONG = 200, 800
COORDINATOR = f"{COORDINATOR_ASSIGN}-partition-0"
MOST = 1.35
"""How much faster than the length the work may grow: sorting and growing tables take a little more."""


def instructions(call: Callable[[], object]) -> int:
    """How many bytecode instructions a call executes."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def work(run: Run, record: bytes) -> int:
    broker = run.broker

    def fold() -> None:
        topic = COORDINATOR if b"_TO_TXN" in record else TOPIC
        (command,) = gate().judge([topic], [record])
        assert not isinstance(command, c.Refused), command
        broker.apply(broker.offset + 1, run.now, topic, command, record)

    return instructions(fold)


# -- what the commands meet


def consuming(n: int, type_: Any = "Shared", **settings: Any) -> Run:
    """A consumer that has `n` batches of two messages, all unacked."""
    run = Run(acknowledgmentAtBatchIndexLevelEnabled=True, **settings)
    run.subscribe("s", type_, permits=4 * n)
    run.create_producer()
    for number in range(n):
        run.send(2 * number, 2 * number + 1)
    run.broker.take()
    return run


def partly_acked(n: int, type_: Any = "Shared", **settings: Any) -> Run:
    run = consuming(n, type_, **settings)
    run.ack("s", *((1, entry) for entry in range(n)), left=[1], size=2)
    return run


def a_shadow_topic(n: int) -> Run:
    run = Run()
    run.admin("PUT", "", {SHADOW_SOURCE: TOPIC})
    return run


def beside_a_sticky_consumer(n: int) -> Run:
    run = Run()
    ranges = [c.IntRange(4 * slot, 4 * slot + 1) for slot in range(1, n)]
    run.subscribe("s", "Key_Shared", keySharedMeta=c.KeySharedMeta("STICKY", ranges))
    return run


def transacting(n: int) -> Run:
    run = Run(transactionCoordinatorEnabled=True)
    run.do(c.TcClientConnectRequest(request_id=1, tc_id=0), COORDINATOR)
    run.do(c.NewTxn(request_id=1, txn_ttl_seconds=60_000), COORDINATOR)
    return run


def quiet(n: int) -> Run:
    return consuming(1)


def in_ledgers_of_two(n: int) -> Run:
    """Many short ledgers: the mark-delete position crosses one with every other ack."""
    return partly_acked(n, managedLedgerMaxEntriesPerLedger=2)


# -- the lists

CONSUMER = {"connection": "s", "consumer_id": 1}


def pairs(n: int) -> list[dict[str, str]]:
    return [{"key": f"k{number}", "value": "v"} for number in range(n)]


def ids(n: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"ledgerId": 1, "entryId": entry, **fields} for entry in range(n)]


def ids_in_ledgers_of_two(n: int) -> list[dict[str, Any]]:
    """The first entry of each ledger before the last one of the ledger before it."""
    order = sorted(range(n), key=lambda entry: entry + 1.5 * (entry % 2))
    return [{"ledgerId": 1 + entry // 2, "entryId": entry % 2} for entry in order]


def ranges(n: int) -> list[dict[str, int]]:
    return [{"start": 4 * slot + 2, "end": 4 * slot + 3} for slot in reversed(range(1, n))]


Case = tuple[str, str, Callable[[int], Run], Callable[[int], bytes]]
CASES: list[Case] = [
    ("Publish.properties", "", quiet, lambda n: value("PUBLISH", properties={f"k{i}": "v" for i in range(n)})),
    ("Connect.feature_flags", "", quiet, lambda n: value("CONNECT", feature_flags={f"k{i}": True for i in range(n)})),
    ("Producer.metadata", "", quiet, lambda n: value("PRODUCER", producer_id=7, metadata=pairs(n))),
    ("Producer.schema.properties", "", quiet, lambda n: value("PRODUCER", schema=SCHEMA | {"properties": pairs(n)})),
    ("Subscribe.metadata", "", quiet, lambda n: value("SUBSCRIBE", metadata=pairs(n))),
    ("Subscribe.schema.properties", "", quiet, lambda n: value("SUBSCRIBE", schema=SCHEMA | {"properties": pairs(n)})),
    ("Subscribe.subscription_properties", "", quiet,
     lambda n: value("SUBSCRIBE", subscription="new", subscription_properties=pairs(n))),
    ("Subscribe.keySharedMeta.hashRanges", "first", quiet,
     lambda n: value("SUBSCRIBE", subscription="new", subType="Key_Shared",
                     keySharedMeta={"keySharedMode": "STICKY", "hashRanges": ranges(n)})),
    ("Subscribe.keySharedMeta.hashRanges", "second", beside_a_sticky_consumer,
     lambda n: value("SUBSCRIBE", subType="Key_Shared",
                     keySharedMeta={"keySharedMode": "STICKY", "hashRanges": ranges(n)})),
    ("Subscribe.keySharedMeta.hashRanges", "Exclusive", quiet,
     lambda n: value("SUBSCRIBE", subscription="new", subType="Exclusive",
                     keySharedMeta={"keySharedMode": "STICKY", "hashRanges": ranges(n)})),
    ("Subscribe.start_message_id.ack_set", "", quiet,
     lambda n: value("SUBSCRIBE", subscription="new", durable=False, start_message_id=ids(1, ack_set=[1] * n)[0])),
    ("Ack.message_id", "in order", consuming, lambda n: value("ACK", **CONSUMER, message_id=ids(n))),
    ("Ack.message_id", "reversed", consuming, lambda n: value("ACK", **CONSUMER, message_id=ids(n)[::-1])),
    ("Ack.message_id", "every other", consuming, lambda n: value("ACK", **CONSUMER, message_id=ids(n)[1::2])),
    ("Ack.message_id", "one", consuming, lambda n: value("ACK", **CONSUMER, message_id=ids(1) * n)),
    ("Ack.message_id", "unknown", consuming,
     lambda n: value("ACK", **CONSUMER, message_id=[{"ledgerId": 0, "entryId": i} for i in range(n)])),
    ("Ack.message_id", "partly", consuming, lambda n: value("ACK", **CONSUMER, message_id=ids(n, ack_set=[1]))),
    ("Ack.message_id", "the rest", partly_acked, lambda n: value("ACK", **CONSUMER, message_id=ids(n))),
    ("Ack.message_id", "short ledgers", in_ledgers_of_two,
     lambda n: value("ACK", **CONSUMER, message_id=ids_in_ledgers_of_two(n))),
    ("Ack.message_id", "Key_Shared", lambda n: consuming(n, "Key_Shared"),
     lambda n: value("ACK", **CONSUMER, message_id=ids(n))),
    ("Ack.message_id", "Exclusive", lambda n: partly_acked(n, "Exclusive"),
     lambda n: value("ACK", **CONSUMER, message_id=ids(n))),
    ("Ack.message_id[].ack_set", "", consuming,
     lambda n: value("ACK", **CONSUMER, message_id=ids(1, ack_set=[-1] * n))),
    ("Ack.properties", "", consuming,
     lambda n: value("ACK", **CONSUMER, properties=[{"key": f"k{i}", "value": i} for i in range(n)])),
    ("RedeliverUnacknowledgedMessages.message_ids", "", lambda n: consuming(n, dispatcherMaxReadBatchSize=10_000),
     lambda n: value("REDELIVER_UNACKNOWLEDGED_MESSAGES", **CONSUMER, message_ids=ids(n))),
    ("RedeliverUnacknowledgedMessages.message_ids", "one", consuming,
     lambda n: value("REDELIVER_UNACKNOWLEDGED_MESSAGES", **CONSUMER, message_ids=ids(1) * n)),
    ("RedeliverUnacknowledgedMessages.message_ids", "unknown", quiet,
     lambda n: value("REDELIVER_UNACKNOWLEDGED_MESSAGES", **CONSUMER, message_ids=ids(n)[1:])),
    ("RedeliverUnacknowledgedMessages.message_ids[].ack_set", "", consuming,
     lambda n: value("REDELIVER_UNACKNOWLEDGED_MESSAGES", **CONSUMER, message_ids=ids(1, ack_set=[1] * n))),
    ("Seek.message_id.ack_set", "", quiet,
     lambda n: value("SEEK", **CONSUMER, message_id=ids(1, ack_set=[-1] * n)[0])),
    ("Send.message_id.ack_set", "", quiet, lambda n: value("SEND", message_id=ids(1, ack_set=[1] * n)[0])),
    ("Send.metadata.properties", "", quiet, lambda n: value("SEND", connection="client", metadata__properties=pairs(n))),
    ("Send.metadata.replicate_to", "", quiet,
     lambda n: value("SEND", connection="client", metadata__replicate_to=["c"] * n)),
    ("Send.metadata.compacted_batch_indexes", "", quiet,
     lambda n: value("SEND", connection="client", metadata__compacted_batch_indexes=list(range(n)))),
    ("Send.metadata.encryption_keys", "", quiet,
     lambda n: value("SEND", connection="client", metadata__encryption_keys=[{"key": "k", "value": ""}] * n)),
    ("Send.metadata.encryption_keys[].metadata", "", quiet,
     lambda n: value("SEND", connection="client",
                     metadata__encryption_keys=[{"key": "k", "value": "", "metadata": pairs(n)}])),
    ("Lookup.properties", "", quiet, lambda n: value("LOOKUP", properties=pairs(n))),
    ("GetOrCreateSchema.schema.properties", "", quiet,
     lambda n: value("GET_OR_CREATE_SCHEMA", schema=SCHEMA | {"properties": pairs(n)})),
    ("Admin.body", "", quiet,
     lambda n: value("ADMIN", method="POST", path="/persistent/public/default/t/retention",
                     body={f"k{i}": i for i in range(n)})),
    ("BrokerConfig.settings", "", quiet,
     lambda n: value("BROKER_CONFIG", settings={f"managedLedger{i}": i for i in range(n)})),
    ("Mirror.subscriptions", "new", a_shadow_topic,
     lambda n: value("MIRROR", subscriptions={f"s{i}": {"mark_delete": [1, -1]} for i in range(n)})),
    ("Mirror.producers", "new", a_shadow_topic,
     lambda n: value("MIRROR", producers=[{"connection": f"c{i}", "name": f"p{i}"} for i in range(n)])),
    ("AddPartitionToTxn.partitions", "", transacting,
     lambda n: value("ADD_PARTITION_TO_TXN", partitions=[f"t{i}" for i in range(n)])),
    ("AddSubscriptionToTxn.subscription", "", transacting,
     lambda n: value("ADD_SUBSCRIPTION_TO_TXN", subscription=[{"topic": "t", "subscription": f"s{i}"} for i in range(n)])),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "what", "before", "record"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES]
)
def test_work_grows_like_the_list(
    field: str, what: str, before: Callable[[int], Run], record: Callable[[int], bytes]
) -> None:
    short, long = (work(before(n), record(n)) for n in (SHORT, LONG))
    assert long <= short * LONG / SHORT * MOST


def lists(type_: types.Type, path: str) -> Iterator[str]:
    match type_:
        case types.Metadata(type=plain):
            yield from lists(plain, path)
        case types.UnionType(types=members):
            for member in members:
                yield from lists(member, path)
        case types.ListType(max_length=3):
            pass  # never long
        case types.ListType(item_type=item):
            yield path
            yield from lists(item, f"{path}[]")
        case types.DictType():
            yield path
        case types.StructType(fields=inner):
            for field in inner:
                yield from lists(field.type, f"{path}.{field.name}")


def test_all_lists_are_here() -> None:
    found = {
        path
        for kind in (c.Publish, *get_args(c.AnyCommand))
        for path in lists(types.type_info(kind), kind.__name__)
    }
    unused = {path for path in found if ".first_chunk_message_id." in path or path.startswith("Admin.body[")}
    assert {case[0] for case in CASES} == found - unused
