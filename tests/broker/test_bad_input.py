"""Malformed, senseless or excessive records cause a row that says so, and affect neither the state nor other records.

`aftermath` is the judge. It gives a broker in full swing the bad record, then goes on with good ones, and wants exactly
what a TICK in its place would have left: the same effects afterwards and, to the byte, the same state.
"""

import json
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import Publish, Tick, to_binary, to_json
from schemas.effects import (
    KINDS,
    AdminResponse,
    CloseConnection,
    CloseConsumer,
    Effect,
    Error,
    Message,
    Quarantined,
    SendError,
    SendReceipt,
    Success,
    Unsupported,
)
from streaming.broker.broker import Broker
from streaming.broker.errors import LogOrderError
from streaming.broker.periodic_checks import CHECKS
from tests.broker.kit import START, TOPIC, Run, Stored, feed, of, one, response
from tests.examples import examples

NEIGHBOUR = "persistent://public/default/neighbour"
NOWHERE = "persistent://public/default/nowhere"
CLIENTS = {TOPIC: "client", NEIGHBOUR: "other client"}
"""Topic → the connection that uses it."""
BEFORE_FIRST = 2**64 - 1
"""−1 on the wire."""


@cache
def in_full_swing() -> tuple[bytes, Stored]:
    """A broker's state, and its entries: two topics, each with a Shared and an Exclusive subscription that are partly
    acked and have permits left, a connected producer and one of the short form."""
    store = Stored()
    run = Run(brokerDeduplicationEnabled=True, managedLedgerMaxEntriesPerLedger=3, maxMessageSize=1000)
    for topic, client in CLIENTS.items():
        run.create_producer("q", topic=topic, connection=client)
        run.subscribe("shared", "Shared", topic=topic, connection=client, permits=5)
        run.subscribe("exclusive", topic=topic, connection=client, id_=2, permits=5)
        for sequence_id in range(7):
            store.add(run.publish(sequence_id, topic=topic))
        run.raw(ack(1, id_(1, 1), connection=client), topic)
        run.raw(ack(2, id_(1, 0), connection=client), topic)
    return run.broker.encode(), store


def resumed() -> Run:
    run = Run()
    state, store = in_full_swing()
    run.broker = Broker.decode(state, store)
    return run


def go_on(run: Run) -> list[Effect]:
    """A bit of everything, and the clock moves."""
    effects = []
    for topic, client in CLIENTS.items():
        for sequence_id in (7, 8):
            effects += run.publish(sequence_id, topic=topic)
        effects += run.raw(ack(1, id_(1, 0), connection=client), topic)
        effects += run.raw(record("FLOW", connection=client, consumer_id=2, messagePermits=3), topic)
        redeliver = record("REDELIVER_UNACKNOWLEDGED_MESSAGES", connection=client, consumer_id=1)
        effects += run.raw(redeliver, topic)
    effects += run.wait(3600)
    effects += run.namespace("POST", "messageTTL", 60)
    for check in CHECKS:
        effects += run.check(check)
    return effects


@cache
def undisturbed() -> tuple[list[Effect], bytes]:
    run = resumed()
    assert run.do(Tick()) == []
    return go_on(run), run.broker.encode()


def aftermath(value: bytes, topic: str | None = TOPIC) -> list[Effect]:
    """The effects of a bad record that leaves no trace."""
    run = resumed()
    effects = run.raw(value, topic)
    assert (go_on(run), run.broker.encode()) == undisturbed()
    return effects


def about_neighbour(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if getattr(effect, "topic", None) == NEIGHBOUR]


def record(name: str, **fields: Any) -> bytes:
    return json.dumps({"command": name, "connection": "client", **fields}).encode()


def id_(ledger: int, entry: int) -> dict[str, int]:
    return {"ledgerId": ledger, "entryId": entry}


def send(producer_id: int = 1, **fields: Any) -> bytes:
    metadata = {"producer_name": "q", "sequence_id": 0, "publish_time": START}
    return record("SEND", producer_id=producer_id, **{"sequence_id": 0, "metadata": metadata, **fields})


def ack(consumer_id: int, *ids: dict[str, Any], **fields: Any) -> bytes:
    type_ = "Individual" if consumer_id == 1 else "Cumulative"
    return record("ACK", consumer_id=consumer_id, ack_type=type_, message_id=list(ids), **fields)


def admin(method: str, call: str, body: Any = None) -> bytes:
    path = f"/persistent/public/default/t{call}"
    return record("ADMIN", method=method, path=path, body=body)


# -- records that are no command ----------------------------------------------------------------------------------


@pytest.mark.feature("J6")
@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (b"", "empty value"),
        (b"{", "truncated"),
        (b"[]", "neither a JSON object"),
        (b"null", "neither a JSON object"),
        (b"\xff\xfe\x00", "neither a JSON object"),
        (b'{"command": "PUBLISH"}', "Invalid value 'PUBLISH'"),
        (b'{"command": 5}', "`$.command`"),
        (b'{"command": "FLOW", "consumer_id": 1}', "missing required field `messagePermits`"),
        (b'{"command": "FLOW", "consumer_id": "1", "messagePermits": 1}', "`$.consumer_id`"),
        (b'{"command": "FLOW", "consumer_id": 1, "messagePermits": 1, "permits": 1}', "unknown field `permits`"),
        (b'{"command": "SUBSCRIBE", "subscription": "s", "subType": "shared", "consumer_id": 9, "request_id": 9}',
         "Invalid enum value 'shared'"),
        (b'{"producer": "p"}', "missing required field `sequence_id`"),
        (b'{"producer": "p", "sequence_id": 1.5}', "Expected `int`, got `float`"),
        (b'{"producer": "p", "sequence_id": 99, "topics": "t"}', "unknown field `topics`"),
        (b'{"producer": "p", "sequence_id": 99, "partition": 0}', "unknown field `partition`"),
        (b'{"producer": "p", "sequence_id": 99, "payload_bytes": "?"}', "base64"),
        (b'{"producer": "p", "sequence_id": 99, "payload": "\\ud800"}', ""),
        (b'{"producer": "p", "sequence_id": 99, "payload": "\xff"}', ""),
        (to_binary(Publish(producer="p", sequence_id=99))[:-1], "truncated"),
        (b'{"producer": "p", "sequence_id": %d}' % 2**63, "`$.sequence_id`"),
        (b'{"producer": "p", "sequence_id": 99, "event_time": %d}' % 2**70, "`$.event_time`"),
        (record("FLOW", consumer_id=1, messagePermits=2**31), "`$.messagePermits`"),
        (record("PRODUCER", producer_id=9, request_id=9, epoch=2**70), "`$.epoch`"),
        (record("SUBSCRIBE", consumer_id=2**70, request_id=9, subscription="n", subType="Shared"), "`$.consumer_id`"),
        (ack(1, id_(2**64, 0)), "64 bits"),
    ],
)  # fmt: skip
def test_what_is_no_command_is_quarantined(value: bytes, cause: str) -> None:
    (row,) = aftermath(value)
    assert isinstance(row, Quarantined)
    assert (row.topic, row.rule, row.payload) == (TOPIC, "malformed", value)
    assert cause in row.cause


@pytest.mark.feature("J6")
def test_a_value_for_another_topic_than_the_records_is_quarantined() -> None:
    value = b'{"producer": "p", "sequence_id": 99, "topic": "t"}'
    (row,) = aftermath(value)
    assert isinstance(row, Quarantined)
    assert (row.topic, row.rule, row.payload) == (TOPIC, "coordinates", value)
    assert "`topic` t differs" in row.cause


@pytest.mark.feature("J6")
@pytest.mark.parametrize("topic", [None, ""])
@pytest.mark.parametrize(
    "value", [send(), ack(1, id_(1, 0)), b'{"producer": "p", "sequence_id": 99}', admin("PUT", "/unload")]
)
def test_a_record_without_its_topic_is_quarantined(value: bytes, topic: str | None) -> None:
    row = one(aftermath(value, topic), Quarantined)
    assert (row.rule, row.topic) == ("no_topic", topic)


@pytest.mark.feature("J6")
@pytest.mark.parametrize(
    "path",
    ["", "/", "/brokers/health", "/namespaces/public/default/messageTTL", "/persistent/public/default/t"],
)
def test_an_admin_call_on_something_else_than_the_topic_is_quarantined(path: str) -> None:
    row = one(aftermath(record("ADMIN", method="POST", path=path, body=1), NEIGHBOUR), Quarantined)
    assert row.rule == "wrong_topic"


@pytest.mark.feature("I1", "J6")
@pytest.mark.parametrize(
    "fields",
    [
        {"managedLedgerMaxEntriesPerLedgers": 5},
        {"managedLedgerMaxEntriesPerLedger": "many"},
        {"managedLedgerMaxEntriesPerLedger": 1.5},
        {"brokerDeduplicationEnabled": "maybe"},
        {"clusterName": 5},
        {"managedLedgerMaxEntriesPerLedger": 2**70},
        {"backlogQuotaDefaultRetentionPolicy": "evict"},
        {"backlogQuotaCheckIntervalInSeconds": "nan"},
        {"backlogQuotaCheckIntervalInSeconds": "inf"},
        {"backlogQuotaCheckIntervalInSeconds": 1e308},
        {"backlogQuotaDefaultLimitGB": "nan"},
    ],
)
def test_bad_settings_are_quarantined_and_the_old_ones_stay(fields: dict[str, Any]) -> None:
    row = one(aftermath(record("BROKER_CONFIG", settings=fields), None), Quarantined)
    assert row.rule == "broker_config"
    assert next(iter(fields)) in row.cause


@pytest.mark.feature("I1", "J6")
def test_an_unknown_profile_is_quarantined() -> None:
    assert one(aftermath(record("BROKER_CONFIG", profile="9.x"), None), Quarantined).rule == "malformed"


# -- commands that the broker refuses -----------------------------------------------------------------------------


@pytest.mark.feature("K1")
@pytest.mark.parametrize(
    "value",
    [
        send(producer_id=9),
        record("FLOW", consumer_id=1, messagePermits=0),
        record("FLOW", consumer_id=1, messagePermits=-5),
    ],
)
def test_who_breaks_the_protocol_loses_the_connection(value: bytes) -> None:
    run = resumed()
    (answer,) = run.raw(value)
    assert isinstance(answer, CloseConnection)
    assert answer.connection == "client"
    assert list(run.topic.producers) == ["p"]
    assert not run.topic.consumer_handles
    assert about_neighbour(go_on(run)) == about_neighbour(undisturbed()[0])


@pytest.mark.feature("K1")
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("FLOW", {"messagePermits": 5}),
        ("ACK", {"ack_type": "Individual", "message_id": [id_(1, 0)], "request_id": 9}),
        ("REDELIVER_UNACKNOWLEDGED_MESSAGES", {}),
    ],
)
def test_some_commands_of_an_unknown_consumer_are_dropped(name: str, fields: dict[str, Any]) -> None:
    assert aftermath(record(name, consumer_id=9, **fields)) == []


@pytest.mark.feature("K1")
@pytest.mark.parametrize("name", ["UNSUBSCRIBE", "SEEK", "GET_LAST_MESSAGE_ID"])
def test_other_commands_of_an_unknown_consumer_are_errors(name: str) -> None:
    (answer,) = aftermath(record(name, consumer_id=9, request_id=5))
    assert isinstance(answer, Error)
    assert (answer.error, answer.request_id, answer.connection) == ("MetadataError", 5, "client")


@pytest.mark.feature("K1")
def test_closing_what_is_not_there_succeeds() -> None:
    assert aftermath(record("CLOSE_PRODUCER", producer_id=9, request_id=5)) == [Success(TOPIC, "client", 5)]
    assert aftermath(record("CLOSE_CONSUMER", consumer_id=9, request_id=5)) == [Success(TOPIC, "client", 5)]


@pytest.mark.feature("K1")
def test_a_seek_to_nothing_is_an_error() -> None:
    assert one(aftermath(record("SEEK", consumer_id=1, request_id=5)), Error).error == "MetadataError"


@pytest.mark.feature("D1")
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"subscription": " ", "subType": "Shared"}, "ProducerBusy"),
        ({"subscription": "pulsar.dedup", "subType": "Shared"}, "ProducerBusy"),
        ({"subscription": "pulsar.repl.x", "subType": "Shared"}, "ProducerBusy"),
        ({"subscription": "shared", "subType": "Exclusive"}, "ConsumerBusy"),
        ({"subscription": "exclusive", "subType": "Exclusive"}, "ConsumerBusy"),
        ({"subscription": "shared", "subType": "Shared", "durable": False}, "NotAllowedError"),
        ({"subscription": "n", "subType": "Shared", "read_compacted": True}, "NotAllowedError"),
    ],
)
def test_refused_subscribes(fields: dict[str, Any], error: str) -> None:
    assert one(aftermath(record("SUBSCRIBE", consumer_id=9, request_id=5, **fields)), Error).error == error


@pytest.mark.feature("B2")
def test_a_producer_name_that_is_taken() -> None:
    run = resumed()
    answer = one(run.raw(record("PRODUCER", producer_id=9, request_id=5, producer_name="p")), Error)
    assert answer.error == "ProducerBusy"
    assert list(run.topic.producers) == ["q", "p"]
    assert go_on(run) == undisturbed()[0]


@pytest.mark.feature("B2")
@pytest.mark.parametrize(
    "value",
    [
        send(sequence_id=50, payload="x" * 1001),
        to_json(Publish(producer="p", sequence_id=50, payload="x" * 1001)),
        to_binary(Publish(producer="p", sequence_id=50, payload_bytes=b"\xff" * 1001)),
    ],
)
def test_too_large_a_payload_is_refused_and_only_counted(value: bytes) -> None:
    run, control = resumed(), resumed()
    answer = one(run.raw(value), SendError)
    assert (answer.error, answer.sequence_id) == ("NotAllowedError", 50)
    control.do(Tick())
    counted, before = run.topic.counters, control.topic.counters
    assert counted.messages_in == before.messages_in + 1
    assert counted.bytes_in > before.bytes_in + 1000
    run.topic.counters = msgspec.structs.replace(before)
    assert (go_on(run), run.broker.encode()) == (go_on(control), control.broker.encode())


@pytest.mark.feature("B2")
def test_a_payload_of_the_largest_size_is_taken() -> None:
    one(resumed().publish(50, payload="x" * 1000), SendReceipt)


@pytest.mark.feature("K1")
@pytest.mark.parametrize(
    "value",
    [
        send(),
        ack(1, id_(1, 0)),
        record("FLOW", consumer_id=1, messagePermits=1),
        record("SEEK", consumer_id=1, request_id=1, message_publish_time=1),
        record("CLOSE_CONSUMER", consumer_id=1, request_id=1),
        record("ADMIN", method="PUT", path="/persistent/public/default/nowhere/unload"),
    ],
)
def test_only_producers_and_consumers_create_a_topic(value: bytes) -> None:
    run = resumed()
    run.raw(value, NOWHERE)
    assert run.broker.topic_names() == sorted(CLIENTS)
    assert about_neighbour(go_on(run)) == about_neighbour(undisturbed()[0])


@pytest.mark.feature("K1")
@pytest.mark.parametrize("topic", [" ", "t", "persistent://", "persistent://public/default", "ftp://a/b/c"])
def test_a_topic_has_a_full_name(topic: str) -> None:
    effects = aftermath(b'{"producer": "p", "sequence_id": 99}', topic)
    assert len(effects) == 1


@pytest.mark.feature("I1")
@pytest.mark.parametrize(
    ("value", "status"),
    [
        (admin("POST", "/messageTTL", "soon"), 400),
        (admin("POST", "/messageTTL", 1.5), 400),
        (admin("POST", "/messageTTL", 2**31), 400),
        (admin("POST", "/deduplicationEnabled", "yes"), 400),
        (admin("POST", "/retention", 5), 400),
        (admin("POST", "/retention", {"retentionTimeInMinutes": "x"}), 400),
        (admin("POST", "/retention", {"retentionTimeInMinutes": 2**70, "retentionSizeInMB": 1}), 400),
        (admin("POST", "/retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}), 400),
        (admin("POST", "/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 1}), 400),
        (admin("POST", "/backlogQuota", []), 400),
        (admin("POST", "/backlogQuota", {"limitSize": "1G"}), 400),
        (admin("POST", "/backlogQuota", {"limitSize": "x"}), 400),
        (admin("POST", "/backlogQuota", {"limitSize": 2**70}), 400),
        (admin("POST", "/backlogQuota", {"limitSize": 5, "policy": "evict"}), 400),
        (admin("POST", "/backlogQuota?backlogQuotaType=size", {"limitSize": 5}), 404),
        (admin("DELETE", "/backlogQuota?backlogQuotaType=size"), 404),
        (admin("PUT", "/subscription/shared"), 409),
        (admin("PUT", "/subscription/pulsar.dedup"), 412),
        (admin("PUT", "/subscription/pulsar.repl.x"), 412),
        (admin("PUT", "/subscription/%20"), 412),
        (admin("PUT", "/subscription/n", "latest"), 400),
        (admin("PUT", "/subscription/n", []), 400),
        (admin("PUT", "/subscription/n", {"ledgerId": "x"}), 400),
        (admin("PUT", "/subscription/n", {"ledgerId": None}), 400),
        (admin("POST", "/subscription/shared/resetcursor", "x"), 400),
        (admin("POST", "/subscription/shared/resetcursor", {"ledgerId": 2**70, "entryId": 0}), 400),
        (admin("POST", "/subscription/shared/expireMessages", [1]), 400),
        (admin("DELETE", "/subscription/shared"), 412),
        (admin("DELETE", "/subscription/nobody"), 404),
        (admin("DELETE", "/subscription/pulsar.dedup"), 404),
        (admin("POST", "/subscription/nobody/skip/1"), 404),
        (admin("POST", "/subscription/nobody/skip_all"), 404),
        (admin("POST", "/subscription/nobody/resetcursor/1"), 404),
        (admin("POST", "/subscription/nobody/resetcursor"), 404),
        (admin("POST", "/subscription/nobody/expireMessages/1"), 404),
        (admin("POST", "/subscription/shared/expireMessages", id_(9, 9)), 409),
        (admin("GET", "/subscription/shared/position/99"), 404),
        (admin("POST", "/subscription/shared/skip/one"), 404),
        (admin("POST", f"/subscription/shared/skip/{'9' * 5000}"), 404),
    ],
)
def test_bad_admin_calls(value: bytes, status: int) -> None:
    (answer,) = aftermath(value)
    assert isinstance(answer, AdminResponse)
    assert answer.fields.status == status
    assert response([answer])["reason"]


@pytest.mark.feature("I1")
@pytest.mark.parametrize(
    "value",
    [
        admin("POST", "/offload"),
        admin("PUT", "/messageTTL/"),
    ],
)
def test_unknown_admin_calls_are_told_to_be_unsupported(value: bytes) -> None:
    effects = aftermath(value)
    assert one(effects, Unsupported).topic == TOPIC
    assert one(effects, AdminResponse).fields.status == 404


@pytest.mark.feature("I1")
def test_a_bad_call_on_a_namespace_leaves_nothing() -> None:
    value = record("ADMIN", method="POST", path="/namespaces/public/new/messageTTL", body="x")
    assert one(aftermath(value, None), AdminResponse).fields.status == 400


# -- ids out of range ---------------------------------------------------------------------------------------------


@pytest.mark.feature("D3")
@pytest.mark.parametrize(
    "position", [(9, 9), (3, 1), (2**63 - 1, 2**63 - 1), (-1, -1), (BEFORE_FIRST, BEFORE_FIRST), (1, -1)]
)
def test_a_cumulative_ack_out_of_range_is_ignored(position: tuple[int, int]) -> None:
    assert aftermath(ack(2, id_(*position))) == []


@pytest.mark.feature("D3")
@pytest.mark.parametrize(
    "position",
    [
        (9, 9),
        (3, 1),
        (-1, -1),
        (BEFORE_FIRST, BEFORE_FIRST),
        (1, -1),
        (0, 5),
        (2, 3),
        (2, -1),
        (2, BEFORE_FIRST),
        (2, 2**62),
    ],
)
def test_an_individual_ack_out_of_range_changes_nothing_in_the_backlog(position: tuple[int, int]) -> None:
    run, control = resumed(), resumed()
    run.raw(ack(1, id_(*position)))
    control.do(Tick())
    assert run.backlog("shared") == 6
    assert run.cursor("shared").acked == control.cursor("shared").acked
    assert go_on(run) == go_on(control)


@pytest.mark.feature("D4")
@pytest.mark.parametrize("position", [(9, 9), (-7, 5), (99, -1), (2, -9), (1, 2**62), (2**63, 2**63)])
def test_a_seek_out_of_range_lands_somewhere(position: tuple[int, int]) -> None:
    run = resumed()
    effects = run.raw(record("SEEK", consumer_id=1, request_id=5, message_id=id_(*position)))
    one(effects, CloseConsumer)
    one(effects, Success)
    assert run.mark_delete("shared").entry >= -1
    assert 0 <= run.backlog("shared") <= 7
    assert [effect for effect in go_on(run) if isinstance(effect, Message) and effect.topic == NEIGHBOUR]


# -- the log itself -----------------------------------------------------------------------------------------------


@pytest.mark.feature("J3")
@pytest.mark.parametrize("back", [0, 1, 5])
def test_an_offset_that_comes_again_stops_the_fold(back: int) -> None:
    run = resumed()
    before = run.broker.encode()
    with pytest.raises(LogOrderError, match="every record once, in order"):
        feed(run.broker, run.broker.offset - back, START + 5, TOPIC, b'{"producer": "p", "sequence_id": 99}')
    assert run.broker.take() == []
    assert run.broker.encode() == before


@pytest.mark.feature("J4")
def test_a_timestamp_from_the_past_does_not_move_the_clock() -> None:
    run = resumed()
    run.now -= 1_000_000
    (row,) = run.raw(b"?")
    assert isinstance(row, Quarantined)
    assert run.broker.clock == START


# -- acks of what isn't there -------------------------------------------------------------------------------------


@pytest.mark.feature("D3")
def test_an_ack_that_changes_nothing_writes_nothing() -> None:
    aftermath(ack(1, id_(9, 9)))


@pytest.mark.feature("D3")
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_partial_ack_of_what_is_not_there_changes_nothing(trimmed: bool) -> None:
    run = Run(acknowledgmentAtBatchIndexLevelEnabled=True, managedLedgerMaxEntriesPerLedger=1)
    run.subscribe("s", "Shared")
    for sequence_id in range(3):
        run.publish(sequence_id)
    if trimmed:
        run.admin("POST", "/subscription/s/skip_all")
        assert 1 not in run.topic.ledger.ledgers
    backlog = run.backlog("s")
    position = id_(1, 0 if trimmed else 5)
    run.raw(ack(1, position | {"ack_set": [2], "batch_size": 2}, connection="s"))
    assert run.backlog("s") == backlog


# -- anything at all ----------------------------------------------------------------------------------------------

INT64 = st.integers(-(2**63), 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | INT64 | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
VALID = [
    b'{"producer": "p", "sequence_id": 99, "payload": "x", "key": "k", "properties": {"a": "b"}}',
    send(sequence_id=1, highest_sequence_id=4, num_messages=4, payload="x"),
    record("PRODUCER", producer_id=9, request_id=9, producer_name="r", epoch=1),
    record("CLOSE_PRODUCER", producer_id=1, request_id=9),
    record("SUBSCRIBE", consumer_id=9, request_id=9, subscription="n", subType="Shared", initialPosition="Earliest"),
    record("SUBSCRIBE", consumer_id=9, request_id=9, subscription="r", subType="Exclusive", durable=False,
           start_message_id=id_(1, 2)),
    record("FLOW", consumer_id=1, messagePermits=2),
    ack(1, id_(2, 0), id_(1, 2)),
    ack(2, id_(2, 0)),
    record("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=[id_(1, 0)]),
    record("SEEK", consumer_id=1, request_id=9, message_id=id_(2, 1)),
    record("SEEK", consumer_id=2, request_id=9, message_publish_time=START),
    record("GET_LAST_MESSAGE_ID", consumer_id=1, request_id=9),
    record("UNSUBSCRIBE", consumer_id=2, request_id=9, force=True),
    record("CLOSE_CONSUMER", consumer_id=1, request_id=9),
    record("CONNECTION_LOST"),
    record("FAULT", fault="DelayWrites", count=2),
    record("RUN_CHECK", check="messageExpiry"),
    record("TICK"),
    record("BROKER_CONFIG", settings={"dispatcherMaxReadBatchSize": 5}),
    admin("POST", "/messageTTL", 5),
    admin("POST", "/retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}),
    admin("POST", "/backlogQuota", {"limitSize": 5, "policy": "consumer_backlog_eviction"}),
    admin("PUT", "/subscription/n", id_(1, 1)),
    admin("POST", "/subscription/shared/skip/2"),
    admin("POST", "/subscription/shared/resetcursor", id_(2, 0)),
    admin("POST", "/subscription/shared/expireMessages", id_(2, 0)),
    admin("DELETE", "/truncate"),
    admin("PUT", "/unload"),
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid command with one of its values replaced, one of its fields left out or added, or its bytes damaged."""
    value = draw(st.sampled_from(VALID))
    match draw(st.sampled_from(["value", "absent", "more", "bytes"])):
        case "bytes":
            at = draw(st.integers(0, len(value)))
            return value[:at] + draw(st.binary(max_size=3)) + value[at + draw(st.integers(0, 3)) :]
        case how:
            fields = json.loads(value)
            inside = fields.get("metadata", fields) if draw(st.booleans()) else fields
            name = draw(st.sampled_from(sorted(inside)))
            if how == "value":
                inside[name] = draw(JSON)
            elif how == "absent":
                del inside[name]
            else:
                inside[draw(st.text(max_size=8))] = draw(JSON)
            return json.dumps(fields).encode()


def harmless(value: bytes, topic: str | None) -> None:
    """Whatever it is, it is answered in due form, the state can be kept and the neighbour notices nothing."""
    run = resumed()
    effects = run.raw(value, topic)
    assert all(type(effect) in KINDS for effect in effects)
    if quarantined := of(effects, Quarantined):
        assert effects == quarantined
        assert quarantined[0].payload == value
        assert (go_on(run), run.broker.encode()) == undisturbed()
    else:
        Broker.decode(run.broker.encode(), Stored())
        if topic == TOPIC and b"BROKER_CONFIG" not in value:
            assert about_neighbour(go_on(run)) == about_neighbour(undisturbed()[0])


TOPICS = st.sampled_from([TOPIC, TOPIC, TOPIC, None, ""])


@pytest.mark.feature("J6")
@given(st.binary(max_size=40), TOPICS)
@settings(max_examples=examples(100))
def test_any_bytes(value: bytes, topic: str | None) -> None:
    harmless(value, topic)


@pytest.mark.feature("J6")
@given(JSON, TOPICS)
@settings(max_examples=examples(100))
def test_any_json(value: Any, topic: str | None) -> None:
    harmless(json.dumps(value).encode(), topic)


@pytest.mark.feature("J6")
@given(mutated(), TOPICS)
@settings(max_examples=examples(300))
def test_any_mutation_of_a_command(value: bytes, topic: str | None) -> None:
    harmless(value, topic)


@pytest.mark.parametrize("value", VALID)
def test_the_valid_commands_are_valid(value: bytes) -> None:
    run = resumed()
    assert not [effect for effect in run.raw(value) if isinstance(effect, Quarantined)]
