"""Every integer of a command, at its edges: the broker goes on, and every effect can be encoded, as a row and as a frame."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pyarrow as pa
import pytest

from schemas import commands as c
from schemas.commands import AnyCommand, Publish, Refused, Tick, decode_or_refuse
from schemas.effects import KINDS, Effect, ProducerSuccess, Row
from schemas.outputs import SCHEMAS
from sinks.rows import to_tables
from streaming.broker.broker import Broker
from streaming.protocol.codec import encode, entry
from streaming.protocol.frames import frame
from streaming.quality.gate import judge
from tests.broker.kit import START, TOPIC, Run, Stored

pytestmark = pytest.mark.feature("J6")

EDGES = (-(2**63), -(2**31), -1, 0, 1, 2**31 - 1, 2**31, 2**53, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1)
PARTITIONED = f"{TOPIC}-partition-{2**40}"

COMMON: dict[str, Any] = {
    "connection": "c", "producer_id": 1, "consumer_id": 1, "request_id": 1, "producer": "p", "sequence_id": 1, "subscription": "s",
    "subType": "Exclusive", "messagePermits": 1, "ack_type": "Individual", "method": "GET", "check": "messageExpiry",
    "fault": "DelayWrites", "producer_name": "q", "publish_time": START, "ledgerId": 1, "entryId": 0, "key": "k", "value": 1,
    "keySharedMode": "STICKY", "start": 0, "end": 10,
}  # fmt: skip
"""Values of the fields that a command must have."""


def examples(type_: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """A structure with each integer of it, and of those in it, at each edge: (which, the fields)."""
    hints = get_type_hints(type_, include_extras=True)
    required = {
        field.name: COMMON[field.name] if field.name in COMMON else default_of(hints[field.name])
        for field in msgspec.structs.fields(type_)
        if field.required
    }
    for name, hint in hints.items():
        for where, value in values(hint):
            yield f"{name}{where}", required | {name: value}


def default_of(hint: Any) -> Any:
    for part in parts(hint):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            hints = get_type_hints(part, include_extras=True)
            return {
                field.name: COMMON[field.name] if field.name in COMMON else default_of(hints[field.name])
                for field in msgspec.structs.fields(part)
                if field.required
            }
    return "/"


def parts(hint: Any) -> Iterator[Any]:
    origin = get_origin(hint)
    if origin is Annotated:
        yield from parts(get_args(hint)[0])
    elif origin in (Union, types.UnionType):
        for each in get_args(hint):
            yield from parts(each)
    else:
        yield hint


def values(hint: Any) -> Iterator[tuple[str, Any]]:
    for part in parts(hint):
        if part is int:
            yield from ((f"={edge}", edge) for edge in EDGES)
        elif get_origin(part) is list:
            yield from ((f"[]{where}", [value]) for where, value in values(get_args(part)[0]))
        elif isinstance(part, type) and issubclass(part, msgspec.Struct):
            yield from ((f".{where}", fields) for where, fields in examples(part))


COMMANDS = {each.__struct_config__.tag or "short form": each for each in (*get_args(AnyCommand), Publish)}


class Watched(Run):
    """A broker each of whose effects is encoded in every way."""

    def __init__(self, **settings: Any) -> None:
        self.store = Stored()
        super().__init__(reader=self.store, **settings)

    def raw(self, value: bytes, topic: str | None = TOPIC) -> list[Effect]:
        (command,) = judge([topic], [value])
        self.broker.apply(self.broker.offset + 1, self.now, topic, command, value)
        rows = self.broker.take()
        encoded(rows, self.store)
        return [row.effect for row in rows]


def encoded(rows: list[Row], store: Stored) -> None:
    to_tables(0, rows)
    store.add([row.effect for row in rows])
    for row in rows:
        found = frame(
            row.effect, lambda topic, ledger, id_: (store.entries[topic, ledger, id_].metadata, b"")
        )
        if found is not None and not found.cmd.startswith("_"):
            tail = b"" if found.metadata is None else entry(found.metadata, found.payload or b"")
            encode(found.cmd, found.fields, tail)


def goes_on(run: Watched, topic: str) -> None:
    """All can be done after it, and the state can be read again."""
    for mode in ("Shared", "ExclusiveWithFencing", "WaitForExclusive"):
        run.create_producer(f"new {mode}", 90, connection="new", topic=topic, producer_access_mode=mode)
        run.lose("new")
    run.publish(run.request(), "fresh", topic)
    run.do(
        c.Subscribe(connection="r", subscription="r", subType="Shared", consumer_id=1, request_id=1, initialPosition="Earliest"),
        topic,
    )  # fmt: skip
    run.do(c.Flow(connection="r", consumer_id=1, messagePermits=1000), topic)
    run.do(c.GetLastMessageId(connection="r", consumer_id=1, request_id=1), topic)
    run.admin("GET", "/stats", topic=topic)
    run.admin("GET", "/internalStats", topic=topic)
    run.now += 1000
    run.do(Tick(), None)
    run.broker = Broker.decode(run.broker.encode(), run.store)
    run.admin("PUT", "/unload", topic=topic)
    run.now += 86_400_000
    run.do(Tick(), None)
    run.broker.stats()
    Broker.decode(run.broker.encode(), run.store)


def lively(topic: str) -> Watched:
    run = Watched(acknowledgmentAtBatchIndexLevelEnabled=True, brokerDeduplicationEnabled=True)
    for number in range(3):
        run.publish(number, "before", topic)
    run.create_producer("q", 1, connection="c", topic=topic)
    subscribe = c.Subscribe(
        connection="c",
        subscription="s",
        subType="Exclusive",
        consumer_id=1,
        request_id=1,
        initialPosition="Earliest",
    )
    run.do(subscribe, topic)
    run.do(c.Flow(connection="c", consumer_id=1, messagePermits=1), topic)
    return run


@pytest.mark.parametrize(
    "topic", [TOPIC, "non-persistent://public/default/t", PARTITIONED], ids=["t", "np", "part"]
)
@pytest.mark.parametrize("tag", COMMANDS)
def test_every_integer_at_its_edges(tag: str, topic: str) -> None:
    before: bytes | None = None
    seen = 0
    for where, fields in examples(COMMANDS[tag]):
        value = to_json_of(tag, fields)
        if isinstance(decode_or_refuse(value), Refused):
            continue  # the decoder has no such number
        run = lively(topic)
        before = before or run.broker.encode()
        for mode in ("Exclusive",) if "topic_epoch" in where else (None,):
            given = (
                fields
                if mode is None
                else fields | {"producer_access_mode": mode, "producer_id": 5, "connection": "d"}
            )
            if mode is not None:
                run.lose("c")
            try:
                run.raw(
                    to_json_of(tag, given),
                    None if tag in ("BROKER_CONFIG", "CONNECTION_LOST", "TICK", "RUN_CHECK") else topic,
                )
                goes_on(run, topic)
            except Exception as error:
                raise AssertionError(f"{tag} {where}: {error!r}") from error
        seen += 1
    assert seen or tag in ("CONNECTION_LOST", "ADMIN", "BROKER_CONFIG", "TICK", "RUN_CHECK", "RESTART")


def to_json_of(tag: str, fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode(fields if tag == "short form" else {"command": tag} | fields)


BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/messageTTL"): lambda n: n,
    ("POST", "/retention"): lambda n: {"retentionTimeInMinutes": n, "retentionSizeInMB": n},
    ("POST", "/backlogQuota"): lambda n: {"limitSize": n, "limitTime": n, "policy": "consumer_backlog_eviction"},
    ("POST", "/dispatchRate"): lambda n: {
        "dispatchThrottlingRateInMsg": n, "dispatchThrottlingRateInByte": n, "ratePeriodInSecond": n, "relativeToPublishRate": True,
    },
    ("POST", "/subscriptionDispatchRate"): lambda n: {
        "dispatchThrottlingRateInMsg": n, "dispatchThrottlingRateInByte": n, "ratePeriodInSecond": 1, "relativeToPublishRate": True,
    },
    ("POST", "/publishRate"): lambda n: {"publishThrottlingRateInMsg": n, "publishThrottlingRateInByte": n},
    ("POST", "/subscribeRate"): lambda n: {"subscribeThrottlingRatePerConsumer": n, "ratePeriodInSecond": n},
    ("POST", "/inactiveTopicPolicies"): lambda n: {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": n, "deleteWhileInactive": True,
    },
    ("POST", "/delayedDelivery"): lambda n: {"active": True, "tickTime": n, "maxDeliveryDelayInMillis": n},
    ("POST", "/deduplicationSnapshotInterval"): lambda n: n,
    ("POST", "/maxMessageSize"): lambda n: n,
    ("POST", "/maxProducers"): lambda n: n,
    ("PUT", "/subscription/new"): lambda n: {"ledgerId": n, "entryId": n, "excluded": True},
    ("POST", "/subscription/s/resetcursor"): lambda n: {"ledgerId": 1, "entryId": n, "excluded": True},
    ("POST", "/subscription/s/resetcursor#"): lambda n: {"ledgerId": n, "entryId": n, "batchIndex": n, "excluded": True},
    ("POST", "/subscription/s/expireMessages"): lambda n: {"ledgerId": n, "entryId": n, "excluded": True},
}  # fmt: skip


@pytest.mark.parametrize(("method", "call"), BODIES)
def test_every_number_of_an_admin_call_at_its_edges(method: str, call: str) -> None:
    for edge in EDGES:
        if not -(2**63) <= edge < 2**64:
            continue
        run = lively(TOPIC)
        try:
            run.admin(method, call.removesuffix("#"), BODIES[method, call](edge))
            goes_on(run, TOPIC)
        except Exception as error:
            raise AssertionError(f"{method} {call} {edge}: {error!r}") from error


def test_a_topic_takes_producers_again_whatever_its_epoch_was() -> None:
    """A state of before the range has the last epoch that there is."""
    run = Run()
    run.create_producer("a", producer_access_mode="Exclusive", topic_epoch=2**63 - 1)
    run.lose("client")
    for mode in ("Exclusive", "ExclusiveWithFencing"):
        (made,) = [
            effect for effect in run.create_producer("b", producer_access_mode=mode) if isinstance(effect, ProducerSuccess)
        ]  # fmt: skip
        found = frame(made, lambda *_: None)  # type: ignore[arg-type]
        assert found is not None
        encode(found.cmd, found.fields)
        run.lose("client")


def test_every_kind_of_effect_can_be_a_frame_with_any_number() -> None:
    """Whatever 64-bit number a column holds."""
    for kind in KINDS:
        hints, schema = get_type_hints(kind), SCHEMAS[KINDS[kind]]
        for edge in (-(2**63), -1, 0, 2**31, 2**32, 2**63 - 1):
            numbers = {
                name: min(max(edge, -(2**31)), 2**31 - 1) if schema.field(name).type == pa.int32() else edge
                for name in hints
            }
            made = kind(**{name: filled(hint, numbers[name]) for name, hint in hints.items()})
            to_tables(0, [Row(0, 0, 0, made)])
            found = frame(made, lambda *_: (c.MessageMetadata("p", 0, 0), b""))
            if found is not None and not found.cmd.startswith("_"):
                encode(found.cmd, found.fields)


def filled(hint: Any, number: int) -> Any:
    if hint is type(None):
        return None
    part = next(each for each in parts(hint) if each is not type(None))
    if part is int:
        return number
    if part is str:
        return "MetadataError"
    if part is bytes:
        return b""
    if part is bool:
        return True
    if get_origin(part) is list:
        return [filled(get_args(part)[0], number)]
    if get_origin(part) is Literal:
        return get_args(part)[0]
    if isinstance(part, type) and issubclass(part, msgspec.Struct):
        hints = get_type_hints(part)
        return part(
            **{f.name: filled(hints[f.name], number) for f in msgspec.structs.fields(part) if f.required}
        )
    return None
