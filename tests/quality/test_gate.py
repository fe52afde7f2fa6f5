"""Records that break a rule end in quarantine with the rule's name. Other records are not affected."""

import base64
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from schemas.commands import Refused, decode
from schemas.records import RECORD
from sinks.tables import read_table
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.fold.columns import Fold
from streaming.jobs.replay import replay_in_process
from streaming.quality.column_gate import Gate
from streaming.quality.gate import decode_only, judge_each
from streaming.quality.suites import SuiteError
from streaming.spark import operator as op
from tests.quality.helpers import GOOD, METADATA, SCHEMA, TOPIC, value
from tests.rows import together
from tests.spark.helpers import START, Nowhere, traffic

LONG = "x" * 1025
LATE = 10**14 + 1
MANY = {f"k{n}": "v" for n in range(1001)}
PAIRS = [{"key": name, "value": "v"} for name in MANY]

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("PUBLISH", {"producer": ""}, "producer_length"),
    ("PUBLISH", {"producer": LONG}, "producer_length"),
    ("PUBLISH", {"sequence_id": -1}, "sequence_id_range"),
    ("PUBLISH", {"sequence_id": -(2**63)}, "sequence_id_range"),
    ("PUBLISH", {"publish_time": -1}, "publish_time_range"),
    ("PUBLISH", {"publish_time": LATE}, "publish_time_range"),
    ("PUBLISH", {"event_time": LATE}, "event_time_range"),
    ("PUBLISH", {"deliver_at_time": -1}, "deliver_at_time_range"),
    ("CONNECT", {"connection": LONG}, "connection_length"),
    ("CONNECT", {"client_version": LONG}, "client_version_length"),
    ("CONNECT", {"protocol_version": -1}, "protocol_version_range"),
    ("CONNECT", {"feature_flags": dict.fromkeys(MANY, True)}, "feature_flags.count_range"),
    ("CONNECTION_LOST", {"connection": LONG}, "connection_length"),
    ("PRODUCER", {"producer_id": -1}, "producer_id_range"),
    ("PRODUCER", {"request_id": -1}, "request_id_range"),
    ("PRODUCER", {"producer_name": LONG}, "producer_name_length"),
    ("PRODUCER", {"epoch": -1}, "epoch_range"),
    ("PRODUCER", {"topic_epoch": -2}, "topic_epoch_range"),
    ("PRODUCER", {"initial_subscription_name": LONG}, "initial_subscription_name_length"),
    ("PRODUCER", {"metadata": PAIRS}, "metadata.count_range"),
    ("PRODUCER", {"schema": SCHEMA | {"name": LONG}}, "schema.name_length"),
    ("SEND", {"producer_id": -7}, "producer_id_range"),
    ("SEND", {"metadata__producer_name": LONG}, "metadata.producer_name_length"),
    ("SEND", {"metadata__publish_time": -1}, "metadata.publish_time_range"),
    ("SEND", {"metadata__num_messages_in_batch": -1}, "metadata.num_messages_in_batch_range"),
    ("SEND", {"metadata__uncompressed_size": -1}, "metadata.uncompressed_size_range"),
    ("SEND", {"metadata__chunk_id": -1}, "metadata.chunk_id_range"),
    ("SEND", {"metadata__num_chunks_from_msg": 0}, "metadata.num_chunks_from_msg_range"),
    ("SEND", {"metadata__total_chunk_msg_size": -1}, "metadata.total_chunk_msg_size_range"),
    ("SEND", {"metadata__uuid": LONG * 2}, "metadata.uuid_length"),
    ("CLOSE_PRODUCER", {"producer_id": -1}, "producer_id_range"),
    ("SUBSCRIBE", {"subscription": LONG}, "subscription_length"),
    ("SUBSCRIBE", {"consumer_name": LONG}, "consumer_name_length"),
    ("SUBSCRIBE", {"start_message_rollback_duration_sec": -1}, "start_message_rollback_duration_sec_range"),
    ("SUBSCRIBE", {"subscription_properties": PAIRS}, "subscription_properties.count_range"),
    ("SUBSCRIBE", {"keySharedMeta": {"keySharedMode": "STICKY", "hashRanges": [{"start": 0, "end": 1}] * 65537}},
     "keySharedMeta.hashRanges.count_range"),
    ("FLOW", {"consumer_id": -1}, "consumer_id_range"),
    ("FLOW", {"messagePermits": 1_000_001}, "messagePermits_range"),
    ("FLOW", {"messagePermits": 2**31 - 1}, "messagePermits_range"),
    ("ACK", {"consumer_id": -1}, "consumer_id_range"),
    ("ACK", {"request_id": -1}, "request_id_range"),
    ("REDELIVER_UNACKNOWLEDGED_MESSAGES", {"consumer_id": -1}, "consumer_id_range"),
    ("UNSUBSCRIBE", {"request_id": -1}, "request_id_range"),
    ("CLOSE_CONSUMER", {"consumer_id": -1}, "consumer_id_range"),
    ("SEEK", {"message_publish_time": -1}, "message_publish_time_range"),
    ("GET_LAST_MESSAGE_ID", {"consumer_id": -1}, "consumer_id_range"),
    ("PARTITIONED_METADATA", {"request_id": -1}, "request_id_range"),
    ("LOOKUP", {"advertised_listener_name": LONG}, "advertised_listener_name_length"),
    ("GET_SCHEMA", {"schema_version": "A" * 88}, "schema_version.size_range"),
    ("GET_OR_CREATE_SCHEMA", {"schema__type": LONG}, "schema.type_length"),
    ("ADMIN", {"path": ""}, "path_length"),
    ("ADMIN", {"path": "persistent/a/b/c"}, "path_form"),
    ("ADMIN", {"path": "/" * 4097}, "path_length"),
    ("BROKER_CONFIG", {"settings": MANY}, "settings.count_range"),
    ("TICK", {"connection": LONG}, "connection_length"),
    ("RUN_CHECK", {"connection": LONG}, "connection_length"),
    ("FAULT", {"count": 1_000_001}, "count_range"),
]  # fmt: skip
MALFORMED = [b"", b"{", b"null", b"\xff\x00", b'{"command": "PUBLISH"}', b'{"producer": "p"}']
EXPECTED = [(value(kind, **fields), f"input.{kind}/{rule}") for kind, fields, rule in BAD] + [
    (bad, "malformed") for bad in MALFORMED
]


def judged(*values: bytes, topics: list[str | None] | None = None) -> list[Any]:
    """As both gates judge them."""
    names = topics or [TOPIC] * len(values)
    found = list(Gate().judge(names, values))
    assert list(judge_each(names, values)) == found
    return found


@pytest.mark.feature("J6")
@pytest.mark.parametrize("case", BAD, ids=lambda case: f"{case[0]}-{case[2]}")
def test_the_rule_is_named(case: tuple[str, dict[str, Any], str]) -> None:
    kind, fields, rule = case
    (refused,) = judged(value(kind, **fields))
    assert isinstance(refused, Refused)
    assert refused.rule == f"input.{kind}/{rule}"
    assert "expected" in refused.cause


@pytest.mark.parametrize("kind", GOOD)
def test_good_commands_come_decoded(kind: str) -> None:
    assert judged(value(kind)) == [decode(value(kind))]


def test_several_rules_are_all_told() -> None:
    (refused,) = judged(value("PUBLISH", producer="", sequence_id=-1), topics=["x" * 4097])
    assert refused.rule == "input.PUBLISH/producer_length"
    for text in (
        "producer is ''",
        "sequence_id is -1: expected at least 0",
        "topic is 'xxx",
        "4097 characters",
    ):
        assert text in refused.cause


def test_many_at_once_are_judged_as_one_by_one() -> None:
    """Those are checked by columns, these by rows."""
    values = [*(each for each, _ in EXPECTED), *map(value, GOOD)] * 20
    random.Random(5).shuffle(values)
    topics = [
        None if number % 7 == 0 else "x" * 4097 if number % 11 == 0 else TOPIC
        for number in range(len(values))
    ]
    assert {type(each) is Refused for each in judged(*values, topics=topics)} == {False, True}


def test_what_the_broker_answers_is_no_matter_of_the_gate() -> None:
    answered = [
        value("FLOW", messagePermits=0),
        value("FLOW", messagePermits=-(2**31)),
        value("SEND", producer_id=99),
        value("SUBSCRIBE", subscription=""),
        value("PRODUCER", producer_name=""),
        value("ACK", message_id=[]),
        value("ACK", message_id=[{"ledgerId": -1, "entryId": -1}]),
        value("SEEK", message_publish_time=2**63 - 1),
        value("PUBLISH", payload="x" * (6 << 20)),
        value("SEND", metadata=METADATA | {"deliver_at_time": -5}),
    ]
    assert not [each for each in judged(*answered) if isinstance(each, Refused)]


def test_the_payload_limit() -> None:
    """Tested on a small limit: the real one is 128 MiB."""
    gate = Gate()
    kind = type(decode(value("PUBLISH")))
    (rule,) = [rule for rule in gate.kinds[kind].suite.rules if rule.name.endswith("payload.size_range")]
    columns = {"payload.size": pa.array([128 << 20, (128 << 20) + 1, None])}
    assert rule.broken(columns).to_pylist() == [False, True, None]
    size = gate.kinds[kind].columns["payload.size"].get
    assert [size(decode(value("PUBLISH", payload=text))) for text in ("", "abc", "日本")] == [0, 3, 6]
    assert size(decode(value("PUBLISH", payload_bytes="AAEC"))) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata__partition_key": "k" * (4 << 20)},
        {"metadata__ordering_key": base64.b64encode(bytes(4 << 20)).decode()},
        {"metadata__properties": [{"key": str(number), "value": "v" * 100} for number in range(10_000)]},
        {
            "metadata__uuid": f"{LONG[:1024]}-{2**63 - 1}",
            "metadata__chunk_id": 0,
            "metadata__num_chunks_from_msg": 2,
        },
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_messages_that_official_clients_send_are_taken(fields: dict[str, Any]) -> None:
    """A client repeats a message that closes its connection, and all that come after it."""
    assert not isinstance(judged(value("SEND", **fields))[0], Refused)


def with_bad(*, ticks: bool) -> pa.Table:
    """Traffic of one partition, bad records in between; or TICKs in their places."""
    good = traffic(partitions=1).to_pylist()
    rows = []
    for number, row in enumerate(good):
        rows.append(row)
        if number < len(EXPECTED):
            bad = value("TICK") if ticks else EXPECTED[number][0]
            rows.append(row | {"topic": row["topic"] or TOPIC, "value": bad})
    assert len(good) >= len(EXPECTED)
    return pa.Table.from_pylist([row | {"offset": offset} for offset, row in enumerate(rows)], RECORD)


def folded(records: pa.Table, **options: Any) -> tuple[pa.Table, Any]:
    fold = Fold(Nowhere(), **options)
    tables = [together(rows) for _, rows in fold.apply(records)]
    return pa.concat_tables(tables).combine_chunks(), fold.states()


@pytest.mark.feature("J6")
def test_neighbours_are_unchanged() -> None:
    rows, states = folded(with_bad(ticks=False))
    undisturbed, same_states = folded(with_bad(ticks=True))
    bad = pc.equal(rows["kind"], "QUARANTINED")
    own = rows.filter(pc.and_(bad, pc.not_equal(rows["payload"], b"\xff\x00 rubbish")))
    assert own["rule"].to_pylist() == [rule for _, rule in EXPECTED]
    assert own["payload"].to_pylist() == [each for each, _ in EXPECTED]
    rest = rows.filter(pc.or_kleene(pc.invert(bad), pc.equal(rows["payload"], b"\xff\x00 rubbish")))
    assert rest.equals(undisturbed)
    assert states[0].broker == same_states[0].broker


@pytest.mark.feature("J6")
@pytest.mark.parametrize("batches", [2, 7, 50])
def test_cuts_and_slices_change_nothing(
    batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = with_bad(ticks=False)
    whole = replay_in_process(records, tmp_path / "whole")
    monkeypatch.setattr("streaming.quality.column_gate.SLICE", 3)
    cut = replay_in_process(records, tmp_path / "cut", batches=batches)
    rows, again = (read_table(str(each.out / "tables")) for each in (whole, cut))
    assert again.equals(rows)
    assert cut.stats == whole.stats
    assert whole.rows["QUARANTINED"] > len(EXPECTED)


def test_gates_change_nothing_where_nothing_is_bad() -> None:
    records = traffic(messages=200)
    gated, plain = folded(records), folded(records, judge=decode_only)
    assert gated[0].equals(plain[0])
    assert gated[1] == plain[1]


def test_a_tick_after_a_refused_record_has_an_ordinal_of_its_own() -> None:
    broker = Broker(0, NoEntries())
    (refused,) = judged(value("PUBLISH", producer=""))
    broker.apply(0, START, TOPIC, refused, b"as it came")
    broker.tick(START + 5)
    rows = broker.take()
    assert [(row.offset, row.ordinal, row.clock) for row in rows] == [(0, 0, START), (0, 1, START + 5)]
    assert rows[0].effect.payload == b"as it came"  # type: ignore[union-attr]


def test_a_timestamp_in_another_unit_is_still_told_by_the_broker() -> None:
    broker = Broker(0, NoEntries())
    (refused,) = judged(bad := value("PUBLISH", producer=""))
    broker.apply(0, START * 1_000_000, TOPIC, refused, bad)
    (row,) = broker.take()
    assert row.effect.rule == "timestamp"  # type: ignore[union-attr]
    assert broker.clock == 0


def test_a_suite_that_can_not_be_compiled_stops_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streaming.quality import gate

    monkeypatch.setattr(gate, "gate", lambda: Gate(tmp_path))
    with pytest.raises(SuiteError, match="no expectation suites"):
        op.operator(op.FoldOptions(sinks=[], store=Nowhere(), clock="log", broker=Broker, judge=gate.judge))
