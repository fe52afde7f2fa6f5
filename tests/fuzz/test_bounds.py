"""No record costs more than its bound, see "The most that one record can cost" in docs/operate/security.md.

Random cases, and every field of every command at its edges; and the judge itself, which must see what is wrong.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from msgspec import inspect

from schemas.commands import (
    Ack,
    BrokerConfig,
    EndTxn,
    Flow,
    MessageIdData,
    Publish,
    RedeliverUnacknowledgedMessages,
    Seek,
)
from streaming.broker.broker import Broker
from streaming.broker.config import QuotaPolicy, ServiceConfiguration
from streaming.broker.policies.admin_calls import POLICY_CALLS, QUOTA_TYPES
from tests.broker.kit import START
from tests.examples import examples
from tests.fuzz.cases import (
    DAY,
    NEIGHBOUR,
    SECOND,
    SEGMENTS,
    Builder,
    Load,
    Log,
    Sent,
    batches,
    begun,
    coordinated,
    delayed,
    ended,
    entries,
    key_shared,
    logs,
    messages,
    new_transaction,
    shared,
)
from tests.fuzz.judge import judge_load, judge_log
from tests.fuzz.limits import Finding
from tests.fuzz.values import (
    CONNECTIONS,
    COORDINATOR,
    DEEP,
    KINDS,
    OF_COORDINATORS,
    POOLS,
    TEXTS,
    TOPICS,
    edges_of,
    nested,
)

ROUNDS = 1
TOPIC = TOPICS[0]


@given(logs(most=16, largest=1 << 15))
@settings(max_examples=examples(80), suppress_health_check=list(HealthCheck))
def test_a_log_costs_no_more_than_its_bound(log: Log) -> None:
    judge_log(log)


def test_the_fuzzer_finds_nothing(tmp_path: Path) -> None:
    """The same cases each time; `make fuzz` tries others."""
    words = ["--rounds", str(ROUNDS), "--seed", "0", "--minutes", "4", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "tests.fuzz", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 findings" in done.stdout


# -- every field at its edges -----------------------------------------------------------------------------------------


def swing(**settings: Any) -> Builder:
    """A broker in full swing."""
    log = begun()
    usual_ = {"acknowledgmentAtBatchIndexLevelEnabled": True, "transactionCoordinatorEnabled": True}
    log.add(BrokerConfig(settings={**usual_, **settings}), None)
    batches(log, TOPIC, 10)
    for segment, count in ((shared, 2), (key_shared, 2), (messages, 10), (delayed, 10)):
        segment(log, TOPIC, count)
    new_transaction(log, TOPIC, 0)
    log.now += SECOND
    return log


def usual(info: inspect.Type, name: str = "") -> Any:
    """The first usual value of a type."""
    match info:
        case inspect.Metadata():
            return usual(info.type, name)
        case _ if name in POOLS:
            return POOLS[name][0]
        case inspect.StructType():
            tag = {} if info.tag is None else {str(info.tag_field): info.tag}
            return tag | {
                each.encode_name: usual(each.type, each.encode_name) for each in info.fields if each.required
            }
        case inspect.LiteralType():
            return info.values[-1]
        case inspect.UnionType():
            return usual(info.types[0], name)
        case inspect.ListType():
            return []
        case inspect.BoolType():
            return True
        case inspect.StrType():
            return "x"
        case inspect.BytesType():
            return b""
        case _:
            return 1


def longest(info: inspect.Type, size: int) -> list[Any]:
    """Values of a type of about `size` bytes, and at its edges."""
    match info:
        case inspect.Metadata():
            return longest(info.type, size)
        case inspect.UnionType():
            return [value for each in info.types for value in longest(each, size)]
        case inspect.ListType():
            item = usual(info.item_type)
            inside = longest(info.item_type, size) if isinstance(info.item_type, inspect.StructType) else []
            return [[item] * (size // len(msgspec.json.encode(item))), *([value] for value in inside)]
        case inspect.DictType():
            return [{f"{number:x}": usual(info.value_type) for number in range(size // 8)}]
        case inspect.StrType():
            return ["x" * size, "é" * (size // 2), *TEXTS]
        case inspect.BytesType():
            return ["A" * (size // 4 * 4)]
        case inspect.IntType():
            return [-(2**63), -1, 0, 2**31 - 1, 2**31, 10**14, 2**63 - 1, 2**64 - 1]
        case inspect.AnyType():
            return [nested(100), [0] * (size // 2), {str(number): 0 for number in range(size // 8)}]
        case inspect.StructType():
            return [
                usual(info) | {field.encode_name: value}
                for field in info.fields
                for value in longest_of(field.type, info, size)
            ]
        case _:
            return []


def longest_of(field: inspect.Type, holder: inspect.StructType, size: int) -> list[Any]:
    """As `longest`; a struct that holds itself ends here."""
    types = field.types if isinstance(field, inspect.UnionType) else (field,)
    return [value for each in types if each is not holder for value in longest(each, size)]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_field_of_a_command_at_its_edges(kind: str) -> None:
    log = swing()
    trees = longest(inspect.type_info(KINDS[kind]), 1 << 16)
    values = [
        msgspec.json.encode({"connection": "x"} | tree if kind != "PUBLISH" else tree) for tree in trees
    ]
    if kind == "ACK":
        own = [in_transaction(tree, entry) for entry, tree in enumerate(trees)]
        values += [msgspec.json.encode({"connection": "x"} | each) for each in own]
        messages(log, TOPIC, len(trees))
    topic = COORDINATOR if kind in OF_COORDINATORS else TOPIC
    for value in values:  # with a producer and a consumer, whatever came of the record before
        entries(log, TOPIC, 0)
        log.subscribe(TOPIC, "s", "Shared", 1, 0)
        log.log.append(Sent(log.now, topic, value))
    used = use(log, 30 + (len(values) if kind == "SEND" else 0))
    judge_log(ended(log, SECOND), tail=3 * len(values) + used + 2)


def in_transaction(ack: dict[str, Any], entry: int) -> dict[str, Any]:
    """An ACK, in transaction (0,0), of parts of an entry that no other one names."""
    there = {"ledgerId": 1, "entryId": entry}
    ids = [{"ack_set": [1]} | each | there for each in ack.get("message_id", [{}])]
    return ack | {"txnid_most_bits": 0, "txnid_least_bits": 0, "message_id": ids}


def use(log: Builder, count: int = 30) -> int:
    """Uses the first `count` entries: acks in batches, redelivery, seeks, stats and loading. Gives the number of records."""
    before = len(log.log)
    for connection in CONNECTIONS[:2]:
        consumer: dict[str, Any] = {"connection": connection, "consumer_id": 1}
        for entry in range(count):
            log.add(
                Ack(**consumer, ack_type="Individual", message_id=[MessageIdData(1, entry, ack_set=[1])]),
                TOPIC,
            )
        log.add(RedeliverUnacknowledgedMessages(**consumer), TOPIC)
        log.add(Flow(**consumer, messagePermits=100), TOPIC)
        log.add(Seek(**consumer, request_id=1, message_id=MessageIdData(1, 3, ack_set=[4])), TOPIC)
    for entry in range(count):
        position = {"ledgerId": 1, "entryId": entry, "batchIndex": 0, "excluded": True}
        log.admin(TOPIC, "POST", "/subscription/s/resetcursor", position)
    coordinated(log, EndTxn(connection="x", request_id=1, txn_action="ABORT"))
    log.admin(TOPIC, "GET", "/stats")
    log.admin(TOPIC, "PUT", "/unload")
    log.publish(TOPIC)
    return len(log.log) - before


NUMBERS = [-1, 0, 1e-9, 1, 1000, 10**7, 2**31 - 1, 10**12, 10**15]
SETTINGS = [
    name
    for name in ServiceConfiguration.__struct_fields__
    if type(getattr(ServiceConfiguration(), name)) in (int, float)
]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_at_its_edges(name: str) -> None:
    for value in {*NUMBERS, *edges_of(name)}:
        log = swing(**{"ttlDurationDefaultInSeconds": 60, "brokerDeduplicationEnabled": True, name: value})
        use(log)
        key_shared(log, TOPIC, 2)
        judge_log(ended(log, 366 * DAY))


@pytest.mark.parametrize("name", sorted({name: None for name, _ in POLICY_CALLS.values()}))
def test_every_policy_at_its_edges(name: str) -> None:
    for value in NUMBERS:
        log = swing()
        log.admin(TOPIC, "POST", f"/{name}", value)
        use(log)
        judge_log(ended(log, 366 * DAY))


@pytest.mark.parametrize("type_", QUOTA_TYPES)
@pytest.mark.parametrize("policy", get_args(QuotaPolicy))
def test_every_quota_at_its_edges(type_: str, policy: str) -> None:
    for value in NUMBERS:
        log = swing()
        body = {"limitSize": value, "limitTime": value, "policy": policy}
        log.admin(TOPIC, "POST", f"/backlogQuota?backlogQuotaType={type_}", body)
        use(log)
        judge_log(ended(log, 366 * DAY))


@pytest.mark.parametrize("depth", [100, 5_000, 100_000])
@pytest.mark.parametrize("form", sorted(DEEP))
def test_nesting(form: str, depth: int) -> None:
    begin, end = DEEP[form]
    deep = begin * depth + b"{}" + end * depth
    log = swing()
    for value in (deep, b'{"command":"ADMIN","method":"POST","path":"/namespaces/a/b/x","body":%s}' % deep,
                  b'{"command":"SEEK","consumer_id":1,"request_id":1,"message_id":%s}' % deep,
                  b"\x84\xa7command\xa5ADMIN\xa6method\xa3PUT\xa4path\xa2/x\xa4body" + deep):  # fmt: skip
        log.log.append(Sent(log.now, TOPIC, value))
    judge_log(ended(log, 0))


# -- loads ------------------------------------------------------------------------------------------------------------

BEFORE: dict[str, list[tuple[str, str, int]]] = {
    "alone": [],
    "consumed": [
        ("shared", TOPIC, 2),
        ("key_shared", TOPIC, 2),
        ("failover", TOPIC, 2),
        ("permits", TOPIC, 2000),
    ],
    "behind": [("shared", TOPIC, 2), ("key_shared", TOPIC, 2), ("messages", TOPIC, 50)],
}


@pytest.mark.parametrize("before", sorted(BEFORE))
@pytest.mark.parametrize("grows", sorted(SEGMENTS))
def test_a_load_costs_in_proportion(grows: str, before: str) -> None:
    settings_: dict[str, Any] = {
        "ttlDurationDefaultInSeconds": 30 * 86_400,
        "acknowledgmentAtBatchIndexLevelEnabled": True,
        "transactionCoordinatorEnabled": True,
    }
    load = Load(settings_, BEFORE[before], (grows, TOPIC), [("messages", TOPIC, 4)], 366 * DAY)
    judge_load(load, {"delayed": 1500, "queued": 60}.get(grows, 150))


@pytest.mark.parametrize("count", [50, 300])
def test_a_silence_in_which_little_happens_on_a_topic_with_many_subscriptions(count: int) -> None:
    log = begun()
    SEGMENTS["subscriptions"](log, TOPIC, count)
    log.subscribe(TOPIC, "read", "Shared", 1, 1000)
    SEGMENTS["hourly"](log, TOPIC, 60)
    judge_log(ended(log, 366 * DAY))


# -- the judge --------------------------------------------------------------------------------------------------------


def busy(broker: Broker) -> None:
    for _ in range(100_000):
        len("")


def big(broker: Broker) -> None:
    _ = b"x" * (80 << 20)


def slow(broker: Broker) -> None:
    int("7" * 4000) ** 500  # a few calls


def endless(broker: Broker) -> None:
    while True:
        pass


def failing(broker: Broker) -> None:
    raise RecursionError


@pytest.mark.parametrize(
    ("harm", "name"),
    [(busy, "calls of PUBLISH"), (big, "bytes of memory of PUBLISH"), (slow, "seconds of PUBLISH"),
     (endless, "hang at PUBLISH"), (failing, "RecursionError in broker.apply")],
)  # fmt: skip
def test_the_judge_sees(monkeypatch: pytest.MonkeyPatch, harm: Callable[[Broker], None], name: str) -> None:
    apply = Broker.apply

    def harmed(
        self: Broker, offset: int, timestamp: int, topic: str | None, command: Any, value: bytes
    ) -> None:
        if isinstance(command, Publish) and command.producer == "bad":
            harm(self)
        apply(self, offset, timestamp, topic, command, value)

    log = swing()
    judge_log(ended(log, 0))
    monkeypatch.setattr(Broker, "apply", harmed)
    log.add(Publish(producer="bad", sequence_id=1), TOPIC)
    with pytest.raises(Finding) as found:
        judge_log(ended(log, 0))
    assert found.value.name.startswith(name.split(" in ")[0])


def test_the_judge_sees_a_record_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    log = swing()
    apply = Broker.apply

    def deaf(
        self: Broker, offset: int, timestamp: int, topic: str | None, command: Any, value: bytes
    ) -> None:
        if value != b"?":
            apply(self, offset, timestamp, topic, command, value)

    monkeypatch.setattr(Broker, "apply", deaf)
    log.log.append(Sent(START, TOPIC, b"?"))
    with pytest.raises(Finding, match="refused and left no row"):
        judge_log(ended(log, 0))


def test_the_judge_sees_what_spreads(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Broker.apply

    def spreading(
        self: Broker, offset: int, timestamp: int, topic: str | None, command: Any, value: bytes
    ) -> None:
        apply(self, offset, timestamp, NEIGHBOUR if b'"bad"' in value else topic, command, value)

    log = swing()
    monkeypatch.setattr(Broker, "apply", spreading)
    log.add(Publish(producer="bad", sequence_id=1), TOPIC)
    with pytest.raises(Finding, match="neighbour"):
        judge_log(ended(log, 0))
